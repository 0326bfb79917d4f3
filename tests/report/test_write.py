"""Reports: complete, self-contained, escaped, whole or not at all; and opened in a real browser."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
from jinja2 import UndefinedError

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import content_key
from adaptdel.cli.report import report_command
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import Noise
from adaptdel.measures.class_measures import MissedClass, UncertifiedClass
from adaptdel.measures.summary import Outcomes
from adaptdel.report import entries as samples
from adaptdel.report import write
from adaptdel.report.entries import read_entries
from adaptdel.report.figures import draw
from adaptdel.report.write import write_report
from adaptdel.runs.records import problem_record, record_of, setting_of
from adaptdel.runs.storage import drop_store, write_run
from adaptdel.text.units import Words
from tests.chromium import chromium, needs_chromium
from tests.run_files import store_records

HOSTILE = (
    "<script>window.hacked = 1</script> & <img src=http://example.com/x.png onerror='window.hacked = 2'> \"' `$x` | "
)
CLASSES = ("good <b>", "bad & ugly", "none")
FIGURES = ("certified-cardinality", "certified-radius", "classes", "quartiles", "rates", "costs", "frontier")


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [HOSTILE + " ".join(f"word{n}" for n in rng.integers(0, 50, rng.integers(3, 200))) for _ in range(count)]


def certificate(text: str, noise: Noise, votes: tuple[int, ...], classes: tuple[Any, ...] = CLASSES) -> Certificate:
    """A certificate from made-up votes."""
    tokens = Words().split(text)
    return Certificate(
        label=classes[int(np.argmax(votes))],
        classes=classes,
        known=True,
        answer=int(np.argmax(votes)),
        length=len(tokens),
        noise=noise,
        selection=tuple(v // 4 for v in votes),
        looks=Looks((sum(votes),), (0.05,)),
        votes=(votes,),
        exact=None,
        ops=("sub",) if isinstance(noise, Masking) else ("del", "ins", "sub"),
        unit=Words().to_dict(),
        model_hash="0123456789abcdef" * 4,
        input_hash=content_key(tokens).hex(),
    )


def make_run(
    folder: Path, rows: list[str], noise: Noise, *, strength: float | None = None, classes: tuple[Any, ...] = CLASSES,
    data: Path | None = None, seed: int = 0, finished: bool = True, truths: bool = True, problems: int = 0,
) -> Path:  # fmt: skip
    """A run of made-up votes; ``strength`` is the share of votes for the answer, at random if left out."""
    rng = np.random.default_rng(seed)
    records = []
    for number, text in enumerate(rows, start=1):
        share = rng.choice([0.5, 0.8, 0.95, 1.0]) if strength is None else strength
        answer = int(rng.integers(len(classes)))
        counts = rng.multinomial(
            400, np.full(len(classes), (1 - share) / len(classes)) + share * np.eye(len(classes))[answer]
        )
        created = certificate(text, noise, tuple(map(int, counts)), classes)
        truth = classes[answer if rng.random() < 0.8 else 0] if truths else None
        records.append(record_of(created, id=f"<i>{number}", row=number, label=truth) | {"seconds": 0.01 * number})
    records += [problem_record("not <b>UTF-8</b>", id=None, row=len(rows) + n + 1) for n in range(problems)]
    described = {"path": str(data) if data else "gone/test.jsonl.gz", "sha256": "ab" * 32}
    manifest = setting_of(created) | {
        "alpha": 0.05, "sampling": "fixed", "votes": [100, 400], "model": {"method": None}, "data": described,
    }  # fmt: skip
    if not finished:
        manifest["finished"] = None
        folder.mkdir(parents=True)
        store_records(folder, records)
        records = []
    write_run(folder, manifest, records)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs on the same texts, with names and labels that try to break out."""
    folder = tmp_path_factory.mktemp("runs")
    rows = texts(40)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"id": f"<i>{n}", "text": t}) + "\n" for n, t in enumerate(rows, start=1)))
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
    """The elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def read_page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def check_page(folder: Path, figures: Sequence[str] = FIGURES) -> None:
    """Every figure is there, nothing is loaded from elsewhere, and identifiers are unique."""
    page = read_page(folder)
    elements = Elements(page).found
    for name in figures:
        assert f'<figure id="figure-{name}"><svg ' in page
        for kind in ("png", "svg", "pdf"):
            assert (folder / "figures" / f"{name}.{kind}").stat().st_size > 1000
    assert not {tag for tag, _ in elements} & {
        "img",
        "link",
        "iframe",
        "object",
        "embed",
        "video",
        "base",
        "form",
        "image",
    }
    assert [tag for tag, _ in elements].count("script") == 1
    for tag, attributes in elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "src" not in attributes
        href = attributes.get("href") or "#"
        assert href.startswith("#") or (folder / href).is_file(), href
    assert not re.search(r"@import|url\((?!#)", page)
    identifiers = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    targets = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert set(targets) <= set(identifiers)
    assert "nan" not in re.sub(r"<[^>]*>", " ", page).lower().split()


def test_the_page_is_whole_and_needs_nothing_else(report: Path) -> None:
    check_page(report)


def test_files(report: Path) -> None:
    names = {path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.csv" for name in ("main", "differences", "outcomes", "quartiles", "curves")}
    assert {"index.html", "report.md", "report.json", "tables.tex", *tables} <= names
    assert set(json.loads((report / "report.json").read_text())["files"]) == names - {"report.json"}
    assert not [path for path in report.parent.iterdir() if path != report]  # nothing is left behind
    with (report / "tables" / "main.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    values = json.loads((report / "report.json").read_text())
    for row, run in zip(rows, values["runs"], strict=True):
        assert float(row["mean_radius"]) == run["measures"]["mean_radius"]
    with (report / "tables" / "regions.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file))[2]["wasserstein"] == ""
    with (report / "tables" / "curves.csv").open(encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    assert {row["against"] for row in points} == {"radius", "log10_cardinality"}


def test_what_comes_from_data_is_escaped(report: Path) -> None:
    page = read_page(report)
    assert "<script>window" not in page
    assert "<img" not in page
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in page
    assert "<b>UTF" not in page
    assert "id &lt;i&gt;" in page
    assert "<title>A &lt;title&gt; &amp; more</title>" in page
    assert "good &lt;b&gt;" in page
    assert "bad &amp; ugly" in page
    for raw in ("good <b>", "bad & ugly", "A <title>"):
        assert raw not in page
    assert not re.search(r"<i>\d", page)


def test_what_comes_from_a_manifest_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, settings and file names in tables, headings and the summary."""
    monkeypatch.setattr(write, "draw", lambda entries: [])
    run = make_run(tmp_path / "run", texts(3), Deletion(FixedRate(0.9)), strength=1.0)
    path = run / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["model"]["method"] = "<script>window.hacked = 3</script>"
    manifest["data"]["path"] = "data/<i>x.jsonl"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    write_report([run], tmp_path / "out")
    page = read_page(tmp_path / "out")
    assert [tag for tag, _ in Elements(page).found].count("script") == 1
    assert page.count("&lt;script&gt;window.hacked = 3&lt;/script&gt;") > 5
    assert "<title>Certified robustness on &lt;i&gt;x</title>" in page


def test_the_template_escapes_all_values() -> None:
    """Autoescape is on and no filter turns it off; an unknown name is an error, not an empty text."""
    environment = write.template_environment()
    assert environment.autoescape is True
    assert environment.from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
    with pytest.raises(UndefinedError):
        environment.from_string("{{ missing }}").render()
    source = files("adaptdel.report").joinpath("page.html").read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|autoescape|Markup", source)


def test_markdown_shows_the_same(report: Path) -> None:
    text = (report / "report.md").read_text(encoding="utf-8")
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<(script|img|b|i)\b", outside)
    assert outside.startswith("# A &lt;title&gt; &amp; more\n")
    for name in FIGURES:
        assert f"(figures/{name}.png)" in outside
    assert "| AdaptDel 90% |" in outside
    assert "window.hacked" in text


def test_latex_is_balanced_and_escaped(report: Path) -> None:
    text = (report / "tables.tex").read_text(encoding="utf-8")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 8
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 8
    assert r"AdaptDel 90\%" in text
    body = re.sub(r"\\[&%$#_{}]", "", text)
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0
    assert not re.search(r"[±−–≥₁\u00a0]", body)


def test_the_summary_speaks_of_the_widest_certificate(report: Path) -> None:
    summary = re.search(r'<p class="summary">(.*?)</p>', read_page(report))
    assert summary
    assert summary[1].startswith("AdaptDel 90% on 40 inputs with a median length of ")
    assert "clean accuracy: " in summary[1]
    points = re.search(r'<ul class="points">(.*?)</ul>', read_page(report))
    assert points
    assert "that of RanMASK 90%, against substitutions only," in points[1]
    assert "could not be certified" in read_page(report)
    assert "different attackers" in read_page(report)


def test_a_second_report_is_the_same_and_takes_the_place_of_the_first(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: draw(entries)[3:5] if len(entries) > 1 else [])
    names = ("index.html", "report.md", "report.json", "tables.tex", "tables/main.csv", "figures/rates.png")
    kept = []
    for _ in range(2):
        write_report(runs, tmp_path / "out", sample=4, seed=3)
        kept.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert kept[0] == kept[1]
    write_report(runs[:1], tmp_path / "out", sample=1)
    assert not (tmp_path / "out" / "tables" / "differences.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_odd_runs(odd_report: Path) -> None:
    check_page(odd_report)
    page = read_page(odd_report)
    assert "is not finished: the report shows the 5 inputs certified so far." in page
    assert "has no labels: every answer counts as correct unless the classifier abstains" in page
    assert "test.jsonl.gz is not where the run read it. Give it with --data." in page
    values = json.loads((odd_report / "report.json").read_text())
    runs = values["runs"]
    assert [each["inputs"] for each in values["differences"].values()] == [12, 5, 0]
    abstained, zero, unfinished, unlabelled = (run["measures"] for run in runs)
    assert (abstained["abstained"], abstained["mean_radius"], abstained["certified"]) == (12, 0.0, 0)
    assert (zero["mean_radius"], zero["certified"], zero["abstained"]) == (0.0, 0, 0)
    assert zero["certified_zero"] + zero["wrong"] == 12
    assert (unfinished["inputs"], runs[2]["finished"]) == (5, False)
    assert unlabelled["clean_accuracy"] is None
    assert len({run["name"] for run in runs}) == 4


def test_one_input_and_none(tmp_path: Path) -> None:
    each = make_run(tmp_path / "one", texts(1), Deletion(FixedRate(0.9)), strength=1.0)
    none = make_run(tmp_path / "none", texts(1), Deletion(FixedRate(0.9)), finished=False)
    drop_store(none)
    write_report([each, none], tmp_path / "out", baseline=1)
    check_page(tmp_path / "out", [name for name in FIGURES if name != "quartiles"])
    assert " on 1 input with a median length of" in read_page(tmp_path / "out")
    write_report([none], tmp_path / "empty")
    check_page(tmp_path / "empty", [name for name in FIGURES if name not in ("classes", "quartiles")])
    assert "holds no certified inputs." in read_page(tmp_path / "empty")
    assert "differences" not in {path.stem for path in (tmp_path / "empty" / "tables").iterdir()}


def constant_run(folder: Path, rows: list[str], share: float, *, recall: float = 0.0, rate: float = 0.9) -> Path:
    """A run on texts of which a share is spam; the model finds a share of these, and has no doubt of any answer."""
    records = []
    for number, text in enumerate(rows, start=1):
        spam = number <= share * len(rows)
        answer = int(number <= share * recall * len(rows))
        created = certificate(text, Deletion(FixedRate(rate)), (400 * (1 - answer), 400 * answer), ("ham", "spam"))
        label = "spam" if spam else "ham"
        records.append(record_of(created, id=str(number), row=number, label=label))
    shared = {"alpha": 0.05, "sampling": "fixed", "votes": [100, 400], "model": None, "data": {"path": "sms.csv"}}
    write_run(folder, setting_of(created) | shared, records)
    return folder


def test_a_run_that_gives_one_answer_is_named_and_never_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    rows = [" ".join(f"{n}w{place}" for place in range(4 if n % 2 else 40)) for n in range(60)]
    constant = constant_run(tmp_path / "constant", rows, 0.2, rate=0.95)
    useful = constant_run(tmp_path / "useful", rows, 0.2, recall=0.5, rate=0.5)
    nosmooth = make_run(tmp_path / "none", rows, NoNoise(), classes=("ham", "spam"))
    values = write_report([nosmooth, constant, useful], tmp_path / "out")
    by_name = {run["run"]: run for run in values["runs"]}
    warning = "CERT-ED 95% answers ham on 60 of 60 inputs, although 12 have another label"
    assert by_name["constant"]["warnings"] == [warning]
    assert by_name["constant"]["by_class"]["constant_answer"]["label"] == "ham"
    assert by_name["constant"]["by_class"]["confusion"] == [[48, 0], [12, 0]]
    assert by_name["useful"]["warnings"] == []
    assert by_name["constant"]["measures"]["mean_radius"] > by_name["useful"]["measures"]["mean_radius"]
    assert values["baseline"] == "CERT-ED 50%"  # neither the first run, which has no noise, nor the constant one
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    summary, points = page.split("\n\n")[1:3]
    assert summary.startswith("CERT-ED 50% on 60 inputs")
    assert "Recall by class: ham: 100.0%, spam: 50.0%" in points
    assert "CERT-ED 95%" not in summary + points
    assert f"{warning}." in page
    [line] = [line for line in page.splitlines() if line.startswith("| CERT-ED 95% (one answer: ham) |")]
    assert "**" not in line
    assert "**1.00 ± 0" not in page
    covering = by_name["constant"]["measures"]["covering"]
    assert covering == 30  # four words, and a radius of 13
    assert f"{covering} of 60 (CERT-ED 95%)" in page
    alone = write_report([constant], tmp_path / "alone")
    text = (tmp_path / "alone" / "report.md").read_text(encoding="utf-8").split("\n\n")[1]
    assert text.startswith("This run does not tell the classes apart")
    assert "accuracy:" not in text
    assert alone["runs"][0]["warnings"] == [warning]


def test_only_comparable_runs_are_compared_for_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    rows = [" ".join(f"{n}w{place}" for place in range(30)) for n in range(40)]
    runs = [constant_run(tmp_path / f"run{n}", rows, 0.4, recall=1.0, rate=rate) for n, rate in enumerate((0.5, 0.9))]
    runs.append(constant_run(tmp_path / "fewer", rows[:20], 0.4, recall=1.0, rate=0.95))
    runs.append(make_run(tmp_path / "masks", rows, Masking(0.97), strength=1.0, classes=("ham", "spam")))
    write_report(runs, tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = [line.split("|") for line in page.split("In bold")[1].split("\n\n")[1].splitlines()[2:]]
    radii = {line[1].strip(): line[4].strip() for line in table}
    assert [name for name, radius in radii.items() if radius.startswith("**")] == ["CERT-ED 90%"]
    values = {name: float(radius.strip("*").split()[0]) for name, radius in radii.items()}
    assert values["CERT-ED 95%"] > values["CERT-ED 90%"]  # on other inputs


def test_csv_tables_name_each_column_once(report: Path) -> None:
    for path in (report / "tables").glob("*.csv"):
        header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert len(set(header)) == len(header), path.name
    with (report / "tables" / "outcomes.csv").open(encoding="utf-8") as file:
        assert csv.DictReader(file).fieldnames[:3] == ["run", "inputs", "certified"]  # type: ignore[index]
    with (report / "tables" / "curves.csv").open(encoding="utf-8") as file:
        assert {row["class"] for row in csv.DictReader(file)} == {"", *CLASSES}


def test_a_folder_that_is_not_a_report_is_not_touched(runs: list[Path], report: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(
        ValueError, match=r"must be a new folder, an empty one or a report, got .* with no report\.json"
    ):
        write_report(runs, tmp_path)
    (report / "notes.txt").write_text("mine")
    try:
        with pytest.raises(ValueError, match=r"with notes\.txt, which is not part of it"):
            write_report(runs, report)
    finally:
        (report / "notes.txt").unlink()
    with pytest.raises(ValueError, match="with a file of that name"):
        write_report(runs, tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_report_that_fails_leaves_nothing(
    runs: list[Path], report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = read_page(report)

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "page", full)
    monkeypatch.setattr(write, "draw", lambda entries: [])
    for out in (report, tmp_path / "new"):
        with pytest.raises(OSError, match="No space left"):
            write_report(runs, out)
    assert read_page(report) == earlier
    assert list(tmp_path.iterdir()) == []
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_texts_are_those_that_were_certified(runs: list[Path], tmp_path: Path) -> None:
    entry = read_entries(runs[:1])[0]
    ids = list(entry.rows)[:3]
    rows = texts(40)
    result, missing = samples.find_texts(entry, ids, None)
    assert (result, missing) == (dict(zip(ids, rows, strict=False)), None)
    moved = tmp_path / "moved.jsonl"  # other ids, one text changed, rows that cannot be read
    lines = [{"id": "x", "text": rows[0]}, {"id": ids[1], "text": "another"}, {"id": "z", "text": rows[2]}, {"id": 4}]
    moved.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not JSON\n")
    result, missing = samples.find_texts(entry, ids, str(moved))
    assert result == {ids[0]: rows[0], ids[2]: rows[2]}
    assert missing == "1 of 3 texts are not shown: moved.jsonl does not hold them (any more)."
    with pytest.raises((OSError, ValueError)):
        samples.find_texts(entry, ids, str(tmp_path / "nowhere.jsonl"))


def test_noisy_copies_are_drawn_at_the_rate_of_the_input() -> None:
    text = " ".join(f"w{n}" for n in range(2000))
    created = certificate(text, Deletion(LengthRate(0.9, 20)), (400, 0, 0))
    copies = samples.noisy_copies(created, text, 0)
    assert copies == samples.noisy_copies(created, text, 0)
    assert copies != samples.noisy_copies(created, text, 1)
    for kept, copy in copies:
        assert 4 <= kept <= 45
        assert len(copy.split()) == kept
        assert set(copy.split()) <= set(text.split())
    masked = samples.noisy_copies(certificate("a b c d", Masking(0.5), (400, 0, 0)), "a b c d", 0)
    assert all(kept == 2 for kept, _ in masked)
    assert all(sum(int(n) for n in re.findall(r"⟨(\d+)⟩", copy)) == 2 for _, copy in masked)
    assert samples.noisy_copies(certificate("a b", NoNoise(), (400, 0, 0)), "a b", 0) == ()


def test_command_line(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    call = click.testing.CliRunner().invoke
    done = call(report_command, [*map(str, runs[:2]), "--out", str(tmp_path / "out"), "--sample", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["AdaptDel 90%", "RanMASK 90%"]
    assert "index.html" in done.stderr
    for options, sentence in (
        (["--baseline", "3"], "--baseline must be the number of a RUN, from 1 to 2, got 3"),
        (["--sample", "-1"], "sample must be a whole number of at least 0, got -1"),
    ):
        done = call(report_command, [*map(str, runs[:2]), "--out", str(tmp_path / "other"), *options])
        assert str(done.exception) == sentence
    done = call(report_command, [str(tmp_path), "--out", str(tmp_path / "other")])
    assert "not a run" in str(done.exception)
    assert not (tmp_path / "other").exists()


def test_without_matplotlib_the_extra_is_named(runs: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None\n"
        "from adaptdel.report.write import write_report\n"
        f"write_report([{str(runs[0])!r}], {str(tmp_path / 'o')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("pip install 'adaptdel[plot]'")
    assert not (tmp_path / "o").exists()


VISIBLE = """[...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  return {width: box.width, height: box.height, left: box.left, right: box.right,
          shapes: [...svg.querySelectorAll('path, use')].filter(one => one.getBoundingClientRect().height > 0).length};
})"""
OVERLAPS = """(() => {
  const parts = [...document.querySelectorAll('h1, h2, p, nav, .legend, .notes, .sheet, figure, .input, dl')];
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
    """No script error, no request, every figure visible, nothing beside the screen or over another part."""
    page = request.getfixturevalue(which) / "index.html"
    backgrounds = set()
    with chromium() as seen:
        for width in (1280, 390):
            for dark in (False, True):
                seen.open(page, width=width, dark=dark)
                assert seen.complaints == []
                assert seen.requests == [page.resolve().as_uri()]
                assert seen.value("document.documentElement.scrollWidth") == width
                figures = seen.value(VISIBLE)
                assert len(figures) == len(FIGURES)
                for box in figures:
                    assert box["width"] > 250
                    assert box["height"] > 150
                    assert 0 <= box["left"] < box["right"] <= width
                    assert box["shapes"] > 20
                assert seen.value(OVERLAPS) == []
                assert seen.value("typeof window.hacked") == "undefined"
                assert seen.value("document.querySelector('.filter').hidden") is False
                seen.value("document.querySelectorAll('.input').forEach(one => { one.open = true; })")
                assert seen.value("document.documentElement.scrollWidth") == width
                backgrounds.add((dark, seen.value("getComputedStyle(document.body).backgroundColor")))
                colour = "getComputedStyle(document.querySelector('figure svg path[style*=\"--run-0\"]')).stroke"
                backgrounds.add((dark, seen.value(colour)))
        assert len(backgrounds) == 4  # the page and the curves follow the theme
        seen.value("document.querySelector('.filter select').value = 'abstained'")
        seen.value("document.querySelector('.filter select').dispatchEvent(new Event('change'))")
        fits = "one.hidden !== one.dataset.kinds.includes('abstained')"
        assert seen.value(f"[...document.querySelectorAll('.input')].every(one => {fits})")
        seen.open(page, width=390, dark=False, script=False)
        assert seen.complaints == []


def test_a_run_without_noise_does_not_lead_as_if_it_were_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    rows = [" ".join(f"{n}w{place}" for place in range(40)) for n in range(60)]
    constant = constant_run(tmp_path / "constant", rows, 0.2, rate=0.95)
    nosmooth = make_run(tmp_path / "none", rows, NoNoise(), classes=("ham", "spam"))
    write_report([nosmooth, constant], tmp_path / "out", sample=0)
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert page.split("\n\n")[1].startswith("No run with noise tells the classes apart")
    assert "Each certificate holds with confidence" not in page


def test_runs_of_one_model_are_named_and_one_length_is_no_quartile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    rows = [f"{number} b c d" for number in range(40)]
    runs = [constant_run(tmp_path / f"run{n}", rows, 0.4, recall=1.0, rate=0.5) for n in range(2)]
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        (run / "manifest.json").write_text(json.dumps(manifest | {"model_hash": "ab" * 32}), encoding="utf-8")
    write_report(runs, tmp_path / "out", sample=0)
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "CERT-ED 50% (run0) and CERT-ED 50% (run1) are the same model with the same noise" in page
    assert "by quartile of the input length" not in page
    assert not (tmp_path / "out" / "tables" / "quartiles.csv").exists()


def test_the_warnings_of_a_run_are_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    rows = [" ".join(f"{n}w{place}" for place in range(5 + n)) for n in range(60)]
    run = make_run(tmp_path / "run", rows, Deletion(FixedRate(0.5)), classes=("ham", "spam", "scam"))
    table = replace(
        read_entries([run])[0].classes,
        missed=(MissedClass("spam", 1, 20),),
        uncertified=(UncertifiedClass("ham", 2, 40),),
    )
    monkeypatch.setattr(Outcomes, "by_class", lambda *_: table)
    write_report([run], tmp_path / "out", sample=0)
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    expected = (
        "it certifies 2 of 40 inputs of the class ham against one edit: the radii belong to the other classes; it "
    )
    assert f": {expected}recognises 1 of 20 inputs of the class spam." in page
    assert "- It recognises 1 of 20 inputs of the class spam: its accuracy and its radii are those of other" in page
