"""Calibration of a saved model in its folder, resumable: rows to calibrate on, the figure, the result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.bins import equal_width_edges, make_bins
from adaptdel.calibration.calibration import DEFAULTS, Calibration, prepare
from adaptdel.core.checks import check_choice
from adaptdel.data import Examples, held_out
from adaptdel.files import replacing_folder
from adaptdel.model_files import CALIBRATION, CONFIG, store_calibration
from adaptdel.plots import new_figure, save
from adaptdel.settings import CALIBRATION as DEFAULT
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import Unit, check_unit

CHOICES = ("auto", "held-out", "train", "all")
ENOUGH_BINS = 3  # rows that were held out are enough if they make so many bins


@dataclass(frozen=True)
class CalibrationRows:
    """The rows to calibrate on.

    Attributes:
        texts: their texts.
        labels: their labels.
        note: what there is to say about the choice, or "".
    """

    texts: list[str]
    labels: list[Any]
    note: str = ""


def choose_rows(
    examples: Examples,
    training: Mapping[str, Any] | None,
    on: str,
    *,
    unit: Unit,
    bins: str | Sequence[float],
    min_count: int,
) -> CalibrationRows:
    """The rows that ``on`` names.

    "held-out" are those that the training of the model set aside, "train" the others, "all" are all. "auto" takes those
    held out of the training file, if they leave every given bin ``min_count`` rows, or make at least three bins; else
    all rows. CalibrationRows that were trained on make a model look surer than it is.
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
                examples.texts, examples.labels, "no rows of the file were held out: trained rows are used"
            )
        raise ValueError(f"on must be 'all' or 'auto' for a model whose training held out no rows, got {on!r}")
    assert training is not None
    apart = [held_out(text, share, training["seed"]) for text in examples.texts]
    chosen = _some(examples, [out == (on != "train") for out in apart])
    if not chosen.texts:
        raise ValueError(f"on must leave at least one row to calibrate on, got {on!r}")
    if on == "auto" and not _enough([len(unit.split(text)) for text in chosen.texts], bins, min_count):
        few = f"only {len(chosen.texts)} rows were held out, too few for the bins: trained rows are used beside them"
        return CalibrationRows(examples.texts, examples.labels, few)
    return CalibrationRows(chosen.texts, chosen.labels, f"calibrating on {len(chosen.texts)} rows: {_WORDS[on]}")


_WORDS = {"auto": "those held out in training", "held-out": "those held out in training", "train": "those trained on"}


def _some(examples: Examples, wanted: list[bool]) -> CalibrationRows:
    pairs = [(text, label) for text, label, use in zip(examples.texts, examples.labels, wanted, strict=True) if use]
    return CalibrationRows([text for text, _ in pairs], [label for _, label in pairs])


def _enough(lengths: list[int], bins: str | Sequence[float], min_count: int) -> bool:
    if isinstance(bins, str):
        return len(lengths) >= min_count and len(equal_width_edges(lengths, min_count=min_count)) >= ENOUGH_BINS
    return all(sum(length in bin for length in lengths) >= min_count for bin in make_bins(bins, 1))


INK, ACCENT, PALE = "#1d6f65", "#c8553d", "#b8c4c2"


def plot_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Draw the deletion rate and the kept length against the length of the input, as in the paper's figure."""
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
        found = [b.searched for b in moved]
        right.plot([b.centre for b in moved], found, "x", color=ACCENT, ms=6, label="found before the monotone fit")
        right.legend(frameon=False, loc="best")
    right.set_ylabel("expected kept length K (tokens)")
    right.set_ylim(bottom=0)
    right.set_title("Kept length", fontsize=11)
    save(figure, path)


def _edges(axes: Any, calibration: Calibration, longest: int) -> None:
    """Bin edges as pale lines, and what all panels share."""
    for one in calibration.bins[1:]:
        axes.axvline(one.lower, color=PALE, lw=0.8, ls=":")
    axes.set_xlim(0, longest)
    axes.set_xlabel("input length (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _steps(axes: Any, lengths: Any, values: Any, calibration: Calibration) -> None:
    """A line that is broken where a binned rate jumps."""
    edges = [b.lower for b in calibration.bins[1:]] if calibration.rate.kind == "binned" else []
    parts = np.searchsorted(lengths, edges)
    for x, y in zip(np.split(lengths, parts), np.split(values, parts), strict=True):
        axes.plot(x, y, color=INK, lw=1.8)


def _rate(length: float, keep: float) -> float:
    return 100 * max(0.0, 1 - keep / length)


def _dots() -> dict[str, Any]:
    return {"color": INK, "ms": 4.5}


JOURNAL = ".calibration.jsonl"
FIGURE = "calibration.png"


@dataclass(frozen=True)
class FinishedCalibration:
    """A finished calibration, where it is, and whether it had been finished before."""

    calibration: Calibration
    folder: Path
    before: bool = False


def calibrate_folder(
    path: Path,
    examples: Examples,
    settings: dict[str, Any],
    *,
    on: str = DEFAULT.on,
    out: Path | None = None,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedCalibration:
    """Calibrate a saved model and store the rate, the trace and a figure, in its folder or in a copy of it.

    The same call goes on with a calibration that was stopped, and leaves one that is finished as it is. What the
    model's own calibration measured in the same way is not measured again.

    Args:
        path: the folder of the model.
        examples: the rows of a labelled file.
        settings: arguments of `adaptdel.calibration.calibration`.
        on: which rows, see `choose_rows`.
        out: a folder to make for a calibrated copy; None changes the model in place.
        overwrite: whether another model in ``out`` may be replaced.
        progress: True, False, "auto" or a callable (done, total).
        note: told what there is to know.
    """
    settings = DEFAULTS | settings
    model = SmoothedClassifier.load(path)
    target = path if out is None else out
    training = getattr(model, "training_", None)
    own = {name: settings[name] for name in ("bins", "min_count")}
    rows = choose_rows(examples, training, on, unit=check_unit(model.unit), **own)
    if rows.note:
        note(rows.note)
    task = prepare(model, rows.texts, rows.labels, **settings)
    journal = target / JOURNAL if out is None else out.parent / f".{out.name}{JOURNAL}"
    stored = _stored(target)
    if stored is not None and dict(stored.settings) == task.settings:
        journal.unlink(missing_ok=True)
        return FinishedCalibration(stored, target, before=True)
    if out is not None:
        _check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    calibration = task.run(journal=journal, progress=progress, earlier=stored if out is None else _stored(path))
    if out is None:
        _store(path, calibration)
    else:
        _copy(path, out, calibration)
    journal.unlink(missing_ok=True)
    return FinishedCalibration(calibration, target)


def _stored(folder: Path) -> Calibration | None:
    """The calibration whose noise the model in a folder has, if any."""
    try:
        found = Calibration.from_dict(json.loads((folder / CALIBRATION).read_text(encoding="utf-8")))
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return found if config["noise"] == found.noise.to_dict() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_free(out: Path, *, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / CONFIG).exists():
        raise ValueError(f"{out}: holds something that is not a model: choose another folder for --out")
    if not overwrite:
        raise ValueError(f"{out}: holds another model: choose another folder for --out, or --overwrite")


def _store(folder: Path, calibration: Calibration) -> None:
    try:
        plot_calibration(calibration, folder / FIGURE)
    except ImportError:  # figures are an extra; one of an earlier calibration would not fit
        (folder / FIGURE).unlink(missing_ok=True)
    store_calibration(folder, calibration.to_dict(), calibration.noise)


def _copy(path: Path, out: Path, calibration: Calibration) -> None:
    """Make a calibrated copy of a model, whole or not at all."""
    with replacing_folder(out) as partial:
        shutil.copytree(path, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(JOURNAL))
        _store(partial, calibration)
