"""The report on runs of attacks: robust accuracies, and the certified radius beside the attacked distance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adaptdel.attacks.attack_run import AttackRun, read_attack_run
from adaptdel.attacks.outcomes import attack_table, gap_table, is_verified, robustness_curves
from adaptdel.files import replacing_folder
from adaptdel.plots import FORMATS, new_figure, save
from adaptdel.report.entries import COLOURS
from adaptdel.report.figures import GRID, INK, MUTED, WIDTH, inline_svg
from adaptdel.report.write import FORMAT, MARK, Drawing, check_out, resource, template_environment, write_file
from adaptdel.runs.inputs import Source
from adaptdel.tables import Table, markdown_text
from adaptdel.text.data import Row

SHOWN = 8  # attacked texts of a run


@dataclass(frozen=True)
class ShownText:
    """An attacked text, in parts: (kind, words), where kind is "same", "gone" or "new"."""

    row: int
    truth: str
    answer: str
    distance: int
    radius: int
    parts: list[tuple[str, str]]


@dataclass(frozen=True)
class AttackEntry:
    """A run of attacks in the report."""

    number: int
    run: AttackRun
    texts: list[ShownText]

    @property
    def name(self) -> str:
        """The folder of the model."""
        return Path(self.run.manifest["model"].get("path", "")).name or "model"

    @property
    def title(self) -> str:
        """The model and the recipe."""
        return f"{self.name}, {self.run.manifest['recipe']}"

    @property
    def row(self) -> dict[str, Any]:
        """The measures with the names of the model and the recipe."""
        return {"model": self.name, "recipe": self.run.manifest["recipe"], **self.run.measures}


def write_attack_report(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> dict[str, Any]:
    """Write a report on runs of attacks to a folder, atomically, and return its numbers.

    Args:
        runs: the folders of the runs.
        out: a new folder, an empty folder, or a report, which is replaced. Any other folder is refused.
        title: the title of the page.
    """
    out = Path(out)
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    check_out(out)
    environment = template_environment()
    entries = [_entry(number, read_attack_run(Path(folder))) for number, folder in enumerate(runs)]
    rows = [entry.row for entry in entries]
    tables = [attack_table(rows), gap_table(rows)]
    values = {
        "runs": [
            {
                "name": entry.name,
                "recipe": entry.run.manifest["recipe"],
                "run": entry.run.folder.name,
                "finished": entry.run.finished,
                "measures": entry.run.measures,
                "curves": robustness_curves(entry.run.records),
            }
            for entry in entries
        ]
    }
    notes = _notes(entries)
    with replacing_folder(out, lambda: check_out(out)) as partial:
        drawings = _write_figures(entries, partial / "figures")
        (partial / "tables").mkdir()
        for table in tables:
            write_file(partial / "tables" / f"{table.name}.csv", table.to_csv())
        heading = title or "Attacks on smoothed classifiers"
        write_file(partial / "report.md", _markdown(heading, notes, tables, drawings))
        page = environment.get_template("attacks.html").render(
            title=heading,
            generator=f"adaptdel {version('adaptdel')}",
            notes=notes,
            tables=tables,
            drawings=[(drawing, _inline(drawing)) for drawing in drawings],
            entries=entries,
            style=_markup(resource("page.css")),
        )
        write_file(partial / "index.html", str(page))
        names = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())
        content = {"format": FORMAT, "files": names, **values}
        write_file(partial / MARK, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return values


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _inline(drawing: Drawing) -> Any:
    colours = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", "#ffffff": "none"}
    return _markup(inline_svg(drawing.svg, drawing.name, drawing.title, colours))


def _notes(entries: Sequence[AttackEntry]) -> list[str]:
    """What a reader has to know."""
    notes = [
        f"{entry.title}: the run is not finished; the figures are those of {len(entry.run.records)} inputs."
        for entry in entries
        if not entry.run.finished
    ]
    for entry in entries:
        if errors := entry.run.measures["errors"]:
            inputs = (
                "1 input ended its workers and is" if errors == 1 else f"{errors} inputs ended their workers and are"
            )
            notes.append(f"{entry.title}: {inputs} left out of all figures.")
    frozen = [e for e in entries if e.run.manifest["recipe"] != "adaptive" and not e.run.manifest.get("fresh")]
    if frozen:
        notes.append(
            "The recipes of TextAttack keep the first answer to a text (one draw of the noise), as in the paper. Some "
            "of their successes are due to that draw: “verified” counts only changes that fresh votes confirm."
        )
    parts = {part for entry in entries for part in (entry.run.manifest.get("parts") or {}).items()}
    notes += [f"Part of the recipes: {name} is {value}." for name, value in sorted(parts)]
    broken = [entry for entry in entries if entry.run.measures["violations"]]
    notes += [
        f"{entry.title}: {entry.run.measures['violations']} attacked texts lie inside the certified radius; adaptdel "
        "audit tests whether that is more than alpha allows."
        for entry in broken
    ]
    return notes


def _entry(number: int, run: AttackRun) -> AttackEntry:
    """A run with some of its attacked texts, if the data file is where the run read it."""
    successes = [record for record in run.records if record["outcome"] == "success" and record["text"] is not None]
    chosen = {record["row"]: record for record in successes[:SHOWN]}
    texts = []
    data = run.manifest["data"]
    columns = {name: data[name] for name in ("text", "label", "ids", "encoding") if name in data}
    if chosen and Path(str(data.get("path"))).is_file():
        for row in Source(data["path"], **columns).rows(max(chosen)):
            if isinstance(row, Row) and row.number in chosen:
                record = chosen[row.number]
                texts.append(
                    ShownText(
                        row.number,
                        record["truth"],
                        str(record["answer_after"]),
                        record["distance"],
                        record["radius"],
                        _parts(row.text.split(), record["text"].split()),
                    )
                )
    return AttackEntry(number, run, texts)


def _parts(original: list[str], attacked: list[str]) -> list[tuple[str, str]]:
    """The words of two texts: those that stayed, that are gone and that are new."""
    parts: list[tuple[str, str]] = []
    for kind, start, end, first, last in SequenceMatcher(None, original, attacked, autojunk=False).get_opcodes():
        if kind == "equal":
            words = original[start:end]
            parts.append(("same", " ".join(words if len(words) <= 24 else [*words[:10], "…", *words[-10:]])))
        else:
            if end > start:
                parts.append(("gone", " ".join(original[start:end])))
            if last > first:
                parts.append(
                    ("new", " ".join(word if len(word) <= 60 else word[:57] + "…" for word in attacked[first:last]))
                )
    return parts


def _write_figures(entries: Sequence[AttackEntry], folder: Path) -> list[Drawing]:
    folder.mkdir()
    drawings = []
    for entry in entries:
        figures = (
            (f"bounds-{entry.number}", "Accuracy under attack", _bounds_caption(), _bounds_figure(entry)),
            (f"gap-{entry.number}", "Certified radius and attacked distance", _gap_caption(), _gap_figure(entry)),
        )
        for name, title, caption, figure in figures:
            for ending in FORMATS:
                save(figure, folder / f"{name}{ending}")
                figure.set_layout_engine("none")
            svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
            drawings.append(Drawing(name, f"{title}: {entry.title}", caption, svg))
    return drawings


def _bounds_caption() -> str:
    return (
        "Lower line: the share of inputs whose right answer is certified against r edits. Upper line: the share whose "
        "right answer the attack did not change with up to r edits. The true accuracy under attack lies between them."
    )


def _gap_caption() -> str:
    return (
        "A point for each input whose answer the attack changed. Every point must lie above the dashed line, up to the "
        "error level of the certificates; the distance from it is what certificate and attack leave open."
    )


def _bounds_figure(entry: AttackEntry) -> Any:
    figure = new_figure(WIDTH, 3.2)
    axes = figure.subplots()
    curves = robustness_curves(entry.run.records)
    edits = [point["edits"] for point in curves]
    certified, attacked = ([point[name] for point in curves] for name in ("certified", "attacked"))
    colour = COLOURS[entry.number % len(COLOURS)][0]
    axes.fill_between(edits, certified, attacked, step="post", color=colour, alpha=0.12, lw=0)
    axes.step(edits, attacked, where="post", color=colour, lw=1.6, ls=(0, (5, 1.6)), label="not broken by the attack")
    axes.step(edits, certified, where="post", color=colour, lw=1.8, label="certified")
    _style(axes, "number of edits r", "share of inputs")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _gap_figure(entry: AttackEntry) -> Any:
    figure = new_figure(WIDTH, 3.2)
    axes = figure.subplots()
    shown = [record for record in entry.run.records if is_verified(record) and record["covered"]]
    radii = [max(record["radius"], 0) for record in shown]
    distances = [record["distance"] for record in shown]
    largest = max([1, *radii])
    axes.plot([0, largest], [0, largest], color=MUTED, lw=1, ls="--")
    axes.plot(radii, distances, "o", color=COLOURS[entry.number % len(COLOURS)][0], ms=4, alpha=0.5, mew=0)
    if distances and max(distances) > 30:
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=0)
    _style(axes, "certified radius", "attacked distance")
    return figure


def _style(axes: Any, horizontal: str, vertical: str) -> None:
    axes.set_xlabel(horizontal, color=INK, fontsize=9)
    axes.set_ylabel(vertical, color=INK, fontsize=9)
    axes.tick_params(colors=MUTED, labelsize=8)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)


def _markdown(title: str, notes: Sequence[str], tables: Sequence[Table], drawings: Sequence[Drawing]) -> str:
    blocks = [f"# {markdown_text(title)}", *(f"> **Note.** {markdown_text(note)}" for note in notes)]
    blocks += [table.to_markdown() for table in tables]
    for drawing in drawings:
        blocks.append(f"![{markdown_text(drawing.title)}](figures/{drawing.name}.png)")
        blocks.append(f"**{markdown_text(drawing.title)}.** {markdown_text(drawing.caption)}")
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"
