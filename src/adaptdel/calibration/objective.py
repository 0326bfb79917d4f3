"""What a kept length is worth on a sample: the paper's MaxCertRadius, or the mean radius at a clean accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from adaptdel.checks import check_fields

OBJECTIVES = ("certified", "mean")
KINDS = {"int": "a whole number", "float": "a number", "float | None": "a number?", "bool": "true or false"}


@dataclass(frozen=True)
class Outcome:
    """What became of one example.

    Attributes:
        answer: the class number answered.
        right: whether the answer is the example's label.
        radius: its certified radius; −1 if not even the unedited input is settled.
    """

    answer: int
    right: bool
    radius: int


@dataclass(frozen=True)
class Evaluation:
    """One kept length, tried on the sample of one bin.

    Attributes:
        bin: the number of the bin, from 0.
        keep: the expected kept length K.
        radius: the largest radius whose certified accuracy reaches the threshold; −1 if not even radius 0 does.
        certified: the certified accuracy at that radius; at radius 0 where none reaches the threshold.
        clean: the share of right answers, settled or not: what ``predict`` gets right with the same votes.
        mean_radius: the mean of the certified radii, with 0 for the wrong and the unsettled.
        constant: whether every example got the same answer.
        count: the number of examples.
    """

    bin: int
    keep: float
    radius: int
    certified: float
    clean: float
    mean_radius: float
    constant: bool
    count: int

    def score(self, objective: str, min_accuracy: float | None) -> tuple[float, float]:
        """What the search maximises, in lexicographic order.

        "certified" is the paper's: the largest radius, then the accuracy there. "mean" is the mean radius if the clean
        accuracy is high enough, and otherwise that accuracy, below all that are high enough.
        """
        if objective == "certified":
            return self.radius, self.certified
        assert min_accuracy is not None
        return (1, self.mean_radius) if self.clean >= min_accuracy else (0, self.clean)

    def reached(self, objective: str, min_accuracy: float | None) -> bool:
        """Whether the threshold, or the least clean accuracy, was reached."""
        return self.score(objective, min_accuracy)[0] >= (0 if objective == "certified" else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Rebuild an evaluation from `to_dict`."""
        names = {field.name: KINDS[str(field.type)] for field in fields(cls)}
        if not isinstance(values, Mapping):
            raise ValueError(f"an evaluation must have the fields {', '.join(names)}, got {values!r:.60}")
        try:
            check_fields(values, names)
        except ValueError as error:
            raise ValueError(f"an evaluation must have its fields: {error}") from None
        return cls(**{name: values[name] for name in names})


def max_certified_radius(radii: Sequence[int], threshold: float) -> tuple[int, float]:
    """MaxCertRadius: the largest radius with a certified accuracy of at least ``threshold``, and that accuracy.

    Args:
        radii: the radius of every example; −1 for the wrong and the unsettled.
        threshold: the share of examples that have to be certified.

    Returns:
        The radius and the accuracy there; −1 and the accuracy at radius 0 if that is too low already.

    >>> max_certified_radius([5, 3, 3, -1], 0.5)
    (3, 0.75)
    >>> max_certified_radius([5, -1, -1, -1], 0.5)
    (-1, 0.25)
    """
    found = np.asarray(radii)
    candidates = [int(r) for r in np.unique(found[found >= 0])[::-1]]
    for radius in candidates:  # the accuracy changes at these radii only
        accuracy = float(np.mean(found >= radius))
        if accuracy >= threshold:
            return radius, accuracy
    return -1, float(np.mean(found >= 0))


def evaluate(bin: int, keep: float, outcomes: Sequence[Outcome], threshold: float) -> Evaluation:
    """Sum up what became of the examples of a bin at one kept length."""
    certified = [outcome.radius if outcome.right else -1 for outcome in outcomes]
    radius, accuracy = max_certified_radius(certified, threshold)
    return Evaluation(
        bin=bin,
        keep=keep,
        radius=radius,
        certified=accuracy,
        clean=float(np.mean([outcome.right for outcome in outcomes])),
        mean_radius=float(np.mean(np.maximum(certified, 0))),
        constant=len({outcome.answer for outcome in outcomes}) == 1,
        count=len(outcomes),
    )
