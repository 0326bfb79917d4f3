"""The models of a server, its secrets, and the requests that it accepts."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptdel import __version__
from adaptdel.certification.evidence import SECRET_BITS
from adaptdel.core.checks import check_fields, check_int
from adaptdel.files import read_json
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import EXAMPLES, load_model
from adaptdel.serve.answers import Job
from adaptdel.serve.scheduler import Meters, ServedModel
from adaptdel.serve.schemas import Problem, TextsBody, shutting_down
from adaptdel.settings import SERVE, TOKEN_VARIABLE, ServeSettings
from adaptdel.text.units import check_unit

TEXT_UNITS = ("word", "char", "byte", "chunk")
LIMITS = ("texts", "tokens", "body_bytes", "votes", "deadline_ms")  # settings that clients have to know
SHORTEST_SECRET = 32  # characters of the file of a shared seed


@dataclass(frozen=True)
class ModelToServe:
    """A model, its name in requests, and texts to try."""

    name: str
    model: TextEstimator
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
            source.name: ServedModel(source.name, source.model, self.settings, self.meters) for source in self.sources
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
        limits = {name: getattr(self.settings, name) for name in LIMITS}
        models = [self.models[source.name].info() | {"examples": list(source.examples)} for source in self.sources]
        return {"models": models, "limits": limits, "version": __version__}

    def submit(self, body: TextsBody) -> Job:
        """Accept a request, or raise a `Problem`."""
        name, count = self.sources[0].name if body.model is None else body.model, len(body.all_texts())
        if name not in self.models:
            raise Problem(404, f"there is no model {name!r:.80}, only {', '.join(map(repr, self.models))}")
        if self.closing:
            raise shutting_down()
        if count > self.settings.texts:
            raise Problem(413, f"a request may hold at most {self.settings.texts} texts, got {count}: split it")
        seed = secrets.randbits(SECRET_BITS) if self.settings.seed_per_request else self._seed
        job = self.models[name].submit(body, seed)
        self.in_flight += 1
        return job

    def finish(self, job: Job) -> None:
        """The response to a request was sent, or the client left: what is left of it is cancelled."""
        job.cancel()
        self.in_flight -= 1


def named_folder(text: str) -> tuple[str, Path]:
    """The name of a model and its folder, from FOLDER or NAME=FOLDER."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        name, path = Path(text).resolve().name, text
    if not re.fullmatch(r"[^\s/\\\x00-\x1f\"%?#]{1,100}", name):
        raise ValueError(f"a model needs a name without spaces and slashes, got {name!r}: give NAME=FOLDER")
    return name, Path(path)


def read_token(file: Path | None) -> str | None:
    """The token of clients from the file or the environment; None if there is none."""
    variable = os.environ.get(TOKEN_VARIABLE)
    if file is None:
        source, text = f"the variable {TOKEN_VARIABLE}", variable
    elif variable is not None:
        raise ValueError(f"give either --token-file or the variable {TOKEN_VARIABLE}")
    else:
        source, text = str(file), _read(file, "a token")
    if text is None:
        return None
    token = text.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(f"{source}: must hold a token of letters, digits and signs without spaces")
    return token


def read_shared_seed(file: Path) -> int:
    """The seed of servers that have to give the same text the same answer, derived from a secret in a file."""
    secret = _read(file, "a secret").strip()
    if not re.fullmatch(r"[\x21-\x7e]+", secret) or len(secret) < SHORTEST_SECRET:
        raise ValueError(
            f"{file}: must hold at least {SHORTEST_SECRET} random characters without spaces, "
            "such as openssl rand -hex 32 writes"
        )
    digest = hashlib.sha256(b"adaptdel: seed of the noise\0" + secret.encode()).digest()
    return int.from_bytes(digest) >> (8 * len(digest) - SECRET_BITS)


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: must hold {what} in ASCII") from None
