"""Checkpoints of the Trainer in a folder: which of them are whole, and what they say of the run so far."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from math import inf, isnan
from pathlib import Path
from typing import Any

from adaptdel.files import write_json

STATE = "trainer_state.json"
MARK = "complete.json"  # the sizes of a checkpoint's files, written when all of them are
RUN = "run.json"  # what the checkpoints of a folder come from
LOSS = "cross_entropy"  # the mean over validation copies, whatever their batches

State = dict[str, Any]


def claim(folder: Path, run: Mapping[str, str]) -> None:
    """Make a folder that of a run; one that holds another run is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in run if before.get(name) != run[name]]
        if differing:
            raise ValueError(
                f"folder must be empty or hold checkpoints of the same run, got {str(folder)!r} with a run of another "
                f"{differing[0]}: delete it or choose another folder"
            )
    write_json(path, run)


def mark(checkpoint: Path) -> None:
    """Say that a checkpoint is whole."""
    write_json(checkpoint / MARK, _sizes(checkpoint))


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
    """The Trainer's state at a checkpoint."""
    state: State = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state


def best_checkpoint(checkpoint: Path) -> Path | None:
    """The checkpoint of the least validation loss up to this one; None if no loss was a number."""
    best = read_state(checkpoint)["best_model_checkpoint"]
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
        return json.loads((checkpoint / MARK).read_text(encoding="utf-8")) == _sizes(checkpoint)
    except (OSError, ValueError):
        return False


def _sizes(checkpoint: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.is_file() and path.name != MARK}
