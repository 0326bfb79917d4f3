"""The server in a process: signals, hostile requests, and what the command line refuses."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.run_files import make_model, run
from tests.serve.serving import LONG, connect, process, send, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("server") / "model", labels=("neg", "pos"))


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def certify_slowly(url: str, count: int, votes: int) -> tuple[list[threading.Thread], dict[int, int]]:
    answers: dict[int, int] = {}

    def call(number: int) -> None:
        body = {"text": text(40, 0.5, str(number)), "model": "slow", "votes": {"estimate": votes}, "alpha": 1e-6}
        answers[number] = send(url, "/v1/certify", body).status

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_sigterm_finishes_what_is_in_flight_and_refuses_the_rest(folder: Path, tmp_path: Path) -> None:
    """The classifier answers when the server was told to stop."""
    gate = tmp_path / "gate"
    with process("slow", folder, "--set", f"grace_seconds={LONG}", GATE=str(gate)) as (url, running):
        threads, answers = certify_slowly(url, 6, 2000)
        wait_for(url, "adaptdel_requests_in_flight 6.0")
        running.send_signal(signal.SIGTERM)
        with suppress(ConnectionError):  # 503 at first, and no connection soon after
            while send(url, "/v1/predict", {"text": "a", "model": "model"}).status == 200:
                pass
        assert answers == {}
        gate.touch()
        for thread in threads:
            thread.join()
        assert running.wait(LONG) == 0
        assert list(answers.values()) == [200] * 6
        with pytest.raises(ConnectionError):
            send(url, "/healthz")


def test_after_the_grace_time_requests_are_refused_not_dropped(folder: Path) -> None:
    """The votes would take 80 seconds."""
    with process("slow", "--set", "grace_seconds=0.5", "--set", "batch_tokens=2000", COPY_SECONDS="0.001") as (
        url,
        running,
    ):
        threads, answers = certify_slowly(url, 4, 20000)
        wait_for(url, "adaptdel_requests_in_flight 4.0")
        running.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert running.wait(LONG) == 0
        assert list(answers.values()) == [503] * 4


def wait_for(url: str, content: str) -> None:
    end = time.monotonic() + LONG
    while content not in (answer := send(url, "/metrics").body.decode()):
        assert time.monotonic() < end, answer
        time.sleep(0.02)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with process(folder, "--set", "body_bytes=100000") as (url, _):
        yield url


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/certify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/certify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
        b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"text": "a"}\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n',
        b"GET /%ff%fe/%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /page/%2e%2e%2fapp.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_hostile_requests_get_an_error_or_are_closed(address: str, sent: bytes) -> None:
    with connect(address) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
        assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:200]
        assert answer.count(b"HTTP/1.1 ") <= 1
    assert send(address, "/v1/predict", {"text": "a"}).result["calls"]


def test_a_chunked_body_that_is_too_large_is_refused_while_it_is_sent(address: str) -> None:
    with connect(address) as connection:
        headers = b"Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(b"POST /v1/certify HTTP/1.1\r\n" + headers)
        chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        sent = 0
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 40_000_000:
                connection.sendall(chunk)
                sent += len(chunk)
        assert sent < 40_000_000


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--demo"),
        (["no-such-model"], "no-such-model"),
        (["{model}", "{model}"], "NAME=FOLDER"),
        (["{model}", "--host", "256.1.1.1"], "--host"),
        (["{model}", "--set", "queue=0"], "queue"),
        (["{model}", "--token-file", "no-such-file"], "no-such-file"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    folder: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", *(argument.replace("{model}", str(folder)) for argument in arguments), "--port", "0") == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
