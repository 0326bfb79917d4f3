"""A line on standard error that says how far a run is, and how it goes."""

from __future__ import annotations

import sys
import time

from adaptdel.evaluation.totals import Totals


class Watch:
    """Rewrite one line on a terminal; elsewhere write one every half minute, so that a log stays short."""

    def __init__(self, total: int, before: int, *, patience: float = 2.0) -> None:
        self.total, self.before = total, before
        self.live = sys.stderr.isatty()
        self.wait = 0.2 if self.live else 30.0
        self.start = time.monotonic()
        self.due = self.start + max(patience, self.wait)
        self.shown = False

    def __call__(self, totals: Totals) -> None:
        """Show the sums, if it is time."""
        now = time.monotonic()
        if now >= self.due:
            self.due, self.shown = now + self.wait, True
            text = describe(totals, self.total, self.before, now - self.start)
            sys.stderr.write(f"\r{text}\x1b[K" if self.live else f"{text}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the line as it is."""
        if self.shown and self.live:
            sys.stderr.write("\n")
            sys.stderr.flush()


def describe(totals: Totals, total: int, before: int, seconds: float) -> str:
    """How far a run is, in words.

    >>> describe(Totals(inputs=150, labelled=150, correct=120, radius=600), 200, 100, 25.0)
    '150 of 200 inputs, 2 a second, 25 s left, accuracy 80.0%, mean radius 4.00'
    """
    rate = max(totals.inputs - before, 0) / max(seconds, 1e-9)
    parts = [f"{totals.inputs} of {total} inputs", f"{rate:.3g} a second"]
    if rate:
        parts.append(f"{duration((total - totals.inputs) / rate)} left")
    if totals.accuracy is not None:
        parts.append(f"accuracy {totals.accuracy:.1%}")
    if totals.mean_radius is not None:
        parts.append(f"mean radius {totals.mean_radius:.2f}")
    if totals.problems:
        parts.append(f"{totals.problems} not certified")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(90), duration(1200), duration(9000)
    ('90 s', '20 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
