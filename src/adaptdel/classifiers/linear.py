"""The built-in base classifier: a linear model of bags of tokens, whose votes are an exact matrix product."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.classifiers.base import BaseClassifier, Prepared, Request, drawn_copies, register_classifier
from adaptdel.classifiers.features import (
    LARGEST_WEIGHT,
    Features,
    HashedFeatures,
    ScoreCache,
    VocabularyFeatures,
    best,
    check_ngram,
    ngrams,
    numbered,
    scores,
    summed,
    sums_of_copies,
    token_from_json,
    token_rows,
)
from adaptdel.classifiers.linear_training import (
    Progress,
    check_examples,
    class_numbers,
    class_weights,
    composition,
    keep_rates,
    noisy_counts,
    rounded,
    train,
    train_margins,
)
from adaptdel.core.checks import FloatArray, IntArray, check_choice, check_fields, check_int, check_names
from adaptdel.core.noise import Noise
from adaptdel.files import read_json, read_tensors, replacing
from adaptdel.settings import LARGEST_BITS, LARGEST_NGRAM, LINEAR, TRAINING, LinearTrainingSettings
from adaptdel.text.units import Tokens, Unit

WEIGHTS, DESCRIPTION = "linear.safetensors", "linear.json"
VERSION = 2
_FIELDS = {"features": "a text", "classes": "a list", "ngram": "an integer"}


def write_model(folder: Path, description: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.int32]]) -> None:
    """Write both files; each replaces an older one atomically, the description last."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": "adaptdel linear", "version": VERSION, **description}, indent=1, allow_nan=False)
    data = tensors_to_bytes({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    for name, content in ((WEIGHTS, data), (DESCRIPTION, text.encode("ascii") + b"\n")):
        with replacing(folder / name) as file:
            file.write(content)


def model_digest(description: Mapping[str, Any], weights: npt.NDArray[np.int32], bias: npt.NDArray[np.int32]) -> str:
    """The SHA-256 of a description, weights and biases, the same on every machine."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode("ascii"))
    digest.update(weights.astype("<i4").tobytes() + bias.astype("<i4").tobytes())
    return digest.hexdigest()


def read_model(
    folder: Path, kind: str, fields: Mapping[str, str]
) -> tuple[dict[str, Any], Features, dict[str, npt.NDArray[np.int32]]]:
    """Read what `write_model` wrote: the description, the features, and the tensors ``weights`` and ``bias``, checked.

    ``kind`` is that of the features, and ``fields`` are further fields of the description, with their types.
    """
    path = folder / DESCRIPTION
    values = read_json(path, "a linear model")
    tensors = read_tensors(folder / WEIGHTS)
    try:
        if values.get("format") != "adaptdel linear" or values.get("version") != VERSION:
            raise ValueError(f"it must describe a linear model of adaptdel, version {VERSION}")
        check_fields(values, {**_FIELDS, **fields})
        check_choice("features", values["features"], (kind,))
        check_int("ngram", values["ngram"], least=1, most=LARGEST_NGRAM)
        if kind == "hash":
            features: Features = HashedFeatures(check_int("bits", values.get("bits"), least=1, most=LARGEST_BITS))
        else:
            features = VocabularyFeatures([token_from_json(value) for value in values.get("vocabulary", ())])
        if len(values["classes"]) < 2:
            raise ValueError("classes must be two or more labels")
        width = len(values.get("bounds", (1,))) * (1 if len(values["classes"]) == 2 else len(values["classes"]))
        for name, shape in (("weights", (features.size + 1, width)), ("bias", (width,))):
            tensor = tensors.get(name)
            if tensor is None or tensor.dtype != np.int32 or tensor.shape != shape or not tensor.size:
                raise ValueError(f"{name} must be int32 of shape {shape}")
            if tensor.max() > LARGEST_WEIGHT or tensor.min() < -LARGEST_WEIGHT:
                raise ValueError(f"{name} must be of at most {LARGEST_WEIGHT} in size")
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}: save or copy the model again") from None
    return values, features, tensors


@register_classifier("linear")
class LinearClassifier(BaseClassifier):
    """A linear classifier of bags of tokens: the score of a copy is a bias plus the weights of the tokens kept.

    After training, weights are rounded to whole multiples, of at most 2**20, of a power of two. Sums of up to 2**33
    weights are then exact in double precision; single precision is used where the weights of an input make it exact. So
    the votes do not depend on the order or number of copies, on BLAS or on the machine. A tie goes to the lowest class
    number.

    Under masking, each masked token counts as the feature "mask", whose weight is trained on copies under `Masking`
    and is zero otherwise.

    Args:
        bits: the base-2 logarithm of the number of columns into which features are hashed, see
            `adaptdel.classifiers.features`.
        ngram: for characters and bytes, the number of neighbouring tokens of a copy that are a feature together.
    """

    weights_: npt.NDArray[np.int32]  # shape (columns + 1, scores); the last row is the mask; two classes have one score
    bias_: npt.NDArray[np.int32]  # shape (scores,)
    exponent_: int  # a weight is its integer times 2**-exponent_
    training_: dict[str, Any]  # how the model was trained, in plain values
    _features: HashedFeatures | None = None
    _cached: ScoreCache
    _fingerprint: str = ""

    def __init__(self, *, bits: int = LINEAR.bits, ngram: int = LINEAR.ngram) -> None:
        self.bits = bits
        self.ngram = ngram

    def __repr__(self) -> str:
        return f"LinearClassifier(bits={self.bits}, ngram={self.ngram})"

    def unfitted(self) -> LinearClassifier:
        """A classifier with the same parameters."""
        return LinearClassifier(bits=self.bits, ngram=self.ngram)

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
        progress: Progress | None = None,
    ) -> LinearClassifier:
        """Train under noise, or on the examples themselves if there is no noise.

        The same arguments give the same model on the same machine, whatever the number of threads. If training fails,
        the model stays as it was. See `adaptdel.settings.LinearTrainingSettings` for the hyperparameters. ``labels``
        are texts or numbers; the ``unit`` is needed for an ngram above 1 only.

        The loss "votes" is that of the vote on an example, from a normal approximation of the scores of its copies
        (`linear_training.train_margins`); "copies" that of single noisy copies, which are drawn. Under "votes" the mask
        has the weight 0; an ngram above 1 needs "copies". "auto" is "votes" for two classes and "copies" for more:
        ``experiments/linear-model.md`` has the measurements.
        """
        settings = LinearTrainingSettings(loss, copies, l2, iterations, self.bits, self.ngram)
        check_ngram(settings.ngram, unit)
        seed = check_int("seed", seed, most=2**64 - 1)
        if noise is not None and not isinstance(noise, Noise):
            raise ValueError(f"noise must be None or a noise such as Deletion(FixedRate(0.9)), got {noise!r}")
        features, iterations, l2 = HashedFeatures(settings.bits), settings.iterations, settings.l2
        active = noise if noise is not None and noise.changes_inputs else None
        copies = settings.copies if active is not None else 1
        classes, answers = class_numbers(labels)
        if loss == "auto":
            loss = "votes" if len(classes) == 2 and self.ngram == 1 else "copies"
        check_examples(tokens, len(answers))
        steps, report = len(answers) + iterations, progress or (lambda done, total: None)
        if loss == "votes" and active is not None and self.ngram > 1:
            raise ValueError(f"loss must be 'copies' for an ngram of {self.ngram}, got 'votes'")
        examples: Iterable[Tokens] = tokens
        if self.ngram > 1 and unit is not None:
            drawn = tokens if active is None else drawn_copies(tokens, active, unit, copies=copies, seed=seed)
            examples = (ngrams(copy, self.ngram) for copy in drawn)
        numbers: dict[Hashable, int] = {}
        codes = [numbered(example, numbers, len(example)) for example in examples]
        counts = noisy_counts(
            codes,
            len(numbers),
            noise=active if loss == "copies" and self.ngram == 1 else None,  # under which copies are drawn here
            copies=copies,
            seed=seed,
            tokens=tokens,
            progress=lambda done, of: report(done * len(answers) // of, steps),
        )
        composed = composition(features, numbers)
        options: dict[str, Any] = {
            "l2": l2,
            "iterations": iterations,
            "progress": lambda done, _: report(len(answers) + done, steps),
        }
        weights = class_weights(class_weight, answers, len(classes))[answers]
        if active is not None and loss == "votes":
            keep = keep_rates(tokens, active, draws=1 if active.certifies else copies, seed=seed)
            [fitted] = train_margins(counts, composed, answers, len(classes), keep, weights=weights, **options)
        else:
            options["weights"] = np.repeat(weights, copies)
            fitted = train(counts, composed, np.repeat(answers, copies), len(classes), **options)
        report(steps, steps)
        self._set(features, classes, *rounded(fitted))
        self.training_ = {
            "noise": None if active is None else active.to_dict(),
            **{"loss_of": loss, "copies": copies, "l2": l2, "iterations": iterations, "seed": seed},
            **{"examples": len(answers), "class_weight": class_weight},
            **fitted.record,
        }
        return self

    def _set(
        self,
        features: HashedFeatures,
        classes: list[Any],
        weights: npt.NDArray[np.int32],
        bias: npt.NDArray[np.int32],
        exponent: int,
    ) -> None:
        self.classes_, self.weights_, self.bias_, self.exponent_ = classes, weights, bias, exponent
        self._features, self._cached, self._fingerprint = features, ScoreCache(weights.shape[1]), ""

    def _fitted(self) -> HashedFeatures:
        if self._features is None:
            raise ValueError("LinearClassifier must be fitted before it can classify: call fit(...) or load(...)")
        return self._features

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Look up the weights of the tokens once for all copies."""
        self._fitted()
        if self.ngram > 1:
            return Prepared(name, tokens, unit, masking)
        rows = token_rows(self._token_scores(tokens), self.bias_, self.weights_[-1] if masking else None)
        return Prepared(name, tokens, unit, masking, rows)

    def _token_scores(self, tokens: Sequence[Hashable]) -> IntArray:
        """The sum of the weights of each token's features, or of each run of tokens, shape (tokens, scores)."""
        features = self._fitted()
        return self._cached.lookup(tokens, lambda new: summed(new, features, self.weights_))

    def _scores(self, request: Request) -> npt.NDArray[Any]:
        if self.ngram == 1:
            return scores(request.prepared.data, request.kept)
        return sums_of_copies(request, self.ngram, self._token_scores) + self.bias_

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class with the highest score for every copy: exact, whatever the order of copies and tokens."""
        return [best(self._scores(request)) for request in requests]

    def copy_scores(self, requests: Sequence[Request]) -> list[FloatArray]:
        """The scores of the copies, shape (copies, classes), in integers; of two classes, the first has 0."""
        tables = [self._scores(request).astype(np.float64) for request in requests]
        return [np.pad(table, ((0, 0), (1, 0))) if table.shape[1] == 1 else table for table in tables]

    def fingerprint(self) -> str:
        """The SHA-256 of the weights, the features and the classes; equal for a saved model and the loaded one."""
        if not self._fingerprint:
            self._fingerprint = model_digest(self._description(), self.weights_, self.bias_)
        return self._fingerprint

    def _description(self) -> dict[str, Any]:
        """What the votes depend on besides the weights, in plain values."""
        described = {"features": "hash", "bits": self._fitted().bits, "ngram": self.ngram}
        return described | {"classes": self.classes_, "exponent": self.exponent_}

    def save(self, folder: str | Path) -> None:
        """Write ``linear.safetensors`` and ``linear.json`` to a folder, which is created if it does not exist."""
        description = self._description() | {"training": self.training_}
        write_model(Path(folder), description, {"weights": self.weights_, "bias": self.bias_})

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Read what `save` wrote; ValueError with the name of the file that is missing or damaged."""
        check_names("options", options, ())
        values, features, tensors = read_model(
            Path(folder), "hash", {"exponent": "an integer", "training": "an object"}
        )
        assert isinstance(features, HashedFeatures)
        model = cls(bits=features.bits, ngram=values["ngram"])
        model._set(features, values["classes"], tensors["weights"], tensors["bias"], values["exponent"])
        model.training_ = values["training"]
        return model
