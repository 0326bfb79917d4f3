"""Write a report on runs into a folder, atomically: the HTML page, Markdown, tables, figures and JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from adaptdel.core.checks import check_int
from adaptdel.files import replacing_folder
from adaptdel.plots import FORMATS, new_figure, save
from adaptdel.report.comparison import (
    Differences,
    class_tables,
    curves,
    detection_table,
    difference_table,
    differences,
    has_lengths,
    main_table,
    outcome_table,
    quartile_table,
    region_table,
    settings_table,
)
from adaptdel.report.entries import COLOURS, Entry, SampledInput, file_name, read_entries, sample_inputs
from adaptdel.report.figures import GRID, INK, MUTED, draw, inline_svg
from adaptdel.report.text import (
    answer_share,
    bound_words,
    comparison_notes,
    default_baseline,
    definitions,
    notes,
    plural,
    radius_words,
    summary,
    vote_words,
)
from adaptdel.tables import Table, markdown_text

__all__ = ["write_report"]

MARK = "report.json"
FORMAT = "adaptdel report 1"
_ENDINGS = r"(\.(jsonl?|csv|tsv|parquet|gz))+$"


@dataclass(frozen=True)
class Drawing:
    """A figure that was written: its name, title, caption, and its SVG."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Attributes:
        title: the title.
        generator: the program that writes it.
        entries: the runs.
        summary: a paragraph, and further points.
        notes: what a reader has to know before comparing the numbers.
        tables: the tables of results.
        settings: the table of settings.
        csv_names: the tables that are also written as CSV.
        drawings: the figures.
        sampled: inputs with their certificates.
        sample_words: how they were sampled.
        sample_note: why texts are missing, if they are.
        values: all numbers, as in report.json.
    """

    title: str
    generator: str
    entries: Sequence[Entry]
    summary: Sequence[str]
    notes: Sequence[str]
    tables: Sequence[Table]
    settings: Table
    csv_names: Sequence[str]
    drawings: Sequence[Drawing]
    sampled: Sequence[SampledInput]
    sample_words: str
    sample_note: str | None
    values: dict[str, Any]


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | None = None,
    sample: int = 30,
    baseline: int | None = None,
    title: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a report on runs to a folder, atomically, and return its numbers.

    Args:
        runs: the folders of the runs.
        out: a new folder, an empty folder, or a report, which is replaced. Any other folder is refused.
        data: the data file with the texts, if it is not where the runs read it.
        sample: the number of inputs to show with their certificates.
        baseline: the index of the run that the others are compared with; None for the first run with noise that does
            not give one answer to (almost) all inputs.
        title: the title; derived from the name of the data by default.
        resamples: the number of bootstrap resamples.
        seed: the seed of the sample, of the noisy copies and of the resamples.
    """
    out = Path(out)
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    check_int("sample", sample)
    if baseline is not None:
        check_int("baseline", baseline, most=len(runs) - 1)
    check_int("seed", seed)
    check_out(out)
    template_environment()  # raises at once if Jinja2 or matplotlib is missing
    new_figure(1, 1)
    entries = read_entries([Path(run) for run in runs])
    reference = default_baseline(entries) if baseline is None else entries[baseline]
    with replacing_folder(out, lambda: check_out(out)) as partial:  # checked again just before the folder is replaced
        drawings = write_figures(entries, partial / "figures")
        compared = differences(entries, reference, resamples=resamples, seed=seed)
        report = _report(entries, reference, compared, drawings, data=data, sample=sample, title=title, seed=seed)
        write_texts(report, [*report.tables, curves(entries)], partial)
    return report.values


def check_out(out: Path) -> None:
    """Raise if the folder holds anything but a report."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    foreign = _foreign(out)
    if foreign is not None:
        raise ValueError(f"out must be a new folder, an empty one or a report, got {str(out)!r} with {foreign}")


def _foreign(out: Path) -> str | None:
    """A file that is not part of a report, or None."""
    if not out.is_dir():
        return "a file of that name"
    try:
        values = json.loads((out / MARK).read_text(encoding="utf-8"))
        written = set(values["files"]) if values["format"] == FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError):
        return f"no {MARK} of a report"
    held = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir())
    return next((f"{name}, which is not part of it" for name in held if name not in written | {MARK}), None)


def _report(
    entries: list[Entry],
    baseline: Entry,
    compared: Differences,
    drawings: list[Drawing],
    *,
    data: str | None,
    sample: int,
    title: str | None,
    seed: int,
) -> Report:
    sampled, missing = sample_inputs(entries, sample, data=data, seed=seed)
    detection = detection_table(entries)
    tables = [main_table(entries), *class_tables(entries), *([] if detection is None else [detection]),
              *([difference_table(compared, baseline, entries)] if compared else []),
              outcome_table(entries), *([quartile_table(entries)] if has_lengths(entries) else []),
              region_table(entries)]  # fmt: skip
    name = re.sub(_ENDINGS, "", file_name(entries[0].run.manifest.get("data") or {}))
    words = (
        f"{plural(len(sampled), 'input')} drawn at random, with their certificates. The number next to a colour is the "
        "certified radius. The noisy copies are new draws, not the copies that voted."
    )
    return Report(
        title=title or f"Certified robustness{f' on {name}' if name else ''}",
        generator=f"adaptdel {version('adaptdel')}",
        entries=entries,
        summary=summary(entries, compared, baseline),
        notes=notes(entries, compared, baseline),
        tables=tables,
        settings=settings_table(entries),
        csv_names=[*(table.name for table in tables), "curves"],
        drawings=drawings,
        sampled=sampled,
        sample_words=words,
        sample_note=missing,
        values=_values(entries, baseline, compared),
    )


def _values(entries: Sequence[Entry], baseline: Entry, compared: Differences) -> dict[str, Any]:
    """All numbers, for programs."""
    runs = [
        {
            "name": entry.name,
            "run": entry.run.folder.name,
            "finished": entry.run.finished,
            "problems": entry.outcomes.problems,
            "unlabelled": entry.outcomes.unlabelled,
            "measures": entry.measures.to_dict(),
            "quartiles": [quarter.to_dict() for quarter in entry.quartiles],
            "by_class": entry.classes.to_dict(),
            "warnings": entry.classes.warnings(entry.name, advice=False),
            "detection": None if entry.detection is None else entry.detection.to_dict(),
        }
        for entry in entries
    ]
    gaps = {
        name: {"inputs": common} | {key: [_or_null(v) for v in (d.value, d.low, d.high)] for key, d in measures.items()}
        for name, (common, measures) in compared.items()
    }
    remarks = comparison_notes(entries, compared, baseline)
    return {"runs": runs, "baseline": baseline.name, "differences": gaps, "notes": remarks}


def _or_null(value: float) -> float | None:
    return None if value != value else value


def write_figures(entries: list[Entry], folder: Path) -> list[Drawing]:
    """Draw the figures and write each as PNG, SVG and PDF."""
    folder.mkdir()
    drawings = []
    for name, title, caption, figure in draw(entries):
        for ending in FORMATS:
            save(figure, folder / f"{name}{ending}")
            figure.set_layout_engine("none")  # the layout of the first format is kept
        drawings.append(Drawing(name, title, caption, (folder / f"{name}.svg").read_text(encoding="utf-8")))
    return drawings


def write_texts(report: Report, tables: list[Table], folder: Path) -> None:
    """Write the tables, the Markdown, the page, and last report.json, which marks the folder as a report."""
    (folder / "tables").mkdir()
    for table in tables:
        write_file(folder / "tables" / f"{table.name}.csv", table.to_csv())
    latex = "\n".join(table.to_latex() for table in [*report.tables, report.settings])
    write_file(folder / "tables.tex", f"% Needs \\usepackage{{booktabs}}.\n\n{latex}")
    write_file(folder / "report.md", markdown(report))
    write_file(folder / "index.html", page(report))
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    values = {"format": FORMAT, "files": names, **report.values}
    write_file(folder / MARK, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write a text of the report, whatever characters the data hold."""
    path.write_bytes(text.encode("utf-8", "backslashreplace"))


def template_environment() -> Any:
    """The Jinja2 environment of the page, which escapes every value."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ImportError("reports need Jinja2: pip install 'adaptdel[report]'") from None
    return Environment(
        loader=PackageLoader("adaptdel", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def page(report: Report) -> str:
    """The report as an HTML page that needs no other file; every value from data is escaped."""
    from markupsafe import Markup

    script = resource("page.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    svg = {drawing.name: Markup(_page_figure(drawing, report.entries)) for drawing in report.drawings}
    return str(
        template_environment()
        .get_template("page.html")
        .render(
            report=report,
            policy=f"sha256-{digest}",
            style=Markup(resource("page.css") + _colours(report.entries)),
            script=Markup(script),
            figures=svg,
            colours=len(COLOURS),
            definitions=definitions(),
            split_interval=split_interval,
            radius_words=radius_words,
            vote_words=vote_words,
            bound_words=bound_words,
            answer_share=answer_share,
        )
    )


def resource(name: str) -> str:
    """A file of the page: its template, style or script."""
    return files("adaptdel.report").joinpath(name).read_text(encoding="utf-8")


def _colours(entries: Sequence[Entry]) -> str:
    """The colours of the runs on a light and on a dark background."""
    pairs = {entry.number % len(COLOURS): COLOURS[entry.number % len(COLOURS)] for entry in entries}
    light, dark = (" ".join(f"--run-{n}: {pair[side]};" for n, pair in pairs.items()) for side in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _page_figure(drawing: Drawing, entries: Sequence[Entry]) -> str:
    colours = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", "#ffffff": "none"}
    colours |= {entry.colour: f"var(--run-{entry.number % len(COLOURS)})" for entry in entries}
    return inline_svg(drawing.svg, drawing.name, drawing.title, colours)


def split_interval(text: str) -> tuple[str, str]:
    """A cell, and the interval at its end, which the page shows on a line of its own.

    >>> split_interval("+0.50 [+0.30, +0.70]")
    ('+0.50', '[+0.30, +0.70]')
    """
    match = re.search(r" (\[[^\[\]]*\])$", text)
    return (text[: match.start()], match[1]) if match else (text, "")


def markdown(report: Report) -> str:
    """The report in Markdown; values from data are escaped, texts are in fenced blocks."""
    blocks = [
        f"# {markdown_text(report.title)}",
        markdown_text(report.summary[0]),
        *(["\n".join(f"- {markdown_text(point)}" for point in report.summary[1:])] if report.summary[1:] else []),
        *(f"> **Note.** {markdown_text(note)}" for note in report.notes),
        "## Results",
        *(table.to_markdown() for table in report.tables),
        "## Definitions",
        "\n".join(f"- **{markdown_text(term)}.** {markdown_text(meaning)}" for term, meaning in definitions()),
        "## Figures",
    ]
    for drawing in report.drawings:
        blocks += [
            f"![{markdown_text(drawing.title)}](figures/{drawing.name}.png)",
            f"**{markdown_text(drawing.title)}.** {markdown_text(drawing.caption)} "
            f"([SVG](figures/{drawing.name}.svg), [PDF](figures/{drawing.name}.pdf))",
        ]
    blocks += ["## Sampled inputs", markdown_text(report.sample_words)]
    blocks += [f"> {markdown_text(report.sample_note)}"] if report.sample_note else []
    blocks += [block for item in report.sampled for block in _input_blocks(item)]
    blocks += ["## Settings", report.settings.to_markdown()]
    return "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"


def _input_blocks(item: SampledInput) -> list[str]:
    label = "" if item.label is None else f", label {markdown_text(str(item.label))}"
    blocks = [f"### {markdown_text(item.id)}: row {item.row:,}, {item.length:,} tokens{label}"]
    if item.text is not None:
        blocks.append(fenced(item.text))
    for answer in item.answers:
        certificate = answer.certificate
        verdict = {True: " (correct)", False: " (wrong)", None: ""}[answer.correct]
        words = f"answer {certificate.label}{verdict}; {radius_words(certificate)}. {vote_words(certificate)}. "
        blocks.append(f"**{markdown_text(answer.entry.name)}**: {markdown_text(words + bound_words(certificate))}")
        if answer.copies:
            blocks.append(fenced("\n".join(" ".join(text.split()) or "(nothing)" for _, text in answer.copies)))
    return blocks


def fenced(text: str) -> str:
    """Text in a fenced block that it cannot close.

    >>> fenced("a ``` b").splitlines()[0]
    '````text'
    """
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.strip(chr(10))}\n{fence}"
