"""The certification engine: it takes inputs and yields a certificate or a failure for each.

Runs in one process and in workers, calibration, attacks, audits and the server all certify by `Certifier`. It does not
depend on files, processes or reports. It asks an `Oracle`, which knows the classifier: of token scores, evidence is
finished at once; votes are taken in steps, in a `Pool` of inputs that share the batches of one classifier. A pool is
used by one thread. The evidence on an input depends neither on the other inputs in the pool nor on how its copies are
split between steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.evidence import Evidence, Plan
from adaptdel.classifiers.base import (
    BaseClassifierError,
    InconsistentAnswerError,
    Prepared,
    Request,
    check_labels,
)
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.settings import CERTIFICATION
from adaptdel.text.units import Tokens, Unit, check_unit

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
    """The result for an input: a certificate, or why there is none."""

    input: Input
    certificate: Certificate | None
    failure: str | None = None


class Steps(ABC):
    """Evidence in the making: noisy copies that wait for the votes of the base classifier.

    Attributes:
        kept: the tokens that each copy keeps, shape (copies, length).
        stage: what the votes are taken for.
    """

    kept: BoolArray
    stage: str

    @abstractmethod
    def send(self, answers: IntArray) -> bool:
        """Take the class number of every copy; returns whether the evidence is complete, else there are new copies."""

    @abstractmethod
    def evidence(self) -> Evidence:
        """The evidence so far, also if the votes end early."""


class Oracle(ABC):
    """What evidence is asked of: the classifier of a model.

    Attributes:
        classes: the labels.
        together: how many inputs are prepared together.
    """

    classes: list[Any]
    together: int = 1

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the classifier, or ""."""

    @abstractmethod
    def prepare(self, inputs: Sequence[tuple[str, Tokens]], unit: Unit, plan: Any) -> list[Prepared]:
        """Prepare inputs, pairs of a name in messages and tokens, once for everything that is asked about them."""

    @abstractmethod
    def observe(self, prepared: Prepared, plan: Any) -> Evidence | Steps:
        """The evidence on an input, or the steps that lead to it."""

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class number of every copy of `Steps`."""
        raise NotImplementedError  # of an oracle whose evidence needs no votes

    def copy_scores(self, requests: Sequence[Request]) -> Sequence[npt.NDArray[Any]] | None:
        """The scores of every copy of `votes`, shape (copies, classes); None if there are votes only."""
        return None

    def rewriter(self, prepared: Prepared, evidence: Any) -> Callable[..., Any] | None:
        """What makes counterexamples, if they can be made."""
        return None

    def known_tokens(self) -> Sequence[Hashable] | None:
        """Tokens whose effect on every text is known, so that no attack has to search; None if it is not known."""
        return None

    def worst_token(self, answer: int, rival: int, unit: Unit) -> Hashable:
        """The known token that speaks most for a rival and against the answer; None if it is not known."""
        return None

    def against_known(self, certificate: Certificate) -> Certificate:
        """The certificate against an attacker who writes no other tokens than those whose effect is known.

        Its radius is at least that of the given one, and its counterexample, one edit further away, is the closest text
        with another label that such an attacker can write; None if no number of edits changes the label.
        """
        return certificate


class Certifier:
    """Certify inputs with one classifier and one plan.

    Args:
        oracle: the classifier.
        plan: what evidence and radii depend on besides the classifier.
        unit: what a token is.
    """

    def __init__(self, oracle: Oracle, plan: Plan, unit: Any = CERTIFICATION.unit) -> None:
        check_labels(oracle.classes)
        if len(oracle.classes) < 2:
            raise ValueError(f"classes must hold at least 2 labels, got {oracle.classes!r}")
        if plan.decision_threshold is not None and len(oracle.classes) != 2:
            raise ValueError(f"threshold must be None for {len(oracle.classes)} classes, got {plan.decision_threshold}")
        self.oracle, self.plan, self.unit = oracle, plan, check_unit(unit)

    def __repr__(self) -> str:
        return f"Certifier({self.oracle!r}, {self.plan!r}, {self.unit!r})"

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the classifier, when the first certificate is derived."""
        return self.oracle.fingerprint()

    @property
    def classes(self) -> list[Any]:
        """The labels."""
        return self.oracle.classes

    def with_plan(self, plan: Plan) -> Certifier:
        """The same certifier with another plan. Inputs that were prepared before can still be used."""
        other = copy(self)
        other.plan = plan
        return other

    def __call__(self, inputs: Iterable[Input]) -> Iterator[InputResult]:
        """A result for every input, in the order in which they are finished.

        Several inputs are processed together, see `Pool`. If the classifier fails on one of them, only that input gets
        a failure. An `InconsistentAnswerError` is raised at once.
        """
        for ticket in self._finished(self._tickets(inputs)):
            if ticket.failure is None:
                yield InputResult(ticket.tag, self.certificate(ticket.prepared, ticket.evidence))
            elif isinstance(ticket.failure, (ValueError, BaseClassifierError)):
                yield InputResult(ticket.tag, None, str(ticket.failure))
            else:
                raise ticket.failure

    def _tickets(self, inputs: Iterable[Input]) -> Iterator[Ticket]:
        """A ticket for every input; one that cannot be prepared has failed already."""
        remaining = iter(inputs)
        while group := list(islice(remaining, self.oracle.together)):
            split: list[tuple[Input, Tokens]] = []
            for each in group:
                try:
                    split.append((each, self.unit.split(each.text)))
                except ValueError as error:
                    yield Ticket(Prepared("", (), self.unit), self.plan, each, failure=error)
            parts = [split]
            while parts:
                part = parts.pop(0)
                try:
                    prepared = self.oracle.prepare([(each.name, tokens) for each, tokens in part], self.unit, self.plan)
                except (ValueError, BaseClassifierError) as error:
                    if len(part) == 1:
                        yield Ticket(Prepared("", (), self.unit), self.plan, part[0][0], failure=error)
                    else:
                        parts = [[one] for one in part]
                    continue
                for (each, _), ready in zip(part, prepared, strict=True):
                    yield Ticket(ready, self.plan, each)

    def _finished(self, tickets: Iterable[Ticket]) -> Iterator[Ticket]:
        """Yield every ticket in order of completion; some carry a failure. As many are in the pool as fit."""
        pool = self.pool()
        waiting = iter(tickets)
        following = next(waiting, None)
        while following is not None or len(pool):
            while following is not None and pool.accepts(len(following.prepared.tokens)):
                if following.failure is None:
                    pool.add(following)
                else:
                    yield following
                following = next(waiting, None)
            yield from pool.step()

    def pool(self) -> Pool:
        """An empty pool for inputs of this certifier."""
        return Pool(self.oracle)

    def prepared(self, inputs: Iterable[tuple[str, Tokens]]) -> Iterator[Prepared]:
        """Prepare pairs of a name in messages and tokens, several together."""
        remaining = iter(inputs)
        while group := list(islice(remaining, self.oracle.together)):
            yield from self.oracle.prepare(group, self.unit, self.plan)

    def prepare(self, text: Any, name: str) -> Prepared:
        """Split a text into tokens and prepare it, once for everything that is asked about it."""
        return self.prepare_tokens(self.unit.split(text), name)

    def prepare_tokens(self, tokens: Tokens, name: str) -> Prepared:
        """Prepare a tuple of tokens."""
        return self.oracle.prepare([(name, tokens)], self.unit, self.plan)[0]

    def observed(
        self, inputs: Iterable[Prepared], *, done: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the evidence of every input, in order of completion; a failure is raised."""
        tickets = (Ticket(prepared, self.plan, tag=number) for number, prepared in enumerate(inputs))
        for finished, ticket in enumerate(self._finished(tickets), start=1):
            if ticket.failure is not None:
                raise ticket.failure
            if done is not None:
                done(finished)
            yield ticket.tag, ticket.evidence

    def certificate(self, prepared: Prepared, evidence: Any) -> Certificate:
        """The certificate for the evidence on an input."""
        return Certificate(
            label=self.classes[evidence.predicted(self.plan)],
            classes=tuple(self.classes),
            plan=self.plan,
            evidence=evidence,
            unit=self.unit.description(),
            model_hash=self.fingerprint,
            tokens=prepared.tokens,
            rewrite=self.oracle.rewriter(prepared, evidence),
        )


class VoteWatcher(Protocol):
    """What is told of the votes on an input, in the thread of the pool."""

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        """Copies were classified: the tokens that they keep, shape (copies, length), and their class numbers."""

    def saw_step(self, steps: Steps) -> None:
        """All copies that waited were classified: evidence may have grown."""


@dataclass(eq=False)
class Ticket:
    """An input in a pool.

    Attributes:
        prepared: the input.
        plan: how it is observed.
        tag: whatever the caller wants to find here again.
        watcher: told of votes.
        evidence: at the end, unless there is a failure.
        failure: why there is no evidence, if the classifier failed on this input.
    """

    prepared: Prepared
    plan: Any
    tag: Any = None
    watcher: VoteWatcher | None = None
    evidence: Any = None
    failure: Exception | None = None


class _Active:
    """The steps of one input, of whose copies some may be classified already."""

    def __init__(self, ticket: Ticket, steps: Steps) -> None:
        self.ticket, self.steps = ticket, steps
        self._answers: list[IntArray] = []
        self._sent = 0

    @property
    def waiting(self) -> int:
        """The number of copies that wait."""
        return len(self.steps.kept) - self._sent

    def request(self, copies: int) -> Request:
        """The next copies."""
        kept = self.steps.kept
        whole = not self._sent and copies == len(kept)
        return Request(self.ticket.prepared, kept if whole else kept[self._sent : self._sent + copies])

    def receive(self, answers: IntArray) -> bool:
        """Take the answers to the copies of the last request; returns whether the evidence is complete."""
        steps, watcher = self.steps, self.ticket.watcher
        if watcher is not None:
            watcher.saw_votes(steps.stage, steps.kept[self._sent : self._sent + len(answers)], answers)
        self._answers.append(answers)
        self._sent += len(answers)
        if self._sent < len(steps.kept):
            return False
        complete = answers if len(self._answers) == 1 else np.concatenate(self._answers)
        self._answers, self._sent = [], 0
        finished = steps.send(complete)
        if watcher is not None:
            watcher.saw_step(steps)
        return finished


class Pool:
    """Inputs that are observed together. Each `step` is one call of the base classifier.

    Attributes:
        oracle: the classifier.
        tokens: the number of tokens of the inputs that wait for votes.
        copies: the number of copies that the last step classified.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._active: dict[Ticket, _Active] = {}
        self._done: list[Ticket] = []  # whose evidence needs no votes
        self.tokens = self.copies = 0

    def __len__(self) -> int:
        """The number of inputs in the pool."""
        return len(self._active) + len(self._done)

    def accepts(self, length: int) -> bool:
        """Whether an input of this many tokens fits in; an empty pool accepts any."""
        return not len(self) or (len(self) < WINDOW_INPUTS and self.tokens + length <= WINDOW_TOKENS)

    def add(self, ticket: Ticket) -> None:
        """Begin to observe an input; it takes part in the next step."""
        observed = self.oracle.observe(ticket.prepared, ticket.plan)
        if isinstance(observed, Steps):
            self._active[ticket] = _Active(ticket, observed)
            self.tokens += len(ticket.prepared.tokens)
        else:
            ticket.evidence = observed
            self._done.append(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Drop an input; nothing happens if it is not in the pool."""
        if ticket in self._active:
            self._remove(ticket)
        elif ticket in self._done:
            self._done.remove(ticket)

    def stop(self, ticket: Ticket) -> None:
        """End the votes on an input now: its evidence so far is valid, if it proves anything."""
        if ticket in self._active:
            ticket.evidence = self._remove(ticket).steps.evidence()
        else:
            self._done.remove(ticket)

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
        finished, self._done, self.copies = self._done, [], 0
        active = list(self._active.values())
        if not active:
            return finished
        requests = [a.request(copies) for a, copies in zip(active, _shares(active, work), strict=True)]
        self.copies = sum(len(request.kept) for request in requests)
        for each, result in zip(active, self._votes(requests), strict=True):
            ticket = each.ticket
            try:
                if isinstance(result, Exception):
                    raise result
                if not each.receive(result):
                    continue
                ticket.evidence = each.steps.evidence()
            except InconsistentAnswerError:
                raise
            except Exception as error:
                ticket.failure = error
            self._remove(ticket)
            finished.append(ticket)
        return finished

    def _votes(self, requests: Sequence[Request]) -> list[IntArray | Exception]:
        """The votes on each input; after a failure each is asked about alone, so that it is due to one of them."""
        try:
            return list(self.oracle.votes(requests))
        except InconsistentAnswerError:
            raise
        except Exception as error:
            return [error] if len(requests) == 1 else [self._votes([request])[0] for request in requests]


def _shares(active: list[_Active], work: int | None) -> list[int]:
    """The number of copies of each input that are classified in a step, at least one of each."""
    if work is None:
        return [each.waiting for each in active]
    copies = [0] * len(active)
    widths = [max(1, len(each.ticket.prepared.tokens)) for each in active]  # about the cost of classifying a copy
    needs = sorted(range(len(active)), key=lambda number: active[number].waiting * widths[number])
    for rank, number in enumerate(needs):
        copies[number] = min(active[number].waiting, max(1, work // (len(active) - rank) // widths[number]))
        work = max(0, work - copies[number] * widths[number])
    return copies
