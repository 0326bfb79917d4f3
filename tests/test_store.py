"""The store: commits that survive a kill, jobs that are compared, files that are damaged or used by another process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptdel.store import START_AGAIN, SUFFIXES, Store, delete_store, is_locked, locked, read_records

JOB = {"kind": "test", "alpha": 0.05, "ops": ("del", "ins")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.sqlite"


def keys(path: Path) -> list[Any]:
    return [key for key, _ in read_records(path)]


def filled(path: Path, count: int = 3) -> Path:
    with Store(path, JOB) as store:
        for number in range(count):
            store.put(number, {"square": number**2})
    return path


def sentence(action: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        action()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_records_are_kept_in_order_and_replaced(path: Path) -> None:
    with Store(path, JOB) as store:
        for number in (5, 1, 9, 1):
            store.put(number, {"value": [number, None, float("inf")]})
        assert [number for number, _ in store.records()] == [1, 5, 9]
        store.put(1, {"value": "new"})
    with Store(path, JOB) as store:
        assert dict(store.records())[1] == {"value": "new"}
        assert dict(store.records())[5] == {"value": [5, None, float("inf")]}
        store.remove([5])
        store.put("a text", None)
        assert keys(path) == [1, 9]
        store.flush()
        assert keys(path) == [1, 9, "a text"]
        store.delete()
    assert list(path.parent.iterdir()) == []
    delete_store(path)


def test_records_are_committed_without_being_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("adaptdel.store.time.monotonic", lambda: clock[0])
    with Store(path, JOB) as store:
        store.flush()
        store.put(1, {})
        assert keys(path) == []
        clock[0] = 1.0
        store.put(2, {})
        assert keys(path) == [1, 2]


def test_a_killed_process_has_kept_what_was_committed(path: Path) -> None:
    child = os.fork()
    if not child:
        store = Store(path, JOB)
        for number in range(500):
            store.put(number, {"text": "x" * 3000})
        store.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert keys(path) == list(range(500))
    with Store(path, JOB) as store:
        assert len(list(store.records())) == 500


class FailingConnection(sqlite3.Connection):
    """Commits fail as they do on a broken disk once ``code`` is set; without ``wal`` there is no write-ahead log."""

    code: int | None = None
    wal = True

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        code = self.code if statement == "COMMIT" else None
        if "WAL" in statement and not self.wal:
            code = sqlite3.SQLITE_CANTOPEN
        if code is not None:
            error = sqlite3.OperationalError("it fails")
            error.sqlite_errorcode = code
            raise error
        return super().execute(statement, *arguments)


@pytest.mark.parametrize(
    ("code", "number"), [(sqlite3.SQLITE_IOERR_FSYNC, errno.EIO), (sqlite3.SQLITE_FULL, errno.ENOSPC)]
)
def test_a_disk_that_fails_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, number: int) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))
    store = Store(path, JOB)
    store.put(1, {"row": 1})
    store.flush()
    monkeypatch.setattr(FailingConnection, "code", code)
    store.put(2, {"row": 2})
    for action in (store.flush, store.close):
        with pytest.raises(OSError) as error:
            action()
        assert (error.value.errno, error.value.filename) == (number, str(path))
    monkeypatch.undo()
    assert keys(path) == [1]


def test_without_shared_memory_a_rollback_journal_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))
    monkeypatch.setattr(FailingConnection, "wal", False)
    with Store(path, JOB) as store:
        store.put(1, {})
        store.flush()
        assert keys(path) == [1]
        assert "another process" in sentence(lambda: Store(path, JOB))
    assert keys(path) == [1]


def test_a_second_process_is_refused_and_may_read(path: Path) -> None:
    code = f"""
from pathlib import Path
from adaptdel.store import Store, is_locked, read_records
path = Path({str(path)!r})
print([key for key, _ in read_records(path)], is_locked(path.parent))
Store(path, {JOB!r})
"""
    with locked(path.parent), Store(path, JOB) as store:
        store.put(7, {})
        store.flush()
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ran.stdout == "[7] True\n"
        assert ran.stderr.endswith(f"ValueError: {path}: another process is using it: wait until that has ended\n")
        with pytest.raises(ValueError, match="another process"), locked(path.parent):
            pass
    assert not is_locked(path.parent)


def test_what_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"three years of work\n" * 500)
    for action in (lambda: Store(path, JOB), lambda: keys(path)):
        assert sentence(action) == f"{path}: a damaged store: {START_AGAIN}"
    assert path.read_bytes() == b"three years of work\n" * 500
    nowhere = path.parent / "no" / "folder"
    assert sentence(lambda: Store(nowhere, JOB)).startswith(f"{nowhere}: cannot be opened")


@pytest.mark.parametrize("change", ["value = '{\"square\":3'", "value = NULL"])
def test_damaged_records_are_refused(path: Path, change: str) -> None:
    filled(path, 5)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE records SET {change} WHERE key = 2")
        connection.commit()
    assert sentence(lambda: keys(path)) == f"{path}: a damaged store: {START_AGAIN}"


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
def test_every_cut_of_a_file_is_resumed_or_refused(path: Path, tmp_path: Path, suffix: str) -> None:
    """The database or its log ends early: a prefix of the commits is read, or one sentence names the file."""
    filled(path, 30)
    with Store(path, JOB) as store:
        for number in range(30, 60):
            store.put(number, {"text": "x" * 900})
            store.flush()
        source = Path(shutil.copytree(path.parent, tmp_path / "source")) / path.name
    source.with_name(f"{path.name}-shm").unlink()
    data = source.with_name(source.name + suffix).read_bytes()
    outcomes = set()
    for size in range(0, len(data), 1021):
        copy = Path(shutil.copytree(source.parent, tmp_path / f"{size}")) / path.name
        copy.with_name(copy.name + suffix).write_bytes(data[:size])
        try:
            rows = keys(copy)
        except ValueError as error:
            outcomes.add(str(error).removeprefix(str(copy)))
        else:
            assert rows == list(range(len(rows)))
            assert len(rows) >= 30 or not size
            outcomes.add("resumed")
        shutil.rmtree(copy.parent)
    assert "resumed" in outcomes
    assert outcomes <= {"resumed", f": a damaged store: {START_AGAIN}"}
