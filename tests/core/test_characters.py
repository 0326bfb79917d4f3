"""Character edits of words at white space, by enumeration: the neighbours that a character radius has to cover."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.core.radius import certified_radius
from adaptdel.core.threat import CHARACTERS

ALPHABET = "ab "


def character_ball(text: str, radius: int) -> set[str]:
    """All texts within so many edits of characters."""
    texts = {text}
    for _ in range(radius):
        new = set(texts)
        for given in texts:
            for place in range(len(given) + 1):
                new |= {given[:place] + letter + given[place:] for letter in ALPHABET}
                new.add(given[:place] + given[place + 1 :])
                new |= {given[:place] + letter + given[place + 1 :] for letter in ALPHABET}
        texts = new
    return texts


def common(first: list[str], second: list[str]) -> int:
    """The length of the longest common subsequence."""
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, j in product(range(len(first)), range(len(second))):
        table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j], table[i, j] + (first[i] == second[j]))
    return int(table[-1, -1])


@pytest.mark.parametrize("text", ["a", "ab a", "a b", "aa b ab", " a  b ", "a b a b", ""])
@pytest.mark.parametrize("radius", [1, 2])
def test_every_text_within_the_radius_is_covered(text: str, radius: int) -> None:
    words = text.split()
    covered: dict[int, int] = {}
    pairs = set()
    for other, shared in CHARACTERS.ball(len(words), radius):
        covered |= dict(zip(other.tolist(), shared.tolist(), strict=True))
    for other, shared in CHARACTERS.whole_ball(len(words), radius):
        pairs |= set(zip(other.tolist(), shared.tolist(), strict=True))
    for neighbour in character_ball(text, radius):
        changed = neighbour.split()
        if changed != words:
            least = common(words, changed)
            assert covered[len(changed)] <= least
            assert (len(changed), least) in pairs


@pytest.mark.parametrize("length", [1, 5, 30])
@pytest.mark.parametrize("p1", [0.6, 0.9, 0.999])
def test_the_character_radius_follows_from_the_frontier(length: int, p1: float) -> None:
    noise = ad.Deletion(ad.FixedRate(0.8))
    frontier = ad.certified_frontier(p1, length=length, noise=noise)

    def is_certified(radius: int) -> bool:
        needed = [(a, radius - a, min(radius, length - a)) for a in range(min(radius, length) + 1)]
        return all(any((np.array(e) <= maximal).all() for maximal in frontier) for e in needed)

    expected = max(radius for radius in range(100) if is_certified(radius))
    assert certified_radius(p1, length=length, noise=noise, ops=CHARACTERS) == expected
    assert certified_radius(p1, 1 - p1, length=length, noise=noise, ops=CHARACTERS) <= expected + 1


def test_certificates_have_a_character_radius() -> None:
    def spam(texts: list[str]) -> list[int]:
        return [int("free" in text.split()) for text in texts]

    texts = ["free " * 30, "a quiet email about lunch"]
    noise = ad.Deletion(ad.FixedRate(0.8))
    for certificate in ad.SmoothedClassifier(spam, noise, classes=[0, 1], progress=False).certify(texts):
        assert certificate.character_radius is not None
        assert certificate.radius // 2 <= certificate.character_radius <= certificate.radius
    masked = ad.SmoothedClassifier(spam, ad.Masking(0.5), classes=[0, 1], progress=False)
    assert {c.character_radius for c in masked.certify(texts)} <= {-1, 0}
    for unit in ("char", "byte", "chunk:2"):
        model = ad.SmoothedClassifier(
            lambda given: [0 for _ in given], noise, unit=unit, classes=[0, 1], progress=False
        )
        text = b"many bytes here" if unit != "char" else "many characters"
        (certificate,) = model.certify([text])
        expected = {"char": certificate.radius, "byte": certificate.radius // 4, "chunk:2": None}[unit]
        assert certificate.character_radius == expected
