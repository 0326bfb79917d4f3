"""Files of records: JSON lines, CSV or Parquet, gzipped or not, or a data set of Hugging Face. Read one by one."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, AnyStr

Record = Mapping[str, Any] | str  # a text in place of a record says what is wrong with it

ENDINGS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
ACCEPTED = (
    "a .jsonl, .csv, .tsv or .parquet file, also with .gz, or a data set of Hugging Face such as stanfordnlp/imdb"
)
NO_CHARACTERS = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")  # codecs for other ends
LONGEST = 2**28  # characters of a field or a line
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:\w+)?")


class UnreadableError(ValueError):
    """What makes the rest of a file unreadable, from the record on that comes next."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are wanted."""

    text: str
    label: str
    ids: str


def records(path: str, encoding: str, columns: Columns | None = None) -> Iterator[Record]:
    """The records of a file; of a Parquet file with ``columns``, these columns only."""
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
        what = ", got a folder" if file.is_dir() else ""
        raise ValueError(f"{path}: must be {ACCEPTED}{what}")
    encoding = check_encoding(path, encoding)
    with gzip.open(file, "rb") if zipped else file.open("rb") as data:
        if kind == "json":
            yield from _json_records(data, encoding)  # type: ignore[arg-type]
        elif kind == "parquet":
            yield from _parquet_records(io.BytesIO(data.read()) if zipped else file, path, columns)
        else:
            yield from _csv_records(data, encoding, "\t" if kind == "tsv" else ",", path)  # type: ignore[arg-type]


def check_encoding(path: str, encoding: str) -> str:
    """The name of an encoding of text; UTF-8 may begin with a byte order mark in any case."""
    try:
        name = codecs.lookup(encoding).name
        io.TextIOWrapper(io.BytesIO(), encoding).close()  # raises for rot13, hex and zip
        if name in NO_CHARACTERS:
            raise LookupError
    except (LookupError, ValueError, TypeError):
        raise ValueError(
            f"{path}: the encoding must be one of text, such as utf-8, utf-16 or latin-1, got {encoding!r:.60}"
        ) from None
    return "utf-8-sig" if name == "utf-8" else name


def _json_records(data: IO[bytes], encoding: str) -> Iterator[Record]:
    """A record a line; a line that cannot be read is a problem of its own where lines can be told without decoding."""
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
        found = json.loads(text)
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}): every line must be one object"
    except RecursionError:
        return "not JSON that can be read (nested too deeply): every line must be one plain object"
    except ValueError as error:  # a number of thousands of digits
        return f"not JSON that can be read ({str(error).partition(';')[0]}): write such numbers as texts"
    return found if isinstance(found, dict) else f"must be a JSON object, got {text.strip()[:40]!r}"


def not_in(encoding: str, error: UnicodeError) -> str:
    """What to say of bytes that are not text in an encoding."""
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
    except Exception as error:  # whatever the library makes of bytes that are not what they should be
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{path}: {state}: write or copy it anew ({reason})") from None


def _parquet_names(schema: Any, path: str, columns: Columns | None) -> list[str]:
    """The names of the columns; UnreadableError if those of text and labels do not hold such."""
    from pyarrow import types

    names = list(schema.names)
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise UnreadableError(f"the column {doubled!r} is there twice: give every column its own name")
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
    """A batch whose ids can become Python's values: times of nanoseconds cannot."""
    from pyarrow import string, types

    place = -1 if columns is None else batch.schema.get_field_index(columns.ids)
    if place < 0 or not types.is_temporal(batch.schema.field(place).type):
        return batch
    return batch.set_column(place, batch.schema.names[place], batch.column(place).cast(string()))


def missing_column(column: str, known: Sequence[str]) -> str:
    """What to say of a column that is not there."""
    near = get_close_matches(column, known, n=1)
    hint = f"did you mean {near[0]!r:.60}?" if near else f"there are {', '.join(map(repr, known[:9]))[:200] or 'none'}"
    return f"no column {column!r:.60}: {hint}"


def _hub_records(name: str) -> Iterator[Mapping[str, Any]]:
    """The records of a data set of Hugging Face, as NAME or NAME:SPLIT (train, if not given)."""
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{name}: there is no such file, and data sets of Hugging Face need: pip install 'adaptdel[datasets]'"
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
