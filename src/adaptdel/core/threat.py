"""The threat model: which edits the attacker may make, and which and how many neighbours they reach.

If rates depend on the length only, a neighbour matters only through its length n' and the length N of a common
subsequence. ``d`` deletions, ``i`` insertions and ``s`` substitutions give n' = n + i − d and N = n − d − s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, log, log10
from typing import ClassVar

import numpy as np
import scipy  # its parts are imported when they are first used

from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_int, spend

OPERATIONS = ("del", "ins", "sub")
EVERY_SET = tuple(ops for size in (1, 2, 3) for ops in combinations(OPERATIONS, size))
BLOCK = 2**16  # the largest number of neighbours that are processed together, which bounds the memory
SEARCH_LIMIT = 2**16  # of radii, see Threat.search_limit
ROBERTA_VOCABULARY = 50265
_VERBS = {"del": "deletes", "ins": "inserts", "sub": "substitutes"}
_DEPTH = 64  # terms of a sum of numbers of sequences that are added together


@dataclass(frozen=True, init=False, repr=False)
class Threat:
    """An attacker who may use the operations ``ops``: "edit" for all three, or some of "del", "ins", "sub".

    Attributes:
        ops: what counts as an edit.
        padding: whether any text may be added before and after the input, besides the edits. Where tokens are words, it
            may be glued to the first and the last one.
        long_insertions: whether an insertion of any length counts as one edit. Where tokens are words, it may stand in
            the middle of one, which is then lost.

    >>> Threat("edit")
    Threat(ops=('del', 'ins', 'sub'))
    >>> Threat(["sub", "ins"]) == Threat("ins,sub"), Threat("sub", padding=True)
    (True, Threat(ops=('sub',), padding=True))
    """

    lost_by_an_edit: ClassVar[int] = 1  # tokens of the longest common subsequence, at most

    ops: tuple[str, ...]
    padding: bool = False
    long_insertions: bool = False

    def __init__(
        self, ops: str | Iterable[str] = "edit", *, padding: bool = False, long_insertions: bool = False
    ) -> None:
        accepted = '"edit" or some of "del", "ins", "sub"'
        try:
            names = {name.strip() for name in ops.split(",")} if isinstance(ops, str) else set(ops)
        except TypeError:
            raise ValueError(f"ops must be {accepted}, got {ops!r}") from None
        names = set(OPERATIONS) if names == {"edit"} else names
        if wrong := [repr(name) for name in names if name not in OPERATIONS] or ([] if names else ["none"]):
            raise ValueError(f"ops must be {accepted}, got {wrong[0]}")
        object.__setattr__(self, "ops", tuple(name for name in OPERATIONS if name in names))
        object.__setattr__(self, "padding", padding)
        object.__setattr__(self, "long_insertions", long_insertions)

    def __repr__(self) -> str:
        flags = [f", {name}=True" for name in ("padding", "long_insertions") if getattr(self, name)]
        return f"{type(self).__name__}(ops={self.ops}{''.join(flags)})"

    def __str__(self) -> str:
        ops = "edit" if self.ops == OPERATIONS else ",".join(self.ops)
        return ops + ",padding" * self.padding + ",long" * self.long_insertions

    @classmethod
    def parse(cls, text: str) -> Threat:
        """The threat of a command line: ``str`` of it; without operations, all three.

        >>> Threat.parse("sub,padding"), str(Threat.parse("padding,long"))
        (Threat(ops=('sub',), padding=True), 'edit,padding,long')
        """
        names = {name.strip() for name in text.split(",")}
        ops, flags = names - {"padding", "long"}, ("padding" in names, "long" in names)
        if ops - {"edit", *OPERATIONS}:
            raise ValueError(
                f"--threat must be edit or some of del,ins,sub, with or without padding,long, got {text!r:.60}"
            )
        return cls(ops or "edit", padding=flags[0], long_insertions=flags[1])

    @property
    def is_bounded(self) -> bool:
        """Whether the attacker adds a bounded number of tokens: one for each edit."""
        return not self.padding and not (self.long_insertions and self.inserts)

    @property
    def bounded(self) -> Threat:
        """The same operations without padding, where every insertion is of one token."""
        return self if self.is_bounded else Threat(self.ops)

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

    @property
    def verbs(self) -> str:
        """What the attacker does.

        >>> Threat("edit").verbs
        'deletes, inserts or substitutes'
        """
        long = {"ins": "inserts (text of any length counts as one)"} if self.long_insertions else {}
        *first, last = ((_VERBS | long)[op] for op in self.ops)
        verbs = f"{', '.join(first)} or {last}" if first else last
        return f"adds any text before and after, and {verbs}" if self.padding else verbs

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
        return max(SEARCH_LIMIT, 4 * length) if self.inserts else length  # beyond which there is no new neighbour

    def cost(self, length: int, other_length: IntArray, common: IntArray) -> FloatArray:
        """The least number of edits that lead to n' tokens with ``common`` tokens in common; infinite if impossible."""
        lost = np.asarray(length - common, dtype=np.float64)
        gained = np.asarray(other_length - common, dtype=np.float64)
        # A loss and a gain make one substitution; what is left over has to be deleted or inserted.
        substituted = np.minimum(lost, gained) if self.substitutes else 0
        possible = (common >= 0) & (lost >= 0) & (gained >= 0)
        if not self.deletes:
            possible &= lost == substituted
        if not self.inserts:
            possible &= gained == substituted
        return np.where(possible, lost + gained - substituted, np.inf)

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
        depth = min(self.lost_by_an_edit * radius, length) + 1
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


def as_threat(ops: str | Iterable[str] | Threat, certified: tuple[str, ...] = OPERATIONS) -> Threat:
    """The threat of a list of operations, or a threat itself; "edit" means all operations that can be certified."""
    if isinstance(ops, Threat):
        return replace(ops, ops=certified) if ops.ops == OPERATIONS != certified else ops
    return Threat(certified if isinstance(ops, str) and ops == "edit" else ops)


@dataclass(frozen=True, init=False)
class CharacterThreat(Threat):
    """An attacker who edits characters of a text whose tokens are the words between white space.

    An edited character substitutes a word, or splits one (a substitution and an insertion), or merges two (a
    substitution and a deletion); a word of one character it can also insert or delete. So r of them make at most r
    substitutions, and at most r insertions and deletions together. All neighbours of that kind are covered.

    >>> CHARACTERS.least_common(10, np.array([9, 10, 11]), 1)
    array([8, 9, 9])
    """

    lost_by_an_edit: ClassVar[int] = 2  # a merger takes two words

    def cost(self, length: int, other_length: IntArray, common: IntArray) -> FloatArray:
        """The least number of character edits that can lead to n' words with ``common`` words in common."""
        lost, gained = length - common, other_length - common
        cost = np.maximum(np.abs(lost - gained), -(-(lost + gained) // 3))
        return np.where((common >= 0) & (lost >= 0) & (gained >= 0), cost, np.inf)

    def least_common(self, length: int, other_length: IntArray, radius: int) -> IntArray:
        """The smallest N after ``radius`` character edits at each reachable n'."""
        return np.maximum(-((3 * radius - length - other_length) // 2), 0)


CHARACTERS = CharacterThreat()


def log10_cardinality(
    radius: int, *, length: int, ops: str | Iterable[str] = "edit", vocab_size: int = ROBERTA_VOCABULARY
) -> float:
    """log10 of the number of sequences within ``radius`` allowed edits of any input of the given length.

    The number is exact for substitutions only and for insertions only. Otherwise it depends on the input, and the
    result is a lower bound for all inputs: the size of the ball around a sequence that repeats one token. At every
    length L that the attacker can reach, this ball contains the sequences with at most m(L) other tokens, which are
    Σ C(L, i) (V−1)^i over i <= m(L). No other ball is smaller:

    * n' >= n with insertions (and substitutions): the number of sequences that contain a given subsequence does not
      depend on that subsequence;
    * n' < n: every ball contains the sequences near a prefix of the input that is short enough.

    Args:
        radius: the number of edits; −1 (abstained) means an empty region.
        length: the number of tokens of the input.
        ops: the operations of the attacker.
        vocab_size: the number V of different tokens.

    >>> round(log10_cardinality(1, length=2, ops=["sub"], vocab_size=10), 6)  # itself and 2 * 9 others
    1.278754
    """
    radius = check_int("radius", radius, least=-1, most=LARGEST_LENGTH)
    length = check_int("length", length, most=LARGEST_LENGTH)
    vocab_size = check_int("vocab_size", vocab_size, least=1, most=LARGEST_LENGTH)
    return _log10_cardinality(radius, length, Threat(ops), vocab_size)


# A function of integers and of the frozen threat alone, so a cached value is the one that would be computed.
@lru_cache(maxsize=2**14)
def _log10_cardinality(radius: int, length: int, threat: Threat, vocab_size: int) -> float:
    if radius < 0:
        return -inf
    budget = radius if threat.inserts else min(radius, length)
    first, last = threat.reach(length, budget)
    if vocab_size == 1 or threat == Threat("del"):
        return log10(last - first + 1)  # one sequence of each length
    total = -inf
    stop = last + 1
    while stop > first:  # from the longest sequences downwards: their number decreases
        start = max(first, stop - BLOCK // _DEPTH)
        size = np.arange(start, stop, dtype=np.int64)
        shift = size - length  # and the largest number of tokens other than the repeated one:
        if threat.substitutes:
            foreign = np.where(shift >= 0, budget, budget + shift)
        elif threat.deletes and threat.inserts:
            foreign = (budget + shift) // 2
        else:
            foreign = np.maximum(shift, 0)
        rows = _log_sequences(size, np.minimum(foreign, size), vocab_size)
        total = float(np.logaddexp(total, scipy.special.logsumexp(rows)))
        if rows[0] + log(max(start - first, 1)) < total - 50:
            break
        stop = start
    return total / log(10)


def _log_sequences(size: IntArray, foreign: IntArray, vocab_size: int) -> FloatArray:
    """Log Σ C(size, i) (V−1)^i over i <= foreign: V^size times a binomial sum.

    Where the sum is too small for a double, terms are added from the last one downwards until the remaining ones are
    negligible.
    """
    n, m = size.astype(np.float64), foreign.astype(np.float64)
    everything = foreign >= size
    share = scipy.special.betainc(np.where(everything, 1.0, n - m), m + 1, 1 / vocab_size)
    share = np.where(everything, 1.0, share)
    small = share < 1e-200
    total = n * log(vocab_size) + np.log(np.where(small, 1.0, share))
    total[small] = -inf
    upper, active = foreign.copy(), small
    while active.any():
        terms = upper[active, None].astype(np.float64) - np.arange(_DEPTH)
        rows = n[active, None]
        counts = np.maximum(terms, 0)
        logs = -np.log1p(rows) - scipy.special.betaln(counts + 1, rows - counts + 1) + counts * log(vocab_size - 1)
        logs = np.where(terms >= 0, logs, -inf)
        total[active] = np.logaddexp(total[active], scipy.special.logsumexp(logs, axis=1))
        upper[active] -= _DEPTH
        # This far from the largest term they decrease at least geometrically.
        ratio = counts[:, -1] / ((rows[:, 0] - counts[:, -1] + 1) * (vocab_size - 1))
        left = logs[:, -1] - np.log1p(-np.minimum(ratio, 0.999999))
        ended = np.flatnonzero(active)[(left < total[active] - 40) | (upper[active] < 0)]
        active[ended] = False
    return total
