"""The folder of a run: one program at a time, and nothing left lying about."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEFTOVERS = (".manifest.json.", ".certificates.parquet.", ".times.parquet.", ".journal.", ".signature.json.")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        if path.name.startswith(LEFTOVERS):
            with suppress(OSError):
                path.unlink()
