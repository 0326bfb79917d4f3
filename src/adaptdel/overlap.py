"""How two inputs overlap under the noise: all that a bound needs to know about a neighbour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptdel.checks import FloatArray, IntArray

TINY = 1e-290  # a smaller mass has lost its relative precision, or will
LEAST = 5e-324  # what it counts as, unless it is 0: so little that no probability but 0 fits in


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
