"""The paper's settings: our `paper` radii are those of its Algorithm 1, transcribed literally."""

from __future__ import annotations

import pytest

from adaptdel import BinnedRate, Deletion, FixedRate, LengthRate, certified_radius, clopper_pearson
from adaptdel.core.rates import Rate
from adaptdel.core.threat import EVERY_SET
from tests.literal import algorithm_1

EDIT = ("del", "ins", "sub")
VOTES = (4000, 3990, 3900, 3400, 2600, 2030)
QUICK = [(0.9, 23, 28), (0.9, 13, 134), (0.95, 11, 231), (0.9, 27, 270), (0.95, 23, 85)]
SLOW = [
    (p, k, n)
    for p in (0.9, 0.95)
    for k in (23, 13, 27, 11)
    for n in (28, 57, 82, 137, 228, 269, 350, 500, 900)
    if (p, k, n) not in QUICK
]


def check(rate: Rate, n: int, votes: int, ops: tuple[str, ...] = EDIT) -> None:
    p1 = clopper_pearson(votes, 4000, 0.05)[0]
    radius = certified_radius(p1, length=n, noise=Deletion(rate), ops=ops, bound="paper")
    assert radius == algorithm_1(p1, None, n, rate, ops)
    assert radius <= certified_radius(p1, length=n, noise=Deletion(rate), ops=ops)


@pytest.mark.parametrize(("p_min", "k", "n"), QUICK)
def test_adaptdel(p_min: float, k: int, n: int) -> None:
    for votes in VOTES:
        check(LengthRate(p_min, k), n, votes)


@pytest.mark.slow
@pytest.mark.parametrize(("p_min", "k", "n"), SLOW)
def test_adaptdel_everywhere(p_min: float, k: int, n: int) -> None:
    for votes in VOTES:
        check(LengthRate(p_min, k), n, votes)


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("n", [28, 82])
def test_other_threats(ops: tuple[str, ...], n: int) -> None:
    for votes in (4000, 3900, 2600):
        check(LengthRate(0.9, 5), n, votes, ops)


@pytest.mark.parametrize("votes", VOTES)
def test_fixed_and_binned_rates(votes: int) -> None:
    check(FixedRate(0.9), 134, votes)
    check(BinnedRate([0, 137, 230, 324], [14, 29, 16, 44]), 135, votes)


@pytest.mark.parametrize(("p1", "p2"), [(0.9, 0.05), (0.6, 0.3), (0.45, 0.2), (0.3, 0.31), (0.999, 0.0005)])
@pytest.mark.parametrize("n", [0, 1, 3, 28, 82])
def test_many_classes(p1: float, p2: float, n: int) -> None:
    rate = LengthRate(0.9, 8)
    radius = certified_radius(p1, p2, length=n, noise=Deletion(rate), bound="paper")
    assert radius == algorithm_1(p1, p2, n, rate, EDIT)
