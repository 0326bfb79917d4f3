"""Calibration of a saved model, in its folder or in a copy: goes on where it was stopped, and is whole or not done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptdel.calibration.figure import plot_calibration
from adaptdel.calibration.result import Calibration
from adaptdel.calibration.rows import choose_rows
from adaptdel.calibration.run import DEFAULTS, prepare
from adaptdel.data import Examples
from adaptdel.files import replacing_folder
from adaptdel.model_files import CALIBRATION, CONFIG, store_calibration
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import check_unit

JOURNAL = ".calibration.jsonl"
FIGURE = "calibration.png"


@dataclass(frozen=True)
class Done:
    """A finished calibration, where it is, and whether it had been finished before."""

    calibration: Calibration
    folder: Path
    before: bool = False


def calibrate_folder(
    path: Path,
    examples: Examples,
    settings: dict[str, Any],
    *,
    on: str = "auto",
    out: Path | None = None,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> Done:
    """Calibrate a saved model and store the rate, the trace and a figure, in its folder or in a copy of it.

    The same call goes on with a calibration that was stopped, and leaves one that is finished as it is. What the
    model's own calibration measured in the same way is not measured again.

    Args:
        path: the folder of the model.
        examples: the rows of a labelled file.
        settings: arguments of `adaptdel.calibration.calibrate`.
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
        return Done(stored, target, before=True)
    if out is not None:
        _check_free(out, overwrite=overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
    calibration = task.run(journal=journal, progress=progress, earlier=stored if out is None else _stored(path))
    if out is None:
        _store(path, calibration)
    else:
        _copy(path, out, calibration)
    journal.unlink(missing_ok=True)
    return Done(calibration, target)


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
