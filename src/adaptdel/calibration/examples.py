"""The examples of a calibration: split, checked, and dealt to bins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptdel.calibration.bins import Bin
from adaptdel.sampling import content_key
from adaptdel.units import Tokens, Unit


@dataclass(frozen=True)
class Examples:
    """Labelled token sequences.

    Attributes:
        tokens: the tokens of every example.
        labels: the label of every example.
    """

    tokens: list[Tokens]
    labels: list[Any]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of every example."""
        return [len(one) for one in self.tokens]

    def digest(self) -> str:
        """A hash of all tokens and labels, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            digest.update(content_key(tokens) + json.dumps(label, default=repr).encode() + b"\n")
        return digest.hexdigest()

    def drawn(self, bin: Bin, number: int, *, most: int, seed: int) -> Examples:
        """At most ``most`` examples of a bin, drawn by the seed, in the order of the data."""
        inside = [place for place, length in enumerate(self.lengths) if length in bin]
        if len(inside) > most:
            rng = np.random.default_rng((seed, number))
            inside = sorted(rng.choice(inside, size=most, replace=False).tolist())
        return Examples([self.tokens[place] for place in inside], [self.labels[place] for place in inside])


def read_examples(texts: Sequence[Any], labels: Sequence[Any], unit: Unit, classes: list[Any] | None) -> Examples:
    """Split the texts and check that the model knows the labels."""
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts must be a list of inputs, got a single {type(texts).__name__}: put it in a list")
    listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
    texts = list(texts)
    if len(texts) != len(listed):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(listed)}")
    if not texts:
        raise ValueError("texts must hold at least one input, got none")
    for number, label in enumerate(listed):
        if classes is not None and label not in classes:
            raise ValueError(f"labels must be classes of the model, {_named(classes)}, got {label!r} at {number}")
    return Examples([_split(unit, text, number) for number, text in enumerate(texts)], listed)


def _split(unit: Unit, text: Any, number: int) -> Tokens:
    try:
        return unit.split(text)
    except ValueError as error:
        raise ValueError(f"input {number}: {error}") from None


def _named(classes: list[Any]) -> str:
    shown = ", ".join(repr(label) for label in classes[:10])
    return shown if len(classes) <= 10 else f"{shown}, ..."
