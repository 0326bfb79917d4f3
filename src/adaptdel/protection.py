"""One-sided protection: a decision threshold for one class of two, and detection under attack.

A model that protects "spam" answers "spam" if its probability exceeds a threshold η, which is chosen so that few other
texts get that answer. A certificate then says that an answer "spam" cannot be turned by up to r edits: the probability
has to stay above η instead of 1/2. That is what RS-Del does for malware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from adaptdel.certification.certificate import Certificate
from adaptdel.core.bounds import complement
from adaptdel.core.checks import FloatArray, check_real
from adaptdel.core.confidence import exact_bounds, exact_shares, vote_bounds
from adaptdel.smoothed import SmoothedClassifier

CONFIDENCE = 0.95  # of the bound on the false-positive rate
VOTES = 1000  # for each held-out text
LEAST_THRESHOLD = 0.01  # fewer votes than 1 in 100 are not told apart from none
SLACK = 2.0**-50  # more than the rounding of shares and of their comparison with a threshold


@dataclass(frozen=True)
class Protection:
    """A decision threshold that protects one class, with what is known about its false positives.

    Attributes:
        protect: the protected class.
        max_false_positives: the rate of false positives that was asked for.
        threshold: the model's threshold: class 1 is answered iff its probability exceeds it.
        negatives: held-out texts of the other class.
        false_positives: how many of them get the protected answer at the threshold.
        upper: a bound on the rate of false positives, with a confidence of 95%.
        positives: held-out texts of the protected class.
        detected: how many of them get the protected answer.
    """

    protect: Any
    max_false_positives: float
    threshold: float
    negatives: int
    false_positives: int
    upper: float
    positives: int
    detected: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def is_shown(self) -> bool:
        """Whether the bound on the rate of false positives is as low as was asked for."""
        return self.upper <= self.max_false_positives

    def sentence(self) -> str:
        """What was chosen, and what is known about it."""
        reason = "" if self.is_shown else ", more than was asked for: hold out more texts of the other class"
        return (
            f"protects {self.protect!s}: threshold {self.threshold:.4g}; {self.false_positives} of {self.negatives} "
            f"held-out texts of the other class get that answer (at most {100 * self.upper:.2g}% with a confidence of "
            f"95%{reason}), and {self.detected} of {self.positives} of the class itself"
        )


def allowed_false_positives(negatives: int, max_rate: float) -> int:
    """How many of the held-out negatives may be above the threshold so that the rate is proved with 95% confidence.

    The threshold is an order statistic of their vote shares, so that the rate of a new text above it follows a beta
    distribution. 0 also if not even that proves the rate: 299 negatives are needed for 1%, 2995 for 0.1%.

    >>> [allowed_false_positives(number, 0.01) for number in (100, 300, 2000)]
    [0, 0, 12]
    """
    number = 0
    while number + 1 < negatives and beta.ppf(CONFIDENCE, number + 2, negatives - number - 1) <= max_rate:
        number += 1
    return number


def choose_threshold(
    shares: npt.ArrayLike, is_protected: npt.ArrayLike, *, protect: Any, number: int, max_false_positives: float
) -> Protection:
    """The lowest threshold whose rate of false positives is proved with 95% confidence, or nearest to that.

    Args:
        shares: the share of votes for the protected class of every held-out text, shape (texts,).
        is_protected: whether each text is of the protected class.
        protect: the protected class.
        number: its number among the classes, 0 or 1.
        max_false_positives: the rate of texts of the other class that may get its answer.
    """
    accepted = "a rate between 0 and 1, such as 0.01"
    rate = check_real(
        "max_false_positives", max_false_positives, accepted=accepted, least=0.0, most=1.0, open_ends=True
    )
    values, own = np.asarray(shares, dtype=np.float64), np.asarray(is_protected, dtype=np.bool_)
    negatives, positives = np.sort(values[~own])[::-1], values[own]
    if not len(negatives) or not len(positives):
        missing = "the other class" if not len(negatives) else f"the class {protect!r}"
        raise ValueError(f"protect needs held-out texts of both classes, got none of {missing}")
    allowed = allowed_false_positives(len(negatives), rate)
    limit = max(float(negatives[allowed]), LEAST_THRESHOLD)
    limit = min(limit, float(np.nextafter(1.0, 0.0)))
    false_positives = int((negatives > limit).sum())
    # Where several texts have the limit as their share, fewer than ``allowed`` are above it. How many is then a matter
    # of chance, like the limit, and a bound for that number alone would fail more often than in 5% of the cases.
    # LEAST_THRESHOLD is fixed in advance: the bound for the number above it is valid.
    judged = false_positives if limit <= LEAST_THRESHOLD else max(allowed, false_positives)
    upper = 1.0 if judged >= len(negatives) else float(beta.ppf(CONFIDENCE, judged + 1, len(negatives) - judged))
    return Protection(
        protect=protect,
        max_false_positives=rate,
        threshold=model_threshold(limit, number),
        negatives=len(negatives),
        false_positives=false_positives,
        upper=upper,
        positives=len(positives),
        detected=int((positives > limit).sum()),
    )


def model_threshold(limit: float, number: int) -> float:
    """The threshold of class 1 at which the class ``number`` is answered iff its probability exceeds ``limit``.

    A probability that equals the limit before rounding does not exceed it: hence `SLACK`.
    """
    return min(limit + SLACK, float(np.nextafter(1.0, 0.0))) if number == 1 else max(1.0 - limit - SLACK, 0.0)


def protected_class(classes: Sequence[Any], protect: Any) -> int:
    """The number of the class to protect; ValueError unless there are two classes and it is one of them."""
    names = list(classes)
    if len(names) != 2:
        raise ValueError(f"protect needs a model of two classes, got {len(names)}")
    matching = [number for number, name in enumerate(names) if name == protect or str(name) == str(protect)]
    if not matching:
        raise ValueError(f"protect must be one of the classes {names[0]!r} and {names[1]!r}, got {protect!r}")
    return matching[0]


def protect(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    protect: Any,
    max_false_positives: float,
) -> Protection:
    """Choose the decision threshold of a model on held-out texts, and set it.

    Args:
        model: a fitted model of two classes; its ``threshold`` and ``protection_`` are set.
        texts: texts that the model was not trained on.
        labels: their labels.
        protect: the class whose answers are protected from being turned.
        max_false_positives: the rate of texts of the other class that may get its answer.
    """
    number = protected_class(list(model.base_classifier().classes_ or []), protect)
    shares = vote_shares(model, texts, number)
    label = (model.base_classifier().classes_ or [])[number]
    chosen = choose_threshold(
        shares,
        [value == label for value in labels],
        protect=label,
        number=number,
        max_false_positives=max_false_positives,
    )
    apply(model, chosen)
    return chosen


def apply(model: SmoothedClassifier, chosen: Protection) -> None:
    """Set the threshold of a model, and keep the record of its choice."""
    model.threshold = chosen.threshold
    model.protection_ = chosen.to_dict()


def vote_shares(model: SmoothedClassifier, texts: Sequence[Any], number: int) -> FloatArray:
    """The share of votes for a class of every text; exact for short texts."""
    asked = SmoothedClassifier(
        model.base_classifier(), model.rule().noise, unit=model.unit, seed=model.seed, n_select=VOTES, progress=False
    )
    return np.asarray(asked.predict_proba(list(texts))[:, number], dtype=np.float64)


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
        thresholds: η of the protected class; None for the vote shares at which the false positives change, from
            `LEAST_THRESHOLD` on.
    """
    columns = [_evidence(certificate, protected_class(certificate.classes, protect)) for certificate in certificates]
    chosen, lower = [share for share, _, _ in columns], [bound for _, _, bound in columns]
    shares = np.array([share for _, share, _ in columns])
    own = np.array([str(label) == str(protect) for label in labels], dtype=np.bool_)
    if len(own) != len(certificates) or not own.any() or own.all():
        raise ValueError("labels must be one for each certificate, of both classes")
    if thresholds is None:
        values = np.unique(np.append(np.maximum(shares[~own], LEAST_THRESHOLD), 0.5))
        thresholds = values[np.unique(np.linspace(0, len(values) - 1, 40).round().astype(int))].tolist()
    places, order = np.flatnonzero(own).tolist(), sorted(thresholds, reverse=True)
    detection = np.zeros((len(order), len(radii)))
    for row, threshold in enumerate(order):
        reached = [
            _radius(certificates[place], lower[place], threshold, protect) if chosen[place] > threshold else -1
            for place in places
        ]
        detection[row] = [float(np.mean(np.asarray(reached) >= radius)) for radius in radii]
    false_positives = [float((shares[~own] > threshold).mean()) for threshold in order]
    return DetectionCurve(np.array(order), np.array(false_positives), np.array(radii, dtype=np.int64), detection)


def _evidence(certificate: Certificate, number: int) -> tuple[float, float, float]:
    """The share of a class in the votes that choose the answer and in all votes, and a bound on its probability."""
    if certificate.exact is not None:
        share = float(exact_shares(certificate.exact, certificate.noise, certificate.length)[number])
        return share, share, exact_bounds(certificate.exact, number, certificate.noise, certificate.length)[0]
    assert certificate.looks is not None
    bound = vote_bounds(certificate.looks, certificate.votes, number, known=certificate.known)[0]
    selection, votes = certificate.selection, certificate.votes[-1]
    total = sum(selection) + sum(votes)
    return selection[number] / max(sum(selection), 1), (selection[number] + votes[number]) / total, bound


def _radius(certificate: Certificate, lower: float, threshold: float, protect: Any) -> int:
    """The radius of the protected answer at a threshold of its own probability."""
    number = protected_class(certificate.classes, protect)
    rule = replace(certificate.rule, threshold=model_threshold(threshold, number))
    return rule.radius(lower, complement(lower), label=number, length=certificate.length, is_binary=True)
