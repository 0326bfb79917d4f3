"""The page's own arithmetic, run in the browser, against Python: words, edit distances, alignments, verdicts."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route

import adaptdel
from adaptdel.core.threat import EVERY_SET
from adaptdel.text.units import Characters, Words
from tests.chromium import Window, chromium, needs_chromium

pytestmark = needs_chromium
PAGE = Path(adaptdel.__file__).parent / "serve" / "page"
ALIGN = """async (cases) => {
  const { align } = await import("/page/distance.js");
  return cases.map(([a, b, ops, cells]) => {
    const { distance, atLeast, steps } = align(a, b, ops, cells ?? undefined);
    return { distance: distance === Infinity ? -1 : distance, atLeast: atLeast ?? null, steps };
  });
}"""
COVERED = """async (cases) => {
  const { covered } = await import("/page/distance.js");
  return cases.map(([a, b, radii, cells]) => covered(a, b, radii, cells).inside);
}"""
SPLIT = """async ([texts, name]) => {
  const { split, spans, UNITS } = await import("/page/tokens.js");
  return texts.map((text) => {
    const [tokens, places] = [split(text, UNITS[name]), spans(text, UNITS[name])];
    const wrong = ({ start, end, token }, place) => token !== tokens[place] || text.slice(start, end) !== token;
    if (places.some(wrong)) throw Error("spans");
    return tokens;
  });
}"""
SPACES = """async () => {
  const { split, UNITS } = await import("/page/tokens.js");
  const spaces = [];
  for (let code = 0; code < 0x110000; code += 1)
    if (split(`a${String.fromCodePoint(code)}b`, UNITS.word).length === 2) spaces.push(code);
  return spaces;
}"""


@pytest.fixture(scope="module")
def window() -> Iterator[Window]:
    """A browser in an empty page that has the page's modules; no server runs."""

    def answer(route: Route) -> None:
        path = PAGE / route.request.url.rpartition("/")[2]
        if path.suffix == ".js":
            route.fulfill(path=path, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    with chromium() as window:
        page = window.open("about:blank")
        page.route("**/*", answer)
        page.goto("http://page.test/")
        yield window


def distance(a: Sequence[str], b: Sequence[str], ops: Sequence[str]) -> float:
    row: list[float] = [j if "ins" in ops or j == 0 else inf for j in range(len(b) + 1)]
    for i, token in enumerate(a, 1):
        diagonal, row[0] = row[0], (i if "del" in ops else inf)
        for j, other in enumerate(b, 1):
            kept = diagonal + (0 if token == other else 1 if "sub" in ops else inf)
            deleted = row[j] + 1 if "del" in ops else inf
            inserted = row[j - 1] + 1 if "ins" in ops else inf
            diagonal, row[j] = row[j], min(kept, deleted, inserted)
    return row[-1]


def edited(rng: random.Random, tokens: Sequence[str], edits: int, alphabet: str) -> list[str]:
    result = list(tokens)
    for _ in range(edits):
        place = rng.randint(0, len(result))
        result[place : place + rng.randint(0, 1)] = rng.choices(alphabet, k=rng.randint(0, 1))
    return result


def random_pairs(seed: int, count: int, longest: int) -> Iterator[tuple[list[str], list[str]]]:
    rng = random.Random(seed)
    for number in range(count):
        alphabet = "ab" if number % 2 else "abcdefgh"
        a = rng.choices(alphabet, k=rng.randint(0, longest))
        related = edited(rng, a, rng.randint(0, 6), alphabet)
        yield a, rng.choices(alphabet, k=rng.randint(0, longest)) if number % 3 == 0 else related


def check_steps(a: list[str], b: list[str], ops: Sequence[str], answer: dict[str, Any]) -> None:
    """The steps lead from a to b, use allowed operations only, and are as many as the distance says."""
    steps = answer["steps"]
    assert list(chain.from_iterable(step["from"] for step in steps)) == a
    assert list(chain.from_iterable(step["to"] for step in steps)) == b
    assert {step["kind"] for step in steps} <= {"keep", *ops}
    for step in steps:
        sizes = len(step["from"]), len(step["to"])
        assert {"keep": sizes[0] == sizes[1], "sub": sizes[0] == sizes[1], "del": not sizes[1], "ins": not sizes[0]}[
            step["kind"]
        ]
        assert step["kind"] != "keep" or step["from"] == step["to"]
    assert sum(max(len(s["from"]), len(s["to"])) for s in steps if s["kind"] != "keep") == answer["distance"]


def test_distances_are_exact_for_every_set_of_operations(window: Window) -> None:
    # alignments that are far from the diagonal, and little better than one that is near
    rotated: list[tuple[list[str], list[str]]] = []
    for length in range(20, 40):
        tokens = [str(number) for number in range(length)]
        shifts = (length // 2 - 2, length // 2 - 1, -length // 2 + 2, -length // 2 + 1)
        rotated.extend((tokens, tokens[shift:] + tokens[:shift]) for shift in shifts)
    pairs = [*random_pairs(1, 150, 12), *random_pairs(2, 8, 90), *rotated]
    cases = [[a, b, list(ops)] for a, b in pairs for ops in EVERY_SET]
    answers = window.page.evaluate(ALIGN, cases)
    unreachable = 0
    for (a, b, ops), answer in zip(cases, answers, strict=True):
        true = distance(a, b, ops)
        assert answer["distance"] == (-1 if true == inf else true), (a, b, ops)
        unreachable += true == inf
        if true < inf:
            check_steps(a, b, ops, answer)
    assert 50 < unreachable < len(cases) / 2


def test_what_would_take_too_long_is_bounded_from_below(window: Window) -> None:
    pairs = list(random_pairs(3, 20, 120))
    cases: list[list[Any]] = [[a, b, list(ops), 1500] for a, b in pairs for ops in EVERY_SET]
    answers = window.page.evaluate(ALIGN, cases)
    given_up = 0
    for (a, b, ops, _), answer in zip(cases, answers, strict=True):
        true = distance(a, b, ops)
        if answer["distance"] is None:
            given_up += 1
            assert answer["atLeast"] <= true
            assert answer["steps"] is None
        else:
            assert answer["distance"] == (-1 if true == inf else true)
    assert given_up > 10


def test_a_text_is_covered_if_any_certified_radius_covers_it(window: Window) -> None:
    rng = random.Random(5)
    cases: list[list[Any]] = []
    expected = []
    for a, b in random_pairs(6, 200, 14):
        radii: list[list[Any]] = [
            [["del", "ins", "sub"], rng.randint(-1, 4)],
            *([[op], rng.randint(-1, 7)] for op in ("del", "sub")),
        ]
        cases.append([a, b, radii])
        expected.append(any(distance(a, b, ops) <= radius for ops, radius in radii))
    assert window.page.evaluate(COVERED, cases) == expected
    assert 20 < sum(expected) < 180
    a, b = list("abcd" * 40), list("bdac" * 40)
    every = ["del", "ins", "sub"]
    true = distance(a, b, every)
    undecided = [[a, b, [[every, radius], [["del"], 90]], 1000] for radius in (0, true, 160)]
    assert window.page.evaluate(COVERED, undecided) == [False, None, None]  # too many edits for 1000 cells to count


def test_a_part_of_a_lead_is_not_rounded_to_all_of_it(window: Window) -> None:
    part = """async (scores) => {
      const { part } = await import("/page/influence.js");
      return scores.map((score) => part(score, { slack: 999_999 }));
    }"""
    assert window.page.evaluate(part, [25_000, 999_622, 999_999, 1_000_000, 1_070_000, -333_333]) == [
        "2.5%", "99.962%", "99.999%", "100%", "107%", "−33.3%"
    ]  # fmt: skip


def test_words_are_split_as_in_python(window: Window) -> None:
    assert window.page.evaluate(SPACES) == [code for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    rng = random.Random(7)
    alphabet = "ab.é😀\ufeff\u200b \t\n\x0b\x1c\x1f\x85\xa0\u1680\u2003\u2028\u3000"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 30))) for _ in range(300)]
    assert window.page.evaluate(SPLIT, [texts, "word"]) == [list(Words().split(text)) for text in texts]
    assert window.page.evaluate(SPLIT, [texts, "char"]) == [list(Characters().split(text)) for text in texts]


PADDED = """async (cases) => {
  const { padded } = await import("/page/distance.js");
  return cases.map(([a, b, ops]) => Math.min(padded(a, b, ops, true), 1e6));
}"""


def test_text_before_and_after_counts_nothing_also_glued_on(window: Window) -> None:
    """Against every part of the text, where the first and the last word may be parts of words."""
    rng = random.Random(4)

    def words(least: int, most: int) -> list[str]:
        return ["".join(rng.choices("ab", k=rng.randint(1, 2))) for _ in range(rng.randint(least, most))]

    cases = [(words(2, 3), words(1, 6), rng.choice(EVERY_SET)) for _ in range(120)]

    def least(a: list[str], b: list[str], ops: Sequence[str]) -> float:
        found = inf
        for start in range(len(b) + 1):
            for end in range(start, len(b) + 1):
                part = list(b[start:end])
                ends = [(part, 0)]
                if part:
                    ends += [([a[0], *part[1:]], 0)] if part[0].endswith(a[0]) else []
                    ends += [([*each[:-1], a[-1]], 0) for each, _ in list(ends) if each[-1].startswith(a[-1])]
                found = min(found, *(distance(a, each, ops) for each, _ in ends))
        return min(found, 1e6)

    assert window.page.evaluate(PADDED, cases) == [least(*case) for case in cases]
