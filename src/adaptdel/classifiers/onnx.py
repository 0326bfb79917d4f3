"""ONNX Runtime: models in ONNX files as base classifiers, and transformers in 8 bits on a CPU.

In 8 bits, inputs and weights of linear layers are integers at static scales, set on random copies by ONNX Runtime's own
quantisation of torch's own export. Nothing depends on the batch. (Dynamic quantisation scales by batch: a copy's answer
would depend on the other copies.)
"""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptdel.classifiers.base import check_labels, register_classifier, stated
from adaptdel.classifiers.foreign import as_tokenizer
from adaptdel.classifiers.subwords import (
    BATCH_TOKENS,
    MOST_BATCH_TOKENS,
    UNLIMITED,
    Logits,
    SubwordClassifier,
    Subwords,
)
from adaptdel.core.checks import IntArray, check_int, check_text

OPSET = 17
CALIBRATION_COPIES = 64  # random copies that set the scales
LONGEST = 48  # ids of their text
CHECKED_COPIES = 16  # random copies that the graph and the model both read
SAME_SCORES = 0.25  # largest difference, as a fraction of the range of scores

Inputs = Mapping[str, IntArray]


@register_classifier("onnx")
class OnnxClassifier(SubwordClassifier):
    """A sequence classifier in an ONNX file, run by ONNX Runtime.

    The graph reads ``input_ids`` and, if it has them, ``attention_mask`` and ``token_type_ids``; its output ``logits``,
    or else its first output, has a row for each copy.

    Args:
        path: the file.
        tokenizer: a loaded Hugging Face tokenizer, or its folder or name.
        providers: of ONNX Runtime; None for the first that is available, GPU before CPU.
        classes: the labels in the order of the scores; None for the numbers 0, 1, ...
        batch_tokens: the largest number of ids in a batch.
        max_length: the largest number of ids of a copy; None for the tokenizer's limit.
    """

    stored_options = ("file", "classes", "max_length")

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any,
        *,
        providers: Sequence[str] | None = None,
        classes: Sequence[Any] | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
    ) -> None:
        try:
            import onnxruntime
            import transformers  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "OnnxClassifier needs onnxruntime and transformers: pip install 'adaptdel[onnx]'"
            ) from error
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"path must be an ONNX file, got {str(path)!r}")
        self.batch_tokens = check_int("batch_tokens", batch_tokens, least=1, most=MOST_BATCH_TOKENS)
        self.max_length = max_length
        self.tokenizer = tokenizer = as_tokenizer(tokenizer)
        if max_length is None and tokenizer.model_max_length < UNLIMITED:
            max_length = tokenizer.model_max_length
        self.subwords = Subwords(tokenizer, max_length=max_length, name=self.path.name)
        external_files(self.path)  # none is outside of its folder
        self.session = onnxruntime.InferenceSession(
            str(path), providers=list(providers or onnxruntime.get_available_providers())
        )
        self._inputs = {node.name for node in self.session.get_inputs()}
        outputs = [node.name for node in self.session.get_outputs()]
        self._output = "logits" if "logits" in outputs else outputs[0]
        self._fingerprint: str | None = None
        ids = self.subwords.encode(["a"])[0]
        width = self.start_batch([ids])().shape[1]
        self.classes_ = list(range(width) if classes is None else classes)
        if len(self.classes_) != width or width < 2:
            raise ValueError(f"classes must be one for each of the (at least 2) scores, got {width} scores")
        check_labels(self.classes_)
        pads = "attention_mask" in self._inputs and tokenizer.pad_token_id is not None
        self.run_self_test(name=self.path.name, pads=pads)

    def __repr__(self) -> str:
        return f"OnnxClassifier({str(self.path)!r}, classes={self.classes_!r})"

    def start(self, inputs: dict[str, IntArray]) -> Callable[[], Logits]:
        """Compute the logits."""
        accepted = {name: array for name, array in inputs.items() if name in self._inputs}
        scores = np.asarray(self.session.run([self._output], accepted)[0], dtype=np.float32)
        return lambda: scores

    def fingerprint(self) -> str:
        """SHA-256 of the file, of the files that it names for its weights, and of the tokenizer."""
        if stated([self.subwords.tokenizer]) is None:
            return ""
        if self._fingerprint is None:
            digest = hashlib.sha256((self.subwords.state() + (stated([self.subwords.tokenizer]) or "")).encode())
            for file in (self.path, *external_files(self.path)):
                with file.open("rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def options(self) -> dict[str, Any]:
        """The name of the file, classes and longest input."""
        return {"file": self.path.name, "classes": self.classes_, "max_length": self.max_length}

    def save(self, folder: Path) -> None:
        """Copy the ONNX file with its weights, and write the tokenizer beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self.path, *external_files(self.path)):
            target = folder / file.relative_to(self.path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        self.tokenizer.save_pretrained(str(folder))

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote; ``options`` are those of the class, and ``file``, the name of the ONNX file."""
        file = check_text("file", options.pop("file"))
        if Path(file).name != file:
            raise ValueError(f"file must be the name of a file, got {file!r:.60}")
        return cls(Path(folder) / file, str(folder), **options)


def external_files(path: Path) -> list[Path]:
    """The files beside an ONNX file that hold its weights; ValueError for a file outside of its folder."""
    try:
        import onnx

        model = onnx.load(str(path), load_external_data=False)
    except ImportError as error:
        raise ImportError("OnnxClassifier needs onnx: pip install 'adaptdel[onnx]'") from error
    except Exception as error:  # of the parser of the format
        raise ValueError(f"{path}: is not an ONNX model: {error!s:.200}") from None
    names = {entry.value for tensor in _tensors(model) for entry in tensor.external_data if entry.key == "location"}
    folder = path.parent.resolve()
    files = [(path.parent / name) for name in sorted(names)]
    for file in files:
        if not file.resolve().is_relative_to(folder) or not file.is_file():
            raise ValueError(f"{path}: names weights in {file}, which must be a file in the same folder")
    return files


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor in a protocol buffer message, however deep: in graphs, functions and attributes."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _tensors(part)


class Int8Model:
    """The quantised graph of a model; ValueError if it cannot be made, or gives other scores than the model.

    The model reads the arrays ``inputs``, and is left as it is. Random copies are made of ids below ``ids``.
    """

    def __init__(self, model: Any, subwords: Subwords, inputs: Sequence[str], ids: int | None) -> None:
        import onnxruntime
        import torch

        name, probes, rng = subwords.name, subwords.probes(ids), np.random.Generator(np.random.Philox(0))
        most = LONGEST if probes.limit is None else min(LONGEST, probes.limit - len(probes.prefix) - len(probes.suffix))
        copies = [probes.copy(int(rng.integers(1, most, endpoint=True)), rng) for _ in range(CALIBRATION_COPIES)]
        batches = [{name: subwords.padded([row])[name] for name in inputs} for row in copies]
        plain = copy.deepcopy(model).cpu().float().eval()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.log_severity_level = 3  # errors
        try:
            example = {name: np.repeat(array, 2, axis=0) for name, array in batches[0].items()}
            graph = _quantised(_export(plain, example), batches)
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            exported = np.array([self.scores(batch)[0] for batch in batches[:CHECKED_COPIES]])
        except Exception as error:  # exporters and libraries raise whatever an operator leads to
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ValueError(
                f"dtype cannot be 'int8' for {name}, which ONNX Runtime cannot run: {type(error).__name__}: "
                f"{reason:.120}"
            ) from None
        with torch.inference_mode():
            tensors = [{name: torch.from_numpy(a) for name, a in batch.items()} for batch in batches[:CHECKED_COPIES]]
            wanted = np.array([plain(**each).logits[0].numpy() for each in tensors])
        largest, scale = float(np.abs(exported - wanted).max()), float(np.ptp(wanted))
        if not largest <= SAME_SCORES * scale:
            raise ValueError(
                f"dtype cannot be 'int8' for {name}: its scores differ by up to {largest:.2g} from those in float32, "
                f"in a range of {scale:.2g}"
            )

    def scores(self, inputs: Inputs) -> Logits:
        """The logits: a row for each row of the inputs."""
        return np.asarray(self._session.run(None, dict(inputs))[0], dtype=np.float32)


def _export(model: Any, example: Inputs) -> bytes:
    """The graph of a model as ONNX."""
    import torch

    class Logits(torch.nn.Module):
        wrapped: Any

        def forward(self, *arrays: Any) -> Any:
            return self.wrapped(**dict(zip(example, arrays, strict=True))).logits

    file: Any = io.BytesIO()
    logits = Logits()
    logits.wrapped = model  # registered as a part, whose weights are exported
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of the tracer: what it gets wrong shows in the scores
        torch.onnx.export(
            logits.eval(),
            tuple(torch.from_numpy(array) for array in example.values()),
            file,
            input_names=list(example),
            output_names=["logits"],
            dynamic_axes={name: {0: "copies", 1: "ids"} for name in example} | {"logits": {0: "copies"}},
            opset_version=OPSET,
            dynamo=False,
        )
    return bytes(file.getvalue())


def _quantised(graph: bytes, batches: Sequence[Inputs]) -> bytes:
    """The graph with linear layers in 8 bits, but for the last one."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Copies(CalibrationDataReader):  # type: ignore[misc]
        left = iter(batches)

        def get_next(self) -> Any:
            return next(self.left, None)

    model = onnx.load_model_from_string(graph)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice that the quantisation writes to the root logger
    try:
        with tempfile.TemporaryDirectory() as folder:
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
    finally:
        logging.disable(level)
