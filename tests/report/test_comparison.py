"""Differences between runs: the paired bootstrap against its literal form, and its coverage."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest

from adaptdel.measures.summary import Outcomes, measure, outcomes
from adaptdel.report import comparison as bootstrap
from adaptdel.report.comparison import STATISTICS, paired, paired_differences
from tests.measures.test_summary import random_outcomes, table


def literal_statistics(result: Outcomes) -> dict[str, float]:
    m = measure(result)
    return {
        "clean_accuracy": m.clean_accuracy,
        "balanced_accuracy": m.balanced_accuracy,
        "class_balanced_mean_radius": m.class_balanced_mean_radius,
        "certified_accuracy": m.certified_accuracy,
        "certified_accuracy_1": m.certified / m.inputs,
        "mean_radius": m.mean_radius,
        "median_log_cardinality": m.median_log_cardinality,
        "wasserstein": m.wasserstein,
        "calls": m.calls,
    }


@pytest.mark.parametrize("size", [40, 41])
def test_bootstrap_is_the_literal_one(size: int) -> None:
    first, second = random_outcomes(1, size), random_outcomes(2, size)
    result = paired_differences(first, second, resamples=300, seed=5)
    drawn = np.random.default_rng(5).integers(size, size=(300, size))
    rows = []
    for places in drawn:
        left, right = literal_statistics(first.take(places)), literal_statistics(second.take(places))
        rows.append([left[name] - right[name] for name in STATISTICS])
    left, right = literal_statistics(first), literal_statistics(second)
    for name, column in zip(STATISTICS, np.array(rows).T, strict=True):
        assert result[name].value == pytest.approx(left[name] - right[name])
        assert (result[name].low, result[name].high) == pytest.approx(tuple(np.percentile(column, [2.5, 97.5])))


def test_bootstrap_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = random_outcomes(1, 30), random_outcomes(2, 30)
    whole = paired_differences(first, second, resamples=100)
    monkeypatch.setattr(bootstrap, "_CELLS", 200)
    assert paired_differences(first, second, resamples=100) == whole
    assert paired_differences(first, second, resamples=100, seed=1) != whole


def test_bootstrap_intervals_cover() -> None:
    """Radii with a known mean difference of 0.5: the interval holds it in about 95 of 100 cases."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        base = rng.integers(1, 6, 80)
        extra = rng.integers(0, 2, 80)
        left = outcomes(table([{"radius": int(r)} for r in base + extra]))
        right = outcomes(table([{"radius": int(r)} for r in base]))
        each = paired_differences(left, right, resamples=200, seed=trial)["mean_radius"]
        covered += each.low <= 0.5 <= each.high
    assert 178 <= covered <= 198


def test_pairs_are_made_by_id_and_by_tokens() -> None:
    first = outcomes(table([{"id": "a", "radius": 1}, {"id": "b", "radius": 2}, {"id": "c", "radius": 3}]))
    second = outcomes(
        table(
            [
                {"id": "c", "radius": 30, "input_hash": "h2"},
                {"id": "a", "radius": 10, "input_hash": "h0"},
                {"id": "b", "radius": 20, "input_hash": "another text"},
                {"id": "d", "radius": 40},
            ]
        )
    )
    left, right = paired(first, second)
    assert (left.ids.tolist(), left.radius.tolist(), right.radius.tolist()) == (["a", "c"], [1, 3], [10, 30])
    left, right = paired(first, second, same_tokens=False)
    assert right.radius.tolist() == [10, 20, 30]


def test_bootstrap_where_nothing_can_be_said() -> None:
    same = outcomes(table([{"radius": 2}, {"radius": 2}]))
    result = paired_differences(same, same, resamples=50)
    assert isnan(result["wasserstein"].value)
    assert isnan(result["wasserstein"].low)
    assert not result["wasserstein"].clear
    assert (result["mean_radius"].value, result["mean_radius"].clear) == (0.0, False)
    nothing = same.take([])
    assert isnan(paired_differences(nothing, nothing)["mean_radius"].value)
    with pytest.raises(ValueError, match="baseline must hold the same 2 inputs, got 0"):
        paired_differences(same, nothing)
    assert nan != result["calls"].value == 0.0
