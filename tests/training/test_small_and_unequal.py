"""Training on unequal classes and few examples: weights, the stratified hold-out, time limits, sentences."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.advice import few_kept
from adaptdel.classifiers.linear_training import train
from adaptdel.settings import TrainingSettings, default_noise, default_rate
from adaptdel.text.data import held_out_rows
from adaptdel.training import train as train_model
from tests.calibration.documents import documents


def unequal(count: int = 300, rare: int = 15) -> tuple[list[str], list[int]]:
    texts, labels = documents(count, 11)
    chosen = [n for n, label in enumerate(labels) if label == 0] + [n for n, label in enumerate(labels) if label][:rare]
    return [texts[n] for n in chosen], [labels[n] for n in chosen]


def test_every_class_is_held_out_by_its_share() -> None:
    texts = [f"text {number}" for number in range(400)]
    labels = ["a"] * 350 + ["b"] * 49 + ["c"]
    for seed in range(5):
        held = held_out_rows(texts, labels, 0.1, seed)
        counts = Counter(label for label, is_held in zip(labels, held, strict=True) if is_held)
        assert counts == {"a": 35, "b": 5}  # the only example of c stays
    doubled = held_out_rows(texts * 2, labels * 2, 0.1, 0)
    assert doubled[:400] == doubled[400:] == held_out_rows(texts, labels, 0.1, 0)
    contradictory = held_out_rows(["x", "y", "z", "x"], ["a", "a", "a", "b"], 0.4, 0)
    assert contradictory[0] == contradictory[3]


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_are_those_of_repeated_examples(classes: int) -> None:
    """An example of weight 3 counts as three examples of weight 1."""
    from scipy import sparse

    rng = np.random.default_rng(3)
    counts = sparse.csr_array(rng.integers(0, 3, size=(30, 6)).astype(float))
    answers = np.arange(30) % classes
    weights = np.where(answers == 1, 3.0, 1.0)
    composition = sparse.csr_array(np.eye(6))
    repeats = np.repeat(np.arange(30), weights.astype(int))
    repeated = train(
        sparse.csr_array(counts[repeats]), composition, answers[repeats], classes,
        l2=0.01, iterations=200, weights=np.ones(len(repeats)),
    )  # fmt: skip
    scaled = weights * len(weights) / weights.sum()
    once = train(counts, composition, answers, classes, l2=0.01, iterations=1, weights=np.ones(30))
    factor = repeated.record["penalty"] / once.record["penalty"]
    weighted = train(counts, composition, answers, classes, l2=0.01 * factor, iterations=200, weights=scaled)
    assert weighted.weights == pytest.approx(repeated.weights, abs=2e-3)


def test_a_rare_class_is_found_with_balanced_weights() -> None:
    texts, labels = unequal()
    plain, balanced = (
        train_model(texts, labels, rate=0.95, progress=False, bits=10, validation=0.2, class_weight=weight)
        for weight in (None, "balanced")
    )
    assert (balanced.records.training or {})["settings"]["class_weight"] == "balanced"
    assert (plain.records.training or {})["settings"]["class_weight"] is None
    recalls = [(model.records.training or {})["held_out"]["recall"]["1"] for model in (plain, balanced)]
    assert recalls[1] > recalls[0]
    assert (plain.records.training or {})["stratified"] is True
    assert (
        (plain.records.training or {})["held_out"]["inputs"] == (plain.records.training or {})["data"]["held_out"] == 33
    )


def test_a_constant_model_and_a_small_class_are_named() -> None:
    texts, labels = unequal(rare=8)
    model = train_model(texts, labels, rate=0.97, progress=False, bits=10, validation=0.0)
    (sentence,) = [text for text in (model.records.training or {})["warnings"] if "examples to train on" in text]
    assert sentence.startswith("the class 1 has 8 examples to train on, of 158 in all: give at least 10 of each class")
    texts, labels = unequal(rare=30)
    constant = train_model(texts, labels, rate=0.97, class_weight=None, progress=False, bits=10, validation=0.5)
    assert any("answers 0 on" in text or "recognises" in text for text in (constant.records.training or {})["warnings"])


def test_a_file_that_is_sorted_by_class_is_measured_on_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out examples beyond a limit are not measured; in a sorted file, the first ones are of one class."""
    monkeypatch.setattr("adaptdel.training.training.CHECKED", 30)
    texts, labels = unequal(rare=60)
    model = train_model(texts, labels, rate=0.97, class_weight=None, progress=False, bits=10, validation=0.5)
    measured = (model.records.training or {})["held_out"]
    assert measured["inputs"] == 30
    assert set(measured["recall"]) == {"0", "1"}
    assert any("answers 0 on" in text or "recognises" in text for text in (model.records.training or {})["warnings"])


@pytest.mark.parametrize(("rows", "epochs", "patience"), [(40, 200, 25), (2650, 24, 3), (22500, 3, 2)])
def test_epochs_suit_the_size(rows: int, epochs: int, patience: int) -> None:
    chosen = TrainingSettings(model="bert").resolved([100] * rows)
    assert (chosen.transformer.epochs, chosen.transformer.patience) == (epochs, patience)
    given = TrainingSettings.from_dict({"model": "bert", "epochs": 7}).resolved([100] * rows)
    assert given.transformer.epochs == 7


def test_the_rate_suits_the_lengths() -> None:
    assert [default_rate([n]) for n in (400, 40, 20, 15, 10, 3, 0)] == [0.9, 0.9, 0.8, 0.73, 0.6, 0.6, 0.6]
    resolved = TrainingSettings(method="adaptdel+").resolved([15] * 5)
    assert (resolved.rate, resolved.rates) == (0.73, (0.5, 0.973))
    assert TrainingSettings(method="adaptdel+").resolved([230]).rates is None
    assert TrainingSettings(rate=0.95).resolved([15]).rate == 0.95
    assert "such as 0.73" in str(few_kept(Deletion(FixedRate(0.9)), [15]))
    for lengths in ([15], [230], [5]):
        assert few_kept(default_noise(lengths), lengths) is None
    assert "--method exact" in str(few_kept(default_noise([3]), [3]))  # no rate is low enough
    assert few_kept(default_noise([3]), [3], short_texts=False) is None
