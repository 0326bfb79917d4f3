"""Units: how an input is split into the tokens that the noise deletes and the attacker edits.

A certificate of radius r covers every input whose tokens are at most r edits away from the tokens of the certified
input. An edit deletes, inserts or substitutes one token. Both inputs are split by the same unit. A sequence of tokens
is covered only if some input is split into it; the documentation of each unit says which sequences are.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from adaptdel.core.checks import check_int
from adaptdel.core.plain import READERS
from adaptdel.core.registry import build

Tokens = tuple[Hashable, ...]


class Unit(ABC):
    """Splits an input into tokens, and joins tokens into an input of the base classifier."""

    kind: ClassVar[str]
    mask: ClassVar[Any] = None
    """The token that replaces a masked one if the base classifier has no mask token; None if the unit has none."""

    @abstractmethod
    def split(self, text: Any) -> Tokens:
        """The tokens of an input."""

    @abstractmethod
    def join(self, tokens: Sequence[Any]) -> Any:
        """The input of the base classifier that consists of these tokens."""

    def to_dict(self) -> dict[str, Any]:
        """The unit as plain values; `unit_from_dict` is the inverse."""
        return {"kind": self.kind, **vars(self)}

    def description(self) -> dict[str, Any] | None:
        """`to_dict`, or None for a unit that cannot be saved."""
        return self.to_dict()


def _text(text: Any, unit: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"an input must be a string for the unit {unit!r}, got {type(text).__name__}")
    return text


@dataclass(frozen=True)
class Words(Unit):
    """Words separated by white space, as in the paper. They are joined by single spaces.

    Every sequence of words is the split of some text. White space is not part of a token, so changing it is not an
    edit. A "word" that contains white space counts as the words that it is split into.

    >>> Words().split("  no  spam here ")
    ('no', 'spam', 'here')
    """

    kind: ClassVar[str] = "word"
    mask: ClassVar[str] = "<mask>"

    def split(self, text: Any) -> Tokens:
        """Split at white space."""
        return tuple(_text(text, self.kind).split())

    def join(self, tokens: Sequence[Any]) -> str:
        """Join with single spaces."""
        return " ".join(tokens)


@dataclass(frozen=True)
class Characters(Unit):
    """Single characters, that is, Unicode code points.

    Every sequence of characters is a text. Each surrogate counts as one character. What a reader sees as one letter may
    be several characters; replacing it then takes several edits.
    """

    kind: ClassVar[str] = "char"
    mask: ClassVar[str] = "\ufffd"

    def split(self, text: Any) -> Tokens:
        """Split into characters."""
        return tuple(_text(text, self.kind))

    def join(self, tokens: Sequence[Any]) -> str:
        """Concatenate the characters."""
        return "".join(tokens)


@dataclass(frozen=True)
class Bytes(Unit):
    """Single bytes of binary data, or of a text in UTF-8. The base classifier gets bytes.

    Every sequence of bytes is an input. Replacing a character of several bytes takes several edits.
    """

    kind: ClassVar[str] = "byte"

    def split(self, text: Any) -> Tokens:
        """Split into bytes, as numbers from 0 to 255."""
        return tuple(_bytes(text))

    def join(self, tokens: Sequence[Any]) -> bytes:
        """Concatenate the bytes."""
        return bytes(tokens)


def _bytes(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise ValueError(f"an input must be bytes or a string, got {type(data).__name__}")


@dataclass(frozen=True)
class Chunks(Unit):
    """Chunks of a fixed number of bytes, counted from the start. The last chunk may be shorter.

    One edit replaces the bytes of a chunk, deletes a whole chunk, or inserts a whole chunk in front of another.
    Appending bytes substitutes the last chunk, if it was shorter, and inserts others. Inserting or deleting any other
    number of bytes changes all later chunks; use the unit "byte" against such an attacker.

    >>> Chunks(4).split(b"malware!!")
    (b'malw', b'are!', b'!')
    """

    kind: ClassVar[str] = "chunk"
    size: int

    def __post_init__(self) -> None:
        check_int("size", self.size, least=1)

    def split(self, text: Any) -> Tokens:
        """Split into chunks."""
        data = _bytes(text)
        return tuple(data[start : start + self.size] for start in range(0, len(data), self.size))

    def join(self, tokens: Sequence[Any]) -> bytes:
        """Concatenate the chunks."""
        return b"".join(tokens)


@dataclass(frozen=True)
class Labelled(Unit):
    """Chunks defined by labels. An input is a pair (bytes, labels) with one label per byte; equal labels form a chunk.

    RS-Del deletes whole machine instructions this way: the label of a byte is the number of its instruction. Each chunk
    needs a distinct label, an int or a str; otherwise two chunks would merge when the chunks between them are deleted.
    The attacker edits whole chunks with their labels, and gives an inserted chunk a new label. Splitting a chunk into
    two takes a substitution and an insertion.

    >>> Labelled().split((b"abcd", [0, 0, 1, 2]))
    (b'ab', b'c', b'd')
    """

    kind: ClassVar[str] = "labelled"

    def split(self, text: Any) -> Tokens:
        """Split where the label changes."""
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
                raise ValueError(f"labels must be integers or strings, got {kind.__name__}")
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
        """Concatenate the chunks."""
        return b"".join(tokens)


@dataclass(frozen=True)
class Custom(Unit):
    """A pair of callables (split, join). A model with this unit cannot be saved.

    ``splitter`` returns the tokens that the attacker edits. A sequence of tokens is covered if it is the split of some
    input. Tokens of different types are different tokens, even if they are equal in Python, such as 1, True and 1.0.
    """

    kind: ClassVar[str] = "custom"
    splitter: Callable[[Any], Sequence[Hashable]]
    joiner: Callable[[Sequence[Any]], Any]

    def split(self, text: Any) -> Tokens:
        """Call ``splitter``."""
        return tuple(self.splitter(text))

    def join(self, tokens: Sequence[Any]) -> Any:
        """Call ``joiner``."""
        return self.joiner(tokens)

    def description(self) -> None:
        """None, because code is never written to files."""

    def to_dict(self) -> dict[str, Any]:
        """Raise a ValueError, because code is never written to files."""
        raise ValueError("unit must be one of word, char, byte, chunk, labelled to be saved, got a pair of callables")


UNITS: dict[str, type[Unit]] = {unit.kind: unit for unit in (Words, Characters, Bytes, Chunks, Labelled)}


def unit_from_dict(values: Mapping[str, Any]) -> Unit:
    """The unit that `Unit.to_dict` describes."""
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in UNITS:
        raise ValueError(f"the kind of a unit must be one of {', '.join(sorted(UNITS))}, got {kind!r:.60}")
    return build("unit", UNITS[kind], values)


READERS[Unit] = unit_from_dict


def check_unit(unit: Any) -> Unit:
    """The unit for a name ("word", "char", "byte", "chunk:SIZE", "labelled") or a pair of callables (split, join).

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


def noun(unit: Mapping[str, Any] | None) -> str:
    """What the tokens of a unit, as `Unit.description` gives it, are called."""
    names = {"word": "word", "char": "character", "byte": "byte", "chunk": "chunk", "labelled": "chunk"}
    return names.get((unit or {}).get("kind", ""), "token")


def units_per_character(unit: Mapping[str, Any] | None) -> int | None:
    """How many tokens an edited character can change; None for units without characters.

    >>> [units_per_character({"kind": kind}) for kind in ("word", "char", "byte", "chunk")]
    [1, 1, 4, None]
    """
    return {"word": 1, "char": 1, "byte": 4}.get((unit or {}).get("kind", ""))


def readable(value: Any) -> str:
    """A text, bytes or a token as text."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("ascii", "backslashreplace")
    return str(value)


def content_key(tokens: Tokens) -> bytes:
    """A hash of a token sequence, the same on every machine; 1, True, 1.0 and ``np.int64(1)`` are different tokens."""
    digest = hashlib.blake2b(digest_size=32)
    kinds = set(map(type, tokens))
    if kinds <= {str} and not _has_surrogates(tokens):
        digest.update(json.dumps(tokens).encode())  # quoted: different sequences have different JSON
    elif kinds == {int} and min(tokens) >= 0 and max(tokens) < 256:  # type: ignore[type-var, operator]
        digest.update(b"bytes:" + bytes(tokens))  # type: ignore[arg-type]
    else:
        digest.update(b"tokens:")
        for token in tokens:
            kind = type(token).__name__
            if isinstance(token, np.generic):  # whose names and repr differ between versions
                kind, token = f"numpy.{token.dtype.name}", token.item()
            data = repr(token).encode("utf-8", "surrogatepass")
            digest.update(f"{kind}:{len(data)}:".encode() + data)
    return digest.digest()


def _has_surrogates(texts: Iterable[Any]) -> bool:
    """Whether a text contains half a surrogate pair; in JSON, two halves would look like one character."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return True
    return False
