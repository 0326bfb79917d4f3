"""The results of an unfinished run: a store, and the parts of the tables that are final.

A record goes to the store. When every row of a part has one, the part is written and its records are removed from the
store. So neither the memory nor the store grows with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adaptdel.runs.parts import TIMES_TABLE, RunTables, with_seconds
from adaptdel.runs.records import Record
from adaptdel.runs.storage import STORE, merged_records, open_store
from adaptdel.store import delete_store

BLOCK = 10_000  # rows that are looked up together in a run without parts


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
        for number in sorted(number for number in self._left if number in self._failed):
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
