"""Doubles against balls where numbers are extreme: subnormal, next to 1, exactly whole, of huge lengths."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx

from adaptdel import Deletion, FixedRate, LengthRate, Masking, certified_radius, rigorous_radius
from adaptdel.core.bounds import lower, tolerance, upper
from adaptdel.core.checks import FloatArray
from adaptdel.core.noise import Noise
from adaptdel.core.rates import DENOMINATOR, Rate
from adaptdel.core.rigorous import PRECISIONS, _decide, _margin, _Pair, _Unresolved
from adaptdel.core.threat import EVERY_SET, Threat
from tests.exact import seeds


@dataclass(frozen=True)
class PairRate(Rate):
    """One rate for the input's length and another one for all other lengths."""

    kind = "pair"
    immutable = True
    length: int
    ticks: int
    other_ticks: int

    def real(self, lengths: FloatArray) -> FloatArray:
        return np.where(lengths == self.length, self.ticks, self.other_ticks) / DENOMINATOR


@dataclass(frozen=True)
class PairCase:
    """An input, a neighbour, a probability at the input and a level at the neighbour."""

    length: int
    other_length: int
    common: int
    rate: PairRate
    p: float
    level: float


def extreme_probability(rng: random.Random) -> float:
    return [
        0.0,
        5e-324,
        10 ** rng.uniform(-323, -290),
        10 ** rng.uniform(-300, 0),
        1.0,
        1 - 2.0**-53,
        1 - 10 ** rng.uniform(-16, 0),
        rng.random(),
        2.0 ** -rng.randrange(1075),
    ][rng.randrange(9)]


def extreme_ticks(rng: random.Random) -> int:
    small = round(DENOMINATOR * 10 ** rng.uniform(-9, 0))
    edges = [0, 1, 2, DENOMINATOR // 2, DENOMINATOR - 1, DENOMINATOR]
    return rng.choice([*edges, rng.randrange(DENOMINATOR + 1), small, DENOMINATOR - small])


def clipped(ticks: int) -> int:
    return min(max(ticks, 0), DENOMINATOR)


def short_case(seed: int) -> PairCase:
    rng = random.Random(seed)
    length = rng.choice([0, 1, 2, rng.randrange(60), rng.randrange(480)])
    other = max(0, length + rng.choice([0, rng.randrange(-3, 4), rng.randrange(-length - 1, length + 1), 40]))
    least = min(length, other)
    common = max(0, least - rng.choice([0, 0, 1, 2, rng.randrange(least + 1)]))
    ticks = extreme_ticks(rng)
    near = clipped(ticks + rng.choice([-1, 1, 1000, -1000, 10**6]))
    other_ticks = ticks if other == length else rng.choice([ticks, near, extreme_ticks(rng)])
    rate = PairRate(length, ticks, other_ticks)
    return PairCase(length, other, common, rate, extreme_probability(rng), extreme_probability(rng))


def long_case(seed: int) -> PairCase:
    """Up to 2**53 tokens, of which at most some hundreds are kept (or deleted): balls add up no more than those."""
    rng = random.Random(seed)
    common = int(10 ** rng.uniform(2, 15.9))
    lost, gained = (rng.choice([0, 1, 5, int(10 ** rng.uniform(0, 7))]) for _ in range(2))
    length, other = min(common + lost, 2**53), min(common + gained, 2**53)
    few = min(rng.choice([0, 1, 2, round(DENOMINATOR * 10 ** rng.uniform(-2, 2.3) / common)]), DENOMINATOR)
    few = min(few, 300 * DENOMINATOR // common)
    ticks = DENOMINATOR - few if rng.random() < 0.7 else few
    scaled = DENOMINATOR - int((DENOMINATOR - ticks) * rng.choice([rng.uniform(0.2, 3), rng.uniform(0.95, 1.05)]))
    choices = [ticks, ticks + 1, ticks - 1, scaled, int(ticks * rng.uniform(0.3, 2)), extreme_ticks(rng)]
    other_ticks = ticks if other == length else clipped(rng.choice(choices))
    p = rng.choice([extreme_probability(rng), rng.random(), 10 ** -rng.uniform(0, 20), 1 - 10 ** -rng.uniform(0, 16)])
    level = rng.choice([0.5, rng.random(), extreme_probability(rng)])
    return PairCase(length, other, common, PairRate(length, ticks, other_ticks), p, level)


def in_balls(value: Callable[[bool], Any]) -> Any:
    """A value in ball arithmetic, at a precision that leaves it 80 bits if any does."""
    for precision in PRECISIONS:
        last = precision == PRECISIONS[-1]
        with ctx.workprec(precision):
            try:
                ball = value(last)
            except _Unresolved:
                continue
            if last or ball.is_zero() or ball.rel_accuracy_bits() > 80:
                return ball
    raise AssertionError("the last precision leaves nothing unresolved")


def excess(case: PairCase, *bounds: str) -> list[tuple[Any, ...]]:
    """Where a double claims more than the balls do: lower bounds, upper bounds and tolerances."""
    noise = Deletion(case.rate)
    p = np.array([case.p])
    overlap = noise.overlap(case.length, np.array([case.other_length]), np.array([case.common]))

    def pair() -> _Pair:
        return _Pair(noise, case.length, case.other_length, case.common)

    wrong: list[tuple[Any, ...]] = []
    with ctx.workprec(2 * PRECISIONS[-1]):
        for bound in bounds:
            low, high = float(lower(p, overlap, bound)[0]), float(upper(p, overlap, bound)[0])
            low_ball = in_balls(lambda last, bound=bound: pair().lower(arb(case.p), bound, last))  # type: ignore[misc]
            high_ball = in_balls(lambda last, bound=bound: pair().upper(arb(case.p), bound, last))  # type: ignore[misc]
            if low > 0 and arb(low) > low_ball:
                wrong.append((bound, "lower", low, low_ball))
            if high < 1 and arb(high) < high_ball:
                wrong.append((bound, "upper", high, high_ball))
        q = float(tolerance(case.level, overlap)[0])
        if q >= 0:
            kept = in_balls(lambda last: pair().other_classes(arb(q), last))
            if not kept > arb(case.level):
                wrong.append(("tolerance", q, kept))
    return wrong


@pytest.mark.parametrize("block", seeds((4, 300), slow=(20, 2000)), ids=str)
def test_bounds_never_exceed_balls(block: range) -> None:
    for seed in block:
        for case, bounds in ((short_case(seed), ("tight", "paper")), (long_case(seed), ("tight",))):
            assert not excess(case, *bounds), case


@pytest.mark.parametrize("p", [5e-324, 1e-320, 1e-300, 1e-200])
@pytest.mark.parametrize("noise", [Deletion(FixedRate(0.9)), Deletion(FixedRate(0.5)), Masking(0.9)], ids=repr)
def test_subnormal_probabilities_certify_no_more_than_balls(noise: Noise, p: float) -> None:
    """At 0.9^20000 no probability above 0 is left: what once certified every deletion there is."""
    ops = ("sub",) if isinstance(noise, Masking) else ("del",)
    for threshold in (0.9, 0.999):
        arguments: Any = {"length": 9000, "noise": noise, "ops": ops, "threshold": threshold}
        radius = certified_radius(p, **arguments)
        assert 0 < radius < 9000
        # Balls certify it: with this attacker all smaller radii follow, and `rigorous_radius` would walk far beyond.
        pair = in_balls(
            lambda last, r=radius: _Pair(noise, 9000, 9000 - r * (ops == ("del",)), 9000 - r).upper(  # type: ignore[misc]
                arb(p), "tight", last
            )
        )
        assert pair <= arb(threshold)


def test_the_radius_of_the_least_double() -> None:
    arguments: Any = {"length": 20000, "noise": Deletion(FixedRate(0.9)), "ops": ["del"], "threshold": 0.9}
    assert 5000 < certified_radius(5e-324, **arguments) <= 7064  # which balls certify
    assert certified_radius(0.0, **arguments) == 20000


def random_radius_case(seed: int) -> tuple[dict[str, Any], float, float | None]:
    rng = random.Random(seed)
    length = rng.choice([0, 1, 2, 5, 12, 30])
    masking = rng.random() < 0.2
    ticks, other = extreme_ticks(rng), extreme_ticks(rng)
    noise: Noise = Masking(rng.choice([0.0, 1.0, 0.9, rng.random()])) if masking else Deletion(
        PairRate(length, ticks, rng.choice([ticks, other]))
    )  # fmt: skip
    threshold = rng.choice([None, None, 0.0, 1.0, 5e-324, 1 - 2.0**-53, extreme_probability(rng)])
    p1 = extreme_probability(rng)
    p2 = None if threshold is not None or rng.random() < 0.5 else extreme_probability(rng)
    ops = ("sub",) if masking else rng.choice(EVERY_SET)
    bound = rng.choice(["tight", "paper"])
    return {"length": length, "noise": noise, "ops": ops, "bound": bound, "threshold": threshold}, p1, p2


def check_radius(seed: int) -> bool:
    """Every neighbour within the radius is certified by balls; `rigorous_radius` would go on to larger radii."""
    arguments, p1, p2 = random_radius_case(seed)
    radius = certified_radius(p1, p2, **arguments)
    threshold, noise, length = arguments["threshold"], arguments["noise"], arguments["length"]
    if threshold == 1 or not 0 < radius <= 30:
        return False  # nothing to prove, or nearly infinite: the pairs above have such rates
    bound = "tight" if isinstance(noise, Masking) else arguments["bound"]
    threat = Threat(arguments["ops"])
    for others, commons in (threat.ball if bound == "tight" else threat.whole_ball)(length, radius):
        for other, common in zip(others.tolist(), commons.tolist(), strict=True):
            proven = _decide(
                lambda last, other=other, common=common: _margin(  # type: ignore[misc]
                    _Pair(noise, length, other, common), p1, p2, bound, threshold, last
                )
            )
            assert proven, (seed, arguments, p1, p2, other, common)
    return True


@pytest.mark.parametrize("block", seeds((4, 100), slow=(10, 500)), ids=str)
def test_radii_of_extreme_numbers_never_exceed_balls(block: range) -> None:
    assert sum(map(check_radius, block)) >= 0.05 * len(block)


@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("ops", EVERY_SET, ids=repr)
def test_at_a_threshold_of_1_nothing_can_change(ops: tuple[str, ...], bound: str) -> None:
    """Class 1 is answered iff its probability exceeds 1: never."""
    for p in (0.0, 0.7, 1.0):
        arguments: Any = {"length": 4, "noise": Deletion(LengthRate(0.5, 2)), "ops": ops, "bound": bound}
        reach = Threat(ops).search_limit(4)
        assert certified_radius(p, threshold=1.0, **arguments) == reach
        assert rigorous_radius(p, threshold=1.0, **arguments) == reach
