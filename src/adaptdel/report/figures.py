"""The figures of a report, as files and as parts of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.measures.summary import Outcomes, by_quartile, log_cardinality_curve, quartile_edges, radius_curve
from adaptdel.plots import new_figure
from adaptdel.report.comparison import has_lengths
from adaptdel.report.entries import DETECTION_INPUTS, Entry, clip
from adaptdel.report.text import plural, token

_DROPPED = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style\b.*?</style>", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r'\s+xmlns(:\w+)?="[^"]*"'),
)


def inline_svg(text: str, name: str, label: str, colours: Mapping[str, str]) -> str:
    """An SVG file as an element of a page.

    It refers to no address, its identifiers are unique on the page and reproducible, and its colours are replaced by
    those in ``colours``, so that they can follow the theme.
    """
    text = text[text.index("<svg") :]
    for pattern in _DROPPED:
        text = pattern.sub("", text)
    text = _unique_identifiers(text.replace("xlink:href", "href"), name)
    for colour, replacement in colours.items():
        text = text.replace(colour, replacement)
    box = re.search(r'viewBox="[^"]*"', text)
    start = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(label)}">'
    return re.sub(r"<svg\b[^>]*>", lambda _: start, text, count=1).strip()


def _unique_identifiers(text: str, name: str) -> str:
    """Number the identifiers that are referred to, and drop the others."""
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    referred = {target or other for target, other in used}
    kept = [identifier for identifier in re.findall(r'\bid="([^"]*)"', text) if identifier in referred]
    new = {identifier: f"{name}-{place}" for place, identifier in enumerate(dict.fromkeys(kept))}
    text = re.sub(r'\s+id="([^"]*)"', lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", text)
    text = re.sub(r'href="#([^"]+)"', lambda m: f'href="#{new.get(m[1], m[1])}"', text)
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{new.get(m[1], m[1])})", text)


Figure = Any  # matplotlib's; only `adaptdel.plots` imports it
Axes = Any
INK, MUTED, GRID = "#20242a", "#6a7280", "#e2e5ea"
WIDTH = 4.8  # inches: two figures side by side on a desktop, one legible on a phone
_LINES = ("-", (0, (5, 1.6)), (0, (5, 1.4, 1.2, 1.4)), (0, (1.2, 1.2)))
_LEAST_SPAN = 0.1  # of the axis of rates
_PANELS = 8  # classes with a panel of their own
_TAIL, _BULK, _STRETCH = 0.01, 0.1, 2.5  # curves end where 1% of the inputs are left, at most 2.5 times as far as 10%

Curve = Callable[[Outcomes], tuple[Any, Any]]


def typical(entries: Sequence[Entry]) -> str | None:
    """The id of the input whose frontier is drawn; None if no answer is certified at radius 1.

    Among the correct answers of the first run with a radius of at least 1: the one at the upper quartile of the radius,
    then closest to the mean length. Inputs that all runs hold are preferred.
    """
    for entry in sorted(entries, key=lambda entry: entry.is_constant):
        measured = entry.inputs.sample
        useful = measured.certified & (measured.radius >= 1)
        if useful.any():
            everywhere = useful & [all(name in other.rows for other in entries) for name in measured.ids]
            chosen = measured.take(everywhere if everywhere.any() else useful)
            off = np.abs(chosen.radius - np.quantile(chosen.radius, 0.75))
            far = np.abs(chosen.length - entry.measures.mean_length)
            return str(chosen.ids[np.lexsort((far, off))[0]])
    return None


def draw(entries: Sequence[Entry]) -> list[tuple[str, str, str, Figure]]:
    """All figures: name, title, caption and figure."""
    kind = token(entries[0])
    name = typical(entries)
    by_run = {entry.name: entry.certificates([name]) for entry in entries} if name is not None else {}
    certificates = {run: by_id[name] for run, by_id in by_run.items() if name in by_id}
    cardinality = (
        "A point (c, a): for a share a of the inputs, the answer is correct and the certified region holds at least "
        "10ᶜ inputs. Curves end where few inputs are left."
    )
    radius = "A point (r, a): for a share a of the inputs, the answer is correct and certified against any r edits."
    by_class = (
        "A panel for each class. A point (r, a): for a share a of the inputs of the class, the answer is correct and "
        "certified against any r edits. A run that gives one answer to all inputs is at 0 in all other panels."
    )
    quartiles = (
        "The shortest quarter of the inputs at the top, the longest at the bottom. Right: the quantile function of the "
        f"lengths of {entries[0].name}, with dashed lines at the quartiles."
    )
    rate = f"The share of {kind}s that the noise removes, and the expected number that the model reads, by length."
    cost = "The distribution of the number of votes. Inputs with a clear majority need few votes."
    return [
        ("certified-radius", "Certified accuracy against the radius", radius, certified_by_radius(entries)),
        ("certified-cardinality", "Certified accuracy against the size of the certified region", cardinality,
         certified_by_cardinality(entries)),
        *([("classes", "Certified recall by class against the radius", by_class, class_panels(entries))]
          if any(entry.by_class for entry in entries) else []),
        *([("detection", "Detection under attack", _detection_words(entries), detection_panels(entries))]
          if any(entry.detection is not None for entry in entries) else []),
        *([("quartiles", "Certified accuracy by quartile of length", quartiles, quartile_panels(entries))]
          if has_lengths(entries) else []),
        ("rates", "Rate and kept length", rate, rates(entries)),
        ("costs", "Votes per input", cost, costs(entries)),
        ("frontier", "Edits certified together", _frontier_words(certificates, name), frontier(entries, certificates)),
    ]  # fmt: skip


def _frontier_words(certificates: Mapping[str, Certificate], name: str | None) -> str:
    if name is None or not certificates:
        return "No answer is certified at radius 1, so there is no frontier."
    length = next(iter(certificates.values())).length
    radii = "; ".join(
        f"{run} {'abstains' if certificate.abstained else f'has radius {certificate.radius}'}"
        for run, certificate in certificates.items()
    )
    return (
        f"For an input at the upper quartile of the radius (id {clip(name, 40)}, {plural(length, 'token')}): every "
        "combination of deletions and insertions (left) or substitutions and insertions (right) on or below a curve is "
        f"certified. {radii}."
    )


def certified_by_cardinality(entries: Sequence[Entry]) -> Figure:
    """Certified accuracy against the log-cardinality of the certified region."""
    figure = new_figure(WIDTH, 3.4)
    axes = figure.subplots()
    _curves(axes, [(entry, entry.outcomes) for entry in entries], log_cardinality_curve)
    axes.set_xlabel("log₁₀ of the size of the certified region", color=INK)
    axes.set_ylabel("certified accuracy", color=INK)
    _legend(figure, axes)
    return figure


def certified_by_radius(entries: Sequence[Entry]) -> Figure:
    """Certified accuracy against the radius."""
    figure = new_figure(WIDTH, 3.4)
    axes = figure.subplots()
    _curves(axes, [(entry, entry.outcomes) for entry in entries], radius_curve)
    if axes.get_xlim()[1] <= 25:
        for line in axes.get_lines():
            line.set(marker="o", markersize=3)
    _whole(axes.xaxis)
    axes.set_xlabel("radius: number of edits", color=INK)
    axes.set_ylabel("certified accuracy", color=INK)
    _legend(figure, axes)
    return figure


def class_panels(entries: Sequence[Entry]) -> Figure:
    """Certified recall against the radius, a panel for each class; of many classes, the most frequent ones."""
    sizes: dict[Any, int] = {}
    for entry in entries:
        for label, part in entry.by_class.items():
            sizes[label] = max(len(part), sizes.get(label, 0))
    frequent = sorted(sizes, key=lambda label: -sizes[label])[:_PANELS]
    labels = [label for label in sizes if label in frequent]
    figure = new_figure(WIDTH, 1.5 + 1.5 * -(-len(labels) // 2))
    panels = figure.subplots(-(-len(labels) // 2), 2, squeeze=False, sharex=True, sharey=True).ravel()
    parts = [[(entry, entry.by_class[label]) for entry in entries if label in entry.by_class] for label in labels]
    reach = max(_reach(part, radius_curve) for part in parts)
    for axes, label, panel in zip(panels, labels, parts, strict=False):
        _curves(axes, panel, radius_curve)
        axes.set_xlim(-0.02 * reach, reach)
        axes.set_title(f"{clip(str(label), 20)} ({sizes[label]:,})", loc="right", fontsize=8, color=MUTED, pad=2)
        _whole(axes.xaxis)
    for axes in panels[len(labels) :]:
        axes.set_visible(False)
    figure.supxlabel("radius: number of edits", fontsize=10, color=INK)
    figure.supylabel("certified recall", fontsize=10, color=INK)
    _legend(figure, panels[0])
    return figure


def _detection_words(entries: Sequence[Entry]) -> str:
    names = {clip(str(entry.protects), 20) for entry in entries if entry.detection}
    return (
        f"A ROC curve for each number of edits, on at most {DETECTION_INPUTS:,} inputs: the share of the protected "
        f"class ({', '.join(sorted(names))}) whose detection is certified, against the share of other inputs that get "
        "its answer, as the decision threshold changes. The dot is the threshold of the run."
    )


def detection_panels(entries: Sequence[Entry]) -> Figure:
    """ROC curves under attack, a panel for each run that protects a class."""
    shown = [(entry, entry.detection) for entry in entries if entry.detection is not None][:_PANELS]
    figure = new_figure(WIDTH, 0.9 + 2.4 * len(shown))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, (entry, curve) in zip(panels, shown, strict=True):
        for column, radius in enumerate(curve.radii.tolist()):
            label = "no attack" if radius == 0 else plural(radius, "edit")
            line = _LINES[column % len(_LINES)]
            alpha = 1.0 - 0.7 * column / len(curve.radii)
            axes.step(curve.false_positives, curve.detection[:, column], where="post", color=entry.colour, ls=line,
                      lw=1.6, alpha=alpha, label=label)  # fmt: skip
        answered = {
            label: part.count[[str(answer) == entry.protects for answer in part.answer]].sum() / len(part)
            for label, part in entry.by_class.items()
        }
        detected = [share for label, share in answered.items() if str(label) == entry.protects]
        others = [share for label, share in answered.items() if str(label) != entry.protects]
        if detected and others:
            axes.plot(others, detected, "o", color=INK, ms=4)
        axes.set_xscale("symlog", linthresh=0.001)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.03)
        axes.xaxis.set_major_formatter(_percent)
        axes.yaxis.set_major_formatter(_percent)
        axes.set_title(clip(entry.title, 40), loc="right", fontsize=8, color=MUTED, pad=2)
        _tidy(axes)
    figure.supxlabel("false positives", fontsize=10, color=INK)
    figure.supylabel("certified detection", fontsize=10, color=INK)
    _legend(figure, panels[0])
    return figure


def quartile_panels(entries: Sequence[Entry]) -> Figure:
    """Certified accuracy against log-cardinality by quartile of length, beside the quantile function of the lengths."""
    figure = new_figure(WIDTH, 6.2)
    grid = figure.add_gridspec(4, 2, width_ratios=[2.1, 1])
    parts = [by_quartile(entry.outcomes) for entry in entries]
    panels = [list(zip(entries, row, strict=True)) for row in zip(*parts, strict=True)]
    reach = [_reach(panel, log_cardinality_curve) for panel in panels]
    shared = max(reach) <= 3 * float(np.median(reach))  # one scale, unless most panels would be empty
    first: Axes | None = None
    for row, panel in enumerate(panels):
        axes = figure.add_subplot(grid[row, 0])
        first = first or axes
        limit = max(reach) if shared else reach[row]
        _curves(axes, panel, log_cardinality_curve)
        axes.set_xlim(-0.02 * limit, limit)
        quarter = entries[0].quartiles[row]
        text = _range(quarter.shortest, quarter.longest, quarter.inputs)
        axes.set_title(text, loc="right", fontsize=8, color=MUTED, pad=2)
        if not quarter.inputs and first is not axes:
            axes.set_axis_off()
        axes.tick_params(labelbottom=row == 3 or not shared)
    axes.set_xlabel("log₁₀ of the size of the region", color=INK)
    figure.supylabel("certified accuracy", fontsize=10, color=INK)
    _quantiles(figure.add_subplot(grid[:, 1]), entries)
    assert first is not None
    _legend(figure, first)
    return figure


def _range(shortest: int, longest: int, size: int) -> str:
    return f"{shortest} to {longest} tokens" if size else "no inputs"


def _quantiles(axes: Axes, entries: Sequence[Entry]) -> None:
    """The quantile function of the lengths, turned so that its quarters are beside the panels."""
    measured = entries[0].outcomes
    order = np.argsort(measured.length, kind="stable")
    lengths, counts = measured.length[order], measured.count[order]
    if len(lengths):
        axes.plot(lengths, (np.cumsum(counts) - 0.5 * counts) / len(measured), color=INK, lw=1.5)
        for edge, share in zip(quartile_edges(measured), (0.25, 0.5, 0.75), strict=True):
            axes.axhline(share, color=MUTED, lw=0.8, ls="--")
            axes.annotate(f"{edge:.0f}", (0.97, share), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                          fontsize=8, color=MUTED)  # fmt: skip
        _length_scale(axes, lengths)
    axes.set_ylim(1, 0)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
    axes.set_xlabel("length, tokens", color=INK)
    axes.set_title("quantiles of length", fontsize=8.5, color=INK)
    _tidy(axes)


def rates(entries: Sequence[Entry]) -> Figure:
    """The rate, and the expected number of kept tokens, against the length."""
    figure = new_figure(WIDTH, 3.2)
    left, right = figure.subplots(1, 2)
    for entry in _smoothed(entries):
        lengths, places = np.unique(entry.outcomes.length, return_index=True)
        rate = entry.outcomes.rate[places]
        style = _style(entry) | ({"marker": "o", "ms": 4} if len(lengths) == 1 else {})
        left.plot(lengths, rate, **style)
        right.plot(lengths, lengths * (1 - rate), **style)
    everything = np.concatenate([entry.outcomes.length for entry in _smoothed(entries)])
    for axes, title in ((left, "share removed"), (right, "tokens kept on average")):
        _length_scale(axes, everything)
        axes.set_title(title, fontsize=9, color=INK)
        axes.set_xlabel("length, tokens", color=INK)
        _tidy(axes)
    left.yaxis.set_major_formatter(_percent)
    low, high = left.get_ylim()
    if high - low < _LEAST_SPAN:  # rates that hardly differ look alike
        middle = min(max((low + high) / 2, _LEAST_SPAN / 2), 1 - _LEAST_SPAN / 2)
        left.set_ylim(middle - _LEAST_SPAN / 2, middle + _LEAST_SPAN / 2)
    kept = np.concatenate([entry.outcomes.length * (1 - entry.outcomes.rate) for entry in _smoothed(entries)])
    if len(kept) and kept.min() > 0 and kept.max() > 12 * kept.min():
        right.set_yscale("log")
        right.yaxis.set_minor_formatter("")
        right.yaxis.set_major_formatter(_thousands)
    else:
        right.set_ylim(bottom=0)
    _legend(figure, left)
    return figure


def costs(entries: Sequence[Entry]) -> Figure:
    """The distribution of the number of votes per input."""
    figure = new_figure(WIDTH, 3.2)
    axes = figure.subplots()
    most = max([1, *(int(entry.outcomes.calls.max(initial=0)) for entry in _smoothed(entries))])
    bins = np.linspace(0, most * 1.0001, 26)
    for entry in _smoothed(entries):
        if len(entry.outcomes):
            share = np.histogram(entry.outcomes.calls, bins, weights=entry.outcomes.count)[0] / len(entry.outcomes)
            axes.stairs(share, bins, fill=True, color=entry.colour, alpha=0.1)
            axes.stairs(share, bins, color=entry.colour, lw=1.7, ls=_style(entry)["ls"], label=entry.title)
    axes.yaxis.set_major_formatter(_percent)
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_xlim(0, most * 1.02)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("votes per input (calls of the base classifier)", color=INK)
    axes.set_ylabel("share of inputs", color=INK)
    _tidy(axes)
    _legend(figure, axes)
    return figure


def frontier(entries: Sequence[Entry], certificates: Mapping[str, Certificate]) -> Figure:
    """The frontiers of certificates of an input, by the name of the run."""
    figure = new_figure(WIDTH, 3.4)
    left, right = figure.subplots(1, 2)
    for entry in entries:
        triples = frontier_of(certificates.get(entry.name))
        for axes, kind in ((left, 0), (right, 2)):
            _staircase(axes, [(i, (d, i, s)[kind]) for d, i, s in triples], entry)
    for axes, title in ((left, "deletions"), (right, "substitutions")):
        axes.set_title(f"{title} and insertions", fontsize=9, color=INK)
        axes.set_xlabel("insertions", color=INK)
        axes.set_ylabel(title, color=INK)
        for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
            limit(-0.04 * max(1, axis.get_data_interval()[1]), 1.06 * max(1, axis.get_data_interval()[1]))
            _whole(axis)
        _tidy(axes)
    _legend(figure, right)
    return figure


def frontier_of(certificate: Certificate | None) -> list[tuple[int, int, int]]:
    """The frontier of a certificate; empty for an abstention or if it is too large to draw."""
    try:
        return [] if certificate is None or certificate.abstained else certificate.frontier()
    except ValueError:
        return []


def _staircase(axes: Axes, pairs: Sequence[tuple[int, int]], entry: Entry) -> None:
    """The boundary of all points below any of the pairs."""
    if not pairs:
        return
    across = np.arange(max(x for x, _ in pairs) + 1)
    best = np.full(len(across), -1)
    for x, y in pairs:
        best[x] = max(best[x], y)
    height = np.maximum.accumulate(best[::-1])[::-1]
    line = ([*across, across[-1]], [*height, 0])
    axes.fill_between(*line, step="pre", color=entry.colour, alpha=0.1, lw=0)
    axes.plot(*line, drawstyle="steps-pre", **_style(entry), marker="o", ms=3.5, markevery=[0, len(across)])


def _curves(axes: Axes, parts: Sequence[tuple[Entry, Outcomes]], curve: Curve) -> None:
    """Certified accuracy as a step function, up to where 1% of the inputs are left."""
    for entry, part in parts:
        if len(part):
            thresholds, share = curve(part)
            axes.plot([*thresholds, thresholds[-1]], [*share, 0.0], drawstyle="steps-pre", **_style(entry))
    axes.set_ylim(0, 1.03)
    reach = _reach(parts, curve)
    axes.set_xlim(-0.02 * reach, reach)  # the value at 0 is not hidden by the axis
    axes.yaxis.set_major_formatter(_percent)
    _tidy(axes)


def _reach(parts: Sequence[tuple[Entry, Outcomes]], curve: Curve) -> float:
    """The end of the horizontal axis: a few inputs with huge radii do not compress the others."""
    ends = np.zeros((1, 2))
    for _, part in parts:
        if len(part):
            thresholds, share = curve(part)
            reached = [float(max(thresholds[share >= level], default=0.0)) for level in (_TAIL, _BULK)]
            ends = np.vstack([ends, reached])
    tail, bulk = ends.max(axis=0)
    return float(min(tail, _STRETCH * bulk) if bulk else tail) * 1.04 or 1.0


def _smoothed(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The runs with noise, or all runs if none has noise."""
    return [entry for entry in entries if entry.is_smoothed] or entries


def _style(entry: Entry) -> dict[str, Any]:
    line = _LINES[entry.number % len(_LINES)]
    return {"color": entry.colour, "lw": 1.8, "ls": line, "label": entry.title}


def _whole(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True)


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.3g}%"


def _thousands(value: float, _: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _length_scale(axes: Axes, lengths: Any) -> None:
    """A logarithmic axis if the lengths differ by much."""
    if not len(lengths):
        return
    least, most = (max(1, int(length)) for length in (lengths.min(), lengths.max()))
    if most / least > 12:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.05, most * 1.05)
        axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_major_formatter(_thousands)


def _tidy(axes: Axes) -> None:
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
