"""The same decisions in ball arithmetic: every number carries a proven bound on its error.

Nothing here is shared with the double-precision bounds but the rates, the threat and the formula: sums are added up
term by term. The precision is raised until a comparison is decided; one that never is (an exact tie) counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adaptdel.core.bounds import BOUNDS, lower, upper
from adaptdel.core.checks import LARGEST_LENGTH, check_alpha, check_choice, check_int, check_probability
from adaptdel.core.noise import Deletion, Masking, Noise
from adaptdel.core.paper_bounds import WHOLE
from adaptdel.core.radius import certified_radius, check_noise
from adaptdel.core.radius_table import largest, most_edits
from adaptdel.core.rates import DENOMINATOR
from adaptdel.core.threat import Threat
from adaptdel.core.work_limit import spend

PAIR, TERM = 40, 4  # steps of `adaptdel.core.work_limit` for a neighbour, and for a term of a sum
TERMS = 256  # of a sum that are counted together
PRECISIONS = (64, 128, 256, 512, 1024, 2048)
Ball = Any  # flint.arb, which comes without types


def _flint() -> Any:
    try:
        import flint
    except ImportError:
        raise ImportError("ball arithmetic needs python-flint: pip install 'adaptdel[rigorous]'") from None
    return flint


class _Unresolved(Exception):
    """A rounding to a whole number is not decided at this precision."""


def _decide(margin: Callable[[bool], Ball]) -> bool:
    """Whether a margin is surely positive; ``margin`` is told when the precision is the last."""
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
    """Count the terms of a walk that are surely needed, up to 40 standard deviations below the mean; how many."""
    mean = trials * float(success)
    terms = max(int(mean - 40 * mean**0.5), 0)
    spend(terms * TERM)
    return terms + TERMS


class _Pair:
    """An input and one neighbour, in balls of the current precision."""

    def __init__(self, noise: Noise, length: int, other_length: int, common: int) -> None:
        arb = _flint().arb
        self.common = common
        if isinstance(noise, Masking):
            inside = arb(1)
            masks = noise.masks(length)
            spend(length - common)
            for step in range(length - common):
                inside = inside * (masks - step) / (length - step)
            self.inside = self.other_inside = inside
            self.keep = self.other_keep = arb(0)
            self.drop = self.other_drop = arb(1)
            return
        if not isinstance(noise, Deletion):
            raise ValueError(f"noise must be Deletion(rate), Masking(fraction) or NoNoise(), got {noise!r}")
        t, other_t = noise.rate.threshold(length), noise.rate.threshold(other_length)
        self.drop, self.keep = arb(t) / DENOMINATOR, arb(DENOMINATOR - t) / DENOMINATOR
        self.other_drop, self.other_keep = arb(other_t) / DENOMINATOR, arb(DENOMINATOR - other_t) / DENOMINATOR
        self.inside = self.drop ** (length - common)
        self.other_inside = self.other_drop ** (other_length - common)

    def _walk(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """The least count h with P(count <= h) >= target, and P(count < h) at x and at x', from the nearer end."""
        success, failure = (self.keep, self.drop) if kept else (self.drop, self.keep)
        other_success = self.other_keep if kept else self.other_drop
        down = success > failure and failure > 0 and other_success > 0
        return self._walk_down(target, kept, last) if down else self._walk_up(target, kept, last)

    def _walk_up(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """What `_walk` finds, term by term from the smallest count on."""
        arb = _flint().arb
        success, failure = (self.keep, self.drop) if kept else (self.drop, self.keep)
        other_success, other_failure = (
            (self.other_keep, self.other_drop) if kept else (self.other_drop, self.other_keep)
        )
        n = self.common
        here, there = arb(0), arb(0)
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
            if h == n or here + term >= target:
                return h, here, there
            if not here + term < target:
                if not last:
                    raise _Unresolved
                return h, here, there  # any count gives a valid bound
            here, there = here + term, there + other_term
            if by_step:
                term = term * (n - h) / (h + 1) * success / failure
                other_term = other_term * (n - h) / (h + 1) * other_success / other_failure
        raise AssertionError("the last count ends the walk")

    def _walk_down(self, target: Ball, kept: bool, last: bool) -> tuple[int, Ball, Ball]:
        """What `_walk` finds, term by term from the largest count on: the shorter way where most counts are large."""
        arb = _flint().arb
        success, failure = (self.keep, self.drop) if kept else (self.drop, self.keep)
        other_success, other_failure = (
            (self.other_keep, self.other_drop) if kept else (self.other_drop, self.other_keep)
        )
        n = self.common
        term, other_term = success**n, other_success**n
        here, there = 1 - term, 1 - other_term
        counted = _count_terms(n, failure)
        for h in range(n, 0, -1):  # here and there are P(count < h)
            if here < target:
                return h, here, there
            if not here >= target and not last:
                raise _Unresolved
            if n - h >= counted:
                counted += TERMS
                spend(TERMS * TERM)
            term = term * h / (n - h + 1) * failure / success
            other_term = other_term * h / (n - h + 1) * other_failure / other_success
            here, there = here - term, there - other_term
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
        kept = self.keep <= self.drop  # walk from the end with the fewer counts
        success, other = (self.keep, self.other_keep) if kept else (self.drop, self.other_drop)
        if success > other:  # small counts are worth most: they go first
            h, here, there = self._walk(u, kept, last)
            if h == 0:
                return self._ratio(0, kept) * u
        else:  # large counts go first: P(count > h) = 1 − P(count <= h)
            h, here, there = self._walk(1 - u, kept, last)
            item, other_item = self._terms(h, kept)
            here, there = 1 - here - item, 1 - there - other_item
        return there + self._ratio(h, kept) * (u - here)

    def _terms(self, h: int, kept: bool) -> tuple[Ball, Ball]:
        arb = _flint().arb
        n = self.common
        ways = arb.bin_uiui(n, h)
        a, b = (self.keep, self.drop) if kept else (self.drop, self.keep)
        c, d = (self.other_keep, self.other_drop) if kept else (self.other_drop, self.other_keep)
        return ways * a**h * b ** (n - h), ways * c**h * d ** (n - h)

    def _rest(self, p: Ball, last: bool) -> Ball:
        """C' · (1 − K(p / c))."""
        if self.inside.is_zero():
            return self.inside
        return self.other_inside * (1 - self._envelope(p / self.inside, last))

    def lower(self, p: Ball, bound: str, last: bool) -> Ball:
        """The lower bound on the probability at x' of a class of probability p at x."""
        if bound == "tight" or not self._printed():
            return self._rest(1 - p, last)
        mass = self.inside - (1 - p)
        if mass <= 0:
            return mass * 0
        if not mass > 0 and not last:
            raise _Unresolved
        return self.other_inside / self.inside * self._knapsack(mass, self.keep <= self.other_keep, -1, last)

    def upper(self, p: Ball, bound: str, last: bool) -> Ball:
        """The upper bound on the probability at x' of a class of probability p at x."""
        if bound == "tight" or not self._printed():
            return 1 - self._rest(p, last)
        if self.inside.is_zero():
            return _flint().arb(1)
        filled = self._knapsack(p, self.keep >= self.other_keep, +1, last)
        return self.other_inside / self.inside * filled + 1 - self.other_inside

    def _printed(self) -> bool:
        """Whether the paper's lemmas hold: at ψ = 0 or 1 they divide by 0, and their upper bound would be wrong."""
        return bool((self.keep > 0 and self.drop > 0) or (self.keep - self.other_keep).is_zero())

    def _knapsack(self, mass: Ball, kept: bool, direction: int, last: bool) -> Ball:
        """The knapsack of `paper_bounds`: whole subsequences, the last size rounded down (−1) or up (+1)."""
        if mass >= 1 and self.drop > 0 and self.keep > 0:
            return _flint().arb(1)
        h, here, there = self._walk(mass, kept, last)
        a, b = (self.keep, self.drop) if kept else (self.drop, self.keep)
        item = a**h * b ** (self.common - h)
        rest = mass - here
        if rest <= 0:
            return there
        number = (rest - direction * WHOLE * mass) / item
        low, high = number.lower(), number.upper()
        low, high = (low.floor(), high.floor()) if direction < 0 else (low.ceil(), high.ceil())
        if not last and not (low == high):
            raise _Unresolved
        fraction = rest * self._ratio(h, kept)
        c, d = (self.other_keep, self.other_drop) if kept else (self.other_drop, self.other_keep)
        other_item = c**h * d ** (self.common - h)
        if direction < 0:
            return there + (low * other_item).min(fraction)
        return there + (high * other_item).max(fraction)


def rigorous_radius(
    p1: float,
    p2: float | None = None,
    *,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
    threshold: float | None = None,
) -> int:
    """`adaptdel.certified_radius`, decided in ball arithmetic. It takes the same arguments, one input at a time.

    The double-precision radius never exceeds this one, and equals it away from ties.

    >>> from adaptdel import Deletion, FixedRate
    >>> rigorous_radius(0.99, length=100, noise=Deletion(FixedRate(0.9)), ops=["ins"])
    6
    """
    _flint()
    threat = Threat(ops)
    check_noise(noise, threat)
    check_choice("bound", bound, BOUNDS)
    p1 = check_probability("p1", p1)
    length = check_int("length", length, most=LARGEST_LENGTH)
    bound = "tight" if noise.masks_tokens else bound
    limit = most_edits(threat, length)
    hint = certified_radius(p1, p2, length=length, noise=noise, ops=ops, bound=bound, threshold=threshold)
    p2 = None if p2 is None else check_probability("p2", p2)
    threshold = None if threshold is None else check_probability("threshold", threshold)
    if threshold == 1:
        return limit  # class 1 is never answered, whatever the attacker does

    def certified(other: int, common: int) -> bool:
        return _decide(lambda last: _margin(_Pair(noise, length, other, common), p1, p2, bound, threshold, last))

    def holds(radius: int) -> bool:
        ball = threat.whole_ball if bound == "paper" else threat.ball
        first, most = threat.reach(length, radius)
        spend(PAIR * (most - first + 1) * (min(radius, length) + 1 if bound == "paper" else 1))
        for others, commons in ball(length, radius):
            overlap = noise.overlap(length, others, commons)
            p = np.full(others.shape, p1)
            slack = upper(1 - p, overlap, bound) - lower(p, overlap, bound)
            worst_first = np.argsort(-slack, kind="stable")
            if not all(certified(int(others[j]), int(commons[j])) for j in worst_first):
                return False
        return True

    if bound == "paper":
        settled = certified(length, length)
    elif threshold is not None:
        settled = True  # on one side of the threshold or the other
    else:
        settled = p1 > (1 - p1 if p2 is None else min(p2, 1 - p1))
    if not settled:
        return -1
    hint = min(max(hint, 0), limit)
    return largest(holds, hint, limit) if hint == 0 or holds(hint) else largest(holds, 0, hint - 1)


def _margin(pair: _Pair, p1: float, p2: float | None, bound: str, threshold: float | None, last: bool) -> Ball:
    """What has to be positive for the neighbour to be certified."""
    arb = _flint().arb
    first = arb(p1)
    if threshold is not None:
        if p1 > threshold:
            return pair.lower(first, bound, last) - arb(threshold)
        return arb(threshold) - pair.upper(first, bound, last)
    if p2 is None and bound == "tight":
        return pair.lower(first, bound, last) - arb(1) / 2
    rival = 1 - first if p2 is None else (1 - first).min(arb(p2))
    return pair.lower(first, bound, last) - pair.upper(rival, bound, last)


def rigorous_lower_confidence(probability: float, successes: int, trials: int, alpha: float) -> bool:
    """Whether ``probability`` is proven to be a valid lower Clopper-Pearson bound at level alpha.

    That is, whether a class of exactly that probability gets ``successes`` or more of ``trials`` votes with probability
    at most alpha.

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
        few = trials - successes < successes  # add up the shorter tail
        counts = range(trials, successes - 1, -1) if few else range(successes)
        term = p**trials if few else q**trials
        total = arb(0)
        spend(len(counts) * TERM)
        for count in counts:
            total += term
            term = term * count / (trials - count + 1) * q / p if few else term * (trials - count) / (count + 1) * p / q
        return arb(alpha) - (total if few else 1 - total)

    return _decide(margin)
