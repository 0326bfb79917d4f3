"""A request that was accepted, and what it is answered: votes as they come, certificates, the influence of tokens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Ticket
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import Tally
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.confidence import exact_shares
from adaptdel.core.noise import Noise
from adaptdel.text.units import Tokens

ALL_OPERATIONS = ("del", "ins", "sub")


class Job:
    """A request that was accepted, and what it is told: from the thread of the model to the event loop that made it.

    Its messages are bounded, however slowly they are read: of votes on a text, only the latest message is kept.

    Attributes:
        texts: in UTF-8; b"" once the model has read them.
        plan: what `ServedModel.plan` makes of the request.
        cancelled: called if the client left before every text was answered.
        waiting: the numbers of the texts that are not in the pool yet.
        tickets: of the texts that are in the pool.
        tokens: the number of tokens of the texts that were in the pool so far.
    """

    def __init__(
        self,
        model: str,
        texts: Sequence[bytes],
        plan: Any,
        cancelled: Callable[[Job], None],
        *,
        deadline: float,
        influence: bool = False,
        stream: bool = False,
    ) -> None:
        self.model, self.texts, self.plan = model, list(texts), plan
        self.deadline, self.influence, self.stream = deadline, influence, stream
        self.started = time.monotonic()
        self.waiting = deque(range(len(self.texts)))
        self.tickets: set[Ticket] = set()
        self.tokens = 0
        self._cancelled, self._left = cancelled, len(self.texts)
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._messages: dict[Any, tuple[str, Any]] = {}  # in order
        self._number = 0

    def put(self, name: str, index: int, value: Any) -> None:
        """Tell something about the text ``index``: "votes", "look", "result" in JSON, or "failed" with a `Problem`.

        The last two are pairs with the index.
        """
        with self._lock:
            self._number += 1
            key = (index, value["phase"]) if name == "votes" else self._number
            self._messages.pop(key, None)
            self._messages[key] = (name, value)
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def messages(self) -> AsyncIterator[tuple[str, Any]]:
        """Pairs (name, value), until every text is answered."""
        while self._left > 0:  # below 0 if a result comes with the cancellation
            await self._arrived.wait()
            self._arrived.clear()
            with self._lock:
                messages = list(self._messages.values())
                self._messages.clear()
            for name, value in messages:
                self._left -= name in ("result", "failed")
                yield name, value

    async def results(self) -> list[bytes]:
        """The results of the texts in JSON; the failure of a single text, or the end of the server, is raised."""
        results = [b"{}" for _ in self.texts]
        async for name, value in self.messages():
            if name == "failed":
                index, problem = value
                if len(results) == 1 or problem.status_code == 503:
                    raise problem
                results[index] = json.dumps({"error": problem.detail}).encode()
            elif name == "result":
                results[value[0]] = value[1]
        return results

    def cancel(self) -> None:
        """Stop the votes, unless every text is answered."""
        if self._left:
            self._left = 0
            self._cancelled(self)
            self._arrived.set()


class Watcher:
    """Observes the votes on one text: it counts them, tells a stream of them, and sums up which tokens were kept."""

    def __init__(self, job: Job, index: int, prepared: Prepared, certifier: Certifier) -> None:
        self.job, self.index = job, index
        self.ticket = Ticket(prepared, job.plan, tag=self, observer=self)
        self.calls = 0
        self.influence = Influence(len(prepared.tokens)) if job.influence else None
        self._certifier = certifier
        self._stage, self._counts = "", np.zeros(0, dtype=np.int64)

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        """Count votes."""
        self.calls += len(answers)
        if self.influence is not None:
            self.influence.add(stage, kept, answers, self.ticket.tally.label)
        if self.job.stream:
            classes = len(self._certifier.base.classes_ or [])
            if stage != self._stage:
                self._stage, self._counts = stage, np.zeros(classes, dtype=np.int64)
            self._counts = self._counts + np.bincount(answers, minlength=classes)
            votes = {"votes": _named(self._certifier, self._counts), "total": int(self._counts.sum())}
            self.job.put("votes", self.index, {"index": self.index, "phase": stage, **votes})

    def saw_look(self, tally: Tally) -> None:
        """Tell what a look proves."""
        if not self.job.stream or tally.looks is None:
            return
        certificate = self._certifier.certificate(self.ticket.prepared, tally)
        look = {
            "index": self.index,
            "look": len(tally.votes),
            "looks": list(tally.looks.sizes),
            "votes": _named(self._certifier, tally.votes[-1]),
            "lower": certificate.bounds[0],
            "radius": certificate.radius,
            "label": certificate.label,
        }
        self.job.put("look", self.index, look)


class Influence:
    """For every token, the estimation votes with the token kept and deleted, and those of them for the answer.

    The selection votes are left out: they chose the answer. Of an enumerated text every copy counts with its
    probability, scaled so that the copies have a mean weight of 1.
    """

    def __init__(self, length: int) -> None:
        self._total = self._total_for = 0.0
        self._kept, self._kept_for = np.zeros(length), np.zeros(length)
        self._enumerated: list[tuple[BoolArray, IntArray]] = []

    def add(self, stage: str, kept: BoolArray, answers: IntArray, label: int) -> None:
        """Add votes; of an enumeration, which chooses the answer, at the end: a short text has few copies."""
        if stage == "enumeration":
            self._enumerated.append((kept, answers))
        elif stage == "estimation":
            self._count(kept, answers == label, np.ones(len(answers)))

    def _count(self, kept: BoolArray, agrees: BoolArray, weights: Any) -> None:
        self._total += float(weights.sum())
        self._total_for += float(weights[agrees].sum())
        self._kept += weights @ kept
        self._kept_for += weights[agrees] @ kept[agrees]

    def rows(self, label: int, noise: Noise) -> list[dict[str, float]] | None:
        """A row for every token; None if there were no such votes."""
        if self._enumerated:
            chances = np.array([float(weight) for weight in noise.choice_weights(len(self._kept))])
            copies = sum(len(kept) for kept, _ in self._enumerated)
            for kept, answers in self._enumerated:
                self._count(kept, answers == label, chances[kept.sum(axis=1)] * copies)
        if not self._total:
            return None
        columns = (self._kept, self._kept_for, self._total - self._kept, self._total_for - self._kept_for)
        names = ("kept", "for", "deleted", "for_when_deleted")
        rows = np.round(np.stack(columns, axis=1), 6).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows]


def smoothed_result(certifier: Certifier, job: Job, watcher: Watcher | None, *, late: bool) -> dict[str, Any]:
    """The result of a smoothed model for a text; ``watcher`` is None if it never got to vote."""
    tally = Tally() if watcher is None else watcher.ticket.tally
    prepared = None if watcher is None else watcher.ticket.prepared
    calls = 0 if watcher is None else watcher.calls
    cost = {"deadline_reached": late, "calls": calls, "seconds": round(time.monotonic() - job.started, 6)}
    if not job.plan.n_estimate:
        return _prediction(certifier, tally, () if prepared is None else prepared.tokens) | cost
    certificate = certifier.certificate(prepared, tally) if prepared is not None and tally.proves else None
    if certificate is None:
        score = 0.0 if tally.label < 0 else float(tally.selection[tally.label] / tally.selection.sum())
        rule, alpha = certifier.rule, certifier.plan.alpha
        result = _abstention(_label(certifier, tally), score, alpha, rule.ops, rule.noise.certified_ops) | cost
    else:
        result = certified(certificate) | cost
    if job.influence:
        rows = None
        if watcher is not None and watcher.influence is not None and certificate is not None:
            rows = watcher.influence.rows(tally.label, certificate.noise)
        result |= {"tokens": _printable(() if prepared is None else prepared.tokens), "influence": rows}
    return {**result, "certificate": None if certificate is None else certificate.to_dict()}


def _prediction(certifier: Certifier, tally: Tally, tokens: Tokens) -> dict[str, Any]:
    counts: Any = tally.selection
    if tally.exact is not None:
        exact = exact_shares(tally.exact.tolist(), certifier.rule.noise.given(tokens), len(tokens))
        counts = np.array([float(share) for share in exact])
    shares = _named(certifier, counts / max(counts.sum(), 1e-300))
    return {
        "label": _label(certifier, tally),
        "scores": {name: round(float(share), 9) for name, share in shares.items()},
    }


def exact_result(certificate: ExactCertificate | None, job: Job) -> dict[str, Any]:
    """The result of an exact model for a text; ``certificate`` is None if the deadline came before.

    The plan of the job is the attacker, or None for a prediction.
    """
    seconds = round(time.monotonic() - job.started, 6)
    spent = {"deadline_reached": certificate is None, "calls": 0, "seconds": seconds}
    if certificate is None:
        if job.plan is None:
            return {"label": None, "scores": {}, **spent}
        return _abstention(None, None, 0.0, job.plan.ops, ALL_OPERATIONS) | spent | {"certificate": None}
    if job.plan is None:
        scores = zip(map(str, certificate.classes), certificate.totals.tolist(), strict=True)
        return {"label": certificate.label, "scores": dict(scores), **spent}
    certificate = certificate.rederive(ops=job.plan.ops)
    result = certified(certificate) | spent
    if job.influence:
        result |= {"tokens": _printable(certificate.tokens or ()), "margin": _margin(certificate)}
    return {**result, "certificate": certificate.to_dict()}


def _margin(certificate: ExactCertificate) -> dict[str, Any]:
    """What the closest rival needs, what every edit gives it, and a text that it wins."""
    rival, closest = certificate.closest
    return {
        "rival": certificate.classes[rival],
        "slack": closest.slack,
        "insertion": closest.insertion,
        "deletion": closest.deletion.tolist(),
        "counterexample": _printable([certificate.counterexample()])[0],
    }


def _printable(tokens: Sequence[Any]) -> list[Any]:
    """Tokens for JSON: bytes in hexadecimal."""
    return [token.hex() if isinstance(token, bytes) else token for token in tokens]


def certified(certificate: Certificate | ExactCertificate) -> dict[str, Any]:
    """What a certificate proves, however it was made."""
    radii = {operation: certificate.radius_for((operation,)) for operation in certificate.certified_ops}
    if set(radii) == set(ALL_OPERATIONS):
        radii["edit"] = certificate.radius_for("edit")
    return {
        "label": certificate.label,
        "radius": certificate.radius,
        "abstained": certificate.abstained,
        "score": certificate.score,
        "length": certificate.length,
        "alpha": certificate.alpha,
        "ops": list(certificate.ops),
        "radii": radii,
        "covers_every_text": certificate.covers_every_text,
        "character_radius": certificate.character_radius,
    }


def _abstention(
    label: Any, score: float | None, alpha: float, ops: Sequence[str], certified_ops: Sequence[str]
) -> dict[str, Any]:
    """The deadline came before anything was proven; the label is the most frequent one so far."""
    radii = dict.fromkeys(certified_ops, -1)
    if set(radii) == set(ALL_OPERATIONS):
        radii["edit"] = -1
    return {
        "label": label,
        "radius": -1,
        "abstained": True,
        "score": score,
        "length": None,
        "alpha": alpha,
        "ops": list(ops),
        "radii": radii,
        "covers_every_text": False,
    }


def _label(certifier: Certifier, tally: Tally) -> Any:
    return None if tally.label < 0 else (certifier.base.classes_ or [])[tally.label]


def _named(certifier: Certifier, counts: Any) -> dict[str, Any]:
    """Counts or shares by class; classes without votes at the end may be missing."""
    labels = certifier.base.classes_ or []
    padded = np.pad(counts, (0, max(0, len(labels) - len(counts)))).tolist()
    return {str(label): value for label, value in zip(labels, padded, strict=False)}
