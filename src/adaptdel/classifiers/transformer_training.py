"""Train a transformer on noisy copies, by ordinary steps or those of FreeLB (Zhu et al. 2020).

Every epoch ends with a checkpoint, one file that is replaced atomically: weights, the best weights so far, the state of
AdamW and of the random generators, and the history. Training that is interrupted goes on from there as if it had not
been.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch.nn.functional import cross_entropy

from adaptdel.classifiers.linear_training import balanced_class_weights
from adaptdel.classifiers.noisy_copies import COPIES, VALIDATION, EpochBatches, NoisyCopies, by_length
from adaptdel.classifiers.subwords import is_out_of_memory
from adaptdel.classifiers.transformers import (
    TrainingRun,
    TransformersClassifier,
    isolated_randomness,
    matmul_precision,
    quietly,
)
from adaptdel.core.checks import check_choice
from adaptdel.core.noise import Noise
from adaptdel.files import replacing
from adaptdel.settings import CLASS_WEIGHTS, TransformerTrainingSettings
from adaptdel.store import check_same_job
from adaptdel.text.data import ExampleSet
from adaptdel.text.units import Unit

CHECKPOINT = "checkpoint.pt"
TOKENS = 4096  # per forward pass on a CPU, with padding: attention over 32 long texts at once takes many gigabytes
SMALL = 1e-8  # gradients of a smaller norm are divided by this

Batch = dict[str, Any]
T = TypeVar("T")


def train_transformer(
    classifier: TransformersClassifier,
    examples: ExampleSet,
    held: ExampleSet,
    *,
    noise: Noise,
    unit: Unit,
    settings: TransformerTrainingSettings,
    run: TrainingRun,
) -> None:
    """Train a classifier on noisy copies, drawn anew for every example and epoch; sets its ``training_``.

    The copies of the validation set, ``held``, are drawn once. The same seed gives the same model on the same machine
    with the same number of threads. The classifier changes only when training has finished.
    """
    if settings.precision == "tf32" and not classifier.device.startswith("cuda"):
        raise ValueError(
            f"precision must be 'float32' or 'bfloat16' on the device {classifier.device!r}, which has no TF32"
        )
    if settings.compile and run.freelb:
        raise ValueError("compile must be False for FreeLB, which changes the embeddings in every pass")
    if run.class_weight is not None:
        check_choice("class_weight", run.class_weight, CLASS_WEIGHTS)
    classes = sorted(set(examples.labels))
    numbers = {label: number for number, label in enumerate(classes)}
    identity = {
        "model": classifier.name if classifier.has_source else f"{classifier.name} {classifier.fingerprint()}",
        "noise": noise.to_dict(),
        "unit": unit.kind,
        "training data": _digest(examples),
        "validation data": _digest(held),
        "settings": asdict(settings),
        "freelb": run.freelb,
        "class_weight": run.class_weight,
    }
    subwords = classifier.subwords
    subwords.check(examples.tokens[0], unit, noise.masks_tokens)
    with quietly(), isolated_randomness(settings.seed), TemporaryDirectory() as temporary:
        copies = [
            NoisyCopies(
                part.tokens,
                [numbers[label] for label in part.labels],
                noise=noise,
                unit=unit,
                seed=settings.seed,
                encode=lambda requests: subwords.encode([text for row in requests for text in subwords.texts(row)]),
                purpose=purpose,
            )
            for part, purpose in ((examples, COPIES), (held, VALIDATION))
        ]
        model = classifier.with_head(classes)
        model.config.problem_type = "single_label_classification"
        kind = FreeLBTrainer if run.freelb else NoisyTrainer
        trainer = kind(classifier, model, settings, copies[0], copies[1], run)
        with matmul_precision(settings.precision):
            trainer.train_until_finished(Path(temporary if run.folder is None else run.folder), identity)
        if trainer.best is None:
            raise ValueError(
                "learning_rate must be smaller for this model and data: the validation loss was never a number"
            )
        model.load_state_dict(trainer.best)
        classifier.untrained_ = False
        classifier.install(model.cpu())
    classifier.training_ = {
        "noise": noise.to_dict(),
        "history": trainer.history,
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "epochs": len(trainer.history),
        "best_epoch": best_epoch(trainer.history),
        "steps": trainer.steps,
    }


def _digest(examples: ExampleSet) -> str:
    digest = hashlib.sha256()
    for row, label in zip(examples.tokens, examples.labels, strict=True):
        digest.update(repr((list(row), str(label))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def best_epoch(history: list[dict[str, float]]) -> int:
    """The first epoch with the smallest validation loss, counted from 1."""
    losses = [inf if isnan(row["valid_loss"]) else row["valid_loss"] for row in history]
    return 1 + losses.index(min(losses))


def is_finished(history: list[dict[str, float]], epochs: int, patience: int) -> bool:
    """Whether all epochs are done, or early stopping has ended the training."""
    return bool(history) and (len(history) >= epochs or len(history) - best_epoch(history) >= patience)


class NoisyTrainer:
    """Trains a model, in place, on fresh noisy copies in batches of similar length."""

    def __init__(
        self,
        classifier: TransformersClassifier,
        model: Any,
        settings: TransformerTrainingSettings,
        train: NoisyCopies,
        valid: NoisyCopies,
        run: TrainingRun,
    ) -> None:
        self.classifier, self.settings, self.train, self.valid, self.run = classifier, settings, train, valid, run
        self.device = torch.device(classifier.device)
        self.model = model.to(self.device)
        self.forward = torch.compile(model, dynamic=True) if settings.compile else model
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]  # biases and norms
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        self.class_weights = torch.ones(model.config.num_labels)
        if run.class_weight is not None:
            self.class_weights = torch.tensor(balanced_class_weights(train.targets, model.config.num_labels))
        self.class_weights = self.class_weights.to(self.device, torch.float32)
        self.epochs = EpochBatches(train, settings.batch_size)
        self.most_tokens: float = TOKENS if self.device.type == "cpu" else inf  # per pass
        self.is_short_of_memory = False
        self.history: list[dict[str, float]] = []  # a row for each epoch; the learning rate is that of its last step
        self.steps = 0
        self.best: dict[str, torch.Tensor] | None = None  # the weights of the best epoch; None if no loss was a number

    def train_until_finished(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Run the epochs that are left."""
        self.resume(folder, identity)
        self.valid.rows = self.valid.draw(0, range(len(self.valid)))
        while not is_finished(self.history, self.settings.epochs, self.settings.patience):
            started = time.perf_counter()
            train_loss, rate = self.train_epoch()
            valid_loss, accuracy = self.validate()
            row = {"epoch": len(self.history) + 1, "train_loss": train_loss, "valid_loss": valid_loss}
            row |= {"valid_accuracy": accuracy, "learning_rate": rate, "seconds": time.perf_counter() - started}
            self.history.append(row)
            if best_epoch(self.history) == len(self.history) and valid_loss == valid_loss:
                self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.save(folder, identity)
            if self.run.epoch_done is not None:
                self.run.epoch_done(row)

    def train_epoch(self) -> tuple[float, float]:
        """The mean loss of an epoch's steps, and the learning rate of the last one."""
        self.model.train()
        self.epochs.epoch = len(self.history)
        total, count, rate = torch.zeros((), device=self.device), 0, 0.0
        for numbers in self.epochs:
            rate = self.settings.learning_rate * self.rate_factor(self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.zero_grad()
            batch = self.collate([self.train[number] for number in numbers])
            total += self.step(batch)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            self.steps, count = self.steps + 1, count + 1
            if self.run.progress is not None:
                self.run.progress(self.steps, self.settings.epochs * len(self.epochs))
        return float(total) / count, rate

    def rate_factor(self, step: int) -> float:
        """The learning rate rises linearly to its full value, and falls linearly to 0."""
        warmup = round(self.settings.warmup_epochs * len(self.epochs))
        total = self.settings.epochs * len(self.epochs)
        return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

    def collate(self, items: Sequence[tuple[Any, int]]) -> Batch:
        """A batch of tensors, padded to its longest copy."""
        batch = self.classifier.tensors(self.classifier.subwords.padded([row for row, _ in items]))
        labels = torch.tensor([target for _, target in items])
        return {**batch, "labels": labels.to(self.device, non_blocking=True)}

    def step(self, batch: Batch) -> torch.Tensor:
        """One pass over the batch, or several over parts of it, with the same gradient; returns the loss."""
        rows = len(batch["input_ids"])
        return torch.stack(self.in_parts(batch, lambda part: self.pass_over(part, rows))).sum()

    def in_parts(self, batch: Batch, work: Callable[[Batch], T]) -> list[T]:
        """What ``work`` returns for each part of a batch; a part that does not fit in memory is halved from here on."""
        rows, length = batch["input_ids"].shape
        size = int(max(1, min(rows, self.most_tokens // length)))
        parts = (
            {name: tensor[start : start + size] for name, tensor in batch.items()} for start in range(0, rows, size)
        )
        try:
            return [work(part) for part in parts]
        except Exception as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        if not self.is_short_of_memory:
            warnings.warn(
                f"{size * length} subwords do not fit in memory to train on: batches are read in parts from here on",
                stacklevel=2,
            )
        self.is_short_of_memory, self.most_tokens = True, size * length // 2
        self.optimizer.zero_grad()
        return self.in_parts(batch, work)

    def pass_over(self, part: Batch, rows: float) -> torch.Tensor:
        """Forward and backward over a part of a batch of ``rows``; returns its part of the mean loss."""
        loss = (self.losses(part)[0] * self.class_weights[part["labels"]]).sum() / rows
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each row, and whether its class is right; shape (rows,)."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits = self.forward(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
        losses = cross_entropy(logits.float(), batch["labels"], reduction="none")
        return losses, logits.argmax(1) == batch["labels"]

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """The mean loss and the accuracy on the validation copies."""
        self.model.eval()
        batches = by_length(self.valid.rows, self.settings.batch_size)
        collated = (self.collate([self.valid[number] for number in batch]) for batch in batches)
        outcomes = [outcome for batch in collated for outcome in self.in_parts(batch, self.losses)]
        loss, right = (torch.cat([outcome[part].double() for outcome in outcomes]).mean() for part in (0, 1))
        return float(loss), float(right)

    def save(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": json.loads(json.dumps(identity)),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": _random_state(self.device),
            **{name: getattr(self, name) for name in ("history", "steps", "best")},
        }
        with replacing(folder / CHECKPOINT) as file:
            torch.save(state, file)

    def resume(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Go on from the checkpoint, if there is one; ValueError if it belongs to another training."""
        path = folder / CHECKPOINT
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # of a damaged file, whatever torch raises
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(f"{path}: damaged ({reason:.80}): delete it, or choose another folder") from None
        check_same_job(folder, state["identity"], identity, "delete it, or choose another folder")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        _set_random_state(self.device, state["random"])
        for name in ("history", "steps", "best"):
            setattr(self, name, state[name])


class FreeLBTrainer(NoisyTrainer):
    """The training loop with FreeLB's step. ``adv_steps=1, adv_init=0`` is ordinary training."""

    def pass_over(self, part: Batch, rows: float) -> torch.Tensor:
        """Run K passes, and sum a K-th of each gradient; returns the mean of their losses."""
        settings, losses = self.settings, []
        embed = self.model.get_input_embeddings()
        ids = part["input_ids"]
        real = part.get("attention_mask", torch.ones_like(ids)).to(embed.weight)  # 1 for tokens, 0 for padding
        perturbation = first_perturbation(real, embed.weight.shape[-1], settings.adv_init)
        dropout = _random_state(self.device)
        for number in range(settings.adv_steps):
            if number:
                perturbation = next_perturbation(perturbation, real, settings)
                _set_random_state(self.device, dropout)
            perturbation.requires_grad_()
            with _perturbed(embed, perturbation):
                losses.append(super().pass_over(part, rows * settings.adv_steps))
        return torch.stack(losses).sum()


def first_perturbation(real: torch.Tensor, width: int, size: float) -> torch.Tensor:
    """Uniform in ±size / √(length · width) at the tokens of a text, 0 at the padding; shape (texts, tokens, width)."""
    perturbation = real.new_zeros((*real.shape, width))
    if size == 0:
        return perturbation
    scale = size / (real.sum(1) * width).sqrt()
    return perturbation.uniform_(-1, 1) * (real * scale[:, None])[:, :, None]


def next_perturbation(
    perturbation: torch.Tensor, real: torch.Tensor, settings: TransformerTrainingSettings
) -> torch.Tensor:
    """A step of length ``adv_lr`` along the gradient of each text, projected onto the ball of ``adv_norm``."""
    if perturbation.grad is None:
        raise RuntimeError("FreeLB needs a model that uses its input embeddings")
    gradient = perturbation.grad * real[:, :, None]
    perturbation = perturbation.detach() + settings.adv_lr * gradient / _norms(gradient).clamp_min(SMALL)
    if settings.adv_norm > 0:
        perturbation = perturbation * (settings.adv_norm / _norms(perturbation).clamp_min(SMALL)).clamp_max(1)
    return perturbation


def _norms(values: torch.Tensor) -> torch.Tensor:
    """The norm over all tokens of each text, shape (texts, 1, 1)."""
    return values.flatten(1).norm(dim=1)[:, None, None]


@contextmanager
def _perturbed(embed: Any, perturbation: torch.Tensor) -> Iterator[None]:
    """Add the perturbation to the token embeddings; positions, types and masks stay those of the ids."""
    handle = embed.register_forward_hook(lambda module, inputs, output: output + perturbation)
    try:
        yield
    finally:
        handle.remove()


def _random_state(device: torch.device) -> torch.Tensor:
    """The generator of the model's device, from which dropout is drawn."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
