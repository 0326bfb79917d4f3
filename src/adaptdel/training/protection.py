"""One-sided protection: a decision threshold for one class of two, and detection under attack.

A model that protects "spam" answers "spam" if its probability exceeds a threshold η, which is chosen so that few other
texts get that answer. A certificate then says that an answer "spam" cannot be turned by up to r edits: the probability
has to stay above η instead of 1/2. That is what RS-Del does for malware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil, log
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import FloatArray, check_real
from adaptdel.core.confidence import exact_bounds, exact_shares, vote_bounds
from adaptdel.core.radius import lowest_probabilities
from adaptdel.models.smoothed import SmoothedClassifier

CONFIDENCE = 0.95  # of the bound on the false-positive rate
VOTES = 1000  # for each held-out text
LEAST_THRESHOLD = 0.01  # fewer votes than 1 in 100 are not told apart from none
PROOF = 10  # held-out texts of the other class, divided by the rate: half of that rate of false positives is allowed
FEW_VOTES = 0.1  # a threshold below this is worth a warning
CERTIFIABLE = 0.1  # of the protected class: if no more of it can be certified against an edit, a warning says so
POINTS = 60  # of a detection curve: the highest thresholds, and as many over all of them
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
        upper: a bound on the rate of false positives, with a confidence of 95%; an estimate of that bound if
            ``is_estimate``.
        positives: held-out texts of the protected class.
        detected: how many of them get the protected answer.
        share: the share of votes for the protected class above which it is the answer.
        cross_validated: whether texts were voted on by models of a cross-validation instead of this one: nothing is
            proved about this model then.
        certifiable: how many texts of the protected class have votes that certify it against one edit; None if unknown.
        digest: the SHA-256 of a file that was given for the threshold alone; None without one.
        chose_weights: whether these texts also decided when the training stopped, and so which weights were kept:
            nothing is proved about this model then.
    """

    protect: Any
    max_false_positives: float
    threshold: float
    negatives: int
    false_positives: int
    upper: float
    positives: int
    detected: int
    share: float | None = None
    cross_validated: bool = False
    certifiable: int | None = None
    digest: str | None = None
    chose_weights: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the warnings."""
        return asdict(self) | {"warnings": self.warnings()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Protection:
        """Rebuild a protection from `to_dict`."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    @property
    def is_estimate(self) -> bool:
        """Whether the texts prove nothing about this model, because they influenced it or judge other models."""
        return self.cross_validated or self.chose_weights

    @property
    def is_shown(self) -> bool:
        """Whether the bound on the rate of false positives is as low as was asked for."""
        return self.upper <= self.max_false_positives

    def sentence(self) -> str:
        """What was chosen, and what is known about it."""
        decides = "" if self.share is None else f", above {100 * self.share:.3g}% of the votes"
        source = "models of a cross-validation" if self.cross_validated else "the model"
        bound = f"at most {100 * self.upper:.2g}%"
        own = f", and {self.detected} of {self.positives} of the class itself" if self.positives else ""
        known = f"an estimate, not a proof: {bound}" if self.is_estimate else f"{bound} with a confidence of 95%"
        return (
            f"protects {self.protect!s}: threshold {self.threshold:.4g}{decides}; of texts that {source} did not train "
            f"on, {self.false_positives} of {self.negatives} of the other class get that answer ({known}){own}"
        )

    def warnings(self) -> list[str]:
        """Sentences on what the threshold does not give, with what to do; empty if there is nothing to say."""
        rate, sentences = 100 * self.max_false_positives, []
        needed = needed_negatives(self.max_false_positives)
        if not self.is_shown:
            sentences.append(
                f"{self.negatives} texts of the other class cannot show a rate of false positives of {rate:.3g}%: "
                f"{needed:,} are needed; until then the threshold is so high that none of them gets the answer, and "
                "detection and radii suffer; hold out more with --validation, give texts that the model was not "
                "trained on with calibrate --threshold-data, or ask for a larger rate"
            )
        elif self.is_estimate:
            texts = f"{needed:,} texts of the other class at least, better {ceil(PROOF / self.max_false_positives):,}"
            sentences.append(
                f"the rate of false positives is estimated, because the held-out texts also decided which weights of "
                f"the model were kept; to prove {rate:.3g}%, give {texts}, with calibrate --threshold-data"
                if self.chose_weights
                else f"the rate of false positives is estimated; to prove {rate:.3g}%, hold out {texts}, with "
                "--validation, or give them with calibrate --threshold-data"
            )
        if self.share is not None and self.share < FEW_VOTES:
            sentences.append(
                f"{100 * self.share:.3g}% of the votes decide for {self.protect!s}"
                f"{', the least that is used' if self.share <= LEAST_THRESHOLD else ''}: few edits can remove so few "
                "votes, and the other answer is hardly ever certified; if the class is rare in training, "
                "--class-weight balanced gives it more votes and larger radii"
            )
        if self.positives and self.certifiable is not None and self.certifiable <= CERTIFIABLE * self.positives:
            sentences.append(
                f"only {self.certifiable} of {self.positives} texts of the class {self.protect!s} have the votes to be "
                "certified against one edit: allow more false positives, train with --class-weight balanced or on more "
                "texts of the class, or calibrate the rate with --protect"
            )
        return sentences


def needed_negatives(rate: float) -> int:
    """How many held-out texts of the other class can prove a rate of false positives, if none gets the answer.

    >>> [needed_negatives(rate) for rate in (0.05, 0.01, 0.001)]
    [59, 299, 2995]
    """
    return ceil(log(1 - CONFIDENCE) / log(1 - rate))


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
    shares: npt.ArrayLike,
    is_protected: npt.ArrayLike,
    *,
    protect: Any,
    number: int,
    max_false_positives: float,
    cross_validated: bool = False,
) -> Protection:
    """The lowest threshold whose rate of false positives is proved with 95% confidence, or nearest to that.

    Args:
        shares: the share of votes for the protected class of every held-out text, shape (texts,).
        is_protected: whether each text is of the protected class.
        protect: the protected class.
        number: its number among the classes, 0 or 1.
        max_false_positives: the rate of texts of the other class that may get its answer.
        cross_validated: whether the votes are those of models of a cross-validation.
    """
    accepted = "a rate between 0 and 1, such as 0.01"
    rate = check_real(
        "max_false_positives", max_false_positives, accepted=accepted, least=0.0, most=1.0, open_ends=True
    )
    values, own = np.asarray(shares, dtype=np.float64), np.asarray(is_protected, dtype=np.bool_)
    negatives, positives = np.sort(values[~own])[::-1], values[own]
    if not len(negatives):
        raise ValueError("protect needs held-out texts of the other class, got none")
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
        share=limit,
        cross_validated=cross_validated,
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


def few_votes(model: SmoothedClassifier) -> str | None:
    """A sentence if a model answers by fewer votes than its protecting threshold was chosen for; else None."""
    known = getattr(model, "protection_", None)
    if known is None or model.threshold != known["threshold"] or model.n_select >= VOTES:
        return None
    return (
        f"the threshold that protects {known['protect']!s} was chosen for answers by {VOTES:,} votes: with "
        f"{model.n_select:,} selection votes the rate of false positives can be higher than the model states"
    )


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
        thresholds: η of the protected class; None for vote shares at which the false positives change, from
            `LEAST_THRESHOLD` on, with all of those that give the fewest false positives.
    """
    columns = [
        vote_evidence(certificate, protected_class(certificate.classes, protect)) for certificate in certificates
    ]
    chosen, lower = [share for share, _, _ in columns], [bound for _, _, bound in columns]
    shares = np.array([share for _, share, _ in columns])
    own = np.array([str(label) == str(protect) for label in labels], dtype=np.bool_)
    if len(own) != len(certificates) or not own.any() or own.all():
        raise ValueError("labels must be one for each certificate, of both classes")
    if thresholds is None:
        values = np.unique(np.append(np.maximum(shares[~own], LEAST_THRESHOLD), 0.5))[::-1]
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
    bound = vote_bounds(certificate.looks, certificate.votes, number, known=certificate.known)[0]
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
