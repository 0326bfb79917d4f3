"""Candidate rates: paired comparisons of accuracy and radius, constant answers, curves through groups of lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptdel.calibration.candidates import (
    Candidate,
    CandidateOutcomes,
    Sample,
    choose,
    compare,
    grouped_rate,
    power_rate,
    reference_of,
)
from adaptdel.core.rates import FixedRate, Rate


def sample(size: int = 200, share: float = 0.5) -> Sample:
    label = (np.arange(size) < share * size).astype(np.int64)
    return Sample(np.full(size, 50), label, 2)


def outcomes(
    given: Sample, wrong: int, radius: int, *, name: str = "power 0", complexity: int = 1
) -> CandidateOutcomes:
    """Answers that are wrong on the first inputs, all with the same radius."""
    answer = given.label.copy()
    answer[:wrong] = 1 - answer[:wrong]
    candidate = Candidate(name, FixedRate(0.5 + radius / 1000), complexity)
    return CandidateOutcomes(candidate, answer, np.full(len(answer), radius))


def test_a_class_counts_as_much_as_another() -> None:
    given = sample(100, 0.1)
    assert given.balanced_mean(given.label) == pytest.approx(0.5)
    assert given.class_weights.sum() == pytest.approx(1)
    radii = np.where(given.label == 1, 10, 0)
    assert given.balanced_mean(radii) == pytest.approx(5)
    noise = np.random.default_rng(0).normal(size=(2000, 100))
    spread = np.std([given.balanced_mean(row) for row in noise])
    assert np.mean([given.balanced_error(row) for row in noise]) == pytest.approx(spread, rel=0.1)


def test_radii_count_up_to_the_length_and_only_right_answers() -> None:
    given = sample(10)
    result = CandidateOutcomes(Candidate("x", FixedRate(0.9), 1), given.label, np.full(10, 80))
    assert result.radii(given).tolist() == [50] * 10
    wrong = replace(result, answer=1 - given.label)
    assert wrong.radii(given).tolist() == [0] * 10


def test_the_largest_radius_within_the_points_is_chosen() -> None:
    given = sample()
    best = outcomes(given, 10, 3, name="fixed", complexity=0)
    near, far = outcomes(given, 10, 5), outcomes(given, 30, 40)
    assert reference_of([outcomes(given, 20, 9, complexity=0), best], given) is best
    assert choose([best, near, far], best, given, 1.0) is near
    assert choose([best, near, far], best, given, 50.0) is far
    assert not compare(far, best, given, 1.0).feasible
    assert compare(near, best, given, 1.0).radius_difference == pytest.approx(2 * 0.95)


def test_a_calibrated_rate_has_to_be_clearly_as_accurate() -> None:
    """Two more errors of 200 are a point, which is not shown with a standard error to spare; a baseline is believed."""
    given = sample()
    best, close = outcomes(given, 10, 3, name="fixed", complexity=0), outcomes(given, 12, 9)
    assert not compare(close, best, given, 1.0).feasible
    assert compare(replace(close, candidate=replace(close.candidate, complexity=0)), best, given, 1.0).feasible
    assert compare(close, best, given, 2.5).feasible


def test_a_constant_answer_is_never_chosen() -> None:
    given = sample(200, 0.05)
    best = outcomes(given, 2, 1, name="fixed", complexity=0)
    constant = CandidateOutcomes(
        Candidate("power 0", FixedRate(0.99), 1), np.zeros(200, dtype=np.int64), np.full(200, 40)
    )
    assert constant.is_constant(given)
    assert constant.right(given).mean() >= best.right(given).mean() - 0.05
    assert choose([best, constant], best, given, 10.0) is best
    alone = replace(constant, candidate=replace(constant.candidate, complexity=0))
    assert reference_of([alone, best], given) is best
    assert choose([alone], alone, given, 1.0) is alone  # there is nothing else


def test_a_more_complex_rate_must_be_better_beyond_noise() -> None:
    given = sample()
    rng = np.random.default_rng(1)
    simple = outcomes(given, 10, 5, name="fixed", complexity=0)
    radius = simple.radius + rng.integers(-4, 5, size=200)
    radius += round(5 - radius.mean())
    noisy = CandidateOutcomes(Candidate("groups", FixedRate(0.8), 2), simple.answer, radius)
    assert abs(compare(noisy, simple, given, 1.0).radius_difference) < 1
    better = replace(noisy, radius=radius + 2)
    assert choose([simple, better], simple, given, 1.0) is better
    worse = replace(noisy, radius=radius - 1)
    assert choose([simple, worse], simple, given, 1.0) is simple


def test_a_tie_goes_to_the_larger_mean_radius() -> None:
    given = Sample(np.full(8, 50), np.array([0, 0, 0, 0, 0, 0, 1, 1]), 2)
    small = CandidateOutcomes(Candidate("power 0", FixedRate(0.8), 1), given.label, np.array([2] * 6 + [4] * 2))
    large = CandidateOutcomes(Candidate("power 1/3", FixedRate(0.9), 1), given.label, np.array([4] * 6 + [2] * 2))
    for order in ([small, large], [large, small]):
        assert choose(order, small, given, 100.0) is large


def test_powers_of_the_length() -> None:
    constant, half = power_rate(8, 64, 0.0), power_rate(8, 64, 0.5)

    def kept(rate: Rate, n: int) -> float:
        return n * (1 - rate(n))

    assert [round(kept(constant, n), 2) for n in (20, 64, 5000)] == [8, 8, 8]
    assert [round(kept(half, n), 1) for n in (16, 64, 256)] == [4, 8, 16]
    assert kept(constant, 4) == pytest.approx(2)  # at most half of the tokens
    assert kept(power_rate(0.1, 64, 0.0), 64) == pytest.approx(1)  # at least one


def test_groups_take_what_is_best_at_their_length() -> None:
    """Short texts gain from one candidate and long ones from another, at the same accuracy."""
    length = np.repeat([20, 60, 200, 600], 100)
    given = Sample(length, np.tile([0, 1], 200), 2)
    low, high = power_rate(4, 100, 0.0), power_rate(30, 100, 0.0)
    few = CandidateOutcomes(Candidate("power 0", low, 1), given.label, np.where(length < 100, 9, 1))
    many = CandidateOutcomes(Candidate("power 0", high, 1), given.label, np.where(length < 100, 1, 9))
    reference = replace(few, candidate=Candidate("fixed", FixedRate(0.9), 0), radius=np.full(400, 3))
    rate = grouped_rate([reference, few, many], reference, given, 1.0, 50)
    assert rate is not None
    kept = [n * (1 - rate(n)) for n in (20, 600)]
    assert kept[0] == pytest.approx(4, abs=0.1)
    assert kept[1] == pytest.approx(30, abs=0.1)
    assert grouped_rate([reference, few, many], reference, given, 1.0, 300) is None


def test_inputs_that_were_measured_twice_tell_no_more_about_others() -> None:
    given = sample(200, 0.3)
    noise = np.random.default_rng(1).integers(0, 9, 200)
    twice = given.joined(given, same_inputs=True)
    assert twice.balanced_error(np.tile(noise, 2)) == pytest.approx(given.balanced_error(noise), rel=0.02)
    fresh = given.joined(given, same_inputs=False)
    assert fresh.balanced_error(np.tile(noise, 2)) == pytest.approx(given.balanced_error(noise) / np.sqrt(2), rel=0.02)
    best, other = outcomes(given, 10, 3), outcomes(given, 20, 5)
    single = compare(other, best, given, 1.0)
    again = compare(other.joined(other), best.joined(best), twice, 1.0)
    assert again.accuracy_difference == pytest.approx(single.accuracy_difference)
    assert again.accuracy_error == pytest.approx(single.accuracy_error, rel=0.01)
