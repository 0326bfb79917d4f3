"""Certify the examples of a calibration: in this process, or on an engine whose workers load the base classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import SamplingPlan
from adaptdel.classifiers.base import BaseClassifier, Prepared, registered_modules
from adaptdel.core.noise import registered_noise_modules
from adaptdel.engines.engine import Engine, ModelSource, Task, Work, WorkerError
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.units import Tokens, Unit


@dataclass(frozen=True)
class ExampleTask(Task):
    """Certify examples, each with its own sampling plan; a result is the number of the answer and the certificate.

    Attributes:
        unit: what a token is.
    """

    unit: Unit

    def load(self) -> Work:
        """A function from (plan, tokens) to (answer, certificate); the plans that it gets in one call are equal."""
        assert self.source is not None
        base = self.source.load().base_classifier()

        def work(items: Iterable[tuple[int, tuple[SamplingPlan, Tokens]]]) -> Iterator[tuple[int, Any]]:
            for number, (plan, tokens) in items:
                certifier = Certifier(base, plan, self.unit)
                prepared = certifier.prepare_tokens(tokens, f"example {number}")
                [(_, tally)] = certifier.votes([prepared])
                yield number, (number, tally.label, certifier.certificate(prepared, tally))

        return work

    def failed(self, item: Any, reason: str) -> Any:
        """A calibration needs every example."""
        raise WorkerError(f"an example of {len(item[1])} tokens: {reason}: leave it out, or give workers more memory")

    def size(self, item: Any) -> int:
        """The number of characters, about."""
        return 6 * len(item[1])


@dataclass
class ExampleCertifier:
    """Certifies examples, on an engine if there is one.

    Attributes:
        engine: where to certify; None for this process.
    """

    engine: Engine | None = None
    _folders: ExitStack = field(default_factory=ExitStack)
    _saved: tuple[BaseClassifier, ModelSource] | None = None

    def __call__(
        self, certifier: Certifier, tokens: Sequence[Tokens], *, done: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, int, Certificate]]:
        """Yield (number of the example, number of the answer, certificate), in order of completion."""
        if self.engine is None:
            inputs: list[Prepared] = [certifier.prepare_tokens(each, f"example {n}") for n, each in enumerate(tokens)]
            for number, tally in certifier.votes(inputs, done=done):
                yield number, tally.label, certifier.certificate(inputs[number], tally)
            return
        task = ExampleTask(self._source(certifier), certifier.unit)
        items = ((certifier.plan, each) for each in tokens)
        for finished, result in enumerate(self.engine.map(task, items, len(tokens)), start=1):
            yield result
            if done is not None:
                done(finished)

    def close(self) -> None:
        """Delete what was saved for workers."""
        self._folders.close()

    def __enter__(self) -> ExampleCertifier:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _source(self, certifier: Certifier) -> ModelSource:
        """The base classifier in a folder that workers load it from; written once for each base classifier."""
        if self._saved is None or self._saved[0] is not certifier.base:
            folder = Path(self._folders.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
            try:
                SmoothedClassifier(certifier.base, certifier.rule.noise, unit=certifier.unit).save(folder)
            except ValueError as error:
                raise ValueError(f"an engine needs a model that can be saved: {error}") from None
            modules = tuple(sorted({*registered_modules(), *registered_noise_modules()}))
            source = ModelSource(folder, fingerprint=certifier.fingerprint, modules=modules)
            self._saved = certifier.base, source
        return self._saved[1]
