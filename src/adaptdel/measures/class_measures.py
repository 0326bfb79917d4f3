"""Measures by class, the confusion matrix, and the classes and lengths to which accuracy and radii do not apply.

An abstention counts by its predicted label; the radius of a wrong answer and of an abstention counts as 0. So each
measure by class is the plain measure over the inputs of a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray
from adaptdel.measures.summary import (
    COUNTED_RADIUS,
    Labels,
    Outcomes,
    certified_at_radius,
    known,
    plain_mean,
    standard_error,
)
from adaptdel.tables import Column, Table, integer, percent, with_error

RADII = (0, 1, 2, 5, 10, 20)  # where certified recall is given
PADDED, POSITIONS = (0, 2, 5), (1, 2, 5)  # the same with any text before and after, and with any text at positions
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
        padded_recall: the same with any text before and after; empty if no certificate survives that.
        positions_recall: the same by the number of positions where any text is inserted besides.
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
    padded_recall: dict[int, float]
    positions_recall: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is undefined."""
        return {
            name: {str(r): known(v) for r, v in value.items()} if isinstance(value, dict) else known(value)
            for name, value in vars(self).items()
        }


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
    others = sorted({*answers, *parts} - {*classes}, key=lambda label: (isinstance(label, str), label))
    order = dict.fromkeys([*classes, *others]) if inputs.labelled else {}
    numbers = {label: number for number, label in enumerate(order)}
    confusion, padded = np.zeros((len(order), len(order)), dtype=np.int64), inputs.padded > 0
    if inputs.label is not None:
        rows = [[numbers[label] for label in column] for column in (inputs.label.tolist(), answers)]
        np.add.at(confusion, tuple(rows), inputs.count)
    measured = []
    for label, number in numbers.items():
        part = parts.get(label) or Outcomes.of([], [], [])
        total = int(confusion[:, number].sum())
        measured.append(ClassMeasures(
            label=label,
            inputs=len(part),
            answers=total,
            recall=part.clean_accuracy,
            precision=int(confusion[number, number]) / total if total else nan,
            mean_radius=part.mean_radius,
            mean_radius_se=standard_error(part.counted_radius, part.count),
            abstained=part.number(part.radius < 0),
            certified_recall=_recall(part, part.radius, RADII),
            padded_recall=_recall(part, part.padded_radius, PADDED if padded else ()),
            positions_recall=_recall(part, part.positions, POSITIONS if padded else ()),
        ))  # fmt: skip
    warnings = tuple(_warnings(inputs, constant, measured, confusion, protected))
    return ClassTable(tuple(measured), tuple(map(tuple, confusion.tolist())), constant, warnings)


def padding_sentence(values: Mapping[str, Any], unit: str) -> str:
    """How many inputs of a class (`ClassMeasures.to_dict`) keep their answer no matter what text is added; or ""."""
    if not values["padded_recall"]:
        return ""
    shares = (values["padded_recall"]["0"], values["padded_recall"]["2"], values["positions_recall"]["1"])
    clean, edited, inserted = map(percent, shares)
    return (
        f"{clean} no matter what text is added before and after, {edited} with 2 {unit}s edited as well, {inserted} "
        "with any text inserted at 1 position as well"
    )


def _recall(part: Outcomes, radius: IntArray, radii: Sequence[int]) -> dict[int, float]:
    return dict(zip(radii, certified_at_radius(part.against(radius), radii).tolist(), strict=True))


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
    inputs: Outcomes, constant: Any, classes: Sequence[ClassMeasures], confusion: IntArray, protected: str | None
) -> Iterable[str]:
    """A constant answer alone; or else uncertified and missed classes, and quartiles of lengths with one answer."""
    if constant is not None:
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


def class_table(rows: Sequence[Mapping[str, Any]], *, lead: Sequence[Column] = ()) -> Table:
    """The measures by class as a table; ``rows`` are those of `ClassMeasures.to_dict`.

    ``lead`` are columns before the class. The certified recall is shown at radius 0 and at those that a class reaches,
    and where text is added at those that a class reaches.
    """
    kinds = {
        "certified_recall": ("certified recall at radius\u00a0{}", RADII),
        "padded_recall": ("padded, and {}\u00a0edits", PADDED),
        "positions_recall": ("text at {}\u00a0positions", POSITIONS),
    }
    shown = {
        (kind, str(r)): title.format(r)
        for kind, (title, radii) in kinds.items()
        for r in radii
        if (kind, r) == ("certified_recall", 0) or any(row[kind].get(str(r)) for row in rows)
    }
    columns = [
        *lead,
        Column("class", ("label",), number=False),
        Column("inputs", ("inputs",), integer),
        Column("recall", ("recall",), percent, about="The fraction of the inputs of the class with the right answer."),
        Column("precision", ("precision",), percent, about="The fraction of right answers among those of the class."),
        Column("mean radius", ("mean_radius", "mean_radius_se"), with_error, about=COUNTED_RADIUS),
        *(Column(title, ("_".join(key),), percent) for key, title in shown.items()),
        *([Column("abstained", ("abstained",), integer)] if any(row["abstained"] for row in rows) else []),
    ]  # fmt: skip
    flat = [{**row, **{f"{kind}_{r}": row[kind].get(r) for kind, r in shown}} for row in rows]
    caption = (
        "By class. Certified recall at a radius: the fraction of the inputs of the class whose answer is correct and "
        "certified against this many edits. Padded: with any text before and after; text at positions: inserted there."
    )
    return Table("classes", caption, columns, flat)


Confusion = tuple[Mapping[str, Any], Sequence[Any], Sequence[Sequence[int]]]  # values of lead columns, labels, counts


def confusion_table(parts: Sequence[Confusion], *, lead: Sequence[Column] = ()) -> Table:
    """Confusion matrices as a table, labels down and answers across; correct answers are emphasised."""
    names = list(dict.fromkeys(str(label) for _, labels, _ in parts for label in labels))
    columns = [*lead, Column("label", ("label",), number=False)]
    columns += [
        Column(f"answer: {name}", (f"answer_{name}",), integer, strong=itemgetter(f"is_{name}")) for name in names
    ]
    rows = [
        {**first, "label": str(label), **{f"is_{name}": name == str(label) for name in names}}
        | dict.fromkeys((f"answer_{name}" for name in names), 0)
        | {f"answer_{answer}": count for answer, count in zip(labels, row, strict=True)}
        for first, labels, counts in parts
        for label, row in zip(labels, counts, strict=True)
    ]
    caption = "Inputs by label and answer, correct answers in bold. An abstention counts by its predicted label."
    return Table("confusion", caption, columns, rows)
