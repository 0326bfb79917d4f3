"""Train a transformer under noise: checkpoints, resuming, and the same model for the same seed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.classifiers.transformers import NEEDS, SAFE, TransformersClassifier, libraries, quietly
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Noise
from adaptdel.files import read_json, write_json
from adaptdel.training.noisy_copies import COPIES, VALIDATION, Copies
from adaptdel.training.settings import Schedule
from adaptdel.units import Tokens, Unit

STATE = "trainer_state.json"
MARK = "complete.json"  # the hashes of a checkpoint's files, written when all of them are
RUN = "run.json"  # what the checkpoints of a folder come from
LOSS = "cross_entropy"  # the mean over validation copies, whatever their batches

State = dict[str, Any]


def claim(folder: Path, run: Mapping[str, str]) -> None:
    """Make a folder that of a run; one that holds another run is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if path.exists():
        before = read_json(path, "what the checkpoints of a training come from")
        differing = [name for name in run if before.get(name) != run[name]]
        if differing:
            raise ValueError(
                f"folder must be empty or hold checkpoints of the same run, got {str(folder)!r} with a run of another "
                f"{differing[0]}: delete it or choose another folder"
            )
    write_json(path, run)


def mark(checkpoint: Path) -> None:
    """Say that a checkpoint is whole."""
    write_json(checkpoint / MARK, _hashes(checkpoint))


def last_whole(folder: Path) -> Path | None:
    """The last checkpoint that is whole together with the best one it names; those cut off in writing are removed."""
    whole = {}
    for checkpoint in folder.glob("checkpoint-*"):
        number = checkpoint.name.rpartition("-")[2]
        if number.isdigit() and _is_whole(checkpoint):
            whole[int(number)] = checkpoint
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
    for _, checkpoint in sorted(whole.items(), reverse=True):
        best = best_checkpoint(checkpoint)
        if best is None or best in whole.values():
            return checkpoint
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def read_state(checkpoint: Path) -> State:
    """The Trainer's state at a checkpoint, checked."""
    path = checkpoint / STATE
    state: State = read_json(path, "the state of a training")
    try:
        check_fields(state, {"best_model_checkpoint": "a text?", "log_history": "a list"})
        check_fields(state, {"global_step": "a whole number"})
        for row in history_of(state):
            check_fields(row, dict.fromkeys(row, "a number"))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: not the state of a training ({error}): delete {checkpoint}") from None
    return state


def best_checkpoint(checkpoint: Path) -> Path | None:
    """The checkpoint of the least validation loss up to this one; None if no loss was a number."""
    best = read_state(checkpoint).get("best_model_checkpoint")
    return None if best is None else checkpoint.parent / Path(best).name


def epochs_of(state: State) -> list[dict[str, float]]:
    """All that was logged, one dictionary an epoch."""
    found: dict[int, dict[str, float]] = {}
    for entry in state["log_history"]:
        if "loss" in entry or f"eval_{LOSS}" in entry:
            found.setdefault(entry["step"], {}).update(entry)
    return [found[step] for step in sorted(found)]


def history_of(state: State) -> list[dict[str, float]]:
    """Loss, accuracy, learning rate and time of every epoch."""
    return [
        {
            "epoch": round(entry["epoch"]),
            "train_loss": entry["loss"],
            "valid_loss": entry[f"eval_{LOSS}"],
            "valid_accuracy": entry["eval_accuracy"],
            "learning_rate": entry["learning_rate"],
            "seconds": entry["seconds"] + entry["eval_runtime"],
        }
        for entry in epochs_of(state)
    ]


def best_epoch(history: list[dict[str, float]]) -> int:
    """The first epoch of the least validation loss, from 1 on."""
    losses = [inf if isnan(row["valid_loss"]) else row["valid_loss"] for row in history]
    return 1 + losses.index(min(losses))


def is_over(history: list[dict[str, float]], epochs: int, patience: int) -> bool:
    """Whether nothing is left to do: all epochs are done, or the last ones brought nothing."""
    return len(history) >= epochs or len(history) - best_epoch(history) >= patience


def _is_whole(checkpoint: Path) -> bool:
    try:
        return read_json(checkpoint / MARK, "a mark") == _hashes(checkpoint)
    except (OSError, ValueError):
        return False


def _hashes(checkpoint: Path) -> dict[str, str]:
    """The SHA-256 of every file but the mark."""
    found = {}
    for path in sorted(path for path in checkpoint.iterdir() if path.is_file() and path.name != MARK):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class Trained:
    """What training gives.

    Attributes:
        classifier: the model of the best epoch.
        history: a dictionary an epoch: epoch (from 1 on), train_loss, valid_loss, valid_accuracy, learning_rate (of the
            last step) and seconds.
        record: versions, epochs and steps run, the best epoch, tokens a second with and without the time for noise.
    """

    classifier: TransformersClassifier
    history: list[dict[str, float]]
    record: dict[str, Any]


def train_transformer(
    source: str,
    tokens: Sequence[Tokens],
    labels: Sequence[Any],
    *,
    valid_tokens: Sequence[Tokens],
    valid_labels: Sequence[Any],
    noise: Noise,
    unit: Unit,
    schedule: Schedule,
    folder: Path,
    freelb: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Trained:
    """Train a model on noisy copies, drawn afresh for every example and epoch.

    Each epoch ends with a checkpoint. If ``folder`` holds some, training goes on after the last whole one, and ends as
    if it had never stopped. The same seed gives the same model on the same machine with as many threads.

    Args:
        source: a folder or a name on the hub; the model gets a new head unless it has one for as many classes.
        tokens: the tokens of every example.
        labels: the label of every example: texts or whole numbers.
        valid_tokens: the tokens of every validation example.
        valid_labels: their labels, none of them new.
        noise: what is done to the examples; to those of validation it is done once.
        unit: how tokens are joined.
        schedule: how long and how fast.
        folder: for checkpoints; at most three are there at a time, and two in the end.
        freelb: whether an adversary moves the embeddings: see `freelb`.
        progress: called with (steps done, the most steps there can be).
        **options: of `TransformersClassifier`: device, dtype (of the answers, not of training), revision, ...
    """
    versions = _versions()
    from adaptdel.training.trainer import own_randomness

    classes, targets, valid_targets = _targets(tokens, labels, valid_tokens, valid_labels)
    folder = Path(folder)
    run = {"model": str(source), "noise": json.dumps(noise.to_dict(), sort_keys=True), "unit": unit.kind}
    run |= {"schedule": json.dumps(asdict(schedule)), "method": "FreeLB" if freelb else "ordinary"}
    run |= {"training data": _digest(tokens, labels), "validation data": _digest(valid_tokens, valid_labels)}
    with quietly(), own_randomness(schedule.seed):
        classifier = TransformersClassifier(source, **options)
        claim(folder, run)
        last = last_whole(folder)
        if last is None or not _is_over(last, schedule):
            train, valid = (
                Copies(
                    classifier, rows, numbers, noise=noise, unit=unit, seed=schedule.seed, purpose=purpose, noun=noun
                )
                for rows, numbers, purpose, noun in (
                    (tokens, targets, COPIES, "example"),
                    (valid_tokens, valid_targets, VALIDATION, "validation example"),
                )
            )
            model = classifier.with_head(classes)
            model.config.problem_type = "single_label_classification"
            _run(model, schedule, train, valid, folder, freelb, progress, last)
            last = last_whole(folder)
        return _result(classifier, last, versions)


def _run(
    model: Any,
    schedule: Schedule,
    train: Copies,
    valid: Copies,
    folder: Path,
    freelb: bool,
    progress: Callable[[int, int], None] | None,
    last: Path | None,
) -> None:
    from adaptdel.training.trainer import FreeLBTrainer, NoisyTrainer

    kind = FreeLBTrainer if freelb else NoisyTrainer
    kind(model, schedule, train, valid, folder, progress).train(
        resume_from_checkpoint=None if last is None else str(last)
    )


def _result(classifier: TransformersClassifier, last: Path | None, versions: dict[str, str]) -> Trained:
    """What the checkpoints hold: the same whether training just ended or had ended before."""
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
    return Trained(classifier, history, {"versions": versions, **_record(state, history)})


def _record(state: State, history: list[dict[str, float]]) -> dict[str, Any]:
    names = ("tokens", "seconds", "drawing", "waiting", "collating")
    sums = {name: sum(entry[name] for entry in epochs_of(state)) for name in names}
    tokens, seconds, standing = sums["tokens"], sums["seconds"], sums["waiting"] + sums["collating"]
    return {
        "epochs": len(history),
        "best_epoch": best_epoch(history),
        "steps": state["global_step"],
        "tokens": tokens,
        "training_seconds": seconds,
        "noise_seconds": sums["drawing"] + sums["collating"],
        "standing_still_seconds": standing,
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_without_noise": tokens / (seconds - standing),
    }


def _is_over(last: Path, schedule: Schedule) -> bool:
    return is_over(history_of(read_state(last)), schedule.epochs, schedule.patience)


def _targets(
    tokens: Sequence[Tokens], labels: Sequence[Any], valid_tokens: Sequence[Tokens], valid_labels: Sequence[Any]
) -> tuple[list[Any], list[int], list[int]]:
    """The classes, and the class numbers of both sets."""
    plain = []
    for name, rows, given in (("labels", tokens, labels), ("valid_labels", valid_tokens, valid_labels)):
        if not len(rows) or len(rows) != len(given):
            raise ValueError(f"{name} must be one for each of at least 1 example, got {len(given)} for {len(rows)}")
        plain.append([label.item() if isinstance(label, np.generic) else label for label in given])
    classes = sorted(set(plain[0]))
    numbers = {label: number for number, label in enumerate(classes)}
    new = [label for label in plain[1] if label not in numbers]
    if new:
        raise ValueError(f"valid_labels must be among the labels of the training data, got {new[0]!r}")
    return classes, [numbers[label] for label in plain[0]], [numbers[label] for label in plain[1]]


def _digest(tokens: Sequence[Tokens], labels: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for row, label in zip(tokens, labels, strict=True):
        digest.update(repr((list(row), str(label))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    """Those of the libraries that training rests on."""
    libraries()
    try:
        return {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise ImportError(NEEDS.replace("torch and transformers", "torch, transformers and accelerate")) from error
