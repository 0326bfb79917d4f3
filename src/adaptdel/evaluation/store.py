"""The journal of a run: one record a line, each with a checksum, on the disk within a second.

A run that was killed leaves at most one line that is not whole; a machine that lost its power leaves what came after
the last second. Lines that do not fit their checksum, or hold no record of a run, are passed over, and everything else
is kept: what they were about is certified again.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from adaptdel.checks import LARGEST_LENGTH
from adaptdel.evaluation.schema import CERTIFICATES, Record
from adaptdel.files import sync_folder

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


class Journal:
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

    def __enter__(self) -> Journal:
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
