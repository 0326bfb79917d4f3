"""Resumable training from a labelled file into a model folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from adaptdel import plots
from adaptdel.advice import unordered
from adaptdel.core.checks import check_int, check_real, check_text
from adaptdel.files import naming_a_full_disk, read_bytes, read_json, write_json
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import CONFIG, check_free, load_model, save_model
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import EXACT, FILTER, FilterSettings, TrainingSettings
from adaptdel.store import check_same_job
from adaptdel.text.data import DATA, PROOF, DrawnRows, Examples, SplitTexts, content_digest, read_examples, row_hashes
from adaptdel.text.formats import short_text
from adaptdel.text.units import check_unit
from adaptdel.training.choice import Choice, Proof
from adaptdel.training.protection import (
    DETECTION,
    Protection,
    allowed_false_positives,
    class_number,
    needed_negatives,
    plot_detection,
    protect,
)
from adaptdel.training.training import train, train_exact

HISTORY, TRADE_OFF = "history.png", "trade-off.png"  # in the folder of a model
FALSE_POSITIVES = 0.01  # the rate that is proved unless another one is asked for
LEAST_PROOF, MOST_PROOF = 0.2, 0.5  # of the rows, to prove a rate of false positives
PROOF_TEXTS = 20  # with 10, detection is 0.5 to 2 points lower, and half as steady, on rows that were held out


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
    filter: FilterSettings = FILTER  # how an exact filter of this class is chosen
    sample: int | None = None  # the number of rows to train on, drawn at random with the seed; None for all

    def __post_init__(self) -> None:
        if self.sample is not None:
            check_int("sample", self.sample, least=1)
        if self.protect is not None:
            object.__setattr__(self, "protect", str(self.protect))  # which YAML may read as a number
        if self.protect is None and (self.max_false_positives is not None or self.filter != FILTER):
            raise ValueError("max_false_positives and the settings of a filter need protect, the class to protect")
        if self.protect is not None and self.max_false_positives is None:
            object.__setattr__(self, "max_false_positives", FALSE_POSITIVES)
        if self.filter != FILTER and not self.settings.is_exact:
            raise ValueError(f"the settings of a filter are for the method {EXACT}")
        if self.max_false_positives is not None:
            accepted = "a rate between 0 and 1, such as 0.01"
            check_real(
                "max_false_positives", self.max_false_positives, accepted=accepted, least=0.0, most=1.0, open_ends=True
            )

    def proof(self, negatives: int) -> Proof:
        """The proof of the rate by this many texts of the other class."""
        assert self.max_false_positives is not None
        return Proof(negatives, allowed_false_positives(negatives, self.max_false_positives))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingJob:
        """A job from named values: its fields and those of `TrainingSettings`."""
        names = [field.name for field in fields(cls) if field.name not in ("settings", "filter")]
        of_filter = [field.name for field in fields(FilterSettings)]
        for name, what in (("data", "a labelled file"), ("out", "the folder of the model")):
            if not values.get(name):
                raise ValueError(f"{name} must be given: {what}")
        for name in ("data", "out", "text", "label", "encoding"):
            check_text(name, values.get(name, ""))
        others = {name: value for name, value in values.items() if name not in (*names, *of_filter)}
        return cls(
            **{name: values[name] for name in names if name in values},
            settings=TrainingSettings.from_dict(others),
            filter=FilterSettings(**{name: values[name] for name in of_filter if name in values}),
        )


@dataclass(frozen=True)
class FinishedTraining:
    """A finished training."""

    model: Any  # the trained model, a `TextEstimator`
    notes: list[str]  # remarks on the data
    choice: Choice | None = None  # of a filter
    remarks: Sequence[str] = ()  # on that choice
    deciding: Sequence[tuple[int, str]] = ()  # the rows of the proof that set the threshold, with their first words
    already_done: bool = False  # whether an earlier call had finished it


def train_job(
    job: TrainingJob,
    *,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedTraining:
    """Train, or resume an interrupted training; if the same job is finished already, load its model."""
    out, settings = Path(job.out), job.settings
    examples = _read(job, job.data)
    held = None if isinstance(settings.validation, (int, float)) else _read(job, settings.validation)
    for sentence in examples.notes:
        note(f"{job.data}: {sentence}")
    if job.sample is not None:
        examples = examples.take(DrawnRows(job.sample, settings.seed).positions(examples.texts))
        examples = replace(examples, digest=content_digest(examples.texts, examples.labels))
    proof, choice, deciding, remarks = None, None, list[tuple[int, str]](), list[str]()
    if job.protect is not None:
        examples, proof = without_proof(job, examples)
    tokens: Any = SplitTexts(examples.texts, check_unit(settings.unit))
    tokens = list(tokens) if settings.is_linear else tokens
    settings = settings.resolved(map(len, tokens))
    identity = _identity(job, settings, examples, held)
    check_free(out, overwrite=True)  # raises for a folder that holds something else
    if (out / CONFIG).exists() and not overwrite:
        model = load_model(out)
        stored = (model.records.training or {}).get("identity")
        check_same_job(out, stored, identity, "choose another --out, or --overwrite")
        return FinishedTraining(model, examples.notes, already_done=True)
    remarks = [job.settings.chosen(settings)]
    if settings.is_linear:
        remarks.append(unordered(settings.unit, getattr(settings.details, "ngram", 1)) or "")
    for sentence in filter(None, remarks):
        note(sentence)
    work = out.parent / f".{out.name}.training"
    if settings.is_exact:
        aim = None if proof is None else (job.protect, job.proof(len(proof.texts)))
        options: dict[str, Any] = {"tokens": tokens, "protect": aim, "goal": job.filter, "progress": progress}
        model, choice = train_exact(examples.texts, examples.labels, settings, **options)
    else:
        model = _train_resumably(settings, examples, tokens, held, work, identity, out, progress=progress, note=note)
    data = model.records.training["data"] | {"columns": {"text": job.text, "label": job.label}}  # for later commands
    model.record(training=model.records.training | {"identity": identity, "data": data})
    if proof is not None:
        goal: dict[str, Any] = {"label": job.protect, "max_false_positives": job.max_false_positives, "held_out": True}
        if choice is not None:
            goal |= {"positives": partial(choice.certificates, model), "uncertified": choice.plain.clean}
            remarks = choice.notes(job.proof)
        chosen = protect(model, proof.texts, proof.labels, **goal)
        if choice is not None:
            model.record(protection={**model.records.protection, "filters": choice.described()})
        deciding = deciding_rows(model, proof, chosen)
        model.record(texts={**model.records.texts, PROOF: row_hashes(proof)})
    save_model(model, out, lambda folder: write_figures(folder, model))
    shutil.rmtree(work, ignore_errors=True)
    return FinishedTraining(model, examples.notes, choice, remarks, deciding)


def _identity(
    job: TrainingJob, settings: TrainingSettings, examples: Examples, held: Examples | None
) -> dict[str, Any]:
    """All that the result depends on: another call is the same job if it has the same."""
    identity = {**settings.effective(), "data": examples.digest}
    if job.protect is not None:
        identity |= {"protect": job.protect, "max_false_positives": job.max_false_positives}
        identity |= asdict(job.filter) if settings.is_exact else {}
    if settings.is_exact and settings.additive.vectors:
        identity["vectors"] = hashlib.sha256(read_bytes(Path(settings.additive.vectors))).hexdigest()
    return identity if held is None else identity | {"validation": held.digest}


def _train_resumably(
    settings: TrainingSettings,
    examples: Examples,
    tokens: Any,
    held: Examples | None,
    work: Path,
    identity: dict[str, Any],
    out: Path,
    **options: Any,
) -> SmoothedClassifier:
    """Train a smoothed classifier, with the checkpoints of a transformer in the folder ``work``."""
    checkpoints, plan = work / "checkpoints", work / "training.json"
    if not settings.is_linear and plan.exists():  # a linear model trains in seconds and has no checkpoints
        try:
            stored = read_json(plan, "the settings of an interrupted training")
        except ValueError as error:
            raise ValueError(f"{error}, or delete {work}") from None
        check_same_job(out, stored, identity, f"finish that training, delete {work}, or choose another --out")
    elif not settings.is_linear:
        work.mkdir(parents=True, exist_ok=True)
        write_json(plan, identity)
    validation = None if held is None else (held.texts, held.labels)
    try:
        with naming_a_full_disk(checkpoints):
            return train(
                examples.texts,
                examples.labels,
                settings,
                tokens=tokens,
                validation=validation,
                folder=checkpoints,
                **options,
            )
    except (ValueError, ImportError):
        if not checkpoints.exists():  # nothing to resume: the settings or the data do not fit
            shutil.rmtree(work, ignore_errors=True)
        raise


def without_proof(job: TrainingJob, examples: Examples) -> tuple[Examples, Examples]:
    """The rows to train on, those that prove the rate of false positives, and which fraction of these may be wrong.

    A fifth of each class proves the rate, or up to half: `PROOF_TEXTS` times as many texts of the other class as there
    are to one false positive. Some of them may then be wrong, so that no single outlier decides. Rows
    are drawn whatever their text, as new texts will be: some equal a text that trains the model. All texts of the class
    that an exact filter protects train it, since they are measured out of fold.
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
            f"{others} texts of classes other than {job.protect!r} cannot prove {100 * job.max_false_positives:.3g}% "
            f"false positives: give at least {needed:,}, of which half prove the rate, or ask for a higher rate"
        )
    fraction = min(MOST_PROOF, max(LEAST_PROOF, PROOF_TEXTS / (job.max_false_positives * others)))
    proof = list[int]()
    for name in sorted(set(examples.labels)):
        own = [row for row, label in enumerate(examples.labels) if label == name]
        if str(name) == job.protect and job.settings.is_exact:
            continue
        if count := min(round(fraction * len(own)), len(own) - 1):
            proof += DrawnRows(count, job.settings.seed).of(own)
    trained = sorted(set(range(len(examples.labels))).difference(proof))
    return examples.take(trained), examples.take(sorted(proof))


def deciding_rows(model: TextEstimator, proof: Examples, chosen: Protection) -> list[tuple[int, str]]:
    """The rows of the other class that set the threshold, the highest first; [] where scores are not known."""
    number = class_number(model.classes_.tolist(), chosen.label)
    others = proof.take([row for row, label in enumerate(proof.labels) if label != chosen.label])
    values = model.class_scores(number).values(list(model.split(others.texts))) or []
    highest = sorted((-value, place) for place, value in enumerate(values) if value >= chosen.limit)
    return [(others.rows[place], short_text(others.texts[place])) for _, place in highest]


def _read(job: TrainingJob, path: str) -> Examples:
    return read_examples(path, text=job.text, label=job.label, encoding=job.encoding)


def write_figures(folder: Path, model: TextEstimator) -> None:
    """Draw what training and protection measured into the folder of the model."""
    if (protection := model.records.protection) is not None:
        plot_detection(protection, folder / DETECTION)
    if history := (model.records.training or {}).get("history"):
        plot_history(history, folder / HISTORY)
    if isinstance(model, AdditiveClassifier) and model.trade_off_:
        plot_trade_off(model, folder / TRADE_OFF)


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
def plot_trade_off(model: AdditiveClassifier, path: Path) -> None:
    """Plot the held-out accuracy of an additive classifier against its mean radius, for each of its clips."""
    figure = plots.new_figure(5, 3.6)
    axes = figure.subplots()
    radii = [point.mean_radius for point in model.trade_off_]
    for name, colour in (("accuracy", "#1d6f65"), ("balanced_accuracy", "#c8553d")):
        values = [100 * getattr(point, name) for point in model.trade_off_]
        axes.plot(radii, values, marker="o", ms=4, color=colour, lw=1.6, label=name.replace("_", " "))
        axes.plot(radii[model.level], values[model.level], "o", ms=9, mfc="none", color=colour)
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
