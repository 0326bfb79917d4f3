"""``adaptdel calibrate``: the rates of AdaptDel+, searched for on labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.calibration.calibration import BinResult
from adaptdel.calibration.folders import CHOICES, FinishedCalibration, calibrate_folder
from adaptdel.calibration.search import OBJECTIVES
from adaptdel.cli.certify import read_votes
from adaptdel.data import read_examples
from adaptdel.measures import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.settings import CALIBRATION, DATA
from adaptdel.tables import number, percent, text_table

_VOTES = f"{CALIBRATION.n_select},{CALIBRATION.n_estimate}"


@click.command("calibrate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="Labelled file (.jsonl, .csv, .parquet, also .gz) or data set.")
@click.option(
    "--threshold", default=CALIBRATION.threshold, show_default=True, type=float, help="Certified accuracy to reach."
)
@click.option("--objective", default=CALIBRATION.objective, show_default=True, type=click.Choice(OBJECTIVES))
@click.option(
    "--min-accuracy",
    default=CALIBRATION.min_accuracy,
    type=float,
    help="Clean accuracy to reach, for the objective mean.",
)
@click.option(
    "--bins", default=CALIBRATION.bins, show_default=True, help="auto, or where bins begin, such as 0,137,230,324."
)
@click.option(
    "--interpolate",
    is_flag=True,
    default=CALIBRATION.interpolate,
    help="Interpolate the kept length between the centres of bins.",
)
@click.option(
    "--monotone", is_flag=True, default=CALIBRATION.monotone, help="Fit kept lengths that do not fall with the length."
)
@click.option(
    "--per-bin",
    default=CALIBRATION.per_bin,
    show_default=True,
    type=int,
    help="The most examples of a bin that are used.",
)
@click.option(
    "--min-count",
    default=CALIBRATION.min_count,
    show_default=True,
    type=int,
    help="The fewest examples of an automatic bin.",
)
@click.option("--votes", default=_VOTES, show_default=True, metavar="SELECT,ESTIMATE", help="Votes an example.")
@click.option("--tol", default=CALIBRATION.tol, show_default=True, type=float, help="How closely to search, in tokens.")
@click.option("--on", default=CALIBRATION.on, show_default=True, type=click.Choice(CHOICES), help="The rows to use.")
@click.option(
    "--seed", default=CALIBRATION.seed, show_default=True, type=int, help="Of the noise and the choice of examples."
)
@click.option("--out", default=None, type=click.Path(path_type=Path), help="A calibrated copy.  [default: in place]")
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@click.option("--text-column", default=DATA.text, show_default=True)
@click.option("--label-column", default=DATA.label, show_default=True)
@click.option("--encoding", default=DATA.encoding, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def calibrate_command(
    model: Path,
    data: str,
    bins: str,
    votes: str,
    on: str,
    out: Path | None,
    overwrite: bool,
    text_column: str,
    label_column: str,
    encoding: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Find how much the saved model MODEL should keep of inputs of every length (AdaptDel+), and store it there.

    --on auto uses the rows that training held out, if there are enough for the bins, and otherwise all. Stopped
    half-way, it resumes with the same command. Finished, it shows the result.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    examples = read_examples(data, text=text_column, label=label_column, encoding=encoding)
    for sentence in examples.notes:
        note(f"{data}: {sentence}")
    settings |= {"bins": read_bins(bins), **read_votes(votes)}
    done = calibrate_folder(model, examples, settings, on=on, out=out, overwrite=overwrite, note=note)
    for sentence in done.calibration.warnings:
        click.echo(f"warning: {sentence}", err=True)
    if as_json:
        shared = {"out": str(done.folder), "finished_before": done.before, "notes": notes}
        click.echo(json.dumps(shared | done.calibration.to_dict(), indent=2))
    else:
        click.echo(describe(done))


def read_bins(text: str) -> str | list[float]:
    """Read "auto" or "0,137,230,324"."""
    if text.strip() == "auto":
        return "auto"
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"bins must be auto, or numbers such as 0,137,230,324, got {text!r}") from None


def describe(done: FinishedCalibration) -> str:
    """The calibrated bins as a table."""
    titles = ("tokens", "kept", "radius", "certified accuracy at this radius", CLEAN_ACCURACY, MEAN_RADIUS, "examples")
    table = text_table(titles, [_row(bin) for bin in done.calibration.bins])
    verb = "was calibrated before, nothing to do" if done.before else "calibrated"
    noise = f"noise: {done.calibration.noise!r}"
    return "\n".join([table.to_terminal(), "", f"{done.folder}: {verb}", noise])


def _row(bin: BinResult) -> list[str]:
    lengths = f"from {bin.lower:g}" if bin.upper is None else f"{bin.lower:g} to {bin.upper:g}"
    radius = str(bin.radius) if bin.radius >= 0 else "none"
    shares = [percent(bin.certified), percent(bin.clean), number(bin.mean_radius)]
    return [lengths, f"{bin.keep:.4g}", radius, *shares, f"{bin.count} of {bin.available}"]
