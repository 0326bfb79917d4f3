"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from adaptdel.certificate import Certificate
from adaptdel.evaluation.entries import COLOURS, Entry
from adaptdel.evaluation.figures import GRID, INK, MUTED
from adaptdel.evaluation.report.parts import Drawing, Report
from adaptdel.evaluation.report.sample import Sampled, Shown
from adaptdel.evaluation.report.vector import inline_svg
from adaptdel.evaluation.report.votes import bound_words, radius_words, top_votes, vote_words
from adaptdel.evaluation.report.words import guide
from adaptdel.noise import Masking

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
    return files("adaptdel.evaluation.report").joinpath(name).read_text(encoding="utf-8")


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
        masks = " (⟨5⟩: five masked tokens)" if isinstance(made.noise, Masking) else ""
        lines.append(f'<p class="muted">What the model reads{masks}, for example:</p><ol>{copies}</ol>')
    return f'<div class="card" style="--run: {run_colour(shown.entry)}">{"".join(lines)}</div>'


def _bar(made: Certificate) -> str:
    share = top_votes(made)[0][1] if top_votes(made) else 0.0
    return f'<div class="votes" aria-hidden="true"><i style="width: {100 * share:.1f}%"></i></div>'
