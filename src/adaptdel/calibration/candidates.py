"""Candidate rates for the objective "balanced", and the statistics by which one of them is chosen.

A candidate is a whole rate: the fixed rate, AdaptDel's rate, a power of the length, or a curve through groups of
lengths. All candidates are measured on the same inputs, so that differences between them are paired. Nothing here calls
a model; `adaptdel.calibration.selection` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.rates import InterpolatedRate, Rate
from adaptdel.measures.class_measures import class_balanced_mean, constant_answer
from adaptdel.measures.summary import Outcomes

LONGEST = 100_000  # tokens; a power of the length is constant beyond
KNOTS = 40  # lengths between which a power of the length is interpolated
MOST_SHARE = 0.5  # of the tokens that a candidate keeps: below a rate of 1/2 no radius above 0 can be certified
LEAST_KEEP = 1.0  # tokens: see `adaptdel.calibration.bins.search_interval`
STANDARD_ERRORS = 1.0  # to spare in comparisons of radii: a one-sided confidence of about 84%
ACCURACY_ERRORS = 1.645  # to spare in comparisons of accuracies: a one-sided confidence of about 95%


@dataclass(frozen=True)
class Candidate:
    """A rate to compare.

    Attributes:
        name: "fixed", "adaptdel", "power 1/3" and so on, or "groups".
        rate: the rate.
        complexity: 0 for the rates that need no calibration, 1 for a power of the length, 2 for a curve through groups.
    """

    name: str
    rate: Rate
    complexity: int


def power_rate(keep: float, length: float, exponent: float) -> InterpolatedRate:
    """Keep ``keep`` tokens at ``length``, and in proportion to length ** exponent elsewhere.

    An exponent of 0 keeps the same number of tokens at every length, 1 the same share.

    >>> rate = power_rate(8, 64, 0.5)
    >>> [round(n * (1 - rate(n)), 2) for n in (4, 16, 64, 1024)]
    [2.0, 4.0, 8.0, 32.0]
    """
    lengths = np.unique(np.append(np.geomspace(1, LONGEST, KNOTS).round(), [4, 8, 16, 32, 64, 128, 256, 512, 1024]))
    return curve_rate(lengths, keep * (lengths / length) ** exponent)


def curve_rate(lengths: npt.ArrayLike, keep: npt.ArrayLike) -> InterpolatedRate:
    """Interpolate kept lengths, of at least one token and at most half of the tokens."""
    places = np.asarray(lengths, dtype=np.float64)
    kept = np.clip(np.asarray(keep, dtype=np.float64), LEAST_KEEP, None)
    if (start := float(kept[0]) / MOST_SHARE) < places[0]:  # from here down to one token, half of the tokens are kept
        places, kept = np.append([1.0, start], places), np.append([1.0, kept[0]], kept)
    kept = np.minimum(kept, np.maximum(MOST_SHARE * places, 0.5))
    return InterpolatedRate([round(float(n), 1) for n in places], [round(float(value), 3) for value in kept])


@dataclass(frozen=True)
class Sample:
    """The inputs on which candidates are compared, as columns of shape (inputs,).

    Attributes:
        length: the number of tokens.
        label: the class number of the true label.
        classes: the number of classes.
        repeats: how often each input occurs; inputs that were measured twice tell no more about other inputs.
    """

    length: IntArray
    label: IntArray
    classes: int
    repeats: int = 1

    @property
    def class_weights(self) -> FloatArray:
        """Weights that add up to 1, and to the same for every class that occurs."""
        counts = np.bincount(self.label, minlength=self.classes)
        return np.asarray(1.0 / (counts[self.label] * np.count_nonzero(counts)), dtype=np.float64)

    def balanced_mean(self, values: npt.NDArray[Any]) -> float:
        """The mean over classes of the mean of each class."""
        return class_balanced_mean(self.label, values)

    def balanced_error(self, values: npt.NDArray[Any]) -> float:
        """The standard error of `balanced_mean`."""
        numbers, variances = np.unique(self.label), []
        for number in numbers:
            inside = np.asarray(values[self.label == number], dtype=np.float64)
            variances.append(inside.var(ddof=1) / len(inside) if len(inside) > 1 else float(np.square(inside).max()))
        return sqrt(self.repeats * sum(variances)) / len(numbers)

    def joined(self, other: Sample, *, same_inputs: bool) -> Sample:
        """The inputs of two samples; ``same_inputs`` if they are the same ones, measured again."""
        repeats = self.repeats + other.repeats if same_inputs else max(self.repeats, other.repeats)
        length, label = (np.concatenate(pair) for pair in ((self.length, other.length), (self.label, other.label)))
        return Sample(length, label, self.classes, repeats)

    def groups(self, count: int, least: int) -> list[BoolArray]:
        """Up to ``count`` groups of similar length with at least ``least`` inputs each, as masks, shortest first."""
        number = max(1, min(count, len(self.length) // max(least, 1)))
        edges = np.unique(np.quantile(self.length, np.linspace(0, 1, number + 1))[1:-1])
        places = np.searchsorted(edges, self.length, side="right")
        masks = [places == place for place in range(len(edges) + 1)]
        return [mask for mask in masks if mask.any()]


@dataclass(frozen=True)
class CandidateOutcomes:
    """The certified answers under a candidate, as columns of shape (inputs,).

    Attributes:
        candidate: the rate.
        answer: the class number of the prediction.
        radius: the certified radius, −1 for an abstention.
    """

    candidate: Candidate
    answer: IntArray
    radius: IntArray

    def joined(self, other: CandidateOutcomes) -> CandidateOutcomes:
        """The outcomes on two samples."""
        answer, radius = (np.concatenate(pair) for pair in ((self.answer, other.answer), (self.radius, other.radius)))
        return CandidateOutcomes(self.candidate, answer, radius)

    def right(self, sample: Sample) -> BoolArray:
        """Whether each prediction is the label; abstentions count by their prediction."""
        return self.answer == sample.label

    def radii(self, sample: Sample) -> IntArray:
        """The certified radii: 0 for wrong answers and abstentions, and at most the length.

        An input whose radius is its length is certified against every text of that length: more has no use, and would
        favour answers that do not depend on the input.
        """
        certified = self.right(sample) & (self.radius >= 0)
        return np.where(certified, np.minimum(self.radius, sample.length), 0)

    def is_constant(self, sample: Sample) -> bool:
        """Whether almost all inputs get the same answer, although their labels differ."""
        return constant_answer(Outcomes.of(self.answer, self.radius, sample.label)) is not None


@dataclass(frozen=True)
class Comparison:
    """A candidate against the reference, on the same inputs.

    Attributes:
        name: the name of the candidate.
        rate: its rate, in plain values.
        complexity: see `Candidate`.
        kept: tokens kept of an input of median length.
        accuracy: the share of right answers.
        balanced_accuracy: the mean over classes of the share of right answers.
        balanced_radius: the mean over classes of the mean certified radius, each radius at most the length.
        mean_radius: the mean certified radius, each radius at most the length.
        accuracy_difference: the accuracy minus that of the reference.
        accuracy_error: the standard error of that difference.
        radius_difference: the class-balanced mean radius minus that of the reference.
        radius_error: the standard error of that difference.
        constant: whether almost all inputs get the same answer.
        feasible: whether it may be chosen.
    """

    name: str
    rate: Mapping[str, Any]
    complexity: int
    kept: float
    accuracy: float
    balanced_accuracy: float
    balanced_radius: float
    mean_radius: float
    accuracy_difference: float
    accuracy_error: float
    radius_difference: float
    radius_error: float
    constant: bool
    feasible: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare(outcomes: CandidateOutcomes, reference: CandidateOutcomes, sample: Sample, points: float) -> Comparison:
    """Compare a candidate with the reference, which has the accuracy to stay close to.

    A candidate is feasible if its answers are not constant, and if its accuracy is lower than that of the reference by
    less than ``points`` percentage points. A calibrated rate has to show it with a confidence of about 95% (of
    the paired difference); a rate that needs no calibration gets the benefit of the doubt by a standard error.
    """
    right, radii = outcomes.right(sample), outcomes.radii(sample)
    accuracies = right.astype(np.float64) - reference.right(sample)
    differences = radii - reference.radii(sample)
    error = float(accuracies.std(ddof=1)) / sqrt(len(accuracies) / sample.repeats) if len(accuracies) > 1 else 1.0
    constant = outcomes.is_constant(sample)
    margin = error * (ACCURACY_ERRORS if outcomes.candidate.complexity else -STANDARD_ERRORS)
    is_close = float(accuracies.mean()) - margin >= -points / 100
    median = max(1, round(float(np.median(sample.length))))
    return Comparison(
        name=outcomes.candidate.name,
        rate=outcomes.candidate.rate.to_dict(),
        complexity=outcomes.candidate.complexity,
        kept=round(median * (1 - outcomes.candidate.rate(median)), 3),
        accuracy=float(right.mean()),
        balanced_accuracy=sample.balanced_mean(right),
        balanced_radius=sample.balanced_mean(radii),
        mean_radius=float(radii.mean()),
        accuracy_difference=float(accuracies.mean()),
        accuracy_error=error,
        radius_difference=sample.balanced_mean(differences),
        radius_error=sample.balanced_error(differences),
        constant=constant,
        feasible=not constant and (is_close or outcomes is reference),
    )


def reference_of(baselines: Sequence[CandidateOutcomes], sample: Sample) -> CandidateOutcomes:
    """The most accurate of the rates that need no calibration; constant answers only if there are no others."""
    varied = [outcomes for outcomes in baselines if not outcomes.is_constant(sample)] or list(baselines)
    return max(
        varied, key=lambda outcomes: (outcomes.right(sample).mean(), sample.balanced_mean(outcomes.radii(sample)))
    )


def choose(
    measured: Sequence[CandidateOutcomes], reference: CandidateOutcomes, sample: Sample, points: float
) -> CandidateOutcomes:
    """The feasible candidate with the largest class-balanced mean radius; a more complex one must be clearly better.

    The best candidates of each complexity are compared from simple to complex. The more complex one is chosen if its
    class-balanced mean radius is larger by more than a standard error of the paired difference. A tie goes to the
    larger mean radius.
    """
    feasible = [outcomes for outcomes in measured if compare(outcomes, reference, sample, points).feasible]
    chosen = None
    for complexity in sorted({outcomes.candidate.complexity for outcomes in feasible}):
        level = [outcomes for outcomes in feasible if outcomes.candidate.complexity == complexity]
        best = max(level, key=lambda outcomes: _radii(outcomes, sample))
        if chosen is None or clearly_better(best, chosen, sample):
            chosen = best
    return chosen or reference


def _radii(outcomes: CandidateOutcomes, sample: Sample) -> tuple[float, float]:
    radii = outcomes.radii(sample)
    return round(sample.balanced_mean(radii), 9), float(radii.mean())


def clearly_better(outcomes: CandidateOutcomes, other: CandidateOutcomes, sample: Sample) -> bool:
    """Whether the class-balanced mean radius is larger by more than a standard error of the paired difference."""
    differences = outcomes.radii(sample) - other.radii(sample)
    return sample.balanced_mean(differences) > STANDARD_ERRORS * sample.balanced_error(differences)


GROUPS = 8  # groups of lengths, at most
SMOOTHING = (0.25, 0.5, 0.25)  # weights of a group's shorter neighbour, of the group and of its longer neighbour


def grouped_rate(
    measured: Sequence[CandidateOutcomes],
    reference: CandidateOutcomes,
    sample: Sample,
    points: float,
    least: int,
) -> InterpolatedRate | None:
    """A curve that keeps, in every group of lengths, as many tokens as the best candidate there.

    The candidates' radii and accuracies in a group are smoothed over neighbouring groups. Each group takes the
    candidate with the largest sum of radius and λ times accuracy, with one λ for all groups: the smallest one for which
    the accuracy over all groups is as close to the reference as `compare` asks. Kept lengths that fall with the length
    are levelled (isotonic regression). None if there are fewer than three groups.
    """
    groups = sample.groups(GROUPS, least)
    varied = [outcomes for outcomes in measured if not outcomes.is_constant(sample)]
    if len(groups) < 3 or not varied:
        return None
    weights = sample.class_weights
    shape = (len(groups), len(varied))
    radius, accuracy = np.zeros(shape), np.zeros(shape)
    base = reference.right(sample).astype(np.float64)
    for column, outcomes in enumerate(varied):
        radii, change = outcomes.radii(sample) * weights, outcomes.right(sample) - base
        for row, mask in enumerate(groups):
            radius[row, column], accuracy[row, column] = radii[mask].sum(), change[mask].sum() / len(base)
    radius, accuracy = _smoothed(radius), _smoothed(accuracy)
    error = max(compare(outcomes, reference, sample, points).accuracy_error for outcomes in varied)
    least_change = ACCURACY_ERRORS * error - points / 100
    rows = np.arange(len(groups))
    chosen = _lagrangian(lambda factor: np.argmax(radius + factor * accuracy, axis=1), rows, accuracy, least_change)
    centres = [float(np.median(sample.length[mask])) for mask in groups]
    keep = [n * (1 - varied[best].candidate.rate(max(1, round(n)))) for n, best in zip(centres, chosen, strict=True)]
    counts = [int(mask.sum()) for mask in groups]
    fitted = isotonic_regression(keep, weights=counts).x
    places = [*dict.fromkeys(centres)]
    if len(places) < len(centres):
        return None
    return curve_rate(places, fitted)


def _smoothed(table: FloatArray) -> FloatArray:
    padded = np.concatenate([table[:1], table, table[-1:]])
    shorter, own, longer = SMOOTHING
    return np.asarray(shorter * padded[:-2] + own * padded[1:-1] + longer * padded[2:], dtype=np.float64)


def _lagrangian(
    best: Callable[[float], npt.NDArray[np.intp]], rows: IntArray, accuracy: FloatArray, least: float
) -> npt.NDArray[np.intp]:
    """The choice in every group for the smallest factor at which the accuracies add up to ``least`` or more."""
    low, high = 0.0, 1.0
    while accuracy[rows, best(high)].sum() < least and high < 1e9:
        low, high = high, 4 * high
    if accuracy[rows, best(0.0)].sum() >= least:
        return best(0.0)
    for _ in range(40):
        middle = (low + high) / 2
        if accuracy[rows, best(middle)].sum() >= least:
            high = middle
        else:
            low = middle
    return best(high)


def class_recalls(outcomes: CandidateOutcomes, sample: Sample, classes: Iterable[Any]) -> list[float | None]:
    """The share of right answers of every class; None for a class without inputs."""
    right = outcomes.right(sample)
    masks = [sample.label == number for number, _ in enumerate(classes)]
    return [float(right[mask].mean()) if mask.any() else None for mask in masks]
