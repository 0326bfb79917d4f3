"""One thread per model, which alone calls the base classifier, and the answers that the event loop waits for.

The thread of a smoothed model owns the pool of votes and shares batches between all requests, which join the pool
between two batches. What a thread has to tell is put into the outbox of the request, which wakes the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from adaptdel.certification.certifier import Certifier, Ticket, VotePool
from adaptdel.classifiers.base import BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.foreign import ForeignModelError
from adaptdel.serve.answers import Job, Outbox, Watcher, certify_result, predict_result
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.schemas import Problem, internal_error, shutting_down, too_many

LOG = logging.getLogger("adaptdel.serve")
ADMISSION_SECONDS = 0.02  # for splitting and preparing texts between two batches


class Scheduler(ABC):
    """The thread of a model.

    Args:
        name: the name of the model.
        settings: the limits.

    Attributes:
        fault: why the model is not served any more; None if it is.
    """

    def __init__(self, name: str, settings: ServeSettings) -> None:
        self.name, self.settings = name, settings
        self.fault: str | None = None
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._jobs: list[Job] = []  # that are not finished, in the order of arrival
        self._queued = 0  # texts that wait; guarded by the condition
        self._closing = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"adaptdel-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return self.fault is None and not self._closing and self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Accept a request, or raise a `Problem` at once."""
        with self._changed:
            if self.fault is not None:
                raise Problem(503, self.fault)
            if self._closing:
                raise shutting_down()
            if self._queued + len(job.texts) > self.settings.queue:
                raise too_many(
                    f"{self._queued} texts wait for the model {self.name!r} already, of at most "
                    f"{self.settings.queue}: send the request again later"
                )
            self._queued += len(job.texts)
            self._new.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a request: its votes stop after the current batch."""
        with self._changed:
            self._cancelled.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Accept no more requests."""
        with self._changed:
            self._closing = True

    def stop(self) -> None:
        """End the thread; requests that are not finished are refused with 503."""
        with self._changed:
            self._closing = self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def sizes(self) -> tuple[int, int]:
        """The number of texts that wait and of those that are voted on."""
        return self._queued, 0

    @abstractmethod
    def _round(self) -> None:
        """Work for a short time."""

    def _run(self) -> None:
        while True:
            with self._changed:
                self._jobs = [job for job in self._jobs if job.waiting or job.tickets]
                if not (self._jobs or self._new or self._cancelled or self._stopped):
                    self._changed.wait()
                self._jobs += self._new
                self._new.clear()
                cancelled, self._cancelled = self._cancelled, []
                stopped = self._stopped
            try:
                for job in cancelled:
                    self._drop(job)
                if stopped:
                    self._refuse_all(shutting_down())
                    return
                self._round()
            except InconsistentAnswerError as error:
                self._give_up(error, "gave the same copy of a text two answers, so that no certificate would hold")
            except ForeignModelError as error:
                self._give_up(error, "broke down (its tokenizer panicked)")
            except Exception as error:  # a fault of the server: nobody is left waiting
                log_error(f"model {self.name!r}", error)
                self._refuse_all(internal_error())
            except BaseException as error:  # such as a panic in a library in Rust, whose state is unknown after it
                self._give_up(error, f"broke down ({type(error).__name__})")

    def _leave_queue(self, job: Job) -> None:
        """Forget the first text of a request that waits; not before its answer, or its ticket, is there."""
        job.waiting.popleft()
        with self._changed:
            self._queued -= 1

    def _fail(self, job: Job, index: int, error: Exception) -> None:
        job.outbox.put("failed", index, (index, problem_of(error, self.name)))

    def _drop(self, job: Job) -> list[int]:
        """Forget a request; returns the numbers of its texts that were not answered."""
        left = list(job.waiting)
        for _ in left:
            self._leave_queue(job)
        return left

    def _give_up(self, error: BaseException, reason: str) -> None:
        """The model is faulty: it is not served any more, and all its requests are refused."""
        log_error(f"model {self.name!r} is not served any more", error)
        with self._changed:
            self.fault = f"the model {self.name!r} {reason}: it is not served any more"
        self._refuse_all(Problem(503, self.fault))

    def _refuse_all(self, problem: Problem) -> None:
        """Refuse every request that was accepted and is not finished."""
        with self._changed:
            self._jobs += self._new
            self._new.clear()
        for job in self._jobs:
            for index in self._drop(job):
                job.outbox.put("failed", index, (index, problem))


class InOrder(Scheduler):
    """The thread of an exact model, which answers one text after the other: there are no votes to share.

    Args:
        name: the name of the model.
        settings: the limits.
        answer: gives the result of a text of a request, by its number.
    """

    def __init__(self, name: str, settings: ServeSettings, answer: Callable[[Job, int], dict[str, Any]]) -> None:
        super().__init__(name, settings)
        self._answer = answer

    def _round(self) -> None:
        """Answer the next text."""
        job = next((job for job in self._jobs if job.waiting), None)
        if job is not None:
            index = job.waiting[0]
            try:
                job.outbox.put("result", index, {"index": index, **self._answer(job, index)})
            except Exception as error:
                self._fail(job, index, error)
            self._leave_queue(job)


class PoolScheduler(Scheduler):
    """The thread of a smoothed model.

    Args:
        name: the name of the model.
        settings: the limits.
        certifier: the engine, with the base classifier.
        classified: called with the number of copies of every batch.
        answered: called with every result.

    Attributes:
        pool: the texts that are voted on; only the thread changes it.
    """

    def __init__(
        self,
        name: str,
        settings: ServeSettings,
        certifier: Certifier,
        classified: Callable[[int], None],
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(name, settings)
        self.certifier, self.pool = certifier, VotePool(certifier.base)
        self._classified, self._answered = classified, answered

    def sizes(self) -> tuple[int, int]:
        """The number of texts that wait and of those that are voted on."""
        return self._queued, len(self.pool)

    def _round(self) -> None:
        """Stop what is late, let texts in, classify one batch, and deliver what is finished."""
        now = time.monotonic()
        for job in self._jobs:
            if job.deadline <= now:
                self._expire(job)
        self._admit()
        if not len(self.pool):
            return
        finished = self.pool.step(self.settings.batch_tokens)
        self._classified(self.pool.copies)
        for ticket in finished:
            self._deliver(ticket, late=False)

    def _admit(self) -> None:
        """Split, prepare and add texts: those of the request with the fewest texts in the pool first."""
        settings, until = self.settings, time.monotonic() + ADMISSION_SECONDS
        while len(self.pool) < settings.pool_inputs and (time.monotonic() < until or not len(self.pool)):
            candidates = [job for job in self._jobs if job.waiting and len(job.tickets) < settings.request_inputs]
            if not candidates:
                return
            self._admit_next(min(candidates, key=lambda job: len(job.tickets)))

    def _admit_next(self, job: Job) -> None:
        """Add the next text of a request to the pool, or refuse it."""
        index = job.waiting[0]
        try:
            tokens = self.certifier.unit.split(job.texts[index])
            check_tokens(len(tokens), self.settings)
            job.tokens += len(tokens)
            if job.influence and job.tokens > self.settings.tokens:
                raise Problem(
                    413,
                    f"with influence, all texts together may have at most {self.settings.tokens} tokens: "
                    "send fewer texts",
                )
            prepared = self.certifier.prepare_tokens(tokens, "this text")
            ticket = Watcher(job, index, prepared, self.certifier.with_plan(job.plan)).ticket
            self.pool.add(ticket)
        except InconsistentAnswerError:
            raise
        except Exception as error:
            self._fail(job, index, error)
        else:
            job.tickets.add(ticket)
        self._leave_queue(job)

    def _expire(self, job: Job) -> None:
        """The deadline of a request: its looks so far count; texts without a vote abstain."""
        for ticket in list(job.tickets):
            self.pool.stop(ticket)
            self._deliver(ticket, late=True)
        while job.waiting:
            self._answer(job, job.waiting[0], None, late=True)
            self._leave_queue(job)

    def _drop(self, job: Job) -> list[int]:
        """Forget a request; returns the numbers of its texts that were not answered."""
        left = [ticket.tag.index for ticket in job.tickets]
        for ticket in job.tickets:
            self.pool.cancel(ticket)
        job.tickets.clear()
        return left + super()._drop(job)

    def _deliver(self, ticket: Ticket, *, late: bool) -> None:
        watcher: Watcher = ticket.tag
        watcher.job.tickets.discard(ticket)
        if ticket.failure is not None:
            self._fail(watcher.job, watcher.index, ticket.failure)
            if isinstance(ticket.failure.__cause__, ForeignModelError):  # Rust code panicked: its state is unknown
                raise ticket.failure.__cause__
        else:
            self._answer(watcher.job, watcher.index, watcher, late=late)

    def _answer(self, job: Job, index: int, watcher: Watcher | None, *, late: bool) -> None:
        """Put the result of a text into the outbox."""
        certifier = self.certifier.with_plan(job.plan)
        seconds = time.monotonic() - job.started
        try:
            if job.plan.n_estimate:
                result = certify_result(certifier, watcher, influence=job.influence, late=late, seconds=seconds)
            else:
                result = predict_result(certifier, watcher, late=late, seconds=seconds)
        except Exception as error:
            self._fail(job, index, error)
            return
        self._answered(result)
        job.outbox.put("result", index, {"index": index, **result})


class Answers:
    """The answers to a request, as they come."""

    def __init__(self, scheduler: Scheduler, texts: Sequence[str], plan: Any, **options: Any) -> None:
        self.model, self._scheduler, self._left = scheduler.name, scheduler, len(texts)
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self.job = Job(texts, plan, Outbox(self._notify), **options)
        scheduler.submit(self.job)

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def messages(self) -> AsyncIterator[tuple[str, Any]]:
        """Pairs (name, value) as in `Job.outbox`, until every text is answered."""
        while self._left > 0:  # below 0 if a result comes with the cancellation
            await self._arrived.wait()
            self._arrived.clear()
            for name, value in self.job.outbox.take():
                self._left -= name in ("result", "failed")
                yield name, value

    def cancel(self) -> None:
        """Stop the votes, unless every text is answered."""
        if self._left:
            self._left = 0
            self._scheduler.cancel(self.job)
            self._arrived.set()

    async def results(self) -> list[dict[str, Any]]:
        """The results in the order of the texts; the failure of a single text, or the end of the server, is raised."""
        results: list[dict[str, Any]] = [{} for _ in self.job.texts]
        async for name, value in self.messages():
            if name == "failed":
                index, problem = value
                if len(results) == 1 or problem.status_code == 503:
                    raise problem
                results[index] = {"error": problem.detail}
            elif name == "result":
                results[value.pop("index")] = value
        return results


def check_tokens(count: int, settings: ServeSettings) -> None:
    """Raise if a text has too many tokens."""
    if count > settings.tokens:
        allowed = f"more than the {settings.tokens} that are allowed"
        raise Problem(413, f"the text has {count} tokens, {allowed}: send a shorter text")


def problem_of(error: Exception, model: str) -> Problem:
    """What the client is told when the work on a text failed."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, (ValueError, BaseClassifierError)):
        return Problem(422, str(error))
    log_error(f"model {model!r}", error)
    return internal_error()


def log_error(where: str, error: BaseException) -> None:
    """Log an internal error with its traceback; not its message, which may contain texts."""
    LOG.error("%s: %s\n%s", where, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
