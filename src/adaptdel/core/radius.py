"""The certified radius: the largest number of edits that cannot change the smoothed classifier's prediction; frontiers.

For two classes and the tight bound, the certificate at a given length, noise and threat is one decreasing table: the
largest probability q of the other class with which radius r is certified. A radius is looked up in it. In all other
cases (many classes, the paper's bound) the bounds are compared at every neighbour that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf, log
from typing import overload

import numpy as np
import numpy.typing as npt

from adaptdel.core.bounds import attainable, capped_rival, check_bound, lower, tolerance, upper
from adaptdel.core.checks import (
    LARGEST_LENGTH,
    BoolArray,
    FloatArray,
    IntArray,
    check_int,
    check_ints,
    check_probabilities,
    check_probability,
)
from adaptdel.core.noise import Neighbours, Noise, Overlap
from adaptdel.core.threat import BLOCK, Threat, as_threat

Test = Callable[..., BoolArray]  # of the columns of neighbours
FILL = 8  # queries at one length from which on filling the whole table is faster
MOST_CELLS = 2**24  # of a frontier
SMALL = 16  # up to this radius, a table is filled at the first query: its neighbours are few enough to go together
FILLED = 512  # the largest table that is filled: the cost grows with the square
LEAST_MAJORITY = float(np.nextafter(0.5, 1))


def largest(holds: Callable[[int], bool], low: int, high: int, guess: int | None = None) -> int:
    """The largest r in [low, high] with ``holds(r)``, if it holds at ``low`` and fails from some r on.

    The search gallops away from the guess, so its cost depends on the error of the guess and not on the range.
    """
    if low >= high:
        return low
    at, step = min(max(low + 1 if guess is None else guess, low + 1), high), 1
    if holds(at):
        low = at
        while low < high:
            at = min(low + step, high)
            if not holds(at):
                high = at - 1
                break
            low, step = at, step * 2
    else:
        high = at - 1
        while low < high:
            at = max(high - step + 1, low + 1)
            if holds(at):
                low = at
                break
            high, step = at - 1, step * 2
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


class ToleranceTable:
    """The largest probability q of the other classes with which each radius is certified, at one length.

    Values are computed on demand. ``level`` is the probability that the class has to exceed at every neighbour: 1/2, or
    a decision threshold.
    """

    def __init__(self, length: int, noise: Noise, threat: Threat, level: float) -> None:
        self.length, self.noise, self.threat, self.level = length, noise, threat, level
        self._known: dict[int, float] = {}
        self._filled: FloatArray | None = None
        self.limit = threat.search_limit(length)
        guess = 1  # about how many edits leave the level attainable
        if (nearest := next(self._overlaps(1), None)) is not None:
            share = min(float(nearest.inside.min()), float(nearest.other_inside.min()))
            guess = min(int(log(max(level, 1e-9)) / log(share)), self.limit) if 0 < share < 1 else 1

        def is_attainable(radius: int) -> bool:
            return all(bool(attainable(level, overlap).all()) for overlap in self._overlaps(radius))

        self.reach = largest(is_attainable, 0, self.limit, guess)

    def _ball(self, radius: int) -> Iterator[Neighbours]:
        return self.noise.ball(self.length, radius, self.threat, shortest_only=self.noise.shortest_is_worst)

    def _overlaps(self, radius: int) -> Iterator[Overlap]:
        return (self.noise.overlap(self.length, *pairs) for pairs in self._ball(radius))

    def tolerance(self, radius: int) -> float:
        """The largest q with which ``radius`` >= 1 is certified; −1 if there is none."""
        if radius not in self._known:
            tolerances = (float(tolerance(self.level, overlap).min()) for overlap in self._overlaps(radius))
            self._known[radius] = min(tolerances, default=-1.0) if radius <= self.reach else -1.0
        return self._known[radius]

    def radius(self, q: float) -> int:
        """The largest radius that is certified with q, if radius 0 is."""
        if self._filled is not None or self.reach <= SMALL:
            return int(np.searchsorted(-self.filled(), -q, side="right"))
        return largest(lambda radius: self.tolerance(radius) >= q, 0, self.reach, guess=self.reach)

    def radii(self, q: FloatArray) -> IntArray:
        """The largest radius that is certified with each q, if radius 0 is; shape as q."""
        if self._filled is None and self.reach > SMALL and (len(q) < FILL or self.reach > FILLED):
            distinct, where = np.unique(q, return_inverse=True)
            return np.array([self.radius(float(value)) for value in distinct], dtype=np.int64)[where]
        return np.searchsorted(-self.filled(), -q, side="right").astype(np.int64)

    def filled(self) -> FloatArray:
        """The tolerances of radii 1 to ``reach``, which decrease."""
        if self._filled is None:
            table = np.full(self.reach, inf)
            parts: list[tuple[IntArray, IntArray, IntArray]] = []  # (radius, n', N) that wait for a block
            for radius in range(1, self.reach + 1):
                for other, common in self._ball(radius):
                    new = self.threat.cost(self.length, other, common) == radius  # that no smaller radius reaches
                    parts.append((np.full(int(new.sum()), radius), other[new], common[new]))
                if radius == self.reach or sum(len(part[0]) for part in parts) >= BLOCK:
                    radii, other, common = (np.concatenate(column) for column in zip(*parts, strict=True))
                    overlap = self.noise.overlap(self.length, other, common)
                    np.minimum.at(table, radii - 1, tolerance(self.level, overlap))
                    parts = []
            self._filled = np.minimum.accumulate(table)
        return self._filled


cached_table = lru_cache(maxsize=8192)(ToleranceTable)


def table(length: int, noise: Noise, threat: Threat, level: float = 0.5) -> ToleranceTable:
    """The table for a length, noise, threat and level, from the cache if the noise cannot change."""
    if not noise.cacheable:
        return ToleranceTable(length, noise, threat, level)
    return cached_table(length, noise, threat, level)


def uses_table(noise: Noise, bound: str) -> bool:
    """Whether the radius for two classes is looked up in a `ToleranceTable`."""
    return bound == "tight" and not noise.has_own_ball()


def to_probability(q: float) -> float:
    """The least double p with 1 − p <= q; infinite if q is negative."""
    if q < 0:
        return inf
    p = 1.0 - q
    return p if 1.0 - p <= q else float(np.nextafter(p, 2.0))


def check_noise(noise: object, threat: Threat) -> Noise:
    """Return the noise if robustness against the threat can be certified under it."""
    if not isinstance(noise, Noise):
        raise ValueError(f"noise must be Deletion(rate), Masking(fraction) or NoNoise(), got {noise!r}")
    if not noise.certifies:
        raise ValueError(f"noise must have a rate for every length to certify, got {noise!r}, which is for training")
    if not set(threat.ops) <= set(noise.certified_ops):
        raise ValueError(
            f"ops must be {list(noise.certified_ops)} under {type(noise).__name__}, which certifies "
            f"{'substitutions only' if noise.certified_ops == ('sub',) else 'nothing else'}, got {list(threat.ops)}"
        )
    return noise


def neighbour_test(p1: float, p2: float, noise: Noise, length: int, bound: str, threshold: float | None) -> Test:
    """A test of neighbours: whether the prediction provably stays the same.

    A class of probability p1 stays ahead of one of probability p2; with a threshold, class 1 of probability p1 stays on
    its side of it.
    """

    def holds(*neighbours: IntArray) -> BoolArray:
        overlap = noise.overlap(length, *neighbours)
        p, q = np.full(overlap.common.shape, p1), np.full(overlap.common.shape, p2)
        if threshold is None:
            return lower(p, overlap, bound) > upper(q, overlap, bound)
        if p1 > threshold:
            return lower(p, overlap, bound) > threshold
        return upper(p, overlap, bound) <= threshold

    return holds


def _compared_radius(
    p1: float, p2: float | None, length: int, noise: Noise, threat: Threat, bound: str, threshold: float | None
) -> int:
    """The radius of one input by comparing bounds at neighbours, where a single look-up is not enough."""
    limit = noise.radius_limit(length, threat)
    rival = capped_rival(p1, p2)
    if threshold is None and p1 <= rival:
        return -1
    test = neighbour_test(p1, rival, noise, length, bound, threshold)
    shortest_only = bound == "tight" and noise.shortest_is_worst

    def holds(radius: int) -> bool:
        return all(
            bool(test(*block).all()) for block in noise.ball(length, radius, threat, shortest_only=shortest_only)
        )

    if bound != "tight" and not holds(0):
        return -1
    if noise.has_own_ball():  # which may grow fast: one step at a time
        return next((radius for radius in range(limit) if not holds(radius + 1)), limit)
    if bound != "tight":
        return largest(holds, 0, limit)
    # Many classes. K is concave: two classes with q = (1 − p1 + p2) / 2 are never better, two with q = p2 never worse.
    limits = table(length, noise, threat)
    low = limits.radius(float(np.nextafter((1 - p1 + rival) / 2, 1)))
    return largest(holds, low, max(low, limits.radius(rival)))


@overload
def certified_radius(
    p1: float,
    p2: float | None = ...,
    *,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] | Threat = ...,
    bound: str = ...,
    threshold: float | None = ...,
) -> int: ...
@overload
def certified_radius(
    p1: npt.ArrayLike,
    p2: npt.ArrayLike | None = ...,
    *,
    length: npt.ArrayLike,
    noise: Noise,
    ops: str | Iterable[str] | Threat = ...,
    bound: str = ...,
    threshold: float | None = ...,
) -> int | IntArray: ...
def certified_radius(
    p1: npt.ArrayLike,
    p2: npt.ArrayLike | None = None,
    *,
    length: npt.ArrayLike,
    noise: Noise,
    ops: str | Iterable[str] | Threat = "edit",
    bound: str = "tight",
    threshold: float | None = None,
) -> int | IntArray:
    """The largest number of edits that cannot change the smoothed classifier's prediction.

    Args:
        p1: (a lower bound on) the probability of the predicted class. Arrays of p1, p2 and length are broadcast and
            certified together, which is much faster than one call for each.
        p2: (an upper bound on) the probability of every other class; 1 − p1 by default.
        length: the number of tokens of the input.
        noise: `Deletion`, `Masking` (substitutions only), `NoNoise` or a noise of your own.
        ops: the operations of the attacker: "edit", or some of "del", "ins", "sub"; or a threat.
        bound: "tight", or "paper" to reproduce published figures.
        threshold: for two classes, a decision threshold η: class 1 is predicted iff its probability exceeds η. p1 is
            then the probability of class 1, whichever class is predicted: a lower bound if it is above η, else an upper
            bound.

    Returns:
        The radius, an int or an array of the broadcast shape; −1 if not even the prediction for the unedited input is
        certain. The search ends at `Threat.search_limit`, max(65536, 4 · length) with insertions, which only
        degenerate settings such as ψ = 1 or η = 1 reach. Without insertions the radius is at most the length.

    >>> from adaptdel import Deletion, FixedRate
    >>> certified_radius(0.99, length=100, noise=Deletion(FixedRate(0.9)), ops=["ins"])
    6
    >>> certified_radius([0.99, 0.9, 0.4], length=[100, 50, 50], noise=Deletion(FixedRate(0.9)), ops=["del"])
    array([37, 15, -1])
    """
    threat = as_threat(ops)
    if not threat.is_bounded:
        raise ValueError(f"ops must bound the number of tokens that are added, got {threat}: no number of votes does")
    check_noise(noise, threat)
    check_bound(bound)
    if threshold is not None:
        threshold = check_probability("threshold", threshold)
        if p2 is not None:
            raise ValueError("p2 must be left out when a threshold is given, which is for two classes")
    first = check_probabilities("p1", p1)
    second = None if p2 is None else check_probabilities("p2", p2)
    sizes = check_ints("length", length)
    bound = noise.used_bound(bound)
    try:
        shape = np.broadcast_shapes(first.shape, sizes.shape, () if second is None else second.shape)
    except ValueError:
        raise ValueError(
            f"p1, p2 and length must have shapes that go together, got {first.shape}, "
            f"{None if second is None else second.shape} and {sizes.shape}"
        ) from None
    flat_p1 = np.broadcast_to(first, shape).ravel()
    flat_p2 = None if second is None else np.broadcast_to(second, shape).ravel()
    flat_sizes = np.broadcast_to(sizes, shape).ravel()
    if threshold == 1:  # class 1 is never predicted, whatever the attacker does
        radii = np.array([noise.radius_limit(int(size), threat) for size in flat_sizes], dtype=np.int64)
    elif uses_table(noise, bound) and flat_p2 is None:
        radii = _look_up(flat_p1, flat_sizes, noise, threat, threshold)
    else:
        rival = np.full(flat_p1.shape, -1.0) if flat_p2 is None else flat_p2
        columns = np.stack([flat_p1, rival, flat_sizes.astype(np.float64)], axis=1)
        rows, where = np.unique(columns, axis=0, return_inverse=True)  # each distinct input once
        distinct = [
            _compared_radius(float(a), None if p2 is None else float(b), int(n), noise, threat, bound, threshold)
            for a, b, n in rows
        ]
        radii = np.array(distinct, dtype=np.int64)[where.ravel()]
    return int(radii[0]) if shape == () else radii.reshape(shape)


def _look_up(p1: FloatArray, sizes: IntArray, noise: Noise, threat: Threat, threshold: float | None) -> IntArray:
    """Two classes and the tight bound: one table for each length."""
    level = 0.5 if threshold is None else threshold
    above = p1 > level
    radii = np.where(above, 0, -1) if threshold is None else np.zeros(p1.shape, dtype=np.int64)
    sides = [(above, level, 1 - p1)]
    if threshold is not None:
        sides.append((~above, 1 - level, p1))
    for side, side_level, q in sides:
        order = np.flatnonzero(side)
        order = order[np.argsort(sizes[order], kind="stable")]
        values, starts = np.unique(sizes[order], return_index=True)
        for value, group in zip(values, np.split(order, starts[1:]), strict=False):
            radii[group] = table(int(value), noise, threat, side_level).radii(q[group])
    return radii


def certified_top_k(
    p: float,
    others: Sequence[float],
    *,
    k: int,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
) -> int:
    """The largest number of edits that cannot push a class out of the k most probable ones.

    ``p`` is (a lower bound on) the probability of the class, ``others`` are (upper bounds on) those of all other ones.
    The radius is −1 if the class is not certain to be among the first k for the unedited input. See `certified_radius`
    for the other arguments.

    >>> from adaptdel import Deletion, FixedRate
    >>> noise = Deletion(FixedRate(0.9))
    >>> [certified_top_k(0.5, [0.3, 0.2], k=k, length=50, noise=noise) for k in (1, 2)]
    [0, 1]
    """
    rivals = np.sort(np.atleast_1d(check_probabilities("others", others)))[::-1]
    k = check_int("k", k, least=1, most=max(1, len(rivals)))
    if not len(rivals):
        raise ValueError("others must hold the probability of at least one other class, got none")
    first = check_probability("p", p)
    length = check_int("length", length, most=LARGEST_LENGTH)
    rival = capped_rival(first, float(rivals[k - 1]), k)
    return certified_radius(first, rival, length=length, noise=noise, ops=ops, bound=bound)


def least_probability(radius: int, *, length: int, noise: Noise, ops: str | Iterable[str] = "edit") -> float:
    """The least probability p*(r) of the predicted class, of two, that certifies a radius; infinite if none does.

    >>> from adaptdel import Deletion, FixedRate
    >>> noise = Deletion(FixedRate(0.9))
    >>> round(least_probability(6, length=100, noise=noise, ops=["ins"]), 6)
    0.940838
    >>> least_probability(7, length=100, noise=noise, ops=["ins"])
    inf
    """
    radius = check_int("radius", radius)
    length = check_int("length", length, most=LARGEST_LENGTH)
    threat = Threat(ops)
    check_noise(noise, threat)
    radius = radius if threat.inserts else min(radius, length)
    if not radius:
        return LEAST_MAJORITY
    if noise.has_own_ball():
        return max((to_probability(q) for q in _own_tolerances(length, noise, threat, 0.5, radius)), default=inf)
    return to_probability(table(length, noise, threat).tolerance(radius))


def largest_radius_probability(length: int, noise: Noise, threat: Threat, threshold: float | None = None) -> float:
    """The least probability of the predicted class that certifies the largest possible radius."""
    check_noise(noise, threat)
    level = 0.5 if threshold is None else threshold
    if noise.has_own_ball():
        reached = [
            q for q in _own_tolerances(length, noise, threat, level, noise.radius_limit(length, threat)) if q >= 0
        ]
        return max((to_probability(q) for q in reached), default=LEAST_MAJORITY)
    limits = table(length, noise, threat, level)
    reach = limits.radius(0.0)
    return to_probability(limits.tolerance(reach)) if reach else LEAST_MAJORITY


def _own_tolerances(length: int, noise: Noise, threat: Threat, level: float, most: int) -> Iterator[float]:
    """The tolerances of radii from 1 to ``most`` under a noise with a ball of its own, up to the first that is −1."""
    for radius in range(1, most + 1):
        overlaps = (noise.overlap(length, *block) for block in noise.ball(length, radius, threat))
        yield (least := min((float(tolerance(level, overlap).min(initial=inf)) for overlap in overlaps), default=inf))
        if least < 0:
            return


def certified_frontier(
    p1: float,
    p2: float | None = None,
    *,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
    threshold: float | None = None,
) -> list[tuple[int, int, int]]:
    """The maximal triples (deletions, insertions, substitutions) that are certified together.

    No attacker who makes at most that many edits of each kind can change the prediction. The radius is the largest r
    for which every triple of the allowed operations with sum r lies under the frontier.

    The arguments are those of `certified_radius`, with a threshold below 1. The triples are in increasing order; there
    is none if not even the prediction for the unedited input is certain.

    >>> from adaptdel import Deletion, FixedRate
    >>> certified_frontier(0.85, length=4, noise=Deletion(FixedRate(0.75)), ops=["del", "ins"])
    [(2, 1, 0), (4, 0, 0)]
    """
    threat = Threat(ops)
    check_noise(noise, threat)
    check_bound(bound)
    p1 = check_probability("p1", p1)
    p2 = None if p2 is None else check_probability("p2", p2)
    length = check_int("length", length, most=LARGEST_LENGTH)
    if threshold == 1:
        raise ValueError("threshold must be below 1 for a frontier: at 1 no edit changes the answer")
    if noise.has_own_ball():
        raise ValueError(f"the frontier is not known under {type(noise).__name__}, which has a ball of its own")
    bound = noise.used_bound(bound)

    def most(op: str) -> int:
        if op not in threat.ops:
            return 0
        return certified_radius(p1, p2, length=length, noise=noise, ops=[op], bound=bound, threshold=threshold)

    dels, inss, subs = most("del"), most("ins"), most("sub")
    if min(dels, inss, subs) < 0:
        return []
    if (dels + 1) * (inss + 1) > MOST_CELLS:
        raise ValueError(
            f"the frontier of {dels} deletions by {inss} insertions at length {length} has over {MOST_CELLS} cells, "
            "which is too many: leave out one of the two operations"
        )
    test = neighbour_test(p1, capped_rival(p1, p2), noise, length, bound, threshold)
    if p2 is None and bound == "tight":  # the same without a rival's bound, in closed form
        is_below = threshold is not None and p1 <= threshold
        level = 0.5 if threshold is None else 1 - threshold if is_below else threshold
        q = p1 if is_below else 1 - p1

        def test(*pairs: IntArray) -> BoolArray:
            return tolerance(level, noise.overlap(length, *pairs)) >= q

    other = np.arange(length - dels, length + inss + 1, dtype=np.int64)
    floor = max(0, length - dels - subs)
    least = _least_certified(test, length, other, floor, monotone=bound == "tight" and noise.shortest_is_worst)
    d, i = np.meshgrid(np.arange(dels + 1), np.arange(inss + 1), indexing="ij")
    # The most substitutions beside d deletions and i insertions.
    most_subs = np.minimum(length - d - least[i - d + dels], subs)
    most_subs = np.minimum.accumulate(np.minimum.accumulate(np.maximum(most_subs, -1), axis=0), axis=1)
    beyond = np.pad(most_subs, ((0, 1), (0, 1)), constant_values=-1)
    maximal = (most_subs >= 0) & (most_subs > beyond[1:, :-1]) & (most_subs > beyond[:-1, 1:])
    return [(int(a), int(b), int(most_subs[a, b])) for a, b in zip(*np.nonzero(maximal), strict=True)]


def _least_certified(test: Test, length: int, other: IntArray, floor: int, *, monotone: bool) -> IntArray:
    """For every n', the least N >= floor from which on all longer common subsequences are certified as well."""
    top = np.minimum(other, length)
    identity = (other == length).astype(np.int64)  # the unedited input itself is not tested
    if monotone:
        low, high = np.full(other.shape, floor), top + 1 - identity  # certified from `high` on
        while (low < high).any():
            middle = (low + high) // 2
            undecided = low < high
            holds = np.zeros(other.shape, dtype=np.bool_)
            holds[undecided] = test(other[undecided], middle[undecided])
            high = np.where(undecided & holds, middle, high)
            low = np.where(undecided & ~holds, middle + 1, low)
        return high
    least = top + 1 - identity
    active = np.ones(other.shape, dtype=np.bool_)
    while True:
        active &= least > floor
        if not active.any():
            return least
        active[active] = test(other[active], least[active] - 1)
        least = least - active
