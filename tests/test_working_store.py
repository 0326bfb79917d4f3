"""The working store: commits that survive a kill, and files that are damaged, hostile, or used by another process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptdel import working_store
from adaptdel.working_store import COMMIT_SECONDS, SUFFIXES, WorkingStore, delete_store, read_records

DELETE = "delete it and run the same command again"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.sqlite"


def numbers(path: Path) -> list[int]:
    return [number for number, _ in read_records(path, "test")]


def filled(path: Path, count: int = 3) -> Path:
    with WorkingStore(path, "test", {"alpha": 0.05}) as store:
        for number in range(count):
            store.put(number, {"square": number**2})
    return path


def sentence(action: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        action()
    assert "\n" not in str(error.value)
    return str(error.value)


def raises(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for another thread, however slow the machine is."""
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def opened(path: Path) -> WorkingStore:
    return WorkingStore(path, "test")


def test_records_are_kept_in_order_and_replaced(path: Path) -> None:
    with WorkingStore(path, "test", {"alpha": 0.05}) as store:
        for number in (5, 1, 9, 1):
            store.put(number, {"value": [number, None, float("inf")]})
        assert [number for number, _ in store.records()] == [1, 5, 9]
        store.put(1, {"value": "new"})
    with WorkingStore(path, "test", {"alpha": 0.9}) as store:
        assert store.settings == {"alpha": 0.05}
        assert dict(store.records())[1] == {"value": "new"}
        assert dict(store.records())[5] == {"value": [5, None, float("inf")]}
        store.delete()
    assert list(path.parent.iterdir()) == []
    delete_store(path)


def test_a_closed_store_is_one_file_also_after_it_was_read(path: Path) -> None:
    assert numbers(filled(path)) == [0, 1, 2]
    assert list(path.parent.iterdir()) == [path]


def test_records_are_committed_without_being_asked_for(path: Path) -> None:
    """At once if nothing was committed for a while, and with those that follow otherwise."""
    with opened(path) as store:
        for number in range(40):
            store.put(number, {})
            if number % 10 == 0:
                eventually(lambda number=number: number in numbers(path))  # type: ignore[misc]
    assert numbers(path) == list(range(40))
    assert COMMIT_SECONDS < 0.5


def test_commits_wait_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[sqlite3.Connection] = []
    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(real(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    with opened(path):
        assert connections[0].execute("PRAGMA journal_mode").fetchone() == (b"wal",)
        assert connections[0].execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_records_are_in_no_need_of_the_end(path: Path) -> None:
    """A process is killed right after `flush`: everything is there."""
    child = os.fork()
    if not child:
        store = opened(path)
        for number in range(500):
            store.put(number, {"text": "x" * 3000})
        store.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert numbers(path) == list(range(500))
    with opened(path) as store:
        assert len(list(store.records())) == 500


class FailingConnection(sqlite3.Connection):
    """Commits fail as they do on a broken disk once ``code`` is set."""

    code: int | None = None

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.code is not None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(statement, *arguments)


@pytest.mark.parametrize(
    ("code", "number"),
    [(sqlite3.SQLITE_IOERR_FSYNC, errno.EIO), (sqlite3.SQLITE_FULL, errno.ENOSPC)],
)
def test_a_disk_that_fails_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, number: int) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))
    store = opened(path)
    store.put(1, {"row": 1})
    store.flush()
    monkeypatch.setattr(FailingConnection, "code", code)
    store.put(2, {"row": 2})
    eventually(lambda: raises(lambda: store.put(3, {"row": 3})))  # once the commit of the writing thread has failed
    actions: list[Callable[[], None]] = [lambda: store.put(3, {"row": 3}), store.flush, store.close]
    for action in actions:
        with pytest.raises(OSError) as error:
            action()
        assert error.value.errno == number
        assert error.value.filename == str(path)
    monkeypatch.undo()
    assert numbers(path) == [1]
    assert not [thread for thread in threading.enumerate() if thread.name == "working store"]


def test_a_second_process_is_refused_and_may_read(path: Path) -> None:
    code = f"""
from pathlib import Path
from adaptdel.working_store import WorkingStore, read_records
path = Path({str(path)!r})
print([number for number, _ in read_records(path, "test")])
WorkingStore(path, "test")
"""
    with opened(path) as store:
        store.put(7, {})
        store.flush()
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ran.stdout == "[7]\n"
        assert ran.stderr.endswith(f"ValueError: {path}: another process is using it: wait until that has ended\n")
        store.put(8, {})
    assert numbers(path) == [7, 8]


@pytest.mark.parametrize("how", ["answers with another mode", "raises"])
def test_where_wal_is_refused_a_rollback_journal_is_used(path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """As on a file system without shared memory; SQLite's VFS with lock files has none either."""
    real, modes = sqlite3.connect, []

    class Refusing(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            if statement == "PRAGMA journal_mode=WAL" and how == "raises":
                error = sqlite3.OperationalError("unable to open database file")
                error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
                raise error
            if statement.startswith("BEGIN"):
                modes.append(super().execute("PRAGMA journal_mode").fetchone()[0])
            return super().execute(statement, *arguments)

    # Lock files are free for an instant at each commit, in which a process that waits for them could take them.
    monkeypatch.setattr("adaptdel.working_store.COMMIT_SECONDS", 600.0)
    vfs = "&vfs=unix-dotfile" if how != "raises" else ""
    monkeypatch.setattr(sqlite3, "connect", lambda name, **options: real(name + vfs, factory=Refusing, **options))
    with opened(path) as store:
        for number in range(300):
            store.put(number, {"text": "x" * 500})
        assert sentence(lambda: opened(path)) == f"{path}: another process is using it: wait until that has ended"
        store.flush()
        if how == "raises":  # lock files keep readers out too
            assert numbers(path) == list(range(300))
    assert numbers(path) == list(range(300))
    assert set(modes) == {b"delete"}
    monkeypatch.undo()
    assert numbers(path) == list(range(300))


def test_a_folder_that_cannot_be_written_to_is_read_from_a_copy(path: Path) -> None:
    """The shared memory of the log cannot be created: a folder is in its place."""
    with opened(path) as store:
        store.put(1, {})
        store.flush()
        copy = Path(shutil.copytree(path.parent, path.parent / "copy")) / path.name
    shared = copy.with_name(f"{copy.name}-shm")
    shared.unlink()
    shared.mkdir()
    before = {file.name: file.read_bytes() for file in copy.parent.iterdir() if file.is_file()}
    assert f"{copy.name}-wal" in before
    assert numbers(copy) == [1]
    assert {file.name: file.read_bytes() for file in copy.parent.iterdir() if file.is_file()} == before
    refused = sentence(lambda: opened(copy))
    assert refused.startswith(f"{copy}: cannot be opened (")
    assert refused.endswith("): it and its folder must be readable and writable")


def test_what_is_no_store_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"three years of work\n" * 500)
    for action in (lambda: opened(path), lambda: numbers(path)):
        assert sentence(action) == f"{path}: not a working store of adaptdel: {DELETE}"
    assert path.read_bytes() == b"three years of work\n" * 500
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    content = path.read_bytes()
    for action in (lambda: opened(path), lambda: numbers(path)):
        assert sentence(action) == f"{path}: not a working store of adaptdel: {DELETE}"
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    assert sentence(lambda: opened(path)).startswith(f"{path}: cannot be opened")
    assert sentence(lambda: numbers(path)) == f"{path}: must be a file"
    path.rmdir()
    assert sentence(lambda: numbers(path)) == f"{path}: must be a file"
    assert sentence(lambda: opened(path / "no" / "folder")).startswith(f"{path / 'no' / 'folder'}: cannot be opened")


def test_a_store_of_something_else(path: Path) -> None:
    filled(path)
    for action in (lambda: WorkingStore(path, "run"), lambda: list(read_records(path, "run"))):
        assert sentence(action) == f"{path}: not the working store of a run in format 1: {DELETE}"


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "ALTER TABLE records RENAME TO hidden; CREATE VIEW records AS SELECT 1 AS number, 2 AS checksum, 3 AS value",
        "ALTER TABLE records ADD COLUMN more AS (hex(zeroblob(1000000)))",
        "CREATE INDEX i ON records (value)",
        "DROP TABLE records",
    ],
)
def test_nothing_in_the_schema_is_executed(path: Path, statements: str) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    for action in (lambda: opened(path), lambda: numbers(path)):
        assert sentence(action) == f"{path}: not a working store of adaptdel: {DELETE}"


def test_damaged_records_are_skipped(path: Path) -> None:
    filled(path, 5)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE records SET value = CAST('{\"square\":2}' AS BLOB) WHERE number = 1")
        connection.execute("UPDATE records SET value = NULL WHERE number = 2")
        connection.execute("UPDATE records SET checksum = 'x' WHERE number = 3")
        connection.commit()
    assert list(read_records(path, "test")) == [(0, {"square": 0}), (4, {"square": 16})]


def test_pages_that_form_no_tree_end_in_bounded_time(path: Path) -> None:
    """Every pointer of an inner page leads to the same page, which holds the same again: endlessly many records."""
    filled(path, 4000)
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'").fetchone()
    data = bytearray(path.read_bytes())
    start = 4096 * (root - 1)
    assert data[start] == 5  # an inner page of a table
    cells = int.from_bytes(data[start + 3 : start + 5], "big")
    assert cells > 3
    for cell in range(cells):
        at = start + int.from_bytes(data[start + 12 + 2 * cell : start + 14 + 2 * cell], "big")
        data[at : at + 4] = data[start + 8 : start + 12]
    path.write_bytes(bytes(data))
    begun = time.process_time()
    for action in (lambda: opened(path), lambda: numbers(path)):
        assert sentence(action) == f"{path}: a damaged working store: {DELETE}"
    assert time.process_time() - begun < 10  # seconds of this process


def test_sqlite_is_interrupted_if_it_takes_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 5000)
    monkeypatch.setattr(working_store, "_INSTRUCTIONS", 0)
    monkeypatch.setattr(working_store, "_INSTRUCTIONS_PER_BYTE", 0)
    monkeypatch.setattr(working_store, "_CALL", 1000)
    for action in (lambda: opened(path), lambda: numbers(path)):
        assert sentence(action) == f"{path}: a damaged working store: {DELETE}"
    monkeypatch.undo()
    assert len(numbers(path)) == 5000


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
def test_every_cut_of_a_file_is_resumed_or_refused(path: Path, tmp_path: Path, suffix: str) -> None:
    """The database or its log ends early: a prefix of the commits is read, or one sentence names the file."""
    filled(path, 30)
    with opened(path) as store:
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
            found = numbers(copy)
        except ValueError as error:
            outcomes.add(str(error).removeprefix(str(copy)))
        else:
            assert found == list(range(len(found)))
            assert len(found) >= 30 or not size
            outcomes.add("resumed")
        shutil.rmtree(copy.parent)
    assert "resumed" in outcomes
    refused = outcomes - {"resumed"}
    assert all(text.startswith(": ") and text.endswith(f": {DELETE}") for text in refused)
    assert bool(refused) == (suffix == "")
