"""Coverage on the production path: certificates fail no more often than alpha, and the simulation would see it.

The base classifier is a function of the copy whose class probabilities are known exactly: what it answers depends on
which of the first few tokens are kept. Every simulation certifies an input of other content, whose streams are its own,
through `SmoothedClassifier.certify` or through the certifier of runs. A certificate fails if a claimed bound does not
cover the true probability, or if its radius exceeds the one that follows from the true probabilities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Deletion, FixedRate, SmoothedClassifier
from adaptdel.certification import sampling
from adaptdel.certification.certificate import Rule
from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import Looks, class_bounds, exact_shares
from adaptdel.core.noise import Noise
from adaptdel.runs.certify import certify_here
from adaptdel.runs.inputs import RunInput
from tests.exact import round_down, round_up

ALPHA = 0.1
LENGTH = 24  # tokens of an input: too many for its copies to be enumerated
READ = 12  # tokens that the answer depends on
SURE = 1e-6  # a test of a sound sampler fails this seldom


class Lookup(BaseClassifier):
    """Answers by which of the first tokens are kept: a table of 2**READ classes."""

    def __init__(self, table: IntArray, classes: int) -> None:
        self.table = table
        self.classes_ = list(range(classes))

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The entries of the table; a token's text holds its place, so that this is a function of the copy."""
        return [self.table[request.kept[:, :READ] @ (1 << np.arange(READ))] for request in requests]


@dataclass(frozen=True)
class Scenario:
    """One setting whose coverage is simulated.

    Attributes:
        shares: about how probable each class is.
        sampling: "adaptive" or "fixed".
        psi: the deletion rate.
        n_select: votes that choose the class.
        n_estimate: votes that bound it.
        threshold: a decision threshold, or None.
        through: "certify" or "runs".
        bound: "tight" or "paper".
    """

    shares: tuple[float, ...]
    sampling: str = "adaptive"
    psi: float = 0.9
    n_select: int = 32
    n_estimate: int = 400
    threshold: float | None = None
    through: str = "certify"
    bound: str = "tight"

    @property
    def noise(self) -> Noise:
        return Deletion(FixedRate(self.psi))

    def model(self) -> SmoothedClassifier:
        """The smoothed classifier; the votes on an input depend on its content."""
        return SmoothedClassifier(
            Lookup(known_table(self.psi, self.shares)[0], len(self.shares)),
            self.noise,
            alpha=ALPHA,
            n_select=self.n_select,
            n_estimate=self.n_estimate,
            sampling=self.sampling,
            bound=self.bound,
            threshold=self.threshold,
            progress=False,
        )


@cache
def known_table(psi: float, shares: tuple[float, ...]) -> tuple[IntArray, tuple[Fraction, ...]]:
    """Classes by which tokens are kept, and their exact probabilities, as close to the shares as can be."""
    weights = Deletion(FixedRate(psi)).choice_weights(READ)
    sizes = [mask.bit_count() for mask in range(1 << READ)]
    missing = list(shares)
    table = np.zeros(1 << READ, dtype=np.int64)
    for mask in sorted(range(1 << READ), key=lambda mask: -weights[sizes[mask]]):
        number = int(np.argmax(missing))
        table[mask] = number
        missing[number] -= float(weights[sizes[mask]])
    counts = np.zeros((len(shares), READ + 1), dtype=np.int64)
    np.add.at(counts, (table, np.array(sizes)), 1)
    return table, tuple(exact_shares(counts.tolist(), Deletion(FixedRate(psi)), READ))


@dataclass(frozen=True)
class Claim:
    """What a certificate says."""

    label: int
    p1: float
    p2: float
    radius: int


def claims(scenario: Scenario, runs: int) -> Iterator[Claim]:
    """Certify inputs of different content."""
    texts = [" ".join(f"{number}.{place}" for place in range(LENGTH)) for number in range(runs)]
    model = scenario.model()
    if scenario.through == "runs":
        inputs = (RunInput(number, str(number), text, None) for number, text in enumerate(texts))
        for record in certify_here(model.certifier(), inputs):
            assert record["problem"] is None
            yield Claim(json.loads(record["answer"]), record["p1"], record["p2"], record["radius"])
        return
    for certificate in model.certify(texts):
        assert certificate.exact is None
        yield Claim(certificate.label, *certificate.bounds, certificate.radius)


def failures(scenario: Scenario, runs: int) -> int:
    """How many certificates claim too much."""
    truth = known_table(scenario.psi, scenario.shares)[1]
    rule = Rule(scenario.noise, ("del", "ins", "sub"), scenario.bound, scenario.threshold)
    rivals = [sorted(truth[:label] + truth[label + 1 :])[-1] for label in range(len(truth))]

    @cache
    def true_radius(label: int) -> int:
        p1, p2 = round_down(truth[label]), round_up(rivals[label])
        return rule.radius(p1, p2, label=label, length=LENGTH, is_binary=len(truth) == 2)

    return sum(
        Fraction(claim.p1) > truth[claim.label]
        or Fraction(claim.p2) < rivals[claim.label]
        or claim.radius > true_radius(claim.label)
        for claim in claims(scenario, runs)
    )


def excess(scenario: Scenario, runs: int) -> float:
    """How likely so many failures are, or more, if the certificates are as good as they say."""
    return float(stats.binomtest(failures(scenario, runs), runs, ALPHA, alternative="greater").pvalue)


FIXED: dict[str, Any] = {"sampling": "fixed"}
SCENARIOS = [
    # two classes: a tie, nearly a tie, and probabilities at which the radius changes
    Scenario((0.5, 0.5), **FIXED),
    Scenario((0.5, 0.5)),
    Scenario((0.48, 0.52)),
    Scenario((0.2, 0.8), through="runs"),
    Scenario((0.05, 0.95), n_estimate=1000),
    Scenario((0.3, 0.7), **FIXED, bound="paper", n_estimate=100),
    # many classes
    Scenario((0.34, 0.33, 0.33), **FIXED),
    Scenario((0.4, 0.4, 0.2)),
    Scenario((0.45, 0.45, 0.05, 0.05), through="runs"),
    Scenario((0.15,) * 5 + (0.25,), psi=0.8, **FIXED),
    Scenario((0.7, 0.1, 0.1, 0.1)),
    # thresholds: on either side of it, and at it
    Scenario((0.7, 0.3), threshold=0.3, **FIXED),
    Scenario((0.7, 0.3), threshold=0.3),
    Scenario((0.72, 0.28), threshold=0.3),
    Scenario((0.1, 0.9), threshold=0.8, through="runs"),
    Scenario((0.9, 0.1), threshold=0.2),
    Scenario((0.9, 0.1), threshold=0.05, **FIXED, bound="paper", n_estimate=100),
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=repr)
def test_certificates_fail_no_more_often_than_alpha(scenario: Scenario) -> None:
    assert excess(scenario, 6000) > SURE


@pytest.mark.parametrize("scenario", [SCENARIOS[1], SCENARIOS[7]], ids=repr)
def test_a_few_certificates_fail_no_more_often_than_alpha(scenario: Scenario) -> None:
    assert excess(scenario, 300) > SURE


def test_the_probabilities_are_known() -> None:
    """Against votes on many copies, and against the sum of all classes."""
    for scenario in (SCENARIOS[0], SCENARIOS[10]):
        table, truth = known_table(scenario.psi, scenario.shares)
        assert sum(truth) == 1
        assert [float(share) for share in truth] == pytest.approx(scenario.shares, abs=1e-3)
        kept = scenario.noise.sample(LENGTH, 20000, np.random.default_rng(0))
        counts = np.bincount(table[kept[:, :READ] @ (1 << np.arange(READ))], minlength=len(truth))
        assert stats.chisquare(counts, [float(share) * 20000 for share in truth]).pvalue > SURE


# The simulation has to see a sampler that is broken. Each of these is a mistake that has been made somewhere.


Mistake = Callable[[pytest.MonkeyPatch], None]


def select_on_the_estimation_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = sampling.stream
    monkeypatch.setattr(sampling, "stream", lambda seed, key, phase: stream(seed, key, "estimate"))


def peek_without_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = sampling.plan_looks

    def peeking(*arguments: Any) -> Looks:
        looks = planned(*arguments)
        return Looks(looks.sizes, (ALPHA,) * len(looks.sizes))

    monkeypatch.setattr(sampling, "plan_looks", peeking)


def bound_both_at_the_whole_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(votes: Sequence[int], label: int, alpha: float) -> tuple[float, float]:
        return class_bounds(votes, label, alpha * 2)

    monkeypatch.setattr("adaptdel.core.confidence.class_bounds", whole)


def take_the_share_of_votes_for_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.core.confidence._lower", lambda count, total, alpha: count / total)


def sample_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that is lower by a hundredth where it is sampled than where it is certified."""
    rows = Deletion.draw_rows
    monkeypatch.setattr(
        Deletion, "draw_rows", lambda self, *arguments: rows(Deletion(FixedRate(self.rate.p - 0.01)), *arguments)
    )


TIE: dict[str, Any] = {**FIXED, "n_select": 400}  # a selection of as many votes
MANY_LOOKS: dict[str, Any] = {"n_estimate": 4000}
BROKEN = [
    (select_on_the_estimation_votes, Scenario((0.5, 0.5), **TIE)),
    (select_on_the_estimation_votes, Scenario((0.25, 0.25, 0.25, 0.25), psi=0.8, **TIE)),
    (select_on_the_estimation_votes, Scenario((0.7, 0.3), threshold=0.3, **TIE)),
    (peek_without_spending, Scenario((0.5, 0.5))),
    (peek_without_spending, Scenario((0.4, 0.4, 0.2), **MANY_LOOKS)),
    (peek_without_spending, Scenario((0.7, 0.3), threshold=0.3, **MANY_LOOKS)),
    (bound_both_at_the_whole_level, Scenario((0.4, 0.4, 0.2), **FIXED)),
    (take_the_share_of_votes_for_a_bound, Scenario((0.2, 0.8), through="runs")),
    (sample_another_rate, Scenario((0.5, 0.5), **FIXED)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "scenario"), BROKEN)
def test_a_mistake_is_seen(mistake: Mistake, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificates are sound, and no longer are with the mistake."""
    assert excess(scenario, 3000) > SURE
    mistake(monkeypatch)
    assert excess(scenario, 3000) < SURE


@pytest.mark.parametrize(("mistake", "scenario"), [BROKEN[0], BROKEN[3]])
def test_a_mistake_is_soon_seen(mistake: Mistake, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    assert excess(scenario, 1000) < SURE
