"""Figures with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from adaptdel.files import replacing
from adaptdel.planner import RadiusPlan
from adaptdel.protection import DetectionCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def check_figure_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a figure; ValueError if its ending is unknown or its folder does not exist."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"a figure's name must end in {', '.join(FORMATS)}, got {target.name!r}")
    if not target.parent.is_dir():
        raise ValueError(f"a figure needs an existing folder, got {str(target.parent)!r}")
    new_figure(1, 1)  # raises at once if matplotlib is missing
    return target


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; the size is in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'adaptdel[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure atomically."""
    target = check_figure_path(path)
    metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix[1:].lower(), dpi=150, metadata=metadata)


def plot_detection(curve: DetectionCurve, path: str | os.PathLike[str]) -> None:
    """Draw a ROC curve under attack: certified detection at each radius against the rate of false positives."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    shades = [f"{0.75 * place / max(len(curve.radii) - 1, 1):.3f}" for place in range(len(curve.radii))]
    for column, (radius, shade) in enumerate(zip(curve.radii.tolist(), shades, strict=True)):
        label = "no attack" if radius == 0 else "1 edit" if radius == 1 else f"{radius} edits"
        axes.step(100 * curve.false_positives, 100 * curve.detection[:, column], where="post", color=shade, label=label)
    axes.set(xlabel="false positives (%)", ylabel="certified detection (%)", ylim=(0, 101))
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def plot_plan(plan: RadiusPlan, path: str | os.PathLike[str]) -> None:
    """Draw p*(r): the least probability of the answer that certifies each radius."""
    figure = new_figure(7, 4)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    radii = plan.radii
    axes.fill_between(radii, plan.least_probability, 1.0, step="mid", color="#2a9d8f", alpha=0.18, lw=0)
    axes.step(radii, plan.least_probability, where="mid", color="#1d6f65", lw=1.8)
    axes.plot(radii, plan.least_probability, "o", color="#1d6f65", ms=3.5 if len(radii) <= 60 else 0)
    axes.annotate("certified", (0.12, 0.7), xycoords="axes fraction", color="#1d6f65")
    if plan.lower is not None and plan.radius is not None:
        label = f"{plan.successes} of {plan.trials} votes: p ≥ {plan.lower:.4f}"
        label += f", radius {plan.radius}" if plan.radius >= 0 else ", abstained"
        axes.axhline(plan.lower, color="#c8553d", lw=1.2, ls="--", label=label)
        if plan.radius >= 0:
            axes.plot([plan.radius], [plan.lower], "D", color="#c8553d", ms=6)
        axes.legend(loc="lower right", frameon=False)
    axes.set_ylim(min(0.5, plan.lower if plan.lower is not None else 0.5) - 0.01, 1.005)
    axes.set_xlim(-0.5, plan.largest + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"radius r: number of edits ({', '.join(plan.threat.ops)})")
    axes.set_ylabel("least probability p*(r)")
    axes.set_title(
        f"Least probability for each radius: {plan.length} tokens, {100 * plan.rate:.4g}% removed", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
