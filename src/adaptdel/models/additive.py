"""AdditiveClassifier: a linear model of words with bounded scores, whose certificates are exact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, count
from math import ceil, floor, inf
from typing import Any, ClassVar, Self

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Oracle
from adaptdel.certification.scores import LARGEST_THRESHOLD, Filter, Scores, ScoresPlan
from adaptdel.classifiers.base import Prepared
from adaptdel.classifiers.bounded import AdditivePipeline, BoundedClassifier, BoundedLinearClassifier, is_token
from adaptdel.classifiers.features import check_ngram, ngrams
from adaptdel.classifiers.linear_training import LEVEL_FACTOR, class_numbers
from adaptdel.core.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    check_choice,
    check_int,
    check_list,
    check_names,
    check_real,
)
from adaptdel.core.margins import TokenEdit, check_sums
from adaptdel.core.plain import from_plain, to_plain
from adaptdel.core.threat import Threat, as_threat
from adaptdel.models.estimator import Records, TextEstimator
from adaptdel.models.model_files import MODELS
from adaptdel.progress import reporter
from adaptdel.settings import ADDITIVE, CERTIFICATION, CLASS_WEIGHTS, TRAINING, AdditiveTrainingSettings
from adaptdel.tables import Table, number, percent, text_table
from adaptdel.text.data import held_out_rows
from adaptdel.text.units import Tokens, Unit, Words, check_unit

TOGETHER = 256  # inputs whose new tokens are looked up together
_TRAINING = [field.name for field in fields(AdditiveTrainingSettings)]


@dataclass(frozen=True)
class TradeOff:
    """What a clip of the token scores gives on held-out examples, where wrong answers count as radius 0."""

    level: int  # the number of the clip, from the weakest on
    clip: int  # the largest score of a token, in the units of the model
    accuracy: float
    balanced_accuracy: float  # the mean of the classes' recalls
    mean_radius: float
    median_radius: float


TRADE_OFF_TEXT = (
    "Clip: the largest score of a word, in percent of the first clip. "
    "Measured on held-out examples, with a model that was not trained on them; wrong predictions count as radius 0. "
    "`adaptdel calibrate MODEL --max-accuracy-loss X` chooses another clip without training again."
)


LINE = 2**20  # steps of a `ThresholdLine` from one mean excess to the next


@dataclass(frozen=True)
class ThresholdLine:
    """The thresholds of a filter's two parts for every number: the larger it is, the fewer texts are flagged.

    Attributes:
        sum: the threshold of the sum at 0.
        sum_step: by how much it grows in `LINE` steps; 0 for one that no text exceeds.
        segment: the same of the segment.
        segment_step: 0 for a filter without segments.
    """

    sum: int = 0
    sum_step: int = LINE
    segment: int = 0
    segment_step: int = 0

    def at(self, number: int) -> tuple[int, int]:
        """Both thresholds."""
        return self.sum + self.sum_step * number // LINE, self.segment + self.segment_step * number // LINE

    def number(self, total: int, value: int) -> int:
        """The smallest number at which a text is not flagged, by its sum and by the value of its best segment.

        At this number the threshold of the segment is at least 0, since no value is below 0.
        """
        parts = ((total, self.sum, self.sum_step), (value, self.segment, self.segment_step))
        return max(-((start - score) * LINE // step) for score, start, step in parts if step)


@MODELS.add("additive")
class AdditiveClassifier(TextEstimator):
    """A linear model of bags of tokens with clipped token scores; its true radius is computed without noise.

    The score of a class is an offset plus the sum of the scores of the tokens. No token, seen or unseen, can change the
    margin between two classes by more than the clip allows. So the worst attack on a text is known: see
    `adaptdel.core.margins`. A small clip gives large radii and costs accuracy. `fit` trains for several clips,
    measures each on held-out examples, chooses one by ``max_accuracy_loss`` and trains again on all examples.
    `choose` switches to another of these clips later, without training.

    Args:
        ops: what the attacker may do: "edit", some of "del", "ins", "sub", or a `Threat`.
        unit: as in `SmoothedClassifier`.
        threshold: for two classes, answer the second class iff its score (see `decision_function`) exceeds this
            integer. The unit of scores differs from clip to clip.
        filter: how a protected class of two is predicted, see `adaptdel.certification.scores.Filter`; its thresholds
            are in the units of the clip. None protects no class.
        class_weight: "balanced" gives every class the same weight in training; None every example.
        seed: of the choice of the held-out examples.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).
        training: the fields of `adaptdel.settings.AdditiveTrainingSettings`, such as ``l2`` and ``max_accuracy_loss``.

    Attributes:
        base_: the fitted token scores.
        classes_: the labels.
        trade_off_: a `TradeOff` for each clip.
    """

    calibrates = "clip"
    run_options: ClassVar[tuple[str, ...]] = ("ops", "threshold")  # what a run may change

    line_ = ThresholdLine()

    def __init__(
        self,
        *,
        ops: str | Sequence[str] | Threat = CERTIFICATION.ops,
        unit: Any = CERTIFICATION.unit,
        threshold: int = 0,
        filter: Filter | None = None,
        class_weight: str | None = TRAINING.class_weight,
        seed: int = TRAINING.seed,
        progress: Any = "auto",
        kept: int = ADDITIVE.kept,
        l2: float = ADDITIVE.l2,
        iterations: int = ADDITIVE.iterations,
        levels: int = ADDITIVE.levels,
        min_count: int = ADDITIVE.min_count,
        ngram: int = ADDITIVE.ngram,
        vectors: str = ADDITIVE.vectors,
        validation: float = ADDITIVE.validation,
        max_accuracy_loss: float = ADDITIVE.max_accuracy_loss,
    ) -> None:
        self.ops = ops
        self.unit = unit
        self.threshold = threshold
        self.filter = filter
        self.class_weight = class_weight
        self.seed = seed
        self.progress = progress
        self.kept = kept
        self.l2 = l2
        self.iterations = iterations
        self.levels = levels
        self.min_count = min_count
        self.ngram = ngram
        self.vectors = vectors
        self.validation = validation
        self.max_accuracy_loss = max_accuracy_loss

    def fit(self, X: Sequence[Any], y: Sequence[Any]) -> AdditiveClassifier:
        """Train for several clips, measure them on held-out examples, choose one and train on all examples."""
        self.fit_clips(*self.training_examples(X, y))
        return self

    def fit_clips(self, tokens: Sequence[Tokens], labels: Sequence[Any]) -> None:
        """Do what `fit` does, with examples that are split."""
        train = self.trainer(tokens, labels, 2)
        answers = class_numbers(labels)[1]
        if np.bincount(answers).min() < 2:
            raise ValueError("y must hold at least two examples of every class, since some are held out")
        # Of a text with two labels, each is drawn alone, so that no class is held out as a whole.
        texts = (f"{answer} {' '.join(map(str, each))}" for answer, each in zip(answers, tokens, strict=True))
        held = np.array(held_out_rows(texts, answers.tolist(), self.validation, check_int("seed", self.seed), least=1))
        # A class of a single text has no other text to be measured on.
        rows = np.flatnonzero(held | ~np.isin(answers, answers[held])).tolist()

        trial = train(np.flatnonzero(~held).tolist())
        base = train(list(range(len(tokens))))
        examples = [tokens[row] for row in rows]
        self.trade_off_ = [self._measured(trial.at(level), examples, answers[rows]) for level in range(self.levels)]
        self.base_: BoundedClassifier = base
        self.choose(self.max_accuracy_loss)

    def trainer(
        self, tokens: Sequence[Tokens], labels: Sequence[Any], parts: int
    ) -> Callable[[Sequence[int]], BoundedLinearClassifier]:
        """What trains token scores on some rows of examples, in this many calls; the settings are checked."""
        self.records, self.filter, self.line_ = Records(), None, ThresholdLine()  # those of another model end here
        settings = AdditiveTrainingSettings(**{name: getattr(self, name) for name in _TRAINING})
        check_ngram(settings.ngram, check_unit(self.unit))
        if settings.ngram > 1 and settings.vectors:
            raise ValueError("vectors are of words: leave them out for an ngram above 1")
        if self.class_weight is not None:
            check_choice("class_weight", self.class_weight, CLASS_WEIGHTS)
        report, part = reporter(self.progress, "steps"), count()

        def train(rows: Sequence[int]) -> BoundedLinearClassifier:
            number = next(part)
            return BoundedLinearClassifier.train(
                [tokens[row] for row in rows],
                [labels[row] for row in rows],
                settings,
                class_weight=self.class_weight,
                progress=lambda done, total: None if report is None else report(number * total + done, parts * total),
            )

        return train

    def _measured(self, base: BoundedLinearClassifier, examples: Sequence[Tokens], answers: IntArray) -> TradeOff:
        """Accuracy and radii on held-out examples."""
        certifier = Certifier(ScoreOracle(base), replace(self.plan, ngram=base.ngram), self.unit)
        prepared = certifier.prepared((f"example {number}", tokens) for number, tokens in enumerate(examples))
        evidence = [each for _, each in sorted(certifier.observed(prepared))]
        correct = np.array([each.answer for each in evidence]) == answers
        radii = np.array([each.radius(certifier.plan, certifier.plan.threat) for each in evidence])
        radii = np.where(correct, radii, 0)
        return TradeOff(
            level=base.point,
            clip=base.bound,
            accuracy=float(correct.mean()),
            balanced_accuracy=float(np.mean([correct[answers == number].mean() for number in np.unique(answers)])),
            mean_radius=float(radii.mean()),
            median_radius=float(np.median(radii)),
        )

    def choose(self, max_accuracy_loss: float) -> Self:
        """Use the clip with the largest mean radius that loses at most this many percentage points of accuracy.

        The accuracy is the mean recall of the classes on the held-out examples of `fit`, the loss that against the best
        clip.
        """
        loss = check_real("max_accuracy_loss", max_accuracy_loss, accepted="from 0 to 100", least=0.0, most=100.0)
        if not getattr(self, "trade_off_", None):
            raise ValueError("choose needs a model that fit has trained, which knows other clips")
        return self.use(self._chosen(loss).level)

    def _chosen(self, loss: float) -> TradeOff:
        least = max(point.balanced_accuracy for point in self.trade_off_) - loss / 100
        allowed = [point for point in self.trade_off_ if point.balanced_accuracy >= least - 1e-12]
        return max(allowed, key=lambda point: (point.mean_radius, point.balanced_accuracy))

    def radius_warnings(self) -> list[str]:
        """A sentence if half of the texts have radius 0: the accuracy loss that would change this, and its price."""
        now = self.trade_off_[self.level]
        if now.median_radius > 0:
            return []
        best = max(point.balanced_accuracy for point in self.trade_off_)
        losses = sorted(ceil(1000 * (best - point.balanced_accuracy)) / 10 for point in self.trade_off_)
        then = next(((loss, point) for loss in losses if (point := self._chosen(loss)).median_radius > 0), None)
        text = "half of the held-out examples or more have a radius of 0"
        if then is None:
            return [f"{text}, under every clip: longer texts have larger radii, and more examples give better scores"]
        loss, point = then
        return [
            f"{text}: --max-accuracy-loss {loss:g} makes the median radius {number(point.median_radius, 1)} and the "
            f"mean {number(point.mean_radius)} instead of {number(now.mean_radius)}, with an accuracy of "
            f"{percent(point.accuracy)} instead of {percent(now.accuracy)} and a mean recall of the classes of "
            f"{percent(point.balanced_accuracy)} instead of {percent(now.balanced_accuracy)}"
        ]

    def use(self, level: int) -> Self:
        """Use the clip of a `TradeOff`. A threshold that was proved for another one is removed."""
        if self.records.protection is not None:
            self.threshold, self.filter, self.line_ = 0, None, ThresholdLine()
            self.record(protection=None)
        assert isinstance(self.base_, BoundedLinearClassifier)  # which alone has several
        return self._with(self.base_.at(level), self.trade_off_)

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

    def base_classifier(self) -> BoundedClassifier:
        """The fitted token scores."""
        if not hasattr(self, "base_"):
            raise ValueError("AdditiveClassifier must be fitted before it can classify: call fit, from_sklearn or load")
        return self.base_

    @property
    def plan(self) -> ScoresPlan:
        """How predictions and radii follow from scores, checked."""
        base: BoundedClassifier | None = getattr(self, "base_", None)
        threshold = check_int("threshold", self.threshold, least=-LARGEST_THRESHOLD, most=LARGEST_THRESHOLD)
        if threshold and base is not None and len(base.classes_) != 2:
            raise ValueError(f"threshold must be 0 unless there are two classes, got {threshold}")
        return ScoresPlan(
            threat=as_threat(self.ops),
            threshold=threshold,
            ngram=self.ngram if base is None else base.ngram,
            filter=self.filter,
        )

    def class_scores(self, number: int) -> ScoreMargins:
        """The score of a class, or for that of a filter the number on its `ThresholdLine`."""
        if self.filter is not None and self.filter.label != number:
            raise ValueError(f"this filter protects {self.classes_[self.filter.label]!s}: train another one")
        if self.filter is not None and self.filter.segment is not None and not self.line_.segment_step:
            raise ValueError("this filter has a threshold of segments that was set by hand: train another one")
        return ScoreMargins(self, number)

    def reaches(self) -> str:
        """What held-out texts tell about the radii."""
        known = "exact certificates need no votes"
        if self.records.protection is not None:
            return f"{known}. On held-out texts: {self.records.protection['sentence']}"
        if not self.trade_off_:
            return f"{known}: certify texts to see their radii"
        points = [self.trade_off_[self.level], max(self.trade_off_, key=lambda point: point.mean_radius)]
        chosen, largest = (
            f"a mean radius of {number(point.mean_radius)} (median {number(point.median_radius, 1)}) at "
            f"{percent(point.accuracy)} accuracy"
            for point in points
        )
        return f"{known}. On held-out texts: {chosen}; at most, after adaptdel calibrate, {largest}."

    @property
    def level(self) -> int:
        """The number of the clip in use."""
        level: int = self.base_classifier().options().get("point", 0)
        return level

    def oracle(self) -> ScoreOracle:
        """The token scores."""
        return ScoreOracle(self.base_classifier())

    def decision_function(self, X: Sequence[Any]) -> FloatArray:
        """The scores of all classes, shape (inputs, classes); for two classes that of the second one, shape (inputs,).

        Scores are integers. No token changes the difference of two scores by more than `bound_`.
        """
        base, certifier = self.base_classifier(), self.certifier()
        prepared = certifier.prepared((f"input {number}", tokens) for number, tokens in enumerate(self.split(X)))
        rows = [base.offsets + each.data.sum(axis=0) for each in prepared]
        totals = np.array(rows, dtype=np.float64).reshape(-1, len(base.classes_))
        return totals[:, 1] - totals[:, 0] if len(base.classes_) == 2 else totals

    def certify(
        self,
        X: Sequence[Any],
        *,
        immovable: Collection[Hashable] = (),
        synonyms: Mapping[Any, Collection[Any]] | None = None,
    ) -> list[Certificate]:
        """A certificate for every input, in order: sound, and complete where `Certificate.counterexample` exists.

        Args:
            X: the inputs.
            immovable: tokens that the attacker can neither delete nor substitute.
            synonyms: the tokens that may replace each token, where the attacker cannot write any token he wants; he can
                still insert any token, unless ``ops`` forbids it. Each must be one token of the unit.
        """
        if isinstance(immovable, str) or not isinstance(immovable, Collection):
            raise ValueError(f"immovable must be a list or a set of tokens, got {immovable!r:.60}")
        base, unit = self.base_classifier(), check_unit(self.unit)
        if synonyms is not None and base.ngram > 1:
            raise ValueError(f"synonyms are for models of single tokens, got an ngram of {base.ngram}")
        if synonyms is not None and not isinstance(synonyms, Mapping):
            raise ValueError(f"synonyms must be lists of tokens by token, got {synonyms!r:.60}")
        for token, others in (synonyms or {}).items():  # a phrase has the scores of its words, not one
            for each in (token, *check_list(f"synonyms of {token!r:.60}", others, "tokens")):
                if not is_token(each, unit):
                    raise ValueError(f"synonyms must be single tokens of the unit {unit.kind!r}, got {each!r:.60}")
        oracle = ScoreOracle(base, frozenset(immovable), synonyms)
        certifier = Certifier(oracle, self.plan, self.unit)
        return [certifier.certificate(*each) for each in self._observed(certifier, X, "certificates")]

    @property
    def reach_(self) -> int:
        """The most by which a token can change the margin between two classes."""
        return self.base_classifier().reach

    def trade_off_table(self) -> Table:
        """What each clip gives on held-out examples."""
        rows = [
            [
                percent(LEVEL_FACTOR**point.level) + (" (chosen)" if point.level == self.level else ""),
                percent(point.accuracy),
                percent(point.balanced_accuracy),
                number(point.mean_radius),
                number(point.median_radius, 1),
            ]
            for point in self.trade_off_
        ]
        return text_table(["clip", "accuracy", "balanced accuracy", "mean radius", "median radius"], rows)

    def parameters(self) -> dict[str, Any]:
        """What a folder holds besides token scores, unit and plan."""
        return {"trade_off": to_plain(self.trade_off_), "line": to_plain(self.line_)}

    def card(self) -> list[str]:
        """The trade-off of the clips; of a filter, what other filters catch."""
        if filters := (self.records.protection or {}).get("filters"):
            return [f"\n## Filters\n\n{filters['table']}"]
        if not self.trade_off_:
            return []
        return [f"\n## Clips\n\n{TRADE_OFF_TEXT}\n\n{self.trade_off_table().to_markdown()}"]

    @classmethod
    def from_parts(cls, base: Any, unit: Any, plan: ScoresPlan, parameters: Mapping[str, Any]) -> Self:
        """The model from its token scores, its unit, its plan and `parameters`, checked."""
        if not isinstance(base, BoundedClassifier):
            raise ValueError(f"base must be a classifier with bounded token scores, got {type(base).__name__}")
        check_names("parameters", parameters, ("trade_off", "line"))
        trade_off = [from_plain(TradeOff, point) for point in check_list("trade_off", parameters["trade_off"], "clips")]
        model = cls(ops=plan.threat, unit=unit, threshold=plan.threshold, filter=plan.filter, ngram=base.ngram)._with(
            base, trade_off
        )
        model.line_ = from_plain(ThresholdLine, parameters["line"])
        if plan.ngram != base.ngram:
            raise ValueError(f"ngram must be that of the token scores, {base.ngram}, got {plan.ngram}")
        model.certifier()  # checks the classes
        return model

    def use_filter(self, base: BoundedClassifier, rule: Filter, line: ThresholdLine) -> None:
        """Be a filter, whose thresholds `adaptdel.training.protection.protect` finds on the line."""
        self._with(base, [])
        self.filter, self.line_ = rule, line

    def _with(self, base: BoundedClassifier, trade_off: list[TradeOff]) -> Self:
        self.base_, self.trade_off_, self.classes_ = base, trade_off, np.array(base.classes_)
        return self


@dataclass
class ScoreMargins:
    """The number of a text on the `ThresholdLine` of a model for one class, an integer: see `ClassScores`.

    Without a filter, that is the score of the class minus that of the other.
    """

    model: AdditiveClassifier
    number: int  # of the class, 0 or 1
    grid: tuple[float, float, float] = (-inf, inf, 1.0)
    certified: int | None = None

    def values(self, inputs: Sequence[Tokens]) -> list[int]:
        """From the scores themselves; of a filter, thresholds only say what is compared with them."""
        model, own = self.model, self.number
        certifier = model.certifier()
        named = ((f"input {number}", tokens) for number, tokens in enumerate(inputs))
        observed = [evidence for _, evidence in sorted(certifier.observed(certifier.prepared(named)))]
        threshold = model.plan.threshold  # which the totals hold
        shift = threshold if own else -threshold
        return [
            model.line_.number(int(each.totals[own] - each.totals[1 - own]) + shift, each.segment_value)
            for each in observed
        ]

    def exceed(self, inputs: Sequence[Tokens], limit: float) -> BoolArray:
        """From the scores themselves."""
        return np.array([value > limit for value in self.values(inputs)], dtype=np.bool_)

    def set_threshold(self, limit: float) -> None:
        """The threshold of a model is that of class 1, which loses where its score is not above it."""
        of_sum, of_segment = self.model.line_.at(floor(limit))
        self.model.threshold = of_sum if self.number else -of_sum - 1
        if self.model.filter is not None and self.model.filter.segment is not None:
            self.model.filter = replace(self.model.filter, segment=of_segment)


class ScoreOracle(Oracle):
    """Token scores, from which evidence follows at once.

    ``immovable`` and ``synonyms`` limit the attacker: see `AdditiveClassifier.certify`.
    """

    together = TOGETHER

    def __init__(
        self,
        base: BoundedClassifier,
        immovable: frozenset[Hashable] = frozenset(),
        synonyms: Mapping[Any, Collection[Any]] | None = None,
    ) -> None:
        self.base, self.immovable, self.synonyms = base, immovable, synonyms
        self.classes = base.classes_
        if base.ngram > 1:  # runs of tokens take memory
            self.together = 1

    def __repr__(self) -> str:
        return repr(self.base)

    def fingerprint(self) -> str:
        """That of the token scores."""
        return self.base.fingerprint()

    def prepare(self, inputs: Sequence[tuple[str, Tokens]], unit: Unit, plan: ScoresPlan) -> list[Prepared]:
        """Look up the scores of the tokens of several texts together."""
        texts = [tokens for _, tokens in inputs]
        longest, offsets = max(map(len, texts), default=0), self._offsets(plan)
        check_sums(longest, np.array([self.base.reach]), offsets, plan.drifts, ngram=self.base.ngram)
        runs = [ngrams(tokens, self.base.ngram) for tokens in texts]
        scores = self.base.token_scores(list(chain.from_iterable(runs)))
        tables = np.split(scores, np.cumsum([len(each) for each in runs])[:-1]) if runs else []
        return [Prepared(name, tokens, unit, data=each) for (name, tokens), each in zip(inputs, tables, strict=True)]

    def observe(self, prepared: Prepared, plan: ScoresPlan) -> Scores:
        """The scores, and what the attacker can do to them."""
        scores, offsets, tokens = prepared.data, self._offsets(plan), prepared.tokens
        observed = Scores(scores, offsets, offsets, ngram=self.base.ngram, filter=plan.filter)
        answer = observed.answer  # which determines the reach
        restricted: dict[str, Any] = {}
        if self.immovable:
            restricted["touchable"] = np.array([token not in self.immovable for token in tokens], dtype=bool)
        if self.synonyms is not None:
            rewriter = Rewriter(self.base, prepared.unit, tokens, observed, self.synonyms)
            restricted["replacements"] = rewriter.reach()
        evidence = replace(observed, reach=self.base.reach_over(answer, prepared.unit), **restricted)
        for name in ("totals", "segment", "answer"):  # cached properties: to sum up a text twice takes a tenth more
            if name in vars(observed):
                vars(evidence)[name] = vars(observed)[name]
        return evidence

    def rewriter(self, prepared: Prepared, evidence: Scores) -> Rewriter | None:
        """What makes counterexamples, for scores of single tokens."""
        if self.base.ngram > 1:
            return None
        return Rewriter(self.base, prepared.unit, prepared.tokens, evidence, self.synonyms)

    def known_tokens(self) -> Sequence[Hashable] | None:
        """The vocabulary; None where runs of tokens have the scores."""
        return None if self.base.ngram > 1 else self.base.vocabulary

    def worst_token(self, answer: int, rival: int, unit: Unit) -> Hashable:
        """The token of the vocabulary; None where runs of tokens have the scores."""
        return None if self.base.ngram > 1 else self.base.worst_token(answer, rival, unit)

    def against_known(self, certificate: Certificate) -> Certificate:
        """The certificate whose reach is that of the known tokens that add most to each rival over the answer."""
        answer, rewrite, evidence = certificate.answer, certificate.rewrite, certificate.evidence
        if not isinstance(rewrite, Rewriter) or not isinstance(evidence, Scores):  # of runs of tokens
            return certificate
        rivals = [number for number in range(len(self.classes)) if number != answer]
        worst = [token for rival in rivals if (token := self.base.worst_token(answer, rival, rewrite.unit)) is not None]
        if not worst:
            return certificate
        scores = self.base.token_scores(worst)
        reach = (scores - scores[:, [answer]]).max(axis=0)
        return replace(certificate, evidence=replace(evidence, reach=reach))

    def _offsets(self, plan: ScoresPlan) -> IntArray:
        offsets = self.base.offsets.copy()
        offsets[0] += plan.threshold
        return offsets


@dataclass(eq=False)
class Rewriter:
    """Makes texts of edits: see `Certificate.counterexample`."""

    base: BoundedClassifier
    unit: Unit
    tokens: Tokens
    evidence: Scores
    synonyms: Mapping[Any, Collection[Any]] | None

    def __call__(self, edits: Sequence[TokenEdit], rival: int) -> Any:
        """The text after the edits, with the worst tokens that are known; None if it keeps its label."""
        worst = self.base.worst_token(self.evidence.answer, rival, self.unit)
        edited: list[list[Hashable]] = [*([token] for token in self.tokens), []]
        inserted: list[Hashable] = []
        for edit in edits:
            if edit.position is None:
                inserted.append(worst)
            elif edit.operation == "ins":  # before the token
                edited[edit.position] = [worst, *edited[edit.position]]
            elif edit.operation == "del":
                edited[edit.position] = []
            else:
                token = self.tokens[edit.position]
                options = self._options(token)
                worst_synonym = options[int(np.argmax(self._gains(options)[:, rival]))]
                edited[edit.position] = [worst if self.synonyms is None else worst_synonym]
        tokens = tuple(chain(inserted, *edited))  # in front, since the last chunk of an input may be shorter
        if None in tokens:  # no token is known
            return None
        offsets, known = self.evidence.offsets, self.evidence.filter
        answer = Scores(self.base.token_scores(tokens), offsets, offsets, filter=known).answer
        text = self.unit.join(tokens)
        try:
            is_text = self.unit.split(text) == tokens
        except ValueError:  # of a unit whose tokens have labels
            return None
        return text if is_text and answer != self.evidence.answer else None

    def reach(self) -> IntArray:
        """How much more each class than the answer gets from the worst synonym of each token, (tokens, classes)."""
        rows = [self._gains(self._options(token)).max(axis=0) for token in self.tokens]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.evidence.offsets))

    def _options(self, token: Hashable) -> list[Hashable]:
        return [token, *(self.synonyms or {}).get(token, ())]

    def _gains(self, tokens: Sequence[Hashable]) -> IntArray:
        scores = self.base.token_scores(tokens)
        return scores - scores[:, [self.evidence.answer]]
