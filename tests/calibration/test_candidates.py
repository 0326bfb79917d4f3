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
    power_rate,
    reference_of,
)
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate, Rate


def sample(size: int = 200, share: float = 0.5) -> Sample:
    label = (np.arange(size) < share * size).astype(np.int64)
    return Sample(np.full(size, 50), label)


def outcomes(
    given: Sample, wrong: int, radius: int, *, name: str = "power 0", is_calibrated: bool = True
) -> CandidateOutcomes:
    """Answers that are wrong on the first inputs, all with the same radius."""
    answer = given.label.copy()
    answer[:wrong] = 1 - answer[:wrong]
    candidate = Candidate(name, Deletion(FixedRate(0.5 + radius / 1000)), is_calibrated)
    return CandidateOutcomes(candidate, answer, np.full(len(answer), radius))


def test_a_class_counts_as_much_as_another() -> None:
    given = sample(100, 0.1)
    assert given.balanced_mean(given.label) == pytest.approx(0.5)
    radii = np.where(given.label == 1, 10, 0)
    assert given.balanced_mean(radii) == pytest.approx(5)
    noise = np.random.default_rng(0).normal(size=(2000, 100))
    spread = np.std([given.balanced_mean(row) for row in noise])
    assert np.mean([given.balanced_error(row) for row in noise]) == pytest.approx(spread, rel=0.1)


def test_radii_count_up_to_the_length_and_only_right_answers() -> None:
    given = sample(10)
    result = CandidateOutcomes(Candidate("x", Deletion(FixedRate(0.9)), True), given.label, np.full(10, 80))
    assert result.radii(given).tolist() == [50] * 10
    wrong = replace(result, answer=1 - given.label)
    assert wrong.radii(given).tolist() == [0] * 10


def test_the_largest_radius_within_the_points_is_chosen() -> None:
    given = sample()
    best = outcomes(given, 10, 3, name="fixed", is_calibrated=False)
    near, far = outcomes(given, 10, 5), outcomes(given, 30, 40)
    assert reference_of([outcomes(given, 20, 9, is_calibrated=False), best], given) is best
    assert choose([best, near, far], best, given, 1.0) is near
    assert choose([best, near, far], best, given, 50.0) is far
    assert not compare(far, best, given, 1.0).feasible
    assert compare(near, best, given, 1.0).radius_difference == pytest.approx(2 * 0.95)


def test_a_calibrated_rate_has_to_be_clearly_as_accurate() -> None:
    """Two more errors of 200 are a point, which is not shown with a standard error to spare; a baseline is believed."""
    given = sample()
    best, close = outcomes(given, 10, 3, name="fixed", is_calibrated=False), outcomes(given, 12, 9)
    assert not compare(close, best, given, 1.0).feasible
    assert compare(replace(close, candidate=replace(close.candidate, is_calibrated=False)), best, given, 1.0).feasible
    assert compare(close, best, given, 2.5).feasible


@pytest.mark.parametrize(("rare", "is_feasible"), [(26, False), (4, False), (100, True)])
def test_the_accuracy_of_a_rare_class_is_limited(rare: int, is_feasible: bool) -> None:
    """Two more errors on the only 26 or 4 inputs of a class: a point of accuracy, and much of balanced accuracy."""
    label = (np.arange(200) < rare).astype(np.int64)
    given = Sample(np.full(200, 50), label)
    best = outcomes(given, 0, 3, name="fixed", is_calibrated=False)
    other = outcomes(given, 2, 9)
    result = compare(other, best, given, 2.9)
    assert result.accuracy_difference == pytest.approx(-0.01)
    assert result.balanced_difference == pytest.approx(-1 / rare)
    assert result.feasible == is_feasible
    assert compare(other, replace(best, answer=np.zeros(200, dtype=np.int64)), given, 2.9).feasible


def test_a_constant_answer_is_never_chosen() -> None:
    given = sample(200, 0.05)
    best = outcomes(given, 2, 1, name="fixed", is_calibrated=False)
    constant = CandidateOutcomes(
        Candidate("power 0", Deletion(FixedRate(0.99)), True), np.zeros(200, dtype=np.int64), np.full(200, 40)
    )
    assert constant.is_constant(given)
    assert constant.right(given).mean() >= best.right(given).mean() - 0.05
    assert choose([best, constant], best, given, 10.0) is best
    alone = replace(constant, candidate=replace(constant.candidate, is_calibrated=False))
    assert reference_of([alone, best], given) is best
    assert choose([alone], alone, given, 1.0) is alone  # there is nothing else


def test_a_calibrated_rate_must_be_better_beyond_noise() -> None:
    given = sample()
    rng = np.random.default_rng(1)
    simple = outcomes(given, 10, 5, name="fixed", is_calibrated=False)
    radius = simple.radius + rng.integers(-4, 5, size=200)
    radius += round(5 - radius.mean())
    noisy = CandidateOutcomes(Candidate("power 0", Deletion(FixedRate(0.8)), True), simple.answer, radius)
    assert abs(compare(noisy, simple, given, 1.0).radius_difference) < 1
    better = replace(noisy, radius=radius + 2)
    assert choose([simple, better], simple, given, 1.0) is better
    worse = replace(noisy, radius=radius - 1)
    assert choose([simple, worse], simple, given, 1.0) is simple


def test_powers_of_the_length() -> None:
    constant, half = power_rate(8, 64, 0.0), power_rate(8, 64, 0.5)

    def kept(rate: Rate, n: int) -> float:
        return n * (1 - rate(n))

    assert [round(kept(constant, n), 2) for n in (20, 64, 5000)] == [8, 8, 8]
    assert [round(kept(half, n), 1) for n in (16, 64, 256)] == [4, 8, 16]
    assert kept(constant, 4) == pytest.approx(2)  # at most half of the tokens
    assert kept(power_rate(0.1, 64, 0.0), 64) == pytest.approx(1)  # at least one


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
