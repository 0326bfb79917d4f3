"""The columns of a run: batches of rows in Arrow, from certificates and back to them.

All runs have the columns of `COMMON`, and between them those of their kind of evidence. Tables of numbers, such as the
scores of the tokens of a text, are arrays of NumPy on both sides: none becomes a list of Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.evidence import EVIDENCE
from adaptdel.core.threat import Threat
from adaptdel.measures.class_measures import ClassTable, measure_classes
from adaptdel.measures.summary import Outcomes, measure
from adaptdel.runs.manifest import Manifest
from adaptdel.text.data import label_text, label_value

_HEAD = {
    "id": pa.string(),  # of `adaptdel.text.data.Row`: number and hash of the text; None if it has no text
    "row": pa.int64(),  # in the file, from 1
    "truth": pa.string(),  # the label in the file as `label_text` writes it, None if there is none
    "answer": pa.string(),  # a class as `label_text` writes it
    "correct": pa.bool_(),  # whether the answer is the label, certified or not
    "abstained": pa.bool_(),  # whether not even the answer is certain
    "length": pa.int64(),  # tokens
}
_TAIL = {
    "radius": pa.int64(),  # -1 if abstained
    "character_radius": pa.int64(),  # in edited characters, None for units without characters
    "padded_radius": pa.int64(),  # with any text before and after besides, -1 if such text may change the answer
    "positions": pa.int64(),  # that withstand inserted text besides, -1 if not even padding is withstood
    "calls": pa.int64(),  # of the base classifier
    "input_hash": pa.string(),  # of the tokens
    "problem": pa.string(),  # why there is no certificate, None if there is one
}
COMMON = (*_HEAD, *_TAIL)
TYPES = {
    "int64[]": pa.list_(pa.int64()),
    "double[]": pa.list_(pa.float64()),
    "int64[][]": pa.list_(pa.list_(pa.int64())),
    "table": pa.list_(pa.list_(pa.int64())),  # an array of shape (rows, columns)
    "string": pa.string(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
}
OPTIONAL = ("truth", "correct", "character_radius", "problem")  # may be null in a row that has a certificate
Record = dict[str, Any]
RESTORE = "copy the run again from its source, or certify again"
# The columns that `Totals` counts.
TOTALLED = (
    "row", "truth", "answer", "correct", "abstained", "length", "radius", "character_radius", "padded_radius",
    "positions", "calls", "problem",
)  # fmt: skip


@lru_cache
def schema_of(kind: str) -> pa.Schema:
    """The columns of a run with evidence of a kind."""
    own = {name: TYPES[type_] for name, type_ in EVIDENCE.get(kind).columns.items()}
    return pa.schema(list({**_HEAD, **own, **_TAIL}.items()), {"adaptdel": f"certificates, format 2, {kind}"})


def label_of(record: Mapping[str, Any]) -> Any:
    """The label of a row, which the column ``truth`` holds, or None."""
    return None if record["truth"] is None else label_value(record["truth"])


def record_of(certificate: Certificate, *, id: str, row: int, label: Any = None) -> Record:
    """A certificate as a row; ``label`` is None if the input has no label."""
    answer = label_text(certificate.label)
    truth, radius = None if label is None else label_text(label), certificate.radius
    return {
        "id": id,
        "row": row,
        "truth": truth,
        "answer": answer,
        "correct": None if truth is None else truth == answer,
        "abstained": radius < 0,
        "length": certificate.length,
        **certificate.evidence.row(),
        "radius": radius,
        "character_radius": certificate.character_radius,
        "padded_radius": certificate.padded_radius,
        "positions": certificate.positions,
        "calls": certificate.calls,
        "input_hash": certificate.input_hash,
        "problem": None,
    }


def problem_record(sentence: str, *, id: str | None, row: int) -> Record:
    """A row without a certificate, and the reason."""
    return {"id": id, "row": row, "problem": sentence}


def batch_of(kind: str, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows as a batch of columns; what a row does not hold is null."""
    schema, types = schema_of(kind), EVIDENCE.get(kind).columns
    columns = []
    for each in schema:
        values = [record.get(each.name) for record in records]
        columns.append(_tables(values) if types.get(each.name) == "table" else pa.array(values, each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _tables(values: Sequence[Any]) -> pa.Array:
    """Arrays of shape (rows, columns), or None, as lists of lists."""
    heights = [0 if value is None else len(value) for value in values]
    flat = [np.asarray(value, dtype=np.int64) for value in values if value is not None and len(value)]
    width = flat[0].shape[1] if flat else 0
    numbers = np.concatenate([each.reshape(-1) for each in flat]) if flat else np.zeros(0, dtype=np.int64)
    inner = pa.ListArray.from_arrays(pa.array(np.arange(sum(heights) + 1, dtype=np.int32) * width), pa.array(numbers))
    ends = np.concatenate([[0], np.cumsum(heights)])
    absent = np.array([value is None for value in values] + [False])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32(), mask=absent if absent.any() else None), inner)


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of a batch as dictionaries; tables of numbers are arrays."""
    types = _types_of(batch.schema)
    columns = {
        name: list(_arrays(batch.column(name))) if types.get(name) == "table" else batch.column(name).to_pylist()
        for name in batch.schema.names
    }
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _types_of(schema: pa.Schema) -> Mapping[str, str]:
    stated = (schema.metadata or {}).get(b"adaptdel", b"").decode()
    return EVIDENCE.get(stated.rpartition(" ")[2]).columns if stated else {}


def _arrays(column: pa.ListArray) -> Iterator[Any]:
    """The values of a column of tables; ValueError if one is not rectangular, or holds null."""
    inner = column.flatten()
    numbers = inner.flatten()
    if inner.null_count or numbers.null_count:
        raise ValueError("a table of numbers must hold no null")
    widths = np.diff(inner.offsets.to_numpy())
    flat, width = numbers.to_numpy(), int(widths[0]) if len(widths) else 0
    if (widths != width).any():
        raise ValueError("a table of numbers must have rows of the same length")
    end = 0
    heights = column.value_lengths().fill_null(0).to_pylist()
    for is_valid, height in zip(column.is_valid().to_pylist(), heights, strict=True):
        yield flat[end * width : (end + height) * width].reshape(height, width) if is_valid else None
        end += height


def certificate_of(manifest: Manifest, record: Mapping[str, Any]) -> Certificate:
    """Rebuild the certificate of a row from its evidence; the radius is computed again.

    ValueError if the row holds no valid certificate, as when a count is missing.
    """
    kind = EVIDENCE.get(manifest.kind)
    for name in COMMON:
        if record[name] is None and name not in OPTIONAL:
            raise ValueError(f"{name} must not be null in a row that has a certificate")
    texts = _class_texts(tuple(map(label_text, manifest.classes)))
    answer = texts.get(record["answer"])
    if answer is None:
        raise ValueError(f"the answer {record['answer']!r:.60} is not one of the classes")
    evidence = kind.from_row({**record, "answer": answer}, manifest.plan)
    certificate = Certificate(
        label=manifest.classes[answer],
        classes=tuple(manifest.classes),
        plan=manifest.plan,
        evidence=evidence,
        unit=manifest.unit,
        model_hash=manifest.model_hash,
        known_hash=record["input_hash"],
    )
    certificate.check_fields()
    return certificate


@lru_cache
def _class_texts(texts: tuple[str, ...]) -> dict[str, int]:
    return {text: number for number, text in enumerate(texts)}


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
    def of(cls, manifest: Manifest, records: Iterable[Record] = ()) -> Totals:
        """The totals of rows of a run with this manifest."""
        totals = cls(classes=manifest.classes, threat=manifest.plan.threat, protected=manifest.protects)
        for record in records:
            totals.add(record)
        return totals

    def add(self, record: Record) -> None:
        """Count a row."""
        self.inputs += 1
        if record["problem"] is not None:
            self.problems += 1
            return
        if null := [name for name in (*_COUNTED, "abstained", "calls", "answer") if record[name] is None]:
            raise ValueError(f"row {record['row']} of the run: {null[0]} must not be null: {RESTORE}")
        self.abstained += record["abstained"]
        self.calls += record["calls"]
        values = (record[name] for name in (*_COUNTED, "character_radius"))
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
        return Outcomes.of_counts(counts, (*_COUNTED, "character_radius"), labelled=labelled)

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


_COUNTED = ("radius", "length", "padded_radius", "positions")
_MEASURES = (
    "clean_accuracy", "certified_accuracy", "mean_radius", "mean_radius_se", "median_radius", "covering", "padded",
    "mean_character_radius",
    "balanced_accuracy", "class_balanced_mean_radius", "class_balanced_mean_radius_se",
)  # fmt: skip
