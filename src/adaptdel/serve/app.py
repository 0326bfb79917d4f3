"""The application: what every request passes, routes, errors; and the process that serves it."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import math
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from threadpoolctl import threadpool_limits

from adaptdel import __version__
from adaptdel.files import parse
from adaptdel.serve import schemas
from adaptdel.serve.answers import Job, proof_words
from adaptdel.serve.scheduler import LOG, log_error
from adaptdel.serve.schemas import PROBLEM_TYPE, Problem, internal_error
from adaptdel.serve.service import Service
from adaptdel.serve.spamd import listening
from adaptdel.settings import LOCAL_HOSTS

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

PAGE = Path(__file__).parent / "page"
MOST_HEADER_BYTES = 2**15
SWITCH_SECONDS = 0.001  # between threads: the event loop must not wait long for the threads of models
FINAL_SECONDS = 5  # for responses to be sent after the last request was answered or refused


class _StrictRequest(Request):
    """A request whose JSON is parsed strictly.

    FastAPI keeps what `body` and `json` return until the response is sent: a byte, and a dict that `_submit` empties.
    """

    async def body(self) -> bytes:
        self._content = await super().body()
        self._body = self._content[:1]
        return self._body

    async def json(self) -> Any:
        content, self._content = self._content, b""
        try:
            values = self.scope["values"] = parse(content)
        except ValueError as error:
            raise HTTPException(400, f"the body must be JSON: {error}") from None
        return values


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle


_PROBLEM = {"content": {PROBLEM_TYPE: {"schema": schemas.PROBLEM}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {  # the documentation of errors (RFC 9457)
    422: {"description": "A field is missing, unknown or out of range, or a text cannot be certified.", **_PROBLEM},
    429: {"description": "Too many texts wait: try again after Retry-After seconds.", **_PROBLEM},
    "default": {"description": "Another error; `detail` is one sentence.", **_PROBLEM},
}


def create_app(service: Service, spamd: socket.socket | None = None) -> FastAPI:
    """The application for a service. Its threads run from the start of the application to its end.

    With ``spamd``, a socket, its filter also answers mail servers there.

    Meanwhile numpy multiplies matrices in one thread: those of votes are small, and threads that wait for each other
    only take processor time. Torch has threads of its own.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with threadpool_limits(1, user_api="blas"):
            service.start()
            try:
                async with nullcontext() if spamd is None else listening(service, spamd):
                    yield
            finally:
                await to_thread.run_sync(service.stop)

    app = FastAPI(
        title="adaptdel",
        version=__version__,
        summary="Predictions of smoothed classifiers, with certificates that no attacker within a radius changes them.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.include_router(_work_routes(service))
    app.include_router(_other_routes(app, service))
    app.mount(PAGES.rstrip("/"), StaticFiles(directory=PAGE))
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(Gate, service=service)
    return app


def _work_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=_StrictRoute, responses=PROBLEMS)

    @router.post(
        "/certify",
        responses={
            200: {
                "model": schemas.CertifyResponse,
                "content": {"text/event-stream": {"schema": schemas.STREAM_EVENT}},
                "description": "Certificates; with `stream`, events `votes`, `look`, `result`, `failed`, `done`.",
            }
        },
    )
    async def certify(request: Request, body: schemas.CertifyBody) -> Response:
        """Certify one text or several."""
        job = _submit(service, request, body)
        if body.stream:
            unbuffered = {"X-Accel-Buffering": "no"}  # by proxies
            return StreamingResponse(_events(job), media_type="text/event-stream", headers=unbuffered)
        return await _results(request, job)

    @router.post("/predict", responses={200: {"model": schemas.PredictResponse}})
    async def predict(request: Request, body: schemas.PredictBody) -> Response:
        """Classify one text or several, without certificates: faster."""
        job = _submit(service, request, body)
        return await _results(request, job)

    @router.post("/beta/litellm_basic_guardrail_api")
    async def guardrail(request: Request, body: schemas.GuardrailBody) -> Response:
        """LiteLLM's generic guardrail API: ``action`` is BLOCKED if the first model flags a text."""
        if not body.texts:
            return _json({"action": "NONE"})
        job = _submit(service, request, schemas.FilterBody.model_validate({"texts": body.texts}))
        results = [json.loads(result) for result in await job.results()]
        for result in results:
            if result.get("flagged"):
                reason = f"The text was classified as {result['label']}."  # users see it
                return _json({"action": "BLOCKED", "blocked_reason": reason, "proof": proof_words(job, result)})
        for result in results:
            if result.get("label") is None:  # not 503, at which a gateway may let the text pass
                raise Problem(422, f"a text has no answer: {result.get('error', 'the deadline came first')}")
        return _json({"action": "NONE"})

    return router


def _other_routes(app: FastAPI, service: Service) -> APIRouter:
    router = APIRouter(responses={"default": PROBLEMS["default"]})
    document = cache(lambda: _json(app.openapi()))

    @router.get("/", response_class=FileResponse)
    async def page() -> Response:
        """The page on which people try a model."""
        return FileResponse(PAGE / "index.html")

    @router.get("/openapi.json")
    async def openapi() -> Response:
        """The OpenAPI document."""
        return document()

    @router.get("/v1/models")
    async def models() -> Response:
        """The models that are served, with their settings and examples, and the limits of requests."""
        return _json(service.info())

    @router.get("/healthz")
    async def healthz() -> Response:
        """Whether the process answers."""
        return _json({"status": "ok"})

    @router.get("/readyz")
    async def readyz() -> Response:
        """Whether requests are accepted."""
        reason = service.unready()
        if reason is not None:
            raise Problem(503, reason)
        return _json({"status": "ready"})

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Measurements for Prometheus."""
        return Response(service.meters.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _submit(service: Service, request: Request, body: schemas.TextsBody) -> Job:
    """The job of a request, which the gate finishes."""
    request.scope["values"].clear()
    request.scope["job"] = job = service.submit(body)
    return job


async def _results(request: Request, job: Job) -> Response:
    """The results in JSON. If the client leaves before, the votes stop."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watching = asyncio.create_task(watch())
    try:
        content = b'{"model": %b, "results": [%b]}' % (json.dumps(job.model).encode(), b", ".join(await job.results()))
        return Response(content, media_type="application/json")
    finally:
        watching.cancel()


async def _events(job: Job) -> AsyncIterator[bytes]:
    """Server-sent events of a request."""
    async for name, value in job.messages():
        if name == "failed":
            index, problem = value
            value = {"index": index, "error": problem.detail, "status": problem.status_code}
        data = value[1] if name == "result" else json.dumps(value).encode()
        yield b"event: %b\ndata: %b\n\n" % (name.encode(), data)
    yield b"event: done\ndata: {}\n\n"


def _json(value: Any) -> Response:
    """JSON in ASCII, so that texts with half a surrogate pair can be written."""
    return Response(json.dumps(value).encode(), media_type="application/json")


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return _of_validation(error, request).response()
    assert isinstance(error, HTTPException)
    return (error if isinstance(error, Problem) else _of_http(request, error)).response()


def _of_http(request: Request, error: HTTPException) -> Problem:
    path = request.scope["path"]  # the address as a whole may not be ASCII
    if error.status_code == 404:
        return Problem(404, f"there is nothing at {path!r:.80}: /openapi.json lists the addresses")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Problem(405, f"{path!r:.80} does not accept {request.method:.20}: use {allowed}", error.headers)
    return Problem(error.status_code, str(error.detail) or "the request cannot be answered", error.headers)


def _of_validation(error: RequestValidationError, request: Request) -> Problem:
    """The first error as one sentence."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        return Problem(415, "the body must be JSON with the header Content-Type: application/json")
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    has_text = not isinstance(error.body, dict) or {"text", "texts"} & error.body.keys()
    if first["type"] == "extra_forbidden" and not has_text:
        return Problem(422, f"text: missing; {place[:60]!r} is not a field")
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = first.get("input")
    shown = (
        "" if isinstance(given, (dict, list)) or first["type"] in ("missing", "value_error") else f", got {given!r:.60}"
    )
    return Problem(422, f"{place or 'the body'}: {message}{shown}")


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


class Server(uvicorn.Server):
    """Ends in order: requests in flight are finished or, after a time, refused with 503."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT. The signal is not raised again at the end, so that the exit status is 0."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self.service.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests in flight, and refuse what is left of them in the end."""
        loop = asyncio.get_running_loop()
        refusal = loop.call_later(
            self.service.settings.grace_seconds, lambda: loop.run_in_executor(None, self.service.stop)
        )
        await super().shutdown(sockets)
        refusal.cancel()


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket at an address; OSError with one sentence if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio sets no TCP_NODELAY
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} is in use on {host}: choose another one with {option}") from None
        reason = error.strerror or error
        raise OSError(f"cannot listen on {host!r} port {port}: {reason}: choose another --host or {option}") from None
    return opened


def serve(service: Service, opened: socket.socket, spamd: socket.socket | None = None) -> None:
    """Serve at sockets, that of HTTP and perhaps one for mail servers, until a signal comes."""
    sys.setswitchinterval(SWITCH_SECONDS)
    config = uvicorn.Config(
        create_app(service, spamd),
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(service.settings.grace_seconds) + FINAL_SECONDS,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    gc.freeze()  # the models: to look through them, the collector would stop the event loop for 150 ms at a time
    Server(config, service).run(sockets=[opened])
