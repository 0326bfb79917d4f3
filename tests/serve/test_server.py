"""The server in a process: signals, slow and silent clients, and what the command line refuses."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from adaptdel import SmoothedClassifier
from adaptdel.cli.serve import warnings
from adaptdel.serve import Client, ServeError, ServeSettings, create_app
from adaptdel.serve.configuration import named_folders
from adaptdel.serve.credentials import read_token
from adaptdel.serve.server import Server, most_connections
from tests.run_files import make_model, run
from tests.serve.serving import LONG, SEED, connect, process, service, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("server") / "model", labels=("neg", "pos"))


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def certify_slowly(url: str, count: int, votes: int) -> tuple[list[threading.Thread], dict[int, Any]]:
    """Start requests to the slow model, each in a thread, without retries."""
    answers: dict[int, Any] = {}

    def call(number: int) -> None:
        sample = text(40, 0.5, str(number))
        try:
            with Client(url, retries=0) as client:
                answers[number] = client.certify(sample, model="slow", votes={"estimate": votes}, alpha=1e-6)
        except ServeError as error:
            answers[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_sigterm_finishes_what_is_in_flight_and_refuses_the_rest(folder: Path, tmp_path: Path) -> None:
    """The classifier answers when the server was told to stop."""
    gate = tmp_path / "gate"
    with process("slow", folder, "--grace", LONG, GATE=str(gate)) as (url, running):
        threads, answers = certify_slowly(url, 6, 2000)
        wait_for(url, "adaptdel_requests_in_flight 6.0")
        running.send_signal(signal.SIGTERM)
        wait_for(url, "is shutting down", path="/readyz")
        with Client(url, retries=0) as client, pytest.raises(ServeError, match="is shutting down") as refused:
            client.predict("a", model="model")
        assert refused.value.status == 503
        assert answers == {}
        gate.touch()
        for thread in threads:
            thread.join()
        assert running.wait(LONG) == 0
        assert [answer for answer in answers.values() if isinstance(answer, ServeError)] == []
        assert len(answers) == 6
        with pytest.raises(ServeError, match="does not answer"):
            Client(url, retries=0).predict("a")


def test_a_slow_body_is_refused_not_dropped_when_the_server_stops(folder: Path) -> None:
    """The client sends on, also after the signal, and only then reads; its connection is not to be kept open."""
    with process(folder) as (url, running), connect(url) as connection:
        lines = request("/v1/certify", b'{"text": ', "Content-Length: 13", "Connection: close")
        connection.sendall(lines)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        time.sleep(1.0)
        connection.sendall(b'"a"}')
        time.sleep(0.2)
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 503"), answer[:200]
        assert b"the server is shutting down" in answer
        assert running.wait(LONG) == 0


def test_after_the_grace_time_requests_are_refused_not_dropped(folder: Path) -> None:
    """The votes would take 80 seconds."""
    with process("slow", "--grace", "0.5", COPY_SECONDS="0.001") as (url, running):
        threads, answers = certify_slowly(url, 4, 20000)
        wait_for(url, "adaptdel_requests_in_flight 4.0")
        running.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert running.wait(LONG) == 0
        assert [getattr(answer, "status", None) for answer in answers.values()] == [503] * 4


def test_a_process_answers_as_the_command_line_and_keeps_the_seed_and_texts_out_of_its_log(
    folder: Path,
) -> None:
    secret = " ".join(f"w{n}" for n in range(50)) + " confidential"
    with process(folder, "--seed", SEED) as (url, running):
        with Client(url) as client:
            [certificate] = SmoothedClassifier.load(folder).set_params(seed=SEED, progress=False).certify([secret])
            answer = client.certify(secret)
            assert answer.certificate is not None
            assert answer.certificate.to_dict() == {
                **certificate.to_dict(), "seed": None, "digest": answer.certificate.to_dict()["digest"]
            }  # fmt: skip
            with pytest.raises(ServeError):
                client.certify("confidential", alpha=7)
        running.send_signal(signal.SIGTERM)
        output, log = running.communicate(timeout=LONG)
    assert "POST /v1/certify 200" in log
    assert "warning: --seed is for tests" in log
    assert "confidential" not in output + log
    assert str(SEED) not in output + log


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[str]:
    """A server with little patience."""
    program = (
        "import functools, adaptdel.cli.serve as command\n"
        "command.ServeSettings = functools.partial(command.ServeSettings, body_seconds=1.0, send_seconds=1.0)\n"
        "from tests.serve.run import run; run()"
    )
    with process(folder, "slow", program=program) as (url, _):
        yield url


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection; what it sent before is read."""
    connection.settimeout(seconds)
    try:
        read_all(connection)
    except TimeoutError:
        return False
    return True


def test_silent_and_slow_clients_are_closed(hasty: str) -> None:
    """Nothing is sent, half of the headers, half of the body, half of a second request."""
    silent, headers, body, second = (connect(hasty) for _ in range(4))
    headers.sendall(b"POST /v1/certify HTTP/1.1\r\nHost: loc")
    body.sendall(request("/v1/certify", b'{"text"', "Content-Length: 20"))
    second.sendall(request("/v1/predict", b'{"text": "a"}', "Content-Length: 13"))
    assert second.recv(2**16).startswith(b"HTTP/1.1 200")
    second.sendall(b"GET /healthz HTTP/1.1\r\nHo")
    assert b"408 Request Timeout" in read_all(body)
    for connection in (silent, headers, second):
        assert is_closed(connection, LONG)
        connection.close()
    body.close()
    with Client(hasty) as client:
        assert client.predict("a").calls


class Transport:
    """A connection as uvicorn has it: its last request, and a response that the client has not taken yet."""

    def __init__(self) -> None:
        self.transport = self
        self.cycle: Any = None
        self.unsent, self.is_aborted = 0, False

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True


def test_only_connections_without_progress_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may come and be answered between two ticks, and a response may be read slowly."""
    running = service(body_seconds=10.0)
    server = Server(uvicorn.Config(create_app(running)), running, lambda: None)
    _, busy, reader, stuck = connections = [Transport() for _ in range(4)]
    server.server_state.connections = set(connections)  # type: ignore[arg-type]
    reader.unsent = stuck.unsent = 10**6
    now = 0.0
    monkeypatch.setattr("adaptdel.serve.server.time", SimpleNamespace(monotonic=lambda: now))
    for tick in range(1, 10):
        now = 3.0 * tick
        busy.cycle = SimpleNamespace(response_complete=True)
        reader.unsent -= 1000
        asyncio.run(server.on_tick(tick))
    assert [connection.is_aborted for connection in connections] == [True, False, False, True]


def test_with_too_many_connections_those_without_a_complete_request_are_closed_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those whose body is still to come; otherwise the application limits its time, and says so."""
    now = 0.0
    monkeypatch.setattr("adaptdel.serve.server.time", SimpleNamespace(monotonic=lambda: now))
    aborted = []
    for most in (2, 3):
        running = service(body_seconds=10.0)
        server = Server(uvicorn.Config(create_app(running)), running, lambda: None, most)
        _, receiving, working = connections = [Transport() for _ in range(3)]
        receiving.cycle = SimpleNamespace(response_complete=False, more_body=True)
        working.cycle = SimpleNamespace(response_complete=False, more_body=False)
        server.server_state.connections = set(connections)  # type: ignore[arg-type]
        for seconds in (0.0, 1.1, 11.0):
            now = seconds
            asyncio.run(server.on_tick(0))
            aborted.append([connection.is_aborted for connection in connections])
    nothing = [False, False, False]
    assert aborted == [nothing, [True, True, False], [True, True, False], nothing, nothing, [True, False, False]]


def test_a_flood_of_connections_keeps_others_out_for_a_short_time(folder: Path) -> None:
    """More connections than the process may open files: half of them begin a request, half send no body."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from tests.serve.run import run; run()"
    )
    with process(folder, program=program) as (url, _):
        opened = []
        for number in range(230):
            connection = connect(url)
            opened.append(connection)
            with suppress(OSError):  # beyond the limit, connections are reset, or wait
                whole = request("/v1/certify", b"{", "Content-Length: 20")
                connection.sendall(whole if number % 2 else whole[:20])
        started = time.monotonic()
        answered = False
        while not answered and time.monotonic() - started < LONG:
            with suppress(ServeError), Client(url, retries=0, timeout=2.0) as client:
                answered = client.predict("a").calls > 0
            time.sleep(0.05)
        assert time.monotonic() - started < 8.0  # less than the 10 seconds that each of them has
        for connection in opened:
            connection.close()


def test_as_many_connections_as_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}
    current = [(1024, 4096), (1024, 1024), (resource.RLIM_INFINITY, resource.RLIM_INFINITY), (100, 100)]
    for soft, hard in current:
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=(soft, hard): pair)
        changed: list[Any] = []
        monkeypatch.setattr(resource, "setrlimit", lambda _, pair, to=changed: to.append(pair))
        limits[soft, hard] = most_connections(1024), changed
    assert list(limits.values()) == [(1024, [(1152, 4096)]), (896, [(1024, 1024)]), (1024, []), (1, [(100, 100)])]


def test_a_client_that_does_not_read_is_closed(hasty: str) -> None:
    """More is answered than fits into the buffers of both sides; the server gives up and goes on with others."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = hasty.removeprefix("http://").strip("/").partition(":")
    connection.connect((host, int(port)))
    long = " ".join(f"w{n}" for n in range(1200))
    texts = [f"{long} {n}" for n in range(16)]
    body = json.dumps({"texts": texts, "influence": True}).encode()
    connection.sendall(request("/v1/certify", body, f"Content-Length: {len(body)}") * 8)  # a megabyte and more each
    wait_for(hasty, 'adaptdel_requests_total{code="499",route="/v1/certify"}')
    wait_for(hasty, "adaptdel_requests_in_flight 0.0")
    with Client(hasty) as client:
        assert client.predict("a").calls
    connection.close()


def wait_for(url: str, content: str, path: str = "/metrics") -> None:
    """Wait until an address answers with some content."""
    end = time.monotonic() + LONG
    while True:
        with connect(url) as connection:
            lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            answer = read_all(connection).decode()
        if content in answer:
            return
        assert time.monotonic() < end, answer
        time.sleep(0.02)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/certify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/certify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/certify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
        b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"text": "a"}\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n',
        b"GET /%ff%fe/%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /page/%2e%2e%2fapp.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_hostile_requests_get_an_error_or_are_closed(hasty: str, sent: bytes) -> None:
    with connect(hasty) as connection:
        connection.sendall(sent)
        answer = read_all(connection)
        assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:200]
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert not answer or b"application/problem+json" in answer
    with Client(hasty) as client:
        assert client.predict("a").calls


def test_a_chunked_body_that_is_too_large_is_refused_while_it_is_sent(folder: Path) -> None:
    with process(folder, "--max-body", "100000") as (url, _), connect(url) as connection:
        connection.sendall(request("/v1/certify", b"", "Transfer-Encoding: chunked"))
        chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        sent = 0
        try:
            for _ in range(10_000):
                connection.sendall(chunk)
                sent += len(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 40_000_000
        with Client(url) as client:
            assert client.predict("a").calls


def test_a_port_in_use_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("serve", folder, "--port", port) == 2
    assert f"port {port} is in use on 127.0.0.1: choose another one with --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-model"], "'no-such-model', which does not exist: give the folder of a model"),
        (["{model}", "{model}"], "each model needs a name of its own, got 'model' twice: give NAME=FOLDER"),
        (["{model}", "--host", "256.1.1.1"], "cannot listen on '256.1.1.1'"),
        (["{model}", "--port", "70000"], "port must be a whole number of at least 0 and at most 65535, got 70000"),
        (["{model}", "--max-queue", "0"], "queue must be a whole number of at least 1, got 0"),
        (["{model}", "--report", "{model}"], "must be the folder of a report, such as adaptdel report writes"),
        (["{model}", "--token-file", "no-such-file"], "no-such-file"),
        (["{model}", "--seed", "-1"], "seed must be a whole number of at least 0"),
        (["{model}", "--seed", "1", "--seed-per-request"], "a seed and a new seed for every request"),
        (["a b={model}"], "a model needs a name without spaces and slashes, got 'a b': give NAME=FOLDER"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    folder: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.replace("{model}", str(folder)) for argument in arguments]
    if "--port" not in filled:
        filled += ["--port", "0"]
    assert run("serve", *filled) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_a_missing_extra_is_named(folder: Path) -> None:
    code = f"import sys; sys.modules['fastapi'] = None\nfrom adaptdel.cli import main; main(['serve', {str(folder)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "adaptdel: a server needs fastapi: pip install 'adaptdel[serve]'"
    code = "import sys; sys.modules['fastapi'] = None\nfrom adaptdel.serve import Client, create_app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("a server needs fastapi: pip install 'adaptdel[serve]'")


def test_the_client_needs_no_extra() -> None:
    extras = ["fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client", "httpx2", "flint"]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); from adaptdel.serve import Client; Client()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAPTDEL_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text("secret-token\n")
    assert read_token(None) is None
    assert read_token(file) == "secret-token"
    for content in ("", "\n", "two words", "ümlaut"):
        file.write_text(content)
        with pytest.raises(ValueError, match="must hold a token of letters, digits and signs without spaces"):
            read_token(file)
    monkeypatch.setenv("ADAPTDEL_TOKEN", " from-environment ")
    assert read_token(None) == "from-environment"
    with pytest.raises(ValueError, match="give either --token-file or the variable ADAPTDEL_TOKEN"):
        read_token(file)
    monkeypatch.setenv("ADAPTDEL_TOKEN", "")
    with pytest.raises(ValueError, match="the variable ADAPTDEL_TOKEN: must hold a token"):
        read_token(None)


def test_names_of_folders(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    (tmp_path / "adaptdel+").mkdir()
    texts = (str(odd), f"name={tmp_path}", str(tmp_path / "adaptdel+"))
    assert named_folders(texts, "model") == {
        "a=b": odd, "name": tmp_path, "adaptdel+": tmp_path / "adaptdel+",
    }  # fmt: skip


def test_warnings() -> None:
    local, public = ServeSettings(), ServeSettings(host="0.0.0.0", cors_origins=("*",))
    assert warnings(local, None, None) == []
    assert warnings(public, "x" * 16, None) == ["pages of every origin may call this server"]
    unprotected, _ = warnings(public, None, None)
    assert unprotected == ("anyone who reaches 0.0.0.0 can call this server: set ADAPTDEL_TOKEN or give --token-file")
    assert warnings(local, "short", 1) == [
        "the token has only 5 characters: take at least 16 random ones",
        "--seed is for tests: who knows the seed can search for a text whose votes go wrong",
    ]
