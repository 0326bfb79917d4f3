"""The AdaptDel paper's two pairwise lemmas as printed, rounding to whole subsequences included.

They are sound and never better than the tight bound (`adaptdel.core.bounds`); they are here to reproduce published
figures. The paper fills a knapsack with the 2^N subsequences of the common subsequence, those of the cheapest size
first, and rounds the number of the last size down (lower bound) or up (upper bound). It weighs them without
conditioning on the common subsequence, and divides by c at the end.

The rounding jumps where a whole number of subsequences fits exactly, and there honest probabilities lie: that of an
enumerated input is a whole number of subsequences, rounded to a double. So the number is rounded at a probability that
is better by the share `WHOLE`, here and in ball arithmetic alike, and the result is never better than what the number
gives without rounding, which is sound by itself.
"""

from __future__ import annotations

import numpy as np

from adaptdel.core.binomial import EPS, below, exponential_error, log_ratio, quantile, sum_error
from adaptdel.core.checks import BoolArray, FloatArray
from adaptdel.core.noise import TINY, Overlap, at_least_tiny

# Soundness does not depend on it. It is twice four times the least error of a sum (`binomial.SUM_ERROR`), so that whole
# numbers are whole in double precision too, for some hundreds of common tokens; beyond, doubles may lose one.
WHOLE = 2.0**-38
_UNROUNDED = 2.0**50  # from this number on WHOLE is many subsequences, and nothing is rounded


def _knapsack(
    mass: FloatArray, mass_error: FloatArray, overlap: Overlap, from_kept: BoolArray, direction: int
) -> tuple[FloatArray, FloatArray]:
    """The mass at x' of the first subsequences that have ``mass`` at x, in whole subsequences, and its error.

    Sizes are counted from the fewest kept tokens where ``from_kept``, else from the fewest deleted ones. ``direction``
    is −1 to round the last size down and +1 to round it up.

    The last size is found at a mass that is worse by more than the error of the mass and of one sum. So it is the true
    one, or the one on its worse side. A mass that is worse by the error of two more sums then fits into the true mass
    of that size, or (direction +1) contains what the true mass takes of it.
    """
    psi, other, trials = overlap.psi, overlap.other_psi, overlap.common
    success, failure = np.where(from_kept, 1 - psi, psi), np.where(from_kept, psi, 1 - psi)
    other_success, other_failure = np.where(from_kept, 1 - other, other), np.where(from_kept, other, 1 - other)
    relative = np.maximum(sum_error(trials, success, failure), sum_error(trials, other_success, other_failure))
    step = direction * (2 * mass_error + relative * mass)
    size = quantile(np.clip(mass + step, 0.0, 1.0), trials, success, failure)
    here = below(size, trials, success, failure)
    there = below(size, trials, other_success, other_failure)
    logarithm, log_error = log_ratio(size, trials, success, failure, other_success, other_failure)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        item, item_error = _item(size, trials, success, failure)
        rest = np.maximum(mass + 3 * step - here, 0.0)
        number = np.where(rest > 0, (rest - direction * WHOLE * mass) / item, 0.0) * (1 + direction * item_error)
        whole = item * (np.floor(number) if direction < 0 else np.ceil(number))
        whole = np.where(number < _UNROUNDED, whole, rest)
        filled = np.minimum(whole, rest) if direction < 0 else np.maximum(whole, rest)
        filled = np.where(filled > 0, np.exp(logarithm) * filled, 0.0)
        error = relative * there + (item_error + exponential_error(log_error)) * filled
    value = np.where(np.isnan(there + filled), 0.0 if direction < 0 else 1.0, there + filled)
    return value, np.where(np.isnan(error), 1.0, error)


def _item(
    size: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The probability of one subsequence of the given size, and a bound on its relative error."""
    rare = np.where(size == 0, 0.0, size * np.log(success))
    common = np.where(size == trials, 0.0, (trials - size) * np.log(failure))
    size_of_logs = np.abs(rare) + np.abs(common)
    error = 4 * EPS * (1 + np.where(np.isinf(size_of_logs), 0.0, size_of_logs))
    return np.exp(rare + common), exponential_error(error)


def _whole_is_whole(overlap: Overlap) -> BoolArray:
    """Where all subsequences together have the probability 1 at x' as at x."""
    return (overlap.psi > 0) & (overlap.psi < 1) | (overlap.psi == overlap.other_psi)


def paper_lower(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's lower bound (its Lemma on the pairwise lower bound), rounded down."""
    inside = overlap.inside
    mass = inside - (1 - p)
    from_kept = overlap.psi >= overlap.other_psi
    filled, error = _knapsack(np.clip(mass, 0.0, 1.0), 6 * EPS * inside, overlap, from_kept, -1)
    full = (mass >= 1) & _whole_is_whole(overlap)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / inside * (filled - error) * (1 - 16 * EPS)
    return np.where((mass > 0) & (inside >= TINY) & (value >= TINY), np.minimum(value, 1.0), 0.0)


def paper_upper(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's upper bound (its Lemma on the pairwise upper bound), rounded up."""
    p = at_least_tiny(p)
    filled, error = _knapsack(p, np.zeros(p.shape), overlap, overlap.psi <= overlap.other_psi, +1)
    full = (p >= 1) & _whole_is_whole(overlap)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    filled, error = np.where(p > 0, filled, 0.0), np.where(p > 0, error, 0.0)  # of nothing, nothing is taken
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / overlap.inside * (filled + error) * (1 + 16 * EPS)
        value = value + (1 - overlap.other_inside) + 4 * EPS
    return np.where(overlap.inside >= TINY, np.clip(value, 0.0, 1.0), 1.0)
