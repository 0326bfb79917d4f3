"""What a report measures: the inputs of runs, and of tables of other systems, which cannot be verified here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from adaptdel.core.threat import Threat, log10_cardinality
from adaptdel.measures.summary import Outcomes
from adaptdel.runs.records import CERTIFICATES, Record, label_text, label_value
from adaptdel.runs.storage import Run, read_run
from adaptdel.text.data import text_hash
from adaptdel.text.formats import data_files, file_records

CHARACTERS = {"kind": "char"}  # the unit of radii in characters
UNITS = ("word", "char", "byte")
FOREIGN = ("radius", "answer", "id", "text", "label", "length", "ops", "unit")  # columns of a table
_COUNTED = ("truth", "answer", "radius", "length", "character_radius", "log10_cardinality", "calls")
_SINGLE = ("row", "id", "input_hash")
_NEEDED = ("row", "answer", "radius", "length")  # never null in a row that has a certificate


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run that a report measures: those with a label, or all if none has one.

    Attributes:
        run: the run; of another system's table, only its file and what is known of the system.
        outcomes: their measured values.
        rows: their rows by row number, in the same order, without the votes.
        problems: how many rows could not be certified and are not measured.
        unlabelled: how many rows without a label are not measured, because others have labels.
    """

    run: Run
    outcomes: Outcomes
    rows: dict[int, Record]
    problems: int
    unlabelled: int

    def in_characters(self) -> RunInputs:
        """The same with radii in edited characters."""
        try:
            return replace(self, outcomes=self.outcomes.in_characters())
        except ValueError as error:
            raise ValueError(f"{self.run.folder}: {error}: leave out --characters") from None


def read_inputs(run: Run) -> RunInputs:
    """Read the measured inputs of a run; ValueError if a row with a certificate lacks a value."""
    table = read_rows(run, (*_COUNTED, *_SINGLE, "problem"))
    certified = table.filter(pc.is_null(table["problem"]))
    for name in _NEEDED:
        if certified[name].null_count:
            raise ValueError(f"{run.file}: {name} is null in a row that has a certificate")
    labelled = certified.filter(pc.is_valid(certified["truth"]))
    used = labelled if labelled.num_rows else certified
    rows = {row["row"]: row for row in used.to_pylist()}
    problems, unlabelled = table.num_rows - certified.num_rows, certified.num_rows - used.num_rows
    return RunInputs(run, _outcomes(rows.values()), rows, problems, unlabelled)


def read_rows(run: Run, names: Sequence[str], rows: Any = None) -> pa.Table:
    """Some columns of a run, of all rows or of those with some numbers."""
    batches = run.batches(names)
    if rows is not None:
        wanted = pa.array(rows, pa.int64())
        batches = (batch.filter(pc.is_in(batch["row"], wanted)) for batch in batches)
    return pa.Table.from_batches(batches, pa.schema([CERTIFICATES.field(name) for name in names]))


def _outcomes(rows: Collection[Record]) -> Outcomes:
    """Rows as outcomes."""
    columns = {name: [row[name] for row in rows] for name in _COUNTED}
    labels = {text: label_value(text) for text in {*columns["answer"], *columns["truth"]} if text is not None}
    is_labelled = None not in columns["truth"]
    return Outcomes.of(
        [labels[text] for text in columns["answer"]],
        columns["radius"],
        [labels[text] for text in columns["truth"]] if is_labelled else None,
        length=columns["length"],
        character_radius=columns["character_radius"],
        log_cardinality=[0.0 if value is None else value for value in columns["log10_cardinality"]],
        calls=[value or 0 for value in columns["calls"]],
    )


def read_runs(paths: Sequence[Path]) -> list[RunInputs]:
    """Read runs, and files as tables of other systems on the inputs of the first run."""
    runs = {path: read_inputs(read_run(path)) for path in paths if not path.is_file()}
    if not runs:
        raise ValueError(f"{paths[0]}: a table of another system: give a run on the same inputs, too")
    first = next(iter(runs.values()))
    return [runs.get(path) or read_foreign(path, first) for path in paths]


def read_foreign(path: Path, like: RunInputs) -> RunInputs:
    """Read the certificates of another system on the inputs of a run.

    The columns are ``id``, as in the run or the number of the row in its data, or ``text`` in its place; ``answer``;
    ``radius``, rounded down, and empty where nothing is certified; and, if there are, ``label``, ``length``, ``ops``
    (edit, the default, or some of del,ins,sub) and ``unit`` (word, char or byte; by default that of the run).
    ValueError names the row that cannot be used. Rows on other inputs are counted as problems.

    Args:
        path: a CSV, TSV, JSON or Parquet file.
        like: the inputs of the run.
    """
    known = _keys(like.rows)
    shared: dict[str, Any] = {}
    rows: dict[int, Record] = {}
    problems, number = 0, 0
    try:
        records = (record for file in data_files(path) for record in file_records(file, "utf-8", FOREIGN))
        for number, record in enumerate(records, start=1):  # noqa: B007
            if isinstance(record, str):
                raise ValueError(record)
            own = like.rows.get(known.get(_key(record), 0))
            values = _values(record, like.run.manifest, own)
            for name in ("ops", "unit"):
                if shared.setdefault(name, values[name]) != values[name]:
                    raise ValueError(f"{name} must be the same in all rows")
            if own is None:
                problems += 1
            elif own["row"] in rows:
                raise ValueError("another row is on the same input")
            else:
                rows[own["row"]] = own | values
    except ValueError as error:
        where = f"{path}, row {number}" if number else str(path)
        raise ValueError(f"{where}: {str(error).removesuffix(': name it with --text-column')}") from None
    if not rows:
        raise ValueError(f"{path}: no row is on an input of {like.run.folder}: give its ids, row numbers or texts")
    empty = dict.fromkeys(("threshold", "alpha", "bound", "seed", "noise", "model_hash"))
    manifest = empty | shared | {name: like.run.manifest.get(name) for name in ("classes", "data")}
    manifest |= {"foreign": True, "finished": "as stated", "model": {"method": path.name.split(".")[0]}}
    rows = dict(sorted(rows.items()))
    return RunInputs(Run(path, manifest), _outcomes(rows.values()), rows, problems, 0)


def _keys(rows: Mapping[int, Record]) -> dict[str, int]:
    """What an input may be called in a table: its id, its number, or the hash of its text if no other has it."""
    hashes = {row: record["id"].partition("-")[2] for row, record in rows.items()}
    count = Counter(hashes.values())
    keys = {f"text {text}": row for row, text in hashes.items() if count[text] == 1}
    return keys | {record["id"]: row for row, record in rows.items()} | {str(row): row for row in rows}


def _key(record: Mapping[str, Any]) -> str:
    for name in ("radius", "answer"):
        if name not in record:
            raise ValueError(f"no column {name!r}: there are {', '.join(map(repr, record))[:200]}")
    if isinstance(record.get("text"), str):
        return f"text {text_hash(record['text'])}"
    if record.get("id") in (None, ""):
        raise ValueError("must have an id or a text")
    return str(record["id"])


def _values(record: Mapping[str, Any], manifest: Mapping[str, Any], own: Record | None) -> Record:
    """The columns of a run that follow from a row; ``own`` is the row of the run on the same input."""
    classes = {str(label): label_text(label) for label in manifest["classes"]}
    answer, label = str(record["answer"]), record.get("label")
    if answer not in classes:
        raise ValueError(f"answer must be one of the classes {', '.join(classes)}, got {answer!r:.60}")
    truth = None if own is None or own["truth"] is None else str(label_value(own["truth"]))
    if label not in (None, "") and truth is not None and str(label) != truth:
        raise ValueError(
            f"label is {str(label)!r:.60}, but the run has {truth!r:.60} for this input: ids count rows from 1"
        )
    unit = {"kind": str(record["unit"])} if record.get("unit") else manifest["unit"]
    if unit != manifest["unit"] and unit["kind"] not in UNITS:
        raise ValueError(f"unit must be {' or '.join(UNITS)}, got {unit['kind']!r:.60}")
    stated = str(record.get("ops") or "edit")
    ops = Threat(stated if stated == "edit" else [op.strip() for op in stated.split(",")]).ops
    radius, length = _number(record, "radius"), _number(record, "length")
    radius = -1 if radius is None else max(-1, radius)
    length = own["length"] if own is not None and length is None else length or 0
    return {
        "answer": classes[answer],
        "radius": radius,
        "length": length,
        "character_radius": radius if unit == CHARACTERS else None,
        "log10_cardinality": log10_cardinality(radius, length=length, ops=ops) if unit == manifest["unit"] else None,
        "calls": None,
        "ops": ops,
        "unit": unit,
    }


def _number(record: Mapping[str, Any], name: str) -> int | None:
    """A number, rounded down; None where there is none."""
    value = record.get(name)
    if value is None or value == "" or value != value:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("inf")
    if isinstance(value, bool) or not isfinite(number) or abs(number) > 2**40:
        raise ValueError(f"{name} must be a number, got {str(value)!r:.60}")
    return floor(number)
