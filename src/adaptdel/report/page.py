"""A report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.report import figures
from adaptdel.report.entries import COLOURS, Entry
from adaptdel.report.figures import GRID, INK, MUTED, Figure, inline_svg
from adaptdel.report.samples import Sampled, Shown, clip
from adaptdel.report.tables import Table, markdown_text
from adaptdel.report.text import bound_words, guide, plural, radius_words, token, top_votes, vote_words


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


def markdown(report: Report) -> str:
    """The whole report; what comes from data is escaped, texts stand in fences."""
    blocks = [
        f"# {markdown_text(report.title)}",
        markdown_text(report.summary),
        *(f"> **Note.** {markdown_text(note)}" for note in report.notes),
        "## Results",
        *(table.to_markdown() for table in report.tables),
        "## How to read this",
        "\n".join(f"- **{markdown_text(term)}.** {markdown_text(meaning)}" for term, meaning in guide()),
        "## Figures",
    ]
    for drawing in report.drawings:
        blocks += [
            f"![{markdown_text(drawing.title)}](figures/{drawing.name}.png)",
            f"**{markdown_text(drawing.title)}.** {markdown_text(drawing.caption)} "
            f"([SVG](figures/{drawing.name}.svg), [PDF](figures/{drawing.name}.pdf))",
        ]
    blocks += ["## A sample of the inputs", markdown_text(report.sample_words)]
    blocks += [f"> {markdown_text(report.sample_note)}"] if report.sample_note else []
    blocks += [block for one in report.sampled for block in _input_markdown(one)]
    blocks += ["## How the runs were made", report.settings.to_markdown()]
    return "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"


def _input_markdown(one: Sampled) -> list[str]:
    truth = "" if one.truth is None else f", truth {markdown_text(str(one.truth))}"
    blocks = [f"### {markdown_text(one.id)}: row {one.row:,}, {one.length:,} tokens{truth}"]
    if one.text is not None:
        blocks.append(fenced(one.text))
    for shown in one.shown:
        made = shown.certificate
        verdict = {True: " (right)", False: " (wrong)", None: ""}[shown.right]
        words = f"answer {made.label}{verdict}; {radius_words(made)}. {vote_words(made)}. {bound_words(made)}"
        blocks.append(f"**{markdown_text(shown.entry.name)}**: {markdown_text(words)}")
        if shown.copies:
            blocks.append(fenced("\n".join(" ".join(text.split()) or "(nothing)" for _, text in shown.copies)))
    return blocks


def fenced(text: str) -> str:
    """Text in a fence that it cannot close.

    >>> fenced("a ``` b").splitlines()[0]
    '````text'
    """
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.strip(chr(10))}\n{fence}"


_KINDS = (
    ("all", "all inputs"),
    ("wrong", "wrong somewhere"),
    ("abstained", "abstained somewhere"),
    ("zero", "radius 0"),
)


def page(report: Report) -> str:
    """The whole page; whatever comes from data is escaped."""
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    parts = (("tables", "Results"), ("guide", "How to read this"), ("figures", "Figures"), ("sample", "Inputs"),
             ("settings", "Settings"))  # fmt: skip
    return Template(_resource("page.html")).substitute(
        policy=f"sha256-{digest}",
        generator=escape(report.generator),
        title=escape(report.title),
        style=_resource("page.css") + _colours(report.entries),
        summary=escape(report.summary),
        legend=_legend(report.entries),
        notes=_notes(report.notes),
        links=" ".join(f'<a href="#{name}">{title}</a>' for name, title in parts),
        tables="\n".join(table.to_html() for table in report.tables),
        open=" open",
        guide="<dl>" + "".join(f"<div><dt>{escape(t)}</dt><dd>{escape(d)}</dd></div>" for t, d in guide()) + "</dl>",
        figures="\n".join(_figure(drawing, report.entries) for drawing in report.drawings),
        sample=_sample(report),
        settings=report.settings.to_html(),
        csv=", ".join(f'<a href="tables/{name}.csv">{name}</a>' for name in report.csv_names),
        script=script,
    )


def _resource(name: str) -> str:
    return files("adaptdel.report").joinpath(name).read_text(encoding="utf-8")


def _colours(entries: Sequence[Entry]) -> str:
    """The colours of the runs on light and on dark ground."""
    pairs = {entry.number % len(COLOURS): COLOURS[entry.number % len(COLOURS)] for entry in entries}
    light, dark = (" ".join(f"--run-{n}: {pair[side]};" for n, pair in pairs.items()) for side in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def run_colour(entry: Entry) -> str:
    """The colour of a run, as the page names it."""
    return f"var(--run-{entry.number % len(COLOURS)})"


def _legend(entries: Sequence[Entry]) -> str:
    items = "".join(f"<li>{_swatch(entry)}{escape(entry.name)}</li>" for entry in entries)
    return f'<ul class="legend" aria-label="The runs and their colours">{items}</ul>'


def _swatch(entry: Entry) -> str:
    return f'<span class="swatch" style="background: {run_colour(entry)}"></span>'


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _figure(drawing: Drawing, entries: Sequence[Entry]) -> str:
    colours = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", "#ffffff": "none"}
    colours |= {entry.colour: run_colour(entry) for entry in entries}
    links = " ".join(f'<a href="figures/{drawing.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg", "pdf"))
    return (
        f'<figure id="figure-{drawing.name}">{inline_svg(drawing.svg, drawing.name, drawing.title, colours)}'
        f"<figcaption><strong>{escape(drawing.title)}.</strong> {escape(drawing.caption)} "
        f'<span class="files">{links}</span></figcaption></figure>'
    )


def _sample(report: Report) -> str:
    if not report.sampled:
        return (
            "<p>The runs hold no certified inputs.</p>" if report.sample_note is None else _notes([report.sample_note])
        )
    options = "".join(f'<option value="{value}">{text}</option>' for value, text in _KINDS)
    bar = (
        '<div class="filter" hidden><input type="search" placeholder="Find in the texts and answers" '
        f'aria-label="Find in the texts and answers"><select aria-label="Which inputs">{options}</select>'
        '<button type="button">Open all</button><output></output></div>'
    )
    start = f"<p>{escape(report.sample_words)}</p>" + _notes([report.sample_note] if report.sample_note else [])
    return start + bar + "\n".join(_input(one) for one in report.sampled)


def _input(one: Sampled) -> str:
    excerpt = " ".join(one.text[:300].split()) if one.text is not None else f"input {one.id}"
    radii = " ".join(
        f"<span>{_swatch(s.entry)} <b>{'abstained' if s.certificate.abstained else s.certificate.radius}</b>"
        f"{_mark(s)}</span>"
        for s in one.shown
    )
    truth = "" if one.truth is None else f"<span>truth <b>{escape(str(one.truth))}</b></span>"
    text = "" if one.text is None else f'<div class="text" dir="auto" tabindex="0">{escape(one.text)}</div>'
    return (
        f'<details class="input" data-kinds="{" ".join(kinds(one))}"><summary>'
        f'<span class="line" dir="auto">{escape(excerpt) or "(empty)"}</span>'
        f'<span class="meta">{truth}{radii}<span class="open"></span></span></summary>'
        f'<div class="body"><p class="meta"><span>row {one.row:,}</span><span>id {escape(one.id)}</span>'
        f"<span>{one.length:,} tokens</span></p>{text}"
        f'<div class="cards">{"".join(_card(shown) for shown in one.shown)}</div></div></details>'
    )


def _mark(shown: Shown) -> str:
    return ' <span class="wrong">(wrong)</span>' if shown.right is False else ""


def kinds(one: Sampled) -> list[str]:
    """Under which choices of the filter an input is shown."""
    made = ["all"]
    if any(shown.right is False for shown in one.shown):
        made.append("wrong")
    if any(shown.certificate.abstained for shown in one.shown):
        made.append("abstained")
    if any(shown.certificate.radius == 0 for shown in one.shown):
        made.append("zero")
    return made


def _card(shown: Shown) -> str:
    made = shown.certificate
    verdict = {True: ' <span class="right">right</span>', False: ' <span class="wrong">wrong</span>', None: ""}
    lines = [
        f"<h3>{escape(shown.entry.name)}</h3>",
        f"<p>answer <b>{escape(str(made.label))}</b>{verdict[shown.right]}; {escape(radius_words(made))}</p>",
        _bar(made),
        f'<p class="muted">{escape(vote_words(made))}. {escape(bound_words(made))}</p>',
    ]
    if shown.copies:
        copies = "".join(
            f'<li dir="auto">{escape(text) or "<em>nothing</em>"} <span>({kept:,} kept)</span></li>'
            for kept, text in shown.copies
        )
        masks = " (⟨5⟩: five masked tokens)" if made.noise.masks_tokens else ""
        lines.append(f'<p class="muted">What the model reads{masks}, for example:</p><ol>{copies}</ol>')
    return f'<div class="card" style="--run: {run_colour(shown.entry)}">{"".join(lines)}</div>'


def _bar(made: Certificate) -> str:
    share = top_votes(made)[0][1] if top_votes(made) else 0.0
    return f'<div class="votes" aria-hidden="true"><i style="width: {100 * share:.1f}%"></i></div>'
