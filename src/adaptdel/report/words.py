"""A report in words: sampled inputs with their certificates, a summary of each entry, and notes for the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaptdel.advice import what_may_help_run
from adaptdel.certification.certificate import Certificate
from adaptdel.measures.class_measures import padding_sentence
from adaptdel.measures.summary import Outcomes, certified_at_radius
from adaptdel.report.comparison import Differences
from adaptdel.report.entries import CHARACTERS, Entry, RunInputs, clip, file_name
from adaptdel.runs.columns import label_of
from adaptdel.runs.inputs import DataFacts
from adaptdel.tables import listed, number, percent, plural
from adaptdel.text.data import Row, label_value, read_each_row
from adaptdel.text.formats import HUB, data_files
from adaptdel.text.units import noun, readable

MOST_TEXT = 4000  # characters that are shown
_RECALLS = 6  # classes whose certified recall a sentence gives
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}


@dataclass(frozen=True)
class RunAnswer:
    """The certificate of an input in a run, in sentences; ``correct`` is None if the label is unknown."""

    entry: Entry
    certificate: Certificate
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
    first, *others = (entry.first.rows for entry in entries)
    shared = [row for row in first if all(row in rows for rows in others)] or list(first)
    return sorted(shared[place] for place in np.random.default_rng(seed).permutation(len(shared))[:count])


def example_row(entry: Entry, first: Entry) -> list[int]:
    """The row of a right answer with the median radius among those above 0, whose text the first entry has; or none.

    Of a run that protects a class, an answer of that class.
    """
    radii = {
        place: row["radius"]
        for place, row in entry.first.rows.items()
        if row["truth"] in (None, row["answer"])
        and entry.protects in (None, str(label_value(row["answer"])))
        and row["radius"] > 0
        and _same_text(entry, first, place)
    }
    ranked = sorted(radii, key=radii.__getitem__)
    return ranked[len(ranked) // 2 : len(ranked) // 2 + 1]


def shown_inputs(
    entries: Sequence[Entry], rows: Iterable[int], data: str | None
) -> tuple[dict[int, ShownInput], str | None]:
    """Inputs of the first entry by row number, with all certificates; and a sentence if texts are missing."""
    first, chosen = entries[0], sorted({*rows})
    texts, missing = find_texts(first.first.data, {row: first.first.rows[row]["id"] for row in chosen}, data)
    certificates = [entry.certificates(chosen) for entry in entries]
    shown = {}
    for row in chosen:
        record, text = first.first.rows[row], texts.get(row)
        label = label_of(record)
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
    rows, others = entry.first.rows, other.first.rows
    return row in others and rows[row]["id"] == others[row]["id"]


def find_texts(facts: DataFacts, ids: Mapping[int, str], data: str | None = None) -> tuple[dict[int, str], str | None]:
    """The texts of rows by number, if they still have their ids; and a sentence if texts are missing.

    Args:
        facts: the data, as in a manifest.
        ids: the ids by row number.
        data: the data file, if it is not where the run read it.
    """
    if not ids:
        return {}, None
    path = facts.path if data is None else (data,)
    texts, name = {}, file_name(path)
    try:
        if data is None and any(file.kind == HUB or file.is_remote for file in data_files(path)):
            raise ValueError("not a local file")
        for row in read_each_row(path, text=facts.text, label=facts.label, encoding=facts.encoding):
            if isinstance(row, Row) and ids.get(row.number) == row.id:
                texts[row.number] = row.text
            if row.number >= max(ids):
                break
    except (OSError, ValueError, ImportError):
        if data is not None:
            raise
        return {}, f"The texts are not shown: {name} has moved since the run read it. Give it with --data."
    lost = len(ids) - len(texts)
    return texts, f"{lost} of {len(ids)} texts are not shown: {name} no longer contains them." if lost else None


def _attack(subject: Certificate | RunInputs, amount: str) -> str:
    """What the attacker of a certificate or of a run does, such as "deletes or inserts up to 3 words"."""
    threat = subject.plan.threat if isinstance(subject, Certificate) else subject.threat
    return f"{threat.verbs} {amount} {noun(subject.unit)}{'' if amount == '1' else 's'}"


def certificate_words(certificate: Certificate, text: str | None = None) -> list[str]:
    """What a certificate states and where it comes from, in sentences; with the text, which words carry it."""
    label, radius = certificate.label, certificate.radius
    confidence = f"With {100 * (1 - certificate.alpha):g}% confidence" if certificate.alpha else "With certainty"
    if certificate.abstained:
        statement = f"The classifier abstains: the votes do not determine the answer “{label}”."
    elif radius == 0:
        statement = f"{confidence}, the answer is “{label}”; a single edit might change it."
    else:
        attack = _attack(certificate, "1" if radius == 1 else f"up to {radius:,}")
        statement = f"{confidence}, no attacker who {attack} can change the answer “{label}”."
        if len(certificate.ops) == 3 and certificate.plan.threat.is_bounded:
            inserts, deletes = (f"{certificate.radius_for([op]):,}" for op in ("ins", "del"))
            statement += (
                f" An attacker who only inserts needs more than {inserts} and who only deletes needs more than "
                f"{deletes}."
            )
    if certificate.padding and not certificate.plan.threat.padding:
        statement += (
            f" With any text added before and after, it stays after {plural(certificate.padded_radius, 'edit')} inside."
        )
    if certificate.covers_every_text:
        statement += " This covers every text of its length: the answer does not depend on its words."
    return [statement, *certificate.explain(text).sentences]


def summary(entry: Entry) -> str:
    """What an entry shows, in a sentence; two if it protects a class."""
    m, name = entry.measures, entry.name
    if not m.inputs:
        return f"{name} holds no certified inputs."
    if entry.classes.constant is not None:
        return (
            f"{name} does not tell the classes apart: (almost) all inputs get the answer “{entry.classes.constant}”, "
            "so its accuracy is that of a fixed answer and its radii do not show robustness."
        )
    inputs = plural(m.inputs, "input") if len(entry.parts) == 1 else f"{m.inputs:,} inputs of {len(entry.parts)} runs"
    accuracy, stays = f"answers {inputs} without labels", "keeps its answer"
    if entry.outcomes.labelled:
        accuracy, stays = f"is right on {percent(m.clean_accuracy)} of {inputs}", "stays right"
        accuracy += f" (balanced: {percent(m.balanced_accuracy)})" if entry.is_uneven else ""
    if not entry.certifies:
        return f"{name} {accuracy}; without noise, nothing is certified."
    stays, stated = f"provably {stays}", ""
    if entry.plan is None:
        stays = stays.replace("provably", "by its own account")
        stated = "; these certificates of another system cannot be verified here"
    recalls = [f"{_named(label)}: {_at_one(part)}" for label, part in entry.by_class.items()]
    by_class = f" ({', '.join(recalls)})" if 1 < len(recalls) <= _RECALLS and entry.is_uneven else ""
    return (
        f"{name} {accuracy}; it {stays} on {_at_one(entry.outcomes)} if an attacker "
        f"{_attack(entry.first, '1')}{by_class}; the mean certified radius is {number(m.mean_radius)} "
        f"{noun(entry.first.unit)}s{stated}.{_protection(entry)}"
    )


def _at_one(inputs: Outcomes) -> str:
    """The fraction of inputs that are correct and certified against any single edit."""
    return percent(float(certified_at_radius(inputs, [1])[0]))


def _named(label: Any) -> str:
    """A label in a list of figures; a number alone would look like one of them."""
    return f"class {label}" if isinstance(label, (int, float)) else str(label)


def _protection(entry: Entry) -> str:
    """What the decision threshold of a run does for the class that it protects."""
    own = next((each for each in entry.classes.classes if str(each.label) == entry.protects and each.inputs), None)
    if own is None or entry.manifest is None:
        return ""
    others = sum(each.inputs for each in entry.classes.classes) - own.inputs
    wrong = own.answers - round(own.recall * own.inputs)
    rate = f" ({percent(wrong / others)})" if others else ""
    padded = padding_sentence(own.to_dict(), noun(entry.first.unit))
    how = "With its decision threshold," if entry.manifest.model.protects is None else "It protects"
    return (
        f" {how} {_named(own.label)}: {percent(own.recall)} of its inputs get this answer, and "
        f"{percent(own.certified_recall[1])} if an attacker {_attack(entry.first, '1')}{padded and f', {padded}'}; of "
        f"{plural(others, 'other input')}, {wrong:,}{rate} get it too (false positives)."
    )


def notes(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """What a reader has to know before comparing the numbers: warnings, inputs left out, different settings."""
    sentences = []
    for entry in entries:
        sentences += [f"{entry.name}: {warning}." for warning in entry.classes.warnings]
        if entry.classes.warnings and entry.manifest is not None:
            sentences.append(f"To improve {entry.name}: {what_may_help_run(entry.manifest)}.")
    for entry in entries:
        name = entry.name
        problems, unlabelled = (sum(getattr(part, key) for part in entry.parts) for key in ("problems", "unlabelled"))
        if not entry.finished:
            sentences.append(f"{name} is not finished: the report shows the inputs certified so far.")
        if problems:
            reason = "matched no input of the run" if entry.plan is None else "could not be certified"
            sentences.append(f"{name}, left out: {plural(problems, 'row')} that {reason}.")
        if unlabelled:
            sentences.append(f"{name}, left out: {plural(unlabelled, 'row')} without a label.")
        if not entry.outcomes.labelled:
            sentences.append(f"{name} has no labels: every answer counts as correct unless the classifier abstains.")
        if name in compared:
            common, size = compared[name][0], max(len(each.first.outcomes) for each in (entry, baseline))
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
            "not depend on the words, so they do not show robustness."
        )
    return sentences + _different_settings(entries)


def _different_settings(entries: Sequence[Entry]) -> list[str]:
    """Settings that make entries incomparable."""
    sentences = []
    attackers: dict[str, list[str]] = {}
    for entry in entries:
        edits = f"{listed([_NOUNS[op] for op in entry.first.threat.ops])} of {noun(entry.first.unit)}s"
        attackers.setdefault(edits, []).append(entry.name)
    if len(attackers) > 1:
        groups = [f"{edits} for {listed(names)}" for edits, names in attackers.items()]
        sentences.append(
            f"The runs certify against different attackers ({'; '.join(groups)}): their radii are not comparable."
        )
        if any(entry.first.unit == CHARACTERS for entry in entries):
            sentences.append("--characters counts the radii of all runs in edited characters.")
    own = [entry.first.settings for entry in entries if entry.plan is not None]
    uncertain = [entry.first.settings for entry in entries if entry.plan is not None and entry.plan.alpha]
    for parts, key, noun_ in ((uncertain, "confidence", "confidence levels"), (uncertain, "bound", "bounds"),
                              (own, "threshold", "decision thresholds")):  # fmt: skip
        values = {str(settings.get(key)).replace("None", "none") for settings in parts}
        if len(values) > 1:
            sentences.append(f"The runs have different {noun_} ({listed(sorted(values))}).")
    return sentences
