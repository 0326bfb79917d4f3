"""``adaptdel train``: from a labelled file to a model."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.certify import next_certify
from adaptdel.cli.options import described, list_settings_option, read_settings, set_option
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.card import FRONT_TEXT, front_table, held_out_text
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.paper import PAPER_RATES, PAPER_TRAINING, RELEASED_TRAINING, paper_training
from adaptdel.settings import (
    ADDITIVE,
    EXACT,
    METHODS,
    NOT_SET,
    OWN,
    TRAINING,
    AdditiveTrainingSettings,
    LinearTrainingSettings,
    TrainingSettings,
    TransformerTrainingSettings,
)
from adaptdel.tables import text_table
from adaptdel.text.data import DATA
from adaptdel.training.jobs import FinishedTraining, TrainingJob, read_config, train_job


def _all_settings() -> str:
    """What ``--set`` and ``--config`` take."""
    return (
        f"Of every training:\n{described(TrainingSettings)}\n\n"
        f"Of the linear model:\n{described(LinearTrainingSettings)}\n\n"
        f"Of the additive model (--method exact):\n{described(AdditiveTrainingSettings, NOT_SET)}\n\n"
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
@click.option("--data", help="Labelled file (JSON, CSV, Parquet; also gzipped), or data set.")
@click.option("--out", help="Folder of the model.")
@click.option(
    "--method", type=click.Choice((*METHODS, OWN, EXACT)), help=f"Training method.  [default: {TRAINING.method}]"
)
@click.option("--model", help=f"linear, or folder or hub name of a transformer.  [default: {TRAINING.model}]")
@click.option("--rate", type=float, help="Fraction of tokens that is removed.  [default: by the lengths, at most 0.9]")
@click.option("--sample", type=int, help="Train on this number of rows, drawn at random with the seed.")
@click.option(
    "--max-accuracy-loss",
    type=float,
    help=f"exact: percentage points to give up for a larger radius.  [default: {ADDITIVE.max_accuracy_loss:g}]",
)
@click.option("--vectors", help="exact: safetensors file of word vectors, as features of words.")
@click.option("--protect", help="Of two classes, the one that nobody may be able to evade, such as spam.")
@click.option("--max-false-positives", type=float, help="Rate of other texts that may get the protected answer.")
@click.option("--unit", help=f"word, char, byte or chunk:SIZE.  [default: {TRAINING.unit}]")
@click.option("--seed", type=int, help=f"Seed of all random numbers.  [default: {TRAINING.seed}]")
@set_option
@list_settings_option(_all_settings)
@click.option("--config", type=click.Path(dir_okay=False), help="YAML file with settings; options replace them.")
@click.option("--text-column", "text", help=f"Column of the texts.  [default: {DATA.text}]")
@click.option("--label-column", "label", help=f"Column of the labels.  [default: {DATA.label}]")
@click.option("--encoding", help=f"Encoding of the file.  [default: {DATA.encoding}]")
@click.option("--overwrite", is_flag=True, help="Replace a model of another training in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def train_command(
    config: str | None, preset: str | None, overwrite: bool, as_json: bool, settings: tuple[str, ...], **options: Any
) -> None:
    """Train a classifier: smoothed, or exact.

    The smoothed methods are those of the paper; exact is an additive classifier.

    own trains under a registered noise: --set 'noise={"kind": "my_noise"}'. exact needs no noise: its certificates are
    computed, not sampled. --protect holds out a fifth of the rows or more, and chooses the decision threshold on them
    with a proved rate of false positives, as `adaptdel protect` does.

    Resumable: run the same command again. A finished training is not repeated.
    """
    fields = {} if config is None else read_config(config)
    fields |= {name: value for name, value in options.items() if value is not None} | read_settings(settings)
    if preset is not None:
        method = fields.get("method", TRAINING.method)
        if method not in METHODS or fields.get("model") == TRAINING.model:
            raise ValueError(
                f"--settings paper trains a transformer, by {', '.join(METHODS[:-1])} or {METHODS[-1]}: leave it out "
                f"for --model {TRAINING.model} and other methods"
            )
        fields = paper_training(method) | fields
    job = TrainingJob.from_dict(fields)
    finished = train_job(
        job, overwrite=overwrite, progress="log", note=lambda text: click.echo(f"note: {text}", err=True)
    )
    for sentence in finished.model.training_.get("warnings", []):
        click.echo(f"warning: {sentence}", err=True)
    click.echo(json.dumps(_summary(job, finished), indent=2) if as_json else _described(job, finished))


def _summary(job: TrainingJob, finished: FinishedTraining) -> dict[str, Any]:
    record = finished.model.training_
    names = ("method", "rate", "settings", "data", "history", "seconds", "versions")
    model = finished.model
    return {
        "out": job.out,
        "finished_before": finished.already_done,
        **({"front": model.front_} if isinstance(model, AdditiveClassifier) else {"noise": model.noise_.to_dict()}),
        "protection": getattr(model, "protection_", None),
        "notes": finished.notes,
        "warnings": record.get("warnings", []),
        **{name: record[name] for name in names},
    }


def _described(job: TrainingJob, finished: FinishedTraining) -> str:
    record = finished.model.training_
    if finished.already_done:
        return f"{job.out}: trained already, nothing to do"
    data = record["data"]
    if isinstance(finished.model, AdditiveClassifier):
        lines = [_front(finished.model)]
    else:
        lines = [_history(record["history"])]
    held_out = f", {data['held_out']} held out" if record["history"] else ""
    lines.append(
        f"{job.out}: {record['method']}, {len(data['classes'])} classes, {data['rows']} examples of "
        f"{data['mean_length']:.4g} tokens on average{held_out}, {record['seconds']:.3g} s"
    )
    if isinstance(finished.model, SmoothedClassifier):
        lines.append(f"noise: {finished.model.noise_!r}")
    lines += [text for text in [held_out_text(record)] if text]
    if (known := getattr(finished.model, "protection_", None)) is not None:
        lines.append(known["sentence"])
    return "\n".join([*lines, _next(job, finished)])


def _front(model: AdditiveClassifier) -> str:
    """The bounds of an additive classifier as a table, and how to take another one."""
    table = front_table(model.front_, model.base_classifier().options()["point"])
    return f"{table.to_terminal()}\n\n{FRONT_TEXT}\n"


def _history(history: list[dict[str, Any]]) -> str:
    """The history in a line: the epochs of a transformer were shown as they came."""
    first, last = (f"{row['train_loss']:.4g}" for row in (history[0], history[-1]))
    noun = "epoch" if "epoch" in history[0] else "step"
    return f"{len(history)} {noun if len(history) == 1 else f'{noun}s'}: train loss {first} to {last}"


def _next(job: TrainingJob, finished: FinishedTraining) -> str:
    """The command to run next: of AdaptDel+ the calibration, on the file of the training."""
    if finished.model.training_.get("calibrated") is not False:
        return next_certify(Path(job.out))
    encoding = [] if job.encoding == DATA.encoding else ["--encoding", job.encoding]
    return "next: " + shlex.join(["adaptdel", "calibrate", str(Path(job.out)), "--data", job.data, *encoding])
