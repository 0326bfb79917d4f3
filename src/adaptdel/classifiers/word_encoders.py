"""Pretrained vectors of single words: from a transformer, computed once and kept on disk, or from a file."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.core.checks import check_int
from adaptdel.files import replacing

NEEDS = "TransformerEncoder needs torch and transformers: pip install 'adaptdel[transformers]'"
MOST_SUBWORDS = 24  # of a word; a longer one is cut
BATCH_SUBWORDS = 4096
Vectors = tuple[list[str], npt.NDArray[np.float32]]


class WordEncoder(ABC):
    """Gives words vectors, each on its own."""

    @abstractmethod
    def encode(self, words: Sequence[str]) -> Vectors:
        """The words that have vectors, and these, of shape (words, length)."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What the vectors depend on, in plain values."""


class StaticVectors(WordEncoder):
    """Vectors from a safetensors file with ``words`` (UTF-8 bytes, one word a line) and ``vectors`` (a row a word).

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"StaticVectors({str(self.path)!r})"

    def encode(self, words: Sequence[str]) -> Vectors:
        """The words that the file holds, and their vectors."""
        listed, vectors = read_vectors(self.path)
        rows = {word: row for row, word in enumerate(listed)}
        known = [word for word in words if word in rows]
        return known, vectors[[rows[word] for word in known]].astype(np.float32)

    def description(self) -> dict[str, Any]:
        """The SHA-256 of the file."""
        return {"kind": "static", "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest()}


class TransformerEncoder(WordEncoder):
    """A transformer's encoding of each single word: the mean of the last hidden states of its subwords.

    Words are encoded in batches of equal length, without padding, and kept on disk.

    Args:
        model: the folder or name of an encoder.
        cache: a folder for vectors, in which a file is named by the hash of the encoder; None keeps nothing.
        progress: called with (words done, words in all).
    """

    def __init__(
        self,
        model: str | Path,
        *,
        cache: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.model = str(model)
        self.cache = None if cache is None else Path(cache)
        self.progress = progress
        self._loaded: tuple[Any, Any] | None = None
        self._hash = ""

    def __repr__(self) -> str:
        return f"TransformerEncoder({self.model!r})"

    def description(self) -> dict[str, Any]:
        """The SHA-256 of the encoder's configuration, tokenizer and weights."""
        return {"kind": "transformer", "sha256": self.encoder_hash()}

    def encode(self, words: Sequence[str]) -> Vectors:
        """All words, and their vectors; only those that are not in the cache are computed."""
        known: dict[str, npt.NDArray[np.float32]] = {}
        path = None if self.cache is None else self.cache / f"{self.encoder_hash()[:32]}.safetensors"
        if path is not None and path.exists():
            listed, vectors = read_vectors(path)
            known = dict(zip(listed, vectors, strict=True))
        missing = [word for word in words if word not in known and word and "\n" not in word]
        if missing:
            computed = self._encode(missing).astype(np.float16).astype(np.float32)  # as in the file
            known.update(zip(missing, computed, strict=True))
            if path is not None:
                write_vectors(path, list(known), np.stack(list(known.values())))
        kept = [word for word in words if word in known]
        length = len(next(iter(known.values()))) if known else 1
        stacked = np.stack([known[word] for word in kept]) if kept else np.zeros((0, length))
        return kept, stacked.astype(np.float32)

    def encoder_hash(self) -> str:
        """The SHA-256 of configuration, tokenizer and weights."""
        if not self._hash:
            tokenizer, model = self._load()
            digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
            digest.update(f"{type(model).__name__} {MOST_SUBWORDS}".encode())
            for name, tensor in sorted(model.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().contiguous().numpy().data)
            self._hash = digest.hexdigest()
        return self._hash

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            try:
                import torch
                import transformers
            except ImportError as error:
                raise ImportError(NEEDS) from error
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model, trust_remote_code=False)
            model = transformers.AutoModel.from_pretrained(
                self.model, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
            )
            self._loaded = tokenizer, model.eval()
        return self._loaded

    def _encode(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        import torch

        tokenizer, model = self._load()
        ids = tokenizer(list(words), truncation=True, max_length=MOST_SUBWORDS)["input_ids"]
        lengths = np.array([len(row) for row in ids])
        vectors = np.zeros((len(words), model.config.hidden_size), dtype=np.float32)
        done = 0
        with torch.inference_mode():
            for length in np.unique(lengths).tolist():
                places = np.flatnonzero(lengths == length)
                for start in range(0, len(places), max(1, BATCH_SUBWORDS // length)):
                    block = places[start : start + max(1, BATCH_SUBWORDS // length)]
                    batch = torch.tensor([ids[place] for place in block.tolist()])
                    states = model(input_ids=batch, attention_mask=torch.ones_like(batch)).last_hidden_state
                    vectors[block] = states.mean(dim=1).numpy()
                    done += len(block)
                    if self.progress is not None:
                        self.progress(done, len(words))
        return vectors


def write_vectors(path: Path, words: Sequence[str], vectors: npt.NDArray[Any]) -> None:
    """Write words and vectors (in half precision) to a safetensors file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = np.frombuffer("\n".join(words).encode("utf-8", "surrogatepass"), dtype=np.uint8)
    content = tensors_to_bytes({"words": listed, "vectors": np.ascontiguousarray(vectors, dtype=np.float16)})
    with replacing(path) as file:
        file.write(content)


def read_vectors(path: Path) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Read words and vectors; ValueError that names the file and what is wrong in it."""
    try:
        tensors = tensors_from_bytes(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} must be a safetensors file: {reason}: write it anew") from None
    listed, vectors = tensors.get("words"), tensors.get("vectors")
    if listed is None or listed.dtype != np.uint8 or vectors is None or vectors.dtype.kind != "f":
        raise ValueError(f"{path} must hold words as uint8 and vectors as floats: write it anew")
    try:
        words = listed.tobytes().decode("utf-8", "surrogatepass").split("\n") if listed.size else []
    except UnicodeDecodeError:
        raise ValueError(f"{path} must hold words in UTF-8: write it anew") from None
    if vectors.ndim != 2 or len(vectors) != len(words) or len(set(words)) != len(words):
        raise ValueError(f"{path} must hold a vector for each of its {len(words)} different words: write it anew")
    check_int("length of vectors", vectors.shape[1], least=1, most=2**14)
    values = vectors.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"{path} must hold finite vectors: write it anew")
    return words, values
