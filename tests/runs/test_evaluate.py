"""Runs from Python: any base model, data in memory or in files, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.runs.storage import read_run
from tests.run_files import run as command_line

ROWS = 300
TEXTS = [f"word{number} good film" if number % 3 else f"word{number} bad film" for number in range(ROWS)]
LABELS = ["pos" if number % 3 else "neg" for number in range(ROWS)]


class Function:
    """Answers by a word."""

    def __init__(self, word: str = "good", fingerprint: str | None = None) -> None:
        self.word, self.fingerprint = word, word if fingerprint is None else fingerprint

    def __call__(self, copies: list[str]) -> list[str]:
        return ["pos" if self.word in copy else "neg" for copy in copies]


def interrupted(model: Any, out: Path, rows: int) -> int:
    """Certify, but stop after so many rows in total; the number of rows that were kept."""

    def stop(done: int, total: int) -> None:
        if done == rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ad.evaluate(model, TEXTS, labels=LABELS, out=out, progress=stop)
    return read_run(out).table.num_rows


def smoothed(function: Any) -> ad.SmoothedClassifier:
    noise = ad.Deletion(ad.FixedRate(0.5))
    settings: dict[str, Any] = {"n_select": 20, "n_estimate": 50, "sampling": "fixed", "classes": ["neg", "pos"]}
    return ad.SmoothedClassifier(function, noise, **settings)


def test_a_function_is_certified_into_a_run_that_the_commands_read(tmp_path: Path) -> None:
    run = ad.evaluate(smoothed(Function()), TEXTS, labels=LABELS, out=tmp_path / "run")
    assert run.finished
    assert run.manifest.rows == ROWS
    expected = smoothed(Function()).certify(TEXTS)
    assert [c.radius for c in run.certificates()] == [c.radius for c in expected]
    assert command_line("verify", tmp_path / "run") == 0
    assert command_line("report", tmp_path / "run", "--out", tmp_path / "report") == 0


def test_it_resumes_to_the_same_tables(tmp_path: Path) -> None:
    whole = ad.evaluate(smoothed(Function()), TEXTS, labels=LABELS, out=tmp_path / "whole")
    for rows in (100, 200, 299):
        assert interrupted(smoothed(Function()), tmp_path / "run", rows) == rows
    resumed = ad.evaluate(smoothed(Function()), TEXTS, labels=LABELS, out=tmp_path / "run")
    assert resumed.table.equals(whole.table)


def test_another_function_or_other_data_do_not_resume_it(tmp_path: Path) -> None:
    assert interrupted(smoothed(Function()), tmp_path / "run", 100)
    with pytest.raises(ValueError, match="model_hash was"):
        ad.evaluate(smoothed(Function("bad")), TEXTS, labels=LABELS, out=tmp_path / "run")
    with pytest.raises(ValueError, match="row 1: not what was certified"):
        ad.evaluate(smoothed(Function()), TEXTS[1:], labels=LABELS[1:], out=tmp_path / "run")


def test_a_function_without_a_fingerprint_does_not_resume_it(tmp_path: Path) -> None:
    assert interrupted(smoothed(Function(fingerprint="")), tmp_path / "run", 100)
    with pytest.raises(ValueError, match="no fingerprint"):
        ad.evaluate(smoothed(Function(fingerprint="")), TEXTS, labels=LABELS, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"model": Function()},
            "model must be one of adaptdel's models or its folder, got .*: wrap it in one",
        ),
        ({"labels": LABELS[:3]}, "labels must be one for each of the 300 texts, got 3"),
        ({"workers": 2}, "workers must be 1 for a model that cannot be saved: "),
        ({"data": "missing.csv", "labels": LABELS}, "labels must be None for a data file"),
        ({"data": []}, "in memory: holds no rows"),
        ({"model": ad.SmoothedClassifier(Function(), ad.NoNoise())}, "classes must name the labels of a function"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    call: dict[str, Any] = {"model": smoothed(Function()), "data": TEXTS, "out": tmp_path / "run"} | arguments
    with pytest.raises(ValueError, match=sentence):
        ad.evaluate(call.pop("model"), call.pop("data"), **call)
    assert not (tmp_path / "run").exists()


def test_rows_that_are_no_texts(tmp_path: Path) -> None:
    texts: list[Any] = ["good film", 7, "bad film"]
    run = ad.evaluate(smoothed(Function()), texts, labels=["pos", "pos", "other"], out=tmp_path / "run")
    problems = run.table["problem"].to_pylist()
    assert problems[0] is None
    assert problems[1] == "the text must be a str, got int"
    assert problems[2].startswith("the label 'other' is not among the model's classes")
