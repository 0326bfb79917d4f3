"""The rows of a run: their columns, conversion from and to certificates, checks of rows from a file, totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from adaptdel.certification.certificate import Certificate, check_certificate
from adaptdel.certification.exact import FORMAT as EXACT_FORMAT
from adaptdel.certification.exact import ExactCertificate
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.core.threat import Threat
from adaptdel.measures.class_measures import ClassTable, measure_classes
from adaptdel.measures.summary import Outcomes, measure

_COUNTS = pa.list_(pa.int64())

CERTIFICATES = pa.schema(
    [
        ("id", pa.string()),  # of `adaptdel.text.data.Row`: number and hash of the text; None if it has no text
        ("row", pa.int64()),  # in the file, from 1
        ("truth", pa.string()),  # the label in the file as `label_text` writes it, None if there is none
        ("answer", pa.string()),  # a class as `label_text` writes it
        ("correct", pa.bool_()),  # whether the answer is the label, certified or not
        ("abstained", pa.bool_()),  # whether the smoothed classifier abstains
        ("length", pa.int64()),  # tokens
        ("rate", pa.float64()),  # of deletion at that length; under masking, the fraction that is masked
        ("scores", pa.list_(_COUNTS)),  # of exact certificates: of each token, by class
        ("offsets", _COUNTS),  # what is added to their sum, by class
        ("reach", _COUNTS),  # how much more a token of the attacker can add to each class than to the answer
        ("selection", _COUNTS),  # of other certificates: votes by class that selected the answer
        ("look_sizes", _COUNTS),  # the planned looks; empty if every copy was enumerated
        ("look_alphas", pa.list_(pa.float64())),
        ("votes", pa.list_(_COUNTS)),  # votes by class at each look that was taken
        ("exact", pa.list_(_COUNTS)),  # copies by class and number kept, if all were enumerated
        ("p1", pa.float64()),  # a lower bound on the probability of the answer
        ("p2", pa.float64()),  # an upper bound on that of the runner-up
        ("radius", pa.int64()),  # -1 if abstained
        ("character_radius", pa.int64()),  # in edited characters, None for units without characters
        ("log10_cardinality", pa.float64()),  # of the certified region; minus infinity if abstained
        ("calls", pa.int64()),  # votes taken, enumerated copies included
        ("tokens", pa.string()),  # as JSON, if the noise sees them
        ("input_hash", pa.string()),  # of the tokens
        ("digest", pa.string()),  # of the certificate as a dictionary, including p1, p2 and radius
        ("problem", pa.string()),  # why there is no certificate, None if there is one
    ],
    metadata={"adaptdel": "certificates, format 1"},
)
Record = dict[str, Any]
RESTORE = "copy the run again from its source, or certify again"
# The columns that `Totals` counts.
TOTALLED = (
    "row", "truth", "answer", "correct", "abstained", "length", "radius", "character_radius", "calls", "problem",
)  # fmt: skip

# May be null in a row that has a certificate.
OPTIONAL = ("truth", "correct", "exact", "character_radius", "tokens", "problem")
INTEGERS = ("scores", "offsets", "reach")  # the evidence of exact certificates
VOTES = ("rate", "selection", "look_sizes", "look_alphas", "votes", "p1", "p2")  # that of others


def label_text(label: Any) -> str:
    r"""A label as the tables hold it: a text as it is, a number, true, false or null as JSON.

    A text that is JSON itself is quoted, so that `label_value` gives back the label and its type.

    >>> [label_text(label) for label in ("spam", 1, "1")]
    ['spam', '1', '"1"']
    """
    value = label.item() if hasattr(label, "item") else label
    if isinstance(value, str) and label_value(value) is value:
        return value
    return json.dumps(value, ensure_ascii=False)


def label_value(text: str) -> Any:
    """The label that `label_text` wrote.

    >>> [label_value(text) for text in ("spam", '"spam"', "1", '"1"')]
    ['spam', 'spam', 1, '1']
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def label_of(record: Mapping[str, Any]) -> Any:
    """The label of a row, which the column ``truth`` holds, or None."""
    return None if record["truth"] is None else label_value(record["truth"])


def record_of(certificate: Certificate | ExactCertificate, *, id: str, row: int, label: Any = None) -> Record:
    """A certificate as a row; ``label`` is None if the input has no label."""
    return dict.fromkeys(CERTIFICATES.names) | {
        "id": id,
        "row": row,
        "truth": None if label is None else label_text(label),
        "answer": label_text(certificate.label),
        "correct": None if label is None else label_text(label) == label_text(certificate.label),
        "abstained": certificate.abstained,
        "length": certificate.length,
        **certificate.evidence(),
        "radius": certificate.radius,
        "character_radius": certificate.character_radius,
        "log10_cardinality": certificate.log10_cardinality(),
        "calls": certificate.calls,
        "input_hash": certificate.input_hash,
        "digest": certificate.to_dict()["digest"],
        "problem": None,
    }


def values_of(certificate: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate as a dictionary like that of `Certificate.to_dict`, with the derived values that the row states."""
    if isinstance(certificate, ExactCertificate):
        derived = {"radius": record["radius"], "character_radius": record["character_radius"]}
        return certificate.to_dict() | {"derived": derived, "digest": record["digest"]}
    claims = {"radius": record["radius"], "p1": record["p1"], "p2": record["p2"], "alpha": certificate.alpha}
    return certificate.raw() | {"derived": claims, "digest": record["digest"]}


def problem_record(sentence: str, *, id: str | None, row: int) -> Record:
    """A row without a certificate, and the reason."""
    return dict.fromkeys(CERTIFICATES.names) | {"id": id, "row": row, "problem": sentence}


def certificate_of(manifest: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    """Rebuild the certificate of a row from its votes or integers; the radius is computed again.

    ValueError if the row holds no valid certificate, as when a count is missing.
    """
    is_exact = "method" in manifest
    for name in CERTIFICATES.names:
        if name in OPTIONAL and not (name == "exact" and is_exact):
            continue
        is_unused = name in ((*VOTES, "exact") if is_exact else INTEGERS)
        if (record[name] is None) != is_unused:
            state = "must be null" if is_unused else "must not be null"
            raise ValueError(f"{name} {state} in a row that has a certificate")
    classes = tuple(manifest["classes"])
    names = [label_text(label) for label in classes]
    text = record["answer"]
    if text not in names:
        raise ValueError(f"the answer {text!r} is not one of the classes")
    answer = names.index(text)
    if is_exact:
        shared = {name: manifest[name] for name in ("classes", "ops", "unit", "model_hash", "ngram")}
        own = {name: record[name] for name in (*INTEGERS, "input_hash")} | {"label": classes[answer]}
        others = {"touchable": None, "replacements": None, "rounding": 0}
        return ExactCertificate.from_dict({"format": EXACT_FORMAT, **shared, **own, **others})
    exact, planned = record["exact"], (record["look_sizes"], record["look_alphas"])
    certificate = Certificate(
        label=classes[answer],
        classes=classes,
        answer=answer,
        length=record["length"],
        noise=_noise(manifest["noise"], record["tokens"]),
        selection=tuple(record["selection"]),
        looks=Looks(*planned) if exact is None or any(planned) else None,
        votes=_rows("votes", record["votes"]),
        exact=None if exact is None else _rows("exact", exact),
        ops=Threat(manifest["ops"]).ops,
        bound=manifest["bound"],
        threshold=manifest["threshold"],
        seed=manifest["seed"],
        unit=manifest["unit"],
        model_hash=manifest["model_hash"],
        input_hash=record["input_hash"],
    )
    check_certificate(certificate)
    return certificate


def _noise(values: Mapping[str, Any], tokens: str | None) -> Noise:
    """The noise of a row: with its tokens, if the noise sees them."""
    noise = noise_from_dict(values)
    if noise.sees_tokens() != (tokens is not None):
        raise ValueError("tokens must be stated under a noise that sees them, and under no other")
    return noise if tokens is None else noise.given(json.loads(tokens))


def _rows(name: str, rows: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    for row in rows:
        if row is None:
            raise ValueError(f"{name} must be a list of counts, got null in it")
    return tuple(map(tuple, rows))


def protected_label(manifest: Mapping[str, Any]) -> str | None:
    """The class that the decision threshold of a run protects, as text; None without a threshold."""
    classes = manifest["classes"]
    if manifest["threshold"] is None or classes is None or len(classes) != 2:
        return None
    return str((manifest.get("model") or {}).get("protects") or classes[1])


@dataclass
class Totals:
    """Counts over the rows of a run, and the measures that follow from them.

    The measures are those of the rows with a label, or of all rows if none has one. Rows without a certificate are not
    part of them. Memory is bounded: rows with the same label, answer, radii and length are counted together.

    Attributes:
        problems: rows without a certificate.
        calls: votes.
        protected: the class that a decision threshold protects, or None.
    """

    inputs: int = 0
    problems: int = 0
    abstained: int = 0
    calls: int = 0
    classes: Sequence[Any] = ()
    threat: Threat = field(default_factory=Threat)
    protected: str | None = None
    _rows: Counter[tuple[Any, ...]] = field(default_factory=Counter, init=False, repr=False)

    @classmethod
    def of(cls, manifest: Mapping[str, Any], records: Iterable[Record] = ()) -> Totals:
        """The totals of rows of a run with this manifest."""
        threat, protected = Threat(manifest["ops"]), protected_label(manifest)
        totals = cls(classes=manifest["classes"], threat=threat, protected=protected)
        for record in records:
            totals.add(record)
        return totals

    def add(self, record: Record) -> None:
        """Count a row."""
        self.inputs += 1
        if record["problem"] is not None:
            self.problems += 1
            return
        if null := [name for name in ("abstained", "calls", "radius", "length", "answer") if record[name] is None]:
            raise ValueError(f"row {record['row']} of the run: {null[0]} must not be null: {RESTORE}")
        self.abstained += record["abstained"]
        self.calls += record["calls"]
        values = record["radius"], record["length"], record["character_radius"]
        self._rows[record["truth"], record["answer"], *values] += 1

    @property
    def labelled(self) -> int:
        """The number of rows with a label and a certificate."""
        return sum(count for (truth, *_), count in self._rows.items() if truth is not None)

    def outcomes(self) -> Outcomes:
        """The rows with a label, or all if none has one."""
        labelled = bool(self.labelled)
        counts: Counter[tuple[Any, ...]] = Counter()
        for (truth, answer, *values), count in self._rows.items():
            if truth is not None or not labelled:
                label = None if truth is None else label_value(truth)
                counts[label, label_value(answer), *values] += count
        return Outcomes.of_counts(counts, labelled=labelled)

    def by_class(self) -> ClassTable:
        """The measures by class, and the warnings."""
        return measure_classes(self.outcomes(), self.classes, protected=self.protected)

    def to_dict(self) -> dict[str, Any]:
        """The totals as a manifest states them."""
        outcomes = self.outcomes()
        values = measure(outcomes, self.threat).to_dict()
        return {
            "inputs": self.inputs,
            "problems": self.problems,
            "labelled": self.labelled,
            "abstained": self.abstained,
            "calls": self.calls,
            "certified_at_1": outcomes.number(outcomes.certified & (outcomes.radius >= 1)),
            **{name: values[name] for name in _MEASURES},
            **self.by_class().to_dict(),
        }


_MEASURES = (
    "clean_accuracy", "certified_accuracy", "mean_radius", "mean_radius_se", "median_radius", "covering",
    "mean_character_radius",
    "balanced_accuracy", "class_balanced_mean_radius", "class_balanced_mean_radius_se",
)  # fmt: skip
