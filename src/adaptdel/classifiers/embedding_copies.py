"""Noisy copies for the training of the embedding network: drawn by numpy, with the features of their tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.features import numbered
from adaptdel.classifiers.integer_network import TokenFeatures
from adaptdel.core.checks import IntArray
from adaptdel.core.noise import Noise

COPIES_OF_STEP, ORDER, DROPOUT, HELD_OUT, EVALUATION, RANGES = range(6)  # what a stream of random numbers is for


def stream(seed: int, purpose: int, number: int = 0) -> np.random.Generator:
    """The random numbers of one purpose in one step, which do not depend on those of other steps."""
    return np.random.Generator(
        np.random.Philox(key=np.array([seed, purpose], dtype=np.uint64), counter=[0, 0, 0, number])
    )


@dataclass
class TrainingTokens:
    """The distinct tokens of the examples with their features, and the examples as numbers of tokens.

    Attributes:
        learnt: features of the vocabulary of each token, and where they begin and end.
        hashed: hashed features, likewise.
        words: the row of the pretrained vector, or -1.
        codes: the token numbers of each example.
    """

    learnt: tuple[IntArray, IntArray]
    hashed: tuple[IntArray, IntArray]
    words: IntArray
    codes: list[IntArray]

    @classmethod
    def build(cls, features: TokenFeatures, tokens: Sequence[Sequence[Hashable]]) -> TrainingTokens:
        """Look up every distinct token once."""
        numbers: dict[Hashable, int] = {}
        codes = [numbered(example, numbers, len(example)) for example in tokens]
        learnt, hashed = [features.learnt(token) for token in numbers], [features.hashed(token) for token in numbers]
        words = np.fromiter((features.word(token) for token in numbers), dtype=np.int64, count=len(numbers))
        return cls(_csr(learnt), _csr(hashed), words, codes)


def _csr(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    ends = np.cumsum([0, *(len(row) for row in lists)], dtype=np.int64)
    return np.fromiter((value for row in lists for value in row), dtype=np.int64, count=int(ends[-1])), ends


@dataclass
class Batch:
    """Noisy copies: which distinct tokens they hold, and the features of those.

    Attributes:
        kept: for every kept token, its number among the distinct tokens of the batch.
        counts: kept tokens of each copy.
        masked: whether each copy has masked tokens.
        present: the features that occur in the batch.
        features: for every feature of every distinct token, its number in ``present``; one token after another.
        feature_counts: how many features each distinct token has.
        words: the row of the pretrained vector of each distinct token, or -1.
        labels: the class number of each copy.
    """

    kept: IntArray
    counts: IntArray
    masked: npt.NDArray[np.bool_]
    present: IntArray
    features: IntArray
    feature_counts: IntArray
    words: IntArray
    labels: IntArray


class CopySampler:
    """Draws noisy copies of examples."""

    def __init__(
        self,
        tokens: TrainingTokens,
        labels: IntArray,
        noise: Noise,
        word_dropout: float,
        size: int,
        *,
        encodes: bool = False,
    ) -> None:
        self.tokens, self.labels, self.noise, self.word_dropout = tokens, labels, noise, word_dropout
        self.size, self.encodes = size, encodes

    def draw(self, examples: IntArray, copies: int, rng: np.random.Generator, *, training: bool = True) -> Batch:
        """``copies`` noisy copies of each example; ``training`` leaves out words at random."""
        kept_codes, counts, masked = [], [], []
        for example in examples.tolist():
            codes = self.tokens.codes[example]
            kept = self.noise.sample(len(codes), copies, rng)
            counts.append(np.count_nonzero(kept, axis=1))
            kept_codes.append(codes[np.flatnonzero(kept) % max(1, len(codes))])
            masked.append(counts[-1] < len(codes))
        distinct, kept_numbers = _renumbered(np.concatenate(kept_codes), len(self.tokens.words))
        words = self.tokens.words[distinct]
        left_out = np.zeros(len(distinct), dtype=np.bool_)
        if training and self.word_dropout:
            left_out = rng.random(len(distinct)) < self.word_dropout
            if not self.encodes:  # else new words have pretrained vectors too
                words = np.where(left_out, -1, words)
        learnt, learnt_counts = _gather(self.tokens.learnt, distinct, left_out)
        hashed, hashed_counts = _gather(self.tokens.hashed, distinct, np.zeros_like(left_out))
        features, feature_counts = _interleaved(learnt, learnt_counts, hashed, hashed_counts)
        present, features = _renumbered(features, self.size)
        all_masked = np.concatenate(masked) if self.noise.masks_tokens else np.zeros(len(examples) * copies, np.bool_)
        return Batch(
            kept_numbers,
            np.concatenate(counts).astype(np.int64),
            all_masked,
            present,
            features,
            feature_counts,
            words,
            np.repeat(self.labels[examples], copies),
        )


def _renumbered(values: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """The distinct values below ``size`` in order, and the number of each value among them."""
    numbers = np.zeros(size, dtype=np.int64)
    numbers[values] = 1
    distinct = np.flatnonzero(numbers)
    numbers[distinct] = np.arange(len(distinct))
    return distinct, numbers[values]


def _gather(
    table: tuple[IntArray, IntArray], rows: IntArray, empty: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Rows of a CSR table one after another, and their lengths; rows marked as ``empty`` have none."""
    values, ends = table
    counts = np.where(empty, 0, ends[rows + 1] - ends[rows])
    starts = np.repeat(ends[rows] - (np.cumsum(counts) - counts), counts)
    return values[starts + np.arange(int(counts.sum()))], counts


def _interleaved(
    first: IntArray, first_counts: IntArray, second: IntArray, second_counts: IntArray
) -> tuple[IntArray, IntArray]:
    """Two lists of rows joined row by row."""
    counts = first_counts + second_counts
    starts = np.cumsum(counts) - counts
    joined = np.empty(len(first) + len(second), dtype=np.int64)
    for values, sizes, offset in ((first, first_counts, starts), (second, second_counts, starts + first_counts)):
        joined[np.repeat(offset - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(values))] = values
    return joined, counts


def examples_of_step(training: IntArray, size: int, step: int, seed: int) -> IntArray:
    """The examples of a step: each example comes once before any comes again."""
    places = np.arange(step * size, (step + 1) * size)
    epochs = places // len(training)
    orders = {epoch: stream(seed, ORDER, epoch).permutation(training) for epoch in np.unique(epochs).tolist()}
    return np.array(
        [orders[epoch][place % len(training)] for epoch, place in zip(epochs.tolist(), places, strict=True)]
    )
