"""Backends: a transformer's graph, exported from torch, that ONNX Runtime or OpenVINO runs on the CPU.

An exported graph computes what the torch model computes, up to rounding, in float32 or bfloat16. In int8, inputs and
weights of linear layers are whole numbers of 8 bits at static scales: one a layer for its inputs, set beforehand on
random copies, and one an output for its weights. Nothing depends on the batch. (Dynamic quantisation, which both
libraries recommend for transformers, scales by batch: a copy's answer would depend on the other copies.)

Scales from copies of training texts, tried instead of random ones, brought scores of MiniLM on SpamAssassin hardly
closer to float32. Least-squares scales, which cut off the few largest inputs, were much worse.
"""

from __future__ import annotations

import copy
import io
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.self_test import Probes
from adaptdel.core.checks import IntArray

OPSET = 17
CALIBRATION_COPIES = 64  # random copies that set the scales of int8
LONGEST = 48  # ids of their text
FIRST_ONLY = 1e-5  # of the range of scores: what rounding may change
CHECKED_COPIES = 16  # random copies that a graph and the model both read
SAME_SCORES = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.25}  # largest difference, as a share of the range of scores
SCALE_BITS = 8  # of a scale's mantissa: rounded, so that it is the same on every machine
GRAPH = 1  # part of a fingerprint: to be raised when exported graphs change their scores
WORTHWHILE = 0.1  # of torch's time, to be saved by another backend that "auto" chooses
TIMED_COPIES, TIMED_LENGTH, TIMED_ROUNDS = 32, 32, 3  # copies in a batch, their ids, and batches for "auto"

Inputs = Mapping[str, IntArray]
Scores = npt.NDArray[Any]


class Backend(ABC):
    """A library that runs an exported graph.

    Attributes:
        name: as in `adaptdel.settings.BACKENDS`, and of the module.
        extra: what installs it.
        dtypes: the precisions that it has.
        activation_range: least and largest whole number of an input of a layer in int8: the kernels that are fast.
    """

    name: ClassVar[str]
    extra: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]
    activation_range: ClassVar[tuple[int, int]]

    @classmethod
    def library(cls) -> Any:
        """The module, or an ImportError that names the extra."""
        try:
            import_module("onnx")  # torch exports with it
            return import_module(cls.name)
        except ImportError as error:
            needed = f"{cls.name} and onnx: pip install 'adaptdel[{cls.extra}]'"
            raise ImportError(f"backend {cls.name!r} needs {needed}") from error

    @classmethod
    def check(cls, dtype: str) -> None:
        """Raise unless the library is installed and has this precision: before a training, not after it."""
        if dtype not in cls.dtypes:
            known = " or ".join(map(repr, cls.dtypes))
            raise ValueError(f"dtype must be {known} for backend {cls.name!r}, got {dtype!r}")
        cls.library()

    @abstractmethod
    def __init__(self, graph: bytes, *, dtype: str, threads: int) -> None: ...

    @abstractmethod
    def scores(self, inputs: Inputs) -> Scores:
        """A row of scores for each row of the inputs."""


class OnnxRuntime(Backend):
    """ONNX Runtime on the CPU."""

    name = "onnxruntime"
    extra = "onnx"
    dtypes = ("float32", "int8")
    activation_range = (0, 255)

    def __init__(self, graph: bytes, *, dtype: str, threads: int) -> None:
        onnxruntime = self.library()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def scores(self, inputs: Inputs) -> Scores:
        """The logits."""
        return np.asarray(self._session.run(None, dict(inputs))[0], dtype=np.float32)


class OpenVino(Backend):
    """OpenVINO on the CPU."""

    name = "openvino"
    extra = "openvino"
    dtypes = ("float32", "bfloat16", "int8")
    activation_range = (-128, 127)

    @classmethod
    def check(cls, dtype: str) -> None:
        """As for every backend; bfloat16 needs a processor that has it."""
        super().check(dtype)
        if dtype == "bfloat16" and "BF16" not in cls.library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ValueError("dtype must be 'float32' or 'int8' for backend 'openvino' on a processor without bfloat16")

    def __init__(self, graph: bytes, *, dtype: str, threads: int) -> None:
        core = self.library().Core()
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",  # by itself it would take bfloat16
        }
        self._request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()

    def scores(self, inputs: Inputs) -> Scores:
        """The logits."""
        return np.array(self._request.infer(dict(inputs))[0], dtype=np.float32)


EXPORTED: dict[str, type[Backend]] = {backend.name: backend for backend in (OnnxRuntime, OpenVino)}


def start(
    name: str, model: Any, inputs: Sequence[str], probes: Probes, *, dtype: str, threads: int, title: str
) -> Backend:
    """Export a model and load its graph; ValueError if that cannot be done, or gives other scores than the model.

    Args:
        name: of the backend.
        model: of `AutoModelForSequenceClassification`; it is left as it is.
        inputs: the arrays that it reads.
        probes: what random copies are made of.
        dtype: the precision.
        threads: that may be used.
        title: what the model is called in messages.
    """
    kind = EXPORTED[name]
    kind.check(dtype)
    rng = np.random.Generator(np.random.Philox(0))
    most = LONGEST if probes.limit is None else min(LONGEST, probes.limit - len(probes.prefix) - len(probes.suffix))
    copies = [probes.copy(int(rng.integers(1, most, endpoint=True)), rng) for _ in range(CALIBRATION_COPIES)]
    try:
        graph = export(model, inputs, dtype=dtype, levels=kind.activation_range, copies=copies)
        backend = kind(graph, dtype=dtype, threads=threads)
        pairs = [(backend.scores(_arrays([row], inputs))[0], _logits(model, row)) for row in copies[:CHECKED_COPIES]]
    except (ImportError, ValueError):
        raise
    except Exception as error:  # exporters and libraries raise whatever an operator leads to
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(
            f"backend must be 'torch' for {title}, which {name} cannot run: {type(error).__name__}: {reason:.120}"
        ) from None
    exported_scores, wanted = map(np.array, zip(*pairs, strict=True))
    finite = np.isfinite(wanted)
    largest = float(np.abs(exported_scores - wanted)[finite].max(initial=0.0))
    scale = float(np.ptp(wanted[finite])) if finite.any() else 0.0
    if largest > SAME_SCORES[dtype] * scale or not np.array_equal(np.isfinite(exported_scores), finite):
        raise ValueError(
            f"backend must be 'torch' for {title}: in {dtype} its scores differ by up to {largest:.2g} between torch "
            f"and {name}, in a range of {scale:.2g}"
        )
    return backend


def fastest(running: Mapping[str, Any], inputs: Sequence[str], probes: Probes) -> tuple[str, dict[str, float]]:
    """The name of the fastest of several backends on this machine, and the processor's seconds that each takes a copy.

    Torch, which is always installed, is taken if the fastest one saves less than `WORTHWHILE` of its time.

    Args:
        running: functions from inputs to scores, by name.
        inputs: the arrays that they read.
        probes: what random copies are made of.
    """
    rng = np.random.Generator(np.random.Philox(0))
    most = TIMED_LENGTH if probes.limit is None else min(TIMED_LENGTH, probes.limit)
    inner = max(0, most - len(probes.prefix) - len(probes.suffix))
    batch = _arrays([probes.copy(inner, rng) for _ in range(TIMED_COPIES)], inputs)
    seconds: dict[str, float] = {}
    for name, score in running.items():
        score(batch)  # the first call of a shape prepares it
        rounds = []
        for _ in range(TIMED_ROUNDS):
            began = time.process_time()
            score(batch)
            rounds.append(time.process_time() - began)
        seconds[name] = min(rounds) / TIMED_COPIES
    best = min(seconds, key=lambda name: seconds[name])
    if "torch" in seconds and seconds[best] > (1 - WORTHWHILE) * seconds["torch"]:
        best = "torch"
    return best, seconds


def export(
    model: Any, inputs: Sequence[str], *, dtype: str, levels: tuple[int, int], copies: Sequence[IntArray]
) -> bytes:
    """The graph of a model as ONNX, made without network access.

    Args:
        model: of `AutoModelForSequenceClassification`; it is left as it is.
        inputs: the arrays that it reads.
        dtype: "int8" quantises linear layers but for the last; else the graph is in float32.
        levels: least and largest whole number of a layer's inputs, for "int8".
        copies: ids that set the scales of "int8".
    """
    import torch

    running = _plain_copy(model)
    with torch.inference_mode():
        _compute_first_only(running, copies[:CHECKED_COPIES])
        if dtype == "int8":
            _quantise(running, _scales(running, copies), levels)
    example = _arrays([copies[0], copies[0]], inputs)
    file: Any = io.BytesIO()  # the old exporter takes it, though torch's annotation names paths alone
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of the tracer: what it gets wrong, `start` finds
        torch.onnx.export(
            _named_inputs(running, inputs),
            tuple(torch.from_numpy(example[name]) for name in inputs),
            file,
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes={name: {0: "copies", 1: "ids"} for name in inputs} | {"logits": {0: "copies"}},
            opset_version=OPSET,
            dynamo=False,
        )
    graph: bytes = file.getvalue()
    return graph


def _arrays(rows: Sequence[IntArray], inputs: Sequence[str]) -> dict[str, IntArray]:
    """The inputs of a batch of copies of equal length."""
    ids = np.stack(rows).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: arrays[name] for name in inputs}


def _plain_copy(model: Any) -> Any:
    """A copy in float32 on the CPU whose attention is written as matrix products, which the libraries fuse."""
    running = copy.deepcopy(model).cpu().float().eval()
    if hasattr(running, "set_attn_implementation"):
        running.set_attn_implementation("eager")
    return running


def _logits(model: Any, row: IntArray) -> Scores:
    """The scores of a copy by the torch model in full precision."""
    import torch

    with torch.inference_mode():
        ids = torch.from_numpy(np.asarray(row, dtype=np.int64)[None]).to(next(model.parameters()).device)
        scores: Scores = model(input_ids=ids).logits[0].double().cpu().numpy()
    return scores


def _named_inputs(model: Any, inputs: Sequence[str]) -> Any:
    """A module of inputs by place, as exporters call it."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            return self.model(**dict(zip(inputs, arrays, strict=True))).logits

    return Logits().eval()


def _layers(model: Any) -> dict[str, Any]:
    """The linear layers, but for the last."""
    import torch

    kept = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    return {name: layer for name, layer in kept.items() if layer.out_features != model.config.num_labels}


def _scales(model: Any, copies: Sequence[IntArray]) -> dict[str, float]:
    """The step between whole numbers for the inputs of each linear layer, from their largest value over copies.

    In double precision and rounded up to `SCALE_BITS` bits, so that the last bits of a machine's sums do not matter.
    """
    import torch

    largest: dict[str, float] = {}
    double = copy.deepcopy(model).double()

    def record(name: str, layer: Any, values: tuple[Any, ...]) -> None:
        largest[name] = max(largest.get(name, 0.0), float(values[0].abs().max()))

    for name, layer in _layers(double).items():
        layer.register_forward_pre_hook(partial(record, name))
    for row in copies:
        double(input_ids=torch.from_numpy(np.asarray(row, dtype=np.int64)[None]))
    scales = {}
    for name, value in largest.items():
        mantissa, exponent = math.frexp(max(value, 1e-30) / 127)
        scales[name] = math.ldexp(math.ceil(mantissa * 2**SCALE_BITS), exponent - SCALE_BITS)
    return scales


def _quantise(model: Any, scales: Mapping[str, float], levels: tuple[int, int]) -> None:
    """Let linear layers multiply whole numbers of 8 bits: inputs at the given scales, weights at one an output."""
    import torch

    zero = sum(levels) // 2 + 1  # the whole number that stands for 0
    for name, layer in _layers(model).items():
        if name in scales:
            weight = layer.weight.detach()
            steps = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
            # Buffers, as the exporter computes what depends on plain tensors, and leaves float32 of it.
            layer.register_buffer("transposed", weight.t().contiguous())
            layer.register_buffer("steps", steps)
            layer.register_buffer("zeros", torch.zeros(len(steps), dtype=torch.int32))
            layer.forward = partial(_static_linear, torch, layer, scales[name], zero, levels)


def _static_linear(torch: Any, layer: Any, scale: float, zero: int, levels: tuple[int, int], values: Any) -> Any:
    """A linear layer between whole numbers: a pair of QuantizeLinear and DequantizeLinear for inputs and weights."""
    whole = torch.fake_quantize_per_tensor_affine(values, scale, zero, *levels)
    weight = torch.fake_quantize_per_channel_affine(layer.transposed, layer.steps, layer.zeros, 1, -128, 127)
    product = torch.matmul(whole, weight)
    return product if layer.bias is None else product + layer.bias


def _compute_first_only(model: Any, copies: Sequence[IntArray]) -> None:
    """Let the last layer compute the first token alone, where only that is classified: a seventh less to compute.

    This is for models built like BERT, RoBERTa and ELECTRA. A model whose scores would change is left as it is.
    """
    layers = getattr(getattr(getattr(model, model.base_model_prefix, None), "encoder", None), "layer", None)
    if layers is None or len(copies) == 0:
        return
    original = layers[len(layers) - 1]
    wanted = np.array([_logits(model, row) for row in copies])
    try:
        layers[len(layers) - 1] = _first_token_layer(original)
        exported_scores = np.array([_logits(model, row) for row in copies])
        same = np.abs(exported_scores - wanted).max() <= FIRST_ONLY * np.ptp(wanted)
    except Exception:  # whatever a layer of another build leads to
        same = False
    if not same:
        layers[len(layers) - 1] = original


def _first_token_layer(layer: Any) -> Any:
    """A layer of BERT's build that reads all tokens, and computes the first."""
    import torch

    heads, size = layer.attention.self.num_attention_heads, layer.attention.self.attention_head_size

    class FirstTokenLayer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, states: Any, attention_mask: Any = None, *others: Any, **options: Any) -> Any:
            attention, first = self.layer.attention, states[:, :1]
            own = attention.self
            query, key, value = (
                project(values).view(values.shape[0], -1, heads, size).transpose(1, 2)
                for project, values in ((own.query, first), (own.key, states), (own.value, states))
            )
            weights = torch.matmul(query, key.transpose(2, 3)) * size**-0.5
            if attention_mask is not None:
                weights = weights + attention_mask[:, :, :1]
            mixed = torch.matmul(torch.softmax(weights, dim=-1), value).transpose(1, 2)
            attended = attention.output(mixed.reshape(first.shape[0], 1, heads * size), first)
            return self.layer.feed_forward_chunk(attended)

    return FirstTokenLayer()
