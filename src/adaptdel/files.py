"""Files and folders that are there whole or not at all, whatever happens to the program or the machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


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


@contextmanager
def replacing_folder(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """An empty folder to fill that takes the place of ``path`` once it is complete; not if anything fails.

    ``check`` is called right before, and may raise if what is there must stay.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = partial.with_name(f"{partial.name}.old")
    try:
        partial.chmod(0o755)
        yield partial
        check()
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(partial, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogatepass"))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do so."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
