"""A random sample of inputs, with their texts, noisy copies, and certificates in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import content_key, stream
from adaptdel.core.threat import Threat
from adaptdel.report.entries import Entry, clip, file_name
from adaptdel.runs.records import label_value
from adaptdel.text.data import Row, read_each_row
from adaptdel.text.formats import HUB, data_files
from adaptdel.text.units import unit_from_dict

COPIES = 2  # noisy copies that are shown for each certificate
MOST_TEXT, MOST_COPY = 4000, 360  # characters that are shown
_NAMED_CLASSES = 4
_NAMED_TOKENS = 5
TOKENS = {"word": "word", "char": "character", "byte": "byte", "chunk": "chunk", "labelled": "chunk"}
_VERBS = {"del": "deletes", "ins": "inserts", "sub": "substitutes"}


@dataclass(frozen=True)
class RunAnswer:
    """The certificate of an input in a run; ``correct`` is None if the label is unknown."""

    entry: Entry
    certificate: Certificate | ExactCertificate
    correct: bool | None
    copies: tuple[str, ...]
    text: str | None = None

    @property
    def colour(self) -> int:
        """The number of the run's colour."""
        return self.entry.colour_number

    @property
    def words(self) -> list[str]:
        """What the certificate states, in sentences."""
        return certificate_words(self.certificate, self.text)


@dataclass(frozen=True)
class SampledInput:
    """An input with its certificates in all runs; ``text`` is None if it is not available."""

    row: int
    id: str
    label: Any
    text: str | None
    length: int
    answers: tuple[RunAnswer, ...]


def sample_inputs(
    entries: Sequence[Entry], count: int, *, data: str | None, seed: int
) -> tuple[list[SampledInput], str | None]:
    """A random sample of the inputs, in the order of the data; and a sentence if texts are missing."""
    first = entries[0]
    shared = [row for row in first.rows if all(row in entry.rows for entry in entries)] or list(first.rows)
    drawn = np.random.default_rng(seed).permutation(len(shared))[:count]
    chosen = [shared[place] for place in sorted(drawn)]
    texts, missing = find_texts(first, chosen, data)
    certificates = [entry.certificates(chosen) for entry in entries]
    sampled = []
    for number in chosen:
        record, text = first.rows[number], texts.get(number)
        label = None if record["truth"] is None else label_value(record["truth"])
        answers = tuple(
            RunAnswer(
                entry,
                by_row[number],
                None if label is None else by_row[number].label == label,
                noisy_copies(by_row[number], text, seed),
                text,
            )
            for entry, by_row in zip(entries, certificates, strict=True)
            if number in by_row
        )
        shown = None if text is None else clip(readable(text), MOST_TEXT)
        sampled.append(SampledInput(number, record["id"] or str(number), label, shown, record["length"], answers))
    return sampled, missing


def find_texts(entry: Entry, rows: Sequence[int], data: str | None) -> tuple[dict[int, str], str | None]:
    """The texts of rows, read from the data file, if their tokens are those that were certified; or what is missing."""
    described = entry.manifest.get("data") or {}
    path, name = (described.get("path"), file_name(described)) if data is None else (data, file_name({"path": data}))
    if not rows:
        return {}, None
    if entry.manifest.get("unit") is None:
        return {}, "The texts are not shown: the run does not state how it splits texts into tokens."
    unit = unit_from_dict(entry.manifest["unit"])
    columns = {n: described[n] for n in ("text", "label", "encoding") if isinstance(described.get(n), str)}
    texts = {}
    try:
        if path is None or (data is None and any(file.kind == HUB or file.is_remote for file in data_files(path))):
            raise ValueError("not a local file")
        for row in read_each_row(path, **columns):
            record = entry.rows[row.number] if row.number in rows else None
            if (
                isinstance(row, Row)
                and record is not None
                and content_key(unit.split(row.text)).hex() == record["input_hash"]
            ):
                texts[row.number] = row.text
            if row.number >= max(rows):
                break
    except (OSError, ValueError, ImportError):
        if data is not None:
            raise
        return (
            {},
            f"The texts are not shown: {name or 'the data file'} is not where the run read it. Give it with --data.",
        )
    lost = sum(row not in texts for row in rows)
    return texts, f"{lost} of {len(rows)} texts are not shown: {name} does not hold them (any more)." if lost else None


def noisy_copies(certificate: Certificate | ExactCertificate, text: str | None, seed: int) -> tuple[str, ...]:
    """A few noisy copies as the base classifier reads them; ␣ stands for a masked token."""
    if text is None or certificate.unit is None or isinstance(certificate, ExactCertificate):
        return ()
    if not certificate.noise.changes_inputs:
        return ()
    unit, noise = unit_from_dict(certificate.unit), certificate.noise
    tokens = unit.split(text)
    kept = noise.sample(len(tokens), COPIES, stream(seed, content_key(tokens), "report"))
    copies = []
    for row in kept:
        if noise.masks_tokens:
            copy = " ".join(readable(token) if keep else "␣" for token, keep in zip(tokens, row, strict=True))
        else:
            copy = readable(unit.join([tokens[place] for place in np.flatnonzero(row)]))
        copies.append(clip(copy, MOST_COPY))
    return tuple(copies)


def readable(value: Any) -> str:
    """A text, bytes or a token as text."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("ascii", "backslashreplace")
    return str(value)


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(count: float, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "edit"), plural(2.5, "edit")
    ('1 edit', '2.5 edits')
    """
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")


def token(unit: Any) -> str:
    """The name of a unit's tokens."""
    return TOKENS.get((unit or {}).get("kind", ""), "token")


def attack_words(ops: Sequence[str], unit: Any, amount: str = "") -> str:
    """What an attacker does.

    >>> attack_words(["del", "ins"], {"kind": "word"}, "up to 3")
    'deletes or inserts up to 3 words'
    """
    noun = token(unit) + ("" if amount == "1" else "s")
    return " ".join(filter(None, [listed([_VERBS[op] for op in ops], "or"), amount, noun]))


def certificate_words(certificate: Certificate | ExactCertificate, text: str | None = None) -> list[str]:
    """What a certificate states and where it comes from, in sentences; with the text, which words carry it."""
    label, radius, unit = certificate.label, certificate.radius, certificate.unit
    confidence = f"With {100 * (1 - certificate.alpha):g}% confidence" if certificate.alpha else "With certainty"
    if certificate.abstained:
        statement = f"The classifier abstains: the votes do not determine the answer “{label}”."
    elif radius == 0:
        statement = f"{confidence}, the answer is “{label}”; a single edit might change it."
    else:
        amount = "1" if radius == 1 else f"up to {radius:,}"
        attacker = attack_words(certificate.ops, unit, amount)
        statement = f"{confidence}, no attacker who {attacker} can change the answer “{label}”."
        alone = {"ins": "inserts", "del": "deletes"} if len(certificate.ops) == 3 else {}
        needs = [f"who only {verb} needs more than {certificate.radius_for([op]):,}" for op, verb in alone.items()]
        statement += f" An attacker {listed(needs)}." if needs else ""
    needed = Threat(certificate.ops).covering_radius(certificate.length)
    if needed is not None and radius >= needed:
        statement += " This covers every text of its length: the answer does not depend on its words."
    if isinstance(certificate, ExactCertificate):
        return [statement, *_score_words(certificate, text)]
    return [statement, *_vote_words(certificate)]


def _score_words(certificate: ExactCertificate, text: str | None) -> list[str]:
    """The margin of an exact certificate, the tokens that carry it, and what one edit more can do."""
    rival, margin = certificate.closest
    noun, lead = token(certificate.unit), margin.slack + 1
    sentences = [
        f"The score of “{certificate.label}” is ahead of “{certificate.classes[rival]}” by {lead:,}, of which an "
        f"inserted {noun} takes at most {100 * margin.insertion / lead:.3g}%."
    ]
    tokens = unit_from_dict(certificate.unit).split(text) if text is not None and certificate.unit is not None else ()
    edits, _ = certificate.worst_edits()
    if tokens and certificate.touchable is None:
        order = np.argsort(-margin.deletion, kind="stable")[:_NAMED_TOKENS]
        shown = [
            f"{readable(tokens[i])} (+{100 * margin.deletion[i] / lead:.3g}%)" for i in order if margin.deletion[i] > 0
        ]
        if shown:
            sentences.append(f"The {noun}s with the largest parts of this lead: {', '.join(shown)}.")
    if edits and certificate.ngram == 1:
        named = [f"“{readable(tokens[e.position])}”" for e in edits if tokens and e.position is not None][
            :_NAMED_TOKENS
        ]
        more = f", beginning with {listed(named)}" if named else ""
        sentences.append(f"The radius is the true one: {plural(len(edits), 'edit')} can be enough{more}.")
    return sentences


def _vote_words(certificate: Certificate) -> list[str]:
    """The noise and the votes behind a certificate."""
    selection, noise, unit = certificate.selection, certificate.noise, certificate.unit
    exact, last = certificate.exact, certificate.votes[-1] if certificate.votes else selection
    counts = tuple(map(sum, exact)) if exact is not None else last
    order = sorted(range(len(counts)), key=lambda place: (place != certificate.answer, -counts[place]))
    shown = [f"{counts[place]:,} for {certificate.classes[place]}" for place in order[:_NAMED_CLASSES]]
    more = f" and {len(counts) - _NAMED_CLASSES} more classes" if len(counts) > _NAMED_CLASSES else ""
    if not noise.changes_inputs:
        return [f"Votes without noise: {', '.join(shown)}{more}."]
    removed = f"{100 * noise.share_removed(certificate.length):.3g}% of its {token(unit)}s"
    change = f"{removed} masked" if noise.masks_tokens else f"a random {removed} deleted"
    copies = f"all {sum(counts):,} possible copies" if exact is not None else f"{sum(counts):,} noisy copies"
    return [
        f"The model classified {copies} of the input, each with {change}: {', '.join(shown)}{more}; so the probability "
        f"of the answer is at least {certificate.bounds[0]:.4f}."
    ]
