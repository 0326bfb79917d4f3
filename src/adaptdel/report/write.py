"""Write a report on runs into a folder, atomically: the HTML page, tables, figures and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
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
    as_released: bool = False,
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
        as_released: whether figures cut radii as the paper's released code does, see `Entry.as_released`.
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
        holding = [entry for entry in entries if any(part.path == chosen for part in entry.parts)]
        reference = holding[0] if holding else default_baseline(entries)
        compared = differences(entries, reference, seed=seed)
        own = [entry for entry in entries if entry.plan is not None]
        drawn = sampled_rows(own, sample, seed)
        best = max(own, key=lambda entry: (entry.certifies, entry.measures.mean_radius))
        example = example_row(best, own[0])
        shown, missing = shown_inputs(own, [*drawn, *example], data)
        name = re.sub(_ENDINGS, "", file_name(own[0].first.data.path))
        tables = [main_table(entries), *class_tables(entries)]
        tables += [difference_table(compared, reference)] if compared else []
        tables += [*quartile_table(entries), settings_table(entries)]
        page = {
            "title": title or f"Certified robustness{f' on {name}' if name else ''}",
            "entries": entries,
            "summary": [summary(entry) for entry in entries],
            "notes": notes(entries, compared, reference),
            "tables": tables,
            "drawings": write_figures(draw(entries, as_released=as_released), partial / "figures"),
            "example": next((shown[row].under(best) for row in example), None),
            "sampled": [shown[row] for row in drawn],
            "sample_note": missing,
        }
        values = _values(page, reference, compared)
        latex = "\n".join(table.to_latex() for table in tables)
        write_file(partial / "tables.tex", f"% Needs \\usepackage{{booktabs}}.\n\n{latex}")
        finish(partial, "page.html", page, [*tables, curves(entries)], values)
    return values


@contextmanager
def report_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``out``, which must be new, empty or a report as it was written."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        wanted = f"out must be a new folder or a report, got {str(out)!r}"
        try:
            written = {*json.loads((out / MARK).read_text(encoding="utf-8"))["files"], MARK}
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(f"{wanted} without {MARK}") from None
        held = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
        if foreign := sorted(held - written):
            raise ValueError(
                f"out must be a new folder or a report, got {str(out)!r} with {foreign[0]}, not part of it"
            )
    try:
        import_module("jinja2")
    except ImportError:
        raise ImportError("reports need Jinja2: pip install 'adaptdel[report]'") from None
    with replacing_folder(out) as partial:
        yield partial


def finish(
    folder: Path, template: str, report: Mapping[str, Any], tables: Sequence[Table], values: Mapping[str, Any]
) -> None:
    """Write page and tables, then the numbers and the list of files, which mark the folder as a report."""
    write_file(folder / "index.html", render(template, report))
    (folder / "tables").mkdir()
    for table in tables:
        write_file(folder / "tables" / f"{table.name}.csv", table.to_csv())
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    content = {"format": FORMAT, "files": names, **values}
    write_file(folder / MARK, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _values(page: Mapping[str, Any], baseline: Entry, compared: Differences) -> dict[str, Any]:
    """All numbers, for programs."""
    runs = [
        {
            "name": entry.name,
            "runs": [part.path.name for part in entry.parts],
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


def write_figures(figures: Iterable[tuple[str, str, str, Figure]], folder: Path) -> list[dict[str, str]]:
    """Write each figure as PNG, SVG and PDF; what the page shows of it, whose colours follow the theme."""
    folder.mkdir()
    themed = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", "#ffffff": "none"}
    themed |= {light: f"var(--run-{number})" for number, (light, _) in enumerate(COLOURS)}
    drawings = []
    for name, title, caption, figure in figures:
        for ending in FORMATS:
            save(figure, folder / f"{name}{ending}")
            figure.set_layout_engine("none")  # the layout of the first format is kept
        svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
        drawings.append({"name": name, "title": title, "caption": caption, "svg": inline_svg(svg, title, themed)})
    return drawings


def write_file(path: Path, text: str) -> None:
    """Write a text of the report, whatever characters the data hold."""
    path.write_bytes(text.encode("utf-8", "backslashreplace"))


def render(template: str, report: Mapping[str, Any]) -> str:
    """A page that needs no other file; every value is escaped, except the style and the figures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(
        loader=PackageLoader("adaptdel", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = Markup(files("adaptdel.report").joinpath("page.css").read_text(encoding="utf-8"))
    shared = {"style": style, "colours": COLOURS, "generator": f"adaptdel {version('adaptdel')}", "svg": Markup}
    return pages.get_template(template).render(report=report, **shared)
