"""AdaptDel+ calibration: certify a sample of every bin at candidate kept lengths, and fit a deletion rate.

A calibration is resumable. Its evaluations are kept in a checkpoint, a working store in which the same call finds them
again (`adaptdel.working_store`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

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
from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import BinnedRate, InterpolatedRate, rate_from_dict
from adaptdel.core.threat import Threat
from adaptdel.files import parse_object, read_bytes
from adaptdel.progress import Report, reporter
from adaptdel.settings import CalibrationSettings
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import Tokens
from adaptdel.working_store import WorkingStore, delete_store

FORMAT = 1


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
    rule = Rule(constant_keep(1), Threat(model.ops).ops, model.bound, model.threshold, model.k)
    plan = SamplingPlan(
        rule, model.alpha, n_select, n_estimate, sampling="fixed", seed=seed, exact=False, phases=CALIBRATION
    )
    return Certifier(model.base_classifier(), plan, model.unit)


def certifier_settings(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values.

    The phases are included: evaluations on other random streams, which earlier versions drew from, are not reused.
    """
    rule, plan = certifier.rule, certifier.plan
    threat = {"ops": list(rule.ops), "bound": rule.bound, "decision_threshold": rule.threshold, "k": rule.k}
    streams = {"alpha": plan.alpha, "phases": list(plan.phases)}
    return {"model": certifier.fingerprint, "unit": certifier.unit.kind, **streams, **threat}


def certify_sample(
    certifier: Certifier,
    inputs: Sequence[Prepared],
    labels: Sequence[Any],
    keep: float,
    *,
    done: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """Certify every example under the noise that keeps ``keep`` tokens."""
    candidate = certifier.under(constant_keep(keep))
    outcomes: dict[int, Outcome] = {}
    for number, tally in candidate.votes(inputs, done=done):
        radius = candidate.certificate(inputs[number], tally).radius
        outcomes[number] = Outcome(tally.label, candidate.base.label(tally.label) == labels[number], radius)
    return [outcomes[number] for number in range(len(inputs))]


_DELETE = "delete it to start again"


class CalibrationCheckpoint:
    """The evaluations of a calibration, in memory and, if a path is given, in a working store.

    Args:
        path: the file, or None. Evaluations of the same calibration are loaded; another calibration's are refused. The
            journal of a calibration that version 0.1 left unfinished is converted.
        settings: what the evaluations depend on, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._evaluations: dict[tuple[int, float], Evaluation] = {}
        self._store: WorkingStore | None = None
        self._next = 1
        if path is not None:
            if path.is_file() and read_bytes(path).startswith(b"{"):
                _convert_journal(path, settings)
            self._store = WorkingStore(path, "calibration", settings)
            try:
                self._load(self._store, settings)
            except BaseException:
                self._store.close()
                raise

    def get(self, bin: int, keep: float) -> Evaluation | None:
        """The evaluation of a kept length in a bin, if there is one."""
        return self._evaluations.get((bin, keep))

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; it is on the disk when this returns."""
        if self._store is not None:
            self._store.put(self._next, evaluation.to_dict())
            self._store.flush()
        self._next += 1
        self._evaluations[evaluation.bin, evaluation.keep] = evaluation

    def reuse(self, evaluations: Iterable[Evaluation]) -> None:
        """Add the evaluations of an earlier calibration; they are not written."""
        for evaluation in evaluations:
            self._evaluations.setdefault((evaluation.bin, evaluation.keep), evaluation)

    def __enter__(self) -> CalibrationCheckpoint:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._store is not None:
            self._store.__exit__(kind, error, trace)

    def _load(self, store: WorkingStore, settings: Mapping[str, Any]) -> None:
        _check_same(store.path, store.settings, settings)
        for number, values in store.records():
            try:
                evaluation = Evaluation.from_dict(values)
            except ValueError as error:
                raise ValueError(f"{store.path}, record {number}: not an evaluation: {error}: {_DELETE}") from None
            self._evaluations[evaluation.bin, evaluation.keep] = evaluation
            self._next = number + 1


def _check_same(path: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names = [name for name in {**settings, **stored} if stored.get(name) != settings.get(name)]
    if names:
        differences = "; ".join(
            f"{name!s:.60} was {stored.get(name)!r:.99} and is now {settings.get(name)!r:.99}" for name in names[:9]
        )
        raise ValueError(f"{path}: the checkpoint of another calibration ({' '.join(differences.split())}): {_DELETE}")


def _convert_journal(path: Path, settings: Mapping[str, Any]) -> None:
    """Replace the journal of version 0.1, JSON lines of which the first holds the settings, by a working store."""
    text = read_bytes(path)
    first, *lines = text[: text.rfind(b"\n") + 1].split(b"\n")[:-1] or [b""]  # a last line without its end is torn
    try:
        header = parse_object(first)
        if header.get("journal") != 1:
            raise ValueError(f"its format is {header.get('journal')!r:.60}, not 1")
        check_fields(header, {"settings": "an object"})
    except ValueError as error:
        raise ValueError(f"{path}: not a checkpoint of a calibration: {error}: {_DELETE}") from None
    _check_same(path, header["settings"], settings)
    partial = path.with_name(f"{path.name}.new")
    delete_store(partial)
    with WorkingStore(partial, "calibration", settings) as store:
        for number, line in enumerate(lines, start=2):
            try:
                store.put(number, Evaluation.from_dict(parse_object(line)).to_dict())
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not an evaluation: {error}: {_DELETE}") from None
    os.replace(partial, path)


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
        self, *, checkpoint: Path | None = None, progress: Any = "auto", earlier: Calibration | None = None
    ) -> Calibration:
        """Search every bin, and fit a rate to the kept lengths.

        Evaluations of an ``earlier`` calibration on the same examples with the same votes are reused: if only the
        objective or the form of the rate has changed, hardly any example is certified again.
        """
        if checkpoint is not None and not self.settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        with CalibrationCheckpoint(checkpoint, self.settings) as kept:
            if earlier is not None and self._same_evaluations(earlier):
                kept.reuse(earlier.trace)
            evaluator = _Evaluator(self, kept, reporter(progress, "certificates"))
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
                sentences.append(f"{kept} give every input the same prediction: the radius has no meaning")
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
        outcomes = certify_sample(self.task.certifier, self._prepared[1], sample.labels, keep, done=self._report)
        return evaluate_outcomes(number, keep, outcomes, self.task.settings["threshold"])

    def _report(self, more: int) -> None:
        if self.report is not None:
            self.report(self._done + more, max(self._total, self._done + more))


def calibrate(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    checkpoint: Path | None = None,
    progress: Any = "auto",
    **settings: Any,
) -> Calibration:
    """Find how many tokens to keep of inputs of every length: AdaptDel+.

    The model is not changed: use ``calibration.noise`` as its noise. Calibrate on a held-out set if you can. The base
    classifier is more confident on examples it was trained on, so that the calibration keeps too few tokens.

    Args:
        model: a model under deletion; its threat, bound and alpha are used.
        texts: the inputs to calibrate on.
        labels: their labels.
        checkpoint: a file for the evaluations; after an interruption, the same call resumes from it.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        **settings: fields of `CalibrationSettings`.
    """
    task = prepare(model, texts, labels, CalibrationSettings(**settings))
    return task.run(checkpoint=checkpoint, progress=progress)


def prepare(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    settings: CalibrationSettings,
    *,
    split: Callable[[Any], Tokens] | None = None,
) -> CalibrationTask:
    """Compute the bins and draw the examples of a calibration; ``split`` replaces the model's unit."""
    certifier = sample_certifier(model, n_select=settings.n_select, n_estimate=settings.n_estimate, seed=settings.seed)
    examples = split_examples(texts, labels, split or certifier.unit.split, certifier.base.classes_)
    bins = _bins(settings, examples.lengths)
    return CalibrationTask(
        certifier,
        bins,
        [examples.drawn(bin, n, most=settings.per_bin, seed=settings.seed) for n, bin in enumerate(bins)],
        [sum(length in bin for length in examples.lengths) for bin in bins],
        {
            **{name: value for name, value in asdict(settings).items() if name not in ("bins", "on")},
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
