"""Training of the linear model: multinomial logistic regression on noisy copies, by L-BFGS without BLAS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import frexp
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, logsumexp

from adaptdel.classifiers.features import LARGEST_WEIGHT
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.noise import Noise

MEMORY = 10  # steps whose curvature is remembered
TRIALS = 30  # evaluations that one line search may take
SUFFICIENT, CURVATURE = 1e-4, 0.9  # the weak Wolfe conditions

Objective = Callable[[FloatArray], tuple[float, FloatArray]]


@dataclass(frozen=True)
class Minimum:
    """Where the search ended, the value there, the number of steps, and the value after each."""

    point: FloatArray
    value: float
    steps: int
    values: list[float]


def minimise(
    objective: Objective, start: FloatArray, *, iterations: int, tolerance: float, step: Callable[[int], None]
) -> Minimum:
    """Minimise a smooth convex function that returns its value and gradient.

    The search ends after ``iterations`` steps, or when one gains less than ``tolerance`` times the value (or 1, if that
    is larger). ``step`` is called with the number of steps after each.
    """
    point = start
    value, gradient = objective(point)
    pairs: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=MEMORY)
    values: list[float] = []
    for number in range(1, iterations + 1):
        direction = _direction(gradient, pairs)
        slope = _dot(gradient, direction)
        if not slope < 0.0:
            return Minimum(point, value, number - 1, values)
        found = _search(objective, point, value, slope, direction)
        if found is None:
            return Minimum(point, value, number - 1, values)
        moved, lower, turned = found
        change, bend = moved - point, turned - gradient
        product = _dot(change, bend)
        if product > 0.0:
            pairs.append((change, bend, product))
        gain = value - lower
        point, value, gradient = moved, lower, turned
        values.append(value)
        step(number)
        if gain <= tolerance * max(1.0, abs(value)):
            return Minimum(point, value, number, values)
    return Minimum(point, value, iterations, values)


def _dot(a: FloatArray, b: FloatArray) -> float:
    return float(np.einsum("i,i->", a, b))


def _direction(gradient: FloatArray, pairs: deque[tuple[FloatArray, FloatArray, float]]) -> FloatArray:
    """Minus the gradient times the remembered inverse curvature: the two loops of Nocedal."""
    direction = -gradient
    shares = []
    for change, bend, product in reversed(pairs):
        share = _dot(change, direction) / product
        direction -= share * bend
        shares.append(share)
    if pairs:
        _, bend, product = pairs[-1]
        direction *= product / _dot(bend, bend)
    for (change, bend, product), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - _dot(bend, direction) / product) * change
    return direction


def _search(
    objective: Objective, point: FloatArray, value: float, slope: float, direction: FloatArray
) -> tuple[FloatArray, float, FloatArray] | None:
    """A point along the direction that meets the weak Wolfe conditions, or None; by doubling and halving."""
    low, high, length = 0.0, np.inf, 1.0
    best = None
    for _ in range(TRIALS):
        moved = point + length * direction
        lower, turned = objective(moved)
        if not lower <= value + SUFFICIENT * length * slope:  # NaN counts as too far
            high = length
        else:
            best = (moved, lower, turned)
            if _dot(turned, direction) >= CURVATURE * slope:
                return best
            low = length
        length = (low + high) / 2 if high < np.inf else 2 * low
    return best


Progress = Callable[[int, int], None]
Counts: TypeAlias = "sparse.csr_array[Any, tuple[int, int]]"
BUFFER = 2**22  # kept tokens that are held before equal ones of a copy are counted
TOLERANCE = 1e-8  # training ends when a step gains less
REPORT = 1000  # examples between two reports of progress


@dataclass(frozen=True)
class Fitted:
    """What training found: weights by column and score, the bias of every score, and how it went."""

    weights: FloatArray
    bias: FloatArray
    record: dict[str, Any]


def noisy_counts(
    codes: Sequence[IntArray],
    types: int,
    *,
    noise: Noise | None,
    copies: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> Counts:
    """How often each kind of token stands in each noisy copy: ``copies`` rows for each example, in their order.

    Column ``types`` counts masks. The noise of an example is drawn from a stream of its own, keyed by the seed and the
    example's number, so the rows do not depend on the other examples or on how they are held in memory.
    """
    blocks: list[Counts] = []
    found: list[IntArray] = []
    counts: list[IntArray] = []
    held = 0
    masking = noise is not None and noise.masks_tokens

    def count() -> None:
        if counts:
            ends = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
            indices = np.concatenate(found)
            block = sparse.csr_array((np.ones(len(indices)), indices, ends), shape=(len(ends) - 1, types + 1))
            block.sum_duplicates()
            blocks.append(block)
            found.clear()
            counts.clear()

    for number, code in enumerate(codes):
        if noise is None:
            chunks = iter([np.ones((1, len(code)), dtype=np.bool_)])
        else:
            stream = np.random.Philox(key=np.array([seed, number], dtype=np.uint64))
            chunks = noise.chunks(len(code), copies, np.random.Generator(stream))
        for kept in chunks:
            if masking:
                found.append(np.where(kept, code, types).ravel())
                counts.append(np.full(len(kept), len(code)))
            else:
                found.append(code[np.nonzero(kept)[1]])
                counts.append(np.count_nonzero(kept, axis=1))
            held += len(found[-1])
            if held > BUFFER:
                count()
                held = 0
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
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Minimise the mean logistic loss of the copies plus ``penalty / 2`` times the sum of squared weights.

    The penalty is ``l2`` times the mean number of tokens in a copy: a copy of m tokens has a score of size about √m
    times that of a weight, so that one ``l2`` suits whole documents and copies of which a tenth is left. The bias is
    not penalised. Two classes have one score, which is positive for the second; more have a score each.

    Args:
        counts: kinds of tokens by copy, as of `noisy_counts`; the last kind is the mask.
        composition: columns by kind of token; the last column is the mask's.
        answers: the class number of every copy.
        classes: how many classes there are.
        l2: see above.
        iterations: how many steps L-BFGS may take.
        progress: called with the steps taken and allowed.
    """
    rows = counts.shape[0]
    seen = sparse.csr_array(counts @ composition)
    used = np.unique(seen.indices)
    seen = sparse.csr_array(seen[:, used])
    kept = float(counts[:, :-1].sum()) / rows
    penalty = l2 * max(1.0, kept)
    # Frequent features bend the loss far more than rare ones. L-BFGS sees each weight in units in which the loss bends
    # by about 1 (a logistic loss bends by at most a quarter): a change of path, not of the minimum.
    bend = np.bincount(seen.indices, np.square(seen.data), minlength=len(used)) / (4 * rows) + penalty
    unit = 1.0 / np.sqrt(bend)
    seen = sparse.csr_array((seen.data * unit[seen.indices], seen.indices, seen.indptr), shape=seen.shape)
    shrink = (penalty * np.square(unit))[:, None]
    transposed = sparse.csr_array(seen.T)
    scores = 1 if classes == 2 else classes

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        table = flat.reshape(-1, scores)
        loss, slope = _loss(seen @ table[:-1] + table[-1], answers)
        gradient = np.empty_like(table)
        gradient[:-1] = transposed @ slope + shrink * table[:-1]
        gradient[-1] = slope.sum(axis=0)
        return loss + float((shrink * np.square(table[:-1])).sum()) / 2, gradient.ravel()

    start = np.zeros((len(used) + 1) * scores)
    found = minimise(
        objective, start, iterations=iterations, tolerance=TOLERANCE, step=lambda steps: progress(steps, iterations)
    )
    table = found.point.reshape(-1, scores)
    weights = np.zeros((composition.shape[1], scores))
    weights[used] = table[:-1] * unit[:, None]
    record: dict[str, Any] = {
        "copies": rows,
        "kept_mean": kept,
        "penalty": penalty,
        "loss": found.value,
        "steps": found.steps,
    }
    record["losses"] = found.values
    return Fitted(weights, table[-1].copy(), record)


def _loss(scores: FloatArray, answers: IntArray) -> tuple[float, FloatArray]:
    """The mean logistic loss, and its slope in every score."""
    rows = len(scores)
    if scores.shape[1] == 1:
        sign = np.where(answers == 1, 1.0, -1.0)[:, None]
        margin = scores * sign
        return float(np.logaddexp(0.0, -margin).mean()), -sign * expit(-margin) / rows
    log_share = scores - logsumexp(scores, axis=1, keepdims=True)
    slope = np.exp(log_share)
    places = np.arange(rows)
    slope[places, answers] -= 1.0
    return -float(log_share[places, answers].mean()), slope / rows


def rounded(fitted: Fitted) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Weights and bias as whole numbers of at most `LARGEST_WEIGHT`, and e: each stands for itself times 2**-e."""
    largest = max(float(np.abs(fitted.weights).max(initial=0.0)), float(np.abs(fitted.bias).max(initial=0.0)))
    exponent = LARGEST_WEIGHT.bit_length() - 1 - frexp(largest)[1]
    weights, bias = (np.rint(np.ldexp(table, exponent)).astype(np.int32) for table in (fitted.weights, fitted.bias))
    return weights, bias, exponent


def class_numbers(labels: Iterable[Any]) -> tuple[list[Any], IntArray]:
    """The sorted labels, and the number of each example's."""
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for place, label in enumerate(plain):
        if not isinstance(label, (str, int, float)) or label != label:
            raise ValueError(f"labels must be texts or numbers, got {label!r} at position {place}")
    try:
        classes = sorted(set(plain))
    except TypeError:
        raise ValueError("labels must be all texts or all numbers, got both") from None
    if not classes:
        raise ValueError("labels must hold at least two different labels, got no examples")
    if len(classes) < 2:
        raise ValueError(f"labels must hold at least two different labels, got only {classes[0]!r}")
    numbers = {label: number for number, label in enumerate(classes)}
    return classes, np.array([numbers[label] for label in plain], dtype=np.int64)


def check_examples(tokens: Sequence[Any], count: int) -> None:
    """Raise unless there are as many sequences of tokens as labels."""
    if len(tokens) != count:
        raise ValueError(f"tokens and labels must be of the same length, got {len(tokens)} and {count}")
    for place, example in enumerate(tokens):
        if isinstance(example, str) or not isinstance(example, Sequence):
            raise ValueError(
                f"tokens must hold a sequence of tokens for every example, got {type(example).__name__} at position "
                f"{place}: a text has to be split first, as Words().split(text) does"
            )
