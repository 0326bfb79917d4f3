"""``adaptdel train``: from a labelled file to a model."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.options import described, list_settings_option, next_certify, read_settings, set_option
from adaptdel.models.additive import TRADE_OFF_TEXT
from adaptdel.models.model_files import held_out_text
from adaptdel.paper import PAPER_RATES, PAPER_TRAINING, RELEASED_TRAINING, paper_training
from adaptdel.settings import (
    ADDITIVE,
    EXACT,
    FILTER,
    GOALS,
    METHODS,
    NOT_SET,
    OWN,
    TRAINING,
    AdditiveTrainingSettings,
    FilterSettings,
    LinearTrainingSettings,
    TrainingSettings,
    TransformerTrainingSettings,
)
from adaptdel.tables import plural, text_table
from adaptdel.text.data import DATA
from adaptdel.training.jobs import FALSE_POSITIVES, FinishedTraining, TrainingJob, read_config, train_job


def _all_settings() -> str:
    """What ``--set`` and ``--config`` take."""
    return (
        f"Of every training:\n{described(TrainingSettings)}\n\n"
        f"Of the linear model:\n{described(LinearTrainingSettings)}\n\n"
        f"Of the additive model (--method exact):\n{described(AdditiveTrainingSettings, NOT_SET)}\n\n"
        f"Of a filter (--method exact --protect):\n{described(FilterSettings)}\n\n"
        f"Of transformers:\n{described(TransformerTrainingSettings, NOT_SET)}\n\n"
        f"The paper beside the defaults (--settings paper takes the paper's):\n{_beside_the_paper()}"
    )


def _beside_the_paper() -> str:
    """The settings in which the paper, the authors' released code and the defaults may differ, as a table."""
    default = TrainingSettings(model="roberta-base")
    usual = {**asdict(TRAINING), **asdict(default.transformer), "model": TRAINING.model}
    chosen = {"rate": "by length", "rates": "around rate"}
    shown = {**usual, **chosen, "epochs": "by size", "patience": "epochs / 8", "warmup": "epochs / 20"}
    rows = [
        [name, str(value), str(RELEASED_TRAINING.get(name, value)), str(shown[name])]
        for name, value in {**PAPER_TRAINING, "rates": PAPER_RATES}.items()
    ]
    return text_table(["setting", "paper", "released code", "default"], rows).to_terminal()


@click.command("train", epilog="All settings: --list-settings.")
@click.option("--settings", "preset", type=click.Choice(["paper"]), help="Start from the paper's settings.")
@click.option("--data", help="Labelled file (JSON, CSV or Parquet, also gzipped) or data set.")
@click.option("--out", help="Folder of the model.")
@click.option(
    "--method", type=click.Choice((*METHODS, OWN, EXACT)), help=f"Training method.  [default: {TRAINING.method}]"
)
@click.option("--model", help=f"linear, or the folder or hub name of a transformer.  [default: {TRAINING.model}]")
@click.option("--rate", type=float, help="Fraction of tokens to delete.  [default: by the lengths, at most 0.9]")
@click.option("--sample", type=int, help="Train on this many rows, drawn at random with the seed.")
@click.option(
    "--max-accuracy-loss",
    type=float,
    help=f"exact: points of balanced accuracy to give up for radius.  [default: {ADDITIVE.max_accuracy_loss:g}]",
)
@click.option("--vectors", help="exact: safetensors file of word vectors to use as features.")
@click.option("--protect", help="The class that attackers try to evade, such as spam.")
@click.option(
    "--max-false-positives",
    type=float,
    help=f"Largest fraction of other texts to flag.  [default: {FALSE_POSITIVES:g}]",
)
@click.option(
    "--for",
    "goal",
    type=click.Choice(GOALS),
    help=f"exact: what to choose the filter of --protect for.  [default: {FILTER.goal}]",
)
@click.option(
    "--max-detection-loss",
    type=float,
    help=f"exact: percentage points of detection to give up for that.  [default: {FILTER.max_detection_loss:g}]",
)
@click.option("--unit", help=f"word, char, byte or chunk:SIZE.  [default: {TRAINING.unit}]")
@click.option("--seed", type=int, help=f"Seed of all random numbers.  [default: {TRAINING.seed}]")
@set_option
@list_settings_option(_all_settings)
@click.option("--config", type=click.Path(dir_okay=False), help="YAML file with settings; options override them.")
@click.option("--text-column", "text", help=f"Column of the texts.  [default: {DATA.text}]")
@click.option("--label-column", "label", help=f"Column of the labels.  [default: {DATA.label}]")
@click.option("--encoding", help=f"Encoding of the file.  [default: {DATA.encoding}]")
@click.option("--overwrite", is_flag=True, help="Replace a model of another training in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def train_command(
    config: str | None, preset: str | None, overwrite: bool, as_json: bool, settings: tuple[str, ...], **options: Any
) -> None:
    """Train a smoothed or an exact classifier.

    The smoothed methods are those of the paper; exact is an additive classifier.

    The method own trains with a registered noise: --set 'noise={"kind": "my_noise"}'. The method exact needs no noise:
    its certificates are computed, not sampled. --protect holds out at least a fifth of the rows and chooses the
    decision threshold on them with a proved false-positive rate, as `adaptdel protect` does. With exact, a text is
    flagged by all of its words or by a segment of them, which no added text can outvote: --set parts=sum turns
    segments off.

    Resumable: run the same command again. A finished training is not repeated.
    """
    fields = {} if config is None else read_config(config)
    fields |= {name: value for name, value in options.items() if value is not None} | read_settings(settings)
    if preset is not None:
        method = fields.get("method", TRAINING.method)
        if method not in METHODS or fields.get("model") == TRAINING.model:
            raise ValueError(
                f"--settings paper trains a transformer, with {', '.join(METHODS[:-1])} or {METHODS[-1]}: leave it out "
                f"for --model {TRAINING.model} and other methods"
            )
        fields = paper_training(method) | fields
    job = TrainingJob.from_dict(fields)
    finished = train_job(
        job, overwrite=overwrite, progress="log", note=lambda text: click.echo(f"note: {text}", err=True)
    )
    for sentence in finished.model.records.training["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    click.echo(json.dumps(_summary(job, finished), indent=2) if as_json else _described(job, finished))


def _summary(job: TrainingJob, finished: FinishedTraining) -> dict[str, Any]:
    model, record = finished.model, finished.model.records.training
    names = ("method", "rate", "settings", "data", "history", "seconds", "versions", "warnings")
    return {
        "out": job.out,
        "finished_before": finished.already_done,
        "plan": model.plan.to_dict(),
        **model.parameters(),
        "protection": model.records.protection,
        "notes": [*finished.notes, *finished.remarks],
        "deciding_rows": [row for row, _ in finished.deciding],
        **{name: record[name] for name in names},
    }


def _of_clips(model: Any, finished: FinishedTraining) -> list[str]:
    """What was measured of the clips of an additive classifier, or of a filter."""
    choice = finished.choice
    if choice is None:
        return [model.trade_off_table().to_terminal(), "", TRADE_OFF_TEXT]
    proof = model.records.protection
    lines = [choice.to_terminal(), ""]
    rows = [f"  row {row}: {words}" for row, words in finished.deciding]
    others = f"{plural(proof['negatives'], 'row')} of the other class"
    lines += [
        f"{others} proved the rate, all others trained the model. These set the threshold (are they labelled right?):",
        *rows,
    ]
    return [*lines, *finished.remarks]


def _described(job: TrainingJob, finished: FinishedTraining) -> str:
    model, record = finished.model, finished.model.records.training
    if finished.already_done:
        return f"{job.out}: trained already, nothing to do"
    data, history = record["data"], record["history"]
    held_out = f", {data['held_out']} held out" if history else ""
    lines = [
        f"{job.out}: {record['method']}, {len(data['classes'])} classes, {data['rows']} examples of "
        f"{data['mean_length']:.4g} tokens on average{held_out}, {record['seconds']:.3g} s"
    ]
    if history:  # in a line: the epochs of a transformer were shown as they came
        first, last = (f"{row['train_loss']:.4g}" for row in (history[0], history[-1]))
        steps = plural(len(history), "epoch" if "epoch" in history[0] else "step")
        lines = [f"{steps}: train loss {first} to {last}", *lines, f"noise: {model.noise_!r}"]
    else:
        lines = [*_of_clips(model, finished), "", *lines]
    lines += [text for text in [held_out_text(record)] if text]
    if (known := model.records.protection) is not None:
        lines.append(known["sentence"])
    if record.get("calibrated") is not False:
        return "\n".join([*lines, next_certify(Path(job.out))])
    # AdaptDel+ is calibrated next, on the file of the training.
    encoding = [] if job.encoding == DATA.encoding else ["--encoding", job.encoding]
    command = ["adaptdel", "calibrate", str(Path(job.out)), "--data", job.data, *encoding]
    return "\n".join([*lines, f"next: {shlex.join(command)}"])
