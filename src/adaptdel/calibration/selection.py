"""The objective "balanced": choose a whole rate, among candidates that include the fixed rate and AdaptDel's.

The largest class-balanced mean radius wins among the candidates whose accuracy is close to that of the best rate that
needs no calibration. Where a base classifier is quick to train, it is trained again under every candidate, as it will
be used. Resumable: every candidate that was measured is kept in a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.candidates import (
    Candidate,
    CandidateOutcomes,
    Sample,
    choose,
    class_recalls,
    clearly_better,
    compare,
    grouped_rate,
    power_rate,
    reference_of,
)
from adaptdel.calibration.checkpoint import OutcomeCheckpoint
from adaptdel.calibration.examples import ExampleCertifier
from adaptdel.calibration.rate_selection import Confirmation, RateSelection
from adaptdel.calibration.search import CalibrationExamples
from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import FixedRate, LengthRate, Rate
from adaptdel.engines.engine import Engine
from adaptdel.measures.class_measures import answer_warnings, measure_classes
from adaptdel.measures.summary import Outcomes
from adaptdel.progress import reporter
from adaptdel.settings import CalibrationSettings, adaptdel_rate
from adaptdel.text.data import held_out, without_spacing
from adaptdel.text.units import Tokens

EXPONENTS = {"power 1/3": 1 / 3, "power 0": 0.0}
STEP = 0.8  # from a kept length to the next smaller one
MOST_STEPS = 6  # down or up, for an exponent
FEWEST_KEPT = 1.5  # tokens of an input of median length that a candidate keeps, at least
EXPECTED = 10  # candidates, for the progress
RECALL_LOSS = 0.05  # of a class, that is worth a warning

Train = Callable[[Noise, Sequence[Tokens], Sequence[Any]], BaseClassifier]


@dataclass(frozen=True)
class Refit:
    """How a base classifier is trained again under a candidate.

    Attributes:
        train: trains a base classifier on tokens and labels under a noise.
        examples: what the final base classifier is trained on.
        folds: the rows to train on and, by their place in the sample, the rows to measure on: one pair, or one for each
            fold of a cross-validation.
    """

    train: Train
    examples: CalibrationExamples
    folds: Sequence[tuple[CalibrationExamples, Sequence[int]]]


@dataclass(frozen=True)
class MeasuredInputs:
    """Inputs on which candidates are measured.

    Attributes:
        examples: the inputs.
        sample: the same as columns.
        folds: see `Refit`; None if the base classifier is not trained again.
        is_fresh: of a second measurement, whether these are other inputs than those of the first.
    """

    examples: CalibrationExamples
    sample: Sample
    folds: Sequence[tuple[CalibrationExamples, Sequence[int]]] | None
    is_fresh: bool = False


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
    return [Candidate("fixed", fixed, 0), Candidate("adaptdel", adaptive, 0)]


@dataclass
class SelectionTask:
    """A choice of a rate that is ready to run.

    Attributes:
        certifier: the engine; each candidate replaces its noise, and a refit its base classifier.
        examples: the inputs on which candidates are measured.
        sample: the same as columns.
        baselines: the rates that need no calibration.
        settings: everything that the result depends on, in plain values.
        refit: how the base classifier is trained again; None to measure the given one.
        second: inputs on which the chosen candidate is measured again; None if there are none.
    """

    certifier: Certifier
    examples: CalibrationExamples
    sample: Sample
    baselines: list[Candidate]
    settings: dict[str, Any]
    refit: Refit | None = None
    second: MeasuredInputs | None = None

    def run(
        self,
        *,
        checkpoint: Path | None = None,
        progress: Any = "auto",
        earlier: object = None,
        engine: Engine | None = None,
    ) -> RateSelection:
        """Measure the candidates and choose one; an ``earlier`` choice by the same settings is taken over."""
        if isinstance(earlier, RateSelection) and dict(earlier.settings) == self.settings:
            return replace(earlier, base=self._final_base(earlier.rate))
        if checkpoint is not None and not self.settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        with (
            OutcomeCheckpoint(checkpoint, self.settings) as store,
            ExampleCertifier(engine) as certify,
        ):
            folds = None if self.refit is None else self.refit.folds
            inputs = MeasuredInputs(self.examples, self.sample, folds)
            measure = _Measure(self, inputs, store, reporter(progress, "certificates"), certify)
            baselines = [measure(candidate) for candidate in self.baselines]
            reference = reference_of(baselines, self.sample)
            for name, exponent in EXPONENTS.items():
                self._walk(measure, name, exponent, reference)
            self._refine(measure, reference)
            rate = grouped_rate(measure.all, reference, self.sample, self._points, self.settings["min_count"])
            if rate is not None:
                measure(Candidate("groups", rate, 2))
            chosen, confirmation, rejected = self._confirmed(measure, reference)
            measure.finish()
        return RateSelection(
            chosen.candidate.rate,
            _place(measure.all, chosen),
            _place(measure.all, reference),
            tuple(compare(outcomes, reference, self.sample, self._points) for outcomes in measure.all),
            self.settings,
            tuple(self._warnings(chosen, reference)),
            confirmation,
            tuple(_place(measure.all, outcomes) for outcomes in rejected),
            *self._by_class(chosen),
            self._final_base(chosen.candidate.rate),
        )

    def _confirmed(
        self, measure: _Measure, reference: CandidateOutcomes
    ) -> tuple[CandidateOutcomes, Confirmation | None, list[CandidateOutcomes]]:
        """The best candidate that keeps its accuracy and its gain in both measurements together.

        The best of many candidates looks better than it is, and the accuracy of a trained model varies with the
        training, which the standard errors of the first measurement do not show. The second one is on other inputs if
        there are enough, otherwise on the same ones in another cross-validation. If the rates that need no calibration
        give a constant answer, whose radii mean nothing, the candidate has to keep its accuracy only.
        """
        rejected: list[CandidateOutcomes] = []
        second = self.second
        if second is None:
            again = None
        else:
            again = _Measure(self, second, measure.store, measure.report, measure.certify, prefix="again ")
        while True:
            left = [outcomes for outcomes in measure.all if not any(outcomes is other for other in rejected)]
            chosen = choose(left, reference, self.sample, self._points)
            if not chosen.candidate.complexity or second is None or again is None:
                return chosen, None, rejected
            simple = [outcomes for outcomes in left if not outcomes.candidate.complexity]
            baseline = choose(simple, reference, self.sample, self._points)
            both = self.sample.joined(second.sample, same_inputs=not second.is_fresh)
            pooled = [outcomes.joined(again(outcomes.candidate)) for outcomes in (chosen, reference, baseline)]
            is_close = compare(pooled[0], pooled[1], both, self._points).feasible
            if is_close and (baseline.is_constant(self.sample) or clearly_better(pooled[0], pooled[2], both)):
                own = compare(again(chosen.candidate), again(reference.candidate), second.sample, self._points)
                return chosen, Confirmation(len(second.examples.labels), second.is_fresh, own), rejected
            rejected.append(chosen)

    def _final_base(self, rate: Rate) -> BaseClassifier | None:
        """The base classifier for the chosen rate, if it is trained again."""
        if self.refit is None:
            return None
        return self.refit.train(Deletion(rate), self.refit.examples.tokens, self.refit.examples.labels)

    @property
    def _points(self) -> float:
        return float(self.settings["points"])

    def _walk(self, measure: _Measure, name: str, exponent: float, reference: CandidateOutcomes) -> None:
        """Measure smaller and smaller kept lengths until the accuracy is too low; or larger ones until it is not."""
        keep, down = self._start, None
        for _ in range(MOST_STEPS):
            is_feasible = self._feasible(measure(self._power(name, exponent, keep)), reference)
            down = is_feasible if down is None else down
            if is_feasible != down:
                return
            following = keep * STEP if down else keep / STEP
            if following < FEWEST_KEPT or following > self._median / 2:
                return
            keep = following

    def _refine(self, measure: _Measure, reference: CandidateOutcomes) -> None:
        """Measure half a step below the best kept length of the best exponent."""
        best = choose(measure.all, reference, self.sample, self._points).candidate
        if best.name in EXPONENTS:
            keep = self._median * (1 - best.rate(round(self._median))) * (1 + STEP) / 2
            if keep >= FEWEST_KEPT:
                measure(self._power(best.name, EXPONENTS[best.name], keep))

    def _power(self, name: str, exponent: float, keep: float) -> Candidate:
        return Candidate(name, power_rate(keep, self._median, exponent), 1)

    @property
    def _median(self) -> float:
        return max(1.0, float(np.median(self.sample.length)))

    @property
    def _start(self) -> float:
        """As many tokens as AdaptDel keeps of an input of median length."""
        kept = self._median * (1 - self.baselines[-1].rate(round(self._median)))
        return min(max(kept, FEWEST_KEPT), max(self._median / 2, 1.0))

    def _feasible(self, outcomes: CandidateOutcomes, reference: CandidateOutcomes) -> bool:
        return compare(outcomes, reference, self.sample, self._points).feasible

    def _by_class(self, chosen: CandidateOutcomes) -> tuple[tuple[Mapping[str, Any], ...], tuple[tuple[int, ...], ...]]:
        """The measures by class under the chosen candidate, and its confusion matrix."""
        classes = self.settings["classes"]
        answers, labels = ([classes[number] for number in column] for column in (chosen.answer, self.sample.label))
        values = measure_classes(Outcomes.of(answers, chosen.radius, labels), classes).to_dict()
        return tuple(values["classes"]), tuple(map(tuple, values["confusion"] or ()))

    def _warnings(self, chosen: CandidateOutcomes, reference: CandidateOutcomes) -> list[str]:
        sentences = []
        size = len(self.sample.length)
        classes = self.settings["classes"]
        answers, labels = ([classes[number] for number in column] for column in (chosen.answer, self.sample.label))
        sentences += answer_warnings(answers, labels, self.sample.length)
        if size < self.settings["min_count"]:
            sentences.append(f"the rate was chosen on {size} inputs only")
        uncalibrated, calibrated = (class_recalls(outcomes, self.sample, classes) for outcomes in (reference, chosen))
        for label, old, new in zip(classes, uncalibrated, calibrated, strict=True):
            if old is not None and new is not None and old - new > RECALL_LOSS:
                sentences.append(f"the recall of class {label!r} is {new:.3g}, and {old:.3g} without calibration")
        return sentences


def _place(measured: Sequence[CandidateOutcomes], wanted: CandidateOutcomes) -> int:
    return next(place for place, outcomes in enumerate(measured) if outcomes is wanted)


@dataclass
class _Measure:
    """Measures every candidate once; from the store if it is there."""

    task: SelectionTask
    inputs: MeasuredInputs
    store: OutcomeCheckpoint
    report: Callable[[int, int], None] | None
    certify: ExampleCertifier
    prefix: str = ""  # of the keys in the store
    all: list[CandidateOutcomes] = field(default_factory=list)

    def __call__(self, candidate: Candidate) -> CandidateOutcomes:
        """The outcomes under a candidate; a rate that was measured under another name is not measured again."""
        for outcomes in self.all:
            if outcomes.candidate.rate == candidate.rate:
                return outcomes
        key = self.prefix + json.dumps(candidate.rate.to_dict(), sort_keys=True)
        columns = self.store.get(key)
        if columns is None:
            columns = self._certify(candidate)
            self.store.add(key, columns)
        outcomes = CandidateOutcomes(candidate, np.array(columns["answer"]), np.array(columns["radius"]))
        self.all.append(outcomes)
        self._report(0)
        return outcomes

    def finish(self) -> None:
        """Report that everything is done: the number of candidates is known in advance only approximately."""
        if self.report is not None:
            done = len(self.all) * len(self.inputs.examples.labels)
            self.report(done, done)

    def _certify(self, candidate: Candidate) -> dict[str, list[float]]:
        task, noise, examples = self.task, Deletion(candidate.rate), self.inputs.examples
        rows: list[dict[str, float]] = [{} for _ in examples.labels]
        finished = 0
        parts: list[tuple[Certifier, Sequence[int]]]
        if task.refit is None or self.inputs.folds is None:
            parts = [(task.certifier.under(noise), range(len(examples.labels)))]
        else:
            parts = [
                (task.certifier.with_base(task.refit.train(noise, others.tokens, others.labels)).under(noise), places)
                for others, places in self.inputs.folds
            ]
        for certifier, places in parts:
            tokens = [examples.tokens[place] for place in places]
            certified = self.certify(certifier, tokens, done=lambda more: self._report(finished + more))  # noqa: B023
            for number, answer, certificate in certified:
                rows[places[number]] = {"answer": answer, "radius": certificate.radius}
            finished += len(places)
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _report(self, more: int) -> None:
        if self.report is not None:
            size = len(self.inputs.examples.labels)
            done = len(self.all) * size + more
            self.report(done, max(EXPECTED * size, done + 1))


def prepare_selection(
    certifier: Certifier,
    examples: CalibrationExamples,
    settings: CalibrationSettings,
    baselines: list[Candidate],
    described: Mapping[str, Any],
    refit: Refit | None = None,
    second: SecondExamples | None = None,
) -> SelectionTask:
    """A task that compares candidates on the examples, and measures the chosen one on a second set of examples.

    The certifier samples adaptively.
    """
    classes = certifier.base.classes_
    if classes is None:
        raise ValueError("the objective 'balanced' needs a base classifier that knows its classes: give classes=[...]")
    plan = replace(certifier.plan, sampling="adaptive", exact=True)
    names = ("objective", "points", "min_count", "examples", "n_select", "n_estimate", "seed")
    chosen = {name: value for name, value in asdict(settings).items() if name in names} | dict(described)

    def inputs(given: CalibrationExamples, folds: Any, *, is_fresh: bool = False) -> MeasuredInputs:
        label = np.array([classes.index(value) for value in given.labels], dtype=np.int64)
        sample = Sample(np.array(given.lengths, dtype=np.int64), label, len(classes))
        return MeasuredInputs(given, sample, folds, is_fresh)

    first = inputs(examples, None if refit is None else refit.folds)
    return SelectionTask(
        Certifier(certifier.base, plan, certifier.unit),
        examples,
        first.sample,
        baselines,
        {
            **chosen,
            "classes": list(classes),
            "data": examples.digest(),
            "second_data": None if second is None else second.examples.digest(),
            "rows": len(examples.labels),
            "baselines": [candidate.rate.to_dict() for candidate in baselines],
            "refit": {"folds": len(refit.folds), "data": refit.examples.digest()} if refit is not None else None,
        },
        refit,
        None if second is None else inputs(second.examples, second.folds, is_fresh=second.is_fresh),
    )


@dataclass(frozen=True)
class SecondExamples:
    """Examples for the second measurement; see `MeasuredInputs`."""

    examples: CalibrationExamples
    folds: Sequence[tuple[CalibrationExamples, Sequence[int]]] | None
    is_fresh: bool


def drawn_rows(
    examples: CalibrationExamples,
    most: int,
    seed: int,
    *,
    among: Sequence[int] | None = None,
) -> list[int]:
    """The places of at most ``most`` examples, drawn by the seed, in the order of the data.

    Args:
        examples: the examples.
        most: how many to draw.
        seed: of the choice.
        among: the places to draw from; None for all.
    """
    places = np.arange(len(examples.labels)) if among is None else np.array(among, dtype=np.int64)
    if len(places) <= most:
        return [int(place) for place in places]
    generator = np.random.default_rng((seed, 2))
    return [int(place) for place in np.sort(generator.choice(places, size=most, replace=False))]


def part(examples: CalibrationExamples, places: Sequence[int]) -> CalibrationExamples:
    """The examples at some places."""
    return CalibrationExamples(
        [examples.tokens[place] for place in places], [examples.labels[place] for place in places]
    )


def cross_validation(
    texts: Sequence[str], examples: CalibrationExamples, places: Sequence[int], folds: int, seed: int
) -> list[tuple[CalibrationExamples, list[int]]]:
    """For each fold: the examples outside it, and the numbers of those of ``places`` that are inside.

    A text belongs to a fold by its words and the seed, so that texts that are equal, or differ in spacing only, are in
    the same fold. ValueError if a class has no example outside a fold: a model could not be trained there.
    """
    keys = [without_spacing(text) for text in texts]
    bounds = [number / folds for number in range(folds + 1)]
    fold = np.zeros(len(texts), dtype=np.int64)
    for number, (low, high) in enumerate(pairwise(bounds)):
        fold[[held_out(key, high, seed) and not (low and held_out(key, low, seed)) for key in keys]] = number
    result = []
    for number in range(folds):
        outside = [place for place in range(len(texts)) if fold[place] != number]
        inside = [index for index, place in enumerate(places) if fold[place] == number]
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
            result.append((part(examples, outside), inside))
    return result
