"""How many sequences a region holds, counted."""

from __future__ import annotations

from itertools import product
from math import comb, inf, log10

import pytest

from adaptdel import log10_cardinality
from adaptdel.core import cardinality
from adaptdel.core.threat import EVERY_SET, Threat
from tests.exact import neighbours


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("alphabet", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_no_ball_is_smaller(ops: tuple[str, ...], alphabet: int, length: int) -> None:
    """A lower bound for every word, attained by a word of one repeated letter; exact for sub and for ins."""
    for radius in range(4 if alphabet < 3 else 3):
        claimed = log10_cardinality(radius, length=length, ops=ops, vocab_size=alphabet)
        sizes = [
            len(list(neighbours(word, alphabet, ops, radius, 10**9)))
            for word in product(range(alphabet), repeat=length)
        ]
        assert claimed == pytest.approx(log10(min(sizes)), abs=1e-9)
        assert log10(sizes[0]) == pytest.approx(claimed, abs=1e-9)
        if ops in (("sub",), ("ins",)):
            assert min(sizes) == max(sizes)


@pytest.mark.parametrize(("n", "r", "V"), [(200, 6, 50265), (50, 12, 2), (30, 30, 3), (400, 54, 50265), (3, 9, 10)])
def test_sums_of_the_design(n: int, r: int, V: int) -> None:
    hamming = sum(comb(n, i) * (V - 1) ** i for i in range(r + 1))
    assert log10_cardinality(r, length=n, ops=["sub"], vocab_size=V) == pytest.approx(log10(hamming), rel=1e-10)
    edit = sum(comb(n + j, i) * (V - 1) ** i for i in range(r + 1) for j in range(i - r, r + 1) if n + j >= 0)
    assert log10_cardinality(r, length=n, vocab_size=V) == pytest.approx(log10(edit), rel=1e-10)


def test_it_grows() -> None:
    sizes = [log10_cardinality(r, length=100) for r in range(-1, 30)]
    assert sizes[0] == -inf
    assert sizes[1] == 0
    assert sizes == sorted(sizes)


def test_a_large_region_is_quick_enough() -> None:
    assert log10_cardinality(30_000, length=10**6) > 100_000
    assert log10_cardinality(30_000, length=10**6, vocab_size=2) > 10_000


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="radius must be an integer of at least -1, got -2"):
        log10_cardinality(-2, length=3)
    with pytest.raises(ValueError, match="vocab_size must be an integer of at least 1, got 0"):
        log10_cardinality(2, length=3, vocab_size=0)


def test_cached_sizes_are_those_that_are_computed_and_the_cache_is_bounded() -> None:
    compute = cardinality._log10_cardinality.__wrapped__
    for radius, length, ops in ((0, 0, "edit"), (5, 200, "edit"), (5, 200, "sub"), (5, 201, "edit"), (-1, 9, "ins")):
        for _ in range(2):
            assert log10_cardinality(radius, length=length, ops=ops) == compute(radius, length, Threat(ops), 50265)
    assert cardinality._log10_cardinality.cache_info().maxsize == 2**14
