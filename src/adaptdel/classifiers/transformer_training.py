"""Train torch modules on noisy copies: transformers, by ordinary steps or those of FreeLB (Zhu et al. 2020), or others.

Copies are drawn again in every epoch, in batches of similar length. The copy of an example in an epoch depends only on
the seed, the epoch and the number of the example; the order of an epoch depends on the seed and the epoch. Only the
copies of a window of batches are in memory.

Every epoch of a transformer ends with a checkpoint, one file that is replaced atomically: weights, the best weights so
far, the state of AdamW and of the random generators, and the history. Training that is interrupted goes on from there
as if it had not been.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from adaptdel.classifiers.base import Prepared, Request, kept_tokens
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.classifiers.linear_training import class_weights
from adaptdel.classifiers.subwords import is_out_of_memory
from adaptdel.classifiers.transformers import (
    TrainingRun,
    TransformersClassifier,
    add_weights,
    isolated_randomness,
    matmul_precision,
    quietly,
)
from adaptdel.core.noise import Noise
from adaptdel.files import replacing
from adaptdel.settings import TransformerTrainingSettings
from adaptdel.store import check_same_job
from adaptdel.text.data import ExampleSet, SplitTexts
from adaptdel.text.units import Tokens, Unit, check_unit

CHECKPOINT = "checkpoint.pt"
TOKENS = 4096  # per forward pass on a CPU, with padding: attention over 32 long texts at once takes many gigabytes
WINDOW = 50  # batches whose copies are sorted by length together, at most
COPIES, ORDER, SHUFFLE, VALIDATION = range(4)  # the purposes of random streams
SMALL = 1e-8  # gradients of a smaller norm are divided by this

Batch = dict[str, Any]
T = TypeVar("T")


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

    def draw(self, epoch: int, numbers: Sequence[int]) -> dict[int, Any]:
        """The rows of the copies of these examples in an epoch."""
        requests = []
        for number in numbers:
            prepared = Prepared(f"example {number}", self.tokens[number], self.unit, self.noise.masks_tokens)
            rng = stream(self.seed, self.purpose, epoch, number)
            requests.append(Request(prepared, self.noise.given(prepared.tokens).sample(len(prepared.tokens), 1, rng)))
        return dict(zip(numbers, self.encode(requests), strict=True))


class EpochBatches:
    """The batches of an epoch: every example once, grouped by length or shuffled.

    Examples come in random order, in equal windows of at most `WINDOW` batches. The copies of a window are sorted by
    length, if they are grouped, and cut into batches, which are shuffled. ``epoch`` is the number of the next epoch.
    """

    def __init__(self, copies: NoisyCopies, batch_size: int, *, grouped: bool = True) -> None:
        self.copies, self.batch_size, self.grouped, self.epoch = copies, batch_size, grouped, 0

    def __len__(self) -> int:
        return -(-len(self.copies.tokens) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = stream(self.copies.seed, ORDER, self.epoch).permutation(len(self.copies.tokens)).tolist()
        shuffle = stream(self.copies.seed, SHUFFLE, self.epoch)
        size = self.batch_size * -(-len(self) // -(-len(self) // WINDOW))
        for start in range(0, len(order), size):
            self.copies.rows = self.copies.draw(self.epoch, order[start : start + size])
            batches = (by_length if self.grouped else in_order)(self.copies.rows, self.batch_size)
            yield from (batches[number] for number in shuffle.permutation(len(batches)))


def by_length(rows: dict[int, Any], batch_size: int) -> list[list[int]]:
    """Batches of examples of similar length, the shortest first; equal lengths keep their order."""
    return in_order(sorted(rows, key=lambda number: len(rows[number])), batch_size)


def in_order(rows: Iterable[int], batch_size: int) -> list[list[int]]:
    """Batches of examples in their order."""
    order = list(rows)
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
    fingerprint: str = "",
) -> CallableClassifier:
    """Train a torch module on noisy copies, drawn again in every epoch, and return it as a base classifier.

    The same seed gives the same module.

    Args:
        module: gives logits, shape (copies, classes), for what ``encode`` returns; it is trained in place.
        texts: the examples.
        labels: their labels; the classes are the distinct ones in ascending order.
        noise: applied to the examples.
        encode: turns a list of copies into the input of the module, on its device. The row of a copy must depend on the
            copy alone: mask the padding.
        unit: what a token is.
        epochs: passes over the examples.
        batch_size: examples per step.
        learning_rate: of AdamW.
        seed: of all random numbers.
        fingerprint: a string that you change when ``encode`` or the code of the module changes, such as "v3". Without
            one, runs cannot be resumed.
    """
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

    digest = hashlib.sha256()
    add_weights(digest, module)
    return CallableClassifier(scores, classes, fingerprint=fingerprint and f"{fingerprint} {digest.hexdigest()}")


def train_transformer(
    classifier: TransformersClassifier,
    examples: ExampleSet,
    held: ExampleSet,
    *,
    noise: Noise,
    unit: Unit,
    settings: TransformerTrainingSettings,
    run: TrainingRun,
) -> None:
    """Train a classifier on noisy copies, drawn again for every example and epoch; sets its ``training_``.

    The copies of the validation set, ``held``, are drawn once. The same seed gives the same model on the same machine
    with the same number of threads. The classifier changes only when training has finished.
    """
    if settings.precision == "tf32" and not classifier.device.startswith("cuda"):
        raise ValueError(
            f"precision must be 'float32' or 'bfloat16' on the device {classifier.device!r}, which has no TF32"
        )
    if settings.compile and run.freelb:
        raise ValueError("compile must be False for FreeLB, which changes the embeddings in every pass")
    classes = sorted(set(examples.labels))
    numbers = {label: number for number, label in enumerate(classes)}
    identity = {
        "model": classifier.name if classifier.has_source else f"{classifier.name} {classifier.fingerprint()}",
        "noise": noise.to_dict(),
        "unit": unit.kind,
        "training data": _digest(examples),
        "validation data": _digest(held),
        "settings": asdict(settings),
        "freelb": run.freelb,
        "class_weight": run.class_weight,
    }
    subwords = classifier.subwords
    subwords.check(examples.tokens[0], unit, noise.masks_tokens)
    with quietly(), isolated_randomness(settings.seed), TemporaryDirectory() as temporary:
        copies = [
            NoisyCopies(
                part.tokens,
                [numbers[label] for label in part.labels],
                noise=noise,
                unit=unit,
                seed=settings.seed,
                encode=lambda requests: subwords.encode([text for row in requests for text in subwords.texts(row)]),
                purpose=purpose,
            )
            for part, purpose in ((examples, COPIES), (held, VALIDATION))
        ]
        model = classifier.with_head(classes)
        model.config.problem_type = "single_label_classification"
        kind = FreeLBTrainer if run.freelb else NoisyTrainer
        trainer = kind(classifier, model, settings, copies[0], copies[1], run)
        with matmul_precision(settings.precision):
            trainer.train_until_finished(Path(temporary if run.folder is None else run.folder), identity)
        if trainer.best is None:
            raise ValueError(
                "learning_rate must be smaller for this model and data: the validation loss was never a number"
            )
        model.load_state_dict(trainer.best)
        classifier.untrained_ = False
        classifier.install(model.cpu())
    classifier.training_ = {
        "noise": noise.to_dict(),
        "history": trainer.history,
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "epochs": len(trainer.history),
        "best_epoch": best_epoch(trainer.history),
        "steps": trainer.steps,
    }


def _digest(examples: ExampleSet) -> str:
    digest = hashlib.sha256()
    for row, label in zip(examples.tokens, examples.labels, strict=True):
        digest.update(repr((list(row), str(label))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def best_epoch(history: list[dict[str, float]]) -> int:
    """The first epoch with the smallest validation loss, counted from 1."""
    losses = [inf if isnan(row["valid_loss"]) else row["valid_loss"] for row in history]
    return 1 + losses.index(min(losses))


class NoisyTrainer:
    """Trains a model, in place, on fresh noisy copies in batches of similar length."""

    def __init__(
        self,
        classifier: TransformersClassifier,
        model: Any,
        settings: TransformerTrainingSettings,
        train: NoisyCopies,
        valid: NoisyCopies,
        run: TrainingRun,
    ) -> None:
        self.classifier, self.settings, self.train, self.valid, self.run = classifier, settings, train, valid, run
        self.device = torch.device(classifier.device)
        self.model = model.to(self.device)
        self.forward = torch.compile(model, dynamic=True) if settings.compile else model
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]  # biases and norms
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        weights = class_weights(run.class_weight, train.targets, model.config.num_labels)
        self.class_weights = torch.tensor(weights).to(self.device, torch.float32)
        self.epochs = EpochBatches(train, settings.batch_size, grouped=settings.batches == "length")
        self.most_tokens: float = TOKENS if self.device.type == "cpu" else inf  # per pass
        self.is_short_of_memory = False
        self.history: list[dict[str, float]] = []  # a row for each epoch; the learning rate is that of its last step
        self.steps = 0
        self.best: dict[str, torch.Tensor] | None = None  # the weights of the best epoch; None if no loss was a number

    def train_until_finished(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Run the epochs that are left."""
        self.resume(folder, identity)
        self.valid.rows = self.valid.draw(0, range(len(self.valid.tokens)))
        # All epochs, unless early stopping ends the training.
        while len(self.history) < self.settings.epochs and (
            not self.history or len(self.history) - best_epoch(self.history) < self.settings.patience
        ):
            started = time.perf_counter()
            train_loss, rate = self.train_epoch()
            valid_loss, accuracy = self.validate()
            row = {"epoch": len(self.history) + 1, "train_loss": train_loss, "valid_loss": valid_loss}
            row |= {"valid_accuracy": accuracy, "learning_rate": rate, "seconds": time.perf_counter() - started}
            self.history.append(row)
            if best_epoch(self.history) == len(self.history) and valid_loss == valid_loss:
                self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.save(folder, identity)
            if self.run.epoch_done is not None:
                self.run.epoch_done(row)

    def train_epoch(self) -> tuple[float, float]:
        """The mean loss of an epoch's steps, and the learning rate of the last one."""
        self.model.train()
        self.epochs.epoch = len(self.history)
        total, count, rate = torch.zeros((), device=self.device), 0, 0.0
        most = self.settings.epochs * len(self.epochs)
        warmup = round(self.settings.warmup_epochs * len(self.epochs))
        for numbers in self.epochs:
            # The learning rate rises linearly to its full value, and falls linearly to 0.
            falling = max(0.0, (most - self.steps) / max(1, most - warmup))
            rate = self.settings.learning_rate * (self.steps / warmup if self.steps < warmup else falling)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.zero_grad()
            total += self.step(self.collate(self.train, numbers))
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            self.steps, count = self.steps + 1, count + 1
            if self.run.progress is not None:
                self.run.progress(self.steps, most)
        return float(total) / count, rate

    def collate(self, copies: NoisyCopies, numbers: list[int]) -> Batch:
        """A batch of tensors, padded to its longest copy."""
        rows = self.classifier.subwords.padded([copies.rows[number] for number in numbers])
        labels = torch.from_numpy(copies.targets[numbers])
        return {**self.classifier.tensors(rows), "labels": labels.to(self.device, non_blocking=True)}

    def step(self, batch: Batch) -> torch.Tensor:
        """One pass over the batch, or several over parts of it, with the same gradient; returns the loss."""
        rows = len(batch["input_ids"])
        return torch.stack(self.in_parts(batch, lambda part: self.pass_over(part, rows))).sum()

    def in_parts(self, batch: Batch, work: Callable[[Batch], T]) -> list[T]:
        """What ``work`` returns for each part of a batch; a part that does not fit in memory is halved from here on."""
        rows, length = batch["input_ids"].shape
        size = int(max(1, min(rows, self.most_tokens // length)))
        parts = (
            {name: tensor[start : start + size] for name, tensor in batch.items()} for start in range(0, rows, size)
        )
        try:
            return [work(part) for part in parts]
        except Exception as error:
            if size == 1 or not is_out_of_memory(error):
                raise
        if not self.is_short_of_memory:
            warnings.warn(
                f"{size * length} subwords do not fit in memory to train on: batches are read in parts from here on",
                stacklevel=2,
            )
        self.is_short_of_memory, self.most_tokens = True, size * length // 2
        self.optimizer.zero_grad()
        return self.in_parts(batch, work)

    def pass_over(self, part: Batch, rows: float) -> torch.Tensor:
        """Forward and backward over a part of a batch of ``rows``; returns its part of the mean loss."""
        loss = (self.losses(part)[0] * self.class_weights[part["labels"]]).sum() / rows
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each row, and whether its class is right; shape (rows,)."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits = self.forward(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
        losses = cross_entropy(logits.float(), batch["labels"], reduction="none")
        return losses, logits.argmax(1) == batch["labels"]

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """The mean loss and the accuracy on the validation copies."""
        self.model.eval()
        batches = by_length(self.valid.rows, self.settings.batch_size)
        collated = (self.collate(self.valid, batch) for batch in batches)
        outcomes = [outcome for batch in collated for outcome in self.in_parts(batch, self.losses)]
        loss, right = (torch.cat([outcome[part].double() for outcome in outcomes]).mean() for part in (0, 1))
        return float(loss), float(right)

    def save(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": json.loads(json.dumps(identity)),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": _random_state(self.device),
            **{name: getattr(self, name) for name in ("history", "steps", "best")},
        }
        with replacing(folder / CHECKPOINT) as file:
            torch.save(state, file)

    def resume(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Go on from the checkpoint, if there is one; ValueError if it belongs to another training."""
        path = folder / CHECKPOINT
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # of a damaged file, whatever torch raises
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(f"{path}: damaged ({reason:.80}): delete it, or choose another folder") from None
        check_same_job(folder, state["identity"], identity, "delete it, or choose another folder")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        _set_random_state(self.device, state["random"])
        for name in ("history", "steps", "best"):
            setattr(self, name, state[name])


class FreeLBTrainer(NoisyTrainer):
    """The training loop with FreeLB's step. ``adv_steps=1, adv_init=0`` is ordinary training."""

    def pass_over(self, part: Batch, rows: float) -> torch.Tensor:
        """Run K passes, and sum a K-th of each gradient; returns the mean of their losses."""
        settings, losses = self.settings, []
        embed = self.model.get_input_embeddings()
        ids = part["input_ids"]
        real = part.get("attention_mask", torch.ones_like(ids)).to(embed.weight)  # 1 for tokens, 0 for padding
        perturbation = first_perturbation(real, embed.weight.shape[-1], settings.adv_init)
        dropout = _random_state(self.device)
        for number in range(settings.adv_steps):
            if number:
                # A step of length ``adv_lr`` along the gradient of each text, projected onto the ball of ``adv_norm``.
                if perturbation.grad is None:
                    raise RuntimeError("FreeLB needs a model that uses its input embeddings")
                gradient = perturbation.grad * real[:, :, None]
                step = settings.adv_lr * gradient / _norms(gradient).clamp_min(SMALL)
                perturbation = perturbation.detach() + step
                if settings.adv_norm > 0:
                    shrinking = settings.adv_norm / _norms(perturbation).clamp_min(SMALL)
                    perturbation = perturbation * shrinking.clamp_max(1)
                _set_random_state(self.device, dropout)
            perturbation.requires_grad_()
            # Added to the token embeddings; positions, types and masks stay those of the ids.
            handle = embed.register_forward_hook(lambda module, inputs, output, added=perturbation: output + added)
            try:
                losses.append(super().pass_over(part, rows * settings.adv_steps))
            finally:
                handle.remove()
        return torch.stack(losses).sum()


def first_perturbation(real: torch.Tensor, width: int, size: float) -> torch.Tensor:
    """Uniform in ±size / √(length · width) at the tokens of a text, 0 at the padding; shape (texts, tokens, width)."""
    perturbation = real.new_zeros((*real.shape, width))
    if size == 0:
        return perturbation
    scale = size / (real.sum(1) * width).sqrt()
    return perturbation.uniform_(-1, 1) * (real * scale[:, None])[:, :, None]


def _norms(values: torch.Tensor) -> torch.Tensor:
    """The norm over all tokens of each text, shape (texts, 1, 1)."""
    return values.flatten(1).norm(dim=1)[:, None, None]


def _random_state(device: torch.device) -> torch.Tensor:
    """The generator of the model's device, from which dropout is drawn."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
