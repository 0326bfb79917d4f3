"""Training of transformers on the Trainer, and FreeLB, on tiny models built in memory."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from adaptdel import Masking, NoNoise, SmoothedClassifier  # noqa: E402
from adaptdel.classifiers import transformer_training as checkpoints  # noqa: E402
from adaptdel.classifiers.transformer_training import TrainedTransformer, train_transformer  # noqa: E402
from adaptdel.classifiers.transformers import TransformersClassifier  # noqa: E402
from adaptdel.settings import TransformerTrainingSettings  # noqa: E402
from adaptdel.text.data import ExampleSet  # noqa: E402
from adaptdel.text.units import Words  # noqa: E402
from adaptdel.training import train as train_smoothed  # noqa: E402
from tests.classifiers.test_noisy_copies import NOISE, copies, examples  # noqa: E402
from tests.classifiers.test_transformers import fixed, tiny  # noqa: E402

FAST = TransformerTrainingSettings(epochs=4, batch_size=16, learning_rate=2e-3, warmup=0, patience=4)
STEPS = 5  # an epoch of 70 examples


class Killed(BaseException):
    """Stands for the end of the process."""


def train(
    encoder: str, folder: Path, settings: TransformerTrainingSettings = FAST, **options: Any
) -> TrainedTransformer:
    valid, valid_labels = examples(20, seed=1)
    arguments: dict[str, Any] = {"noise": NOISE, "unit": Words()} | options
    validation = ExampleSet(arguments.pop("valid_tokens", valid), arguments.pop("valid_labels", valid_labels))
    classifier = TransformersClassifier(encoder)
    return train_transformer(
        classifier, ExampleSet(*examples()), validation, settings=settings, folder=folder, **arguments
    )


def losses(found: TrainedTransformer) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found.history]


@pytest.fixture(scope="module")
def whole(encoder: str, tmp_path_factory: pytest.TempPathFactory) -> TrainedTransformer:
    """A run without interruption."""
    return train(encoder, tmp_path_factory.mktemp("whole"))


def assert_same(one: TrainedTransformer, other: TrainedTransformer) -> None:
    assert losses(one) == losses(other)
    assert one.classifier.fingerprint() == other.classifier.fingerprint()


def killed_at(step: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise Killed

    return progress


def test_history_and_record(encoder: str, whole: TrainedTransformer) -> None:
    names = {"epoch", "train_loss", "valid_loss", "valid_accuracy", "learning_rate", "seconds"}
    assert [set(row) for row in whole.history] == [names] * 4
    assert [row["epoch"] for row in whole.history] == [1, 2, 3, 4]
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    assert whole.classifier.classes_ == ["neg", "pos"]
    record = whole.record
    assert set(record["versions"]) == {"torch", "transformers", "accelerate"}
    assert (record["epochs"], record["steps"]) == (4, 4 * STEPS)
    drawn = [copies(TransformersClassifier(encoder)).draw(epoch, range(70)) for epoch in range(4)]
    assert record["tokens"] == sum(len(row) for rows in drawn for row in rows.values())
    assert record["tokens_per_second"] == record["tokens"] / record["training_seconds"]


def shared_numpy() -> str:
    """The state of numpy's old generator."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return repr(state[1:])


def test_the_same_seed_gives_the_same_model(encoder: str, whole: TrainedTransformer, tmp_path: Path) -> None:
    torch.rand(3)  # what was drawn before does not matter
    before, others = torch.get_rng_state(), [random.getstate(), shared_numpy()]
    assert_same(train(encoder, tmp_path / "again"), whole)
    assert torch.equal(torch.get_rng_state(), before)
    assert [random.getstate(), shared_numpy()] == others
    other = train(encoder, tmp_path / "other", TransformerTrainingSettings(**{**vars(FAST), "seed": 1}))
    assert losses(other) != losses(whole)


def test_products_in_half_the_bits(encoder: str, tmp_path: Path) -> None:
    half = TransformerTrainingSettings(**{**vars(FAST), "precision": "bfloat16"})
    one, other, full = (
        train(encoder, tmp_path / name, schedule) for name, schedule in (("one", half), ("other", half), ("full", FAST))
    )
    assert_same(one, other)
    assert losses(one) != losses(full)
    near, exact = ([row["train_loss"] for row in found.history] for found in (one, full))
    assert near == pytest.approx(exact, abs=0.05)
    assert {weight.dtype for weight in one.classifier.model.parameters()} == {torch.float32}


def test_training_is_silent_and_keeps_few_checkpoints(
    encoder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[int] = []
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))
        found.append(len(list(tmp_path.glob("checkpoint-*"))))

    train(encoder, tmp_path, progress=progress)
    assert capfd.readouterr() == ("", "")
    assert steps == [(step, 4 * STEPS) for step in range(1, 4 * STEPS + 1)]
    assert max(found) == 2
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("steps", [(4 * STEPS,), (7, 7, 13)], ids=str)
def test_a_killed_run_goes_on(encoder: str, whole: TrainedTransformer, tmp_path: Path, steps: tuple[int, ...]) -> None:
    for step in steps:
        with pytest.raises(Killed):
            train(encoder, tmp_path, progress=killed_at(step))
    seen: list[int] = []
    assert_same(train(encoder, tmp_path, progress=lambda done, total: seen.append(done)), whole)
    assert seen[0] == 1 + (steps[-1] - 1) // STEPS * STEPS  # at the beginning of the epoch that was lost


def test_a_run_killed_while_it_saves_goes_on(
    encoder: str, whole: TrainedTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    save = torch.save

    def dying(value: Any, path: Any, *others: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            Path(path).write_bytes(b"PK")
            raise Killed
        save(value, path, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", dying)
        with pytest.raises(Killed):
            train(encoder, tmp_path)
    assert_same(train(encoder, tmp_path), whole)


@pytest.mark.parametrize(
    ("name", "left"),
    [(checkpoints.MARK, 40), ("optimizer.pt", None)],
)
def test_a_broken_checkpoint_is_not_used(
    encoder: str, whole: TrainedTransformer, tmp_path: Path, name: str, left: int | None
) -> None:
    with pytest.raises(Killed):
        train(encoder, tmp_path, progress=killed_at(2 * STEPS + 1))
    broken = tmp_path / f"checkpoint-{2 * STEPS}" / name
    content = broken.read_bytes()
    broken.unlink() if left is None else broken.write_bytes(content[:left])
    seen: list[int] = []
    assert_same(train(encoder, tmp_path, progress=lambda done, total: seen.append(done)), whole)
    assert seen[0] == STEPS + 1


def test_a_finished_run_is_read(encoder: str, whole: TrainedTransformer, tmp_path: Path) -> None:
    train(encoder, tmp_path)
    assert_same(train(encoder, tmp_path, progress=killed_at(1)), whole)


def test_a_folder_of_another_run_is_refused(encoder: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(encoder, tmp_path, progress=killed_at(1))
    for options, name in (({"noise": NoNoise()}, "noise"), ({"freelb": True}, "method")):
        with pytest.raises(ValueError) as error:
            train(encoder, tmp_path, **options)
        assert str(error.value) == (
            f"folder must be empty or hold checkpoints of the same run, got {str(tmp_path)!r} with a run of another "
            f"{name}: delete it or choose another folder"
        )


def test_early_stopping_gives_the_best_epoch(encoder: str, tmp_path: Path) -> None:
    valid, labels = examples(40, seed=2)
    wrong = ["neg" if label == "pos" and place % 4 else "pos" for place, label in enumerate(labels)]
    schedule = TransformerTrainingSettings(epochs=30, batch_size=16, learning_rate=1e-3, warmup=0, patience=3)
    found = train(encoder, tmp_path, schedule, valid_tokens=valid, valid_labels=wrong, noise=NoNoise())
    valid_losses = [row["valid_loss"] for row in found.history]
    best = 1 + int(np.argmin(valid_losses))
    assert found.record["best_epoch"] == best
    assert len(found.history) == found.record["epochs"] == best + 3 < 30
    assert loss_of(found.classifier, valid, wrong) == pytest.approx(valid_losses[best - 1], rel=1e-5)
    assert valid_losses[best - 1] < valid_losses[-1] - 1e-3
    again = train(
        encoder, tmp_path, schedule, valid_tokens=valid, valid_labels=wrong, noise=NoNoise(), progress=killed_at(1)
    )
    assert_same(again, found)


def loss_of(model: TransformersClassifier, rows: list[tuple[str, ...]], labels: list[str]) -> float:
    """The mean cross-entropy on texts, one by one."""
    assert model.classes_ is not None
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        inputs = model.tokenizer(" ".join(row), return_tensors="pt")
        with torch.inference_mode():
            total -= float(model.model(**inputs).logits.log_softmax(1)[0, model.classes_.index(label)])
    return total / len(rows)


def test_a_kill_keeps_the_patience(encoder: str, tmp_path: Path) -> None:
    """The epochs without improvement are counted across the interruption."""
    valid, labels = examples(40, seed=2)
    options = {"valid_tokens": valid, "valid_labels": [{"pos": "neg", "neg": "pos"}[label] for label in labels]}
    schedule = TransformerTrainingSettings(epochs=30, batch_size=16, learning_rate=1e-3, warmup=0, patience=3)
    found = train(encoder, tmp_path / "whole", schedule, **options)
    last = len(found.history) * STEPS
    for step in (last - STEPS, last):
        with pytest.raises(Killed):
            train(encoder, tmp_path / "killed", schedule, progress=killed_at(step), **options)
    assert_same(train(encoder, tmp_path / "killed", schedule, **options), found)


def test_warm_up(encoder: str, tmp_path: Path) -> None:
    schedule = TransformerTrainingSettings(epochs=4, batch_size=16, learning_rate=1e-3, warmup=2, patience=4)
    rates = [row["learning_rate"] for row in train(encoder, tmp_path, schedule).history]
    assert rates == pytest.approx([4e-4, 9e-4, 6e-4, 1e-4])  # of the steps 4, 9, 14 and 19, counted from 0
    assert TransformerTrainingSettings().warmup_epochs == 10
    assert TransformerTrainingSettings(epochs=30).warmup_epochs == 1.5


def test_arguments_are_checked(encoder: str, tmp_path: Path) -> None:
    for options, sentence in (
        ({"valid_tokens": []}, "valid_labels must be one for each of at least 1 example, got 20 for 0"),
        (
            {"valid_tokens": [("a",)], "valid_labels": ["x"]},
            "valid_labels must be among the labels of the training data, got 'x'",
        ),
    ):
        with pytest.raises(ValueError) as error:
            train(encoder, tmp_path, **options)
        assert str(error.value) == sentence
    with pytest.raises(ValueError) as error:
        train(
            encoder,
            tmp_path / "wild",
            TransformerTrainingSettings(epochs=2, batch_size=16, learning_rate=1e30, warmup=0, patience=2),
        )
    assert str(error.value).startswith("learning_rate must be smaller for this model and data")


def test_masking_needs_a_mask_token(encoder: str, tmp_path: Path) -> None:
    tokenizer = fixed("bert", mask=False)
    tiny("bert", tokenizer).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError) as error:
        train(str(tmp_path / "bare"), tmp_path / "out", noise=Masking(0.5))
    bare = str(tmp_path / "bare")
    assert str(error.value) == f"noise must be a deletion for {bare}, whose tokenizer has no mask token"
    assert list((tmp_path / "out").glob("checkpoint-*")) == []


def test_freelb_without_an_adversary_is_ordinary_training(
    encoder: str, whole: TrainedTransformer, tmp_path: Path
) -> None:
    still = TransformerTrainingSettings(**{**vars(FAST), "adv_steps": 1, "adv_init": 0})
    found = train(encoder, tmp_path / "still", still, freelb=True)
    assert_same(found, whole)


def test_freelb_trains_and_goes_on(encoder: str, whole: TrainedTransformer, tmp_path: Path) -> None:
    found = train(encoder, tmp_path / "whole", freelb=True)
    assert found.history[-1]["train_loss"] < found.history[0]["train_loss"]
    assert losses(found) != losses(whole)
    with pytest.raises(Killed):
        train(encoder, tmp_path / "killed", freelb=True, progress=killed_at(2 * STEPS + 3))
    assert_same(train(encoder, tmp_path / "killed", freelb=True), found)


def test_labels_that_are_whole_numbers(encoder: str, tmp_path: Path) -> None:
    rows, labels = examples()
    stars: Any = np.array([4 if label == "pos" else 1 for label in labels])
    found = train_transformer(
        TransformersClassifier(encoder, dtype="bfloat16"), ExampleSet(rows, stars), ExampleSet(rows[:9], stars[:9]),
        noise=NOISE, unit=Words(), settings=TransformerTrainingSettings(epochs=1, patience=1),
        folder=tmp_path / "checkpoints",
    )  # fmt: skip
    assert found.classifier.classes_ == [1, 4]
    assert found.classifier.dtype == "bfloat16"
    found.classifier.save(tmp_path / "model")
    assert TransformersClassifier.load(tmp_path / "model").classes_ == [1, 4]
    assert json.loads((tmp_path / "checkpoints" / checkpoints.RUN).read_text())["method"] == "ordinary"


# `fit` and ``adaptdel train`` share the training.


def texts(count: int = 60) -> tuple[list[str], list[str]]:
    rows, labels = examples(count)
    return [" ".join(row) for row in rows], labels


def test_a_smoothed_classifier_fits_as_train_does(encoder: str) -> None:
    trained = train_smoothed(*texts(), method="adaptdel", model=encoder, epochs=2, seed=3, progress=False)
    noise = trained.noise_  # whose rate follows from the lengths
    state = torch.get_rng_state()
    smoothed = SmoothedClassifier(TransformersClassifier(encoder), noise, copies=2, seed=3, progress=False)
    fitted = smoothed.fit(*texts())
    assert fitted.base_.fingerprint() == trained.base_.fingerprint()
    assert torch.equal(torch.get_rng_state(), state)
    base: Any = fitted.base_
    record = base.training_
    names = ("train_loss", "valid_loss", "valid_accuracy")
    assert [[row[name] for name in names] for row in record["history"]] == [
        [row[name] for name in names] for row in trained.training_["history"]
    ]
    assert (record["epochs"], record["noise"]) == (2, noise.to_dict())


def test_the_settings_of_a_classifier_are_those_of_its_fit(encoder: str) -> None:
    settings = TransformerTrainingSettings(epochs=1, batch_size=16, learning_rate=1e-3)
    base = TransformersClassifier(encoder, training=settings)
    model = SmoothedClassifier(base, NOISE, copies=5, seed=1, progress=False).fit(*texts())
    fields: dict[str, Any] = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3}
    rows = [tuple(text.split()) for text in texts()[0]]
    plain = TransformersClassifier(encoder).fit(rows, texts()[1], noise=NOISE, seed=1, **fields)
    assert model.base_.fingerprint() == plain.fingerprint()
    with pytest.raises(ValueError, match="training must be TransformerTrainingSettings or None, got 'fast'"):
        TransformersClassifier(encoder, training="fast")  # type: ignore[arg-type]


def test_a_failed_fit_changes_nothing(encoder: str) -> None:
    rows, labels = examples(60)
    base = TransformersClassifier(encoder).fit(rows, labels, noise=NOISE, epochs=1, learning_rate=1e-3)
    fingerprint = base.fingerprint()
    for labelled, sentence in (
        (labels[:3], "labels must be one for each of at least 1 example, got 3 for 60"),
        (["pos"] * 60, "labels must be texts or integers of at least 2 classes"),
        (["pos", 1] * 30, "labels must be texts or integers of at least 2 classes"),
    ):
        with pytest.raises(ValueError) as error:
            base.fit(rows, labelled, noise=NOISE)
        assert str(error.value).startswith(sentence)
    with pytest.raises(ValueError, match="validation must hold out at least one example for early stopping"):
        base.fit(rows[:2], ["neg", "pos"], noise=NOISE, validation=0.0)
    with pytest.raises(ValueError, match="learning_rate must be smaller"):
        base.fit(rows, labels, noise=NOISE, epochs=2, learning_rate=1e30, warmup=0)
    assert base.fingerprint() == fingerprint
    assert not base.untrained_


def test_a_fit_with_a_folder_resumes(encoder: str, tmp_path: Path) -> None:
    rows, labels = examples(60)
    options: dict[str, Any] = {"noise": NOISE, "epochs": 3, "batch_size": 16, "learning_rate": 1e-3}
    whole = TransformersClassifier(encoder).fit(rows, labels, **options)
    with pytest.raises(Killed):
        TransformersClassifier(encoder).fit(rows, labels, folder=tmp_path, progress=killed_at(6), **options)
    steps: list[int] = []
    resumed = TransformersClassifier(encoder).fit(
        rows, labels, folder=tmp_path, progress=lambda done, total: steps.append(done), **options
    )
    assert resumed.fingerprint() == whole.fingerprint()
    assert steps[0] > 1


def test_a_loaded_model_continues_from_its_weights_in_a_copy(tmp_path: Path) -> None:
    tokenizer = fixed("bert")
    weights = tiny("bert", tokenizer, labels=2, spread=0.1)
    base = TransformersClassifier(weights, tokenizer=tokenizer)
    fingerprint, initial = base.fingerprint(), {name: value.clone() for name, value in weights.state_dict().items()}
    rows, labels = examples(60)
    options: dict[str, Any] = {"noise": NOISE, "batch_size": 16, "warmup": 0, "folder": tmp_path / "checkpoints"}
    with pytest.raises(ValueError, match="learning_rate must be smaller"):
        base.fit(rows, labels, epochs=1, learning_rate=1e30, **{**options, "folder": None})
    with pytest.raises(
        ValueError, match=r"^validation must be a fraction or a pair \(tokens, labels\), got 'held.csv'$"
    ):
        base.fit(rows, labels, epochs=1, validation="held.csv", **options)
    base.fit(rows, labels, epochs=1, learning_rate=1e-3, **options)
    assert base.fingerprint() != fingerprint
    assert all(torch.equal(value, initial[name]) for name, value in weights.state_dict().items())
    with pytest.raises(ValueError, match="with a run of another model"):  # its weights are others now
        base.fit(rows, labels, epochs=1, learning_rate=1e-3, **options)
