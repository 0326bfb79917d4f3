"""A report in a folder: whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from adaptdel.evaluation.entries import Entry
from adaptdel.evaluation.report.markdown import markdown
from adaptdel.evaluation.report.page import page
from adaptdel.evaluation.report.parts import Drawing, Report, draw
from adaptdel.evaluation.tables import Table
from adaptdel.plots import FORMATS, save

MARK = "report.json"
FORMAT = "adaptdel report 1"


def check_out(out: Path) -> None:
    """Raise if a report must not be written there: a folder that holds anything else is not touched."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    foreign = _foreign(out)
    if foreign is not None:
        raise ValueError(f"out must be a new folder, an empty one or a report, got {str(out)!r} with {foreign}")


def _foreign(out: Path) -> str | None:
    """A file that no report has written, or None."""
    if not out.is_dir():
        return "a file of that name"
    try:
        found = json.loads((out / MARK).read_text(encoding="utf-8"))
        ours = set(found["files"]) if found["format"] == FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError):
        return f"no {MARK} of a report"
    held = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir())
    return next((f"{name}, which is not part of it" for name in held if name not in ours | {MARK}), None)


def write_figures(entries: list[Entry], folder: Path) -> list[Drawing]:
    """Draw the figures and write each as PNG, SVG and PDF."""
    folder.mkdir()
    made = []
    for name, title, caption, figure in draw(entries):
        for ending in FORMATS:
            save(figure, folder / f"{name}{ending}")
            figure.set_layout_engine("none")  # laid out once is enough
        made.append(Drawing(name, title, caption, (folder / f"{name}.svg").read_text(encoding="utf-8")))
    return made


def write_texts(report: Report, tables: list[Table], folder: Path) -> None:
    """Write the page, the Markdown, the tables, and last the mark with all numbers."""
    (folder / "tables").mkdir()
    for table in tables:
        _write(folder / "tables" / f"{table.name}.csv", table.to_csv())
    _write(folder / "tables.tex", _latex([*report.tables, report.settings]))
    _write(folder / "report.md", markdown(report))
    _write(folder / "index.html", page(report))
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    values = {"format": FORMAT, "files": names, **report.values}
    _write(folder / MARK, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def _latex(tables: list[Table]) -> str:
    return "% Needs \\usepackage{booktabs}.\n\n" + "\n".join(table.to_latex() for table in tables)


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "backslashreplace"))
