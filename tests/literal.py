"""Algorithm 1 of the AdaptDel paper, transcribed literally, in exact arithmetic.

Two slips of the paper are corrected: the radius returned is the one before the first that fails, and C(o, r) has
n_del + n_ins + n_sub = r. Only triples with n_del + n_sub <= n exist. The lemmas are as printed. Every number in them
is a multiple of a power of 1/2, so all of them are integers over a common denominator.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count

from adaptdel.core.rates import DENOMINATOR, Rate

SHIFT = 1100  # every double is a multiple of 2**-1074


def sizes(n: int, t: int, up: bool) -> Iterator[tuple[int, int]]:
    """(number of subsequences, weight of one over DENOMINATOR**n) by size: i = 0..n retained, or n..0 if not ``up``."""
    a, b = (DENOMINATOR - t, t) if up else (t, DENOMINATOR - t)
    ways, item = 1, b**n
    for i in range(n + 1):
        yield ways, item
        ways = ways * (n - i) // (i + 1)
        item = item // b * a if b else a**n * (i + 1 == n)


def knapsack(n: int, t: int, other_t: int, target: Fraction, up: bool, down: bool) -> Fraction:
    """sum_{i before H} B_i(psi') + B_H(psi') * gridded floor (or ceiling) of c / B_H(psi)."""
    scale = 32 * n + SHIFT
    while target.denominator > 1 << scale:
        scale *= 2
    wanted = target.numerator * ((1 << scale) // target.denominator)
    lift = scale - 32 * n
    mass = other_mass = 0
    for (ways, item), (_, other_item) in zip(sizes(n, t, up), sizes(n, other_t, up), strict=True):
        if mass + (ways * item << lift) >= wanted:
            if item:
                taken, remainder = divmod(wanted - mass, item << lift)
                other_mass += (taken + (0 if down or not remainder else 1)) * other_item
            return Fraction(other_mass, DENOMINATOR**n)
        mass += ways * item << lift
        other_mass += ways * other_item
    raise AssertionError("the target exceeds 1")


def masses(n: int, other_n: int, common: int, rate: Rate) -> tuple[int, int, Fraction, Fraction]:
    t, other_t = rate.threshold(n), rate.threshold(other_n)
    return t, other_t, Fraction(t, DENOMINATOR) ** (n - common), Fraction(other_t, DENOMINATOR) ** (other_n - common)


def lower_bound(mu: Fraction, n: int, other_n: int, common: int, rate: Rate) -> Fraction:
    t, other_t, c, other_c = masses(n, other_n, common, rate)
    if mu - 1 + c <= 0:
        return Fraction(0)  # vacuous
    return other_c / c * knapsack(common, t, other_t, mu - 1 + c, up=t >= other_t, down=True)


def upper_bound(mu: Fraction, n: int, other_n: int, common: int, rate: Rate) -> Fraction:
    t, other_t, c, other_c = masses(n, other_n, common, rate)
    if c == 0:
        return Fraction(1)  # vacuous
    return other_c / c * knapsack(common, t, other_t, mu, up=t <= other_t, down=False) + 1 - other_c


def holds(first: Fraction, second: Fraction, n: int, other_n: int, common: int, rate: Rate) -> bool:
    """lower_bound(first) > upper_bound(second), where both are defined."""
    return lower_bound(first, n, other_n, common, rate) > upper_bound(second, n, other_n, common, rate)


def algorithm_1(p1: float, p2: float | None, n: int, rate: Rate, ops: tuple[str, ...]) -> int:
    """The radius; p2 = 1 − p1 if it is None. A pair (n', N) of several triples is decided once."""
    first = Fraction(p1)
    second = 1 - first if p2 is None else Fraction(p2)
    decided: set[tuple[int, int]] = set()
    for r in count():
        for n_del in range(r * ("del" in ops) + 1):
            for n_ins in range((r - n_del) * ("ins" in ops) + 1):
                n_sub = r - n_del - n_ins
                pair = n + n_ins - n_del, n - n_del - n_sub
                if (n_sub and "sub" not in ops) or n_del + n_sub > n or pair in decided:
                    continue
                decided.add(pair)
                if not holds(first, second, n, *pair, rate):
                    return r - 1
        if "ins" not in ops and r >= n:
            return r
    raise AssertionError("a radius is finite, but for a rate of 1")
