"""Bins, the search for a kept length and its objective: the paper's algorithms against literal ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel.calibration import calibrate
from adaptdel.calibration.bins import (
    Evaluation,
    check_edges,
    equal_width_edges,
    golden_section,
    make_bins,
    max_certified_radius,
    search_interval,
    steps,
)
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, NoNoise
from adaptdel.core.rates import BinnedRate
from adaptdel.models.smoothed import SmoothedClassifier
from tests.calibration.documents import DATA, EDGES, QUICK, fitted, quick


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


def test_given_bins_are_checked() -> None:
    assert check_edges([0, 137.0, inf], [5, 200]) == [0, 137]
    for edges, sentence in [
        ([5, 10], "bins must begin with 0, so that every length has a bin, got [5, 10]"),
        ([0, 10, 10], "bins must increase strictly, got [0, 10, 10]"),
        ([0, float("nan")], "bins must be numbers of at least 0, got nan"),
    ]:
        with pytest.raises(ValueError) as error:
            check_edges(edges, [5, 60])
        assert str(error.value) == sentence
    with pytest.warns(UserWarning, match="no input has 100 tokens and more, which are merged"):
        assert check_edges([0, 50, 100], [5, 60]) == [0, 50]


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
        assert len(asked) == len(set(asked)) == steps(low, high, tol) + 1
        assert score(result) == max(map(score, list(asked)))
        # brute force: nothing beats it beyond the width that the search may leave
        assert abs(result - top) <= tol * 1.000001 or score(result) >= score(paper_search(score, low, high, tol))
        assert abs(result - paper_search(score, low, high, tol)) <= tol * 1.000001
    assert low <= result <= high


@given(st.lists(st.floats(0.5, 5000), min_size=1, max_size=8, unique=True), st.floats(0, 9999))
def test_ends_are_in_order_in_every_bin(inner: list[float], longest: float) -> None:
    for bin in make_bins([0, *sorted(inner)], longest):
        low, high = search_interval(bin)
        assert 1 <= low < high < inf
        if bin.lower * 0.3 > 3 * max(1, 0.01 * bin.reach):  # where the paper's ends do, they are taken
            assert (low, high) == (max(1, 0.01 * bin.reach), 0.3 * bin.lower)


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


def test_calibrate() -> None:
    result = quick()
    rows = result.record["bins"]
    assert [(row["lower"], row["upper"]) for row in rows] == [(0, 40), (40, 80), (80, None)]
    assert result.noise == Deletion(BinnedRate(EDGES, [row["keep"] for row in rows]))
    for number, row in enumerate(rows):
        tried = [Evaluation(**each) for each in result.record["trace"] if each["bin"] == number]
        low, high = search_interval(make_bins(EDGES, 1)[number])
        assert len(tried) == len({each.keep for each in tried}) == steps(low, high, 2.0) + 1
        scores = {each.keep: each.score for each in tried}
        assert scores[row["keep"]] == max(scores.values())
        assert row["count"] == 24 < row["available"]
    assert sum(row["available"] for row in rows) == 240
    assert result == quick()
    assert result != quick(seed=1)


def test_warnings() -> None:
    texts, labels = DATA
    noisy = [1 - y if len(t.split()) >= 80 and i % 4 < 2 else y for i, (t, y) in enumerate(zip(texts, labels))]  # noqa: B905
    record = quick((texts, noisy)).record
    assert [row["reached"] for row in record["bins"]] == [True, True, False]
    (warning,) = record["warnings"]
    assert "80 tokens and more" in warning
    assert "0.75" in warning
    few = quick((texts, labels), min_count=30).record
    assert "24 examples" in few["warnings"][0]

    def answers(batch: list[str]) -> list[int]:
        return [int(len(copy.split()) > 9 and copy.count("sign1") > copy.count("sign0")) for copy in batch]

    record = quick(DATA, SmoothedClassifier(answers, classes=[0, 1], progress=False), threshold=0.3).record
    warnings = [sentence for sentence in record["warnings"] if "the same prediction" in sentence]
    assert 0 < len(warnings) < 3
    assert "0 to 40 tokens" in warnings[0]


def test_wrong_examples_and_models() -> None:
    texts, labels = DATA
    for given_texts, given_labels, word in [
        (texts, labels[1:], "labels must"),
        ([], [], "texts must"),
        ("text", [0], "texts must"),
        (texts, [*labels[:-1], "spam"], "'spam' at 239"),
        ([3, *texts[1:]], labels, "input 0"),
    ]:
        with pytest.raises(ValueError, match=word):
            calibrate(fitted(), given_texts, given_labels, **QUICK)  # type: ignore[arg-type]
    for noise in (Masking(0.9), NoNoise()):
        with pytest.raises(ValueError, match="deletion noise"):
            calibrate(SmoothedClassifier(fitted().base, noise), texts, labels, **QUICK)
    with pytest.raises(ValueError, match="base classifier"):
        calibrate(SmoothedClassifier(), texts, labels, **QUICK)
