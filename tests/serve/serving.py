"""Services, callers and processes for the tests of the server."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

import adaptdel as ad
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.scores import Filter
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.models.estimator import TextEstimator
from adaptdel.serve.app import create_app
from adaptdel.serve.schemas import PROBLEM_TYPE
from adaptdel.serve.service import ModelToServe, Service
from adaptdel.settings import ServeSettings

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
LONG = 20.0  # seconds after which a test fails that waits for something
SEED = 4611686018427387905  # easy to search for
NOISE = ad.Deletion(ad.LengthRate(0.7, 6))


class Counter:
    """A base classifier as a function that keeps the batches it is called with, and may wait for `allow` or fail."""

    def __init__(self, *, waits: bool = False, seen: Callable[[], None] = lambda: None) -> None:
        self.batches: list[list[str]] = []
        self.answered = (0, 0)  # calls and copies
        self._seen = seen
        self._allowed = 0.0 if waits else math.inf
        self._changed = threading.Condition()

    @property
    def calls(self) -> int:
        return len(self.batches)

    @property
    def copies(self) -> int:
        return sum(map(len, self.batches))

    def allow(self, calls: float = math.inf) -> None:
        """Answer the calls up to this number."""
        with self._changed:
            self._allowed = calls
            self._changed.notify_all()

    def __call__(self, copies: list[str]) -> list[str]:
        self.batches.append(copies)
        number = len(self.batches)
        self._seen()
        with self._changed:
            assert self._changed.wait_for(lambda: number <= self._allowed, LONG)
        if any("poison" in copy for copy in copies):
            raise RuntimeError("poison")
        calls, answered = self.answered
        self.answered = (calls + 1, answered + len(copies))
        return ["pos" if 2 * copy.count("p") > len(copy.split()) else "neg" for copy in copies]


class Clock:
    """A clock in place of the module ``time`` of the server: it goes on with the answers of a classifier."""

    def __init__(self, counter: Counter, *, call: float = 0.0, copy: float = 0.0) -> None:
        self.counter, self.call, self.copy = counter, call, copy

    def monotonic(self) -> float:
        calls, copies = self.counter.answered
        return self.call * calls + self.copy * copies

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("scheduler", "answers"):
            monkeypatch.setattr(f"adaptdel.serve.{name}.time", self)


async def until(holds: Callable[[], bool], seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def model(function: Callable[[list[str]], Any] | None = None, **settings: Any) -> ad.SmoothedClassifier:
    chosen: dict[str, Any] = {"n_select": 100, "n_estimate": 400, "progress": False, **settings}
    base = CallableClassifier(function or Counter(), classes=["neg", "pos"], batch_size=10**6, recheck=0)
    return ad.SmoothedClassifier(base, chosen.pop("noise", NOISE), **chosen)


@cache
def exact(unit: str = "word") -> ad.AdditiveClassifier:
    """A model whose word scores have the sign of the words."""
    texts = [f"{word} {other}" for word in ("good", "bad", "great", "awful") for other in ("film", "plot", "cast")]
    labels = ["negative" if {"bad", "awful"} & set(sample.split()) else "positive" for sample in texts]
    return ad.AdditiveClassifier(unit=unit, iterations=20, levels=3, progress=False).fit(texts * 5, labels * 5)


def filtering() -> ad.AdditiveClassifier:
    """The same model, which protects "negative" by its best segment."""
    model, clip = copy(exact()), exact().trade_off_[exact().level].clip
    model.filter = Filter(label=0, drift=clip // 10, segment=clip, segment_drift=clip // 10)
    return model


def without_seed(certificate: Certificate) -> dict[str, Any]:
    """A certificate as a server sends it."""
    plan: Any = certificate.plan
    return replace(certificate, plan=replace(plan, secret=True)).to_dict()


def text(length: int, share: float = 0.8, name: str = "") -> str:
    words = [f"{'p' if (n * share) % 1 + share >= 1 else 'n'}{name}{n}" for n in range(length)]
    return " ".join(words)


def service(*models: TextEstimator, token: str | None = None, seed: int | None = SEED, **settings: Any) -> Service:
    sources = [ModelToServe(f"m{number}", served) for number, served in enumerate(models or [model()])]
    return Service(sources, ServeSettings(**settings), seed=seed, token=token)


@dataclass
class Answer:
    """A response of the application; the status is 0 if the client left before."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def result(self) -> Any:
        assert self.status == 200, self.body
        [result] = self.json()["results"]
        return result

    def events(self) -> list[tuple[str, Any]]:
        blocks = [block.split("\n") for block in self.body.decode().split("\n\n") if block and block[0] != ":"]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def check_problem(answer: Answer, status: int, sentence: str = "") -> str:
    """The sentence of an error, which must be a problem document."""
    assert (answer.status, answer.kind) == (status, PROBLEM_TYPE), answer
    values = answer.json()
    assert set(values) == {"type", "title", "status", "detail"}, values
    assert values["status"] == status
    detail: str = values["detail"]
    assert detail.startswith(sentence), detail
    assert 0 < len(detail) < 700, detail
    assert "\n" not in detail, detail
    assert "Traceback" not in detail, detail
    return detail


class Caller:
    """Calls an application without a network. Each part of a body is a message."""

    def __init__(self, running: Service) -> None:
        self.service, self.app = running, create_app(running)

    async def send(
        self,
        method: str,
        path: str,
        parts: Sequence[bytes] = (b"",),
        headers: dict[str, str] | Sequence[tuple[bytes, bytes]] | None = None,
        *,
        query: bytes = b"",
        leave: asyncio.Event | None = None,
    ) -> Answer:
        """Send a request; the client leaves when the event is set."""
        if isinstance(headers, dict) or headers is None:
            headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        named = headers if any(name.lower() == b"host" for name, _ in headers) else [(b"host", b"localhost"), *headers]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode("utf-8", "surrogatepass"), "query_string": query,
            "root_path": "", "client": (LOOPBACK, 1), "server": (LOOPBACK, 80),
            "headers": [(name.lower(), value) for name, value in named],
        }  # fmt: skip
        waiting = list(parts)
        answer = Answer(0, {}, b"")
        finished = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(0), "more_body": len(waiting) > 0}
            await (finished if leave is None else leave).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert not answer.status, "a response began twice"
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            elif message["type"] == "http.response.body":
                answer.body += message.get("body", b"")

        try:
            await self.app(scope, receive, send)
        finally:
            finished.set()
        return answer

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None, **options: Any) -> Answer:
        """Send JSON; bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.send(
            "POST", path, [content], {"content-type": "application/json", **(headers or {})}, **options
        )

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return await self.send("GET", path, headers=headers)

    async def certify(self, *texts: str, **options: Any) -> Answer:
        body = {"text": texts[0]} if len(texts) == 1 else {"texts": list(texts)}
        return await self.post("/v1/certify", {**body, **options})


@asynccontextmanager
async def calling(running: Service) -> AsyncIterator[Caller]:
    running.start()
    try:
        yield Caller(running)
    finally:
        await asyncio.to_thread(running.stop)


def call(running: Service, *requests: Any) -> list[Any]:
    """Run coroutines of a caller one after the other; their results."""

    async def run() -> list[Any]:
        async with calling(running) as caller:
            return [await request(caller) for request in requests]

    return asyncio.run(run())


@contextmanager
def process(
    *arguments: object, program: str = "serve_slowly", **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A function of `page_server` that serves, in a process of its own: its address and the process."""
    code = f"from tests.serve.page_server import {program}; {program}()"
    command = [sys.executable, "-c", code, "--port", "0", *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    ) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert "http://" in line, running.stderr and running.stderr.read()
            yield line.split()[-1], running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGKILL)


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").strip("/").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def send(address: str, path: str, body: Any = None, token: str = "") -> Answer:
    """Send a request to a server in a process; ConnectionError if it does not answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    content = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{address.rstrip('/')}{path}", content, headers), timeout=60) as response:
            return _read(response)
    except HTTPError as error:
        return _read(error)
    except URLError as error:
        raise ConnectionError(str(error)) from None


def _read(response: Any) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, response.read())
