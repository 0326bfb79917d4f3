"""Check certificates that others made: re-derive each in ball arithmetic from its votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import comb
from typing import Any

import numpy as np

from adaptdel.certificate import Certificate, digest
from adaptdel.checks import check_int, check_probability
from adaptdel.derivation import complement, exact_shares, size_weights, used_k
from adaptdel.rigorous import rigorous_lower_confidence, rigorous_radius
from adaptdel.sampling import EXACT_COPIES, choices


def verify(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with a certificate's dictionary; nothing, if it holds.

    The votes have to add up to the planned looks, the digest has to fit, the claimed bounds have to be valid confidence
    bounds for the votes, and the claimed radius has to follow from these, both in ball arithmetic.
    """
    try:
        certificate = Certificate.from_dict(values)
    except (ValueError, OverflowError) as error:
        return [str(error)]
    claims = values.get("derived", {})
    try:
        radius = check_int("radius", claims["radius"], least=-1)
        p1, p2 = check_probability("p1", claims["p1"]), check_probability("p2", claims["p2"])
    except (KeyError, TypeError, ValueError) as error:
        return [f"the claims cannot be read: {error}"]
    wrong = _votes(certificate)
    if digest(values) != values.get("digest"):
        wrong.append("the digest does not fit: the file was changed after it was written")
    if wrong:
        return wrong
    wrong += _bounds(certificate, p1, p2)
    if claims.get("alpha") != certificate.alpha:
        wrong.append(f"alpha is {certificate.alpha!r} by the plan, not {claims.get('alpha')!r}")
    if not wrong and radius >= 0:
        proven = _radius(certificate, p1, p2)
        if proven < radius:
            wrong.append(f"the radius {radius} does not follow from the votes: {proven} does")
    return wrong


def _votes(certificate: Certificate) -> list[str]:
    """Whether the counts are counts, of the planned numbers of votes, for the label that is claimed."""
    wrong = []
    classes, rows = certificate.classes, certificate.votes
    if classes[certificate.answer] != certificate.label:
        wrong.append("the label is not the answered class")
    if certificate.exact is not None:
        return wrong + _enumerated(certificate, certificate.exact)
    if certificate.looks is None:
        return [*wrong, "there are neither looks nor enumerated copies"]
    sizes = list(certificate.looks.sizes[: len(rows)])
    if not rows or [sum(row) for row in rows] != sizes:
        wrong.append("the votes do not add up to the planned looks")
    if not _chosen(certificate):
        wrong.append("the selection votes did not choose the label")
    if any(b < a for before, after in pairwise(rows) for a, b in zip(before, after, strict=False)):
        wrong.append("the votes fall from one look to the next")
    return wrong


def _chosen(certificate: Certificate) -> bool:
    """Whether the answer is what the selection votes chose; a tie may go either way."""
    counts, answer = certificate.selection, certificate.answer
    if certificate.threshold is not None:
        return sum(counts) > 0 and answer == int(counts[1] > certificate.threshold * sum(counts))
    return sum(counts) > 0 and counts[answer] == max(counts)


def _enumerated(certificate: Certificate, exact: Sequence[Sequence[int]]) -> list[str]:
    """Whether every choice of kept tokens was asked about, and the answer is the likeliest class."""
    wrong = []
    if certificate.looks or choices(certificate.noise, certificate.length) > EXACT_COPIES:
        return ["an input of that length is not enumerated"]
    weights = size_weights(certificate.noise, certificate.length)
    possible = [comb(certificate.length, i) if weight else 0 for i, weight in enumerate(weights)]
    if [sum(row[i] for row in exact) for i in range(certificate.length + 1)] != possible:
        wrong.append("the enumerated copies are not all there are")
    shares = exact_shares(exact, certificate.noise, certificate.length)
    if certificate.threshold is not None:
        likeliest = certificate.answer == int(shares[1] > certificate.threshold)
    else:
        likeliest = shares[certificate.answer] == max(shares)
    return wrong if likeliest else [*wrong, "the label is not the likeliest class of the enumerated copies"]


def _bounds(certificate: Certificate, p1: float, p2: float) -> list[str]:
    """Whether the claimed bounds are valid for the votes."""
    if certificate.exact is not None:
        low, high = certificate.bounds
        return (
            [] if p1 <= low and p2 >= high else ["the claimed probabilities do not follow from the enumerated copies"]
        )
    assert certificate.looks is not None
    k = used_k(certificate.k, len(certificate.classes), certificate.known)
    width = k + 1 if not certificate.two else 1
    low_holds = high_holds = False
    for counts, alpha in zip(certificate.votes, certificate.looks.alphas, strict=False):
        total, level = sum(counts), alpha / width
        low_holds = low_holds or rigorous_lower_confidence(p1, counts[certificate.answer], total, level)
        rivals = sorted((c for number, c in enumerate(counts) if number != certificate.answer), reverse=True)
        rival = rivals[k - 1] if len(rivals) >= k else 0
        rest = float(np.nextafter(1 - p2, 0)) if p2 < 1 else 0.0
        high_holds = high_holds or rest == 0 or rigorous_lower_confidence(rest, total - rival, total, level)
    high_holds = high_holds or p2 >= (1 - p1) / k
    wrong = [] if low_holds else [f"the lower bound {p1} does not follow from the votes"]
    return wrong if high_holds or certificate.two else [*wrong, f"the upper bound {p2} does not follow from the votes"]


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
