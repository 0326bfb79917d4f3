"""Edit distances between token sequences, and the texts within a number of edits over a small vocabulary."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

import numpy as np

from adaptdel.core.checks import IntArray, check_int, token_key
from adaptdel.core.general import single_edits
from adaptdel.core.threat import Threat
from adaptdel.text.units import Tokens


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
    places = np.arange(len(b) + 1, dtype=np.float64)
    row = places if threat.inserts else np.where(places == 0, 0.0, inf)
    for token in a:
        diagonal = row[:-1] + np.where(b == token, 0.0, 1.0 if threat.substitutes else inf)
        following = np.full(len(row), inf)
        following[1:] = diagonal
        if threat.deletes:
            following = np.minimum(following, row + 1)
        if threat.inserts:  # the best place to the left, plus an insertion for every place in between
            following = np.minimum.accumulate(following - places) + places
        row = following
    return float(row[-1])


def _common_prefix(a: IntArray, b: IntArray) -> int:
    """The number of equal tokens at the start; removing them changes no distance."""
    shared = min(len(a), len(b))
    different = np.flatnonzero(a[:shared] != b[:shared])
    return int(different[0]) if len(different) else shared


def texts_within(
    tokens: Tokens, words: Sequence[Hashable], radius: int, threat: Threat, limit: int
) -> list[Tokens] | None:
    """Every sequence within ``radius`` edits that writes only ``words``, the original first; None if over ``limit``.

    >>> texts_within(("a",), ["b"], 1, Threat("del,sub"), 10)
    [('a',), (), ('b',)]
    """
    check_int("radius", radius)
    visited = {tokens: None}
    layer = [tokens]
    for _ in range(radius):
        following: list[Tokens] = []
        for text in layer:
            for neighbour in single_edits(text, tuple(words), threat):
                if neighbour not in visited:
                    visited[neighbour] = None
                    following.append(neighbour)
                    if len(visited) > limit:
                        return None
        layer = following
    return list(visited)
