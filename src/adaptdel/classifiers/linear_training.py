"""Training of the linear model: multinomial logistic regression on noisy copies, by L-BFGS without BLAS.

SciPy's L-BFGS-B is not used. It calls BLAS, so its weights depend on the number of BLAS threads, while
`LinearClassifier` gives the same model for any number. It is no faster either: on the training sets of SpamAssassin,
IMDB and Yelp it reaches the same loss (within 0.1%) in 1.1 to 1.5 times the time with one BLAS thread
(``benchmarks/optimiser.py``, in the history of the repository).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import frexp
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, logsumexp

from adaptdel.classifiers.base import example_stream
from adaptdel.classifiers.features import LARGEST_WEIGHT, Features
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.noise import Noise
from adaptdel.text.units import Tokens

MEMORY = 10  # curvature pairs
TRIALS = 30  # evaluations in a line search, at most
SUFFICIENT, CURVATURE = 1e-4, 0.9  # constants of the weak Wolfe conditions

Objective = Callable[[FloatArray], tuple[float, FloatArray]]


@dataclass(frozen=True)
class Minimum:
    """The result of an optimisation: the last point, the objective there, and the objective after each step."""

    point: FloatArray
    value: float
    values: list[float]

    def record(self) -> dict[str, Any]:
        """How the optimisation went, in plain values."""
        return {"loss": self.value, "steps": len(self.values), "losses": self.values}


def minimise(
    objective: Objective,
    start: FloatArray,
    *,
    iterations: int,
    tolerance: float,
    step: Callable[[int], None],
) -> Minimum:
    """Minimise a smooth convex function, of which ``objective`` gives the value and the gradient.

    It stops after ``iterations`` steps, or when a step decreases the value by at most ``tolerance`` times the value
    (times 1 for values below 1). ``step`` is called with the number of steps after each step.
    """
    point = start
    value, gradient = objective(point)
    pairs: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=MEMORY)
    values: list[float] = []
    for number in range(1, iterations + 1):
        direction = _direction(gradient, pairs)
        slope = _dot(gradient, direction)
        accepted = _line_search(objective, point, value, slope, direction) if slope < 0.0 else None
        if accepted is None:
            break
        new_point, new_value, new_gradient = accepted
        change, gradient_change = new_point - point, new_gradient - gradient
        product = _dot(change, gradient_change)
        if product > 0.0:
            pairs.append((change, gradient_change, product))
        gain = value - new_value
        point, value, gradient = new_point, new_value, new_gradient
        values.append(value)
        step(number)
        if gain <= tolerance * max(1.0, abs(value)):
            break
    return Minimum(point, value, values)


def _dot(a: FloatArray, b: FloatArray) -> float:
    return float(np.einsum("i,i->", a, b))


def _direction(gradient: FloatArray, pairs: deque[tuple[FloatArray, FloatArray, float]]) -> FloatArray:
    """The search direction: the two-loop recursion of Nocedal (1980)."""
    direction = -gradient
    factors = []
    for change, gradient_change, product in reversed(pairs):
        factor = _dot(change, direction) / product
        direction -= factor * gradient_change
        factors.append(factor)
    if pairs:
        _, gradient_change, product = pairs[-1]
        direction *= product / _dot(gradient_change, gradient_change)
    for (change, gradient_change, product), factor in zip(pairs, reversed(factors), strict=True):
        direction += (factor - _dot(gradient_change, direction) / product) * change
    return direction


def _line_search(
    objective: Objective, point: FloatArray, value: float, slope: float, direction: FloatArray
) -> tuple[FloatArray, float, FloatArray] | None:
    """A point along the direction that satisfies the weak Wolfe conditions, by doubling and bisection; or None."""
    low, high, length = 0.0, np.inf, 1.0
    best = None
    for _ in range(TRIALS):
        new_point = point + length * direction
        new_value, new_gradient = objective(new_point)
        if not new_value <= value + SUFFICIENT * length * slope:  # also for NaN
            high = length
        else:
            best = (new_point, new_value, new_gradient)
            if _dot(new_gradient, direction) >= CURVATURE * slope:
                return best
            low = length
        length = (low + high) / 2 if high < np.inf else 2 * low
    return best


Progress = Callable[[int, int], None]
Counts: TypeAlias = "sparse.csr_array[Any, tuple[int, int]]"
BUFFER = 2**22  # kept tokens to collect before equal tokens of a copy are counted
TOLERANCE = 1e-8  # training stops when a step gains less
REPORT = 1000  # examples between two progress reports


@dataclass(frozen=True)
class Fitted:
    """The result of training: weights, shape (columns, scores), and how the training went, in plain values."""

    weights: FloatArray
    bias: FloatArray
    record: dict[str, Any]
    bound: float = 0.0  # of the token scores, see `adaptdel.classifiers.vote_margin.bounded`; 0 for none


def composition(features: Features, numbers: dict[Hashable, int]) -> Counts:
    """The columns of each distinct token, shape (types + 1, columns + 1); the last row and column are the mask."""
    columns, ends = features.table(numbers)
    columns, ends = np.append(columns, features.size), np.append(ends, len(columns) + 1)
    return sparse.csr_array((np.ones(len(columns)), columns, ends), shape=(len(numbers) + 1, features.size + 1))


def noisy_counts(
    codes: Sequence[IntArray],
    types: int,
    *,
    noise: Noise | None,
    copies: int,
    seed: int,
    tokens: Sequence[Tokens] | None = None,
    progress: Progress = lambda done, total: None,
) -> Counts:
    """Counts of each distinct token in each noisy copy, shape (examples · copies, types + 1).

    The rows of an example are consecutive. The last column counts masks. Every example has its own random stream, keyed
    by the seed and the number of the example: its rows do not depend on the other examples or on the buffer. ``tokens``
    are those of the codes, for a noise that sees them.
    """
    blocks: list[Counts] = []
    kept_codes: list[IntArray] = []
    counts: list[IntArray] = []
    buffered = 0
    masking = noise is not None and noise.masks_tokens

    def count() -> None:
        if counts:
            ends = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
            indices = np.concatenate(kept_codes)
            block = sparse.csr_array((np.ones(len(indices)), indices, ends), shape=(len(ends) - 1, types + 1))
            block.sum_duplicates()
            blocks.append(block)
            kept_codes.clear()
            counts.clear()

    for number, code in enumerate(codes):
        if noise is None:
            chunks = iter([np.ones((1, len(code)), dtype=np.bool_)])
        else:
            own = noise if tokens is None else noise.given(tokens[number])
            chunks = own.chunks(len(code), copies, example_stream(seed, number))
        for kept in chunks:
            if masking:
                kept_codes.append(np.where(kept, code, types).ravel())
                counts.append(np.full(len(kept), len(code)))
            else:
                kept_codes.append(code[np.nonzero(kept)[1]])
                counts.append(np.count_nonzero(kept, axis=1))
            buffered += len(kept_codes[-1])
            if buffered > BUFFER:
                count()
                buffered = 0
        if (number + 1) % REPORT == 0 or number + 1 == len(codes):
            progress(number + 1, len(codes))
    count()
    return sparse.csr_array(sparse.vstack(blocks, format="csr"))


def train(
    counts: Counts,
    composition: Counts,
    answers: IntArray,
    classes: int,
    *,
    l2: float,
    iterations: int,
    weights: FloatArray | None = None,
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Minimise the mean logistic loss of the copies plus ``penalty / 2`` times the sum of squared weights.

    The penalty is ``l2`` times the mean number of tokens of a copy. The score of a copy of m tokens grows like √m times
    a weight, so the same ``l2`` suits whole documents and copies of a tenth of their tokens. The bias is not penalised.
    Two classes share a single score, which is positive for the second class; more classes have a score each.

    Args:
        counts: tokens of each copy, as of `noisy_counts`.
        composition: feature columns of each distinct token, as of `composition`.
        answers: the class number of every copy.
        classes: the number of classes.
        l2: see above.
        iterations: the largest number of steps of L-BFGS.
        weights: the weight of every copy, with a mean of 1; None for equal weights.
        progress: called with (steps done, largest number of steps).
    """
    rows = counts.shape[0]
    features = sparse.csr_array(counts @ composition)
    used = np.unique(features.indices)
    features = sparse.csr_array(features[:, used])
    kept = float(counts[:, :-1].sum()) / rows
    penalty = l2 * max(1.0, kept)
    # Diagonal preconditioning: the curvature of the loss is far larger for frequent features than for rare ones.
    # Weights are scaled to a curvature of about 1 (that of a logistic loss is at most 1/4). The minimum stays the same.
    curvature = np.bincount(features.indices, np.square(features.data), minlength=len(used)) / (4 * rows) + penalty
    scale = 1.0 / np.sqrt(curvature)
    scaled = features.data * scale[features.indices]
    features = sparse.csr_array((scaled, features.indices, features.indptr), shape=features.shape)
    shrink = (penalty * np.square(scale))[:, None]
    transposed = sparse.csr_array(features.T)
    scores = 1 if classes == 2 else classes

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        table = flat.reshape(-1, scores)
        loss, slope = _loss(features @ table[:-1] + table[-1], answers, weights)
        gradient = np.empty_like(table)
        gradient[:-1] = transposed @ slope + shrink * table[:-1]
        gradient[-1] = slope.sum(axis=0)
        return loss + float((shrink * np.square(table[:-1])).sum()) / 2, gradient.ravel()

    start = np.zeros((len(used) + 1) * scores)
    report: Callable[[int], None] = lambda steps: progress(steps, iterations)  # noqa: E731
    minimum = minimise(objective, start, iterations=iterations, tolerance=TOLERANCE, step=report)
    table = minimum.point.reshape(-1, scores)
    fitted = np.zeros((composition.shape[1], scores))
    fitted[used] = table[:-1] * scale[:, None]
    return Fitted(fitted, table[-1].copy(), {"kept_mean": kept, "penalty": penalty, **minimum.record()})


def balanced_class_weights(answers: Sequence[int] | IntArray, classes: int) -> FloatArray:
    """A weight for every class, so that all classes have the same sum of weights and the mean of the examples is 1.

    >>> balanced_class_weights([0, 0, 0, 1], 2).round(3).tolist()
    [0.667, 2.0]
    """
    counts = np.bincount(answers, minlength=classes)
    return np.where(counts, len(answers) / (classes * np.maximum(counts, 1)), 1.0)


def _loss(scores: FloatArray, answers: IntArray, weights: FloatArray | None) -> tuple[float, FloatArray]:
    """The mean logistic loss of weighted examples, and its derivative by every score."""
    rows = len(scores)
    column = (np.ones(rows) if weights is None else weights)[:, None]
    if scores.shape[1] == 1:
        sign = np.where(answers == 1, 1.0, -1.0)[:, None]
        margin = scores * sign
        return float((column * np.logaddexp(0.0, -margin)).mean()), -column * sign * expit(-margin) / rows
    log_share = scores - logsumexp(scores, axis=1, keepdims=True)
    slope, places = np.exp(log_share), np.arange(rows)
    slope[places, answers] -= 1.0
    return -float((column[:, 0] * log_share[places, answers]).mean()), slope * column / rows


def rounded(fitted: Fitted) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Weights and bias as integers of at most `LARGEST_WEIGHT`, and e: a value is its number times 2**-e."""
    largest = max(float(np.abs(fitted.weights).max(initial=0.0)), float(np.abs(fitted.bias).max(initial=0.0)))
    exponent = LARGEST_WEIGHT.bit_length() - 1 - frexp(largest)[1]
    weights, bias = (np.rint(np.ldexp(table, exponent)).astype(np.int32) for table in (fitted.weights, fitted.bias))
    return weights, bias, exponent


def class_numbers(labels: Iterable[Any]) -> tuple[list[Any], IntArray]:
    """The sorted labels, and the class number of each example."""
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for place, label in enumerate(plain):
        if not isinstance(label, (str, int, float)) or label != label:
            raise ValueError(f"labels must be texts or numbers, got {label!r} at position {place}")
    try:
        classes = sorted(set(plain))
    except TypeError:
        raise ValueError("labels must be all texts or all numbers, got both") from None
    if len(classes) < 2:
        got = f"only {classes[0]!r}" if classes else "no examples"
        raise ValueError(f"labels must hold at least two different labels, got {got}")
    numbers = {label: number for number, label in enumerate(classes)}
    return classes, np.array([numbers[label] for label in plain], dtype=np.int64)


def check_examples(tokens: Sequence[Any], count: int) -> None:
    """Raise unless every label has a sequence of tokens."""
    if len(tokens) != count:
        raise ValueError(f"tokens and labels must be of the same length, got {len(tokens)} and {count}")
    for place, example in enumerate(tokens):
        if isinstance(example, str) or not isinstance(example, Sequence):
            raise ValueError(
                f"tokens must hold a sequence of tokens for every example, got {type(example).__name__} at position "
                f"{place}: a text has to be split first, as Words().split(text) does"
            )
