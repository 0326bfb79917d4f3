"""The working store: records of unfinished work in one SQLite file, from which the work is resumed.

A run and a calibration keep in it what they have computed, until the final files are written and the store is
deleted. A record is a JSON object under a number. SQLite's write-ahead log (WAL) makes every commit atomic: a process
that is killed loses at most the records of the last `COMMIT_SECONDS`, and the file stays valid.

WAL needs a local disk, because the processes that open the file share memory. Where SQLite refuses WAL, as on some
network file systems, the store uses a rollback journal (``journal_mode=DELETE``): the same guarantees, with slower
commits. A network file system whose locks do not work protects neither mode against a second process.

Nothing in the file is trusted. Its schema must be exactly the one below, so that it holds no trigger or view that
SQLite would execute. Its pages are checked when it is opened. Every record has a checksum, and its reader checks it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from adaptdel.files import parse_object, sync_folder

COMMIT_SECONDS = 0.1  # between two commits, each of which waits for the disk
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a disk that has no space left
SUFFIXES = ("", "-wal", "-shm", "-journal")  # the file, and those that SQLite keeps beside it
FORMAT = 1
SMALLEST, LARGEST = -(2**63), 2**63 - 1  # numbers of records
_SCHEMA = {
    b"header": b"CREATE TABLE header (kind TEXT, format INTEGER, settings TEXT)",
    b"records": b"CREATE TABLE records (number INTEGER PRIMARY KEY, checksum INTEGER, value BLOB)",
}
_DELETE = "delete it and run the same command again"
_WAIT_SECONDS = 1.0  # for a lock of another process
_LARGEST_HEADER = 2**20
# SQLite runs some ten instructions to check a byte of a valid file; a forged file may need arbitrarily many.
_INSTRUCTIONS, _INSTRUCTIONS_PER_BYTE, _CALL = 10_000_000, 100, 100_000


class WorkingStore:
    """Records by number in a file; several threads may not share it, and a second process is refused.

    Args:
        path: the file; created if it does not exist.
        kind: what the store belongs to, such as "run"; a store of another kind is refused.
        settings: plain values that a new store keeps.

    Attributes:
        settings: those that the store was created with.
    """

    def __init__(self, path: Path, kind: str, settings: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._pending: deque[tuple[int, int, bytes]] = deque()
        self._writing = threading.Lock()
        self._dirty, self._stop = threading.Event(), threading.Event()
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._open = True
        with ExitStack() as stack, _sentences(path):
            self._connection = stack.enter_context(closing(_connect(path, "rwc")))
            if not _is_new(self._connection):  # a file of something else is left as it is
                _check(self._connection, path, kind)
            _use_wal(self._connection)
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("BEGIN IMMEDIATE")
            if _is_new(self._connection):
                for statement in _SCHEMA.values():
                    self._connection.execute(statement.decode())
                header = (kind, FORMAT, json.dumps(dict(settings or {})))
                self._connection.execute("INSERT INTO header VALUES (?, ?, ?)", header)
                self._commit()
            self.settings = _check_header(self._connection, path, kind)
            self._connection.set_progress_handler(None, 0)
            stack.pop_all()

    def put(self, number: int, value: Mapping[str, Any]) -> None:
        """Add or replace a record; it is committed at once if the last commit is `COMMIT_SECONDS` ago, else then."""
        self._raise_failure()
        text = json.dumps(value, separators=(",", ":")).encode()
        self._pending.append((number, zlib.crc32(text), text))
        self._dirty.set()
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_often, name="working store", daemon=True)
            self._writer.start()

    def flush(self) -> None:
        """Commit every record; they are on the disk when this returns."""
        self._raise_failure()
        self._write()

    def records(self, first: int = SMALLEST, last: int = LARGEST) -> Iterator[tuple[int, Any]]:
        """Every intact record with its number, by increasing number, from ``first`` to ``last``."""
        self.flush()
        yield from _intact(self._connection, self.path, first, last)

    def remove(self, first: int, last: int) -> None:
        """Delete the records from number ``first`` to ``last``; they are gone from the disk when this returns."""
        self.flush()
        with self._writing, _sentences(self.path):
            self._connection.execute("DELETE FROM records WHERE number BETWEEN ? AND ?", (first, last))
            self._commit()

    def remove_each(self, numbers: Iterable[int]) -> None:
        """Delete the records with these numbers, in one commit; they are gone from the disk when this returns."""
        self.flush()
        with self._writing, _sentences(self.path):
            self._connection.executemany("DELETE FROM records WHERE number = ?", ((number,) for number in numbers))
            self._commit()

    def close(self) -> None:
        """Commit every record and release the file."""
        if not self._open:
            return
        self._open = False
        try:
            self._end_writer()
            if self._failure is None:
                self._write()
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self._connection.close()
        self._raise_failure()

    def delete(self) -> None:
        """Delete the file: its records are no longer needed."""
        if self._open:
            self._open = False
            self._end_writer()
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
                self._connection.execute("PRAGMA synchronous=OFF")  # the log is not worth the wait for the disk
            self._connection.close()
        delete_store(self.path)

    def __enter__(self) -> WorkingStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except (OSError, ValueError):
            if error is None:
                raise

    def _write(self) -> None:
        """Commit what is pending."""
        with self._writing:
            batch = [self._pending.popleft() for _ in range(len(self._pending))]
            if batch:
                with _sentences(self.path):
                    self._connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", batch)
                    self._commit()

    def _commit(self) -> None:
        """Commit, and take the write lock again: it keeps a second process out."""
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")

    def _write_often(self) -> None:
        while not self._stop.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                self._write()
            except Exception as error:  # raised in the thread that puts the next record
                self._failure = error
                return
            self._stop.wait(COMMIT_SECONDS)

    def _end_writer(self) -> None:
        self._stop.set()
        self._dirty.set()
        if self._writer is not None:
            self._writer.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def read_records(path: Path, kind: str) -> Iterator[tuple[int, Any]]:
    """Every intact record of a store with its number, also while another process writes; the store is not changed."""
    if not path.is_file():
        raise ValueError(f"{path}: must be a file")
    with _sentences(path), _reading(path) as connection:
        if not _is_new(connection):  # as it is if the process was killed while it created the store
            _check(connection, path, kind)
            yield from _intact(connection, path)


def delete_store(path: Path) -> None:
    """Delete a store that no process uses, if there is one."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    if any(file.exists() for file in files):
        for file in files:
            file.unlink(missing_ok=True)
        sync_folder(path.parent)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes
    _limit(connection, path)
    for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _limit(connection: sqlite3.Connection, path: Path) -> None:
    """Interrupt SQLite if it takes far longer than any valid file of this size needs."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    size = sum(file.stat().st_size for file in files if file.exists())
    left = (_INSTRUCTIONS + _INSTRUCTIONS_PER_BYTE * size) // _CALL

    def exhausted() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(exhausted, _CALL)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Use the write-ahead log, or a rollback journal where the file system has no shared memory."""
    try:
        connection.execute("PRAGMA journal_mode=WAL")  # answers with the mode it was in if WAL is refused
    except sqlite3.OperationalError as error:
        if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL):
            raise
        connection.execute("PRAGMA journal_mode=DELETE")


def _is_new(connection: sqlite3.Connection) -> bool:
    count: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return count == 0


def _check(connection: sqlite3.Connection, path: Path, kind: str) -> None:
    """Raise a ValueError that says what is wrong with a store."""
    if dict(connection.execute("SELECT name, sql FROM sqlite_master")) != _SCHEMA:
        raise ValueError(f"{path}: not a working store of adaptdel: {_DELETE}")
    if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != b"ok":
        raise ValueError(f"{path}: a damaged working store: {_DELETE}")
    connection.set_progress_handler(None, 0)  # the pages form trees, which are read in bounded time
    _check_header(connection, path, kind)


def _check_header(connection: sqlite3.Connection, path: Path, kind: str) -> dict[str, Any]:
    """Return the settings of a store if it is one of this kind."""
    header = connection.execute("SELECT kind, format, settings FROM header LIMIT 2").fetchall()
    if len(header) != 1 or header[0][:2] != (kind.encode(), FORMAT):
        raise ValueError(f"{path}: not the working store of a {kind} in format {FORMAT}: {_DELETE}")
    settings = header[0][2]
    try:
        if not isinstance(settings, bytes) or len(settings) > _LARGEST_HEADER:
            raise ValueError("settings must be a JSON object")
        return parse_object(settings)
    except ValueError as error:
        raise ValueError(f"{path}: not the working store of a {kind}: {error}: {_DELETE}") from None


def _intact(
    connection: sqlite3.Connection, path: Path, first: int = SMALLEST, last: int = LARGEST
) -> Iterator[tuple[int, Any]]:
    """The records whose checksum is right; a damaged one is skipped, and computed again by whoever needs it."""
    query = "SELECT number, checksum, value FROM records WHERE number BETWEEN ? AND ? ORDER BY number"
    with _sentences(path):
        for number, checksum, value in connection.execute(query, (first, last)):
            if isinstance(value, bytes) and checksum == zlib.crc32(value):
                try:
                    record = json.loads(value)
                except (ValueError, RecursionError):
                    continue
                yield number, record


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to read from: to the file itself, or to a copy where the folder cannot be written to.

    A reader of a write-ahead log writes to the shared memory beside it. Without a log there is nothing to share.
    """
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(_connect(path, "ro&immutable=1" if _is_closed(path) else "ro")))
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                raise
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory())) / path.name
            try:
                for suffix in ("", "-wal", "-journal"):
                    file = path.with_name(path.name + suffix)
                    if file.exists():
                        shutil.copyfile(file, copy.with_name(copy.name + suffix))
            except OSError as failure:
                raise ValueError(f"{path}: cannot be read: {failure.strerror or failure}") from None
            connection = stack.enter_context(closing(_connect(copy, "rw")))
        yield connection


def _is_closed(path: Path) -> bool:
    """Whether no process has the file open for writing: it uses a write-ahead log, and there is none."""
    if any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal")):
        return False
    with path.open("rb") as file:
        return file.read(19)[18:] == b"\x02"


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as a ValueError that names the file, or as an OSError of the disk."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error


def _code(error: sqlite3.Error) -> int:
    """The primary error code; 0 for an error of Python's module."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _translated(path: Path, error: sqlite3.Error) -> Exception:
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if code == sqlite3.SQLITE_IOERR:
        return _no_space(path) or OSError(errno.EIO, str(error), str(path))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return ValueError(f"{path}: another process is using it: wait until that has ended")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ValueError(f"{path}: cannot be opened ({error}): it and its folder must be readable and writable")
    if code == sqlite3.SQLITE_NOTADB:
        return ValueError(f"{path}: not a working store of adaptdel: {_DELETE}")
    return ValueError(f"{path}: a damaged working store: {_DELETE}")


def _no_space(path: Path) -> OSError | None:
    """The error of a disk that is full, which SQLite reports as such only for some of its causes."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    largest = max(file.stat().st_size if file.exists() else 0 for file in files)
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.seek(largest)
            probe.write(bytes(2**16))
            probe.flush()
    except OSError as error:
        return error if error.errno in FULL else None
    return None
