"""``adaptdel recertify``: derive new radii from the stored evidence of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaptdel.cli.certify import summary
from adaptdel.cli.options import threat_option
from adaptdel.cli.verify import WORK_HELP
from adaptdel.core.checks import STEPS


@click.command("recertify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the new run.")
@click.option("--alpha", type=float, help="Largest probability that a certificate is wrong.  [default: that of RUN]")
@threat_option("that of RUN")
@click.option("--bound", help="tight or paper.  [default: that of RUN]")
@click.option("--work", default=STEPS, show_default=True, type=click.IntRange(1), help=WORK_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def recertify_command(run: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Derive new radii from the evidence of a run.

    The folder RUN holds the evidence, such as votes; the model is not needed.

    Options that are omitted keep the value of RUN. Each certificate holds with its own confidence 1 - alpha. Decide
    on the settings before you look at the results: choosing the best of several runs invalidates the confidence.
    """
    from adaptdel.runs.certify import recertify

    click.echo(summary(recertify(run, out, **options), out, as_json=as_json))
