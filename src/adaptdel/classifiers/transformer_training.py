"""Train a transformer on noisy copies: checkpoints, resuming, and the same model for the same seed.

This is the only training of transformers: `TransformersClassifier.fit` and ``adaptdel train`` both call
`train_transformer`. The training loop itself is in `adaptdel.classifiers.noisy_trainer`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import ceil, inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adaptdel.classifiers.transformers import (
    NEEDS,
    SAFE,
    TransformersClassifier,
    isolated_randomness,
    libraries,
    matmul_precision,
    quietly,
)
from adaptdel.core.checks import check_choice
from adaptdel.core.noise import Noise
from adaptdel.files import read_json, write_json
from adaptdel.settings import CLASS_WEIGHTS, TRAINING, TransformerTrainingSettings
from adaptdel.text.data import ExampleSet
from adaptdel.text.units import Unit

STATE = "trainer_state.json"
MARK = "complete.json"  # the hashes of a checkpoint's files, written last
RUN = "run.json"  # what the checkpoints of a folder were trained on
LOSS = "cross_entropy"  # the mean over the validation copies, however they are batched

State = dict[str, Any]


def claim(folder: Path, run: Mapping[str, str]) -> None:
    """Create the folder of a run, or check that it holds checkpoints of the same run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if path.exists():
        stored = read_json(path, "what the checkpoints of a training come from")
        differing = [name for name in run if stored.get(name) != run[name]]
        if differing:
            raise ValueError(
                f"folder must be empty or hold checkpoints of the same run, got {str(folder)!r} with a run of another "
                f"{differing[0]}: delete it or choose another folder"
            )
    write_json(path, run)


def mark(checkpoint: Path) -> None:
    """Mark a checkpoint as complete."""
    write_json(checkpoint / MARK, _hashes(checkpoint))


def last_whole(folder: Path) -> Path | None:
    """The last checkpoint that is complete, as is the best checkpoint that it names; incomplete ones are removed."""
    complete = {}
    for checkpoint in folder.glob("checkpoint-*"):
        number = checkpoint.name.rpartition("-")[2]
        if number.isdigit() and _is_complete(checkpoint):
            complete[int(number)] = checkpoint
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
    for _, checkpoint in sorted(complete.items(), reverse=True):
        best = best_checkpoint(checkpoint)
        if best is None or best in complete.values():
            return checkpoint
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def read_state(checkpoint: Path) -> State:
    """The Trainer's state at a checkpoint."""
    state: State = read_json(checkpoint / STATE, "the state of a training")
    return state


def best_checkpoint(checkpoint: Path) -> Path | None:
    """The checkpoint with the smallest validation loss up to this one; None if no loss was a number."""
    best = read_state(checkpoint).get("best_model_checkpoint")
    return None if best is None else checkpoint.parent / Path(best).name


def epochs_of(state: State) -> list[dict[str, float]]:
    """The logged values, one dictionary per epoch."""
    epochs: dict[int, dict[str, float]] = {}
    for entry in state["log_history"]:
        if "loss" in entry or f"eval_{LOSS}" in entry:
            epochs.setdefault(entry["step"], {}).update(entry)
    return [epochs[step] for step in sorted(epochs)]


def history_of(state: State) -> list[dict[str, float]]:
    """Losses, accuracy, learning rate and time of every epoch."""
    return [
        {
            "epoch": max(1, ceil(entry["epoch"] - 1e-6)),
            "train_loss": entry["loss"],
            "valid_loss": entry[f"eval_{LOSS}"],
            "valid_accuracy": entry["eval_accuracy"],
            "learning_rate": entry["learning_rate"],
            "seconds": entry["seconds"] + entry["eval_runtime"],
        }
        for entry in epochs_of(state)
    ]


def best_epoch(history: list[dict[str, float]]) -> int:
    """The first epoch with the smallest validation loss, counted from 1."""
    losses = [inf if isnan(row["valid_loss"]) else row["valid_loss"] for row in history]
    return 1 + losses.index(min(losses))


def is_finished(history: list[dict[str, float]], epochs: int, patience: int) -> bool:
    """Whether all epochs are done, or early stopping has ended the training."""
    return len(history) >= epochs or len(history) - best_epoch(history) >= patience


def _is_complete(checkpoint: Path) -> bool:
    try:
        return read_json(checkpoint / MARK, "a mark") == _hashes(checkpoint)
    except (OSError, ValueError):
        return False


def _hashes(checkpoint: Path) -> dict[str, str]:
    """The SHA-256 of every file except the mark."""
    hashes = {}
    for path in sorted(path for path in checkpoint.iterdir() if path.is_file() and path.name != MARK):
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class TrainingRun:
    """What governs a training besides its hyperparameters.

    Attributes:
        folder: for checkpoints, at most three at a time, so that the same call resumes an interrupted training; None
            for a temporary one.
        freelb: whether to perturb the embeddings as FreeLB does.
        class_weight: "balanced" gives every class the same weight in the training loss; None every example.
        max_minutes: training stops after this time, in the middle of an epoch if need be, and keeps the best checkpoint
            so far. The result then depends on the speed of the machine.
        progress: called with (steps done, largest possible number of steps).
        epoch_done: called with the history's row of every epoch that ends.
    """

    folder: str | Path | None = None
    freelb: bool = False
    class_weight: str | None = TRAINING.class_weight
    max_minutes: float | None = None
    progress: Callable[[int, int], None] | None = None
    epoch_done: Callable[[Mapping[str, float]], None] | None = None


def train_transformer(
    classifier: TransformersClassifier,
    examples: ExampleSet,
    validation: ExampleSet,
    *,
    noise: Noise,
    unit: Unit,
    settings: TransformerTrainingSettings,
    run: TrainingRun,
) -> None:
    """Train a classifier on noisy copies, drawn anew for every example and epoch; sets its ``training_``.

    Every epoch ends with a checkpoint. If the folder holds checkpoints of the same run, training resumes from the last
    complete one and gives the same model as without the interruption. The same seed gives the same model on the same
    machine with the same number of threads. The classifier changes only when training has finished.

    Args:
        classifier: the model to train; a model given by name gets a new head unless it has one for as many classes.
        examples: the training set; labels are texts or integers.
        validation: the validation set, with labels of the training set.
        noise: applied to the examples; to those of the validation set once.
        unit: joins tokens.
        settings: the hyperparameters.
        run: what else governs the training.
    """
    versions = _versions()
    if settings.precision == "tf32" and not classifier.device.startswith("cuda"):
        raise ValueError(
            f"precision must be 'float32' or 'bfloat16' on the device {classifier.device!r}, which has no TF32"
        )
    if settings.compile and run.freelb:
        raise ValueError("compile must be False for FreeLB, which changes the embeddings in every pass")
    if run.class_weight is not None:
        check_choice("class_weight", run.class_weight, CLASS_WEIGHTS)
    classes, *targets = _targets(examples, validation)
    identity = _identity(classifier, examples, validation, noise, unit) | {
        "schedule": json.dumps(asdict(settings)),
        "method": f"{'FreeLB' if run.freelb else 'ordinary'}, class weights {run.class_weight}",
    }
    with quietly(), isolated_randomness(settings.seed), TemporaryDirectory() as temporary:
        folder = Path(temporary if run.folder is None else run.folder)
        claim(folder, identity)
        last = last_whole(folder)
        if last is None or not _is_finished_at(last, settings):
            from adaptdel.classifiers.noisy_copies import COPIES, VALIDATION, NoisyCopies
            from adaptdel.classifiers.noisy_trainer import FreeLBTrainer, NoisyTrainer

            subwords = classifier.subwords
            subwords.check(examples.tokens[0], unit, noise.masks_tokens)
            copies = [
                NoisyCopies(
                    part.tokens,
                    numbers,
                    noise=noise,
                    unit=unit,
                    seed=settings.seed,
                    encode=lambda requests: subwords.encode([text for row in requests for text in subwords.texts(row)]),
                    purpose=purpose,
                )
                for part, numbers, purpose in zip((examples, validation), targets, (COPIES, VALIDATION), strict=True)
            ]
            model = classifier.with_head(classes)
            model.config.problem_type = "single_label_classification"
            if settings.compile:
                model.compile(dynamic=True)
            kind = FreeLBTrainer if run.freelb else NoisyTrainer
            trainer = kind(classifier, model, settings, copies[0], copies[1], replace(run, folder=folder))
            with matmul_precision(settings.precision):
                trainer.train(resume_from_checkpoint=None if last is None else str(last))
            last = last_whole(folder)
        state = _install_best(classifier, last)
    record = {"versions": versions, **_record(state, history_of(state))}
    classifier.training_ = {"noise": noise.to_dict(), "history": history_of(state), **record}


def _identity(
    classifier: TransformersClassifier, examples: ExampleSet, validation: ExampleSet, noise: Noise, unit: Unit
) -> dict[str, str]:
    """What the checkpoints of a folder depend on, besides the settings."""
    return {
        "model": classifier.name if classifier.has_source else f"{classifier.name} {classifier.fingerprint()}",
        "noise": json.dumps(noise.to_dict(), sort_keys=True),
        "unit": unit.kind,
        "training data": _digest(examples),
        "validation data": _digest(validation),
    }


def _install_best(classifier: TransformersClassifier, last: Path | None) -> State:
    """Take the best weights so far: the same whether training ends now or had finished in an earlier call.

    Returns the state at the last checkpoint.
    """
    torch, transformers = libraries()
    best = None if last is None else best_checkpoint(last)
    if last is None or best is None:
        raise ValueError(
            "learning_rate must be smaller for this model and data: the validation loss was never a number"
        )
    reader = transformers.AutoModelForSequenceClassification
    classifier.untrained_ = False
    classifier.install(reader.from_pretrained(str(best), dtype=torch.float32, **SAFE))
    return read_state(last)


def _record(state: State, history: list[dict[str, float]]) -> dict[str, Any]:
    tokens, seconds = (sum(entry[name] for entry in epochs_of(state)) for name in ("tokens", "seconds"))
    return {
        "epochs": len(history),
        "best_epoch": best_epoch(history),
        "steps": state["global_step"],
        "tokens": tokens,
        "training_seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def _is_finished_at(checkpoint: Path, settings: TransformerTrainingSettings) -> bool:
    return is_finished(history_of(read_state(checkpoint)), settings.epochs, settings.patience)


def _targets(examples: ExampleSet, validation: ExampleSet) -> tuple[list[Any], list[int], list[int]]:
    """The classes, and the class numbers of both sets."""
    plain = [check_counts(examples, "labels"), check_counts(validation, "valid_labels")]
    classes = sorted(set(plain[0]))
    numbers = {label: number for number, label in enumerate(classes)}
    unknown = [label for label in plain[1] if label not in numbers]
    if unknown:
        raise ValueError(f"valid_labels must be among the labels of the training data, got {unknown[0]!r}")
    return classes, [numbers[label] for label in plain[0]], [numbers[label] for label in plain[1]]


def check_counts(examples: ExampleSet, name: str) -> list[Any]:
    """The labels as plain values; ValueError unless there is one for each of at least one example."""
    if not len(examples.tokens) or len(examples.tokens) != len(examples.labels):
        count, rows = len(examples.labels), len(examples.tokens)
        raise ValueError(f"{name} must be one for each of at least 1 example, got {count} for {rows}")
    return [label.item() if isinstance(label, np.generic) else label for label in examples.labels]


def _digest(examples: ExampleSet) -> str:
    digest = hashlib.sha256()
    for row, label in zip(examples.tokens, examples.labels, strict=True):
        digest.update(repr((list(row), str(label))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    """The versions of the libraries that training depends on."""
    libraries()
    try:
        return {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise ImportError(NEEDS.replace("torch and transformers", "torch, transformers and accelerate")) from error
