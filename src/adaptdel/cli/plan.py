"""``adaptdel plan``: what a certificate can give, before any model exists."""

from __future__ import annotations

import json

import click

from adaptdel.core.checks import check_int
from adaptdel.planner import EXAMPLES, RadiusPlan, noise_from_spec, plan
from adaptdel.plots import check_figure_path, plot_plan
from adaptdel.settings import CERTIFICATION

_VERBS = {"del": "delete", "ins": "insert", "sub": "substitute"}


@click.command("plan", epilog="\b\nRates:\n  " + EXAMPLES.replace("\n", "\n  "))
@click.option("--length", required=True, type=int, help="Number of tokens (words) of the input.")
@click.option("--rate", required=True, metavar="RATE", help="The noise, such as adaptdel:p_min=0.9,k=23; see below.")
@click.option("--ops", default=None, help="What the attacker may do: edit (default), or some of del,ins,sub.")
@click.option("--votes", default=None, metavar="FOR/ALL", help="Votes for the answer out of all, such as 3960/4000.")
@click.option(
    "--alpha",
    default=CERTIFICATION.alpha,
    show_default=True,
    type=float,
    help="Probability that a certificate is wrong.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.option("--plot", "figure", default=None, metavar="FILE", help="Also draw p*(r) as PNG, SVG or PDF.")
def plan_command(
    length: int, rate: str, ops: str | None, votes: str | None, alpha: float, as_json: bool, figure: str | None
) -> None:
    """Radii for votes and votes for radii, at one length, for two classes."""
    noise = noise_from_spec(rate)
    if figure is not None:
        check_figure_path(figure)
    successes, trials = (None, CERTIFICATION.n_estimate) if votes is None else read_votes(votes)
    if ops is None:
        ops = ",".join(noise.certified_ops)
    made = plan(length, noise, ops=ops, successes=successes, trials=trials, alpha=alpha)
    if figure is not None:
        plot_plan(made, figure)
        click.echo(f"wrote {figure}", err=True)
    click.echo(json.dumps(made.to_dict(), indent=2) if as_json else describe(made))


def read_votes(text: str) -> tuple[int, int]:
    """Read "3960/4000"."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"votes must be two whole numbers such as 3960/4000, got {text!r}")
    successes, trials = (int(part) for part in parts)
    return successes, check_int("votes", trials, least=1)


def describe(made: RadiusPlan) -> str:
    """The plan in words and a table."""
    confidence = f"{100 * (1 - made.alpha):g}%"
    verbs = [_VERBS[op] for op in made.threat.ops]
    what = made.noise.verb
    lines = [
        f"An input of {made.length} tokens. The noise {what} {100 * made.rate:.4g}% of them, "
        f"so that the model sees {made.length * (1 - made.rate):.4g} on average.",
        f"The attacker may {', '.join(verbs[:-1]) + ' or ' if verbs[1:] else ''}{verbs[-1]} tokens.",
        "",
    ]
    if made.successes is not None and made.radius is not None:
        share = f"{made.successes} of {made.trials} votes: the answer has probability at least {made.lower:.6f}"
        lines.append(f"{share} (confidence {confidence}),")
        if made.radius < 0:
            lines.append("  which does not settle the answer: the classifier abstains.")
        elif made.radius == 0:
            lines.append("  certified radius 0: the answer is settled, but a single edit might change it.")
        else:
            edits = "1 edit" if made.radius == 1 else f"up to {made.radius} edits"
            lines.append(f"  certified radius {made.radius}: no attacker with {edits} can change the answer.")
    if not made.noise.changes_inputs:
        lines.append("Without noise nothing beyond the input itself can be certified.")
    elif made.unbounded:
        lines.append(f"No largest radius was found up to {made.largest}: the noise leaves next to nothing to edit.")
    else:
        lines.append(f"Largest reachable radius: {made.largest}, with {made.unanimous} or more unanimous votes.")
    lines += ["", f"radius   least probability   least votes of {made.trials}"]
    for r, p, v in zip(made.radii, made.least_probability, made.least_votes, strict=True):
        needed = f"{v:>8} ({100 * v / made.trials:.2f}%)" if v >= 0 else "       more votes needed"
        lines.append(f"{r:>6}   {p:>17.8f}   {needed}")
    return "\n".join(lines)
