"""What stands between clients and the application: authentication, limits, headers, the log of requests."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from adaptdel.serve.configuration import LOCAL_HOSTS
from adaptdel.serve.scheduler import LOG, log_error
from adaptdel.serve.schemas import Problem, internal_error
from adaptdel.serve.service import Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",  # of responses that are not pages
}
OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # need no token
PAGES = "/page/"  # the folder of the page, also open
PROBES = ("/healthz", "/readyz")  # called by address, whatever the host name of the server is
ONCE = (b"host", b"authorization")  # with two of them, a proxy might read the other one
SMALL_BODY = 2**16  # bytes; slow or many large bodies do not keep these out
RETRY = {"Retry-After": "1"}
CLOSE = {"Connection": "close"}  # a header: what is left of the request is not read


class Gate:
    """ASGI middleware that every request passes."""

    def __init__(self, app: Application, service: Service) -> None:
        self.app, self.service, self.settings = app, service, service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, is_complete, has_left = time.monotonic(), 0, False, False
        scope["held"] = 0
        path = scope["path"].removeprefix(scope.get("root_path", ""))

        async def respond(message: Message) -> None:
            """Send a part of the response, with the headers that every response has."""
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                policy = {b"content-security-policy": PAGE_POLICY} if path == "/" or path.startswith(PAGES) else {}
                present = dict(message.get("headers", []))
                message = {**message, "headers": [*(HEADERS | policy | present).items()]}
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body")

        async def received() -> Message:
            """A part of the request, or the news that the client left."""
            nonlocal has_left
            message = await receive()
            has_left |= message["type"] == "http.disconnect" and not is_complete
            return message

        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            for name in ONCE:
                if sum(given.lower() == name for given, _ in scope["headers"]) > 1:
                    raise Problem(400, f"the header {name.decode()} is there twice: send it once", CLOSE)
            self._check_host(path, headers)
            self._check_token(path, headers)
            await self.app(scope, self._limited(scope, headers, received), respond)
        except Problem as problem:
            await problem.response()(scope, receive, respond)
        except Exception as error:
            log_error(f"{scope['method']} request", error)
            if not status:
                await internal_error().response()(scope, receive, respond)
        finally:
            if "job" in scope:
                self.service.finish(scope["job"])
            self.service.held_bytes -= scope["held"]
            seconds, code = time.monotonic() - started, 499 if has_left or not status else status  # as in nginx
            route = getattr(scope.get("route"), "path", "other")
            self.service.meters.requests.labels(route, str(code)).inc()
            self.service.meters.latency.labels(route).observe(seconds)
            LOG.info("%s %s %d %.3f s", scope["method"], route, code, seconds)

    def _check_host(self, path: str, headers: dict[bytes, bytes]) -> None:
        """A page of another site that resolves to this address must not call the server."""
        if path in PROBES:
            return
        allowed = self.settings.allowed_hosts or (LOCAL_HOSTS if self.settings.is_local else ())
        host = headers.get(b"host", b"").decode("latin-1")
        parts = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::[0-9]*)?", host)
        name = host if parts is None else parts[1] or parts[2]
        if allowed and name.lower() not in {known.lower() for known in (*allowed, self.settings.host)}:
            raise Problem(421, f"this server does not answer for the host {name!r:.80}: it answers for {allowed[0]!r}")

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if path in OPEN or path.startswith(PAGES):
            return
        if not self.service.authorized(headers.get(b"authorization", b"").decode("latin-1")):
            raise Problem(
                401,
                "a token is needed: send the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="adaptdel"'},
            )

    def _limited(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """What the application reads the body with; a `Problem` as soon as it is too large, or all bodies together.

        A large body that has no room is read to its end and dropped, so that the client sees the answer.
        """
        if b"transfer-encoding" in headers and b"content-length" in headers:  # two requests to some proxies
            raise Problem(400, "the body has two lengths: send either Content-Length or Transfer-Encoding", CLOSE)
        limit = self.settings.body_bytes
        too_large = Problem(413, f"the body must have at most {limit} bytes: send less in a request", CLOSE)
        length, size = headers.get(b"content-length", b"0"), 0
        if length.isdigit() and (len(length) > len(str(limit)) or int(length) > limit):
            raise too_large
        declared = int(length) if length.isdigit() else 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise too_large
            held = max(size, declared)  # all of it from the start, or many could begin and none end
            if held > SMALL_BODY:
                self.service.held_bytes += held - scope["held"]
                scope["held"] = held
                if self.service.held_bytes > self.settings.queue_bytes:
                    while message.get("more_body"):
                        message = await receive()
                    raise Problem(429, "too many large requests wait already: send it again later", RETRY)
            return message

        return limited
