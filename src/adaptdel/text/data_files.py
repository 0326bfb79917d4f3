"""The files that ``--data`` names: a file, several, a glob, a folder, an address such as s3://, standard input.

Files of a glob or a folder are read in the order of their names, so that the rows have the same numbers everywhere.
Addresses with a scheme are opened by fsspec, which is an extra; every file is read as a stream.
"""

from __future__ import annotations

import atexit
import codecs
import gzip
import hashlib
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import IO, Any

DataPath = str | Path | Sequence[str | Path]

ENDINGS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
ACCEPTED = (
    "a .jsonl, .json, .csv, .tsv or .parquet file, also with .gz, - for standard input, or a Hugging Face data set "
    "such as stanfordnlp/imdb"
)
STANDARD_INPUT = "-"
HUB = "hub"
BLOCK = 2**20  # bytes that are hashed at a time
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:\w+)?")


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, or the name of a data set of Hugging Face.

    Attributes:
        name: how messages call it.
        path: where it is; on a remote file system, its path there.
        kind: the format: "json", "csv", "tsv", "parquet" or "hub".
        zipped: whether it is gzipped.
        system: the file system of fsspec; None for a local file.
    """

    name: str
    path: str
    kind: str
    zipped: bool = False
    system: Any = None

    @property
    def is_remote(self) -> bool:
        """Whether fsspec reads the file."""
        return self.system is not None

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes of the file, unpacked if it is gzipped."""
        with Path(self.path).open("rb") if self.system is None else self._open_remote() as data:
            if not self.zipped:
                yield data
                return
            with gzip.open(data) as unpacked:
                yield unpacked  # type: ignore[misc]

    def _open_remote(self) -> IO[bytes]:
        try:
            data: IO[bytes] = self.system.open(self.path, "rb")
            return data
        except Exception as error:  # every file system raises its own
            raise _unreadable(self.name, error) from None

    def identity(self) -> tuple[int, str]:
        """The size in bytes, and the SHA-256 of the file as it is stored; of a remote file, of what its system states.

        A remote file is not read for that: its path, its size and the checksum of the file system, such as an ETag,
        stand for the content.
        """
        if self.system is None:
            try:
                with Path(self.path).open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                return Path(self.path).stat().st_size, digest
            except OSError as error:
                raise ValueError(f"{self.name}: cannot be read: {error.strerror or error}") from None
        try:
            size = int(self.system.size(self.path) or 0)
            stated = f"{self.name} {size} {self.system.ukey(self.path)}"
        except Exception as error:  # every file system raises its own
            raise _unreadable(self.name, error) from None
        return size, hashlib.sha256(stated.encode("utf-8", "surrogatepass")).hexdigest()


def data_files(data: DataPath) -> list[DataFile]:
    """The files of a data set in the order in which they are read; ValueError if there is none, or one is missing."""
    if isinstance(data, (str, Path)):
        return _files(str(data))
    listed = [str(part) for part in data]
    if not listed:
        raise ValueError("the data must name at least one file")
    if len(listed) > 1 and STANDARD_INPUT in listed:
        raise ValueError("standard input (-) cannot be one of several files: write it to a file first")
    files = [file for part in listed for file in _files(part)]
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated}: named twice: name every file once")
    return files


def shown_name(data: DataPath) -> str:
    """The name of a data set in messages.

    >>> shown_name(["a.jsonl", "b.jsonl", "c.jsonl"]), shown_name("-")
    ('a.jsonl and 2 more files', 'standard input')
    """
    if isinstance(data, (str, Path)):
        return "standard input" if str(data) == STANDARD_INPUT else str(data)
    listed = [str(part) for part in data]
    more = len(listed) - 1
    return listed[0] + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")


def _files(name: str) -> list[DataFile]:
    if name == STANDARD_INPUT:
        copy = standard_input()
        kind, zipped = _kind(copy.name)
        assert kind is not None
        return [DataFile("standard input", str(copy), kind, zipped)]
    if "\0" in name:
        raise ValueError(f"{name!r:.80}: there is no such file")
    if _ADDRESS.match(name):
        return _remote_files(name)
    path = Path(name)
    if path.is_dir():
        return _of_one_kind(name, [_local(str(file)) for file in _below(path)])
    if path.exists():
        return [_checked(_local(name))]
    if has_magic(name):
        matching = sorted(file for file in glob(name, recursive=True) if Path(file).is_file())
        if not matching:
            raise ValueError(f"{name}: no file matches")
        return [_checked(_local(file)) for file in matching]
    kind, zipped = _kind(path.name)
    if kind is None and not zipped and _NAME.fullmatch(name):
        return [DataFile(name, name, HUB)]
    raise ValueError(f"{name}: there is no such file")


def _local(name: str) -> DataFile:
    kind, zipped = _kind(Path(name).name)
    return DataFile(name, name, kind or "", zipped)


def _checked(file: DataFile) -> DataFile:
    if not file.kind or (file.system is None and not Path(file.path).is_file()):
        raise ValueError(f"{file.name}: must be {ACCEPTED}, or a folder of such files")
    return file


def _kind(name: str) -> tuple[str | None, bool]:
    """The format by the ending of a name, and whether the file is gzipped."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    zipped = suffixes[-1:] == [".gz"]
    named = suffixes[:-1] if zipped else suffixes
    return (ENDINGS.get(named[-1]) if named else None), zipped


def _below(folder: Path) -> list[Path]:
    """The files in a folder and its folders, without hidden ones and those that other tools leave, such as _SUCCESS."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def _of_one_kind(folder: str, files: list[DataFile]) -> list[DataFile]:
    """The data files of a folder, which must have one format."""
    known = [file for file in files if file.kind]
    kinds = sorted({file.kind for file in known})
    if not known:
        raise ValueError(f"{folder}: must be {ACCEPTED}, or a folder of such files; got a folder without any")
    if len(kinds) > 1:
        raise ValueError(
            f"{folder}: holds files of several formats ({', '.join(kinds)}): name those to read, as in "
            f"'{folder.rstrip('/')}/*.{kinds[-1]}'"
        )
    return known


def _remote_files(address: str) -> list[DataFile]:
    """The files at an address, in a folder there, or of a glob."""
    try:
        import fsspec.core
    except ImportError:
        raise ImportError(f"{address}: addresses of files need fsspec: pip install 'adaptdel[remote]'") from None
    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        extra = ": pip install 'adaptdel[remote]'" if address.startswith("s3") else ", which no extra of adaptdel holds"
        raise ImportError(f"{address}: {error}{extra}") from None
    except Exception as error:  # every file system raises its own
        raise _unreadable(address, error) from None
    try:
        if has_magic(path) and not system.exists(path):
            paths = sorted(str(each) for each in system.glob(path) if not system.isdir(each))
            if not paths:
                raise ValueError(f"{address}: no file matches")
            return [_checked(_remote(system, each)) for each in paths]
        if system.isdir(path):
            inside = sorted(map(str, system.find(path)))
            depth = len(PurePosixPath(path).parts)
            kept = [p for p in inside if not any(part[:1] in "._" for part in PurePosixPath(p).parts[depth:])]
            return _of_one_kind(address, [_remote(system, each) for each in kept])
        if not system.exists(path):
            raise ValueError(f"{address}: there is no such file")
        return [_checked(_remote(system, path))]
    except ValueError:
        raise
    except Exception as error:  # every file system raises its own
        raise _unreadable(address, error) from None


def _remote(system: Any, path: str) -> DataFile:
    kind, zipped = _kind(PurePosixPath(path).name)
    return DataFile(str(system.unstrip_protocol(path)), path, kind or "", zipped, system)


def _unreadable(name: str, error: Exception) -> ValueError:
    """The error for a bucket or a file that cannot be read, in one sentence."""
    reason = " ".join((getattr(error, "strerror", None) or str(error)).split())[:200] or type(error).__name__
    return ValueError(f"{name}: cannot be read: {reason}: check the address, the credentials and the network")


def unreadable(file: DataFile, error: Exception) -> ValueError:
    """The error for a remote file whose reading failed after it was opened."""
    return _unreadable(file.name, error)


_COPIES: dict[int, tuple[Any, Path]] = {}  # standard input, and the file that it was copied to


def standard_input() -> Path:
    """A temporary file with everything that standard input holds, whose name ends like its format.

    Standard input can be read once, and most commands read their data more often. The file is removed when the process
    ends.
    """
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else sys.stdin
    if id(stream) not in _COPIES:
        folder = tempfile.TemporaryDirectory(prefix="adaptdel-")
        atexit.register(folder.cleanup)
        copy = Path(folder.name) / "stdin"
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)
        named = copy.with_name(f"stdin{_ending(copy)}")
        copy.rename(named)
        _COPIES[id(stream)] = stream, named
    return _COPIES[id(stream)][1]


def _ending(path: Path) -> str:
    """The ending that fits the first bytes of a file: a brace or a bracket begins JSON, and the rest is CSV."""
    with path.open("rb") as file:
        start = file.read(4096)
    zipped = start[:2] == b"\x1f\x8b"
    if zipped:
        with suppress(OSError, EOFError, zlib.error), gzip.open(path) as file:
            start = file.read(4096)
    beginning = start.removeprefix(codecs.BOM_UTF8).lstrip()
    kind = ".parquet" if start[:4] == b"PAR1" else ".jsonl" if beginning[:1] in (b"{", b"[") else ".csv"
    return kind + (".gz" if zipped else "")
