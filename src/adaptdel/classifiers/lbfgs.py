"""L-BFGS without BLAS: for a smooth convex function, the same steps whatever the number of threads.

scipy's own hands its long vectors to a threaded BLAS. Its sums then depend on the number of threads, and where other
processes use the cores it waits for them most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaptdel.checks import FloatArray

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
