"""The search for the kept length of a bin: certified radii of a sample, objectives, checkpoints, golden section."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adaptdel.calibration.bins import Bin
from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import InterpolatedRate
from adaptdel.core.threat import Threat
from adaptdel.files import parse_object, read_bytes, write_text
from adaptdel.smoothed import SmoothedClassifier


def constant_keep(keep: float) -> Deletion:
    """The noise that keeps ``keep`` tokens on average, whatever the length.

    >>> constant_keep(4).rate(16)
    0.75
    """
    return Deletion(InterpolatedRate((1,), (keep,)))


def sample_certifier(model: SmoothedClassifier, *, n_select: int, n_estimate: int, seed: int) -> Certifier:
    """The engine that certifies samples: the model's own attacker and bound, with the paper's fixed number of votes."""
    noise = getattr(model, "noise_", None) or model.noise
    if noise is not None and not noise.calibratable:
        raise ValueError(f"model must have a deletion noise to be calibrated, got {noise!r}")
    if not hasattr(model, "base_") and model.base is None:
        raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
    rule = Rule(constant_keep(1), Threat(model.ops).ops, model.bound, model.threshold, model.k)
    plan = SamplingPlan(
        rule, model.alpha, n_select, n_estimate, sampling="fixed", seed=seed, exact=False, phases=CALIBRATION
    )
    return Certifier(model.base_classifier(), plan, model.unit)


def certifier_settings(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values.

    The phases are among it, so that measurements on other streams, as calibrations drew before they had streams of
    their own, are not mixed with these.
    """
    rule, plan = certifier.rule, certifier.plan
    attacker = {"ops": list(rule.ops), "bound": rule.bound, "decision_threshold": rule.threshold, "k": rule.k}
    streams = {"alpha": plan.alpha, "phases": list(plan.phases)}
    return {"model": certifier.fingerprint, "unit": certifier.unit.kind, **streams, **attacker}


def certify_sample(
    certifier: Certifier,
    inputs: Sequence[Prepared],
    labels: Sequence[Any],
    keep: float,
    *,
    done: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """What becomes of every example if ``keep`` tokens of it are kept."""
    candidate = certifier.under(constant_keep(keep))
    outcomes: dict[int, Outcome] = {}
    for number, tally in candidate.votes(inputs, done=done):
        radius = candidate.certificate(inputs[number], tally).radius
        outcomes[number] = Outcome(tally.label, candidate.base.label(tally.label) == labels[number], radius)
    return [outcomes[number] for number in range(len(inputs))]


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


FORMAT = 1
_ANEW = "delete it to begin anew"


class CalibrationJournal:
    """The evaluations of one run, in memory and, if a path is given, in a file.

    Args:
        path: the file, or None. One of the same run is replayed, a torn last line being dropped; one of another run
            is refused.
        settings: what tells runs apart, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._found: dict[tuple[int, float], Evaluation] = {}
        if path is not None:
            self._open(path, settings)

    def get(self, bin: int, keep: float) -> Evaluation | None:
        """The evaluation of a kept length in a bin, if it has been made."""
        return self._found.get((bin, keep))

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; it is on the disk when this returns."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(evaluation.to_dict()) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._found[evaluation.bin, evaluation.keep] = evaluation

    def remember(self, evaluations: Iterable[Evaluation]) -> None:
        """Take over what was measured elsewhere; it is not written."""
        for evaluation in evaluations:
            self._found.setdefault((evaluation.bin, evaluation.keep), evaluation)

    def _open(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = read_bytes(path) if path.exists() else b""
        if not text:
            write_text(path, json.dumps({"journal": FORMAT, "settings": settings}) + "\n")
            return
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        _check(path, _header(path, lines), settings)
        for number, line in enumerate(lines[1:], start=2):
            try:
                evaluation = Evaluation.from_dict(parse_object(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not an evaluation: {error}: {_ANEW}") from None
            self._found[evaluation.bin, evaluation.keep] = evaluation
        if len(whole) < len(text):  # a line that was being written when the run was stopped
            with path.open("rb+") as file:
                file.truncate(len(whole))


def _header(path: Path, lines: list[bytes]) -> Mapping[str, Any]:
    try:
        first = parse_object(lines[0] if lines else b"")
        if first.get("journal") != FORMAT:
            raise ValueError(f"its format is {first.get('journal')!r:.60}, not {FORMAT}")
        check_fields(first, {"settings": "an object"})
        stored: Mapping[str, Any] = first["settings"]
        return stored
    except ValueError as error:
        raise ValueError(f"{path}: not a journal of a calibration: {error}: {_ANEW}") from None


def _check(path: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names = [name for name in {**settings, **stored} if stored.get(name) != settings.get(name)]
    if names:
        differences = "; ".join(
            f"{name!s:.60} was {stored.get(name)!r:.99} and is now {settings.get(name)!r:.99}" for name in names[:9]
        )
        raise ValueError(f"{path}: the journal of another calibration ({' '.join(differences.split())}): {_ANEW}")


GOLDEN = (sqrt(5) - 1) / 2
LEAST_SHARE, MOST_SHARE = 0.01, 0.3  # of the length, kept at least and at most: rates from 70% to 99%
Score = TypeVar("Score", bound=tuple[float, ...])


def ends(bin: Bin) -> tuple[float, float]:
    """Where the search in a bin begins and ends.

    The paper keeps at least 1% of the bin's upper end and at most 30% of its lower one. Where that leaves nothing, as
    in the first bin, whose lower end is 0, the 30% are of the centre. At least one token is kept: below log 2 tokens
    most copies are empty, and every input gets the answer to the empty text, with an infinite radius that is worth
    nothing.

    >>> ends(Bin(100, 200, 200))
    (2.0, 30.0)
    """
    low = max(LEAST_SHARE * bin.reach, 1.0)
    high = MOST_SHARE * bin.lower
    if high < 3 * low:
        high = MOST_SHARE * bin.centre
    return low, max(high, 3 * low)


def steps(low: float, high: float, tol: float) -> int:
    """How many times the interval has to be cut until it is no wider than ``tol``."""
    return max(0, ceil(log((high - low) / tol) / -log(GOLDEN) - 1e-9))


def evaluations(low: float, high: float, tol: float) -> int:
    """How many evaluations a search takes: one a step and one to begin with."""
    return steps(low, high, tol) + 1


def golden_section(score: Callable[[float], Score], low: float, high: float, tol: float) -> float:
    """The best of the candidates that a golden-section search for the largest score tries.

    A step cuts the interval at one of two inner points. The other one is an inner point of what is left, so that each
    step but the first evaluates a single new point. The paper evaluates both again and takes the middle of the last
    interval, which was never tried; the best point that was tried is known to be good. Where both points
    are as good, the larger one is kept, as in the paper.

    >>> round(golden_section(lambda x: (-((x - 3) ** 2),), 0, 10, 0.01), 2)
    3.0
    """
    count = steps(low, high, tol)
    if not count:
        return (low + high) / 2
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    tried = {left: score(left), right: score(right)}
    for step in range(count):
        if tried[left] > tried[right]:
            high, right = right, left
            new = left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            new = right = low + GOLDEN * (high - low)
        if step < count - 1:
            tried[new] = score(new)
    return max(tried, key=lambda point: (tried[point], point))
