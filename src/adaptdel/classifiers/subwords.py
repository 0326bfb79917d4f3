"""Models of subword ids: copies are joined to texts and tokenised in batches; votes do not depend on batches.

Self-test: do the scores of a copy depend on the copy alone? A certificate rests on the promise that they do. Padding,
the other copies in a batch, their order and what the model has read earlier must not change them. Some architectures
break this promise: without an attention mask padding is content, quantisation by batch lets copies influence each
other, and some models switch their attention after a short text. The test scores random copies of many lengths alone,
again after all others, in batches of equal length, and in padded batches, up to the largest that will be used. Its
outcome decides which copies may share a batch, and how close two scores have to be for a copy to be scored again alone.
The copies are drawn from the hash of the model. They are samples, not a proof: a model that reacts to rare ids, or
fails rarely, passes.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import DistinctClassifier, Prepared, Request, best_class
from adaptdel.classifiers.foreign import panics_as_errors, reading
from adaptdel.core.checks import IntArray
from adaptdel.text.units import Tokens, Unit

BATCH_TOKENS = 1024  # the fastest for MiniLM on a core, where larger batches leave the cache
MOST_BATCH_TOKENS = 2**16  # the self-test runs batches of this size
# Logits of MiniLM differ by less than 1e-6 between batches in float32, and in low precision between batches of equal
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
# Rounding moves a score by less than this fraction of the range of scores: 1e-6 in float32, on all models tried. What a
# score depends on moves it by 1e-2 and more.
ROUNDING = 1e-4
# Two scores that each move by a shift change their difference by twice as much. The rest is for copies not tried.
SHIFTS_IN_MARGIN = 8
UNKNOWN_LIMIT = 512  # ids up to which a model without a stated limit is tried
KNOWN_COPIES = 3  # of each length that are scored alone, and one of long ones, which take time
LONG_PROBE = 100
GROWTH = 2.62  # of the lengths that are tried
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory", "bad allocation", "bad_alloc")

Logits = npt.NDArray[Any]
Score = Callable[[Sequence[IntArray]], Logits]


@dataclass(frozen=True)
class SelfTest:
    """The outcome of a self-test."""

    batching: str  # which copies may share a batch: "padded" (any), "equal" (those of equal length) or "alone" (none)
    margin: float  # copies whose two best scores are closer than this are scored again alone
    scale: float  # the difference between the largest and the smallest score
    repeated: float  # the largest change of a score when a copy is scored again, alone, after others
    equal: float | None  # in batches of copies of equal length; None if not tried, infinity if such batches fail
    padded: float | None  # in padded batches
    longest: int  # the number of ids of the longest copy that was tried
    longest_shared: int  # of the longest copy that was tried in a batch with others; longer ones are scored alone
    copies: int  # the number of copies that were compared
    model_hash: str = ""  # the fingerprint of the model that was tested

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a batch that fails has the shift "fails"."""
        shifts = {name: "fails" for name in ("equal", "padded") if getattr(self, name) == np.inf}
        return asdict(self) | shifts


@dataclass(frozen=True)
class Probes:
    """The ids that random copies consist of."""

    ids: IntArray  # that occur in texts
    special: Sequence[int]  # of special tokens, which a text may contain too
    prefix: Sequence[int]  # before the text
    suffix: Sequence[int]  # after it
    limit: int | None  # the largest number of ids of an input of the model, or None if no limit is stated

    def copy(self, length: int, rng: np.random.Generator, special: int | None = None) -> IntArray:
        """A random copy with ``length`` ids of text; ``special`` takes the place of one of them."""
        inner = rng.choice(self.ids, length)
        if special is not None:
            inner[rng.integers(length)] = special
        return np.array([*self.prefix, *inner, *self.suffix], dtype=np.int64)

    def lengths(self, budget: int) -> list[int]:
        """Numbers of ids of text up to the limit, odd and even, as long as two copies share a batch.

        Of longer copies, which are scored alone, there are two lengths: about the middle, and the limit.
        """
        ends = len(self.prefix) + len(self.suffix)
        most = (UNKNOWN_LIMIT if self.limit is None else self.limit) - ends
        shared = min(max(budget // 2 - ends, 1), most)
        lengths, length = {shared, most}, 1
        while length < shared:
            lengths.add(length)
            length = round(GROWTH * length)
        if most > 2 * shared:
            lengths.add(round((shared * most) ** 0.5))
        return sorted(lengths)


def self_test(
    score: Score, probes: Probes, *, budget: int, margin: float, pads: bool, name: str, model_hash: str = ""
) -> SelfTest:
    """Test a model; ValueError if its answer to a copy depends on more than the copy even when it is read alone.

    ``score`` gives the scores of a batch of copies, a row each; if it ``pads``, their lengths may differ. A batch of
    several copies has at most ``budget`` ids. ``model_hash`` seeds the copies.
    """
    seed = hashlib.blake2b(model_hash.encode(), digest_size=8).digest()
    rng = np.random.Generator(np.random.Philox(int.from_bytes(seed, "little")))
    lengths = probes.lengths(budget)
    copies = [probes.copy(0, rng)] if probes.prefix or probes.suffix else []
    for length in lengths:
        shares = 2 * (length + len(probes.prefix) + len(probes.suffix)) <= budget
        copies += [probes.copy(length, rng) for _ in range(KNOWN_COPIES if shares and length <= LONG_PROBE else 1)]
    copies += [probes.copy(min(length, lengths[-1]), rng, special) for special in probes.special for length in (1, 4)]
    copies, alone = _alone(score, copies, name)
    finite = np.concatenate([scores[np.isfinite(scores)] for scores in alone])
    scale = float(np.ptp(finite)) if finite.size else 0.0
    tolerance = ROUNDING * scale
    ascending = sorted(range(len(copies)), key=lambda number: len(copies[number]))
    again = {number: score([copies[number]])[0] for number in ascending}
    repeated = max(_shift(again[number], alone[number]) for number in ascending)
    if repeated > tolerance:
        raise ValueError(
            f"model {name} must give a copy the same scores whenever it reads it: they differ by up to {repeated:.2g} "
            "once it has read other copies, so no certificate would hold: use another architecture or other settings "
            "(for BigBird, attention_type='original_full')"
        )
    sharing = [number for number in ascending if 2 * len(copies[number]) <= budget]
    texts = [copy[len(probes.prefix) : len(copy) - len(probes.suffix)] for copy in copies]
    special = [number for number in sharing if np.isin(texts[number], probes.special).any()]
    plain = [number for number in sharing if number not in special]
    shifts: dict[str, float | None] = {"equal": None, "padded": None}
    for level in ("equal", "padded") if pads else ("equal",):
        if plain and (level == "equal" or _within(shifts["equal"], tolerance)):
            shifts[level] = max(
                _largest_shift(score, alone, _batches(copies, plain, probes, budget, rng, level)),
                _largest_shift(score, alone, _batches(copies, special, probes, budget, rng, level), may_fail=True),
            )
    batching = next((level for level in ("padded", "equal") if _within(shifts[level], tolerance)), "alone")
    largest = max([repeated, *(shift for shift in shifts.values() if shift is not None and _within(shift, tolerance))])
    return SelfTest(
        batching=batching,
        margin=max(margin, SHIFTS_IN_MARGIN * largest),
        scale=scale,
        repeated=repeated,
        **shifts,
        longest=max(map(len, copies)),
        longest_shared=max((len(copies[number]) for number in plain), default=0),
        copies=len(copies),
        model_hash=model_hash,
    )


def _within(shift: float | None, tolerance: float) -> bool:
    return shift is not None and shift <= tolerance


def _shift(scores: Logits, reference: Logits) -> float:
    """The largest change of a score; infinity if a number became NaN or the other way round."""
    if scores.shape != reference.shape:
        return np.inf
    difference = np.where(scores == reference, 0.0, np.abs(scores.astype(np.float64) - reference))
    difference = np.where(np.isnan(scores) & np.isnan(reference), 0.0, difference)
    return float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0))


def _alone(score: Score, copies: list[IntArray], name: str) -> tuple[list[IntArray], list[Logits]]:
    """The scores of each copy alone, long copies first; copies that the model fails on are left out."""
    kept: list[IntArray] = []
    scores: list[Logits] = []
    failure: Exception | None = None
    for row in sorted(copies, key=len, reverse=True):
        try:
            scores.append(score([row])[0])
            kept.append(row)
        except Exception as error:
            failure = failure or error
    if failure is not None and 2 * len(kept) < len(copies):
        first = (str(failure).splitlines() or [""])[0]
        raise ValueError(
            f"model {name} must read copies of any length, each alone: it failed on {len(copies) - len(kept)} of "
            f"{len(copies)}, first with {type(failure).__name__}: {first}"
        ) from failure
    return kept, scores


def _largest_shift(
    score: Score,
    alone: list[Logits],
    batches: Iterable[tuple[list[IntArray], Mapping[int, int]]],
    *,
    may_fail: bool = False,
) -> float:
    """The largest change of a score in batches, each with the positions of known copies by row.

    A batch that fails counts as an infinite change, unless batches may fail: those with special tokens in the text, as
    some models want equally many of them in every row. Copies of a batch that fails are read alone.
    """
    largest = 0.0
    for rows, known in batches:
        try:
            scores = score(rows)
        except Exception:
            if may_fail:
                continue
            return np.inf
        largest = max([largest, *(_shift(scores[row], alone[place]) for row, place in known.items())])
    return largest


def _batches(
    copies: list[IntArray], known: list[int], probes: Probes, budget: int, rng: np.random.Generator, level: str
) -> Iterator[tuple[list[IntArray], Mapping[int, int]]]:
    """For each length a batch of two and the largest that will be used: known copies among random ones, in any order.

    In equal batches all copies have this length, in padded ones it is that of the longest copy.
    """
    ends = len(probes.prefix) + len(probes.suffix)
    for longest in sorted({len(copies[number]) for number in known}):
        exact = [number for number in known if len(copies[number]) == longest]
        shorter = [number for number in known if level == "padded" and len(copies[number]) < longest]
        shorter = rng.permutation(np.array(shorter, dtype=np.int64)).tolist()
        for size in {2, max(2, budget // longest)}:
            chosen = [*exact[:1], *shorter, *exact[1:]][:size]
            most = max(longest - ends, 0)
            least = most if level == "equal" else min(most, 0 if ends else 1)
            lengths = rng.integers(least, most, size - len(chosen), endpoint=True)
            rows = [copies[number] for number in chosen] + [probes.copy(int(length), rng) for length in lengths]
            order = rng.permutation(size).tolist()
            positions = {row: chosen[number] for row, number in enumerate(order) if number < len(chosen)}
            yield [rows[number] for number in order], positions


class Subwords:
    """The token ids of noisy copies: those of the joined text by the tokenizer itself.

    A copy has at most ``max_length`` ids, special tokens included; None for no limit. ``name`` is that of the model.
    """

    def __init__(self, tokenizer: Any, *, max_length: int | None, name: str) -> None:
        self.tokenizer, self.max_length, self.name = tokenizer, max_length, name
        with reading(name):
            whole, bare = self._ids(["a"])[0], self._ids(["a"], add_special_tokens=False)[0]
        start = whole.index(bare[0]) if bare else 0
        self._prefix, self._suffix = whole[:start], whole[start + len(bare) :]
        if max_length is not None and max_length <= len(self._prefix) + len(self._suffix):
            raise ValueError(f"the maximum length of {name} must leave space for a token, got {max_length}")
        ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
        self._nothing = np.array([end for end in ends if end is not None][:1])  # models cannot read 0 ids
        # A text gets the same ids every time, whatever the other texts of the call.
        dropout = getattr(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), "dropout", None)
        with reading(name):
            together = self._ids(PROBES)
        again = [*reversed(self._ids(PROBES[::-1])), *(self._ids([probe])[0] for probe in PROBES)]
        if dropout or again != [*together, *together]:
            why = f" (its BPE dropout is {dropout:g}: set it to None)" if dropout else ""
            raise ValueError(f"the tokenizer of {name} must give a text the same ids every time{why}")

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

    Logits differ in their last bits with the shape of a batch. A copy whose two best scores are closer than ``margin``
    is classified again, alone and without padding, and that answer counts. A self-test of the model, in the precision
    that it runs in, sets the margin and decides which copies may share a batch.
    """

    subwords: Subwords
    batch_tokens: int  # the largest number of ids, with padding, in a batch of several copies
    margin: float = MARGIN  # more than scores differ between batches
    batching: str = "padded"  # which copies may share a batch: see `self_test`
    self_test_: SelfTest | None = None  # None until a trained model has been tested

    @abstractmethod
    def start(self, inputs: dict[str, IntArray]) -> Callable[[], Logits]:
        """Begin to score a batch, and return what waits for the scores: a GPU works on in the meantime.

        There is a row of scores for each row of ``input_ids``, ``attention_mask`` and ``token_type_ids``.
        """

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

    def start_batch(self, rows: Sequence[IntArray]) -> Callable[[], Logits]:
        """Begin to score a batch of ids; every batch is begun here. One that does not fit in memory is halved."""
        size = len(rows) * max(map(len, rows))
        if len(rows) == 1 or size <= self.batch_tokens:
            try:
                return self.start(self.subwords.padded(rows))
            except Exception as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
                if not getattr(self, "_is_short_of_memory", False):
                    warnings.warn(
                        f"a batch of {size} subwords does not fit in memory: batches are halved from here on; the "
                        "votes stay the same",
                        stacklevel=2,
                    )
                self._is_short_of_memory, self.batch_tokens = True, max(1, min(self.batch_tokens, size // 2))
        half = len(rows) // 2
        first, second = self.start_batch(rows[:half]), self.start_batch(rows[half:])
        return lambda: np.concatenate([first(), second()])

    def run_self_test(self, *, name: str, pads: bool, ids: int | None = None) -> None:
        """Derive batching and margin from a self-test.

        Copies may be padded (``pads``) if there are an attention mask and a padding token. ``ids`` is the number of ids
        that the model has embeddings for, if known; a tokenizer may have more.
        """
        self.self_test_ = self_test(
            lambda rows: self.start_batch(rows)(),
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
        started: deque[tuple[list[int], Callable[[], Logits]]] = deque()  # the last one and the one before
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
            rows[number] = self.start_batch([ids[number]])()[0]
        best_class(np.array([rows[number] for number in range(len(copies))]), [prepared.name for prepared, _ in copies])
        return [rows[number] for number in range(len(copies))]


def is_out_of_memory(error: Exception) -> bool:
    """Whether a library could not allocate memory: each has an exception of its own."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in OUT_OF_MEMORY)
