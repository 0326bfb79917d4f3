"""The certified region: which edits are certified together, and the number of sequences within a radius."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf, log, log10

import numpy as np
from scipy import special

from adaptdel.core.bounds import capped_rival, check_bound, tolerance
from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_int, check_probability
from adaptdel.core.noise import Noise
from adaptdel.core.radius import Test, certified_radius, check_noise, pair_test, threshold_test
from adaptdel.core.threat import BLOCK, Threat

MOST_CELLS = 2**24  # of a frontier
ROBERTA_VOCABULARY = 50265
_DEPTH = 64  # terms of a sum that are added together


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

    Args:
        p1: (a lower bound on) the probability of the predicted class.
        p2: (an upper bound on) the probability of every other class; 1 − p1 by default.
        length: the number of tokens of the input.
        noise: the noise that smooths the classifier.
        ops: the operations of the attacker.
        bound: "tight" or "paper".
        threshold: for two classes, a decision threshold below 1, with p1 as in `certified_radius`.

    Returns:
        The triples in increasing order; an empty list if not even the prediction for the unedited input is certain.

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
    test = _test(p1, p2, noise, length, bound, threshold)
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


def _test(p1: float, p2: float | None, noise: Noise, length: int, bound: str, threshold: float | None) -> Test:
    """A test of neighbours (n', N): whether the prediction provably stays the same."""
    if p2 is None and bound == "tight":
        is_below = threshold is not None and p1 <= threshold
        level = 0.5 if threshold is None else 1 - threshold if is_below else threshold
        q = p1 if is_below else 1 - p1
        return lambda other, common: tolerance(level, noise.overlap(length, other, common)) >= q
    if threshold is not None:
        return threshold_test(p1, threshold, noise, length, bound)
    return pair_test(p1, capped_rival(p1, p2), noise, length, bound)


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
    threat = Threat(ops)
    radius = check_int("radius", radius, least=-1, most=LARGEST_LENGTH)
    length = check_int("length", length, most=LARGEST_LENGTH)
    vocab_size = check_int("vocab_size", vocab_size, least=1, most=LARGEST_LENGTH)
    return _log10_cardinality(radius, length, threat, vocab_size)


# A function of integers and of the frozen threat alone, so a cached value is the one that would be computed.
@lru_cache(maxsize=2**14)
def _log10_cardinality(radius: int, length: int, threat: Threat, vocab_size: int) -> float:
    if radius < 0:
        return -inf
    budget = min(radius, length) if threat.largest(length) is not None else radius
    first, last = threat.reach(length, budget)
    if vocab_size == 1 or threat == Threat("del"):
        return log10(last - first + 1)  # one sequence of each length
    total = -inf
    stop = last + 1
    while stop > first:  # from the longest sequences downwards: their number decreases
        start = max(first, stop - BLOCK // _DEPTH)
        size = np.arange(start, stop, dtype=np.int64)
        rows = _log_sequences(size, np.minimum(_foreign(threat, length, size, budget), size), vocab_size)
        total = float(np.logaddexp(total, special.logsumexp(rows)))
        if rows[0] + log(max(start - first, 1)) < total - 50:
            break
        stop = start
    return total / log(10)


def _foreign(threat: Threat, length: int, size: IntArray, radius: int) -> IntArray:
    """The largest number of tokens other than the repeated one in a sequence of each size in the ball."""
    shift = size - length
    if threat.substitutes:
        return np.where(shift >= 0, radius, radius + shift)
    if threat.deletes and threat.inserts:
        return (radius + shift) // 2
    return np.maximum(shift, 0)


def _log_sequences(size: IntArray, foreign: IntArray, vocab_size: int) -> FloatArray:
    """Log Σ C(size, i) (V−1)^i over i <= foreign: V^size times a binomial sum.

    Where the sum is too small for a double, terms are added from the last one downwards until the remaining ones are
    negligible.
    """
    n, m = size.astype(np.float64), foreign.astype(np.float64)
    everything = foreign >= size
    share = special.betainc(np.where(everything, 1.0, n - m), m + 1, 1 / vocab_size)
    share = np.where(everything, 1.0, share)
    small = share < 1e-200
    total = n * log(vocab_size) + np.log(np.where(small, 1.0, share))
    total[small] = -inf
    upper, active = foreign.copy(), small
    while active.any():
        terms = upper[active, None].astype(np.float64) - np.arange(_DEPTH)
        rows = n[active, None]
        counts = np.maximum(terms, 0)
        logs = -np.log1p(rows) - special.betaln(counts + 1, rows - counts + 1) + counts * log(vocab_size - 1)
        logs = np.where(terms >= 0, logs, -inf)
        total[active] = np.logaddexp(total[active], special.logsumexp(logs, axis=1))
        upper[active] -= _DEPTH
        # This far from the largest term they decrease at least geometrically.
        ratio = counts[:, -1] / ((rows[:, 0] - counts[:, -1] + 1) * (vocab_size - 1))
        left = logs[:, -1] - np.log1p(-np.minimum(ratio, 0.999999))
        ended = np.flatnonzero(active)[(left < total[active] - 40) | (upper[active] < 0)]
        active[ended] = False
    return total
