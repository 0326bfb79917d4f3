"""The methods of the paper: under which noise each trains, and under which it certifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptdel.checks import check_choice
from adaptdel.noise import Deletion, Masking, Noise, NoNoise, RandomDeletion, RandomLength
from adaptdel.rates import FixedRate, LengthRate

METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+", "freelb")
UNSMOOTHED = ("nosmooth", "freelb")


@dataclass(frozen=True)
class Noises:
    """The noise of training, and that of the smoothed model."""

    training: Noise
    smoothing: Noise


def method_noises(
    method: str,
    rate: float,
    lengths: Sequence[int],
    rates: tuple[float, float] = (0.7, 0.99),
    kept: tuple[float, float] | None = None,
) -> Noises:
    """The noises of a method; k of AdaptDel comes from the training lengths.

    AdaptDel+ trains with a rate drawn from ``rates`` for each copy, or with one that keeps a number of tokens drawn
    from ``kept``. Until it is calibrated it certifies as AdaptDel.

    >>> method_noises("adaptdel", 0.9, [220, 240]).smoothing
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    check_choice("method", method, METHODS)
    if method in UNSMOOTHED:
        return Noises(NoNoise(), NoNoise())
    if method == "ranmask":
        return Noises(Masking(rate), Masking(rate))
    if method == "cert-ed":
        return Noises(Deletion(FixedRate(rate)), Deletion(FixedRate(rate)))
    adaptive = Deletion(LengthRate.from_lengths(lengths, rate))
    if method == "adaptdel":
        return Noises(adaptive, adaptive)
    return Noises(RandomDeletion(*rates) if kept is None else RandomLength(*kept), adaptive)
