"""How two inputs overlap under the noise: all that a bound needs to know about a neighbour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptdel.checks import FloatArray, IntArray

# The relative error of binomial sums is known down to 1e-280 (tests/test_binomial.py), and products of numbers below
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
