"""The training loop of transformers: Hugging Face's Trainer on noisy copies, and FreeLB (Zhu et al. 2020)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader

from adaptdel.classifiers.linear_training import balanced_class_weights
from adaptdel.classifiers.noisy_copies import EpochBatches, NoisyCopies, by_length
from adaptdel.classifiers.subwords import is_out_of_memory
from adaptdel.classifiers.transformer_training import LOSS, TrainingRun, history_of, mark
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.core.checks import IntArray
from adaptdel.settings import TransformerTrainingSettings


class ValidationBatches:
    """The batches of validation copies, the same in every epoch."""

    def __init__(self, copies: NoisyCopies, batch_size: int) -> None:
        copies.rows = copies.draw(0, range(len(copies)))
        self.batches = by_length(copies.rows, batch_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


KEPT_CHECKPOINTS = 2  # the best and the last
TOKENS = 4096  # per forward pass on a CPU, with padding: attention over 32 long texts at once takes many gigabytes


class NoisyTrainer(transformers.Trainer):
    """The Trainer on fresh noisy copies in batches of similar length; it logs tokens and time of every epoch."""

    is_short_of_memory = False

    def __init__(
        self,
        classifier: TransformersClassifier,
        model: Any,
        settings: TransformerTrainingSettings,
        train: NoisyCopies,
        valid: NoisyCopies,
        run: TrainingRun,
    ) -> None:
        self.class_weights = None
        if run.class_weight is not None:
            weights = balanced_class_weights(train.targets, model.config.num_labels).tolist()
            self.class_weights = torch.tensor(weights, dtype=torch.float32)
        self.classifier, self.settings, self.train_copies, self.valid_copies = classifier, settings, train, valid
        on_cpu = classifier.device == "cpu"
        self.share = 1.0  # the fraction of the batch that the current pass reads
        self.most_tokens: float = TOKENS if on_cpu else inf  # per pass
        self.epochs = EpochBatches(train, settings.batch_size)
        self.validation = ValidationBatches(valid, settings.batch_size)
        super().__init__(
            model=model,
            args=arguments(settings, Path(run.folder or ""), steps=len(self.epochs), cpu=on_cpu),
            data_collator=self.collate,
            train_dataset=train,
            eval_dataset=valid,
            compute_metrics=_measures,
            preprocess_logits_for_metrics=_logits,
            callbacks=[
                EpochCallback(self.epochs, run),
                transformers.EarlyStoppingCallback(settings.patience),
            ],
        )
        self.remove_callback(transformers.PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Batches of fresh copies."""
        copies: Any = self.train_copies
        return DataLoader(copies, batch_sampler=self.epochs, collate_fn=self.collate)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Batches of the validation copies."""
        copies: Any = self.valid_copies
        return DataLoader(copies, batch_sampler=self.validation, collate_fn=self.collate)

    def collate(self, items: Sequence[tuple[IntArray, int]]) -> dict[str, Any]:
        """A batch of tensors, padded to its longest copy."""
        batch = self.classifier.tensors(self.classifier.subwords.padded([row for row, _ in items]))
        batch["labels"] = torch.tensor([target for _, target in items]).to(self.classifier.device, non_blocking=True)
        self.epochs.ids += sum(len(row) for row, _ in items)
        return batch

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """One pass over the batch, or several over parts of a large batch, with the same gradient.

        A part that does not fit in memory is halved from here on.
        """
        (rows, length), losses = inputs["input_ids"].shape, []
        size = int(max(1, min(rows, self.most_tokens // length)))
        try:
            for start in range(0, rows, size):
                part = {name: tensor[start : start + size] for name, tensor in inputs.items()}
                self.share = len(part["labels"]) / rows
                losses.append(self.pass_over(model, part))
            return torch.stack(losses).sum()
        except Exception as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        finally:
            self.share = 1.0
        if not self.is_short_of_memory:
            warnings.warn(
                f"{size * length} subwords do not fit in memory to train on: batches are read in parts from here on",
                stacklevel=2,
            )
        self.is_short_of_memory, self.most_tokens = True, size * length // 2
        model.zero_grad()
        return NoisyTrainer.training_step(self, model, inputs, num_items_in_batch)

    def pass_over(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Forward and backward."""
        return super().training_step(model, inputs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of a part, weighted by its fraction of the batch."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.class_weights is not None and model.training:
            weights = self.class_weights.to(outputs.logits.device)[inputs["labels"]]
            losses = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
            loss = (weights * losses).mean()
        loss = loss if self.share == 1 else loss * self.share
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *others: Any, **more: Any) -> None:
        """Log tokens and time of an epoch with its loss; every checkpoint contains the log."""
        if "loss" in logs:
            logs.update(tokens=self.epochs.ids, seconds=time.perf_counter() - self.epochs.began)
        super().log(logs, *others, **more)


class EpochCallback(transformers.TrainerCallback):
    """Sets the epoch of the batches, reports progress and marks complete checkpoints."""

    def __init__(self, epochs: EpochBatches, run: TrainingRun) -> None:
        self.epochs, self.run, self.began = epochs, run, time.monotonic()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the epoch, which follows from the number of steps, also after resuming."""
        self.epochs.epoch = state.global_step // len(self.epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report progress, and stop when the time is up: the epoch ends here, is measured and saved."""
        if self.run.progress is not None:
            self.run.progress(state.global_step, state.max_steps)
        limit = self.run.max_minutes
        if limit is not None and time.monotonic() - self.began >= 60 * limit:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report the epoch."""
        if self.run.epoch_done is not None:
            rows = history_of({"log_history": state.log_history})
            if rows:
                self.run.epoch_done(rows[-1])

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the checkpoint: all of its files are written."""
        mark(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def arguments(settings: TransformerTrainingSettings, folder: Path, *, steps: int, cpu: bool) -> Any:
    """The Trainer's arguments for epochs of ``steps`` steps."""
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        optim="adamw_torch_fused",
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        lr_scheduler_type="linear",
        warmup_steps=round(settings.warmup_epochs * steps),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        seed=settings.seed,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=KEPT_CHECKPOINTS,
        load_best_model_at_end=True,
        metric_for_best_model=LOSS,
        greater_is_better=False,
        restore_callback_states_from_checkpoint=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        use_cpu=cpu,
        bf16=settings.precision == "bfloat16",
    )
    if args.n_gpu > 1:
        args._n_gpu = 1  # a batch is not split across devices
    return args


def _logits(outputs: Any, labels: Any) -> Any:
    """The logits: some models return more."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _measures(outcome: Any) -> dict[str, float]:
    """Means over copies; the Trainer's own loss is a mean over batches, which differ in size."""
    logits = np.asarray(outcome.predictions, dtype=np.float64)
    right = logits[np.arange(len(logits)), outcome.label_ids]
    with np.errstate(all="ignore"):  # diverged training gives NaN, which is reported at the end
        losses = np.logaddexp.reduce(logits, axis=1) - right
    return {LOSS: float(losses.mean()), "accuracy": float(np.mean(logits.argmax(1) == outcome.label_ids))}


SMALL = 1e-8  # gradients of a smaller norm are divided by this


class FreeLBTrainer(NoisyTrainer):
    """The Trainer with FreeLB's step. ``adv_steps=1, adv_init=0`` is ordinary training."""

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Average the gradients of K passes."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.settings.adv_steps
        return loss

    def pass_over(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Run K passes; returns the mean of their losses."""
        settings, losses = self.settings, []
        network: Any = self.model
        embed = network.get_input_embeddings()
        real = _real(inputs).to(embed.weight)
        perturbation = first_perturbation(real, embed.weight.shape[-1], settings.adv_init)
        dropout = _random_state(real.device)
        for number in range(settings.adv_steps):
            if number:
                perturbation = next_perturbation(perturbation, real, settings)
                _set_random_state(real.device, dropout)
            perturbation.requires_grad_()
            with _perturbed(embed, perturbation):
                losses.append(super().pass_over(model, inputs))
        return torch.stack(losses).mean()


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


def _real(inputs: dict[str, Any]) -> torch.Tensor:
    """1 for the tokens of a batch, 0 for the padding; shape (texts, tokens)."""
    ids: torch.Tensor = inputs["input_ids"]
    mask: torch.Tensor = inputs.get("attention_mask", torch.ones_like(ids))
    return mask


@contextmanager
def _perturbed(embed: Any, perturbation: torch.Tensor) -> Iterator[None]:
    """Add the perturbation to the token embeddings; positions, types and masks stay those of the ids."""
    handle = embed.register_forward_hook(lambda module, inputs, output: output + perturbation)
    try:
        yield
    finally:
        handle.remove()


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Set the generator of the model's device, from which dropout is drawn."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
