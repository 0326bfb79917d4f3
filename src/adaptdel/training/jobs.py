"""Resumable training from a labelled file into a model folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from adaptdel import plots
from adaptdel.advice import unordered
from adaptdel.core.checks import check_int, check_real, check_text
from adaptdel.files import naming_a_full_disk, read_bytes, read_json, write_json
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.model_files import CONFIG, TRAINING, load_model, save_model
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import EXACT, TrainingSettings
from adaptdel.store import check_same_job
from adaptdel.text.data import DATA, PROOF, DrawnRows, Examples, SplitTexts, content_digest, read_examples, row_hashes
from adaptdel.text.units import check_unit
from adaptdel.training.protection import (
    DETECTION,
    allowed_false_positives,
    needed_negatives,
    plot_detection,
    protect,
)
from adaptdel.training.training import train, train_exact

HISTORY, FRONT = "history.png", "front.png"  # in the folder of a model
PROTECTED_VALIDATION = 0.4  # of the rows to train on: few odd texts of the other class decide which bound is best
LEAST_PROOF, MOST_PROOF = 0.2, 0.5  # of the rows, to prove a rate of false positives


@dataclass(frozen=True)
class TrainingJob:
    """A training from a labelled file into a model folder; the columns and the encoding are those of the file."""

    data: str
    out: str
    settings: TrainingSettings
    text: str = DATA.text
    label: str = DATA.label
    encoding: str = DATA.encoding
    protect: str | None = None  # of two classes, the one that gets a threshold with a proved rate of false positives
    max_false_positives: float | None = None  # that rate
    sample: int | None = None  # the number of rows to train on, drawn at random with the seed; None for all

    def __post_init__(self) -> None:
        if self.sample is not None:
            check_int("sample", self.sample, least=1)
        if self.protect is not None:
            object.__setattr__(self, "protect", str(self.protect))  # which YAML may read as a number
        if (self.protect is None) != (self.max_false_positives is None):
            raise ValueError("protect and max_false_positives must be given together")
        if self.max_false_positives is not None:
            accepted = "a rate between 0 and 1, such as 0.01"
            check_real(
                "max_false_positives", self.max_false_positives, accepted=accepted, least=0.0, most=1.0, open_ends=True
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingJob:
        """A job from named values: its fields and those of `TrainingSettings`."""
        names = [field.name for field in fields(cls) if field.name != "settings"]
        for name, what in (("data", "a labelled file"), ("out", "the folder of the model")):
            if not values.get(name):
                raise ValueError(f"{name} must be given: {what}")
        for name in ("data", "out", "text", "label", "encoding"):
            check_text(name, values.get(name, ""))
        if values.get("protect") is not None and values.get("method") == EXACT:
            values = {"validation": PROTECTED_VALIDATION, **values}
        settings = TrainingSettings.from_dict({name: value for name, value in values.items() if name not in names})
        return cls(**{name: values[name] for name in names if name in values}, settings=settings)


@dataclass(frozen=True)
class FinishedTraining:
    """A finished training."""

    model: SmoothedClassifier | AdditiveClassifier  # the trained model
    notes: list[str]  # remarks on the data
    already_done: bool = False  # whether an earlier call had finished it


def train_job(
    job: TrainingJob,
    *,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedTraining:
    """Train, or resume an interrupted training; if the same job is finished already, load its model."""
    out = Path(job.out)
    examples = _read(job, job.data)
    settings = job.settings
    held = None if isinstance(settings.validation, (int, float)) else _read(job, settings.validation)
    for sentence in examples.notes:
        note(f"{job.data}: {sentence}")
    if job.sample is not None:
        examples = examples.take(DrawnRows(job.sample, settings.seed).places(examples.texts))
        examples = replace(examples, digest=content_digest(examples.texts, examples.labels))
    everything = examples
    examples, proof, share = (everything, None, 0.0) if job.protect is None else _without_proof(job, everything)
    unit = check_unit(settings.unit)
    split = SplitTexts(examples.texts, unit)
    tokens = list(split) if settings.is_linear else split
    given, settings = settings, settings.resolved(map(len, tokens))
    identity = {**settings.effective(), "data": everything.digest}
    if job.protect is not None:
        identity |= {"protect": job.protect, "max_false_positives": job.max_false_positives}
    if settings.is_exact and settings.additive.vectors:
        identity["vectors"] = hashlib.sha256(read_bytes(Path(settings.additive.vectors))).hexdigest()
    if held is not None:
        identity["validation"] = held.digest
    if _finished(out, identity, overwrite=overwrite):
        return FinishedTraining(load_model(out), examples.notes, already_done=True)
    if sentence := given.chosen(settings):
        note(sentence)
    work = out.parent / f".{out.name}.training"
    if not settings.is_linear:  # a linear model trains in seconds and has no checkpoints
        _open_checkpoints(work, identity, out)
    if settings.is_linear and (remark := unordered(settings.unit, getattr(settings.details, "ngram", 1))):
        note(remark)
    validation = None if held is None else (held.texts, held.labels)
    checkpoints = work / "checkpoints"
    try:
        model: SmoothedClassifier | AdditiveClassifier
        if settings.is_exact:
            aim = None if proof is None else (job.protect, share)
            model = train_exact(examples.texts, examples.labels, settings, protect=aim, progress=progress, note=note)
        else:
            with naming_a_full_disk(checkpoints):
                model = train(
                    examples.texts,
                    examples.labels,
                    settings,
                    tokens=tokens,
                    validation=validation,
                    folder=checkpoints,
                    progress=progress,
                    note=note,
                )
    except (ValueError, ImportError):
        if not checkpoints.exists():  # nothing to resume: the settings or the data do not fit
            shutil.rmtree(work, ignore_errors=True)
        raise
    model.training_["identity"] = identity
    model.training_["data"]["columns"] = {"text": job.text, "label": job.label}  # which certify and calibrate take
    if proof is not None:
        assert job.max_false_positives is not None
        rate = job.max_false_positives
        protect(model, proof.texts, proof.labels, label=job.protect, max_false_positives=rate, held_out=True)
        model.texts_[PROOF] = row_hashes(proof)
    save_model(model, out, lambda folder: _write_figures(folder, model))
    shutil.rmtree(work, ignore_errors=True)
    return FinishedTraining(model, examples.notes)


def _without_proof(job: TrainingJob, examples: Examples) -> tuple[Examples, Examples, float]:
    """The rows to train on, those that prove the rate of false positives, and which share of these may be wrong.

    A fifth of each class proves the rate, or up to half: ten times as many texts of the other class as there are to one
    false positive. Some of them may then be wrong, so that no single odd one decides the threshold. Rows are drawn
    whatever their text, as new texts will be: some equal a text that trains the model.
    """
    others = sum(str(label) != job.protect for label in examples.labels)
    if len(set(examples.labels)) != 2 or others == len(examples.labels):
        raise ValueError(
            f"protect must be one of two classes, got {job.protect!r} for {sorted(set(map(str, examples.labels)))}"
        )
    assert job.max_false_positives is not None
    needed = ceil(needed_negatives(job.max_false_positives) / MOST_PROOF)
    if others < needed:
        raise ValueError(
            f"{others} texts of the other class than {job.protect!r} cannot prove {100 * job.max_false_positives:.3g}% "
            f"false positives: give at least {needed:,}, of which half prove the rate, or ask for a higher rate"
        )
    fraction = min(MOST_PROOF, max(LEAST_PROOF, 10 / (job.max_false_positives * others)))
    rng, proof = np.random.default_rng(job.settings.seed + 1), list[int]()
    for name in sorted(set(examples.labels)):
        own = [row for row, label in enumerate(examples.labels) if label == name]
        proof += rng.permutation(own)[: min(round(fraction * len(own)), len(own) - 1)].tolist()
    trained = sorted(set(range(len(examples.labels))).difference(proof))
    negatives = sum(str(examples.labels[row]) != job.protect for row in proof)
    share = allowed_false_positives(negatives, job.max_false_positives) / negatives
    return examples.take(trained), examples.take(sorted(proof)), share


def _read(job: TrainingJob, path: str) -> Examples:
    return read_examples(path, text=job.text, label=job.label, encoding=job.encoding)


def _finished(out: Path, identity: dict[str, Any], *, overwrite: bool) -> bool:
    """Whether the folder holds the result of the same job; ValueError if it holds something else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / CONFIG).exists():
        raise ValueError(f"{out}: holds something that is not a model: choose another folder for --out")
    if overwrite:
        return False
    record = read_json(out / TRAINING, "the record of a training") if (out / TRAINING).exists() else {}
    check_same_job(out, record.get("identity"), identity, "choose another --out, or --overwrite")
    return True


def _open_checkpoints(work: Path, identity: dict[str, Any], out: Path) -> None:
    """Create the checkpoint folder of a training, or check that it belongs to the same training."""
    plan = work / "training.json"
    if plan.exists():
        try:
            stored = read_json(plan, "the settings of an interrupted training")
        except ValueError as error:
            raise ValueError(f"{error}, or delete {work}") from None
        check_same_job(out, stored, identity, f"finish that training, delete {work}, or choose another --out")
        return
    work.mkdir(parents=True, exist_ok=True)
    write_json(plan, identity)


def _write_figures(folder: Path, model: SmoothedClassifier | AdditiveClassifier) -> None:
    """Draw what training and protection measured into the folder of the model."""
    if (protection := getattr(model, "protection_", None)) is not None:
        plot_detection(protection, folder / DETECTION)
    if isinstance(model, AdditiveClassifier):
        plot_front(model, folder / FRONT)
    else:
        plot_history(model.training_["history"], folder / HISTORY)


@plots.optional
def plot_history(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the losses, and the accuracy where it was measured, over epochs or steps."""
    step = "epoch" if history and "epoch" in history[0] else "step"
    figure = plots.new_figure(7, 3.6)
    with_accuracy = [row for row in history if row.get("valid_accuracy") is not None]
    panels = figure.subplots(1, 2 if len(with_accuracy) > 1 else 1, squeeze=False)[0]
    for name, colour, label in (("train_loss", "#1d6f65", "training"), ("valid_loss", "#c8553d", "held out")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            panels[0].plot([row[step] for row in rows], [row[name] for row in rows], color=colour, lw=1.6, label=label)
    panels[0].set(xlabel=step, ylabel="loss")
    panels[0].legend(frameon=False)
    if len(with_accuracy) > 1:
        steps, accuracies = ([row[name] for row in with_accuracy] for name in (step, "valid_accuracy"))
        panels[1].plot(steps, accuracies, color="#c8553d")
        panels[1].set(xlabel=step, ylabel="accuracy on noisy held-out examples")
    plots.save(figure, path)


@plots.optional
def plot_front(model: AdditiveClassifier, path: Path) -> None:
    """Plot the held-out accuracy of an additive classifier against its mean radius, for each of its bounds."""
    front, point = model.front_, model.base_classifier().options()["point"]
    figure = plots.new_figure(5, 3.6)
    axes = figure.subplots()
    radii = [each["mean_radius"] for each in front]
    for name, colour in (("accuracy", "#1d6f65"), ("balanced_accuracy", "#c8553d")):
        values = [100 * each[name] for each in front]
        axes.plot(radii, values, marker="o", ms=4, color=colour, lw=1.6, label=name.replace("_", " "))
        axes.plot(radii[point], values[point], "o", ms=9, mfc="none", color=colour)
    axes.set(xlabel="mean certified radius on held-out examples", ylabel="%")
    axes.legend(frameon=False)
    plots.save(figure, path)


def read_config(path: str | Path) -> dict[str, Any]:
    """The fields of a job from a YAML file; paths in it are relative to the working directory."""
    try:
        content = yaml.safe_load(read_bytes(Path(path)))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split()):.200}") from None
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: must hold fields such as 'data: train.csv'")
    return content
