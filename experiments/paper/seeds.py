"""The front of the network over seeds: each seed has its own split, networks and noise in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adaptdel.measures.summary import measure, outcomes
from adaptdel.runs.storage import read_run
from experiments.paper.networks import FRONT, kept_folder, with_kept_length
from experiments.paper.study import Study, finished, history

PART = {"spamassassin": 1000}  # the test inputs that MiniLM was measured on, besides all of them
WANTED = {  # accuracies at which a radius is read off the front
    "spamassassin": (0.98, 0.97), "imdb": (0.89, 0.88, 0.87), "lun": (0.95, 0.93), "yelp": (0.56, 0.54),
}  # fmt: skip
NAMES = ("clean_accuracy", "certified_accuracy", "mean_radius", "mean_radius_se", "inputs")
Point = dict[str, Any]


def over_seeds(study: Study, name: str, base: str) -> dict[str, Any]:
    """For every seed, the points of AdaptDel+ over kept lengths, on all test inputs and on a part of them."""
    measured: dict[str, list[Point]] = {"all": []}
    for keep in FRONT[name]:
        for seed in study.seeds:
            seeded = replace(study, seed=seed)
            model = seeded.model_folder(name, "adaptdel+", base, 0.9)
            if study.finished_only and not finished(seeded.folder(kept_folder(model, keep), base)):
                study.say(f"{model.name} with {keep:g} kept words: not finished")
                continue
            model = seeded.model(name, "adaptdel+", base=base)
            settings = history(model)["settings"]
            trained = {field: settings[field] for field in ("networks", "steps", "encoder", "embedding_scale")}
            kept = with_kept_length(model, keep)
            run = seeded.folder(kept, base) if study.finished_only else seeded.run(kept, name, base=base)
            label = {"seed": seed, "setting": f"{keep:g} words", "keep": keep, "run": run.name, **trained}
            table = read_run(run).table
            measured["all"].append({**label, **_measured(table)})
            if name in PART and study.limits[base] is None:
                inside = pc.is_in(table["id"], pa.array(_ids(study.part(name, "test", PART[name]))))
                measured.setdefault(f"{PART[name]} inputs", []).append({**label, **_measured(table.filter(inside))})
    wanted = WANTED[name]
    return {
        which: {"points": points, "at": {f"{100 * at:g}%": at_accuracy(points, at) for at in wanted}}
        for which, points in measured.items()
    }


def _measured(table: pa.Table) -> dict[str, Any]:
    values = measure(outcomes(table)).to_dict()
    return {name: values[name] for name in NAMES}


def _ids(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [str(json.loads(line)["id"]) for line in lines if line.strip()]


def at_accuracy(points: Sequence[Point], accuracy: float) -> dict[str, Any]:
    """The mean radius at a clean accuracy on the front of each seed, linear between two points; None beyond its ends.

    >>> points = [{"seed": 0, "clean_accuracy": a, "mean_radius": r} for a, r in ((0.99, 10.0), (0.97, 20.0))]
    >>> at_accuracy(points, 0.98)["radii"]
    [15.0]
    """
    radii: list[float | None] = []
    for seed in sorted({point["seed"] for point in points}):
        front: list[tuple[float, float]] = []
        own = [point for point in points if point["seed"] == seed]
        for point in sorted(own, key=lambda row: (-row["clean_accuracy"], -row["mean_radius"])):
            if not front or point["mean_radius"] > front[-1][1]:
                front.append((point["clean_accuracy"], point["mean_radius"]))
        known = sorted(front)
        if not known or accuracy > known[-1][0]:
            radii.append(None)
        else:  # a model that is more accurate than wanted will do
            radii.append(round(float(np.interp(accuracy, [a for a, _ in known], [r for _, r in known])), 4))
    values = [radius for radius in radii if radius is not None]
    return {
        "radii": radii,
        "mean": float(np.mean(values)) if values else None,
        "spread": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }
