"""The store of unfinished work: what a run, a calibration or an attack resumes from, in one SQLite file.

A store holds the job it belongs to and values by key, as bytes or as JSON. The same job finds its records again;
another job is refused. SQLite's write-ahead log (WAL) makes every commit atomic: a process that is killed loses at most
the work of `COMMIT_SECONDS`, and the file stays valid. Where the file system has no shared memory, as on some network
disks, SQLite keeps a rollback journal instead. An open store keeps a second process out; readers do not wait.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from adaptdel.files import folder_lock, sync_folder

COMMIT_SECONDS = 0.1  # between two commits, each of which waits for the disk
SUFFIXES = ("", "-wal", "-shm", "-journal")  # the file, and those that SQLite keeps beside it
START_AGAIN = "delete it and run the same command again"
_SCHEMA = (
    "CREATE TABLE job (value TEXT)",
    "CREATE TABLE records (key PRIMARY KEY, value)",
)
_WAIT_SECONDS = 1.0  # for a lock of another process

Key = int | str


class Store:
    """The records of a job in a file; for one thread.

    Args:
        path: the file; created if it does not exist.
        job: what the records depend on, in plain values; a store of another job is refused.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        self.path = path
        self._committed = 0.0
        with _sentences(path):
            self._connection = _connect(path, "rwc")
            try:
                with suppress(sqlite3.OperationalError):  # a file system without shared memory
                    self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.execute("BEGIN IMMEDIATE")
                if _is_new(self._connection):
                    for statement in _SCHEMA:
                        self._connection.execute(statement)
                    self._connection.execute("INSERT INTO job VALUES (?)", (json.dumps(job),))
                    self._commit()
                (stored,) = self._connection.execute("SELECT value FROM job").fetchone() or ("",)
                check_same_job(path, _parsed(path, stored), job, START_AGAIN)
            except BaseException:
                self._connection.close()
                raise

    def put(self, key: Key, value: Any) -> None:
        """Add or replace a record; it is on the disk after the next commit, at most `COMMIT_SECONDS` of work later.

        Bytes are kept as they are; other values are written as JSON.
        """
        content = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":"))
        with _sentences(self.path):
            self._connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, content))
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Commit; every record is on the disk when this returns."""
        with _sentences(self.path):
            self._commit()

    def records(self) -> Iterator[tuple[Any, Any]]:
        """The records with their keys, in the order of the keys."""
        yield from _records(self._connection, self.path)

    def keys(self) -> list[Any]:
        """The keys, in order."""
        with _sentences(self.path):
            return [key for (key,) in self._connection.execute("SELECT key FROM records ORDER BY key")]

    def remove(self, keys: Iterable[Key]) -> None:
        """Delete the records with these keys; they are gone from the disk when this returns."""
        with _sentences(self.path):
            self._connection.executemany("DELETE FROM records WHERE key = ?", ((key,) for key in keys))
            self._commit()

    def close(self) -> None:
        """Commit, and release the file."""
        with _sentences(self.path), closing(self._connection):
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def delete(self) -> None:
        """Delete the file: its records are no longer needed."""
        self._connection.close()
        delete_store(self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            with suppress(sqlite3.ProgrammingError):  # it was closed or deleted
                self.close()
        except (OSError, ValueError):
            if error is None:
                raise

    def _commit(self) -> None:
        """Commit, and take the write lock again: it keeps a second process out."""
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        self._committed = time.monotonic()


def read_records(path: Path) -> Iterator[tuple[Any, Any]]:
    """The records of a store with their keys, also while another process writes; the store is not changed."""
    with _sentences(path):
        # A reader of a write-ahead log creates it if there is none: a store that no process uses is read without.
        closed = path.is_file() and not path.with_name(f"{path.name}-wal").exists()
        if closed:
            with path.open("rb") as file:
                closed = file.read(19)[18:] == b"\x02"  # it has such a log when it is open
        with closing(_connect(path, "ro&immutable=1" if closed else "ro")) as connection:
            if not _is_new(connection):  # as it is if the process was killed while it created the store
                yield from _records(connection, path)


def delete_store(path: Path) -> None:
    """Delete a store that no process uses, if there is one."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    if any(file.exists() for file in files):
        for file in files:
            file.unlink(missing_ok=True)
        sync_folder(path.parent)


def check_same_job(where: Path, old: Any, new: Mapping[str, Any], advice: str) -> None:
    """Raise a ValueError that names the differences unless two jobs, in plain values, are the same."""
    earlier, now = _flat(old if isinstance(old, dict) else {}), _flat(json.loads(json.dumps(new)))
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    shown = [f"{name:.60} was {_shown(earlier.get(name))}, now {_shown(now.get(name))}" for name in names[:3]]
    if shown:
        wrong = "; ".join(shown) + ("; ..." if len(names) > 3 else "")
        raise ValueError(f"{where}: belongs to another job: {wrong}: {advice}")


def _flat(job: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested objects by names such as "data.sha256"."""
    values: dict[str, Any] = {}
    for name, value in job.items():
        values |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def _shown(value: Any) -> str:
    """A value in a message: hashes are shortened."""
    text = "none" if value is None else " ".join(str(value).split())
    return text if len(text) < 32 else text[:12] + "..."


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against a second process; the lock ends with the process, however it ends."""
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder))
        except BlockingIOError:
            raise ValueError(f"{folder}: another process is using this folder: wait until it has ended") from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked a folder."""
    try:
        with locked(folder):
            return False
    except ValueError:
        return True


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema=OFF")
    return connection


def _is_new(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _records(connection: sqlite3.Connection, path: Path) -> Iterator[tuple[Any, Any]]:
    with _sentences(path):
        for key, content in connection.execute("SELECT key, value FROM records ORDER BY key"):
            yield key, content if isinstance(content, bytes) else _parsed(path, content)


def _parsed(path: Path, text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path}: a damaged store: {START_AGAIN}") from None


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as a ValueError that names the file, or as an OSError of the disk."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.Error, UnicodeError) as error:
        code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):  # a full disk can be either
            number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ValueError(f"{path}: another process is using it: wait until that has ended") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            sentence = f"{path}: cannot be opened ({error}): it and its folder must be readable and writable"
            raise ValueError(sentence) from error
        raise ValueError(f"{path}: a damaged store: {START_AGAIN}") from error
