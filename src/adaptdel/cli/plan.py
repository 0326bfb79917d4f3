"""``adaptdel plan``: radii for votes and votes for radii, without a model."""

from __future__ import annotations

import json

import click

from adaptdel.core.checks import check_int
from adaptdel.planner import EXAMPLES, RadiusPlan, noise_from_spec, plan
from adaptdel.plots import check_figure_path, plot_plan
from adaptdel.settings import CERTIFICATION
from adaptdel.tables import percent, text_table

_VERBS = {"del": "delete", "ins": "insert", "sub": "substitute"}


@click.command("plan", epilog="\b\nRates:\n  " + EXAMPLES.replace("\n", "\n  "))
@click.option("--length", required=True, type=int, help="Number of tokens (words) in the input.")
@click.option("--rate", required=True, metavar="RATE", help="Noise, such as adaptdel:p_min=0.9,k=23; see below.")
@click.option(
    "--ops",
    default=None,
    help="Operations of the attacker: edit, or some of del,ins,sub.  [default: all that the noise certifies]",
)
@click.option("--votes", default=None, metavar="FOR/ALL", help="Votes for the answer and all votes, such as 3960/4000.")
@click.option(
    "--alpha",
    default=CERTIFICATION.alpha,
    show_default=True,
    type=float,
    help="Largest probability that a certificate is wrong.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--plot", "figure", default=None, metavar="FILE", help="Also draw p*(r) to a PNG, SVG or PDF file.")
def plan_command(
    length: int, rate: str, ops: str | None, votes: str | None, alpha: float, as_json: bool, figure: str | None
) -> None:
    """Show which radius votes certify, and how many votes each radius needs, for two classes."""
    noise = noise_from_spec(rate)
    if figure is not None:
        check_figure_path(figure)
    successes, trials = (None, CERTIFICATION.n_estimate) if votes is None else read_votes(votes)
    if ops is None:
        ops = ",".join(noise.certified_ops)
    result = plan(length, noise, ops=ops, successes=successes, trials=trials, alpha=alpha)
    if figure is not None:
        plot_plan(result, figure)
        click.echo(f"wrote {figure}", err=True)
    click.echo(json.dumps(result.to_dict(), indent=2) if as_json else describe(result))


def read_votes(text: str) -> tuple[int, int]:
    """Read "3960/4000"."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"votes must be two whole numbers such as 3960/4000, got {text!r}")
    successes, trials = (int(part) for part in parts)
    return successes, check_int("votes", trials, least=1)


def describe(result: RadiusPlan) -> str:
    """The plan in sentences and a table."""
    verbs = [_VERBS[op] for op in result.threat.ops]
    lines = [
        f"Input: {result.length} tokens. The noise {result.noise.verb} {100 * result.rate:.4g}% of them; the model "
        f"reads {result.length * (1 - result.rate):.4g} on average.",
        f"Attacker: may {', '.join(verbs[:-1]) + ' or ' if verbs[1:] else ''}{verbs[-1]} tokens.",
        *_votes(result),
    ]
    if not result.noise.changes_inputs:
        lines.append("Without noise, no radius above 0 can be certified.")
    elif result.unbounded:
        lines.append(f"Every radius up to {result.largest} can be certified: the noise removes almost all tokens.")
    else:
        lines.append(f"Largest certifiable radius: {result.largest}, with at least {result.unanimous} unanimous votes.")
    rows = [
        [r, f"{p:.8f}", *([v, percent(v / result.trials, 2)] if v >= 0 else ["more votes needed", None])]
        for r, p, v in zip(result.radii, result.least_probability, result.least_votes, strict=True)
    ]
    titles = ("radius", "least probability", f"least votes of {result.trials}", "share of votes")
    return "\n".join([*lines, "", text_table(titles, rows, text_columns=0).to_terminal()])


def _votes(result: RadiusPlan) -> list[str]:
    """What the given votes certify."""
    if result.successes is None or result.radius is None:
        return []
    bound = (
        f"{result.successes} of {result.trials} votes: the probability of the answer is at least {result.lower:.6f} "
        f"(confidence {100 * (1 - result.alpha):g}%)."
    )
    if result.radius < 0:
        return [bound, "No certificate: the votes do not determine the answer, so the classifier abstains."]
    if result.radius == 0:
        return [bound, "Certified radius 0: a single edit might change the answer."]
    edits = "1 edit" if result.radius == 1 else f"up to {result.radius} edits"
    return [bound, f"Certified radius {result.radius}: no attacker with {edits} can change the answer."]
