"""The folder of a run: manifest and table, and a store while the run is unfinished.

A finished run is ``manifest.json`` and ``certificates.parquet``, which has a row for each input in the order of the
data: the same bytes whenever the same inputs are certified. The manifest states its SHA-256. The rows of an unfinished
run are in a store, ``unfinished.sqlite``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel import tables
from adaptdel.core.registry import NotRegisteredError
from adaptdel.files import FULL, check_regular, parse, replacing
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.runs.manifest import check_manifest
from adaptdel.runs.records import CERTIFICATES, RESTORE, TOTALLED, Record, Totals, certificate_of
from adaptdel.store import Store, is_locked, locked, read_records

MANIFEST, TABLE, STORE = "manifest.json", "certificates.parquet", "unfinished.sqlite"
JOB = {"kind": "run"}  # of the store; the manifest says which
GROUP = 1000  # rows that are read and written together
FINISHED, RUNNING, STOPPED = "finished", "running", "not finished, and no process works on it"


@dataclass(frozen=True, repr=False)
class Run:
    """The contents of a run. Only `table` reads all rows into memory.

    Attributes:
        folder: the folder it was read from.
        manifest: the configuration, hashes and versions. Among others ``model_hash``, ``noise``, ``unit``, ``classes``,
            ``threshold``, ``ops``, ``bound``, ``alpha``, ``seed``, ``sampling``, ``votes``, ``model``, ``data``.
    """

    folder: Path
    manifest: dict[str, Any]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._summary().items())
        return f"<Run {str(self.folder)!r}: {shown}>"

    def _repr_html_(self) -> str:
        return tables.notebook_table(f"Run {self.folder}", self._summary())

    def _summary(self) -> dict[str, str]:
        """The state of the run, and its main figures once it is finished."""
        totals = self.manifest.get("totals")
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
        return self.manifest["finished"] is not None

    @property
    def file(self) -> Path:
        """The file that holds the rows."""
        return self.folder / (TABLE if self.finished else STORE)

    @cached_property
    def table(self) -> pa.Table:
        """A row for each input, in the order of the data; see `adaptdel.runs.records` for the columns."""
        return pa.Table.from_batches(self.batches(), schema=CERTIFICATES)

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
        names = CERTIFICATES.names if columns is None else list(columns)
        if self.finished:
            with _parquet(self.file) as parquet:
                for batch in parquet.iter_batches(GROUP, columns=names, use_threads=False):
                    batch.validate(full=True)
                    if "row" in names and batch.column("row").null_count:
                        raise ValueError
                    yield batch
        elif self.file.exists():
            stored = (record for _, record in read_records(self.file))
            while group := list(islice(stored, GROUP)):
                yield from _table_of(group).select(names).to_batches()

    def records(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Iterate over the rows as dictionaries, in bounded memory."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()

    def certificates(self) -> Iterator[Any]:
        """Iterate over the certificates, rebuilt from manifest and rows; a row with a problem has none."""
        return (certificate for _, certificate in self.certified(self.records()))

    def certified(self, records: Iterable[Record]) -> Iterator[tuple[Record, Any]]:
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
        if self.finished and table_hash(self.folder) != self.manifest["table_sha256"]:
            raise ValueError(f"{self.file}: not the file that the manifest of the run states: {RESTORE}")
        for _ in self.batches(("row",)):
            pass


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not, and check its table."""
    folder = Path(folder)
    run = Run(folder, read_manifest(folder))
    run.check()
    return run


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a run."""
    path = folder / MANIFEST
    if folder.is_dir():
        check_regular(folder)
    try:
        return check_manifest(parse(path.read_text(encoding="utf-8"), finite=False))
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


def write_table(folder: Path, records: Iterable[Record]) -> str:
    """Write the table of a run in bounded memory, from records in the order of the data, and return its SHA-256."""
    remaining = iter(records)
    with (
        replacing(folder / TABLE) as file,
        pq.ParquetWriter(file, CERTIFICATES, compression="zstd") as certificates,
    ):
        while group := list(islice(remaining, GROUP)):
            certificates.write_table(_table_of(group))
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
        if error.errno in FULL:
            raise ValueError(f"{folder}: the disk is full: {kept} once there is space") from error
        raise
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()


def _table_of(records: Sequence[Record]) -> pa.Table:
    columns = {name: [record[name] for record in records] for name in CERTIFICATES.names}
    return pa.Table.from_pydict(columns, schema=CERTIFICATES)


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open the table of a run; ValueError says in one sentence what is wrong with it."""
    try:
        # a thread of Arrow that reads ahead and frees Python's bytes at exit aborts the process (apache/arrow#34314)
        with path.open("rb") as file, pq.ParquetFile(file, pre_buffer=False) as parquet:
            is_right = parquet.schema_arrow.equals(CERTIFICATES)
            if is_right:
                yield parquet
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise ValueError(f"{path}: not a Parquet file, or a damaged one: {RESTORE}") from None
    if not is_right:
        raise ValueError(f"{path}: must have the columns {', '.join(CERTIFICATES.names)} with their types: {RESTORE}")


def read_status(folder: Path) -> dict[str, Any]:
    """How far a run is, also while another process works on it; nothing is locked or changed.

    The rate, in rows a second, is that of the last session; ``seconds_left`` is known while the run goes on.
    """
    run = Run(folder, read_manifest(folder))
    last: dict[str, Any] = run.manifest["sessions"][-1] if run.manifest["sessions"] else {}
    rows: int | None = last.get("rows")
    totals = Totals.of(run.manifest, run.records(TOTALLED))
    times = [path.stat().st_mtime for path in (run.file, folder / f"{STORE}-wal") if path.exists()]
    changed = datetime.fromtimestamp(max(times), UTC) if times else None
    end = datetime.fromisoformat(run.manifest["finished"]) if run.finished else changed
    recent, rate = totals.inputs - last.get("done", 0), None
    if last and end is not None and recent > 0:
        rate = recent / max((end - datetime.fromisoformat(last["started"])).total_seconds(), 1.0)
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
