"""How many sequences a certified region holds."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log

import numpy as np
from scipy import special

from adaptdel.checks import LARGEST_LENGTH, FloatArray, IntArray, check_int
from adaptdel.threat import BLOCK, Threat

ROBERTA_VOCABULARY = 50265
_DEPTH = 64  # terms of a row that are added up together


def log10_cardinality(
    radius: int, *, length: int, ops: str | Iterable[str] = "edit", vocab_size: int = ROBERTA_VOCABULARY
) -> float:
    """log10 of the number of sequences within ``radius`` allowed edits of any input of the given length.

    Exact for substitutions only and for insertions only. Otherwise the number depends on the input, and this is a lower
    bound for all of them: the ball around a word that repeats one token. At every length L that the attacker can reach
    it holds the words with at most m(L) other tokens, Σ C(L, i) (V−1)^i over i <= m(L), and no word's ball holds fewer:

    * n' >= n with insertions (and substitutions): the number of words with a given embedded word does not depend on it;
    * n' < n: the words near a prefix of the input that is short enough.

    Args:
        radius: the number of edits; −1 (abstained) stands for an empty region.
        length: the number of tokens of the input.
        ops: what the attacker may do.
        vocab_size: the number V of different tokens.

    >>> round(log10_cardinality(1, length=2, ops=["sub"], vocab_size=10), 6)  # the word and 2 * 9 others
    1.278754
    """
    threat = Threat(ops)
    radius = check_int("radius", radius, least=-1)
    length = check_int("length", length, most=LARGEST_LENGTH)
    vocab_size = check_int("vocab_size", vocab_size, least=1)
    if radius < 0:
        return -inf
    budget = min(radius, length) if threat.largest(length) is not None else radius
    first, last = threat.reach(length, budget)
    total = -inf
    for start in range(first, last + 1, BLOCK // _DEPTH):
        size = np.arange(start, min(start + BLOCK // _DEPTH, last + 1), dtype=np.int64)
        rows = _log_words(size, np.minimum(_foreign(threat, length, size, budget), size), vocab_size)
        total = float(np.logaddexp(total, special.logsumexp(rows)))
    return total / log(10)


def _foreign(threat: Threat, length: int, size: IntArray, radius: int) -> IntArray:
    """The most tokens that differ from the repeated one in a word of each size in its ball."""
    shift = size - length
    if threat.substitutes:
        return np.where(shift >= 0, radius, radius + shift)
    if threat.deletes and threat.inserts:
        return (radius + shift) // 2
    return np.maximum(shift, 0)


def _log_words(size: IntArray, foreign: IntArray, vocab_size: int) -> FloatArray:
    """Log Σ C(size, i) (V−1)^i over i <= foreign: from the last term downwards, until what is left is negligible."""
    if vocab_size == 1:
        return np.zeros(size.shape)
    n = size.astype(np.float64)[:, None]
    total = np.full(size.shape, -inf)
    upper = foreign.copy()
    active = upper >= 0
    while active.any():
        terms = upper[active, None].astype(np.float64) - np.arange(_DEPTH)
        rows = n[active]
        logs = -np.log1p(rows) - special.betaln(np.maximum(terms, 0) + 1, rows - np.maximum(terms, 0) + 1)
        logs = np.where(terms >= 0, logs + np.maximum(terms, 0) * log(vocab_size - 1), -inf)
        total[active] = np.logaddexp(total[active], special.logsumexp(logs, axis=1))
        upper[active] -= _DEPTH
        # Below the largest term, terms fall at least geometrically: stop when the last is negligible beside the sum.
        falling = terms[:, -1] * 2 < (rows[:, 0] - terms[:, -1] + 1) * (vocab_size - 1)
        negligible = falling & (logs[:, -1] < total[active] - 50)
        left = np.flatnonzero(active)
        active[left[negligible]] = False
        active &= upper >= 0
    return total
