"""Deletion rates ψ as a function of the length of the input: exact dyadic numbers.

A rate is ``t / 2**32`` with a whole ``t``. The sampler deletes a token iff a 32-bit random integer is below ``t``, and
the certificate uses the double ``t / 2**32``, which is exact: what is sampled is what is certified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import floor, inf
from typing import Any, ClassVar

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

DENOMINATOR = 2**32


def dyadic(rate: float) -> float:
    """Round a rate to the nearest multiple of 2**-32: the rate that is sampled and certified.

    >>> dyadic(0.5), dyadic(0.9)
    (0.5, 0.8999999999068677)
    """
    return round(check_probability("rate", rate) * DENOMINATOR) / DENOMINATOR


class Rate(ABC):
    """A deletion rate for every length from 0 on.

    A subclass says what the rate is before rounding (`real`). Certificates are cached for frozen dataclasses only,
    whose rates cannot change.
    """

    kind: ClassVar[str]

    @abstractmethod
    def real(self, lengths: FloatArray) -> FloatArray:
        """The rate at each length before it is clipped to [0, 1] and rounded; never NaN."""

    def thresholds(self, lengths: npt.ArrayLike) -> IntArray:
        """The integers t of ψ = t / 2**32 at an array of lengths."""
        real = self.real(np.asarray(lengths, dtype=np.float64))
        if np.isnan(real).any():
            raise ValueError(f"a rate must be a number at every length, got NaN from {self!r}")
        return np.asarray(np.rint(np.clip(real, 0.0, 1.0) * DENOMINATOR), dtype=np.int64)

    def threshold(self, length: int) -> int:
        """The integer t of ψ = t / 2**32 at one length."""
        length = check_int("length", length, most=LARGEST_LENGTH)
        return _remembered_threshold(self, length) if type(self) in RATES.values() else int(self.thresholds(length))

    def at(self, lengths: npt.ArrayLike) -> FloatArray:
        """The exact rates at an array of lengths."""
        return self.thresholds(lengths) / DENOMINATOR

    def __call__(self, length: int) -> float:
        """The exact rate at one length."""
        return self.threshold(length) / DENOMINATOR

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `rate_from_dict` rebuilds the rate."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


@dataclass(frozen=True)
class FixedRate(Rate):
    """The same rate at every length: RS-Del and CERT-ED.

    >>> FixedRate(0.5)(100)
    0.5
    """

    kind: ClassVar[str] = "fixed"
    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("p", self.p))

    def real(self, lengths: FloatArray) -> FloatArray:
        """The constant p."""
        return np.full(np.shape(lengths), self.p)


@dataclass(frozen=True)
class LengthRate(Rate):
    """AdaptDel: ψ(n) = max(p_min, p_max · (1 − k/n)), so that about k tokens are kept of a long input.

    >>> rate = LengthRate(p_min=0.5, k=16)
    >>> rate(10), rate(64), rate(1024)
    (0.5, 0.75, 0.984375)
    """

    kind: ClassVar[str] = "length"
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
        """The paper's choice of k: floor((1 − p_min) · mean length), with p_max = 1; but at least 1.

        A k of 0, as texts of few words would get, deletes everything.

        >>> LengthRate.from_lengths([220, 240], p_min=0.9)
        LengthRate(p_min=0.9, k=23, p_max=1.0)
        """
        counted = [check_int("lengths", length) for length in check_list("lengths", lengths)]
        if not counted:
            raise ValueError("lengths must hold at least one length, got none")
        mean = Fraction(sum(counted), len(counted))
        keep = 1 - Fraction(repr(check_probability("p_min", p_min)))  # the decimal that was written, not its double
        return cls(p_min=p_min, k=max(1, floor(keep * mean)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """max(p_min, p_max · (1 − k/n)); k/0 counts as infinite."""
        share = np.divide(self.k, lengths, out=np.full(np.shape(lengths), inf if self.k else 0.0), where=lengths > 0)
        return np.maximum(self.p_min, self.p_max * (1.0 - np.minimum(share, 1.0)))


def _increasing(name: str, values: Sequence[float], *, at_least: int) -> tuple[float, ...]:
    checked = tuple(
        _plain(check_real(name, v, accepted="numbers of at least 0", least=0.0, most=LARGEST_LENGTH)) for v in values
    )
    if len(checked) < at_least:
        raise ValueError(f"{name} must hold at least {at_least} number{'s'[: at_least > 1]}, got {list(values)}")
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
    """A whole double as an int, for short representations."""
    return int(number) if number == int(number) else number


def _kept_to_rate(keep: FloatArray, lengths: FloatArray) -> FloatArray:
    """1 − K/n, where K/0 counts as infinite for K > 0."""
    share = np.divide(keep, lengths, out=np.where(keep > 0, inf, 0.0), where=lengths > 0)
    return 1.0 - np.minimum(share, 1.0)


@dataclass(frozen=True)
class BinnedRate(Rate):
    """AdaptDel+: ψ(n) = 1 − K/n, with one expected kept length K for each bin of lengths.

    Args:
        edges: where the bins begin; the first is 0. A closing infinity, as the paper prints it, may be left out.
        keep: the expected kept length K of each bin.

    >>> rate = BinnedRate(edges=[0, 128, 256], keep=[4, 8, 16])
    >>> rate(64), rate(128), rate(1024)
    (0.9375, 0.9375, 0.984375)
    """

    kind: ClassVar[str] = "binned"
    edges: Sequence[float]  # kept as a tuple, like the next
    keep: Sequence[float]

    def __post_init__(self) -> None:
        given = check_list("edges", self.edges)
        edges = _increasing("edges", given[:-1] if given and given[-1] == inf else given, at_least=1)
        if edges[0] != 0:
            raise ValueError(f"edges must begin with 0, so that every length has a bin, got {given}")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "keep", _keeps(check_list("keep", self.keep), "bins", len(edges)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """1 − K/n with the K of the bin that holds n."""
        bins = np.searchsorted(np.array(self.edges, dtype=np.float64), lengths, side="right") - 1
        return _kept_to_rate(np.array(self.keep, dtype=np.float64)[bins], lengths)


@dataclass(frozen=True)
class InterpolatedRate(Rate):
    """AdaptDel+ without jumps: ψ(n) = 1 − K(n)/n, with K linear between the given lengths and constant outside.

    >>> rate = InterpolatedRate(lengths=[64, 192], keep=[8, 24])
    >>> rate(64), rate(128), rate(768)
    (0.875, 0.875, 0.96875)
    """

    kind: ClassVar[str] = "interpolated"
    lengths: Sequence[float]  # kept as a tuple, like the next
    keep: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _increasing("lengths", check_list("lengths", self.lengths), at_least=1))
        object.__setattr__(self, "keep", _keeps(check_list("keep", self.keep), "lengths", len(self.lengths)))

    def real(self, lengths: FloatArray) -> FloatArray:
        """1 − K/n with the K that is interpolated at n."""
        knots, keep = np.array(self.lengths, dtype=np.float64), np.array(self.keep, dtype=np.float64)
        if len(knots) == 1:
            return _kept_to_rate(np.full(np.shape(lengths), keep[0]), lengths)
        inside = np.clip(lengths, knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        weight = (inside - knots[left]) / (knots[left + 1] - knots[left])
        return _kept_to_rate(keep[left] * (1.0 - weight) + keep[left + 1] * weight, lengths)


@lru_cache(maxsize=2**14)
def _remembered_threshold(rate: Rate, length: int) -> int:
    """The rates of this module cannot change: each threshold is worked out once."""
    return int(rate.thresholds(length))


RATES: dict[str, type[Rate]] = {rate.kind: rate for rate in (FixedRate, LengthRate, BinnedRate, InterpolatedRate)}


def rate_from_dict(values: Mapping[str, Any]) -> Rate:
    """Rebuild a rate from `Rate.to_dict`.

    >>> rate_from_dict({"kind": "length", "p_min": 0.9, "k": 23})
    LengthRate(p_min=0.9, k=23, p_max=1.0)
    """
    return build("rate", RATES, values)


def build(what: str, kinds: Mapping[str, type[Any]], values: Mapping[str, Any]) -> Any:
    """Build the dataclass that ``values["kind"]`` names out of the other values."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a {what} must be a dictionary with its kind, got {values!r}")
    given = dict(values)
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"the kind of a {what} must be one of {', '.join(sorted(kinds))}, got {kind!r}")
    known = {field.name for field in fields(kinds[kind])}
    for name in given:
        if name not in known:
            raise ValueError(f"a {what} of kind {kind!r} takes {', '.join(sorted(known)) or 'nothing'}, got {name!r}")
    try:
        return kinds[kind](**given)
    except TypeError:
        raise ValueError(f"a {what} of kind {kind!r} needs {', '.join(sorted(known))}, got {given}") from None
