"""Files and folders that are written whole or not at all; JSON from files that nobody vouches for."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import IO, Any

DIGITS = 64  # of the longest whole number
DEPTH = 32  # lists and objects inside each other


class NotJSON(ValueError):
    """A text that is not JSON at all, as against JSON that is refused."""


def parse(text: str, *, finite: bool = True) -> Any:
    """The value of a JSON text.

    ValueError, without the name of the file, if it is not JSON, if a field stands there twice, if a number is not
    finite (unless ``finite`` is False) or absurdly long, or if values are nested too deeply to be read.
    """
    options: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
    try:
        values = json.loads(text, object_pairs_hook=_fields, parse_int=_whole, **options)
    except json.JSONDecodeError as error:
        raise NotJSON(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    _check_depth(values)
    return values


def check_finite(values: Any, *, where: str = "", skip: Collection[str] = ()) -> None:
    """Raise at the first number that is not finite; what ``skip`` names, such as "model.training", may hold any."""
    if isinstance(values, dict):
        for name, value in values.items():
            place = f"{where}.{name}" if where else name
            if place not in skip:
                check_finite(value, where=place, skip=skip)
    elif isinstance(values, list):
        for value in values:
            check_finite(value, where=where, skip=skip)
    elif isinstance(values, float) and not isfinite(values):
        raise ValueError(f"{where} must hold finite numbers, got {values}")


def _check_depth(values: Any) -> None:
    level = [values] if isinstance(values, (dict, list)) else []
    for _ in range(DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for group in inner for value in group if isinstance(value, (dict, list))]
        if not level:
            return
    raise ValueError("values are nested too deeply")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the field {repeated!r} stands there twice")
    return values


def _refuse(text: str) -> Any:
    raise ValueError(f"a number must be finite, got {text}")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"a number must be finite, got {text[:20]}")
    return number


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a whole number must have at most {DIGITS} digits, got {len(text)}")
    return int(text)


DEEPEST = 64  # lists and dictionaries in each other in a JSON file


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


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; ValueError with its name if it is there and cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file, which is ``what`` in messages; ValueError that names the file and what to do."""
    try:
        return parse_object(read_bytes(path))
    except ValueError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise ValueError(f"{path}: not {what}: {error}: write or copy it anew") from None


def parse_object(content: bytes) -> dict[str, Any]:
    """The object that JSON in UTF-8 holds; ValueError says what is wrong with it.

    >>> parse_object(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it names 'a' twice
    """
    try:
        values = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, line {error.lineno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it must hold an object")
    check_depth(values)
    return values


def check_depth(values: Any, most: int = DEEPEST) -> None:
    """Raise if lists and dictionaries stand in each other more than ``most`` deep: few functions can walk through."""
    level = [values]
    for _ in range(most):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for group in inner for value in group if isinstance(value, (dict, list))]
        if not level:
            return
    raise ValueError("nested too deeply")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)!r:.60} twice")
    return values


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do so."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
