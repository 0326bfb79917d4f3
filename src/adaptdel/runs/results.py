"""The results of an unfinished run: a working store, and the parts of the tables that are final.

A record goes to the working store. When every row of a part has one, the part is written and its records are removed
from the store. So neither the memory nor the store grows with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adaptdel.runs.parts import RunTables, file_rows
from adaptdel.runs.records import CERTIFICATES, Record
from adaptdel.runs.storage import checked_record, merged_records, open_store, run_records

BLOCK = 10_000  # rows that are looked up together in a run without parts


class ResultStore:
    """Results by row; only the process that certifies uses it.

    Args:
        folder: the folder of the run.
        rows: the number of rows of the data.
        part_rows: the rows of a part; None if the tables of the run are one file each.
    """

    def __init__(self, folder: Path, rows: int, part_rows: int | None = None) -> None:
        self.folder, self.rows = folder, rows
        self.tables = RunTables(folder, part_rows)
        self._store = open_store(folder)
        self._final: set[int] = set()
        self._left: dict[int, int] = {}  # rows without a result, by part
        try:
            self._check_records()
            if part_rows is not None:
                self._open_parts(part_rows)
        except BaseException:
            self._store.close()
            raise

    def put(self, record: Record) -> None:
        """Add the result of a row that has none."""
        self._store.put(record["row"], record)
        if self.tables.part_rows is not None:
            number = self.tables.part_of(record["row"])
            self._left[number] -= 1
            if not self._left[number]:
                self._write(number)

    def records(self) -> Iterator[Record]:
        """All results in the order of the data."""
        return merged_records(self.tables, sorted(self._final), self._stored())

    def block(self, row: int) -> Block:
        """The known results around a row: those of its part, or of some thousand rows."""
        size = self.tables.part_rows or BLOCK
        number = (row - 1) // size
        first, last = number * size + 1, (number + 1) * size
        is_final = number in self._final
        if is_final:
            columns = ["id", "row", "problem"]
            rows = file_rows(self.tables.part_path(number), CERTIFICATES, columns)
            return Block(last, {each["row"]: each["id"] for each in rows if each["problem"] is None}, number)
        return Block(last, {record["row"]: record["id"] for record in self._stored(first, last)})

    def record(self, row: int) -> Record:
        """The result of a row."""
        if self.tables.part_rows is not None and self.tables.part_of(row) in self._final:
            part = self.tables.part_records(self.tables.part_of(row))
            return next(record for record in part if record["row"] == row)
        return next(self._stored(row, row))

    def forget(self, row: int) -> None:
        """Remove the result of a row, which was that of another input."""
        self._store.remove([row])
        if self.tables.part_rows is not None:
            self._left[self.tables.part_of(row)] += 1

    def reopen(self, number: int, row: int) -> None:
        """Move a part back into the store, without the rows from ``row`` on that have no certificate."""
        kept = 0
        path = self.tables.part_path(number)
        for record in self.tables.part_records(number):
            if record["problem"] is None or record["row"] < row:
                self._store.put(record["row"], checked_record(record, path))
                kept += 1
        self._store.flush()
        self.tables.remove_part(number)
        self._final.discard(number)
        self._left[number] = self._size(number) - kept

    def write_tables(self) -> None:
        """Write the tables; in a run in parts they are there already."""
        if self.tables.part_rows is None:
            self.tables.write(self.records())
        self.tables.remove_others()

    def delete(self) -> None:
        """Delete the working store: the tables hold everything."""
        self._store.delete()

    def close(self) -> None:
        """Commit everything and release the store."""
        self._store.close()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._store.__exit__(kind, error, trace)

    def _size(self, number: int) -> int:
        """The number of rows that a part has when it is final."""
        assert self.tables.part_rows is not None
        return min(self.tables.part_rows, self.rows - number * self.tables.part_rows)

    def _check_records(self) -> None:
        """Remove what is no record of a run, and rows without a certificate, which are tried again.

        What is in the store from then on was checked here or put by this process, and is not checked again.
        """
        removed = []
        for number, stored in self._store.records():
            record = next(run_records([(number, stored)]), None)
            if record is None or record["problem"] is not None:
                removed.append(number)
            elif record != stored:  # labels as an earlier version wrote them
                self._store.put(number, record)
        if removed:
            self._store.remove(removed)

    def _stored(self, first: int | None = None, last: int | None = None) -> Iterator[Record]:
        return (record for _, record in self._store.records(first, last))

    def _open_parts(self, part_rows: int) -> None:
        """Count what is left of every part; a part that was final for a smaller limit is opened again."""
        sizes = {number: self._size(number) for number in range(-(-self.rows // part_rows))}
        for number in self.tables.final_parts():
            if number in sizes and self.tables.part_size(number) == sizes[number]:
                self._final.add(number)
                self._store.remove_range(
                    number * part_rows + 1, (number + 1) * part_rows
                )  # if it was killed in between
            elif number in sizes:
                self.reopen(number, 1)
            else:
                self.tables.remove_part(number)
        self._left = {number: size for number, size in sizes.items() if number not in self._final}
        for record in self._stored():
            number = self.tables.part_of(record["row"])
            if number in self._left:
                self._left[number] -= 1
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


class Block:
    """The rows of a range that have a certificate.

    Attributes:
        last: the last row of the range.
        ids: the id of every row that has a certificate.
        part: the number of the part if it is final, otherwise None.
    """

    def __init__(self, last: int, ids: dict[int, str], part: int | None = None) -> None:
        self.last, self.ids, self.part = last, ids, part
