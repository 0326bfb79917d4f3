"""Is one run better than another? Paired bootstrap intervals for differences on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.checks import FloatArray, IntArray, check_alpha, check_int
from adaptdel.evaluation.measures import Outcomes

Values = npt.NDArray[Any]
STATISTICS = (
    "clean_accuracy", "certified_accuracy_1", "mean_radius", "median_log_cardinality", "wasserstein", "calls",
)  # fmt: skip
_CELLS = 2**18  # values that are resampled at a time


@dataclass(frozen=True)
class Difference:
    """By how much a run exceeds the other in one measure, with an interval for what other inputs would have given."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired(first: Outcomes, second: Outcomes, *, same_tokens: bool = True) -> tuple[Outcomes, Outcomes]:
    """The inputs that both runs hold, in the same order: by id, and with the same tokens if these can be compared."""
    places = {name: place for place, name in enumerate(second.ids)}
    pairs = [(place, places[name]) for place, name in enumerate(first.ids) if name in places]
    if same_tokens:
        pairs = [(a, b) for a, b in pairs if first.hashes[a] == second.hashes[b]]
    left, right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    return first.take(left), second.take(right)


def paired_differences(
    run: Outcomes, baseline: Outcomes, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Each measure of ``run`` less that of ``baseline``, with percentile intervals of the paired bootstrap.

    Inputs are drawn with replacement, the same for both runs; both hold the same inputs in the same order (`paired`).
    The interval speaks of other inputs from where these came from, not of other draws of the noise.

    """
    size = len(run)
    if len(baseline) != size:
        raise ValueError(f"baseline must hold the same {size} inputs, got {len(baseline)}")
    check_int("resamples", resamples, least=1)
    check_alpha(1 - level)
    if not size:
        return {name: Difference(nan, nan, nan) for name in STATISTICS}
    whole = np.ones((1, size), dtype=np.int64)
    value = {name: one[0] for name, one in _differences(run, baseline, whole).items()}
    drawn = [_differences(run, baseline, counts) for counts in _resampled(size, resamples, seed)]
    tail = 50 * (1 - level)
    made = {}
    for name in STATISTICS:
        column = np.concatenate([block[name] for block in drawn])
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, [tail, 100 - tail]) if len(column) > resamples / 2 else (nan, nan)
        made[name] = Difference(float(value[name]), float(low), float(high))
    return made


def _resampled(size: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """How often each input is drawn, in blocks of rows."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // size)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)


def _differences(run: Outcomes, baseline: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    left, right = _statistics(run, counts), _statistics(baseline, counts)
    return {name: left[name] - right[name] for name in STATISTICS}


def _statistics(found: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    """The measures of every resample: a row of counts each."""
    size = len(found)
    means = [found.right, found.certified & (found.radius >= 1), found.radius, found.calls]
    right, certified, radius, calls = (counts @ np.stack([one.astype(np.float64) for one in means]).T).T / size
    radii, lengths = _sorted_resamples(found.radius, counts), _sorted_resamples(found.length, counts)
    logs = _sorted_resamples(found.log_cardinality, counts)
    return {
        "clean_accuracy": right if found.labelled else np.full(len(counts), nan),
        "certified_accuracy_1": certified,
        "mean_radius": radius,
        "median_log_cardinality": (logs[:, (size - 1) // 2] + logs[:, size // 2]) / 2,
        "wasserstein": np.abs(_standardised_rows(radii) - _standardised_rows(lengths)).mean(axis=1),
        "calls": calls,
    }


def _sorted_resamples(values: Values, counts: IntArray) -> FloatArray:
    """The values of every resample in increasing order, without sorting each."""
    order = np.argsort(values, kind="stable")
    repeated = np.repeat(np.tile(values[order].astype(np.float64), len(counts)), counts[:, order].ravel())
    return repeated.reshape(counts.shape)


def _standardised_rows(rows: FloatArray) -> FloatArray:
    """Sorted rows, each less its mean and divided by its standard deviation; NaN where a row is constant."""
    spread = np.where(rows[:, :1] < rows[:, -1:], rows.std(axis=1, keepdims=True), nan)
    return np.asarray((rows - rows.mean(axis=1, keepdims=True)) / spread)
