"""``adaptdel audit``: attack the certificates of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.options import changed, described, list_settings_option, set_option
from adaptdel.settings import AUDIT

NAMED = ("inputs", "seed")


@click.command("audit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--model", default=None, type=click.Path(path_type=Path), help="Folder of the model.  [default: that of RUN]"
)
@click.option("--data", default=None, metavar="FILE", help="The data file, if it is not where RUN read it.")
@click.option("--vocabulary", default=None, metavar="FILE", help="Texts whose words are written.  [default: the data]")
@click.option(
    "--certificates", default=1000, show_default=True, type=int, help="Number of certificates, drawn at random."
)
@click.option("--workers", default=1, show_default=True, type=int, help="Number of processes. Each loads the model.")
@click.option("--seed", default=1, show_default=True, type=int, help="Seed of the sample and of the fresh votes.")
@set_option
@list_settings_option(lambda: described(AUDIT, NAMED))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def audit_command(
    context: click.Context,
    /,
    run: Path,
    certificates: int,
    seed: int,
    settings: tuple[str, ...],
    as_json: bool,
    **job: Any,
) -> None:
    """Look for certificates of RUN that do not hold.

    Fresh votes check the bounds on probabilities, and the adaptive attack looks for texts inside the certified radii
    that the model answers otherwise. The exit status is 1 if there are more violations than alpha allows, or more votes
    for the answers than fresh votes lead one to expect.
    """
    from adaptdel.attacks.audit_run import AuditJob, audit_run

    limits = changed(replace(AUDIT, inputs=certificates, seed=seed), settings)
    report = audit_run(AuditJob(run, settings=limits, **job), progress="log")
    values = report.to_dict()
    if as_json:
        click.echo(json.dumps({"run": str(run), **values}, indent=2, ensure_ascii=False))
        context.exit(1 if report.failed else 0)
    for example in values["examples"]:
        click.echo(f"{example['name']}: {example['wrong']}")
    for violation in (*report.certain, *report.violations)[:1]:
        if violation.tokens is not None:
            click.echo(f"its text: {json.dumps(' '.join(map(str, violation.tokens)), ensure_ascii=False)}")
    click.echo(
        f"{values['certificates']} certificates audited, {values['abstained']} of them abstentions: "
        f"{values['violations']} violations; alpha allows {values['allowed']:.1f} on average"
    )
    if report.variance:
        click.echo(
            f"votes for the answers beyond those expected from fresh votes: {report.excess:+.0f} "
            f"(standard deviation {report.variance**0.5:.0f})"
        )
    click.echo(f"p = {report.p_value:.3g}")
    click.echo(f"{values['attacked_texts']} neighbours compared by votes")
    click.echo("the audit failed: the certificates do not hold" if report.failed else "the audit is passed")
    context.exit(1 if report.failed else 0)
