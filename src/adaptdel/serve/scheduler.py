"""One thread per model: it owns the pool of votes and shares batches of the base classifier between all requests.

Requests join the pool between two batches. The thread is the only one that calls the base classifier. What it has to
tell is put into the outbox of the request, which wakes the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from adaptdel.certification.certifier import Certifier
from adaptdel.certification.pool import Ticket, VotePool
from adaptdel.classifiers.base import BaseClassifierError, InconsistentAnswerError
from adaptdel.serve.answers import Watcher, certify_result, predict_result
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.metrics import Meters
from adaptdel.serve.problems import Problem, internal_error, shutting_down, too_many
from adaptdel.serve.queueing import BatchSize, Job

LOG = logging.getLogger("adaptdel.serve")
LONGEST_WAIT = 30  # seconds that a client is told to wait
PACE_SHARE = 0.1  # of the last text in the mean time of a text
ADMISSION_SECONDS = 0.02  # for splitting and preparing texts between two batches


class Scheduler:
    """The thread of a model.

    Args:
        name: the name of the model.
        certifier: the engine, with the base classifier.
        settings: the limits.
        meters: what is measured.

    Attributes:
        pool: the texts that are voted on; only the thread changes it.
        batches: how large a batch is.
        fault: why the model is not served any more; None if it is.
    """

    def __init__(self, name: str, certifier: Certifier, settings: ServeSettings, meters: Meters) -> None:
        self.name, self.certifier, self.settings, self.meters = name, certifier, settings, meters
        self.pool = VotePool(certifier.base)
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._jobs: list[Job] = []  # with texts that wait for a place in the pool
        self._long: dict[Ticket, int] = {}  # the long texts in the pool, with their numbers of tokens
        self._queued = 0  # texts that wait; guarded by the condition
        self._order = 0
        self._busy = self._pace = 0.0  # seconds since a text was finished, and for each of the last ones
        self.batches = BatchSize(settings.step_seconds)
        self._closing = self._stopped = False
        self.fault: str | None = None
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
            self._check_open()
            if self._queued + len(job.texts) > self.settings.queue:
                raise too_many(
                    f"{self._queued} texts wait for the model {self.name!r} already, of at most {self.settings.queue}: "
                    "send the request again later",
                    seconds=self._seconds_to_wait(),
                )
            self._queued += len(job.texts)
            self._order += 1
            job.order = self._order
            self._new.append(job)
            self._changed.notify()

    def _seconds_to_wait(self) -> int:
        """About how long the texts that wait now will take."""
        return min(LONGEST_WAIT, max(1, round(self._queued * self._pace)))

    def _check_open(self) -> None:
        if self.fault is not None:
            raise Problem(503, self.fault)
        if self._closing:
            raise shutting_down()

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
            except Exception as error:  # a fault of the server: nobody is left waiting
                log_error(f"model {self.name!r}", error, texts=self.settings.log_texts)
                self._refuse_all(internal_error())
            except BaseException as error:  # such as a panic in a library in Rust, whose state is unknown after it
                self._give_up(error, f"broke down ({type(error).__name__})")

    def _round(self) -> None:
        """Stop what is late, let texts in, classify one batch, and deliver what is finished."""
        now = time.monotonic()
        for job in [job for job in self._jobs if job.deadline <= now]:
            self._expire(job)
        for job in {ticket.tag.job for ticket in self.pool.tickets() if ticket.tag.job.deadline <= now}:
            self._expire(job)
        self._admit(now)
        if not len(self.pool):
            return
        started = time.monotonic()
        finished = self.pool.step(self.batches.work)
        self.batches.measured(self.pool.work, time.monotonic() - started)
        self.meters.batch(self.name, self.pool.copies)
        self._busy += time.monotonic() - now
        if finished:
            self._pace += PACE_SHARE * (self._busy / len(finished) - self._pace)
            self._busy = 0.0
        for ticket in finished:
            self._deliver(ticket, late=False)

    def _admit(self, now: float) -> None:
        """Split, prepare and add texts: those of the request with the fewest texts in the pool first."""
        settings, until = self.settings, now + ADMISSION_SECONDS
        candidates = list(self._jobs)
        while candidates and len(self.pool) < settings.pool_inputs and (time.monotonic() < until or not len(self.pool)):
            job = min(candidates, key=lambda job: (len(job.tickets), job.order))
            if len(job.tickets) >= settings.request_inputs or not self._admit_next(job):
                candidates.remove(job)
            elif not job.waiting:
                candidates.remove(job)
                self._jobs.remove(job)

    def _admit_next(self, job: Job) -> bool:
        """Add the next text of a request to the pool; returns False if there is no place for it now."""
        index = job.waiting[0]
        try:
            tokens = self.certifier.unit.split(job.texts[index]) if job.split is None else job.split
            length = len(tokens)
            if length > self.settings.tokens or (job.influence and job.tokens + length > self.settings.tokens):
                raise Problem(413, self._too_long(job, index, length))
            if not self._fits(length):
                job.split = tokens
                return False
            prepared = self.certifier.prepare_tokens(tokens, "this text" if len(job.texts) == 1 else f"text {index}")
            ticket = Watcher(job, index, prepared, self.certifier.with_plan(job.plan)).ticket
            self.pool.add(ticket)
        except InconsistentAnswerError:
            raise
        except Exception as error:
            self._leave_queue(job)
            self._fail(job, index, error)
            return True
        self._leave_queue(job)
        job.tokens += length
        job.tickets.add(ticket)
        if length > self.settings.long_tokens:
            self._long[ticket] = length
        return True

    def _fits(self, length: int) -> bool:
        """Whether there is a place for a text; long ones leave half of the places to short ones."""
        if length <= self.settings.long_tokens or not self._long:
            return True
        places = max(1, self.settings.pool_inputs // 2)
        return len(self._long) < places and sum(self._long.values()) + length <= self.settings.pool_tokens

    def _too_long(self, job: Job, index: int, length: int) -> str:
        if length <= self.settings.tokens:
            return (
                f"with influence, all texts together may have at most {self.settings.tokens} tokens: send fewer texts"
            )
        name = "the text" if len(job.texts) == 1 else f"text {index}"
        return f"{name} has {length} tokens, more than the {self.settings.tokens} that are allowed: send a shorter text"

    def _leave_queue(self, job: Job) -> None:
        job.waiting.popleft()
        job.split = None
        with self._changed:
            self._queued -= 1

    def _leave_pool(self, ticket: Ticket) -> None:
        job = ticket.tag.job
        job.tickets.discard(ticket)
        self._long.pop(ticket, None)

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

    def _drop(self, job: Job) -> None:
        for ticket in list(job.tickets):
            self.pool.cancel(ticket)
            self._leave_pool(ticket)
        while job.waiting:
            self._leave_queue(job)
        if job in self._jobs:
            self._jobs.remove(job)

    def _deliver(self, ticket: Ticket, *, late: bool) -> None:
        watcher: Watcher = ticket.tag
        self._leave_pool(ticket)
        if ticket.failure is not None:
            self._fail(watcher.job, watcher.index, ticket.failure)
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
        self.meters.answered(self.name, abstained=result.get("abstained", False), late=late)
        job.outbox.put("result", index, {"index": index, **result})

    def _fail(self, job: Job, index: int, error: Exception) -> None:
        if isinstance(error, Problem):
            problem = error
        elif isinstance(error, (ValueError, BaseClassifierError)):
            problem = Problem(422, str(error))
        else:
            log_error(f"model {self.name!r}", error, texts=self.settings.log_texts)
            problem = internal_error()
        job.outbox.put("failed", index, (index, problem))

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
        for ticket in self.pool.tickets():
            self.pool.cancel(ticket)
            self._leave_pool(ticket)
            ticket.tag.job.outbox.put("failed", ticket.tag.index, (ticket.tag.index, problem))
        for job in self._jobs:
            while job.waiting:
                index = job.waiting[0]
                self._leave_queue(job)
                job.outbox.put("failed", index, (index, problem))
        self._jobs.clear()

    def sizes(self) -> tuple[int, int]:
        """The number of texts that wait and that are in the pool."""
        return self._queued, len(self.pool)


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
