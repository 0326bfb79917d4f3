"""The rows of a data file as inputs of a run: each with an id, and the truth as the model names it.

An input's id is that of the file's id column. Without one it is a hash of the text; a text that stands in the file
again gets ``#2``, then ``#3``. So a run goes on by what was certified, not by how far it had come.
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
from adaptdel.runs.records import label_text
from adaptdel.settings import DATA

GIVE_UP_ROWS = 1000  # so many useless rows at the beginning of a file are enough to give up


@dataclass(frozen=True)
class Source:
    """A data file, and how it is read."""

    path: str
    text: str = DATA.text
    label: str = DATA.label
    ids: str = DATA.ids
    encoding: str = DATA.encoding

    def identity(self) -> dict[str, Any]:
        """How it is read, its size and the SHA-256 of its bytes as they stand: of a gzipped file, the gzipped ones.

        A data set of Hugging Face has no bytes here, and is known by its name.
        """
        path = Path(self.path)
        if "\0" in self.path or not path.is_file():
            return {**asdict(self), "bytes": None, "sha256": None}
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        return {**asdict(self), "bytes": path.stat().st_size, "sha256": digest}

    def rows(self, limit: int | None = None) -> Iterator[Row | InvalidRow]:
        """The rows in order, up to row number ``limit``, those that cannot be used among them."""
        invalid: list[InvalidRow] = []
        useful = False

        def problem(number: int, sentence: str) -> None:
            invalid.append(InvalidRow(number, sentence))
            if not useful and len(invalid) >= GIVE_UP_ROWS:
                raise UnusableFileError(
                    f"{self.path}: none of the first {number} rows can be used; row 1: {invalid[0].problem}"
                )

        found = read_rows(
            self.path, text=self.text, label=self.label, ids=self.ids, encoding=self.encoding, on_problem=problem
        )
        for row in found:
            useful = True
            yield from (one for one in invalid if limit is None or one.number <= limit)
            invalid.clear()
            if limit is None or row.number <= limit:
                yield row
            if limit is not None and row.number >= limit:
                return
        yield from (one for one in invalid if limit is None or one.number <= limit)


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
    """A row that cannot be certified, and why."""

    number: int
    problem: str
    id: str | None = None


@dataclass(frozen=True)
class RunInput:
    """An input to certify; the truth is one of the model's classes, or None if it is not known."""

    row: int
    id: str
    text: str
    truth: Any


class UnusableFileError(ValueError):
    """A file of which nothing can be used."""


class LabelMap:
    """Labels of a file as classes of the model: the same value, or else the same when both are written down."""

    def __init__(self, classes: Sequence[Any]) -> None:
        self.classes = classes
        self._same = {label_text(label): label for label in classes}
        written = [str(label) for label in classes]
        self._written = dict(zip(written, classes, strict=True)) if len(set(written)) == len(written) else {}

    def __call__(self, label: Any) -> Any:
        """The class; ValueError if the model does not know the label."""
        found = self._same.get(label_text(label), self._written.get(str(label)))
        if found is None:
            known = ", ".join(repr(one) for one in self.classes[:9]) + (", ..." if len(self.classes) > 9 else "")
            raise ValueError(f"the label {label!r} is not among the model's classes {known}")
        return found


@dataclass
class Survey:
    """What a first look at a file finds, before anything is certified.

    Attributes:
        rows: how many rows there are.
        labelled: how many have a label.
        invalid: how many cannot be used.
        first: the first of these.
        repeats: for texts without an id that stand there again, by row: the how-manieth time.
    """

    rows: int = 0
    labelled: int = 0
    invalid: int = 0
    first: InvalidRow | None = None
    repeats: dict[int, int] = field(default_factory=dict)


def survey(source: Source, label_map: LabelMap, limit: int | None) -> Survey:
    """Read a file once: count, check labels and ids. It needs 24 bytes a row."""
    found = Survey()
    keys, numbers = bytearray(), array("q")
    named = False
    for row in source.rows(limit):
        found.rows += 1
        fit = _checked(row, label_map)
        if isinstance(row, Row):
            named = named or row.id is not None
            keys += key_of(content_id(row.text) if row.id is None else row.id)
            numbers.append(row.number)
            found.labelled += row.label is not None
        if isinstance(fit, InvalidRow):
            found.invalid += 1
            found.first = found.first or fit
    if not found.rows:
        raise ValueError(f"{source.path}: holds no rows")
    if found.invalid == found.rows and found.first:
        raise UnusableFileError(
            f"{source.path}: none of the {found.rows} rows can be used; row {found.first.number}: {found.first.problem}"
        )
    found.repeats = _repeats(np.frombuffer(bytes(keys), "S16"), np.asarray(numbers))
    if found.repeats and named:
        _refuse_doubles(source, found.repeats, limit)
    return found


def inputs(
    source: Source, label_map: LabelMap, limit: int | None, repeats: dict[int, int]
) -> Iterator[RunInput | InvalidRow]:
    """The inputs of a file in order, and the rows that are none."""
    for row in source.rows(limit):
        fit = _checked(row, label_map)
        if isinstance(fit, InvalidRow) and isinstance(row, Row):
            yield InvalidRow(row.number, fit.problem, _id(row, repeats))
        elif isinstance(fit, InvalidRow):
            yield fit
        else:
            truth = None if fit.label is None else label_map(fit.label)
            yield RunInput(fit.number, _id(fit, repeats), fit.text, truth)


def content_id(text: str) -> str:
    """The id of a text that has none in the file."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def key_of(id: str) -> bytes:
    """16 bytes that stand for an id."""
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Known:
    """A set of ids, in 16 bytes each."""

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
    """By row, for keys that stood there before: the how-manieth time this is."""
    order = np.argsort(keys, kind="stable")
    same = np.append(False, keys[order][1:] == keys[order][:-1]) if len(keys) else np.empty(0, bool)
    found: dict[int, int] = {}
    times = 1
    for place in np.flatnonzero(same):
        times = times + 1 if place and same[place - 1] else 2
        found[int(numbers[order[place]])] = times
    return found


def _refuse_doubles(source: Source, repeats: dict[int, int], limit: int | None) -> None:
    """Say which two rows have one id; texts without an id may stand there again."""
    for row in source.rows(limit):
        if isinstance(row, Row) and row.id is not None and row.number in repeats:
            first = next(r for r in source.rows(limit) if isinstance(r, Row) and r.id == row.id)
            raise ValueError(
                f"{source.path}, rows {first.number} and {row.number}: both have the id {row.id!r}: make ids differ, "
                "name another column of ids, or none (''), for ids made of the texts"
            )
