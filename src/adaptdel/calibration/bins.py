"""Bins of input lengths, the examples that fall into them, and the rate that kept lengths make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log2
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from adaptdel.certification.sampling import content_key
from adaptdel.core.checks import FloatArray, IntArray, check_int, check_list
from adaptdel.core.rates import BinnedRate, InterpolatedRate
from adaptdel.units import Tokens, Unit

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


@dataclass(frozen=True)
class CalibrationExamples:
    """Labelled token sequences.

    Attributes:
        tokens: the tokens of every example.
        labels: the label of every example.
    """

    tokens: list[Tokens]
    labels: list[Any]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of every example."""
        return [len(one) for one in self.tokens]

    def digest(self) -> str:
        """A hash of all tokens and labels, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            digest.update(content_key(tokens) + json.dumps(label, default=repr).encode() + b"\n")
        return digest.hexdigest()

    def drawn(self, bin: Bin, number: int, *, most: int, seed: int) -> CalibrationExamples:
        """At most ``most`` examples of a bin, drawn by the seed, in the order of the data."""
        inside = [place for place, length in enumerate(self.lengths) if length in bin]
        if len(inside) > most:
            rng = np.random.default_rng((seed, number))
            inside = sorted(rng.choice(inside, size=most, replace=False).tolist())
        return CalibrationExamples([self.tokens[place] for place in inside], [self.labels[place] for place in inside])


def read_examples(
    texts: Sequence[Any], labels: Sequence[Any], unit: Unit, classes: list[Any] | None
) -> CalibrationExamples:
    """Split the texts and check that the model knows the labels."""
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts must be a list of inputs, got a single {type(texts).__name__}: put it in a list")
    listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
    texts = list(texts)
    if len(texts) != len(listed):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(listed)}")
    if not texts:
        raise ValueError("texts must hold at least one input, got none")
    for number, label in enumerate(listed):
        if classes is not None and label not in classes:
            raise ValueError(f"labels must be classes of the model, {_named(classes)}, got {label!r} at {number}")
    return CalibrationExamples([_split(unit, text, number) for number, text in enumerate(texts)], listed)


def _split(unit: Unit, text: Any, number: int) -> Tokens:
    try:
        return unit.split(text)
    except ValueError as error:
        raise ValueError(f"input {number}: {error}") from None


def _named(classes: list[Any]) -> str:
    shown = ", ".join(repr(label) for label in classes[:10])
    return shown if len(classes) <= 10 else f"{shown}, ..."


DIGITS = 4  # decimals of a kept length


def monotone_fit(keep: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest kept lengths, in weighted squares, that do not fall from one bin to the next.

    >>> monotone_fit([4, 9, 6, 14], [1, 1, 1, 1])
    [4.0, 7.5, 7.5, 14.0]
    """
    fitted = isotonic_regression(list(keep), weights=list(weights)).x
    return [round(float(value), DIGITS) for value in fitted]


def make_rate(bins: Sequence[Bin], keep: Sequence[float], *, interpolate: bool) -> BinnedRate | InterpolatedRate:
    """A rate that keeps these lengths: of bins, or at the centres of bins and in between on straight lines.

    >>> from adaptdel.calibration.bins import make_bins
    >>> make_rate(make_bins([0, 137, 230, 324], 1000), [4, 9, 6, 14], interpolate=True)
    InterpolatedRate(lengths=(68.5, 183.5, 277, 418), keep=(4, 9, 6, 14))
    """
    if interpolate:
        return InterpolatedRate([bin.centre for bin in bins], keep)
    return BinnedRate([bin.lower for bin in bins], keep)
