"""All settings with their defaults: data, certification, training, calibration.

Python signatures, options of the command line and fields of YAML files take their defaults from the instances `DATA`,
`CERTIFICATION`, `METHOD`, `TRAINING` and `CALIBRATION`, and from those of `adaptdel.hyperparameters`. To change a
default, change the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import floor, nextafter
from pathlib import Path
from statistics import median
from typing import Any

from adaptdel.core.checks import check_choice, check_int, check_known_fields, check_probability, check_real
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import LengthRate
from adaptdel.hyperparameters import (
    CLASS_WEIGHTS,
    AdditiveTrainingSettings,
    LinearTrainingSettings,
    TransformerTrainingSettings,
    check_minutes,
)
from adaptdel.text.units import check_unit


@dataclass(frozen=True)
class CertificationSettings:
    """How inputs are certified; `adaptdel.SmoothedClassifier` describes and checks each field."""

    alpha: float = 0.05
    n_select: int = 1000
    n_estimate: int = 4000
    sampling: str = "adaptive"
    ops: str = "edit"
    bound: str = "tight"
    unit: str = "word"
    seed: int = 0
    threshold: float | None = None


OBJECTIVES = ("balanced", "paper", "mean")
# Settings of the search in bins, which the objective "balanced" does not use.
_BIN_SEARCH = ("threshold", "min_accuracy", "bins", "interpolate", "monotone", "per_bin", "tol")
_SELECTION = ("points", "examples", "refit")


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """How a model is calibrated. Python, the command line and the demonstration take their defaults from here.

    Attributes:
        objective: "balanced": the largest class-balanced mean radius among whole rates, with an accuracy close to that
            of the best rate that needs no calibration; "paper": in every bin the largest radius with a certified
            accuracy of ``threshold``; or "mean": in every bin the largest mean radius with a clean accuracy of
            ``min_accuracy``.
        points: for "balanced", the percentage points of accuracy that may be lost.
        examples: for "balanced", the largest number of examples that candidates are measured on.
        refit: for "balanced", whether the base classifier is trained again under every candidate: None if that takes
            seconds and the training data is given, as for a linear model.
        threshold: the share of a bin's examples that must be certified at the radius that is maximised.
        min_accuracy: the least clean accuracy for "mean": the share of right predictions, certified or not.
        bins: "auto", or the lengths at which bins start, such as [0, 137, 230, 324].
        interpolate: interpolate the kept length between the centres of bins, so that the rate has no jumps.
        monotone: fit kept lengths that do not decrease from a bin to the next.
        per_bin: the largest number of examples of a bin that are certified.
        min_count: the least number of examples in an automatic bin.
        n_select: votes that select the predicted class.
        n_estimate: votes that bound its probability.
        tol: the width of the interval at which the search for a kept length stops, in tokens.
        seed: seed of the noise and of the choice of examples.
        on: the rows of a labelled file that are used: "held-out": those that the model was not trained on; "all"; or
            "auto": the former if there are enough.
    """

    objective: str = "balanced"
    points: float = 1.0
    examples: int = 4000
    refit: bool | None = None
    threshold: float = 0.75
    min_accuracy: float | None = None
    bins: str | Sequence[float] = "auto"
    interpolate: bool = False
    monotone: bool = False
    per_bin: int = 200
    min_count: int = 50
    n_select: int = 32
    n_estimate: int = 256
    tol: float = 0.5
    seed: int = 0
    on: str = "auto"

    def __post_init__(self) -> None:
        least = nextafter(0.0, 1.0)
        checked: dict[str, Any] = {
            "threshold": check_real("threshold", self.threshold, accepted="in (0, 1]", least=least, most=1.0),
            "objective": check_choice("objective", self.objective, OBJECTIVES),
            "on": check_choice("on", self.on, ("auto", "held-out", "all")),
            "min_accuracy": _check_min_accuracy(self.min_accuracy, self.objective),
        }
        accepted = "a number of percentage points from 0 to 100"
        checked["points"] = check_real("points", self.points, accepted=accepted, least=0.0, most=100.0)
        if self.refit not in (True, False, None):
            raise ValueError(f"refit must be True, False or None, got {self.refit!r}")
        if isinstance(self.bins, str):
            check_choice("bins", self.bins, ("auto",))
        for name in ("interpolate", "monotone"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("per_bin", "examples", "min_count", "n_select", "n_estimate"):
            checked[name] = check_int(name, getattr(self, name), least=1)
        accepted = "a finite number of at least 0.001"
        checked["tol"] = check_real("tol", self.tol, accepted=accepted, least=0.001, most=1e9)
        checked["seed"] = check_int("seed", self.seed, most=2**63 - 1)
        defaults = {field.name: field.default for field in fields(self)}
        for name in _BIN_SEARCH if self.objective == "balanced" else _SELECTION:
            if checked.get(name, getattr(self, name)) != defaults[name]:
                raise ValueError(f"{name} has no meaning for the objective {self.objective!r}: leave it out")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CalibrationSettings:
        """The settings from named values, such as options of the command line."""
        check_known_fields(values, [field.name for field in fields(cls)])
        return cls(**values)


def _check_min_accuracy(value: float | None, objective: str) -> float | None:
    if objective != "mean":
        if value is not None:
            raise ValueError(f"min_accuracy must be None unless the objective is 'mean', got {value!r}")
        return None
    if value is None:
        raise ValueError("min_accuracy must be given with the objective 'mean', got None")
    return check_probability("min_accuracy", value)


@dataclass(frozen=True)
class MethodSettings:
    """The noise of a training method.

    Attributes:
        rate: the fraction of tokens that is deleted or masked; for AdaptDel the smallest fraction. Less for short
            texts: see `default_rate`.
        rates: the range of the deletion rates that AdaptDel+ trains under; wider for a smaller rate.
    """

    rate: float = 0.9
    rates: tuple[float, float] = (0.7, 0.99)


CERTIFICATION = CertificationSettings()
CALIBRATION = CalibrationSettings()
METHOD = MethodSettings()

METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+", "freelb")
UNSMOOTHED = ("nosmooth", "freelb")
EXACT = "exact"  # trains an additive classifier, whose certificates need no noise
NOT_SET = ("seed", "validation")  # of the details, which are those of the training
_KEPT = "positive numbers of tokens such as 4, 12"


def _token_count(name: str, value: float, accepted: str = f"two {_KEPT}") -> float:
    return check_real(name, value, accepted=accepted, least=0.0, most=2.0**32, open_ends=True)


ModelSettings = LinearTrainingSettings | TransformerTrainingSettings | AdditiveTrainingSettings


def model_settings(model: str, method: str = "") -> type[ModelSettings]:
    """The settings that a kind of model has besides those of every training."""
    if method == EXACT:
        return AdditiveTrainingSettings
    return LinearTrainingSettings if model == "linear" else TransformerTrainingSettings


@dataclass(frozen=True)
class TrainingSettings:
    """How `adaptdel.training.train` trains a model.

    Attributes:
        method: "nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+" or "freelb" for a smoothed classifier, or
            "exact" for an additive one.
        model: "linear", or the folder or hub name of a transformer.
        rate: the fraction of tokens that is deleted or masked; for AdaptDel the smallest fraction. None for the rate
            that suits the lengths: see `default_rate`.
        k: AdaptDel's k, the number of kept tokens of long texts; None for the one from the mean length.
        rates: the range of deletion rates that AdaptDel+ trains under; None for one around ``rate``.
        kept: the range of numbers of kept tokens that AdaptDel+ trains under, instead of ``rates``.
        validation: the fraction of the examples that is held out, or a labelled file.
        unit: what a token is: "word", "char", "byte" or "chunk:SIZE".
        seed: of the split, the noise, the order of the examples and the classification head.
        class_weight: "balanced" gives every class the same weight in the loss, however many examples it has; None
            gives every example the same.
        max_minutes: training stops after this time and keeps the best model so far.
        details: the settings of the kind of model: see `model_settings`; None for the defaults.
    """

    method: str = "adaptdel"
    model: str = "linear"
    rate: float | None = None
    k: float | None = None
    rates: tuple[float, float] | None = None
    kept: tuple[float, float] | None = None
    validation: float | str = 0.1
    unit: str = CERTIFICATION.unit
    seed: int = CERTIFICATION.seed
    class_weight: str | None = "balanced"
    max_minutes: float | None = None
    details: ModelSettings | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, (*METHODS, EXACT))
        check_int("seed", self.seed, most=2**63 - 1)
        check_unit(self.unit)
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be 'linear', a folder or a name on the hub, got {self.model!r}")
        if self.is_exact:
            self._check_exact()
        if self.is_linear and self.method == "freelb":
            raise ValueError(
                "method freelb perturbs embeddings, which the linear model does not have: give a transformer as model"
            )
        if isinstance(self.validation, (int, float)):
            check_probability("validation", self.validation)
            if self.validation >= 0.9:
                raise ValueError(f"validation must be a fraction below 0.9 or a file, got {self.validation}")
        elif not isinstance(self.validation, str) or not self.validation:
            raise ValueError(f"validation must be a fraction below 0.9 or a file, got {self.validation!r:.60}")
        if self.class_weight is not None:
            check_choice("class_weight", self.class_weight, CLASS_WEIGHTS)
        if self.max_minutes is not None:
            check_minutes(self.max_minutes)
        if self.rate is not None:
            check_probability("rate", self.rate)
        self._check_noise()
        kind = model_settings(self.model, self.method)
        if self.details is None:
            object.__setattr__(self, "details", kind())
        if not isinstance(self.details, kind):
            raise ValueError(f"details must be {kind.__name__} for model {self.model} and method {self.method}")

    def _check_exact(self) -> None:
        if not self.is_linear:
            raise ValueError(f"model must be 'linear' for method {EXACT}, which certifies sums of word scores")
        if self.max_minutes is not None:
            raise ValueError(f"max_minutes has no meaning for method {EXACT}, which trains in seconds: leave it out")
        if not self.held_out_fraction:
            raise ValueError(f"validation must be a fraction above 0 for method {EXACT}: it chooses the bound")

    def _check_noise(self) -> None:
        used = {"adaptdel": ("rate", "k"), "adaptdel+": ("rate", "k", "rates", "kept")}
        for name in ("rate", "k", "rates", "kept"):
            meant = self.method not in (*UNSMOOTHED, EXACT) if name == "rate" else name in used.get(self.method, ())
            if getattr(self, name) is not None and not meant:
                raise ValueError(f"{name} has no meaning for method {self.method}: leave it out")
        if self.k is not None:
            object.__setattr__(self, "k", _token_count("k", self.k, "a positive number of tokens"))
        if self.rates is not None and self.kept is not None:
            raise ValueError("kept takes the place of rates: give one of them")
        checks = (("rates", "rates such as 0.7, 0.99", check_probability), ("kept", _KEPT, _token_count))
        for name, example, check in checks:
            ends = getattr(self, name)
            if ends is None:
                continue
            if not isinstance(ends, (tuple, list)) or len(ends) != 2:
                raise ValueError(f"{name} must be two {example}, got {ends!r}")
            low, high = (check(name, value) for value in ends)
            if high < low:
                raise ValueError(f"{name} must rise, got {low} and {high}")
            object.__setattr__(self, name, (low, high))

    @property
    def is_linear(self) -> bool:
        """Whether the linear model is trained."""
        return self.model == "linear"

    @property
    def is_exact(self) -> bool:
        """Whether an additive classifier is trained."""
        return self.method == EXACT

    @property
    def held_out_fraction(self) -> float:
        """The fraction of the examples that is held out; 0 if ``validation`` is a file."""
        return float(self.validation) if isinstance(self.validation, (int, float)) else 0.0

    @property
    def noise(self) -> MethodSettings:
        """The settings of the noise, with the defaults filled in."""
        return MethodSettings(self.rate or METHOD.rate, self.rates or METHOD.rates)

    @property
    def linear(self) -> LinearTrainingSettings:
        """The details of a linear model."""
        assert isinstance(self.details, LinearTrainingSettings)
        return self.details

    @property
    def additive(self) -> AdditiveTrainingSettings:
        """The details of an additive classifier."""
        assert isinstance(self.details, AdditiveTrainingSettings)
        return replace(self.details, validation=self.held_out_fraction)

    @property
    def transformer(self) -> TransformerTrainingSettings:
        """The details of a transformer."""
        assert isinstance(self.details, TransformerTrainingSettings)
        return replace(self.details, seed=self.seed)

    def resolved(self, lengths: Iterable[int]) -> TrainingSettings:
        """The settings with what follows from the examples: the rate from the lengths, the epochs from the number.

        The range of rates of AdaptDel+ follows the rate: it keeps between a tenth and three times as many tokens.
        """
        counted = list(lengths)
        changed: dict[str, Any] = {}
        if not self.is_linear:
            changed["details"] = self.transformer.for_examples(len(counted))
        if self.method not in (*UNSMOOTHED, EXACT) and self.rate is None:
            changed["rate"] = default_rate(counted)
        rate = changed.get("rate", METHOD.rate)
        if self.method == "adaptdel+" and self.rates is None and self.kept is None and rate != METHOD.rate:
            changed["rates"] = (round(max(0.5, 1 - 3 * (1 - rate)), 4), round(1 - (1 - rate) / 10, 4))
        return replace(self, **changed)

    def effective(self) -> dict[str, Any]:
        """All fields that the result depends on, with the defaults filled in; two trainings are compared by it."""
        chosen: dict[str, Any] = {"method": self.method, "model": self.model}
        if self.method not in (*UNSMOOTHED, EXACT):
            chosen["rate"] = self.noise.rate
        if self.k is not None:
            chosen["k"] = self.k
        if self.method == "adaptdel+":
            chosen |= {"rates": list(self.noise.rates)} if self.kept is None else {"kept": list(self.kept)}
        validation = self.validation if isinstance(self.validation, (int, float)) else Path(self.validation).name
        chosen |= {"validation": validation, "unit": self.unit, "seed": self.seed}
        chosen["class_weight"] = self.class_weight
        if self.max_minutes is not None:
            chosen["max_minutes"] = self.max_minutes
        details = self.additive if self.is_exact else self.linear if self.is_linear else self.transformer
        return {**asdict(details), **chosen}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingSettings:
        """Settings from named values, those of the kind of model among them; an unknown name is an error.

        >>> TrainingSettings.from_dict({"method": "cert-ed", "bits": 12}).linear.bits
        12
        >>> TrainingSettings.from_dict({"metod": "adaptdel"})
        Traceback (most recent call last):
        ValueError: 'metod' is not a field: did you mean 'method'?
        """
        kind = model_settings(str(values.get("model", "linear")), str(values.get("method", "")))
        names = [field.name for field in fields(kind) if field.name not in NOT_SET]
        own = [field.name for field in fields(cls) if field.name not in ("details", *names)]
        check_known_fields(values, [*own, *names])
        if values.get("class_weight") == "none":
            values = {**values, "class_weight": None}
        details = kind(**{name: values[name] for name in names if name in values})
        chosen = {name: values[name] for name in own if name in values}
        if isinstance(details, AdditiveTrainingSettings):
            chosen.setdefault("validation", details.validation)
        return cls(**chosen, details=details)


TRAINING = TrainingSettings()
# The paper's table of parameters and its Section 5; FreeLB's settings are not printed there.
PAPER_TRAINING: dict[str, Any] = {
    **{"model": "roberta-base", "rate": 0.9, "validation": 0.1, "class_weight": "none"},
    **{"epochs": 200, "warmup": 10.0, "patience": 25, "batch_size": 32},
    **{"learning_rate": 2e-5, "weight_decay": 1e-6, "clip": 1.0, "precision": "float32", "dtype": "float32"},
    "max_length": 0,  # not printed
}
PAPER_RATES = (0.7, 0.99)  # of AdaptDel+ in training
# Where the authors' code, Dovermore/nlp-smoothing-software, differs from the paper.
RELEASED_TRAINING = {
    "weight_decay": 0.01,
    "max_length": 256,
    "patience": "25, of the accuracy of votes, every 5th epoch",
}


def paper_training(method: str) -> dict[str, Any]:
    """The fields of `TrainingSettings` as the paper prints them, for a method.

    >>> TrainingSettings.from_dict(paper_training("adaptdel+")).resolved([230] * 22_500).transformer.epochs
    200
    """
    fields_of_noise = {"rates": PAPER_RATES} if method == "adaptdel+" else {}
    without = ("rate",) if method in UNSMOOTHED else ()
    values = {name: value for name, value in PAPER_TRAINING.items() if name not in without}
    return {"method": method, **values, **fields_of_noise}


# The paper's table of AdaptDel+'s parameters, by data set; the last bin has no upper end.
PAPER_CALIBRATION: dict[str, dict[str, Any]] = {
    "yelp": {
        "bins": [0, 28, 82, 135, 189, 243, 296, 350, 404, 457, 511, 565, 619, 672, 726, 780, 887],
        "threshold": 0.40,
        "per_bin": 200,
    },
    "imdb": {
        "bins": [0, 72, 133, 194, 256, 318, 379, 440, 502, 564, 625, 686, 748, 810, 871, 932],
        "threshold": 0.75,
        "per_bin": 200,
    },
    "spamassassin": {"bins": [0, 137, 230, 324], "threshold": 0.75, "per_bin": 50},
    "lun": {"bins": [0, 85, 150, 216, 282, 347], "threshold": 0.75, "per_bin": 200},
}
PAPER_ALPHA = 0.05
PAPER_PRESETS = ("paper", *(f"paper:{name}" for name in PAPER_CALIBRATION))


def paper_calibration(preset: str = "paper") -> dict[str, Any]:
    """The fields of `CalibrationSettings` as the paper prints them: "paper", or for a data set such as "paper:imdb".

    The paper calibrates on the training set. "paper" has automatic bins, and what is printed for most data sets.

    >>> paper_calibration("paper:spamassassin")["bins"]
    [0, 137, 230, 324]
    """
    check_choice("settings", preset, PAPER_PRESETS)
    shared = {"objective": "paper", "threshold": 0.75, "per_bin": 200, "n_select": 32, "n_estimate": 256, "on": "all"}
    return shared | PAPER_CALIBRATION.get(preset.partition(":")[2], {})


def paper_certification(classes: int) -> dict[str, Any]:
    """How the paper certifies a model with so many classes.

    The paper spends alpha / 2 on each of its bounds, for two classes as well. There the two bounds are those of one
    probability at alpha / 2, so that alpha itself is halved.

    >>> paper_certification(5)["alpha"], paper_certification(2)["alpha"]
    (0.05, 0.025)
    """
    alpha = PAPER_ALPHA / 2 if classes == 2 else PAPER_ALPHA
    return {"alpha": alpha, "n_select": 1000, "n_estimate": 4000, "sampling": "fixed", "bound": "paper"}


DEFAULT_K = 23


KEPT = 4  # tokens of a text of median length that the default rate keeps, at least
LEAST_RATE = 0.6  # the smallest default rate: below 1/2 no radius above 0 can be certified
SMALL_K = 10  # the paper rounds k down to an integer; a smaller k keeps a decimal


def default_rate(lengths: Iterable[int]) -> float:
    """The deletion rate if none is given: 0.9, and less for texts that are so short that few tokens would be left.

    At least `KEPT` tokens of a text of median length are kept, as long as the rate is at least `LEAST_RATE`. Measured
    on the first 15 words of mails of which 11% are spam: 0.9 keeps 1.5 words and finds 7% of the spam, this rate keeps
    4 words and finds 43%; see docs/how-to/choose-a-rate.md.

    >>> default_rate([230]), default_rate([30]), default_rate([15]), default_rate([5])
    (0.9, 0.86, 0.73, 0.6)
    """
    counted = [check_int("lengths", length) for length in lengths]
    if not counted:
        raise ValueError("lengths must hold at least one length, got none")
    middle = max(1.0, median(counted))
    return min(METHOD.rate, max(LEAST_RATE, floor(100 * (1 - KEPT / middle)) / 100))


def adaptdel_rate(lengths: Iterable[int], rate: float) -> LengthRate:
    """AdaptDel's rate, with k from the lengths as in the paper; a k below `SMALL_K` is not rounded to an integer.

    Of texts of 15 words at 0.9, the paper's k = 1 would keep one word instead of one and a half.

    >>> adaptdel_rate([220, 240], 0.9), adaptdel_rate([15], 0.9)
    (LengthRate(p_min=0.9, k=23, p_max=1.0), LengthRate(p_min=0.9, k=1.5, p_max=1.0))
    """
    counted = list(lengths)
    paper = LengthRate.from_lengths(counted, rate)
    exact = (1 - rate) * sum(counted) / len(counted)
    return paper if exact >= SMALL_K else LengthRate(rate, max(1.0, floor(10 * exact + 1e-6) / 10))


def default_noise(lengths: Iterable[int] | None = None) -> Deletion:
    """The noise of `SmoothedClassifier` and `pipeline` if none is given: AdaptDel at the default rate.

    The rate and the parameter k come from the lengths of the training inputs: see `default_rate` and `adaptdel_rate`.
    Where no lengths are known, as for a model that is only called, the rate is 0.9 and k is `DEFAULT_K`: the paper's k
    for IMDB and SpamAssassin, whose texts have about 230 words on average.

    >>> default_noise()
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    if lengths is None:
        return Deletion(LengthRate(METHOD.rate, DEFAULT_K))
    counted = list(lengths)
    return Deletion(adaptdel_rate(counted, default_rate(counted)))
