"""AdaptDel+ calibration: certify a sample of every bin at candidate kept lengths, and fit a deletion rate.

A calibration is resumable. Its evaluations are kept in a checkpoint, a working store in which the same call finds them
again (`adaptdel.store`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.checkpoint import CalibrationCheckpoint
from adaptdel.calibration.examples import ExampleCertifier
from adaptdel.calibration.rate_selection import RateSelection
from adaptdel.calibration.search import (
    DIGITS,
    FIELD_TYPES,
    TRIMMED,
    Bin,
    CalibrationExamples,
    Evaluation,
    Outcome,
    check_edges,
    equal_width_edges,
    evaluate_outcomes,
    evaluations,
    golden_section,
    make_bins,
    make_rate,
    monotone_fit,
    search_interval,
    split_examples,
)
from adaptdel.calibration.selection import (
    Refit,
    SecondExamples,
    SelectionTask,
    baseline_rates,
    cross_validation,
    drawn_rows,
    part,
    prepare_selection,
)
from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import BinnedRate, InterpolatedRate, rate_from_dict
from adaptdel.core.threat import Threat
from adaptdel.engines.engine import Engine
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import Report, reporter
from adaptdel.settings import CalibrationSettings, default_rate
from adaptdel.text.units import Tokens
from adaptdel.training.training import retraining

FORMAT = 1
FOLDS = 3  # of a cross-validation


def constant_keep(keep: float) -> Deletion:
    """The noise that keeps ``keep`` tokens on average, whatever the length.

    >>> constant_keep(4).rate(16)
    0.75
    """
    return Deletion(InterpolatedRate((1,), (keep,)))


def sample_certifier(model: SmoothedClassifier, *, n_select: int, n_estimate: int, seed: int) -> Certifier:
    """The engine that certifies samples: the model's threat and bound, with the paper's fixed number of votes."""
    noise = getattr(model, "noise_", None) or model.noise
    if noise is not None and not noise.calibratable:
        raise ValueError(f"model must have a deletion noise to be calibrated, got {noise!r}")
    if not hasattr(model, "base_") and model.base is None:
        raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
    rule = Rule(constant_keep(1), Threat(model.ops).ops, model.bound, model.threshold)
    plan = SamplingPlan(
        rule, model.alpha, n_select, n_estimate, sampling="fixed", seed=seed, exact=False, phases=CALIBRATION
    )
    return Certifier(model.base_classifier(), plan, model.unit)


def certifier_settings(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values.

    The phases are included: evaluations on other random streams, which earlier versions drew from, are not reused.
    """
    rule, plan = certifier.rule, certifier.plan
    threat = {"ops": list(rule.ops), "bound": rule.bound, "decision_threshold": rule.threshold}
    streams = {"alpha": plan.alpha, "phases": list(plan.phases)}
    return {"model": certifier.fingerprint, "unit": certifier.unit.kind, **streams, **threat}


def certify_sample(
    certifier: Certifier,
    inputs: Sequence[Prepared],
    labels: Sequence[Any],
    keep: float,
    *,
    done: Callable[[int], None] | None = None,
    certify: ExampleCertifier | None = None,
) -> list[Outcome]:
    """Certify every example under the noise that keeps ``keep`` tokens; ``certify`` does so on its engine."""
    candidate = certifier.under(constant_keep(keep))
    outcomes: dict[int, Outcome] = {}
    if certify is not None and certify.engine is not None:
        for number, answer, certificate in certify(candidate, [each.tokens for each in inputs], done=done):
            outcomes[number] = Outcome(answer, candidate.base.label(answer) == labels[number], certificate.radius)
        return [outcomes[number] for number in range(len(inputs))]
    for number, tally in candidate.votes(inputs, done=done):
        radius = candidate.certificate(inputs[number], tally).radius
        outcomes[number] = Outcome(tally.label, candidate.base.label(tally.label) == labels[number], radius)
    return [outcomes[number] for number in range(len(inputs))]


@dataclass(frozen=True)
class BinResult:
    """The result for a bin, measured on its sample with the constant kept length ``keep``.

    Attributes:
        lower: the first length of the bin.
        upper: the first length of the next bin; None for the last bin, which has no end.
        centre: the length at which an interpolated rate keeps exactly ``keep`` tokens.
        keep: the expected kept length K.
        searched: the K that the search returned, which a monotone fit may have changed.
        radius: the largest radius whose certified accuracy reaches the threshold; −1 if none does.
        certified: the certified accuracy at that radius; at radius 0 if there is none.
        clean: the share of right predictions, certified or not.
        mean_radius: the mean certified radius; wrong predictions and abstentions count as 0.
        count: the number of examples that were certified.
        available: the number of examples in the bin.
        reached: whether ``keep`` reaches the threshold, or the least clean accuracy.
    """

    lower: float
    upper: float | None
    centre: float
    keep: float
    searched: float
    radius: int
    certified: float
    clean: float
    mean_radius: float
    count: int
    available: int
    reached: bool


@dataclass(frozen=True)
class Calibration:
    """AdaptDel+: a rate calibrated on examples, with the evaluations behind it.

    Attributes:
        rate: the deletion rate.
        bins: the result for every bin.
        settings: the settings in plain values, with hashes of the base classifier and of the examples.
        trace: every evaluation, in the order of the search.
        warnings: a sentence for each thing to know before the rate is used.
    """

    rate: BinnedRate | InterpolatedRate
    bins: tuple[BinResult, ...]
    settings: Mapping[str, Any]
    trace: tuple[Evaluation, ...]
    warnings: tuple[str, ...] = ()

    @property
    def noise(self) -> Deletion:
        """The noise to certify with."""
        return Deletion(self.rate)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `from_dict` rebuilds the calibration."""
        return {
            "format": FORMAT,
            "rate": self.rate.to_dict(),
            "bins": [asdict(result) for result in self.bins],
            "settings": dict(self.settings),
            "trace": [evaluation.to_dict() for evaluation in self.trace],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Rebuild a calibration from `to_dict`."""
        try:
            if values["format"] != FORMAT:
                raise ValueError(f"a calibration must be of format {FORMAT}, got {values['format']!r}")
            rate = rate_from_dict(values["rate"])
            if not isinstance(rate, (BinnedRate, InterpolatedRate)):
                raise ValueError(f"the rate of a calibration must be binned or interpolated, got {rate!r}")
            names = {field.name: FIELD_TYPES[str(field.type)] for field in fields(BinResult)}
            _check_parts(values, names)
            return cls(
                rate,
                tuple(BinResult(**{name: result[name] for name in names}) for result in values["bins"]),
                dict(values["settings"]),
                tuple(map(Evaluation.from_dict, values["trace"])),
                tuple(map(str, values["warnings"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a calibration must have the fields of Calibration.to_dict, got {error}") from None


def _check_parts(values: Mapping[str, Any], names: Mapping[str, str]) -> None:
    try:
        check_fields(values, {"bins": "a list", "settings": "an object", "trace": "a list", "warnings": "a list"})
        for part in values["bins"]:
            check_fields(part, names)
    except ValueError as error:
        raise ValueError(f"a calibration must have its fields: {error}") from None


_NOT_RECORDED = ("bins", "on", "points", "examples", "refit")
# Settings that evaluations do not depend on.
AFTER_EVALUATION = ("objective", "min_accuracy", "interpolate", "monotone", "tol")


@dataclass
class CalibrationTask:
    """A calibration that is ready to run: settings checked, bins computed, examples drawn.

    Attributes:
        certifier: the engine; each candidate replaces its noise.
        bins: the bins of lengths.
        samples: the examples of every bin that are certified.
        available: the number of examples in every bin.
        settings: everything that the result depends on, in plain values.
    """

    certifier: Certifier
    bins: list[Bin]
    samples: list[CalibrationExamples]
    available: list[int]
    settings: dict[str, Any]

    def run(
        self,
        *,
        checkpoint: Path | None = None,
        progress: Any = "auto",
        earlier: object = None,
        engine: Engine | None = None,
    ) -> Calibration:
        """Search every bin, and fit a rate to the kept lengths.

        Evaluations of an ``earlier`` calibration on the same examples with the same votes are reused: if only the
        objective or the form of the rate has changed, hardly any example is certified again.
        """
        if checkpoint is not None and not self.settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        with CalibrationCheckpoint(checkpoint, self.settings) as kept, ExampleCertifier(engine) as certify:
            if isinstance(earlier, Calibration) and self._same_evaluations(earlier):
                kept.reuse(earlier.trace)
            evaluator = _Evaluator(self, kept, reporter(progress, "certificates"), certify)
            best = [self._search(evaluator, number) for number in range(len(self.bins))]
            keep = [evaluation.keep for evaluation in best]
            if self.settings["monotone"]:
                keep = monotone_fit(keep, [evaluation.count for evaluation in best])
            final = [evaluator(number, value) for number, value in enumerate(keep)]
            evaluator.finish()
        results = [self._result(number, final[number], best[number]) for number in range(len(self.bins))]
        return Calibration(
            make_rate(self.bins, keep, interpolate=self.settings["interpolate"]),
            tuple(results),
            self.settings,
            tuple(evaluator.trace),
            tuple(self._warnings(final, best)),
        )

    def _same_evaluations(self, earlier: Calibration) -> bool:
        names = {*self.settings, *earlier.settings} - set(AFTER_EVALUATION)
        return all(self.settings.get(name) == earlier.settings.get(name) for name in names)

    def _search(self, evaluator: _Evaluator, number: int) -> Evaluation:
        def score(keep: float) -> tuple[float, float]:
            return evaluator(number, keep).score(self.settings["objective"], self.settings["min_accuracy"])

        low, high = search_interval(self.bins[number])
        return evaluator(number, golden_section(score, low, high, self.settings["tol"]))

    def _result(self, number: int, final: Evaluation, best: Evaluation) -> BinResult:
        bin = self.bins[number]
        return BinResult(
            lower=bin.lower,
            upper=bin.upper,
            centre=bin.centre,
            keep=final.keep,
            searched=best.keep,
            radius=final.radius,
            certified=final.certified,
            clean=final.clean,
            mean_radius=final.mean_radius,
            count=final.count,
            available=self.available[number],
            reached=final.reached(self.settings["objective"], self.settings["min_accuracy"]),
        )

    def _warnings(self, final: list[Evaluation], best: list[Evaluation]) -> list[str]:
        objective, least = self.settings["objective"], self.settings["min_accuracy"]
        sentences = []
        for bin, sample, evaluation, searched in zip(self.bins, self.samples, final, best, strict=True):
            kept = f"the bin of {bin}: {evaluation.keep:g} kept tokens"
            if not evaluation.reached(objective, least):
                fitted = searched.reached(objective, least)
                why = "; the monotone fit changed them" if fitted else ", nor does any other candidate"
                sentences.append(f"{kept} do not reach {self._wanted(evaluation)}{why}")
            if evaluation.constant and len(set(map(repr, sample.labels))) > 1:
                sentences.append(
                    f"{kept} give (almost) every input the same prediction: the radius has no meaning; "
                    "--objective balanced does not choose such rates"
                )
            if evaluation.count < self.settings["min_count"]:
                sentences.append(f"{kept} were chosen on {evaluation.count} examples only")
        return sentences

    def _wanted(self, evaluation: Evaluation) -> str:
        if self.settings["objective"] == "mean":
            return f"a clean accuracy of {self.settings['min_accuracy']:g} (it is {evaluation.clean:.3g})"
        threshold = f"a certified accuracy of {self.settings['threshold']:g}"
        return f"{threshold} even at radius 0 (it is {evaluation.certified:.3g})"


@dataclass
class _Evaluator:
    """Evaluates every kept length once, and records the trace."""

    task: CalibrationTask
    checkpoint: CalibrationCheckpoint
    report: Report | None
    certify: ExampleCertifier
    trace: list[Evaluation] = field(default_factory=list)
    _traced: set[tuple[int, float]] = field(default_factory=set)
    _prepared: tuple[int, list[Prepared]] = (-1, [])
    _done: int = 0

    def __post_init__(self) -> None:
        settings = self.task.settings
        counts = [evaluations(*search_interval(bin), settings["tol"]) + settings["monotone"] for bin in self.task.bins]
        self._total = sum(n * len(sample.tokens) for n, sample in zip(counts, self.task.samples, strict=True))

    def __call__(self, number: int, keep: float) -> Evaluation:
        """Return the evaluation of a kept length in a bin: from the checkpoint, or measured."""
        keep = round(keep, DIGITS)
        evaluation = self.checkpoint.get(number, keep)
        if evaluation is None:
            evaluation = self._evaluate(number, keep)
            self.checkpoint.add(evaluation)
        if (number, keep) not in self._traced:
            self._traced.add((number, keep))
            self.trace.append(evaluation)
            self._done += evaluation.count
            self._report(0)
        return evaluation

    def finish(self) -> None:
        """Report that everything is done: the number of evaluations is known in advance only approximately."""
        self._total = self._done
        self._report(0)

    def _evaluate(self, number: int, keep: float) -> Evaluation:
        sample = self.task.samples[number]
        if self._prepared[0] != number:
            prepare = self.task.certifier.prepare_tokens
            self._prepared = number, [prepare(tokens, f"example {n}") for n, tokens in enumerate(sample.tokens)]
        certifier, prepared = self.task.certifier, self._prepared[1]
        outcomes = certify_sample(certifier, prepared, sample.labels, keep, done=self._report, certify=self.certify)
        return evaluate_outcomes(number, keep, outcomes, self.task.settings["threshold"])

    def _report(self, more: int) -> None:
        if self.report is not None:
            self.report(self._done + more, max(self._total, self._done + more))


def calibrate(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    training: tuple[Sequence[Any], Sequence[Any]] | None = None,
    checkpoint: Path | None = None,
    progress: Any = "auto",
    engine: Engine | None = None,
    **settings: Any,
) -> Calibration | RateSelection:
    """Find how many tokens to keep of inputs of every length: AdaptDel+.

    The model is not changed: use ``calibration.noise`` as its noise, and ``calibration.base`` as its base classifier if
    that was trained again. Calibrate on a held-out set if you can. The base classifier is more confident on examples it
    was trained on, so that the calibration keeps too few tokens.

    Args:
        model: a model under deletion; its threat, bound and alpha are used.
        texts: the inputs to calibrate on.
        labels: their labels.
        training: the texts and labels that the model was trained on, for the objective "balanced": a linear model is
            then trained again under every candidate rate.
        checkpoint: a file for the evaluations; after an interruption, the same call resumes from it.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        engine: where to certify, such as `adaptdel.engines.engine.start_engine` gives; None for this process.
        **settings: fields of `CalibrationSettings`.
    """
    checked = CalibrationSettings(**settings)
    if checked.objective == "balanced":
        selection = selection_task(model, texts, labels, checked, training=training)
        return selection.run(checkpoint=checkpoint, progress=progress, engine=engine)
    if training is not None:
        raise ValueError(f"training must be None for the objective {checked.objective!r}")
    return prepare(model, texts, labels, checked).run(checkpoint=checkpoint, progress=progress, engine=engine)


def selection_task(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    settings: CalibrationSettings,
    *,
    training: tuple[Sequence[Any], Sequence[Any]] | None = None,
    folds: int = 0,
    split: Callable[[Any], Tokens] | None = None,
) -> SelectionTask:
    """Draw the examples of a calibration by the objective "balanced".

    With ``folds``, the texts to calibrate on are those of the training set, by cross-validation: ``training`` is what
    the final base classifier is trained on. ``split`` replaces the model's unit.
    """
    certifier = sample_certifier(model, n_select=settings.n_select, n_estimate=settings.n_estimate, seed=settings.seed)
    # Candidates are compared by the majority answer: a protecting threshold belongs to one rate and is chosen later.
    certifier.plan = replace(certifier.plan, rule=replace(certifier.rule, threshold=None))
    split = split or certifier.unit.split
    examples = split_examples(texts, labels, split, certifier.base.classes_)
    places = drawn_rows(examples, settings.examples, settings.seed)
    sample = part(examples, places)
    noise = getattr(model, "noise_", None) or model.noise
    record = getattr(model, "training_", None) or {}
    train = retraining(record)
    refit = None
    if settings.refit and (train is None or training is None):
        reason = "the training set has to be given" if training is None else "only linear models are trained again"
        raise ValueError(f"refit must be False: {reason}")
    if train is not None and training is not None and settings.refit is not False:
        final = split_examples(*training, split, certifier.base.classes_)
        parts = [(final, list(range(len(places))))]
        if folds:
            parts = cross_validation(list(map(str, texts)), examples, places, folds, settings.seed)
        refit = Refit(train, final, parts)
    rate, described = record.get("rate") or default_rate(examples.lengths), certifier_settings(certifier)
    if refit is None:
        baselines = baseline_rates(noise, rate, examples.lengths)
    else:  # as the methods themselves would train; the given base classifier and its noise do not matter
        baselines = baseline_rates(None, rate, refit.examples.lengths)
        described["model"] = f"trained again: {json.dumps(record['settings'], sort_keys=True)}"
    second = _second_examples(texts, examples, places, settings, refit, training, folds)
    return prepare_selection(certifier, sample, settings, baselines, described, refit, second)


def _second_examples(
    texts: Sequence[Any],
    examples: CalibrationExamples,
    places: Sequence[int],
    settings: CalibrationSettings,
    refit: Refit | None,
    training: tuple[Sequence[Any], Sequence[Any]] | None,
    folds: int,
) -> SecondExamples | None:
    """Examples on which the chosen candidate is measured again: other ones if there are half as many or more."""
    taken, seed = set(places), settings.seed + 1
    rest = [place for place in range(len(examples.labels)) if place not in taken]
    others = drawn_rows(examples, settings.examples, seed, among=rest) if 2 * len(rest) >= len(places) else []
    if refit is None:
        return SecondExamples(part(examples, others), None, is_fresh=True) if others else None
    if folds:
        again = others or list(places)
        split = cross_validation(list(map(str, texts)), examples, again, folds, seed)
        return SecondExamples(part(examples, again), split, is_fresh=bool(others))
    if training is None:
        return None
    rows = drawn_rows(refit.examples, settings.examples, seed)  # the rate was measured on held-out texts
    split = cross_validation(list(map(str, training[0])), refit.examples, rows, FOLDS, seed)
    return SecondExamples(part(refit.examples, rows), split, is_fresh=True)


def prepare(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    settings: CalibrationSettings,
    *,
    split: Callable[[Any], Tokens] | None = None,
) -> CalibrationTask:
    """Compute the bins and draw the examples of a calibration by the objective "paper" or "mean".

    ``split`` replaces the model's unit.
    """
    certifier = sample_certifier(model, n_select=settings.n_select, n_estimate=settings.n_estimate, seed=settings.seed)
    examples = split_examples(texts, labels, split or certifier.unit.split, certifier.base.classes_)
    bins = _bins(settings, examples.lengths)
    recorded = {name: value for name, value in asdict(settings).items() if name not in _NOT_RECORDED}
    return CalibrationTask(
        certifier,
        bins,
        [examples.drawn(bin, n, most=settings.per_bin, seed=settings.seed) for n, bin in enumerate(bins)],
        [sum(length in bin for length in examples.lengths) for bin in bins],
        {
            **recorded,
            "objective": "certified" if settings.objective == "paper" else settings.objective,  # as in version 0.1
            **certifier_settings(certifier),
            "bins": [bin.lower for bin in bins],
            "data": examples.digest(),
            "examples": len(examples.labels),
        },
    )


def _bins(settings: CalibrationSettings, lengths: list[int]) -> list[Bin]:
    if isinstance(settings.bins, str):
        edges = equal_width_edges(lengths, min_count=settings.min_count)
    else:
        edges = check_edges(settings.bins, lengths)
    return make_bins(edges, float(np.percentile(lengths, 100 - TRIMMED)))
