"""Secrets of a server, read from files or the environment: the token of clients, and a seed that servers share."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from adaptdel.certification.sampling import SECRET_BITS

TOKEN_VARIABLE = "ADAPTDEL_TOKEN"
LEAST_SECRET = 32  # characters of the file of a shared seed


def read_token(file: Path | None) -> str | None:
    """The token of the file or of the environment; None if there is none."""
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
    if not re.fullmatch(r"[\x21-\x7e]+", secret) or len(secret) < LEAST_SECRET:
        raise ValueError(
            f"{file}: must hold at least {LEAST_SECRET} random characters without spaces, "
            "such as openssl rand -hex 32 writes"
        )
    digest = hashlib.sha256(b"adaptdel: seed of the noise\0" + secret.encode()).digest()
    return int.from_bytes(digest) >> (8 * len(digest) - SECRET_BITS)


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: must hold {what} in ASCII") from None
