"""Base classifiers in folders: built-in kinds, and a noise and a classifier that are defined outside the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.base import CLASSIFIERS, BaseClassifier, Request, register_classifier
from adaptdel.core.checks import FloatArray, IntArray

TEXTS = ["good film and good cast", "bad film and bad plot", "good good plot", "bad bad cast film", "a film"] * 4
LABELS = ["pos", "neg", "pos", "neg", "neg"] * 4
NOISE = ad.Deletion(ad.FixedRate(0.5))


@ad.register_rate("logarithmic")
@dataclass(frozen=True)
class LogarithmicRate(ad.Rate):
    """Keeps a number of words that grows with the logarithm of the length."""

    scale: float

    def real(self, lengths: FloatArray) -> FloatArray:
        return np.asarray(1 - np.minimum(self.scale * np.log2(lengths + 1) / np.maximum(lengths, 1), 1))


@register_classifier("counted_words")
class WordCounter(BaseClassifier):
    """Answers "pos" iff a copy holds at least ``least`` of the words that it has learned."""

    def __init__(self, words: Sequence[str] = (), least: int = 1) -> None:
        self.words, self.least = list(words), least
        self.classes_ = ["neg", "pos"]

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        return [
            (request.kept[:, [token in self.words for token in request.prepared.tokens]].sum(axis=1) >= self.least)
            .astype(np.int64)
            for request in requests
        ]  # fmt: skip

    def unfitted(self) -> WordCounter:
        return WordCounter(least=self.least)

    def fit(self, tokens: Any, labels: Any, *, noise: Any, unit: Any, copies: int, seed: int) -> WordCounter:
        seen = {
            label: {token for row, other in zip(tokens, labels, strict=True) if other == label for token in row}
            for label in ("pos", "neg")
        }
        self.words = sorted(seen["pos"] - seen["neg"])
        return self

    def fingerprint(self) -> str:
        return json.dumps([self.words, self.least])

    def options(self) -> dict[str, Any]:
        return {"least": self.least}

    stored_options = ("least",)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "words.json").write_text(json.dumps(self.words), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        return cls(json.loads((folder / "words.json").read_text(encoding="utf-8")), **options)


def model(**settings: Any) -> ad.SmoothedClassifier:
    return ad.SmoothedClassifier(WordCounter(), NOISE, n_select=50, n_estimate=200, **settings).fit(TEXTS, LABELS)


class TestOwnClass:
    def test_it_is_fitted_saved_loaded_and_certified(self, tmp_path: Path) -> None:
        fitted = model()
        assert fitted.base_.words == ["good"]  # type: ignore[attr-defined]
        fitted.save(tmp_path / "model")
        loaded = ad.SmoothedClassifier.load(tmp_path / "model")
        assert loaded.certify(TEXTS[:3]) == fitted.certify(TEXTS[:3])
        assert fitted.certify(TEXTS[:1])[0].label == "pos"

    def test_a_run_in_workers_loads_it_with_a_rate_from_outside_the_package(self, tmp_path: Path) -> None:
        noise = ad.Deletion(LogarithmicRate(0.8))
        smoothed = ad.SmoothedClassifier(WordCounter(), noise, n_select=50, n_estimate=200).fit(TEXTS, LABELS)
        smoothed.save(tmp_path / "model")
        assert ad.SmoothedClassifier.load(tmp_path / "model").noise_ == noise
        runs = [ad.evaluate(smoothed, TEXTS, labels=LABELS, out=tmp_path / str(n), workers=n) for n in (1, 2)]
        assert runs[0].table.equals(runs[1].table)

    def test_changed_files_are_refused(self, tmp_path: Path) -> None:
        model().save(tmp_path / "model")
        (tmp_path / "model" / "base" / "words.json").write_text('["bad"]', encoding="utf-8")
        with pytest.raises(ValueError, match=r"base: .* its fingerprint differs"):
            ad.SmoothedClassifier.load(tmp_path / "model")

    @pytest.mark.parametrize(
        ("old", "new", "word"),
        [('"least": 1', '"most": 1', "least"), ("counted_words", "os", "'os' is not registered")],
    )
    def test_changed_settings_are_refused(self, tmp_path: Path, old: str, new: str, word: str) -> None:
        model().save(tmp_path / "model")
        config = tmp_path / "model" / "adaptdel.json"
        config.write_text(config.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"adaptdel\.json: .*{word}"):
            ad.SmoothedClassifier.load(tmp_path / "model")

    def test_names(self) -> None:
        assert CLASSIFIERS.get("counted_words") is WordCounter
        for kind in ("linear", "counted_words"):
            with pytest.raises(ValueError, match=f"must not be taken, got '{kind}'"):
                register_classifier(kind)(type("Other", (WordCounter,), {}))
        with pytest.raises(ValueError, match=r"the name of a classifier must be such as 'my_classifier', got '\.\./x'"):
            register_classifier("../x")
        with pytest.raises(ValueError, match="Incomplete must define fingerprint to be registered"):
            register_classifier("incomplete")(type("Incomplete", (BaseClassifier,), {"votes": WordCounter.votes}))


def pipelines() -> dict[str, Any]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    return {
        "bayes": make_pipeline(CountVectorizer(ngram_range=(1, 2)), MultinomialNB()),
        "forest": make_pipeline(HashingVectorizer(n_features=64), RandomForestClassifier(5, random_state=0)),
    }


class TestSklearn:
    def test_untrusted_types_are_neither_saved_nor_loaded(self, tmp_path: Path) -> None:
        skops = pytest.importorskip("skops.io")
        forest = ad.SmoothedClassifier(pipelines()["forest"], NOISE, copies=2).fit(TEXTS, LABELS)
        with pytest.raises(ValueError, match="Tree, which skops does not load safely"):
            forest.save(tmp_path / "forest")
        smoothed = ad.SmoothedClassifier(pipelines()["bayes"], NOISE, copies=2).fit(TEXTS, LABELS)
        smoothed.save(tmp_path / "model")
        assert not any(path.suffix in (".pkl", ".pickle", ".joblib") for path in (tmp_path / "model").rglob("*"))
        smoothed.base_.estimator.steps[0][1].tokenizer = own_tokenizer  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="own_tokenizer, which skops does not load safely"):
            smoothed.save(tmp_path / "other")
        assert not (tmp_path / "other").exists()
        file = tmp_path / "model" / "base" / "estimator.skops"
        file.write_bytes(skops.dumps(smoothed.base_.estimator))  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=r"estimator\.skops: holds .*own_tokenizer, which is not trusted"):
            ad.SmoothedClassifier.load(tmp_path / "model")
        file.write_bytes(b"PK\x03\x04 damaged")
        with pytest.raises(ValueError, match="base: the model cannot be read"):
            ad.SmoothedClassifier.load(tmp_path / "model")


def own_tokenizer(text: str) -> list[str]:
    return text.split()
