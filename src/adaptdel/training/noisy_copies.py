"""The noisy copies that a transformer is trained on: new ones in every epoch, the same ones after a resume.

Words are tokenised once. The copy of an example in an epoch depends on nothing but the seed, the epoch and the number
of the example; the order of an epoch depends on the seed and the epoch. A thread draws the next copies while the model
works on the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from adaptdel.classifiers.base import Request
from adaptdel.classifiers.subwords import Ids
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.core.noise import Noise
from adaptdel.units import Tokens, Unit

WINDOW = 50  # the most batches whose copies are sorted by length together, as in the Trainer's own grouping
COPIES, ORDER, SHUFFLE, VALIDATION = range(4)  # what a stream is for


def stream(seed: int, purpose: int, epoch: int, example: int = 0) -> np.random.Generator:
    """The Philox generator of one example in one epoch."""
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, 0, epoch, example], dtype=np.uint64)  # draws count up from the left
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@dataclass
class Clock:
    """Where the time of an epoch goes, in seconds.

    Attributes:
        began: when the epoch did.
        tokens: ids that the model has read, without padding.
        drawing: spent on noise and ids by the thread in the background.
        waiting: for which training stood still until copies were there.
        collating: spent on padding.
    """

    began: float = field(default_factory=time.perf_counter)
    tokens: int = 0
    drawing: float = 0.0
    waiting: float = 0.0
    collating: float = 0.0

    def reading(self) -> dict[str, float]:
        """The times since the epoch began."""
        found = asdict(self)
        return {"seconds": time.perf_counter() - found.pop("began"), **found}


class Copies:
    """A data set of noisy copies, and the collator that makes them the inputs of a model.

    An item is the number of an example; its copy is drawn for a whole window of examples before it is asked for.
    """

    def __init__(
        self,
        classifier: TransformersClassifier,
        tokens: Sequence[Tokens],
        targets: Sequence[int],
        *,
        noise: Noise,
        unit: Unit,
        seed: int,
        purpose: int = COPIES,
        noun: str = "example",
    ) -> None:
        masking = noise.masks_tokens
        self.ready = [
            classifier.prepare(f"{noun} {place}", row, unit, masking=masking) for place, row in enumerate(tokens)
        ]
        self.classifier, self.targets, self.noise = classifier, np.array(targets), noise
        self.seed, self.purpose, self.clock = seed, purpose, Clock()
        self.rows: dict[int, Ids] = {}

    def __len__(self) -> int:
        return len(self.ready)

    def __getitem__(self, place: int) -> tuple[Ids, int]:
        return self.rows[place], int(self.targets[place])

    def draw(self, epoch: int, places: Sequence[int]) -> dict[int, Ids]:
        """The ids of these examples' copies in an epoch."""
        start = time.perf_counter()
        found = {place: self._copy(epoch, place) for place in places}
        self.clock.drawing += time.perf_counter() - start
        return found

    def collate(self, items: Sequence[tuple[Ids, int]]) -> dict[str, Any]:
        """A batch as the model reads it, padded to its longest copy."""
        import torch

        start = time.perf_counter()
        batch = self.classifier.tensors(self.classifier.subwords.padded([row for row, _ in items]))
        batch["labels"] = torch.tensor([target for _, target in items])
        self.clock.tokens += sum(len(row) for row, _ in items)
        self.clock.collating += time.perf_counter() - start
        return batch

    def _copy(self, epoch: int, place: int) -> Ids:
        one = self.ready[place]
        kept = self.noise.sample(len(one.tokens), 1, stream(self.seed, self.purpose, epoch, place))
        return np.frombuffer(self.classifier.subwords.copies(Request(one, kept))[0], np.int32)


class Epochs:
    """The batches of an epoch: every example once, those of like length together.

    Examples come in random order, in equal windows of at most `WINDOW` batches; the copies of a window are sorted by
    length, cut into batches, and these are shuffled. ``epoch`` says which epoch comes next.
    """

    def __init__(self, copies: Copies, batch_size: int) -> None:
        self.copies, self.batch_size, self.epoch = copies, batch_size, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._coming: dict[tuple[int, int], Future[dict[int, Ids]]] = {}

    def __len__(self) -> int:
        return -(-len(self.copies) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        self.copies.clock = Clock()
        windows = self._windows(self.epoch)
        shuffle = stream(self.copies.seed, SHUFFLE, self.epoch)
        for number, window in enumerate(windows):
            self.copies.rows = self._drawn(self.epoch, number, window)
            if number + 1 < len(windows):
                self._ask(self.epoch, number + 1, windows[number + 1])
            else:  # the next epoch begins after validation
                self._ask(self.epoch + 1, 0, self._windows(self.epoch + 1)[0])
            batches = by_length(self.copies.rows, self.batch_size)
            yield from (batches[place] for place in shuffle.permutation(len(batches)))

    def _windows(self, epoch: int) -> list[list[int]]:
        order = stream(self.copies.seed, ORDER, epoch).permutation(len(self.copies)).tolist()
        size = self.batch_size * -(-len(self) // -(-len(self) // WINDOW))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _ask(self, epoch: int, number: int, window: list[int]) -> None:
        """Have the thread draw a window; it forgets the others."""
        self._coming = {(epoch, number): self._thread.submit(self.copies.draw, epoch, window)}

    def _drawn(self, epoch: int, number: int, window: list[int]) -> dict[int, Ids]:
        start = time.perf_counter()
        if (epoch, number) not in self._coming:
            self._ask(epoch, number, window)
        rows = self._coming[epoch, number].result()
        self.copies.clock.waiting += time.perf_counter() - start
        return rows


def by_length(rows: dict[int, Ids], batch_size: int) -> list[list[int]]:
    """Examples in batches of like lengths, the shortest first; those of one length in their own order."""
    order = sorted(rows, key=lambda place: len(rows[place]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class Validation:
    """Batches of validation copies, the same in every epoch."""

    def __init__(self, copies: Copies, batch_size: int) -> None:
        copies.rows = copies.draw(0, range(len(copies)))
        self.batches = by_length(copies.rows, batch_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)
