"""``adaptdel plan``: radii for votes and votes for radii, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.advice import (
    EXAMPLES,
    FEW_KEPT,
    noise_from_spec,
    plan,
    plan_lengths,
    short_texts,
)
from adaptdel.cli.options import threat_option, two_integers
from adaptdel.core.noise import Noise
from adaptdel.core.threat import Threat
from adaptdel.models.model_files import load_model, read_settings
from adaptdel.settings import CERTIFICATION
from adaptdel.tables import percent, text_table
from adaptdel.text.data import DATA, read_rows
from adaptdel.text.units import check_unit

_VERBS = {"del": "delete", "ins": "insert", "sub": "substitute"}


@click.command("plan", epilog="\b\nRates:\n  " + EXAMPLES.replace("\n", "\n  "))
@click.option("--length", type=int, help="Number of tokens (words) in the input.")
@click.option("--data", help="Data file instead of --length: lengths, kept tokens and radii for several rates.")
@click.option("--rate", metavar="RATE", help="Noise, such as adaptdel:p_min=0.9,k=23; see below.")
@click.option("--model", type=click.Path(path_type=Path), help="Saved model whose noise is used instead of --rate.")
@click.option("--unit", help="With --data: word, char, byte or chunk:SIZE.  [default: of --model, or word]")
@click.option("--text-column", default=DATA.text, show_default=True, help="With --data: column of the text.")
@click.option("--encoding", default=DATA.encoding, show_default=True, help="With --data: encoding of the file.")
@threat_option("all that the noise certifies")
@click.option("--votes", metavar="FOR/ALL", help="Votes for the answer and all votes, such as 3960/4000.")
@click.option(
    "--alpha",
    default=CERTIFICATION.alpha,
    show_default=True,
    type=float,
    help="Largest probability that a certificate is wrong.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def plan_command(
    length: int | None,
    data: str | None,
    rate: str | None,
    model: Path | None,
    unit: str | None,
    text_column: str,
    encoding: str,
    ops: Threat | None,
    votes: str | None,
    alpha: float,
    as_json: bool,
) -> None:
    """Show the radius that votes certify and the votes that each radius needs.

    For two classes. With --data, it shows how much several rates keep of the texts in a file, and their largest radii.
    No model is needed.
    """
    if rate is not None and model is not None:
        raise ValueError("give either --rate or --model, not both")
    noise, stored = None if rate is None else noise_from_spec(rate), None if model is None else read_settings(model)
    if stored is not None and (noise := stored.plan.copy_noise) is None:
        if any(value is not None for value in (length, data, unit, ops, votes)):
            raise ValueError(f"{model}: its radii follow from its weights, not from lengths: give --model alone")
        known = {**stored.parameters, **stored.options, "protection": stored.protection}
        click.echo(json.dumps(known, indent=2) if as_json else f"{model}: {load_model(str(model)).reaches()}")
        return
    if ops is not None and not ops.is_bounded:
        raise ValueError(f"--threat: no votes hold against {ops}: leave out padding and long")
    edits = None if ops is None else ops.ops
    if (length is None) == (data is None):
        raise ValueError("give either --length or --data")
    if data is not None:
        if votes is not None:
            raise ValueError("--votes needs --length instead of --data")
        chosen = check_unit(unit or (CERTIFICATION.unit if stored is None else stored.unit))
        lengths = [len(chosen.split(row.text)) for row in read_rows(data, text=text_column, encoding=encoding)]
        if not lengths:
            raise ValueError(f"{data}: holds no rows")
        plans = plan_lengths(lengths, None if noise is None else {rate or str(model): noise}, ops=edits, alpha=alpha)
        values = {"inputs": len(lengths), "mean_length": sum(lengths) / len(lengths), "rates": plans}
        click.echo(json.dumps(values, indent=2) if as_json else describe_lengths(values))
        if not as_json and (sentence := short_texts(chosen.kind, lengths)):
            click.echo(f"\n{sentence}")
        return
    if unit is not None:
        raise ValueError("--unit needs --data")
    if noise is None or length is None:
        raise ValueError("--rate or --model must be given with --length: --rate adaptdel:p_min=0.9,k=23")
    successes, trials = (None, CERTIFICATION.n_estimate) if votes is None else two_integers(votes, "/", "3960/4000")
    result = plan(
        length,
        noise,
        ops=edits or noise.certified_ops,
        successes=successes,
        trials=trials,
        alpha=alpha,
    )
    click.echo(json.dumps(result, indent=2) if as_json else describe(result, noise))


def describe_lengths(values: dict[str, Any]) -> str:
    """Lengths of a file, and a row for each noise."""
    plans = values["rates"]
    short, middle, long = plans[0]["lengths"]
    titles = ("rate", "kept", "largest radius", f"texts of which fewer than {FEW_KEPT} are kept")
    rows = [
        [
            entry["name"],
            " / ".join(f"{n:.3g}" for n in entry["kept"]),
            " / ".join(map(str, entry["radii"])),
            percent(entry["few"]),
        ]
        for entry in plans
    ]
    warned = [f"warning: {entry['name']}: {entry['warning']}" for entry in plans if entry["warning"]]
    return "\n".join([
        f"{values['inputs']} texts of {values['mean_length']:.4g} tokens on average; quartiles {short}, {middle} and "
        f"{long}.",
        "Kept tokens on average, and largest radii (unanimous votes, two classes), at these three lengths:",
        "",
        text_table(titles, rows).to_terminal(),
        *(["", *warned] if warned else []),
    ])  # fmt: skip


def describe(result: dict[str, Any], noise: Noise) -> str:
    """The plan in sentences and a table."""
    length, rate, largest = result["length"], result["rate"], result["largest_radius"]
    verbs = [_VERBS[op] for op in result["ops"]]
    lines = [
        f"Input: {length} tokens. The noise {'masks' if noise.masks_tokens else 'deletes'} {100 * rate:.4g}% of them; "
        f"the model reads {length * (1 - rate):.4g} on average.",
        f"Attacker: may {', '.join(verbs[:-1]) + ' or ' if verbs[1:] else ''}{verbs[-1]} tokens.",
    ]
    if (votes := result["votes"]) is not None:
        lines.append(
            f"{votes['successes']} of {result['trials']} votes: the probability of the answer is at least "
            f"{votes['lower']:.6f} (confidence {100 * (1 - result['alpha']):g}%)."
        )
        radius, edits = votes["radius"], "1 edit" if votes["radius"] == 1 else f"up to {votes['radius']} edits"
        certified = f"Certified radius {radius}: no attacker with {edits} can change the answer."
        known = {
            -1: "No certificate: the votes do not determine the answer, so the classifier abstains.",
            0: "Certified radius 0: a single edit might change the answer.",
        }
        lines.append(known.get(radius, certified))
    if not noise.changes_inputs:
        lines.append("Without noise, no radius above 0 can be certified.")
    elif result["unbounded"]:
        lines.append(f"Every radius up to {largest} can be certified: the noise removes almost all tokens.")
    else:
        lines.append(
            f"Largest certifiable radius: {largest}, with at least {result['unanimous_votes']} unanimous votes."
        )
    rows = []
    for row in result["radii"]:
        least = row["least_votes"]
        enough = ["more votes needed", None] if least is None else [least, percent(least / result["trials"], 2)]
        rows.append([row["radius"], f"{row['least_probability']:.8f}", *enough])
    titles = ("radius", "least probability", f"least votes of {result['trials']}", "share of votes")
    return "\n".join([*lines, "", text_table(titles, rows, text_columns=0).to_terminal()])
