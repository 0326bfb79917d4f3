"""Inputs in parallel: each worker process loads the model once and then takes one input after the other."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

from adaptdel.engines.engine import WorkerError
from adaptdel.engines.local import worker_environment

Task = TypeVar("Task")
Result = TypeVar("Result")
WAITING = 2  # tasks for each worker that are sent ahead

_WORK: list[Callable[[Any], Any]] = []  # what a worker process calls


def process_tasks(
    load: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task], workers: int
) -> Generator[Result, None, None]:
    """Yield the results of all tasks in order of completion; a result must not depend on the worker.

    Args:
        load: called once in each process; it returns the function that is called with each task. With more than one
            worker, it and the tasks are sent to other processes.
        tasks: what to process.
        workers: the number of processes; 1 works in this process.
    """
    if workers == 1:
        work = load()
        for task in tasks:  # not map: a StopIteration out of a task would end it without a word
            yield work(task)
        return
    remaining = iter(tasks)
    with worker_environment(workers):
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start, initargs=(load,))
        try:
            waiting: set[Future[Result]] = {pool.submit(_call, task) for task in islice(remaining, workers * WAITING)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                waiting |= {pool.submit(_call, task) for task in islice(remaining, len(done))}
        except BrokenProcessPool:
            raise WorkerError(
                "a worker died, as when memory runs out: everything finished so far is kept: run the same command again"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start(load: Callable[[], Callable[[Any], Any]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    _WORK[:] = [load()]


def _call(task: Any) -> Any:
    return _WORK[0](task)
