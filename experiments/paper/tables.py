"""The paper's tables from the models and runs on disk, each value beside the printed one; links to the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adaptdel.attacks.attack_run import read_attack_run
from adaptdel.files import read_json, write_text
from adaptdel.measures.summary import Measures, measure
from adaptdel.report.entries import read_inputs
from adaptdel.runs.storage import MANIFEST, read_run
from adaptdel.tables import UNDEFINED, text_table, with_error
from experiments.paper.protocol import METHODS, RATES, TITLES, Protocol, tight
from experiments.paper.published import ABLATION, ATTACKS, COSTS, DATA, MAIN, RECIPES

FIGURES = {
    "Figure 1: certified accuracy against the log-cardinality": "{}/figures/certified-cardinality",
    "Figures 2 and 4: the same by quartile of length": "{}/figures/quartiles",
    "Figure 3: deletion rates and kept lengths": "{}/figures/rates",
    "Figure 5: certified accuracy against the radius": "{}/figures/certified-radius",
    "Figure 7: robust accuracy under attack": "{}-attacks/figures/robust-accuracy",
}
Rows = list[list[str]]


def write_page(protocol: Protocol, failed: Sequence[str] = ()) -> Path:
    """Write tables.md; what was not run yet is left out, and what failed is named with its reason."""
    parts = [f"# The paper's tables: {protocol.model}", 'A column "paper" has the printed value of the column before.']
    parts += ["## Failed", *(f"- `{failure}`" for failure in failed)] if failed else []
    for title, head, make in SECTIONS:
        if rows := [row for name in protocol.sets for row in make(protocol, name)]:
            parts += [f"## {title}", text_table(head, rows, text_columns=2).to_markdown().rstrip()]
    for title, place in FIGURES.items():
        paths = {TITLES[name]: f"reports/{place.format(name)}.png" for name in protocol.sets}
        shown = [f"![{name}]({path})" for name, path in paths.items() if (protocol.out / path).exists()]
        parts += [f"## {title}", *shown] if shown else []
    page = protocol.out / "tables.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return page


@cache
def measures(run: Path) -> Measures:
    """The measures of a finished run."""
    return measure(read_inputs(read_run(run)).outcomes)


def is_finished(run: Path) -> bool:
    return (run / MANIFEST).exists() and read_run(run).finished


def training(protocol: Protocol, name: str, method: str, rate: int = 90) -> dict[str, Any] | None:
    """The record of a training, if it is finished."""
    path = protocol.folder("models", name, method, rate) / "training.json"
    return read_json(path, "the record of a training") if path.exists() else None


def _number(value: float | None, digits: int = 2) -> str:
    return UNDEFINED if value is None else f"{value:,.{digits}f}"


def _data(protocol: Protocol, name: str) -> Rows:
    records = [training(protocol, name, method) for method in protocol.methods]
    data = next((record["data"] for record in records if record is not None), None)
    runs = [run for run in (protocol.run(name, method) for method in protocol.methods) if is_finished(run)]
    if data is None:
        return []
    words, *counts = DATA[name]
    tested = measures(runs[0]).inputs if runs else None
    own = [data["rows"], data["held_out"], tested]
    pairs = [text for pair in zip(own, counts, strict=True) for text in (_number(pair[0], 0), _number(pair[1], 0))]
    return [[TITLES[name], "", _number(data["mean_length"], 1), _number(words, 1), *pairs]]


def _measured(name: str, run: Path, printed: Sequence[float | None]) -> list[str]:
    own, (clean, radius, error, wasserstein, region) = measures(run), printed
    cells = [_number(100 * own.clean_accuracy), _number(clean)]
    if radius is None:
        return [*cells, *[UNDEFINED] * 6]
    size = own.upper_log_cardinality if name == "yelp" else own.median_log_cardinality
    distance = None if own.wasserstein != own.wasserstein else own.wasserstein
    return [
        *cells,
        *(with_error(own.mean_radius, own.mean_radius_se), f"{radius:.2f} ± {error:.3f}"),
        *(_number(distance), _number(wasserstein), _number(size), _number(region)),
    ]


def _main(protocol: Protocol, name: str) -> Rows:
    rows = []
    for method in protocol.methods:
        run = protocol.run(name, method)
        if is_finished(run):
            same = run if method == "cert-ed" else tight(run)
            better = measures(same).mean_radius if is_finished(same) else None
            rows.append([TITLES[name], METHODS[method], *_measured(name, run, MAIN[name, method]), _number(better)])
    return rows


def _ablation(protocol: Protocol, name: str) -> Rows:
    runs = {rate: protocol.run(name, "adaptdel", rate) for rate in RATES}
    rows = []
    for rate, run in runs.items():
        k, *printed = ABLATION[name, f"{rate}"]
        if is_finished(run):
            rows.append([TITLES[name], f"{rate}%, k = {k:g}", *_measured(name, run, printed)])
    return rows if len(rows) > 1 else []


def _costs(protocol: Protocol, name: str) -> Rows:
    rows = []
    for method in protocol.methods:
        record, run = training(protocol, name, method), protocol.run(name, method)
        if record is None:
            continue
        epochs, seconds, _, milliseconds = COSTS[name, method]
        times = [epoch["seconds"] for epoch in record["history"] if epoch.get("seconds") is not None]
        spent = read_run(run).manifest.seconds if is_finished(run) and method != "nosmooth" else None
        own = None if spent is None else 1000 * spent / measures(run).inputs
        rows.append(
            [
                *(TITLES[name], METHODS[method], _number(len(times) or None, 0), _number(epochs, 0)),
                *(_number(sum(times) / len(times) if times else None), _number(seconds, 0)),
                *(_number(own, 1), _number(milliseconds, 0)),
            ]
        )
    return rows


def _attacks(protocol: Protocol, name: str) -> Rows:
    rows = []
    for attacked, method in ATTACKS:
        folders = [protocol.attack(name, method, recipe) for recipe in RECIPES]
        if attacked == name and any((folder / MANIFEST).exists() for folder in folders):
            printed = ATTACKS[name, method]
            cells = [
                text
                for number, folder in enumerate(folders)
                for text in (
                    _attacked(folder),
                    " / ".join(_number(value, 3) for value in printed[2 * number : 2 * number + 2]),
                )
            ]
            rows.append([TITLES[name], METHODS.get(method, "FreeLB"), *cells])
    return rows


def _attacked(folder: Path) -> str:
    """The accuracy before and after an attack."""
    own = read_attack_run(folder).measures if (folder / MANIFEST).exists() else {}  # of those so far
    return " / ".join(_number(own.get(name), 3) for name in ("accuracy_before", "accuracy_after"))


CERTIFIED = ["clean accuracy %", "paper", "mean certified radius", "paper", "Wasserstein distance", "paper"]
CERTIFIED += ["median log₁₀ region (Yelp: upper quartile)", "paper"]
SECTIONS: tuple[tuple[str, list[str], Any], ...] = (
    (
        "Table 1: data sets",
        ["", "", "mean words", "paper", "training", "paper", "validation", "paper", "test", "paper"],
        _data,
    ),
    ("Table 4: certificates", ["", "", *CERTIFIED, "tight bound, same votes: mean certified radius"], _main),
    ("Table 5: AdaptDel over the lowest rate", ["", "", *CERTIFIED], _ablation),
    (
        "Tables 6 and 7: costs",
        ["", "", "epochs", "paper", "s an epoch", "paper (A100)", "certifying, ms an input", "paper (A100)"],
        _costs,
    ),
    (
        "Table 8: accuracy before / after attacks",
        ["", "", *[title for recipe in RECIPES for title in (recipe, "paper")]],
        _attacks,
    ),
)
