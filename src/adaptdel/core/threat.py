"""The threat model: which edits the attacker may make, and which neighbours a number of edits reaches.

If rates depend on the length only, a neighbour matters only through its length n' and the length N of a common
subsequence. ``d`` deletions, ``i`` insertions and ``s`` substitutions give n' = n + i − d and N = n − d − s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from adaptdel.core.checks import FloatArray, IntArray, spend

OPERATIONS = ("del", "ins", "sub")
EVERY_SET = tuple(ops for size in (1, 2, 3) for ops in combinations(OPERATIONS, size))
BLOCK = 2**16  # the largest number of neighbours that are processed together, which bounds the memory
SEARCH_LIMIT = 2**16  # of radii, see Threat.search_limit


@dataclass(frozen=True, init=False)
class Threat:
    """An attacker who may use the operations ``ops``: "edit" for all three, or some of "del", "ins", "sub".

    >>> Threat("edit")
    Threat(ops=('del', 'ins', 'sub'))
    >>> Threat(["sub", "ins"]) == Threat("ins,sub")
    True
    """

    ops: tuple[str, ...]

    def __init__(self, ops: str | Iterable[str] = "edit") -> None:
        names = _names(ops)
        object.__setattr__(self, "ops", tuple(name for name in OPERATIONS if name in names))

    @property
    def deletes(self) -> bool:
        """Whether deletions are allowed."""
        return "del" in self.ops

    @property
    def inserts(self) -> bool:
        """Whether insertions are allowed."""
        return "ins" in self.ops

    @property
    def substitutes(self) -> bool:
        """Whether substitutions are allowed."""
        return "sub" in self.ops

    def largest(self, length: int) -> int | None:
        """The number of edits beyond which no new neighbour is reached; None if insertions are allowed."""
        return None if self.inserts else length

    def covering_radius(self, length: int) -> int | None:
        """The least number of edits that reach every text of the same length; None if no number does.

        A certificate with this radius holds for every text of its length, whatever it says. The empty text is the only
        one of its length: there, every text of one token has to be reached too.

        >>> Threat("edit").covering_radius(7), Threat("del,ins").covering_radius(7), Threat("del").covering_radius(7)
        (7, 14, None)
        """
        if self.substitutes:
            return max(1, length)
        return max(1, 2 * length) if self.deletes and self.inserts else None

    def search_limit(self, length: int) -> int:
        """The largest radius that is searched for: max(65536, 4 · length), or the length without insertions.

        With insertions the true radius is infinite at some degenerate rates, such as ψ = 1.
        """
        largest = self.largest(length)
        return max(SEARCH_LIMIT, 4 * length) if largest is None else largest

    def cost(self, length: int, other_length: IntArray, common: IntArray) -> FloatArray:
        """The least number of edits that lead to n' tokens with ``common`` tokens in common; infinite if impossible."""
        lost = np.asarray(length - common, dtype=np.float64)
        gained = np.asarray(other_length - common, dtype=np.float64)
        if not self.substitutes:
            cost = lost + gained
            possible = np.full(cost.shape, True)
            if not self.deletes:
                possible &= lost == 0
            if not self.inserts:
                possible &= gained == 0
        else:  # a loss and a gain make one substitution
            cost = np.maximum(lost, gained)
            possible = np.full(cost.shape, True)
            if not self.deletes:
                possible &= lost <= gained
            if not self.inserts:
                possible &= gained <= lost
        return np.where(possible & (common >= 0) & (lost >= 0) & (gained >= 0), cost, np.inf)

    def least_common(self, length: int, other_length: IntArray, radius: int) -> IntArray:
        """The smallest N after ``radius`` edits at each reachable n'."""
        lost = np.maximum(length - other_length, 0)
        gained = np.maximum(other_length - length, 0)
        spare = radius - lost - gained
        if self.substitutes:
            more = spare
        elif self.deletes and self.inserts:
            more = spare // 2
        else:
            more = np.zeros_like(spare)
        return np.maximum(length - lost - more, 0)

    def most_lost(self, radius: int) -> int:
        """How many tokens ``radius`` edits take out of the longest common subsequence, at most."""
        return radius

    def reach(self, length: int, radius: int) -> tuple[int, int]:
        """The smallest and the largest n' after at most ``radius`` edits."""
        return max(0, length - radius) if self.deletes else length, length + radius if self.inserts else length

    def edits(self, length: int, radius: int) -> tuple[IntArray, IntArray, IntArray]:
        """All numbers of deletions, insertions and substitutions, up to ``radius`` together: for a ball of your own."""
        spend((radius + 1) ** len(self.ops))
        sizes = [np.arange(radius + 1 if op in self.ops else 1, dtype=np.int64) for op in OPERATIONS]
        dels, inss, subs = (part.ravel() for part in np.meshgrid(*sizes, indexing="ij"))
        possible = (dels + inss + subs <= radius) & (dels + subs <= length)
        return dels[possible], inss[possible], subs[possible]

    def ball(self, length: int, radius: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Every n' after 1 to ``radius`` edits, each with the smallest N, in blocks of (n', N).

        Under the tight bound for `Deletion`, a shorter common subsequence is never better for the defender, so these
        pairs represent the whole ball. Balls are nested: what holds for a radius holds for every smaller one.
        """
        first, last = self.reach(length, radius)
        spend(last - first + 1)
        for start in range(first, last + 1, BLOCK):
            other = np.arange(start, min(start + BLOCK, last + 1), dtype=np.int64)
            common = self.least_common(length, other, radius)
            edited = (other != length) | (common != length)
            if edited.any():
                yield other[edited], common[edited]

    def whole_ball(self, length: int, radius: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Every pair (n', N) after 1 to ``radius`` edits, in blocks; for bounds that may not be monotone in N."""
        first, last = self.reach(length, radius)
        depth = min(self.most_lost(radius), length) + 1
        spend((last - first + 1) * depth)
        rows = max(1, BLOCK // depth)
        for start in range(first, last + 1, rows):
            other, common = np.meshgrid(
                np.arange(start, min(start + rows, last + 1), dtype=np.int64),
                np.arange(length - depth + 1, length + 1, dtype=np.int64),
                indexing="ij",
            )
            cost = self.cost(length, other, common)
            reached = (cost >= 1) & (cost <= radius)
            if reached.any():
                yield other[reached], common[reached]


def as_threat(ops: str | Iterable[str] | Threat) -> Threat:
    """The threat of a list of operations; a threat itself stays as it is."""
    return ops if isinstance(ops, Threat) else Threat(ops)


def _names(ops: str | Iterable[str]) -> set[str]:
    accepted = '"edit" or some of "del", "ins", "sub"'
    try:
        names = {name.strip() for name in ops.split(",")} if isinstance(ops, str) else set(ops)
    except TypeError:
        raise ValueError(f"ops must be {accepted}, got {ops!r}") from None
    if names == {"edit"}:
        return set(OPERATIONS)
    for name in names:
        if name not in OPERATIONS:
            raise ValueError(f"ops must be {accepted}, got {name!r}")
    if not names:
        raise ValueError(f"ops must be {accepted}, got none")
    return names


@dataclass(frozen=True, init=False)
class CharacterThreat(Threat):
    """An attacker who edits characters of a text whose tokens are the words between white space.

    An edited character substitutes a word, or splits one (a substitution and an insertion), or merges two (a
    substitution and a deletion); a word of one character it can also insert or delete. So r of them make at most r
    substitutions, and at most r insertions and deletions together. All neighbours of that kind are covered.

    >>> CHARACTERS.least_common(10, np.array([9, 10, 11]), 1)
    array([8, 9, 9])
    """

    def cost(self, length: int, other_length: IntArray, common: IntArray) -> FloatArray:
        """The least number of character edits that can lead to n' words with ``common`` words in common."""
        lost, gained = length - common, other_length - common
        cost = np.maximum(np.abs(lost - gained), -(-(lost + gained) // 3))
        return np.where((common >= 0) & (lost >= 0) & (gained >= 0), cost, np.inf)

    def least_common(self, length: int, other_length: IntArray, radius: int) -> IntArray:
        """The smallest N after ``radius`` character edits at each reachable n'."""
        return np.maximum(-((3 * radius - length - other_length) // 2), 0)

    def most_lost(self, radius: int) -> int:
        """A merger takes two words."""
        return 2 * radius


CHARACTERS = CharacterThreat()
