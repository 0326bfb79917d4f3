"""Rates of both engines, and the memory of the driver: how many rows a second, and what grows with the rows.

    python -m benchmarks.scale --out out --memory 10000 100000 1000000
    python -m benchmarks.scale --out out --rates --rows 400

``--memory`` certifies files of so many rows, each in a process of its own, with a task whose certificates are copies of
one: the driver reads, stores and writes every row as always, and only the votes are missing. ``--rates`` certifies with
a linear model and an embedding network on local workers and on Ray; more workers than cores show what an engine costs.
``--overhead`` measures what Ray adds to an item that costs nothing.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers import LinearClassifier
from adaptdel.engines.engine import Task, Work
from adaptdel.engines.start import EngineSettings, start_engine
from adaptdel.runs import certify as certify_module
from adaptdel.runs.certify import CertificationJob, certify_data
from adaptdel.runs.inputs import Source
from adaptdel.runs.records import record_of
from adaptdel.runs.workers import CertificationTask

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

        def work(items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
            from adaptdel.certification.certifier import Input

            for number, item in items:
                if not template:
                    [result] = certifier([Input(item.text, "row")])
                    assert result.certificate is not None
                    template.update(record_of(result.certificate, id="", row=0, label=item.label))
                yield number, template | {"id": item.id, "row": item.row, "seconds": 0.0}

        return work


@dataclass(frozen=True)
class Nothing(Task):
    """An item is its own result."""

    def load(self) -> Work:
        """A function that gives every item back."""
        return lambda items: iter(items)

    def failed(self, item: Any, reason: str) -> Any:
        """Not used."""
        return item


def make_model(folder: Path, kind: str = "linear") -> None:
    """A model of made-up words: the rates of real models depend on texts and votes, see docs/results.md."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS[1000 * (n % 2) // 2 :][:1500], k=100)) for n in range(200)]
    base: Any = LinearClassifier(bits=14)
    if kind == "embedding":
        from adaptdel.classifiers.embedding import EmbeddingClassifier
        from adaptdel.hyperparameters import EmbeddingSettings

        base = EmbeddingClassifier(settings=EmbeddingSettings(steps=20))
    model = SmoothedClassifier(base, Deletion(LengthRate(0.9, 10)))
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
        certify_module.CertificationTask = CopiedCertificates  # type: ignore[attr-defined]
        started = time.perf_counter()
        with PeakMemory() as memory:
            done = certify_data(CertificationJob(folder / "model", Source(str(data)), folder / "run"), progress=False)
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
        assert done.manifest["totals"]["inputs"] == rows
    return {
        "rows": rows,
        "peak_mb": round(memory.peak, 1),
        "start_mb": round(memory.start, 1),
        "seconds": round(seconds, 1),
        "microseconds_per_row": round(1e6 * seconds / rows, 1),
        "run_bytes_per_row": round(size / rows, 1),
    }


def measure_rate(kind: str, engine: str, workers: int, rows: int) -> dict[str, Any]:
    """Rows a second of a run of so many rows; the start of the engine is measured apart."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", kind)
        data = make_data(folder / "data", rows, words=100)
        times: list[float] = []
        started = time.perf_counter()
        job = CertificationJob(
            folder / "model", Source(str(data)), folder / "run", engine=EngineSettings(engine, workers)
        )
        certify_data(job, progress=lambda done, total: times.append(time.perf_counter()))
        seconds = times[-1] - times[len(times) // 5]  # without the start: from a fifth of the rows on
        counted = len(times) - 1 - len(times) // 5
    return {
        "model": kind,
        "engine": engine,
        "workers": workers,
        "rows": rows,
        "rows_per_second": round(counted / seconds, 2),
        "first_result_seconds": round(times[0] - started, 1),
    }


def measure_overhead(items: int) -> dict[str, Any]:
    """The time of an item that costs nothing, on local workers and on Ray."""
    values: dict[str, Any] = {"items": items}
    for engine in ("local", "ray"):
        with start_engine(EngineSettings(engine, 2)) as started:
            list(started.map(Nothing(None), ["x" * 1000] * 500))  # the workers have started
            begin = time.perf_counter()
            list(started.map(Nothing(None), ["x" * 1000] * items, items))
            values[f"{engine}_microseconds_per_item"] = round(1e6 * (time.perf_counter() - begin) / items, 1)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="numbers of rows")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--rows", type=int, default=400, help="of --rates")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--models", nargs="*", default=["linear", "embedding"])
    parser.add_argument("--engines", nargs="*", default=["local", "ray"])
    parser.add_argument("--overhead", type=int, default=0, help="number of items")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a measurement in a process of its own
    arguments = parser.parse_args()
    if arguments.one:
        name, *values = json.loads(arguments.one)
        print(json.dumps(globals()[f"measure_{name}"](*values)))
        return
    wanted: list[list[Any]] = [["memory", rows] for rows in arguments.memory]
    if arguments.overhead:
        wanted.append(["overhead", arguments.overhead])
    if arguments.rates:
        wanted += [
            ["rate", model, engine, workers, arguments.rows]
            for model in arguments.models
            for engine in arguments.engines
            for workers in arguments.workers
        ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "scale.json"
    results: dict[str, list[Any]] = json.loads(path.read_text()) if path.exists() else {}
    for measurement in wanted:
        command = [sys.executable, "-m", "benchmarks.scale", "--one", json.dumps(measurement)]
        line = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
        print(line, flush=True)
        results.setdefault(measurement[0], []).append(json.loads(line))
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
