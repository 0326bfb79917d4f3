"""Figures with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from adaptdel.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_MISSING = "figures need matplotlib: pip install 'adaptdel[plot]'"


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
        raise ImportError(_MISSING) from None
    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float, height: float) -> Axes:
    """Axes of a figure that a notebook shows; the size is in inches."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError(_MISSING) from None
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure atomically; an SVG file holds its text as text, and the identifiers follow from its name."""
    from matplotlib import rc_context

    target = check_figure_path(path)
    metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
    with replacing(target) as file, rc_context({"svg.fonttype": "none", "svg.hashsalt": target.stem}):
        figure.savefig(file, format=target.suffix[1:].lower(), dpi=150, metadata=metadata)
