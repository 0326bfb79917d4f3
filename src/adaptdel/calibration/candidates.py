"""Candidate rates for the objective "balanced", and the statistics by which one of them is chosen.

A candidate is a whole rate: the fixed rate, AdaptDel's rate, or one whose kept length is a power of the length. All
candidates are measured on the same inputs, so that differences between them are paired. Nothing here calls a model;
`adaptdel.calibration.selection` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Deletion, Noise, noise_from_dict
from adaptdel.core.rates import InterpolatedRate, Rate, rate_from_dict
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
    """A rate to compare, or a noise of the user's own.

    Attributes:
        name: "fixed", "adaptdel", or "power 1/3" and so on.
        noise: the deletion with the rate, or the own noise.
        is_calibrated: whether it needs calibration: not the fixed rate of CERT-ED, nor AdaptDel's.
    """

    name: str
    noise: Noise
    is_calibrated: bool

    @classmethod
    def of_rate(cls, name: str, rate: Rate, *, is_calibrated: bool) -> Candidate:
        """A deletion rate."""
        return cls(name, Deletion(rate), is_calibrated)

    def kept(self, length: int) -> float:
        """The number of tokens that copies keep on average."""
        return length * (1 - self.noise.share_removed(length))

    def to_dict(self) -> dict[str, Any]:
        """The rate, or the own noise, in plain values: see `candidate_noise`."""
        return self.noise.rate.to_dict() if isinstance(self.noise, Deletion) else {"noise": self.noise.to_dict()}


def candidate_noise(values: Mapping[str, Any]) -> Noise:
    """The noise that `Candidate.to_dict` describes."""
    return noise_from_dict(values["noise"]) if "noise" in values else Deletion(rate_from_dict(values))


def power_rate(keep: float, length: float, exponent: float) -> InterpolatedRate:
    """Keep ``keep`` tokens at ``length``, and in proportion to length ** exponent elsewhere: 1 to half of the tokens.

    An exponent of 0 keeps the same number of tokens at every length, 1 the same share.

    >>> rate = power_rate(8, 64, 0.5)
    >>> [round(n * (1 - rate(n)), 2) for n in (4, 16, 64, 1024)]
    [2.0, 4.0, 8.0, 32.0]
    """
    lengths = np.unique(np.append(np.geomspace(1, LONGEST, KNOTS).round(), [4, 8, 16, 32, 64, 128, 256, 512, 1024]))
    kept = np.maximum(keep * (lengths / length) ** exponent, LEAST_KEEP)
    kept = np.minimum(kept, np.maximum(MOST_SHARE * lengths, 0.5))
    return InterpolatedRate([float(n) for n in lengths], [round(float(value), 3) for value in kept])


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
        is_calibrated: see `Candidate`.
        kept: tokens kept of an input of median length.
        accuracy: the share of right answers.
        balanced_accuracy: the mean over classes of the share of right answers.
        balanced_radius: the mean over classes of the mean certified radius, each radius at most the length.
        mean_radius: the mean certified radius, each radius at most the length.
        accuracy_difference: the accuracy minus that of the reference.
        accuracy_error: the standard error of that difference.
        balanced_difference: the balanced accuracy minus that of the reference.
        balanced_error: the standard error of that difference.
        radius_difference: the class-balanced mean radius minus that of the reference.
        radius_error: the standard error of that difference.
        constant: whether almost all inputs get the same answer.
        feasible: whether it may be chosen.
    """

    name: str
    rate: Mapping[str, Any]
    is_calibrated: bool
    kept: float
    accuracy: float
    balanced_accuracy: float
    balanced_radius: float
    mean_radius: float
    accuracy_difference: float
    accuracy_error: float
    balanced_difference: float
    balanced_error: float
    radius_difference: float
    radius_error: float
    constant: bool
    feasible: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare(outcomes: CandidateOutcomes, reference: CandidateOutcomes, sample: Sample, points: float) -> Comparison:
    """Compare a candidate with the reference, whose accuracies it has to stay close to.

    A candidate is feasible if its answers are not constant, and if its accuracy and its balanced accuracy are lower
    than those of the reference by less than ``points`` percentage points. A calibrated rate has to show it with a
    confidence of about 95% (of the paired differences); a rate that needs no calibration gets the benefit of the doubt
    by a standard error. A reference with a constant answer limits nothing.
    """
    right, radii = outcomes.right(sample), outcomes.radii(sample)
    accuracies = right.astype(np.float64) - reference.right(sample)
    differences = radii - reference.radii(sample)
    error = float(accuracies.std(ddof=1)) / sqrt(len(accuracies) / sample.repeats) if len(accuracies) > 1 else 1.0
    balanced, balanced_error = sample.balanced_mean(accuracies), sample.balanced_error(accuracies)
    constant = outcomes.is_constant(sample)
    errors = ACCURACY_ERRORS if outcomes.candidate.is_calibrated else -STANDARD_ERRORS
    least = min(float(accuracies.mean()) - errors * error, balanced - errors * balanced_error)
    is_close = outcomes is reference or least >= -points / 100 or reference.is_constant(sample)
    median = max(1, round(float(np.median(sample.length))))
    return Comparison(
        name=outcomes.candidate.name,
        rate=outcomes.candidate.to_dict(),
        is_calibrated=outcomes.candidate.is_calibrated,
        kept=round(outcomes.candidate.kept(median), 3),
        accuracy=float(right.mean()),
        balanced_accuracy=sample.balanced_mean(right),
        balanced_radius=sample.balanced_mean(radii),
        mean_radius=float(radii.mean()),
        accuracy_difference=float(accuracies.mean()),
        accuracy_error=error,
        balanced_difference=balanced,
        balanced_error=balanced_error,
        radius_difference=sample.balanced_mean(differences),
        radius_error=sample.balanced_error(differences),
        constant=constant,
        feasible=is_close and not constant,
    )


def reference_of(measured: Sequence[CandidateOutcomes], sample: Sample) -> CandidateOutcomes:
    """The most accurate candidate, by accuracy and balanced accuracy together; a constant answer only if all are."""
    varied = [outcomes for outcomes in measured if not outcomes.is_constant(sample)] or list(measured)

    def accuracy(outcomes: CandidateOutcomes) -> tuple[float, float]:
        right = outcomes.right(sample)
        return float(right.mean()) + sample.balanced_mean(right), sample.balanced_mean(outcomes.radii(sample))

    return max(varied, key=accuracy)


def choose(
    measured: Sequence[CandidateOutcomes], reference: CandidateOutcomes, sample: Sample, points: float
) -> CandidateOutcomes:
    """The feasible candidate with the largest class-balanced mean radius; a calibrated one must be clearly better.

    A calibrated rate is chosen if its class-balanced mean radius is larger than that of the best rate that needs no
    calibration by more than a standard error of the paired difference. A tie goes to the larger mean radius.
    """
    chosen = None
    for is_calibrated in (False, True):
        feasible = [
            outcomes
            for outcomes in measured
            if outcomes.candidate.is_calibrated == is_calibrated
            and compare(outcomes, reference, sample, points).feasible
        ]
        best = max(feasible, key=lambda outcomes: _radii(outcomes, sample), default=None)
        if best is not None and (chosen is None or clearly_better(best, chosen, sample)):
            chosen = best
    return chosen or reference


def _radii(outcomes: CandidateOutcomes, sample: Sample) -> tuple[float, float]:
    radii = outcomes.radii(sample)
    return round(sample.balanced_mean(radii), 9), float(radii.mean())


def clearly_better(outcomes: CandidateOutcomes, other: CandidateOutcomes, sample: Sample) -> bool:
    """Whether the class-balanced mean radius is larger by more than a standard error of the paired difference."""
    differences = outcomes.radii(sample) - other.radii(sample)
    return sample.balanced_mean(differences) > STANDARD_ERRORS * sample.balanced_error(differences)


def class_recalls(outcomes: CandidateOutcomes, sample: Sample, classes: Iterable[Any]) -> list[float | None]:
    """The share of right answers of every class; None for a class without inputs."""
    right = outcomes.right(sample)
    masks = [sample.label == number for number, _ in enumerate(classes)]
    return [float(right[mask].mean()) if mask.any() else None for mask in masks]
