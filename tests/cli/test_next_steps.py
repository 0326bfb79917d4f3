"""What the commands print for a new user: the next command, notes on runs that cannot be compared."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from adaptdel.models.smoothed import SmoothedClassifier
from tests.run_files import run

ROWS = [
    ("cheap pills buy now offer money click here today", "spam"),
    ("lunch at noon on friday with the whole team", "ham"),
]


def next_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert run(*arguments) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: adaptdel ")]
    return shlex.split(line.removeprefix("next: adaptdel "))


def test_the_next_command_can_be_run_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "mails of may.csv", tmp_path / "my model"
    rows = [f"{text} {number},{label}" for number in range(30) for text, label in ROWS]
    data.write_text("\n".join(["body,label", *rows]), encoding="utf-16")
    options = ["--method", "adaptdel+", "--text-column", "body", "--encoding", "utf-16"]
    calibrate = next_command(capsys, "train", "--data", data, "--out", model, *options)
    assert calibrate == ["calibrate", str(model), "--data", str(data), "--encoding", "utf-16"]
    certify = next_command(capsys, *calibrate)
    assert certify == ["certify", f"{model}-calibrated", "--data", "TEST_FILE", "--out", f"{model}-calibrated-run"]
    certify[3] = str(data)
    assert run(*certify, "--encoding", "utf-16", "--limit", 4) == 0
    other = tmp_path / "insertions"
    assert run("recertify", certify[-1], "--threat", "ins", "--out", other) == 0
    assert run("report", certify[-1], other, "--out", tmp_path / "report", "--data", data) == 0
    assert "note: The runs certify against different attackers" in capsys.readouterr().out


def test_a_calibrated_model_is_protected_by_the_rows_that_were_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = tmp_path / "mails.csv", tmp_path / "model"
    rows = [f"{text} {number},{label}" for number in range(90) for text, label in ROWS]
    data.write_text("\n".join(["text,label", *rows, *["see you,ham"] * 9]), encoding="utf-16")
    options = ["--method", "adaptdel+", "--encoding", "utf-16", "--protect", "spam", "--max-false-positives", "0.1"]
    calibrate = next_command(capsys, "train", "--data", data, "--out", model, *options, "--set", "copies=1")
    proof = SmoothedClassifier.load(model).records.protection or {}
    for _ in range(2):
        protect = next_command(capsys, *calibrate, "--set", "n_select=50", "--set", "n_estimate=100")
    calibrated = SmoothedClassifier.load(f"{model}-calibrated")
    assert (calibrated.records.calibration or {})["settings"]["rows"] == 189 - proof["negatives"] - proof["positives"]
    assert next_command(capsys, *protect)[0] == "certify"
    again = SmoothedClassifier.load(f"{model}-calibrated").records.protection or {}
    assert [again[name] for name in ("negatives", "positives")] == [proof["negatives"], proof["positives"]]
