"""A word encoder in ONNX and 8 bits, which is saved with a model and encodes words that training did not see."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.word_encoders import (
    MOST_SUBWORDS,
    Progress,
    Vectors,
    WordEncoder,
    encode_cached,
    readable,
)
from adaptdel.files import replacing

NEEDS = "a model that encodes new words needs onnxruntime and tokenizers: pip install 'adaptdel[encode]'"
NEEDS_ONNX = "encoding new words needs onnx and onnxruntime: pip install 'adaptdel[transformers,encode]'"
GRAPH, TOKENIZER = "encoder.onnx", "encoder.json"
CACHED_WORDS = 2**14
CACHED_LENGTH = 64  # longer words are not kept
MOST_BYTES = 2**31  # of a graph, which is the limit of the format too
MOST_LENGTH = 2**12  # of a vector
_EXTERNAL = b"\x0a\x08location\x12"  # how a graph names another file that its weights are in


class OnnxEncoder(WordEncoder):
    """Encodes words one at a time, so that the vector of a word depends on nothing but the word.

    The 8-bit layers take the scale of their inputs from all that goes through them together: in a batch, the vector of
    a word would depend on the words beside it. One thread computes in a fixed order, so that the vectors of a machine
    are always the same. They may differ in the last digits between processors and versions of ONNX Runtime.

    Args:
        graph: an ONNX file that turns ``input_ids`` of shape (1, length) into a vector of shape (1, length of vectors).
        tokenizer: a ``tokenizer.json`` file.
        cache: a folder for the vectors of training words, in which a file is named by the hash of the encoder.
        progress: called with (words done, words in all).

    Attributes:
        length: of vectors.
        sha256: of graph and tokenizer.
    """

    exportable = True

    def __init__(
        self, graph: bytes, tokenizer: bytes, *, cache: Path | None = None, progress: Progress | None = None
    ) -> None:
        try:
            import onnxruntime
            import tokenizers
        except ImportError as error:
            raise ImportError(NEEDS) from error
        self.graph, self.tokenizer = graph, tokenizer
        self.cache, self.progress = cache, progress
        self.sha256 = files_hash(graph, tokenizer)
        if _EXTERNAL in graph:
            raise ValueError(f"{GRAPH} must hold its weights itself, not name another file")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of classes that ONNX Runtime makes itself
            raise ValueError(f"{GRAPH} must be a graph that ONNX Runtime reads: {_reason(error)}") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.decode("utf-8"))
            self._tokenizer.enable_truncation(MOST_SUBWORDS)
            self._tokenizer.no_padding()
        except Exception as error:  # tokenizers raises plain exceptions
            raise ValueError(f"{TOKENIZER} must be a tokenizer: {_reason(error)}") from None
        self._known: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()
        self.length = 0
        self.length = len(self._vector("a"))

    def __repr__(self) -> str:
        return f"OnnxEncoder({self.sha256[:16]})"

    def __len__(self) -> int:
        """The number of words in memory."""
        return len(self._known)

    def exported(self) -> OnnxEncoder:
        """The encoder itself."""
        return self

    def description(self) -> dict[str, Any]:
        """The SHA-256 of its files, and the length of vectors."""
        return {"kind": "onnx", "sha256": self.sha256, "length": self.length}

    def encode(self, words: Sequence[str]) -> Vectors:
        """All words, and their vectors; only those that are not in the cache on disk are computed."""
        path = None if self.cache is None else self.cache / f"{self.sha256[:32]}.safetensors"
        return encode_cached(words, lambda block: np.stack([self._vector(word) for word in block]), path, self.progress)

    def vectors(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        """The vectors of words, of shape (words, length), in half precision; those used last are kept in memory."""
        rows = np.zeros((len(words), self.length), dtype=np.float32)
        for place, word in enumerate(words):
            vector = self._known.get(word)
            if vector is None:
                vector = self._vector(word).astype(np.float16)
                if len(word) <= CACHED_LENGTH:
                    if len(self._known) >= CACHED_WORDS:
                        self._known.popitem(last=False)
                    self._known[word] = vector
            else:
                self._known.move_to_end(word)
            rows[place] = vector
        return rows

    def _vector(self, word: str) -> npt.NDArray[np.float32]:
        try:
            ids = self._tokenizer.encode(readable(word)).ids or [0]
            outputs = self._session.run(None, {"input_ids": np.array([ids], dtype=np.int64)})
            vector = np.asarray(outputs[0], dtype=np.float32)
        except Exception as error:  # of classes that ONNX Runtime makes itself
            raise ValueError(f"{GRAPH} must encode every word, but fails on {word[:40]!r}: {_reason(error)}") from None
        wanted = self.length or (vector.shape[-1] if vector.ndim == 2 and vector.shape[-1] <= MOST_LENGTH else 1)
        if vector.shape != (1, wanted) or not np.isfinite(vector).all():
            raise ValueError(
                f"{GRAPH} must give a finite vector of shape (1, {wanted}), got shape {vector.shape} for {word[:40]!r}"
            )
        return vector[0]

    def save(self, folder: Path) -> None:
        """Write ``encoder.onnx`` and ``encoder.json`` into a folder that exists."""
        for name, content in ((GRAPH, self.graph), (TOKENIZER, self.tokenizer)):
            with replacing(folder / name) as file:
                file.write(content)

    @classmethod
    def load(cls, folder: Path, sha256: str | None = None) -> Self:
        """Read what `save` wrote; with a hash, only files that have it."""
        contents = []
        for path in (folder / GRAPH, folder / TOKENIZER):
            try:
                if path.stat().st_size > MOST_BYTES:
                    raise ValueError(f"{path} must be of at most {MOST_BYTES} bytes")
                contents.append(path.read_bytes())
            except OSError as error:
                raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
        if sha256 is not None and files_hash(*contents) != sha256:
            raise ValueError(f"{folder / GRAPH} does not belong to the model beside it: its hash differs")
        try:
            return cls(*contents)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}: save or copy the model anew") from None


def files_hash(graph: bytes, tokenizer: bytes) -> str:
    """The SHA-256 of both files and of how words are cut."""
    digest = hashlib.sha256(f"{MOST_SUBWORDS} {len(graph)} ".encode())
    digest.update(graph)
    digest.update(tokenizer)
    return digest.hexdigest()


def export(tokenizer: Any, model: Any) -> OnnxEncoder:
    """A transformer and its tokenizer as an `OnnxEncoder`: weights in 7 of 8 bits, which no processor's sums exceed."""
    try:
        import torch
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ImportError(NEEDS_ONNX) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ValueError(
            "encoder must have a fast tokenizer to encode new words: choose another, or on_unknown='ngrams'"
        )

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            states = self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state
            return states.mean(dim=1)

    ids = torch.tensor([tokenizer("example")["input_ids"]])
    with tempfile.TemporaryDirectory() as folder, _quietly():
        exact, small = Path(folder) / "exact.onnx", Path(folder) / GRAPH
        torch.onnx.export(
            Pooled().eval(),
            (ids,),
            str(exact),
            input_names=["input_ids"],
            output_names=["vector"],
            dynamic_axes={"input_ids": {0: "words", 1: "length"}, "vector": {0: "words"}},
            dynamo=False,
        )
        quantize_dynamic(str(exact), str(small), weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
        return OnnxEncoder(small.read_bytes(), tokenizer.backend_tokenizer.to_str().encode("utf-8"))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without advice of the exporters: what goes wrong is raised."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
