"""The sentences of a report: one for each entry, and notes for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaptdel.advice import what_may_help_run
from adaptdel.measures.summary import certified_at_one
from adaptdel.report.comparison import Differences, is_uneven
from adaptdel.report.entries import Entry
from adaptdel.report.measured import CHARACTERS
from adaptdel.report.samples import attack_words, listed, plural, token
from adaptdel.tables import number, percent

_RECALLS = 6  # classes whose certified recall a sentence gives
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}


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
    return (
        f" It protects {_named(own.label)}: {percent(own.recall)} of its inputs get this answer, and "
        f"{percent(own.certified_recall[1])} whatever single edit an attacker makes; of "
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
            reason = "belong to no input of the run" if entry.is_foreign else "could not be certified"
            sentences.append(f"{name}: {plural(problems, 'row')} {reason} and are left out.")
        if unlabelled:
            sentences.append(f"{name}: {plural(unlabelled, 'row')} without a label are left out.")
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
