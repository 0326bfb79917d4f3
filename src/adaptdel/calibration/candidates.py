"""Candidate rates: their certified answers on labelled examples, resumable, and how they are compared.

A candidate of the objective "balanced" is a whole rate: the fixed rate, AdaptDel's rate, or one whose kept length is a
power of the length. All candidates are measured on the same inputs, so that differences between them are paired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan, content_key
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Deletion, Noise, noise_from_dict
from adaptdel.core.rates import InterpolatedRate, rate_from_dict
from adaptdel.core.threat import Threat
from adaptdel.measures.class_measures import class_balanced_mean, constant_answer
from adaptdel.measures.summary import Outcomes
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import reporter
from adaptdel.settings import CalibrationSettings
from adaptdel.store import START_AGAIN, Store
from adaptdel.text.data import ExampleSet
from adaptdel.text.units import Tokens, Unit

NO_RATE = (
    "no rate works here: under each of them (almost) all inputs get the same answer, whose radii say nothing; train on "
    "more examples of the rare classes, with balanced class weights, or with --method exact"
)
LONGEST = 100_000  # tokens; a power of the length is constant beyond
KNOTS = 40  # lengths between which a power of the length is interpolated
MOST_SHARE = 0.5  # of the tokens that a candidate keeps: below a rate of 1/2 no radius above 0 can be certified
LEAST_KEEP = 1.0  # tokens: see `adaptdel.calibration.bins.search_interval`
STANDARD_ERRORS = 1.0  # to spare in comparisons of radii: a one-sided confidence of about 84%
ACCURACY_ERRORS = 1.645  # to spare in comparisons of accuracies: a one-sided confidence of about 95%


# Examples and measurements


def examples_of(texts: Sequence[Any], labels: Sequence[Any], unit: Unit, classes: Sequence[Any]) -> ExampleSet:
    """The texts split into tokens; ValueError unless the labels are classes of the model."""
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts must be a list of inputs, got a single {type(texts).__name__}: put it in a list")
    listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if len(texts) != len(listed):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(listed)}")
    if not len(texts):
        raise ValueError("texts must hold at least one input, got none")
    for number, label in enumerate(listed):
        if label not in classes:
            raise ValueError(f"labels must be classes of the model, {classes!r:.200}, got {label!r} at {number}")
    return ExampleSet([_split(unit, text, number) for number, text in enumerate(texts)], listed)


def _split(unit: Unit, text: Any, number: int) -> Tokens:
    try:
        return unit.split(text)
    except ValueError as error:
        raise ValueError(f"input {number}: {error}") from None


def drawn(numbers: Sequence[int], most: int, seed: tuple[int, int]) -> list[int]:
    """At most ``most`` of the numbers, drawn by the seed, in their order."""
    if len(numbers) <= most:
        return list(numbers)
    return sorted(np.random.default_rng(seed).choice(numbers, size=most, replace=False).tolist())


def some_of(examples: ExampleSet, numbers: Iterable[int]) -> ExampleSet:
    """Some of the examples, by their numbers."""
    listed = list(numbers)
    return ExampleSet([examples.tokens[n] for n in listed], [examples.labels[n] for n in listed])


def digest_of(examples: ExampleSet) -> str:
    """A hash of all tokens and labels, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for tokens, label in zip(examples.tokens, examples.labels, strict=True):
        digest.update(content_key(tokens) + json.dumps(label, default=repr).encode() + b"\n")
    return digest.hexdigest()


def constant_keep(keep: float) -> Deletion:
    """The noise that keeps ``keep`` tokens on average, whatever the length.

    >>> constant_keep(4).rate(16)
    0.75
    """
    return Deletion(InterpolatedRate((1,), (keep,)))


def calibration_certifier(
    model: SmoothedClassifier, settings: CalibrationSettings, *, own_noise: bool = False
) -> Certifier:
    """The engine that certifies examples: the model's threat, on random streams of its own.

    ``own_noise`` is whether candidates may come from a noise of the user's own.
    """
    noise = getattr(model, "noise_", None) or model.noise
    if noise is not None and not noise.calibratable:
        has_candidates = type(noise).calibration_candidates is not Noise.calibration_candidates
        if not (own_noise and has_candidates and not noise.sees_tokens()):
            raise ValueError(
                "model must have a deletion noise to be calibrated, or for the objective 'balanced' one that defines "
                f"calibration_candidates, got {noise!r}"
            )
    if not hasattr(model, "base_") and model.base is None:
        raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
    # A protecting threshold belongs to one rate: it is removed afterwards.
    threshold = None if getattr(model, "protection_", None) else model.threshold
    rule = Rule(constant_keep(1), Threat(model.ops).ops, settings.bound or model.bound, threshold)
    plan = SamplingPlan(
        rule,
        model.alpha if settings.alpha is None else settings.alpha,
        settings.n_select,
        settings.n_estimate,
        sampling="fixed",
        seed=settings.seed,
        exact=False,
        phases=CALIBRATION,
    )
    return Certifier(model.base_classifier(), plan, model.unit)


def described(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values."""
    rule = certifier.rule
    return {
        "model": certifier.fingerprint,
        "unit": certifier.unit.kind,
        "alpha": certifier.plan.alpha,
        "ops": list(rule.ops),
        "bound": rule.bound,
        "decision_threshold": rule.threshold,
    }


class CertifiedAnswers(NamedTuple):
    """Certified answers as columns of shape (examples,): class numbers, and radii, −1 for an abstention."""

    answer: IntArray
    radius: IntArray


Parts = Iterable[tuple[Certifier, Sequence[int]]]  # who certifies which examples, by their numbers


class Measurer:
    """Measures every candidate once: from the store, if an interrupted calibration has measured it.

    Args:
        settings: what the measurements depend on, in plain values.
        expected: about how many examples will be certified, for the progress.
        checkpoint: the file of the store; None for none.
        progress: True, False, "auto" or a callable (done, total).
    """

    def __init__(
        self, settings: Mapping[str, Any], expected: int, *, checkpoint: Path | None = None, progress: Any = "auto"
    ) -> None:
        if checkpoint is not None and not settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        self._report = reporter(progress, "certificates")
        self._expected, self._done = expected, 0
        self._store = None if checkpoint is None else Store(checkpoint, settings)
        self._known: dict[str, Any] = {} if self._store is None else dict(self._store.records())

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._store is not None:
            self._store.close()

    def __call__(self, key: str, examples: ExampleSet, parts: Callable[[], Parts]) -> CertifiedAnswers:
        """The outcomes of examples under the candidate that the key names."""
        count = len(examples.labels)
        if key in self._known:
            self._done += count
        else:
            self._known[key] = self._measured(examples, parts())
            if self._store is not None:
                self._store.put(key, self._known[key])
                self._store.flush()
        columns = self._known[key]
        if not isinstance(columns, dict) or any(len(columns.get(name, ())) != count for name in ("answer", "radius")):
            raise ValueError(f"{self._store and self._store.path}, {key}: not a measurement: {START_AGAIN}")
        self._say(0)
        return CertifiedAnswers(*(np.array(columns[name], dtype=np.int64) for name in ("answer", "radius")))

    def finish(self) -> None:
        """Report that everything is done: the number of candidates is known in advance only approximately."""
        self._expected = self._done
        self._say(0)

    def _measured(self, examples: ExampleSet, parts: Parts) -> dict[str, list[int]]:
        answer, radius = [0] * len(examples.labels), [0] * len(examples.labels)
        for certifier, numbers in parts:
            inputs = [certifier.prepare_tokens(examples.tokens[number], f"example {number}") for number in numbers]
            for index, tally in certifier.votes(inputs, done=self._say):
                certificate = certifier.certificate(inputs[index], tally)
                answer[numbers[index]], radius[numbers[index]] = tally.label, certificate.radius
            self._done += len(numbers)
        return {"answer": answer, "radius": radius}

    def _say(self, more: int) -> None:
        if self._report is not None:
            done = self._done + more
            self._report(done, max(self._expected, done))


# Candidates


@dataclass(frozen=True)
class Candidate:
    """A rate to compare, or a noise of the user's own."""

    name: str  # "fixed", "adaptdel", or "power 1/3" and so on
    noise: Noise  # the deletion with the rate, or the own noise
    is_calibrated: bool  # whether it needs calibration: not the fixed rate of CERT-ED, nor AdaptDel's

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
    """The inputs on which candidates are compared, as columns of shape (inputs,)."""

    length: IntArray  # the number of tokens
    label: IntArray  # the class number of the true label
    repeats: int = 1  # how often each input occurs; inputs that were measured twice tell no more about other inputs

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
        return Sample(length, label, repeats)


@dataclass(frozen=True)
class CandidateOutcomes:
    """The certified answers under a candidate, as columns of shape (inputs,)."""

    candidate: Candidate  # the rate
    answer: IntArray  # the class number of the prediction
    radius: IntArray  # the certified radius, −1 for an abstention

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
    """A candidate against the reference, on the same inputs; errors are standard errors of the differences."""

    name: str
    rate: Mapping[str, Any]
    is_calibrated: bool
    kept: float  # tokens of an input of median length
    accuracy: float
    balanced_accuracy: float  # the mean over classes
    balanced_radius: float  # the mean over classes of the mean certified radius, each radius at most the length
    mean_radius: float
    accuracy_difference: float
    accuracy_error: float
    balanced_difference: float
    balanced_error: float
    radius_difference: float  # of the class-balanced mean radius
    radius_error: float
    constant: bool  # whether almost all inputs get the same answer
    feasible: bool  # whether it may be chosen


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
