"""Training of transformers and FreeLB, on tiny models built in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from adaptdel import NoNoise, SmoothedClassifier  # noqa: E402
from adaptdel.classifiers.base import Request  # noqa: E402
from adaptdel.classifiers.transformer_training import (  # noqa: E402
    CHECKPOINT,
    VALIDATION,
    FreeLBTrainer,
    NoisyTrainer,
    first_perturbation,
)
from adaptdel.classifiers.transformers import TrainingRun, TransformersClassifier  # noqa: E402
from adaptdel.settings import TransformerTrainingSettings  # noqa: E402
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
) -> TransformersClassifier:
    valid, valid_labels = examples(20, seed=1)
    noise = options.pop("noise", NOISE)
    validation = options.pop("valid_tokens", valid), options.pop("valid_labels", valid_labels)
    run = TrainingRun(folder=folder, class_weight=None, **options)
    classifier = TransformersClassifier(encoder, training=settings)
    return classifier.fit(*examples(), noise=noise, seed=settings.seed, validation=validation, run=run)


def losses(found: TransformersClassifier) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found.training_["history"]]


@pytest.fixture(scope="module")
def whole(encoder: str, tmp_path_factory: pytest.TempPathFactory) -> TransformersClassifier:
    """A run without interruption."""
    return train(encoder, tmp_path_factory.mktemp("whole"))


def assert_same(one: TransformersClassifier, other: TransformersClassifier) -> None:
    assert losses(one) == losses(other)
    assert one.fingerprint() == other.fingerprint()


def killed_at(step: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise Killed

    return progress


def test_history_and_record(whole: TransformersClassifier) -> None:
    names = {"epoch", "train_loss", "valid_loss", "valid_accuracy", "learning_rate", "seconds"}
    assert [set(row) for row in whole.training_["history"]] == [names] * 4
    assert [row["epoch"] for row in whole.training_["history"]] == [1, 2, 3, 4]
    assert whole.training_["history"][-1]["train_loss"] < whole.training_["history"][0]["train_loss"]
    assert whole.classes_ == ["neg", "pos"]
    record = whole.training_
    assert set(record["versions"]) == {"torch", "transformers"}
    assert (record["epochs"], record["steps"]) == (4, 4 * STEPS)


def shared_numpy() -> str:
    """The state of numpy's old generator."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return repr(state[1:])


def test_the_same_seed_gives_the_same_model(encoder: str, whole: TransformersClassifier, tmp_path: Path) -> None:
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
    near, exact = ([row["train_loss"] for row in found.training_["history"]] for found in (one, full))
    assert near == pytest.approx(exact, abs=0.05)
    assert {weight.dtype for weight in one.model.parameters()} == {torch.float32}


def test_training_is_silent_and_keeps_a_single_checkpoint(
    encoder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[int, int]] = []
    train(encoder, tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert capfd.readouterr() == ("", "")
    assert steps == [(step, 4 * STEPS) for step in range(1, 4 * STEPS + 1)]
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("steps", [(4 * STEPS,), (7, 7, 13)], ids=str)
def test_a_killed_run_goes_on(
    encoder: str, whole: TransformersClassifier, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    for step in steps:
        with pytest.raises(Killed):
            train(encoder, tmp_path, progress=killed_at(step))
    seen: list[int] = []
    assert_same(train(encoder, tmp_path, progress=lambda done, total: seen.append(done)), whole)
    assert seen[0] == 1 + (steps[-1] - 1) // STEPS * STEPS  # at the beginning of the epoch that was lost


def test_a_run_killed_while_it_saves_goes_on(
    encoder: str, whole: TransformersClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    save = torch.save

    def dying(value: Any, file: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            file.write(b"PK")
            raise Killed
        save(value, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", dying)
        with pytest.raises(Killed):
            train(encoder, tmp_path)
    seen: list[int] = []
    assert_same(train(encoder, tmp_path, progress=lambda done, total: seen.append(done)), whole)
    assert seen[0] == 2 * STEPS + 1


def test_a_damaged_checkpoint_is_refused(encoder: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(encoder, tmp_path, progress=killed_at(STEPS + 1))
    path = tmp_path / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{CHECKPOINT}: damaged"):
        train(encoder, tmp_path)


def test_a_folder_of_another_run_is_refused(encoder: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(encoder, tmp_path, progress=killed_at(STEPS + 1))
    for options, name in (({"noise": NoNoise()}, "noise"), ({"freelb": True}, "freelb")):
        with pytest.raises(ValueError, match=f"{tmp_path}: belongs to another job: {name}"):
            train(encoder, tmp_path, **options)


def test_early_stopping_gives_the_best_epoch(encoder: str, tmp_path: Path) -> None:
    valid, labels = examples(40, seed=2)
    wrong = ["neg" if label == "pos" and place % 4 else "pos" for place, label in enumerate(labels)]
    schedule = TransformerTrainingSettings(epochs=30, batch_size=16, learning_rate=1e-3, warmup=0, patience=3)
    found = train(encoder, tmp_path, schedule, valid_tokens=valid, valid_labels=wrong, noise=NoNoise())
    valid_losses = [row["valid_loss"] for row in found.training_["history"]]
    best = 1 + int(np.argmin(valid_losses))
    assert found.training_["best_epoch"] == best
    assert len(found.training_["history"]) == found.training_["epochs"] == best + 3 < 30
    assert loss_of(found, valid, wrong) == pytest.approx(valid_losses[best - 1], rel=1e-5)
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
    last = len(found.training_["history"]) * STEPS
    for step in (last - STEPS, last):
        with pytest.raises(Killed):
            train(encoder, tmp_path / "killed", schedule, progress=killed_at(step), **options)
    assert_same(train(encoder, tmp_path / "killed", schedule, **options), found)


def test_warm_up(encoder: str, tmp_path: Path) -> None:
    schedule = TransformerTrainingSettings(epochs=4, batch_size=16, learning_rate=1e-3, warmup=2, patience=4)
    rates = [row["learning_rate"] for row in train(encoder, tmp_path, schedule).training_["history"]]
    assert rates == pytest.approx([4e-4, 9e-4, 6e-4, 1e-4])  # of the steps 4, 9, 14 and 19, counted from 0
    assert TransformerTrainingSettings().warmup_epochs == 10
    assert TransformerTrainingSettings(epochs=30).warmup_epochs == 1.5


def test_arguments_are_checked(encoder: str, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"valid_tokens": []}, {"valid_tokens": [("a",)], "valid_labels": ["x"]}]
    for options in wrong:
        with pytest.raises(ValueError, match=r"valid_labels must be|class that training has not: 'x'"):
            train(encoder, tmp_path, **options)


def test_freelb_without_an_adversary_is_ordinary_training(
    encoder: str, whole: TransformersClassifier, tmp_path: Path
) -> None:
    still = TransformerTrainingSettings(**{**vars(FAST), "adv_steps": 1, "adv_init": 0})
    found = train(encoder, tmp_path / "still", still, freelb=True)
    assert_same(found, whole)


def test_freelb_trains_and_goes_on(encoder: str, whole: TransformersClassifier, tmp_path: Path) -> None:
    found = train(encoder, tmp_path / "whole", freelb=True)
    assert found.training_["history"][-1]["train_loss"] < found.training_["history"][0]["train_loss"]
    assert losses(found) != losses(whole)
    with pytest.raises(Killed):
        train(encoder, tmp_path / "killed", freelb=True, progress=killed_at(2 * STEPS + 3))
    assert_same(train(encoder, tmp_path / "killed", freelb=True), found)


def test_integers_as_labels(encoder: str, tmp_path: Path) -> None:
    rows, labels = examples()
    stars: Any = np.array([4 if label == "pos" else 1 for label in labels])
    found = TransformersClassifier(encoder, dtype="bfloat16")
    found.fit(rows, stars, noise=NOISE, epochs=1)
    assert (found.classes_, found.dtype) == ([1, 4], "bfloat16")
    found.save(tmp_path / "model")
    assert TransformersClassifier.load(tmp_path / "model").classes_ == [1, 4]


def test_what_cannot_be_had_is_refused_before_a_training(encoder: str, tmp_path: Path) -> None:
    for fields, freelb in (({"precision": "tf32"}, False), ({"compile": True}, True)):
        settings = TransformerTrainingSettings(**{**vars(FAST), **fields})
        with pytest.raises(ValueError, match=f"{next(iter(fields))} must be"):
            train(encoder, tmp_path / "run", settings, freelb=freelb)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_compiled_training_gives_the_same_model(
    encoder: str, whole: TransformersClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def traced(*given: Any, **options: Any) -> Any:
        """As torch.compile traces a model, without the minute that generated code takes."""
        compiled.append(options["dynamic"])
        return compile_with(*given, **options | {"backend": "eager"})

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    found = train(encoder, tmp_path, TransformerTrainingSettings(**{**vars(FAST), "compile": True}))
    assert compiled == [True]
    near, exact = ([row["train_loss"] for row in each.training_["history"]] for each in (found, whole))
    assert near == pytest.approx(exact, abs=1e-3)
    found.save(tmp_path / "model")
    again = TransformersClassifier.load(tmp_path / "model", compile=True)
    assert compiled == [True, True]
    assert again.fingerprint() == found.fingerprint()
    rows = examples(10, seed=1)[0]
    votes = []
    for base in (found, again):
        asked = [Request(base.prepare("x", row, Words()), np.ones((1, len(row)), dtype=np.bool_)) for row in rows]
        votes.append(np.concatenate(base.votes(asked)).tolist())
    assert votes[0] == votes[1]


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
        [row[name] for name in names] for row in (trained.records.training or {})["history"]
    ]
    assert (record["epochs"], record["noise"]) == (2, noise.to_dict())


def test_a_failed_fit_changes_nothing(encoder: str) -> None:
    rows, labels = examples(60)
    base = TransformersClassifier(encoder).fit(rows, labels, noise=NOISE, epochs=1, learning_rate=1e-3)
    fingerprint = base.fingerprint()
    for labelled in (labels[:3], ["pos"] * 60, ["pos", 1] * 30):
        with pytest.raises(ValueError, match="labels must be"):
            base.fit(rows, labelled, noise=NOISE)
    with pytest.raises(ValueError, match="validation must hold out"):
        base.fit(rows[:2], ["neg", "pos"], noise=NOISE, validation=0.0)
    with pytest.raises(ValueError, match="learning_rate must be smaller"):
        base.fit(rows, labels, noise=NOISE, epochs=2, learning_rate=1e30, warmup=0)
    assert base.fingerprint() == fingerprint
    assert not base.untrained_


def test_a_loaded_model_continues_from_its_weights_in_a_copy(tmp_path: Path) -> None:
    tokenizer = fixed("bert")
    weights = tiny("bert", tokenizer, labels=2, spread=0.1)
    base = TransformersClassifier(weights, tokenizer=tokenizer)
    fingerprint, initial = base.fingerprint(), {name: value.clone() for name, value in weights.state_dict().items()}
    rows, labels = examples(60)
    options: dict[str, Any] = {"noise": NOISE, "batch_size": 16, "warmup": 0}
    run = TrainingRun(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="learning_rate must be smaller"):
        base.fit(rows, labels, epochs=1, learning_rate=1e30, **options)
    base.fit(rows, labels, epochs=1, learning_rate=1e-3, run=run, **options)
    assert base.fingerprint() != fingerprint
    assert all(torch.equal(value, initial[name]) for name, value in weights.state_dict().items())
    with pytest.raises(ValueError, match="another job: model"):  # its weights are others now
        base.fit(rows, labels, epochs=1, learning_rate=1e-3, run=run, **options)


# The steps of the training loop: large batches in parts, memory that runs out, and FreeLB.


def unweighted(folder: Path) -> TrainingRun:
    return TrainingRun(folder, class_weight=None)


@pytest.mark.parametrize("kind", [NoisyTrainer, FreeLBTrainer])
def test_a_large_batch_is_read_in_parts(encoder: str, tmp_path: Path, kind: type[NoisyTrainer]) -> None:
    base = TransformersClassifier(encoder)
    one, model = copies(base), base.model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its draws would differ
    schedule = TransformerTrainingSettings(adv_steps=2, adv_init=0)
    trainer = kind(base, model, schedule, one, copies(base, purpose=VALIDATION), unweighted(tmp_path))
    one.rows = one.draw(0, [1, 2, 3, 4, 5])
    batch = trainer.collate(one, [1, 2, 3, 4, 5])
    read: list[int] = []
    model.register_forward_pre_hook(lambda module, given, named: read.append(len(named["input_ids"])), with_kwargs=True)

    def step(tokens: int) -> tuple[float, list[Any]]:
        trainer.most_tokens = tokens
        read.clear()
        model.zero_grad()
        loss = float(trainer.step(batch))
        return loss, [parameter.grad.clone() for parameter in model.parameters()]

    length = batch["input_ids"].shape[1]
    passes = 2 if kind is FreeLBTrainer else 1
    loss, gradients = step(5 * length)
    assert read == [5] * passes
    for tokens, parts in ((5 * length - 1, [4, 1]), (2 * length, [2, 2, 1]), (1, [1] * 5)):
        again, found = step(tokens)
        assert read == [rows for rows in parts for _ in range(passes)]
        assert again == pytest.approx(loss, rel=1e-5)
        for one_gradient, other in zip(gradients, found, strict=True):
            torch.testing.assert_close(one_gradient, other, rtol=1e-3, atol=1e-6)

    def forward(module: Any, given: Any, named: Any) -> None:
        if named["input_ids"].numel() > 2 * length:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model.register_forward_pre_hook(forward, with_kwargs=True)
    with pytest.warns(UserWarning, match="do not fit in memory") as said:
        (again, found), _ = step(10**9), step(int(trainer.most_tokens))  # at first as on a GPU
    assert len(said) == 1
    assert read[-2 * passes :] == [2] * passes + [1] * passes
    assert again == pytest.approx(loss, rel=1e-5)
    for one_gradient, other in zip(gradients, found, strict=True):
        torch.testing.assert_close(one_gradient, other, rtol=1e-3, atol=1e-6)
    valid = trainer.valid.rows = trainer.valid.draw(0, range(5))
    trainer.most_tokens, length = 10**9, max(map(len, valid.values()))
    halved = trainer.validate()  # nothing but halves fits
    length, trainer.most_tokens = 10**9, 10**9
    assert halved == pytest.approx(trainer.validate(), rel=1e-5)
    trainer.most_tokens = 1
    length = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.step(batch)


def literal(model: Any, batch: dict[str, Any], start: Any, steps: int, length: float, ball: float) -> tuple[Any, float]:
    """Algorithm 1 of Zhu et al., text by text, by autograd on the embeddings: mean gradients and mean loss."""
    table = model.get_input_embeddings().weight
    others = {name: batch[name] for name in ("attention_mask", "token_type_ids", "labels")}
    delta, total, mean = start.clone(), 0.0, [torch.zeros_like(one) for one in model.parameters()]
    state = torch.get_rng_state()
    for _ in range(steps):
        torch.set_rng_state(state)  # the same dropout
        delta.requires_grad_(True)
        loss = model(inputs_embeds=table[batch["input_ids"]] + delta, **others).loss
        *gradients, up = torch.autograd.grad(loss, [*model.parameters(), delta])
        mean = [one + gradient / steps for one, gradient in zip(mean, gradients, strict=True)]
        total += loss.item() / steps
        moved = []
        for text, direction in zip(delta.detach(), up, strict=True):
            step = text + length * direction / direction.norm()
            moved.append(step if not ball or step.norm() <= ball else ball * step / step.norm())
        delta = torch.stack(moved)
    return mean, total


@pytest.mark.parametrize(("steps", "ball"), [(3, 0.0), (2, 0.15), (4, 0.25)])
def test_freelb_is_that_of_the_paper(encoder: str, tmp_path: Path, steps: int, ball: float) -> None:
    schedule = TransformerTrainingSettings(adv_steps=steps, adv_lr=0.1, adv_init=0.2, adv_norm=ball)
    base = TransformersClassifier(encoder)
    one, model = copies(base), base.model.train()
    trainer = FreeLBTrainer(base, model, schedule, one, copies(base, purpose=VALIDATION), unweighted(tmp_path))
    one.rows = one.draw(0, [1, 2, 3, 4])
    batch = trainer.collate(one, [1, 2, 3, 4])
    real = batch["attention_mask"].float()
    assert real.min() == 0  # some padding
    torch.manual_seed(5)
    start = first_perturbation(real, 32, 0.2)
    mean, loss = literal(model, batch, start, steps, 0.1, ball)
    torch.manual_seed(5)
    found = trainer.step(batch)
    assert float(found) == pytest.approx(loss, rel=1e-5)
    for (name, parameter), wanted in zip(model.named_parameters(), mean, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-6, msg=name)
    assert not model.get_input_embeddings()._forward_hooks
