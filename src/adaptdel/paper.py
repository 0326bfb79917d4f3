"""The AdaptDel paper's two pairwise lemmas as printed, rounding to whole subsequences included.

They are sound and never better than the tight bound (`adaptdel.bounds`); they are here to reproduce published figures.
The paper fills a knapsack with the 2^N subsequences of the common subsequence, those of the cheapest size first, and
rounds the number of the last size down (lower bound) or up (upper bound). It weighs them without conditioning on the
common subsequence, and divides by c at the end.
"""

from __future__ import annotations

import numpy as np

from adaptdel.binomial import EPS, below, quantile, sum_error
from adaptdel.checks import BoolArray, FloatArray
from adaptdel.overlap import TINY, Overlap


def _knapsack(
    mass: FloatArray, overlap: Overlap, from_kept: BoolArray, direction: int
) -> tuple[FloatArray, FloatArray]:
    """The mass at x' of the first subsequences that have ``mass`` at x, in whole subsequences, and its error.

    Sizes are counted from the fewest kept tokens where ``from_kept``, else from the fewest deleted ones. ``direction``
    is −1 to round the last size down and +1 to round it up.
    """
    psi, other, trials = overlap.psi, overlap.other_psi, overlap.common
    success, failure = np.where(from_kept, 1 - psi, psi), np.where(from_kept, psi, 1 - psi)
    other_success, other_failure = np.where(from_kept, 1 - other, other), np.where(from_kept, other, 1 - other)
    size = quantile(mass, trials, success, failure)
    here = below(size, trials, success, failure)
    there = below(size, trials, other_success, other_failure)
    relative = np.maximum(sum_error(trials, success, failure), sum_error(trials, other_success, other_failure))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        item, item_error = _item(size, trials, success, failure)
        other_item, other_error = _item(size, trials, other_success, other_failure)
        rest = np.maximum(mass - here, 0.0)
        rest_error = relative * here + 4 * EPS * mass
        ratio = np.where(rest > 0, other_item / item, 0.0)
        number = np.where(rest > 0, rest / item, 0.0)
        slack = np.where(rest > 0, number * item_error + rest_error / item, 0.0) + 4 * EPS
        # A number that is whole up to rounding errors counts as whole: the error of `rest` is accounted for anyway.
        whole = np.floor(number + slack) if direction < 0 else np.ceil(number - slack)
        filled = np.where(number < 2.0**50, whole * other_item, rest * ratio)
        filled = np.minimum(filled, rest * ratio) if direction < 0 else np.maximum(filled, rest * ratio)
        error = relative * there + rest_error * ratio + (item_error + other_error) * filled
    value = np.where(np.isnan(there + filled), 0.0 if direction < 0 else 1.0, there + filled)
    return value, np.where(np.isnan(error), 1.0, error)


def _item(
    size: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The probability of one subsequence of the given size, and a bound on its relative error."""
    rare = np.where(size == 0, 0.0, size * np.log(success))
    common = np.where(size == trials, 0.0, (trials - size) * np.log(failure))
    size_of_logs = np.abs(rare) + np.abs(common)
    return np.exp(rare + common), 8 * EPS * (1 + np.where(np.isinf(size_of_logs), 0.0, size_of_logs))


def paper_lower(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's lower bound (its Lemma on the pairwise lower bound), rounded down."""
    inside = overlap.inside
    mass = inside - (1 - p)
    filled, error = _knapsack(np.clip(mass, 0.0, 1.0), overlap, overlap.psi >= overlap.other_psi, -1)
    full = (mass >= 1) & (overlap.psi > 0) & (overlap.psi < 1)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / inside * (filled - error) * (1 - 16 * EPS)
    return np.where((mass > 0) & (inside > TINY), np.clip(value, 0.0, 1.0), 0.0)


def paper_upper(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's upper bound (its Lemma on the pairwise upper bound), rounded up."""
    filled, error = _knapsack(p, overlap, overlap.psi <= overlap.other_psi, +1)
    full = (p >= 1) & (overlap.psi > 0) & (overlap.psi < 1)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / overlap.inside * (filled + error) * (1 + 16 * EPS)
        value = value + (1 - overlap.other_inside) + 4 * EPS
    return np.where(overlap.inside > TINY, np.clip(value, 0.0, 1.0), 1.0)
