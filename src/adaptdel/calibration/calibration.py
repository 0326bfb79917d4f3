"""AdaptDel+ calibration: check the arguments, make bins, search every bin, fit a rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.bins import (
    DIGITS,
    TRIMMED,
    Bin,
    CalibrationExamples,
    check_edges,
    equal_width_edges,
    make_bins,
    make_rate,
    monotone_fit,
    read_examples,
)
from adaptdel.calibration.search import (
    KINDS,
    OBJECTIVES,
    CalibrationJournal,
    Evaluation,
    certifier_settings,
    certify_sample,
    ends,
    evaluate,
    evaluations,
    golden_section,
    sample_certifier,
)
from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import check_choice, check_fields, check_int, check_probability, check_real
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import BinnedRate, InterpolatedRate, rate_from_dict
from adaptdel.progress import Report, reporter
from adaptdel.settings import CALIBRATION
from adaptdel.smoothed import SmoothedClassifier

FORMAT = 1


@dataclass(frozen=True)
class BinResult:
    """What was found for one bin. The measures are those of ``keep`` as a constant kept length in the bin's sample.

    Attributes:
        lower: where the bin begins.
        upper: where it ends; None for the last one, which has no end.
        centre: where an interpolated rate keeps exactly ``keep``.
        keep: the expected kept length K.
        searched: the K that the search found, from which a monotone fit may depart.
        radius: the largest radius whose certified accuracy reaches the threshold; −1 if none does.
        certified: the certified accuracy at that radius (at 0, if none).
        clean: the share of right answers, settled or not.
        mean_radius: the mean certified radius, with 0 for the wrong and the unsettled.
        count: the number of examples it was measured on.
        available: how many examples the bin holds.
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
    """AdaptDel+: a rate calibrated on examples, and everything that led to it.

    Attributes:
        rate: the deletion rate.
        bins: what was found for every bin.
        settings: how it was found, in plain values, with hashes of the base classifier and of the examples.
        trace: every evaluation in the order of the search.
        warnings: what to know before the rate is used, a sentence each.
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
            "bins": [asdict(one) for one in self.bins],
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
            names = {field.name: KINDS[str(field.type)] for field in fields(BinResult)}
            _check_parts(values, names)
            return cls(
                rate,
                tuple(BinResult(**{name: one[name] for name in names}) for one in values["bins"]),
                dict(values["settings"]),
                tuple(Evaluation.from_dict(one) for one in values["trace"]),
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


# What a calibration does with its measurements, which do not depend on it.
AFTERWARDS = ("objective", "min_accuracy", "interpolate", "monotone", "tol")


@dataclass
class CalibrationTask:
    """A calibration that is ready to run: arguments checked, bins made, examples dealt.

    Attributes:
        certifier: certifies examples, at a noise that each candidate replaces.
        bins: the bins of lengths.
        samples: the examples of every bin that it is calibrated on.
        available: how many examples every bin holds.
        settings: all that the result depends on, in plain values.
    """

    certifier: Certifier
    bins: list[Bin]
    samples: list[CalibrationExamples]
    available: list[int]
    settings: dict[str, Any]

    def run(
        self, *, journal: Path | None = None, progress: Any = "auto", earlier: Calibration | None = None
    ) -> Calibration:
        """Search every bin, fit a rate to what was found, and sum up.

        What an earlier calibration measured on the same examples with as many votes is not measured again: one that
        differs only in how a rate is made of the kept lengths asks the base classifier next to nothing.
        """
        if journal is not None and not self.settings["model"]:
            raise ValueError("journal must be None for a base classifier without a fingerprint, such as a callable")
        bench = _Bench(self, CalibrationJournal(journal, self.settings), reporter(progress, "certificates"))
        if earlier is not None and self._measured_alike(earlier):
            bench.journal.remember(earlier.trace)
        best = [self._search(bench, number) for number in range(len(self.bins))]
        keep = [evaluation.keep for evaluation in best]
        if self.settings["monotone"]:
            keep = monotone_fit(keep, [evaluation.count for evaluation in best])
        found = [bench(number, kept) for number, kept in enumerate(keep)]
        bench.finish()
        results = [self._result(number, found[number], best[number]) for number in range(len(self.bins))]
        return Calibration(
            make_rate(self.bins, keep, interpolate=self.settings["interpolate"]),
            tuple(results),
            self.settings,
            tuple(bench.trace),
            tuple(self._warnings(found, best)),
        )

    def _measured_alike(self, earlier: Calibration) -> bool:
        names = {*self.settings, *earlier.settings} - set(AFTERWARDS)
        return all(self.settings.get(name) == earlier.settings.get(name) for name in names)

    def _search(self, bench: _Bench, number: int) -> Evaluation:
        def score(keep: float) -> tuple[float, float]:
            return bench(number, keep).score(self.settings["objective"], self.settings["min_accuracy"])

        low, high = ends(self.bins[number])
        return bench(number, golden_section(score, low, high, self.settings["tol"]))

    def _result(self, number: int, found: Evaluation, best: Evaluation) -> BinResult:
        bin = self.bins[number]
        return BinResult(
            lower=bin.lower,
            upper=bin.upper,
            centre=bin.centre,
            keep=found.keep,
            searched=best.keep,
            radius=found.radius,
            certified=found.certified,
            clean=found.clean,
            mean_radius=found.mean_radius,
            count=found.count,
            available=self.available[number],
            reached=found.reached(self.settings["objective"], self.settings["min_accuracy"]),
        )

    def _warnings(self, found: list[Evaluation], best: list[Evaluation]) -> list[str]:
        objective, least = self.settings["objective"], self.settings["min_accuracy"]
        sentences = []
        for bin, sample, evaluation, searched in zip(self.bins, self.samples, found, best, strict=True):
            kept = f"the bin of {bin}: {evaluation.keep:g} kept tokens"
            if not evaluation.reached(objective, least):
                fitted = searched.reached(objective, least)
                why = "; the monotone fit moved them" if fitted else ", nor does anything else that was tried"
                sentences.append(f"{kept} do not reach {self._wanted(evaluation)}{why}")
            if evaluation.constant and len(set(map(repr, sample.labels))) > 1:
                sentences.append(f"{kept} give every input the same answer: the radius there is worth nothing")
            if evaluation.count < self.settings["min_count"]:
                sentences.append(f"{kept} were found on {evaluation.count} examples only")
        return sentences

    def _wanted(self, evaluation: Evaluation) -> str:
        if self.settings["objective"] == "mean":
            return f"a clean accuracy of {self.settings['min_accuracy']:g} (it is {evaluation.clean:.3g})"
        threshold = f"a certified accuracy of {self.settings['threshold']:g}"
        return f"{threshold} even at radius 0 (it is {evaluation.certified:.3g})"


@dataclass
class _Bench:
    """Evaluates kept lengths, each once, and keeps the trace."""

    task: CalibrationTask
    journal: CalibrationJournal
    report: Report | None
    trace: list[Evaluation] = field(default_factory=list)
    _seen: set[tuple[int, float]] = field(default_factory=set)
    _ready: tuple[int, list[Prepared]] = (-1, [])
    _done: int = 0

    def __post_init__(self) -> None:
        tol = self.task.settings["tol"]
        counts = [evaluations(*ends(bin), tol) for bin in self.task.bins]
        self._total = sum(n * len(sample.tokens) for n, sample in zip(counts, self.task.samples, strict=True))

    def __call__(self, number: int, keep: float) -> Evaluation:
        """The evaluation of a kept length in a bin: remembered, replayed from the journal, or made."""
        keep = round(keep, DIGITS)
        known = self.journal.get(number, keep)
        if known is None:
            known = self._evaluate(number, keep)
            self.journal.add(known)
        if (number, keep) not in self._seen:
            self._seen.add((number, keep))
            self.trace.append(known)
            self._done += known.count
            self._say(0)
        return known

    def finish(self) -> None:
        """Say that all is done; a monotone fit may have asked for more than was planned, or a memory for less."""
        self._total = self._done
        self._say(0)

    def _evaluate(self, number: int, keep: float) -> Evaluation:
        sample = self.task.samples[number]
        if self._ready[0] != number:
            prepare = self.task.certifier.prepare_tokens
            self._ready = number, [prepare(row, f"example {place}") for place, row in enumerate(sample.tokens)]
        outcomes = certify_sample(self.task.certifier, self._ready[1], sample.labels, keep, done=self._say)
        return evaluate(number, keep, outcomes, self.task.settings["threshold"])

    def _say(self, more: int) -> None:
        if self.report is not None:
            self.report(self._done + more, max(self._total, self._done + more))


def calibrate(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    threshold: float = CALIBRATION.threshold,
    objective: str = CALIBRATION.objective,
    min_accuracy: float | None = CALIBRATION.min_accuracy,
    bins: str | Sequence[float] = CALIBRATION.bins,
    interpolate: bool = CALIBRATION.interpolate,
    monotone: bool = CALIBRATION.monotone,
    per_bin: int = CALIBRATION.per_bin,
    min_count: int = CALIBRATION.min_count,
    n_select: int = CALIBRATION.n_select,
    n_estimate: int = CALIBRATION.n_estimate,
    tol: float = CALIBRATION.tol,
    seed: int = CALIBRATION.seed,
    journal: Path | None = None,
    progress: Any = "auto",
) -> Calibration:
    """Find how many tokens to keep of inputs of every length: AdaptDel+.

    The base classifier is left as it is, and so is the model: give it ``calibration.noise``. Examples that the base
    classifier was trained on make it look surer than it is, so that too little is kept: calibrate on others if you can.

    Args:
        model: a model under deletion; its attacker, bound and alpha are those of the calibration.
        texts: the inputs to calibrate on.
        labels: their labels.
        threshold: the share of a bin's examples that has to be certified at the radius that is maximised.
        objective: "certified", the paper's: the largest radius with a certified accuracy of ``threshold``; or "mean":
            the largest mean radius with a clean accuracy of ``min_accuracy``.
        min_accuracy: the least clean accuracy, for "mean": the share of right answers, whether settled or not.
        bins: "auto", or where bins of lengths begin, such as [0, 137, 230, 324].
        interpolate: whether the kept length is interpolated between the centres of bins, so that the rate has no jumps.
        monotone: whether kept lengths are fitted so that they do not fall from one bin to the next.
        per_bin: on how many examples of a bin it is calibrated at most.
        min_count: how many examples an automatic bin has to hold at least.
        n_select: votes that choose an answer.
        n_estimate: votes that bound its probability.
        tol: how closely a kept length is searched for.
        seed: of the noise and of the choice of examples.
        journal: a file in which a run that is stopped leaves what it has done; the same call resumes from it.
        progress: True, False, "auto" (if a terminal watches) or a callable (done, total).
    """
    task = prepare(
        model,
        texts,
        labels,
        threshold=threshold,
        objective=objective,
        min_accuracy=min_accuracy,
        bins=bins,
        interpolate=interpolate,
        monotone=monotone,
        per_bin=per_bin,
        min_count=min_count,
        n_select=n_select,
        n_estimate=n_estimate,
        tol=tol,
        seed=seed,
    )
    return task.run(journal=journal, progress=progress)


def prepare(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    threshold: float,
    objective: str,
    min_accuracy: float | None,
    bins: str | Sequence[float],
    interpolate: bool,
    monotone: bool,
    per_bin: int,
    min_count: int,
    n_select: int,
    n_estimate: int,
    tol: float,
    seed: int,
) -> CalibrationTask:
    """Check the arguments of `calibrate`, make the bins and deal the examples."""
    settings: dict[str, Any] = {
        "threshold": check_real("threshold", threshold, accepted="in (0, 1]", least=np.nextafter(0, 1), most=1.0),
        "objective": check_choice("objective", objective, OBJECTIVES),
        "min_accuracy": _least_accuracy(min_accuracy, objective),
        "interpolate": _flag("interpolate", interpolate),
        "monotone": _flag("monotone", monotone),
        "per_bin": check_int("per_bin", per_bin, least=1),
        "min_count": check_int("min_count", min_count, least=1),
        "n_select": check_int("n_select", n_select, least=1),
        "n_estimate": check_int("n_estimate", n_estimate, least=1),
        "tol": check_real("tol", tol, accepted="a finite number of at least 0.001", least=0.001, most=1e9),
        "seed": check_int("seed", seed, most=2**63 - 1),
    }
    votes = {name: settings[name] for name in ("n_select", "n_estimate", "seed")}
    certifier = sample_certifier(model, **votes)
    examples = read_examples(texts, labels, certifier.unit, certifier.base.classes_)
    made = _bins(bins, examples.lengths, min_count)
    return CalibrationTask(
        certifier,
        made,
        [examples.drawn(bin, number, most=per_bin, seed=seed) for number, bin in enumerate(made)],
        [sum(length in bin for length in examples.lengths) for bin in made],
        {
            **settings,
            **certifier_settings(certifier),
            "bins": [bin.lower for bin in made],
            "data": examples.digest(),
            "examples": len(examples.labels),
        },
    )


def _bins(bins: str | Sequence[float], lengths: list[int], min_count: int) -> list[Bin]:
    if isinstance(bins, str):
        check_choice("bins", bins, ("auto",))
        edges = equal_width_edges(lengths, min_count=min_count)
    else:
        edges = check_edges(bins, lengths)
    return make_bins(edges, float(np.percentile(lengths, 100 - TRIMMED)))


def _least_accuracy(value: float | None, objective: str) -> float | None:
    if objective != "mean":
        if value is not None:
            raise ValueError(f"min_accuracy must be None unless the objective is 'mean', got {value!r}")
        return None
    if value is None:
        raise ValueError("min_accuracy must be given with the objective 'mean', got None")
    return check_probability("min_accuracy", value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return value


DEFAULTS: dict[str, Any] = {name: value for name, value in asdict(CALIBRATION).items() if name != "on"}
