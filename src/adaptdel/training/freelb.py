"""FreeLB (Zhu et al. 2020): training on texts whose embeddings an adversary moves.

Every step of training goes K times forward and backward over the same batch with the same dropout. Each text's
embeddings are moved by a perturbation that climbs the gradient of the loss from one pass to the next; the gradients of
the parameters are averaged over the K passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from adaptdel.training.schedule import Schedule
from adaptdel.training.trainer import NoisyTrainer

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
