"""The sentences of a report: one for each entry, and notes for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaptdel.advice import what_may_help_run
from adaptdel.report.comparison import Differences, certified_at_one
from adaptdel.report.entries import SAMPLE, Entry
from adaptdel.report.samples import attack_words, listed, plural, token
from adaptdel.tables import number, percent

_RECALLS = 6  # classes whose certified recall a sentence gives
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}


def summary(entries: Sequence[Entry]) -> list[str]:
    """A sentence for each entry."""
    return [_sentence(entry) for entry in entries]


def _sentence(entry: Entry) -> str:
    m, name = entry.measures, entry.name
    if not m.inputs:
        return f"{name} holds no certified inputs."
    if entry.is_constant:
        return (
            f"{name} does not tell the classes apart: (almost) all inputs get the answer “{entry.classes.constant}”, "
            "so its accuracy is that of a fixed answer, and its radii are no sign of robustness."
        )
    inputs = plural(m.inputs, "input") if len(entry.parts) == 1 else f"{m.inputs:,} inputs of {len(entry.parts)} runs"
    if entry.outcomes.labelled:
        accuracy = f"answers {percent(m.clean_accuracy)} of {inputs} correctly"
        accuracy += f" (balanced {percent(m.balanced_accuracy)})" if _is_uneven(entry) else ""
    else:
        accuracy = f"answers {inputs} without labels"
    if not entry.certifies:
        return f"{name} {accuracy}; without noise, nothing is certified."
    certified = (
        f"for {percent(certified_at_one(entry.outcomes))} the answer is {'also ' if entry.outcomes.labelled else ''}"
        f"certified against an attacker who {attack_words(entry.ops, entry.manifest.get('unit'), '1')}"
    )
    radius = f"mean certified radius: {number(m.mean_radius)} {token(entry.manifest.get('unit'))}s"
    return f"{name} {accuracy}; {certified}{_by_class(entry)}; {radius}.{_protection(entry)}"


def _is_uneven(entry: Entry) -> bool:
    sizes = [len(part) for part in entry.by_class.values()]
    return bool(sizes) and max(sizes) > 1.5 * min(sizes)


def _by_class(entry: Entry) -> str:
    """The certified recall at radius 1 of each class, for few classes."""
    parts = [f"{_named(label)}: {percent(certified_at_one(part))}" for label, part in entry.by_class.items()]
    return f" ({', '.join(parts)})" if 1 < len(parts) <= _RECALLS else ""


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
    return (
        f" It protects {_named(own.label)}: {percent(own.recall)} of its inputs get this answer, and "
        f"{percent(own.certified_recall[1])} whatever single edit an attacker makes; of "
        f"{plural(others, 'other input')}, {wrong:,} get it too (false positives)."
    )


def notes(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """What a reader has to know before comparing the numbers: warnings, inputs left out, different settings."""
    sentences = []
    for entry in entries:
        sentences += [f"{entry.name}: {warning}." for warning in entry.classes.warnings]
        if entry.classes.warnings:
            sentences.append(f"What may help {entry.name}: {what_may_help_run(entry.manifest)}.")
    for entry in entries:
        name = entry.name
        problems, unlabelled = (sum(getattr(part, key) for part in entry.parts) for key in ("problems", "unlabelled"))
        if not entry.finished:
            sentences.append(f"{name} is not finished: the report shows the inputs certified so far.")
        if problems:
            sentences.append(f"{name}: {plural(problems, 'row')} could not be certified and are left out.")
        if unlabelled:
            sentences.append(f"{name}: {plural(unlabelled, 'row')} without a label are left out.")
        if not entry.outcomes.labelled:
            sentences.append(f"{name} has no labels: every answer counts as correct unless the classifier abstains.")
        if name in compared:
            common, size = compared[name][0], len(entry.parts[0].outcomes)
            if not common:
                sentences.append(f"{name} has no input in common with {baseline.name}: they cannot be compared.")
            elif common < max(size, len(baseline.parts[0].outcomes)):
                drawn = " (a random sample)" if max(size, len(baseline.parts[0].outcomes)) > SAMPLE else ""
                sentences.append(f"{name} and {baseline.name} are compared on {plural(common, 'input')}{drawn}.")
    covering = [
        f"{entry.measures.covering:,} of {entry.measures.inputs:,} ({entry.name})"
        for entry in entries
        if entry.measures.covering
    ]
    if covering:
        sentences.append(
            f"Certificates that cover every text of their length: {listed(covering)}. There the answer provably does "
            "not depend on the words: the classifier reads too little of such short texts to tell them apart."
        )
    return sentences + _different_settings(entries)


def _different_settings(entries: Sequence[Entry]) -> list[str]:
    """Settings that make entries incomparable, and entries that are the same model."""
    sentences = []
    attackers: dict[tuple[str, ...], list[str]] = {}
    models: dict[str, list[str]] = {}
    for entry in entries:
        attackers.setdefault(entry.ops, []).append(entry.name)
        hashes = sorted(part.run.manifest.get("model_hash") or "" for part in entry.parts)
        models.setdefault(repr((hashes, entry.manifest.get("noise"), entry.group)), []).append(entry.name)
    if len(attackers) > 1:
        groups = [f"{listed([_NOUNS[op] for op in ops])} for {listed(names)}" for ops, names in attackers.items()]
        sentences.append(
            f"The runs certify against different attackers ({'; '.join(groups)}): their radii are not comparable."
        )
    sentences += [
        f"{listed(names)} are the same model with the same noise." for names in models.values() if len(names) > 1
    ]
    for key, noun in (("alpha", "error levels"), ("bound", "bounds"), ("unit", "units"), ("threshold", "thresholds")):
        values = {str(each.manifest.get(key)) for each in entries if not (each.is_exact and key in ("alpha", "bound"))}
        if len(values) > 1:
            sentences.append(f"The runs have different {noun} ({listed(sorted(values))}).")
    return sentences
