"""From the probability of a class at an input to bounds on it at a neighbour.

The tight bound. Inside the common subsequence, x and x' make the same strings, with masses c · Binomial(N, 1−ψ) and
c' · Binomial(N, 1−ψ'). Let K(u) be the largest mass under the second of a set that has mass u under the first: the
upper Neyman-Pearson envelope. Then a class with probability p at x has at x'

    upper bound  1 − c' · (1 − K(p / c)),        lower bound  c' · (1 − K((1 − p) / c)),

the second being the first for "any other class". K is concave and piecewise linear: the least of the lines

    F'(y−1) + ρ_y · (u − F(y−1)),    ρ_y = f'(y) / f(y),

over counts y, ordered so that ρ falls in y. Hence any y whatever gives a valid bound and the right one a tight bound:
no rounding in the search for y can make a certificate wrong. What remains are errors in F, F' and ρ, each of which is
bounded and pushed towards "not certified".
"""

from __future__ import annotations

from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from adaptdel.core import paper_bounds
from adaptdel.core.binomial import EPS, below, exponential_error, log_ratio, quantile, sum_error
from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, check_choice, check_int, check_probabilities
from adaptdel.core.noise import TINY, Deletion, Overlap, at_least_tiny
from adaptdel.core.rates import Rate

BOUNDS = ("tight", "paper")


class Counts(NamedTuple):
    """Binomial counts Y of the common tokens, ordered so that the likelihood ratio ρ falls as Y grows."""

    trials: FloatArray
    success: FloatArray
    failure: FloatArray
    other_success: FloatArray
    other_failure: FloatArray

    def sum_error(self) -> FloatArray:
        """The relative error allowed for in a sum, here or there."""
        return np.maximum(
            sum_error(self.trials, self.success, self.failure),
            sum_error(self.trials, self.other_success, self.other_failure),
        )

    def log_ratio(self, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Log ρ_y, and a bound on its error."""
        return log_ratio(y, *self)


def _counts(overlap: Overlap) -> Counts:
    """Count kept tokens if ψ < ψ', deleted ones otherwise: the first probability is then the larger one."""
    psi, other = overlap.psi, overlap.other_psi
    kept = psi < other
    return Counts(
        overlap.common,
        np.where(kept, 1 - psi, psi),
        np.where(kept, psi, 1 - psi),
        np.where(kept, 1 - other, other),
        np.where(kept, other, 1 - other),
    )


def _select(overlap: Overlap, where: npt.NDArray[np.bool_]) -> Overlap:
    return Overlap(
        overlap.inside[where],
        overlap.other_inside[where],
        overlap.common[where],
        overlap.psi[where],
        overlap.other_psi[where],
    )


def _envelope(u: FloatArray, counts: Counts) -> FloatArray:
    """K(u) rounded upwards, where the two rates differ and u is 0 or from `TINY` to 1."""
    y = quantile(u, *counts[:3])
    y = np.where(counts.failure == 0, counts.trials, y)  # ψ = 0 or 1: a single count is possible at x
    here = below(y, *counts[:3])
    there = below(y, counts.trials, counts.other_success, counts.other_failure)
    logarithm, log_error = counts.log_ratio(y)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(logarithm)
        gap = u - here
        line = there + ratio * gap
        relative = counts.sum_error()
        error = relative * there + ratio * (relative * here + 4 * EPS * u + exponential_error(log_error) * np.abs(gap))
        value = line + error + 4 * EPS
    value = np.where((u == 0) & (counts.failure > 0), 0.0, value)
    return np.where(np.isnan(value), 1.0, np.clip(value, 0.0, 1.0))


def _other_class(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The least mass c' · (1 − K(p / c)) that classes other than one of probability p keep at x', rounded down."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = np.where(overlap.inside > 0, at_least_tiny(p) / overlap.inside, np.inf)
        u = u * (1 + 16 * EPS)
    same = overlap.psi == overlap.other_psi
    envelope = np.minimum(u, 1.0)
    differ = ~same & (u < 1)
    if differ.any():
        envelope[differ] = _envelope(u[differ], _counts(_select(overlap, differ)))
    return np.asarray(np.maximum(overlap.other_inside * (1 - envelope) * (1 - 16 * EPS), 0.0))


def tight_lower(p: FloatArray, overlap: Overlap) -> FloatArray:
    """A lower bound on the probability at x' of a class that has at least probability p at x."""
    return _other_class(1 - p, overlap)


def tight_upper(p: FloatArray, overlap: Overlap) -> FloatArray:
    """An upper bound on the probability at x' of a class that has at most probability p at x."""
    return np.minimum(1 - _other_class(p, overlap) + EPS, 1.0)


def attainable(level: float, overlap: Overlap) -> npt.NDArray[np.bool_]:
    """Whether a class with probability 1 could keep more than ``level`` at x': a cheap necessary condition."""
    return (overlap.inside > 0) & (overlap.other_inside > level)


def tolerance(level: float, overlap: Overlap) -> FloatArray:
    """The largest probability q of all other classes at x with which a class surely keeps more than ``level`` at x'.

    The closed-form inverse of the tight lower bound, rounded down: q = c · K⁻¹(1 − level / c'). K⁻¹ is convex, the
    greatest of the inverted lines, so that again any count y gives a valid answer. −1 where no q will do; 0 where only
    such a q will do as is too small to be trusted in double precision.
    """
    result = np.full(overlap.common.shape, -1.0)
    reachable = attainable(level, overlap)
    if not reachable.any():
        return result
    overlap = _select(overlap, reachable)
    spent = level / overlap.other_inside
    slack = 1 - spent - 8 * EPS * (spent + 1)
    inverse = slack.copy()
    differ = (overlap.psi != overlap.other_psi) & (slack > 0)
    if differ.any():
        inverse[differ] = _inverse_envelope(slack[differ], _counts(_select(overlap, differ)))
    product = overlap.inside * inverse * (1 - 16 * EPS)
    product = np.where(product < TINY, 0.0, product)
    result[reachable] = np.where((slack > 0) & (inverse >= 0), product, -1.0)
    return result


def _inverse_envelope(slack: FloatArray, counts: Counts) -> FloatArray:
    """K⁻¹(slack) rounded down, where the two rates differ and slack > 0; −1 where even K(0) is too large."""
    y = quantile(np.minimum(slack, 1.0), counts.trials, counts.other_success, counts.other_failure)
    single = counts.failure == 0  # ψ = 0 or 1: a single count is possible at x
    y = np.where(single, counts.trials, y)
    here = below(y, *counts[:3])
    there = below(y, counts.trials, counts.other_success, counts.other_failure)
    logarithm, log_error = counts.log_ratio(y)
    with np.errstate(over="ignore", invalid="ignore"):
        inverse_ratio = np.exp(-logarithm)
        gap = slack - there
        line = here + gap * inverse_ratio
        relative = counts.sum_error()
        error = relative * here + inverse_ratio * (
            relative * there + 4 * EPS + exponential_error(log_error) * np.abs(gap)
        )
        value = line - error
    value = np.where(np.isnan(value), -1.0, value)
    # K(0) = 0 unless a single count is possible at x, so that unanimous votes always suffice where there is slack.
    return np.where(single, np.where(value > 0, value, -1.0), np.maximum(value, 0.0))


def lower(p: FloatArray, overlap: Overlap, bound: str = "tight") -> FloatArray:
    """The lower bound of the named kind."""
    tight = tight_lower(p, overlap)
    return tight if bound == "tight" else np.where(_printed(overlap), paper_bounds.paper_lower(p, overlap), tight)


def upper(p: FloatArray, overlap: Overlap, bound: str = "tight") -> FloatArray:
    """The upper bound of the named kind."""
    tight = tight_upper(p, overlap)
    return tight if bound == "tight" else np.where(_printed(overlap), paper_bounds.paper_upper(p, overlap), tight)


def _printed(overlap: Overlap) -> npt.NDArray[np.bool_]:
    """Where the paper's lemmas hold: at ψ = 0 or 1 they divide by 0, and their upper bound would be wrong."""
    return (overlap.psi > 0) & (overlap.psi < 1) | (overlap.psi == overlap.other_psi)


@overload
def pairwise_bounds(
    p: float, *, length: int, other_length: int, common: int, rate: Rate, bound: str = ...
) -> tuple[float, float]: ...
@overload
def pairwise_bounds(
    p: npt.NDArray[np.float64], *, length: int, other_length: int, common: int, rate: Rate, bound: str = ...
) -> tuple[FloatArray, FloatArray]: ...
def pairwise_bounds(
    p: float | npt.NDArray[np.float64],
    *,
    length: int,
    other_length: int,
    common: int,
    rate: Rate,
    bound: str = "tight",
) -> tuple[float, float] | tuple[FloatArray, FloatArray]:
    """Bound the probability of a class at a neighbour.

    Args:
        p: the probability of the class at the input (one, or an array).
        length: the input's number of tokens n.
        other_length: the neighbour's number of tokens n'.
        common: the length N of a common subsequence, at best the longest.
        rate: the deletion rate as a function of the length.
        bound: "tight", or "paper" for the AdaptDel paper's two lemmas as printed.

    Returns:
        The lower and the upper bound, rounded outwards.

    >>> from adaptdel import FixedRate
    >>> low, high = pairwise_bounds(0.9, length=9, other_length=10, common=9, rate=FixedRate(0.75))
    >>> round(low, 6), round(high, 6)
    (0.675, 0.925)
    """
    probability = check_probabilities("p", p)
    length = check_int("length", length, most=LARGEST_LENGTH)
    other_length = check_int("other_length", other_length, most=LARGEST_LENGTH)
    common = check_int("common", common, most=min(length, other_length))
    check_choice("bound", bound, BOUNDS)
    flat = np.atleast_1d(probability).ravel()
    shape = flat.shape
    overlap = Deletion(rate).overlap(length, np.full(shape, other_length), np.full(shape, common))
    low, high = lower(flat, overlap, bound), upper(flat, overlap, bound)
    if probability.ndim == 0:
        return float(low[0]), float(high[0])
    return low.reshape(probability.shape), high.reshape(probability.shape)
