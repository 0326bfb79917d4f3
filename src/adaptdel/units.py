"""Text and tokens: what the noise deletes and the attacker edits, one by one.

An attacker changes an input into another one. A certificate of radius r covers every input whose tokens are at most r
edits (deletions, insertions, substitutions of single tokens) away from those of the certified input, each split by the
unit. An edited sequence of tokens is within reach if there is an input that is split into it: each unit says which are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from adaptdel.core.checks import check_int
from adaptdel.core.rates import build

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

    def description(self) -> dict[str, Any] | None:
        """`to_dict`, or None for a unit that cannot be written down."""
        return self.to_dict()


def _text(text: Any, unit: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"an input must be a text (str) for the unit {unit!r}, got {type(text).__name__}")
    return text


@dataclass(frozen=True)
class Words(Unit):
    """Words between white space, as in the paper; joined by single spaces.

    Every sequence of words is the words of some text. White space between them is not read: to change it is no edit. A
    "word" with white space inside is as many words as it is split into.

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
    """Single characters: code points, as Python counts them.

    Every sequence of characters is a text. A surrogate is a character of its own, also beside another one. What readers
    see as one letter may be several characters: an edit of it is as many edits.
    """

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
    """Single bytes: of binary files, or of a text in UTF-8. The base classifier reads bytes.

    Every sequence of bytes is an input. An edit of a character of several bytes is as many edits.
    """

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
    """Chunks of a fixed number of bytes, counted from the beginning; the last may be shorter.

    The attacker puts other bytes in the place of a chunk, deletes whole chunks, or inserts whole chunks in front of
    one. Bytes that are added at the end are a substitution of the last chunk, if it was shorter, and an insertion for
    each further one. To insert or delete any other number of bytes moves every border behind it: that is an edit of
    each chunk that changes, and a radius rarely covers so many. The unit "byte" counts the bytes themselves.

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

    That is how RS-Del deletes whole machine instructions: the label of a byte is the number of its instruction, as the
    disassembler gives it. Each chunk has a label of its own, a whole number or a text: if two had the same, to delete
    what is between them would join them into one. The attacker edits whole chunks with their labels, and gives a new
    chunk a new label. To cut a chunk in two is a substitution and an insertion.

    >>> Labelled().split((b"abcd", [0, 0, 1, 2]))
    (b'ab', b'c', b'd')
    """

    kind: ClassVar[str] = "labelled"

    def split(self, text: Any) -> Tokens:
        """The runs of equal labels."""
        try:
            data, labels = text
            labels = list(labels)
        except (TypeError, ValueError):
            raise ValueError(f"an input must be a pair (bytes, labels) for the unit 'labelled', got {text!r}") from None
        data = _bytes(data)
        if len(data) != len(labels):
            raise ValueError(f"labels must be one for each of the {len(data)} bytes, got {len(labels)}")
        for kind in set(map(type, labels)):
            if not issubclass(kind, (int, np.integer, str)) or kind is bool:
                raise ValueError(f"labels must be whole numbers or texts, got {kind.__name__}")
        chunks: dict[Any, bytes] = {}
        start = 0
        for label, run in groupby(labels):
            if label in chunks:
                raise ValueError(
                    f"labels must give each chunk a label of its own, got {label!r} again at byte {start}: number the "
                    "chunks in order"
                )
            end = start + sum(1 for _ in run)
            chunks[label] = data[start:end]
            start = end
        return tuple(chunks.values())

    def join(self, tokens: Sequence[Any]) -> bytes:
        """The chunks in a row."""
        return b"".join(tokens)


@dataclass(frozen=True)
class Custom(Unit):
    """Any pair of callables; it cannot be saved in a file.

    The first splits an input into what the attacker edits: an edited sequence of tokens is covered as the tokens of the
    input that is split into it. Tokens of different types are different, also where Python holds them to be equal, as
    1, True and 1.0.
    """

    kind: ClassVar[str] = "custom"
    splitter: Callable[[Any], Sequence[Hashable]]
    joiner: Callable[[Sequence[Any]], Any]

    def split(self, text: Any) -> Tokens:
        """What the first callable makes of an input."""
        return tuple(self.splitter(text))

    def join(self, tokens: Sequence[Any]) -> Any:
        """What the second callable makes of tokens."""
        return self.joiner(tokens)

    def description(self) -> None:
        """None: code is not written to files."""

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
