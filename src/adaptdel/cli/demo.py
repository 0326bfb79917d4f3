"""``adaptdel demo``: every method of the paper on real movie reviews."""

from __future__ import annotations

from pathlib import Path

import click

from adaptdel.demo import DEMO_FOLDER, REVIEWS, WORKERS, run_demo


@click.command("demo")
@click.option(
    "--out",
    default=DEMO_FOLDER,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for data, models, runs and report.",
)
@click.option("--reviews", default=REVIEWS, show_default=True, help="Number of held-out reviews to certify.")
@click.option("--workers", default=WORKERS, show_default=True, help="Number of worker processes.")
@click.option("--seed", default=0, show_default=True, help="Seed of the split and of all random numbers.")
def demo_command(out: Path, reviews: int, workers: int, seed: int) -> None:
    """Compare all methods on real movie reviews and write a report.

    Resumable: run the same command again.
    """
    result = run_demo(out, reviews=reviews, workers=workers, seed=seed, note=lambda text: click.echo(text, err=True))
    click.echo(result.table)
    click.echo("\nA certificate in words\n")
    click.echo(result.explained)
    click.echo(f"\nReport: {result.page}")
