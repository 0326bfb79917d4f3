"""Deletion rates ψ as a function of the length of the input, as exact dyadic numbers.

A rate is ``t / 2**32`` with an integer ``t``. The sampler deletes a token iff a 32-bit random integer is below ``t``,
and the certificate uses the double ``t / 2**32``, which is exact. So the rate that is sampled is the rate that is
certified.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import floor, inf
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import (
    LARGEST_LENGTH,
    FloatArray,
    IntArray,
    check_int,
    check_list,
    check_probability,
    check_real,
)
from adaptdel.core.registry import Described, Registry, check_described, from_dict

DENOMINATOR = 2**32


def dyadic(rate: float) -> float:
    """Round a rate to the nearest multiple of 2**-32: the rate that is sampled and certified.

    >>> dyadic(0.5), dyadic(0.9)
    (0.5, 0.8999999999068677)
    """
    return round(check_probability("rate", rate) * DENOMINATOR) / DENOMINATOR


class Rate(Described):
    """A deletion rate for every length from 0 on.

    A subclass defines the rate before rounding (`real`), and overrides no other method that gives a rate: sampler and
    certificate use different ones, which agree because all derive from `real`. A rate of your own is certified soundly
    whatever its values, as long as it depends on the length alone and does not change. `register_rate` makes it
    loadable from files.
    """

    noun: ClassVar[str] = "rate"

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ("__call__", "at", "threshold", "thresholds"):
            if getattr(cls, name) is not getattr(Rate, name):
                raise TypeError(f"{cls.__name__} must not override {name}: define real, from which it is derived")

    @abstractmethod
    def real(self, lengths: FloatArray) -> FloatArray:
        """The rate at an array of lengths, before it is clipped to [0, 1] and rounded; of the same shape, never NaN."""

    def thresholds(self, lengths: npt.ArrayLike) -> IntArray:
        """The integers t of ψ = t / 2**32 at an array of lengths."""
        real = self.real(np.asarray(lengths, dtype=np.float64))
        if np.isnan(real).any():
            raise ValueError(f"a rate must be a number at every length, got NaN from {self!r}")
        return np.asarray(np.rint(np.clip(real, 0.0, 1.0) * DENOMINATOR), dtype=np.int64)

    def threshold(self, length: int) -> int:
        """The integer t of ψ = t / 2**32 at one length."""
        length = check_int("length", length, most=LARGEST_LENGTH)
        return _cached_threshold(self, length) if self.immutable else int(self.thresholds(length))

    def at(self, lengths: npt.ArrayLike) -> FloatArray:
        """The exact rates at an array of lengths."""
        return self.thresholds(lengths) / DENOMINATOR

    def __call__(self, length: int) -> float:
        """The exact rate at one length."""
        return self.threshold(length) / DENOMINATOR


@lru_cache(maxsize=2**14)
def _cached_threshold(rate: Rate, length: int) -> int:
    return int(rate.thresholds(length))


RATES: Registry[type[Rate]] = Registry(
    "rate", check_described(Rate), dict.fromkeys(("fixed", "length", "binned", "interpolated"), __name__)
)


@RATES.add("fixed")
@dataclass(frozen=True)
class FixedRate(Rate):
    """The same rate at every length, as in RS-Del and CERT-ED.

    >>> FixedRate(0.5)(100)
    0.5
    """

    immutable: ClassVar[bool] = True
    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("p", self.p))

    def real(self, lengths: FloatArray) -> FloatArray:
        """The constant p."""
        return np.full(np.shape(lengths), self.p)


@RATES.add("length")
@dataclass(frozen=True)
class LengthRate(Rate):
    """AdaptDel: ψ(n) = max(p_min, p_max · (1 − k/n)). About k tokens of a long input are kept.

    >>> rate = LengthRate(p_min=0.5, k=16)
    >>> rate(10), rate(64), rate(1024)
    (0.5, 0.75, 0.984375)
    """

    immutable: ClassVar[bool] = True
    p_min: float
    k: float
    p_max: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "p_min", check_probability("p_min", self.p_min))
        object.__setattr__(self, "p_max", check_probability("p_max", self.p_max))
        k = check_real("k", self.k, accepted="a finite number of at least 0", least=0.0, most=LARGEST_LENGTH)
        object.__setattr__(self, "k", _plain(k))
        if self.p_max < self.p_min:
            raise ValueError(f"p_max must be at least p_min = {self.p_min}, got {self.p_max}")

    @classmethod
    def from_lengths(cls, lengths: Iterable[int], p_min: float) -> LengthRate:
        """The paper's choice k = floor((1 − p_min) · mean length), but at least 1, with p_max = 1.

        For texts of few words the paper's k would be 0, which deletes everything.

        >>> LengthRate.from_lengths([220, 240], p_min=0.9)
        LengthRate(p_min=0.9, k=23, p_max=1.0)
        """
        counted = [check_int("lengths", length) for length in check_list("lengths", lengths)]
        if not counted:
            raise ValueError("lengths must hold at least one length, got none")
        mean = Fraction(sum(counted), len(counted))
        keep = 1 - Fraction(repr(check_probability("p_min", p_min)))  # of the decimal number, not of its double
        return cls(p_min=p_min, k=max(1, floor(keep * mean)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """max(p_min, p_max · (1 − k/n)), where k/0 is infinite for k > 0."""
        return np.maximum(self.p_min, self.p_max * _kept_to_rate(np.full(np.shape(lengths), float(self.k)), lengths))


def _increasing(name: str, values: Sequence[float]) -> tuple[float, ...]:
    checked = tuple(
        _plain(check_real(name, v, accepted="numbers of at least 0", least=0.0, most=LARGEST_LENGTH)) for v in values
    )
    if not checked:
        raise ValueError(f"{name} must hold at least 1 number, got {list(values)}")
    if any(b <= a for a, b in pairwise(checked)):
        raise ValueError(f"{name} must increase strictly, got {list(values)}")
    return checked


def _keeps(keep: Sequence[float], name: str, count: int) -> tuple[float, ...]:
    accepted = "expected kept lengths of at least 0"
    checked = tuple(_plain(check_real("keep", v, accepted=accepted, least=0.0, most=LARGEST_LENGTH)) for v in keep)
    if len(checked) != count:
        raise ValueError(f"keep must hold one number for each of the {count} {name}, got {len(checked)}")
    return checked


def _plain(number: float) -> float:
    """An int for an integer, which has a shorter representation."""
    return int(number) if number == int(number) else number


def _kept_to_rate(keep: FloatArray, lengths: FloatArray) -> FloatArray:
    """1 − K/n, where K/0 is infinite for K > 0."""
    fraction = np.divide(keep, lengths, out=np.where(keep > 0, inf, 0.0), where=lengths > 0)
    return 1.0 - np.minimum(fraction, 1.0)


@RATES.add("binned")
@dataclass(frozen=True)
class BinnedRate(Rate):
    """AdaptDel+: ψ(n) = 1 − K/n, with one expected kept length K for each bin of lengths.

    Args:
        edges: the lower ends of the bins; the first is 0. A final infinity, as printed in the paper, is optional.
        keep: the expected kept length K of each bin.

    >>> rate = BinnedRate(edges=[0, 128, 256], keep=[4, 8, 16])
    >>> rate(64), rate(128), rate(1024)
    (0.9375, 0.9375, 0.984375)
    """

    immutable: ClassVar[bool] = True
    edges: Sequence[float]  # stored as a tuple, like keep
    keep: Sequence[float]

    def __post_init__(self) -> None:
        listed = check_list("edges", self.edges)
        edges = _increasing("edges", listed[:-1] if listed and listed[-1] == inf else listed)
        if edges[0] != 0:
            raise ValueError(f"edges must begin with 0, so that every length has a bin, got {listed}")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "keep", _keeps(check_list("keep", self.keep), "bins", len(edges)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """1 − K/n with the K of the bin of n."""
        bins = np.searchsorted(np.array(self.edges, dtype=np.float64), lengths, side="right") - 1
        return _kept_to_rate(np.array(self.keep, dtype=np.float64)[bins], lengths)


@RATES.add("interpolated")
@dataclass(frozen=True)
class InterpolatedRate(Rate):
    """AdaptDel+ without jumps: ψ(n) = 1 − K(n)/n, with K linear between the given lengths and constant outside.

    >>> rate = InterpolatedRate(lengths=[64, 192], keep=[8, 24])
    >>> rate(64), rate(128), rate(768)
    (0.875, 0.875, 0.96875)
    """

    immutable: ClassVar[bool] = True
    lengths: Sequence[float]  # stored as a tuple, like keep
    keep: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _increasing("lengths", check_list("lengths", self.lengths)))
        object.__setattr__(self, "keep", _keeps(check_list("keep", self.keep), "lengths", len(self.lengths)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """1 − K/n with K interpolated at n."""
        knots, keep = np.array(self.lengths, dtype=np.float64), np.array(self.keep, dtype=np.float64)
        if len(knots) == 1:
            return _kept_to_rate(np.full(np.shape(lengths), keep[0]), lengths)
        inside = np.clip(lengths, knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        weight = (inside - knots[left]) / (knots[left + 1] - knots[left])
        return _kept_to_rate(keep[left] * (1.0 - weight) + keep[left + 1] * weight, lengths)


_Rate = TypeVar("_Rate", bound=type[Rate])


def register_rate(kind: str) -> Callable[[_Rate], _Rate]:
    """A class decorator that makes a rate of your own loadable from files under a name.

    The class is a dataclass whose fields are plain values. A file holds the name and the fields, never code: the module
    of the class has to be imported before the file is read.

    >>> from dataclasses import dataclass
    >>> @register_rate("square_root")
    ... @dataclass(frozen=True)
    ... class SquareRootRate(Rate):
    ...     immutable = True
    ...     scale: float
    ...     def real(self, lengths):
    ...         return 1 - self.scale / np.sqrt(np.maximum(lengths, 1))
    >>> rate_from_dict({"kind": "square_root", "scale": 1.0})(16)
    0.75
    """
    return RATES.add(kind)


def rate_from_dict(values: Mapping[str, Any]) -> Rate:
    """Rebuild a rate from `Rate.to_dict`.

    >>> rate_from_dict({"kind": "length", "p_min": 0.9, "k": 23})
    LengthRate(p_min=0.9, k=23, p_max=1.0)
    """
    return from_dict(RATES, values)
