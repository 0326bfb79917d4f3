"""Measures against values worked out by hand and against their formulas, on single inputs and on counts."""

from __future__ import annotations

from collections import Counter
from math import isnan, sqrt

import numpy as np
import pytest
from scipy import stats

from adaptdel.measures.summary import (
    Outcomes,
    certified_at_radius,
    log_cardinality_curve,
    measure,
    quantiles,
    radius_curve,
    standard_error,
    wasserstein,
    wilson,
)

EACH = np.ones(3, dtype=np.int64)


def random_outcomes(seed: int, size: int) -> Outcomes:
    """Single inputs with three labels, wrong answers and abstentions."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 300, size)
    radius = rng.integers(-1, 2 + length // 40)
    number = rng.choice(3, size, p=[0.2, 0.3, 0.5])
    answer = np.where(rng.random(size) < 0.8, number, (number + 1) % 3)
    names = np.array(["a", "b", "c"])
    return Outcomes.of(
        names[answer], radius, names[number], length=length, log_cardinality=radius * (4.7 + length / 300),
        character_radius=radius // 2, calls=rng.integers(50, 60, size),
    )  # fmt: skip


def by_hand() -> Outcomes:
    """Correct at radius 0, 2 and 4; wrong; abstained with the right answer; abstained with a wrong one."""
    return Outcomes.of(
        ["a", "a", "a", "b", "a", "b"], [0, 2, 4, 9, -1, -1], ["a"] * 6, length=[10, 20, 30, 40, 50, 60],
        log_cardinality=[0.0, 12.0, 25.0, 50.0, -np.inf, -np.inf], calls=[100, 200, 300, 400, 500, 600],
        character_radius=[0, 1, 2, 5, -1, -1],
    )  # fmt: skip


def test_values_worked_out_by_hand() -> None:
    m = measure(by_hand())
    assert (m.inputs, m.abstained, m.calls, m.shortest, m.longest) == (6, 2, 350.0, 10, 60)
    assert (m.clean_accuracy, m.certified_accuracy) == (4 / 6, 3 / 6)
    assert (m.mean_radius, m.median_radius, m.mean_character_radius) == (1.0, 0.0, 0.5)  # 0 + 2 + 4 + 0 + 0 + 0
    assert m.mean_radius_se == pytest.approx(sqrt((4 * 1 + 1 + 9) / 5) / sqrt(6))
    assert (m.lower_log_cardinality, m.median_log_cardinality, m.upper_log_cardinality) == (0.0, 0.0, 9.0)
    covering = Outcomes.of(["a"] * 4, [3, 2, 1, 0], length=[3, 3, 0, 0])
    assert measure(covering).covering == 2
    assert radius_curve(by_hand())[0].tolist() == [0, 2, 4]
    sizes, fractions = log_cardinality_curve(by_hand())
    assert (sizes.tolist(), fractions.tolist()) == ([0.0, 12.0, 25.0], [3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize("seed", range(4))
def test_literal_formulas(seed: int) -> None:
    result = random_outcomes(seed, 57)
    m, size = measure(result), 57
    certified = [a == y and r >= 0 for a, y, r in zip(result.answer, result.label, result.radius, strict=True)]  # type: ignore[arg-type]
    radius = [r if yes else 0 for r, yes in zip(result.radius.tolist(), certified, strict=True)]
    logs = [c if yes and r else 0.0 for c, r, yes in zip(result.log_cardinality, radius, certified, strict=True)]
    mean = sum(radius) / size
    assert m.mean_radius == pytest.approx(mean)
    assert m.mean_radius_se == pytest.approx(sqrt(sum((r - mean) ** 2 for r in radius) / (size - 1) / size))
    expected = sorted(logs)[14], sorted(logs)[28], sorted(logs)[42]
    assert (m.lower_log_cardinality, m.median_log_cardinality, m.upper_log_cardinality) == expected
    for r in range(max(radius) + 2):
        fraction = sum(yes and each >= r for each, yes in zip(radius, certified, strict=True)) / size
        assert certified_at_radius(result, [r])[0] == pytest.approx(fraction)
    length = result.length.tolist()
    assert m.wasserstein == pytest.approx(stats.wasserstein_distance(stats.zscore(radius), stats.zscore(length)))
    assert isnan(wasserstein(Outcomes.of("aaa", [1, 1, 1], length=[2, 3, 4])))


def counted(inputs: Outcomes) -> Outcomes:
    counts = Counter(zip(inputs.label, inputs.answer, inputs.radius, inputs.length, inputs.calls, strict=True))  # type: ignore[arg-type]
    label, answer, radius, length, calls = zip(*counts, strict=True)
    logs = np.array(radius) * (4.7 + np.array(length) / 300)
    columns = {"length": length, "calls": calls, "log_cardinality": logs, "character_radius": np.array(radius) // 2}
    return Outcomes.of(answer, radius, label, count=[*counts.values()], **columns)


def test_counts_give_the_measures_of_single_inputs() -> None:
    rng = np.random.default_rng(0)
    single = random_outcomes(1, 40).take(rng.integers(40, size=400))
    grouped = counted(single)
    assert len(grouped) == 400
    assert len(grouped.count) <= 40
    expected, values = measure(single).to_dict(), measure(grouped).to_dict()
    assert values == pytest.approx(expected)
    for curve in (radius_curve, log_cardinality_curve):
        for left, right in zip(curve(single), curve(grouped), strict=True):
            assert left == pytest.approx(right)
    for part, other in zip(single.by_quartile(), grouped.by_quartile(), strict=True):
        assert measure(part).mean_radius == pytest.approx(measure(other).mean_radius)


def test_statistics_of_counted_values() -> None:
    rng = np.random.default_rng(0)
    values, count = rng.integers(0, 9, 40), rng.integers(1, 7, 40)
    repeated = np.repeat(values, count)
    fractions = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
    assert quantiles(values, count, fractions) == pytest.approx(np.quantile(repeated, fractions))
    assert standard_error(values, count) == pytest.approx(repeated.std(ddof=1) / sqrt(len(repeated)))
    assert isnan(standard_error(values[:1], EACH[:1]))
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(np.array([0.0, 0.5, 1.0]), 50)
    for each, ends in zip((0, 25, 50), zip(low, high, strict=True), strict=True):
        assert ends == pytest.approx(tuple(stats.binomtest(each, 50).proportion_ci(0.95, "wilson")))


def test_quartiles_hold_every_input_once_and_keep_equal_lengths_together() -> None:
    lengths = [5, 1, 2, 3, 3, 3, 3, 8, 9]
    parts = Outcomes.of(["a"] * 9, [0] * 9, length=lengths).by_quartile()  # quartiles 3, 3 and 5
    assert [sorted(part.length.tolist()) for part in parts] == [[1, 2, 3, 3, 3, 3], [], [5], [8, 9]]
    assert measure(parts[1]).to_dict()["mean_radius"] is None


def test_inputs_without_labels_and_nothing() -> None:
    m = measure(Outcomes.of(["a", "b"], [3, -1]))
    assert isnan(m.clean_accuracy)
    assert (m.abstained, m.mean_radius, m.mean_character_radius != m.mean_character_radius) == (1, 1.5, True)
    nothing = measure(Outcomes.of([], [], []))
    assert (nothing.inputs, nothing.longest) == (0, 0)
    assert isnan(nothing.clean_accuracy)
    with pytest.raises(ValueError, match="labels"):
        Outcomes.of(["a", "b"], [0, 0], ["a"])
