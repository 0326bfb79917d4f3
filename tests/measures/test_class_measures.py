"""Measures by class against values worked out by hand and literal formulas; constant answers and missed classes."""

from __future__ import annotations

import json
from math import isnan, sqrt

import numpy as np
import pytest

from adaptdel.measures.class_counts import answer_warnings, length_ranges, measure_classes
from adaptdel.measures.class_measures import balanced_accuracy, constant_answer, warnings_of

# label, answer, radius: an abstention has the radius -1 and counts by its predicted label
HAND = [
    ("ham", "ham", 4), ("ham", "ham", 0), ("ham", "ham", -1), ("ham", "spam", 9),
    ("spam", "spam", 2), ("spam", "ham", 7), ("spam", "ham", -1),
]  # fmt: skip


def test_values_worked_out_by_hand() -> None:
    labels, answers, radius = zip(*HAND, strict=True)
    table = measure_classes(labels, answers, radius, classes=["spam", "ham", "other"], radii=(0, 1, 3))
    spam, ham, other = table.classes
    assert table.confusion == ((1, 2, 0), (1, 3, 0), (0, 0, 0))  # rows are labels, columns answers
    assert (ham.inputs, ham.answers, ham.abstained) == (4, 5, 1)
    assert (ham.recall, ham.precision) == (3 / 4, 3 / 5)
    assert (ham.mean_radius, ham.median_radius) == (1.0, 0.0)  # 4 0 0 0
    assert ham.certified_recall == {0: 2 / 4, 1: 1 / 4, 3: 1 / 4}
    assert (spam.inputs, spam.answers, spam.abstained) == (3, 2, 1)
    assert (spam.recall, spam.precision) == (1 / 3, 1 / 2)
    assert spam.mean_radius == pytest.approx(2 / 3)
    assert spam.certified_recall == {0: 1 / 3, 1: 1 / 3, 3: 0.0}
    assert other.inputs == 0
    assert isnan(other.recall)
    assert isnan(other.mean_radius)
    assert table.balanced_accuracy == pytest.approx((3 / 4 + 1 / 3) / 2)  # without the class that has no inputs
    assert table.class_balanced_mean_radius == pytest.approx((1 + 2 / 3) / 2)
    variances = (4 * 1 - 1 + 9 - 0) / 3 / 4, ((4 / 3) ** 2 + 2 * (2 / 3) ** 2) / 2 / 3
    assert table.class_balanced_mean_radius_se == pytest.approx(sqrt(sum(variances)) / 2)
    values = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert values["classes"][2]["recall"] is None
    assert values["classes"][0]["certified_recall"] == {"0": 1 / 3, "1": 1 / 3, "3": 0.0}
    assert values["confusion"] == [[1, 2, 0], [1, 3, 0], [0, 0, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_literal_formulas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, answers = rng.choice(4, 80, p=[0.1, 0.2, 0.3, 0.4]), rng.integers(0, 4, 80)
    radius = rng.integers(-1, 9, 80)
    table = measure_classes(labels, answers, radius)
    assert [each.label for each in table.classes] == [0, 1, 2, 3]
    rows = list(zip(labels.tolist(), answers.tolist(), radius.tolist(), strict=True))
    for each in table.classes:
        own = [max(r, 0) if y == a else 0 for y, a, r in rows if y == each.label]
        assert each.recall == sum(y == a == each.label for y, a, _ in rows) / len(own)
        assert each.mean_radius == pytest.approx(sum(own) / len(own))
        assert each.median_radius == np.median(own)
        for r, share in each.certified_recall.items():
            assert share == sum(y == a == each.label and q >= r for y, a, q in rows) / len(own)
    assert sum(map(sum, table.confusion)) == 80
    assert table.balanced_accuracy == pytest.approx(sum(each.recall for each in table.classes) / 4)
    assert table.class_balanced_mean_radius == pytest.approx(sum(each.mean_radius for each in table.classes) / 4)


def test_balanced_means_of_equal_classes_are_the_plain_means() -> None:
    labels, correct, radius = [0, 1, 0, 1], [True, False, True, True], [3, 8, -1, 5]
    assert balanced_accuracy(labels, correct) == 3 / 4
    answers = [label if is_right else 1 - label for label, is_right in zip(labels, correct, strict=True)]
    assert measure_classes(labels, answers, radius).class_balanced_mean_radius == (3 + 5) / 4
    assert isnan(balanced_accuracy([], []))
    assert isnan(measure_classes([], [], []).class_balanced_mean_radius)
    names = ["a", "b", "b"]  # one input of a
    assert isnan(measure_classes(names, names, [1, 2, 3]).class_balanced_mean_radius_se)


# The data set of the issue: 15 words, 11% spam, of which the model finds 1 of 107.
@pytest.mark.parametrize(
    ("others", "recognised", "false", "constant"),
    [
        (107, 1, 0, True),
        (107, 10, 0, True),
        (107, 11, 0, False),  # more than a tenth
        (107, 0, 10, True),
        (20, 0, 0, True),  # a class of 2%
        (5, 0, 0, True),
        (4, 0, 0, False),  # too few to tell
        (10, 1, 0, True),
        (10, 2, 0, False),
        (9, 1, 0, True),  # a single answer says nothing of a class
        (8, 1, 0, True),
        (7, 1, 0, False),
        (9, 2, 0, False),
        (0, 0, 0, False),  # one answer is right if there is one label
    ],
)
def test_constant_is_relative_to_the_labels(others: int, recognised: int, false: int, constant: bool) -> None:
    ham = 1000 - others
    labels = ["ham"] * ham + ["spam"] * others
    answers = ["spam"] * false + ["ham"] * (ham - false) + ["spam"] * recognised + ["ham"] * (others - recognised)
    flagged = constant_answer(answers, labels)
    assert (flagged is not None) == constant
    if flagged is not None:
        assert (flagged.label, flagged.inputs, flagged.others) == ("ham", 1000, others)
        assert flagged.answers == 1000 - recognised - false
        assert answer_warnings(answers, labels)[0].startswith(flagged.sentence("the model"))


def test_a_constant_answer_need_not_be_the_most_frequent_label() -> None:
    labels = np.array([0] * 60 + [1] * 40)
    flagged = constant_answer(np.ones(100, dtype=np.int64), labels)
    assert flagged is not None
    assert (flagged.label, flagged.others, flagged.share) == (1, 60, 1.0)
    assert json.dumps(flagged.to_dict())


def missed(answers: list[str], labels: list[str]) -> list[tuple[str, int, int]]:
    table = measure_classes(labels, answers, [0] * len(answers))
    return [(each.label, each.correct, each.inputs) for each in table.missed]


def test_four_classes_of_which_one_is_missed() -> None:
    labels = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["d"] * 10
    answers = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["a"] * 9 + ["d"]
    assert constant_answer(answers, labels) is None
    assert missed(answers, labels) == [("d", 1, 10)]
    [warning] = answer_warnings(answers, labels, what="the run", advice=False)
    assert warning == "the run recognises 1 of 10 inputs of the class d"
    assert missed(answers[:124], labels[:124]) == []  # four inputs of d


def test_without_labels_only_nearly_identical_answers_of_many_inputs_are_named() -> None:
    assert constant_answer(["ham"] * 49) is None
    flagged = constant_answer(["ham"] * 98 + ["spam"] * 2)
    assert flagged is not None
    assert flagged.others is None
    assert constant_answer(["ham"] * 97 + ["spam"] * 3) is None
    assert "no labels" in answer_warnings(["ham"] * 60)[0]


def test_nothing_to_measure() -> None:
    assert constant_answer([], []) is None
    table = measure_classes([], [], [], classes=["a", "b"])
    assert isnan(table.balanced_accuracy)
    assert table.constant is None
    with pytest.raises(ValueError, match="one for each of the 2 answers, got 1"):
        constant_answer(["a", "b"], ["a"])


def test_ranges_of_lengths() -> None:
    for lengths, expected in (
        ([15] * 1000, [(15, 15)]),  # one length is one range
        ([3] * 30 + [7] * 30 + [15] * 900 + [20] * 40, [(3, 7), (15, 15), (20, 20)]),  # texts cut at 15 words, mostly
        ([3] * 5 + [15] * 900, [(3, 15)]),  # too few to be a range of their own
        ([15] * 900 + [30] * 5, [(15, 30)]),
        (list(range(1, 161)), [(n, n + 19) for n in range(1, 161, 20)]),
        (list(range(1, 61)), [(1, 20), (21, 40), (41, 60)]),
        ([], []),
    ):
        groups = length_ranges({length: (lengths.count(length),) * 2 for length in lengths})
        assert [(group[0], group[-1]) for group in groups] == expected
        assert [length for group in groups for length in group] == sorted(set(lengths))
    rare = {length: (1, int(length % 50 == 0)) for length in range(2000)}  # 40 inputs of a rare label: 10 in a range
    assert [sum(rare[length][1] for length in group) for group in length_ranges(rare)] == [10, 10, 10, 10]


def test_a_constant_answer_of_short_texts_is_named_among_texts_of_one_length() -> None:
    lengths = [4] * 20 + [5] * 40 + [15] * 400
    labels = ["ham", "spam"] * 230
    answers = ["ham"] * 60 + labels[60:]
    table = measure_classes(labels, answers, [1] * 460, lengths)
    (warning,) = table.warnings("the run", advice=False)
    assert warning == "at 4 to 5 tokens, the run answers ham on 60 of 60 inputs, although 30 have another label"
    assert answer_warnings(answers, labels, lengths, what="the run", advice=False) == [warning]
    assert answer_warnings(labels, labels, lengths) == []
    halves = ["ham"] * 60 + ["spam"] * 60
    neighbours = measure_classes(["ham", "spam"] * 60, halves, [0] * 120, [4] * 60 + [5] * 60).constant_lengths
    assert [(each.shortest, each.longest, each.constant.label) for each in neighbours] == [
        (4, 4, "ham"),
        (5, 5, "spam"),
    ]


def test_a_class_that_is_recognised_but_not_certified_is_named() -> None:
    labels = ["ham"] * 100 + ["spam"] * 40
    answers = ["ham"] * 100 + ["spam"] * 20 + ["ham"] * 20
    radius = [2] * 100 + [1] * 4 + [0] * 16 + [2] * 20
    table = measure_classes(labels, answers, radius)
    (warning,) = table.warnings("the run")
    assert warning.startswith("the run certifies 4 of 40 inputs of the class spam against one edit")
    assert warnings_of(table.to_dict(), "the run") == [warning]
    older = {name: value for name, value in table.to_dict().items() if name != "uncertified_classes"}
    assert warnings_of(older) == []  # of a run that does not know of them
    assert measure_classes(labels, answers, [2] * 105 + [0] * 35).warnings() == []  # 5 of 40 are more than a tenth
    assert measure_classes(labels, answers, [0] * 140).warnings() == []  # no class is certified, as without noise


def test_a_class_that_a_threshold_does_not_protect_need_not_be_certified() -> None:
    labels, answers = ["ham"] * 40 + ["spam"] * 40, ["ham"] * 40 + ["spam"] * 40
    table = measure_classes(labels, answers, [0] * 40 + [3] * 40)
    assert [each.label for each in table.uncertified] == ["ham"]
    assert table.one_sided("spam").warnings() == warnings_of(table.to_dict(), protected="spam") == []
    assert table.one_sided("ham").warnings() == warnings_of(table.to_dict(), protected="ham") == table.warnings() != []


def test_a_class_that_is_recognised_once_is_missed() -> None:
    """Of 9 spam mails one is recognised, which is more than a tenth; another answer of the class is a false one."""
    labels = ["ham"] * 591 + ["spam"] * 9
    answers = ["spam"] + ["ham"] * 590 + ["spam"] + ["ham"] * 8
    assert constant_answer(answers, labels) is None
    assert [(each.label, each.correct) for each in measure_classes(labels, answers, [0] * 600).missed] == [("spam", 1)]


@pytest.mark.parametrize("radii", [[2] * 100 + [0] * 40, [2] * 105 + [0] * 35])
def test_every_warning_says_what_to_do(radii: list[int]) -> None:
    labels = ["ham"] * 100 + ["spam"] * 40
    warnings = measure_classes(labels, labels, radii).warnings()
    assert len(warnings) == (radii[100] == 0)
    assert all("lower rate" in sentence for sentence in warnings)
    missed = ["ham"] * 135 + ["spam"] * 5  # 5 of 40 are not missed, but none is certified
    assert "lower rate" in measure_classes(labels, missed, [2] * 100 + [0] * 40).warnings()[-1]
