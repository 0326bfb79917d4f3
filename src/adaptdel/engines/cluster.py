"""The Ray engine: workers are Ray actors, on a cluster that is running or on this machine.

Every actor gets the files of the model from Ray's object store and loads the task once; no shared file system is
needed. Plain actors, and not the actor pools of Ray Data, which do not tell which item was with the actor that ended.
This module decides which actors there are, as nodes come and go; `adaptdel.engines.engine.Engine` hands out the items.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from adaptdel.engines.engine import (
    POLL,
    Chunk,
    Engine,
    EngineSettings,
    Loaded,
    Task,
    Work,
    Worker,
    cores,
    library_versions,
    sentence_of,
    thread_settings,
)

VERDICT_SECONDS = 20.0  # after an actor has ended: until then a node that died is known to be dead
CONNECT_SECONDS = 5.0
_EXTRA = "the engine 'ray' needs Ray: pip install 'adaptdel[ray]'"


class RayEngine(Engine):
    """Work in Ray actors: as many as the settings allow and as fit, with one CPU of the cluster left free."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._actors: list[ActorWorker] = []
        self.ray, self._owns, self._dashboard = _connect(
            settings.ray_address, settings.workers, settings.cpus_per_worker
        )
        self._class = self.ray.remote(_Actor)
        self._looked = 0.0
        self._wanted = 1
        self._shipped: tuple[Task, Any] | None = None  # the last task, and the reference of what actors load for it

    @property
    def description(self) -> str | None:
        """Where to watch the cluster."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
        where = f"; dashboard: http://{self._dashboard}" if self._dashboard else ""
        return f"Ray with {len(nodes)} node{'s' if len(nodes) != 1 else ''} and {cpus:g} CPUs{where}"

    def current_workers(self, left: int | None) -> Sequence[ActorWorker]:
        """The actors; once a second, new nodes get some, and there are fewer when nodes are gone."""
        if time.monotonic() - self._looked >= POLL:
            self._looked = time.monotonic()
            settings, nodes = self._settings, [node for node in self.ray.nodes() if node["Alive"]]
            fitting = capacity(
                [node["Resources"] for node in nodes], settings.cpus_per_worker, settings.gpus_per_worker
            )
            self._wanted = max(1, fitting if settings.workers is None else min(settings.workers, fitting))
            self._request_nodes(fitting)
        idle = [actor for actor in self._actors if not actor.in_flight and actor.ready is not None]
        for actor in idle[: max(len(self._actors) - self._wanted, 0)]:
            actor.stop()
            self._actors.remove(actor)
        while len(self._actors) < self._wanted:
            self._actors.append(ActorWorker(self))
            self._actors[-1].start()
        return self._actors

    def new_actor(self) -> Any:
        """The handle of a new actor."""
        settings = self._settings
        options: dict[str, Any] = {"num_cpus": settings.cpus_per_worker, "num_gpus": settings.gpus_per_worker}
        environment = {"env_vars": thread_settings(settings.cpus_per_worker)}
        return self._class.options(**options, runtime_env=environment).remote()

    def shipped(self, task: Task) -> list[Any]:
        """The reference of what actors load for a task, in a list, so that it is not fetched with every chunk."""
        if self._shipped is None or self._shipped[0] != task:
            files = [file for path in task.paths() for file in self._put(path)]
            self._shipped = task, self.ray.put(_Shipped(files, library_versions()))
        return [self._shipped[1]]

    def abandon(self) -> None:
        """Stop the actors that are busy."""
        for actor in self._actors:
            if actor.in_flight:
                actor.stop()
        self._actors = [actor for actor in self._actors if not actor.in_flight]

    def close(self) -> None:
        """Stop the actors, and Ray if it was started here."""
        for actor in self._actors:
            actor.stop()
        self._actors = []
        if self._owns:
            self.ray.shutdown()

    def _put(self, source: Path) -> list[_File]:
        """A file, or all files of a folder, in the object store."""
        paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
        try:
            contents = [self.ray.put(np.frombuffer(path.read_bytes(), np.uint8)) for path in paths]
        except OSError as error:
            raise ValueError(f"{source}: cannot be read: {error.strerror or error}") from None
        names = [path.relative_to(source).as_posix() for path in paths]
        return [_File(source, name, content) for name, content in zip(names, contents, strict=True)]

    def _request_nodes(self, fitting: int) -> None:
        """Ask the autoscaler, if there is one, for nodes for the actors that do not fit."""
        settings = self._settings
        if settings.workers is not None and settings.workers > fitting:
            with suppress(Exception):  # a cluster without an autoscaler
                from ray.autoscaler.sdk import request_resources

                bundle: dict[str, float] = {"CPU": settings.cpus_per_worker}
                bundle |= {"GPU": settings.gpus_per_worker} if settings.gpus_per_worker else {}
                request_resources(bundles=[*([bundle] * settings.workers), {"CPU": 1}])


def capacity(nodes: list[dict[str, float]], cpus: int, gpus: float) -> int:
    """How many actors fit on nodes with these resources if one CPU of the cluster stays free for everything else.

    >>> capacity([{"CPU": 4}, {"CPU": 4}], 1, 0)
    7
    """
    most = [int(node.get("GPU", 0) / gpus) if gpus else 10**9 for node in nodes]
    total = sum(min(int(node.get("CPU", 0) // cpus), limit) for node, limit in zip(nodes, most, strict=True))
    all_cpus = sum(node.get("CPU", 0) for node in nodes)
    return total - 1 if total > 1 and total * cpus > all_cpus - 1 else total


class ActorWorker(Worker):
    """The driver's end of an actor."""

    def __init__(self, engine: RayEngine) -> None:
        super().__init__()
        self._engine = engine
        self.lost = engine.ray.exceptions.RayError  # type: ignore[misc]
        self._handle: Any = None
        self._node: str | None = None

    def start(self) -> None:
        """Create an actor."""
        self._handle = self._engine.new_actor()
        self.ready = self._handle.node.remote().future()

    def started(self, value: str) -> None:
        """Keep the id of the node."""
        self._node = value

    def submit(self, task: Task, chunk: Chunk) -> Future[Any]:
        """The future of the results of a chunk."""
        future: Future[Any] = self._handle.run.remote(task, self._engine.shipped(task), chunk.items).future()
        return future

    def stop(self) -> None:
        """Kill the actor."""
        with suppress(Exception):
            self._engine.ray.kill(self._handle)

    def is_elsewhere(self, error: BaseException) -> bool:
        """Whether the node has died; it takes some time until that is known."""
        until = time.monotonic() + VERDICT_SECONDS
        while time.monotonic() < until:
            if self._node not in {node["NodeID"] for node in self._engine.ray.nodes() if node["Alive"]}:
                return True
            time.sleep(0.2)
        return False


@dataclass(frozen=True)
class _File:
    """A file of a task: its path on the driver is ``source``, or ``name`` in the folder ``source``."""

    source: Path
    name: str
    reference: Any


@dataclass(frozen=True)
class _Shipped:
    """What an actor needs to load a task."""

    files: list[_File]
    versions: dict[str, str]


class _Actor:
    """The actor: it loads a task when it gets one that it does not have, and works on chunks."""

    def __init__(self) -> None:
        self._loaded = Loaded()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def node(self) -> str:
        """The id of the node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, task: Task, shipped: list[Any], items: list[tuple[int, Any]]) -> tuple[float, list[Any] | str]:
        """The time, and the results or a sentence if the whole work cannot go on."""
        return self._loaded.do(task, lambda: self._load(task, shipped[0]), items)

    def _load(self, task: Task, reference: Any) -> Work:
        import ray

        shipped: _Shipped = ray.get(reference)
        node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        for name, own in library_versions(shipped.versions).items():
            if own != shipped.versions[name]:
                raise ValueError(
                    f"the node {node} has {name} {own}, and the driver {shipped.versions[name]}: install the same "
                    "versions everywhere"
                )
        self._folder = tempfile.TemporaryDirectory(prefix="adaptdel-")
        copies = {path: Path(self._folder.name) / f"{place}{path.suffix}" for place, path in enumerate(task.paths())}
        for file in shipped.files:
            path = copies[file.source] / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(ray.get(file.reference).tobytes())
        try:
            return task.at(copies).load()
        except Exception as error:
            what = sentence_of(error)
            for original, copy in copies.items():
                what = what.replace(str(copy), str(original))
            raise ValueError(f"the node {node} cannot load the model: {what}") from None


def _connect(address: str | None, workers: int | None, cpus: int) -> tuple[Any, bool, str]:
    """Ray's module, whether Ray was started or connected to here, and the address of the dashboard."""
    try:
        import ray
        import ray.util
    except ImportError:
        raise ImportError(_EXTRA) from None
    if ray.is_initialized():
        return ray, False, ""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "adaptdel"}
    if address is None:
        # "local" never connects to a cluster that somebody else runs on this machine. Ray's CPUs only count actors: on
        # a machine with fewer, the workers that were asked for share them.
        options |= {"address": "local", "num_cpus": max(cores(), (workers or 1) * cpus + 1)}
    else:
        options["address"] = address
        _check_address(address)
    try:
        context = ray.init(**options)
    except Exception as error:  # Ray raises errors of several kinds
        text = " ".join(str(error).split())
        if address is None:
            raise ValueError(f"Ray cannot be started on this machine: {text[:300]}") from None
        if "ersion" in text and "mismatch" in text:
            raise ValueError(
                f"{address}: the versions of Ray or Python differ between the driver and the cluster: {text[:200]}: "
                "install the same versions everywhere"
            ) from None
        raise ValueError(f"{address}: no Ray cluster answers: {_START}: {text[:200]}") from None
    return ray, True, str(getattr(context, "dashboard_url", "") or "")


_START = "start one with: ray start --head, or omit --ray-address to use this machine"


def _check_address(address: str) -> None:
    """Raise at once if nothing listens at the address: Ray itself would wait for a minute."""
    if address in ("auto", "local"):
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise ValueError(f"{address}: the address of a Ray cluster must be auto, or host:port such as 10.0.0.1:6379")
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{address}: no Ray cluster answers ({reason}): {_START}") from None
