"""Certificates: predictions, what a reader sees, and how far the attacker's edits reach."""

from __future__ import annotations

import pytest

from adaptdel import Deletion, FixedRate, Masking, SmoothedClassifier
from adaptdel.certification.votes import VotesPlan
from tests.models.test_smoothed import NOISE


@pytest.mark.parametrize(
    ("threshold", "votes", "predicted"),
    [
        (None, [3, 7], 1),
        (None, [5, 5], 0),  # a tie goes to the lowest number
        (None, [2, 5, 5], 1),
        (0.3, [7, 3], 0),  # at the threshold, not above it
        (0.3, [6, 4], 1),
        (0.9, [2, 8], 0),
    ],
)
def test_the_decision_threshold_or_the_majority_predicts(
    threshold: float | None, votes: list[int], predicted: int
) -> None:
    plan = VotesPlan(noise=Deletion(FixedRate(0.9)), threshold=threshold)
    assert plan.predicted(votes, sum(votes)) == predicted
    assert plan.predicted([count / sum(votes) for count in votes]) == predicted


def test_short_texts_are_covered_and_labels_are_escaped() -> None:
    model = SmoothedClassifier(lambda texts: ["<b>"] * len(texts), NOISE, classes=["<b>", "c"])
    long, short = model.certify([" ".join(f"word{n}" for n in range(90)), "two words"])
    assert [long.covers_every_text, short.covers_every_text] == [False, True]
    assert not short.rederive(ops="ins").covers_every_text  # another text of two words takes a substitution
    assert "&lt;b&gt;" in short._repr_html_()
    assert "<b>" not in short._repr_html_()


@pytest.mark.parametrize(("threshold", "label"), [(0.2, "b"), (0.9, "a")])
def test_a_protected_model_has_a_frontier_that_reaches_its_radius(threshold: float, label: str) -> None:
    def classify(texts: list[str]) -> list[str]:
        return ["b" if len(text.split()) % 5 > 2 else "a" for text in texts]

    model = SmoothedClassifier(classify, Deletion(FixedRate(0.9)), classes=["a", "b"], threshold=threshold)
    certificate = model.certify(["word " * 60])[0]
    assert (certificate.label, certificate.radius >= 1) == (label, True)
    frontier = certificate.frontier()
    for kind in range(3):
        single = tuple(certificate.radius if place == kind else 0 for place in range(3))
        assert any(all(a <= b for a, b in zip(single, triple, strict=True)) for triple in frontier)
    assert certificate.radius_for("sub") == max(triple[2] for triple in frontier)


def test_certificates_have_a_character_radius() -> None:
    def spam(texts: list[str]) -> list[int]:
        return [int("free" in text.split()) for text in texts]

    texts = ["free " * 30, "a quiet email about lunch"]
    noise = Deletion(FixedRate(0.8))
    for certificate in SmoothedClassifier(spam, noise, classes=[0, 1], progress=False).certify(texts):
        assert certificate.character_radius is not None
        assert certificate.radius // 2 <= certificate.character_radius <= certificate.radius
    masked = SmoothedClassifier(spam, Masking(0.5), classes=[0, 1], progress=False)
    assert {c.character_radius for c in masked.certify(texts)} <= {-1, 0}
    for unit in ("char", "byte", "chunk:2"):
        model = SmoothedClassifier(lambda given: [0 for _ in given], noise, unit=unit, classes=[0, 1], progress=False)
        text = b"many bytes here" if unit != "char" else "many characters"
        (certificate,) = model.certify([text])
        expected = {"char": certificate.radius, "byte": certificate.radius // 4, "chunk:2": None}[unit]
        assert certificate.character_radius == expected
