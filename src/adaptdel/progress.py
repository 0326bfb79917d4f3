"""A line on standard error that says how far a long call is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

Report = Callable[[int, int], None]


class Line:
    """Rewrite one line: done, rate, time left. It stays silent for the first seconds."""

    def __init__(self, noun: str, *, patience: float = 2.0) -> None:
        self.noun, self.patience = noun, patience
        self.start = self.last = time.monotonic()
        self.begun: tuple[int, float] | None = None
        self.shown = False

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done."""
        now = time.monotonic()
        if self.begun is None:  # what was done before, as in a training that goes on, took no time here
            self.begun = (done, now) if done > 1 else (0, self.start)
        if now - self.start < self.patience or (now - self.last < 0.2 and done < total):
            return
        self.last, self.shown = now, True
        rate = (done - self.begun[0]) / max(now - self.begun[1], 1e-9)
        left = (total - done) / rate if rate else 0.0
        sys.stderr.write(f"\r{done} of {total} {self.noun}, {rate:.3g} a second, {left:.0f} s left \x1b[K")
        if done >= total:
            sys.stderr.write("\n")
        sys.stderr.flush()


def reporter(progress: Any, noun: str) -> Report | None:
    """What reports progress: a callable as given; a line if asked for, or if "auto" and somebody watches."""
    if callable(progress):
        report: Report = progress
        return report
    if progress is True or (progress == "auto" and sys.stderr.isatty()):
        return Line(noun)
    if progress in (False, None, "auto"):
        return None
    raise ValueError(f"progress must be True, False, 'auto' or a callable (done, total), got {progress!r}")
