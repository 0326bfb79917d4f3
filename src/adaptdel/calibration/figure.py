"""A calibrated rate, drawn: what is deleted and what is kept, against the length of the input."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from adaptdel.calibration.result import Calibration
from adaptdel.plots import new_figure, save

INK, ACCENT, PALE = "#1d6f65", "#c8553d", "#b8c4c2"


def plot_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Draw the deletion rate and the kept length against the length of the input, as in the paper's figure."""
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    last = calibration.bins[-1]
    lengths = np.arange(1, max(round(last.centre * 1.25), 20))
    rates = calibration.rate.at(lengths)
    for axes in (left, right):
        _edges(axes, calibration, int(lengths[-1]))
    _steps(left, lengths, 100 * rates, calibration)
    left.plot([b.centre for b in calibration.bins], [_rate(b.centre, b.keep) for b in calibration.bins], "o", **_dots())
    left.set_ylabel("deletion rate ψ (%)")
    left.set_ylim(min(65, 100 * float(np.median(rates)) - 5), 101)
    left.set_title("Rate", fontsize=11)
    _steps(right, lengths, np.minimum(lengths * (1 - rates), lengths), calibration)
    right.plot([b.centre for b in calibration.bins], [b.keep for b in calibration.bins], "o", **_dots())
    moved = [b for b in calibration.bins if b.keep != b.searched]
    if moved:
        found = [b.searched for b in moved]
        right.plot([b.centre for b in moved], found, "x", color=ACCENT, ms=6, label="found before the monotone fit")
        right.legend(frameon=False, loc="best")
    right.set_ylabel("expected kept length K (tokens)")
    right.set_ylim(bottom=0)
    right.set_title("Kept length", fontsize=11)
    save(figure, path)


def _edges(axes: Any, calibration: Calibration, longest: int) -> None:
    """Bin edges as pale lines, and what all panels share."""
    for one in calibration.bins[1:]:
        axes.axvline(one.lower, color=PALE, lw=0.8, ls=":")
    axes.set_xlim(0, longest)
    axes.set_xlabel("input length (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _steps(axes: Any, lengths: Any, values: Any, calibration: Calibration) -> None:
    """A line that is broken where a binned rate jumps."""
    edges = [b.lower for b in calibration.bins[1:]] if calibration.rate.kind == "binned" else []
    parts = np.searchsorted(lengths, edges)
    for x, y in zip(np.split(lengths, parts), np.split(values, parts), strict=True):
        axes.plot(x, y, color=INK, lw=1.8)


def _rate(length: float, keep: float) -> float:
    return 100 * max(0.0, 1 - keep / length)


def _dots() -> dict[str, Any]:
    return {"color": INK, "ms": 4.5}
