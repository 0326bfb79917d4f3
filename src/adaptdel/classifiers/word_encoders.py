"""Pretrained vectors of single words: from a transformer, computed once and kept on disk, or from a file."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.core.checks import check_int
from adaptdel.files import replacing, replacing_folder

NEEDS = "TransformerEncoder needs torch and transformers: pip install 'adaptdel[transformers]'"
MOST_SUBWORDS = 24  # of a word; a longer one is cut
MOST_CHARACTERS = 96  # of a word that a tokenizer reads
BATCH_SUBWORDS = 4096
BLOCK_WORDS = 2048  # that are encoded between two reports of progress
WRITTEN_EVERY = 20.0  # seconds between two writes of the cache
# Parts of a configuration and of a tokenizer that vectors do not depend on.
_NOT_HASHED = {"_name_or_path", "name_or_path", "vocab_file", "transformers_version", "truncation", "padding"}
Vectors = tuple[list[str], npt.NDArray[np.float32]]
Progress = Callable[[int, int], None]

if TYPE_CHECKING:
    from adaptdel.classifiers.onnx_encoder import OnnxEncoder


class WordEncoder(ABC):
    """Gives words vectors, each on its own.

    Attributes:
        exportable: whether `exported` gives an encoder that is saved with a model, for words that training did not see.
    """

    exportable = False

    def exported(self) -> OnnxEncoder:
        """The encoder in a form that is saved with a model."""
        raise ValueError(f"encoder must be a transformer to encode new words, got {self!r}")

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

    Words are encoded in batches of equal length, without padding, and kept on disk. What was computed is written every
    20 seconds, so that little is lost if the process ends.

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
        progress: Progress | None = None,
    ) -> None:
        self.model = str(model)
        self.cache = None if cache is None else Path(cache)
        self.progress = progress
        self._loaded: tuple[Any, Any] | None = None
        self._hash = ""

    exportable = True

    def __repr__(self) -> str:
        return f"TransformerEncoder({self.model!r})"

    def description(self) -> dict[str, Any]:
        """The SHA-256 of the encoder's configuration, tokenizer and weights."""
        return {"kind": "transformer", "sha256": self.encoder_hash()}

    def encode(self, words: Sequence[str]) -> Vectors:
        """All words, and their vectors; only those that are not in the cache are computed."""
        path = None if self.cache is None else self.cache / f"{self.encoder_hash()[:32]}.safetensors"
        return encode_cached(words, self._encode, path, self.progress)

    def exported(self) -> OnnxEncoder:
        """The encoder in ONNX and 8 bits, with the same cache; it is kept in the cache too."""
        from adaptdel.classifiers.onnx_encoder import OnnxEncoder, export

        stored = None if self.cache is None else self.cache / f"{self.encoder_hash()[:32]}-onnx"
        if stored is not None and stored.exists():
            encoder = OnnxEncoder.load(stored)
        else:
            encoder = export(*self._load())
            if stored is not None:
                stored.parent.mkdir(parents=True, exist_ok=True)
                with replacing_folder(stored) as partial:
                    encoder.save(partial)
        encoder.cache, encoder.progress = self.cache, self.progress
        return encoder

    def encoder_hash(self) -> str:
        """The SHA-256 of configuration, tokenizer and weights."""
        if not self._hash:
            tokenizer, model = self._load()
            digest = hashlib.sha256(json.dumps(_rules(tokenizer), sort_keys=True).encode())
            config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_HASHED}
            digest.update(json.dumps(config, sort_keys=True, default=str).encode())
            digest.update(f"{type(model).__name__} {MOST_SUBWORDS} {MOST_CHARACTERS}".encode())
            for name, tensor in sorted(model.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().contiguous().numpy().data)
            self._hash = digest.hexdigest()
        return self._hash

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from adaptdel.classifiers.transformers import libraries, quietly

            try:
                torch, transformers = libraries()
            except ImportError as error:
                raise ImportError(NEEDS) from error
            try:
                with quietly():
                    tokenizer = transformers.AutoTokenizer.from_pretrained(self.model, trust_remote_code=False)
                    model = transformers.AutoModel.from_pretrained(
                        self.model,
                        use_safetensors=True,
                        trust_remote_code=False,
                        dtype=torch.float32,
                        attn_implementation="eager",
                    )
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:160]
                raise ValueError(
                    f"encoder must be a transformer that can be read, got {self.model!r}: {reason}"
                ) from None
            self._loaded = tokenizer, model.eval()
        return self._loaded

    def _encode(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        import torch

        tokenizer, model = self._load()
        ids = tokenizer([readable(word) for word in words], truncation=True, max_length=MOST_SUBWORDS)["input_ids"]
        lengths = np.array([len(row) for row in ids])
        vectors = np.zeros((len(words), model.config.hidden_size), dtype=np.float32)
        with torch.inference_mode():
            for length in np.unique(lengths).tolist():
                places = np.flatnonzero(lengths == length)
                for start in range(0, len(places), max(1, BATCH_SUBWORDS // length)):
                    block = places[start : start + max(1, BATCH_SUBWORDS // length)]
                    batch = torch.tensor([ids[place] for place in block.tolist()])
                    states = model(input_ids=batch, attention_mask=torch.ones_like(batch)).last_hidden_state
                    vectors[block] = states.mean(dim=1).numpy()
        return vectors


def _rules(tokenizer: Any) -> dict[str, Any]:
    """All that subwords depend on, except where they are cut: that changes whenever the tokenizer is called."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: its rules are its class and its arguments
        arguments = {name: str(value) for name, value in tokenizer.init_kwargs.items() if name not in _NOT_HASHED}
        return {"class": type(tokenizer).__name__, "arguments": arguments, "vocabulary": tokenizer.get_vocab()}
    return {name: value for name, value in json.loads(backend.to_str()).items() if name not in _NOT_HASHED}


def word_encoder(name: str, *, cache: str | Path | None = None, progress: Progress | None = None) -> WordEncoder:
    """An encoder by its name: a ``.safetensors`` file of vectors, or the folder or hub name of a transformer."""
    if name.endswith(".safetensors"):
        return StaticVectors(name)
    return TransformerEncoder(name, cache=cache, progress=progress)


def encodable(word: Any) -> bool:
    """Whether a word can have a pretrained vector; a line break would end it in a file of vectors."""
    return isinstance(word, str) and word != "" and "\n" not in word


def readable(word: str) -> str:
    """What a tokenizer reads of a word: the first characters, without halves of characters."""
    return word[:MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def encode_cached(
    words: Sequence[str],
    encode: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    path: Path | None,
    progress: Progress | None,
) -> Vectors:
    """The words that can have vectors, and these, in half precision; with those of a file, which is added to.

    Args:
        words: to encode.
        encode: gives vectors of words, of shape (words, length).
        path: a file of vectors, which need not exist; None for none.
        progress: called with (words done, words in all).
    """
    known: dict[str, npt.NDArray[np.float32]] = {}
    if path is not None and path.exists():
        try:
            known = dict(zip(*read_vectors(path), strict=True))
        except ValueError as error:
            raise ValueError(f"{str(error).removesuffix(': write it anew')}: delete it") from None
    kept = [word for word in words if encodable(word)]
    missing = [word for word in kept if word not in known]
    written = time.monotonic()
    for start in range(0, len(missing), BLOCK_WORDS):
        block = missing[start : start + BLOCK_WORDS]
        known.update(zip(block, encode(block).astype(np.float16).astype(np.float32), strict=True))  # as in the file
        done = start + len(block)
        if path is not None and (done == len(missing) or time.monotonic() - written > WRITTEN_EVERY):
            write_vectors(path, list(known), np.stack(list(known.values())))
            written = time.monotonic()
        if progress is not None:
            progress(done, len(missing))
    length = len(next(iter(known.values()))) if known else 1
    stacked = np.stack([known[word] for word in kept]) if kept else np.zeros((0, length))
    return kept, stacked.astype(np.float32)


def write_vectors(path: str | Path, words: Sequence[str], vectors: npt.NDArray[Any]) -> None:
    """Write words and vectors (in half precision) to a safetensors file, whole or not at all."""
    path = Path(path)
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
