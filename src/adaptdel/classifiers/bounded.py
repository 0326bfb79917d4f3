"""Classifiers whose score is a sum of bounded token scores, in integers: linear models of bags of tokens, pipelines.

Linear models are trained here, optionally with word vectors as further features.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from math import frexp
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy

from adaptdel.classifiers.base import BaseClassifier, Request, register_classifier
from adaptdel.classifiers.callables import SklearnClassifier
from adaptdel.classifiers.features import (
    CACHE_LOCK,
    LARGEST_WEIGHT,
    ScoreCache,
    VocabularyFeatures,
    clipped,
    ngrams,
    numbered,
    summed,
    sums_of_copies,
    token_to_json,
)
from adaptdel.classifiers.linear import model_digest, read_model, write_model
from adaptdel.classifiers.linear_training import (
    Counts,
    Fitted,
    Progress,
    class_numbers,
    class_weights,
    composition,
    noisy_counts,
    rounded,
    train_margins,
)
from adaptdel.core.checks import FloatArray, IntArray, check_int, check_real
from adaptdel.files import read_tensors
from adaptdel.settings import AdditiveTrainingSettings
from adaptdel.text.units import Tokens, Unit

LENGTH = 0.2  # of all vectors; 0.1 and 0.3 are as good on held-out rows, 1 and 3 are worse: experiments/exact.md
LARGEST_BOUND = 2**40  # of token scores, so that sums of the scores of many tokens fit into 64 bits
COUNTS = ("int32", "int64", "float32", "float64")  # types in which the counts of terms do not overflow
COUNTING = ("CountVectorizer", "HashingVectorizer")
LINEAR_MODELS = (
    "LinearSVC",
    "LogisticRegression",
    "LogisticRegressionCV",
    "MultinomialNB",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
)
ADDITIVE_SETTINGS = {  # of a vectorizer that adds up the terms of the words at white space, and nothing else
    "analyzer": "word",
    "binary": False,
    "input": "content",
    "ngram_range": (1, 1),
    "norm": None,
    "preprocessor": None,
    "token_pattern": r"(?u)\b\w\w+\b",
    "tokenizer": None,
}


class BoundedClassifier(BaseClassifier):
    """The score of each class is an offset plus a sum of bounded token scores. All are integers.

    A subclass defines the scores of tokens before they are bounded. Bounded they are after all features of a token are
    summed up, so that the bound also holds for tokens that were never seen, whatever they are made of.
    """

    classes_: list[Any]
    offsets: IntArray  # what is added to the scores of the tokens, shape (classes,)
    bound: int  # of the token scores, see `clipped`
    reach: int  # the most by which a token can change the margin between two classes
    vocabulary: Sequence[Hashable]  # the tokens that the classifier was made with, as far as they are known
    ngram: int = 1  # neighbouring tokens that have a score together, see `ngrams`: these runs are the tokens here

    def __init__(self, bound: int) -> None:
        self.bound, self.reach = bound, bound if len(self.classes_) == 2 else 2 * bound
        self._cached = ScoreCache(len(self.classes_))
        self._worst: dict[tuple[int, int], Hashable] = {}
        self._reach: dict[tuple[str, int], IntArray] = {}
        self._digest = ""

    @abstractmethod
    def free_scores(self, tokens: Sequence[Hashable]) -> IntArray:
        """The scores of tokens without a bound, shape (tokens, scores)."""

    def token_scores(self, tokens: Sequence[Hashable]) -> IntArray:
        """The scores of tokens, shape (tokens, classes); best for the tokens of many texts at once."""
        return self._cached.lookup(tokens, self._bounded)

    def _bounded(self, tokens: Sequence[Hashable]) -> IntArray:
        scores: IntArray = clipped(self.free_scores(tokens), self.bound)
        return np.pad(scores, ((0, 0), (1, 0))) if scores.shape[1] == 1 else scores  # that of the second class

    def every_token(self, unit: Unit) -> Sequence[Hashable] | None:
        """All tokens that have a score; None if there is no end of them, as of words that have several features."""
        return None

    def reach_over(self, answer: int, unit: Unit) -> IntArray:
        """How much more a token that an attacker can write adds to each class than to the answer, shape (classes,)."""
        if (unit.kind, answer) not in self._reach:
            tokens = self.every_token(unit)
            scores = np.full((1, len(self.classes_)), self.reach) if tokens is None else self._bounded(tokens)
            gains = scores if tokens is None else scores - scores[:, [answer]]
            self._reach[unit.kind, answer] = np.asarray(gains.max(axis=0, initial=0))
        return self._reach[unit.kind, answer]

    def worst_token(self, answer: int, rival: int, unit: Unit) -> Hashable:
        """The known token that adds most to a rival over the answer, among those that can stand anywhere in a text."""
        if (answer, rival) not in self._worst:
            with CACHE_LOCK:
                tokens = [*self.vocabulary, *self._cached.rows]
            scores = self._bounded(tokens)
            falling = np.argsort(scores[:, answer] - scores[:, rival], kind="stable").tolist()
            worst = next((tokens[place] for place in falling if is_token(tokens[place], unit)), None)
            if worst is None:
                return None
            self._worst[answer, rival] = worst
        return self._worst[answer, rival]

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class of every copy: the largest sum over the kept tokens, the lowest class number on a tie."""
        totals = (sums_of_copies(request, self.ngram, self.token_scores) + self.offsets for request in requests)
        return [np.argmax(scores, axis=1) for scores in totals]


@register_classifier("additive")
class BoundedLinearClassifier(BoundedClassifier):
    """A linear model of bags of tokens with weights for several bounds, of which one is used: number ``point``.

    The weights are integers of shape (bounds, columns + 1, scores), with a last column of zeros for the mask; the bias
    has the shape (bounds, scores). The features are the vocabulary: each is a token, or a part of tokens.
    """

    stored_options = ("point",)

    def __init__(
        self,
        features: VocabularyFeatures,
        classes: list[Any],
        weights: npt.NDArray[np.int32],
        bias: npt.NDArray[np.int32],
        bounds: Sequence[int],
        ngram: int = 1,
        point: int = 0,
    ) -> None:
        self.features, self.classes_, self.weights, self.bias = features, classes, weights, bias
        self.bounds, self.ngram, self.point = list(bounds), ngram, check_int("point", point, most=len(bounds) - 1)
        self.vocabulary = features.vocabulary
        used = bias[point].astype(np.int64)
        self.offsets = np.array([0, used[0]]) if len(used) == 1 else 2 * used  # doubled, as `clipped` scores are
        super().__init__(self.bounds[point])

    @classmethod
    def train(
        cls,
        tokens: Sequence[Tokens],
        labels: Sequence[Any],
        settings: AdditiveTrainingSettings,
        *,
        class_weight: str | None = None,
        progress: Progress = lambda done, total: None,
    ) -> BoundedLinearClassifier:
        """Train by the loss of votes: first without a bound, then for falling bounds, see `train_margins`.

        The votes are those of copies that keep a fixed number of tokens. This spreads the evidence over many tokens.
        """
        classes, answers = class_numbers(labels)
        numbers: dict[Hashable, int] = {}
        examples = (ngrams(example, settings.ngram) for example in tokens)
        codes = [numbered(example, numbers, len(example)) for example in examples]
        occurrences = np.bincount(np.concatenate(codes), minlength=len(numbers)).tolist()
        features = VocabularyFeatures.learn(dict(zip(numbers, occurrences, strict=True)), settings.min_count)
        counts = noisy_counts(codes, len(numbers), noise=None, copies=1, seed=0)
        lengths = np.array([len(code) for code in codes])
        kept = settings.kept or max(2, int(np.median(lengths)) // 10)
        composed, vectors = composition(features, numbers), WordVectors(settings.vectors) if settings.vectors else None
        if vectors is not None:
            composed = scipy.sparse.csr_array(scipy.sparse.hstack([composed, vectors.columns(numbers, counts)]))
        trained = train_margins(
            counts,
            composed,
            answers,
            len(classes),
            np.minimum(1.0, kept / np.maximum(lengths, 1))[:, None],
            l2=settings.l2,
            iterations=settings.iterations,
            levels=settings.levels,
            vectors=0 if vectors is None else vectors.size,
            weights=class_weights(class_weight, answers, len(classes))[answers],
            progress=progress,
        )[1:]
        if vectors is not None:
            features, trained = vectors.folded(features, trained)
        tables = [rounded(fitted) for fitted in trained]
        weights, bias = np.stack([table[0] for table in tables]), np.stack([table[1] for table in tables])
        bounds = [
            max(1, round(fitted.bound * 2.0**exponent)) for fitted, (*_, exponent) in zip(trained, tables, strict=True)
        ]
        return cls(features, classes, weights, bias, bounds, settings.ngram)

    def at(self, point: int) -> BoundedLinearClassifier:
        """The same classifier with another of its bounds."""
        parts = (self.features, self.classes_, self.weights, self.bias, self.bounds, self.ngram)
        other = BoundedLinearClassifier(*parts, point)
        other._digest = self._weights_digest()
        return other

    def free_scores(self, tokens: Sequence[Hashable]) -> IntArray:
        """The sums of the weights of the features of each token."""
        return summed(tokens, self.features, self.weights[self.point])

    def every_token(self, unit: Unit) -> Sequence[Hashable] | None:
        """The vocabulary, where every token is a feature; and the only character that is two in lower case."""
        if self.ngram > 1 or unit.kind in ("byte", "chunk"):
            return self.vocabulary
        return [*self.vocabulary, "\u0130"] if unit.kind == "char" else None

    def fingerprint(self) -> str:
        """The SHA-256 of weights, features, classes, bounds and the bound that is used."""
        return hashlib.sha256(f"{self._weights_digest()} {self.point}".encode()).hexdigest()

    def _weights_digest(self) -> str:
        """A hash of everything but the bound that is used."""
        if not self._digest:
            self._digest = model_digest(self._description(), self.weights, self.bias)
        return self._digest

    def _description(self) -> dict[str, Any]:
        described = {"features": "vocabulary", "vocabulary": [token_to_json(each) for each in self.vocabulary]}
        return described | {"ngram": self.ngram, "classes": self.classes_, "bounds": self.bounds}

    def options(self) -> dict[str, Any]:
        """The bound that is used."""
        return {"point": self.point}

    def save(self, folder: Path) -> None:
        """Write ``linear.safetensors`` and ``linear.json``, the weights of all bounds side by side."""
        weights = self.weights.transpose(1, 0, 2).reshape(self.weights.shape[1], -1)
        write_model(folder, self._description(), {"weights": weights, "bias": self.bias.reshape(-1)})

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote; ValueError with the name of the file that is missing or damaged."""
        fields = {"vocabulary": "a list", "bounds": "a list"}
        values, features, tensors = read_model(Path(folder), "vocabulary", fields)
        assert isinstance(features, VocabularyFeatures)
        bounds = [check_int("bounds", bound, least=1, most=LARGEST_BOUND) for bound in values["bounds"]]
        weights = tensors["weights"].reshape(features.size + 1, len(bounds), -1).transpose(1, 0, 2)
        bias = tensors["bias"].reshape(len(bounds), -1)
        model = np.ascontiguousarray(weights), bias, bounds, values["ngram"]
        return cls(features, values["classes"], *model, **options)


class WordVectors:
    """Vectors of words, of equal length: features in training, which are part of the weights of words afterwards.

    A token has the vectors of all its features that are words of the file. Their scores are products of vectors with
    weights that are the same for all words, so words that did not occur in training have scores too.

    Args:
        path: a safetensors file with ``words`` (UTF-8 bytes, one word a line) and ``vectors`` (a row a word).
    """

    def __init__(self, path: str | Path) -> None:
        tensors = read_tensors(Path(path))
        listed, vectors = tensors.get("words"), tensors.get("vectors")
        if listed is None or listed.dtype != np.uint8 or vectors is None or vectors.dtype.kind != "f":
            raise ValueError(f"{path} must hold words as uint8 (UTF-8, one word a line) and vectors as floats")
        words, vectors = listed.tobytes().decode("utf-8", "replace").split("\n"), vectors.astype(np.float64)
        if vectors.ndim != 2 or len(vectors) != len(words) or len(set(words)) != len(words):
            raise ValueError(f"{path} must hold a vector for each of its {len(words)} different words")
        if not np.isfinite(vectors).all():
            raise ValueError(f"{path} must hold finite vectors")
        self.features = VocabularyFeatures(words)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors: FloatArray = LENGTH * vectors / np.where(lengths > 0, lengths, 1.0)
        self.size = vectors.shape[1]  # the number of columns that the vectors add

    def columns(self, numbers: dict[Hashable, int], counts: Counts) -> Counts:
        """The columns of each distinct token, less their mean over the words of the examples, (types + 1, size)."""
        present = composition(self.features, numbers)[:, :-1]  # the words in each token
        occurrences = np.asarray(counts.sum(axis=0)) @ present
        # einsum, since BLAS sums in an order that depends on the number of threads
        mean = np.einsum("w,wd->d", occurrences, self.vectors) / max(1.0, float(occurrences.sum()))
        self.vectors = self.vectors - mean
        return scipy.sparse.csr_array(present @ self.vectors)

    def folded(
        self, features: VocabularyFeatures, trained: Sequence[Fitted]
    ) -> tuple[VocabularyFeatures, list[Fitted]]:
        """Features with all words of the file, and models in which the weight of a word holds its part of the vectors.

        The models were trained with ``features``, the mask and the columns of the vectors.
        """
        known, words = set(features.vocabulary), self.features.vocabulary
        union = VocabularyFeatures([*features.vocabulary, *(word for word in words if word not in known)])
        positions = {word: position for position, word in enumerate(union.vocabulary)}
        rows = [positions[word] for word in words]

        folded = []
        for fitted in trained:
            weights = np.zeros((union.size + 1, fitted.weights.shape[1]))
            weights[: features.size] = fitted.weights[: features.size]
            weights[rows] += np.einsum("wd,ds->ws", self.vectors, fitted.weights[features.size + 1 :])
            folded.append(replace(fitted, weights=weights))
        return union, folded


@register_classifier("additive_pipeline")
class AdditivePipeline(BoundedClassifier):
    """A scikit-learn pipeline of a `CountVectorizer` or `HashingVectorizer` and a linear model, with bounded scores.

    The weights are rounded to integers. A word at white space may hold several terms of the vectorizer.

    Args:
        estimator: the fitted pipeline.
        bound: of the score of a word, in the units of the pipeline's weights.
    """

    stored_options = ("bound",)

    def __init__(self, estimator: Any, bound: float) -> None:
        accepted = "a positive number"
        self.real_bound = check_real("bound", bound, accepted=accepted, least=0.0, most=1e300, open_ends=True)
        estimator = deepcopy(estimator)  # which the caller may fit again
        self._stored = SklearnClassifier(estimator)
        self._vectorizer, weights, bias = additive_parts(estimator)
        self.vocabulary = list(getattr(self._vectorizer, "vocabulary_", ()))  # a `HashingVectorizer` has none
        self.classes_ = np.asarray(estimator.classes_).tolist()
        largest = max(float(np.abs(weights).max(initial=0.0)), float(np.abs(bias).max(initial=0.0)))
        exponent = LARGEST_WEIGHT.bit_length() - 1 - frexp(largest)[1]
        self._weights, offsets = (np.rint(np.ldexp(a, exponent)).astype(np.int64) for a in (weights, bias))
        integer = min(LARGEST_BOUND, round(Fraction(self.real_bound) * Fraction(2) ** exponent))
        if integer < 1:
            raise ValueError(f"bound must be at least {2.0**-exponent:.3g} for these weights, got {bound}")
        self.offsets = np.array([0, int(offsets[0])]) if len(offsets) == 1 else 2 * offsets
        super().__init__(integer)

    def free_scores(self, tokens: Sequence[Hashable]) -> IntArray:
        """The weights of the terms of each word."""
        return np.asarray(self._vectorizer.transform(tokens).astype(np.int64) @ self._weights)

    def fingerprint(self) -> str:
        """The SHA-256 of the pipeline and the bound."""
        if not self._digest:
            self._digest = hashlib.sha256(f"{self._stored.fingerprint()} {self.real_bound!r}".encode()).hexdigest()
        return self._digest

    def options(self) -> dict[str, Any]:
        """The bound."""
        return {"bound": self.real_bound}

    def save(self, folder: Path) -> None:
        """Write the pipeline as `SklearnClassifier` does."""
        self._stored.save(folder)

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote."""
        return cls(SklearnClassifier.load(folder).estimator, **options)


def is_token(value: Any, unit: Unit) -> bool:
    """Whether a value is a token that can stand anywhere in a text."""
    try:
        return unit.split(unit.join((value, value))) == (value, value)
    except (ValueError, TypeError):
        return False


def additive_parts(estimator: Any) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The vectorizer of an additive pipeline, the weights of its terms, shape (terms, scores), and the bias.

    Raises a ValueError that names the part of the pipeline that is not additive.
    """
    steps = [step for _, step in getattr(estimator, "steps", ())]
    names = [type(step).__name__ for step in steps]
    if len(steps) != 2 or names[0] not in COUNTING or names[1] not in LINEAR_MODELS:
        shown = ", ".join(names) or type(estimator).__name__
        raise ValueError(
            f"pipeline must be a CountVectorizer or HashingVectorizer and a linear model, got {shown}: a sum of word "
            "scores is certified, and scaling by the whole text (as TF-IDF with a norm does) is not additive"
        )
    vectorizer, model = steps
    settings = vectorizer.get_params()
    for name, needed in ADDITIVE_SETTINGS.items():
        if name in settings and settings[name] != needed:
            raise ValueError(
                f"{names[0]} must have {name}={needed!r} to be a sum over words at white space, got {settings[name]!r}"
            )
    if np.dtype(settings["dtype"]) not in COUNTS:
        raise ValueError(f"{names[0]} must have dtype=np.int64, since counts overflow in {np.dtype(settings['dtype'])}")
    if not hasattr(model, "classes_"):
        raise ValueError("pipeline must be fitted")
    if names[1] == "MultinomialNB":
        weights, bias = model.feature_log_prob_.T, model.class_log_prior_
    else:
        coefficients = np.atleast_2d(model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_)
        weights, bias = coefficients.T, np.broadcast_to(model.intercept_, (len(coefficients),))
    if len(bias) == 2:  # of two scores, only the difference matters
        weights, bias = weights[:, [1]] - weights[:, [0]], bias[[1]] - bias[[0]]
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise ValueError(f"pipeline must have finite weights, but {names[1]} has infinite ones or NaN")
    return vectorizer, weights.astype(np.float64), bias.astype(np.float64)
