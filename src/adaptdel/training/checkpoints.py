"""Checkpoints of the Trainer in a folder: which of them are whole, and what they say of the run so far."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from math import inf, isnan
from pathlib import Path
from typing import Any

from adaptdel.checks import check_fields
from adaptdel.files import read_json, write_json

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
