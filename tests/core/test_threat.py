"""Threat models: which and how many neighbours edits of tokens and of characters reach, against enumeration."""

from __future__ import annotations

from itertools import product
from math import comb, log10

import numpy as np
import pytest

from adaptdel import (
    Deletion,
    FixedRate,
    Threat,
    certified_frontier,
    certified_radius,
    log10_cardinality,
    rigorous_radius,
)
from adaptdel.core.general import longest_common_subsequence
from adaptdel.core.threat import CHARACTERS, EVERY_SET
from tests.exact import neighbours

ALPHABET = "ab "


def by_triples(n: int, r: int, ops: tuple[str, ...]) -> dict[tuple[int, int], int]:
    """Every (n', N) with its least number of edits, from all triples (d, i, s) with d + s <= n."""
    least: dict[tuple[int, int], int] = {}
    for d, i, s in product(range(r + 1), repeat=3):
        allowed = all(count == 0 or op in ops for op, count in (("del", d), ("ins", i), ("sub", s)))
        if allowed and d + i + s <= r and d + s <= n:
            pair = (n + i - d, n - d - s)
            least[pair] = min(least.get(pair, r), d + i + s)
    return least


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("r", [0, 1, 2, 3, 7])
def test_pairs_are_those_of_all_triples(ops: tuple[str, ...], n: int, r: int) -> None:
    threat = Threat(ops)
    truth = by_triples(n, r, ops)
    whole = {
        (int(m), int(c)) for others, commons in threat.whole_ball(n, r) for m, c in zip(others, commons, strict=True)
    }
    assert whole == set(truth) - {(n, n)}
    for (m, c), cost in truth.items():
        assert threat.cost(n, np.array([m]), np.array([c]))[0] == cost
    least = {m: min(c for other, c in truth if other == m) for m, _ in truth}
    least = {m: c for m, c in least.items() if (m, c) != (n, n)}
    ball = {int(m): int(c) for others, commons in threat.ball(n, r) for m, c in zip(others, commons, strict=True)}
    assert ball == least


def test_blocks_cover_a_large_ball() -> None:
    others = np.concatenate([m for m, _ in Threat("edit").ball(10**6, 100_000)])
    assert np.array_equal(others, np.arange(900_000, 1_100_001))


def test_names() -> None:
    assert Threat() == Threat("edit") == Threat(("sub", "del", "ins")) == Threat("ins,sub,del")
    assert Threat(Threat("ins").ops) == Threat("ins")
    assert eval(repr(Threat("del"))) == Threat("del")


@pytest.mark.parametrize("ops", ["", "swap", ["ins", "edit"], [], 5, None, ["ins", 3], CHARACTERS])
def test_bad_names(ops: object) -> None:
    with pytest.raises(ValueError, match=r'^ops must be "edit" or some of "del", "ins", "sub", got .+$'):
        Threat(ops)  # type: ignore[arg-type]


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_covering_radius_reaches_every_text_of_the_length_and_no_smaller_one_does(
    ops: tuple[str, ...], n: int
) -> None:
    """No token in common with a text of the same length: the farthest there is."""
    needed = Threat(ops).covering_radius(n)
    reached = [r for r in range(4 * n) if (n, 0) in by_triples(n, r, ops)]
    assert needed == (reached[0] if reached else None)
    assert Threat("edit").covering_radius(0) == 1


@pytest.mark.parametrize("text", ["a", "ab a", "a b", "aa b ab", " a  b ", "a b a b", ""])
@pytest.mark.parametrize("radius", [1, 2])
def test_every_text_within_so_many_character_edits_is_covered(text: str, radius: int) -> None:
    words = text.split()
    covered: dict[int, int] = {}
    pairs = set()
    for other, shared in CHARACTERS.ball(len(words), radius):
        covered |= dict(zip(other.tolist(), shared.tolist(), strict=True))
    for other, shared in CHARACTERS.whole_ball(len(words), radius):
        pairs |= set(zip(other.tolist(), shared.tolist(), strict=True))
    for neighbour, _ in neighbours((*text,), ALPHABET, ("del", "ins", "sub"), radius):
        changed = "".join(neighbour).split()
        if changed != words:
            least = longest_common_subsequence(words, changed)
            assert covered[len(changed)] <= least
            assert (len(changed), least) in pairs


@pytest.mark.parametrize("length", [1, 5, 30])
@pytest.mark.parametrize("p1", [0.6, 0.9, 0.999])
def test_the_character_radius_follows_from_the_frontier(length: int, p1: float) -> None:
    noise = Deletion(FixedRate(0.8))
    frontier = certified_frontier(p1, length=length, noise=noise)

    def is_certified(radius: int) -> bool:
        needed = [(a, radius - a, min(radius, length - a)) for a in range(min(radius, length) + 1)]
        return all(any((np.array(e) <= maximal).all() for maximal in frontier) for e in needed)

    expected = max(radius for radius in range(100) if is_certified(radius))
    assert certified_radius(p1, length=length, noise=noise, ops=CHARACTERS) == expected
    assert rigorous_radius(p1, length=length, noise=noise, ops=CHARACTERS) == expected
    assert certified_radius(p1, 1 - p1, length=length, noise=noise, ops=CHARACTERS) <= expected + 1


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("alphabet", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_no_ball_is_smaller(ops: tuple[str, ...], alphabet: int, length: int) -> None:
    """A lower bound for every word, attained by a word of one repeated letter; exact for sub and for ins."""
    for radius in range(4 if alphabet < 3 else 3):
        claimed = log10_cardinality(radius, length=length, ops=ops, vocab_size=alphabet)
        sizes = [
            len(list(neighbours(word, range(alphabet), ops, radius, 10**9)))
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


def test_a_large_region_is_quick_enough() -> None:
    assert log10_cardinality(30_000, length=10**6) > 100_000
    assert log10_cardinality(30_000, length=10**6, vocab_size=2) > 10_000
