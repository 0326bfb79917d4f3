"""Measures of certified inputs: accuracies, radii and regions, from columns whose rows stand for equal inputs.

`certify`, `report`, `demo`, `calibrate --objective paper` and the benchmarks use them, so that a run has the same
values everywhere.
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
from adaptdel.tables import Column, percent, with_error

CLEAN_ACCURACY = "clean accuracy"
MEAN_RADIUS = "mean certified radius"
COUNTED_RADIUS = "Of wrong answers and abstentions, the radius counts as 0."
MEASURE_COLUMNS = (
    Column(CLEAN_ACCURACY, ("clean_accuracy",), percent, "max", about="The fraction of correct answers. An abstention "
           "counts by its predicted label."),
    Column("certified accuracy at radius 0", ("certified_accuracy",), percent, "max", about="The fraction of inputs "
           "whose answer is correct and certified. An abstention counts as wrong."),
    Column("balanced accuracy", ("balanced_accuracy",), percent, "max", about="The mean over the classes of the clean "
           "accuracy: a rare class counts as much as a frequent one."),
    Column(MEAN_RADIUS, ("mean_radius", "mean_radius_se"), with_error, "max", about="The number of edits that provably "
           f"cannot change the answer, with its standard error. {COUNTED_RADIUS}"),
    Column("class-balanced mean radius", ("class_balanced_mean_radius", "class_balanced_mean_radius_se"), with_error,
           "max", about="The mean over the classes of the mean certified radius."),
)  # fmt: skip
NORMAL_95 = 1.959963984540054  # the normal quantile of a two-sided 95% interval

Values = npt.NDArray[Any]
Labels = Sequence[Any] | npt.NDArray[Any]


@dataclass(frozen=True)
class Outcomes:
    """Certified inputs as columns of shape (rows,): a row stands for `count` inputs that have the same values.

    Attributes:
        answer: the predicted label, also where the classifier abstains.
        radius: the certified radius; −1 for an abstention.
        label: the true label; None if the inputs have no labels, and then every answer counts as correct.
        length: the number of tokens.
        padded_radius: the radius with any text before and after besides; −1 if such text may change the answer.
        positions: the number of positions that withstand inserted text besides padding; −1 the same.
        character_radius: the radius in edited characters; None if it is not known of all inputs.
        log_cardinality: log10 of the number of texts in the certified region.
        calls: the number of votes.
        count: the number of inputs.
    """

    answer: npt.NDArray[np.object_]
    radius: IntArray
    label: npt.NDArray[np.object_] | None
    length: IntArray
    padded_radius: IntArray
    positions: IntArray
    character_radius: IntArray | None
    log_cardinality: FloatArray
    calls: IntArray
    count: IntArray

    @classmethod
    def of(cls, answer: Labels, radius: npt.ArrayLike, label: Labels | None = None, **columns: Any) -> Outcomes:
        """Inputs from their columns; a column that is left out is 0, `count` 1, and what padding leaves −1.

        >>> inputs = Outcomes.of(["ham", "ham", "spam"], [3, -1, 5], ["ham", "ham", "ham"], count=[10, 5, 5])
        >>> inputs.clean_accuracy, inputs.certified_accuracy, inputs.mean_radius
        (0.75, 0.5, 1.5)
        """
        size = len(answer)
        if label is not None and len(label) != size:
            raise ValueError(f"labels must be one for each of the {size} answers, got {len(label)}")
        defaults = {"length": 0, "padded_radius": -1, "positions": -1, "log_cardinality": 0.0, "calls": 0, "count": 1}
        given = {name: np.full(size, value) for name, value in defaults.items()}
        given |= {name: column for name, column in columns.items() if column is not None}
        arrays = {name: np.asarray(given[name], type(value)) for name, value in defaults.items()}
        characters = columns.get("character_radius")
        if characters is not None:
            is_known = all(value is not None for value in characters)
            characters = np.asarray(characters, np.int64) if is_known and size else None
        labels = None if label is None else _objects(label)
        radii = np.asarray(radius, np.int64)
        return cls(answer=_objects(answer), radius=radii, label=labels, character_radius=characters, **arrays)

    @classmethod
    def of_counts(cls, counts: Mapping[tuple[Any, ...], int], names: Sequence[str], *, labelled: bool) -> Outcomes:
        """Inputs that are counted by label, answer and the columns with these names."""
        label, answer, *values = [*zip(*counts, strict=True)] if counts else [()] * (2 + len(names))
        columns: dict[str, Any] = dict(zip(names, values, strict=True)) | {"count": [*counts.values()]}
        return cls.of(answer, label=label if labelled else None, **columns)

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
    def clean_accuracy(self) -> float:
        """The fraction of inputs whose predicted label is correct, without any guarantee; NaN without inputs."""
        return self.mean(self.correct)

    @property
    def certified_accuracy(self) -> float:
        """Certified accuracy at radius 0: the fraction of inputs that are correct and certified. NaN without inputs."""
        return self.mean(self.certified)

    @property
    def mean_radius(self) -> float:
        """The mean certified radius over all inputs, with 0 for wrong answers and abstentions. NaN without inputs."""
        return self.mean(self.counted_radius)

    def mean(self, values: Values) -> float:
        """The mean over the inputs of a column; NaN without inputs."""
        size = len(self)
        return float((values * self.count).sum() / size) if size else nan

    def number(self, chosen: BoolArray) -> int:
        """The number of inputs in some rows."""
        return int(self.count[chosen].sum())

    def in_characters(self) -> Outcomes:
        """The same inputs with their radii in edited characters; ValueError if these are not known."""
        if self.character_radius is None and len(self):
            raise ValueError("the radius in characters is not known of all inputs")
        characters = self.radius if self.character_radius is None else self.character_radius
        return self.against(characters)

    def against(self, radius: IntArray) -> Outcomes:
        """The same inputs with their radii for another attacker, such as `padded_radius` or `positions`."""
        return replace(self, radius=radius, log_cardinality=np.zeros(len(self.radius)))

    @property
    def padded(self) -> int:
        """The number of inputs whose answer is correct and survives any text before and after."""
        return self.number(self.correct & (self.padded_radius >= 0))

    def take(self, rows: Any) -> Outcomes:
        """A part of the rows, by an index array or a mask."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})

    @staticmethod
    def pooled(parts: Sequence[Outcomes]) -> Outcomes:
        """All inputs of several sets; a column that a set lacks is left out."""
        columns: dict[str, Any] = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Outcomes)}
        pooled: dict[str, Any] = {
            name: None if any(part is None for part in column) else np.concatenate(column)
            for name, column in columns.items()
        }
        return Outcomes(**pooled)

    def by_label(self) -> dict[Any, Outcomes]:
        """The inputs of each label; empty without labels."""
        if self.label is None:
            return {}
        return {label: self.take(self.label == label) for label in dict.fromkeys(self.label.tolist())}

    def by_quartile(self) -> list[Outcomes]:
        """The inputs up to the first quartile of the length, up to the second, up to the third, and above it."""
        edges = quantiles(self.length, self.count, [0.25, 0.5, 0.75])
        group = np.searchsorted(edges, self.length, side="left")  # equal lengths stay together
        return [self.take(group == quarter) for quarter in range(4)]


def _objects(values: Labels) -> npt.NDArray[np.object_]:
    """Labels as an array of plain values, without NumPy's types."""
    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    array = np.empty(len(plain), dtype=np.object_)
    array[:] = plain
    return array


@dataclass(frozen=True)
class Measures:
    """The measures of a run, as in the paper's main table; NaN where one is undefined.

    Attributes:
        clean_accuracy: the fraction of correct answers; abstentions count by their predicted label.
        certified_accuracy: certified accuracy at radius 0: the fraction of correct answers without abstentions.
        mean_radius: the mean certified radius, with 0 for wrong answers and abstentions.
        mean_radius_se: its standard error.
        mean_character_radius: the mean in edited characters.
        balanced_accuracy: the mean over the labels of the clean accuracy.
        class_balanced_mean_radius: the mean over the labels of the mean certified radius.
        median_log_cardinality: the median of log10 of the size of the certified region; beside it, the quartiles.
        wasserstein: the distance between standardised radii and standardised lengths.
        covering: certificates that cover every text of their length, right or wrong.
        padded: inputs whose answer is correct, and stays so no matter what text is added before and after.
        calls: the mean number of votes per input.
        shortest: the smallest number of tokens.
    """

    inputs: int
    clean_accuracy: float
    certified_accuracy: float
    mean_radius: float
    mean_radius_se: float
    median_radius: float
    mean_character_radius: float
    balanced_accuracy: float
    class_balanced_mean_radius: float
    class_balanced_mean_radius_se: float
    median_log_cardinality: float
    lower_log_cardinality: float
    upper_log_cardinality: float
    wasserstein: float
    covering: int
    padded: int
    abstained: int
    calls: float
    shortest: int
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        return {name: known(value) for name, value in vars(self).items()}


def measure(inputs: Outcomes, threat: Threat | None = None) -> Measures:
    """All measures of a set of inputs; the attacker, by default one of all edits, decides what `covering` counts."""
    radius, count = inputs.counted_radius, inputs.count
    low, median, high = quantiles(inputs.counted_log_cardinality, count, [0.25, 0.5, 0.75])
    labels = [*inputs.by_label().values()]
    errors = [standard_error(part.counted_radius, part.count) ** 2 for part in labels]
    lengths, numbers = np.unique(inputs.length, return_inverse=True)
    needed = [(threat or Threat()).covering_radius(length) for length in lengths.tolist()]
    least = np.array([2**62 if radius is None else radius for radius in needed], dtype=np.int64)[numbers]
    return Measures(
        inputs=len(inputs),
        clean_accuracy=inputs.clean_accuracy if inputs.labelled else nan,
        certified_accuracy=inputs.certified_accuracy if inputs.labelled else nan,
        mean_radius=inputs.mean_radius,
        mean_radius_se=standard_error(radius, count),
        median_radius=float(quantiles(radius, count, [0.5])[0]),
        mean_character_radius=nan if inputs.character_radius is None else inputs.in_characters().mean_radius,
        balanced_accuracy=plain_mean([part.clean_accuracy for part in labels]),
        class_balanced_mean_radius=plain_mean([part.mean_radius for part in labels]),
        class_balanced_mean_radius_se=sqrt(sum(errors)) / len(errors) if errors else nan,
        median_log_cardinality=float(median),
        lower_log_cardinality=float(low),
        upper_log_cardinality=float(high),
        wasserstein=wasserstein(inputs),
        covering=inputs.number(inputs.radius >= least),
        padded=inputs.padded,
        abstained=inputs.number(inputs.radius < 0),
        calls=inputs.mean(inputs.calls),
        shortest=int(inputs.length.min(initial=2**62)) if len(inputs) else 0,
        longest=int(inputs.length.max(initial=0)),
    )


def certified_at_radius(inputs: Outcomes, radii: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the fraction of inputs whose answer is correct and certified at each radius."""
    return _fraction_at_least(inputs, inputs.radius, radii)


def radius_curve(inputs: Outcomes) -> tuple[IntArray, FloatArray]:
    """Certified accuracy at 0 and at every radius where it falls."""
    radii = np.unique(np.append(inputs.counted_radius, 0))
    return radii, certified_at_radius(inputs, radii)


def log_cardinality_curve(inputs: Outcomes) -> tuple[FloatArray, FloatArray]:
    """The fraction of inputs with a correct answer and a region of at least each size, where that fraction falls."""
    thresholds = np.unique(np.append(inputs.counted_log_cardinality, 0.0))
    return thresholds, _fraction_at_least(inputs, inputs.counted_log_cardinality, thresholds)


def _fraction_at_least(inputs: Outcomes, values: Values, thresholds: npt.ArrayLike) -> FloatArray:
    chosen, size = inputs.certified, len(inputs)
    order = np.argsort(values[chosen], kind="stable")
    cumulated = np.concatenate([[0], np.cumsum(inputs.count[chosen][order])])
    below = np.searchsorted(values[chosen][order], np.asarray(thresholds), side="left")
    rest = cumulated[-1] - cumulated[below]
    return np.asarray(rest / size if size else np.full(np.shape(thresholds), nan), dtype=np.float64)


def wilson(fraction: Any, size: int) -> tuple[Any, Any]:
    """Wilson's 95% interval for a fraction of a number of inputs, or for an array of fractions; 0 to 1 of none.

    >>> [round(float(end), 4) for end in wilson(0.75, 200)]
    [0.6857, 0.8049]
    """
    if not size:
        return 0.0, 1.0
    square = NORMAL_95**2 / size
    half = np.sqrt(square * (fraction * (1 - fraction) + square / 4))
    low, high = ((fraction + square / 2 + sign * half) / (1 + square) for sign in (-1, 1))
    return np.maximum(0.0, low), np.minimum(1.0, high)


def known(value: Any) -> Any:
    """A value as JSON holds it: None in place of NaN."""
    return None if isinstance(value, float) and value != value else value


def plain_mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else nan


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


def wasserstein(inputs: Outcomes) -> float:
    """The Wasserstein distance between the distributions of standardised radii and lengths.

    The distance is small if the radius grows in proportion to the length. NaN if all radii or all lengths are equal.

    >>> wasserstein(Outcomes.of("aaa", [1, 2, 3], length=[10, 20, 30]))
    0.0
    """
    columns = inputs.counted_radius, inputs.length
    if not len(inputs) or any(column.min() == column.max() for column in columns):
        return nan
    centred = [column - inputs.mean(column) for column in columns]
    standardised = [column / sqrt(inputs.mean(column**2)) for column in centred]
    positions = np.sort(np.concatenate(standardised))
    below = []  # how many inputs are at most at each place: their difference is integrated
    for column in standardised:
        order = np.argsort(column)
        counts = np.concatenate([[0], np.cumsum(inputs.count[order])])
        below.append(counts[np.searchsorted(column[order], positions[:-1], side="right")])
    return float(
        np.sum(np.abs(below[0] - below[1]) * np.diff(positions)) / len(inputs)
    )  # scipy.stats is slow to import
