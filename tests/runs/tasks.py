"""Tasks that count, fail, wait and end their worker; workers import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from adaptdel.runs.certify import CertificationTask
from adaptdel.runs.engine import Task, Work


@dataclass(frozen=True)
class Square(Task):
    """Square numbers; -1 ends the worker, None is an error, and a float is the time to wait."""

    log: Path | None = None

    def load(self) -> Work:
        if self.log is not None:
            note(self.log, f"load {os.getpid()}")

        def work(items: Iterable[Any]) -> Iterator[Any]:
            for item in items:
                if item == -1:
                    os._exit(1)
                if item is None:
                    raise ValueError("cannot square None")
                if isinstance(item, float):
                    time.sleep(item)
                yield item * item

        return work

    def failed(self, item: Any, reason: str) -> str:
        return f"{item}: {reason}"


@dataclass(frozen=True)
class Torn(Square):
    """Square numbers; a worker that finds the file removes it, and ends in the middle of the next result."""

    def load(self) -> Work:
        square = Square(None).load()

        def work(items: Iterable[Any]) -> Iterator[Any]:
            with suppress(FileNotFoundError):
                assert self.log is not None
                self.log.unlink()
                Connection._send = send_half  # type: ignore[attr-defined]
            return square(items)

        return work


def send_half(pipe: Connection, message: bytes) -> None:
    os.write(pipe.fileno(), message[: len(message) // 2])
    os._exit(1)


@dataclass(frozen=True)
class Watched(CertificationTask):
    """Certify, and write down every row that is begun.

    If there is a file with the suffix ".allowed" beside the log, workers begin only as many rows as it says: a test
    that waits for them can do something to the cluster or the driver while the run goes on, however fast it is.
    """

    log: Path = Path()

    def load(self) -> Work:
        certify = super().load()
        node = node_id()
        note(self.log.with_suffix(".workers"), node)

        def work(items: Iterable[Any]) -> Iterator[Any]:
            def watched() -> Iterator[Any]:
                for item in items:
                    while not is_allowed(self.log):
                        time.sleep(0.02)
                    note(self.log, f"{item.row:{WIDTH - len(node) - 2}} {node}")
                    yield item

            yield from certify(watched())

        return work


WIDTH = 64  # characters of a line in the log, with the line break


def node_id() -> str:
    """Ray's id of the node of this worker."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def is_allowed(log: Path) -> bool:
    """Whether another row may begin."""
    try:
        allowed = int(log.with_suffix(".allowed").read_text())
    except FileNotFoundError:
        return True
    return allowed > (log.stat().st_size // WIDTH if log.exists() else 0)


def allow(log: Path, rows: int | None) -> None:
    """Allow so many rows in total; None for all."""
    file = log.with_suffix(".allowed")
    if rows is None:
        file.unlink(missing_ok=True)
        return
    new = file.with_suffix(".new")
    new.write_text(str(rows))
    new.replace(file)


def begun(log: Path) -> list[int]:
    """The rows that workers have begun, in order."""
    return [int(line.split()[0]) for line in lines(log)]


def lines(file: Path) -> list[str]:
    """The lines of a file that workers write."""
    return file.read_text().splitlines() if file.exists() else []


def note(path: Path, line: str) -> None:
    """Append a line to a file that several processes write to."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def watch(log: Path) -> Any:
    """What replaces `CertificationTask` in a driver."""
    return lambda source, certifier=None: replace(Watched(source, certifier), log=log)
