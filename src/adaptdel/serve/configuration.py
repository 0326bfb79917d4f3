"""The settings of a server, the names of its models, and its secrets: a token, and a seed that servers share."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adaptdel.certification.sampling import SECRET_BITS
from adaptdel.core.checks import check_int, check_real

PORT = 8750
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
TOKEN_VARIABLE = "ADAPTDEL_TOKEN"
SHORTEST_SECRET = 32  # characters of the file of a shared seed


@dataclass(frozen=True)
class ServeSettings:
    """How models are served. The command line takes its defaults from `SERVE`.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 for any free port.
        allowed_hosts: host names that requests may name; empty for the address itself, and any for a public address.
        seed_per_request: draw a new secret seed for every request instead of a single one at the start.
        texts: the largest number of texts in a request.
        tokens: the largest number of tokens of a text; with influence, of all texts of a request.
        body_bytes: the largest size of the body of a request.
        votes: the largest number of votes of one kind that a request may ask for.
        deadline_ms: the longest time for a request, also if it names no deadline.
        queue: the largest number of texts that wait for a place in the pool of a model.
        queue_bytes: the largest size of all bodies of more than 64 KiB that are read, wait or are worked on.
        batch_tokens: the largest number of copies times tokens in a batch of the base classifier, unless a text has
            more. Deadlines are noticed between batches.
        pool_inputs: the largest number of texts that are voted on together.
        request_inputs: of one request, the largest number.
        grace_seconds: how long requests in flight may take after the server was told to stop.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    allowed_hosts: tuple[str, ...] = ()
    seed_per_request: bool = False
    texts: int = 64
    tokens: int = 20_000
    body_bytes: int = 2**20
    votes: int = 20_000
    deadline_ms: int = 60_000
    queue: int = 1024
    queue_bytes: int = 2**26
    batch_tokens: int = 100_000
    pool_inputs: int = 16
    request_inputs: int = 8
    grace_seconds: float = 30.0

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

    def limits(self) -> dict[str, Any]:
        """What clients have to know."""
        return {name: getattr(self, name) for name in ("texts", "tokens", "body_bytes", "votes", "deadline_ms")}


SERVE = ServeSettings()


def named_folder(text: str) -> tuple[str, Path]:
    """The name of a model and its folder, from FOLDER or NAME=FOLDER."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        name, path = Path(text).resolve().name, text
    if not re.fullmatch(r"[^\s/\\\x00-\x1f\"%?#]{1,100}", name):
        raise ValueError(f"a model needs a name without spaces and slashes, got {name!r}: give NAME=FOLDER")
    return name, Path(path)


def read_token(file: Path | None) -> str | None:
    """The token of clients from the file or the environment; None if there is none."""
    variable = os.environ.get(TOKEN_VARIABLE)
    if file is None:
        source, text = f"the variable {TOKEN_VARIABLE}", variable
    elif variable is not None:
        raise ValueError(f"give either --token-file or the variable {TOKEN_VARIABLE}")
    else:
        source, text = str(file), _read(file, "a token")
    if text is None:
        return None
    token = text.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(f"{source}: must hold a token of letters, digits and signs without spaces")
    return token


def read_shared_seed(file: Path) -> int:
    """The seed of servers that have to give the same text the same answer, derived from a secret in a file."""
    secret = _read(file, "a secret").strip()
    if not re.fullmatch(r"[\x21-\x7e]+", secret) or len(secret) < SHORTEST_SECRET:
        raise ValueError(
            f"{file}: must hold at least {SHORTEST_SECRET} random characters without spaces, "
            "such as openssl rand -hex 32 writes"
        )
    digest = hashlib.sha256(b"adaptdel: seed of the noise\0" + secret.encode()).digest()
    return int.from_bytes(digest) >> (8 * len(digest) - SECRET_BITS)


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: must hold {what} in ASCII") from None
