"""Quantiles, errors and distances of values that are given with the number of inputs that have them.

Where every value belongs to one input, the results are those of numpy on the values, digit for digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import FloatArray, IntArray

Values = npt.NDArray[Any]


def each_once(counts: IntArray | None) -> bool:
    """Whether every value belongs to one input."""
    return counts is None or bool((counts == 1).all())


def mean(values: Values, counts: IntArray | None = None) -> float:
    """The mean; NaN without inputs."""
    if counts is None or each_once(counts):
        return float(values.mean()) if len(values) else nan
    return float((values * counts).sum() / counts.sum()) if counts.sum() else nan


def quantiles(values: Values, counts: IntArray | None, shares: Sequence[float]) -> FloatArray:
    """Quantiles, interpolated as by `numpy.quantile`; NaN without inputs.

    >>> quantiles(np.array([5, 1]), np.array([1, 3]), [0.5, 0.75, 1.0])
    array([1., 2., 5.])
    """
    if not len(values):
        return np.full(len(shares), nan)
    if counts is None or each_once(counts):
        return np.asarray(np.quantile(values, shares), dtype=np.float64)
    order = np.argsort(values, kind="stable")
    last = np.cumsum(counts[order]) - 1  # the place of the last input with each value
    results = []
    for share in shares:
        place = share * float(last[-1])
        below = int(place)
        pair = [values[order[np.searchsorted(last, min(below + step, last[-1]))]] for step in (0, 1)]
        results.append(float(np.quantile(pair, place - below)))
    return np.array(results)


def median(values: Values, counts: IntArray | None = None) -> float:
    """The median; NaN without inputs."""
    if len(values) and each_once(counts):
        return float(np.median(values))
    return float(quantiles(values, counts, [0.5])[0])


def standard_error(values: Values, counts: IntArray | None = None) -> float:
    """The standard error of a mean, s/√n with s² = Σ (v − v̄)² / (n − 1); NaN for fewer than two inputs.

    >>> standard_error(np.array([0, 1, 2, 3]))
    0.6454972243679028
    >>> standard_error(np.array([0, 3]), np.array([2, 2])) == standard_error(np.array([0, 0, 3, 3]))
    True
    """
    if counts is None or each_once(counts):
        return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else nan
    size, centre = int(counts.sum()), mean(values, counts)
    return sqrt(float((counts * (values - centre) ** 2).sum()) / (size - 1)) / sqrt(size)


def wasserstein(radius: Values, length: Values, counts: IntArray | None = None) -> float:
    """The Wasserstein distance W₁ = ∫ |F⁻¹ − G⁻¹| between the distributions of standardised radii and lengths.

    Both are empirical distributions of the same number of values, so their quantile functions are the sorted values.
    The distance is small if the radius grows in proportion to the length. NaN if all radii or all lengths are equal.

    >>> wasserstein(np.array([1, 2, 3]), np.array([10, 20, 30]))
    0.0
    """
    if not len(radius):
        return nan
    if counts is None or each_once(counts):
        gaps = np.sort(_standardised(radius)) - np.sort(_standardised(length))
        return float(np.abs(gaps).mean())
    steps = [_quantile_function(_standardised(values, counts), counts) for values in (radius, length)]
    ends = np.unique(np.concatenate([last for _, last in steps]))  # between two ends, both functions are constant
    low, high = (values[np.searchsorted(last, ends)] for values, last in steps)
    return float((np.abs(low - high) * np.diff(ends, prepend=0)).sum() / ends[-1])


def shares_at_least(values: Values, counts: IntArray, thresholds: npt.ArrayLike, size: int) -> FloatArray:
    """The share, among ``size`` inputs, of those whose value is at least each threshold."""
    order = np.argsort(values, kind="stable")
    cumulated = np.concatenate([[0], np.cumsum(counts[order])])
    below = cumulated[np.searchsorted(values[order], np.asarray(thresholds), side="left")]
    rest = cumulated[-1] - below
    return np.asarray(rest / size if size else np.full(np.shape(thresholds), nan), dtype=np.float64)


def _standardised(values: Values, counts: IntArray | None = None) -> FloatArray:
    """Values minus their mean, divided by their standard deviation; NaN if all are equal."""
    spread = nan
    if values.min() < values.max():
        weights = None if each_once(counts) else counts
        spread = (
            float(values.std())
            if weights is None
            else sqrt(float((weights * (values - mean(values, weights)) ** 2).sum() / weights.sum()))
        )
    return np.asarray((values - mean(values, counts)) / spread, dtype=np.float64)


def _quantile_function(values: Values, counts: IntArray) -> tuple[Values, IntArray]:
    """The sorted values, and how many inputs have each or a smaller one."""
    order = np.argsort(values, kind="stable")
    return values[order], np.cumsum(counts[order])
