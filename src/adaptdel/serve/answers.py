"""A request that was accepted, and what it is answered: votes as they come, certificates, the influence of tokens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
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


class Outbox:
    """What a request is told, from the thread of the model to whoever waits.

    Its size is bounded, however slowly it is read: of votes on a text, only the latest message is kept.

    Args:
        notify: called after every message, in the thread of the model.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._messages: dict[Any, tuple[str, Any]] = {}  # in order
        self._number = 0

    def put(self, name: str, index: int, value: Any) -> None:
        """Add a message about the text ``index``."""
        with self._lock:
            self._number += 1
            key = (index, value["phase"]) if name == "votes" else self._number
            self._messages.pop(key, None)
            self._messages[key] = (name, value)
        self._notify()

    def take(self) -> list[tuple[str, Any]]:
        """All messages since the last call, in order."""
        with self._lock:
            messages = list(self._messages.values())
            self._messages.clear()
        return messages


class Job:
    """One request: its texts, how they are sampled, and its outbox.

    Attributes:
        texts: the texts.
        plan: what `ServedModel.plan` makes of the request: how votes are sampled, without estimation votes for a
            prediction; of an exact model what `ServedExact.plan` makes.
        outbox: gets "votes", "look", "result" and "failed"; each with a dictionary, but "failed" with a pair (index,
            `Problem`).
        influence: whether results say which tokens carry the answer.
        stream: whether votes and looks are told.
        deadline: by the monotonic clock.
        started: by the monotonic clock.
        waiting: the numbers of the texts that are not in the pool yet.
        tickets: of the texts that are in the pool.
        tokens: the number of tokens of the texts that were in the pool so far.
    """

    def __init__(
        self,
        texts: Sequence[str],
        plan: Any,
        outbox: Outbox,
        *,
        deadline: float,
        influence: bool = False,
        stream: bool = False,
    ) -> None:
        self.texts, self.plan, self.outbox = list(texts), plan, outbox
        self.deadline, self.influence, self.stream = deadline, influence, stream
        self.started = time.monotonic()
        self.waiting = deque(range(len(self.texts)))
        self.tickets: set[Ticket] = set()
        self.tokens = 0


class Watcher:
    """Observes the votes on one text: it counts them, tells a stream of them, and sums up which tokens were kept.

    Attributes:
        job: the request.
        index: the number of the text in the request.
        ticket: the text in the pool.
        calls: the number of votes.
        influence: the sums for every token, if they were asked for.
    """

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
            self.job.outbox.put("votes", self.index, {"index": self.index, "phase": stage, **votes})

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
        self.job.outbox.put("look", self.index, look)


class Influence:
    """For every token, the estimation votes with the token kept and deleted, and those of them for the answer.

    The selection votes are left out: they chose the answer. Of an enumerated text every copy counts with its
    probability, scaled so that the copies have a mean weight of 1.
    """

    def __init__(self, length: int) -> None:
        self._total = self._for = 0
        self._kept = np.zeros(length, dtype=np.int64)
        self._kept_for = np.zeros(length, dtype=np.int64)
        self._enumerated: list[tuple[BoolArray, IntArray]] = []

    def add(self, stage: str, kept: BoolArray, answers: IntArray, label: int) -> None:
        """Add votes."""
        if stage == "enumeration":  # at most `MANY_CHOICES` copies of a short text
            self._enumerated.append((kept, answers))
        elif stage == "estimation":
            agrees = answers == label
            self._total += len(answers)
            self._for += int(agrees.sum())
            self._kept += kept.sum(axis=0)
            self._kept_for += kept[agrees].sum(axis=0)

    def rows(self, label: int, noise: Noise, *, exact: bool) -> list[dict[str, float]] | None:
        """A row for every token; None if there were no such votes."""
        total: float = self._total
        total_for: float = self._for
        kept: Any = self._kept
        kept_for: Any = self._kept_for
        if exact:
            copies = np.concatenate([part for part, _ in self._enumerated])
            agrees = np.concatenate([part for _, part in self._enumerated]) == label
            chances = np.array([float(weight) for weight in noise.choice_weights(copies.shape[1])])
            weights = chances[copies.sum(axis=1)] * len(copies)
            total, total_for = float(weights.sum()), float(weights[agrees].sum())
            kept, kept_for = weights @ copies, weights[agrees] @ copies[agrees]
        if not total:
            return None
        columns = (kept, kept_for, total - kept, total_for - kept_for)
        names = ("kept", "for", "deleted", "for_when_deleted")
        rows = np.round(np.stack(columns, axis=1), 6).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows]


def certify_result(
    certifier: Certifier, watcher: Watcher | None, *, influence: bool, late: bool, seconds: float
) -> dict[str, Any]:
    """The result for a text that was certified; ``watcher`` is None if it never got to vote."""
    certificate = tally = None
    if watcher is not None:
        tally = watcher.ticket.tally
        certificate = certifier.certificate(watcher.ticket.prepared, tally) if tally.proves else None
    result = _abstention(certifier, tally) if certificate is None else certified(certificate)
    result |= {"deadline_reached": late, **_cost(watcher, seconds)}
    if influence:
        tokens = () if watcher is None else watcher.ticket.prepared.tokens
        rows = None
        if watcher is not None and watcher.influence is not None and tally is not None and certificate is not None:
            rows = watcher.influence.rows(tally.label, certificate.noise, exact=tally.exact is not None)
        result |= {
            "tokens": _printable(tokens),
            "influence": rows,
        }
    return {**result, "certificate": None if certificate is None else certificate.to_dict()}


def predict_result(certifier: Certifier, watcher: Watcher | None, *, late: bool, seconds: float) -> dict[str, Any]:
    """The result for a text that was only classified."""
    tally = Tally() if watcher is None else watcher.ticket.tally
    counts: Any = tally.selection
    if tally.exact is not None and watcher is not None:
        tokens = watcher.ticket.prepared.tokens
        exact = exact_shares(tally.exact.tolist(), certifier.rule.noise.given(tokens), len(tokens))
        counts = np.array([float(share) for share in exact])
    shares = _named(certifier, counts / max(counts.sum(), 1e-300))
    label = (certifier.base.classes_ or [])[tally.label] if tally.label >= 0 else None
    return {
        "label": label,
        "scores": {name: round(float(share), 9) for name, share in shares.items()},
        "deadline_reached": late,
        **_cost(watcher, seconds),
    }


def exact_result(certificate: ExactCertificate, tokens: Tokens, job: Job) -> dict[str, Any]:
    """The result of an exact model for a text; the plan of the job is the attacker, or None for a prediction."""
    spent = {"deadline_reached": False, "calls": 0, "seconds": round(time.monotonic() - job.started, 6)}
    if job.plan is None:
        scores = zip(map(str, certificate.classes), certificate.totals.tolist(), strict=True)
        return {"label": certificate.label, "scores": dict(scores), **spent}
    certificate = certificate.rederive(ops=job.plan.ops)
    result = certified(certificate) | spent
    if job.influence:
        result |= {"tokens": _printable(tokens), "margin": _margin(certificate)}
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


def _abstention(certifier: Certifier, tally: Tally | None) -> dict[str, Any]:
    """The deadline came before the first look: nothing is certified, and the label is the most frequent one so far."""
    rule, counts = certifier.rule, None if tally is None else tally.selection
    radii = dict.fromkeys(rule.noise.certified_ops, -1)
    if set(radii) == set(ALL_OPERATIONS):
        radii["edit"] = -1
    label = -1 if tally is None else tally.label
    return {
        "label": (certifier.base.classes_ or [])[label] if label >= 0 else None,
        "radius": -1,
        "abstained": True,
        "score": 0.0 if counts is None or label < 0 else float(counts[label] / counts.sum()),
        "length": None,
        "alpha": certifier.plan.alpha,
        "ops": list(rule.ops),
        "radii": radii,
        "covers_every_text": False,
    }


def _cost(watcher: Watcher | None, seconds: float) -> dict[str, Any]:
    return {"calls": 0 if watcher is None else watcher.calls, "seconds": round(seconds, 6)}


def _named(certifier: Certifier, counts: Any) -> dict[str, Any]:
    """Counts or shares by class; classes without votes at the end may be missing."""
    labels = certifier.base.classes_ or []
    padded = np.pad(counts, (0, max(0, len(labels) - len(counts)))).tolist()
    return {str(label): value for label, value in zip(labels, padded, strict=False)}
