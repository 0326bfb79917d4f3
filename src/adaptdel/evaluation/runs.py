"""A run is a folder: ``manifest.json``, and ``certificates.parquet`` with one row an input.

Beside them stands ``times.parquet``, so that everything else is the same to the byte whenever the same is certified.
While a run is under way there is a ``journal`` in place of the two.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel.certificate import Certificate
from adaptdel.evaluation.schema import CERTIFICATES, TIMES, Record, certificate_of
from adaptdel.evaluation.store import decode, encode, is_record, read_journal
from adaptdel.files import replacing, write_json

FORMAT = 1
MANIFEST, TABLE, TIMES_TABLE, JOURNAL = "manifest.json", "certificates.parquet", "times.parquet", "journal"
GROUP = 1000  # rows that are written together


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
                yield certificate_of(self.manifest, record)


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest["finished"] is None:
        journal = folder / JOURNAL
        records = list(ordered_records(journal)) if journal.exists() else []
        return Run(folder, manifest, _table(records, CERTIFICATES), _table(records, TIMES))
    table = _read_table(folder / TABLE, CERTIFICATES)
    times = folder / TIMES_TABLE
    return Run(folder, manifest, table, _read_table(times, TIMES) if times.exists() else _table([], TIMES))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"{path}: the format must be {FORMAT}, got {found['format']!r}")
        missing = {
            "finished",
            "classes",
            "noise",
            "ops",
            "bound",
            "threshold",
            "k",
            "seed",
            "unit",
            "model_hash",
        } - set(found)
        if missing:
            raise ValueError(f"{path}: not the manifest of a run: it lacks {', '.join(sorted(missing))}")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: not a run: there is no {MANIFEST}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the manifest of a run: {error}") from None
    return dict(found)


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
    run = read_run(folder)
    seconds = run.times["seconds"].to_pylist()
    if len(seconds) != len(run.table):
        raise ValueError(f"{folder / TIMES_TABLE}: must have the rows of {TABLE}: certify into another folder")
    with replacing(folder / JOURNAL) as file:
        for record, time in zip(run.records(), seconds, strict=True):
            if not is_record(record):
                where = f"{folder / TABLE}, row {record['row']}"
                raise ValueError(f"{where}: not a row of a run: certify into another folder")
            file.write(encode(record | {"seconds": time}))


def timestamp() -> str:
    """The time, in a form that everyone can read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _table(records: list[Record], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([record.get(name) for record in records], schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from a run that its manifest calls finished") from None
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
    if not table.schema.equals(schema):
        raise ValueError(
            f"{path}: must have the columns {', '.join(schema.names)}, got {', '.join(table.column_names)}"
        )
    return table
