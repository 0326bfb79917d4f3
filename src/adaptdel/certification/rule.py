"""From recorded votes to a radius: the one derivation that sampling, certificates and verification share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from adaptdel.core.confidence import Looks, class_bounds, clopper_pearson
from adaptdel.core.noise import Noise
from adaptdel.core.radius import certified_radius
from adaptdel.core.radius_table import table
from adaptdel.core.threat import Threat
from adaptdel.settings import CERTIFICATION


@dataclass(frozen=True)
class Rule:
    """How bounds are turned into a radius.

    Attributes:
        noise: the noise of the votes.
        ops: what the attacker may do.
        bound: "tight" or "paper".
        threshold: a decision threshold for two classes, or None.
        k: the answer has to stay among the k most probable classes.
    """

    noise: Noise
    ops: tuple[str, ...]
    bound: str = CERTIFICATION.bound
    threshold: float | None = CERTIFICATION.threshold
    k: int = CERTIFICATION.k

    @cached_property
    def threat(self) -> Threat:
        """The attacker."""
        return Threat(self.ops)

    def check_classes(self, classes: Sequence[object] | None) -> None:
        """Raise unless threshold and k fit the classes, which some classifiers show only once they have been asked."""
        if self.threshold is not None and (classes is None or len(classes) != 2):
            number = "an unknown number of" if classes is None else str(len(classes))
            hint = ": give classes=[...]" if classes is None else ""
            raise ValueError(f"threshold must be None for {number} classes, got {self.threshold}{hint}")
        if classes is not None and self.k >= len(classes):
            raise ValueError(f"k must be below the number of classes {len(classes)}, got {self.k}")

    def radius(self, p1: float, p2: float, *, label: int, length: int, two: bool) -> int:
        """The radius for bounds on the answered class and on its strongest rival."""
        if self.threshold is not None:
            p = p1 if label == 1 else complement(p1)
            if (p > self.threshold) != (label == 1):
                return -1
            return certified_radius(
                p, length=length, noise=self.noise, ops=self.ops, bound=self.bound, threshold=self.threshold
            )
        if two and self.k == 1 and self.bound == "tight":  # the look-up without the checks
            return table(length, self.noise, self.threat).radius(1 - p1) if p1 > 0.5 else -1
        rival = None if two and self.k == 1 else p2
        return certified_radius(p1, rival, length=length, noise=self.noise, ops=self.ops, bound=self.bound)


def complement(p: float) -> float:
    """1 − p, rounded up; exact from one half on."""
    return 1 - p if p >= 0.5 else float(min(np.nextafter(1 - p, 2), 1.0))


def used_k(k: int, classes: int, known: bool) -> int:
    """The k that a bound is made for: classes never seen count as one more, and a smaller k implies a larger."""
    return min(k, classes - 1 if known and classes > 1 else classes + 1)


def vote_bounds(
    looks: Looks, votes: Sequence[Sequence[int]], label: int, *, known: bool, k: int = 1
) -> tuple[float, float]:
    """The best bounds (p1, p2) over the looks that were taken.

    ``known`` says that the classes are all there are. Otherwise one more, without votes, stands for those never seen.
    """
    best = (0.0, 1.0)
    if known and len(votes[0]) == 2 and k == 1:  # one bound is enough: the short way
        low = max(
            clopper_pearson(int(c[label]), int(c[0] + c[1]), a)[0] for c, a in zip(votes, looks.alphas, strict=False)
        )
        return low, complement(low)
    for counts, alpha in zip(votes, looks.alphas, strict=False):
        row = list(counts) if known and len(counts) > 1 else [*counts, 0, 0]
        p1, p2 = class_bounds(row, label, alpha, k=used_k(k, len(counts), known))
        best = max(best[0], p1), min(best[1], p2)
    return best


def exact_bounds(
    counts: Sequence[Sequence[int]], label: int, noise: Noise, length: int, *, k: int = 1
) -> tuple[float, float]:
    """(p1, p2) rounded outwards from how many choices of kept tokens each class answers, by number kept."""
    shares = exact_shares(counts, noise, length)
    rivals = sorted((share for number, share in enumerate(shares) if number != label), reverse=True)
    rival = rivals[k - 1] if len(rivals) >= k else Fraction(0)
    return _round(shares[label], -1), _round(rival, +1)


def exact_shares(counts: Sequence[Sequence[int]], noise: Noise, length: int) -> list[Fraction]:
    """The exact probability of each class."""
    weights = noise.choice_weights(length)
    return [
        sum((count * weight for count, weight in zip(row, weights, strict=True) if count), start=Fraction(0))
        for row in counts
    ]


def _round(value: Fraction, direction: int) -> float:
    near = float(value)
    wrong = Fraction(near) > value if direction < 0 else Fraction(near) < value
    return float(np.nextafter(near, direction * 2)) if wrong else near
