"""The paper's settings: our `paper` radii are those of its Algorithm 1, transcribed literally."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from adaptdel import BinnedRate, Deletion, FixedRate, LengthRate, certified_radius, clopper_pearson
from adaptdel.core.rates import DENOMINATOR, Rate
from adaptdel.core.threat import EVERY_SET
from tests.exact import random_rate
from tests.literal import Sizes, algorithm_1, filled, holds, knapsack

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


def check(rate: Rate, n: int, votes: Sequence[int] = VOTES, ops: tuple[str, ...] = EDIT) -> None:
    """The radii of our paper bound are those of Algorithm 1, and never above those of the tight bound."""
    noise = Deletion(rate)
    p1 = [clopper_pearson(count, 4000, 0.05)[0] for count in votes]
    radii = [certified_radius(p, length=n, noise=noise, ops=ops, bound="paper") for p in p1]
    assert radii == algorithm_1(p1, None, n, rate, ops)
    tight = [certified_radius(p, length=n, noise=noise, ops=ops) for p in p1]
    assert all(a <= b for a, b in zip(radii, tight, strict=True))


@pytest.mark.parametrize(("p_min", "k", "n"), QUICK)
def test_adaptdel(p_min: float, k: int, n: int) -> None:
    check(LengthRate(p_min, k), n)


@pytest.mark.slow
@pytest.mark.parametrize(("p_min", "k", "n"), SLOW)
def test_adaptdel_everywhere(p_min: float, k: int, n: int) -> None:
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
    assert radii == algorithm_1(p1, p2, n, rate, EDIT)


@pytest.mark.parametrize("seed", range(100))
def test_the_fast_knapsack_is_the_literal_one(seed: int) -> None:
    rng = random.Random(seed)
    n, lift = rng.randrange(9), 1100
    t, other_t = (rng.choice([0, 1, rng.randrange(DENOMINATOR + 1), DENOMINATOR - 1, DENOMINATOR]) for _ in range(2))
    table, other = Sizes(n, t), Sizes(n, other_t)
    size = rng.randrange(n + 1)
    table.reach(size)
    whole = Fraction(table.below[size] + table.items[size], table.total)  # an integer of subsequences
    for target in (Fraction(0), Fraction(1), whole, Fraction(rng.random()), Fraction(rng.random() ** 20)):
        mass = int(target * (table.total << lift))
        for up in (True, False):
            for down in (True, False):
                exact = knapsack(n, t, other_t, target, up, down)
                assert Fraction(filled(table, other, mass, lift, up, down), table.total) == exact


def literal_radius(p1: float, p2: float, n: int, rate: Rate, ops: tuple[str, ...]) -> int:
    """Algorithm 1 without any sharing: every triple of every radius is decided anew."""
    for r in range(100):
        for n_del in range(r * ("del" in ops) + 1):
            for n_ins in range((r - n_del) * ("ins" in ops) + 1):
                n_sub = r - n_del - n_ins
                if (n_sub and "sub" not in ops) or n_del + n_sub > n:
                    continue
                other, common = n + n_ins - n_del, n - n_del - n_sub
                if not holds(Fraction(p1), Fraction(p2), n, other, common, rate):
                    return r - 1
        if "ins" not in ops and r >= n:
            return n
    return 99


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_algorithm_is_the_literal_one(seed: int) -> None:
    rng = random.Random(seed)
    n, ops = rng.randrange(8), rng.choice(EVERY_SET)
    rate: Rate = random_rate(rng) if seed % 2 else LengthRate(rng.uniform(0.3, 0.9), rng.uniform(0, 3))
    p1 = [rng.uniform(0.5, 1) for _ in range(3)] + [1.0]
    p2 = [rng.uniform(0, 1 - p) for p in p1]
    expected = [literal_radius(a, b, n, rate, ops) for a, b in zip(p1, p2, strict=True)]
    if 99 not in expected:  # else infinite: at a rate of 1
        assert algorithm_1(p1, p2, n, rate, ops) == expected
