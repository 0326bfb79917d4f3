"""``adaptdel recertify``: derive new radii from the stored votes of a run."""

from __future__ import annotations

from pathlib import Path

import click

from adaptdel.cli.certify import summary
from adaptdel.cli.verify import WORK_HELP
from adaptdel.core.checks import STEPS


@click.command("recertify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the new run.")
@click.option(
    "--alpha", default=None, type=float, help="Largest probability that a certificate is wrong.  [default: that of RUN]"
)
@click.option(
    "--ops", default=None, help="Operations of the attacker: edit, or some of del,ins,sub.  [default: those of RUN]"
)
@click.option("--bound", default=None, help="tight or paper.  [default: that of RUN]")
@click.option("--work", default=STEPS, show_default=True, type=click.IntRange(1), help=WORK_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def recertify_command(
    run: Path,
    out: Path,
    alpha: float | None,
    ops: str | None,
    bound: str | None,
    work: int,
    as_json: bool,
) -> None:
    """Derive new radii from the votes of a run, without the model.

    Options that are omitted keep the value of RUN. Each certificate holds with its own confidence 1 - alpha. Decide
    on the settings before you look at the results: choosing the best of several runs invalidates the confidence.
    """
    from adaptdel.runs.rederive import recertify

    manifest = recertify(run, out, alpha=alpha, ops=ops, bound=bound, work=work)
    click.echo(summary(manifest, out, as_json=as_json))
