"""What a training is asked to do: methods of the paper, schedules and settings, checked, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from adaptdel.core.checks import check_choice, check_int, check_probability, check_real
from adaptdel.core.noise import Deletion, Masking, Noise, NoNoise, RandomDeletion, RandomLength
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.units import check_unit

METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+", "freelb")
UNSMOOTHED = ("nosmooth", "freelb")


@dataclass(frozen=True)
class Noises:
    """The noise of training, and that of the smoothed model."""

    training: Noise
    smoothing: Noise


def method_noises(
    method: str,
    rate: float,
    lengths: Sequence[int],
    rates: tuple[float, float] = (0.7, 0.99),
    kept: tuple[float, float] | None = None,
) -> Noises:
    """The noises of a method; k of AdaptDel comes from the training lengths.

    AdaptDel+ trains with a rate drawn from ``rates`` for each copy, or with one that keeps a number of tokens drawn
    from ``kept``. Until it is calibrated it certifies as AdaptDel.

    >>> method_noises("adaptdel", 0.9, [220, 240]).smoothing
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    check_choice("method", method, METHODS)
    if method in UNSMOOTHED:
        return Noises(NoNoise(), NoNoise())
    if method == "ranmask":
        return Noises(Masking(rate), Masking(rate))
    if method == "cert-ed":
        return Noises(Deletion(FixedRate(rate)), Deletion(FixedRate(rate)))
    adaptive = Deletion(LengthRate.from_lengths(lengths, rate))
    if method == "adaptdel":
        return Noises(adaptive, adaptive)
    return Noises(RandomDeletion(*rates) if kept is None else RandomLength(*kept), adaptive)


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


LINEAR: dict[str, Any] = {"copies": 8, "l2": 2e-6, "iterations": 60, "features": "hash", "bits": 18}
NOISY = ("rate", "rates", "kept")
KEPT = "positive numbers of tokens such as 4, 12"
ADVERSARIAL = ("adv_steps", "adv_lr", "adv_init", "adv_norm")
DTYPES = ("float32", "bfloat16", "int8")
SCHEDULE: dict[str, Any] = {field.name: field.default for field in fields(Schedule) if field.name != "seed"}


@dataclass(frozen=True)
class Settings:
    """How a model is trained. A field that is None takes the default of its kind of model.

    Attributes:
        method: one of nosmooth, ranmask, cert-ed, adaptdel, adaptdel+, freelb.
        model: "linear", or the folder or hub name of a transformer.
        rate: the share of tokens that is deleted or masked; for AdaptDel its least. None means 0.9.
        rates: the range of rates that AdaptDel+ trains under. None means (0.7, 0.99).
        kept: the range of numbers of kept tokens that AdaptDel+ trains under instead.
        validation: the share that is held out, or a file of its own.
        unit: what one token is.
        seed: of the split, the noise, the order and the model's head.
        copies: (linear) noisy copies of each example.
        l2: (linear) penalty on squared weights.
        iterations: (linear) the most steps of the optimiser.
        features: (linear) "hash" or "vocabulary".
        bits: (linear) the logarithm of the number of hashed columns.
        learning_rate: (transformers) of AdamW; so are the next ones, see `Schedule`.
        weight_decay: of AdamW.
        clip: the largest norm of a gradient.
        batch_size: examples a step.
        epochs: the most epochs.
        warmup: epochs until the learning rate is reached.
        patience: epochs without a better validation loss before training ends.
        precision: of matrix products in training, "float32" or "bfloat16".
        dtype: the precision in which the model is asked, once it is trained.
        adv_steps: (freelb) ascent steps.
        adv_lr: (freelb) their size.
        adv_init: (freelb) the size of the first perturbation.
        adv_norm: (freelb) the largest norm of a perturbation, 0 for any.
    """

    method: str = "adaptdel"
    model: str = "linear"
    rate: float | None = None
    rates: tuple[float, float] | None = None
    kept: tuple[float, float] | None = None
    validation: float | str = 0.1
    unit: str = "word"
    seed: int = 0
    copies: int | None = None
    l2: float | None = None
    iterations: int | None = None
    features: str | None = None
    bits: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    warmup: float | None = None
    patience: int | None = None
    precision: str | None = None
    dtype: str | None = None
    adv_steps: int | None = None
    adv_lr: float | None = None
    adv_init: float | None = None
    adv_norm: float | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_int("seed", self.seed, most=2**63 - 1)
        check_unit(self.unit)
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be 'linear', a folder or a name on the hub, got {self.model!r}")
        if isinstance(self.validation, (int, float)):
            check_probability("validation", self.validation)
            if self.validation >= 0.9:
                raise ValueError(f"validation must be a share below 0.9 or a file, got {self.validation}")
        elif not isinstance(self.validation, str) or not self.validation:
            raise ValueError(f"validation must be a share below 0.9 or a file, got {self.validation!r:.60}")
        self._check_use()
        if self.rate is not None:
            check_probability("rate", self.rate)
        if self.dtype is not None:
            check_choice("dtype", self.dtype, DTYPES)
        self._check_ranges()
        _ = self.schedule  # raises if a field is wrong

    def _check_use(self) -> None:
        """No field is accepted and ignored."""
        if self.linear and self.method == "freelb":
            raise ValueError(
                "method freelb perturbs embeddings, which the linear model does not have: give a transformer as model"
            )
        unused = [*SCHEDULE, "dtype"] if self.linear else [*LINEAR]
        unused += [] if self.method == "freelb" else ADVERSARIAL
        unused += ["rates", "kept"] if self.method != "adaptdel+" else []
        unused += ["rate"] if self.method in UNSMOOTHED else []
        for name in unused:
            if getattr(self, name) is not None:
                kind = f"method {self.method}" if name in (*ADVERSARIAL, *NOISY) else f"model {self.model}"
                raise ValueError(f"{name} has no meaning for {kind}: leave it out")

    def _check_ranges(self) -> None:
        if self.rates is not None and self.kept is not None:
            raise ValueError("kept takes the place of rates: give one of them")
        for name, example, check in (("rates", "rates such as 0.7, 0.99", check_probability), ("kept", KEPT, _tokens)):
            given = getattr(self, name)
            if given is None:
                continue
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise ValueError(f"{name} must be two {example}, got {given!r}")
            low, high = (check(name, value) for value in given)
            if high < low:
                raise ValueError(f"{name} must rise, got {low} and {high}")
            object.__setattr__(self, name, (low, high))

    @property
    def linear(self) -> bool:
        """Whether the embedded linear model is trained."""
        return self.model == "linear"

    @property
    def share(self) -> float:
        """The share that is held out; 0 if validation has a file of its own."""
        return float(self.validation) if isinstance(self.validation, (int, float)) else 0.0

    @property
    def schedule(self) -> Schedule:
        """The part that concerns transformers."""
        given = {name: getattr(self, name) for name in SCHEDULE if getattr(self, name) is not None}
        return Schedule(**given, seed=self.seed)

    def effective(self) -> dict[str, Any]:
        """All fields that matter, with their defaults filled in: what tells two trainings apart."""
        own = LINEAR if self.linear else {**asdict(self.schedule), "dtype": "float32"}
        own = {name: value for name, value in own.items() if name != "seed"}
        if self.method != "freelb":
            own = {name: value for name, value in own.items() if name not in ADVERSARIAL}
        values = {name: own[name] if getattr(self, name) is None else getattr(self, name) for name in own}
        shown: dict[str, Any] = {"method": self.method, "model": self.model}
        if self.method not in UNSMOOTHED:
            shown["rate"] = 0.9 if self.rate is None else self.rate
        if self.method == "adaptdel+" and self.kept is None:
            shown["rates"] = list(self.rates or (0.7, 0.99))
        elif self.method == "adaptdel+":
            shown["kept"] = list(self.kept or ())
        validation = self.validation if isinstance(self.validation, (int, float)) else Path(self.validation).name
        return {**shown, "validation": validation, "unit": self.unit, "seed": self.seed, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Settings out of named values; a misspelt name is an error that suggests the nearest.

        >>> Settings.from_dict({"metod": "adaptdel"})
        Traceback (most recent call last):
        ValueError: 'metod' is not a field: did you mean 'method'?
        """
        known = [field.name for field in fields(cls)]
        check_names(values, known)
        return cls(**values)


def _tokens(name: str, value: float) -> float:
    """A number of tokens."""
    number = check_real(name, value, accepted=f"two {KEPT}", least=0.0, most=2.0**32)
    if number == 0:
        raise ValueError(f"{name} must be two {KEPT}, got {value}")
    return number


def check_names(values: Mapping[str, Any], known: list[str]) -> None:
    """Raise for the first name that is not known, with the nearest that is."""
    for name in values:
        if name not in known:
            near = get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(known)}"
            raise ValueError(f"{name!r:.60} is not a field: {hint}")
