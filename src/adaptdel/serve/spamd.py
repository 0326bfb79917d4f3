"""A filter behind the protocol of SpamAssassin's daemon spamd, which mail servers speak.

A certificate is about the text that `adaptdel.text.mail` extracts, not about MIME.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from adaptdel.serve.answers import proof_words
from adaptdel.serve.scheduler import log_error
from adaptdel.serve.schemas import FilterBody, Problem, internal_error
from adaptdel.serve.service import Service
from adaptdel.text.mail import mail_text

CODES = {400: 76, 429: 75, 500: 70, 503: 75, 504: 79}  # of a `Problem`, as in sysexits.h; 65 of others
_COMMAND = re.compile(rb"(PING|SKIP|CHECK|SYMBOLS|REPORT|REPORT_IFSPAM|HEADERS|PROCESS) SPAMC/1\.([0-9])\s*")
READ_SECONDS = 30.0  # for a request to arrive, and for the client to read the answer
SMALL_MAIL = 2**16  # bytes; larger ones are parsed in a thread, and count for ``queue_bytes``
REQUIRED = 5.0  # the score of a flagged email that nothing is proved of; each edit that it withstands adds 1
_OWN_HEADERS = re.compile(rb"^X-Spam-[^\n]*\n(?:[ \t][^\n]*\n)*", re.M | re.I)  # forged ones


@asynccontextmanager
async def listening(service: Service, opened: socket.socket) -> AsyncIterator[None]:
    """Answer at a socket; in the end, wait for the emails that are worked on."""
    listener = Listener(service)
    server = await asyncio.start_server(listener.connected, sock=opened, limit=2**16)
    try:
        yield
    finally:
        late = []  # clients whose connection only the kernel has accepted
        with suppress(BlockingIOError):
            while True:
                late.append(opened.accept()[0])
        server.close()
        waiting = [asyncio.create_task(listener.connected(*await asyncio.open_connection(sock=each))) for each in late]
        await asyncio.sleep(0.1)  # until those that were accepted a moment ago are among the tasks
        if listener.tasks or waiting:
            await asyncio.wait({*listener.tasks, *waiting}, timeout=service.settings.grace_seconds)


class Listener:
    """Answers one request a connection, by the first model of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.settings = service, service.settings
        self.tasks: dict[Any, int] = {}  # of connections, with the number of bytes that each holds

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a connection."""
        task, started, status = asyncio.current_task(), time.monotonic(), 200
        self.tasks[task] = 0
        try:
            answer = await self._answer(reader)
        except Exception as error:
            if not isinstance(error, Problem):
                log_error("spamd request", error)
            problem = error if isinstance(error, Problem) else internal_error()
            status = problem.status_code
            answer = f"SPAMD/1.1 {CODES.get(status, 65)} {problem.detail}\r\n\r\n".encode()
        with suppress(OSError):
            writer.write(answer)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), READ_SECONDS)
        writer.transport.abort()
        self.service.held_bytes -= self.tasks.pop(task)
        self.service.meters.requests.labels("spamd", str(status)).inc()
        self.service.meters.latency.labels("spamd").observe(time.monotonic() - started)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(READ_SECONDS):
                match = _COMMAND.fullmatch(await reader.readline())
                if match is None:
                    raise Problem(400, "Bad header line: no command that is known, with SPAMC/1.5")
                method, version = match[1].decode(), int(match[2])
                if method in ("PING", "SKIP"):
                    return b"SPAMD/1.5 0 PONG\r\n" if method == "PING" else b""
                raw = await self._read(reader)
        except (OSError, ValueError):  # a TimeoutError is an OSError, a line without an end a ValueError
            raise Problem(400, "the request did not arrive as a whole") from None
        text = mail_text(raw) if len(raw) <= SMALL_MAIL else await asyncio.to_thread(mail_text, raw)
        job = self.service.submit(FilterBody.model_validate({"text": text}))
        try:
            result = json.loads((await job.results())[0])
        finally:
            self.service.finish(job)
        if result["label"] is None:
            raise Problem(504, "the deadline came before the first vote")
        return response(method, version, raw, result, proof_words(job, result))

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """The email of a request; what is too large is read and dropped, so that the client sees the answer."""
        headers, limit = {b"content-length": b"", b"compress": b""}, self.settings.body_bytes
        while (line := await reader.readline()).strip():
            name, _, value = line.partition(b":")
            if (known := name.strip().lower()) in headers:
                headers[known] = value.strip()
        length = headers[b"content-length"]
        if not re.fullmatch(rb"[0-9]{0,18}", length) or headers[b"compress"]:
            raise Problem(400, "Content-length must be a number, and Compress left out")
        wanted, size, parts = int(length) if length else limit + 1, 0, []  # or all until the client stops writing
        if wanted > SMALL_MAIL:
            self.tasks[asyncio.current_task()] = held = min(wanted, limit)
            self.service.held_bytes += held
        is_full = self.service.held_bytes > self.settings.queue_bytes
        while size < wanted and (part := await reader.read(2**16)):
            size += len(part)
            parts += [part] if size <= limit and not is_full else []
        if size > limit:
            raise Problem(413, f"an email may have at most {limit} bytes")
        if is_full:
            raise Problem(429, "too many large emails wait already")
        if length and size < wanted:
            raise Problem(400, f"Content-length is {wanted}, and {size} bytes came")
        return b"".join(parts)[:wanted]


def response(method: str, version: int, raw: bytes, result: dict[str, Any], proof: str) -> bytes:
    """The answer to a command about an email, as SpamAssassin's daemon writes it."""
    flagged, content, symbols = result["flagged"], b"", "none"
    score = REQUIRED + max(0, result["radius"]) if flagged else 0.0
    if flagged:
        symbols = f"ADAPTDEL_{re.sub('[^A-Z0-9]+', '_', str(result['label']).upper())}"
        symbols += ",ADAPTDEL_PADDING" if result["padded_radius"] >= 0 else ""
        for name, proved in (("EDITS", "radius"), ("PADDING_EDITS", "padded_radius"), ("POSITIONS", "positions")):
            symbols += "".join([f",ADAPTDEL_{name}_{step}" for step in (1, 2, 5, 10) if step <= result[proved]][-1:])
    report = f"adaptdel: {result['label']}. {proof if flagged else ''}".strip()
    if method == "SYMBOLS":
        content = (symbols if flagged else "").encode() + (b"\r\n" if version < 3 else b"")
    elif method == "REPORT" or (method == "REPORT_IFSPAM" and flagged):
        content = f"{report}\nSymbols: {symbols}\n".encode()
    elif method in ("PROCESS", "HEADERS"):
        newline = b"\r\n" if b"\r\n" in raw[:1000] else b"\n"
        head, _, rest = raw.partition(2 * newline)
        status = f"{'Yes' if flagged else 'No'}, score={score:.1f} required={REQUIRED} tests={symbols} autolearn=no"
        added = f"X-Spam-Status: {status}\nX-Spam-Report: {report}\n" + ("X-Spam-Flag: YES\n" if flagged else "")
        envelope, given = re.fullmatch(rb"(From [^\n]*\n)?(.*)", head + newline, re.S).groups(b"")  # type: ignore[union-attr]
        content = envelope + added.encode().replace(b"\n", newline) + _OWN_HEADERS.sub(b"", given) + newline
        content += rest if method == "PROCESS" else b""
    length = f"Content-length: {len(content)}\r\n" if version >= 3 or method in ("PROCESS", "HEADERS") else ""
    return f"SPAMD/1.1 0 EX_OK\r\n{length}Spam: {flagged} ; {score:.1f} / {REQUIRED}\r\n\r\n".encode() + content
