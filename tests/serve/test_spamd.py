"""The filter behind the protocol of spamd: commands, errors, and Debian's spamc; and LiteLLM's guardrail route."""

from __future__ import annotations

import asyncio
import re
import runpy
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.certification.scores import Filter
from adaptdel.core.threat import Threat
from adaptdel.serve import spamd
from adaptdel.serve.service import Service
from tests.run_files import make_model, run
from tests.serve.serving import LONG, LOOPBACK, Counter, call, calling, check_problem, exact, model, process, service

SPAM = b"Subject: Re: hello\r\nX-Spam-Status: No, forged\r\n\r\n" + b"awful bad " * 20 + b"\r\n"
HAM = b"Subject: great\r\n\r\ngood great film\r\n"


@cache
def guard() -> ad.AdditiveClassifier:
    """Protects "negative" by the sum and by segments."""
    plain = exact()
    bound, filtered = plain.reach_, ad.AdditiveClassifier(filter=Filter(label=0), progress=False)
    filtered.filter = Filter(label=0, segment=2 * bound, segment_drift=bound // 5)
    filtered.threshold = -bound
    return filtered._with(plain.base_, plain.trade_off_)


def talk(running: Service, *requests: bytes) -> list[bytes]:
    """The answers of a listener to requests, each over a connection."""

    async def ask(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    async def run() -> list[bytes]:
        with socket.create_server((LOOPBACK, 0)) as opened:
            async with calling(running), spamd.listening(running, opened):
                return list(await asyncio.gather(*(ask(opened.getsockname()[1], each) for each in requests)))

    return asyncio.run(run())


def request(command: str, mail: bytes, version: str = "1.5", headers: bytes = b"") -> bytes:
    return f"{command} SPAMC/{version}\r\n".encode() + headers + b"Content-length: %d\r\n\r\n" % len(mail) + mail


def test_the_answers_to_commands_carry_the_proof() -> None:
    check, symbols, report, processed, old, ham, ping, skip = talk(
        service(guard()),
        request("CHECK", SPAM, headers=b"User: someone\r\n"),
        request("SYMBOLS", SPAM),
        request("REPORT", SPAM),
        request("PROCESS", SPAM),
        request("REPORT", SPAM, "1.2"),
        request("SYMBOLS", HAM),
        b"PING SPAMC/1.2\r\n\r\n",
        b"SKIP SPAMC/1.2\r\n\r\n",
    )
    [certificate] = guard().certify(["Re: hello\n" + "awful bad " * 20])
    assert certificate.padded_radius >= 5
    score = 5 + min(10, certificate.radius)
    spam = f"Spam: True ; {score:.1f} / 5.0\r\n".encode()
    assert check == b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\n" + spam + b"\r\n"
    names = symbols.split(b"\r\n\r\n")[1].split(b",")
    assert {b"ADAPTDEL_NEGATIVE", b"ADAPTDEL_PADDING"} < set(names)
    for name, radius in ((b"EDITS", certificate.radius), (b"PADDING_EDITS", certificate.padded_radius)):
        step = max(step for step in (1, 2, 5, 10) if step <= radius)
        assert b"ADAPTDEL_%b_%d" % (name, step) in names
    assert f"any text is inserted at {certificate.positions} positions" in report.decode()
    assert b"\r\nX-Spam-Flag: YES\r\n" in processed
    assert processed.endswith(SPAM.split(b"\r\n\r\n")[1])
    assert b"forged" not in processed
    assert old.startswith(b"SPAMD/1.1 0 EX_OK\r\n" + spam + b"\r\n")  # as Exim reads it
    assert ham == b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\nSpam: False ; 0.0 / 5.0\r\n\r\n"
    assert (ping, skip) == (b"SPAMD/1.5 0 PONG\r\n", b"")


def test_capped_radii_are_those_of_the_certificates() -> None:
    texts = ["awful bad", "awful bad " * 9, "awful " * 5 + "good " * 9 + "bad awful " * 4, "good film", "bad", ""]
    for certificate in guard().certify(texts):
        for threat in (Threat("edit"), Threat("ins"), Threat("edit", padding=True)):
            radius = certificate.radius_for(threat)
            for most in (0, 1, 3, 10):
                assert certificate.evidence.radius_within(certificate.plan, threat, most) == min(most, radius)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 76),
        (b"", 76),
        (b"A" * 100_000, 76),
        (b"TELL SPAMC/1.5\r\n\r\n", 76),
        (b"CHECK SPAMC/1.5\r\nContent-length: -1\r\n\r\n", 76),
        (b"CHECK SPAMC/1.5\r\nCompress: zlib\r\nContent-length: 1\r\n\r\nx", 76),
        (b"CHECK SPAMC/1.5\r\nContent-length: 9\r\n\r\nx", 76),
        (request("CHECK", b"x" * 5000), 65),  # more than body_bytes
        (request("CHECK", b"\r\n" + b"x " * 200), 65),  # more than the tokens
        (b"CHECK SPAMC/1.5\r\n\r\n" + HAM, 0),  # without a length
        (request("CHECK", b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\xff"), 0),
        (request("CHECK", b"\xff\x00" * 50), 0),
    ],
)
def test_bad_requests_and_bad_mime_are_answered(sent: bytes, code: int) -> None:
    running = service(guard(), body_bytes=4000, tokens=100)
    bad, good = talk(running, sent, request("CHECK", HAM))
    assert re.match(rb"SPAMD/1\.1 %d [^\r\n]+\r\n" % code, bad), bad
    assert good.startswith(b"SPAMD/1.1 0 EX_OK")
    assert running.held_bytes == running.in_flight == 0


def test_a_full_server_refuses_for_the_moment() -> None:
    large = b"\r\n" + b"x" * 2**17
    [answer] = talk(service(guard(), queue_bytes=1000), request("CHECK", large))
    assert answer.startswith(b"SPAMD/1.1 75 ")
    slow, _ = protected(Counter())
    [answer] = talk(service(slow, deadline_ms=1), request("CHECK", HAM))
    assert answer.startswith((b"SPAMD/1.1 0 ", b"SPAMD/1.1 79 "))


def protected(counter: Counter) -> tuple[ad.SmoothedClassifier, Counter]:
    """A model with a threshold that protects a class."""
    smoothed = model(counter)
    smoothed.record(protection={"label": "pos", "plan": smoothed.predictions(), "sentence": ""})
    return smoothed, counter


def test_emails_in_flight_are_answered_before_the_end() -> None:
    smoothed, counter = protected(Counter(waits=True, seen=lambda: threading.Timer(0.3, counter.allow).start()))

    async def run() -> bytes:
        running = service(smoothed)
        with socket.create_server((LOOPBACK, 0)) as opened:
            address = opened.getsockname()
            async with calling(running):
                async with spamd.listening(running, opened):
                    reader, writer = await asyncio.open_connection(*address)
                    writer.write(request("CHECK", b"\r\np p p n"))
                    while not counter.calls:
                        await asyncio.sleep(0.01)
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(*address)
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(run()).startswith(b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\nSpam: True ; ")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("spamd") / "guard"
    guard().save(folder)
    with process(folder, "--spamd", 0) as (_, running):
        assert running.stdout is not None
        yield int(running.stdout.readline().rpartition(":")[2])
        running.send_signal(signal.SIGTERM)
        assert running.wait(LONG) == 0


@pytest.mark.skipif(shutil.which("spamc") is None, reason="spamc is not installed: apt-get install spamc")
@pytest.mark.parametrize(
    ("option", "status", "expected"),
    [
        (["-c"], 1, rb"15\.0/5\.0\n"),
        (["-y"], 0, rb"ADAPTDEL_NEGATIVE,ADAPTDEL_PADDING,.*"),
        (["-R"], 0, rb"15\.0/5\.0\nadaptdel: negative\. The label stays .*"),
        (["-K"], 0, rb"SPAMD/1\.5 0.*"),
        (["--headers"], 0, rb"X-Spam-Status: Yes, .*awful bad \r\n"),
        ([], 0, rb"X-Spam-Status: Yes, .*awful bad \r\n"),
    ],
)
def test_spamc_understands_the_answers(port: int, option: list[str], status: int, expected: bytes) -> None:
    command = ["spamc", "-x", "-d", LOOPBACK, "-p", str(port), *option]
    answer = subprocess.run(command, input=SPAM, capture_output=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (status, b"")
    assert re.fullmatch(expected, answer.stdout, re.DOTALL), answer.stdout


def test_a_model_that_protects_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model(tmp_path / "model", labels=("neg", "pos"))
    assert run("serve", folder, "--port", 0, "--spamd", 0) == 2
    assert "train a filter with two classes by adaptdel train --protect LABEL" in capsys.readouterr().err


def test_the_guardrail_route_blocks_what_is_flagged() -> None:
    path = "/v1/beta/litellm_basic_guardrail_api"
    body: dict[str, Any] = {"input_type": "request", "request_data": {}, "images": None}
    ask: Callable[..., Any] = lambda *texts: lambda c: c.post(path, {**body, "texts": list(texts)})  # noqa: E731
    passed, blocked, nothing, long = call(
        service(guard(), tokens=100), ask("good film"), ask("good film", "awful bad " * 20), ask(), ask("a", "b " * 200)
    )
    assert (passed.json(), nothing.json()) == ({"action": "NONE"}, {"action": "NONE"})
    values = blocked.json()
    assert (values["action"], values["blocked_reason"]) == ("BLOCKED", "The text was classified as negative.")
    assert values["proof"].startswith("The label stays the same even if ")
    check_problem(long, 422, "a text has no answer: the text has 200 tokens")
    [unprotected] = call(service(model()), ask("good film"))
    check_problem(unprotected, 422, "the model 'm0' protects no class: train a filter")


def test_the_scanner_for_llm_guard_refuses_what_is_flagged(tmp_path: Path) -> None:
    guard().save(tmp_path / "guard")
    example = Path(__file__).parents[2] / "examples" / "llm_guard_scanner.py"
    scanner = runpy.run_path(str(example))["CertifiedFilter"](str(tmp_path / "guard"))
    assert scanner.scan("good film") == ("good film", True, 0.0)
    assert scanner.scan("awful bad " * 20)[1:] == (False, 1.0)
