"""What a noise can certify, computed without a model: plans of votes and radii, and advice on rates and classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import ceil, log
from statistics import median
from typing import Any

import numpy as np

from adaptdel.core.checks import LARGEST_LENGTH, FloatArray, IntArray, check_alpha, check_int
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, NoNoise
from adaptdel.core.radius import certified_radius, check_noise, table, to_probability
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.core.threat import Threat
from adaptdel.settings import CERTIFICATION, LEAST_RATE, adaptdel_rate, default_noise, default_rate
from adaptdel.tables import plural

FEW_KEPT = 2  # tokens: if fewer are kept of a text of median length, a warning says so
SHORT = 15  # words: texts of at most this median length are told what can be certified
MOST_RADII = 500  # of a longer list, about FEW_RADII are listed
FEW_RADII = 50
MOST_VOTES = 2**50  # the largest radius is that of this many unanimous votes; no votes prove a probability of 1
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


def short_texts(unit: str, lengths: Sequence[int]) -> str | None:
    """A sentence about what can be certified of texts, if a median one has at most `SHORT` words; otherwise None.

    >>> print(short_texts("word", [9, 10, 12]))
    short texts (median: 10 words): smoothing certifies at most 1 edit of such a text at the default rate, 0.6; \
compare the exact certificates of --method exact
    """
    if unit != "word" or not 0 < median(lengths) <= SHORT:
        return None
    middle = round(median(lengths))
    radius = reachable_radius(default_noise(lengths), middle)
    return (
        f"short texts (median: {middle} words): smoothing certifies at most {plural(radius, 'edit')} of such a text at "
        f"the default rate, {default_rate(lengths):g}; compare the exact certificates of --method exact"
    )


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
    """How to improve a model that misses classes.

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


def what_may_help_run(manifest: Any) -> str:
    """The same for the model of a run, from its `Manifest`; without a record of the training, less is known."""
    training = manifest.model.training or {}
    quartiles = (training.get("data") or {}).get("length_quartiles")
    class_weight = (training.get("settings") or {}).get("class_weight", "unknown")
    return what_may_help(manifest.plan.copy_noise, [round(quartiles[2])] if quartiles else [], class_weight)


# Plans


_KINDS: dict[str, tuple[Callable[..., Noise], str, str]] = {  # how to build a noise, an example, and what it is
    "adaptdel": (lambda **a: Deletion(LengthRate(**a)), "p_min=0.9,k=23", "psi = max(p_min, p_max * (1 - k/n))"),
    "cert-ed": (lambda **a: Deletion(FixedRate(**a)), "p=0.9", "a fixed rate"),
    "ranmask": (Masking, "fraction=0.9", "RanMASK (--threat sub)"),
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


def plan(
    length: int,
    noise: Noise,
    *,
    ops: str | Iterable[str] = CERTIFICATION.ops,
    successes: int | None = None,
    trials: int = CERTIFICATION.n_estimate,
    alpha: float = CERTIFICATION.alpha,
) -> dict[str, Any]:
    """The radius that votes certify at a length, and the votes that each radius needs, for two classes.

    ``largest_radius`` is the largest that any number of votes can certify, and ``unbounded`` says whether the search
    for it reached its limit. Of very many ``radii``, evenly spaced ones are listed, each with the least probability of
    the answer and the fewest of the ``trials`` votes that certify it, if they are enough.

    >>> from adaptdel import FixedRate
    >>> result = plan(100, Deletion(FixedRate(0.9)), ops=["ins"], successes=3960)
    >>> result["votes"]["radius"], result["largest_radius"], result["unanimous_votes"]
    (6, 6, 50)
    """
    threat = Threat(ops)
    check_noise(noise, threat)
    alpha = check_alpha(alpha)
    trials = check_int("trials", trials, least=1)
    limits = table(check_int("length", length, most=LARGEST_LENGTH), noise, threat)
    votes = None
    if successes is not None:
        low = clopper_pearson(check_int("successes", successes), trials, alpha)[0]
        radius = certified_radius(low, length=length, noise=noise, ops=threat.ops)
        votes = {"successes": successes, "lower": low, "radius": radius}
    largest = limits.radius(1 - clopper_pearson(MOST_VOTES, MOST_VOTES, alpha)[0])
    radii = (
        range(largest + 1) if largest <= MOST_RADII else [round(largest * i / FEW_RADII) for i in range(FEW_RADII + 1)]
    )
    least = np.array([float(np.nextafter(0.5, 1)), *(to_probability(limits.tolerance(r)) for r in radii[1:])])
    rows = zip(radii, least.tolist(), _fewest_votes(least, trials, alpha).tolist(), strict=True)
    unanimous = max(1, ceil(log(alpha) / log(least[-1])) - 2)  # alpha ** (1 / votes) is their confidence bound
    while clopper_pearson(unanimous, unanimous, alpha)[0] < least[-1]:
        unanimous += 1
    return {
        "length": length,
        "noise": noise.to_dict(),
        "ops": list(threat.ops),
        "alpha": alpha,
        "rate": noise.share_removed(length),
        "trials": trials,
        "votes": votes,
        "largest_radius": largest,
        "unbounded": threat.inserts and largest >= threat.search_limit(length),
        "unanimous_votes": unanimous,
        "radii": [{"radius": r, "least_probability": p, "least_votes": None if v < 0 else v} for r, p, v in rows],
    }


def plan_lengths(
    lengths: Sequence[int],
    noises: Mapping[str, Noise] | None = None,
    *,
    ops: str | Iterable[str] | None = None,
    alpha: float = CERTIFICATION.alpha,
) -> list[dict[str, Any]]:
    """What candidate noises leave of texts of given lengths, and the radii that they can certify, before training.

    For each: the tokens that are kept on average and the radii that unanimous votes certify, for two classes, at the
    quartiles of the lengths; the fraction of texts of which too ``few`` are kept, with a warning if a median one is.
    Without ``noises``, the candidates are AdaptDel's at a few rates and at the default rate.

    >>> [(plan["name"], plan["kept"][1], plan["radii"][1]) for plan in plan_lengths([15] * 9)][1:3]
    [('adaptdel 0.7', 4.5, 1), ('adaptdel 0.73 (default)', 4.0, 2)]
    """
    if noises is None:
        default = default_rate(lengths)
        named = {
            rate: f"adaptdel {rate:g}{' (default)' if rate == default else ''}" for rate in (*CANDIDATE_RATES, default)
        }
        noises = {name: Deletion(adaptdel_rate(lengths, rate)) for rate, name in sorted(named.items())}
    positions = [int(n) for n in np.quantile(np.asarray(lengths), [0.25, 0.5, 0.75], method="nearest")]
    plans = []
    for name, noise in noises.items():
        kept = {n: n * (1 - noise.share_removed(n)) for n in {*lengths, *positions}}
        plans.append({
            "name": name,
            "noise": noise.to_dict(),
            "lengths": positions,
            "kept": [round(kept[n], 2) for n in positions],
            "radii": [max(0, reachable_radius(noise, n, ops, check_alpha(alpha))) for n in positions],
            "few": sum(kept[n] < FEW_KEPT - 1e-6 for n in lengths) / len(lengths),
            "warning": few_kept(noise, lengths),
        })  # fmt: skip
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
