"""The certified radius: the largest number of edits that cannot change the smoothed classifier's answer.

Two classes, tight bound: for a given length, noise and set of operations the certificate is one falling table, the
largest probability q of the other class that radius r tolerates. A radius is looked up in it. Everything else (many
classes, the paper's bound) is decided by comparing the bounds at every neighbour that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from adaptdel.core.bounds import BOUNDS, lower, upper
from adaptdel.core.checks import (
    LARGEST_LENGTH,
    BoolArray,
    FloatArray,
    IntArray,
    check_choice,
    check_int,
    check_ints,
    check_probabilities,
    check_probability,
)
from adaptdel.core.noise import Noise
from adaptdel.core.radius_table import largest, most_edits, table, to_probability
from adaptdel.core.threat import Threat

Pairs = Iterator[tuple[IntArray, IntArray]]


def check_noise(noise: object, threat: Threat) -> Noise:
    """Return the noise if it can certify the threat."""
    if not isinstance(noise, Noise):
        raise ValueError(f"noise must be Deletion(rate), Masking(fraction) or NoNoise(), got {noise!r}")
    if not noise.certifies:
        raise ValueError(f"noise must have a rate for every length to certify, got {noise!r}, which is for training")
    if not set(threat.ops) <= set(noise.certified_ops):
        raise ValueError(
            f"ops must be {list(noise.certified_ops)} under {type(noise).__name__}, which certifies "
            f"{'substitutions only' if noise.certified_ops == ('sub',) else 'nothing else'}, got {list(threat.ops)}"
        )
    return noise


def pair_test(p1: float, p2: float, noise: Noise, length: int, bound: str) -> Callable[[IntArray, IntArray], BoolArray]:
    """A test of neighbours (n', N): whether a class of probability p1 surely stays ahead of one of probability p2."""

    def holds(other: IntArray, common: IntArray) -> BoolArray:
        overlap = noise.overlap(length, other, common)
        return lower(np.full(other.shape, p1), overlap, bound) > upper(np.full(other.shape, p2), overlap, bound)

    return holds


def threshold_test(
    p1: float, threshold: float, noise: Noise, length: int, bound: str
) -> Callable[[IntArray, IntArray], BoolArray]:
    """A test of neighbours: whether the class of probability p1 surely stays on its side of the threshold."""

    def holds(other: IntArray, common: IntArray) -> BoolArray:
        overlap = noise.overlap(length, other, common)
        p = np.full(other.shape, p1)
        if p1 > threshold:
            return lower(p, overlap, bound) > threshold
        return upper(p, overlap, bound) <= threshold

    return holds


def _search(holds: Callable[[IntArray, IntArray], BoolArray], ball: Callable[[int], Pairs], low: int, high: int) -> int:
    return largest(lambda radius: all(bool(holds(*pair).all()) for pair in ball(radius)), low, high)


def _one_radius(
    p1: float, p2: float | None, length: int, noise: Noise, threat: Threat, bound: str, threshold: float | None
) -> int:
    """The radius of one input by comparing bounds, for what is not a look-up in one table."""
    high = most_edits(threat, length)
    rival = min(1 - p1 if p2 is None else p2, float(np.nextafter(1 - p1, 2)))
    if threshold is None and p1 <= rival:
        return -1
    if bound == "paper":
        test = (
            pair_test(p1, min(rival, 1.0), noise, length, bound)
            if threshold is None
            else threshold_test(p1, threshold, noise, length, bound)
        )
        if not test(np.array([length]), np.array([length])).all():
            return -1
        return _search(test, lambda radius: threat.whole_ball(length, radius), 0, high)
    # Many classes. K is concave, so two classes of (1 − p1 + p2) / 2 are no better off; of p2, no worse.
    limits = table(length, noise, threat)
    low = limits.radius(float(np.nextafter((1 - p1 + rival) / 2, 1)))
    high = limits.radius(rival)
    return _search(
        pair_test(p1, rival, noise, length, bound), lambda radius: threat.ball(length, radius), low, max(low, high)
    )


@overload
def certified_radius(
    p1: float,
    p2: float | None = ...,
    *,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] = ...,
    bound: str = ...,
    threshold: float | None = ...,
) -> int: ...
@overload
def certified_radius(
    p1: npt.ArrayLike,
    p2: npt.ArrayLike | None = ...,
    *,
    length: npt.ArrayLike,
    noise: Noise,
    ops: str | Iterable[str] = ...,
    bound: str = ...,
    threshold: float | None = ...,
) -> int | IntArray: ...
def certified_radius(
    p1: npt.ArrayLike,
    p2: npt.ArrayLike | None = None,
    *,
    length: npt.ArrayLike,
    noise: Noise,
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
    threshold: float | None = None,
) -> int | IntArray:
    """The largest number of edits that cannot change the smoothed classifier's answer.

    Args:
        p1: (a lower bound on) the probability of the answered class. Arrays of p1, p2 and length are certified
            together, which is much faster than one by one.
        p2: (an upper bound on) the probability of every other class; 1 − p1 if left out.
        length: the number of tokens of the input.
        noise: `Deletion`, `Masking` (substitutions only) or `NoNoise`.
        ops: what the attacker may do: "edit", or some of "del", "ins", "sub".
        bound: "tight", or "paper" to reproduce published figures.
        threshold: for two classes, a decision threshold η: class 1 is answered iff its probability exceeds η. p1 is
            then the probability of class 1, whatever the answer: a lower bound on it if above η, else an upper bound.

    Returns:
        The radius; −1 if not even the unedited input is settled. A radius past max(65536, 4 · length), which only
        degenerate settings such as ψ = 1 or η = 1 reach, is not looked for; without insertions the radius is at most
        the length.

    >>> from adaptdel import Deletion, FixedRate
    >>> certified_radius(0.99, length=100, noise=Deletion(FixedRate(0.9)), ops=["ins"])
    6
    >>> certified_radius([0.99, 0.9, 0.4], length=[100, 50, 50], noise=Deletion(FixedRate(0.9)), ops=["del"])
    array([37, 15, -1])
    """
    threat = Threat(ops)
    check_noise(noise, threat)
    check_choice("bound", bound, BOUNDS)
    if threshold is not None:
        threshold = check_probability("threshold", threshold)
        if p2 is not None:
            raise ValueError("p2 must be left out when a threshold is given, which is for two classes")
    first = check_probabilities("p1", p1)
    second = None if p2 is None else check_probabilities("p2", p2)
    sizes = check_ints("length", length, most=LARGEST_LENGTH)
    if noise.masks_tokens:
        bound = "tight"  # the paper has no other certificate for it
    try:
        shape = np.broadcast_shapes(first.shape, sizes.shape, () if second is None else second.shape)
    except ValueError:
        raise ValueError(
            f"p1, p2 and length must have shapes that go together, got {first.shape}, "
            f"{None if second is None else second.shape} and {sizes.shape}"
        ) from None
    flat_p1 = np.broadcast_to(first, shape).ravel()
    flat_p2 = None if second is None else np.broadcast_to(second, shape).ravel()
    flat_sizes = np.broadcast_to(sizes, shape).ravel()
    if threshold == 1:  # class 1 is never answered, whatever the attacker does
        radii = np.array([most_edits(threat, int(size)) for size in flat_sizes], dtype=np.int64)
    elif bound == "tight" and flat_p2 is None:
        radii = _look_up(flat_p1, flat_sizes, noise, threat, threshold)
    else:
        radii = _one_by_one(flat_p1, flat_p2, flat_sizes, noise, threat, bound, threshold)
    return int(radii[0]) if shape == () else radii.reshape(shape)


def _look_up(p1: FloatArray, sizes: IntArray, noise: Noise, threat: Threat, threshold: float | None) -> IntArray:
    """Two classes, tight bound: one table a length."""
    level = 0.5 if threshold is None else threshold
    above = p1 > level
    radii = np.where(above, 0, -1) if threshold is None else np.zeros(p1.shape, dtype=np.int64)
    sides = [(above, level, 1 - p1)]
    if threshold is not None:
        sides.append((~above, 1 - level, p1))
    for side, side_level, q in sides:
        order = np.flatnonzero(side)
        order = order[np.argsort(sizes[order], kind="stable")]
        values, starts = np.unique(sizes[order], return_index=True)
        for value, group in zip(values, np.split(order, starts[1:]), strict=False):
            radii[group] = table(int(value), noise, threat, side_level).radii(q[group])
    return radii


def _one_by_one(
    p1: FloatArray,
    p2: FloatArray | None,
    sizes: IntArray,
    noise: Noise,
    threat: Threat,
    bound: str,
    threshold: float | None,
) -> IntArray:
    rival = np.full(p1.shape, -1.0) if p2 is None else p2
    rows, where = np.unique(np.stack([p1, rival, sizes.astype(np.float64)], axis=1), axis=0, return_inverse=True)
    found = [
        _one_radius(float(a), None if p2 is None else float(b), int(n), noise, threat, bound, threshold)
        for a, b, n in rows
    ]
    return np.array(found, dtype=np.int64)[where.ravel()]


def certified_top_k(
    p: float,
    others: Sequence[float],
    *,
    k: int,
    length: int,
    noise: Noise,
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
) -> int:
    """The largest number of edits that cannot push a class out of the k most probable ones.

    Args:
        p: (a lower bound on) the probability of the class.
        others: (upper bounds on) the probabilities of all other classes.
        k: how many classes are answered.
        length: the number of tokens of the input.
        noise: the noise that smooths the classifier.
        ops: what the attacker may do.
        bound: "tight" or "paper".

    Returns:
        The radius; −1 if the class is not surely among the first k as it is.

    >>> from adaptdel import Deletion, FixedRate
    >>> noise = Deletion(FixedRate(0.9))
    >>> [certified_top_k(0.5, [0.3, 0.2], k=k, length=50, noise=noise) for k in (1, 2)]
    [0, 1]
    """
    rivals = np.sort(np.atleast_1d(check_probabilities("others", others)))[::-1]
    k = check_int("k", k, least=1, most=max(1, len(rivals)))
    if not len(rivals):
        raise ValueError("others must hold the probability of at least one other class, got none")
    first = check_probability("p", p)
    length = check_int("length", length, most=LARGEST_LENGTH)
    # Together the k strongest rivals have at most 1 − p.
    rival = min(float(rivals[k - 1]), float(np.nextafter((1 - first) / k, 2)))
    return certified_radius(first, min(rival, 1.0), length=length, noise=noise, ops=ops, bound=bound)


def least_probability(radius: int, *, length: int, noise: Noise, ops: str | Iterable[str] = "edit") -> float:
    """The least probability p*(r) of the answered class, of two, that certifies a radius; infinite if none does.

    >>> from adaptdel import Deletion, FixedRate
    >>> noise = Deletion(FixedRate(0.9))
    >>> round(least_probability(6, length=100, noise=noise, ops=["ins"]), 6)
    0.940838
    >>> least_probability(7, length=100, noise=noise, ops=["ins"])
    inf
    """
    radius = check_int("radius", radius)
    length = check_int("length", length, most=LARGEST_LENGTH)
    threat = Threat(ops)
    limits = table(length, check_noise(noise, threat), threat)
    cap = threat.largest(length)
    radius = radius if cap is None else min(radius, cap)
    return to_probability(limits.tolerance(radius)) if radius else float(np.nextafter(0.5, 1))


def largest_radius_probability(length: int, noise: Noise, threat: Threat, threshold: float | None = None) -> float:
    """The least probability of the answered class that certifies the largest radius there is."""
    limits = table(length, check_noise(noise, threat), threat, 0.5 if threshold is None else threshold)
    reach = limits.radius(0.0)
    return to_probability(limits.tolerance(reach)) if reach else float(np.nextafter(0.5, 1))
