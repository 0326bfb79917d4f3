"""Measures against values worked out by hand and against their formulas, written down word by word."""

from __future__ import annotations

from itertools import pairwise
from math import isnan, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from adaptdel.measures.distributions import wasserstein
from adaptdel.measures.summary import (
    Outcomes,
    by_quartile,
    certified_at_log_cardinality,
    certified_at_radius,
    log_cardinality_curve,
    measure,
    outcomes,
    radius_curve,
)

COLUMNS = (
    "id",
    "truth",
    "answer",
    "correct",
    "length",
    "rate",
    "radius",
    "log10_cardinality",
    "calls",
    "input_hash",
    "problem",
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as a run holds them; what is left out has a default."""
    defaults = {"correct": True, "length": 10, "rate": 0.9, "radius": 0, "log10_cardinality": 0.0, "calls": 100}
    full = [defaults | {"id": f"i{n}", "input_hash": f"h{n}", "problem": None} | row for n, row in enumerate(rows)]
    for row in full:
        row.setdefault("truth", None if row["correct"] is None else "a")
        row.setdefault("answer", "b" if row["correct"] is False else "a")
    return pa.table({name: [row[name] for row in full] for name in COLUMNS})


def random_outcomes(seed: int, size: int) -> Outcomes:
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 300, size)
    radius = rng.integers(-1, 2 + length // 40)
    rows: list[dict[str, Any]] = [
        {
            "correct": bool(rng.random() < 0.8),
            "length": int(length[n]),
            "radius": int(radius[n]),
            "log10_cardinality": float(radius[n] * (4.7 + length[n] / 300)) if radius[n] >= 0 else -np.inf,
            "calls": int(rng.integers(50, 5000)),
        }
        for n in range(size)
    ]
    for row, label in zip(rows, rng.choice(3, size, p=[0.2, 0.3, 0.5]), strict=True):
        row |= {"truth": "abc"[label], "answer": "abc"[label if row["correct"] else (label + 1) % 3]}
    return outcomes(table(rows), {f"i{n}": float(rng.random()) for n in range(0, size, 2)})


HAND = [
    {"length": 10, "radius": 0, "log10_cardinality": 0.0, "calls": 100},  # correct, radius 0
    {"length": 20, "radius": 2, "log10_cardinality": 12.0, "calls": 200},  # right, certified
    {"length": 30, "radius": 4, "log10_cardinality": 25.0, "calls": 300},  # right, certified
    {"length": 40, "radius": 9, "log10_cardinality": 50.0, "calls": 400, "correct": False},  # settled, wrong
    {"length": 50, "radius": -1, "log10_cardinality": -np.inf, "calls": 500},  # abstained, would be right
    {"length": 60, "radius": -1, "log10_cardinality": -np.inf, "calls": 600, "correct": False},  # abstained, wrong
]


def test_values_worked_out_by_hand() -> None:
    result = outcomes(table(HAND), {"i0": 1.0, "i1": 3.0})
    m = measure(result)
    assert (m.inputs, m.certified, m.certified_zero, m.wrong, m.abstained, m.abstained_right) == (6, 2, 1, 1, 2, 1)
    assert m.certified + m.certified_zero + m.wrong + m.abstained == m.inputs
    assert m.clean_accuracy == pytest.approx(4 / 6)
    assert m.certified_accuracy == pytest.approx(3 / 6)
    assert m.mean_radius == 1.0  # 0 + 2 + 4 + 0 + 0 + 0
    assert m.mean_radius_se == pytest.approx(sqrt((4 * 1 + 1 + 9) / 5) / sqrt(6))
    assert m.median_log_cardinality == 0.0
    assert m.lower_log_cardinality == 0.0
    assert m.upper_log_cardinality == 9.0  # 0 0 0 0 12 25 at place 3.75
    assert m.median_certified_radius == 2.0
    assert m.calls == 350.0
    assert m.seconds == 2.0
    assert (m.shortest, m.median_length, m.longest) == (10, 35.0, 60)


def test_quartiles_of_the_log_cardinality_by_hand() -> None:
    m = measure(outcomes(table([{"radius": 1, "log10_cardinality": c} for c in (1.0, 2.0, 4.0, 8.0, 16.0)])))
    assert (m.lower_log_cardinality, m.median_log_cardinality, m.upper_log_cardinality) == (2.0, 4.0, 8.0)


def test_certified_accuracy_by_hand() -> None:
    result = outcomes(table(HAND))
    assert certified_at_radius(result, [0, 1, 2, 3, 4, 5]) == pytest.approx([3 / 6, 2 / 6, 2 / 6, 1 / 6, 1 / 6, 0])
    assert certified_at_log_cardinality(result, [0, 12, 12.5, 25, 26]) == pytest.approx([3 / 6, 2 / 6, 1 / 6, 1 / 6, 0])
    radii, share = radius_curve(result)
    assert radii.tolist() == [0, 2, 4]
    assert share == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert log_cardinality_curve(result)[0].tolist() == [0.0, 12.0, 25.0]


def test_wasserstein_by_hand() -> None:
    # Radii 0 0 3: mean 1, deviation sqrt 2. Lengths 1 2 3: mean 2, deviation sqrt(2/3).
    radii = np.array([-1, -1, 2]) / sqrt(2)
    lengths = np.array([-1, 0, 1]) / sqrt(2 / 3)
    assert wasserstein(np.array([3, 0, 0]), np.array([2, 3, 1])) == pytest.approx(np.abs(radii - lengths).mean())
    assert isnan(wasserstein(np.array([1, 1]), np.array([2, 3])))
    assert isnan(wasserstein(np.array([1, 2]), np.array([2, 2])))
    assert isnan(wasserstein(np.array([], dtype=np.int64), np.array([], dtype=np.int64)))


@pytest.mark.parametrize("seed", range(6))
def test_literal_formulas(seed: int) -> None:
    result = random_outcomes(seed, 57)
    m, size = measure(result), 57
    radius, logs, length = result.radius.tolist(), result.log_cardinality.tolist(), result.length.tolist()
    certified = [r and not a for r, a in zip(result.correct.tolist(), result.abstained.tolist(), strict=True)]
    assert all(each == 0 for each, yes in zip(radius, certified, strict=True) if not yes)
    assert all(each == 0 for each, yes in zip(logs, certified, strict=True) if not yes)
    mean = sum(radius) / size
    assert m.mean_radius == pytest.approx(mean)
    assert m.mean_radius_se == pytest.approx(sqrt(sum((r - mean) ** 2 for r in radius) / (size - 1) / size))
    assert m.median_log_cardinality == sorted(logs)[28]
    assert m.lower_log_cardinality == sorted(logs)[14]
    assert m.upper_log_cardinality == sorted(logs)[42]
    for r in range(max(radius) + 2):
        share = sum(yes and each >= r for each, yes in zip(radius, certified, strict=True)) / size
        assert certified_at_radius(result, [r])[0] == pytest.approx(share)
    for c in [0.0, 1.0, *logs]:
        share = sum(yes and each >= c for each, yes in zip(logs, certified, strict=True)) / size
        assert certified_at_log_cardinality(result, [c])[0] == pytest.approx(share)
    assert m.wasserstein == pytest.approx(literal_wasserstein(radius, length))
    assert m.wasserstein == pytest.approx(stats.wasserstein_distance(stats.zscore(radius), stats.zscore(length)))


def literal_wasserstein(radius: list[int], length: list[int]) -> float:
    """The integral of |F - G| over the line, with F and G the distribution functions of the standardised values."""

    def standard(values: list[int]) -> list[float]:
        mean = sum(values) / len(values)
        spread = sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        return [(v - mean) / spread for v in values]

    left, right = standard(radius), standard(length)
    points = sorted(left + right)
    total = 0.0
    for here, there in pairwise(points):
        f = sum(v <= here for v in left) / len(left)
        g = sum(v <= here for v in right) / len(right)
        total += abs(f - g) * (there - here)
    return total


def test_quartiles_hold_every_input_once_and_keep_equal_lengths_together() -> None:
    result = outcomes(table([{"length": n} for n in (5, 1, 2, 3, 3, 3, 3, 8, 9)]))
    parts = by_quartile(result)  # quartiles 3, 3 and 5
    assert [part.length.tolist() for part in parts] == [[1, 2, 3, 3, 3, 3], [], [5], [8, 9]]
    assert isnan(measure(parts[1]).mean_radius)
    assert measure(parts[1]).to_dict()["mean_radius"] is None
    eight = by_quartile(random_outcomes(1, 200))
    assert sum(map(len, eight)) == 200
    assert [len(part) for part in eight] == pytest.approx([50] * 4, abs=3)


def test_rows_that_measures_leave_out() -> None:
    bad = dict.fromkeys(COLUMNS, None) | {"problem": "not UTF-8"}
    mixed = outcomes(table([{"radius": 3}, {"correct": None}, bad]))
    assert (len(mixed), mixed.problems, mixed.unlabelled, mixed.labelled) == (1, 1, 1, True)
    unlabelled = outcomes(table([{"radius": 3, "correct": None}, {"radius": -1, "correct": None}, bad]))
    assert (len(unlabelled), unlabelled.problems, unlabelled.unlabelled, unlabelled.labelled) == (2, 1, 0, False)
    m = measure(unlabelled)
    assert isnan(m.clean_accuracy)
    assert (m.certified, m.abstained, m.wrong, m.mean_radius) == (1, 1, 0, 1.5)
    nothing = measure(outcomes(table([bad])))
    assert nothing.inputs == 0
    assert isnan(nothing.clean_accuracy)


def test_one_input() -> None:
    m = measure(outcomes(table([{"radius": 3, "log10_cardinality": 17.0}])))
    assert (m.mean_radius, m.median_log_cardinality) == (3.0, 17.0)
    assert isnan(m.mean_radius_se)
    assert isnan(m.wasserstein)
