"""The figures of the page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptdel import plots
from adaptdel.measures.summary import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.report import figures
from adaptdel.report.entries import read_entries
from experiments.paper.published import ABLATION, MAIN
from experiments.paper.study import NAMES, TITLES

PANELS = {
    "radius": figures.certified_by_radius,
    "region": figures.certified_by_cardinality,
    "quartiles": figures.quartile_panels,
    "rates": figures.rates,
}
KINDS = {
    "AdaptDel": ("#1d6f65", "o", "AdaptDel over rates p_lb"),
    "AdaptDel+ mean": ("#b5491f", "s", "AdaptDel+, mean radius at an accuracy"),
    "AdaptDel+ kept": ("#b5491f", "s", "AdaptDel+, the same number of kept words"),
    "AdaptDel+ few": ("#c2185b", "*", "the same, trained on 4 to 12 words"),
    "AdaptDel+ certified": ("#5b4b9a", "D", "AdaptDel+, radius at a certified accuracy"),
    "AdaptDel+ binned": ("#8a6d1f", "^", "AdaptDel+ with bins"),
}
THEIRS = {
    "ranmask": ("RanMASK", (-5, -9), "right"),
    "cert-ed": ("CERT-ED", (-5, 3), "right"),
    "adaptdel": ("AdaptDel", (5, -9), "left"),
    "adaptdel+": ("AdaptDel+", (-2, -11), "right"),
}
SHOWN = 0.12  # points that are less accurate than the best by more are left to the table
ONE_ANSWER = 0.99  # a model that answers one class so often has learnt to be constant


def draw_runs(runs: Mapping[str, Path], folder: Path, stem: str) -> None:
    """Certified accuracy against radius and region, panels by quartile of length, rates and kept lengths, by method."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = zip(runs, read_entries(list(runs.values())), strict=True)
    smoothed = [replace(entry, name=NAMES[method]) for method, entry in entries if method != "nosmooth"]
    for name, draw in PANELS.items():
        plots.save(draw(smoothed), folder / f"{stem}-{name}.png")


def one_answer(point: Mapping[str, Any]) -> bool:
    """Whether its radius is bought by constant answers."""
    return bool(point.get("most_frequent_answer", 0.0) >= ONE_ANSWER)


def front(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points that no other beats in both accuracy and radius, the most accurate first; no constant answers."""
    best: list[Mapping[str, Any]] = []
    able = [point for point in points if not one_answer(point)]
    for point in sorted(able, key=lambda row: (-row["clean_accuracy"], -row["mean_radius"])):
        if not best or point["mean_radius"] > best[-1]["mean_radius"]:
            best.append(point)
    return best


def draw_pareto(
    points: Sequence[Mapping[str, Any]], name: str, path: Path, linear: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Clean accuracy against mean radius, with the paper's points where its data set is the same or nearly so.

    The front of the linear model is drawn beside it, if its points are given.
    """
    figure = plots.new_figure(6.4, 4.2)
    axes = figure.subplots()
    best = max(row["clean_accuracy"] for row in points)
    shown = [row for row in points if row["clean_accuracy"] > best - SHOWN and not one_answer(row)]
    cut = f"; points that only the table shows: {len(points) - len(shown)}" if len(shown) < len(points) else ""
    points = shown
    steps = front(points)
    axes.plot(
        [row["mean_radius"] for row in steps],
        [100 * row["clean_accuracy"] for row in steps],
        color="#9aa3ad",
        lw=1.2,
        zorder=1,
        label="our front",
    )
    near = [row for row in linear if row["clean_accuracy"] > best - SHOWN and not one_answer(row)]
    if near:
        others = front(near)
        label = f"front of the linear model, {near[0]['inputs']:,} inputs"
        across, up = (
            [scale * row[field] for row in others] for scale, field in ((1, "mean_radius"), (100, "clean_accuracy"))
        )
        axes.plot(across, up, ":", color="#9aa3ad", marker=".", ms=4, lw=1.2, zorder=1, label=label)
    wide, high = (max(row[field] for row in shown) for field in ("mean_radius", "clean_accuracy"))
    named: list[tuple[float, float]] = []
    for kind, (colour, marker, label) in KINDS.items():
        some = [row for row in points if row["kind"] == kind]
        across, up = (
            [scale * row[field] for row in some] for scale, field in ((1, "mean_radius"), (100, "clean_accuracy"))
        )
        if some:
            axes.scatter(across, up, color=colour, marker=marker, s=26, label=label, zorder=3)
        for row, x, y in zip(some, across, up, strict=True):
            close = [abs(x - a) < 0.06 * wide and abs(y - b) < 3 * high for a, b in named]
            if row in steps and not any(close):
                named.append((x, y))
                axes.annotate(
                    row["setting"], (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colour
                )
    if name in ("imdb", "spamassassin"):
        label = "the paper, RoBERTa" + (", its own mails" if name == "spamassassin" else "")
        theirs = [(*THEIRS[method], row[1], row[0]) for method, row in MAIN[name].items() if row[1] and row[0]]
        axes.plot([row[3] for row in theirs], [row[4] for row in theirs], "x", color="#20242a", ms=5.5, label=label)
        for text, offset, side, x, y in theirs:
            axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", fontsize=7, ha=side)
        rates = [(row[2], row[1]) for rate, row in ABLATION[name].items() if rate != 90]
        label = "its AdaptDel at other rates"
        axes.plot([x for x, _ in rates], [y for _, y in rates], "+", color="#6a7280", ms=5.5, label=label)
    inputs = f", {points[0]['inputs']:,} test inputs" if "inputs" in points[0] else ""
    axes.set_title(f"{TITLES[name]}{inputs}", loc="left", fontsize=10)
    axes.set_xlabel(f"{MEAN_RADIUS}, edits{cut}")
    axes.set_ylabel(f"{CLEAN_ACCURACY}, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e2e5ea", lw=0.7)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    plots.save(figure, path)
