"""Golden-section search for the kept length of a bin, with one new evaluation a step."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log, sqrt
from typing import TypeVar

from adaptdel.calibration.bins import Bin

GOLDEN = (sqrt(5) - 1) / 2
LEAST_SHARE, MOST_SHARE = 0.01, 0.3  # of the length, kept at least and at most: rates from 70% to 99%
Score = TypeVar("Score", bound=tuple[float, ...])


def ends(bin: Bin) -> tuple[float, float]:
    """Where the search in a bin begins and ends.

    The paper keeps at least 1% of the bin's upper end and at most 30% of its lower one. Where that leaves nothing, as
    in the first bin, whose lower end is 0, the 30% are of the centre. At least one token is kept: below log 2 tokens
    most copies are empty, and every input gets the answer to the empty text, with an infinite radius that is worth
    nothing.

    >>> ends(Bin(100, 200, 200))
    (2.0, 30.0)
    """
    low = max(LEAST_SHARE * bin.reach, 1.0)
    high = MOST_SHARE * bin.lower
    if high < 3 * low:
        high = MOST_SHARE * bin.centre
    return low, max(high, 3 * low)


def steps(low: float, high: float, tol: float) -> int:
    """How many times the interval has to be cut until it is no wider than ``tol``."""
    return max(0, ceil(log((high - low) / tol) / -log(GOLDEN) - 1e-9))


def evaluations(low: float, high: float, tol: float) -> int:
    """How many evaluations a search takes: one a step and one to begin with."""
    return steps(low, high, tol) + 1


def golden_section(score: Callable[[float], Score], low: float, high: float, tol: float) -> float:
    """The best of the candidates that a golden-section search for the largest score tries.

    A step cuts the interval at one of two inner points. The other one is an inner point of what is left, so that each
    step but the first evaluates a single new point. The paper evaluates both again and takes the middle of the last
    interval, which was never tried; the best point that was tried is known to be good. Where both points
    are as good, the larger one is kept, as in the paper.

    >>> round(golden_section(lambda x: (-((x - 3) ** 2),), 0, 10, 0.01), 2)
    3.0
    """
    count = steps(low, high, tol)
    if not count:
        return (low + high) / 2
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    tried = {left: score(left), right: score(right)}
    for step in range(count):
        if tried[left] > tried[right]:
            high, right = right, left
            new = left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            new = right = low + GOLDEN * (high - low)
        if step < count - 1:
            tried[new] = score(new)
    return max(tried, key=lambda point: (tried[point], point))
