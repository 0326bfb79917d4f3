"""``adaptdel calibrate``: choose the deletion rates of AdaptDel+ on labelled data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from adaptdel.calibration.calibration import BinResult
from adaptdel.calibration.folders import CHOICES, FinishedCalibration, calibrate_folder
from adaptdel.cli.certify import read_votes
from adaptdel.data import read_examples
from adaptdel.measures import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.settings import CALIBRATION, DATA, OBJECTIVES
from adaptdel.tables import number, percent, text_table

VOTES = f"{CALIBRATION.n_select},{CALIBRATION.n_estimate}"


Command = TypeVar("Command", bound=Callable[..., Any])


def _setting(name: str, text: str, **options: Any) -> Callable[[Command], Command]:
    """An option for a field of the settings, with its default."""
    default = getattr(CALIBRATION, name)
    if default is not None and "is_flag" not in options:
        options = {"type": type(default), "show_default": True, **options}
    return click.option(f"--{name.replace('_', '-')}", default=default, help=text, **options)


@click.command("calibrate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--data", required=True, help="Labelled file (.jsonl, .csv, .parquet, also .gz) or Hugging Face data set."
)
@_setting("threshold", "Certified accuracy to reach.")
@_setting("objective", "Maximise the radius at the threshold, or the mean radius.", type=click.Choice(OBJECTIVES))
@_setting("min_accuracy", "Clean accuracy to reach, for the objective mean.", type=float)
@_setting("bins", "auto, or the lengths at which bins start, such as 0,137,230,324.")
@_setting("interpolate", "Interpolate the kept length between the centres of bins.", is_flag=True)
@_setting("monotone", "Fit kept lengths that do not decrease with the length.", is_flag=True)
@_setting("per_bin", "Largest number of examples to use from a bin.")
@_setting("min_count", "Least number of examples in an automatic bin.")
@click.option(
    "--votes",
    default=VOTES,
    show_default=True,
    metavar="SELECT,ESTIMATE",
    help="Votes that select the answer, and that bound it.",
)
@_setting("tol", "Precision of the search for a kept length, in tokens.")
@_setting("on", "Rows to use.", type=click.Choice(CHOICES))
@_setting("seed", "Seed of the noise and of the choice of examples.")
@click.option("--out", default=None, type=click.Path(path_type=Path), help="Folder for a copy.  [default: in place]")
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@click.option("--text-column", default=DATA.text, show_default=True, help="Column of the texts.")
@click.option("--label-column", default=DATA.label, show_default=True, help="Column of the labels.")
@click.option("--encoding", default=DATA.encoding, show_default=True, help="Encoding of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
    """Choose how many tokens the saved model MODEL keeps of inputs of every length (AdaptDel+), and store the rate.

    --on auto uses the rows that were held out in training if there are enough for the bins, and all rows otherwise.
    Resumable: run the same command again after an interruption. A finished calibration is shown again.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    examples = read_examples(data, text=text_column, label=label_column, encoding=encoding)
    for sentence in examples.notes:
        note(f"{data}: {sentence}")
    settings |= {"bins": read_bins(bins), **read_votes(votes)}
    done = calibrate_folder(model, examples, settings, on=on, out=out, overwrite=overwrite, progress="log", note=note)
    for sentence in done.calibration.warnings:
        click.echo(f"warning: {sentence}", err=True)
    if as_json:
        shared = {"out": str(done.folder), "finished_before": done.already_done, "notes": notes}
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
    verb = "was calibrated before, nothing to do" if done.already_done else "calibrated"
    noise = f"noise: {done.calibration.noise!r}"
    return "\n".join([table.to_terminal(), "", f"{done.folder}: {verb}", noise])


def _row(bin: BinResult) -> list[str]:
    lengths = f"from {bin.lower:g}" if bin.upper is None else f"{bin.lower:g} to {bin.upper:g}"
    radius = str(bin.radius) if bin.radius >= 0 else "none"
    shares = [percent(bin.certified), percent(bin.clean), number(bin.mean_radius)]
    return [lengths, f"{bin.keep:.4g}", radius, *shares, f"{bin.count} of {bin.available}"]
