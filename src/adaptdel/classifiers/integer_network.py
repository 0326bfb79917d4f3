"""Arithmetic of the embedding network in whole numbers: features of tokens, pooling, layers; all of it exact.

Weights and activations are whole numbers in floats. A matrix product of them is exact in any order of summation,
because every partial sum is a whole number that the type can hold. Between the products stand only operations that
IEEE 754 rounds correctly: division, square root, multiplication, addition, rounding, minimum and maximum. So the scores
of a copy do not depend on the batch, on the BLAS, on the number of threads or on the machine.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.features import hashed, numbered, parts
from adaptdel.classifiers.onnx_encoder import OnnxEncoder
from adaptdel.classifiers.word_encoders import encodable
from adaptdel.core.checks import BoolArray, FloatArray, IntArray

ROW_LIMIT = 2**15 - 1  # embeddings are stored in 16 bits
ENCODED_LIMIT = 127  # the vector of a new word is rounded to 8 bits a dimension
MOST_CHARACTERS = 48  # of a token that n-grams are taken of
CACHED_TOKENS = 2**16  # tokens whose vectors are kept
CACHED_LENGTH = 64  # longer tokens are not kept
COPIES = 512  # that go through the layers together
POOLED = 2**16  # kept tokens that are pooled together
LONG = 64  # up to 8 copies with more kept tokens are pooled one by one
_ENDS = re.compile(r"^[\W_]+|[\W_]+$")


@dataclass(frozen=True)
class Grid:
    """The whole numbers that stand for weights and activations.

    Attributes:
        name: as in `EmbeddingClassifier`.
        activations: the largest activation.
        weights: the largest weight.
        dtype: the float in which sums are exact.
        exact: the largest sum that is.
        row: holds an activation.
        sum: holds a sum of activations.
    """

    name: str
    activations: int
    weights: int
    dtype: Any
    exact: int
    row: Any
    sum: Any

    def most_inputs(self) -> int:
        """How many terms a sum may have."""
        return self.exact // (self.activations * self.weights)


GRIDS = {
    grid.name: grid
    for grid in (
        Grid("int8", 127, 127, np.float32, 2**24, np.int8, np.int32),
        Grid("float32", 2**15 - 1, 2**23 - 1, np.float64, 2**53, np.int16, np.int64),
    )
}


PROJECTION = Grid("projection", ENCODED_LIMIT, 2**15 - 1, np.float64, 2**53, np.int16, np.int64)  # of new words


@dataclass(frozen=True)
class Layer:
    """A linear layer: the outputs are ``(inputs @ weights) * scale + shift``.

    Attributes:
        weights: whole numbers of shape (inputs, outputs).
        scale: of shape (outputs,).
        shift: of shape (outputs,).
    """

    weights: npt.NDArray[Any]
    scale: npt.NDArray[Any]
    shift: npt.NDArray[Any]

    def __call__(self, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The outputs, of shape (copies, outputs), before rounding."""
        outputs = inputs @ self.weights
        outputs *= self.scale
        outputs += self.shift
        return outputs


@dataclass
class Bags:
    """Copies of one input: the vectors of its distinct tokens, and which of them each copy keeps.

    Attributes:
        vectors: whole numbers of shape (distinct tokens, width).
        codes: the row of ``vectors`` of every token, of shape (tokens,).
        mask: the vector that stands for all masked tokens of a copy, or None under deletion.
    """

    vectors: npt.NDArray[Any]
    codes: IntArray
    mask: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class IntegerNetwork:
    """The network that turns tokens into vectors, and kept tokens into scores.

    Attributes:
        grid: of weights and activations.
        rows: embeddings of features, int16 of shape (features, dimensions).
        pretrained: projected pretrained vectors, int16 of shape (words, dimensions).
        word_scale: of shape (2, dimensions): what a unit of ``rows`` and of ``pretrained`` is worth.
        word: the layer from a token's embedding to its vector.
        mask: the vector of masked tokens, of shape (width,).
        pool_scale: of shape (2 * width + 1,), for the sum, the maximum and the count.
        pool_shift: of the same shape.
        layers: the hidden layers and the output layer.
        encoded_unit: what a unit of each dimension of a new word's vector is worth; None if new words have none.
        projection: the layer from a new word's rounded vector to a row as in ``pretrained``.
    """

    grid: Grid
    rows: npt.NDArray[np.int16]
    pretrained: npt.NDArray[np.int16]
    word_scale: npt.NDArray[Any]
    word: Layer
    mask: npt.NDArray[Any]
    pool_scale: npt.NDArray[Any]
    pool_shift: npt.NDArray[Any]
    layers: tuple[Layer, ...]
    encoded_unit: FloatArray | None = None
    projection: Layer | None = None

    def encoded(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
        """Rows as in ``pretrained`` out of the vectors of new words, of shape (words, length): exact after rounding."""
        assert self.projection is not None
        assert self.encoded_unit is not None
        whole = np.rint(vectors.astype(np.float64) / self.encoded_unit)
        rows = np.rint(self.projection(np.clip(whole, -ENCODED_LIMIT, ENCODED_LIMIT)))
        return np.clip(rows, -ROW_LIMIT, ROW_LIMIT).astype(np.int16)

    def token_vectors(
        self,
        features: IntArray,
        starts: IntArray,
        words: IntArray,
        new: tuple[IntArray, npt.NDArray[np.int16]] | None = None,
    ) -> npt.NDArray[Any]:
        """The vectors of tokens, whole numbers of shape (tokens, width).

        Args:
            features: the feature numbers of all tokens, one token after another.
            starts: where those of each token begin; every token has at least one.
            words: the row of the pretrained vector of each token, or -1.
            new: the places of tokens that are encoded anew, and their rows.
        """
        dtype, limit = self.grid.dtype, self.grid.activations
        counts = np.diff(np.append(starts, len(features)))
        sums = np.add.reduceat(self.rows[features], starts, axis=0, dtype=np.int32).astype(dtype)
        sums /= np.sqrt(counts.astype(dtype))[:, None]
        sums *= self.word_scale[0]
        known = np.flatnonzero(words >= 0)
        if len(known):
            sums[known] += self.pretrained[words[known]].astype(dtype) * self.word_scale[1]
        if new is not None:
            sums[new[0]] += new[1].astype(dtype) * self.word_scale[1]
        np.rint(sums, out=sums)
        np.clip(sums, -limit, limit, out=sums)
        vectors = self.word(sums)
        np.rint(vectors, out=vectors)
        return np.clip(vectors, 0, limit).astype(self.grid.row)

    def pool(self, bags: Bags, kept: BoolArray) -> npt.NDArray[Any]:
        """The pooled vectors of copies, of shape (copies, 2 * width + 1), on the grid of activations.

        ``kept`` is of shape (copies, tokens).
        """
        counts = np.count_nonzero(kept, axis=1)
        width = bags.vectors.shape[1]
        sums = np.zeros((len(kept), width), dtype=self.grid.sum)
        largest = np.zeros((len(kept), width), dtype=self.grid.row)
        limit = LONG * max(1, len(kept) // 8)  # few copies are pooled one by one sooner; the sums are the same
        short = np.flatnonzero(counts <= limit)
        if len(short) == len(kept):
            _pool_short(bags, kept, counts, sums, largest)
        else:
            if len(short):
                part_sums, part_largest = sums[short], largest[short]
                _pool_short(bags, kept[short], counts[short], part_sums, part_largest)
                sums[short], largest[short] = part_sums, part_largest
            for place in np.flatnonzero(counts > limit).tolist():
                _pool_long(bags, kept[place], sums[place], largest[place])
        if bags.mask is not None:
            masked = counts < kept.shape[1]
            sums[masked] += bags.mask
            largest[masked] = np.maximum(largest[masked], bags.mask)
        return self._normalised(sums, largest, counts)

    def _normalised(
        self, sums: npt.NDArray[Any], largest: npt.NDArray[Any], counts: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        dtype, width, limit = self.grid.dtype, sums.shape[1], self.grid.activations
        pooled = np.empty((len(sums), 2 * width + 1), dtype=dtype)
        np.divide(sums.astype(dtype), np.sqrt(np.maximum(counts, 1).astype(dtype))[:, None], out=pooled[:, :width])
        pooled[:, width:-1] = largest
        pooled[:, -1] = count_feature(counts)
        pooled *= self.pool_scale
        pooled += self.pool_shift
        np.rint(pooled, out=pooled)
        return np.clip(pooled, -limit, limit, out=pooled)

    def scores(self, pooled: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The scores of copies, of shape (copies, classes), from their pooled vectors."""
        limit = self.grid.activations
        for layer in self.layers[:-1]:
            pooled = layer(pooled)
            np.rint(pooled, out=pooled)
            np.clip(pooled, 0, limit, out=pooled)
        return self.layers[-1](pooled)


def count_feature(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The logarithm to base 2 of ``counts + 1``, linear between powers of two, which is exact on every machine.

    >>> count_feature(np.array([0, 1, 2, 3, 1023]))
    array([ 0. ,  1. ,  1.5,  2. , 10. ])
    """
    mantissa, exponent = np.frexp((counts + 1).astype(np.float64))
    return exponent - 2 + 2 * mantissa


def _pool_short(
    bags: Bags, kept: BoolArray, counts: npt.NDArray[Any], sums: npt.NDArray[Any], largest: npt.NDArray[Any]
) -> None:
    """Add up the first kept tokens of all copies, then the second ones, and so on: few calls of numpy."""
    order = np.argsort(-counts, kind="stable")
    ordered = counts[order]
    starts = (np.cumsum(counts) - counts)[order]
    places = bags.codes[np.flatnonzero(kept) % max(1, kept.shape[1])]
    total, top = np.zeros_like(sums), np.zeros_like(largest)
    most = int(ordered[0]) if len(ordered) else 0
    active = np.searchsorted(-ordered, -np.arange(most), side="left")
    for step, size in enumerate(active.tolist()):
        vectors = np.take(bags.vectors, places[starts[:size] + step], axis=0)
        total[:size] += vectors
        np.maximum(top[:size], vectors, out=top[:size])
    sums[order], largest[order] = total, top


def _pool_long(bags: Bags, kept: BoolArray, sums: npt.NDArray[Any], largest: npt.NDArray[Any]) -> None:
    """One copy, block by block."""
    codes = bags.codes[kept]
    for start in range(0, len(codes), POOLED):
        present, counts = np.unique(codes[start : start + POOLED], return_counts=True)
        vectors = bags.vectors[present]
        sums += (vectors.astype(sums.dtype) * counts[:, None]).sum(axis=0, dtype=sums.dtype)
        np.maximum(largest, vectors.max(axis=0), out=largest)


def core_word(token: Hashable, *, lowercase: bool) -> Hashable:
    """A text token without what is neither letter nor digit at its ends, unless nothing is left; others as they are.

    >>> core_word("(Well-made!", lowercase=True), core_word("!!", lowercase=True)
    ('well-made', '!!')
    """
    if not isinstance(token, str):
        return token
    text = token.lower() if lowercase else token
    return _ENDS.sub("", text) or text


@dataclass(frozen=True)
class TokenFeatures:
    """The features of a token: words of the vocabulary, hashed character n-grams and its capitals.

    A text token has its lowercase form and the words in it, if the vocabulary holds them, its character n-grams, and a
    feature that says whether it is capitalised or in capitals. Tokens of bytes have n-grams of bytes. Other tokens have
    the token itself, by the vocabulary and hashed.

    Attributes:
        vocabulary: the words that have embeddings of their own.
        words: the words that have pretrained vectors.
        bits: n-grams are hashed into ``2**bits`` rows, which follow those of the vocabulary.
        ngrams: the lengths of n-grams.
        lowercase: whether texts are lowered.
    """

    vocabulary: Sequence[Hashable]
    words: Sequence[Hashable]
    bits: int
    ngrams: tuple[int, ...]
    lowercase: bool
    rows: dict[Hashable, int] = field(init=False, repr=False, compare=False)
    pretrained: dict[Hashable, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", {part: place for place, part in enumerate(self.vocabulary)})
        object.__setattr__(self, "pretrained", {part: place for place, part in enumerate(self.words)})

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.vocabulary) + 2**self.bits

    def learnt(self, token: Hashable) -> list[int]:
        """The features of the vocabulary."""
        rows = self.rows
        return [rows[part] for part in parts(token, lowercase=self.lowercase) if part in rows]

    def hashed(self, token: Hashable) -> list[int]:
        """The hashed features, at least one."""
        first, bucket = len(self.vocabulary), (1 << self.bits) - 1
        grams: list[bytes] = []
        if isinstance(token, str):
            text = token.lower() if self.lowercase else token
            padded = f"<{text[:MOST_CHARACTERS]}>"
            pieces = (padded[place : place + n] for n in self.ngrams for place in range(len(padded) - n + 1))
            grams = [piece.encode("utf-8", "surrogatepass") for piece in pieces]
            if text != token:
                grams.append(b"\0capitals" if token.isupper() else b"\0capital" if token[0].isupper() else b"\0mixed")
        elif isinstance(token, bytes):
            data = token[:MOST_CHARACTERS]
            grams = [data[place : place + n] for n in self.ngrams for place in range(len(data) - n + 1)]
        if not grams:
            return [first + hashed(token, self.bits)]
        return [first + (zlib.crc32(gram) & bucket) for gram in grams]

    def word(self, token: Hashable) -> int:
        """The row of the pretrained vector, or -1."""
        return self.pretrained.get(core_word(token, lowercase=self.lowercase), -1) if self.pretrained else -1

    def table(self, tokens: Iterable[Hashable]) -> tuple[IntArray, IntArray, IntArray]:
        """Features, starts and words of tokens, as `IntegerNetwork.token_vectors` takes them."""
        features: list[int] = []
        starts: list[int] = []
        words: list[int] = []
        for token in tokens:
            starts.append(len(features))
            features += self.learnt(token)
            features += self.hashed(token)
            words.append(self.word(token))
        return np.array(features, dtype=np.int64), np.array(starts, dtype=np.int64), np.array(words, dtype=np.int64)


class TokenVectors:
    """The vectors of tokens for all networks side by side, with a bounded cache of those used last.

    Args:
        features: of tokens.
        networks: that turn features into vectors.
        limit: the most tokens in the cache.
        encoder: encodes words that have no pretrained vector in the model; None for none.
    """

    def __init__(
        self,
        features: TokenFeatures,
        networks: Sequence[IntegerNetwork],
        limit: int = CACHED_TOKENS,
        encoder: OnnxEncoder | None = None,
    ) -> None:
        self.features = features
        self.encoder = encoder
        self.networks = list(networks)
        self.limit = limit
        self._places: OrderedDict[Hashable, int] = OrderedDict()  # of the tokens in the table, the latest last
        width = sum(len(network.mask) for network in self.networks)
        self._table = np.zeros((limit, width), dtype=self.networks[0].grid.row)

    def __len__(self) -> int:
        return len(self._places)

    def __call__(self, tokens: Sequence[Hashable]) -> tuple[npt.NDArray[Any], IntArray]:
        """The vectors of the distinct tokens, of shape (distinct, sum of the widths), and the row of each token."""
        numbers: dict[Hashable, int] = {}
        if set(map(type, tokens)) <= {str}:
            rows = numbered(tokens, numbers, len(tokens))
            distinct = list(numbers)
        else:  # Python holds 1 and True to be equal
            rows = numbered(zip(map(type, tokens), tokens, strict=True), numbers, len(tokens))
            distinct = list(dict(zip(rows.tolist(), tokens, strict=True)).values())
        return self._vectors(list(numbers), distinct), rows

    def _vectors(self, keys: Sequence[Hashable], tokens: Sequence[Hashable]) -> npt.NDArray[Any]:
        places = self._places
        known = [places.get(key, -1) for key in keys]
        rows = np.array(known, dtype=np.int64)
        vectors = self._table[rows]
        for key in keys:
            if key in places:
                places.move_to_end(key)
        missing = np.flatnonzero(rows < 0)
        for start in range(0, len(missing), COPIES):
            block = missing[start : start + COPIES].tolist()
            fresh = self._computed([tokens[place] for place in block])
            vectors[block] = fresh
            self._keep([keys[place] for place in block], [tokens[place] for place in block], fresh)
        return vectors

    def _computed(self, tokens: Sequence[Hashable]) -> npt.NDArray[Any]:
        """The vectors of tokens that are not in the cache."""
        features, starts, words = self.features.table(tokens)
        places: list[int] = []
        if self.encoder is not None:
            new = {place: core_word(tokens[place], lowercase=self.features.lowercase)
                   for place in np.flatnonzero(words < 0).tolist()}  # fmt: skip
            places = [place for place, word in new.items() if encodable(word)]
        if self.encoder is None or not places:
            return np.concatenate([network.token_vectors(features, starts, words) for network in self.networks], axis=1)
        vectors = self.encoder.vectors([str(new[place]) for place in places])
        rows = np.array(places, dtype=np.int64)
        return np.concatenate(
            [network.token_vectors(features, starts, words, (rows, network.encoded(vectors)))
             for network in self.networks],
            axis=1,
        )  # fmt: skip

    def _keep(self, keys: Sequence[Hashable], tokens: Sequence[Hashable], vectors: npt.NDArray[Any]) -> None:
        """Put vectors into the table; tokens that were not used for the longest time make place."""
        for key, token, vector in zip(keys, tokens, vectors, strict=True):
            if isinstance(token, (str, bytes)) and len(token) > CACHED_LENGTH:
                continue
            full = len(self._places) >= self.limit
            place = self._places.popitem(last=False)[1] if full else len(self._places)
            self._places[key] = place
            self._table[place] = vector


@dataclass(frozen=True)
class FloatNetwork:
    """A trained network in floating point, with the ranges of its activations.

    Attributes:
        rows: embeddings of features, of shape (features, dimensions).
        pretrained: projected pretrained vectors, of shape (words, dimensions).
        word: weights (dimensions, width) and bias of the layer of tokens.
        mask: the vector of masked tokens, of shape (width,).
        pool: scale and shift of the pooled vector, each of shape (2 * width + 1,).
        layers: weights (inputs, outputs) and bias of each layer; between two of them negative values become 0.
        ranges: the largest absolute values of the inputs of the word layer, its outputs, and the inputs of each layer.
        projection: weights (length, dimensions) that new words are projected by, and the largest absolute value of each
            dimension of their vectors; None if new words have none.
    """

    rows: npt.NDArray[Any]
    pretrained: npt.NDArray[Any]
    word: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    mask: npt.NDArray[Any]
    pool: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    layers: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    ranges: list[npt.NDArray[Any]]
    projection: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None


def quantised(network: FloatNetwork, precision: str) -> IntegerNetwork:
    """The network in whole numbers."""
    grid = GRIDS[precision]
    inputs, vectors, *activations = [np.maximum(np.asarray(r, np.float64), 1e-6) / grid.activations
                                     for r in network.ranges]  # fmt: skip
    rows, row_unit = _rounded_rows(network.rows)
    pretrained, pretrained_unit = _rounded_rows(network.pretrained)
    layers = []
    for place, (weights, bias) in enumerate(network.layers):
        last = place + 1 == len(network.layers)
        outputs = np.ones(weights.shape[1]) if last else activations[place + 1]
        layers.append(_quantised_layer(weights, bias, activations[place], outputs, grid))
    scale, shift = (np.asarray(values, np.float64) for values in network.pool)
    units = np.concatenate([vectors, vectors, np.ones(1)])
    encoded_unit, projection = None, None
    if network.projection is not None:
        project, largest = network.projection
        encoded_unit = np.maximum(np.asarray(largest, np.float64), 1e-6) / ENCODED_LIMIT
        no_bias = np.zeros(project.shape[1])
        projection = _quantised_layer(project, no_bias, encoded_unit, pretrained_unit, PROJECTION)
    return IntegerNetwork(
        grid,
        rows,
        pretrained,
        np.stack([row_unit / inputs, pretrained_unit / inputs]).astype(grid.dtype),
        _quantised_layer(*network.word, inputs, vectors, grid),
        np.clip(np.rint(network.mask / vectors), 0, grid.activations).astype(grid.row),
        (scale * units / activations[0]).astype(grid.dtype),
        (shift / activations[0]).astype(grid.dtype),
        tuple(layers),
        encoded_unit,
        projection,
    )


def _rounded_rows(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], FloatArray]:
    """Rows in 16 bits, and what a unit of each dimension is worth."""
    unit = np.maximum(np.abs(rows).max(axis=0, initial=0.0).astype(np.float64), 1e-6) / ROW_LIMIT
    return np.clip(np.rint(rows / unit), -ROW_LIMIT, ROW_LIMIT).astype(np.int16), unit


def _quantised_layer(
    weights: npt.NDArray[Any], bias: npt.NDArray[Any], inputs: FloatArray, outputs: FloatArray, grid: Grid
) -> Layer:
    """A layer between units of inputs and of outputs."""
    values = np.asarray(weights, np.float64) * inputs[:, None]
    unit = np.maximum(np.abs(values).max(axis=0), 1e-12) / grid.weights
    whole = np.clip(np.rint(values / unit), -grid.weights, grid.weights).astype(grid.dtype)
    return Layer(whole, (unit / outputs).astype(grid.dtype), (bias / outputs).astype(grid.dtype))
