"""The page of results, next to the paper's figures, from the JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.files import write_text
from adaptdel.measures.summary import CERTIFIED_ACCURACY, CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.tables import UNDEFINED, text_table, with_error
from experiments.paper.figures import front, one_answer
from experiments.paper.published import ABLATION, COSTS, MAIN
from experiments.paper.study import NAMES, TITLES

GLANCE = "<!-- at a glance -->"  # where in head.md the first table comes
BASES = {"linear": "linear", "embedding": "network", "minilm": "MiniLM"}
Values = dict[str, Any]


def write_page(results: Path) -> None:
    """Write results.md next to the folder of JSON files; the text before the tables is in its head.md."""
    stored: dict[tuple[str, str, str], Values] = {}
    for path in sorted(results.glob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        if "part" in values:
            stored[values["part"], values["data"], values["base"]] = values
    head = results / "head.md"
    ordered = sorted(stored.items(), key=_order)
    words = head.read_text(encoding="utf-8").rstrip() if head.exists() else f"# Results\n\n{GLANCE}"
    parts = [words.replace(GLANCE, _glance([values for key, values in ordered if key[0] == "main"]))]
    for part, title, make in SECTIONS:
        tables = [
            f"{_heading(title, values)}\n\n{make(key[1], key[2], values)}" for key, values in ordered if key[0] == part
        ]
        if tables:
            parts += [f"## {title}", f"`make paper DATA=folder ARGS='--parts {part}'`", *tables]
    write_text(results.with_suffix(".md"), "\n\n".join(parts) + "\n")


def _order(item: tuple[tuple[str, str, str], Values]) -> tuple[int, int]:
    _, name, base = item[0]
    return [*TITLES].index(name), [*BASES].index(base)


def _heading(title: str, values: Values) -> str:
    size = "" if values["limit"] is None else f", {values['limit']} test inputs"
    return f"### {title}: {TITLES[values['data']]}, {BASES[values['base']]}{size}"


def _glance(main_tables: list[Values]) -> str:
    """Clean accuracy, certified accuracy at radius 0 and mean certified radius of the deletion methods."""
    rows = []
    methods = ("cert-ed", "adaptdel", "adaptdel+", "adaptdel+ mean")
    for values in main_tables:
        ours, theirs = values["values"], MAIN[values["data"]]
        cells = [
            f"{100 * ours[m]['clean_accuracy']:.1f} · {100 * certified_accuracy(ours[m]):.1f} · "
            f"{ours[m]['mean_radius']:.2f}"
            if m in ours
            else UNDEFINED
            for m in methods
        ]
        gains = [
            f"{100 * (ours[m]['mean_radius'] / ours['cert-ed']['mean_radius'] - 1):+.0f}%"
            + f" ({100 * ((theirs[m][1] or 0) / (theirs['cert-ed'][1] or 1) - 1):+.0f}%)"
            if m in ours
            else UNDEFINED
            for m in ("adaptdel", "adaptdel+")
        ]
        name = f"{TITLES[values['data']]}, {BASES[values['base']]}, {ours['adaptdel']['inputs']:,} inputs"
        rows.append([name, cells[0], cells[1], gains[0], cells[2], gains[1], cells[3]])
    head = ["CERT-ED 90%", "AdaptDel 90%", "over CERT-ED (paper)", "AdaptDel+ (binned)", "over CERT-ED (paper)"]
    measures = f"{CLEAN_ACCURACY} % · {CERTIFIED_ACCURACY} % · {MEAN_RADIUS}"
    return _table([measures, *head, "AdaptDel+ (for the mean radius)"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return text_table(head, rows).to_markdown().rstrip("\n")


def _number(value: float | None, digits: int = 2) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"


def certified_accuracy(row: Values) -> float:
    """Certified accuracy at radius 0; results before it was stored have the counts that it follows from."""
    stored: float | None = row.get("certified_accuracy")
    return (row["certified"] + row["certified_zero"]) / row["inputs"] if stored is None else stored


def _accuracies(row: Values) -> list[str]:
    return [_number(100 * row["clean_accuracy"]), _number(100 * certified_accuracy(row))]


def _main(name: str, base: str, values: Values) -> str:
    key = "upper_log_cardinality" if name == "yelp" else "median_log_cardinality"
    rows = []
    for method, row in values["values"].items():
        theirs = MAIN[name].get(method, (None,) * 5)
        clean, certified = _accuracies(row)
        radius = with_error(row["mean_radius"], row["mean_radius_se"])
        rows.append(
            [
                NAMES[method],
                clean,
                _number(theirs[0]),
                certified,
                radius,
                UNDEFINED if theirs[1] is None else f"{_number(theirs[1])} ± {_number(theirs[2], 3)}",
                _number(row["wasserstein"]),
                _number(theirs[3]),
                _number(row[key]),
                _number(theirs[4]),
            ]
        )
    which = "upper quartile" if name == "yelp" else "median"
    head = ["", f"{CLEAN_ACCURACY} %", "paper", f"{CERTIFIED_ACCURACY} %", MEAN_RADIUS, "paper", "Wasserstein", "paper"]
    head += [f"{which} log₁₀ region", "paper"]
    return _table(head, rows)


def _ablation(name: str, base: str, values: Values) -> str:
    key = "upper_log_cardinality" if name == "yelp" else "median_log_cardinality"
    rows = []
    for rate, row in values["values"].items():
        k, accuracy, radius, size = ABLATION[name][int(rate)]
        clean, certified = _accuracies(row)
        cells = [clean, _number(accuracy), certified, _number(row["mean_radius"]), _number(radius)]
        rows.append([f"{rate}%", f"{row['k']:g}", f"{k:g}", *cells, _number(row[key]), _number(size)])
    which = "upper quartile" if name == "yelp" else "median"
    head = ["p_lb", "k", "paper", f"{CLEAN_ACCURACY} %", "paper", f"{CERTIFIED_ACCURACY} %", MEAN_RADIUS, "paper"]
    head += [f"{which} log₁₀ region", "paper"]
    return _table(head, rows)


def _bounds(name: str, base: str, values: Values) -> str:
    rows, near = [], []
    for label, row in values["values"].items():
        if "tight" in row:
            gain = 100 * (row["tight"] / row["paper"] - 1) if row["paper"] else None
            change = UNDEFINED if gain is None else f"{gain:+.1f}%"
            rows.append([label, _number(row["tight"], 3), _number(row["paper"], 3), change])
        else:
            near += [
                [f"{label.split(',')[0]}, {distance} words", str(cell["inputs"]), _number(cell["tight"], 3),
                 _number(cell["paper"], 3)]
                for distance, cell in row.items()
            ]  # fmt: skip
    text = _table([MEAN_RADIUS, "tight", "paper's bound", "gain"], rows)
    if near:
        text += "\n\n" + _table(["by distance to a bin edge", "inputs", "tight", "paper's bound"], near)
    return text


def _panels(name: str, base: str, values: Values) -> str:
    title = f"{TITLES[name]}, {BASES[base]}"
    pictures = [
        f"![{title}: {what}](results/figures/{name}-{base}-{panel}.png)"
        for panel, what in (
            ("radius", "certified accuracy against the radius"),
            ("region", "certified accuracy against the size of the region"),
            ("quartiles", "by quartile of length"),
            ("rates", "rates and kept lengths"),
        )
    ]
    return "\n".join(pictures)


def _sampling(name: str, base: str, values: Values) -> str:
    measured = values["values"]
    rows = [
        [kind, _number(measured[kind]["mean_radius"], 3), _number(measured[kind]["calls"], 0),
         _number(1000 * measured[kind]["seconds"], 1), *_accuracies(measured[kind])]
        for kind in ("fixed", "adaptive")
    ]  # fmt: skip
    kept = UNDEFINED if measured["radius_kept"] is None else f"{100 * measured['radius_kept']:.1f}%"
    after = f"{kept} of the radius with {measured['calls_saved']:.1f} times fewer calls; "
    short = measured["short"]
    after += f"{short['inputs']} short inputs were enumerated"
    if "exact" in short:
        exact, drawn = short["exact"], short["fixed"]
        after += (
            f": {MEAN_RADIUS} {_number(exact['mean_radius'])} with {_number(exact['calls'], 0)} calls against "
            f"{_number(drawn['mean_radius'])} with {_number(drawn['calls'], 0)}, abstentions "
            f"{_number(100 * (1 - exact['settled']), 1)}% against {_number(100 * (1 - drawn['settled']), 1)}%"
        )
    after += "."
    head = ["votes", MEAN_RADIUS, "calls per input", "ms per input", f"{CLEAN_ACCURACY} %", f"{CERTIFIED_ACCURACY} %"]
    table = _table(head, rows)
    return f"{table}\n\n{after}"


def _pareto(name: str, base: str, values: Values) -> str:
    points = sorted(values["values"]["points"], key=lambda row: -row["clean_accuracy"])
    rows, best = [], front(points)
    for row in points:
        mark = "one answer" if one_answer(row) else "●" if row in best else ""
        rows.append([f"{row['kind']} {row['setting']}", *_accuracies(row), _number(row["mean_radius"]), mark])
    theirs = ", ".join(
        f"{NAMES[method].split(' (')[0]} {_number(row[1])} at {_number(row[0])}%"
        for method, row in MAIN[name].items()
        if row[1]
    )
    table = _table(["", f"{CLEAN_ACCURACY} %", f"{CERTIFIED_ACCURACY} %", MEAN_RADIUS, "on the front"], rows)
    picture = f"![{TITLES[name]}: accuracy against radius](results/figures/{name}-{base}-pareto.png)"
    return f"{picture}\n\n{table}\n\nThe paper's points: {theirs}."


def _costs(name: str, base: str, values: Values) -> str:
    rows = []
    methods = dict(values["values"])
    shares = methods.pop("shares")
    for method, row in methods.items():
        theirs = COSTS[name][method]
        rows.append(
            [
                NAMES[method].split(" (")[0],
                _number(row["train_seconds"], 1),
                _number(row["seconds_an_epoch"], 1),
                _number(theirs[0], 0),
                _number(row["milliseconds_an_input"], 1),
                _number(theirs[1], 0),
                _number(row["calls"], 0),
            ]
        )
    head = ["", "training s", "s per epoch", "paper (A100)", "certifying ms per input", "paper (A100)"]
    head.append("calls per input")
    names = {"model": "model", "copies": "copies", "noise": "noise", "arithmetic": "arithmetic of the certificates"}
    parts = ", ".join(f"{text} {100 * shares[part]:.1f}%" for part, text in names.items() if part in shares)
    time = _number(shares["milliseconds_an_input"], 1)
    after = f"AdaptDel in one process, {shares['inputs']} inputs, {time} ms each: {parts}."
    return _table(head, rows) + "\n\n" + after


def _seeds(name: str, base: str, values: Values) -> str:
    """By kept length and by accuracy reached: the mean over seeds and their standard deviation."""
    texts = []
    for which, measured in values["values"].items():
        points = measured["points"]
        rows = []
        for setting in dict.fromkeys(point["setting"] for point in points):
            own = [point for point in points if point["setting"] == setting]
            cells: list[str] = []
            for key, scale in (("clean_accuracy", 100), ("certified_accuracy", 100), ("mean_radius", 1)):
                cells.append(_mean_and_spread([scale * point[key] for point in own]))
            error = np.mean([point["mean_radius_se"] for point in own])
            rows.append([_setting(setting, own, points), *cells, f"± {error:.2f}"])
        head = ["setting", f"{CLEAN_ACCURACY} %", f"{CERTIFIED_ACCURACY} %", MEAN_RADIUS]
        inputs, seeds = points[0]["inputs"], len({point["seed"] for point in points})
        whole = which == "all" and values["limit"] is None
        start = f"All {inputs:,} test inputs" if whole else f"{inputs:,} test inputs drawn by a seed"
        texts.append(f"{start}; {seeds} {'seeds' if seeds > 1 else 'seed'}; {_trained(points[0])}:")
        texts.append(_table([*head, "standard error over inputs"], rows))
        read = [
            f"{_mean_and_spread([radius for radius in row['radii'] if radius is not None])} at {at}"
            + (f" ({row['radii'].count(None)} of {seeds} seeds do not reach it)" if None in row["radii"] else "")
            for at, row in measured["at"].items()
            if row["mean"] is not None
        ]
        texts.append(f"Read off the front of each seed, linear between its points: {', '.join(read) or 'nothing'}.")
    return "\n\n".join(texts)


def _setting(setting: str, own: list[Values], points: list[Values]) -> str:
    """A kept length, or a wanted accuracy with the kept length that held-out rows of each seed chose for it."""
    if setting.endswith("%"):
        chosen = ", ".join(f"{point['keep']:g}" for point in own)
        return f"{setting} on held-out rows: {chosen} words"
    fewer = len(own) < len({point["seed"] for point in points})
    return f"{setting} ({len(own)} {'seeds' if len(own) > 1 else 'seed'} only)" if fewer else setting


def _trained(point: Values) -> str:
    number = "one network" if point["networks"] == 1 else f"{point['networks']} networks"
    words = "with MiniLM's encodings of words" if point["encoder"] else "without pretrained encodings"
    scaled = ', embedding_scale="row"' if point.get("embedding_scale", "row") == "row" else ""
    return f"{number} of {point['steps']:,} steps, {words}{scaled}"


def _mean_and_spread(values: list[float]) -> str:
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.2f}"


SECTIONS = (
    ("main", "Main table", _main),
    ("main", "By length and by rate", _panels),
    ("ablation", "AdaptDel over the lowest rate p_lb", _ablation),
    ("bounds", "The tight bound on the same votes", _bounds),
    ("sampling", "Adaptive against fixed votes", _sampling),
    ("pareto", "Accuracy against radius", _pareto),
    ("costs", "Costs", _costs),
    ("seeds", "The network over seeds", _seeds),
)
