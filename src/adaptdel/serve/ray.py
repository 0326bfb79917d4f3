"""The application on Ray Serve: replicas on one machine or on several.

    serve run adaptdel.serve.ray:build models=reviews=/srv/models/reviews replicas=2 seed_file=/run/secrets/seed

Every replica loads the models once and has its own threads. Files of models and secrets are read by the replicas, so
that every machine needs them at the same paths; no secret is sent through the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

try:
    from ray import serve
except ModuleNotFoundError as error:
    raise ImportError(f"Ray Serve needs {error.name}: pip install 'adaptdel[ray-serve]'") from None

from adaptdel.core.checks import check_int, check_real
from adaptdel.serve.app import create_app
from adaptdel.serve.configuration import SERVE, ServeSettings, named_folders
from adaptdel.serve.credentials import read_shared_seed, read_token
from adaptdel.serve.service import ModelToServe, Service

LOG = logging.getLogger("adaptdel.serve")


@dataclass(frozen=True)
class RayApplication:
    """What replicas serve, and how many there are.

    Args:
        models: folders of models, each as FOLDER or NAME=FOLDER; the first one answers requests that name none.
        replicas: the number of replicas.
        cpus: the number of processors that each replica reserves.
        token_file: a file with the token of clients; None for the variable ADAPTDEL_TOKEN of the replicas, or no token.
        seed_file: a file with a secret from which all replicas derive the same seed. Without it every replica draws a
            seed of its own: the same text may then get different votes from two replicas. Each answer is valid.
        seed: the seed itself, for tests only.
        settings: limits of each replica; ``host`` and ``port`` are those of Ray Serve. Unless ``allowed_hosts`` names
            others, only requests for localhost are answered.
    """

    models: Sequence[str]
    replicas: int = 2
    cpus: float = 1.0
    token_file: Path | None = None
    seed_file: Path | None = None
    seed: int | None = field(default=None, repr=False)
    settings: ServeSettings = SERVE

    def __post_init__(self) -> None:
        named_folders(self.models, "model")
        check_int("replicas", self.replicas, least=1)
        check_real("cpus", self.cpus, accepted="a number of processors from 0 to 1024", least=0.0, most=1024.0)
        secrets = (self.seed is not None, self.seed_file is not None, self.settings.seed_per_request)
        if sum(secrets) > 1:
            raise ValueError("give only one of seed, seed_file and seed_per_request")

    def service(self) -> Service:
        """Load the models and read the secrets; called in each replica."""
        sources = [ModelToServe.load(folder, name) for name, folder in named_folders(self.models, "model").items()]
        seed = self.seed if self.seed_file is None else read_shared_seed(self.seed_file)
        if seed is None and self.replicas > 1 and not self.settings.seed_per_request:
            LOG.warning("every replica draws a seed of its own: give seed_file for equal answers to equal texts")
        return Service(sources, self.settings, seed, read_token(self.token_file))

    def bind(self) -> serve.Application:
        """The application for ``ray.serve.run``."""

        def app() -> Any:
            return create_app(self.service())

        deployment = serve.deployment(
            name="adaptdel",
            num_replicas=self.replicas,
            ray_actor_options={"num_cpus": self.cpus},
            max_ongoing_requests=self.settings.in_flight,  # by default 5, so that few requests would share batches
            max_queued_requests=self.settings.queue,
            graceful_shutdown_timeout_s=self.settings.grace_seconds,
        )
        return deployment(serve.ingress(app)()).bind()


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application for ``serve run adaptdel.serve.ray:build NAME=VALUE ...`` and for files of ``serve deploy``.

    ``models`` and the other arguments of `RayApplication`, and all fields of `ServeSettings`. Lists may be given as
    texts with commas.
    """
    given = dict(arguments)
    own = {item.name: given.pop(item.name) for item in fields(RayApplication) if item.name in given}
    known = {item.name: str(item.type) for item in fields(ServeSettings)}
    unknown = sorted(set(given) - set(known) | {"host", "port", "settings"} & {*given, *own})
    if unknown or "models" not in own:
        raise ValueError(f"unknown argument {unknown[0]!r}" if unknown else "models must name folders, got none")
    kinds = {"models": "list", "replicas": "int", "cpus": "float", "seed": "int", **known}
    values = {name: _typed(name, value, kinds.get(name, "str")) for name, value in {**own, **given}.items()}
    for name in ("token_file", "seed_file"):
        if name in values:
            values[name] = Path(values[name])
    settings = ServeSettings(**{name: values.pop(name) for name in given})
    return RayApplication(settings=settings, **values).bind()


def _typed(name: str, value: Any, kind: str) -> Any:
    """A value that may be a text of the command line."""
    if kind == "list" or kind.startswith("tuple"):
        return tuple(value.split(",")) if isinstance(value, str) else tuple(value)
    if not isinstance(value, str) or kind == "str":
        return value
    readers: Mapping[str, Any] = {"int": int, "float": float, "bool": {"true": True, "false": False}.__getitem__}
    try:
        return readers[kind](value)
    except (KeyError, ValueError):
        accepted = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        raise ValueError(f"{name} must be {accepted}, got {value!r}") from None
