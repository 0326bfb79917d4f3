"""The figures of a report, as files and as parts of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.measures.summary import Outcomes, log_cardinality_curve, quantiles, radius_curve, wilson
from adaptdel.plots import new_axes, new_figure
from adaptdel.report.entries import COLOURS, Entry, clip, read_entries
from adaptdel.runs.storage import Run
from adaptdel.text.units import noun

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
_FAR, _APART = 20, 4  # radii: a logarithmic scale where curves end beyond 20, and one 4 times as far as another

Curve = Callable[[Outcomes], tuple[Any, Any]]
Scale = tuple[str, Curve]  # the horizontal axis
Line = tuple[Outcomes, dict[str, Any]]  # inputs and how their curve looks
_BY_RADIUS: Scale = ("radius: number of edits", radius_curve)
_BY_SIZE: Scale = ("log₁₀ of the size of the certified region", log_cardinality_curve)


def draw(entries: Sequence[Entry], *, as_released: bool = False) -> list[tuple[str, str, str, Figure]]:
    """All figures: name, title, caption and figure; as of the paper's released code, see `Entry.as_released`."""
    cut = " Radii are cut at the length, and the largest 0.01% left out." if as_released else ""
    entries = [entry.as_released() for entry in entries] if as_released else entries
    protected = {clip(str(entry.protects), 20) for entry in entries if entry.protects is not None}
    answers = f"of the inputs with the label {' or '.join(sorted(protected))}"
    limited = [
        f"that of {entry.name} only {entry.first.threat.verbs}" for entry in entries if len(entry.first.threat.ops) < 3
    ]
    made = f" that the attacker can make ({', '.join(limited)})" if limited else ""
    shown: list[tuple[str, str, str, Figure | None]] = [
        ("certified-radius", "Certified accuracy against the radius",
         "A point (r, a): for a fraction a of the inputs, the answer is correct and certified against any r edits"
         f"{made}. Bands: 95% intervals, by the choice of the inputs.",
         _legend(certified(entries, _BY_RADIUS, bands=True, linear=as_released))),
        ("detection", "Detection against edits",
         f"A point (r, d): a fraction d {answers} is recognised after any r edits of words{made}, or any r edits of "
         "characters; where a run knows it, with any text before and after and any r edits inside, or with any text at "
         "r positions.",
         detection_curves(entries)),
        ("classes", "Certified recall by class against the radius",
         "A panel for each class: a point (r, a) for a fraction a of its inputs whose answer is correct and certified "
         f"against any r edits{made}.", class_panels(entries)),
        ("certified-cardinality", "Certified accuracy against the size of the certified region",
         "A point (c, a): for a fraction a of the inputs, the answer is correct and the certified region holds at "
         "least 10ᶜ texts. It makes different attackers comparable. Curves end where few inputs are left.",
         _legend(certified(entries, _BY_SIZE)) if any(e.outcomes.log_cardinality.any() for e in entries) else None),
        ("quartiles", "Certified accuracy by quartile of length",
         "The same for the shortest quarter of the inputs, the second, the third, and the longest. Right: a share q of "
         "the inputs is at most as long; dashed at the quartiles.",
         quartile_panels(entries)),
        ("rates", "Rate and kept length",
         "The fraction of tokens that the noise removes, and the expected number that the model reads, by length.",
         rates(entries)),
    ]  # fmt: skip
    return [(name, title, caption + cut, figure) for name, title, caption, figure in shown if figure is not None]


def certified(
    entries: Sequence[Entry], scale: Scale, *, bands: bool = False, linear: bool = False, axes: Axes | None = None
) -> Axes:
    """Certified accuracy against the radius, or against the size of the certified region."""
    axes = labelled_axes(scale[0], "certified accuracy", axes)
    sizes = [len(entry.first.outcomes) for entry in entries] if bands else ()  # seeds share their inputs
    _curves(axes, [(entry.outcomes, _style(entry)) for entry in entries], scale[1], sizes=sizes, linear=linear)
    return axes


def plot_certified_accuracy(*runs: Run | str | Path, axes: Axes | None = None) -> Axes:
    """Plot certified accuracy against the radius: a curve for each run, with 95% confidence intervals.

    Args:
        runs: runs or their folders; runs that differ only in their seeds are one curve.
        axes: matplotlib axes to draw into; None for new ones.
    """
    axes = certified(_entries(runs), _BY_RADIUS, bands=True, axes=axes or new_axes(WIDTH, 3.4))
    axes.legend(frameon=False, fontsize=8.5)
    return axes


def plot_radius_against_length(*runs: Run | str | Path, axes: Axes | None = None) -> Axes:
    """Plot the mean certified radius against the length; wrong predictions count as radius 0.

    Inputs are grouped by quantiles of the length; a point stands at the mean length of a group.

    Args:
        runs: runs or their folders; runs that differ only in their seeds are one curve.
        axes: matplotlib axes to draw into; None for new ones.
    """
    axes = labelled_axes("length, tokens", "mean certified radius", axes or new_axes(WIDTH, 3.4))
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


def class_panels(entries: Sequence[Entry]) -> Figure | None:
    """Certified recall against the radius, a panel for each class; of many classes, the most frequent ones."""
    sizes: dict[Any, int] = {}
    for entry in entries:
        for label, part in entry.by_class.items():
            sizes[label] = max(len(part), sizes.get(label, 0))
    frequent = sorted(sizes, key=lambda label: -sizes[label])[:_PANELS]
    parts = {
        f"{clip(str(label), 20)} ({sizes[label]:,})": [
            (entry.by_class[label], _style(entry)) for entry in entries if label in entry.by_class
        ]
        for label in sizes
        if label in frequent
    }
    return _panels(parts, _BY_RADIUS, "certified recall") if parts else None


def quartile_panels(entries: Sequence[Entry]) -> Figure | None:
    """Certified accuracy against log-cardinality, or the radius in characters, by quartile of the length."""
    parts = {}
    scale = _BY_RADIUS if any(entry.characters for entry in entries) else _BY_SIZE
    for quarter in range(4):
        panel = [(entry.quartiles[quarter], _style(entry)) for entry in entries if len(entry.quartiles[quarter])]
        if panel:
            lengths = np.concatenate([part.length for part, _ in panel])
            parts[f"{lengths.min()} to {lengths.max()} tokens"] = panel
    if len(parts) < 2:
        return None
    figure = new_figure(WIDTH, 1.2 + 1.2 * len(parts))
    places = figure.subplot_mosaic([[title, "lengths"] for title in parts], width_ratios=(2, 1))
    for title, panel in parts.items():
        _curves(places[title], panel, scale[1], reach=[entry.outcomes for entry in entries])
        places[title].set_title(title, loc="right", fontsize=8, color=MUTED, pad=2)
        places[title].tick_params(labelbottom=title == [*parts][-1])
    labelled_axes(scale[0], "", places[[*parts][-1]]).xaxis.label.set_size(8.5)
    figure.supylabel("certified accuracy", fontsize=10, color=INK)
    _draw_lengths(entries[0].outcomes, places["lengths"])
    return _legend(places[next(iter(parts))])


def _draw_lengths(inputs: Outcomes, axes: Axes) -> None:
    """The quantile function of the lengths, from the shortest at the top; dashed at the quartiles."""
    shares = np.linspace(0, 1, 201)
    lengths = quantiles(inputs.length, inputs.count, shares.tolist())
    axes.plot(lengths, shares, color=INK, lw=1.4)
    for share in (0.25, 0.5, 0.75):
        axes.axhline(share, color=MUTED, ls="--", lw=1)
    axes.set_xlim(0, lengths[190] * 1.04 or 1)  # up to the quantile of 95%: a few long inputs compress the others
    axes.set_ylim(1, 0)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.tick_right()
    axes.set_title("quantile by length", loc="right", fontsize=8, color=MUTED, pad=2)
    axes.set_xlabel("length, tokens", color=INK, fontsize=8.5)
    tidy(axes)


def _panels(parts: Mapping[str, Sequence[Line]], scale: Scale, vertical: str) -> Figure:
    """A panel of curves for each part of the inputs, on the same scales."""
    rows = -(-len(parts) // 2)
    figure = new_figure(WIDTH, 1.5 + 1.5 * rows)
    panels = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).ravel()
    everything = [part for panel in parts.values() for part, _ in panel]
    for axes, (title, panel) in zip(panels, parts.items(), strict=False):
        _curves(axes, panel, scale[1], reach=everything)
        axes.set_title(title, loc="right", fontsize=8, color=MUTED, pad=2)
    for axes in panels[len(parts) :]:
        axes.set_visible(False)
    figure.supxlabel(scale[0], fontsize=10, color=INK)
    figure.supylabel(vertical, fontsize=10, color=INK)
    return _legend(panels[0])


def detection_curves(entries: Sequence[Entry]) -> Figure | None:
    """Certified recall of the protected class against edits of tokens, and of characters where these are known."""
    parts = [(e, part) for e in entries for label, part in e.by_class.items() if str(label) == e.protects]
    if not parts:
        return None
    axes = labelled_axes("number of edits", "certified detection")
    lines: list[Line] = []
    for entry, part in parts:
        edited = {noun(entry.first.unit): part}
        if part.character_radius is not None:
            edited["character"] = part.in_characters()
        if part.padded:
            edited[f"any text before and after, and {noun(entry.first.unit)}"] = part.against(part.padded_radius)
            edited["any text at position"] = part.against(part.positions)
        for (token, inputs), line in zip(edited.items(), _LINES, strict=False):
            lines.append((inputs, _style(entry) | {"ls": line, "label": f"{entry.name}: {token}s"}))
    _curves(axes, lines, radius_curve)
    return _legend(axes)


def rates(entries: Sequence[Entry]) -> Figure | None:
    """The rate, and the expected number of kept tokens, against the length; None if no run has noise."""
    noisy = [
        (entry, entry.noise)
        for entry in entries
        if entry.noise is not None and entry.certifies and not entry.noise.sees_tokens() and len(entry.outcomes)
    ]
    if not noisy:
        return None
    figure = new_figure(WIDTH, 3.2)
    left, right = figure.subplots(1, 2)
    for entry, noise in noisy:
        lengths = np.unique(entry.outcomes.length)
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
    left.yaxis.set_major_formatter("{x:.0%}")
    right.set_yscale("symlog", linthresh=10)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(_thousands)
    return _legend(left)


def labelled_axes(horizontal: str, vertical: str, axes: Axes | None = None) -> Axes:
    """Axes of a figure of their own, or the given ones, with their labels."""
    axes = new_figure(WIDTH, 3.4).subplots() if axes is None else axes
    axes.set_xlabel(horizontal, color=INK)
    axes.set_ylabel(vertical, color=INK)
    return axes


def _curves(
    axes: Axes,
    lines: Sequence[Line],
    curve: Curve,
    *,
    sizes: Sequence[int] = (),
    reach: Sequence[Outcomes] = (),
    linear: bool = False,
) -> None:
    """Certified accuracy as step functions, with bands for fractions of ``sizes`` inputs.

    The horizontal axis fits the inputs of ``reach``, by default these.
    """
    for number, (part, style) in enumerate(lines):
        if len(part):
            thresholds, fraction = curve(part)
            ends, values = [*thresholds, thresholds[-1]], np.append(fraction, 0.0)
            axes.plot(ends, values, drawstyle="steps-pre", **style)
            if sizes:
                low, high = wilson(fraction, sizes[number])
                axes.fill_between(thresholds, low, high, step="pre", color=style["color"], alpha=0.12, lw=0)
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter("{x:.0%}")
    parts = [part for part in reach or [part for part, _ in lines] if len(part)]
    last, ends = _reach(parts, curve), [_reach([part], curve) for part in parts if curve(part)[0][-1] > 0]
    if curve is radius_curve and not linear and ends and max(ends) > max(_FAR, _APART * min(ends)):
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(_thousands)
        axes.set_xlim(-0.1, last)  # the value at 0 is not hidden by the axis
    else:
        axes.set_xlim(-0.02 * last, last)
        axes.xaxis.get_major_locator().set_params(integer=True)
    tidy(axes)


def _reach(parts: Sequence[Outcomes], curve: Curve) -> float:
    """The end of the horizontal axis: a few inputs with huge radii do not compress the others."""
    ends = [(0.0, 0.0)]
    for thresholds, fraction in map(curve, parts):
        tail, bulk = (float(max(thresholds[fraction >= level], default=0.0)) for level in (_TAIL, _BULK))
        ends.append((tail, bulk))
    tail, bulk = map(max, zip(*ends, strict=True))
    return (min(tail, _STRETCH * bulk) if bulk else tail) * 1.04 or 1.0


def _style(entry: Entry) -> dict[str, Any]:
    line = _LINES[entry.number % len(_LINES)]
    return {"color": COLOURS[entry.colour_number][0], "lw": 1.8, "ls": line, "label": entry.title}


def _thousands(value: float, _: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def tidy(axes: Axes) -> None:
    """The same lines, grid and sizes in all figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)


def _legend(axes: Axes) -> Figure:
    """The figure of the axes, with a legend above them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = min(len(labels), 3 if max(map(len, labels)) < 16 else 2 if max(map(len, labels)) < 26 else 1)
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5,
                           labelcolor=INK, handlelength=2.4, columnspacing=1.4)  # fmt: skip
    return axes.figure
