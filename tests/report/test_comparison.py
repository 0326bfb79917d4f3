"""Differences between runs: the paired bootstrap against its literal form, and its coverage."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from adaptdel.measures.summary import Outcomes, measure
from adaptdel.report.comparison import STATISTICS, paired_differences
from tests.measures.test_summary import random_outcomes


def literal_statistics(*seeds: Outcomes) -> dict[str, float]:
    values = [measure(outcomes).to_dict() for outcomes in seeds]
    return {name: sum(each[name] for each in values) / len(values) for name in STATISTICS}


@pytest.mark.parametrize("size", [40, 41])
def test_bootstrap_is_the_literal_one(size: int) -> None:
    """Of two seeds against a run."""
    runs, other = (random_outcomes(1, size), random_outcomes(3, size)), random_outcomes(2, size)
    result = paired_differences(runs, [other], resamples=300, seed=5)
    rng = np.random.default_rng(5)
    drawn = [rng.integers(size, size=size) for _ in range(300)]
    rows = []
    for places in [np.arange(size), *drawn]:
        left = literal_statistics(*(outcomes.take(places) for outcomes in runs))
        right = literal_statistics(other.take(places))
        rows.append([left[name] - right[name] for name in STATISTICS])
    for name, column in zip(STATISTICS, np.array(rows).T, strict=True):
        assert result[name].value == pytest.approx(column[0])
        expected = tuple(np.percentile(column[1:], [2.5, 97.5]))
        assert (result[name].low, result[name].high) == pytest.approx(expected)


def test_bootstrap_where_nothing_can_be_said() -> None:
    same = Outcomes.of(["a", "a"], [2, 2])
    result = paired_differences([same], [same], resamples=50)
    assert isnan(result["clean_accuracy"].value)  # without labels
    assert not result["clean_accuracy"].clear
    assert (result["mean_radius"].value, result["mean_radius"].clear) == (0.0, False)
    nothing = same.take([])
    assert isnan(paired_differences([nothing], [nothing])["mean_radius"].value)
    with pytest.raises(ValueError, match="the same inputs"):
        paired_differences([same], [nothing])
