"""The Ray engine: workers are Ray actors, on a cluster that is running or on this machine.

Every actor gets the files of the model from Ray's object store and loads the task once; no shared file system is
needed. Plain actors, and not the actor pools of Ray Data, which do not tell which item was with the actor that ended.
This module decides which actors there are; `adaptdel.runs.engine.Engine` hands out the items.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from concurrent.futures import Future
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from adaptdel.runs.engine import (
    POLL,
    Chunk,
    Engine,
    EngineSettings,
    Loaded,
    Task,
    Work,
    Worker,
    cores,
    sentence_of,
    thread_settings,
    versions,
)


class RayEngine(Engine):
    """Work in Ray actors: as many as the settings say, or as fit with one CPU of the cluster left free."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self._settings = settings
        self.ray, self._owns, dashboard = _connect(settings)
        self._class = self.ray.remote(_Actor)
        self._size, self._looked = 0, 0.0
        self._shipped: tuple[Task, Any] | None = None  # the last task, and the reference of what actors load for it
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        cpus = self.ray.cluster_resources().get("CPU", 0)
        where = f"; dashboard: http://{dashboard}" if dashboard else ""
        self.description = f"Ray with {nodes} node{'s' if nodes != 1 else ''} and {cpus:g} CPUs{where}"

    def size(self, left: int) -> int:
        """As many as fit on the nodes that are there now; Ray starts those that do not fit yet as soon as they do."""
        if time.monotonic() - self._looked >= POLL:
            self._looked, settings = time.monotonic(), self._settings
            held = self.ray.cluster_resources()
            self._size = settings.workers or capacity(held, settings.cpus_per_worker, settings.gpus_per_worker)
        return self._size

    def new_worker(self) -> ActorWorker:
        """An actor."""
        settings = self._settings
        options: dict[str, Any] = {"num_cpus": settings.cpus_per_worker, "num_gpus": settings.gpus_per_worker}
        environment = {"env_vars": thread_settings(settings.cpus_per_worker)}
        return ActorWorker(self, self._class.options(**options, runtime_env=environment))

    def shipped(self, task: Task) -> list[Any]:
        """The reference of what actors load for a task, in a list, so that it is not fetched with every chunk."""
        if self._shipped is None or self._shipped[0] != task:
            try:
                files = {path: _contents(path) for path in task.paths()}
            except OSError as error:
                raise ValueError(f"{error.filename}: cannot be read: {error.strerror or error}") from None
            self._shipped = task, self.ray.put((files, versions()))
        return [self._shipped[1]]

    def __exit__(self, *error: object) -> None:
        """Stop the actors, and Ray if it was started here."""
        self.stop_workers()
        if self._owns:
            self.ray.shutdown()


def capacity(held: dict[str, float], cpus: int, gpus: float) -> int:
    """How many actors fit on a cluster, if one CPU stays free for everything else; at least one.

    >>> [capacity({"CPU": 9, "GPU": 1}, *needed) for needed in ((1, 0), (2, 0), (1, 0.5), (16, 0))]
    [8, 4, 2, 1]
    """
    fitting = (held.get("CPU", 0) - 1) // cpus
    return max(1, int(min(fitting, held.get("GPU", 0) // gpus) if gpus else fitting))


class ActorWorker(Worker):
    """The driver's end of an actor."""

    def __init__(self, engine: RayEngine, kind: Any) -> None:
        super().__init__()
        self._engine, self._kind = engine, kind
        self.lost = engine.ray.exceptions.RayError  # type: ignore[misc]
        self._handle: Any = None

    def start(self) -> None:
        """Create an actor."""
        self._handle = self._kind.remote()
        self.ready = self._handle.start.remote().future()

    def submit(self, task: Task, chunk: Chunk) -> Future[Any]:
        """The future of the results of a chunk."""
        future: Future[Any] = self._handle.run.remote(task, self._engine.shipped(task), chunk.items).future()
        return future

    def stop(self) -> None:
        """Kill the actor."""
        with suppress(Exception):
            self._engine.ray.kill(self._handle)


class _Actor:
    """The actor: it loads a task when it gets one that it does not have, and works on chunks."""

    def __init__(self) -> None:
        self._loaded = Loaded()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Nothing: the call ends when the actor is there."""

    def run(self, task: Task, shipped: list[Any], items: list[Any]) -> list[Any] | str:
        """The results, or a sentence if the whole work cannot go on."""
        return self._loaded.do(task, lambda: self._load(task, shipped[0]), items)

    def _load(self, task: Task, reference: Any) -> Work:
        import ray

        files, expected = ray.get(reference)
        node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        installed = versions(expected)
        for name in expected:
            if installed.get(name) != expected[name]:
                raise ValueError(
                    f"the node {node} has {name} {installed.get(name)}, and the driver {expected[name]}: install the "
                    "same versions everywhere"
                )
        self._folder = tempfile.TemporaryDirectory(prefix="adaptdel-")
        copies = {path: Path(self._folder.name) / f"{number}{path.suffix}" for number, path in enumerate(files)}
        for path, contents in files.items():
            for name, content in contents.items():
                target = copies[path] / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        try:
            return task.at(copies).load()
        except Exception as error:
            what = sentence_of(error)
            for original, copy in copies.items():
                what = what.replace(str(copy), str(original))
            raise ValueError(f"the node {node} cannot load the model: {what}") from None


def _contents(path: Path) -> dict[str, bytes]:
    """The contents of a file, or of all files in a folder by their names there."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def _connect(settings: EngineSettings) -> tuple[Any, bool, str]:
    """Ray's module, whether Ray was started or connected to here, and the address of the dashboard."""
    try:
        import ray
        import ray.util
    except ImportError:
        raise ImportError("the engine 'ray' needs Ray: pip install 'adaptdel[ray]'") from None
    if ray.is_initialized():
        return ray, False, ""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "adaptdel"}
    if settings.ray_address is None:
        # "local" never connects to a cluster that somebody else runs on this machine. Ray's CPUs only count actors: on
        # a machine with fewer, the workers that were asked for share them.
        cpus = max(cores(), (settings.workers or 1) * settings.cpus_per_worker + 1)
        options |= {"address": "local", "num_cpus": cpus}
    else:
        options["address"] = settings.ray_address
    try:
        # Ray puts the working directory first on the path of its processes: another one, unless it is on ours.
        with chdir(os.getcwd() if {"", os.getcwd()} & {*sys.path} else os.sep):
            context = ray.init(**options)
    except Exception as error:  # Ray raises errors of several kinds
        reason = " ".join(str(error).split())[:300]
        if settings.ray_address is None:
            raise ValueError(f"Ray cannot be started on this machine: {reason}") from None
        raise ValueError(
            f"{settings.ray_address}: no Ray cluster answers: start one with: ray start --head, or omit ray_address "
            f"to use this machine: {reason}"
        ) from None
    return ray, True, str(getattr(context, "dashboard_url", "") or "")
