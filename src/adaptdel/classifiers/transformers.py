"""Hugging Face sequence classifiers as base classifiers."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import BaseClassifierError, check_labels, register_classifier, stated
from adaptdel.classifiers.foreign import as_tokenizer, check_folder, local_folder, reading, unreadable
from adaptdel.classifiers.onnx import Int8Model
from adaptdel.classifiers.subwords import (
    BATCH_TOKENS,
    MARGIN,
    MOST_BATCH_TOKENS,
    UNLIMITED,
    SubwordClassifier,
    Subwords,
)
from adaptdel.core.checks import IntArray, check_choice, check_int
from adaptdel.core.noise import Noise
from adaptdel.settings import DTYPE, DTYPES, TRAINING, TRANSFORMER, TransformerTrainingSettings
from adaptdel.text.data import ExampleSet, held_out_rows, split_held_out
from adaptdel.text.units import Tokens, check_unit

SAFE = {"use_safetensors": True, "trust_remote_code": False}
VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


def libraries() -> tuple[Any, Any]:
    """Torch and transformers, or an error that names the extra."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            "TransformersClassifier needs torch and transformers: pip install 'adaptdel[transformers]'"
        ) from error
    return torch, transformers


def add_weights(digest: Any, module: Any) -> None:
    """Add the weights of a torch module to a hash."""
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        values = values.float() if values.is_floating_point() else values  # as it is loaded again
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(libraries()[0].uint8).numpy().data)


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


@contextmanager
def matmul_precision(dtype: str | None) -> Iterator[None]:
    """Let float32 matrix products on a GPU use TF32 if that is the precision, and only then."""
    torch, _ = libraries()
    earlier, wanted = torch.get_float32_matmul_precision(), "high" if dtype == "tf32" else "highest"
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(earlier)


@dataclass(frozen=True)
class TrainingRun:
    """What governs a training besides its hyperparameters."""

    folder: str | Path | None = None  # of the checkpoint, from which the same call resumes; None for a temporary one
    freelb: bool = False
    class_weight: str | None = TRAINING.class_weight
    progress: Callable[[int, int], None] | None = None  # called with (steps done, largest possible number of steps)
    epoch_done: Callable[[Mapping[str, float]], None] | None = None  # called with the history's row of every epoch


@register_classifier("transformers")
class TransformersClassifier(SubwordClassifier):
    """A model of `AutoModelForSequenceClassification` with its tokenizer.

    Only safetensors are read, and no code that comes with a model is run. A folder is checked before anything is built
    from it: see `foreign`. Votes do not depend on batches: see `subwords`.

    Args:
        model: a folder, a name on the hub, or a loaded model.
        tokenizer: a loaded tokenizer, a folder or a name; needed with a loaded model, else that of the model.
        device: "cpu", "cuda" or "auto": the GPU if there is one.
        dtype: "float32"; "tf32", float32 with products in TensorFloat-32, on a GPU; "bfloat16"; or "int8", linear
            layers in 8 bits, by ONNX Runtime on a CPU. It is part of the fingerprint.
        batch_tokens: the largest number of ids in a batch; None for 1024 on a CPU and 16384 elsewhere.
        compile: whether torch compiles the model, which takes a minute when it is loaded; not in int8.
        max_length: the largest number of ids of a copy; 0 for the most that the model takes.
        training: the hyperparameters of `fit`; None for the defaults.
    """

    running_options = ("device", "dtype", "batch_tokens", "compile")
    stored_options = ("dtype", "max_length")
    training_: dict[str, Any]  # how `fit` trained the model, with the history of its epochs, in plain values

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        device: str = "auto",
        dtype: str = DTYPE,
        batch_tokens: int | None = None,
        compile: bool = False,
        max_length: int = 0,
        training: TransformerTrainingSettings | None = None,
    ) -> None:
        libraries()
        self.training = training
        self._set_running(device=device, dtype=dtype, batch_tokens=batch_tokens, compile=compile)
        self.max_length = check_int("max_length", max_length)
        self.has_source = isinstance(model, (str, Path))  # then the model can be read again
        self.name = str(model) if self.has_source else type(model).__name__
        if not self.has_source and tokenizer is None:
            raise ValueError("tokenizer must be given with a loaded model, got None")
        with quietly():
            if self.has_source:
                self._folder = local_folder(self.name)
                check_folder(self._folder)
            self.tokenizer = as_tokenizer(self._folder if tokenizer is None else tokenizer)
        self._weights_hash: str | None = None
        self.untrained_ = False
        if self.has_source:
            with isolated_randomness(0):
                model, self.untrained_ = self._read()
        self.install(model)

    def __repr__(self) -> str:
        compiled = ", compile=True" if self.compile else ""
        return f"TransformersClassifier({self.name!r}, device={self.device!r}, dtype={self.dtype!r}{compiled})"

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Read what `save` wrote; ``options`` are those of the class."""
        base = cls(str(folder), **options)
        if base.untrained_:
            raise unreadable(str(folder), "some of its weights are missing")
        return base

    def save(self, folder: str | Path) -> None:
        """Write configuration, weights (safetensors, in full precision) and tokenizer to a folder."""
        with quietly():
            self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    def start(self, inputs: dict[str, IntArray]) -> Callable[[], npt.NDArray[Any]]:
        """Begin to compute the logits; a GPU works on while the next batch is prepared."""
        torch, _ = libraries()
        if self.untrained_:
            raise BaseClassifierError(f"the model {self.name} has no trained classification head: call fit first")
        if self.dtype == "int8":
            scores = self._running.scores({name: inputs[name] for name in self._arrays})
            return lambda: scores
        with torch.inference_mode(), matmul_precision(self.dtype):
            logits = self._running(**self.tensors(inputs)).logits.float()
        return lambda: logits.cpu().numpy()

    def fingerprint(self) -> str:
        """The SHA-256 of configuration, tokenizer, weights and precision: what the answers depend on."""
        return self.fingerprint_with({"dtype": self.dtype})

    def fingerprint_with(self, options: Mapping[str, Any]) -> str:
        """The fingerprint that the same model has under other options: the precision."""
        code = stated([*self.model.modules(), self.subwords.tokenizer])
        if code is None:
            return ""
        if self._weights_hash is None:
            config = {key: value for key, value in self.model.config.to_dict().items() if key not in VOLATILE}
            digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
            digest.update((self.subwords.state() + code).encode())
            add_weights(digest, self.model)
            self._weights_hash = digest.hexdigest()
        return hashlib.sha256(f"{self._weights_hash} {options['dtype']}".encode()).hexdigest()

    def running(self, options: Mapping[str, Any]) -> TransformersClassifier:
        """The same model on another device or in another precision, tested like a model that is loaded."""
        self.check_running(options)
        other = copy.copy(self)
        known = {name: getattr(self, name) for name in self.running_options}
        if "device" in options:
            known["batch_tokens"] = None  # that of the device
        other._set_running(**known | dict(options))
        other.install(self.model)
        return other

    def _set_running(self, *, device: str, dtype: str, batch_tokens: int | None, compile: bool) -> None:
        """Check and keep where and how the model runs."""
        torch, _ = libraries()
        check_choice("dtype", dtype, DTYPES)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu"
        try:
            kind = torch.device(device).type
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"device must be one that torch has here, such as 'cpu', got {device!r} ({reason:.100})"
            ) from None
        if dtype == "int8":
            if kind != "cpu":
                raise ValueError(f"device must be 'cpu' for dtype 'int8', got {device!r}")
            if compile:
                raise ValueError("compile must be False for dtype 'int8', which torch does not run")
            try:  # before a training, not after it
                import_module("onnx")  # torch exports with it
                import_module("onnxruntime")
            except ImportError as error:
                raise ImportError("dtype 'int8' needs onnxruntime and onnx: pip install 'adaptdel[onnx]'") from error
        if dtype == "tf32" and kind != "cuda":
            raise ValueError(f"dtype must be 'float32' or 'bfloat16' on the device {device!r}, which has no TF32")
        self.device, self.dtype, self.compile = device, dtype, compile
        usual = BATCH_TOKENS if self.device == "cpu" else 16 * BATCH_TOKENS
        size = usual if batch_tokens is None else batch_tokens
        self.batch_tokens = check_int("batch_tokens", size, least=1, most=MOST_BATCH_TOKENS)

    def options(self) -> dict[str, Any]:
        """Precision and maximum length."""
        return {"dtype": self.dtype, "max_length": self.max_length}

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
        run: TrainingRun | None = None,
        **settings: Any,
    ) -> TransformersClassifier:
        """Train on noisy copies, drawn again for every example and epoch, with early stopping.

        A model that was given by name starts from its stored weights, with a new head unless it has one for as many
        classes. A loaded model continues from its present weights. The same seed gives the same model.

        Args:
            tokens: the tokens of every example.
            labels: the label of every example: texts or integers.
            noise: applied to the examples.
            unit: what a token is.
            copies: the number of epochs if the classifier has no ``training``.
            seed: of all random numbers.
            validation: the fraction of the examples that is held out, chosen by their content; or a pair (tokens,
                labels). The weights of the epoch with the smallest validation loss are kept.
            run: the folder of checkpoints, FreeLB, class weights and reports of progress.
            settings: fields of `TransformerTrainingSettings` that replace those of ``training``.
        """
        from adaptdel.classifiers.transformer_training import train_transformer

        unit = check_unit(unit)
        defaults = TRANSFORMER if self.training is None else self.training
        if copies is not None and self.training is None:
            settings = {"epochs": check_int("copies", copies, least=1), **settings}
        chosen = replace(defaults, seed=seed, **settings)
        examples = _example_set(tokens, labels, "labels")
        classes, known = list(dict.fromkeys(examples.labels)), self.model.config.num_labels
        if len(classes) < 2 or {type(label) for label in classes} not in ({str}, {int}):
            raise ValueError(f"labels must be strings or integers of at least 2 classes, got {classes[:3]!r}")
        if not self.has_source and known != len(classes):
            raise ValueError(f"labels must be of {known} classes for {self.name}, got {len(classes)}")
        is_fraction = isinstance(validation, (int, float))
        held = None if is_fraction else _example_set(validation[0], validation[1], "valid_labels")
        texts = (str(unit.join(row)) for row in examples.tokens)
        rows = held_out_rows(texts, examples.labels, validation if is_fraction else 0.0, seed)
        examples, held = split_held_out(examples, rows, held)
        if not held.tokens:
            raise ValueError(
                "validation must hold out at least one example for early stopping: give a larger fraction, or a pair "
                "(tokens, labels)"
            )
        chosen = chosen.for_examples(len(examples.tokens))
        train_transformer(self, examples, held, noise=noise, unit=unit, settings=chosen, run=run or TrainingRun())
        return self

    def _read(self, labels: int | None = None) -> tuple[Any, bool]:
        """The model from its folder in full precision, and whether some of its weights are new.

        With ``labels``, the head is new unless it has as many labels.
        """
        torch, transformers = libraries()
        options = SAFE if labels is None else SAFE | {"num_labels": labels, "ignore_mismatched_sizes": True}
        with quietly(), reading(self.name):
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(self._folder), dtype=torch.float32, output_loading_info=True, **options
            )
        for name, _, wanted in info["mismatched_keys"]:
            if labels is None or wanted[0] != labels:
                raise unreadable(self.name, f"the weights {name} do not fit its config.json")
        for name, values in model.named_parameters():
            if not torch.isfinite(values).all():
                raise unreadable(self.name, f"the weights {name} are not all finite numbers")
        return model, bool(info["missing_keys"])

    def with_head(self, classes: list[Any]) -> Any:
        """The model to train, with a head for these classes; a new head is drawn from torch's generator."""
        # A training that fails leaves the classifier as it was.
        model = self._read(len(classes))[0] if self.has_source else copy.deepcopy(self.model)
        model.config.id2label = {number: str(label) for number, label in enumerate(classes)}
        model.config.label2id = {str(label): number for number, label in enumerate(classes)}
        model.config.adaptdel_integer_labels = not isinstance(classes[0], str)
        return model

    def install(self, model: Any) -> None:
        """Take a model: in full precision to save and train, and a copy in the wanted one to run, which is tested."""
        if model.config.num_labels < 2:
            raise ValueError(f"model must have at least 2 labels, got {model.config.num_labels} in {self.name}")
        self.model = model.eval()
        self._weights_hash = None
        self._rechecked, self._calls, self._early = 0, 0, ()  # what was classified again was classified by another
        accepted = inspect.signature(model.forward).parameters
        self._arrays = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepted]
        names = [model.config.id2label[number] for number in range(model.config.num_labels)]
        if getattr(model.config, "adaptdel_integer_labels", False):
            names = [int(name) for name in names]
        self.classes_ = list(range(len(names))) if names == [f"LABEL_{n}" for n in range(len(names))] else names
        check_labels(self.classes_)
        most = min(filter(None, (self.max_length, _longest(self.tokenizer, model))), default=None)
        self.subwords = Subwords(self.tokenizer, max_length=most, name=self.name)
        self.margin, self.batching, self.self_test_ = MARGIN, "padded", None
        ids = getattr(model.get_input_embeddings(), "num_embeddings", None)
        self._running: Any = None  # what computes the logits: the model on its device in the wanted precision
        if not self.untrained_:
            if self.dtype == "int8":
                self._running = Int8Model(self.model, self.subwords, self._arrays, ids)
            else:
                torch, _ = libraries()
                precision = torch.bfloat16 if self.dtype == "bfloat16" else torch.float32
                same = all(parameter.dtype == precision for parameter in self.model.parameters())
                self._running = (self.model if same else copy.deepcopy(self.model).to(precision)).to(self.device)
                if self.compile:
                    self._running = torch.compile(self._running, dynamic=True)
            # Low precision rounds the last bits that padding changes to other values: shifts grow to 1e-2.
            pads = "attention_mask" in self._arrays and self.dtype == "float32"
            padding_ids = (model.config.pad_token_id, self.tokenizer.pad_token_id)
            self.run_self_test(name=self.name, pads=pads and None not in padding_ids, ids=ids)

    def tensors(self, inputs: dict[str, IntArray]) -> dict[str, Any]:
        """The inputs that the model reads, as tensors on its device; copies to a GPU overlap with its work."""
        torch, _ = libraries()
        tensors = {name: torch.from_numpy(inputs[name]) for name in self._arrays}
        if self.device.startswith("cuda"):
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}


def _example_set(tokens: Sequence[Tokens], labels: Sequence[Any], name: str) -> ExampleSet:
    """Examples with labels as plain values; ValueError unless there is one for each of at least one example."""
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if not len(tokens) or len(tokens) != len(plain):
        raise ValueError(f"{name} must be one for each of at least 1 example, got {len(plain)} for {len(tokens)}")
    return ExampleSet(tokens, plain)


def _longest(tokenizer: Any, model: Any) -> int | None:
    """The largest number of ids that tokenizer and model allow; RoBERTa counts positions from the padding id on."""
    limits = [tokenizer.model_max_length] if tokenizer.model_max_length < UNLIMITED else []
    positions = getattr(model.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
        offsets = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
        limits.append(positions - max(offsets, default=0))
    return min(limits, default=None)
