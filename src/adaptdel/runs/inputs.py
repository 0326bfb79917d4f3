"""The rows of a data file as inputs of a run: each with an id and with a label among the model's classes.

The id of an input is that of the file's id column. Without such a column it is a hash of the text; a text that is
repeated in the file gets ``#2``, then ``#3``. A run resumes by these ids, not by the number of rows it has read.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.data import Row, read_rows
from adaptdel.file_formats import STANDARD_INPUT, standard_input
from adaptdel.runs.records import label_text
from adaptdel.settings import DATA

GIVE_UP_ROWS = 1000  # invalid rows at the start of a file after which reading ends


@dataclass(frozen=True)
class Source:
    """A data file, its columns and its encoding."""

    path: str
    text: str = DATA.text
    label: str = DATA.label
    ids: str = DATA.ids
    encoding: str = DATA.encoding

    @property
    def name(self) -> str:
        """The name of the data in messages."""
        return "standard input" if self.is_standard_input else self.path

    @property
    def is_standard_input(self) -> bool:
        """Whether the rows come from standard input."""
        return self.path == STANDARD_INPUT

    def identity(self) -> dict[str, Any]:
        """The columns, the encoding, the size and the SHA-256 of the file; of a gzipped file, before it is unpacked.

        A data set of Hugging Face has no size and no SHA-256; it is identified by its name.
        """
        path = standard_input() if self.is_standard_input else Path(self.path)
        if "\0" in self.path or not path.is_file():
            return {**asdict(self), "bytes": None, "sha256": None}
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        return {**asdict(self), "bytes": path.stat().st_size, "sha256": digest}

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The rows in order up to row number ``limit``, including invalid rows."""
        invalid: list[InvalidRow] = []
        useful = False

        def problem(number: int, sentence: str) -> None:
            invalid.append(InvalidRow(number, sentence))
            if not useful and len(invalid) >= GIVE_UP_ROWS:
                raise UnusableFileError(
                    f"{self.name}: none of the first {number} rows can be used; row 1: {invalid[0].problem}"
                )

        rows = read_rows(
            self.path, text=self.text, label=self.label, ids=self.ids, encoding=self.encoding, on_problem=problem
        )
        for row in rows:
            useful = True
            yield from (other for other in invalid if limit is None or other.number <= limit)
            invalid.clear()
            if limit is None or row.number <= limit:
                yield row
            if limit is not None and row.number >= limit:
                return
        yield from (other for other in invalid if limit is None or other.number <= limit)


@dataclass(frozen=True)
class MemorySource(Source):
    """Texts and labels in memory; in a manifest they are known by the SHA-256 of their contents."""

    path: str = "in memory"
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
class InvalidRow:
    """A row that cannot be certified, and the reason."""

    number: int
    problem: str
    id: str | None = None


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
        self._same = {label_text(label): label for label in classes}
        written = [str(label) for label in classes]
        self._written = dict(zip(written, classes, strict=True)) if len(set(written)) == len(written) else {}

    def __call__(self, label: Any) -> Any:
        """Return the class; ValueError if the model has no such class."""
        mapped = self._same.get(label_text(label), self._written.get(str(label)))
        if mapped is None:
            known = ", ".join(map(repr, self.classes[:9])) + (", ..." if len(self.classes) > 9 else "")
            raise ValueError(f"the label {label!r} is not among the model's classes {known}")
        return mapped


@dataclass
class Survey:
    """Counts of the rows of a file, before anything is certified.

    Attributes:
        rows: the number of rows.
        labelled: the number of rows with a label.
        invalid: the number of invalid rows.
        first: the first invalid row.
        repeats: for repeated texts without an id, by row: 2 at the second occurrence, 3 at the third.
    """

    rows: int = 0
    labelled: int = 0
    invalid: int = 0
    first: InvalidRow | None = None
    repeats: dict[int, int] = field(default_factory=dict)


def survey(source: Source, label_map: LabelMap, limit: int | None) -> Survey:
    """Read a file once: count the rows, check labels and ids. It needs 24 bytes for each row."""
    counts = Survey()
    keys, numbers = bytearray(), array("q")
    named = False
    for row in source.rows(limit):
        counts.rows += 1
        checked = _checked(row, label_map)
        if isinstance(row, Row):
            named = named or row.id is not None
            keys += key_of(content_id(row.text) if row.id is None else row.id)
            numbers.append(row.number)
            counts.labelled += row.label is not None
        if isinstance(checked, InvalidRow):
            counts.invalid += 1
            counts.first = counts.first or checked
    if not counts.rows:
        raise ValueError(f"{source.name}: holds no rows")
    if counts.invalid == counts.rows and counts.first:
        where = f"row {counts.first.number}: {counts.first.problem}"
        raise UnusableFileError(f"{source.name}: none of the {counts.rows} rows can be used; {where}")
    counts.repeats = _repeats(np.frombuffer(bytes(keys), "S16"), np.asarray(numbers))
    if counts.repeats and named:
        _refuse_doubles(source, counts.repeats, limit)
    return counts


def inputs(
    source: Source, label_map: LabelMap, limit: int | None, repeats: dict[int, int]
) -> Iterator[RunInput | InvalidRow]:
    """The inputs of a file in order, and its invalid rows."""
    for row in source.rows(limit):
        checked = _checked(row, label_map)
        if isinstance(checked, InvalidRow) and isinstance(row, Row):
            yield InvalidRow(row.number, checked.problem, _id(row, repeats))
        elif isinstance(checked, InvalidRow):
            yield checked
        else:
            label = None if checked.label is None else label_map(checked.label)
            yield RunInput(checked.number, _id(checked, repeats), checked.text, label)


def content_id(text: str) -> str:
    """The id of a text that has none in the file: a hash."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def key_of(id: str) -> bytes:
    """A hash of an id in 16 bytes."""
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class IdSet:
    """A set of ids that takes 16 bytes for each."""

    def __init__(self, ids: Iterable[str]) -> None:
        keys = bytearray()
        for id in ids:
            keys += key_of(id)
        self._keys = np.sort(np.frombuffer(bytes(keys), "S16"))

    def __contains__(self, id: str) -> bool:
        key = np.frombuffer(key_of(id), "S16")[0]
        place = int(np.searchsorted(self._keys, key))
        return place < len(self._keys) and bool(self._keys[place] == key)


def _checked(row: Row | InvalidRow, label_map: LabelMap) -> Row | InvalidRow:
    if isinstance(row, Row) and row.label is not None:
        try:
            label_map(row.label)
        except ValueError as error:
            return InvalidRow(row.number, str(error))
    return row


def _id(row: Row, repeats: dict[int, int]) -> str:
    if row.id is not None:
        return row.id
    again = repeats.get(row.number)
    return content_id(row.text) + (f"#{again}" if again else "")


def _repeats(keys: Any, numbers: Any) -> dict[int, int]:
    """The number of the occurrence, by row, for keys that occurred in an earlier row."""
    order = np.argsort(keys, kind="stable")
    same = np.append(False, keys[order][1:] == keys[order][:-1]) if len(keys) else np.empty(0, bool)
    occurrences: dict[int, int] = {}
    times = 1
    for place in np.flatnonzero(same):
        times = times + 1 if place and same[place - 1] else 2
        occurrences[int(numbers[order[place]])] = times
    return occurrences


def _refuse_doubles(source: Source, repeats: dict[int, int], limit: int | None) -> None:
    """Raise a ValueError that names two rows with the same id; texts without an id may be repeated."""
    for row in source.rows(limit):
        if isinstance(row, Row) and row.id is not None and row.number in repeats:
            first = next(r for r in source.rows(limit) if isinstance(r, Row) and r.id == row.id)
            raise ValueError(
                f"{source.name}, rows {first.number} and {row.number}: both have the id {row.id!r}: make the ids "
                "unique, name another id column, or none ('') to identify inputs by their texts"
            )
