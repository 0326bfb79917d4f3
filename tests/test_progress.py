"""Progress of long calls: tqdm bars on a terminal, callables, and silence elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from adaptdel.progress import ProgressBar, reporter
from tests.run_files import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_what_was_done_before_does_not_count_as_speed(clock: list[float], capsys: Any) -> None:
    bar = ProgressBar("steps")
    clock[0] = 10.0
    bar(900, 1000)  # a training that is resumed
    clock[0] = 20.0
    bar(950, 1000)
    error = capsys.readouterr().err
    assert "steps:" in error
    assert "950/1000 [00:10<00:10,  5.00it/s]" in error


def test_a_line_a_minute_in_a_log(clock: list[float], capsys: Any) -> None:
    report = reporter("log", "inputs")
    assert isinstance(report, ProgressBar)
    for done in range(1, 151):
        clock[0] += 1.0
        report.note(f"accuracy {done}%")
        report(done, 150)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" [")[0] for line in lines] == ["inputs: 60/150", "inputs: 120/150", "inputs: 150/150"]
    assert lines[0].endswith("[01:00<01:30,  1.00it/s, accuracy 60%]")


def test_who_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(done: int, total: int) -> None:
        pass

    assert reporter(report, "inputs") is report
    for value in (False, None, "auto"):
        assert reporter(value, "inputs") is None
    assert isinstance(reporter(True, "inputs"), ProgressBar)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(reporter("auto", "inputs"), ProgressBar)
    assert reporter(False, "inputs") is None
    with pytest.raises(ValueError) as error:
        reporter("always", "inputs")
    assert str(error.value) == "progress must be True, False, 'auto', 'log' or a callable (done, total), got 'always'"
