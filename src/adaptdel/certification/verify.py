"""Verify certificates from untrusted sources: derive each again from its votes in ball arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isclose, nextafter
from typing import Any

import numpy as np

from adaptdel.certification.certificate import CLAIMS, Certificate, digest
from adaptdel.certification.exact import FORMAT as EXACT_FORMAT
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import EXACT_COPIES, content_key
from adaptdel.core.bounds import OWN_BOUNDS, round_up, within_rival_cap
from adaptdel.core.checks import (
    STEPS,
    TooMuchWork,
    check_int,
    check_names,
    check_probability,
    check_real,
    limited,
)
from adaptdel.core.confidence import exact_shares
from adaptdel.core.rigorous import rigorous_lower_confidence, rigorous_radius
from adaptdel.settings import CERTIFICATION

USUAL_ALPHA = CERTIFICATION.alpha
ROUNDING = 1e-12  # relative difference of numbers that are derived again
NOT_CHECKED = "not checked"


def verify(values: Mapping[str, Any], *, work: int | None = STEPS) -> list[str]:
    """The problems of a certificate's dictionary; an empty list if it is valid.

    The votes have to add up to the planned looks, the digest has to match, the claimed bounds have to be valid
    confidence bounds for the votes, and the claimed radius has to follow from these bounds, both in ball arithmetic.
    Everything that can be derived is derived. It cannot be derived that the votes are those of the model, nor that a
    registered bound is true.

    Args:
        values: as from `Certificate.to_dict`.
        work: the limit on the number of arithmetic steps, about a microsecond each; None for no limit. A certificate
            that needs more, for example because of an absurd length, is not checked, which is reported as a problem.
    """
    if isinstance(values, Mapping) and values.get("format") == EXACT_FORMAT:
        return verify_exact(values)
    try:
        certificate = Certificate.from_dict(values)
        claims = _claims(values)
        wrong = _votes(certificate)
        tokens = certificate.noise.tokens
        if tokens is not None and content_key(tokens).hex() != certificate.input_hash:
            wrong.append("the tokens are not those of the input hash")
        if digest(values) != values["digest"]:
            wrong.append("the digest does not fit: the file was changed after it was written")
        with limited(work):
            return wrong or _derived(certificate, *claims) or stated_otherwise(values["derived"], certificate.derived())
    except TooMuchWork:
        return [too_much(values["length"], work)]
    except ValueError as error:
        return [str(error)]
    except RecursionError:
        return ["values are nested too deeply"]


def verify_exact(values: Mapping[str, Any]) -> list[str]:
    """The problems of an exact certificate's dictionary: all that is derived from its integers is derived again."""
    try:
        derived = ExactCertificate.from_dict(values).to_dict()
    except (ValueError, RecursionError) as error:
        return [str(error) if isinstance(error, ValueError) else "values are nested too deeply"]
    wrong = [f"derived is {values.get('derived')!r:.80}, not {derived['derived']!r:.80}"]
    wrong = [] if values.get("derived") == derived["derived"] else wrong
    return wrong + ([] if values.get("digest") == digest(values) else ["the digest does not fit: the file was changed"])


def too_much(length: int, work: int | None) -> str:
    """The problem of a certificate whose derivation exceeded the limit."""
    return (
        f"{NOT_CHECKED}: to derive it again for {length} tokens takes more than the {work} steps that are allowed: "
        "allow more with --work, or leave it out"
    )


def _claims(values: Mapping[str, Any]) -> tuple[int, float, float, float]:
    """The radius, p1, p2 and alpha that a certificate claims."""
    check_names("a certificate", values, ("derived", "digest"), values)
    claims = check_names("derived", values["derived"], CLAIMS)
    return (
        check_int("radius", claims["radius"], least=-1),
        check_probability("p1", claims["p1"]),
        check_probability("p2", claims["p2"]),
        check_real("alpha", claims["alpha"], accepted="in [0, 1)", least=0.0, most=nextafter(1.0, 0.0)),
    )


def stated_otherwise(stated: Mapping[str, Any], derived: Mapping[str, Any]) -> list[str]:
    """What is stated otherwise than it is derived, up to the rounding of another machine."""
    return [
        f"{name} is {stated[name]!r:.60}, not {value!r:.60}"
        for name, value in derived.items()
        if not is_same(stated[name], value)
    ]


def is_same(stored: Any, derived: Any) -> bool:
    """Whether a value is the one that was derived, up to the rounding of another machine."""
    if isinstance(stored, float) and isinstance(derived, float):
        return stored == derived or isclose(stored, derived, rel_tol=ROUNDING)
    return bool(stored == derived)


def _votes(certificate: Certificate) -> list[str]:
    """Whether the votes selected the claimed label, and are possible under the noise."""
    if certificate.exact is not None:
        return _enumerated(certificate, certificate.exact)
    wrong, selection = [], certificate.selection
    if not any(selection) or certificate.answer != certificate.rule.predicted_class(selection, sum(selection)):
        wrong.append("the selection votes did not choose the label")
    rows = (certificate.selection, *certificate.votes)
    voted = {number for row in rows for number, count in enumerate(row) if count}  # at a threshold of 1 not the label
    if certificate.noise.choices(certificate.length) == 1 and len(voted) > 1:
        wrong.append("the votes must be unanimous: the noise leaves nothing to chance, so that all copies are the same")
    return wrong


def _enumerated(certificate: Certificate, exact: Sequence[Sequence[int]]) -> list[str]:
    """Whether every choice of kept tokens was evaluated, and the label is the most probable class."""
    if certificate.noise.choices(certificate.length) > EXACT_COPIES:
        return [f"an input of {certificate.length} tokens has too many copies to be enumerated under its noise"]
    sizes = certificate.noise.all_choices(certificate.length).sum(axis=1)
    if np.sum(exact, axis=0).tolist() != np.bincount(sizes, minlength=certificate.length + 1).tolist():
        return ["the enumerated copies are not all there are"]
    if certificate.answer != certificate.rule.predicted_class(
        exact_shares(exact, certificate.noise, certificate.length)
    ):
        return ["the label is not the likeliest class of the enumerated copies"]
    return []


def _derived(certificate: Certificate, radius: int, p1: float, p2: float, alpha: float) -> list[str]:
    """Whether the claims follow from the votes."""
    wrong = _bounds(certificate, p1, p2)
    if alpha != certificate.alpha:
        wrong.append(f"alpha is {certificate.alpha!r} by the plan, not {alpha!r}")
    if not wrong and radius >= 0:
        proven = _radius(certificate, p1, p2)
        if proven < radius:
            wrong.append(f"the radius {radius} does not follow from the votes: {proven} does")
    return wrong


def _bounds(certificate: Certificate, p1: float, p2: float) -> list[str]:
    """Whether the claimed bounds are valid for the votes."""
    if certificate.exact is not None:
        low, high = certificate.bounds
        if p1 > low or p2 < high:
            return ["the claimed probabilities do not follow from the enumerated copies"]
        return []
    wrong = [] if _low_holds(certificate, p1) else [f"the lower bound {p1} does not follow from the votes"]
    if not _high_holds(certificate, p1, p2):
        wrong.append(f"the upper bound {p2} does not follow from the votes")
    return wrong


def _low_holds(certificate: Certificate, p1: float) -> bool:
    """Whether p1 is a lower confidence bound on the probability of the label at one of the looks."""
    return any(
        rigorous_lower_confidence(p1, counts[certificate.answer], sum(counts), level)
        for counts, level in _levels(certificate)
    )


def _high_holds(certificate: Certificate, p1: float, p2: float) -> bool:
    """Whether p2 is an upper bound on the strongest rival: by the cap, or by the votes of that rival."""
    if within_rival_cap(p1, p2):
        return True
    other_classes = round_up(1 - Fraction(p2))  # a stronger claim than 1 − p2
    for counts, level in _levels(certificate):
        total = sum(counts)
        rival = max(count for number, count in enumerate(counts) if number != certificate.answer)
        if rigorous_lower_confidence(other_classes, total - rival, total, level):
            return True
    best = nextafter(nextafter(p1, 1.0), 1.0)  # the cap may have been rounded down: a bound next to p1 may prove it
    return within_rival_cap(best, p2) and _low_holds(certificate, best)


def _levels(certificate: Certificate) -> list[tuple[Sequence[int], float]]:
    """The counts of each look that was taken, and the level of each of its bounds."""
    assert certificate.looks is not None
    width = 1 if certificate.is_binary else 2
    return [(counts, alpha / width) for counts, alpha in zip(certificate.votes, certificate.looks.alphas, strict=False)]


def _radius(certificate: Certificate, p1: float, p2: float) -> int:
    """The radius in ball arithmetic, for the claimed bounds; under a registered bound, the derived one."""
    if certificate.bound not in OWN_BOUNDS:
        return certificate.radius
    shape: dict[str, Any] = {
        "length": certificate.length,
        "noise": certificate.noise,
        "ops": certificate.ops,
        "bound": certificate.bound,
    }
    if certificate.threshold is not None:
        p = certificate.rule.threshold_probability(p1, certificate.answer)
        return -1 if p is None else rigorous_radius(p, threshold=certificate.threshold, **shape)
    return rigorous_radius(p1, None if certificate.rests_on_p1 else p2, **shape)
