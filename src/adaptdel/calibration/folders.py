"""Calibrate a saved model in its folder, resumable: the rows to calibrate on, the figure, the stored result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.calibration import Calibration, CalibrationTask, prepare, selection_task
from adaptdel.calibration.search import equal_width_edges, make_bins
from adaptdel.calibration.selection import FORMAT as SELECTION_FORMAT
from adaptdel.calibration.selection import RateSelection, SelectionTask
from adaptdel.core.checks import check_choice
from adaptdel.core.rates import rate_from_dict
from adaptdel.data import Examples, ExampleSet, held_out, held_out_rows
from adaptdel.files import replacing_folder
from adaptdel.model_files import CALIBRATION, CONFIG, save_model, store_calibration
from adaptdel.plots import new_figure, save
from adaptdel.protection import Protection, protected_class
from adaptdel.settings import CALIBRATION as DEFAULT
from adaptdel.settings import CalibrationSettings
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.training.training import retrained_record, retraining, set_protection
from adaptdel.units import Tokens, check_unit
from adaptdel.working_store import FULL, SUFFIXES, delete_store

CHOICES = ("auto", "held-out", "train", "all")
ENOUGH_ROWS, FOLDS = 2000, 3  # fewer held-out rows than these are replaced by a cross-validation
ENOUGH_BINS = 3  # "auto" uses the held-out rows if they give at least so many bins
CHECKPOINT = ".calibration.sqlite"
JOURNAL = ".calibration.jsonl"  # what version 0.1 wrote in its place
FIGURE = "calibration.png"


@dataclass(frozen=True)
class CalibrationRows:
    """The rows to calibrate on.

    Attributes:
        texts: their texts.
        labels: their labels.
        note: a remark on the choice for the user, or "".
    """

    texts: list[str]
    labels: list[Any]
    note: str = ""


def choose_rows(
    examples: Examples,
    training: Mapping[str, Any] | None,
    on: str,
    *,
    split: Callable[[Any], Tokens],
    bins: str | Sequence[float],
    min_count: int,
) -> CalibrationRows:
    """Choose the rows to calibrate on.

    "held-out" are the rows that the training of the model held out, "train" the others, "all" are all rows. "auto" uses
    the held-out rows of the training file if they leave ``min_count`` rows in every bin, or give at least three
    automatic bins; otherwise it uses all rows. A model is more confident on rows that it was trained on.
    ``split`` gives the tokens of a text.
    """
    check_choice("on", on, CHOICES)
    share = (training or {}).get("validation")
    everything = CalibrationRows(examples.texts, examples.labels)
    if on == "all":
        return everything
    if on == "auto":
        if training is None:
            return everything
        if training.get("data", {}).get("digest") != examples.digest:
            return CalibrationRows(
                examples.texts, examples.labels, "not the file that the model was trained on: all rows are used"
            )
    if not share:
        if on == "auto":
            return CalibrationRows(
                examples.texts,
                examples.labels,
                "no rows of the file were held out: rows that the model was trained on are used",
            )
        raise ValueError(f"on must be 'all' or 'auto' for a model whose training held out no rows, got {on!r}")
    assert training is not None
    chosen = _select(examples, [is_held == (on != "train") for is_held in rows_held_out(examples, training)])
    if not chosen.texts:
        raise ValueError(f"on must leave at least one row to calibrate on, got {on!r}")
    if on == "auto" and not _enough([len(split(text)) for text in chosen.texts], bins, min_count):
        note = f"only {len(chosen.texts)} rows were held out, too few for the bins: all rows are used"
        return CalibrationRows(examples.texts, examples.labels, note)
    which = "those the model was trained on" if on == "train" else "those held out in training"
    return CalibrationRows(chosen.texts, chosen.labels, f"calibrating on {len(chosen.texts)} rows: {which}")


def rows_held_out(examples: Examples, training: Mapping[str, Any]) -> list[bool]:
    """Which rows of the training file were held out; version 0.1 did not hold out the same share of every class."""
    share, seed = training.get("validation") or 0.0, training["seed"]
    if not share:
        return [False] * len(examples.texts)
    if training.get("stratified"):
        return held_out_rows(examples.texts, examples.labels, share, seed)
    return [held_out(text, share, seed) for text in examples.texts]


def _select(examples: Examples, selected: list[bool]) -> CalibrationRows:
    pairs = [(text, label) for text, label, use in zip(examples.texts, examples.labels, selected, strict=True) if use]
    return CalibrationRows([text for text, _ in pairs], [label for _, label in pairs])


def _enough(lengths: list[int], bins: str | Sequence[float], min_count: int) -> bool:
    if isinstance(bins, str):
        return len(lengths) >= min_count and len(equal_width_edges(lengths, min_count=min_count)) >= ENOUGH_BINS
    return all(sum(length in bin for length in lengths) >= min_count for bin in make_bins(bins, 1))


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
    """A finished calibration, its folder, and whether it was already done before the call."""

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
        on: which rows to use, see `choose_rows`.
        out: a folder to create for a calibrated copy; None changes the model in place.
        overwrite: whether another model in ``out`` may be replaced.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        note: called with remarks for the user.
    """
    checked = CalibrationSettings(**settings)
    model = SmoothedClassifier.load(path)
    target = path if out is None else out
    task = _task(model, examples, checked, on, note)
    checkpoint = _beside(path, out, CHECKPOINT)
    stored = _stored(target)
    wanted = _wanted_protection(model, checked)
    if stored is not None and dict(stored.settings) == task.settings and _protection_of(target) == wanted:
        _drop_checkpoint(path, out)
        return FinishedCalibration(stored, target, already_done=True)
    if out is not None:
        _check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    journal = _beside(path, out, JOURNAL)
    if journal.exists() and not checkpoint.exists():
        os.replace(journal, checkpoint)  # which converts it
    try:
        calibration = task.run(
            checkpoint=checkpoint, progress=progress, earlier=stored if out is None else _stored(path)
        )
        _apply(model, calibration)
        if wanted is not None:
            note(_protect(model, examples, *wanted).sentence())
        if isinstance(calibration, RateSelection) and calibration.base is not None:
            _save_refitted(model, target, calibration)
        elif out is None:
            _store(path, calibration, model)
        else:
            _copy(path, out, calibration, model)
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
    if settings.objective != "balanced":
        rows = choose_rows(examples, training, on, split=split, bins=settings.bins, min_count=settings.min_count)
        if rows.note:
            note(rows.note)
        return prepare(model, rows.texts, rows.labels, settings, split=split)
    is_training_file = training is not None and training["data"]["digest"] == examples.digest
    if retraining(training or {}) is None or not is_training_file or settings.refit is False:
        if settings.refit:
            raise ValueError("refit needs a linear model, and the file that it was trained on as --data")
        rows = choose_rows(examples, training, on, split=split, bins=(0,), min_count=settings.min_count)
        if rows.note:
            note(rows.note)
        return selection_task(model, rows.texts, rows.labels, replace(settings, refit=False), split=split)
    assert training is not None
    share = training.get("validation") or 0.0
    held = rows_held_out(examples, training) if share else [False] * len(examples.texts)
    kept = _select(examples, [not is_held for is_held in held])
    rows = _select(examples, held)
    if on == "held-out" and not rows.texts:
        raise ValueError("on must be 'auto', 'train' or 'all' for a model whose training held out no rows")
    if on == "held-out" or (on == "auto" and len(rows.texts) >= ENOUGH_ROWS):
        note(
            f"calibrating on {len(rows.texts)} rows held out in training; the model is trained again for each candidate"
        )
        return selection_task(model, rows.texts, rows.labels, settings, training=(kept.texts, kept.labels), split=split)
    rows = kept if on == "train" else CalibrationRows(examples.texts, examples.labels)
    note(f"calibrating on {len(rows.texts)} rows by cross-validation; each candidate trains the model again")
    final = kept.texts, kept.labels
    return selection_task(model, rows.texts, rows.labels, settings, training=final, folds=FOLDS, split=split)


def _save_refitted(model: SmoothedClassifier, target: Path, calibration: RateSelection) -> None:
    """Write the model with the base classifier that was trained under the calibrated rate; whole or not at all."""
    model.calibration_ = calibration.to_dict()
    model.training_ = retrained_record(model.training_, model.base_classifier(), calibration.noise)
    save_model(model, target, lambda folder: _draw(calibration, folder))


def _apply(model: SmoothedClassifier, calibration: Calibration | RateSelection) -> None:
    """Give a loaded model the calibrated noise, and the base classifier that was trained under it."""
    model.noise = model.noise_ = calibration.noise
    if isinstance(calibration, RateSelection) and calibration.base is not None:
        model.base = model.base_ = calibration.base


def _wanted_protection(model: SmoothedClassifier, settings: CalibrationSettings) -> tuple[Any, float] | None:
    """The class to protect and the rate of false positives: as asked for, or as the model was trained."""
    if settings.protect is not None and settings.max_false_positives is not None:
        classes = list(model.base_classifier().classes_ or [])
        return classes[protected_class(classes, settings.protect)], settings.max_false_positives
    known = getattr(model, "protection_", None)
    return None if known is None else (known["protect"], known["max_false_positives"])


def _protection_of(folder: Path) -> tuple[Any, float] | None:
    """The class that the model in a folder protects, and the rate of false positives."""
    known = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("protection")
    return None if known is None else (known["protect"], known["max_false_positives"])


def _protect(model: SmoothedClassifier, examples: Examples, protect: Any, max_false_positives: float) -> Protection:
    """Choose the threshold under the calibrated rate, on rows that the model was not trained on if that is known."""
    training, unit = getattr(model, "training_", None), check_unit(model.unit)
    is_training_file = training is not None and training["data"]["digest"] == examples.digest
    held = [True] * len(examples.texts)
    if is_training_file and training is not None:
        held = rows_held_out(examples, training)
    kept, rows = (_select(examples, [is_held == wanted for is_held in held]) for wanted in (False, True))
    sets = [ExampleSet([unit.split(text) for text in part.texts], part.labels) for part in (kept, rows)]
    return set_protection(model, protect, max_false_positives, *sets)


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
    _beside(path, out, JOURNAL).unlink(missing_ok=True)


def _stored(folder: Path) -> Calibration | RateSelection | None:
    """The calibration that the noise of the model in a folder comes from, if there is one."""
    try:
        stored = json.loads((folder / CALIBRATION).read_text(encoding="utf-8"))
        calibration = (RateSelection if stored["format"] == SELECTION_FORMAT else Calibration).from_dict(stored)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return calibration if config["noise"] == calibration.noise.to_dict() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_free(out: Path, *, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / CONFIG).exists():
        raise ValueError(f"{out}: holds something that is not a model: choose another folder for --out")
    if not overwrite:
        raise ValueError(f"{out}: holds another model: choose another folder for --out, or --overwrite")


def _store(folder: Path, calibration: Calibration | RateSelection, model: SmoothedClassifier) -> None:
    _draw(calibration, folder)
    protection = getattr(model, "protection_", None)
    store_calibration(
        folder, calibration.to_dict(), calibration.noise, threshold=model.threshold, protection=protection
    )


def _copy(path: Path, out: Path, calibration: Calibration | RateSelection, model: SmoothedClassifier) -> None:
    """Write a calibrated copy of a model; it appears once it is complete."""
    unfinished = [CHECKPOINT + suffix for suffix in SUFFIXES] + [JOURNAL]
    with replacing_folder(out) as partial:
        shutil.copytree(path, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*unfinished))
        _store(partial, calibration, model)
