"""One thread per model: it owns the pool of votes and shares batches of the base classifier between all requests.

Requests join the pool between two batches. The thread is the only one that calls the base classifier. What it has to
tell is put into the outbox of the request, which wakes the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from adaptdel.certification.certifier import Certifier
from adaptdel.certification.pool import Ticket, VotePool
from adaptdel.classifiers.base import BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.foreign import ForeignModelError
from adaptdel.serve.answers import Job, Watcher, certify_result, predict_result
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.schemas import Problem, internal_error, shutting_down, too_many

LOG = logging.getLogger("adaptdel.serve")
ADMISSION_SECONDS = 0.02  # for splitting and preparing texts between two batches


class Scheduler:
    """The thread of a model.

    Args:
        name: the name of the model.
        certifier: the engine, with the base classifier.
        settings: the limits.
        classified: called with the number of copies of every batch.
        answered: called with every result.

    Attributes:
        pool: the texts that are voted on; only the thread changes it.
        fault: why the model is not served any more; None if it is.
    """

    def __init__(
        self,
        name: str,
        certifier: Certifier,
        settings: ServeSettings,
        classified: Callable[[int], None],
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name, self.certifier, self.settings = name, certifier, settings
        self.pool = VotePool(certifier.base)
        self.fault: str | None = None
        self._classified, self._answered = classified, answered
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._jobs: list[Job] = []  # with texts that wait for a place in the pool, in the order of arrival
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
                raise queue_full(self.name, self._queued, self.settings)
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
        """The number of texts that wait and that are in the pool."""
        return self._queued, len(self.pool)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not (self._new or self._cancelled or self._jobs or len(self.pool) or self._stopped):
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
                log_error(f"model {self.name!r}", error, texts=self.settings.log_texts)
                self._refuse_all(internal_error())
            except BaseException as error:  # such as a panic in a library in Rust, whose state is unknown after it
                self._give_up(error, f"broke down ({type(error).__name__})")

    def _round(self) -> None:
        """Stop what is late, let texts in, classify one batch, and deliver what is finished."""
        now = time.monotonic()
        for job in {*self._jobs, *(ticket.tag.job for ticket in self.pool.tickets())}:
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
        candidates = list(self._jobs)
        while candidates and len(self.pool) < settings.pool_inputs and (time.monotonic() < until or not len(self.pool)):
            job = min(candidates, key=lambda job: len(job.tickets))
            if len(job.tickets) >= settings.request_inputs:
                candidates.remove(job)
                continue
            self._admit_next(job)
            if not job.waiting:
                candidates.remove(job)
                self._jobs.remove(job)

    def _admit_next(self, job: Job) -> None:
        """Add the next text of a request to the pool, or refuse it."""
        index = job.waiting[0]
        try:
            tokens = self.certifier.unit.split(job.texts[index])
            if len(tokens) > self.settings.tokens:
                raise Problem(413, too_long(job, index, len(tokens), self.settings))
            job.tokens += len(tokens)
            if job.influence and job.tokens > self.settings.tokens:
                raise Problem(
                    413,
                    f"with influence, all texts together may have at most {self.settings.tokens} tokens: "
                    "send fewer texts",
                )
            prepared = self.certifier.prepare_tokens(tokens, "this text" if len(job.texts) == 1 else f"text {index}")
            ticket = Watcher(job, index, prepared, self.certifier.with_plan(job.plan)).ticket
            self.pool.add(ticket)
        except InconsistentAnswerError:
            raise
        except Exception as error:
            self._fail(job, index, error)
        else:
            job.tickets.add(ticket)
        self._leave_queue(job)

    def _leave_queue(self, job: Job) -> None:
        job.waiting.popleft()
        with self._changed:
            self._queued -= 1

    def _expire(self, job: Job) -> None:
        """The deadline of a request: its looks so far count; texts without a vote abstain."""
        for ticket in list(job.tickets):
            self.pool.stop(ticket)
            self._deliver(ticket, late=True)
        while job.waiting:
            index = job.waiting[0]
            self._leave_queue(job)
            self._answer(job, index, None, late=True)
        if job in self._jobs:
            self._jobs.remove(job)

    def _drop(self, job: Job) -> list[int]:
        """Forget a request; returns the numbers of its texts that were not answered."""
        left = [*(ticket.tag.index for ticket in job.tickets), *job.waiting]
        for ticket in job.tickets:
            self.pool.cancel(ticket)
        job.tickets.clear()
        while job.waiting:
            self._leave_queue(job)
        if job in self._jobs:
            self._jobs.remove(job)
        return left

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

    def _fail(self, job: Job, index: int, error: Exception) -> None:
        job.outbox.put("failed", index, (index, problem_of(error, self.name, self.settings)))

    def _give_up(self, error: BaseException, reason: str) -> None:
        """The model is faulty: it is not served any more, and all its requests are refused."""
        log_error(f"model {self.name!r} is not served any more", error, texts=self.settings.log_texts)
        with self._changed:
            self.fault = f"the model {self.name!r} {reason}: it is not served any more"
        self._refuse_all(Problem(503, self.fault))

    def _refuse_all(self, problem: Problem) -> None:
        """Refuse every request that was accepted and is not finished."""
        with self._changed:
            self._jobs += self._new
            self._new.clear()
        for job in {*self._jobs, *(ticket.tag.job for ticket in self.pool.tickets())}:
            for index in self._drop(job):
                job.outbox.put("failed", index, (index, problem))


def queue_full(model: str, queued: int, settings: ServeSettings) -> Problem:
    """Too many texts wait."""
    return too_many(
        f"{queued} texts wait for the model {model!r} already, of at most {settings.queue}: "
        "send the request again later"
    )


def too_long(job: Job, index: int, length: int, settings: ServeSettings) -> str:
    """A text has too many tokens."""
    name = "the text" if len(job.texts) == 1 else f"text {index}"
    return f"{name} has {length} tokens, more than the {settings.tokens} that are allowed: send a shorter text"


def problem_of(error: Exception, model: str, settings: ServeSettings) -> Problem:
    """What the client is told when the work on a text failed."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, (ValueError, BaseClassifierError)):
        return Problem(422, str(error))
    log_error(f"model {model!r}", error, texts=settings.log_texts)
    return internal_error()


def log_error(where: str, error: BaseException, *, texts: bool) -> None:
    """Log an internal error; its message and traceback, which may contain texts, only if that is allowed."""
    if texts:
        LOG.error("%s: %s", where, error, exc_info=error)
        return
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    line = "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    LOG.error("%s: %s%s; --log-texts shows more", where, type(error).__name__, line)
