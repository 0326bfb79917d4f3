"""The figures of the page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptdel import plots
from adaptdel.evaluation import figures
from adaptdel.evaluation.entries import read_entries
from benchmarks.paper.published import MAIN
from benchmarks.paper.study import TITLES

PANELS = {
    "radius": figures.certified_by_radius,
    "region": figures.certified_by_cardinality,
    "quartiles": figures.quartile_panels,
    "rates": figures.rates,
}
KINDS = {
    "AdaptDel": ("#1d6f65", "o", "AdaptDel over rates", (4, 4)),
    "AdaptDel+ mean": ("#b5491f", "s", "AdaptDel+, mean radius at an accuracy", (4, -9)),
    "AdaptDel+ certified": ("#5b4b9a", "D", "AdaptDel+, radius at a certified accuracy", (-7, -11)),
}
SHOWN = 0.12  # points that are less accurate than the best by more are left to the table


def draw_runs(runs: Sequence[Path], folder: Path, stem: str) -> None:
    """Certified accuracy against radius and region, panels by quartile of length, rates and kept lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    smoothed = [entry for entry in read_entries(runs) if entry.run.manifest["noise"]["kind"] != "none"]
    kinds = [(entry.run.manifest["noise"].get("rate") or {}).get("kind", "") for entry in smoothed]
    smoothed = [
        replace(entry, name=f"AdaptDel+ {kind}" if kind in ("binned", "interpolated") else entry.name)
        for entry, kind in zip(smoothed, kinds, strict=True)
    ]
    for name, draw in PANELS.items():
        plots.save(draw(smoothed), folder / f"{stem}-{name}.png")


def front(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points that no other beats in both accuracy and radius, from the most accurate on."""
    best: list[Mapping[str, Any]] = []
    for point in sorted(points, key=lambda row: (-row["clean_accuracy"], -row["mean_radius"])):
        if not best or point["mean_radius"] > best[-1]["mean_radius"]:
            best.append(point)
    return best


def draw_pareto(points: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Clean accuracy against mean radius, with the paper's points where its data set is the same or nearly so."""
    figure = plots.new_figure(6.4, 4.2)
    axes = figure.subplots()
    best = max(row["clean_accuracy"] for row in points)
    points = [row for row in points if row["clean_accuracy"] > best - SHOWN]
    steps = front(points)
    axes.plot(
        [row["mean_radius"] for row in steps],
        [100 * row["clean_accuracy"] for row in steps],
        color="#9aa3ad",
        lw=1.2,
        zorder=1,
        label="our front",
    )
    for kind, (colour, marker, label, offset) in KINDS.items():
        some = [row for row in points if row["kind"] == kind]
        across, up = (
            [scale * row[field] for row in some] for scale, field in ((1, "mean_radius"), (100, "clean_accuracy"))
        )
        axes.scatter(across, up, color=colour, marker=marker, s=26, label=label, zorder=3)
        for row, x, y in zip(some, across, up, strict=True):
            axes.annotate(row["setting"], (x, y), xytext=offset, textcoords="offset points", fontsize=7, color=colour)
    if name in ("imdb", "spamassassin"):
        label = "the paper, RoBERTa" + (", its own mails" if name == "spamassassin" else "")
        theirs = [(method, row[1], row[0]) for method, row in MAIN[name].items() if row[1] and row[0]]
        axes.plot([x for _, x, _ in theirs], [y for _, _, y in theirs], "x", color="#20242a", ms=5.5, label=label)
        for method, x, y in theirs:
            axes.annotate(method, (x, y), xytext=(4, -9), textcoords="offset points", fontsize=7)
    axes.set_title(TITLES[name], loc="left", fontsize=10)
    axes.set_xlabel("mean certified radius, edits")
    axes.set_ylabel("clean accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e2e5ea", lw=0.7)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    plots.save(figure, path)
