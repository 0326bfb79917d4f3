"""Training of the embedding network in torch: noisy copies in large batches, each distinct token encoded once a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import cos, pi
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.features import numbered
from adaptdel.classifiers.integer_network import FloatNetwork, TokenFeatures, count_feature
from adaptdel.core.checks import IntArray, check_int, check_probability, check_real
from adaptdel.core.noise import Noise

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS = "training an EmbeddingClassifier needs torch: pip install 'adaptdel[transformers]'"
Progress = Callable[[int, int], None]
EVALUATION_INPUTS, EVALUATION_COPIES = 512, 16
RANGE_COPIES = 4096  # that the ranges of activations are taken from
HELD_OUT_STREAM = 2**63  # of random numbers, apart from those of training


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
        weight_decay: of the layers.
        dropout: of hidden layers.
        word_dropout: the share of tokens in a batch whose learnt embedding and pretrained vector are left out, so that
            n-grams alone suffice for new tokens.
        label_smoothing: of the cross entropy.
        consistency: weight of the divergence between the copies of a text and their mean.
        averaging: decay of the moving average of the weights; 0 takes the last weights.
        validation: share of the examples that is held out.
        evaluations: how often the votes on held-out inputs are counted.
        patience: evaluations without a better vote after which training stops.
    """

    dimensions: int = 96
    width: int = 96
    hidden: tuple[int, ...] = (128, 128)
    steps: int = 800
    batch_size: int = 2048
    copies_per_text: int = 8
    learning_rate: float = 2e-3
    embedding_rate: float = 4e-3
    weight_decay: float = 1e-2
    dropout: float = 0.2
    word_dropout: float = 0.1
    label_smoothing: float = 0.0
    consistency: float = 0.0
    averaging: float = 0.0
    validation: float = 0.05
    evaluations: int = 10
    patience: int = 5

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


def torch_library() -> Any:
    """Torch, or an error that names the extra."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(NEEDS) from error
    return torch


@dataclass
class TrainingTokens:
    """The distinct tokens of the examples with their features, and the examples as numbers of tokens.

    Attributes:
        learnt: features of the vocabulary of each token, and where they begin and end.
        hashed: hashed features, likewise.
        words: the row of the pretrained vector, or -1.
        codes: the token numbers of each example.
    """

    learnt: tuple[IntArray, IntArray]
    hashed: tuple[IntArray, IntArray]
    words: IntArray
    codes: list[IntArray]

    @classmethod
    def build(cls, features: TokenFeatures, tokens: Sequence[Sequence[Hashable]]) -> TrainingTokens:
        """Look up every distinct token once."""
        numbers: dict[Hashable, int] = {}
        codes = [numbered(example, numbers, len(example)) for example in tokens]
        learnt, hashed = [features.learnt(token) for token in numbers], [features.hashed(token) for token in numbers]
        words = np.fromiter((features.word(token) for token in numbers), dtype=np.int64, count=len(numbers))
        return cls(_csr(learnt), _csr(hashed), words, codes)


def _csr(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    ends = np.cumsum([0, *(len(row) for row in lists)], dtype=np.int64)
    return np.fromiter((value for row in lists for value in row), dtype=np.int64, count=int(ends[-1])), ends


@dataclass
class Batch:
    """Noisy copies: which distinct tokens they hold, and the features of those.

    Attributes:
        kept: for every kept token, its number among the distinct tokens of the batch.
        counts: kept tokens of each copy.
        masked: whether each copy has masked tokens.
        features: the feature numbers of the distinct tokens, one token after another.
        feature_counts: how many features each distinct token has.
        words: the row of the pretrained vector of each distinct token, or -1.
        labels: the class number of each copy.
    """

    kept: IntArray
    counts: IntArray
    masked: npt.NDArray[np.bool_]
    features: IntArray
    feature_counts: IntArray
    words: IntArray
    labels: IntArray


class Copies:
    """Draws noisy copies of examples."""

    def __init__(self, tokens: TrainingTokens, labels: IntArray, noise: Noise, word_dropout: float) -> None:
        self.tokens, self.labels, self.noise, self.word_dropout = tokens, labels, noise, word_dropout

    def draw(self, examples: IntArray, copies: int, rng: np.random.Generator, *, training: bool = True) -> Batch:
        """``copies`` noisy copies of each example; ``training`` leaves out words at random."""
        kept_codes, counts, masked = [], [], []
        for example in examples.tolist():
            codes = self.tokens.codes[example]
            kept = self.noise.sample(len(codes), copies, rng)
            counts.append(np.count_nonzero(kept, axis=1))
            kept_codes.append(codes[np.flatnonzero(kept) % max(1, len(codes))])
            masked.append(counts[-1] < len(codes))
        distinct, kept_numbers = np.unique(np.concatenate(kept_codes), return_inverse=True)
        words = self.tokens.words[distinct]
        left_out = np.zeros(len(distinct), dtype=np.bool_)
        if training and self.word_dropout:
            left_out = rng.random(len(distinct)) < self.word_dropout
            words = np.where(left_out, -1, words)
        learnt, learnt_counts = _gather(self.tokens.learnt, distinct, left_out)
        hashed, hashed_counts = _gather(self.tokens.hashed, distinct, np.zeros_like(left_out))
        features, feature_counts = _interleaved(learnt, learnt_counts, hashed, hashed_counts)
        all_masked = np.concatenate(masked) if self.noise.masks_tokens else np.zeros(len(examples) * copies, np.bool_)
        return Batch(
            kept_numbers.astype(np.int64),
            np.concatenate(counts).astype(np.int64),
            all_masked,
            features,
            feature_counts,
            words,
            np.repeat(self.labels[examples], copies),
        )


def _gather(table: tuple[IntArray, IntArray], rows: IntArray, empty: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Rows of a CSR table one after another, and their lengths; rows marked as ``empty`` have none."""
    values, ends = table
    counts = np.where(empty, 0, ends[rows + 1] - ends[rows])
    starts = np.repeat(ends[rows] - (np.cumsum(counts) - counts), counts)
    return values[starts + np.arange(int(counts.sum()))], counts


def _interleaved(first: IntArray, first_counts: IntArray, second: IntArray, second_counts: IntArray) -> tuple[IntArray, IntArray]:
    """Two lists of rows joined row by row."""
    counts = first_counts + second_counts
    starts = np.cumsum(counts) - counts
    joined = np.empty(len(first) + len(second), dtype=np.int64)
    for values, sizes, offset in ((first, first_counts, starts), (second, second_counts, starts + first_counts)):
        joined[np.repeat(offset - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(values))] = values
    return joined, counts


def network_module(settings: EmbeddingSettings, features: int, pretrained: int, classes: int) -> Any:
    """The network as a torch module; ``pretrained`` is the length of pretrained vectors, or 0."""
    torch = torch_library()
    nn, functional = torch.nn, torch.nn.functional

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(features, settings.dimensions) * 0.1)
            self.project = nn.Linear(pretrained, settings.dimensions, bias=False) if pretrained else None
            self.word = nn.Linear(settings.dimensions, settings.width)
            self.mask = nn.Parameter(torch.zeros(settings.width))
            self.norm = nn.BatchNorm1d(2 * settings.width + 1, momentum=0.02)
            sizes = [2 * settings.width + 1, *settings.hidden, classes]
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
            self.dropout = nn.Dropout(settings.dropout)

        def embeddings(self, batch: Batch, vectors: Any) -> Any:
            """Of the distinct tokens, of shape (tokens, dimensions)."""
            counts = torch.from_numpy(batch.feature_counts)
            offsets = torch.cumsum(counts, 0) - counts
            bags = functional.embedding_bag(torch.from_numpy(batch.features), self.rows, offsets, mode="sum")
            bags = bags / torch.sqrt(counts.to(bags.dtype))[:, None]
            known = np.flatnonzero(batch.words >= 0)
            if self.project is not None and len(known):
                chosen = vectors[torch.from_numpy(batch.words[known])]
                bags = bags.index_add(0, torch.from_numpy(known), self.project(chosen.to(bags.dtype)))
            return bags

        def pooled(self, batch: Batch, table: Any) -> Any:
            """Sum, maximum and count, of shape (copies, 2 * width + 1)."""
            counts = torch.from_numpy(batch.counts)
            kept, sizes = torch.from_numpy(batch.kept), counts
            if batch.masked.any():
                kept, sizes, table = _with_masks(torch, batch, table, functional.relu(self.mask))
            offsets = torch.cumsum(sizes, 0) - sizes
            sums = functional.embedding_bag(kept, table, offsets, mode="sum")
            largest = functional.embedding_bag(kept, table, offsets, mode="max")
            root = torch.sqrt(torch.clamp(counts, min=1).to(sums.dtype))[:, None]
            number = torch.from_numpy(count_feature(batch.counts)).to(sums.dtype)[:, None]
            return torch.cat([sums / root, largest, number], dim=1)

        def forward(self, batch: Batch, vectors: Any, ranges: list[Any] | None = None) -> Any:
            """The scores of copies; ``ranges`` gets the largest absolute activations."""
            embeddings = self.embeddings(batch, vectors)
            table = functional.relu(self.word(embeddings))
            hidden = self.norm(self.pooled(batch, table))
            recorded = [embeddings, table, hidden]
            for place, layer in enumerate(self.layers):
                hidden = layer(hidden if place == 0 else self.dropout(hidden))
                if place + 1 < len(self.layers):
                    hidden = functional.relu(hidden)
                    recorded.append(hidden)
            if ranges is not None:
                ranges.append([values.abs().amax(dim=0) for values in recorded])
            return hidden

    return Network()


def _with_masks(torch: Any, batch: Batch, table: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Kept tokens, with one more for the masked tokens of each copy that has any; and its vector in the table."""
    ends = np.cumsum(batch.counts)[batch.masked]
    kept = np.insert(batch.kept, ends, len(table))
    sizes = batch.counts + batch.masked
    return torch.from_numpy(kept), torch.from_numpy(sizes), torch.cat([table, mask[None]])


@dataclass
class Training:
    """A network in training, and what was measured of it."""

    settings: EmbeddingSettings
    module: Any
    copies: Copies
    vectors: Any
    history: list[dict[str, Any]] = field(default_factory=list)


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
    progress: Progress = lambda done, total: None,
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
        progress: called with (steps done, steps in all).

    Returns:
        The network, and a record of the training in plain values.
    """
    torch = torch_library()
    table = TrainingTokens.build(features, tokens)
    copies = Copies(table, labels, noise, settings.word_dropout)
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)))
    order = rng.permutation(len(labels))
    held_out = min(round(len(labels) * settings.validation), len(labels) - 1, EVALUATION_INPUTS)
    validation, training = np.sort(order[:held_out]), np.sort(order[held_out:])
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        length = 0 if vectors is None else vectors.shape[1]
        module = network_module(settings, features.size, length, classes)
        held = None if vectors is None else torch.from_numpy(np.ascontiguousarray(vectors))
        state = Training(settings, module, copies, held)
        record = _optimise(state, training, validation, rng, seed, progress)
        return _exported(state, training, seed), {**record, "examples": len(training), "held_out": len(validation)}


def _optimise(
    state: Training, training: IntArray, validation: IntArray, rng: np.random.Generator, seed: int, progress: Progress
) -> dict[str, Any]:
    torch, settings, module = torch_library(), state.settings, state.module
    layers = [value for name, value in module.named_parameters() if name != "rows"]
    rows = torch.optim.Adam([module.rows], lr=settings.embedding_rate, fused=True)
    dense = torch.optim.AdamW(layers, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    average = None
    best: tuple[tuple[float, float], dict[str, Any]] | None = None
    texts = _texts(training, max(1, settings.batch_size // settings.copies_per_text), rng)
    every = max(1, settings.steps // settings.evaluations)
    waited = step = 0
    module.train()
    for step in range(1, settings.steps + 1):
        share = step / settings.steps
        factor = min(1.0, share / 0.05) * 0.5 * (1 + cos(pi * share))
        for optimiser, rate in ((rows, settings.embedding_rate), (dense, settings.learning_rate)):
            optimiser.param_groups[0]["lr"] = rate * factor
        batch = state.copies.draw(next(texts), settings.copies_per_text, rng)
        loss = _loss(state, batch)
        rows.zero_grad(set_to_none=True)
        dense.zero_grad(set_to_none=True)
        loss.backward()
        rows.step()
        dense.step()
        if settings.averaging and step % 4 == 0:
            average = _averaged(module, average, settings.averaging**4)
        progress(step, settings.steps)
        if step % every == 0 or step == settings.steps:
            weights = module.state_dict() if average is None else average
            measured = _evaluate(state, validation, seed, weights)
            state.history.append({"step": step, "loss": float(loss.detach()), **measured})
            if len(validation):
                rank = (measured["vote_accuracy"], measured["vote_share"])
                if best is None or rank > best[0]:
                    best, waited = (rank, {name: value.clone() for name, value in weights.items()}), 0
                else:
                    waited += 1
                if waited >= settings.patience:
                    break
    if best is not None:
        module.load_state_dict(best[1])
    elif average is not None:
        module.load_state_dict(average)
    return {"steps": step, "history": state.history}


def _texts(training: IntArray, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Batches of examples, each example once before any comes again."""
    queue = np.zeros(0, dtype=np.int64)
    while True:
        while len(queue) < size:
            queue = np.concatenate([queue, rng.permutation(training)])
        yield queue[:size]
        queue = queue[size:]


def _loss(state: Training, batch: Batch) -> Any:
    """Cross entropy, and the divergence between the copies of a text."""
    torch, settings = torch_library(), state.settings
    functional = torch.nn.functional
    scores = state.module(batch, state.vectors)
    loss = functional.cross_entropy(scores, torch.from_numpy(batch.labels), label_smoothing=settings.label_smoothing)
    if settings.consistency and settings.copies_per_text > 1:
        shares = functional.log_softmax(scores, dim=1).reshape(-1, settings.copies_per_text, scores.shape[1])
        mean = shares.exp().mean(dim=1, keepdim=True)
        divergence = (mean * (torch.log(mean + 1e-12) - shares)).sum(dim=2).mean()
        loss = loss + settings.consistency * divergence
    return loss


def _averaged(module: Any, average: dict[str, Any] | None, decay: float) -> dict[str, Any]:
    state = module.state_dict()
    if average is None:
        return {name: value.clone() for name, value in state.items()}
    for name, value in state.items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
    return average


@contextmanager
def _evaluating(module: Any, weights: dict[str, Any] | None = None) -> Iterator[None]:
    """In evaluation mode, with other weights if given."""
    torch = torch_library()
    own = None
    if weights is not None and any(weights[name] is not value for name, value in module.state_dict().items()):
        own = {name: value.clone() for name, value in module.state_dict().items()}
        module.load_state_dict(weights)
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        module.train()
        if own is not None:
            module.load_state_dict(own)


def _evaluate(state: Training, validation: IntArray, seed: int, weights: dict[str, Any]) -> dict[str, float]:
    """The share of held-out inputs whose majority vote is right, and the mean share of right votes."""
    if not len(validation):
        return {}
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, HELD_OUT_STREAM], dtype=np.uint64)))
    right = []
    with _evaluating(state.module, weights):
        for start in range(0, len(validation), 128):
            batch = state.copies.draw(validation[start : start + 128], EVALUATION_COPIES, rng, training=False)
            votes = state.module(batch, state.vectors).argmax(dim=1).numpy().reshape(-1, EVALUATION_COPIES)
            labels = batch.labels.reshape(-1, EVALUATION_COPIES)
            right.append((votes == labels).mean(axis=1))
    shares = np.concatenate(right)
    return {"vote_accuracy": float((shares > 0.5).mean()), "vote_share": float(shares.mean())}


def _exported(state: Training, training: IntArray, seed: int) -> FloatNetwork:
    """The weights as arrays, with the ranges of activations on noisy copies of training examples."""
    torch, module = torch_library(), state.module
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, HELD_OUT_STREAM + 1], dtype=np.uint64)))
    recorded: list[list[Any]] = []
    with _evaluating(module):
        for _ in range(0, RANGE_COPIES, 512):
            batch = state.copies.draw(rng.choice(training, size=128), 4, rng)
            module(batch, state.vectors, recorded)
        ranges = [torch.stack(values).amax(dim=0).numpy() for values in zip(*recorded, strict=True)]
        norm = module.norm
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        projected = np.zeros((0, state.settings.dimensions), dtype=np.float32)
        if module.project is not None:
            projected = module.project(state.vectors.float()).numpy()
        return FloatNetwork(
            module.rows.numpy().copy(),
            projected,
            (module.word.weight.T.numpy().copy(), module.word.bias.numpy().copy()),
            torch.relu(module.mask).numpy().copy(),
            (scale.numpy().copy(), shift.numpy().copy()),
            [(layer.weight.T.numpy().copy(), layer.bias.numpy().copy()) for layer in module.layers],
            ranges,
        )
