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
from dataclasses import dataclass
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from adaptdel.serve.app import create_app
from adaptdel.serve.service import Service

SWITCH_SECONDS = 0.001  # between threads: the event loop must not wait long for the threads of models
FINAL_SECONDS = 5  # for responses to be sent after the last request was answered or refused
KEEP_ALIVE_SECONDS = 5
MOST_HEADER_BYTES = 2**15
BACKLOG = 1024
CROWDED_SECONDS = 1.0  # an idle connection is closed after this time if there are too many


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
    """A connection without a request in work: since when, its last request, and what the client has not taken yet."""

    since: float
    cycle: Any
    unsent: int


class Connection(H11Protocol):
    """A connection. It is closed if its client breaks HTTP at a time at which it cannot be told so."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. To the application, the client has left: it must not answer as well."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the response began already, or may have no body, as for HEAD
            self.transport.close()


class Server(uvicorn.Server):
    """Stops in order: new requests are refused with 503, those in flight are finished or, after a time, refused."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.service, self._ready = service, ready
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
            if waited >= settings.drain_seconds and not self.service.in_flight:
                self.should_exit = True
            elif waited >= settings.grace_seconds:
                await asyncio.to_thread(self.service.stop)  # refuses what is left
                await self._sent()
                self.should_exit = True
        return await super().on_tick(counter)

    def _close_idle(self) -> None:
        """Close connections on which no request was in work for too long, or whose last response is not read.

        The time begins anew with every request, and whenever the client has taken a part of the response.
        """
        settings, now = self.service.settings, time.monotonic()
        connections = self.server_state.connections
        idle: dict[Any, _Idle] = {}
        for connection in connections:
            if connection.transport.is_closing() or _has_no_request(connection):
                state = _Idle(now, getattr(connection, "cycle", None), connection.transport.get_write_buffer_size())
                earlier = self._idle.get(connection, state)
                is_same = earlier.cycle is state.cycle and earlier.unsent <= state.unsent
                idle[connection] = earlier if is_same else state
        self._idle = idle
        limit = settings.body_seconds if len(connections) <= settings.connections else CROWDED_SECONDS
        for connection, state in idle.items():
            if now - state.since > limit:
                connection.transport.abort()

    async def _sent(self) -> None:
        until = time.monotonic() + FINAL_SECONDS
        while self.service.in_flight and time.monotonic() < until:
            await asyncio.sleep(0.02)


def _has_no_request(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete


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
    Server(config, service, ready).run(sockets=[opened])
