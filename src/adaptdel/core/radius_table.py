"""What each radius tolerates, for two classes under the tight bound, and the search for the largest radius."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf, log
from typing import Any

import numpy as np

from adaptdel.core.bounds import attainable, tolerance
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.noise import Noise
from adaptdel.core.threat import BLOCK, Threat

FILL = 8  # queries at one length from which on it pays to fill the whole table
FILLED = 512  # the largest table that is filled: its cost grows with the square


def most_edits(threat: Threat, length: int) -> int:
    """How far a radius is looked for: with insertions it is infinite for some degenerate rates, such as ψ = 1."""
    cap = threat.largest(length)
    return max(2**16, 4 * length) if cap is None else cap


def largest(holds: Callable[[int], bool], low: int, high: int, guess: int | None = None) -> int:
    """The largest r in [low, high] with ``holds(r)``, given that it holds at ``low`` and, once it fails, fails on.

    It gallops away from the guess, so that the cost depends on how far off that is and not on the limits.
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
    """How much probability q of the other classes each radius tolerates, at one length: filled as it is asked.

    ``level`` is what the class has to exceed at every neighbour: 1/2, or a decision threshold.
    """

    def __init__(self, length: int, noise: Noise, threat: Threat, level: float) -> None:
        self.length, self.noise, self.threat, self.level = length, noise, threat, level
        self._known: dict[int, float] = {}
        self._filled: FloatArray | None = None
        self.limit = most_edits(threat, length)
        self.reach = largest(self._attainable, 0, self.limit, self._guess())

    def _guess(self) -> int:
        """About how many substitutions leave the level attainable."""
        if not self.length:
            return 1
        one = self.noise.overlap(self.length, np.array([self.length]), np.array([self.length - 1])).inside[0]
        return min(int(log(max(self.level, 1e-9)) / log(one)), self.limit) if 0 < one < 1 else 1

    def _attainable(self, radius: int) -> bool:
        return all(
            bool(attainable(self.level, self.noise.overlap(self.length, *pair)).all())
            for pair in self.threat.ball(self.length, radius)
        )

    def tolerance(self, radius: int) -> float:
        """The largest q with which ``radius`` is certified, for 1 <= radius; −1 if there is none."""
        if radius not in self._known:
            blocks = self.threat.ball(self.length, radius)
            found = (tolerance(self.level, self.noise.overlap(self.length, *pair)).min() for pair in blocks)
            self._known[radius] = min((float(q) for q in found), default=-1.0) if radius <= self.reach else -1.0
        return self._known[radius]

    def radius(self, q: float) -> int:
        """The largest radius that tolerates q, given that radius 0 does."""
        if self._filled is not None:
            return int(self.radii(np.array([q]))[0])
        return largest(lambda radius: self.tolerance(radius) >= q, 0, self.reach, guess=self.reach)

    def radii(self, q: FloatArray) -> IntArray:
        """The largest radius that tolerates each q, given that radius 0 does."""
        if self._filled is None and (len(q) < FILL or self.reach > FILLED):
            distinct, where = np.unique(q, return_inverse=True)
            return np.array([self.radius(float(one)) for one in distinct], dtype=np.int64)[where]
        return np.searchsorted(-self.filled(), -q, side="right").astype(np.int64)

    def filled(self) -> FloatArray:
        """The tolerances of radii 1 to the reach, falling."""
        if self._filled is None:
            table = np.full(self.reach, inf)
            for radii, other, common in self._shells():
                np.minimum.at(table, radii - 1, tolerance(self.level, self.noise.overlap(self.length, other, common)))
            self._filled = np.minimum.accumulate(table)
        return self._filled

    def _shells(self) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Blocks of (radius, n', N): what each radius adds to the one before."""
        parts: list[tuple[IntArray, IntArray, IntArray]] = []
        size = 0
        for radius in range(1, self.reach + 1):
            for other, common in self.threat.ball(self.length, radius):
                new = self.threat.cost(self.length, other, common) == radius
                parts.append((np.full(int(new.sum()), radius), other[new], common[new]))
                size += len(parts[-1][0])
            if size >= BLOCK or radius == self.reach:
                yield tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[misc]
                parts, size = [], 0


_cached_table = lru_cache(maxsize=8192)(ToleranceTable)


def table(length: int, noise: Noise, threat: Threat, level: float = 0.5) -> ToleranceTable:
    """The table for a length, noise, threat and level, from the cache if the noise cannot change."""
    if not is_frozen(noise):
        return ToleranceTable(length, noise, threat, level)
    return _cached_table(length, noise, threat, level)


def is_frozen(noise: Noise) -> bool:
    """Whether neither the noise nor its rate can change, or fail to be hashed."""
    parts: list[Any] = [noise, getattr(noise, "rate", noise)]
    frozen = all(getattr(getattr(part, "__dataclass_params__", None), "frozen", False) for part in parts)
    try:
        return frozen and isinstance(hash(noise), int)
    except TypeError:
        return False


def to_probability(q: float) -> float:
    """The least double p with 1 − p <= q; infinite if q is negative."""
    if q < 0:
        return inf
    p = 1.0 - q
    return p if 1.0 - p <= q else float(np.nextafter(p, 2.0))
