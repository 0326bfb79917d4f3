"""ONNX models as base classifiers."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import check_labels, register_classifier
from adaptdel.classifiers.foreign import local_folder, read_tokenizer
from adaptdel.classifiers.self_test import BATCHING
from adaptdel.classifiers.subwords import BATCH_TOKENS, MOST_BATCH_TOKENS, UNLIMITED, SubwordClassifier, Subwords
from adaptdel.core.checks import IntArray, check_choice, check_int, check_names, check_real, check_text

MARGIN = 1e-3


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
        margin: two scores closer than this are a near tie; the self-test can only raise it.
        batching: the least strict mode that the self-test may choose: "padded" (copies of any length share a batch),
            "equal" (copies of equal length) or "alone".

    Attributes:
        self_test_: the outcome of the self-test.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any,
        *,
        providers: Sequence[str] | None = None,
        classes: Sequence[Any] | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
        margin: float = MARGIN,
        batching: str = "padded",
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
        self.margin, self.batching = margin, check_choice("batching", batching, BATCHING)
        self.max_length = max_length
        if isinstance(tokenizer, (str, Path)):
            tokenizer = read_tokenizer(local_folder(str(tokenizer), None))
        self.tokenizer = tokenizer
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
        width = self.scores(self.subwords.padded([ids])).shape[1]
        self.classes_ = list(range(width) if classes is None else classes)
        if len(self.classes_) != width or width < 2:
            raise ValueError(f"classes must be one for each of the (at least 2) scores, got {width} scores")
        check_labels(self.classes_)
        pads = "attention_mask" in self._inputs and tokenizer.pad_token_id is not None
        self.run_self_test(name=self.path.name, pads=pads)

    def __repr__(self) -> str:
        return f"OnnxClassifier({str(self.path)!r}, classes={self.classes_!r})"

    def scores(self, inputs: dict[str, IntArray]) -> npt.NDArray[Any]:
        """The logits."""
        accepted = {name: array for name, array in inputs.items() if name in self._inputs}
        return np.asarray(self.session.run([self._output], accepted)[0], dtype=np.float32)

    def fingerprint(self) -> str:
        """SHA-256 of the file, of the files that it names for its weights, and of the tokenizer."""
        if self._fingerprint is None:
            digest = hashlib.sha256(self.subwords.state().encode())
            for file in self._files():
                with file.open("rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _files(self) -> list[Path]:
        """The graph, and the files that hold weights outside of it."""
        return [self.path, *external_files(self.path)]

    def options(self) -> dict[str, Any]:
        """Classes, longest input, margin and batching."""
        return {
            "file": self.path.name,
            "classes": self.classes_,
            "max_length": self.max_length,
            "margin": self.margin,
            "batching": self.batching,
        }

    def save(self, folder: Path) -> None:
        """Copy the ONNX file with its weights, and write the tokenizer beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._files():
            target = folder / file.relative_to(self.path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        self.tokenizer.save_pretrained(str(folder))

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote; ``options`` are those of the class, and ``file``, the name of the ONNX file."""
        file = options.pop("file")
        return cls(Path(folder) / file, str(folder), **options)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """The options are arguments of the class, and the name of the ONNX file."""
        check_names("options", options, ("file",), ("classes", "max_length", "margin", "batching"))
        file = check_text("file", options["file"])
        if Path(file).name != file:
            raise ValueError(f"file must be the name of a file, got {file!r:.60}")
        check_real("margin", options.get("margin", 0.0), accepted="at least 0", least=0.0, most=1e9)


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
