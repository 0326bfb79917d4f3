"""Measures of certified inputs: clean accuracy, certified accuracy, mean certified radius, and what a report adds.

`AnswerCounts` defines the two accuracies and the mean certified radius. ``certify``, ``calibrate``, ``report``,
``demo`` and the benchmarks all use it, so that a run has the same values wherever they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.threat import Threat
from adaptdel.measures.class_counts import measure_classes
from adaptdel.measures.class_measures import RADII, ClassTable, quartile_numbers
from adaptdel.measures.distributions import mean, median, quantiles, shares_at_least, standard_error, wasserstein
from adaptdel.tables import Column, Table, number, percent, with_error

CLEAN_ACCURACY = "clean accuracy"
BALANCED_ACCURACY = "balanced accuracy"
BALANCED_RADIUS = "class-balanced mean radius"
CAPPED_RADIUS = "mean radius, capped at the length"
CERTIFIED_ACCURACY = "certified accuracy at radius 0"
MEAN_RADIUS = "mean certified radius"
ACCURACY_COLUMNS = (
    Column(CLEAN_ACCURACY, ("clean_accuracy",), percent, "max"),
    Column(CERTIFIED_ACCURACY, ("certified_accuracy",), percent, "max"),
)
MEASURE_COLUMNS = (
    *ACCURACY_COLUMNS,
    Column(BALANCED_ACCURACY, ("balanced_accuracy",), percent, "max"),
    Column(MEAN_RADIUS, ("mean_radius",), number, "max"),
    Column(BALANCED_RADIUS, ("class_balanced_mean_radius",), number, "max"),
    Column(CAPPED_RADIUS, ("capped_mean_radius",), number, "max"),
)


@dataclass
class AnswerCounts:
    """Counts over certified inputs, and the measures that follow from them.

    Only inputs with a label are counted. In data without any label every answer counts as correct, and the accuracies
    are not reported.

    Attributes:
        inputs: the number of inputs.
        correct: inputs whose predicted label is the true label, also where the classifier abstains.
        certified: inputs whose predicted label is the true label and for which the classifier does not abstain.
        radius: the sum of the certified radii of the latter.
    """

    inputs: int = 0
    correct: int = 0
    certified: int = 0
    radius: int = 0

    def add(self, correct: bool, radius: int) -> None:
        """Count an input by its certified radius, which is -1 if the classifier abstains."""
        self.inputs += 1
        self.correct += bool(correct)
        if correct and radius >= 0:
            self.certified += 1
            self.radius += radius

    @classmethod
    def of(cls, correct: npt.ArrayLike, radius: npt.ArrayLike) -> AnswerCounts:
        """Count inputs by their columns: whether the prediction is correct, and the radius (-1 for an abstention).

        >>> counts = AnswerCounts.of([True, True, True, False], [4, 0, -1, 7])
        >>> counts.clean_accuracy, counts.certified_accuracy, counts.mean_radius
        (0.75, 0.5, 1.0)
        """
        is_correct, radii = np.asarray(correct, dtype=np.bool_), np.asarray(radius, dtype=np.int64)
        certified = is_correct & (radii >= 0)
        return cls(len(radii), int(is_correct.sum()), int(certified.sum()), int(radii[certified].sum()))

    @property
    def clean_accuracy(self) -> float:
        """The share of inputs whose predicted label is correct; abstentions count by their predicted label.

        This is the accuracy without any robustness guarantee, as the paper defines it. NaN without inputs.
        """
        return self.correct / self.inputs if self.inputs else nan

    @property
    def certified_accuracy(self) -> float:
        """Certified accuracy at radius 0: the share of inputs that are correct and certified; abstentions are wrong.

        NaN without inputs.
        """
        return self.certified / self.inputs if self.inputs else nan

    @property
    def mean_radius(self) -> float:
        """The mean certified radius over all inputs, with 0 for wrong answers and abstentions. NaN without inputs."""
        return self.radius / self.inputs if self.inputs else nan


@dataclass(frozen=True)
class Outcomes:
    """The measured inputs of a run, as columns of the same shape.

    A row stands for one input, or in a large run for all inputs that have the same values: `count` says for how many.

    Attributes:
        ids: the id of each input; "" in a row that stands for several.
        hashes: a hash of its tokens; "" in a row that stands for several.
        length: the number of tokens.
        rate: the share of tokens that the noise removes.
        label: the true label as the run's table holds it; "" in data without labels.
        answer: the predicted label.
        correct: whether the predicted label is the true label; always True in data without labels.
        abstained: whether the classifier abstains.
        radius: the certified radius; 0 for a wrong answer and for an abstention.
        covering: whether the certificate covers every text of this length, be the answer right or wrong.
        log_cardinality: log10 of the size of the certified region; 0 for a wrong answer and for an abstention.
        calls: the number of votes.
        seconds: the time of all inputs of the row for which it is known; NaN if there are none.
        count: the number of inputs that a row stands for.
        timed: the number of those for which the time is known.
        labelled: whether the inputs have labels.
        problems: how many rows of the run could not be certified and are not measured.
        unlabelled: how many rows without a label are not measured, because others have labels.
    """

    ids: npt.NDArray[np.object_]
    hashes: npt.NDArray[np.object_]
    length: IntArray
    rate: FloatArray
    label: npt.NDArray[np.object_]
    answer: npt.NDArray[np.object_]
    correct: BoolArray
    abstained: BoolArray
    radius: IntArray
    covering: BoolArray
    log_cardinality: FloatArray
    calls: IntArray
    seconds: FloatArray
    count: IntArray
    timed: IntArray
    labelled: bool = True
    problems: int = 0
    unlabelled: int = 0

    def __len__(self) -> int:
        return int(self.count.sum())

    @property
    def certified(self) -> BoolArray:
        """Whether the answer is correct and certified at radius 0 or more."""
        return self.correct & ~self.abstained

    @property
    def counts(self) -> AnswerCounts:
        """The counts that the accuracies and the mean certified radius follow from."""
        certified = self.certified
        right, proven = int(self.count[self.correct].sum()), int(self.count[certified].sum())
        return AnswerCounts(len(self), right, proven, int((self.count * self.radius)[certified].sum()))

    def by_class(self, classes: Sequence[Any] = (), radii: Sequence[int] = RADII) -> ClassTable:
        """The measures by class; ``classes`` come first, ``radii`` are those of the certified recall."""
        radius = np.where(self.abstained, -1, self.radius)
        labels = self.label if self.labelled else None
        columns = labels, self.answer, radius, self.length
        return measure_classes(*columns, counts=self.count, classes=classes, radii=radii)

    def take(self, places: Any) -> Outcomes:
        """A part of the rows, by an index array or a mask."""
        columns = {
            field.name: column[places]
            for field in fields(self)
            if isinstance(column := getattr(self, field.name), np.ndarray)
        }
        return Outcomes(**columns, labelled=self.labelled)


OUTCOME_COLUMNS = (  # that `outcomes` needs
    "id", "input_hash", "length", "rate", "truth", "answer", "correct", "radius", "log10_cardinality", "calls",
    "problem",
)  # fmt: skip


def outcomes(
    table: Any,
    seconds: Mapping[str, float] | None = None,
    *,
    threat: Threat | None = None,
    label_value: Callable[[str], Any] = str,
) -> Outcomes:
    """The measured inputs of a run's table.

    Args:
        table: the table.
        seconds: times by id.
        threat: the attacker of the certificates, all edits by default: it decides which cover every text.
        label_value: the label of a text in the table.
    """
    problem = np.array([text is not None for text in table["problem"].to_pylist()], dtype=np.bool_)
    stated = np.array(table["correct"].to_pylist(), dtype=np.object_)
    known = np.array([value is not None for value in stated], dtype=np.bool_) & ~problem
    labelled = bool(known.any()) or bool(problem.all())
    used = known if labelled else ~problem
    rows = table.take(np.flatnonzero(used))
    correct = stated[used].astype(np.bool_) if labelled else np.ones(int(used.sum()), dtype=np.bool_)
    radius, length = _column(rows, "radius", np.int64), _column(rows, "length", np.int64)
    needed = [(threat or Threat()).covering_radius(int(tokens)) for tokens in length]
    certified = correct & (radius >= 0)
    ids = _column(rows, "id", np.object_)
    times = [(seconds or {}).get(name, nan) for name in ids]
    return Outcomes(
        ids=ids,
        hashes=_column(rows, "input_hash", np.object_),
        length=length,
        rate=_column(rows, "rate", np.float64),
        label=_labels(rows, "truth", label_value),
        answer=_labels(rows, "answer", label_value),
        correct=correct,
        abstained=radius < 0,
        covering=np.array([n is not None and r >= n for n, r in zip(needed, radius, strict=True)], dtype=np.bool_),
        radius=np.where(certified, radius, 0),
        log_cardinality=np.where(certified & (radius >= 1), _column(rows, "log10_cardinality", np.float64), 0.0),
        calls=_column(rows, "calls", np.int64),
        seconds=np.array(times, dtype=np.float64),
        count=np.ones(len(ids), dtype=np.int64),
        timed=np.array([time == time for time in times], dtype=np.int64),
        labelled=labelled,
        problems=int(problem.sum()),
        unlabelled=int((~known & ~problem).sum()) if labelled else 0,
    )


def _labels(table: Any, name: str, label_value: Callable[[str], Any]) -> Any:
    texts = table[name].to_pylist()
    values = {text: "" if text is None else label_value(text) for text in set(texts)}
    column = np.empty(len(texts), dtype=np.object_)
    column[:] = [values[text] for text in texts]
    return column


def _column(table: Any, name: str, dtype: Any) -> Any:
    return np.array(table[name].to_pylist(), dtype=dtype)


@dataclass(frozen=True)
class Measures:
    """The measures of a run, as in the paper's main table, and the counts behind them; NaN where one is undefined.

    Attributes:
        inputs: the number of inputs.
        clean_accuracy: the share of correct answers; abstentions count by their predicted label.
        certified_accuracy: certified accuracy at radius 0: the share of correct answers without abstentions.
        mean_radius: the mean certified radius, with 0 for wrong answers and abstentions.
        mean_radius_se: its standard error.
        balanced_accuracy: the mean over the labels of the clean accuracy.
        class_balanced_mean_radius: the mean over the labels of the mean certified radius.
        class_balanced_mean_radius_se: its standard error.
        capped_mean_radius: the mean certified radius if no radius counts for more than the length of its input.
        covering: certificates that cover every text of their length, right or wrong.
        wasserstein: the distance between standardised radii and standardised lengths.
        median_log_cardinality: the median of log10 of the size of the certified region.
        lower_log_cardinality: the lower quartile of the same.
        upper_log_cardinality: the upper quartile of the same.
        certified: correct answers that are certified at radius 1 or more.
        certified_zero: correct answers that are certified at radius 0 only.
        wrong: wrong answers for which the classifier does not abstain.
        abstained: abstentions.
        abstained_right: abstentions whose predicted label is correct.
        median_certified_radius: the median radius of the correct answers that are certified.
        calls: the mean number of votes per input.
        seconds: the mean time per input.
        mean_length: the mean number of tokens.
        median_length: the median number of tokens.
        shortest: the smallest number of tokens.
        longest: the largest number of tokens.
    """

    inputs: int
    clean_accuracy: float
    certified_accuracy: float
    mean_radius: float
    mean_radius_se: float
    balanced_accuracy: float
    class_balanced_mean_radius: float
    class_balanced_mean_radius_se: float
    capped_mean_radius: float
    covering: int
    wasserstein: float
    median_log_cardinality: float
    lower_log_cardinality: float
    upper_log_cardinality: float
    certified: int
    certified_zero: int
    wrong: int
    abstained: int
    abstained_right: int
    median_certified_radius: float
    calls: float
    seconds: float
    mean_length: float
    median_length: float
    shortest: int
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: None if value != value else value for name, value in values.items()}


def measure(inputs: Outcomes) -> Measures:
    """All measures of a set of inputs."""
    size, count, counts = len(inputs), inputs.count, inputs.counts
    logs = quantiles(inputs.log_cardinality, count, [0.25, 0.5, 0.75])
    certified, settled, is_timed = inputs.certified, ~inputs.abstained, inputs.timed > 0
    classes = inputs.by_class()
    return Measures(
        inputs=size,
        clean_accuracy=counts.clean_accuracy if inputs.labelled else nan,
        certified_accuracy=counts.certified_accuracy if inputs.labelled else nan,
        mean_radius=counts.mean_radius,
        mean_radius_se=standard_error(inputs.radius, count),
        balanced_accuracy=classes.balanced_accuracy,
        class_balanced_mean_radius=classes.class_balanced_mean_radius,
        class_balanced_mean_radius_se=classes.class_balanced_mean_radius_se,
        capped_mean_radius=mean(np.minimum(inputs.radius, inputs.length), count),
        covering=int(count[inputs.covering].sum()),
        wasserstein=wasserstein(inputs.radius, inputs.length, count),
        median_log_cardinality=float(logs[1]),
        lower_log_cardinality=float(logs[0]),
        upper_log_cardinality=float(logs[2]),
        certified=int(count[certified & (inputs.radius >= 1)].sum()),
        certified_zero=int(count[certified & (inputs.radius == 0)].sum()),
        wrong=int(count[~inputs.correct & settled].sum()),
        abstained=int(count[inputs.abstained].sum()),
        abstained_right=int(count[inputs.abstained & inputs.correct].sum()),
        median_certified_radius=median(inputs.radius[certified], count[certified]),
        calls=mean(inputs.calls, count),
        seconds=mean(inputs.seconds[is_timed] / inputs.timed[is_timed], inputs.timed[is_timed]),
        mean_length=mean(inputs.length, count),
        median_length=median(inputs.length, count),
        shortest=int(inputs.length.min(initial=2**62)) if size else 0,
        longest=int(inputs.length.max(initial=0)),
    )


def certified_at_radius(inputs: Outcomes, radii: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the share of inputs whose answer is correct and certified at each radius."""
    chosen = inputs.certified
    return shares_at_least(inputs.radius[chosen], inputs.count[chosen], radii, len(inputs))


def certified_at_log_cardinality(inputs: Outcomes, thresholds: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the share of inputs with a correct answer and at least each log-cardinality."""
    chosen = inputs.certified
    return shares_at_least(inputs.log_cardinality[chosen], inputs.count[chosen], thresholds, len(inputs))


def radius_curve(inputs: Outcomes) -> tuple[IntArray, FloatArray]:
    """Certified accuracy at 0 and at every radius where it falls."""
    radii = np.unique(np.append(inputs.radius, 0))
    return radii, certified_at_radius(inputs, radii)


def log_cardinality_curve(inputs: Outcomes) -> tuple[FloatArray, FloatArray]:
    """Certified accuracy at 0 and at every log-cardinality where it falls."""
    thresholds = np.unique(np.append(inputs.log_cardinality, 0.0))
    return thresholds, certified_at_log_cardinality(inputs, thresholds)


def quartile_edges(inputs: Outcomes) -> FloatArray:
    """The quartiles Q1, Q2 and Q3 of the lengths."""
    return quantiles(inputs.length, inputs.count, [0.25, 0.5, 0.75])


def by_quartile(inputs: Outcomes, edges: FloatArray | None = None) -> list[Outcomes]:
    """The inputs up to Q1, above Q1 up to Q2, above Q2 up to Q3, and above Q3; equal lengths are in one quartile."""
    if edges is None:
        edges = quartile_edges(inputs) if len(inputs) else np.zeros(3)
    group = quartile_numbers(inputs.length, edges)
    return [inputs.take(group == number) for number in range(4)]


SHOWN_CLASSES = 20  # rows of a table by class


def class_table(rows: Sequence[Mapping[str, Any]], *, lead: Sequence[Column] = (), name: str = "classes") -> Table:
    """The measures by class as a table; ``rows`` are those of `ClassMeasures.to_dict`.

    ``lead`` are columns before the class. The certified recall is shown at radius 0 and at those that a class reaches.
    """
    radii = [str(radius) for radius in sorted(map(int, rows[0]["certified_recall"]))] if rows else []
    shown = [r for place, r in enumerate(radii) if not place or any(row["certified_recall"].get(r) for row in rows)]
    columns = [
        *lead,
        Column("class", ("label",), number=False),
        Column("inputs", ("inputs",), _count),
        Column("recall", ("recall",), percent),
        Column("precision", ("precision",), percent),
        Column("mean radius", ("mean_radius", "mean_radius_se"), with_error),
        Column("median radius", ("median_radius",), lambda value: f"{value:g}"),
        *(Column(f"certified recall at radius\u00a0{r}", (f"certified_recall_{r}",), percent) for r in shown),
        Column("abstained", ("abstained",), _count),
    ]
    flat = [{**row, **{f"certified_recall_{r}": row["certified_recall"].get(r) for r in shown}} for row in rows]
    caption = (
        "Measures by class. Recall: the share of the inputs of a class that get it as the answer. Precision: the share "
        "of the inputs with this answer that have it as their label. Radii of wrong answers and abstentions count as 0."
        " Certified recall at a radius: the share of its inputs that are correct and certified at this radius."
    )
    return Table(name, caption, columns, flat)


Confusion = tuple[Mapping[str, Any], Sequence[Any], Sequence[Sequence[int]]]  # values of lead columns, labels, counts


def confusion_table(parts: Sequence[Confusion], *, lead: Sequence[Column] = (), name: str = "confusion") -> Table:
    """Confusion matrices as a table, labels down and answers across; correct answers are emphasised."""
    names = list(dict.fromkeys(str(label) for _, labels, _ in parts for label in labels))
    columns = [*lead, Column("label", ("label",), number=False)]
    columns += [Column(f"answer: {name}", (f"answer_{name}",), _count, strong=_is_label(name)) for name in names]
    rows = [
        {**first, "label": str(label)}
        | dict.fromkeys((f"answer_{name}" for name in names), 0)
        | {f"answer_{answer}": count for answer, count in zip(labels, row, strict=True)}
        for first, labels, counts in parts
        for label, row in zip(labels, counts, strict=True)
    ]
    caption = (
        "Confusion matrices: inputs by label and answer, correct answers in bold. An abstention counts by its "
        "predicted label."
    )
    return Table(name, caption, columns, rows)


def _is_label(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: bool(row["label"] == name)


def _count(value: int) -> str:
    return f"{value:,}"
