"""Check certificates that others made: re-derive each in ball arithmetic from its votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb, nextafter
from typing import Any

from adaptdel.certification.certificate import CLAIMS, Certificate, digest
from adaptdel.certification.rule import complement, exact_shares, used_k
from adaptdel.certification.sampling import EXACT_COPIES
from adaptdel.core.checks import check_int, check_names, check_probability, check_real
from adaptdel.core.rigorous import rigorous_lower_confidence, rigorous_radius
from adaptdel.core.work_limit import STEPS, TooMuchWork, limited
from adaptdel.settings import CERTIFICATION

USUAL_ALPHA = CERTIFICATION.alpha


def verify(values: Mapping[str, Any], *, work: int | None = STEPS) -> list[str]:
    """What is wrong with a certificate's dictionary; nothing, if it holds.

    The votes have to add up to the planned looks, the digest has to fit, the claimed bounds have to be valid confidence
    bounds for the votes, and the claimed radius has to follow from these, both in ball arithmetic. What can be derived
    is not believed; that the votes are those of the model cannot be derived.

    Args:
        values: as of `Certificate.to_dict`.
        work: how many steps of arithmetic are spent at most, about a microsecond each; None for no limit. A certificate
            that needs more, as one for an absurd length does, counts as not checked, which is wrong as well.
    """
    try:
        certificate = Certificate.from_dict(values)
        claims = _claims(values)
        wrong = _votes(certificate)
        if digest(values) != values["digest"]:
            wrong.append("the digest does not fit: the file was changed after it was written")
        with limited(work):
            return wrong or _derived(certificate, *claims)
    except TooMuchWork:
        return [too_much(values["length"], work)]
    except ValueError as error:
        return [str(error)]
    except RecursionError:
        return ["values are nested too deeply"]


def too_much(length: int, work: int | None) -> str:
    """What to say of a certificate whose derivation was given up."""
    return (
        f"not checked: to derive it again for {length} tokens takes more than the {work} steps that are allowed: "
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


def _votes(certificate: Certificate) -> list[str]:
    """Whether the votes chose the label that is claimed, and are possible under the noise."""
    if certificate.exact is not None:
        return _enumerated(certificate, certificate.exact)
    wrong = []
    if not _chosen(certificate):
        wrong.append("the selection votes did not choose the label")
    rows = (certificate.selection, *certificate.votes)
    voted = {number for row in rows for number, count in enumerate(row) if count}  # at a threshold of 1 not the answer
    if certificate.noise.choices(certificate.length) == 1 and len(voted) > 1:
        wrong.append("the votes must be unanimous: the noise leaves nothing to chance, so that all copies are the same")
    return wrong


def _chosen(certificate: Certificate) -> bool:
    """Whether the answer is what the selection votes chose; a tie may go either way."""
    counts, answer = certificate.selection, certificate.answer
    if certificate.threshold is not None:
        return sum(counts) > 0 and answer == int(counts[1] > certificate.threshold * sum(counts))
    return sum(counts) > 0 and counts[answer] == max(counts)


def _enumerated(certificate: Certificate, exact: Sequence[Sequence[int]]) -> list[str]:
    """Whether every choice of kept tokens was asked about, and the answer is the likeliest class."""
    if certificate.noise.choices(certificate.length) > EXACT_COPIES:
        return [f"an input of {certificate.length} tokens has too many copies to be enumerated under its noise"]
    weights = certificate.noise.choice_weights(certificate.length)
    possible = [comb(certificate.length, i) if weight else 0 for i, weight in enumerate(weights)]
    if [sum(row[i] for row in exact) for i in range(certificate.length + 1)] != possible:
        return ["the enumerated copies are not all there are"]
    shares = exact_shares(exact, certificate.noise, certificate.length)
    if certificate.threshold is not None:
        likeliest = certificate.answer == int(shares[1] > certificate.threshold)
    else:
        likeliest = shares[certificate.answer] == max(shares)
    return [] if likeliest else ["the label is not the likeliest class of the enumerated copies"]


def _derived(certificate: Certificate, radius: int, p1: float, p2: float, alpha: float) -> list[str]:
    """Whether what is claimed follows from the votes."""
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
    k = used_k(certificate.k, len(certificate.classes), certificate.known)
    wrong = [] if _low_holds(certificate, p1, k) else [f"the lower bound {p1} does not follow from the votes"]
    if not _high_holds(certificate, p1, p2, k):
        wrong.append(f"the upper bound {p2} does not follow from the votes")
    return wrong


def _low_holds(certificate: Certificate, p1: float, k: int) -> bool:
    """Whether p1 is a lower confidence bound on the probability of the answer at one of the looks."""
    return any(
        rigorous_lower_confidence(p1, counts[certificate.answer], sum(counts), level)
        for counts, level in _levels(certificate, k)
    )


def _high_holds(certificate: Certificate, p1: float, p2: float, k: int) -> bool:
    """Whether p2 is an upper bound on the k-th most probable rival: by its own votes, or as those k share 1 − p1."""
    if Fraction(p2) * k >= 1 - Fraction(p1):
        return True
    rest = 1 - p2
    if Fraction(rest) < 1 - Fraction(p2):
        rest = nextafter(rest, 2.0)
    for counts, level in _levels(certificate, k):
        total = sum(counts)
        rivals = sorted((c for number, c in enumerate(counts) if number != certificate.answer), reverse=True)
        rival = rivals[k - 1] if len(rivals) >= k else 0
        if rigorous_lower_confidence(rest, total - rival, total, level):
            return True
    best = nextafter(nextafter(p1, 1.0), 1.0)  # 1 − p1 may have been rounded: a bound next to p1 may do
    return Fraction(p2) * k >= 1 - Fraction(best) and _low_holds(certificate, best, k)


def _levels(certificate: Certificate, k: int) -> list[tuple[Sequence[int], float]]:
    """The counts of each look that was taken, and the level of each of its bounds."""
    assert certificate.looks is not None
    width = 1 if certificate.two else k + 1
    return [(counts, alpha / width) for counts, alpha in zip(certificate.votes, certificate.looks.alphas, strict=False)]


def _radius(certificate: Certificate, p1: float, p2: float) -> int:
    """The radius in ball arithmetic, for the claimed bounds."""
    shape: dict[str, Any] = {
        "length": certificate.length,
        "noise": certificate.noise,
        "ops": certificate.ops,
        "bound": certificate.bound,
    }
    if certificate.threshold is not None:
        p = p1 if certificate.answer == 1 else complement(p1)
        if (p > certificate.threshold) != (certificate.answer == 1):
            return -1
        return rigorous_radius(p, threshold=certificate.threshold, **shape)
    two = certificate.two and certificate.exact is None and certificate.k == 1
    return rigorous_radius(p1, None if two else p2, **shape)
