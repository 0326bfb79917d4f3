"""``adaptdel report``: compare runs in a page with tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.attacks.attack_run import is_attack_run
from adaptdel.attacks.outcomes import attack_table, gap_table
from adaptdel.report.attack_report import write_attack_report
from adaptdel.report.comparison import overview_table
from adaptdel.report.write import write_report


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="A new folder, or a report, which is replaced."
)
@click.option("--data", metavar="FILE", help="The data file, if it has moved since the runs read it.")
@click.option("--sample", default=30, show_default=True, help="Number of inputs to show.")
@click.option(
    "--baseline",
    type=int,
    help="Number of the RUN to compare the others with, from 1.  [default: the one comparable to most]",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of a RUN, given once for each; runs with the same name are seeds of one method.",
)
@click.option("--title", help="Title of the page.  [default: from the data file]")
@click.option("--seed", default=0, show_default=True, help="Seed of the sample and of the intervals.")
@click.option("--characters", is_flag=True, help="Count radii in edited characters.")
@click.option(
    "--as-released",
    is_flag=True,
    help="In figures, cut radii at the length and leave out the largest 0.01%, as the paper's released code does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def report_command(
    runs: tuple[Path, ...], out: Path, baseline: int | None, names: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Compare runs on an HTML page with tables and figures.

    The page works offline. Runs are of certification or of attacks. A RUN can be a table of another system's
    certificates on the same inputs (CSV, JSON or Parquet; columns id or text, answer, radius, and if known label,
    length, ops, unit), which are compared and not verified.

    Writes index.html, report.json, tables.tex, tables/ (CSV) and figures/ (PNG, SVG, PDF) to the folder OUT.
    """
    if baseline is not None and not 1 <= baseline <= len(runs):
        raise ValueError(f"--baseline must be the number of a RUN, from 1 to {len(runs)}, got {baseline}")
    if names and len(names) != len(runs):
        raise ValueError(f"--name must be given once for each of the {len(runs)} runs, got {len(names)}")
    if any(map(is_attack_run, runs)):
        if names or baseline is not None or any(options[name] for name in ("data", "characters", "as_released")):
            raise ValueError(
                "--name, --data, --baseline, --characters and --as-released are for certification runs, not for attacks"
            )
        others = [run for run in runs if not is_attack_run(run)]
        if others:
            raise ValueError(f"{others[0]}: not a run of attacks, unlike another RUN: write a report on each kind")
        values = write_attack_report(runs, out, title=options["title"])
        rows = [{"model": run["name"], "recipe": run["recipe"], **run["measures"]} for run in values["runs"]]
        lines = [attack_table(rows).to_terminal(), "", gap_table(rows).to_terminal()]
    else:
        place = None if baseline is None else baseline - 1
        values = write_report(runs, out, names=names, baseline=place, **options)
        lines = [overview_table([(run["name"], run["measures"]) for run in values["runs"]]).to_terminal()]
        lines += [f"note: {sentence}" for sentence in values["notes"]]
    click.echo(f"wrote {out / 'index.html'}", err=True)
    click.echo(json.dumps(values, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
