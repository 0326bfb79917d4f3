"""What the commands print for a new user: the next command, notes on runs that cannot be compared."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from adaptdel.advice import plan_lengths
from adaptdel.cli import COMMANDS, commands, main
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.training import train

ROWS = [
    ("cheap pills buy now offer money click here today", "spam"),
    ("lunch at noon on friday with the whole team", "ham"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert stopped.value.code == 0, said.err
    return said.out


def next_command(shown: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if line.startswith("next: adaptdel ")]
    return shlex.split(line.removeprefix("next: adaptdel "))


def test_the_next_command_can_be_run_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "mails of may.csv", tmp_path / "my model"
    rows = [f"{text} {number},{label}" for number in range(30) for text, label in ROWS]
    data.write_text("\n".join(["body,label", *rows]), encoding="utf-16")
    options = ["--method", "adaptdel+", "--text-column", "body", "--encoding", "utf-16"]
    calibrate = next_command(run(capsys, "train", "--data", data, "--out", model, *options))
    assert calibrate == ["calibrate", str(model), "--data", str(data), "--encoding", "utf-16"]
    shown = run(capsys, *calibrate)
    assert "Chosen: the largest class-balanced mean radius" in shown
    certify = next_command(shown)
    card = (Path(f"{model}-calibrated") / "README.md").read_text(encoding="utf-8")
    assert max(map(len, card.splitlines())) < 400
    assert certify == ["certify", f"{model}-calibrated", "--data", "TEST_FILE", "--out", f"{model}-calibrated-run"]
    certify[3] = str(data)
    run(capsys, *certify, "--encoding", "utf-16", "--limit", "4")
    other = tmp_path / "insertions"
    run(capsys, "recertify", certify[-1], "--ops", "ins", "--out", other)
    compared = run(capsys, "report", certify[-1], other, "--out", tmp_path / "report", "--data", data)
    assert "note: The runs certify against different attackers" in compared


def test_a_calibrated_model_is_protected_by_the_rows_that_were_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = tmp_path / "mails.csv", tmp_path / "model"
    rows = [f"{text} {number},{label}" for number in range(90) for text, label in ROWS]
    data.write_text("\n".join(["text,label", *rows, *["see you,ham"] * 9]), encoding="utf-16")
    options = ["--method", "adaptdel+", "--encoding", "utf-16", "--protect", "spam", "--max-false-positives", "0.1"]
    calibrate = next_command(run(capsys, "train", "--data", data, "--out", model, *options, "--set", "copies=1"))
    proof = SmoothedClassifier.load(model).protection_
    for _ in range(2):
        protect = next_command(run(capsys, *calibrate, "--set", "n_select=50", "--set", "n_estimate=100"))
    calibrated = SmoothedClassifier.load(f"{model}-calibrated")
    assert calibrated.calibration_["settings"]["rows"] == 189 - proof["negatives"] - proof["positives"]
    assert next_command(run(capsys, *protect))[0] == "certify"
    again = SmoothedClassifier.load(f"{model}-calibrated").protection_
    assert [again[name] for name in ("negatives", "positives")] == [proof["negatives"], proof["positives"]]


@pytest.mark.parametrize(("length", "name"), [(15, "adaptdel 0.73 (default)"), (300, "adaptdel 0.9 (default)")])
def test_the_plan_lists_rates_in_order(length: int, name: str) -> None:
    names = [plan.name for plan in plan_lengths([length] * 5)]
    assert name in names
    assert names == sorted(names)


def test_a_rare_class_that_is_missed_is_named() -> None:
    texts = [f"{text} {number}" for number in range(100) for text, _ in ROWS[1:]] + [
        f"note {n} at noon" for n in range(20)
    ]
    model = train(texts, ["ham"] * 100 + ["spam"] * 20, rate=0.99, class_weight=None, progress=False, bits=8)
    (warning,) = [text for text in model.training_["warnings"] if "held-out" in text]
    assert "(2 of spam)" in warning
    assert "validation" in warning


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_on_a_screen(name: str) -> None:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    options = [option.name for option in command.params if isinstance(option, click.Option)]
    assert len([option for option in options if option not in ("import", "list_settings")]) <= 20
    assert ("settings" in options) == ("list_settings" in options)
