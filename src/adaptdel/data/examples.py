"""Labelled files as a whole, for training and calibration, and how a part of them is held out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adaptdel.checks import check_probability
from adaptdel.data.rows import Label, read_rows


@dataclass(frozen=True)
class Examples:
    """A labelled file, whole.

    Attributes:
        texts: the texts.
        labels: whole numbers, or texts.
        ids: from the id column, or the number of the row.
        digest: a SHA-256 of texts and labels, the same in every format.
        notes: what was left out or looks odd, each with a count.
    """

    texts: list[str]
    labels: list[Label]
    ids: list[str]
    digest: str
    notes: list[str] = field(default_factory=list)


def read_examples(
    path: str | Path, *, text: str = "text", label: str = "label", ids: str = "id", encoding: str = "utf-8"
) -> Examples:
    """Read a labelled file whole, for training and calibration; empty texts are left out and counted in the notes."""
    rows, empty = [], 0
    for row in read_rows(path, text=text, label=label, ids=ids, encoding=encoding, labelled=True):
        if row.text.strip():
            rows.append(row)
        else:
            empty += 1
    if not rows:
        raise ValueError(f"{path}: holds no {'rows' if not empty else 'text that is not empty'}")
    labels = one_type([row.label for row in rows if row.label is not None])
    notes = [f"{empty} empty texts were left out"] if empty else []
    texts = [row.text for row in rows]
    return Examples(
        texts,
        labels,
        [row.id if row.id is not None else str(row.number) for row in rows],
        content_digest(texts, labels),
        notes + _repeated(texts, labels),
    )


def one_type(labels: Sequence[Label]) -> list[Label]:
    """Whole numbers if all are, else texts: a file may name one class 1 and another spam."""
    if all(isinstance(label, int) for label in labels):
        return list(labels)
    return [str(label) for label in labels]


def content_digest(texts: Iterable[str], labels: Iterable[Label]) -> str:
    """A SHA-256 of texts and labels in their order."""
    digest = hashlib.sha256()
    for row in zip(texts, labels, strict=True):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def held_out(text: str, share: float, seed: int) -> bool:
    """Whether a text belongs to the validation part: decided by its content, so that duplicates go together.

    >>> sum(held_out(str(number), 0.1, 0) for number in range(10_000))
    949
    """
    data = text.encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(data, digest_size=8, key=f"held out {seed}".encode()).digest()
    return int.from_bytes(drawn, "little") < check_probability("share", share) * 2.0**64


def _repeated(texts: Sequence[str], labels: Sequence[Label]) -> list[str]:
    """Notes on texts that stand in the file more than once."""
    seen = Counter(texts)
    if len(seen) == len(texts):
        return []
    notes = [f"{len(texts) - len(seen)} texts are repeated"]
    given = Counter(text for text, _ in set(zip(texts, labels, strict=True)))
    torn = sum(1 for count in given.values() if count > 1)
    return [*notes, f"{torn} texts stand there with different labels"] if torn else notes
