"""The page of the server in a real browser: what a visitor sees and does, and what must never happen."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.chromium import Window, chromium, needs_chromium
from tests.serve.page_server import MIXED, NARROW, PRAISE, UNDECIDED, page_server

pytestmark = needs_chromium
MARKUP = "<img src=x onerror=window.hacked=1> <script>window.hacked=1</script> <b>good</b> &amp; " + "good " * 30
NO_PROMISE, UNCHANGEABLE = "No promise any more.", "The answer cannot change (confidence 95%)."
# The least contrast of all visible texts with what is behind them (WCAG), without disabled controls.
CONTRASTS = """() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(node).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest(':disabled, .waiting')) continue;
    const [x, y] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < 4.5) low.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return low;
}"""


UNNAMED = """() => [...document.querySelectorAll('button, input, select, textarea, a, summary')].filter((node) =>
  !(node.textContent.trim() || node.labels?.length || node.getAttribute('aria-label'))).map((node) => node.outerHTML)"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with page_server() as (address, _):
        yield address


@pytest.fixture(scope="module")
def window() -> Iterator[Window]:
    with chromium() as window:
        yield window


def certify(page: Page, text: str, *, model: str = "") -> None:
    page.locator("#about-model:not(:empty)").wait_for()
    if model:
        page.locator("#model").select_option(model)
    page.locator("#text").fill(text)
    page.locator("#certify").click()
    expect(page.locator("#stop")).to_be_hidden()


def check_silence(window: Window, address: str) -> None:
    assert window.complaints == []
    assert all(url.startswith(address) for url in window.requests), window.requests
    assert window.page.evaluate("typeof window.hacked") == "undefined"


def test_certify_and_edit_within_and_beyond_the_radius(window: Window, address: str) -> None:
    page = window.open(address)
    expect(page.locator("#text")).to_have_value(PRAISE)  # the first example
    expect(page.locator("#length")).to_have_text("60 words")
    certify(page, PRAISE)
    promise = page.locator("#promise")
    expect(promise).to_contain_text("Answer positive")
    expect(promise).to_contain_text("Delete, insert or replace up to 6 words: the answer stays “positive”.")
    expect(promise).to_contain_text("Confidence 95%: on average, at most one in 20 such promises is wrong.")
    # 0.9 ** 6 > 1/2 > 0.9 ** 7: six inserted or replaced words; deletions cannot change a unanimous vote before
    tiles = page.locator("#radii div")
    assert [int(re.sub(r"\D", "", text)) for text in tiles.all_inner_texts()][1:] == [6, 6, 6]

    words = PRAISE.split()
    edited = page.locator("#edited")
    verdict, budget, diff = page.locator("#verdict .head"), page.locator("#budget p"), page.locator("#diff")
    expect(verdict).to_have_text("Nothing is changed yet.")
    edited.fill(" ".join([*words[:3], "awful", "bad", *words[4:-1]]))  # one replaced, one inserted, one deleted
    expect(verdict).to_have_text(UNCHANGEABLE)
    expect(budget).to_have_text("3 of 6 edits used")
    assert diff.locator(".sub").count() == 1
    assert diff.locator("> ins").count() == 1
    assert diff.locator("> del").all_text_contents() == ["film"]
    expect(page.locator("#fresh")).to_contain_text("positive – the same answer")
    edited.fill("\n ".join([*words, *["awful"] * 6]))  # white space does not count
    expect(budget).to_have_text("6 of 6 edits used")
    expect(verdict).to_have_text(UNCHANGEABLE)
    edited.fill(" ".join([*words, *["awful"] * 7]))
    expect(verdict).to_have_text(NO_PROMISE)
    expect(budget).to_have_text("7 edits, 1 beyond the promise")
    edited.fill("awful bad " * 20)
    expect(verdict).to_have_text(NO_PROMISE)
    expect(page.locator("#fresh")).to_contain_text("negative – the answer has changed")
    check_silence(window, address)


@pytest.mark.parametrize("width", [1280, 390])
def test_an_exact_model(window: Window, address: str, width: int) -> None:
    """What is left of the lead, a score for each word, and a text that shows that the promise cannot be larger."""
    page = window.open(address, width=width)
    certify(page, MIXED, model="exact")
    radius = int(re.sub(r"\D", "", page.locator("#radii b").all_inner_texts()[-1]))
    assert radius > 0
    expect(page.locator("#promise")).to_contain_text("This is certain: the worst edits are known.")
    heat = page.locator("#heat")
    assert heat.text_content() == MIXED
    assert heat.locator("[class^=heat-against]").all_text_contents() == ["awful"] * 4
    assert set(heat.locator("[class^=heat-for-4]").all_text_contents()) == {"good"}
    page.get_by_role("button", name="The worst edits").click()
    expect(page.locator("#budget p")).to_have_text(f"{radius + 1} edits, 1 beyond the promise")
    expect(page.locator("#edited")).to_have_value(str(page.locator("#counterexample .text").text_content()))
    expect(page.locator("#fresh")).to_contain_text("negative – the answer has changed")
    page.locator("summary").click()
    expect(page.locator("#alpha")).to_be_hidden()
    page.get_by_label("insert").uncheck()
    page.locator("#certify").click()
    expect(page.locator("#promise")).to_contain_text("Delete or replace up to")
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    check_silence(window, address)


def test_a_filter_marks_the_segment_and_padding_counts_nothing(window: Window, address: str) -> None:
    page = window.open(address)
    text = " ".join(["film"] * 3 + ["awful"] * 9 + ["film"] * 3)
    certify(page, text, model="filter")
    expect(page.locator("#promise")).to_contain_text("No matter what text is added before and after, it stays")
    expect(page.locator("#gauge")).to_contain_text("The words 4 to 12 give the answer “negative” alone")
    assert page.locator("#heat .segment").all_text_contents() == ["awful"] * 9
    around = " ".join(["good"] * 200)
    page.locator("#edited").fill(f"{around} {text.replace('awful', 'good', 1)}{around}")
    expect(page.locator("#verdict")).to_contain_text("The answer cannot change (certain).")
    expect(page.locator("#verdict")).to_contain_text("Whatever stands before and after: inside are 1 of the")
    expect(page.locator("#fresh")).to_contain_text("negative – the same answer")
    check_silence(window, address)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNDECIDED, "The model abstains."),
        (NARROW, "But no changed word is covered: a single edit might change the answer."),
        ("good film", "It is valid (certain), but it shows that the model cannot tell such short texts apart"),
        ("", "Every text of 0 words gets the answer “positive”."),
    ],
    ids=["abstained", "radius 0", "every text", "empty"],
)
def test_every_outcome_has_its_sentence(window: Window, address: str, text: str, words: str) -> None:
    page = window.open(address, width=390)
    certify(page, text)
    expect(page.locator("#promise")).to_contain_text(words)
    page.locator("#edited").fill(text + " awful")
    if text == UNDECIDED:
        expect(page.locator("#promise")).to_contain_text("was ahead among the first votes")
        expect(page.locator("#fresh")).to_contain_text("None – the model abstains. The votes are too divided:")
    expected = {UNDECIDED: "There is no promise to lose.", NARROW: NO_PROMISE}
    expect(page.locator("#verdict .head")).to_have_text(expected.get(text, "The answer cannot change (certain)."))
    check_silence(window, address)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_width_and_theme(window: Window, address: str, width: int, dark: bool) -> None:
    """Nothing beside the screen, and readable colours; also with a very long word."""
    page = window.open(address, width=width, dark=dark)
    expect(page.locator("#certify")).to_be_enabled()
    page.locator("summary").click()
    low = page.evaluate(CONTRASTS)
    certify(page, f"{MIXED} {'long' * 200} {MIXED}")
    page.locator("#edited").fill(f"{MIXED} worse {'short' * 200} {MIXED} {MIXED}")
    expect(page.locator("#verdict .head")).to_have_text(NO_PROMISE)
    expect(page.locator("#fresh")).to_contain_text("answer")
    low += page.evaluate(CONTRASTS)
    page.locator("#edited").fill(f"{MIXED} {'long' * 200} bad")
    page.locator("#text").fill("another text")
    expect(page.locator("#stale")).to_be_visible()
    low += page.evaluate(CONTRASTS)
    assert low == []

    assert page.evaluate(UNNAMED) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 60) == dark
    check_silence(window, address)


def test_a_text_with_markup_stays_text(window: Window, address: str) -> None:
    page = window.open(address)
    certify(page, MARKUP)
    page.locator("#edited").fill(MARKUP + " <svg onload=window.hacked=1> <i>bad</i>")
    expect(page.locator("#verdict .head")).to_have_text(UNCHANGEABLE)
    expect(page.locator("#diff > ins")).to_contain_text("<svg onload=window.hacked=1> <i>bad</i>")
    expect(page.locator("#fresh")).to_contain_text("the same answer")
    assert page.locator("main img, main script, main b:text('good'), main svg[onload]").count() == 0
    check_silence(window, address)


def test_other_units_and_noises(window: Window, address: str) -> None:
    page = window.open(address)
    certify(page, "g" * 60, model="letters")
    expect(page.locator("#promise")).to_contain_text("up to 6 characters")
    page.locator("#edited").fill("g" * 30 + "bb😀b" + "g" * 30)
    expect(page.locator("#budget p")).to_have_text("4 of 6 edits used")
    certify(page, "g" * 60, model="bytes")
    expect(page.locator("#about-edit")).to_contain_text("This page cannot count this text's units of the kind “byte”")
    expect(page.locator("#edit-body")).to_be_hidden()
    expect(page.locator("#promise")).to_contain_text("up to 6 tokens")
    certify(page, PRAISE, model="topics")  # labels are numbers, and there are more of them than rows
    expect(page.locator("#promise")).to_contain_text("Answer 3")
    assert page.locator("#votes .name").all_text_contents()[0::5] == ["3", "4 other answers"]
    certify(page, PRAISE, model="masked")
    expect(page.locator("#promise")).to_contain_text("Replace up to 6 words")
    check_silence(window, address)


def test_votes_arrive_live_and_can_be_stopped(window: Window, address: str) -> None:
    page = window.open(address)
    expect(page.locator("#certify")).to_be_enabled()
    page.locator("#model").select_option("slow")
    page.locator("#text").fill(UNDECIDED)
    page.locator("#certify").click()
    expect(page.locator("#about-votes")).to_contain_text("Choosing the answer:")
    first = int(re.sub(r"\D", "", str(page.locator("#about-votes").text_content()).split("votes")[0]))
    number = "document.querySelector('#about-votes').textContent.replace(/\\D*([\\d,]+).*/, '$1')"
    page.wait_for_function(f"(first) => parseInt({number}) > first", arg=first)
    assert page.locator("#votes .scale").count() == 2
    assert page.locator("#answer").get_attribute("aria-busy") == "true"
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#promise")).to_contain_text("You stopped the voting.")
    expect(page.locator("#certify")).to_be_enabled()
    check_silence(window, address)


def test_a_token_is_asked_for(window: Window) -> None:
    with page_server("open-sesame-by-any-name") as (address, _):
        page = window.open(address)
        expect(page.locator("#ask-token")).to_be_visible()
        expect(page.locator("#token")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_contain_text("The server did not accept this token.")
        page.locator("#token").fill("open-sesame-by-any-name")
        page.get_by_role("button", name="Continue").click()
        certify(page, PRAISE)
        expect(page.locator("#promise")).to_contain_text("up to 6 words")
        assert "sesame" not in page.content()
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_refusals_are_said_in_a_sentence(window: Window, address: str) -> None:
    page = window.open(address)
    expect(page.locator("#certify")).to_be_enabled()
    page.locator("#text").fill("word " * 20_001)
    expect(page.locator("#length")).to_have_text("20,001 words: this server takes at most 20,000. Shorten the text.")
    expect(page.locator("#certify")).to_be_disabled()
    page.locator("#model").select_option("bytes")  # whose bytes the page does not count, but the server does
    page.locator("#certify").click()
    expect(page.locator("#problem")).to_contain_text("20000")
    page.locator("#model").select_option("reviews")
    busy = {"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": "too many texts wait"}

    def refuse(route: Route) -> None:
        headers = {"Content-Type": "application/problem+json", "Retry-After": "3"}
        route.fulfill(status=429, headers=headers, body=json.dumps(busy))

    page.route("**/v1/certify", refuse)
    certify(page, PRAISE)
    expect(page.locator("#problem")).to_have_text(re.compile("Too many texts wait. Try again in 3 seconds."))
    page.unroute("**/v1/certify")
    votes = 'event: votes\ndata: {"index": 0, "phase": "selection", "votes": {"positive": 3}, "total": 3}\n\n'
    page.route("**/v1/certify", lambda route: route.fulfill(content_type="text/event-stream", body=votes))
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#problem")).to_contain_text("The connection ended before the answer was complete")
    page.unroute("**/v1/certify")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#promise")).to_contain_text("up to 6 words")
    expect(page.locator("#problem")).to_be_hidden()


def test_the_policy_forbids_inline_scripts_and_other_servers(address: str) -> None:
    with urllib.request.urlopen(address, timeout=10) as response:
        policy, page = response.headers["Content-Security-Policy"], response.read().decode()
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?! type=\"module\" src=\"page/)", page)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
