"""``adaptdel certify``: a data file into a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from adaptdel.certification.evidence import ANY_EDIT
from adaptdel.cli.options import (
    DATA_HELP,
    RAY,
    chosen_settings,
    column_options,
    described,
    engine_options,
    list_settings_option,
    running_options,
    set_option,
    threat_option,
    two_integers,
)
from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table, confusion_table, padding_sentence
from adaptdel.measures.summary import MEASURE_COLUMNS
from adaptdel.models.model_files import MODELS, data_columns, read_settings
from adaptdel.paper import PAPER_ALPHA, paper_certification
from adaptdel.runs.engine import ENGINE, EngineSettings
from adaptdel.runs.manifest import Manifest
from adaptdel.settings import CERTIFICATION
from adaptdel.tables import number, percent, text_table
from adaptdel.text.data import DrawnRows
from adaptdel.text.units import noun

_VOTES = f"{CERTIFICATION.n_select},{CERTIFICATION.n_estimate}"
OTHERS = """\
  sampling=adaptive: stop when more votes would hardly change the radius; "fixed" takes all votes, as in the paper.
  threshold=None: of two classes, answer the second one if it gets more than this share of the votes.
  compile=False: compile a transformer by torch.compile."""


@click.command("certify")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--settings", "preset", type=click.Choice(["paper"]), help="Start from the paper's settings.")
@click.option("--data", required=True, multiple=True, help=DATA_HELP)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the run.")
@threat_option("the model's")
@click.option(
    "--alpha",
    type=float,
    help=f"Largest probability that a certificate is wrong.  [default: the model's, {CERTIFICATION.alpha}]",
)
@click.option(
    "--votes",
    metavar="SELECT,ESTIMATE",
    help=f"Votes that select the answer, and votes that bound its probability.  [default: the model's, {_VOTES}]",
)
@click.option("--bound", help=f"tight or paper.  [default: the model's, {CERTIFICATION.bound}]")
@click.option("--seed", type=int, help=f"Seed of the noise.  [default: the model's, {CERTIFICATION.seed}]")
@click.option("--limit", type=int, help="Certify only the first rows, up to this number, which can be raised later.")
@click.option("--sample", type=int, help="Certify this many rows, drawn at random with the seed.")
@engine_options
@running_options
@column_options
@set_option
@list_settings_option(lambda: f"{OTHERS}\n{described(ENGINE, ('engine', 'workers'))}")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def certify_command(
    context: click.Context,
    /,
    model: Path,
    data: tuple[str, ...],
    out: Path,
    as_json: bool,
    votes: str | None,
    preset: str | None,
    sample: int | None,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """Certify the inputs of a file with MODEL.

    Resumable: run the same command again after an interruption. The exit status is 1 if some rows could not be
    certified, and 2 if the run stopped.
    """
    from adaptdel.runs.certify import certify_data
    from adaptdel.runs.inputs import Source

    def note(text: str) -> None:
        click.echo(f"note: {text}", err=True)

    saved = read_settings(model)
    of_model = MODELS.get(saved.kind).run_options
    chosen, running, ray = chosen_settings(settings, of_model, ("compile",), RAY)
    chosen |= _given(options, "ops", "alpha", "bound", "seed")
    if votes is not None:
        chosen["n_select"], chosen["n_estimate"] = two_integers(votes, ",", "1000,4000")
    if preset is not None:
        chosen = paper_certification(len(saved.classes)) | chosen
        if chosen["alpha"] == PAPER_ALPHA / 2:
            note(f"two classes: alpha is half of the paper's {PAPER_ALPHA}, for each of its two bounds")
    if sample is not None and options["limit"] is not None:
        raise ValueError("--sample and --limit cannot be given together")
    drawn = None if sample is None else DrawnRows(sample, chosen.get("seed", CERTIFICATION.seed))
    if drawn is not None and "seed" not in of_model:
        chosen.pop("seed", None)  # it is that of the sample alone
    columns = data_columns(model, options["text_column"], options["label_column"])
    source = Source(data, **columns, encoding=options["encoding"], sample=drawn)
    with redirect_stdout(sys.stderr):  # Ray prints the errors of its processes
        manifest = certify_data(
            model,
            source,
            out,
            settings=chosen,
            limit=options["limit"],
            engine=EngineSettings(options["engine"], options["workers"], **ray),
            running=running | _given(options, "device", "dtype", "batch_tokens"),
            note=note,
            progress="log",
        ).manifest
    click.echo(summary(manifest, out, as_json=as_json))
    assert manifest.totals is not None
    context.exit(1 if manifest.totals["problems"] else 0)


def _given(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that are given."""
    return {name: options[name] for name in names if options[name] is not None}


def summary(manifest: Manifest, out: Path, *, as_json: bool) -> str:
    """The totals of a finished run, for a terminal or as JSON."""
    totals, plan = manifest.totals, manifest.plan
    assert totals is not None
    if as_json:
        shared = {
            "alpha": plan.alpha,
            "ops": plan.ops,
            "threat": str(plan.threat),
            "started": manifest.started,
            "finished": manifest.finished,
        }
        return json.dumps({"run": str(out), **totals, **shared, "plan": plan.to_dict()}, indent=2, ensure_ascii=False)
    certified = totals["inputs"] - totals["problems"]
    how = f"at alpha {plan.alpha:g}; {totals['abstained']} abstained" if plan.sampled_at_random else "(exact)"
    ops = "" if plan.threat == ANY_EDIT else f" against {plan.threat}"
    counted, answers = (totals["labelled"], "right answers") if totals["labelled"] else (certified, "answers")
    lines = [
        f"{totals['certified_at_1']} of {counted} inputs have {answers} with a radius of at least 1{ops} {how}"
        + (f", {totals['problems']} could not be read or certified" if totals["problems"] else "")
    ]
    rows = [(column.title, column.text(totals)) for column in MEASURE_COLUMNS]
    if (characters := totals["mean_character_radius"]) is not None:
        rows.append(("mean certified radius in characters", number(characters)))
    if totals["calls"]:
        rows.append(("votes per input", number(totals["calls"] / certified, 1)))
    if totals["padded"]:
        rows.append(("correct no matter what text is added before and after", f"{totals['padded']} of {counted}"))
    if totals["covering"]:
        rows.append(("cover every text of their length", f"{totals['covering']} of {certified} certificates"))
    lines.append(text_table(("measure", "value"), rows).to_terminal())
    how = "protects" if manifest.model.protects is not None else "with its decision threshold,"
    lines += [] if manifest.protects is None else _protection(totals, manifest.protects, how, noun(manifest.unit))
    lines += ["", *by_class(totals), ""] if totals["classes"] else []
    if totals["warnings"]:
        from adaptdel.advice import what_may_help_run

        lines += [f"warning: {sentence}" for sentence in totals["warnings"]]
        lines.append(f"what may help: {what_may_help_run(manifest)}")
    return "\n".join([*lines, f"run: {out}"])


def _protection(totals: dict[str, Any], protected: str, how: str, unit: str) -> list[str]:
    """What the threshold does for the class that it protects: detection, radius, false positives."""
    own = next((row for row in totals["classes"] if str(row["label"]) == protected and row["inputs"]), None)
    if own is None:
        return []
    others = sum(row["inputs"] for row in totals["classes"]) - own["inputs"]
    wrong = own["answers"] - round(own["recall"] * own["inputs"])
    share = f" ({percent(wrong / others)})" if others else ""
    return [
        "",
        f"{how} {protected}: {percent(own['recall'])} are detected, with a mean radius of "
        f"{number(own['mean_radius'])}; false positives: {wrong:,} of {others:,} other inputs{share}",
        *([f"of {protected}, {sentence} are detected"] if (sentence := padding_sentence(own, unit)) else []),
    ]


def by_class(values: Mapping[str, Any]) -> list[str]:
    """The measures by class and the confusion matrix, for a terminal."""
    rows, counts = values["classes"], values["confusion"]
    more = len(rows) - SHOWN_CLASSES
    parts = [class_table(rows[:SHOWN_CLASSES]).to_terminal()]
    if more > 0:
        parts.append(f"and {more} more classes, which --json prints")
    elif counts is not None:
        parts += ["", confusion_table([({}, [row["label"] for row in rows], counts)]).to_terminal()]
    return parts
