"""Labelled examples, and their certified answers under candidate noises, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan, content_key
from adaptdel.core.checks import IntArray
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import InterpolatedRate
from adaptdel.core.threat import Threat
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import reporter
from adaptdel.settings import CalibrationSettings
from adaptdel.store import START_AGAIN, Store
from adaptdel.text.units import Tokens, Unit

NO_RATE = (
    "no rate works here: under each of them (almost) all inputs get the same answer, whose radii say nothing; train on "
    "more examples of the rare classes, with balanced class weights, or with --method exact"
)


@dataclass(frozen=True)
class CalibrationExamples:
    """Labelled token sequences.

    Attributes:
        tokens: the tokens of every example.
        labels: the label of every example.
    """

    tokens: list[Tokens]
    labels: list[Any]

    @classmethod
    def of(
        cls, texts: Sequence[Any], labels: Sequence[Any], unit: Unit, classes: Sequence[Any] | None
    ) -> CalibrationExamples:
        """The texts split into tokens; ValueError unless the labels are classes of the model."""
        if isinstance(texts, (str, bytes)):
            raise ValueError(f"texts must be a list of inputs, got a single {type(texts).__name__}: put it in a list")
        listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
        if len(texts) != len(listed):
            raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(listed)}")
        if not len(texts):
            raise ValueError("texts must hold at least one input, got none")
        for number, label in enumerate(listed):
            if classes is not None and label not in classes:
                shown = ", ".join(repr(known) for known in classes[:10]) + (", ..." if len(classes) > 10 else "")
                raise ValueError(f"labels must be classes of the model, {shown}, got {label!r} at {number}")
        return cls([_split(unit, text, number) for number, text in enumerate(texts)], listed)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of every example."""
        return [len(tokens) for tokens in self.tokens]

    def take(self, numbers: Iterable[int]) -> CalibrationExamples:
        """Some of the examples, by their numbers."""
        listed = list(numbers)
        return CalibrationExamples([self.tokens[n] for n in listed], [self.labels[n] for n in listed])

    def digest(self) -> str:
        """A hash of all tokens and labels, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            digest.update(content_key(tokens) + json.dumps(label, default=repr).encode() + b"\n")
        return digest.hexdigest()


def _split(unit: Unit, text: Any, number: int) -> Tokens:
    try:
        return unit.split(text)
    except ValueError as error:
        raise ValueError(f"input {number}: {error}") from None


def constant_keep(keep: float) -> Deletion:
    """The noise that keeps ``keep`` tokens on average, whatever the length.

    >>> constant_keep(4).rate(16)
    0.75
    """
    return Deletion(InterpolatedRate((1,), (keep,)))


def calibration_certifier(
    model: SmoothedClassifier, settings: CalibrationSettings, *, own_noise: bool = False
) -> Certifier:
    """The engine that certifies examples: the model's threat, on random streams of its own.

    ``own_noise`` is whether candidates may come from a noise of the user's own.
    """
    noise = getattr(model, "noise_", None) or model.noise
    if noise is not None and not noise.calibratable:
        has_candidates = type(noise).calibration_candidates is not Noise.calibration_candidates
        if not (own_noise and has_candidates and not noise.sees_tokens()):
            raise ValueError(
                "model must have a deletion noise to be calibrated, or for the objective 'balanced' one that defines "
                f"calibration_candidates, got {noise!r}"
            )
    if not hasattr(model, "base_") and model.base is None:
        raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
    rule = Rule(constant_keep(1), Threat(model.ops).ops, settings.bound or model.bound, model.threshold)
    plan = SamplingPlan(
        rule,
        model.alpha if settings.alpha is None else settings.alpha,
        settings.n_select,
        settings.n_estimate,
        sampling="fixed",
        seed=settings.seed,
        exact=False,
        phases=CALIBRATION,
    )
    return Certifier(model.base_classifier(), plan, model.unit)


def described(certifier: Certifier) -> dict[str, Any]:
    """What certificates depend on besides the numbers of votes, in plain values."""
    rule = certifier.rule
    return {
        "model": certifier.fingerprint,
        "unit": certifier.unit.kind,
        "alpha": certifier.plan.alpha,
        "ops": list(rule.ops),
        "bound": rule.bound,
        "decision_threshold": rule.threshold,
    }


class CertifiedAnswers(NamedTuple):
    """Certified answers as columns of shape (examples,): class numbers, and radii, −1 for an abstention."""

    answer: IntArray
    radius: IntArray


Parts = Iterable[tuple[Certifier, Sequence[int]]]  # who certifies which examples, by their numbers


class Measurer:
    """Measures every candidate once: from the store, if an interrupted calibration has measured it.

    Args:
        settings: what the measurements depend on, in plain values.
        expected: about how many examples will be certified, for the progress.
        checkpoint: the file of the store; None for none.
        progress: True, False, "auto" or a callable (done, total).
    """

    def __init__(
        self, settings: Mapping[str, Any], expected: int, *, checkpoint: Path | None = None, progress: Any = "auto"
    ) -> None:
        if checkpoint is not None and not settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        self._report = reporter(progress, "certificates")
        self._expected, self._done = expected, 0
        self._store = None if checkpoint is None else Store(checkpoint, settings)
        self._known: dict[str, Any] = {} if self._store is None else dict(self._store.records())

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._store is not None:
            self._store.close()

    def __call__(self, key: str, examples: CalibrationExamples, parts: Callable[[], Parts]) -> CertifiedAnswers:
        """The outcomes of examples under the candidate that the key names."""
        count = len(examples.labels)
        if key in self._known:
            self._done += count
        else:
            self._known[key] = self._measured(examples, parts())
            if self._store is not None:
                self._store.put(key, self._known[key])
                self._store.flush()
        columns = self._known[key]
        if not isinstance(columns, dict) or any(len(columns.get(name, ())) != count for name in ("answer", "radius")):
            raise ValueError(f"{self._store and self._store.path}, {key}: not a measurement: {START_AGAIN}")
        self._say(0)
        return CertifiedAnswers(*(np.array(columns[name], dtype=np.int64) for name in ("answer", "radius")))

    def finish(self) -> None:
        """Report that everything is done: the number of candidates is known in advance only approximately."""
        self._expected = self._done
        self._say(0)

    def _measured(self, examples: CalibrationExamples, parts: Parts) -> dict[str, list[int]]:
        answer, radius = [0] * len(examples.labels), [0] * len(examples.labels)
        for certifier, numbers in parts:
            inputs = [certifier.prepare_tokens(examples.tokens[number], f"example {number}") for number in numbers]
            for index, tally in certifier.votes(inputs, done=self._say):
                certificate = certifier.certificate(inputs[index], tally)
                answer[numbers[index]], radius[numbers[index]] = tally.label, certificate.radius
            self._done += len(numbers)
        return {"answer": answer, "radius": radius}

    def _say(self, more: int) -> None:
        if self._report is not None:
            done = self._done + more
            self._report(done, max(self._expected, done))
