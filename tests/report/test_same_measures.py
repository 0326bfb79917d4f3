"""Clean accuracy, certified accuracy and mean certified radius: the same values in every place that prints them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adaptdel import demo
from adaptdel.calibration.search import Outcome, evaluate_outcomes
from adaptdel.measures.summary import CERTIFIED_ACCURACY, CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.report import write
from adaptdel.report.entries import read_entries
from adaptdel.runs.storage import MANIFEST, read_run
from experiments.paper.pages import certified_accuracy
from experiments.paper.study import measures, summary
from tests.run_files import examples, make_model, run, write_rows

VOTES = ("--votes", "8,16")  # few, so that the classifier abstains
KEYS = ("clean_accuracy", "certified_accuracy", "mean_radius")


@dataclass(frozen=True)
class Expected:
    """The three measures of a run, computed from its rows one by one."""

    clean_accuracy: float
    certified_accuracy: float
    mean_radius: float

    def texts(self) -> tuple[str, str, str]:
        return f"{100 * self.clean_accuracy:.1f}%", f"{100 * self.certified_accuracy:.1f}%", f"{self.mean_radius:.2f}"

    def values(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in KEYS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a run with wrong answers, abstentions, rows without a label and a row that is not certified."""
    folder = tmp_path_factory.mktemp("run")
    make_model(folder / "model")
    rows: list[Any] = [{"text": text, "label": label} for text, label in examples(90, 5)]
    unlabelled = [{"text": text} for text, _ in examples(5, 6)]
    write_rows(folder / "test.jsonl", [*rows, {"text": 7}, *unlabelled])
    assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", folder / "run", *VOTES) == 1
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Expected:
    rows = [row for row in read_run(folder / "run").table.to_pylist() if row["correct"] is not None]
    correct = [row for row in rows if row["correct"]]
    certified = [row for row in correct if row["radius"] >= 0]
    assert len(rows) == 90
    assert 0 < len(certified) < len(correct) < 90  # otherwise the measures could not differ
    assert any(not row["correct"] and row["radius"] > 0 for row in rows)
    radius = sum(row["radius"] for row in certified)
    return Expected(len(correct) / 90, len(certified) / 90, radius / 90)


def test_certify(folder: Path, expected: Expected, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("certify", folder / "model", "--data", folder / "test.jsonl", "--out", folder / "run", *VOTES)
    capsys.readouterr()
    assert run(*arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    for name, text in zip((CLEAN_ACCURACY, CERTIFIED_ACCURACY, MEAN_RADIUS), expected.texts(), strict=True):
        assert re.split(r"\s{2,}", next(line for line in lines if line.startswith(name))) == [name, text]
    assert run(*arguments, "--json") == 1
    values = json.loads(capsys.readouterr().out)
    assert {name: values[name] for name in KEYS} == expected.values()
    assert values["accuracy"] == expected.certified_accuracy  # the name of version 0.1
    stored = json.loads((folder / "run" / MANIFEST).read_text(encoding="utf-8"))["totals"]
    assert {name: stored[name] for name in KEYS} == expected.values()


def test_recertify(folder: Path, expected: Expected, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recertify", folder / "run", "--out", tmp_path / "again", "--json") in (0, 1)
    values = json.loads(capsys.readouterr().out)
    assert {name: values[name] for name in KEYS} == expected.values()


def test_report(
    folder: Path,
    expected: Expected,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "draw", lambda entries: [])
    out = tmp_path / "report"
    assert run("report", folder / "run", "--out", out, "--sample", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("AdaptDel"))
    heading, line = "\n".join(lines[:place]), lines[place]
    texts = expected.texts()
    assert re.split(r"\s{2,}", line)[2:4] == list(texts[:2])
    assert re.split(r"\s{2,}", line)[4].startswith(f"{texts[2]} ± ")
    for word in (*CLEAN_ACCURACY.split(), *CERTIFIED_ACCURACY.split(), *MEAN_RADIUS.split()):
        assert word in heading.split()
    stored = json.loads((out / "report.json").read_text(encoding="utf-8"))["runs"][0]["measures"]
    assert {name: stored[name] for name in KEYS} == expected.values()
    with (out / "tables" / "main.csv").open(encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    assert {name: float(row[name]) for name in KEYS} == expected.values()
    cells = [cell.strip() for cell in _line(out / "report.md", "| AdaptDel 70%").split("|")[2:5]]
    assert cells == [texts[0], texts[1], next(cell for cell in cells if cell.startswith(f"{texts[2]} ± "))]
    heading = _line(out / "report.md", "| run | clean")
    assert heading.startswith(f"| run | {CLEAN_ACCURACY} | {CERTIFIED_ACCURACY} | {MEAN_RADIUS} |")
    page = (out / "index.html").read_text(encoding="utf-8")
    titles = re.findall(r'<th scope="col" class="n">(.*?)</th>', page)[:3]
    assert titles == [CLEAN_ACCURACY, CERTIFIED_ACCURACY, MEAN_RADIUS]
    shown = re.findall(r'<td class="n">(.*?)</td>', page)[:3]
    assert [shown[0], shown[1], shown[2].split(" ± ")[0]] == list(texts)
    sentence = f"{CLEAN_ACCURACY}: {texts[0]}, {CERTIFIED_ACCURACY}: {texts[1]}, {MEAN_RADIUS}: {texts[2]}."
    assert sentence in page


def _line(path: Path, start: str) -> str:
    return next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(start))


def test_demo_and_benchmarks(folder: Path, expected: Expected) -> None:
    line = demo.comparison(read_entries([folder / "run"])).splitlines()[-1]
    texts = expected.texts()
    assert re.split(r"\s{2,}", line)[2:4] == list(texts[:2])
    assert re.split(r"\s{2,}", line)[4].startswith(f"{texts[2]} ± ")
    row = summary(folder / "run")
    assert {name: row[name] for name in KEYS} == expected.values()
    assert measures(folder / "run").mean_radius == expected.mean_radius
    old = {
        name: value for name, value in row.items() if name != "certified_accuracy"
    }  # as stored in experiments/results
    assert certified_accuracy(old) == certified_accuracy(row) == expected.certified_accuracy


def test_calibration(folder: Path, expected: Expected) -> None:
    rows = [row for row in read_run(folder / "run").table.to_pylist() if row["correct"] is not None]
    outcomes = [Outcome(json.loads(row["answer"]), row["correct"], row["radius"]) for row in rows]
    bin = evaluate_outcomes(
        0, 4.0, outcomes, threshold=1.0
    )  # not reached, so that the certified accuracy is that at radius 0
    assert (bin.clean, bin.certified, bin.mean_radius) == tuple(expected.values().values())


def test_totals_of_version_0_1(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They lack two fields, and count the radii of rows without a label: verify accepts them, certify prints all."""
    out = tmp_path / "run"
    out.mkdir()
    for path in (folder / "run").iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    current = dict(manifest["totals"])
    rows = [row for row in read_run(out).table.to_pylist() if row["problem"] is None]
    radius = sum(max(row["radius"], 0) for row in rows if row["correct"] is not False) / len(rows)
    assert radius != current["mean_radius"]
    for name in ("clean_accuracy", "certified_accuracy"):
        del manifest["totals"][name]
    for mean, status in ((radius, 0), (current["mean_radius"], 1)):
        manifest["totals"]["mean_radius"] = mean
        (out / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        assert run("verify", out) == status
    manifest["totals"]["mean_radius"] = radius
    (out / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    capsys.readouterr()
    assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out, *VOTES, "--json") == 1
    values = json.loads(capsys.readouterr().out)
    assert {name: values[name] for name in KEYS} == {name: current[name] for name in KEYS}


def test_totals_between_versions_0_1_and_0_2(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No classes without certificates, and warnings for quarters of the lengths; everything else is compared."""
    shutil.copytree(folder / "run", tmp_path / "run")
    path = tmp_path / "run" / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["totals"]["uncertified_classes"]
    manifest["totals"]["constant_lengths"] = [
        {"shortest": 1, "longest": 6, "label": "ham", "answers": 9, "inputs": 9, "others": 5}
    ]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert run("verify", tmp_path / "run") == 0
    arguments = ("certify", folder / "model", "--data", folder / "test.jsonl", "--out", tmp_path / "run", *VOTES)
    capsys.readouterr()
    assert run(*arguments) == 1
    assert "9 of 9" not in capsys.readouterr().out
    manifest["totals"]["balanced_accuracy"] /= 2
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert run("verify", tmp_path / "run") == 1
    assert "the manifest states balanced_accuracy = " in capsys.readouterr().out
