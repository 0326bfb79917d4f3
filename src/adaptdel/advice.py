"""What a noise can certify, computed without a model: plans of votes and radii, and advice on rates and classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil, log
from statistics import median
from typing import Any

import numpy as np

from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_alpha, check_int
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, NoNoise, noise_from_dict
from adaptdel.core.radius import certified_radius, check_noise, table, to_probability
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.core.threat import Threat
from adaptdel.settings import CERTIFICATION, LEAST_RATE, adaptdel_rate, default_noise, default_rate

FEW_KEPT = 2  # tokens: if fewer are kept of a text of median length, a warning says so
SHORT = 15  # words: texts of at most this median length are told what can be certified
MOST_RADII = 500  # of a longer list, about FEW_RADII are listed
FEW_RADII = 50
MOST_VOTES = 2**50  # the largest radius is that of so many unanimous votes; no votes prove a probability of 1
CANDIDATE_RATES = (0.6, 0.7, 0.8, 0.9, 0.95)  # that `plan_lengths` compares


def reachable_radius(
    noise: Noise, length: int, ops: str | Iterable[str] | None = None, alpha: float = CERTIFICATION.alpha
) -> int:
    """The radius that unanimous votes certify at a length, with the default votes, for two classes.

    >>> [reachable_radius(default_noise([length]), length) for length in (5, 15, 230)]
    [1, 2, 6]
    """
    p1 = clopper_pearson(CERTIFICATION.n_estimate, CERTIFICATION.n_estimate, alpha)[0]
    return certified_radius(p1, length=length, noise=noise, ops=noise.certified_ops if ops is None else ops)


def lower_rate(noise: Noise, lengths: Iterable[int]) -> float | None:
    """A lower rate with which an edit of a text of median length can be certified; None if there is none.

    It is the default rate, or else the one that keeps twice as many tokens, or the smallest default rate.

    >>> [lower_rate(default_noise([length]), [length]) for length in (230, 15, 5)]
    [0.8, 0.6, None]
    """
    counted = list(lengths)
    if not counted or not noise.changes_inputs or not isinstance(noise, (Deletion, Masking)):
        return None
    middle = round(median(counted))
    rate = noise.share_removed(middle)
    if isinstance(noise, Masking):
        rate = noise.fraction
    elif isinstance(noise, Deletion) and isinstance(noise.rate, LengthRate):
        rate = min(rate, noise.rate.p_min)  # the rate that training takes, which is exceeded at large lengths
    usual = default_rate(counted)
    lower = round(usual if usual < rate - 0.005 else max(LEAST_RATE, 1 - 2 * (1 - rate)), 2)
    changed = Masking(lower) if isinstance(noise, Masking) else Deletion(adaptdel_rate(counted, lower))
    return lower if lower < rate - 0.005 and reachable_radius(changed, middle) >= 1 else None


def few_kept(noise: Noise, lengths: Iterable[int], *, short_texts: bool = True) -> str | None:
    """A sentence if the noise leaves fewer than two tokens of a text of median length, on average; otherwise None.

    Of texts of fewer than 5 tokens no rate that certifies an edit keeps two; ``short_texts`` is whether to say so.
    """
    counted = list(lengths)
    if not counted or not noise.changes_inputs or not isinstance(noise, (Deletion, Masking)):
        return None
    middle = round(median(counted))
    kept = middle * (1 - noise.share_removed(middle))
    if kept >= FEW_KEPT - 1e-6:
        return None
    lower = lower_rate(noise, counted)
    if middle * (1 - LEAST_RATE) < FEW_KEPT or lower is None:
        if not short_texts:
            return None
        advice = "such short texts need a finer unit, such as char, or exact certificates (--method exact)"
    else:
        advice = f"choose a lower rate, such as {lower:g}"
    start = f"the noise keeps {kept:.2g} of the {middle} tokens of a typical text"
    return f"{start}: the answer hardly depends on the text; {advice}"


def is_short(unit: str, lengths: Sequence[int]) -> bool:
    """Whether `short_texts` has something to say: at most `SHORT` words in a text of median length."""
    return unit == "word" and 0 < median(lengths) <= SHORT


def short_texts(lengths: Sequence[int], exact: Mapping[str, Any] | None) -> str:
    """A sentence about what can be certified of short texts.

    Args:
        lengths: the numbers of words.
        exact: what an additive classifier reached on such texts, as in its ``front_``; None if none was trained.

    >>> print(short_texts([9, 10, 12], {"accuracy": 0.91, "mean_radius": 1.84}))
    short texts (median: 10 words): smoothing certifies at most 1 edit of such a text at the default rate, 0.6; exact \
certificates (method exact) reach a mean radius of 1.84 at 91.0% accuracy on held-out ones of these texts
    """
    middle = round(median(lengths))
    radius = reachable_radius(default_noise(lengths), middle)
    sentence = (
        f"short texts (median: {middle} words): smoothing certifies at most {radius} edit{'' if radius == 1 else 's'} "
        f"of such a text at the default rate, {default_rate(lengths):g}; exact certificates (method exact) "
    )
    if exact is None:
        return sentence + "need labels, and at least 10 examples of each class, to say what they reach"
    measured = f"a mean radius of {exact['mean_radius']:.2f} at {100 * exact['accuracy']:.1f}% accuracy"
    return f"{sentence}reach {measured} on held-out ones of these texts"


def unordered(unit: str, ngram: int) -> str | None:
    """A sentence if a bag of tokens of this unit has lost what is in their order; otherwise None."""
    if unit not in ("char", "byte") or ngram > 1:
        return None
    noun = {"char": "characters", "byte": "bytes"}[unit]
    return (
        f"the model reads a bag of single {noun}, without their order: data in which it matters, such as DNA, need "
        "another base classifier, or --set ngram=5"
    )


def what_may_help(noise: Noise | None, lengths: Iterable[int], class_weight: str | None) -> str:
    """What may help a model that misses classes.

    >>> print(what_may_help(default_noise([230]), [230], None))
    train at a lower rate, such as 0.8, which keeps more of each text, with --set class_weight=balanced, or on more \
examples of the classes that it misses
    >>> print(what_may_help(default_noise([5]), [5], "balanced"))
    train on more examples of the classes that it misses
    """
    lower = None if noise is None else lower_rate(noise, lengths)
    parts = [] if lower is None else [f"at a lower rate, such as {lower:g}, which keeps more of each text"]
    parts += [] if class_weight is not None else ["with --set class_weight=balanced"]
    return f"train {', '.join([*parts, ''])}{'or ' if parts else ''}on more examples of the classes that it misses"


def what_may_help_run(manifest: Mapping[str, Any]) -> str:
    """The same for the model of a run; of a model without a record of its training, less is known."""
    training = (manifest.get("model") or {}).get("training") or {}
    quartiles = (training.get("data") or {}).get("length_quartiles")
    noise = None if manifest.get("noise") is None else noise_from_dict(manifest["noise"])
    class_weight = (training.get("settings") or {}).get("class_weight", "unknown")
    return what_may_help(noise, [round(quartiles[2])] if quartiles else [], class_weight)


# Plans


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


@dataclass(frozen=True)
class RadiusPlan:
    """Radii and votes for inputs of a given length, for two classes."""

    length: int
    noise: Noise
    threat: Threat
    alpha: float
    trials: int  # votes
    successes: int | None  # votes for the answer
    lower: float | None  # the lower confidence bound on the probability of the answer
    radius: int | None  # that these votes certify
    largest: int  # the largest radius that any number of votes can certify
    unbounded: bool  # whether the search for it reached its limit: the true value is larger, or infinite
    unanimous: int  # the number of unanimous votes that certify it
    radii: tuple[int, ...]  # 0, 1, ..., largest; evenly spaced ones if these are too many
    least_probability: tuple[float, ...]  # p*(r) for each of these radii
    least_votes: tuple[int, ...]  # the fewest of `trials` votes that certify each; −1 if they are too few

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
    radii = (
        range(largest + 1) if largest <= MOST_RADII else [round(largest * i / FEW_RADII) for i in range(FEW_RADII + 1)]
    )
    least = np.array([float(np.nextafter(0.5, 1)), *(to_probability(limits.tolerance(r)) for r in radii[1:])])
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
        radii=tuple(radii),
        least_probability=tuple(float(p) for p in least),
        least_votes=tuple(int(v) for v in _fewest_votes(least, trials, alpha)),
    )


@dataclass(frozen=True)
class LengthPlan:
    """What a noise leaves of texts of some lengths, and what it can certify."""

    name: str  # a name for the noise
    noise: Noise  # the noise
    lengths: tuple[int, ...]  # the lower quartile, the median and the upper quartile of the lengths
    kept: tuple[float, ...]  # the tokens that are kept on average at these lengths
    radii: tuple[int, ...]  # the radii that unanimous votes certify at these lengths, for two classes
    few: float  # the share of texts of which fewer than `adaptdel.advice.FEW_KEPT` tokens are kept on average
    warning: str | None  # a sentence if that is so for a text of median length

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {field: list(getattr(self, field)) for field in ("lengths", "kept", "radii")}
        return {"name": self.name, "noise": self.noise.to_dict(), **values, "few": self.few, "warning": self.warning}


def plan_lengths(
    lengths: Sequence[int],
    noises: Mapping[str, Noise] | None = None,
    *,
    ops: str | Iterable[str] | None = None,
    alpha: float = CERTIFICATION.alpha,
) -> list[LengthPlan]:
    """What candidate noises leave of texts of given lengths, and the radii that they can certify, before training.

    Args:
        lengths: the number of tokens of every text.
        noises: the candidates by name; None for AdaptDel at a few rates and at the default rate.
        ops: the operations of the attacker; None for all that a noise certifies.
        alpha: the error level.

    >>> [(plan.name, plan.kept[1], plan.radii[1]) for plan in plan_lengths([15] * 9)][1:3]
    [('adaptdel 0.7', 4.5, 1), ('adaptdel 0.73 (default)', 4.0, 2)]
    """
    if noises is None:
        default = default_rate(lengths)
        named = {
            rate: f"adaptdel {rate:g}{' (default)' if rate == default else ''}" for rate in (*CANDIDATE_RATES, default)
        }
        noises = {name: Deletion(adaptdel_rate(lengths, rate)) for rate, name in sorted(named.items())}
    places = [int(n) for n in np.quantile(np.asarray(lengths), [0.25, 0.5, 0.75], method="nearest")]
    plans = []
    for name, noise in noises.items():
        kept = {n: n * (1 - noise.share_removed(n)) for n in {*lengths, *places}}
        radii = tuple(max(0, reachable_radius(noise, n, ops, check_alpha(alpha))) for n in places)
        few = sum(kept[n] < FEW_KEPT - 1e-6 for n in lengths) / len(lengths)
        rounded = tuple(round(kept[n], 2) for n in places)
        plans.append(LengthPlan(name, noise, tuple(places), rounded, radii, few, few_kept(noise, lengths)))
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
