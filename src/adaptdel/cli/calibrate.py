"""``adaptdel calibrate``: choose the deletion rates of AdaptDel+ on labelled data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from adaptdel.calibration.calibration import FinishedCalibration, calibrate_folder
from adaptdel.cli.certify import by_class, next_certify
from adaptdel.cli.options import (
    DATA_HELP,
    column_options,
    data_path,
    described,
    list_settings_option,
    read_settings,
    set_option,
)
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.models.card import front_table
from adaptdel.models.model_files import check_free, class_count, data_columns, load_model, model_kind, save_model
from adaptdel.paper import PAPER_PRESETS, paper_calibration
from adaptdel.settings import CALIBRATION, OBJECTIVES, CalibrationSettings
from adaptdel.tables import number, percent, text_table
from adaptdel.text.data import DATA, read_examples
from adaptdel.training.jobs import FRONT, plot_front

OPTIMISTIC = "these figures may be optimistic; `adaptdel certify` on other data gives the true ones."


@click.command("calibrate", epilog="All settings: --list-settings.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--settings", "preset", type=click.Choice(PAPER_PRESETS), help="Start from the paper's settings, of a data set."
)
@click.option("--data", multiple=True, help=DATA_HELP)
@click.option(
    "--max-accuracy-loss",
    type=float,
    help="Additive models: percentage points to give up for a larger radius; no data.",
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
@click.option("--points", type=float, help=f"balanced: points of accuracy to lose.  [default: {CALIBRATION.points:g}]")
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
    AdaptDel's, and takes the largest class-balanced mean radius at an accuracy within --points of the best of those
    two; a linear model is trained again under each candidate. paper: the largest radius at the --threshold in every bin
    of lengths.

    Of an additive model, --max-accuracy-loss alone chooses another bound, from what training measured: no data.

    Rows that the model was not trained on are used if there are enough, and all rows otherwise, but those that
    `adaptdel train --protect` held out. Resumable: run the same command again after an interruption. A finished
    calibration is shown again.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    target = out or model.with_name(f"{model.name}-calibrated")
    if model_kind(model) == "additive":
        others = (preset, *settings, *data, *(options[name] for name in ("objective", "points", "threshold")))
        if max_accuracy_loss is None or any(value is not None for value in others):
            raise ValueError(f"{model}: an additive model is calibrated with --max-accuracy-loss alone")
        click.echo(_choose_bound(model, target, max_accuracy_loss, overwrite=options["overwrite"], as_json=as_json))
        return
    if max_accuracy_loss is not None or not data:
        raise ValueError(f"{model}: a smoothed model is calibrated with --data, and without --max-accuracy-loss")
    overwrite = options.pop("overwrite")
    columns = data_columns(model, options.pop("text_column"), options.pop("label_column"))
    encoding = options.pop("encoding")
    examples = read_examples(data_path(data), **columns, encoding=encoding)
    given = {name: value for name, value in options.items() if value is not None}
    start = {} if preset is None else paper_calibration(preset, class_count(model))
    chosen = CalibrationSettings.from_dict({**start, **given, **read_settings(settings)})
    for sentence in examples.notes:
        note(f"{', '.join(data)}: {sentence}")
    done = calibrate_folder(
        model,
        examples,
        chosen,
        out=None if target.resolve() == model.resolve() else target,
        overwrite=overwrite,
        progress="log",
        note=note,
    )
    if not as_json:
        click.echo(describe(done))
    for sentence in done.record["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    if as_json:
        shared = {"out": str(done.folder), "finished_before": done.already_done, "notes": notes}
        click.echo(json.dumps(shared | dict(done.record), indent=2))
    elif done.to_prove is None:
        click.echo(next_certify(done.folder))
    else:
        goal = ["--class", done.to_prove["protect"], "--max-false-positives", str(done.to_prove["max_false_positives"])]
        same = [part for name in data for part in ("--data", name)]
        same += [] if encoding == DATA.encoding else ["--encoding", encoding]
        click.echo("next: " + shlex.join(["adaptdel", "protect", str(done.folder), *goal, *same]))


def _choose_bound(model: Path, target: Path, loss: float, *, overwrite: bool, as_json: bool) -> str:
    """Save an additive model with another of its bounds; what the bounds give, as a table or as JSON."""
    loaded = load_model(model)
    if loaded.__dict__.pop("protection_", None) is not None:
        loaded.threshold = 0
        click.echo(
            "note: the threshold of the protected class belongs to the earlier bound: run adaptdel protect", err=True
        )
    loaded.choose(loss)
    if target != model:
        is_same = target.exists() and any(target.iterdir()) and load_model(target).answer_plan() == loaded.answer_plan()
        check_free(target, overwrite=overwrite or is_same)
    save_model(loaded, target, lambda folder: plot_front(loaded, folder / FRONT))
    point = loaded.base_classifier().options()["point"]
    if as_json:
        return json.dumps({"out": str(target), "point": point, "front": loaded.front_}, indent=2)
    table = front_table(loaded.front_, point).to_terminal()
    return f"{table}\n\n{target}: calibrated\n{next_certify(target)}"


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
        remark = "not confirmed" if place in record["rejected"] else remark
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
        *_confirmed(record["confirmation"]),
        "",
        "By class, under the chosen rate:",
        "",
        *by_class(record),
    ]


def _confirmed(confirmation: Mapping[str, Any] | None) -> list[str]:
    """The second measurement of the chosen candidate."""
    if confirmation is None:
        return []
    again = confirmation["comparison"]
    where = "other inputs" if confirmation["is_fresh"] else "inputs, the same ones in another cross-validation"
    return [
        f"Measured again on {confirmation['rows']} {where}: accuracy {percent(again['accuracy'])} "
        f"({100 * again['accuracy_difference']:+.2f} ± {100 * again['accuracy_error']:.2f} points), radius "
        f"{number(again['balanced_radius'])} ({again['radius_difference']:+.2f} ± {again['radius_error']:.2f} to the "
        "most accurate uncalibrated rate)."
    ]
