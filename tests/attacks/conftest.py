"""A small linear model and texts that are attacked."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import adaptdel as ad
from adaptdel.attacks.adaptive import Vocabulary, learn_vocabulary
from adaptdel.models.estimator import TextEstimator

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


def additive() -> ad.AdditiveClassifier:
    rows = texts(200, 20)
    model = ad.AdditiveClassifier(levels=4, iterations=20, progress=False)
    return model.fit([text for text, _ in rows], [label for _, label in rows])


def toy(bound: float, ops: Any = "edit") -> ad.AdditiveClassifier:
    """Words of known weights, which are clipped at the bound: a large bound is reached by no known word."""
    words = np.array(["buy cheap", "lunch noon", "buy noon", "cheap lunch"] * 5)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(words, [1, 0, 1, 0] * 5)
    pipeline[-1].coef_ = np.array([[3.0, 1.0, -1.0, -2.0]])  # buy, cheap, lunch, noon
    pipeline[-1].intercept_ = np.array([0.5])
    return ad.AdditiveClassifier.from_sklearn(pipeline, bound=bound, ops=ops)


def vocabulary_of(model: TextEstimator) -> Vocabulary:
    return learn_vocabulary(model.certifier(), [(tuple(text.split()), label) for text, label in texts(200, 40)])


@pytest.fixture(scope="session")
def deletion() -> ad.SmoothedClassifier:
    return fitted(ad.Deletion(ad.FixedRate(0.7)))
