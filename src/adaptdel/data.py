"""Labelled data: JSON lines, CSV, TSV and Parquet files, also gzipped, and Hugging Face data sets."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, AnyStr

from adaptdel.core.checks import check_probability
from adaptdel.settings import DATA
from adaptdel.units import Tokens

Record = Mapping[str, Any] | str  # a str is the error message of an invalid row

ENDINGS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
ACCEPTED = "a .jsonl, .csv, .tsv or .parquet file, also with .gz, or a Hugging Face data set such as stanfordnlp/imdb"
NOT_TEXT = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")  # codecs, but not of text files
LONGEST = 2**28  # characters in a field or a line
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:\w+)?")


class UnreadableError(ValueError):
    """The remaining records of a file cannot be read."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns to read."""

    text: str
    label: str
    ids: str


def records(path: str, encoding: str, columns: Columns | None = None) -> Iterator[Record]:
    """Iterate over the records of a file. Of a Parquet file, only ``columns`` are read, if given."""
    file = Path(path)
    suffixes = [suffix.lower() for suffix in file.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    named = suffixes[:-1] if zipped else suffixes
    kind = ENDINGS.get(named[-1]) if named else None
    if "\0" in path or not file.exists():
        if kind is None and not zipped and _NAME.fullmatch(path):
            yield from _hub_records(path)
            return
        raise ValueError(f"{path!r:.80}: there is no such file" if "\0" in path else f"{path}: there is no such file")
    if kind is None or not file.is_file():
        got = ", got a folder" if file.is_dir() else ""
        raise ValueError(f"{path}: must be {ACCEPTED}{got}")
    encoding = check_encoding(path, encoding)
    with gzip.open(file, "rb") if zipped else file.open("rb") as data:
        if kind == "json":
            yield from _json_records(data, encoding)  # type: ignore[arg-type]
        elif kind == "parquet":
            yield from _parquet_records(io.BytesIO(data.read()) if zipped else file, path, columns)
        else:
            yield from _csv_records(data, encoding, "\t" if kind == "tsv" else ",", path)  # type: ignore[arg-type]


def check_encoding(path: str, encoding: str) -> str:
    """The normalized name of a text encoding. UTF-8 becomes utf-8-sig, which accepts a byte order mark."""
    try:
        name = codecs.lookup(encoding).name
        io.TextIOWrapper(io.BytesIO(), encoding).close()  # raises for rot13, hex and zip
        if name in NOT_TEXT:
            raise LookupError
    except (LookupError, ValueError, TypeError):
        raise ValueError(
            f"{path}: the encoding must be one of text, such as utf-8, utf-16 or latin-1, got {encoding!r:.60}"
        ) from None
    return "utf-8-sig" if name == "utf-8" else name


def _json_records(data: IO[bytes], encoding: str) -> Iterator[Record]:
    """One record per line. Where line breaks are the same bytes as in ASCII, an undecodable line is an invalid row."""
    if encoding != "utf-8-sig" and "\n{".encode(encoding) != b"\n{":  # such as UTF-16
        with io.TextIOWrapper(data, encoding, newline="\n") as lines:
            yield from (_json_record(text) for text in _lines(lines) if text.strip())
        return
    for number, line in enumerate(_lines(data)):
        if not line.strip():
            continue
        try:
            text = line.decode(encoding if number == 0 or encoding != "utf-8-sig" else "utf-8")
        except UnicodeError as error:
            yield not_in(encoding, error)
        else:
            yield _json_record(text)


def _lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise UnreadableError(f"longer than {LONGEST} characters: every line must be one object")
        yield line


def _json_record(text: str) -> Record:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}): every line must be one object"
    except RecursionError:
        return "not JSON that can be read (nested too deeply): every line must be one plain object"
    except ValueError as error:  # a number of thousands of digits
        return f"not JSON that can be read ({str(error).partition(';')[0]}): write such numbers as texts"
    return record if isinstance(record, dict) else f"must be a JSON object, got {text.strip()[:40]!r}"


def not_in(encoding: str, error: UnicodeError) -> str:
    """The error message for bytes that cannot be decoded."""
    reason = getattr(error, "reason", None) or str(error)
    name = encoding.removesuffix("-sig").upper()
    return f"not {name} ({reason}): save the file as UTF-8, or name its encoding, such as latin-1"


def _csv_records(data: IO[bytes], encoding: str, delimiter: str, path: str) -> Iterator[Record]:
    csv.field_size_limit(LONGEST)  # a text may have a million words
    with io.TextIOWrapper(data, encoding, errors="surrogateescape", newline="") as lines:
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        header = next(rows, None)
        if header is None:
            raise ValueError(f"{path}: the file is empty")
        if len(set(header)) < len(header):
            names = ", ".join(map(repr, header))
            raise ValueError(f"{path}: the header names a column twice: {names[:200]}: give every column its own name")
        for values in rows:
            if len(values) == len(header):
                yield dict(zip(header, values, strict=True))
            elif values:
                yield f"must have {len(header)} fields as the header has, got {len(values)}"


def _parquet_records(source: Any, path: str, columns: Columns | None) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    done, state = 0, "not a Parquet file"
    try:
        with pyarrow.parquet.ParquetFile(source) as file:
            schema, state = file.schema_arrow, "the Parquet file is damaged"
            names = _parquet_names(schema, path, columns)
            wanted = None if columns is None else [name for name in names if name in vars(columns).values()]
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                rows = _plain(batch, columns).to_pylist()
                for row in rows:
                    yield row if wanted is None else {name: row[name] for name in wanted}
                done += len(rows)
                state = f"the Parquet file is damaged after row {done}"
    except UnreadableError as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:  # pyarrow raises many types of exception for damaged files
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{path}: {state}: write or copy it again ({reason})") from None


def _parquet_names(schema: Any, path: str, columns: Columns | None) -> list[str]:
    """The names of the columns; UnreadableError if the text or label column has the wrong type."""
    from pyarrow import types

    names = list(schema.names)
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UnreadableError(f"the column {repeated!r} occurs twice: give every column its own name")
    if columns is None:
        return names
    if columns.text not in names:
        raise UnreadableError(missing_column(columns.text, names))
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    for name, accepted, what in (
        (columns.text, texts, "text"),
        (columns.label, (*texts, *numbers), "whole numbers or names"),
    ):
        if name not in names:
            continue
        kind = schema.field(name).type
        if not any(check(kind.value_type if types.is_dictionary(kind) else kind) for check in accepted):
            raise UnreadableError(f"the column {name!r} must hold {what}, got the type {kind!s:.60}")
    return names


def _plain(batch: Any, columns: Columns | None) -> Any:
    """The batch with ids that are times converted to text: Python has no type for nanoseconds."""
    from pyarrow import string, types

    index = -1 if columns is None else batch.schema.get_field_index(columns.ids)
    if index < 0 or not types.is_temporal(batch.schema.field(index).type):
        return batch
    return batch.set_column(index, batch.schema.names[index], batch.column(index).cast(string()))


def missing_column(column: str, known: Sequence[str]) -> str:
    """The error message for a missing column."""
    near = get_close_matches(column, known, n=1)
    hint = f"did you mean {near[0]!r:.60}?" if near else f"there are {', '.join(map(repr, known[:9]))[:200] or 'none'}"
    return f"no column {column!r:.60}: {hint}"


def _hub_records(name: str) -> Iterator[Mapping[str, Any]]:
    """Iterate over a Hugging Face data set, given as NAME or NAME:SPLIT; the default split is train."""
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{name}: there is no such file, and Hugging Face data sets need: pip install 'adaptdel[datasets]'"
        ) from None
    path, _, split = name.partition(":")
    done = 0
    try:
        for record in datasets.load_dataset(path, split=split or "train", streaming=True):
            yield record
            done += 1
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        state = f"cannot be read after row {done}" if done else "neither a file nor a data set that can be read"
        raise ValueError(f"{name}: {state}: {reason}") from None


Label = int | str
Problem = Callable[[int, str], None]
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Row:
    """A row of a file, numbered from 1 without the header of a CSV file. Missing values are None."""

    number: int
    id: str | None
    text: str
    label: Label | None


def read_rows(
    path: str | Path,
    *,
    text: str = DATA.text,
    label: str = DATA.label,
    ids: str = DATA.ids,
    encoding: str = DATA.encoding,
    labelled: bool = False,
    on_problem: Problem | None = None,
) -> Iterator[Row]:
    """Iterate over the rows of a file, in bounded memory.

    Args:
        path: a file, or the name of a Hugging Face data set.
        text: the name of the column of texts.
        label: the name of the column of labels.
        ids: the name of the column of ids.
        encoding: the encoding of CSV, TSV and JSON lines files.
        labelled: whether a row without a label is invalid.
        on_problem: called with the row number and a message for each invalid row, which is then skipped. Without it, an
            invalid row raises a ValueError that names the file and the row. A file whose remaining rows cannot be read
            always raises one.
    """
    number = 0
    loose = any(suffix.lower() in (".csv", ".tsv") for suffix in Path(path).suffixes)
    try:
        for number, record in enumerate(records(str(path), encoding, Columns(text, label, ids)), start=1):
            try:
                yield _row(number, record, text, label, ids, labelled=labelled, loose=loose)
            except ValueError as error:
                if on_problem is None:
                    raise ValueError(f"{path}, row {number}: {error}") from None
                on_problem(number, str(error))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path}: the gzip file is damaged after row {number}: create or copy it again") from None
    except csv.Error as error:
        advice = "put fields that hold commas, quotes or line breaks in double quotes"
        raise ValueError(f"{path}, row {number + 1}: not CSV: {error}: {advice}") from None
    except UnicodeError as error:
        raise ValueError(f"{path}, row {number + 1}: {not_in(encoding, error)}") from None
    except UnreadableError as error:
        raise ValueError(f"{path}, row {number + 1}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def _row(number: int, record: Record, text: str, label: str, ids: str, *, labelled: bool, loose: bool) -> Row:
    if isinstance(record, str):
        raise ValueError(record)
    for column in (text, label) if labelled else (text,):
        if column not in record:
            raise ValueError(missing_column(column, [str(name) for name in record]))
    content = record[text]
    if not isinstance(content, str):
        raise ValueError(f"the column {text!r} must hold text, got {_short(content)}")
    name, answer = record.get(ids), _label(record.get(label), label, loose=loose)
    if labelled and answer is None:
        raise ValueError(f"no label in the column {label!r}: give every row one, or leave the row out")
    name = None if name is None else str(name)
    for column, value in ((text, content), (label, answer), (ids, name)):
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            if loose:
                raise ValueError("not UTF-8: save the file as UTF-8, or name its encoding, such as latin-1")
            raise ValueError(f"the column {column!r} holds half of a surrogate pair: remove it")
    return Row(number, name, content, answer)


def _label(value: Any, column: str, *, loose: bool) -> Label | None:
    """The label as int or str, or None if it is empty; ``loose`` converts digits to int, for formats without types."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return int(value) if loose and _WHOLE.fullmatch(value.strip()) else value
    if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()):
        if abs(value) >= 2**63:
            raise ValueError(f"the column {column!r} must hold names or numbers below 2**63, got {_short(value)}")
        return int(value)
    raise ValueError(f"the column {column!r} must hold whole numbers or names, got {_short(value)}")


def _short(value: Any) -> str:
    """A short description of any value, for messages."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:40] if not isinstance(value, (str, bytes)) else repr(value[:40])


@dataclass(frozen=True)
class Examples:
    """The rows of a labelled file.

    Attributes:
        texts: the texts.
        labels: the labels, all int or all str.
        ids: the values of the id column; the row number where it is missing.
        digest: the SHA-256 of texts and labels, the same for every file format.
        notes: messages about skipped, repeated and contradictory rows.
    """

    texts: list[str]
    labels: list[Label]
    ids: list[str]
    digest: str
    notes: list[str] = field(default_factory=list)


def read_examples(
    path: str | Path,
    *,
    text: str = DATA.text,
    label: str = DATA.label,
    ids: str = DATA.ids,
    encoding: str = DATA.encoding,
) -> Examples:
    """Read all rows of a labelled file, for training and calibration. Empty texts are skipped; see `Examples.notes`."""
    rows, empty = [], 0
    for row in read_rows(path, text=text, label=label, ids=ids, encoding=encoding, labelled=True):
        if row.text.strip():
            rows.append(row)
        else:
            empty += 1
    if not rows:
        raise ValueError(f"{path}: holds no {'rows' if not empty else 'text that is not empty'}")
    labels = same_type([row.label for row in rows if row.label is not None])
    notes = [f"{empty} empty texts were skipped"] if empty else []
    texts = [row.text for row in rows]
    return Examples(
        texts,
        labels,
        [row.id if row.id is not None else str(row.number) for row in rows],
        content_digest(texts, labels),
        notes + _repeated(texts, labels),
    )


def same_type(labels: Sequence[Label]) -> list[Label]:
    """The labels unchanged if all are int, otherwise all as str: a file may use both 1 and "spam" as labels."""
    if all(isinstance(label, int) for label in labels):
        return list(labels)
    return [str(label) for label in labels]


def content_digest(texts: Iterable[str], labels: Iterable[Label]) -> str:
    """The SHA-256 of texts and labels, in order."""
    digest = hashlib.sha256()
    for row in zip(texts, labels, strict=True):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def held_out(text: str, share: float, seed: int) -> bool:
    """Whether a text belongs to the held-out set.

    The decision depends on the text and the seed only, so duplicates stay together.

    >>> sum(held_out(str(number), 0.1, 0) for number in range(10_000))
    949
    """
    return _drawn(text, seed) < check_probability("share", share) * 2.0**64


def _drawn(text: str, seed: int) -> int:
    """A number of 64 bits that depends on a text and a seed only."""
    data = text.encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(data, digest_size=8, key=f"held out {seed}".encode()).digest()
    return int.from_bytes(drawn, "little")


def held_out_rows(texts: Iterable[str], labels: Sequence[Any], share: float, seed: int) -> list[bool]:
    """Which rows belong to the held-out set: the same share of every class.

    A class of n examples gives round(share · n) of them, those with the smallest numbers that are drawn from text and
    seed, but not its only example. Equal texts stay together, by their first label.

    >>> sum(held_out_rows(map(str, range(100)), ["a"] * 90 + ["b"] * 10, 0.1, 0)[90:])
    1
    """
    check_probability("share", share)
    listed = list(texts)
    first: dict[str, Any] = {}
    for text, label in zip(listed, labels, strict=True):
        first.setdefault(text, label)
    numbers: dict[Any, list[int]] = {}
    for text, label in first.items():
        numbers.setdefault(label, []).append(_drawn(text, seed))
    limits = {}
    for label, drawn in numbers.items():
        count = min(round(share * len(drawn)), len(drawn) - 1)
        limits[label] = sorted(drawn)[count]
    return [_drawn(text, seed) < limits[first[text]] for text in listed]


@dataclass(frozen=True)
class ExampleSet:
    """Labelled examples, split into tokens: a training set or a validation set."""

    tokens: Sequence[Tokens]
    labels: Sequence[Any]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each example."""
        return [len(tokens) for tokens in self.tokens]


def split_held_out(
    examples: ExampleSet,
    texts: Iterable[str],
    *,
    fraction: float,
    seed: int,
    validation: ExampleSet | None = None,
) -> tuple[ExampleSet, ExampleSet]:
    """The training set and the validation set, both checked.

    Args:
        examples: all examples.
        texts: the text of each example, which decides whether it is held out: see `held_out_rows`.
        fraction: the fraction to hold out.
        seed: of the choice.
        validation: a validation set of its own, with ``fraction=0``.
    """
    held = held_out_rows(texts, examples.labels, fraction, seed) if fraction > 0 else [False] * len(examples.labels)
    training, chosen = (_selected(examples, [is_held == wanted for is_held in held]) for wanted in (False, True))
    validation = chosen if validation is None else validation
    classes = set(examples.labels)
    if not training.tokens:
        raise ValueError("training needs at least one example, got none")
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two classes, got only {next(iter(classes))!r}")
    missing = classes - set(training.labels)
    if missing:
        raise ValueError(
            f"the class {sorted(map(str, missing))[0]!r} has no example left to train on: "
            "hold out fewer (validation), or give more examples"
        )
    unknown = set(validation.labels) - set(training.labels)
    if unknown:
        raise ValueError(
            f"the validation examples have a class that training has not: {sorted(map(str, unknown))[0]!r}"
        )
    return training, validation


def _selected(examples: ExampleSet, wanted: Sequence[bool]) -> ExampleSet:
    rows = [row for row, use in zip(zip(examples.tokens, examples.labels, strict=True), wanted, strict=True) if use]
    return ExampleSet([tokens for tokens, _ in rows], [label for _, label in rows])


def _repeated(texts: Sequence[str], labels: Sequence[Label]) -> list[str]:
    """Notes on texts that occur more than once."""
    distinct = len(set(texts))
    if distinct == len(texts):
        return []
    notes = [f"{len(texts) - distinct} texts are repeated"]
    labels_per_text = Counter(text for text, _ in set(zip(texts, labels, strict=True)))
    contradictory = sum(1 for count in labels_per_text.values() if count > 1)
    return [*notes, f"{contradictory} texts occur with different labels"] if contradictory else notes
