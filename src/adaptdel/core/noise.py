"""Noise: the random choice of tokens that the base classifier sees.

The noise object is the only place from which the sampler and the certificate get the rate, or the number of masks, of
an input. `Noise` documents what a noise of your own has to provide.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil, comb, sqrt
from typing import Any, ClassVar, Self, TypeVar

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
    spend,
)
from adaptdel.core.rates import (
    DENOMINATOR,
    RATES,
    Described,
    FixedRate,
    Rate,
    class_of,
    rate_from_dict,
    registration,
)

# The relative error of binomial sums is measured down to 1e-280 (tests/core/test_bounds.py); products below 1e-308 have
# no relative accuracy. A mass or probability of at least TINY exceeds such a sum or product by a factor of 1e28, more
# than the relative margins of the bounds (4 EPS and more) need. A smaller one is replaced by a worse one that is exact.
TINY = 1e-250
LEAST = 5e-324  # replaces a smaller mass that is not 0: so small that only the probability 0 fits into it


def at_least_tiny(probability: FloatArray) -> FloatArray:
    """Probabilities of other classes, raised to `TINY` unless they are 0."""
    return np.where(probability > 0, np.maximum(probability, TINY), 0.0)


@dataclass(frozen=True)
class Overlap:
    """What the noisy copies of an input x and of its neighbours x' have in common.

    With probability c a copy of x contains no token of x outside the common subsequence, and then each of the N common
    tokens is kept independently with probability 1 − ψ. With probability c' the same holds for x', with ψ'. Where the
    two conditional distributions are equal for another reason, ψ = ψ' expresses that, whatever its value.

    Attributes:
        inside: c, shape (neighbours,), not rounded up by more than a few units in the last place.
        other_inside: c', in the same way.
        common: N.
        psi: ψ, the deletion rate of x.
        other_psi: ψ', the deletion rate of the neighbour.
    """

    inside: FloatArray
    other_inside: FloatArray
    common: FloatArray
    psi: FloatArray
    other_psi: FloatArray


@dataclass(frozen=True)
class ExactOverlap:
    """An `Overlap` with one neighbour, in exact numbers or in balls that contain them."""

    inside: Any
    other_inside: Any
    psi: Any
    other_psi: Any


def _zero_if_tiny(mass: FloatArray) -> FloatArray:
    return np.where(mass < TINY, 0.0, mass)


def masking_overlap(hidden: FloatArray, common: IntArray) -> Overlap:
    """The overlap if all changed tokens are masked with probability ``hidden``, from x and from x' alike."""
    zero = np.zeros(common.shape)
    inside = np.where((hidden > 0) & (hidden < TINY), LEAST, hidden)
    return Overlap(inside, _zero_if_tiny(hidden), common.astype(np.float64), zero, zero)


def deletion_overlap(
    length: int, psi: float, other_length: IntArray, other_psi: FloatArray, common: IntArray
) -> Overlap:
    """The overlap under deletion: c = ψ^(n−N) and c' = ψ'^(n'−N)."""
    inside = np.power(psi, (length - common).astype(np.float64))
    other_inside = np.power(other_psi, (other_length - common).astype(np.float64))
    return Overlap(
        inside=np.where(inside < TINY, LEAST if psi > 0 else 0.0, inside),
        other_inside=_zero_if_tiny(other_inside),
        common=common.astype(np.float64),
        psi=np.full(common.shape, psi),
        other_psi=other_psi,
    )


CHUNK_BYTES = 2**24
MANY_CHOICES = 4096  # of kept tokens: more are not enumerated
_DRAW_BYTES = 4  # of a 32-bit draw
_BLOCK_BYTES = 120_000  # of rows that are drawn together: little enough for the cache of a core


_PROMISES = (
    "has_paper_bound", "shortest_is_worst", "calibratable", "changes_inputs",
    "exact_overlap", "choices", "all_choices", "choice_weights", "keep_rates",
)  # fmt: skip


class Noise(Described):
    """A random choice of the tokens that are kept.

    The simplest noise of your own is `Deletion` with a rate of your own (`adaptdel.core.rates.Rate`); everything below
    then works. A subclass of `Noise` is a dataclass, registered by `register_noise` if it is to be saved and loaded. It
    defines

    * `draw_rows`, which samples kept tokens, and `share_removed`, which is reported;
    * `overlap`, which the certificate is computed from. It has to describe the distribution that `draw_rows` samples,
      for every neighbour that the operations in `certified_ops` reach; the masses must not be too large;
    * `exact_overlap`, the same in exact arithmetic. Without it, certificates are valid but cannot be verified in ball
      arithmetic: `adaptdel.rigorous_radius` and `adaptdel verify` refuse them;
    * `choices`, `all_choices` and `choice_weights`, if short inputs are to be enumerated instead of sampled.

    The class attributes below declare the rest. Their defaults are safe for any noise. A class that changes the
    distribution of its parent (`draw_rows` or `overlap`) inherits neither the parent's attributes `has_paper_bound`,
    `shortest_is_worst`, `calibratable` and `changes_inputs`, nor its exact arithmetic and enumeration.
    """

    noun: ClassVar[str] = "noise"
    masks_tokens: ClassVar[bool] = False
    """Whether tokens that are not kept are replaced by a mask instead of being deleted."""
    calibratable: ClassVar[bool] = False
    """Whether calibration may replace the noise by a deletion with other rates."""
    certifies: ClassVar[bool] = True
    """Whether anything can be certified under the noise; False if it is for training only."""
    changes_inputs: ClassVar[bool] = True
    """Whether a noisy copy can differ from the input."""
    certified_ops: ClassVar[tuple[str, ...]] = ("del", "ins", "sub")
    """The operations that can be certified: the meaning of ops="edit"."""
    has_paper_bound: ClassVar[bool] = False
    """Whether the AdaptDel paper's lemmas apply: for independent deletion only. Otherwise the tight bound is used."""
    shortest_is_worst: ClassVar[bool] = False
    """Whether, for each length of the neighbour, the tight bound is weakest at the shortest common subsequence. Then
    only that one is checked; otherwise all of them are."""
    verb: ClassVar[str] = "deletes"
    """What the noise does to tokens, in messages."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Forget what a parent promises about its distribution, if the class has another one."""
        super().__init_subclass__(**options)
        if not {"draw_rows", "overlap", "chunks", "sample"}.isdisjoint(vars(cls)):
            for name in _PROMISES:
                if name not in vars(cls):
                    setattr(cls, name, vars(Noise)[name])

    @abstractmethod
    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Draw kept tokens, shape (size, length). A call for a + b rows draws the same as a call for a, then for b."""

    @abstractmethod
    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """How copies of an input of ``length`` tokens overlap with those of neighbours, arrays of one shape."""

    @abstractmethod
    def share_removed(self, length: int) -> float:
        """The share of the tokens of an input that is removed: the deletion rate, or the masked fraction."""

    def keep_rates(self, length: int, size: int, rng: np.random.Generator) -> FloatArray:
        """The share of the tokens that each of ``size`` rows keeps on average, shape (size,); training uses it."""
        return np.full(size, 1.0 - self.share_removed(length))

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        """The overlap with one neighbour, computed with +, −, ·, / and integer powers of ``number(...)``.

        ``number`` turns an integer into a ball of `flint`, or into a `fractions.Fraction` in tests.
        """
        raise ValueError(
            f"noise must define exact_overlap to be checked in ball arithmetic, which {type(self).__name__} does not"
        )

    def choices(self, length: int) -> int:
        """The number of possible choices of kept tokens; above `MANY_CHOICES`, any number above it."""
        return MANY_CHOICES + 1

    def all_choices(self, length: int) -> BoolArray:
        """Every choice of kept tokens that can occur, shape (choices, length)."""
        raise self._not_enumerated()

    def choice_weights(self, length: int) -> list[Fraction]:
        """The exact probability of a single choice, by the number of kept tokens from 0 to ``length``."""
        raise self._not_enumerated()

    def _not_enumerated(self) -> ValueError:
        return ValueError(f"noise must define all_choices and choice_weights to be enumerated, got {self!r}")

    @property
    def cacheable(self) -> bool:
        """Whether results that depend on the noise may be cached."""
        return self.immutable

    def used_bound(self, bound: str) -> str:
        """The bound that is computed for the setting ``bound``."""
        return bound if self.has_paper_bound else "tight"

    def chunks(
        self, length: int, size: int, rng: np.random.Generator, *, max_bytes: int = CHUNK_BYTES
    ) -> Iterator[BoolArray]:
        """Draw ``size`` samples in chunks of rows that each need at most about ``max_bytes``.

        The rows do not depend on ``max_bytes``: the stacked chunks are what `sample` returns.
        """
        length, size = check_int("length", length, most=LARGEST_LENGTH), check_int("size", size)
        rows = max(1, check_int("max_bytes", max_bytes, least=1) // max(1, length * _DRAW_BYTES))
        for start in range(0, size, rows):
            yield self.draw_rows(length, min(rows, size - start), rng)

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
    source = rng.bit_generator
    if isinstance(source, np.random.Philox):  # its raw draws are the same integers, without the cost of a call
        return source.random_raw(shape[0] * shape[1]).reshape(shape).astype("<u8", copy=False)
    return rng.integers(0, 2**64, size=shape, dtype=np.uint64).astype("<u8", copy=False)


def draw_at_least(rng: np.random.Generator, shape: tuple[int, int], threshold: int) -> BoolArray:
    """Whether independent 32-bit draws are at or above a threshold in [0, 2**32]; a row begins with a fresh draw.

    Mostly the leading byte of a draw decides. Only where it equals the leading byte of the threshold are the other 24
    bits compared. They come from spare draws at the end of the row, which are enough for all but one row in ten
    thousand or fewer.
    """
    rows, length = shape
    first, remainder = divmod(threshold, 2**24)
    if first == 2**8:
        return np.zeros(shape, dtype=np.bool_)
    width = -(-length // 8)
    spare = (ceil(length / 256 + 4 * sqrt(length / 256)) + 5) // 2
    kept = np.empty(shape, dtype=np.bool_)
    height = max(1, _BLOCK_BYTES // (8 * (width + spare)))
    for top in range(0, rows, height):
        _draw_block(rng, kept[top : top + height], (first, remainder), (width, spare))
    return kept


def _draw_block(rng: np.random.Generator, kept: BoolArray, threshold: tuple[int, int], draws: tuple[int, int]) -> None:
    """Fill rows that are drawn together; ``draws`` are the 64-bit draws of a row: leading bytes, then spare ones."""
    rows, length = kept.shape
    first, remainder = threshold
    width, spare = draws
    state = rng.bit_generator.state
    words = _words(rng, (rows, width + spare))
    leading = np.ascontiguousarray(words[:, :width].view(np.uint8)[:, :length])
    if not remainder:
        np.greater_equal(leading, first, out=kept)
        return
    flat = kept.reshape(-1)
    np.equal(leading, first, out=kept)
    ties = np.flatnonzero(flat)
    np.greater(leading, first, out=kept)
    row = ties // length if length else ties
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    if place.max(initial=0) < 2 * spare:
        rest = words.view("<u4").reshape(-1)[row * (2 * (width + spare)) + 2 * width + place]
        flat[ties] = rest >> 8 >= remainder
    elif rows == 1:
        flat[ties] = _draws(rng, (1, len(row)))[0] >> 8 >= remainder
    else:  # draw again row by row, so that a row does not depend on those drawn with it
        rng.bit_generator.state = state
        for number in range(rows):
            _draw_block(rng, kept[number : number + 1], threshold, draws)


@dataclass(frozen=True)
class Deletion(Noise):
    """Delete each token independently with the rate of the input's length.

    >>> Deletion(FixedRate(1.0)).sample(3, 2, np.random.default_rng(0))
    array([[False, False, False],
           [False, False, False]])
    """

    kind: ClassVar[str] = "deletion"
    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = True
    has_paper_bound: ClassVar[bool] = True
    shortest_is_worst: ClassVar[bool] = True
    rate: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Rate):
            raise ValueError(f"rate must be a Rate such as FixedRate(0.9), got {self.rate!r}")

    @property
    def cacheable(self) -> bool:
        """Whether neither the noise nor its rate can change."""
        return self.immutable and self.rate.immutable

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Keep a token iff its 32-bit draw is at or above the threshold of the rate."""
        return draw_at_least(rng, (size, length), self.rate.threshold(length))

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """The masses c = ψ^(n−N) and c' = ψ'^(n'−N) of the common subsequence."""
        psi = self.rate(length)
        # Neighbours mostly have few distinct lengths: compute each rate once.
        low = int(other_length.min(initial=length))
        span = int(other_length.max(initial=length)) - low + 1
        if span <= 4 * other_length.size + 64:
            other_psi = self.rate.at(np.arange(low, low + span))[other_length - low]
        else:
            other_psi = self.rate.at(other_length)
        return deletion_overlap(length, psi, other_length, other_psi, common)

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        """The same masses from the integers of the rates."""
        psi, other_psi = (number(self.rate.threshold(n)) / DENOMINATOR for n in (length, other_length))
        return ExactOverlap(psi ** (length - common), other_psi ** (other_length - common), psi, other_psi)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild the noise and its rate."""
        if isinstance(values.get("rate"), Mapping):
            values = {**values, "rate": rate_from_dict(values["rate"])}
        return super().from_dict(values)

    def share_removed(self, length: int) -> float:
        """The rate at the length."""
        return self.rate(length)

    def choices(self, length: int) -> int:
        """2**length, or 1 where the rate is 0 or 1."""
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
        if t in (0, DENOMINATOR):  # also at lengths whose powers would be too long
            never, always = [Fraction(0)] * length, [Fraction(1)]
            return never + always if t == 0 else always + never
        return [Fraction(t ** (length - i) * (DENOMINATOR - t) ** i, DENOMINATOR**length) for i in range(length + 1)]

    def _certain(self, length: int) -> bool | None:
        """True if all tokens are kept with certainty, False if all are deleted, None if it is random."""
        threshold = self.rate.threshold(length)
        return None if 0 < threshold < DENOMINATOR else threshold == 0


@dataclass(frozen=True)
class NoNoise(Deletion):
    """Keep every token: the unsmoothed classifier, for which nothing beyond the input itself is certified."""

    kind: ClassVar[str] = "none"
    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = False
    changes_inputs: ClassVar[bool] = False
    rate: Rate = field(default=FixedRate(0.0), init=False, repr=False)


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


@dataclass(frozen=True)
class RandomDeletion(TrainingNoise):
    """Delete each token with a rate that is drawn uniformly from ``low`` to ``high`` for each row.

    AdaptDel+ trains under it.

    >>> RandomDeletion(1.0, 1.0).sample(3, 1, np.random.default_rng(0))
    array([[False, False, False]])
    """

    kind: ClassVar[str] = "random deletion"
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
        draws = _draws(rng, (size, length + 1)).astype(np.float64)
        return draws[:, 1:] >= self.low * 2.0**32 + (self.high - self.low) * draws[:, :1]

    def keep_rates(self, length: int, size: int, rng: np.random.Generator) -> FloatArray:
        """One minus a rate for each row."""
        return 1.0 - rng.uniform(self.low, self.high, size)


@dataclass(frozen=True)
class RandomLength(TrainingNoise):
    """Delete each token with the rate that keeps K of them on average; K is uniform from ``low`` to ``high``.

    An option for training AdaptDel+: calibration searches a number of kept tokens, which varies less with the length
    than the rate does. An input of fewer than K tokens is not changed.

    >>> RandomLength(1000, 1000).sample(3, 1, np.random.default_rng(0))
    array([[ True,  True,  True]])
    """

    kind: ClassVar[str] = "random length"
    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = True
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

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """The first draw of a row decides on its rate."""
        draws = _draws(rng, (size, length + 1)).astype(np.float64)
        kept = self.low * 2.0**32 + (self.high - self.low) * draws[:, :1]
        return draws[:, 1:] >= 2.0**32 - kept / max(length, 1)

    def keep_rates(self, length: int, size: int, rng: np.random.Generator) -> FloatArray:
        """A number of kept tokens for each row, as a share of the length."""
        return np.minimum(1.0, rng.uniform(self.low, self.high, size) / max(length, 1))


@dataclass(frozen=True)
class Masking(Noise):
    """RanMASK: mask exactly round(fraction · n) of the n tokens; all choices of positions are equally likely.

    >>> Masking(0.75).masks(8)
    6
    >>> Masking(0.75).sample(8, 1, np.random.default_rng(0)).sum()
    np.int64(2)
    """

    kind: ClassVar[str] = "masking"
    immutable: ClassVar[bool] = True
    masks_tokens: ClassVar[bool] = True
    certified_ops: ClassVar[tuple[str, ...]] = ("sub",)
    shortest_is_worst: ClassVar[bool] = True
    verb: ClassVar[str] = "masks"
    fraction: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", check_probability("fraction", self.fraction))

    def masks(self, length: int) -> int:
        """The number of masked tokens of ``length``, for the sampler and for the certificate."""
        return round(check_int("length", length, most=LARGEST_LENGTH) * self.fraction)

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Keep the tokens with the smallest random keys; a row whose choice is a tie is drawn anew."""
        keep = length - self.masks(length)
        if keep in (0, length):
            return np.full((size, length), keep > 0)
        state = rng.bit_generator.state
        kept, tied = _smallest(_draws(rng, (size, length)), keep)
        if tied.any():  # about one row in 2**32 / length: draw again row by row, so that chunks do not matter
            rng.bit_generator.state = state
            for row in range(size):
                is_tied = True
                while is_tied:
                    smallest, row_tied = _smallest(_draws(rng, (1, length)), keep)
                    kept[row], is_tied = smallest[0], bool(row_tied[0])
        return kept

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """The probability that every substituted token is masked: C(N, k) / C(n, k), the same from both sides."""
        if not np.array_equal(other_length, np.broadcast_to(length, other_length.shape)):
            raise ValueError("ops must be ['sub'] under Masking, which certifies substitutions only")
        return masking_overlap(_all_masked(length, self.masks(length), length - common), common)

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        """The same probability as a product."""
        hidden = number(1)
        masks = self.masks(length)
        spend(length - common)
        for step in range(length - common):
            hidden = hidden * (masks - step) / (length - step)
        return ExactOverlap(hidden, hidden, number(0), number(0))

    def share_removed(self, length: int) -> float:
        """The number of masks divided by the length."""
        return self.masks(length) / length if length else 0.0

    def choices(self, length: int) -> int:
        """C(n, masks)."""
        masks = self.masks(length)
        return comb(length, masks) if length <= MANY_CHOICES or masks in (0, length) else length  # or more

    def all_choices(self, length: int) -> BoolArray:
        """Every choice of the kept positions."""
        places = list(combinations(range(length), length - self.masks(length)))
        kept = np.zeros((len(places), length), dtype=np.bool_)
        for row, place in enumerate(places):
            kept[row, list(place)] = True
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


NOISES: dict[str, type[Noise]] = {
    noise.kind: noise for noise in (Deletion, Masking, NoNoise, RandomDeletion, RandomLength)
}
_Noise = TypeVar("_Noise", bound=Noise)


def register_noise(kind: str) -> Callable[[type[_Noise]], type[_Noise]]:
    """A class decorator that makes a noise of your own loadable from files under a name.

    The class is a dataclass that derives from `Noise`, which says what it has to define. Its fields are plain values,
    or it defines ``to_dict`` and ``from_dict``. A file holds the name and the values, never code: the module of the
    class has to be imported before the file is read.

    Args:
        kind: the name; that of another class is refused.
    """
    return registration("noise", NOISES, Noise, kind)


def registered_noise_modules() -> list[str]:
    """The modules of registered noises and rates outside this package, for worker processes to import."""
    modules = {cls.__module__ for kinds in (NOISES, RATES) for cls in kinds.values()}
    return sorted(module for module in modules if module.partition(".")[0] != "adaptdel")


def noise_from_dict(values: Mapping[str, Any]) -> Noise:
    """Rebuild a noise from `Noise.to_dict`.

    >>> noise_from_dict({"kind": "deletion", "rate": {"kind": "fixed", "p": 0.5}})
    Deletion(rate=FixedRate(p=0.5))
    """
    noise: Noise = class_of("noise", NOISES, values).from_dict(values)
    return noise
