"""Whatever a client sends, the server answers or refuses with one sentence, and never fails (status 500).

``make test-all`` sends 100,000 requests. One case again: ``python -m tests.serve.test_fuzz TARGET NUMBER...``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.serve import schemas
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.service import ModelToServe, Service
from tests.fuzzing import NUMBERS, ODD, TEXTS, Failure, changed, changed_bytes, fuzz, json_bytes
from tests.models.test_smoothed import by_words
from tests.serve.serving import Answer, Caller, check_problem

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
    b"application/json", b"application/json; charset=utf-16", b"text/plain", b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x", b"application/problem+json", b"text/json", b"", b"application/json, text/html",
    b"\xff\xfe", b";;;", b"application/JSON", b"application/octet-stream", b"a/" + b"x" * 3000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "", "post", "\x00")
PATHS = (
    "/", "", "//", "/v1", "/v1/", "/v1/models", "/v1/certify/", "/v1//certify", "/v1/certify/..", "/v1/certify\0",
    "/metrics", "/healthz", "/readyz", "/docs", "/openapi.json", "/page/page.css", "/page/../app.py",
    "/page/..", "/page/.", "/page/",
    "/page/%2e%2e", "/page/x\0", "/é", "/\ud800",
    "/" + "x" * 5000, "/v1/predict;x=1", "*", "http://elsewhere/", "/page/\n", "/redoc", "/{file}", "/v1/{}",
)  # fmt: skip
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-length", b"5"), (b"content-length", b"99999999999999999999"), (b"content-length", b"-1"),
    (b"content-length", b"x"), (b"content-length", b"\xb2"), (b"content-length", b"9" * 5000),
    (b"transfer-encoding", b"chunked"), (b"content-encoding", b"gzip"), (b"authorization", b"Bearer x"),
    (b"authorization", b"\xff"), (b"authorization", b""), (b"authorization", b"Basic eDp5"), (b"host", b""),
    (b"host", b"elsewhere"), (b"host", b"[::1]:80"), (b"host", b"[::1"), (b"host", b"\xff\xfe"),
    (b"host", b"localhost:x"), (b"host", b"localhost, elsewhere"), (b"accept", b"text/event-stream"),
    (b"accept", b"\xff"), (b"cookie", b"a=\xff; ="), (b"origin", b"null"), (b"expect", b"100-continue"),
    (b"range", b"bytes=0-1"), (b"if-none-match", b"*"),
    (b"x-forwarded-for", b"\0"), (b"upgrade", b"websocket"), (b"x-" + b"y" * 3000, b"z" * 3000), (b"", b""),
    (b"x-http-method-override", b"DELETE"), (b"access-control-request-method", b"POST"), (b"content-type", b"x"),
)  # fmt: skip


Headers = Sequence[tuple[bytes, bytes]]
JSON: Headers = ((b"content-type", b"application/json"),)


class Errors(logging.Handler):
    """Collects what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Running:
    """An application in this process."""

    def __init__(self, errors: Errors, token: str | None = None) -> None:
        model = SmoothedClassifier(
            by_words, Deletion(LengthRate(p_min=0.5, k=3)), n_select=20, n_estimate=100, classes=["neg", "pos"]
        )
        self.service = Service([ModelToServe("words", model)], SETTINGS, token=token)
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
        while any(map(any, (model.scheduler.sizes() for model in self.service.models.values()))):
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
    elif reply.status != 200:
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
    """A text of odd characters and words."""
    parts = [rng.choice([*CHARACTERS, "good", "bad ", *TEXTS]) for _ in range(rng.choice([0, 1, 3, 30]))]
    return "".join(parts)


def random_json(rng: random.Random, depth: int = 0) -> Any:
    """JSON of any shape, with the names of fields among others."""
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return random_text(rng)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice([None, True, False, [], {}, *ODD])
    if kind == 5:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(5))]
    names = [*CERTIFY, "texts", "select", "estimate", "", "__proto__", "seed", random_text(rng)]
    return {rng.choice(names): random_json(rng, depth + 1) for _ in range(rng.randrange(5))}


def encoded(values: Any, rng: random.Random) -> bytes:
    """JSON in UTF-8, in ASCII, or in an encoding that the server must refuse."""
    ascii_only = rng.random() < 0.7
    text = json.dumps(values, ensure_ascii=ascii_only)
    return text.encode(rng.choice(["utf-8"] * 8 + ["utf-16", "utf-8-sig"]), "surrogatepass")


# The targets: each sends one request.


def certify_body(server: Running, edits: list[int]) -> None:
    """A request for certificates with fields that were changed."""
    rng = random.Random(edits[0])
    body = {**CERTIFY, "stream": rng.random() < 0.3, "influence": rng.random() < 0.3}
    if rng.random() < 0.4:
        del body["text"]
        body["texts"] = [random_text(rng) for _ in range(rng.randrange(1, 8))]
    for name in rng.sample(sorted(set(body) - {"text", "texts"}), rng.randrange(6)):
        del body[name]
    answer_to_a_body(server, "/v1/certify", body, edits)


def predict_body(server: Running, edits: list[int]) -> None:
    """A request for predictions with fields that were changed."""
    answer_to_a_body(server, "/v1/predict", PREDICT, edits)


def answer_to_a_body(server: Running, path: str, body: dict[str, Any], edits: list[int]) -> None:
    reply = server.send(path, json_bytes(changed(body, edits), edits))
    if reply.status == 200 and reply.kind == "application/json":
        kinds: dict[str, type[schemas.Result]] = {
            "/v1/certify": schemas.CertifyResponse,
            "/v1/predict": schemas.PredictResponse,
        }
        kinds[path].model_validate(reply.json())


def any_json(server: Running, edits: list[int]) -> None:
    """JSON that has nothing to do with the schema."""
    rng = random.Random(edits[0])
    server.send(rng.choice(PLACES), encoded(random_json(rng), rng))


def deep_json(server: Running, edits: list[int]) -> None:
    """JSON that is nested as deeply as allowed, or more deeply."""
    rng = random.Random(edits[0])
    depth = rng.choice([29, 30, 31, 32, 33, 100, 900, 1500])
    inner, left, right = rng.choice([("1", "[", "]"), ("{}", '{"text": ', "}"), ('"x"', '{"texts": [', "]}")])
    body = left * depth + inner + right * (depth - rng.choice([0, 0, 0, 1]))
    server.send(rng.choice(PLACES), body.encode())


def any_bytes(server: Running, edits: list[int]) -> None:
    """A body that is damaged, or no JSON, in pieces."""
    rng = random.Random(edits[0])
    body = changed_bytes(json.dumps(rng.choice([CERTIFY, PREDICT])).encode(), edits)
    if rng.random() < 0.2:
        body = rng.choice(
            [b"", rng.randbytes(50), b"[" * 10_000, b'{"text":"', b"\xff" * 9, b"1e999", b"9" * 9999, body * 60]
        )
    server.send(rng.choice(PLACES), body, pieces=rng.choice([1, 1, 2, 7]))


def any_request(server: Running, edits: list[int]) -> None:
    """Methods, paths, headers and media types at random."""
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
    certify_body: (500, 30_000),
    predict_body: (200, 10_000),
    any_json: (500, 30_000),
    deep_json: (100, 2_500),
    any_bytes: (500, 12_500),
    any_request: (500, 10_000),
    client_that_leaves: (150, 5_000),
}
PART = 2_500  # cases of a test of the slow suite, so that they are shared out among processes


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_few_requests(server: Running, target: Target) -> None:
    fuzz(target.__name__, lambda edits: target(server, edits), TARGETS[target][0], seed=0, module=__name__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "part"),
    [(target, part) for target, (_, cases) in TARGETS.items() for part in range(0, cases, PART)],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_many_requests(server: Running, target: Target, part: int) -> None:
    cases = min(PART, TARGETS[target][1] - part)
    fuzz(target.__name__, lambda edits: target(server, edits), cases, seed=1 + part, module=__name__)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    with running() as opened:
        globals()[name](opened, [int(number) for number in numbers])
