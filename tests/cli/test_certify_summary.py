"""What ``adaptdel certify`` says about classes, and where it takes data, columns and the threshold from."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.models.model_files import load_model
from adaptdel.report import write
from adaptdel.runs.storage import MANIFEST, read_run
from adaptdel.text.data import text_hashes
from tests.run_files import examples, make_data, make_model, run, write_rows


def write_csv(path: Path, rows: list[tuple[str, Any]]) -> Path:
    """A file as spreadsheets of many countries write it, with columns of its own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("message", "kind"), *rows])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers ham to everything, since hardly a word is left of a text; a model that works; data."""
    folder = tmp_path_factory.mktemp("runs")
    labels = ("ham", "spam")
    with pytest.warns(UserWarning, match="the answer hardly depends on the text"):
        make_model(folder / "constant", Deletion(FixedRate(0.997)), labels)
    make_model(folder / "model", labels=labels)
    write_rows(folder / "test.jsonl", [{"text": text, "label": label} for text, label in examples(60, 3, labels)])
    return folder


def test_a_constant_answer_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("certify", folder / "constant", "--data", folder / "test.jsonl", "--out", tmp_path / "run")
    assert run(*arguments) == 0
    output = capsys.readouterr().out
    answer = read_run(tmp_path / "run").table["answer"][0].as_py()
    assert answer in ("ham", "spam")  # a plain text
    [warning] = [line for line in output.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(f"warning: the model answers {answer} on 60 of 60 inputs, although ")
    assert "what may help" in output
    assert run(*arguments, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert [f"warning: {sentence}" for sentence in values["warnings"]] == [warning]
    assert values["balanced_accuracy"] == 0.5
    assert [each["label"] for each in values["classes"]] == ["ham", "spam"]
    assert sum(map(sum, values["confusion"])) == 60
    table = read_run(tmp_path / "run").table.select(["length", "radius"]).to_pylist()
    assert values["covering"] == sum(row["radius"] >= max(1, row["length"]) for row in table) > 30
    assert run("verify", tmp_path / "run") == 0
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text(encoding="utf-8"))
    capsys.readouterr()
    for name, wrong in (("balanced_accuracy", 0.25), ("confusion", [[0]]), ("covering", 7), ("warnings", ["x"])):
        changed = manifest | {"totals": manifest["totals"] | {name: wrong}}
        (tmp_path / "run" / MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        assert run("verify", tmp_path / "run") == 1
        assert name in capsys.readouterr().out


def test_columns_are_those_of_the_training(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", examples(120, 1, ("ham", "spam")))
    test = write_csv(tmp_path / "test.csv", [row for row in examples(20, 2, ("ham", "spam")) if row[0]])
    options = ("--text-column", "message", "--label-column", "kind", "--rate", 0.5, "--set", "validation=0")
    assert run("train", "--data", train, "--out", tmp_path / "model", *options) == 0
    assert run("certify", tmp_path / "model", "--data", test, "--out", tmp_path / "run") == 0
    totals: Any = read_run(tmp_path / "run").manifest.totals
    assert totals["labelled"] == totals["inputs"] > 5
    other = make_data(tmp_path / "other.jsonl", 4)
    assert run("certify", tmp_path / "model", "--data", other, "--out", tmp_path / "other") == 2  # no column 'message'


def test_a_threshold_on_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {}
    for threshold in (0.02, 0.5, 0.98):
        out = tmp_path / f"run{threshold}"
        arguments = ("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out)
        assert run(*arguments, "--set", f"threshold={threshold}") == 0
        assert run("verify", out) == 0
        assert read_run(out).manifest.plan.decision_threshold == threshold
        answers[threshold] = read_run(out).table["answer"].to_pylist().count("spam")
    assert answers[0.02] > answers[0.5] > answers[0.98]
    capsys.readouterr()
    assert run(*arguments, "--set", "threshold=2") == 2
    assert "threshold must be" in capsys.readouterr().err


def test_labels_that_are_missing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"text": text, "label": label} for text, label in examples(9, 5, ("ham", "spam"))]
    rows = [row for row in rows if row["text"]][:5]
    rows += [{"text": "w1 w2", "label": None}, {"text": "w3 w4"}, {"text": " ", "label": "ham"}]
    rows += [{"text": "w5", "label": "sausage"}]  # cannot be certified
    data = write_rows(tmp_path / "test.jsonl", rows)
    assert run("certify", folder / "model", "--data", data, "--out", tmp_path / "run") == 1
    said = capsys.readouterr().err
    assert "test.jsonl: 2 rows have no label in the column 'label': certified, but left out of the measures" in said
    labelled = write_rows(tmp_path / "labelled.jsonl", rows[:5])
    assert run("certify", folder / "model", "--data", labelled, "--out", tmp_path / "other") == 0
    assert "no label" not in capsys.readouterr().err


def test_texts_of_every_use_are_counted_and_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, texts = load_model(folder / "model"), [f"w{number} w1" for number in range(6)]
    uses = ("training", "validation", "calibration", "threshold", "held out")
    hashes = {use: text_hashes([text]) for use, text in zip(uses, texts, strict=False)}
    model.record(texts=hashes)
    model.save(tmp_path / "model")
    data = write_rows(tmp_path / "x.jsonl", [{"text": text, "label": "ham"} for text in texts])
    assert run("certify", tmp_path / "model", "--data", data, "--out", tmp_path / "r") == 0
    said = capsys.readouterr().err
    assert "on 4 of the 6 texts, the first is row 1" in said
    assert "without them, 2 labelled texts" in said


def test_radii_of_different_decisions_are_not_compared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "draw", lambda *_, **__: [])
    for name, options in (("low", ["--set", "threshold=0.3"]), ("high", ["--set", "threshold=0.6"]), ("plain", [])):
        arguments = ("certify", folder / "model", "--data", folder / "test.jsonl", "--out", tmp_path / name)
        assert run(*arguments, *options, "--limit", 30) == 0

    def written(*names: str) -> Any:
        report = tmp_path / "-".join(names)
        assert run("report", *(tmp_path / name for name in names), "--out", report) == 0
        return json.loads((report / "report.json").read_text(encoding="utf-8"))

    different, mixed = written("low", "high"), written("high", "plain")
    for values in (different, mixed):
        assert any("different decision thresholds" in note for note in values["notes"])
        [gaps] = values["differences"].values()
        assert "clean_accuracy" in gaps
        assert not {"mean_radius", "class_balanced_mean_radius"} & {*gaps}
    assert "get it too (false positives)" in different["summary"][0]
