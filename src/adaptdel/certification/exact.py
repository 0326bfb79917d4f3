"""The exact certificate of an additive classifier: integer token scores, and the true radius that follows from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from math import ceil, floor, frexp, ldexp
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import (
    Certificate,
    check_classes,
    digest,
    label_key,
    plain,
    units_per_character,
)
from adaptdel.certification.sampling import content_key
from adaptdel.classifiers.features import check_ngram
from adaptdel.core import margins
from adaptdel.core.checks import BoolArray, IntArray, check_int, check_list, check_names, check_real, check_text
from adaptdel.core.margins import ANY_EDIT, Margin, TokenEdit
from adaptdel.core.threat import ROBERTA_VOCABULARY, Threat, log10_cardinality
from adaptdel.files import parse
from adaptdel.tables import notebook_table
from adaptdel.text.units import Tokens, check_unit, unit_from_dict

FORMAT = "adaptdel exact certificate 1"
BITS = 31  # of scores that were rounded to integers
SHOWN_TOKENS = 500  # in a notebook
_ARRAYS = ("scores", "offsets", "reach", "touchable", "replacements")
_OPTIONAL = ("touchable", "replacements")
_RAW = ("label", "classes", *_ARRAYS, "rounding", "ngram", "ops", "unit", "model_hash", "input_hash")

Rewrite = Callable[[Sequence[TokenEdit], int], Any]  # makes a text of edits for a rival class, or None


@dataclass(frozen=True, repr=False, eq=False)
class ExactCertificate:
    """The token scores of one input, and what they prove: with certainty, without noise and without votes.

    No attacker with up to ``radius`` edits can change the label, whatever tokens are inserted. If single tokens have
    scores, the certificate also covers every permutation of the tokens of these texts, since a sum has no order.

    The certificate is complete if a text ``radius + 1`` edits away has another label: the radius is the true one. Where
    `counterexample` gives such a text, it is. Where it gives None, either no number of edits changes the label (without
    insertions, if the radius is the length), or no known token reaches what ``reach`` assumes that a token can.

    Attributes:
        label: the prediction.
        classes: the labels, in the order of the scores.
        scores: of the tokens, in integers, shape (tokens, classes); of runs of tokens (tokens + ngram − 1, classes).
        offsets: what is added to their sum, shape (classes,).
        reach: how much more a token that the attacker writes can add to a class than to the label, shape (classes,).
        touchable: which tokens the attacker can edit, shape (tokens,); None for all.
        replacements: like ``reach`` for the tokens that may replace each token, shape (tokens, classes); None for any.
        rounding: how far the difference of two scores may be from that of the model; 0 for a model with integer scores.
        ngram: the number of neighbouring tokens that have a score together, see `adaptdel.core.margins`.
        ops: the operations of the attacker.
        unit: what a token is, or None for a unit that has no description.
        model_hash: a hash of the model, or "".
        known_hash: a hash of the tokens, if it is known; see `input_hash`.
        rewrite: makes a text of edits, in a certificate that comes from a model.
        tokens: the tokens, in a certificate that comes from a model; files do not hold them.
    """

    label: Any
    classes: tuple[Any, ...]
    scores: IntArray
    offsets: IntArray
    reach: IntArray
    touchable: BoolArray | None = None
    replacements: IntArray | None = None
    rounding: int = 0
    ngram: int = 1
    ops: tuple[str, ...] = ("del", "ins", "sub")
    unit: Mapping[str, Any] | None = None
    model_hash: str = ""
    known_hash: str = ""
    rewrite: Rewrite | None = field(default=None, compare=False)
    tokens: Tokens | None = field(default=None, compare=False)

    alpha = 0.0  # the probability that the certificate is wrong
    calls = 0  # votes
    score = None  # no share of votes
    certified_ops = ANY_EDIT.ops  # the operations with a radius

    def __repr__(self) -> str:
        shown = "abstained" if self.abstained else f"radius={self.radius}"
        return f"<ExactCertificate {self.label!r}: {shown}, length={self.length}>"

    def _repr_html_(self) -> str:
        characters = self.character_radius
        values = {
            "radius": "abstained" if self.abstained else self.radius,
            "edits": ", ".join(self.ops),
            "radius in characters": None if characters is None or characters < 0 else characters,
            "score above the next class": f"{self.margin:,}",
            "length": f"{self.length} tokens",
            "confidence": "certain",
        }
        return notebook_table(f"Exact certificate: {self.label}", values) + self._scored_text()

    def _scored_text(self) -> str:
        """The tokens in HTML, where known: green where they speak for the label, red where they speak against it."""
        if self.tokens is None or not self.length:
            return ""
        rival = next(number for number in np.argsort(-self.totals, kind="stable") if number != self.answer)
        scores = margins.of_tokens(self.scores[:, self.answer] - self.scores[:, rival], self.ngram)
        most = max(1, int(np.abs(scores).max()))
        shown = [
            f'<span title="{score}" style="background:rgba({"0,150,80" if score > 0 else "210,50,40"},'
            f'{0.6 * abs(score) / most:.2f})">{escape(str(token))}</span>'
            for token, score in zip(self.tokens[:SHOWN_TOKENS], scores.tolist(), strict=False)
        ]
        return f"<p>{' '.join(shown)}{' …' if self.length > SHOWN_TOKENS else ''}</p>"

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.scores) - self.ngram + 1

    @property
    def permutations(self) -> bool:
        """Whether all permutations are covered."""
        return self.ngram == 1

    @cached_property
    def input_hash(self) -> str:
        """A hash of the tokens; "" if they are not known."""
        return self.known_hash or ("" if self.tokens is None else content_key(self.tokens).hex())

    @cached_property
    def answer(self) -> int:
        """The index of the label in the classes."""
        return margins.answer(self.totals)

    @cached_property
    def totals(self) -> IntArray:
        """The score of every class, shape (classes,)."""
        return np.asarray(self.offsets + self.scores.sum(axis=0))

    @property
    def margin(self) -> int:
        """By how much the score of the label exceeds that of the next class."""
        return int(self.totals[self.answer] - np.delete(self.totals, self.answer).max())

    @cached_property
    def margins(self) -> list[Margin]:
        """The margin over each rival, and what edits can take from it."""
        return margins.margins(
            self.scores,
            self.offsets,
            self.answer,
            self.reach,
            touchable=self.touchable,
            replacements=self.replacements,
            rounding=self.rounding,
            ngram=self.ngram,
        )

    @cached_property
    def closest(self) -> tuple[int, Margin]:
        """The class number of the rival that the fewest edits reach, and the margin over it."""
        threat = Threat(self.ops)
        limit = threat.search_limit(self.length)
        rivals = [number for number in range(len(self.classes)) if number != self.answer]
        return min(zip(rivals, self.margins, strict=True), key=lambda pair: pair[1].radius(threat, limit))

    @cached_property
    def radius(self) -> int:
        """The number of edits that cannot change the label; −1 if rounding leaves the label itself in doubt."""
        return self.radius_for(self.ops)

    @property
    def abstained(self) -> bool:
        """Whether the label itself is in doubt, which rounded scores can cause and integer ones cannot."""
        return self.radius < 0

    def radius_for(self, ops: str | Iterable[str]) -> int:
        """The radius for another threat model."""
        return margins.radius(self.margins, Threat(ops), self.length)

    @cached_property
    def character_radius(self) -> int | None:
        """The number of character edits that cannot change the label; None for units without characters.

        A character is a Unicode code point. For words see `adaptdel.core.margins.Margin.character_radius`. For the
        unit "char" every character is a token. One character has at most 4 bytes in UTF-8. A table of synonyms does not
        limit this attacker.
        """
        if (self.unit or {}).get("kind") == "word":
            return margins.character_radius(self.margins, self.length)
        units = units_per_character(self.unit)
        return None if units is None else max(-1, replace(self, replacements=None).radius_for("edit") // units)

    @property
    def covers_every_text(self) -> bool:
        """Whether the radius reaches every text of this length; False if the edits are restricted."""
        needed = Threat(self.ops).covering_radius(self.length)
        return needed is not None and self.radius >= needed and not self._is_restricted

    @property
    def _is_restricted(self) -> bool:
        """Whether there are edits of the operations that the attacker may not make."""
        return self.touchable is not None or self.replacements is not None

    def frontier(self) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""
        return margins.frontier(self.margins, Threat(self.ops), self.length)

    def log10_cardinality(self, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs within the radius; permutations are not counted.

        If the edits are restricted, the number is not known, and only the input itself is counted.
        """
        radius = min(0, self.radius) if self._is_restricted else self.radius
        return log10_cardinality(radius, length=self.length, ops=self.ops, vocab_size=vocab_size)

    def worst_edits(self) -> tuple[list[TokenEdit], int]:
        """The fewest edits that could change the label, and the class number that it would change to.

        There are ``radius + 1`` edits, unless no number of edits can change the label: then the list is empty.
        """
        threat, (rival, margin) = Threat(self.ops), self.closest
        edits = [] if self.radius >= threat.search_limit(self.length) else margin.worst_edits(threat, self.radius + 1)
        if self.touchable is not None:  # a margin counts the touchable tokens only
            positions = np.flatnonzero(self.touchable)
            edits = [
                replace(edit, position=None if edit.position is None else int(positions[edit.position]))
                for edit in edits
            ]
        return edits, rival

    def counterexample(self) -> Any:
        """A text that is ``radius + 1`` edits away and gets another label; None if none is known.

        It takes the worst edits, and writes the known token that supports the rival most. If that token changes the
        margin by less than ``reach``, as in a vocabulary of few words or under a bound that no word reaches, the edits
        may not be enough.

        Only a certificate that comes from a model has one; one that was read from a file has to be made again.
        """
        edits, rival = self.worst_edits()
        return None if self.rewrite is None or not edits else self.rewrite(edits, rival)

    def rederive(self, *, ops: str | Iterable[str] | None = None) -> ExactCertificate:
        """The certificate for another threat model."""
        return replace(self, ops=self.ops if ops is None else Threat(ops).ops)

    def evidence(self) -> dict[str, Any]:
        """The columns of a run that the radius follows from: integers, all of them."""
        return {name: getattr(self, name).tolist() for name in ("scores", "offsets", "reach")}

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the integers, what is derived from them, and a digest of all of it."""
        values: dict[str, Any] = {"format": FORMAT} | {name: plain(getattr(self, name)) for name in _RAW}
        values["derived"] = {"radius": self.radius, "character_radius": self.character_radius}
        values["digest"] = digest(values)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExactCertificate:
        """Rebuild a certificate from `to_dict`. The radius is not read but derived again.

        Raises ValueError if a field is missing, unknown, of a wrong type or inconsistent with another.
        """
        check_names("a certificate", values, ("format", *_RAW), ("derived", "digest"))
        if values["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT!r}, got {values['format']!r:.60}")
        classes = tuple(check_classes(values["classes"]))
        if len(classes) < 2:
            raise ValueError(f"classes must hold at least 2 labels, got {len(classes)}")
        width, scores = len(classes), check_list("scores", values["scores"], "rows")
        ngram = check_int("ngram", values["ngram"], least=1, most=len(scores) + 1)
        length = len(scores) - ngram + 1
        shapes = {
            "scores": (len(scores), width),
            "offsets": (width,),
            "reach": (width,),
            "touchable": (length,),
            "replacements": (length, width),
        }
        arrays = {name: _array(name, values[name], shapes[name]) for name in _ARRAYS}
        used = (arrays[name] for name in ("scores", "offsets", "reach", "replacements"))
        margins.check_sums(length, *used, ngram=ngram)
        check_ngram(ngram, None if values["unit"] is None else unit_from_dict(values["unit"]))
        raw: dict[str, Any] = {name: check_text(name, values[name]) for name in ("model_hash", "input_hash")}
        if not re.fullmatch("([0-9a-f]{64})?", raw["input_hash"]):
            raise ValueError(f"input_hash must be 64 hexadecimal digits, got {raw['input_hash']!r:.60}")
        raw["known_hash"] = raw.pop("input_hash")
        raw |= {"rounding": check_int("rounding", values["rounding"], most=1), "unit": values["unit"], "ngram": ngram}
        certificate = cls(values["label"], classes, **arrays, ops=Threat(values["ops"]).ops, **raw)
        if label_key(certificate.label) != label_key(classes[certificate.answer]):
            raise ValueError(f"the label is not the answered class: it must be {classes[certificate.answer]!r}")
        gains = certificate.scores - certificate.scores[:, [certificate.answer]]
        if (gains.max(axis=0, initial=0) > certificate.reach).any():
            raise ValueError(
                "reach must be at least 0 and at least what each token of the text adds to a class over the label, got "
                f"{certificate.reach.tolist()!s:.60}"
            )
        return certificate

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ExactCertificate:
        """Rebuild a certificate from `to_json`."""
        return cls.from_dict(parse(text))


def certificate_from_dict(values: Mapping[str, Any]) -> Certificate | ExactCertificate:
    """A certificate of either kind, as `Certificate.from_dict` or `ExactCertificate.from_dict` rebuild it."""
    return (ExactCertificate if values.get("format") == FORMAT else Certificate).from_dict(values)


def exact_certificate(
    scores: npt.ArrayLike,
    offsets: npt.ArrayLike,
    bound: float,
    *,
    threshold: float = 0,
    classes: Sequence[Any] | None = None,
    ops: str | Iterable[str] = "edit",
    unit: str | None = None,
    touchable: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
) -> ExactCertificate:
    """The certificate of any additive model: its answer is the class with the largest ``offset + Σ scores``.

    Sound for every attacker who edits tokens, whatever tokens are inserted; complete if some token has the largest
    allowed score for every rival and the smallest for the answer. Integers with an integer bound are used as they are.
    Other numbers are rounded to multiples of a power of two, and the rounding error is taken off: the certificate holds
    for sums of the given numbers without rounding.

    Args:
        scores: of the tokens of the input, shape (tokens, classes); (tokens,) or (tokens, 1) for two classes with one
            score, which answers class 1 if the sum is above the threshold.
        offsets: shape (classes,), or a number for one score.
        bound: the largest absolute value of the score of any token, also one that was never seen.
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
    certificate = ExactCertificate(
        None,
        labels,
        values,
        base,
        np.full(len(labels), most if is_single else 2 * most),
        touchable=None if touchable is None else _array("touchable", touchable, (len(values),)),
        rounding=rounding,
        ops=Threat(ops).ops,
        unit=None if unit is None else check_unit(unit).to_dict(),
    )
    margins.check_sums(len(values), certificate.scores, certificate.offsets, certificate.reach)
    return replace(certificate, label=labels[certificate.answer])


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


def _array(name: str, values: Any, shape: tuple[int, ...]) -> Any:
    """The integers, or for ``touchable`` the truth values, of a file."""
    if values is None and name in _OPTIONAL:
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have rows of the same length") from None
    kind = "b" if name == "touchable" else "i"
    if array.size == 0:
        array = np.zeros(array.shape, dtype=np.bool_ if kind == "b" else np.int64).reshape(shape)
    if array.dtype.kind != kind or array.shape != shape:
        what = "truth values" if kind == "b" else "integers of 64 bits"
        raise ValueError(f"{name} must be {what} of the shape {shape}, got the shape {array.shape}")
    return array
