"""The objective "balanced": choose a whole rate, among candidates that include the fixed rate and AdaptDel's.

The largest class-balanced mean radius wins among the candidates whose accuracy is close to that of the best rate that
needs no calibration. Where a base classifier is quick to train, it is trained again under every candidate, as it will
be used. Resumable: every candidate that was measured is kept in a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.candidates import (
    Candidate,
    CandidateOutcomes,
    Comparison,
    Sample,
    choose,
    class_recalls,
    compare,
    grouped_rate,
    power_rate,
    reference_of,
)
from adaptdel.calibration.checkpoint import OutcomeCheckpoint
from adaptdel.calibration.search import CalibrationExamples
from adaptdel.certification.certifier import Certifier
from adaptdel.class_measures import answer_warnings
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import FixedRate, LengthRate, Rate, rate_from_dict
from adaptdel.data import held_out
from adaptdel.progress import reporter
from adaptdel.settings import CalibrationSettings, adaptdel_rate
from adaptdel.units import Tokens

FORMAT = 2
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
class RateSelection:
    """The rate that was chosen among candidates, with the comparisons behind the choice.

    Attributes:
        rate: the deletion rate.
        chosen: the place of the chosen candidate in ``candidates``.
        reference: the place of the most accurate rate that needs no calibration.
        candidates: every candidate that was measured, in order.
        settings: the settings in plain values, with hashes of the base classifier and of the examples.
        warnings: a sentence for each thing to know before the rate is used.
        base: the base classifier that was trained under the chosen rate; None if it was not trained again.
    """

    rate: Rate
    chosen: int
    reference: int
    candidates: tuple[Comparison, ...]
    settings: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    base: BaseClassifier | None = field(default=None, compare=False)

    @property
    def noise(self) -> Deletion:
        """The noise to certify with."""
        return Deletion(self.rate)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `from_dict` rebuilds the selection, without the base classifier."""
        return {
            "format": FORMAT,
            "rate": self.rate.to_dict(),
            "chosen": self.chosen,
            "reference": self.reference,
            "candidates": [comparison.to_dict() for comparison in self.candidates],
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RateSelection:
        """Rebuild a selection from `to_dict`."""
        try:
            check_fields(values, {"candidates": "a list", "settings": "an object", "warnings": "a list"})
            check_fields(values, {"chosen": "a whole number", "reference": "a whole number", "rate": "an object"})
            names = {field.name: _TYPES[str(field.type)] for field in fields(Comparison)}
            for candidate in values["candidates"]:
                check_fields(candidate, names)
            candidates = tuple(
                Comparison(**{name: candidate[name] for name in names}) for candidate in values["candidates"]
            )
            if not 0 <= values["chosen"] < len(candidates) or not 0 <= values["reference"] < len(candidates):
                raise ValueError("chosen and reference must be places in candidates")
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"a selection of a rate must have its fields: {error}") from None
        return cls(
            rate_from_dict(values["rate"]),
            values["chosen"],
            values["reference"],
            candidates,
            dict(values["settings"]),
            tuple(map(str, values["warnings"])),
        )


_TYPES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "Mapping[str, Any]": "an object",
}


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
    """

    certifier: Certifier
    examples: CalibrationExamples
    sample: Sample
    baselines: list[Candidate]
    settings: dict[str, Any]
    refit: Refit | None = None

    def run(self, *, checkpoint: Path | None = None, progress: Any = "auto", earlier: object = None) -> RateSelection:
        """Measure the candidates and choose one; an ``earlier`` choice by the same settings is taken over."""
        if isinstance(earlier, RateSelection) and dict(earlier.settings) == self.settings:
            return replace(earlier, base=self._final_base(earlier.rate))
        if checkpoint is not None and not self.settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        with OutcomeCheckpoint(checkpoint, self.settings) as store:
            measure = _Measure(self, store, reporter(progress, "certificates"))
            baselines = [measure(candidate) for candidate in self.baselines]
            reference = reference_of(baselines, self.sample)
            for name, exponent in EXPONENTS.items():
                self._walk(measure, name, exponent, reference)
            self._refine(measure, reference)
            rate = grouped_rate(measure.all, reference, self.sample, self._points, self.settings["min_count"])
            if rate is not None:
                measure(Candidate("groups", rate, 2))
            measure.finish()
        chosen = choose(measure.all, reference, self.sample, self._points)
        return RateSelection(
            chosen.candidate.rate,
            _place(measure.all, chosen),
            _place(measure.all, reference),
            tuple(compare(outcomes, reference, self.sample, self._points) for outcomes in measure.all),
            self.settings,
            tuple(self._warnings(chosen, reference)),
            self._final_base(chosen.candidate.rate),
        )

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

    def _warnings(self, chosen: CandidateOutcomes, reference: CandidateOutcomes) -> list[str]:
        sentences = []
        size = len(self.sample.length)
        classes = self.settings["classes"]
        answers, labels = ([classes[number] for number in column] for column in (chosen.answer, self.sample.label))
        sentences += answer_warnings(answers, labels, what="the model with the chosen rate")
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
    store: OutcomeCheckpoint
    report: Callable[[int, int], None] | None
    all: list[CandidateOutcomes] = field(default_factory=list)

    def __call__(self, candidate: Candidate) -> CandidateOutcomes:
        """The outcomes under a candidate; a rate that was measured under another name is not measured again."""
        for outcomes in self.all:
            if outcomes.candidate.rate == candidate.rate:
                return outcomes
        key = json.dumps(candidate.rate.to_dict(), sort_keys=True)
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
            done = len(self.all) * len(self.task.examples.labels)
            self.report(done, done)

    def _certify(self, candidate: Candidate) -> dict[str, list[int]]:
        task, noise = self.task, Deletion(candidate.rate)
        answer, radius = (np.zeros(len(task.examples.labels), dtype=np.int64) for _ in range(2))
        finished = 0
        parts: list[tuple[Certifier, Sequence[int]]]
        if task.refit is None:
            parts = [(task.certifier.under(noise), range(len(task.examples.labels)))]
        else:
            parts = [
                (task.certifier.with_base(task.refit.train(noise, rows.tokens, rows.labels)).under(noise), places)
                for rows, places in task.refit.folds
            ]
        for certifier, places in parts:
            inputs = [certifier.prepare_tokens(task.examples.tokens[place], f"example {place}") for place in places]
            for number, tally in certifier.votes(inputs, done=lambda more: self._report(finished + more)):  # noqa: B023
                place = places[number]
                answer[place] = tally.label
                radius[place] = certifier.certificate(inputs[number], tally).radius
            finished += len(places)
        return {"answer": answer.tolist(), "radius": radius.tolist()}

    def _report(self, more: int) -> None:
        if self.report is not None:
            size = len(self.task.examples.labels)
            done = len(self.all) * size + more
            self.report(done, max(EXPECTED * size, done + 1))


def prepare_selection(
    certifier: Certifier,
    examples: CalibrationExamples,
    settings: CalibrationSettings,
    baselines: list[Candidate],
    described: Mapping[str, Any],
    refit: Refit | None = None,
) -> SelectionTask:
    """A task that compares candidates on the examples; the certifier samples adaptively."""
    classes = certifier.base.classes_
    if classes is None:
        raise ValueError("the objective 'balanced' needs a base classifier that knows its classes: give classes=[...]")
    plan = replace(certifier.plan, sampling="adaptive", exact=True)
    label = np.array([classes.index(value) for value in examples.labels], dtype=np.int64)
    names = ("objective", "points", "min_count", "examples", "n_select", "n_estimate", "seed")
    chosen = {name: value for name, value in asdict(settings).items() if name in names}
    folds = 0 if refit is None else len(refit.folds)
    return SelectionTask(
        Certifier(certifier.base, plan, certifier.unit),
        examples,
        Sample(np.array(examples.lengths, dtype=np.int64), label, len(classes)),
        baselines,
        {
            **chosen,
            **described,
            "classes": list(classes),
            "data": examples.digest(),
            "rows": len(examples.labels),
            "baselines": [candidate.rate.to_dict() for candidate in baselines],
            "refit": {"folds": folds, "data": refit.examples.digest()} if refit is not None else None,
        },
        refit,
    )


def drawn_rows(examples: CalibrationExamples, most: int, seed: int) -> list[int]:
    """The places of at most ``most`` examples, drawn by the seed, in the order of the data."""
    places = np.arange(len(examples.labels))
    if len(places) > most:
        places = np.sort(np.random.default_rng((seed, 2)).choice(places, size=most, replace=False))
    return [int(place) for place in places]


def part(examples: CalibrationExamples, places: Sequence[int]) -> CalibrationExamples:
    """The examples at some places."""
    return CalibrationExamples(
        [examples.tokens[place] for place in places], [examples.labels[place] for place in places]
    )


def cross_validation(
    texts: Sequence[str], examples: CalibrationExamples, places: Sequence[int], folds: int, seed: int
) -> list[tuple[CalibrationExamples, list[int]]]:
    """For each fold: the examples outside it, and the numbers of those of ``places`` that are inside.

    A text belongs to a fold by its content and the seed, so that equal texts are in the same fold.
    """
    bounds = [number / folds for number in range(folds + 1)]
    fold = np.zeros(len(texts), dtype=np.int64)
    for number, (low, high) in enumerate(pairwise(bounds)):
        fold[[held_out(text, high, seed) and not (low and held_out(text, low, seed)) for text in texts]] = number
    result = []
    for number in range(folds):
        outside = [place for place in range(len(texts)) if fold[place] != number]
        inside = [index for index, place in enumerate(places) if fold[place] == number]
        if inside:
            result.append((part(examples, outside), inside))
    return result
