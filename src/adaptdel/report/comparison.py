"""Entries compared: paired bootstrap intervals for the differences, and the tables of a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from typing import Any

import numpy as np

from adaptdel.core.cardinality import ROBERTA_VOCABULARY
from adaptdel.core.checks import FloatArray, IntArray, check_int
from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table, confusion_table, constant_answer
from adaptdel.measures.summary import (
    ACCURACY_COLUMNS,
    BALANCED_ACCURACY,
    BALANCED_RADIUS,
    CERTIFIED_ACCURACY,
    CLEAN_ACCURACY,
    MEAN_RADIUS,
    Outcomes,
    certified_at_radius,
    log_cardinality_curve,
    measure,
    radius_curve,
)
from adaptdel.report.entries import Entry, RunInputs, file_name
from adaptdel.tables import Column, Row, Table, duration, number, percent, signed, with_error

_CELLS = 2**18  # values that are resampled at a time
STATISTICS = {  # the compared measures and their headings
    "clean_accuracy": CLEAN_ACCURACY,
    "balanced_accuracy": BALANCED_ACCURACY,
    "certified_accuracy": CERTIFIED_ACCURACY,
    "mean_radius": MEAN_RADIUS,
    "class_balanced_mean_radius": BALANCED_RADIUS,
    "median_log_cardinality": "median log₁₀ size",
}
_ANY_ATTACKER = ("clean_accuracy", "balanced_accuracy", "median_log_cardinality")  # comparable for all attackers


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

    def order(entry: Entry) -> tuple[bool, bool, int, int]:
        alike = sum((other.data, other.attacker) == (entry.data, entry.attacker) for other in entries)
        return not entry.is_constant, entry.certifies, alike, -entry.number

    return max(entries, key=order)


def paired(entries: Sequence[Entry]) -> list[list[Outcomes]]:
    """For each entry, the sampled inputs that all runs hold, run by run, in the same order.

    Inputs are matched by row number, and by their tokens if all runs split texts alike.
    """
    same_unit = len({repr(entry.manifest.get("unit")) for entry in entries}) == 1

    def keys_of(part: RunInputs) -> list[tuple[int, str]]:
        return [(row, record["input_hash"] if same_unit else "") for row, record in part.rows.items()]

    keys = [[keys_of(part) for part in entry.parts] for entry in entries]
    common = set.intersection(*(set(part) for parts in keys for part in parts))
    return [
        [
            inputs.sample.take(np.array([place for place, key in enumerate(part) if key in common], dtype=np.int64))
            for inputs, part in zip(entry.parts, parts, strict=True)
        ]
        for entry, parts in zip(entries, keys, strict=True)
    ]


def paired_differences(
    runs: Sequence[Outcomes], baseline: Sequence[Outcomes], *, resamples: int = 2000, seed: int = 0
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
    value = {name: column[0] for name, column in _gaps(runs, baseline, np.ones((1, size), dtype=np.int64)).items()}
    drawn = [_gaps(runs, baseline, counts) for counts in _resampled(size, resamples, seed)]
    results = {}
    for name in STATISTICS:
        column = np.concatenate([block[name] for block in drawn])
        low, high = np.percentile(column, [2.5, 97.5])  # NaN without labels
        results[name] = Difference(float(value[name]), float(low), float(high))
    return results


def _resampled(size: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """How often each input is drawn, in blocks of shape (resamples, size)."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // size)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)


def _gaps(runs: Sequence[Outcomes], baseline: Sequence[Outcomes], counts: IntArray) -> dict[str, FloatArray]:
    sides = [[_statistics(outcomes, counts) for outcomes in side] for side in (runs, baseline)]
    left, right = ({name: sum(s[name] for s in side) / len(side) for name in STATISTICS} for side in sides)
    return {name: left[name] - right[name] for name in STATISTICS}


def _statistics(inputs: Outcomes, counts: IntArray) -> dict[str, Any]:
    """The measures of every resample, by name; each row of ``counts`` is a resample."""
    size, radius = len(inputs), inputs.counted_radius
    columns = np.stack([column.astype(np.float64) for column in (inputs.correct, inputs.certified, radius)]).T
    correct, certified, mean_radius = (counts @ columns).T / size
    unknown = np.full(len(counts), nan)
    result = dict.fromkeys(STATISTICS, unknown) | {
        "mean_radius": mean_radius,
        "median_log_cardinality": _medians(inputs.counted_log_cardinality, counts),
    }
    if inputs.label is None:
        return result
    names = list(dict.fromkeys(inputs.label.tolist()))
    inside = np.array([[label == name for label in inputs.label] for name in names], dtype=np.float64).T
    sizes = counts @ inside  # of each label, shape (resamples, labels)
    sums = [counts @ (inside * column[:, None]) for column in (inputs.correct, radius)]
    means = [np.divide(total, sizes, out=np.zeros_like(sizes), where=sizes > 0).sum(axis=1) for total in sums]
    held = (sizes > 0).sum(axis=1)
    return result | {
        "clean_accuracy": correct,
        "certified_accuracy": certified,
        "balanced_accuracy": means[0] / held,
        "class_balanced_mean_radius": means[1] / held,
    }


def _medians(values: FloatArray, counts: IntArray) -> FloatArray:
    """The median of every resample."""
    order = np.argsort(values, kind="stable")
    last = np.cumsum(counts[:, order], axis=1)
    size = last[0, -1]
    places = [(last > position).argmax(axis=1) for position in ((size - 1) // 2, size // 2)]
    return np.asarray((values[order][places[0]] + values[order][places[1]]) / 2)


Differences = dict[str, tuple[int, dict[str, Difference]]]  # entry name: (number of common inputs, differences)


def differences(entries: Sequence[Entry], baseline: Entry, *, resamples: int, seed: int) -> Differences:
    """Every other entry compared with the baseline, on the (sampled) inputs that both hold.

    What is not comparable is left out: entries of which one has no labels, and radii against another attacker.
    """
    compared: Differences = {}
    for entry in entries:
        if entry is not baseline and entry.outcomes.labelled == baseline.outcomes.labelled:
            runs, reference = paired([entry, baseline])
            gaps = paired_differences(runs, reference, resamples=resamples, seed=seed)
            same = entry.attacker == baseline.attacker
            compared[entry.name] = len(runs[0]), {n: gap for n, gap in gaps.items() if same or n in _ANY_ATTACKER}
    return compared


_NAME = Column("run", ("run",), number=False)
_RADIUS = Column(MEAN_RADIUS, ("mean_radius", "mean_radius_se"), with_error, "max")
_CHARACTERS = Column("mean radius in characters", ("mean_character_radius",), number, "max")
_BALANCED = Column(BALANCED_ACCURACY, ("balanced_accuracy",), percent, "max")


def overview_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """A short table for a terminal: the name of each entry and its measures, as of `Measures.to_dict`."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), _count),
        *ACCURACY_COLUMNS,
        _RADIUS,
        _BALANCED,
        Column(BALANCED_RADIUS, ("class_balanced_mean_radius",), number),
        Column("abstained", ("abstained",), _count),
        Column("votes per input", ("calls",), _votes),
    ]
    return Table("overview", "", columns, [{"run": name, **measures} for name, measures in rows])


def main_table(entries: Sequence[Entry]) -> Table:
    """The paper's main table."""
    columns = [
        Column("run", ("title",), number=False),
        *(Column(each.title, (each.keys[0], f"{each.keys[0]}_spread"), _spread, "max") for each in ACCURACY_COLUMNS),
        _RADIUS,
        Column("median radius", ("median_radius",), lambda value: f"{value:g}", "max"),
        *([_CHARACTERS] if any(entry.mean_character_radius is not None for entry in entries) else []),
        _BALANCED,
        Column(BALANCED_RADIUS, ("class_balanced_mean_radius", "class_balanced_mean_radius_se"), with_error, "max"),
        Column("median log₁₀ size", ("median_log_cardinality",), number, "max"),
        Column("confidence", ("confidence",)),
        Column("votes", ("calls",), _votes),
        Column("time", ("seconds",), duration),
    ]
    caption = (
        "Clean accuracy: the fraction of correct answers, where an abstention counts by its predicted label. Certified "
        "accuracy: the fraction of inputs whose answer is correct and certified; an abstention counts as wrong. "
        "Radius: the number of edits that provably cannot change the answer, correct or not; wrong answers and "
        "abstentions count as 0 in its mean, given with its standard error, and in its median. Balanced: the mean over "
        "the classes, in which a rare class counts as much as a frequent one. Size: the number of texts in the "
        f"certified region, for a vocabulary of {ROBERTA_VOCABULARY:,} tokens. Votes and time per input. In bold: the "
        "best of the runs that can be compared, on the same inputs against the same attacker; never a run that gives "
        "one answer to (almost) all."
    )
    if any(len(entry.parts) > 1 for entry in entries):
        caption += " For several seeds, ± is the standard deviation over the seeds."
    return Table("main", caption, columns, [_measured(entry) for entry in entries])


def _measured(entry: Entry) -> dict[str, Any]:
    """The measures of an entry; for several seeds, with the standard deviation over the seeds in place of errors."""
    values: dict[str, Any] = {"clean_accuracy_spread": None, "certified_accuracy_spread": None}
    title = entry.title
    if (seeds := len(entry.parts)) > 1:
        title = f"{title}, {seeds} seeds"
        for name in ("clean_accuracy", "certified_accuracy", "mean_radius", "class_balanced_mean_radius"):
            spread = float(np.std([getattr(each, name) for each in entry.by_seed], ddof=1))
            values[f"{name}_se" if "radius" in name else f"{name}_spread"] = spread
    values |= {name: getattr(entry, name) for name in ("group", "confidence", "mean_character_radius")}
    known = {"run": entry.name, "title": title}
    return known | entry.measures.to_dict() | values | ({"calls": 0.0} if entry.is_exact else {})


def class_tables(entries: Sequence[Entry]) -> list[Table]:
    """The measures by class, and the confusion matrices; none without labels."""
    labelled = [entry for entry in entries if entry.classes.classes]
    rows = [
        {"run": entry.name, **each.to_dict(), "label": str(each.label)}
        for entry in labelled
        for each in entry.classes.classes
    ]
    if not rows:
        return []
    tables = [class_table(rows, lead=[_NAME])]
    if len({row["label"] for row in rows}) <= SHOWN_CLASSES:
        parts = [
            ({"run": entry.name}, [each.label for each in entry.classes.classes], entry.classes.confusion)
            for entry in labelled
        ]
        tables.append(confusion_table(parts, lead=[_NAME]))
    return tables


def outcome_table(entries: Sequence[Entry]) -> Table:
    """How many inputs are certified, wrong or abstained on."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), _count),
        Column("correct, radius\u00a0≥\u00a01", ("certified", "inputs"), _count_and_fraction, "max"),
        Column("correct, radius\u00a00", ("certified_zero", "inputs"), _count_and_fraction),
        Column("wrong, not abstained", ("wrong", "inputs"), _count_and_fraction),
        Column("abstained", ("abstained", "inputs"), _count_and_fraction),
        Column("certificates that cover every text of their length", ("covering", "inputs"), _count_and_fraction),
        Column("not measured", ("not_usable",), _count),
    ]
    rows = [{**_measured(e), "not_usable": sum(part.problems + part.unlabelled for part in e.parts)} for e in entries]
    caption = (
        "Each input is counted in one of the four groups. Radius 0: the answer is certified for the unedited input "
        "only. Abstained: the votes do not determine the answer with the required confidence. A certificate covers "
        "every text of its length if the radius reaches that length: the answer does not depend on the words. Not "
        "measured: rows that could not be certified or have no label."
    )
    return Table("outcomes", caption, columns, rows)


def difference_table(compared: Differences, baseline: Entry) -> Table:
    """Differences to the baseline with their intervals; clear ones are emphasised."""
    columns = [_NAME, Column("common inputs", ("common",), _count)]
    for name, title in STATISTICS.items():
        keys = (name, f"{name}_low", f"{name}_high")
        columns.append(Column(title, keys, _points if "accuracy" in name else _change, strong=_is_clear(name)))
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


def _is_clear(name: str) -> Callable[[Row], bool]:
    return lambda row: bool(row[f"{name}_clear"])


def quartile_table(entries: Sequence[Entry]) -> Table | None:
    """The measures by quartile of length; None if the lengths hardly differ."""
    if not any(sum(bool(len(part)) for part in entry.quartiles) > 1 for entry in entries):
        return None
    columns = [
        _NAME,
        Column("lengths", ("shortest", "longest"), lambda low, high: f"{low:,} – {high:,}"),
        Column("inputs", ("inputs",), _count),
        *(Column(column.title, column.keys, column.show) for column in (*ACCURACY_COLUMNS, _RADIUS, _BALANCED)),
        Column("constant answer", ("constant",), number=False),
        Column("median log₁₀ size", ("median_log_cardinality",), number),
        Column("Wasserstein", ("wasserstein",), number),
        Column("votes", ("calls",), _votes),
        Column("time", ("seconds",), duration),
    ]
    rows = [
        {"run": entry.name, **measure(part).to_dict(), "constant": constant_answer(part)}
        for quarter in range(4)
        for entry in entries
        if len(part := entry.quartiles[quarter])
    ]
    caption = (
        "The same measures by quartile of the input length. Constant answer: the answer that (almost) all inputs of "
        "these lengths get, although their labels differ. Wasserstein: the distance between the distributions of "
        "radius and length, each scaled to mean 0 and standard deviation 1; near 0, the radius grows with the length."
    )
    return Table("quartiles", caption, columns, rows)


def settings_table(entries: Sequence[Entry]) -> Table:
    """The settings of the runs."""
    names = ["noise", "attacker", "threshold", "bound", "confidence", "votes", "sampling", "seed", "unit", "model",
             "data", "finished"]  # fmt: skip
    rows = [_settings(entry) for entry in entries]
    columns = [_NAME, *(Column(name, (name,), number=False) for name in names if any(row[name] for row in rows))]
    return Table("settings", "Settings of the runs.", columns, rows)


def _settings(entry: Entry) -> Row:
    manifest = entry.manifest
    data, votes = manifest.get("data") or {}, manifest.get("votes")
    noise = manifest.get("noise") or {}
    threshold = manifest.get("threshold")
    return {
        "run": entry.name,
        "noise": ", ".join(f"{key} {_shortened(value)}" for key, value in (noise.get("rate") or noise).items()) or None,
        "attacker": ", ".join(entry.ops),
        "bound": manifest.get("bound"),
        "threshold": None if threshold is None else f"{threshold:g}",
        "confidence": entry.confidence,
        "votes": "none" if entry.is_exact else " + ".join(map(str, votes)) if votes else None,
        "sampling": manifest.get("sampling"),
        "seed": ", ".join(str(part.run.manifest.get("seed")) for part in entry.parts),
        "unit": " ".join(str(value) for value in (manifest.get("unit") or {}).values()) or None,
        "model": ", ".join(str(part.run.manifest.get("model_hash"))[:12] for part in entry.parts) or None,
        "data": f"{file_name(data)} {str(data.get('sha256') or '')[:12]}".strip() or None,
        "finished": re.sub(r"T(\d\d:\d\d):[\d.]*\+00:00$", r" \1 UTC", str(manifest.get("finished") or "no")),
    }


def _shortened(value: Any) -> str:
    values = value if isinstance(value, (list, tuple)) else [value]
    text = "/".join(f"{item:.6g}" if isinstance(item, (int, float)) else str(item) for item in values[:8])
    return text + ("/…" if len(values) > 8 else "")


def curves(entries: Sequence[Entry]) -> Table:
    """Certified accuracy at every radius and log-cardinality, of all inputs and by class, as a CSV file for programs.

    The column class is empty for all inputs; with a class, the certified accuracy is the certified recall.
    """
    columns = [Column(name, (name,)) for name in ("run", "class", "against", "threshold", "certified_accuracy")]
    kinds = {"radius": radius_curve, "log10_cardinality": log_cardinality_curve}
    rows: list[Row] = []
    for entry in entries:
        parts = [(None, entry.outcomes), *((str(label), part) for label, part in entry.by_class.items())]
        for (label, part), (against, curve) in product(parts, kinds.items()):
            start = {"run": entry.name, "class": label, "against": against}
            for threshold, fraction in zip(*(column.tolist() for column in curve(part)), strict=True):
                rows.append(start | {"threshold": threshold, "certified_accuracy": fraction})
    return Table("curves", "Certified accuracy", columns, rows)


def certified_at_one(inputs: Outcomes) -> float:
    """The fraction of inputs that are correct and certified against an edit."""
    return float(certified_at_radius(inputs, [1])[0])


def _count(value: int) -> str:
    return f"{value:,}"


def _votes(value: float) -> str:
    return number(value, 0) if value else "none"


def _spread(value: float, spread: float | None) -> str:
    return percent(value) + (f" ± {100 * spread:.1f}" if spread is not None else "")


def _count_and_fraction(value: int, size: int) -> str:
    return f"{value:,} ({percent(value / size)})" if size else f"{value:,}"


def _points(value: float, low: float, high: float) -> str:
    return f"{signed(100 * value, 1)} [{signed(100 * low, 1)}, {signed(100 * high, 1)}]"


def _change(value: float, low: float, high: float) -> str:
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"
