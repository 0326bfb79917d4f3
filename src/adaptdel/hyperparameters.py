"""Hyperparameters with their defaults: of the linear model, of transformers, and of attacks.

`adaptdel.settings` holds all other settings, and fills these in for training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from adaptdel.core.checks import check_choice, check_int, check_real

LINEAR_LOSSES = ("auto", "votes", "copies")


@dataclass(frozen=True)
class LinearTrainingSettings:
    """How the linear model is trained.

    Attributes:
        loss: "votes" (of the vote on each example, in closed form), "copies" (of single noisy copies) or "auto":
            "votes" for two classes, "copies" for more.
        copies: noisy copies of each example; for the loss "votes", rates that are drawn if the noise has random ones.
        l2: penalty on squared weights; see `adaptdel.classifiers.linear.LinearClassifier`.
        iterations: the largest number of iterations of the optimiser.
        features: "hash" or "vocabulary".
        bits: the base-2 logarithm of the number of hashed columns.
    """

    loss: str = "auto"
    copies: int = 8
    l2: float = 2e-6
    iterations: int = 60
    features: str = "hash"
    bits: int = 18

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LINEAR_LOSSES)


@dataclass(frozen=True)
class AdditiveTrainingSettings:
    """How an additive classifier is trained: by the loss of votes, with bounded token scores.

    Attributes:
        kept: tokens that the copies of an example keep; 0 for a tenth of the median length, at least 2.
        l2: penalty on squared weights; see `adaptdel.classifiers.linear.LinearClassifier`.
        iterations: the largest number of iterations of the optimiser without a bound; a fifth of it for each bound.
        levels: the number of bounds, each a fifth smaller than the one before.
        min_count: the smallest number of occurrences of a feature in the training set.
        vectors: a safetensors file of word vectors, see `adaptdel.classifiers.word_vectors`; "" for none.
        validation: the fraction of the examples that is held out to choose the bound.
        max_accuracy_loss: percentage points of held-out accuracy, the mean of all classes, that the choice of the bound
            may give up for a larger radius.
    """

    kept: int = 0
    l2: float = 5e-7
    iterations: int = 60
    levels: int = 14
    min_count: int = 2
    vectors: str = ""
    validation: float = 0.2
    max_accuracy_loss: float = 1.0

    def __post_init__(self) -> None:
        check_int("kept", self.kept)
        for name in ("iterations", "levels", "min_count"):
            check_int(name, getattr(self, name), least=1)
        check_real("l2", self.l2, accepted="a finite number of at least 0", least=0.0, most=1e300)
        check_real("validation", self.validation, accepted="in (0, 1)", least=0.0, most=1.0, open_ends=True)
        check_real("max_accuracy_loss", self.max_accuracy_loss, accepted="from 0 to 100", least=0.0, most=100.0)


_POSITIVE = ("learning_rate", "clip")
_NOT_NEGATIVE = ("weight_decay", "adv_lr", "adv_init", "adv_norm")
_COUNTS = ("batch_size", "epochs", "patience", "adv_steps")
_FOLLOWING = ("epochs", "patience")  # the number of examples, where they are 0
DTYPES = ("float32", "bfloat16", "int8")
DTYPE = "float32"  # the precision of a transformer that classifies
BACKENDS = ("torch", "onnxruntime")
BACKEND = "torch"  # the library that runs a transformer
INT8_BACKEND = "onnxruntime"  # the only one that has int8
CLASS_WEIGHTS = ("balanced",)
PRECISIONS = ("float32", "bfloat16")
PAPER_EPOCHS = 200
STEPS, LEAST_EPOCHS = 2000, 3  # of a training whose epochs are not given
SEEDS = 2**32  # NumPy's legacy generator, which the Trainer also seeds, accepts smaller seeds only


@dataclass(frozen=True)
class TransformerTrainingSettings:
    """How a transformer is trained, and how it classifies after that.

    The defaults are those of the paper's table of hyperparameters, but for the epochs and the patience, which follow
    the number of examples unless they are given: the paper has 200 and 25.

    The paper does not report its FreeLB settings. The authors of FreeLB tuned them for each task: their published
    scripts use 2 or 3 steps of size 0.04 to 0.2 (0.1 for SST-2, the task closest to ours) and an initial size of 0.08
    to 1.0. For MNLI and QNLI the initial size is twice the step size and there is no projection. The defaults below
    combine that with the step size for SST-2. The norm of a step is taken over a whole text, whatever its length.

    Attributes:
        learning_rate: of AdamW after the warm-up; it then decays linearly to 0.
        weight_decay: of AdamW; biases and norms are not decayed.
        clip: the largest gradient norm.
        batch_size: examples per step.
        epochs: the largest number of epochs; 0 for as many as make about `STEPS` steps.
        warmup: epochs in which the learning rate rises from 0; None is a 20th of ``epochs`` (the paper's 10 of 200).
        patience: training stops after this number of epochs without a smaller validation loss; 0 for an eighth of
            ``epochs``.
        precision: of matrix products, "float32" or "bfloat16"; weights and optimiser state stay in float32. bfloat16 is
            about 1.7 times as fast on a processor that supports it.
        seed: of the classification head, the order of the examples, the noise and the dropout.
        adv_steps: FreeLB's K: forward and backward passes per step.
        adv_lr: FreeLB's step size of the perturbation.
        adv_init: FreeLB's size of the random initial perturbation; 0 starts at the text itself.
        adv_norm: FreeLB's largest norm of a perturbation; 0 sets no limit.
        dtype: the precision in which the trained transformer classifies: "float32", "bfloat16" or "int8".
        max_length: the largest number of ids of a copy, the rest of which is cut off; 0 for what the model takes.
        backend: what runs the trained transformer. None is "onnxruntime" in int8, and "torch" otherwise.

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
    epochs: int = 0
    warmup: float | None = None
    patience: int = 0
    precision: str = "float32"
    seed: int = 0
    adv_steps: int = 3
    adv_lr: float = 0.1
    adv_init: float = 0.2
    adv_norm: float = 0.0
    dtype: str = DTYPE
    max_length: int = 0
    backend: str | None = None

    def __post_init__(self) -> None:
        checked: dict[str, float | int] = {
            name: check_int(name, getattr(self, name), least=0 if name in _FOLLOWING else 1) for name in _COUNTS
        }
        checked["max_length"] = check_int("max_length", self.max_length)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("dtype", self.dtype, DTYPES)
        if self.backend is not None:
            check_choice("backend", self.backend, BACKENDS)
        checked["seed"] = check_int("seed", self.seed, most=SEEDS - 1)
        for name in _POSITIVE:
            checked[name] = finite_number(name, getattr(self, name), "a positive number", open_ends=True)
        for name in _NOT_NEGATIVE:
            checked[name] = finite_number(name, getattr(self, name), "a number of at least 0")
        if self.warmup is not None:
            most = self.epochs or inf
            accepted = f"a number of epochs from 0 to {most:g}"
            checked["warmup"] = check_real("warmup", self.warmup, accepted=accepted, least=0.0, most=most)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def for_examples(self, count: int) -> TransformerTrainingSettings:
        """The settings with the epochs and the patience that suit the number of examples, where none were given."""
        epochs = self.epochs or min(PAPER_EPOCHS, max(LEAST_EPOCHS, round(STEPS / -(-count // self.batch_size))))
        return replace(self, epochs=epochs, patience=self.patience or max(2, epochs // 8))

    @property
    def warmup_epochs(self) -> float:
        """The number of warm-up epochs, with the default filled in."""
        return (self.epochs or PAPER_EPOCHS) / 20 if self.warmup is None else self.warmup

    @property
    def run_by(self) -> str:
        """The backend, with the default filled in."""
        return self.backend or (INT8_BACKEND if self.dtype == "int8" else BACKEND)


def finite_number(name: str, value: float, accepted: str, *, open_ends: bool = False) -> float:
    """Return a finite number that is not negative, or positive with ``open_ends``; ValueError otherwise."""
    number = check_real(name, value, accepted=accepted, least=0.0, most=inf, open_ends=open_ends)
    if number == inf:
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def check_minutes(value: float) -> float:
    """Return the time limit of a training; ValueError unless it is positive."""
    return finite_number("max_minutes", value, "a positive number", open_ends=True)


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
        beam: texts that the adaptive attack keeps after each step; 1 is a greedy search.
        positions: tokens of the input that a step tries to edit.
        words: words that a step tries to write.
        shortlist: words of the vocabulary that are compared for an input.
        verify_votes: the largest number of fresh votes that check whether the answer really changed.
        level: the probability with which, for an input, a change that did not happen may pass that check.
        seed: of the choice of inputs and of all noise.
        fresh: whether a recipe that queries a text again gets fresh votes; TextAttack otherwise keeps the first answer.
    """

    inputs: int = 200
    votes: int = 100
    queries: int = 3000
    seconds: float = 7200.0
    budget: int | None = None
    search_votes: int = 1000
    beam: int = 1
    positions: int = 6
    words: int = 6
    shortlist: int = 64
    verify_votes: int = 16_000
    level: float = 1e-3
    seed: int = 0
    fresh: bool = False

    def __post_init__(self) -> None:
        for name in ("inputs", "votes", "queries", "search_votes", "beam", "positions", "words", "shortlist"):
            check_int(name, getattr(self, name), least=1)
        check_int("verify_votes", self.verify_votes, least=100)
        check_int("seed", self.seed, most=2**63 - 1)
        if self.budget is not None:
            check_int("budget", self.budget, least=1)
        finite_number("seconds", self.seconds, "a positive number", open_ends=True)
        check_real("level", self.level, accepted="in (0, 0.5)", least=0.0, most=0.5, open_ends=True)


LINEAR = LinearTrainingSettings()
ADDITIVE = AdditiveTrainingSettings()
ATTACK = AttackSettings()
# An audit compares fewer texts for each certificate than an attack: the plans of many edits come first.
AUDIT = AttackSettings(inputs=1000, queries=400, search_votes=500, positions=4, words=4, shortlist=32, seed=1)
TRANSFORMER = TransformerTrainingSettings()
