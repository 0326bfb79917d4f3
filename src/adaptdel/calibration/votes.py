"""Certified radii of a sample at one kept length, with the same random numbers for every kept length.

The streams of an input are keyed by the seed, its content and the phase, and a token is kept where its draw is at or
above a threshold: the copies at a larger kept length keep all that those at a smaller one do, and more. So candidates
are compared on the same noise, and a difference between them is not luck. The phases are not those of certification:
a rate that suits the noise it was chosen on does not meet that noise again when the same examples are certified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptdel.calibration.objective import Outcome
from adaptdel.classifiers.base import BaseClassifier, Prepared
from adaptdel.classifiers.text import CallableClassifier, as_base
from adaptdel.derivation import Rule, vote_bounds
from adaptdel.noise import Deletion, Masking, NoNoise
from adaptdel.rates import InterpolatedRate
from adaptdel.sampling import CALIBRATION, Plan, Tally, run_all
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.threat import Threat
from adaptdel.units import Tokens, Unit, check_unit


def constant_keep(keep: float) -> Deletion:
    """The noise that keeps ``keep`` tokens on average, whatever the length.

    >>> constant_keep(4).rate(16)
    0.75
    """
    return Deletion(InterpolatedRate((1,), (keep,)))


def base_of(model: SmoothedClassifier) -> BaseClassifier:
    """The base classifier of a model that deletes, or is given no noise yet."""
    noise = getattr(model, "noise_", None) or model.noise
    if isinstance(noise, (Masking, NoNoise)):
        raise ValueError(f"model must have a deletion noise to be calibrated, got {noise!r}")
    if hasattr(model, "base_"):
        return model.base_
    if model.base is None:
        raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
    return as_base(model.base, model.classes)


@dataclass(frozen=True)
class Voting:
    """How the examples of a sample are certified.

    Attributes:
        base: the base classifier.
        unit: what a token is.
        plan: the votes, for a noise that each candidate replaces.
    """

    base: BaseClassifier
    unit: Unit
    plan: Plan

    @classmethod
    def of(cls, model: SmoothedClassifier, *, n_select: int, n_estimate: int, seed: int) -> Voting:
        """A model's own rule, with the paper's fixed number of votes."""
        rule = Rule(constant_keep(1), Threat(model.ops).ops, model.bound, model.threshold, model.k)
        plan = Plan(
            rule, model.alpha, n_select, n_estimate, sampling="fixed", seed=seed, exact=False, phases=CALIBRATION
        )
        return cls(base_of(model), check_unit(model.unit), plan)

    def described(self) -> dict[str, Any]:
        """What certificates depend on besides the numbers of votes, in plain values.

        The phases are among it, so that measurements on other streams, as calibrations drew before they had streams of
        their own, are not mixed with these.
        """
        rule = self.plan.rule
        attacker = {"ops": list(rule.ops), "bound": rule.bound, "decision_threshold": rule.threshold, "k": rule.k}
        streams = {"alpha": self.plan.alpha, "phases": list(self.plan.phases)}
        return {"model": self.base.fingerprint(), "unit": self.unit.kind, **streams, **attacker}

    def prepare(self, tokens: Sequence[Tokens]) -> list[Prepared]:
        """Make the inputs of a sample ready once, for all candidates."""
        return [self.base.prepare(f"example {i}", one, self.unit) for i, one in enumerate(tokens)]

    def outcomes(
        self,
        inputs: Sequence[Prepared],
        labels: Sequence[Any],
        keep: float,
        *,
        done: Callable[[int], None] | None = None,
    ) -> list[Outcome]:
        """What becomes of every example if ``keep`` tokens of it are kept."""
        plan = replace(self.plan, rule=replace(self.plan.rule, noise=constant_keep(keep)))
        found: list[Outcome | None] = [None] * len(inputs)
        for number, tally in run_all(inputs, plan, self.base, done=done):
            radius = self._radius(tally, plan.rule, len(inputs[number].tokens))
            found[number] = Outcome(tally.label, self.label(tally.label) == labels[number], radius)
        return [outcome for outcome in found if outcome is not None]

    def label(self, number: int) -> Any:
        """The label that a class number stands for."""
        if self.base.classes_ is None and isinstance(self.base, CallableClassifier):
            return self.base.label(number)
        return (self.base.classes_ or [])[number]

    def _radius(self, tally: Tally, rule: Rule, length: int) -> int:
        assert tally.looks is not None
        known = self.base.classes_
        votes = [counts.tolist() + [0] * (len(known or []) - len(counts)) for counts in tally.votes]
        bounds = vote_bounds(tally.looks, votes, tally.label, known=known is not None, k=rule.k)
        return rule.radius(*bounds, label=tally.label, length=length, two=known is not None and len(known) == 2)
