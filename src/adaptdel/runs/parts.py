"""The tables of a run as Parquet files: one file for each, or a folder of parts for a long run.

A run of up to `ROWS_PER_PART` rows has ``certificates.parquet`` and ``times.parquet``. A longer run has the folders
``certificates`` and ``times`` with files ``part-00000.parquet``, ``part-00001.parquet`` and so on, each with the same
range of rows of the data, so that a part can be written as soon as its rows are certified, whatever the order. Both
kinds are read row group by row group.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel.files import replacing, sync_folder
from adaptdel.runs.records import CERTIFICATES, TIMES, Record

TABLE, TIMES_TABLE = "certificates.parquet", "times.parquet"
ROWS_PER_PART = 100_000
GROUP = 1000  # rows that are written together
RESTORE = "copy the run again from its source, or certify again"
_PART = re.compile(r"part-(\d{5,})\.parquet")
_SCHEMAS = {TABLE: CERTIFICATES, TIMES_TABLE: TIMES}


@dataclass(frozen=True)
class RunTables:
    """The tables in the folder of a run.

    Attributes:
        folder: the folder of the run.
        part_rows: the rows of a part; None if each table is one file.
    """

    folder: Path
    part_rows: int | None = None

    def paths(self, name: str = TABLE) -> list[Path]:
        """The files of a table in the order of their rows; a single file is named even if it is missing."""
        if self.part_rows is None:
            return [self.folder / name]
        return [self.part_path(number, name) for number in self.parts(name)]

    def part_path(self, number: int, name: str = TABLE) -> Path:
        """The file of a part."""
        return self.folder / name.removesuffix(".parquet") / f"part-{number:05}.parquet"

    def parts(self, name: str = TABLE) -> list[int]:
        """The numbers of the parts that are there, in order."""
        folder = self.folder / name.removesuffix(".parquet")
        names = (_PART.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
        return sorted(int(match[1]) for match in names if match)

    def final_parts(self) -> list[int]:
        """The numbers of the parts of an unfinished run that were written as a whole, in order."""
        return sorted({*self.parts(TABLE)} & {*self.parts(TIMES_TABLE)})

    def part_of(self, row: int) -> int:
        """The number of the part that holds a row."""
        assert self.part_rows is not None
        return (row - 1) // self.part_rows

    def path_of(self, row: int) -> Path:
        """The file that holds the certificate of a row."""
        return self.folder / TABLE if self.part_rows is None else self.part_path(self.part_of(row))

    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file of the tables, by its name in the folder of the run."""
        names: dict[str, str] = {}
        for path in [*self.paths(TABLE), *self.paths(TIMES_TABLE)]:
            try:
                with path.open("rb") as file:
                    names[path.relative_to(self.folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                raise _missing(path) from None
            except OSError as error:
                raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        return names

    def check_digests(self, stated: Mapping[str, str]) -> None:
        """Raise a ValueError unless the files are those that a manifest states."""
        there = self.digests()
        for name in sorted({*there, *stated}):
            if name not in there:
                raise _missing(self.folder / name)
            if there[name] != stated.get(name):
                raise ValueError(f"{self.folder / name}: not the file that the manifest of the run states: {RESTORE}")

    def batches(self, name: str = TABLE, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a table in batches, in bounded memory; ValueError says what is wrong with a file."""
        for path in self.paths(name):
            yield from file_batches(path, _SCHEMAS[name], columns)

    def rows(self, name: str = TABLE, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """The rows of a table as dictionaries, in bounded memory."""
        for batch in self.batches(name, columns):
            yield from batch.to_pylist()

    def write(self, records: Iterable[Record]) -> None:
        """Write both tables in bounded memory; records come in the order of the data, each with its ``seconds``."""
        remaining = iter(records)
        if self.part_rows is None:
            _write_pair(self.folder / TABLE, self.folder / TIMES_TABLE, remaining)
            return
        number = 0
        while (first := next(remaining, None)) is not None:
            self.write_part(number, _chain(first, islice(remaining, self.part_rows - 1)))
            number += 1

    def write_part(self, number: int, records: Iterable[Record]) -> None:
        """Write a part of both tables; that of the times appears last, see `final_parts`."""
        path, times = self.part_path(number), self.part_path(number, TIMES_TABLE)
        for file in (path, times):
            if not file.parent.is_dir():
                file.parent.mkdir()
                sync_folder(self.folder)
        _write_pair(path, times, iter(records))

    def remove_part(self, number: int) -> None:
        """Delete a part."""
        for name in (TIMES_TABLE, TABLE):
            self.part_path(number, name).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                sync_folder(self.part_path(number, name).parent)

    def part_size(self, number: int) -> int:
        """The number of rows of a part that is there."""
        with _parquet(self.part_path(number), CERTIFICATES) as parquet:
            return int(parquet.metadata.num_rows)

    def part_records(self, number: int) -> Iterator[Record]:
        """The rows of a part with their times."""
        rows, times = (self.part_path(number, name) for name in (TABLE, TIMES_TABLE))
        yield from with_seconds(file_rows(rows, CERTIFICATES), file_rows(times, TIMES), times)

    def remove_others(self) -> None:
        """Delete the tables of the other kind, which an earlier and shorter run in this folder has left."""
        for name in (TABLE, TIMES_TABLE):
            if self.part_rows is None:
                shutil.rmtree(self.folder / name.removesuffix(".parquet"), ignore_errors=True)
            else:
                (self.folder / name).unlink(missing_ok=True)


def with_seconds(rows: Iterator[Record], times: Iterator[Record], path: Path) -> Iterator[Record]:
    """Rows together with their times; ValueError if the table of times has other rows."""
    for record, time in zip_longest(rows, times):
        if record is None or time is None or (time["id"], time["row"]) != (record["id"], record["row"]):
            raise ValueError(f"{path}: must have the rows of {TABLE}, with the same ids: {RESTORE}")
        yield record | {"seconds": time["seconds"]}


def table_of(records: Sequence[Record], schema: pa.Schema) -> pa.Table:
    """Records as a table; columns that a record lacks are null."""
    columns = [pa.array([record.get(name) for record in records], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def file_rows(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """The rows of a file as dictionaries, in bounded memory."""
    for batch in file_batches(path, schema, columns):
        yield from batch.to_pylist()


def file_batches(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file in batches, in bounded memory."""
    with _parquet(path, schema) as parquet:
        for batch in parquet.iter_batches(GROUP, columns=None if columns is None else list(columns)):
            batch.validate(full=True)
            yield batch


def _chain(first: Record, others: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from others


def _write_pair(path: Path, times_path: Path, records: Iterator[Record]) -> None:
    """Write a file of certificates and that of their times; each is complete or does not appear."""
    with (
        replacing(times_path) as times_file,
        replacing(path) as certificates_file,
        pq.ParquetWriter(times_file, TIMES, compression="zstd") as times,
        pq.ParquetWriter(certificates_file, CERTIFICATES, compression="zstd") as certificates,
    ):
        while group := list(islice(records, GROUP)):
            certificates.write_table(table_of(group, CERTIFICATES))
            times.write_table(table_of(group, TIMES))


def _missing(path: Path) -> ValueError:
    return ValueError(f"{path}: missing from a run that is finished according to its manifest: {RESTORE}")


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file with the columns of a schema; ValueError says in one sentence what is wrong with it."""
    try:
        with path.open("rb") as file, pq.ParquetFile(file) as parquet:
            is_right = parquet.schema_arrow.equals(schema)
            if is_right:
                yield parquet
    except FileNotFoundError:
        raise _missing(path) from None
    except PermissionError:
        raise ValueError(f"{path}: must be readable") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ValueError(f"{path}: not a Parquet file, or a damaged one: {RESTORE}") from None
    if not is_right:
        raise ValueError(f"{path}: must have the columns {', '.join(schema.names)} with their types: {RESTORE}")
