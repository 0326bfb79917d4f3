"""Plan without a model: the radius that votes certify, the votes that a radius needs; noise from a short text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil, log
from typing import Any

import numpy as np

from adaptdel.advice import FEW_KEPT, few_kept
from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_alpha, check_int
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, NoNoise
from adaptdel.core.radius import certified_radius, check_noise, table, to_probability
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.core.threat import Threat
from adaptdel.settings import CERTIFICATION, adaptdel_rate, default_noise, default_rate

_KINDS: dict[str, tuple[Callable[..., Noise], str, str]] = {  # how to build a noise, an example, and what it is
    "adaptdel": (lambda **a: Deletion(LengthRate(**a)), "p_min=0.9,k=23", "psi = max(p_min, p_max * (1 - k/n))"),
    "cert-ed": (lambda **a: Deletion(FixedRate(**a)), "p=0.9", "a fixed rate"),
    "ranmask": (Masking, "fraction=0.9", "RanMASK (--ops sub)"),
    "nosmooth": (NoNoise, "", "no noise"),
}
EXAMPLES = "\n".join(
    f"{name}:{example}".rstrip(":").ljust(28) + meaning for name, (_, example, meaning) in _KINDS.items()
)


def noise_from_spec(text: str) -> Noise:
    """Read a noise such as "adaptdel:p_min=0.9,k=23".

    >>> noise_from_spec("adaptdel:p_min=0.9,k=23")
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    name, _, settings = text.strip().partition(":")
    if name.lower() not in _KINDS:
        near = get_close_matches(name, _KINDS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"rate must begin with one of {', '.join(_KINDS)}, got {text!r}{hint}")
    build, example, _ = _KINDS[name.lower()]
    wrong = f"rate must be such as {name}:{example}, got {text!r}"
    try:
        values = {key.strip(): float(value) for key, value in (part.split("=") for part in settings.split(",") if part)}
    except ValueError:
        raise ValueError(wrong) from None
    try:
        return build(**values)
    except TypeError:  # other names than these
        raise ValueError(wrong) from None


MOST_RADII = 500  # of a longer list, about FEW_RADII are listed
FEW_RADII = 50
MOST_VOTES = 2**50  # the largest radius is that of so many unanimous votes; no votes prove a probability of 1


@dataclass(frozen=True)
class RadiusPlan:
    """Radii and votes for inputs of a given length, for two classes.

    Attributes:
        length: the number of tokens.
        noise: the noise.
        threat: the operations of the attacker.
        alpha: the error level of the confidence bounds.
        trials: the number of votes.
        successes: the number of votes for the answer, or None.
        lower: the lower confidence bound on the probability of the answer.
        radius: the certified radius.
        largest: the largest radius that any number of votes can certify.
        unbounded: whether the search for ``largest`` reached its limit: the true value is larger, or infinite.
        unanimous: the number of unanimous votes that certify ``largest``.
        radii: 0, 1, ..., largest; evenly spaced radii if these are too many.
        least_probability: p*(r) for each radius in ``radii``.
        least_votes: the fewest of ``trials`` votes that certify each radius; −1 if ``trials`` votes are too few.
    """

    length: int
    noise: Noise
    threat: Threat
    alpha: float
    trials: int
    successes: int | None
    lower: float | None
    radius: int | None
    largest: int
    unbounded: bool
    unanimous: int
    radii: tuple[int, ...]
    least_probability: tuple[float, ...]
    least_votes: tuple[int, ...]

    @property
    def rate(self) -> float:
        """The share of tokens that the noise removes at this length."""
        return self.noise.share_removed(self.length)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        votes = None
        if self.successes is not None:
            votes = {"successes": self.successes, "lower": self.lower, "radius": self.radius}
        rows = zip(self.radii, self.least_probability, self.least_votes, strict=True)
        return {
            "length": self.length,
            "noise": self.noise.to_dict(),
            "ops": list(self.threat.ops),
            "alpha": self.alpha,
            "rate": self.rate,
            "trials": self.trials,
            "votes": votes,
            "largest_radius": self.largest,
            "unbounded": self.unbounded,
            "unanimous_votes": self.unanimous,
            "radii": [{"radius": r, "least_probability": p, "least_votes": None if v < 0 else v} for r, p, v in rows],
        }


def plan(
    length: int,
    noise: Noise,
    *,
    ops: str | Iterable[str] = CERTIFICATION.ops,
    successes: int | None = None,
    trials: int = CERTIFICATION.n_estimate,
    alpha: float = CERTIFICATION.alpha,
) -> RadiusPlan:
    """The radius that votes certify at a length, and the votes that each radius needs.

    >>> from adaptdel import FixedRate
    >>> result = plan(100, Deletion(FixedRate(0.9)), ops=["ins"], successes=3960)
    >>> result.radius, result.largest, result.unanimous
    (6, 6, 50)
    """
    threat = Threat(ops)
    check_noise(noise, threat)
    alpha = check_alpha(alpha)
    trials = check_int("trials", trials, least=1)
    limits = table(check_int("length", length, most=LARGEST_LENGTH), noise, threat)
    low = radius = None
    if successes is not None:
        low = clopper_pearson(check_int("successes", successes), trials, alpha)[0]
        radius = certified_radius(low, length=length, noise=noise, ops=threat.ops)
    largest = limits.radius(1 - clopper_pearson(MOST_VOTES, MOST_VOTES, alpha)[0])
    if largest <= MOST_RADII:
        radii = tuple(range(largest + 1))
        tolerances = limits.filled()[:largest]
    else:
        radii = tuple(dict.fromkeys(round(largest * i / FEW_RADII) for i in range(FEW_RADII + 1)))
        tolerances = np.array([limits.tolerance(r) for r in radii[1:]])
    least = np.array([float(np.nextafter(0.5, 1)), *(to_probability(float(q)) for q in tolerances)])
    return RadiusPlan(
        length=length,
        noise=noise,
        threat=threat,
        alpha=alpha,
        trials=trials,
        successes=successes,
        lower=low,
        radius=radius,
        largest=largest,
        unbounded=threat.largest(length) is None and largest >= threat.search_limit(length),
        unanimous=_fewest_unanimous(float(least[-1]), alpha),
        radii=radii,
        least_probability=tuple(float(p) for p in least),
        least_votes=tuple(int(v) for v in _fewest_votes(least, trials, alpha)),
    )


CANDIDATE_RATES = (0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class LengthPlan:
    """What a noise leaves of texts of some lengths, and what it can certify.

    Attributes:
        name: a name for the noise.
        noise: the noise.
        lengths: the lower quartile, the median and the upper quartile of the lengths.
        kept: the tokens that are kept on average at these lengths.
        radii: the radii that unanimous votes certify at these lengths, for two classes.
        few: the share of texts of which fewer than `adaptdel.advice.FEW_KEPT` tokens are kept on average.
        warning: a sentence if that is so for a text of median length.
    """

    name: str
    noise: Noise
    lengths: tuple[int, int, int]
    kept: tuple[float, ...]
    radii: tuple[int, ...]
    few: float
    warning: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {field: list(getattr(self, field)) for field in ("lengths", "kept", "radii")}
        return {"name": self.name, "noise": self.noise.to_dict(), **values, "few": self.few, "warning": self.warning}


def plan_lengths(
    lengths: Sequence[int],
    noises: Mapping[str, Noise] | None = None,
    *,
    ops: str | Iterable[str] | None = None,
    trials: int = CERTIFICATION.n_estimate,
    alpha: float = CERTIFICATION.alpha,
) -> list[LengthPlan]:
    """What candidate noises leave of texts of given lengths, and the radii that they can certify, before training.

    Args:
        lengths: the number of tokens of every text.
        noises: the candidates by name; None for AdaptDel at a few rates and at the default rate.
        ops: the operations of the attacker; None for all that a noise certifies.
        trials: the number of votes.
        alpha: the error level.

    >>> [(plan.name, plan.kept[1], plan.radii[1]) for plan in plan_lengths([15] * 9)][1:3]
    [('adaptdel 0.7', 4.5, 1), ('adaptdel 0.73 (default)', 4.0, 2)]
    """
    if noises is None:
        default = default_rate(lengths)
        noises = {
            f"adaptdel {rate:g} (default)" if rate == default else f"adaptdel {rate:g}": (
                default_noise(lengths) if rate == default else Deletion(adaptdel_rate(lengths, rate))
            )
            for rate in sorted({*CANDIDATE_RATES, default})
        }
    places = [int(n) for n in np.quantile(np.asarray(lengths), [0.25, 0.5, 0.75], method="nearest")]
    plans = []
    for name, noise in noises.items():
        kept = {n: n * (1 - noise.share_removed(n)) for n in {*lengths, *places}}
        allowed = noise.certified_ops if ops is None else ops
        radii = [plan(n, noise, ops=allowed, successes=trials, trials=trials, alpha=alpha).radius or 0 for n in places]
        few = sum(kept[n] < FEW_KEPT - 1e-6 for n in lengths) / len(lengths)
        rounded = tuple(round(kept[n], 2) for n in places)
        shown = (places[0], places[1], places[2])
        plans.append(LengthPlan(name, noise, shown, rounded, tuple(radii), few, few_kept(noise, lengths)))
    return plans


def _fewest_votes(least: FloatArray, trials: int, alpha: float) -> IntArray:
    """The fewest of ``trials`` votes whose lower confidence bound reaches each probability; −1 if none do."""
    low, high = np.zeros(least.shape, dtype=np.int64), np.full(least.shape, trials + 1)
    while (low < high).any():
        middle = (low + high) // 2
        reached = np.asarray(clopper_pearson(np.minimum(middle, trials), trials, alpha)[0]) >= least
        high = np.where(reached | (middle > trials), middle, high)
        low = np.where(reached | (middle > trials), low, middle + 1)
    return np.where(low > trials, -1, low)


def _fewest_unanimous(least: float, alpha: float) -> int:
    """The fewest unanimous votes whose lower confidence bound, alpha ** (1 / votes), reaches a probability."""
    votes = max(1, ceil(log(alpha) / log(least)) - 2)
    while clopper_pearson(votes, votes, alpha)[0] < least:
        votes += 1
    return votes
