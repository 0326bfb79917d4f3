"""Measures by class of inputs that are counted one by one: memory for what occurs, not for every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.measures.class_measures import (
    CERTIFIED,
    LEAST,
    LEAST_IN_RANGE,
    RADII,
    RANGES,
    SMALL_RANGE,
    ClassMeasures,
    ClassTable,
    ConstantLengths,
    Labels,
    MissedClass,
    UncertifiedClass,
    add_count,
    almost_none,
    constant_of,
    in_order,
    plain_list,
    same_size,
    share_of,
)
from adaptdel.measures.distributions import median


def measure_classes(
    labels: Labels | None,
    answers: Labels,
    radius: npt.ArrayLike,
    length: npt.ArrayLike | None = None,
    *,
    counts: npt.ArrayLike | None = None,
    classes: Sequence[Any] = (),
    radii: Sequence[int] = RADII,
) -> ClassTable:
    """The measures by class of a set of inputs.

    Args:
        labels: the label of each input; None if they are unknown, and then only constant answers are named.
        answers: the predicted label of each input, also where the classifier abstains.
        radius: the certified radius of each input; −1 for an abstention.
        length: the number of tokens of each input, by which ranges with constant answers are named.
        counts: how many inputs have these values; None for one each.
        classes: the classes that come first, in this order; others follow in theirs.
        radii: where the certified recall is given.
    """
    given, all_radii = plain_list(answers), np.asarray(radius, dtype=np.int64).tolist()
    lengths = [None] * len(given) if length is None else np.asarray(length, dtype=np.int64).tolist()
    sizes = [1] * len(given) if counts is None else np.asarray(counts, dtype=np.int64).tolist()
    counted = ClassCounts(labelled=labels is not None)
    true = [None] * len(given) if labels is None else same_size(given, labels)
    for row in zip(true, given, all_radii, lengths, sizes, strict=True):
        counted.add(*row)
    return counted.table(classes, radii)


def answer_warnings(
    answers: Labels,
    labels: Labels | None = None,
    length: npt.ArrayLike | None = None,
    *,
    what: str = "the model",
    advice: bool = True,
) -> list[str]:
    """Sentences that name a constant answer, or else missed classes and ranges of lengths with one answer.

    They say what to do with ``advice``. Empty if there is nothing to name.

    >>> for sentence in answer_warnings(["ham"] * 99 + ["spam"], ["ham"] * 89 + ["spam"] * 11):
    ...     print(sentence.partition(":")[0])
    the model answers ham on 99 of 100 inputs, although 11 have another label
    """
    given = plain_list(answers)
    return measure_classes(labels, given, [0] * len(given), length).warnings(what, advice=advice)


class ClassCounts:
    """Counts from which all measures by class follow, for inputs that are added one by one.

    They take memory for every class, radius and length that occurs, not for every input.

    Args:
        labelled: whether the inputs have labels; without them only constant answers are named.
    """

    def __init__(self, *, labelled: bool = True) -> None:
        self.labelled = labelled
        self._pairs: dict[tuple[Any, Any], int] = {}  # by label and answer
        self._sizes: dict[Any, int] = {}  # by label, in the order in which labels occur
        self._abstained: dict[Any, int] = {}
        self._certified: dict[Any, dict[int, int]] = {}  # by label and radius, of right answers
        self._lengths: dict[int, tuple[dict[Any, int], dict[Any, int]]] = {}  # answers and labels, by length

    def add(self, label: Any, answer: Any, radius: int, length: int | None = None, count: int = 1) -> None:
        """Count an input, or several alike; the radius is −1 for an abstention."""
        add_count((label, answer), self._pairs, count)
        add_count(label, self._sizes, count)
        if radius < 0:
            add_count(label, self._abstained, count)
        elif label == answer:
            add_count(radius, self._certified.setdefault(label, {}), count)
        if length is not None:
            answers, labels = self._lengths.setdefault(length, ({}, {}))
            add_count(answer, answers, count)
            add_count(label, labels, count)

    def renamed(self, names: Mapping[Any, Any]) -> ClassCounts:
        """The same counts under other labels; None stays."""
        known = {**names, None: None}
        other = ClassCounts(labelled=self.labelled)
        other._pairs = {(known[label], known[answer]): count for (label, answer), count in self._pairs.items()}
        other._sizes = {known[label]: count for label, count in self._sizes.items()}
        other._abstained = {known[label]: count for label, count in self._abstained.items()}
        other._certified = {known[label]: radii for label, radii in self._certified.items()}
        for length, (answers, labels) in self._lengths.items():
            own = ({known[value]: count for value, count in part.items()} for part in (answers, labels))
            other._lengths[length] = next(own), next(own)
        return other

    def table(self, classes: Sequence[Any] = (), radii: Sequence[int] = RADII) -> ClassTable:
        """The measures; ``classes`` come first, in this order, and others follow in theirs."""
        answers: dict[Any, int] = {}
        for (_, answer), count in self._pairs.items():
            add_count(answer, answers, count)
        constant = constant_of(answers, self._sizes if self.labelled else None)
        ranges = () if constant is not None else tuple(self._constant_lengths())
        if not self.labelled:
            return ClassTable((), (), nan, nan, nan, constant, (), ranges)
        order = [*dict.fromkeys(classes), *in_order({*answers, *self._sizes} - set(classes))]
        measured = {label: self._measures(label, answers.get(label, 0), radii) for label in order}
        present = [measured[label] for label in self._sizes]  # the order in which means are added up
        errors = [] if any(each.inputs < 2 for each in present) else [self._squared_error(each) for each in self._sizes]
        known = [MissedClass(label, self._hits(label), self._sizes[label]) for label in in_order(self._sizes)]
        missed = tuple(each for each in known if almost_none(each.correct, each.inputs))
        return ClassTable(
            classes=tuple(measured.values()),
            confusion=tuple(tuple(self._pairs.get((label, answer), 0) for answer in order) for label in order),
            balanced_accuracy=_mean([each.recall for each in present]),
            class_balanced_mean_radius=_mean([each.mean_radius for each in present]),
            class_balanced_mean_radius_se=sqrt(sum(errors)) / len(errors) if errors else nan,
            constant=constant,
            missed=missed,
            constant_lengths=ranges,
            uncertified=() if constant is not None else tuple(self._uncertified(order, missed)),
        )

    def _hits(self, label: Any) -> int:
        return self._pairs.get((label, label), 0)

    def _counted(self, label: Any) -> dict[int, int]:
        """Inputs of a label by radius as means count it: 0 for a wrong answer and for an abstention."""
        certified = self._certified.get(label, {})
        zeros = self._sizes.get(label, 0) - sum(certified.values())
        return certified | {0: certified.get(0, 0) + zeros}

    def _squared_error(self, label: Any) -> float:
        return _squared_error(self._counted(label))

    def _measures(self, label: Any, answers: int, radii: Sequence[int]) -> ClassMeasures:
        size, hits, counted = self._sizes.get(label, 0), self._hits(label), self._counted(label)
        certified = self._certified.get(label, {})
        return ClassMeasures(
            label=label,
            inputs=size,
            answers=answers,
            recall=share_of(hits, size),
            precision=share_of(hits, answers),
            mean_radius=share_of(sum(radius * count for radius, count in counted.items()), size),
            mean_radius_se=sqrt(_squared_error(counted)) if size > 1 else nan,
            median_radius=_median(counted) if size else nan,
            abstained=self._abstained.get(label, 0),
            certified_recall={
                int(r): share_of(sum(count for radius, count in certified.items() if radius >= r), size) for r in radii
            },
        )

    def _uncertified(self, order: Sequence[Any], missed: Sequence[MissedClass]) -> list[UncertifiedClass]:
        """The recognised classes of which (almost) none is certified at radius 1, if half of another class is."""
        counts = [self._sizes.get(label, 0) for label in order]
        certified = [sum(n for radius, n in self._certified.get(label, {}).items() if radius >= 1) for label in order]
        if not any(own >= CERTIFIED * max(size, LEAST) for own, size in zip(certified, counts, strict=True)):
            return []
        named = {each.label for each in missed}
        return [
            UncertifiedClass(label, own, size)
            for label, own, size in zip(order, certified, counts, strict=True)
            if label not in named and almost_none(own, size)
        ]

    def _constant_lengths(self) -> list[ConstantLengths]:
        """The ranges of lengths in which (almost) all inputs get one answer; neighbours with the same are joined."""
        usual = max(self._sizes.items(), key=lambda item: item[1])[0] if self._sizes else None
        sizes = {}
        for length, (answers, labels) in self._lengths.items():
            size = sum(answers.values())
            sizes[length] = size, size - labels.get(usual, 0) if self.labelled else size
        ranges: list[ConstantLengths] = []
        is_next = False
        for lengths in length_ranges(sizes):
            totals: tuple[dict[Any, int], dict[Any, int]] = {}, {}
            for length in lengths:
                for total, part in zip(totals, self._lengths[length], strict=True):
                    for value, count in part.items():
                        add_count(value, total, count)
            constant = constant_of(totals[0], totals[1] if self.labelled else None, LEAST_IN_RANGE)
            if constant is not None:
                own = ConstantLengths(lengths[0], lengths[-1], constant)
                joined = ranges[-1].joined(own) if is_next else None
                ranges = [*ranges, own] if joined is None else [*ranges[:-1], joined]
            is_next = constant is not None
        return ranges


def length_ranges(sizes: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """Up to `RANGES` ranges of lengths with about equally many inputs, each a list of lengths, shortest first.

    Inputs of one length are never divided. Where one length is frequent, as in texts that were cut, shorter and longer
    inputs are ranges of their own if they are at least `SMALL_RANGE`. Ranges are larger if that takes to hold
    `LEAST_IN_RANGE` inputs of rarer labels.

    Args:
        sizes: by length, the number of inputs, and of those with a rarer label than the most frequent one.
    """
    wanted = max(-(-sum(size for size, _ in sizes.values()) // RANGES), SMALL_RANGE)
    groups: list[list[int]] = []

    def is_large(lengths: Sequence[int], least: int) -> bool:
        return (
            sum(sizes[length][0] for length in lengths) >= least
            and sum(sizes[length][1] for length in lengths) >= LEAST_IN_RANGE
        )

    for length in sorted(sizes):
        is_frequent = sizes[length][0] >= wanted
        if groups and not is_large(groups[-1], SMALL_RANGE if is_frequent else wanted):
            groups[-1].append(length)
        else:
            groups.append([length])
    if len(groups) > 1 and not is_large(groups[-1], SMALL_RANGE):
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else nan


def _median(counts: Mapping[int, int]) -> float:
    """The median of whole numbers given as counts."""
    return median(np.array(list(counts), dtype=np.int64), np.array(list(counts.values()), dtype=np.int64))


def _squared_error(counts: Mapping[int, int]) -> float:
    """The squared standard error of the mean, s²/n, of whole numbers given as counts.

    It comes from exact sums, so that every machine agrees; Python's whole numbers do not overflow.
    """
    size = sum(counts.values())
    total = sum(value * count for value, count in counts.items())
    squares = sum(value * value * count for value, count in counts.items())
    return (size * squares - total * total) / (size * size * (size - 1))
