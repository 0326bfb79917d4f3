from __future__ import annotations

import json
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel import BinnedRate, FixedRate, InterpolatedRate, LengthRate, rate_from_dict
from adaptdel.core.rates import DENOMINATOR, Rate, dyadic

RATES: list[Rate] = [
    FixedRate(0.9),
    FixedRate(0.0),
    FixedRate(1.0),
    LengthRate(0.9, 23),
    LengthRate(0.5, 4.5, 0.99),
    LengthRate(0.0, 0),
    BinnedRate([0, 137, 230, 324], [4, 9, 6, 14]),
    BinnedRate([0], [0]),
    InterpolatedRate([68, 183, 277, 418], [4, 9, 6, 14]),
    InterpolatedRate([100], [7]),
]
lengths = st.one_of(st.integers(0, 2000), st.sampled_from([0, 1, 10**6, 2**53]))


@pytest.mark.parametrize("rate", RATES, ids=repr)
@given(length=lengths)
def test_rates_are_dyadic_and_defined_everywhere(rate: Rate, length: int) -> None:
    value = rate(length)
    assert 0 <= value <= 1
    assert Fraction(value) == Fraction(rate.threshold(length), DENOMINATOR)
    assert rate.at([length])[0] == value


@pytest.mark.parametrize("rate", RATES, ids=repr)
def test_rates_survive_json_and_repr(rate: Rate) -> None:
    assert rate_from_dict(json.loads(json.dumps(rate.to_dict()))) == rate
    assert eval(repr(rate)) == rate
    assert hash(rate) == hash(rate_from_dict(rate.to_dict()))


@given(st.floats(0, 1), st.floats(0, 1000), st.integers(1, 5000))
def test_length_rate_is_the_paper_s_formula(p_min: float, k: float, n: int) -> None:
    assert LengthRate(p_min, k)(n) == pytest.approx(max(p_min, 1 - k / n), abs=2**-32)


def test_length_rate_never_falls() -> None:
    rates = LengthRate(0.7, 30, 0.98).at(np.arange(5000))
    assert (np.diff(rates) >= 0).all()
    assert rates[0] == dyadic(0.7)
    assert rates[-1] == pytest.approx(0.98 * (1 - 30 / 4999), abs=2**-32)


@pytest.mark.parametrize(("mean", "p_min", "k"), [(230, 0.9, 23), (231, 0.9, 23), (134, 0.95, 6), (279, 0.9, 27)])
def test_k_from_lengths(mean: int, p_min: float, k: int) -> None:
    """(1 − 0.9) · 230 is 22.999999999999996 in doubles: the decimal that was written counts."""
    assert LengthRate.from_lengths([mean - 5, mean, mean + 5], p_min) == LengthRate(p_min, k)


def test_bins_begin_at_their_edge() -> None:
    rate = BinnedRate([0, 100], [10, 20])
    assert rate(99) == dyadic(1 - 10 / 99)
    assert rate(100) == dyadic(0.8)
    assert BinnedRate([0, 100, inf], [10, 20]) == rate
    assert rate(5) == 0  # fewer tokens than are to be kept


def test_interpolation_meets_its_knots() -> None:
    rate = InterpolatedRate([100, 200], [10, 30])
    kept = [(1 - rate(n)) * n for n in (50, 100, 150, 200, 1000)]
    assert kept == pytest.approx([10, 10, 20, 30, 30], abs=1e-5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FixedRate(1.5), "p must be a probability in [0, 1], got 1.5"),
        (lambda: LengthRate(0.9, -1), "k must be a finite number of at least 0, got -1"),
        (lambda: LengthRate(0.9, 3, 0.5), "p_max must be at least p_min = 0.9, got 0.5"),
        (lambda: LengthRate.from_lengths([], 0.9), "lengths must hold at least one length, got none"),
        (lambda: BinnedRate([0, 5, 5], [1, 2, 3]), "edges must increase strictly, got [0, 5, 5]"),
        (lambda: BinnedRate([3, 5], [1, 2]), "edges must begin with 0, so that every length has a bin, got [3, 5]"),
        (lambda: BinnedRate([0, 5], [1]), "keep must hold one number for each of the 2 bins, got 1"),
        (lambda: BinnedRate([], []), "edges must hold at least 1 number, got []"),
        (lambda: InterpolatedRate([4, 2], [1, 2]), "lengths must increase strictly, got [4, 2]"),
        (lambda: FixedRate(0.5)(-1), "length must be an integer of at least 0, got -1"),
        (lambda: rate_from_dict({"kind": "fixed", "q": 1}), "a rate of kind 'fixed' takes p, got 'q'"),
    ],
)
def test_bad_rates(make: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["__call__", "at", "threshold", "thresholds"])
def test_only_real_is_overridden(method: str) -> None:
    """Otherwise one rate could be sampled and another certified."""
    with pytest.raises(TypeError, match=f"Wrong must not override {method}: define real"):
        type("Wrong", (FixedRate,), {method: lambda self, length: 0.5})
