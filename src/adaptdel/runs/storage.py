"""The folder of a run: manifest and tables, and the working store while the run is unfinished.

A finished run is ``manifest.json``, ``certificates.parquet`` with a row for each input, and ``times.parquet``; a long
run has folders of parts in place of the two files (`adaptdel.runs.parts`). Times have a file of their own, so that the
certificates are identical, byte for byte, whenever the same inputs are certified. An unfinished run has a working
store, ``unfinished.sqlite``, for the rows that are in no part yet; it is deleted once the tables are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from adaptdel.certification.certificate import Certificate
from adaptdel.files import parse, write_json
from adaptdel.runs.manifest import FORMAT, check_manifest, timestamp
from adaptdel.runs.parts import GROUP, RESTORE, TABLE, TIMES_TABLE, RunTables, other_rows, table_of, with_seconds
from adaptdel.runs.records import CERTIFICATES, TIMES, Record, certificate_of, is_record, with_current_labels
from adaptdel.runs.repeats import PREFIX as REPEATS
from adaptdel.store import Store, delete_store, read_records

MANIFEST = "manifest.json"
STORE = "unfinished.sqlite"
JOB = {"kind": "run"}  # the manifest says which
LEFTOVERS = (".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".journal.", ".signature.json.", ".part-")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that `replacing` left behind when the process was killed."""
    for path in [*folder.glob(".*.*"), *folder.glob("certificates/.*"), *folder.glob("times/.*")]:
        if path.name.startswith(REPEATS):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(LEFTOVERS):
            with suppress(OSError):
                path.unlink()


def open_store(folder: Path) -> Store:
    """Open the store of an unfinished run."""
    return Store(folder / STORE, JOB)


def run_records(numbered: Iterable[tuple[int, Any]]) -> Iterator[Record]:
    """The valid records of a working store; the inputs of others are certified again."""
    for number, record in numbered:
        if isinstance(record, dict) and is_record(record) and record["row"] == number:
            yield with_current_labels(record)


def fill_store(folder: Path, tables: RunTables) -> None:
    """Write the tables of a finished run into a new working store, so that more rows can be certified.

    The parts of a long run stay where they are: `adaptdel.runs.results.ResultStore` opens the last one again.
    """
    drop_store(folder)
    if tables.part_rows is not None:
        return
    with open_store(folder) as store:
        for record in with_seconds(tables.rows(), tables.rows(TIMES_TABLE), folder / TIMES_TABLE):
            store.put(record["row"], checked_record(record, folder / TABLE))


def checked_record(record: Record, path: Path) -> Record:
    """A row of a table as the working store holds it; ValueError if it is not one of a run."""
    if not is_record(record):
        raise ValueError(f"{path}, row {record['row']}: not a row of a run: certify into another folder")
    return with_current_labels(record) | {"seconds": record["seconds"]}


def drop_store(folder: Path) -> None:
    """Delete the working store of a run that is finished."""
    delete_store(folder / STORE)


@dataclass(frozen=True)
class Run:
    """The contents of a run. Only `table` and `times` read all rows into memory.

    Attributes:
        folder: the folder it was read from.
        manifest: the configuration, hashes and versions. Among others ``model_hash``, ``noise``, ``unit``, ``classes``,
            ``threshold``, ``k``, ``ops``, ``bound``, ``alpha``, ``seed``, ``sampling``, ``votes``, ``model``, ``data``.
    """

    folder: Path
    manifest: dict[str, Any]

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
        return self.columns()

    @cached_property
    def times(self) -> pa.Table:
        """The columns id, row and seconds; without rows if the run has no times."""
        return pa.Table.from_batches(self._batches(TIMES_TABLE), schema=TIMES)

    def columns(self, names: Sequence[str] | None = None) -> pa.Table:
        """Some columns of the table, or all."""
        schema = CERTIFICATES if names is None else pa.schema([CERTIFICATES.field(name) for name in names])
        return pa.Table.from_batches(self._batches(TABLE, names), schema=schema)

    def records(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Iterate over the rows as dictionaries, in bounded memory."""
        for batch in self._batches(TABLE, columns):
            yield from batch.to_pylist()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over some columns of the table, or all, in bounded memory."""
        return self._batches(TABLE, columns)

    def seconds(self) -> Iterator[float | None]:
        """Iterate over the times of the rows; nothing if the run has no times."""
        for batch in self._batches(TIMES_TABLE):
            yield from batch.column("seconds").to_pylist()

    def with_ids(self, ids: Sequence[str]) -> Iterator[Record]:
        """The rows with these ids, in the order of the data."""
        wanted = pa.array(sorted(set(ids)), pa.string())
        for batch in self._batches(TABLE):
            yield from batch.filter(pc.is_in(batch.column("id"), wanted)).to_pylist()

    def timed_records(self) -> Iterator[Record]:
        """Iterate over the rows with their ``seconds``, which are None if they are unknown."""
        if self.finished and not self._has_times:
            return (record | {"seconds": None} for record in self.records())
        if self.finished:
            return with_seconds(self.tables.rows(), self.tables.rows(TIMES_TABLE), self.folder / TIMES_TABLE)
        return unfinished_records(self.folder, self.tables)

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

    @property
    def _has_times(self) -> bool:
        return any(path.exists() for path in self.tables.paths(TIMES_TABLE))

    def _batches(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        if self.finished:
            if name == TABLE or self._has_times:
                yield from self.tables.batches(name, columns)
            return
        schema = CERTIFICATES if name == TABLE else TIMES
        remaining = unfinished_records(self.folder, self.tables)
        while group := list(islice(remaining, GROUP)):
            table = table_of(group, schema)
            yield from (table if columns is None else table.select(list(columns))).to_batches()

    def check(self) -> None:
        """Read all rows once; ValueError if a file is damaged or the tables do not belong together."""
        if not self.finished:
            for _ in unfinished_records(self.folder, self.tables):
                pass
            return
        counted = (self.manifest.get("totals") or {}).get("inputs")
        self.tables.check_parts(counted if isinstance(counted, int) else 0)
        places, times = ((pair for batch in self._batches(name) for pair in _places(batch)) for name in _BOTH)
        if not self._has_times:
            for _ in places:
                pass
            return
        for place, time in zip_longest(places, times):
            if place != time:
                raise other_rows(self.folder / TIMES_TABLE)


_BOTH = (TABLE, TIMES_TABLE)


def _places(batch: pa.RecordBatch) -> Iterator[tuple[Any, Any]]:
    return zip(batch.column("id").to_pylist(), batch.column("row").to_pylist(), strict=True)


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not, and check its tables."""
    folder = Path(folder)
    run = Run(folder, read_manifest(folder))
    run.check()
    return run


def unfinished_records(folder: Path, tables: RunTables) -> Iterator[Record]:
    """The records of an unfinished run with their times, in the order of the data."""
    final = [] if tables.part_rows is None else tables.final_parts()
    return merged_records(tables, final, _stored_records(folder))


def merged_records(tables: RunTables, final: Sequence[int], stored: Iterator[Record]) -> Iterator[Record]:
    """The records of the final parts and of a working store, in the order of the data; a part replaces the store."""
    covered = {*final}
    if not covered:
        return stored
    others = (record for record in stored if tables.part_of(record["row"]) not in covered)
    parts = (record for number in final for record in tables.part_records(number))
    return merge(parts, others, key=lambda record: record["row"])


def _stored_records(folder: Path) -> Iterator[Record]:
    """The records of the store, in the order of the data."""
    if (folder / STORE).exists():
        yield from run_records(read_records(folder / STORE))


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


def write_run(folder: str | Path, manifest: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write a finished run; ``records`` are those of `adaptdel.runs.records.record_of`, in the order of the data.

    Columns that a record lacks are null. A record may also hold ``seconds``. If the manifest states ``part_rows``, the
    tables are written in parts of so many rows.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = timestamp()
    RunTables(folder, manifest.get("part_rows")).write(records)
    write_json(folder / MANIFEST, {"format": FORMAT, "started": now, "finished": now, **manifest})
