"""Certified regions: frontiers and numbers of sequences, against enumeration."""

from __future__ import annotations

import random
from itertools import product
from math import comb, inf, log10

import numpy as np
import pytest

from adaptdel import (
    Deletion,
    FixedRate,
    LengthRate,
    Masking,
    NoNoise,
    certified_frontier,
    certified_radius,
    log10_cardinality,
)
from adaptdel.core.noise import Noise
from adaptdel.core.radius import pair_test
from adaptdel.core.threat import EVERY_SET
from tests.exact import neighbours, random_rate

Triple = tuple[int, int, int]


def by_enumeration(
    p1: float, p2: float | None, length: int, noise: Noise, ops: tuple[str, ...], bound: str
) -> set[Triple]:
    """All boxes of triples, one by one, up to a size."""
    test = pair_test(p1, 1 - p1 if p2 is None else p2, noise, length, bound)
    most = [10 if op in ops else 0 for op in ("del", "ins", "sub")]
    certified: set[Triple] = set()
    for d, i, s in product(*(range(m + 1) for m in most)):
        before = [(d - 1, i, s), (d, i - 1, s), (d, i, s - 1)]
        if d + s > length or any(t not in certified for t in before if min(t) >= 0):
            continue
        if (d, i, s) == (0, 0, 0) or test(np.array([length + i - d]), np.array([length - d - s]))[0]:
            certified.add((d, i, s))
    return {
        t for t in certified if not any(tuple(np.add(t, step)) in certified for step in np.eye(3, dtype=int).tolist())
    }


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("length", [0, 3, 9])
def test_frontiers_by_enumeration(ops: tuple[str, ...], bound: str, length: int) -> None:
    for seed in range(6):
        noise = Deletion(random_rate(random.Random(seed))) if seed % 2 else Deletion(LengthRate(0.8, 2))
        for p1, p2 in ((0.9, None), (0.7, 0.1)):
            if max(certified_radius(p1, p2, length=length, noise=noise, ops=[op], bound=bound) for op in ops) > 9:
                continue
            if certified_radius(p1, p2, length=length, noise=noise, ops=ops, bound=bound) < 0:
                continue
            found = certified_frontier(p1, p2, length=length, noise=noise, ops=ops, bound=bound)
            assert set(found) == by_enumeration(p1, p2, length, noise, ops, bound)
            assert found == sorted(found)


@pytest.mark.parametrize(("p", "threshold"), [(0.97, None), (0.9, 0.2), (0.03, 0.2)])
@pytest.mark.parametrize("bound", ["tight", "paper"])
def test_the_radius_is_the_diagonal(bound: str, p: float, threshold: float | None) -> None:
    noise = Deletion(LengthRate(0.9, 9))
    radius = certified_radius(p, length=150, noise=noise, bound=bound, threshold=threshold)
    frontier = certified_frontier(p, length=150, noise=noise, bound=bound, threshold=threshold)

    def under(triple: Triple) -> bool:
        return any(all(a <= b for a, b in zip(triple, corner, strict=True)) for corner in frontier)

    triples = [(d, i, radius - d - i) for d in range(radius + 1) for i in range(radius + 1 - d)]
    assert all(under(t) for t in triples)
    triples = [(d, i, radius + 1 - d - i) for d in range(radius + 2) for i in range(radius + 2 - d)]
    assert not all(under(t) for t in triples)


def test_frontiers_without_edits() -> None:
    assert certified_frontier(0.4, length=5, noise=Deletion(FixedRate(0.9))) == []
    assert certified_frontier(1.0, length=5, noise=NoNoise()) == [(0, 0, 0)]
    masked = certified_radius(0.99, length=50, noise=Masking(0.9), ops=["sub"])
    assert certified_frontier(0.99, length=50, noise=Masking(0.9), ops=["sub"]) == [(0, 0, masked)]


def test_a_frontier_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"^the frontier of \d+ deletions by \d+ insertions at length 60000 has over"):
        certified_frontier(0.999, length=60_000, noise=Deletion(LengthRate(0.9, 5)))


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


def test_the_region_grows_with_the_radius() -> None:
    sizes = [log10_cardinality(r, length=100) for r in range(-1, 30)]
    assert sizes[0] == -inf
    assert sizes[1] == 0
    assert sizes == sorted(sizes)


def test_a_large_region_is_quick_enough() -> None:
    assert log10_cardinality(30_000, length=10**6) > 100_000
    assert log10_cardinality(30_000, length=10**6, vocab_size=2) > 10_000
