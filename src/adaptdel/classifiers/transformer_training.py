"""Train a transformer on noisy copies: checkpoints, resuming, and the same model for the same seed.

This is the only training of transformers: `TransformersClassifier.fit` and ``adaptdel train`` both call
`train_transformer`. The training loop itself is in `adaptdel.classifiers.noisy_trainer`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from math import ceil, inf, isnan
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.classifiers.linear_training import balanced_class_weights
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
from adaptdel.settings import CLASS_WEIGHTS, TransformerTrainingSettings
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
class TrainedTransformer:
    """The result of a training.

    Attributes:
        classifier: the classifier, with the weights of the best epoch.
        history: a dictionary per epoch: epoch (from 1), train_loss, valid_loss, valid_accuracy, learning_rate (of the
            last step) and seconds.
        record: versions, epochs and steps, the best epoch, tokens and seconds.
    """

    classifier: TransformersClassifier
    history: list[dict[str, float]]
    record: dict[str, Any]


def train_transformer(
    classifier: TransformersClassifier,
    examples: ExampleSet,
    validation: ExampleSet,
    *,
    noise: Noise,
    unit: Unit,
    settings: TransformerTrainingSettings,
    folder: Path,
    freelb: bool = False,
    class_weight: str | None = None,
    max_minutes: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    epoch_done: Callable[[Mapping[str, float]], None] | None = None,
) -> TrainedTransformer:
    """Train a classifier on noisy copies, drawn anew for every example and epoch.

    Every epoch ends with a checkpoint. If ``folder`` holds checkpoints of the same run, training resumes from the last
    complete one and gives the same model as without the interruption. The same seed gives the same model on the same
    machine with the same number of threads. The classifier changes only when training has finished.

    Args:
        classifier: the model to train; a model given by name gets a new head unless it has one for as many classes.
        examples: the training set; labels are texts or integers.
        validation: the validation set, with labels of the training set.
        noise: applied to the examples; to those of the validation set once.
        unit: joins tokens.
        settings: the hyperparameters.
        folder: for checkpoints: at most three at a time, two at the end.
        freelb: whether to perturb the embeddings as FreeLB does.
        class_weight: "balanced" gives every class the same weight in the training loss; None every example.
        max_minutes: training stops after this time, in the middle of an epoch if need be, and keeps the best checkpoint
            so far. The result then depends on the speed of the machine.
        progress: called with (steps done, largest possible number of steps).
        epoch_done: called with the history's row of every epoch that ends.
    """
    versions = _versions()
    if settings.precision == "tf32" and not classifier.device.startswith("cuda"):
        raise ValueError(
            f"precision must be 'float32' or 'bfloat16' on the device {classifier.device!r}, which has no TF32"
        )
    if settings.compile and freelb:
        raise ValueError("compile must be False for FreeLB, which changes the embeddings in every pass")
    classes, targets, valid_targets = _targets(examples, validation)
    folder = Path(folder)
    model_name = classifier.name if classifier.has_source else f"{classifier.name} {classifier.fingerprint()}"
    run = {"model": model_name, "noise": json.dumps(noise.to_dict(), sort_keys=True), "unit": unit.kind}
    run |= {"schedule": json.dumps(asdict(settings)), "method": "FreeLB" if freelb else "ordinary"}
    if class_weight is not None:
        check_choice("class_weight", class_weight, CLASS_WEIGHTS)
        run["method"] += f", class weights {class_weight}"
    run |= {"training data": _digest(examples), "validation data": _digest(validation)}
    with quietly(), isolated_randomness(settings.seed):
        claim(folder, run)
        last = last_whole(folder)
        if last is None or not _is_finished_at(last, settings):
            from adaptdel.classifiers.noisy_copies import COPIES, VALIDATION, NoisyCopies
            from adaptdel.classifiers.noisy_trainer import EpochLimits, FreeLBTrainer, NoisyTrainer

            subwords = classifier.subwords
            subwords.check(examples.tokens[0], unit, noise.masks_tokens)
            train_copies, valid_copies = (
                NoisyCopies(
                    part.tokens,
                    numbers,
                    noise=noise,
                    unit=unit,
                    seed=settings.seed,
                    encode=lambda requests: subwords.encode([text for row in requests for text in subwords.texts(row)]),
                    purpose=purpose,
                )
                for part, numbers, purpose in (
                    (examples, targets, COPIES),
                    (validation, valid_targets, VALIDATION),
                )
            )
            model = classifier.with_head(classes)
            model.config.problem_type = "single_label_classification"
            if settings.compile:
                model.compile(dynamic=True)
            limits = EpochLimits(
                max_minutes,
                None if class_weight is None else balanced_class_weights(targets, len(classes)).tolist(),
                progress,
                epoch_done,
            )
            trainer = (FreeLBTrainer if freelb else NoisyTrainer)(
                classifier, model, settings, train_copies, valid_copies, folder, limits
            )
            with matmul_precision(settings.precision):
                trainer.train(resume_from_checkpoint=None if last is None else str(last))
            last = last_whole(folder)
        return _result(classifier, last, versions)


def _result(classifier: TransformersClassifier, last: Path | None, versions: dict[str, str]) -> TrainedTransformer:
    """What the checkpoints hold: the same whether training ends now or had finished in an earlier call."""
    torch, transformers = libraries()
    best = None if last is None else best_checkpoint(last)
    if last is None or best is None:
        raise ValueError(
            "learning_rate must be smaller for this model and data: the validation loss was never a number"
        )
    reader = transformers.AutoModelForSequenceClassification
    classifier.untrained_ = False
    classifier.install(reader.from_pretrained(str(best), dtype=torch.float32, **SAFE))
    state = read_state(last)
    history = history_of(state)
    return TrainedTransformer(classifier, history, {"versions": versions, **_record(state, history)})


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
