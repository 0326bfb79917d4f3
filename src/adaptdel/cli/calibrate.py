"""``adaptdel calibrate``: choose the deletion rates of AdaptDel+ on labelled data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from adaptdel.calibration.calibration import FinishedCalibration, calibrate_folder
from adaptdel.cli.certify import by_class
from adaptdel.cli.options import (
    DATA_HELP,
    column_options,
    data_path,
    described,
    list_settings_option,
    next_certify,
    read_settings,
    set_option,
)
from adaptdel.core.checks import check_known_fields
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.models.model_files import CONFIG, check_free, data_columns, load_model, save_model
from adaptdel.paper import PAPER_PRESETS, paper_calibration
from adaptdel.settings import CALIBRATION, OBJECTIVES, CalibrationSettings
from adaptdel.tables import number, percent, text_table
from adaptdel.text.data import DATA, read_examples
from adaptdel.training.jobs import write_figures

OPTIMISTIC = "these figures may be optimistic; `adaptdel certify` on other data gives the true ones."


@click.command("calibrate", epilog="All settings: --list-settings.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--settings", "preset", type=click.Choice(PAPER_PRESETS), help="Start from the paper's settings, for a data set."
)
@click.option("--data", multiple=True, help=DATA_HELP)
@click.option(
    "--max-accuracy-loss",
    type=float,
    help="Additive models: percentage points to give up for a larger radius; needs no data.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the result, or MODEL itself.  [default: MODEL-calibrated]"
)
@click.option("--overwrite", is_flag=True, help="Replace another model in --out.")
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    help=f"What to maximise; see above.  [default: {CALIBRATION.objective}]",
)
@click.option(
    "--points", type=float, help=f"balanced: points of accuracy to give up.  [default: {CALIBRATION.points:g}]"
)
@click.option("--threshold", type=float, help=f"paper: accuracy to certify.  [default: {CALIBRATION.threshold:g}]")
@set_option
@list_settings_option(lambda: described(CalibrationSettings))
@column_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def calibrate_command(
    model: Path,
    data: tuple[str, ...],
    max_accuracy_loss: float | None,
    out: Path | None,
    as_json: bool,
    settings: tuple[str, ...],
    preset: str | None,
    **options: Any,
) -> None:
    """Choose how many tokens a model keeps at each length (AdaptDel+).

    The result is a new model in --out. --objective balanced compares whole rates, among them the fixed rate and
    AdaptDel's, and takes the largest class-balanced mean radius at an accuracy within --points of the better of those
    two; a linear model is trained again for each candidate. --objective paper takes, in every bin of lengths, the
    largest radius that reaches --threshold.

    For an additive model, --max-accuracy-loss chooses another clip from what training measured; no data is needed.

    Calibration uses the rows that the model was not trained on if there are enough, and all rows otherwise, except
    those that `adaptdel train --protect` held out. Resumable: run the same command again after an interruption. A
    finished calibration is shown again.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    target = out or model.with_name(f"{model.name}-calibrated")
    loaded = load_model(model)
    overwrite, encoding = options.pop("overwrite"), options.pop("encoding")
    columns = data_columns(loaded, options.pop("text_column"), options.pop("label_column"))
    given = {name: value for name, value in options.items() if value is not None}
    if loaded.calibrates == "clip":
        if max_accuracy_loss is None or preset or settings or data or given:
            raise ValueError(f"{model}: an additive model is calibrated with --max-accuracy-loss alone")
        if loaded.records.protection is not None:
            note("the threshold of the protected class belongs to the earlier clip: run adaptdel protect")
        click.echo(_choose_clip(loaded, model, target, max_accuracy_loss, overwrite=overwrite, as_json=as_json))
        return
    if max_accuracy_loss is not None or not data:
        raise ValueError(f"{model}: a smoothed model is calibrated with --data, and without --max-accuracy-loss")
    examples = read_examples(data_path(data), **columns, encoding=encoding)
    start = {} if preset is None else paper_calibration(preset, len(loaded.classes_))
    for sentence in examples.notes:
        note(f"{', '.join(data)}: {sentence}")
    chosen = {**start, **given, **read_settings(settings)}
    check_known_fields(chosen, [field.name for field in fields(CalibrationSettings)])
    done = calibrate_folder(
        model,
        examples,
        CalibrationSettings(**chosen),
        model=loaded,
        out=None if target.resolve() == model.resolve() else target,
        overwrite=overwrite,
        progress="log",
        note=note,
    )
    for sentence in done.record["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    if as_json:
        shared = {"out": str(done.folder), "finished_before": done.already_done, "notes": notes}
        click.echo(json.dumps(shared | dict(done.record), indent=2))
    else:
        following = next_certify(done.folder)
        if (goal := done.to_prove) is not None:  # training held out rows to protect a class again
            again = ["--class", goal["protect"], "--max-false-positives", str(goal["max_false_positives"])]
            again += [part for name in data for part in ("--data", name)]
            again += [] if encoding == DATA.encoding else ["--encoding", encoding]
            following = "next: " + shlex.join(["adaptdel", "protect", str(done.folder), *again])
        click.echo(f"{describe(done)}\n{following}")


def _choose_clip(model: Any, path: Path, target: Path, loss: float, *, overwrite: bool, as_json: bool) -> str:
    """Save a model with another of its clips; what the clips give, as a table or as JSON."""
    model.choose(loss)
    if target != path:
        is_same = (target / CONFIG).exists() and load_model(target).predictions() == model.predictions()
        check_free(target, overwrite=overwrite or is_same)
    save_model(model, target, lambda folder: write_figures(folder, model))
    if as_json:
        return json.dumps({"out": str(target), **model.base_classifier().options(), **model.parameters()}, indent=2)
    return f"{model.trade_off_table().to_terminal()}\n\n{target}: calibrated\n{next_certify(target)}"


def describe(done: FinishedCalibration) -> str:
    """The calibrated bins, or the candidates, as a table."""
    record = done.record
    table = _bins(record) if "bins" in record else _candidates(record)
    verb = "was calibrated before, nothing to do" if done.already_done else "calibrated"
    is_short = "bins" in record or not record["candidates"][record["chosen"]]["is_calibrated"]
    kept = ", ".join(f"{n * (1 - done.noise.share_removed(n)):.3g} of {n}" for n in (10, 30, 100, 300, 1000))
    noise = repr(done.noise) if is_short else f"keeps {kept} tokens"
    return "\n".join([*table, "", f"{done.folder}: {verb}", f"noise: {noise}"])


def _bins(record: Mapping[str, Any]) -> list[str]:
    """The bins as a table."""
    titles = ("tokens", "kept", "radius", "certified accuracy at this radius", CLEAN_ACCURACY, MEAN_RADIUS, "examples")
    rows = []
    for bin in record["bins"]:
        lengths = f"from {bin['lower']:g}" if bin["upper"] is None else f"{bin['lower']:g} to {bin['upper']:g}"
        radius = str(bin["radius"]) if bin["radius"] >= 0 else "none"
        figures = [percent(bin["certified"]), percent(bin["clean"]), number(bin["mean_radius"])]
        rows.append([lengths, f"{bin['keep']:.4g}", radius, *figures, f"{bin['count']} of {bin['available']}"])
    where = f"Measured on the examples on which the kept lengths were chosen: {OPTIMISTIC}"
    return [text_table(titles, rows).to_terminal(), "", where]


def _candidates(record: Mapping[str, Any]) -> list[str]:
    """The candidates as a table, and the choice in a sentence."""
    titles = (
        "candidate", "kept", CLEAN_ACCURACY, "balanced accuracy", "class-balanced mean radius", MEAN_RADIUS,
        "accuracy to the reference", "balanced accuracy to the reference", "",
    )  # fmt: skip
    points, rows = record["settings"]["points"], []
    for place, candidate in enumerate(record["candidates"]):
        remark = "chosen" if place == record["chosen"] else "constant answer" if candidate["constant"] else ""
        differences = [
            f"{100 * candidate[f'{name}_difference']:+.2f} ± {100 * candidate[f'{name}_error']:.2f}"
            for name in ("accuracy", "balanced")
        ]
        figures = [percent(candidate["accuracy"]), percent(candidate["balanced_accuracy"])]
        figures += [number(candidate["balanced_radius"]), number(candidate["mean_radius"])]
        name = candidate["name"]
        if not candidate["feasible"] and not candidate["constant"]:
            is_lower = 100 * min(candidate["accuracy_difference"], candidate["balanced_difference"]) < -points
            name += f" (accuracy {'too low' if is_lower else 'uncertain'})"
        rows.append([name, f"{candidate['kept']:.4g}", *figures, *differences, remark])
    return [
        text_table(titles, rows).to_terminal(),
        "",
        f"Measured on {record['settings']['rows']} inputs, radii at most the length; kept tokens at the median length.",
        "fixed: CERT-ED's rate. power x: kept tokens grow with the length to the power of x.",
        f"Chosen: the largest class-balanced mean radius among those whose accuracy and balanced accuracy are within "
        f"{points:g} points",
        f"of {record['candidates'][record['reference']]['name']}, the reference; for powers with a confidence of 95% "
        "(otherwise: accuracy uncertain) and a clear gain.",
        f"The choice was made on these inputs: {OPTIMISTIC}",
        "",
        "By class, under the chosen rate:",
        "",
        *by_class(record),
    ]
