"""Measures by class against values worked out by hand and literal formulas; constant answers and missed classes."""

from __future__ import annotations

import json
from math import isnan, sqrt

import pytest

from adaptdel.measures.class_measures import answer_warnings, constant_answer, measure_classes
from adaptdel.measures.summary import Outcomes, measure

# label, answer, radius: an abstention has the radius -1 and counts by its predicted label
HAND = [
    ("ham", "ham", 4), ("ham", "ham", 0), ("ham", "ham", -1), ("ham", "spam", 9),
    ("spam", "spam", 2), ("spam", "ham", 7), ("spam", "ham", -1),
]  # fmt: skip


def test_values_worked_out_by_hand() -> None:
    labels, answers, radius = zip(*HAND, strict=True)
    inputs = Outcomes.of(answers, radius, labels)
    table = measure_classes(inputs, ["spam", "ham", "other"])
    spam, ham, other = table.classes
    assert table.confusion == ((1, 2, 0), (1, 3, 0), (0, 0, 0))  # rows are labels, columns answers
    assert (ham.inputs, ham.answers, ham.abstained) == (4, 5, 1)
    assert (ham.recall, ham.precision) == (3 / 4, 3 / 5)
    assert ham.mean_radius == 1.0  # 4 0 0 0
    assert ham.certified_recall == {0: 2 / 4, 1: 1 / 4, 2: 1 / 4, 5: 0.0, 10: 0.0, 20: 0.0}
    assert (spam.inputs, spam.answers, spam.abstained) == (3, 2, 1)
    assert (spam.recall, spam.precision, spam.mean_radius) == (1 / 3, 1 / 2, 2 / 3)
    assert spam.certified_recall == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3, 5: 0.0, 10: 0.0, 20: 0.0}
    assert other.inputs == 0
    assert isnan(other.recall)
    assert isnan(other.mean_radius)
    m = measure(inputs)
    assert m.balanced_accuracy == pytest.approx((3 / 4 + 1 / 3) / 2)  # without the class that has no inputs
    assert m.class_balanced_mean_radius == pytest.approx((1 + 2 / 3) / 2)
    variances = (4 * 1 - 1 + 9 - 0) / 3 / 4, ((4 / 3) ** 2 + 2 * (2 / 3) ** 2) / 2 / 3
    assert m.class_balanced_mean_radius_se == pytest.approx(sqrt(sum(variances)) / 2)
    values = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert values["classes"][2]["recall"] is None
    assert values["classes"][0]["certified_recall"] == dict.fromkeys("012", 1 / 3) | dict.fromkeys(
        ("5", "10", "20"), 0.0
    )


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
        (8, 1, 0, True),  # a single answer says nothing of a class
        (7, 1, 0, False),
        (9, 2, 0, False),
        (0, 0, 0, False),  # one answer is right if there is one label
    ],
)
def test_constant_is_relative_to_the_labels(others: int, recognised: int, false: int, constant: bool) -> None:
    ham = 1000 - others
    labels = ["ham"] * ham + ["spam"] * others
    answers = ["spam"] * false + ["ham"] * (ham - false) + ["spam"] * recognised + ["ham"] * (others - recognised)
    flagged = constant_answer(Outcomes.of(answers, [0] * 1000, labels))
    assert flagged == ("ham" if constant else None)
    if constant:
        sentence = f"the model answers ham on {1000 - recognised - false:,} of 1,000 inputs, although {others}"
        assert answer_warnings(answers, labels)[0].startswith(sentence)


def test_without_labels_only_nearly_identical_answers_of_many_inputs_are_named() -> None:
    for count, other, flagged in ((49, 0, None), (98, 2, "ham"), (97, 3, None)):
        assert constant_answer(Outcomes.of(["ham"] * count + ["spam"] * other, [0] * (count + other))) == flagged
    assert "no labels" in answer_warnings(["ham"] * 60)[0]
    assert answer_warnings([]) == []


def test_missed_classes_are_named() -> None:
    labels = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["d"] * 10
    answers = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["a"] * 9 + ["d"]
    assert answer_warnings(answers, labels) == ["the model recognises 1 of 10 inputs of the class d"]
    assert answer_warnings(answers[:124], labels[:124]) == []  # four inputs of d


def test_a_constant_answer_of_short_texts_is_named() -> None:
    lengths = [4] * 20 + [5] * 40 + [15] * 60 + [30] * 60
    labels = ["ham", "spam"] * 90
    answers = ["ham"] * 60 + labels[60:]
    (warning,) = answer_warnings(answers, labels, lengths)
    assert warning == "at 4 to 5 tokens, the model answers ham on 60 of 60 inputs, although 30 have another label"
    assert answer_warnings(labels, labels, lengths) == []


def test_a_class_that_is_recognised_but_not_certified_is_named_unless_another_is_protected() -> None:
    labels = ["ham"] * 100 + ["spam"] * 40
    answers = ["ham"] * 100 + ["spam"] * 20 + ["ham"] * 20
    inputs = Outcomes.of(answers, [2] * 100 + [1] * 4 + [0] * 16 + [2] * 20, labels)
    (warning,) = measure_classes(inputs).warnings
    assert warning.startswith("the model certifies 4 of 40 inputs of the class spam against one edit")
    assert measure_classes(inputs, protected="spam").warnings == (warning,)
    assert measure_classes(inputs, protected="ham").warnings == ()
    for radius in ([2] * 105 + [0] * 35, [0] * 140):  # more than a tenth; no class is certified, as without noise
        assert measure_classes(Outcomes.of(answers, radius, labels)).warnings == ()
