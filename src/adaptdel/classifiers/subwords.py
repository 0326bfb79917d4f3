"""Subword ids of noisy copies: each word is tokenised once, and the ids of a copy are gathered.

The ids of a copy are those of its joined text under the tokenizer itself. Gathering is used where that holds: no part
of the tokenizer looks across a space (see `locality`), it agrees with gathering on the probes below, and gives every
word of the input the same subwords among other words. Otherwise the joined text is tokenised. As a last check, random
copies of the first inputs, and of some later ones, are tokenised both ways.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import DistinctClassifier, Prepared, Request, best_class
from adaptdel.classifiers.locality import locality
from adaptdel.classifiers.self_test import BATCHING, Probes, SelfTest, self_test
from adaptdel.core.checks import BoolArray, IntArray, check_choice
from adaptdel.text.units import Tokens, Unit, Words

Ids: TypeAlias = npt.NDArray[np.int32]
ID_BYTES = 4
TOKENISE = ("auto", "gather", "join")
BATCH_TOKENS = 1024  # the fastest for MiniLM on a core, where larger batches leave the cache
ONLY_IDS = {"return_attention_mask": False, "return_token_type_ids": False}
REMEMBERED_WORDS = 2**16
CHUNK = 2**22  # entries of ``kept`` that are gathered at a time
FIRST_INPUTS = 16  # are checked for sure
CHECKED_COPIES = 8  # of an input that is checked
CHECKED_EVERY = 16  # later inputs
LONG = 2**14  # truncation is tried out up to here
PROBE_IDS = 512  # ids of the vocabulary that a self-test uses
SHOWN = 60  # characters of a text in a message
UNLIMITED = 10**9  # tokenizers without a limit give 10**30
PROBES = (
    "The quick brown fox jumps over the lazy dog and of the in a to it is .",
    "Don't you're we'll I've he'd it's 'tis rock'n'roll 'quoted' ''double''",
    "3 14159 1,000,000 2024-01-31 v1.2.3 50% $9.99 #1 +44 1e-10 x2 2x",
    "Hello, world! (really?) [sic] {braces} <b>bold</b> a/b\\c e.g. i.e. ... -- — “quotes” ‘single’ ;) :-( @user",
    "naïve café ÅNGSTRÖM e\u0301 \u0301x ﬁne ½ ´a ¨ ² ① İstanbul straße ΣΟΦΟΣ Москва हिन्दी العربية עברית ไทย",
    "中文 日本語 テスト 한국어 漢字kanji 你好,世界! ｆｕｌｌ",
    "😀 👍🏽 👨‍👩‍👧‍👦 I❤️NY 🇫🇷 ok😀ok",
    "a\u200bb \u200b \ufeff x\u00ad \ufffd \x00 \x7f z\u202e \u2581 ▁a _b ##c Ġd @@e",
    "Pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120 + " " + "ab1." * 40 + " http://example.com/?q=1&r=%20",
    "[MASK] text [CLS] and [SEP] here <mask> text <s> and </s> here <pad> <unk> <|endoftext|>",
    "camelCase UPPER lower MiXeD under_score dash-ed q q q . . . 7 7",
)


@dataclass(frozen=True)
class Pieces:
    """The subwords of an input's words and of the mask: ``ids[starts[i]:starts[i] + lengths[i]]``.

    Entry i is word i within a text, or the mask after the last word; entry ``shift + i`` is the same at the beginning.
    """

    ids: Ids
    starts: IntArray
    lengths: IntArray
    shift: int


class Subwords:
    """The token ids of noisy copies.

    Args:
        tokenizer: a Hugging Face tokenizer.
        max_length: the largest number of ids of a copy, special tokens included; None for no limit.
        tokenise: "gather" ids of words, "join" the text and tokenise it, or "auto": gather where it gives the same ids.
        name: the name of the model in messages.

    Attributes:
        gathers: whether ids are gathered; False from the beginning, or once a check has failed.
    """

    def __init__(self, tokenizer: Any, *, max_length: int | None, tokenise: str, name: str) -> None:
        check_choice("tokenise", tokenise, TOKENISE)
        self.tokenizer, self.max_length, self.name = tokenizer, max_length, name
        self._known: dict[str, tuple[list[int], list[int]] | None] = {}
        self._prepared = 0  # inputs to gather from
        self._relied_on = False  # whether ids were gathered for votes
        self._tokenise = tokenise
        self._locality = None if tokenise == "join" else locality(tokenizer)
        # whether gathering is right under masking too
        self._masks = self._locality is not None and self._locality.masks and tokenizer.mask_token is not None
        single, double = self.encode(["a", "a a"], special=False)
        self._anchor = single, double[len(single) :]  # "a" at the beginning, and after a word
        whole = list(tokenizer("a")["input_ids"])
        place = whole.index(single[0]) if single else 0
        self._prefix, self._suffix = whole[:place], whole[place + len(single) :]
        ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
        self._nothing = np.array([end for end in ends if end is not None][:1])  # models cannot read 0 ids
        self.text_ids = (UNLIMITED if max_length is None else max_length) - len(self._prefix) - len(self._suffix)
        if self.text_ids < 1:
            raise ValueError(f"the maximum length of {name} must leave space for a token, got {max_length}")
        self._check_repeatable()
        self.gathers = self._locality is not None and self._agrees()
        self._seen = self._settings()
        if tokenise == "gather" and not self.gathers:
            raise ValueError(f"tokenise must be 'auto' or 'join' for {name}: its tokenizer does not work word by word")

    def prepare(self, tokens: Tokens, unit: Unit, masking: bool) -> Pieces | None:
        """The pieces that ids are gathered from; None if the joined text of each copy has to be tokenised."""
        if masking and self.tokenizer.mask_token is None:
            raise ValueError(f"noise must be a deletion for {self.name}, whose tokenizer has no mask token")
        if not isinstance(unit.join(tokens[:1]), str):
            raise ValueError(f"unit must join to a text, as 'word' and 'char' do, for {self.name}, got {unit.kind!r}")
        if self._settings() != self._seen:
            raise ValueError(f"the tokenizer of {self.name} must stay as it was when it was loaded: load it anew")
        if not self.gathers or type(unit) is not Words or (masking and not self._masks):
            return None
        words = [str(token) for token in tokens]
        pieces = self._pieces(words, masking)
        if pieces is None:
            return None
        self._prepared += 1
        chosen = self._prepared <= FIRST_INPUTS or self._prepared % CHECKED_EVERY == 0
        text = self._difference(pieces, words, masking, CHECKED_COPIES if chosen else 0)
        if text is not None:
            self._stop_gathering(text)
        return pieces if self.gathers else None

    def copies(self, request: Request) -> list[bytes]:
        """The ids of every copy, with special tokens and truncated, as the bytes of 32-bit numbers."""
        prepared, kept, pieces = request.prepared, request.kept, request.prepared.data
        if pieces is None or not self.gathers:
            return self._joined(prepared.tokens, prepared.unit, prepared.masking, kept)
        self._relied_on = True
        rows = max(1, CHUNK // max(1, kept.shape[1]))
        parts = (kept[start : start + rows] for start in range(0, len(kept), rows))
        return [copy for part in parts for copy in self._gathered(pieces, prepared.masking, part)]

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """The ids of texts by the tokenizer itself; with special tokens it truncates too."""
        if not texts:
            return []
        limit = {"truncation": True, "max_length": self.max_length} if special and self.max_length is not None else {}
        encoded = self.tokenizer(list(texts), add_special_tokens=special, verbose=False, **limit, **ONLY_IDS)
        return list(encoded["input_ids"])

    def padded(self, rows: Sequence[npt.NDArray[Any]]) -> dict[str, IntArray]:
        """The inputs of a model for a batch of ids, padded to the longest on the tokenizer's own side."""
        rows = [row if len(row) else self._nothing for row in rows]
        sizes = np.array([len(row) for row in rows])
        real = np.arange(sizes.max()) < sizes[:, None]
        real = real[:, ::-1] if self.tokenizer.padding_side == "left" else real
        ids = np.full(real.shape, self.tokenizer.pad_token_id or 0, dtype=np.int64)
        ids[real] = np.concatenate(rows)
        return {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": np.zeros_like(ids)}

    def probes(self, most: int | None = None) -> Probes:
        """The ids that random copies consist of: those of the probe texts and of the vocabulary, all below ``most``."""
        special = {*self.tokenizer.all_special_ids}
        vocabulary = np.array(sorted({*self.tokenizer.get_vocab().values()} - special), dtype=np.int64)
        rng = np.random.Generator(np.random.Philox(0))
        sampled = rng.permutation(vocabulary)[:PROBE_IDS].tolist()
        texts = chain.from_iterable(self.encode(list(PROBES), special=False))
        known = range(most) if most is not None else range(2**31)
        special = {number for number in special if number in known}
        ids = [number for number in sorted({*texts, *sampled} - special) if number in known] or sorted(special)
        limit = None if self.max_length is None else min(self.max_length, LONG)
        return Probes(ids, sorted(special), self._prefix, self._suffix, limit)

    def state(self) -> str:
        """Everything that the ids depend on, as text, for fingerprints."""
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        state = json.loads(backend.to_str()) if backend is not None else {"vocabulary": tokenizer.get_vocab()}
        state.update(truncation=[self.max_length, tokenizer.truncation_side], padding=tokenizer.padding_side)
        return json.dumps([state, tokenizer.mask_token, tokenizer.pad_token_id], sort_keys=True)

    def _joined(self, tokens: Tokens, unit: Unit, masking: bool, kept: BoolArray) -> list[bytes]:
        absent = [self.tokenizer.mask_token] if masking else []
        rows = ([[token] if keep else absent for token, keep in zip(tokens, row, strict=True)] for row in kept)
        texts = [unit.join(list(chain.from_iterable(row))) for row in rows]
        distinct = list(dict.fromkeys(texts))
        ids = (np.array(row, dtype=np.int32).tobytes() for row in self.encode(distinct))
        ids_of_text = dict(zip(distinct, ids, strict=True))
        return [ids_of_text[text] for text in texts]

    def _gathered(self, pieces: Pieces, masking: bool, kept: BoolArray) -> list[bytes]:
        """Vectorised over copies and tokens; the only loop cuts the result into a string of bytes for each copy."""
        count, length = kept.shape
        entries = np.where(kept, np.arange(length), length).ravel() if masking else np.nonzero(kept)[1]
        words = np.full(count, length) if masking else np.count_nonzero(kept, axis=1)
        ends = np.cumsum(words)
        entries[(ends - words)[words > 0]] += pieces.shift
        sizes = pieces.lengths[entries]
        offsets = np.concatenate([[0], np.cumsum(sizes)])  # subwords before each word
        start = offsets[ends - words]
        taken = offsets[ends] - start
        if self.tokenizer.truncation_side == "left":
            start = start + np.maximum(taken - self.text_ids, 0)
        taken = np.minimum(taken, self.text_ids)
        source = np.repeat(pieces.starts[entries] - offsets[:-1], sizes) + np.arange(offsets[-1])
        head, tail = len(self._prefix), len(self._suffix)
        borders = np.concatenate([[0], np.cumsum(taken + head + tail)])
        run = np.arange(int(taken.sum()))
        skipped = np.cumsum(taken) - taken
        out = np.empty(borders[-1], dtype=np.int32)
        inner = source[np.repeat(start - skipped, taken) + run]
        out[np.repeat(borders[:-1] + head - skipped, taken) + run] = pieces.ids[inner]
        out[borders[:-1, None] + np.arange(head)] = self._prefix
        out[borders[1:, None] - tail + np.arange(tail)] = self._suffix
        data, cuts = out.tobytes(), (ID_BYTES * borders).tolist()
        return [data[left:right] for left, right in pairwise(cuts)]

    def _pieces(self, words: list[str], masking: bool) -> Pieces | None:
        """The pieces of an input, or None if a word of it cannot be gathered."""
        if any(word.split() != [word] for word in words):
            return None
        self._learn(words)
        forms = [self._known[word] for word in words]
        if len(self._known) > REMEMBERED_WORDS:
            self._known.clear()
        forms += self._forms([self.tokenizer.mask_token] if masking else [])
        usable = [form for form in forms if form is not None]
        if len(usable) < len(forms):
            return None
        lists = [form[1] for form in usable] + [form[0] for form in usable]
        lengths, flat = (
            np.array([len(ids) for ids in lists], dtype=np.int64),
            np.array([*chain(*lists)], dtype=np.int32),
        )
        return Pieces(flat, np.cumsum(lengths) - lengths, lengths, len(lists) // 2)

    def _learn(self, words: Sequence[str]) -> None:
        """Cache the ids of new words; None for a word whose ids depend on adjacent words, or change theirs."""
        fresh = [word for word in dict.fromkeys(words) if word not in self._known]
        self._known.update(dict.fromkeys(fresh))
        admitted = [word for word in fresh if self._locality is not None and self._locality.admits(word)]
        self._known.update(zip(admitted, self._forms(admitted), strict=True))

    def _forms(self, words: Sequence[str]) -> list[tuple[list[int], list[int]] | None]:
        """The ids of words at the beginning and after a word; None for a word whose ids depend on other words."""
        first_anchor, later_anchor = self._anchor
        firsts = self.encode(words, special=False)
        afters = self.encode([f"a {word} a" for word in words], special=False)
        mixed = self.encode([f"{word} {word} a a {word} a {word}" for word in words], special=False)
        forms: list[tuple[list[int], list[int]] | None] = []
        for first, enclosed, mix in zip(firsts, afters, mixed, strict=True):
            inner = enclosed[len(first_anchor) : len(enclosed) - len(later_anchor)]
            expected = first + inner + 2 * later_anchor + inner + later_anchor + inner
            same = first_anchor + inner + later_anchor == enclosed and expected == mix
            forms.append((first, inner) if same and first and inner else None)
        return forms

    def _difference(self, pieces: Pieces, words: list[str], masking: bool, copies: int) -> str | None:
        """Tokenise an input and random copies of it both ways; the first text whose ids differ, or None.

        Which copies are drawn depends on the input alone.
        """
        key = hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        whole = np.ones((1, len(words)), dtype=np.bool_)
        other = np.arange(len(words))[None] % 2 == 1  # words after masks, and masks after words
        random = rng.random((copies, len(words))) < rng.random((copies, 1))
        words = [*words, self.tokenizer.mask_token]
        rows = [
            np.where(row, np.arange(len(row)), len(row)).tolist() if masking else np.flatnonzero(row).tolist()
            for row in np.concatenate([whole, other, random] if masking else [whole, random])
        ]
        texts = [" ".join(words[entry] for entry in row) for row in rows]
        ids, starts = pieces.ids.tolist(), pieces.starts.tolist()
        ends = (pieces.starts + pieces.lengths).tolist()
        for row, text, wanted in zip(rows, texts, self.encode(texts, special=False), strict=True):
            entries = [entry if place else entry + pieces.shift for place, entry in enumerate(row)]
            if wanted != [token for entry in entries for token in ids[starts[entry] : ends[entry]]]:
                return text
        return None

    def _stop_gathering(self, text: str) -> None:
        """After a failed check: join from now on; raise if ids were gathered for votes already."""
        shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
        reason = f"its tokenizer does not read {shown!r} word by word"
        if self._relied_on or self._tokenise == "gather":
            raise ValueError(f"tokenise must be 'join' for {self.name}: {reason}")
        self.gathers = False
        warnings.warn(f"{self.name} is read more slowly, each copy as a joined text: {reason}", stacklevel=2)

    def _check_repeatable(self) -> None:
        """Raise if a text does not get the same ids every time, whatever the other texts of the call."""
        dropout = getattr(getattr(self._backend(), "model", None), "dropout", None)
        first = self.encode(list(PROBES))
        again = [*reversed(self.encode(list(reversed(PROBES)))), *(self.encode([probe])[0] for probe in PROBES)]
        if dropout or again != [*first, *first]:
            why = f" (its BPE dropout is {dropout:g}: set it to None)" if dropout else ""
            raise ValueError(f"the tokenizer of {self.name} must give a text the same ids every time{why}")

    def _backend(self) -> Any:
        return getattr(self.tokenizer, "backend_tokenizer", None)

    def _settings(self) -> list[Any]:
        """The settings of a tokenizer that can be changed and that gathering depends on."""
        tokenizer = self.tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        backend = self._backend()
        parts = [getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer", "post_processor")]
        dropout = getattr(getattr(backend, "model", None), "dropout", None)
        tokens = [f"{number} {token!r}" for number, token in added.items()]
        return [tokenizer.mask_token, dropout, tokens, *map(_plain, parts)]

    def _agrees(self) -> bool:
        """Whether gathering gives the tokenizer's ids on the probes, with masks too."""
        unit, rng, right = Words(), np.random.Generator(np.random.Philox(0)), [True, True]
        for probe in PROBES:
            self._learn(probe.split())
            words = tuple(word for word in probe.split() if self._known[word] is not None)
            words *= 1 + min(self.max_length or 0, LONG) // (len(words) or 1) if probe is PROBES[0] else 1
            kept = rng.random((9, len(words))) < np.linspace(0, 1, 9)[:, None]
            for masking in (False, True) if self._masks else (False,):
                pieces = self._pieces(list(words), masking)
                wanted = self._joined(words, unit, masking, kept)
                right[masking] &= pieces is not None and self._gathered(pieces, masking, kept) == wanted
        self._masks &= right[True]
        return right[False]


def _plain(part: Any) -> bytes | None:
    """A part of a tokenizer as bytes; None for none, and for one that is written in Python."""
    try:
        return None if part is None else bytes(part.__getstate__())
    except Exception:
        return None


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
    margin: float  # more than scores differ between batches
    batching: str  # which copies may share a batch: see `self_test`
    self_test_: SelfTest | None = None  # None until a trained model has been tested

    @abstractmethod
    def scores(self, inputs: dict[str, IntArray]) -> npt.NDArray[Any]:
        """A row of scores for each row of ``input_ids``, ``attention_mask`` and ``token_type_ids``."""

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Tokenise the words."""
        return Prepared(name, tokens, unit, masking, self.subwords.prepare(tokens, unit, masking))

    def keys(self, request: Request) -> list[Hashable]:
        """The ids of the copies, as bytes."""
        return list(self.subwords.copies(request))

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

    def _rows(self, copies: Sequence[tuple[Prepared, Hashable]]) -> list[npt.NDArray[Any]]:
        """The scores of each copy: read in batches of similar length, then near ties one by one."""
        sizes = np.array([len(key) for _, key in copies if isinstance(key, bytes)]) // ID_BYTES
        rows: dict[int, npt.NDArray[Any]] = {}
        close: list[int] = []
        shared = 0 if self.batching == "alone" or self.self_test_ is None else self.self_test_.longest_shared
        together, apart = np.flatnonzero(sizes <= shared), np.flatnonzero(sizes > shared)
        for chosen in batches(sizes[together], self.batch_tokens, equal=self.batching != "padded"):
            places = together[chosen]
            try:
                scores, gaps = self._scored([copies[place] for place in places])
            except Exception:  # such as rows with different numbers of special tokens: read alone, errors count
                close += places.tolist()
                continue
            rows.update(zip(places.tolist(), scores, strict=True))
            if len(places) > 1:
                close += places[~(gaps >= self.margin)].tolist()
        close += apart.tolist()
        for place in close:
            rows[place] = self._scored([copies[place]])[0][0]
        return [rows[place] for place in range(len(copies))]

    def show(self, prepared: Prepared, key: Hashable) -> str:
        """The text of a copy."""
        assert isinstance(key, bytes)
        return repr(self.subwords.tokenizer.decode(np.frombuffer(key, np.int32).tolist()))

    def run_self_test(self, *, name: str, pads: bool, ids: int | None = None) -> None:
        """Derive batching and margin from a self-test; both can only become stricter.

        Args:
            name: the name of the model in messages.
            pads: whether copies may be padded, which needs an attention mask and a padding token.
            ids: the number of ids that the model has embeddings for, if known; a tokenizer may have more.
        """
        allowed = [level for level in BATCHING[BATCHING.index(self.batching) : -1] if pads or level != "padded"]
        self.self_test_ = self_test(
            lambda rows: self.scores(self.subwords.padded(rows)),
            self.subwords.probes(ids),
            budget=self.batch_tokens,
            margin=self.margin,
            allowed=allowed,
            name=name,
            model_hash=self.fingerprint(),
        )
        if self.self_test_.batching == "alone" and self.self_test_.equal is not None:
            warnings.warn(
                f"{name} reads copies one by one, which is slow: its scores depend on the batch", stacklevel=3
            )
        self.batching, self.margin = self.self_test_.batching, self.self_test_.margin

    def _scored(self, chosen: Sequence[tuple[Prepared, Hashable]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The scores of the copies in a batch, and the lead of the best over the second best; NaN is an error."""
        rows = [np.frombuffer(key, np.int32) for _, key in chosen if isinstance(key, bytes)]
        scores = self.scores(self.subwords.padded(rows))
        best_class(scores, lambda row: chosen[row][0].name)
        ordered = np.sort(scores, axis=1)
        return scores, ordered[:, -1] - ordered[:, -2]
