"""The algorithms of AdaptDel+: bins of input lengths and their examples, scores of kept lengths, golden-section search.

Nothing here calls a model; `adaptdel.calibration.calibration` certifies the examples.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from math import ceil, inf, log, log2, sqrt
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import isotonic_regression

from adaptdel.certification.sampling import content_key
from adaptdel.core.checks import FloatArray, IntArray, check_fields, check_int, check_list
from adaptdel.core.rates import BinnedRate, InterpolatedRate
from adaptdel.measures.class_measures import almost_none
from adaptdel.measures.summary import AnswerCounts
from adaptdel.text.units import Tokens

TRIMMED = 1.0  # percent of the shortest and of the longest inputs that automatic bins ignore
DIGITS = 4  # decimals of a kept length
GOLDEN = (sqrt(5) - 1) / 2
LEAST_SHARE, MOST_SHARE = 0.01, 0.3  # of the length that the search keeps: rates from 70% to 99%
FIELD_TYPES = {"int": "a whole number", "float": "a number", "float | None": "a number?", "bool": "true or false"}
Score = TypeVar("Score", bound=tuple[float, ...])


@dataclass(frozen=True)
class Bin:
    """The inputs of at least ``lower`` and fewer than ``upper`` tokens.

    Attributes:
        lower: the first length of the bin.
        upper: the first length of the next bin; None for the last bin, which has no end.
        reach: a finite end: ``upper``, or for the last bin ``lower`` plus twice the width of the previous bin.
    """

    lower: float
    upper: float | None
    reach: float

    @property
    def centre(self) -> float:
        """The middle between ``lower`` and ``reach``."""
        return (self.lower + self.reach) / 2

    def __contains__(self, length: int) -> bool:
        return self.lower <= length < (inf if self.upper is None else self.upper)

    def __str__(self) -> str:
        return f"{self.lower:g} tokens and more" if self.upper is None else f"{self.lower:g} to {self.upper:g} tokens"


def make_bins(edges: Sequence[float], longest: float) -> list[Bin]:
    """Return the bins that start at the edges; a single bin, from 0, gets ``longest`` as its finite end.

    >>> [bin.centre for bin in make_bins([0, 137, 230, 324], 1000)]
    [68.5, 183.5, 277.0, 418.0]
    """
    bins = [Bin(lower, upper, upper) for lower, upper in pairwise(edges)]
    last = edges[-1]
    reach = last + 2 * (last - edges[-2]) if bins else max(longest, 1)
    return [*bins, Bin(last, None, reach)]


def equal_width_edges(lengths: Sequence[int] | IntArray, *, min_count: int = 50) -> list[float]:
    """CreateDynamicEqualWidthBins: the edges of bins of equal width with at least ``min_count`` inputs each.

    Lengths outside the 1st and 99th percentile are ignored. The number of bins starts at Sturges' log2(n) + 1, the
    paper's 16 on IMDB. The paper lowers it until every bin holds enough inputs. Long inputs are rare, so that this
    leaves one or two bins on most data sets. Here the edges from the first bin that holds too few are deleted, as the
    paper does by hand, for every number of bins, and the number that leaves the most bins is used. The first bin
    starts at 0, and the last bin has no end.

    >>> equal_width_edges(list(range(100, 200)) * 10, min_count=200)
    [0, 125, 150, 174]
    """
    check_int("min_count", min_count, least=1)
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))
    if len(ordered) < min_count:
        raise ValueError(f"min_count must be at most the number of inputs {len(ordered)}, got {min_count}")
    low, high = np.percentile(ordered, [TRIMMED, 100 - TRIMMED])
    trimmed = ordered[(ordered >= low) & (ordered <= high)]
    best: list[float] = [0]
    for number in range(ceil(log2(len(trimmed)) + 1), 1, -1):
        edges = _populated(np.rint(np.linspace(low, high, number + 1))[1:-1], trimmed, min_count)
        if len(edges) > len(best):
            best = edges
    return best


def _populated(inner: FloatArray, lengths: IntArray, min_count: int) -> list[float]:
    """0 and the edges up to the first that leaves too few inputs in its bin, or in all bins that follow."""
    edges: list[float] = [0]
    covered = 0
    for edge in inner:
        shorter = int(np.searchsorted(lengths, edge))
        if min(shorter - covered, len(lengths) - shorter) < min_count:
            break
        edges.append(int(edge))
        covered = shorter
    return edges


def check_edges(edges: Any, lengths: Sequence[int]) -> list[float]:
    """Return edges that start with 0, increase, and leave no bin empty; an infinity at the end is dropped."""
    listed = check_list("bins", edges)
    try:
        checked = list(BinnedRate(listed, [0.0] * (len(listed) - (inf in listed[-1:]))).edges)
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
        return [len(tokens) for tokens in self.tokens]

    def digest(self) -> str:
        """A hash of all tokens and labels, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            digest.update(content_key(tokens) + json.dumps(label, default=repr).encode() + b"\n")
        return digest.hexdigest()

    def drawn(self, bin: Bin, number: int, *, most: int, seed: int) -> CalibrationExamples:
        """Draw at most ``most`` examples of a bin by the seed; they stay in the order of the data."""
        inside = [index for index, length in enumerate(self.lengths) if length in bin]
        if len(inside) > most:
            rng = np.random.default_rng((seed, number))
            inside = sorted(rng.choice(inside, size=most, replace=False).tolist())
        return CalibrationExamples([self.tokens[index] for index in inside], [self.labels[index] for index in inside])


def split_examples(
    texts: Sequence[Any], labels: Sequence[Any], split: Callable[[Any], Tokens], classes: list[Any] | None
) -> CalibrationExamples:
    """Split the texts into tokens, and check that the labels are classes of the model."""
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
            shown = ", ".join(repr(known) for known in classes[:10]) + (", ..." if len(classes) > 10 else "")
            raise ValueError(f"labels must be classes of the model, {shown}, got {label!r} at {number}")
    return CalibrationExamples([_split(split, text, number) for number, text in enumerate(texts)], listed)


def _split(split: Callable[[Any], Tokens], text: Any, number: int) -> Tokens:
    try:
        return split(text)
    except ValueError as error:
        raise ValueError(f"input {number}: {error}") from None


def monotone_fit(keep: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The kept lengths nearest to ``keep``, in weighted squares, that do not decrease from a bin to the next.

    >>> monotone_fit([4, 9, 6, 14], [1, 1, 1, 1])
    [4.0, 7.5, 7.5, 14.0]
    """
    fitted = isotonic_regression(list(keep), weights=list(weights)).x
    return [round(float(value), DIGITS) for value in fitted]


def make_rate(bins: Sequence[Bin], keep: Sequence[float], *, interpolate: bool) -> BinnedRate | InterpolatedRate:
    """A rate with a kept length for each bin: constant in the bin, or interpolated between the centres of bins.

    >>> make_rate(make_bins([0, 137, 230, 324], 1000), [4, 9, 6, 14], interpolate=True)
    InterpolatedRate(lengths=(68.5, 183.5, 277, 418), keep=(4, 9, 6, 14))
    """
    if interpolate:
        return InterpolatedRate([bin.centre for bin in bins], keep)
    return BinnedRate([bin.lower for bin in bins], keep)


@dataclass(frozen=True)
class Outcome:
    """The certified prediction for an example.

    Attributes:
        answer: the index of the predicted class.
        right: whether the prediction is the example's label.
        radius: the certified radius; −1 if the smoothed classifier abstains.
    """

    answer: int
    right: bool
    radius: int


@dataclass(frozen=True)
class Evaluation:
    """A kept length, measured on the sample of a bin.

    Attributes:
        bin: the index of the bin.
        keep: the expected kept length K.
        radius: the largest radius whose certified accuracy reaches the threshold; −1 if radius 0 does not.
        certified: the certified accuracy at that radius; at radius 0 if none reaches the threshold.
        clean: the share of right predictions, certified or not: the accuracy of ``predict`` with the same votes.
        mean_radius: the mean certified radius; wrong predictions and abstentions count as 0.
        constant: whether (almost) every example got the same prediction, although labels differ.
        count: the number of examples.
    """

    bin: int
    keep: float
    radius: int
    certified: float
    clean: float
    mean_radius: float
    constant: bool
    count: int

    def score(self, objective: str, min_accuracy: float | None) -> tuple[float, float]:
        """The quantity that the search maximises, in lexicographic order.

        "certified" is the paper's: the largest radius, then the accuracy at that radius. "mean" is the mean radius if
        the clean accuracy is at least ``min_accuracy``; below that it is the clean accuracy, which ranks lower.
        """
        if objective == "certified":
            return self.radius, self.certified
        assert min_accuracy is not None
        return (1, self.mean_radius) if self.clean >= min_accuracy else (0, self.clean)

    def reached(self, objective: str, min_accuracy: float | None) -> bool:
        """Whether the threshold of certified accuracy, or the least clean accuracy, is reached."""
        return self.score(objective, min_accuracy)[0] >= (0 if objective == "certified" else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Rebuild an evaluation from `to_dict`."""
        names = {field.name: FIELD_TYPES[str(field.type)] for field in fields(cls)}
        if not isinstance(values, Mapping):
            raise ValueError(f"an evaluation must have the fields {', '.join(names)}, got {values!r:.60}")
        try:
            check_fields(values, names)
        except ValueError as error:
            raise ValueError(f"an evaluation must have its fields: {error}") from None
        return cls(**{name: values[name] for name in names})


def max_certified_radius(radii: Sequence[int], threshold: float) -> tuple[int, float]:
    """MaxCertRadius: the largest radius with a certified accuracy of at least ``threshold``, and that accuracy.

    Args:
        radii: the certified radius of every example; −1 for wrong predictions and abstentions.
        threshold: the share of examples that must be certified.

    Returns:
        The radius and the accuracy at it; −1 and the accuracy at radius 0 if that is below the threshold.

    >>> max_certified_radius([5, 3, 3, -1], 0.5)
    (3, 0.75)
    >>> max_certified_radius([5, -1, -1, -1], 0.5)
    (-1, 0.25)
    """
    array = np.asarray(radii)
    for radius in np.unique(array[array >= 0])[::-1].tolist():  # the accuracy changes at these radii only
        accuracy = float(np.mean(array >= radius))
        if accuracy >= threshold:
            return radius, accuracy
    return -1, float(np.mean(array >= 0))


def is_constant(outcomes: Sequence[Outcome]) -> bool:
    """Whether all examples got one prediction, or almost all, as `measures.class_measures.constant_answer` says.

    Outcomes do not hold the labels: a wrong answer other than the most frequent one is not counted as another label.

    >>> is_constant([Outcome(0, True, 7)] * 176 + [Outcome(0, False, 7)] * 23 + [Outcome(1, True, 0)])
    True
    """
    label, count = Counter(outcome.answer for outcome in outcomes).most_common(1)[0]
    others = sum(outcome.right != (outcome.answer == label) for outcome in outcomes)
    return count == len(outcomes) or almost_none(len(outcomes) - count, others)


def evaluate_outcomes(bin: int, keep: float, outcomes: Sequence[Outcome], threshold: float) -> Evaluation:
    """Summarise the outcomes of a bin's examples at a kept length."""
    certified = [outcome.radius if outcome.right else -1 for outcome in outcomes]
    counts = AnswerCounts.of([outcome.right for outcome in outcomes], [outcome.radius for outcome in outcomes])
    radius, accuracy = max_certified_radius(certified, threshold)
    return Evaluation(
        bin=bin,
        keep=keep,
        radius=radius,
        certified=accuracy,
        clean=counts.clean_accuracy,
        mean_radius=counts.mean_radius,
        constant=is_constant(outcomes),
        count=len(outcomes),
    )


def search_interval(bin: Bin) -> tuple[float, float]:
    """The smallest and the largest kept length that the search in a bin considers.

    The paper keeps at least 1% of the bin's upper end and at most 30% of its lower end. Where these leave no interval,
    as in the first bin, whose lower end is 0, the 30% are of the centre. At least one token is kept: with fewer than
    log 2 expected tokens most copies are empty, and every input gets the prediction for the empty text, with an
    infinite radius that says nothing about the input.

    >>> search_interval(Bin(100, 200, 200))
    (2.0, 30.0)
    """
    low = max(LEAST_SHARE * bin.reach, 1.0)
    high = MOST_SHARE * bin.lower
    if high < 3 * low:
        high = MOST_SHARE * bin.centre
    return low, max(high, 3 * low)


def steps(low: float, high: float, tol: float) -> int:
    """How many times the interval must be cut until it is no wider than ``tol``."""
    return max(0, ceil(log((high - low) / tol) / -log(GOLDEN) - 1e-9))


def evaluations(low: float, high: float, tol: float) -> int:
    """How many evaluations a search takes: one for each step, and one to start with."""
    return steps(low, high, tol) + 1


def golden_section(score: Callable[[float], Score], low: float, high: float, tol: float) -> float:
    """Return the best of the candidates that a golden-section search for the largest score evaluates.

    A step cuts the interval at one of two inner points. The other inner point is an inner point of the remaining
    interval too, so that each step after the first evaluates a single new point. The paper evaluates both points in
    each step, and returns the middle of the last interval, which it has not evaluated; the best evaluated point has a
    known score. If both points have the same score, the larger one is kept, as in the paper.

    >>> round(golden_section(lambda x: (-((x - 3) ** 2),), 0, 10, 0.01), 2)
    3.0
    """
    count = steps(low, high, tol)
    if not count:
        return (low + high) / 2
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    scores = {left: score(left), right: score(right)}
    for step in range(count):
        if scores[left] > scores[right]:
            high, right = right, left
            new = left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            new = right = low + GOLDEN * (high - low)
        if step < count - 1:
            scores[new] = score(new)
    return max(scores, key=lambda point: (scores[point], point))
