"""From votes to bounds on probabilities: Clopper-Pearson, rounded outwards, and planned looks.

The class must have been chosen on other votes than those that bound it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import fsum, isfinite, nextafter
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from scipy import special

from adaptdel.core.binomial import sum_error
from adaptdel.core.checks import (
    LARGEST_LENGTH,
    FloatArray,
    IntArray,
    check_alpha,
    check_int,
    check_ints,
    check_list,
    check_real,
)


@overload
def clopper_pearson(successes: int, trials: int, alpha: float) -> tuple[float, float]: ...
@overload
def clopper_pearson(
    successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: float
) -> tuple[float, float] | tuple[FloatArray, FloatArray]: ...
def clopper_pearson(
    successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: float
) -> tuple[float, float] | tuple[FloatArray, FloatArray]:
    """One-sided exact confidence bounds on a probability, each at level alpha and rounded outwards.

    Args:
        successes: how many votes fell on the class (one count or an array).
        trials: how many votes there were.
        alpha: the probability with which each bound may fail.

    Returns:
        The lower and the upper bound. Each holds with probability 1 − alpha; both together with 1 − 2 · alpha.

    >>> low, high = clopper_pearson(3960, 4000, 0.05)
    >>> round(low, 6), round(high, 6)
    (0.987002, 0.992443)
    """
    alpha = check_alpha(alpha)
    plain: tuple[Any, Any] = (successes, trials)
    if set(map(type, plain)) == {int} and 0 <= plain[0] <= plain[1] <= LARGEST_LENGTH:
        return _remembered(*plain, alpha)
    count, total = check_ints("successes", successes), check_ints("trials", trials)
    count, total = np.broadcast_arrays(count, total)
    if (count > total).any():
        place = np.unravel_index(int(np.argmax(count > total)), count.shape)
        raise ValueError(f"successes must be at most trials = {total[place]}, got {count[place]}")
    if count.ndim == 0:
        return _remembered(int(count), int(total), alpha)
    return _lower(count, total, alpha), _upper(_lower(total - count, total, alpha))


@lru_cache(maxsize=2**16)
def _remembered(count: int, total: int, alpha: float) -> tuple[float, float]:
    """One pair of bounds: the same numbers as in an array, without the arrays."""
    low, rest = _one_lower(count, total, alpha), _one_lower(total - count, total, alpha)
    return low, min(nextafter(1 - rest, 2.0), 1.0)


def _one_lower(count: int, total: int, alpha: float) -> float:
    if not count:
        return 0.0
    a, b = float(count), float(total - count + 1)
    guess = float(special.betaincinv(a, b, alpha))
    if not isfinite(guess):
        return float(_lower(np.array([count]), np.array([total]), alpha)[0])
    step = 2.0**-42
    low = guess * (1 - step)
    while not special.betainc(a, b, low) * (1 + sum_error(a + b, low, 1 - low)) <= alpha:  # type: ignore[arg-type]
        step = min(step * 2, 1.0)
        low = guess * (1 - step)
    return low


def _upper(rest: FloatArray) -> FloatArray:
    """The bound whose rest is bounded from below, rounded up."""
    return np.minimum(np.nextafter(1 - rest, 2.0), 1.0)


def _lower(count: IntArray, total: IntArray, alpha: float) -> FloatArray:
    """The probability at which ``count`` or more successes have probability alpha, rounded down."""
    x, n = np.atleast_1d(count).astype(np.float64), np.atleast_1d(total).astype(np.float64)
    pairs, where = np.unique(np.stack([x.ravel(), n.ravel()]), axis=1, return_inverse=True)
    x_, n_ = pairs
    some = x_ > 0
    a, b = np.where(some, x_, 1.0), np.where(some, n_ - x_ + 1, 1.0)
    guess = np.asarray(special.betaincinv(a, b, alpha), dtype=np.float64)
    # (alpha / C(n, x))^(1/x) is a valid bound, and where the inverse fails the only one.
    crude = np.exp((np.log(alpha) + special.betaln(a, b) + np.log(a)) / a)
    guess = np.where(np.isfinite(guess), guess, np.minimum(crude, 1.0))
    step = 2.0**-42
    low = guess * (1 - step)
    while True:  # the sum decides, not its inverse
        error = sum_error(a + b, low, 1 - low)
        wrong = ~(special.betainc(a, b, low) * (1 + error) <= alpha)
        if not wrong.any():
            break
        step = min(step * 2, 1.0)
        low = np.where(wrong, guess * (1 - step), low)
    return np.asarray(np.where(some, low, 0.0)[where.ravel()].reshape(np.shape(count)))


def class_bounds(votes: Sequence[int], label: int, alpha: float, *, k: int = 1) -> tuple[float, float]:
    """Bounds (p1, p2) on the probability of a class and of its strongest rival, that hold together.

    Two classes: one lower bound at alpha, and p2 = 1 − p1. More classes: a lower bound for the class at alpha / 2 and
    the largest upper bound at alpha / 2 over the others. No correction for the number of classes is due: only the true
    runner-up has to be covered, and the largest bound covers it. For a place among the first k, the k strongest rivals
    have to be covered: alpha / (k + 1) each, and p2 is the k-th largest bound.

    Args:
        votes: how many votes fell on each class.
        label: which class is bounded; chosen on other votes.
        alpha: the probability with which either bound may fail.
        k: how many classes are answered.

    >>> p1, p2 = class_bounds([3900, 60, 40], 0, 0.05)
    >>> round(p1, 6), round(p2, 6)
    (0.969676, 0.019266)
    """
    counts = np.atleast_1d(check_ints("votes", votes))
    if len(counts) < 2:
        raise ValueError(f"votes must hold a count for each of at least 2 classes, got {len(counts)}")
    label = check_int("label", label, most=len(counts) - 1)
    k = check_int("k", k, least=1, most=len(counts) - 1)
    alpha = check_alpha(alpha)
    total = int(counts.sum())
    if len(counts) == 2:
        low = clopper_pearson(int(counts[label]), total, alpha)[0]
        return low, float(min(np.nextafter(1 - low, 2.0), 1.0))
    share = alpha / (k + 1)
    low = clopper_pearson(int(counts[label]), total, share)[0]
    rival = np.sort(np.delete(counts, label))[-k]
    high = clopper_pearson(int(rival), total, share)[1]
    return low, min(high, float(np.nextafter((1 - low) / k, 2.0)), 1.0)


@dataclass(frozen=True)
class Looks:
    """Planned looks at a growing sample: after ``sizes[j]`` votes, bounds at level ``alphas[j]``.

    All bounds of all looks hold together with probability 1 − alpha, the sum of the levels, whatever the rule by which
    the sampling stops.
    """

    sizes: tuple[int, ...]
    alphas: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = tuple(check_int("sizes", size, least=1) for size in check_list("sizes", self.sizes))
        alphas = tuple(check_alpha(alpha, "alphas") for alpha in check_list("alphas", self.alphas))
        if not sizes or len(sizes) != len(alphas):
            raise ValueError(
                f"sizes and alphas must be of one length of at least 1, got {len(sizes)} and {len(alphas)}"
            )
        if any(b <= a for a, b in pairwise(sizes)):
            raise ValueError(f"sizes must increase strictly, got {list(sizes)}")
        if fsum(alphas) >= 1:
            raise ValueError(f"alphas must have a sum below 1, got {fsum(alphas)}")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "alphas", alphas)

    @classmethod
    def fixed(cls, total: int, alpha: float) -> Looks:
        """One look after all votes: the paper's protocol."""
        return cls((check_int("total", total, least=1),), (check_alpha(alpha),))

    @classmethod
    def planned(cls, total: int, alpha: float, *, first: int = 125, last: float = 0.8) -> Looks:
        """Looks at ``first`` votes and at twice as many each time, up to ``total``; ``last`` of alpha is for the end.

        >>> looks = Looks.planned(1000, 0.05)
        >>> looks.sizes, [round(alpha, 6) for alpha in looks.alphas]
        ((125, 250, 500, 1000), [0.003333, 0.003333, 0.003333, 0.04])
        """
        total, first = check_int("total", total, least=1), check_int("first", first, least=1)
        alpha = check_alpha(alpha)
        last = check_real("last", last, accepted="a share in (0, 1)", least=0.0, most=1.0, open_ends=True)
        sizes = []
        size = first
        while size * 4 <= total * 3:  # a look right before the last would be wasted
            sizes.append(size)
            size *= 2
        if not sizes:
            return cls.fixed(total, alpha)
        early = [alpha * (1 - last) / len(sizes)] * len(sizes)
        return cls((*sizes, total), (*early, float(np.nextafter(alpha - fsum(early), 0))))

    @property
    def alpha(self) -> float:
        """The probability with which any of the bounds may fail."""
        return fsum(self.alphas)

    @property
    def total(self) -> int:
        """How many votes there are at most."""
        return self.sizes[-1]


class RunningBounds:
    """The best bounds over the looks so far, for one class.

    >>> bounds = RunningBounds(Looks.planned(4000, 0.05), label=1, classes=2)
    >>> p1, p2 = bounds.look([0, 125])
    >>> round(p1, 4), round(bounds.hopeful()[0], 4)
    (0.9515, 0.9992)
    """

    def __init__(self, looks: Looks, label: int, classes: int, *, k: int = 1) -> None:
        if not isinstance(looks, Looks):
            raise ValueError(f"looks must be planned Looks, got {looks!r}")
        self.looks = looks
        self.classes = check_int("classes", classes, least=2)
        self.label = check_int("label", label, most=classes - 1)
        self.k = check_int("k", k, least=1, most=classes - 1)
        self.done = 0
        self.best = (0.0, 1.0)
        self._votes = np.zeros(classes, dtype=np.int64)

    @property
    def finished(self) -> bool:
        """Whether every planned look was taken."""
        return self.done == len(self.looks.sizes)

    def look(self, votes: Sequence[int]) -> tuple[float, float]:
        """Take the next planned look at all votes so far; the best bounds (p1, p2) up to now."""
        counts = np.atleast_1d(check_ints("votes", votes))
        if self.finished:
            raise ValueError(f"look must be called at most {self.done} times, once for each planned look")
        size = self.looks.sizes[self.done]
        if len(counts) != self.classes or counts.sum() != size:
            raise ValueError(
                f"votes must be the counts of {self.classes} classes with sum {size} at look {self.done + 1}, "
                f"got {counts.tolist()}"
            )
        if (counts < self._votes).any():
            raise ValueError(
                f"votes must not fall from look to look, got {counts.tolist()} after {self._votes.tolist()}"
            )
        self.best = self._better(self.best, counts, self.looks.alphas[self.done])
        self._votes = counts
        self.done += 1
        return self.best

    def hopeful(self) -> tuple[float, float]:
        """The best bounds that could still be reached: if all remaining votes fell on the class.

        Once the radius with these is no larger than with the bounds so far, sampling can stop without losing anything.
        """
        best = self.best
        for size, alpha in list(zip(self.looks.sizes, self.looks.alphas, strict=True))[self.done :]:
            counts = self._votes.copy()
            counts[self.label] += size - counts.sum()
            best = self._better(best, counts, alpha)
        return best

    def _better(self, best: tuple[float, float], counts: IntArray, alpha: float) -> tuple[float, float]:
        p1, p2 = class_bounds(counts.tolist(), self.label, alpha, k=self.k)
        return max(best[0], p1), min(best[1], p2)
