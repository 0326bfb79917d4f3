"""Runs on Ray: the tables of one local process byte for byte, whatever dies; bad input is a sentence.

Every test uses a cluster that it has started itself, by its address: "auto" would find any cluster on the machine.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from adaptdel.runs import certify as certify_module  # noqa: E402
from adaptdel.runs import cluster  # noqa: E402
from adaptdel.runs import engine as engine_module  # noqa: E402
from adaptdel.runs.certify import evaluate  # noqa: E402
from adaptdel.runs.cluster import RayEngine  # noqa: E402
from adaptdel.runs.engine import EngineSettings, versions  # noqa: E402
from adaptdel.runs.storage import read_run  # noqa: E402
from tests.run_files import make_data, make_model, run  # noqa: E402
from tests.runs.tasks import Square, allow, begun, lines, watch  # noqa: E402

ROOT = Path(__file__).parents[2]
LOST = f"it ended its worker {engine_module.ATTEMPTS} times, as when memory runs out"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, in its threads


class Nodes:
    """A cluster on this machine: a head without workers, and nodes that come and go."""

    def __init__(self, nodes: int, cpus: int = 1) -> None:
        self.cpus = cpus
        os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_TQDM": "0"})
        self.cluster = cluster_utils.Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": 10**8,
                "_system_config": {"health_check_period_ms": 1000},  # a dead node is known after 5 seconds, not 15
            },
        )
        self.nodes: list[Any] = []
        for _ in range(nodes):
            self.add()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=self.cpus, object_store_memory=10**8))

    def remove(self, place: int = 0) -> None:
        """Kill a node and its workers, which would outlive it for a while: a machine that fails has no survivors."""
        node = self.nodes.pop(place)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        processes = [raylet, *raylet.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def place_of(self, node_id: str) -> int:
        """The place of a node in the list."""
        return next(place for place, node in enumerate(self.nodes) if node.node_id == node_id)

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Drivers are processes of their own; Ray adds nodes only in the main thread."""
    nodes = Nodes(2, cpus=2)  # for three workers: one CPU stays free
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def connected(nodes: Nodes) -> Iterator[None]:
    """This process is a driver of the cluster."""
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR", namespace="adaptdel")
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and the run of one local process."""
    folder = tmp_path_factory.mktemp("place")
    make_model(folder / "model")
    make_run(folder, "good", 120, 2)
    return folder


def make_run(folder: Path, name: str, count: int, seed: int) -> None:
    """Data, and the run of one local process."""
    data = make_data(folder / f"{name}.jsonl", count, seed)
    assert run("certify", folder / "model", "--data", data, "--out", folder / name) == 0


def certify(place: Path, data: str, out: Path, log: Path, address: str) -> None:
    """What a driver does; run in a process of its own, see `driver`."""
    setattr(certify_module, "CertificationTask", watch(log))  # noqa: B010
    engine = EngineSettings("ray", ray_address=address)
    evaluate(place / "model", place / data, out=out, engine=engine, progress=False)


DRIVER = """
import sys
from pathlib import Path
from tests.runs.test_cluster import certify
place, data, out, log, address = sys.argv[1:]
certify(Path(place), data, Path(out), Path(log), address)
"""


class Driver:
    """A process that certifies on a cluster."""

    def __init__(self, place: Path, data: str, out: Path, log: Path, address: str) -> None:
        self.log = log
        allow(log, 0)
        self.errors = log.with_suffix(".errors")
        with self.errors.open("w") as errors:
            arguments = [str(place), data, str(out), str(log), address]
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors
            )

    def wait_for(self, rows: int) -> None:
        """Allow so many rows in total, and wait until workers have begun them."""
        allow(self.log, rows)
        self._wait(lambda: len(begun(self.log)) >= rows)

    def wait_for_workers(self, workers: int) -> None:
        """Wait until so many workers have loaded the model."""
        self._wait(lambda: self.workers >= workers)

    @property
    def workers(self) -> int:
        """How often a worker has loaded the model."""
        return len(lines(self.log.with_suffix(".workers")))

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.process.poll() is None, self.errors.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Wait for the end of the run."""
        allow(self.log, None)
        assert self.process.wait() == 0, self.errors.read_text()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def same(out: Path, expected: Path) -> bool:
    return (out / "certificates.parquet").read_bytes() == (expected / "certificates.parquet").read_bytes()


@pytest.mark.slow  # with the start of Ray, more than a minute on 2 cores
@pytest.mark.usefixtures("connected")
def test_items_errors_and_workers_that_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    with RayEngine(EngineSettings("ray", workers=2)) as engine:
        assert sorted(engine.map(Square(None, log), range(300), 300)) == [n * n for n in range(300)]
        results = list(engine.map(Square(None), [*range(30), -1, *range(30, 60)], 61))
        assert sorted(result for result in results if isinstance(result, int)) == [n * n for n in range(60)]
        assert [result for result in results if isinstance(result, str)] == [f"-1: {LOST}"]
        with pytest.raises(ValueError, match="cannot square None: everything certified so far is kept"):
            list(engine.map(Square(None), [1, None, 2], 3))
    pids = [line.split()[1] for line in log.read_text().splitlines()]
    assert 1 <= len(pids) == len(set(pids)) <= 2  # a worker loads the task once; a late one may find no items left

    other = versions() | {"numpy": "0.0.1"}
    monkeypatch.setattr(cluster, "versions", lambda: other)
    with RayEngine(EngineSettings("ray", workers=1)) as engine, pytest.raises(ValueError) as caught:
        list(engine.map(Square(None), [1], 1))
    assert " has numpy " in str(caught.value)
    assert ", and the driver 0.0.1: install the same versions everywhere" in str(caught.value)


def test_a_run_on_two_nodes(tmp_path: Path, nodes: Nodes, place: Path) -> None:
    """A node is killed and another added while the run goes on."""
    log, out = tmp_path / "log", tmp_path / "run"
    with Driver(place, "good.jsonl", out, log, nodes.address) as driver:
        driver.wait_for(43)
        nodes.remove(nodes.place_of(lines(log)[-1].split()[1]))  # its worker is busy
        nodes.add()
        driver.finish()
    assert same(out, place / "good")
    assert read_run(out).manifest.sessions[0].engine == "ray"
    rows = begun(log)
    assert set(rows) == set(range(1, 121))
    assert len(rows) - 120 <= 2 * engine_module.DEPTH * engine_module.CHUNK  # those of the workers on the node


@pytest.mark.slow
def test_nodes_that_die_and_a_driver_that_is_killed(tmp_path: Path) -> None:
    """4 nodes, 20 of them killed and replaced, 10 drivers killed: the same table, and little is certified twice."""
    rng = random.Random(0)
    make_model(tmp_path / "model")
    make_run(tmp_path, "data", 700, 3)
    events = ["driver", "busy", "any"] * 10  # what is killed
    step = 20  # rows between two events, so that the run cannot end before the last
    out, session, repeated = tmp_path / "run", 0, 0
    stored: set[int] = set()
    nodes = Nodes(4)
    try:
        while session <= 10:
            log, allowed, kills = tmp_path / f"log-{session}", step, 0
            with Driver(tmp_path, "data.jsonl", out, log, nodes.address) as driver:
                driver.wait_for_workers(3)  # one CPU stays free
                driver.wait_for(allowed)
                while events and (event := events.pop(0)) != "driver":
                    last = nodes.place_of(lines(log)[-1].split()[1])
                    loaded = driver.workers
                    nodes.remove(last if event == "busy" else rng.randrange(len(nodes.nodes)))
                    nodes.add()
                    kills += 1
                    if event == "busy":
                        driver.wait_for_workers(loaded + 1)  # its worker was started again elsewhere
                    allowed += step
                    driver.wait_for(allowed)
                if session == 10:
                    driver.finish()
                else:
                    driver.kill()
            rows = begun(log)
            assert stored.isdisjoint(rows)  # what was stored is not certified again
            repeated += len(rows) - len(set(rows))
            assert len(rows) - len(set(rows)) <= kills * engine_module.DEPTH * engine_module.CHUNK  # those of the nodes
            stored = {record["row"] for record in read_run(out).records()}
            session += 1
    finally:
        nodes.close()
    assert same(out, tmp_path / "data")
    assert repeated > 0  # nodes were killed while they worked


def test_no_cluster(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: object) -> None:
        folders.append(Path.cwd())
        raise ConnectionError("Could not find any\nrunning Ray instance.")

    folders: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    arguments = ["certify", place / "model", "--data", place / "good.jsonl", "--out", tmp_path / "run"]
    assert run(*arguments, "--engine", "ray", "--set", "ray_address=auto") == 2
    error = capsys.readouterr().err
    assert error.startswith("adaptdel: auto: no Ray cluster answers")
    assert folders == [Path(os.sep)]  # Ray's processes execute what is in the working directory
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_without_ray(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["certify", place / "model", "--data", place / "good.jsonl", "--out", tmp_path / "run"]
    assert run(*arguments, "--engine", "ray") == 2
    assert capsys.readouterr().err == "adaptdel: the engine 'ray' needs Ray: pip install 'adaptdel[ray]'\n"
    assert not (tmp_path / "run").exists()
