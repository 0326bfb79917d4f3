"""Engines: a task, which every worker loads once, and items, which are distributed to the workers.

``engine.map(task, items)`` yields a result for each item in the order in which they are finished. The task and the
items are sent to other processes, so they hold plain values. Results do not depend on the engine or on the number of
workers, only their order does. The process that calls `Engine.map` is the only one that writes files of a run.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from math import ceil
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, ClassVar

from adaptdel.core.checks import check_choice, check_int, check_real
from adaptdel.core.registry import own_modules

Work = Callable[[Iterable[Any]], Iterator[Any]]  # from items to results

ENGINES = ("local", "ray")
DEPTH = 2  # chunks in flight for each worker: one is worked on, one waits
CHUNK = 8  # items in a chunk: what a worker that is killed has to do again
POLL = 1.0  # seconds between two looks at the workers
ATTEMPTS = 3  # workers that an item may end, each alone, until it counts as failed
STOP = 5.0  # seconds that a worker gets to end before it is killed
STARTS = 5  # failures to start a worker, in succession, until the work ends
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """What a worker loads.

    Attributes:
        model: the folder of a model.
        settings: replace those of the model.
        fingerprint: of the base classifier; another one is an error.
        modules: to import first; by default those that registered something.
        running: where and how a transformer runs: see `SmoothedClassifier.load`.
    """

    model: Path
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    modules: tuple[str, ...] = field(default_factory=own_modules)
    running: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """Load the model; ValueError if its fingerprint differs."""
        from adaptdel.models.model_files import load_model

        for name in self.modules:
            import_module(name)
        model = with_settings(load_model(self.model, self.running), self.settings)
        if self.fingerprint is not None and model.base_classifier().fingerprint() != self.fingerprint:
            raise ValueError(f"{self.model}: the model was changed during the run")
        return model

    def at(self, copies: Mapping[Path, Path]) -> ModelSource:
        """The same model in another folder."""
        return replace(self, model=copies[self.model])


def with_settings(model: Any, settings: Mapping[str, Any], running: Mapping[str, Any] | None = None) -> Any:
    """A shallow copy of a model with other settings for a run, where and how it runs among them."""
    model = copy(model)
    if strange := sorted({*settings} - {*model.run_options}):
        raise ValueError(
            f"{strange[0]} has no meaning for a model of the kind {model.kind}: choose from "
            f"{', '.join(model.run_options)}"
        )
    if running:
        model.base_ = model.base_classifier().running(running)
    for name, value in settings.items():
        setattr(model, name, value)
    model.progress = False
    return model


@dataclass(frozen=True)
class Task(ABC):
    """What workers do with items.

    Attributes:
        source: the model; None if `load` needs none.
        kept: in messages, what an error does not lose.
        chunk: the number of items that are sent together.
    """

    kept: ClassVar[str] = "everything certified so far is kept"
    chunk: ClassVar[int] = CHUNK

    source: ModelSource | None

    @abstractmethod
    def load(self) -> Work:
        """Called once in every worker: the function that turns items into results.

        Results may come in any order, so each says which item it belongs to. A ValueError, here or in the function,
        ends the whole `Engine.map`.
        """

    @abstractmethod
    def failed(self, item: Any, reason: str) -> Any:
        """The result for an item that ends every worker that tries it."""

    def paths(self) -> tuple[Path, ...]:
        """The files and folders that `load` reads: machines that do not have them get copies."""
        return () if self.source is None else (self.source.model,)

    def at(self, copies: Mapping[Path, Path]) -> Task:
        """The same task for copies of its `paths` elsewhere."""
        return self if self.source is None else replace(self, source=self.source.at(copies))

    @property
    def try_again(self) -> str:
        """The end of a message: what is kept, and what to do."""
        return f"{self.kept}: run the same command again"


@dataclass(eq=False)
class Chunk:
    """Items that a worker gets together.

    Attributes:
        items: the items.
        ended: how many workers it has ended; it is then a single item, which a worker gets alone.
    """

    items: list[Any]
    ended: int | None = None


class Worker(ABC):
    """The driver's end of a worker process, which is started again when it ends.

    Attributes:
        in_flight: chunks by the future of their results.
        ready: ends when the process has started; None if it has.
        failed_starts: how often it has failed to start since it last did.
    """

    lost: ClassVar[type[BaseException]]  # what a future raises if the process has ended

    def __init__(self) -> None:
        self.in_flight: dict[Future[Any], Chunk] = {}
        self.ready: Future[Any] | None = None
        self.failed_starts = 0

    @abstractmethod
    def start(self) -> None:
        """Start the process, or start it again; sets `ready`."""

    @abstractmethod
    def submit(self, task: Task, chunk: Chunk) -> Future[Any]:
        """The future of what `Loaded.do` returns."""

    @abstractmethod
    def stop(self) -> None:
        """End the process, also in the middle of its work."""


class Loaded:
    """What a worker process has loaded."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.work: Work | None = None

    def do(self, task: Task, load: Callable[[], Work], items: list[Any]) -> list[Any] | str:
        """The results of items, or a sentence if the whole work cannot go on."""
        try:
            if self.work is None or task != self.task:
                self.task, self.work = task, load()
            return list(self.work(items))
        except Exception as error:
            return sentence_of(error)


class Engine(ABC):
    """Distributes items to workers; a context manager that stops them.

    Results do not depend on the engine, on the number of workers or on the chunks. An item that ends its worker is
    tried again alone; when it has ended `ATTEMPTS` workers, its result is a failure.

    Attributes:
        workers: those that were started.
        description: a sentence for the user when the engine is ready, such as where to watch it, or None.
    """

    description: str | None = None

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def map(self, task: Task, items: Iterable[Any], total: int) -> Any:
        """Yield the result of every item, in the order in which they are finished.

        Items are taken from the iterable only as fast as workers finish them.

        Args:
            task: what to do.
            items: any number of items.
            total: about how many there are: the last ones are sent in small portions.
        """
        chunks = _Chunks(task, iter(items), total)
        finished = False
        try:
            while True:
                for _ in range(self.size(chunks.left) - len(self.workers)):
                    self.workers.append(self.new_worker())
                    self.workers[-1].start()
                for worker in self.workers:
                    while worker.ready is None and (chunk := chunks.next(worker.in_flight.values(), len(self.workers))):
                        worker.in_flight[worker.submit(task, chunk)] = chunk
                calls = {future: worker for worker in self.workers for future in worker.in_flight}
                if not calls and chunks.is_done:
                    finished = True
                    return
                starts = {worker.ready: worker for worker in self.workers if worker.ready is not None}
                for future in wait([*calls, *starts], POLL, FIRST_COMPLETED).done:
                    if future in starts:
                        self._greet(task, starts[future], future)
                    elif future in calls[future].in_flight:  # not lost together with another
                        yield from self._collect(chunks, calls[future], future)
        finally:
            if not finished:
                self.stop_workers()

    def _greet(self, task: Task, worker: Worker, future: Future[Any]) -> None:
        try:
            future.result()
            worker.ready, worker.failed_starts = None, 0
        except worker.lost as error:
            worker.failed_starts += 1
            if worker.failed_starts >= STARTS:
                raise ValueError(f"workers cannot start: {error}: {task.try_again}") from None
            worker.start()

    def _collect(self, chunks: _Chunks, worker: Worker, future: Future[Any]) -> Iterator[Any]:
        try:
            results = future.result()
        except worker.lost as error:
            _log.info("a worker was lost: %s", error)
            lost, worker.in_flight = worker.in_flight, {}
            worker.start()
            for chunk in lost.values():
                yield from chunks.lost(chunk)
            return
        chunk = worker.in_flight.pop(future)
        if isinstance(results, str):
            raise ValueError(f"{results}: {chunks.task.try_again}")
        chunks.done(chunk)
        yield from results

    @abstractmethod
    def size(self, left: int) -> int:
        """How many workers there should be for this many items."""

    @abstractmethod
    def new_worker(self) -> Worker:
        """A worker that is not started yet."""

    def stop_workers(self) -> None:
        """Stop the workers, also in the middle of their work."""
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_workers()


class _Chunks:
    """The items of a call of `Engine.map`, in chunks."""

    def __init__(self, task: Task, items: Iterator[Any], total: int) -> None:
        self.task, self.left = task, total
        self._items = items
        self._suspects: deque[Chunk] = deque()
        self._exhausted = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to send."""
        return self._exhausted and not self._suspects

    def next(self, in_flight: Collection[Chunk], workers: int) -> Chunk | None:
        """The next chunk for a worker, or None; items that may have ended a worker come first, each alone."""
        if len(in_flight) >= DEPTH or any(chunk.ended is not None for chunk in in_flight):
            return None
        if self._suspects:
            return self._suspects.popleft() if not in_flight else None
        size = min(self.task.chunk, max(1, ceil(self.left / (2 * DEPTH * max(workers, 1)))))
        items = list(islice(self._items, size))
        self._exhausted = len(items) < size
        return Chunk(items) if items else None

    def done(self, chunk: Chunk) -> None:
        """Count the results of a chunk."""
        self.left -= len(chunk.items)

    def lost(self, chunk: Chunk) -> Iterator[Any]:
        """Try the items of a chunk again, each alone; the failure of one that has ended `ATTEMPTS` workers."""
        if chunk.ended is None:
            self._suspects.extend(Chunk([item], ended=0) for item in chunk.items)
            return
        chunk.ended += 1
        if chunk.ended < ATTEMPTS:
            self._suspects.append(chunk)
            return
        self.done(chunk)
        yield self.task.failed(chunk.items[0], f"it ended its worker {ATTEMPTS} times, as when memory runs out")


class LocalEngine(Engine):
    """Work in this process, or in ``workers`` processes on this machine."""

    def __init__(self, workers: int = 1) -> None:
        super().__init__()
        self._most = workers

    def map(self, task: Task, items: Iterable[Any], total: int) -> Any:
        """An iterator over the result of every item, in the order in which they are finished."""
        return task.load()(items) if self._most == 1 else super().map(task, items, total)

    def size(self, left: int) -> int:
        """As many as were asked for, at most one for each item."""
        return max(1, min(self._most, left))

    def new_worker(self) -> LocalWorker:
        """A process."""
        return LocalWorker(self._most)


class LocalWorker(Worker):
    """A process and the pipe to it, which the system closes when the process ends, also in the middle of a result.

    That is more than `concurrent.futures.ProcessPoolExecutor` can do: it waits for ever for the rest of that result.
    """

    lost = EOFError

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._process: SpawnProcess | None = None

    def start(self) -> None:
        """Start the process, or start it again."""
        self.stop()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        with _worker_environment(self._workers):
            self._process.start()
        theirs.close()
        self._thread = ThreadPoolExecutor(1)
        self.ready = self._thread.submit(self._receive)

    def submit(self, task: Task, chunk: Chunk) -> Future[Any]:
        """The future of the results of a chunk."""
        return self._thread.submit(self._receive, (task, chunk.items))

    def _receive(self, call: tuple[Task, list[Any]] | None = None) -> Any:
        try:
            if call is not None:
                self._pipe.send(call)
            return self._pipe.recv()
        except (EOFError, OSError):
            advice = ": a script must do its work below if __name__ == '__main__'" if call is None else ""
            raise EOFError(f"the process has ended{advice}") from None

    def stop(self) -> None:
        """End the process, also in the middle of its work."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(STOP)
            self._process.kill()  # one that is stopped (SIGSTOP) does not end by itself
            self._process.join()
            self._thread.shutdown(cancel_futures=True)
            self._pipe.close()
            self._process = None


def _serve(pipe: Connection) -> None:
    """What a worker process does: load the task, and return the results of chunks; the parent stops it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    loaded = Loaded()
    with suppress(EOFError, OSError):  # the parent has ended
        pipe.send("ready")
        while True:
            task, items = pipe.recv()
            pipe.send(loaded.do(task, task.load, items))


def _exit_with_parent() -> None:
    """Exit when the parent process ends, even if it is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _worker_environment(workers: int) -> Iterator[None]:
    """Give every worker its share of the cores and no progress bars, unless the environment sets them.

    No worker imports from the working directory before it has the path of this process.
    """
    wanted = thread_settings(cores() // workers) | {"PYTHONSAFEPATH": "1"}
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that give a worker this many threads, and no progress bars."""
    return dict.fromkeys(_THREADS, str(max(1, threads))) | {"TQDM_DISABLE": "1"}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class EngineSettings:
    """Where inputs are certified.

    Attributes:
        engine: "local" for this machine, "ray" for a Ray cluster.
        workers: the number of worker processes; None for 1, and on Ray for as many as fit with one CPU left free.
        ray_address: "auto" or the address of a running cluster; None starts Ray on this machine.
        cpus_per_worker: on Ray, the CPUs that each worker reserves, and its threads.
        gpus_per_worker: on Ray, the GPUs that each worker reserves; a fraction shares a GPU.
    """

    engine: str = "local"
    workers: int | None = None
    ray_address: str | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        if self.workers is not None:
            check_int("workers", self.workers, least=1)
        check_int("cpus_per_worker", self.cpus_per_worker, least=1)
        check_real("gpus_per_worker", self.gpus_per_worker, accepted="at least 0", least=0.0, most=1024.0)
        if self.engine != "ray":
            for name in ("ray_address", "cpus_per_worker", "gpus_per_worker"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name} is only for the engine ray")

    @property
    def is_distributed(self) -> bool:
        """Whether other processes certify."""
        return self.engine != "local" or (self.workers or 1) > 1


ENGINE = EngineSettings()


def start_engine(settings: EngineSettings) -> Engine:
    """The engine, ready to work.

    ImportError if Ray is not installed; ValueError if there is no cluster at the address.
    """
    if settings.engine == "ray":
        from adaptdel.runs.cluster import RayEngine

        return RayEngine(settings)
    return LocalEngine(settings.workers or 1)


def versions(names: Iterable[str] | None = None) -> dict[str, str]:
    """The versions of libraries; by default of those that results depend on, as far as they are loaded."""
    if names is None:
        optional = ("pyarrow", "torch", "transformers", "onnxruntime")
        names = ("python", "adaptdel", "numpy", "scipy", *(name for name in optional if name in sys.modules))
    installed = {"python": platform.python_version()}
    for name in names:
        if name not in installed:
            with suppress(PackageNotFoundError):
                installed[name] = version(name)
    return installed


def sentence_of(error: Exception) -> str:
    """An error as a sentence; the type is named unless it is a ValueError."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
