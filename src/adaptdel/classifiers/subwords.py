"""Models of subword ids: copies are joined to texts and tokenised in batches; votes do not depend on batches."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import Prepared, Request
from adaptdel.classifiers.distinct import DistinctClassifier, best_class
from adaptdel.classifiers.foreign import panics_as_errors
from adaptdel.classifiers.self_test import Probes, Scores, SelfTest, self_test
from adaptdel.core.checks import IntArray
from adaptdel.text.units import Tokens, Unit

BATCH_TOKENS = 1024  # the fastest for MiniLM on a core, where larger batches leave the cache
MOST_BATCH_TOKENS = 2**16  # the self-test runs batches of this size
# Scores of MiniLM differ by less than 1e-6 between batches in float32, and in low precision between batches of equal
# lengths.
MARGIN = 1e-3
ONLY_IDS = {"return_attention_mask": False, "return_token_type_ids": False}
UNLIMITED = 10**9  # tokenizers without a limit give 10**30
LONG = 2**14  # longer copies are not tried by the self-test
PROBES = (
    "The quick brown fox jumps over the lazy dog and of the in a to it is .",
    "Don't you're 'tis rock'n'roll ''double'' 3 14159 2024-01-31 v1.2.3 50% $9.99 1e-10",
    "Hello, world! (really?) [sic] <b>bold</b> a/b\\c e.g. i.e. ... — “quotes” ;-) http://example.com/?q=1&r=%20",
    "naïve café ÅNGSTRÖM e\u0301 ﬁne ½ İstanbul straße Москва हिन्दी العربية עברית 中文 日本語 한국어 👍🏽 🇫🇷",
    "Pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120 + " a\u200bb \ufeff \ufffd \x00 ▁a ##c Ġd [MASK] </s>",
)
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory", "bad allocation", "bad_alloc")


class Subwords:
    """The token ids of noisy copies: those of the joined text by the tokenizer itself.

    Args:
        tokenizer: a Hugging Face tokenizer.
        max_length: the largest number of ids of a copy, special tokens included; None for no limit.
        name: the name of the model in messages.
    """

    def __init__(self, tokenizer: Any, *, max_length: int | None, name: str) -> None:
        self.tokenizer, self.max_length, self.name = tokenizer, max_length, name
        whole, bare = self._ids(["a"])[0], self._ids(["a"], add_special_tokens=False)[0]
        start = whole.index(bare[0]) if bare else 0
        self._prefix, self._suffix = whole[:start], whole[start + len(bare) :]
        if max_length is not None and max_length <= len(self._prefix) + len(self._suffix):
            raise ValueError(f"the maximum length of {name} must leave space for a token, got {max_length}")
        ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
        self._nothing = np.array([end for end in ends if end is not None][:1])  # models cannot read 0 ids
        self._check_repeatable()

    def check(self, tokens: Tokens, unit: Unit, masking: bool) -> None:
        """Raise ValueError for an input whose copies cannot be read."""
        if masking and self.tokenizer.mask_token is None:
            raise ValueError(f"noise must be a deletion for {self.name}, whose tokenizer has no mask token")
        if not isinstance(unit.join(tokens[:1]), str):
            raise ValueError(f"unit must join to a text, as 'word' and 'char' do, for {self.name}, got {unit.kind!r}")

    def texts(self, request: Request) -> list[str]:
        """The text of every copy; under masking, the tokenizer's mask stands for a token that is not kept."""
        prepared, mask = request.prepared, self.tokenizer.mask_token
        tokens = np.fromiter(prepared.tokens, dtype=object, count=len(prepared.tokens))
        rows = (np.where(kept, tokens, mask) if prepared.masking else tokens[kept] for kept in request.kept)
        return [str(prepared.unit.join(row.tolist())) for row in rows]

    def encode(self, texts: Sequence[str]) -> list[IntArray]:
        """The ids of texts, with special tokens and truncated."""
        limit = {} if self.max_length is None else {"truncation": True, "max_length": self.max_length}
        return [np.array(row, dtype=np.int64) for row in self._ids(texts, **limit)]

    def padded(self, rows: Sequence[IntArray]) -> dict[str, IntArray]:
        """The inputs of a model for a batch of ids, padded to the longest on the tokenizer's own side."""
        rows = [row if len(row) else self._nothing for row in rows]
        sizes = np.array([len(row) for row in rows])
        real = np.arange(sizes.max()) < sizes[:, None]
        real = real[:, ::-1] if self.tokenizer.padding_side == "left" else real
        ids = np.full(real.shape, self.tokenizer.pad_token_id or 0, dtype=np.int64)
        ids[real] = np.concatenate(rows)
        return {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": np.zeros_like(ids)}

    def probes(self, most: int | None = None) -> Probes:
        """The ids that random copies consist of: those of the vocabulary below ``most``."""
        known = {number for number in self.tokenizer.get_vocab().values() if most is None or number < most}
        special = known & {*self.tokenizer.all_special_ids}
        ids = np.array(sorted(known - special or special), dtype=np.int64)
        limit = None if self.max_length is None else min(self.max_length, LONG)
        return Probes(ids, sorted(special), self._prefix, self._suffix, limit)

    def state(self) -> str:
        """Everything that the ids depend on, as text, for fingerprints."""
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        state = json.loads(backend.to_str()) if backend is not None else {"vocabulary": tokenizer.get_vocab()}
        state.update(truncation=[self.max_length, tokenizer.truncation_side], padding=tokenizer.padding_side)
        return json.dumps([state, tokenizer.mask_token, tokenizer.pad_token_id], sort_keys=True)

    def _ids(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        if not texts:
            return []
        with panics_as_errors(self.name):
            return list(self.tokenizer(list(texts), verbose=False, **options, **ONLY_IDS)["input_ids"])

    def _check_repeatable(self) -> None:
        """Raise if a text does not get the same ids every time, whatever the other texts of the call."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        dropout = getattr(getattr(backend, "model", None), "dropout", None)
        together = self._ids(PROBES)
        again = [*reversed(self._ids(PROBES[::-1])), *(self._ids([probe])[0] for probe in PROBES)]
        if dropout or again != [*together, *together]:
            why = f" (its BPE dropout is {dropout:g}: set it to None)" if dropout else ""
            raise ValueError(f"the tokenizer of {self.name} must give a text the same ids every time{why}")


def batches(sizes: IntArray, budget: int, *, equal: bool = False) -> Iterator[IntArray]:
    """Positions in batches of similar (or equal) sizes: a batch of several has rows · longest ≤ ``budget``.

    >>> [batch.tolist() for batch in batches(np.array([3, 9, 3, 4]), 12)]
    [[0, 2, 3], [1]]
    """
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order].tolist()
    start = 0
    for end in range(1, len(ordered) + 1):
        last = end == len(ordered)
        if last or (end + 1 - start) * ordered[end] > budget or (equal and ordered[end] != ordered[start]):
            yield order[start:end]
            start = end


class SubwordClassifier(DistinctClassifier):
    """A model of subword ids. Its votes do not depend on batches.

    Scores differ in their last bits with the shape of a batch. A copy whose two best scores are closer than ``margin``
    is classified again, alone and without padding, and that answer counts. A self-test of the model, in the precision
    that it runs in, sets the margin and decides which copies may share a batch.
    """

    subwords: Subwords
    batch_tokens: int  # the largest number of ids, with padding, in a batch of several copies
    margin: float = MARGIN  # more than scores differ between batches
    batching: str = "padded"  # which copies may share a batch: see `self_test`
    self_test_: SelfTest | None = None  # None until a trained model has been tested

    @abstractmethod
    def scores(self, inputs: dict[str, IntArray]) -> npt.NDArray[Any]:
        """A row of scores for each row of ``input_ids``, ``attention_mask`` and ``token_type_ids``."""

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Check that the copies of an input can be read."""
        self.subwords.check(tokens, unit, masking)
        return Prepared(name, tokens, unit, masking)

    def keys(self, request: Request) -> list[Hashable]:
        """The texts of the copies."""
        return list(self.subwords.texts(request))

    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """The class of the highest score of each copy."""
        return np.array([np.argmax(row) for row in self._rows(copies)], dtype=np.int64)

    def copy_scores(self, requests: Sequence[Request]) -> list[npt.NDArray[Any]]:
        """The scores of copies, equal ones read once. The best classes are the votes; last bits depend on the batch."""
        keys = [self.keys(request) for request in requests]
        copies = {key: request.prepared for request, row in zip(requests, keys, strict=True) for key in row}
        scored = self._rows([(prepared, key) for key, prepared in copies.items()])
        rows = dict(zip(copies, scored, strict=True))
        return [np.array([rows[key] for key in row]) for row in keys]

    def start(self, inputs: dict[str, IntArray]) -> Callable[[], Scores]:
        """Begin to score a batch, and return what waits for the scores: a GPU works on in the meantime."""
        scores = self.scores(inputs)
        return lambda: scores

    def run_batch(self, rows: Sequence[IntArray]) -> Scores:
        """The scores of a batch of ids."""
        return self.start_batch(rows)()

    def start_batch(self, rows: Sequence[IntArray]) -> Callable[[], Scores]:
        """Begin to score a batch of ids; every batch is begun here. One that does not fit in memory is halved."""
        size = len(rows) * max(map(len, rows))
        if len(rows) == 1 or size <= self.batch_tokens:
            try:
                return self.start(self.subwords.padded(rows))
            except Exception as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
                self._use_smaller_batches(size)
        half = len(rows) // 2
        first, second = self.start_batch(rows[:half]), self.start_batch(rows[half:])
        return lambda: np.concatenate([first(), second()])

    def run_self_test(self, *, name: str, pads: bool, ids: int | None = None) -> None:
        """Derive batching and margin from a self-test.

        Args:
            name: the name of the model in messages.
            pads: whether copies may be padded, which needs an attention mask and a padding token.
            ids: the number of ids that the model has embeddings for, if known; a tokenizer may have more.
        """
        self.self_test_ = self_test(
            self.run_batch,
            self.subwords.probes(ids),
            budget=self.batch_tokens,
            margin=self.margin,
            pads=pads,
            name=name,
            model_hash=self.fingerprint(),
        )
        if self.self_test_.batching == "alone" and self.self_test_.equal is not None:
            warnings.warn(
                f"{name} reads copies one by one, which is slow: its scores depend on the batch", stacklevel=3
            )
        self.batching, self.margin = self.self_test_.batching, self.self_test_.margin

    def _rows(self, copies: Sequence[tuple[Prepared, Hashable]]) -> list[npt.NDArray[Any]]:
        """The scores of each copy: read in batches of similar length, then near ties one by one."""
        if not copies:
            return []
        ids = self.subwords.encode([str(text) for _, text in copies])
        sizes = np.array([len(row) for row in ids], dtype=np.int64)
        rows: dict[int, npt.NDArray[Any]] = {}
        shared = 0 if self.batching == "alone" or self.self_test_ is None else self.self_test_.longest_shared
        together, close = np.flatnonzero(sizes <= shared), np.flatnonzero(sizes > shared).tolist()
        started: deque[tuple[list[int], Callable[[], Scores]]] = deque()  # the last one and the one before
        for chosen in [*batches(sizes[together], self.batch_tokens, equal=self.batching != "padded"), None]:
            if chosen is not None:
                batch = together[chosen].tolist()
                try:
                    started.append((batch, self.start_batch([ids[number] for number in batch])))
                except Exception:  # such as rows with different numbers of special tokens: read alone, errors count
                    close += batch
            while len(started) > (chosen is not None):
                batch, fetched = started.popleft()
                scores = fetched()
                ordered = np.sort(scores, axis=1)
                is_near_tie = ~(ordered[:, -1] - ordered[:, -2] >= self.margin)
                rows.update(zip(batch, scores, strict=True))
                if len(batch) > 1:
                    close += [number for number, near in zip(batch, is_near_tie.tolist(), strict=True) if near]
        for number in close:
            rows[number] = self.run_batch([ids[number]])[0]
        best_class(np.array([rows[number] for number in range(len(copies))]), lambda row: copies[row][0].name)
        return [rows[number] for number in range(len(copies))]

    def _use_smaller_batches(self, size: int) -> None:
        """Note that a batch of so many ids did not fit in memory, and say so the first time."""
        if not getattr(self, "_is_short_of_memory", False):
            warnings.warn(
                f"a batch of {size} subwords does not fit in memory: batches are halved from here on; the votes stay "
                "the same",
                stacklevel=2,
            )
        self._is_short_of_memory = True
        self.batch_tokens = max(1, min(self.batch_tokens, size // 2))


def is_out_of_memory(error: Exception) -> bool:
    """Whether a library could not allocate memory: each has an exception of its own."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in OUT_OF_MEMORY)
