"""Reports: complete, self-contained, escaped, whole or not at all; and opened in a real browser."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.votes import Votes, VotesPlan
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import Noise
from adaptdel.core.plain import to_plain
from adaptdel.core.threat import Threat
from adaptdel.files import write_json
from adaptdel.report import words, write
from adaptdel.report.comparison import main_table
from adaptdel.report.entries import read_entries
from adaptdel.report.write import write_report
from adaptdel.runs.columns import Totals, batch_of, problem_record, record_of
from adaptdel.runs.inputs import DataFacts
from adaptdel.runs.manifest import Manifest, ModelFacts, Session, timestamp
from adaptdel.runs.storage import open_store, stored_key, stored_value, write_table
from adaptdel.store import delete_store
from adaptdel.text.data import Row
from adaptdel.text.units import Words, content_key
from tests.chromium import chromium, needs_chromium
from tests.run_files import run

HOSTILE = (
    "<script>window.hacked = 1</script> & <img src=http://example.com/x.png onerror='window.hacked = 2'> \"' `$x` | "
)
CLASSES = ("good <b>", "bad & ugly", "none")
FIGURES = ("certified-radius", "classes", "certified-cardinality", "quartiles", "rates")


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [HOSTILE + " ".join(f"word{n}" for n in rng.integers(0, 50, rng.integers(3, 200))) for _ in range(count)]


def certificate(text: str, noise: Noise, votes: tuple[int, ...], classes: tuple[Any, ...] = CLASSES) -> Certificate:
    tokens = Words().split(text)
    answer = int(np.argmax(votes))
    looks = Looks((sum(votes),), (0.05,))
    return Certificate(
        label=classes[answer],
        classes=classes,
        plan=VotesPlan(noise=noise, threat=Threat(noise.certified_ops), alpha=0.05, n_select=100, n_estimate=400),
        evidence=Votes(answer, len(tokens), tuple(v // 4 for v in votes), looks, (votes,)),
        unit=Words().to_dict(),
        model_hash="0123456789abcdef" * 4,
        known_hash=content_key(tokens).hex(),
    )


def make_run(
    folder: Path, rows: list[str], noise: Noise, *, strength: float | None = None, classes: tuple[Any, ...] = CLASSES,
    seed: int = 0, truths: bool = True, **changes: Any,
) -> Path:  # fmt: skip
    """A run of made-up votes; ``strength`` is the share of votes for the answer, at random if left out."""
    rng = np.random.default_rng(seed)
    answers = []
    for text in rows:
        share = rng.choice([0.5, 0.8, 0.95, 1.0]) if strength is None else strength
        answer = int(rng.integers(len(classes)))
        weights = np.full(len(classes), (1 - share) / len(classes)) + share * np.eye(len(classes))[answer]
        truth = classes[answer if rng.random() < 0.8 else 0] if truths else None
        votes = tuple(map(int, rng.multinomial(400, weights)))
        answers.append((certificate(text, noise, votes, classes), text, truth))
    return write_run(folder, answers, **changes)


def write_run(
    folder: Path, answers: list[tuple[Certificate, str, Any]], *, data: Path | str = "gone/test.jsonl.gz",
    finished: bool = True, problems: int = 0,
) -> Path:  # fmt: skip
    folder.mkdir()
    records = [
        record_of(created, id=Row(number, text, None).id, row=number, label=label)
        for number, (created, text, label) in enumerate(answers, start=1)
    ]
    records += [problem_record("not <b>UTF-8</b>", id=None, row=len(answers) + n + 1) for n in range(problems)]
    first, batch = answers[0][0], batch_of("votes", records)
    manifest = Manifest(
        model_hash=first.model_hash, unit=Words().to_dict(), classes=list(first.classes), plan=first.plan, limit=None,
        model=ModelFacts("model", "smoothed", "linear"), started=timestamp(), seconds=0.0, rows=len(records),
        data=DataFacts((str(data),), "text", "label", "utf-8", sha256="ab" * 32),
        sessions=[Session(timestamp(), "local", 1, len(records), 0, {})],
    )  # fmt: skip
    if finished:
        totals, digest = Totals.of(manifest, records).to_dict(), write_table(folder, "votes", [batch])
        manifest = replace(manifest, finished=timestamp(), totals=totals, table_sha256=digest)
    else:
        with open_store(folder) as store:
            store.put(stored_key(1, 1), stored_value(batch))
    write_json(folder / "manifest.json", to_plain(manifest))
    return folder


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take most of the time."""
    monkeypatch.setattr(write, "draw", lambda entries, **_: [])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs on the same texts, with names and labels that try to break out."""
    folder = tmp_path_factory.mktemp("runs")
    rows = texts(40)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return [
        make_run(folder / "adaptdel", rows, Deletion(LengthRate(0.9, 8)), data=data, problems=2),
        make_run(folder / "masks", rows, Masking(0.9), data=data, seed=1),
        make_run(folder / "none", rows, NoNoise(), data=data, seed=2),
    ]


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "deep" / "out"
    write_report(runs, out, sample=6, title="A <title> & more")
    return out


@pytest.fixture(scope="module")
def odd_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that leave nothing to show: all abstained, radius 0 throughout, unfinished, without labels."""
    folder = tmp_path_factory.mktemp("odd")
    rows = texts(12)
    result = [
        make_run(folder / "abstained", rows, Deletion(FixedRate(0.9)), strength=0.0),
        make_run(folder / "zero", rows, Deletion(FixedRate(0.1)), strength=0.6, classes=("a", "b")),
        make_run(folder / "unfinished", rows[:5], Deletion(FixedRate(0.9)), finished=False),
        make_run(folder / "unlabelled", rows, Deletion(FixedRate(0.8)), truths=False),
    ]
    write_report(result, folder / "out", sample=3, baseline=1)
    return folder / "out"


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def read_page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def check_page(folder: Path) -> None:
    """Nothing is loaded from elsewhere, nothing runs, and identifiers are unique."""
    page = read_page(folder)
    elements = Elements(page).found
    active = {"script", "img", "link", "iframe", "object", "embed", "video", "base", "form", "image"}
    assert not {tag for tag, _ in elements} & active
    for tag, attributes in elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "src" not in attributes
        href = attributes.get("href") or "#"
        assert href.startswith("#") or (folder / href).is_file(), href
    assert not re.search(r"@import|url\((?!#)", page)
    identifiers = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(identifiers)
    assert "nan" not in re.sub(r"<[^>]*>", " ", page).lower().split()


def test_the_page_is_whole_and_needs_nothing_else(report: Path) -> None:
    check_page(report)
    page = read_page(report)
    for name in FIGURES:
        assert f'<figure id="figure-{name}"><svg ' in page
        for kind in ("png", "svg", "pdf"):
            assert (report / "figures" / f"{name}.{kind}").stat().st_size > 1000
    order = [page.index(part) for part in ('class="summary"', "figure-certified-radius", 'id="example"', "<table")]
    assert order == sorted(order)  # sentences and curves come first
    values = json.loads((report / "report.json").read_text())
    assert values["example"]["run"] == "AdaptDel 90%"
    assert values["example"]["words"][0].startswith("With 95% confidence, no attacker who")


def test_files_hold_the_same_numbers(report: Path) -> None:
    names = {path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}
    values = json.loads((report / "report.json").read_text())
    assert set(values["files"]) == names - {"report.json"}
    assert not [path for path in report.parent.iterdir() if path != report]  # nothing is left behind
    with (report / "tables" / "main.csv").open(encoding="utf-8") as file:
        for row, run in zip(csv.DictReader(file), values["runs"], strict=True):
            assert float(row["mean_radius"]) == run["measures"]["mean_radius"]
    with (report / "tables" / "curves.csv").open(encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    assert {row["against"] for row in points} == {"radius", "log10_cardinality"}
    assert {row["class"] for row in points} == {"", *CLASSES}


def test_what_comes_from_data_and_manifests_is_escaped(report: Path, tmp_path: Path, no_figures: None) -> None:
    page = read_page(report)
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in page
    assert "<title>A &lt;title&gt; &amp; more</title>" in page
    for raw in ("<script", "<img", "good <b>", "bad & ugly", "A <title>"):
        assert raw not in page
    folder = make_run(tmp_path / "run", texts(3), Deletion(FixedRate(0.9)), strength=1.0)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["model"]["method"] = "<script>window.hacked = 3</script>"
    manifest["data"]["path"] = ["data/<i>x.jsonl"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    write_report([folder], tmp_path / "out")
    page = read_page(tmp_path / "out")
    assert "<script" not in page
    assert page.count("&lt;script&gt;window.hacked = 3&lt;/script&gt;") > 5
    assert "<title>Certified robustness on &lt;i&gt;x</title>" in page


def test_a_second_report_is_the_same_and_takes_the_place_of_the_first(runs: list[Path], tmp_path: Path) -> None:
    names = ("index.html", "report.json", "tables.tex", "tables/main.csv", "figures/rates.png")
    kept = []
    for _ in range(2):
        write_report(runs[:2], tmp_path / "out", sample=4, seed=3)
        kept.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert kept[0] == kept[1]
    none = make_run(tmp_path / "none", texts(1), Deletion(FixedRate(0.8)), finished=False)
    delete_store(none / "unfinished.sqlite")
    write_report([none], tmp_path / "out")
    check_page(tmp_path / "out")
    assert "holds no certified inputs." in read_page(tmp_path / "out")
    assert not (tmp_path / "out" / "tables" / "differences.csv").exists()


def test_odd_runs(odd_report: Path) -> None:
    check_page(odd_report)
    page = read_page(odd_report)
    assert "is not finished" in page
    assert "has no labels" in page
    values = json.loads((odd_report / "report.json").read_text())
    assert [each["inputs"] for each in values["differences"].values()] == [12, 5]
    abstained, zero, unfinished, unlabelled = (run["measures"] for run in values["runs"])
    assert (abstained["abstained"], abstained["mean_radius"]) == (12, 0.0)
    assert (zero["mean_radius"], zero["abstained"]) == (0.0, 0)
    assert (unfinished["inputs"], values["runs"][2]["finished"]) == (5, False)
    assert unlabelled["clean_accuracy"] is None


def constant_run(folder: Path, rows: list[str], share: float, *, recall: float = 0.0, rate: float = 0.9) -> Path:
    """A run on texts of which a share is spam; the model finds a share of these, and has no doubt of any answer."""
    answers = []
    for number, text in enumerate(rows, start=1):
        spam = 400 * (number <= share * recall * len(rows))
        created = certificate(text, Deletion(FixedRate(rate)), (400 - spam, spam), ("ham", "spam"))
        answers.append((created, text, "spam" if number <= share * len(rows) else "ham"))
    return write_run(folder, answers, data="sms.csv")


def test_a_run_that_gives_one_answer_is_named_and_never_best(tmp_path: Path, no_figures: None) -> None:
    rows = [" ".join(f"{n}w{place}" for place in range(4 if n % 2 else 40)) for n in range(60)]
    constant = constant_run(tmp_path / "constant", rows, 0.2, rate=0.95)
    useful = constant_run(tmp_path / "useful", rows, 0.2, recall=0.5, rate=0.5)
    nosmooth = make_run(tmp_path / "none", rows, NoNoise(), classes=("ham", "spam"))
    values = write_report([nosmooth, constant, useful], tmp_path / "out")
    by_name = {run["runs"][0]: run for run in values["runs"]}
    assert by_name["constant"]["by_class"]["constant_answer"] == "ham"
    assert by_name["constant"]["by_class"]["confusion"] == [[48, 0], [12, 0]]
    assert by_name["useful"]["by_class"]["warnings"] == []
    assert by_name["constant"]["measures"]["mean_radius"] > by_name["useful"]["measures"]["mean_radius"]
    assert by_name["constant"]["measures"]["covering"] == 30  # four words, and a radius of 13
    assert values["baseline"] == "CERT-ED 50%"  # neither the first run, which has no noise, nor the constant one
    page = read_page(tmp_path / "out")
    assert "CERT-ED 95% does not tell the classes apart" in page
    assert "without noise, nothing is certified" in page
    assert "the model answers ham on 60 of 60 inputs, although 12 have another label" in page
    cells = main_table(read_entries([nosmooth, constant, useful])).cells()
    assert cells[1][0] == ("CERT-ED 95% (one answer: ham)", False)
    assert not any(strong for _, strong in cells[1])


def test_a_folder_that_is_not_a_report_is_not_touched(runs: list[Path], report: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(ValueError, match=r"report\.json"):
        write_report(runs, tmp_path)
    (report / "notes.txt").write_text("mine")
    try:
        with pytest.raises(ValueError, match=r"notes\.txt"):
            write_report(runs, report)
    finally:
        (report / "notes.txt").unlink()
    with pytest.raises(ValueError, match="thesis"):
        write_report(runs, tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_report_that_fails_leaves_nothing(
    runs: list[Path], report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    earlier = read_page(report)

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "render", full)
    for out in (report, tmp_path / "new"):
        with pytest.raises(OSError, match="disk is full"):
            write_report(runs, out)
    assert read_page(report) == earlier
    assert list(tmp_path.iterdir()) == []
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_texts_stand_beside_their_own_certificates(tmp_path: Path) -> None:
    """Runs of different data have other texts in the same rows."""
    noises = Deletion(FixedRate(0.9)), Deletion(FixedRate(0.95))
    folders = [make_run(tmp_path / str(n), texts(5, n), noise, strength=1.0) for n, noise in enumerate(noises)]
    entries = read_entries(folders)
    shown, _ = words.shown_inputs(entries, [1], None)
    assert [answer.entry for answer in shown[1].answers] == entries[:1]
    assert words.example_row(entries[0], entries[0])
    assert not words.example_row(entries[1], entries[0])


def test_texts_are_those_that_were_certified(runs: list[Path], tmp_path: Path) -> None:
    first = read_entries(runs[:1])[0].first
    rows, data = texts(40), first.data
    ids = {number: first.rows[number]["id"] for number in (1, 2, 3)}
    result, missing = words.find_texts(data, ids)
    assert (result, missing) == (dict(enumerate(rows[:3], start=1)), None)
    moved = tmp_path / "moved.jsonl"  # a text changed, and a row that cannot be read
    lines = [{"text": rows[0]}, {"text": "another"}, {"text": rows[2]}]
    moved.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not JSON\n")
    result, missing = words.find_texts(data, ids, str(moved))
    assert result == {1: rows[0], 3: rows[2]}
    assert missing is not None
    assert missing.startswith("1 of 3 texts")
    with pytest.raises((OSError, ValueError)):
        words.find_texts(data, ids, str(tmp_path / "nowhere.jsonl"))


def test_command_line(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], no_figures: None) -> None:
    arguments = ["report", *runs[:2], "--sample", 1, "--out", tmp_path / "out"]
    for options, word in ((["--baseline", 3], "--baseline"), (["--sample", -1], "sample"), (["--name", "x"], "--name")):
        assert run(*arguments, *options) == 2
        assert word in capsys.readouterr().err
    assert run("report", tmp_path, "--out", tmp_path / "out") == 2
    assert "not a run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(*arguments, "--json", "--name", "x", "--name", "y") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["runs"]] == ["x", "y"]


VISIBLE = """[...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  return {width: box.width, height: box.height, left: box.left, right: box.right,
          shapes: [...svg.querySelectorAll('path, use, text')]
            .filter(one => one.getBoundingClientRect().height > 0).length};
})"""
OVERLAPS = """(() => {
  const parts = [...document.querySelectorAll('h1, h2, p, nav, .summary, .notes, .sheet, figure, .input')];
  const seen = parts.filter(one => one.checkVisibility()).map(one => [one, one.getBoundingClientRect()]);
  const found = [];
  for (const [a, x] of seen) for (const [b, y] of seen)
    if (a !== b && !a.contains(b) && !b.contains(a) && x.left < y.right - 1 && y.left < x.right - 1
        && x.top < y.bottom - 1 && y.top < x.bottom - 1) found.push(a.className + '/' + b.className);
  return found;
})()"""


@needs_chromium
@pytest.mark.parametrize("which", ["report", "odd_report"])
def test_in_a_browser(which: str, request: pytest.FixtureRequest) -> None:
    """No error, no request, every figure visible, nothing beside the screen or over another part."""
    page = request.getfixturevalue(which) / "index.html"
    backgrounds = set()
    with chromium() as seen:
        for width in (1280, 390):
            for dark in (False, True):
                seen.open(page, width=width, dark=dark)
                assert seen.complaints == []
                assert seen.requests == [page.resolve().as_uri()]
                assert seen.page.evaluate("document.documentElement.scrollWidth") == width
                for box in seen.page.evaluate(VISIBLE):
                    assert box["width"] > 250
                    assert box["height"] > 150
                    assert 0 <= box["left"] < box["right"] <= width
                    assert box["shapes"] > 10
                seen.page.evaluate("document.querySelectorAll('.input').forEach(one => { one.open = true; })")
                assert seen.page.evaluate("document.documentElement.scrollWidth") == width
                assert seen.page.evaluate(OVERLAPS) == []
                assert seen.page.evaluate("typeof window.hacked") == "undefined"
                backgrounds.add((dark, seen.page.evaluate("getComputedStyle(document.body).backgroundColor")))
                colour = "getComputedStyle(document.querySelector('figure svg path[style*=\"--run-0\"]')).stroke"
                backgrounds.add((dark, seen.page.evaluate(colour)))
        assert len(backgrounds) == 4  # the page and the curves follow the theme
