"""The folder of a run: manifest and tables, and the working store while the run is unfinished.

A finished run is ``manifest.json``, ``certificates.parquet`` with a row for each input, and ``times.parquet``. Times
have a file of their own, so that ``certificates.parquet`` is identical, byte for byte, whenever the same inputs are
certified. An unfinished run has a working store, ``unfinished.sqlite``, in place of the tables; it is deleted once they
are written.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel.certification.certificate import Certificate
from adaptdel.files import parse, replacing, sync_folder, write_json
from adaptdel.runs.manifest import FORMAT, check_manifest, timestamp
from adaptdel.runs.records import CERTIFICATES, TIMES, Record, certificate_of, is_record, with_current_labels
from adaptdel.working_store import WorkingStore, delete_store, read_records

MANIFEST, TABLE, TIMES_TABLE = "manifest.json", "certificates.parquet", "times.parquet"
STORE = "unfinished.sqlite"
JOURNAL = "journal"  # what version 0.1 wrote in place of the working store
GROUP = 1000  # rows that are written together
RESTORE = "copy the run again from its source, or certify again"
KIND = "run"
LEFTOVERS = (".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".journal.", ".signature.json.")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against a second run; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # on Windows the working store alone refuses a second run
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another run is using this folder: wait until it has ended") from None
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that `replacing` left behind when the process was killed."""
    for path in folder.glob(".*.*"):
        if path.name.startswith(LEFTOVERS):
            with suppress(OSError):
                path.unlink()


def open_store(folder: Path) -> WorkingStore:
    """Open the working store of an unfinished run; the journal of version 0.1 is moved into it."""
    store = WorkingStore(folder / STORE, KIND)
    try:
        journal = folder / JOURNAL
        if journal.exists():
            for record in read_journal(journal):
                store.put(record["row"], record)
            store.flush()
            journal.unlink()
            sync_folder(folder)
    except BaseException:
        store.close()
        raise
    return store


def run_records(numbered: Iterable[tuple[int, Any]]) -> Iterator[Record]:
    """The valid records of a working store; the inputs of others are certified again."""
    for number, record in numbered:
        if isinstance(record, dict) and is_record(record) and record["row"] == number:
            yield with_current_labels(record)


def fill_store(folder: Path) -> None:
    """Write the tables of a finished run into a new working store, so that more rows can be certified."""
    drop_store(folder)
    rows, times = _table_rows(folder / TABLE, CERTIFICATES), _table_rows(folder / TIMES_TABLE, TIMES)
    with WorkingStore(folder / STORE, KIND) as store:
        for record, time in zip_longest(rows, times):
            if record is None or time is None:
                raise ValueError(f"{folder / TIMES_TABLE}: must have the rows of {TABLE}: certify into another folder")
            if not is_record(record):
                where = f"{folder / TABLE}, row {record['row']}"
                raise ValueError(f"{where}: not a row of a run: certify into another folder")
            store.put(record["row"], with_current_labels(record) | {"seconds": time["seconds"]})


def drop_store(folder: Path) -> None:
    """Delete the working store of a run that is finished, and the journal of version 0.1."""
    delete_store(folder / STORE)
    with suppress(FileNotFoundError):
        (folder / JOURNAL).unlink()
        sync_folder(folder)


def read_journal(path: Path) -> Iterator[Record]:
    """The intact records in the journal of an unfinished run of version 0.1, in the order they were written.

    A line holds a CRC-32 in eight hexadecimal digits, a space, and the record as JSON.
    """
    with path.open("rb") as file:
        for line in file:
            try:
                if line[8:9] != b" " or line[-1:] != b"\n" or int(line[:8], 16) != zlib.crc32(line[9:-1]):
                    continue
                record = json.loads(line[9:-1])
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and is_record(record):
                yield record


@dataclass(frozen=True)
class Run:
    """The contents of a run.

    Attributes:
        folder: the folder it was read from.
        manifest: the configuration, hashes and versions. Among others ``model_hash``, ``noise``, ``unit``, ``classes``,
            ``threshold``, ``k``, ``ops``, ``bound``, ``alpha``, ``seed``, ``sampling``, ``votes``, ``model``, ``data``.
        table: a row for each input, in the order of the data; see `adaptdel.runs.records` for the columns.
        times: the columns id, row and seconds.
    """

    folder: Path
    manifest: dict[str, Any]
    table: pa.Table
    times: pa.Table

    @property
    def finished(self) -> bool:
        """Whether every input was certified."""
        return self.manifest["finished"] is not None

    def records(self) -> Iterator[Record]:
        """Iterate over the rows as dictionaries."""
        for batch in self.table.to_batches(max_chunksize=GROUP):
            yield from batch.to_pylist()

    def certificates(self) -> Iterator[Certificate]:
        """Iterate over the certificates, rebuilt from manifest and rows; a row with a problem has none."""
        for record in self.records():
            if record["problem"] is None:
                try:
                    certificate = certificate_of(self.manifest, record)
                except ValueError as error:
                    raise ValueError(f"{self.place(record)}: {error}: {RESTORE}") from None
                yield certificate

    @property
    def file(self) -> Path:
        """The file that holds the rows."""
        return self.folder / (TABLE if self.finished else STORE)

    def place(self, record: Record) -> str:
        """The file and the row of a record, for messages."""
        return f"{self.file}, row {record['row']}"


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest["finished"] is None:
        records = _unfinished_records(folder)
        return Run(folder, manifest, _table(records, CERTIFICATES), _table(records, TIMES))
    table = _read_table(folder / TABLE, CERTIFICATES)
    path = folder / TIMES_TABLE
    times = _read_table(path, TIMES) if path.exists() else _table([], TIMES)
    if path.exists() and not times.select(["id", "row"]).equals(table.select(["id", "row"])):
        raise ValueError(f"{path}: must have the rows of {TABLE}, with the same ids: {RESTORE}")
    return Run(folder, manifest, table, times)


def _unfinished_records(folder: Path) -> list[Record]:
    """The records of an unfinished run, in the order of the data."""
    by_row: dict[int, Record] = {}
    if (folder / JOURNAL).exists():
        by_row |= {record["row"]: record for record in read_journal(folder / JOURNAL)}
    if (folder / STORE).exists():
        by_row |= {record["row"]: record for record in run_records(read_records(folder / STORE, KIND))}
    return [by_row[row] for row in sorted(by_row)]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a run."""
    path = folder / MANIFEST
    try:
        return check_manifest(parse(path.read_text(encoding="utf-8"), finite=False))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: not a run: there is no {MANIFEST}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not the manifest of a run: it must be JSON in UTF-8: {RESTORE}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the manifest of a run: {error}: {RESTORE}") from None


def write_run(folder: str | Path, manifest: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write a finished run; ``records`` are those of `adaptdel.runs.records.record_of`, in the order of the data.

    Columns that a record lacks are null. A record may also hold ``seconds``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = timestamp()
    write_tables(folder, records)
    write_json(folder / MANIFEST, {"format": FORMAT, "started": now, "finished": now, **manifest})


def write_tables(folder: Path, records: Iterable[Record]) -> None:
    """Write both tables in bounded memory; each file is complete or does not appear."""
    remaining = iter(records)
    with (
        replacing(folder / TIMES_TABLE) as times_file,
        replacing(folder / TABLE) as certificates_file,
        pq.ParquetWriter(times_file, TIMES, compression="zstd") as times,
        pq.ParquetWriter(certificates_file, CERTIFICATES, compression="zstd") as certificates,
    ):
        while group := list(islice(remaining, GROUP)):
            certificates.write_table(_table(group, CERTIFICATES))
            times.write_table(_table(group, TIMES))


def _table(records: list[Record], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([record.get(name) for record in records], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    with _parquet(path, schema) as parquet:
        table = parquet.read()
        table.validate(full=True)
    return table


def _table_rows(path: Path, schema: pa.Schema) -> Iterator[Record]:
    """Iterate over the rows of a table in bounded memory."""
    with _parquet(path, schema) as parquet:
        for batch in parquet.iter_batches(GROUP):
            batch.validate(full=True)
            yield from batch.to_pylist()


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file with the columns of a schema; ValueError says in one sentence what is wrong with it."""
    try:
        with path.open("rb") as file, pq.ParquetFile(file) as parquet:
            wrong = _wrong_columns(parquet.schema_arrow, schema)
            if wrong is None:
                yield parquet
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from a run that is finished according to its manifest: {RESTORE}") from None
    except PermissionError:
        raise ValueError(f"{path}: must be readable") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ValueError(f"{path}: not a Parquet file, or a damaged one: {RESTORE}") from None
    if wrong is not None:
        raise ValueError(f"{path}: {wrong}: {RESTORE}")


def _wrong_columns(stored: pa.Schema, schema: pa.Schema) -> str | None:
    """Describe what is wrong with the columns of a table; None if nothing is."""
    if stored.names != schema.names:
        return f"must have the columns {', '.join(schema.names)}, got {', '.join(stored.names)}"
    for name in schema.names:
        if stored.field(name).type != schema.field(name).type:
            return f"the column {name} must be of type {schema.field(name).type}, got {stored.field(name).type}"
    return None
