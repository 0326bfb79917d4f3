"""Calibrate a saved model in its folder, resumable: the rows to calibrate on, the figure, the stored result."""

from __future__ import annotations

import json
import os
import shutil
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
from adaptdel.calibration.rows import choose_rows, rows_held_out, select_rows, threshold_rows
from adaptdel.calibration.selection import SelectionTask
from adaptdel.core.checks import check_choice
from adaptdel.core.rates import rate_from_dict
from adaptdel.engines.start import ENGINE, EngineSettings, start_engine
from adaptdel.files import replacing_folder
from adaptdel.hyperparameters import BACKENDS
from adaptdel.models.model_files import CALIBRATION, CONFIG, save_model, store_calibration
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.plots import new_figure, save
from adaptdel.settings import CALIBRATION as DEFAULT
from adaptdel.settings import CalibrationSettings
from adaptdel.store import FULL, SUFFIXES, delete_store
from adaptdel.text.data import Examples, ExampleSet, without_spacing
from adaptdel.text.units import Tokens, check_unit
from adaptdel.training.protection import Protection, apply, protected_class
from adaptdel.training.thresholds import chose_weights, set_protection
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
        protection: the decision threshold that was chosen with it; None without a protected class.
        already_done: whether it was finished before the call.
    """

    calibration: Calibration | RateSelection
    folder: Path
    protection: Protection | None = None
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
    threshold_examples: Examples | None = None,
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
        threshold_examples: the rows of another labelled file, for the threshold of a protected class alone; None to use
            a part of ``examples``.
        engine: where the examples are certified.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        note: called with remarks for the user.
    """
    checked = CalibrationSettings(**settings)
    if backend is not None:
        check_choice("backend", backend, BACKENDS)  # not "auto": a calibration that is resumed must have the same
    model = SmoothedClassifier.load(path, backend=backend)
    target = path if out is None else out
    wanted = _wanted_protection(model, checked)
    if wanted is not None:
        checked = replace(checked, protect=str(wanted[0]), max_false_positives=wanted[1])
        if on != DEFAULT.on:
            raise ValueError(
                f"on must be {DEFAULT.on!r} with protect, whose threshold needs rows of its own, got {on!r}"
            )
    if threshold_examples is not None:
        if wanted is None:
            raise ValueError("threshold_data needs a class to protect: give protect and max_false_positives")
        trained_on = (getattr(model, "training_", None) or {}).get("data", {}).get("digest")
        if threshold_examples.digest == trained_on:
            raise ValueError("threshold_data must hold rows that the model was not trained on, got its training file")
        threshold_examples = _other_rows(threshold_examples, examples, note)
    task, reserved = _task(model, examples, checked, on, note, threshold_examples)
    checkpoint = _beside(path, out, CHECKPOINT)
    stored = _stored(target)
    protection = _protection_of(target)
    is_same = _same_protection(protection, wanted, threshold_examples)
    if stored is not None and dict(stored.settings) == task.settings and is_same:
        _drop_checkpoint(path, out)
        return FinishedCalibration(stored, target, protection, already_done=True)
    if out is not None:
        _check_free(out, overwrite=overwrite)
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
        _apply(model, calibration)
        protection = None
        if wanted is not None:
            protection = _protect(model, examples, *wanted, reserved, threshold_examples)
        if isinstance(calibration, RateSelection) and calibration.base is not None:
            model.calibration_ = calibration.to_dict()
            save_model(model, target, lambda folder: _draw(calibration, folder))
        elif backend is not None:
            _save_with_backend(model, target, calibration)
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
    return FinishedCalibration(calibration, target, protection)


def _task(
    model: SmoothedClassifier,
    examples: Examples,
    settings: CalibrationSettings,
    on: str,
    note: Callable[[str], None],
    threshold_examples: Examples | None = None,
) -> tuple[CalibrationTask | SelectionTask, list[bool] | None]:
    """The calibration of a model on the rows of a file, and the rows that are kept for the threshold."""
    training = getattr(model, "training_", None)
    split = cache(check_unit(model.unit).split)  # texts that are compared with the bins are not split again
    is_training_file = training is not None and training["data"]["digest"] == examples.digest
    trains_again = retraining(training or {}) is not None
    refits = settings.objective == "balanced" and trains_again and is_training_file and settings.refit is not False
    if settings.refit and not refits:
        raise ValueError("refit needs a linear model, and the file that it was trained on as --data")
    reserved, negatives = None, None
    if settings.protect is not None and settings.max_false_positives is not None:
        classes = list(model.base_classifier().classes_ or [])
        label = classes[protected_class(classes, settings.protect)]
        limits = label, settings.max_false_positives
        if threshold_examples is None:
            reserved = threshold_rows(
                examples, training, *limits, trains_again=trains_again, refits=refits, seed=settings.seed
            )
            negatives = sum(use and own != label for use, own in zip(reserved, examples.labels, strict=True))
            note(f"{sum(reserved)} rows, {negatives} of the other class, are kept for the threshold")
        else:
            negatives = sum(own != label for own in threshold_examples.labels)
    if refits:
        assert training is not None
        return _refitting_task(model, examples, settings, on, note, training, split, reserved, negatives), reserved
    bins = settings.bins if settings.objective != "balanced" else (0,)
    rows = choose_rows(examples, training, on, split=split, bins=bins, min_count=settings.min_count, reserved=reserved)
    if rows.note:
        note(rows.note)
    if settings.objective != "balanced":
        return prepare(model, rows.texts, rows.labels, settings, split=split), reserved
    without = replace(settings, refit=False)
    task = selection_task(model, rows.texts, rows.labels, without, split=split, threshold_negatives=negatives)
    return task, reserved


def _refitting_task(
    model: SmoothedClassifier,
    examples: Examples,
    settings: CalibrationSettings,
    on: str,
    note: Callable[[str], None],
    training: Mapping[str, Any],
    split: Callable[[Any], Tokens],
    reserved: list[bool] | None,
    negatives: int | None,
) -> SelectionTask:
    """A calibration that trains the model again under every candidate."""
    held = rows_held_out(examples, training)
    kept = select_rows(examples, [not is_held for is_held in held])
    rows = select_rows(examples, held)
    final = kept.texts, kept.labels
    if on == "held-out" and not rows.texts:
        raise ValueError("on must be 'auto', 'train' or 'all' for a model whose training held out no rows")
    if reserved is None and (on == "held-out" or (on == "auto" and len(rows.texts) >= ENOUGH_ROWS)):
        note(
            f"calibrating on {len(rows.texts)} rows held out in training; the model is trained again for each candidate"
        )
        return selection_task(model, rows.texts, rows.labels, settings, training=final, split=split)
    measured = None
    if on == "train" or reserved == held:
        rows = kept
    else:
        rows = select_rows(examples, [True] * len(held))
        if reserved is not None:  # the protected class has no false positives: all of its texts are measured
            protect, pairs = str(settings.protect), zip(reserved, examples.labels, strict=True)
            measured = [not is_reserved or str(label) == protect for is_reserved, label in pairs]
    count = len(rows.texts) if measured is None else sum(measured)
    note(f"calibrating on {count} rows by cross-validation; each candidate trains the model again")
    return selection_task(
        model, rows.texts, rows.labels, settings, training=final, folds=FOLDS, split=split, measured=measured,
        threshold_negatives=negatives,
    )  # fmt: skip


def _save_with_backend(model: SmoothedClassifier, target: Path, calibration: Calibration | RateSelection) -> None:
    """Write the model with the backend that it was calibrated under; whole or not at all."""
    model.calibration_ = calibration.to_dict()
    if getattr(model, "training_", None) is not None:
        model.training_ = {**model.training_, "calibrated": True}
    save_model(model, target, lambda folder: _draw(calibration, folder))


def _apply(model: SmoothedClassifier, calibration: Calibration | RateSelection) -> None:
    """Give a loaded model the calibrated noise, and the base classifier that was trained under it."""
    model.noise = model.noise_ = calibration.noise
    if isinstance(calibration, RateSelection) and calibration.base is not None:
        model.base = model.base_ = calibration.base
        model.training_ = retrained_record(model.training_, calibration.base, calibration.noise)


def _wanted_protection(model: SmoothedClassifier, settings: CalibrationSettings) -> tuple[Any, float] | None:
    """The class to protect and the rate of false positives: as asked for, or as the model was trained."""
    if settings.protect is not None and settings.max_false_positives is not None:
        classes = list(model.base_classifier().classes_ or [])
        return classes[protected_class(classes, settings.protect)], settings.max_false_positives
    known = getattr(model, "protection_", None)
    return None if known is None else (known["protect"], known["max_false_positives"])


def _protection_of(folder: Path) -> Protection | None:
    """The threshold of the model in a folder that protects a class."""
    try:
        known = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("protection")
        return None if known is None else Protection.from_dict(known)
    except (OSError, ValueError, TypeError):
        return None


def _same_protection(
    protection: Protection | None, wanted: tuple[Any, float] | None, threshold_examples: Examples | None
) -> bool:
    """Whether a threshold was chosen for this class and rate, on these rows."""
    if protection is None or wanted is None:
        return protection is None and wanted is None
    digest = None if threshold_examples is None else threshold_examples.digest
    return (protection.protect, protection.max_false_positives, protection.digest) == (*wanted, digest)


def _other_rows(threshold_examples: Examples, examples: Examples, note: Callable[[str], None]) -> Examples:
    """The rows for the threshold that are not rows of the calibration, too."""
    known = {without_spacing(text) for text in examples.texts}
    new = [place for place, text in enumerate(threshold_examples.texts) if without_spacing(text) not in known]
    if len(new) < len(threshold_examples.texts):
        note(f"{len(threshold_examples.texts) - len(new)} rows for the threshold are rows of --data, and are left out")
    return threshold_examples.take(new)


def _protect(
    model: SmoothedClassifier,
    examples: Examples,
    protect: Any,
    max_false_positives: float,
    reserved: list[bool] | None,
    threshold_examples: Examples | None,
) -> Protection:
    """Choose the threshold under the calibrated rate, on the reserved rows, or on those of a file of its own."""
    training, unit = getattr(model, "training_", None), check_unit(model.unit)
    if threshold_examples is not None:
        rows = ExampleSet([unit.split(text) for text in threshold_examples.texts], threshold_examples.labels)
        decided = chose_weights(training, threshold_examples.digest)
        chosen = set_protection(model, protect, max_false_positives, ExampleSet([], []), rows, chose_weights=decided)
        chosen = replace(chosen, digest=threshold_examples.digest)
        apply(model, chosen)
        return chosen
    assert reserved is not None
    held, train_again = [True] * len(examples.texts), None
    if training is not None and training["data"]["digest"] == examples.digest:
        held, train_again = rows_held_out(examples, training), retraining(training)
    places = [place for place, is_held in enumerate(held) if not is_held]
    voted = [place for place, is_held in enumerate(held) if is_held and reserved[place]]
    training_set, held_set = (
        ExampleSet([unit.split(examples.texts[n]) for n in numbers], [examples.labels[n] for n in numbers])
        for numbers in (places, voted)
    )
    judged = [reserved[place] for place in places]
    decided = chose_weights(training, examples.digest)
    return set_protection(
        model, protect, max_false_positives, training_set, held_set, train_again, judged, chose_weights=decided
    )


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
    unfinished = [CHECKPOINT + suffix for suffix in SUFFIXES]
    with replacing_folder(out) as partial:
        shutil.copytree(path, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*unfinished))
        _store(partial, calibration, model)
