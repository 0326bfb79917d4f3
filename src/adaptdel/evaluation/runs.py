"""A run is a folder: ``manifest.json``, and ``certificates.parquet`` with one row an input.

Beside them stands ``times.parquet``, so that everything else is the same to the byte whenever the same is certified.
While a run is under way there is a ``journal`` in place of the two.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel.certificate import Certificate
from adaptdel.evaluation.manifest_fields import FORMAT, check_manifest
from adaptdel.evaluation.schema import CERTIFICATES, TIMES, Record, certificate_of
from adaptdel.evaluation.store import decode, encode, is_record, read_journal
from adaptdel.files import replacing, write_json
from adaptdel.strict_json import parse

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
        table: one row an input, in the order of the data; see `adaptdel.evaluation.schema`.
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
    """Write a finished run: ``records`` as of `adaptdel.evaluation.schema.record_of`, in the order of the data.

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


def timestamp() -> str:
    """The time, in a form that everyone can read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
