"""A certificate: the raw votes on an input, and the radius that follows from them by a `Rule`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from adaptdel.core.bounds import check_bound, complement
from adaptdel.core.checks import (
    LARGEST_LENGTH,
    check_alpha,
    check_int,
    check_list,
    check_names,
    check_probability,
    check_text,
)
from adaptdel.core.confidence import Looks, exact_bounds, vote_bounds
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.core.radius import certified_frontier, certified_radius, check_noise, table, uses_table
from adaptdel.core.threat import CHARACTERS, OPERATIONS, ROBERTA_VOCABULARY, Threat, log10_cardinality
from adaptdel.files import parse
from adaptdel.settings import CERTIFICATION
from adaptdel.tables import notebook_table, percent
from adaptdel.text.units import unit_from_dict

FORMAT = 1
MOST_VOTES = 2**40
_RAW = (
    "label", "classes", "answer", "length", "selection", "votes", "exact", "threshold", "seed", "bound", "unit",
    "model_hash", "input_hash",
)  # fmt: skip

_FIELDS = ("format", *_RAW, "noise", "ops", "looks")
CLAIMS = ("radius", "p1", "p2", "alpha")


@dataclass(frozen=True)
class Rule:
    """How votes are turned into a prediction and bounds into a radius, in sampling, certificates and verification.

    Attributes:
        noise: the noise of the votes.
        ops: the operations of the attacker.
        bound: "tight" or "paper".
        threshold: a decision threshold for two classes, or None.
    """

    noise: Noise
    ops: tuple[str, ...]
    bound: str = CERTIFICATION.bound
    threshold: float | None = CERTIFICATION.threshold

    @cached_property
    def threat(self) -> Threat:
        """The threat model."""
        return Threat(self.ops)

    def check_classes(self, classes: Sequence[object]) -> None:
        """Raise unless there are at least two classes, and exactly two where there is a threshold."""
        if len(classes) < 2:
            raise ValueError(f"classes must hold at least 2 labels, got {list(classes)!r}")
        if self.threshold is not None and len(classes) != 2:
            raise ValueError(f"threshold must be None for {len(classes)} classes, got {self.threshold}")

    def predicted_class(self, shares: Sequence[Any], total: Any = 1) -> int:
        """The class that votes or exact probabilities predict: by the decision threshold, or the most probable one.

        Args:
            shares: votes or probabilities by class; without a threshold, a tie goes to the lowest class number.
            total: their sum.
        """
        if self.threshold is not None:
            return int(shares[1] > self.threshold * total)
        return max(range(len(shares)), key=lambda number: (shares[number], -number))

    def threshold_probability(self, p1: float, label: int) -> float | None:
        """With a threshold: the bound on the probability of class 1; None if it is not on the side of the label."""
        p = p1 if label == 1 else complement(p1)
        return p if self.threshold is not None and (p > self.threshold) == (label == 1) else None

    def radius(
        self, p1: float, p2: float, *, label: int, length: int, is_binary: bool, threat: Threat | None = None
    ) -> int:
        """The radius for bounds on the probabilities of the predicted class and of its strongest rival."""
        threat = threat or self.threat
        if self.threshold is not None:
            p = self.threshold_probability(p1, label)
            if p is None:
                return -1
            return certified_radius(
                p, length=length, noise=self.noise, ops=threat, bound=self.bound, threshold=self.threshold
            )
        rival = None if is_binary else p2  # of two classes, 1 − p1 bounds the other one
        if rival is None and uses_table(self.noise, self.bound):  # the look-up without argument checks, for speed
            return table(length, self.noise, threat).radius(1 - p1) if p1 > 0.5 else -1
        return certified_radius(p1, rival, length=length, noise=self.noise, ops=threat, bound=self.bound)


@dataclass(frozen=True, repr=False)
class Certificate:
    """The raw votes on one input, and what they prove.

    The radius is derived from the votes and never stored without them. So it can be derived again without the model, at
    another error level, with another bound or for another threat model.

    Attributes:
        label: the prediction.
        classes: the labels, in the order of the counts.
        answer: the index of the label in the classes.
        length: the number of tokens of the input.
        noise: the noise of the votes.
        selection: the votes that selected the label, shape (classes,); they bound nothing.
        looks: the planned looks at the estimation votes; None if every copy was enumerated.
        votes: the votes at each look that was taken, shape (looks taken, classes).
        exact: if enumerated, choices of kept tokens by class and number kept, shape (classes, length + 1).
        ops: the operations of the attacker.
        bound: "tight" or "paper".
        threshold: a decision threshold for two classes, or None.
        seed: the seed of the noise; None if it is kept secret, as a server does.
        unit: what a token is, or None for a unit that has no description.
        model_hash: a hash of the base classifier, or "".
        input_hash: a hash of the tokens.
    """

    label: Any
    classes: tuple[Any, ...]
    answer: int
    length: int
    noise: Noise
    selection: tuple[int, ...]
    looks: Looks | None
    votes: tuple[tuple[int, ...], ...]
    exact: tuple[tuple[int, ...], ...] | None
    ops: tuple[str, ...] = ("del", "ins", "sub")
    bound: str = "tight"
    threshold: float | None = None
    seed: int | None = 0
    unit: Mapping[str, Any] | None = None
    model_hash: str = ""
    input_hash: str = ""

    def __repr__(self) -> str:
        radius = "abstained" if self.abstained else f"radius={self.radius}"
        covers = ", covers every text of this length" if self.covers_every_text else ""
        return f"<Certificate {self.label!r}: {radius}, length={self.length}, alpha={self.alpha:g}{covers}>"

    def _repr_html_(self) -> str:
        values = {
            "radius": "abstained" if self.abstained else self.radius,
            "edits": ", ".join(self.ops),
            "votes for the label": percent(self.score),
            "length": f"{self.length} tokens",
            "confidence": f"{100 * (1 - self.alpha):g}%",
        }
        return notebook_table(f"Certificate: {self.label}", values)

    @property
    def alpha(self) -> float:
        """The probability that the certificate is wrong; 0 if every copy was enumerated."""
        return 0.0 if self.looks is None else self.looks.alpha

    @property
    def is_binary(self) -> bool:
        """Whether there are exactly two classes, so that one bound is enough."""
        return len(self.classes) == 2

    @property
    def rests_on_p1(self) -> bool:
        """Whether 1 minus the bound on the label is the bound on its only rival."""
        return self.is_binary and self.exact is None

    @property
    def rule(self) -> Rule:
        """How bounds are turned into a radius."""
        return Rule(self.noise, self.ops, self.bound, self.threshold)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """A lower bound on the probability of the label and an upper bound on that of its strongest rival."""
        if self.exact is not None:
            return exact_bounds(self.exact, self.answer, self.noise, self.length)
        assert self.looks is not None
        return vote_bounds(self.looks, self.votes, self.answer)

    @cached_property
    def radius(self) -> int:
        """The number of edits that cannot change the prediction; −1 if not even the prediction itself is certain."""
        return self.radius_for(self.ops)

    @property
    def certified_ops(self) -> tuple[str, ...]:
        """The operations with a radius."""
        return self.noise.certified_ops

    @property
    def abstained(self) -> bool:
        """Whether not even the prediction for the unedited input is certain."""
        return self.radius < 0

    @property
    def covers_every_text(self) -> bool:
        """Whether the radius reaches every text of this length, so that the answer depends on the length alone.

        Such a certificate is valid. It shows that the classifier cannot tell texts of this length apart, not that it is
        robust.
        """
        needed = None if self.noise.vocabulary else self.rule.threat.covering_radius(self.length)
        return needed is not None and self.radius >= needed

    @property
    def score(self) -> float:
        """The share of votes for the label, or its exact probability."""
        if self.exact is not None:
            return self.bounds[0]
        counts = self.votes[-1]
        return counts[self.answer] / max(sum(counts), 1)

    @property
    def calls(self) -> int:
        """The number of votes, including enumerated copies."""
        if self.exact is not None:
            return sum(map(sum, self.exact))
        return sum(self.selection) + (sum(self.votes[-1]) if self.votes else 0)

    def radius_for(self, ops: str | Iterable[str]) -> int:
        """The radius for another threat model, from the same votes.

        Radii for several threat models hold simultaneously, because the bounds do not depend on the threat model.
        """
        return self._radius(Threat(ops))

    def _radius(self, threat: Threat) -> int:
        is_binary = self.rests_on_p1
        return self.rule.radius(*self.bounds, label=self.answer, length=self.length, is_binary=is_binary, threat=threat)

    @cached_property
    def character_radius(self) -> int | None:
        """The number of character edits that cannot change the prediction; None for units without characters.

        A character is a Unicode code point. For words see `adaptdel.core.threat.CharacterThreat`. Under a noise that
        does not certify insertions and deletions, as masking, it is 0: a character can split a word. Under a noise with
        a ball of its own it is not known.
        """
        if self.noise.has_own_ball():
            return None
        if len(self.noise.certified_ops) < len(OPERATIONS):
            return None if units_per_character(self.unit) is None else min(self.radius, 0)
        if (self.unit or {}).get("kind") == "word":
            return self._radius(CHARACTERS)
        units = units_per_character(self.unit)
        return None if units is None else max(-1, self._radius(Threat()) // units)

    def frontier(self) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""
        p1, rival = self.bounds[0], None if self.rests_on_p1 else self.bounds[1]
        if self.threshold is not None:
            p = self.rule.threshold_probability(p1, self.answer)
            if p is None:
                return []
            p1, rival = p, None
        return certified_frontier(
            p1,
            rival,
            length=self.length,
            noise=self.noise,
            ops=self.ops,
            bound=self.bound,
            threshold=self.threshold,
        )

    def log10_cardinality(self, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs in the certified region, which the noise may limit to a vocabulary."""
        if self.noise.vocabulary is not None:
            vocab_size = max(1, len(set(self.noise.vocabulary)))
        return log10_cardinality(self.radius, length=self.length, ops=self.ops, vocab_size=vocab_size)

    def rederive(
        self, *, alpha: float | None = None, ops: str | Iterable[str] | None = None, bound: str | None = None
    ) -> Certificate:
        """The certificate from the same votes at another error level, for another threat model or with another bound.

        The error level is distributed over the planned looks in the proportions of the plan.
        """
        looks = self.looks
        if alpha is not None and looks is not None:
            scale = check_alpha(alpha) / looks.alpha
            looks = Looks(looks.sizes, tuple(level * scale * (1 - 2.0**-50) for level in looks.alphas))
        return replace(
            self,
            looks=looks,
            ops=self.ops if ops is None else Threat(ops).ops,
            bound=self.bound if bound is None else check_bound(bound),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the raw votes, what is derived from them, and a digest of all of it."""
        values = self.raw() | {"derived": self.derived()}
        values["digest"] = digest(values)
        return values

    def derived(self) -> dict[str, Any]:
        """What follows from the votes."""
        return {"radius": self.radius, "p1": self.bounds[0], "p2": self.bounds[1], "alpha": self.alpha}

    def evidence(self) -> dict[str, Any]:
        """The columns of a run that the radius follows from."""
        looks = self.looks
        return {
            "rate": self.noise.share_removed(self.length),
            "selection": list(self.selection),
            "look_sizes": [] if looks is None else list(looks.sizes),
            "look_alphas": [] if looks is None else list(looks.alphas),
            "votes": [list(counts) for counts in self.votes],
            "exact": None if self.exact is None else [list(counts) for counts in self.exact],
            "tokens": json.dumps(self.noise.to_dict()["tokens"]) if self.noise.sees_tokens() else None,
            "p1": self.bounds[0],
            "p2": self.bounds[1],
        }

    def raw(self) -> dict[str, Any]:
        """Plain values of everything that is not derived."""
        values: dict[str, Any] = {"format": FORMAT} | {name: plain(getattr(self, name)) for name in _RAW}
        values["noise"] = self.noise.to_dict()
        values["ops"] = list(self.ops)
        values["looks"] = (
            None if self.looks is None else {"sizes": list(self.looks.sizes), "alphas": list(self.looks.alphas)}
        )
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`. Derived values are not read but derived again.

        Raises ValueError if a field is missing, unknown, of a wrong type, out of range or inconsistent with another.
        """
        check_names("a certificate", values, _FIELDS, ("derived", "digest"))
        if check_int("format", values["format"]) != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {values['format']!r}")
        looks, ops = values["looks"], values["ops"]
        if looks is not None:
            check_names("looks", looks, ("sizes", "alphas"))
        if not isinstance(ops, (list, tuple)):
            raise ValueError(f"ops must be a list of operations, got {ops!r}")
        raw = {name: _tuples(values[name]) for name in _RAW if name != "unit"}
        certificate = cls(
            **raw,
            unit=values["unit"],
            noise=noise_from_dict(values["noise"]),
            ops=Threat(ops).ops,
            looks=None if looks is None else Looks(looks["sizes"], looks["alphas"]),
        )
        if len(certificate.ops) != len(ops):
            raise ValueError(f"ops must name each operation once, got {list(ops)}")
        check_certificate(certificate)
        return certificate

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Rebuild a certificate from `to_json`."""
        return cls.from_dict(parse(text))


def units_per_character(unit: Mapping[str, Any] | None) -> int | None:
    """How many tokens an edited character can change; None for units without characters.

    >>> [units_per_character({"kind": kind}) for kind in ("word", "char", "byte", "chunk")]
    [1, 1, 4, None]
    """
    return {"word": 1, "char": 1, "byte": 4}.get((unit or {}).get("kind", ""))


def check_certificate(certificate: Certificate) -> None:
    """Raise unless every field has its type, is in its range and is consistent with the others.

    A certificate from `Certifier` always is. `adaptdel.certification.verify` checks whether the claims follow from the
    votes.
    """
    classes = check_classes(certificate.classes)
    if len(classes) < 2:
        raise ValueError(f"classes must hold at least 2 labels, got {len(classes)}")
    check_int("length", certificate.length, most=LARGEST_LENGTH)
    check_int("answer", certificate.answer, most=len(classes) - 1)
    if certificate.seed is not None:
        check_int("seed", certificate.seed, most=2**63 - 1)
    if label_key(certificate.label) != label_key(classes[certificate.answer]):
        raise ValueError(f"the label is not the answered class: it must be {classes[certificate.answer]!r}")
    check_bound(certificate.bound)
    check_noise(certificate.noise, Threat(certificate.ops))
    check_text("model_hash", certificate.model_hash)
    if not re.fullmatch("([0-9a-f]{64})?", check_text("input_hash", certificate.input_hash)):
        raise ValueError(f"input_hash must be 64 hexadecimal digits, got {certificate.input_hash!r}")
    if certificate.unit is not None:
        unit_from_dict(certificate.unit)
    if certificate.threshold is not None:
        check_probability("threshold", certificate.threshold)
        if not certificate.is_binary:
            raise ValueError("threshold must be None unless there are two classes")
    _check_counts("selection", (certificate.selection,), len(classes))
    _check_counts("votes", certificate.votes, len(classes))
    if certificate.exact is None:
        _check_sampled(certificate)
    else:
        _check_enumerated(certificate, certificate.exact)


def check_classes(values: Any) -> list[Any]:
    """Return the classes of a certificate or of a run, which must be different labels.

    1, true and 1.0 are different labels, as they are in JSON.
    """
    classes = check_list("classes", values, "labels")
    if not classes:
        raise ValueError("classes must hold at least one label, got none")
    keys: set[str] = set()
    for key in map(label_key, classes):
        if key in keys:
            raise ValueError(f"classes must differ from each other, got the label {key} more than once")
        keys.add(key)
    return classes


def label_key(label: Any) -> str:
    """The key that labels are compared by: their JSON, in which 1, true and 1.0 differ."""
    value = plain(label)
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) or (isinstance(part, float) and not isfinite(part)):
            raise ValueError(f"a label must be a text, a finite number, true, false or null, got {part!r}")
    return json.dumps(value)


def _check_counts(name: str, table: Any, width: int) -> None:
    """Raise unless every row of a table has a count for each class."""
    for row in check_list(name, table, "rows of counts"):
        counts = check_list(name, row, "counts")
        if len(counts) != width:
            raise ValueError(f"{name} must hold one count for each of the {width} classes, got {len(counts)}")
        for count in counts:
            check_int(name, count, most=MOST_VOTES)


def _check_sampled(certificate: Certificate) -> None:
    looks, taken = certificate.looks, len(certificate.votes)
    if looks is None:
        raise ValueError("there are neither looks nor enumerated copies: one of them must be given")
    if looks.total > MOST_VOTES:
        raise ValueError(f"sizes must be at most {MOST_VOTES}, got {looks.total}")
    if not 1 <= taken <= len(looks.sizes):
        raise ValueError(f"votes must hold a row for each look from the first on, 1 to {len(looks.sizes)}, got {taken}")
    if [sum(row) for row in certificate.votes] != list(looks.sizes[:taken]):
        raise ValueError("the votes do not add up to the planned looks")
    if any(b < a for earlier, later in pairwise(certificate.votes) for a, b in zip(earlier, later, strict=True)):
        raise ValueError("the votes fall from one look to the next")


def _check_enumerated(certificate: Certificate, exact: Any) -> None:
    rows = check_list("exact", exact, "rows of counts")
    if len(rows) != len(certificate.classes):
        raise ValueError(f"exact must hold a row for each of the {len(certificate.classes)} classes, got {len(rows)}")
    _check_counts("exact", list(zip(*(check_list("exact", row, "counts") for row in rows), strict=False)), len(rows))
    if any(len(row) != certificate.length + 1 for row in rows):
        raise ValueError("exact must hold a count for each class and each number of kept tokens")
    if certificate.looks is not None or certificate.votes or any(certificate.selection):
        raise ValueError("there must be no looks and no votes where every copy was enumerated")


def digest(values: Mapping[str, Any]) -> str:
    """A hash of everything in a certificate's dictionary except the digest."""
    content = {name: value for name, value in values.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON holds it: lists, no types of NumPy, and a text for any other object."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
