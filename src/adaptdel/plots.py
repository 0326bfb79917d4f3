"""Figures with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptdel.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_MISSING = "figures need matplotlib: pip install 'adaptdel[plot]'"


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


def optional(draw: Callable[[Any, Path], None]) -> Callable[[Any, Path], None]:
    """A function that draws into a file, and without matplotlib removes an earlier figure instead."""

    @wraps(draw)
    def drawn(values: Any, path: Path) -> None:
        try:
            draw(values, path)
        except ImportError:
            path.unlink(missing_ok=True)

    return drawn


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure atomically; an SVG file holds its text as text, and the identifiers follow from its name."""
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    kind = target.suffix[1:].lower()
    metadata = {"Date": None} if kind == "svg" else None
    with replacing(target) as file, rc_context({"svg.fonttype": "none", "svg.hashsalt": target.stem}):
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
