"""Records of data files: JSON, CSV, TSV and Parquet, also gzipped; and of Hugging Face data sets."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import IO, Any, AnyStr

from adaptdel.text.data_files import HUB, DataFile, DataPath, data_files

Record = Mapping[str, Any] | str  # a str is the error message of an invalid row

NOT_TEXT = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")  # codecs, but not of text files
LONGEST = 2**28  # characters in a field or a line
CHUNK = 2**20  # characters of a JSON array that are read at a time
_SPACE = re.compile(r"\s*")


class UnreadableError(ValueError):
    """The remaining records of a file cannot be read."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns to read."""

    text: str
    label: str


def records(path: DataPath, encoding: str, columns: Columns | None = None) -> Iterator[Record]:
    """Iterate over the records of files, in bounded memory. Of a Parquet file, only ``columns`` are read, if given."""
    for file in data_files(path):
        yield from file_records(file, encoding, columns)


def file_records(file: DataFile, encoding: str, columns: Columns | None = None) -> Iterator[Record]:
    """Iterate over the records of a file, in bounded memory."""
    if file.kind == HUB:
        yield from _hub_records(file.name)
        return
    encoding = check_encoding(file.name, encoding)
    with file.open() as data:
        if file.kind == "json":
            yield from _json_records(data, encoding)
        elif file.kind == "parquet" and file.zipped:
            with tempfile.TemporaryFile() as unpacked:
                shutil.copyfileobj(data, unpacked)
                yield from _parquet_records(unpacked, file.name, columns)
        elif file.kind == "parquet":
            yield from _parquet_records(data, file.name, columns)
        else:
            yield from _csv_records(data, encoding, "\t" if file.kind == "tsv" else ",", file.name)


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
    """One record per line, or an array of records.

    Where line breaks are the same bytes as in ASCII, an undecodable line is an invalid row.
    """
    start = data.read(64)
    data.seek(0)
    if re.match(r"\s*\[\s*(\{|\]|$)", start.decode(encoding, "ignore")):
        with io.TextIOWrapper(data, encoding) as array:
            yield from _json_array(array)
        return
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


def _json_array(file: IO[str]) -> Iterator[Record]:
    """The elements of an array, in bounded memory."""
    decoder, buffer = json.JSONDecoder(), file.read(CHUNK)
    place = buffer.index("[") + 1
    while True:
        place = _skip(buffer, place)
        if buffer.startswith("]", place):
            if (buffer[place + 1 :] + file.read(CHUNK)).strip():
                raise UnreadableError("not JSON: there is text after the end of the array")
            return
        try:
            element, end = decoder.raw_decode(buffer, place)
            end = _skip(buffer, end)
        except (ValueError, RecursionError):
            end = len(buffer)
        if buffer[end : end + 1] in ("]", ","):
            yield element if isinstance(element, dict) else f"must be a JSON object, got {short_text(element)}"
            place = end + (buffer[end] == ",")
            continue
        block = file.read(max(CHUNK, len(buffer)))  # twice as much each time, for an element that is very long
        if not block or len(buffer) - place > LONGEST:
            raise UnreadableError("not JSON: the file must hold an array of objects, or one object a line")
        buffer, place = buffer[place:] + block, 0


def _skip(text: str, place: int) -> int:
    """The place of the next character that is not a space."""
    match = _SPACE.match(text, place)
    return match.end() if match else place


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
    return f"not {name} ({reason}): save the file as UTF-8, or name its encoding, such as --encoding latin-1"


def _csv_records(data: IO[bytes], encoding: str, delimiter: str, path: str) -> Iterator[Record]:
    csv.field_size_limit(LONGEST)  # a text may have a million words
    with io.TextIOWrapper(data, encoding, errors="surrogateescape", newline="") as lines:
        first = lines.readline(LONGEST)
        if delimiter == "," and "," not in first:  # spreadsheets of many countries write semicolons
            delimiter = next((other for other in (";", "\t") if other in first), delimiter)
        rows = csv.reader(chain([first] if first else [], lines), delimiter=delimiter, strict=True)
        header = next(rows, None)
        if header is None:
            raise ValueError(f"{path}: the file is empty")
        named = [name for name in header if name.strip()]  # spreadsheets add empty columns, which have no name
        if len(set(named)) < len(named):
            names = ", ".join(map(repr, named))
            raise ValueError(f"{path}: the header names a column twice: {names[:200]}: give every column its own name")
        for values in rows:
            if len(values) == len(header):
                yield {name: value for name, value in zip(header, values, strict=True) if name.strip()}
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
                rows = batch.to_pylist()
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


def missing_column(column: str, known: Sequence[str], what: str = "text") -> str:
    """The error message for a missing column of texts or labels (``what``)."""
    near = get_close_matches(column, known, n=1)
    hint = f"did you mean {near[0]!r:.60}?" if near else f"there are {', '.join(map(repr, known[:9]))[:200] or 'none'}"
    return f"no column {column!r:.60}: {hint}" + ("" if near or not known else f"; name one with --{what}-column")


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


def short_text(value: Any) -> str:
    """A short description of any value, for messages."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:40] if not isinstance(value, (str, bytes)) else repr(value[:40])
