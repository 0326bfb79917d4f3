"""The objective "paper": bins of input lengths, and in each a golden-section search for a kept length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import ceil, inf, log, log2, sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adaptdel.calibration.candidates import (
    NO_RATE,
    Calibration,
    constant_keep,
    described,
    digest_of,
    examples_of,
    measuring,
    some_of,
)
from adaptdel.core.checks import IntArray, check_int, check_list
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import BinnedRate
from adaptdel.measures.class_measures import constant_answer
from adaptdel.measures.summary import Outcomes
from adaptdel.models.estimator import TextEstimator
from adaptdel.settings import CalibrationSettings
from adaptdel.text.data import DrawnRows

TRIMMED = 1.0  # percent of the shortest and of the longest inputs that automatic bins ignore
DIGITS = 4  # decimals of a kept length
GOLDEN = (sqrt(5) - 1) / 2
LEAST_SHARE, MOST_SHARE = 0.01, 0.3  # of the length that the search keeps: rates from 70% to 99%
RECORDED = ("objective", "threshold", "per_bin", "min_count", "n_select", "n_estimate", "tol", "seed")
Score = TypeVar("Score", bound=tuple[float, ...])


@dataclass(frozen=True)
class Bin:
    """The inputs of at least ``lower`` and fewer than ``upper`` tokens."""

    lower: float  # the first length of the bin
    upper: float | None  # the first length of the next bin; None for the last bin, which has no end
    reach: float  # a finite end: ``upper``, or for the last bin ``lower`` plus twice the width of the previous bin

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
        edges: list[float] = [0]
        covered = 0
        for edge in np.rint(np.linspace(low, high, number + 1))[1:-1].tolist():
            shorter = int(np.searchsorted(trimmed, edge))
            if min(shorter - covered, len(trimmed) - shorter) < min_count:  # in this bin, or in all that follow
                break
            edges.append(int(edge))
            covered = shorter
        best = max(best, edges, key=len)
    return best


def check_edges(edges: Any, lengths: Sequence[int]) -> list[float]:
    """Return edges that start with 0 and increase; an empty bin is merged, and an infinity at the end is dropped."""
    listed = check_list("bins", edges)
    try:
        checked = list(BinnedRate(listed, [0.0] * (len(listed) - (inf in listed[-1:]))).edges)
    except ValueError as error:
        raise ValueError(str(error).replace("edges must", "bins must", 1)) from None
    for place, bin in [*enumerate(make_bins(checked, 1))][::-1]:
        if not any(length in bin for length in lengths) and len(checked) > 1:
            warnings.warn(f"bins: no input has {bin}, which are merged with their neighbours", stacklevel=2)
            del checked[max(1, place)]
    return checked


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
    """How many times the interval must be cut until it is no wider than ``tol``; a search evaluates one point more."""
    return max(0, ceil(log((high - low) / tol) / -log(GOLDEN) - 1e-9))


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


def max_certified_radius(radii: Sequence[int] | IntArray, threshold: float) -> tuple[int, float]:
    """MaxCertRadius: the largest radius with a certified accuracy of at least ``threshold``, and that accuracy.

    Wrong predictions and abstentions have the radius −1. If the accuracy at radius 0 is below the threshold, the result
    is −1 and this accuracy.

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


@dataclass(frozen=True)
class Evaluation:
    """A kept length, measured on the sample of a bin."""

    bin: int  # the number of the bin
    keep: float  # the expected kept length K
    radius: int  # the largest radius whose certified accuracy reaches the threshold; −1 if radius 0 does not
    certified: float  # the certified accuracy at that radius; at radius 0 if none reaches the threshold
    clean: float  # the fraction of correct predictions, certified or not
    mean_radius: float  # the mean certified radius; wrong predictions and abstentions count as 0
    constant: bool  # whether (almost) every example got the same prediction, although labels differ
    count: int  # the number of examples

    @property
    def score(self) -> tuple[bool, int, float]:
        """What the search maximises: the radius, then the accuracy at that radius; a constant answer ranks last."""
        return not self.constant, self.radius, self.certified


class BinTask:
    """A calibration in bins that is ready to run: settings checked, bins computed, examples drawn.

    ``samples`` are the examples of every bin that are certified; ``settings`` is everything that the result depends on.
    """

    def __init__(
        self, model: TextEstimator, texts: Sequence[Any], labels: Sequence[Any], settings: CalibrationSettings
    ) -> None:
        self.certifier = model.certifier(model.calibration_plan(settings))
        examples = examples_of(model, texts, labels)
        edges = (
            equal_width_edges(examples.lengths, min_count=settings.min_count)
            if isinstance(settings.bins, str)
            else check_edges(settings.bins, examples.lengths)
        )
        self.bins = make_bins(edges, float(np.percentile(examples.lengths, 100 - TRIMMED)))
        self._inside = [[n for n, length in enumerate(examples.lengths) if length in bin] for bin in self.bins]
        self.samples = [
            some_of(examples, DrawnRows(settings.per_bin, settings.seed).of(inside)) for inside in self._inside
        ]
        self._given = settings
        self.settings: dict[str, Any] = {
            **{name: getattr(settings, name) for name in RECORDED},
            **described(self.certifier),
            "bins": [bin.lower for bin in self.bins],
            "data": digest_of(examples),
            "examples": len(examples.labels),
        }

    def run(self, *, checkpoint: Path | None = None, progress: Any = "auto") -> Calibration:
        """Search every bin; the given base classifier stays."""
        given, classes = self._given, self.certifier.classes
        intervals = [search_interval(bin) for bin in self.bins]
        counts = [steps(*interval, given.tol) + 1 for interval in intervals]
        expected = sum(count * len(sample.labels) for count, sample in zip(counts, self.samples, strict=True))
        trace: dict[tuple[int, float], Evaluation] = {}
        with measuring(self.settings, expected, checkpoint=checkpoint, progress=progress) as measure:

            def evaluate(number: int, keep: float) -> Evaluation:
                key = number, round(keep, DIGITS)
                if key not in trace:
                    sample, plan = self.samples[number], self.certifier.plan
                    plan = replace(plan, noise=constant_keep(key[1]))  # type: ignore[call-arg] # a plan of votes
                    certifier = self.certifier.with_plan(plan)
                    outcomes = measure(f"{number} {key[1]}", sample, lambda: [(certifier, range(len(sample.labels)))])
                    label = np.array([classes.index(each) for each in sample.labels], dtype=np.int64)
                    inputs = Outcomes.of(outcomes.answer, outcomes.radius, label)
                    correct_radii = np.where(outcomes.answer == label, outcomes.radius, -1)
                    trace[key] = Evaluation(
                        *key,
                        *max_certified_radius(correct_radii, given.threshold),
                        inputs.clean_accuracy,
                        inputs.mean_radius,
                        constant_answer(inputs) is not None,
                        len(label),
                    )
                return trace[key]

            chosen = [
                evaluate(number, golden_section(lambda keep: evaluate(number, keep).score, *interval, given.tol))  # noqa: B023
                for number, interval in enumerate(intervals)
            ]
        if all(evaluation.constant for evaluation in chosen):
            raise ValueError(NO_RATE)
        rate = BinnedRate([bin.lower for bin in self.bins], [evaluation.keep for evaluation in chosen])
        bins = []
        for bin, inside, evaluation in zip(self.bins, self._inside, chosen, strict=True):
            measured = {name: value for name, value in asdict(evaluation).items() if name not in ("bin", "constant")}
            row = {"lower": bin.lower, "upper": bin.upper, "centre": bin.centre, **measured}
            bins.append(row | {"available": len(inside), "reached": evaluation.radius >= 0})
        record = {
            "objective": given.objective,
            "rate": rate.to_dict(),
            "bins": bins,
            "settings": self.settings,
            "trace": [asdict(evaluation) for evaluation in trace.values()],
            "warnings": [sentence for number, each in enumerate(chosen) for sentence in self._warnings(number, each)],
        }
        return Calibration(Deletion(rate), record)

    def _warnings(self, number: int, evaluation: Evaluation) -> list[str]:
        given, kept = self._given, f"the bin of {self.bins[number]}: {evaluation.keep:g} kept tokens"
        sentences = []
        if evaluation.radius < 0:
            sentences.append(
                f"{kept} do not reach a certified accuracy of {given.threshold:g} even at radius 0 "
                f"(it is {evaluation.certified:.3g})"
            )
        if evaluation.constant:
            sentences.append(f"{kept} give (almost) every input the same prediction: the radius has no meaning")
        if evaluation.count < given.min_count:
            sentences.append(f"{kept} were chosen on {evaluation.count} examples only")
        return sentences
