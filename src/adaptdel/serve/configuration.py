"""The settings of a server, with all defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adaptdel.core.checks import check_int, check_real

PORT = 8750
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
WIDE_HOSTS = ("0.0.0.0", "::", "")  # listen on every network


@dataclass(frozen=True)
class ServeSettings:
    """How models are served. The command line takes its defaults from `SERVE`.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 for any free port.
        allowed_hosts: host names that requests may name; empty for the address itself, and any for a public address.
        cors_origins: origins whose pages may call the server; "*" for all.
        log_texts: whether the details of internal errors, which may contain texts, are logged.
        seed_per_request: draw a new secret seed for every request instead of a single one at the start.
        texts: the largest number of texts in a request.
        tokens: the largest number of tokens of a text; with influence, of all texts of a request.
        body_bytes: the largest size of the body of a request.
        votes: the largest number of votes of one kind that a request may ask for.
        deadline_ms: the longest time for a request, also if it names no deadline.
        in_flight: the largest number of requests that are worked on at a time.
        queue: the largest number of texts that wait for a place in the pool of a model.
        connections: the number of connections above which those without a complete request are closed after a second.
        body_seconds: the time in which the headers and the body of a request have to arrive.
        send_seconds: the time that a client may take to read what was sent before more is sent.
        grace_seconds: how long requests in flight may take after the server was told to stop.
        drain_seconds: how long at least new requests are answered with 503 then, before the port is closed.
        step_seconds: the aim for the time of one batch of the base classifier.
        pool_inputs: the largest number of texts that are voted on together. More texts leave each a smaller part of a
            batch, which takes a network over embeddings up to 1.5 times the processor time (`benchmarks/serve.py`).
        request_inputs: of one request, the largest number.
        long_tokens: texts above this number of tokens are long. They take at most half of the places in the pool, so
            that short ones need not wait for them.
        pool_tokens: the largest number of tokens of the long texts that are voted on together.
        verify_queue: the largest number of certificates that wait to be verified.
        verify_work: the largest number of arithmetic steps to verify a certificate, about a microsecond each.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    log_texts: bool = False
    seed_per_request: bool = False
    texts: int = 64
    tokens: int = 20_000
    body_bytes: int = 2**20
    votes: int = 20_000
    deadline_ms: int = 60_000
    in_flight: int = 256
    queue: int = 1024
    connections: int = 1024
    body_seconds: float = 10.0
    send_seconds: float = 30.0
    grace_seconds: float = 30.0
    drain_seconds: float = 0.3
    step_seconds: float = 0.02
    pool_inputs: int = 16
    request_inputs: int = 8
    long_tokens: int = 1000
    pool_tokens: int = 200_000
    verify_queue: int = 16
    verify_work: int = 2_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                check_int(field.name, value, least=0 if field.name == "port" else 1)
            elif field.type == "float":
                accepted = "a number of seconds from 0 to 86400"
                check_real(field.name, value, accepted=accepted, least=0.0, most=86400.0)
        check_int("port", self.port, most=65535)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in LOCAL_HOSTS or self.host.startswith("127.")

    @property
    def receiving_bytes(self) -> int:
        """The largest size of all bodies together that have not arrived completely."""
        return self.body_bytes * max(1, self.in_flight // 4)

    def limits(self) -> dict[str, Any]:
        """What clients have to know."""
        return {name: getattr(self, name) for name in ("texts", "tokens", "body_bytes", "votes", "deadline_ms")}


SERVE = ServeSettings()


def named_folders(texts: Sequence[str], what: str) -> dict[str, Path]:
    """Folders by name, from FOLDER or NAME=FOLDER."""
    folders: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or "/" in name or Path(text).exists():
            name, path = Path(text).resolve().name, text
        if not re.fullmatch(r"[^\s/\\\x00-\x1f\"%?#]{1,100}", name):
            raise ValueError(f"a {what} needs a name without spaces and slashes, got {name!r}: give NAME=FOLDER")
        if name in folders:
            raise ValueError(f"each {what} needs a name of its own, got {name!r} twice: give NAME=FOLDER")
        folders[name] = Path(path)
    return folders
