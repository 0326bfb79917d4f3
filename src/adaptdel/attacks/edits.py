"""Edit distances between token sequences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

import numpy as np

from adaptdel.core.checks import IntArray, token_key
from adaptdel.core.threat import Threat


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable], ops: str | Sequence[str] = "edit") -> float:
    """The least number of allowed edits that turn one token sequence into another; infinite if none do.

    With all three operations it is the Levenshtein distance in tokens, computed exactly.

    Args:
        first: the tokens of the original.
        second: the tokens of the edited text.
        ops: "edit", or some of "del", "ins", "sub".

    >>> edit_distance("the film was good".split(), "the film was not bad".split())
    2.0
    >>> edit_distance("abc", "abd", ["del", "ins"]), edit_distance("abc", "ab", ["sub"])
    (2.0, inf)
    """
    threat = Threat(ops)
    numbers: dict[Hashable, int] = {}
    a, b = (
        np.array([numbers.setdefault(token_key(token), len(numbers)) for token in tokens], dtype=np.int64)
        for tokens in (first, second)
    )
    start = _common_prefix(a, b)
    end = _common_prefix(a[start:][::-1], b[start:][::-1])
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    positions = np.arange(len(b) + 1, dtype=np.float64)
    row = positions if threat.inserts else np.where(positions == 0, 0.0, inf)
    for token in a:
        diagonal = row[:-1] + np.where(b == token, 0.0, 1.0 if threat.substitutes else inf)
        following = np.full(len(row), inf)
        following[1:] = diagonal
        if threat.deletes:
            following = np.minimum(following, row + 1)
        if threat.inserts:  # the best place to the left, plus an insertion for every place in between
            following = np.minimum.accumulate(following - positions) + positions
        row = following
    return float(row[-1])


def _common_prefix(a: IntArray, b: IntArray) -> int:
    """The number of equal tokens at the start; removing them changes no distance."""
    shared = min(len(a), len(b))
    different = np.flatnonzero(a[:shared] != b[:shared])
    return int(different[0]) if len(different) else shared
