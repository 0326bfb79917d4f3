"""Hugging Face sequence classifiers as base classifiers."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.backends import EXPORTED, GRAPH, Backend, fastest, start
from adaptdel.classifiers.base import BaseClassifierError, check_labels, register_classifier
from adaptdel.classifiers.self_test import BATCHING, Probes
from adaptdel.classifiers.subwords import BATCH_TOKENS, UNLIMITED, SubwordClassifier, Subwords
from adaptdel.core.checks import IntArray, check_choice, check_int, check_names, check_real
from adaptdel.core.noise import Noise
from adaptdel.files import read_json
from adaptdel.hyperparameters import (
    BACKEND,
    BACKEND_CHOICES,
    DTYPE,
    DTYPES,
    TRANSFORMER,
    TransformerTrainingSettings,
)
from adaptdel.settings import TRAINING
from adaptdel.text.data import ExampleSet, split_held_out
from adaptdel.text.units import Tokens, check_unit

# Scores of MiniLM differ by less than 1e-6 between batches in float32, and in low precision between batches of equal
# lengths.
MARGIN = 1e-3
NEEDS = "TransformersClassifier needs torch and transformers: pip install 'adaptdel[transformers]'"
SAFE = {"use_safetensors": True, "trust_remote_code": False}
VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


def libraries() -> tuple[Any, Any]:
    """Torch and transformers, or an error that names the extra."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(NEEDS) from error
    return torch, transformers


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the progress bars, warnings and advice of transformers; errors are raised as usual."""
    logging: Any = libraries()[1].utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def isolated_randomness(seed: int) -> Iterator[None]:
    """Seed torch, and restore the global generators of torch, Python and NumPy afterwards."""
    torch, _ = libraries()
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@register_classifier("transformers")
class TransformersClassifier(SubwordClassifier):
    """A model of `AutoModelForSequenceClassification` with its tokenizer.

    Only safetensors are read, and no code that comes with a model is run. The words of an input are tokenised once, the
    ids of a copy are those of its joined text, and the votes do not depend on batches: see `subwords`.

    Args:
        model: a folder, a name on the hub, or a loaded model.
        tokenizer: a loaded tokenizer, a folder or a name; needed with a loaded model, else that of the model.
        device: "cpu", "cuda", ... or "auto": the GPU if there is one.
        dtype: "float32", "bfloat16", or "int8": linear layers in 8 bits, on the CPU.
        backend: what runs the model: "torch"; "onnxruntime" or "openvino", on the CPU; or "auto": the fastest of those
            that are installed, by a measurement here. Scores of backends differ in their last digits, and in int8 by
            more, so the backend is part of the fingerprint, and a saved model keeps it.
        batch_tokens: the largest number of ids in a batch; None for 1024 on a CPU and 16384 elsewhere.
        tokenise: "auto", "gather" or "join": see `Subwords`.
        revision: of a model on the hub.
        margin: two scores closer than this are a near tie; the self-test can only raise it.
        batching: the least strict mode that the self-test may choose: "padded" (copies of any length share a batch),
            "equal" (copies of equal length) or "alone".
        training: the hyperparameters of `fit`; None for the defaults.

    Attributes:
        backend: the backend that runs the model, also where "auto" was asked for.
        backend_seconds_: the processor's seconds a copy of 32 ids of the backends that "auto" compared; else empty.
        self_test_: the outcome of the self-test, or None for a model that has no trained head yet.
        training_: how `fit` trained the model, with the history of its epochs, in plain values.
    """

    has_backends = True

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        device: str = "auto",
        dtype: str = DTYPE,
        backend: str = BACKEND,
        batch_tokens: int | None = None,
        tokenise: str = "auto",
        revision: str | None = None,
        margin: float = MARGIN,
        batching: str = "padded",
        training: TransformerTrainingSettings | None = None,
    ) -> None:
        torch, transformers = libraries()
        check_choice("dtype", dtype, DTYPES)
        self._wanted_backend = check_choice("backend", backend, BACKEND_CHOICES)
        check_choice("batching", batching, BATCHING)
        if not isinstance(training, (TransformerTrainingSettings, NoneType)):
            raise ValueError(f"training must be TransformerTrainingSettings or None, got {training!r:.60}")
        self.source, self.dtype, self.tokenise, self.revision = model, dtype, tokenise, revision
        self._least_margin, self._batching, self.training = margin, batching, training
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        usual = BATCH_TOKENS if self.device == "cpu" else 16 * BATCH_TOKENS
        self.batch_tokens = check_int("batch_tokens", usual if batch_tokens is None else batch_tokens, least=1)
        if dtype == "int8" and self.device != "cpu":
            raise ValueError(f"device must be 'cpu' for dtype 'int8', got {self.device!r}")
        self._check_backend(backend)
        loaded = not isinstance(model, (str, Path))
        if loaded and tokenizer is None:
            raise ValueError("tokenizer must be given with a loaded model, got None")
        if tokenizer is None or isinstance(tokenizer, (str, Path)):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(tokenizer or model), revision=None if tokenizer else revision, trust_remote_code=False
            )
        self.tokenizer = tokenizer
        self.name = type(model).__name__ if loaded else str(model)
        self._fingerprint: str | None = None
        self._new_head = False
        if not loaded:
            with isolated_randomness(0):
                model, self._new_head = self._read()
        self.untrained_ = self._new_head
        self.install(model)

    def __repr__(self) -> str:
        backend = "" if self.backend == "torch" else f", backend={self.backend!r}"
        return f"TransformersClassifier({self.name!r}, device={self.device!r}, dtype={self.dtype!r}{backend})"

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Read what `save` wrote; ``options`` are those of the class."""
        torch, _ = libraries()
        _check_sizes(Path(folder))
        base = cls(str(folder), **options)
        if base.untrained_:
            raise ValueError(f"{folder}: weights of the model are missing: save or copy it anew")
        for name, values in base.model.named_parameters():
            if not torch.isfinite(values).all():
                raise ValueError(f"{folder}: the weights {name} are not all finite numbers: train the model anew")
        return base

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """The options are arguments of the class."""
        check_names("options", options, (), ("dtype", "backend", "margin", "batching", "tokenise"))
        check_real("margin", options.get("margin", 0.0), accepted="at least 0", least=0.0, most=1e9)

    def save(self, folder: str | Path) -> None:
        """Write configuration, weights (safetensors, in full precision) and tokenizer to a folder."""
        with quietly():
            self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    def scores(self, inputs: dict[str, IntArray]) -> npt.NDArray[Any]:
        """The logits."""
        torch, _ = libraries()
        if self.untrained_:
            raise BaseClassifierError(f"the model {self.name} has no trained classification head: call fit first")
        if self._exported is not None:
            return self._exported.scores({name: inputs[name] for name in self._read_arrays()})
        with torch.inference_mode():
            logits = self._running(**self.tensors(inputs)).logits
        scores: npt.NDArray[Any] = logits.float().cpu().numpy()
        return scores

    def fingerprint(self) -> str:
        """The SHA-256 of configuration, tokenizer, weights, precision and backend: what the answers depend on."""
        if self._fingerprint is None:
            self._fingerprint = self.fingerprint_under(self.backend)
        return self._fingerprint

    def fingerprint_under(self, backend: str | None) -> str:
        """The fingerprint that the same model has under another backend."""
        config = {key: value for key, value in self.model.config.to_dict().items() if key not in VOLATILE}
        digest = hashlib.sha256(json.dumps([config, self.dtype], sort_keys=True, default=str).encode())
        if backend not in (None, "torch"):
            digest.update(f"{backend} {GRAPH}".encode())
        digest.update(self.subwords.state().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            values = tensor.detach().cpu().contiguous()
            values = values.float() if values.is_floating_point() else values  # as it is loaded again
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.flatten().view(libraries()[0].uint8).numpy().data)
        return digest.hexdigest()

    def with_backend(self, backend: str) -> TransformersClassifier:
        """The same model run by another backend; "auto" measures the installed ones here, and takes the fastest.

        The classifier itself if the backend is its own. The result is tested like a model that is loaded.
        """
        check_choice("backend", backend, BACKEND_CHOICES)
        if backend == self.backend:
            return self
        self._check_backend(backend)
        other = copy.copy(self)
        other._wanted_backend = backend
        other.install(self.model)
        return other

    def _check_backend(self, backend: str) -> None:
        """Raise unless a backend can run on the device in the precision, as far as that is known without a graph."""
        if backend in EXPORTED and self.device != "cpu":
            raise ValueError(f"device must be 'cpu' for backend {backend!r}, got {self.device!r}")
        if backend in EXPORTED:
            EXPORTED[backend].check(self.dtype)

    def options(self) -> dict[str, Any]:
        """Precision, backend, margin, batching and the way of tokenising."""
        return {
            "dtype": self.dtype,
            "backend": self.backend,
            "margin": self.margin,
            "batching": self.batching,
            "tokenise": self.tokenise,
        }

    def fit(
        self,
        tokens: Sequence[Tokens],
        labels: Sequence[Any],
        *,
        noise: Noise,
        unit: Any = TRAINING.unit,
        copies: int | None = None,
        seed: int = TRAINING.seed,
        validation: Any = TRAINING.validation,
        folder: str | Path | None = None,
        freelb: bool = False,
        class_weight: str | None = TRAINING.class_weight,
        max_minutes: float | None = TRAINING.max_minutes,
        progress: Callable[[int, int], None] | None = None,
        epoch_done: Callable[[Mapping[str, float]], None] | None = None,
        **settings: Any,
    ) -> TransformersClassifier:
        """Train on noisy copies, drawn anew for every example and epoch, with early stopping.

        ``adaptdel train`` uses the same training loop. A model that was given by name starts from its stored weights,
        with a new head unless it has one for as many classes. A loaded model continues from its present weights. The
        same seed gives the same model.

        Args:
            tokens: the tokens of every example.
            labels: the label of every example: texts or whole numbers.
            noise: applied to the examples.
            unit: what a token is.
            copies: the number of epochs if the classifier has no ``training``: every epoch draws a new copy of each
                example.
            seed: of the held-out examples, the head, the order of the examples, the noise and the dropout.
            validation: the fraction of the examples that is held out, chosen by their content; or a pair (tokens,
                labels). The weights of the epoch with the smallest validation loss are kept.
            folder: keeps checkpoints, so that the same call resumes an interrupted training; None for a temporary one.
            freelb: whether to perturb the embeddings as FreeLB does.
            class_weight: "balanced" gives every class the same weight in the loss; None every example.
            max_minutes: training stops after this time and keeps the best epoch so far; None for no limit.
            progress: called with (steps done, largest possible number of steps).
            epoch_done: called with the history's row of every epoch that ends.
            settings: fields of `TransformerTrainingSettings` that replace those of ``training``.
        """
        from adaptdel.classifiers.transformer_training import check_counts, train_transformer

        unit = check_unit(unit)
        defaults = TRANSFORMER if self.training is None else self.training
        if copies is not None and self.training is None:
            settings = {"epochs": check_int("copies", copies, least=1), **settings}
        chosen = replace(defaults, seed=seed, **settings)
        examples = ExampleSet(list(tokens), list(labels))
        examples = replace(examples, labels=check_counts(examples, "labels"))
        self.check_classes(list(dict.fromkeys(examples.labels)))
        if isinstance(validation, (int, float)):
            texts = [str(unit.join(row)) for row in examples.tokens]
            examples, held = split_held_out(examples, texts, fraction=validation, seed=seed)
            if not held.tokens:
                raise ValueError(
                    "validation must hold out at least one example for early stopping: give a larger fraction, or a "
                    "pair (tokens, labels)"
                )
        elif isinstance(validation, (tuple, list)) and len(validation) == 2:
            held = ExampleSet(*map(list, validation))
        else:
            raise ValueError(f"validation must be a fraction or a pair (tokens, labels), got {validation!r:.60}")
        chosen = chosen.for_examples(len(examples.tokens))
        with tempfile.TemporaryDirectory() as temporary:
            trained = train_transformer(
                self,
                examples,
                held,
                noise=noise,
                unit=unit,
                settings=chosen,
                folder=Path(temporary if folder is None else folder),
                freelb=freelb,
                class_weight=class_weight,
                max_minutes=max_minutes,
                progress=progress,
                epoch_done=epoch_done,
            )
        self.training_ = {"noise": noise.to_dict(), "history": trained.history, **trained.record}
        return self

    def _read(self, **options: Any) -> tuple[Any, bool]:
        """The model from its folder or the hub in full precision, and whether some of its weights are new."""
        torch, transformers = libraries()
        with quietly():
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(self.source),
                revision=self.revision,
                dtype=torch.float32,
                output_loading_info=True,
                **SAFE,
                **options,
            )
        return model, bool(info["missing_keys"])

    @property
    def has_source(self) -> bool:
        """Whether the model was given by name: then it can be read again."""
        return isinstance(self.source, (str, Path))

    def check_classes(self, classes: list[Any]) -> None:
        """Raise unless the model can be trained for these classes."""
        if len(classes) < 2 or {type(label) for label in classes} not in ({str}, {int}):
            raise ValueError(f"labels must be texts or whole numbers of at least 2 classes, got {classes[:3]!r}")
        known = self.model.config.num_labels
        if not self.has_source and known != len(classes):
            raise ValueError(f"labels must be of {known} classes for {self.name}, got {len(classes)}")

    def with_head(self, classes: list[Any]) -> Any:
        """The model to train, with a head for these classes; a new head is drawn from torch's generator."""
        self.check_classes(classes)
        if not self.has_source:
            model = copy.deepcopy(self.model)  # a training that fails leaves the classifier as it was
        else:
            if self._new_head:
                self._read()  # draws a head that is discarded, as version 0.1 did: the same seed gives the same model
            model, _ = self._read(num_labels=len(classes), ignore_mismatched_sizes=True)
        if classes != list(range(len(classes))):
            model.config.id2label = {number: str(label) for number, label in enumerate(classes)}
            model.config.label2id = {str(label): number for number, label in enumerate(classes)}
            model.config.adaptdel_whole_numbers = not isinstance(classes[0], str)
        return model

    def install(self, model: Any) -> None:
        """Take a model: in full precision to save and train, and a copy in the wanted one to run, which is tested."""
        if model.config.num_labels < 2:
            raise ValueError(f"model must have at least 2 labels, got {model.config.num_labels} in {self.name}")
        self.model = model.eval()
        self._fingerprint = None
        self.forget_answers()
        self._accepted = set(inspect.signature(model.forward).parameters)
        self.classes_ = _classes(model.config)
        check_labels(self.classes_)
        most = _longest(self.tokenizer, model)
        self.subwords = Subwords(self.tokenizer, max_length=most, tokenise=self.tokenise, name=self.name)
        self._running, self._exported = self._choose_backend()
        self.margin, self.batching, self.self_test_ = self._least_margin, self._batching, None
        if not self.untrained_:
            # Low precision rounds the last bits that padding changes to other values: shifts grow to 1e-2.
            pads = "attention_mask" in self._accepted and self.dtype == "float32"
            padding_ids = (model.config.pad_token_id, self.tokenizer.pad_token_id)
            table = model.get_input_embeddings()
            ids = getattr(table, "num_embeddings", None)
            self.run_self_test(name=self.name, pads=pads and None not in padding_ids, ids=ids)

    def _choose_backend(self) -> tuple[Any, Backend | None]:
        """What runs the model: in torch, or an exported graph; sets ``backend``."""
        self.backend, self.backend_seconds_ = "torch", dict[str, float]()
        if self._wanted_backend == "torch" or self.untrained_ or self.device != "cpu":
            return self._in_torch(), None
        if self._wanted_backend != "auto":
            self.backend = self._wanted_backend
            return None, self._export(self.backend)
        running, exported = self._in_torch(), dict[str, Backend]()
        for name, kind in EXPORTED.items():
            if self.dtype in kind.dtypes:
                with suppress(ImportError, ValueError):  # not installed, or not able to run this model
                    exported[name] = self._export(name)
        self._running, self._exported = running, None
        scores = {"torch": self.scores} | {name: backend.scores for name, backend in exported.items()}
        self.backend, self.backend_seconds_ = fastest(scores, self._read_arrays(), self._probes())
        return (running, None) if self.backend == "torch" else (None, exported[self.backend])

    def _export(self, name: str) -> Backend:
        threads = libraries()[0].get_num_threads()
        arrays, probes = self._read_arrays(), self._probes()
        return start(name, self.model, arrays, probes, dtype=self.dtype, threads=threads, title=self.name)

    def _probes(self) -> Probes:
        return self.subwords.probes(getattr(self.model.get_input_embeddings(), "num_embeddings", None))

    def _read_arrays(self) -> list[str]:
        """The names of the arrays that the model reads."""
        return [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in self._accepted]

    def _in_torch(self) -> Any:
        """The model in the wanted precision on its device."""
        precision = getattr(libraries()[0], self.dtype)
        if self.dtype == "int8":
            return int8_copy(self.model)
        if any(parameter.dtype != precision for parameter in self.model.parameters()):
            return copy.deepcopy(self.model).to(precision).to(self.device)
        return self.model.to(self.device)

    def tensors(self, inputs: dict[str, IntArray]) -> dict[str, Any]:
        """The inputs that the model reads, as tensors on its device."""
        torch, _ = libraries()
        return {name: torch.from_numpy(inputs[name]).to(self.device) for name in inputs if name in self._accepted}


def _check_sizes(folder: Path) -> None:
    """Raise for a configuration of far more layers or labels than there are weights: building it would not end."""
    config = folder / "config.json"
    try:
        values = read_json(config, "the configuration of a model")
    except FileNotFoundError:
        raise ValueError(f"{config}: missing from a saved model: save or copy the model anew") from None
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))  # a layer or label has a weight at least
    for name, value in values.items():
        if name == "id2label" or not re.search("layer|label|expert|group|block", name):
            continue
        count = value if isinstance(value, (int, float)) else len(value) if isinstance(value, (dict, list)) else 0
        if count > max(200, size // 200 if "layer" in name else size):
            raise ValueError(f"{config}: {name} cannot be {value!r:.40} with so few weights: save or copy it anew")


def int8_copy(model: Any) -> Any:
    """A copy whose linear layers, but for the last, multiply whole numbers of 8 bits.

    Weights are scaled per output and inputs per token: the result for a token does not depend on the rest of the batch.
    """
    torch, _ = libraries()
    model = copy.deepcopy(model).float()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.out_features != model.config.num_labels:
            weight = layer.weight.detach()
            scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
            whole = (weight / scale[:, None]).round().to(torch.int8)
            layer.weight = torch.nn.Parameter(whole, requires_grad=False)
            layer.forward = partial(_int8_linear, torch, whole.t().contiguous(), scale, layer.bias)
    return model


def _int8_linear(torch: Any, weight: Any, weight_scale: Any, bias: Any, values: Any) -> Any:
    flat = values.reshape(-1, values.shape[-1])
    scale = flat.abs().amax(dim=1, keepdim=True).clamp_min_(1e-30).div_(127)
    product = torch._int_mm((flat / scale).round_().to(torch.int8), weight).float().mul_(scale).mul_(weight_scale)
    if bias is not None:
        product.add_(bias)
    return product.view(*values.shape[:-1], -1)


def _classes(config: Any) -> list[Any]:
    names = [config.id2label[number] for number in range(config.num_labels)]
    if getattr(config, "adaptdel_whole_numbers", False):
        return [int(name) for name in names]
    return list(range(len(names))) if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _longest(tokenizer: Any, model: Any) -> int | None:
    """The largest number of ids that tokenizer and model allow; RoBERTa counts positions from the padding id on."""
    limits = [tokenizer.model_max_length] if tokenizer.model_max_length < UNLIMITED else []
    positions = getattr(model.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
        offsets = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
        limits.append(positions - max(offsets, default=0))
    return min(limits, default=None)
