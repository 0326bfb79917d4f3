"""Doubles against balls: never more, and the same away from ties."""

from __future__ import annotations

import random

import pytest

from adaptdel import Deletion, LengthRate, Masking, certified_radius, rigorous_radius
from adaptdel.core.noise import Noise
from adaptdel.core.rates import DENOMINATOR, BinnedRate, FixedRate
from adaptdel.core.rigorous import rigorous_lower_confidence
from adaptdel.core.threat import EVERY_SET
from tests.exact import TableRate, random_rate, seeds


def random_case(seed: int) -> tuple[dict[str, object], float, float | None]:
    rng = random.Random(seed)
    noise: Noise
    length = rng.choice([0, 1, 2, 5, 20, 80, 200])
    kind = rng.randrange(5)
    if kind == 0:
        noise = Deletion(LengthRate(rng.uniform(0.3, 0.95), rng.uniform(0, 20)))
    elif kind == 1:
        noise = Deletion(BinnedRate([0, 10, 60, 90], [rng.uniform(1, 12) for _ in range(4)]))
    elif kind == 2:
        noise = Deletion(FixedRate(rng.choice([0.0, 0.5, 0.9, 0.99])))
    elif kind == 3:
        noise, length = Deletion(random_rate(rng)), rng.randrange(6)
    else:
        noise = Masking(rng.random())
    ops = ("sub",) if kind == 4 else rng.choice(EVERY_SET)
    p1 = rng.choice([1.0, rng.uniform(0.5, 1), 1 - 10 ** rng.uniform(-5, -1), rng.uniform(0.3, 0.7)])
    p2 = rng.choice([None, None, rng.uniform(0, 1 - p1)])
    arguments: dict[str, object] = {"length": length, "noise": noise, "ops": ops}
    arguments["bound"] = rng.choice(["tight", "tight", "paper"])
    if p2 is None and rng.random() < 0.2:
        arguments["threshold"] = rng.choice([0.5, rng.random()])
    return arguments, p1, p2


def check(seed: int) -> bool:
    arguments, p1, p2 = random_case(seed)
    double = certified_radius(p1, p2, **arguments)  # type: ignore[call-overload]
    if double > 1000:
        return False  # degenerate: as good as infinite
    ball = rigorous_radius(p1, p2, **arguments)  # type: ignore[arg-type]
    assert double <= ball, (seed, arguments, p1, p2)
    if double < ball:  # then it must be a tie: a nudge of 1e-9 decides it for the doubles as well
        up, down = min(p1 + 1e-9, 1.0), None if p2 is None else max(p2 - 1e-9, 0.0)
        threshold = arguments.get("threshold")
        if isinstance(threshold, float) and p1 <= threshold:
            up = max(p1 - 1e-9, 0.0)
        assert certified_radius(up, down, **arguments) >= ball or p1 + 1e-9 > 1, (seed, arguments, p1, p2)  # type: ignore[call-overload]
    return True


@pytest.mark.parametrize("block", seeds((8, 30), slow=(40, 50)), ids=str)
def test_doubles_never_exceed_balls(block: range) -> None:
    assert sum(map(check, block)) >= 0.66 * len(block)


@pytest.mark.parametrize("bound", ["tight", "paper"])
def test_ties_are_not_certified(bound: str) -> None:
    """At ψ = 1/2 and p1 = 1 a substitution leaves exactly 1/2, which is not more than 1/2."""
    arguments = {"length": 3, "noise": Deletion(FixedRate(0.5)), "ops": ["sub"], "bound": bound}
    assert rigorous_radius(1.0, **arguments) == 0  # type: ignore[arg-type]
    assert certified_radius(1.0, **arguments) == 0  # type: ignore[call-overload]


def test_a_tie_by_one_tick() -> None:
    """A rate one part in 2**32 above 1/2 turns the tie into a certificate, for both."""
    noise = Deletion(TableRate((DENOMINATOR // 2 + 1,)))
    assert rigorous_radius(1.0, length=3, noise=noise, ops=["sub"]) == 1
    assert certified_radius(1.0, length=3, noise=noise, ops=["sub"]) == 1


def test_a_million_tokens() -> None:
    noise = Deletion(FixedRate(0.999))
    assert rigorous_radius(0.999, length=10**6, noise=noise) == certified_radius(0.999, length=10**6, noise=noise)


def test_confidence() -> None:
    assert rigorous_lower_confidence(0.0, 0, 10, 0.05)
    assert not rigorous_lower_confidence(0.1, 0, 10, 0.05)
    assert rigorous_lower_confidence(0.049, 1, 1, 0.05)
    assert not rigorous_lower_confidence(0.05, 1, 1, 0.05)  # an exact tie is never decided
    assert not rigorous_lower_confidence(0.06, 1, 1, 0.05)


def test_unanimous_votes_where_sums_are_far_apart() -> None:
    """K(0) = 0 exactly: no line that is merely valid may stand for it."""
    ticks = [round(0.9 * DENOMINATOR)] * 31
    ticks[30] = round(0.05 * DENOMINATOR)
    noise = Deletion(TableRate(tuple(ticks)))
    assert certified_radius(1.0, length=30, noise=noise, ops=["del"]) == 30
    assert rigorous_radius(1.0, length=30, noise=noise, ops=["del"]) == 30
    assert rigorous_radius(0.0, length=30, noise=noise, ops=["del"], threshold=0.3) == 30
