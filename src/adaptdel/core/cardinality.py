"""The number of sequences in a certified region."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf, log, log10

import numpy as np
from scipy import special

from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_int
from adaptdel.core.threat import BLOCK, Threat

ROBERTA_VOCABULARY = 50265
_DEPTH = 64  # terms of a sum that are added together


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
