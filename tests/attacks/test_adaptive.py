from __future__ import annotations

import random
from copy import copy
from dataclasses import replace
from itertools import product
from math import inf

import pytest

import adaptdel as ad
from adaptdel.attacks.adaptive import AdaptiveAttack, AttackResult, edit_distance, learn_vocabulary
from adaptdel.attacks.target import Target
from adaptdel.core.threat import EVERY_SET
from adaptdel.settings import AttackSettings
from adaptdel.text.units import Tokens

from ..exact import neighbours
from .conftest import HAM, SPAM, fitted, texts, vocabulary_of

QUICK = AttackSettings(search_votes=300, verify_votes=4000)
LONG = [tuple(text.split()) for text, _ in texts(6, 40, seed=5)]


def attack(model: ad.SmoothedClassifier, settings: AttackSettings = QUICK) -> AdaptiveAttack:
    return AdaptiveAttack(Target(model.certifier(), settings), vocabulary_of(model))


def run(model: ad.SmoothedClassifier, tokens: Tokens, settings: AttackSettings = QUICK) -> tuple[AttackResult, int]:
    """The result of the attack on the model's own answer, and the certified radius."""
    (certificate,) = model.certify([" ".join(map(str, tokens))])
    return attack(model, settings)(tokens, certificate.answer), certificate.radius


@pytest.mark.parametrize(
    "noise",
    [ad.Deletion(ad.FixedRate(0.7)), ad.Deletion(ad.LengthRate(0.6, 12)), ad.Masking(0.7), ad.NoNoise()],
    ids=repr,
)
def test_the_certified_radius_is_below_the_attacked_distance(noise: ad.Noise) -> None:
    model = fitted(noise)
    successes = 0
    for tokens in LONG:
        result, radius = run(model, tokens)
        if result.tokens is not None:
            successes += 1
            assert result.distance == edit_distance(tokens, result.tokens, model.plan.ops)
            assert result.distance > radius
            fresh = copy(model).set_params(sampling="fixed", n_select=4000, seed=99)
            answers = fresh.predict([" ".join(map(str, text)) for text in (tokens, result.tokens)])
            assert answers[0] != answers[1]
    assert successes == len(LONG)


def test_certified_and_true_radius_and_attacked_distance_are_in_order() -> None:
    """On short texts the closest text with another answer, over a few words, is known exactly."""
    rng = random.Random(1)
    model = fitted(ad.Deletion(ad.FixedRate(0.5)), length=6)
    target = Target(model.certifier(), QUICK)
    words = [SPAM[0], HAM[0]]
    attacker = AdaptiveAttack(target, learn_vocabulary(target.certifier, [((word,), None) for word in words]))
    compared = 0
    for _ in range(8):
        tokens = tuple(rng.choice(words) for _ in range(4))
        (certificate,) = model.certify([" ".join(tokens)])
        closest = [distance for text, distance in neighbours(tokens, words, target.plan.ops, 3)
                   if target.plan.predicted(target.exact_shares(text)) != certificate.answer]  # fmt: skip
        result = attacker(tokens, certificate.answer)
        assert not closest or certificate.radius < min(closest)
        if closest and result.distance is not None:
            compared += 1
            assert min(closest) <= result.distance <= min(closest) + 1
    assert compared >= 4


@pytest.mark.parametrize("ops", ["del", "ins", "sub", "del,ins"])
def test_only_allowed_edits_are_made(deletion: ad.SmoothedClassifier, ops: str) -> None:
    model = ad.SmoothedClassifier(deletion.base_, deletion.noise_, ops=ops, progress=False)
    result, _ = run(model, LONG[0])
    if ops == "del" and result.tokens is None:  # words that speak for the other class are not there
        assert result.outcome == "failure"
        return
    assert result.tokens is not None
    assert result.distance == edit_distance(LONG[0], result.tokens, ops) < 40


def test_limits_are_kept(deletion: ad.SmoothedClassifier) -> None:
    free, _ = run(deletion, LONG[0])
    assert free.distance is not None
    assert free.distance > 1
    limited, _ = run(deletion, LONG[0], replace(QUICK, budget=free.distance))
    assert limited.distance is not None
    assert limited.distance <= free.distance
    assert run(deletion, LONG[0], replace(QUICK, budget=1))[0].outcome == "failure"
    few, _ = run(deletion, LONG[0], replace(QUICK, queries=20))
    assert few.outcome == "failure"
    assert few.queries < 100
    assert run(deletion, LONG[0], replace(QUICK, seconds=1e-9))[0].outcome == "timeout"


def test_an_empty_text_and_three_classes() -> None:
    rows = [("red rose", "red"), ("blue sky", "blue"), ("green tree", "green")] * 20
    model = ad.SmoothedClassifier(noise=ad.Deletion(ad.FixedRate(0.5)), progress=False)
    model.fit([text for text, _ in rows], [label for _, label in rows])
    target = Target(model.certifier(), QUICK)
    attacker = AdaptiveAttack(
        target, learn_vocabulary(target.certifier, [(tuple(text.split()), label) for text, label in rows])
    )
    for tokens in [(), ("red", "rose"), ("blue",) * 20]:
        (certificate,) = model.certify([" ".join(tokens)])
        result = attacker(tokens, certificate.answer)
        assert result.tokens is not None, tokens
        assert result.distance is not None
        assert result.distance > certificate.radius


# Edit distances


@pytest.mark.parametrize("ops", EVERY_SET, ids=",".join)
def test_distances_are_those_of_a_search(ops: tuple[str, ...]) -> None:
    words = [word for size in range(4) for word in product("ab", repeat=size)]
    rng = random.Random(0)
    for first in rng.sample(words, 8):
        searched = dict(neighbours(first, "ab", ops, 4))
        for second in rng.sample(words, 8):
            distance = edit_distance(first, second, ops)
            assert (distance if distance <= 4 else inf) == searched.get(second, inf), (first, second)
    text = [str(number % 977) for number in range(20_000)]  # long texts are quick
    assert edit_distance(text, [*text[:50], *text[60:]], "del") == 10
