"""What a report is made of, before it becomes a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptdel.certificate import Certificate
from adaptdel.evaluation import figures
from adaptdel.evaluation.entries import Entry
from adaptdel.evaluation.figures import Figure
from adaptdel.evaluation.report.sample import Sampled, clip
from adaptdel.evaluation.report.words import plural, token
from adaptdel.evaluation.tables import Table


@dataclass(frozen=True)
class Drawing:
    """A figure that was written: its name, its title, what it shows, and its SVG."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """Everything that a report shows.

    Attributes:
        title: its title.
        generator: which program wrote it.
        entries: the runs.
        summary: one paragraph.
        notes: what to be careful about.
        tables: the tables.
        settings: how the runs were made.
        csv_names: the tables that are also written as CSV.
        drawings: the figures.
        sampled: inputs with their certificates.
        sample_words: how they were chosen.
        sample_note: why texts are missing, if they are.
        values: all numbers, for programs.
    """

    title: str
    generator: str
    entries: Sequence[Entry]
    summary: str
    notes: Sequence[str]
    tables: Sequence[Table]
    settings: Table
    csv_names: Sequence[str]
    drawings: Sequence[Drawing]
    sampled: Sequence[Sampled]
    sample_words: str
    sample_note: str | None
    values: dict[str, Any]


def typical(entries: Sequence[Entry]) -> str | None:
    """The input whose frontier is drawn: of the upper quartile of radius among those certified, then of mean length.

    In the first run that certifies more than radius 0; an input that all runs hold, if there is one.
    """
    for entry in entries:
        found = entry.outcomes
        useful = found.certified & (found.radius >= 1)
        if useful.any():
            everywhere = useful & [all(name in other.rows for other in entries) for name in found.ids]
            chosen = found.take(everywhere if everywhere.any() else useful)
            off = np.abs(chosen.radius - np.quantile(chosen.radius, 0.75))
            far = np.abs(chosen.length - entry.measures.mean_length)
            return str(chosen.ids[np.lexsort((far, off))[0]])
    return None


def draw(entries: Sequence[Entry]) -> list[tuple[str, str, str, Figure]]:
    """The figures: name, title, what it shows, and the figure."""
    kind = token(entries[0])
    name = typical(entries)
    found = {entry.name: entry.certificates([name]) for entry in entries} if name is not None else {}
    certificates = {run: made[name] for run, made in found.items() if name in made}
    cardinality = (
        "A point (c, a) on a curve: a share a of the inputs is answered rightly with a certified region of at least "
        "10ᶜ inputs. Curves end where few inputs are left."
    )
    radius = "A point (r, a) on a curve: a share a of the inputs is answered rightly and survives any r edits."
    quartiles = (
        "From the shortest quarter of the inputs (top) to the longest; on the right the quantile function of the "
        f"lengths of {entries[0].name}, with dashed lines at the quartiles."
    )
    rates = f"What share of its {kind}s an input loses, and how many the model sees on average, at each length."
    costs = "How many votes the inputs took. Clear inputs need few; the last bar holds those that took most."
    edits = _frontier_words(certificates, name)
    return [
        ("certified-cardinality", "Certified accuracy against the size of the certified region", cardinality,
         figures.certified_by_cardinality(entries)),
        ("certified-radius", "Certified accuracy against the radius", radius, figures.certified_by_radius(entries)),
        ("quartiles", "Certified accuracy by quartile of length", quartiles, figures.quartile_panels(entries)),
        ("rates", "Rate and kept length", rates, figures.rates(entries)),
        ("costs", "What a certificate costs", costs, figures.costs(entries)),
        ("frontier", "Which edits are certified together", edits, figures.frontier(entries, certificates)),
    ]  # fmt: skip


def _frontier_words(certificates: dict[str, Certificate], name: str | None) -> str:
    if name is None or not certificates:
        return "No input is certified at radius 1 or more, so there is nothing to draw."
    length = next(iter(certificates.values())).length
    radii = "; ".join(
        f"{run} {'abstains' if made.abstained else f'has radius {made.radius}'}" for run, made in certificates.items()
    )
    return (
        f"For an input at the upper quartile of radius (id {clip(name, 40)}, {plural(length, 'token')}): every mixture "
        "of edits on or under a curve is certified, so many deletions with so many insertions (left), substitutions "
        f"with insertions (right). {radii}."
    )
