"""A certificate: the prediction for one input, the evidence for it, and the radius that follows by a plan."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from math import isfinite
from typing import Any

from adaptdel.certification.evidence import EVIDENCE, Evidence, Explanation, Plan, plan_from_dict
from adaptdel.core.checks import LARGEST_LENGTH, check_format, check_int, check_list, check_names, check_text
from adaptdel.core.plain import to_plain
from adaptdel.core.threat import ROBERTA_VOCABULARY, Threat, as_threat
from adaptdel.files import parse
from adaptdel.tables import notebook_table
from adaptdel.text.units import Tokens, content_key, unit_from_dict

FORMAT = 2
SHOWN_TOKENS = 500  # in a notebook
_FIELDS = (
    "format", "label", "classes", "length", "unit", "model_hash", "input_hash", "plan", "evidence",
)  # fmt: skip


@dataclass(frozen=True, repr=False, eq=False)
class Certificate:
    """The prediction for one input, and what is proved about it.

    No attacker with up to ``radius`` edits can change the label, with probability at least 1 − ``alpha``. The radius
    follows from the raw evidence, so anyone can derive it again without the model, or for another threat model.

    Attributes:
        label: the prediction.
        classes: the labels, in the order of the class numbers.
        plan: what evidence and radius depend on besides the input and the classifier.
        evidence: what was observed.
        unit: what a token is, or None for a unit that has no description.
        model_hash: a hash of the classifier, or "".
        known_hash: a hash of the tokens, if known; see `input_hash`.
        tokens: the tokens, in a certificate that comes from a model; files do not contain them.
        rewrite: turns edits into a text, in a certificate from a model that supports it.
    """

    label: Any
    classes: tuple[Any, ...]
    plan: Plan
    evidence: Evidence
    unit: Mapping[str, Any] | None = None
    model_hash: str = ""
    known_hash: str = ""
    tokens: Tokens | None = field(default=None)
    rewrite: Callable[..., Any] | None = field(default=None)

    def __repr__(self) -> str:
        radius = "abstained" if self.abstained else f"radius={self.radius}"
        alpha = f", alpha={self.alpha:g}" if self.alpha else ""
        covers = ", covers every text of this length" if self.covers_every_text else ""
        return f"<Certificate {self.label!r}: {radius}, length={self.length}{alpha}{covers}>"

    def _repr_html_(self) -> str:
        explanation = self.explain()
        values = {
            "radius": "abstained" if self.abstained else self.radius,
            "edits": str(self.plan.threat).replace(",", ", "),
            **(
                {"with any text before and after": self.padded_radius, "any text at positions": self.positions}
                if self.padding
                else {}
            ),
            **explanation.figures,
            "length": f"{self.length} tokens",
            "confidence": f"{100 * (1 - self.alpha):g}%" if self.alpha else "certain",
        }
        table, weights = notebook_table(f"Certificate: {self.label}", values), explanation.weights
        if self.tokens is None or not self.length or weights is None:
            return table
        most = max(1, *map(abs, weights))  # green where a token speaks for the label, red where it speaks against it
        shown = [
            f'<span title="{weight}" style="background:rgba({"0,150,80" if weight > 0 else "210,50,40"},'
            f'{0.6 * abs(weight) / most:.2f})">{escape(str(token))}</span>'
            for token, weight in zip(self.tokens[:SHOWN_TOKENS], weights, strict=False)
        ]
        if self.segment is not None and self.segment[0] < len(shown):
            start, end = self.segment[0], min(self.segment[1], len(shown))
            title = "these tokens decide alone, no matter what stands before and after"
            shown[start] = f'<mark title="{title}" style="background:none;border-bottom:2px solid">{shown[start]}'
            shown[end - 1] += "</mark>"
        return f"{table}<p>{' '.join(shown)}{' …' if self.length > SHOWN_TOKENS else ''}</p>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((label_key(self.label), self.input_hash, self.radius))

    @property
    def kind(self) -> str:
        """The kind of evidence."""
        return self.evidence.kind

    @property
    def length(self) -> int:
        """The number of tokens of the input."""
        return self.evidence.length

    @property
    def answer(self) -> int:
        """The class number of the label."""
        return self.evidence.predicted(self.plan)

    @property
    def alpha(self) -> float:
        """The probability that the certificate is wrong; 0 if nothing was sampled."""
        return self.evidence.alpha

    @property
    def calls(self) -> int:
        """Calls of the base classifier."""
        return self.evidence.calls

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations of the attacker."""
        return self.plan.ops

    @property
    def score(self) -> float | None:
        """The share of votes for the label, or its exact probability; None without votes."""
        return self.evidence.share(self.plan)

    @cached_property
    def input_hash(self) -> str:
        """A hash of the tokens; "" if they are not known."""
        return self.known_hash or ("" if self.tokens is None else content_key(self.tokens).hex())

    @cached_property
    def radius(self) -> int:
        """The number of edits that cannot change the prediction; −1 if not even the prediction itself is certain."""
        return self.evidence.radius(self.plan, self.plan.threat)

    def radius_for(self, threat: Threat | str | Iterable[str]) -> int:
        """The radius for another threat model. Radii for several threat models hold simultaneously."""
        return self.evidence.radius(self.plan, as_threat(threat))

    @cached_property
    def padded_radius(self) -> int:
        """The radius with any text before and after the input as well; −1 if such text may change the prediction."""
        return self.radius if self.plan.threat.padding else self.radius_for(replace(self.plan.threat, padding=True))

    @property
    def padding(self) -> bool:
        """Whether the prediction stays the same no matter what text is added before and after."""
        return self.evidence.radius_within(self.plan, Threat(self.ops, padding=True), 0) >= 0

    @property
    def segment(self) -> tuple[int, int] | None:
        """Start and end (exclusive) of tokens that decide alone, no matter what surrounds them; None if none do."""
        return self.evidence.segment

    @property
    def positions(self) -> int:
        """The number of positions that withstand inserted text, besides padding; −1 if padding alone is too much."""
        return self.evidence.positions(self.plan)

    @cached_property
    def character_radius(self) -> int | None:
        """The number of edited characters that cannot change the prediction; None for units without characters."""
        return self.evidence.character_radius(self.plan, self.unit)

    @property
    def abstained(self) -> bool:
        """Whether the prediction is not certain even for the unedited input."""
        return self.radius < 0

    @property
    def covers_every_text(self) -> bool:
        """Whether the radius reaches every text of this length, so that the answer depends on the length alone.

        Such a certificate is valid. It shows that the classifier cannot tell texts of this length apart, not that it is
        robust.
        """
        needed = None if self.evidence.restricted(self.plan) else self.plan.threat.covering_radius(self.length)
        return needed is not None and self.radius >= needed

    def frontier(self) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""
        return self.evidence.frontier(self.plan)

    def log10_cardinality(self, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs in the certified region."""
        return self.evidence.log10_region(self.plan, self.radius, vocab_size)

    def explain(self, text: Any = None) -> Explanation:
        """Where the radius comes from; with the text, which tokens carry it."""
        return self.evidence.explain(self, text)

    def counterexample(self) -> Any:
        """A text that is ``radius + 1`` edits away and gets a different label; None if none is known.

        It takes the worst edits, and writes the known token that supports the rival most. If that token changes the
        margin by less than the certificate assumes, the edits may not be enough. Only an exact certificate that comes
        from a model has one.
        """
        return next(iter(self.worst_texts(self.radius + 1)), None)

    def worst_texts(self, edits: int) -> list[Any]:
        """Texts that this many of the worst edits lead to, if they are known and get a different label."""
        return [] if self.rewrite is None else self.evidence.worst_texts(self.plan, self.rewrite, edits)

    def rederive(self, **settings: Any) -> Certificate:
        """The certificate from the same evidence for another threat model (``ops``).

        From votes also at another error level (``alpha``) or with another ``bound``.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        plan = self.plan.changed(**given)
        return replace(self, plan=plan, evidence=self.evidence.under(plan, self.plan))

    def derived(self) -> dict[str, Any]:
        """What follows from the evidence."""
        derived = {"radius": self.radius, "character_radius": self.character_radius, "alpha": self.alpha}
        return derived | self.evidence.claims(self.plan)

    @property
    def digest(self) -> str:
        """A hash of everything that `to_dict` holds."""
        return str(self.to_dict()["digest"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the raw evidence, what is derived from it, and a digest of all of it."""
        values = {
            "format": FORMAT,
            "label": to_plain(self.label),
            "classes": to_plain(self.classes),
            "length": self.length,
            "unit": to_plain(self.unit),
            "model_hash": self.model_hash,
            "input_hash": self.input_hash,
            "plan": self.plan.to_dict(),
            "evidence": self.evidence.to_dict(),
            "derived": self.derived(),
        }
        values["digest"] = digest_of(values)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`. Derived values are not read but derived again.

        Raises ValueError if a field is missing, unknown, of a wrong type, out of range or inconsistent with another.
        """
        check_format(values.get("format") if isinstance(values, Mapping) else None, FORMAT)
        check_names("a certificate", values, _FIELDS, ("derived", "digest"))
        plan = plan_from_dict(values["plan"])
        kind = EVIDENCE.get(plan.kind)
        classes = tuple(check_classes(values["classes"]))
        keys = [label_key(label) for label in classes]
        if label_key(values["label"]) not in keys:
            raise ValueError(f"the label must be one of the classes, got {values['label']!r:.60}")
        length = check_int("length", values["length"], most=LARGEST_LENGTH)
        check_names("evidence", values["evidence"], (*kind.columns, *kind.restrictions))
        answer = keys.index(label_key(values["label"]))
        evidence = kind.from_dict(values["evidence"], plan, answer=answer, length=length)
        certificate = cls(
            label=classes[answer],
            classes=classes,
            plan=plan,
            evidence=evidence,
            unit=values["unit"],
            model_hash=check_text("model_hash", values["model_hash"]),
            known_hash=check_text("input_hash", values["input_hash"]),
        )
        certificate.check_fields()
        return certificate

    def check_fields(self) -> None:
        """Raise unless every field is in its range and is consistent with the others.

        A certificate from a model always is. `adaptdel.certification.verify` checks whether the claims follow.
        """
        if len(self.classes) < 2:
            raise ValueError(f"classes must hold at least 2 labels, got {len(self.classes)}")
        if not re.fullmatch("([0-9a-f]{64})?", self.known_hash):
            raise ValueError(f"input_hash must be 64 hexadecimal digits, got {self.known_hash!r:.70}")
        if self.unit is not None:
            unit_from_dict(self.unit)
        ngram = getattr(self.plan, "ngram", 1)
        if ngram > 1 and (self.unit or {}).get("kind") not in ("char", "byte"):
            raise ValueError(f"ngram must be 1 unless the unit is char or byte, got {ngram} for {self.unit!r:.60}")
        if self.plan.decision_threshold is not None and len(self.classes) != 2:
            raise ValueError("threshold must be None unless there are two classes")
        self.evidence.check_shape(len(self.classes))
        if label_key(self.label) != label_key(self.classes[self.answer]):
            raise ValueError(f"the label is not the answered class: it must be {self.classes[self.answer]!r}")

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Rebuild a certificate from `to_json`."""
        return cls.from_dict(parse(text))


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
    value = to_plain(label)
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) or (isinstance(part, float) and not isfinite(part)):
            raise ValueError(f"a label must be a string, a finite number, true, false or null, got {part!r}")
    return json.dumps(value)


def digest_of(values: Mapping[str, Any]) -> str:
    """A hash of everything in a certificate's dictionary except the digest."""
    content = {name: value for name, value in values.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
