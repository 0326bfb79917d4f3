"""What a training is asked to do: the fields of the command line, of a YAML file and of Python, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from adaptdel.checks import check_choice, check_int, check_probability, check_real
from adaptdel.training.methods import METHODS, UNSMOOTHED
from adaptdel.training.schedule import Schedule
from adaptdel.units import check_unit

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
