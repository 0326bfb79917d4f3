"""Measures by class, the confusion matrix, and the classes and lengths to which accuracy and radii do not apply.

An abstention counts by its predicted label; the radius of a wrong answer and of an abstention counts as 0. So each
measure by class is the plain measure over the inputs of a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray
from adaptdel.measures.summary import (
    COUNTED_RADIUS,
    Labels,
    Outcomes,
    certified_at_radius,
    plain_mean,
    standard_error,
)
from adaptdel.tables import Column, Table, integer, percent, with_error

RADII = (0, 1, 2, 5, 10, 20)  # where certified recall is given
LEAST = 5  # inputs of other labels: with fewer, a classifier that finds half of them misses all more often than 1 in 20
LEAST_FOR_ONE = 8  # with fewer, a classifier that finds half of them finds at most one more often than 1 in 20
LEAST_IN_QUARTILE = 10  # the same for a quartile of the lengths, of which there are four
FEW = 0.1  # (almost) none: at most this fraction
NAMED = 8  # missed classes that a sentence names
CERTIFIED = 0.5  # certified recall at radius 1 of a class, beside which a class that has (almost) none is named
MOST_CLASSES = 50  # of a confusion matrix in JSON and in tables
SHOWN_CLASSES = 20  # rows of a table by class
UNLABELLED_LEAST, UNLABELLED_FRACTION = 50, 0.98  # without labels: inputs, and the fraction with the same answer


@dataclass(frozen=True)
class ClassMeasures:
    """The measures of the inputs of a label; NaN where one is undefined.

    Attributes:
        inputs: inputs that have it.
        answers: inputs that get it as the answer.
        precision: the fraction of the inputs that get it as the answer and have it.
        mean_radius_se: the standard error.
        certified_recall: the fraction of its inputs that are correct and certified at each radius, by radius.
    """

    label: Any
    inputs: int
    answers: int
    recall: float
    precision: float
    mean_radius: float
    mean_radius_se: float
    abstained: int
    certified_recall: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        values = dict(vars(self)) | {"certified_recall": {str(r): _known(v) for r, v in self.certified_recall.items()}}
        return {name: _known(value) for name, value in values.items()}


@dataclass(frozen=True)
class ClassTable:
    """All measures by class of a set of inputs.

    Attributes:
        classes: the measures of each class, in the order of the classes; empty without labels.
        confusion: inputs by label and answer, shape (classes, classes).
        constant: the answer that (almost) all inputs get although their labels differ, or None.
        warnings: sentences that name a constant answer, missed and uncertified classes, and quartiles of the lengths
            with a constant answer.
    """

    classes: tuple[ClassMeasures, ...]
    confusion: tuple[tuple[int, ...], ...]
    constant: Any
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None for the confusion matrix of many classes."""
        return {
            "classes": [each.to_dict() for each in self.classes],
            "confusion": [list(row) for row in self.confusion] if len(self.classes) <= MOST_CLASSES else None,
            "constant_answer": self.constant,
            "warnings": list(self.warnings),
        }


def measure_classes(inputs: Outcomes, classes: Sequence[Any] = (), *, protected: str | None = None) -> ClassTable:
    """The measures by class of a set of inputs, and what is wrong with them.

    Args:
        inputs: the inputs.
        classes: the classes that come first, in this order; others follow in theirs.
        protected: the class that a decision threshold protects, as text: others are not meant to be certified.
    """
    constant = constant_answer(inputs)
    parts, answers = inputs.by_label(), inputs.answer.tolist()
    order = [*dict.fromkeys(classes), *in_order({*answers, *parts} - set(classes))] if inputs.labelled else []
    numbers = {label: number for number, label in enumerate(order)}
    confusion = np.zeros((len(order), len(order)), dtype=np.int64)
    if inputs.label is not None:
        rows = [[numbers[label] for label in column] for column in (inputs.label.tolist(), answers)]
        np.add.at(confusion, tuple(rows), inputs.count)
    measured = tuple(
        _measures(label, parts.get(label), confusion[:, number], int(confusion[number, number]))
        for label, number in numbers.items()
    )
    matrix = tuple(tuple(row) for row in confusion.tolist())
    return ClassTable(measured, matrix, constant, tuple(_warnings(inputs, measured, confusion, protected)))


def _measures(label: Any, part: Outcomes | None, answers: IntArray, hits: int) -> ClassMeasures:
    total = int(answers.sum())
    inputs = Outcomes.of([], [], []) if part is None else part
    return ClassMeasures(
        label=label,
        inputs=len(inputs),
        answers=total,
        recall=inputs.clean_accuracy,
        precision=hits / total if total else nan,
        mean_radius=inputs.mean_radius,
        mean_radius_se=standard_error(inputs.counted_radius, inputs.count),
        abstained=inputs.number(inputs.radius < 0),
        certified_recall=dict(zip(RADII, certified_at_radius(inputs, RADII).tolist(), strict=True)),
    )


def almost_none(count: int, size: int, *, least: int = LEAST) -> bool:
    """Whether (almost) none of a number of inputs count: at most a tenth, or a single one of at least 8.

    False if there are fewer than ``least`` inputs.

    >>> [almost_none(count, size) for count, size in ((0, 4), (0, 5), (1, 7), (1, 8), (2, 19), (2, 20))]
    [False, True, False, True, False, True]
    """
    return size >= least and (count <= FEW * size or (count == 1 and size >= LEAST_FOR_ONE))


def constant_answer(inputs: Outcomes, *, least: int = LEAST) -> Any:
    """The answer that (almost) all inputs get although their labels differ, or None.

    "Almost" is relative to the labels: the answers other than the most frequent one are at most a tenth as many as the
    labels other than it, of which there are at least 5; or there is one such answer, and at least 8 such labels. A
    classifier that answers "ham" on 99% of the emails is constant if 11% are spam, and it is not if 1% is. With fewer
    than ``least`` inputs of other labels nothing is said. Without labels, at least 98% of at least 50 inputs must get
    the same answer.

    >>> constant_answer(Outcomes.of(["ham"] * 99 + ["spam"], [0] * 100, ["ham"] * 89 + ["spam"] * 11))
    'ham'
    >>> constant_answer(Outcomes.of(["ham"] * 99 + ["spam"], [0] * 100, ["ham"] * 99 + ["spam"])) is None
    True
    """
    answers = _counted(inputs.answer, inputs.count)
    if not answers:
        return None
    label, count = max(answers.items(), key=lambda item: item[1])
    size = len(inputs)
    if inputs.label is None:
        return label if size >= UNLABELLED_LEAST and count >= UNLABELLED_FRACTION * size else None
    others = size - _counted(inputs.label, inputs.count)[label]
    return label if almost_none(size - count, others, least=least) else None


def answer_warnings(answers: Labels, labels: Labels | None = None, length: npt.ArrayLike | None = None) -> list[str]:
    """Sentences about the answers of a model, as in `ClassTable`, for inputs that are not certified.

    >>> for sentence in answer_warnings(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11):
    ...     print(sentence)
    the model answers ham on 99 of 100 inputs, although 11 have another label
    """
    inputs = Outcomes.of(answers, np.zeros(len(answers), dtype=np.int64), labels, length=length)
    return list(measure_classes(inputs).warnings)


def _warnings(
    inputs: Outcomes, classes: Sequence[ClassMeasures], confusion: IntArray, protected: str | None
) -> Iterable[str]:
    """A constant answer alone; or else uncertified and missed classes, and quartiles of lengths with one answer."""
    if (constant := constant_answer(inputs)) is not None:
        yield _constant_sentence(inputs, constant)
        return
    hits = dict(zip((each.label for each in classes), np.diagonal(confusion).tolist(), strict=True))
    missed = [each for each in classes if almost_none(hits[each.label], each.inputs)]
    certified = {label: part.number(part.certified & (part.radius >= 1)) for label, part in inputs.by_label().items()}
    if any(certified.get(each.label, 0) >= CERTIFIED * max(each.inputs, LEAST) for each in classes):
        for each in classes:
            number = certified.get(each.label, 0)
            is_meant = each not in missed and protected in (None, str(each.label))
            if is_meant and almost_none(number, each.inputs):
                yield (
                    f"the model certifies {number:,} of {each.inputs:,} inputs of the class {each.label} against one "
                    "edit: the radii belong to the other classes"
                )
    if missed:
        names = [f"{hits[each.label]:,} of {each.inputs:,} inputs of the class {each.label}" for each in missed[:NAMED]]
        more = [f"and {len(missed) - NAMED} more classes as rarely"] if len(missed) > NAMED else []
        yield f"the model recognises {', '.join([*names, *more])}"
    for part in inputs.by_quartile():
        constant = constant_answer(part, least=LEAST_IN_QUARTILE)
        if constant is not None and len(part) < len(inputs):
            shortest, longest = part.length.min(), part.length.max()
            yield f"at {shortest} to {longest} tokens, {_constant_sentence(part, constant)}"


def _constant_sentence(inputs: Outcomes, constant: Any) -> str:
    """What is constant, and on how many inputs."""
    answers = _counted(inputs.answer, inputs.count)[constant]
    start = f"the model answers {constant} on {answers:,} of {len(inputs):,} inputs"
    if inputs.label is None:
        return f"{start}; the data have no labels, so it is unknown whether other answers were due"
    return f"{start}, although {len(inputs) - _counted(inputs.label, inputs.count)[constant]:,} have another label"


def _counted(values: npt.NDArray[Any], count: IntArray) -> Counter[Any]:
    """The number of inputs by value, in the order in which values occur."""
    counted: Counter[Any] = Counter()
    for value, number in zip(values.tolist(), count.tolist(), strict=True):
        counted[value] += number
    return counted


def class_balanced_mean(labels: Labels, values: npt.NDArray[Any]) -> float:
    """The mean over the labels of the mean of the values of each label; NaN without inputs.

    >>> float(class_balanced_mean(["ham", "ham", "ham", "spam"], np.array([True, True, True, False])))
    0.5
    """
    groups: dict[Any, list[Any]] = {}
    for label, value in zip(np.asarray(labels).tolist(), values.tolist(), strict=True):
        groups.setdefault(label, []).append(value)
    return plain_mean([float(np.sum(group)) / len(group) for group in groups.values()])


def in_order(labels: Iterable[Any]) -> list[Any]:
    """Labels in order: numbers by value, then texts.

    >>> in_order(["b", 10, "a", 9])
    [9, 10, 'a', 'b']
    """
    return sorted(labels, key=lambda label: (isinstance(label, str), str(label) if isinstance(label, str) else label))


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def class_table(rows: Sequence[Mapping[str, Any]], *, lead: Sequence[Column] = ()) -> Table:
    """The measures by class as a table; ``rows`` are those of `ClassMeasures.to_dict`.

    ``lead`` are columns before the class. The certified recall is shown at radius 0 and at those that a class reaches.
    """
    radii = [str(radius) for radius in sorted(map(int, rows[0]["certified_recall"]))] if rows else []
    shown = [r for number, r in enumerate(radii) if not number or any(row["certified_recall"].get(r) for row in rows)]
    columns = [
        *lead,
        Column("class", ("label",), number=False),
        Column("inputs", ("inputs",), integer),
        Column("recall", ("recall",), percent, about="The fraction of the inputs of the class with the right answer."),
        Column("precision", ("precision",), percent, about="The fraction of right answers among those of the class."),
        Column("mean radius", ("mean_radius", "mean_radius_se"), with_error, about=COUNTED_RADIUS),
        *(Column(f"certified recall at radius\u00a0{r}", (f"certified_recall_{r}",), percent) for r in shown),
        *([Column("abstained", ("abstained",), integer)] if any(row["abstained"] for row in rows) else []),
    ]  # fmt: skip
    flat = [{**row, **{f"certified_recall_{r}": row["certified_recall"].get(r) for r in shown}} for row in rows]
    caption = (
        "By class. Certified recall at a radius: the fraction of the inputs of the class whose answer is correct and "
        "certified against so many edits."
    )
    return Table("classes", caption, columns, flat)


Confusion = tuple[Mapping[str, Any], Sequence[Any], Sequence[Sequence[int]]]  # values of lead columns, labels, counts


def confusion_table(parts: Sequence[Confusion], *, lead: Sequence[Column] = ()) -> Table:
    """Confusion matrices as a table, labels down and answers across; correct answers are emphasised."""
    names = list(dict.fromkeys(str(label) for _, labels, _ in parts for label in labels))
    columns = [*lead, Column("label", ("label",), number=False)]
    columns += [Column(f"answer: {name}", (f"answer_{name}",), integer, strong=_is_label(name)) for name in names]
    rows = [
        {**first, "label": str(label)}
        | dict.fromkeys((f"answer_{name}" for name in names), 0)
        | {f"answer_{answer}": count for answer, count in zip(labels, row, strict=True)}
        for first, labels, counts in parts
        for label, row in zip(labels, counts, strict=True)
    ]
    caption = "Inputs by label and answer, correct answers in bold. An abstention counts by its predicted label."
    return Table("confusion", caption, columns, rows)


def _is_label(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: bool(row["label"] == name)
