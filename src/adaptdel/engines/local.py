"""The local engine: this process, or worker processes on this machine that each load the task."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import ceil
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from adaptdel.engines.engine import Engine, Task, Work, WorkerError, cores, sentence_of, thread_settings

CHUNK = 16  # items that a worker gets at a time
CHUNK_CHARACTERS = 500_000


class LocalEngine(Engine):
    """Work in this process, or in ``workers`` processes, which request items when they are idle."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._pool: list[_Worker] = []

    @property
    def workers(self) -> int:
        """The number of processes."""
        return self._workers

    def map(self, task: Task, items: Iterable[Any], total: int | None = None) -> Generator[Any, None, None]:
        """Yield the result of every item, in the order in which they are finished."""
        if self._workers == 1:
            yield from (result for _, result in task.load()(enumerate(items)))
            return
        size = min(self._workers, max(total or self._workers, 1))
        with worker_environment(self._workers):
            self._pool += [_Worker(number + 1) for number in range(len(self._pool), size)]
        finished = False
        try:
            yield from _Dispatcher(self._pool, task, iter(items), total).results()
            finished = True
        finally:
            if not finished:
                self.close()

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._pool:
            worker.stop()
        self._pool = []


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_flight: dict[int, Any] = {}  # items by number
        self.finished = False
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def error(self, task: Task) -> WorkerError:
        """The error for a process that ended too early."""
        self.process.join(5)
        code = self.process.exitcode
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {-code}" + (", as when memory runs out" if code == -signal.SIGKILL else "")
        items = [self.in_flight[number] for number in sorted(self.in_flight)]
        where = f" while it worked on {task.describe(items)}" if items else ""
        return WorkerError(f"worker {self.number} died ({how}){where}: {task.try_again}")

    def stop(self) -> None:
        """Stop the process; one that is idle gets ten seconds to end by itself."""
        self.connection.close()
        self.process.join(10 if self.finished else 0)
        self.process.terminate()
        self.process.join(10)
        self.process.kill()
        self.process.join()


class _Dispatcher:
    """Distribute the items of a task to the workers and collect the results."""

    def __init__(self, pool: list[_Worker], task: Task, items: Iterator[Any], total: int | None) -> None:
        self.pool, self.task, self.items, self.left = pool, task, enumerate(items), total
        self.working = list(pool)

    def results(self) -> Iterator[Any]:
        """The results in order of completion."""
        for worker in self.pool:
            worker.finished = False
            try:
                worker.connection.send(self.task)
            except OSError:
                raise worker.error(self.task) from None
        while self.working:
            ready = wait([worker.connection for worker in self.working])
            for worker in [worker for worker in self.working if worker.connection in ready]:
                try:
                    message, value = worker.connection.recv()
                    if message == "more":
                        self._send_items(worker)
                except (EOFError, OSError):
                    raise worker.error(self.task) from None
                if message == "done":
                    number, result = value
                    worker.in_flight.pop(number, None)
                    if self.left is not None:
                        self.left -= 1
                    yield result
                elif message == "failed":
                    raise WorkerError(f"{value}: {self.task.kept}")

    def _send_items(self, worker: _Worker) -> None:
        """Send the next items to a worker, or None if there are none.

        A worker gets at most half of what a fair share of the remaining items would be, in chunks of `CHUNK`. Towards
        the end the shares get smaller, so that all workers finish at about the same time.
        """
        share = CHUNK
        if self.left is not None:
            share = max(1, ceil(self.left / (2 * len(self.pool)))) - len(worker.in_flight)
        if share <= 0:
            worker.connection.send([])
            return
        chunk: list[tuple[int, Any]] = []
        size = 0
        for number, item in islice(self.items, min(CHUNK, share)):
            chunk.append((number, item))
            worker.in_flight[number] = item
            size += self.task.size(item)
            if size > CHUNK_CHARACTERS:
                break
        if not chunk and not worker.in_flight:
            self.working.remove(worker)
            worker.finished = True
            worker.connection.send(None)
        else:
            worker.connection.send(chunk)


def _work(connection: Connection[Any, Any]) -> None:
    """The main function of a worker process: load a task, request items, send results; then the next task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the worker
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    loaded: tuple[Task, Work] | None = None
    try:
        while True:
            task = connection.recv()
            if loaded is None or loaded[0] != task:
                loaded = task, task.load()
            _do(loaded[1], connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send(("failed", sentence_of(error)))
    finally:  # while Python shuts down, SystemExit would be a traceback on standard error
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do(work: Work, connection: Connection[Any, Any]) -> None:
    """Work on a task until there are no more items."""
    ended = False

    def items() -> Iterator[tuple[int, Any]]:
        nonlocal ended
        while True:
            connection.send(("more", None))
            chunk = connection.recv()
            ended = chunk is None
            if not chunk:
                return
            yield from chunk

    while not ended:
        for numbered in work(items()):
            connection.send(("done", numbered))


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
