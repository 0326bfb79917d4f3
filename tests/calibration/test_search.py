"""Bins, the search for a kept length and its objective: the paper's algorithms against literal ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel.calibration.search import (
    Bin,
    Evaluation,
    Outcome,
    check_edges,
    equal_width_edges,
    evaluate_outcomes,
    evaluations,
    golden_section,
    make_bins,
    max_certified_radius,
    search_interval,
)

# Bins


@pytest.mark.parametrize(
    ("lengths", "min_count", "edges"),
    [
        # 100 lengths from 0 to 99: percentiles 0.99 and 98.01 leave 1..98; Sturges' 8 bins of 12.1275 tokens
        (list(range(100)), 10, [0, 13, 25, 37, 50, 62, 74, 86]),
        # at least 30 of 98 in each: three bins, of 32.34 tokens
        (list(range(100)), 30, [0, 33, 66]),
        (list(range(100)), 60, [0]),
        ([7] * 100, 10, [0]),
        # two heaps with a gap in which no bin has enough: Sturges' 9 bins of 54.44 tokens, cut at the first empty one
        ([10] * 50 + [11] * 50 + [500] * 50, 10, [0, 64]),
        # a long tail, without a boundary deleted only [0, 451]: 2 to 900 in 10 bins of 89.8 tokens with 360, 36 and 20
        ([*range(1, 101)] * 4 + [900] * 20, 20, [0, 92, 182]),
    ],
)
def test_automatic_bins(lengths: list[int], min_count: int, edges: list[float]) -> None:
    assert equal_width_edges(lengths, min_count=min_count) == edges
    assert equal_width_edges(random.Random(0).sample(lengths, len(lengths)), min_count=min_count) == edges


@given(st.lists(st.integers(0, 400), min_size=5, max_size=300), st.integers(1, 20))
def test_automatic_bins_hold_enough(lengths: list[int], min_count: int) -> None:
    if len(lengths) < min_count:
        with pytest.raises(ValueError, match="min_count must be at most the number of inputs"):
            equal_width_edges(lengths, min_count=min_count)
        return
    edges = equal_width_edges(lengths, min_count=min_count)
    widths = np.diff(edges)[1:]
    assert edges[0] == 0
    assert widths.max(initial=1) - widths.min(initial=widths.max(initial=1)) <= 1  # equal, but for rounding
    assert all(sum(n in bin for n in lengths) >= min_count for bin in make_bins(edges, 1))


def test_centres_of_bins() -> None:
    bins = make_bins([0, 137, 230, 324], 9999)
    assert [bin.centre for bin in bins] == [68.5, 183.5, 277, 418]
    assert [str(bin) for bin in bins[2:]] == ["230 to 324 tokens", "324 tokens and more"]
    assert [[n in bin for bin in bins] for n in (0, 136, 137, 323, 324, 10**9)] == [
        [True, False, False, False], [True, False, False, False], [False, True, False, False],
        [False, False, True, False], [False, False, False, True], [False, False, False, True],
    ]  # fmt: skip
    assert [bin.centre for bin in make_bins([0], 300)] == [150]


def test_given_bins_are_checked() -> None:
    assert check_edges([0, 137.0, inf], [5, 200]) == [0, 137]
    for edges, sentence in [
        ([5, 10], "bins must begin with 0, so that every length has a bin, got [5, 10]"),
        ([0, 10, 10], "bins must increase strictly, got [0, 10, 10]"),
        ([0, 50, 100], "bins must hold at least one input each, got none of 100 tokens and more"),
        ([0, float("nan")], "bins must be numbers of at least 0, got nan"),
    ]:
        with pytest.raises(ValueError) as error:
            check_edges(edges, [5, 60])
        assert str(error.value) == sentence


# Search


def paper_search(score: Callable[[float], Any], low: float, high: float, tol: float) -> float:
    """The inner loop of OptimizeExpectedLength as printed."""
    while high - low > tol:
        m1 = low + (3 - sqrt(5)) / 2 * (high - low)
        m2 = high - (3 - sqrt(5)) / 2 * (high - low)
        if score(m1) > score(m2):
            high = m2
        else:
            low = m1
    return (high + low) / 2


@given(
    st.floats(1, 50), st.floats(2, 300), st.floats(0, 1), st.floats(0.1, 10), st.floats(0.1, 10),
    st.floats(0.01, 5), st.sampled_from([0.5, 1.0, 2.0]),
)  # fmt: skip
def test_golden_section_finds_the_top(
    low: float, width: float, where: float, left: float, right: float, tol: float, power: float
) -> None:
    high, top = low + width, low + where * width
    asked: list[float] = []

    def score(x: float) -> tuple[float]:
        asked.append(x)
        return (-left * (top - x) ** power if x < top else -right * (x - top) ** power,)

    result = golden_section(score, low, high, tol)
    if width > tol:
        assert len(asked) == len(set(asked)) == evaluations(low, high, tol)
        assert score(result) == max(map(score, list(asked)))
        # brute force: nothing beats it beyond the width that the search may leave
        assert abs(result - top) <= tol * 1.000001 or score(result) >= score(paper_search(score, low, high, tol))
        assert abs(result - paper_search(score, low, high, tol)) <= tol * 1.000001
    assert low <= result <= high


def test_one_new_evaluation_a_step() -> None:
    asked: list[float] = []
    golden_section(lambda x: (asked.append(x) or -abs(x - 20),), 1, 101, 1.0)  # type: ignore[func-returns-value]
    # 100 tokens, cut to at most 1: ten cuts by 0.618; the paper's loop would ask twenty times
    assert len(asked) == evaluations(1, 101, 1.0) == 11
    assert asked[:2] == pytest.approx([39.1966, 62.8034])
    twice: list[float] = []
    paper_search(lambda x: twice.append(x) or -abs(x - 20), 1, 101, 1.0)  # type: ignore[func-returns-value]
    assert len(twice) == 20
    assert [round(x, 6) for x in twice if round(x, 6) not in {round(y, 6) for y in asked}] == []


def test_ties_keep_more() -> None:
    assert golden_section(lambda x: (0,), 0, 10, 0.1) > 9.8


@given(st.lists(st.floats(0.5, 5000), min_size=1, max_size=8, unique=True), st.floats(0, 9999))
def test_ends_are_in_order_in_every_bin(inner: list[float], longest: float) -> None:
    for bin in make_bins([0, *sorted(inner)], longest):
        low, high = search_interval(bin)
        assert 1 <= low < high < inf
        if bin.lower * 0.3 > 3 * max(1, 0.01 * bin.reach):  # where the paper's ends do, they are taken
            assert (low, high) == (max(1, 0.01 * bin.reach), 0.3 * bin.lower)


def test_ends_of_the_first_and_the_last_bin() -> None:
    bins = make_bins([0, 137, 230, 324], 9999)
    assert [search_interval(bin) for bin in bins] == [
        pytest.approx((1.37, 0.3 * 68.5)),
        pytest.approx((2.3, 0.3 * 137)),
        pytest.approx((3.24, 0.3 * 230)),
        pytest.approx((0.01 * (324 + 2 * 94), 0.3 * 324)),
    ]


# Objective


def paper_max_radius(examples: Sequence[tuple[bool, int]], tau: float) -> tuple[int, float]:
    """MaxCertRadius as printed: (right, radius) of every example."""
    accuracies: list[float] = []
    r = 0
    while True:
        accuracies.append(sum(right and radius >= r for right, radius in examples) / len(examples))
        if accuracies[r] < tau:
            return r - 1, accuracies[max(r - 1, 0)]
        r += 1


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-1, 12)), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.2, 0.4, 0.5, 0.75, 0.9, 1.0]),
)
def test_max_certified_radius_is_the_papers(examples: list[tuple[bool, int]], tau: float) -> None:
    radii = [radius if right else -1 for right, radius in examples]
    assert max_certified_radius(radii, tau) == paper_max_radius(examples, tau)


def test_what_an_evaluation_sums_up() -> None:
    outcomes = [Outcome(0, True, 4), Outcome(0, True, 2), Outcome(0, False, 9), Outcome(0, True, -1)]
    result = evaluate_outcomes(3, 7.5, outcomes, 0.5)
    assert result == Evaluation(3, 7.5, 2, 0.5, clean=0.75, mean_radius=1.5, constant=True, count=4)
    assert evaluate_outcomes(3, 7.5, [*outcomes, Outcome(1, True, 4)], 0.5).constant is False
    assert evaluate_outcomes(0, 1.0, outcomes, 0.75).score("certified", None) == (-1, 0.5)
    assert Evaluation.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_feasible_beats_infeasible() -> None:
    def made(clean: float, mean_radius: float) -> tuple[float, float]:
        return Evaluation(0, 1.0, 3, 0.8, clean, mean_radius, False, 10).score("mean", 0.9)

    assert made(0.9, 0.0) > made(0.89, 50.0) > made(0.88, 60.0)
    assert made(0.9, 2.0) > made(1.0, 1.9)


def test_a_bin_is_a_bin() -> None:
    assert (7 in Bin(5, 10, 10), 10 in Bin(5, 10, 10), 10**6 in Bin(5, None, 20)) == (True, False, True)
