"""A calibration that is ready to run: the paper's OptimizeExpectedLength over all bins, resumable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptdel.calibration.bins import Bin
from adaptdel.calibration.examples import Examples
from adaptdel.calibration.fit import DIGITS, make_rate, monotone_fit
from adaptdel.calibration.objective import Evaluation, evaluate
from adaptdel.calibration.result import BinResult, Calibration
from adaptdel.calibration.search import ends, evaluations, golden_section
from adaptdel.calibration.trace import Journal
from adaptdel.calibration.votes import Voting
from adaptdel.classifiers.base import Prepared
from adaptdel.progress import Report, reporter

# What a calibration does with its measurements, which do not depend on it.
AFTERWARDS = ("objective", "min_accuracy", "interpolate", "monotone", "tol")


@dataclass
class Task:
    """A calibration that is ready to run: arguments checked, bins made, examples dealt.

    Attributes:
        voting: how examples are certified.
        bins: the bins of lengths.
        samples: the examples of every bin that it is calibrated on.
        available: how many examples every bin holds.
        settings: all that the result depends on, in plain values.
    """

    voting: Voting
    bins: list[Bin]
    samples: list[Examples]
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
        bench = _Bench(self, Journal(journal, self.settings), reporter(progress, "certificates"))
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

    task: Task
    journal: Journal
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
            self._ready = number, self.task.voting.prepare(sample.tokens)
        outcomes = self.task.voting.outcomes(self._ready[1], sample.labels, keep, done=self._say)
        return evaluate(number, keep, outcomes, self.task.settings["threshold"])

    def _say(self, more: int) -> None:
        if self.report is not None:
            self.report(self._done + more, max(self._total, self._done + more))
