"""How many emails a filter answers in a second, by the protocol of spamd and by HTTP.

    python -m benchmarks.mail --model FOLDER --data ../shared/data --out out

Emails of SpamAssassin's test set, packed as MIME, go over the loopback interface to one server process: by ``CHECK``
and ``HEADERS`` of the protocol of spamd, a connection each, and as texts to the HTTP routes ``predict`` and
``certify``. All are measured in turns. The result is the server's processor time for an email: it tells how many emails
a second a number of cores can answer, while the rate itself also depends on the callers and on what else the machine
does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from adaptdel.text.mail import mail_text
from benchmarks.real import load
from benchmarks.serve import LOOPBACK, connected

CALLERS = 16


def packed(text: str) -> bytes:
    """An email with the text as its subject and its body."""
    message = EmailMessage()
    subject, _, body = text.partition("\n")
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", subject[:200]
    message.set_content(body)
    return message.as_bytes()


async def ask(port: int, command: str, mail: bytes) -> None:
    """One email by the protocol of spamd."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(f"{command} SPAMC/1.5\r\nContent-length: {len(mail)}\r\n\r\n".encode() + mail)
    answer = await reader.read()
    assert answer.startswith(b"SPAMD/1.1 0 EX_OK"), answer[:200]
    writer.close()


async def measure(server: psutil.Process, number: int, caller: Callable[[list[int]], Awaitable[None]]) -> list[float]:
    """Emails a second, and milliseconds of the server's processor time for each."""
    left = list(range(number))
    started, before = time.perf_counter(), server.cpu_times()
    await asyncio.gather(*(caller(left) for _ in range(CALLERS)))
    elapsed, after = time.perf_counter() - started, server.cpu_times()
    return [number / elapsed, 1000 * (after.user + after.system - before.user - before.system) / number]


async def measure_all(
    server: psutil.Process, port: int, spamd: int, texts: list[str], repeats: int
) -> dict[str, object]:
    """Medians over the repeats, of all ways to ask in turns."""
    mails = [packed(text) for text in texts]
    bodies = [json.dumps({"text": mail_text(mail)}).encode() for mail in mails]

    def by_spamd(command: str) -> Callable[[list[int]], Awaitable[None]]:
        async def call(left: list[int]) -> None:
            while left:
                await ask(spamd, command, mails[left.pop()])

        return call

    def by_http(route: str) -> Callable[[list[int]], Awaitable[None]]:
        async def call(left: list[int]) -> None:
            async with connected(port) as connection:
                while left:
                    assert await connection.post(f"/v1/{route}", bodies[left.pop()]) == 200

        return call

    ways = {f"spamd {command}": by_spamd(command) for command in ("CHECK", "HEADERS")}
    ways |= {f"HTTP {route}": by_http(route) for route in ("predict", "certify")}
    runs: dict[str, list[list[float]]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in sorted(ways, reverse=bool(repeat % 2)):
            runs[name].append(await measure(server, len(mails), ways[name]))
    return {
        name: {
            "per_second": round(statistics.median(run[0] for run in each), 1),
            "cpu_ms": round(statistics.median(run[1] for run in each), 3),
        }
        for name, each in runs.items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a filter that protects a class")
    parser.add_argument("--data", type=Path, required=True, help="folder with spamassassin .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = load(arguments.data, "spamassassin.test", 2000)[0]
    command = [sys.executable, "-m", "adaptdel", "serve", str(arguments.model), "--port", "0", "--spamd", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        port, spamd = (int(re.findall(r":(\d+)", run.stdout.readline())[-1]) for _ in range(2))
        try:
            measured = asyncio.run(measure_all(psutil.Process(run.pid), port, spamd, texts, arguments.repeats))
        finally:
            run.kill()
    words = statistics.mean(len(text.split()) for text in texts)
    result = {"emails": len(texts), "mean_words": round(words, 1), "load": os.getloadavg()[0], **measured}
    print(json.dumps(result, indent=1))
    (arguments.out / "mail.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
