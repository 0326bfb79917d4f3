"""A small linear model and texts that are attacked."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.attacks.adaptive import Vocabulary, learn_vocabulary
from adaptdel.core.general import single_edits
from adaptdel.core.threat import Threat
from adaptdel.text.units import Tokens

SPAM = ["buy", "cheap", "pills", "offer", "now", "click"]
HAM = ["lunch", "noon", "friday", "see", "you", "meeting"]
BOTH = ["the", "a", "at", "of", "and", "to", "in", "on"]


def texts(count: int, length: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = ("spam", "ham")[number % 2]
        strong = SPAM if label == "spam" else HAM
        words = [rng.choice(strong if rng.random() < 0.5 else BOTH) for _ in range(length)]
        rows.append((" ".join(words), label))
    return rows


def fitted(noise: ad.Noise, length: int = 40, **settings: Any) -> ad.SmoothedClassifier:
    rows = texts(200, length)
    votes: dict[str, Any] = {"n_select": 100, "n_estimate": 1000} | settings
    model = ad.SmoothedClassifier(noise=noise, progress=False, **votes)
    return model.fit([text for text, _ in rows], [label for _, label in rows])


def vocabulary_of(model: ad.SmoothedClassifier, length: int = 40) -> Vocabulary:
    return learn_vocabulary(model.certifier(), [(tuple(text.split()), label) for text, label in texts(200, length)])


@pytest.fixture(scope="session")
def deletion() -> ad.SmoothedClassifier:
    return fitted(ad.Deletion(ad.FixedRate(0.7)))


def texts_within(tokens: Tokens, words: Sequence[Hashable], radius: int, threat: Threat) -> list[Tokens]:
    """Every sequence within ``radius`` edits that writes only ``words``, the original first."""
    visited = {tokens: None}
    layer = [tokens]
    for _ in range(radius):
        following: list[Tokens] = []
        for text in layer:
            for neighbour in single_edits(text, tuple(words), threat):
                if neighbour not in visited:
                    visited[neighbour] = None
                    following.append(neighbour)
        layer = following
    return list(visited)
