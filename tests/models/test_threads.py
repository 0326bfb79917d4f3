"""Several threads certify with one model: the certificates are those of a single thread."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adaptdel import AdditiveClassifier, Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers import CallableClassifier, LinearClassifier
from adaptdel.text.units import Words
from tests.models.test_smoothed import by_words, sklearn_pipeline, texts

NOISE = Deletion(LengthRate(0.7, 6))


def linear() -> Any:
    inputs = texts(60, seed=1)
    return LinearClassifier(bits=10).fit(
        [tuple(text.split()) for text in inputs], by_words(inputs), noise=NOISE, copies=2
    )


def test_threads_share_an_additive_model(tmp_path: Path) -> None:
    """They look up new tokens at the same time; a tiny switch interval makes them meet."""
    inputs = [" ".join(f"{word}-{number}-{k}" for k in range(4) for word in ("a", "b")) for number in range(200)]
    AdditiveClassifier(iterations=5, levels=2, progress=False).fit(texts(60, seed=1), by_words(texts(60, seed=1))).save(
        tmp_path
    )
    expected = [certificate.to_dict() for certificate in AdditiveClassifier.load(tmp_path).certify(inputs)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            model = AdditiveClassifier.load(tmp_path)
            with ThreadPoolExecutor(8) as threads:
                mine = list(threads.map(lambda text, model=model: model.certify([text])[0].to_dict(), inputs))
            assert mine == expected
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "make",
    [linear, lambda: CallableClassifier(by_words, ["neg", "pos"]), lambda: sklearn_pipeline(Words(), texts(60))],
    ids=["linear", "function", "scikit-learn"],
)
def test_threads_share_a_model(make: Any) -> None:
    model = SmoothedClassifier(make(), NOISE, n_select=32, n_estimate=100, progress=False)
    inputs = [text for text in texts(24, seed=3) if text]
    expected = [certificate.to_dict() for certificate in model.certify(inputs)]
    predictions = model.predict(inputs).tolist()
    model = SmoothedClassifier(make(), NOISE, n_select=32, n_estimate=100, progress=False)  # nothing checked or cached

    def work(seed: int) -> None:
        order = random.Random(seed).sample(range(len(inputs)), len(inputs))
        mine = model.certify([inputs[number] for number in order])
        assert [certificate.to_dict() for certificate in mine] == [expected[number] for number in order]
        assert model.predict([inputs[number] for number in order]).tolist() == [predictions[number] for number in order]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(16)))
