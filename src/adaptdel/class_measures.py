"""Measures by class, balanced means, the confusion matrix; constant answers and missed classes.

Every function takes columns with a value for each input. An abstention counts by its predicted label, as in the clean
accuracy; the radius of a wrong answer and of an abstention counts as 0, as in the mean certified radius. So each
measure by class is the plain measure over the inputs of one label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray

Labels = Sequence[Any] | npt.NDArray[Any]
RADII = (0, 1, 2, 5, 10, 20)  # where certified recall is given by default
LEAST = 5  # inputs of other labels: with fewer, a classifier that finds half of them misses all more often than 1 in 20
CONSTANT = 0.1  # an answer is constant if other answers are at most this fraction of the other labels
NAMED = 8  # missed classes that a sentence names
MISSED = 0.1  # a class is missed if its recall is at most this
MOST_CLASSES = 50  # of a confusion matrix in JSON and in tables
UNLABELLED_LEAST, UNLABELLED_SHARE = 50, 0.98  # without labels: inputs, and the share of one answer
_CONSTANT = ("label", "answers", "inputs", "others")
ADVICE = (
    "train at a lower rate, which keeps more words of each text, with --class-weight balanced, or on more examples of "
    "the classes that it misses"
)


@dataclass(frozen=True)
class ConstantAnswer:
    """A set of inputs that (almost) all get one answer, although their labels differ.

    Attributes:
        label: the answer.
        answers: how many inputs get it.
        inputs: how many inputs there are.
        others: how many of them have another label; None if the labels are unknown.
    """

    label: Any
    answers: int
    inputs: int
    others: int | None

    @property
    def share(self) -> float:
        """The share of the inputs that get this answer."""
        return self.answers / self.inputs

    def sentence(self, what: str = "the model") -> str:
        """What is constant, and on how many inputs; ``what`` gives the answers.

        >>> ConstantAnswer("ham", 998, 1000, 107).sentence()
        'the model answers ham on 998 of 1,000 inputs, although 107 have another label'
        """
        start = f"{what} answers {self.label} on {self.answers:,} of {self.inputs:,} inputs"
        if self.others is None:
            return f"{start}; the data have no labels, so it is unknown whether other answers were due"
        return f"{start}, although {self.others:,} have another label"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, "answers": self.answers, "inputs": self.inputs, "others": self.others}


@dataclass(frozen=True)
class MissedClass:
    """A class whose inputs (almost) never get its label as the answer."""

    label: Any
    correct: int
    inputs: int

    def sentence(self, what: str = "the model") -> str:
        """How many inputs of the class are recognised.

        >>> MissedClass("spam", 1, 107).sentence()
        'the model recognises 1 of 107 inputs of the class spam'
        """
        return f"{what} recognises {self.correct:,} of {self.inputs:,} inputs of the class {self.label}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, "correct": self.correct, "inputs": self.inputs}


def constant_answer(answers: Labels, labels: Labels | None = None) -> ConstantAnswer | None:
    """The answer that (almost) all inputs get, or None.

    "Almost" is relative to the labels: the answers other than the most frequent one are at most a tenth as many as the
    labels other than it, of which there are at least 5. A classifier that answers "ham" on 99% of the mails is
    constant if 11% are spam, and it is not if 1% is. With fewer than 5 inputs of other labels nothing is said.
    Without labels, at least 98% of at least 50 inputs must get the same answer.

    >>> constant_answer(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11)
    ConstantAnswer(label='ham', answers=99, inputs=100, others=11)
    >>> constant_answer(["ham"] * 99 + ["spam"], ["ham"] * 99 + ["spam"]) is None
    True
    """
    given = _list(answers)
    if not given:
        return None
    label, count = _most_frequent(given)
    if labels is None:
        is_constant = len(given) >= UNLABELLED_LEAST and count >= UNLABELLED_SHARE * len(given)
        return ConstantAnswer(label, count, len(given), None) if is_constant else None
    others = sum(1 for true in _same_size(given, labels) if true != label)
    is_constant = others >= LEAST and len(given) - count <= CONSTANT * others
    return ConstantAnswer(label, count, len(given), others) if is_constant else None


def missed_classes(answers: Labels, labels: Labels) -> list[MissedClass]:
    """The classes with at least 5 inputs of which at most a tenth get the right answer, in the order of the labels.

    >>> missed_classes(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11)
    [MissedClass(label='spam', correct=1, inputs=11)]
    """
    given = _list(answers)
    counts: dict[Any, list[int]] = {}
    for answer, label in zip(given, _same_size(given, labels), strict=True):
        count = counts.setdefault(label, [0, 0])
        count[0] += answer == label
        count[1] += 1
    return [
        MissedClass(label, *counts[label])
        for label in in_order(counts)
        if counts[label][1] >= LEAST and counts[label][0] <= MISSED * counts[label][1]
    ]


def answer_warnings(
    answers: Labels, labels: Labels | None = None, *, what: str = "the model", advice: bool = True
) -> list[str]:
    """Sentences that name a constant answer, or else the missed classes, with what to do; empty if there are none.

    >>> for sentence in answer_warnings(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11):
    ...     print(sentence.partition(":")[0])
    the model answers ham on 99 of 100 inputs, although 11 have another label
    """
    constant = constant_answer(answers, labels)
    if constant is not None:
        return [_constant_warning(constant, what, advice=advice)]
    missed = [] if labels is None else missed_classes(answers, labels)
    return [missed_sentence(missed, what) + (f": {ADVICE}" if advice else "")] if missed else []


def missed_sentence(missed: Sequence[MissedClass], what: str = "the model") -> str:
    """How many inputs of the missed classes are recognised.

    >>> missed_sentence([MissedClass("spam", 1, 107), MissedClass("scam", 0, 12)])
    'the model recognises 1 of 107 inputs of the class spam, 0 of 12 of scam'
    """
    others = [f"{each.correct:,} of {each.inputs:,} of {each.label}" for each in missed[1:NAMED]]
    more = [f"and {len(missed) - NAMED} more classes as rarely"] if len(missed) > NAMED else []
    return ", ".join([missed[0].sentence(what), *others, *more])


def _constant_warning(constant: ConstantAnswer, what: str, *, advice: bool) -> str:
    if not advice or constant.others is None:
        return constant.sentence(what)
    return f"{constant.sentence(what)}: its accuracy and its radii say nothing about the other classes: {ADVICE}"


def balanced_accuracy(labels: Labels, correct: npt.ArrayLike) -> float:
    """The mean over the labels of the share of correct answers (the recall); NaN without inputs.

    >>> balanced_accuracy(["ham", "ham", "ham", "spam"], [True, True, True, False])
    0.5
    """
    return class_balanced_mean(labels, np.asarray(correct, dtype=np.float64))


def class_balanced_mean_radius(labels: Labels, correct: npt.ArrayLike, radius: npt.ArrayLike) -> float:
    """The mean over the labels of the mean certified radius, with 0 for wrong answers and abstentions (radius −1).

    >>> class_balanced_mean_radius(["ham", "ham", "ham", "spam"], [True, True, True, False], [4, 4, -1, 9])
    1.3333333333333333
    """
    return class_balanced_mean(labels, counted_radius(correct, radius))


def class_balanced_mean_radius_se(labels: Labels, correct: npt.ArrayLike, radius: npt.ArrayLike) -> float:
    """The standard error of `class_balanced_mean_radius`; NaN if a label has fewer than two inputs."""
    values = counted_radius(correct, radius)
    groups = [values[places] for places in _places(labels).values()]
    if not groups or min(map(len, groups)) < 2:
        return nan
    return sqrt(sum(map(squared_error, groups))) / len(groups)


def squared_error(values: IntArray) -> float:
    """The squared standard error of the mean of whole numbers, s²/n; from exact sums, so that every machine agrees."""
    numbers = values.tolist()  # Python's whole numbers do not overflow
    size, total, squares = len(numbers), sum(numbers), sum(number * number for number in numbers)
    return (size * squares - total * total) / (size * size * (size - 1))


def counted_radius(correct: npt.ArrayLike, radius: npt.ArrayLike) -> IntArray:
    """The radii as means count them, shape (inputs,): 0 for a wrong answer and for an abstention."""
    radii = np.asarray(radius, dtype=np.int64)
    return np.where(np.asarray(correct, dtype=np.bool_) & (radii >= 0), radii, 0)


def class_balanced_mean(labels: Labels, values: npt.NDArray[Any]) -> float:
    """The mean over the labels of the mean of the values of each label; NaN without inputs."""
    means = [float(values[places].sum()) / len(places) for places in _places(labels).values()]
    return sum(means) / len(means) if means else nan


@dataclass(frozen=True)
class ClassMeasures:
    """The measures of the inputs of one label; NaN where one is undefined.

    Attributes:
        label: the label.
        inputs: inputs that have it.
        answers: inputs that get it as the answer.
        recall: the share of its inputs that get it as the answer.
        precision: the share of the inputs that get it as the answer and have it.
        mean_radius: the mean certified radius of its inputs.
        mean_radius_se: the standard error.
        median_radius: the median of the same radii.
        abstained: its inputs on which the classifier abstains.
        certified_recall: the share of its inputs that are correct and certified at each radius, by radius.
    """

    label: Any
    inputs: int
    answers: int
    recall: float
    precision: float
    mean_radius: float
    mean_radius_se: float
    median_radius: float
    abstained: int
    certified_recall: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        values = dict(vars(self)) | {"certified_recall": {str(r): _known(v) for r, v in self.certified_recall.items()}}
        return {name: _known(value) for name, value in values.items()}


@dataclass(frozen=True)
class ConstantLengths:
    """A range of lengths, in tokens, whose inputs (almost) all get one answer."""

    shortest: int
    longest: int
    constant: ConstantAnswer

    def sentence(self, what: str = "the model") -> str:
        """What is constant, and at which lengths.

        >>> ConstantLengths(1, 6, ConstantAnswer("ham", 250, 250, 12)).sentence()
        'at 1 to 6 tokens, the model answers ham on 250 of 250 inputs, although 12 have another label'
        """
        return f"at {self.shortest} to {self.longest} tokens, {self.constant.sentence(what)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"shortest": self.shortest, "longest": self.longest, **self.constant.to_dict()}


@dataclass(frozen=True)
class ClassTable:
    """All measures by class of a set of inputs.

    Attributes:
        classes: the measures of each class, in the order of the classes; empty without labels.
        confusion: inputs by label and answer, shape (classes, classes).
        balanced_accuracy: the mean recall of the classes that have inputs.
        class_balanced_mean_radius: the mean of their mean certified radii.
        class_balanced_mean_radius_se: its standard error.
        constant: the answer that (almost) all inputs get, or None.
        missed: the classes that are (almost) never recognised.
        constant_lengths: the quarters of the lengths that (almost) always get one answer, if not all inputs do.
    """

    classes: tuple[ClassMeasures, ...]
    confusion: tuple[tuple[int, ...], ...]
    balanced_accuracy: float
    class_balanced_mean_radius: float
    class_balanced_mean_radius_se: float
    constant: ConstantAnswer | None
    missed: tuple[MissedClass, ...]
    constant_lengths: tuple[ConstantLengths, ...]

    def warnings(self, what: str = "the model", *, advice: bool = True) -> list[str]:
        """Sentences that name constant answers and missed classes, with what to do; empty if there are none."""
        if self.constant is not None:
            return [_constant_warning(self.constant, what, advice=advice)]
        sentences = [missed_sentence(self.missed, what)] if self.missed else []
        sentences += [each.sentence(what) for each in self.constant_lengths]
        return [*sentences[:-1], f"{sentences[-1]}: {ADVICE}"] if sentences and advice else sentences

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined, and for the confusion matrix of many classes."""
        return {
            "balanced_accuracy": _known(self.balanced_accuracy),
            "class_balanced_mean_radius": _known(self.class_balanced_mean_radius),
            "class_balanced_mean_radius_se": _known(self.class_balanced_mean_radius_se),
            "classes": [each.to_dict() for each in self.classes],
            "confusion": [list(row) for row in self.confusion] if len(self.classes) <= MOST_CLASSES else None,
            "constant_answer": None if self.constant is None else self.constant.to_dict(),
            "missed_classes": [each.to_dict() for each in self.missed],
            "constant_lengths": [each.to_dict() for each in self.constant_lengths],
        }


def warnings_of(values: Mapping[str, Any], what: str = "the model", *, advice: bool = True) -> list[str]:
    """The warnings of `ClassTable.to_dict`, as `ClassTable.warnings` gives them."""
    constant = values["constant_answer"]
    lengths = [
        ConstantLengths(each["shortest"], each["longest"], ConstantAnswer(**{key: each[key] for key in _CONSTANT}))
        for each in values["constant_lengths"]
    ]
    table = ClassTable(
        (), (), nan, nan, nan,
        None if constant is None else ConstantAnswer(**constant),
        tuple(MissedClass(**each) for each in values["missed_classes"]),
        tuple(lengths),
    )  # fmt: skip
    return table.warnings(what, advice=advice)


def measure_classes(
    labels: Labels | None,
    answers: Labels,
    radius: npt.ArrayLike,
    length: npt.ArrayLike | None = None,
    *,
    classes: Sequence[Any] = (),
    radii: Sequence[int] = RADII,
) -> ClassTable:
    """The measures by class of a set of inputs.

    Args:
        labels: the label of each input; None if they are unknown, and then only constant answers are named.
        answers: the predicted label of each input, also where the classifier abstains.
        radius: the certified radius of each input; −1 for an abstention.
        length: the number of tokens of each input, by which ranges with constant answers are named.
        classes: the classes that come first, in this order; others follow in theirs.
        radii: where the certified recall is given.
    """
    given = _list(answers)
    constant = constant_answer(given, labels)
    ranges = () if constant is not None or length is None else tuple(constant_lengths(length, given, labels))
    if labels is None:
        return ClassTable((), (), nan, nan, nan, constant, (), ranges)
    true = _same_size(given, labels)
    order = [*dict.fromkeys(classes), *in_order({*given, *true} - set(classes))]
    number = {label: place for place, label in enumerate(order)}
    rows, columns = (np.array([number[label] for label in side], dtype=np.int64) for side in (true, given))
    confusion = np.bincount(rows * len(order) + columns, minlength=len(order) ** 2).reshape(len(order), len(order))
    all_radii, correct = np.asarray(radius, dtype=np.int64), rows == columns
    predicted = confusion.sum(axis=0)
    inside = np.split(np.argsort(rows, kind="stable"), np.cumsum(confusion.sum(axis=1))[:-1]) if order else []
    measured = [
        _class_measures(label, all_radii[inside[place]], correct[inside[place]], int(predicted[place]), radii)
        for place, label in enumerate(order)
    ]
    return ClassTable(
        classes=tuple(measured),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
        balanced_accuracy=balanced_accuracy(true, correct),
        class_balanced_mean_radius=class_balanced_mean_radius(true, correct, all_radii),
        class_balanced_mean_radius_se=class_balanced_mean_radius_se(true, correct, all_radii),
        constant=constant,
        missed=tuple(missed_classes(given, true)),
        constant_lengths=ranges,
    )


def _class_measures(
    label: Any, radius: IntArray, correct: npt.NDArray[np.bool_], answers: int, radii: Sequence[int]
) -> ClassMeasures:
    size, hits, counted = len(radius), int(correct.sum()), counted_radius(correct, radius)
    certified = radius[correct & (radius >= 0)]
    return ClassMeasures(
        label=label,
        inputs=size,
        answers=answers,
        recall=_share(hits, size),
        precision=_share(hits, answers),
        mean_radius=_share(sum(counted.tolist()), size),
        mean_radius_se=sqrt(squared_error(counted)) if size > 1 else nan,
        median_radius=float(np.median(counted)) if size else nan,
        abstained=int((radius < 0).sum()),
        certified_recall={int(r): _share(int((certified >= r).sum()), size) for r in radii},
    )


def constant_lengths(length: npt.ArrayLike, answers: Labels, labels: Labels | None = None) -> list[ConstantLengths]:
    """The quarters of the lengths in which (almost) all inputs get one answer: see `constant_answer`."""
    lengths, given = np.asarray(length, dtype=np.int64), _list(answers)
    true = None if labels is None else _same_size(given, labels)
    group = quartile_numbers(lengths)
    ranges = []
    for quarter in range(4):
        places = np.flatnonzero(group == quarter).tolist()
        part = None if true is None else [true[place] for place in places]
        constant = constant_answer([given[place] for place in places], part)
        if constant is not None:
            own = lengths[places]
            ranges.append(ConstantLengths(int(own.min()), int(own.max()), constant))
    return ranges


def quartile_numbers(length: npt.NDArray[Any], edges: npt.NDArray[Any] | None = None) -> IntArray:
    """The quarter of each length, 0 to 3: up to Q1, above Q1 up to Q2, and so on; equal lengths share a quarter.

    ``edges`` are the quartiles to use instead of those of the lengths.
    """
    if edges is None:
        edges = np.quantile(length, [0.25, 0.5, 0.75]) if len(length) else np.zeros(3)
    return np.searchsorted(edges, length, side="left")


def in_order(labels: Iterable[Any]) -> list[Any]:
    """Labels in order: numbers by value, then texts.

    >>> in_order(["b", 10, "a", 9])
    [9, 10, 'a', 'b']
    """
    return sorted(labels, key=lambda label: (isinstance(label, str), str(label) if isinstance(label, str) else label))


def _places(labels: Labels) -> dict[Any, IntArray]:
    """The places of the inputs of each label."""
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(_list(labels)):
        places.setdefault(label, []).append(place)
    return {label: np.array(where, dtype=np.int64) for label, where in places.items()}


def _most_frequent(values: Sequence[Any]) -> tuple[Any, int]:
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return max(counts.items(), key=lambda item: item[1])


def _same_size(answers: Labels, labels: Labels) -> list[Any]:
    values = _list(labels)
    if len(values) != len(answers):
        raise ValueError(f"labels must be one for each of the {len(answers)} answers, got {len(values)}")
    return values


def _list(values: Labels) -> list[Any]:
    """A list of plain values, without NumPy's types."""
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


def _share(count: int, size: int) -> float:
    return count / size if size else nan


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value
