"""Training of the linear model on the vote itself: the normal approximation of its vote shares, without noisy copies.

The score of a copy is a sum over the kept tokens. If each token is kept with probability q, the mean of the score is q
times the score of the whole text, and its variance is q (1 − q) times the sum of the squared scores of the tokens. They
give the share of votes for the right class in closed form, and it is this share that the answer and the radius depend
on. The loss of single copies asks for more than that: every copy is to be right, also one that kept none of the words
that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adaptdel.classifiers.base import example_stream
from adaptdel.classifiers.linear_training import TOLERANCE, Counts, Fitted, Progress, minimise
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.noise import Noise

SHARPNESS = 2.0  # of the logistic loss in standard deviations of the score
# A bias decides on copies that kept no word that matters: all of them, in texts of the rare class too.
BIAS_PENALTY = 0.01
SMOOTHING = 5.0  # added to the counts of a feature in a class, for the first weights
FREE = 0.998  # of the tokens of the examples are within the first bound
LEVEL_FACTOR = 0.8  # from a bound to the next one
ITERATIONS_OF_A_LEVEL = 5  # a fifth of the iterations without a bound
LEVEL_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ClassExamples:
    """The examples of one class."""

    counts: Counts  # tokens of each example, shape (examples, types)
    transposed: Counts
    keep: FloatArray  # the probability of keeping a token, shape (examples, draws)
    weights: FloatArray  # of each example in the loss; they add up to 1 over all blocks, shape (examples, 1, 1)
    signs: FloatArray  # takes scores to margins: that of the class minus that of a rival, shape (scores, rivals)

    def loss(self, token_scores: FloatArray, bias: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """The loss of the block, and its derivatives by the scores of the tokens, (types, scores), and the bias."""
        margins = token_scores @ self.signs  # of each token against each rival
        total, squares = (np.asarray(self.counts @ power)[:, None] for power in (margins, margins * margins))
        value, slopes, bias_slope = vote_loss(total, squares, bias @ self.signs, self.keep[:, :, None], self.weights)
        by_total, by_squares = (self.transposed @ slope for slope in slopes)
        return value, (by_total + 2.0 * margins * by_squares) @ self.signs.T, self.signs @ bias_slope


def vote_loss(
    total: FloatArray, squares: FloatArray, bias: FloatArray, keep: FloatArray, weights: FloatArray
) -> tuple[float, tuple[FloatArray, FloatArray], FloatArray]:
    """The logistic loss of vote margins, and its derivatives by the sums over tokens and by the bias.

    Args:
        total: the sum of the margins of the tokens of each example, shape (examples, 1, rivals).
        squares: the sum of their squares.
        bias: shape (rivals,).
        keep: the probability of keeping a token, shape (examples, draws, 1).
        weights: shape (examples, 1, 1).
    """
    spread = keep * (1.0 - keep)
    variance = spread * squares + 1.0  # the 1 fixes the scale of the weights, and keeps margins finite
    deviation = np.sqrt(variance)
    margin = (keep * total + bias) / deviation
    exponents = -SHARPNESS * margin
    largest = np.maximum(exponents.max(axis=2, keepdims=True), 0.0)
    raised = np.exp(exponents - largest)
    normaliser = np.exp(-largest) + raised.sum(axis=2, keepdims=True)
    share = weights / keep.shape[1]
    value = float((share * (np.log(normaliser) + largest)).sum()) / SHARPNESS
    slope = -share * raised / normaliser
    by_mean = slope / deviation
    by_variance = -slope * margin / (2.0 * variance)
    return value, ((by_mean * keep).sum(axis=1), (by_variance * spread).sum(axis=1)), by_mean.sum(axis=(0, 1))


@dataclass(frozen=True)
class VoteObjective:
    """The loss of the vote margins plus a penalty, with token scores that are bounded, or free if the bound is 0."""

    columns: Counts  # feature columns of each distinct token that occur in the examples, shape (types, features)
    transposed: Counts
    blocks: list[ClassExamples]  # the examples by class
    penalties: FloatArray  # of the squared weights and of the squared bias, shape (features + 1, 1)
    scores: int
    bound: float = 0.0  # of the token scores, see `bounded`

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """The value and the gradient; the weights come first and the bias last, flattened."""
        table = flat.reshape(-1, self.scores)
        token_scores, backward = bounded(self.token_scores(table), self.bound)
        value, slope = 0.0, np.zeros_like(token_scores)
        gradient = np.zeros_like(table)
        for block in self.blocks:
            loss, by_token, by_bias = block.loss(token_scores, table[-1])
            value, slope = value + loss, slope + by_token
            gradient[-1] += by_bias
        gradient += self.penalties * table
        gradient[:-1] += self.transposed @ backward(slope)
        return value + float((self.penalties * np.square(table)).sum()) / 2, gradient.ravel()

    def token_scores(self, table: FloatArray) -> FloatArray:
        """The unbounded scores of all distinct tokens, shape (types, scores)."""
        return np.asarray(self.columns @ table[:-1])


def bounded(token_scores: FloatArray, bound: float) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
    """Token scores that change no margin between two classes by more than the bound, and the derivative of that.

    A single score is clipped. Of several scores only their differences matter: the middle between the largest and the
    smallest is taken off before they are clipped to half the bound. `bounded_scores` does the same to integers.
    """
    if not bound:
        return token_scores, lambda slope: slope
    if token_scores.shape[1] == 1:
        inside = np.abs(token_scores) < bound
        return np.clip(token_scores, -bound, bound), lambda slope: slope * inside
    rows, high, low = np.arange(len(token_scores)), token_scores.argmax(axis=1), token_scores.argmin(axis=1)
    centred = token_scores - (token_scores[rows, high] + token_scores[rows, low])[:, None] / 2

    def backward(slope: FloatArray) -> FloatArray:
        slope = slope * (np.abs(centred) < bound / 2)
        middle = slope.sum(axis=1) / 2
        slope[rows, high] -= middle
        slope[rows, low] -= middle
        return slope

    return np.clip(centred, -bound / 2, bound / 2), backward


def train_margins(
    counts: Counts,
    composition: Counts,
    answers: IntArray,
    classes: int,
    keep: FloatArray,
    *,
    l2: float,
    iterations: int,
    weights: FloatArray | None = None,
    levels: int = 0,
    vectors: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[Fitted]:
    """Minimise the mean logistic loss of the vote margins plus a penalty, as `linear_training.train` has it.

    The vote margin of an example is the number of standard deviations between the mean score of its copies and a tie.

    With ``levels``, training goes on with bounded token scores (see `bounded`), for one bound after the other. The
    first bound is passed by 2 in 1000 of the tokens of the examples, and each next one is a fifth smaller. The loss is
    then no longer convex, and each bound starts from the weights of the one before.

    Args:
        counts: tokens of each whole example, as of `noisy_counts`; the other arguments are those of `train`, too.
        composition: feature columns of each distinct token.
        answers: the class number of every example.
        classes: the number of classes.
        keep: the probability with which a copy keeps a token, shape (examples, draws).
        l2: penalty on squared weights per token of a copy.
        iterations: the largest number of steps of L-BFGS, and a fifth of it for each bound.
        weights: the weight of every example.
        levels: the number of bounds.
        vectors: the number of the last columns that are no counts but parts of vectors; their first weights are 0.
        progress: called with (steps done, largest number of steps).

    Returns:
        The unbounded model, and one for each bound.
    """
    examples, scores = len(answers), 1 if classes == 2 else classes
    used = np.unique((counts @ composition).indices)
    columns = sparse.csr_array(composition[:, used])
    transposed = sparse.csr_array(columns.T)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    kept = float((keep.mean(axis=1) * lengths).mean())
    penalty = l2 * max(1.0, kept)
    penalties = np.append(np.full(len(used), penalty), BIAS_PENALTY)[:, None]
    shares = (np.ones(examples) if weights is None else weights) / examples
    free = VoteObjective(columns, transposed, class_examples(counts, answers, classes, keep, shares), penalties, scores)
    table = np.zeros((len(used) + 1, scores))
    counted = int(np.searchsorted(used, composition.shape[1] - vectors))
    occurrences = np.stack([transposed[:counted] @ (counts.T @ (answers == c)) for c in range(classes)], axis=1)
    table[:counted] = _log_odds(occurrences)
    steps, steps_of_a_level = 0, max(1, iterations // ITERATIONS_OF_A_LEVEL)
    results: list[Fitted] = []

    def fit(objective: VoteObjective, most: int, tolerance: float) -> None:
        """Minimise from the last table on."""
        nonlocal table, steps
        minimum = minimise(
            objective,
            table.ravel(),
            iterations=most,
            tolerance=tolerance,
            step=lambda done: progress(steps + done, iterations + levels * steps_of_a_level),
        )
        table, steps = minimum.point.reshape(-1, scores), steps + most
        fitted = np.zeros((composition.shape[1], scores))
        fitted[used] = table[:-1]
        record = {"kept_mean": kept, "penalty": penalty, **minimum.record()}
        results.append(Fitted(fitted, table[-1].copy(), record, objective.bound))

    fit(free, iterations, TOLERANCE)
    bound = _first_bound(free.token_scores(table), np.asarray(counts.sum(axis=0)).ravel())
    for level in range(levels):
        fit(replace(free, bound=bound * LEVEL_FACTOR**level), steps_of_a_level, LEVEL_TOLERANCE)
    return results


def _first_bound(token_scores: FloatArray, occurrences: npt.NDArray[Any]) -> float:
    """The range of scores that a fraction `FREE` of the occurrences of tokens does not exceed."""
    ranges = np.ptp(token_scores, axis=1) if token_scores.shape[1] > 1 else np.abs(token_scores[:, 0])
    order = np.argsort(ranges)
    reached = np.cumsum(occurrences[order])
    return max(float(ranges[order[np.searchsorted(reached, FREE * reached[-1])]]), 1e-6)


def class_examples(
    counts: Counts, answers: IntArray, classes: int, keep: FloatArray, shares: FloatArray
) -> list[ClassExamples]:
    """The examples, grouped by their class; ``shares`` are their weights, which add up to 1."""
    blocks = []
    for number in np.unique(answers).tolist():
        rows = np.flatnonzero(answers == number)
        own = sparse.csr_array(counts[rows])
        if classes == 2:
            signs = np.array([[1.0 if number == 1 else -1.0]])
        else:
            signs = np.delete(np.eye(classes)[:, [number]] - np.eye(classes), number, axis=1)
        blocks.append(ClassExamples(own, sparse.csr_array(own.T), keep[rows], shares[rows, None, None], signs))
    return blocks


def _log_odds(occurrences: FloatArray) -> FloatArray:
    """The first weights: naive Bayes. ``occurrences`` has the shape (features, classes)."""
    counts = occurrences + SMOOTHING
    logs = np.log(counts / np.maximum(counts.sum(axis=0), SMOOTHING))
    return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(axis=1, keepdims=True)


def keep_rates(tokens: Sequence[Sequence[Hashable]], noise: Noise, *, draws: int, seed: int) -> FloatArray:
    """The probability with which copies of each example keep a token, shape (examples, draws)."""
    rates = np.empty((len(tokens), draws))
    for number, example in enumerate(tokens):
        rates[number] = noise.given(example).keep_rates(len(example), draws, example_stream(seed, number))
    return rates
