"""Algorithm 1 of the AdaptDel paper, transcribed literally, in exact integers.

Two slips of the paper are mended: the radius returned is the one before the first that fails, and C(o, r) has
n_del + n_ins + n_sub = r. Only triples with n_del + n_sub <= n exist. The lemmas are as printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor

from adaptdel.rates import DENOMINATOR, Rate


def binomial_items(n: int, t: int) -> list[Fraction]:
    """B_i(n, psi) for i = 0..n: the pmf of the number of retained tokens."""
    ways, out = 1, []
    for i in range(n + 1):
        out.append(Fraction(ways * (DENOMINATOR - t) ** i * t ** (n - i), DENOMINATOR**n))
        ways = ways * (n - i) // (i + 1)
    return out


class LazyPmf:
    """The pmf as integers over DENOMINATOR**n, from either end, as far as it is needed."""

    def __init__(self, n: int, t: int, up: bool) -> None:
        self.n = n
        # from i = 0 up: retained; from i = n down: the same with the roles of psi and 1 - psi exchanged
        self.a, self.b = (DENOMINATOR - t, t) if up else (t, DENOMINATOR - t)
        self.ways, self.powers = 1, self.b**n

    def terms(self) -> Iterator[tuple[int, int, int]]:
        """(number of subsequences, weight of one, weight of all), all over DENOMINATOR**n."""
        ways, item = 1, self.b**self.n
        for i in range(self.n + 1):
            yield ways, item, ways * item
            ways = ways * (self.n - i) // (i + 1)
            item = item // self.b * self.a if self.b else self.a ** (i + 1) * self.b ** (self.n - i - 1)


def knapsack(n: int, t: int, other_t: int, target: Fraction, up: bool, down: bool) -> Fraction:
    """sum_{i before H} B_i(psi') + B_H(psi') * gridded floor (or ceiling) of c / B_H(psi)."""
    here = there = Fraction(0)
    whole = DENOMINATOR**n
    for (ways, _item, mass), (_, _, other_mass) in zip(
        LazyPmf(n, t, up).terms(), LazyPmf(n, other_t, up).terms(), strict=True
    ):
        if here + Fraction(mass, whole) >= target:
            if not mass:
                return there
            share = (target - here) / Fraction(mass, whole)
            rounded = Fraction(floor(share * ways) if down else ceil(share * ways), ways)
            return there + Fraction(other_mass, whole) * rounded
        here += Fraction(mass, whole)
        there += Fraction(other_mass, whole)
    raise AssertionError("the target exceeds 1")


def lower_bound(mu: Fraction, n: int, other_n: int, common: int, rate: Rate) -> Fraction:
    t, other_t = rate.threshold(n), rate.threshold(other_n)
    c, other_c = Fraction(t, DENOMINATOR) ** (n - common), Fraction(other_t, DENOMINATOR) ** (other_n - common)
    if mu - 1 + c <= 0:
        return Fraction(0)  # vacuous
    return other_c / c * knapsack(common, t, other_t, mu - 1 + c, up=t >= other_t, down=True)


def upper_bound(mu: Fraction, n: int, other_n: int, common: int, rate: Rate) -> Fraction:
    t, other_t = rate.threshold(n), rate.threshold(other_n)
    c, other_c = Fraction(t, DENOMINATOR) ** (n - common), Fraction(other_t, DENOMINATOR) ** (other_n - common)
    if c == 0:
        return Fraction(1)  # vacuous
    return other_c / c * knapsack(common, t, other_t, mu, up=t <= other_t, down=False) + 1 - other_c


def algorithm_1(p1: float, p2: float | None, n: int, rate: Rate, ops: tuple[str, ...], most: int = 10**6) -> int:
    first = Fraction(p1)
    second = 1 - first if p2 is None else Fraction(p2)
    for r in range(most + 1):
        for n_del in range(r * ("del" in ops) + 1):
            for n_ins in range((r - n_del) * ("ins" in ops) + 1):
                n_sub = r - n_del - n_ins
                if (n_sub and "sub" not in ops) or n_del + n_sub > n:
                    continue
                other, common = n + n_ins - n_del, n - n_del - n_sub
                if lower_bound(first, n, other, common, rate) <= upper_bound(second, n, other, common, rate):
                    return r - 1
        if "ins" not in ops and r >= n:
            return n
    return most
