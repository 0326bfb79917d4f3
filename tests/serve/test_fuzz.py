"""Whatever a client sends, the server answers or refuses with one sentence, and never fails (status 500)."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from adaptdel.serve import schemas
from adaptdel.serve.service import ModelToServe, Service
from adaptdel.settings import ServeSettings
from tests.fuzzing import TEXTS, Failure, changed, changed_bytes, fuzz, json_bytes
from tests.serve.serving import Answer, Caller, Counter, check_problem, exact, model

REFUSED = (400, 401, 404, 405, 408, 413, 415, 421, 422, 429, 431, 503)
# Small limits, so that a request that asks for as much as it may is answered at once.
SETTINGS = ServeSettings(
    allowed_hosts=("localhost", "testserver"),
    texts=6,
    tokens=200,
    body_bytes=20_000,
    votes=300,
    deadline_ms=2_000,
    queue=20,
)
PLACES = ("/v1/certify", "/v1/predict")
CERTIFY: dict[str, Any] = {
    "text": "good film bad plot the offer",
    "model": "words",
    "alpha": 0.05,
    "ops": ["del", "ins", "sub"],
    "votes": {"select": 20, "estimate": 100},
    "deadline_ms": 900,
    "influence": True,
    "stream": False,
}
PREDICT: dict[str, Any] = {"texts": ["good film", "bad plot"], "votes": {"select": 30}, "deadline_ms": 900}
CHARACTERS = (*"a \0é\n'\"\\%", "\ud800", "\udfff", "\U0001f600", "\u202e", "\x1b[0m", "<b>")
MEDIA_TYPES = (
    b"application/json", b"application/json; charset=utf-16", b"text/plain", b"multipart/form-data; boundary=x", b"",
    b"application/problem+json", b"\xff\xfe", b";;;", b"application/JSON", b"a/" + b"x" * 3000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "", "post", "\x00")
PATHS = (
    "/", "", "//", "/v1", "/v1/models", "/v1/certify/", "/v1//certify", "/v1/certify/..", "/v1/certify\0", "/metrics",
    "/healthz", "/readyz", "/openapi.json", "/page/page.css", "/page/../app.py", "/page/..", "/page/", "/page/%2e%2e",
    "/page/x\0", "/é", "/\ud800", "/" + "x" * 5000, "*", "http://elsewhere/", "/page/\n", "/{file}",
)  # fmt: skip
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-length", b"5"), (b"content-length", b"99999999999999999999"), (b"content-length", b"-1"),
    (b"content-length", b"x"), (b"content-length", b"\xb2"), (b"transfer-encoding", b"chunked"),
    (b"authorization", b"Bearer x"), (b"authorization", b"\xff"), (b"authorization", b""), (b"host", b""),
    (b"host", b"elsewhere"), (b"host", b"[::1]:80"), (b"host", b"[::1"), (b"host", b"\xff\xfe"),
    (b"accept", b"text/event-stream"), (b"accept", b"\xff"), (b"cookie", b"a=\xff; ="), (b"expect", b"100-continue"),
    (b"range", b"bytes=0-1"), (b"upgrade", b"websocket"), (b"x-" + b"y" * 3000, b"z" * 3000), (b"", b""),
)  # fmt: skip
Headers = Sequence[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Running:
    def __init__(self, errors: Errors) -> None:
        words = model(lambda copies: Counter()(copies), n_select=20, n_estimate=100)
        self.service = Service([ModelToServe("words", words), ModelToServe("exact", exact("char"))], SETTINGS)
        self.caller = Caller(self.service)
        self.loop = asyncio.new_event_loop()
        self.errors = errors
        self.service.start()

    def send(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        headers: Headers = JSON,
        query: bytes = b"",
        pieces: int = 1,
        leaves: bool = False,
    ) -> Answer:
        """Send a request in pieces and check its response, and that nothing is left of it."""
        size = max(1, -(-len(body) // pieces))
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        leave = asyncio.Event() if leaves else None
        if leave is not None:
            leave.set()
        sending = self.caller.send(method, path, parts, headers, query=query, leave=leave)
        reply = self.loop.run_until_complete(sending)
        failures, self.errors.lines = self.errors.lines, []
        if failures:
            raise Failure(f"the server failed: {failures}")
        if self.service.in_flight:
            raise Failure(f"{self.service.in_flight} requests are still counted")
        if not leaves:
            check(reply, method)
        return reply

    def idle(self) -> bool:
        """Whether no text waits or is voted on, now or soon."""
        until = time.monotonic() + 60
        while any(map(any, (model.sizes() for model in self.service.models.values()))):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.service.stop()


@contextmanager
def running() -> Iterator[Running]:
    errors = Errors()
    log = logging.getLogger("adaptdel.serve")
    log.addHandler(errors)
    server = Running(errors)
    try:
        yield server
    finally:
        server.close()
        log.removeHandler(errors)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as opened:
        yield opened


def check(reply: Answer, method: str) -> None:
    """A response is an answer or a refusal in one sentence, with the headers that every response has."""
    if reply.headers.get("x-content-type-options") != "nosniff" or "content-security-policy" not in reply.headers:
        raise Failure(f"headers are missing: {reply}")
    if reply.status in REFUSED:
        if method != "HEAD":
            check_problem(reply, reply.status)
    elif reply.status not in (200, 206):
        raise Failure(f"status {reply.status}: {reply.body[:500]!r}")
    elif reply.kind == "text/event-stream":
        check_events(reply)
    elif reply.kind == "application/json":
        json.loads(reply.body, parse_constant=not_json)


def not_json(name: str) -> Any:
    raise Failure(f"{name} in a response")


def check_events(reply: Answer) -> None:
    """A stream answers every text and ends with "done"."""
    events = reply.events()
    if events[-1] != ("done", {}):
        raise Failure(f"the stream ends with {events[-1]}")
    answered = [values["index"] for name, values in events if name in ("result", "failed")]
    if sorted(answered) != list(range(len(answered))):
        raise Failure(f"texts that were answered: {answered}")
    if any(values.get("status", 200) not in (200, *REFUSED) for _, values in events):
        raise Failure(f"a text failed: {events}")


def random_text(rng: random.Random) -> str:
    parts = [rng.choice([*CHARACTERS, "good", "bad ", *TEXTS]) for _ in range(rng.choice([0, 1, 3, 30]))]
    return "".join(parts)


# The targets: each sends one request.


def any_body(server: Running, edits: list[int]) -> None:
    rng = random.Random(edits[0])
    path = rng.choice(PLACES)
    body = {**CERTIFY, "stream": rng.random() < 0.3} if path == "/v1/certify" else dict(PREDICT)
    body["model"] = rng.choice(["words", "exact"])
    if rng.random() < 0.4:
        body.pop("text", None)
        body["texts"] = [random_text(rng) for _ in range(rng.randrange(1, 8))]
    for name in rng.sample(sorted(set(body) - {"text", "texts"}), rng.randrange(len(body))):
        del body[name]
    reply = server.send(path, json_bytes(changed(body, edits), edits))
    if reply.status == 200 and reply.kind == "application/json":
        response = schemas.CertifyResponse if path == "/v1/certify" else schemas.PredictResponse
        response.model_validate(reply.json())


def any_bytes(server: Running, edits: list[int]) -> None:
    rng = random.Random(edits[0])
    body = changed_bytes(json.dumps(rng.choice([CERTIFY, PREDICT])).encode(), edits)
    if rng.random() < 0.2:
        body = rng.choice(
            [b"", rng.randbytes(50), b"[" * 10_000, b'{"text":"', b"\xff" * 9, b"1e999", b"9" * 9999, body * 60]
        )
    server.send(rng.choice(PLACES), body, pieces=rng.choice([1, 1, 2, 7]))


def any_request(server: Running, edits: list[int]) -> None:
    rng = random.Random(edits[0])
    path = rng.choice(PLACES) if rng.random() < 0.5 else rng.choice(PATHS)
    path = path if rng.random() < 0.8 else path + random_text(rng)
    headers = [(b"content-type", rng.choice(MEDIA_TYPES)), *rng.choices(HEADERS, k=len(edits) - 1)]
    server.send(
        path,
        json.dumps(rng.choice([CERTIFY, PREDICT, {}])).encode(),
        method=rng.choice(METHODS),
        headers=headers,
        query=rng.choice([b"", b"stream=true", b"\xff", b"%", b"a=" + b"x" * 3000]),
        pieces=rng.choice([1, 3]),
    )


def client_that_leaves(server: Running, edits: list[int]) -> None:
    """A client that closes the connection at any time: its votes stop."""
    rng = random.Random(edits[0])
    headers = [*JSON, *rng.choices(HEADERS, k=len(edits) - 1)]
    body = json.dumps({**CERTIFY, "stream": rng.random() < 0.5}).encode()
    server.send(rng.choice(PLACES), body, headers=headers, pieces=rng.choice([1, 4]), leaves=True)
    if not server.idle():
        raise Failure("texts of a client that left are still in work")


Target = Callable[[Running, list[int]], None]
TARGETS: dict[Target, tuple[int, int]] = {  # cases in the quick suite and in the slow one
    any_body: (200, 40_000),
    any_bytes: (150, 15_000),
    any_request: (200, 10_000),
    client_that_leaves: (60, 5_000),
}
PART = 2_500  # cases of a test of the slow suite, so that they are shared out among processes


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_few_requests(server: Running, target: Target) -> None:
    fuzz(target.__name__, lambda edits: target(server, edits), TARGETS[target][0], seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "part"),
    [(target, part) for target, (_, cases) in TARGETS.items() for part in range(0, cases, PART)],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_many_requests(server: Running, target: Target, part: int) -> None:
    cases = min(PART, TARGETS[target][1] - part)
    fuzz(target.__name__, lambda edits: target(server, edits), cases, seed=1 + part)
