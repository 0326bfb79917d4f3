"""The certificate in ball arithmetic, where every number carries a proven bound on its error.

Only the rates, the threat model and the formulas are shared with the double-precision bounds: sums are added up term by
term. The precision is raised until a comparison is decided. A comparison that is never decided (an exact tie) counts as
failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adaptdel.core.bounds import OWN_BOUNDS, WHOLE, capped_rival, check_bound, describe_bound, lower, upper
from adaptdel.core.checks import LARGEST_LENGTH, check_alpha, check_int, check_probability, spend
from adaptdel.core.noise import Noise
from adaptdel.core.radius import certified_radius, check_noise, largest
from adaptdel.core.threat import Threat, as_threat

PAIR, TERM = 40, 4  # steps of the work limit for a neighbour, and for a term of a sum
TERMS = 256  # terms of a sum that are counted together
PRECISIONS = (64, 128, 256, 512, 1024, 2048)
Ball = Any  # flint.arb, which comes without types


def _flint() -> Any:
    try:
        import flint
    except ImportError:
        raise ImportError("ball arithmetic needs python-flint: pip install 'adaptdel[rigorous]'") from None
    return flint


class _Unresolved(Exception):
    """A rounding to an integer is not decided at this precision."""


def _decide(margin: Callable[[bool], Ball]) -> bool:
    """Whether a margin is provably positive. The argument of ``margin`` is whether the precision is the last one."""
    flint = _flint()
    for precision in PRECISIONS:
        with flint.ctx.workprec(precision):
            try:
                value = margin(precision == PRECISIONS[-1])
            except _Unresolved:
                continue
            if value > 0:
                return True
            if value <= 0:
                return False
    return False


def _count_terms(trials: int, success: Ball) -> int:
    """Count the terms that a walk certainly needs, up to 40 standard deviations below the mean; return their number."""
    mean = trials * float(success)
    terms = max(int(mean - 40 * mean**0.5), 0)
    spend(terms * TERM)
    return terms + TERMS


class _Pair:
    """An input and one neighbour, in balls of the current precision."""

    def __init__(self, noise: Noise, length: int, *neighbour: int) -> None:
        arb = _flint().arb
        overlap = noise.exact_overlap(arb, length, *neighbour)
        self.common = neighbour[1]
        self.inside, self.other_inside = overlap.inside, overlap.other_inside
        self.drop, self.other_drop = arb(overlap.psi), arb(overlap.other_psi)
        self.keep, self.other_keep = 1 - self.drop, 1 - self.other_drop  # exact: rates are multiples of 2**-32

    def _chances(self, kept: bool) -> tuple[Ball, Ball, Ball, Ball]:
        """The probabilities that a token counts and that it does not, at x and at x'; kept or deleted tokens count."""
        chances = self.keep, self.drop, self.other_keep, self.other_drop
        return chances if kept else (chances[1], chances[0], chances[3], chances[2])

    def _walk(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """The least count h with P(count <= h) >= target, and P(count < h) at x and at x', from the nearer end."""
        success, failure, other_success, _ = self._chances(kept)
        down = success > failure and failure > 0 and other_success > 0
        return self._walk_down(target, kept, last) if down else self._walk_up(target, kept, last)

    def _walk_up(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """`_walk` from the smallest count upwards."""
        arb = _flint().arb
        success, failure, other_success, other_failure = self._chances(kept)
        n = self.common
        total, other_total = arb(0), arb(0)
        term, other_term = failure**n, other_failure**n
        by_step = failure > 0 and other_failure > 0
        counted = _count_terms(n, success)
        for h in range(n + 1):
            if h >= counted:
                counted += TERMS
                spend(TERMS * TERM)
            if not by_step:
                ways = arb.bin_uiui(n, h)
                term = ways * success**h * failure ** (n - h)
                other_term = ways * other_success**h * other_failure ** (n - h)
            if h == n or total + term >= target:
                return h, total, other_total
            if not total + term < target:
                if not last:
                    raise _Unresolved
                return h, total, other_total  # any count gives a valid bound
            total, other_total = total + term, other_total + other_term
            if by_step:
                term = term * (n - h) / (h + 1) * success / failure
                other_term = other_term * (n - h) / (h + 1) * other_success / other_failure
        raise AssertionError("the last count ends the walk")

    def _walk_down(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """`_walk` from the largest count downwards, which is shorter where most counts are large."""
        arb = _flint().arb
        success, failure, other_success, other_failure = self._chances(kept)
        n = self.common
        term, other_term = success**n, other_success**n
        total, other_total = 1 - term, 1 - other_term
        counted = _count_terms(n, failure)
        for h in range(n, 0, -1):  # the totals are P(count < h)
            if total < target:
                return h, total, other_total
            if not total >= target and not last:
                raise _Unresolved
            if n - h >= counted:
                counted += TERMS
                spend(TERMS * TERM)
            term = term * h / (n - h + 1) * failure / success
            other_term = other_term * h / (n - h + 1) * other_failure / other_success
            total, other_total = total - term, other_total - other_term
        return 0, arb(0), arb(0)

    def _ratio(self, h: int, kept: bool) -> Ball:
        """f'(h) / f(h) for a count of kept (or of deleted) tokens."""
        a, b = (self.other_keep / self.keep, self.other_drop / self.drop)
        a, b = (a, b) if kept else (b, a)
        return (a**h if h else 1) * (b ** (self.common - h) if h < self.common else 1)

    def _envelope(self, u: Ball, last: bool) -> Ball:
        """K(u), the largest mass at x' of a set of mass u at x, both inside the common subsequence."""
        arb = _flint().arb
        if u >= 1:
            return arb(1)
        if (self.keep - self.other_keep).is_zero() or (u.is_zero() and self.keep > 0 and self.drop > 0):
            return u
        kept = self.keep <= self.drop  # walk from the end with fewer counts
        success, other = (self.keep, self.other_keep) if kept else (self.drop, self.other_drop)
        if success > other:  # the likelihood ratio is largest at small counts: they come first
            h, mass, other_mass = self._walk(u, kept, last)
            if h == 0:
                return self._ratio(0, kept) * u
        else:  # large counts come first: P(count > h) = 1 − P(count <= h)
            h, mass, other_mass = self._walk(1 - u, kept, last)
            n, ways = self.common, arb.bin_uiui(self.common, h)
            a, b, c, d = self._chances(kept)
            mass = 1 - mass - ways * a**h * b ** (n - h)
            other_mass = 1 - other_mass - ways * c**h * d ** (n - h)
        return other_mass + self._ratio(h, kept) * (u - mass)

    def other_classes(self, p: Ball, last: bool) -> Ball:
        """The least mass c' · (1 − K(p / c)) at x' of all classes but one of probability p at x."""
        if self.inside.is_zero():
            return self.inside
        return self.other_inside * (1 - self._envelope(p / self.inside, last))

    def lower(self, p: Ball, bound: str, last: bool) -> Ball:
        """The lower bound on the probability at x' of a class of probability p at x."""
        if bound == "tight" or not self._printed():
            return self.other_classes(1 - p, last)
        mass = self.inside - (1 - p)
        if mass <= 0:
            return mass * 0
        if not mass > 0 and not last:
            raise _Unresolved
        return self.other_inside / self.inside * self._knapsack(mass, self.keep <= self.other_keep, -1, last)

    def upper(self, p: Ball, bound: str, last: bool) -> Ball:
        """The upper bound on the probability at x' of a class of probability p at x."""
        if bound == "tight" or not self._printed():
            return 1 - self.other_classes(p, last)
        if self.inside.is_zero():
            return _flint().arb(1)
        filled = self._knapsack(p, self.keep >= self.other_keep, +1, last)
        return self.other_inside / self.inside * filled + 1 - self.other_inside

    def _printed(self) -> bool:
        """Whether the paper's lemmas hold: at ψ = 0 or 1 they divide by 0, and their upper bound would be wrong."""
        return bool((self.keep > 0 and self.drop > 0) or (self.keep - self.other_keep).is_zero())

    def _knapsack(self, mass: Ball, kept: bool, direction: int, last: bool) -> Ball:
        """The knapsack of the paper's bound: the number of subsequences of the last size is rounded down (−1) or up."""
        if mass >= 1 and self.drop > 0 and self.keep > 0:
            return _flint().arb(1)
        h, smaller, other_smaller = self._walk(mass, kept, last)
        a, b, c, d = self._chances(kept)
        item = a**h * b ** (self.common - h)
        remaining = mass - smaller
        if remaining <= 0:
            return other_smaller
        number = (remaining - direction * WHOLE * mass) / item
        low, high = number.lower(), number.upper()
        low, high = (low.floor(), high.floor()) if direction < 0 else (low.ceil(), high.ceil())
        if not last and not (low == high):
            raise _Unresolved
        fraction = remaining * self._ratio(h, kept)
        other_item = c**h * d ** (self.common - h)
        if direction < 0:
            return other_smaller + (low * other_item).min(fraction)
        return other_smaller + (high * other_item).max(fraction)


def rigorous_radius(
    p1: float,
    p2: float | None = None,
    *,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] | Threat = "edit",
    bound: str = "tight",
    threshold: float | None = None,
) -> int:
    """`adaptdel.certified_radius` in ball arithmetic, with the same arguments, for one input.

    The double-precision radius never exceeds this one, and equals it except at ties. A noise of your own needs
    `exact_overlap`.

    >>> from adaptdel import Deletion, FixedRate
    >>> rigorous_radius(0.99, length=100, noise=Deletion(FixedRate(0.9)), ops=["ins"])
    6
    """
    _flint()
    threat = as_threat(ops)
    check_noise(noise, threat)
    if check_bound(bound) not in OWN_BOUNDS:
        raise ValueError(f"bound must be tight or paper in ball arithmetic, got {describe_bound(bound)}")
    p1 = check_probability("p1", p1)
    length = check_int("length", length, most=LARGEST_LENGTH)
    bound = noise.used_bound(bound)
    limit = noise.radius_limit(length, threat)
    hint = certified_radius(p1, p2, length=length, noise=noise, ops=ops, bound=bound, threshold=threshold)
    p2 = None if p2 is None else check_probability("p2", p2)
    threshold = None if threshold is None else check_probability("threshold", threshold)
    if threshold == 1:
        return limit  # class 1 is never predicted, whatever the attacker does

    def certified(*neighbour: int) -> bool:
        return _decide(lambda last: _margin(_Pair(noise, length, *neighbour), p1, p2, bound, threshold, last))

    shortest_only = bound == "tight" and noise.shortest_is_worst

    def holds(radius: int) -> bool:
        for neighbours in noise.ball(length, radius, threat, shortest_only=shortest_only):
            spend(PAIR * len(neighbours[0]))
            overlap = noise.overlap(length, *neighbours)
            p = np.full(overlap.common.shape, p1)
            slack = upper(1 - p, overlap, bound) - lower(p, overlap, bound)
            worst_first = np.argsort(-slack, kind="stable")
            if not all(certified(*(int(column[j]) for column in neighbours)) for j in worst_first):
                return False
        return True

    is_ahead = threshold is not None or p1 > capped_rival(p1, p2)
    if not (holds(0) if bound == "paper" else is_ahead):
        return -1
    hint = min(max(hint, 0), limit)
    return largest(holds, hint, limit) if hint == 0 or holds(hint) else largest(holds, 0, hint - 1)


def _margin(pair: _Pair, p1: float, p2: float | None, bound: str, threshold: float | None, last: bool) -> Ball:
    """The difference that has to be positive for the neighbour to be certified."""
    arb = _flint().arb
    first = arb(p1)
    if threshold is not None:
        if p1 > threshold:
            return pair.lower(first, bound, last) - arb(threshold)
        return arb(threshold) - pair.upper(first, bound, last)
    if p2 is None and bound == "tight":
        return pair.lower(first, bound, last) - arb(1) / 2
    return pair.lower(first, bound, last) - pair.upper(arb(capped_rival(p1, p2)), bound, last)


def rigorous_lower_confidence(probability: float, successes: int, trials: int, alpha: float) -> bool:
    """Whether ``probability`` is proven to be a valid lower Clopper-Pearson bound at level alpha.

    It is, if a class of exactly that probability gets ``successes`` or more of ``trials`` votes with probability at
    most alpha.

    >>> rigorous_lower_confidence(0.98, 3960, 4000, 0.05), rigorous_lower_confidence(0.99, 3960, 4000, 0.05)
    (True, False)
    """
    arb = _flint().arb
    alpha = check_alpha(alpha)
    trials = check_int("trials", trials)
    successes = check_int("successes", successes, most=trials)
    probability = check_probability("probability", probability)
    if probability == 0 or successes == 0:
        return probability == 0

    def margin(last: bool) -> Ball:
        p = arb(probability)
        q = 1 - p
        upper_tail = trials - successes < successes  # the shorter one is added up
        counts = range(trials, successes - 1, -1) if upper_tail else range(successes)
        term = p**trials if upper_tail else q**trials
        total = arb(0)
        spend(len(counts) * TERM)
        for count in counts:
            total += term
            term = (
                term * count / (trials - count + 1) * q / p
                if upper_tail
                else term * (trials - count) / (count + 1) * p / q
            )
        return arb(alpha) - (total if upper_tail else 1 - total)

    return _decide(margin)
