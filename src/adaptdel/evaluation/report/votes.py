"""What the votes of a certificate say, in words."""

from __future__ import annotations

from adaptdel.certificate import Certificate
from adaptdel.noise import Masking

_FEW = 4  # classes that are named


def counted(made: Certificate) -> tuple[int, ...]:
    """The votes by class that the certificate rests on; enumerated copies if nothing was sampled."""
    if made.exact is not None:
        return tuple(map(sum, made.exact))
    return made.votes[-1] if made.votes else made.selection


def top_votes(made: Certificate) -> list[tuple[str, float, int]]:
    """The answer and its strongest rivals: label, share, votes."""
    counts = counted(made)
    total = max(sum(counts), 1)
    rivals = sorted((place for place in range(len(counts)) if place != made.answer), key=lambda place: -counts[place])
    places = [made.answer, *rivals[: _FEW - 1]] if counts else []
    return [(str(made.classes[place]), counts[place] / total, counts[place]) for place in places]


def vote_words(made: Certificate) -> str:
    """How the vote went."""
    counts = counted(made)
    parts = ", ".join(f"{votes:,} for {label}" for label, _, votes in top_votes(made))
    more = len(counts) - _FEW
    rest = f" and {more} more classes" if more > 0 else ""
    if made.exact is not None:
        return f"all {sum(counts):,} copies counted: {parts}{rest}"
    return f"{sum(counts):,} votes: {parts}{rest}, after {sum(made.selection):,} to choose the answer"


def radius_words(made: Certificate) -> str:
    """What is certified."""
    if made.abstained:
        return "not settled: abstained"
    if made.radius == 0:
        return "radius 0: settled, but one edit might change it"
    return f"radius {made.radius:,}: survives any {'edit' if made.radius == 1 else f'{made.radius:,} edits'}"


def bound_words(made: Certificate) -> str:
    """The probabilities that are proven, and the noise."""
    p1, p2 = made.bounds
    rival = "" if made.two else f", any other at most {p2:.4f}"
    if isinstance(made.noise, Masking):
        noise = f"{made.noise.masks(made.length):,} of {made.length:,} tokens masked"
    else:
        rate = made.noise.rate(made.length)  # type: ignore[attr-defined]
        noise = f"{100 * rate:.3g}% of tokens deleted, {made.length * (1 - rate):.3g} kept on average"
    return f"Probability of the answer at least {p1:.4f}{rival}. {noise}."
