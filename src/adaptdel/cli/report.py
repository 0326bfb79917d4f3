"""``adaptdel report``: runs as a page, tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.report.tables import number, percent
from adaptdel.report.write import write_report


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder, or a report to replace.")
@click.option("--data", default=None, metavar="FILE", help="The data, if it is not where the runs read it.")
@click.option("--sample", default=30, show_default=True, type=int, help="How many inputs to show.")
@click.option("--baseline", default=1, show_default=True, type=int, help="Which RUN the others are compared with.")
@click.option("--title", default=None, help="The heading of the page.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of the sample and of the intervals.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON, for machines.")
def report_command(
    runs: tuple[Path, ...],
    out: Path,
    data: str | None,
    sample: int,
    baseline: int,
    title: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compare certification runs: a page that opens offline, with tables and figures.

    DIR gets index.html, report.md, report.json, tables.tex, tables/ (CSV) and figures/ (PNG, SVG, PDF).
    """
    if not 1 <= baseline <= len(runs):
        raise ValueError(f"--baseline must be the place of a RUN, from 1 to {len(runs)}, got {baseline}")
    values = write_report(runs, out, data=data, sample=sample, baseline=baseline - 1, title=title, seed=seed)
    click.echo(f"wrote {out / 'index.html'}", err=True)
    click.echo(json.dumps(values, indent=2, ensure_ascii=False) if as_json else _lines(values))


def _lines(values: dict[str, Any]) -> str:
    """A line a run."""
    width = max(len(run["name"]) for run in values["runs"])
    lines = [f"{'run':<{width}}  inputs  accuracy  mean radius  abstained"]
    for run in values["runs"]:
        m = run["measures"]
        accuracy = "–" if m["clean_accuracy"] is None else percent(m["clean_accuracy"])
        radius = "–" if m["mean_radius"] is None else number(m["mean_radius"])
        lines.append(f"{run['name']:<{width}}  {m['inputs']:>6}  {accuracy:>8}  {radius:>11}  {m['abstained']:>9}")
    return "\n".join(lines)
