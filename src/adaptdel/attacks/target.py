"""What is attacked: a certifier that is asked for answers, within limits of queries and time.

A recipe needs `Target.query`, `Target.certificate` and `Target.verify`, which know no kind of evidence. Where copies
vote, the plan names their noise (`Plan.copy_noise`): the adaptive attack and the audit draw copies of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Input
from adaptdel.certification.sampling import stream
from adaptdel.classifiers.base import Request
from adaptdel.classifiers.features import best
from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.confidence import clopper_pearson, exact_shares
from adaptdel.core.noise import MANY_CHOICES
from adaptdel.settings import ATTACK, AttackSettings
from adaptdel.text.units import Tokens, content_key

FRESH = 1000  # votes of the first check of a change; each further check takes four times as many


class TimeLimitReached(Exception):
    """The time limit for an input has passed."""


class QueryLimitReached(Exception):
    """The attack has evaluated as many texts as it may."""


@dataclass(frozen=True)
class CopyAnswers:
    """The answers to noisy copies of a text, shape (copies,)."""

    answers: IntArray
    margins: FloatArray | None  # by how much the score of the label exceeds the best other one; None without scores

    def take(self, rows: BoolArray) -> CopyAnswers:
        """The answers to some of the copies."""
        return CopyAnswers(self.answers[rows], None if self.margins is None else self.margins[rows])


@dataclass(frozen=True)
class FreshVotes:
    """Whether the answer to a text differs from a label."""

    changed: bool | None  # True or False where that is settled at the level of the check, None where it is not
    answer: int  # the class that was answered
    exact: bool  # whether that is certain: every copy was enumerated, or nothing was sampled


class Target:
    """A classifier under attack, with limits on queries and time.

    Args:
        certifier: of the model.
        settings: votes and limits.

    Attributes:
        labels: the classes, which attacks know by number.
        noise: of the copies that vote; None if no copies vote, so that what draws copies cannot be called.
        queries: texts that were evaluated for the present input.
        votes: calls of the base classifier for it.
    """

    def __init__(self, certifier: Certifier, settings: AttackSettings = ATTACK) -> None:
        self.certifier, self.oracle, self.unit, self.settings = certifier, certifier.oracle, certifier.unit, settings
        self.labels, self.classes = list(certifier.classes), len(certifier.classes)
        self.plan: Any = certifier.plan
        self.noise: Any = certifier.plan.copy_noise
        self._engine = certifier.with_plan(certifier.plan.queried(settings.votes, settings.seed))
        self.begin()

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""
        self.queries = self.votes = 0
        self._scale = 0.0  # of scores, from the first text of an input
        self._started = time.perf_counter()

    def check_time(self) -> None:
        """Raise `TimeLimitReached` if the time limit for the present input is reached."""
        if time.perf_counter() - self._started > self.settings.seconds:
            raise TimeLimitReached

    def query(self, texts: Sequence[str]) -> FloatArray:
        """Scores, shape (texts, classes), which sum to 1 for a text; the answer is the class with the largest.

        They are shares of votes, which depend on the text and the seed alone; a decision threshold is at one half.
        Without noise, all votes on a text are the same, and a search by shares of 0 and 1 would see no progress: they
        are the softmax of the scores, if there are any.
        """
        self.check_time()
        self.queries += len(texts)
        engine = self._engine
        prepared = [engine.prepare(text, f"query {number}") for number, text in enumerate(texts)]
        scores, answers = np.zeros((len(texts), self.classes)), np.zeros(len(texts), dtype=np.int64)
        tables = None
        if self.noise is not None and not self.noise.changes_inputs and self.plan.decision_threshold is None:
            whole = [Request(text, np.ones((1, len(text.tokens)), dtype=np.bool_)) for text in prepared]
            tables = self.oracle.copy_scores(whole)
        if tables is not None:
            scores = np.concatenate([np.asarray(table, dtype=np.float64) for table in tables])
            answers = scores.argmax(axis=1)
            self.votes += len(texts)
        else:
            for number, evidence in engine.observed(prepared):
                scores[number] = evidence.class_scores(engine.plan)
                answers[number] = evidence.predicted(engine.plan)
                self.votes += evidence.calls
            if self.noise is not None:
                return decided_at_one_half(scores, self.plan.decision_threshold)
        self._scale = self._scale or max(float(np.ptp(scores[0])), 1e-300)
        scores = scores / self._scale
        powers = np.exp(np.maximum(scores - scores.max(axis=1, keepdims=True), -30.0))
        shares = np.asarray(powers / powers.sum(axis=1, keepdims=True))
        for row, answer, largest in zip(shares, answers, shares.argmax(axis=1), strict=True):
            row[[answer, largest]] = row[[largest, answer]]  # of a model that decides otherwise than by its scores
        return shares

    def certificates(self, texts: Sequence[str], name: str = "an attacked text") -> list[Certificate]:
        """The certificates of texts, which messages call ``name``."""
        found: dict[int, Certificate] = {}
        for result in self.certifier(Input(text, name, number) for number, text in enumerate(texts)):
            if result.certificate is None:
                raise ValueError(f"{name}: {result.failure}")
            found[result.input.tag] = result.certificate
        return [found[number] for number in range(len(texts))]

    def verify(self, tokens: Tokens, label: int, *, level: float | None = None, phase: str = "verify") -> FreshVotes:
        """Whether the answer to a text is another than ``label``, independently of the search that found it.

        Fresh votes decide at a level, which bounds at several sizes share, or the enumeration of all copies; if no
        copies vote, the certificate does.
        """
        if self.noise is None:
            (certificate,) = self.certificates([self.unit.join(tokens)])
            changed = None if certificate.abstained else certificate.answer != label
            return FreshVotes(changed, certificate.answer, certificate.alpha == 0)
        if (shares := self.exact_shares(tokens)) is not None:
            answer = self.plan.predicted(shares)
            return FreshVotes(answer != label, answer, True)
        level = self.settings.level if level is None else level
        sizes = [min(FRESH, self.settings.verify_votes)]
        while sizes[-1] < self.settings.verify_votes:
            sizes.append(min(4 * sizes[-1], self.settings.verify_votes))
        rng = stream(self.settings.seed, content_key(tokens), f"attack {phase}")
        counts = np.zeros(self.classes, dtype=np.int64)
        changed = None
        for size in sizes:
            counts = counts + self.fresh_votes(tokens, size - int(counts.sum()), rng)
            changed = self.settled(counts, label, level / (2 * len(sizes)))
            if changed is not None:
                break
        return FreshVotes(changed, self.plan.predicted(counts.tolist(), int(counts.sum())), False)

    # Where copies vote

    def draw(self, original: Tokens, length: int, size: int, phase: str) -> BoolArray:
        """Noise for texts of a length, shape (size, length); the same in every call with the same arguments.

        Texts that are compared with each other get the same noise (common random numbers).
        """
        rng = stream(self.settings.seed, content_key(original), f"attack {phase}/{length}")
        return np.asarray(self.noise.sample(length, size, rng))

    def samples(self, copies: Sequence[tuple[Tokens, BoolArray]], label: int) -> list[CopyAnswers]:
        """The answers to copies of many texts, in one batch; each text counts as a query."""
        self.check_time()
        if self.queries >= self.settings.queries:
            raise QueryLimitReached
        requests = [
            Request(self.certifier.prepare_tokens(tokens, f"candidate {number}"), kept)
            for number, (tokens, kept) in enumerate(copies)
        ]
        self.queries += len(requests)
        self.votes += sum(len(request.kept) for request in requests)
        tables = self.oracle.copy_scores(requests)
        if tables is None:
            return [CopyAnswers(answers, None) for answers in self.oracle.votes(requests)]
        leads = [table[:, label] - np.delete(table, label, axis=1).max(axis=1) for table in tables]
        return [CopyAnswers(best(table), lead.astype(np.float64)) for table, lead in zip(tables, leads, strict=True)]

    def margin(self, counts: npt.NDArray[Any], label: int) -> float:
        """The lead of a label, in shares: over the other classes, or over the decision threshold."""
        total = max(float(counts.sum()), 1e-300)
        threshold = self.plan.decision_threshold
        if threshold is not None:
            share = float(counts[1]) / total
            return share - threshold if label == 1 else threshold - share
        return float(counts[label] - np.delete(counts, label).max()) / total

    def exact_shares(self, tokens: Tokens) -> list[Fraction] | None:
        """The exact probability of every class for a short text; None for one with too many copies."""
        noise, length = self.noise, len(tokens)
        if noise.choices(length) > MANY_CHOICES:
            return None
        request = Request(self.certifier.prepare_tokens(tokens, "a short text"), noise.all_choices(length))
        self.votes += len(request.kept)
        (answers,) = self.oracle.votes([request])
        table = np.zeros((self.classes, length + 1), dtype=np.int64)
        np.add.at(table, (answers, request.kept.sum(axis=1)), 1)
        return exact_shares(table.tolist(), noise, length)

    def fresh_votes(self, tokens: Tokens, size: int, rng: np.random.Generator) -> IntArray:
        """Votes by class on new noise, shape (classes,)."""
        prepared = self.certifier.prepare_tokens(tokens, "an attacked text")
        counts = np.zeros(self.classes, dtype=np.int64)
        for kept in self.noise.chunks(len(tokens), size, rng):
            (answers,) = self.oracle.votes([Request(prepared, kept)])
            counts = counts + np.bincount(answers, minlength=self.classes)
        self.votes += size
        return counts

    def settled(self, counts: IntArray, label: int, level: float) -> bool | None:
        """Whether votes prove that the answer changed (True) or stayed (False); None if neither."""
        threshold = self.plan.decision_threshold
        if threshold is not None:
            low, high = clopper_pearson(int(counts[1]), int(counts.sum()), level)
            if low > threshold:
                return label == 0
            return label == 1 if high <= threshold else None
        # A rival is ahead of the label if it gets more than half of the votes that the two get together.
        behind = 0
        for number in range(self.classes):
            if number != label:
                pair = int(counts[number] + counts[label])
                low, high = clopper_pearson(int(counts[number]), pair, level / (self.classes - 1))
                if low > 0.5:
                    return True
                behind += high < 0.5
        return False if behind == self.classes - 1 else None


def decided_at_one_half(shares: FloatArray, threshold: float | None) -> FloatArray:
    """The shares; of two classes with a decision threshold, scaled so that the threshold is at one half.

    >>> decided_at_one_half(np.array([[0.7, 0.3]]), 0.2).round(4).tolist()
    [[0.4375, 0.5625]]
    """
    if threshold is None:
        return shares
    share = shares[:, 1]
    scaled = np.interp(share, [-1e-9, threshold, 1 + 1e-9], [0.0, 0.5, 1.0])
    scaled = np.where(share > threshold, np.maximum(scaled, np.nextafter(0.5, 1)), np.minimum(scaled, 0.5))
    return np.stack([1 - scaled, scaled], axis=1)
