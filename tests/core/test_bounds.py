"""The tight bound is attained, monotone and defined at every edge; binomial sums are within their assumed error."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx, fmpq
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from adaptdel import pairwise_bounds
from adaptdel.core.bounds import (
    Counts,
    below,
    capped_rival,
    exponential_error,
    quantile,
    rival_cap,
    sum_error,
    within_rival_cap,
)
from adaptdel.core.rates import DENOMINATOR, Rate
from tests.exact import TableRate, probabilities, round_down, round_up, seeds
from tests.literal import lower_bound, upper_bound

ticks = st.one_of(
    st.integers(0, DENOMINATOR),
    st.sampled_from([0, 1, 2, 300, DENOMINATOR // 2, DENOMINATOR - 2, DENOMINATOR - 1, DENOMINATOR]),
)
chances = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1 - 2**-39, 1 - 2**-53]))


@st.composite
def pairs(draw: st.DrawFn, most: int = 40) -> tuple[int, int, int, Rate]:
    n, m = draw(st.integers(0, most)), draw(st.integers(0, most))
    common = draw(st.integers(0, min(n, m)))
    table = [0] * (max(n, m) + 1)
    table[n] = draw(ticks)
    table[m] = draw(ticks)  # the same rate if n = m
    return n, m, common, TableRate(tuple(table))


def worst_case(n: int, other: int, common: int, rate: Rate, level: int, items: int) -> tuple[Fraction, Fraction]:
    """The probability of class 1 at x and x' under the base classifier that attains the lower bound.

    x has the distinct tokens 0..n−1 and x' the common ones and fresh ones. Class 1 is answered on every string that x'
    cannot make, and on the common subsequences of the cheapest sizes, with ``items`` of the size that comes last.
    """
    x = tuple(range(n))
    neighbour = tuple(range(common)) + tuple(range(100, 100 + other - common))
    by_size = [list(combinations(range(common), size)) for size in range(common + 1)]
    if rate(n) < rate(other):
        by_size.reverse()
    chosen = {s for sizes in by_size[:level] for s in sizes} | set(by_size[level][:items])

    def classify(word: tuple[int, ...]) -> int:
        if all(token < common for token in word):
            return int(word in chosen)
        return int(all(token < n for token in word))

    return probabilities(x, classify, rate, 2)[1], probabilities(neighbour, classify, rate, 2)[1]


@given(st.data())
def test_the_tight_bound_is_attained(data: st.DataObject) -> None:
    n, other = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    common = data.draw(st.integers(0, min(n, other)))
    table = [0] * 7
    for size in (n, other):
        table[size] = data.draw(st.integers(DENOMINATOR // 10, DENOMINATOR - DENOMINATOR // 100))
    rate = TableRate(tuple(table))
    level = data.draw(st.integers(0, common))
    size = level if rate(n) >= rate(other) else common - level
    items = data.draw(st.integers(0, comb(common, size)))
    at_x, at_neighbour = worst_case(n, other, common, rate, level, items)
    shape: Any = {"length": n, "other_length": other, "common": common, "rate": rate}
    # The probability is rounded to a double before it goes in: down for soundness, up for tightness.
    below, above = pairwise_bounds(np.array([round_down(at_x), round_up(at_x)]), **shape)[0]
    assert Fraction(below) <= at_neighbour <= Fraction(above) + Fraction(1, 10**12)
    below, above = pairwise_bounds(np.array([round_down(1 - at_x), round_up(1 - at_x)]), **shape)[1]
    assert Fraction(below) - Fraction(1, 10**12) <= 1 - at_neighbour <= Fraction(above)


@given(pairs(), chances)
@example((6, 5, 5, TableRate((0, 0, 0, 0, 0, 1, 1))), 1.0)  # the grid is of the knapsack's mass, here 2**-32, not of p
def test_paper_bounds_are_the_printed_ones(pair: tuple[int, int, int, Rate], p: float) -> None:
    n, other, common, rate = pair
    low, high = pairwise_bounds(p, length=n, other_length=other, common=common, rate=rate, bound="paper")
    # Rounding to whole subsequences jumps: within a share of 2**-38 of a jump, a value may fall on either side of it.
    nudge, margin = Fraction(5, 10**12), Fraction(1, 10**9)
    around = [min(max(Fraction(p) + shift, Fraction(0)), Fraction(1)) for shift in (-nudge, nudge)]
    if rate(n) in (0, 1) and rate(n) != rate(other):
        return  # the lemmas divide by zero there: see test_the_printed_upper_bound_is_wrong_at_certain_deletion
    lows = [min(max(lower_bound(q, n, other, common, rate), Fraction(0)), Fraction(1)) for q in around]
    highs = [min(upper_bound(q, n, other, common, rate), Fraction(1)) for q in around]
    assert lows[0] - margin <= Fraction(low) <= lows[1] + margin
    assert highs[0] - margin <= Fraction(high) <= highs[1] + margin


def test_the_printed_upper_bound_is_wrong_at_certain_deletion() -> None:
    """A slip of the paper: at ψ = 1 everything but the empty string is new at x', and the printed bound says 0.

    Ours falls back on the tight bound there.
    """
    rate = TableRate((0, DENOMINATOR // 2, DENOMINATOR))  # ψ(1) = 1/2, ψ(2) = 1
    assert probabilities((0, 0), len, rate, 3)[1] == 0
    assert probabilities((0,), len, rate, 2)[1] == Fraction(1, 2)
    assert upper_bound(Fraction(0), 2, 1, 1, rate) == 0  # as printed
    assert pairwise_bounds(0.0, length=2, other_length=1, common=1, rate=rate, bound="paper")[1] >= 0.5


@given(pairs(most=200), chances, chances)
def test_bounds_are_monotone(pair: tuple[int, int, int, Rate], p: float, q: float) -> None:
    """In the probability, and in the number of common tokens."""
    n, other, common, rate = pair
    low, high = pairwise_bounds(np.array(sorted((p, q))), length=n, other_length=other, common=common, rate=rate)
    assert low[0] <= low[1] + 1e-11
    assert high[0] <= high[1] + 1e-11
    if common:
        fewer = pairwise_bounds(np.array(sorted((p, q))), length=n, other_length=other, common=common - 1, rate=rate)
        assert (fewer[0] <= low + 1e-11).all()
        assert (fewer[1] >= high - 1e-11).all()


@given(chances, chances, st.integers(1, 5))
def test_the_rival_cap_is_rounded_up(p1: float, p2: float, k: int) -> None:
    cap = rival_cap(p1, k)
    assert Fraction(cap) * k >= 1 - Fraction(p1)
    assert p1 == 1 or cap == 1 or Fraction(cap * (1 - 2**-50)) * k < 1 - Fraction(p1)
    assert within_rival_cap(p1, p2) == (Fraction(p2) >= 1 - Fraction(p1))
    assert capped_rival(p1, p2, k) == min(p2, cap)
    assert Fraction(capped_rival(p1, None)) >= 1 - Fraction(p1)


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


def error_share(exact: arb, count: int, trials: int, t: int) -> float:
    """The relative error of a sum, as a share of the error that the code assumes."""
    success, failure = np.float64(1 - t / DENOMINATOR), np.float64(t / DENOMINATOR)
    found = below(np.array([float(count)]), np.array([float(trials)]), np.array([success]), np.array([failure]))[0]
    allowed = sum_error(np.array([float(trials)]), np.array([success]), np.array([failure]))[0]
    return abs(float((arb(float(found)) - exact) / exact)) / float(allowed)


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
            if float(exact) >= 1e-280:
                worst = max(worst, error_share(exact, count, trials, t))
    return worst


@pytest.mark.parametrize("seed", seeds((1, 1), slow=(8, 1)), ids=str)
def test_sums_are_within_a_third_of_the_allowed_error(seed: range) -> None:
    assert worst_error(seed[0], 8000 if seed[0] else 3000) < 1 / 3


@pytest.mark.parametrize(
    ("exponent", "cases"),
    [
        pytest.param(exponent, cases, marks=pytest.mark.slow if cases > 8 else ())
        for exponent in (6, 8, 10, 12, 14)
        for cases in (8, 40)
    ],
)
def test_wide_sums_are_within_half_of_the_allowed_error(exponent: int, cases: int) -> None:
    """Sums too long to add up: against the incomplete beta function in ball arithmetic, a third of a second each."""
    rng = np.random.default_rng(exponent)
    decided = 0
    with ctx.workprec(400):
        for _ in range(cases):
            trials = 10**exponent
            t = int(rng.uniform(0.05, 0.95) * DENOMINATOR)
            success, failure = 1 - t / DENOMINATOR, t / DENOMINATOR
            spread = np.sqrt(trials * success * failure)
            count = int(trials * success + spread * rng.uniform(-4, 4))
            exact = (arb(t) / DENOMINATOR).beta_lower(arb(trials - count + 1), arb(count), True)
            if exact.rel_accuracy_bits() >= 60:
                decided += 1
                assert error_share(exact, count, trials, t) < 1 / 2
    assert decided >= cases // 4


@given(st.integers(0, 5000), st.integers(1, DENOMINATOR - 1), st.floats(1e-12, 1 - 1e-12))
def test_quantiles_are_the_least_counts(trials: int, t: int, mass: float) -> None:
    success, failure = 1 - t / DENOMINATOR, t / DENOMINATOR
    found = quantile(np.array([mass]), np.array([float(trials)]), np.array([success]), np.array([failure]))[0]
    assert found == int(found)
    assert 0 <= found <= trials
    assert stats.binom.cdf(found, trials, success) >= mass * (1 - 1e-9)
    assert found == 0 or stats.binom.cdf(found - 1, trials, success) < mass * (1 + 1e-9)


def test_log_ratios_are_within_their_error_bound() -> None:
    """Rates that are close to each other and far apart, in one array: the formulas for both are used."""
    steps = [(1, 2**31), (2**31, 2**31 + 1), (2**32 - 1, 1), (3, 5), (2**32 - 2, 2**32 - 1), (2**30, 3 * 2**30)]
    success, other = (np.array(column) / DENOMINATOR for column in zip(*steps, strict=True))
    for count, trials in ((1.0, 10.0), (10.0, 10.0), (70_000.0, 10.0**6), (10.0**6, 10.0**15)):
        counts, sizes = np.full(len(steps), count), np.full(len(steps), trials)
        values, errors = Counts(sizes, success, 1 - success, other, 1 - other).log_ratio(counts)
        for (here, there), value, error in zip(steps, values, errors, strict=True):
            quotients = fmpq(there, here), fmpq(DENOMINATOR - there, DENOMINATOR - here)
            with ctx.workprec(300):
                logs = [arb(quotient).log() for quotient in quotients]
                exact = int(count) * logs[0] + int(trials - count) * logs[1]
                assert abs(exact - arb(float(value))) < arb(float(error))


def test_errors_of_exponentials_cover_large_errors() -> None:
    small, large = np.array([0.0, 1e-16, 0.5, 1.0]), np.array([0.5, 1.3, 20.0])
    assert (exponential_error(small) == 2 * small).all()
    for error in (*small, *large):
        assert exponential_error(np.array([error]))[0] >= np.expm1(error)
    assert exponential_error(large)[0] == 1.0
