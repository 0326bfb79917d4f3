"""Noise: the random choice of tokens that the base classifier sees.

The noise object is the only place from which the sampler and the certificate get the rate, or the number of masks, of
an input. `Noise` documents what a noise of your own has to provide.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, sqrt
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import LARGEST_LENGTH, BoolArray, FloatArray, IntArray, check_int, check_probability
from adaptdel.core.plain import READERS
from adaptdel.core.rates import DENOMINATOR, FixedRate, Rate, rate_from_dict
from adaptdel.core.registry import Described, Registry, check_described, from_dict
from adaptdel.core.threat import Threat

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
    two conditional distributions are equal for another reason, ψ = ψ' expresses this, with any value.

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

    @classmethod
    def alike(cls, inside: FloatArray, other_inside: FloatArray, common: IntArray) -> Overlap:
        """The overlap where the two conditional distributions are equal."""
        same = np.zeros(common.shape)
        inside = np.where((inside > 0) & (inside < TINY), LEAST, inside)
        other_inside = np.where(other_inside < TINY, 0.0, other_inside)
        return cls(inside, other_inside, common.astype(np.float64), same, same)


@dataclass(frozen=True)
class ExactOverlap:
    """An `Overlap` with one neighbour, in exact numbers or in balls that contain them; by default one of `alike`."""

    inside: Any
    other_inside: Any
    psi: Any = 0
    other_psi: Any = 0


def deletion_overlap(
    length: int, psi: float, other_length: IntArray, other_psi: FloatArray, common: IntArray
) -> Overlap:
    """The overlap under deletion: c = ψ^(n−N) and c' = ψ'^(n'−N)."""
    inside = np.power(psi, (length - common).astype(np.float64))
    other_inside = np.power(other_psi, (other_length - common).astype(np.float64))
    return Overlap(
        inside=np.where(inside < TINY, LEAST if psi > 0 else 0.0, inside),
        other_inside=np.where(other_inside < TINY, 0.0, other_inside),
        common=common.astype(np.float64),
        psi=np.full(common.shape, psi),
        other_psi=other_psi,
    )


Neighbours = tuple[IntArray, ...]  # columns: n', N and whatever else the overlaps of a noise depend on
DRAW_BYTES = 4  # of a draw
_BLOCK_BYTES = 120_000  # of rows that are drawn together: little enough for the cache of a core
CHUNK_BYTES = 2**24
MANY_CHOICES = 4096  # of kept tokens: more are not enumerated

_NOT_ENUMERATED = "noise must define all_choices and choice_weights to be enumerated, got {!r}"
_PROMISES = (
    "has_paper_bound", "shortest_is_worst", "calibratable", "calibration_candidates", "changes_inputs",
    "exact_overlap", "choices", "all_choices", "choice_weights", "keep_rates",
)  # fmt: skip


class Noise(Described):
    """A random choice of the tokens that are kept.

    The simplest noise of your own is `Deletion` with a rate of your own (`adaptdel.core.rates.Rate`), or
    `adaptdel.ContentDeletion` for a rate that depends on the tokens; everything below then works. A subclass of `Noise`
    is a dataclass, registered by `register_noise` if it is to be saved and loaded. It defines

    * `draw_rows`, which samples kept tokens, and `share_removed`, which is reported;
    * `overlap`, which the certificate is computed from. It has to describe the distribution that `draw_rows` samples,
      for every neighbour that the operations in `certified_ops` reach; the masses must not be too large;
    * `exact_overlap`, the same in exact arithmetic. Without it, certificates are valid but cannot be verified in ball
      arithmetic: `adaptdel.rigorous_radius` and `adaptdel verify` refuse them;
    * `ball`, if the overlap depends on more than the number n' of a neighbour's tokens and the number N of common ones;
    * `given` and `ball`, if the distribution depends on the tokens and not on their number alone;
    * `choices`, `all_choices` and `choice_weights`, if short inputs are to be enumerated instead of sampled;
    * `calibration_candidates`, if `adaptdel calibrate` is to choose among noises of its kind.

    The class attributes below declare the rest. Their defaults are safe for any noise. A class that changes the
    distribution of its parent (`draw_rows` or `overlap`) inherits neither the parent's attributes `has_paper_bound`,
    `shortest_is_worst`, `calibratable` and `changes_inputs`, nor its exact arithmetic, enumeration and candidates; a
    class that changes `draw_rows` must define `overlap`.
    """

    noun: ClassVar[str] = "noise"
    masks_tokens: ClassVar[bool] = False
    """Whether tokens that are not kept are replaced by a mask instead of being deleted."""
    calibratable: ClassVar[bool] = False
    """Whether calibration may replace the noise by a deletion with other rates: see also `calibration_candidates`."""
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
    vocabulary: tuple[Hashable, ...] | None = None
    """The tokens that the attacker may insert; None for any. A certificate holds for texts of these only."""
    tokens: tuple[Hashable, ...] | None = None
    """The tokens of the input, of a noise that sees them and was `given` them."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Forget what a parent promises about its distribution, if the class has another one."""
        super().__init_subclass__(**options)
        place = {name: n for n, base in reversed([*enumerate(cls.__mro__)]) for name in vars(base)}  # of its definition
        for name in _PROMISES:
            if place[name] > min(place["draw_rows"], place["overlap"], place["chunks"], place["sample"]):
                setattr(cls, name, vars(Noise)[name])
        if cls.certifies and min(place["draw_rows"], place["chunks"], place["sample"]) < place["overlap"]:
            raise TypeError(f"{cls.__name__} draws tokens in its own way, and must define their overlap")
        if cls.sees_tokens() and not cls.has_own_ball():
            raise TypeError(f"{cls.__name__} sees the tokens (given), and must define the ball of its neighbours")

    @classmethod
    def sees_tokens(cls) -> bool:
        """Whether the distribution depends on the tokens, and not on their number alone."""
        return cls.given is not Noise.given

    @classmethod
    def has_own_ball(cls) -> bool:
        """Whether neighbours are more to the noise than pairs (n', N)."""
        return cls.ball is not Noise.ball

    def given(self, tokens: Sequence[Hashable]) -> Noise:
        """The noise of one input. A noise that sees the tokens returns a copy of itself that holds them."""
        return self

    def ball(self, length: int, radius: int, threat: Threat, *, shortest_only: bool = False) -> Iterator[Neighbours]:
        """The neighbours after 1 to ``radius`` edits, in blocks of columns that `overlap` takes after the length.

        At radius 0, the input itself. ``shortest_only`` leaves out common subsequences that are not the shortest.
        """
        if radius == 0:
            yield np.array([length]), np.array([length])
        else:
            yield from threat.ball(length, radius) if shortest_only else threat.whole_ball(length, radius)

    def radius_limit(self, length: int, threat: Threat) -> int:
        """The largest radius that is searched for."""
        return threat.search_limit(length)

    @abstractmethod
    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Draw kept tokens, shape (size, length). A call for a + b rows draws the same as a call for a, then for b."""

    @abstractmethod
    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """How copies of an input of ``length`` tokens overlap with those of neighbours, arrays of one shape.

        With a `ball` of your own, it takes the columns of that.
        """

    @abstractmethod
    def share_removed(self, length: int) -> float:
        """The fraction of the tokens of an input that is removed: the deletion rate, or the masked fraction."""

    def keep_rates(self, length: int, size: int, rng: np.random.Generator) -> FloatArray:
        """The fraction of the tokens that each of ``size`` rows keeps on average, shape (size,); training uses it."""
        return np.full(size, 1.0 - self.share_removed(length))

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        """The overlap with one neighbour, computed with +, −, ·, / and integer powers of ``number(...)``.

        ``number`` turns an integer into a ball of `flint`, or into a `fractions.Fraction` in tests.
        """
        raise ValueError(
            f"noise must define exact_overlap to be checked in ball arithmetic, which {type(self).__name__} does not"
        )

    def calibration_candidates(self, lengths: Sequence[int]) -> Sequence[Noise]:
        """Noises of the same kind that `adaptdel calibrate` may choose instead, for inputs of these lengths."""
        return []

    def choices(self, length: int) -> int:
        """The number of possible choices of kept tokens; above `MANY_CHOICES`, any number above it."""
        return MANY_CHOICES + 1

    def all_choices(self, length: int) -> BoolArray:
        """Every choice of kept tokens that can occur, shape (choices, length)."""
        raise ValueError(_NOT_ENUMERATED.format(self))

    def choice_weights(self, length: int) -> list[Fraction]:
        """The exact probability of a single choice, by the number of kept tokens from 0 to ``length``."""
        raise ValueError(_NOT_ENUMERATED.format(self))

    @property
    def cacheable(self) -> bool:
        """Whether results that depend on the noise may be cached: neither it nor its rate can change."""
        return self.immutable and all(getattr(value, "immutable", True) for value in vars(self).values())

    def used_bound(self, bound: str) -> str:
        """The bound that is computed for the setting ``bound``."""
        return "tight" if bound == "paper" and not self.has_paper_bound else bound

    def chunks(
        self, length: int, size: int, rng: np.random.Generator, *, max_bytes: int = CHUNK_BYTES
    ) -> Iterator[BoolArray]:
        """Draw ``size`` samples in chunks of rows that each need at most about ``max_bytes``.

        The rows do not depend on ``max_bytes``: the stacked chunks are what `sample` returns.
        """
        length, size = check_int("length", length, most=LARGEST_LENGTH), check_int("size", size)
        rows = max(1, check_int("max_bytes", max_bytes, least=1) // max(1, length * DRAW_BYTES))
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


NOISES: Registry[type[Noise]] = Registry(
    "noise",
    check_described(Noise),
    {
        **dict.fromkeys(("deletion", "none", "random_deletion"), __name__),
        "masking": "adaptdel.core.masking",
    },
)
_Noise = TypeVar("_Noise", bound=type[Noise])


def draws(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
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


def _draw_block(rng: np.random.Generator, kept: BoolArray, threshold: tuple[int, int], sizes: tuple[int, int]) -> None:
    """Fill rows that are drawn together; ``sizes``: the 64-bit draws of a row, for leading bytes and spare ones."""
    rows, length = kept.shape
    first, remainder = threshold
    width, spare = sizes
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
    position = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    if position.max(initial=0) < 2 * spare:
        rest = words.view("<u4").reshape(-1)[row * (2 * (width + spare)) + 2 * width + position]
        flat[ties] = rest >> 8 >= remainder
    elif rows == 1:
        flat[ties] = draws(rng, (1, len(row)))[0] >> 8 >= remainder
    else:  # draw again row by row, so that a row does not depend on those drawn with it
        rng.bit_generator.state = state
        for number in range(rows):
            _draw_block(rng, kept[number : number + 1], threshold, sizes)


@NOISES.add("deletion")
@dataclass(frozen=True)
class Deletion(Noise):
    """Delete each token independently, at a rate that depends on the length of the input.

    >>> Deletion(FixedRate(1.0)).sample(3, 2, np.random.default_rng(0))
    array([[False, False, False],
           [False, False, False]])
    """

    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = True
    has_paper_bound: ClassVar[bool] = True
    shortest_is_worst: ClassVar[bool] = True
    rate: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Rate):
            raise ValueError(f"rate must be a Rate such as FixedRate(0.9), got {self.rate!r}")

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


@NOISES.add("none")
@dataclass(frozen=True)
class NoNoise(Deletion):
    """Keep every token: the unsmoothed classifier, for which nothing beyond the input itself is certified."""

    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = False
    changes_inputs: ClassVar[bool] = False
    rate: Rate = field(default=FixedRate(0.0), init=False, repr=False)


_FOR_TRAINING = "noise must have a rate for every length to be certified, got {!r}: it is for training"


@NOISES.add("random_deletion")
@dataclass(frozen=True)
class RandomDeletion(Noise):
    """Delete each token with a rate that is drawn uniformly from ``low`` to ``high`` for each row.

    AdaptDel+ trains under it, since its rates are chosen later. Nothing can be certified under it.

    >>> RandomDeletion(1.0, 1.0).sample(3, 1, np.random.default_rng(0))
    array([[False, False, False]])
    """

    immutable: ClassVar[bool] = True
    calibratable: ClassVar[bool] = True
    certifies: ClassVar[bool] = False
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

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        """Raise: the noise is for training."""
        raise ValueError(_FOR_TRAINING.format(self))

    def share_removed(self, length: int) -> float:
        """Raise: the noise is for training."""
        raise ValueError(_FOR_TRAINING.format(self))


def register_noise(kind: str) -> Callable[[_Noise], _Noise]:
    """A class decorator that makes a noise of your own loadable from files under a name.

    The class is a dataclass that derives from `Noise`, which says what it has to define. Its fields are plain values,
    or it defines ``to_dict`` and ``from_dict``. A file holds the name and the values, never code: the module of the
    class has to be imported before the file is read, by ``--import`` or as a plug-in.

    Args:
        kind: the name; that of another class is refused.
    """
    return NOISES.add(kind)


def noise_from_dict(values: Mapping[str, Any]) -> Noise:
    """Rebuild a noise from `Noise.to_dict`.

    >>> noise_from_dict({"kind": "deletion", "rate": {"kind": "fixed", "p": 0.5}})
    Deletion(rate=FixedRate(p=0.5))
    """
    return from_dict(NOISES, values)


READERS[Noise] = noise_from_dict
