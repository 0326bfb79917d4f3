"""Smoothing any classifier: the same votes whatever the batching, right certificates, scikit-learn's conventions."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Deletion, FixedRate, LengthRate, Masking, certified_radius
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.verify import verify
from adaptdel.classifiers import BaseClassifierError, CallableClassifier, LinearClassifier
from adaptdel.classifiers.base import BaseClassifier, DistinctClassifier, Request
from adaptdel.core.noise import Noise
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.units import Bytes, Characters, Chunks, Custom, Labelled, Unit, Words

ADAPTDEL = Deletion(LengthRate(0.7, 6))
NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))
WORDS = ["good", "bad", "fine", "awful", "the", "a", "film", "plot", "spam", "offer"]


def by_size(copies: list[str]) -> list[str]:
    return ["b" if len(copy.split()) in (1, 3) else "a" for copy in copies]


def texts(count: int, seed: int = 0, longest: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(longest))) for _ in range(count)]


def by_words(batch: list[str]) -> list[str]:
    """Labels by counting."""
    return [
        "pos" if t.split().count("good") + t.split().count("fine") >= t.split().count("bad") else "neg" for t in batch
    ]


def by_bytes(batch: list[bytes]) -> list[int]:
    return [int(sum(data) % 7 < 3) for data in batch]


# One table: base classifiers with every unit.
def fitted_linear(unit: Unit, inputs: list[Any]) -> BaseClassifier:
    tokens = [unit.split(one) for one in inputs]
    return LinearClassifier(bits=10).fit(tokens, [i % 2 for i in range(len(tokens))], noise=ADAPTDEL, copies=2)


def sklearn_pipeline(unit: Unit, inputs: list[Any], token_pattern: str = r"\S+") -> Any:
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(token_pattern=token_pattern), LogisticRegression())
    return model.fit([unit.join(unit.split(one)) or "empty" for one in inputs], [i % 2 for i in range(len(inputs))])


def a_callable(unit: Unit, inputs: list[Any]) -> Any:
    if isinstance(unit.join(()), str):
        return CallableClassifier(by_words, ["neg", "pos"])
    return CallableClassifier(by_bytes, [0, 1])


def scores(unit: Unit, inputs: list[Any]) -> Any:
    labels = a_callable(unit, inputs).function
    return CallableClassifier(
        lambda batch: np.array([[0.3, 0.7] if v in ("pos", 1) else [0.6, 0.4] for v in labels(batch)]),
        [0, 1],
    )


def encode(inputs: list[str]) -> list[Any]:
    return [text.encode() for text in inputs]


def labelled(inputs: list[str]) -> list[Any]:
    return [(text.encode(), [i // 3 for i in range(len(text.encode()))]) for text in inputs]


UNITS: list[tuple[Unit, Callable[[list[str]], list[Any]]]] = [
    (Words(), list),
    (Characters(), lambda inputs: [text[:40] for text in inputs]),
    (Bytes(), encode),
    (Chunks(4), encode),
    (Labelled(), labelled),
    (Custom(str.split, " ".join), list),
]
MAKERS = [fitted_linear, a_callable, scores]  # the others: tests/classifiers/test_every_classifier.py
TABLE = [
    pytest.param(unit, convert, make, id=f"{make.__name__}-{unit.kind}") for unit, convert in UNITS for make in MAKERS
]


@pytest.mark.parametrize(("unit", "convert", "make"), TABLE)
def test_every_classifier_and_unit(unit: Unit, convert: Callable[[list[str]], list[Any]], make: Any) -> None:
    inputs = convert(texts(12))
    model = SmoothedClassifier(make(unit, inputs), ADAPTDEL, unit=unit, n_select=64, n_estimate=200, seed=3)
    certificates = model.certify(inputs)
    assert [c.length for c in certificates] == [len(unit.split(one)) for one in inputs]
    assert model.predict(inputs).tolist() == [c.label for c in certificates]
    # in another order, one by one, beside others: the same to the last vote
    backwards = model.certify(inputs[::-1])[::-1]
    alone = [model.certify([one])[0] for one in inputs]
    for c, b, a in zip(certificates, backwards, alone, strict=True):
        assert c.to_dict() == b.to_dict() == a.to_dict()
        assert Certificate.from_json(c.to_json()).to_dict() == c.to_dict()
        assert c.radius == c.rederive(ops=c.ops).radius
    shares = model.predict_proba(inputs)
    assert shares.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("size", [1, 7, 256])
@pytest.mark.parametrize("noise", [ADAPTDEL, Masking(0.8)], ids=repr)
def test_votes_do_not_depend_on_the_batch_size(size: int, noise: Noise) -> None:
    inputs = texts(20, seed=1)
    reference = SmoothedClassifier(CallableClassifier(by_words, ["neg", "pos"]), noise, n_estimate=500).certify(inputs)
    batched = SmoothedClassifier(CallableClassifier(by_words, ["neg", "pos"], batch_size=size), noise, n_estimate=500)
    shuffled = random.Random(5).sample(range(20), 20)
    certificates = batched.certify([inputs[i] for i in shuffled])
    for place, certificate in zip(shuffled, certificates, strict=True):
        assert certificate.to_dict() == reference[place].to_dict()


@pytest.mark.parametrize("noise", [ADAPTDEL, Deletion(FixedRate(0.9)), Masking(0.6)], ids=repr)
def test_short_inputs_are_enumerated_exactly(noise: Noise) -> None:
    text = "good bad good awful fine bad"
    model = SmoothedClassifier(by_words, noise, classes=["neg", "pos"])
    certificate = model.certify([text])[0]
    assert certificate.alpha == 0
    words = text.split()
    share = Fraction(0)
    for mask in range(64):
        kept = [w for i, w in enumerate(words) if mask >> i & 1]
        if isinstance(noise, Masking):
            weight = Fraction(int(len(kept) == 6 - noise.masks(6)), 15) if noise.masks(6) == 4 else Fraction(0)
            copy = " ".join(w if mask >> i & 1 else "<mask>" for i, w in enumerate(words))
        else:
            psi = Fraction(noise.rate(6))  # type: ignore[attr-defined]
            weight = psi ** (6 - len(kept)) * (1 - psi) ** len(kept)
            copy = " ".join(kept)
        share += weight * (by_words([copy])[0] == certificate.label)
    bounds = certificate.derived()["p1"], certificate.derived()["p2"]
    assert bounds[0] <= share
    assert bounds[0] == pytest.approx(float(share), abs=1e-15)
    ops = certificate.ops
    assert certificate.radius == certified_radius(*bounds, length=6, noise=noise, ops=ops)
    # and sampling agrees with it
    sampled = SmoothedClassifier(by_words, noise, classes=["neg", "pos"], sampling="fixed").certify([text])[0]
    assert sampled.alpha == 0.05
    assert stats.binomtest(round(4000 * (sampled.score or 0)), 4000, float(share)).pvalue > 1e-6


def test_unanimous_inputs_stop_early() -> None:
    model = SmoothedClassifier(lambda batch: ["spam"] * len(batch), Deletion(FixedRate(0.9)), classes=["ham", "spam"])
    adaptive = model.certify([" ".join(map(str, range(200)))])[0]
    fixed = model.set_params(sampling="fixed").certify([" ".join(map(str, range(200)))])[0]
    assert adaptive.radius == fixed.radius == 6
    assert fixed.calls == 5000
    assert adaptive.calls < 250


def test_distinct_copies_are_asked_once() -> None:
    asked: list[str] = []

    def spy(batch: list[str]) -> list[int]:
        asked.extend(batch)
        return [len(text) % 2 for text in batch]

    base = CallableClassifier(spy, [0, 1], recheck=0)
    SmoothedClassifier(base, Deletion(FixedRate(0.95))).certify(["a b c d e f g h i j k l m n o p"])
    assert len(asked) == len(set(asked))


def test_thresholds() -> None:
    inputs = [" ".join(random.Random(i).choices(WORDS, k=40)) for i in range(8)]
    for threshold in (0.2, 0.8):
        model = SmoothedClassifier(by_words, ADAPTDEL, classes=["neg", "pos"], threshold=threshold, n_estimate=1000)
        for c in model.certify(inputs):
            assert c.score is not None
            share = c.score if c.label == "pos" else 1 - c.score
            assert c.abstained or (c.label == "pos") == (share > threshold)


def first_word(batch: list[str]) -> list[str]:
    return [(text.split() or [""])[0] for text in batch]


class TestConventions:
    def fitted(self) -> SmoothedClassifier:
        inputs = texts(200, seed=9)
        return SmoothedClassifier(n_select=64, n_estimate=200, copies=4).fit(inputs, by_words(inputs))

    def test_fit_learns(self) -> None:
        model = self.fitted()
        inputs = texts(60, seed=10)
        assert model.score(inputs, by_words(inputs)) > 0.6
        assert isinstance(model.noise_, Deletion)
        assert isinstance(model.noise_.rate, LengthRate)
        assert model.classes_.tolist() == ["neg", "pos"]

    def test_scikit_learn(self) -> None:
        pytest.importorskip("sklearn")
        from sklearn.base import clone
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer

        inputs = texts(120, seed=12)
        labels = by_words(inputs)
        model = SmoothedClassifier(n_select=32, n_estimate=64, copies=2)
        copy = clone(model)
        assert copy.get_params() == model.get_params()
        search = GridSearchCV(model, {"copies": [1, 2]}, cv=2).fit(inputs, labels)
        assert search.best_score_ > 0.5
        piped = make_pipeline(FunctionTransformer(lambda X: [x.lower() for x in X]), clone(model)).fit(inputs, labels)
        assert len(piped.predict(inputs[:3])) == 3

    def test_an_estimator_is_fitted_under_noise(self) -> None:
        pytest.importorskip("sklearn")
        inputs = texts(100, seed=13)
        estimator = sklearn_pipeline(Words(), inputs)
        model = SmoothedClassifier(estimator, ADAPTDEL, n_select=32, n_estimate=64).fit(inputs, by_words(inputs))
        assert model.base_.estimator is not estimator  # type: ignore[attr-defined]
        assert model.score(inputs, by_words(inputs)) > 0.6
        with pytest.raises(ValueError, match="a function cannot be stored safely"):
            SmoothedClassifier(by_words, ADAPTDEL, classes=[0, 1]).save("never")


class Broken(DistinctClassifier):
    """Fails on copies that hold a word."""

    def __init__(self) -> None:
        self.classes_ = [0, 1]

    def keys(self, request: Request) -> list[Any]:
        return [" ".join(np.array(request.prepared.tokens, dtype=object)[row]) for row in request.kept]

    def answer(self, copies: Any) -> Any:
        if any("poison" in key for _, key in copies):
            raise ArithmeticError("overflow in layer 3")
        return np.zeros(len(copies), dtype=np.int64)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (Broken(), r"failed on input 1 \('poison"),
        (lambda batch: [1] * (len(batch) + 1), "must return .*input 0"),
        (lambda batch: np.full((len(batch), 2), np.nan), "NaN on input 0"),
        (lambda batch: [float("nan")] * len(batch), "NaN on input 0"),
        (lambda batch: 1, "must return .*input 0"),
        (lambda batch: ["x"] * len(batch), "unknown label 'x' on input 0"),
        (lambda batch: np.zeros((len(batch), 3)), "must return labels or .*input 0"),
    ],
)
def test_a_base_classifier_that_fails_is_reported_with_the_input(base: Any, words: str) -> None:
    inputs = ["good " * 30, "poison " * 30, "bad " * 30]
    with pytest.raises(BaseClassifierError, match=words):
        SmoothedClassifier(base, ADAPTDEL, classes=[0, 1]).certify(inputs)


def words(**settings: Any) -> SmoothedClassifier:
    return SmoothedClassifier(by_words, ADAPTDEL, classes=["neg", "pos"], **settings)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: SmoothedClassifier(3, ADAPTDEL).certify(["a"]), "base"),
        (lambda: SmoothedClassifier(None, ADAPTDEL).certify(["a"]), "base"),
        (lambda: words().fit(["a"], [1]), "base"),
        (lambda: words().set_params(noise=None).certify(["a"]), "noise"),
        (lambda: words().certify("a text"), "X"),
        (lambda: words().certify({"text": "a"}), "X"),  # type: ignore[arg-type]
        (lambda: SmoothedClassifier().fit([], []), "X"),
        (lambda: SmoothedClassifier(copies=1).fit(["a"], []), "y"),
        (lambda: words().certify(["a", 3]), "input 1"),
        (lambda: words(alpha=2).certify(["a"]), "alpha"),
        (lambda: words(sampling="lazy").certify(["a"]), "sampling"),
        (lambda: words(n_estimate=0).certify(["a"]), "n_estimate"),
        (lambda: words(unit="line").certify(["a"]), "unit"),
        (lambda: words(ops="swap").certify(["a"]), "ops"),
        (lambda: words(progress=3).certify(["a"]), "progress"),
        (lambda: SmoothedClassifier(by_words, ADAPTDEL, classes=["a"]).certify(["a"]), "classes"),
        (lambda: SmoothedClassifier(len, ADAPTDEL).certify(["a"]), "classes"),
    ],
)
def test_an_error_is_one_sentence_that_begins_with_the_argument(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}\b.*$") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    SmoothedClassifier(
        by_words, ADAPTDEL, n_estimate=100, progress=lambda d, t: seen.append((d, t)), classes=["neg", "pos"]
    ).certify(texts(5))
    assert seen[-1] == (5, 5)
    assert [d for d, _ in seen] == [1, 2, 3, 4, 5]


def test_a_million_bytes_need_little_memory() -> None:
    import tracemalloc

    model = SmoothedClassifier(
        by_bytes, Deletion(FixedRate(0.999)), unit="byte", classes=[0, 1], n_select=8, n_estimate=8
    )
    tracemalloc.start()
    certificate = model.certify([bytes(10**6)])[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert certificate.length == 10**6
    assert peak < 500e6


@pytest.mark.parametrize(("rate", "answer"), [(0.0, "long"), (1.0, "none")])
def test_certain_noise_asks_once(rate: float, answer: str) -> None:
    """Without chance there is one copy, at any length: nothing is sampled, and nothing but 0 or infinity certified."""
    calls = []

    def count(copies: list[str]) -> list[str]:
        calls.extend(copies)
        return ["long" if len(copy) > 9 else "none" for copy in copies]

    model = SmoothedClassifier(CallableClassifier(count, ["none", "long"], recheck=0), Deletion(FixedRate(rate)))
    text = "some words " * 2000
    found = model.certify([text])[0]
    assert len(calls) == 1
    assert (found.label, found.abstained) == (answer, False)
    assert found.radius == 0 if rate == 0 else found.radius > 1000
    assert verify(found.to_dict()) == []


def test_short_texts_keep_a_word() -> None:
    assert LengthRate.from_lengths([4, 5], 0.9) == LengthRate(0.9, 1)
    model = SmoothedClassifier().fit(["cheap pills", "lunch today"] * 20, ["spam", "ham"] * 20)
    assert model.certify(["cheap pills now please"])[0].radius < 100
