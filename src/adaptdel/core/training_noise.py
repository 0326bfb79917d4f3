"""Noise for training a model whose rates are chosen later: AdaptDel+ before its calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adaptdel.core.checks import BoolArray, FloatArray, IntArray, check_probability
from adaptdel.core.noise import NOISES, Noise, Overlap, draws


class TrainingNoise(Noise):
    """Noise for training a model whose rates are not known yet. Nothing can be certified under it."""

    certifies: ClassVar[bool] = False
    low: float
    high: float

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """Raise: the noise is for training."""
        raise self._error()

    def share_removed(self, length: int) -> float:
        """Raise: the noise is for training."""
        raise self._error()

    def _error(self) -> ValueError:
        return ValueError(
            f"noise must have a rate for every length to be certified, got {self!r}, which is for training"
        )


@NOISES.add("random_deletion")
@dataclass(frozen=True)
class RandomDeletion(TrainingNoise):
    """Delete each token with a rate that is drawn uniformly from ``low`` to ``high`` for each row.

    AdaptDel+ trains under it.

    >>> RandomDeletion(1.0, 1.0).sample(3, 1, np.random.default_rng(0))
    array([[False, False, False]])
    """

    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = True
    low: float = 0.7
    high: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", check_probability("low", self.low))
        object.__setattr__(self, "high", check_probability("high", self.high))
        if self.high < self.low:
            raise ValueError(f"high must be at least low = {self.low}, got {self.high}")

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """The first draw of a row decides on its rate."""
        drawn = draws(rng, (size, length + 1)).astype(np.float64)
        return drawn[:, 1:] >= self.low * 2.0**32 + (self.high - self.low) * drawn[:, :1]

    def keep_rates(self, length: int, size: int, rng: np.random.Generator) -> FloatArray:
        """One minus a rate for each row."""
        return 1.0 - rng.uniform(self.low, self.high, size)
