"""Training of the embedding network in torch: large batches of noisy copies, each distinct token encoded once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import cos, pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adaptdel.classifiers.features import numbered
from adaptdel.classifiers.integer_network import FloatNetwork, TokenFeatures, count_feature
from adaptdel.core.checks import IntArray, check_int, check_probability, check_real
from adaptdel.core.noise import Noise

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
        present: the features that occur in the batch.
        features: for every feature of every distinct token, its number in ``present``; one token after another.
        feature_counts: how many features each distinct token has.
        words: the row of the pretrained vector of each distinct token, or -1.
        labels: the class number of each copy.
    """

    kept: IntArray
    counts: IntArray
    masked: npt.NDArray[np.bool_]
    present: IntArray
    features: IntArray
    feature_counts: IntArray
    words: IntArray
    labels: IntArray


class Copies:
    """Draws noisy copies of examples."""

    def __init__(self, tokens: TrainingTokens, labels: IntArray, noise: Noise, word_dropout: float, size: int) -> None:
        self.tokens, self.labels, self.noise, self.word_dropout = tokens, labels, noise, word_dropout
        self._token_number = np.zeros(len(tokens.words), dtype=np.int64)
        self._feature_number = np.zeros(size, dtype=np.int64)

    def draw(self, examples: IntArray, copies: int, rng: np.random.Generator, *, training: bool = True) -> Batch:
        """``copies`` noisy copies of each example; ``training`` leaves out words at random."""
        kept_codes, counts, masked = [], [], []
        for example in examples.tolist():
            codes = self.tokens.codes[example]
            kept = self.noise.sample(len(codes), copies, rng)
            counts.append(np.count_nonzero(kept, axis=1))
            kept_codes.append(codes[np.flatnonzero(kept) % max(1, len(codes))])
            masked.append(counts[-1] < len(codes))
        distinct, kept_numbers = _renumbered(np.concatenate(kept_codes), self._token_number)
        words = self.tokens.words[distinct]
        left_out = np.zeros(len(distinct), dtype=np.bool_)
        if training and self.word_dropout:
            left_out = rng.random(len(distinct)) < self.word_dropout
            words = np.where(left_out, -1, words)
        learnt, learnt_counts = _gather(self.tokens.learnt, distinct, left_out)
        hashed, hashed_counts = _gather(self.tokens.hashed, distinct, np.zeros_like(left_out))
        features, feature_counts = _interleaved(learnt, learnt_counts, hashed, hashed_counts)
        present, features = _renumbered(features, self._feature_number)
        all_masked = np.concatenate(masked) if self.noise.masks_tokens else np.zeros(len(examples) * copies, np.bool_)
        return Batch(
            kept_numbers,
            np.concatenate(counts).astype(np.int64),
            all_masked,
            present,
            features,
            feature_counts,
            words,
            np.repeat(self.labels[examples], copies),
        )


def _renumbered(values: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values in order, and the number of each value among them; ``numbers`` is zero before and after."""
    numbers[values] = 1
    distinct = np.flatnonzero(numbers)
    numbers[distinct] = np.arange(len(distinct))
    renumbered = numbers[values]
    numbers[distinct] = 0
    return distinct, renumbered


def _gather(
    table: tuple[IntArray, IntArray], rows: IntArray, empty: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Rows of a CSR table one after another, and their lengths; rows marked as ``empty`` have none."""
    values, ends = table
    counts = np.where(empty, 0, ends[rows + 1] - ends[rows])
    starts = np.repeat(ends[rows] - (np.cumsum(counts) - counts), counts)
    return values[starts + np.arange(int(counts.sum()))], counts


def _interleaved(
    first: IntArray, first_counts: IntArray, second: IntArray, second_counts: IntArray
) -> tuple[IntArray, IntArray]:
    """Two lists of rows joined row by row."""
    counts = first_counts + second_counts
    starts = np.cumsum(counts) - counts
    joined = np.empty(len(first) + len(second), dtype=np.int64)
    for values, sizes, offset in ((first, first_counts, starts), (second, second_counts, starts + first_counts)):
        joined[np.repeat(offset - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(values))] = values
    return joined, counts


def bag_sum(table: Any, members: IntArray, counts: IntArray) -> Any:
    """Sums of rows of a table, of shape (bags, columns); the gradient is computed by the same fast operation.

    Args:
        table: of shape (rows, columns).
        members: the rows in each bag, one bag after another.
        counts: the size of each bag.
    """
    torch = torch_library()

    class BagSum(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(context: Any, values: Any) -> Any:
            context.rows = len(values)
            return _bags(torch, values, members, counts)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            ones = np.ones(len(members), dtype=np.int8)
            ends = np.concatenate([[0], np.cumsum(counts)])
            transposed = sparse.csr_array((ones, members, ends), shape=(len(counts), context.rows)).tocsc()
            return _bags(torch, gradient, transposed.indices, np.diff(transposed.indptr))

    return BagSum.apply(table)


def _bags(torch: Any, table: Any, members: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Any:
    offsets = np.cumsum(counts) - counts
    indices = torch.from_numpy(np.asarray(members, dtype=np.int64))
    return torch.nn.functional.embedding_bag(indices, table, torch.from_numpy(offsets.astype(np.int64)), mode="sum")


class RowAdam:
    """Adam for a table of which every step touches few rows: the other rows and their moments stay as they are."""

    def __init__(self, rows: Any, decays: tuple[float, float] = (0.9, 0.999)) -> None:
        torch = torch_library()
        self.rows, self.decays = rows, decays
        self.first, self.second = torch.zeros_like(rows), torch.zeros_like(rows)
        self.steps = 0

    def step(self, places: Any, gradient: Any, rate: float) -> None:
        """Change the rows at ``places`` by their gradients, of shape (places, columns)."""
        self.steps += 1
        low, high = self.decays
        first, second = self.first.index_select(0, places), self.second.index_select(0, places)
        first.lerp_(gradient, 1 - low)
        second.mul_(high).addcmul_(gradient, gradient, value=1 - high)
        self.first.index_copy_(0, places, first)
        self.second.index_copy_(0, places, second)
        size = second.sqrt_().mul_(1 / sqrt(1 - high**self.steps)).add_(1e-8)
        change = first.div_(size).mul_(-rate / (1 - low**self.steps))
        self.rows.index_add_(0, places, change)


def network_module(settings: EmbeddingSettings, pretrained: int, classes: int) -> Any:
    """The network without its embeddings as a torch module; ``pretrained`` is the length of pretrained vectors or 0."""
    torch = torch_library()
    nn, functional = torch.nn, torch.nn.functional

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(pretrained, settings.dimensions, bias=False) if pretrained else None
            self.word = nn.Linear(settings.dimensions, settings.width)
            self.mask = nn.Parameter(torch.zeros(settings.width))
            self.norm = nn.BatchNorm1d(2 * settings.width + 1, momentum=0.02)
            sizes = [2 * settings.width + 1, *settings.hidden, classes]
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

        def embeddings(self, batch: Batch, rows: Any, vectors: Any) -> Any:
            """Of the distinct tokens, of shape (tokens, dimensions)."""
            bags = bag_sum(rows, batch.features, batch.feature_counts)
            bags = bags / torch.sqrt(torch.from_numpy(batch.feature_counts).to(bags.dtype))[:, None]
            known = np.flatnonzero(batch.words >= 0)
            if self.project is not None and len(known):
                chosen = vectors.index_select(0, torch.from_numpy(batch.words[known]))
                bags = bags.index_add(0, torch.from_numpy(known), self.project(chosen.to(bags.dtype)))
            return bags

        def pooled(self, batch: Batch, table: Any) -> Any:
            """Sum, maximum and count, of shape (copies, 2 * width + 1)."""
            kept, sizes = batch.kept, batch.counts
            if batch.masked.any():
                kept = np.insert(kept, np.cumsum(sizes)[batch.masked], len(table))
                sizes = sizes + batch.masked
                table = torch.cat([table, functional.relu(self.mask)[None]])
            sums = bag_sum(table, kept, sizes)
            offsets = torch.from_numpy(np.cumsum(sizes) - sizes)
            largest = functional.embedding_bag(torch.from_numpy(kept), table, offsets, mode="max")
            counts = torch.from_numpy(batch.counts)
            root = torch.sqrt(torch.clamp(counts, min=1).to(sums.dtype))[:, None]
            number = torch.from_numpy(count_feature(batch.counts)).to(sums.dtype)[:, None]
            return torch.cat([sums / root, largest, number], dim=1)

        def forward(
            self, batch: Batch, rows: Any, vectors: Any, *, rng: Any = None, ranges: list[Any] | None = None
        ) -> Any:
            """The scores of copies.

            Args:
                batch: the copies.
                rows: the embeddings of the features that occur in the batch.
                vectors: all pretrained vectors.
                rng: a numpy generator for dropout in training.
                ranges: gets the largest absolute activations.
            """
            embeddings = self.embeddings(batch, rows, vectors)
            table = functional.relu(self.word(embeddings))
            hidden = self.norm(self.pooled(batch, table))
            recorded = [embeddings, table, hidden]
            for place, layer in enumerate(self.layers):
                hidden = layer(hidden)
                if place + 1 < len(self.layers):
                    hidden = functional.relu(hidden)
                    recorded.append(hidden)
                    if rng is not None and settings.dropout:
                        hidden = _dropped(torch, hidden, settings.dropout, rng)
            if ranges is not None:
                ranges.append([values.abs().amax(dim=0) for values in recorded])
            return hidden

    return Network()


def _dropped(torch: Any, values: Any, share: float, rng: np.random.Generator) -> Any:
    """Dropout with random bytes of numpy, which are drawn ten times as fast as those of torch."""
    threshold = round(share * 256)
    drawn = np.frombuffer(rng.bytes(values.numel()), dtype=np.uint8).reshape(tuple(values.shape))
    return values * torch.from_numpy((drawn >= threshold).astype(np.float32) * np.float32(256 / (256 - threshold)))


@dataclass
class Training:
    """A network in training, and what was measured of it."""

    settings: EmbeddingSettings
    module: Any
    rows: Any
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
    copies = Copies(table, labels, noise, settings.word_dropout, features.size)
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)))
    order = rng.permutation(len(labels))
    held_out = min(round(len(labels) * settings.validation), len(labels) - 1, EVALUATION_INPUTS)
    validation, training = np.sort(order[:held_out]), np.sort(order[held_out:])
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        length = 0 if vectors is None else vectors.shape[1]
        module = network_module(settings, length, classes)
        rows = torch.randn(features.size, settings.dimensions) * 0.1
        held = None if vectors is None else torch.from_numpy(np.ascontiguousarray(vectors))
        state = Training(settings, module, rows, copies, held)
        record = _optimise(state, training, validation, rng, seed, progress)
        return _exported(state, training, seed), {**record, "examples": len(training), "held_out": len(validation)}


def _optimise(
    state: Training, training: IntArray, validation: IntArray, rng: np.random.Generator, seed: int, progress: Progress
) -> dict[str, Any]:
    torch, settings, module = torch_library(), state.settings, state.module
    rows = RowAdam(state.rows)
    dense = torch.optim.AdamW(
        module.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    average = None
    best: tuple[tuple[float, float], dict[str, Any]] | None = None
    every = max(1, settings.steps // settings.evaluations)
    dropout = np.random.Generator(np.random.Philox(key=np.array([seed, 1], dtype=np.uint64)))
    waited = step = 0
    module.train()
    for step, batch in enumerate(_batches(state, training, rng), start=1):
        share = step / settings.steps
        factor = min(1.0, share / 0.05) * 0.5 * (1 + cos(pi * share))
        dense.param_groups[0]["lr"] = settings.learning_rate * factor
        places = torch.from_numpy(batch.present)
        present = state.rows.index_select(0, places).requires_grad_()
        loss = _loss(state, batch, present, dropout)
        dense.zero_grad(set_to_none=True)
        loss.backward()
        rows.step(places, present.grad, settings.embedding_rate * factor)
        dense.step()
        if settings.averaging and step % 4 == 0:
            average = _averaged(_weights(state), average, settings.averaging**4)
        progress(step, settings.steps)
        if step % every == 0 or step == settings.steps:
            weights = _weights(state) if average is None else average
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
        _restore(state, best[1])
    elif average is not None:
        _restore(state, average)
    return {"steps": step, "history": state.history}


def _batches(state: Training, training: IntArray, rng: np.random.Generator) -> Iterator[Batch]:
    """The batches of all steps; the next one is drawn in a thread while a step is computed."""
    settings = state.settings
    texts = _texts(training, max(1, settings.batch_size // settings.copies_per_text), rng)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(state.copies.draw, next(texts), settings.copies_per_text, rng)
        for step in range(settings.steps):
            batch = coming.result()
            if step + 1 < settings.steps:
                coming = pool.submit(state.copies.draw, next(texts), settings.copies_per_text, rng)
            yield batch


def _weights(state: Training) -> dict[str, Any]:
    return {"rows": state.rows, **{f"module.{name}": value for name, value in state.module.state_dict().items()}}


def _restore(state: Training, weights: dict[str, Any]) -> None:
    state.rows.copy_(weights["rows"])
    state.module.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()
                                  if name != "rows"})  # fmt: skip


def _texts(training: IntArray, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Batches of examples, each example once before any comes again."""
    queue = np.zeros(0, dtype=np.int64)
    while True:
        while len(queue) < size:
            queue = np.concatenate([queue, rng.permutation(training)])
        yield queue[:size]
        queue = queue[size:]


def _loss(state: Training, batch: Batch, rows: Any, dropout: np.random.Generator) -> Any:
    """Cross entropy, and the divergence between the copies of a text."""
    torch, settings = torch_library(), state.settings
    functional = torch.nn.functional
    scores = state.module(batch, rows, state.vectors, rng=dropout)
    loss = functional.cross_entropy(scores, torch.from_numpy(batch.labels), label_smoothing=settings.label_smoothing)
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
        current = {name: value.clone() for name, value in _weights(state).items()}
        _restore(state, weights)
    state.module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        state.module.train()
        if current is not None:
            _restore(state, current)


def _evaluate(state: Training, validation: IntArray, seed: int, weights: dict[str, Any]) -> dict[str, float]:
    """The share of held-out inputs whose majority vote is right, and the mean share of right votes."""
    if not len(validation):
        return {}
    torch = torch_library()
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, HELD_OUT_STREAM], dtype=np.uint64)))
    right = []
    with _evaluating(state, weights):
        for start in range(0, len(validation), 128):
            batch = state.copies.draw(validation[start : start + 128], EVALUATION_COPIES, rng, training=False)
            rows = state.rows.index_select(0, torch.from_numpy(batch.present))
            votes = state.module(batch, rows, state.vectors).argmax(dim=1).numpy().reshape(-1, EVALUATION_COPIES)
            labels = batch.labels.reshape(-1, EVALUATION_COPIES)
            right.append((votes == labels).mean(axis=1))
    shares = np.concatenate(right)
    return {"vote_accuracy": float((shares > 0.5).mean()), "vote_share": float(shares.mean())}


def _exported(state: Training, training: IntArray, seed: int) -> FloatNetwork:
    """The weights as arrays, with the ranges of activations on noisy copies of training examples."""
    torch, module = torch_library(), state.module
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, HELD_OUT_STREAM + 1], dtype=np.uint64)))
    recorded: list[list[Any]] = []
    with _evaluating(state):
        for _ in range(0, RANGE_COPIES, 512):
            batch = state.copies.draw(rng.choice(training, size=128), 4, rng)
            rows = state.rows.index_select(0, torch.from_numpy(batch.present))
            module(batch, rows, state.vectors, ranges=recorded)
        ranges = [torch.stack(values).amax(dim=0).numpy() for values in zip(*recorded, strict=True)]
        norm = module.norm
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        projected = np.zeros((0, state.settings.dimensions), dtype=np.float32)
        if module.project is not None:
            projected = module.project(state.vectors.float()).numpy()
        return FloatNetwork(
            state.rows.numpy().copy(),
            projected,
            (module.word.weight.T.numpy().copy(), module.word.bias.numpy().copy()),
            torch.relu(module.mask).numpy().copy(),
            (scale.numpy().copy(), shift.numpy().copy()),
            [(layer.weight.T.numpy().copy(), layer.bias.numpy().copy()) for layer in module.layers],
            ranges,
        )
