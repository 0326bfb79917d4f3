"""How a server carries load: requests a second, latencies, and 10,000 requests of callers who misbehave.

    python -m benchmarks.serve --data ../shared/data --out out [--quick] [--parts load endurance]

Everything runs on the loopback interface of this machine, server and callers in two processes.

``load``: 1, 16 and 256 callers ask for predictions and for certificates of film reviews, each sending the next request
when the last one was answered; and one caller sends a short text while 16 others send long ones. The same requests go
to a server that shares the batches of the base classifier between requests, and to one that works on one text at a time
(``pool_inputs=1``); the two are measured in turns. The figures depend on the machine and on what else it does, so that
the ratio of the two is the result, above all that of the server's processor time for a request.

``endurance``: callers send good requests, bodies that are damaged or too large, and streams; leave before the answer;
send slowly; and the server is told to stop and started again in the middle. Every request must be answered, or refused
with a status; certificates must be those of ``adaptdel certify`` with the same seed; memory must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from adaptdel.certification.certificate import Certificate
from adaptdel.runs.storage import read_run
from adaptdel.serve.configuration import ServeSettings
from adaptdel.training import TrainingJob, TrainingSettings, train_job
from benchmarks.real import load

LOOPBACK = "127.0.0.1"
DATA_SET = "imdb"
CALLERS = (1, 16, 256)
ROUTES = ("predict", "certify")
# More requests in flight than callers: a count goes down just after its answer is sent.
MODES: dict[str, dict[str, Any]] = {
    "shared": {"in_flight": 1024},
    "alone": {"in_flight": 1024, "pool_inputs": 1, "request_inputs": 1},
}
SHORT = "not worth the ticket , a slow and noisy film"
SEED = 2**61 - 1
TRAINING: dict[str, dict[str, Any]] = {
    "linear": {},
}  # briefly: the speed is of interest
SECONDS = 5.0  # of one measurement at most
PATIENCE = 180.0  # seconds after which a caller counts a request as lost
ENDURANCE_CALLERS = 32


# The server, in a process of its own.


def run_server(folder: Path, port: int, settings: dict[str, Any]) -> None:
    """Serve a model until a signal comes."""
    from adaptdel.serve.app import bind, serve
    from adaptdel.serve.service import ModelToServe, Service

    chosen = ServeSettings(host=LOOPBACK, port=port, **settings)
    with bind(LOOPBACK, port) as opened:
        serve(Service([ModelToServe.load(folder)], chosen, SEED), opened, lambda: print("ready", flush=True))


class ServerProcess:
    """A server on the loopback interface."""

    def __init__(self, folder: Path, port: int, **settings: Any) -> None:
        arguments = [str(folder), str(port), json.dumps(settings)]
        self.started = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serve", "--server", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.started.stdout is not None
        with self.started.stdout as told:
            if told.readline() != "ready\n":
                raise SystemExit("the server did not start")
        self.port, self.process = port, psutil.Process(self.started.pid)

    def processor_seconds(self) -> float:
        """Processor time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> float:
        """Resident memory in megabytes."""
        return float(self.process.memory_info().rss / 2**20)

    def stop(self) -> int:
        """Tell the server to stop, and return its exit status."""
        self.started.send_signal(signal.SIGTERM)
        return self.started.wait(PATIENCE)


@contextmanager
def running(folder: Path, port: int, **settings: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, port, **settings)
    try:
        yield server
    finally:
        server.started.kill()
        server.started.wait()


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind((LOOPBACK, 0))
        return int(opened.getsockname()[1])


# The callers.


class Connection:
    """A connection of HTTP/1.1, as thin as possible, so that the callers take little of the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, path: str, body: bytes, *, close: bool = False, pieces: int = 1, pause: float = 0.0) -> None:
        """Send a request, in pieces with a pause after each but the last."""
        ending = b"Connection: close\r\n" if close else b""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        message = head + ending + b"Content-Length: %d\r\n\r\n" % len(body) + body
        size = -(-len(message) // pieces)
        for at in range(0, len(message), size):
            self.writer.write(message[at : at + size])
            await self.writer.drain()
            if at + size < len(message):
                await asyncio.sleep(pause)

    async def receive(self) -> tuple[int, bytes]:
        """The status and the body of a response; IncompleteReadError if the server closed the connection first."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        length = re.search(r"content-length: (\d+)", head)
        if length:
            return status, await self.reader.readexactly(int(length[1]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):  # chunks of a stream
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        return status, body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=2**24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


# Load.


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
                if time.perf_counter() - began > SECONDS:
                    return
                started = time.perf_counter()
                await connection.send(f"/v1/{route}", json.dumps({"text": texts[number % len(texts)]}).encode())
                status, _ = await connection.receive()
                refused += status != 200
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


def load_part(models: dict[str, Path], texts: Sequence[str], repeats: int, quick: bool) -> list[dict[str, Any]]:
    """A row for each model, route and number of callers: the medians of the repeats of both servers."""
    rows = []
    for name, folder in models.items():
        with (
            running(folder, free_port(), **MODES["shared"]) as shared,
            running(folder, free_port(), **MODES["alone"]) as alone,
        ):
            servers = {"shared": shared, "alone": alone}
            for server in servers.values():  # the first batches choose the size of later ones
                asyncio.run(measure_load(server, "certify", 4, texts, 40))
            for route in ROUTES:
                for callers in CALLERS:
                    requests = 20 if quick else max(600, 3 * callers)
                    measured: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
                    for repeat in range(repeats):
                        for mode in sorted(MODES, reverse=bool(repeat % 2)):
                            run = measure_load(servers[mode], route, callers, texts, max(requests, callers))
                            measured[mode].append(asyncio.run(run))
                    rows.append({"model": name, "route": route, "callers": callers, **summary(measured)})
                    print(json.dumps(rows[-1]), flush=True)
            measured = {mode: [] for mode in MODES}
            for repeat in range(repeats):
                for mode in sorted(MODES, reverse=bool(repeat % 2)):
                    measured[mode].append(asyncio.run(measure_short(servers[mode], texts, 5 if quick else 30)))
            rows.append({"model": name, "route": "certify, short among long", "callers": 17, **summary(measured)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def summary(measured: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over the repeats, and the ratios of the two servers in each of them."""
    result: dict[str, Any] = {}
    for mode, runs in measured.items():
        result[mode] = {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
    pairs = list(zip(measured["shared"], measured["alone"], strict=True))
    for key in sorted({"per_second", "p50_ms", "p99_ms", "cpu_ms"} & set(pairs[0][0])):
        ratios = [shared[key] / alone[key] for shared, alone in pairs]
        result[f"{key}_ratio"] = {
            "median": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
        }
    return result


# Endurance.

KINDS = {"certify": 50, "predict": 14, "stream": 6, "bad": 12, "leaves": 12, "slow": 4, "large": 2}
BAD_BODIES = (
    b"", b"{", b"null", b"\xff\xfe", b'{"text": 3}', b'{"text": "a", "alpha": 2}', b'{"texts": []}', b"[" * 500,
    b'{"text": "\\ud800"}', b'{"text": "a", "votes": {"select": -1}}', b'{"text": "a", "model": "none"}',
    b'{"text": "a", "deadline_ms": 1e9}',
)  # fmt: skip


@dataclass
class Tally:
    """What became of requests."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)  # by kind and status
    lost: list[str] = field(default_factory=list)  # neither answered nor refused
    not_accepted: int = 0  # attempts while no server listened; the request is sent again
    reset: Counter[str] = field(default_factory=Counter)  # attempts that ended without an answer; sent again
    different: int = 0  # certificates other than the expected one
    equal: int = 0


class Misbehaviour:
    """Callers that send requests of all kinds to a server that is restarted in between."""

    def __init__(self, port: int, texts: Sequence[str], expected: Sequence[str], requests: int) -> None:
        self.port, self.texts, self.expected, self.requests = port, texts, expected, requests
        self.tally = Tally()
        self.numbers = iter(range(requests))
        self.finished = 0
        self.restarting = False

    async def run(self, restart: Any) -> None:
        """Send all requests; ``restart`` is awaited when half of them are finished."""
        callers = [asyncio.ensure_future(self._call()) for _ in range(ENDURANCE_CALLERS)]
        while self.finished < self.requests // 2 and not all(caller.done() for caller in callers):
            await asyncio.sleep(0.02)
        self.restarting = True
        await restart()
        self.restarting = False
        await asyncio.gather(*callers)

    async def _call(self) -> None:
        for number in self.numbers:
            rng = random.Random(number)
            [kind] = rng.choices(list(KINDS), list(KINDS.values()))
            self.tally.sent[kind] += 1
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._until_accepted(kind, rng)
            except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                self.tally.lost.append(f"{kind} {number}: {type(error).__name__}")
            self.finished += 1

    async def _until_accepted(self, kind: str, rng: random.Random) -> None:
        while True:
            try:
                async with connected(self.port) as connection:
                    await self._exchange(kind, rng, connection)
                    return
            except ConnectionRefusedError:
                self.tally.not_accepted += 1
            except (ConnectionResetError, asyncio.IncompleteReadError):
                if not self.restarting:  # a server that stops closes connections whose request it has not read
                    raise
                self.tally.reset[kind] += 1
            await asyncio.sleep(0.05)

    async def _exchange(self, kind: str, rng: random.Random, connection: Connection) -> None:
        index = rng.randrange(len(self.texts))
        body = json.dumps({"text": self.texts[index], **({"stream": True} if kind == "stream" else {})}).encode()
        route = "predict" if kind == "predict" else "certify"
        if kind == "bad":
            route, body = rng.choice(["certify", "predict"]), rng.choice(BAD_BODIES)
        elif kind == "large":
            body = json.dumps({"text": "word " * 250_000}).encode()
        pieces = rng.choice([2, 5]) if kind == "slow" else 1
        await connection.send(f"/v1/{route}", body, close=True, pieces=pieces, pause=rng.uniform(0.01, 0.5))
        if kind == "leaves":
            await asyncio.sleep(rng.choice([0.0, 0.005, 0.05, 0.2]))
            self.tally.statuses["leaves left"] += 1
            return
        status, content = await connection.receive()
        self.tally.statuses[f"{kind} {status}"] += 1
        if status == 200 and kind in ("certify", "slow", "stream"):
            self._compare(index, content, stream=kind == "stream")

    def _compare(self, index: int, content: bytes, *, stream: bool) -> None:
        if stream:
            events = dict(block.split("\n", 1) for block in content.decode().split("\n\n") if "\n" in block)
            if "event: result" not in events:  # refused within the stream, when the server stopped
                self.tally.statuses["stream failed event"] += "event: failed" in events
                return
            result = json.loads(events["event: result"].removeprefix("data: "))
        else:
            [result] = json.loads(content)["results"]
        if result["deadline_reached"]:
            self.tally.statuses["deadline reached"] += 1
            return
        same = Certificate.from_dict(result["certificate"]).to_json() == self.expected[index]
        self.tally.equal += same
        self.tally.different += not same


def certified(folder: Path, texts: Sequence[str], out: Path) -> list[str]:
    """The certificates of ``adaptdel certify`` as JSON, without the seed, which a server does not reveal."""
    data = out / "endurance.jsonl"
    data.write_text("".join(json.dumps({"text": text, "label": 0}) + "\n" for text in texts), encoding="utf-8")
    run = out / "endurance-run"
    code = "from adaptdel.cli import main; main()"
    arguments = ["certify", folder, "--data", data, "--seed", SEED, "--out", run]
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True)
    return [replace(certificate, seed=None).to_json() for certificate in read_run(run).certificates()]


def endurance_part(folder: Path, texts: Sequence[str], out: Path, requests: int) -> dict[str, Any]:
    """Send all kinds of requests, and say what became of them."""
    expected = certified(folder, texts, out)
    port = free_port()
    servers = [ServerProcess(folder, port)]
    memory: list[list[float]] = [[]]
    callers = Misbehaviour(port, texts, expected, requests)

    async def restart() -> None:
        status = await asyncio.to_thread(servers[-1].stop)
        stopped.append(status)
        servers.append(await asyncio.to_thread(ServerProcess, folder, port))
        memory.append([])

    async def watch() -> None:
        while True:
            with suppress(psutil.Error):
                memory[-1].append(servers[-1].memory())
            await asyncio.sleep(0.25)

    async def run() -> None:
        watching = asyncio.ensure_future(watch())
        await callers.run(restart)
        await asyncio.sleep(1.0)
        watching.cancel()

    stopped: list[int] = []
    began = time.perf_counter()
    try:
        asyncio.run(run())
        seconds = time.perf_counter() - began
        left = asyncio.run(gauges(port))
        stopped.append(servers[-1].stop())
    finally:
        for server in servers:
            server.started.kill()
            server.started.wait()
    tally = callers.tally
    return {
        "requests": requests,
        "seconds": round(seconds, 1),
        "sent": dict(sorted(tally.sent.items())),
        "statuses": dict(sorted(tally.statuses.items())),
        "lost": len(tally.lost),
        "examples_of_lost": tally.lost[:10],
        "attempts_while_no_server_listened": tally.not_accepted,
        "connections_reset_before_an_answer": dict(sorted(tally.reset.items())),
        "certificates_equal": tally.equal,
        "certificates_different": tally.different,
        "exit_statuses": stopped,
        "left_at_the_end": left,
        "memory_mb": [trend(samples) for samples in memory],
    }


def trend(samples: Sequence[float]) -> dict[str, float]:
    """Resident memory of one server: medians of the second and of the last quarter of its time, and the largest."""
    quarter = max(1, len(samples) // 4)
    return {
        "second_quarter": round(statistics.median(samples[quarter : 2 * quarter] or samples), 1),
        "last_quarter": round(statistics.median(samples[-quarter:]), 1),
        "most": round(max(samples), 1),
    }


async def gauges(port: int) -> dict[str, float]:
    """What the server still works on: everything must be 0."""
    async with connected(port) as connection:
        connection.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _, page = await connection.receive()
    names = ("adaptdel_requests_in_flight", "adaptdel_queue_texts", "adaptdel_pool_texts")
    lines = [line.split() for line in page.decode().splitlines() if line.startswith(names)]
    failures = re.findall(r'adaptdel_requests_total\{code="500"[^}]*\} (\S+)', page.decode())
    return {line[0].partition("{")[0]: float(line[1]) for line in lines} | {"status_500": sum(map(float, failures))}


# The whole.


def trained(data: Path, out: Path, count: int, names: Sequence[str]) -> dict[str, Path]:
    """The folders of the models; those that are there are taken as they are."""
    rows = out / f"train-{count}.jsonl"
    if not rows.exists():
        texts, labels = load(data, f"{DATA_SET}.train", count)
        lines = (json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True))
        rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
    folders = {}
    for name in names:
        folders[name] = out / f"{name}-{count}"
        if not folders[name].exists():
            train_job(
                TrainingJob(
                    str(rows), str(folders[name]), TrainingSettings.from_dict({"method": "adaptdel", **TRAINING[name]})
                )
            )
    return folders


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["--server"]:
        folder, port, settings = sys.argv[2:]
        run_server(Path(folder), int(port), json.loads(settings))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {DATA_SET}.train.jsonl.gz and others")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer examples, requests and repeats")
    parser.add_argument("--parts", nargs="+", choices=("load", "endurance"), default=("load", "endurance"))
    arguments = parser.parse_args()
    work = arguments.out / "serve"
    work.mkdir(parents=True, exist_ok=True)
    names = tuple(TRAINING) if "load" in arguments.parts else ("linear",)
    models = trained(arguments.data, work, 200 if arguments.quick else 4000, names)
    texts, _ = load(arguments.data, f"{DATA_SET}.test", 40 if arguments.quick else 500)
    path = arguments.out / "serve.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    result["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
    result["words"] = {"median": statistics.median(len(text.split()) for text in texts), "texts": len(texts)}
    load_average = [round(os.getloadavg()[1], 1)]  # of the machine, which says how much else it did
    if "load" in arguments.parts:
        result["load"] = load_part(models, texts, 1 if arguments.quick else 3, arguments.quick)
    if "endurance" in arguments.parts:
        requests = 300 if arguments.quick else 10_000
        result["endurance"] = endurance_part(models["linear"], texts[:200], work, requests)
        print(json.dumps(result["endurance"], indent=2))
    result["load_average"] = [*load_average, round(os.getloadavg()[1], 1)]
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
