"""Files that are there whole or not at all, whatever happens to the program or the machine."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of ``path`` once it is complete and on the disk; not if anything fails."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values, whole or not at all."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogatepass"))


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do so."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of a folder; the lock ends with the program, however it ends."""
    try:
        import fcntl
    except ImportError:  # on Windows two runs into one folder are not told apart
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another run is at work in this folder") from None
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove what `replacing` left behind when it was killed."""
    for path in folder.glob(".*.*"):
        if path.name.startswith((".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".journal.")):
            with suppress(OSError):
                path.unlink()
