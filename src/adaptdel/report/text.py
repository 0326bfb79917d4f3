"""The sentences of a report: what was measured, how to read it, and its limits."""

from __future__ import annotations

from collections.abc import Sequence

from adaptdel.certification.certificate import Certificate
from adaptdel.core.cardinality import ROBERTA_VOCABULARY
from adaptdel.report.entries import Entry
from adaptdel.report.measures import Difference
from adaptdel.report.tables import Differences, number, percent, signed

_FEW_VOTES = 4  # classes that are named


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
    places = [made.answer, *rivals[: _FEW_VOTES - 1]] if counts else []
    return [(str(made.classes[place]), counts[place] / total, counts[place]) for place in places]


def vote_words(made: Certificate) -> str:
    """How the vote went."""
    counts = counted(made)
    parts = ", ".join(f"{votes:,} for {label}" for label, _, votes in top_votes(made))
    more = len(counts) - _FEW_VOTES
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
    rival = "" if made.is_binary else f", any other at most {p2:.4f}"
    share = made.noise.share_removed(made.length)
    if made.noise.masks_tokens:
        noise = f"{round(share * made.length):,} of {made.length:,} tokens masked"
    else:
        noise = f"{100 * share:.3g}% of tokens deleted, {made.length * (1 - share):.3g} kept on average"
    return f"Probability of the answer at least {p1:.4f}{rival}. {noise}."


TOKENS = {"word": "word", "char": "character", "byte": "byte", "chunk": "chunk", "labelled": "chunk"}
_DONE = {"del": "deleted", "ins": "inserted", "sub": "substituted"}
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}
_FEW = 3  # other runs that the summary speaks of


def token(entry: Entry) -> str:
    """What the run calls a token."""
    return TOKENS.get((entry.run.manifest["unit"] or {}).get("kind", ""), "token")


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(count: float, noun: str) -> str:
    """A number of things.

    >>> plural(1, "edit"), plural(2.5, "edit")
    ('1 edit', '2.5 edits')
    """
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")


def attacker(entry: Entry) -> str:
    """What the attacker does to tokens."""
    return f"{token(entry)}s {listed([_DONE[op] for op in entry.ops], 'or')}"


def summary(entries: Sequence[Entry], found: Differences, baseline: Entry) -> str:
    """One paragraph: what the best run gives, and how the others stand to the baseline."""
    return " ".join(filter(None, [*_lead(leading(entries)), *_others(found, entries, baseline)]))


def leading(entries: Sequence[Entry]) -> Entry:
    """The run that the summary speaks of: against the most able attacker, that with the largest mean radius."""
    return max(entries, key=lambda entry: (entry.measures.inputs > 0, len(entry.ops), entry.measures.mean_radius))


def _lead(entry: Entry) -> list[str]:
    m, kind = entry.measures, token(entry)
    if not m.inputs:
        return [f"{entry.name} holds no certified inputs."]
    size = f"{plural(m.inputs, 'input')} with a median of {plural(round(m.median_length), kind)}"
    if entry.outcomes.labelled:
        right = round(m.clean_accuracy * m.inputs)
        start = f"Of {size}, {entry.name} answers {right:,} rightly ({percent(m.clean_accuracy)})."
        wrong = f"It is settled but wrong on {m.wrong:,} and abstains on {m.abstained:,}."
    else:
        start = f"{entry.name} answers {size}; whether rightly is not known, as the data has no labels."
        wrong = f"It abstains on {m.abstained:,}."
    return [start, _survives(entry), wrong, _confidence(entry)]


def _survives(entry: Entry) -> str:
    m = entry.measures
    what = "answered rightly and survive" if entry.outcomes.labelled else "settled and survive"
    if m.certified + m.certified_zero == 0:
        return "No answer is certified."
    if m.certified == 0:
        return "Answers are certified at radius 0 only: they are settled, but a single edit might change any of them."
    middle = int(m.median_certified_radius)
    any_edits = "any single edit" if middle == 1 else f"any {middle:,} edits" if middle else "no edit for certain"
    return (
        f"The median certified answer survives {any_edits} ({attacker(entry)}, anywhere in the input); "
        f"{percent(m.certified / m.inputs)} of all inputs are {what} at least one."
    )


def _confidence(entry: Entry) -> str:
    alpha = entry.run.manifest.get("alpha")
    if not alpha:
        return ""
    return f"Each certificate holds with a confidence of {100 * (1 - alpha):g}%."


def _others(found: Differences, entries: Sequence[Entry], baseline: Entry) -> list[str]:
    """The mean radii of the other runs beside that of the baseline, where they have inputs in common."""
    noisy = [entry for entry in entries if entry.run.manifest["noise"]["kind"] != "none"]
    common = [entry for entry in noisy if found.get(entry.name, (0, {}))[0]]
    if not common:
        return []
    parts = [_beside(entry, baseline, found[entry.name][1]["mean_radius"]) for entry in common[:_FEW]]
    start = f"On the same inputs, the mean radius of {baseline.name} is {number(baseline.measures.mean_radius)}"
    more = [f"The tables compare {plural(len(common) - _FEW, 'more run')}."] if len(common) > _FEW else []
    return [f"{start}; {listed(parts)}.", *more]


def _beside(entry: Entry, baseline: Entry, radius: Difference) -> str:
    name = f"that of {entry.name}"
    if set(entry.ops) < set(baseline.ops):
        name += f", against {attacker(entry)} only,"
    if signed(radius.value) == "0.00":
        return f"{name} is the same"
    interval = f" (95% interval {signed(radius.low)} to {signed(radius.high)})" if radius.low == radius.low else ""
    return f"{name} is {number(abs(radius.value))} {'larger' if radius.value > 0 else 'smaller'}{interval}"


def notes(entries: Sequence[Entry], found: Differences, baseline: Entry) -> list[str]:
    """What a reader has to know before comparing numbers."""
    made = []
    for entry in entries:
        if not entry.run.finished:
            made.append(
                f"{entry.name} is not finished: the report shows the {len(entry.rows):,} inputs certified so far."
            )
        if entry.outcomes.problems:
            made.append(
                f"{entry.name}: {plural(entry.outcomes.problems, 'row')} could not be certified and are left out."
            )
        if entry.outcomes.unlabelled:
            made.append(f"{entry.name}: {plural(entry.outcomes.unlabelled, 'row')} without a label are left out.")
        if not entry.outcomes.labelled:
            rest = "every settled answer counts as right, and it is not compared with runs that have them"
            made.append(f"{entry.name} has no labels: {rest}.")
        common = found.get(entry.name, (len(entry.outcomes), {}))[0]
        alike = entry.outcomes.labelled == baseline.outcomes.labelled
        if alike and common < max(len(entry.outcomes), len(baseline.outcomes)):
            made.append(
                f"{entry.name} shares {plural(common, 'input')} with {baseline.name}; differences are of these."
            )
    return made + _unlike(entries)


def _unlike(entries: Sequence[Entry]) -> list[str]:
    made = []
    attackers: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        attackers.setdefault(entry.ops, []).append(entry.name)
    if len(attackers) > 1:
        groups = "; ".join(
            f"{listed([_NOUNS[op] for op in ops])} for {listed(names)}" for ops, names in attackers.items()
        )
        made.append(f"The runs certify against different attackers ({groups}): equal radii do not mean the same.")
    for key, noun in (("alpha", "error levels"), ("bound", "bounds"), ("unit", "units")):
        values = {str(entry.run.manifest.get(key)) for entry in entries}
        if len(values) > 1:
            made.append(f"The runs have different {noun} ({listed(sorted(values))}).")
    return made


def guide() -> list[tuple[str, str]]:
    """How to read a report: terms and what they mean."""
    return [
        ("Radius",
         "How many edits an answer is proven to survive: no attacker who makes up to that many, anywhere in the input, "
         "can change it. It says that the answer stays, not that it is right."),
        ("Certified accuracy",
         "The share of all inputs that are answered rightly and proven to survive so much. Where a curve lies higher, "
         "more inputs are safe."),
        ("Size of the certified region",
         "How many different inputs the radius covers, as a power of ten, with "
         f"{ROBERTA_VOCABULARY:,} different tokens. It makes attackers comparable who may do different things. For "
         "edits it is a lower bound."),
        ("Abstained, radius 0, wrong",
         "Abstained: the votes do not settle the answer. Radius 0: settled, but one edit might change it. Wrong: "
         "settled on another answer than the truth. All three count with 0 in means and medians."),
        ("Wasserstein",
         "How unlike the distributions of radius and of length are, each brought to mean 0 and standard deviation 1. "
         "Near 0, long inputs have large radii in proportion."),
        ("Intervals",
         "Of the paired bootstrap: what other inputs from the same source would have given in 95 of 100 cases. One "
         "that leaves out 0 is a difference that is hardly due to the choice of inputs."),
    ]  # fmt: skip
