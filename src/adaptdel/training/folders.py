"""Training from a file into a folder: goes on where it was stopped, and never leaves half a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adaptdel.data import Examples, read_examples
from adaptdel.files import read_json, write_json, write_text
from adaptdel.model_files import CONFIG, TRAINING, save_model
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.training.history import history_csv, plot_history
from adaptdel.training.settings import Settings, check_names
from adaptdel.training.train import train


@dataclass(frozen=True)
class Job:
    """A training from a file into a folder."""

    data: str
    out: str
    settings: Settings
    text: str = "text"
    label: str = "label"
    encoding: str = "utf-8"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """A job out of named values: its own fields and those of `Settings`."""
        own = [field.name for field in fields(cls) if field.name != "settings"]
        known = [*own, *(field.name for field in fields(Settings))]
        check_names(values, known)
        for name in ("data", "out"):
            if not isinstance(values.get(name), str) or not values[name]:
                raise ValueError(f"{name} must be given: {'a labelled file' if name == 'data' else 'a folder to make'}")
        for name in own:
            if name in values and (not isinstance(values[name], str) or "\0" in values[name]):
                raise ValueError(f"{name} must be a text, got {values[name]!r:.60}")
        rest = {name: value for name, value in values.items() if name not in own}
        return cls(**{name: values[name] for name in own if name in values}, settings=Settings.from_dict(rest))


@dataclass(frozen=True)
class Done:
    """A finished training: the model, notes on the data, and whether it had been finished before."""

    model: SmoothedClassifier
    notes: list[str]
    before: bool = False


def train_job(
    job: Job, *, overwrite: bool = False, progress: Any = "auto", note: Callable[[str], None] = lambda text: None
) -> Done:
    """Train, or go on with a training that was stopped; the same job that is finished already is left as it is."""
    out = Path(job.out)
    examples = _read(job, job.data)
    settings = job.settings
    held = None if isinstance(settings.validation, (int, float)) else _read(job, settings.validation)
    for sentence in examples.notes:
        note(f"{job.data}: {sentence}")
    identity = {**settings.effective(), "data": examples.digest}
    if held is not None:
        identity["validation"] = held.digest
    if _finished(out, identity, overwrite=overwrite):
        return Done(SmoothedClassifier.load(out), examples.notes, before=True)
    work = out.parent / f".{out.name}.training"
    if not settings.linear:  # a linear model takes seconds: there is nothing to go on with
        _begin(work, identity, out)
    validation = None if held is None else (held.texts, held.labels)
    model = train(
        examples.texts, examples.labels, settings, validation=validation, folder=work / "checkpoints", progress=progress
    )
    model.training_["identity"] = identity
    save_model(model, out, lambda folder: _extras(folder, model))
    shutil.rmtree(work, ignore_errors=True)
    return Done(model, examples.notes)


def _read(job: Job, path: str) -> Examples:
    return read_examples(path, text=job.text, label=job.label, encoding=job.encoding)


def _finished(out: Path, identity: dict[str, Any], *, overwrite: bool) -> bool:
    """Whether the folder holds the result of this very job; a ValueError if it holds something else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / CONFIG).exists():
        raise ValueError(f"{out}: holds something that is not a model: choose another folder for --out")
    if overwrite:
        return False
    record = read_json(out / TRAINING, "the record of a training") if (out / TRAINING).exists() else {}
    known = record.get("identity")
    differs = _differences(known if isinstance(known, dict) else {}, identity)
    if differs:
        raise ValueError(f"{out}: holds a model of another training ({differs}): choose another --out, or --overwrite")
    return True


def _begin(work: Path, identity: dict[str, Any], out: Path) -> None:
    """Open the folder of an unfinished training, or make it."""
    plan = work / "training.json"
    if plan.exists():
        try:
            stored = read_json(plan, "the plan of a training that was stopped")
        except ValueError as error:
            raise ValueError(f"{error}, or delete {work}") from None
        differs = _differences(stored, identity)
        if differs:
            raise ValueError(
                f"{out}: another training towards it was stopped half-way ({differs}): "
                f"run it to the end, delete {work}, or choose another --out"
            )
        return
    work.mkdir(parents=True, exist_ok=True)
    write_json(plan, identity)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs, in words: "rate was 0.9, now 0.95"."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    shown = [f"{name} was {_short(old.get(name))}, now {_short(new.get(name))}" for name in names[:3]]
    return "; ".join(shown) + ("; ..." if len(names) > 3 else "")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 40 else text[:12]


def _extras(folder: Path, model: SmoothedClassifier) -> None:
    """The history as a table and a curve, beside the model."""
    history = model.training_["history"]
    write_text(folder / "history.csv", history_csv(history))
    try:
        plot_history(history, folder / "history.png")
    except ImportError:  # figures are an extra
        return
