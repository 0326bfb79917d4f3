"""``adaptdel recertify``: new radii from the votes of a run."""

from __future__ import annotations

from pathlib import Path

import click

from adaptdel.cli.certify import summary
from adaptdel.cli.verify import WORK_HELP
from adaptdel.core.checks import STEPS


@click.command("recertify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder of the new run.")
@click.option("--alpha", default=None, type=float, help="Probability that a certificate is wrong.")
@click.option("--ops", default=None, help="What the attacker may do: edit, or some of del,ins,sub.")
@click.option("--bound", default=None, help="tight or paper.")
@click.option("--sign", type=click.Path(path_type=Path), help="Sign the new run with this private key (PEM).")
@click.option("--work", default=STEPS, show_default=True, type=click.IntRange(1), help=WORK_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def recertify_command(
    run: Path,
    out: Path,
    alpha: float | None,
    ops: str | None,
    bound: str | None,
    sign: Path | None,
    work: int,
    as_json: bool,
) -> None:
    """Derive new radii from the votes in the folder RUN, without the model.

    What is not given stays as it was. Each certificate holds at its own error level; which of several runs is used must
    not depend on what they show.
    """
    from adaptdel.runs.certify import recertify
    from adaptdel.runs.signature import read_signing_key

    key = None if sign is None else read_signing_key(sign)
    manifest = recertify(run, out, alpha=alpha, ops=ops, bound=bound, work=work, key=key)
    click.echo(summary(manifest, out, as_json=as_json))
