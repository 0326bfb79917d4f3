"""The five recipes of the paper, composed out of TextAttack's parts (version 0.3.11), against a smoothed classifier.

The settings are those of TextAttack's own recipes. All texts of a search step are one batch for the engine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from adaptdel.attacks.adaptive import FAILURE, SKIPPED, SUCCESS, TIMEOUT
from adaptdel.attacks.outcomes import AttackRecord
from adaptdel.attacks.target import Spent, TimeLimitReached
from adaptdel.attacks.textattack_parts import Parts, import_textattack, read_words
from adaptdel.attacks.textattack_predictions import moves
from adaptdel.attacks.textattack_savings import (
    attack_within_limits,
    limited_distance,
    quick_texts,
)
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import SamplingPlan, content_key
from adaptdel.classifiers.base import Prepared, Request
from adaptdel.core.checks import FloatArray
from adaptdel.hyperparameters import AttackSettings
from adaptdel.text.units import Tokens

WHOLE_STEP = 10**6  # texts of a batch: all of a search step
PHASES = ("attack query", "attack estimate")  # random streams of their own


class Shares(Protocol):
    """What a recipe queries: the vote shares of texts."""

    spent: Spent

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """The shares, shape (texts, classes), as `decided_at_one_half` gives them."""


def decided_at_one_half(shares: FloatArray, threshold: float | None) -> FloatArray:
    """The shares; of two classes with a decision threshold, scaled so that the threshold is at one half.

    >>> decided_at_one_half(np.array([[0.7, 0.3]]), 0.2).round(4).tolist()
    [[0.4375, 0.5625]]
    """
    if threshold is None:
        return shares
    share = shares[:, 1]
    low = share / (2 * threshold) if threshold > 0 else np.zeros(len(share))
    high = 0.5 + 0.5 * (share - threshold) / (1 - threshold) if threshold < 1 else low
    scaled = np.where(share > threshold, np.maximum(high, np.nextafter(0.5, 1)), low)
    return np.stack([1 - scaled, scaled], axis=1)


class VoteShares:
    """The vote shares of texts, with limits on time; what a recipe queries.

    Args:
        certifier: the engine of the model.
        settings: the number of votes of a query, the time limit and the seed.
        fresh: whether the votes on a text are drawn anew in every call; otherwise they depend on the text alone.
    """

    def __init__(self, certifier: Certifier, settings: AttackSettings, *, fresh: bool) -> None:
        rule = certifier.rule
        plan = SamplingPlan(
            rule,
            n_select=settings.votes,
            n_estimate=0,
            sampling="fixed",
            seed=settings.seed,
            exact=False,
            phases=PHASES,
        )
        self.certifier = Certifier(certifier.base, plan, certifier.unit)
        self.settings, self.fresh = settings, fresh
        self.classes = len(certifier.base.classes_ or [])
        self.spent = Spent()
        self.calls = 0
        self._scale = 0.0  # of scores, from the first text of an input

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""
        self.spent, self.calls, self._scale = Spent(started=time.perf_counter()), 0, 0.0

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """The shares, shape (texts, classes); with a decision threshold, they are scaled so that it is at one half."""
        if self.spent.seconds > self.settings.seconds:
            raise TimeLimitReached
        self.calls += 1
        engine = self.certifier
        if self.fresh:
            seed = (self.settings.seed + self.calls) % 2**63
            engine = Certifier(engine.base, replace(engine.plan, seed=seed), engine.unit)
        self.spent.queries += len(texts)
        prepared = [engine.prepare(text, f"query {number}") for number, text in enumerate(texts)]
        if not engine.rule.noise.changes_inputs and engine.rule.threshold is None:
            probabilities = self._probabilities(prepared)
            if probabilities is not None:
                self.spent.votes += len(texts)
                return probabilities
        shares = np.zeros((len(texts), self.classes))
        for number, tally in engine.votes(prepared):
            shares[number, : len(tally.selection)] = tally.selection[: self.classes] / tally.selection.sum()
        self.spent.votes += len(texts) * self.settings.votes
        return decided_at_one_half(shares, engine.rule.threshold)

    def _probabilities(self, prepared: Sequence[Prepared]) -> FloatArray | None:
        """Without noise: the softmax of the scores, or None if the model only votes.

        All votes on a text are the same then, and a search by shares of 0 and 1 would see no progress.
        """
        whole = [Request(text, np.ones((1, len(text.tokens)), dtype=np.bool_)) for text in prepared]
        tables = self.certifier.base.copy_scores(whole)
        if tables is None:
            return None
        scores = np.concatenate([np.asarray(table, dtype=np.float64) for table in tables])
        scores -= scores.max(axis=1, keepdims=True)
        if not self._scale:
            self._scale = max(float(-scores[0].min()), 1e-300)
        powers = np.exp(np.maximum(scores / self._scale, -30.0))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class TextAttackAttacker:
    """A recipe of TextAttack against a smoothed classifier.

    Args:
        shares: answers queries.
        recipe: its name.
        settings: votes of a query, and limits of queries and time.
        parts: folders or names of the parts.
        fresh: whether a text that is queried again gets fresh votes.
        shared: loaded parts by recipe, of attacks with the same ``parts``; this attack adds its own.
    """

    def __init__(
        self,
        shares: Shares,
        recipe: str,
        settings: AttackSettings,
        parts: Mapping[str, str],
        *,
        fresh: bool = False,
        shared: dict[str, Any] | None = None,
    ) -> None:
        self.settings, self.shares = settings, shares
        loaded = Parts(recipe, parts) if shared is None else shared.setdefault(recipe, Parts(recipe, parts))
        import_textattack(parts.get("stop_words"))
        self.attack = BUILDERS[recipe](_goal(self.shares, settings, fresh=fresh), loaded)

    def __call__(self, text: str, tokens: Tokens, label: int) -> AttackRecord:
        """Attack a text with the recipe; everything random depends on the text and the seed alone."""
        import torch

        seed = int.from_bytes(content_key(tokens)[:4], "little") ^ (self.settings.seed & 0xFFFFFFFF)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  TextAttack draws from NumPy's legacy generator
        torch.manual_seed(seed)
        self.attack.clear_cache()
        self.shares.begin()
        spent = self.shares.spent
        try:
            with quick_texts():
                result = self.attack.attack(text, label)
        except TimeLimitReached:
            return _record(TIMEOUT, spent.queries, spent.votes)
        queries = int(self.attack.goal_function.num_queries)
        kind = type(result).__name__
        if kind == "SkippedAttackResult":
            return _record(SKIPPED, queries, spent.votes)
        if kind != "SuccessfulAttackResult":
            return _record(FAILURE, queries, spent.votes)
        attacked = result.perturbed_result.attacked_text
        changed = len(attacked.attack_attrs.get("modified_indices", ()))
        return _record(SUCCESS, queries, spent.votes) | {"text": attacked.text, "words_changed": changed}


def _record(outcome: str, queries: int, votes: int) -> AttackRecord:
    return {"outcome": outcome, "text": None, "words_changed": None, "queries": queries, "votes": votes}


def _goal(shares: Shares, settings: AttackSettings, *, fresh: bool) -> Any:
    """TextAttack's goal of any other answer; it keeps the answer to a text unless fresh votes are wanted."""
    from textattack.goal_functions import UntargetedClassification
    from textattack.models.wrappers import ModelWrapper

    class SmoothedWrapper(ModelWrapper):  # type: ignore[misc]
        """The model as TextAttack calls it."""

        def __init__(self) -> None:
            self.model = shares

        def __call__(self, texts: Sequence[str]) -> FloatArray:
            """Vote shares, which sum to 1: TextAttack applies no softmax."""
            return shares(texts)

    return UntargetedClassification(
        SmoothedWrapper(), query_budget=settings.queries, model_batch_size=WHOLE_STEP, use_cache=not fresh
    )


def _unchanged_words(parts: Parts) -> list[Any]:
    """No word is changed twice, and no stop word."""
    from textattack.constraints.pre_transformation import RepeatModification, StopwordModification

    name = parts.names.get("stop_words")
    return [RepeatModification(), StopwordModification(stopwords=None if name is None else set(read_words(name)))]


def deepwordbug(goal: Any, parts: Parts) -> Any:
    """DeepWordBug: letters of important words are swapped, replaced, deleted or inserted. TextAttack's own recipe."""
    from textattack.attack_recipes import DeepWordBugGao2018

    attack = DeepWordBugGao2018.build(goal.model)
    constraints = [*_unchanged_words(parts), *map(limited_distance, attack.constraints)]
    return attack_within_limits(goal, constraints, attack.transformation, attack.search_method)


def textfooler(goal: Any, parts: Parts) -> Any:
    """TextFooler: important words are replaced by words with similar vectors."""
    from textattack.constraints.semantics import WordEmbeddingDistance
    from textattack.search_methods import GreedyWordSwapWIR
    from textattack.transformations import WordSwapEmbedding

    vectors = parts.word_vectors()
    constraints = [
        *_unchanged_words(parts),
        WordEmbeddingDistance(embedding=vectors, min_cos_sim=0.5),
        *parts.part_of_speech(allow_verb_noun_swap=True),
        *parts.sentence_encoder(
            threshold=0.840845057,
            metric="angular",
            compare_against_original=False,
            window_size=15,
            skip_text_shorter_than_window=True,
        ),
    ]
    transformation = WordSwapEmbedding(max_candidates=50, embedding=vectors)
    search = GreedyWordSwapWIR(wir_method="delete")
    return attack_within_limits(goal, constraints, transformation, search, parts.candidates)


def bae(goal: Any, parts: Parts) -> Any:
    """BAE: important words are replaced by predictions of a masked language model.

    The paper calls it BAE-I. TextAttack implements the replacements of BAE, and this is its recipe.
    """
    from textattack.search_methods import GreedyWordSwapWIR

    transformation = moves().swaps(method="bae", max_candidates=50, min_confidence=0.0, **parts.masked_lm())
    constraints = [
        *_unchanged_words(parts),
        *parts.part_of_speech(allow_verb_noun_swap=True),
        *parts.sentence_encoder(
            threshold=0.936338023,
            metric="cosine",
            compare_against_original=True,
            window_size=15,
            skip_text_shorter_than_window=True,
        ),
    ]
    search = GreedyWordSwapWIR(wir_method="delete")
    return attack_within_limits(goal, constraints, transformation, search, parts.candidates)


def bert_attack(goal: Any, parts: Parts) -> Any:
    """BERT-Attack: important words are replaced by predictions of a masked language model, up to 40% of the words."""
    from textattack.constraints.overlap import MaxWordsPerturbed
    from textattack.search_methods import GreedyWordSwapWIR

    transformation = moves().subword_swaps(method="bert-attack", max_candidates=8, **parts.masked_lm())
    constraints = [
        *_unchanged_words(parts),
        MaxWordsPerturbed(max_percent=0.4),
        *parts.sentence_encoder(threshold=0.2, metric="cosine", compare_against_original=True, window_size=None),
    ]
    search = GreedyWordSwapWIR(wir_method="unk")
    return attack_within_limits(goal, constraints, transformation, search, parts.candidates)


def clare(goal: Any, parts: Parts) -> Any:
    """CLARE: words are replaced, inserted and merged by a masked language model; merging needs a tagger."""
    from textattack.search_methods import GreedySearch
    from textattack.transformations import CompositeTransformation

    shared = {"max_candidates": 50, **parts.masked_lm()}
    transformation = CompositeTransformation(
        [
            moves().swaps(method="bae", min_confidence=5e-4, **shared),
            moves().insertions(min_confidence=0.0, **shared),
            *parts.merges(min_confidence=5e-3, **shared),
        ]
    )
    constraints = [
        *_unchanged_words(parts),
        *parts.sentence_encoder(
            threshold=0.7,
            metric="cosine",
            compare_against_original=True,
            window_size=15,
            skip_text_shorter_than_window=True,
        ),
    ]
    return attack_within_limits(goal, constraints, transformation, GreedySearch(), parts.candidates)


BUILDERS: dict[str, Callable[[Any, Parts], Any]] = {
    "clare": clare,
    "bae-i": bae,
    "bert-attack": bert_attack,
    "deepwordbug": deepwordbug,
    "textfooler": textfooler,
}
