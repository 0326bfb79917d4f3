"""Write a report on runs into a folder, atomically: the HTML page, tables, figures and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    default_baseline,
    difference_table,
    differences,
    main_table,
    quartile_table,
    settings_table,
)
from adaptdel.report.entries import COLOURS, Entry, file_name, read_entries
from adaptdel.report.figures import GRID, INK, MUTED, Figure, draw, inline_svg
from adaptdel.report.words import example_row, notes, sampled_rows, shown_inputs, summary
from adaptdel.tables import Table

MARK = "report.json"
FORMAT = "adaptdel report 3"
_ENDINGS = r"(\.(jsonl?|csv|tsv|parquet|gz))+$"


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    names: Sequence[str] = (),
    data: str | None = None,
    sample: int = 30,
    baseline: int | None = None,
    title: str | None = None,
    seed: int = 0,
    characters: bool = False,
) -> dict[str, Any]:
    """Write a report on runs to a folder, atomically, and return its numbers.

    Args:
        runs: the folders of the runs, and tables of other systems on the same inputs (`read_foreign`).
        out: a new folder, an empty folder, or a report, which is replaced. Any other folder is refused.
        names: a name for each run; runs with the same name are seeds of a method and become one row. By default a name
            comes from the method, and runs that differ in their seeds only are one row.
        data: the data file with the texts, if it is not where the runs read it.
        sample: the number of inputs to show with their certificates.
        baseline: the index of the run that the others are compared with; by default the one that most runs can be
            compared with.
        title: the title; derived from the name of the data by default.
        seed: the seed of the sample and of the intervals.
        characters: whether radii count edited characters.
    """
    check_int("sample", sample)
    check_int("seed", seed)
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    if baseline is not None:
        check_int("baseline", baseline, most=len(runs) - 1)
    with report_folder(Path(out)) as partial:
        new_figure(1, 1)  # raises at once if matplotlib is missing
        entries = read_entries([Path(run) for run in runs], names, characters=characters)
        chosen = None if baseline is None else Path(runs[baseline])
        holding = [entry for entry in entries if any(part.run.folder == chosen for part in entry.parts)]
        reference = holding[0] if holding else default_baseline(entries)
        compared = differences(entries, reference, seed=seed)
        own = [entry for entry in entries if not entry.is_foreign]
        drawn = sampled_rows(own, sample, seed)
        best = max(own, key=lambda entry: (entry.certifies, entry.measures.mean_radius))
        example = example_row(best, own[0])
        shown, missing = shown_inputs(own, [*drawn, *example], data)
        name = re.sub(_ENDINGS, "", file_name(own[0].manifest.get("data") or {}))
        colours = {entry.colour: f"var(--run-{entry.colour_number})" for entry in entries}
        tables = _tables(entries, reference, compared)
        page = {
            "title": title or f"Certified robustness{f' on {name}' if name else ''}",
            "entries": entries,
            "summary": [summary(entry) for entry in entries],
            "notes": notes(entries, compared, reference),
            "tables": tables,
            "drawings": write_figures(draw(entries), partial / "figures", colours),
            "example": next((shown[row].under(best) for row in example), None),
            "sampled": [shown[row] for row in drawn],
            "sample_note": missing,
        }
        values = _values(page, reference, compared)
        latex = "\n".join(table.to_latex() for table in tables)
        write_file(partial / "tables.tex", f"% Needs \\usepackage{{booktabs}}.\n\n{latex}")
        write_tables([*tables, curves(entries)], partial)
        write_file(partial / "index.html", render("page.html", report=page, colours=_colours(entries)))
        mark(partial, values)
    return values


@contextmanager
def report_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``out``, which must be new, empty or a report as it was written."""
    _check_out(out)
    environment()  # raises at once if Jinja2 is missing
    with replacing_folder(out) as partial:
        yield partial


def _check_out(out: Path) -> None:
    """Raise if there is anything but a report."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        written = {*json.loads((out / MARK).read_text(encoding="utf-8"))["files"], MARK}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"out must be a new folder or a report, got {str(out)!r} without {MARK}") from None
    held = [path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()]
    if foreign := sorted({*held} - written):
        raise ValueError(f"out must be a new folder or a report, got {str(out)!r} with {foreign[0]}, not part of it")


def mark(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the numbers and the list of files, which mark the folder as a report."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    content = {"format": FORMAT, "files": names, **values}
    write_file(folder / MARK, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _tables(entries: Sequence[Entry], baseline: Entry, compared: Differences) -> list[Table]:
    tables = [
        main_table(entries),
        *class_tables(entries),
        difference_table(compared, baseline) if compared else None,
        quartile_table(entries),
        settings_table(entries),
    ]
    return [table for table in tables if table is not None]


def _values(page: Mapping[str, Any], baseline: Entry, compared: Differences) -> dict[str, Any]:
    """All numbers, for programs."""
    runs = [
        {
            "name": entry.name,
            "runs": [part.run.folder.name for part in entry.parts],
            "finished": entry.finished,
            "problems": sum(part.problems for part in entry.parts),
            "unlabelled": sum(part.unlabelled for part in entry.parts),
            "measures": entry.measures.to_dict(),
            "seeds": [measures.to_dict() for measures in entry.by_seed],
            "by_class": entry.classes.to_dict(),
        }
        for entry in page["entries"]
    ]
    gaps = {
        name: {"inputs": common}
        | {key: [None if v != v else v for v in (d.value, d.low, d.high)] for key, d in measures.items()}
        for name, (common, measures) in compared.items()
    }
    shown = page["example"]
    example = shown and {
        "row": shown.row,
        "run": shown.answers[0].entry.name,
        "text": shown.text,
        "words": list(shown.answers[0].words),
    }
    told = {name: page[name] for name in ("summary", "notes")}
    return {"runs": runs, "baseline": baseline.name, "differences": gaps, **told, "example": example}


def write_figures(
    figures: Sequence[tuple[str, str, str, Figure]], folder: Path, colours: Mapping[str, str]
) -> list[dict[str, str]]:
    """Write each figure as PNG, SVG and PDF; what the page shows of it, whose colours follow the theme."""
    folder.mkdir()
    themed = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", "#ffffff": "none", **colours}
    drawings = []
    for name, title, caption, figure in figures:
        for ending in FORMATS:
            save(figure, folder / f"{name}{ending}")
            figure.set_layout_engine("none")  # the layout of the first format is kept
        svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
        drawings.append({"name": name, "title": title, "caption": caption, "svg": inline_svg(svg, title, themed)})
    return drawings


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write tables as CSV files."""
    (folder / "tables").mkdir()
    for table in tables:
        write_file(folder / "tables" / f"{table.name}.csv", table.to_csv())


def write_file(path: Path, text: str) -> None:
    """Write a text of the report, whatever characters the data hold."""
    path.write_bytes(text.encode("utf-8", "backslashreplace"))


def environment() -> Any:
    """The Jinja2 environment of the pages, which escapes every value."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ImportError("reports need Jinja2: pip install 'adaptdel[report]'") from None
    loader = PackageLoader("adaptdel", "report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, *, colours: str = "", **values: Any) -> str:
    """A page that needs no other file; every value is escaped, except the style and the figures."""
    from markupsafe import Markup

    style = files("adaptdel.report").joinpath("page.css").read_text(encoding="utf-8")
    shared = {"style": Markup(style + colours), "generator": f"adaptdel {version('adaptdel')}"}
    page = environment().get_template(template).render(**shared, svg=Markup, split_interval=split_interval, **values)
    return str(page)


def _colours(entries: Sequence[Entry]) -> str:
    """The colours of the runs on a light and on a dark background."""
    pairs = {entry.colour_number: COLOURS[entry.colour_number] for entry in entries}
    light, dark = (" ".join(f"--run-{n}: {pair[side]};" for n, pair in pairs.items()) for side in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def split_interval(text: str) -> tuple[str, str]:
    """A cell, and the interval at its end, which the page shows on a line of its own.

    >>> split_interval("+0.50 [+0.30, +0.70]")
    ('+0.50', '[+0.30, +0.70]')
    """
    match = re.search(r" (\[[^\[\]]*\])$", text)
    return (text[: match.start()], match[1]) if match else (text, "")
