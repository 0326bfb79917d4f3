"""Figures in the folder of a model; without matplotlib, which is an extra, there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptdel import plots
from adaptdel.models.additive import AdditiveClassifier

HISTORY, FRONT, DETECTION = "history.png", "front.png", "detection.png"


@plots.optional
def plot_history(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the losses, and the accuracy where it was measured, over epochs or steps."""
    step = "epoch" if history and "epoch" in history[0] else "step"
    figure = plots.new_figure(7, 3.6)
    with_accuracy = [row for row in history if row.get("valid_accuracy") is not None]
    panels = figure.subplots(1, 2 if len(with_accuracy) > 1 else 1, squeeze=False)[0]
    for name, colour, label in (("train_loss", "#1d6f65", "training"), ("valid_loss", "#c8553d", "held out")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            panels[0].plot([row[step] for row in rows], [row[name] for row in rows], color=colour, lw=1.6, label=label)
    panels[0].set(xlabel=step, ylabel="loss")
    panels[0].legend(frameon=False)
    if len(with_accuracy) > 1:
        steps, accuracies = ([row[name] for row in with_accuracy] for name in (step, "valid_accuracy"))
        panels[1].plot(steps, accuracies, color="#c8553d")
        panels[1].set(xlabel=step, ylabel="accuracy on noisy held-out examples")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)


@plots.optional
def plot_front(model: AdditiveClassifier, path: Path) -> None:
    """Plot the held-out accuracy of an additive classifier against its mean radius, for each of its bounds."""
    front, point = model.front_, model.base_classifier().options()["point"]
    figure = plots.new_figure(5, 3.6)
    axes = figure.subplots()
    radii = [each["mean_radius"] for each in front]
    for name, colour in (("accuracy", "#1d6f65"), ("balanced_accuracy", "#c8553d")):
        values = [100 * each[name] for each in front]
        axes.plot(radii, values, marker="o", ms=4, color=colour, lw=1.6, label=name.replace("_", " "))
        axes.plot(radii[point], values[point], "o", ms=9, mfc="none", color=colour)
    axes.set(xlabel="mean certified radius on held-out examples", ylabel="%")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)


@plots.optional
def plot_detection(record: Mapping[str, Any], path: Path) -> None:
    """Plot the detected part of the protected class against the number of edits."""
    figure = plots.new_figure(6, 3.6)
    axes, start = figure.subplots(), record["detected"] / max(record["positives"], 1)
    curves = {"characters": record["characters"], record["tokens"]: record["certified"]}
    for (noun, curve), colour in zip(curves.items(), ("#1d6f65", "#c8553d"), strict=False):
        if curve:
            edits, fractions = [0, *map(int, curve)], [100 * value for value in (start, *curve.values())]
            axes.plot(edits, fractions, marker="o", ms=3, lw=1.6, color=colour, label=noun)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlim=(0, None), ylim=(0, 103), xlabel="edits of each text", ylabel=f"% of {record['label']} detected")
    axes.set_title(f"at most {100 * record['upper']:.2g}% false positives", fontsize=10)
    axes.legend(frameon=False, title="whatever is changed of its")
    axes.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)
