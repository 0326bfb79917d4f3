"""AdaptDel+: calibrate a model on labelled texts, or a saved model in its folder, resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.bins import BinTask
from adaptdel.calibration.candidates import Calibration, SelectionTask, candidate_noise
from adaptdel.core.checks import BoolArray
from adaptdel.core.noise import Noise
from adaptdel.files import naming_a_full_disk
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import CONFIG, check_free, load_model, save_model, update_copy
from adaptdel.plots import new_figure, optional, save
from adaptdel.settings import CalibrationSettings
from adaptdel.store import delete_store
from adaptdel.text.data import Examples, known_texts, text_hashes
from adaptdel.training.protection import proof_rows
from adaptdel.training.training import retrained_record, retraining

ENOUGH_ROWS = 2000  # fewer held-out rows than these are replaced by a cross-validation
ENOUGH_BINS = 3  # held-out rows are used if they can fill this many automatic bins
Task = BinTask | SelectionTask
CHECKPOINT = ".calibration.sqlite"
FIGURE = "calibration.png"


def calibrate(
    model: TextEstimator,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    training: tuple[Sequence[Any], Sequence[Any]] | None = None,
    checkpoint: Path | None = None,
    progress: Any = "auto",
    **settings: Any,
) -> Calibration:
    """Find how many tokens to keep of inputs of every length: AdaptDel+.

    The model is not changed: use ``calibration.noise`` as its noise, and ``calibration.base`` as its base classifier if
    that was trained again. Calibrate on a held-out set if you can. The base classifier is more confident on examples it
    was trained on, so that the calibration keeps too few tokens.

    Args:
        model: a model under deletion; its threat, bound and alpha are used.
        texts: the inputs to calibrate on.
        labels: their labels.
        training: the texts and labels that the model was trained on, for the objective "balanced": a linear model is
            then trained again under every candidate rate.
        checkpoint: a file for the measurements; after an interruption, the same call resumes from it.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        **settings: fields of `CalibrationSettings`.
    """
    task = _task(model, texts, labels, CalibrationSettings(**settings), training)
    return task.run(checkpoint=checkpoint, progress=progress)


def _task(model: TextEstimator, texts: Any, labels: Any, settings: CalibrationSettings, training: Any = None) -> Task:
    if settings.objective == "balanced":
        return SelectionTask(model, texts, labels, settings, training)
    if training is not None:
        raise ValueError(f"training must be None for the objective {settings.objective!r}")
    return BinTask(model, texts, labels, settings)


@dataclass(frozen=True)
class FinishedCalibration:
    """A finished calibration."""

    record: Mapping[str, Any]  # see `Calibration`
    noise: Noise  # the calibrated noise
    folder: Path  # the folder of the calibrated model
    already_done: bool = False  # whether it was finished before the call
    to_prove: Mapping[str, Any] | None = None  # "protect" and "max_false_positives", if rows were kept to prove that


def calibrate_folder(
    path: Path,
    examples: Examples,
    settings: CalibrationSettings,
    *,
    model: TextEstimator | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedCalibration:
    """Calibrate a saved model and store the rate, the measurements and a figure, in its folder or in a copy of it.

    The same call resumes a calibration that was interrupted, and leaves a finished one unchanged. ``model`` is that of
    the folder, if it was loaded already. ``out`` is a folder to create for a calibrated copy, and ``overwrite`` allows
    to replace another model there. ``note`` is called with remarks for the user.
    """
    model = load_model(path) if model is None else model
    target = path if out is None else out
    kept, to_prove = proof_rows(model, examples), None
    if kept.any():
        note(f"the {kept.sum()} rows that training held out to prove a false-positive rate are left out")
        examples = examples.take(np.flatnonzero(~kept).tolist())
        to_prove = (model.records.training or {})["identity"]
    task = folder_task(model, examples, settings, note)
    checkpoint = path / CHECKPOINT if out is None else out.parent / f".{out.name}{CHECKPOINT}"
    if (done := _finished(target, task)) is not None:
        delete_store(checkpoint)
        return replace(done, to_prove=to_prove)
    if out is not None:
        check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    with naming_a_full_disk(target):
        calibration = task.run(checkpoint=checkpoint, progress=progress)
        if model.records.protection is not None:
            note("the threshold of the protected class belongs to the earlier rate: run adaptdel protect again")
        training = model.records.training
        if training is not None and calibration.base is not None:
            training = retrained_record(training, calibration.base, calibration.noise)
        elif training is not None:
            training = {**training, "calibrated": True}
        model.use_noise(calibration.noise, calibration.base)
        model.record(calibration=dict(calibration.record), training=training)
        model.record(texts={**model.records.texts, "calibration": text_hashes(examples.texts)})
        figure: Callable[[Path], None] = lambda folder: plot_calibration(calibration.record, folder / FIGURE)  # noqa: E731
        if calibration.base is not None:
            save_model(model, target, figure)
        else:
            update_copy(model, path, out, figure)
    delete_store(checkpoint)
    return FinishedCalibration(calibration.record, calibration.noise, target, to_prove=to_prove)


def _finished(folder: Path, task: Task) -> FinishedCalibration | None:
    """The stored calibration of the model in a folder, if it is the result of this task."""
    if not (folder / CONFIG).exists():
        return None
    try:
        model = load_model(folder)
    except (ValueError, OSError):
        return None
    record, noise = model.records.calibration or {}, model.current_noise
    if record.get("settings") != task.settings or candidate_noise(record["rate"]) != noise:
        return None
    return FinishedCalibration(record, noise, folder, already_done=True)


def folder_task(
    model: TextEstimator, examples: Examples, settings: CalibrationSettings, note: Callable[[str], None]
) -> Task:
    """The calibration of a model on the rows of a file, by what the model knows of these rows.

    The rows that the model was not trained on are used, if there are enough; otherwise all rows. If the file holds the
    training set of a linear model, all candidates are trained on it: by cross-validation, or with enough other rows
    measured on these.
    """
    known = model.records.texts.get("training", np.zeros(0, dtype=np.uint64))
    trained = known_texts(examples.texts, known)
    is_training_file = len(known) > 0 and len(text_hashes(_rows(examples, trained)[0])) == len(known)
    can_refit = settings.objective == "balanced" and retraining(model.records.training or {}) is not None
    count = int((~trained).sum())
    if can_refit and is_training_file:
        training = _rows(examples, trained)
        if count >= ENOUGH_ROWS:
            note(
                f"calibrating on {count} rows that the model was not trained on; it is trained again for each candidate"
            )
            return SelectionTask(model, *_rows(examples, ~trained), settings, training)
        note(f"calibrating on {len(trained)} rows by cross-validation; each candidate trains the model again")
        return SelectionTask(model, examples.texts, examples.labels, settings, training, cross_validate=True)
    chosen = np.ones(len(trained), dtype=np.bool_)
    if settings.on == "training":
        if not trained.any():
            raise ValueError("on='training' needs rows that the model was trained on, which these are not")
        chosen = trained
        note(f"calibrating on the {trained.sum()} rows that the model was trained on")
    elif trained.any():
        first = examples.rows[int(np.argmax(trained))]
        seen = f"the model was trained on {trained.sum()} of {len(trained)} rows, the first is row {first}"
        # Enough are a group of lengths, or so many that every bin of the objective "paper" can be filled.
        bins = ENOUGH_BINS if isinstance(settings.bins, str) else len(settings.bins)
        if count >= settings.min_count * (1 if settings.objective == "balanced" else bins):
            chosen = ~trained
            note(f"{seen}: calibrating on the other {count}")
        else:
            note(f"{seen}: the others are too few, all rows are used")
    return _task(model, *_rows(examples, chosen), settings)


def _rows(examples: Examples, chosen: BoolArray) -> tuple[list[str], list[Any]]:
    rows = np.flatnonzero(chosen).tolist()
    return [examples.texts[n] for n in rows], [examples.labels[n] for n in rows]


@optional
def plot_calibration(record: Mapping[str, Any], path: Path) -> None:
    """Plot the deletion rate and the kept length against the length of the input, as in the paper's figure."""
    figure = new_figure(10, 3.8)
    longest = max((row["centre"] for row in record.get("bins", ())), default=800.0)
    lengths = np.arange(1, max(round(longest * 1.25), 20))
    shown = {"chosen": record["rate"]}
    for number, candidate in enumerate(record.get("candidates", ())):
        if not candidate["is_calibrated"] and number != record["chosen"]:
            shown[candidate["name"]] = candidate["rate"]
    left, right = figure.subplots(1, 2)
    for name, values in shown.items():
        noise = candidate_noise(values)
        rates = np.array([noise.share_removed(int(length)) for length in lengths])
        style = {"color": "#1d6f65", "lw": 2.0} if name == "chosen" else {"lw": 1.1}
        left.plot(lengths, 100 * rates, label=name, **style)
        right.plot(lengths, lengths * (1 - rates), label=name, **style)
    left.set_ylabel("deletion rate ψ (%)")
    right.set_ylabel("expected kept length K (tokens)")
    for axes in (left, right):
        axes.set_xlabel("input length (tokens)")
        axes.legend(frameon=False)
    save(figure, path)
