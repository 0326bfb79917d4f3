"""Progress of long calls: tqdm bars on a terminal, callables, and silence elsewhere."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import ProgressBar, reporter
from tests.run_files import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that tqdm reads."""
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


def test_a_short_call_shows_nothing(clock: list[float], capsys: Any) -> None:
    bar = ProgressBar("inputs")
    for done in range(1, 11):
        clock[0] += 0.1
        bar(done, 10)
    assert capsys.readouterr().err == ""


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


def slow_base(clock: list[float]) -> Any:
    """A base classifier that takes three seconds for a batch."""

    def answer(batch: list[str]) -> list[int]:
        clock[0] += 3
        return [0 for _ in batch]

    return answer


@pytest.mark.parametrize("terminal", [True, False])
def test_certify_in_python(clock: list[float], monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    error = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    noise = Deletion(FixedRate(0.5))
    model = SmoothedClassifier(slow_base(clock), noise, classes=[0, 1], n_select=8, n_estimate=16)
    model.certify([" ".join(f"w{n}{place}" for place in range(30)) for n in range(20)])
    assert ("20/20 [" in error.getvalue()) == terminal
    assert terminal or error.getvalue() == ""
