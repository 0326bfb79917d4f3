"""Scores: the evidence of an additive classifier, integer token scores, from which the true radius follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, frexp, ldexp
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Certificate, check_classes
from adaptdel.certification.evidence import EVIDENCE, Evidence, Explanation, Plan
from adaptdel.core import margins, segment
from adaptdel.core.checks import STEPS, BoolArray, IntArray, check_int, check_list, check_real
from adaptdel.core.margins import Margin, TokenEdit
from adaptdel.core.plain import to_plain
from adaptdel.core.segment import Move
from adaptdel.core.threat import Threat, as_threat
from adaptdel.settings import EXACT
from adaptdel.tables import plural
from adaptdel.text.units import check_unit, noun, readable, unit_from_dict, units_per_character

if TYPE_CHECKING:
    from adaptdel.text.units import Tokens

BITS = 31  # of scores that were rounded to integers
LARGEST_THRESHOLD = 2**53
_NAMED_TOKENS = 5  # in a sentence

Rewrite = Callable[[Sequence[TokenEdit], int], Any]  # makes a text of edits for a rival class, or None


@dataclass(frozen=True, kw_only=True)
class Filter:
    """How a protected class is predicted: by the sum of all tokens, or by the best segment of neighbouring tokens.

    A drift is taken off the score of each token for the class, so that length alone flags no text.

    Attributes:
        label: the class number of the protected class, of two.
        drift: of the sum.
        segment: the value that a segment must exceed; None for a filter without segments.
        segment_drift: of the segment.
    """

    label: int
    drift: int = 0
    segment: int | None = None
    segment_drift: int = 0

    def __post_init__(self) -> None:
        check_int("label", self.label, most=1)
        for name in ("drift", "segment", "segment_drift"):
            if (value := getattr(self, name)) is not None:
                check_int(name, value, most=LARGEST_THRESHOLD)


@dataclass(frozen=True, kw_only=True)
class ScoresPlan(Plan):
    """How predictions and radii follow from token scores.

    Attributes:
        threshold: for two classes, the second one is predicted iff its score minus that of the first exceeds it.
        ngram: the number of neighbouring tokens that have a score together, see `adaptdel.core.margins`.
        filter: how a protected class is predicted; None if no class is protected.
    """

    kind: ClassVar[str] = "scores"
    verified: ClassVar[str] = "derived again in integers"

    threshold: int = 0
    ngram: int = 1
    filter: Filter | None = None

    def __post_init__(self) -> None:
        check_int("threshold", self.threshold, least=-LARGEST_THRESHOLD, most=LARGEST_THRESHOLD)
        check_int("ngram", self.ngram, least=1, most=2**16)
        if self.ngram > 1 and self.filter is not None and self.filter.segment is not None:
            raise ValueError(f"a filter of segments needs scores of single tokens, got an ngram of {self.ngram}")

    @property
    def drifts(self) -> IntArray:
        """Those of the filter, for `adaptdel.core.margins.check_sums`."""
        return np.array([0, 0] if self.filter is None else [self.filter.drift, self.filter.segment_drift])

    @property
    def decision_threshold(self) -> float | None:
        """What the score of the second of two classes must exceed; None if the largest score decides."""
        return self.threshold if self.threshold or self.filter else None

    @property
    def protected(self) -> int | None:
        """The class of the filter, or else the second one if it has a threshold."""
        return super().protected if self.filter is None else self.filter.label

    def predictions(self) -> dict[str, Any]:
        """What predictions depend on."""
        return {"threshold": self.threshold, "filter": to_plain(self.filter)}

    def method(self) -> tuple[str, str]:
        """The name that `settings` gives to the training of an additive classifier."""
        return EXACT, ""


class _Segments(NamedTuple):
    """The segments of a text, which may flag it as of the protected class."""

    label: int  # the protected class
    gains: IntArray  # what each token adds to a segment, shape (tokens,)
    threshold: int
    loss: int  # of a token that the attacker writes, at most
    gain: int  # of such a token, at most
    flags: bool  # whether a segment exceeds the threshold


@EVIDENCE.add("scores")
@dataclass(frozen=True, eq=False)
class Scores(Evidence):
    """The token scores of one input. What follows is certain: there is neither noise nor votes.

    If single tokens have scores, a radius also covers every permutation of the tokens of these texts, since a sum has
    no order. It is complete if a text one edit further away has another label.

    Attributes:
        scores: of the tokens, in integers, shape (tokens, classes); of runs of tokens (tokens + ngram − 1, classes).
        offsets: what is added to their sum, the decision threshold included, shape (classes,).
        reach: how much more a token that the attacker writes can add to a class than to the answer, shape (classes,).
        touchable: which tokens the attacker can edit, shape (tokens,); None for all.
        replacements: like ``reach`` for the tokens that may replace each token, shape (tokens, classes); None for any.
        rounding: how far the difference of two scores may be from that of the model; 0 for a model with integer scores.
        ngram: as of the plan.
        filter: as of the plan.
    """

    plan: ClassVar[type[Plan]] = ScoresPlan
    columns: ClassVar[Mapping[str, str]] = {
        "scores": "table",  # of each token, by class
        "offsets": "int64[]",  # what is added to their sum, by class
        "reach": "int64[]",  # how much more a token of the attacker can add to each class than to the answer
    }
    restrictions: ClassVar[tuple[str, ...]] = ("touchable", "replacements", "rounding")

    scores: IntArray
    offsets: IntArray
    reach: IntArray
    touchable: BoolArray | None = None
    replacements: IntArray | None = None
    rounding: int = 0
    ngram: int = 1
    filter: Filter | None = None

    @property
    def length(self) -> int:  # type: ignore[override] # which the scores state
        """The number of tokens."""
        return len(self.scores) - self.ngram + 1

    @cached_property
    def _drifted(self) -> IntArray:
        """The scores less the drift of the sum."""
        if self.filter is None or not self.filter.drift:
            return self.scores
        scores = self.scores.copy()
        scores[:, self.filter.label] -= self.filter.drift
        return scores

    @cached_property
    def totals(self) -> IntArray:
        """The score of every class in the sum, shape (classes,)."""
        return np.asarray(self.offsets + self._drifted.sum(axis=0))

    @cached_property
    def _segments(self) -> _Segments | None:
        """The segments of the text; None without a filter of segments."""
        if self.filter is None or self.filter.segment is None:
            return None
        own, drift = self.filter.label, self.filter.segment_drift
        gains = np.asarray(self.scores[:, own] - self.scores[:, 1 - own] - drift)
        worst, best = int(self.reach[1 - own]) + drift, int(self.reach[own]) - drift
        threshold = self.filter.segment
        return _Segments(own, gains, threshold, worst, best, segment.best_segment(gains)[0] > threshold)

    @property
    def segment_value(self) -> int:
        """The value of the best segment; 0 without segments."""
        return 0 if self._segments is None else segment.best_segment(self._segments.gains)[0]

    @property
    def segment(self) -> tuple[int, int] | None:
        """Where the segment that flags the text begins and ends (exclusive); None if no segment does."""
        segments = self._segments
        return segment.best_segment(segments.gains)[1:] if segments is not None and segments.flags else None

    @cached_property
    def answer(self) -> int:
        """The class number of the prediction: of the segment, if one flags the text, or else of the sum."""
        segments = self._segments
        return segments.label if segments is not None and segments.flags else margins.answer(self.totals)

    @cached_property
    def margins(self) -> list[Margin]:
        """The margin in the sum over each rival, and what edits can take from it."""
        drift = np.zeros_like(self.reach)  # how much more a written token adds to the rival than to the answer
        if self.filter is not None:
            drift[1 - self.answer] = self.filter.drift if self.answer == self.filter.label else -self.filter.drift
        return margins.margins(
            self._drifted,
            self.offsets,
            self.answer,
            self.reach + drift,
            touchable=self.touchable,
            replacements=None if self.replacements is None else self.replacements + drift,
            rounding=self.rounding,
            ngram=self.ngram,
        )

    def rivals(self, threat: Threat) -> list[tuple[int, Margin]]:
        """The class numbers of the rivals and the margins over them, those that the fewest edits reach first."""
        limit = threat.search_limit(self.length)
        numbers = [number for number in range(len(self.offsets)) if number != self.answer]
        return sorted(zip(numbers, self.margins, strict=True), key=lambda pair: pair[1].radius(threat, limit))

    def predicted(self, plan: ScoresPlan) -> int:
        """The class of the largest total; the threshold is part of the offsets."""
        return self.answer

    def class_scores(self, plan: ScoresPlan) -> list[float]:
        """The score of every class."""
        totals: list[float] = self.totals.tolist()
        return totals

    def radius(self, plan: ScoresPlan, threat: Threat) -> int:
        """The number of edits that cannot change the label; −1 if rounding leaves the label itself in doubt.

        A text that is flagged by the sum or by a segment stays flagged as long as one of the two does. A text that is
        not flagged stays so as long as neither of them flags it.
        """
        moves = segment.moves_of(threat, any_text=threat.long_insertions)
        return self._of_parts(self._sum_radius(threat), moves, threat)

    def radius_within(self, plan: ScoresPlan, threat: Threat, most: int) -> int:
        """The radius, or ``most`` if it is larger: a segment is asked about no more edits."""
        moves = segment.moves_of(threat, any_text=threat.long_insertions)
        return min(most, self._of_parts(self._sum_radius(threat), moves, threat, most))

    def _of_parts(self, of_sum: int, moves: Sequence[Move], threat: Threat, most: int | None = None) -> int:
        """The radius of sum and segment together; ``most`` as of `radius_within`."""
        segments, limit = self._segments, threat.bounded.search_limit(self.length)
        if segments is None or (segments.flags and most is not None and of_sum >= most):
            return of_sum
        limit = limit if most is None else min(most, limit)
        if segments.flags:
            gains = segments.gains[1:-1] if threat.padding else segments.gains  # padding may change the outer words
            return max(of_sum, segment.withstands(gains, segments.threshold, segments.loss, moves, limit))
        if self.answer == segments.label:  # by the sum alone
            return of_sum
        if threat.padding and segments.gain > 0:
            return -1
        return min(of_sum, segment.keeps_off(segments.gains, segments.threshold, segments.gain, moves, limit))

    def _sum_radius(self, threat: Threat) -> int:
        """The radius of the sum for its own answer; −1 if that is another."""
        if margins.answer(self.totals) != self.answer:
            return -1
        if threat.is_bounded:
            return margins.radius(self.margins, threat, self.length)
        if any(margin.insertion > 0 for margin in self.margins):  # enough of such words outvote every text
            return -1 if threat.padding else min(0, self._sum_radius(threat.bounded))
        replacing = Threat({*threat.ops, "sub", "del"})  # words that text is glued to are lost
        free = self if self.touchable is None else replace(self, touchable=None)  # text is glued to any word
        return max(-1, margins.radius(free.margins, replacing, self.length) - 2 * threat.padding)

    def positions(self, plan: ScoresPlan) -> int:
        """The number of positions at which any text may be inserted, besides padding, with the text still flagged."""
        if self._segments is None or not self._segments.flags:
            return -1
        return segment.positions(self._segments.gains[1:-1], self._segments.threshold)

    def frontier(self, plan: ScoresPlan) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together.

        Of a filter with segments, and with text of any length, those of as many edits as the radius.
        """
        if self._segments is None and plan.threat.is_bounded:
            return margins.frontier(self.margins, plan.threat, self.length)
        return self.radius_triples(plan)

    def character_radius(self, plan: ScoresPlan, unit: Mapping[str, Any] | None) -> int | None:
        """The number of character edits that cannot change the label; None for units without characters.

        A character is a Unicode code point. For words see `adaptdel.core.margins.Margin.character_radius`. For the
        unit "char" every character is a token. One character has at most 4 bytes in UTF-8. A table of synonyms does not
        limit this attacker.
        """
        threat = Threat(padding=plan.threat.padding)
        if (unit or {}).get("kind") == "word":
            own = margins.answer(self.totals) == self.answer and not threat.padding
            of_sum = margins.character_radius(self.margins, self.length) if own else -1
            return self._of_parts(of_sum, segment.CHARACTER_MOVES, threat)
        units = units_per_character(unit)
        free = self if self.replacements is None else replace(self, replacements=None)
        return None if units is None else max(-1, free.radius(plan, threat) // units)

    def restricted(self, plan: ScoresPlan) -> bool:
        """Whether there are edits of the operations that the attacker may not make."""
        return self.touchable is not None or self.replacements is not None

    def notes(self) -> list[str]:
        """Restrictions of the attacker."""
        touched = [] if self.touchable is None else ["the attacker may not touch all tokens"]
        return touched + ([] if self.replacements is None else ["the attacker replaces tokens by listed ones only"])

    def _worst(self, margin: Margin, threat: Threat, number: int) -> list[TokenEdit]:
        edits = margin.worst_edits(threat, number)
        if self.touchable is None:
            return edits
        positions = np.flatnonzero(self.touchable)  # a margin counts the touchable tokens only
        return [e if e.position is None else replace(e, position=int(positions[e.position])) for e in edits]

    def worst_texts(self, plan: ScoresPlan, rewrite: Rewrite, edits: int) -> list[Any]:
        """The texts of the worst edits of the sum for each rival, the closest first, and of the segment."""
        if edits > plan.threat.search_limit(self.length):
            return []
        rivals, segments = self.rivals(plan.threat), self._segments
        texts = [rewrite(self._worst(margin, plan.threat, edits), rival) for rival, margin in rivals]
        if segments is not None and segments.flags:
            moves = segment.moves_of(plan.threat.bounded)
            found = segment.witness(segments.gains, segments.threshold, segments.loss, moves, edits)
            texts.append(rewrite([TokenEdit(operation, position) for operation, position in found], rivals[0][0]))
        return [text for text in texts if text is not None]

    def _segment_margin(self) -> Margin | None:
        """What the segment that flags the text has above its threshold, and what edits of its tokens take from it."""
        segments = self._segments
        if segments is None or self.segment is None:
            return None
        start, end = self.segment
        gains = np.zeros_like(segments.gains)
        gains[start:end] = segments.gains[start:end]
        return Margin(int(gains.sum()) - segments.threshold - 1, segments.loss, gains, gains + segments.loss)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], plan: ScoresPlan) -> Scores:
        """The scores of a row; `check_shape` checks them."""
        length, ngram = row["length"], plan.ngram
        width = len(check_list("offsets", row["offsets"]))
        shapes = {
            "scores": (length + ngram - 1, width),
            "offsets": (width,),
            "reach": (width,),
            "touchable": (length,),
            "replacements": (length, width),
        }
        arrays = {name: as_array(name, row.get(name), shape) for name, shape in shapes.items()}
        rounding = check_int("rounding", row.get("rounding", 0), most=1)
        used = (arrays[name] for name in ("scores", "offsets", "reach", "replacements"))
        margins.check_sums(length, *used, plan.drifts, ngram=ngram)
        if rounding and plan.filter is not None:
            raise ValueError("rounding must be 0 for a filter, whose scores are integers")
        return cls(**arrays, rounding=rounding, ngram=ngram, filter=plan.filter)

    def check_shape(self, classes: int) -> None:
        """Raise unless the integers can be those of a text: no token adds more than ``reach``."""
        if len(self.offsets) != classes:
            raise ValueError(f"offsets must hold one number for each of the {classes} classes, got {len(self.offsets)}")
        gains = self.scores - self.scores[:, [self.answer]]
        if (gains.max(axis=0, initial=0) > self.reach).any():
            raise ValueError(
                "reach must be at least 0 and at least what each token of the text adds to a class over the label, got "
                f"{self.reach.tolist()!s:.60}"
            )

        if self.replacements is not None and (self.replacements > self.reach).any():
            raise ValueError("replacements must be at most reach, which is that of every token")

    def check(self, plan: ScoresPlan, certificate: Certificate, *, work: int | None = STEPS) -> list[str]:
        """Integers are derived again without any doubt: there is nothing else to check."""
        return []

    def alike(self, certificate: Certificate) -> Mapping[Any, Any]:
        """All rows of a model have the same offsets; equal answers the same reach, and equal inputs the same scores."""
        return {
            "offsets": self.offsets.tobytes(),
            ("reach", self.answer): self.reach.tobytes(),
            ("scores", certificate.input_hash): hash(self.scores.tobytes()),
        }

    def explain(self, certificate: Certificate, text: Any = None) -> Explanation:
        """The margin, the tokens that carry it, and what one edit more can do."""
        plan: Any = certificate.plan
        rival, margin = self.rivals(plan.threat)[0]
        margin, word = self._segment_margin() or margin, noun(certificate.unit)
        lead = margin.slack + 1
        ahead = f"The score of “{certificate.label}” is ahead of “{certificate.classes[rival]}” by {lead:,}"
        if self.segment is not None:
            start, end = self.segment
            around = (
                f"stays no matter what surrounds them, also with {plural(certificate.padded_radius, 'edit')} inside"
            )
            ahead = (
                f"The {word}s {start + 1:,} to {end:,} give this answer alone"
                + (
                    f": it {around}, or with any text at {plural(certificate.positions, 'position')}"
                    if certificate.padding
                    else ""
                )
                + f". Their score is above the threshold by {lead:,}"
            )
        sentences = [f"{ahead}, of which an inserted {word} costs at most {100 * margin.insertion / lead:.3g}%."]
        tokens: Tokens = certificate.tokens or ()
        if not tokens and text is not None and certificate.unit is not None:
            tokens = unit_from_dict(certificate.unit).split(text)
        is_known = self._segments is None and certificate.radius < plan.threat.search_limit(self.length)
        edits = self._worst(margin, plan.threat, certificate.radius + 1) if is_known else []
        if tokens and self.touchable is None:
            order = np.argsort(-margin.deletion, kind="stable")[:_NAMED_TOKENS]
            shown = [
                f"{readable(tokens[i])} (+{100 * margin.deletion[i] / lead:.3g}%)"
                for i in order
                if margin.deletion[i] > 0
            ]
            if shown:
                sentences.append(f"The {word}s with the largest parts of this lead: {', '.join(shown)}.")
        if edits and self.ngram == 1:
            named = [f"“{readable(tokens[e.position])}”" for e in edits if tokens and e.position is not None]
            more = f", beginning with {', '.join(named[:_NAMED_TOKENS])}" if named else ""
            sentences.append(f"The radius is the true one: {plural(len(edits), 'edit')} can be enough{more}.")
        characters = certificate.character_radius
        second = next(number for number in np.argsort(-self.totals, kind="stable") if number != self.answer)
        return Explanation(
            sentences,
            {
                "radius in characters": None if characters is None or characters < 0 else characters,
                "score above the next class": f"{int(self.totals[self.answer] - self.totals[second]):,}"
                if self.segment is None
                else None,
            },
            margins.of_tokens(self.scores[:, self.answer] - self.scores[:, second], self.ngram).tolist(),
            {
                "margin": {
                    "rival": certificate.classes[rival],
                    "slack": margin.slack,
                    "insertion": margin.insertion,
                    "deletion": margin.deletion.tolist(),
                    "counterexample": certificate.counterexample(),
                }
            },
        )


def exact_certificate(
    scores: npt.ArrayLike,
    offsets: npt.ArrayLike,
    bound: float,
    *,
    threshold: float = 0,
    classes: Sequence[Any] | None = None,
    ops: str | Iterable[str] | Threat = "edit",
    unit: str | None = None,
    touchable: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
) -> Certificate:
    """The certificate of any additive model, whose prediction is the class with the largest ``offset + Σ scores``.

    Sound for every attacker who edits tokens, with any insertions; complete if some token has the largest
    allowed score for every rival and the smallest for the answer. Integers with an integer bound are used as they are.
    Other numbers are rounded to multiples of a power of two, and the rounding error is subtracted, so the certificate
    holds for sums of the given numbers without rounding.

    Args:
        scores: of the tokens of the input, shape (tokens, classes); (tokens,) or (tokens, 1) for two classes with one
            score, which answers class 1 if the sum is above the threshold.
        offsets: shape (classes,), or a number for one score.
        bound: the largest absolute value of the score of any token, seen or unseen.
        threshold: of a single score.
        classes: the labels; 0, 1, ... by default.
        ops: the operations of the attacker.
        unit: "word", "char" or "byte", for a character radius.
        touchable: which tokens the attacker can edit, shape (tokens,); None for all.

    >>> certificate = exact_certificate([3, 2, 2, -1], 0, bound=3)
    >>> certificate.label, certificate.radius, certificate.radius_for("del"), certificate.frontier()
    (1, 0, 2, [(0, 1, 0), (2, 0, 0)])
    """
    values, base = _numbers("scores", scores), np.atleast_1d(_numbers("offsets", offsets))
    is_single = base.shape == (1,)
    if values.size == 0 or (values.ndim == 1 and is_single):
        values = values.reshape(-1, base.size)
    if base.ndim != 1 or values.ndim != 2 or values.shape[1] != base.size:
        raise ValueError(
            f"scores must have a row for each token and a column for each of the {base.size} offsets, got the shape "
            f"{values.shape}"
        )
    if threshold and not is_single:
        raise ValueError(f"threshold must be 0 unless there is a single score, got {threshold} for {base.size} classes")
    labels = tuple(range(max(2, base.size)) if classes is None else check_classes(classes))
    if len(labels) != max(2, base.size):
        raise ValueError(f"classes must hold {max(2, base.size)} labels, got {len(labels)}")
    check_real("threshold", threshold, accepted="a finite number", least=-1e300, most=1e300)
    limit = check_real("bound", bound, accepted="a positive number", least=0.0, most=1e300, open_ends=True)
    if values.size and (largest := np.abs(values).max()) > limit:
        raise ValueError(f"bound must be at least the largest score in size, {largest}, got {bound}")
    if values.dtype.kind == base.dtype.kind == "i" and limit.is_integer():
        exponent, rounding = 0, 0
        shift, most = floor(threshold), int(limit)  # a sum of integers exceeds both thresholds or none
    else:
        exponent, rounding = BITS - frexp(max(limit, abs(threshold), float(np.abs(base).max())))[1], 1
        values, base = (np.rint(np.ldexp(array, exponent)).astype(np.int64) for array in (values, base))
        shift, most = round(ldexp(threshold, exponent)), ceil(ldexp(limit, exponent))
    if is_single:
        values, base = np.pad(values, ((0, 0), (1, 0))), np.array([0, int(base[0]) - shift])
    evidence = Scores(
        values,
        base,
        np.full(len(labels), most if is_single else 2 * most),
        touchable=None if touchable is None else as_array("touchable", touchable, (len(values),)),
        rounding=rounding,
    )
    margins.check_sums(len(values), evidence.scores, evidence.offsets, evidence.reach)
    return Certificate(
        label=labels[evidence.answer],
        classes=labels,
        plan=ScoresPlan(threat=as_threat(ops)),
        evidence=evidence,
        unit=None if unit is None else check_unit(unit).to_dict(),
    )


def _numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Integers or finite floats as an array, exact in double precision; an array without elements holds integers."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have rows of the same length, got {values!s:.60}") from None
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers, got {values!s:.60}")
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    if int(array.max()) > 2**53 or int(array.min()) < -(2**53):
        raise ValueError(f"{name} must be of at most 2**53 in size, got {array.max()}")
    return array.astype(np.int64)


def as_array(name: str, values: Any, shape: tuple[int, ...]) -> Any:
    """The integers, or for ``touchable`` the truth values, of a file; None for what may be missing."""
    if values is None and name in ("touchable", "replacements"):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have rows of the same length") from None
    kind = "b" if name == "touchable" else "i"
    if array.size == 0 and 0 in shape:
        array = np.zeros(shape, dtype=np.bool_ if kind == "b" else np.int64)
    if array.dtype.kind != kind or array.shape != shape:
        what = "truth values" if kind == "b" else "integers of 64 bits"
        raise ValueError(f"{name} must be {what} of the shape {shape}, got the shape {array.shape}")
    return array
