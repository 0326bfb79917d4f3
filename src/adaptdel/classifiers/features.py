"""Features of the linear model: from a token to columns, hashed or out of a vocabulary; and exact sums of weights."""

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
from adaptdel.units import Tokens

BLOCK = 2**16  # entries of a mask that are turned into floats at a time


@dataclass(frozen=True)
class Rows:
    """The weights of one input's tokens, a row a token, and what every copy has besides: whole numbers in floats.

    The weights are in single precision if that is exact for every sum of them, else in double.
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
    """Look up the weights of the tokens; those of the mask are the last of ``weights``."""
    columns, ends = features.table(tokens)
    sums = np.zeros((len(columns) + 1, len(bias)), dtype=np.int64)
    np.cumsum(weights[columns], axis=0, dtype=np.int64, out=sums[1:])
    rows = sums[ends[1:]] - sums[ends[:-1]]
    offset = bias.astype(np.int64)
    if masking:  # all tokens as masks, and for each token that is kept the difference
        mask = weights[-1].astype(np.int64)
        rows -= mask
        offset = offset + len(tokens) * mask
    largest = int(np.abs(rows).sum(axis=0).max(initial=0))
    precision = np.float32 if largest <= 2**24 else np.float64  # up to 2**24, every whole number is a float32
    return Rows(rows.astype(precision), offset.astype(np.float64))


def scores(rows: Rows, kept: BoolArray) -> FloatArray:
    """The scores of every copy, in blocks, so that a mask is never held in floats as a whole."""
    weights = rows.weights
    found = np.empty((len(kept), len(rows.offset)))
    found[:] = rows.offset
    width = min(max(1, len(weights)), BLOCK)
    height = max(1, BLOCK // width)
    for top in range(0, len(kept), height):
        for left in range(0, len(weights), width):
            block = kept[top : top + height, left : left + width].astype(weights.dtype)
            found[top : top + height] += block @ weights[left : left + width]
    return found


def total(rows: Rows) -> FloatArray:
    """The scores of the whole input, as one row."""
    return np.asarray(rows.weights.sum(axis=0, dtype=np.float64) + rows.offset)[None]


def best(found: FloatArray) -> IntArray:
    """The class numbers of the highest scores; the lowest on a tie. A single score is for class 1 against class 0."""
    if found.shape[1] == 1:
        return (found[:, 0] > 0).astype(np.int64)
    return np.argmax(found, axis=1).astype(np.int64)


LARGEST_WEIGHT = 2**20  # a weight is a whole number of at most this size times a power of two


REMEMBERED = 2**18  # tokens whose columns are kept at hand
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


def token_bytes(token: Hashable) -> bytes:
    """A token as bytes, the same on every machine: equal tokens give equal bytes and different ones different bytes."""
    if isinstance(token, str):
        return b"s" + token.encode("utf-8", "surrogatepass")
    if isinstance(token, bytes):
        return b"b" + token
    if isinstance(token, tuple):
        inner = [token_bytes(element) for element in token]
        return b"t" + b"".join(b"%d:" % len(data) + data for data in inner)
    return b"i%d" % _whole(token)


def hashed(token: Hashable, bits: int) -> int:
    """The lowest bits of the CRC-32 of a token: never Python's own hash, which changes from run to run.

    >>> hashed("good", 18), hashed(b"good", 18), hashed(7, 18)
    (64652, 17086, 223006)
    """
    return zlib.crc32(token_bytes(token)) & ((1 << bits) - 1)


def _whole(token: Hashable) -> int:
    try:
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"a token must be a text, bytes, a whole number or a tuple of these, got {token!r} ({type(token).__name__})"
        ) from None


class Features(ABC):
    """The columns of tokens, looked up once for each distinct token.

    Attributes:
        size: how many columns there are.
        lowercase: whether texts are lowered first.
    """

    size: int
    lowercase: bool

    def __init__(self, size: int, lowercase: bool) -> None:
        self.size = size
        self.lowercase = lowercase
        self._known: dict[Hashable, tuple[int, ...]] = {}

    @abstractmethod
    def column(self, part: Hashable) -> int | None:
        """The column of one feature, or None if it is unknown."""

    def columns(self, token: Hashable) -> tuple[int, ...]:
        """The columns of a token; those of unknown features are left out."""
        found = self._known.get(token)
        if found is None:
            places = (self.column(part) for part in parts(token, lowercase=self.lowercase))
            found = tuple(place for place in places if place is not None)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[token] = found
        return found

    def table(self, tokens: Iterable[Hashable]) -> tuple[IntArray, IntArray]:
        """The columns of several tokens one after another, and where those of each begin and end (CSR)."""
        tokens = list(tokens)
        if not set(map(type, tokens)) <= PLAIN:
            for token in tokens:
                token_bytes(token)  # 1.0 is refused, also where 1 is known, which Python holds to be equal
        found = [
            self.columns(token) if columns is None else columns
            for token, columns in zip(tokens, map(self._known.get, tokens), strict=True)
        ]
        ends = np.zeros(len(found) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, found), dtype=np.int64, count=len(found)), out=ends[1:])
        return np.fromiter(chain.from_iterable(found), dtype=np.int64, count=int(ends[-1])), ends


class HashedFeatures(Features):
    """``2**bits`` columns; features that fall into the same one share its weight."""

    def __init__(self, bits: int, lowercase: bool) -> None:
        super().__init__(2**bits, lowercase)
        self.bits = bits

    def column(self, part: Hashable) -> int:
        """The bucket of the feature."""
        return hashed(part, self.bits)


class VocabularyFeatures(Features):
    """A column for each feature of a list; any other counts nothing."""

    def __init__(self, vocabulary: Sequence[Hashable], lowercase: bool) -> None:
        super().__init__(len(vocabulary), lowercase)
        self.vocabulary = list(vocabulary)
        self._columns = {part: place for place, part in enumerate(self.vocabulary)}

    @classmethod
    def learn(cls, counts: Mapping[Hashable, int], min_count: int, lowercase: bool) -> VocabularyFeatures:
        """The features of the counted tokens that occur at least ``min_count`` times, in the order of their bytes."""
        found: Counter[Hashable] = Counter()
        for token, count in counts.items():
            for part in parts(token, lowercase=lowercase):
                found[part] += count
        return cls(sorted((part for part, count in found.items() if count >= min_count), key=token_bytes), lowercase)

    def column(self, part: Hashable) -> int | None:
        """The place of the feature in the list."""
        return self._columns.get(part)


def numbered(tokens: Iterable[Hashable], numbers: dict[Hashable, int], count: int) -> IntArray:
    """The numbers of ``count`` tokens; one that has none yet gets the next, in ``numbers``."""
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
    """Undo `token_to_json`; ValueError if it cannot have come from there."""
    if isinstance(value, dict) and list(value) == ["bytes"] and isinstance(value["bytes"], str):
        return bytes.fromhex(value["bytes"])
    if isinstance(value, list):
        return tuple(token_from_json(element) for element in value)
    if isinstance(value, str) or type(value) is int:
        return value
    raise ValueError(f"no token is written as {value!r}")
