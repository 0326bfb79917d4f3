"""The folder of a run: manifest and tables, and a store while the run is unfinished.

A finished run is ``manifest.json``, ``certificates.parquet`` with a row for each input, and ``times.parquet``; a long
run has folders of parts in place of the two files (`adaptdel.runs.parts`). Times have a file of their own, so that the
certificates are identical, byte for byte, whenever the same inputs are certified. The manifest states the SHA-256 of
every file. An unfinished run has a store, ``unfinished.sqlite``, for the rows that are in no part yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from adaptdel import tables
from adaptdel.files import parse
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.runs.manifest import check_manifest
from adaptdel.runs.parts import GROUP, RESTORE, TABLE, TIMES_TABLE, RunTables, table_of, with_seconds
from adaptdel.runs.records import CERTIFICATES, TIMES, Record, Totals, certificate_of
from adaptdel.store import Store, delete_store, is_locked, read_records

MANIFEST = "manifest.json"
STORE = "unfinished.sqlite"
JOB = {"kind": "run"}  # the manifest says which
FINISHED, RUNNING, STOPPED = "finished", "running", "not finished, and no process works on it"
BLOCK = 10_000  # rows that are looked up together in a run without parts
_LEFTOVERS = (".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".part-")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that `replacing` left behind when the process was killed."""
    for path in [*folder.glob(".*.*"), *folder.glob("certificates/.*"), *folder.glob("times/.*")]:
        if path.name.startswith(_LEFTOVERS):
            with suppress(OSError):
                path.unlink()


def open_store(folder: Path) -> Store:
    """Open the store of an unfinished run."""
    return Store(folder / STORE, JOB)


@dataclass(frozen=True, repr=False)
class Run:
    """The contents of a run. Only `table` and `times` read all rows into memory.

    Attributes:
        folder: the folder it was read from.
        manifest: the configuration, hashes and versions. Among others ``model_hash``, ``noise``, ``unit``, ``classes``,
            ``threshold``, ``k``, ``ops``, ``bound``, ``alpha``, ``seed``, ``sampling``, ``votes``, ``model``, ``data``.
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

    @property
    def finished(self) -> bool:
        """Whether every input was certified."""
        return self.manifest["finished"] is not None

    @property
    def tables(self) -> RunTables:
        """The files of the tables."""
        return RunTables(self.folder, self.manifest.get("part_rows"))

    @cached_property
    def table(self) -> pa.Table:
        """A row for each input, in the order of the data; see `adaptdel.runs.records` for the columns."""
        return pa.Table.from_batches(self._batches(TABLE), schema=CERTIFICATES)

    @cached_property
    def times(self) -> pa.Table:
        """The columns id, row and seconds."""
        return pa.Table.from_batches(self._batches(TIMES_TABLE), schema=TIMES)

    def records(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Iterate over the rows as dictionaries, in bounded memory."""
        for batch in self._batches(TABLE, columns):
            yield from batch.to_pylist()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over some columns of the table, or all, in bounded memory."""
        return self._batches(TABLE, columns)

    def seconds(self) -> Iterator[float | None]:
        """Iterate over the times of the rows."""
        for batch in self._batches(TIMES_TABLE):
            yield from batch.column("seconds").to_pylist()

    def timed_records(self) -> Iterator[Record]:
        """Iterate over the rows with their ``seconds``, which are None if they are unknown."""
        if self.finished:
            return with_seconds(self.tables.rows(), self.tables.rows(TIMES_TABLE), self.folder / TIMES_TABLE)
        final = [] if self.tables.part_rows is None else self.tables.final_parts()
        stored = read_records(self.folder / STORE) if (self.folder / STORE).exists() else iter(())
        return merged_records(self.tables, final, (record for _, record in stored))

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
                    raise ValueError(f"{self.place(record)}: {error}: {RESTORE}") from None
                yield record, certificate

    @property
    def file(self) -> Path:
        """The file or the folder that holds the rows."""
        if not self.finished:
            return self.folder / STORE
        return self.folder / (TABLE if self.tables.part_rows is None else TABLE.removesuffix(".parquet"))

    def place(self, record: Record) -> str:
        """The file and the row of a record, for messages."""
        return f"{self.tables.path_of(record['row']) if self.finished else self.file}, row {record['row']}"

    def _batches(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        if self.finished:
            yield from self.tables.batches(name, columns)
            return
        schema = CERTIFICATES if name == TABLE else TIMES
        remaining = self.timed_records()
        while group := list(islice(remaining, GROUP)):
            table = table_of(group, schema)
            yield from (table if columns is None else table.select(list(columns))).to_batches()

    def check(self) -> None:
        """ValueError if a file is not the one that the manifest states, or is damaged."""
        if self.finished:
            self.tables.check_digests(self.manifest["files"])
        for _ in self.timed_records():
            pass


def merged_records(tables: RunTables, final: Sequence[int], stored: Iterator[Record]) -> Iterator[Record]:
    """The records of the final parts and of a store, in the order of the data; a part replaces the store."""
    covered = {*final}
    if not covered:
        return stored
    others = (record for record in stored if tables.part_of(record["row"]) not in covered)
    parts = (record for number in final for record in tables.part_records(number))
    return merge(parts, others, key=lambda record: record["row"])


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not, and check its tables."""
    folder = Path(folder)
    run = Run(folder, read_manifest(folder))
    run.check()
    return run


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
        reason = " ".join(str(error).split())  # names of fields can hold line breaks
        raise ValueError(f"{path}: not the manifest of a run: {reason}: {RESTORE}") from None


class ResultStore:
    """Results by row; only the process that certifies uses it.

    Args:
        folder: the folder of the run.
        rows: the number of rows of the data.
        part_rows: the rows of a part; None if the tables of the run are one file each.
    """

    def __init__(self, folder: Path, rows: int, part_rows: int | None = None) -> None:
        self.rows = rows
        self.tables = RunTables(folder, part_rows)
        self._store = open_store(folder)
        self._final: set[int] = set()
        self._left: dict[int, int] = {}  # rows without a result, by part
        self._failed: set[int] = set()  # parts with rows that a later session tries again
        try:
            # Rows without a certificate are tried again.
            self._store.remove([row for row, record in self._store.records() if record["problem"] is not None])
            if part_rows is not None:
                self._open_parts(part_rows)
        except BaseException:
            self._store.close()
            raise

    def put(self, record: Record, *, failed: bool = False) -> None:
        """Add the result of a row that has none; ``failed`` if a later session has to try the row again."""
        self._store.put(record["row"], record)
        if self.tables.part_rows is not None:
            number = self.tables.part_of(record["row"])
            self._left[number] -= 1
            if failed:
                self._failed.add(number)
            if not self._left[number] and number not in self._failed:
                self._write(number)

    def records(self) -> Iterator[Record]:
        """All results in the order of the data."""
        return merged_records(self.tables, sorted(self._final), self._stored())

    def block(self, row: int) -> tuple[int, set[int]]:
        """The last row of the block of a row, and the rows of the block that have a result."""
        size = self.tables.part_rows or BLOCK
        first = (row - 1) // size * size + 1
        last = first + size - 1
        if self.tables.part_rows is not None and self.tables.part_of(row) in self._final:
            return last, {*range(first, last + 1)}
        return last, {record["row"] for record in self._stored(first, last)}

    def write_tables(self) -> None:
        """Write the tables, or the parts that are not written yet."""
        if self.tables.part_rows is None:
            self.tables.write(self.records())
        for number in sorted(self._failed & {*self._left}):
            self._write(number)
        self.tables.remove_others()

    def delete(self) -> None:
        """Delete the store: the tables hold everything."""
        self._store.delete()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._store.__exit__(kind, error, trace)

    def _size(self, number: int) -> int:
        """The number of rows that a part has when it is final."""
        assert self.tables.part_rows is not None
        return min(self.tables.part_rows, self.rows - number * self.tables.part_rows)

    def _stored(self, first: int | None = None, last: int | None = None) -> Iterator[Record]:
        return (record for _, record in self._store.records(first, last))

    def _open_parts(self, part_rows: int) -> None:
        """Count what is left of every part; a part that was final for a smaller limit is opened again."""
        sizes = {number: self._size(number) for number in range(-(-self.rows // part_rows))}
        for number in self.tables.final_parts():
            if self.tables.part_size(number) == sizes[number]:
                self._final.add(number)
                # if the process was killed in between
                self._store.remove_range(number * part_rows + 1, (number + 1) * part_rows)
            else:
                for record in self.tables.part_records(number):
                    self._store.put(record["row"], record)
                self._store.flush()
                self.tables.remove_part(number)
        self._left = {number: size for number, size in sizes.items() if number not in self._final}
        for record in self._stored():
            self._left[self.tables.part_of(record["row"])] -= 1
        for number in [number for number, left in self._left.items() if left <= 0]:
            self._write(number)

    def _write(self, number: int) -> None:
        """Write a part, and remove its records from the store."""
        assert self.tables.part_rows is not None
        first, last = number * self.tables.part_rows + 1, (number + 1) * self.tables.part_rows
        self.tables.write_part(number, self._stored(first, last))
        self._store.remove_range(first, last)
        self._final.add(number)
        del self._left[number]


def fill_store(folder: Path, tables: RunTables) -> None:
    """Write the tables of a finished run into a new store, so that more rows can be certified.

    The parts of a long run stay where they are: `ResultStore` opens the last one again.
    """
    delete_store(folder / STORE)
    if tables.part_rows is not None:
        return
    with open_store(folder) as store:
        for record in with_seconds(tables.rows(), tables.rows(TIMES_TABLE), folder / TIMES_TABLE):
            store.put(record["row"], record)


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        state: "finished", "running", or a sentence.
        rows: the rows of the data; None if no session has counted them.
        done: rows with a result.
        failures: rows without a certificate.
        rate: rows a second in the last session; None if nothing was certified in it.
        seconds_left: the time that the other rows take at this rate, while the run goes on.
        clean_accuracy: of the rows so far; None without labels.
        mean_radius: of the rows so far.
        changed: when the last result was written, in ISO 8601.
    """

    state: str
    rows: int | None
    done: int
    failures: int
    rate: float | None
    seconds_left: float | None
    clean_accuracy: float | None
    mean_radius: float | None
    changed: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_status(folder: Path) -> RunStatus:
    """Read the status of a run, also while another process works on it; nothing is locked or changed."""
    run = Run(folder, read_manifest(folder))
    last: dict[str, Any] = run.manifest["sessions"][-1] if run.manifest["sessions"] else {}
    rows: int | None = last.get("rows")
    totals = Totals.of(run.manifest)
    for record in run.timed_records():
        totals.add(record)
    changed = _changed(run)
    end = datetime.fromisoformat(run.manifest["finished"]) if run.finished else changed
    recent, rate = totals.inputs - last.get("done", 0), None
    if last and end is not None and recent > 0:
        rate = recent / max((end - datetime.fromisoformat(last["started"])).total_seconds(), 1.0)
    state = FINISHED if run.finished else RUNNING if is_locked(folder) else STOPPED
    left = max(rows - totals.inputs, 0) / rate if state == RUNNING and rows is not None and rate else None
    return RunStatus(
        state=state,
        rows=rows,
        done=totals.inputs,
        failures=totals.problems,
        rate=rate,
        seconds_left=left,
        clean_accuracy=totals.clean_accuracy,
        mean_radius=totals.mean_radius,
        changed=None if changed is None else changed.isoformat(timespec="seconds"),
    )


def _changed(run: Run) -> datetime | None:
    """When a result was written last."""
    tables = [*run.tables.paths(TABLE), *run.tables.paths(TIMES_TABLE)]
    paths = [run.folder / STORE, run.folder / f"{STORE}-wal", *tables]
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return datetime.fromtimestamp(max(times), UTC) if times else None
