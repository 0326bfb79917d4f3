"""The Ray engine: workers are Ray actors, on a cluster that is running or on this machine.

Every actor gets the files of the model from Ray's object store, checks their hashes and loads the task once; no shared
file system is needed. Ray restarts actors and repeats their calls. This module decides which actors there are, as nodes
come and go, and what happens to items whose actor dies again and again: such items are tried alone, on different
actors, and then get a failure. At most `DEPTH` chunks per actor are in flight, whatever the number of items.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from adaptdel.core.checks import check_int, check_real
from adaptdel.engines.engine import (
    Engine,
    Task,
    Work,
    WorkerError,
    cores,
    library_versions,
    sentence_of,
    thread_settings,
)

DEPTH = 2  # chunks in flight for each actor: one is worked on, one waits
CHUNK, LARGEST_CHUNK = 8, 128  # items in a chunk at the beginning, and at most
CHUNK_CHARACTERS = 200_000
LONG = 20_000  # characters: an item of this size is sent alone
QUICK, SLOW = 0.5, 3.0  # seconds that a chunk should take at least and at most
POLL = 1.0  # seconds between two looks at the nodes
ATTEMPTS = 2  # actors that an item may end, each alone, until it counts as failed
VERDICT_SECONDS = 20.0  # after the last of these: until then a node that died is known to be dead
CONNECT_SECONDS = 5.0
_EXTRA = "the engine 'ray' needs Ray: pip install 'adaptdel[ray]'"
_log = logging.getLogger(__name__)


class RayEngine(Engine):
    """Work in Ray actors.

    Args:
        address: "auto", or the address of a running cluster; None starts Ray on this machine, unless it is running in
            this process already.
        workers: the largest number of actors; None for as many as the cluster has CPUs for, one of them left free.
        cpus_per_worker: CPUs that every actor reserves, and threads that it may use.
        gpus_per_worker: GPUs that every actor reserves; a fraction shares a GPU.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_worker: int = 1,
        gpus_per_worker: float = 0.0,
    ) -> None:
        if workers is not None:
            check_int("workers", workers, least=1)
        self._limit = workers
        self._cpus = check_int("cpus_per_worker", cpus_per_worker, least=1)
        self._gpus = check_real("gpus_per_worker", gpus_per_worker, accepted="at least 0", least=0.0, most=1024.0)
        self._actors: list[_Actor] = []
        self._most = 0
        self._files: dict[Path, list[_File]] = {}
        self._ray, self._owns, self._dashboard = _connect(address, workers, self._cpus)
        self._class = self._ray.remote(_RayWorker)
        self._looked = 0.0
        self._shipped: tuple[Task, str, Any] | None = None  # the last task, its key, its reference
        self._alive: set[str] = set()
        self._wanted = 1

    @property
    def workers(self) -> int:
        """The largest number of actors so far."""
        return max(self._most, 1)

    @property
    def description(self) -> str | None:
        """Where to watch the cluster."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
        where = f"; dashboard: http://{self._dashboard}" if self._dashboard else ""
        return f"Ray with {len(nodes)} node{'s' if len(nodes) != 1 else ''} and {cpus:g} CPUs{where}"

    def map(self, task: Task, items: Iterable[Any], total: int | None = None) -> Generator[Any, None, None]:
        """Yield the result of every item, in the order in which they are finished."""
        if self._shipped is None or self._shipped[0] != task:
            content = _Shipped(task, self._put_files(task), library_versions())
            self._shipped = task, f"{os.getpid()} {time.time_ns()}", self._ray.put(content)
        _, key, shipped = self._shipped
        try:
            yield from _Map(self, task, key, shipped, iter(items), total).results()
        finally:
            for actor in self._actors:
                if actor.in_flight:  # the caller has stopped, or there was an error
                    self._kill(actor)
            self._actors = [actor for actor in self._actors if not actor.retired]

    def close(self) -> None:
        """Stop the actors, and Ray if it was started here."""
        for actor in self._actors:
            self._kill(actor)
        self._actors = []
        if self._owns:
            self._ray.shutdown()

    def _put_files(self, task: Task) -> list[_File]:
        """The files that the task reads in the object store, with their hashes; those of earlier tasks are released."""
        self._files = {path: self._files.get(path) or self._put(path) for path in task.paths()}
        return [file for path in task.paths() for file in self._files[path]]

    def _put(self, source: Path) -> list[_File]:
        """A file, or all files of a folder."""
        files = []
        try:
            for path in [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file()):
                data = path.read_bytes()
                reference = self._ray.put(np.frombuffer(data, np.uint8))
                name = path.relative_to(source).as_posix()
                files.append(_File(source, name, hashlib.sha256(data).hexdigest(), reference))
        except OSError as error:
            raise ValueError(f"{source}: cannot be read: {error.strerror or error}") from None
        return files

    # What `_Map` uses.

    def wait(self, references: list[Any]) -> list[Any]:
        """Those of the references that are ready, within `POLL` seconds."""
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = self._ray.wait(references, num_returns=1, timeout=POLL, fetch_local=False)
        return list(ready)

    def get(self, reference: Any) -> Any:
        """The value of a reference; an error of Ray is raised as `ActorLostError`."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise ActorLostError(" ".join(str(error).split())) from None

    def actors(self) -> list[_Actor]:
        """The actors; once a second, new nodes get some, and those of dead nodes without a substitute are removed."""
        if time.monotonic() - self._looked >= POLL:
            self._looked = time.monotonic()
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            self._alive = {node["NodeID"] for node in nodes}
            fitting = capacity([node["Resources"] for node in nodes], self._cpus, self._gpus)
            self._wanted = max(1, fitting if self._limit is None else min(self._limit, fitting))
            self._request_nodes(fitting)
            surplus = len(self._actors) - self._wanted
            for actor in [actor for actor in self._actors if actor.node not in self._alive][: max(surplus, 0)]:
                self._kill(actor)
        self._actors = [actor for actor in self._actors if not actor.retired or actor.in_flight]
        while len([actor for actor in self._actors if not actor.retired]) < self._wanted:
            self._start_actor()
        return self._actors

    def is_alive(self, node: str | None) -> bool:
        """Whether a node was alive at the last look."""
        return node in self._alive

    def _request_nodes(self, fitting: int) -> None:
        """Ask the autoscaler, if there is one, for nodes for the actors that do not fit."""
        if self._limit is not None and self._limit > fitting:
            with suppress(Exception):  # a cluster without an autoscaler
                from ray.autoscaler.sdk import request_resources

                bundle = {"CPU": self._cpus, **({"GPU": self._gpus} if self._gpus else {})}
                request_resources(bundles=[*([bundle] * self._limit), {"CPU": 1}])

    def _start_actor(self) -> None:
        options: dict[str, Any] = {
            "num_cpus": self._cpus,
            "num_gpus": self._gpus,
            "max_restarts": -1,
            "max_task_retries": 1,
            "runtime_env": {"env_vars": thread_settings(self._cpus)},
        }
        handle = self._class.options(**options).remote()
        self._actors.append(_Actor(handle, handle.node.remote()))
        self._most = max(self._most, sum(not actor.retired for actor in self._actors))

    def _kill(self, actor: _Actor) -> None:
        actor.retired = True
        with suppress(Exception):
            self._ray.kill(actor.handle)


def capacity(nodes: list[dict[str, float]], cpus: int, gpus: float) -> int:
    """How many actors fit on nodes with these resources if one CPU of the cluster stays free for everything else.

    >>> capacity([{"CPU": 4}, {"CPU": 4}], 1, 0)
    7
    """
    most = [int(node.get("GPU", 0) / gpus) if gpus else 10**9 for node in nodes]
    total = sum(min(int(node.get("CPU", 0) // cpus), limit) for node, limit in zip(nodes, most, strict=True))
    all_cpus = sum(node.get("CPU", 0) for node in nodes)
    return total - 1 if total > 1 and total * cpus > all_cpus - 1 else total


class ActorLostError(Exception):
    """Ray gave up on a call: its actor, its node or its result is gone."""


@dataclass(frozen=True)
class _File:
    """A file of a task: its path on the driver is ``source``, or ``name`` in the folder ``source``."""

    source: Path
    name: str
    sha256: str
    reference: Any


@dataclass(frozen=True)
class _Shipped:
    """What an actor loads."""

    task: Task
    files: list[_File]
    versions: dict[str, str]


class _RayWorker:
    """The actor: it loads a task when it gets one that it does not have, and works on chunks."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._work: Work | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def node(self) -> str:
        """The id of the node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, key: str, shipped: list[Any], chunk: list[tuple[int, Any]]) -> tuple[str, float, list[Any] | str]:
        """The id of the node, the time, and the numbered results or a sentence if the whole work cannot go on."""
        try:
            if key != self._key:
                self._work, self._key = self._load(shipped[0]), key
            assert self._work is not None
            start = time.perf_counter()
            results = list(self._work(chunk))
            return self.node(), time.perf_counter() - start, results
        except Exception as error:
            return self.node(), 0.0, sentence_of(error)

    def _load(self, reference: Any) -> Work:
        import ray

        shipped: _Shipped = ray.get(reference)
        node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        here = library_versions() | {name: "none" for name in shipped.versions if name not in library_versions()}
        for name, version in shipped.versions.items():
            own = _installed(name) if here[name] == "none" else here[name]
            if own != version:
                raise ValueError(
                    f"the node {node} has {name} {own}, and the driver {version}: install the same versions everywhere"
                )
        self._folder = tempfile.TemporaryDirectory(prefix="adaptdel-")
        copies = {
            path: Path(self._folder.name) / f"{place}{path.suffix}" for place, path in enumerate(shipped.task.paths())
        }
        for file in shipped.files:
            data = ray.get(file.reference).tobytes()
            if hashlib.sha256(data).hexdigest() != file.sha256:
                raise ValueError(f"{file.source / file.name}: was damaged on its way to the node {node}")
            path = copies[file.source] / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            return shipped.task.at(copies).load()
        except Exception as error:
            what = sentence_of(error)
            for original, copy in copies.items():
                what = what.replace(str(copy), str(original))
            raise ValueError(f"the node {node} cannot load the model: {what}") from None


def _installed(name: str) -> str:
    """The version of a library that is not imported yet."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


@dataclass(eq=False)
class _Actor:
    """The driver's end of an actor.

    Attributes:
        handle: Ray's handle.
        ready: the reference of a call that ends when the actor is there; None if it is.
        node: the id of its node.
        in_flight: chunks by the reference of their call.
        retired: whether it was removed.
    """

    handle: Any
    ready: Any
    node: str | None = None
    in_flight: dict[Any, _Chunk] = field(default_factory=dict)
    retired: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it can get another chunk; one that may end the actor is alone with it."""
        alone = any(chunk.alone for chunk in self.in_flight.values())
        return self.ready is None and not self.retired and not alone and len(self.in_flight) < DEPTH


@dataclass(eq=False)
class _Chunk:
    """Numbered items; ``alone`` if it is a single item that may end its actor, with the nodes where it did and when."""

    items: list[tuple[int, Any]]
    alone: bool = False
    ended: list[tuple[str | None, float]] = field(default_factory=list)
    avoid: list[_Actor] = field(default_factory=list)


class _Map:
    """A call of `RayEngine.map`: hand out chunks, collect results, judge items whose actor died."""

    def __init__(
        self, engine: RayEngine, task: Task, key: str, shipped: Any, items: Iterator[Any], total: int | None
    ) -> None:
        self.engine, self.task, self.key, self.shipped, self.left = engine, task, key, shipped, total
        self.items: Iterator[tuple[int, Any]] = enumerate(items)
        self.exhausted = False
        self.held: tuple[int, Any] | None = None  # an item that was too long for the chunk
        self.again: deque[_Chunk] = deque()  # chunks of nodes that died
        self.suspects: deque[_Chunk] = deque()
        self.size = CHUNK

    def results(self) -> Iterator[Any]:
        """The results in order of completion."""
        while True:
            actors = self.engine.actors()
            for actor in actors:
                while actor.is_free and (chunk := self._next_chunk(actor, len(actors))) is not None:
                    self._send(actor, chunk)
            yield from self._verdicts()
            references = {reference: actor for actor in actors for reference in actor.in_flight}
            if not references and self._is_done():
                return
            waiting = {actor.ready: actor for actor in actors if actor.ready is not None and not actor.retired}
            if not references and not waiting:
                time.sleep(0.1)  # for a verdict
                continue
            for reference in self.engine.wait([*references, *waiting]):
                if reference in waiting:
                    self._greet(waiting[reference])
                else:
                    yield from self._collect(references[reference], reference)

    def _is_done(self) -> bool:
        return self.exhausted and self.held is None and not self.again and not self.suspects

    def _send(self, actor: _Actor, chunk: _Chunk) -> None:
        call = actor.handle.run.options(max_task_retries=0) if chunk.alone else actor.handle.run
        actor.in_flight[call.remote(self.key, [self.shipped], chunk.items)] = chunk

    def _greet(self, actor: _Actor) -> None:
        """An actor has started, or started again."""
        reference, actor.ready = actor.ready, None
        try:
            actor.node = self.engine.get(reference)
        except ActorLostError as error:
            if "No module named" in str(error) or "ModuleNotFoundError" in str(error):
                raise WorkerError(
                    "a node of the cluster cannot import adaptdel: install the version of the driver, "
                    f"{library_versions()['adaptdel']}, and its extras on every node: {self.task.try_again}"
                ) from None
            actor.ready = actor.handle.node.remote()

    def _collect(self, actor: _Actor, reference: Any) -> Iterator[Any]:
        chunk = actor.in_flight.pop(reference)
        try:
            # Ray may have started the actor again on another node, and repeated the call there.
            actor.node, seconds, results = self.engine.get(reference)
        except ActorLostError as error:
            _log.info("an actor was lost: %s", error)
            self._lost(actor, chunk)
            return
        if isinstance(results, str):
            raise WorkerError(f"{results}: {self.task.try_again}")
        if not chunk.alone:
            if seconds < QUICK and len(chunk.items) >= self.size:
                self.size = min(2 * self.size, LARGEST_CHUNK)
            elif seconds > SLOW:
                self.size = max(self.size // 2, 1)
        for _, result in results:
            if self.left is not None:
                self.left -= 1
            yield result

    def _lost(self, actor: _Actor, chunk: _Chunk) -> None:
        """Send a chunk again: as it is if its node is gone, else item by item, since one may have ended the actor."""
        if actor.retired or not self.engine.is_alive(actor.node):
            self.again.append(chunk)
        elif chunk.alone:
            chunk.ended.append((actor.node, time.monotonic()))
            chunk.avoid.append(actor)
            self.suspects.append(chunk)
        else:
            self.suspects.extend(_Chunk([item], alone=True, avoid=[actor]) for item in chunk.items)
        if not actor.retired and actor.ready is None:
            actor.ready = actor.handle.node.remote()  # which node it is on now

    def _verdicts(self) -> Iterator[Any]:
        """Failures of items that ended `ATTEMPTS` actors on nodes that are still alive."""
        for chunk in list(self.suspects):
            ended = [when for node, when in chunk.ended if self.engine.is_alive(node)]
            if len(ended) >= ATTEMPTS and time.monotonic() - max(ended) >= VERDICT_SECONDS:
                self.suspects.remove(chunk)
                if self.left is not None:
                    self.left -= 1
                reason = f"it ended its worker {len(ended)} times, as when memory runs out"
                yield self.task.failed(chunk.items[0][1], reason)

    def _next_chunk(self, actor: _Actor, actors: int) -> _Chunk | None:
        """The next chunk for an actor: items that are tried again first."""
        if self.again:
            return self.again.popleft()
        for chunk in self.suspects:
            judged = sum(self.engine.is_alive(node) for node, _ in chunk.ended) >= ATTEMPTS
            elsewhere = actor not in chunk.avoid or actors <= len(set(chunk.avoid))
            if not judged and elsewhere and not actor.in_flight:
                self.suspects.remove(chunk)
                return chunk
        return self._fresh_chunk(actors)

    def _fresh_chunk(self, actors: int) -> _Chunk | None:
        """A chunk of new items: fewer towards the end, and a long item alone."""
        size = self.size
        if self.left is not None:
            size = min(size, max(1, ceil(self.left / (2 * DEPTH * max(actors, 1)))))
        chunk: list[tuple[int, Any]] = []
        characters = 0
        while len(chunk) < size and characters < CHUNK_CHARACTERS:
            numbered = self.held or self._next_item()
            self.held = None
            if numbered is None:
                break
            length = self.task.size(numbered[1])
            if length >= LONG and chunk:
                self.held = numbered
                break
            chunk.append(numbered)
            characters += length
            if length >= LONG:
                break
        return _Chunk(chunk) if chunk else None

    def _next_item(self) -> tuple[int, Any] | None:
        if not self.exhausted:
            try:
                return next(self.items)
            except StopIteration:
                self.exhausted = True
        return None


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
    context = _quietly(lambda: ray.init(**options), address)
    _keep_standard_output()
    return ray, True, str(getattr(context, "dashboard_url", "") or "")


def _quietly(start: Callable[[], Any], address: str | None) -> Any:
    try:
        with _silenced():
            return start()
    except Exception as error:  # Ray raises errors of several kinds
        text = " ".join(str(error).split())
        if "ersion" in text and "mismatch" in text:
            raise ValueError(
                f"{address}: the versions of Ray or Python differ between the driver and the cluster: {text[:200]}: "
                "install the same versions everywhere"
            ) from None
        if address is None:
            raise ValueError(f"Ray cannot be started on this machine: {text[:300]}") from None
        raise ValueError(f"{address}: no Ray cluster answers: {_START}: {text[:200]}") from None


def _keep_standard_output() -> None:
    """Log the errors of the cluster, such as an actor that died, which Ray prints to standard output among results."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):  # no setting of Ray turns it off

        def log(data: dict[str, Any], *_: Any, **__: Any) -> None:
            _log.info("Ray: %s", " ".join(map(str, data.get("lines", ()))))

        worker.print_to_stdstream = log


@contextmanager
def _silenced() -> Iterator[None]:
    """Drop what the libraries of Ray write to standard error, past Python, while they try to connect."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


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
