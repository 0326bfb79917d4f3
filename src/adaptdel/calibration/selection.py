"""The objective "balanced": choose a whole rate, among candidates that include the fixed rate and AdaptDel's.

The largest class-balanced mean radius wins among the candidates whose accuracy is close to that of the best rate that
needs no calibration. Where a base classifier is quick to train, it is trained again under every candidate, as it will
be used. Resumable: every candidate that was measured is kept in a store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.candidates import (
    NO_RATE,
    Candidate,
    CandidateOutcomes,
    Measurer,
    Sample,
    calibration_certifier,
    choose,
    class_recalls,
    clearly_better,
    compare,
    described,
    digest_of,
    drawn,
    examples_of,
    power_rate,
    reference_of,
    some_of,
)
from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.measures.class_measures import answer_warnings, measure_classes
from adaptdel.measures.summary import Outcomes
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CalibrationSettings, adaptdel_rate, default_rate
from adaptdel.text.data import ExampleSet, held_out, without_spacing
from adaptdel.training.training import TrainAgain, retraining

EXPONENTS = {"power 1/3": 1 / 3, "power 0": 0.0}
STEP = 0.8  # from a kept length to the next smaller one
MOST_STEPS = 6  # down or up, for an exponent; four times as many where the baselines give a constant answer
FEWEST_KEPT = 1.5  # tokens of an input of median length that a candidate keeps, at least
EXPECTED = 10  # candidates, for the progress
RECALL_LOSS = 0.05  # of a class, that is worth a warning
FOLDS = 3  # of a cross-validation
RECORDED = ("objective", "points", "min_count", "examples", "n_select", "n_estimate", "seed")

Folds = list[tuple[ExampleSet, list[int]]]  # for each: what to train on, and the numbers of what to measure


@dataclass(frozen=True)
class Inputs:
    """Inputs on which candidates are measured."""

    examples: ExampleSet  # the inputs
    sample: Sample  # the same as columns
    folds: Folds | None = None  # how the base classifier is trained again for them; None if it is not
    is_fresh: bool = False  # of a second measurement, whether these are other inputs than those of the first


def baseline_rates(noise: Noise | None, rate: float, lengths: Sequence[int]) -> list[Candidate]:
    """The rates that need no calibration: the fixed rate of CERT-ED, and AdaptDel's rate.

    Args:
        noise: the noise of the model; if it is AdaptDel's, its k is used.
        rate: the smallest rate of AdaptDel, and the rate of CERT-ED, if the noise is of another kind.
        lengths: of inputs, from which k is computed if the noise is of another kind.
    """
    current = getattr(noise, "rate", None)
    if isinstance(current, LengthRate):
        adaptive, fixed = current, FixedRate(current.p_min)
    else:
        fixed = current if isinstance(current, FixedRate) else FixedRate(rate)
        adaptive = adaptdel_rate(lengths, fixed.p)
    return [Candidate("fixed", Deletion(fixed), False), Candidate("adaptdel", Deletion(adaptive), False)]


def _described_noise(noise: Noise) -> str:
    fields = [f"{name}={value}" for name, value in noise.to_dict().items() if name != "kind"]
    return f"{noise.kind} {', '.join(fields)}"


class SelectionTask:
    """A choice of a rate that is ready to run: settings checked, examples drawn.

    Args:
        model: the model.
        texts: the inputs to measure candidates on.
        labels: their labels.
        settings: the settings.
        training: the texts and labels that a linear model was trained on, if it is to be trained again.
        cross_validate: whether the inputs are texts of the training set, too.

    Attributes:
        first: the inputs on which candidates are measured.
        second: inputs on which the chosen candidate is measured again; None if there are none.
        settings: everything that the result depends on, in plain values.
    """

    def __init__(
        self,
        model: SmoothedClassifier,
        texts: Sequence[Any],
        labels: Sequence[Any],
        settings: CalibrationSettings,
        training: tuple[Sequence[Any], Sequence[Any]] | None = None,
        *,
        cross_validate: bool = False,
    ) -> None:
        certifier = calibration_certifier(model, settings, own_noise=True)
        # Candidates are compared by the majority answer: a protecting threshold belongs to one rate, chosen later.
        rule = replace(certifier.rule, threshold=None)
        self.certifier = certifier.with_plan(replace(certifier.plan, rule=rule, sampling="adaptive", exact=True))
        self.classes = list(self.certifier.base.classes_ or [])
        if not self.classes:
            raise ValueError("the objective 'balanced' needs a base classifier that knows its classes: give classes=")
        record = getattr(model, "training_", None) or {}
        self._train: TrainAgain | None = retraining(record)
        examples = self._examples(texts, labels)
        self.training = None if training is None or self._train is None else self._examples(*training)
        self.first, self.second = self._inputs(list(map(str, texts)), examples, settings, training, cross_validate)
        rate = record.get("rate") or default_rate(examples.lengths)
        known = described(self.certifier)
        noise = getattr(model, "noise_", None) or model.noise
        self.own: list[Candidate] = []
        if noise is not None and not noise.calibratable:
            own = noise.calibration_candidates(examples.lengths)
            self.own = [Candidate(_described_noise(other), other, True) for other in own if other != noise]
            self.baselines = [Candidate("the model's noise", noise, False)]
        elif self.training is None:
            self.baselines = baseline_rates(noise, rate, examples.lengths)
        else:  # as the methods themselves would train; the given base classifier and its noise do not matter
            self.baselines = baseline_rates(None, rate, self.training.lengths)
        if self.training is not None:
            known["model"] = f"trained again: {json.dumps(record['settings'], sort_keys=True)}"
        self.settings: dict[str, Any] = {
            **{name: getattr(settings, name) for name in RECORDED},
            **known,
            "classes": self.classes,
            "data": digest_of(self.first.examples),
            "second_data": None if self.second is None else digest_of(self.second.examples),
            "rows": len(self.first.examples.labels),
            "baselines": [candidate.to_dict() for candidate in (*self.baselines, *self.own)],
            "folds": len(self.first.folds or []),
            "training_data": None if self.training is None else digest_of(self.training),
        }

    def run(self, *, checkpoint: Path | None = None, progress: Any = "auto") -> dict[str, Any]:
        """Measure the candidates and choose one: the record of the choice."""
        expected = EXPECTED * len(self.first.examples.labels)
        with Measurer(self.settings, expected, checkpoint=checkpoint, progress=progress) as measurer:
            measure = MeasuredCandidates(self, self.first, measurer)
            baselines = [measure(candidate) for candidate in self.baselines]
            reference = reference_of(baselines, self.first.sample)
            for candidate in self.own:
                measure(candidate)
            for name, exponent in EXPONENTS.items() if not self.own else ():
                self._walk(measure, name, exponent, reference)
            if reference.is_constant(self.first.sample):  # another one then is the most accurate
                reference = reference_of(measure.all, self.first.sample)
                if reference.is_constant(self.first.sample):
                    raise ValueError(NO_RATE)
            self._refine(measure, reference)
            again = None if self.second is None else MeasuredCandidates(self, self.second, measurer, "again ")
            chosen, confirmation, rejected = confirmed(measure, again, reference, self._points)
            measurer.finish()
        classes, confusion = self._by_class(chosen)
        return {
            "objective": "balanced",
            "rate": chosen.candidate.to_dict(),
            "chosen": measure.place(chosen),
            "reference": measure.place(reference),
            "candidates": [
                asdict(compare(outcomes, reference, self.first.sample, self._points)) for outcomes in measure.all
            ],
            "rejected": [measure.place(outcomes) for outcomes in rejected],
            "confirmation": confirmation,
            "classes": classes,
            "confusion": confusion,
            "settings": self.settings,
            "warnings": self._warnings(chosen, reference),
        }

    def final_base(self, noise: Noise) -> BaseClassifier | None:
        """The base classifier trained under the chosen noise; None if it is not trained again."""
        if self.training is None or self._train is None:
            return None
        return self._train(noise, self.training.tokens, self.training.labels)

    def certifiers(self, candidate: Candidate, inputs: Inputs) -> Iterator[tuple[Certifier, Sequence[int]]]:
        """Who measures a candidate on which inputs, by their numbers."""
        noise = candidate.noise
        if inputs.folds is None or self._train is None:
            yield self.certifier.under(noise), range(len(inputs.examples.labels))
            return
        for others, numbers in inputs.folds:
            base = self._train(noise, others.tokens, others.labels)
            yield self.certifier.with_base(base).under(noise), numbers

    def _examples(self, texts: Sequence[Any], labels: Sequence[Any]) -> ExampleSet:
        return examples_of(texts, labels, self.certifier.unit, self.classes)

    def _inputs(
        self,
        texts: list[str],
        examples: ExampleSet,
        settings: CalibrationSettings,
        training: tuple[Sequence[Any], Sequence[Any]] | None,
        cross_validate: bool,
    ) -> tuple[Inputs, Inputs | None]:
        """The inputs of both measurements; the second is on other ones if there are half as many or more."""
        most, seed = settings.examples, settings.seed
        numbers = drawn(range(len(examples.labels)), most, (seed, 2))
        rest = sorted({*range(len(examples.labels))} - {*numbers})
        others = drawn(rest, most, (seed + 1, 2)) if 2 * len(rest) >= len(numbers) else []
        if self.training is None:
            second = self._some(examples, others, None, is_fresh=True) if others else None
            return self._some(examples, numbers, None), second
        if cross_validate:
            first = self._some(examples, numbers, cross_validation(texts, examples, numbers, seed))
            again = others or numbers
            folds = cross_validation(texts, examples, again, seed + 1)
            return first, self._some(examples, again, folds, is_fresh=bool(others))
        assert training is not None
        first = self._some(examples, numbers, [(self.training, list(range(len(numbers))))])
        again = drawn(range(len(self.training.labels)), most, (seed + 1, 2))  # the rate was measured on held-out texts
        folds = cross_validation(list(map(str, training[0])), self.training, again, seed + 1)
        return first, self._some(self.training, again, folds, is_fresh=True)

    def _some(self, examples: ExampleSet, numbers: list[int], folds: Folds | None, *, is_fresh: bool = False) -> Inputs:
        chosen = some_of(examples, numbers)
        label = np.array([self.classes.index(value) for value in chosen.labels], dtype=np.int64)
        sample = Sample(np.array(chosen.lengths, dtype=np.int64), label)
        return Inputs(chosen, sample, folds, is_fresh)

    @property
    def _points(self) -> float:
        return float(self.settings["points"])

    def _walk(self, measure: MeasuredCandidates, name: str, exponent: float, reference: CandidateOutcomes) -> None:
        """Measure smaller and smaller kept lengths until the accuracy is too low; or larger ones until it is not."""
        keep, down = self._start, None
        all_the_way = reference.is_constant(self.first.sample)  # any other answers will do
        for _ in range(MOST_STEPS * (4 if all_the_way else 1)):
            outcomes = measure(self._power(name, exponent, keep))
            is_feasible = compare(outcomes, reference, self.first.sample, self._points).feasible
            down = is_feasible if down is None else down
            if is_feasible != down:
                return
            following = keep * STEP if down else keep / STEP
            if following < FEWEST_KEPT or following > self._median / 2:
                return
            keep = following

    def _refine(self, measure: MeasuredCandidates, reference: CandidateOutcomes) -> None:
        """Measure half a step below the best kept length of the best exponent."""
        best = choose(measure.all, reference, self.first.sample, self._points).candidate
        if best.name in EXPONENTS:
            keep = best.kept(round(self._median)) * (1 + STEP) / 2
            if keep >= FEWEST_KEPT:
                measure(self._power(best.name, EXPONENTS[best.name], keep))

    def _power(self, name: str, exponent: float, keep: float) -> Candidate:
        return Candidate(name, Deletion(power_rate(keep, self._median, exponent)), True)

    @property
    def _median(self) -> float:
        return max(1.0, float(np.median(self.first.sample.length)))

    @property
    def _start(self) -> float:
        """As many tokens as AdaptDel keeps of an input of median length."""
        kept = self.baselines[-1].kept(round(self._median))
        return min(max(kept, FEWEST_KEPT), max(self._median / 2, 1.0))

    def _by_class(self, chosen: CandidateOutcomes) -> tuple[list[Any], list[list[int]]]:
        """The measures by class under the chosen candidate, and its confusion matrix."""
        answers, labels = self._answers(chosen)
        values = measure_classes(Outcomes.of(answers, chosen.radius, labels), self.classes).to_dict()
        return list(values["classes"]), [list(map(int, row)) for row in values["confusion"] or ()]

    def _answers(self, outcomes: CandidateOutcomes) -> tuple[list[Any], list[Any]]:
        answers, labels = (
            [self.classes[number] for number in column] for column in (outcomes.answer, self.first.sample.label)
        )
        return answers, labels

    def _warnings(self, chosen: CandidateOutcomes, reference: CandidateOutcomes) -> list[str]:
        sample = self.first.sample
        sentences = answer_warnings(*self._answers(chosen), sample.length)
        if len(sample.length) < self.settings["min_count"]:
            sentences.append(f"the rate was chosen on {len(sample.length)} inputs only")
        uncalibrated, calibrated = (class_recalls(outcomes, sample, self.classes) for outcomes in (reference, chosen))
        for label, old, new in zip(self.classes, uncalibrated, calibrated, strict=True):
            if old is not None and new is not None and old - new > RECALL_LOSS:
                sentences.append(f"the recall of class {label!r} is {new:.3g}, and {old:.3g} without calibration")
        return sentences


class MeasuredCandidates:
    """The candidates that were measured on some inputs, each once; ``prefix`` begins their keys in the store."""

    def __init__(self, task: SelectionTask, inputs: Inputs, measurer: Measurer, prefix: str = "") -> None:
        self.task, self.inputs, self.measurer, self.prefix = task, inputs, measurer, prefix
        self.all: list[CandidateOutcomes] = []

    def __call__(self, candidate: Candidate) -> CandidateOutcomes:
        """The outcomes under a candidate; a rate that was measured under another name is not measured again."""
        for outcomes in self.all:
            if outcomes.candidate.noise == candidate.noise:
                return outcomes
        key = self.prefix + json.dumps(candidate.to_dict(), sort_keys=True)
        parts: Callable[[], Any] = lambda: self.task.certifiers(candidate, self.inputs)  # noqa: E731
        self.all.append(CandidateOutcomes(candidate, *self.measurer(key, self.inputs.examples, parts)))
        return self.all[-1]

    def place(self, wanted: CandidateOutcomes) -> int:
        """The number of an outcome in the order of the measurements."""
        return next(number for number, outcomes in enumerate(self.all) if outcomes is wanted)


def confirmed(
    measure: MeasuredCandidates, again: MeasuredCandidates | None, reference: CandidateOutcomes, points: float
) -> tuple[CandidateOutcomes, dict[str, Any] | None, list[CandidateOutcomes]]:
    """The best candidate that keeps its accuracy and its gain in both measurements; the second one; those rejected.

    The best of many candidates looks better than it is, and the accuracy of a trained model varies with the training,
    which the standard errors of the first measurement do not show. The second one is on other inputs if there are
    enough, otherwise on the same ones in another cross-validation.
    """
    sample, rejected = measure.inputs.sample, list[CandidateOutcomes]()
    while True:
        left = [outcomes for outcomes in measure.all if not any(outcomes is other for other in rejected)]
        chosen = choose(left, reference, sample, points)
        if chosen is reference or not chosen.candidate.is_calibrated or again is None:
            return chosen, None, rejected
        simple = [outcomes for outcomes in left if not outcomes.candidate.is_calibrated]
        baseline = choose(simple, reference, sample, points)
        second = again.inputs
        both = sample.joined(second.sample, same_inputs=not second.is_fresh)
        pooled = [outcomes.joined(again(outcomes.candidate)) for outcomes in (chosen, reference, baseline)]
        is_close = compare(pooled[0], pooled[1], both, points).feasible
        if is_close and clearly_better(pooled[0], pooled[2], both):
            own = compare(again(chosen.candidate), again(reference.candidate), second.sample, points)
            shown = {"rows": len(second.sample.label), "is_fresh": second.is_fresh, "comparison": asdict(own)}
            return chosen, shown, rejected
        rejected.append(chosen)


def cross_validation(texts: Sequence[str], examples: ExampleSet, numbers: Sequence[int], seed: int) -> Folds:
    """For each fold: the examples outside it, and the places in ``numbers`` of those that are inside.

    A text belongs to a fold by its words and the seed, so that texts that are equal, or differ in spacing only, are in
    the same fold. ValueError if a class has no example outside a fold: a model could not be trained there.
    """
    keys = [without_spacing(text) for text in texts]
    fold = np.zeros(len(texts), dtype=np.int64)
    for number, (low, high) in enumerate(pairwise([number / FOLDS for number in range(FOLDS + 1)])):
        fold[[held_out(key, high, seed) and not (low and held_out(key, low, seed)) for key in keys]] = number
    result: Folds = []
    for number in range(FOLDS):
        outside = [place for place in range(len(texts)) if fold[place] != number]
        inside = [index for index, place in enumerate(numbers) if fold[place] == number]
        missing = set(examples.labels) - {examples.labels[place] for place in outside}
        if inside and missing:
            rare = min(missing, key=str)
            count = sum(label == rare for label in examples.labels)
            raise ValueError(
                f"the class {rare!s} has {count} {'example' if count == 1 else 'examples'}, too few for a "
                "cross-validation, in which every part is left out of training once: give at least 10 of each class, "
                "leave the class out, or use the model without calibration"
            )
        if inside:
            result.append((some_of(examples, outside), inside))
    return result
