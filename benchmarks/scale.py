"""Rates of both engines, and the memory of the driver and of reports: what grows with the rows, and what saturates.

    python -m benchmarks.scale --out out --memory 10000 100000 1000000
    python -m benchmarks.scale --out out --report 100000 1000000
    python -m benchmarks.scale --out out --rates --overhead

``--memory`` certifies files of so many rows, each in a process of its own, with a task whose certificates are copies of
one: the driver reads, stores and writes every row as always, and only the votes are missing. ``--report`` compares two
runs of so many rows, which repeat 20,000 certificates of a real model. ``--rates`` sends inputs of 100 words to local
workers and to Ray in turns, for some seconds each; more workers than cores show what an engine costs. ``--overhead``
does the same with items that cost nothing. Both state clock time and processor time, of the driver and of all processes
that it has started: on a machine with other work, only the latter can be compared.
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
from itertools import count as number_from
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers import LinearClassifier
from adaptdel.report.write import write_report
from adaptdel.runs import certify as certify_module
from adaptdel.runs.certify import CertificationJob, CertificationTask, certify_data
from adaptdel.runs.engine import EngineSettings, ModelSource, Task, Work, start_engine
from adaptdel.runs.inputs import RunInput, Source
from adaptdel.runs.records import record_of
from adaptdel.runs.rederive import recertify
from adaptdel.runs.storage import table_hash

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


def make_model(folder: Path, kind: str = "linear", votes: tuple[int, int] = (1000, 4000)) -> None:
    """A model of made-up words: the rates of real models depend on texts and votes, see experiments/results.md."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS[1000 * (n % 2) // 2 :][:1500], k=100)) for n in range(200)]
    base: Any = LinearClassifier(bits=14)
    model = SmoothedClassifier(base, Deletion(LengthRate(0.9, 10)), n_select=votes[0], n_estimate=votes[1])
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
            done = certify_data(CertificationJob(folder / "model", Source(str(data)), folder / "run"), progress=False)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
        assert done.manifest["totals"]["inputs"] == rows
    return {
        "rows": rows,
        "peak_mb": round(memory.peak, 1),
        "start_mb": round(memory.start, 1),
        "seconds": round(seconds, 1),
        "microseconds_per_row": round(1e6 * seconds / rows, 1),
        "processor_microseconds_per_row": round(1e6 * processor / rows, 1),
        "run_bytes_per_row": round(size / rows, 1),
    }


def measure_report(rows: int) -> dict[str, Any]:
    """Report on two runs of so many rows, in a process of its own; its memory and time."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALE_FOLDER")) as name:
        folder = Path(name)
        make_model(folder / "model", votes=(100, 400))
        data = make_texts(folder / "data.parquet", min(rows, REPEATED))
        certify_data(CertificationJob(folder / "model", Source(str(data)), folder / "first"), progress=False)
        recertify(folder / "first", folder / "second", alpha=0.001)
        runs = [repeat_rows(folder / part, folder / f"long-{part}", rows) for part in ("first", "second")]
        [values] = measured_apart(["written_report", [*map(str, runs)], str(folder / "report")])
        assert values["rows"] == rows
    return values


def measure_written_report(runs: list[str], out: str) -> dict[str, Any]:
    """Write a report in this process."""
    started, processor = time.perf_counter(), time.process_time()
    with PeakMemory() as memory:
        values = write_report(runs, out, sample=5)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    return {
        "rows": values["runs"][0]["measures"]["inputs"],
        "runs": len(runs),
        "peak_mb": round(memory.peak, 1),
        "start_mb": round(memory.start, 1),
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "report_mb": round(size / 1e6, 1),
    }


WRITTEN = 100_000  # rows at a time
REPEATED = 20_000  # different certificates in the runs of a report


def make_texts(path: Path, rows: int) -> Path:
    """Texts of 1 to 200 words, more short ones than long ones."""
    rng = random.Random(2)
    lengths = [1 + int(200 * rng.random() ** 3) for _ in range(rows)]
    words = [WORDS[1000 * (n % 2) // 2 :][:1500] for n in range(rows)]
    texts = [" ".join([f"message{n}", *rng.choices(words[n], k=lengths[n])]) for n in range(rows)]
    pq.write_table(pa.table({"text": texts, "label": [n % 2 for n in range(rows)]}), path)
    return path


def repeat_rows(source: Path, out: Path, rows: int) -> Path:
    """A run whose rows are those of another again and again, with ids of their own."""
    manifest = json.loads((source / "manifest.json").read_text())
    table = pq.read_table(source / "certificates.parquet")
    out.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(out / "certificates.parquet", table.schema, compression="zstd") as file:
        for start in range(0, rows, WRITTEN):
            size = min(WRITTEN, rows - start)
            long = pa.concat_tables([table] * -(-size // len(table))).slice(0, size)
            numbers = pa.array(range(start + 1, start + size + 1), pa.int64())
            long = long.set_column(long.schema.get_field_index("row"), "row", numbers)
            long = long.set_column(long.schema.get_field_index("id"), "id", numbers.cast(pa.string()))
            file.write_table(long.cast(table.schema), row_group_size=1000)
    manifest["table_sha256"] = table_hash(out)
    manifest["rows"] = manifest["sessions"][-1]["rows"] = rows
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


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


def measure_engine(
    engine: str, workers: int, task: Task, items: Iterator[Any], warm: int, seconds: float
) -> dict[str, Any]:
    """The rate of an engine for some seconds, after ``warm`` results of every worker."""
    began = time.perf_counter()
    with start_engine(EngineSettings(engine, workers)) as started:
        results = started.map(task, items)
        with closing(results):
            first = 0.0
            for _ in range(warm * workers):
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
        "clock_ms": round(1e3 * clock / done, 3),
        "processor_ms": round(1e3 * (driver + others) / done, 3),
        "driver_processor_us": round(1e6 * driver / done, 1),
        "first_result_seconds": round(first, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def measure_rates(kind: str, workers: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Rows a second through the engines, local and Ray in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", kind)
        rng = random.Random(3)
        texts = [" ".join(rng.choices(WORDS, k=100)) for _ in range(2000)]
        model = SmoothedClassifier.load(folder / "model")
        source = ModelSource(folder / "model", fingerprint=model.base_classifier().fingerprint())
        for count in workers:
            for engine in ("local", "ray"):
                task = CertificationTask(source)
                yield {"model": kind, **measure_engine(engine, count, task, endless(texts), 40, seconds)}


def measure_overhead(workers: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Items of 1,000 characters that cost nothing, on both engines in turns, three times."""
    for _ in range(3):
        for count in workers:
            for engine in ("local", "ray"):
                yield measure_engine(engine, count, Nothing(None), (f"{n:01000}" for n in number_from()), 500, seconds)


def measured_apart(measurement: list[Any]) -> Iterator[dict[str, Any]]:
    """The results of a measurement in a process of its own, as they come."""
    command = [sys.executable, "-m", "benchmarks.scale", "--one", json.dumps(measurement)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
    if process.returncode:
        sys.exit(process.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="numbers of rows")
    parser.add_argument("--report", type=int, nargs="*", default=[], help="numbers of rows")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement of --rates and --overhead")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--models", nargs="*", default=["linear"])
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a measurement in a process of its own
    arguments = parser.parse_args()
    if arguments.one:
        name, *values = json.loads(arguments.one)
        measured = globals()[f"measure_{name}"](*values)
        for result in [measured] if isinstance(measured, dict) else measured:
            print(json.dumps(result), flush=True)
        return
    wanted: list[list[Any]] = [["memory", rows] for rows in arguments.memory]
    wanted += [["report", rows] for rows in arguments.report]
    if arguments.overhead:
        wanted.append(["overhead", [2], arguments.seconds / 2])
    if arguments.rates:
        wanted += [["rates", model, arguments.workers, arguments.seconds] for model in arguments.models]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "scale.json"
    results: dict[str, list[Any]] = json.loads(path.read_text()) if path.exists() else {}
    for measurement in wanted:
        for result in measured_apart(measurement):
            print(json.dumps(result), flush=True)
            results.setdefault(measurement[0], []).append(result)
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
