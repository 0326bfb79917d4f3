"""A small network over token embeddings, made for noisy copies of few tokens; its votes need numpy alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.classifiers.base import BaseClassifier, Prepared, Request, register_classifier
from adaptdel.classifiers.embedding_training import Progress, train_network
from adaptdel.classifiers.features import VocabularyFeatures, best, token_from_json, token_to_json
from adaptdel.classifiers.integer_network import (
    CACHED_TOKENS,
    COPIES,
    GRIDS,
    Bags,
    FloatNetwork,
    Grid,
    IntegerNetwork,
    Layer,
    TokenFeatures,
    TokenVectors,
    core_word,
    quantised,
)
from adaptdel.classifiers.linear_training import check_examples, class_numbers
from adaptdel.classifiers.onnx_encoder import OnnxEncoder
from adaptdel.classifiers.word_encoders import WordEncoder
from adaptdel.core.checks import IntArray, check_choice, check_int
from adaptdel.core.noise import Noise, NoNoise
from adaptdel.files import read_json, replacing
from adaptdel.hyperparameters import EMBEDDING, EMBEDDING_MODEL, ON_UNKNOWN, EmbeddingSettings, check_minutes
from adaptdel.settings import TRAINING
from adaptdel.text.units import Tokens, Unit

TENSORS, DESCRIPTION = "embedding.safetensors", "embedding.json"
VERSION = 1
LARGEST_BITS = 24
MOST_NETWORKS = 16
LARGEST_SCALE = 1e12
LEAST_SECONDS = 1e-9  # for a network of which nothing is left of the time limit: it does a single step


@register_classifier("embedding")
class EmbeddingClassifier(BaseClassifier):
    """A network that reads the kept tokens of a copy in any order.

    A token's embedding is the sum of the embeddings of its features (words of the vocabulary, hashed character n-grams,
    capitals) by the root of their number, plus a projection of its pretrained vector, if there is one. A layer turns it
    into the token's vector. A copy is the sum of its vectors by the root of their number, their maximum and the
    logarithm of their number, which go through hidden layers. Each token is encoded on its own, so that deleted tokens
    cannot influence a vote.

    Votes are computed in whole numbers and are exact: see `adaptdel.classifiers.integer_network`. They do not depend on
    the batch or on the machine. A tie goes to the lowest class number. Training needs torch; votes need numpy alone.

    Under masking, the masked tokens of a copy count together as one token with a vector of its own.

    Args:
        encoder: pretrained vectors of single words: a `TransformerEncoder`, `StaticVectors`, or None for none.
        precision: "int8" (weights and activations in 8 bits) or "float32" (fixed-point weights of 24 bits and
            activations of 16 bits, which are as precise).
        on_unknown: how a word is read that has no pretrained vector in the model: "ngrams" takes its n-grams and the
            words in it alone; "encode" also encodes it, by the encoder that is then saved with the model. That needs
            ONNX Runtime. A machine always gives a word the same vector, but other processors and other versions of
            ONNX Runtime may give slightly different ones: only with "ngrams" are votes the same on every machine.
        min_count: how often a word has to occur in the training set to have an embedding of its own.
        bits: n-grams are hashed into ``2**bits`` rows.
        ngrams: lengths of the n-grams.
        lowercase: whether text tokens are lowered.
        networks: how many networks are trained, with different seeds; the scores of a copy are added up.
        settings: shape and training of the networks; None for the defaults of `EmbeddingSettings`.

    Attributes:
        classes_: the labels, sorted.
        networks_: the trained networks in whole numbers.
        training_: how the model was trained, in plain values.
    """

    checks_own_files = True
    networks_: list[IntegerNetwork]
    training_: dict[str, Any]

    def __init__(
        self,
        *,
        encoder: WordEncoder | None = None,
        precision: str = EMBEDDING_MODEL.precision,
        on_unknown: str = EMBEDDING_MODEL.on_unknown,
        min_count: int = EMBEDDING_MODEL.min_count,
        bits: int = EMBEDDING_MODEL.bits,
        ngrams: Sequence[int] = EMBEDDING_MODEL.ngrams,
        lowercase: bool = EMBEDDING_MODEL.lowercase,
        networks: int = EMBEDDING_MODEL.networks,
        settings: EmbeddingSettings | None = None,
    ) -> None:
        self.encoder = encoder
        self.precision = check_choice("precision", precision, tuple(GRIDS))
        self.on_unknown = check_choice("on_unknown", on_unknown, ON_UNKNOWN)
        if on_unknown == "encode" and (encoder is None or not encoder.exportable):
            raise ValueError(
                f"on_unknown must be 'ngrams' unless the encoder is a transformer, got encoder {encoder!r}"
            )
        self.min_count = check_int("min_count", min_count, least=1)
        self.bits = check_int("bits", bits, least=1, most=LARGEST_BITS)
        self.ngrams = tuple(check_int("ngrams", length, least=1, most=16) for length in ngrams)
        if not isinstance(lowercase, bool):
            raise ValueError(f"lowercase must be True or False, got {lowercase!r}")
        self.lowercase = lowercase
        self.networks = check_int("networks", networks, least=1, most=MOST_NETWORKS)
        self.settings = settings or EMBEDDING
        self.float_networks_: list[FloatNetwork] = []
        self._vectors: TokenVectors | None = None
        self._fingerprint = ""

    def __repr__(self) -> str:
        return (
            f"EmbeddingClassifier(encoder={self.encoder!r}, precision={self.precision!r}, "
            f"on_unknown={self.on_unknown!r}, min_count={self.min_count}, bits={self.bits}, networks={self.networks})"
        )

    def unfitted(self) -> EmbeddingClassifier:
        """A classifier with the same parameters."""
        return EmbeddingClassifier(
            encoder=self.encoder,
            precision=self.precision,
            on_unknown=self.on_unknown,
            min_count=self.min_count,
            bits=self.bits,
            ngrams=self.ngrams,
            lowercase=self.lowercase,
            networks=self.networks,
            settings=self.settings,
        )

    def fit(
        self,
        tokens: Sequence[Tokens],
        labels: Sequence[Any] | npt.NDArray[Any],
        *,
        noise: Noise | None = None,
        unit: Unit | None = None,
        copies: int = 1,
        seed: int = 0,
        validation: tuple[Sequence[Tokens], Sequence[Any]] | None = None,
        checkpoint: str | Path | None = None,
        class_weight: str | None = TRAINING.class_weight,
        max_minutes: float | None = TRAINING.max_minutes,
        progress: Progress | None = None,
        evaluated: Callable[[int, Mapping[str, Any]], None] | None = None,
    ) -> EmbeddingClassifier:
        """Train on noisy copies; the same arguments give the same model on one machine.

        Args:
            tokens: the tokens of every example.
            labels: the label of every example: texts or numbers.
            noise: what is done to each copy; None leaves the examples as they are. `RandomLength` trains for all kept
                lengths that calibration may choose.
            unit: not needed, since tokens are never joined.
            copies: of each example at least; the steps of the settings mostly draw more.
            seed: of the networks, the noise, the order and the held-out part.
            validation: held-out examples as a pair (tokens, labels), instead of a share of the examples.
            checkpoint: a folder in which training is recorded now and then; a training that was interrupted goes on
                from there if it is started again with the same arguments.
            class_weight: "balanced" gives every class the same weight; None every example.
            max_minutes: the training of all networks stops after this time and keeps the best weights so far; None for
                no limit. If there is no time for all steps, the learning rate falls with the time, and the result
                depends on the speed of the machine.
            progress: called with (steps done, steps in all).
            evaluated: called with the number of the network, from 0, and the history's row of every evaluation.
        """
        copies, seed = check_int("copies", copies, least=1), check_int("seed", seed, most=2**63 - 1)
        if noise is not None and not isinstance(noise, Noise):
            raise ValueError(f"noise must be None or a noise such as Deletion(FixedRate(0.9)), got {noise!r}")
        classes, answers = class_numbers(labels)
        check_examples(tokens, len(answers))
        settings = self.settings
        least = -(-copies * len(answers) // settings.batch_size)
        settings = EmbeddingSettings(**{**asdict(settings), "steps": max(settings.steps, least)})
        counted: Counter[Hashable] = Counter(token for example in tokens for token in example)
        tokens, answers, held_out = _with_held_out(tokens, answers, classes, validation)
        vocabulary = VocabularyFeatures.learn(counted, self.min_count, self.lowercase).vocabulary
        encoder = self.encoder
        if encoder is not None and self.on_unknown == "encode":
            encoder = encoder.exported()
        words, vectors = self._pretrained(counted, encoder)
        features = TokenFeatures(vocabulary, words, self.bits, self.ngrams, self.lowercase)
        trained, records = [], []
        total = settings.steps * self.networks
        left = None if max_minutes is None else 60 * check_minutes(max_minutes)
        for number in range(self.networks):
            network, record = train_network(
                features,
                tokens,
                answers,
                len(classes),
                noise=noise or NoNoise(),
                settings=settings,
                vectors=vectors,
                seed=seed + number,
                checkpoint=None if checkpoint is None else Path(checkpoint) / f"network{number}",
                progress=lambda done, _, number=number: (  # type: ignore[misc]
                    progress(number * settings.steps + done, total) if progress is not None else None
                ),
                evaluated=lambda row, number=number: (  # type: ignore[misc]
                    evaluated(number, row) if evaluated is not None else None
                ),
                held_out=held_out,
                encodes=self.on_unknown == "encode",
                class_weight=class_weight,
                seconds=None if left is None else max(left, LEAST_SECONDS) / (self.networks - number),
            )
            left = None if left is None else left - record["seconds"]
            trained.append(network)
            records.append(record)
        self.training_ = {
            "noise": None if noise is None else noise.to_dict(),
            "seed": seed,
            "encoder": None if encoder is None else encoder.description(),
            "words": len(words),
            "settings": asdict(settings),
            "networks": records,
        }
        self.float_networks_ = trained
        saved = encoder if isinstance(encoder, OnnxEncoder) and self.on_unknown == "encode" else None
        self._set(features, classes, [quantised(network, self.precision) for network in trained], saved)
        return self

    def _pretrained(
        self, counted: Mapping[Hashable, int], encoder: WordEncoder | None
    ) -> tuple[list[Hashable], npt.NDArray[Any] | None]:
        """The words that have pretrained vectors, and these."""
        if encoder is None:
            return [], None
        totals: Counter[str] = Counter()
        for token, count in counted.items():
            if isinstance(token, str):
                totals[str(core_word(token, lowercase=self.lowercase))] += count
        words, vectors = encoder.encode(sorted(word for word, count in totals.items() if count >= self.min_count))
        return (list(words), vectors) if words else ([], None)

    def with_precision(self, precision: str) -> EmbeddingClassifier:
        """The classifier that was just trained, in another precision."""
        if not self.float_networks_:
            raise ValueError("with_precision needs a classifier that was trained by fit in this process")
        other = self.unfitted()
        other.precision = check_choice("precision", precision, tuple(GRIDS))
        other.training_, other.float_networks_ = self.training_, self.float_networks_
        other._set(self._fitted().features, list(self.classes_ or []),
                   [quantised(network, precision) for network in self.float_networks_],
                   self._fitted().encoder)  # fmt: skip
        return other

    def _set(
        self,
        features: TokenFeatures,
        classes: list[Any],
        networks: list[IntegerNetwork],
        encoder: OnnxEncoder | None = None,
    ) -> None:
        self.classes_, self.networks_ = classes, networks
        encodes = encoder if networks[0].projection is not None else None
        self._vectors = TokenVectors(features, networks, CACHED_TOKENS, encodes)
        self._fingerprint = ""

    def _fitted(self) -> TokenVectors:
        if self._vectors is None:
            raise ValueError("EmbeddingClassifier must be fitted before it is asked: call fit(...) or load(...)")
        return self._vectors

    def has_vector(self, token: Hashable) -> bool:
        """Whether the model holds a pretrained vector of a token."""
        return self._fitted().features.word(token) >= 0

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Look up the vectors of the distinct tokens, once for all copies."""
        return Prepared(name, tokens, unit, masking, self._bags(tokens, masking))

    def _bags(self, tokens: Tokens, masking: bool) -> list[Bags]:
        """The vectors of the tokens of one input, for each network."""
        vectors, codes = self._fitted()(tokens)
        ends = np.cumsum([len(network.mask) for network in self.networks_])[:-1]
        return [
            Bags(np.ascontiguousarray(part), codes, network.mask if masking else None)
            for part, network in zip(np.split(vectors, ends, axis=1), self.networks_, strict=True)
        ]

    def scores(self, requests: Sequence[Request]) -> list[npt.NDArray[np.float64]]:
        """The scores of the copies of each request, of shape (copies, classes)."""
        self._fitted()
        totals: list[npt.NDArray[np.float64]] = [
            np.zeros((len(request.kept), len(self.classes_ or []))) for request in requests
        ]
        for number, network in enumerate(self.networks_):
            waiting: list[tuple[npt.NDArray[np.float64], npt.NDArray[Any]]] = []
            size = 0
            for request, total in zip(requests, totals, strict=True):
                for start in range(0, len(request.kept), COPIES):
                    kept = request.kept[start : start + COPIES]
                    waiting.append((total[start : start + COPIES], network.pool(request.prepared.data[number], kept)))
                    size += len(kept)
                    if size >= COPIES:
                        _add_scores(network, waiting)
                        size = 0
            _add_scores(network, waiting)
        return totals

    def copy_scores(self, requests: Sequence[Request]) -> list[npt.NDArray[np.float64]]:
        """`scores`."""
        return self.scores(requests)

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class of the highest score for every copy: exact, whatever the order of copies and tokens."""
        return [best(scores) for scores in self.scores(requests)]

    def fingerprint(self) -> str:
        """The SHA-256 of all that votes depend on; equal for a saved model and the loaded one."""
        self._fitted()
        if not self._fingerprint:
            digest = hashlib.sha256(json.dumps(self._description(), sort_keys=True).encode("ascii"))
            for name, tensor in sorted(self._tensors().items()):
                digest.update(f"{name} {tensor.dtype.name} {tensor.shape}".encode("ascii"))
                digest.update(np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<")).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _description(self) -> dict[str, Any]:
        """What the votes depend on besides the tensors, in plain values."""
        features, encoder = self._fitted().features, self._fitted().encoder
        return {
            "precision": self.precision,
            "on_unknown": self.on_unknown,
            "encoder": None if encoder is None else encoder.description(),
            "vocabulary": [token_to_json(part) for part in features.vocabulary],
            "words": [token_to_json(part) for part in features.words],
            "bits": features.bits,
            "ngrams": list(features.ngrams),
            "lowercase": features.lowercase,
            "classes": self.classes_,
            "layers": [len(network.layers) for network in self.networks_],
        }

    def _tensors(self) -> dict[str, npt.NDArray[Any]]:
        tensors: dict[str, npt.NDArray[Any]] = {}
        for number, network in enumerate(self.networks_):
            weight_type = np.int8 if network.grid.name == "int8" else np.int32
            for name in ("rows", "pretrained", "word_scale", "mask", "pool_scale", "pool_shift"):
                tensors[f"{number}.{name}"] = getattr(network, name)
            for name, layer in [("word", network.word), *((f"layer{i}", x) for i, x in enumerate(network.layers))]:
                tensors[f"{number}.{name}.weights"] = layer.weights.astype(weight_type)
                tensors[f"{number}.{name}.scale"] = layer.scale
                tensors[f"{number}.{name}.shift"] = layer.shift
            if network.projection is not None and network.encoded_unit is not None:
                tensors[f"{number}.encoded_unit"] = network.encoded_unit
                tensors[f"{number}.projection.weights"] = network.projection.weights.astype(np.int16)
                tensors[f"{number}.projection.scale"] = network.projection.scale
        return tensors

    def save(self, folder: str | Path) -> None:
        """Write ``embedding.safetensors`` and ``embedding.json`` into a folder, which is made if need be.

        A model that encodes new words also has ``encoder.onnx`` and ``encoder.json`` there.
        """
        path = Path(folder)
        extra = {"min_count": self.min_count, "training": self.training_, "fingerprint": self.fingerprint()}
        description = {"format": "adaptdel embedding", "version": VERSION, **self._description(), **extra}
        text = json.dumps(description, indent=1, allow_nan=False)
        data = tensors_to_bytes({name: np.ascontiguousarray(value) for name, value in self._tensors().items()})
        path.mkdir(parents=True, exist_ok=True)
        for name, content in ((TENSORS, data), (DESCRIPTION, text.encode("ascii") + b"\n")):
            with replacing(path / name) as file:
                file.write(content)
        encoder = self._fitted().encoder
        if encoder is not None:
            encoder.save(path)

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Read what `save` wrote; ValueError with the name of the file that is missing, damaged or does not fit."""
        cls.check_options(options)  # there are none
        path = Path(folder) / DESCRIPTION
        try:
            values = read_json(path, "the description of an embedding model")
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{path} cannot be read: no such file") from None
        if values.get("format") != "adaptdel embedding" or values.get("version") != VERSION:
            raise ValueError(f"{path} must describe an embedding model of adaptdel, version {VERSION}")
        try:
            features, classes, layers = _read_description(values)
            sha256 = _encoder_hash(values)
            grid = GRIDS[check_choice("precision", values.get("precision"), tuple(GRIDS))]
            model = cls(
                precision=grid.name,
                min_count=values.get("min_count"),  # type: ignore[arg-type]
                bits=features.bits,
                ngrams=features.ngrams,
                lowercase=features.lowercase,
                networks=len(layers),
            )
            training, fingerprint = values.get("training"), values.get("fingerprint")
            if not isinstance(training, dict) or not isinstance(fingerprint, str):
                raise ValueError("training must be a dictionary and fingerprint a text")
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}: save or copy the model anew") from None
        tensors = _read_tensors(Path(folder) / TENSORS)
        encoder = None if sha256 is None else OnnxEncoder.load(Path(folder), sha256)
        reader = _TensorReader(Path(folder) / TENSORS, tensors, grid, 0 if encoder is None else encoder.length)
        networks = [reader.network(number, count, features, len(classes)) for number, count in enumerate(layers)]
        model.encoder, model.on_unknown = encoder, values["on_unknown"]
        model._set(features, classes, networks, encoder)
        model.training_ = training
        if model.fingerprint() != fingerprint:
            raise ValueError(f"{path} does not belong to the weights beside it: their fingerprint differs")
        return model


def _add_scores(network: IntegerNetwork, waiting: list[tuple[npt.NDArray[np.float64], npt.NDArray[Any]]]) -> None:
    """Add the scores of pooled copies to their totals, and empty the list."""
    if waiting:
        scores = network.scores(np.concatenate([pooled for _, pooled in waiting]))
        start = 0
        for total, pooled in waiting:
            total += scores[start : start + len(pooled)]
            start += len(pooled)
        waiting.clear()


def _with_held_out(
    tokens: Sequence[Tokens],
    answers: IntArray,
    classes: list[Any],
    validation: tuple[Sequence[Tokens], Sequence[Any]] | None,
) -> tuple[Sequence[Tokens], IntArray, IntArray | None]:
    """The examples followed by held-out ones, their class numbers, and the places of those that are held out."""
    if validation is None:
        return tokens, answers, None
    held, labels = validation
    numbers = {label: number for number, label in enumerate(classes)}
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    if len(held) != len(plain):
        raise ValueError(f"validation must hold one label for each of its {len(held)} examples, got {len(plain)}")
    unknown = [label for label in plain if label not in numbers]
    if unknown:
        raise ValueError(f"validation must have labels of the training data, got {unknown[0]!r}")
    more = np.array([numbers[label] for label in plain], dtype=np.int64)
    places = np.arange(len(answers), len(answers) + len(more))
    return [*tokens, *held], np.concatenate([answers, more]).astype(np.int64), places


def _encoder_hash(values: Mapping[str, Any]) -> str | None:
    """The hash of the encoder beside a model, or None if the model has none."""
    chosen = check_choice("on_unknown", values.get("on_unknown"), ON_UNKNOWN)
    described = values.get("encoder")
    if described is None or chosen != "encode":
        if described is not None:
            raise ValueError("encoder must be null unless new words are encoded")
        return None
    if not isinstance(described, dict) or not isinstance(described.get("sha256"), str):
        raise ValueError("encoder must name the hash of the encoder")
    return str(described["sha256"])


def _read_description(values: Mapping[str, Any]) -> tuple[TokenFeatures, list[Any], list[int]]:
    """Features, classes and the number of layers of each network."""
    lists = {}
    for name in ("vocabulary", "words"):
        if not isinstance(values.get(name), list):
            raise ValueError(f"{name} must be a list")
        lists[name] = [token_from_json(value) for value in values[name]]
        if len(set(lists[name])) != len(lists[name]):
            raise ValueError(f"{name} must not hold anything twice")
    classes, layers, ngrams = values.get("classes"), values.get("layers"), values.get("ngrams")
    if not isinstance(classes, list) or not all(isinstance(label, (str, int, float)) for label in classes):
        raise ValueError("classes must be a list of texts or numbers")
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise ValueError("classes must be two or more different labels")
    if not isinstance(layers, list) or not 1 <= len(layers) <= MOST_NETWORKS:
        raise ValueError(f"layers must be a list of 1 to {MOST_NETWORKS} numbers")
    if not isinstance(ngrams, list) or not isinstance(values.get("lowercase"), bool):
        raise ValueError("ngrams must be a list and lowercase true or false")
    features = TokenFeatures(
        lists["vocabulary"],
        lists["words"],
        check_int("bits", values.get("bits"), least=1, most=LARGEST_BITS),
        tuple(check_int("ngrams", length, least=1, most=16) for length in ngrams),
        values["lowercase"],
    )
    return features, classes, [check_int("layers", count, least=1, most=16) for count in layers]


def _read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        return tensors_from_bytes(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} must be a safetensors file: {reason}: save or copy the model anew") from None


class _TensorReader:
    """Builds networks out of tensors, each of which is checked."""

    def __init__(self, path: Path, tensors: Mapping[str, npt.NDArray[Any]], grid: Grid, encoded: int) -> None:
        self.path, self.tensors, self.grid, self.encoded = path, tensors, grid, encoded

    def network(self, number: int, layers: int, features: TokenFeatures, classes: int) -> IntegerNetwork:
        """One network; the sizes follow from the first of its tensors."""
        rows = self._tensor(f"{number}.rows", np.int16, (features.size, None))
        dimensions = rows.shape[1]
        mask = self._tensor(f"{number}.mask", self.grid.row, (None,), least=0, most=self.grid.activations)
        width = len(mask)
        pooled = (2 * width + 1,)
        hidden: list[Layer] = []
        size = 2 * width + 1
        for place in range(layers):
            outputs = classes if place + 1 == layers else None
            hidden.append(self._layer(f"{number}.layer{place}", size, outputs))
            size = hidden[-1].weights.shape[1]
        unit, projection = self._projection(number, dimensions) if self.encoded else (None, None)
        return IntegerNetwork(
            self.grid,
            rows,
            self._tensor(f"{number}.pretrained", np.int16, (len(features.words), dimensions)),
            self._real(f"{number}.word_scale", (2, dimensions)),
            self._layer(f"{number}.word", dimensions, width),
            mask,
            self._real(f"{number}.pool_scale", pooled),
            self._real(f"{number}.pool_shift", pooled),
            tuple(hidden),
            unit,
            projection,
        )

    def _projection(self, number: int, dimensions: int) -> tuple[npt.NDArray[Any], Layer]:
        """How the vectors of new words are rounded and projected."""
        unit = self._tensor(f"{number}.encoded_unit", np.float64, (self.encoded,), least=1e-12, most=LARGEST_SCALE)
        weights = self._tensor(f"{number}.projection.weights", np.int16, (self.encoded, dimensions))
        scale = self._tensor(
            f"{number}.projection.scale", np.float64, (dimensions,), least=-LARGEST_SCALE, most=LARGEST_SCALE
        )
        return unit, Layer(weights.astype(np.float64), scale, np.zeros(dimensions))

    def _layer(self, name: str, inputs: int, outputs: int | None) -> Layer:
        kind, largest = np.int8 if self.grid.name == "int8" else np.int32, self.grid.weights
        weights = self._tensor(f"{name}.weights", kind, (inputs, outputs), least=-largest, most=largest)
        if inputs > self.grid.most_inputs():
            raise ValueError(f"{self.path} must hold {name} of at most {self.grid.most_inputs()} inputs, got {inputs}")
        size = weights.shape[1]
        scale, shift = self._real(f"{name}.scale", (size,)), self._real(f"{name}.shift", (size,))
        return Layer(weights.astype(self.grid.dtype), scale, shift)

    def _real(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self._tensor(name, self.grid.dtype, shape, least=-LARGEST_SCALE, most=LARGEST_SCALE)

    def _tensor(
        self,
        name: str,
        dtype: Any,
        shape: tuple[int | None, ...],
        *,
        least: float = -(2**15) + 1,
        most: float = 2**15 - 1,
    ) -> npt.NDArray[Any]:
        """One tensor of a type and shape, with values in a range; None stands for any size of at least 1."""
        tensor = self.tensors.get(name)
        fits = tensor is not None and tensor.dtype == dtype and len(tensor.shape) == len(shape)
        if (
            tensor is None
            or not fits
            or any(
                size != wanted if wanted is not None else size < 1
                for size, wanted in zip(tensor.shape, shape, strict=True)
            )
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            got = "none" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
            raise ValueError(f"{self.path} must hold {name} as {np.dtype(dtype)} of shape ({sizes}), got {got}")
        if tensor.size and not (tensor.min() >= least and tensor.max() <= most):  # also catches NaN
            raise ValueError(f"{self.path} must hold {name} between {least:g} and {most:g}")
        return tensor
