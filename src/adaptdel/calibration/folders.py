"""Calibrate a saved model in its folder, resumable: the rows to calibrate on, the figure, the stored result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.calibration import FOLDS, Calibration, CalibrationTask, prepare, selection_task
from adaptdel.calibration.rate_selection import FORMAT as SELECTION_FORMAT
from adaptdel.calibration.rate_selection import RateSelection
from adaptdel.calibration.rows import choose_rows, rows_held_out, select_rows
from adaptdel.calibration.selection import SelectionTask
from adaptdel.core.checks import check_choice
from adaptdel.core.rates import rate_from_dict
from adaptdel.engines.engine import ENGINE, EngineSettings, start_engine
from adaptdel.hyperparameters import BACKENDS
from adaptdel.models.model_files import CALIBRATION, CONFIG, check_free, save_model, update_copy
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.plots import new_figure, save
from adaptdel.settings import CALIBRATION as DEFAULT
from adaptdel.settings import CalibrationSettings
from adaptdel.store import FULL, delete_store
from adaptdel.text.data import Examples, TextHashes, text_hashes
from adaptdel.text.units import Tokens, check_unit
from adaptdel.training.training import retrained_record, retraining

ENOUGH_ROWS = 2000  # fewer held-out rows than these are replaced by a cross-validation
CHECKPOINT = ".calibration.sqlite"
FIGURE = "calibration.png"


INK, ACCENT, PALE = "#1d6f65", "#c8553d", "#b8c4c2"


def plot_calibration(calibration: Calibration | RateSelection, path: str | os.PathLike[str]) -> None:
    """Plot the deletion rate and the kept length against the length of the input, as in the paper's figure."""
    if isinstance(calibration, RateSelection):
        plot_selection(calibration, path)
        return
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    last = calibration.bins[-1]
    lengths = np.arange(1, max(round(last.centre * 1.25), 20))
    rates = calibration.rate.at(lengths)
    for axes in (left, right):
        _edges(axes, calibration, int(lengths[-1]))
    _steps(left, lengths, 100 * rates, calibration)
    left.plot([b.centre for b in calibration.bins], [_rate(b.centre, b.keep) for b in calibration.bins], "o", **_dots())
    left.set_ylabel("deletion rate ψ (%)")
    left.set_ylim(min(65, 100 * float(np.median(rates)) - 5), 101)
    left.set_title("Rate", fontsize=11)
    _steps(right, lengths, np.minimum(lengths * (1 - rates), lengths), calibration)
    right.plot([b.centre for b in calibration.bins], [b.keep for b in calibration.bins], "o", **_dots())
    moved = [b for b in calibration.bins if b.keep != b.searched]
    if moved:
        searched = [b.searched for b in moved]
        right.plot([b.centre for b in moved], searched, "x", color=ACCENT, ms=6, label="before the monotone fit")
        right.legend(frameon=False, loc="best")
    right.set_ylabel("expected kept length K (tokens)")
    right.set_ylim(bottom=0)
    right.set_title("Kept length", fontsize=11)
    save(figure, path)


def plot_selection(selection: RateSelection, path: str | os.PathLike[str]) -> None:
    """Plot the kept length of the chosen rate and of the rates that need no calibration, and all candidates."""
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    lengths = np.unique(np.geomspace(1, 2000, 200).round())
    shown = {selection.chosen: "chosen"} | {
        place: candidate.name for place, candidate in enumerate(selection.candidates) if not candidate.complexity
    }
    for place, name in shown.items():
        candidate = selection.candidates[place]
        kept = lengths * (1 - rate_from_dict(candidate.rate).at(lengths))
        is_chosen = place == selection.chosen
        label = f"{candidate.name} (chosen)" if is_chosen else name
        left.plot(lengths, kept, color=INK if is_chosen else None, lw=2.2 if is_chosen else 1.1, label=label)
    left.set(xscale="log", yscale="log", xlabel="input length (tokens)", ylabel="expected kept length K (tokens)")
    left.legend(frameon=False)
    for place, candidate in enumerate(selection.candidates):
        colour = INK if place == selection.chosen else ACCENT if not candidate.complexity else PALE
        right.plot(
            candidate.balanced_radius, 100 * candidate.accuracy, "o" if candidate.feasible else "x", color=colour
        )
    least = 100 * selection.candidates[selection.reference].accuracy - selection.settings["points"]
    right.axhline(least, color=PALE, lw=0.8, ls=":")
    right.set(xlabel="class-balanced mean radius", ylabel="accuracy (%)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _edges(axes: Any, calibration: Calibration, longest: int) -> None:
    """Draw the bin edges as pale lines, and set up the axis of lengths."""
    for result in calibration.bins[1:]:
        axes.axvline(result.lower, color=PALE, lw=0.8, ls=":")
    axes.set_xlim(0, longest)
    axes.set_xlabel("input length (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _steps(axes: Any, lengths: Any, values: Any, calibration: Calibration) -> None:
    """Plot a line that is interrupted where a binned rate jumps."""
    edges = [b.lower for b in calibration.bins[1:]] if calibration.rate.kind == "binned" else []
    parts = np.searchsorted(lengths, edges)
    for x, y in zip(np.split(lengths, parts), np.split(values, parts), strict=True):
        axes.plot(x, y, color=INK, lw=1.8)


def _rate(length: float, keep: float) -> float:
    return 100 * max(0.0, 1 - keep / length)


def _dots() -> dict[str, Any]:
    return {"color": INK, "ms": 4.5}


@dataclass(frozen=True)
class FinishedCalibration:
    """A finished calibration.

    Attributes:
        calibration: the calibration.
        folder: the folder of the calibrated model.
        already_done: whether it was finished before the call.
    """

    calibration: Calibration | RateSelection
    folder: Path
    already_done: bool = False


def calibrate_folder(
    path: Path,
    examples: Examples,
    settings: Mapping[str, Any],
    *,
    on: str = DEFAULT.on,
    out: Path | None = None,
    overwrite: bool = False,
    backend: str | None = None,
    engine: EngineSettings = ENGINE,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedCalibration:
    """Calibrate a saved model and store the rate, the measurements and a figure, in its folder or in a copy of it.

    The same call resumes a calibration that was interrupted, and leaves a finished one unchanged. Evaluations of the
    model's stored calibration are reused where they are the same.

    Args:
        path: the folder of the model.
        examples: the rows of a labelled file.
        settings: fields of `adaptdel.settings.CalibrationSettings`.
        on: which rows to use, see `adaptdel.calibration.rows.choose_rows`.
        out: a folder to create for a calibrated copy; None changes the model in place.
        overwrite: whether another model in ``out`` may be replaced.
        backend: what runs a transformer, and is saved with the calibrated model; None for the model's own.
        engine: where the examples are certified.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        note: called with remarks for the user.
    """
    checked = CalibrationSettings(**settings)
    if backend is not None:
        check_choice("backend", backend, BACKENDS)
    model = SmoothedClassifier.load(path, backend=backend)
    target = path if out is None else out
    task = _task(model, examples, checked, on, note)
    checkpoint = _beside(path, out, CHECKPOINT)
    stored = _stored(target)
    if stored is not None and dict(stored.settings) == task.settings:
        _drop_checkpoint(path, out)
        return FinishedCalibration(stored, target, already_done=True)
    if out is not None:
        check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with start_engine(engine) if engine.is_distributed else nullcontext() as started:
            if started is not None and started.description is not None:
                note(started.description)
            calibration = task.run(
                checkpoint=checkpoint,
                progress=progress,
                earlier=stored if out is None else _stored(path),
                engine=started,
            )
        if getattr(model, "protection_", None) is not None:
            note("the threshold of the protected class belongs to the earlier rate: run adaptdel protect again")
        _apply(model, calibration, text_hashes(examples.texts))
        if backend is not None or (isinstance(calibration, RateSelection) and calibration.base is not None):
            save_model(model, target, lambda folder: _draw(calibration, folder))
        else:
            update_copy(model, path, out, lambda folder: _draw(calibration, folder))
    except OSError as error:
        if error.errno in FULL:
            kept = "the evaluations so far are kept: run the same command again once there is space"
            raise ValueError(f"{target}: the disk is full: {kept}") from error
        raise
    _drop_checkpoint(path, out)
    return FinishedCalibration(calibration, target)


def _task(
    model: SmoothedClassifier,
    examples: Examples,
    settings: CalibrationSettings,
    on: str,
    note: Callable[[str], None],
) -> CalibrationTask | SelectionTask:
    """The calibration of a model on the rows of a file."""
    training = getattr(model, "training_", None)
    split = cache(check_unit(model.unit).split)  # texts that are compared with the bins are not split again
    is_training_file = training is not None and training["data"]["digest"] == examples.digest
    trains_again = retraining(training or {}) is not None
    refits = settings.objective == "balanced" and trains_again and is_training_file and settings.refit is not False
    if settings.refit and not refits:
        raise ValueError("refit needs a linear model, and the file that it was trained on as --data")
    if refits:
        assert training is not None
        return _refitting_task(model, examples, settings, on, note, training, split)
    bins = settings.bins if settings.objective != "balanced" else (0,)
    rows = choose_rows(examples, training, on, split=split, bins=bins, min_count=settings.min_count)
    if rows.note:
        note(rows.note)
    if settings.objective != "balanced":
        return prepare(model, rows.texts, rows.labels, settings, split=split)
    without = replace(settings, refit=False)
    return selection_task(model, rows.texts, rows.labels, without, split=split)


def _refitting_task(
    model: SmoothedClassifier,
    examples: Examples,
    settings: CalibrationSettings,
    on: str,
    note: Callable[[str], None],
    training: Mapping[str, Any],
    split: Callable[[Any], Tokens],
) -> SelectionTask:
    """A calibration that trains the model again under every candidate."""
    held = rows_held_out(examples, training)
    kept = select_rows(examples, [not is_held for is_held in held])
    rows = select_rows(examples, held)
    final = kept.texts, kept.labels
    if on == "held-out" and not rows.texts:
        raise ValueError("on must be 'auto', 'train' or 'all' for a model whose training held out no rows")
    if on == "held-out" or (on == "auto" and len(rows.texts) >= ENOUGH_ROWS):
        note(
            f"calibrating on {len(rows.texts)} rows held out in training; the model is trained again for each candidate"
        )
        return selection_task(model, rows.texts, rows.labels, settings, training=final, split=split)
    rows = kept if on == "train" else select_rows(examples, [True] * len(held))
    note(f"calibrating on {len(rows.texts)} rows by cross-validation; each candidate trains the model again")
    return selection_task(model, rows.texts, rows.labels, settings, training=final, folds=FOLDS, split=split)


def _apply(model: SmoothedClassifier, calibration: Calibration | RateSelection, texts: TextHashes) -> None:
    """Give a loaded model the calibrated noise, the base classifier that was trained under it, and the record."""
    model.noise = model.noise_ = calibration.noise
    model.calibration_ = calibration.to_dict()
    model.texts_ = {**(getattr(model, "texts_", None) or {}), "calibration": texts}
    if model.__dict__.pop("protection_", None) is not None:
        model.threshold = None
    if isinstance(calibration, RateSelection) and calibration.base is not None:
        model.base = model.base_ = calibration.base
        model.training_ = retrained_record(model.training_, calibration.base, calibration.noise)
    elif getattr(model, "training_", None) is not None:
        model.training_ = {**model.training_, "calibrated": True}


def _draw(calibration: Calibration | RateSelection, folder: Path) -> None:
    try:
        plot_calibration(calibration, folder / FIGURE)
    except ImportError:  # matplotlib is an extra; the figure of an earlier calibration would be wrong
        (folder / FIGURE).unlink(missing_ok=True)


def _beside(path: Path, out: Path | None, name: str) -> Path:
    """A hidden file in the model's folder, or beside the folder of the copy."""
    return path / name if out is None else out.parent / f".{out.name}{name}"


def _drop_checkpoint(path: Path, out: Path | None) -> None:
    delete_store(_beside(path, out, CHECKPOINT))


def _stored(folder: Path) -> Calibration | RateSelection | None:
    """The calibration that the noise of the model in a folder comes from, if there is one."""
    try:
        stored = json.loads((folder / CALIBRATION).read_text(encoding="utf-8"))
        calibration = (RateSelection if stored["format"] == SELECTION_FORMAT else Calibration).from_dict(stored)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return calibration if config["noise"] == calibration.noise.to_dict() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
