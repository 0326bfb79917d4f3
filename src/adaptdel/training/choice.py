"""The choice of a filter: clip, drifts and weight of its parts, judged by the proof that is to come.

A filter flags a text by the sum of its scores S or by its best segment G, see `adaptdel.certification.scores.Filter`.
One number decides,

    u = max((S − q_S) / e_S, (G − q_G) / e_G + δ),

with q the 95% quantile and e the mean excess over it of texts of the other class. So one order statistic of u over the
rows of the proof gives both thresholds, see `adaptdel.models.additive.ThresholdLine`.

Clip, drifts and δ are chosen by scores out of fold of all rows that do not prove: each of `FOLDS` parts is scored by a
model of the others; equal texts are in one part. The proof will draw n texts of the other class and allow k of them, so
its threshold is the (k + 1)-th largest of n draws. Drawn from the N scores out of fold, it is the r-th largest of these
with the probability P(B(n, r/N) > k) − P(B(n, (r−1)/N) > k), where B is binomial. What a candidate catches is its mean
over these thresholds: exactly what an endless number of drawn proofs would give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from scipy.stats import binom

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.scores import Filter, Scores
from adaptdel.classifiers.bounded import BoundedLinearClassifier
from adaptdel.classifiers.features import clipped, ngrams, numbered, summed_columns
from adaptdel.classifiers.linear_training import LEVEL_FACTOR, class_numbers
from adaptdel.core.checks import FloatArray, IntArray
from adaptdel.core.margins import of_tokens
from adaptdel.core.segment import best_values, least_values
from adaptdel.models.additive import AdditiveClassifier, ThresholdLine
from adaptdel.settings import FilterSettings
from adaptdel.tables import Table, percent, text_table
from adaptdel.text.data import fold_of
from adaptdel.text.units import Tokens, Unit, check_unit
from adaptdel.training.protection import class_number

FOLDS = 4
CLIP = 2**16  # the clip in the units of scores out of fold, so that those of several models can be compared
QUANTILE = 0.95
SUM_DRIFTS = (0.0, 0.03, 0.1, 0.2)  # in clips
SEGMENT_DRIFTS = (0.05, 0.1, 0.2, 0.3)
WEIGHTS = (-2.0, -1.0, 0.0, 1.0, 2.0)  # δ
STRIDE = 3  # between the first clips that are tried; then the neighbours of the best one are
STEPS = 6  # of the bisection of values after edits
EDITS = (1, 2, 5)  # in the table
SHOWN = 2  # the number of edits that is asked for
LONGEST = 1e-9  # probability of the thresholds that are left out
STEADY = 0.01  # the standard deviation of detection by the draw of the proof that passes as steady
MORE = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # times as many rows that prove
_TEXT = (
    "The fraction of the class that is caught at the proved false-positive rate: on texts that the model does "
    "not know, as the mean over the rows that may prove the rate. Clip: of a word's score, in % of the first; drift: "
    "what is subtracted from the score of each word, in clips; padded: with any text before and after; edits: no "
    "matter which words are edited."
)


@dataclass(frozen=True)
class TriedFilter:
    """A filter, and what it catches of the protected class on average over proofs.

    Attributes:
        level: the number of the clip.
        drift: of the sum, in clips; None if the sum flags nothing.
        segment_drift: of the segment.
        weight: δ; None if segments flag nothing.
        clean: the fraction that is caught as it is.
        padded: with any text before and after.
        edited: after this many edits.
        padded_edited: after `SHOWN` edits, with any text before and after.
        spread: the standard deviation of ``clean`` over proofs.
    """

    level: int
    drift: float | None
    segment_drift: float
    weight: float | None
    clean: float
    padded: float
    edited: Mapping[int, float]
    padded_edited: float
    spread: float

    def range(self) -> str:
        """What is caught as it is, within a standard deviation."""
        return f"{percent(self.clean - self.spread)} to {percent(min(1.0, self.clean + self.spread))}"

    def worth(self, goal: str) -> float:
        """What is asked for."""
        parts = {
            "clean": [self.clean],
            "edits": [self.edited[SHOWN]],
            "padding": [self.padded],
            "both": [self.padded, self.edited[SHOWN], self.padded_edited],
        }
        return float(np.mean(parts[goal]))


@dataclass(frozen=True)
class Proof:
    """The proof that is to come: how many texts of the other class it has, and how many of them may be flagged."""

    negatives: int
    allowed: int

    def chances(self, drawn_from: int) -> FloatArray:
        """The probability that the threshold is the r-th largest of the scores, for r = 1, 2, ... (the last ones)."""
        ranks = np.arange(drawn_from + 1) / drawn_from
        chances = np.diff(binom.sf(self.allowed, self.negatives, ranks))
        return np.asarray(chances[: int(np.searchsorted(np.cumsum(chances), 1 - LONGEST)) + 1])


class Level:
    """The texts under one clip: sums and segments of all, out of fold, in units of `CLIP`."""

    def __init__(self, texts: OutOfFold, level: int) -> None:
        self.texts, self.level = texts, level
        self.scores, self.offsets, self.loss = texts.scored(level)
        self.sums = self.offsets + np.add.reduceat(np.append(self.scores, 0), texts.starts)
        self.sums[texts.lengths == 0] = self.offsets[texts.lengths == 0]

    @cached_property
    def worst(self) -> tuple[IntArray, IntArray]:
        """The largest costs of a substitution in each text of the class, and what an insertion costs beyond the loss.

        See `adaptdel.core.margins`; a drift changes neither.
        """
        tops, extra, most = [], [], max(EDITS)
        for scores in self.texts.own(self.scores):
            costs = of_tokens(scores + self.loss, self.texts.ngram)
            tops.append(np.sort(np.pad(costs, (0, most)))[: -most - 1 : -1])
            gaps = of_tokens(scores + self.loss, self.texts.ngram - 1) if self.texts.ngram > 1 else scores[:0]
            extra.append(int(gaps.max(initial=0)))
        return np.array(tops), np.array(extra)

    def sum_after(self, drift: int, edits: int) -> IntArray:
        """The sums of the texts of the class after the worst edits."""
        tops, extra = self.worst
        costs = np.maximum(tops[:, :edits], (extra + self.loss + drift)[:, None]).sum(axis=1)
        return np.asarray((self.sums - drift * self.texts.lengths)[self.texts.is_own] - costs)

    @cached_property
    def _inner(self) -> tuple[IntArray, IntArray]:
        """The scores of the texts of the class without their first and last token, and the lengths."""
        parts = [scores[1:-1] for scores in self.texts.own(self.scores)]
        return np.concatenate(parts), np.array([len(part) for part in parts])

    def segments_after(self, drifts: Sequence[int], edits: int, *, inner: bool) -> IntArray:
        """The values of the best segments of the texts of the class after the worst edits, shape (drifts, texts)."""
        if inner:
            scores, lengths = self._inner
        else:
            own = self.texts.own(self.scores)
            scores, lengths = np.concatenate(own), self.texts.lengths[self.texts.is_own]
        rows = np.array(drifts)[:, None]
        return least_values(scores - rows, lengths, self.loss + rows[:, 0], edits, STEPS)

    @cached_property
    def values(self) -> list[IntArray]:
        """The values of the best segments of all texts, for each of `SEGMENT_DRIFTS`."""
        return [best_values(self.scores - in_clips(drift), self.texts.lengths) for drift in SEGMENT_DRIFTS]

    @cached_property
    def robust(self) -> tuple[list[IntArray], IntArray]:
        """The values with padding, and those with padding and `SHOWN` edits, for each of `SEGMENT_DRIFTS`."""
        scores, lengths = self._inner
        drifts = [in_clips(drift) for drift in SEGMENT_DRIFTS]
        return [best_values(scores - drift, lengths) for drift in drifts], self.segments_after(
            drifts, SHOWN, inner=True
        )

    def candidates(self, proof: Proof, parts: str) -> list[TriedFilter]:
        """All filters with this clip."""
        drifts: Sequence[float | None] = SUM_DRIFTS if parts != "segment" else (None,)
        if parts == "sum":
            return [self.measured(drift, 0.0, None, proof) for drift in drifts]
        weights = WEIGHTS if parts == "both" else (0.0,)
        return [
            self.measured(drift, segment_drift, weight, proof)
            for drift in drifts
            for segment_drift in SEGMENT_DRIFTS
            for weight in weights
        ]

    def tail(self, drift: float | None, segment_drift: float) -> tuple[int, int, int, int]:
        """The quantile and the mean excess of texts of the other class: of their sums, and of their segments."""
        own = self.texts.is_own
        found = [0, 1, 0, 1]
        if drift is not None:
            found[:2] = tail((self.sums - in_clips(drift) * self.texts.lengths)[~own])
        if segment_drift:
            found[2:] = tail(self.values[SEGMENT_DRIFTS.index(segment_drift)][~own])
        return found[0], found[1], found[2], found[3]

    def measured(
        self, drift: float | None, segment_drift: float, weight: float | None, proof: Proof, edits: Sequence[int] = ()
    ) -> TriedFilter:
        """What a filter catches; with ``edits``, also after these numbers of edits, and with more care."""
        own, (sum_at, sum_step, value_at, value_step) = self.texts.is_own, self.tail(drift, segment_drift)
        number = SEGMENT_DRIFTS.index(segment_drift) if segment_drift else 0

        def of_sum(sums: IntArray) -> FloatArray:
            return (sums - sum_at) / sum_step if drift is not None else np.full(len(sums), -inf)

        def of_segment(values: IntArray) -> FloatArray:
            return (values - value_at) / value_step + (weight or 0.0)

        everything = of_sum(self.sums - in_clips(drift) * self.texts.lengths)
        none = np.full(int(own.sum()), -inf)
        segments = weight is not None
        if segments:
            everything = np.maximum(everything, of_segment(self.values[number]))
        chances = proof.chances(int((~own).sum()))
        thresholds = -np.sort(-everything[~own])[: len(chances)]

        def caught(scores: FloatArray) -> FloatArray:
            return 1 - np.searchsorted(np.sort(scores), thresholds, side="right") / len(scores)

        clean = caught(everything[own])
        mean = float(chances @ clean)
        inner = of_segment(self.robust[1][number]) if segments else none
        edited = {}
        for count in edits or (SHOWN,):
            after = of_sum(self.sum_after(in_clips(drift), count)) if drift is not None else none
            if segments:
                exact = self.segments_after([in_clips(segment_drift)], count, inner=False)[0] if edits else None
                after = np.maximum(after, inner if exact is None else of_segment(exact))
            edited[count] = float(chances @ caught(after))
        return TriedFilter(
            level=self.level,
            drift=drift,
            segment_drift=segment_drift,
            weight=weight,
            clean=mean,
            padded=float(chances @ caught(of_segment(self.robust[0][number]))) if segments else 0.0,
            edited=edited,
            padded_edited=float(chances @ caught(inner)) if segments else 0.0,
            spread=max(0.0, float(chances @ clean**2) - mean**2) ** 0.5,
        )


class OutOfFold:
    """Texts, each scored by a model that was trained without it and its equals."""

    def __init__(
        self,
        tokens: Sequence[Tokens],
        labels: Sequence[Any],
        number: int,
        train: Callable[[Sequence[int]], BoundedLinearClassifier],
        *,
        ngram: int,
        unit: Unit,
        seed: int,
    ) -> None:
        self.ngram, self.unit, self.number = ngram, unit, number
        folds = np.array([fold_of(" ".join(map(str, each)), FOLDS, seed) for each in tokens])
        self.models = {int(fold): train(np.flatnonzero(folds != fold).tolist()) for fold in np.unique(folds)}
        classes = next(iter(self.models.values())).classes_
        types: dict[Any, int] = {}
        runs = [ngrams(each, ngram) for each in tokens]
        coded: list[IntArray] = [numbered(each, types, len(each)) for each in runs]
        self.lengths, codes, names = np.array([len(each) for each in coded]), np.concatenate(coded), list(types)
        self.starts, self.folds = np.cumsum(self.lengths) - self.lengths, folds
        self.tables = {}  # of each fold, the columns of its distinct tokens, and which of these stands where
        for fold, model in self.models.items():
            used, positions = np.unique(codes[np.repeat(folds == fold, self.lengths)], return_inverse=True)
            self.tables[fold] = (*model.features.table([names[code] for code in used.tolist()]), positions)
        self.is_own = np.array([label == classes[number] for label in labels])

    def scored(self, level: int) -> tuple[IntArray, IntArray, int]:
        """The scores of all tokens for the class over the other one, the offsets of all texts, and the largest loss."""
        own, tokens = self.number, np.repeat(self.folds, self.lengths)
        scores, offsets = np.zeros(self.lengths.sum(), dtype=np.int64), np.zeros(len(self.folds), dtype=np.int64)
        losses = []
        for fold, model in self.models.items():
            base, (columns, ends, positions) = model.at(level), self.tables[fold]
            margin = clipped(summed_columns(columns, ends, model.weights[level]), base.bound)[:, 0]
            scores[tokens == fold] = rescaled(margin if own else -margin, base.bound)[positions]
            offsets[self.folds == fold] = rescaled(base.offsets[own] - base.offsets[1 - own], base.bound)
            losses.append(int(rescaled(base.reach_over(own, self.unit)[1 - own], base.bound)))
        return scores, offsets, max(losses)

    def own(self, scores: IntArray) -> list[IntArray]:
        """The scores of each text of the class."""
        return [
            scores[start : start + length]
            for start, length in zip(self.starts[self.is_own], self.lengths[self.is_own], strict=True)
        ]


@dataclass(frozen=True)
class Choice:
    """The filter that was chosen, beside others.

    Attributes:
        texts: out of fold.
        proof: the one that is to come.
        goal: what was asked for.
        rows: the best candidate of each clip that was tried.
        chosen: one of these.
        plain: the best sum without a clip.
    """

    texts: OutOfFold
    proof: Proof
    goal: FilterSettings
    rows: list[TriedFilter]
    chosen: TriedFilter
    plain: TriedFilter

    def table(self) -> Table:
        """What the filters catch, as of ``rows``; the first row is the sum without a clip."""
        titles = ["clip", "drift of sum", "of segment", "caught", "padded"]
        titles += [f"{count} edit{'s' * (count > 1)}" for count in EDITS] + [f"padded, {SHOWN} edits"]
        cells = [["without a certificate", "", "", percent(self.plain.clean), *[""] * (len(EDITS) + 2)]]
        for row in self.rows:
            shown = [row.clean, row.padded, *(row.edited[count] for count in EDITS), row.padded_edited]
            drifts = [f"{drift:g}" if drift else "–" for drift in (row.drift, row.segment_drift)]
            mark = " (chosen)" if row.level == self.chosen.level else ""
            cells.append([percent(LEVEL_FACTOR**row.level) + mark, *drifts, *map(percent, shown)])
        return text_table(titles, cells)

    def described(self) -> dict[str, Any]:
        """What the model keeps: the table in Markdown, with what it means, and its rows."""
        return {"table": f"{_TEXT}\n\n{self.table().to_markdown()}", "rows": [asdict(row) for row in self.rows]}

    def to_terminal(self) -> str:
        """The table, with what it means."""
        return f"{self.table().to_terminal()}\n\n{_TEXT}"

    def notes(self, proof_of: Callable[[int], Proof]) -> list[str]:
        """Whether detection was kept, and how many more texts of the other class would make it steady."""
        notes, best = [], max(row.clean for row in self.rows)
        if best < self.plain.clean - self.goal.max_detection_loss / 100:
            notes.append(
                f"no clip keeps detection: at most {percent(best)} are caught, and {percent(self.plain.clean)} without "
                "a certificate"
            )
        chosen, level = self.chosen, Level(self.texts, self.chosen.level)
        proofs = (proof_of(round(factor * self.proof.negatives)) for factor in MORE)
        filters = (
            (proof, level.measured(chosen.drift, chosen.segment_drift, chosen.weight, proof)) for proof in proofs
        )
        steady = next(((proof, then) for proof, then in filters if then.spread <= STEADY), None)
        if chosen.spread > STEADY and steady is not None:
            proof, then = steady
            notes.append(
                f"{chosen.range()} are caught, by the rows that happen to prove the rate; with "
                f"{proof.negatives - self.proof.negatives:,} more texts of the other class, {then.range()}"
            )
        return notes

    def apply(self, model: AdditiveClassifier, base: BoundedLinearClassifier) -> None:
        """Make a model this filter, with the thresholds of the line at 0, which `protect` replaces."""
        chosen, number, used = self.chosen, self.texts.number, base.at(self.chosen.level)
        sum_at, sum_step, value_at, value_step = Level(self.texts, chosen.level).tail(
            chosen.drift, chosen.segment_drift
        )
        has_sum, has_segment, clip = chosen.drift is not None, chosen.weight is not None, used.bound
        rule = Filter(
            label=number,
            drift=scaled(in_clips(chosen.drift), clip) if has_sum else clip,  # with which no sum exceeds the offset
            segment=0 if has_segment else None,
            segment_drift=scaled(in_clips(chosen.segment_drift), clip),
        )
        line = ThresholdLine(
            sum=scaled(sum_at, clip) if has_sum else int(used.offsets[number] - used.offsets[1 - number]),
            sum_step=max(1, scaled(sum_step, clip)) if has_sum else 0,
            segment=scaled(value_at - (chosen.weight or 0.0) * value_step, clip) if has_segment else 0,
            segment_step=max(1, scaled(value_step, clip)) if has_segment else 0,
        )
        model.use_filter(used, rule, line)

    def certificates(self, model: AdditiveClassifier) -> list[Certificate]:
        """Those of the texts of the class out of fold, under the thresholds of the model."""
        level, plan, clip = Level(self.texts, self.chosen.level), model.plan, model.base_classifier().bound
        number, rule = self.texts.number, model.filter
        assert rule is not None
        limit = plan.threshold if number else -plan.threshold - 1
        limit = limit * CLIP // clip
        rule = Filter(
            label=number,
            drift=rule.drift * CLIP // clip,
            segment=None if rule.segment is None else rule.segment * CLIP // clip,
            segment_drift=rule.segment_drift * CLIP // clip,
        )
        plan = replace(plan, filter=rule, threshold=limit if number else -limit - 1)
        classes, unit = tuple(model.base_classifier().classes_), self.texts.unit.to_dict()
        certificates = []
        for scores, offset in zip(self.texts.own(level.scores), level.offsets[self.texts.is_own], strict=True):
            table, offsets = np.zeros((len(scores), 2), dtype=np.int64), np.zeros(2, dtype=np.int64)
            table[:, number], offsets[number] = scores, offset
            offsets[0] += plan.threshold
            reach = np.full(2, level.loss)
            evidence = Scores(table, offsets, reach, ngram=self.texts.ngram, filter=rule)
            certificates.append(
                Certificate(label=classes[evidence.answer], classes=classes, plan=plan, evidence=evidence, unit=unit)
            )
        return certificates


def choose(texts: OutOfFold, proof: Proof, goal: FilterSettings, levels: int) -> Choice:
    """The best candidate for the goal, among those that lose at most this many points of clean detection."""
    tried: dict[int, list[TriedFilter]] = {}
    known: dict[int, Level] = {}
    parts = "sum" if texts.ngram > 1 else goal.parts

    def best_of(candidates: Sequence[TriedFilter]) -> TriedFilter:
        least = max(each.clean for row in tried.values() for each in row) - goal.max_detection_loss / 100 - 1e-12
        return max(candidates, key=lambda each: (each.clean >= least, each.worth(goal.goal)))

    def best() -> TriedFilter:
        return best_of([each for row in tried.values() for each in row])

    def look_at(numbers: Sequence[int]) -> None:
        for number in numbers:
            if 0 <= number < levels and number not in tried:
                known[number] = Level(texts, number)
                tried[number] = known[number].candidates(proof, parts)

    look_at(range(0, levels, STRIDE))
    around = best().level
    look_at(range(around - STRIDE + 1, around + STRIDE))
    rows = []
    for number in sorted(tried):
        each = best_of(tried[number])
        rows.append(known[number].measured(each.drift, each.segment_drift, each.weight, proof, EDITS))
    chosen = rows[sorted(tried).index(best().level)]
    plain = max((known[0].measured(drift, 0.0, None, proof) for drift in SUM_DRIFTS), key=lambda each: each.clean)
    return Choice(texts, proof, goal, rows, chosen, plain)


def fit_filter(
    model: AdditiveClassifier,
    tokens: Sequence[Tokens],
    labels: Sequence[Any],
    label: Any,
    proof: Proof,
    goal: FilterSettings,
) -> Choice:
    """Train the token scores of a filter on all examples, with the clip and drifts that suit the proof to come."""
    train = model.trainer(tokens, labels, FOLDS + 1)
    number = class_number(class_numbers(labels)[0], label)
    unit = check_unit(model.unit)
    texts = OutOfFold(tokens, labels, number, train, ngram=model.ngram, unit=unit, seed=model.seed)
    choice = choose(texts, proof, goal, model.levels)
    choice.apply(model, train(range(len(tokens))))
    return choice


def tail(scores: IntArray) -> tuple[int, int]:
    """The quantile, and the mean excess over it."""
    limit = int(np.quantile(scores, QUANTILE))
    above = scores[scores > limit]
    return limit, max(1, int((above - limit).mean())) if len(above) else 1


def in_clips(drift: float | None) -> int:
    """A drift in the units of scores out of fold."""
    return round((drift or 0.0) * CLIP)


def scaled(value: float, clip: int) -> int:
    """A number in the units of scores out of fold, in those of a model."""
    return round(value * clip / CLIP)


def rescaled(scores: Any, clip: int) -> Any:
    """Scores in the units of a model, in those of scores out of fold."""
    return np.rint(np.asarray(scores) * (CLIP / clip)).astype(np.int64)
