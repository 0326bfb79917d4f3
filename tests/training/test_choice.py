"""The choice of a filter: what it promises, what it keeps, and that its proof is that of the rule that flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.bounded import BoundedLinearClassifier
from adaptdel.models.additive import ThresholdLine
from adaptdel.models.model_files import load_model
from adaptdel.settings import FilterSettings
from adaptdel.text.units import check_unit
from adaptdel.training.choice import (
    CLIP,
    EDITS,
    FOLDS,
    SEGMENT_DRIFTS,
    Choice,
    Level,
    OutOfFold,
    Proof,
    choose,
    fit_filter,
    in_clips,
)
from adaptdel.training.protection import allowed_false_positives, protect
from tests.calibration.documents import documents

LEVELS: dict[str, Any] = {"levels": 4, "iterations": 20, "progress": False}


def chosen(label: int, goal: FilterSettings, seed: int = 1) -> tuple[ad.AdditiveClassifier, Choice]:
    """A filter whose thresholds are not set yet."""
    model = ad.AdditiveClassifier(**LEVELS)
    texts, labels = documents(300, seed)
    return model, fit_filter(model, list(model.split(texts)), labels, label, Proof(120, 4), goal)


def test_the_threshold_of_a_proof_is_drawn_from_the_scores_out_of_fold() -> None:
    rng, proof = np.random.default_rng(0), Proof(200, 5)
    scores = np.sort(rng.normal(size=150))[::-1]
    drawn = [np.sort(rng.choice(scores, 200))[::-1][5] for _ in range(4000)]
    chances = proof.chances(150)
    assert chances.sum() == pytest.approx(1)
    assert np.mean(drawn) == pytest.approx(chances @ scores[: len(chances)], abs=0.02)


@pytest.mark.parametrize(
    "line", [ThresholdLine(), ThresholdLine(-70, 3 << 20, 900, 7 << 19), ThresholdLine(5, 0, 8, 1)]
)
def test_the_number_of_a_text_is_the_smallest_that_does_not_flag_it(line: ThresholdLine) -> None:
    rng = np.random.default_rng(0)
    for total, value in rng.integers(-(10**9), 10**9, (200, 2)).tolist():
        value = abs(value)
        number = line.number(total, value)
        for near in (number - 1, number, number + 1):
            of_sum, of_segment = line.at(near)
            flagged = (line.sum_step > 0 and total > of_sum) or (line.segment_step > 0 and value > of_segment)
            assert flagged == (near < number)
        assert not line.segment_step or line.at(number)[1] >= 0


@pytest.mark.parametrize("parts", ["both", "sum", "segment"])
@pytest.mark.parametrize("label", [0, 1])
def test_the_proof_counts_the_answers_of_the_filter(tmp_path: Path, label: int, parts: str) -> None:
    model, choice = chosen(label, FilterSettings(parts=parts))
    texts, labels = documents(400, 2)
    known = protect(
        model, texts, labels, label=label, max_false_positives=0.05, positives=lambda: choice.certificates(model)
    )
    allowed = allowed_false_positives(200, 0.05)
    wrong = sum(model.predict(texts) == label) - sum(
        answer == label == truth for answer, truth in zip(model.predict(texts), labels, strict=True)
    )
    assert known.false_positives == wrong <= allowed
    assert known.positives == 150
    assert (known.padded is None) == (parts == "sum")
    certificates = model.certify([text for text, truth in zip(texts, labels, strict=True) if truth == label])
    caught = [each for each in certificates if each.label == label]
    assert len(caught) > 150
    if parts != "sum":
        other = " ".join(text for text, truth in zip(texts, labels, strict=True) if truth != label)
        padded = [each for each in caught if each.padding]
        assert padded
        assert (
            model.predict([f"{other}{' '.join(map(str, each.tokens or ()))}{other}" for each in padded]) == label
        ).all()
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.predict(texts).tolist() == model.predict(texts).tolist()
    again = protect(loaded, texts, labels, label=label, max_false_positives=0.05)
    assert (again.limit, again.threshold) == (known.limit, known.threshold)
    with pytest.raises(ValueError, match="protects"):
        protect(loaded, texts, labels, label=1 - label, max_false_positives=0.05)


def scored(seed: int = 0) -> OutOfFold:
    texts, labels = documents(240, seed)
    texts[7:9] = [texts[0], f"{texts[0]} "]  # equal texts
    tokens = [tuple(text.split()) for text in texts]
    model = ad.AdditiveClassifier(**LEVELS)
    return OutOfFold(
        tokens, labels, 1, model.trainer(tokens, labels, FOLDS), ngram=1, unit=check_unit("word"), seed=seed
    )


def test_equal_texts_are_scored_by_one_model_that_saw_none_of_them() -> None:
    rows: list[Sequence[int]] = []
    texts, labels = documents(60, 3)
    tokens = [tuple(text.split()) for text in [*texts, *texts[:9]]]
    train = ad.AdditiveClassifier(**LEVELS).trainer(tokens, [*labels, *labels[:9]], FOLDS)

    def noted(part: Sequence[int]) -> BoundedLinearClassifier:
        rows.append(part)
        return train(part)

    folds = OutOfFold(tokens, [*labels, *labels[:9]], 1, noted, ngram=1, unit=check_unit("word"), seed=0)
    assert folds.folds[:9].tolist() == folds.folds[60:].tolist()
    for fold, part in zip(folds.models, rows, strict=True):
        assert not {tokens[row] for row in part} & {tokens[row] for row in np.flatnonzero(folds.folds == fold)}


def test_the_table_holds_what_certificates_say() -> None:
    """The averages over proofs, beside the radii of `Scores` at each threshold."""
    folds, proof = scored(), Proof(100, 3)
    choice = choose(folds, proof, FilterSettings(), 4)
    row, chances = choice.chosen, proof.chances(int((~folds.is_own).sum()))
    model = ad.AdditiveClassifier(**LEVELS)
    choice.apply(model, next(iter(folds.models.values())))
    scale, level = model.base_classifier().bound / CLIP, Level(folds, row.level)
    sums = level.sums - in_clips(row.drift) * folds.lengths
    values = level.values[SEGMENT_DRIFTS.index(row.segment_drift)]
    pairs = np.rint(np.stack([sums, values])[:, ~folds.is_own].T * scale).astype(int).tolist()
    numbers = sorted((model.line_.number(*pair) for pair in pairs), reverse=True)[: len(chances)]
    found = np.zeros(4)
    for chance, number in zip(chances, numbers, strict=True):
        model.class_scores(1).set_threshold(number)
        certificates = choice.certificates(model)
        caught = np.array([each.label == 1 for each in certificates])
        radii = np.array([each.radius for each in certificates])
        padded = np.array([each.padded_radius for each in certificates])
        found += chance * np.array([np.mean(caught & each) for each in (True, radii >= 2, padded >= 0, padded >= 2)])
    assert found == pytest.approx([row.clean, row.edited[2], row.padded, row.padded_edited], abs=0.03)
    assert list(row.edited) == list(EDITS)


@pytest.mark.parametrize("goal", ["clean", "edits", "padding", "both"])
def test_the_choice_is_the_best_for_the_goal_that_keeps_detection(goal: str) -> None:
    folds, proof = scored(), Proof(100, 3)
    for loss in (0.0, 3.0, 100.0):
        choice = choose(folds, proof, FilterSettings(goal=goal, max_detection_loss=loss), 4)
        best = max(row.clean for row in choice.rows)
        assert choice.chosen.clean >= best - loss / 100 - 0.02
        allowed = [row for row in choice.rows if row.clean >= best - loss / 100]
        assert choice.chosen.worth(goal) >= max(row.worth(goal) for row in allowed) - 0.02


def test_lost_detection_is_said_and_what_steadies_it() -> None:
    folds = scored()
    choice = choose(folds, Proof(100, 3), FilterSettings(), 4)
    plain = replace(choice.plain, clean=1.0)
    rows = [replace(row, clean=0.9) for row in choice.rows]
    unsteady = replace(choice, plain=plain, rows=rows, chosen=replace(choice.chosen, spread=0.5))
    notes = unsteady.notes(lambda count: Proof(count, count * 3 // 100))
    assert "no clip keeps detection: at most 90.0% are caught, and 100.0% without" in notes[0]
    assert "more texts of the other class" in notes[1]
