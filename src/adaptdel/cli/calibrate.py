"""``adaptdel calibrate``: choose the deletion rates of AdaptDel+ on labelled data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from adaptdel.calibration.calibration import BinResult
from adaptdel.calibration.folders import FinishedCalibration, calibrate_folder
from adaptdel.calibration.rate_selection import RateSelection
from adaptdel.calibration.rows import CHOICES
from adaptdel.cli.certify import next_certify, read_votes
from adaptdel.cli.engine import DATA_HELP, data_path, engine_options, engine_settings
from adaptdel.hyperparameters import BACKENDS
from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table, confusion_table
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.models.model_files import data_columns
from adaptdel.settings import CALIBRATION, OBJECTIVES
from adaptdel.tables import number, percent, text_table
from adaptdel.text.data import DATA, read_examples

OPTIMISTIC = "these figures are optimistic; `adaptdel certify` on other data gives the true ones."
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
@click.option("--data", required=True, multiple=True, help=DATA_HELP)
@_setting("objective", "What to maximise; see below.", type=click.Choice(OBJECTIVES))
@_setting("points", "balanced: percentage points of accuracy that may be lost.")
@_setting("examples", "balanced: largest number of examples to measure on.")
@click.option(
    "--refit/--no-refit", default=None, help="balanced: train again under each candidate.  [default: if linear]"
)
@_setting("threshold", "paper: certified accuracy to reach.")
@_setting("min_accuracy", "mean: clean accuracy to reach.", type=float)
@_setting("bins", "paper, mean: auto, or the lengths at which bins start, such as 0,137,230,324.")
@_setting("interpolate", "paper, mean: interpolate the kept length between the centres of bins.", is_flag=True)
@_setting("monotone", "paper, mean: fit kept lengths that do not decrease with the length.", is_flag=True)
@_setting("per_bin", "paper, mean: largest number of examples to use from a bin.")
@_setting("min_count", "Least number of examples in a bin or group of lengths.")
@click.option(
    "--votes",
    default=VOTES,
    show_default=True,
    metavar="SELECT,ESTIMATE",
    help="Votes that select the answer, and that bound it.",
)
@_setting("tol", "paper, mean: precision of the search for a kept length, in tokens.")
@_setting("on", "Rows to use.", type=click.Choice(CHOICES))
@_setting("seed", "Seed of the noise and of the choice of examples.")
@click.option(
    "--backend",
    default=None,
    type=click.Choice(BACKENDS),
    help="What runs a transformer; the result keeps it.  [default: the model's]",
)
@engine_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the result.  [default: MODEL-calibrated]")
@click.option("--in-place", is_flag=True, help="Change MODEL itself.")
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@click.option("--text-column", default=None, help=f"Column of the texts.  [default: as in training, or {DATA.text}]")
@click.option("--label-column", default=None, help=f"Column of the labels.  [default: as in training, or {DATA.label}]")
@click.option("--encoding", default=DATA.encoding, show_default=True, help="Encoding of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def calibrate_command(
    model: Path,
    data: tuple[str, ...],
    bins: str,
    votes: str,
    on: str,
    out: Path | None,
    in_place: bool,
    overwrite: bool,
    backend: str | None,
    text_column: str | None,
    label_column: str | None,
    encoding: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Choose how many tokens the saved model MODEL keeps of inputs of every length (AdaptDel+).

    The result is a new model in --out. --objective balanced compares whole rates, among them the fixed rate and
    AdaptDel's, and takes the largest class-balanced mean radius at an accuracy within --points of the best of those
    two; a linear model is trained again under each candidate. paper: the largest radius at the --threshold in every bin
    of lengths. mean: the largest mean radius at --min-accuracy in every bin.

    --on auto uses the rows that were held out in training if there are enough for the bins, and all rows otherwise.
    Resumable: run the same command again after an interruption. A finished calibration is shown again.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    if in_place and out is not None:
        raise ValueError("--out and --in-place cannot be given together")
    target = None if in_place else out or model.with_name(f"{model.name}-calibrated")
    columns = data_columns(model, text_column, label_column)
    examples = read_examples(data_path(data), **columns, encoding=encoding)
    for sentence in examples.notes:
        note(f"{', '.join(data)}: {sentence}")
    engine = engine_settings(settings)
    settings |= {"bins": read_bins(bins), **read_votes(votes)}
    done = calibrate_folder(
        model,
        examples,
        settings,
        engine=engine,
        on=on,
        out=target,
        overwrite=overwrite,
        backend=backend,
        progress="log",
        note=note,
    )
    if not as_json:
        click.echo(describe(done))
    for sentence in done.calibration.warnings:
        click.echo(f"warning: {sentence}", err=True)
    if as_json:
        shared = {"out": str(done.folder), "finished_before": done.already_done, "notes": notes}
        click.echo(json.dumps(shared | done.calibration.to_dict(), indent=2))
    else:
        click.echo(next_certify(done.folder))


def read_bins(text: str) -> str | list[float]:
    """Read "auto" or "0,137,230,324"."""
    if text.strip() == "auto":
        return "auto"
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"bins must be auto, or numbers such as 0,137,230,324, got {text!r}") from None


def describe(done: FinishedCalibration) -> str:
    """The calibrated bins, or the candidates, as a table."""
    calibration = done.calibration
    verb = "was calibrated before, nothing to do" if done.already_done else "calibrated"
    if isinstance(calibration, RateSelection):
        noise = f"noise: {_short(calibration)}"
        candidates = [*_candidates(calibration), ""]
        return "\n".join([*candidates, f"{done.folder}: {verb}", noise])
    titles = ("tokens", "kept", "radius", "certified accuracy at this radius", CLEAN_ACCURACY, MEAN_RADIUS, "examples")
    table = text_table(titles, [_row(bin) for bin in calibration.bins])
    noise = f"noise: {done.calibration.noise!r}"
    shown = [
        table.to_terminal(),
        "",
        f"Measured on the examples on which the kept lengths were chosen: {OPTIMISTIC}",
        "",
    ]
    return "\n".join([*shown, f"{done.folder}: {verb}", noise])


def _short(selection: RateSelection) -> str:
    """The chosen noise, with the kept length at a few lengths instead of the knots of a long curve."""
    chosen = selection.candidates[selection.chosen]
    if chosen.complexity == 0:
        return repr(selection.noise)
    kept = ", ".join(f"{n * (1 - selection.rate(n)):.3g} of {n}" for n in (10, 30, 100, 300, 1000))
    return f"{chosen.name}: keeps {kept} tokens"


def _candidates(selection: RateSelection) -> list[str]:
    """The candidates as a table, and the choice in a sentence."""
    titles = (
        "candidate", "kept", CLEAN_ACCURACY, "balanced accuracy", "class-balanced mean radius", MEAN_RADIUS,
        "accuracy points to the best of fixed and adaptdel", "",
    )  # fmt: skip
    rows = []
    for place, candidate in enumerate(selection.candidates):
        remark = "constant answer" if candidate.constant else "chosen" if place == selection.chosen else ""
        remark = "not confirmed" if place in selection.rejected else remark
        difference = f"{100 * candidate.accuracy_difference:+.2f} ± {100 * candidate.accuracy_error:.2f}"
        figures = [percent(candidate.accuracy), percent(candidate.balanced_accuracy)]
        figures += [number(candidate.balanced_radius), number(candidate.mean_radius)]
        name = candidate.name
        if not candidate.feasible and not candidate.constant:
            is_lower = 100 * candidate.accuracy_difference < -selection.settings["points"]
            name += f" (accuracy {'too low' if is_lower else 'uncertain'})"
        rows.append([name, f"{candidate.kept:.4g}", *figures, difference, remark])
    margin = selection.settings["points"]
    points = f"{margin:g} percentage {'point' if margin == 1 else 'points'} of the best of fixed and adaptdel;"
    return [
        text_table(titles, rows).to_terminal(),
        "",
        f"Measured on {selection.settings['rows']} inputs, radii at most the length; kept tokens at the median length.",
        "fixed: CERT-ED's rate. power x: kept tokens grow with the length to the power of x. groups: by length.",
        f"Chosen: the largest class-balanced mean radius among accuracies within {points}",
        "for other candidates with a confidence of 95% (otherwise: accuracy uncertain) and a clear gain.",
        f"The choice was made on these inputs: {OPTIMISTIC}",
        *_confirmed(selection),
        "",
        *_by_class(selection),
    ]


def _by_class(selection: RateSelection) -> list[str]:
    """The measures by class under the chosen rate, and the confusion matrix."""
    rows, counts = selection.classes, selection.confusion
    if not rows:
        return []
    shown = ["", "By class, under the chosen rate:", "", class_table(rows[:SHOWN_CLASSES]).to_terminal()]
    if len(rows) > SHOWN_CLASSES:
        return [*shown, f"and {len(rows) - SHOWN_CLASSES} more classes, which --json prints"]
    return [*shown, "", confusion_table([({}, [row["label"] for row in rows], counts)]).to_terminal()]


def _confirmed(selection: RateSelection) -> list[str]:
    """The second measurement of the chosen candidate."""
    confirmation = selection.confirmation
    if confirmation is None:
        return []
    again = confirmation.comparison
    where = "other inputs" if confirmation.is_fresh else "inputs, the same ones in another cross-validation"
    return [
        f"Measured again on {confirmation.rows} {where}: accuracy {percent(again.accuracy)} "
        f"({100 * again.accuracy_difference:+.2f} ± {100 * again.accuracy_error:.2f} points), radius "
        f"{number(again.balanced_radius)} ({again.radius_difference:+.2f} ± {again.radius_error:.2f} to the most "
        "accurate uncalibrated rate)."
    ]


def _row(bin: BinResult) -> list[str]:
    lengths = f"from {bin.lower:g}" if bin.upper is None else f"{bin.lower:g} to {bin.upper:g}"
    radius = str(bin.radius) if bin.radius >= 0 else "none"
    shares = [percent(bin.certified), percent(bin.clean), number(bin.mean_radius)]
    return [lengths, f"{bin.keep:.4g}", radius, *shares, f"{bin.count} of {bin.available}"]
