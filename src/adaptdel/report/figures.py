"""The figures of a report, as files and as parts of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.core.noise import noise_from_dict
from adaptdel.core.threat import Threat
from adaptdel.measures.summary import Outcomes, log_cardinality_curve, quantiles, radius_curve, wilson
from adaptdel.plots import new_axes, new_figure
from adaptdel.report.entries import Entry, clip, read_entries
from adaptdel.report.words import token
from adaptdel.runs.storage import Run

# Of an SVG file: what a page needs not. Identifiers of clip paths and markers stay: `plots.save` makes them unique.
_DROPPED = re.compile(
    r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->|\s+xmlns(:\w+)?=\"[^\"]*\"|"
    r"\s+id=\"(?![pm][0-9a-f]{10}\")[^\"]*\"",
    re.DOTALL,
)


def inline_svg(text: str, label: str, colours: Mapping[str, str]) -> str:
    """An SVG file as an element of a page; its colours are replaced by those in ``colours``, which follow the theme."""
    text = _DROPPED.sub("", text[text.index("<svg") :]).replace("xlink:href", "href")
    for colour, replacement in colours.items():
        text = text.replace(colour, replacement)
    box = re.search(r'viewBox="[^"]*"', text)
    start = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(label)}">'
    return re.sub(r"<svg\b[^>]*>", lambda _: start, text, count=1).strip()


Figure = Any  # matplotlib's; only `adaptdel.plots` imports it
Axes = Any
INK, MUTED, GRID = "#20242a", "#6a7280", "#e2e5ea"
WIDTH = 4.8  # inches: two figures side by side on a desktop, one legible on a phone
_LINES = ("-", (0, (5, 1.6)), (0, (5, 1.4, 1.2, 1.4)), (0, (1.2, 1.2)))
_PANELS = 8  # classes with a panel of their own
_GROUPS = 10  # of inputs of similar length
_TAIL, _BULK, _STRETCH = 0.01, 0.1, 2.5  # curves end where 1% of the inputs are left, at most 2.5 times as far as 10%
_FAR, _APART = 20, 4  # a logarithmic scale where curves end beyond 20, and one 4 times as far as another

Curve = Callable[[Outcomes], tuple[Any, Any]]
Part = tuple[Entry, Outcomes]


def draw(entries: Sequence[Entry]) -> list[tuple[str, str, str, Figure]]:
    """All figures: name, title, caption and figure."""
    protected = {clip(str(entry.protects), 20) for entry in entries if entry.protects is not None}
    answers = f"of the inputs with the label {' or '.join(sorted(protected))}"
    limited = [f"that of {entry.name} only {Threat(entry.ops).verbs}" for entry in entries if len(entry.ops) < 3]
    made = f" that the attacker can make ({', '.join(limited)})" if limited else ""
    shown: list[tuple[str, str, str, Figure | None]] = [
        ("certified-radius", "Certified accuracy against the radius",
         "A point (r, a): for a fraction a of the inputs, the answer is correct and certified against any r edits"
         f"{made}. Bands: 95% intervals, by the choice of the inputs.", certified_by_radius(entries)),
        ("detection", "Detection against edits",
         f"A point (r, d): a fraction d {answers} is recognised after any r edits of words{made}, or any r edits of "
         "characters.",
         detection_curves(entries)),
        ("classes", "Certified recall by class against the radius",
         "A panel for each class: a point (r, a) for a fraction a of its inputs whose answer is correct and certified "
         f"against any r edits{made}.", class_panels(entries)),
        ("certified-cardinality", "Certified accuracy against the size of the certified region",
         "A point (c, a): for a fraction a of the inputs, the answer is correct and the certified region holds at "
         "least 10ᶜ texts. It makes different attackers comparable. Curves end where few inputs are left.",
         certified_by_cardinality(entries)),
        ("quartiles", "Certified accuracy by quartile of length",
         "The same for the shortest quarter of the inputs, the second, the third, and the longest.",
         quartile_panels(entries)),
        ("rates", "Rate and kept length",
         f"The fraction of {token(entries[0].manifest.get('unit'))}s that the noise removes, and the expected number "
         "that the model reads, by length.", rates(entries)),
    ]  # fmt: skip
    return [(name, title, caption, figure) for name, title, caption, figure in shown if figure is not None]


def certified_by_radius(entries: Sequence[Entry]) -> Figure:
    """Certified accuracy against the radius."""
    figure, axes = single_figure("radius: number of edits", "certified accuracy")
    _by_radius(axes, entries)
    _legend(figure, axes)
    return figure


def plot_certified_accuracy(*runs: Run | str | Path, axes: Axes | None = None) -> Axes:
    """Draw certified accuracy against the radius, a curve for each run, with intervals of 95% confidence.

    Args:
        runs: runs or their folders; runs that differ in their seeds only are one curve.
        axes: of matplotlib, to draw into; None for new ones.
    """
    axes = _labelled(axes, "radius: number of edits", "certified accuracy")
    _by_radius(axes, _entries(runs))
    axes.legend(frameon=False, fontsize=8.5)
    return axes


def plot_radius_against_length(*runs: Run | str | Path, axes: Axes | None = None) -> Axes:
    """Draw the mean certified radius against the length; wrong answers count as radius 0.

    Inputs are grouped by quantiles of the length; a point stands at the mean length of a group.

    Args:
        runs: runs or their folders; runs that differ in their seeds only are one curve.
        axes: of matplotlib, to draw into; None for new ones.
    """
    axes = _labelled(axes, "length, tokens", "mean certified radius")
    for entry in _entries(runs):
        inputs = entry.outcomes
        if not len(inputs):
            continue
        edges = np.unique(quantiles(inputs.length, inputs.count, np.linspace(0, 1, _GROUPS + 1)[1:-1].tolist()))
        group = np.searchsorted(edges, inputs.length)
        size = np.bincount(group, inputs.count)
        sums = [np.bincount(group, inputs.count * values) for values in (inputs.length, inputs.counted_radius)]
        means = [total[size > 0] / size[size > 0] for total in sums]
        axes.plot(*means, marker="o", ms=3.5, **_style(entry))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8.5)
    tidy(axes)
    return axes


def _entries(runs: Sequence[Run | str | Path]) -> list[Entry]:
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    return read_entries([run.folder if isinstance(run, Run) else Path(run) for run in runs])


def _by_radius(axes: Axes, entries: Sequence[Entry]) -> None:
    _curves(axes, [(entry, entry.outcomes) for entry in entries], radius_curve, bands=True)


def certified_by_cardinality(entries: Sequence[Entry]) -> Figure | None:
    """Certified accuracy against the log-cardinality of the certified region; None if no size is known."""
    if not any(entry.outcomes.log_cardinality.any() for entry in entries):
        return None
    figure, axes = single_figure("log₁₀ of the size of the certified region", "certified accuracy")
    _curves(axes, [(entry, entry.outcomes) for entry in entries], log_cardinality_curve)
    _legend(figure, axes)
    return figure


def class_panels(entries: Sequence[Entry]) -> Figure | None:
    """Certified recall against the radius, a panel for each class; of many classes, the most frequent ones."""
    sizes: dict[Any, int] = {}
    for entry in entries:
        for label, part in entry.by_class.items():
            sizes[label] = max(len(part), sizes.get(label, 0))
    frequent = sorted(sizes, key=lambda label: -sizes[label])[:_PANELS]
    parts = {
        f"{clip(str(label), 20)} ({sizes[label]:,})": [(e, e.by_class[label]) for e in entries if label in e.by_class]
        for label in sizes
        if label in frequent
    }
    return _panels(parts, radius_curve, "radius: number of edits", "certified recall")


def quartile_panels(entries: Sequence[Entry]) -> Figure | None:
    """Certified accuracy against log-cardinality, or the radius in characters, by quartile of the length."""
    parts = {}
    by_size: tuple[str, Curve] = ("log₁₀ of the size of the certified region", log_cardinality_curve)
    by_radius: tuple[str, Curve] = ("radius: number of edits", radius_curve)
    horizontal, curve = by_radius if any(entry.characters for entry in entries) else by_size
    for quarter in range(4):
        panel = [(entry, entry.quartiles[quarter]) for entry in entries if len(entry.quartiles[quarter])]
        if panel:
            lengths = np.concatenate([part.length for _, part in panel])
            parts[f"{lengths.min()} to {lengths.max()} tokens"] = panel
    if len(parts) < 2:
        return None
    return _panels(parts, curve, horizontal, "certified accuracy")


def _panels(parts: Mapping[str, Sequence[Part]], curve: Curve, horizontal: str, vertical: str) -> Figure | None:
    """A panel of curves for each part of the inputs, on the same scales; None without parts."""
    if not parts:
        return None
    rows = -(-len(parts) // 2)
    figure = new_figure(WIDTH, 1.5 + 1.5 * rows)
    panels = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).ravel()
    everything = [part for panel in parts.values() for part in panel]
    for axes, (title, panel) in zip(panels, parts.items(), strict=False):
        _curves(axes, panel, curve, scale=everything)
        axes.set_title(title, loc="right", fontsize=8, color=MUTED, pad=2)
    for axes in panels[len(parts) :]:
        axes.set_visible(False)
    figure.supxlabel(horizontal, fontsize=10, color=INK)
    figure.supylabel(vertical, fontsize=10, color=INK)
    _legend(figure, panels[0])
    return figure


def detection_curves(entries: Sequence[Entry]) -> Figure | None:
    """Certified recall of the protected class against edits of tokens, and of characters where these are known."""
    parts = [(e, part) for e in entries for label, part in e.by_class.items() if str(label) == e.protects]
    if not parts:
        return None
    figure, axes = single_figure("number of edits", "certified detection")
    shown: list[Part] = []
    for entry, part in parts:
        lines = {token(entry.unit): part}
        if part.character_radius is not None:
            lines["character"] = part.in_characters()
        for (noun, inputs), line in zip(lines.items(), _LINES, strict=False):
            _draw_steps(axes, inputs, radius_curve, _style(entry) | {"ls": line, "label": f"{entry.name}: {noun}s"})
            shown.append((entry, inputs))
    _finish_curves(axes, shown, radius_curve)
    _legend(figure, axes)
    return figure


def rates(entries: Sequence[Entry]) -> Figure | None:
    """The rate, and the expected number of kept tokens, against the length; None if no run has noise."""
    noisy = [e for e in entries if (e.manifest.get("noise") or {}).get("kind", "none") != "none" and len(e.outcomes)]
    noisy = [e for e in noisy if not noise_from_dict(e.manifest["noise"]).sees_tokens()]
    if not noisy:
        return None
    figure = new_figure(WIDTH, 3.2)
    left, right = figure.subplots(1, 2)
    for entry in noisy:
        lengths, noise = np.unique(entry.outcomes.length), noise_from_dict(entry.manifest["noise"])
        rate = np.array([noise.share_removed(length) for length in lengths.tolist()])
        style = _style(entry) | ({"marker": "o", "ms": 4} if len(lengths) == 1 else {})
        left.plot(lengths, rate, **style)
        right.plot(lengths, lengths * (1 - rate), **style)
    for axes, title in ((left, "fraction removed"), (right, "tokens kept on average")):
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(_thousands)
        axes.set_title(title, fontsize=9, color=INK)
        axes.set_xlabel("length, tokens", color=INK)
        tidy(axes)
    left.set_ylim(0, 1.03)
    left.yaxis.set_major_formatter(_percent)
    right.set_yscale("symlog", linthresh=10)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(_thousands)
    _legend(figure, left)
    return figure


def single_figure(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    """A figure with labelled axes."""
    figure = new_figure(WIDTH, 3.4)
    return figure, _labelled(figure.subplots(), horizontal, vertical)


def _labelled(axes: Axes | None, horizontal: str, vertical: str) -> Axes:
    axes = new_axes(WIDTH, 3.4) if axes is None else axes
    axes.set_xlabel(horizontal, color=INK)
    axes.set_ylabel(vertical, color=INK)
    return axes


def _curves(
    axes: Axes, parts: Sequence[Part], curve: Curve, *, bands: bool = False, scale: Sequence[Part] | None = None
) -> None:
    """Certified accuracy as a step function; the horizontal axis fits the parts of ``scale``, by default these."""
    for entry, part in parts:
        if len(part):
            ends, values = _draw_steps(axes, part, curve, _style(entry))
            if bands:
                low, high = wilson(values, len(entry.parts[0].outcomes))  # seeds share their inputs
                axes.fill_between(ends[:-1], low[:-1], high[:-1], step="pre", color=entry.colour, alpha=0.12, lw=0)
    _finish_curves(axes, scale or parts, curve)


def _draw_steps(axes: Axes, part: Outcomes, curve: Curve, style: Mapping[str, Any]) -> tuple[list[Any], Any]:
    thresholds, fraction = curve(part)
    ends, values = [*thresholds, thresholds[-1]], np.append(fraction, 0.0)
    axes.plot(ends, values, drawstyle="steps-pre", **style)
    return ends, values


def _finish_curves(axes: Axes, parts: Sequence[Part], curve: Curve) -> None:
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(_percent)
    reach, ends = _reach(parts, curve), [_reach([part], curve) for part in parts if len(part[1])]
    if ends and max(ends) > max(_FAR, _APART * min(ends)):
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(_thousands)
        axes.set_xlim(-0.1, reach)  # the value at 0 is not hidden by the axis
    else:
        axes.set_xlim(-0.02 * reach, reach)
        axes.xaxis.get_major_locator().set_params(integer=True)
    tidy(axes)


def _reach(parts: Sequence[Part], curve: Curve) -> float:
    """The end of the horizontal axis: a few inputs with huge radii do not compress the others."""
    ends = np.zeros((1, 2))
    for _, part in parts:
        if len(part):
            thresholds, fraction = curve(part)
            reached = [float(max(thresholds[fraction >= level], default=0.0)) for level in (_TAIL, _BULK)]
            ends = np.vstack([ends, reached])
    tail, bulk = ends.max(axis=0)
    return float(min(tail, _STRETCH * bulk) if bulk else tail) * 1.04 or 1.0


def _style(entry: Entry) -> dict[str, Any]:
    line = _LINES[entry.number % len(_LINES)]
    return {"color": entry.colour, "lw": 1.8, "ls": line, "label": entry.title}


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.3g}%"


def _thousands(value: float, _: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def tidy(axes: Axes) -> None:
    """The same lines, grid and sizes in all figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)


def _legend(figure: Figure, axes: Axes) -> None:
    """A legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = min(len(labels), 3 if max(map(len, labels)) < 16 else 2 if max(map(len, labels)) < 26 else 1)
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5,
                      labelcolor=INK, handlelength=2.4, columnspacing=1.4)  # fmt: skip
