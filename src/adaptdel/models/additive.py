"""AdditiveClassifier: a linear model of words with bounded scores, whose certificates are exact."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptdel.certification.certifier import Input, InputResult
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import content_key
from adaptdel.classifiers.bounded import AdditivePipeline, BoundedClassifier, BoundedLinearClassifier, is_token
from adaptdel.classifiers.features import check_ngram, ngrams
from adaptdel.classifiers.linear_training import class_numbers
from adaptdel.core.checks import FloatArray, IntArray, check_choice, check_fields, check_int, check_list, check_real
from adaptdel.core.margins import TokenEdit, check_sums
from adaptdel.core.threat import Threat
from adaptdel.models.estimator import TextEstimator, label_array
from adaptdel.progress import reporter
from adaptdel.settings import ADDITIVE, CERTIFICATION, CLASS_WEIGHTS, TRAINING, AdditiveTrainingSettings
from adaptdel.text.units import Tokens, Unit, Words, check_unit

BATCH = 1024  # texts whose new tokens are looked up together
GROUP = 64  # inputs of a stream that are certified together
_FIELDS = {"ops": "a list", "threshold": "an integer", "front": "a list"}


class HeldOut(NamedTuple):
    """The model of the examples that were not held out, the texts that were, and the numbers of their classes."""

    base: BoundedLinearClassifier
    texts: list[Any]
    answers: IntArray

    def model(self, model: AdditiveClassifier, point: int) -> AdditiveClassifier:
        """The model with a bound of `front_`, as it was measured."""
        return copy(model)._with(self.base.at(point), model.front_)


class AdditiveClassifier(TextEstimator):
    """A linear model of bags of tokens with bounded token scores: its true radius is computed, without any noise.

    The score of a class is an offset plus the sum of the scores of the tokens. No token, seen or unseen, can change the
    margin between two classes by more than a bound. So the worst attack on a text is known: see
    `adaptdel.core.margins`. A small bound gives large radii and costs accuracy. `fit` trains for several bounds,
    measures each on held-out examples, chooses one by ``max_accuracy_loss`` of the settings and trains once more on all
    examples. `choose` takes another one of these bounds later, without training.

    Args:
        ops: what the attacker may do: "edit", or some of "del", "ins", "sub".
        unit: as of `SmoothedClassifier`.
        threshold: for two classes, answer the second class iff its score (see `decision_function`) exceeds this
            integer. The unit of scores differs from bound to bound.
        class_weight: "balanced" gives every class the same weight in training; None every example.
        settings: how the model is trained; None for the defaults.
        seed: of the choice of the held-out examples.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).

    Attributes:
        base_: the fitted token scores.
        classes_: the labels.
        front_: for each bound the accuracy, the mean accuracy of the classes, and the mean and median radius on the
            held-out examples, where wrong answers count as radius 0.
    """

    kind = "additive"
    run_options: ClassVar[tuple[str, ...]] = ("ops", "threshold")  # what a run may change

    def __init__(
        self,
        *,
        ops: str | Sequence[str] = CERTIFICATION.ops,
        unit: Any = CERTIFICATION.unit,
        threshold: int = 0,
        class_weight: str | None = TRAINING.class_weight,
        settings: AdditiveTrainingSettings | None = None,
        seed: int = TRAINING.seed,
        progress: Any = "auto",
    ) -> None:
        self.ops = ops
        self.unit = unit
        self.threshold = threshold
        self.class_weight = class_weight
        self.settings = settings
        self.seed = seed
        self.progress = progress

    def fit(self, X: Sequence[Any], y: Sequence[Any]) -> AdditiveClassifier:
        """Train for several bounds, measure them on held-out examples, choose one and train on all examples."""
        self.fit_bounds(X, y)
        return self

    def fit_bounds(self, X: Sequence[Any], y: Sequence[Any]) -> HeldOut:
        """Do what `fit` does; return what measured the bounds."""
        for record in ("training_", "protection_", "texts_"):  # of another model
            self.__dict__.pop(record, None)
        settings = self.settings or ADDITIVE
        check_ngram(settings.ngram, check_unit(self.unit))
        if settings.ngram > 1 and settings.vectors:
            raise ValueError("vectors are of words: leave them out for an ngram above 1")
        tokens, labels = self.training_examples(X, y)
        if self.class_weight is not None:
            check_choice("class_weight", self.class_weight, CLASS_WEIGHTS)
        report = reporter(self.progress, "steps")
        answers = class_numbers(labels)[1]
        rows = held_out_examples(tokens, answers, settings.validation, check_int("seed", self.seed))

        def train(rows: IntArray, part: int) -> BoundedLinearClassifier:
            return BoundedLinearClassifier.train(
                [tokens[row] for row in rows],
                [labels[row] for row in rows],
                settings,
                class_weight=self.class_weight,
                progress=lambda done, total: None if report is None else report(part * total + done, 2 * total),
            )

        trial = train(np.setdiff1d(np.arange(len(tokens)), rows), 0)
        base = train(np.arange(len(tokens)), 1)
        self.front_: list[dict[str, Any]] = [
            {"point": point, "bound": bound}
            | self._measured(trial.at(point), [tokens[row] for row in rows], answers[rows])
            for point, bound in enumerate(base.bounds)
        ]
        self.base_: BoundedClassifier = base
        self.choose(settings.max_accuracy_loss)
        return HeldOut(trial, [X[row] for row in rows.tolist()], answers[rows])

    def _measured(self, base: BoundedClassifier, examples: Sequence[Tokens], answers: IntArray) -> dict[str, float]:
        """Accuracy and radii on held-out examples."""
        certificates = self._certificates(base, examples)
        correct = np.array([certificate.answer for certificate in certificates]) == answers
        radii = np.where(correct, [certificate.radius for certificate in certificates], 0)
        return {
            "accuracy": float(correct.mean()),
            "balanced_accuracy": float(np.mean([correct[answers == number].mean() for number in np.unique(answers)])),
            "mean_radius": float(radii.mean()),
            "median_radius": float(np.median(radii)),
        }

    def choose(self, max_accuracy_loss: float) -> Self:
        """Use the bound with the largest mean radius that loses at most so many percentage points of accuracy.

        The accuracy is the mean of all classes on the held-out examples of `fit`, the loss that against the best bound.
        """
        loss = check_real("max_accuracy_loss", max_accuracy_loss, accepted="from 0 to 100", least=0.0, most=100.0)
        if not getattr(self, "front_", None):
            raise ValueError("choose needs a model that fit has trained, which knows other bounds")
        least = max(point["balanced_accuracy"] for point in self.front_) - loss / 100
        allowed = [point for point in self.front_ if point["balanced_accuracy"] >= least - 1e-12]
        best = max(allowed, key=lambda point: (point["mean_radius"], point["balanced_accuracy"]))
        return self.use(best["point"])

    def use(self, point: int) -> Self:
        """Use the bound of a point of `front_`."""
        assert isinstance(self.base_, BoundedLinearClassifier)  # which alone has a front
        return self._with(self.base_.at(point), self.front_)

    @classmethod
    def from_sklearn(cls, pipeline: Any, *, bound: float, **params: Any) -> Self:
        """Certify a fitted pipeline of a `CountVectorizer` or `HashingVectorizer` and a linear model.

        The sum of the weights of the terms of each word at white space is clipped to the bound, which may change
        answers: measure the accuracy. The weights are rounded to integers.

        Args:
            pipeline: fitted, with two steps.
            bound: of the score of a word, in the units of the pipeline's weights: the largest change of the margin
                between two classes.
            params: of the constructor; the unit is "word".
        """
        if check_unit(params.get("unit", "word")) != Words():
            raise ValueError(f"unit must be 'word' for a pipeline of words, got {params['unit']!r}")
        return cls(**params)._with(AdditivePipeline(pipeline, bound), [])

    def __sklearn_is_fitted__(self) -> bool:
        """Whether inputs can be classified."""
        return hasattr(self, "base_")

    def base_classifier(self) -> BoundedClassifier:
        """The fitted token scores."""
        if not hasattr(self, "base_"):
            raise ValueError("AdditiveClassifier must be fitted before it can classify: call fit, from_sklearn or load")
        return self.base_

    def predict(self, X: Sequence[Any]) -> Any:
        """The label of the largest score for every input."""
        answers = [certificate.label for certificate in self._certificates(self.base_classifier(), list(self.split(X)))]
        return label_array(answers)

    def decision_function(self, X: Sequence[Any]) -> FloatArray:
        """The scores of all classes, shape (inputs, classes); for two classes that of the second one, shape (inputs,).

        Scores are integers. No token changes the difference of two scores by more than `bound_`.
        """
        base = self.base_classifier()
        rows = token_scores(base, list(self.split(X)))
        totals = np.array([base.offsets + scores.sum(axis=0) for scores in rows], dtype=np.float64)
        totals = totals.reshape(-1, len(base.classes_))
        return totals[:, 1] - totals[:, 0] if len(base.classes_) == 2 else totals

    def certify(
        self,
        X: Sequence[Any],
        *,
        immovable: Collection[Hashable] = (),
        synonyms: Mapping[Any, Collection[Any]] | None = None,
    ) -> list[ExactCertificate]:
        """A certificate for every input, in order: sound, and complete where `ExactCertificate.counterexample` exists.

        Args:
            X: the inputs.
            immovable: tokens that the attacker can neither delete nor substitute.
            synonyms: the tokens that may replace each token, where the attacker cannot write any token he wants; he can
                still insert any token, unless ``ops`` forbids it. Each must be one token of the unit.
        """
        if isinstance(immovable, str) or not isinstance(immovable, Collection):
            raise ValueError(f"immovable must be a list or a set of tokens, got {immovable!r:.60}")
        if synonyms is not None:
            check_synonyms(synonyms, check_unit(self.unit), self.base_classifier().ngram)
        return self._certificates(self.base_classifier(), list(self.split(X)), frozenset(immovable), synonyms)

    def certifier(self) -> ExactCertifier:
        """The engine that certifies a stream of inputs for this model."""
        return ExactCertifier(self)

    def run_settings(self) -> dict[str, Any]:
        """What certificates depend on besides the base classifier and the unit, as the manifest of a run states it."""
        unused = dict.fromkeys(("noise", "bound", "sampling", "votes", "seed"))
        ops, threshold = list(Threat(self.ops).ops), self._threshold(self.base_classifier())
        return {
            "method": "exact",
            "ngram": self.base_classifier().ngram,
            "ops": ops,
            "threshold": threshold if threshold or hasattr(self, "protection_") else None,
            "alpha": 0.0,
        } | unused

    @property
    def bound_(self) -> int:
        """The most by which a token can change the margin between two classes."""
        return self.base_classifier().reach

    def to_settings(self) -> dict[str, Any]:
        """What a folder holds beside the token scores, in plain values."""
        threshold = self._threshold(self.base_classifier())
        return {"ops": list(Threat(self.ops).ops), "threshold": threshold, "front": self.front_}

    def answer_plan(self) -> dict[str, Any]:
        """All that `predict` depends on besides the text, in plain values."""
        base, unit = self.base_classifier(), check_unit(self.unit)
        return {"model": base.fingerprint(), "unit": unit.description(), "threshold": self._threshold(base)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], base: Any, unit: Any) -> Self:
        """The model from what `to_settings` returned, checked, and its token scores."""
        check_fields(settings, _FIELDS)
        if not isinstance(base, BoundedClassifier):
            raise ValueError(f"base must be a classifier with bounded token scores, got {type(base).__name__}")
        numbers = dict.fromkeys(("accuracy", "balanced_accuracy", "mean_radius", "median_radius"), "a number")
        for point in settings["front"]:
            check_fields(point, {"point": "an integer", "bound": "an integer"} | numbers)
        model = cls(ops=Threat(settings["ops"]).ops, unit=unit, threshold=settings["threshold"])
        model._with(base, settings["front"])._threshold(base)
        return model

    def _with(self, base: BoundedClassifier, front: list[dict[str, Any]]) -> Self:
        self.base_, self.front_, self.classes_ = base, front, np.array(base.classes_)
        return self

    def _threshold(self, base: BoundedClassifier) -> int:
        threshold = check_int("threshold", self.threshold, least=-(2**53), most=2**53)
        if threshold and len(base.classes_) != 2:
            raise ValueError(f"threshold must be 0 unless there are two classes, got {threshold}")
        return threshold

    def _certificates(
        self,
        base: BoundedClassifier,
        texts: Sequence[Tokens],
        immovable: frozenset[Hashable] = frozenset(),
        synonyms: Mapping[Any, Collection[Any]] | None = None,
    ) -> list[ExactCertificate]:
        unit = check_unit(self.unit)
        offsets = base.offsets.copy()
        offsets[0] += self._threshold(base)
        ops, unit_description, model_hash = Threat(self.ops).ops, unit.description(), base.fingerprint()
        classes = tuple(base.classes_)
        reach = [base.reach_over(answer, unit) for answer in range(len(classes))]
        check_sums(max(map(len, texts), default=0), np.array([base.reach]), offsets, ngram=base.ngram)
        certificates = []
        for tokens, scores in zip(texts, token_scores(base, texts), strict=True):
            answer = int((offsets + scores.sum(axis=0)).argmax())
            rewriter = Rewriter(base, unit, tokens, offsets, answer, synonyms)
            certificate = ExactCertificate(
                classes[answer],
                classes,
                scores,
                offsets,
                reach[answer],
                touchable=np.array([token not in immovable for token in tokens], dtype=bool) if immovable else None,
                replacements=rewriter.reach() if synonyms is not None else None,
                rewrite=rewriter if base.ngram == 1 else None,
                tokens=tokens,
                ngram=base.ngram,
                ops=ops,
                unit=unit_description,
                model_hash=model_hash,
            )
            certificates.append(certificate)
        return certificates


class ExactCertifier:
    """Certifies a stream of inputs like `adaptdel.certification.certifier.Certifier`, in order."""

    def __init__(self, model: AdditiveClassifier) -> None:
        self.model = model

    def __call__(self, inputs: Iterable[Input]) -> Iterator[InputResult]:
        """Yield a result for every input; if its text is no text, the reason."""
        remaining = iter(inputs)
        while group := list(islice(remaining, GROUP)):
            yield from self._results(group)

    def _results(self, group: list[Input]) -> Iterator[InputResult]:
        try:
            certificates = self.model.certify([each.text for each in group])
        except ValueError as error:  # one of them cannot be split
            if len(group) == 1:
                yield InputResult(group[0], None, str(error))
                return
            for each in group:
                yield from self._results([each])
        else:
            yield from map(InputResult, group, certificates)


@dataclass(frozen=True)
class Rewriter:
    """Makes texts of edits: see `ExactCertificate.counterexample`."""

    base: BoundedClassifier
    unit: Unit
    tokens: Tokens
    offsets: IntArray
    answer: int
    synonyms: Mapping[Any, Collection[Any]] | None

    def __call__(self, edits: Sequence[TokenEdit], rival: int) -> Any:
        """The text after the edits, with the worst tokens that are known; None if it keeps its label."""
        worst = self.base.worst_token(self.answer, rival, self.unit)
        edited: list[list[Hashable]] = [[token] for token in self.tokens]
        inserted: list[Hashable] = []
        for edit in edits:
            if edit.position is None:
                inserted.append(worst)
            elif edit.operation == "del":
                edited[edit.position] = []
            else:
                token = self.tokens[edit.position]
                edited[edit.position] = [worst if self.synonyms is None else self._worst_synonym(token, rival)]
        tokens = tuple(chain(inserted, *edited))  # in front, since the last chunk of an input may be shorter
        if None in tokens:  # no token is known
            return None
        totals = self.offsets + self.base.token_scores(tokens).sum(axis=0)
        text = self.unit.join(tokens)
        try:
            is_text = self.unit.split(text) == tokens
        except ValueError:  # of a unit whose tokens have labels
            return None
        return text if is_text and int(np.argmax(totals)) != self.answer else None

    def reach(self) -> IntArray:
        """How much more each class than the answer gets from the worst synonym of each token, (tokens, classes)."""
        rows = [self._gains(self._options(token)).max(axis=0) for token in self.tokens]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.offsets))

    def _worst_synonym(self, token: Hashable, rival: int) -> Hashable:
        options = self._options(token)
        return options[int(np.argmax(self._gains(options)[:, rival]))]

    def _options(self, token: Hashable) -> list[Hashable]:
        return [token, *(self.synonyms or {}).get(token, ())]

    def _gains(self, tokens: Sequence[Hashable]) -> IntArray:
        scores = self.base.token_scores(tokens)
        return scores - scores[:, [self.answer]]


def token_scores(base: BoundedClassifier, texts: Sequence[Tokens]) -> Iterator[IntArray]:
    """The scores of the tokens (or of their runs) of each text, shape (tokens, classes)."""
    size = BATCH if base.ngram == 1 else 1  # runs of tokens take memory
    for start in range(0, len(texts), size):
        batch = [ngrams(tokens, base.ngram) for tokens in texts[start : start + size]]
        scores, end = base.token_scores(list(chain.from_iterable(batch))), 0
        for tokens in batch:
            yield scores[end : (end := end + len(tokens))]


def check_synonyms(synonyms: Mapping[Any, Collection[Any]], unit: Unit, ngram: int) -> None:
    """Raise ValueError unless these are lists of tokens for tokens: a phrase has the scores of its words, not one."""
    if ngram > 1:
        raise ValueError(f"synonyms are for models of single tokens, got an ngram of {ngram}")
    if not isinstance(synonyms, Mapping):
        raise ValueError(f"synonyms must be lists of tokens by token, got {synonyms!r:.60}")
    for token, others in synonyms.items():
        for each in (token, *check_list(f"synonyms of {token!r:.60}", others, "tokens")):
            if not is_token(each, unit):
                raise ValueError(f"synonyms must be single tokens of the unit {unit.kind!r}, got {each!r:.60}")


def held_out_examples(examples: Sequence[Tokens], answers: IntArray, fraction: float, seed: int) -> IntArray:
    """The held-out examples: the fraction of every class, at least one and never all, in ascending order.

    Equal examples of a class are held out together: a model that has seen one of them tells nothing about the others.
    """
    rng = np.random.default_rng(seed)
    alike: dict[tuple[int, bytes], list[int]] = {}
    keys = [(number, content_key(tokens)) for number, tokens in zip(answers.tolist(), examples, strict=True)]
    for row, key in enumerate(keys):
        alike.setdefault(key, []).append(row)
    held_out: list[int] = []
    for number in np.unique(answers):
        rows = np.flatnonzero(answers == number)
        if len(rows) < 2:
            raise ValueError("y must hold at least two examples of every class, since some are held out")
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        order = rng.permutation(rows).tolist()
        groups = list({keys[row]: alike[keys[row]] for row in order}.values())
        chosen: list[int] = []
        for group in groups:
            if len(chosen) + len(group) <= count:
                chosen += group
        if not chosen:  # all groups are large: the smallest one, or a part of the only one
            chosen = min(groups, key=len) if len(groups) > 1 else order[:count]
        held_out += chosen
    return np.array(sorted(held_out))
