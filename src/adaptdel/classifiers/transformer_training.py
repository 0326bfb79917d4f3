"""Train a transformer on noisy copies: what is trained on what, and the same model for the same seed.

`TransformersClassifier.fit` and ``adaptdel train`` both call `train_transformer`; the loop is in
`adaptdel.classifiers.noisy_trainer`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adaptdel.classifiers.transformers import (
    TransformersClassifier,
    isolated_randomness,
    matmul_precision,
    quietly,
)
from adaptdel.core.checks import check_choice
from adaptdel.core.noise import Noise
from adaptdel.settings import CLASS_WEIGHTS, TRAINING, TransformerTrainingSettings
from adaptdel.text.data import ExampleSet
from adaptdel.text.units import Unit

LIBRARIES = ("torch", "transformers")


def best_epoch(history: list[dict[str, float]]) -> int:
    """The first epoch with the smallest validation loss, counted from 1."""
    losses = [inf if isnan(row["valid_loss"]) else row["valid_loss"] for row in history]
    return 1 + losses.index(min(losses))


def is_finished(history: list[dict[str, float]], epochs: int, patience: int) -> bool:
    """Whether all epochs are done, or early stopping has ended the training."""
    return bool(history) and (len(history) >= epochs or len(history) - best_epoch(history) >= patience)


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
    from adaptdel.classifiers.noisy_copies import COPIES, VALIDATION, NoisyCopies
    from adaptdel.classifiers.noisy_trainer import FreeLBTrainer, NoisyTrainer

    subwords = classifier.subwords
    subwords.check(examples.tokens[0], unit, noise.masks_tokens)
    with quietly(), isolated_randomness(settings.seed), TemporaryDirectory() as temporary:
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
        "versions": {name: version(name) for name in LIBRARIES},
        "epochs": len(trainer.history),
        "best_epoch": best_epoch(trainer.history),
        "steps": trainer.steps,
        "tokens": trainer.tokens,
        "training_seconds": trainer.seconds,
        "tokens_per_second": trainer.tokens / trainer.seconds,
    }


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
