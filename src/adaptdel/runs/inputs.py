"""The rows of data files as inputs of a run: each with an id and with a label among the model's classes.

The id of an input is that of the id column. Without such a column it is a hash of the text; a text that is repeated in
the data gets ``#2``, then ``#3``. A run resumes by these ids, not by the number of rows it has read. Nothing here grows
in memory with the number of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.runs.records import label_text
from adaptdel.runs.repeats import KEY, RepeatIndex
from adaptdel.text.data import DATA, InvalidRow, Row, content_digest, read_each_row
from adaptdel.text.data_files import HUB, STANDARD_INPUT, data_files, shown_name

GIVE_UP_ROWS = 1000  # invalid rows at the start of a file after which reading ends
LARGE = 2**28  # bytes of data that are not read twice for a remark


@dataclass(frozen=True)
class Source:
    """Data files, their columns and their encoding."""

    path: str | tuple[str, ...]
    text: str = DATA.text
    label: str = DATA.label
    ids: str = DATA.ids
    encoding: str = DATA.encoding

    @property
    def name(self) -> str:
        """The name of the data in messages."""
        return shown_name(self.path)

    @property
    def is_standard_input(self) -> bool:
        """Whether the rows come from standard input."""
        return self.path == STANDARD_INPUT

    def identity(self) -> dict[str, Any]:
        """The columns, the encoding, the size and the SHA-256 of the data; of a gzipped file, before it is unpacked.

        The SHA-256 of several files is that of the list of theirs. Data with a remote file have none: `remote` is a
        hash of the addresses, sizes and checksums that the file system states. A data set of Hugging Face has neither;
        it is identified by its name.
        """
        path = self.path if isinstance(self.path, str) else list(self.path)
        described = {"path": path, "text": self.text, "label": self.label, "ids": self.ids, "encoding": self.encoding}
        files = data_files(self.path)
        if any(file.kind == HUB for file in files):
            return {**described, "bytes": None, "sha256": None}
        identities = [file.identity() for file in files]
        size, digest = sum(size for size, _ in identities), identities[0][1]
        if len(files) > 1:
            digest = hashlib.sha256("".join(f"{each}\n" for _, each in identities).encode()).hexdigest()
        is_remote = any(file.is_remote for file in files)
        several = {"files": len(files)} if len(files) > 1 else {}
        if is_remote:
            return {**described, "bytes": size, "sha256": None, "remote": digest, **several}
        return {**described, "bytes": size, "sha256": digest, **several}

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The rows in order up to row number ``limit``, including invalid rows."""
        first: InvalidRow | None = None
        useful = False
        rows = read_each_row(self.path, text=self.text, label=self.label, ids=self.ids, encoding=self.encoding)
        for row in islice(rows, limit):
            useful = useful or isinstance(row, Row)
            if isinstance(row, InvalidRow) and not useful:
                first = first or row
                if row.number >= GIVE_UP_ROWS:
                    raise UnusableFileError(
                        f"{self.name}: none of the first {row.number} rows can be used; row 1: {first.problem}"
                    )
            yield row


@dataclass(frozen=True)
class MemorySource(Source):
    """Texts and labels in memory; in a manifest they are known by the SHA-256 of their contents."""

    path: str | tuple[str, ...] = "in memory"
    texts: Sequence[Any] = ()
    labels: Sequence[Any] | None = None

    def identity(self) -> dict[str, Any]:
        """The names of the columns, and the SHA-256 of the texts and labels."""
        labels = [None] * len(self.texts) if self.labels is None else self.labels
        digest = hashlib.sha256()
        for text, label in zip(self.texts, labels, strict=True):
            content = text if isinstance(text, (str, int, float)) else repr(text)
            digest.update(json.dumps([content, _plain(label)]).encode() + b"\n")
        described = {name: getattr(self, name) for name in ("path", "text", "label", "ids", "encoding")}
        return {**described, "bytes": None, "sha256": digest.hexdigest()}

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The texts in order, numbered from 1."""
        for place, text in enumerate(self.texts[:limit]):
            label = None if self.labels is None else _plain(self.labels[place])
            if not isinstance(text, str):
                yield InvalidRow(place + 1, f"the text must be a str, got {type(text).__name__}")
            elif label is not None and (not isinstance(label, (int, str)) or isinstance(label, bool)):
                yield InvalidRow(place + 1, f"the label must be a text or a whole number, got {label!r:.60}")
            else:
                yield Row(place + 1, None, text, label)


def _plain(label: Any) -> Any:
    """A label without NumPy's types."""
    return label.item() if isinstance(label, np.generic) else label


@dataclass(frozen=True)
class RunInput:
    """An input to certify; its label is one of the model's classes, or None."""

    row: int
    id: str
    text: str
    label: Any


class UnusableFileError(ValueError):
    """A file without a single valid row."""


class LabelMap:
    """Map labels of a file to classes of the model: to the same value, or else to the same text."""

    def __init__(self, classes: Sequence[Any]) -> None:
        self.classes = classes
        self._known: dict[tuple[type, Any], Any] = {}  # labels that were mapped before
        self._same = {label_text(label): label for label in classes}
        written = [str(label) for label in classes]
        self._written = dict(zip(written, classes, strict=True)) if len(set(written)) == len(written) else {}

    def __call__(self, label: Any) -> Any:
        """Return the class; ValueError if the model has no such class."""
        key = type(label), label
        if key in self._known:
            return self._known[key]
        mapped = self._same.get(label_text(label), self._written.get(str(label)))
        if mapped is None:
            known = ", ".join(map(repr, self.classes[:9])) + (", ..." if len(self.classes) > 9 else "")
            raise ValueError(f"the label {label!r} is not among the model's classes {known}")
        self._known[key] = mapped
        return mapped


@dataclass
class Survey:
    """Counts of the rows of the data, before anything is certified.

    Attributes:
        rows: the number of rows.
        labelled: the number of rows with a label.
        unlabelled: the number of rows that can be certified and have none.
        examples: the number of rows that training would use: with a label, and a text that is not empty.
        invalid: the number of invalid rows.
        first: the first invalid row.
        repeats: the rows whose text occurred in an earlier row, where rows have no ids.
    """

    repeats: RepeatIndex
    rows: int = 0
    labelled: int = 0
    unlabelled: int = 0
    examples: int = 0
    invalid: int = 0
    first: InvalidRow | None = None


def survey(source: Source, label_map: LabelMap, limit: int | None, *, folder: Path | None = None) -> Survey:
    """Read the data once: count the rows, check labels and ids; ``folder`` is that of a `RepeatIndex`."""
    counts = Survey(RepeatIndex(folder))
    try:
        _count(counts, source, label_map, limit)
    except BaseException:
        counts.repeats.close()
        raise
    return counts


def _count(counts: Survey, source: Source, label_map: LabelMap, limit: int | None) -> None:
    named = False
    for row in source.rows(limit):
        counts.rows += 1
        checked = _checked(row, label_map)
        if isinstance(row, Row):
            named = named or row.id is not None
            counts.repeats.add(key_of(content_id(row.text) if row.id is None else row.id), row.number)
            counts.labelled += row.label is not None
            counts.unlabelled += row.label is None
            counts.examples += row.label is not None and bool(row.text.strip())
        if isinstance(checked, InvalidRow):
            counts.invalid += 1
            counts.first = counts.first or checked
    if not counts.rows:
        raise ValueError(f"{source.name}: holds no rows")
    if counts.invalid == counts.rows and counts.first:
        where = f"row {counts.first.number}: {counts.first.problem}"
        raise UnusableFileError(f"{source.name}: none of the {counts.rows} rows can be used; {where}")
    if named:
        _refuse_doubles(source, counts.repeats, limit)


def is_training_data(
    source: Source, counts: Survey, limit: int | None, training: Mapping[str, Any] | None, classes: Sequence[Any]
) -> bool:
    """Whether the data are those that a model with these classes was trained on, by the record of its training.

    They are read again for it only if they may be: where all rows are certified, if there are as many; under a
    ``limit``, if the data are not large.
    """
    known = (training or {}).get("data") or {}
    if "digest" not in known:
        return False
    if limit is None and counts.examples not in (known["rows"], known["rows"] + known["held_out"]):
        return False
    if limit is not None and (source.identity()["bytes"] or LARGE) >= LARGE:
        return False
    rows = (row for row in source.rows() if isinstance(row, Row) and row.label is not None and row.text.strip())
    first, second = tee(rows)  # read in step: nothing is kept
    are_numbers = all(isinstance(label, int) for label in classes)
    labels = (row.label if are_numbers and row.label is not None else str(row.label) for row in second)
    return content_digest((row.text for row in first), labels) == known["digest"]


def inputs(
    source: Source, label_map: LabelMap, limit: int | None, repeats: RepeatIndex
) -> Iterator[RunInput | InvalidRow]:
    """The inputs of the data in order, and the invalid rows."""
    occurrences = _Occurrences(repeats)
    for row in source.rows(limit):
        if isinstance(row, InvalidRow):
            yield row
            continue
        id = _id(row, occurrences.of(row.number))
        checked = _checked(row, label_map)
        if isinstance(checked, InvalidRow):
            yield replace(checked, id=id)
        else:
            label = None if row.label is None else label_map(row.label)
            yield RunInput(row.number, id, row.text, label)


class _Occurrences:
    """The number of the occurrence of a row's text, for rows in order."""

    def __init__(self, repeats: RepeatIndex) -> None:
        self._repeats = repeats.occurrences()
        self._next = next(self._repeats, None)

    def of(self, number: int) -> int:
        while self._next is not None and self._next[0] < number:
            self._next = next(self._repeats, None)
        return self._next[1] if self._next is not None and self._next[0] == number else 1


def content_id(text: str) -> str:
    """The id of a text that has none in the file: a hash."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def key_of(id: str) -> bytes:
    """A hash of an id in 16 bytes."""
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=KEY).digest()


def _checked(row: Row | InvalidRow, label_map: LabelMap) -> Row | InvalidRow:
    if isinstance(row, Row) and row.label is not None:
        try:
            label_map(row.label)
        except ValueError as error:
            return InvalidRow(row.number, str(error))
    return row


def _id(row: Row, occurrence: int) -> str:
    if row.id is not None:
        return row.id
    return content_id(row.text) + (f"#{occurrence}" if occurrence > 1 else "")


def _refuse_doubles(source: Source, repeats: RepeatIndex, limit: int | None) -> None:
    """Raise a ValueError that names two rows with the same id; texts without an id may be repeated."""
    if next(repeats.occurrences(), None) is None:
        return
    occurrences = _Occurrences(repeats)
    for row in source.rows(limit):
        if isinstance(row, Row) and row.id is not None and occurrences.of(row.number) > 1:
            first = next(r for r in source.rows(limit) if isinstance(r, Row) and r.id == row.id)
            raise ValueError(
                f"{source.name}, rows {first.number} and {row.number}: both have the id {row.id!r}: make the ids "
                "unique, name another id column, or none ('') to identify inputs by their texts"
            )
