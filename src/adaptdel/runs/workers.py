"""Local workers: processes that each have the model, and are given inputs as they ask for them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from math import ceil
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from adaptdel.runs.inputs import RunInput
from adaptdel.runs.records import Record
from adaptdel.runs.records_certifier import Certifier, ModelSource

CHUNK = 16  # inputs that a worker gets at a time
CHUNK_CHARACTERS = 500_000
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerError(ValueError):
    """A worker ended before its work."""


def certify_by_workers(
    task: ModelSource, jobs: Iterator[RunInput], total: int, workers: int
) -> Generator[Record, None, None]:
    """Certify in ``workers`` processes, which ask for inputs when they need some; ``total`` is how many there are."""
    crew: list[_Worker] = []
    try:
        with _surroundings(workers):
            crew += [_Worker(task, number) for number in range(1, workers + 1)]
        yield from _Foreman(crew, jobs, total).records()
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """The foreman's end of a worker."""

    def __init__(self, task: ModelSource, number: int) -> None:
        self.number = number
        self.hand: dict[str, int] = {}  # id and row of what it works on
        self.discharged = False
        context = get_context("spawn")
        self.line, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(task, other), daemon=True)
        self.process.start()
        other.close()

    def death(self) -> WorkerError:
        """What to say when it died."""
        self.process.join(5)
        code = self.process.exitcode
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {-code}" + (", as when memory runs out" if code == -signal.SIGKILL else "")
        rows = ", ".join(map(str, sorted(self.hand.values())[:8])) + (", ..." if len(self.hand) > 8 else "")
        return WorkerError(
            f"worker {self.number} died ({how})"
            + (f" while it worked on rows {rows}" if rows else "")
            + ": everything "
            "certified so far is kept, and the same command goes on from there"
        )

    def end(self) -> None:
        """End it; one that has no more to do may take its time."""
        self.line.close()
        self.process.join(10 if self.discharged else 0)
        self.process.terminate()
        self.process.join(10)
        self.process.kill()
        self.process.join()


class _Foreman:
    """Hand out inputs and collect records, until all are done."""

    def __init__(self, crew: list[_Worker], jobs: Iterator[RunInput], total: int) -> None:
        self.crew, self.jobs, self.left = crew, jobs, total
        self.working = list(crew)

    def records(self) -> Iterator[Record]:
        """Records in the order in which they come in."""
        while self.working:
            ready = wait([worker.line for worker in self.working])
            for worker in [worker for worker in self.working if worker.line in ready]:
                try:
                    word, value = worker.line.recv()
                    if word == "more":
                        self._give(worker)
                except (EOFError, OSError):
                    raise worker.death() from None
                if word == "done":
                    worker.hand.pop(value["id"], None)
                    self.left -= 1
                    yield value
                elif word == "failed":
                    raise WorkerError(f"{value}: everything certified so far is kept")

    def _give(self, worker: _Worker) -> None:
        """Give a worker its next inputs; none for now if it has its share; None if there are no more.

        Towards the end shares shrink, so that all workers end together.
        """
        share = max(1, ceil(self.left / (2 * len(self.crew)))) - len(worker.hand)
        if share <= 0:
            worker.line.send([])
            return
        chunk: list[RunInput] = []
        size = 0
        for job in islice(self.jobs, min(CHUNK, share)):
            chunk.append(job)
            worker.hand[job.id] = job.row
            size += len(job.text)
            if size > CHUNK_CHARACTERS:
                break
        if not chunk and not worker.hand:
            self.working.remove(worker)
            worker.discharged = True
            worker.line.send(None)
        else:
            worker.line.send(chunk)


def _work(task: ModelSource, line: Connection[Any, Any]) -> None:
    """What a worker does, until there is nothing left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the foreman ends it, in an orderly way
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        certifier = Certifier(task.load())
        ended = False

        def jobs() -> Iterator[RunInput]:
            nonlocal ended
            while True:
                line.send(("more", None))
                chunk = line.recv()
                ended = chunk is None
                if not chunk:
                    return
                yield from chunk

        while not ended:
            for record in certifier(jobs()):
                line.send(("done", record))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        line.send(("failed", f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)))


def _end_with_parent() -> None:
    """End at once when the foreman is gone, even if it was killed."""
    foreman = parent_process()
    if foreman is not None:
        foreman.join()
        os._exit(1)


@contextmanager
def _surroundings(workers: int) -> Iterator[None]:
    """Give every worker its share of the cores, and no bars to draw, where the user has not said otherwise."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = dict.fromkeys(_THREADS, str(max(1, cores // workers))) | {"TQDM_DISABLE": "1"}
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
