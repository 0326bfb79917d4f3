"""What stands between clients and the application: limits, authentication, headers, the log of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from adaptdel.serve.configuration import LOCAL_HOSTS
from adaptdel.serve.scheduler import LOG, log_error
from adaptdel.serve.schemas import CLOSE, PROBLEM_TYPE, Problem, internal_error, shutting_down, too_many
from adaptdel.serve.service import Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CLOSED_POLICY = b"default-src 'none'; frame-ancestors 'none'"  # of responses that are not pages
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": CLOSED_POLICY,
}
OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # need no token
OPEN_FOLDER = "/page/"
PROBES = ("/healthz", "/readyz")  # called by address, whatever the host name of the server is
SMALL_BODY = 2**12  # bytes of a request that needs none
MOST_DIGITS = 15  # of a length; more are too large in any case
CLIENT_LEFT = 499  # in the log and the measurements, as in nginx


class Gate:
    """ASGI middleware that every request passes.

    A body is read as a whole, up to the limit and the timeout, before the application sees the request and before it is
    counted as in flight: clients that send slowly must not take the places of others. When the client leaves, the
    application is cancelled.
    """

    def __init__(self, app: Application, service: Service) -> None:
        self.app, self.service, self.settings = app, service, service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        response = _Response(send)
        code = CLIENT_LEFT
        try:
            code = await self._handle(scope, receive, response)
        finally:
            seconds = time.monotonic() - started
            route = getattr(scope.get("route"), "path", "other")
            self.service.meters.request(route, code, seconds)
            LOG.info("%s %s %d %.3f s", scope["method"], route, code, seconds)

    async def _handle(self, scope: Scope, receive: Receive, response: _Response) -> int:
        """Answer, and return the status."""
        counted = False
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._check_host(scope, headers)
            self._check_token(scope, headers)
            self._check_load(scope)
            body = await self._body(scope, headers, receive)
            if body is None:
                return CLIENT_LEFT
            counted = self._count(scope)
            if not await self._run(scope, body, receive, response):
                return CLIENT_LEFT
        except Problem as problem:
            await response.problem(problem)
        except Exception as error:
            log_error(f"{scope['method']} request", error, texts=self.settings.log_texts)
            await response.problem(internal_error())
        finally:
            self.service.in_flight -= counted
        return response.status or CLIENT_LEFT

    def _check_host(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """A page of another site that resolves to this address must not call the server."""
        if scope["path"] in PROBES:
            return
        allowed = self.settings.allowed_hosts or (LOCAL_HOSTS if self.settings.is_local else ())
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if allowed and name.lower() not in {known.lower() for known in (*allowed, self.settings.host)}:
            raise Problem(421, f"this server does not answer for the host {name!r:.80}: it answers for {allowed[0]!r}")

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in OPEN or path.startswith(OPEN_FOLDER):
            return
        if not self.service.authorized(headers.get(b"authorization", b"").decode("latin-1")):
            raise Problem(
                401,
                "a token is needed: send the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="adaptdel"'},
            )

    def _check_load(self, scope: Scope) -> None:
        """Refuse a request that takes work if there are too many."""
        if scope["method"] == "POST" and self.service.in_flight >= self.settings.in_flight:
            raise too_many(f"{self.service.in_flight} requests are in flight already: send the request again later")

    def _count(self, scope: Scope) -> bool:
        """Count a request that takes work; refuse it if there are too many by now, or if the server is to stop."""
        if scope["method"] != "POST":
            return False
        if self.service.closing:
            raise shutting_down()
        self._check_load(scope)
        self.service.in_flight += 1
        return True

    async def _body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None if the client left."""
        if b"transfer-encoding" in headers and b"content-length" in headers:  # two requests to some proxies
            raise Problem(400, "the body has two lengths: send either Content-Length or Transfer-Encoding", CLOSE)
        limit = self.settings.body_bytes
        if scope["method"] != "POST":  # not counted, and without a token on open addresses
            limit = min(limit, SMALL_BODY)
        too_large = Problem(413, f"the body must have at most {limit} bytes: send less in a request", CLOSE)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > MOST_DIGITS or int(length) > limit):
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            seconds = self.settings.body_seconds
            raise Problem(408, f"the body did not arrive within {seconds:g} seconds: send it faster", CLOSE) from None

    async def _run(self, scope: Scope, body: bytes, receive: Receive, response: _Response) -> bool:
        """Run the application; if the client leaves first, cancel it and return False."""
        left = asyncio.Event()
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        running = asyncio.ensure_future(self.app(scope, replay, response))
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
                return True
            return False
        finally:
            for task in (running, watching):
                task.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)


class _Response:
    """Sends a response with the headers that every response has.

    Attributes:
        status: the status of the response; 0 before it begins.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            present = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in HEADERS.items() if name not in present]
            message = {**message, "headers": headers}
        await self._send(message)

    async def problem(self, problem: Problem) -> None:
        """Send an error, unless a response has begun."""
        if self.status:
            return
        body = problem.body()
        headers = {"content-type": PROBLEM_TYPE, "content-length": str(len(body)), **problem.headers}
        encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        with suppress(OSError):  # the client left
            await self({"type": "http.response.start", "status": problem.status, "headers": encoded})
            await self({"type": "http.response.body", "body": body})
