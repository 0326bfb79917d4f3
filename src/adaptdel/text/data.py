"""Labelled data: the rows of files and data sets, with text and label.

There are two ways to set rows apart. `held_out_rows` and `fold_of` draw by text, so that no model is measured on a text
that it has seen. `DrawnRows` draws by row, whatever it holds, as new texts will come: for samples and for proofs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import nsmallest
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import check_int, check_probability
from adaptdel.text.formats import (
    DataPath,
    Record,
    check_column,
    data_files,
    file_records,
    short_text,
    shown_name,
    unreadable,
)
from adaptdel.text.units import Tokens, Unit

Label = int | str
TextHashes = npt.NDArray[np.uint64]
Drawn = TypeVar("Drawn")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class DataSettings:
    """How a labelled file is read: the columns of texts and labels, and the character encoding."""

    text: str = "text"
    label: str = "label"
    encoding: str = "utf-8"


DATA = DataSettings()
NAMED_LABELS = 8  # in a note
PROOF = "proof rows"  # the use of `row_hashes`, not of texts: rows that `adaptdel train --protect` held out
FREE = ("held out", PROOF)  # uses of texts on which nothing depends: see `adaptdel.training.training`


@dataclass(frozen=True)
class DrawnRows:
    """Rows that are drawn at random: the same for the same seed and number of rows, whatever they hold."""

    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("sample", self.rows, least=1)
        check_int("the seed of the sample", self.seed, most=2**63 - 1)

    def positions(self, everything: Iterable[Any]) -> list[int]:
        """The positions of the drawn rows from 0, ascending; a larger sample of the same seed holds them all."""
        key = f"sample {self.seed}".encode()

        def drawn(position: int) -> bytes:
            return hashlib.blake2b(position.to_bytes(8, "little"), digest_size=16, key=key).digest()

        return sorted(nsmallest(self.rows, (position for position, _ in enumerate(everything)), key=drawn))

    def of(self, everything: Sequence[Drawn]) -> list[Drawn]:
        """The drawn ones of a sequence, in order."""
        return [everything[place] for place in self.positions(everything)]


@dataclass(frozen=True)
class Row:
    """A row of a file, numbered from 1 without the header of a CSV file. Missing values are None."""

    number: int
    text: str
    label: Label | None

    @property
    def id(self) -> str:
        """What the row is known by: its number and the hash of its text."""
        return f"{self.number}-{text_hash(self.text)}"


@dataclass(frozen=True)
class InvalidRow:
    """A row that cannot be used, and the reason; ``where`` is its file and its number there."""

    number: int
    problem: str
    id: str | None = None
    where: str = ""


def read_rows(
    path: DataPath, *, text: str = DATA.text, label: str = DATA.label, encoding: str = DATA.encoding
) -> Iterator[Row]:
    """Iterate over the rows of one or several files, as a stream: see `adaptdel.text.formats` for what ``path`` may be.

    A ValueError names the file and the row that cannot be used.
    """
    for row in read_each_row(path, text=text, label=label, encoding=encoding):
        if isinstance(row, InvalidRow):
            raise ValueError(f"{row.where}: {row.problem}")
        yield row


def read_each_row(
    path: DataPath, *, text: str = DATA.text, label: str = DATA.label, encoding: str = DATA.encoding
) -> Iterator[Row | InvalidRow]:
    """Iterate over the rows like `read_rows`, invalid ones included; they are numbered throughout all files."""
    earlier = 0
    for file in data_files(path):
        number = 0
        is_typed = file.kind not in ("csv", "tsv")
        try:
            for number, record in enumerate(file_records(file, encoding, (text, label)), start=1):
                try:
                    row: Row | InvalidRow = _row(earlier + number, record, text, label, is_typed=is_typed)
                except ValueError as error:
                    row = InvalidRow(earlier + number, str(error), where=f"{file.name}, row {number}")
                yield row
        except ImportError:
            raise
        except Exception as error:  # every format and every file system raises its own
            raise unreadable(f"{file.name}, after row {number}" if number else file.name, error) from None
        earlier += number


def _row(number: int, record: Record, text: str, label: str, *, is_typed: bool) -> Row:
    if isinstance(record, str):
        raise ValueError(record)
    check_column(text, record)
    content = record[text]
    if not isinstance(content, str):
        raise ValueError(f"the column {text!r} must hold text, got {short_text(content)}")
    row = Row(number, content, _label(record.get(label), label, is_typed=is_typed))
    for column, value in ((text, content), (label, row.label)):
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            raise ValueError(
                f"the column {column!r} holds bytes that are not UTF-8, or half of a surrogate pair: save the file as "
                "UTF-8, or name its encoding, such as --encoding latin-1"
            )
    return row


def _label(value: Any, column: str, *, is_typed: bool) -> Label | None:
    """The label as int or str, or None if it is empty; digits become int in formats without types."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value if is_typed or not _INTEGER.fullmatch(value.strip()) else int(value)
    if (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) and abs(value) < 2**63:
        return int(value)
    raise ValueError(f"the column {column!r} must hold integers or names, got {short_text(value)}")


@dataclass(frozen=True)
class Examples:
    """The rows of a labelled file."""

    texts: list[str]
    labels: list[Label]  # all int or all str
    rows: list[int]  # the number of each row in the file
    digest: str  # the SHA-256 of texts and labels, the same for every file format
    notes: list[str] = field(default_factory=list)  # about skipped, repeated and contradictory rows

    def take(self, positions: Sequence[int]) -> Examples:
        """Some of the rows; the digest stays that of the file."""
        texts, labels = [self.texts[n] for n in positions], [self.labels[n] for n in positions]
        return Examples(texts, labels, [self.rows[n] for n in positions], self.digest, self.notes)


def read_examples(
    path: DataPath, *, text: str = DATA.text, label: str = DATA.label, encoding: str = DATA.encoding
) -> Examples:
    """Read all rows that have a text and a label, for training and calibration; `Examples.notes` counts the others."""
    rows, empty, unlabelled, first = [], 0, 0, 0
    for row in read_rows(path, text=text, label=label, encoding=encoding):
        if row.label is None:
            unlabelled, first = unlabelled + 1, first or row.number
        elif row.text.strip():
            rows.append(row)
        else:
            empty += 1
    if not rows and unlabelled:
        raise ValueError(f"{shown_name(path)}: no row has a label in the column {label!r}: name it with --label-column")
    if not rows:
        raise ValueError(f"{shown_name(path)}: holds no {'rows' if not empty else 'text that is not empty'}")
    labels: list[Label] = [row.label for row in rows if row.label is not None]
    if not all(isinstance(each, int) for each in labels):  # a file may use both 1 and "spam"
        labels = [str(each) for each in labels]
    notes = [f"{empty} empty texts were skipped"] if empty else []
    if unlabelled:
        count = "1 row" if unlabelled == 1 else f"{unlabelled} rows"
        notes.append(f"skipped {count} without a label in the column {label!r}, the first is row {first}")
    texts, numbers = [row.text for row in rows], [row.number for row in rows]
    notes += _repeated(texts, labels) + _differing_in_case(labels)
    return Examples(texts, labels, numbers, content_digest(texts, labels), notes)


def content_digest(texts: Iterable[str], labels: Iterable[Label]) -> str:
    """The SHA-256 of texts and labels, in order."""
    digest = hashlib.sha256()
    for row in zip(texts, labels, strict=True):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


@lru_cache(maxsize=1024, typed=True)
def label_text(label: Any) -> str:
    r"""A label as the tables hold it: a text as it is, a number, true, false or null as JSON.

    A text that is JSON itself is quoted, so that `label_value` gives back the label and its type.

    >>> [label_text(label) for label in ("spam", 1, "1")]
    ['spam', '1', '"1"']
    """
    value = label.item() if hasattr(label, "item") else label
    if isinstance(value, str) and label_value(value) == value:  # no JSON text is equal to what it stands for
        return value
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=1024)
def label_value(text: str) -> Any:
    """The label that `label_text` wrote.

    >>> [label_value(text) for text in ("spam", '"spam"', "1", '"1"')]
    ['spam', 'spam', 1, '1']
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_hash(text: str) -> str:
    """A hash of a text of 128 bits, in hexadecimal: by it rows are compared, within a data set and across data sets.

    >>> text_hash("see you at noon")
    'd0d660baa4e7e808bb1129196cb6e563'
    """
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def text_hashes(texts: Iterable[Any]) -> TextHashes:
    """The hashes of texts in 64 bits, each once, ascending; texts that differ in spacing only have the same."""
    return np.unique(np.array([short_hash(text) for text in texts], dtype=np.uint64))


def known_texts(texts: Iterable[Any], *hashes: TextHashes) -> npt.NDArray[np.bool_]:
    """Which texts have their hash in one of some sets of `text_hashes`, shape (texts,)."""
    known = np.concatenate([*hashes, np.zeros(0, dtype=np.uint64)])
    return np.isin(np.array([short_hash(text) for text in texts], dtype=np.uint64), known)


def row_hashes(examples: Examples) -> TextHashes:
    """The hashes of rows by number and text, in order: equal texts may stand in rows of different uses."""
    rows = zip(examples.rows, examples.texts, strict=True)
    return np.array([short_hash(f"{number} {text}") for number, text in rows], dtype=np.uint64)


def short_hash(text: Any) -> int:
    """The hash of a text in 64 bits, as in `text_hashes`."""
    return int(text_hash(without_spacing(str(text)))[:16], 16)


def fold_of(text: str, folds: int, seed: int) -> int:
    """The part of a cross-validation that a text belongs to: by its words and the seed, so that repeats stay together.

    >>> sum(fold_of(str(number), 3, 0) == 2 for number in range(9_000))
    2918
    """
    return _drawn(text, seed) * folds >> 64


def _drawn(text: str, seed: int) -> int:
    """A number of 64 bits that depends on the words of a text and a seed only."""
    data = without_spacing(text).encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(data, digest_size=8, key=f"held out {seed}".encode()).digest()
    return int.from_bytes(drawn, "little")


def without_spacing(text: str) -> str:
    """The text with single spaces between its words: the same for texts that differ in spacing only."""
    return " ".join(text.split())


def held_out_rows(
    texts: Iterable[str], labels: Sequence[Any], fraction: float, seed: int, *, least: int = 0
) -> list[bool]:
    """Which rows belong to the held-out set: the same fraction of every class.

    A class of n different texts gives round(fraction · n) of them, and at least ``least``: those with the smallest
    numbers that are drawn from text and seed, but not its only text. Texts that are equal, or differ in spacing only,
    stay together, by their first label.

    >>> sum(held_out_rows(map(str, range(100)), ["a"] * 90 + ["b"] * 10, 0.1, 0)[90:])
    1
    """
    check_probability("fraction", fraction)
    rows = [_drawn(text, seed) for text in texts]
    first: dict[int, Any] = {}
    for number, label in zip(rows, labels, strict=True):
        first.setdefault(number, label)
    numbers: dict[Any, list[int]] = {}
    for number, label in first.items():
        numbers.setdefault(label, []).append(number)
    limits = {}
    for label, drawn in numbers.items():
        count = min(max(least, round(fraction * len(drawn))), len(drawn) - 1)
        limits[label] = sorted(drawn)[count]
    return [number < limits[first[number]] for number in rows]


class SplitTexts(Sequence[Tokens]):
    """The tokens of texts, split whenever they are asked for: a large training set takes the memory of its texts."""

    def __init__(self, texts: Sequence[Any], unit: Unit) -> None:
        self.texts, self.unit = texts, unit

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: Any) -> Any:
        """The tokens of a text; for a slice or a list of rows, some of the texts."""
        if isinstance(row, slice):
            return SplitTexts(self.texts[row], self.unit)
        if isinstance(row, list):
            return SplitTexts([self.texts[number] for number in row], self.unit)
        return self.unit.split(self.texts[row])


@dataclass(frozen=True)
class ExampleSet:
    """Labelled examples, split into tokens: a training set or a validation set."""

    tokens: Sequence[Tokens]
    labels: Sequence[Any]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of tokens of each example."""
        return [len(tokens) for tokens in self.tokens]


def split_held_out(
    examples: ExampleSet, held: Sequence[bool], validation: ExampleSet | None = None
) -> tuple[ExampleSet, ExampleSet]:
    """The training set, and the validation set of the rows that are held out or of its own; both checked."""
    tokens, parts = examples.tokens, []
    for wanted in (False, True):
        rows = [row for row, is_held in enumerate(held) if is_held == wanted]
        chosen = tokens[rows] if isinstance(tokens, SplitTexts) else [tokens[row] for row in rows]
        parts.append(ExampleSet(chosen, [examples.labels[row] for row in rows]))
    training, validation = parts[0], validation or parts[1]
    classes = set(examples.labels)
    if not training.tokens:
        raise ValueError("training needs at least one example, got none")
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two classes, got only {next(iter(classes))!r}")
    if missing := classes - set(training.labels):
        raise ValueError(
            f"the class {sorted(map(str, missing))[0]!r} has no example left to train on: "
            "hold out fewer (validation), or give more examples"
        )
    if unknown := set(validation.labels) - set(training.labels):
        raise ValueError(
            f"the validation examples have a class that training has not: {sorted(map(str, unknown))[0]!r}"
        )
    return training, validation


def _repeated(texts: Sequence[str], labels: Sequence[Label]) -> list[str]:
    """Notes on texts that occur more than once."""
    distinct = len(set(texts))
    if distinct == len(texts):
        return []
    notes = [f"{len(texts) - distinct} texts are repeated"]
    pairs = Counter(zip(texts, labels, strict=True))
    several = {text for text, count in Counter(text for text, _ in pairs).items() if count > 1}
    if not several:
        return notes
    most = Counter(text for text in texts if text in several).most_common(1)[0][0]
    counts = [f"{count} as {short_text(label)}" for (text, label), count in pairs.items() if text == most]
    shown = ", ".join(counts[:NAMED_LABELS])
    return [*notes, f"texts with different labels: {len(several)}, most copies of {short_text(most)}: {shown}"]


def _differing_in_case(labels: Sequence[Any]) -> list[str]:
    """A sentence if labels differ in upper and lower case or in spaces around them only."""
    alike: dict[str, set[str]] = {}
    for label in map(str, set(labels)):
        alike.setdefault(label.strip().casefold(), set()).add(label)
    pairs = [" and ".join(map(repr, sorted(names))) for names in alike.values() if len(names) > 1]
    shown = ", ".join(sorted(pairs)[:NAMED_LABELS])
    return [f"labels differ in case or spaces only: {shown}: are they the same class?"] if pairs else []
