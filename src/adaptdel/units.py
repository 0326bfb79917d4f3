"""Text and tokens: what the noise deletes and the attacker edits, one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from adaptdel.checks import check_int
from adaptdel.rates import build

Tokens = tuple[Hashable, ...]


class Unit(ABC):
    """How an input is split into tokens, and how tokens are joined into what the base classifier reads."""

    kind: ClassVar[str]
    mask: ClassVar[Any] = None
    """What stands for a masked token, if the base classifier has no mask of its own; None if there is no such thing."""

    @abstractmethod
    def split(self, text: Any) -> Tokens:
        """The tokens of an input."""

    @abstractmethod
    def join(self, tokens: Sequence[Any]) -> Any:
        """What the base classifier reads."""

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `unit_from_dict` rebuilds the unit."""
        return {"kind": self.kind}


def _text(text: Any, unit: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"an input must be a text (str) for the unit {unit!r}, got {type(text).__name__}")
    return text


@dataclass(frozen=True)
class Words(Unit):
    """Words between white space, as in the paper; joined by single spaces.

    >>> Words().split("  no  spam here ")
    ('no', 'spam', 'here')
    """

    kind: ClassVar[str] = "word"
    mask: ClassVar[str] = "<mask>"

    def split(self, text: Any) -> Tokens:
        """The words."""
        return tuple(_text(text, self.kind).split())

    def join(self, tokens: Sequence[Any]) -> str:
        """The words with single spaces between them."""
        return " ".join(tokens)


@dataclass(frozen=True)
class Characters(Unit):
    """Single characters."""

    kind: ClassVar[str] = "char"
    mask: ClassVar[str] = "\ufffd"

    def split(self, text: Any) -> Tokens:
        """The characters."""
        return tuple(_text(text, self.kind))

    def join(self, tokens: Sequence[Any]) -> str:
        """The characters in a row."""
        return "".join(tokens)


@dataclass(frozen=True)
class Bytes(Unit):
    """Single bytes: of binary files, or of a text in UTF-8. The base classifier reads bytes."""

    kind: ClassVar[str] = "byte"

    def split(self, text: Any) -> Tokens:
        """The bytes, as numbers from 0 to 255."""
        return tuple(_bytes(text))

    def join(self, tokens: Sequence[Any]) -> bytes:
        """The bytes in a row."""
        return bytes(tokens)


def _bytes(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise ValueError(f"an input must be bytes or a text (str) here, got {type(data).__name__}")


@dataclass(frozen=True)
class Chunks(Unit):
    """Chunks of a fixed number of bytes; the last may be shorter.

    >>> Chunks(4).split(b"malware!!")
    (b'malw', b'are!', b'!')
    """

    kind: ClassVar[str] = "chunk"
    size: int

    def __post_init__(self) -> None:
        check_int("size", self.size, least=1)

    def split(self, text: Any) -> Tokens:
        """The chunks."""
        data = _bytes(text)
        return tuple(data[start : start + self.size] for start in range(0, len(data), self.size))

    def join(self, tokens: Sequence[Any]) -> bytes:
        """The chunks in a row."""
        return b"".join(tokens)

    def to_dict(self) -> dict[str, Any]:
        """The kind and the size."""
        return {"kind": self.kind, "size": self.size}


@dataclass(frozen=True)
class Labelled(Unit):
    """Chunks that come with the input: a pair of bytes and one label a byte, where a run of one label is one chunk.

    That is how RS-Del deletes whole machine instructions.

    >>> Labelled().split((b"abcd", [0, 0, 1, 2]))
    (b'ab', b'c', b'd')
    """

    kind: ClassVar[str] = "labelled"

    def split(self, text: Any) -> Tokens:
        """The runs of equal labels."""
        try:
            data, labels = text
        except (TypeError, ValueError):
            raise ValueError(f"an input must be a pair (bytes, labels) for the unit 'labelled', got {text!r}") from None
        data = _bytes(data)
        if len(data) != len(labels):
            raise ValueError(f"labels must be one for each of the {len(data)} bytes, got {len(labels)}")
        return tuple(
            bytes(data[place] for place, _ in run) for _, run in groupby(enumerate(labels), key=lambda pair: pair[1])
        )

    def join(self, tokens: Sequence[Any]) -> bytes:
        """The chunks in a row."""
        return b"".join(tokens)


@dataclass(frozen=True)
class Custom(Unit):
    """Any pair of callables; it cannot be saved in a file."""

    kind: ClassVar[str] = "custom"
    splitter: Callable[[Any], Sequence[Hashable]]
    joiner: Callable[[Sequence[Any]], Any]

    def split(self, text: Any) -> Tokens:
        """What the first callable makes of an input."""
        return tuple(self.splitter(text))

    def join(self, tokens: Sequence[Any]) -> Any:
        """What the second callable makes of tokens."""
        return self.joiner(tokens)

    def to_dict(self) -> dict[str, Any]:
        """Raise: code is not written to files."""
        raise ValueError("unit must be one of word, char, byte, chunk, labelled to be saved, got a pair of callables")


UNITS: dict[str, type[Unit]] = {unit.kind: unit for unit in (Words, Characters, Bytes, Chunks, Labelled)}


def unit_from_dict(values: Mapping[str, Any]) -> Unit:
    """Rebuild a unit from `Unit.to_dict`."""
    unit: Unit = build("unit", UNITS, values)
    return unit


def check_unit(unit: Any) -> Unit:
    """The unit that a name ("word", "char", "byte", "chunk:SIZE", "labelled") or a pair of callables stands for.

    >>> check_unit("chunk:16")
    Chunks(size=16)
    """
    if isinstance(unit, Unit):
        return unit
    if isinstance(unit, str):
        name, _, size = unit.partition(":")
        if name == "chunk" and size.isdecimal():
            return Chunks(int(size))
        if name in UNITS and name != "chunk" and not size:
            return UNITS[name]()
    if isinstance(unit, tuple) and len(unit) == 2 and all(callable(part) for part in unit):
        return Custom(*unit)
    raise ValueError(
        f"unit must be one of word, char, byte, chunk:SIZE, labelled, a Unit or a pair (split, join), got {unit!r}"
    )
