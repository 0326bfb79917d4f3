"""The error that is allowed for in binomial sums is never reached: against ball arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adaptdel.core.binomial import below, quantile, sum_error

DENOMINATOR = 2**32


def exact_below(count: int, trials: int, t: int) -> arb:
    """P(Y < count), Y ~ Binomial(trials, 1 − t / 2**32), added up from the nearer end."""
    success, failure = arb(DENOMINATOR - t) / DENOMINATOR, arb(t) / DENOMINATOR
    total = arb(0)
    if count <= trials - count:
        term = failure**trials
        for i in range(count):
            total += term
            term = term * (trials - i) / (i + 1) * success / failure
        return total
    term = success**trials
    for i in range(trials, count - 1, -1):
        total += term
        term = term * i / (trials - i + 1) * failure / success
    return 1 - total


def worst_error(seed: int, cases: int) -> float:
    rng = np.random.default_rng(seed)
    worst = 0.0
    with ctx.workprec(256):
        for _ in range(cases):
            trials = max(1, int(10 ** rng.uniform(0, 6)))
            success = (
                min(0.999, 10 ** rng.uniform(-1, 2.5) / trials) if rng.random() < 0.7 else rng.uniform(0.001, 0.999)
            )
            t = round((1 - success) * DENOMINATOR)
            if trials * min(success, 1 - success) > 800 or not 0 < t < DENOMINATOR:
                continue
            spread = np.sqrt(trials * success * (1 - success))
            count = int(np.clip(round(trials * success + spread * rng.uniform(-7, 7)), 1, trials))
            exact = exact_below(count, trials, t)
            if float(exact) < 1e-280:
                continue
            found = float(below(np.array([float(count)]), np.array([float(trials)]), 1 - t / 2**32, t / 2**32)[0])  # type: ignore[arg-type]
            allowed = float(sum_error(np.float64(trials), np.float64(1 - t / 2**32), np.float64(t / 2**32)))  # type: ignore[arg-type]
            worst = max(worst, abs(float((arb(found) - exact) / exact)) / allowed)
    return worst


def test_sums_are_within_a_third_of_the_allowed_error() -> None:
    assert worst_error(0, 3000) < 1 / 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_sums_are_within_a_third_of_the_allowed_error_at_length(seed: int) -> None:
    assert worst_error(seed, 8000) < 1 / 3


@pytest.mark.parametrize("exponent", [6, 8, 10, 12, 14])
def test_wide_sums_are_within_half_of_the_allowed_error(exponent: int) -> None:
    """Sums too long to add up: against the incomplete beta function in ball arithmetic."""
    rng = np.random.default_rng(exponent)
    decided = 0
    with ctx.workprec(400):
        for _ in range(40):
            trials = 10**exponent
            t = int(rng.uniform(0.05, 0.95) * DENOMINATOR)
            success, failure = 1 - t / DENOMINATOR, t / DENOMINATOR
            spread = np.sqrt(trials * success * failure)
            count = int(trials * success + spread * rng.uniform(-4, 4))
            exact = (arb(t) / DENOMINATOR).beta_lower(arb(trials - count + 1), arb(count), True)
            if exact.rel_accuracy_bits() < 60:
                continue
            decided += 1
            found = float(below(np.array([float(count)]), np.array([float(trials)]), success, failure)[0])  # type: ignore[arg-type]
            allowed = float(sum_error(np.float64(trials), np.float64(success), np.float64(failure)))  # type: ignore[arg-type]
            assert abs(float((arb(found) - exact) / exact)) < allowed / 2
    assert decided >= 10


@given(st.integers(0, 5000), st.integers(1, DENOMINATOR - 1), st.floats(1e-12, 1 - 1e-12))
def test_quantiles_are_the_least_counts(trials: int, t: int, mass: float) -> None:
    success, failure = 1 - t / DENOMINATOR, t / DENOMINATOR
    found = quantile(np.array([mass]), np.array([float(trials)]), np.array([success]), np.array([failure]))[0]
    assert found == int(found)
    assert 0 <= found <= trials
    assert stats.binom.cdf(found, trials, success) >= mass * (1 - 1e-9)
    assert found == 0 or stats.binom.cdf(found - 1, trials, success) < mass * (1 + 1e-9)


@pytest.mark.parametrize("success", [0.0, 0.5, 1.0])
def test_quantiles_at_the_edges(success: float) -> None:
    arguments = np.array([0.0, 1.0]), np.full(2, 3.0), np.full(2, success), np.full(2, 1 - success)
    assert quantile(*arguments).tolist() == [0, 0 if success == 0 else 3]
