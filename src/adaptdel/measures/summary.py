"""Measures of certified inputs: accuracies, radii and regions, from counts of inputs that have the same values.

`AnswerCounts` defines the accuracies and the mean certified radius, `Outcomes` holds the inputs. ``certify``,
``calibrate``, ``report``, ``demo`` and the benchmarks all use them, so that a run has the same values everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.threat import Threat
from adaptdel.tables import Column, number, percent

CLEAN_ACCURACY = "clean accuracy"
BALANCED_ACCURACY = "balanced accuracy"
BALANCED_RADIUS = "class-balanced mean radius"
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
)
NORMAL_95 = 1.959963984540054  # the normal quantile of a two-sided 95% interval

Values = npt.NDArray[Any]
Labels = Sequence[Any] | npt.NDArray[Any]


@dataclass
class AnswerCounts:
    """Counts over certified inputs, and the measures that follow from them.

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
        """The fraction of inputs whose predicted label is correct; abstentions count by their predicted label.

        This is the accuracy without any robustness guarantee, as the paper defines it. NaN without inputs.
        """
        return self.correct / self.inputs if self.inputs else nan

    @property
    def certified_accuracy(self) -> float:
        """Certified accuracy at radius 0: the fraction of inputs that are correct and certified. NaN without inputs."""
        return self.certified / self.inputs if self.inputs else nan

    @property
    def mean_radius(self) -> float:
        """The mean certified radius over all inputs, with 0 for wrong answers and abstentions. NaN without inputs."""
        return self.radius / self.inputs if self.inputs else nan


@dataclass(frozen=True)
class Outcomes:
    """Certified inputs as columns of shape (rows,): a row stands for `count` inputs that have the same values.

    Attributes:
        answer: the predicted label, also where the classifier abstains.
        radius: the certified radius; −1 for an abstention.
        label: the true label; None if the inputs have no labels, and then every answer counts as correct.
        length: the number of tokens.
        log_cardinality: log10 of the number of texts in the certified region.
        calls: the number of votes.
        count: the number of inputs.
        timed: the number of those whose time is known.
        seconds: the sum of their times.
    """

    answer: npt.NDArray[np.object_]
    radius: IntArray
    label: npt.NDArray[np.object_] | None
    length: IntArray
    log_cardinality: FloatArray
    calls: IntArray
    count: IntArray
    timed: IntArray
    seconds: FloatArray

    @classmethod
    def of(cls, answer: Labels, radius: npt.ArrayLike, label: Labels | None = None, **columns: Any) -> Outcomes:
        """Inputs from their columns; a column that is left out is 0, and `count` is 1.

        >>> inputs = Outcomes.of(["ham", "ham", "spam"], [3, -1, 5], ["ham", "ham", "ham"], count=[10, 5, 5])
        >>> inputs.counts.clean_accuracy, inputs.counts.certified_accuracy, inputs.counts.mean_radius
        (0.75, 0.5, 1.5)
        """
        size = len(answer)
        if label is not None and len(label) != size:
            raise ValueError(f"labels must be one for each of the {size} answers, got {len(label)}")
        defaults = {"length": 0, "log_cardinality": 0.0, "calls": 0, "count": 1, "timed": 0, "seconds": 0.0}
        arrays = {
            name: np.asarray(columns[name] if columns.get(name) is not None else np.full(size, value), type(value))
            for name, value in defaults.items()
        }
        labels = None if label is None else _objects(label)
        return cls(answer=_objects(answer), radius=np.asarray(radius, np.int64), label=labels, **arrays)

    @classmethod
    def of_counts(cls, counts: Mapping[tuple[Any, Any, int, int], int], *, labelled: bool) -> Outcomes:
        """Inputs that are counted by label, answer, radius and length."""
        columns = [*zip(*counts, strict=True)] if counts else [()] * 4
        label, answer, radius, length = columns
        return cls.of(answer, radius, label if labelled else None, length=length, count=[*counts.values()])

    def __len__(self) -> int:
        return int(self.count.sum())

    @property
    def labelled(self) -> bool:
        """Whether the inputs have labels."""
        return self.label is not None

    @cached_property
    def correct(self) -> BoolArray:
        """Whether the predicted label is the true label."""
        if self.label is None:
            return np.ones(len(self.answer), dtype=np.bool_)
        return np.asarray(self.answer == self.label, dtype=np.bool_)

    @cached_property
    def certified(self) -> BoolArray:
        """Whether the answer is correct and certified at radius 0 or more."""
        return self.correct & (self.radius >= 0)

    @cached_property
    def counted_radius(self) -> IntArray:
        """The radius as means count it: 0 for a wrong answer and for an abstention."""
        return np.where(self.certified, self.radius, 0)

    @cached_property
    def counted_log_cardinality(self) -> FloatArray:
        """The same for log10 of the size of the certified region."""
        return np.where(self.certified & (self.radius >= 1), self.log_cardinality, 0.0)

    @property
    def counts(self) -> AnswerCounts:
        """The counts that the accuracies and the mean certified radius follow from."""
        radius = int((self.counted_radius * self.count).sum())
        return AnswerCounts(len(self), self.number(self.correct), self.number(self.certified), radius)

    def number(self, chosen: BoolArray) -> int:
        """The number of inputs in some rows."""
        return int(self.count[chosen].sum())

    def take(self, rows: Any) -> Outcomes:
        """A part of the rows, by an index array or a mask."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})

    @staticmethod
    def pooled(parts: Sequence[Outcomes]) -> Outcomes:
        """All inputs of several sets; without labels if one of them has none."""
        names = [field.name for field in fields(Outcomes)]
        if not all(part.labelled for part in parts):
            parts = [replace(part, label=None) for part in parts]
        columns: dict[str, Any] = {name: [getattr(part, name) for part in parts] for name in names}
        pooled: dict[str, Any] = {n: None if c[0] is None else np.concatenate(c) for n, c in columns.items()}
        return Outcomes(**pooled)

    def by_label(self) -> dict[Any, Outcomes]:
        """The inputs of each label; empty without labels."""
        if self.label is None:
            return {}
        numbers = {label: number for number, label in enumerate(dict.fromkeys(self.label.tolist()))}
        column = np.array([numbers[label] for label in self.label.tolist()], dtype=np.int64)
        return {label: self.take(column == number) for label, number in numbers.items()}

    def quartile_edges(self) -> FloatArray:
        """The quartiles Q1, Q2 and Q3 of the lengths."""
        return quantiles(self.length, self.count, [0.25, 0.5, 0.75])

    def by_quartile(self) -> list[Outcomes]:
        """The inputs up to Q1, above it up to Q2, above it up to Q3, and above Q3; equal lengths stay together."""
        group = np.searchsorted(self.quartile_edges(), self.length, side="left")
        return [self.take(group == quarter) for quarter in range(4)]


def _objects(values: Labels) -> npt.NDArray[np.object_]:
    """Labels as an array of plain values, without NumPy's types."""
    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    array = np.empty(len(plain), dtype=np.object_)
    array[:] = plain
    return array


@dataclass(frozen=True)
class Measures:
    """The measures of a run, as in the paper's main table, and the counts behind them; NaN where one is undefined.

    Attributes:
        inputs: the number of inputs.
        clean_accuracy: the fraction of correct answers; abstentions count by their predicted label.
        certified_accuracy: certified accuracy at radius 0: the fraction of correct answers without abstentions.
        mean_radius: the mean certified radius, with 0 for wrong answers and abstentions.
        mean_radius_se: its standard error.
        balanced_accuracy: the mean over the labels of the clean accuracy.
        class_balanced_mean_radius: the mean over the labels of the mean certified radius.
        class_balanced_mean_radius_se: its standard error.
        covering: certificates that cover every text of their length, right or wrong.
        wasserstein: the distance between standardised radii and standardised lengths.
        median_log_cardinality: the median of log10 of the size of the certified region.
        lower_log_cardinality: the lower quartile of the same.
        upper_log_cardinality: the upper quartile of the same.
        certified: correct answers that are certified at radius 1 or more.
        certified_zero: correct answers that are certified at radius 0 only.
        wrong: wrong answers for which the classifier does not abstain.
        abstained: abstentions.
        median_radius: the median certified radius, with 0 for wrong answers and abstentions.
        calls: the mean number of votes per input.
        seconds: the mean time per input.
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
    covering: int
    wasserstein: float
    median_log_cardinality: float
    lower_log_cardinality: float
    upper_log_cardinality: float
    certified: int
    certified_zero: int
    wrong: int
    abstained: int
    median_radius: float
    calls: float
    seconds: float
    median_length: float
    shortest: int
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        return {name: None if value != value else value for name, value in vars(self).items()}


def measure(inputs: Outcomes, threat: Threat | None = None) -> Measures:
    """All measures of a set of inputs; the attacker, by default one of all edits, decides what `covering` counts."""
    counts, count, radius = inputs.counts, inputs.count, inputs.counted_radius
    low, median, high = quantiles(inputs.counted_log_cardinality, count, [0.25, 0.5, 0.75])
    labels = [*inputs.by_label().values()]
    errors = [standard_error(part.counted_radius, part.count) ** 2 for part in labels]
    lengths, places = np.unique(inputs.length, return_inverse=True)
    needed = [(threat or Threat()).covering_radius(length) for length in lengths.tolist()]
    least = np.array([2**62 if radius is None else radius for radius in needed], dtype=np.int64)[places]
    certified = inputs.certified
    return Measures(
        inputs=len(inputs),
        clean_accuracy=counts.clean_accuracy if inputs.labelled else nan,
        certified_accuracy=counts.certified_accuracy if inputs.labelled else nan,
        mean_radius=counts.mean_radius,
        mean_radius_se=standard_error(radius, count),
        balanced_accuracy=plain_mean([part.counts.clean_accuracy for part in labels]),
        class_balanced_mean_radius=plain_mean([part.counts.mean_radius for part in labels]),
        class_balanced_mean_radius_se=sqrt(sum(errors)) / len(errors) if errors else nan,
        covering=inputs.number(inputs.radius >= least),
        wasserstein=wasserstein(radius, inputs.length, count),
        median_log_cardinality=float(median),
        lower_log_cardinality=float(low),
        upper_log_cardinality=float(high),
        certified=inputs.number(certified & (radius >= 1)),
        certified_zero=inputs.number(certified & (radius == 0)),
        wrong=inputs.number(~inputs.correct & (inputs.radius >= 0)),
        abstained=inputs.number(inputs.radius < 0),
        median_radius=float(quantiles(radius, count, [0.5])[0]),
        calls=mean(inputs.calls, count),
        seconds=float(inputs.seconds.sum() / inputs.timed.sum()) if inputs.timed.any() else nan,
        median_length=float(quantiles(inputs.length, count, [0.5])[0]),
        shortest=int(inputs.length.min(initial=2**62)) if len(inputs) else 0,
        longest=int(inputs.length.max(initial=0)),
    )


def certified_at_radius(inputs: Outcomes, radii: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the fraction of inputs whose answer is correct and certified at each radius."""
    return _fraction_at_least(inputs, inputs.radius, radii)


def certified_at_log_cardinality(inputs: Outcomes, thresholds: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the fraction of inputs with a correct answer and at least each log-cardinality."""
    return _fraction_at_least(inputs, inputs.counted_log_cardinality, thresholds)


def radius_curve(inputs: Outcomes) -> tuple[IntArray, FloatArray]:
    """Certified accuracy at 0 and at every radius where it falls."""
    radii = np.unique(np.append(inputs.counted_radius, 0))
    return radii, certified_at_radius(inputs, radii)


def log_cardinality_curve(inputs: Outcomes) -> tuple[FloatArray, FloatArray]:
    """Certified accuracy at 0 and at every log-cardinality where it falls."""
    thresholds = np.unique(np.append(inputs.counted_log_cardinality, 0.0))
    return thresholds, certified_at_log_cardinality(inputs, thresholds)


def _fraction_at_least(inputs: Outcomes, values: Values, thresholds: npt.ArrayLike) -> FloatArray:
    chosen, size = inputs.certified, len(inputs)
    order = np.argsort(values[chosen], kind="stable")
    cumulated = np.concatenate([[0], np.cumsum(inputs.count[chosen][order])])
    below = np.searchsorted(values[chosen][order], np.asarray(thresholds), side="left")
    rest = cumulated[-1] - cumulated[below]
    return np.asarray(rest / size if size else np.full(np.shape(thresholds), nan), dtype=np.float64)


def wilson(fraction: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    """Wilson's 95% intervals for fractions of a number of inputs.

    >>> [round(float(end), 4) for end in wilson(np.array(0.75), 200)]
    [0.6857, 0.8049]
    """
    square = NORMAL_95**2
    half = NORMAL_95 * np.sqrt(fraction * (1 - fraction) / size + square / (4 * size * size))
    centre, scale = fraction + square / (2 * size), 1 + square / size
    return np.maximum(0, (centre - half) / scale), np.minimum(1, (centre + half) / scale)


def plain_mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else nan


def mean(values: Values, count: IntArray) -> float:
    """The mean of values of so many inputs; NaN without inputs."""
    size = int(count.sum())
    return float((values * count).sum() / size) if size else nan


def standard_error(values: IntArray, count: IntArray) -> float:
    """The standard error of the mean of integers, s/√n with s² = Σ (v − v̄)² / (n − 1); NaN for fewer than two inputs.

    It comes from exact sums of Python's integers, so that every machine agrees and nothing overflows.

    >>> standard_error(np.array([0, 3]), np.array([2, 2]))
    0.8660254037844386
    """
    pairs = [*zip(values.tolist(), count.tolist(), strict=True)]
    size, total, squares = (sum(number * value**power for value, number in pairs) for power in range(3))
    return sqrt((size * squares - total * total) / (size * size * (size - 1))) if size > 1 else nan


def quantiles(values: Values, count: IntArray, fractions: Sequence[float]) -> FloatArray:
    """Quantiles, interpolated as by `numpy.quantile` on values that are repeated; NaN without inputs.

    >>> quantiles(np.array([5, 1]), np.array([1, 3]), [0.5, 0.75, 1.0])
    array([1., 2., 5.])
    """
    if not len(values):
        return np.full(len(fractions), nan)
    order = np.argsort(values, kind="stable")
    last = np.cumsum(count[order]) - 1  # the position of the last input with each value
    position = np.asarray(fractions) * last[-1]
    below = np.floor(position).astype(np.int64)
    low, high = (values[order][np.searchsorted(last, np.minimum(below + step, last[-1]))] for step in (0, 1))
    return np.asarray(low + (position - below) * (high - low), dtype=np.float64)


def wasserstein(radius: Values, length: Values, count: IntArray) -> float:
    """The Wasserstein distance W₁ = ∫ |F⁻¹ − G⁻¹| between the distributions of standardised radii and lengths.

    The distance is small if the radius grows in proportion to the length. NaN if all radii or all lengths are equal.

    >>> wasserstein(np.array([1, 2, 3]), np.array([10, 20, 30]), np.ones(3, dtype=int))
    0.0
    """
    if not len(radius) or radius.min() == radius.max() or length.min() == length.max():
        return nan
    steps = []
    for values in (radius, length):
        centred = values - mean(values, count)
        order = np.argsort(values, kind="stable")
        steps.append(((centred / sqrt(mean(centred**2, count)))[order], np.cumsum(count[order])))
    ends = np.unique(np.concatenate([last for _, last in steps]))  # between two ends, both functions are constant
    low, high = (values[np.searchsorted(last, ends)] for values, last in steps)
    return float((np.abs(low - high) * np.diff(ends, prepend=0)).sum() / ends[-1])
