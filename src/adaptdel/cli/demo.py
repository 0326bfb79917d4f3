"""``adaptdel demo``: real reviews, every method, one report."""

from __future__ import annotations

from pathlib import Path

import click

from adaptdel.demo import run_demo


@click.command("demo")
@click.option("--out", default="out/demo", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--reviews", default=500, show_default=True, help="How many held-out reviews are certified.")
@click.option("--workers", default=2, show_default=True, help="Processes that certify.")
@click.option("--seed", default=0, show_default=True, help="Of the split and of everything random.")
def demo_command(out: Path, reviews: int, workers: int, seed: int) -> None:
    """Compare every method of the paper on real film reviews, and write a report.

    Resumable: run the same command again.
    """
    made = run_demo(out, reviews=reviews, workers=workers, seed=seed, note=lambda text: click.echo(text, err=True))
    click.echo(made.table)
    click.echo("\nOne certificate in words\n")
    click.echo(made.explained)
    click.echo(f"\nThe whole report: {made.page}")
