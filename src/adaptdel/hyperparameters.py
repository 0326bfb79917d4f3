"""Hyperparameters with their defaults: of the linear model, the embedding network, transformers, and of attacks.

`adaptdel.settings` holds all other settings, and fills these in for training.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from adaptdel.core.checks import check_choice, check_int, check_probability, check_real

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


_POSITIVE = ("learning_rate", "clip")
_NOT_NEGATIVE = ("weight_decay", "adv_lr", "adv_init", "adv_norm")
_COUNTS = ("batch_size", "epochs", "patience", "adv_steps")
PRECISIONS = ("float32", "bfloat16")
SEEDS = 2**32  # NumPy's legacy generator, which the Trainer also seeds, accepts smaller seeds only


@dataclass(frozen=True)
class TransformerTrainingSettings:
    """How a transformer is trained. The defaults are those of the paper's table of hyperparameters.

    The paper does not report its FreeLB settings. The authors of FreeLB tuned them for each task: their published
    scripts use 2 or 3 steps of size 0.04 to 0.2 (0.1 for SST-2, the task closest to ours) and an initial size of 0.08
    to 1.0. For MNLI and QNLI the initial size is twice the step size and there is no projection. The defaults below
    combine that with the step size for SST-2. The norm of a step is taken over a whole text, whatever its length.

    Attributes:
        learning_rate: of AdamW after the warm-up; it then decays linearly to 0.
        weight_decay: of AdamW; biases and norms are not decayed.
        clip: the largest gradient norm.
        batch_size: examples per step.
        epochs: the largest number of epochs.
        warmup: epochs in which the learning rate rises from 0; None is a 20th of ``epochs`` (the paper's 10 of 200).
        patience: training stops after this number of epochs without a smaller validation loss.
        precision: of matrix products, "float32" or "bfloat16"; weights and optimiser state stay in float32. bfloat16 is
            about 1.7 times as fast on a processor that supports it.
        seed: of the classification head, the order of the examples, the noise and the dropout.
        adv_steps: FreeLB's K: forward and backward passes per step.
        adv_lr: FreeLB's step size of the perturbation.
        adv_init: FreeLB's size of the random initial perturbation; 0 starts at the text itself.
        adv_norm: FreeLB's largest norm of a perturbation; 0 sets no limit.

    >>> TransformerTrainingSettings().warmup_epochs, TransformerTrainingSettings(epochs=30).warmup_epochs
    (10.0, 1.5)
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
        checked: dict[str, float | int] = {name: check_int(name, getattr(self, name), least=1) for name in _COUNTS}
        check_choice("precision", self.precision, PRECISIONS)
        checked["seed"] = check_int("seed", self.seed, most=SEEDS - 1)
        for name in _POSITIVE:
            checked[name] = finite_number(name, getattr(self, name), "a positive number", open_ends=True)
        for name in _NOT_NEGATIVE:
            checked[name] = finite_number(name, getattr(self, name), "a number of at least 0")
        if self.warmup is not None:
            accepted = f"a number of epochs from 0 to {self.epochs}"
            checked["warmup"] = check_real("warmup", self.warmup, accepted=accepted, least=0.0, most=self.epochs)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def warmup_epochs(self) -> float:
        """The number of warm-up epochs, with the default filled in."""
        return self.epochs / 20 if self.warmup is None else self.warmup


def finite_number(name: str, value: float, accepted: str, *, open_ends: bool = False) -> float:
    """Return a finite number that is not negative, or positive with ``open_ends``; ValueError otherwise."""
    number = check_real(name, value, accepted=accepted, least=0.0, most=inf, open_ends=open_ends)
    if number == inf:
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def check_minutes(value: float) -> float:
    """Return the time limit of a training; ValueError unless it is positive."""
    return finite_number("max_minutes", value, "a positive number", open_ends=True)


EMBEDDING_SCALES = ("table", "row")


@dataclass(frozen=True)
class EmbeddingSettings:
    """The shape of the network and how it is trained.

    Attributes:
        dimensions: of embeddings.
        width: of the vector of a token.
        hidden: outputs of each hidden layer.
        steps: of the optimiser.
        batch_size: copies in a step.
        copies_per_text: copies of the same text in a step.
        learning_rate: of the layers, at its highest.
        embedding_rate: the learning rate of embeddings, at its highest.
        embedding_scale: what the steps of embeddings are scaled by: "table" (the root of the mean squared gradient of
            all embeddings) or "row" (Adam: that of each embedding, which moves rare words as far as frequent ones).
        weight_decay: of the layers.
        dropout: of hidden layers.
        word_dropout: the share of tokens in a batch whose learnt embedding and pretrained vector are left out, so that
            n-grams alone suffice for new tokens.
        label_smoothing: of the cross entropy.
        consistency: weight of the divergence between the copies of a text and their mean.
        averaging: decay of the moving average of the weights; 0 takes the last weights.
        validation: share of the examples that is held out.
        evaluations: how often the votes on held-out inputs are counted.
        patience: evaluations without a larger share of right votes after which training stops. The default never stops:
            most of the share is gained while the learning rate falls to 0.
    """

    dimensions: int = 96
    width: int = 96
    hidden: tuple[int, ...] = (128, 128)
    steps: int = 300
    batch_size: int = 2048
    copies_per_text: int = 8
    learning_rate: float = 2e-3
    embedding_rate: float = 4e-3
    embedding_scale: str = "table"
    weight_decay: float = 1e-2
    dropout: float = 0.2
    word_dropout: float = 0.1
    label_smoothing: float = 0.0
    consistency: float = 0.0
    averaging: float = 0.0
    validation: float = 0.1
    evaluations: int = 10
    patience: int = 10

    def __post_init__(self) -> None:
        for name in ("dimensions", "width", "steps", "batch_size", "copies_per_text", "evaluations", "patience"):
            check_int(name, getattr(self, name), least=1)
        for name in ("dimensions", "width"):
            check_int(name, getattr(self, name), least=1, most=512)
        for size in self.hidden:
            check_int("hidden", size, least=1, most=1024)
        for name in ("dropout", "word_dropout", "label_smoothing", "averaging", "validation"):
            check_probability(name, getattr(self, name))
        for name in ("learning_rate", "embedding_rate", "weight_decay", "consistency"):
            check_real(name, getattr(self, name), accepted="a finite number of at least 0", least=0.0, most=1e6)
        check_choice("embedding_scale", self.embedding_scale, EMBEDDING_SCALES)


ON_UNKNOWN = ("ngrams", "encode")


@dataclass(frozen=True)
class EmbeddingModelSettings:
    """What an embedding network reads; `adaptdel.classifiers.embedding.EmbeddingClassifier` describes each field."""

    precision: str = "int8"
    on_unknown: str = "ngrams"
    min_count: int = 2
    bits: int = 15
    ngrams: tuple[int, ...] = (3, 5)
    lowercase: bool = True
    networks: int = 3


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
ATTACK = AttackSettings()
TRANSFORMER = TransformerTrainingSettings()
EMBEDDING = EmbeddingSettings()
EMBEDDING_MODEL = EmbeddingModelSettings()
DTYPES = ("float32", "bfloat16", "int8")
EMBEDDING_DTYPES = ("int8", "float32")
DTYPE = "float32"  # the precision of a transformer that classifies
BACKENDS = ("torch", "onnxruntime", "openvino")
BACKEND_CHOICES = (*BACKENDS, "auto")
BACKEND = "torch"  # the library that runs a transformer: the same on every machine, unlike the choice of "auto"
INT8_BACKEND = "auto"  # of a transformer that is trained to run in int8, where others can take half the time of torch
CLASS_WEIGHTS = ("balanced",)
