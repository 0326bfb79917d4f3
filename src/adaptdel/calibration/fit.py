"""From the kept lengths of bins to a rate: as they are or made monotone, in steps or interpolated."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.optimize import isotonic_regression

from adaptdel.calibration.bins import Bin
from adaptdel.rates import BinnedRate, InterpolatedRate

DIGITS = 4  # decimals of a kept length


def monotone_fit(keep: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest kept lengths, in weighted squares, that do not fall from one bin to the next.

    >>> monotone_fit([4, 9, 6, 14], [1, 1, 1, 1])
    [4.0, 7.5, 7.5, 14.0]
    """
    fitted = isotonic_regression(list(keep), weights=list(weights)).x
    return [round(float(value), DIGITS) for value in fitted]


def make_rate(bins: Sequence[Bin], keep: Sequence[float], *, interpolate: bool) -> BinnedRate | InterpolatedRate:
    """A rate that keeps these lengths: of bins, or at the centres of bins and in between on straight lines.

    >>> from adaptdel.calibration.bins import make_bins
    >>> make_rate(make_bins([0, 137, 230, 324], 1000), [4, 9, 6, 14], interpolate=True)
    InterpolatedRate(lengths=(68.5, 183.5, 277, 418), keep=(4, 9, 6, 14))
    """
    if interpolate:
        return InterpolatedRate([bin.centre for bin in bins], keep)
    return BinnedRate([bin.lower for bin in bins], keep)
