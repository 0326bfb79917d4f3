"""Training of the linear model on the vote itself: the normal approximation of its vote shares, without noisy copies.

The score of a copy is a sum over the kept tokens. If each token is kept with probability q, the mean of the score is q
times the score of the whole text, and its variance is q (1 − q) times the sum of the squared scores of the tokens. They
give the share of votes for the right class in closed form, and it is this share that the answer and the radius depend
on. The loss of single copies asks for more than that: every copy is to be right, also one that kept none of the words
that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from adaptdel.classifiers.linear_training import TOLERANCE, Counts, Fitted, Progress, minimise
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.noise import Noise

SHARPNESS = 2.0  # of the logistic loss in standard deviations of the score
BIAS_PENALTY = (
    0.01  # a bias decides on copies that kept no word that matters: all of them, in texts of the rare class too
)
SMOOTHING = 5.0  # added to the counts of a feature in a class, for the first weights


@dataclass(frozen=True)
class ClassExamples:
    """The examples of one class.

    Attributes:
        counts: tokens of each example, shape (examples, types).
        transposed: the same, transposed.
        keep: the probability of keeping a token, shape (examples, draws).
        weights: the weight of each example in the loss; they add up to 1 over all blocks, shape (examples, 1, 1).
        signs: takes scores to margins: that of the class minus that of a rival, shape (scores, rivals).
    """

    counts: Counts
    transposed: Counts
    keep: FloatArray
    weights: FloatArray
    signs: FloatArray

    def loss(self, token_scores: FloatArray, bias: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """The loss of the block, and its derivatives by the scores of the tokens and the bias.

        Args:
            token_scores: shape (types, scores).
            bias: shape (scores,).
        """
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
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Minimise the mean logistic loss of the vote margins plus a penalty, as `linear_training.train` has it.

    The vote margin of an example is the number of standard deviations between the mean score of its copies and a tie.

    Args:
        counts: tokens of each whole example, shape (examples, types + 1); the last column, the mask, is 0.
        composition: feature columns of each distinct token; the last column is the mask.
        answers: the class number of every example.
        classes: the number of classes.
        keep: the probability with which a copy keeps a token, shape (examples, draws).
        l2: penalty on squared weights per token of a copy.
        iterations: the largest number of steps of L-BFGS.
        weights: the weight of every example, with a mean of 1; None for equal weights.
        stop: called after each step; training ends if it returns True.
        progress: called with (steps done, largest number of steps).
    """
    examples = len(answers)
    used = np.unique((counts @ composition).indices)
    columns = sparse.csr_array(composition[:, used])
    transposed = sparse.csr_array(columns.T)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    kept = float((keep.mean(axis=1) * lengths).mean())
    penalty = l2 * max(1.0, kept)
    penalties = np.append(np.full(len(used), penalty), BIAS_PENALTY)[:, None]
    scores = 1 if classes == 2 else classes
    shares = (np.ones(examples) if weights is None else weights) / examples
    blocks = _blocks(counts, answers, classes, keep, shares)

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        table = flat.reshape(-1, scores)
        token_scores = columns @ table[:-1]
        value, slope = 0.0, np.zeros_like(token_scores)
        gradient = np.zeros_like(table)
        for block in blocks:
            loss, by_token, by_bias = block.loss(token_scores, table[-1])
            value, slope = value + loss, slope + by_token
            gradient[-1] += by_bias
        gradient += penalties * table
        gradient[:-1] += transposed @ slope
        return value + float((penalties * np.square(table)).sum()) / 2, gradient.ravel()

    start = np.zeros((len(used) + 1, scores))
    start[:-1] = _log_odds(np.stack([transposed @ (counts.T @ (answers == c)) for c in range(classes)], axis=1))
    minimum = minimise(
        objective,
        start.ravel(),
        iterations=iterations,
        tolerance=TOLERANCE,
        step=lambda steps: progress(steps, iterations),
        stop=stop,
    )
    table = minimum.point.reshape(-1, scores)
    fitted = np.zeros((composition.shape[1], scores))
    fitted[used] = table[:-1]
    record: dict[str, Any] = {"kept_mean": kept, "penalty": penalty, "loss": minimum.value, "steps": minimum.steps}
    return Fitted(fitted, table[-1].copy(), record | {"losses": minimum.values})


def _blocks(
    counts: Counts, answers: IntArray, classes: int, keep: FloatArray, shares: FloatArray
) -> list[ClassExamples]:
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


def keep_rates(codes: Sequence[IntArray], noise: Noise, *, draws: int, seed: int) -> FloatArray:
    """The probability with which copies of each example keep a token, shape (examples, draws)."""
    rates = np.empty((len(codes), draws))
    for number, code in enumerate(codes):
        stream = np.random.Philox(key=np.array([seed, number], dtype=np.uint64))
        rates[number] = noise.keep_rates(len(code), draws, np.random.Generator(stream))
    return rates
