"""All settings with their defaults: certification, training, calibration, attacks, servers; the default noise.

Python signatures, options of the command line and fields of YAML files take their defaults from the instances
`CERTIFICATION`, `TRAINING`, `LINEAR`, `ADDITIVE`, `FILTER`, `TRANSFORMER`, `CALIBRATION`, `ATTACK`, `AUDIT` and
`SERVE`. To change a default, change the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import floor, inf, nextafter
from pathlib import Path
from statistics import median
from typing import Any

from adaptdel.core.checks import check_alpha, check_choice, check_int, check_known_fields, check_probability, check_real
from adaptdel.core.noise import Deletion, noise_from_dict
from adaptdel.core.rates import LengthRate
from adaptdel.text.units import check_unit


def _check(settings: Any, names: str, check: Callable[[str, Any], Any]) -> None:
    """Check fields of settings, and store what the check returns."""
    for name in names.split():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))


def _count(least: int = 1, most: int = 2**63 - 1) -> Callable[[str, Any], int]:
    return lambda name, value: check_int(name, value, least=least, most=most)


def _choice(*values: str) -> Callable[[str, Any], str]:
    return lambda name, value: check_choice(name, value, values)


def _number(
    accepted: str, least: float = 0.0, most: float = 1e300, *, open_ends: bool = False
) -> Callable[[str, Any], float]:
    return lambda name, value: check_real(name, value, accepted=accepted, least=least, most=most, open_ends=open_ends)


def _optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


_POSITIVE = _number("a positive number", open_ends=True)
_NOT_NEGATIVE = _number("a finite number of at least 0")
_POINTS = _number("a number of percentage points from 0 to 100", most=100.0)
_TOKENS = _number("a positive number of tokens", most=2.0**32, open_ends=True)


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


CERTIFICATION = CertificationSettings()

LINEAR_LOSSES = ("auto", "votes", "copies")
LARGEST_BITS = 28  # 2**28 hashed columns: a gigabyte per score
LARGEST_NGRAM = 64


@dataclass(frozen=True)
class LinearTrainingSettings:
    """How the linear model is trained.

    Attributes:
        loss: "votes" (of the vote on each example, in closed form), "copies" (of single noisy copies) or "auto":
            "votes" for two classes, "copies" for more.
        copies: noisy copies of each example; for the loss "votes", rates that are drawn if the noise has random ones.
        l2: penalty on squared weights; see `adaptdel.classifiers.linear.LinearClassifier`.
        iterations: the largest number of iterations of the optimiser.
        bits: the base-2 logarithm of the number of hashed columns.
        ngram: for the units char and byte, the number of neighbouring tokens that are a feature together (k-mers).
    """

    loss: str = "auto"
    copies: int = 8
    l2: float = 2e-6
    iterations: int = 60
    bits: int = 18
    ngram: int = 1

    def __post_init__(self) -> None:
        _check(self, "loss", _choice(*LINEAR_LOSSES))
        _check(self, "copies iterations", _count())
        _check(self, "l2", _NOT_NEGATIVE)
        _check(self, "bits", _count(1, LARGEST_BITS))
        _check(self, "ngram", _count(1, LARGEST_NGRAM))


@dataclass(frozen=True)
class AdditiveTrainingSettings:
    """How an additive classifier is trained: by the loss of votes, with clipped token scores.

    Attributes:
        kept: tokens that the copies of an example keep; 0 for a tenth of the median length, at least 2.
        l2: penalty on squared weights; see `adaptdel.classifiers.linear.LinearClassifier`.
        iterations: the largest number of iterations of the optimiser without a clip; a fifth of it for each clip.
        levels: the number of clips, each a fifth smaller than the one before.
        min_count: the smallest number of occurrences of a feature in the training set.
        ngram: for the units char and byte, the number of neighbouring tokens that have a score together (k-mers).
        vectors: a safetensors file of word vectors, see `adaptdel.classifiers.bounded.WordVectors`; "" for none.
        validation: the fraction of the examples that is held out to choose the clip.
        max_accuracy_loss: percentage points of held-out balanced accuracy that the choice of the clip may give up for a
            larger radius.
    """

    kept: int = 0
    l2: float = 5e-7
    iterations: int = 60
    levels: int = 14
    min_count: int = 2
    ngram: int = 1
    vectors: str = ""
    validation: float = 0.2
    max_accuracy_loss: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "kept", _count(0))
        _check(self, "iterations levels min_count ngram", _count())
        _check(self, "l2", _NOT_NEGATIVE)
        _check(self, "validation", _number("in (0, 1)", most=1.0, open_ends=True))
        _check(self, "max_accuracy_loss", _POINTS)


GOALS = ("clean", "edits", "padding", "both")
PARTS = ("sum", "segment", "both")


@dataclass(frozen=True)
class FilterSettings:
    """How the filter of a protected class is chosen, see `adaptdel.training.choice`.

    Attributes:
        goal: the detection to maximise: "clean", after "edits", with "padding", or "both", the mean of the last two
            and of both at once.
        max_detection_loss: percentage points of clean detection that the choice may give up for the goal.
        parts: what flags a text, the "sum" of its scores, its best "segment", or "both" (either).
    """

    goal: str = "both"
    max_detection_loss: float = 2.0
    parts: str = "both"

    def __post_init__(self) -> None:
        _check(self, "goal", _choice(*GOALS))
        _check(self, "max_detection_loss", _POINTS)
        _check(self, "parts", _choice(*PARTS))


DTYPES = ("float32", "tf32", "bfloat16", "int8")
DTYPE = "float32"  # the precision of a transformer that classifies
CLASS_WEIGHTS = ("balanced",)
PRECISIONS = ("float32", "tf32", "bfloat16")
PAPER_EPOCHS = 200
STEPS, LEAST_EPOCHS = 2000, 3  # of a training whose epochs are not given
SEEDS = 2**32  # NumPy's legacy generator, which the Trainer also seeds, accepts smaller seeds only


@dataclass(frozen=True)
class TransformerTrainingSettings:
    """How a transformer is trained, and how it classifies after that.

    The defaults are those of the paper's table of hyperparameters, but for the epochs and the patience, which follow
    the number of examples unless they are given: the paper has 200 and 25.

    The paper does not report its FreeLB settings. The defaults are those that the authors of FreeLB published for SST-2
    and MNLI: a step size of 0.1, twice that to start with, no projection.

    Attributes:
        learning_rate: of AdamW after the warm-up; it then decays linearly to 0.
        weight_decay: of AdamW; biases and norms are not decayed.
        clip: the largest gradient norm.
        batch_size: examples per step.
        batches: of examples whose copies have a similar "length", which is faster, or "shuffled", as in the paper.
        epochs: the largest number of epochs; 0 for as many as make about `STEPS` steps.
        warmup: epochs in which the learning rate rises from 0; None is a 20th of ``epochs`` (the paper's 10 of 200).
        patience: training stops after this number of epochs without a smaller validation loss; 0 for an eighth of
            ``epochs``.
        precision: of matrix products, "float32", "tf32" (TensorFloat-32, on a GPU) or "bfloat16"; weights and optimiser
            state stay in float32. bfloat16 is faster on processors that support it.
        compile: whether torch compiles the model to train it.
        seed: of the classification head, the order of the examples, the noise and the dropout.
        adv_steps: FreeLB's K: forward and backward passes per step.
        adv_lr: FreeLB's step size of the perturbation.
        adv_init: FreeLB's size of the random initial perturbation; 0 starts at the text itself.
        adv_norm: FreeLB's largest norm of a perturbation; 0 sets no limit.
        dtype: the precision in which the trained transformer classifies: "float32", "tf32", "bfloat16" or "int8".
        max_length: the largest number of ids of a copy, the rest of which is cut off; 0 for what the model takes.

    >>> settings = TransformerTrainingSettings().for_examples(25_000)
    >>> settings.epochs, settings.patience, settings.warmup_epochs
    (3, 2, 0.15)
    >>> TransformerTrainingSettings(epochs=200).for_examples(25_000).patience
    25
    """

    learning_rate: float = 2e-5
    weight_decay: float = 1e-6
    clip: float = 1.0
    batch_size: int = 32
    batches: str = "length"
    epochs: int = 0
    warmup: float | None = None
    patience: int = 0
    precision: str = "float32"
    compile: bool = False
    seed: int = 0
    adv_steps: int = 3
    adv_lr: float = 0.1
    adv_init: float = 0.2
    adv_norm: float = 0.0
    dtype: str = DTYPE
    max_length: int = 0

    def __post_init__(self) -> None:
        _check(self, "batch_size adv_steps", _count())
        _check(self, "epochs patience max_length", _count(0))
        _check(self, "batches", _choice("length", "shuffled"))
        _check(self, "precision", _choice(*PRECISIONS))
        _check(self, "dtype", _choice(*DTYPES))
        if not isinstance(self.compile, bool):
            raise ValueError(f"compile must be True or False, got {self.compile!r}")
        _check(self, "seed", _count(0, SEEDS - 1))
        _check(self, "learning_rate clip", _POSITIVE)
        _check(self, "weight_decay adv_lr adv_init adv_norm", _NOT_NEGATIVE)
        most = float(self.epochs or inf)
        _check(self, "warmup", _optional(_number(f"a number of epochs from 0 to {most:g}", most=most)))

    def for_examples(self, count: int) -> TransformerTrainingSettings:
        """The settings with the epochs and the patience that suit the number of examples, where none were given."""
        epochs = self.epochs or min(PAPER_EPOCHS, max(LEAST_EPOCHS, round(STEPS / -(-count // self.batch_size))))
        return replace(self, epochs=epochs, patience=self.patience or max(2, epochs // 8))

    @property
    def warmup_epochs(self) -> float:
        """The number of warm-up epochs, with the default filled in."""
        return (self.epochs or PAPER_EPOCHS) / 20 if self.warmup is None else self.warmup


RATE = 0.9  # the fraction of tokens that is removed; less for short texts: see `default_rate`
RATES = (0.7, 0.99)  # the range of rates that AdaptDel+ trains under, at the default rate
OWN = "own"  # trains under a registered noise
METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+", "freelb")
UNSMOOTHED = ("nosmooth", "freelb")
EXACT = "exact"  # trains an additive classifier, whose certificates need no noise
WITHOUT_RATE = (*UNSMOOTHED, OWN, EXACT)
NOT_SET = ("seed", "validation")  # of the details, which are those of the training
ModelSettings = LinearTrainingSettings | TransformerTrainingSettings | AdditiveTrainingSettings


def model_settings(model: str, method: str = "") -> type[ModelSettings]:
    """The settings that a kind of model has besides those of every training."""
    if method == EXACT:
        return AdditiveTrainingSettings
    return LinearTrainingSettings if model == "linear" else TransformerTrainingSettings


def _interval(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers such as 0.7, 0.99, got {value!r:.60}")
    low, high = (check_probability(name, end) for end in value)
    if high < low:
        raise ValueError(f"{name} must rise, got {low} and {high}")
    return low, high


@dataclass(frozen=True)
class TrainingSettings:
    """How `adaptdel.training.train` trains a model.

    Attributes:
        method: "nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+" or "freelb" for a smoothed classifier, or
            "exact" for an additive one; "own" for a smoothed classifier under a registered noise.
        noise: for "own", the noise as a dictionary, such as {"kind": "my_noise", "width": 5}.
        model: "linear", or the folder or hub name of a transformer.
        rate: the fraction of tokens that is deleted or masked; for AdaptDel the smallest fraction. None for the rate
            that suits the lengths: see `default_rate`.
        k: AdaptDel's k, the number of kept tokens of long texts; None for the one from the mean length.
        rates: the range of deletion rates that AdaptDel+ trains under; None for one around ``rate``.
        validation: the fraction of the examples that is held out, or a labelled file.
        unit: what a token is: "word", "char", "byte" or "chunk:SIZE".
        seed: of the split, the noise, the order of the examples and the classification head.
        class_weight: "balanced" gives every class the same weight in the loss, however many examples it has; None
            gives every example the same.
        details: the settings of the kind of model: see `model_settings`; None for the defaults.
    """

    method: str = "adaptdel"
    model: str = "linear"
    rate: float | None = None
    noise: Mapping[str, Any] | None = None
    k: float | None = None
    rates: tuple[float, float] | None = None
    validation: float | str = 0.1
    unit: str = CERTIFICATION.unit
    seed: int = CERTIFICATION.seed
    class_weight: str | None = "balanced"
    details: ModelSettings | None = None

    def __post_init__(self) -> None:
        _check(self, "method", _choice(*METHODS, OWN, EXACT))
        _check(self, "seed", _count(0))
        check_unit(self.unit)
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be 'linear', a folder or a name on the hub, got {self.model!r}")
        if self.is_linear and self.method == "freelb":
            raise ValueError(
                "method freelb perturbs embeddings, which the linear model does not have: give a transformer as model"
            )
        is_fraction = isinstance(self.validation, (int, float)) and 0 <= self.validation < 0.9
        if not is_fraction and not (isinstance(self.validation, str) and self.validation):
            raise ValueError(f"validation must be a fraction below 0.9 or a file, got {self.validation!r:.60}")
        _check(self, "class_weight", _optional(_choice(*CLASS_WEIGHTS)))
        _check(self, "rate", _optional(check_probability))
        _check(self, "k", _optional(_TOKENS))
        _check(self, "rates", _optional(_interval))
        self._check_method()
        kind = model_settings(self.model, self.method)
        if self.details is None:
            object.__setattr__(self, "details", kind())
        if not isinstance(self.details, kind):
            raise ValueError(f"details must be {kind.__name__} for model {self.model} and method {self.method}")

    def _check_method(self) -> None:
        """Raise for settings that have no meaning for the method."""
        used = {"adaptdel": ("rate", "k"), "adaptdel+": ("rate", "k", "rates")}
        used |= {**dict.fromkeys(WITHOUT_RATE, ()), OWN: ("noise",)}
        for name in ("rate", "noise", "k", "rates"):
            if getattr(self, name) is not None and name not in used.get(self.method, ("rate",)):
                raise ValueError(f"{name} has no meaning for method {self.method}: leave it out")
        if self.method == OWN:
            if self.noise is None:
                raise ValueError(f"noise must be given for method {OWN}, such as {{'kind': 'my_noise', 'width': 5}}")
            object.__setattr__(self, "noise", noise_from_dict(self.noise).to_dict())
        if not self.is_exact:
            return
        if not self.is_linear:
            raise ValueError(f"model must be 'linear' for method {EXACT}, which certifies sums of word scores")
        if not self.held_out_fraction:
            raise ValueError(f"validation must be a fraction above 0 for method {EXACT}: it chooses the bound")

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
        if self.method not in WITHOUT_RATE and self.rate is None:
            changed["rate"] = default_rate(counted)
        rate = changed.get("rate", RATE)
        if self.method == "adaptdel+" and self.rates is None and rate != RATE:
            changed["rates"] = (round(max(0.5, 1 - 3 * (1 - rate)), 4), round(1 - (1 - rate) / 10, 4))
        return replace(self, **changed)

    def chosen(self, used: TrainingSettings) -> str:
        """A sentence on what `resolved` chose, where these settings leave it open; "" if it chose nothing.

        >>> TrainingSettings().chosen(TrainingSettings().resolved([15]))
        'rate=0.73: by the number and lengths of the examples; --settings paper takes what the paper prints'
        """
        own, new = self.effective(), used.effective()
        names = [name for name in ("rate", "rates", "epochs", "patience") if new.get(name) != own.get(name)]
        values = ", ".join(f"{name}={new[name]}" for name in names)
        reason = "by the number and lengths of the examples; --settings paper takes what the paper prints"
        return f"{values}: {reason}" if names else ""

    def effective(self) -> dict[str, Any]:
        """All fields that the result depends on, with the defaults filled in; two trainings are compared by it."""
        chosen: dict[str, Any] = {"method": self.method, "model": self.model}
        if self.method not in WITHOUT_RATE:
            chosen["rate"] = self.rate or RATE
        chosen |= {name: value for name in ("k", "noise") if (value := getattr(self, name)) is not None}
        if self.method == "adaptdel+":
            chosen["rates"] = list(self.rates or RATES)
        validation = self.validation if isinstance(self.validation, (int, float)) else Path(self.validation).name
        chosen |= {"validation": validation, "unit": self.unit, "seed": self.seed}
        chosen["class_weight"] = self.class_weight
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
        own = [field.name for field in fields(cls) if field.name != "details"]
        check_known_fields(values, [*own, *names])
        if values.get("class_weight") == "none":
            values = {**values, "class_weight": None}
        details = kind(**{name: values[name] for name in names if name in values})
        chosen = {name: values[name] for name in own if name in values}
        if isinstance(details, AdditiveTrainingSettings):
            chosen.setdefault("validation", details.validation)
        return cls(**chosen, details=details)


LINEAR = LinearTrainingSettings()
ADDITIVE = AdditiveTrainingSettings()
FILTER = FilterSettings()
TRANSFORMER = TransformerTrainingSettings()
TRAINING = TrainingSettings()

OBJECTIVES = ("balanced", "paper")
# Settings of the search in bins, which the objective "balanced" does not use.
_BIN_SEARCH = ("threshold", "bins", "per_bin", "tol")
_SELECTION = ("points", "examples")


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """How a model is calibrated. Python, the command line and the demonstration take their defaults from here.

    Attributes:
        objective: "balanced": the largest class-balanced mean radius among whole rates, with an accuracy close to that
            of the best rate that needs no calibration; or "paper": in every bin the largest radius with a certified
            accuracy of ``threshold``.
        points: for "balanced", the percentage points of accuracy that may be lost.
        examples: for "balanced", the largest number of examples to measure candidates on.
        threshold: the fraction of a bin's examples that must be certified at the radius that is maximised.
        bins: "auto", or the lengths at which bins start, such as [0, 137, 230, 324].
        per_bin: the largest number of examples of a bin that are certified.
        min_count: the least number of examples in an automatic bin.
        n_select: votes that select the predicted class.
        n_estimate: votes that bound its probability.
        alpha: the error level of the bounds; None for that of the model.
        bound: "tight" or "paper"; None for that of the model.
        tol: the width of the interval at which the search for a kept length stops, in tokens.
        seed: seed of the noise and of the choice of examples.
        on: the rows of a labelled file that are used: "auto", those that the model was not trained on if there are
            enough; or for the objective "paper", as in the paper, "training": those that it was trained on.
    """

    objective: str = "balanced"
    points: float = 1.0
    examples: int = 4000
    threshold: float = 0.75
    bins: str | Sequence[float] = "auto"
    per_bin: int = 200
    min_count: int = 50
    n_select: int = 32
    n_estimate: int = 256
    alpha: float | None = None
    bound: str | None = None
    tol: float = 0.5
    seed: int = 0
    on: str = "auto"

    def __post_init__(self) -> None:
        _check(self, "objective", _choice(*OBJECTIVES))
        searches = self.objective == "paper"
        _check(self, "on", _choice("auto", *(["training"] if searches else [])))
        _check(self, "threshold", _number("in (0, 1]", least=nextafter(0.0, 1.0), most=1.0))
        _check(self, "points", _POINTS)
        _check(self, "per_bin examples min_count n_select n_estimate", _count())
        _check(self, "alpha", _optional(lambda name, value: check_alpha(value, name)))
        _check(self, "bound", _optional(_choice("tight", "paper")))
        _check(self, "tol", _number("a finite number of at least 0.001", least=0.001, most=1e9))
        _check(self, "seed", _count(0))
        if isinstance(self.bins, str):
            check_choice("bins", self.bins, ("auto",))
        unused = _SELECTION if searches else _BIN_SEARCH
        for field in fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name} has no meaning for the objective {self.objective!r}: leave it out")


CALIBRATION = CalibrationSettings()


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """How texts are attacked. Inputs, votes, queries and seconds are those of the paper's protocol.

    Attributes:
        inputs: the number of inputs that are drawn at random.
        votes: noisy copies that answer a query of a recipe.
        queries: the largest number of texts that are evaluated in the attack on an input.
        seconds: the time limit for an input.
        budget: the largest number of edits; None for as many as the input has tokens, and at least 8.
        search_votes: noisy copies by which the adaptive attack compares texts, the same for all texts of a step.
        positions: tokens of the input that a step tries to edit.
        words: words that a step tries to insert.
        shortlist: words of the vocabulary that are compared for an input.
        verify_votes: the largest number of fresh votes that check whether the answer really changed.
        padding: words that a padding attack adds before, and after.
        level: the largest probability, for an input, that a change that did not happen passes that check.
        seed: of the choice of inputs and of all noise.
    """

    inputs: int = 200
    votes: int = 100
    queries: int = 3000
    seconds: float = 7200.0
    budget: int | None = None
    search_votes: int = 1000
    positions: int = 6
    words: int = 6
    shortlist: int = 64
    verify_votes: int = 16_000
    padding: int = 10_000
    level: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self, "inputs votes queries search_votes positions words shortlist padding", _count())
        _check(self, "verify_votes", _count(100))
        _check(self, "seed", _count(0))
        _check(self, "budget", _optional(_count()))
        _check(self, "seconds", _POSITIVE)
        _check(self, "level", _number("in (0, 0.5)", most=0.5, open_ends=True))


ATTACK = AttackSettings()
# An audit compares fewer texts for each certificate than an attack: the plans of many edits come first.
AUDIT = AttackSettings(
    inputs=1000, queries=400, search_votes=500, positions=4, words=4, shortlist=32, padding=1000, seed=1
)

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
TOKEN_VARIABLE = "ADAPTDEL_TOKEN"  # of the token that the clients of a server present


@dataclass(frozen=True)
class ServeSettings:
    """How models are served.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 for any free port.
        allowed_hosts: host names that requests may name; empty for the address itself, and any for a public address.
        seed_per_request: draw a new secret seed for every request instead of a single one at the start.
        texts: the largest number of texts in a request.
        tokens: the largest number of tokens of a text; with influence, of all texts of a request.
        body_bytes: the largest size of the body of a request.
        votes: the largest number of votes of one kind that a request may ask for.
        deadline_ms: the longest time for a request, also if it names no deadline.
        queue: the largest number of texts that wait for a place in the pool of a model.
        queue_bytes: the largest size of all bodies of more than 64 KiB that are read, wait or are worked on.
        batch_tokens: the largest number of copies times tokens in a batch of the base classifier, unless a text has
            more. Deadlines are noticed between batches.
        pool_inputs: the largest number of texts that are voted on together.
        request_inputs: of one request, the largest number.
        grace_seconds: how long requests in flight may take after the server was told to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8750
    allowed_hosts: tuple[str, ...] = ()
    seed_per_request: bool = False
    texts: int = 64
    tokens: int = 20_000
    body_bytes: int = 2**20
    votes: int = 20_000
    deadline_ms: int = 60_000
    queue: int = 1024
    queue_bytes: int = 2**26
    batch_tokens: int = 100_000
    pool_inputs: int = 16
    request_inputs: int = 8
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        _check(self, "texts tokens body_bytes votes deadline_ms queue queue_bytes", _count())
        _check(self, "batch_tokens pool_inputs request_inputs", _count())
        _check(self, "port", _count(0, 65535))
        _check(self, "grace_seconds", _number("a number of seconds from 0 to 86400", most=86400.0))

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in LOCAL_HOSTS or self.host.startswith("127.")


SERVE = ServeSettings()

DEFAULT_K = 23  # the paper's for IMDB and SpamAssassin, whose texts have about 230 words on average
KEPT = 4  # tokens of a text of median length that the default rate keeps, at least
LEAST_RATE = 0.6  # the smallest default rate: below 1/2 no radius above 0 can be certified
SMALL_K = 10  # the paper rounds k down to an integer; a smaller k keeps a decimal


def default_rate(lengths: Iterable[int]) -> float:
    """The deletion rate if none is given: 0.9, and less for texts that are so short that few tokens would be left.

    At least `KEPT` tokens of a text of median length are kept, as long as the rate is at least `LEAST_RATE`: see
    docs/how-to/choose-a-rate.md.

    >>> default_rate([230]), default_rate([30]), default_rate([15]), default_rate([5])
    (0.9, 0.86, 0.73, 0.6)
    """
    counted = [check_int("lengths", length) for length in lengths]
    if not counted:
        raise ValueError("lengths must hold at least one length, got none")
    middle = max(1.0, median(counted))
    return min(RATE, max(LEAST_RATE, floor(100 * (1 - KEPT / middle)) / 100))


def adaptdel_rate(lengths: Iterable[int], rate: float) -> LengthRate:
    """AdaptDel's rate, with k from the lengths as in the paper; a k below `SMALL_K` is not rounded to an integer.

    >>> adaptdel_rate([220, 240], 0.9), adaptdel_rate([15], 0.9)
    (LengthRate(p_min=0.9, k=23, p_max=1.0), LengthRate(p_min=0.9, k=1.5, p_max=1.0))
    """
    counted = list(lengths)
    paper = LengthRate.from_lengths(counted, rate)
    exact = (1 - rate) * sum(counted) / len(counted)
    return paper if exact >= SMALL_K else LengthRate(rate, max(1.0, floor(10 * exact + 1e-6) / 10))


def default_noise(lengths: Iterable[int] | None = None) -> Deletion:
    """The noise of `SmoothedClassifier` and `pipeline` if none is given: AdaptDel, for the lengths of training inputs.

    Where no lengths are known, as for a model that is only called, the rate is 0.9 and k is `DEFAULT_K`.

    >>> default_noise()
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    if lengths is None:
        return Deletion(LengthRate(RATE, DEFAULT_K))
    counted = list(lengths)
    return Deletion(adaptdel_rate(counted, default_rate(counted)))
