"""From votes to bounds on probabilities: Clopper-Pearson bounds, rounded outwards, at planned looks (alpha spending).

The class must have been selected on other votes than those that bound its probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import exp, fsum, isfinite, log, nextafter
from typing import overload

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are first used

from adaptdel.core.bounds import capped_rival, complement, round_down, round_up, sum_error
from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, check_alpha, check_int, check_ints, check_list
from adaptdel.core.noise import Noise


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
        successes: the number of votes for the class (a number or an array).
        trials: the number of votes, broadcast with ``successes``.
        alpha: the probability with which each bound may fail.

    Returns:
        The lower and the upper bound, of the broadcast shape. Each holds with probability 1 − alpha, both together with
        probability 1 − 2 · alpha.

    >>> low, high = clopper_pearson(3960, 4000, 0.05)
    >>> round(low, 6), round(high, 6)
    (0.987002, 0.992443)
    """
    alpha = check_alpha(alpha)
    count, total = np.broadcast_arrays(check_ints("successes", successes), check_ints("trials", trials))
    if (count > total).any():
        first = np.unravel_index(int(np.argmax(count > total)), count.shape)
        raise ValueError(f"successes must be at most trials = {total[first]}, got {count[first]}")
    if count.ndim == 0:
        return _lower(int(count), int(total), alpha), _upper(int(count), int(total), alpha)
    pairs, where = np.unique(np.stack([count.ravel(), total.ravel()]), axis=1, return_inverse=True)
    bounds = [(_lower(x, n, alpha), _upper(x, n, alpha)) for x, n in pairs.T.tolist()]
    low, high = np.reshape(bounds, (-1, 2))[where.ravel()].T
    return low.reshape(count.shape), high.reshape(count.shape)


# A function of two integers and a level alone, so a cached bound is the one that would be computed.
@lru_cache(maxsize=2**16)
def _lower(count: int, total: int, alpha: float) -> float:
    """The probability at which ``count`` or more successes have probability alpha, rounded down."""
    if not 0 <= count <= total <= LARGEST_LENGTH:
        raise ValueError(f"successes must be at least 0 and at most trials = {total}, got {count}")
    if not count:
        return 0.0
    a, b = float(count), float(total - count + 1)
    guess = float(scipy.special.betaincinv(a, b, alpha))
    if not isfinite(guess):  # (alpha / C(n, x))^(1/x) is a valid bound, for arguments where the inverse fails
        guess = min(exp((log(alpha) + float(scipy.special.betaln(a, b)) + log(a)) / a), 1.0)
    step = 2.0**-42
    low = guess * (1 - step)
    # The bound is decided by the sum, not by its inverse.
    while not scipy.special.betainc(a, b, low) * (1 + sum_error(a + b, low, 1 - low)) <= alpha:  # type: ignore[arg-type]
        step = min(step * 2, 1.0)
        low = guess * (1 - step)
    return low


def _upper(count: int, total: int, alpha: float) -> float:
    """The upper bound for a class, rounded up, from the lower bound for all other classes together."""
    return min(nextafter(1 - _lower(total - count, total, alpha), 2.0), 1.0)


def class_bounds(votes: Sequence[int], label: int, alpha: float) -> tuple[float, float]:
    """Bounds (p1, p2) on the probability of a class and of its strongest rival, which hold simultaneously.

    Two classes: a lower bound at alpha, and p2 = 1 − p1. More classes: a lower bound for the class at alpha / 2 and the
    largest upper bound at alpha / 2 over the others. No correction for the number of classes is needed: only the true
    runner-up has to be covered, and the largest bound covers it. p2 is at most `rival_cap`.

    Args:
        votes: the number of votes for each class, shape (classes,).
        label: the class that is bounded, selected on other votes.
        alpha: the probability with which either bound may fail.

    >>> p1, p2 = class_bounds([3900, 60, 40], 0, 0.05)
    >>> round(p1, 6), round(p2, 6)
    (0.969676, 0.019266)
    """
    total = sum(votes)
    if len(votes) == 2:
        low = _lower(votes[label], total, alpha)
        return low, complement(low)
    rival = max(count for number, count in enumerate(votes) if number != label)
    low = _lower(votes[label], total, alpha / 2)
    return low, capped_rival(low, _upper(rival, total, alpha / 2))


@dataclass(frozen=True)
class Looks:
    """Planned looks at a growing sample (alpha spending): after ``sizes[j]`` votes, bounds at level ``alphas[j]``.

    All bounds of all looks hold together with probability 1 − alpha, where alpha is the sum of the levels, whatever the
    rule by which the sampling stops. `adaptdel.certification.sampling.plan_looks` plans the looks of an input.
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
        """A single look after all votes: the paper's protocol."""
        return cls((check_int("total", total, least=1),), (check_alpha(alpha),))

    @property
    def alpha(self) -> float:
        """The probability with which any of the bounds may fail."""
        return fsum(self.alphas)

    @property
    def total(self) -> int:
        """The largest number of votes."""
        return self.sizes[-1]


def vote_bounds(looks: Looks, votes: Sequence[Sequence[int]], label: int) -> tuple[float, float]:
    """The best bounds (p1, p2) over the looks that were taken.

    Args:
        looks: the planned looks.
        votes: the number of votes at each look that was taken, shape (looks taken, classes).
        label: the class that is bounded, selected on other votes.

    >>> looks = Looks((125, 1000), (0.01, 0.04))
    >>> p1, p2 = vote_bounds(looks, [[0, 125], [10, 990]], 1)
    >>> round(p1, 4), round(p2, 4)
    (0.9826, 0.0174)
    """
    bounds = [class_bounds(counts, label, alpha) for counts, alpha in zip(votes, looks.alphas, strict=False)]
    lower, upper = zip(*bounds, strict=True)
    return max(lower), min(upper)


def exact_bounds(counts: Sequence[Sequence[int]], label: int, noise: Noise, length: int) -> tuple[float, float]:
    """(p1, p2) from enumerated copies, rounded outwards; ``counts`` is as in `exact_shares`."""
    shares = exact_shares(counts, noise, length)
    rival = max(share for number, share in enumerate(shares) if number != label)
    return round_down(shares[label]), round_up(rival)


def exact_shares(counts: Sequence[Sequence[int]], noise: Noise, length: int) -> list[Fraction]:
    """The exact probability of each class, from the number of choices of kept tokens for which it is answered.

    Args:
        counts: choices by class and by number of kept tokens, shape (classes, length + 1).
        noise: the noise, which gives the probability of a choice.
        length: the number of tokens of the input.
    """
    weights = noise.choice_weights(length)
    return [
        sum((count * weight for count, weight in zip(row, weights, strict=True) if count), start=Fraction(0))
        for row in counts
    ]
