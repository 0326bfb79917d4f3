"""Training of the linear models: logistic regression on noisy copies, or on the vote itself; L-BFGS without BLAS.

`train` minimises the loss of single noisy copies. `train_margins` needs no copies. The score of a copy is a sum over
the kept tokens. If each token is kept with probability q, the mean of the score is q times the score of the whole text,
and its variance is q (1 − q) times the sum of the squared scores of the tokens. They give the share of votes for the
right class in closed form, and it is this share that the answer and the radius depend on. The loss of single copies
asks for more than that: every copy is to be right, also one that kept none of the words that matter.

SciPy's L-BFGS-B is not used. It calls BLAS, so its weights depend on the number of BLAS threads unless another library
limits it to one. Limited, it takes 1.0 to 1.2 times as long on SST-2 and SpamAssassin, and is further from the minimum
after as many steps: the mean radius of the exact model of SST-2 falls from 0.66 to 0.49 (+0.3 points of accuracy).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import frexp
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are first used

from adaptdel.classifiers.base import example_stream
from adaptdel.classifiers.features import LARGEST_WEIGHT, Features, clipped
from adaptdel.core.checks import FloatArray, IntArray, check_choice
from adaptdel.core.noise import Noise
from adaptdel.settings import CLASS_WEIGHTS
from adaptdel.text.units import Tokens

MEMORY = 10  # curvature pairs
TRIALS = 30  # evaluations in a line search, at most
SUFFICIENT, CURVATURE = 1e-4, 0.9  # constants of the weak Wolfe conditions
BUFFER = 2**22  # kept tokens to collect before equal tokens of a copy are counted
TOLERANCE = 1e-8  # training stops when a step gains less
REPORT = 1000  # examples between two progress reports
SHARPNESS = 2.0  # of the logistic loss in standard deviations of the score
# A bias decides on copies that kept no word that matters: all of them, in texts of the rare class too.
BIAS_PENALTY = 0.01
SMOOTHING = 5.0  # added to the counts of a feature in a class, for the first weights
FREE = 0.998  # of the tokens of the examples are within the first bound
LEVEL_FACTOR = 0.8  # from a bound to the next one
ITERATIONS_OF_A_LEVEL = 5  # a fifth of the iterations without a bound
LEVEL_TOLERANCE = 1e-6

Objective = Callable[[FloatArray], tuple[float, FloatArray]]
Progress = Callable[[int, int], None]
Counts: TypeAlias = "scipy.sparse.csr_array[Any, tuple[int, int]]"


def minimise(
    objective: Objective,
    start: FloatArray,
    *,
    iterations: int,
    tolerance: float,
    step: Callable[[int], None],
) -> tuple[FloatArray, dict[str, Any]]:
    """Minimise a smooth convex function, of which ``objective`` gives the value and the gradient.

    Returns the last point, and in plain values the objective there and after each step.

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
    return point, {"loss": value, "steps": len(values), "losses": values}


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


@dataclass(frozen=True)
class Fitted:
    """The result of training: weights, shape (columns, scores), and how the training went, in plain values."""

    weights: FloatArray
    bias: FloatArray
    record: dict[str, Any]
    bound: float = 0.0  # of the token scores, see `bounded`; 0 for none


def composition(features: Features, numbers: dict[Hashable, int]) -> Counts:
    """The columns of each distinct token, shape (types + 1, columns + 1); the last row and column are the mask."""
    columns, ends = features.table(numbers)
    columns, ends = np.append(columns, features.size), np.append(ends, len(columns) + 1)
    return scipy.sparse.csr_array((np.ones(len(columns)), columns, ends), shape=(len(numbers) + 1, features.size + 1))


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
            block = scipy.sparse.csr_array((np.ones(len(indices)), indices, ends), shape=(len(ends) - 1, types + 1))
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
    return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))


def train(
    counts: Counts,
    composition: Counts,
    answers: IntArray,
    classes: int,
    *,
    l2: float,
    iterations: int,
    weights: FloatArray,
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Minimise the mean logistic loss of the copies plus ``penalty / 2`` times the sum of squared weights.

    The penalty is ``l2`` times the mean number of tokens of a copy. The score of a copy of m tokens grows like √m times
    a weight, so the same ``l2`` suits whole documents and copies of a tenth of their tokens. The bias is not penalised.
    Two classes share a single score, which is positive for the second class; more classes have a score each.

    ``answers`` are the class numbers of the copies, and ``weights`` their weights, with a mean of 1.
    """
    rows = counts.shape[0]
    features = scipy.sparse.csr_array(counts @ composition)
    used = np.unique(features.indices)
    features = scipy.sparse.csr_array(features[:, used])
    kept = float(counts[:, :-1].sum()) / rows
    penalty = l2 * max(1.0, kept)
    # Diagonal preconditioning: the curvature of the loss is far larger for frequent features than for rare ones.
    # Weights are scaled to a curvature of about 1 (that of a logistic loss is at most 1/4). The minimum stays the same.
    curvature = np.bincount(features.indices, np.square(features.data), minlength=len(used)) / (4 * rows) + penalty
    scale = 1.0 / np.sqrt(curvature)
    scaled = features.data * scale[features.indices]
    features = scipy.sparse.csr_array((scaled, features.indices, features.indptr), shape=features.shape)
    shrink = (penalty * np.square(scale))[:, None]
    transposed = scipy.sparse.csr_array(features.T)
    scores = 1 if classes == 2 else classes

    column, positions = weights[:, None], np.arange(rows)
    sign = np.where(answers == 1, 1.0, -1.0)[:, None]

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        table = flat.reshape(-1, scores)
        totals = features @ table[:-1] + table[-1]
        if scores == 1:
            margin = totals * sign
            loss = float((column * np.logaddexp(0.0, -margin)).mean())
            slope = -column * sign * scipy.special.expit(-margin) / rows
        else:
            log_share = totals - scipy.special.logsumexp(totals, axis=1, keepdims=True)
            loss = -float((weights * log_share[positions, answers]).mean())
            slope = np.exp(log_share)
            slope[positions, answers] -= 1.0
            slope = slope * column / rows
        gradient = np.empty_like(table)
        gradient[:-1] = transposed @ slope + shrink * table[:-1]
        gradient[-1] = slope.sum(axis=0)
        return loss + float((shrink * np.square(table[:-1])).sum()) / 2, gradient.ravel()

    start = np.zeros((len(used) + 1) * scores)
    point, record = minimise(
        objective, start, iterations=iterations, tolerance=TOLERANCE, step=lambda steps: progress(steps, iterations)
    )
    table = point.reshape(-1, scores)
    fitted = np.zeros((composition.shape[1], scores))
    fitted[used] = table[:-1] * scale[:, None]
    return Fitted(fitted, table[-1].copy(), {"kept_mean": kept, "penalty": penalty, **record})


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
        token_scores, backward = bounded(self.columns @ table[:-1], self.bound)
        value, slope = 0.0, np.zeros_like(token_scores)
        gradient = np.zeros_like(table)
        for block in self.blocks:
            loss, by_token, by_bias = block.loss(token_scores, table[-1])
            value, slope = value + loss, slope + by_token
            gradient[-1] += by_bias
        gradient += self.penalties * table
        gradient[:-1] += self.transposed @ backward(slope)
        return value + float((self.penalties * np.square(table)).sum()) / 2, gradient.ravel()


def bounded(token_scores: FloatArray, clip: float) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
    """Token scores with a clip, see `adaptdel.classifiers.features.clipped`, and the derivative of that."""
    if not clip:
        return token_scores, lambda slope: slope
    values = clipped(token_scores, clip)
    inside = np.abs(values) < clip
    if token_scores.shape[1] == 1:
        return values, lambda slope: slope * inside
    rows, high, low = np.arange(len(token_scores)), token_scores.argmax(axis=1), token_scores.argmin(axis=1)

    def backward(slope: FloatArray) -> FloatArray:
        slope = slope * inside
        middle = slope.sum(axis=1) / 2
        slope[rows, high] -= middle
        slope[rows, low] -= middle
        return slope

    return values / 2, backward


def train_margins(
    counts: Counts,
    composition: Counts,
    answers: IntArray,
    classes: int,
    keep: FloatArray,
    *,
    l2: float,
    iterations: int,
    weights: FloatArray,
    levels: int = 0,
    vectors: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[Fitted]:
    """Minimise the mean logistic loss of the vote margins plus a penalty, as `train` has it.

    The vote margin of an example is the number of standard deviations between the mean score of its copies and a tie.

    With ``levels``, training goes on with bounded token scores (see `bounded`), for one bound after the other. The
    first bound is passed by 2 in 1000 of the tokens of the examples, and each next one is a fifth smaller. The loss is
    then no longer convex, and each bound starts from the weights of the one before.

    ``counts`` are those of whole examples, and ``keep`` is the probability with which a copy keeps a token, shape
    (examples, draws). The last ``vectors`` columns are no counts but parts of vectors; their first weights are 0.
    Returns the unbounded model, and one for each bound.
    """
    scores = 1 if classes == 2 else classes
    used = np.unique((counts @ composition).indices)
    columns = scipy.sparse.csr_array(composition[:, used])
    transposed = scipy.sparse.csr_array(columns.T)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    kept = float((keep.mean(axis=1) * lengths).mean())
    penalty = l2 * max(1.0, kept)
    penalties = np.append(np.full(len(used), penalty), BIAS_PENALTY)[:, None]
    shares = weights / len(answers)
    free = VoteObjective(columns, transposed, class_examples(counts, answers, classes, keep, shares), penalties, scores)
    table = np.zeros((len(used) + 1, scores))
    counted = int(np.searchsorted(used, composition.shape[1] - vectors))
    # The first weights are those of naive Bayes: the log odds of a feature in the classes.
    occurrences = [transposed[:counted] @ (counts.T @ (answers == number)) for number in range(classes)]
    smoothed = np.stack(occurrences, axis=1) + SMOOTHING
    logs = np.log(smoothed / np.maximum(smoothed.sum(axis=0), SMOOTHING))
    table[:counted] = logs[:, 1:] - logs[:, :1] if classes == 2 else logs - logs.mean(axis=1, keepdims=True)
    steps, steps_of_a_level = 0, max(1, iterations // ITERATIONS_OF_A_LEVEL)
    results: list[Fitted] = []

    def fit(objective: VoteObjective, most: int, tolerance: float) -> None:
        """Minimise from the last table on."""
        nonlocal table, steps
        point, record = minimise(
            objective,
            table.ravel(),
            iterations=most,
            tolerance=tolerance,
            step=lambda done: progress(steps + done, iterations + levels * steps_of_a_level),
        )
        table, steps = point.reshape(-1, scores), steps + most
        fitted = np.zeros((composition.shape[1], scores))
        fitted[used] = table[:-1]
        record = {"kept_mean": kept, "penalty": penalty, **record}
        results.append(Fitted(fitted, table[-1].copy(), record, objective.bound))

    fit(free, iterations, TOLERANCE)
    # The first bound: the range of scores that a fraction `FREE` of the occurrences of tokens does not exceed.
    token_scores = columns @ table[:-1]
    ranges = np.ptp(token_scores, axis=1) if scores > 1 else np.abs(token_scores[:, 0])
    order = np.argsort(ranges)
    reached = np.cumsum(np.asarray(counts.sum(axis=0)).ravel()[order])
    bound = max(float(ranges[order[np.searchsorted(reached, FREE * reached[-1])]]), 1e-6)
    for level in range(levels):
        fit(replace(free, bound=bound * LEVEL_FACTOR**level), steps_of_a_level, LEVEL_TOLERANCE)
    return results


def class_examples(
    counts: Counts, answers: IntArray, classes: int, keep: FloatArray, shares: FloatArray
) -> list[ClassExamples]:
    """The examples, grouped by their class; ``shares`` are their weights, which add up to 1."""
    blocks = []
    for number in np.unique(answers).tolist():
        rows = np.flatnonzero(answers == number)
        own = scipy.sparse.csr_array(counts[rows])
        if classes == 2:
            signs = np.array([[1.0 if number == 1 else -1.0]])
        else:
            signs = np.delete(np.eye(classes)[:, [number]] - np.eye(classes), number, axis=1)
        blocks.append(ClassExamples(own, scipy.sparse.csr_array(own.T), keep[rows], shares[rows, None, None], signs))
    return blocks


def keep_rates(tokens: Sequence[Sequence[Hashable]], noise: Noise, *, draws: int, seed: int) -> FloatArray:
    """The probability with which copies of each example keep a token, shape (examples, draws)."""
    rates = np.empty((len(tokens), draws))
    for number, example in enumerate(tokens):
        rates[number] = noise.given(example).keep_rates(len(example), draws, example_stream(seed, number))
    return rates


def class_weights(kind: str | None, answers: Sequence[int] | IntArray, classes: int) -> FloatArray:
    """A weight for every class; "balanced": all have the same sum of weights, and the mean of the examples is 1.

    >>> class_weights("balanced", [0, 0, 0, 1], 2).round(3).tolist()
    [0.667, 2.0]
    """
    if kind is None:
        return np.ones(classes)
    check_choice("class_weight", kind, CLASS_WEIGHTS)
    counts = np.bincount(answers, minlength=classes)
    return np.where(counts, len(answers) / (classes * np.maximum(counts, 1)), 1.0)


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
            raise ValueError(f"labels must be strings or numbers, got {label!r} at position {place}")
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
