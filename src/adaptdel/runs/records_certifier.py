"""Certify a stream of inputs with a model from a folder; those that finish first come first."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptdel.certification.sampling import SamplingPlan, Tally, run_all
from adaptdel.classifiers.base import BaseClassifierError, InconsistentAnswerError, Prepared, check_labels
from adaptdel.core.noise import Masking
from adaptdel.runs.inputs import RunInput
from adaptdel.runs.records import Record, problem_record, record_of
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import check_unit


@dataclass(frozen=True)
class ModelSource:
    """What is asked of whom: a model's folder, the settings that replace its own, and its fingerprint."""

    model: Path
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None

    def load(self) -> SmoothedClassifier:
        """The model, checked to be the one that is meant."""
        model = SmoothedClassifier.load(self.model)
        for name, value in self.settings.items():
            setattr(model, name, value)
        if "ops" not in self.settings and isinstance(model.noise, Masking):
            model.ops = "edit"  # which stands for substitutions here
        model.progress = False
        if self.fingerprint is not None and model._ready().fingerprint() != self.fingerprint:
            raise ValueError(f"{self.model}: the model was changed while the run went on")
        return model


class Certifier:
    """Certificates of one model as records, in the order in which they are finished."""

    def __init__(self, model: SmoothedClassifier) -> None:
        self.model, self.base, self.rule = model, model._ready(), model._rule()
        self.plan = SamplingPlan(
            self.rule, alpha=model.alpha, n_select=model.n_select, n_estimate=model.n_estimate, **model._common()
        )
        check_labels(self.base.classes_ or [])
        self.unit = check_unit(model.unit)
        self.fingerprint = self.base.fingerprint()

    def __call__(self, jobs: Iterable[RunInput]) -> Generator[Record, None, None]:
        """The records of all inputs; one that the model fails on has a problem in place of a certificate."""
        source = _Source(jobs)
        last = time.perf_counter()
        while not source.ended:
            for record in self._window(source):
                now = time.perf_counter()
                yield record | {"seconds": now - last}
                last = now
        if source.failure is not None:
            raise source.failure

    def _window(self, source: _Source) -> Iterator[Record]:
        """Certify until the inputs end or one fails; in the latter case, one by one what was in hand."""
        hand: dict[int, tuple[RunInput, Prepared]] = {}
        unfit: list[Record] = []
        tallies = run_all(self._prepared(source, hand, unfit), self.plan, self.base)
        while True:
            try:
                number, tally = next(tallies)
            except StopIteration:
                break
            except InconsistentAnswerError:
                raise
            except Exception:
                yield from (self._alone(job) for job, _ in hand.values())
                break
            yield self._record(*hand.pop(number), tally)
            yield from _emptied(unfit)
        yield from _emptied(unfit)

    def _prepared(
        self, source: _Source, hand: dict[int, tuple[RunInput, Prepared]], unfit: list[Record]
    ) -> Iterator[Prepared]:
        number = 0
        for job in source:
            try:
                prepared = self._prepare(job)
            except (ValueError, BaseClassifierError) as error:
                unfit.append(problem_record(str(error), id=job.id, row=job.row))
                continue
            hand[number] = job, prepared
            number += 1
            yield prepared

    def _prepare(self, job: RunInput) -> Prepared:
        masking = isinstance(self.rule.noise, Masking)
        return self.base.prepare(f"row {job.row}", self.unit.split(job.text), self.unit, masking=masking)

    def _alone(self, job: RunInput) -> Record:
        """Certify one input; what no other input can be blamed for is its problem."""
        try:
            prepared = self._prepare(job)
            [(_, tally)] = run_all([prepared], self.plan, self.base)
        except InconsistentAnswerError:
            raise
        except (ValueError, BaseClassifierError) as error:
            return problem_record(str(error), id=job.id, row=job.row)
        return self._record(job, prepared, tally)

    def _record(self, job: RunInput, prepared: Prepared, tally: Tally) -> Record:
        certificate = self.model._certificate(
            self.base, tally, prepared.tokens, self.rule, self.unit.to_dict(), self.fingerprint
        )
        return record_of(certificate, id=job.id, row=job.row, truth=job.truth)


class _Source:
    """Inputs, whose own failure waits until what is in hand is done."""

    def __init__(self, jobs: Iterable[RunInput]) -> None:
        self._jobs = iter(jobs)
        self.ended = False
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[RunInput]:
        return self

    def __next__(self) -> RunInput:
        if not self.ended:
            try:
                return next(self._jobs)
            except StopIteration:
                self.ended = True
            except Exception as error:
                self.ended, self.failure = True, error
        raise StopIteration


def _emptied(records: list[Record]) -> Iterator[Record]:
    while records:
        yield records.pop(0)
