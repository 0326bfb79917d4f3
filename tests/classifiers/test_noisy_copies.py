"""Noisy copies of training examples: what they depend on, their batches, and the training of any torch module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel import Deletion, FixedRate, SmoothedClassifier, evaluate
from adaptdel.classifiers.base import Request, kept_tokens
from adaptdel.classifiers.transformer_training import VALIDATION, EpochBatches, NoisyCopies, train_on_noise
from adaptdel.text.data import SplitTexts
from adaptdel.text.units import Words
from tests.classifiers.test_transformers import classifier

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

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
    return [[(place, epochs.copies.rows[place].tolist()) for place in batch] for batch in epochs]


def test_batches_of_an_epoch(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.classifiers.transformer_training.WINDOW", 18)
    one = EpochBatches(copies(base), 2)  # 35 batches: windows of 18 and 17
    epochs = [read(one, epoch) for epoch in range(3)]
    for batches in epochs:
        assert len(batches) == len(one) == 35
        assert sorted(place for batch in batches for place, _ in batch) == list(range(70))
        spread = [abs(len(a[1]) - len(b[1])) for a, b in batches]
        assert np.mean(spread) < 1.5
    shuffled = read(EpochBatches(copies(base), 2, grouped=False), 0)
    assert sorted(place for batch in shuffled for place, _ in batch) == list(range(70))
    assert np.mean([abs(len(a[1]) - len(b[1])) for a, b in shuffled]) > 2.5
    assert [[place for place, _ in batch] for batch in epochs[0]] != [
        [place for place, _ in batch] for batch in epochs[1]
    ]
    sizes = [len(batch[0][1]) for batch in epochs[0][:18]]
    assert sizes not in (sorted(sizes), sorted(sizes, reverse=True))
    assert read(EpochBatches(copies(base), 2), 2) == epochs[2]  # after a resume
    wide = {place: row for batch in read(EpochBatches(copies(base), 16), 2) for place, row in batch}
    assert wide == {place: row for batch in epochs[2] for place, row in batch}


def learner(seed: int = 0, epochs: int = 5, fingerprint: str = "v1") -> Any:
    def encode(rows: list[str]) -> Any:
        return torch.tensor([[float(row.split().count(word)) for word in ("good", "bad", *WORDS)] for row in rows])

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    rows, labels = examples()
    texts = [" ".join(row) for row in rows]
    torch.manual_seed(9)  # what is drawn before does not matter
    state = torch.get_rng_state()
    base = train_on_noise(
        module, texts, labels, noise=NOISE, encode=encode, epochs=epochs, batch_size=8, learning_rate=0.02, seed=seed,
        fingerprint=fingerprint,
    )  # fmt: skip
    assert torch.equal(torch.get_rng_state(), state)
    return base


def test_any_torch_module_is_trained_on_noise(tmp_path: Path) -> None:
    base = learner(epochs=20)
    assert base.classes_ == ["neg", "pos"]
    model = SmoothedClassifier(base, NOISE, n_select=20, n_estimate=100, progress=False)
    rows, labels = examples(30, seed=1)
    texts = [" ".join(row) for row in rows]
    assert np.mean(np.array(model.predict(texts)) == labels) > 0.95
    certified = evaluate(model, texts[:4], out=tmp_path / "run", progress=False)
    again = SmoothedClassifier(learner(epochs=20), NOISE, n_select=20, n_estimate=100)
    assert evaluate(again, texts[:4], out=tmp_path / "run", progress=False).table.equals(certified.table)
    assert len({each.fingerprint() for each in (learner(), learner(), learner(seed=1), learner(fingerprint="v2"))}) == 3
    assert learner(fingerprint="").fingerprint() == ""
    other = SmoothedClassifier(learner(seed=1), NOISE, n_select=20, n_estimate=100)
    with pytest.raises(ValueError, match="model_hash"):  # other weights are another model
        evaluate(other, texts[:4], out=tmp_path / "run")


def kept_tokens_of(requests: list[Request]) -> list[Any]:
    return [row for request in requests for row in kept_tokens(request)]


def test_texts_are_split_when_a_window_is_drawn() -> None:
    """Memory follows the window, not the number of examples."""
    asked: list[int] = []

    class Counted(SplitTexts):
        def __getitem__(self, row: Any) -> Any:
            asked.append(row)
            return super().__getitem__(row)

    texts = Counted([" ".join(row) for row in examples()[0]], Words())
    rows = NoisyCopies(texts, [0] * 70, noise=NOISE, unit=Words(), seed=0, encode=kept_tokens_of)
    batches = iter(EpochBatches(rows, 1))
    assert asked == []
    next(batches)
    assert len(asked) == len(rows.rows) == 35
