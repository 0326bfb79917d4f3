"""The local engine: every item once, in this process and in workers; errors are sentences."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adaptdel.runs.engine import ATTEMPTS, EngineSettings, LocalEngine, start_engine
from tests.runs.tasks import Square, Torn


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_once(tmp_path: Path, workers: int) -> None:
    log = tmp_path / "log"
    with start_engine(EngineSettings(workers=workers)) as engine:
        for total in (100, 10**6):  # the same workers again, and a total that is only an estimate
            assert sorted(engine.map(Square(None, log), range(100), total)) == [n * n for n in range(100)]
        assert list(engine.map(Square(None), [], 0)) == []
    pids = [line.split()[1] for line in log.read_text().splitlines()]
    if workers == 1:
        assert len(pids) == 2  # loaded for each of the two calls, in this process
    else:
        assert len(pids) == len(set(pids)) <= workers  # a worker loads the task once; a quick one may take every item


def test_items_are_taken_as_they_are_needed() -> None:
    taken = 0

    def items() -> object:
        nonlocal taken
        for number in range(10**6):
            taken += 1
            yield number

    with LocalEngine(2) as engine:
        results = engine.map(Square(None), items(), 10**6)  # type: ignore[arg-type]
        for _ in range(10):
            next(results)
        assert taken < 500
        results.close()


def test_errors() -> None:
    with LocalEngine(2) as engine, pytest.raises(ValueError, match="cannot square None: everything certified so far"):
        list(engine.map(Square(None), [1, None, 2], 3))


def test_an_item_that_ends_its_workers_is_a_failure() -> None:
    with LocalEngine(2) as engine:
        results = list(engine.map(Square(None), [*range(30), -1, *range(30, 60)], 61))
        assert sorted(result for result in results if isinstance(result, int)) == [n * n for n in range(60)]
        assert [result for result in results if isinstance(result, str)] == [
            f"-1: it ended its worker {ATTEMPTS} times, as when memory runs out"
        ]
        assert sorted(engine.map(Square(None), range(30), 30)) == [n * n for n in range(30)]


def test_a_worker_that_ends_within_a_result(tmp_path: Path) -> None:
    """The rest of the result never comes; the items are tried again."""
    (tmp_path / "tear").touch()
    with LocalEngine(2) as engine:
        results = engine.map(Torn(None, tmp_path / "tear"), range(60), 60)
        assert sorted(results) == [n * n for n in range(60)]
    assert not (tmp_path / "tear").exists()


def test_a_driver_that_stops_ends_busy_workers() -> None:
    with LocalEngine(2) as engine:
        results = engine.map(Square(None), [1, 2, 600.0, 600.0, 3, 4], 6)
        next(results)
        results.close()  # in the middle of ten minutes
        assert sorted(engine.map(Square(None), range(9), 9)) == [n * n for n in range(9)]


def test_a_worker_that_is_stopped_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.runs.engine.STOP", 0.1)
    with LocalEngine(2) as engine:
        list(engine.map(Square(None), range(9), 9))
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGSTOP)


def test_nothing_in_the_working_directory_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("signal", "logging", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')")
    with LocalEngine(2) as engine:
        assert sorted(engine.map(Square(None), range(4), 4)) == [0, 1, 4, 9]
    subprocess.run([sys.executable, "-m", "adaptdel", "--version"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "slurm"}, "engine must be one of 'local', 'ray', got 'slurm'"),
        ({"workers": 0}, "workers must be"),
        ({"engine": "ray", "cpus_per_worker": 0}, "cpus_per_worker must be"),
        ({"engine": "ray", "gpus_per_worker": -1}, "gpus_per_worker must be at least 0"),
        ({"ray_address": "auto"}, "ray_address is only for the engine ray"),
        ({"cpus_per_worker": 2}, "cpus_per_worker is only for the engine ray"),
    ],
)
def test_settings(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineSettings(**settings)  # type: ignore[arg-type]


def test_workers_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.runs.engine._serve", print_and_fail)
    with LocalEngine(2) as engine, pytest.raises(ValueError, match=r"cannot start: .*__main__"):
        list(engine.map(Square(None), range(9), 9))


def print_and_fail(pipe: object) -> None:
    raise RuntimeError("no worker")
