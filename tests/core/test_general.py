from __future__ import annotations

from itertools import product

import pytest

from adaptdel import Deletion, LengthRate, certified_radius, certify_general
from adaptdel.core.general import longest_common_subsequence
from adaptdel.core.threat import EVERY_SET


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
def test_fresh_tokens_and_lengths_give_the_length_certificate(ops: tuple[str, ...]) -> None:
    rate = LengthRate(0.8, 0.7)
    for p1, p2 in ((0.8, None), (0.9, 0.02), (0.45, 0.2)):
        expected = min(certified_radius(p1, p2, length=3, noise=Deletion(rate), ops=ops), 2)
        found = certify_general(
            p1, p2, sequence="abc", rate=lambda t: rate(len(t)), vocabulary="abcx", ops=ops, max_radius=2
        )
        assert found == expected


def test_the_end_of_the_world() -> None:
    """Without insertions every neighbour has been seen at the length."""
    assert certify_general(1.0, sequence="abc", rate=lambda t: 1.0, vocabulary="ab", ops=["del", "sub"]) == 3
    assert certify_general(0.4, sequence="abc", rate=lambda t: 1.0, vocabulary="ab") == -1
    assert certify_general(1.0, sequence="", rate=lambda t: 0.5, vocabulary="ab", ops=["del"]) == 0


def test_the_limit() -> None:
    with pytest.raises(ValueError, match=r"^limit must be raised to continue: the ball of radius 2 .* max_radius=1"):
        certify_general(1.0, sequence="abcdef", rate=lambda t: 0.99, vocabulary="abcdef", limit=500)
    assert (
        certify_general(1.0, sequence="abcdef", rate=lambda t: 0.99, vocabulary="abcdef", limit=500, max_radius=1) == 1
    )


def test_longest_common_subsequences() -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return 0
        return max(slow(a[1:], b), slow(a, b[1:]), 1 + slow(a[1:], b[1:]) if a[0] == b[0] else 0)

    words = ["".join(w) for n in range(5) for w in product("ab", repeat=n)]
    for a in words:
        for b in words[::3]:
            assert longest_common_subsequence(a, b) == slow(a, b)
