"""Transformers in 8 bits on a CPU: torch's own export of the model, quantised statically and run by ONNX Runtime.

Inputs and weights of linear layers are integers of 8 bits at static scales, set on random copies by ONNX Runtime's own
quantisation. Nothing depends on the batch. (Dynamic quantisation scales by batch: a copy's answer would depend on the
other copies.)
"""

from __future__ import annotations

import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.self_test import Probes
from adaptdel.core.checks import IntArray

OPSET = 17
CALIBRATION_COPIES = 64  # random copies that set the scales
LONGEST = 48  # ids of their text
CHECKED_COPIES = 16  # random copies that the graph and the model both read
SAME_SCORES = 0.25  # largest difference, as a fraction of the range of scores

Inputs = Mapping[str, IntArray]
Scores = npt.NDArray[Any]


def check_can_quantise() -> None:
    """Raise unless the libraries are installed: before a training, not after it."""
    try:
        import_module("onnx")  # torch exports with it
        import_module("onnxruntime")
    except ImportError as error:
        raise ImportError("dtype 'int8' needs onnxruntime and onnx: pip install 'adaptdel[onnx]'") from error


class Int8Model:
    """The quantised graph of a model; ValueError if it cannot be made, or gives other scores than the model.

    Args:
        model: of `AutoModelForSequenceClassification`; it is left as it is.
        inputs: the names of the arrays that it reads.
        probes: what random copies are made of.
        name: what the model is called in messages.
    """

    def __init__(self, model: Any, inputs: Sequence[str], probes: Probes, *, name: str) -> None:
        rng = np.random.Generator(np.random.Philox(0))
        most = LONGEST if probes.limit is None else min(LONGEST, probes.limit - len(probes.prefix) - len(probes.suffix))
        copies = [probes.copy(int(rng.integers(1, most, endpoint=True)), rng) for _ in range(CALIBRATION_COPIES)]
        batches = [_arrays([row], inputs) for row in copies]
        plain = copy.deepcopy(model).cpu().float().eval()
        try:
            self._session = _session(_quantised(_export(plain, _arrays([copies[0], copies[0]], inputs)), batches))
            exported = np.array([self.scores(batch)[0] for batch in batches[:CHECKED_COPIES]])
        except Exception as error:  # exporters and libraries raise whatever an operator leads to
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ValueError(
                f"dtype cannot be 'int8' for {name}, which ONNX Runtime cannot run: {type(error).__name__}: "
                f"{reason:.120}"
            ) from None
        wanted = np.array([_logits(plain, batch)[0] for batch in batches[:CHECKED_COPIES]])
        largest, scale = float(np.abs(exported - wanted).max()), float(np.ptp(wanted))
        if not largest <= SAME_SCORES * scale:
            raise ValueError(
                f"dtype cannot be 'int8' for {name}: its scores differ by up to {largest:.2g} from those in float32, "
                f"in a range of {scale:.2g}"
            )

    def scores(self, inputs: Inputs) -> Scores:
        """The logits: a row for each row of the inputs."""
        return np.asarray(self._session.run(None, dict(inputs))[0], dtype=np.float32)


def _export(model: Any, example: Inputs) -> bytes:
    """The graph of a model as ONNX."""
    import torch

    class Logits(torch.nn.Module):
        """The model with its inputs in the order of the example, as the exporter calls it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            return self.model(**dict(zip(example, arrays, strict=True))).logits

    file: Any = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of the tracer: what it gets wrong shows in the scores
        torch.onnx.export(
            Logits().eval(),
            tuple(torch.from_numpy(array) for array in example.values()),
            file,
            input_names=list(example),
            output_names=["logits"],
            dynamic_axes={name: {0: "copies", 1: "ids"} for name in example} | {"logits": {0: "copies"}},
            opset_version=OPSET,
            dynamo=False,
        )
    graph: bytes = file.getvalue()
    return graph


def _quantised(graph: bytes, batches: Sequence[Inputs]) -> bytes:
    """The graph with linear layers in 8 bits, but for the last one."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Copies(CalibrationDataReader):  # type: ignore[misc]
        """The copies that set the scales."""

        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> Any:
            return next(self.left, None)

    model = onnx.load_model_from_string(graph)
    with tempfile.TemporaryDirectory() as folder, _without_advice():
        quantize_static(
            model,
            Path(folder) / "int8.onnx",
            Copies(),
            op_types_to_quantize=["MatMul", "Gemm"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_exclude=[node.name for node in model.graph.node if "logits" in node.output],
            extra_options={"MatMulConstBOnly": True},
        )
        return (Path(folder) / "int8.onnx").read_bytes()


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the advice that the quantisation writes to the root logger."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _session(graph: bytes) -> Any:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _arrays(rows: Sequence[IntArray], inputs: Sequence[str]) -> dict[str, IntArray]:
    """The inputs of a batch of copies of equal length."""
    ids = np.stack(rows).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: arrays[name] for name in inputs}


def _logits(model: Any, inputs: Inputs) -> Scores:
    import torch

    with torch.inference_mode():
        scores: Scores = model(**{name: torch.from_numpy(array) for name, array in inputs.items()}).logits.numpy()
    return scores
