"""Run the application on uvicorn: the socket, the signals, the end."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from adaptdel.serve.app import create_app
from adaptdel.serve.problems import CLOSE, PROBLEM_TYPE, Problem
from adaptdel.serve.security import HEADERS, MOST_HEADER_BYTES
from adaptdel.serve.service import Service

SWITCH_SECONDS = 0.001  # between threads: the event loop must not wait long for the threads of models
FINAL_SECONDS = 5  # for responses to be sent after the last request was answered or refused
KEEP_ALIVE_SECONDS = 5
BACKLOG = 1024
CROWDED_SECONDS = 1.0  # a connection without a complete request is closed after this time if there are too many
NOT_HTTP = Problem(400, "this is no valid HTTP request: check its first line, its headers and the length of its body")
SPARE_FILES = 128  # that a process may open beside its connections


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address; OSError with one sentence if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio sets no TCP_NODELAY
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise _unusable(host, port, error) from None
    return opened


def _unusable(host: str, port: int, error: OSError) -> OSError:
    if error.errno == errno.EADDRINUSE:
        return OSError(f"port {port} is in use on {host}: choose another one with --port")
    return OSError(f"cannot listen on {host!r} port {port}: {error.strerror or error}: choose another --host or --port")


@dataclass(frozen=True)
class _Idle:
    """A connection without a complete request.

    Attributes:
        since: by the monotonic clock.
        cycle: its last request.
        unsent: what the client has not taken yet, in bytes.
        receives: whether the headers of a request are here and its body is not.
    """

    since: float
    cycle: Any
    unsent: int
    receives: bool


class Connection(H11Protocol):
    """A connection. It is closed if its client breaks HTTP at a time at which it cannot be told so."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. To the application, the client has left: it must not answer as well."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = NOT_HTTP.body()
        headers = {"Content-Type": PROBLEM_TYPE, "Content-Length": str(len(body)), **HEADERS, **CLOSE}
        response = h11.Response(status_code=NOT_HTTP.status, headers=list(headers.items()), reason=b"Bad Request")
        with suppress(h11.LocalProtocolError):  # the response began already, or may have no body, as for HEAD
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Stops in order: new requests are refused with 503, those in flight are finished or, after a time, refused."""

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], None], connections: int | None = None
    ) -> None:
        super().__init__(config)
        self.service, self._ready = service, ready
        self._crowd = service.settings.connections if connections is None else connections
        self._closing_since = 0.0
        self._idle: dict[Any, _Idle] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT; a second SIGINT ends at once."""
        if self._closing_since and sig == signal.SIGINT:
            self.should_exit = self.force_exit = True
            return
        self._closing_since = self._closing_since or time.monotonic()
        self.service.close()

    async def on_tick(self, counter: int) -> bool:
        """Called every tenth of a second: whether to close the port."""
        self._close_idle()
        if self._closing_since:
            waited = time.monotonic() - self._closing_since
            settings = self.service.settings
            if waited >= settings.drain_seconds and not self._is_busy():
                self.should_exit = True
            elif waited >= settings.grace_seconds:
                await asyncio.to_thread(self.service.stop)  # refuses what is left
                await self._sent()
                self.should_exit = True
        return await super().on_tick(counter)

    def _close_idle(self) -> None:
        """Close connections on which no request was in work for too long, or whose last response is not read.

        The time begins anew with every request, and whenever the client has taken a part of the response. The time for
        a body is limited by the application, which can say so, unless there are too many connections.
        """
        settings, now = self.service.settings, time.monotonic()
        connections = self.server_state.connections
        idle: dict[Any, _Idle] = {}
        for connection in connections:
            receives = _receives(connection)
            if connection.transport.is_closing() or receives or _has_no_request(connection):
                unsent = connection.transport.get_write_buffer_size()
                state = _Idle(now, getattr(connection, "cycle", None), unsent, receives)
                earlier = self._idle.get(connection, state)
                is_same = earlier.cycle is state.cycle and earlier.unsent <= state.unsent
                idle[connection] = earlier if is_same else state
        self._idle = idle
        is_crowded = len(connections) > self._crowd
        limit = CROWDED_SECONDS if is_crowded else settings.body_seconds
        for connection, state in idle.items():
            if now - state.since > limit and (is_crowded or not state.receives):
                connection.transport.abort()

    def _is_busy(self) -> bool:
        return self.service.in_flight > 0 or self.service.receiving > 0

    async def _sent(self) -> None:
        until = time.monotonic() + FINAL_SECONDS
        while self._is_busy() and time.monotonic() < until:
            await asyncio.sleep(0.02)


def _has_no_request(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete


def _receives(connection: Any) -> bool:
    """Whether the body of a request is still to come."""
    cycle = getattr(connection, "cycle", None)
    return cycle is not None and getattr(cycle, "more_body", False) and not cycle.response_complete


def most_connections(wanted: int) -> int:
    """How many connections the process may have, as many as wanted if possible: each is an open file.

    Where all files are open, no connection is accepted any more, not even to close others.
    """
    try:
        import resource
    except ModuleNotFoundError:  # not on Unix
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        return max(1, min(wanted, soft - SPARE_FILES))
    return wanted


def serve(service: Service, opened: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal comes; ``ready`` is called when requests are accepted."""
    settings = service.settings
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        opened.listen(BACKLOG)
    except OSError as error:
        raise _unusable(settings.host, settings.port, error) from None
    config = uvicorn.Config(
        create_app(service),
        http=Connection,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FINAL_SECONDS,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    Server(config, service, ready, most_connections(settings.connections)).run(sockets=[opened])
