"""The certification engine: it takes inputs and yields a certificate or a failure for each.

`SmoothedClassifier`, runs in one process and in workers, and calibration take all votes by `Certifier`. It does not
depend on files, processes or reports. Inputs are voted on together in a `VotePool`, which the server uses too: each has
its own plan, and all share the batches of one classifier. A pool is used by one thread. The votes on an input depend
neither on the other inputs in the pool nor on how its copies are split between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from adaptdel.certification.certificate import Certificate, Rule
from adaptdel.certification.sampling import SamplingPlan, Tally, take_votes
from adaptdel.classifiers.base import (
    BaseClassifier,
    BaseClassifierError,
    InconsistentAnswerError,
    Prepared,
    Request,
    check_labels,
)
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Noise
from adaptdel.settings import CERTIFICATION
from adaptdel.text.units import Tokens, check_unit

WINDOW_INPUTS = 64
WINDOW_TOKENS = 200_000  # the largest number of tokens of inputs that are processed together, unless it is one input


@dataclass(frozen=True)
class Input:
    """An input to certify: a text, its name in messages, and a tag that is passed on to its result."""

    text: Any
    name: str
    tag: Any = None


@dataclass(frozen=True)
class InputResult:
    """The result for an input: a certificate (a `Certificate` or an `ExactCertificate`), or why there is none."""

    input: Input
    certificate: Any
    failure: str | None = None


class Certifier:
    """Certify inputs with one base classifier and one sampling plan.

    Args:
        base: the base classifier.
        plan: the noise, the threat model, the bound and how votes are sampled.
        unit: what a token is.
    """

    def __init__(self, base: BaseClassifier, plan: SamplingPlan, unit: Any = CERTIFICATION.unit) -> None:
        check_labels(base.classes_ or [])
        plan.rule.check_classes(base.classes_ or [])
        self.base, self.plan, self.unit = base, plan, check_unit(unit)

    def __repr__(self) -> str:
        return f"Certifier({self.base!r}, {self.plan!r}, {self.unit!r})"

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the base classifier, when the first certificate is derived."""
        return self.base.fingerprint()

    @property
    def rule(self) -> Rule:
        """How bounds on probabilities are turned into a radius."""
        return self.plan.rule

    def under(self, noise: Noise) -> Certifier:
        """The same certifier under another noise. Inputs that were prepared before can still be used."""
        return self.with_plan(replace(self.plan, rule=replace(self.rule, noise=noise)))

    def with_plan(self, plan: SamplingPlan) -> Certifier:
        """The same certifier with another plan. Inputs that were prepared before can still be used."""
        other = copy(self)
        other.plan = plan
        return other

    def with_base(self, base: BaseClassifier) -> Certifier:
        """The same certifier for another base classifier, which prepares its own inputs."""
        return Certifier(base, self.plan, self.unit)

    def __call__(self, inputs: Iterable[Input]) -> Generator[InputResult, None, None]:
        """Yield a result for every input, in the order in which they are finished.

        Several inputs are processed together, see `VotePool`. If the base classifier fails on one of them, only that
        input gets a failure. An `InconsistentAnswerError` is raised at once.
        """
        invalid: list[InputResult] = []

        def tickets() -> Iterator[Ticket]:
            for each in inputs:
                try:
                    prepared = self.prepare(each.text, each.name)
                except (ValueError, BaseClassifierError) as error:
                    invalid.append(InputResult(each, None, str(error)))
                    continue
                yield Ticket(prepared, self.plan, tag=each)

        for ticket in vote_in_window(tickets(), self.base):
            if ticket.failure is None:
                yield InputResult(ticket.tag, self.certificate(ticket.prepared, ticket.tally))
            elif isinstance(ticket.failure, (ValueError, BaseClassifierError)):
                yield InputResult(ticket.tag, None, str(ticket.failure))
            else:
                raise ticket.failure
            while invalid:
                yield invalid.pop(0)
        yield from invalid

    def prepare(self, text: Any, name: str) -> Prepared:
        """Split a text into tokens and prepare it, once for all its noisy copies."""
        return self.prepare_tokens(self.unit.split(text), name)

    def prepare_tokens(self, tokens: Tokens, name: str) -> Prepared:
        """Prepare a tuple of tokens, once for all its noisy copies."""
        return self.base.prepare(name, tokens, self.unit, masking=self.rule.noise.masks_tokens)

    def votes(
        self, inputs: Iterable[Prepared], *, done: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, Tally]]:
        """Yield the number and the votes of every input, in order of completion; a failure is raised."""
        tickets = (Ticket(prepared, self.plan, tag=number) for number, prepared in enumerate(inputs))
        for finished, ticket in enumerate(vote_in_window(tickets, self.base), start=1):
            if ticket.failure is not None:
                raise ticket.failure
            if done is not None:
                done(finished)
            yield ticket.tag, ticket.tally

    def certificate(self, prepared: Prepared, tally: Tally) -> Certificate:
        """The certificate for the votes on an input."""
        labels, rule = self.base.classes_ or [], self.rule
        return Certificate(
            label=labels[tally.label],
            classes=tuple(labels),
            answer=tally.label,
            length=len(prepared.tokens),
            noise=rule.noise.given(prepared.tokens),
            selection=tuple(tally.selection.tolist()),
            looks=tally.looks,
            votes=tuple(tuple(row.tolist()) for row in tally.votes),
            exact=None if tally.exact is None else tuple(map(tuple, tally.exact.tolist())),
            ops=rule.ops,
            bound=rule.bound,
            threshold=rule.threshold,
            seed=None if self.plan.secret else self.plan.seed,
            unit=self.unit.description(),
            model_hash=self.fingerprint,
            input_hash=tally.key.hex(),
        )


class VoteObserver(Protocol):
    """What is told of the votes on an input, in the thread of the pool."""

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        """Copies were classified: the tokens that they keep, shape (copies, length), and their class numbers."""

    def saw_look(self, tally: Tally) -> None:
        """A planned look was taken: the last of ``tally.votes``."""


@dataclass(eq=False)
class Ticket:
    """An input in a pool.

    Attributes:
        prepared: the input.
        plan: how it is sampled.
        tag: whatever the caller wants to find here again.
        observer: told of votes and looks.
        tally: the votes so far.
        failure: why there are no more votes, if the classifier failed on this input.
    """

    prepared: Prepared
    plan: SamplingPlan
    tag: Any = None
    observer: VoteObserver | None = None
    tally: Tally = field(default_factory=Tally)
    failure: Exception | None = None

    @property
    def width(self) -> int:
        """The number of tokens of a copy before deletion, at least 1: the cost of classifying it is about that."""
        return max(1, len(self.prepared.tokens))


class _Active:
    """The sampling of one input: its coroutine, and the copies that wait for answers."""

    def __init__(self, ticket: Ticket, classes: int) -> None:
        self.ticket = ticket
        self._task: Generator[BoolArray, IntArray, Tally] = take_votes(
            ticket.prepared, ticket.plan, classes, ticket.tally
        )
        self._kept = next(self._task)
        self._answers: list[IntArray] = []
        self._sent = 0

    @property
    def waiting(self) -> int:
        """The number of copies that wait."""
        return len(self._kept) - self._sent

    def request(self, copies: int) -> Request:
        """The next copies."""
        whole = not self._sent and copies == len(self._kept)
        return Request(self.ticket.prepared, self._kept if whole else self._kept[self._sent : self._sent + copies])

    def receive(self, answers: IntArray) -> bool:
        """Take the answers to the copies of the last request; returns whether the votes are complete."""
        ticket = self.ticket
        observer, stage = ticket.observer, ticket.tally.stage
        if observer is not None:
            observer.saw_votes(stage, self._kept[self._sent : self._sent + len(answers)], answers)
        self._answers.append(answers)
        self._sent += len(answers)
        if self._sent < len(self._kept):
            return False
        complete = answers if len(self._answers) == 1 else np.concatenate(self._answers)
        looks = len(ticket.tally.votes)
        finished = False
        try:
            self._kept = self._task.send(complete)
        except StopIteration:
            finished = True
        self._answers, self._sent = [], 0
        if observer is not None and len(ticket.tally.votes) > looks:
            observer.saw_look(ticket.tally)
        return finished

    def stop(self) -> Tally:
        """End the sampling and return the votes so far; without a label that was selected, the most frequent one."""
        self._task.close()
        tally = self.ticket.tally
        counts = tally.selection
        if tally.label < 0 and counts.any():
            tally = replace(tally, label=self.ticket.plan.rule.predicted_class(counts.tolist(), int(counts.sum())))
        return tally


class VotePool:
    """Inputs that are voted on together. Each `step` is one call of the base classifier.

    Attributes:
        classifier: the base classifier.
        tokens: the number of tokens of the inputs in the pool.
        copies: the number of copies that the last step classified.
    """

    def __init__(self, classifier: BaseClassifier) -> None:
        self.classifier = classifier
        self._active: dict[Ticket, _Active] = {}
        self.tokens = self.copies = 0

    def __len__(self) -> int:
        """The number of inputs in the pool."""
        return len(self._active)

    def accepts(self, length: int) -> bool:
        """Whether an input of so many tokens fits in; an empty pool accepts any."""
        return not self._active or (len(self) < WINDOW_INPUTS and self.tokens + length <= WINDOW_TOKENS)

    def add(self, ticket: Ticket) -> None:
        """Begin to vote on an input; it takes part in the next step."""
        self._active[ticket] = _Active(ticket, len(self.classifier.classes_ or []))
        self.tokens += len(ticket.prepared.tokens)

    def cancel(self, ticket: Ticket) -> None:
        """Drop an input; nothing happens if it is not in the pool."""
        if ticket in self._active:
            self._remove(ticket)

    def stop(self, ticket: Ticket) -> None:
        """End the votes on an input now: ``ticket.tally`` holds the looks that were taken, which are valid."""
        ticket.tally = self._remove(ticket).stop()

    def _remove(self, ticket: Ticket) -> _Active:
        self.tokens -= len(ticket.prepared.tokens)
        return self._active.pop(ticket)

    def step(self, work: int | None = None) -> list[Ticket]:
        """Classify copies of every input in the pool; returns the inputs that are finished or failed.

        If the classifier fails, the copies of each input are classified alone, so that only the input that fails gets
        a failure. An `InconsistentAnswerError` is raised at once.

        Args:
            work: about how many copies times tokens to classify, shared fairly: an input gets at most its share, and
                what short inputs do not need goes to long ones. None for all copies that wait.
        """
        active = list(self._active.values())
        if not active:
            return []
        requests = [a.request(copies) for a, copies in zip(active, _shares(active, work), strict=True)]
        self.copies = sum(len(request.kept) for request in requests)
        results: list[IntArray | Exception]
        try:
            results = list(self.classifier.votes(requests))
        except InconsistentAnswerError:
            raise
        except Exception:
            results = [self._alone(request) for request in requests]
        finished = []
        for sampled, result in zip(active, results, strict=True):
            ticket = sampled.ticket
            try:
                if isinstance(result, Exception):
                    raise result
                if not sampled.receive(result):
                    continue
            except InconsistentAnswerError:
                raise
            except Exception as error:
                ticket.failure = error
            self._remove(ticket)
            finished.append(ticket)
        return finished

    def _alone(self, request: Request) -> IntArray | Exception:
        """The votes on one input, so that a failure is due to it."""
        try:
            return self.classifier.votes([request])[0]
        except InconsistentAnswerError:
            raise
        except Exception as error:
            return error


def _shares(active: list[_Active], work: int | None) -> list[int]:
    """The number of copies of each input that are classified in a step, at least one of each."""
    if work is None:
        return [sampled.waiting for sampled in active]
    copies = [0] * len(active)
    needs = sorted(range(len(active)), key=lambda number: active[number].waiting * active[number].ticket.width)
    for rank, number in enumerate(needs):
        width = active[number].ticket.width
        copies[number] = min(active[number].waiting, max(1, work // (len(active) - rank) // width))
        work = max(0, work - copies[number] * width)
    return copies


def vote_in_window(tickets: Iterable[Ticket], classifier: BaseClassifier) -> Iterator[Ticket]:
    """Yield every ticket in order of completion; some carry a failure. As many are in the pool as fit."""
    pool = VotePool(classifier)
    waiting = iter(tickets)
    following = next(waiting, None)
    while following is not None or len(pool):
        while following is not None and pool.accepts(len(following.prepared.tokens)):
            pool.add(following)
            following = next(waiting, None)
        yield from pool.step()
