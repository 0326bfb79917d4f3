"""Training of the embedding network in torch: large batches of noisy copies, each distinct token encoded once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import cos, isfinite, pi
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.classifiers.embedding_copies import (
    COPIES_OF_STEP,
    DROPOUT,
    EVALUATION,
    HELD_OUT,
    RANGES,
    Batch,
    CopySampler,
    TrainingTokens,
    examples_of_step,
    stream,
)
from adaptdel.classifiers.embedding_module import RowOptimiser, network_module, torch_library
from adaptdel.classifiers.integer_network import FloatNetwork, TokenFeatures
from adaptdel.classifiers.linear_training import balanced_class_weights
from adaptdel.core.checks import IntArray, check_choice
from adaptdel.core.noise import Noise
from adaptdel.files import replacing
from adaptdel.hyperparameters import CLASS_WEIGHTS, EmbeddingSettings

Progress = Callable[[int, int], None]
Evaluated = Callable[[Mapping[str, Any]], None]
EVALUATION_INPUTS, EVALUATION_COPIES = 512, 16
WARM_UP = 0.05  # share of the steps in which the learning rate rises
NORM_MOMENTUM = 0.02  # of the mean and variance of pooled vectors
AVERAGED_EVERY = 4  # steps between two updates of the moving average
RANGE_COPIES = 4096  # that the ranges of activations are taken from


@dataclass
class Training:
    """A network in training, and what was measured of it.

    Attributes:
        seconds: the time limit, or None.
        elapsed: seconds of training so far, in all sessions.
        ended: whether training is over.
    """

    settings: EmbeddingSettings
    module: Any
    rows: Any
    copies: CopySampler
    vectors: Any
    seed: int
    training: IntArray
    validation: IntArray
    seconds: float | None = None
    class_weights: Any = None
    step: int = 0
    elapsed: float = 0.0
    ended: bool = False
    waited: int = 0
    average: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    best_rank: tuple[float, float] = (-1.0, -1.0)
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.row_optimiser = RowOptimiser(self.rows, settings.embedding_scale)
        self.optimiser = torch_library().optim.AdamW(
            self.module.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )

    @property
    def is_time_up(self) -> bool:
        """Whether the time limit is reached."""
        return self.seconds is not None and self.elapsed >= self.seconds

    def share(self) -> float:
        """How much of the training is over: of its steps, or of its time, if there is no time for all steps.

        The learning rate follows this share. So it has fallen when the time is up, and the last weights are good ones.
        With time for all steps, the share of the time is always the smaller one, and changes nothing.
        """
        by_time = 0.0 if self.seconds is None else self.elapsed / self.seconds
        return min(1.0, max(self.step / self.settings.steps, by_time))

    def weights(self) -> dict[str, Any]:
        """All weights by name; they are not copied."""
        return {"rows": self.rows, **{f"module.{name}": value for name, value in self.module.state_dict().items()}}

    def restore(self, weights: dict[str, Any]) -> None:
        """Take over weights."""
        self.rows.copy_(weights["rows"])
        inner = {name.removeprefix("module."): value for name, value in weights.items() if name != "rows"}
        self.module.load_state_dict(inner)

    def tensors(self) -> dict[str, Any]:
        """All tensors that training goes on from."""
        optimised = self.optimiser.state_dict()["state"]
        groups = {
            "weights": self.weights(),
            "best": self.best or {},
            "average": self.average or {},
            "moments": {"first": self.row_optimiser.first, "second": self.row_optimiser.second},
            "optimiser": {f"{number}.{name}": value for number, state in optimised.items()
                          for name, value in state.items()},
        }  # fmt: skip
        return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}

    def take(self, tensors: dict[str, Any]) -> None:
        """Take over what `tensors` gave."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in tensors.items():
            group, _, inner = name.partition("/")
            groups.setdefault(group, {})[inner] = value
        self.restore(groups["weights"])
        self.best, self.average = groups.get("best"), groups.get("average")
        self.row_optimiser.first.copy_(groups["moments"]["first"])
        self.row_optimiser.second.copy_(groups["moments"]["second"])
        self.row_optimiser.steps = self.step
        states: dict[int, dict[str, Any]] = {}
        for name, value in groups.get("optimiser", {}).items():
            number, _, inner = name.partition(".")
            states.setdefault(int(number), {})[inner] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})


def train_network(
    features: TokenFeatures,
    tokens: Sequence[Sequence[Hashable]],
    labels: IntArray,
    classes: int,
    *,
    noise: Noise,
    settings: EmbeddingSettings,
    vectors: npt.NDArray[Any] | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Progress = lambda done, total: None,
    evaluated: Evaluated = lambda row: None,
    held_out: IntArray | None = None,
    encodes: bool = False,
    class_weight: str | None = None,
    seconds: float | None = None,
) -> tuple[FloatNetwork, dict[str, Any]]:
    """Train a network on noisy copies; the same arguments give the same network on one machine.

    Args:
        features: of tokens.
        tokens: the tokens of every example.
        labels: the class number of every example.
        classes: how many classes there are.
        noise: what is done to each copy.
        settings: see `EmbeddingSettings`.
        vectors: the pretrained vectors of ``features.words``, of shape (words, length).
        seed: of the held-out part, the initial weights, the noise, the order and the dropout.
        checkpoint: a file (without its suffix) that is written at every evaluation, and from which an interrupted
            training with the same arguments goes on.
        progress: called with (steps done, steps in all).
        evaluated: called with the history's row of every evaluation.
        held_out: the numbers of the held-out examples; None for a share of the examples as in the settings.
        encodes: whether new words are encoded as well, and do not have n-grams alone.
        class_weight: "balanced" gives every class the same weight in the loss and in the choice of the best weights;
            None every example.
        seconds: training ends after this time, all sessions together, with the best weights so far; at least a step is
            done. None for no limit. The learning rate falls with the time if there is no time for all steps.

    Returns:
        The network, and a record of the training in plain values.
    """
    torch = torch_library()
    table = TrainingTokens.build(features, tokens)
    order = stream(seed, HELD_OUT).permutation(len(labels))
    if held_out is None:
        held_out = order[: min(round(len(labels) * settings.validation), len(labels) - 1, EVALUATION_INPUTS)]
    measured = stream(seed, HELD_OUT).permutation(held_out)[:EVALUATION_INPUTS]
    training = np.setdiff1d(order, held_out)
    weights = None
    if class_weight is not None:
        check_choice("class_weight", class_weight, CLASS_WEIGHTS)
        weights = torch.tensor(balanced_class_weights(labels[training], classes), dtype=torch.float32)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        module = network_module(settings, 0 if vectors is None else vectors.shape[1], classes)
        state = Training(
            settings,
            module,
            torch.randn(features.size, settings.dimensions) * 0.1,
            CopySampler(table, labels, noise, settings.word_dropout, features.size, encodes=encodes),
            None if vectors is None else torch.from_numpy(np.ascontiguousarray(vectors)),
            seed,
            training=training,
            validation=np.sort(measured),
            seconds=seconds,
            class_weights=weights,
        )
    identity = "" if checkpoint is None else _identity(state, features, noise)
    if checkpoint is not None:
        _resume(state, checkpoint, identity)
    if not state.ended:
        for _ in _optimise(state, progress, evaluated):
            if checkpoint is not None:
                _write_checkpoint(state, checkpoint, identity)
    record = {"steps": state.step, "history": state.history}
    record |= {"examples": len(state.training), "held_out": len(state.validation)}
    if seconds is not None:
        stopped = state.is_time_up and state.step < settings.steps
        record |= {"planned_steps": settings.steps, "seconds": state.elapsed, "stopped_by_time": stopped}
    return _exported(state), record


def _optimise(state: Training, progress: Progress, evaluated: Evaluated) -> Iterator[None]:
    """Train until the end; yields after every evaluation, and at the end with the weights that are kept."""
    settings, module = state.settings, state.module
    every = max(1, settings.steps // settings.evaluations)
    began, measured_at = monotonic() - state.elapsed, state.share()
    module.train()
    for batch in _batches(state):
        state.step += 1
        loss = _train_step(state, batch)
        state.elapsed = monotonic() - began
        progress(state.step, settings.steps)
        last = state.step == settings.steps or state.is_time_up
        by_time = state.seconds is not None and state.share() - measured_at >= 1 / settings.evaluations
        if state.step % every == 0 or last or by_time:
            _measure(state, float(loss))
            evaluated(state.history[-1])
            state.elapsed = monotonic() - began
            measured_at = state.share()
            if last or state.is_time_up or state.waited >= settings.patience:
                break
            yield
    if state.best is not None:
        state.restore(state.best)
    elif state.average is not None:
        state.restore(state.average)
    state.ended = True
    yield


def _train_step(state: Training, batch: Batch) -> Any:
    """One step of both optimisers; returns the loss."""
    torch, settings = torch_library(), state.settings
    share = state.share()
    factor = min(1.0, share / WARM_UP) * 0.5 * (1 + cos(pi * share))
    state.optimiser.param_groups[0]["lr"] = settings.learning_rate * factor
    state.module.norm.momentum = max(NORM_MOMENTUM, min(1.0, 4 / state.step))  # the first steps count little later
    places = torch.from_numpy(batch.present)
    present = state.rows.index_select(0, places).requires_grad_()
    loss = _loss(state, batch, present, stream(state.seed, DROPOUT, state.step))
    state.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    state.row_optimiser.step(places, present.grad, settings.embedding_rate * factor)
    state.optimiser.step()
    if settings.averaging and state.step % AVERAGED_EVERY == 0:
        state.average = _averaged(state.weights(), state.average, settings.averaging**AVERAGED_EVERY)
    return loss.detach()


def _measure(state: Training, loss: float) -> None:
    """Count the votes on held-out inputs, and keep the best weights."""
    if not isfinite(loss):
        raise ValueError(
            "learning_rate and embedding_rate must be smaller for these examples: the loss is not a number"
        )
    weights = state.weights() if state.average is None else state.average
    measured = _evaluate(state, weights)
    state.history.append({"step": state.step, "loss": loss, **measured})
    if measured:
        # Few votes on few inputs: accuracy is mostly noise.
        rank = (measured.get("balanced_vote_share", measured["vote_share"]), measured["vote_accuracy"])
        if rank > state.best_rank:
            state.best_rank, state.waited = rank, 0
            state.best = {name: value.clone() for name, value in weights.items()}
        else:
            state.waited += 1


def _batches(state: Training) -> Iterator[Batch]:
    """The batches of the steps to come; the next one is drawn in a thread while a step is computed."""
    settings, seed = state.settings, state.seed
    size = max(1, settings.batch_size // settings.copies_per_text)

    def draw(step: int) -> Batch:
        examples = examples_of_step(state.training, size, step, seed)
        return state.copies.draw(examples, settings.copies_per_text, stream(seed, COPIES_OF_STEP, step))

    with ThreadPoolExecutor(1) as pool:
        first = state.step
        coming = pool.submit(draw, first)
        for step in range(first, settings.steps):
            batch = coming.result()
            if step + 1 < settings.steps:
                coming = pool.submit(draw, step + 1)
            yield batch


def _identity(state: Training, features: TokenFeatures, noise: Noise) -> str:
    """A hash of all that the trained network depends on."""
    chosen = [asdict(state.settings), state.seed, noise.to_dict(), state.copies.encodes]
    if state.class_weights is not None:
        chosen.append({"class_weights": state.class_weights.tolist()})
    if state.seconds is not None:
        chosen.append({"seconds": state.seconds})
    digest = hashlib.sha256(json.dumps(chosen).encode())
    digest.update(np.ascontiguousarray(state.validation).data)
    digest.update(repr((features.bits, features.ngrams, features.lowercase)).encode())
    arrays = [*state.copies.tokens.learnt, *state.copies.tokens.hashed, state.copies.tokens.words, state.copies.labels]
    for array in [*arrays, *state.copies.tokens.codes]:
        digest.update(np.ascontiguousarray(array).data)
    if state.vectors is not None:
        digest.update(state.vectors.numpy().data)
    return digest.hexdigest()


def _write_checkpoint(state: Training, checkpoint: Path, identity: str) -> None:
    """Tensors and plain values in one file, whole or not at all."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    values = {"identity": identity, "step": state.step, "waited": state.waited, "best_rank": state.best_rank}
    values |= {"elapsed": state.elapsed, "ended": state.ended}
    tensors = {name: np.ascontiguousarray(value.numpy()) for name, value in state.tensors().items()}
    content = tensors_to_bytes(tensors, {"adaptdel": json.dumps({**values, "history": state.history})})
    with replacing(checkpoint.with_suffix(".safetensors")) as file:
        file.write(content)


def _resume(state: Training, checkpoint: Path, identity: str) -> None:
    """Go on from a checkpoint, if there is one of the same training."""
    torch = torch_library()
    path = checkpoint.with_suffix(".safetensors")
    if not path.exists():
        return
    try:
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        values = json.loads(header["__metadata__"]["adaptdel"])
        if values["identity"] != identity:
            raise ValueError(f"{path}: belongs to another training: remove it, or give another checkpoint")
        state.step, state.waited = int(values["step"]), int(values["waited"])
        state.best_rank = float(values["best_rank"][0]), float(values["best_rank"][1])
        state.history = list(values["history"])
        state.elapsed, state.ended = float(values.get("elapsed", 0.0)), bool(values.get("ended", False))
        state.take({name: torch.from_numpy(value) for name, value in tensors_from_bytes(content).items()})
    except (
        SafetensorError,
        KeyError,
        TypeError,
        IndexError,
        RuntimeError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path}: not a checkpoint that training can go on from: {reason}: remove it") from None


def _loss(state: Training, batch: Batch, rows: Any, dropout: np.random.Generator) -> Any:
    """Cross entropy, and the divergence between the copies of a text."""
    torch, settings = torch_library(), state.settings
    functional = torch.nn.functional
    scores = state.module(batch, rows, state.vectors, rng=dropout)
    labels, smoothing = torch.from_numpy(batch.labels), settings.label_smoothing
    if state.class_weights is None:
        loss = functional.cross_entropy(scores, labels, label_smoothing=smoothing)
    else:
        losses = functional.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="none")
        loss = (losses * state.class_weights[labels]).mean()
    if settings.consistency and settings.copies_per_text > 1:
        shares = functional.log_softmax(scores, dim=1).reshape(-1, settings.copies_per_text, scores.shape[1])
        mean = shares.exp().mean(dim=1, keepdim=True)
        divergence = (mean * (torch.log(mean + 1e-12) - shares)).sum(dim=2).mean()
        loss = loss + settings.consistency * divergence
    return loss


def _averaged(weights: dict[str, Any], average: dict[str, Any] | None, decay: float) -> dict[str, Any]:
    if average is None:
        return {name: value.clone() for name, value in weights.items()}
    for name, value in weights.items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
    return average


@contextmanager
def _evaluating(state: Training, weights: dict[str, Any] | None = None) -> Iterator[None]:
    """In evaluation mode, with other weights if given."""
    torch = torch_library()
    current = None
    if weights is not None and weights["rows"] is not state.rows:
        current = {name: value.clone() for name, value in state.weights().items()}
        state.restore(weights)
    state.module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        state.module.train()
        if current is not None:
            state.restore(current)


def _evaluate(state: Training, weights: dict[str, Any]) -> dict[str, float]:
    """The share of held-out inputs whose majority vote is right, and the mean share of right votes.

    With class weights, also the mean over classes of the latter.
    """
    if not len(state.validation):
        return {}
    torch = torch_library()
    rng = stream(state.seed, EVALUATION)
    right, shares, numbers = [], [], []
    with _evaluating(state, weights):
        for start in range(0, len(state.validation), 128):
            batch = state.copies.draw(state.validation[start : start + 128], EVALUATION_COPIES, rng, training=False)
            rows = state.rows.index_select(0, torch.from_numpy(batch.present))
            votes = state.module(batch, rows, state.vectors).argmax(dim=1).numpy().reshape(-1, EVALUATION_COPIES)
            labels = batch.labels[::EVALUATION_COPIES]
            counts = (votes[:, :, None] == np.arange(state.module.layers[-1].out_features)).sum(axis=1)
            right.append(counts.argmax(axis=1) == labels)
            shares.append(counts[np.arange(len(labels)), labels] / EVALUATION_COPIES)
            numbers.append(labels)
    share, number = np.concatenate(shares), np.concatenate(numbers)
    measured = {"vote_accuracy": float(np.concatenate(right).mean()), "vote_share": float(share.mean())}
    if state.class_weights is not None:
        measured["balanced_vote_share"] = float(np.mean([share[number == label].mean() for label in np.unique(number)]))
    return measured


def _exported(state: Training) -> FloatNetwork:
    """The weights as arrays, with the ranges of activations on noisy copies of training examples."""
    torch, module = torch_library(), state.module
    rng = stream(state.seed, RANGES)
    recorded: list[list[Any]] = []
    with _evaluating(state):
        for _ in range(0, RANGE_COPIES, 512):
            batch = state.copies.draw(rng.choice(state.training, size=128), 4, rng)
            rows = state.rows.index_select(0, torch.from_numpy(batch.present))
            module(batch, rows, state.vectors, ranges=recorded)
        ranges = [torch.stack(values).amax(dim=0).numpy() for values in zip(*recorded, strict=True)]
        mask = torch.relu(module.mask).numpy().copy()
        if not state.copies.noise.masks_tokens:  # it was not trained
            mask[:] = 0.0
        ranges[1] = np.maximum(ranges[1], mask)
        norm = module.norm
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        projected = np.zeros((0, state.settings.dimensions), dtype=np.float32)
        if module.project is not None:
            projected = module.project(state.vectors.float()).numpy()
        projection = None
        if module.project is not None and state.copies.encodes:
            largest = state.vectors.float().abs().amax(dim=0).numpy()
            projection = module.project.weight.T.numpy().copy(), largest
        return FloatNetwork(
            state.rows.numpy().copy(),
            projected,
            (module.word.weight.T.numpy().copy(), module.word.bias.numpy().copy()),
            mask,
            (scale.numpy().copy(), shift.numpy().copy()),
            [(layer.weight.T.numpy().copy(), layer.bias.numpy().copy()) for layer in module.layers],
            ranges,
            projection,
        )
