"""Certify the inputs of a run: in this process, or in local worker processes that each hold the model."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from math import ceil
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from adaptdel.certification.certifier import Certifier, Input
from adaptdel.runs.inputs import RunInput
from adaptdel.runs.records import Record, problem_record, record_of
from adaptdel.smoothed import SmoothedClassifier

CHUNK = 16  # inputs that a worker gets at a time
CHUNK_CHARACTERS = 500_000
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerError(ValueError):
    """A worker process ended before its inputs were certified."""


@dataclass(frozen=True)
class ModelSource:
    """What a worker loads: the folder of a model, settings that replace its own, its fingerprint, modules to import."""

    model: Path
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    modules: tuple[str, ...] = ()

    def load(self) -> SmoothedClassifier:
        """Load the model; ValueError if its fingerprint differs."""
        for name in self.modules:
            import_module(name)
        model = with_settings(SmoothedClassifier.load(self.model), self.settings)
        if self.fingerprint is not None and model.base_classifier().fingerprint() != self.fingerprint:
            raise ValueError(f"{self.model}: the model was changed during the run")
        return model


def with_settings(model: SmoothedClassifier, settings: dict[str, Any]) -> SmoothedClassifier:
    """A shallow copy of a model with other settings, for a run."""
    model = copy(model)
    for name, value in settings.items():
        setattr(model, name, value)
    if "ops" not in settings and model.rule().noise.masks_tokens:
        model.ops = "edit"  # under masking it means substitutions
    model.progress = False
    return model


def certify_here(certifier: Certifier, inputs: Iterable[RunInput]) -> Generator[Record, None, None]:
    """Certify in this process: the records in the order in which they are finished.

    If the model fails on an input, its record states the problem instead of a certificate.
    """
    last = time.perf_counter()
    for result in certifier(Input(run_input.text, f"row {run_input.row}", run_input) for run_input in inputs):
        run_input, certificate = result.input.tag, result.certificate
        if certificate is None:
            record = problem_record(str(result.failure), id=run_input.id, row=run_input.row)
        else:
            record = record_of(certificate, id=run_input.id, row=run_input.row, label=run_input.label)
        now = time.perf_counter()
        yield record | {"seconds": now - last}
        last = now


def certify_in_workers(
    source: ModelSource, inputs: Iterator[RunInput], total: int, workers: int
) -> Generator[Record, None, None]:
    """Certify ``total`` inputs in ``workers`` processes, each of which requests inputs when it is idle."""
    pool: list[_Worker] = []
    try:
        with _environment(workers):
            pool += [_Worker(source, number) for number in range(1, workers + 1)]
        yield from _Dispatcher(pool, inputs, total).records()
    finally:
        for worker in pool:
            worker.stop()


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, source: ModelSource, number: int) -> None:
        self.number = number
        self.in_flight: dict[str, int] = {}  # row by id
        self.finished = False
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(source, other), daemon=True)
        self.process.start()
        other.close()

    def error(self) -> WorkerError:
        """The error for a process that ended too early."""
        self.process.join(5)
        code = self.process.exitcode
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {-code}" + (", as when memory runs out" if code == -signal.SIGKILL else "")
        rows = sorted(self.in_flight.values())
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        where = f" while it worked on rows {shown}" if rows else ""
        return WorkerError(
            f"worker {self.number} died ({how}){where}: everything certified so far is kept: run the same command again"
        )

    def stop(self) -> None:
        """Stop the process; a process that is finished gets ten seconds to end by itself."""
        self.connection.close()
        self.process.join(10 if self.finished else 0)
        self.process.terminate()
        self.process.join(10)
        self.process.kill()
        self.process.join()


class _Dispatcher:
    """Distribute the inputs to the workers and collect the records."""

    def __init__(self, pool: list[_Worker], inputs: Iterator[RunInput], total: int) -> None:
        self.pool, self.inputs, self.left = pool, inputs, total
        self.working = list(pool)

    def records(self) -> Iterator[Record]:
        """The records in order of completion."""
        while self.working:
            ready = wait([worker.connection for worker in self.working])
            for worker in [worker for worker in self.working if worker.connection in ready]:
                try:
                    message, value = worker.connection.recv()
                    if message == "more":
                        self._send_inputs(worker)
                except (EOFError, OSError):
                    raise worker.error() from None
                if message == "done":
                    worker.in_flight.pop(value["id"], None)
                    self.left -= 1
                    yield value
                elif message == "failed":
                    raise WorkerError(f"{value}: everything certified so far is kept")

    def _send_inputs(self, worker: _Worker) -> None:
        """Send a worker its next inputs; an empty list if it has its share; None if there are no more.

        Towards the end the shares get smaller, so that all workers finish at about the same time.
        """
        share = max(1, ceil(self.left / (2 * len(self.pool)))) - len(worker.in_flight)
        if share <= 0:
            worker.connection.send([])
            return
        chunk: list[RunInput] = []
        size = 0
        for run_input in islice(self.inputs, min(CHUNK, share)):
            chunk.append(run_input)
            worker.in_flight[run_input.id] = run_input.row
            size += len(run_input.text)
            if size > CHUNK_CHARACTERS:
                break
        if not chunk and not worker.in_flight:
            self.working.remove(worker)
            worker.finished = True
            worker.connection.send(None)
        else:
            worker.connection.send(chunk)


def _work(source: ModelSource, connection: Connection[Any, Any]) -> None:
    """The main function of a worker process: load the model, request inputs, certify, send records."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the worker
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        certifier = source.load().certifier()
        ended = False

        def inputs() -> Iterator[RunInput]:
            nonlocal ended
            while True:
                connection.send(("more", None))
                chunk = connection.recv()
                ended = chunk is None
                if not chunk:
                    return
                yield from chunk

        while not ended:
            for record in certify_here(certifier, inputs()):
                connection.send(("done", record))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        connection.send(("failed", sentence))


def _exit_with_parent() -> None:
    """Exit when the parent process ends, even if it is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _environment(workers: int) -> Iterator[None]:
    """Give every worker its share of the cores and no progress bars, unless the environment sets them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = dict.fromkeys(_THREADS, str(max(1, cores // workers))) | {"TQDM_DISABLE": "1"}
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
