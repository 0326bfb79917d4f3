"""Runs that are killed, on full disks, with damaged journals: nothing is lost, and the result is the same to the byte.

The quick tests fork from a process that has everything imported, so that a run starts in no time; the slow one kills
whole processes with their workers.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptdel.runs import storage
from adaptdel.runs.records import problem_record
from adaptdel.runs.storage import RunJournal, encode, read_journal, read_run
from tests.run_files import call, command, make_data, make_model, run

psutil: Any = pytest.importorskip("psutil")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and the run that was never interrupted."""
    folder = tmp_path_factory.mktemp("place")
    make_model(folder / "model")
    make_data(folder / "small.jsonl", 8)
    make_data(folder / "large.jsonl", 400)
    for name in ("small", "large"):
        assert run("certify", folder / "model", "--data", folder / f"{name}.jsonl", "--out", folder / name) == 0
    return folder


def arguments(place: Path, out: Path, size: str = "large", workers: int = 1) -> list[str]:
    data = place / f"{size}.jsonl"
    return ["certify", str(place / "model"), "--data", str(data), "--out", str(out), "--workers", str(workers)]


def same(out: Path, expected: Path) -> bool:
    return (out / "certificates.parquet").read_bytes() == (expected / "certificates.parquet").read_bytes()


def records(out: Path) -> int:
    journal = out / "journal"
    return sum(1 for _ in read_journal(journal)) if journal.exists() else 0


# What the forked processes run: main, after something was done to the system calls.
FARM = """
import json, os, resource, signal, sys, time
from tests.run_files import run
import adaptdel.runs.certify, adaptdel.runs.workers
from tests.runs.test_killed import die_at
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(order["errors"] or os.devnull, os.O_WRONLY | os.O_APPEND), 2)
        if order["room"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["room"], order["room"]))
        die_at(order["step"])
        os._exit(run(*order["arguments"]))
    if order["delay"] is not None:
        time.sleep(order["delay"])
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STEPS = ("write", "fsync", "replace", "ftruncate", "unlink", "fchmod")


def die_at(step: int | None) -> None:
    """Have this process kill itself at the step-th of its steps towards the disk; a write is then half done."""
    left = [step]

    def patched(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object) -> object:
            assert left[0] is not None
            left[0] -= 1
            if left[0] < 0:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[:20])  # type: ignore[call-overload]
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        setattr(os, name, call)

    if step is not None:
        for name in STEPS:
            patched(name)


class Farm:
    """A process out of which runs are forked."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", FARM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def run(
        self,
        arguments: list[str],
        step: int | None = None,
        delay: float | None = None,
        room: int | None = None,
        errors: str | None = None,
    ) -> int:
        """The exit status of a run that dies at a step, or after a time, or whose files must fit into some room."""
        assert self.process.stdin
        assert self.process.stdout
        order = {"arguments": arguments, "step": step, "delay": delay, "room": room, "errors": errors}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    made = Farm()
    yield made
    made.end()


def test_killed_at_random(tmp_path: Path, place: Path, farm: Farm) -> None:
    """At least 20 times, at any time; each time what was there stays, and the end is the same."""
    rng = random.Random()
    kills = finished = 0
    while kills < 20 or not finished:
        out = tmp_path / f"run{finished}"
        before = records(out)
        status = farm.run(arguments(place, out), delay=rng.uniform(0, 0.3) if kills < 20 else None)
        if status == 0:
            assert same(out, place / "large")
            assert sorted(path.name for path in out.iterdir()) == [
                "certificates.parquet",
                "manifest.json",
                "times.parquet",
            ]
            finished += 1
        else:
            assert status == -signal.SIGKILL
            kills += 1
            assert records(out) >= before or not (out / "journal").exists()


def test_killed_at_every_step(tmp_path: Path, place: Path, farm: Farm) -> None:
    """Before every single step towards the disk, half-written records included; and once more while it resumes."""
    step = 0
    while True:
        out = tmp_path / f"run{step}"
        if farm.run(arguments(place, out, "small"), step) == 0:
            break
        farm.run(arguments(place, out, "small"), random.randrange(20))
        assert farm.run(arguments(place, out, "small")) == 0, step
        assert same(out, place / "small"), step
        step += 1
    assert step > 20


def kill_later(process: subprocess.Popen[str], out: Path, size: int) -> list[Any]:
    """Kill a run once its journal has grown by so many bytes, or it is over; the workers that it leaves behind."""
    journal = out / "journal"
    start = journal.stat().st_size if journal.exists() else 0
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < start + size):
        time.sleep(0.005)
    children: list[Any] = psutil.Process(process.pid).children() if process.poll() is None else []
    process.kill()
    process.wait()
    return children


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*arguments), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def killed_with_workers(place: Path, out: Path, kills: int, workers: int, rng: random.Random) -> None:
    left: list[Any] = []
    for _ in range(kills):
        with start(*arguments(place, out, workers=workers)) as process:
            left += kill_later(process, out, rng.randrange(8_000))
            assert process.returncode == -signal.SIGKILL
    done = call(*arguments(place, out, workers=workers))
    assert (done.returncode, done.stderr) == (0, "")
    assert same(out, place / "large")
    assert not psutil.wait_procs(left, timeout=10)[1], "workers outlive the run"


def test_killed_with_workers(tmp_path: Path, place: Path) -> None:
    killed_with_workers(place, tmp_path / "run", 2, 2, random.Random())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_often(tmp_path: Path, place: Path, workers: int) -> None:
    killed_with_workers(place, tmp_path / "run", 25, workers, random.Random(workers))


def test_a_worker_that_dies_ends_the_run(tmp_path: Path, place: Path) -> None:
    out = tmp_path / "run"
    with start(*arguments(place, out, workers=2)) as process:
        while records(out) < 40:
            time.sleep(0.01)
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        max(workers, key=lambda worker: worker.cpu_times().user).kill()  # on a busy machine, another may still load
        _, error = process.communicate()
        before = records(out)
    assert process.returncode == 2
    assert "died (signal 9, as when memory runs out) while it worked on rows " in error
    assert "everything certified so far is kept: run the same command again\n" in error
    assert error.count("\n") == 1
    assert 0 < before < 400
    found = read_run(out)
    assert not found.finished
    assert len(found.table) == before
    assert list(found.certificates())
    assert call(*arguments(place, out)).returncode == 0
    assert same(out, place / "large")


def test_stopped_by_hand(tmp_path: Path, place: Path) -> None:
    out = tmp_path / "run"
    with start(*arguments(place, out, workers=2)) as process:
        while not records(out):
            time.sleep(0.01)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert (process.returncode, error.strip()) == (130, "adaptdel: stopped")
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert 0 < records(out) < 400
    assert run(*arguments(place, out)) == 0
    assert same(out, place / "large")


def test_a_full_disk(tmp_path: Path, place: Path) -> None:
    """A disk of 24 pages: the run stops in one sentence, and goes on once there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=96k", "tmpfs", disk], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        out = disk / "run"
        sizes = []
        for _ in range(2):
            done = call(*arguments(place, out))
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert "the disk is full: everything certified so far is kept" in done.stderr
            sizes.append(records(out))
        assert 0 < sizes[0] <= sizes[1] < 400
        subprocess.run([mount, "-o", "remount,size=4m", disk], check=True)
        assert call(*arguments(place, out)).returncode == 0
        assert same(out, place / "large")
    finally:
        subprocess.run(["umount", disk], check=False)


@pytest.mark.parametrize("size", [0, 300, 3000, 50_000, 150_000])
def test_no_room_for_large_files(tmp_path: Path, place: Path, size: int, farm: Farm) -> None:
    """The system refuses files above a size: in the manifest, in the journal, and in the tables at the end."""
    out = tmp_path / "run"

    before = 0
    for _ in range(2):
        read, write = os.pipe()
        assert farm.run(arguments(place, out), room=size, errors=f"/proc/{os.getpid()}/fd/{write}") == 2
        os.close(write)
        with os.fdopen(read) as errors:
            error = errors.read()
        assert error.count("\n") == 1
        assert "the disk is full: everything certified so far is kept" in error
        assert before <= records(out) < 400
        before = records(out)
    assert farm.run(arguments(place, out)) == 0
    assert same(out, place / "large")
    assert (before > 0) == (size >= 3000)


def test_no_room_for_the_tables(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if ".certificates.parquet." in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    out = tmp_path / "run"
    assert run(*arguments(place, out, "small")) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert records(out) == 8
    assert sorted(path.name for path in out.iterdir()) == ["journal", "manifest.json"]
    monkeypatch.undo()
    assert run(*arguments(place, out, "small")) == 0
    assert same(out, place / "small")


TAILS: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-7],
    "without its end": lambda data: data[:-1],
    "garbage": lambda data: data + b"\x00\xffgarbage" * 9,
    "garbage lines": lambda data: data + b"\x00\xff\nga\nrbage\n\n\x00" * 9,
    "zeros": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "a flipped bit": lambda data: data[:900] + bytes([data[900] ^ 4]) + data[901:],
    "a line of another kind": lambda data: data + encode({"row": 1})[:-1].replace(b"row", b"raw") + b"\n",
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("damage", TAILS.values(), ids=TAILS)
def test_a_damaged_journal(tmp_path: Path, place: Path, damage: Callable[[bytes], bytes], farm: Farm) -> None:
    out = tmp_path / "run"
    assert farm.run(arguments(place, out, "small"), 14) == -signal.SIGKILL
    journal = out / "journal"
    whole = records(out)
    assert whole > 3
    journal.write_bytes(damage(journal.read_bytes()))
    assert not read_run(out).finished
    assert run(*arguments(place, out, "small")) == 0
    assert same(out, place / "small")


def test_the_journal_is_on_the_disk_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[float, int]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        size = os.fstat(handle).st_size
        real(handle)
        synced.append((time.monotonic(), size))

    with RunJournal(tmp_path / "journal") as journal:
        monkeypatch.setattr(os, "fsync", fsync)
        for number in range(40):
            journal.append(problem_record("none", id=str(number), row=number))
            now, size = time.monotonic(), (tmp_path / "journal").stat().st_size
            time.sleep(0.01 if number % 10 else 0.5)
            if number % 10 == 0:
                assert any(when - now < 1 and done >= size for when, done in synced)
    assert [record["row"] for _, record in read_journal(tmp_path / "journal")] == list(range(40))


def test_a_disk_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RunJournal(tmp_path / "journal")
    journal.append({"row": 1})

    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append({"row": 2})
    time.sleep(2 * storage.SYNC_SECONDS)
    with pytest.raises(OSError, match="broken"):
        journal.append({"row": 3})
    with pytest.raises(OSError, match="broken"):
        journal.close()
