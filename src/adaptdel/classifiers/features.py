"""Features of the linear model: the columns of a token, hashed or from a vocabulary, and exact sums of weights."""

from __future__ import annotations

import operator
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.text.units import Tokens

BLOCK = 2**16  # entries of a mask that are converted to floats at a time


@dataclass(frozen=True)
class Rows:
    """The weights of the tokens of one input: integers, stored as floats.

    Attributes:
        weights: shape (tokens, scores); in single precision if every sum of them is exact, else in double precision.
        offset: what is added to the scores of every copy, shape (scores,).
    """

    weights: npt.NDArray[Any]
    offset: FloatArray


def token_rows(
    tokens: Tokens,
    features: Features,
    weights: npt.NDArray[np.int32],
    bias: npt.NDArray[np.int32],
    *,
    masking: bool,
) -> Rows:
    """Look up the weights of the tokens; the last row of ``weights`` is the mask."""
    rows = summed(tokens, features, weights)
    offset = bias.astype(np.int64)
    if masking:  # the score of a fully masked input, plus a difference for every kept token
        mask = weights[-1].astype(np.int64)
        rows -= mask
        offset = offset + len(tokens) * mask
    largest = int(np.abs(rows).sum(axis=0).max(initial=0))
    precision = np.float32 if largest <= 2**24 else np.float64  # up to 2**24, every integer is a float32
    return Rows(rows.astype(precision), offset.astype(np.float64))


def summed(tokens: Iterable[Hashable], features: Features, weights: npt.NDArray[np.int32]) -> IntArray:
    """The sum of the weights of each token's features, shape (tokens, scores)."""
    columns, ends = features.table(tokens)
    sums = np.zeros((len(columns) + 1, weights.shape[1]), dtype=np.int64)
    np.cumsum(weights[columns], axis=0, dtype=np.int64, out=sums[1:])
    return np.asarray(sums[ends[1:]] - sums[ends[:-1]])


def bounded_scores(token_scores: IntArray, bound: int) -> IntArray:
    """Token scores that change no margin between two classes by more than a bound, in integers.

    `adaptdel.classifiers.vote_margin.bounded` does the same to floats. Of several scores only the differences matter:
    the middle between the largest and the smallest is taken off. To stay in integers, they are doubled first, so that
    margins of several scores are bounded by twice the bound.

    Args:
        token_scores: shape (tokens, scores).
        bound: at least 0.

    Returns:
        Shape (tokens, classes); a single score is that of the second class.

    >>> bounded_scores(np.array([[7], [-2]]), 3).tolist(), bounded_scores(np.array([[7, 1, 0]]), 3).tolist()
    ([[0, 3], [0, -2]], [[3, -3, -3]])
    """
    if token_scores.shape[1] == 1:
        return np.pad(np.clip(token_scores, -bound, bound), ((0, 0), (1, 0)))
    middle = token_scores.max(axis=1, keepdims=True) + token_scores.min(axis=1, keepdims=True)
    return np.clip(2 * token_scores - middle, -bound, bound)


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


def total(rows: Rows) -> FloatArray:
    """The scores of the whole input, shape (1, scores)."""
    return np.asarray(rows.weights.sum(axis=0, dtype=np.float64) + rows.offset)[None]


def best(scores: FloatArray) -> IntArray:
    """The class numbers of the highest scores, the lowest on a tie; a single score above 0 means class 1."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.argmax(scores, axis=1).astype(np.int64)


LARGEST_WEIGHT = 2**20  # a weight is an integer of at most this size times a power of two


CACHED_TOKENS = 2**18  # tokens whose columns are cached
LONGEST_CACHED = 256  # characters or bytes of a token that is cached, since long ones fill the memory
PLAIN = {str, bytes, int}
_WORD = re.compile(r"\w+")


def parts(token: Hashable, *, lowercase: bool) -> tuple[Hashable, ...]:
    """The features of a token, each once.

    >>> parts("Well-made!", lowercase=True)
    ('well-made!', 'made', 'well')
    >>> parts(255, lowercase=True)
    (255,)
    """
    if not isinstance(token, str):
        return (token,)
    text = token.lower() if lowercase else token
    return (text, *sorted(set(_WORD.findall(text)) - {text}))


def is_long(token: Hashable) -> bool:
    """Whether a token is too long to be cached."""
    return isinstance(token, (str, bytes)) and len(token) > LONGEST_CACHED


def token_bytes(token: Hashable) -> bytes:
    """An injective encoding of tokens as bytes, the same on every machine."""
    if isinstance(token, str):
        return b"s" + token.encode("utf-8", "surrogatepass")
    if isinstance(token, bytes):
        return b"b" + token
    if isinstance(token, tuple):
        inner = [token_bytes(element) for element in token]
        return b"t" + b"".join(b"%d:" % len(data) + data for data in inner)
    return b"i%d" % _whole(token)


def hashed(token: Hashable, bits: int) -> int:
    """The lowest bits of the CRC-32 of a token. Python's own hash changes between processes.

    >>> hashed("good", 18), hashed(b"good", 18), hashed(7, 18)
    (64652, 17086, 223006)
    """
    return zlib.crc32(token_bytes(token)) & ((1 << bits) - 1)


def _whole(token: Hashable) -> int:
    try:
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"a token must be a text, bytes, an integer or a tuple of these, got {token!r} ({type(token).__name__})"
        ) from None


class Features(ABC):
    """The feature columns of tokens, computed once for each distinct token.

    Attributes:
        size: the number of columns.
        lowercase: whether texts are converted to lower case.
    """

    size: int
    lowercase: bool

    def __init__(self, size: int, lowercase: bool) -> None:
        self.size = size
        self.lowercase = lowercase
        self._known: dict[Hashable, tuple[int, ...]] = {}

    @abstractmethod
    def column(self, part: Hashable) -> int | None:
        """The column of a feature, or None if it is unknown."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """The features in plain values, as a model file holds them."""

    def columns(self, token: Hashable) -> tuple[int, ...]:
        """The columns of a token, without unknown features."""
        columns = self._known.get(token)
        if columns is None:
            places = (self.column(part) for part in parts(token, lowercase=self.lowercase))
            columns = tuple(place for place in places if place is not None)
            if len(self._known) >= CACHED_TOKENS:
                self._known.clear()
            if not is_long(token):
                self._known[token] = columns
        return columns

    def table(self, tokens: Iterable[Hashable]) -> tuple[IntArray, IntArray]:
        """The columns of all tokens, and the boundaries between tokens, as the indices and indptr of a CSR matrix."""
        tokens = list(tokens)
        if not set(map(type, tokens)) <= PLAIN:
            for token in tokens:
                token_bytes(token)  # rejects 1.0, which equals a cached 1 in Python
        rows = [
            self.columns(token) if columns is None else columns
            for token, columns in zip(tokens, map(self._known.get, tokens), strict=True)
        ]
        ends = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=ends[1:])
        return np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(ends[-1])), ends


class HashedFeatures(Features):
    """``2**bits`` columns; features with the same hash share a weight."""

    def __init__(self, bits: int, lowercase: bool) -> None:
        super().__init__(2**bits, lowercase)
        self.bits = bits

    def column(self, part: Hashable) -> int:
        """The bucket of the feature."""
        return hashed(part, self.bits)

    def description(self) -> dict[str, Any]:
        """The number of bits."""
        return {"features": "hash", "bits": self.bits}


class VocabularyFeatures(Features):
    """A column for each feature of a vocabulary; other features are ignored."""

    def __init__(self, vocabulary: Sequence[Hashable], lowercase: bool) -> None:
        super().__init__(len(vocabulary), lowercase)
        self.vocabulary = list(vocabulary)
        self._columns = {part: place for place, part in enumerate(self.vocabulary)}

    @classmethod
    def learn(cls, counts: Mapping[Hashable, int], min_count: int, lowercase: bool) -> VocabularyFeatures:
        """The features of the counted tokens that occur at least ``min_count`` times, in the order of their bytes."""
        totals: Counter[Hashable] = Counter()
        for token, count in counts.items():
            for part in parts(token, lowercase=lowercase):
                totals[part] += count
        return cls(sorted((part for part, count in totals.items() if count >= min_count), key=token_bytes), lowercase)

    def column(self, part: Hashable) -> int | None:
        """The position of the feature in the vocabulary."""
        return self._columns.get(part)

    def description(self) -> dict[str, Any]:
        """The vocabulary."""
        return {"features": "vocabulary", "vocabulary": [token_to_json(part) for part in self.vocabulary]}


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
    return _whole(token)


def token_from_json(value: Any) -> Hashable:
    """The inverse of `token_to_json`; ValueError for any other value."""
    if isinstance(value, dict) and list(value) == ["bytes"] and isinstance(value["bytes"], str):
        return bytes.fromhex(value["bytes"])
    if isinstance(value, list):
        return tuple(token_from_json(element) for element in value)
    if isinstance(value, str) or type(value) is int:
        return value
    raise ValueError(f"no token is written as {value!r}")
