"""Choose the decision threshold that protects a class, on texts that the model was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

from adaptdel.certification.sampling import content_key
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.bounds import complement
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.data import ExampleSet
from adaptdel.text.units import check_unit
from adaptdel.training.protection import (
    PROOF,
    VOTES,
    Protection,
    apply,
    choose_threshold,
    protected_class,
    vote_shares,
)

FOLDS = 3  # parts of a training set on which vote shares are measured by cross-validation
TrainAgain = Callable[[Noise, Sequence[Any], Sequence[Any]], BaseClassifier]


def enough_negatives(max_false_positives: float) -> int:
    """How many held-out texts of the other class are used without a cross-validation: 1000 for a rate of 1%."""
    return ceil(PROOF / max_false_positives)


@dataclass
class HeldOutShares:
    """The vote shares of a class on texts that the voting model was not trained on.

    Attributes:
        shares: the share of each text.
        labels: its label.
        lengths: its number of tokens.
        cross_validated: whether models of a cross-validation have voted, too.
    """

    shares: list[float] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    cross_validated: bool = False

    def add(self, model: SmoothedClassifier, number: int, examples: ExampleSet) -> None:
        """Let a model vote on examples."""
        if examples.tokens:
            unit = check_unit(model.unit)
            self.shares += vote_shares(model, [unit.join(tokens) for tokens in examples.tokens], number).tolist()
            self.labels += examples.labels
            self.lengths += examples.lengths


def held_out_shares(
    model: SmoothedClassifier,
    number: int,
    training_set: ExampleSet,
    held: ExampleSet,
    least: int,
    train_again: TrainAgain | None,
    judged: Sequence[bool] | None = None,
) -> HeldOutShares:
    """The vote shares of a class on texts that the model was not trained on.

    These are the held-out texts. If fewer than ``least`` of them are of the other class, and training takes seconds,
    the training texts are added, or those of them that are ``judged``: in three parts, each voted on by a model that
    was trained on the other two.
    """
    result = HeldOutShares()
    result.add(model, number, held)
    own = (model.base_classifier().classes_ or [])[number]
    if sum(label != own for label in held.labels) >= least or train_again is None:
        return result
    noise = noise_from_dict(model.training_["noise"])
    fold = np.array([int(content_key(tokens)[0]) % FOLDS for tokens in training_set.tokens])
    wanted = np.ones(len(fold), dtype=np.bool_) if judged is None else np.asarray(judged, dtype=np.bool_)
    for place in range(FOLDS):
        inside, outside = np.flatnonzero((fold == place) & wanted), np.flatnonzero(fold != place)
        others = _part(training_set, outside.tolist())
        if not len(inside) or len(set(others.labels)) < 2:
            continue
        base = train_again(noise, others.tokens, others.labels)
        fold_model = SmoothedClassifier(base, model.rule().noise, unit=model.unit, seed=model.seed, progress=False)
        result.add(fold_model, number, _part(training_set, inside.tolist()))
        result.cross_validated = True
    return result


def set_protection(
    model: SmoothedClassifier,
    protect: Any,
    max_false_positives: float,
    training_set: ExampleSet,
    held: ExampleSet,
    train_again: TrainAgain | None = None,
    judged: Sequence[bool] | None = None,
    *,
    chose_weights: bool = False,
) -> Protection:
    """Choose the threshold that protects a class on texts that the model was not trained on, and set it.

    Args:
        model: a fitted model of two classes, with the record of its training.
        protect: the class.
        max_false_positives: the rate of texts of the other class that may get its answer.
        training_set: what the model was trained on.
        held: texts that it was not trained on; those of the training set, as in a file that repeats some, are left out.
        train_again: trains a base classifier as the model was trained; None if that takes more than seconds.
        judged: the training examples that may be voted on in a cross-validation; None for all.
        chose_weights: whether the held-out texts decided when the training stopped.
    """
    number = protected_class(list(model.base_classifier().classes_ or []), protect)
    label = (model.base_classifier().classes_ or [])[number]
    least = enough_negatives(max_false_positives)
    known = set(map(content_key, training_set.tokens))
    unseen = [place for place, tokens in enumerate(held.tokens) if content_key(tokens) not in known]
    votes = held_out_shares(model, number, training_set, _part(held, unseen), least, train_again, judged)
    own = [value == label for value in votes.labels]
    chosen = choose_threshold(
        votes.shares,
        own,
        protect=label,
        number=number,
        max_false_positives=max_false_positives,
        cross_validated=votes.cross_validated,
    )
    certifiable = _certifiable(model, chosen, number, votes, own)
    chosen = replace(chosen, certifiable=certifiable, chose_weights=chose_weights)
    apply(model, chosen)
    return chosen


def chose_weights(training: Mapping[str, Any] | None, digest: str) -> bool:
    """Whether rows of a file, known by its digest, decided when a training stopped, and so which weights were kept.

    The held-out rows of networks and transformers do, whether they are a part of the training file or a file of their
    own. A linear model is trained to the end.
    """
    if training is None or training["settings"].get("model") == "linear":
        return False
    return digest in (training["data"]["digest"], training["data"].get("validation_digest"))


def _certifiable(
    model: SmoothedClassifier, chosen: Protection, number: int, votes: HeldOutShares, own: Sequence[bool]
) -> int:
    """How many texts of the class have vote shares that, in as many further votes, certify them against one edit."""
    rule = replace(model.rule(), threshold=chosen.threshold)
    count = 0
    for share, length, is_protected in zip(votes.shares, votes.lengths, own, strict=True):
        if is_protected and chosen.share is not None and share > chosen.share:
            lower = clopper_pearson(round(share * VOTES), VOTES, model.alpha)[0]
            count += rule.radius(lower, complement(lower), label=number, length=length, is_binary=True) >= 1
    return count


def _part(examples: ExampleSet, places: Sequence[int]) -> ExampleSet:
    return ExampleSet([examples.tokens[n] for n in places], [examples.labels[n] for n in places])
