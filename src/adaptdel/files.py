"""Atomic writes of files and folders, and a strict JSON parser for files that may be damaged or hostile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a disk that has no space left
MAX_DIGITS = 64  # of an integer
MAX_JSON = 2**28  # bytes of a file, all of which is parsed at once
MAX_DEPTH = 32  # of nested lists and objects


class NotJSON(ValueError):
    """The text is not JSON at all. JSON that the parser rejects raises a plain ValueError."""


def parse(content: str | bytes, *, finite: bool = True) -> Any:
    """Parse JSON strictly. Bytes are read as UTF-8, with or without a byte order mark.

    Raises a ValueError that does not name the file if ``content`` is not JSON, repeats a field, nests values deeper
    than `MAX_DEPTH`, holds an integer of more than `MAX_DIGITS` digits, or, with ``finite``, holds a number that is
    not finite.

    >>> parse('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the field 'a' is repeated
    """
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason})") from None
    options: dict[str, Any] = {"parse_constant": _finite_float, "parse_float": _finite_float} if finite else {}
    try:
        values = json.loads(content, object_pairs_hook=_unique_fields, parse_int=_bounded_int, **options)
    except json.JSONDecodeError as error:
        raise NotJSON(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(values)
    return values


def parse_object(content: str | bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parse JSON strictly, see `parse`; the outermost value must be an object."""
    values = parse(content, finite=finite)
    if not isinstance(values, dict):
        raise ValueError("it must hold an object")
    return values


def _check_depth(values: Any) -> None:
    level = [values] if isinstance(values, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        children = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for group in children for value in group if isinstance(value, (dict, list))]
        if not level:
            return
    raise ValueError("nested too deeply")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the field {next(name for name, count in counts.items() if count > 1)!r:.60} is repeated")
    return values


def _finite_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"a number must be finite, got {text[:20]}")
    return number


def _bounded_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer must have at most {MAX_DIGITS} digits, got {len(text)}")
    return int(text)


@contextmanager
def naming_a_full_disk(path: Path) -> Iterator[None]:
    """Raise the error of a full disk, also one of a library, as an OSError that names a file or folder."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or (errno.ENOSPC if "No space left on device" in str(error) else 0)
        if number in FULL:
            what_to_do = "the disk is full: free some space, and run the same command again"
            raise OSError(number, what_to_do, str(path)) from error
        raise


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` when the block ends; if the block fails, ``path`` is unchanged."""
    with naming_a_full_disk(path):
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
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``path`` when the block ends; if the block fails, ``path`` is unchanged."""
    with naming_a_full_disk(path):
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_new and path.exists():  # new/../old: callers have not seen that there is something
            raise ValueError(f"{path}: leads through a folder that does not exist: write it without ..")
        for left in path.parent.glob(f".{escape(path.name)}.*.partial"):  # of processes that were killed
            with suppress(OSError), folder_lock(left):  # another process may be writing it
                if not left.with_name(f"{left.name}.old").exists():  # otherwise killed within the exchange: keep both
                    shutil.rmtree(left, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        old = partial.with_name(f"{partial.name}.old")
        with folder_lock(partial):
            try:
                partial.chmod(0o755)
                yield partial
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


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder until the block or the process ends; BlockingIOError if another process has locked it."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        flock(handle, LOCK_EX | LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogatepass"))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_bytes(path: Path) -> bytes:
    """The content of a file; a ValueError that names the file if it exists and cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def check_regular(path: Path) -> None:
    """ValueError if a file, or a file in a folder, is not regular or too large JSON: reading it might not end."""
    for file in path.iterdir() if path.is_dir() else (path,):
        if os.path.lexists(file) and not file.is_file() and not file.is_dir():
            raise ValueError(f"{file}: not a regular file: remove it, or copy the folder again")
        if file.suffix == ".json" and file.is_file() and file.stat().st_size > MAX_JSON:
            raise ValueError(f"{file}: larger than {MAX_JSON >> 20} MiB: remove it, or copy the folder again")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file.

    A ValueError names the file, what is wrong and what to do; ``what`` describes the file in that message.
    """
    check_regular(path)
    content = read_bytes(path)
    try:
        return parse_object(content)
    except ValueError as error:
        raise ValueError(f"{path}: not {what}: {error}: write or copy it again") from None


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays in a safetensors file; a ValueError names the file if it cannot be read."""
    check_regular(path)
    try:
        return load_file(path)  # checks the header against the size before it reads the arrays
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path}: not a safetensors file: {reason}: write or copy it again") from None


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the operating system supports it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
