"""Algorithm 1 of the AdaptDel paper, transcribed literally, in exact arithmetic.

Two slips of the paper are corrected: the radius returned is the one before the first that fails, and C(o, r) has
n_del + n_ins + n_sub = r. Only triples with n_del + n_sub <= n exist. The lemmas are as printed. Every number in them
is a multiple of a power of 1/2, so all of them are integers over a common denominator.

`knapsack`, `lower_bound`, `upper_bound` and `holds` are the transcription. `algorithm_1` makes the same decisions, and
is fast enough for the paper's lengths: a pair (n', N) is decided once and not at every radius, for several class
probabilities together, and sums run from the end with few kept tokens (`Sizes`). tests/core/test_published.py compares
the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

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


class Sizes:
    """Subsequences of n tokens by the number i of retained ones, as far as they are needed.

    Attributes:
        items: the weight of one subsequence of each size, over DENOMINATOR**n.
        below: the total weight of all subsequences of smaller sizes, over DENOMINATOR**n.
    """

    def __init__(self, n: int, t: int) -> None:
        self.n, self.total = n, DENOMINATOR**n
        self.keep, self.drop = DENOMINATOR - t, t
        self.items, self.below, self._ways = [t**n], [0, t**n], 1

    def extend(self) -> None:
        i = len(self.items)
        if i > self.n:
            return
        self._ways = self._ways * (self.n - i + 1) // i
        item = self.items[-1] // self.drop * self.keep if self.drop else self.keep**i * self.drop ** (self.n - i)
        self.items.append(item)
        self.below.append(self.below[-1] + self._ways * item)

    def reach(self, size: int) -> None:
        while len(self.items) <= size:
            self.extend()

    def find(self, mass: int, up: bool) -> int:
        """The size H at which a mass over DENOMINATOR**n, rounded up, is reached."""
        size = 0
        if up:
            while self.below[size + 1] < mass and size < self.n:
                size += 1
                self.reach(size)
            return size
        while size < self.n and self.below[size + 1] <= self.total - mass:
            size += 1
            self.reach(size)
        return size

    def before(self, size: int, up: bool) -> int:
        """The weight of the sizes before one: smaller ones if ``up``, else larger ones."""
        self.reach(size)
        return self.below[size] if up else self.total - self.below[size + 1]


def filled(table: Sizes, other: Sizes, mass: int, lift: int, up: bool, down: bool) -> int:
    """`knapsack` over DENOMINATOR**n, for a mass over DENOMINATOR**n · 2**lift."""
    floor, ceiling = mass >> lift, -(-mass >> lift)
    size = table.find(ceiling, up)
    item, value = table.items[size], other.before(size, up)
    if item:
        start = table.before(size, up)
        value += ((floor - start) // item if down else -((start - ceiling) // item)) * other.items[size]
    return value


def algorithm_1(p1: Sequence[float], p2: Sequence[float] | None, n: int, rate: Rate, ops: tuple[str, ...]) -> list[int]:
    """The radius for each pair of p1 and p2; p2 = 1 − p1 if it is None."""
    unit = 1 << 32 * n + SHIFT
    firsts = [int(Fraction(p) * unit) for p in p1]
    seconds = [unit - first for first in firsts] if p2 is None else [int(Fraction(p) * unit) for p in p2]
    t = rate.threshold(n)
    tables: dict[int, Sizes] = {}
    decided: set[tuple[int, int]] = set()
    radii = dict.fromkeys(range(len(p1)), -1)
    active = list(radii)
    r = 0
    while active:
        for n_del in range(r * ("del" in ops) + 1):
            for n_ins in range((r - n_del) * ("ins" in ops) + 1):
                n_sub = r - n_del - n_ins
                pair = n + n_ins - n_del, n - n_del - n_sub
                if (n_sub and "sub" not in ops) or n_del + n_sub > n or pair in decided:
                    continue
                decided.add(pair)
                other_n, common = pair
                if common not in tables:
                    tables[common] = Sizes(common, t)
                table, other_t = tables[common], rate.threshold(other_n)
                other = table if other_t == t else Sizes(common, other_t)
                # c and c' over powers of DENOMINATOR; the knapsacks over DENOMINATOR**N.
                c, other_c = t ** (n - common), other_t ** (other_n - common)
                scale, other_scale = DENOMINATOR ** (n - common), DENOMINATOR ** (other_n - common)
                lift = 32 * (n - common) + SHIFT
                for number in list(active):
                    mass = firsts[number] - unit + c * (unit // scale)
                    if mass > 0:
                        low = filled(table, other, mass, lift, up=t >= other_t, down=True)
                        high = filled(table, other, seconds[number], lift, up=t <= other_t, down=False)
                        if (low - high) * other_c * scale > c * (other_scale - other_c) * table.total:
                            continue
                    active.remove(number)
        for number in active:
            radii[number] = r
        if "ins" not in ops and r >= n:
            break
        r += 1
    return list(radii.values())
