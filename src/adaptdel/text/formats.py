"""The records of the files that ``--data`` names: files, globs, folders, addresses such as s3://.

Files are JSON (an object a line, or an array), CSV, TSV or Parquet, also gzipped. Those of a glob or a folder are read
in the order of their names, so that the rows have the same numbers everywhere. fsspec, an extra, opens addresses with a
scheme. A name that is no file is a data set of Hugging Face. Everything but a JSON array is read as a stream.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from glob import glob, has_magic
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

from adaptdel.progress import reporter

DataPath = str | Path | Sequence[str | Path]
Record = Mapping[str, Any] | str  # a str is the error message of an invalid row

ENDINGS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
ACCEPTED = (
    "a .jsonl, .json, .csv, .tsv or .parquet file, also with .gz, a folder of such files, or a Hugging "
    "Face data set such as stanfordnlp/imdb"
)
HUB = "hub"
LONGEST_LINE = 2**28  # characters; the same for an array and for a field of a CSV file
BATCH_ROWS = 8  # of a Parquet file: repeated texts of a megabyte each take a few kilobytes before they are unpacked
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(:\w+)?")


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, or the name of a data set of Hugging Face."""

    name: str  # how messages call it
    path: str  # on a remote file system, its path there
    kind: str  # the format: "json", "csv", "tsv", "parquet" or "hub"; "" if the ending is unknown
    zipped: bool = False  # whether it is gzipped
    system: Any = None  # the file system of fsspec; None for a local file

    @property
    def is_remote(self) -> bool:
        """Whether fsspec reads the file."""
        return self.system is not None

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes of the file, unpacked if it is gzipped."""
        with Path(self.path).open("rb") if self.system is None else self.system.open(self.path, "rb") as data:
            if not self.zipped:
                yield data
                return
            with gzip.open(data) as unpacked:
                yield unpacked  # type: ignore[misc]

    def identity(self, progress: Any = False) -> tuple[int, str]:
        """The size in bytes, and the SHA-256 of the file as it is stored; ``progress`` is as in `reporter`.

        A remote file is not read: its path, its size and what the file system states, such as an ETag, are hashed.
        """
        try:
            if self.system is None:
                size, digest = Path(self.path).stat().st_size, hashlib.sha256()
                report = reporter(progress, f"{self.name}: MiB hashed")
                with Path(self.path).open("rb") as file:
                    while block := file.read(2**20):
                        digest.update(block)
                        if report is not None:
                            report(file.tell() >> 20, size >> 20)
                return size, digest.hexdigest()
            size = int(self.system.size(self.path) or 0)
            stated = f"{self.name} {size} {self.system.ukey(self.path)}"
        except Exception as error:  # every file system raises its own
            raise unreadable(self.name, error) from None
        return size, hashlib.sha256(stated.encode("utf-8", "surrogatepass")).hexdigest()


def unreadable(name: str, error: Exception) -> ValueError:
    """The error for data that cannot be read, in one sentence."""
    reason = " ".join((getattr(error, "strerror", None) or str(error)).split())[:200] or type(error).__name__
    if isinstance(error, UnicodeError):
        reason += ": save the file as UTF-8, or name its encoding, such as --encoding latin-1"
    elif isinstance(error, csv.Error):
        reason += ": put fields that hold commas, quotes or line breaks in double quotes"
    return ValueError(f"{name}: cannot be read: {reason}")


def data_files(data: DataPath) -> list[DataFile]:
    """The files of a data set in the order in which they are read; ValueError if there is none, or one is missing."""
    listed = [data] if isinstance(data, (str, Path)) else data
    return [file for name in listed for file in _files(str(name))]


def shown_name(data: DataPath) -> str:
    """The name of a data set in messages.

    >>> shown_name(["a.jsonl", "b.jsonl", "c.jsonl"])
    'a.jsonl and 2 more'
    """
    if isinstance(data, (str, Path)):
        return str(data)
    return ", ".join(map(str, data[:1])) + (f" and {len(data) - 1} more" if len(data) > 1 else "")


def _files(name: str) -> list[DataFile]:
    if _ADDRESS.match(name):
        return _remote_files(name)
    path = Path(name)
    if path.is_dir():
        if not any(path.iterdir()):
            raise ValueError(f"{name}: the folder is empty")
        below = [file for file in path.rglob("*") if file.is_file() and _is_visible(file.relative_to(path).parts)]
        return _data_files_of(name, [_data_file(str(file), str(file)) for file in sorted(below)])
    if path.exists():
        return _data_files_of(name, [_data_file(name, name)])
    if has_magic(name):
        return _data_files_of(name, [_data_file(file, file) for file in sorted(glob(name, recursive=True))])
    if not _data_file(name, name).kind and _NAME.fullmatch(name):
        return [DataFile(name, name, HUB)]
    raise ValueError(f"{name}: there is no such file")


def _remote_files(address: str) -> list[DataFile]:
    """The files at an address, in a folder there, or of a glob."""
    try:
        import fsspec.core

        system, path = fsspec.core.url_to_fs(address)
        depth = len(PurePosixPath(path).parts)
        paths = sorted(map(str, system.glob(path) if has_magic(path) else system.find(path)))
    except ImportError as error:
        raise ImportError(f"{address}: {error}: pip install 'adaptdel[remote]', or what it names") from None
    except Exception as error:  # every file system raises its own
        raise unreadable(address, error) from None
    visible = [path for path in paths if _is_visible(PurePosixPath(path).parts[depth:])]
    return _data_files_of(address, [_data_file(str(system.unstrip_protocol(path)), path, system) for path in visible])


def _is_visible(parts: Sequence[str]) -> bool:
    """Whether a file below a folder is not hidden and not left by another tool, such as _SUCCESS."""
    return not any(part.startswith((".", "_")) for part in parts)


def _data_file(name: str, path: str, system: Any = None) -> DataFile:
    """A file with the format that its ending names."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    zipped = suffixes[-1:] == [".gz"]
    named = suffixes[:-1] if zipped else suffixes
    return DataFile(name, path, ENDINGS.get(named[-1], "") if named else "", zipped, system)


def _data_files_of(name: str, files: list[DataFile]) -> list[DataFile]:
    """The data files among those that a name stands for; they must have one format."""
    known = [file for file in files if file.kind]
    kinds = sorted({file.kind for file in known})
    if not files:
        raise ValueError(f"{name}: there is no such file")
    if not known:
        raise ValueError(f"{name}: must be {ACCEPTED}")
    for file in known:
        if not (file.is_remote or Path(file.path).is_file()):
            raise ValueError(f"{file.name}: must be a regular file, which can be read more than once")
    if len(kinds) > 1:
        raise ValueError(
            f"{name}: holds files of several formats ({', '.join(kinds)}): name those to read, as in *.csv"
        )
    return known


def file_records(file: DataFile, encoding: str, columns: Sequence[str]) -> Iterator[Record]:
    """Iterate over the records of a file; ``columns`` are those of the texts and the labels."""
    if file.kind == HUB:
        yield from _hub_records(file.name)
        return
    with file.open() as data:
        if file.kind == "parquet":
            yield from _parquet_records(data, columns)
        elif file.kind == "json":
            yield from _json_records(data, encoding)
        else:
            yield from _csv_records(data, encoding, "\t" if file.kind == "tsv" else ",")


def _json_records(data: IO[bytes], encoding: str) -> Iterator[Record]:
    """One record per line, or an array of records, which is read as a whole."""
    with _text(data, encoding, "\n") as file:
        lines = _lines(file)
        first = next((line for line in lines if not line.isspace()), "")
        if first.lstrip().startswith("["):
            rest = file.read(LONGEST_LINE - len(first) + 1)
            if len(first) + len(rest) > LONGEST_LINE:
                raise ValueError(f"the array is longer than {LONGEST_LINE:,} characters: write one object a line")
            try:
                elements = json.loads(first + rest)
            except (ValueError, RecursionError) as error:
                advice = "the file must hold an array of objects, or one object a line"
                raise ValueError(f"not JSON ({error}): {advice}") from None
            yield from map(_json_object, elements)
            return
        for line in chain([first], lines):
            if line.strip():
                try:
                    record = _json_object(json.loads(line))
                except (ValueError, RecursionError) as error:
                    record = f"not JSON ({error}): every line must be one object"
                yield record


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"the next line is longer than {LONGEST_LINE:,} characters: split it, or leave it out")
        yield line


def _json_object(value: Any) -> Record:
    return value if isinstance(value, dict) else f"must be a JSON object, got {short_text(value)}"


def _text(data: IO[bytes], encoding: str, newline: str) -> io.TextIOWrapper:
    """Decode a file; a byte that is not in the encoding becomes a surrogate, so that only its row is invalid."""
    try:
        name = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
        return io.TextIOWrapper(data, name, errors="surrogateescape", newline=newline)
    except (LookupError, ValueError):
        raise ValueError(f"the encoding must be one of text, such as utf-8, got {encoding!r:.60}") from None


def _csv_records(data: IO[bytes], encoding: str, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_LINE)
    with _text(data, encoding, "") as file:
        lines = _lines(file)
        first = next(lines, "")
        if delimiter == "," and "," not in first:  # spreadsheets of many countries write semicolons
            delimiter = next((other for other in (";", "\t") if other in first), delimiter)
        rows = csv.reader(chain([first] if first else [], lines), delimiter=delimiter, strict=True)
        header = next(rows, [])
        named = [name for name in header if name.strip()]  # spreadsheets add empty columns, which have no name
        if len(set(named)) < len(named):
            raise ValueError(f"the header names a column twice: {', '.join(map(repr, named))[:200]}")
        for values in rows:
            if len(values) == len(header):
                yield dict(zip(header, values, strict=True))
            elif values:
                yield f"must have {len(header)} fields as the header has, got {len(values)}"


def _parquet_records(source: Any, columns: Sequence[str]) -> Iterator[Record]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(source, pre_buffer=False) as file:  # no threads: see runs/storage
        names = file.schema_arrow.names
        check_column(columns[0], names)
        wanted = [name for name in columns if name in names]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):  # as in runs/storage
            yield from batch.to_pylist()


def check_column(column: str, names: Iterable[str]) -> None:
    """Raise a ValueError unless the column of the texts is there."""
    known = [name for name in map(str, names) if name.strip()]
    if column not in known:
        near = get_close_matches(column, known, n=1)
        hint = f"did you mean {near[0]!r:.60}" if near else f"there are {', '.join(map(repr, known))[:200] or 'none'}"
        raise ValueError(f"no column {column!r:.60}: {hint}: name it with --text-column")


def _hub_records(name: str) -> Iterator[Record]:
    """Iterate over a Hugging Face data set, given as NAME or NAME:SPLIT; the default split is train."""
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{name}: there is no such file, and Hugging Face data sets need: pip install 'adaptdel[datasets]'"
        ) from None
    path, _, split = name.partition(":")
    try:
        data = datasets.load_dataset(path, split=split or "train", streaming=True)
    except Exception as error:
        raise ValueError(f"neither a file nor a data set of Hugging Face: {error}") from None
    yield from data


def short_text(value: Any) -> str:
    """A short description of any value, for messages."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:40] if not isinstance(value, (str, bytes)) else repr(value[:40])
