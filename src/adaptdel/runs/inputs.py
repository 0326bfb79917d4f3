"""The rows of data files as inputs of a run, each known by its number and the hash of its text.

A run resumes by these numbers; data whose rows were changed between two calls are refused. Nothing here grows in memory
with the number of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from adaptdel.text.data import DATA, DrawnRows, InvalidRow, Row, label_text, read_each_row, short_hash
from adaptdel.text.formats import HUB, data_files, shown_name


@dataclass(frozen=True)
class DataFacts:
    """The data of a run, as its manifest states them.

    Attributes:
        path: the files, as they were named.
        text: the column of the texts.
        label: the column of the labels.
        encoding: of the files.
        sample: the rows that were drawn; None for all.
        files: the number of files.
        bytes: their size.
        sha256: of the file as it is stored, so of a gzipped one before it is unpacked; of several files, of the list of
            their hashes. None for data with a remote file.
        remote: of remote data, a hash of the addresses, sizes and checksums that the file system states. A data set of
            Hugging Face has neither hash; it is identified by its name.
    """

    path: tuple[str, ...]
    text: str
    label: str
    encoding: str
    sample: DrawnRows | None = None
    files: int = 1
    bytes: int | None = None
    sha256: str | None = None
    remote: str | None = None

    def identity(self) -> tuple[Any, ...]:
        """What differs if the data were changed."""
        return self.sha256, self.remote, self.files


@dataclass(frozen=True)
class Source:
    """Data files, their columns and their encoding, and which rows are drawn; None for all."""

    path: tuple[str, ...]
    text: str = DATA.text
    label: str = DATA.label
    encoding: str = DATA.encoding
    sample: DrawnRows | None = None

    @classmethod
    def of(cls, facts: DataFacts, path: tuple[str, ...] | None = None) -> Source:
        """The data that a manifest states, or the same columns and rows of other files."""
        if not (path or facts.path) or (path is None and facts.path == IN_MEMORY):
            raise ValueError("the run does not name its data file: give it with --data")
        return cls(path or facts.path, facts.text, facts.label, facts.encoding, facts.sample)

    @property
    def name(self) -> str:
        """The name of the data in messages."""
        return shown_name(self.path)

    def facts(self, *, hashed: bool = True, progress: Any = False) -> DataFacts:
        """What is known of the data; the hash of large files takes minutes, with ``progress`` as in `reporter`.

        A callable, which counts items, is not called.
        """
        files = data_files(self.path)
        known = DataFacts(self.path, self.text, self.label, self.encoding, self.sample, len(files))
        if not hashed or any(file.kind == HUB for file in files):
            return known
        digests = [file.identity(not callable(progress) and progress) for file in files]
        size, digest = sum(size for size, _ in digests), digests[0][1]
        if len(files) > 1:
            digest = hashlib.sha256("".join(f"{each}\n" for _, each in digests).encode()).hexdigest()
        is_remote = any(file.is_remote for file in files)
        return replace(known, bytes=size, sha256=None if is_remote else digest, remote=digest if is_remote else None)

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The rows in order up to row number ``limit``, including invalid rows."""
        drawn, rows = self._drawn, self._everything()
        return islice(rows if drawn is None else (row for row in rows if row.number in drawn), limit)

    def _everything(self) -> Iterator[Row | InvalidRow]:
        return read_each_row(self.path, text=self.text, label=self.label, encoding=self.encoding)

    @cached_property
    def _drawn(self) -> frozenset[int] | None:
        """The numbers of the rows of the sample."""
        if self.sample is None:
            return None
        return frozenset(number + 1 for number in self.sample.positions(self._everything()))


IN_MEMORY = ("in memory",)


@dataclass(frozen=True)
class MemorySource(Source):
    """Texts and labels in memory; in a manifest they are known by the SHA-256 of their contents."""

    path: tuple[str, ...] = IN_MEMORY
    texts: Sequence[Any] = ()
    labels: Sequence[Any] | None = None

    def facts(self, *, hashed: bool = True, progress: Any = False) -> DataFacts:
        """The names of the columns, and the SHA-256 of the texts and labels."""
        labels = [None] * len(self.texts) if self.labels is None else self.labels
        digest = hashlib.sha256()
        for text, label in zip(self.texts, labels, strict=True):
            content = text if isinstance(text, (str, int, float)) else repr(text)
            digest.update(json.dumps([content, _plain(label)]).encode() + b"\n")
        return DataFacts(self.path, self.text, self.label, self.encoding, sha256=digest.hexdigest())

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The texts in order, numbered from 1."""
        for place, text in enumerate(self.texts[:limit]):
            label = None if self.labels is None else _plain(self.labels[place])
            if not isinstance(text, str):
                yield InvalidRow(place + 1, f"the text must be a str, got {type(text).__name__}")
            elif label is not None and (not isinstance(label, (int, str)) or isinstance(label, bool)):
                yield InvalidRow(place + 1, f"the label must be a string or an integer, got {label!r:.60}")
            else:
                yield Row(place + 1, text, label)


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
    """What the data hold, before anything is certified.

    Attributes:
        labelled: the number of rows with a label; unlabelled: of those that can be certified and have none.
        done: the number of rows that have a certificate.
        first: the first invalid row.
        last: the number of the last row.
        used: the numbers of the rows whose text the model was trained, calibrated or given its threshold on.
    """

    rows: int = 0
    labelled: int = 0
    unlabelled: int = 0
    invalid: int = 0
    done: int = 0
    first: InvalidRow | None = None
    last: int = 0
    used: set[int] = field(default_factory=set)

    @property
    def left(self) -> int:
        """The number of inputs that have no certificate yet."""
        return self.rows - self.invalid - self.done

    def notes(self, source: Source) -> Iterator[str]:
        """What a user should know: invalid rows, missing labels, texts that the model was made with."""
        if self.first is not None:
            others = f", and {self.invalid - 1} more such rows" if self.invalid > 1 else ""
            yield f"{source.name}, row {self.first.number}: {self.first.problem}{others}: not certified"
        if not self.labelled:
            yield f"{source.name}: no row has a label in the column {source.label!r}: no accuracy is known"
        elif self.unlabelled:
            count = "1 row has" if self.unlabelled == 1 else f"{self.unlabelled} rows have"
            column = source.label
            yield f"{source.name}: {count} no label in the column {column!r}: certified, but left out of the measures"
        if self.used:
            yield (
                f"{source.name}: the model was trained, calibrated or given its threshold on {len(self.used):,} of the "
                f"{self.rows:,} texts, the first is row {min(self.used)}: figures on these may be too optimistic"
            )


def survey(
    source: Source,
    label_map: LabelMap,
    limit: int | None,
    known: Iterable[Mapping[str, Any]] = (),
    used: Collection[int] = (),
) -> Survey:
    """Read the data once: count the rows and check their labels.

    ``known`` are the records of earlier calls in the order of the rows; ValueError if a row is no longer the same.
    ``used`` are the hashes of the texts that the model was made with: see `adaptdel.text.data.short_hash`.
    """
    counts, earlier = Survey(), iter(known)
    record = next(earlier, None)
    for row in source.rows(limit):
        counts.rows += 1
        counts.last = row.number
        checked = _checked(row, label_map)
        if isinstance(row, Row):
            counts.labelled += row.label is not None
            counts.unlabelled += row.label is None
            if used and short_hash(row.text) in used:
                counts.used.add(row.number)
        if isinstance(checked, InvalidRow):
            counts.invalid += 1
            counts.first = counts.first or checked
        if record is not None and record["row"] == row.number:
            _check_same(source, record, checked)
            counts.done += record["problem"] is None
            record = next(earlier, None)
    if record is not None:
        raise ValueError(f"{source.name}: row {record['row']}, which was certified, is gone: {_CHANGED}")
    if not counts.rows:
        raise ValueError(f"{source.name}: holds no rows")
    if counts.invalid == counts.rows and counts.first:
        where = f"row {counts.first.number}: {counts.first.problem}"
        raise ValueError(f"{source.name}: none of the {counts.rows} rows can be used; {where}")
    return counts


_CHANGED = "the data were changed since the last call: choose another folder for --out"


def _check_same(source: Source, record: Mapping[str, Any], now: RunInput | InvalidRow) -> None:
    label = None if isinstance(now, InvalidRow) or now.label is None else label_text(now.label)
    if record["id"] != now.id or (record["problem"] is None and record["truth"] != label):
        raise ValueError(f"{source.name}, row {record['row']}: not what was certified: {_CHANGED}")


def inputs(source: Source, label_map: LabelMap, limit: int | None) -> Iterator[RunInput | InvalidRow]:
    """The inputs of the data in order, and the invalid rows."""
    return (_checked(row, label_map) for row in source.rows(limit))


def _checked(row: Row | InvalidRow, label_map: LabelMap) -> RunInput | InvalidRow:
    if isinstance(row, InvalidRow):
        return row
    try:
        label = None if row.label is None else label_map(row.label)
    except ValueError as error:
        return InvalidRow(row.number, str(error), row.id)
    return RunInput(row.number, row.id, row.text, label)
