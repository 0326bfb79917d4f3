from __future__ import annotations

import random
from itertools import product
from math import inf

import pytest

from adaptdel.attacks.edits import edit_distance
from adaptdel.core.general import single_edits
from adaptdel.core.threat import EVERY_SET, Threat
from adaptdel.text.units import Tokens


def by_search(first: Tokens, second: Tokens, ops: tuple[str, ...]) -> float:
    """Breadth-first search over single edits: slow, and obviously right."""
    seen, layer, distance = {first}, [first], 0
    while layer and distance <= 8:
        if second in layer:
            return distance
        following = {other for text in layer for other in single_edits(text, ("a", "b"), Threat(ops))}
        layer = [text for text in following - seen if len(text) <= 6]
        seen |= following
        distance += 1
    return inf


@pytest.mark.parametrize("ops", EVERY_SET, ids=",".join)
def test_distances_are_those_of_a_search(ops: tuple[str, ...]) -> None:
    words = [word for size in range(4) for word in product("ab", repeat=size)]
    rng = random.Random(0)
    for _ in range(60):
        first, second = rng.choice(words), rng.choice(words)
        assert edit_distance(first, second, ops) == by_search(first, second, ops), (first, second)


def test_tokens_of_other_types_are_other_tokens() -> None:
    assert edit_distance([1, 2], [True, 2]) == 1
    assert edit_distance([], []) == 0


def test_long_texts_are_quick() -> None:
    text = [str(number % 977) for number in range(20_000)]
    other = [*text[:50], "new", *text[60:]]
    assert edit_distance(text, other) == 10
