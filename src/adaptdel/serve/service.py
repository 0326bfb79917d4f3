"""The models of a server, and the requests that it accepts."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptdel import __version__
from adaptdel.certification.sampling import SECRET_BITS
from adaptdel.core.checks import check_fields, check_int
from adaptdel.files import read_json
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.model_files import EXAMPLES, load_model
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.serve.answers import Job
from adaptdel.serve.configuration import SERVE, ServeSettings, named_folder, read_shared_seed, read_token
from adaptdel.serve.scheduler import SERVED, Meters, ServedModel
from adaptdel.serve.schemas import CertifyBody, PredictBody, Problem, shutting_down
from adaptdel.text.units import check_unit

TEXT_UNITS = ("word", "char", "byte", "chunk")


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
        if not names or len(set(names)) < len(names):
            raise ValueError(f"models must have different names, and there must be one, got {names}: give NAME=FOLDER")
        if self.seed is not None:
            check_int("seed", self.seed, most=2**SECRET_BITS - 1)
        self._seed = secrets.randbits(SECRET_BITS) if self.seed is None else self.seed
        self.meters = Meters()
        self.models: dict[str, ServedModel] = {
            source.name: SERVED[source.model.kind](source.name, source.model, self.settings, self.meters)
            for source in self.sources
        }
        self.closing = False
        self.in_flight = 0  # requests that are worked on
        self.held_bytes = 0  # of the bodies of requests that are not answered
        self.meters.in_flight.set_function(lambda: self.in_flight)

    @classmethod
    def load(
        cls,
        models: Sequence[str],
        settings: ServeSettings = SERVE,
        *,
        token_file: Path | None = None,
        seed_file: Path | None = None,
    ) -> Service:
        """Read models from folders, each FOLDER or NAME=FOLDER, and the secrets from files.

        Without ``token_file`` the token is that of the variable ADAPTDEL_TOKEN, if any; without ``seed_file``, from
        which servers derive the same seed, a seed is drawn.
        """
        if seed_file is not None and settings.seed_per_request:
            raise ValueError("give only one of --seed-file and --seed-per-request")
        token = read_token(token_file)
        seed = None if seed_file is None else read_shared_seed(seed_file)
        sources = [ModelToServe.load(folder, name) for name, folder in map(named_folder, models)]
        return cls(sources, settings, seed, token)

    def start(self) -> None:
        """Start the threads of the models."""
        for model in self.models.values():
            model.start()

    def close(self) -> None:
        """Accept no more requests; those in flight go on."""
        self.closing = True
        for model in self.models.values():
            model.close()

    def stop(self) -> None:
        """End the threads; requests that are not finished are refused."""
        self.close()
        for model in self.models.values():
            model.stop()

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
        return next(filter(None, (model.unready() for model in self.models.values())), None)

    def info(self) -> dict[str, Any]:
        """The models and the limits."""
        models = [self.models[source.name].info() | {"examples": list(source.examples)} for source in self.sources]
        return {"models": models, "limits": self.settings.limits(), "version": __version__}

    def submit(self, body: CertifyBody | PredictBody) -> Job:
        """Accept a request, or raise a `Problem`."""
        name, texts = self.sources[0].name if body.model is None else body.model, body.all_texts()
        if name not in self.models:
            raise Problem(404, f"there is no model {name!r:.80}, only {', '.join(map(repr, self.models))}")
        if self.closing:
            raise shutting_down()
        if len(texts) > self.settings.texts:
            raise Problem(413, f"a request may hold at most {self.settings.texts} texts, got {len(texts)}: split it")
        model, milliseconds = self.models[name], self.settings.deadline_ms
        seed = secrets.randbits(SECRET_BITS) if self.settings.seed_per_request else self._seed
        try:
            if body.deadline_ms is not None:
                milliseconds = check_int("deadline_ms", body.deadline_ms, least=1, most=milliseconds)
            plan = model.plan(body, seed)
        except ValueError as error:
            raise Problem(422, str(error)) from None
        job = Job(
            name,
            texts,
            plan,
            model.cancel,
            deadline=time.monotonic() + milliseconds / 1000,
            influence=isinstance(body, CertifyBody) and body.influence,
            stream=isinstance(body, CertifyBody) and body.stream,
        )
        model.submit(job)
        self.in_flight += 1
        return job

    def finish(self, job: Job) -> None:
        """The response to a request was sent, or the client left: what is left of it is cancelled."""
        job.cancel()
        self.in_flight -= 1
