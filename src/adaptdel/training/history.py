"""How a training went: as a table, a CSV and a curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptdel import plots

History = list[dict[str, Any]]


def history_csv(history: History) -> str:
    """The history as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]) if history else ["epoch"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def history_text(history: History, *, most: int = 20) -> str:
    """The history in columns for a terminal; the middle of a long one is left out."""
    if not history:
        return "no epochs"
    names = list(history[0])
    shown = list(history) if len(history) <= most else [*history[: most // 2], {}, *history[-most // 2 :]]
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[_cell(row.get(name)) if row else "..." for name in names] for row in shown]
    widths = [max(len(row[place]) for row in cells) for place in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plot_history(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the losses, and the accuracy where there is one, over epochs or steps."""
    step = "epoch" if history and "epoch" in history[0] else "step"
    figure = plots.new_figure(7, 3.6)
    accurate = [row for row in history if row.get("valid_accuracy") is not None]
    panels = figure.subplots(1, 2 if len(accurate) > 1 else 1, squeeze=False)[0]
    for name, colour, label in (("train_loss", "#1d6f65", "training"), ("valid_loss", "#c8553d", "held out")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            panels[0].plot([row[step] for row in rows], [row[name] for row in rows], color=colour, lw=1.6, label=label)
    panels[0].set(xlabel=step, ylabel="loss")
    panels[0].legend(frameon=False)
    if len(accurate) > 1:
        panels[1].plot([row[step] for row in accurate], [row["valid_accuracy"] for row in accurate], color="#c8553d")
        panels[1].set(xlabel=step, ylabel="accuracy on noisy held-out examples")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)
