"""``adaptdel audit``: attack the certificates of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.options import chosen_settings, described, list_settings_option, set_option
from adaptdel.settings import AUDIT

NAMED = ("inputs", "seed")


@click.command("audit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the model.  [default: that of RUN]")
@click.option("--data", metavar="FILE", help="The data file, if it has moved since RUN read it.")
@click.option("--certificates", default=1000, show_default=True, help="Number of certificates to draw at random.")
@click.option("--seed", default=1, show_default=True, help="Seed of the sample and of the fresh votes.")
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
    **sources: Any,
) -> None:
    """Look for certificates of RUN that do not hold.

    Fresh votes check the bounds on probabilities, and the adaptive attack looks for texts inside the certified radii
    that the model answers otherwise. Exact certificates are attacked with random edits and the worst ones that the
    model knows, and the closest text with another answer shows how tight each is. The exit status is 1 if there are
    more violations than alpha allows, or more votes for the answers than fresh votes lead one to expect.
    """
    from adaptdel.attacks.audit import audit_run

    (limits,) = chosen_settings(settings, vars(AUDIT))
    limits = {"inputs": certificates, "seed": seed, **limits}
    report = audit_run(run, settings=replace(AUDIT, **limits), **sources, progress="log")
    values = report.to_dict()
    if as_json:
        click.echo(json.dumps({"run": str(run), **values}, indent=2, ensure_ascii=False))
        context.exit(1 if report.failed else 0)
    for example in values["examples"]:
        click.echo(f"{example['name']}: {example['wrong']}")
    for violation in (*report.certain, *report.violations)[:1]:
        if violation.tokens is not None:
            click.echo(f"its text: {json.dumps(' '.join(map(str, violation.tokens)), ensure_ascii=False)}")
    click.echo(_exact(values) if values["tightness"] else _from_votes(values))
    click.echo("the audit failed: the certificates do not hold" if report.failed else "the audit is passed")
    context.exit(1 if report.failed else 0)


def _from_votes(values: dict[str, Any]) -> str:
    lines = [
        f"{values['certificates']} certificates audited, {values['abstained']} of them abstentions: "
        f"{values['violations']} violations; alpha allows {values['allowed']:.1f} on average"
    ]
    if deviation := values["excess_votes_deviation"]:
        excess = f"{values['excess_votes']:+.0f} (standard deviation {deviation:.0f})"
        lines.append(f"votes for the answers beyond those expected from fresh votes: {excess}")
    lines += [f"p = {values['p_value']:.3g}", f"{values['attacked_texts']} neighbours compared by votes"]
    return "\n".join(lines)


def _exact(values: dict[str, Any]) -> str:
    tightness = values["tightness"]
    lines = [
        f"{values['certificates']} exact certificates audited with {values['attacked_texts']} texts: "
        f"{values['violations']} violations; none is allowed",
        f"{tightness['tight']} are tight: a text one edit beyond the radius gets another answer, the gap is 0",
    ]
    if tightness["covering"]:
        lines.append(f"{tightness['covering']} cover every text that the operations reach")
    if tightness["wider"]:
        lines.append(
            f"{tightness['wider']} have the closest known text with another answer further out: the gap is "
            f"{tightness['median_wider_gap']:g} in the median, at most {tightness['largest_gap']}"
        )
    if tightness["unknown"]:
        lines.append(f"{tightness['unknown']} have no known text with another answer")
    return "\n".join(lines)
