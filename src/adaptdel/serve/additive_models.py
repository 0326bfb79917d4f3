"""Exact models behind the server: no votes to wait for, so a thread answers one text after the other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from adaptdel.certification.exact import ExactCertificate
from adaptdel.core.threat import Threat
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.serve.answers import Job, certified
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.scheduler import problem_of, queue_full, too_long
from adaptdel.serve.schemas import CertifyBody, PredictBody, Problem, shutting_down
from adaptdel.text.units import check_unit

if TYPE_CHECKING:
    from adaptdel.serve.service import Meters, ModelToServe


class ServedExact:
    """An additive model with its thread: see `adaptdel.serve.service.ServedModel`.

    The limits of a request on alpha, votes and time always hold: a certificate is certain and takes no votes.
    """

    def __init__(self, source: ModelToServe, settings: ServeSettings, meters: Meters) -> None:
        assert isinstance(source.model, AdditiveClassifier)
        self.name, self.model, self.examples = source.name, source.model, source.examples
        self.unit = check_unit(self.model.unit)
        self.settings, self._answered = settings, partial(meters.answered, self.name)
        self.scheduler = InOrder(self)
        meters.queue.labels(self.name).set_function(lambda: self.scheduler.sizes()[0])

    def plan(self, body: CertifyBody | PredictBody, seed: int) -> Threat | None:
        """The attacker that a request names; None for a prediction."""
        if isinstance(body, PredictBody):
            return None
        return Threat(self.model.ops if body.ops is None else body.ops)

    def info(self, *, default: bool) -> dict[str, Any]:
        """What clients are told of the model."""
        base = self.model.base_classifier()
        return {
            "name": self.name,
            "default": default,
            "kind": base.kind or type(base).__name__,
            "classes": list(base.classes_),
            "unit": self.unit.kind,
            "noise": None,
            "method": "exact",
            "alpha": 0.0,
            "ops": list(Threat(self.model.ops).ops),
            "certified_ops": list(Threat("edit").ops),
            "votes": None,
            "threshold": self.model.run_settings()["threshold"],
            "fingerprint": base.fingerprint(),
            "examples": list(self.examples),
        }

    def answer(self, job: Job, index: int) -> dict[str, Any]:
        """The result of a text."""
        text, threat = job.texts[index], job.plan
        tokens = self.unit.split(text)
        if len(tokens) > self.settings.tokens:
            raise Problem(413, too_long(job, index, len(tokens), self.settings))
        [certificate] = self.model.certify([text])
        if threat is None:
            scores = zip(map(str, certificate.classes), certificate.totals.tolist(), strict=True)
            result: dict[str, Any] = {"label": certificate.label, "scores": dict(scores)}
        else:
            certificate = certificate.rederive(ops=threat.ops)
            result = certified(certificate)
            if job.influence:
                shown = [token.hex() if isinstance(token, bytes) else token for token in tokens]
                result |= {"tokens": shown, "margin": margin(certificate)}
            result["certificate"] = certificate.to_dict()
        result |= {"deadline_reached": False, "calls": 0, "seconds": round(time.monotonic() - job.started, 6)}
        self._answered(result)
        return result


def margin(certificate: ExactCertificate) -> dict[str, Any]:
    """What the closest rival needs, what every edit gives it, and a text that it wins."""
    rival, closest = certificate.closest
    example = certificate.counterexample()
    return {
        "rival": certificate.classes[rival],
        "slack": closest.slack,
        "insertion": closest.insertion,
        "deletion": closest.deletion.tolist(),
        "counterexample": example.hex() if isinstance(example, bytes) else example,
    }


class InOrder:
    """The thread of a model, which answers texts in the order in which they came.

    Attributes:
        fault: always None: no text makes such a model faulty.
    """

    fault: str | None = None

    def __init__(self, served: ServedExact) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._queued = 0  # texts of requests that are not finished
        self._closing = self._stopped = False
        self._thread = ThreadPoolExecutor(1, f"adaptdel-{served.name}")

    def start(self) -> None:
        """Nothing: the thread starts with the first request."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return not self._closing

    def submit(self, job: Job) -> None:
        """Accept a request, or raise a `Problem` at once."""
        with self._lock:
            if self._closing:
                raise shutting_down()
            if self._queued + len(job.texts) > self._served.settings.queue:
                raise queue_full(self._served.name, self._queued, self._served.settings)
            self._queued += len(job.texts)
            self._thread.submit(self._work, job)

    def cancel(self, job: Job) -> None:
        """Drop a request: its next text is not answered."""
        job.waiting.clear()

    def close(self) -> None:
        """Accept no more requests."""
        with self._lock:
            self._closing = True

    def stop(self) -> None:
        """End the thread; requests that are not finished are refused with 503."""
        self.close()
        self._stopped = True
        self._thread.shutdown()

    def sizes(self) -> tuple[int, int]:
        """The number of texts that wait, and 0 that are voted on."""
        return self._queued, 0

    def _work(self, job: Job) -> None:
        with suppress(IndexError):  # no text waits any more
            while True:
                self._answer(job, job.waiting.popleft())
        with self._lock:
            self._queued -= len(job.texts)

    def _answer(self, job: Job, index: int) -> None:
        try:
            if self._stopped:
                raise shutting_down()
            job.outbox.put("result", index, {"index": index, **self._served.answer(job, index)})
        except Exception as error:
            problem = problem_of(error, self._served.name, self._served.settings)
            job.outbox.put("failed", index, (index, problem))
