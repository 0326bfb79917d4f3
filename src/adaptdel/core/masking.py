"""Masking: the noise of RanMASK, which hides a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import LARGEST_LENGTH, BoolArray, FloatArray, IntArray, check_int, check_probability, spend
from adaptdel.core.noise import MANY_CHOICES, NOISES, ExactOverlap, Noise, Overlap, draws


@NOISES.add("masking")
@dataclass(frozen=True)
class Masking(Noise):
    """RanMASK: mask exactly round(fraction · n) of the n tokens; all choices of positions are equally likely.

    >>> Masking(0.75).masks(8)
    6
    >>> Masking(0.75).sample(8, 1, np.random.default_rng(0)).sum()
    np.int64(2)
    """

    immutable: ClassVar[bool] = True
    masks_tokens: ClassVar[bool] = True
    certified_ops: ClassVar[tuple[str, ...]] = ("sub",)
    shortest_is_worst: ClassVar[bool] = True
    fraction: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", check_probability("fraction", self.fraction))

    def masks(self, length: int) -> int:
        """The number of masked tokens of ``length``, for the sampler and for the certificate."""
        return round(check_int("length", length, most=LARGEST_LENGTH) * self.fraction)

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Keep the tokens with the smallest random keys; a row whose choice is a tie is drawn again."""
        keep = length - self.masks(length)
        if keep in (0, length):
            return np.full((size, length), keep > 0)
        state = rng.bit_generator.state
        kept, tied = _smallest(draws(rng, (size, length)), keep)
        if tied.any():  # about one row in 2**32 / length: draw again row by row, so that chunks do not matter
            rng.bit_generator.state = state
            for row in range(size):
                is_tied = True
                while is_tied:
                    smallest, row_tied = _smallest(draws(rng, (1, length)), keep)
                    kept[row], is_tied = smallest[0], bool(row_tied[0])
        return kept

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """The probability that every substituted token is masked: C(N, k) / C(n, k), the same from both sides."""
        if not np.array_equal(other_length, np.broadcast_to(length, other_length.shape)):
            raise ValueError("ops must be ['sub'] under Masking, which certifies substitutions only")
        hidden = _all_masked(length, self.masks(length), length - common)
        return Overlap.alike(hidden, hidden, common)

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        """The same probability as a product."""
        hidden = number(1)
        masks = self.masks(length)
        spend(length - common)
        for step in range(length - common):
            hidden = hidden * (masks - step) / (length - step)
        return ExactOverlap(hidden, hidden)

    def share_removed(self, length: int) -> float:
        """The number of masks divided by the length."""
        return self.masks(length) / length if length else 0.0

    def choices(self, length: int) -> int:
        """C(n, masks)."""
        masks = self.masks(length)
        return comb(length, masks) if length <= MANY_CHOICES or masks in (0, length) else length  # or more

    def all_choices(self, length: int) -> BoolArray:
        """Every choice of the kept positions."""
        positions = list(combinations(range(length), length - self.masks(length)))
        kept = np.zeros((len(positions), length), dtype=np.bool_)
        for row, position in enumerate(positions):
            kept[row, list(position)] = True
        return kept

    def choice_weights(self, length: int) -> list[Fraction]:
        """1 / C(n, masks) for the one number that is kept."""
        kept = length - self.masks(length)
        return [Fraction(int(i == kept), comb(length, kept)) for i in range(length + 1)]


def _smallest(keys: npt.NDArray[np.uint32], count: int) -> tuple[BoolArray, BoolArray]:
    """Mark the ``count`` smallest keys of every row, and the rows where a tie makes them ambiguous."""
    ordered = np.partition(keys, (count - 1, count), axis=1)
    last, following = ordered[:, count - 1], ordered[:, count]
    return keys <= last[:, None], last == following


def _all_masked(length: int, masks: int, changed: IntArray) -> FloatArray:
    """The probability that a set of ``changed`` positions is masked entirely, rounded down."""
    keep = length - masks
    if keep < 64:  # C(n − r, k) / C(n, k) has k factors as well as r
        hidden = np.ones(changed.shape)
        for step in range(keep):
            hidden = hidden * (np.maximum(length - changed - step, 0) / (length - step))
        return np.asarray(hidden * (1 - 2.0**-51 * keep))
    spend(min(int(changed.max(initial=0)), masks))
    steps = np.arange(min(int(changed.max(initial=0)), masks), dtype=np.float64)
    product = np.concatenate([[1.0], np.cumprod((masks - steps) / (length - steps)), [0.0]])
    hidden = product[np.minimum(changed, len(product) - 1)]
    hidden = np.where(changed > masks, 0.0, hidden)
    return np.asarray(hidden * (1 - 2.0**-51 * changed))  # each step has an error of at most 2**-52
