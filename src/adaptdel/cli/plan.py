"""``adaptdel plan``: radii for votes and votes for radii, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

import click

from adaptdel.advice import (
    EXAMPLES,
    FEW_KEPT,
    LengthPlan,
    RadiusPlan,
    is_short,
    noise_from_spec,
    plan,
    plan_lengths,
    short_texts,
)
from adaptdel.cli.options import two_integers
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.model_files import load_model, model_kind, read_noise
from adaptdel.settings import CERTIFICATION
from adaptdel.tables import number, percent, text_table
from adaptdel.text.data import DATA, read_rows
from adaptdel.text.units import check_unit
from adaptdel.training.training import exact_reach

_VERBS = {"del": "delete", "ins": "insert", "sub": "substitute"}


@click.command("plan", epilog="\b\nRates:\n  " + EXAMPLES.replace("\n", "\n  "))
@click.option("--length", type=int, help="Number of tokens (words) in the input.")
@click.option("--data", help="Data file instead of --length: lengths, kept tokens and radii for several rates.")
@click.option("--rate", metavar="RATE", help="Noise, such as adaptdel:p_min=0.9,k=23; see below.")
@click.option("--model", type=click.Path(path_type=Path), help="Saved model whose noise is used instead of --rate.")
@click.option("--unit", help="With --data: word, char, byte or chunk:SIZE.  [default: of --model, or word]")
@click.option("--text-column", default=DATA.text, show_default=True, help="With --data: column of the text.")
@click.option("--encoding", default=DATA.encoding, show_default=True, help="With --data: encoding of the file.")
@click.option(
    "--ops", help="Operations of the attacker: edit, or some of del,ins,sub.  [default: all that the noise certifies]"
)
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
    ops: str | None,
    votes: str | None,
    alpha: float,
    as_json: bool,
) -> None:
    """Show which radius votes certify, and the votes for each radius.

    For two classes. With --data: what is kept of the texts of a file, and the largest radii, for several rates. No
    model is needed.
    """
    if model is not None and model_kind(model) == "additive":
        if any(value is not None for value in (length, data, rate, unit, ops, votes)):
            raise ValueError(f"{model}: the radii of an additive model follow from its weights: give --model alone")
        loaded = load_model(model)
        figures = {"front": loaded.front_, **loaded.base_classifier().options()}
        figures["protection"] = getattr(loaded, "protection_", None)
        click.echo(json.dumps(figures, indent=2) if as_json else f"{model}: {_reachable(loaded)}")
        return
    if (length is None) == (data is None):
        raise ValueError("give either --length or --data")
    if rate is not None and model is not None:
        raise ValueError("give either --rate or --model, not both")
    stored = None if model is None else read_noise(model)
    noise = stored[0] if stored is not None else None if rate is None else noise_from_spec(rate)
    if data is not None:
        if votes is not None:
            raise ValueError("--votes needs --length instead of --data")
        described = check_unit(unit or (stored[1] if stored is not None else CERTIFICATION.unit))
        rows = list(read_rows(data, text=text_column, encoding=encoding))
        lengths = [len(described.split(row.text)) for row in rows]
        if not lengths:
            raise ValueError(f"{data}: holds no rows")
        noises = None if noise is None else {rate or str(model): noise}
        plans = plan_lengths(lengths, noises, ops=ops, alpha=alpha)
        values = {"inputs": len(lengths), "mean_length": sum(lengths) / len(lengths)}
        listed = values | {"rates": [entry.to_dict() for entry in plans]}
        click.echo(json.dumps(listed, indent=2) if as_json else describe_lengths(lengths, plans))
        if is_short(described.kind, lengths) and not as_json:
            labelled = [(row.text, row.label) for row in rows if row.label is not None]
            exact = exact_reach([text for text, _ in labelled], [label for _, label in labelled], described.kind)
            click.echo(f"\n{short_texts(lengths, exact)}")
        return
    if unit is not None:
        raise ValueError("--unit needs --data")
    if noise is None or length is None:
        raise ValueError("--rate or --model must be given with --length: --rate adaptdel:p_min=0.9,k=23")
    successes, trials = (None, CERTIFICATION.n_estimate) if votes is None else two_integers(votes, "/", "3960/4000")
    if ops is None:
        ops = ",".join(noise.certified_ops)
    result = plan(length, noise, ops=ops, successes=successes, trials=trials, alpha=alpha)
    click.echo(json.dumps(result.to_dict(), indent=2) if as_json else describe(result))


def _reachable(model: AdditiveClassifier) -> str:
    """What the certificates of an additive model reach, in a sentence: they depend on its weights, not on lengths."""
    front = model.front_
    if (known := getattr(model, "protection_", None)) is not None:
        return f"exact certificates need no votes. On held-out texts: {known['sentence']}"
    if not front:
        return "exact certificates need no votes: certify texts to see their radii"
    points = [front[model.base_classifier().options()["point"]], max(front, key=itemgetter("mean_radius"))]
    chosen, largest = (
        f"a mean radius of {number(point['mean_radius'])} (median {number(point['median_radius'], 1)}) at "
        f"{percent(point['accuracy'])} accuracy"
        for point in points
    )
    return (
        f"exact certificates need no votes. On held-out texts: {chosen}; at most, after adaptdel calibrate, {largest}."
    )


def describe_lengths(lengths: Sequence[int], plans: Sequence[LengthPlan]) -> str:
    """Lengths of a file, and a row for each noise."""
    short, middle, long = plans[0].lengths
    mean = sum(lengths) / len(lengths)
    lines = [
        f"{len(lengths)} texts of {mean:.4g} tokens on average; quartiles {short}, {middle} and {long}.",
        "Kept tokens on average, and largest radii (unanimous votes, two classes), at these three lengths:",
    ]
    titles = ("rate", "kept", "largest radius", f"texts of which fewer than {FEW_KEPT} are kept")
    rows = [
        [entry.name, " / ".join(f"{n:.3g}" for n in entry.kept), " / ".join(map(str, entry.radii)), percent(entry.few)]
        for entry in plans
    ]
    lines += ["", text_table(titles, rows).to_terminal()]
    warned = [f"warning: {entry.name}: {entry.warning}" for entry in plans if entry.warning]
    lines += ["", *warned] if warned else []
    return "\n".join(lines)


def describe(result: RadiusPlan) -> str:
    """The plan in sentences and a table."""
    verbs = [_VERBS[op] for op in result.threat.ops]
    removes = "masks" if result.noise.masks_tokens else "deletes"
    lines = [
        f"Input: {result.length} tokens. The noise {removes} {100 * result.rate:.4g}% of them; the model "
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
