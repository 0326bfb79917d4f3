"""The best segment against enumeration: all texts, edits and paddings of small alphabets."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from adaptdel import Threat
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.scores import Filter, Scores, ScoresPlan
from adaptdel.core.segment import (
    CHARACTER_MOVES,
    WINDOW,
    best_segment,
    best_values,
    keeps_off,
    least_values,
    moves_of,
    positions,
    withstands,
    witness,
)
from adaptdel.core.threat import EVERY_SET
from tests.exact import one_edit

Gains = tuple[int, ...]
CASES = [
    pytest.param(seeds, marks=[pytest.mark.slow] if seeds.start else []) for seeds in (range(150), range(150, 1500))
]


def value(gains: Gains) -> int:
    best = run = 0
    for gain in gains:
        run = max(run, 0) + gain
        best = max(best, run)
    return best


def glued(gains: Gains, alphabet: Gains) -> set[Gains]:
    """The text with padding of up to 2 tokens on each side, which may change its first and its last word."""
    pads = [(), *product(alphabet, repeat=1), *product(alphabet, repeat=2)]
    ends = {gains} | {(new, *gains[1:]) for new in alphabet if gains}
    ends |= {(*text[:-1], new) for text in set(ends) for new in alphabet if text}
    return {(*before, *text, *behind) for text in ends for before in pads for behind in pads}


def case(seed: int) -> tuple[Gains, Gains, int, tuple[str, ...]]:
    """A text, the gains of the tokens that the attacker writes, a threshold, and operations."""
    rng = random.Random(seed)
    least, most = -rng.randint(1, 4), rng.randint(1, 3)
    alphabet = tuple(sorted({least, most, rng.randint(least, most)}))
    text = tuple(rng.choice(alphabet) for _ in range(rng.randint(1, 5)))
    return text, alphabet, rng.randint(0, 5), rng.choice(EVERY_SET)


@pytest.mark.parametrize("seeds", CASES)
def test_radii_are_the_true_ones(seeds: range) -> None:
    for seed in seeds:
        text, alphabet, threshold, ops = case(seed)
        flagged, reached = value(text) > threshold, {text}
        for edits in range(3):
            changed = any((value(each) > threshold) != flagged for each in reached)
            gains = np.array(text)
            if flagged:
                survived = withstands(gains, threshold, -alphabet[0], moves_of(Threat(ops)), limit=2) >= edits
                found = witness(gains, threshold, -alphabet[0], moves_of(Threat(ops)), edits)
                assert bool(found) == (changed and edits > 0), seed
            else:
                survived = keeps_off(gains, threshold, alphabet[-1], moves_of(Threat(ops)), limit=2) >= edits
            assert survived == (not changed), (seed, edits)
            reached |= {new for each in reached for new in one_edit(each, alphabet, ops)}


@pytest.mark.parametrize("seeds", CASES)
def test_padding_that_is_glued_on_changes_nothing_that_is_certified(seeds: range) -> None:
    for seed in seeds:
        text, alphabet, threshold, ops = case(seed)
        inner = np.array(text)[1:-1]
        if (certified := withstands(inner, threshold, -alphabet[0], moves_of(Threat(ops)), limit=1)) >= 0:
            edited = {text} if certified == 0 else {text, *one_edit(text, alphabet, ops)}
            assert all(value(each) > threshold for new in edited for each in glued(new, alphabet)), seed


@pytest.mark.parametrize("seeds", CASES)
def test_any_text_at_a_place(seeds: range) -> None:
    """Two long fillers of the worst token, in the middle of a word or between words."""
    for seed in seeds:
        text, alphabet, threshold, _ = case(seed)
        filler = (alphabet[0],) * 30
        for is_glued in (True, False):
            cut = [text[:n] + filler + text[n + is_glued :] for n in range(len(text) + (not is_glued))]
            certified = positions(np.array(text), threshold, glued=is_glued)
            assert (certified >= 1) == (value(text) > threshold and all(value(each) > threshold for each in cut)), seed


def test_character_edits() -> None:
    """An edited character changes, splits, merges, writes or drops a word."""
    for seed in range(300):
        text, alphabet, threshold, _ = case(seed)
        if withstands(np.array(text), threshold, -alphabet[0], CHARACTER_MOVES, limit=1) < 1:
            continue
        for place in range(len(text)):
            for dropped, written in ((1, 1), (1, 2), (2, 1), (1, 0), (0, 1)):
                for new in product(alphabet, repeat=written):
                    assert value((*text[:place], *new, *text[place + dropped :])) > threshold


def test_long_texts_take_bounded_time_and_memory() -> None:
    gains = np.tile([3, -1, 2, -5], 250_000)
    assert best_segment(gains) == (4, 0, 3)
    assert withstands(gains, 3, 5, moves_of(Threat("edit"))) == 16  # not looked for any further
    assert keeps_off(gains, 9, 3, moves_of(Threat("del"))) == 1


def plans(rng: random.Random) -> ScoresPlan:
    own = Filter(
        label=rng.randint(0, 1),
        drift=rng.choice([0, 1]),
        segment=rng.choice([None, rng.randint(0, 6)]),
        segment_drift=rng.choice([0, 1]),
    )
    return ScoresPlan(threat=Threat(rng.choice(EVERY_SET)), threshold=rng.randint(-2, 3), filter=own)


@pytest.mark.parametrize("seeds", CASES)
def test_filters_by_sum_or_segment(seeds: range) -> None:
    """Of a filter, no text within a radius has another prediction: edits, and edits with glued padding."""
    for seed in seeds:
        rng = random.Random(seed)
        plan = plans(rng)
        alphabet = [(rng.randint(-2, 2), rng.randint(-2, 2)) for _ in range(3)]
        offsets = np.array([rng.randint(-2, 2) + plan.threshold, 0])

        def evidence(
            tokens: Gains,
            plan: ScoresPlan = plan,
            alphabet: list[tuple[int, int]] = alphabet,
            offsets: object = offsets,
        ) -> Scores:
            scores = np.array([alphabet[token] for token in tokens], dtype=np.int64).reshape(-1, 2)
            free = Scores(scores, np.asarray(offsets), np.zeros(2, dtype=np.int64), filter=plan.filter)
            reach = [max(new[c] - new[free.answer] for new in alphabet) for c in (0, 1)]
            return Scores(scores, np.asarray(offsets), np.maximum(reach, 0), filter=plan.filter)

        text = tuple(rng.randrange(3) for _ in range(rng.randint(0, 4)))
        certificate = Certificate(None, ("a", "b"), plan, evidence(text))
        answer, letters = certificate.answer, (0, 1, 2)
        reached = {text}
        for edits in range(3):
            if certificate.radius >= edits:
                assert {evidence(each).answer for each in reached} == {answer}, (seed, edits)
            if edits < 2 and certificate.radius_for(Threat(certificate.ops, padding=True)) >= edits:
                padded = {each for new in reached for each in glued(new, letters)}
                assert {evidence(each).answer for each in padded} == {answer}, (seed, edits)
            reached |= {new for each in reached for new in one_edit(each, letters, plan.ops)}


def test_many_texts_at_once_have_the_values_that_each_has() -> None:
    rng, moves = np.random.default_rng(0), moves_of(Threat("edit"))
    for _ in range(60):
        lengths, drifts = rng.integers(0, 9, 4), rng.integers(0, 3, 2)
        gains = rng.integers(-5, 6, lengths.sum()) - drifts[:, None]
        edits = int(rng.integers(0, 4))
        found = least_values(gains, lengths, 5 + drifts, edits, 12)
        for row, drift in enumerate(drifts):
            best = best_values(gains[row], lengths)
            for number, own in enumerate(np.split(gains[row], np.cumsum(lengths)[:-1])):
                assert best[number] == best_segment(own)[0]
                flagged = [withstands(own, t, 5 + drift, moves, limit=edits) >= edits for t in range(50)]
                assert flagged == [found[row, number] > t for t in range(50)]


def test_long_texts_are_taken_in_windows() -> None:
    gains = np.tile([3, -1, 2, -9], WINDOW)
    found = least_values(gains[None], np.array([len(gains)]), np.array([9]), 1, 12)
    assert found[0, 0] == least_values(gains[None, :40], np.array([40]), np.array([9]), 1, 12)[0, 0]
