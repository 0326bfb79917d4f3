"""Advice that computes before it speaks: what a rate can certify, and what may help a model that misses classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, noise_from_dict
from adaptdel.core.radius import certified_radius
from adaptdel.core.rates import LengthRate
from adaptdel.settings import CERTIFICATION, LEAST_RATE, adaptdel_rate, default_noise, default_rate

FEW_KEPT = 2  # tokens: if fewer are kept of a text of median length, a warning says so
SHORT = 15  # words: texts of at most this median length are told what can be certified


def reachable_radius(noise: Noise, length: int) -> int:
    """The radius that unanimous votes certify at a length, with the default votes, for two classes.

    >>> [reachable_radius(default_noise([length]), length) for length in (5, 15, 230)]
    [1, 2, 6]
    """
    votes = CERTIFICATION.n_estimate
    p1 = clopper_pearson(votes, votes, CERTIFICATION.alpha)[0]
    return certified_radius(p1, length=length, noise=noise, ops=noise.certified_ops)


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
certificates (train --method exact) reach a mean radius of 1.84 at 91.0% accuracy on held-out ones of these texts
    """
    middle = round(median(lengths))
    radius = reachable_radius(default_noise(lengths), middle)
    sentence = (
        f"short texts (median: {middle} words): smoothing certifies at most {radius} edit{'' if radius == 1 else 's'} "
        f"of such a text at the default rate, {default_rate(lengths):g}; exact certificates (train --method exact) "
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
