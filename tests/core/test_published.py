"""The paper's settings: our `paper` radii are those of its Algorithm 1, transcribed literally."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from adaptdel import BinnedRate, Deletion, FixedRate, LengthRate, certified_radius, clopper_pearson
from adaptdel.core.rates import Rate
from adaptdel.core.threat import EVERY_SET
from tests.literal import algorithm_1

EDIT = ("del", "ins", "sub")
VOTES = (4000, 3990, 3900, 3400, 2600, 2030)


def check(rate: Rate, n: int, votes: Sequence[int] = VOTES, ops: tuple[str, ...] = EDIT) -> None:
    """The radii of our paper bound are those of Algorithm 1, and never above those of the tight bound."""
    noise = Deletion(rate)
    p1 = [clopper_pearson(count, 4000, 0.05)[0] for count in votes]
    radii = [certified_radius(p, length=n, noise=noise, ops=ops, bound="paper") for p in p1]
    assert radii == [algorithm_1(p, None, n, rate, ops) for p in p1]
    tight = [certified_radius(p, length=n, noise=noise, ops=ops) for p in p1]
    assert all(a <= b for a, b in zip(radii, tight, strict=True))


PAPER = [(p, k, n) for p in (0.9, 0.95) for k in (23, 13, 27, 11) for n in (28, 57, 82, 137, 228, 269, 350)] + [
    (0.9, 23, 500)
]


@pytest.mark.parametrize(
    ("p_min", "k", "n"),
    [
        *[(0.9, 23, 28), (0.9, 13, 134), (0.95, 11, 231)],
        *(pytest.param(*each, marks=pytest.mark.slow) for each in PAPER),
    ],
)
def test_adaptdel(p_min: float, k: int, n: int) -> None:
    check(LengthRate(p_min, k), n)


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("n", [28, 82])
def test_other_threats(ops: tuple[str, ...], n: int) -> None:
    check(LengthRate(0.9, 5), n, (4000, 3900, 2600), ops)


@pytest.mark.parametrize(
    ("rate", "n"), [(FixedRate(0.9), 134), (BinnedRate([0, 137, 230, 324], [14, 29, 16, 44]), 135)], ids=repr
)
def test_fixed_and_binned_rates(rate: Rate, n: int) -> None:
    check(rate, n)


@pytest.mark.parametrize("n", [0, 1, 3, 28, 82])
def test_many_classes(n: int) -> None:
    rate = LengthRate(0.9, 8)
    p1, p2 = (0.9, 0.6, 0.45, 0.3, 0.999), (0.05, 0.3, 0.2, 0.31, 0.0005)
    radii = [certified_radius(a, b, length=n, noise=Deletion(rate), bound="paper") for a, b in zip(p1, p2, strict=True)]
    assert radii == [algorithm_1(a, b, n, rate, EDIT) for a, b in zip(p1, p2, strict=True)]
