"""The report on runs of attacks: robust accuracies, and the certified radius beside the attacked distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.attacks.attack_run import ADAPTIVE, AttackRun, read_attack_run
from adaptdel.attacks.outcomes import SUCCESS, attack_table, gap_table, is_verified
from adaptdel.report.entries import COLOURS
from adaptdel.report.figures import INK, MUTED, labelled_axes, tidy
from adaptdel.report.words import find_texts
from adaptdel.report.write import finish, report_folder, write_figures
from adaptdel.tables import percent, plural

SHOWN = 8  # attacked texts of a run
_BARS = (
    "The fraction of right answers that the attack did not change, with 95% intervals of the bootstrap, as in the "
    "paper. Answers are those of the attack's own queries: the table says which changes fresh votes confirm."
)
_BOUNDS = (
    "Lower line: the fraction of inputs whose right answer is certified against r edits. Upper line: the fraction "
    "whose right answer the attack did not change with up to r edits. The true accuracy lies between them."
)
_GAP = (
    "A point for each input whose answer the attack changed. Every point must lie above the dashed line, up to the "
    "error level of the certificates; the distance from it is what certificate and attack leave open."
)


@dataclass(frozen=True)
class AttackEntry:
    """A run of attacks in the report, with some of the attacked texts.

    Attributes:
        number: its position, from 0.
        run: the run.
        row: the measures, with the names of model and recipe.
        texts: records of successes, each with the text in parts: (kind, words), where kind is "same", "gone" or "new".
    """

    number: int
    run: AttackRun
    row: dict[str, Any]
    texts: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """The model and the recipe."""
        return f"{self.row['model']}, {self.row['recipe']}"

    @property
    def colour(self) -> str:
        """The colour of its curves."""
        return COLOURS[self.number % len(COLOURS)][0]


def write_attack_report(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> dict[str, Any]:
    """Write a report on runs of attacks to a folder, atomically, and return its numbers.

    Args:
        runs: the folders of the runs.
        out: a new folder, an empty folder, or a report, which is replaced. Any other folder is refused.
        title: the title of the page.
    """
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    with report_folder(Path(out)) as partial:
        entries = [_entry(number, read_attack_run(Path(folder))) for number, folder in enumerate(runs)]
        rows = [entry.row for entry in entries]
        report: dict[str, Any] = {
            "title": title or "Attacks on certified classifiers",
            "entries": entries,
            "summary": [
                f"{entry.title}: no input was attacked."
                if entry.row["robust_accuracy"] is None
                else f"{entry.title}: {percent(entry.row['accuracy_before'])} of "
                f"{plural(entry.row['inputs'], 'input')} are answered correctly without an attack, "
                f"{percent(entry.row['accuracy_after'])} under it."
                for entry in entries
            ],
            "notes": _notes(entries),
            "tables": [attack_table(rows), gap_table(rows)],
            "drawings": write_figures(_figures(entries), partial / "figures"),
        }
        values = {
            "runs": [
                {
                    "name": entry.row["model"],
                    "recipe": entry.row["recipe"],
                    "run": entry.run.folder.name,
                    "finished": entry.run.finished,
                    "measures": entry.run.measures,
                    "curves": entry.run.curve,
                }
                for entry in entries
            ]
        }
        finish(partial, "attacks.html", report, report["tables"], values)
    return values


def _notes(entries: Sequence[AttackEntry]) -> list[str]:
    """What a reader has to know."""
    notes = [
        f"{entry.title}: the run is not finished; the figures are those of {len(entry.run.records)} inputs."
        for entry in entries
        if not entry.run.finished
    ]
    for entry in entries:
        if errors := entry.row["errors"]:
            ended = "input ended its workers and is" if errors == 1 else "inputs ended their workers and are"
            notes.append(f"{entry.title}: {errors} {ended} left out of all figures.")
    if any(entry.row["recipe"] != ADAPTIVE for entry in entries):
        notes.append(
            "The recipes of TextAttack keep the first answer to a text (one draw of the noise), as in the paper. Some "
            "of their successes are due to that draw: “verified” counts only changes that fresh votes confirm."
        )
    parts = sorted({part for entry in entries for part in entry.run.manifest.parts.items()})
    notes += [f"Part of the recipes: {name} is {value}." for name, value in parts]
    return notes + [
        f"{entry.title}: {entry.row['violations']} attacked texts lie inside the certified radius; adaptdel "
        "audit tests whether that is more than alpha allows."
        for entry in entries
        if entry.row["violations"]
    ]


def _entry(number: int, run: AttackRun) -> AttackEntry:
    """A run with some of its attacked texts, if the data file still holds the originals."""
    successes = [record for record in run.records if record["outcome"] == SUCCESS and record["text"] is not None]
    texts, _ = find_texts(run.manifest.data, {record["row"]: record["id"] for record in successes[:SHOWN]})
    attacked = [
        record | {"parts": _parts(texts[record["row"]].split(), record["text"].split())}
        for record in successes[:SHOWN]
        if record["row"] in texts
    ]
    names = {"model": Path(run.manifest.model.path).name or "model", "recipe": run.manifest.recipe}
    return AttackEntry(number, run, names | run.measures, attacked)


def _parts(original: list[str], attacked: list[str]) -> list[tuple[str, str]]:
    """The words of two texts: those that stayed, that are gone and that are new."""
    parts: list[tuple[str, str]] = []
    for kind, start, end, first, last in SequenceMatcher(None, original, attacked, autojunk=False).get_opcodes():
        gone, new = original[start:end], attacked[first:last]
        if kind == "equal":
            parts.append(("same", " ".join(gone if len(gone) <= 24 else [*gone[:10], "…", *gone[-10:]])))
            continue
        parts += [("gone", " ".join(gone))] if gone else []
        parts += [("new", " ".join(word if len(word) <= 60 else word[:57] + "…" for word in new))] if new else []
    return parts


def _figures(entries: Sequence[AttackEntry]) -> Iterator[tuple[str, str, str, Any]]:
    measured = [entry for entry in entries if entry.run.records]
    if measured:
        yield "robust-accuracy", "Robust accuracy", _BARS, _bars(measured)
    for entry in measured:
        yield f"bounds-{entry.number}", f"Accuracy under attack: {entry.title}", _BOUNDS, _bounds_figure(entry)
        title = f"Certified radius and attacked distance: {entry.title}"
        yield f"gap-{entry.number}", title, _GAP, _gap_figure(entry)


def _bars(entries: Sequence[AttackEntry]) -> Any:
    """Robust accuracies by recipe, a bar for each model, as in the paper's figure."""
    models, recipes = ([*dict.fromkeys(entry.row[name] for entry in entries)] for name in ("model", "recipe"))
    axes = labelled_axes("", "robust accuracy")
    width = 0.8 / len(models)
    for number, model in enumerate(models):
        rows = [entry.row for entry in entries if entry.row["model"] == model and entry.run.records]
        heights = np.array([row["robust_accuracy"] for row in rows])
        ends = np.array([row["robust_accuracy_bootstrap"] for row in rows]).reshape(-1, 2).T
        positions = [recipes.index(row["recipe"]) + (number - (len(models) - 1) / 2) * width for row in rows]
        axes.bar(positions, heights, width, color=COLOURS[number % len(COLOURS)][0], label=model)
        axes.errorbar(positions, heights, np.abs(ends - heights), fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.set_xticks(range(len(recipes)), recipes)
    axes.set_ylim(0, 1.02)
    tidy(axes)
    axes.figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    return axes.figure


def _bounds_figure(entry: AttackEntry) -> Any:
    axes = labelled_axes("number of edits r", "fraction of inputs")
    curves = entry.run.curve
    edits = [point["edits"] for point in curves]
    certified, attacked = ([point[name] for point in curves] for name in ("certified", "attacked"))
    axes.fill_between(edits, certified, attacked, step="post", color=entry.colour, alpha=0.12, lw=0)
    axes.step(edits, attacked, where="post", color=entry.colour, lw=1.6, ls=(0, (5, 1.6)), label="not broken")
    axes.step(edits, certified, where="post", color=entry.colour, lw=1.8, label="certified")
    tidy(axes)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return axes.figure


def _gap_figure(entry: AttackEntry) -> Any:
    axes = labelled_axes("certified radius", "attacked distance")
    shown = [record for record in entry.run.records if is_verified(record) and record["covered"]]
    radii = [max(record["radius"], 0) for record in shown]
    distances = [record["distance"] for record in shown]
    largest = max([1, *radii])
    axes.plot([0, largest], [0, largest], color=MUTED, lw=1, ls="--")
    axes.plot(radii, distances, "o", color=entry.colour, ms=4, alpha=0.5, mew=0)
    if distances and max(distances) > 30:
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=0)
    tidy(axes)
    return axes.figure
