"""Rates of both engines, and the memory of the driver: what grows with the rows, and what saturates.

    python -m benchmarks.scale --out out --memory 10000 100000 1000000
    python -m benchmarks.scale --out out --rates

``--memory`` certifies files of so many rows, each in a process of its own, with a task whose certificates are copies
of one: the driver reads, stores and writes every row as always, and only the votes are missing. ``--rates`` sends
inputs of 100 words to local workers and to Ray in turns, for some seconds each; more workers than cores show what an
engine costs. It states clock time and processor time, of the driver and of all processes that it has started: on a
machine with other work, only the latter can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers import LinearClassifier
from adaptdel.runs import certify as certify_module
from adaptdel.runs.certify import CertificationTask, evaluate
from adaptdel.runs.columns import record_of
from adaptdel.runs.engine import EngineSettings, ModelSource, Task, Work, start_engine
from adaptdel.runs.inputs import RunInput

FILE_ROWS = 500_000  # rows of a data file
WORDS = [f"w{number}" for number in range(2000)]


@dataclass(frozen=True)
class CopiedCertificates(CertificationTask):
    """The certificate of the first input for every input."""

    def load(self) -> Work:
        """A function that certifies one input, and copies its certificate."""
        assert self.certifier is not None
        certifier = self.certifier
        template: dict[str, Any] = {}

        def work(items: Iterable[Any]) -> Iterator[Any]:
            from adaptdel.certification.certifier import Input

            for item in items:
                if not template:
                    [result] = certifier([Input(item.text, "row")])
                    assert result.certificate is not None
                    template.update(record_of(result.certificate, id="", row=0, label=item.label))
                yield template | {"id": item.id, "row": item.row, "seconds": 0.0}

        return work


def make_model(folder: Path) -> None:
    """A model of made-up words: the rates of real models depend on texts and votes, see experiments/results.md."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS[1000 * (n % 2) // 2 :][:1500], k=100)) for n in range(200)]
    model = SmoothedClassifier(LinearClassifier(bits=14), Deletion(LengthRate(0.9, 10)), n_select=1000, n_estimate=4000)
    model.fit(texts, [n % 2 for n in range(200)]).save(folder)


def make_data(folder: Path, rows: int, words: int = 6) -> Path:
    """A folder of Parquet files with different texts."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for start in range(0, rows, FILE_ROWS):
        with pq.ParquetWriter(
            folder / f"part-{start // FILE_ROWS:05}.parquet", pa.schema({"text": pa.string(), "label": pa.int64()})
        ) as writer:
            for first in range(start, min(start + FILE_ROWS, rows), 10_000):
                numbers = range(first, min(first + 10_000, start + FILE_ROWS, rows))
                texts = [" ".join([f"message{number}", *rng.choices(WORDS, k=words - 1)]) for number in numbers]
                writer.write_table(pa.table({"text": texts, "label": [number % 2 for number in numbers]}))
    return folder


class PeakMemory:
    """The largest resident memory of this process while the block runs, in MB; sampled ten times a second."""

    def __enter__(self) -> PeakMemory:
        self.process, self.peak, self.over = psutil.Process(), 0.0, threading.Event()
        self.start = self.process.memory_info().rss / 1e6
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()
        return self

    def _sample(self) -> None:
        while not self.over.wait(0.1):
            self.peak = max(self.peak, self.process.memory_info().rss / 1e6)

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()


def measure_memory(rows: int) -> dict[str, Any]:
    """Certify so many rows in this process; its memory and time."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALE_FOLDER")) as name:
        folder = Path(name)
        make_model(folder / "model")
        data = make_data(folder / "data", rows)
        setattr(certify_module, "CertificationTask", CopiedCertificates)  # noqa: B010
        started, processor = time.perf_counter(), time.process_time()
        with PeakMemory() as memory:
            done = evaluate(folder / "model", data, out=folder / "run", progress=False)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
        assert done.manifest.rows == rows
    return {
        "rows": rows,
        "peak_mb": round(memory.peak, 1),
        "start_mb": round(memory.start, 1),
        "seconds": round(seconds, 1),
        "microseconds_per_row": round(1e6 * seconds / rows, 1),
        "processor_microseconds_per_row": round(1e6 * processor / rows, 1),
        "run_bytes_per_row": round(size / rows, 1),
    }


class ProcessorTime:
    """Seconds of processor time of this process and of all that it has started and that are still running."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.driver, self.others = self._now()

    def _now(self) -> tuple[float, dict[int, float]]:
        others = {}
        for child in self.process.children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                others[child.pid] = times.user + times.system
        return time.process_time(), others

    def since(self) -> tuple[float, float]:
        """Those of the driver and of the others since the object was made."""
        driver, others = self._now()
        return driver - self.driver, sum(spent - self.others.get(pid, 0.0) for pid, spent in others.items())


def endless(texts: list[str]) -> Iterator[RunInput]:
    """Inputs without an end."""
    for row, text in enumerate(cycle(texts), start=1):
        yield RunInput(row, str(row), text, 0)


def measure_engine(engine: str, workers: int, task: Task, items: Iterator[Any], seconds: float) -> dict[str, Any]:
    """The rate of an engine for some seconds, after 40 results of every worker."""
    began = time.perf_counter()
    with start_engine(EngineSettings(engine, workers)) as started:
        results = started.map(task, items, 10**9)  # they do not end
        with closing(results):
            first = 0.0
            for _ in range(40 * workers):
                next(results)
                first = first or time.perf_counter() - began
            started_at, spent, done = time.perf_counter(), ProcessorTime(), 0
            while time.perf_counter() - started_at < seconds:
                next(results)
                done += 1
            clock = time.perf_counter() - started_at
            driver, others = spent.since()
    return {
        "engine": engine,
        "workers": workers,
        "results": done,
        "per_second": round(done / clock, 1),
        "processor_ms": round(1e3 * (driver + others) / done, 3),
        "driver_processor_us": round(1e6 * driver / done, 1),
        "first_result_seconds": round(first, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def measure_rates(workers: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Rows a second through the engines, local and Ray in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        rng = random.Random(3)
        texts = [" ".join(rng.choices(WORDS, k=100)) for _ in range(2000)]
        fingerprint = SmoothedClassifier.load(folder / "model").base_classifier().fingerprint()
        task = CertificationTask(ModelSource(folder / "model", fingerprint=fingerprint))
        for count in workers:
            for engine in ("local", "ray"):
                yield measure_engine(engine, count, task, endless(texts), seconds)


def measured_apart(rows: int) -> dict[str, Any]:
    """`measure_memory` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--one", str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="numbers of rows")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement of --rates")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # a measurement in a process of its own
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_memory(arguments.one)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Any]] = {"memory": [], "rates": []}
    measurements = chain(
        (("memory", measured_apart(rows)) for rows in arguments.memory),
        (("rates", row) for row in (measure_rates(arguments.workers, arguments.seconds) if arguments.rates else ())),
    )
    for name, result in measurements:
        print(json.dumps(result), flush=True)
        results[name].append(result)
        (arguments.out / "scale.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
