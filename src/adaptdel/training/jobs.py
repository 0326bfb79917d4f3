"""Training from files into folders, resumable; several trainings from one YAML file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from adaptdel.data import Examples, read_examples
from adaptdel.files import read_bytes, read_json, write_json, write_text
from adaptdel.model_files import CONFIG, TRAINING, save_model
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.training.settings import Settings, check_names
from adaptdel.training.training import history_csv, plot_history, train


@dataclass(frozen=True)
class TrainingJob:
    """A training from a file into a folder."""

    data: str
    out: str
    settings: Settings
    text: str = "text"
    label: str = "label"
    encoding: str = "utf-8"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingJob:
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
class FinishedTraining:
    """A finished training: the model, notes on the data, and whether it had been finished before."""

    model: SmoothedClassifier
    notes: list[str]
    before: bool = False


def train_job(
    job: TrainingJob,
    *,
    overwrite: bool = False,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> FinishedTraining:
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
        return FinishedTraining(SmoothedClassifier.load(out), examples.notes, before=True)
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
    return FinishedTraining(model, examples.notes)


def _read(job: TrainingJob, path: str) -> Examples:
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


LONGEST = 2**18  # characters of a file: thousands of runs
MOST_NODES = 20_000  # values with aliases filled in: a few lines can stand for billions


def read_jobs(path: str | Path) -> list[TrainingJob]:
    """The jobs of a file: one mapping of fields, or ``defaults`` and a list of ``runs``.

    Paths in the file are relative to the folder that the command is run in.
    """
    try:
        found = _plain_yaml(read_bytes(Path(path)).decode("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be YAML in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise ValueError(f"{path}{where}: not YAML: {' '.join(str(reason).split()):.200}") from None
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{path}: must hold fields such as 'data: train.csv', or a list of runs")
    if "runs" not in found and "defaults" not in found:
        return [_job(found, f"{path}")]
    check_names_in(found, ["defaults", "runs"], str(path))
    defaults, runs = found.get("defaults") or {}, found.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, Mapping) for run in runs):
        raise ValueError(f"{path}: runs must be a list with the fields of each run")
    if not isinstance(defaults, Mapping):
        raise ValueError(f"{path}: defaults must be fields, got {defaults!r:.60}")
    jobs = [_job({**defaults, **run}, f"{path}, run {number}") for number, run in enumerate(runs, start=1)]
    outs = [job.out for job in jobs]
    for number, out in enumerate(outs):
        if out in outs[:number]:
            raise ValueError(f"{path}: run {outs.index(out) + 1} and run {number + 1} have the same out, {out}")
    return jobs


def check_names_in(values: Mapping[str, Any], known: list[str], where: str) -> None:
    """`check_names` with the place in the message."""
    try:
        check_names(values, known)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _job(values: Mapping[str, Any], where: str) -> TrainingJob:
    given = dict(values)
    for name in ("rates", "kept"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    try:
        return TrainingJob.from_dict(given)
    except ValueError as error:
        raise ValueError(f"{where}: {error!s:.300}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which refuses a name that stands twice in a mapping."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping whose names differ; those that a merge ("<<") brings are not counted."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value!r:.60} stands there twice", key.start_mark)
            seen.add(name)
        return node


def _plain_yaml(text: str) -> Any:
    """What a YAML text holds; YAMLError for anything that cannot be read, or is far larger with aliases filled in."""
    if len(text) > LONGEST:
        raise yaml.composer.ComposerError(None, None, f"longer than {LONGEST} characters")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST_NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_NODES} values with aliases filled in")
        return loader.construct_document(node)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.composer.ComposerError(None, None, "nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:  # of a tag such as !!int
        raise yaml.composer.ComposerError(None, None, f"a value does not fit its tag: {error}") from None
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int]) -> int:
    """How many values a node holds if every alias is filled in."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.composer.ComposerError(None, None, "an alias stands inside what it names", node.start_mark)
        return known[id(node)]
    known[id(node)] = 0
    inner = [] if isinstance(node, yaml.ScalarNode) else node.value
    parts = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
    known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
