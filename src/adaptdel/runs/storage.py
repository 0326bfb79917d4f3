"""The folder of a run: manifest, tables, and the journal while it is under way.

A finished run is ``manifest.json`` and ``certificates.parquet`` with one row an input. Beside them stands
``times.parquet``, so that everything else is the same to the byte whenever the same is certified.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import LARGEST_LENGTH
from adaptdel.files import parse, replacing, sync_folder, write_json
from adaptdel.runs.manifest import FORMAT, check_manifest, timestamp
from adaptdel.runs.records import CERTIFICATES, TIMES, Record, certificate_of

LEFTOVERS = (".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".journal.", ".signature.json.")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of a folder; the lock ends with the program, however it ends."""
    try:
        import fcntl
    except ImportError:  # on Windows two runs into one folder are not told apart
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another run is at work in this folder") from None
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove what `replacing` left behind when it was killed."""
    for path in folder.glob(".*.*"):
        if path.name.startswith(LEFTOVERS):
            with suppress(OSError):
                path.unlink()


SYNC_SECONDS = 0.4
OPTIONAL = ("truth", "correct", "exact", "problem")  # columns that may be null in a row that has a certificate


def encode(record: Record) -> bytes:
    """One line: the checksum of the rest, and the record as JSON."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Record | None:
    """The record of a line; None if it is not what was written."""
    try:
        if line[8:9] != b" " or line[-1:] != b"\n" or int(line[:8], 16) != zlib.crc32(line[9:-1]):
            return None
        found = json.loads(line[9:-1])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and is_record(found) else None


def is_record(record: Record) -> bool:
    """Whether every column of a record is of the kind that the table of a run holds."""
    if not record.keys() >= _COLUMNS.keys() or record["row"] is None or not _seconds(record.get("seconds")):
        return False
    optional = OPTIONAL if record["problem"] is None else _COLUMNS
    return all((record[name] is None and name in optional) or check(record[name]) for name, check in _COLUMNS.items())


def _text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _whole_number(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST_LENGTH)  # exact in a double


def _seconds(value: Any) -> bool:
    return value is None or _number(value)


def _list(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


_KINDS: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.string(): _text,
    pa.int64(): _whole_number,
    pa.float64(): _number,
    pa.bool_(): lambda value: isinstance(value, bool),
    pa.list_(pa.int64()): _list(_whole_number),
    pa.list_(pa.float64()): _list(_number),
    pa.list_(pa.list_(pa.int64())): _list(_list(_whole_number)),
}
_COLUMNS = {field.name: _KINDS[field.type] for field in CERTIFICATES}


def read_journal(path: Path, start: int = 0) -> Iterator[tuple[int, Record]]:
    """The records that are whole, each with the place of its line in the file."""
    with path.open("rb") as file:
        file.seek(start)
        place = start
        for line in file:
            record = decode(line)
            if record is not None:
                yield place, record
            place += len(line)


class RunJournal:
    """Append records. Each is handed to the system at once, and on the disk within a second.

    A line that could not be written whole is taken back, and the error raised: nothing before it is touched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.ftruncate(self._handle, _whole(path))
            os.fsync(self._handle)
            sync_folder(path.parent)
        except BaseException:
            os.close(self._handle)
            raise
        self._dirty, self._stop = threading.Event(), threading.Event()
        self._failure: OSError | None = None
        self._syncer = threading.Thread(target=self._sync_often, name="journal", daemon=True)
        self._syncer.start()

    def append(self, record: Record) -> None:
        """Add one record."""
        if self._failure is not None:
            raise self._failure
        before = os.fstat(self._handle).st_size
        rest = memoryview(encode(record))
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._handle, before)
            raise
        self._dirty.set()

    def close(self) -> None:
        """Have everything on the disk."""
        if self._handle < 0:
            return
        self._stop.set()
        self._dirty.set()
        self._syncer.join()
        handle, self._handle = self._handle, -1
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> RunJournal:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except OSError:
            if error is None:
                raise

    def _sync_often(self) -> None:
        while not self._stop.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                os.fsync(self._handle)
            except OSError as error:
                self._failure = error
                return
            self._stop.wait(SYNC_SECONDS)


def _whole(path: Path) -> int:
    """The size of a file up to the end of its last whole line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


MANIFEST, TABLE, TIMES_TABLE, JOURNAL = "manifest.json", "certificates.parquet", "times.parquet", "journal"
GROUP = 1000  # rows that are written together
RESTORE = "take the run from where it was made, or make it again"


@dataclass(frozen=True)
class Run:
    """What a run holds.

    Attributes:
        folder: where it stands.
        manifest: the configuration, hashes and versions. Among others ``model_hash``, ``noise``, ``unit``, ``classes``,
            ``threshold``, ``k``, ``ops``, ``bound``, ``alpha``, ``seed``, ``sampling``, ``votes``, ``model``, ``data``.
        table: one row an input, in the order of the data; see `adaptdel.runs.records`.
        times: id, row and seconds.
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
        """The rows as dictionaries, one by one."""
        for batch in self.table.to_batches(max_chunksize=GROUP):
            yield from batch.to_pylist()

    def certificates(self) -> Iterator[Certificate]:
        """The certificates, rebuilt from manifest and rows; rows with a problem have none."""
        for record in self.records():
            if record["problem"] is None:
                try:
                    certificate = certificate_of(self.manifest, record)
                except ValueError as error:
                    raise ValueError(f"{self.place(record)}: {error}: {RESTORE}") from None
                yield certificate

    def place(self, record: Record) -> str:
        """The file and the row of a record, for messages."""
        return f"{self.folder / (TABLE if self.finished else JOURNAL)}, row {record['row']}"


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest["finished"] is None:
        journal = folder / JOURNAL
        records = list(ordered_records(journal)) if journal.exists() else []
        return Run(folder, manifest, _table(records, CERTIFICATES), _table(records, TIMES))
    table = _read_table(folder / TABLE, CERTIFICATES)
    path = folder / TIMES_TABLE
    times = _read_table(path, TIMES) if path.exists() else _table([], TIMES)
    if path.exists() and not times.select(["id", "row"]).equals(table.select(["id", "row"])):
        raise ValueError(f"{path}: must have the rows of {TABLE}, with the same ids: {RESTORE}")
    return Run(folder, manifest, table, times)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run."""
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
    """Write a finished run: ``records`` as of `adaptdel.runs.records.record_of`, in the order of the data.

    A record may lack columns, which are then null, and may hold ``seconds``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = timestamp()
    write_tables(folder, records)
    write_json(folder / MANIFEST, {"format": FORMAT, "started": now, "finished": now, **manifest})


def write_tables(folder: Path, records: Iterable[Record]) -> None:
    """Write certificates and times, each whole or not at all, in bounded memory."""
    waiting = iter(records)
    with (
        replacing(folder / TIMES_TABLE) as beside,
        replacing(folder / TABLE) as file,
        pq.ParquetWriter(beside, TIMES, compression="zstd") as times,
        pq.ParquetWriter(file, CERTIFICATES, compression="zstd") as certificates,
    ):
        while group := list(islice(waiting, GROUP)):
            certificates.write_table(_table(group, CERTIFICATES))
            times.write_table(_table(group, TIMES))


def ordered_records(journal: Path) -> Iterator[Record]:
    """The records of a journal in the order of the data; of several for one row, the last."""
    rows, places = array("q"), array("q")
    for place, record in read_journal(journal):
        rows.append(record["row"])
        places.append(place)
    order = np.lexsort((places, rows))
    sorted_rows = np.asarray(rows)[order]
    last = np.append(sorted_rows[1:] != sorted_rows[:-1], True)
    with journal.open("rb") as file:
        for place in np.asarray(places)[order[last]] if places else ():
            file.seek(place)
            found = decode(file.readline())
            assert found is not None
            yield found


def write_journal(folder: Path) -> None:
    """Turn the tables of a finished run back into a journal, so that more can be added."""
    rows, times = _table_rows(folder / TABLE, CERTIFICATES), _table_rows(folder / TIMES_TABLE, TIMES)
    with replacing(folder / JOURNAL) as file:
        for record, time in zip_longest(rows, times):
            if record is None or time is None:
                raise ValueError(f"{folder / TIMES_TABLE}: must have the rows of {TABLE}: certify into another folder")
            if not is_record(record):
                where = f"{folder / TABLE}, row {record['row']}"
                raise ValueError(f"{where}: not a row of a run: certify into another folder")
            file.write(encode(record | {"seconds": time["seconds"]}))


def _table(records: list[Record], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([record.get(name) for record in records], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    with _parquet(path, schema) as parquet:
        table = parquet.read()
        table.validate(full=True)
    return table


def _table_rows(path: Path, schema: pa.Schema) -> Iterator[Record]:
    """The rows of a table, in bounded memory."""
    with _parquet(path, schema) as parquet:
        for batch in parquet.iter_batches(GROUP):
            batch.validate(full=True)
            yield from batch.to_pylist()


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """A Parquet file with the columns of a schema; whatever is wrong with it is said in one sentence."""
    try:
        with path.open("rb") as file, pq.ParquetFile(file) as parquet:
            wrong = _wrong_columns(parquet.schema_arrow, schema)
            if wrong is None:
                yield parquet
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from a run that its manifest calls finished: {RESTORE}") from None
    except PermissionError:
        raise ValueError(f"{path}: must be readable") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ValueError(f"{path}: not a Parquet file, or a damaged one: {RESTORE}") from None
    if wrong is not None:
        raise ValueError(f"{path}: {wrong}: {RESTORE}")


def _wrong_columns(given: pa.Schema, schema: pa.Schema) -> str | None:
    """What is wrong with the columns of a table, in words."""
    if given.names != schema.names:
        return f"must have the columns {', '.join(schema.names)}, got {', '.join(given.names)}"
    for name in schema.names:
        if given.field(name).type != schema.field(name).type:
            return f"the column {name} must be of type {schema.field(name).type}, got {given.field(name).type}"
    return None
