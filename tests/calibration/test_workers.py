"""Calibration on an engine gives what it gives in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptdel.calibration.calibration import calibrate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.engine import LocalEngine
from tests.run_files import examples, make_data, make_model, run


@pytest.mark.parametrize(
    "settings",
    [{"examples": 30}, {"objective": "mean", "min_accuracy": 0.6, "bins": (0, 40), "per_bin": 12, "tol": 8.0}],
)
def test_workers_do_not_matter(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = SmoothedClassifier.load(make_model(tmp_path / "model"))
    texts, labels = zip(*examples(120, 3), strict=True)
    settings |= {"n_select": 30, "n_estimate": 60}
    expected = calibrate(model, texts, labels, progress=False, **settings)
    with LocalEngine(2) as engine:
        assert calibrate(model, texts, labels, progress=False, engine=engine, **settings) == expected


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "model")
    data = [make_data(tmp_path / f"{name}.jsonl", 60, seed) for name, seed in (("a", 3), ("b", 4))]
    results = []
    for name, more in (("one", []), ("two", ["--workers", 2])):
        arguments: list[Any] = ["--data", data[0], "--data", data[1], "--json", *more]
        for pair in ("examples=40", "n_select=30", "n_estimate=60"):
            arguments += ["--set", pair]
        assert run("calibrate", model, "--out", tmp_path / name, *arguments) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert {**results[0], "out": ""} == {**results[1], "out": ""}
