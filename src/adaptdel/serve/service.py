"""The models that are served, how requests to them become jobs, and what is measured."""

from __future__ import annotations

import hmac
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from adaptdel import __version__
from adaptdel.certification.sampling import SECRET_BITS, SamplingPlan
from adaptdel.core.checks import check_fields, check_int
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.files import read_json
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.model_files import EXAMPLES, load_model
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.serve.answers import ALL_OPERATIONS, Job, exact_result
from adaptdel.serve.configuration import SERVE, ServeSettings, named_folders, read_shared_seed, read_token
from adaptdel.serve.scheduler import Answers, InOrder, PoolScheduler, Scheduler, check_tokens
from adaptdel.serve.schemas import CertifyBody, PredictBody, Problem, shutting_down
from adaptdel.text.units import check_unit

TEXT_UNITS = ("word", "char", "byte", "chunk")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COPIES = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Meters:
    """What a server measures, for Prometheus. Labels come from fixed sets: routes, status codes, models."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        route, model = ("route",), ("model",)
        self.requests = Counter("adaptdel_requests", "Requests.", (*route, "code"), registry=registry)
        self.latency = Histogram(
            "adaptdel_request_seconds", "Time of a request.", route, buckets=SECONDS, registry=registry
        )
        self.in_flight = Gauge("adaptdel_requests_in_flight", "Requests that are worked on.", registry=registry)
        self.queue = Gauge("adaptdel_queue_texts", "Texts that wait for a place in the pool.", model, registry=registry)
        self.pool = Gauge("adaptdel_pool_texts", "Texts that are voted on together.", model, registry=registry)
        self.texts = Counter("adaptdel_texts", "Texts that were answered.", model, registry=registry)
        self.abstentions = Counter("adaptdel_abstentions", "Texts with no certificate.", model, registry=registry)
        self.late = Counter(
            "adaptdel_deadlines_reached", "Texts whose votes a deadline ended.", model, registry=registry
        )
        self.votes = Counter("adaptdel_votes", "Votes of the base classifier.", model, registry=registry)
        self.batches = Histogram(
            "adaptdel_batch_copies", "Copies in a batch.", model, buckets=COPIES, registry=registry
        )

    def request(self, route: str, code: int, seconds: float) -> None:
        """A request was answered."""
        self.requests.labels(route, str(code)).inc()
        self.latency.labels(route).observe(seconds)

    def batch(self, model: str, copies: int) -> None:
        """A batch was classified."""
        self.batches.labels(model).observe(copies)
        self.votes.labels(model).inc(copies)

    def answered(self, model: str, result: Mapping[str, Any]) -> None:
        """A text was answered."""
        self.texts.labels(model).inc()
        self.abstentions.labels(model).inc(result.get("abstained", False))
        self.late.labels(model).inc(result["deadline_reached"])

    def page(self) -> bytes:
        """All measurements in the text format of Prometheus."""
        return generate_latest(self.registry)


@dataclass(frozen=True)
class ModelToServe:
    """A model, its name in requests, and texts to try."""

    name: str
    model: SmoothedClassifier | AdditiveClassifier
    examples: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        unit = check_unit(self.model.unit)
        if unit.kind not in TEXT_UNITS:
            raise ValueError(f"model {self.name!r}: its unit {unit.kind!r} cannot be served: requests hold texts")

    @classmethod
    def load(cls, folder: Path, name: str = "") -> ModelToServe:
        """Read a model that ``save`` wrote, and its ``examples.json`` if there is one."""
        model = load_model(folder)
        path = folder / EXAMPLES
        examples = read_json(path, "the examples of a model").get("examples", []) if path.exists() else []
        for example in examples:
            try:
                check_fields(example, {"title": "a text", "text": "a text"})
            except ValueError as error:
                raise ValueError(f"{path}: damaged: {error}") from None
        return cls(name or folder.resolve().name, model, examples)


class ServedModel(ABC):
    """A model with its thread: `plan` reads a request, and the thread answers the job that is made of it.

    Attributes:
        scheduler: the thread.
    """

    scheduler: Scheduler

    def __init__(self, source: ModelToServe, settings: ServeSettings, meters: Meters) -> None:
        self.name, self.model, self.examples = source.name, source.model, source.examples
        self.settings, self.answered = settings, partial(meters.answered, self.name)
        meters.queue.labels(self.name).set_function(lambda: self.scheduler.sizes()[0])
        meters.pool.labels(self.name).set_function(lambda: self.scheduler.sizes()[1])

    @abstractmethod
    def plan(self, body: CertifyBody | PredictBody, seed: int) -> Any:
        """How a request is answered; ValueError if it asks for something that cannot be."""

    def info(self) -> dict[str, Any]:
        """What clients are told of the model."""
        base, stated = self.model.base_classifier(), self.model.run_settings()
        training = getattr(self.model, "training_", None) or {}
        return {
            "name": self.name,
            "kind": base.kind or type(base).__name__,
            "classes": list(base.classes_ or []),
            "unit": check_unit(self.model.unit).kind,
            "noise": None,
            "method": stated.get("method", training.get("method")),
            "alpha": stated["alpha"],
            "ops": stated["ops"],
            "certified_ops": list(ALL_OPERATIONS),
            "votes": None,
            "threshold": stated["threshold"],
            "fingerprint": base.fingerprint(),
            "examples": list(self.examples),
        }


class ServedSmoothed(ServedModel):
    """A smoothed model, whose thread takes votes for many requests at a time."""

    def __init__(self, source: ModelToServe, settings: ServeSettings, meters: Meters) -> None:
        super().__init__(source, settings, meters)
        assert isinstance(source.model, SmoothedClassifier)
        self.certifier = source.model.certifier()
        classified = partial(meters.batch, self.name)
        self.scheduler = PoolScheduler(self.name, settings, self.certifier, classified, self.answered)

    def plan(self, body: CertifyBody | PredictBody, seed: int) -> SamplingPlan:
        """The sampling plan of a request; ValueError if it asks for something that cannot be."""
        plan = replace(self.certifier.plan, seed=seed, secret=True)
        votes = body.votes
        for name in ("select", "estimate"):
            number = None if votes is None else getattr(votes, name)
            if number is not None:
                check_int(f"votes.{name}", number, least=1, most=self.settings.votes)
                plan = replace(plan, **{f"n_{name}": number})
        if isinstance(body, PredictBody):
            return replace(plan, n_estimate=0)
        if body.deadline_ms is not None:
            plan = replace(plan, interrupted=True)
        if body.alpha is not None:
            plan = replace(plan, alpha=body.alpha)
        if body.ops is not None:
            noise = plan.rule.noise
            threat = Threat(noise.certified_ops if body.ops == "edit" else body.ops)
            check_noise(noise, threat)
            plan = replace(plan, rule=replace(plan.rule, ops=threat.ops))
        return plan

    def info(self) -> dict[str, Any]:
        """What clients are told of the model."""
        plan = self.certifier.plan
        return super().info() | {
            "noise": repr(plan.rule.noise),
            "certified_ops": list(plan.rule.noise.certified_ops),
            "votes": {"select": plan.n_select, "estimate": plan.n_estimate},
        }


class ServedExact(ServedModel):
    """An additive model. Limits on alpha, votes and time always hold: a certificate is certain and takes no votes."""

    def __init__(self, source: ModelToServe, settings: ServeSettings, meters: Meters) -> None:
        super().__init__(source, settings, meters)
        assert isinstance(source.model, AdditiveClassifier)
        self.classifier, self.unit = source.model, check_unit(source.model.unit)
        self.scheduler = InOrder(self.name, settings, self.answer)

    def plan(self, body: CertifyBody | PredictBody, seed: int) -> Threat | None:
        """The attacker that a request names; None for a prediction."""
        if isinstance(body, PredictBody):
            return None
        return Threat(self.model.ops if body.ops is None else body.ops)

    def answer(self, job: Job, index: int) -> dict[str, Any]:
        """The result of a text."""
        tokens = self.unit.split(job.texts[index])
        check_tokens(len(tokens), self.settings)
        [certificate] = self.classifier.certify([job.texts[index]])
        result = exact_result(certificate, tokens, job)
        self.answered(result)
        return result


SERVED: Mapping[str, type[ServedModel]] = {
    SmoothedClassifier.kind: ServedSmoothed,
    AdditiveClassifier.kind: ServedExact,
}


@dataclass(eq=False)
class Service:
    """Models behind one application.

    Args:
        sources: the models; the first one answers requests that name none.
        settings: all limits.
        seed: the seed of the noise, for tests; None to draw a secret one.
        token: what clients have to present; None if anyone may call.
    """

    sources: Sequence[ModelToServe]
    settings: ServeSettings = SERVE
    seed: int | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise ValueError("sources must hold at least one model, got none")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models must have different names, got {name!r} twice: give NAME=FOLDER")
        if self.seed is not None:
            check_int("seed", self.seed, most=2**SECRET_BITS - 1)
        self._seed = secrets.randbits(SECRET_BITS) if self.seed is None else self.seed
        self.meters = Meters()
        self.models = {s.name: SERVED[s.model.kind](s, self.settings, self.meters) for s in self.sources}
        self.closing = False
        self.in_flight = 0  # requests that are worked on
        self.meters.in_flight.set_function(lambda: self.in_flight)

    @classmethod
    def load(
        cls,
        models: Sequence[str],
        settings: ServeSettings = SERVE,
        *,
        token_file: Path | None = None,
        seed_file: Path | None = None,
        seed: int | None = None,
    ) -> Service:
        """Read models from folders, each FOLDER or NAME=FOLDER, and the secrets from files.

        Args:
            models: the folders.
            settings: all limits.
            token_file: a file with the token of clients; None for the variable ADAPTDEL_TOKEN, or no token.
            seed_file: a file with a secret from which servers derive the same seed.
            seed: the seed itself, for tests.
        """
        if (seed is not None) + (seed_file is not None) + settings.seed_per_request > 1:
            raise ValueError("give only one of --seed, --seed-file and --seed-per-request")
        token = read_token(token_file)
        shared = seed if seed_file is None else read_shared_seed(seed_file)
        sources = [ModelToServe.load(folder, name) for name, folder in named_folders(models).items()]
        return cls(sources, settings, shared, token)

    def start(self) -> None:
        """Start the threads of the models."""
        for model in self.models.values():
            model.scheduler.start()

    def close(self) -> None:
        """Accept no more requests; those in flight go on."""
        self.closing = True
        for model in self.models.values():
            model.scheduler.close()

    def stop(self) -> None:
        """End the threads; requests that are not finished are refused."""
        self.close()
        for model in self.models.values():
            model.scheduler.stop()

    def authorized(self, header: str) -> bool:
        """Whether the header Authorization holds the token, compared in constant time."""
        if self.token is None:
            return True
        scheme, _, given = header.partition(" ")
        is_bearer = scheme.lower() == "bearer"
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token.encode()) and is_bearer

    def unready(self) -> str | None:
        """Why requests are not accepted; None if they are."""
        if self.closing:
            return "the server is shutting down"
        for model in self.models.values():
            if not model.scheduler.is_ready:
                return model.scheduler.fault or f"the model {model.name!r} is not ready yet"
        return None

    def info(self) -> dict[str, Any]:
        """The models and the limits."""
        models = [model.info() for model in self.models.values()]
        return {"models": models, "limits": self.settings.limits(), "version": __version__}

    def find(self, name: str | None) -> ServedModel:
        """The model that a request names."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Problem(404, f"there is no model {name!r:.80}, only {', '.join(map(repr, self.models))}")
        return self.models[name]

    def submit(self, body: CertifyBody | PredictBody) -> Answers:
        """Accept a request, or raise a `Problem`."""
        model, texts = self.find(body.model), body.all_texts()
        if self.closing:
            raise shutting_down()
        if len(texts) > self.settings.texts:
            raise Problem(413, f"a request may hold at most {self.settings.texts} texts, got {len(texts)}: split it")
        milliseconds = self.settings.deadline_ms
        seed = secrets.randbits(SECRET_BITS) if self.settings.seed_per_request else self._seed
        try:
            if body.deadline_ms is not None:
                milliseconds = check_int("deadline_ms", body.deadline_ms, least=1, most=milliseconds)
            plan = model.plan(body, seed)
        except ValueError as error:
            raise Problem(422, str(error)) from None
        answers = Answers(
            model.scheduler,
            texts,
            plan,
            deadline=time.monotonic() + milliseconds / 1000,
            influence=isinstance(body, CertifyBody) and body.influence,
            stream=isinstance(body, CertifyBody) and body.stream,
        )
        self.in_flight += 1
        return answers

    def finish(self, answers: Answers) -> None:
        """The response to a request was sent, or the client left: what is left of it is cancelled."""
        answers.cancel()
        self.in_flight -= 1
