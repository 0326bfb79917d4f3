"""The examples of a training: split into tokens, and into a part that is trained on and one that is held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptdel.data import Label, held_out
from adaptdel.units import Tokens, Unit


@dataclass(frozen=True)
class Part:
    """Some examples: tokens and labels."""

    tokens: list[Tokens]
    labels: list[Label]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        return [len(tokens) for tokens in self.tokens]


def split(
    texts: Sequence[Any],
    labels: Sequence[Label],
    unit: Unit,
    *,
    share: float,
    seed: int,
    validation: tuple[Sequence[Any], Sequence[Label]] | None = None,
) -> tuple[Part, Part]:
    """(the part to train on, the part held out): by content, or as given in ``validation``."""
    if len(texts) != len(labels):
        raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    out = [share > 0 and held_out(str(text), share, seed) for text in texts]
    train = _part([(t, y) for t, y, is_out in zip(texts, plain, out, strict=True) if not is_out], unit)
    if validation is None:
        valid = _part([(t, y) for t, y, is_out in zip(texts, plain, out, strict=True) if is_out], unit)
    else:
        valid = _part(list(zip(*validation, strict=True)), unit)
    _check_classes(train, valid, set(plain))
    return train, valid


def _part(rows: Sequence[tuple[Any, Label]], unit: Unit) -> Part:
    return Part([unit.split(text) for text, _ in rows], [label for _, label in rows])


def _check_classes(train: Part, valid: Part, classes: set[Label]) -> None:
    if not train.tokens:
        raise ValueError("training needs at least one example, got none")
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two classes, got only {next(iter(classes))!r}")
    missing = classes - set(train.labels)
    if missing:
        raise ValueError(
            f"the class {sorted(map(str, missing))[0]!r} has no example left to train on: "
            "hold out fewer (validation), or give more examples"
        )
    unknown = set(valid.labels) - set(train.labels)
    if unknown:
        raise ValueError(
            f"the validation examples have a class that training has not: {sorted(map(str, unknown))[0]!r}"
        )
