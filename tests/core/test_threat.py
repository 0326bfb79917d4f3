from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from adaptdel import Threat
from adaptdel.core.threat import EVERY_SET


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


@pytest.mark.parametrize("ops", ["", "swap", ["ins", "edit"], [], 5, None, ["ins", 3]])
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
