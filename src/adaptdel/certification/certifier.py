"""The certification engine: it takes inputs and yields a certificate or a failure for each.

Everything that certifies uses `Certifier`: `SmoothedClassifier`, runs in one process and in workers, and calibration.
It does not depend on files, processes or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from adaptdel.certification.certificate import Certificate, Rule
from adaptdel.certification.pool import Ticket, vote_in_window
from adaptdel.certification.sampling import SamplingPlan, Tally
from adaptdel.classifiers.base import (
    BaseClassifier,
    BaseClassifierError,
    Prepared,
    check_labels,
)
from adaptdel.core.noise import Noise
from adaptdel.settings import CERTIFICATION
from adaptdel.text.units import Tokens, check_unit


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
