"""Exact probabilities by enumeration in rational arithmetic, which every bound is tested against."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from adaptdel.core.checks import FloatArray
from adaptdel.core.rates import DENOMINATOR, Rate

Word = tuple[int, ...]
Classifier = Callable[[Word], int]


def seeds(quick: tuple[int, int], slow: tuple[int, int]) -> list[Any]:
    """Blocks of seeds, as (blocks, seeds of each): some for every run of the tests, and more for slow ones."""
    listed = [range(block * quick[1], (block + 1) * quick[1]) for block in range(quick[0])]
    more = [range(10**5 + block * slow[1], 10**5 + (block + 1) * slow[1]) for block in range(slow[0])]
    return [*listed, *(pytest.param(block, marks=pytest.mark.slow) for block in more)]


@dataclass(frozen=True)
class TableRate(Rate):
    """An arbitrary rate for each length; the last one is used for all larger lengths."""

    kind = "table"
    immutable = True
    ticks: tuple[int, ...]

    def real(self, lengths: FloatArray) -> FloatArray:
        table = np.array(self.ticks, dtype=np.float64) / DENOMINATOR
        return np.asarray(table[np.minimum(lengths.astype(np.int64), len(self.ticks) - 1)])


def random_rate(rng: random.Random, lengths: int = 9) -> TableRate:
    """Rates of several kinds: independent, smooth, nearly 1, and some that are exactly 0 or 1."""
    style = rng.randrange(5)
    if style == 0:
        ticks = [rng.randrange(DENOMINATOR + 1) for _ in range(lengths)]
    elif style == 1:
        ticks = [round(DENOMINATOR * rng.uniform(0.7, 1)) for _ in range(lengths)]
    elif style == 2:
        k = rng.uniform(0.05, 2)
        ticks = [round(DENOMINATOR * max(0.3, 1 - k / (n + 1))) for n in range(lengths)]
    elif style == 3:
        ticks = [rng.choice([0, 1, DENOMINATOR // 2, DENOMINATOR - 1, DENOMINATOR]) for _ in range(lengths)]
    else:
        ticks = [round(DENOMINATOR * rng.uniform(0.9, 1))] * lengths
    return TableRate(tuple(ticks))


@cache
def subsequences(word: Word) -> Mapping[Word, int]:
    """Every subsequence with the number of ways to choose its positions."""
    if not word:
        return {(): 1}
    counts = Counter(subsequences(word[:-1]))
    for kept, ways in subsequences(word[:-1]).items():
        counts[(*kept, word[-1])] += ways
    return counts


def probabilities(word: Word, classify: Classifier, rate: Rate, classes: int) -> list[Fraction]:
    t, n = rate.threshold(len(word)), len(word)
    weights = [t ** (n - i) * (DENOMINATOR - t) ** i for i in range(n + 1)]
    total = [0] * classes
    for kept, ways in subsequences(word).items():
        total[classify(kept)] += ways * weights[len(kept)]
    return [Fraction(mass, DENOMINATOR**n) for mass in total]


def neighbours(
    word: tuple[Any, ...], alphabet: Sequence[Any], ops: Sequence[str], radius: int, most: int = 10**9
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Every word within ``radius`` edits with its distance, at most about ``most`` of them, nearest first."""
    seen = {word}
    layer = [word]
    yield word, 0
    for distance in range(1, radius + 1):
        following = []
        for centre in layer:
            for other in one_edit(centre, alphabet, ops):
                if other not in seen:
                    seen.add(other)
                    following.append(other)
                    yield other, distance
            if len(seen) > most:
                return
        layer = following


def one_edit(word: tuple[Any, ...], alphabet: Sequence[Any], ops: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for place in range(len(word) + 1):
        for letter in alphabet:
            if "ins" in ops:
                yield (*word[:place], letter, *word[place:])
            if "sub" in ops and place < len(word):
                yield (*word[:place], letter, *word[place + 1 :])
        if "del" in ops and place < len(word):
            yield word[:place] + word[place + 1 :]


def random_classifier(rng: random.Random, classes: int) -> Classifier:
    """Random labels, mostly one class, so that something is certified; remembered, so that it is a function."""
    style = rng.randrange(3)
    dissent = rng.choice([0.02, 0.1, 0.3])
    cut, salt = rng.randrange(3), rng.randrange(2**30)
    known: dict[Word, int] = {}

    def classify(word: Word) -> int:
        if word not in known:
            draw = random.Random(hash((salt, word)))
            if style == 0:  # by length: close to the worst case
                known[word] = 0 if len(word) <= cut else draw.randrange(classes)
            elif style == 1:
                known[word] = 0 if len(word) >= cut else draw.randrange(classes)
            else:
                known[word] = draw.randrange(1, classes) if draw.random() < dissent else 0
        return known[word]

    return classify


def round_down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else float(np.nextafter(near, -1))


def round_up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else float(np.nextafter(near, 2))
