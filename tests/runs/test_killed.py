"""Runs that are killed, on full disks, with damaged stores: what was committed is kept, and the result is identical.

The quick tests fork from a process that has everything imported, so that a run starts in no time; the slow one kills
whole processes with their workers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptdel.runs.storage import STORE, in_order
from adaptdel.store import read_records
from tests.run_files import call, make_data, make_model, run

psutil: Any = pytest.importorskip("psutil")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a run can take a minute, and then reports its progress on standard error."""
    monkeypatch.setenv("TQDM_DISABLE", "1")


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


@pytest.fixture(scope="module")
def huge(place: Path) -> None:
    """A file that takes seconds, and its run."""
    make_data(place / "huge.jsonl", 3000)
    assert run("certify", place / "model", "--data", place / "huge.jsonl", "--out", place / "huge") == 0


def arguments(place: Path, out: Path, size: str = "large", workers: int = 1) -> list[str]:
    data = place / f"{size}.jsonl"
    return ["certify", str(place / "model"), "--data", str(data), "--out", str(out), "--workers", str(workers)]


def same(out: Path, expected: Path) -> bool:
    return (out / "certificates.parquet").read_bytes() == (expected / "certificates.parquet").read_bytes()


def records(out: Path) -> int:
    try:
        return sum(len(batch) for batch in in_order(out / STORE, read_records(out / STORE), ("row",)))
    except ValueError:
        if (out / STORE).exists():
            raise
        return 0  # not created yet, or just deleted


# What the forked processes run: main, after something was done to the system calls; then the status and what it said.
FARM = """
import json, os, resource, signal, sys, time
from tests.run_files import run
import adaptdel.runs.certify, adaptdel.store
from tests.runs.test_killed import die_at
for line in sys.stdin:
    order = json.loads(line)
    errors, end = os.pipe()  # not a file, which the limit would stop
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(end, 2)
        if "room" in order:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["room"], order["room"]))
        if order.get("fatal"):
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        adaptdel.runs.certify.BATCH_ROWS = order.get("batch", 1)  # committed together
        die_at(order.get("step"))
        os._exit(run(*order["arguments"]))
    os.close(end)
    if order.get("delay") is not None:
        time.sleep(order["delay"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(errors) as errors:
        said = errors.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)
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

    class Connection(sqlite3.Connection):
        """Every statement is a step."""

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            return stepped(super().execute, *arguments)

        def executemany(self, *arguments: Any) -> sqlite3.Cursor:
            return stepped(super().executemany, *arguments)

    def stepped(real: Callable[..., sqlite3.Cursor], *arguments: Any) -> sqlite3.Cursor:
        assert left[0] is not None
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    if step is not None:
        for name in STEPS:
            patched(name)
        sqlite3.connect = partial(sqlite3.connect, factory=Connection)  # type: ignore[assignment]


class Farm:
    """A process out of which runs are forked; if it ends, its case fails, and the next one gets another."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
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

    def run(self, arguments: list[str], **order: Any) -> int:
        """The exit status of a run that dies at a step, or after a delay, or whose files have only some room.

        A write beyond that room fails, or, if ``fatal``, is done up to that size and then kills the process.
        """
        assert self.process.stdin
        assert self.process.stdout
        case = json.dumps({"arguments": arguments, **order})
        with suppress(BrokenPipeError):
            self.process.stdin.write(case + "\n")
            self.process.stdin.flush()
        if not (answer := self.process.stdout.readline()):
            ended, error = self.process, self.process.communicate()[1]
            self.start()
            pytest.fail(f"the process that forks ended with {ended.returncode} in the case {case}: {error}")
        status, self.said = json.loads(answer)
        return int(status)

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
        delay = rng.uniform(0, 0.3) if kills < 20 else None
        status = farm.run(arguments(place, out), delay=delay, batch=rng.choice([1, 3, 40]))
        if status == 0:
            assert same(out, place / "large")
            assert sorted(path.name for path in out.iterdir()) == ["certificates.parquet", "manifest.json"]
            finished += 1
        else:
            assert status == -signal.SIGKILL
            kills += 1
            assert records(out) >= before or not (out / STORE).exists()


def test_killed_at_every_step(tmp_path: Path, place: Path, farm: Farm) -> None:
    """Before every single step towards the disk, half-written records included; and once more while it resumes."""
    step = 0
    while True:
        out = tmp_path / f"run{step}"
        if farm.run(arguments(place, out, "small"), step=step) == 0:
            break
        farm.run(arguments(place, out, "small"), step=random.randrange(20), batch=random.randrange(1, 4))
        assert farm.run(arguments(place, out, "small")) == 0, step
        assert same(out, place / "small"), step
        step += 1
    assert step > 20


@pytest.mark.parametrize("size", ["small", "large"])
def test_killed_within_a_write_of_sqlite(tmp_path: Path, place: Path, farm: Farm, size: str) -> None:
    """The system kills the process in the middle of a page of the database, of its log or of its shared memory."""
    limits = range(200, 33_000, 3_900) if size == "small" else range(33_000, 200_000, 23_000)
    for limit in limits:
        out = tmp_path / f"run{limit}"
        assert farm.run(arguments(place, out, size), room=limit, fatal=True) == -signal.SIGXFSZ, limit
        assert 0 <= records(out) < 400
        assert farm.run(arguments(place, out, size)) == 0, limit
        assert same(out, place / size), limit


def kill_later(process: subprocess.Popen[str], out: Path, count: int) -> list[Any]:
    """Kill a run once it has committed so many more records, or it is over; the workers that it leaves behind."""
    start = records(out)
    while process.poll() is None and records(out) < start + count:
        time.sleep(0.005)
    children: list[Any] = psutil.Process(process.pid).children() if process.poll() is None else []
    process.kill()
    process.wait()
    return children


# The command line, which commits every result.
SMALL = """
import adaptdel.runs.certify
adaptdel.runs.certify.BATCH_ROWS = 1
from adaptdel.cli import main
if __name__ == "__main__":
    main()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SMALL, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# The command line, which commits so many results and then waits for a line: what happens next is up to the test.
HELD = """
import signal, sys
import adaptdel.runs.certify
adaptdel.runs.certify.BATCH_ROWS = 1
from adaptdel.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
from adaptdel.store import Store
left, put = int(sys.argv.pop(1)), Store.put
def held(self, key, record):
    global left
    put(self, key, record)
    left -= 1
    if not left:
        self.flush()
        print("held", file=sys.__stdout__, flush=True)  # what classifiers print goes to standard error
        sys.stdin.readline()
Store.put = held
main()
"""


@contextmanager
def held_run(count: int, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], list[Any]]]:
    """A run that waits after so many results, and its worker processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(count), *map(str, arguments)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            children = psutil.Process(process.pid).children()
            yield process, [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        finally:
            process.kill()


def is_finished(out: Path) -> bool:
    return (out / "manifest.json").exists() and bool(json.loads((out / "manifest.json").read_text())["finished"])


def test_killed_with_workers(tmp_path: Path, place: Path) -> None:
    """Twice in the middle; the records that were committed are not certified again."""
    out = tmp_path / "run"
    for count in (50, 100):
        with held_run(count, *arguments(place, out, workers=2)) as (process, workers):
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert len(workers) == 2
        assert not psutil.wait_procs(workers, timeout=60)[1], "workers outlive the run"
    assert records(out) == 150
    done = call(*arguments(place, out, workers=2))
    assert (done.returncode, done.stderr) == (0, "")
    assert same(out, place / "large")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.usefixtures("huge")
def test_killed_often(tmp_path: Path, place: Path, workers: int) -> None:
    """Kill runs 25 times, at any moment; a run that was finished before its kill is compared, and another is begun."""
    rng = random.Random(workers)
    left: list[Any] = []
    finished = killed = 0
    while killed < 25:
        out = tmp_path / f"run{finished}"
        with start(*arguments(place, out, "huge", workers)) as process:
            left += kill_later(process, out, rng.randrange(10))
        assert process.returncode in (0, -signal.SIGKILL)
        if is_finished(out):
            assert same(out, place / "huge")
            finished += 1
        else:
            assert process.returncode == -signal.SIGKILL
            killed += 1
    done = call(*arguments(place, out, "huge", workers))
    assert (done.returncode, done.stderr) == (0, "")
    assert same(out, place / "huge")
    assert not psutil.wait_procs(left, timeout=60)[1], "workers outlive the run"


def test_workers_that_are_killed_are_replaced(tmp_path: Path, place: Path) -> None:
    out = tmp_path / "run"
    with held_run(40, *arguments(place, out, workers=2)) as (process, workers):
        for worker in workers:
            worker.kill()
        _, error = process.communicate("\n")
    assert (process.returncode, error) == (0, "")
    assert same(out, place / "large")


def test_stopped_by_hand(tmp_path: Path, place: Path) -> None:
    out = tmp_path / "run"
    with held_run(40, *arguments(place, out, workers=2)) as (process, workers):
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert (process.returncode, error.strip()) == (130, "adaptdel: stopped")
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert records(out) == 40
    assert run(*arguments(place, out)) == 0
    assert same(out, place / "large")


@pytest.mark.parametrize("size", [0, 300, 3000, 60_000, 150_000])
def test_no_room_for_large_files(tmp_path: Path, place: Path, size: int, farm: Farm) -> None:
    """The system refuses files above a size: in the manifest, in the store, and in the tables at the end."""
    out = tmp_path / "run"

    before = 0
    for _ in range(2):
        assert farm.run(arguments(place, out), room=size) == 2
        assert farm.said.count("\n") == 1
        assert "the disk is full, or fails: everything certified so far is kept" in farm.said
        assert before <= records(out) < 400
        before = records(out)
    assert farm.run(arguments(place, out)) == 0
    assert same(out, place / "large")
    assert (before > 0) == (size >= 60_000)  # SQLite's shared memory takes 32 KB
