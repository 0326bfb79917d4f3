"""Candidate rates for a protected class: measured by the texts of this class, at the threshold of each candidate.

A model that protects "spam" is as good as the spam that it detects and certifies at the allowed rate of false
positives. Under every candidate, a threshold is chosen from the votes on the other texts; the protected texts are then
compared by their detection, which takes the place of the accuracy, and by their certified radii at that threshold.

The final threshold is chosen later, on texts that have not been used here: a threshold that belongs to the best of many
candidates, on the same texts, would be too low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaptdel.calibration.candidates import Candidate, CandidateOutcomes, Sample
from adaptdel.calibration.search import CalibrationExamples
from adaptdel.certification.certificate import Certificate, Rule
from adaptdel.core.bounds import complement
from adaptdel.core.checks import BoolArray, FloatArray
from adaptdel.core.noise import Deletion
from adaptdel.training.protection import LEAST_THRESHOLD, allowed_false_positives, model_threshold, vote_evidence

COLUMNS = ("share", "lower")


@dataclass(frozen=True)
class OneSidedMeasure:
    """How the outcomes of a candidate follow from votes, if a class is protected.

    Attributes:
        number: the number of the protected class.
        is_protected: whether each example is of this class, shape (examples,).
        lengths: the number of tokens of each example.
        allowed: the share of the other examples that may get the protected answer.
        rule: how bounds give radii; noise and threshold are replaced.
    """

    number: int
    is_protected: BoolArray
    lengths: Sequence[int]
    allowed: float
    rule: Rule

    @property
    def sample(self) -> Sample:
        """The protected examples as columns."""
        places = np.flatnonzero(self.is_protected).tolist()
        lengths = np.array([self.lengths[place] for place in places], dtype=np.int64)
        return Sample(lengths, np.full(len(places), self.number, dtype=np.int64), 2)

    def columns(self, certificate: Certificate) -> dict[str, float]:
        """What is kept of the votes on an example: the share of the protected class, and a bound on its probability."""
        _, share, lower = vote_evidence(certificate, self.number)
        return {"share": share, "lower": lower}

    def limit(self, shares: FloatArray) -> float:
        """The threshold that few enough of the other examples exceed.

        It is the mean of the vote shares near the one that the number of allowed examples points to: a few texts with
        many votes do not decide between candidates.
        """
        others = np.sort(shares[~self.is_protected])[::-1]
        place = min(int(self.allowed * len(others)), len(others) - 1)
        near = others[place - place // 2 : place + place // 2 + 1]
        return min(max(float(near.mean()), LEAST_THRESHOLD), float(np.nextafter(1.0, 0.0)))

    def outcomes(self, candidate: Candidate, columns: Mapping[str, Sequence[float]]) -> CandidateOutcomes:
        """The answers and radii of the protected examples, at the threshold of the candidate."""
        shares = np.asarray(columns["share"], dtype=np.float64)
        limit = self.limit(shares)
        rule = replace(self.rule, noise=Deletion(candidate.rate), threshold=model_threshold(limit, self.number))
        places = np.flatnonzero(self.is_protected).tolist()
        answer = np.full(len(places), 1 - self.number, dtype=np.int64)
        radius = np.full(len(places), -1, dtype=np.int64)
        for index, place in enumerate(places):
            if shares[place] > limit:
                answer[index], lower = self.number, columns["lower"][place]
                radius[index] = rule.radius(
                    lower, complement(lower), label=self.number, length=self.lengths[place], is_binary=True
                )
        return CandidateOutcomes(candidate, answer, radius)


def one_sided_measure(
    examples: CalibrationExamples,
    rule: Rule,
    classes: Sequence[Any],
    protect: Any,
    max_false_positives: float,
    threshold_negatives: int | None = None,
) -> OneSidedMeasure:
    """The measure for a protected class.

    Args:
        examples: the inputs on which candidates are measured.
        rule: how bounds give radii.
        classes: the two classes of the model.
        protect: the protected class.
        max_false_positives: the rate of texts of the other class that may get its answer.
        threshold_negatives: the number of texts of the other class on which the final threshold will be chosen, which
            determines how many of them may get the protected answer; None for as many as in the examples.
    """
    number = list(classes).index(protect)
    own = np.array([label == protect for label in examples.labels], dtype=np.bool_)
    if own.all() or not own.any():
        missing = "the other class" if own.all() else f"the class {protect!r}"
        raise ValueError(f"protect needs texts of both classes to calibrate on, got none of {missing}")
    count = int((~own).sum()) if threshold_negatives is None else threshold_negatives
    allowed = allowed_false_positives(count, max_false_positives) / max(count, 1)
    return OneSidedMeasure(number, own, examples.lengths, allowed, rule)
