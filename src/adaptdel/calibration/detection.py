"""Detection under attack: a ROC curve from the votes of certificates, for every threshold that protects a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.calibration.protection import LEAST_SHARE, class_number
from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import FloatArray
from adaptdel.core.confidence import exact_bounds, exact_shares, vote_bounds
from adaptdel.core.radius import lowest_probabilities

POINTS = 60  # of a curve: the highest thresholds, and as many over all of them
SLACK = 2.0**-50  # more than the rounding of shares and of their comparison with a threshold


@dataclass(frozen=True)
class DetectionCurve:
    """Detection under attack: certified detection rates at radii, for thresholds that give false-positive rates.

    Attributes:
        thresholds: η of the protected class, shape (thresholds,), from strict to loose.
        false_positives: the share of inputs of the other class whose vote share exceeds η, shape (thresholds,).
        radii: the numbers of edits, shape (radii,).
        detection: the share of inputs of the protected class whose answer is certified at each radius, shape
            (thresholds, radii).
    """

    thresholds: FloatArray
    false_positives: FloatArray
    radii: npt.NDArray[np.int64]
    detection: FloatArray

    def at(self, max_false_positives: float) -> int:
        """The row of the loosest threshold with at most this rate of false positives; the strictest if none has."""
        return max(0, int(np.searchsorted(self.false_positives, max_false_positives, side="right")) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name).tolist() for name in ("thresholds", "false_positives", "radii", "detection")}


def detection_curve(
    certificates: Sequence[Certificate],
    labels: Sequence[Any],
    protect: Any,
    *,
    radii: Sequence[int] = (0, 1, 2, 5, 10, 20),
    thresholds: Sequence[float] | None = None,
) -> DetectionCurve:
    """A ROC curve under attack: certified detection at each radius against false positives.

    The votes of the certificates are used again for every threshold. A detection is an answer that is chosen by the
    selection votes, or by exact probabilities; the bound comes from the other votes. A false positive is judged by all
    votes, because a selection may have ended early, for another threshold. Every point of the curve holds with the
    confidence of the certificates, for a threshold that was fixed in advance: the curve describes a model, it does not
    choose one.

    Args:
        certificates: of inputs of two classes.
        labels: their true labels.
        protect: the protected class.
        radii: the numbers of edits.
        thresholds: η of the protected class; None for vote shares at which the false positives change, from
            `LEAST_SHARE` on, with all of those that give the fewest false positives.
    """
    columns = [vote_evidence(certificate, class_number(certificate.classes, protect)) for certificate in certificates]
    chosen, lower = [share for share, _, _ in columns], [bound for _, _, bound in columns]
    shares = np.array([share for _, share, _ in columns])
    own = np.array([str(label) == str(protect) for label in labels], dtype=np.bool_)
    if len(own) != len(certificates) or not own.any() or own.all():
        raise ValueError("labels must be one for each certificate, of both classes")
    if thresholds is None:
        values = np.unique(np.append(np.maximum(shares[~own], LEAST_SHARE), 0.5))[::-1]
        # All of the highest shares, where few false positives are told apart, and fewer and fewer of the others.
        ranks = np.append(np.arange(min(POINTS, len(values))), np.geomspace(1, len(values), POINTS).round() - 1)
        thresholds = values[np.unique(ranks.astype(int))].tolist()
    order, places = sorted(thresholds, reverse=True), np.flatnonzero(own).tolist()
    lowest = np.array([_lowest(certificates[place], lower[place], radii) for place in places])
    shown = np.array([chosen[place] for place in places])
    detection = np.array([
        ((shown > threshold)[:, None] & (lowest > threshold + SLACK)).mean(axis=0) for threshold in order
    ])  # fmt: skip
    false_positives = [float((shares[~own] > threshold).mean()) for threshold in order]
    return DetectionCurve(np.array(order), np.array(false_positives), np.array(radii, dtype=np.int64), detection)


def vote_evidence(certificate: Certificate, number: int) -> tuple[float, float, float]:
    """The share of a class in the votes that choose the answer and in all votes, and a bound on its probability."""
    if certificate.exact is not None:
        share = float(exact_shares(certificate.exact, certificate.noise, certificate.length)[number])
        return share, share, exact_bounds(certificate.exact, number, certificate.noise, certificate.length)[0]
    assert certificate.looks is not None
    bound = vote_bounds(certificate.looks, certificate.votes, number)[0]
    selection, votes = certificate.selection, certificate.votes[-1]
    total = sum(selection) + sum(votes)
    return selection[number] / max(sum(selection), 1), (selection[number] + votes[number]) / total, bound


def _lowest(certificate: Certificate, lower: float, radii: Sequence[int]) -> list[float]:
    """The lowest probability of the protected class after edits, for each radius."""
    rule, length = certificate.rule, certificate.length
    increasing = sorted(set(radii))
    values = lowest_probabilities(lower, increasing, length=length, noise=rule.noise, ops=rule.ops, bound=rule.bound)
    by_radius = dict(zip(increasing, values, strict=True))
    return [by_radius[radius] for radius in radii]
