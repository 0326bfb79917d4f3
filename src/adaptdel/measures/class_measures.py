"""Measures by class, balanced means, the confusion matrix; constant answers and missed classes.

Every function takes columns with a value for each input. An abstention counts by its predicted label, as in the clean
accuracy; the radius of a wrong answer and of an abstention counts as 0, as in the mean certified radius. So each
measure by class is the plain measure over the inputs of one label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray, check_fields

Labels = Sequence[Any] | npt.NDArray[Any]
RADII = (0, 1, 2, 5, 10, 20)  # where certified recall is given by default
LEAST = 5  # inputs of other labels: with fewer, a classifier that finds half of them misses all more often than 1 in 20
LEAST_FOR_ONE = 8  # with fewer, a classifier that finds half of them finds at most one more often than 1 in 20
LEAST_IN_RANGE = 10  # the same for a range of lengths, of which there are several
RANGES, SMALL_RANGE = 8, 20  # ranges of lengths in which constant answers are looked for, and inputs in the smallest
FEW = 0.1  # (almost) none: at most this fraction
NAMED = 8  # missed classes that a sentence names
CERTIFIED = 0.5  # certified recall at radius 1 of a class, beside which a class that has (almost) none is named
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


def almost_none(count: int, size: int, *, least: int = LEAST) -> bool:
    """Whether (almost) none of a number of inputs count: at most a tenth, or a single one of at least 8.

    False if there are fewer than ``least`` inputs.

    >>> [almost_none(count, size) for count, size in ((0, 4), (0, 5), (1, 7), (1, 8), (2, 19), (2, 20))]
    [False, True, False, True, False, True]
    """
    return size >= least and (count <= FEW * size or (count == 1 and size >= LEAST_FOR_ONE))


def constant_answer(answers: Labels, labels: Labels | None = None, *, least: int = LEAST) -> ConstantAnswer | None:
    """The answer that (almost) all inputs get, or None.

    "Almost" is relative to the labels: the answers other than the most frequent one are at most a tenth as many as the
    labels other than it, of which there are at least 5; or there is one such answer, and at least 8 such labels. A
    classifier that answers "ham" on 99% of the mails is
    constant if 11% are spam, and it is not if 1% is. With fewer than 5 inputs of other labels nothing is said.
    Without labels, at least 98% of at least 50 inputs must get the same answer. ``least`` replaces the 5.

    >>> constant_answer(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11)
    ConstantAnswer(label='ham', answers=99, inputs=100, others=11)
    >>> constant_answer(["ham"] * 99 + ["spam"], ["ham"] * 99 + ["spam"]) is None
    True
    """
    given = plain_list(answers)
    true = None if labels is None else same_size(given, labels)
    return constant_of(counts_of(given), None if true is None else counts_of(true), least)


def constant_of(
    answers: Mapping[Any, int], labels: Mapping[Any, int] | None, least: int = LEAST
) -> ConstantAnswer | None:
    """`constant_answer` of inputs given as counts of their answers and labels."""
    if not answers:
        return None
    label, count = max(answers.items(), key=lambda item: item[1])
    size = sum(answers.values())
    if labels is None:
        is_constant = size >= UNLABELLED_LEAST and count >= UNLABELLED_SHARE * size
        return ConstantAnswer(label, count, size, None) if is_constant else None
    others = sum(number for true, number in labels.items() if true != label)
    is_constant = almost_none(size - count, others, least=least)
    return ConstantAnswer(label, count, size, others) if is_constant else None


def missed_sentence(missed: Sequence[MissedClass], what: str = "the model") -> str:
    """How many inputs of the missed classes are recognised.

    >>> missed_sentence([MissedClass("spam", 1, 107), MissedClass("scam", 0, 12)])
    'the model recognises 1 of 107 inputs of the class spam, 0 of 12 of scam'
    """
    others = [f"{each.correct:,} of {each.inputs:,} of {each.label}" for each in missed[1:NAMED]]
    more = [f"and {len(missed) - NAMED} more classes as rarely"] if len(missed) > NAMED else []
    return ", ".join([missed[0].sentence(what), *others, *more])


def _sentences(
    missed: Sequence[MissedClass],
    ranges: Sequence[ConstantLengths],
    uncertified: Sequence[UncertifiedClass],
    what: str,
    *,
    advice: bool,
) -> list[str]:
    """A sentence for each finding; the last one says what to do about all of them."""
    sentences = [each.sentence(what) for each in uncertified[:NAMED]]
    sentences += [missed_sentence(missed, what)] if missed else []
    sentences += [each.sentence(what) for each in ranges]
    return [*sentences[:-1], f"{sentences[-1]}: {ADVICE}"] if sentences and advice else sentences


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
class UncertifiedClass:
    """A class whose inputs are (almost) never certified against an edit, while those of another class are."""

    label: Any
    certified: int
    inputs: int

    def sentence(self, what: str = "the model") -> str:
        """How many inputs of the class are certified.

        >>> UncertifiedClass("spam", 12, 254).sentence()
        'the model certifies 12 of 254 inputs of the class spam against one edit: the radii belong to the other classes'
        """
        start = (
            f"{what} certifies {self.certified:,} of {self.inputs:,} inputs of the class {self.label} against one edit"
        )
        return f"{start}: the radii belong to the other classes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, "certified": self.certified, "inputs": self.inputs}


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
        span = f"{self.shortest} to {self.longest}" if self.shortest < self.longest else str(self.shortest)
        return f"at {span} tokens, {self.constant.sentence(what)}"

    def joined(self, following: ConstantLengths) -> ConstantLengths | None:
        """This range and the following one, if they have the same answer."""
        first, second = self.constant, following.constant
        if first.label != second.label:
            return None
        others = None if first.others is None or second.others is None else first.others + second.others
        inputs = first.inputs + second.inputs
        constant = ConstantAnswer(first.label, first.answers + second.answers, inputs, others)
        return ConstantLengths(self.shortest, following.longest, constant)

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
        uncertified: the other classes that are (almost) never certified against an edit.
        constant_lengths: the ranges of lengths that (almost) always get one answer, if not all inputs do.
    """

    classes: tuple[ClassMeasures, ...]
    confusion: tuple[tuple[int, ...], ...]
    balanced_accuracy: float
    class_balanced_mean_radius: float
    class_balanced_mean_radius_se: float
    constant: ConstantAnswer | None
    missed: tuple[MissedClass, ...]
    constant_lengths: tuple[ConstantLengths, ...]
    uncertified: tuple[UncertifiedClass, ...] = ()

    def one_sided(self, protected: str) -> ClassTable:
        """The same for a threshold that protects a class: the other class is not meant to be certified."""
        return replace(self, uncertified=tuple(each for each in self.uncertified if str(each.label) == protected))

    def warnings(self, what: str = "the model", *, advice: bool = True) -> list[str]:
        """Sentences that name constant answers and missed classes, with what to do; empty if there are none."""
        if self.constant is not None:
            return [_constant_warning(self.constant, what, advice=advice)]
        return _sentences(self.missed, self.constant_lengths, self.uncertified, what, advice=advice)

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
            "uncertified_classes": [each.to_dict() for each in self.uncertified],
        }


def warnings_of(
    values: Mapping[str, Any], what: str = "the model", *, protected: str | None = None, advice: bool = True
) -> list[str]:
    """The warnings of `ClassTable.to_dict`, as `ClassTable.warnings` gives them; see `ClassTable.one_sided`."""
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
        tuple(UncertifiedClass(**each) for each in values.get("uncertified_classes", ())),
    )  # fmt: skip
    return (table if protected is None else table.one_sided(protected)).warnings(what, advice=advice)


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
    for place, label in enumerate(plain_list(labels)):
        places.setdefault(label, []).append(place)
    return {label: np.array(where, dtype=np.int64) for label, where in places.items()}


def add_count(value: Any, counts: dict[Any, int], more: int = 1) -> None:
    """Add to the count of a value."""
    counts[value] = counts.get(value, 0) + more


def counts_of(values: Sequence[Any]) -> dict[Any, int]:
    """How often each value occurs, in the order of their first occurrence."""
    counts: dict[Any, int] = {}
    for value in values:
        add_count(value, counts)
    return counts


def same_size(answers: Labels, labels: Labels) -> list[Any]:
    """Labels as a list, which must be as long as the answers."""
    values = plain_list(labels)
    if len(values) != len(answers):
        raise ValueError(f"labels must be one for each of the {len(answers)} answers, got {len(values)}")
    return values


CLASS_FIELDS = {
    "inputs": "a whole number",
    "recall": "a number?",
    "precision": "a number?",
    "mean_radius": "a number?",
    "mean_radius_se": "a number?",
    "median_radius": "a number?",
    "abstained": "a whole number",
    "certified_recall": "an object",
}


def check_class_rows(rows: Iterable[Any]) -> None:
    """Raise unless rows that were read from a file have the fields of `ClassMeasures.to_dict`."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f"classes must hold an object for every class, got {row!r:.60}")
        check_fields(row, CLASS_FIELDS)
        check_fields(row["certified_recall"], dict.fromkeys(row["certified_recall"], "a number?"))


def plain_list(values: Labels) -> list[Any]:
    """A list of plain values, without NumPy's types."""
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


def share_of(count: int, size: int) -> float:
    """A share; NaN of nothing."""
    return count / size if size else nan


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value
