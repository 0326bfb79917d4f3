"""The embedding network as a torch module, with sums over bags of rows and an optimiser for tables of embeddings."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adaptdel.classifiers.embedding_copies import Batch
from adaptdel.classifiers.integer_network import count_feature
from adaptdel.core.checks import IntArray
from adaptdel.hyperparameters import EmbeddingSettings

NEEDS = "training an EmbeddingClassifier needs torch: pip install 'adaptdel[embedding]'"


def torch_library() -> Any:
    """Torch, or an error that names the extra."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(NEEDS) from error
    return torch


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


class RowOptimiser:
    """Changes the rows of a table of which every step touches few; the other rows stay as they are.

    "table" divides gradients by the root of one running mean of their squares, which all rows share: a row moves by as
    much as its gradients add up to. "row" is Adam with moments of its own for each row. Adam takes steps of about
    the same size for every row: embeddings of rare words, such as names, move as far in a few steps as those
    of frequent words, and the network can learn by heart which texts they stand in.

    Args:
        rows: the table, of shape (rows, columns).
        scale: "table" or "row".
        decays: of the running means of gradients ("row" only) and of their squares.
    """

    def __init__(self, rows: Any, scale: str, decays: tuple[float, float] = (0.9, 0.999)) -> None:
        torch = torch_library()
        self.rows, self.scale, self.decays = rows, scale, decays
        size = rows.shape if scale == "row" else (1,)
        self.first, self.second = torch.zeros(size), torch.zeros(size)
        self.steps = 0

    def step(self, places: Any, gradient: Any, rate: float) -> None:
        """Change the rows at ``places`` by their gradients, of shape (places, columns)."""
        self.steps += 1
        if self.scale == "row":
            self._adam(places, gradient, rate)
            return
        high = self.decays[1]
        self.second.mul_(high).add_((gradient * gradient).mean(), alpha=1 - high)
        size = sqrt(float(self.second) / (1 - high**self.steps)) + 1e-12
        self.rows.index_add_(0, places, gradient * (-rate / size))

    def _adam(self, places: Any, gradient: Any, rate: float) -> None:
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
            self.mask = nn.Parameter(0.1 * torch.rand(settings.width))
            self.norm = nn.BatchNorm1d(2 * settings.width + 1)
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
