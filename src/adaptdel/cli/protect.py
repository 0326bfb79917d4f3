"""``adaptdel protect``: the decision threshold of one class, with a proved rate of false positives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from adaptdel.cli.certify import next_certify
from adaptdel.cli.options import DATA_HELP, column_options, data_path
from adaptdel.models.model_files import check_free, data_columns, load_model, update_copy
from adaptdel.text.data import read_examples
from adaptdel.training.protection import DETECTION, plot_detection, protect, seen_texts


@click.command("protect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--class", "label", required=True, help="Of two classes, the one that nobody may be able to evade.")
@click.option("--max-false-positives", required=True, type=float, help="Rate of other texts that may get its answer.")
@click.option("--data", required=True, multiple=True, help=DATA_HELP)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of a protected copy.  [default: change MODEL]")
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@column_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def protect_command(
    model: Path,
    label: str,
    max_false_positives: float,
    data: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    overwrite: bool,
    **options: Any,
) -> None:
    """Choose a threshold with a proved rate of false positives.

    The threshold of the saved model MODEL for the answer --class, such as spam, is the lowest at which, with 95%
    confidence, at most --max-false-positives of other texts get this answer. That is proved on texts that the model
    has not seen: 299 of the other class for a rate of 0.01, better 1,000. Rows of --data that trained or calibrated
    the model are left out. The rate holds for the model as it is saved; calibrate it first, and give certify the
    same votes.
    """
    if out is not None:
        check_free(out, overwrite=overwrite)
    loaded = load_model(model)
    columns = data_columns(model, options["text_column"], options["label_column"])
    examples = read_examples(data_path(data), **columns, encoding=options["encoding"])
    seen = seen_texts(loaded, examples.texts)
    notes = list(examples.notes)
    if seen.any():
        first = examples.rows[int(np.argmax(seen))]
        notes.append(
            f"{seen.sum()} of {len(seen)} rows trained or calibrated the model, the first is row {first}: left out"
        )
    for sentence in notes:
        click.echo(f"note: {', '.join(data)}: {sentence}", err=True)
    if seen.all():
        raise ValueError(f"{', '.join(data)}: holds only rows that trained or calibrated the model: give others")
    examples = examples.take(np.flatnonzero(~seen).tolist())
    loaded.progress = "log"
    chosen = protect(loaded, examples.texts, examples.labels, label=label, max_false_positives=max_false_positives)
    update_copy(loaded, model, out, lambda folder: plot_detection(chosen.to_dict(), folder / DETECTION))
    target = out or model
    if as_json:
        click.echo(json.dumps({"out": str(target), "notes": notes, **chosen.to_dict()}, indent=2))
        return
    click.echo(f"{target}: {chosen.sentence()}")
    click.echo(next_certify(target))
