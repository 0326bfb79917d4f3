"""Confidence bounds: rounded outwards, and wrong no more often than they say."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel import Looks, clopper_pearson
from adaptdel.core.confidence import class_bounds, vote_bounds
from adaptdel.core.rigorous import rigorous_lower_confidence


def tail(p: Fraction, successes: int, trials: int) -> Fraction:
    return sum(
        (comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1)), start=Fraction(0)
    )


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([1e-9, 0.001, 0.05, 0.5, 0.999]))
def test_bounds_are_rounded_outwards(trials: int, successes: int, alpha: float) -> None:
    successes = min(successes, trials)
    low, high = clopper_pearson(successes, trials, alpha)
    assert tail(Fraction(low), successes, trials) <= Fraction(alpha) or successes == 0
    assert 1 - tail(Fraction(high), successes + 1, trials) <= Fraction(alpha) or successes == trials
    if successes:
        assert tail(Fraction(low) + Fraction(1, 10**10), successes, trials) > Fraction(alpha)
    else:
        assert low == 0
    if successes == trials:
        assert high == 1


@pytest.mark.parametrize("alpha", [1e-100, 1e-50, 1e-10, 1e-6, 0.001, 0.05])
@pytest.mark.parametrize(
    ("successes", "trials"),
    [(4000, 4000), (3960, 4000), (2001, 4000), (1, 4000), (99_990, 100_000), (94, 94), (0, 1), (10**9 - 1, 10**9)],
)
def test_bounds_are_proven_in_ball_arithmetic(successes: int, trials: int, alpha: float) -> None:
    """Where scipy's inverse fails, at very small levels, the bound is cruder, still valid, and found at once."""
    low, high = clopper_pearson(successes, trials, alpha)
    assert 0 <= low <= successes / trials <= high <= 1
    assert rigorous_lower_confidence(low, successes, trials, alpha)
    assert alpha < 1e-6 or not rigorous_lower_confidence(min(low + 1e-10, 1.0), successes, trials, alpha)
    assert rigorous_lower_confidence(
        float(np.nextafter(1 - high, 0)) if high < 1 else 0.0, trials - successes, trials, alpha
    )


def test_a_batch_is_the_same_as_one_by_one() -> None:
    lows, highs = clopper_pearson(np.arange(21), 20, 0.05)
    for successes in range(21):
        assert clopper_pearson(successes, 20, 0.05) == (np.asarray(lows)[successes], np.asarray(highs)[successes])
    assert clopper_pearson(0, 0, 0.05) == (0.0, 1.0)


def test_many_classes_share_alpha_and_two_need_not() -> None:
    p1, p2 = class_bounds([3900, 100], 0, 0.05)
    assert p1 == clopper_pearson(3900, 4000, 0.05)[0]
    assert 1 - p1 <= p2 == pytest.approx(1 - p1)
    p1, p2 = class_bounds([3900, 60, 40], 0, 0.05)
    assert p1 == clopper_pearson(3900, 4000, 0.025)[0]
    assert p2 == clopper_pearson(60, 4000, 0.025)[1]
    assert class_bounds([390, 10, 0], 0, 0.05)[1] <= 1 - class_bounds([390, 10, 0], 0, 0.05)[0] + 1e-15


def test_vote_bounds_keep_the_best_look() -> None:
    looks = Looks((125, 250, 500, 1000), (0.003, 0.003, 0.003, 0.04))
    rows = [[size - d, d - d // 2, d // 2] for size, d in zip(looks.sizes, (0, 0, 40, 90), strict=True)]
    bounds = [vote_bounds(looks, rows[:taken], 0) for taken in range(1, 5)]
    single = [class_bounds(row, 0, alpha) for row, alpha in zip(rows, looks.alphas, strict=True)]
    for taken, (p1, p2) in enumerate(bounds, start=1):
        assert p1 == max(low for low, _ in single[:taken])
        assert p2 == min(high for _, high in single[:taken])
    assert bounds[1][0] == bounds[3][0] > single[3][0]  # the last look is worse than the second


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: clopper_pearson(5, 4, 0.05), "successes must be at most trials = 4, got 5"),
        (lambda: clopper_pearson(1, 4, 0.0), "alpha must be in (0, 1), got 0.0"),
        (lambda: clopper_pearson(1, 4, 1e-200), "alpha must be in (0, 1) and at least 1e-100, got 1e-200"),
        (lambda: clopper_pearson(1.5, 4, 0.1), "successes must be an integer of at least 0, got 1.5"),
        (lambda: Looks((10, 5), (0.1, 0.1)), "sizes must increase strictly, got [10, 5]"),
        (lambda: Looks((10,), (0.1, 0.1)), "sizes and alphas must be of one length of at least 1, got 1 and 2"),
        (lambda: Looks((1, 2), (0.5, 0.5)), "alphas must have a sum below 1, got 1.0"),
        (
            lambda: vote_bounds(Looks.fixed(4, 0.05), [[-1, 5]], 1),
            "successes must be at least 0 and at most trials = 4, got 5",
        ),
    ],
)
def test_bad_votes(make: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == sentence
