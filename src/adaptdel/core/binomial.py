"""Binomial sums and quantiles by the regularised incomplete beta function: constant time in the number of trials."""

from __future__ import annotations

import numpy as np
from scipy import special

from adaptdel.core.checks import FloatArray

EPS = 2.0**-52
SUM_ERROR = 2.0**-41
SPREAD_ERROR = 2.0**-46


def sum_error(trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """The relative error allowed for in a binomial sum, which grows with the spread of the count.

    Against ball arithmetic the largest that was seen is about 6e-14 plus 2.7e-15 times the standard deviation, over
    trials up to 2**52 and sums down to 1e-280: a seventh and a fifth of the allowance (tests/core/test_binomial.py).
    """
    return SUM_ERROR + SPREAD_ERROR * np.sqrt(trials * success * failure)


def log_ratio(
    count: FloatArray,
    trials: FloatArray,
    success: FloatArray,
    failure: FloatArray,
    other_success: FloatArray,
    other_failure: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Log f'(count) / f(count) of two binomial distributions over the same trials, and a bound on its error."""
    rare = _times(count, _log_quotient(other_success, success))
    common = _times(trials - count, _log_quotient(other_failure, failure))
    with np.errstate(invalid="ignore"):
        return rare + common, 4 * EPS * (1 + np.abs(rare) + np.abs(common))


def exponential_error(error: FloatArray) -> FloatArray:
    """The relative error of exp(x) if x is wrong by at most ``error``; twice that, at least, for its own rounding.

    e^error − 1 stays below twice the error up to 1.25 only: sums of logarithms over 10^15 tokens err by more.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(2 * error, np.expm1(error) * (1 + 4 * EPS))


def _log_quotient(above: FloatArray, under: FloatArray) -> FloatArray:
    """log(above / under) of two rates to a relative error of a few EPS: near 1 and near 0 alike."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shift = (above - under) / under  # the difference is exact: both are multiples of 2**-32
        return np.where(np.abs(shift) < 0.5, np.log1p(shift), np.log(above / under))


def _times(count: FloatArray, logarithm: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(count == 0, 0.0, count * logarithm)


def below(count: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """P(Y < count) for Y ~ Binomial(trials, success), where ``failure`` is the exact 1 − success.

    >>> below(np.array([0.0, 1.0, 2.0, 3.0]), 2.0, 0.25, 0.75)
    array([0.    , 0.5625, 0.9375, 1.    ])
    """
    inside = (count >= 1) & (count <= trials)
    a = np.where(inside, trials - count + 1, 1.0)
    b = np.where(inside, count, 1.0)
    return np.where(inside, special.betainc(a, b, failure), np.where(count < 1, 0.0, 1.0))


def quantile(mass: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """The least count y with P(Y ≤ y) >= mass, for Y ~ Binomial(trials, success) and one-dimensional arrays.

    The sums are compared as computed: at a tie the answer may be the count beside. Every use of it is sound for any
    count and continuous at a tie.

    >>> quantile(np.array([0.5, 0.9]), np.full(2, 2.0), np.full(2, 0.25), np.full(2, 0.75))
    array([0., 1.])
    """
    spread = np.sqrt(trials * success * failure)
    score = special.ndtri(np.clip(mass, 1e-300, 1.0 - 1e-16))
    skew = (failure - success) / 6.0
    guess = np.rint(trials * success + spread * score + skew * (score * score - 1.0) - 0.5)
    y = np.clip(guess, 0.0, trials)
    low, high = np.full(y.shape, -1.0), trials.copy()  # P(Y <= low) < mass <= P(Y <= high)
    step = np.ones_like(y)
    active = np.flatnonzero(high - low > 1)
    while active.size:
        at, n = y[active], trials[active]
        enough = below(at + 1, n, success[active], failure[active]) >= mass[active]
        high[active] = np.where(enough, at, high[active])
        low[active] = np.where(enough, low[active], at)
        lo, hi = low[active], high[active]
        stride = step[active]
        ahead = np.where(enough, at - stride, at + stride)
        outside = (ahead <= lo) | (ahead >= hi)
        y[active] = np.where(outside, np.floor((lo + hi) / 2), ahead)
        step[active] = stride * 2
        active = active[hi - lo > 1]
    return high
