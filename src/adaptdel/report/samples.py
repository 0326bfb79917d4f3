"""A sample of the inputs with their certificates, and what the noise makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import content_key, stream
from adaptdel.core.checks import BoolArray
from adaptdel.core.noise import Noise
from adaptdel.data import read_rows
from adaptdel.report.entries import Entry, from_json
from adaptdel.report.tables import file_name
from adaptdel.runs.inputs import content_id
from adaptdel.units import Tokens, Unit, unit_from_dict

COPIES = 3
MOST_TEXT, MOST_COPY = 4000, 360  # characters that are shown


@dataclass(frozen=True)
class Shown:
    """What one run says of an input.

    Attributes:
        entry: the run.
        certificate: its certificate.
        right: whether the answer is the truth; None if that is not known.
        copies: noisy copies, each with the number of tokens kept.
    """

    entry: Entry
    certificate: Certificate
    right: bool | None
    copies: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Sampled:
    """An input, with what every run says of it; ``text`` is None if it could not be found."""

    id: str
    row: int
    truth: Any
    text: str | None
    length: int
    shown: tuple[Shown, ...]


def sample_inputs(
    entries: Sequence[Entry], count: int, *, data: str | None, seed: int
) -> tuple[list[Sampled], str | None]:
    """Some inputs drawn at random, in the order of the data; and why texts are missing, if they are."""
    first = entries[0]
    shared = [name for name in first.rows if all(name in entry.rows for entry in entries)] or list(first.rows)
    drawn = np.random.default_rng(seed).permutation(len(shared))[:count]
    chosen = [shared[place] for place in sorted(drawn)]
    texts, missing = find_texts(first, chosen, data)
    made = {entry.number: entry.certificates(chosen) for entry in entries}
    sampled = []
    for name in chosen:
        row, text = first.rows[name], texts.get(name)
        held = [(entry, made[entry.number][name]) for entry in entries if name in made[entry.number]]
        shown = tuple(
            Shown(entry, one, entry.rows[name]["correct"], noisy_copies(one, text, seed)) for entry, one in held
        )
        shortened = None if text is None else clip(text, MOST_TEXT)
        sampled.append(Sampled(name, row["row"], from_json(row["truth"]), shortened, row["length"], shown))
    return sampled, missing


def find_texts(entry: Entry, ids: Sequence[str], data: str | None) -> tuple[dict[str, str], str | None]:
    """The texts of some inputs by id, read again from the data file; and why some are missing, if they are.

    A text is taken only if its tokens are those that were certified: their hash is in the run.
    """
    described = entry.run.manifest.get("data") or {}
    path = data if data is not None else described.get("path")
    if not ids:
        return {}, None
    if entry.run.manifest["unit"] is None:
        return {}, "The texts are not shown: how the run splits them into tokens is not written down."
    if path is None or (data is None and not Path(path).is_file()):
        name = file_name(described) or "the data file"
        return {}, f"The texts are not shown: {name} is not where the run read it. Give it with --data."
    wanted = {name: entry.rows[name]["input_hash"] for name in ids}
    try:
        found = _matching(entry, wanted, path)
    except (OSError, ValueError) as error:
        if data is not None:
            raise
        return {}, f"The texts are not shown: {file_name(described)} cannot be read any more ({type(error).__name__})."
    lost = len(ids) - len(found)
    shown = file_name({"path": path})
    return found, f"{lost} of {len(ids)} texts are not shown: {shown} does not hold them (any more)." if lost else None


def _matching(entry: Entry, wanted: dict[str, str], path: str) -> dict[str, str]:
    """The texts in a file that have the wanted tokens: first under their id, then anywhere."""
    unit = unit_from_dict(entry.run.manifest["unit"])
    found: dict[str, str] = {}
    for name, text in _rows(entry, path):
        if name in wanted and name not in found and _hash(unit, text) == wanted[name]:
            found[name] = text
            if len(found) == len(wanted):
                return found
    names: dict[str, list[str]] = {}
    for name, key in wanted.items():
        if name not in found:
            names.setdefault(key, []).append(name)
    for _, text in _rows(entry, path):
        for name in names.pop(_hash(unit, text), ()):
            found[name] = text
        if not names:
            break
    return found


def _rows(entry: Entry, path: str) -> Iterator[tuple[str, str]]:
    """The id, as the run has it, and the text of every row that can be read."""
    described = entry.run.manifest.get("data") or {}
    names = {key: described[key] for key in ("text", "label", "ids", "encoding") if isinstance(described.get(key), str)}
    for row in read_rows(path, **names, on_problem=lambda number, sentence: None):
        yield row.id if row.id is not None else content_id(row.text), row.text


def _hash(unit: Unit, text: Any) -> str:
    return content_key(unit.split(text)).hex()


def noisy_copies(certificate: Certificate, text: str | None, seed: int) -> tuple[tuple[int, str], ...]:
    """A few copies under the noise of the certificate, as the base classifier would read them; ⟨5⟩ are 5 masks."""
    if text is None or certificate.unit is None or not certificate.noise.changes_inputs:
        return ()
    unit = unit_from_dict(certificate.unit)
    tokens = unit.split(text)
    rng = stream(seed, content_key(tokens), "report")
    kept = certificate.noise.sample(len(tokens), COPIES, rng)
    return tuple((int(row.sum()), _read(certificate.noise, unit, tokens, row)) for row in kept)


def _read(noise: Noise, unit: Unit, tokens: Tokens, kept: BoolArray) -> str:
    if not noise.masks_tokens:
        return clip(readable(unit.join([tokens[place] for place in np.flatnonzero(kept)])), MOST_COPY)
    parts, hidden = [], 0
    for token, keep in zip(tokens, kept, strict=True):
        if keep:
            parts += ([f"⟨{hidden}⟩"] if hidden else []) + [readable(token)]
        hidden = 0 if keep else hidden + 1
    return clip(" ".join(parts + ([f"⟨{hidden}⟩"] if hidden else [])), MOST_COPY)


def readable(value: Any) -> str:
    """What can be shown of a text, of bytes or of a token."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("ascii", "backslashreplace")
    return str(value)


def clip(text: str, most: int) -> str:
    """The beginning of a long text, with how much is left out.

    >>> clip("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
