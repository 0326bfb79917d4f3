"""Coverage on the production path: certificates fail no more often than alpha, and the simulation would see it.

The base classifier is a function of the copy whose class probabilities are known exactly: what it answers depends on
which of the first few tokens are kept. Every simulation certifies an input of other content, whose streams are its own,
through `SmoothedClassifier.certify` or, as in runs, in a stream. A certificate fails if a claimed bound does not
cover the true probability, or if its radius exceeds the one that follows from the true probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Deletion, FixedRate, SmoothedClassifier
from adaptdel.certification import sampling
from adaptdel.certification.certifier import Input
from adaptdel.certification.votes import Votes, VotesPlan
from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import Looks, class_bounds, exact_shares
from adaptdel.core.noise import Noise
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
    """One setting whose coverage is simulated, through `certify` or as in runs."""

    shares: tuple[float, ...]  # about how probable each class is
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


def failures(scenario: Scenario, runs: int) -> int:
    """How many certificates of inputs of different content claim too much."""
    truth = known_table(scenario.psi, scenario.shares)[1]
    plan = VotesPlan(noise=scenario.noise, bound=scenario.bound, threshold=scenario.threshold)
    rivals = [sorted(truth[:label] + truth[label + 1 :])[-1] for label in range(len(truth))]

    @cache
    def true_radius(label: int) -> int:
        p1, p2 = round_down(truth[label]), round_up(rivals[label])
        return plan.radius(p1, None if len(truth) == 2 else p2, label=label, length=LENGTH, threat=plan.threat)

    texts = [" ".join(f"{number}.{place}" for place in range(LENGTH)) for number in range(runs)]
    model, failed = scenario.model(), 0
    if scenario.through == "runs":
        certificates = [each.certificate for each in model.certifier()(Input(text, text) for text in texts)]
    else:
        certificates = [*model.certify(texts)]
    for certificate in certificates:
        assert certificate is not None
        assert isinstance(certificate.evidence, Votes)
        assert certificate.evidence.copies is None
        label, stated = certificate.label, certificate.derived()
        failed += (
            Fraction(stated["p1"]) > truth[label]
            or Fraction(stated["p2"]) < rivals[label]
            or certificate.radius > true_radius(label)
        )
    return failed


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


@pytest.mark.parametrize(
    ("runs", "scenario"),
    [(300, SCENARIOS[1]), (300, SCENARIOS[7]), *(pytest.param(6000, s, marks=pytest.mark.slow) for s in SCENARIOS)],
    ids=repr,
)
def test_certificates_fail_no_more_often_than_alpha(runs: int, scenario: Scenario) -> None:
    assert excess(scenario, runs) > SURE


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


@pytest.mark.parametrize(
    ("mistake", "scenario", "runs"),
    [
        *((*BROKEN[number], 1000) for number in (0, 3)),
        *(pytest.param(*broken, 3000, marks=pytest.mark.slow) for broken in BROKEN),
    ],
)
def test_a_mistake_is_seen(mistake: Mistake, scenario: Scenario, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificates are sound, and no longer are with the mistake."""
    assert runs < 3000 or excess(scenario, runs) > SURE
    mistake(monkeypatch)
    assert excess(scenario, runs) < SURE
