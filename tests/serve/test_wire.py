"""Damaged HTTP messages over a real connection: no failure of the server, no connection that hangs, no memory kept."""

from __future__ import annotations

import errno
import json
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil  # type: ignore[import-untyped]
import pytest

from adaptdel import Deletion, FixedRate, SmoothedClassifier
from adaptdel.classifiers import LinearClassifier
from tests.fuzzing import Failure, changed_bytes, fuzz
from tests.models.test_smoothed import by_words, texts

LOOPBACK = "127.0.0.1"
BODY = json.dumps({"text": "good film bad plot", "votes": {"select": 20, "estimate": 50}}).encode()
TARGETS = ("/v1/certify", "/v1/predict", "/v1/verify", "/v1/models", "/healthz", "/docs", "/page/docs.css", "/x")
LINES = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Length: 7", b"Content-Length: -1",
    b"Content-Length: 1e3", b"Content-Length: 99999999999999999999999", b"Host: elsewhere", b"Host:", b" folded: x",
    b"Expect: 100-continue", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"X: \xff\xfe",
    b"X" * 5000 + b": y", b"no colon", b": empty", b"X: \0", b"Cookie: " + b"c" * 9000, b"Accept: text/event-stream",
)  # fmt: skip
GROWTH = 60 * 2**20  # bytes that the server may grow by; its libraries load parts of themselves on first use


@dataclass(frozen=True)
class Address:
    """A server in a process of its own."""

    port: int
    process: psutil.Process

    def get(self, path: str) -> str:
        with urlopen(f"http://{LOOPBACK}:{self.port}{path}", timeout=30) as response:
            return str(response.read().decode())

    def exchange(self, message: bytes, pieces: int) -> bytes:
        """What the server answers to bytes after which the client sends nothing more."""
        with socket.create_connection((LOOPBACK, self.port), timeout=30) as connection:
            size = max(1, -(-len(message) // pieces))
            answer = b""
            try:
                for at in range(0, len(message), size):
                    connection.sendall(message[at : at + size])
                connection.shutdown(socket.SHUT_WR)
                while select.select([connection], [], [], 20)[0]:
                    part = connection.recv(2**16)
                    if not part:
                        return answer
                    answer += part
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                    raise
                return answer  # the server closed the connection, as it may
        raise Failure(f"the connection was not closed after {message!r:.300}")


@contextmanager
def started(folder: Path) -> Iterator[Address]:
    """``adaptdel serve`` on a small model in a process, which must end without an error in its log."""
    inputs = texts(60)
    model = SmoothedClassifier(LinearClassifier(), Deletion(FixedRate(0.5)), n_select=20, n_estimate=50, progress=False)
    model.fit(inputs, by_words(inputs)).save(folder)
    command = [sys.executable, "-c", "from adaptdel.cli import main; main()", "serve", str(folder), "--port", "0"]
    log = folder.with_name("log")  # a pipe that nobody reads would stop the server
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            port = re.search(r":(\d+)/$", line.strip())
            assert port, log.read_text()
            yield Address(int(port[1]), psutil.Process(running.pid))
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 0, log.read_text()
            bad = re.search(r"^(?:Traceback|.* (?:ERROR|CRITICAL) ).*(?:\n.*){0,20}", log.read_text(), re.MULTILINE)
            assert bad is None, bad[0]
        finally:
            running.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with started(tmp_path_factory.mktemp("wire") / "words") as opened:
        yield opened


def message(rng: random.Random) -> bytes:
    """An HTTP request, valid or with odd lines."""
    target = rng.choice(TARGETS).encode()
    method = rng.choice([b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"post", b"PRI", b""])
    version = rng.choice([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"ICY"])
    lines = [b"%s %s %s" % (method, target, version), b"Host: localhost", b"Content-Type: application/json"]
    body = BODY
    if rng.random() < 0.4:
        lines.append(b"Transfer-Encoding: chunked")
        size = rng.choice([b"%x" % len(BODY)] * 4 + [b"1", b"fffffffffffffffff", b"-1", b"zz", b"", b"5;x=y"])
        body = size + b"\r\n" + BODY + b"\r\n" + rng.choice([b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"0"])
    else:
        lines.append(b"Content-Length: %d" % (len(BODY) + rng.choice([0, 0, 0, 1, -1, 400])))
    lines += rng.choices(LINES, k=rng.choice([0, 0, 1, 2]))
    return rng.choice([b"\r\n"] * 8 + [b"\n", b"\r"]).join(lines) + b"\r\n\r\n" + body


def send_damaged(server: Address, edits: list[int]) -> None:
    """One connection: a request that may be odd, damaged, cut off, or followed by another one."""
    rng = random.Random(edits[0])
    sent = message(rng)
    if rng.random() < 0.5:
        sent = changed_bytes(sent, edits)
    if rng.random() < 0.2:
        sent += message(rng)
    answer = server.exchange(sent, rng.choice([1, 1, 2, 9]))
    statuses = [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.MULTILINE)]
    if answer and not statuses:
        raise Failure(f"no HTTP: {answer!r:.300}")
    if any(status >= 500 for status in statuses):
        raise Failure(f"{statuses} for {sent!r:.300}")


def check_after(server: Address) -> None:
    """The server is as it was."""
    assert json.loads(server.get("/healthz")) == {"status": "ok"}
    until = time.monotonic() + 20
    while "adaptdel_requests_in_flight 0.0" not in server.get("/metrics"):
        assert time.monotonic() < until, server.get("/metrics")
        time.sleep(0.1)
    assert not re.search(r'code="5\d\d"', server.get("/metrics"))


def test_a_few_damaged_messages(server: Address) -> None:
    fuzz("send_damaged", lambda edits: send_damaged(server, edits), 150, seed=0, module=__name__)
    check_after(server)


@pytest.mark.slow
def test_many_damaged_messages(server: Address) -> None:
    fuzz("send_damaged", lambda edits: send_damaged(server, edits), 1_000, seed=1, module=__name__)
    memory = server.process.memory_info().rss
    fuzz("send_damaged", lambda edits: send_damaged(server, edits), 4_000, seed=2, module=__name__)
    check_after(server)
    assert server.process.memory_info().rss - memory < GROWTH


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, started(Path(place) / "words") as opened:
        send_damaged(opened, [int(number) for number in sys.argv[2:]])
