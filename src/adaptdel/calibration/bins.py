"""Bins of input lengths: made of equal width from the lengths of a data set, or given and checked.

The paper makes bins by its first algorithm of Appendix C, then deletes boundaries by hand where lengths are sparse.
Here the deletion is part of the algorithm: see `equal_width_edges`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log2
from typing import Any

import numpy as np

from adaptdel.checks import FloatArray, IntArray, check_int, check_list
from adaptdel.rates import BinnedRate

TRIMMED = 1.0  # percent of the shortest and of the longest inputs that do not count


@dataclass(frozen=True)
class Bin:
    """The inputs of at least ``lower`` and fewer than ``upper`` tokens.

    Attributes:
        lower: where the bin begins.
        upper: where the next one begins; None for the last bin, which has no end.
        reach: a finite end: ``upper``, and for the last bin twice the width of the bin before it from ``lower`` on.
    """

    lower: float
    upper: float | None
    reach: float

    @property
    def centre(self) -> float:
        """The middle; for the last bin as far from its beginning as the bin before is wide."""
        return (self.lower + self.reach) / 2

    def __contains__(self, length: int) -> bool:
        return self.lower <= length < (inf if self.upper is None else self.upper)

    def __str__(self) -> str:
        return f"{self.lower:g} tokens and more" if self.upper is None else f"{self.lower:g} to {self.upper:g} tokens"


def make_bins(edges: Sequence[float], longest: float) -> list[Bin]:
    """The bins that begin at the edges; ``longest`` is where an only bin, from 0 on, is taken to end.

    >>> [bin.centre for bin in make_bins([0, 137, 230, 324], 1000)]
    [68.5, 183.5, 277.0, 418.0]
    """
    bins = [Bin(a, b, b) for a, b in pairwise(edges)]
    last = edges[-1]
    reach = last + 2 * (last - edges[-2]) if bins else max(longest, 1)
    return [*bins, Bin(last, None, reach)]


def equal_width_edges(lengths: Sequence[int] | IntArray, *, min_count: int = 50) -> list[float]:
    """CreateDynamicEqualWidthBins: where bins of equal width begin that hold at least ``min_count`` inputs each.

    Lengths outside the 1st and 99th percentile are left out. The number of bins starts at Sturges' log2(n) + 1, the
    paper's 16 on IMDB. The paper lowers it until every bin holds enough. But long inputs are rare, and that ends with a
    bin or two on most data sets. So the boundaries from the first bin that holds too few are deleted, as the paper does
    by hand, and the number that leaves the most bins is taken. The first bin begins at 0, and the last one has no end.

    >>> equal_width_edges(list(range(100, 200)) * 10, min_count=200)
    [0, 125, 150, 174]
    """
    check_int("min_count", min_count, least=1)
    counted = np.sort(np.asarray(lengths, dtype=np.int64))
    if len(counted) < min_count:
        raise ValueError(f"min_count must be at most the number of inputs {len(counted)}, got {min_count}")
    low, high = np.percentile(counted, [TRIMMED, 100 - TRIMMED])
    trimmed = counted[(counted >= low) & (counted <= high)]
    best: list[float] = [0]
    for number in range(ceil(log2(len(trimmed)) + 1), 1, -1):
        edges = _kept(np.rint(np.linspace(low, high, number + 1))[1:-1], trimmed, min_count)
        if len(edges) > len(best):
            best = edges
    return best


def _kept(inner: FloatArray, lengths: IntArray, min_count: int) -> list[float]:
    """0 and the boundaries up to the first that would leave too few inputs before it, or in all after it."""
    edges: list[float] = [0]
    before = 0
    for edge in inner:
        shorter = int(np.searchsorted(lengths, edge))
        if min(shorter - before, len(lengths) - shorter) < min_count:
            break
        edges.append(int(edge))
        before = shorter
    return edges


def check_edges(edges: Any, lengths: Sequence[int]) -> list[float]:
    """Given edges, if they begin with 0, increase, and leave no bin without an input; a closing infinity is dropped."""
    given = check_list("bins", edges)
    try:
        checked = list(BinnedRate(given, [0.0] * (len(given) - (inf in given[-1:]))).edges)
    except ValueError as error:
        raise ValueError(str(error).replace("edges must", "bins must", 1)) from None
    for bin in make_bins(checked, 1):
        if not any(length in bin for length in lengths):
            raise ValueError(f"bins must hold at least one input each, got none of {bin}")
    return checked
