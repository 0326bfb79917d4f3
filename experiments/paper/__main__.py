"""Run the study: ``python -m experiments.paper --data FOLDER [--out out/paper] [--quick]``.

Everything is made once: stopped at any point, the same command goes on. Results are small JSON files in ``--results``,
and the page that is made of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptdel import __version__
from adaptdel.files import write_text
from adaptdel.report.write import write_report
from experiments.paper import experiments
from experiments.paper.figures import draw_pareto, draw_runs
from experiments.paper.pages import write_page
from experiments.paper.study import ROWS, TITLES, Study

QUICK_LIMIT = 400
# Of IMDB's many reviews some are enough where there are many runs, and of all inputs for the paper's slow bound.
SMALLER = {
    ("pareto", "imdb"): 2500,
    ("sampling", "imdb"): 2500,
    **{("bounds", name): 1000 for name in ("yelp", "imdb", "spamassassin")},
}
BASES = ("linear", "minilm")
ONLY = {"ablation": "linear"}  # parts that are made for one base model
PARTS = ("main", "ablation", "bounds", "sampling", "pareto", "costs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.train.jsonl.gz, NAME.test.jsonl.gz")
    parser.add_argument("--out", type=Path, default=Path("out/paper"), help="models and runs")
    parser.add_argument(
        "--results", type=Path, default=Path("experiments/results"), help="JSON files; the page beside it"
    )
    parser.add_argument("--quick", action="store_true", help=f"linear models, {QUICK_LIMIT} test inputs, one data set")
    parser.add_argument("--sets", help=f"data sets, separated by commas, of {', '.join(TITLES)}")
    parser.add_argument("--bases", help=f"base models, of {', '.join(BASES)}")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"experiments, of {', '.join(PARTS)}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of the main table, of {', '.join(ROWS)}")
    parser.add_argument("--limit", type=int, default=300, help="test inputs for minilm")
    parser.add_argument("--workers", type=int, default=2, help="processes that certify")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"--data must be a folder, got {arguments.data}")
    sets = _chosen(
        parser, "--sets", arguments.sets or ("spamassassin" if arguments.quick else ",".join(TITLES)), TITLES
    )
    bases = _chosen(parser, "--bases", arguments.bases or ("linear" if arguments.quick else ",".join(BASES)), BASES)
    parts = _chosen(parser, "--parts", arguments.parts, PARTS)
    if "linear" not in bases and parts == ["ablation"]:
        parser.error("the ablation is for --bases linear: MiniLM takes an hour for each of its rates")
    limit = QUICK_LIMIT if arguments.quick else None
    limits = {"linear": limit, "minilm": arguments.limit}
    rows = _chosen(parser, "--rows", arguments.rows, ROWS)
    study = Study(arguments.data, arguments.out, limits, tuple(rows), arguments.workers)
    arguments.results.mkdir(parents=True, exist_ok=True)
    for base in bases:
        for name in sets:
            if base == "minilm" and name not in ("spamassassin", "imdb"):
                study.say(f"{TITLES[name]}: not with MiniLM")
                continue
            for part in parts:
                if base == ONLY.get(part, base):
                    _keep(study, arguments.results, part, name, base)
            _draw(study, arguments.results, name, base)
    write_page(arguments.results)
    study.say(f"wrote {arguments.results.with_suffix('.md')}")


def _chosen(parser: argparse.ArgumentParser, option: str, given: str, known: Iterable[str]) -> list[str]:
    """The names in a list that is separated by commas; an error if there is an unknown one."""
    names = given.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{option} must be among {', '.join(known)}, separated by commas, got {name!r}")
    return names


def _keep(study: Study, results: Path, part: str, name: str, base: str) -> None:
    """Make one part and write it down."""
    start = time.monotonic()
    if study.limits[base] is None:
        study = replace(study, limits={**study.limits, base: SMALLER.get((part, name))})
    part_values = PART_MAKERS[part](study, name, base)
    values = {"part": part, "data": name, "base": base, "limit": study.limits[base], "version": __version__}
    values["values"] = part_values
    write_text(_file(results, part, name, base), json.dumps(values, indent=1) + "\n")
    study.say(f"{part}, {name}, {base}: {time.monotonic() - start:.0f} s")


def _draw(study: Study, results: Path, name: str, base: str) -> None:
    """The figures of a data set, and a report on its runs."""
    rows = _read(results, "main", name, base)
    runs = {method: study.out / "runs" / row["run"] for method, row in rows.items()}
    if runs and all((run / "manifest.json").exists() for run in runs.values()):
        out, baseline = study.out / "reports" / f"{name}-{base}", [*runs].index("cert-ed") if "cert-ed" in runs else 0
        write_report(list(runs.values()), out, title=f"{TITLES[name]}, {base}", baseline=baseline)
        draw_runs(runs, results / "figures", f"{name}-{base}")
    points = _read(results, "pareto", name, base).get("points")
    if points:
        draw_pareto(points, name, results / "figures" / f"{name}-{base}-pareto.png")


def _file(results: Path, part: str, name: str, base: str) -> Path:
    return results / f"{part}-{name}-{base}.json"


def _read(results: Path, part: str, name: str, base: str) -> dict[str, Any]:
    path = _file(results, part, name, base)
    return dict(json.loads(path.read_text(encoding="utf-8"))["values"]) if path.exists() else {}


PART_MAKERS: dict[str, Callable[[Study, str, str], Any]] = {
    "main": experiments.main_table,
    "ablation": lambda study, name, base: experiments.ablation(study, name),
    "bounds": experiments.same_votes,
    "sampling": experiments.sampling,
    "pareto": experiments.pareto,
    "costs": experiments.costs,
}


if __name__ == "__main__":
    main()
