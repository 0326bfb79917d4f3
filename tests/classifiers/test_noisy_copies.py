"""Noisy copies of training examples: what they depend on, their batches, and the training of any torch module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from adaptdel import Deletion, FixedRate  # noqa: E402
from adaptdel.classifiers.noisy_copies import VALIDATION, EpochBatches, NoisyCopies  # noqa: E402
from adaptdel.text.units import Words  # noqa: E402
from tests.classifiers.test_transformers import classifier  # noqa: E402

WORDS = ("film", "was", "dull", "plot", "the", "and", "not", "all")
NOISE = Deletion(FixedRate(0.2))


def examples(count: int = 70, seed: int = 0) -> tuple[list[tuple[str, ...]], list[str]]:
    rng = np.random.default_rng(seed)
    rows = [tuple(rng.choice(WORDS, size=int(rng.integers(2, 14))).tolist()) for _ in range(count)]
    labels = [str(label) for label in rng.choice(["pos", "neg"], count)]
    told = {"pos": ("good", "good"), "neg": ("bad", "bad")}
    return [told[label] + row for row, label in zip(rows, labels, strict=True)], labels


def copies(classifier: Any, *, seed: int = 0, noise: Any = NOISE, **options: Any) -> NoisyCopies:
    rows, labels = examples()
    subwords = classifier.subwords
    return NoisyCopies(
        rows,
        [int(label == "pos") for label in labels],
        noise=noise,
        unit=Words(),
        seed=seed,
        encode=lambda requests: subwords.encode([text for request in requests for text in subwords.texts(request)]),
        **options,
    )


@pytest.fixture(scope="module")
def base() -> Any:
    return classifier()


def test_noise_depends_on_seed_epoch_and_example_only(base: Any) -> None:
    one = copies(base)
    every = {place: row.tolist() for place, row in one.draw(3, range(70)).items()}
    assert {place: row.tolist() for place, row in copies(base).draw(3, [69, 5, 5, 33]).items()} == {
        place: every[place] for place in (69, 5, 33)
    }
    for other in (one.draw(4, range(70)), copies(base, seed=1).draw(3, range(70))):
        assert sum(row.tolist() == every[place] for place, row in other.items()) < 30
    validation = copies(base, purpose=VALIDATION).draw(3, range(70))
    assert sum(row.tolist() == every[place] for place, row in validation.items()) < 30
    one.tokens = [WORDS, WORDS]
    assert any(a.tolist() != b.tolist() for a, b in (one.draw(epoch, [0, 1]).values() for epoch in range(3)))


def read(epochs: EpochBatches, epoch: int) -> list[list[tuple[int, list[int]]]]:
    epochs.epoch = epoch
    return [[(place, epochs.copies[place][0].tolist()) for place in batch] for batch in epochs]


def test_batches_of_an_epoch(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.classifiers.noisy_copies.WINDOW", 18)
    one = EpochBatches(copies(base), 2)  # 35 batches: windows of 18 and 17
    epochs = [read(one, epoch) for epoch in range(3)]
    for batches in epochs:
        assert len(batches) == len(one) == 35
        assert sorted(place for batch in batches for place, _ in batch) == list(range(70))
        spread = [abs(len(a[1]) - len(b[1])) for a, b in batches]
        assert np.mean(spread) < 1.5  # 4 in random order
    assert [[place for place, _ in batch] for batch in epochs[0]] != [
        [place for place, _ in batch] for batch in epochs[1]
    ]
    sizes = [len(batch[0][1]) for batch in epochs[0][:18]]
    assert sizes not in (sorted(sizes), sorted(sizes, reverse=True))
    assert read(EpochBatches(copies(base), 2), 2) == epochs[2]  # after a resume
    wide = {place: row for batch in read(EpochBatches(copies(base), 16), 2) for place, row in batch}
    assert wide == {place: row for batch in epochs[2] for place, row in batch}
