"""How long and how fast a transformer is trained: the paper's settings, all adjustable."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from adaptdel.checks import check_choice, check_int, check_real

POSITIVE = ("learning_rate", "clip")
AT_LEAST_ZERO = ("weight_decay", "adv_lr", "adv_init", "adv_norm")
COUNTS = ("batch_size", "epochs", "patience", "adv_steps")
PRECISIONS = ("float32", "bfloat16")
SEEDS = 2**32  # numpy's old generator, which the Trainer seeds too, takes no more


@dataclass(frozen=True)
class Schedule:
    """The settings of training; the defaults are the paper's (its Table of parameter settings).

    The paper does not say how it set FreeLB. The authors of FreeLB tuned it for every task: in the scripts that they
    published, 2 or 3 steps of length 0.04 to 0.2 (0.1 for SST-2, the task most like ours) from a start of 0.08 to 1.0.
    For MNLI and QNLI they start at twice the length of a step and do not project; with their step for SST-2 that makes
    the defaults here. The norm of a step is that of a whole text, whatever its length.

    Args:
        learning_rate: of AdamW, after the warm-up; it falls to 0 in a straight line.
        weight_decay: of AdamW; biases and norms are not decayed.
        clip: the largest norm of a gradient.
        batch_size: how many examples make a step.
        epochs: the most epochs.
        warmup: epochs over which the learning rate rises from 0; None is a 20th of ``epochs`` (the paper's 10 of 200).
        patience: training stops after so many epochs without a smaller validation loss.
        precision: "float32", or "bfloat16" for matrix products in half the bits, while weights and optimiser keep all
            of them: about 1.7 times as fast on a processor that has such products.
        seed: of the head, the order, the noise and the dropout.
        adv_steps: FreeLB's K, how many forward and backward passes share a step of training.
        adv_lr: how far a perturbation moves between two of them.
        adv_init: the size of the random perturbation of the first; 0 begins at the text itself.
        adv_norm: the largest norm of a perturbation; 0 sets no limit.

    >>> Schedule().warmup_epochs, Schedule(epochs=30).warmup_epochs, Schedule(epochs=30, warmup=2).warmup_epochs
    (10.0, 1.5, 2.0)
    """

    learning_rate: float = 2e-5
    weight_decay: float = 1e-6
    clip: float = 1.0
    batch_size: int = 32
    epochs: int = 200
    warmup: float | None = None
    patience: int = 25
    precision: str = "float32"
    seed: int = 0
    adv_steps: int = 3
    adv_lr: float = 0.1
    adv_init: float = 0.2
    adv_norm: float = 0.0

    def __post_init__(self) -> None:
        checked: dict[str, float | int] = {name: check_int(name, getattr(self, name), least=1) for name in COUNTS}
        check_choice("precision", self.precision, PRECISIONS)
        checked["seed"] = check_int("seed", self.seed, most=SEEDS - 1)
        for name in POSITIVE:
            checked[name] = _number(name, getattr(self, name), "a positive number", open_ends=True)
        for name in AT_LEAST_ZERO:
            checked[name] = _number(name, getattr(self, name), "a number of at least 0")
        if self.warmup is not None:
            accepted = f"a number of epochs from 0 to {self.epochs}"
            checked["warmup"] = check_real("warmup", self.warmup, accepted=accepted, least=0.0, most=self.epochs)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def warmup_epochs(self) -> float:
        """The epochs of warm-up, the default worked out."""
        return self.epochs / 20 if self.warmup is None else self.warmup


def _number(name: str, value: float, accepted: str, *, open_ends: bool = False) -> float:
    number = check_real(name, value, accepted=accepted, least=0.0, most=inf, open_ends=open_ends)
    if number == inf:
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number
