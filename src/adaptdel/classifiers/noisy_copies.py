"""Noisy copies of training examples, drawn anew in every epoch, in batches of similar length.

The copy of an example in an epoch depends only on the seed, the epoch and the number of the example; the order of an
epoch depends on the seed and the epoch. Only the copies of a window of batches are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adaptdel.classifiers.base import Prepared, Request, kept_tokens
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.noise import Noise
from adaptdel.text.data import SplitTexts
from adaptdel.text.units import Tokens, Unit, check_unit

WINDOW = 50  # batches whose copies are sorted by length together, at most
COPIES, ORDER, SHUFFLE, VALIDATION = range(4)  # the purposes of random streams


def stream(seed: int, purpose: int, epoch: int, example: int = 0) -> np.random.Generator:
    """The Philox generator for a purpose, an epoch and an example."""
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, 0, epoch, example], dtype=np.uint64)  # the generator increments the first words
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class NoisyCopies:
    """A data set of noisy copies; they are drawn for a window of examples before they are read.

    ``targets`` are the class numbers of the examples; ``encode`` turns copies into rows that have a length.
    """

    def __init__(
        self,
        tokens: Sequence[Tokens],
        targets: Sequence[int],
        *,
        noise: Noise,
        unit: Unit,
        seed: int,
        encode: Callable[[list[Request]], Sequence[Any]],
        purpose: int = COPIES,
    ) -> None:
        self.tokens, self.targets, self.noise, self.unit = tokens, np.array(targets), noise, unit
        self.seed, self.purpose, self.encode = seed, purpose, encode
        self.rows: dict[int, Any] = {}  # of the present window's copies, by the number of the example

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self.rows[number], int(self.targets[number])

    def draw(self, epoch: int, numbers: Sequence[int]) -> dict[int, Any]:
        """The rows of the copies of these examples in an epoch."""
        requests = []
        for number in numbers:
            prepared = Prepared(f"example {number}", self.tokens[number], self.unit, self.noise.masks_tokens)
            rng = stream(self.seed, self.purpose, epoch, number)
            requests.append(Request(prepared, self.noise.given(prepared.tokens).sample(len(prepared.tokens), 1, rng)))
        return dict(zip(numbers, self.encode(requests), strict=True))


class EpochBatches:
    """The batches of an epoch: every example once, grouped by length.

    Examples come in random order, in equal windows of at most `WINDOW` batches. The copies of a window are sorted by
    length and cut into batches, which are shuffled. ``epoch`` is the number of the next epoch.
    """

    def __init__(self, copies: NoisyCopies, batch_size: int) -> None:
        self.copies, self.batch_size, self.epoch = copies, batch_size, 0

    def __len__(self) -> int:
        return -(-len(self.copies) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = stream(self.copies.seed, ORDER, self.epoch).permutation(len(self.copies)).tolist()
        shuffle = stream(self.copies.seed, SHUFFLE, self.epoch)
        size = self.batch_size * -(-len(self) // -(-len(self) // WINDOW))
        for start in range(0, len(order), size):
            self.copies.rows = self.copies.draw(self.epoch, order[start : start + size])
            batches = by_length(self.copies.rows, self.batch_size)
            yield from (batches[number] for number in shuffle.permutation(len(batches)))


def by_length(rows: dict[int, Any], batch_size: int) -> list[list[int]]:
    """Batches of examples of similar length, the shortest first; equal lengths keep their order."""
    order = sorted(rows, key=lambda number: len(rows[number]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def train_on_noise(
    module: Any,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    noise: Noise,
    encode: Callable[[list[Any]], Any],
    unit: Any = "word",
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> CallableClassifier:
    """Train a torch module on noisy copies, drawn anew in every epoch, and return it as a base classifier.

    The same seed gives the same module.

    Args:
        module: gives logits, shape (copies, classes), for what ``encode`` returns; it is trained in place.
        texts: the examples.
        labels: their labels; the classes are the distinct ones in ascending order.
        noise: applied to the examples.
        encode: turns a list of copies into the input of the module, on its device. The row of a copy must depend on the
            copy alone: padding is masked.
        unit: what a token is.
        epochs: passes over the examples.
        batch_size: examples per step.
        learning_rate: of AdamW.
        seed: of all random numbers.
    """
    import torch

    unit, classes = check_unit(unit), sorted(set(labels))
    numbers = torch.tensor([classes.index(label) for label in labels])
    copies = NoisyCopies(
        SplitTexts(texts, unit),
        numbers.tolist(),
        noise=noise,
        unit=unit,
        seed=seed,
        encode=lambda requests: [unit.join(row) for request in requests for row in kept_tokens(request)],
    )
    batches = EpochBatches(copies, batch_size)
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        module.train()
        for batches.epoch in range(epochs):
            for batch in batches:
                logits = module(encode([copies.rows[number] for number in batch]))
                optimizer.zero_grad()
                loss: Any = torch.nn.functional.cross_entropy(logits, numbers[batch].to(logits.device))
                loss.backward()
                optimizer.step()
    module.eval()

    def scores(rows: list[Any]) -> Any:
        with torch.inference_mode():
            return module(encode(rows)).float().cpu().numpy()

    return CallableClassifier(scores, classes)
