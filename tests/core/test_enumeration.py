"""No certified radius is ever violated: every neighbour of small words, in exact rational arithmetic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from adaptdel import Deletion, certified_frontier, certified_radius, certify_general, pairwise_bounds
from adaptdel.core.general import longest_common_subsequence
from adaptdel.core.rates import Rate
from adaptdel.core.threat import EVERY_SET
from tests.exact import (
    TableRate,
    Word,
    neighbours,
    probabilities,
    random_classifier,
    random_rate,
    round_down,
    round_up,
    seeds,
)  # fmt: skip

MOST = 400


def check_case(seed: int) -> tuple[int, int]:
    """One random classifier, rate and word; all sets of operations. Counts what was certified and checked."""
    rng = random.Random(seed)
    alphabet, classes = rng.choice([2, 3]), rng.choice([2, 2, 3])
    length = rng.randrange(6)
    word = tuple(rng.randrange(alphabet) for _ in range(length))
    rate, classify = random_rate(rng), random_classifier(rng, classes)
    noise = Deletion(rate)
    exact = probabilities(word, classify, rate, classes)
    answer = max(range(classes), key=lambda y: exact[y])
    p1 = round_down(exact[answer])
    p2 = None if classes == 2 else round_up(max(p for y, p in enumerate(exact) if y != answer))
    known: Known = {}
    certified = checked = 0
    for ops in EVERY_SET:
        tight = certified_radius(p1, p2, length=length, noise=noise, ops=ops)
        paper = certified_radius(p1, p2, length=length, noise=noise, ops=ops, bound="paper")
        assert paper <= tight
        if tight < 1:
            continue
        certified += 1
        for other, distance in neighbours(word, range(alphabet), ops, min(tight, 4), MOST):
            if other not in known:
                known[other] = probabilities(other, classify, rate, classes)
            shares = known[other]
            rivals = [p for y, p in enumerate(shares) if y != answer]
            assert shares[answer] > max(rivals), (seed, ops, tight, word, other, distance)
            checked += 1
    check_bounds(rng, word, rate, exact, known)
    return certified, checked


Known = dict[Word, list[Fraction]]


def check_bounds(rng: random.Random, word: Word, rate: Rate, exact: Sequence[Fraction], known: Known) -> None:
    """paper <= tight <= truth at a few neighbours, for the longest and for shorter common subsequences."""
    for other in rng.sample(sorted(known), min(4, len(known))):
        longest = longest_common_subsequence(word, other)
        for common in {longest, rng.randrange(longest + 1)}:
            for y, p in enumerate(exact):
                shape: Any = {"length": len(word), "other_length": len(other), "common": common, "rate": rate}
                low, high = pairwise_bounds(round_down(p), **shape)[0], pairwise_bounds(round_up(p), **shape)[1]
                paper_low = pairwise_bounds(round_down(p), **shape, bound="paper")[0]
                paper_high = pairwise_bounds(round_up(p), **shape, bound="paper")[1]
                assert paper_low <= low + 1e-11
                assert high <= paper_high + 1e-11
                for bound in (low, paper_low):
                    assert Fraction(bound) <= known[other][y]
                for bound in (high, paper_high):
                    assert known[other][y] <= Fraction(bound)


@pytest.mark.parametrize("block", seeds((10, 30), slow=(24, 100)), ids=str)
def test_no_certificate_is_violated(block: range) -> None:
    counts = [check_case(seed) for seed in block]
    assert sum(certified for certified, _ in counts) > 2 / 3 * len(block)  # the test would be empty otherwise
    assert sum(checked for _, checked in counts) > 15 * len(block)


@pytest.mark.parametrize("threshold", [None, 0.25, 0.7])
@pytest.mark.parametrize("seed", range(60))
def test_no_frontier_is_violated(seed: int, threshold: float | None) -> None:
    rng = random.Random(seed)
    word = tuple(rng.randrange(2) for _ in range(rng.randrange(5)))
    rate, classify = random_rate(rng), random_classifier(rng, 2)
    exact = probabilities(word, classify, rate, 2)
    level = Fraction(0.5 if threshold is None else threshold)
    answer = int(exact[1] > level)
    p1 = round_down(exact[answer]) if threshold is None or answer else round_up(exact[1])
    for bound in ("tight", "paper"):
        frontier = certified_frontier(p1, length=len(word), noise=Deletion(rate), bound=bound, threshold=threshold)
        for dels, inss, subs in frontier:
            reached = {word}
            for op, count in (("del", min(dels, 3)), ("ins", min(inss, 2)), ("sub", min(subs, 3))):
                for _ in range(count):
                    reached |= {n for w in reached for n, d in neighbours(w, range(2), (op,), 1, 10**6) if d == 1}
            for other in list(reached)[:200]:
                assert (probabilities(other, classify, rate, 2)[1] > level) == answer


@pytest.mark.parametrize("seed", range(60))
def test_content_dependent_rates(seed: int) -> None:
    """CertifyGeneral, with a rate that depends on every token."""
    rng = random.Random(seed)
    word = tuple(rng.randrange(2) for _ in range(rng.randrange(4)))
    classify = random_classifier(rng, 2)
    salt = rng.randrange(100)

    def rate(tokens: tuple[object, ...]) -> float:
        return 1 - random.Random(hash((salt, tokens))).random() * 0.08

    def truth(tokens: Word) -> list[Fraction]:
        return probabilities(tokens, classify, TableRate((round(rate(tokens) * 2**32),)), 2)

    exact = truth(word)
    answer = int(exact[1] > exact[0])
    for ops in EVERY_SET:
        p1 = round_down(exact[answer])
        arguments = {"sequence": word, "rate": rate, "vocabulary": (0, 1), "ops": ops, "max_radius": 3}
        radius = certify_general(p1, **arguments)  # type: ignore[arg-type]
        assert certify_general(p1, **arguments, bound="paper") <= radius  # type: ignore[arg-type]
        for other, _ in neighbours(word, range(2), ops, max(radius, 0), 10**6):
            if radius >= 0:
                assert truth(other)[answer] > Fraction(1, 2)
