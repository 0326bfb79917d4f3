"""Write the report on one or more runs into a folder, whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adaptdel.core.checks import check_int
from adaptdel.files import replacing_folder
from adaptdel.plots import FORMATS, new_figure, save
from adaptdel.report.entries import Entry, read_entries
from adaptdel.report.page import Drawing, Report, draw, markdown, page
from adaptdel.report.samples import sample_inputs
from adaptdel.report.tables import (
    Differences,
    Table,
    curves,
    difference_table,
    differences,
    file_name,
    main_table,
    outcome_table,
    quartile_table,
    settings_table,
)
from adaptdel.report.text import notes, plural, summary

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


__all__ = ["write_report"]

_ENDINGS = r"(\.(jsonl?|csv|tsv|parquet|gz))+$"


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | None = None,
    sample: int = 30,
    baseline: int = 0,
    title: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a report on runs to a folder, whole or not at all, and return its numbers.

    Args:
        runs: the folders of the runs.
        out: a new folder, an empty one, or a report, which is replaced. Anything else is not touched.
        data: where the texts of the inputs are, if not where the runs say.
        sample: how many inputs are shown with their certificates.
        baseline: the place of the run that the others are compared with, from 0.
        title: the heading; the name of the data if left out.
        resamples: how many resamples the intervals come from.
        seed: of the sample, the noisy copies shown, and the resamples.
    """
    out = Path(out)
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    check_int("sample", sample)
    check_int("baseline", baseline, most=len(runs) - 1)
    check_int("seed", seed)
    check_out(out)
    new_figure(1, 1)  # says at once if matplotlib is missing
    entries = read_entries([Path(run) for run in runs])
    with replacing_folder(out, lambda: check_out(out)) as partial:  # once more: something may have come in meanwhile
        drawings = write_figures(entries, partial / "figures")
        base = entries[baseline]
        found = differences(entries, base, resamples=resamples, seed=seed)
        report = _report(entries, base, found, drawings, data=data, sample=sample, title=title, seed=seed)
        write_texts(report, [*report.tables, curves(entries)], partial)
    return report.values


def _report(
    entries: list[Entry],
    baseline: Entry,
    found: Differences,
    drawings: list[Drawing],
    *,
    data: str | None,
    sample: int,
    title: str | None,
    seed: int,
) -> Report:
    sampled, missing = sample_inputs(entries, sample, data=data, seed=seed)
    tables = [main_table(entries), *([difference_table(found, baseline)] if found else []), outcome_table(entries),
              quartile_table(entries)]  # fmt: skip
    name = re.sub(_ENDINGS, "", file_name(entries[0].run.manifest.get("data") or {}))
    words = (
        f"{plural(len(sampled), 'input')} drawn at random, each with its certificates. Numbers beside the colours are "
        "certified radii. The noisy copies are fresh draws, not those that voted."
    )
    return Report(
        title=title or f"Certified robustness{f' on {name}' if name else ''}",
        generator=f"adaptdel {version('adaptdel')}",
        entries=entries,
        summary=summary(entries, found, baseline),
        notes=notes(entries, found, baseline),
        tables=tables,
        settings=settings_table(entries),
        csv_names=[*(table.name for table in tables), "curves"],
        drawings=drawings,
        sampled=sampled,
        sample_words=words,
        sample_note=missing,
        values=_values(entries, baseline, found),
    )


def _values(entries: Sequence[Entry], baseline: Entry, found: Differences) -> dict[str, Any]:
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
        }
        for entry in entries
    ]
    compared = {
        name: {"inputs": common} | {key: [_plain(v) for v in (d.value, d.low, d.high)] for key, d in measures.items()}
        for name, (common, measures) in found.items()
    }
    return {"runs": runs, "baseline": baseline.name, "differences": compared}


def _plain(value: float) -> float | None:
    return None if value != value else value
