"""Features of the linear models: the columns of a token, hashed or from a vocabulary; k-mers; exact sums of weights."""

from __future__ import annotations

import operator
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import Request, kept_tokens
from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.text.units import Tokens, Unit

BLOCK = 2**16  # entries of a mask that are converted to floats at a time
LARGEST_WEIGHT = 2**20  # a weight is an integer of at most this size times a power of two
CACHED_TOKENS = 2**18  # tokens whose scores are cached
LONGEST_CACHED = 256  # characters or bytes of a token that is cached, since long ones fill the memory
CACHE_LOCK = Lock()  # of all caches, so that they can be pickled and copied
NGRAM_UNITS = ("char", "byte")
_WORD = re.compile(r"\w+")


class ScoreCache:
    """The scores of tokens, computed once for each token. Several threads may use it."""

    def __init__(self, scores: int) -> None:
        self.rows: dict[Hashable, int] = {}
        self._table: IntArray = np.zeros((0, scores), dtype=np.int64)

    def lookup(self, tokens: Sequence[Hashable], compute: Callable[[Sequence[Hashable]], IntArray]) -> IntArray:
        """The scores of tokens, shape (tokens, scores): ``compute`` gives those of tokens that are not cached."""
        with CACHE_LOCK:
            rows = rows_in(self.rows, tokens)
            if not len(rows) or rows.min() >= 0:
                return self._table[rows]
            unknown = np.flatnonzero(rows < 0).tolist()
            new = list(dict.fromkeys([tokens[place] for place in unknown]))
            if len(self.rows) + len(new) > CACHED_TOKENS:  # the cache is full: these tokens alone
                self.rows, self._table, unknown = {}, self._table[:0], list(range(len(tokens)))
                new = list(dict.fromkeys(tokens))
            long = {token for token in new if isinstance(token, (str, bytes)) and len(token) > LONGEST_CACHED}
            new.sort(key=long.__contains__)
            self._table = np.concatenate([self._table, compute(new)])
            self.rows |= {token: row for row, token in enumerate(new, start=len(self.rows))}
            rows[unknown] = rows_in(self.rows, [tokens[place] for place in unknown])
            scores = self._table[rows]
            for token in long:  # the last ones; forgotten
                del self.rows[token]
            self._table = self._table[: len(self.rows)]
            return scores


def rows_in(numbers: dict[Hashable, int], tokens: Sequence[Hashable]) -> IntArray:
    """The numbers of tokens; −1 for tokens that have none."""
    return np.fromiter(map(numbers.get, tokens, repeat(-1)), dtype=np.int64, count=len(tokens))


def ngrams(tokens: Tokens, size: int) -> Tokens:
    """The runs of ``size`` neighbouring tokens (k-mers), in lower case; the tokens themselves for a size of 1.

    Both ends are padded: n tokens have n + size − 1 runs, and each token is in ``size`` of them.

    >>> ngrams(("G", "a", "t"), 2)
    (('', 'g'), ('g', 'a'), ('a', 't'), ('t', ''))
    """
    if size == 1:
        return tokens
    ends = [""] * (size - 1)
    padded = [*ends, *(token.lower() if isinstance(token, str) else token for token in tokens), *ends]
    return tuple(zip(*(padded[start:] for start in range(size)), strict=False))


def check_ngram(ngram: int, unit: Unit | None) -> None:
    """Raise ValueError if runs of tokens are asked for where tokens are no characters or bytes."""
    if ngram > 1 and (unit is None or unit.kind not in NGRAM_UNITS):
        raise ValueError(f"ngram must be 1 unless the unit is char or byte, got {ngram} for {unit!r}")


@dataclass(frozen=True)
class Rows:
    """The weights of the tokens of one input: integers, stored as floats."""

    weights: npt.NDArray[Any]  # (tokens, scores); in single precision if every sum of them is exact, else in double
    offset: FloatArray  # what is added to the scores of every copy, shape (scores,)


def token_rows(sums: IntArray, bias: npt.NDArray[np.int32], mask: npt.NDArray[np.int32] | None) -> Rows:
    """The weights of tokens with these sums of the weights of their features; ``mask`` is None without masking."""
    offset = bias.astype(np.int64)
    if mask is not None:  # the score of a fully masked input, plus a difference for every kept token
        offset = offset + len(sums) * mask.astype(np.int64)
        sums = sums - mask
    largest = int(np.abs(sums).sum(axis=0).max(initial=0))
    precision = np.float32 if largest <= 2**24 else np.float64  # up to 2**24, every integer is a float32
    return Rows(sums.astype(precision), offset.astype(np.float64))


def summed(tokens: Iterable[Hashable], features: Features, weights: npt.NDArray[np.int32]) -> IntArray:
    """The sum of the weights of each token's features, shape (tokens, scores)."""
    return summed_columns(*features.table(tokens), weights)


def summed_columns(columns: IntArray, ends: IntArray, weights: npt.NDArray[np.int32]) -> IntArray:
    """The same for tokens whose columns are known, as `Features.table` gives them."""
    sums = np.zeros((len(columns) + 1, weights.shape[1]), dtype=np.int64)
    np.cumsum(weights[columns], axis=0, dtype=np.int64, out=sums[1:])
    return np.asarray(sums[ends[1:]] - sums[ends[:-1]])


def sums_of_copies(request: Request, ngram: int, scores_of: Callable[[Sequence[Hashable]], IntArray]) -> IntArray:
    """The sum of the scores of the tokens (or of their runs) of each noisy copy, shape (copies, scores)."""
    width = scores_of(()).shape[1]
    sums = [scores_of(ngrams(tuple(copy), ngram)).sum(axis=0) for copy in kept_tokens(request)]
    return np.array(sums, dtype=np.int64).reshape(len(sums), width)


def clipped(token_scores: npt.NDArray[Any], clip: float) -> npt.NDArray[Any]:
    """Token scores that change no margin between two classes by more than a clip; of several classes by twice that.

    A single score is clipped. Of several scores only the differences matter: the middle between the largest and the
    smallest is taken off first. So that integers stay integers, they are doubled before that.

    >>> clipped(np.array([[7], [-2]]), 3).tolist(), clipped(np.array([[7, 1, 0]]), 3).tolist()
    ([[3], [-2]], [[3, -3, -3]])
    """
    if token_scores.shape[1] > 1:
        middle = token_scores.max(axis=1, keepdims=True) + token_scores.min(axis=1, keepdims=True)
        token_scores = 2 * token_scores - middle
    return np.clip(token_scores, -clip, clip)


def scores(rows: Rows, kept: BoolArray) -> FloatArray:
    """The scores of every copy, shape (copies, scores); in blocks, so that a whole mask is never stored as floats."""
    weights = rows.weights
    result = np.empty((len(kept), len(rows.offset)))
    result[:] = rows.offset
    width = min(max(1, len(weights)), BLOCK)
    height = max(1, BLOCK // width)
    for top in range(0, len(kept), height):
        for left in range(0, len(weights), width):
            block = kept[top : top + height, left : left + width].astype(weights.dtype)
            result[top : top + height] += block @ weights[left : left + width]
    return result


def best(scores: FloatArray) -> IntArray:
    """The class numbers of the highest scores, the lowest on a tie; a single score above 0 means class 1."""
    numbers = scores[:, 0] > 0 if scores.shape[1] == 1 else np.argmax(scores, axis=1)
    return numbers.astype(np.int64)


def parts(token: Hashable) -> tuple[Hashable, ...]:
    """The features of a token, each once.

    >>> parts("Well-made!"), parts(255)
    (('well-made!', 'made', 'well'), (255,))
    """
    if not isinstance(token, str):
        return (token,)
    text = token.lower()
    if text.isalnum():  # the usual case, with the same result
        return (text,)
    return (text, *sorted(set(_WORD.findall(text)) - {text}))


def token_bytes(token: Hashable) -> bytes:
    """An injective encoding of tokens as bytes, the same on every machine."""
    if isinstance(token, str):
        return b"s" + token.encode("utf-8", "surrogatepass")
    if isinstance(token, bytes):
        return b"b" + token
    if isinstance(token, tuple):
        inner = [token_bytes(element) for element in token]
        return b"t" + b"".join(b"%d:" % len(data) + data for data in inner)
    return b"i%d" % token_to_json(token)


def hashed(token: Hashable, bits: int) -> int:
    """The lowest bits of the CRC-32 of a token. Python's own hash changes between processes.

    >>> hashed("good", 18), hashed(b"good", 18), hashed(7, 18)
    (64652, 17086, 223006)
    """
    return zlib.crc32(token_bytes(token)) & ((1 << bits) - 1)


class Features(ABC):
    """The feature columns of tokens."""

    size: int  # the number of columns

    @abstractmethod
    def columns(self, parts: Sequence[Hashable]) -> IntArray:
        """The column of each feature; −1 if it is unknown."""

    def table(self, tokens: Iterable[Hashable]) -> tuple[IntArray, IntArray]:
        """The columns of all tokens, and the boundaries between tokens, as the indices and indptr of a CSR matrix."""
        split = list(map(parts, tokens))
        ends = np.cumsum([0, *map(len, split)])
        columns = self.columns(list(chain.from_iterable(split)))
        known = columns >= 0
        return columns[known], np.append(0, np.cumsum(known))[ends]


class HashedFeatures(Features):
    """``2**bits`` columns; features with the same hash share a weight."""

    def __init__(self, bits: int) -> None:
        self.size, self.bits = 2**bits, bits

    def columns(self, parts: Sequence[Hashable]) -> IntArray:
        """The bucket of each feature."""
        return np.fromiter((hashed(part, self.bits) for part in parts), dtype=np.int64, count=len(parts))


class VocabularyFeatures(Features):
    """A column for each feature of a vocabulary; other features are ignored."""

    def __init__(self, vocabulary: Sequence[Hashable]) -> None:
        self.size, self.vocabulary = len(vocabulary), list(vocabulary)
        self._columns = {part: place for place, part in enumerate(self.vocabulary)}

    @classmethod
    def learn(cls, counts: Mapping[Hashable, int], min_count: int) -> VocabularyFeatures:
        """The features of the counted tokens that occur at least ``min_count`` times, in the order of their bytes."""
        totals: Counter[Hashable] = Counter()
        for token, count in counts.items():
            for part in parts(token):
                totals[part] += count
        return cls(sorted((part for part, count in totals.items() if count >= min_count), key=token_bytes))

    def columns(self, parts: Sequence[Hashable]) -> IntArray:
        """The position of each feature in the vocabulary."""
        return rows_in(self._columns, parts)


def numbered(tokens: Iterable[Hashable], numbers: dict[Hashable, int], count: int) -> IntArray:
    """The numbers of ``count`` tokens; new tokens are added to ``numbers``."""
    return np.fromiter((numbers.setdefault(token, len(numbers)) for token in tokens), dtype=np.int64, count=count)


def token_to_json(token: Hashable) -> Any:
    """A token as plain JSON: a text or a number as itself, bytes as ``{"bytes": hex}``, a tuple as a list."""
    if isinstance(token, str):
        return str(token)
    if isinstance(token, bytes):
        return {"bytes": token.hex()}
    if isinstance(token, tuple):
        return [token_to_json(element) for element in token]
    try:
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"a token must be a string, bytes, an integer or a tuple of these, got {token!r} ({type(token).__name__})"
        ) from None


def token_from_json(value: Any) -> Hashable:
    """The inverse of `token_to_json`; ValueError for any other value."""
    if isinstance(value, dict) and list(value) == ["bytes"] and isinstance(value["bytes"], str):
        return bytes.fromhex(value["bytes"])
    if isinstance(value, list):
        return tuple(token_from_json(element) for element in value)
    if isinstance(value, str) or type(value) is int:
        return value
    raise ValueError(f"no token is written as {value!r}")
