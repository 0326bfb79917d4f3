"""``adaptdel report``: compare runs in a page with tables and figures."""

from __future__ import annotations

import json
from pathlib import Path

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
@click.option("--data", default=None, metavar="FILE", help="The data file, if it is not where the runs read it.")
@click.option("--sample", default=30, show_default=True, type=int, help="Number of inputs to show.")
@click.option(
    "--baseline",
    default=None,
    type=int,
    help="The RUN to compare the others with, from 1.  [default: the one that most can be compared with]",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of a RUN, once for each; runs with the same name are seeds of a method.",
)
@click.option("--title", default=None, help="Title of the page.  [default: from the data file]")
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of the sample and of the intervals.")
@click.option("--characters", is_flag=True, help="Count radii in edited characters.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def report_command(
    runs: tuple[Path, ...],
    out: Path,
    data: str | None,
    sample: int,
    baseline: int | None,
    names: tuple[str, ...],
    title: str | None,
    seed: int,
    characters: bool,
    as_json: bool,
) -> None:
    """Compare runs in an HTML page, with tables and figures.

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
        if names or data is not None or baseline is not None or characters:
            raise ValueError("--name, --data, --baseline and --characters are for certification runs, not for attacks")
        _report_attacks(runs, out, title, as_json=as_json)
        return
    place = None if baseline is None else baseline - 1
    values = write_report(
        runs,
        out,
        names=names,
        data=data,
        sample=sample,
        baseline=place,
        title=title,
        seed=seed,
        characters=characters,
    )
    click.echo(f"wrote {out / 'index.html'}", err=True)
    if as_json:
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        click.echo(overview_table([(run["name"], run["measures"]) for run in values["runs"]]).to_terminal())
        for sentence in values["notes"]:
            click.echo(f"note: {sentence}")


def _report_attacks(runs: tuple[Path, ...], out: Path, title: str | None, *, as_json: bool) -> None:
    """A report on runs of attacks."""
    others = [run for run in runs if not is_attack_run(run)]
    if others:
        raise ValueError(f"{others[0]}: not a run of attacks, unlike another RUN: write a report on each kind")
    values = write_attack_report(runs, out, title=title)
    click.echo(f"wrote {out / 'index.html'}", err=True)
    if as_json:
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        rows = [{"model": run["name"], "recipe": run["recipe"], **run["measures"]} for run in values["runs"]]
        click.echo(attack_table(rows).to_terminal())
        click.echo("")
        click.echo(gap_table(rows).to_terminal())
