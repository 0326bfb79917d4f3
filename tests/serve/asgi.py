"""Calls an application in this process, by ASGI, with whatever a client may send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaptdel.serve.problems import PROBLEM_TYPE

Headers = Sequence[tuple[bytes, bytes]]
JSON: Headers = ((b"content-type", b"application/json"),)


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The media type."""
        return self.headers.get("content-type", "").partition(";")[0]

    def values(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    def events(self) -> list[tuple[str, Any]]:
        """The body, which is a stream of events."""
        blocks = [block.split("\n") for block in self.body.decode().split("\n\n") if block and block[0] != ":"]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


class AsgiCaller:
    """Sends requests to an application, one after the other, in an event loop of its own."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.loop = asyncio.new_event_loop()

    def __call__(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        headers: Headers = JSON,
        query: bytes = b"",
        pieces: int = 1,
        leaves: bool = False,
    ) -> Reply | None:
        """Send a request; None if the client left before the response began.

        Args:
            path: the path, decoded as a server does.
            body: the body.
            method: the method.
            headers: beside Host, which is the local one unless it is among them.
            query: what follows the question mark.
            pieces: the number of pieces in which the body arrives.
            leaves: whether the client leaves instead of sending the last piece or waiting for the response.
        """
        return self.loop.run_until_complete(self._call(path, body, method, headers, query, pieces, leaves))

    async def _call(
        self, path: str, body: bytes, method: str, headers: Headers, query: bytes, pieces: int, leaves: bool
    ) -> Reply | None:
        size = max(1, -(-len(body) // pieces))
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        for number, part in enumerate(parts):
            incoming.put_nowait({"type": "http.request", "body": part, "more_body": number + 1 < len(parts)})
        if leaves:
            incoming.put_nowait({"type": "http.disconnect"})
        status, told, content, complete = 0, {}, b"", False

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, told, content, complete
            if message["type"] == "http.response.start":
                assert not status, "a response began twice"
                status = message["status"]
                told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
            else:
                content += message.get("body", b"")
                complete = not message.get("more_body", False)

        named = headers if any(name.lower() == b"host" for name, _ in headers) else [(b"host", b"localhost"), *headers]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"),
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in named],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
        }
        await self.app(scope, incoming.get, send)
        if leaves:
            return None
        assert complete, "the response was not finished"
        return Reply(status, told, content)

    def close(self) -> None:
        """End the event loop."""
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def check_problem(reply: Reply) -> str:
    """The sentence of an error, which must be a problem document."""
    assert reply.kind == PROBLEM_TYPE, reply
    values = reply.values()
    assert set(values) == {"type", "title", "status", "detail"}, values
    assert values["status"] == reply.status
    detail: str = values["detail"]
    assert 0 < len(detail) < 700, detail
    assert "\n" not in detail, detail
    assert "Traceback" not in detail, detail
    return detail
