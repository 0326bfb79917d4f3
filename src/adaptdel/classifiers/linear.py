"""The built-in base classifier: a linear model of bags of tokens, whose votes are an exact matrix product."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.classifiers.base import BaseClassifier, Prepared, Request, register_classifier
from adaptdel.classifiers.features import (
    LARGEST_WEIGHT,
    Features,
    HashedFeatures,
    Rows,
    VocabularyFeatures,
    best,
    numbered,
    scores,
    token_from_json,
    token_rows,
    total,
)
from adaptdel.classifiers.linear_training import (
    Progress,
    balanced_weights,
    check_examples,
    class_numbers,
    composition,
    learned_vocabulary,
    noisy_counts,
    rounded,
    train,
)
from adaptdel.classifiers.vote_margin import keep_rates, train_margins
from adaptdel.core.checks import FloatArray, IntArray, check_choice, check_int, check_list, check_real
from adaptdel.core.noise import Noise
from adaptdel.files import parse_object, replacing
from adaptdel.settings import CLASS_WEIGHTS, LINEAR, LINEAR_LOSSES, TRAINING
from adaptdel.text.units import Tokens, Unit

WEIGHTS, DESCRIPTION = "linear.safetensors", "linear.json"
VERSION = 1
LARGEST_BOUND = 2**40  # of token scores, so that sums of the scores of many tokens fit into 64 bits
LARGEST_BITS = 28  # 2**28 hashed columns: a gigabyte per score


@dataclass(frozen=True)
class StoredLinearModel:
    """A linear model read from a folder; of one with bounded token scores, the weights of all bounds side by side."""

    path: Path
    features: Features
    min_count: int
    classes: list[Any]
    exponent: int
    weights: npt.NDArray[np.int32]
    bias: npt.NDArray[np.int32]
    training: dict[str, Any]
    fingerprint: str
    bounds: list[int]


def write_model(folder: Path, description: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.int32]]) -> None:
    """Write both files; each replaces an older one atomically, the description last."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": "adaptdel linear", "version": VERSION, **description}, indent=1, allow_nan=False)
    data = tensors_to_bytes({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    for name, content in ((WEIGHTS, data), (DESCRIPTION, text.encode("ascii") + b"\n")):
        with replacing(folder / name) as file:
            file.write(content)


def read_model(folder: Path) -> StoredLinearModel:
    """Read both files; a ValueError names the file and what is wrong in it."""
    path = folder / DESCRIPTION
    try:
        values = parse_object(_content(path))
    except ValueError as error:
        if str(error).startswith(f"{path} "):
            raise
        raise ValueError(f"{path} must be a JSON file: {error}") from None
    if values.get("format") != "adaptdel linear" or values.get("version") != VERSION:
        raise ValueError(f"{path} must describe a linear model of adaptdel, version {VERSION}")
    try:
        features = _features(values)
        classes = _labels(values.get("classes"))
        exponent = check_int("exponent", values.get("exponent"), least=-1100, most=1100)
        min_count = check_int("min_count", values.get("min_count"), least=1)
        bounds = [
            check_int("bounds", bound, least=1, most=LARGEST_BOUND) for bound in check_list("bounds", values["bounds"])
        ]
        training, fingerprint = values.get("training"), values.get("fingerprint")
        if not isinstance(training, dict) or not isinstance(fingerprint, str):
            raise ValueError("training must be a dictionary and fingerprint a text")
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}: save or copy the model anew") from None
    scores = (1 if len(classes) == 2 else len(classes)) * max(1, len(bounds))
    shapes = {"weights": (features.size + 1, scores), "bias": (scores,)}
    tensors = _tensors(folder / WEIGHTS, shapes)
    weights, bias = tensors["weights"], tensors["bias"]
    return StoredLinearModel(path, features, min_count, classes, exponent, weights, bias, training, fingerprint, bounds)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


def _features(values: Mapping[str, Any]) -> Features:
    kind = check_choice("features", values.get("features"), ("hash", "vocabulary"))
    lowercase = values.get("lowercase")
    if not isinstance(lowercase, bool):
        raise ValueError(f"lowercase must be true or false, got {lowercase!r}")
    if kind == "hash":
        return HashedFeatures(check_int("bits", values.get("bits"), least=1, most=LARGEST_BITS), lowercase)
    listed = values.get("vocabulary")
    if not isinstance(listed, list):
        raise ValueError("vocabulary must be a list")
    vocabulary = [token_from_json(value) for value in listed]
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("vocabulary must not hold anything twice")
    return VocabularyFeatures(vocabulary, lowercase)


def _labels(classes: Any) -> list[Any]:
    if not isinstance(classes, list) or not all(isinstance(label, (str, int, float)) for label in classes):
        raise ValueError("classes must be a list of texts or numbers")
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise ValueError("classes must be two or more different labels")
    return classes


def _tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.int32]]:
    content = _content(path)
    try:
        tensors = tensors_from_bytes(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} must be a safetensors file: {reason}: save or copy the model anew") from None
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != np.int32 or tensor.shape != shape:
            got = "none" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
            raise ValueError(f"{path} must hold {name} as int32 of shape {shape}, got {got}")
        if tensor.size and (tensor.max() > LARGEST_WEIGHT or tensor.min() < -LARGEST_WEIGHT):
            raise ValueError(f"{path} must hold {name} of at most {LARGEST_WEIGHT} in size")
    return tensors


_SETTINGS = ("features", "bits", "min_count", "lowercase")


@register_classifier("linear")
class LinearClassifier(BaseClassifier):
    """A linear classifier of bags of tokens: the score of a copy is a bias plus the weights of the tokens kept.

    After training, weights are rounded to whole multiples, of at most 2**20, of a power of two. Sums of up to 2**33
    weights are then exact in double precision; single precision is used where the weights of an input make it exact. So
    the votes do not depend on the order or number of copies, on BLAS or on the machine. A tie goes to the lowest class
    number.

    Under masking, each masked token counts as the feature "mask", whose weight is trained under `Masking` and is zero
    otherwise.

    Args:
        features: "hash" (a stable hash of each feature into 2**bits columns) or "vocabulary" (features that occur at
            least ``min_count`` times in training; others are ignored). See `adaptdel.classifiers.features`.
        bits: the base-2 logarithm of the number of columns, for "hash".
        min_count: the smallest number of occurrences of a feature, for "vocabulary".
        lowercase: whether text tokens are converted to lower case.

    Attributes:
        classes_: the labels, sorted.
        weights_: integers, shape (columns + 1, scores); the last row is the mask. Two classes have one score.
        bias_: integers, shape (scores,).
        exponent_: a weight is its integer times 2**-exponent_.
        training_: how the model was trained, in plain values.
    """

    def __init__(
        self,
        *,
        features: str = LINEAR.features,
        bits: int = LINEAR.bits,
        min_count: int = 2,
        lowercase: bool = True,
    ) -> None:
        self.features = features
        self.bits = bits
        self.min_count = min_count
        self.lowercase = lowercase

    checks_own_files = True
    weights_: npt.NDArray[np.int32]
    bias_: npt.NDArray[np.int32]
    exponent_: int
    training_: dict[str, Any]
    _features: Features | None = None
    _fingerprint: str = ""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"LinearClassifier({settings})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def set_params(self, **params: Any) -> LinearClassifier:
        """Set arguments of the constructor, for the next `fit`."""
        for name, value in params.items():
            if name not in _SETTINGS:
                raise ValueError(f"a LinearClassifier takes {', '.join(_SETTINGS)}, got {name!r}")
            setattr(self, name, value)
        return self

    def unfitted(self) -> LinearClassifier:
        """A classifier with the same parameters."""
        return LinearClassifier(**self.get_params())

    def fit(
        self,
        tokens: Sequence[Tokens],
        labels: Sequence[Any] | npt.NDArray[Any],
        *,
        noise: Noise | None = None,
        unit: Unit | None = None,
        loss: str = LINEAR.loss,
        copies: int = LINEAR.copies,
        l2: float = LINEAR.l2,
        iterations: int = LINEAR.iterations,
        seed: int = TRAINING.seed,
        class_weight: str | None = TRAINING.class_weight,
        max_minutes: float | None = TRAINING.max_minutes,
        progress: Progress | None = None,
    ) -> LinearClassifier:
        """Train under noise, or on the examples themselves if there is no noise.

        The same arguments give the same model on the same machine, whatever the number of threads. If training fails,
        the model stays as it was.

        Args:
            tokens: the tokens of every example.
            labels: the label of every example: texts or numbers.
            noise: applied to each copy; None or `NoNoise` trains on the examples themselves.
            unit: not needed, since tokens are counted and never joined.
            loss: "votes" is the loss of the vote on an example, from a normal approximation of the scores of its copies
                (see `adaptdel.classifiers.vote_margin`); "copies" that of single noisy copies, which are drawn. Masks
                have a weight with "copies" only. "auto" is "votes" for two classes and "copies" for more:
                ``experiments/linear-model.md`` has the measurements.
            copies: noisy copies of each example. With "votes" no copy is drawn; if the rate of the noise is random,
                as many rates are.
            l2: penalty on squared weights per token of a copy; see `linear_training.train`. On held-out fifths of four
                training sets, half and twice the default are about as accurate.
            iterations: the largest number of steps of the optimiser; under noise it usually converges in fewer than 60.
            seed: of the noise.
            class_weight: "balanced" gives every class the same weight in the loss; None every example.
            max_minutes: the optimiser stops after this time, with the weights so far; None for no limit.
            progress: called with (steps done, steps in total).
        """
        self._check_settings()
        check_choice("loss", loss, LINEAR_LOSSES)
        copies, iterations = check_int("copies", copies, least=1), check_int("iterations", iterations, least=1)
        seed = check_int("seed", seed, most=2**64 - 1)
        l2 = check_real("l2", l2, accepted="a finite number of at least 0", least=0.0, most=1e300)
        if noise is not None and not isinstance(noise, Noise):
            raise ValueError(f"noise must be None or a noise such as Deletion(FixedRate(0.9)), got {noise!r}")
        if class_weight is not None:
            check_choice("class_weight", class_weight, CLASS_WEIGHTS)
        deadline = inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        active = noise if noise is not None and noise.changes_inputs else None
        copies = copies if active is not None else 1
        classes, answers = class_numbers(labels)
        if loss == "auto":
            loss = "votes" if len(classes) == 2 else "copies"
        check_examples(tokens, len(answers))
        steps = len(answers) + iterations

        def report(steps_done: int) -> None:
            if progress is not None:
                progress(steps_done, steps)

        numbers: dict[Hashable, int] = {}
        codes = [numbered(example, numbers, len(example)) for example in tokens]
        features = self._learn_features(numbers, codes)
        drawn = active if loss == "copies" else None  # what copies are drawn under
        counts = noisy_counts(
            codes, len(numbers), noise=drawn, copies=copies, seed=seed, progress=lambda done, _: report(done)
        )
        composed = composition(features, numbers)
        stopped = False

        def is_time_up() -> bool:
            nonlocal stopped
            stopped = stopped or time.monotonic() >= deadline
            return stopped

        options: dict[str, Any] = {
            "l2": l2,
            "iterations": iterations,
            "stop": is_time_up,
            "progress": lambda done, _: report(len(answers) + done),
        }
        weights = None if class_weight is None else balanced_weights(answers)
        if active is not None and loss == "votes":
            keep = keep_rates(codes, active, draws=1 if active.certifies else copies, seed=seed)
            [fitted] = train_margins(counts, composed, answers, len(classes), keep, weights=weights, **options)
        else:
            weights = None if weights is None else np.repeat(weights, copies)
            fitted = train(counts, composed, np.repeat(answers, copies), len(classes), weights=weights, **options)
        report(steps)
        self._set(features, classes, *rounded(fitted))
        settings: dict[str, Any] = {"loss_of": loss, "copies": copies, "l2": l2, "iterations": iterations, "seed": seed}
        settings |= {"examples": len(answers)} | ({} if class_weight is None else {"class_weight": class_weight})
        described = None if active is None else active.to_dict()
        self.training_ = {"noise": described, **settings, **{k: v for k, v in fitted.record.items() if k != "copies"}}
        if stopped and fitted.record["steps"] < iterations:
            self.training_["stopped_by_time"] = True
        return self

    def _check_settings(self) -> None:
        check_choice("features", self.features, ("hash", "vocabulary"))
        check_int("bits", self.bits, least=1, most=LARGEST_BITS)
        check_int("min_count", self.min_count, least=1)
        if not isinstance(self.lowercase, bool):
            raise ValueError(f"lowercase must be True or False, got {self.lowercase!r}")

    def _learn_features(self, numbers: dict[Hashable, int], codes: list[IntArray]) -> Features:
        if self.features == "hash":
            return HashedFeatures(self.bits, self.lowercase)
        return learned_vocabulary(codes, numbers, self.min_count, self.lowercase)

    def _set(
        self,
        features: Features,
        classes: list[Any],
        weights: npt.NDArray[np.int32],
        bias: npt.NDArray[np.int32],
        exponent: int,
    ) -> None:
        self.classes_, self.weights_, self.bias_, self.exponent_ = classes, weights, bias, exponent
        self._features = features
        self._fingerprint = ""

    def _fitted(self) -> Features:
        if self._features is None:
            raise ValueError("LinearClassifier must be fitted before it can classify: call fit(...) or load(...)")
        return self._features

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Look up the weights of the tokens once for all copies."""
        return Prepared(name, tokens, unit, masking, self._rows(tokens, masking))

    def _rows(self, tokens: Tokens, masking: bool) -> Rows:
        return token_rows(tokens, self._fitted(), self.weights_, self.bias_, masking=masking)

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class with the highest score for every copy: exact, whatever the order of copies and tokens."""
        self._fitted()
        return [best(scores(request.prepared.data, request.kept)) for request in requests]

    def copy_scores(self, requests: Sequence[Request]) -> list[FloatArray]:
        """The scores of the copies, shape (copies, classes), in integers; of two classes, the first has 0."""
        self._fitted()
        tables = [scores(request.prepared.data, request.kept) for request in requests]
        return [np.pad(table, ((0, 0), (1, 0))) if table.shape[1] == 1 else table for table in tables]

    def predict(self, tokens: Sequence[Tokens]) -> list[Any]:
        """The labels of whole inputs, without noise."""
        self._fitted()
        classes = self.classes_ or []
        numbers = (int(best(total(self._rows(example, False)))[0]) for example in tokens)
        return [classes[number] for number in numbers]

    def fingerprint(self) -> str:
        """The SHA-256 of the weights, the features and the classes; equal for a saved model and the loaded one."""
        features = self._fitted()
        if not self._fingerprint:
            described = json.dumps(self._description(features), sort_keys=True)
            digest = hashlib.sha256(described.encode("ascii"))
            digest.update(self.weights_.astype("<i4").tobytes() + self.bias_.astype("<i4").tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _description(self, features: Features) -> dict[str, Any]:
        """What the votes depend on besides the weights, in plain values."""
        return {
            **features.description(),
            "lowercase": features.lowercase,
            "classes": self.classes_,
            "exponent": self.exponent_,
        }

    def save(self, folder: str | Path) -> None:
        """Write ``linear.safetensors`` and ``linear.json`` to a folder, which is created if it does not exist."""
        description = self._description(self._fitted())
        extra: dict[str, Any] = {"bounds": [], "min_count": self.min_count, "training": self.training_}
        extra["fingerprint"] = self.fingerprint()
        write_model(Path(folder), {**description, **extra}, {"weights": self.weights_, "bias": self.bias_})

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Read what `save` wrote; ValueError with the name of the file that is missing, damaged or does not fit."""
        cls.check_options(options)  # there are none
        stored = read_model(Path(folder))
        features = stored.features
        model = cls(features="vocabulary", min_count=stored.min_count, lowercase=features.lowercase)
        if isinstance(features, HashedFeatures):
            model.set_params(features="hash", bits=features.bits)
        model._set(features, stored.classes, stored.weights, stored.bias, stored.exponent)
        model.training_ = stored.training
        if model.fingerprint() != stored.fingerprint:
            raise ValueError(f"{stored.path} does not belong to the weights beside it: their fingerprint differs")
        return model
