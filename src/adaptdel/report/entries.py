"""The entries of a report: a run, several seeds of a method, or another system's table; with names and measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.evidence import Plan
from adaptdel.core.bounds import describe_bound
from adaptdel.core.noise import Noise
from adaptdel.core.threat import Threat, log10_cardinality
from adaptdel.measures.class_measures import ClassTable, measure_classes
from adaptdel.measures.summary import Measures, Outcomes, measure
from adaptdel.runs.columns import Record, records_of
from adaptdel.runs.inputs import DataFacts
from adaptdel.runs.manifest import Manifest
from adaptdel.runs.storage import Run, read_run
from adaptdel.settings import CERTIFICATION
from adaptdel.text.data import label_text, label_value, text_hash
from adaptdel.text.formats import data_files, file_records

# Okabe and Ito's colours, darkened where they are too pale for lines on white: (on a light, on a dark background).
COLOURS = (
    ("#0072b2", "#56b4e9"), ("#c84e00", "#ff9a57"), ("#00835f", "#35cfa0"), ("#a8437f", "#eba3cd"),
    ("#8f6a00", "#f0c75e"), ("#5a53c4", "#aaa4ff"), ("#4d5660", "#b8c0c9"),
)  # fmt: skip
METHODS = {
    "adaptdel": "AdaptDel", "adaptdel+": "AdaptDel+", "cert-ed": "CERT-ED", "ranmask": "RanMASK",
    "nosmooth": "NoSmooth", "freelb": "FreeLB", "exact": "Exact",
}  # fmt: skip
CHARACTERS = {"kind": "char"}  # the unit of radii in characters
UNITS = ("word", "char", "byte")
FOREIGN = ("radius", "answer", "id", "text", "label", "length", "ops", "unit")  # columns of another system's table
_COLUMNS = (
    "row", "id", "truth", "answer", "radius", "length", "character_radius", "padded_radius", "positions", "calls",
    "problem",
)  # fmt: skip
_NEEDED = (
    "row",
    "answer",
    "radius",
    "length",
    "padded_radius",
    "positions",
)  # never null in a row that has a certificate


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run, or of another system's table, that a report measures: all, or those with a label if any has.

    A table has no run: its certificates cannot be verified here.
    """

    path: Path  # the folder of the run, or the file of the table
    name: tuple[str, str]  # the method and its rate
    threat: Threat  # the attacker
    unit: dict[str, Any] | None  # what an edit changes, as `adaptdel.text.units.Unit.description` gives it
    classes: Sequence[Any]
    data: DataFacts
    settings: Mapping[str, str | None]  # in words, by name
    outcomes: Outcomes
    rows: dict[int, Record]  # by row number, in the order of the outcomes, without the evidence
    problems: int  # rows that could not be certified and are not measured
    unlabelled: int  # rows without a label that are not measured, because others have labels
    run: Run | None

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seeds of the certificates and of the training."""
        training = (self.run and self.run.manifest.model.training) or {}
        return self.settings.get("seed"), training.get("seed")


def read_inputs(run: Run) -> RunInputs:
    """Read the measured inputs of a run; ValueError if a row with a certificate lacks a value."""
    manifest, plan = run.manifest, run.manifest.plan
    records = list(run.records(_COLUMNS))
    certified = [record for record in records if record["problem"] is None]
    for name in _NEEDED:
        if any(record[name] is None for record in certified):
            raise ValueError(f"{run.file}: {name} is null in a row that has a certificate")
    used = [record for record in certified if record["truth"] is not None] or certified
    own, rate = plan.method()
    method = (manifest.model.method or own).lower()
    return RunInputs(
        path=run.folder,
        name=(METHODS.get(method, manifest.model.method or own), rate if method == own else ""),
        threat=plan.threat,
        unit=manifest.unit,
        classes=manifest.classes,
        data=manifest.data,
        settings=plan.settings(),
        outcomes=_outcomes(used, plan.log10_region),
        rows={record["row"]: record for record in used},
        problems=len(records) - len(certified),
        unlabelled=len(certified) - len(used),
        run=run,
    )


def _outcomes(rows: Collection[Record], region: Callable[..., float] | None) -> Outcomes:
    """Rows as outcomes; ``region`` gives log10 of the size of the region of a radius at a length, where it is known."""
    columns = {name: [row[name] for row in rows] for name in _COLUMNS}
    labels = {text: label_value(text) for text in {*columns["answer"], *columns["truth"]} if text is not None}
    pairs = [*zip(columns["radius"], columns["length"], strict=True)]
    # Means and medians count a region from radius 1 on; its size takes long to compute, and few pairs are different.
    sizes = {(r, n): region(r, length=n) for r, n in {*pairs} if region is not None and r >= 1}
    return Outcomes.of(
        [labels[text] for text in columns["answer"]],
        columns["radius"],
        None if None in columns["truth"] else [labels[text] for text in columns["truth"]],
        **{name: columns[name] for name in ("length", "character_radius", "padded_radius", "positions")},
        log_cardinality=[sizes.get(pair, 0.0) for pair in pairs],
        calls=[value or 0 for value in columns["calls"]],
    )


@dataclass(frozen=True)
class Entry:
    """A row of the report's tables: a run, or several that differ in their seeds only.

    Attributes:
        name: a name that no other entry has.
        number: its position, from 0, which determines its colour.
        parts: the measured inputs of its runs; the inputs of all are measured together.
        characters: whether the radii count edited characters.
    """

    name: str
    number: int
    parts: tuple[RunInputs, ...]
    characters: bool = False

    @property
    def first(self) -> RunInputs:
        """The inputs of the first run."""
        return self.parts[0]

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the first run; None for another system's table, of which nothing can be derived again."""
        return None if self.first.run is None else self.first.run.manifest

    @property
    def plan(self) -> Plan | None:
        """The plan of the first run; None for another system's table."""
        return None if self.manifest is None else self.manifest.plan

    @property
    def noise(self) -> Noise | None:
        """The noise of the copies that were classified, if there were any."""
        return None if self.plan is None else self.plan.copy_noise

    @property
    def certifies(self) -> bool:
        """Whether a radius can be above 0: of copies without noise it cannot."""
        return self.noise is None or self.noise.changes_inputs

    @property
    def finished(self) -> bool:
        """Whether every run is finished."""
        return all(part.run is None or part.run.finished for part in self.parts)

    @property
    def seconds(self) -> float | None:
        """A worker's mean time for an input with a certificate; None if it is not known."""
        manifests = [part.run.manifest for part in self.parts if part.run is not None]
        seconds = [manifest.seconds for manifest in manifests if manifest.seconds is not None]
        certified = sum(manifest.rows or 0 for manifest in manifests) - sum(part.problems for part in self.parts)
        return sum(seconds) / certified if self.finished and len(seconds) == len(self.parts) and certified else None

    def as_released(self) -> Entry:
        """The entry as the paper's released code draws it: radii up to the length, without the largest 0.01%."""
        if self.characters:
            raise ValueError("--as-released is for radii in tokens, not for --characters")
        return replace(self, parts=tuple(map(_as_released, self.parts)))

    @cached_property
    def outcomes(self) -> Outcomes:
        """All measured inputs."""
        return Outcomes.pooled([part.outcomes for part in self.parts])

    @cached_property
    def measures(self) -> Measures:
        """The measures over all inputs."""
        return measure(self.outcomes, self.first.threat)

    @cached_property
    def by_seed(self) -> list[Measures]:
        """The measures of each run."""
        return [measure(part.outcomes, self.first.threat) for part in self.parts]

    @cached_property
    def quartiles(self) -> list[Outcomes]:
        """The inputs by quartile of length."""
        return self.outcomes.by_quartile()

    @cached_property
    def classes(self) -> ClassTable:
        """The measures by class, and the warnings."""
        return measure_classes(self.outcomes, self.first.classes, protected=self.protects)

    @cached_property
    def by_class(self) -> dict[Any, Outcomes]:
        """The inputs of each label, in the order of the classes; empty without labels."""
        parts = self.outcomes.by_label()
        return {each.label: parts[each.label] for each in self.classes.classes if each.inputs}

    @property
    def is_uneven(self) -> bool:
        """Whether a class is more than 1.5 times as frequent as another one."""
        sizes = [len(part) for part in self.by_class.values()]
        return bool(sizes) and max(sizes) > 1.5 * min(sizes)

    @property
    def colour_number(self) -> int:
        """The number of its colour."""
        return self.number % len(COLOURS)

    @property
    def title(self) -> str:
        """The name, and what a reader of a figure must know: a constant answer, or certificates of another system."""
        if self.classes.constant is not None:
            return f"{self.name} (one answer: {clip(str(self.classes.constant), 20)})"
        return self.name if self.plan else f"{self.name} (not verifiable here)"

    @property
    def protects(self) -> str | None:
        """The class that the decision threshold of the run protects, as text; None without a threshold."""
        return None if self.manifest is None else self.manifest.protects

    @property
    def attacker(self) -> tuple[str, ...]:
        """What two runs must share for their radii to be comparable on the same inputs."""
        return str(self.first.threat), repr(self.first.unit), str(self.first.settings["threshold"])

    @property
    def data(self) -> tuple[str, ...]:
        """The measured data: equal if two runs hold the same inputs."""
        data, inputs = self.first.data, self.first.outcomes
        return str(data.sha256 or data.remote or data.path), str(len(inputs)), str(inputs.labelled)

    @cached_property
    def group(self) -> tuple[str, ...] | None:
        """The same for entries among which a table emphasises the best; None for a constant run.

        What holds with certainty holds at every error level: it is compared with runs at the default one.
        """
        level: tuple[Any, ...] = ("stated",)
        if self.plan is not None:
            bound = self.first.settings.get("bound") or describe_bound(CERTIFICATION.bound)
            level = self.plan.alpha or CERTIFICATION.alpha, bound
        return None if self.classes.constant is not None else (*self.data, *self.attacker, *map(str, level))

    def certificates(self, rows: Sequence[int]) -> dict[int, Certificate]:
        """Certificates of the first run by row number; rows that it does not hold are left out."""
        run, wanted = self.first.run, pa.array(sorted(rows), pa.int64())
        if run is None:
            return {}
        batches = (batch.filter(pc.is_in(batch["row"], wanted)) for batch in run.batches())
        return {
            record["row"]: certificate
            for batch in batches
            for record, certificate in run.certified(records_of(batch))
        }  # fmt: skip


def read_entries(paths: Sequence[Path], names: Sequence[str] = (), *, characters: bool = False) -> list[Entry]:
    """Read runs as entries: those with the same given name, or that differ in their seeds only, are one entry.

    A file is a table of another system on the inputs of the first run. With ``characters``, radii count edited
    characters.
    """
    if names and len(names) != len(paths):
        raise ValueError(f"names must be one for each of the {len(paths)} runs, got {len(names)}")
    runs = {path: read_inputs(read_run(path)) for path in paths if not path.is_file()}
    if not runs:
        raise ValueError(f"{paths[0]}: a table of another system: give a run on the same inputs, too")
    first = next(iter(runs.values()))
    groups: dict[Any, list[RunInputs]] = {}
    for place, path in enumerate(paths):
        part = runs.get(path) or read_foreign(path, first)
        key: str | int = names[place] if names else _method(part)
        if not names and part.seeds in [other.seeds for other in groups.get(key, ())]:
            key = place
        groups.setdefault(key, []).append(part)
    shown = [*groups] if names else _names([group[0] for group in groups.values()])
    parts = [tuple(map(_in_characters, group) if characters else group) for group in groups.values()]
    return [Entry(shown[place], place, group, characters) for place, group in enumerate(parts)]


def _as_released(part: RunInputs) -> RunInputs:
    inputs, sizes = part.outcomes, part.outcomes.log_cardinality.copy()
    for row in np.flatnonzero(inputs.radius > inputs.length).tolist():
        length = int(inputs.length[row])
        sizes[row] = log10_cardinality(length, length=length, ops=part.threat.ops)
    inputs = replace(inputs, radius=np.minimum(inputs.radius, inputs.length), log_cardinality=sizes)
    radius = inputs.counted_radius
    return replace(part, outcomes=inputs.take(radius <= np.percentile(radius, 99.99)) if len(radius) else inputs)


def _in_characters(part: RunInputs) -> RunInputs:
    """The inputs against an attacker who edits characters in any way."""
    try:
        return replace(part, outcomes=part.outcomes.in_characters(), unit=CHARACTERS, threat=Threat())
    except ValueError as error:
        raise ValueError(f"{part.path}: {error}: leave out --characters") from None


def _method(part: RunInputs) -> str:
    """What the runs of a method share, whatever their seeds: a default rate depends on the texts of a seed."""
    if part.run is None:
        return str(part.path)
    manifest, model = part.run.manifest, part.run.manifest.model
    training = model.training or {}
    trained = {name: value for name, value in (training.get("settings") or {}).items() if name != "seed"}
    how = trained, (training.get("data") or {}).get("digest")
    own = {name: value for name, value in part.settings.items() if name not in ("seed", "noise", "threshold")}
    shared = own, part.settings["threshold"] is None, manifest.data.sha256, manifest.unit, manifest.limit
    return repr((how if trained else (part.name, part.settings.get("noise"), model.base), model.calibrated, *shared))


def _names(parts: Sequence[RunInputs]) -> list[str]:
    """Names by method and rate, longer where they would be the same."""
    names = [" ".join(filter(None, part.name)) for part in parts]
    for number, part in enumerate(parts):
        if part.run is not None and part.run.manifest.model.protects is not None:
            names[number] += f", protects {part.run.manifest.model.protects}"
    attackers = ["" if part.threat == Threat() else str(part.threat).replace(",", ", ") for part in parts]
    for details in (attackers, [part.path.name for part in parts], [f"#{n + 1}" for n in range(len(parts))]):
        told_apart = Counter(name for name, _ in {*zip(names, details, strict=True)})
        names = [
            f"{name} ({detail})" if detail and told_apart[name] > 1 else name
            for name, detail in zip(names, details, strict=True)
        ]
    return names


# Tables of other systems


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
    # What an input may be called: its id, its number, or the hash of its text if no other has it.
    hashes = {row: record["id"].partition("-")[2] for row, record in like.rows.items()}
    count = Counter(hashes.values())
    known = {f"text {text}": row for row, text in hashes.items() if count[text] == 1}
    known |= {record["id"]: row for row, record in like.rows.items()} | {str(row): row for row in like.rows}
    shared: dict[str, Any] = {}
    rows: dict[int, Record] = {}
    problems, number = 0, 0
    try:
        records = (record for file in data_files(path) for record in file_records(file, "utf-8", FOREIGN))
        for number, record in enumerate(records, start=1):  # noqa: B007
            if isinstance(record, str):
                raise ValueError(record)
            own = like.rows.get(known.get(_key(record), 0))
            values = _values(record, like, own)
            for name in ("threat", "unit"):
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
        raise ValueError(f"{path}: no row is on an input of {like.path}: give its ids, row numbers or texts")
    rows = dict(sorted(rows.items()))
    region = partial(log10_cardinality, ops=shared["threat"].ops) if shared["unit"] == like.unit else None
    return replace(
        like, path=path, name=(path.name.split(".")[0], ""), outcomes=_outcomes(rows.values(), region), rows=rows,
        problems=problems, unlabelled=0, run=None, **shared,
        settings={"attacker": str(shared["threat"]), "threshold": None, "confidence": "not verifiable here"},
    )  # fmt: skip


def _key(record: Mapping[str, Any]) -> str:
    for name in ("radius", "answer"):
        if name not in record:
            raise ValueError(f"no column {name!r}: there are {', '.join(map(repr, record))[:200]}")
    if isinstance(record.get("text"), str):
        return f"text {text_hash(record['text'])}"
    if record.get("id") in (None, ""):
        raise ValueError("must have an id or a text")
    return str(record["id"])


def _values(record: Mapping[str, Any], like: RunInputs, own: Record | None) -> Record:
    """The columns of a run that follow from a row; ``own`` is the row of the run on the same input."""
    classes = {str(label): label_text(label) for label in like.classes}
    answer, label = str(record["answer"]), record.get("label")
    if answer not in classes:
        raise ValueError(f"answer must be one of the classes {', '.join(classes)}, got {answer!r:.60}")
    truth = None if own is None or own["truth"] is None else str(label_value(own["truth"]))
    if label not in (None, "") and truth is not None and str(label) != truth:
        raise ValueError(
            f"label is {str(label)!r:.60}, but the run has {truth!r:.60} for this input: ids count rows from 1"
        )
    unit = {"kind": str(record["unit"])} if record.get("unit") else like.unit
    if unit is not None and unit != like.unit and unit["kind"] not in UNITS:
        raise ValueError(f"unit must be {' or '.join(UNITS)}, got {unit['kind']!r:.60}")
    stated = str(record.get("ops") or "edit")
    radius, length = _number(record, "radius"), _number(record, "length")
    radius = -1 if radius is None else max(-1, radius)
    return {
        "answer": classes[answer],
        "radius": radius,
        "length": own["length"] if own is not None and length is None else length or 0,
        "character_radius": radius if unit == CHARACTERS else None,
        "padded_radius": -1,
        "positions": -1,
        "calls": None,
        "threat": Threat(stated),
        "unit": unit,
    }


def _number(record: Mapping[str, Any], name: str) -> int | None:
    """A number, rounded down; None where there is none."""
    value = record.get(name)
    if value is None or value == "" or value != value:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and abs(number := floor(float(value))) <= 2**40:
            return number
    raise ValueError(f"{name} must be a number, got {str(value)!r:.60}")


def file_name(paths: Sequence[str]) -> str:
    """The name of a data file without its folders; of several, that of the first and how many there are."""
    first, *more = paths
    name = first.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return f"{name} and {len(more)} more" if more else name


def clip(text: str, most: int) -> str:
    """The beginning of a long text, and how much was cut.

    >>> clip("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
