"""``adaptdel protect``: the decision threshold of one class, with a proved false-positive rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from adaptdel.cli.options import DATA_HELP, column_options, data_path, next_certify
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import check_free, data_columns, load_model, update_copy
from adaptdel.text.data import Examples, read_examples
from adaptdel.training.protection import (
    DETECTION,
    holds_used_rows,
    plot_detection,
    proof_rows,
    protect,
    seen_texts,
)


@click.command("protect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--class", "label", required=True, help="The class that attackers try to evade, such as spam.")
@click.option("--max-false-positives", required=True, type=float, help="Largest fraction of other texts to flag.")
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
    """Choose a threshold with a proved false-positive rate.

    The threshold of the saved model MODEL for the answer --class, such as spam, is the lowest at which, with 95%
    confidence, at most --max-false-positives of other texts get this answer. That is proved on rows that neither
    trained nor calibrated the model: 299 of the other class for a rate of 0.01, better 1,000. Give a file of its own,
    or the file of `adaptdel train --protect`, whose rows for the proof are used. The rate holds for the model as it is
    saved; calibrate it first, and give certify the same votes.
    """
    if out is not None:
        check_free(out, overwrite=overwrite)
    loaded: TextEstimator = load_model(model)
    columns = data_columns(loaded, options["text_column"], options["label_column"])
    examples = read_examples(data_path(data), **columns, encoding=options["encoding"])
    examples, notes = _for_the_proof(loaded, examples, ", ".join(data))
    for sentence in notes:
        click.echo(f"note: {', '.join(data)}: {sentence}", err=True)
    loaded.progress = "log"
    goal: dict[str, Any] = {"label": label, "max_false_positives": max_false_positives}
    chosen = protect(loaded, examples.texts, examples.labels, **goal, held_out=True)
    update_copy(loaded, model, out, lambda folder: plot_detection(chosen.to_dict(), folder / DETECTION))
    target = out or model
    if as_json:
        click.echo(json.dumps({"out": str(target), "notes": notes, **chosen.to_dict()}, indent=2))
        return
    click.echo(f"{target}: {chosen.sentence()}")
    click.echo(next_certify(target))


def _for_the_proof(model: TextEstimator, examples: Examples, name: str) -> tuple[Examples, list[str]]:
    """The rows that prove the rate, with notes on them; ValueError for the rows that trained the model."""
    kept, seen = proof_rows(model, examples), seen_texts(model, examples.texts)
    if kept.any():
        note = f"proved on the {kept.sum()} rows that `adaptdel train --protect` held out"
        return examples.take(np.flatnonzero(kept).tolist()), [*examples.notes, note]
    if holds_used_rows(model, examples.texts):
        raise ValueError(f"{name}: holds the rows that trained or calibrated the model: give others")
    if not seen.any():
        return examples, examples.notes
    first = examples.rows[int(np.argmax(seen))]
    note = (
        f"{seen.sum()} of {len(seen)} rows have a text that trained or calibrated the model, the first is row {first}: "
        "they count, if these rows themselves did not"
    )
    return examples, [*examples.notes, note]
