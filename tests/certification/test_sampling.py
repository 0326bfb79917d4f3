"""The planner of looks, by which `SmoothedClassifier`, runs and calibration sample.

Whatever the stopping rule, all looks together fail with probability alpha at most if their levels add up to that, and
each bound has its level (tests/core/test_confidence.py). tests/certification/test_coverage.py simulates the whole.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel import Deletion, FixedRate, LengthRate, Looks, Masking, SmoothedClassifier, Threat
from adaptdel.certification.sampling import (
    EARLY_PART,
    FIRST_SHARE,
    LAST_SHARE,
    LEAST_VOTES,
    VoteSteps,
    plan_looks,
)
from adaptdel.certification.votes import VotesPlan
from adaptdel.classifiers.base import Prepared
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.noise import Noise
from adaptdel.text.units import Words

LENGTH = 100


@given(st.integers(0, 2000), st.integers(2, 9), st.integers(1, 6000), st.sampled_from([1e-6, 0.05, 0.2]), st.booleans())
def test_the_levels_of_all_looks_add_up_to_alpha(
    length: int, classes: int, most: int, alpha: float, interrupted: bool
) -> None:
    for noise in (Deletion(FixedRate(0.9)), Deletion(LengthRate(0.9, 27))):
        for threshold in (None, 0.3) if classes == 2 else (None,):
            plan = VotesPlan(noise=noise, threshold=threshold, alpha=alpha, interrupted=interrupted)
            looks = plan_looks(plan, length, classes, most)
            assert alpha * (1 - 1e-9) <= sum(map(Fraction, looks.alphas)) <= Fraction(alpha)
            assert looks.sizes[-1] == most


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("noise", [Deletion(FixedRate(0.9)), Masking(0.9)], ids=repr)
def test_the_first_look_is_where_unanimous_votes_are_enough(noise: Noise, classes: int) -> None:
    plan = VotesPlan(noise=noise, threat=Threat(noise.certified_ops))
    looks = plan_looks(plan, LENGTH, classes, 4000)
    first, last = looks.sizes[0], looks.sizes[-1]
    level = looks.alphas[0] if classes == 2 else looks.alphas[0] / 2
    largest = plan.radius(1.0, 0.0, label=0, length=LENGTH, threat=plan.threat)

    def unanimous(votes: int) -> int:
        return plan.radius(clopper_pearson(votes, votes, level)[0], None, label=0, length=LENGTH, threat=plan.threat)

    assert unanimous(first) == largest > unanimous(first - 1)
    assert last == 4000
    assert looks.sizes[1:-1] == tuple(first << step for step in range(1, len(looks.sizes) - 1))
    assert looks.sizes[-2] * 4 <= last * 3  # no look shortly before the last one
    assert looks.alphas[0] == pytest.approx(0.05 * FIRST_SHARE)
    assert looks.alphas[-1] == pytest.approx(0.05 * LAST_SHARE)


def test_few_votes_get_a_single_look() -> None:
    plan = VotesPlan(noise=Deletion(FixedRate(0.9)))
    assert plan_looks(plan, LENGTH, 2, 100) == Looks.fixed(100, 0.05)
    assert plan_looks(replace(plan, sampling="fixed"), LENGTH, 2, 4000) == Looks.fixed(4000, 0.05)


@pytest.mark.parametrize("length", [100, 600, 5000])
@pytest.mark.parametrize("most", [32, 100, 4968])
def test_looks_begin_early_if_sampling_may_be_interrupted(length: int, most: int) -> None:
    """Without that, a text of 600 words gets a single look at all votes."""
    plan = VotesPlan(noise=Deletion(LengthRate(0.9, 27)))
    looks = plan_looks(replace(plan, interrupted=True), length, 2, most)
    assert looks.sizes[0] <= max(LEAST_VOTES, most // EARLY_PART)
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
        assert (certificate.alpha == 0) == (not sure or count == 9)
        assert len(called) <= (700 if sure else 4096)


@pytest.mark.parametrize("votes", [(64, 256), (16, 512), (1000, 2000), (1000, 4000)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("length", range(7, 13))
def test_enumeration_costs_no_more_than_the_votes_that_are_asked_for(
    votes: tuple[int, int], share: float, length: int
) -> None:
    plan = VotesPlan(noise=Deletion(FixedRate(0.9)), n_select=votes[0], n_estimate=votes[1])
    steps = VoteSteps(Prepared("a text", tuple("abcdefghijkl"[:length]), Words()), plan, 2)
    rng, calls, finished = np.random.default_rng(0), 0, False
    while not finished:
        calls += len(steps.kept)
        finished = steps.send((rng.random(len(steps.kept)) < share).astype(np.int64))
    assert calls <= sum(votes)
