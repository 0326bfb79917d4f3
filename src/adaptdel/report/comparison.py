"""Runs compared: paired bootstrap intervals for the differences, and the tables of a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import FloatArray, IntArray, check_alpha, check_int
from adaptdel.measures.summary import (
    ACCURACY_COLUMNS,
    BALANCED_ACCURACY,
    BALANCED_RADIUS,
    CAPPED_RADIUS,
    CERTIFIED_ACCURACY,
    CLEAN_ACCURACY,
    MEAN_RADIUS,
    SHOWN_CLASSES,
    Measures,
    Outcomes,
    class_table,
    confusion_table,
    log_cardinality_curve,
    radius_curve,
)
from adaptdel.report.entries import Entry, file_name
from adaptdel.tables import UNDEFINED, Column, Row, Table, duration, number, percent, signed, with_error

_CELLS = 2**18  # values that are resampled at a time
STATISTICS = {  # the compared measures and their headings
    "clean_accuracy": CLEAN_ACCURACY,
    "balanced_accuracy": BALANCED_ACCURACY,
    "certified_accuracy": CERTIFIED_ACCURACY,
    "certified_accuracy_1": "certified accuracy at radius\u00a01",
    "mean_radius": MEAN_RADIUS,
    "class_balanced_mean_radius": BALANCED_RADIUS,
    "median_log_cardinality": "median log₁₀ size",
    "wasserstein": "Wasserstein",
    "calls": "votes",
}


@dataclass(frozen=True)
class Difference:
    """How much larger a measure is in one run than in another, with a confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def paired(first: Outcomes, second: Outcomes, *, same_tokens: bool = True) -> tuple[Outcomes, Outcomes]:
    """The inputs in both runs, in the same order: matched by id, and by tokens if both runs split texts alike."""
    places = {name: place for place, name in enumerate(second.ids)}
    pairs = [(place, places[name]) for place, name in enumerate(first.ids) if name in places]
    if same_tokens:
        pairs = [(a, b) for a, b in pairs if first.hashes[a] == second.hashes[b]]
    left, right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    return first.take(left), second.take(right)


def paired_differences(
    run: Outcomes, baseline: Outcomes, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Each measure of ``run`` minus that of ``baseline``, with percentile intervals of the paired bootstrap.

    Inputs are drawn with replacement, the same for both runs, which hold the same inputs in the same order (`paired`).
    The intervals account for the choice of inputs, not for the randomness of the votes.
    """
    size = len(run)
    if len(baseline) != size:
        raise ValueError(f"baseline must hold the same {size} inputs, got {len(baseline)}")
    check_int("resamples", resamples, least=1)
    check_alpha(1 - level)
    if not size:
        return {name: Difference(nan, nan, nan) for name in STATISTICS}
    whole = np.ones((1, size), dtype=np.int64)
    value = {name: column[0] for name, column in _differences(run, baseline, whole).items()}
    drawn = [_differences(run, baseline, counts) for counts in _resampled(size, resamples, seed)]
    tail = 50 * (1 - level)
    results = {}
    for name in STATISTICS:
        column = np.concatenate([block[name] for block in drawn])
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, [tail, 100 - tail]) if len(column) > resamples / 2 else (nan, nan)
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


def _differences(run: Outcomes, baseline: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    left, right = _statistics(run, counts), _statistics(baseline, counts)
    return {name: left[name] - right[name] for name in STATISTICS}


def _statistics(inputs: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    """The measures of every resample, by name; each row of ``counts`` is a resample."""
    size = len(inputs)
    columns = [inputs.correct, inputs.certified, inputs.certified & (inputs.radius >= 1), inputs.radius, inputs.calls]
    means = (counts @ np.stack([column.astype(np.float64) for column in columns]).T).T / size
    correct, certified, certified_at_1, radius, calls = means
    unknown = np.full(len(counts), nan)
    radii, lengths = _sorted_resamples(inputs.radius, counts), _sorted_resamples(inputs.length, counts)
    logs = _sorted_resamples(inputs.log_cardinality, counts)
    recall, class_radius = _balanced(inputs, counts)
    return {
        "balanced_accuracy": recall if inputs.labelled else unknown,
        "class_balanced_mean_radius": class_radius if inputs.labelled else unknown,
        "clean_accuracy": correct if inputs.labelled else unknown,
        "certified_accuracy": certified if inputs.labelled else unknown,
        "certified_accuracy_1": certified_at_1,
        "mean_radius": radius,
        "median_log_cardinality": (logs[:, (size - 1) // 2] + logs[:, size // 2]) / 2,
        "wasserstein": np.abs(_standardised_rows(radii) - _standardised_rows(lengths)).mean(axis=1),
        "calls": calls,
    }


def _balanced(inputs: Outcomes, counts: IntArray) -> tuple[FloatArray, FloatArray]:
    """The balanced accuracy and the class-balanced mean radius of every resample, over the labels that it holds."""
    names = sorted(set(inputs.label), key=str)
    inside = np.array([[label == name for label in inputs.label] for name in names], dtype=np.float64).T
    sizes = counts @ inside
    held = (sizes > 0).sum(axis=1)
    sums = [counts @ (inside * column[:, None]) for column in (inputs.correct, inputs.radius)]
    shares = [np.divide(total, sizes, out=np.zeros_like(sizes), where=sizes > 0).sum(axis=1) for total in sums]
    return shares[0] / held, shares[1] / held


def _sorted_resamples(values: npt.NDArray[Any], counts: IntArray) -> FloatArray:
    """The values of every resample in increasing order, without sorting each resample."""
    order = np.argsort(values, kind="stable")
    repeated = np.repeat(np.tile(values[order].astype(np.float64), len(counts)), counts[:, order].ravel())
    return repeated.reshape(counts.shape)


def _standardised_rows(rows: FloatArray) -> FloatArray:
    """Sorted rows, each minus its mean and divided by its standard deviation; NaN where a row is constant."""
    spread = np.where(rows[:, :1] < rows[:, -1:], rows.std(axis=1, keepdims=True), nan)
    return np.asarray((rows - rows.mean(axis=1, keepdims=True)) / spread)


Differences = dict[str, tuple[int, dict[str, Difference]]]  # run name: (number of common inputs, differences)


def differences(entries: Sequence[Entry], baseline: Entry, *, resamples: int, seed: int) -> Differences:
    """Every other run compared with the baseline, on the inputs that both hold.

    Of a large run, a sample is resampled. If both hold the same inputs, the differences are those of all of them, and
    the intervals those of the sample, scaled to their number; otherwise all is that of the sample.
    """
    compared: Differences = {}
    for entry in entries:
        if entry is not baseline:
            same = entry.run.manifest["unit"] == baseline.run.manifest["unit"]
            left, right = paired(entry.inputs.sample, baseline.inputs.sample, same_tokens=same)
            if entry.outcomes.labelled != baseline.outcomes.labelled:  # only one of them counts radii of wrong answers
                left, right = left.take([]), right.take([])
            common, gaps = len(left), paired_differences(left, right, resamples=resamples, seed=seed)
            if common and scales_to_all(entry, baseline):
                gaps = _scaled(gaps, entry.measures, baseline.measures, common)
                common = len(entry.outcomes)
            compared[entry.name] = common, gaps
    return compared


def is_compared_by_sample(entry: Entry, baseline: Entry) -> bool:
    """Whether two runs are compared on a random sample of the inputs that both hold."""
    sampled = entry.inputs.is_sampled or baseline.inputs.is_sampled
    return sampled and entry.outcomes.labelled == baseline.outcomes.labelled


def scales_to_all(entry: Entry, baseline: Entry) -> bool:
    """Whether they hold the same inputs, so that only the intervals are those of the sample."""
    return is_compared_by_sample(entry, baseline) and entry.inputs.digest == baseline.inputs.digest


def _scaled(gaps: dict[str, Difference], run: Measures, baseline: Measures, sampled: int) -> dict[str, Difference]:
    """The differences of all inputs, with intervals as wide as those of a sample times √(sample / inputs)."""
    factor = sqrt(sampled / run.inputs)
    scaled = {}
    for name, gap in gaps.items():
        if name == "certified_accuracy_1":
            value = run.certified / run.inputs - baseline.certified / baseline.inputs
        else:
            value = getattr(run, name) - getattr(baseline, name)
        low, high = (value + factor * (end - gap.value) for end in (gap.low, gap.high))
        scaled[name] = Difference(value, low, high)
    return scaled


_BEST = (
    "In bold: the best of the runs that can be compared, which certify the same inputs against the same attacker at "
    "the same alpha, by the same bound; never a run that gives one answer to (almost) all inputs."
)
_NAME = Column("run", ("run",), number=False)
_BALANCED = Column(BALANCED_ACCURACY, ("balanced_accuracy",), percent, "max")
_RADIUS = Column(MEAN_RADIUS, ("mean_radius", "mean_radius_se"), with_error, "max")


def overview_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """A short table for a terminal: the name of each run and its measures, as of `Measures.to_dict`."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), _count),
        *ACCURACY_COLUMNS,
        _RADIUS,
        _BALANCED,
        Column(BALANCED_RADIUS, ("class_balanced_mean_radius",), number),
        Column("abstained", ("abstained",), _count),
        Column("votes per input", ("calls",), _whole_number),
    ]
    return Table("overview", "", columns, [{"run": name, **measures} for name, measures in rows])


def main_table(entries: Sequence[Entry]) -> Table:
    """The paper's main table."""
    columns = [
        Column("run", ("run", "constant_answer"), _with_answer, number=False),
        *ACCURACY_COLUMNS,
        _RADIUS,
        _BALANCED,
        Column(BALANCED_RADIUS, ("class_balanced_mean_radius", "class_balanced_mean_radius_se"), with_error, "max"),
        Column(CAPPED_RADIUS, ("capped_mean_radius",), number, "max"),
        Column("abstained", ("abstained", "inputs"), lambda count, size: percent(count / size) if size else UNDEFINED),
        Column("votes", ("calls",), _whole_number),
        Column("time", ("seconds",), duration),
    ]
    caption = (
        "Measures of each run. Clean accuracy: the share of correct answers, where an abstention counts by its "
        "predicted label. Certified accuracy at radius 0: the same with abstentions counted as wrong. Mean certified "
        "radius with its standard error; a wrong answer or an abstention counts as 0. Balanced: the mean over the "
        "classes, in which a rare class counts as much as a frequent one. Capped: no radius counts for more than the "
        f"length of its input. Votes and time per input. {_BEST}"
    )
    return Table("main", caption, columns, [_measured(entry) for entry in entries])


def _measured(entry: Entry) -> dict[str, Any]:
    constant = None if entry.classes.constant is None else str(entry.classes.constant.label)
    return {"run": entry.name, "constant_answer": constant, "group": entry.group, **entry.measures.to_dict()}


def _with_answer(run: str, constant: str | None) -> str:
    return run if constant is None else f"{run} (one answer: {constant})"


def region_table(entries: Sequence[Entry]) -> Table:
    """The size of the certified regions, and whether radii grow with the length, as in the paper's main table."""
    columns = [
        _NAME,
        Column("median log₁₀ size", ("median_log_cardinality",), number, "max"),
        Column("quartiles of log₁₀ size", ("lower_log_cardinality", "upper_log_cardinality"), _between),
        Column("Wasserstein", ("wasserstein",), number, "min"),
    ]
    caption = (
        "Certified regions. Log₁₀ size: the number of texts in the certified region, as a power of ten; 0 for a wrong "
        "answer or an abstention. Wasserstein: distance between standardised radii and standardised lengths."
    )
    return Table("regions", caption, columns, [_measured(entry) for entry in entries])


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


FALSE_POSITIVES = (0.001, 0.01, 0.05)


def detection_table(entries: Sequence[Entry]) -> Table | None:
    """Certified detection of the protected class at rates of false positives; None without a run that protects one."""
    rows: list[Row] = []
    radii: list[int] = []
    for entry in entries:
        curve = entry.detection
        if curve is None:
            continue
        radii = curve.radii.tolist()
        for limit in FALSE_POSITIVES:
            row = curve.at(limit)
            rows.append({
                "run": entry.name,
                "class": entry.protects,
                "limit": limit,
                "measured": curve.false_positives[row],
                **{f"detection_{radius}": curve.detection[row, place] for place, radius in enumerate(radii)},
            })  # fmt: skip
    if not rows:
        return None
    columns = [
        _NAME,
        Column("protected class", ("class",), str),
        Column("false positives at most", ("limit",), percent),
        Column("measured", ("measured",), lambda value: percent(value, 2)),
        *(Column(f"certified detection at radius {radius}", (f"detection_{radius}",), percent) for radius in radii),
    ]
    caption = (
        "Detection under attack: the share of the protected class that is detected whatever an attacker does with so "
        "many edits, at the lowest decision threshold with at most that rate of false positives on these inputs. The "
        "thresholds of this table are chosen on the inputs that it measures: it describes the model, it does not "
        "replace a threshold that was chosen beforehand."
    )
    return Table("detection", caption, columns, rows)


def outcome_table(entries: Sequence[Entry]) -> Table:
    """How many inputs are certified, wrong or abstained on."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), _count),
        Column("correct, radius\u00a0≥\u00a01", ("certified", "inputs"), _count_and_share, "max"),
        Column("correct, radius\u00a00", ("certified_zero", "inputs"), _count_and_share),
        Column("wrong, not abstained", ("wrong", "inputs"), _count_and_share),
        Column("abstained", ("abstained", "inputs"), _count_and_share),
        Column("abstained, label correct", ("abstained_right",), _count),
        Column("median radius if certified", ("median_certified_radius",), lambda v: f"{v:g}", "max"),
        Column("certificates that cover every text of their length", ("covering", "inputs"), _count_and_share),
        Column("not measured", ("not_usable",), _count),
    ]
    rows = [{**_measured(e), "not_usable": e.outcomes.problems + e.outcomes.unlabelled} for e in entries]
    caption = (
        "Outcomes: each input is counted in one of the four groups. Radius 0: the answer is certified for the unedited "
        "input only. Abstained: the votes do not determine the answer with the required confidence. A certificate "
        "covers every text of its length if the radius reaches that length: the answer does not depend on the words. "
        "Not measured: rows that could not be certified or have no label."
    )
    return Table("outcomes", caption, columns, rows)


def difference_table(compared: Differences, baseline: Entry, entries: Sequence[Entry]) -> Table:
    """Differences to the baseline with their intervals; clear ones are emphasised where they can be compared."""
    columns = [_NAME, Column("common inputs", ("common",), _count)]
    by_name = {entry.name: entry for entry in entries}
    for name, title in STATISTICS.items():
        show = _points if "accuracy" in name else _whole_change if name == "calls" else _change
        keys = (name, f"{name}_low", f"{name}_high")
        columns.append(Column(title, keys, show, strong=lambda row, name=name: bool(row[f"{name}_clear"])))  # type: ignore[misc]
    rows = [
        {"run": name, "common": common} | _flat(measures, by_name[name], baseline)
        for name, (common, measures) in compared.items()
    ]
    caption = (
        f"Differences to {baseline.name} on the same inputs, with 95% intervals of the paired bootstrap, in bold where "
        "the interval excludes 0 and the runs can be compared. Accuracies in percentage points."
    )
    return Table("differences", caption, columns, rows)


_WITHOUT_ATTACKER = ("clean_accuracy", "balanced_accuracy", "calls")  # measures that every attacker leaves the same


def _flat(measures: Mapping[str, Difference], entry: Entry, baseline: Entry) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    constant, same = entry.is_constant or baseline.is_constant, entry.rule == baseline.rule
    for name, gap in measures.items():
        clear = gap.clear and not constant and (same or name in _WITHOUT_ATTACKER)
        flat |= {name: gap.value, f"{name}_low": gap.low, f"{name}_high": gap.high, f"{name}_clear": clear}
    return flat


def has_lengths(entries: Sequence[Entry]) -> bool:
    """Whether the inputs of a run differ enough in length to be shown by quartile of length."""
    return any(sum(bool(quarter.inputs) for quarter in entry.quartiles) > 1 for entry in entries)


def quartile_table(entries: Sequence[Entry]) -> Table:
    """The measures by quartile of length."""
    columns = [
        _NAME,
        Column("quartile", ("quarter",), number=False),
        Column("lengths", ("shortest", "longest", "inputs"), _lengths),
        Column("inputs", ("inputs",), _count),
        *(Column(column.title, column.keys, column.show) for column in (*ACCURACY_COLUMNS, _RADIUS, _BALANCED)),
        Column("constant answer", ("constant",), number=False),
        Column("median log₁₀ size", ("median_log_cardinality",), number),
        Column("quartiles of log₁₀ size", ("lower_log_cardinality", "upper_log_cardinality"), _between),
        Column("Wasserstein", ("wasserstein",), number),
        Column("abstained", ("abstained",), _count),
        Column("votes", ("calls",), _whole_number),
        Column("time", ("seconds",), duration),
    ]
    rows = [
        {"quarter": quarter, "run": entry.name, **entry.quartiles[place].to_dict(), "constant": entry.constants[place]}
        for place, quarter in enumerate(("shortest", "second", "third", "longest"))
        for entry in entries
        if entry.quartiles[place].inputs
    ]
    caption = (
        "The same measures by quartile of the input length. Constant answer: the answer that (almost) all inputs of "
        "these lengths get, although their labels differ."
    )
    return Table("quartiles", caption, columns, rows)


def settings_table(entries: Sequence[Entry]) -> Table:
    """The settings of the runs."""
    names = ["noise", "attacker", "bound", "alpha", "votes", "sampling", "seed", "unit", "model", "data", "finished"]
    if any(entry.run.manifest["threshold"] is not None for entry in entries):
        names.insert(2, "threshold")
    columns = [_NAME, *(Column(name, (name,), number=False) for name in names)]
    return Table("settings", "Settings of the runs.", columns, [_settings(entry) for entry in entries])


def _settings(entry: Entry) -> Row:
    manifest = entry.run.manifest
    data, votes = manifest.get("data") or {}, manifest.get("votes")
    rate = manifest["noise"].get("rate") or manifest["noise"]
    return {
        "run": entry.name,
        "noise": ", ".join(f"{key} {_shortened(value)}" for key, value in rate.items()),
        "attacker": ", ".join(manifest["ops"]),
        "bound": manifest["bound"],
        "threshold": None if manifest["threshold"] is None else f"{manifest['threshold']:g}",
        "alpha": f"{manifest['alpha']:g}" if manifest.get("alpha") is not None else None,
        "votes": " + ".join(map(str, votes)) if isinstance(votes, (list, tuple)) else votes,
        "sampling": manifest.get("sampling"),
        "seed": manifest["seed"],
        "unit": " ".join(str(value) for value in (manifest["unit"] or {}).values()) or None,
        "model": str(manifest["model_hash"])[:12] or None,
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
    return Table("curves", "Certified accuracy", columns, list(_curve_points(entries)))


_CURVES = {"radius": radius_curve, "log10_cardinality": log_cardinality_curve}


def _curve_points(entries: Sequence[Entry]) -> Iterator[Row]:
    for entry in entries:
        parts = [(None, entry.outcomes), *((str(label), part) for label, part in entry.by_class.items())]
        for (label, part), (against, curve) in product(parts, _CURVES.items()):
            for threshold, share in zip(*curve(part), strict=True):
                yield {
                    "run": entry.name,
                    "class": label,
                    "against": against,
                    "threshold": threshold.item(),
                    "certified_accuracy": float(share),
                }


def _count(value: int) -> str:
    return f"{value:,}"


def _whole_number(value: float) -> str:
    return number(value, 0)


def _count_and_share(value: int, size: int) -> str:
    return f"{value:,} ({percent(value / size)})" if size else f"{value:,}"


def _between(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _lengths(shortest: int, longest: int, size: int) -> str:
    return f"{shortest:,} – {longest:,}" if size else UNDEFINED


def _interval(low: float, high: float, digits: int) -> str:
    return f" [{signed(low, digits)}, {signed(high, digits)}]" if low == low else ""


def _points(value: float, low: float, high: float) -> str:
    return signed(100 * value, 1) + _interval(100 * low, 100 * high, 1)


def _change(value: float, low: float, high: float) -> str:
    return signed(value) + _interval(low, high, 2)


def _whole_change(value: float, low: float, high: float) -> str:
    return signed(value, 0) + _interval(low, high, 0)
