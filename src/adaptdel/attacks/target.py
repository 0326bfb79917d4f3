"""What is attacked: a classifier that answers texts with a score for each class, within limits of queries and time.

The recipes of TextAttack need no more than `Target`. The adaptive attack knows the noise: it needs a `SmoothedTarget`,
whose answers to noisy copies it sees.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Certifier, Input
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import SamplingPlan, content_key, stream
from adaptdel.classifiers.base import Prepared, Request
from adaptdel.classifiers.features import best
from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.confidence import clopper_pearson, exact_shares
from adaptdel.core.noise import MANY_CHOICES
from adaptdel.core.threat import Threat
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.settings import ATTACK, AttackSettings
from adaptdel.text.units import Tokens, Unit, check_unit

PHASES = ("attack query", "attack estimate")  # random streams of queries
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
    answer: int  # the class that these votes answer
    exact: bool  # whether the answer is certain: every copy was enumerated, or the model has no noise to draw


class Target(ABC):
    """A classifier under attack, with limits on queries and time.

    Args:
        classes: the labels; attacks know them by number.
        unit: divides a text into tokens.
        ops: the operations that are certified.
        settings: votes and limits.

    Attributes:
        queries: texts that were evaluated for the present input.
        votes: calls of the base classifier for it.
    """

    def __init__(self, classes: Sequence[Any], unit: Unit, ops: Sequence[str], settings: AttackSettings) -> None:
        self.labels, self.unit, self.ops, self.settings = list(classes), unit, tuple(ops), settings
        self.classes = len(self.labels)
        self.begin()

    @abstractmethod
    def query(self, texts: Sequence[str]) -> FloatArray:
        """The scores, shape (texts, classes), which sum to 1 for a text; the answer is the class with the largest."""

    @abstractmethod
    def certify(self, text: str, name: str) -> tuple[int, int]:
        """The answer and the certified radius of a text, which messages call ``name``."""

    @abstractmethod
    def verify(self, tokens: Tokens, label: int, *, level: float | None = None, phase: str = "verify") -> FreshVotes:
        """Whether the answer to a text is another than ``label``, proven at a level independently of the search."""

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""
        self.queries = self.votes = 0
        self._started = time.perf_counter()

    def check_time(self) -> None:
        """Raise `TimeLimitReached` if the time limit for the present input is reached."""
        if time.perf_counter() - self._started > self.settings.seconds:
            raise TimeLimitReached


class SmoothedTarget(Target):
    """A smoothed classifier under attack: the noise, the base classifier and the rule of its engine."""

    def __init__(self, certifier: Certifier, settings: AttackSettings = ATTACK) -> None:
        super().__init__(certifier.base.classes_ or [], certifier.unit, certifier.rule.threat.ops, settings)
        self.certifier = certifier
        plan = SamplingPlan(
            certifier.rule,
            n_select=settings.votes,
            n_estimate=0,
            sampling="fixed",
            seed=settings.seed,
            exact=False,
            phases=PHASES,
        )
        self._engine = certifier.with_plan(plan)

    @property
    def rule(self) -> Rule:
        """The noise, the threat model and how votes are turned into an answer."""
        return self.certifier.rule

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""
        super().begin()
        self._scale = 0.0  # of scores without noise, from the first text of an input

    def certify(self, text: str, name: str) -> tuple[int, int]:
        """The answer and the certified radius."""
        (result,) = list(self.certifier([Input(text, name)]))
        if result.certificate is None:
            raise ValueError(f"{name}: {result.failure}")
        return result.certificate.answer, result.certificate.radius

    def query(self, texts: Sequence[str]) -> FloatArray:
        """Vote shares; with a decision threshold, they are scaled so that it is at one half.

        The votes depend on the text and the seed alone.
        """
        self.check_time()
        engine = self._engine
        self.queries += len(texts)
        prepared = [engine.prepare(text, f"query {number}") for number, text in enumerate(texts)]
        if not self.rule.noise.changes_inputs and self.rule.threshold is None:
            probabilities = self._probabilities(prepared)
            if probabilities is not None:
                self.votes += len(texts)
                return probabilities
        shares = np.zeros((len(texts), self.classes))
        for number, tally in engine.votes(prepared):
            shares[number, : len(tally.selection)] = tally.selection[: self.classes] / tally.selection.sum()
        self.votes += len(texts) * self.settings.votes
        return decided_at_one_half(shares, self.rule.threshold)

    def _probabilities(self, prepared: Sequence[Prepared]) -> FloatArray | None:
        """Without noise: the softmax of the scores, or None if the model only votes.

        All votes on a text are the same then, and a search by shares of 0 and 1 would see no progress.
        """
        tables = self.certifier.base.copy_scores(
            [Request(text, np.ones((1, len(text.tokens)), dtype=np.bool_)) for text in prepared]
        )
        if tables is None:
            return None
        scores = np.concatenate([np.asarray(table, dtype=np.float64) for table in tables])
        if not self._scale:
            self._scale = max(float(np.ptp(scores[0])), 1e-300)
        return softmax(scores / self._scale)

    def draw(self, original: Tokens, length: int, size: int, phase: str) -> BoolArray:
        """Noise for texts of a length, shape (size, length); the same in every call with the same arguments.

        Texts that are compared with each other get the same noise (common random numbers).
        """
        rng = stream(self.settings.seed, content_key(original), f"attack {phase}/{length}")
        return self.rule.noise.sample(length, size, rng)

    def samples(self, copies: Sequence[tuple[Tokens, BoolArray]], label: int) -> list[CopyAnswers]:
        """The answers to copies of many texts, in one batch; each text counts as a query."""
        self.check_time()
        if self.queries >= self.settings.queries:
            raise QueryLimitReached
        certifier = self.certifier
        requests = [
            Request(certifier.prepare_tokens(tokens, f"candidate {number}"), kept)
            for number, (tokens, kept) in enumerate(copies)
        ]
        self.queries += len(requests)
        self.votes += sum(len(request.kept) for request in requests)
        tables = certifier.base.copy_scores(requests)
        if tables is None:
            return [CopyAnswers(answers, None) for answers in certifier.base.votes(requests)]
        return [CopyAnswers(best(table), _margins(table, label)) for table in tables]

    def margin(self, counts: npt.NDArray[Any], label: int) -> float:
        """The lead of a label, in shares: over the other classes, or over the decision threshold."""
        total = max(float(counts.sum()), 1e-300)
        threshold = self.rule.threshold
        if threshold is not None:
            share = float(counts[1]) / total
            return share - threshold if label == 1 else threshold - share
        return float(counts[label] - np.delete(counts, label).max()) / total

    def counts(self, answers: IntArray) -> IntArray:
        """Votes by class, shape (classes,)."""
        return np.bincount(answers, minlength=self.classes)

    def is_short(self, length: int) -> bool:
        """Whether all copies of a text of this length can be enumerated."""
        return self.rule.noise.choices(length) <= MANY_CHOICES

    def exact_shares(self, tokens: Tokens) -> list[Fraction]:
        """The exact probability of every class for a short text."""
        noise, length = self.rule.noise, len(tokens)
        request = Request(self.certifier.prepare_tokens(tokens, "a short text"), noise.all_choices(length))
        self.votes += len(request.kept)
        (answers,) = self.certifier.base.votes([request])
        table = np.zeros((self.classes, length + 1), dtype=np.int64)
        np.add.at(table, (answers, request.kept.sum(axis=1)), 1)
        return exact_shares(table.tolist(), noise, length)

    def fresh_votes(self, tokens: Tokens, size: int, rng: np.random.Generator) -> IntArray:
        """Votes by class on new noise, shape (classes,)."""
        prepared = self.certifier.prepare_tokens(tokens, "an attacked text")
        counts = np.zeros(self.classes, dtype=np.int64)
        for kept in self.rule.noise.chunks(len(tokens), size, rng):
            (answers,) = self.certifier.base.votes([Request(prepared, kept)])
            counts = counts + self.counts(answers)
        self.votes += size
        return counts

    def verify(self, tokens: Tokens, label: int, *, level: float | None = None, phase: str = "verify") -> FreshVotes:
        """Whether the smoothed answer to a text is another than ``label``, by fresh votes or by enumeration.

        The votes are drawn from a stream of their own, independent of those that found the text. Bounds at several
        sizes share the level.
        """
        level = self.settings.level if level is None else level
        if self.is_short(len(tokens)):
            answer = self.rule.predicted_class(self.exact_shares(tokens))
            return FreshVotes(answer != label, answer, True)
        sizes = [min(FRESH, self.settings.verify_votes)]
        while sizes[-1] < self.settings.verify_votes:
            sizes.append(min(4 * sizes[-1], self.settings.verify_votes))
        rng = stream(self.settings.seed, content_key(tokens), f"attack {phase}")
        counts = np.zeros(self.classes, dtype=np.int64)
        changed: bool | None = None
        for size in sizes:
            counts = counts + self.fresh_votes(tokens, size - int(counts.sum()), rng)
            changed = self.settled(counts, label, level / (2 * len(sizes)))
            if changed is not None:
                break
        return FreshVotes(changed, self.rule.predicted_class(counts.tolist(), int(counts.sum())), False)

    def settled(self, counts: IntArray, label: int, level: float) -> bool | None:
        """Whether votes prove that the answer changed (True) or stayed (False); None if neither."""
        rule = self.rule
        if rule.threshold is not None:
            low, high = clopper_pearson(int(counts[1]), int(counts.sum()), level)
            if low > rule.threshold:
                return label == 0
            return label == 1 if high <= rule.threshold else None
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


class ExactTarget(Target):
    """An additive classifier under attack: its scores are exact, so one query settles everything."""

    def __init__(self, model: AdditiveClassifier, settings: AttackSettings = ATTACK) -> None:
        super().__init__(model.classes_.tolist(), check_unit(model.unit), Threat(model.ops).ops, settings)
        self.model = model

    def certificate(self, text: str, name: str = "an attacked text") -> ExactCertificate:
        """The certificate of a text, which messages call ``name``."""
        (result,) = list(self.model.certifier()([Input(text, name)]))
        if result.certificate is None:
            raise ValueError(f"{name}: {result.failure}")
        certificate: ExactCertificate = result.certificate
        return certificate

    def worst_tokens(self, answer: int) -> list[Hashable]:
        """The known token that adds most to each rival over the answer; none if runs of tokens have the scores."""
        base = self.model.base_classifier()
        rivals = [number for number in range(self.classes) if number != answer and base.ngram == 1]
        worst = [base.worst_token(answer, rival, self.unit) for rival in rivals]
        return [token for token in worst if token is not None]

    def against_known(self, certificate: ExactCertificate) -> ExactCertificate:
        """The certificate against an attacker who writes no other tokens than those that the model knows.

        Its radius is at least that of the given one, and its counterexample, one edit further away, is the closest text
        with another answer that such an attacker can write; None if no number of edits changes the answer. If runs of
        tokens have the scores, it is the certificate itself, which has no counterexample.
        """
        answer, worst = certificate.answer, self.worst_tokens(certificate.answer)
        scores = self.model.base_classifier().token_scores(worst)
        return replace(certificate, reach=(scores - scores[:, [answer]]).max(axis=0)) if worst else certificate

    def certify(self, text: str, name: str) -> tuple[int, int]:
        """The answer and the certified radius."""
        certificate = self.certificate(text, name)
        return certificate.answer, certificate.radius

    def query(self, texts: Sequence[str]) -> FloatArray:
        """The softmax of the scores, in units of the largest effect of a token."""
        self.check_time()
        self.queries += len(texts)
        totals = np.array([self.certificate(text).totals for text in texts], dtype=np.float64)
        return softmax(totals / self.model.bound_)

    def verify(self, tokens: Tokens, label: int, *, level: float | None = None, phase: str = "verify") -> FreshVotes:
        """Whether the answer to a text is another than ``label``: certain at every level."""
        answer = self.certificate(self.unit.join(tokens)).answer
        return FreshVotes(answer != label, answer, True)


def target_of(model: Any, settings: AttackSettings = ATTACK) -> Target:
    """The target that a model is."""
    if isinstance(model, AdditiveClassifier):
        return ExactTarget(model, settings)
    return SmoothedTarget(model.certifier(), settings)


def softmax(scores: FloatArray) -> FloatArray:
    """The softmax of each row; no value is smaller than exp(−30) times the largest."""
    powers = np.exp(np.maximum(scores - scores.max(axis=1, keepdims=True), -30.0))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


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


def _margins(table: npt.NDArray[Any], label: int) -> FloatArray:
    others = np.delete(table, label, axis=1).max(axis=1)
    return np.asarray(table[:, label] - others, dtype=np.float64)
