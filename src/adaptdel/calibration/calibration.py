"""AdaptDel+: calibrate a model on labelled texts, or a saved model in its folder, resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.bins import BinTask
from adaptdel.calibration.candidates import candidate_noise
from adaptdel.calibration.selection import SelectionTask
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.checks import BoolArray
from adaptdel.core.noise import Deletion, Noise
from adaptdel.core.rates import Rate
from adaptdel.files import naming_a_full_disk
from adaptdel.models.model_files import CONFIG, check_free, save_model, update_copy
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.plots import new_figure, optional, save
from adaptdel.settings import CalibrationSettings
from adaptdel.store import delete_store
from adaptdel.text.data import Examples, known_texts, text_hashes
from adaptdel.training.protection import proof_rows
from adaptdel.training.training import retrained_record, retraining

ENOUGH_ROWS = 2000  # fewer held-out rows than these are replaced by a cross-validation
ENOUGH_BINS = 3  # held-out rows are used if they can fill so many automatic bins
CHECKPOINT = ".calibration.sqlite"
FIGURE = "calibration.png"


@dataclass(frozen=True)
class Calibration:
    """A calibrated rate.

    Attributes:
        noise: the noise to certify with.
        record: what was measured and why the rate was chosen, in plain values; "warnings" are sentences to know before
            the rate is used.
        base: the base classifier that was trained under the rate; None if it was not trained again.
    """

    noise: Noise
    record: Mapping[str, Any]
    base: BaseClassifier | None = field(default=None, compare=False)

    @property
    def rate(self) -> Rate:
        """The deletion rate."""
        if not isinstance(self.noise, Deletion):
            raise ValueError(f"there is no deletion rate, but {self.noise!r}")
        return self.noise.rate


def calibrate(
    model: SmoothedClassifier,
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
    checked = CalibrationSettings(**settings)
    if checked.objective == "balanced":
        task: BinTask | SelectionTask = SelectionTask(model, texts, labels, checked, training)
    elif training is None:
        task = BinTask(model, texts, labels, checked)
    else:
        raise ValueError(f"training must be None for the objective {checked.objective!r}")
    return _run(task, checkpoint=checkpoint, progress=progress)


def _run(task: BinTask | SelectionTask, **options: Any) -> Calibration:
    record = task.run(**options)
    noise = candidate_noise(record["rate"])
    return Calibration(noise, record, task.final_base(noise) if isinstance(task, SelectionTask) else None)


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
    out: Path | None = None,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedCalibration:
    """Calibrate a saved model and store the rate, the measurements and a figure, in its folder or in a copy of it.

    The same call resumes a calibration that was interrupted, and leaves a finished one unchanged.

    Args:
        path: the folder of the model.
        examples: the rows of a labelled file.
        settings: how to calibrate.
        out: a folder to create for a calibrated copy; None changes the model in place.
        overwrite: whether another model in ``out`` may be replaced.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
        note: called with remarks for the user.
    """
    model = SmoothedClassifier.load(path)
    target = path if out is None else out
    kept, to_prove = proof_rows(model, examples), None
    if kept.any():
        note(f"the {kept.sum()} rows that training held out to prove a rate of false positives are left out")
        examples, to_prove = examples.take(np.flatnonzero(~kept).tolist()), model.training_["identity"]
    task = folder_task(model, examples, settings, note)
    checkpoint = path / CHECKPOINT if out is None else out.parent / f".{out.name}{CHECKPOINT}"
    if (done := _finished(target, task)) is not None:
        delete_store(checkpoint)
        return replace(done, to_prove=to_prove)
    if out is not None:
        check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    with naming_a_full_disk(target):
        calibration = _run(task, checkpoint=checkpoint, progress=progress)
        if getattr(model, "protection_", None) is not None:
            note("the threshold of the protected class belongs to the earlier rate: run adaptdel protect again")
        apply(model, calibration)
        model.texts_ = {**(getattr(model, "texts_", None) or {}), "calibration": text_hashes(examples.texts)}
        if calibration.base is not None:
            save_model(model, target, lambda folder: plot_calibration(calibration.record, folder / FIGURE))
        else:
            update_copy(model, path, out, lambda folder: plot_calibration(calibration.record, folder / FIGURE))
    delete_store(checkpoint)
    return FinishedCalibration(calibration.record, calibration.noise, target, to_prove=to_prove)


def apply(model: SmoothedClassifier, calibration: Calibration) -> None:
    """Give a model the calibrated noise, the base classifier that was trained under it, and the record."""
    model.noise = model.noise_ = calibration.noise
    model.calibration_ = dict(calibration.record)
    if model.__dict__.pop("protection_", None) is not None:
        model.threshold = None
    if calibration.base is not None:
        model.base = model.base_ = calibration.base
        model.training_ = retrained_record(model.training_, calibration.base, calibration.noise)
    elif getattr(model, "training_", None) is not None:
        model.training_ = {**model.training_, "calibrated": True}


def _finished(folder: Path, task: BinTask | SelectionTask) -> FinishedCalibration | None:
    """The stored calibration of the model in a folder, if it is the result of this task."""
    if not (folder / CONFIG).exists():
        return None
    try:
        model = SmoothedClassifier.load(folder)
    except (ValueError, OSError):
        return None
    record, noise = getattr(model, "calibration_", None) or {}, model.rule().noise
    if "rate" not in record or candidate_noise(record["rate"]) != noise:
        return None
    if record.get("settings") != task.settings:
        return None
    return FinishedCalibration(record, noise, folder, already_done=True)


def folder_task(
    model: SmoothedClassifier, examples: Examples, settings: CalibrationSettings, note: Callable[[str], None]
) -> BinTask | SelectionTask:
    """The calibration of a model on the rows of a file, by what the model knows of these rows.

    The rows that the model was not trained on are used, if there are enough; otherwise all rows. If the file holds the
    training set of a linear model, all candidates are trained on it: by cross-validation, or with enough other rows
    measured on these.
    """
    known = (getattr(model, "texts_", None) or {}).get("training", np.zeros(0, dtype=np.uint64))
    trained = known_texts(examples.texts, known)
    is_training_file = len(known) > 0 and len(text_hashes(_rows(examples, trained)[0])) == len(known)
    can_refit = settings.objective == "balanced" and retraining(getattr(model, "training_", None) or {}) is not None
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
        if count >= _enough(settings):
            chosen = ~trained
            note(f"{seen}: calibrating on the other {count}")
        else:
            note(f"{seen}: the others are too few, all rows are used")
    rows = _rows(examples, chosen)
    if settings.objective == "balanced":
        return SelectionTask(model, *rows, settings)
    return BinTask(model, *rows, settings)


def _rows(examples: Examples, chosen: BoolArray) -> tuple[list[str], list[Any]]:
    rows = np.flatnonzero(chosen).tolist()
    return [examples.texts[n] for n in rows], [examples.labels[n] for n in rows]


def _enough(settings: CalibrationSettings) -> int:
    """How many rows fill every bin, or for the objective "balanced" a group of lengths."""
    if settings.objective == "balanced":
        return settings.min_count
    return settings.min_count * (ENOUGH_BINS if isinstance(settings.bins, str) else len(settings.bins))


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
