"""The planner of looks: its schedule, and the coverage of that schedule under the worst stopping rule.

`plan_looks` is what `SmoothedClassifier`, runs and calibration sample by. Each simulation draws votes at the planned
sizes and takes the best bounds over all looks, which is what the worst stopping rule could pick.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Deletion, FixedRate, LengthRate, Looks, Masking, SmoothedClassifier
from adaptdel.certification.certificate import Rule
from adaptdel.certification.sampling import (
    EARLY_PART,
    FIRST_SHARE,
    LAST_SHARE,
    LEAST_VOTES,
    SamplingPlan,
    plan_looks,
    take_votes,
)
from adaptdel.classifiers.base import Prepared
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import clopper_pearson, vote_bounds
from adaptdel.core.noise import Noise
from adaptdel.settings import CERTIFICATION
from adaptdel.text.units import Words

SIGNIFICANCE = 1e-6
RUNS = 20_000
LENGTH = 100
EDIT = ("del", "ins", "sub")
DEFAULTS: Any = {"alpha": CERTIFICATION.alpha, "most": CERTIFICATION.n_select - 32 + CERTIFICATION.n_estimate}


@dataclass(frozen=True)
class Schedule:
    """A planned schedule, the true probabilities of the classes, and the class that is bounded.

    Attributes:
        shares: the probability of each class.
        label: the class that was selected.
        threshold: a decision threshold for two classes, or None.
        alpha: the error level.
        most: the largest number of votes.
        interrupted: whether a deadline may end the sampling, of a text whose usual plan has a single look.
    """

    shares: tuple[float, ...]
    label: int = 0
    threshold: float | None = None
    alpha: float = 0.1
    most: int = 2000
    interrupted: bool = False

    @property
    def rule(self) -> Rule:
        rate = LengthRate(0.9, 27) if self.interrupted else FixedRate(0.9)
        return Rule(Deletion(rate), EDIT, "tight", self.threshold)

    def looks(self) -> Looks:
        plan = SamplingPlan(self.rule, alpha=self.alpha, n_estimate=self.most, interrupted=self.interrupted)
        return plan_looks(plan, 600 if self.interrupted else LENGTH, len(self.shares), self.most)

    def votes(self, sizes: tuple[int, ...]) -> IntArray:
        """Votes at each look, shape (runs, looks, classes)."""
        rng = np.random.default_rng(2)
        steps = np.diff(np.array([0, *sizes]))
        drawn = np.stack([rng.multinomial(step, self.shares, size=RUNS) for step in steps], axis=1)
        return np.asarray(drawn.cumsum(axis=1))

    def failures(self, looks: Looks) -> int:
        """How many runs claim a bound that does not hold, or the wrong side of the threshold."""
        rivals = sorted(share for number, share in enumerate(self.shares) if number != self.label)
        total = 0
        for rows in self.votes(looks.sizes).tolist():
            p1, p2 = vote_bounds(looks, rows, self.label)
            failed = p1 > self.shares[self.label] or p2 < rivals[-1]
            if self.threshold is not None and self.label != int(self.shares[1] > self.threshold):
                failed |= self.rule.radius(p1, p2, label=self.label, length=LENGTH, is_binary=True) >= 0
            total += failed
        return total


SCHEDULES = [
    # two classes
    *(Schedule((p, 1 - p), alpha=alpha) for p in (0.5, 0.9, 0.97, 0.999) for alpha in (0.05, 0.2)),
    # many classes
    Schedule((0.5, 0.3, 0.2)),
    Schedule((0.34, 0.33, 0.33)),
    Schedule((0.9, 0.04, 0.03, 0.03), most=4000),
    Schedule((0.98, 0.01, 0.01)),
    Schedule((0.4, 0.39, 0.21)),
    # a threshold, from either side of it, and at it
    Schedule((0.7, 0.3), label=0, threshold=0.3),
    Schedule((0.7, 0.3), label=1, threshold=0.3),
    Schedule((0.28, 0.72), label=0, threshold=0.7),
    Schedule((0.05, 0.95), label=1, threshold=0.9, most=4000),
    Schedule((0.5, 0.5), interrupted=True),
    # the defaults, where 32 selection votes were enough and the others are used for the bound
    Schedule((0.97, 0.03), **DEFAULTS),
    Schedule((0.6, 0.25, 0.15), **DEFAULTS),
    Schedule((0.7, 0.3), label=1, threshold=0.3, **DEFAULTS),
]


def fails_too_often(failures: int, alpha: float) -> bool:
    return bool(stats.binomtest(failures, RUNS, alpha, alternative="greater").pvalue < SIGNIFICANCE)


QUICK = (SCHEDULES[2], SCHEDULES[8], SCHEDULES[14], SCHEDULES[17])  # two classes, many, a threshold, a deadline


@pytest.mark.parametrize(
    "schedule",
    [pytest.param(schedule, marks=() if schedule in QUICK else pytest.mark.slow) for schedule in SCHEDULES],
    ids=repr,
)
def test_coverage_of_the_planned_looks(schedule: Schedule) -> None:
    looks = schedule.looks()
    assert len(looks.sizes) >= 3
    assert looks.alpha <= schedule.alpha
    assert not fails_too_often(schedule.failures(looks), schedule.alpha)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("noise", [Deletion(FixedRate(0.9)), Masking(0.9)], ids=repr)
def test_the_first_look_is_where_unanimous_votes_are_enough(noise: Noise, classes: int) -> None:
    rule = Rule(noise, noise.certified_ops)
    looks = plan_looks(SamplingPlan(rule), LENGTH, classes, 4000)
    first, last = looks.sizes[0], looks.sizes[-1]
    level = looks.alphas[0] if classes == 2 else looks.alphas[0] / 2
    largest = rule.radius(1.0, 0.0, label=0, length=LENGTH, is_binary=True)

    def unanimous(votes: int) -> int:
        return rule.radius(clopper_pearson(votes, votes, level)[0], 0.0, label=0, length=LENGTH, is_binary=True)

    assert unanimous(first) == largest > unanimous(first - 1)
    assert last == 4000
    assert looks.sizes[1:-1] == tuple(first << step for step in range(1, len(looks.sizes) - 1))
    assert looks.sizes[-2] * 4 <= last * 3  # no look shortly before the last one
    assert looks.alpha <= 0.05
    assert looks.alpha == pytest.approx(0.05)
    assert looks.alphas[0] == pytest.approx(0.05 * FIRST_SHARE)
    assert looks.alphas[-1] == pytest.approx(0.05 * LAST_SHARE)


def test_few_votes_get_a_single_look() -> None:
    rule = Rule(Deletion(FixedRate(0.9)), EDIT)
    assert plan_looks(SamplingPlan(rule), LENGTH, 2, 100) == Looks.fixed(100, 0.05)
    assert plan_looks(SamplingPlan(rule, sampling="fixed"), LENGTH, 2, 4000) == Looks.fixed(4000, 0.05)


@pytest.mark.parametrize("length", [100, 600, 5000])
@pytest.mark.parametrize("most", [32, 100, 4968])
def test_looks_begin_early_if_sampling_may_be_interrupted(length: int, most: int) -> None:
    """Without that, a text of 600 words gets a single look at all votes."""
    plan = SamplingPlan(Rule(Deletion(LengthRate(0.9, 27)), EDIT))
    looks = plan_looks(replace(plan, interrupted=True), length, 2, most)
    assert looks.sizes[0] <= max(LEAST_VOTES, most // EARLY_PART)
    assert looks.sizes[-1] == most
    assert looks.alpha <= 0.05
    if (length, most) == (600, 4968):
        assert plan_looks(plan, length, 2, most) == Looks.fixed(most, 0.05)
    fixed = replace(plan, interrupted=True, sampling="fixed")
    assert plan_looks(fixed, length, 2, most) == Looks.fixed(most, 0.05)


def test_short_inputs_are_enumerated_only_where_that_helps() -> None:
    """Enumerating 12 words takes 4096 calls; where the first look is enough, it is not done."""
    for count, sure in ((12, True), (12, False), (9, True)):
        called: list[str] = []

        def answer(copies: list[str], called: list[str] = called, sure: bool = sure) -> list[str]:
            called.extend(copies)
            return ["b" if not sure and copy == "a" else "a" for copy in copies]

        words = " ".join("abcdefghijkl"[:count])
        base = CallableClassifier(answer, ["a", "b"], recheck=0)
        certificate = SmoothedClassifier(base, Deletion(FixedRate(0.9))).certify([words])[0]
        assert (certificate.exact is not None) == (not sure or count == 9)
        assert len(called) <= (700 if sure else 4096)


@pytest.mark.parametrize("votes", [(64, 256), (16, 512), (1000, 2000), (1000, 4000)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("length", range(7, 13))
def test_enumeration_costs_no_more_than_the_votes_that_are_asked_for(
    votes: tuple[int, int], share: float, length: int
) -> None:
    plan = SamplingPlan(Rule(Deletion(FixedRate(0.9)), EDIT), n_select=votes[0], n_estimate=votes[1])
    sampling = take_votes(Prepared("a text", tuple("abcdefghijkl"[:length]), Words()), plan, 2)
    rng, calls, kept = np.random.default_rng(0), 0, next(sampling)
    with suppress(StopIteration):
        while True:
            calls += len(kept)
            kept = sampling.send((rng.random(len(kept)) < share).astype(np.int64))
    assert calls <= sum(votes)
