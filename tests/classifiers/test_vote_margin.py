from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import ndtr

from adaptdel import Deletion, FixedRate, Masking
from adaptdel.classifiers.features import clipped
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.classifiers.linear_training import (
    SHARPNESS,
    VoteObjective,
    bounded,
    class_examples,
    keep_rates,
    train_margins,
    vote_loss,
)
from adaptdel.core.checks import FloatArray
from adaptdel.core.noise import RandomDeletion
from adaptdel.models.smoothed import SmoothedClassifier


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.mark.parametrize("classes", [2, 4])
def test_the_gradient_is_that_of_the_loss(classes: int) -> None:
    draw = generator()
    counts = sparse.csr_array(draw.poisson(0.7, (12, 7)).astype(np.float64))
    answers, keep = np.arange(12) % classes, draw.uniform(0.05, 0.95, (12, 3))
    blocks = class_examples(counts, answers, classes, keep, draw.dirichlet(np.ones(12)))
    scores = 1 if classes == 2 else classes
    point = draw.normal(size=(8, scores))

    def loss(table: FloatArray) -> tuple[float, FloatArray]:
        parts = [block.loss(table[:-1], table[-1]) for block in blocks]
        gradient = np.vstack([sum(part[1] for part in parts), sum(part[2] for part in parts)])
        return sum(part[0] for part in parts), gradient

    _, gradient = loss(point)
    for place in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[place] = 1e-6
        slope = (loss(point + step)[0] - loss(point - step)[0]) / 2e-6
        assert slope == pytest.approx(gradient[place], abs=1e-8)


def test_the_margin_gives_the_share_of_votes() -> None:
    """Against noisy copies of texts of 200 words of equal kind, where the sum of the kept scores is almost normal."""
    draw = generator(1)
    for rate, bias in ((0.9, 0.0), (0.8, 0.7), (0.95, -0.4)):
        scores = draw.normal(0.15, 1.0, 200)
        keep = np.full((1, 1, 1), 1 - rate)
        shape = (1, 1, 1)
        total, squares = np.full(shape, scores.sum()), np.full(shape, np.square(scores).sum())
        value, _, _ = vote_loss(total, squares, np.array([bias]), keep, np.ones(shape))
        margin = -np.log(np.expm1(SHARPNESS * value)) / SHARPNESS
        kept = Deletion(FixedRate(rate)).sample(200, 40_000, draw)
        extra = draw.normal(size=40_000)  # the variance of 1 that is added
        assert ndtr(margin) == pytest.approx(np.mean(kept @ scores + bias + extra > 0), abs=0.015)


def test_a_loss_of_many_rivals_counts_the_nearest() -> None:
    keep, one = np.full((1, 1, 1), 0.1), np.ones((1, 1, 1))
    total, squares = np.array([[[900.0, 900.0, -5.0]]]), np.full((1, 1, 3), 50.0)
    many, slopes, _ = vote_loss(total, squares, np.zeros(3), keep, one)
    alone, _, _ = vote_loss(total[:, :, 2:], squares[:, :, 2:], np.zeros(1), keep, one)
    assert many == pytest.approx(alone)
    assert slopes[0][0, 2] < 0.0 == pytest.approx(slopes[0][0, 0], abs=1e-12)


def topics(count: int, seed: int, classes: int = 2) -> tuple[list[tuple[str, ...]], list[int]]:
    """Texts of many words that each say a little about the class, and of a few rare ones that stand in one text."""
    draw = generator(seed)
    tokens, labels = [], []
    for number in range(count):
        label = number % classes
        shift = (draw.random(60) < 0.35) * (label + 1)
        words = [
            f"w{(int(word) * 7 + int(moved)) % 90}"
            for word, moved in zip(draw.integers(12, size=60), shift, strict=True)
        ]
        tokens.append((*words, f"name{seed}-{number}"))
        labels.append(label)
    return tokens, labels


@pytest.mark.parametrize("classes", [2, 3])
def test_votes_on_new_texts_are_right(classes: int) -> None:
    """The words are independent given the class, so that training on copies is optimal, and the other loss as good."""
    tokens, labels = topics(400, 0, classes)
    unseen, answers = topics(200, 1, classes)
    texts = [" ".join(words) for words in unseen]
    noise = Deletion(FixedRate(0.9))
    right = {}
    for loss in ("votes", "copies"):
        base = LinearClassifier(bits=12).fit(tokens, labels, noise=noise, loss=loss)
        assert base.training_["loss_of"] == loss
        assert base.training_["losses"] == sorted(base.training_["losses"], reverse=True)
        shares = SmoothedClassifier(base, noise, n_estimate=400, progress=False).predict_proba(texts)
        right[loss] = shares[np.arange(len(answers)), answers]
    assert np.mean(right["votes"] > 1 / 2) == 1.0
    assert np.mean(right["votes"]) == pytest.approx(np.mean(right["copies"]), abs=0.01)


def test_two_classes_are_trained_on_votes_by_default_and_more_on_copies() -> None:
    for classes, loss in ((2, "votes"), (3, "copies")):
        tokens, labels = topics(60, 0, classes)
        noise = Deletion(FixedRate(0.8))
        default = LinearClassifier(bits=8).fit(tokens, labels, noise=noise)
        chosen = LinearClassifier(bits=8).fit(tokens, labels, noise=noise, loss=loss)
        assert default.training_["loss_of"] == loss
        assert default.fingerprint() == chosen.fingerprint()


def test_weights_of_examples_are_repetitions() -> None:
    draw = generator(2)
    counts = sparse.csr_array(draw.poisson(1.0, (6, 6)).astype(np.float64))
    composition, answers = sparse.csr_array(np.eye(6)), np.array([0, 0, 0, 0, 1, 1])
    keep = np.full((6, 1), 0.2)
    repeats = np.array([0, 1, 2, 3, 4, 4, 5, 5])
    [repeated] = train_margins(
        sparse.csr_array(counts[repeats]),
        composition,
        answers[repeats],
        2,
        keep[repeats],
        l2=0.01,
        iterations=300,
        weights=np.ones(8),
    )
    factor = repeated.record["penalty"] / train_margins(
        counts, composition, answers, 2, keep, l2=0.01, iterations=1, weights=np.ones(6)
    )[0].record["penalty"]  # fmt: skip
    weights = np.array([1, 1, 1, 1, 2, 2]) * 6 / 8
    [weighted] = train_margins(
        counts, composition, answers, 2, keep, l2=0.01 * factor, iterations=300, weights=weights
    )  # fmt: skip
    assert weighted.record["loss"] == pytest.approx(repeated.record["loss"], rel=1e-6)


def test_random_rates_are_drawn_for_every_example() -> None:
    codes = [np.arange(50), np.arange(5), np.arange(0)]
    examples = [code.tolist() for code in codes]
    rates = keep_rates(examples, RandomDeletion(0.7, 0.9), draws=200, seed=3)
    assert rates.shape == (3, 200)
    assert rates.min() >= 0.1
    assert rates.max() <= 0.3
    assert len(np.unique(rates)) == 600
    assert np.array_equal(rates, keep_rates(examples, RandomDeletion(0.7, 0.9), draws=200, seed=3))
    assert keep_rates(examples[:1], Masking(0.9), draws=1, seed=0).tolist() == [[pytest.approx(0.1)]]
    kept = RandomDeletion().sample(40, 20_000, generator()).mean()
    assert keep_rates([range(40)], RandomDeletion(), draws=20_000, seed=0).mean() == pytest.approx(kept, abs=0.005)


def test_the_bias_is_penalised() -> None:
    """Texts without words: the loss of the bias b is (log(1 + e^2b) + 2 log(1 + e^-2b)) / 6 + 0.01 b² / 2."""
    model = LinearClassifier().fit([(), (), ()], ["a", "b", "b"], noise=Deletion(FixedRate(0.5)), class_weight=None)
    biases = np.linspace(0.0, 1.0, 100_001)
    losses = (np.logaddexp(0, 2 * biases) + 2 * np.logaddexp(0, -2 * biases)) / 6 + 0.01 * biases**2 / 2
    assert biases[losses.argmin()] < 0.345 < np.log(2) / 2
    assert model.bias_[0] * 2.0**-model.exponent_ == pytest.approx(biases[losses.argmin()], abs=1e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_clipped_scores_and_their_gradient(classes: int) -> None:
    draw, scores = generator(5), 1 if classes == 2 else classes
    counts = sparse.csr_array(draw.poisson(1.0, (12, 7)).astype(np.float64))
    answers, keep = np.arange(12) % classes, np.full((12, 1), 0.3)
    blocks = class_examples(counts, answers, classes, keep, np.full(12, 1 / 12))
    columns = sparse.csr_array(draw.normal(size=(7, 5)))
    penalties = np.full((6, 1), 0.01)
    objective = VoteObjective(columns, sparse.csr_array(columns.T), blocks, penalties, scores, bound=1.5)
    point = draw.normal(size=6 * scores)
    _, gradient = objective(point)
    for number in range(len(point)):
        step = np.zeros(len(point))
        step[number] = 1e-6
        slope = (objective(point + step)[0] - objective(point - step)[0]) / 2e-6
        assert gradient[number] == pytest.approx(slope, abs=1e-6)
    integers = draw.integers(-9, 10, (50, scores))
    free, _ = bounded(integers.astype(np.float64), 6.0)
    exact = clipped(integers, 6)
    assert exact.dtype == np.int64
    assert np.array_equal(free if classes == 2 else 2 * free, exact)
    assert np.abs(exact).max() == 6 if classes == 2 else np.ptp(exact, axis=1).max() == 12


def test_bounds_fall_and_models_follow() -> None:
    draw = generator(6)
    counts = sparse.csr_array(draw.poisson(1.0, (40, 9)).astype(np.float64))
    answers = (draw.random(40) < 0.5).astype(np.int64)
    free, *models = train_margins(
        counts, sparse.csr_array(np.eye(9)), answers, 2, np.full((40, 1), 0.3),
        l2=1e-4, iterations=20, levels=3, weights=np.ones(40),
    )  # fmt: skip
    assert free.bound == 0
    assert [model.bound / models[0].bound for model in models] == pytest.approx([1, 0.8, 0.64])
