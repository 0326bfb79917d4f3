"""Errors as RFC 9457 problem documents of one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

PROBLEM_TYPE = "application/problem+json"
LONGEST_DETAIL = 600  # characters
CLOSE = {"Connection": "close"}  # a header: what is left of the request is not read


def printable(text: str) -> str:
    r"""A message as a single line of bounded length, whatever a client put into it.

    >>> printable("a field\n\ud800")
    'a field\\n\\ud800'
    """
    if len(text) > LONGEST_DETAIL:
        text = text[: LONGEST_DETAIL - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Problem(Exception):
    """An error that a client is told.

    Attributes:
        status: the HTTP status.
        detail: one sentence that says what is wrong and what to do; what a client sent is escaped and shortened in it.
        headers: further headers of the response.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = int(status), printable(detail), dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The problem document."""
        title = HTTPStatus(self.status).phrase
        return {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}

    def body(self) -> bytes:
        """The problem document as JSON."""
        return json.dumps(self.document()).encode()


def too_many(detail: str, seconds: int = 1, *, close: bool = False) -> Problem:
    """The client may try again after some seconds; with ``close``, over another connection."""
    return Problem(429, detail, {"Retry-After": str(seconds), **(CLOSE if close else {})})


def shutting_down() -> Problem:
    """The server was told to stop."""
    return Problem(
        503, "the server is shutting down: send the request again to another server or later", {"Retry-After": "5"}
    )


def internal_error() -> Problem:
    """A fault of the server, which says nothing about it."""
    return Problem(500, "the server failed on this request: the error is in its log")
