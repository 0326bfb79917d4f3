"""A report in words: sampled inputs with their certificates, a summary of each entry, and notes for the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaptdel.advice import what_may_help_run
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.exact import ExactCertificate
from adaptdel.core.threat import Threat
from adaptdel.measures.summary import certified_at_one
from adaptdel.report.comparison import Differences, is_uneven
from adaptdel.report.entries import Entry, clip, file_name
from adaptdel.report.measured import CHARACTERS
from adaptdel.runs.records import label_value
from adaptdel.tables import number, percent
from adaptdel.text.data import Row, read_each_row
from adaptdel.text.formats import HUB, data_files
from adaptdel.text.units import unit_from_dict

MOST_TEXT = 4000  # characters that are shown
_NAMED_CLASSES = 4
_NAMED_TOKENS = 5
TOKENS = {"word": "word", "char": "character", "byte": "byte", "chunk": "chunk", "labelled": "chunk"}
_RECALLS = 6  # classes whose certified recall a sentence gives
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}


@dataclass(frozen=True)
class RunAnswer:
    """The certificate of an input in a run, in sentences; ``correct`` is None if the label is unknown."""

    entry: Entry
    certificate: Certificate | ExactCertificate
    correct: bool | None
    words: Sequence[str]

    @property
    def radius(self) -> int | None:
        """The radius in the unit of the entry."""
        return self.certificate.character_radius if self.entry.characters else self.certificate.radius


@dataclass(frozen=True)
class ShownInput:
    """An input with its certificates; ``text`` is None if it is not available."""

    row: int
    id: str
    label: Any
    text: str | None
    length: int
    answers: tuple[RunAnswer, ...]

    def under(self, entry: Entry) -> ShownInput:
        """The input with the certificate of one entry only."""
        return replace(self, answers=tuple(answer for answer in self.answers if answer.entry is entry))


def sampled_rows(entries: Sequence[Entry], count: int, seed: int) -> list[int]:
    """The numbers of rows that are drawn at random, ascending; of rows that all runs hold, if there are any."""
    first = entries[0]
    shared = [row for row in first.rows if all(row in entry.rows for entry in entries)] or list(first.rows)
    return sorted(shared[place] for place in np.random.default_rng(seed).permutation(len(shared))[:count])


def example_row(entry: Entry, first: Entry) -> list[int]:
    """The row of a right answer with the median radius among those above 0, whose text the first entry has; or none.

    Of a run that protects a class, an answer of that class.
    """
    right = {n: row for n, row in entry.rows.items() if row["truth"] in (None, row["answer"])}
    own = {n for n, row in right.items() if entry.protects in (None, str(label_value(row["answer"])))}
    rows = {n: row["radius"] for n, row in right.items() if n in own}
    ranked = sorted(
        (n for n, radius in rows.items() if radius > 0 and _same_text(entry, first, n)), key=rows.__getitem__
    )
    return ranked[len(ranked) // 2 : len(ranked) // 2 + 1]


def shown_inputs(
    entries: Sequence[Entry], rows: Iterable[int], data: str | None
) -> tuple[dict[int, ShownInput], str | None]:
    """Inputs of the first entry by row number, with all certificates; and a sentence if texts are missing."""
    first, chosen = entries[0], sorted({*rows})
    ids = {row: first.rows[row]["id"] for row in chosen}
    texts, missing = find_texts(first.manifest.get("data") or {}, ids, data)
    certificates = [entry.certificates(chosen) for entry in entries]
    shown = {}
    for row in chosen:
        record, text = first.rows[row], texts.get(row)
        label = None if record["truth"] is None else label_value(record["truth"])
        answers = [
            RunAnswer(entry, own, None if label is None else own.label == label, certificate_words(own, text))
            for entry, by_row in zip(entries, certificates, strict=True)
            if (own := by_row.get(row)) is not None and _same_text(entry, first, row)
        ]
        clipped = None if text is None else clip(readable(text), MOST_TEXT)
        shown[row] = ShownInput(row, record["id"], label, clipped, record["length"], tuple(answers))
    return shown, missing


def _same_text(entry: Entry, other: Entry, row: int) -> bool:
    """Whether both entries hold this row, of the same text: runs may be of different data."""
    return row in other.rows and entry.rows[row]["id"] == other.rows[row]["id"]


def find_texts(
    described: Mapping[str, Any], ids: Mapping[int, str], data: str | None = None
) -> tuple[dict[int, str], str | None]:
    """The texts of rows by number, if they still have their ids; and a sentence if texts are missing.

    Args:
        described: the data, as in a manifest.
        ids: the ids by row number.
        data: the data file, if it is not where the run read it.
    """
    path, name = (described.get("path"), file_name(described)) if data is None else (data, file_name({"path": data}))
    if not ids:
        return {}, None
    columns = {n: described[n] for n in ("text", "label", "encoding") if isinstance(described.get(n), str)}
    texts = {}
    try:
        if path is None or (data is None and any(file.kind == HUB or file.is_remote for file in data_files(path))):
            raise ValueError("not a local file")
        for row in read_each_row(path, **columns):
            if isinstance(row, Row) and ids.get(row.number) == row.id:
                texts[row.number] = row.text
            if row.number >= max(ids):
                break
    except (OSError, ValueError, ImportError):
        if data is not None:
            raise
        return (
            {},
            f"The texts are not shown: {name or 'the data file'} is not where the run read it. Give it with --data.",
        )
    lost = len(ids) - len(texts)
    return texts, f"{lost} of {len(ids)} texts are not shown: {name} does not hold them (any more)." if lost else None


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


def attack_words(threat: Any, amount: str) -> str:
    """What the attacker of an entry or of a certificate does.

    >>> from types import SimpleNamespace
    >>> attack_words(SimpleNamespace(ops=["del", "ins"], unit={"kind": "word"}), "up to 3")
    'deletes or inserts up to 3 words'
    """
    noun = token(threat.unit) + ("" if amount == "1" else "s")
    return f"{Threat(threat.ops).verbs} {amount} {noun}"


def certificate_words(certificate: Certificate | ExactCertificate, text: str | None = None) -> list[str]:
    """What a certificate states and where it comes from, in sentences; with the text, which words carry it."""
    label, radius = certificate.label, certificate.radius
    confidence = f"With {100 * (1 - certificate.alpha):g}% confidence" if certificate.alpha else "With certainty"
    if certificate.abstained:
        statement = f"The classifier abstains: the votes do not determine the answer “{label}”."
    elif radius == 0:
        statement = f"{confidence}, the answer is “{label}”; a single edit might change it."
    else:
        attack = attack_words(certificate, "1" if radius == 1 else f"up to {radius:,}")
        statement = f"{confidence}, no attacker who {attack} can change the answer “{label}”."
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


def summary(entry: Entry) -> str:
    """What an entry shows, in a sentence; two if it protects a class."""
    m, name, noun = entry.measures, entry.name, token(entry.unit)
    if not m.inputs:
        return f"{name} holds no certified inputs."
    if entry.is_constant:
        return (
            f"{name} does not tell the classes apart: (almost) all inputs get the answer “{entry.classes.constant}”, "
            "so its accuracy is that of a fixed answer, and its radii are no sign of robustness."
        )
    inputs = plural(m.inputs, "input") if len(entry.parts) == 1 else f"{m.inputs:,} inputs of {len(entry.parts)} runs"
    if entry.outcomes.labelled:
        accuracy = f"is right on {percent(m.clean_accuracy)} of {inputs}"
        accuracy += f" (balanced: {percent(m.balanced_accuracy)})" if is_uneven(entry) else ""
    else:
        accuracy = f"answers {inputs} without labels"
    if not entry.certifies:
        return f"{name} {accuracy}; without noise, nothing is certified."
    stays = "stays right" if entry.outcomes.labelled else "keeps its answer"
    stays = f"by its own account {stays}" if entry.is_foreign else f"provably {stays}"
    certified = f"{stays} on {percent(certified_at_one(entry.outcomes))} if an attacker {attack_words(entry, '1')}"
    stated = "; these certificates of another system cannot be verified here" if entry.is_foreign else ""
    return (
        f"{name} {accuracy}; it {certified}{_by_class(entry)}; the mean certified radius is {number(m.mean_radius)} "
        f"{noun}s{stated}.{_protection(entry)}"
    )


def _by_class(entry: Entry) -> str:
    """The certified recall at radius 1 of each class, for few classes that are unevenly frequent."""
    parts = [f"{_named(label)}: {percent(certified_at_one(part))}" for label, part in entry.by_class.items()]
    return f" ({', '.join(parts)})" if 1 < len(parts) <= _RECALLS and is_uneven(entry) else ""


def _named(label: Any) -> str:
    """A label in a list of figures; a number alone would look like one of them."""
    return f"class {label}" if isinstance(label, (int, float)) else str(label)


def _protection(entry: Entry) -> str:
    """What the decision threshold of a run does for the class that it protects."""
    own = next((each for each in entry.classes.classes if str(each.label) == entry.protects and each.inputs), None)
    if own is None:
        return ""
    others = sum(each.inputs for each in entry.classes.classes) - own.inputs
    wrong = own.answers - round(own.recall * own.inputs)
    rate = f" ({percent(wrong / others)})" if others else ""
    is_proved = (entry.manifest.get("model") or {}).get("protects") is not None
    how = "It protects" if is_proved else "With its decision threshold,"
    return (
        f" {how} {_named(own.label)}: {percent(own.recall)} of its inputs get this answer, and "
        f"{percent(own.certified_recall[1])} if an attacker {attack_words(entry, '1')}; of "
        f"{plural(others, 'other input')}, {wrong:,}{rate} get it too (false positives)."
    )


def notes(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """What a reader has to know before comparing the numbers: warnings, inputs left out, different settings."""
    sentences = []
    for entry in entries:
        sentences += [f"{entry.name}: {warning}." for warning in entry.classes.warnings]
        if entry.classes.warnings and not entry.is_foreign:
            sentences.append(f"What may help {entry.name}: {what_may_help_run(entry.manifest)}.")
    for entry in entries:
        name = entry.name
        problems, unlabelled = (sum(getattr(part, key) for part in entry.parts) for key in ("problems", "unlabelled"))
        if not entry.finished:
            sentences.append(f"{name} is not finished: the report shows the inputs certified so far.")
        if problems:
            reason = "matched no input of the run" if entry.is_foreign else "could not be certified"
            sentences.append(f"{name}, left out: {plural(problems, 'row')} that {reason}.")
        if unlabelled:
            sentences.append(f"{name}, left out: {plural(unlabelled, 'row')} without a label.")
        if not entry.outcomes.labelled:
            sentences.append(f"{name} has no labels: every answer counts as correct unless the classifier abstains.")
        if name in compared:
            common, size = compared[name][0], max(len(each.parts[0].outcomes) for each in (entry, baseline))
            if not common:
                sentences.append(f"{name} has no input in common with {baseline.name}: they cannot be compared.")
            elif common < size:
                sentences.append(f"{name} and {baseline.name} are compared on {common:,} of {plural(size, 'input')}.")
    covering = [
        f"{entry.measures.covering:,} of {entry.measures.inputs:,} ({entry.name})"
        for entry in entries
        if entry.measures.covering and not entry.characters
    ]
    if covering:
        sentences.append(
            f"Certificates that cover every text of their length: {listed(covering)}. There the answer provably does "
            "not depend on the words, so they say nothing of robustness."
        )
    return sentences + _different_settings(entries)


def _different_settings(entries: Sequence[Entry]) -> list[str]:
    """Settings that make entries incomparable, and entries that are the same model."""
    sentences = []
    attackers: dict[str, list[str]] = {}
    models: dict[str, list[str]] = {}
    for entry in entries:
        edits = f"{listed([_NOUNS[op] for op in entry.ops])} of {token(entry.unit)}s"
        attackers.setdefault(edits, []).append(entry.name)
        hashes = sorted(str(part.run.manifest.get("model_hash") or part.run.folder) for part in entry.parts)
        models.setdefault(repr((hashes, entry.manifest.get("noise"), entry.group)), []).append(entry.name)
    if len(attackers) > 1:
        groups = [f"{edits} for {listed(names)}" for edits, names in attackers.items()]
        sentences.append(
            f"The runs certify against different attackers ({'; '.join(groups)}): their radii are not comparable."
        )
        if any(entry.unit == CHARACTERS for entry in entries):
            sentences.append("--characters counts the radii of all runs in edited characters.")
    sentences += [
        f"{listed(names)} are the same model with the same noise." for names in models.values() if len(names) > 1
    ]
    for key, noun in (("alpha", "error levels"), ("bound", "bounds"), ("threshold", "decision thresholds")):
        shown = [each for each in entries if not each.is_foreign and not (each.is_exact and key in ("alpha", "bound"))]
        values = {str(each.manifest.get(key)) for each in shown}
        if len(values) > 1:
            sentences.append(f"The runs have different {noun} ({listed(sorted(values))}).")
    return sentences
