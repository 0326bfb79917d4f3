"""Files of records: JSON lines, CSV or Parquet, gzipped or not, or a data set of Hugging Face. Read one by one."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

Record = Mapping[str, Any] | str  # a text in place of a record says what is wrong with it

ENDINGS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
ACCEPTED = (
    "a .jsonl, .csv, .tsv or .parquet file, also with .gz, or a data set of Hugging Face such as stanfordnlp/imdb"
)
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:\w+)?")


def records(path: str, encoding: str) -> Iterator[Record]:
    """The records of a file."""
    file = Path(path)
    suffixes = [suffix.lower() for suffix in file.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    named = suffixes[:-1] if zipped else suffixes
    kind = ENDINGS.get(named[-1]) if named else None
    if not file.exists():
        if kind is None and not zipped and _NAME.fullmatch(path):
            yield from _hub_records(path)
            return
        raise ValueError(f"{path}: there is no such file")
    if kind is None or not file.is_file():
        raise ValueError(f"{path}: must be {ACCEPTED}")
    with gzip.open(file, "rb") if zipped else file.open("rb") as data:
        if kind == "json":
            yield from _json_records(data, encoding)  # type: ignore[arg-type]
        elif kind == "parquet":
            yield from _parquet_records(io.BytesIO(data.read()) if zipped else file, path)
        else:
            yield from _csv_records(data, encoding, "\t" if kind == "tsv" else ",", path)  # type: ignore[arg-type]


def _json_records(data: IO[bytes], encoding: str) -> Iterator[Record]:
    for line in data:
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode(encoding))
        except UnicodeDecodeError as error:
            yield f"not {encoding.upper()} ({error.reason}): save the file as UTF-8, or name its encoding"
            continue
        except json.JSONDecodeError as error:
            yield f"not JSON ({error.msg}): every line must be one object"
            continue
        yield (
            found
            if isinstance(found, dict)
            else f"must be a JSON object, got {line[:40].decode(encoding, 'replace')!r}"
        )


def _csv_records(data: IO[bytes], encoding: str, delimiter: str, path: str) -> Iterator[Record]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a text may have a million words
    encoding = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    with io.TextIOWrapper(data, encoding, errors="surrogateescape", newline="") as lines:
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        header = next(rows, None)
        if header is None:
            raise ValueError(f"{path}: the file is empty")
        if len(set(header)) < len(header):
            raise ValueError(f"{path}: the header names a column twice: {', '.join(header)}")
        for values in rows:
            if len(values) == len(header):
                yield dict(zip(header, values, strict=True))
            elif values:
                yield f"must have {len(header)} fields as the header has, got {len(values)}"


def _parquet_records(source: Any, path: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source)
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


def _hub_records(name: str) -> Iterator[Mapping[str, Any]]:
    """The records of a data set of Hugging Face, as NAME or NAME:SPLIT (train, if not given)."""
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{name}: there is no such file, and data sets of Hugging Face need: pip install 'adaptdel[datasets]'"
        ) from None
    path, _, split = name.partition(":")
    try:
        found = iter(datasets.load_dataset(path, split=split or "train", streaming=True))
        first = next(found, None)
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(f"{name}: neither a file nor a data set that can be read: {reason}") from None
    yield from chain([] if first is None else [first], found)
