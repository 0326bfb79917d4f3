"""``adaptdel train``: from a labelled file to a smoothed classifier."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.certify import next_certify
from adaptdel.hyperparameters import BACKEND_CHOICES, CLASS_WEIGHTS, DTYPES, LINEAR_LOSSES, ON_UNKNOWN, PRECISIONS
from adaptdel.models.card import held_out_text
from adaptdel.settings import METHODS, default_of, embedding_default_of
from adaptdel.text.data import DATA
from adaptdel.training.jobs import FinishedTraining, TrainingJob, read_jobs, train_job
from adaptdel.training.protection import Protection
from adaptdel.training.training import history_text


def _fraction_or_file(context: click.Context, option: click.Parameter, value: str | None) -> float | str | None:
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        return value


def _range(context: click.Context, option: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        example = "rates such as 0.7,0.99" if option.name == "rates" else "numbers of tokens such as 4,12"
        raise ValueError(f"{option.name} must be two {example}, got {value!r}") from None


def _named_values(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
    """NAME=VALUE pairs as a dictionary; values are JSON."""
    chosen: dict[str, Any] = {}
    for pair in values or ():
        name, separator, value = pair.partition("=")
        try:
            chosen[name] = json.loads(value)
        except json.JSONDecodeError:
            separator = ""
        if not separator:
            raise ValueError(
                f"{option.name} must be NAME=VALUE such as dropout=0.1 or hidden=[128,128], got {pair!r:.60}"
            )
    return chosen or None


def setting(name: str, text: str, **attributes: Any) -> Callable[[Any], Any]:
    """An option for a field of the training settings; the help shows its default, which applies if it is left out."""
    default, other = default_of(name), embedding_default_of(name)
    shown = _shown(default) + ("" if other is None else f"; embedding: {_shown(other)}")
    note = f"  [default: {shown}]" if default is not None else ""
    return click.option(f"--{name.replace('_', '-')}", default=None, help=text + note, **attributes)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command("train", epilog="Several trainings: --config FILE.yaml with the fields of each run.")
@click.option(
    "--data", help="Labelled file (JSON, CSV or Parquet, also gzipped), - for standard input, or Hugging Face data set."
)
@setting("method", "Training method.", type=click.Choice(METHODS))
@setting("rate", "Fraction of tokens that is deleted or masked; less by default for short texts.", type=float)
@setting("rates", "Range of deletion rates that adaptdel+ trains under.", callback=_range)
@setting("kept", "Range of numbers of kept tokens instead of --rates, such as 4,12.", callback=_range)
@setting("model", "linear, embedding, or folder or hub name of a transformer.")
@click.option("--out", default=None, help="Folder of the model.")
@setting("validation", "Fraction to hold out, or a labelled file.", callback=_fraction_or_file)
@setting("unit", "word, char, byte or chunk:SIZE.")
@setting("seed", "Seed of all random numbers.", type=int)
@setting("class_weight", "balanced: every class has the same weight.", type=click.Choice(CLASS_WEIGHTS))
@setting("max_minutes", "Stop after this time, and keep the best model so far.", type=float)
@setting("protect", "Of two classes, the one whose answers are protected from being turned.")
@setting("max_false_positives", "With --protect: rate of other texts that may get its answer.", type=float)
@click.option("--text-column", "text", default=None, help=f"Column of the texts.  [default: {DATA.text}]")
@click.option("--label-column", "label", default=None, help=f"Column of the labels.  [default: {DATA.label}]")
@click.option("--encoding", default=None, help=f"Encoding of the file.  [default: {DATA.encoding}]")
@setting(
    "loss",
    "Linear: of the vote on a text, or of single copies; auto: by the number of classes.",
    type=click.Choice(LINEAR_LOSSES),
)
@setting("copies", "Linear: noisy copies per example; with --loss votes, random rates.", type=int)
@setting("l2", "Linear: penalty on squared weights.", type=float)
@setting("iterations", "Linear: largest number of optimiser steps.", type=int)
@setting("features", "Linear: kind of features.", type=click.Choice(["hash", "vocabulary"]))
@setting("bits", "Linear, embedding: 2**bits hashed columns or rows.", type=int)
@setting(
    "encoder", "Embedding: folder or hub name of a transformer that encodes words, or .safetensors file of vectors."
)
@setting("encoder_cache", "Embedding: folder that keeps the vectors of words for further trainings.")
@setting("on_unknown", "Embedding: new words by n-grams alone, or encoded too.", type=click.Choice(ON_UNKNOWN))
@setting("min_count", "Embedding: occurrences that give a word an embedding.", type=int)
@setting("networks", "Embedding: networks that vote together.", type=int)
@setting("steps", "Embedding: optimiser steps per network.", type=int)
@setting("network", "Embedding: NAME=VALUE of another setting; repeatable.", multiple=True, callback=_named_values)
@setting("epochs", "Transformers: largest number of epochs; fewer by default for many examples.", type=int)
@setting("learning_rate", "Transformers, embedding: learning rate of AdamW.", type=float)
@setting("weight_decay", "Transformers, embedding: weight decay of AdamW.", type=float)
@setting("clip", "Transformers: largest gradient norm.", type=float)
@setting("batch_size", "Transformers: examples per step; embedding: copies.", type=int)
@setting("warmup", "Transformers: epochs of warm-up.  [default: epochs / 20]", type=float)
@setting("patience", "Transformers: epochs without improvement until training stops; embedding: evaluations.", type=int)
@setting("precision", "Transformers: precision of products in training.", type=click.Choice(PRECISIONS))
@setting("dtype", "Transformers, embedding: precision of the trained model.", type=click.Choice(DTYPES))
@setting(
    "backend",
    "Transformers: what runs the trained model; auto: the fastest, and the default in int8.",
    type=click.Choice(BACKEND_CHOICES),
)
@setting("adv_steps", "FreeLB: ascent steps.", type=int)
@setting("adv_lr", "FreeLB: step size.", type=float)
@setting("adv_init", "FreeLB: size of the initial perturbation.", type=float)
@setting("adv_norm", "FreeLB: largest norm of a perturbation, 0 for no limit.", type=float)
@click.option("--config", type=click.Path(dir_okay=False), default=None, help="YAML file with the fields of runs.")
@click.option("--overwrite", is_flag=True, help="Replace a model of another training in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def train_command(config: str | None, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Train a smoothed classifier by any method of the paper.

    Resumable: run the same command again. A finished training is not repeated.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    if config is not None and fields:
        raise ValueError(
            f"--config and --{next(iter(fields)).replace('_', '-')} cannot be given together: use the file"
        )
    jobs = [TrainingJob.from_dict(fields)] if config is None else read_jobs(config)
    results = []
    for number, job in enumerate(jobs, start=1):
        if len(jobs) > 1:
            click.echo(f"run {number} of {len(jobs)}: {job.out}", err=True)
        finished = train_job(
            job, overwrite=overwrite, progress="log", note=lambda text: click.echo(f"note: {text}", err=True)
        )
        results.append(_summary(job, finished))
        if not as_json:
            click.echo(_described(job, finished))
        for sentence in _warnings(finished):
            click.echo(f"warning: {sentence}", err=True)
        if not as_json and not finished.already_done:
            click.echo(_next(job, finished))
    if as_json:
        click.echo(json.dumps(results[0] if config is None else results, indent=2))


def _summary(job: TrainingJob, finished: FinishedTraining) -> dict[str, Any]:
    record = finished.model.training_
    names = ("method", "rate", "settings", "data", "history", "seconds", "versions")
    return {
        "out": job.out,
        "finished_before": finished.already_done,
        "noise": finished.model.noise_.to_dict(),
        "notes": finished.notes,
        "warnings": _warnings(finished),
        "protection": getattr(finished.model, "protection_", None),
        **{name: record[name] for name in names},
    }


def _warnings(finished: FinishedTraining) -> list[str]:
    protection = getattr(finished.model, "protection_", None) or {}
    return [*finished.model.training_.get("warnings", []), *protection.get("warnings", [])]


def _described(job: TrainingJob, finished: FinishedTraining) -> str:
    record = finished.model.training_
    if finished.already_done:
        return f"{job.out}: trained already, nothing to do"
    data = record["data"]
    lines = [_history(record["history"], is_linear=record["settings"]["model"] == "linear")]
    lines.append(
        f"{job.out}: {record['method']}, {len(data['classes'])} classes, {data['rows']} examples of "
        f"{data['mean_length']:.4g} tokens on average, {data['held_out']} held out, {record['seconds']:.3g} s"
    )
    lines.append(f"noise: {finished.model.noise_!r}")
    lines += [text for text in [held_out_text(record)] if text]
    if hasattr(finished.model, "protection_"):
        lines.append(Protection.from_dict(finished.model.protection_).sentence())
    return "\n".join(lines)


def _history(history: list[dict[str, Any]], *, is_linear: bool) -> str:
    """The history as a table; a line for a linear model, whose steps say little one by one."""
    if not is_linear:
        return history_text(history) + "\n"
    first, last = (f"{row['train_loss']:.4g}" for row in (history[0], history[-1]))
    return f"{len(history)} {'step' if len(history) == 1 else 'steps'}: train loss {first} to {last}"


def _next(job: TrainingJob, finished: FinishedTraining) -> str:
    """The command to run next."""
    is_unfinished = finished.model.training_.get("calibrated") is False
    return _next_calibrate(job) if is_unfinished else next_certify(Path(job.out))


def _next_calibrate(job: TrainingJob) -> str:
    """The command that calibrates the model on the file of the training."""
    encoding = [] if job.encoding == DATA.encoding else ["--encoding", job.encoding]
    data = "FILE" if job.data == "-" else job.data
    return "next: " + shlex.join(["adaptdel", "calibrate", str(Path(job.out)), "--data", data, *encoding])
