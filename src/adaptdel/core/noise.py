"""What is done to a sequence before the base classifier sees it.

A noise is the one place that gives both the sampler and the certificate the rate (or the number of masks) of an input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil, comb, sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import (
    LARGEST_LENGTH,
    BoolArray,
    FloatArray,
    IntArray,
    check_int,
    check_probability,
    check_real,
)
from adaptdel.core.rates import DENOMINATOR, FixedRate, Rate, build, rate_from_dict
from adaptdel.core.work_limit import spend

# The relative error of binomial sums is measured to 1e-280 (tests/core/test_binomial.py); products of numbers below
# 1e-308 have none. A mass or probability of at least TINY outweighs such a sum or product by 1e28, which is more than
# the relative margins of the bounds (4 EPS and more) ask for. A smaller one is replaced by a worse one that is exact.
TINY = 1e-250
LEAST = 5e-324  # what a smaller mass counts as, unless it is 0: so little that no probability but 0 fits in


def at_least_tiny(probability: FloatArray) -> FloatArray:
    """Probabilities of other classes, raised to `TINY` unless they are 0."""
    return np.where(probability > 0, np.maximum(probability, TINY), 0.0)


@dataclass(frozen=True)
class Overlap:
    """What an input x and its neighbours x' have in common, one element a neighbour.

    Attributes:
        inside: c, the probability that the noise leaves nothing of x outside the common subsequence.
        other_inside: c', the same for the neighbour.
        common: N, the length of the common subsequence.
        psi: ψ, the deletion rate of x.
        other_psi: ψ', the deletion rate of the neighbour.

    Given that nothing outside is left, each of the N common tokens is kept with probability 1 − ψ from x and 1 − ψ'
    from x'. Where the two conditional distributions are the same, ψ = ψ' is all that matters of the rates.
    """

    inside: FloatArray
    other_inside: FloatArray
    common: FloatArray
    psi: FloatArray
    other_psi: FloatArray


def _none_tiny(mass: FloatArray) -> FloatArray:
    return np.where(mass < TINY, 0.0, mass)


def masking_overlap(missed: FloatArray, common: IntArray) -> Overlap:
    """The overlap under masking, where all changed tokens are masked with probability ``missed`` from both sides."""
    zero = np.zeros(common.shape)
    inside = np.where((missed > 0) & (missed < TINY), LEAST, missed)
    return Overlap(inside, _none_tiny(missed), common.astype(np.float64), zero, zero)


def deletion_overlap(
    length: int, psi: float, other_length: IntArray, other_psi: FloatArray, common: IntArray
) -> Overlap:
    """The overlap under deletion: c = ψ^(n−N) and c' = ψ'^(n'−N)."""
    inside = np.power(psi, (length - common).astype(np.float64))
    other_inside = np.power(other_psi, (other_length - common).astype(np.float64))
    return Overlap(
        inside=np.where(inside < TINY, LEAST if psi > 0 else 0.0, inside),
        other_inside=_none_tiny(other_inside),
        common=common.astype(np.float64),
        psi=np.full(common.shape, psi),
        other_psi=other_psi,
    )


CHUNK_BYTES = 2**24
MANY_CHOICES = 4096  # of kept tokens: more are not enumerated
_WORD = 4  # bytes of a 32-bit draw


class Noise(ABC):
    """A random choice of the tokens that are kept."""

    kind: ClassVar[str]
    masks_tokens: ClassVar[bool] = False
    """Whether tokens that are not kept are replaced by a mask instead of being deleted."""
    calibratable: ClassVar[bool] = True
    """Whether calibration may replace the noise by a deletion with other rates."""
    certifies: ClassVar[bool] = True
    """Whether anything can be certified under the noise; not if it is for training alone."""
    changes_inputs: ClassVar[bool] = True
    """Whether a noisy copy can differ from the input."""
    certified_ops: ClassVar[tuple[str, ...]] = ("del", "ins", "sub")
    """What an attacker may do at most for the noise to certify anything: what ops="edit" stands for."""
    verb: ClassVar[str] = "deletes"
    """What the noise does to tokens, in messages."""

    @abstractmethod
    def _rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Draw ``size`` rows; one call for a + b rows draws the same as a call for a, then one for b."""

    @abstractmethod
    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """How an input of ``length`` tokens overlaps with neighbours, for the certificate."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `noise_from_dict` rebuilds the noise."""

    @abstractmethod
    def share_removed(self, length: int) -> float:
        """The share of the tokens of an input that is removed: the rate of deletion, or the fraction that is masked."""

    @abstractmethod
    def choices(self, length: int) -> int:
        """How many choices of kept tokens there are; beyond `MANY_CHOICES` any number above it."""

    @abstractmethod
    def all_choices(self, length: int) -> BoolArray:
        """Every choice of kept tokens that can occur, a row each."""

    @abstractmethod
    def choice_weights(self, length: int) -> list[Fraction]:
        """The exact probability of one choice of kept tokens, by the number kept (0 to ``length``)."""

    def chunks(
        self, length: int, size: int, rng: np.random.Generator, *, max_bytes: int = CHUNK_BYTES
    ) -> Iterator[BoolArray]:
        """Draw ``size`` samples in chunks of rows, each of which needs at most about ``max_bytes`` to draw.

        The rows do not depend on ``max_bytes``: the chunks, stacked, are what `sample` returns.
        """
        length, size = check_int("length", length, most=LARGEST_LENGTH), check_int("size", size)
        rows = max(1, check_int("max_bytes", max_bytes, least=1) // max(1, length * _WORD))
        for start in range(0, size, rows):
            yield self._rows(length, min(rows, size - start), rng)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Draw a boolean array (size, length): True where a token is kept."""
        length, size = check_int("length", length, most=LARGEST_LENGTH), check_int("size", size)
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"rng must be a numpy Generator such as numpy.random.default_rng(0), got {rng!r}")
        kept = np.empty((size, length), dtype=np.bool_)
        start = 0
        for chunk in self.chunks(length, size, rng):
            kept[start : start + len(chunk)] = chunk
            start += len(chunk)
        return kept


def _draws(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Rows of 32-bit integers: halves of 64-bit draws, the lower first; a row begins with a fresh draw."""
    rows, length = shape
    return _words(rng, (rows, (length + 1) // 2)).view("<u4")[:, :length]


def _words(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """64-bit draws, in the order of the generator, lowest byte first in memory."""
    return rng.integers(0, 2**64, size=shape, dtype=np.uint64).astype("<u8", copy=False)


def _at_least(rng: np.random.Generator, shape: tuple[int, int], threshold: int) -> BoolArray:
    """Where independent 32-bit draws are at or above a threshold; a row begins with a fresh draw.

    The leading byte of a draw mostly decides. Only where it equals the threshold's own are the other 24 bits looked at:
    they come from spare draws at the end of the row, enough for all but one row in ten thousand or fewer.
    """
    rows, length = shape
    first, rest = divmod(threshold, 2**24)
    if first == 2**8:
        return np.zeros(shape, dtype=np.bool_)
    width = -(-length // 8)
    spare = (ceil(length / 256 + 4 * sqrt(length / 256)) + 5) // 2
    before = rng.bit_generator.state
    words = _words(rng, (rows, width + spare))
    leading = np.ascontiguousarray(words[:, :width].view(np.uint8)[:, :length])
    if not rest:
        return leading >= first
    kept: BoolArray = leading > first
    row, column = np.divmod(np.flatnonzero(leading == first), length)
    place = np.arange(len(row)) - np.searchsorted(row, row)
    if place.max(initial=0) < 2 * spare:
        kept[row, column] = words[:, width:].view("<u4")[row, place] >> 8 >= rest
    elif rows == 1:
        kept[row, column] = _draws(rng, (1, len(row)))[0] >> 8 >= rest
    else:  # begin again, row by row, so that a row does not depend on those drawn with it
        rng.bit_generator.state = before
        kept = np.concatenate([_at_least(rng, (1, length), threshold) for _ in range(rows)])
    return kept


@dataclass(frozen=True)
class Deletion(Noise):
    """Delete each token independently with the rate of the input's length.

    >>> Deletion(FixedRate(1.0)).sample(3, 2, np.random.default_rng(0))
    array([[False, False, False],
           [False, False, False]])
    """

    kind: ClassVar[str] = "deletion"
    rate: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Rate):
            raise ValueError(f"rate must be a Rate such as FixedRate(0.9), got {self.rate!r}")

    def _rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return _at_least(rng, (size, length), self.rate.threshold(length))

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """The masses c = ψ^(n−N) and c' = ψ'^(n'−N) of the common subsequence."""
        psi = self.rate(length)
        # Neighbours come in runs of few distinct lengths: ask for each rate once.
        low = int(other_length.min(initial=length))
        span = int(other_length.max(initial=length)) - low + 1
        if span <= 4 * other_length.size + 64:
            other_psi = self.rate.at(np.arange(low, low + span))[other_length - low]
        else:
            other_psi = self.rate.at(other_length)
        return deletion_overlap(length, psi, other_length, other_psi, common)

    def to_dict(self) -> dict[str, Any]:
        """The kind and the rate."""
        return {"kind": self.kind, "rate": self.rate.to_dict()}

    def share_removed(self, length: int) -> float:
        """The rate at the length."""
        return self.rate(length)

    def choices(self, length: int) -> int:
        """2**length, or 1 where nothing is left to chance."""
        return 1 if self._certain(length) is not None else 1 << min(length, 40)

    def all_choices(self, length: int) -> BoolArray:
        """Every subset."""
        certain = self._certain(length)
        if certain is not None:
            return np.full((1, length), certain, dtype=np.bool_)
        return (np.arange(1 << length)[:, None] >> np.arange(length) & 1).astype(np.bool_)

    def choice_weights(self, length: int) -> list[Fraction]:
        """ψ^(n−i) · (1−ψ)^i for i kept tokens."""
        t = self.rate.threshold(length)
        if t in (0, DENOMINATOR):  # nothing is left to chance, at any length
            never, always = [Fraction(0)] * length, [Fraction(1)]
            return never + always if t == 0 else always + never
        return [Fraction(t ** (length - i) * (DENOMINATOR - t) ** i, DENOMINATOR**length) for i in range(length + 1)]

    def _certain(self, length: int) -> bool | None:
        """Whether all tokens are surely kept (True) or deleted (False); None if chance decides."""
        threshold = self.rate.threshold(length)
        return None if 0 < threshold < DENOMINATOR else threshold == 0


@dataclass(frozen=True)
class NoNoise(Deletion):
    """Keep every token: the unsmoothed classifier, for which nothing beyond the input itself is certified."""

    kind: ClassVar[str] = "none"
    calibratable: ClassVar[bool] = False
    changes_inputs: ClassVar[bool] = False
    rate: Rate = field(default=FixedRate(0.0), init=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The kind alone."""
        return {"kind": self.kind}


class TrainingNoise(Noise):
    """Noise that a model is trained under while its rates are not known yet. Nothing can be certified under it."""

    certifies: ClassVar[bool] = False
    low: float
    high: float

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """An error: the noise is for training."""
        raise self._error()

    def share_removed(self, length: int) -> float:
        """An error: the noise is for training."""
        raise self._error()

    def choices(self, length: int) -> int:
        """An error: the noise is for training."""
        raise self._error()

    def all_choices(self, length: int) -> BoolArray:
        """An error: the noise is for training."""
        raise self._error()

    def choice_weights(self, length: int) -> list[Fraction]:
        """An error: the noise is for training."""
        raise self._error()

    def _error(self) -> ValueError:
        return ValueError(
            f"noise must have a rate for every length to be certified, got {self!r}, which is for training"
        )

    def to_dict(self) -> dict[str, Any]:
        """The kind, and between what it is drawn."""
        return {"kind": self.kind, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class RandomDeletion(TrainingNoise):
    """Delete each token with a rate that is itself drawn, evenly from ``low`` to ``high``, for each row.

    AdaptDel+ trains under it.

    >>> RandomDeletion(1.0, 1.0).sample(3, 1, np.random.default_rng(0))
    array([[False, False, False]])
    """

    kind: ClassVar[str] = "random deletion"
    low: float = 0.7
    high: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", check_probability("low", self.low))
        object.__setattr__(self, "high", check_probability("high", self.high))
        if self.high < self.low:
            raise ValueError(f"high must be at least low = {self.low}, got {self.high}")

    def _rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        draws = _draws(rng, (size, length + 1)).astype(np.float64)
        return draws[:, 1:] >= self.low * 2.0**32 + (self.high - self.low) * draws[:, :1]


@dataclass(frozen=True)
class RandomLength(TrainingNoise):
    """Delete each token with the rate that keeps a number of them on average, drawn evenly from ``low`` to ``high``.

    AdaptDel+ trains under it if asked to: what calibration looks for is a number of kept tokens, which differs less
    from length to length than the rate. An input that is shorter than the number is left as it is.

    >>> RandomLength(1000, 1000).sample(3, 1, np.random.default_rng(0))
    array([[ True,  True,  True]])
    """

    kind: ClassVar[str] = "random length"
    low: float
    high: float

    def __post_init__(self) -> None:
        accepted = "a positive number of tokens"
        object.__setattr__(self, "low", check_real("low", self.low, accepted=accepted, least=0.0, most=2.0**32))
        object.__setattr__(self, "high", check_real("high", self.high, accepted=accepted, least=0.0, most=2.0**32))
        if self.low <= 0:
            raise ValueError(f"low must be {accepted}, got {self.low}")
        if self.high < self.low:
            raise ValueError(f"high must be at least low = {self.low}, got {self.high}")

    def _rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        draws = _draws(rng, (size, length + 1)).astype(np.float64)
        kept = self.low * 2.0**32 + (self.high - self.low) * draws[:, :1]
        return draws[:, 1:] >= 2.0**32 - kept / max(length, 1)


@dataclass(frozen=True)
class Masking(Noise):
    """RanMASK: mask exactly round(fraction · n) of the n tokens, every choice of positions being as likely.

    >>> Masking(0.75).masks(8)
    6
    >>> Masking(0.75).sample(8, 1, np.random.default_rng(0)).sum()
    np.int64(2)
    """

    kind: ClassVar[str] = "masking"
    masks_tokens: ClassVar[bool] = True
    calibratable: ClassVar[bool] = False
    certified_ops: ClassVar[tuple[str, ...]] = ("sub",)
    verb: ClassVar[str] = "masks"
    fraction: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", check_probability("fraction", self.fraction))

    def masks(self, length: int) -> int:
        """How many of ``length`` tokens are masked, in the sampler and in the certificate."""
        return round(check_int("length", length, most=LARGEST_LENGTH) * self.fraction)

    def _rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Keep the tokens with the smallest random keys; a row whose choice is a tie is drawn anew."""
        keep = length - self.masks(length)
        if keep in (0, length):
            return np.full((size, length), keep > 0)
        before = rng.bit_generator.state
        kept, tied = _smallest(_draws(rng, (size, length)), keep)
        if tied.any():  # about one row in 2**32 / length: begin again, row by row, so that chunks do not matter
            rng.bit_generator.state = before
            for row in range(size):
                again = True
                while again:
                    one, one_tied = _smallest(_draws(rng, (1, length)), keep)
                    kept[row], again = one[0], bool(one_tied[0])
        return kept

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """The probability that every substituted token is masked: C(N, k) / C(n, k), the same from both sides."""
        if not np.array_equal(other_length, np.broadcast_to(length, other_length.shape)):
            raise ValueError("ops must be ['sub'] under Masking, which certifies substitutions only")
        return masking_overlap(_all_masked(length, self.masks(length), length - common), common)

    def to_dict(self) -> dict[str, Any]:
        """The kind and the fraction."""
        return {"kind": self.kind, "fraction": self.fraction}

    def share_removed(self, length: int) -> float:
        """The number of masks by the length."""
        return self.masks(length) / length if length else 0.0

    def choices(self, length: int) -> int:
        """C(n, masks)."""
        masks = self.masks(length)
        return comb(length, masks) if length <= MANY_CHOICES or masks in (0, length) else length  # or more

    def all_choices(self, length: int) -> BoolArray:
        """Every choice of so many positions."""
        places = list(combinations(range(length), length - self.masks(length)))
        kept = np.zeros((len(places), length), dtype=np.bool_)
        for row, place in enumerate(places):
            kept[row, list(place)] = True
        return kept

    def choice_weights(self, length: int) -> list[Fraction]:
        """All choices are as likely."""
        kept = length - self.masks(length)
        return [Fraction(int(i == kept), comb(length, kept)) for i in range(length + 1)]


def _smallest(keys: npt.NDArray[np.uint32], count: int) -> tuple[BoolArray, BoolArray]:
    """Mark the ``count`` smallest keys of every row, and the rows where a tie leaves the choice open."""
    ordered = np.partition(keys, (count - 1, count), axis=1)
    last, following = ordered[:, count - 1], ordered[:, count]
    return keys <= last[:, None], last == following


def _all_masked(length: int, masks: int, changed: IntArray) -> FloatArray:
    """The probability that ``changed`` given positions are all among the masked ones, rounded down."""
    keep = length - masks
    if keep < 64:  # C(n − r, k) / C(n, k) has k factors as well as r
        missed = np.ones(changed.shape)
        for step in range(keep):
            missed = missed * (np.maximum(length - changed - step, 0) / (length - step))
        return np.asarray(missed * (1 - 2.0**-51 * keep))
    spend(min(int(changed.max(initial=0)), masks))
    steps = np.arange(min(int(changed.max(initial=0)), masks), dtype=np.float64)
    product = np.concatenate([[1.0], np.cumprod((masks - steps) / (length - steps)), [0.0]])
    missed = product[np.minimum(changed, len(product) - 1)]
    missed = np.where(changed > masks, 0.0, missed)
    return np.asarray(missed * (1 - 2.0**-51 * changed))  # a step errs by at most 2**-52


NOISES: dict[str, type[Noise]] = {
    noise.kind: noise for noise in (Deletion, Masking, NoNoise, RandomDeletion, RandomLength)
}


def noise_from_dict(values: Mapping[str, Any]) -> Noise:
    """Rebuild a noise from `Noise.to_dict`.

    >>> noise_from_dict({"kind": "deletion", "rate": {"kind": "fixed", "p": 0.5}})
    Deletion(rate=FixedRate(p=0.5))
    """
    given = dict(values) if isinstance(values, Mapping) else {}
    if given.get("kind") == "none" and len(given) == 1:
        return NoNoise()
    if isinstance(given.get("rate"), Mapping):
        given["rate"] = rate_from_dict(given["rate"])
    noise: Noise = build("noise", NOISES, given)
    return noise
