"""Entries compared: paired bootstrap intervals for the differences, and the tables of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from math import nan
from operator import itemgetter
from typing import Any

import numpy as np

from adaptdel.core.checks import FloatArray, IntArray, check_int
from adaptdel.core.threat import ROBERTA_VOCABULARY
from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table, confusion_table
from adaptdel.measures.summary import (
    MEASURE_COLUMNS,
    Outcomes,
    log_cardinality_curve,
    measure,
    radius_curve,
)
from adaptdel.report.entries import CHARACTERS, Entry, file_name
from adaptdel.tables import UNDEFINED, Column, Row, Table, duration, integer, number, percent, signed

SIZE = "median log₁₀ size"
_TITLES = {column.keys[0]: column.title for column in MEASURE_COLUMNS}
STATISTICS = {**_TITLES, "median_log_cardinality": SIZE}  # the compared measures and their headings
_RADII = ("mean_radius", "class_balanced_mean_radius")  # comparable for the same attacker
_UNEVEN = ("balanced_accuracy", "class_balanced_mean_radius")  # shown where some classes are rarer than others


@dataclass(frozen=True)
class Difference:
    """How much larger a measure is in one entry than in another, with a confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def default_baseline(entries: Sequence[Entry]) -> Entry:
    """The entry that most others can be compared with: the same data and attacker; not constant; with certificates."""
    alike = Counter((entry.data, entry.attacker) for entry in entries)
    return max(
        entries,
        key=lambda e: (e.classes.constant is None, e.certifies, e.plan is not None, alike[e.data, e.attacker]),
    )


def paired(entries: Sequence[Entry]) -> list[list[Outcomes]]:
    """For each entry, the inputs that all runs hold, run by run, in the same order."""
    ids = [[[record["id"] for record in part.rows.values()] for part in entry.parts] for entry in entries]
    common = set.intersection(*(set(part) for parts in ids for part in parts))
    return [
        [
            inputs.outcomes.take(np.array([place for place, id in enumerate(part) if id in common], dtype=np.int64))
            for inputs, part in zip(entry.parts, parts, strict=True)
        ]
        for entry, parts in zip(entries, ids, strict=True)
    ]


def paired_differences(
    runs: Sequence[Outcomes], baseline: Sequence[Outcomes], *, resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Each measure of an entry minus that of the baseline, with 95% percentile intervals of the paired bootstrap.

    Inputs are drawn with replacement, the same for all runs, which hold the same inputs in the same order (`paired`).
    Of several seeds, the measures are averaged. The intervals account for the choice of inputs, not for the randomness
    of votes and training.
    """
    sizes = {len(outcomes) for outcomes in (*runs, *baseline)}
    if len(sizes) > 1:
        raise ValueError(f"all runs must hold the same inputs, got {sorted(sizes)}")
    size = sizes.pop()
    check_int("resamples", resamples, least=1)
    if not size:
        return {name: Difference(nan, nan, nan) for name in STATISTICS}
    sides = [[_statistics(outcomes) for outcomes in side] for side in (runs, baseline)]

    def gap(positions: IntArray) -> FloatArray:
        left, right = (np.mean([statistics(positions) for statistics in side], axis=0) for side in sides)
        return np.asarray(left - right)

    rng = np.random.default_rng(seed)
    values = gap(np.arange(size))
    low, high = np.percentile([gap(rng.integers(size, size=size)) for _ in range(resamples)], [2.5, 97.5], axis=0)
    columns = (column.tolist() for column in (values, low, high))
    return {name: Difference(*ends) for name, *ends in zip(STATISTICS, *columns, strict=True)}


def _statistics(inputs: Outcomes) -> Callable[[IntArray], FloatArray]:
    """A function that gives the measures of `STATISTICS` for some of the inputs."""
    columns = np.stack([inputs.correct, inputs.certified, inputs.counted_radius]).astype(np.float64)
    sizes, labels = inputs.counted_log_cardinality, [] if inputs.label is None else inputs.label.tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    classes = np.array([numbers[label] for label in labels], dtype=np.int64)

    def statistics(positions: IntArray) -> FloatArray:
        drawn, median = columns[:, positions], np.median(sizes[positions])
        correct, certified, radius = drawn.mean(axis=1)
        if not numbers:
            return np.array([nan, nan, nan, radius, nan, median])
        held = np.bincount(classes[positions], minlength=len(numbers))
        balanced, _, balanced_radius = (
            (np.bincount(classes[positions], row, len(numbers))[held > 0] / held[held > 0]).mean() for row in drawn
        )
        return np.array([correct, certified, balanced, radius, balanced_radius, median])

    return statistics


Differences = dict[str, tuple[int, dict[str, Difference]]]  # entry name: (number of common inputs, differences)


def differences(entries: Sequence[Entry], baseline: Entry, *, seed: int) -> Differences:
    """Every other entry compared with the baseline, on the inputs that both hold.

    What is not comparable is left out: entries of which one has no labels, radii against another attacker, and sizes of
    regions in other units.
    """
    compared: Differences = {}
    for entry in entries:
        if entry is not baseline and entry.outcomes.labelled == baseline.outcomes.labelled:
            runs, reference = paired([entry, baseline])
            gaps = paired_differences(runs, reference, seed=seed)
            omitted = {*(() if entry.attacker == baseline.attacker else _RADII)}
            omitted |= {*(() if entry.first.unit == baseline.first.unit != CHARACTERS else ("median_log_cardinality",))}
            compared[entry.name] = len(runs[0]), {name: gap for name, gap in gaps.items() if name not in omitted}
    return compared


_NAME = Column("run", ("run",), number=False)


def overview_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """A short table for a terminal: the name of each entry and its measures, as of `Measures.to_dict`."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), integer),
        *MEASURE_COLUMNS,
        Column("abstained", ("abstained",), integer),
        Column("votes per input", ("calls",), _votes),
    ]
    return Table("overview", "", columns, [{"run": name, **measures} for name, measures in rows])


def main_table(entries: Sequence[Entry]) -> Table:
    """The paper's main table; columns that say nothing are left out."""
    rows = [_measured(entry) for entry in entries]
    hidden = () if any(entry.is_uneven for entry in entries) else _UNEVEN
    columns = [
        Column("run", ("title",), number=False),
        *(
            replace(each, keys=(each.keys[0], f"{each.keys[0]}_spread"), show=_spread) if each.show is percent else each
            for each in MEASURE_COLUMNS
            if each.keys[0] not in hidden
        ),
        Column("median radius", ("median_radius",), lambda value: f"{value:g}", "max"),
        Column("with any text before and after", ("padded",), integer, about="Right answers that stay "
               "no matter what text is added before and after the input."),
        Column("mean radius in characters", ("mean_character_radius",), number, "max"),
        Column(SIZE, ("median_log_cardinality",), number, "max", about="The number of texts in the certified region, "
               f"for a vocabulary of {ROBERTA_VOCABULARY:,} tokens."),
        Column("abstained", ("abstained",), integer, about="The votes do not determine the answer."),
        Column("votes", ("calls",), _votes, about="Votes and processor time per input."),
        Column("time", ("seconds",), duration),
    ]  # fmt: skip
    empty = {UNDEFINED, "0", "0.00", "none"}
    kept = [each for each in columns if each in columns[:2] or {each.text(row) for row in rows} - empty]
    caption = (
        "In bold: the best of the runs that can be compared, on the same inputs against the same attacker; never a run "
        "that gives one answer to (almost) all."
    )
    if any(len(entry.parts) > 1 for entry in entries):
        caption += " For several seeds, ± is the standard deviation over the seeds."
    return Table("main", caption, kept, rows)


def _measured(entry: Entry) -> dict[str, Any]:
    """The measures of an entry; for several seeds, with the standard deviation over the seeds in place of errors."""
    values: dict[str, Any] = {}
    for column in MEASURE_COLUMNS:
        key, spread = column.keys[0], None
        if len(entry.parts) > 1:
            spread = float(np.std([getattr(each, key) for each in entry.by_seed], ddof=1))
        if column.show is percent:
            values[f"{key}_spread"] = spread
        elif spread is not None:
            values[column.keys[1]] = spread
    title = entry.title + (f", {len(entry.parts)} seeds" if len(entry.parts) > 1 else "")
    values |= {"run": entry.name, "title": title, "group": entry.group, "seconds": entry.seconds}
    return entry.measures.to_dict() | values


def class_tables(entries: Sequence[Entry]) -> list[Table]:
    """The measures by class, and the confusion matrices; none without labels."""
    labelled = [(entry.name, entry.classes) for entry in entries if entry.classes.classes]
    rows = [
        {"run": name, **each.to_dict(), "label": str(each.label)} for name, table in labelled for each in table.classes
    ]
    if not rows:
        return []
    parts = [({"run": name}, [each.label for each in table.classes], table.confusion) for name, table in labelled]
    few = len({row["label"] for row in rows}) <= SHOWN_CLASSES
    return [class_table(rows, lead=[_NAME]), *([confusion_table(parts, lead=[_NAME])] if few else [])]


def difference_table(compared: Differences, baseline: Entry) -> Table:
    """Differences to the baseline with their intervals; clear ones are emphasised."""
    columns = [_NAME, Column("common inputs", ("common",), integer)]
    for name, title in STATISTICS.items():
        if any(name in measures for _, measures in compared.values()):
            keys = (name, f"{name}_low", f"{name}_high")
            show = partial(_change, scale=100, digits=1) if "accuracy" in name else _change
            columns.append(Column(title, keys, show, strong=itemgetter(f"{name}_clear")))
    rows = []
    for run, (common, measures) in compared.items():
        row: dict[str, Any] = {"run": run, "common": common}
        for name in STATISTICS:
            gap = measures.get(name, Difference(nan, nan, nan))
            row |= {name: gap.value, f"{name}_low": gap.low, f"{name}_high": gap.high, f"{name}_clear": gap.clear}
        rows.append(row)
    caption = (
        f"Differences to {baseline.name} on the same inputs, with 95% intervals of the paired bootstrap, in bold where "
        "the interval excludes 0: how much the difference varies with the choice of the inputs. Accuracies in "
        "percentage points. Radii are not subtracted where the attackers differ."
    )
    return Table("differences", caption, columns, rows)


def quartile_table(entries: Sequence[Entry]) -> list[Table]:
    """The measures by quartile of length; none if the lengths hardly differ."""
    if not any(sum(bool(len(part)) for part in entry.quartiles) > 1 for entry in entries):
        return []
    columns = [
        _NAME,
        Column("lengths", ("shortest", "longest"), lambda low, high: f"{low:,} – {high:,}"),
        Column("inputs", ("inputs",), integer),
        *(Column(each.title, each.keys, each.show) for each in MEASURE_COLUMNS if each.keys[0] not in _UNEVEN),
        Column(SIZE, ("median_log_cardinality",), number),
        Column("Wasserstein", ("wasserstein",), number, about="The distance between the distributions of radius and "
               "length, each scaled to mean 0 and standard deviation 1: near 0, the radius grows with the length."),
    ]  # fmt: skip
    rows = [
        {"run": entry.name, **measure(part).to_dict()}
        for quarter in range(4)
        for entry in entries
        if len(part := entry.quartiles[quarter])
    ]
    return [Table("quartiles", "By quartile of the length of the inputs, in tokens.", columns, rows)]


def settings_table(entries: Sequence[Entry]) -> Table:
    """The settings of the runs; of several seeds, those of the first."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        runs = [part.run.manifest for part in entry.parts if part.run is not None]
        data, finished = entry.first.data, entry.manifest and entry.manifest.finished
        rows.append({
            "run": entry.name,
            **entry.first.settings,
            "seed": ", ".join(str(part.settings["seed"]) for part in entry.parts if part.settings.get("seed")),
            "unit": " ".join(map(str, (entry.first.unit or {}).values())),
            "model": ", ".join(manifest.model_hash[:12] for manifest in runs),
            "data": f"{file_name(data.path)} {(data.sha256 or '')[:12]}".strip(),
            "finished": f"{datetime.fromisoformat(finished).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if finished
                        else "no" if runs else "as stated",
        })  # fmt: skip
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if any(row.get(name) for row in rows)]
    columns = [Column(name, (name,), number=False) for name in names]
    shown = [{name: row.get(name) or None for name in names} for row in rows]
    return Table("settings", "Settings of the runs.", columns, shown)


def curves(entries: Sequence[Entry]) -> Table:
    """Certified accuracy at every radius and log-cardinality, of all inputs and by class, as a CSV file for programs.

    The column class is empty for all inputs; with a class, the certified accuracy is the certified recall.
    """
    columns = [Column(name, (name,)) for name in ("run", "class", "against", "threshold", "certified_accuracy")]
    kinds: dict[str, Callable[[Outcomes], tuple[Any, Any]]] = {
        "padded_radius": lambda part: radius_curve(part.against(part.padded_radius)),
        "positions": lambda part: radius_curve(part.against(part.positions)),
        "radius": radius_curve,
        "log10_cardinality": log_cardinality_curve,
    }
    rows: list[Row] = []
    for entry in entries:
        parts = [(None, entry.outcomes), *((str(label), part) for label, part in entry.by_class.items())]
        shown = list(kinds.items())[0 if entry.outcomes.padded else 2 :]
        for (label, part), (against, curve) in product(parts, shown):
            start = {"run": entry.name, "class": label, "against": against}
            for threshold, fraction in zip(*(column.tolist() for column in curve(part)), strict=True):
                rows.append(start | {"threshold": threshold, "certified_accuracy": fraction})
    return Table("curves", "Certified accuracy", columns, rows)


def _votes(value: float) -> str:
    return number(value, 0) if value else "none"


def _spread(value: float, spread: float | None) -> str:
    return percent(value) + (f" ± {100 * spread:.1f}" if spread is not None else "")


def _change(value: float, low: float, high: float, *, scale: int = 1, digits: int = 2) -> str:
    shown, first, last = (signed(scale * each, digits) for each in (value, low, high))
    return f"{shown} [{first}, {last}]"
