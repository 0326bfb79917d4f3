"""A report as Markdown."""

from __future__ import annotations

import re

from adaptdel.evaluation.report.parts import Report
from adaptdel.evaluation.report.sample import Sampled
from adaptdel.evaluation.report.votes import bound_words, radius_words, vote_words
from adaptdel.evaluation.report.words import guide
from adaptdel.evaluation.tables import markdown_text


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
    blocks += [block for one in report.sampled for block in _input(one)]
    blocks += ["## How the runs were made", report.settings.to_markdown()]
    return "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"


def _input(one: Sampled) -> list[str]:
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
