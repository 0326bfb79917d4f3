"""How a server carries load: requests a second and latencies.

    python -m benchmarks.serve --data ../shared/data --out out [--quick]

Everything runs on the loopback interface of this machine, server and callers in two processes. 1, 16 and 256 callers
ask for predictions and for certificates of movie reviews, each sending the next request when the last one was
answered; and one caller sends a short text while 16 others send long ones. The same requests go to a server that
shares the batches of the base classifier between requests, and to one that works on one text at a time
(``pool_inputs=1``); the two are measured in turns. The figures depend on the machine and on what else it does, so
that the ratio of the two is the result, above all that of the server's processor time for a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

import adaptdel as ad
from adaptdel.settings import ServeSettings
from benchmarks.real import load

LOOPBACK = "127.0.0.1"
CALLERS = (1, 16, 256)
MODES: dict[str, dict[str, Any]] = {"shared": {}, "alone": {"pool_inputs": 1, "request_inputs": 1}}
SHORT = "not worth the ticket , a slow and noisy film"
SECONDS = 5.0  # of one measurement at most


# The server, in a process of its own.


def run_server(folder: Path, settings: dict[str, Any]) -> None:
    """Serve a model until the process is killed; prints the port."""
    from adaptdel.serve.app import bind, serve
    from adaptdel.serve.service import ModelToServe, Service

    with bind(LOOPBACK, 0) as opened:
        port = opened.getsockname()[1]
        service = Service([ModelToServe.load(folder)], ServeSettings(**settings))
        opened.listen()
        print(port, flush=True)
        serve(service, opened)


class ServerProcess:
    """A server on the loopback interface."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        assert started.stdout is not None
        self.port, self.process = int(started.stdout.readline()), psutil.Process(started.pid)

    def processor_seconds(self) -> float:
        """Processor time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "benchmarks.serve", "--server", str(folder), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        try:
            yield ServerProcess(started)
        finally:
            started.kill()


# The callers.


class Connection:
    """A connection of HTTP/1.1, as thin as possible, so that the callers take little of the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def post(self, path: str, body: bytes) -> int:
        """Send a request; the status of the response."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        self.writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", answer)
        assert length
        await self.reader.readexactly(int(length[1]))
        return int(answer.split(" ", 2)[1])


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=2**24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


async def measure_load(
    server: ServerProcess, route: str, callers: int, texts: Sequence[str], requests: int
) -> dict[str, float]:
    """Requests a second, latencies and the processor time of the server, over so many requests or until time is up."""
    latencies: list[float] = []
    numbers = iter(range(requests))
    refused = 0
    began, processor = time.perf_counter(), server.processor_seconds()

    async def call() -> None:
        nonlocal refused
        async with connected(server.port) as connection:
            for number in numbers:
                started = time.perf_counter()
                if started - began > SECONDS:
                    return
                body = json.dumps({"text": texts[number % len(texts)]}).encode()
                refused += await connection.post(f"/v1/{route}", body) != 200
                latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(call() for _ in range(callers)))
    elapsed = time.perf_counter() - began
    return {
        "requests": len(latencies),
        "refused": refused,
        "per_second": len(latencies) / elapsed,
        "p50_ms": 1000 * float(np.quantile(latencies, 0.5)),
        "p99_ms": 1000 * float(np.quantile(latencies, 0.99)),
        "cpu_ms": 1000 * (server.processor_seconds() - processor) / len(latencies),
    }


async def measure_short(server: ServerProcess, texts: Sequence[str], requests: int) -> dict[str, float]:
    """Latencies of certificates for a short text, while 16 callers have the longest texts certified."""
    longest = sorted(texts, key=len)[-20:]
    others = asyncio.ensure_future(measure_load(server, "certify", 16, longest, 10**6))
    await asyncio.sleep(0.5)
    short = await measure_load(server, "certify", 1, [SHORT], requests)
    others.cancel()
    await asyncio.gather(others, return_exceptions=True)
    await asyncio.sleep(0.5)
    return {key: short[key] for key in short if key != "cpu_ms"}  # that of all callers together


Measurement = Callable[[ServerProcess], Coroutine[Any, Any, dict[str, float]]]


def measure_modes(servers: dict[str, ServerProcess], measure: Measurement, repeats: int) -> dict[str, Any]:
    """Medians over the repeats, and the ratios of the two servers, which are measured in turns."""
    measured: dict[str, list[dict[str, float]]] = {mode: [] for mode in servers}
    for repeat in range(repeats):
        for mode in sorted(servers, reverse=bool(repeat % 2)):
            measured[mode].append(asyncio.run(measure(servers[mode])))
    result: dict[str, Any] = {
        mode: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for mode, runs in measured.items()
    }
    pairs = list(zip(measured["shared"], measured["alone"], strict=True))
    for key in sorted({"per_second", "p50_ms", "p99_ms", "cpu_ms"} & set(pairs[0][0])):
        ratios = sorted(round(shared[key] / alone[key], 3) for shared, alone in pairs)
        result[f"{key}_ratio"] = {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
    return result


def measure_model(folder: Path, texts: Sequence[str], *, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each route and number of callers."""
    repeats = 1 if quick else 3
    with running(folder, **MODES["shared"]) as shared, running(folder, **MODES["alone"]) as alone:
        servers = {"shared": shared, "alone": alone}
        for route in ("predict", "certify"):
            for callers in CALLERS:
                requests = max(20 if quick else 600, 3 * callers)
                measure = partial(measure_load, route=route, callers=callers, texts=texts, requests=requests)
                yield {"route": route, "callers": callers, **measure_modes(servers, measure, repeats)}
        short = measure_modes(servers, lambda server: measure_short(server, texts, 5 if quick else 30), repeats)
        yield {"route": "certify, short among long", "callers": 17, **short}


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["--server"]:
        folder, settings = sys.argv[2:]
        run_server(Path(folder), json.loads(settings))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with imdb .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer examples, requests and repeats")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = arguments.out / "served-model"
    ad.SmoothedClassifier(progress=False).fit(
        *load(arguments.data, "imdb.train", 200 if arguments.quick else 4000)
    ).save(model)
    texts, _ = load(arguments.data, "imdb.test", 40 if arguments.quick else 500)
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[1]},
        "words": {"median": statistics.median(len(text.split()) for text in texts), "texts": len(texts)},
        "load": [],
    }
    for row in measure_model(model, texts, quick=arguments.quick):
        print(json.dumps(row), flush=True)
        result["load"].append(row)
        (arguments.out / "serve.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
