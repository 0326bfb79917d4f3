"""``adaptdel calibrate``: choose the deletion rates of AdaptDel+ on labelled data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from adaptdel.calibration.calibration import BinResult, CalibrationSettings
from adaptdel.calibration.folders import CHOICES, FinishedCalibration, calibrate_folder
from adaptdel.calibration.search import OBJECTIVES
from adaptdel.cli.certify import read_votes
from adaptdel.data import read_examples

DEFAULTS = CalibrationSettings()
VOTES = f"{DEFAULTS.n_select},{DEFAULTS.n_estimate}"


Command = TypeVar("Command", bound=Callable[..., Any])


def _setting(name: str, text: str, **options: Any) -> Callable[[Command], Command]:
    """An option for a field of the settings, with its default."""
    default = getattr(DEFAULTS, name)
    options = {"type": type(default), **options} if default is not None else options
    return click.option(f"--{name.replace('_', '-')}", default=default, show_default=True, help=text, **options)


@click.command("calibrate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="Labelled file (.jsonl, .csv, .parquet, also .gz) or data set.")
@_setting("threshold", "Certified accuracy to reach.")
@_setting("objective", "Maximise the radius at the threshold, or the mean radius.", type=click.Choice(OBJECTIVES))
@_setting("min_accuracy", "Clean accuracy to reach, for the objective mean.", type=float)
@_setting("bins", "auto, or the lengths at which bins start, such as 0,137,230,324.")
@click.option("--interpolate", is_flag=True, help="Interpolate the kept length between the centres of bins.")
@click.option("--monotone", is_flag=True, help="Fit kept lengths that do not decrease with the length.")
@_setting("per_bin", "Largest number of examples to use from a bin.")
@_setting("min_count", "Least number of examples in an automatic bin.")
@click.option("--votes", default=VOTES, show_default=True, metavar="SELECT,ESTIMATE", help="Votes for each example.")
@_setting("tol", "Precision of the search for a kept length, in tokens.")
@click.option("--on", default="auto", show_default=True, type=click.Choice(CHOICES), help="Rows to use.")
@_setting("seed", "Seed of the noise and of the choice of examples.")
@click.option("--out", default=None, type=click.Path(path_type=Path), help="Folder for a copy.  [default: in place]")
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@click.option("--text-column", default="text", show_default=True)
@click.option("--label-column", default="label", show_default=True)
@click.option("--encoding", default="utf-8", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    done = calibrate_folder(model, examples, settings, on=on, out=out, overwrite=overwrite, note=note)
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
    """The result as a table."""
    rows = [["tokens", "kept", "radius", "certified", "clean", "mean radius", "examples"]]
    rows += [_row(result) for result in done.calibration.bins]
    verb = "was calibrated before, nothing to do" if done.already_done else "calibrated"
    noise = f"noise: {done.calibration.noise!r}"
    return "\n".join([*_aligned(rows), "", f"{done.folder}: {verb}", noise])


def _row(result: BinResult) -> list[str]:
    lengths = f"from {result.lower:g}" if result.upper is None else f"{result.lower:g} to {result.upper:g}"
    radius = str(result.radius) if result.radius >= 0 else "none"
    shares = [f"{result.certified:.3f}", f"{result.clean:.3f}", f"{result.mean_radius:.2f}"]
    return [lengths, f"{result.keep:.4g}", radius, *shares, f"{result.count} of {result.available}"]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
