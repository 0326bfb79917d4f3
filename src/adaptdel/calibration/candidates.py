"""The objective "balanced": measure candidate rates on labelled examples, compare them, and choose one.

A candidate is a whole rate: the fixed rate, AdaptDel's, or one whose kept length is a power of the length. All
candidates are measured on the same inputs, so that differences between them are paired. The largest class-balanced mean
radius wins among the candidates whose accuracy is close to that of the best rate that needs no calibration. Where a
base classifier is quick to train, it is trained again under every candidate, as it will be used. Every measurement is
kept in a store, from which an interrupted calibration resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Deletion, Noise, noise_from_dict
from adaptdel.core.rates import FixedRate, InterpolatedRate, LengthRate, Rate, rate_from_dict
from adaptdel.measures.class_measures import answer_warnings, class_balanced_mean, constant_answer, measure_classes
from adaptdel.measures.summary import Outcomes
from adaptdel.models.estimator import TextEstimator
from adaptdel.progress import reporter
from adaptdel.settings import CalibrationSettings, adaptdel_rate, default_rate
from adaptdel.store import START_AGAIN, Store
from adaptdel.tables import plural
from adaptdel.text.data import DrawnRows, ExampleSet, fold_of
from adaptdel.text.units import content_key
from adaptdel.training.training import TrainAgain, retraining

NO_RATE = (
    "no rate works here: with each of them, (almost) all inputs get the same answer, so radii mean nothing; train on "
    "more examples of the rare classes, with balanced class weights, or with --method exact"
)
LONGEST = 100_000  # tokens; a power of the length is constant beyond
KNOTS = 40  # lengths between which a power of the length is interpolated
MOST_SHARE = 0.5  # of the tokens that a candidate keeps: below a rate of 1/2 no radius above 0 can be certified
LEAST_KEEP = 1.0  # tokens: see `adaptdel.calibration.bins.search_interval`
STANDARD_ERRORS = 1.0  # to spare in comparisons of radii: a one-sided confidence of about 84%
ACCURACY_ERRORS = 1.645  # to spare in comparisons of accuracies: a one-sided confidence of about 95%
EXPONENTS = {"power 1/3": 1 / 3, "power 0": 0.0}
STEP = 0.8  # from a kept length to the next smaller one
MOST_STEPS = 6  # down or up, for an exponent; four times as many where the baselines give a constant answer
FEWEST_KEPT = 1.5  # tokens of an input of median length that a candidate keeps, at least
EXPECTED = 10  # candidates, for the progress
RECALL_LOSS = 0.05  # of a class, that is worth a warning
FOLDS = 3  # of a cross-validation
RECORDED = ("objective", "points", "min_count", "examples", "n_select", "n_estimate", "seed")

Folds = list[tuple[ExampleSet, list[int]]]  # for each: what to train on, and the numbers of what to measure
Parts = Iterable[tuple[Certifier, Sequence[int]]]  # who certifies which examples, by their numbers


# Examples and measurements


def examples_of(model: TextEstimator, texts: Sequence[Any], labels: Sequence[Any]) -> ExampleSet:
    """The texts split into tokens; ValueError unless the labels are classes of the model."""
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts must be a list of inputs, got a single {type(texts).__name__}: put it in a list")
    classes = model.base_classifier().classes_ or []
    listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if len(texts) != len(listed):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(listed)}")
    if not len(texts):
        raise ValueError("texts must hold at least one input, got none")
    for number, label in enumerate(listed):
        if label not in classes:
            raise ValueError(f"labels must be classes of the model, {classes!r:.200}, got {label!r} at {number}")
    return ExampleSet(list(model.split(texts)), listed)


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


def described(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values."""
    plan: Any = certifier.plan
    return {
        "model": certifier.fingerprint,
        "unit": certifier.unit.kind,
        "alpha": plan.alpha,
        "ops": list(plan.ops),
        "bound": plan.bound,
        "decision_threshold": plan.decision_threshold,
    }


@dataclass(frozen=True)
class Calibration:
    """A calibrated rate, as the ``noise`` to certify with.

    ``record`` is what was measured and why the rate was chosen, in plain values; its "warnings" are sentences to know
    before the rate is used. ``base`` is the base classifier that was trained under the rate, if it was trained again.
    """

    noise: Noise
    record: Mapping[str, Any]
    base: BaseClassifier | None = field(default=None, compare=False)

    @property
    def rate(self) -> Rate:
        """The deletion rate."""
        if not isinstance(self.noise, Deletion):
            raise ValueError(f"there is no deletion rate, but {self.noise!r}")
        return self.noise.rate


class CertifiedAnswers(NamedTuple):
    """Certified answers as columns of shape (examples,): class numbers, and radii, −1 for an abstention."""

    answer: IntArray
    radius: IntArray


Measure = Callable[[str, ExampleSet, Callable[[], Parts]], CertifiedAnswers]


@contextmanager
def measuring(
    settings: Mapping[str, Any], expected: int, *, checkpoint: Path | None = None, progress: Any = "auto"
) -> Iterator[Measure]:
    """A function that measures every candidate once: from the store, if an interrupted calibration has measured it.

    It gets a key that names the candidate, the examples, and who certifies them. ``settings`` are what the measurements
    depend on, and ``expected`` is about how many examples will be certified, for the progress.
    """
    if checkpoint is not None and not settings["model"]:
        raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
    report, finished = reporter(progress, "certificates"), 0
    store = None if checkpoint is None else Store(checkpoint, settings)
    known: dict[str, Any] = {} if store is None else dict(store.records())

    def say(more: int = 0) -> None:
        if report is not None:
            report(finished + more, max(expected, finished + more))

    def measure(key: str, examples: ExampleSet, parts: Callable[[], Parts]) -> CertifiedAnswers:
        nonlocal finished
        count, start = len(examples.labels), finished
        if key not in known:
            answer, radius = [0] * count, [0] * count
            for certifier, numbers in parts():
                plan = certifier.plan
                inputs = certifier.prepared((f"example {number}", examples.tokens[number]) for number in numbers)
                for index, evidence in certifier.observed(inputs, done=say):
                    answer[numbers[index]] = evidence.predicted(plan)
                    radius[numbers[index]] = evidence.radius(plan, plan.threat)
                finished += len(numbers)
            known[key] = {"answer": answer, "radius": radius}
            if store is not None:
                store.put(key, known[key])
                store.flush()
        columns, finished = known[key], start + count
        if not isinstance(columns, dict) or any(len(columns.get(name, ())) != count for name in ("answer", "radius")):
            raise ValueError(f"{checkpoint}, {key}: not a measurement: {START_AGAIN}")
        say()
        return CertifiedAnswers(*(np.array(columns[name], dtype=np.int64) for name in ("answer", "radius")))

    try:
        yield measure
        if report is not None:  # the number of candidates is known in advance only approximately
            report(finished, finished)
    finally:
        if store is not None:
            store.close()


# Candidates and their comparison


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

    An exponent of 0 keeps the same number of tokens at every length, 1 the same fraction.

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

    @property
    def median(self) -> float:
        """The median length, at least 1."""
        return max(1.0, float(np.median(self.length)))

    def balanced_mean(self, values: npt.NDArray[Any]) -> float:
        """The mean over classes of the mean of each class."""
        return class_balanced_mean(self.label, values)

    def balanced_error(self, values: npt.NDArray[Any]) -> float:
        """The standard error of `balanced_mean`."""
        numbers, variances = np.unique(self.label), []
        for number in numbers:
            inside = np.asarray(values[self.label == number], dtype=np.float64)
            variances.append(inside.var(ddof=1) / len(inside) if len(inside) > 1 else float(np.square(inside).max()))
        return sqrt(sum(variances)) / len(numbers)


@dataclass(frozen=True)
class CandidateOutcomes:
    """The certified answers under a candidate, as columns of shape (inputs,)."""

    candidate: Candidate  # the rate
    sample: Sample  # the inputs
    answer: IntArray  # the class number of the prediction
    radius: IntArray  # the certified radius, −1 for an abstention

    @property
    def right(self) -> BoolArray:
        """Whether each prediction is the label; abstentions count by their prediction."""
        return self.answer == self.sample.label

    @property
    def radii(self) -> IntArray:
        """The certified radii: 0 for wrong answers and abstentions, and at most the length.

        An input whose radius is its length is certified against every text of that length: more has no use, and would
        favour answers that do not depend on the input.
        """
        return np.where(self.right & (self.radius >= 0), np.minimum(self.radius, self.sample.length), 0)

    @property
    def is_constant(self) -> bool:
        """Whether almost all inputs get the same answer, although their labels differ."""
        return constant_answer(Outcomes.of(self.answer, self.radius, self.sample.label)) is not None


def compare(outcomes: CandidateOutcomes, reference: CandidateOutcomes, points: float) -> dict[str, Any]:
    """Compare a candidate with the reference, on the same inputs; it has to stay close to its accuracies.

    Errors are standard errors of the paired differences, "balanced" values means over classes, radii at most the
    length, and "kept" are the tokens of an input of median length. "feasible" says whether it may be chosen.

    A candidate is feasible if its answers are not constant, and if its accuracy and its balanced accuracy are lower
    than those of the reference by less than ``points`` percentage points. A calibrated rate has to show it with a
    confidence of about 95% (of the paired differences); a rate that needs no calibration gets the benefit of the doubt
    by a standard error. A reference with a constant answer limits nothing.
    """
    candidate, sample, right, radii = outcomes.candidate, outcomes.sample, outcomes.right, outcomes.radii
    accuracies = right.astype(np.float64) - reference.right
    differences = radii - reference.radii
    error = float(accuracies.std(ddof=1)) / sqrt(len(accuracies)) if len(accuracies) > 1 else 1.0
    balanced, balanced_error = sample.balanced_mean(accuracies), sample.balanced_error(accuracies)
    constant = outcomes.is_constant
    errors = ACCURACY_ERRORS if candidate.is_calibrated else -STANDARD_ERRORS
    least = min(float(accuracies.mean()) - errors * error, balanced - errors * balanced_error)
    is_close = outcomes is reference or least >= -points / 100 or reference.is_constant
    return {
        "name": candidate.name,
        "rate": candidate.to_dict(),
        "is_calibrated": candidate.is_calibrated,
        "kept": round(candidate.kept(round(sample.median)), 3),
        "accuracy": float(right.mean()),
        "balanced_accuracy": sample.balanced_mean(right),
        "balanced_radius": sample.balanced_mean(radii),
        "mean_radius": float(radii.mean()),
        "accuracy_difference": float(accuracies.mean()),
        "accuracy_error": error,
        "balanced_difference": balanced,
        "balanced_error": balanced_error,
        "radius_difference": sample.balanced_mean(differences),
        "radius_error": sample.balanced_error(differences),
        "constant": constant,
        "feasible": is_close and not constant,
    }


def reference_of(measured: Sequence[CandidateOutcomes]) -> CandidateOutcomes:
    """The most accurate candidate, by accuracy and balanced accuracy together; a constant answer only if all are."""
    varied = [outcomes for outcomes in measured if not outcomes.is_constant] or list(measured)
    return max(
        varied,
        key=lambda each: (
            float(each.right.mean()) + each.sample.balanced_mean(each.right),
            each.sample.balanced_mean(each.radii),
        ),
    )


def choose(measured: Sequence[CandidateOutcomes], reference: CandidateOutcomes, points: float) -> CandidateOutcomes:
    """The feasible candidate with the largest class-balanced mean radius; a calibrated one must be clearly better.

    A calibrated rate is chosen if its class-balanced mean radius is larger than that of the best rate that needs no
    calibration by more than a standard error of the paired difference. A tie goes to the larger mean radius.
    """
    feasible = [outcomes for outcomes in measured if compare(outcomes, reference, points)["feasible"]]

    def radius(outcomes: CandidateOutcomes) -> tuple[float, float]:
        radii = outcomes.radii
        return round(outcomes.sample.balanced_mean(radii), 9), float(radii.mean())

    chosen = max((each for each in feasible if not each.candidate.is_calibrated), key=radius, default=None)
    best = max((each for each in feasible if each.candidate.is_calibrated), key=radius, default=None)
    if best is not None and chosen is not None:
        gains = best.radii - chosen.radii
        if best.sample.balanced_mean(gains) <= STANDARD_ERRORS * best.sample.balanced_error(gains):
            return chosen
    return best or chosen or reference


# The objective


def baseline_rates(noise: Noise | None, rate: float, lengths: Sequence[int]) -> list[Candidate]:
    """The rates that need no calibration: the fixed rate of CERT-ED, and AdaptDel's rate.

    They are those of the model's noise, or else follow from ``rate`` and the lengths of inputs.
    """
    current = getattr(noise, "rate", None)
    if isinstance(current, LengthRate):
        adaptive, fixed = current, FixedRate(current.p_min)
    else:
        fixed = current if isinstance(current, FixedRate) else FixedRate(rate)
        adaptive = adaptdel_rate(lengths, fixed.p)
    return [Candidate("fixed", Deletion(fixed), False), Candidate("adaptdel", Deletion(adaptive), False)]


class SelectionTask:
    """A choice of a rate that is ready to run: settings checked, examples drawn.

    ``training`` are the texts and labels that a linear model was trained on, if it is to be trained again, and
    ``cross_validate`` says whether the inputs are among them. ``folds`` is how the base classifier is trained again
    (None if it is not), and ``settings`` everything that the result depends on, in plain values.
    """

    def __init__(
        self,
        model: TextEstimator,
        texts: Sequence[Any],
        labels: Sequence[Any],
        given: CalibrationSettings,
        training: tuple[Sequence[Any], Sequence[Any]] | None = None,
        *,
        cross_validate: bool = False,
    ) -> None:
        self.model = model
        self.certifier = model.certifier(model.calibration_plan(given))
        self.classes = self.certifier.classes
        record = model.records.training or {}
        self._train: TrainAgain | None = retraining(record)
        examples = examples_of(model, texts, labels)
        self.training = None if training is None or self._train is None else examples_of(model, *training)
        numbers = DrawnRows(given.examples, given.seed).positions(examples.labels)
        self.examples = some_of(examples, numbers)
        self.folds: Folds | None = None
        if self.training is not None:
            self.folds = [(self.training, list(range(len(numbers))))]
            if cross_validate:
                self.folds = cross_validation(list(map(str, texts)), examples, numbers, given.seed)
        label = np.array([self.classes.index(value) for value in self.examples.labels], dtype=np.int64)
        self.sample = Sample(np.array(self.examples.lengths, dtype=np.int64), label)
        self.measured: list[CandidateOutcomes] = []
        self.own: list[Candidate] = []
        rate, noise = record.get("rate") or default_rate(examples.lengths), model.current_noise
        if noise is not None and not noise.calibratable:
            for other in noise.calibration_candidates(examples.lengths):
                fields = ", ".join(f"{name}={value}" for name, value in other.to_dict().items() if name != "kind")
                self.own += [Candidate(f"{other.kind} {fields}", other, True)] if other != noise else []
            self.baselines = [Candidate("the model's noise", noise, False)]
        elif self.training is None:
            self.baselines = baseline_rates(noise, rate, examples.lengths)
        else:  # as the methods themselves would train; the given base classifier and its noise do not matter
            self.baselines = baseline_rates(None, rate, self.training.lengths)
        known = described(self.certifier)
        if self.training is not None:
            known["model"] = f"trained again: {json.dumps(record['settings'], sort_keys=True)}"
        self.settings: dict[str, Any] = {
            **{name: getattr(given, name) for name in RECORDED},
            **known,
            "classes": self.classes,
            "data": digest_of(self.examples),
            "rows": len(self.examples.labels),
            "baselines": [candidate.to_dict() for candidate in (*self.baselines, *self.own)],
            "folds": len(self.folds or []),
            "training_data": None if self.training is None else digest_of(self.training),
        }

    def run(self, *, checkpoint: Path | None = None, progress: Any = "auto") -> Calibration:
        """Measure the candidates and choose one."""
        points, expected = float(self.settings["points"]), EXPECTED * len(self.examples.labels)
        with measuring(self.settings, expected, checkpoint=checkpoint, progress=progress) as measure:
            for candidate in self.baselines:
                self._measure(candidate, measure)
            reference = reference_of(self.measured)
            for candidate in self.own:
                self._measure(candidate, measure)
            for name in EXPONENTS if not self.own else ():
                self._walk(measure, name, reference)
            if reference.is_constant:  # another one then is the most accurate
                reference = reference_of(self.measured)
                if reference.is_constant:
                    raise ValueError(NO_RATE)
            best = choose(self.measured, reference, points).candidate
            if best.name in EXPONENTS:  # half a step below the best kept length of the best exponent
                keep = best.kept(round(self.sample.median)) * (1 + STEP) / 2
                if keep >= FEWEST_KEPT:
                    self._measure(self._power(best.name, keep), measure)
            chosen = choose(self.measured, reference, points)
        answers, labels = ([self.classes[n] for n in column] for column in (chosen.answer, self.sample.label))
        by_class = measure_classes(Outcomes.of(answers, chosen.radius, labels), self.classes).to_dict()
        record = {
            "objective": "balanced",
            "rate": chosen.candidate.to_dict(),
            "chosen": next(n for n, each in enumerate(self.measured) if each is chosen),
            "reference": next(n for n, each in enumerate(self.measured) if each is reference),
            "candidates": [compare(outcomes, reference, points) for outcomes in self.measured],
            "classes": list(by_class["classes"]),
            "confusion": [list(map(int, row)) for row in by_class["confusion"] or ()],
            "settings": self.settings,
            "warnings": [*answer_warnings(answers, labels, self.sample.length), *self._warnings(chosen, reference)],
        }
        noise, base = candidate_noise(chosen.candidate.to_dict()), None
        if self.training is not None and self._train is not None:
            base = self._train(noise, self.training.tokens, self.training.labels)
        return Calibration(noise, record, base)

    def parts(self, noise: Noise) -> Iterator[tuple[Certifier, Sequence[int]]]:
        """Who measures a candidate on which inputs, by their numbers."""
        plan = replace(self.certifier.plan, noise=noise)  # type: ignore[call-arg] # of a model that calibrates a rate
        if self.folds is None or self._train is None:
            yield self.certifier.with_plan(plan), range(len(self.examples.labels))
            return
        for others, numbers in self.folds:
            trained = copy(self.model)
            trained.use_noise(noise, self._train(noise, others.tokens, others.labels))
            yield trained.certifier(plan), numbers

    def _measure(self, candidate: Candidate, measure: Measure) -> CandidateOutcomes:
        """The outcomes under a candidate; a rate that was measured under another name is not measured again."""
        for outcomes in self.measured:
            if outcomes.candidate.noise == candidate.noise:
                return outcomes
        key = json.dumps(candidate.to_dict(), sort_keys=True)
        answers = measure(key, self.examples, lambda: self.parts(candidate.noise))
        self.measured.append(CandidateOutcomes(candidate, self.sample, *answers))
        return self.measured[-1]

    def _walk(self, measure: Measure, name: str, reference: CandidateOutcomes) -> None:
        """Measure smaller and smaller kept lengths until the accuracy is too low; or larger ones until it is not.

        The first candidate keeps as many tokens of an input of median length as AdaptDel.
        """
        median = self.sample.median
        keep = min(max(self.baselines[-1].kept(round(median)), FEWEST_KEPT), max(median / 2, 1.0))
        down = None
        for _ in range(MOST_STEPS * (4 if reference.is_constant else 1)):  # then any other answers will do
            outcomes = self._measure(self._power(name, keep), measure)
            is_feasible = compare(outcomes, reference, float(self.settings["points"]))["feasible"]
            down = is_feasible if down is None else down
            following = keep * STEP if down else keep / STEP
            if is_feasible != down or following < FEWEST_KEPT or following > median / 2:
                return
            keep = following

    def _power(self, name: str, keep: float) -> Candidate:
        return Candidate(name, Deletion(power_rate(keep, self.sample.median, EXPONENTS[name])), True)

    def _warnings(self, chosen: CandidateOutcomes, reference: CandidateOutcomes) -> list[str]:
        sentences, count = [], len(self.sample.length)
        if count < self.settings["min_count"]:
            sentences.append(f"the rate was chosen on {count} inputs only")
        for number, label in enumerate(self.classes):
            inside = self.sample.label == number
            old, new = (float(each.right[inside].mean()) if inside.any() else 0.0 for each in (reference, chosen))
            if old - new > RECALL_LOSS:
                sentences.append(f"the recall of class {label!r} is {new:.3g}, and {old:.3g} without calibration")
        return sentences


def cross_validation(texts: Sequence[str], examples: ExampleSet, numbers: Sequence[int], seed: int) -> Folds:
    """For each fold: the examples outside it, and the positions in ``numbers`` of those that are inside.

    Texts that are equal, or differ in spacing only, are in the same fold: see `fold_of`. ValueError if a class has no
    example outside a fold: a model could not be trained there.
    """
    fold = [fold_of(text, FOLDS, seed) for text in texts]
    result: Folds = []
    for number in range(FOLDS):
        outside = [place for place in range(len(texts)) if fold[place] != number]
        inside = [index for index, place in enumerate(numbers) if fold[place] == number]
        missing = set(examples.labels) - {examples.labels[place] for place in outside}
        if inside and missing:
            rare = min(missing, key=str)
            count = sum(label == rare for label in examples.labels)
            raise ValueError(
                f"the class {rare!s} has {plural(count, 'example')}, too few for a cross-validation, in which every "
                "part is left out of training once: give at least 10 of each class, leave the class out, or use the "
                "model without calibration"
            )
        if inside:
            result.append((some_of(examples, outside), inside))
    return result
