"""Hugging Face's Trainer on noisy copies, ordinary or with FreeLB (Zhu et al. 2020)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader

from adaptdel.training.noisy_copies import Copies, Epochs, Validation
from adaptdel.training.settings import Schedule
from adaptdel.training.transformer import LOSS, mark

KEPT = 2  # checkpoints: the best and the last
TOKENS = 4096  # that one pass reads, padding included: attention over 32 long texts at once takes many gigabytes


class NoisyTrainer(transformers.Trainer):
    """The Trainer, reading fresh copies in batches of like length, with the times of every epoch in its log."""

    def __init__(
        self,
        model: Any,
        schedule: Schedule,
        train: Copies,
        valid: Copies,
        folder: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.schedule, self.train_copies, self.valid_copies = schedule, train, valid
        self.share = 1.0  # of a batch, in the pass at hand
        self.epochs = Epochs(train, schedule.batch_size)
        self.validation = Validation(valid, schedule.batch_size)
        super().__init__(
            model=model,
            args=arguments(schedule, folder, steps=len(self.epochs), cpu=train.classifier.device == "cpu"),
            data_collator=train.collate,
            train_dataset=train,
            eval_dataset=valid,
            compute_metrics=_measures,
            preprocess_logits_for_metrics=_logits,
            callbacks=[Steps(self.epochs, folder, progress), transformers.EarlyStoppingCallback(schedule.patience)],
        )
        self.remove_callback(transformers.PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Batches of fresh copies."""
        copies: Any = self.train_copies
        return DataLoader(copies, batch_sampler=self.epochs, collate_fn=copies.collate)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Batches of the validation copies."""
        copies: Any = self.valid_copies
        return DataLoader(copies, batch_sampler=self.validation, collate_fn=copies.collate)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """A pass over the batch, or passes over parts of one that is large: the gradient is the same."""
        rows = len(inputs["labels"])
        losses = []
        for part in in_parts(inputs):
            self.share = len(part["labels"]) / rows
            losses.append(self.pass_over(model, part))
        self.share = 1.0
        return torch.stack(losses).sum()

    def pass_over(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Forward and backward."""
        return super().training_step(model, inputs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of a part counts by its share of the batch."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss if self.share == 1 else loss * self.share
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *others: Any, **more: Any) -> None:
        """Add the times of an epoch to its loss: the log is part of every checkpoint."""
        if "loss" in logs:
            logs.update(self.train_copies.clock.reading())
        super().log(logs, *others, **more)


def in_parts(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """A batch in parts of no more than `TOKENS` each, or of one text."""
    rows, length = inputs["input_ids"].shape
    size = max(1, TOKENS // length)
    return [{name: tensor[start : start + size] for name, tensor in inputs.items()} for start in range(0, rows, size)]


class Steps(transformers.TrainerCallback):
    """Tells the batches which epoch it is and the caller how far training is, and marks whole checkpoints."""

    def __init__(self, epochs: Epochs, folder: Path, progress: Callable[[int, int], None] | None) -> None:
        self.epochs, self.folder, self.progress = epochs, folder, progress

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The epoch follows from the steps, also after a resume."""
        self.epochs.epoch = state.global_step // len(self.epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report."""
        if self.progress is not None:
            self.progress(state.global_step, state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """All files of the checkpoint are written."""
        mark(self.folder / f"checkpoint-{state.global_step}")


def arguments(schedule: Schedule, folder: Path, *, steps: int, cpu: bool) -> Any:
    """The Trainer's own settings, for epochs of so many steps."""
    found = transformers.TrainingArguments(
        output_dir=str(folder),
        optim="adamw_torch_fused",
        learning_rate=schedule.learning_rate,
        weight_decay=schedule.weight_decay,
        max_grad_norm=schedule.clip,
        lr_scheduler_type="linear",
        warmup_steps=round(schedule.warmup_epochs * steps),
        num_train_epochs=schedule.epochs,
        per_device_train_batch_size=schedule.batch_size,
        per_device_eval_batch_size=schedule.batch_size,
        seed=schedule.seed,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=KEPT,
        load_best_model_at_end=True,
        metric_for_best_model=LOSS,
        greater_is_better=False,
        restore_callback_states_from_checkpoint=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        use_cpu=cpu,
        bf16=schedule.precision == "bfloat16",
    )
    if found.n_gpu > 1:
        found._n_gpu = 1  # batches are whole: they are not shared out among devices
    return found


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch, and leave the generators that all share, which the Trainer seeds too, as they were."""
    python, old = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(old)  # noqa: NPY002


def _logits(outputs: Any, labels: Any) -> Any:
    """Some models answer with more than logits."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _measures(found: Any) -> dict[str, float]:
    """Means over copies: the Trainer's own loss is one over batches, which differ in size."""
    logits = np.asarray(found.predictions, dtype=np.float64)
    right = logits[np.arange(len(logits)), found.label_ids]
    with np.errstate(all="ignore"):  # training that went wrong gives NaN, which is reported at its end
        losses = np.logaddexp.reduce(logits, axis=1) - right
    return {LOSS: float(losses.mean()), "accuracy": float(np.mean(logits.argmax(1) == found.label_ids))}


SMALL = 1e-8  # the least norm that a gradient is divided by


class FreeLBTrainer(NoisyTrainer):
    """The Trainer with FreeLB's step; ``adv_steps=1, adv_init=0`` is ordinary training."""

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The gradients of K passes averaged."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.schedule.adv_steps
        return loss

    def pass_over(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """K passes; the mean of their losses."""
        schedule, losses = self.schedule, []
        network: Any = self.model
        embed = network.get_input_embeddings()
        real = _real(inputs).to(embed.weight)
        moved = first_perturbation(real, embed.weight.shape[-1], schedule.adv_init)
        dropout = _random_state(real.device)
        for number in range(schedule.adv_steps):
            if number:
                moved = next_perturbation(moved, real, schedule)
                _set_random_state(real.device, dropout)
            moved.requires_grad_()
            with _perturbed(embed, moved):
                losses.append(super().pass_over(model, inputs))
        return torch.stack(losses).mean()


def first_perturbation(real: torch.Tensor, width: int, size: float) -> torch.Tensor:
    """Uniform between ±size / √(length · width) at the tokens of a text, and 0 at the padding."""
    moved = real.new_zeros((*real.shape, width))
    if size == 0:
        return moved
    scale = size / (real.sum(1) * width).sqrt()
    return moved.uniform_(-1, 1) * (real * scale[:, None])[:, :, None]


def next_perturbation(moved: torch.Tensor, real: torch.Tensor, schedule: Schedule) -> torch.Tensor:
    """A step of length ``adv_lr`` up the gradient of each text, then back into the ball of ``adv_norm``."""
    if moved.grad is None:
        raise RuntimeError("FreeLB needs a model that reads its own input embeddings")
    gradient = moved.grad * real[:, :, None]
    moved = moved.detach() + schedule.adv_lr * gradient / _norms(gradient).clamp_min(SMALL)
    if schedule.adv_norm > 0:
        moved = moved * (schedule.adv_norm / _norms(moved).clamp_min(SMALL)).clamp_max(1)
    return moved


def _norms(values: torch.Tensor) -> torch.Tensor:
    """The norm of each text's values, over all of its tokens."""
    return values.flatten(1).norm(dim=1)[:, None, None]


def _real(inputs: dict[str, Any]) -> torch.Tensor:
    """1 for the tokens of a batch, 0 for its padding."""
    ids: torch.Tensor = inputs["input_ids"]
    mask: torch.Tensor = inputs.get("attention_mask", torch.ones_like(ids))
    return mask


@contextmanager
def _perturbed(embed: Any, moved: torch.Tensor) -> Iterator[None]:
    """Embeddings of ids come out moved. Positions, types and masks stay those of the ids, for every kind of model."""
    handle = embed.register_forward_hook(lambda module, given, out: out + moved)
    try:
        yield
    finally:
        handle.remove()


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Dropout is drawn on the model's own device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
