"""The folder of a run: manifest and table, and a store while the run is unfinished.

A finished run is ``manifest.json`` and ``certificates.parquet``, which has a row for each input in the order of the
data: the same bytes whenever the same inputs are certified. The manifest states its SHA-256. The rows of an unfinished
run are in a store, ``unfinished.sqlite``.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel import tables
from adaptdel.certification.certificate import Certificate
from adaptdel.core.registry import NotRegisteredError
from adaptdel.files import FULL, check_regular, parse, read_json, replacing
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.runs.columns import RESTORE, TOTALLED, Record, Totals, certificate_of, records_of, schema_of
from adaptdel.runs.manifest import Manifest
from adaptdel.store import START_AGAIN, Store, is_locked, locked, read_records

MANIFEST, TABLE, STORE = "manifest.json", "certificates.parquet", "unfinished.sqlite"
JOB = {"kind": "run"}  # of the store; the manifest says which
GROUP = 1000  # rows that are read and written together
_SEQUENCE = "sequence"
FINISHED, RUNNING, STOPPED = "finished", "running", "not finished, and no process works on it"


@dataclass(frozen=True, repr=False)
class Run:
    """The contents of a run. Only `table` reads all rows into memory.

    Attributes:
        folder: the folder it was read from.
        manifest: the model, the plan, the data and the sessions.
    """

    folder: Path
    manifest: Manifest

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._summary().items())
        return f"<Run {str(self.folder)!r}: {shown}>"

    def _repr_html_(self) -> str:
        return tables.notebook_table(f"Run {self.folder}", self._summary())

    def _summary(self) -> dict[str, str]:
        """The state of the run, and its main figures once it is finished."""
        totals = self.manifest.totals
        if not self.finished or totals is None:
            return {"state": FINISHED if self.finished else "unfinished"}
        shown = {"inputs": f"{totals['inputs']:,}"}
        if totals["clean_accuracy"] is not None:
            shown[CLEAN_ACCURACY] = tables.percent(totals["clean_accuracy"])
        if totals["mean_radius"] is not None:
            shown[MEAN_RADIUS] = tables.number(totals["mean_radius"])
        return shown

    @property
    def finished(self) -> bool:
        """Whether every input was certified."""
        return self.manifest.finished is not None

    @property
    def file(self) -> Path:
        """The file that holds the rows."""
        return self.folder / (TABLE if self.finished else STORE)

    @cached_property
    def table(self) -> pa.Table:
        """A row for each input, in the order of the data; see `adaptdel.runs.columns`."""
        return pa.Table.from_batches(self.batches(), schema=schema_of(self.manifest.kind))

    def to_arrow(self) -> pa.Table:
        """All rows as a table of pyarrow."""
        return self.table

    def to_pandas(self) -> Any:
        """All rows as a data frame of pandas."""
        try:
            import_module("pandas")
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas; to_arrow does not") from None
        return self.table.to_pandas()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over some columns of the table, or all, in bounded memory."""
        schema = schema_of(self.manifest.kind)
        names = schema.names if columns is None else list(columns)
        if self.finished:
            with _parquet(self.file, schema) as parquet:
                for batch in parquet.iter_batches(GROUP, columns=names, use_threads=False):
                    batch.validate(full=True)
                    if "row" in names and batch.column("row").null_count:
                        raise ValueError
                    yield batch.select(names).replace_schema_metadata(schema.metadata)
        elif self.file.exists():
            for batch in in_order(self.file, read_records(self.file), columns):
                yield batch.select(names).replace_schema_metadata(schema.metadata)

    def records(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Iterate over the rows as dictionaries, in bounded memory; tables of numbers are arrays."""
        for batch in self.batches(columns):
            yield from records_of(batch)

    def certificates(self) -> Iterator[Certificate]:
        """Iterate over the certificates, rebuilt from manifest and rows; a row with a problem has none."""
        return (certificate for _, certificate in self.certified(self.records()))

    def certified(self, records: Iterable[Record]) -> Iterator[tuple[Record, Certificate]]:
        """The rows that have a certificate, each with it."""
        for record in records:
            if record["problem"] is None:
                try:
                    certificate = certificate_of(self.manifest, record)
                except ValueError as error:
                    raise ValueError(f"{self.file}, row {record['row']}: {error}: {RESTORE}") from None
                yield record, certificate

    def check(self) -> None:
        """ValueError if the table is not the one that the manifest states, or is damaged."""
        if self.finished and table_hash(self.folder) != self.manifest.table_sha256:
            raise ValueError(f"{self.file}: not the file that the manifest of the run states: {RESTORE}")
        for _ in self.batches(("row",)):
            pass


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not, and check its table."""
    folder = Path(folder)
    run = Run(folder, read_manifest(folder))
    run.check()
    return run


def is_run(folder: Path) -> bool:
    """False for a folder with a manifest of another kind, such as a run of attacks, whose format is a name."""
    with suppress(OSError, ValueError):
        return not isinstance(read_json(folder / MANIFEST, "a manifest").get("format"), str)
    return True


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a run."""
    path = folder / MANIFEST
    if folder.is_dir():
        check_regular(folder)
    try:
        return Manifest.from_dict(parse(path.read_text(encoding="utf-8"), finite=False))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: not a run: there is no {MANIFEST}") from None
    except NotRegisteredError as error:
        raise ValueError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not the manifest of a run: it must be JSON in UTF-8: {RESTORE}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())  # names of fields can hold line breaks
        raise ValueError(f"{path}: not the manifest of a run: {reason}: {RESTORE}") from None


def open_store(folder: Path) -> Store:
    """Open the store of an unfinished run."""
    return Store(folder / STORE, JOB)


def in_order(
    path: Path, stored: Iterable[tuple[Any, bytes]], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the batches of a store in the order of the data; of rows with the same number, the latest.

    Keys are those of `stored_key`, so batches come in the order of their first rows: what is before the first row of
    the next batch is complete. Batches hardly overlap, so little waits.

    Args:
        path: the store, for the message if it is damaged.
        stored: its records in the order of the keys.
        columns: those that are read besides ``row``; None for all.
    """
    waiting: pa.Table | None = None
    for key, value in stored:
        try:
            first, sequence = map(int, key.split("-"))
            table = _stored_table(value, columns)
        except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OSError):
            raise ValueError(f"{path}: a damaged store: {START_AGAIN}") from None
        if waiting is not None:
            done, waiting = _split(waiting, first)
            yield from done
        table = table.append_column(_SEQUENCE, pa.array(np.full(len(table), sequence)))
        waiting = table if not waiting else pa.concat_tables([waiting, table])
    if waiting is not None:
        yield from _split(waiting, None)[0]


def _stored_table(value: bytes, columns: Sequence[str] | None) -> pa.Table:
    """The rows of `stored_value`."""
    with pa.ipc.open_stream(value) as stream:
        if columns is None:
            table = stream.read_all()
    if columns is not None:
        positions = [stream.schema.names.index(name) for name in dict.fromkeys(("row", *columns))]
        with pa.ipc.open_stream(value, options=pa.ipc.IpcReadOptions(included_fields=positions)) as stream:
            table = stream.read_all()
    table.validate(full=True)
    return table


def _split(table: pa.Table, end: int | None) -> tuple[list[pa.RecordBatch], pa.Table]:
    """The rows before row number ``end`` in order, each once, and the others."""
    rows, sequence = table["row"].to_numpy(), table[_SEQUENCE].to_numpy()
    before = np.ones(len(rows), dtype=np.bool_) if end is None else rows < end
    order = np.lexsort((sequence, rows))
    order = order[before[order]]
    latest = order[np.append(rows[order][1:] != rows[order][:-1], True)] if len(order) else order
    is_all = len(latest) == len(rows) and (latest == np.arange(len(rows))).all()
    done = (table if is_all else table.take(latest)).drop_columns([_SEQUENCE])
    rest = table.slice(len(table)) if is_all else table.filter(pa.array(~before))
    return done.combine_chunks().to_batches(), rest


def stored_key(first: int, sequence: int) -> str:
    """The key of a batch in a store: its first row, and the number of the batch in the order of writing."""
    return f"{first:016d}-{sequence:09d}"


def stored_value(batch: pa.RecordBatch) -> bytes:
    """A batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def write_table(folder: Path, kind: str, batches: Iterable[pa.RecordBatch]) -> str:
    """Write the table of a run in bounded memory, from batches in the order of the data, and return its SHA-256.

    The rows are written in groups of `GROUP`, so that the file does not depend on how the batches were cut.
    """
    schema = schema_of(kind)
    with replacing(folder / TABLE) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting = pa.Table.from_batches([], schema)
        for batch in batches:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch.select(schema.names)], schema)])
            while len(waiting) >= GROUP:
                writer.write_table(waiting.slice(0, GROUP).combine_chunks())
                waiting = waiting.slice(GROUP)
        if len(waiting):
            writer.write_table(waiting.combine_chunks())
    return table_hash(folder)


def table_hash(folder: Path) -> str:
    """The SHA-256 of the table of a run."""
    try:
        with (folder / TABLE).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ValueError(
            f"{folder / TABLE}: missing from a run that is finished according to its manifest: {RESTORE}"
        ) from None
    except OSError as error:
        raise ValueError(f"{folder / TABLE}: cannot be read: {error.strerror or error}") from None


@contextmanager
def run_folder(folder: Path, names: Sequence[str], kept: str) -> Iterator[None]:
    """Create and lock the folder of a run, which must be new, empty or hold a run; it is removed if nothing is written.

    Args:
        folder: the folder.
        names: the files that the run writes atomically, the manifest first.
        kept: what a full disk does not lose, for the message.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: must be a folder for the run, got a file")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            for name in names:
                for path in folder.glob(f".{name}.*"):  # of a process that was killed while it wrote
                    path.unlink()
            foreign = sorted(path.name for path in folder.iterdir())
            if foreign and names[0] not in foreign:
                raise ValueError(f"{folder}: holds something that is not a run: {foreign[0]}: choose another --out")
            yield
    except OSError as error:
        if error.errno in (*FULL, errno.EIO):
            raise ValueError(f"{folder}: the disk is full, or fails: {kept} once there is space") from error
        raise
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open the table of a run; ValueError says in one sentence what is wrong with it."""
    try:
        # a thread of Arrow that reads ahead and frees Python's bytes at exit aborts the process (apache/arrow#34314)
        with path.open("rb") as file, pq.ParquetFile(file, pre_buffer=False) as parquet:
            is_right = parquet.schema_arrow.equals(schema)
            if is_right:
                yield parquet
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ValueError(f"{path}: not a Parquet file, or a damaged one: {RESTORE}") from None
    if not is_right:
        raise ValueError(f"{path}: must have the columns {', '.join(schema.names)} with their types: {RESTORE}")


def read_status(folder: Path) -> dict[str, Any]:
    """How far a run is, also while another process works on it; nothing is locked or changed.

    The rate, in rows a second, is that of the last session; ``seconds_left`` is known while the run goes on.
    """
    run = Run(folder, read_manifest(folder))
    last = run.manifest.sessions[-1] if run.manifest.sessions else None
    rows = None if last is None else last.rows
    totals = Totals.of(run.manifest, run.records(TOTALLED))
    times = [path.stat().st_mtime for path in (run.file, folder / f"{STORE}-wal") if path.exists()]
    changed = datetime.fromtimestamp(max(times), UTC) if times else None
    end = datetime.fromisoformat(run.manifest.finished) if run.manifest.finished else changed
    rate = None
    if last is not None and end is not None and (recent := totals.inputs - last.done) > 0:
        rate = recent / max((end - datetime.fromisoformat(last.started)).total_seconds(), 1.0)
    state = FINISHED if run.finished else RUNNING if is_locked(folder) else STOPPED
    left = max(rows - totals.inputs, 0) / rate if state == RUNNING and rows is not None and rate else None
    outcomes = totals.outcomes()
    return {
        "state": state,
        "rows": rows,
        "done": totals.inputs,
        "failures": totals.problems,
        "rate": rate,
        "seconds_left": left,
        "clean_accuracy": outcomes.clean_accuracy if totals.labelled else None,
        "mean_radius": outcomes.mean_radius if len(outcomes) else None,
        "changed": None if changed is None else changed.isoformat(timespec="seconds"),
    }
