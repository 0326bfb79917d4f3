"""Functions and objects with ``predict`` as base classifiers: what they may return, and what is cached."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any

import numpy as np
import pytest

from adaptdel import Deletion, FixedRate, SmoothedClassifier
from adaptdel.classifiers.base import BaseClassifierError, Request
from adaptdel.text.units import Words

NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))


class Colour(Enum):
    RED = 1
    BLUE = 2


def test_labels_of_any_kind() -> None:
    colours = SmoothedClassifier(
        lambda copies: [Colour.RED if len(c) % 2 else Colour.BLUE for c in copies], NOISE, classes=list(Colour)
    )
    assert isinstance(colours.certify([TEXT])[0].label, Colour)
    mixed = SmoothedClassifier(lambda copies: [1 if len(c) % 2 else "a" for c in copies], NOISE, classes=[1, "a"])
    assert {type(c) for c in mixed.certify([TEXT])[0].classes} == {int, str}
    with pytest.raises(BaseClassifierError, match=r"^the base classifier returned an unknown label 0\.3\d* on input 0"):
        SmoothedClassifier(lambda copies: [0.3] * len(copies), NOISE, classes=[0, 1]).certify([TEXT])


def test_classes_are_used_for_anything_with_predict() -> None:
    class Keras:
        def predict(self, copies: list[str]) -> Any:
            return np.array([[0.2, 0.8]] * len(copies))

    assert SmoothedClassifier(Keras(), NOISE, classes=["neg", "pos"]).certify([TEXT])[0].label == "pos"


def test_a_short_copy_that_equals_the_hash_of_a_long_one_gets_its_own_answer() -> None:
    long = b"A" * 300
    short = hashlib.blake2b(long, digest_size=32).digest()
    good = (b"", long, long + short)
    model = SmoothedClassifier(
        lambda copies: ["good" if copy in good else "bad" for copy in copies],
        Deletion(FixedRate(0.5)),
        classes=["bad", "good"],
        unit="chunk:300",
    )
    certificate = model.certify([long + short])[0]
    assert certificate.exact is not None
    assert (certificate.bounds[0], certificate.radius) == (0.75, 0)


def test_answers_to_long_copies_are_cached_by_a_hash() -> None:
    model = SmoothedClassifier(lambda copies: [len(c) % 2 for c in copies], Deletion(FixedRate(0.5)), classes=[0, 1])
    base = model.base_classifier()
    prepared = base.prepare("x", tuple(f"{i}" for i in range(4000)), Words())
    base.votes([Request(prepared, NOISE.sample(4000, 40, np.random.default_rng(0)))])
    assert all(isinstance(key, tuple) for key in prepared.answers)
