"""Bounds on the probability of a class at a neighbour x', from its probability at the input x.

The tight bound. Inside the common subsequence, x and x' produce the same strings, with masses c · Binomial(N, 1−ψ) and
c' · Binomial(N, 1−ψ'). Let K(u) be the largest mass under the second of a set that has mass u under the first: the
upper Neyman-Pearson envelope. Then a class with probability p at x has at x'

    upper bound  1 − c' · (1 − K(p / c)),        lower bound  c' · (1 − K((1 − p) / c)).

The lower bound is the upper bound applied to "any other class". K is concave and piecewise linear, the minimum of the
lines

    F'(y−1) + ρ_y · (u − F(y−1)),    ρ_y = f'(y) / f(y),

over counts y, ordered so that ρ decreases in y. Hence every y gives a valid bound and the right y gives the tight one:
a rounding error in the search for y cannot make a certificate wrong. The errors of F, F' and ρ are bounded and pushed
towards "not certified".

The paper's bound. The two pairwise lemmas of the AdaptDel paper as printed, for reproducing published figures. They
are sound and never better than the tight bound. The paper fills a knapsack with the 2^N subsequences of the common
subsequence, the sizes of least cost first, and rounds the number of subsequences of the last size down (lower bound)
or up (upper bound). It does not condition on the common subsequence and divides by c at the end.

This rounding jumps where an integer of subsequences fits exactly. The probability of an enumerated input is such a
number, rounded to a double. Therefore the number is rounded at a mass that is better by the fraction `WHOLE`, both here
and in ball arithmetic, and the result is never better than the value without rounding, which is sound by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import nextafter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are first used

from adaptdel.core.checks import LARGEST_LENGTH, BoolArray, FloatArray, check_int, check_probabilities
from adaptdel.core.noise import TINY, Deletion, Overlap, at_least_tiny
from adaptdel.core.rates import Rate
from adaptdel.core.registry import Registry

EPS = 2.0**-52
SUM_ERROR = 2.0**-41
SPREAD_ERROR = 2.0**-46
# Soundness does not depend on WHOLE. It is 8 times the smallest error of a binomial sum (SUM_ERROR), so that whole
# numbers stay whole in double precision up to some hundreds of common tokens; beyond that, doubles may lose one.
WHOLE = 2.0**-38
UNROUNDED = 2.0**50  # from this number of subsequences on, the fraction WHOLE is many of them and nothing is rounded


def rival_cap(p1: float, k: int = 1) -> float:
    """(1 − p1) / k rounded up: the k strongest rivals of a class share at most 1 − p1, so the k-th has at most this.

    >>> rival_cap(0.75) >= 0.25, rival_cap(0.75, k=2) >= 0.125
    (True, True)
    """
    cap = min(nextafter((1 - p1) / k, 2.0), 1.0)
    return cap if k == 1 or p1 >= 0.5 else max(cap, round_up((1 - Fraction(p1)) / k))  # else there are two roundings


def within_rival_cap(p1: float, p2: float) -> bool:
    """Whether p2 is at least 1 − p1, and so bounds the strongest rival, in exact arithmetic."""
    return Fraction(p2) >= 1 - Fraction(p1)


def capped_rival(p1: float, p2: float | None, k: int = 1) -> float:
    """An upper bound on the k-th strongest rival: p2, but at most `rival_cap`; 1 − p1 if p2 is None."""
    return complement(p1) if p2 is None else min(p2, rival_cap(p1, k))


def complement(p: float) -> float:
    """1 − p, rounded up; exact from 1/2 on."""
    return 1 - p if p >= 0.5 else min(nextafter(1 - p, 2.0), 1.0)


def round_up(value: Fraction) -> float:
    """The least double that is not below an exact number."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else float(np.nextafter(nearest, np.inf))


def round_down(value: Fraction) -> float:
    """The largest double that is not above an exact number."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, -np.inf))


# Binomial sums and quantiles by the regularised incomplete beta function: constant time in the number of trials.


def sum_error(trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """The relative error that is assumed for a binomial sum; it grows with the standard deviation of the count.

    The largest error measured against ball arithmetic is about 6e-14 plus 2.7e-15 times the standard deviation, over
    trials up to 2**52 and sums down to 1e-280: a seventh and a fifth of what is assumed (tests/core/test_bounds.py).
    """
    return SUM_ERROR + SPREAD_ERROR * np.sqrt(trials * success * failure)


def exponential_error(error: FloatArray) -> FloatArray:
    """The relative error of exp(x) if x has an error of at most ``error``; at least twice ``error``.

    Twice the error covers e^error − 1 up to an error of 1.25 only. Sums of logarithms over 10^15 tokens exceed that.
    """
    if not (error > 1).any():
        return 2 * error
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(2 * error, np.expm1(error) * (1 + 4 * EPS))


def _log_quotient(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """log(numerator / denominator) of two rates to a relative error of a few EPS, also near 1 and near 0."""
    shift = (numerator - denominator) / denominator  # the difference is exact: both are multiples of 2**-32
    logarithm = np.log1p(shift)
    near = np.abs(shift) < 0.5
    return logarithm if near.all() else np.where(near, logarithm, np.log(numerator / denominator))


def _times(count: FloatArray, logarithm: FloatArray) -> FloatArray:
    return np.where(count == 0, 0.0, count * logarithm)


def below(count: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """P(Y < count) for Y ~ Binomial(trials, success), where ``failure`` is the exact 1 − success.

    >>> below(np.array([0.0, 1.0, 2.0, 3.0]), 2.0, 0.25, 0.75)
    array([0.    , 0.5625, 0.9375, 1.    ])
    """
    inside = (count >= 1) & (count <= trials)
    a = np.where(inside, trials - count + 1, 1.0)
    b = np.where(inside, count, 1.0)
    return np.where(inside, scipy.special.betainc(a, b, failure), np.where(count < 1, 0.0, 1.0))


def quantile(mass: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray) -> FloatArray:
    """The least count y with P(Y ≤ y) >= mass, for Y ~ Binomial(trials, success) and one-dimensional arrays.

    The sums are compared as computed. At a tie the result may be an adjacent count, which is harmless: every use is
    sound for any count and continuous at a tie.

    >>> quantile(np.array([0.5, 0.9]), np.full(2, 2.0), np.full(2, 0.25), np.full(2, 0.75))
    array([0., 1.])
    """
    spread = np.sqrt(trials * success * failure)
    score = scipy.special.ndtri(np.clip(mass, 1e-300, 1.0 - 1e-16))
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


# The tight bound.


class Counts(NamedTuple):
    """Binomial counts Y of the common tokens, ordered so that the likelihood ratio ρ decreases as Y grows."""

    trials: FloatArray
    success: FloatArray
    failure: FloatArray
    other_success: FloatArray
    other_failure: FloatArray

    def sum_error(self) -> FloatArray:
        """The relative error that is assumed for a sum, at x or at x'."""
        return np.maximum(
            sum_error(self.trials, self.success, self.failure),
            sum_error(self.trials, self.other_success, self.other_failure),
        )

    def log_ratio(self, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Log ρ_y = log f'(y) / f(y), and a bound on its error."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            successes = _times(y, _log_quotient(self.other_success, self.success))
            failures = _times(self.trials - y, _log_quotient(self.other_failure, self.failure))
            return successes + failures, 4 * EPS * (1 + np.abs(successes) + np.abs(failures))

    def below(self, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """P(Y < y) at x and at x'."""
        return (
            below(y, self.trials, self.success, self.failure),
            below(y, self.trials, self.other_success, self.other_failure),
        )


def _counts(overlap: Overlap, kept: BoolArray) -> Counts:
    """Count kept tokens where ``kept`` is True, and deleted tokens elsewhere."""
    psi, other = overlap.psi, overlap.other_psi
    return Counts(
        overlap.common,
        np.where(kept, 1 - psi, psi),
        np.where(kept, psi, 1 - psi),
        np.where(kept, 1 - other, other),
        np.where(kept, other, 1 - other),
    )


def _ordered_counts(overlap: Overlap, where: BoolArray) -> Counts:
    """Some of the counts: of kept tokens if ψ < ψ', of deleted tokens otherwise, so that ρ decreases."""
    return Counts(*(column[where] for column in _counts(overlap, overlap.psi < overlap.other_psi)))


def _envelope(u: FloatArray, counts: Counts) -> FloatArray:
    """K(u) rounded up, where the two rates differ and u is 0 or between `TINY` and 1."""
    y = quantile(u, *counts[:3])
    y = np.where(counts.failure == 0, counts.trials, y)  # ψ = 0 or 1: only one count is possible at x
    mass, other_mass = counts.below(y)
    logarithm, log_error = counts.log_ratio(y)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(logarithm)
        gap = u - mass
        line = other_mass + ratio * gap
        relative = counts.sum_error()
        error = relative * other_mass + ratio * (
            relative * mass + 4 * EPS * u + exponential_error(log_error) * np.abs(gap)
        )
        value = line + error + 4 * EPS
    value = np.where((u == 0) & (counts.failure > 0), 0.0, value)
    return np.where(np.isnan(value), 1.0, np.clip(value, 0.0, 1.0))


def _other_classes(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The least mass c' · (1 − K(p / c)) at x' of all classes but one of probability p at x, rounded down."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = np.where(overlap.inside > 0, at_least_tiny(p) / overlap.inside, np.inf)
        u = u * (1 + 16 * EPS)
    same = overlap.psi == overlap.other_psi
    envelope = np.minimum(u, 1.0)
    differ = ~same & (u < 1)
    if differ.any():
        envelope[differ] = _envelope(u[differ], _ordered_counts(overlap, differ))
    return np.asarray(np.maximum(overlap.other_inside * (1 - envelope) * (1 - 16 * EPS), 0.0))


def tight_lower(p: FloatArray, overlap: Overlap) -> FloatArray:
    """A lower bound on the probability at x' of a class that has at least probability p at x."""
    return _other_classes(1 - p, overlap)


def attainable(level: float, overlap: Overlap) -> BoolArray:
    """Whether a class of probability 1 at x could exceed ``level`` at x': a necessary condition that is cheap."""
    return (overlap.inside > 0) & (overlap.other_inside > level)


def tolerance(level: float, overlap: Overlap) -> FloatArray:
    """The largest probability q of all other classes at x with which a class provably exceeds ``level`` at x'.

    This is the inverse of the tight lower bound in closed form, q = c · K⁻¹(1 − level / c'), rounded down. K⁻¹ is
    convex, the maximum of the inverted lines, so every count y gives a valid result. The result is −1 where no q is
    small enough, and 0 where only a q below the range of double precision would be.
    """
    result = np.full(overlap.common.shape, -1.0)
    reachable = attainable(level, overlap)
    if not reachable.any():
        return result
    overlap = Overlap(**{name: column[reachable] for name, column in vars(overlap).items()})
    spent = level / overlap.other_inside
    slack = 1 - spent - 8 * EPS * (spent + 1)
    inverse = slack.copy()
    differ = (overlap.psi != overlap.other_psi) & (slack > 0)
    if differ.any():
        inverse[differ] = _inverse_envelope(slack[differ], _ordered_counts(overlap, differ))
    product = overlap.inside * inverse * (1 - 16 * EPS)
    product = np.where(product < TINY, 0.0, product)
    result[reachable] = np.where((slack > 0) & (inverse >= 0), product, -1.0)
    return result


def _inverse_envelope(slack: FloatArray, counts: Counts) -> FloatArray:
    """K⁻¹(slack) rounded down, where the two rates differ and slack > 0; −1 where even K(0) is too large."""
    y = quantile(np.minimum(slack, 1.0), counts.trials, counts.other_success, counts.other_failure)
    single = counts.failure == 0  # ψ = 0 or 1: only one count is possible at x
    y = np.where(single, counts.trials, y)
    mass, other_mass = counts.below(y)
    logarithm, log_error = counts.log_ratio(y)
    with np.errstate(over="ignore", invalid="ignore"):
        inverse_ratio = np.exp(-logarithm)
        gap = slack - other_mass
        line = mass + gap * inverse_ratio
        relative = counts.sum_error()
        error = relative * mass + inverse_ratio * (
            relative * other_mass + 4 * EPS + exponential_error(log_error) * np.abs(gap)
        )
        value = line - error
    value = np.where(np.isnan(value), -1.0, value)
    # K(0) = 0 unless only one count is possible at x, so unanimous votes always suffice where there is slack.
    return np.where(single, np.where(value > 0, value, -1.0), np.maximum(value, 0.0))


# The paper's bound.


def _knapsack(
    mass: FloatArray, mass_error: FloatArray, overlap: Overlap, from_kept: BoolArray, direction: int
) -> tuple[FloatArray, FloatArray]:
    """The mass at x' of the first subsequences with total ``mass`` at x, in whole subsequences, and its error.

    Sizes are ordered from the fewest kept tokens where ``from_kept`` is True, else from the fewest deleted tokens.
    ``direction`` is −1 to round the number of the last size down and +1 to round it up.

    The last size is searched at a mass that is worse by more than the error of the mass and of one sum. So it is the
    true size, or the adjacent size on the worse side. A mass that is worse by the errors of two more sums then fits
    into the true mass of that size (direction −1) or covers what the true mass takes of it (direction +1).
    """
    counts = _counts(overlap, from_kept)
    trials, success, failure = counts[:3]
    relative = counts.sum_error()
    step = direction * (2 * mass_error + relative * mass)
    size = quantile(np.clip(mass + step, 0.0, 1.0), trials, success, failure)
    smaller, other_smaller = counts.below(size)
    logarithm, log_error = counts.log_ratio(size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        item, item_error = _item(size, trials, success, failure)
        remaining = np.maximum(mass + 3 * step - smaller, 0.0)
        number = np.where(remaining > 0, (remaining - direction * WHOLE * mass) / item, 0.0)
        number = number * (1 + direction * item_error)
        whole = item * (np.floor(number) if direction < 0 else np.ceil(number))
        whole = np.where(number < UNROUNDED, whole, remaining)
        filled = np.minimum(whole, remaining) if direction < 0 else np.maximum(whole, remaining)
        filled = np.where(filled > 0, np.exp(logarithm) * filled, 0.0)
        error = relative * other_smaller + (item_error + exponential_error(log_error)) * filled
    value = np.where(np.isnan(other_smaller + filled), 0.0 if direction < 0 else 1.0, other_smaller + filled)
    return value, np.where(np.isnan(error), 1.0, error)


def _item(
    size: FloatArray, trials: FloatArray, success: FloatArray, failure: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The probability of one subsequence of the given size, and a bound on its relative error."""
    successes = np.where(size == 0, 0.0, size * np.log(success))
    failures = np.where(size == trials, 0.0, (trials - size) * np.log(failure))
    size_of_logs = np.abs(successes) + np.abs(failures)
    error = 4 * EPS * (1 + np.where(np.isinf(size_of_logs), 0.0, size_of_logs))
    return np.exp(successes + failures), exponential_error(error)


def _printed(overlap: Overlap) -> BoolArray:
    """Where the paper's lemmas hold: at ψ = 0 or 1 they divide by 0, and their upper bound would be wrong."""
    return (overlap.psi > 0) & (overlap.psi < 1) | (overlap.psi == overlap.other_psi)


def paper_lower(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's lower bound (its Lemma on the pairwise lower bound), rounded down."""
    inside = overlap.inside
    mass = inside - (1 - p)
    # The power has an error of 4 EPS · c. 1 − p is exact from p = 1/2 on; below, a positive mass has c above 1/2.
    filled, error = _knapsack(
        np.clip(mass, 0.0, 1.0), 6 * EPS * inside, overlap, overlap.psi >= overlap.other_psi, direction=-1
    )
    full = (mass >= 1) & _printed(overlap)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / inside * (filled - error) * (1 - 16 * EPS)
    return np.where((mass > 0) & (inside >= TINY) & (value >= TINY), np.minimum(value, 1.0), 0.0)


def paper_upper(p: FloatArray, overlap: Overlap) -> FloatArray:
    """The paper's upper bound (its Lemma on the pairwise upper bound), rounded up."""
    p = at_least_tiny(p)
    filled, error = _knapsack(p, np.zeros(p.shape), overlap, overlap.psi <= overlap.other_psi, direction=+1)
    full = (p >= 1) & _printed(overlap)
    filled, error = np.where(full, 1.0, filled), np.where(full, 4 * EPS, error)
    filled, error = np.where(p > 0, filled, 0.0), np.where(p > 0, error, 0.0)  # a mass of 0 fills nothing
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = overlap.other_inside / overlap.inside * (filled + error) * (1 + 16 * EPS)
        value = value + (1 - overlap.other_inside) + 4 * EPS
    return np.where(overlap.inside >= TINY, np.clip(value, 0.0, 1.0), 1.0)


# Any bound, by its name.

LowerBound = Callable[[FloatArray, Overlap], FloatArray]


def _check_bound(function: object) -> None:
    if not callable(function):
        raise ValueError(f"a registered bound must be a function of probabilities and an Overlap, got {function!r}")


OWN_BOUNDS = ("tight", "paper")  # of this package
BOUNDS: Registry[LowerBound] = Registry("bound", _check_bound, dict.fromkeys(OWN_BOUNDS, __name__))
BOUNDS.add("tight")(tight_lower)
BOUNDS.add("paper")(paper_lower)


def register_bound(name: str) -> Callable[[LowerBound], LowerBound]:
    """A decorator that makes a bound of your own available under a name: ``bound="my_bound"``.

    The function gets lower bounds on the probability of a class at an input, an array of shape (neighbours,), and the
    `Overlap` of the input with each neighbour. It returns lower bounds on the probability of the class at the
    neighbours, rounded down. Upper bounds follow from it for all other classes together. You have to prove it: adaptdel
    cannot check it, and reports and `adaptdel verify` say so.

    >>> @register_bound("doubled_loss")
    ... def doubled_loss(p, overlap):
    ...     return np.maximum(overlap.other_inside - 2 * (1 - p) / overlap.inside, 0)
    >>> from adaptdel import Deletion, FixedRate, certified_radius
    >>> noise = Deletion(FixedRate(0.9))
    >>> [certified_radius(0.97, length=9, noise=noise, bound=name) for name in ("tight", "doubled_loss")]
    [6, 4]
    """
    return BOUNDS.add(name)


def check_bound(name: Any) -> str:
    """The name of a bound that is registered; plug-ins are imported if need be."""
    BOUNDS.get(name)
    return str(name)


def describe_bound(name: str) -> str:
    """The name of a bound; whether it is one that adaptdel does not vouch for."""
    return name if name in OWN_BOUNDS else f"{name} (registered bound, not verified by adaptdel)"


def lower(p: FloatArray, overlap: Overlap, bound: str = "tight") -> FloatArray:
    """The lower bound of the given name, for arrays of one shape."""
    if bound == "tight":
        return tight_lower(p, overlap)
    if bound == "paper":
        return np.where(_printed(overlap), paper_lower(p, overlap), tight_lower(p, overlap))
    return np.clip(BOUNDS.get(bound)(p, overlap), 0.0, 1.0)


def upper(p: FloatArray, overlap: Overlap, bound: str = "tight") -> FloatArray:
    """The upper bound of the given name, for arrays of one shape."""
    if bound in OWN_BOUNDS:
        tight = np.minimum(1 - _other_classes(p, overlap) + EPS, 1.0)
        return tight if bound == "tight" else np.where(_printed(overlap), paper_upper(p, overlap), tight)
    others = np.where(p > 0, np.maximum(np.nextafter(1 - p, -1.0), 0.0), 1.0)
    return np.minimum(1 - lower(others, overlap, bound) + EPS, 1.0)


def pairwise_bounds(
    p: npt.ArrayLike, *, length: int, other_length: int, common: int, rate: Rate, bound: str = "tight"
) -> tuple[Any, Any]:
    """Bound the probability of a class at a neighbour.

    Args:
        p: the probability of the class at the input (a number or an array of any shape).
        length: the input's number of tokens n.
        other_length: the neighbour's number of tokens n'.
        common: the length N of a common subsequence; the longest one gives the best bounds.
        rate: the deletion rate as a function of the length.
        bound: "tight", or "paper" for the two lemmas of the AdaptDel paper as printed.

    Returns:
        The lower and the upper bound, rounded outwards, each of the shape of p.

    >>> from adaptdel import FixedRate
    >>> low, high = pairwise_bounds(0.9, length=9, other_length=10, common=9, rate=FixedRate(0.75))
    >>> round(low, 6), round(high, 6)
    (0.675, 0.925)
    """
    probability = check_probabilities("p", p)
    length = check_int("length", length, most=LARGEST_LENGTH)
    other_length = check_int("other_length", other_length, most=LARGEST_LENGTH)
    common = check_int("common", common, most=min(length, other_length))
    check_bound(bound)
    flat = np.atleast_1d(probability).ravel()
    shape = flat.shape
    overlap = Deletion(rate).overlap(length, np.full(shape, other_length), np.full(shape, common))
    low, high = lower(flat, overlap, bound), upper(flat, overlap, bound)
    if probability.ndim == 0:
        return float(low[0]), float(high[0])
    return low.reshape(probability.shape), high.reshape(probability.shape)
