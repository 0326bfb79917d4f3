"""``adaptdel train``: from a labelled file to a smoothed model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.measures import CLEAN_ACCURACY
from adaptdel.tables import percent
from adaptdel.training.jobs import FinishedTraining, TrainingJob, read_jobs, train_job
from adaptdel.training.settings import DTYPES, METHODS, PRECISIONS
from adaptdel.training.training import history_text

_TRANSFORMERS = "Transformers: "


def _share_or_file(context: click.Context, option: click.Parameter, value: str | None) -> float | str | None:
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        return value


def _two(context: click.Context, option: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        example = "rates such as 0.7,0.99" if option.name == "rates" else "numbers of tokens such as 4,12"
        raise ValueError(f"{option.name} must be two {example}, got {value!r}") from None


@click.command("train", epilog="Several trainings at once: --config FILE.yaml, with these names as fields.")
@click.option("--data", help="Labelled file (.jsonl, .csv, .parquet, also .gz) or data set of Hugging Face.")
@click.option("--method", type=click.Choice(METHODS), default=None, help="How to train.  [default: adaptdel]")
@click.option("--rate", type=float, default=None, help="Share that is deleted or masked.  [default: 0.9]")
@click.option("--rates", callback=_two, default=None, help="Rates that adaptdel+ trains under.  [default: 0.7,0.99]")
@click.option("--kept", callback=_two, default=None, help="Kept tokens that it trains under instead, such as 4,12.")
@click.option("--model", default=None, help="linear, or folder or hub name of a transformer.  [default: linear]")
@click.option("--out", default=None, help="Folder of the model.")
@click.option("--validation", callback=_share_or_file, default=None, help="Share held out, or a file.  [default: 0.1]")
@click.option("--unit", default=None, help="word, char, byte or chunk:SIZE.  [default: word]")
@click.option("--seed", type=int, default=None, help="Of everything random.  [default: 0]")
@click.option("--text-column", "text", default=None, help="Column of the text.  [default: text]")
@click.option("--label-column", "label", default=None, help="Column of the label.  [default: label]")
@click.option("--encoding", default=None, help="Of the file.  [default: utf-8]")
@click.option("--copies", type=int, default=None, help="Linear: noisy copies of an example.  [default: 8]")
@click.option("--l2", type=float, default=None, help="Linear: penalty on weights.  [default: 2e-6]")
@click.option("--iterations", type=int, default=None, help="Linear: steps of the optimiser.  [default: 60]")
@click.option("--features", type=click.Choice(["hash", "vocabulary"]), default=None, help="Linear.  [default: hash]")
@click.option("--bits", type=int, default=None, help="Linear: 2**bits hashed columns.  [default: 18]")
@click.option("--epochs", type=int, default=None, help=_TRANSFORMERS + "the most epochs.  [default: 200]")
@click.option("--learning-rate", type=float, default=None, help=_TRANSFORMERS + "of AdamW.  [default: 2e-5]")
@click.option("--weight-decay", type=float, default=None, help=_TRANSFORMERS + "of AdamW.  [default: 1e-6]")
@click.option("--clip", type=float, default=None, help=_TRANSFORMERS + "largest norm of a gradient.  [default: 1]")
@click.option("--batch-size", type=int, default=None, help=_TRANSFORMERS + "examples a step.  [default: 32]")
@click.option("--warmup", type=float, default=None, help=_TRANSFORMERS + "epochs of warm-up.  [default: epochs / 20]")
@click.option("--patience", type=int, default=None, help=_TRANSFORMERS + "epochs without gain.  [default: 25]")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default=None,
    help=_TRANSFORMERS + "of products in training.  [default: float32]",
)
@click.option("--dtype", type=click.Choice(DTYPES), default=None, help=_TRANSFORMERS + "in use.  [default: float32]")
@click.option("--adv-steps", type=int, default=None, help="FreeLB: ascent steps.  [default: 3]")
@click.option("--adv-lr", type=float, default=None, help="FreeLB: size of a step.  [default: 0.1]")
@click.option("--adv-init", type=float, default=None, help="FreeLB: size of the start.  [default: 0.2]")
@click.option("--adv-norm", type=float, default=None, help="FreeLB: largest norm, 0 for any.  [default: 0]")
@click.option("--config", type=click.Path(dir_okay=False), default=None, help="YAML file with the fields of runs.")
@click.option("--overwrite", is_flag=True, help="Replace a model of another training in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def train_command(config: str | None, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Train a smoothed model by any method of the paper.

    Resumable: run the same command again. Finished, it does nothing.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    if config is not None and fields:
        raise ValueError(
            f"--config and --{next(iter(fields)).replace('_', '-')} cannot be given together: use the file"
        )
    jobs = [TrainingJob.from_dict(fields)] if config is None else read_jobs(config)
    results = []
    for number, job in enumerate(jobs, start=1):
        if len(jobs) > 1:
            click.echo(f"run {number} of {len(jobs)}: {job.out}", err=True)
        done = train_job(job, overwrite=overwrite, note=lambda text: click.echo(f"note: {text}", err=True))
        results.append(_summary(job, done))
        if not as_json:
            click.echo(_described(job, done))
    if as_json:
        click.echo(json.dumps(results[0] if config is None else results, indent=2))


def _summary(job: TrainingJob, done: FinishedTraining) -> dict[str, Any]:
    record = done.model.training_
    kept = ("method", "rate", "settings", "data", "history", "seconds", "versions")
    return {
        "out": job.out,
        "finished_before": done.before,
        "noise": done.model.noise_.to_dict(),
        "notes": done.notes,
        **{name: record[name] for name in kept},
    }


def _described(job: TrainingJob, done: FinishedTraining) -> str:
    record = done.model.training_
    if done.before:
        return f"{job.out}: trained already, nothing to do"
    data, last = record["data"], record["history"][-1]
    lines = [history_text(record["history"]), ""]
    lines.append(
        f"{job.out}: {record['method']}, {len(data['classes'])} classes, {data['rows']} examples of "
        f"{data['mean_length']:.4g} tokens, {data['held_out']} held out, {record['seconds']:.3g} s"
    )
    lines.append(f"noise: {done.model.noise_!r}")
    if last.get("valid_accuracy") is not None:
        measured = "accuracy on noisy copies of" if "epoch" in last else f"{CLEAN_ACCURACY} on"
        lines.append(f"{measured} held-out examples: {percent(last['valid_accuracy'], 2)}")
    next_step = "calibrate" if record.get("calibrated") is False else "certify"
    rest = "--data FILE" if next_step == "calibrate" else "--data FILE --out RUN"
    lines.append(f"next: adaptdel {next_step} {Path(job.out)} {rest}")
    return "\n".join(lines)
