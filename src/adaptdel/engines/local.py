"""The local engine: this process, or worker processes on this machine that each load the task."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from typing import Any

from adaptdel.engines.engine import Chunk, Engine, Loaded, Task, Worker, cores, thread_settings


class LocalEngine(Engine):
    """Work in this process, or in ``workers`` processes."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._pool: list[LocalWorker] = []

    def map(self, task: Task, items: Iterable[Any], total: int | None = None) -> Generator[Any, None, None]:
        """Yield the result of every item, in the order in which they are finished."""
        if self._workers == 1:
            yield from (result for _, result in task.load()(enumerate(items)))
        else:
            yield from super().map(task, items, total)

    def current_workers(self, left: int | None) -> Sequence[LocalWorker]:
        """The worker processes, of which at most ``left`` are started."""
        size = self._workers if left is None else max(min(self._workers, left), len(self._pool), 1)
        while len(self._pool) < size:
            worker = LocalWorker(self._workers)
            worker.start()
            self._pool.append(worker)
        return self._pool

    def abandon(self) -> None:
        """Stop all processes."""
        self.close()

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._pool:
            worker.stop()
        self._pool = []


class LocalWorker(Worker):
    """A pool of one process, so that a process that ends takes nothing else with it."""

    lost = BrokenExecutor

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start the process, or start it again."""
        self.stop()
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare)
        with worker_environment(self._workers):  # which the process inherits when it gets its first call
            self.ready = self._pool.submit(os.getpid)

    def started(self, value: int) -> None:
        """Keep the number of the process."""
        self._pid = value

    def submit(self, task: Task, chunk: Chunk) -> Future[Any]:
        """The future of the results of a chunk; that of a process that has just ended fails as well."""
        assert self._pool is not None
        try:
            return self._pool.submit(_do, task, chunk.items)
        except BrokenExecutor as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def stop(self) -> None:
        """End the process, also in the middle of its work."""
        if self._pool is None:
            return
        if self.in_flight and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
        self._pool.shutdown(cancel_futures=True)
        self._pool, self._pid = None, None


_LOADED = Loaded()


def _do(task: Task, items: list[tuple[int, Any]]) -> tuple[float, list[Any] | str]:
    return _LOADED.do(task, task.load, items)


def _prepare() -> None:
    """What a worker process does first: the parent stops it, also by its own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process ends, even if it is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def worker_environment(workers: int) -> Iterator[None]:
    """Give every worker its share of the cores and no progress bars, unless the environment sets them."""
    wanted = thread_settings(cores() // workers)
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
