"""What a request is answered: certificates and predictions, votes as they come, and the influence of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.pool import Ticket
from adaptdel.certification.sampling import Tally
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.confidence import exact_shares
from adaptdel.core.noise import Noise
from adaptdel.serve.queueing import Job

ALL_OPERATIONS = ("del", "ins", "sub")


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
            classes = len(self._certifier.base.labels())
            if stage != self._stage:
                self._stage, self._counts = stage, np.zeros(classes, dtype=np.int64)
            new = max(0, classes - len(self._counts))  # classes that this stage met for the first time
            self._counts = np.pad(self._counts, (0, new)) + np.bincount(answers, minlength=classes)
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
    tally = None if watcher is None else watcher.ticket.tally
    certificate = None
    if watcher is not None and tally is not None and tally.proves:
        certificate = certifier.certificate(watcher.ticket.prepared, tally)
    result = _abstention(certifier, tally) if certificate is None else _certified(certificate)
    result |= {"deadline_reached": late, **_cost(watcher, seconds)}
    if influence:
        tokens = () if watcher is None else watcher.ticket.prepared.tokens
        rows = None
        if watcher is not None and watcher.influence is not None and tally is not None and certificate is not None:
            rows = watcher.influence.rows(tally.label, certifier.rule.noise, exact=tally.exact is not None)
        result |= {"tokens": [_plain(token) for token in tokens], "influence": rows}
    return {**result, "certificate": None if certificate is None else certificate.to_dict()}


def predict_result(certifier: Certifier, watcher: Watcher | None, *, late: bool, seconds: float) -> dict[str, Any]:
    """The result for a text that was only classified."""
    tally = Tally() if watcher is None else watcher.ticket.tally
    counts: Any = tally.selection
    if tally.exact is not None and watcher is not None:
        length = len(watcher.ticket.prepared.tokens)
        counts = np.array([float(share) for share in exact_shares(tally.exact.tolist(), certifier.rule.noise, length)])
    shares = counts / max(counts.sum(), 1e-300)
    labels = certifier.base.labels()
    scores = {
        str(label): round(float(share), 9) for label, share in zip(labels, _padded(shares, len(labels)), strict=True)
    }
    label = labels[tally.label] if tally.label >= 0 else None
    return {"label": label, "scores": scores, "deadline_reached": late, **_cost(watcher, seconds)}


def _certified(certificate: Certificate) -> dict[str, Any]:
    operations = certificate.noise.certified_ops
    radii = {operation: certificate.radius_for((operation,)) for operation in operations}
    if set(operations) == set(ALL_OPERATIONS):
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
    }


def _abstention(certifier: Certifier, tally: Tally | None) -> dict[str, Any]:
    """The deadline came before the first look: nothing is certified, and the label is the most frequent one so far."""
    rule, counts = certifier.rule, None if tally is None else tally.selection
    operations = rule.noise.certified_ops
    edit = ["edit"] if set(operations) == set(ALL_OPERATIONS) else []
    label = -1 if tally is None else tally.label
    return {
        "label": certifier.base.labels()[label] if label >= 0 else None,
        "radius": -1,
        "abstained": True,
        "score": 0.0 if counts is None or label < 0 else float(counts[label] / counts.sum()),
        "length": None,
        "alpha": certifier.plan.alpha,
        "ops": list(rule.ops),
        "radii": dict.fromkeys([*operations, *edit], -1),
        "covers_every_text": False,
    }


def _cost(watcher: Watcher | None, seconds: float) -> dict[str, Any]:
    return {"calls": 0 if watcher is None else watcher.calls, "seconds": round(seconds, 6)}


def _named(certifier: Certifier, counts: IntArray) -> dict[str, int]:
    labels = certifier.base.labels()
    return {str(label): int(count) for label, count in zip(labels, _padded(counts, len(labels)), strict=True)}


def _padded(counts: Any, width: int) -> Any:
    return np.pad(counts, (0, max(0, width - len(counts))))[:width]


def _plain(token: Any) -> Any:
    return token.hex() if isinstance(token, bytes) else token
