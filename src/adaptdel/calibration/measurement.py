"""Labelled examples, and their certified answers under candidate noises: in this process or on an engine, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATION, SamplingPlan, content_key
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.checks import IntArray
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import InterpolatedRate
from adaptdel.core.threat import Threat
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import reporter
from adaptdel.runs.engine import Engine, ModelSource, Task, Work, WorkerError
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


@dataclass(frozen=True)
class ExampleTask(Task):
    """Certify numbered examples, each with its own sampling plan; a result is (number, answer, radius).

    Attributes:
        unit: what a token is.
    """

    unit: Unit

    def load(self) -> Work:
        """A function from (number, (plan, tokens)) to results."""
        assert self.source is not None
        base = self.source.load().base_classifier()

        def work(items: Iterable[tuple[int, tuple[SamplingPlan, Tokens]]]) -> Iterator[tuple[int, int, int]]:
            for number, (plan, tokens) in items:
                ((_, answer, radius),) = _certified(Certifier(base, plan, self.unit), [tokens])
                yield number, answer, radius

        return work

    def failed(self, item: Any, reason: str) -> Any:
        """A calibration needs every example."""
        _, (_, tokens) = item
        raise WorkerError(f"an example of {len(tokens)} tokens: {reason}: leave it out, or give workers more memory")


def _certified(
    certifier: Certifier, tokens: Sequence[Tokens], done: Callable[[int], None] | None = None
) -> Iterator[tuple[int, int, int]]:
    """(number, answer, radius) of every example, in order of completion."""
    inputs = [certifier.prepare_tokens(each, f"example {number}") for number, each in enumerate(tokens)]
    for number, tally in certifier.votes(inputs, done=done):
        yield number, tally.label, certifier.certificate(inputs[number], tally).radius


class Measurer:
    """Measures every candidate once: from the store, if an interrupted calibration has measured it.

    Args:
        settings: what the measurements depend on, in plain values.
        expected: about how many examples will be certified, for the progress.
        checkpoint: the file of the store; None for none.
        progress: True, False, "auto" or a callable (done, total).
        engine: where to certify; None for this process.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        expected: int,
        *,
        checkpoint: Path | None = None,
        progress: Any = "auto",
        engine: Engine | None = None,
    ) -> None:
        if checkpoint is not None and not settings["model"]:
            raise ValueError("checkpoint must be None for a base classifier without a fingerprint, such as a callable")
        self._report, self._engine = reporter(progress, "certificates"), engine
        self._expected, self._done = expected, 0
        self._saved: tuple[BaseClassifier, ModelSource] | None = None
        self._resources = ExitStack()
        self._store = None if checkpoint is None else self._resources.enter_context(Store(checkpoint, settings))
        self._known: dict[str, Any] = {} if self._store is None else dict(self._store.records())

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._resources.__exit__(*error)

    def __call__(self, key: str, examples: CalibrationExamples, parts: Callable[[], Parts]) -> CertifiedAnswers:
        """The outcomes of examples under the candidate that the key names."""
        count = len(examples.labels)
        if key not in self._known:
            self._known[key] = self._measured(examples, parts())
            if self._store is not None:
                self._store.put(key, self._known[key])
                self._store.flush()
        columns = self._known[key]
        if not isinstance(columns, dict) or any(len(columns.get(name, ())) != count for name in ("answer", "radius")):
            raise ValueError(f"{self._store and self._store.path}, {key}: not a measurement: {START_AGAIN}")
        self._done += count
        self._say(0)
        return CertifiedAnswers(*(np.array(columns[name], dtype=np.int64) for name in ("answer", "radius")))

    def finish(self) -> None:
        """Report that everything is done: the number of candidates is known in advance only approximately."""
        self._expected = self._done
        self._say(0)

    def _measured(self, examples: CalibrationExamples, parts: Parts) -> dict[str, list[int]]:
        answer, radius = [0] * len(examples.labels), [0] * len(examples.labels)
        finished = 0
        for certifier, numbers in parts:
            tokens = [examples.tokens[number] for number in numbers]
            for index, label, certified in self._certify(certifier, tokens, finished):
                answer[numbers[index]], radius[numbers[index]] = label, certified
            finished += len(numbers)
        return {"answer": answer, "radius": radius}

    def _certify(self, certifier: Certifier, tokens: Sequence[Tokens], finished: int) -> Iterator[tuple[int, int, int]]:
        if self._engine is None:
            yield from _certified(certifier, tokens, lambda more: self._say(finished + more))
            return
        items = enumerate((certifier.plan, each) for each in tokens)
        task = ExampleTask(self._source(certifier), certifier.unit)
        for more, result in enumerate(self._engine.map(task, items, len(tokens)), start=1):
            yield result
            self._say(finished + more)

    def _say(self, more: int) -> None:
        if self._report is not None:
            done = self._done + more
            self._report(done, max(self._expected, done))

    def _source(self, certifier: Certifier) -> ModelSource:
        """The base classifier in a folder that workers load it from; written once for each base classifier."""
        if self._saved is None or self._saved[0] is not certifier.base:
            folder = Path(self._resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
            try:
                SmoothedClassifier(certifier.base, certifier.rule.noise, unit=certifier.unit).save(folder)
            except ValueError as error:
                raise ValueError(f"an engine needs a model that can be saved: {error}") from None
            source = ModelSource(folder, fingerprint=certifier.fingerprint)
            self._saved = certifier.base, source
        return self._saved[1]
