"""A request that was accepted, and what it is answered: votes as they come, predictions and certificates."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Steps, Ticket
from adaptdel.certification.evidence import Plan
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.threat import OPERATIONS, Threat
from adaptdel.tables import plural
from adaptdel.text.units import noun

MOST_PROVED = 10  # edits, for filters: to look for more takes longer


@dataclass(eq=False)
class Job:
    """A request that was accepted, and what it is told: from the thread of the model to the event loop that made it.

    Its messages are bounded, however slowly they are read: of votes on a text, only the latest message is kept.

    Attributes:
        model: the name of the model.
        texts: in UTF-8; b"" once the model has read them.
        certifier: of the model, with the plan of the request.
        cancelled: called if the client left before every text was answered.
        deadline: in seconds of the monotonic clock.
        predicts: whether it asks for predictions only.
        influence: whether it asks for the influence of tokens.
        stream: whether it is told of votes as they come.
        flags: the class whose certificates alone are worked out, and only up to `MOST_PROVED` edits; None for all.
        waiting: the numbers of the texts that are not in the pool yet.
        tickets: of the texts that are in the pool.
        tokens: the number of tokens of the texts that were in the pool so far.
    """

    model: str
    texts: list[bytes]
    certifier: Certifier
    cancelled: Callable[[Job], None]
    deadline: float
    predicts: bool = False
    influence: bool = False
    stream: bool = False
    flags: Any = None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.waiting = deque(range(len(self.texts)))
        self.tickets: set[Ticket] = set()
        self.tokens = 0
        self._left = len(self.texts)
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
            self.cancelled(self)
            self._arrived.set()


class Watcher:
    """Observes the votes on one text: it counts them, and tells a stream of them and of what they prove."""

    def __init__(self, job: Job, index: int, prepared: Prepared) -> None:
        self.job, self.index, self.prepared = job, index, prepared
        self.calls = self._looks = 0
        self._stage, self._counts = "", np.zeros(0, dtype=np.int64)

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        """Count votes."""
        self.calls += len(answers)
        if self.job.stream:
            classes = len(self.job.certifier.classes)
            if stage != self._stage:
                self._stage, self._counts = stage, np.zeros(classes, dtype=np.int64)
            self._counts = self._counts + np.bincount(answers, minlength=classes)
            votes = _named(self.job, self._counts.tolist())
            self.job.put(
                "votes", self.index, {"index": self.index, "phase": stage, "votes": votes, "total": sum(votes.values())}
            )

    def saw_step(self, steps: Steps) -> None:
        """Tell what a new look proves."""
        if not self.job.stream:
            return
        evidence, plan = steps.evidence(), self.job.certifier.plan
        look = evidence.look(plan)
        if look is not None and look["look"] > self._looks:
            self._looks = look["look"]
            certificate = self.job.certifier.certificate(self.prepared, evidence)
            shown = {"votes": _named(self.job, look["votes"]), "radius": certificate.radius, "label": certificate.label}
            self.job.put("look", self.index, {"index": self.index, **look, **shown})


def result_of(job: Job, ticket: Ticket | None, *, late: bool) -> dict[str, Any]:
    """The result for a text; ``ticket`` is None if the deadline came before its turn."""
    certifier = job.certifier
    evidence = None if ticket is None else ticket.evidence
    answer = -1 if evidence is None else evidence.predicted(certifier.plan)
    label = None if answer < 0 else certifier.classes[answer]
    calls = 0 if ticket is None else ticket.tag.calls
    cost = {"deadline_reached": late, "calls": calls, "seconds": round(time.monotonic() - job.started, 6)}
    if job.predicts:
        scores = [0.0] * len(certifier.classes) if evidence is None else evidence.class_scores(certifier.plan)
        return {"label": label, "scores": _named(job, (round(score, 9) for score in scores)), **cost}
    certificate = None
    if ticket is not None and evidence is not None and evidence.proves:
        certificate = certifier.certificate(ticket.prepared, evidence)
    if job.flags is not None:
        return {"label": label, "flagged": label == job.flags, **flag_proof(job, certificate), **cost}
    score = 0.0 if evidence is None else evidence.share(certifier.plan)
    result = {"label": label, "score": score, **proven(certificate, certifier.plan), **cost}
    if job.influence:
        result |= {"tokens": () if ticket is None else ticket.prepared.tokens, "influence": None}
        if certificate is not None:
            result |= certificate.explain().details
    return {**result, "certificate": None if certificate is None else certificate.to_dict()}


def flag_proof(job: Job, certificate: Certificate | None) -> dict[str, int]:
    """The edits that a flag withstands, alone and with any padding, and the positions that withstand inserted text."""
    if certificate is None or certificate.label != job.flags:
        return {"radius": -1, "padded_radius": -1, "positions": -1}
    evidence, plan = certificate.evidence, certificate.plan
    padded = evidence.radius_within(plan, replace(plan.threat, padding=True), MOST_PROVED)
    radius = padded if padded == MOST_PROVED else evidence.radius_within(plan, plan.threat, MOST_PROVED)
    return {"radius": radius, "padded_radius": padded, "positions": certificate.positions}


def proof_words(job: Job, result: dict[str, Any]) -> str:
    """What `flag_proof` says of a flagged text, in a sentence."""
    verbs, word = Threat(job.certifier.plan.ops).verbs, noun(job.certifier.unit.description())
    radius, padded, positions = result["radius"], result["padded_radius"], result["positions"]
    claims = [f"an attacker {verbs} {plural(radius, word)}"] if radius > max(0, padded) else []
    if padded >= 0:
        besides = f", and an attacker {verbs} {plural(padded, word)}" if padded else ""
        claims.append(f"any text is added before and after{besides}")
    if positions > 0:
        claims.append(f"any text is inserted at {plural(positions, 'position')}, before and after")
    return f"The label stays the same even if {'; or if '.join(claims)}." if claims else "Nothing is proved about it."


def proven(certificate: Certificate | None, plan: Plan) -> dict[str, Any]:
    """What a certificate proves; None if the deadline came before anything was proven."""
    threats = (*plan.certified_ops, *(("edit",) if set(plan.certified_ops) == set(OPERATIONS) else ()))
    values = {"ops": list(plan.ops)}
    if certificate is None:
        nothing = {
            "radius": -1,
            "abstained": True,
            "length": None,
            "covers_every_text": False,
            "padded_radius": -1,
            "positions": -1,
        }
        return {**values, **nothing, "alpha": plan.alpha, "radii": dict.fromkeys(threats, -1)}
    names = (
        "radius", "abstained", "length", "covers_every_text", "alpha", "character_radius", "padded_radius", "positions",
        "segment",
    )  # fmt: skip
    values |= {name: getattr(certificate, name) for name in names}
    return {**values, "radii": {name: certificate.radius_for(name) for name in threats}}


def _named(job: Job, values: Iterable[Any]) -> dict[str, Any]:
    """Votes or scores by the names of the classes."""
    return dict(zip(map(str, job.certifier.classes), values, strict=True))
