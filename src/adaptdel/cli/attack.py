"""``adaptdel attack``: a data file attacked into a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.options import (
    DATA_HELP,
    RAY,
    chosen_settings,
    column_options,
    described,
    engine_options,
    list_settings_option,
    set_option,
    threat_option,
)
from adaptdel.paper import PAPER_ATTACK
from adaptdel.runs.engine import ENGINE, EngineSettings
from adaptdel.settings import ATTACK

NAMED = ("inputs", "budget", "seed")


@click.command("attack")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--settings",
    "preset",
    type=click.Choice(["paper"]),
    help="Start from the paper's protocol for one of its five recipes.",
)
@click.option("--data", required=True, multiple=True, help=DATA_HELP)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the run.")
@click.option(
    "--recipe",
    default="adaptive",
    show_default=True,
    help="adaptive; padding (text of other classes before and after); or a TextAttack recipe (extra attack): clare, "
    "bae-i, bae-r, bert-attack, deepwordbug, textfooler.",
)
@click.option("--inputs", type=int, help=f"Number of inputs to draw at random.  [default: {ATTACK.inputs}]")
@click.option("--budget", type=int, help="Largest number of edits of the adaptive attack.  [default: the length]")
@threat_option("the model's")
@click.option(
    "--vocabulary",
    metavar="FILE",
    help="Labelled texts whose words the attack knows, such as the training data.  [default: --data]",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    metavar="NAME=PATH",
    help="A part of a TextAttack recipe: masked_lm, sentence_encoder, word_vectors, tagger, nltk_data.",
)
@engine_options
@click.option("--seed", type=int, help=f"Seed of the sample and of all noise.  [default: {ATTACK.seed}]")
@column_options
@set_option
@list_settings_option(lambda: f"{described(ATTACK, NAMED)}\n{described(ENGINE, ('engine', 'workers'))}")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def attack_command(
    model: Path, data: tuple[str, ...], out: Path, preset: str | None, recipe: str, as_json: bool, **options: Any
) -> None:
    """Attack a model on the inputs of a data file.

    The run in the folder OUT holds every attacked text, its true edit distance, whether fresh votes confirm that the
    smoothed answer changed, and the certified radius. An interrupted run is resumed by the same command. adaptdel
    report compares runs.
    """
    from adaptdel.attacks.attack_run import AttackJob, attack_data
    from adaptdel.attacks.outcomes import attack_table, curve_table, gap_table
    from adaptdel.attacks.textattack import PAPER_RECIPES
    from adaptdel.models.model_files import data_columns
    from adaptdel.runs.inputs import Source

    if preset is not None and recipe not in PAPER_RECIPES:
        raise ValueError(f"--settings paper needs --recipe with one of {', '.join(PAPER_RECIPES)}, got {recipe!r}")
    start = {} if preset is None else PAPER_ATTACK
    named = {name: options[name] for name in NAMED if options[name] is not None}
    limits, ray = chosen_settings(options["settings"], vars(ATTACK), RAY)
    columns = data_columns(model, options["text_column"], options["label_column"])
    source = Source(data, **columns, encoding=options["encoding"])
    words = options["vocabulary"]
    job = AttackJob(
        model,
        source,
        out,
        recipe,
        replace(ATTACK, **{**start, **named, **limits}),
        ops=options["ops"],
        vocabulary=None if words is None else replace(source, path=(words,)),
        parts=dict(map(_part, options["parts"])),
        engine=EngineSettings(options["engine"], options["workers"], **ray),
    )
    run = attack_data(job, note=lambda text: click.echo(text, err=True), progress="log")
    row = {"model": str(model), "recipe": recipe, **run.measures}
    if as_json:
        values = {"run": str(out), **row, "curve": run.curve}
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    for table in (attack_table([row]), curve_table(run.curve), gap_table([row])):
        click.echo(table.to_terminal() + "\n")
    click.echo(f"run: {out}")


def _part(pair: str) -> tuple[str, str]:
    name, _, value = pair.partition("=")
    if not value:
        raise ValueError(f"--part must be NAME=PATH such as masked_lm=FOLDER, got {pair!r}")
    return name, value
