"""The line that says how far a long call is."""

from __future__ import annotations

from typing import Any

import pytest

from adaptdel.progress import Line


def test_what_was_done_before_does_not_count_as_speed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr("adaptdel.progress.time.monotonic", lambda: next(clock))
    line = Line("steps")
    line(900, 1000)  # a training that goes on
    line(950, 1000)
    assert "950 of 1000 steps, 5 a second, 10 s left" in capsys.readouterr().err


def test_a_call_from_the_start_counts_from_its_start(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = iter([0.0, 1.0, 4.0])
    monkeypatch.setattr("adaptdel.progress.time.monotonic", lambda: next(clock))
    line = Line("inputs")
    line(1, 100)
    assert capsys.readouterr().err == ""  # too early to say
    line(4, 100)
    assert "4 of 100 inputs, 1 a second, 96 s left" in capsys.readouterr().err
