"""The models that are served: each has a thread, which alone calls the model, and answers the jobs of all requests.

Every text passes the same queue, deadlines and limits. Requests share batches of votes, and join the pool between two
batches; evidence that needs no votes is answered when a text is let in.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import traceback
from collections import deque
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from adaptdel.certification.certifier import Ticket
from adaptdel.certification.evidence import Plan
from adaptdel.classifiers.base import BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.foreign import ForeignModelError
from adaptdel.core.checks import check_int
from adaptdel.models.estimator import TextEstimator
from adaptdel.serve.answers import Job, Watcher, result_of
from adaptdel.serve.schemas import FilterBody, PredictBody, Problem, TextsBody, internal_error, shutting_down
from adaptdel.settings import ServeSettings
from adaptdel.text.units import Bytes, Characters, Chunks, Unit

LOG = logging.getLogger("adaptdel.serve")
FILTER_NEEDED = "train a filter with two classes by adaptdel train --protect LABEL"
ADMISSION_SECONDS = 0.02  # for splitting and preparing texts between two batches
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COPIES = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Meters:
    """What a server measures, for Prometheus. Labels come from fixed sets: routes, status codes, models."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        route, model = ("route",), ("model",)
        self.requests = Counter("adaptdel_requests", "Requests.", (*route, "code"), registry=registry)
        self.latency = Histogram(
            "adaptdel_request_seconds", "Time of a request.", route, buckets=SECONDS, registry=registry
        )
        self.in_flight = Gauge("adaptdel_requests_in_flight", "Requests that are worked on.", registry=registry)
        self.queue = Gauge("adaptdel_queue_texts", "Texts that wait for a place in the pool.", model, registry=registry)
        self.pool = Gauge("adaptdel_pool_texts", "Texts that are voted on together.", model, registry=registry)
        self.texts = Counter("adaptdel_texts", "Texts that were answered.", model, registry=registry)
        self.abstentions = Counter("adaptdel_abstentions", "Texts with no certificate.", model, registry=registry)
        self.late = Counter(
            "adaptdel_deadlines_reached", "Texts whose votes a deadline ended.", model, registry=registry
        )
        self.votes = Counter("adaptdel_votes", "Votes of the base classifier.", model, registry=registry)
        self.batches = Histogram(
            "adaptdel_batch_copies", "Copies in a batch.", model, buckets=COPIES, registry=registry
        )

    def page(self) -> bytes:
        """All measurements in the text format of Prometheus."""
        return generate_latest(self.registry)


class ServedModel:
    """A model and its thread, which lets in the texts of all requests in turn.

    Attributes:
        pool: the texts that are worked on; only the thread changes it.
        fault: why the model is not served any more; None if it is.
    """

    def __init__(self, name: str, model: TextEstimator, settings: ServeSettings, meters: Meters) -> None:
        self.name, self.model, self.settings, self.meters = name, model, settings, meters
        self.certifier, self.prediction_plan = model.certifier(), model.prediction_plan()
        self.pool, self.protected = self.certifier.pool(), model.protected
        self.fault: str | None = None
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._jobs: list[Job] = []  # that are not finished, in the order of arrival
        self._queued = 0  # texts that wait; guarded by the condition
        self._closing = self._stopped = self._oldest_first = False
        self._thread = threading.Thread(target=self._run, name=f"adaptdel-{name}", daemon=True)
        self.start = self._thread.start
        meters.queue.labels(name).set_function(lambda: self.sizes()[0])
        meters.pool.labels(name).set_function(lambda: self.sizes()[1])

    def info(self) -> dict[str, Any]:
        """What clients are told of the model."""
        base, plan = self.model.base_classifier(), self.certifier.plan
        return plan.facts() | {
            "name": self.name,
            "kind": base.kind or type(base).__name__,
            "classes": list(self.certifier.classes),
            "unit": self.certifier.unit.kind,
            "method": (self.model.records.training or {}).get("method", plan.method()[0]),
            "fingerprint": self.certifier.fingerprint,
        }

    def sizes(self) -> tuple[int, int]:
        """The number of texts that wait and of those that are voted on."""
        return self._queued, len(self.pool)

    def unready(self) -> str | None:
        """Why requests are not accepted; None if they are."""
        if self.fault is None and not self._closing and self._thread.is_alive():
            return None
        return self.fault or f"the model {self.name!r} is not ready yet"

    def plan(self, body: TextsBody, seed: int) -> Plan:
        """How a request is answered; ValueError if it asks for something that cannot be."""
        votes = {} if body.votes is None else body.votes.model_dump(exclude_none=True)
        for name, number in votes.items():
            check_int(f"votes.{name}", number, most=self.settings.votes)
        if isinstance(body, PredictBody):
            return self.prediction_plan.requested(seed=seed, **votes)
        asked = body.model_dump(include={"alpha", "ops", "influence"})
        return self.certifier.plan.requested(seed=seed, interrupted=body.deadline_ms is not None, **asked, **votes)

    def submit(self, body: TextsBody, seed: int) -> Job:
        """Accept a request, or raise a `Problem` at once; a text that is too long by its length alone fails at once."""
        if isinstance(body, FilterBody) and self.protected is None:
            raise Problem(422, f"the model {self.name!r} protects no class: {FILTER_NEEDED}")
        most = self.settings.deadline_ms
        try:
            milliseconds = most if body.deadline_ms is None else check_int("deadline_ms", body.deadline_ms, most=most)
            certifier = self.certifier.with_plan(self.plan(body, seed))
        except ValueError as error:
            raise Problem(422, str(error)) from None
        options = body.model_dump(include={"influence", "stream"})
        until = time.monotonic() + milliseconds / 1000
        job = Job(
            self.name,
            body.all_texts(),
            certifier,
            self.cancel,
            until,
            predicts=isinstance(body, PredictBody),
            flags=self.protected if isinstance(body, FilterBody) else None,
            **options,
        )
        for index, text in enumerate(job.texts):
            try:
                self._check_tokens(_fewest_tokens(self.certifier.unit, text))
            except Problem as problem:
                job.texts[index] = b""
                job.waiting.remove(index)
                job.put("failed", index, (index, problem))
        with self._changed:
            if self.fault is not None:
                raise Problem(503, self.fault)
            if self._closing:
                raise shutting_down()
            if self._queued + len(job.waiting) > self.settings.queue:
                raise Problem(
                    429,
                    f"{self._queued} texts wait for the model {self.name!r} already, of at most "
                    f"{self.settings.queue}: send the request again later",
                    {"Retry-After": "1"},
                )
            self._queued += len(job.waiting)
            self._new.append(job)
            self._changed.notify()
        return job

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

    def _check_tokens(self, count: int) -> None:
        if count > self.settings.tokens:
            allowed = f"more than the {self.settings.tokens} that are allowed"
            raise Problem(413, f"the text has {count} tokens, {allowed}: send a shorter text")

    def _failed(self, job: Job, index: int, error: Exception) -> None:
        if isinstance(error, (ValueError, BaseClassifierError)):
            error = Problem(422, str(error))
        elif not isinstance(error, Problem):
            log_error(f"model {self.name!r}", error)
            error = internal_error()
        job.put("failed", index, (index, error))

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
        self.meters.batches.labels(self.name).observe(self.pool.copies)
        self.meters.votes.labels(self.name).inc(self.pool.copies)
        for ticket in finished:
            self._deliver(ticket, late=False)

    def _admit(self) -> None:
        """Split and begin texts: those of the request with the fewest texts in the pool first.

        Among equals the request with the fewest tokens so far and the oldest one take turns, so that neither a short
        request waits for long ones, nor a long one for all the short ones to come.
        """
        settings, until = self.settings, time.monotonic() + ADMISSION_SECONDS
        while len(self.pool) < settings.pool_inputs:
            candidates = [job for job in self._jobs if job.waiting and len(job.tickets) < settings.request_inputs]
            if not candidates:
                return
            self._oldest_first = not self._oldest_first
            self._admit_next(min(candidates, key=lambda job: (len(job.tickets), self._oldest_first or job.tokens)))
            if time.monotonic() >= until:
                return

    def _admit_next(self, job: Job) -> None:
        """Begin the next text of a request, or refuse it."""
        index = job.waiting[0]
        try:
            text, job.texts[index] = job.texts[index].decode("utf-8", "surrogatepass"), b""
            tokens = self.certifier.unit.split(text)
            self._check_tokens(len(tokens))
            job.tokens += len(tokens)
            if job.influence and job.tokens > self.settings.tokens:
                most = f"all texts together may have at most {self.settings.tokens} tokens"
                raise Problem(413, f"with influence, {most}: send fewer texts")
            prepared = self.certifier.prepare_tokens(tokens, "this text")
            watcher = Watcher(job, index, prepared)
            ticket = Ticket(prepared, job.certifier.plan, tag=watcher, watcher=watcher)
            self.pool.add(ticket)
            job.tickets.add(ticket)
            if ticket.evidence is not None:  # now, as results of long texts take time: deadlines come between two texts
                self.pool.stop(ticket)
                self._deliver(ticket, late=False)
        except (InconsistentAnswerError, ForeignModelError):
            raise
        except Exception as error:
            self._failed(job, index, error)
        self._leave_queue(job)

    def _expire(self, job: Job) -> None:
        """The deadline of a request: its looks so far count; texts without a vote abstain."""
        for ticket in list(job.tickets):
            self.pool.stop(ticket)
            self._deliver(ticket, late=True)
        while job.waiting:
            self._put_result(job, job.waiting[0], None, late=True)
            self._leave_queue(job)

    def _drop(self, job: Job) -> list[int]:
        """Forget a request; returns the numbers of its texts that were not answered."""
        left = [ticket.tag.index for ticket in job.tickets] + list(job.waiting)
        for ticket in job.tickets:
            self.pool.cancel(ticket)
        job.tickets.clear()
        while job.waiting:
            self._leave_queue(job)
        return left

    def _deliver(self, ticket: Ticket, *, late: bool) -> None:
        watcher: Watcher = ticket.tag
        watcher.job.tickets.discard(ticket)
        if ticket.failure is None:
            self._put_result(watcher.job, watcher.index, ticket, late=late)
            return
        self._failed(watcher.job, watcher.index, ticket.failure)
        if isinstance(ticket.failure.__cause__, ForeignModelError):  # Rust code panicked: its state is unknown
            raise ticket.failure.__cause__

    def _put_result(self, job: Job, index: int, ticket: Ticket | None, *, late: bool) -> None:
        """Encode the result of a text in this thread: the event loop only passes it on. Bytes are in hexadecimal."""
        try:
            result = result_of(job, ticket, late=late)
            encoded = json.dumps({"index": index, **result} if job.stream else result, default=bytes.hex).encode()
        except Exception as error:
            self._failed(job, index, error)
            return
        self.meters.texts.labels(self.name).inc()
        self.meters.abstentions.labels(self.name).inc(result.get("abstained", False))
        self.meters.late.labels(self.name).inc(result["deadline_reached"])
        job.put("result", index, (index, encoded))

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
                job.put("failed", index, (index, problem))


def _fewest_tokens(unit: Unit, text: bytes) -> int:
    """A text in UTF-8 has at least this many tokens."""
    match unit:
        case Characters():
            return len(text.decode("utf-8", "surrogatepass"))
        case Bytes():
            return len(text)
        case Chunks(size):
            return -(-len(text) // size)
    return 0


def log_error(where: str, error: BaseException) -> None:
    """Log an internal error with its traceback; not its message, which may contain texts."""
    LOG.error("%s: %s\n%s", where, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
