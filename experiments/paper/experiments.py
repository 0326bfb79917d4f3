"""The experiments: each returns plain values, every number out of a run on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from adaptdel import Deletion, SmoothedClassifier
from adaptdel.files import write_json
from adaptdel.report.entries import table_outcomes
from adaptdel.runs.storage import read_run
from benchmarks.real import load
from experiments.paper.study import METHODS, THRESHOLDS, VOTES, Study, history, measures, summary

RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEAST = {  # accuracies on held-out rows, for "mean"
    **{("spamassassin", "linear"): 0.98, ("imdb", "linear"): 0.82, ("lun", "linear"): 0.93, ("yelp", "linear"): 0.52},
    **{("spamassassin", "minilm"): 0.98, ("imdb", "minilm"): 0.78},
}
Result = dict[str, Any]


def main_table(study: Study, name: str, base: str) -> Result:
    """NoSmooth, RanMASK, CERT-ED, AdaptDel at 90%, AdaptDel+ at the paper's threshold with bins, and two of ours."""
    return {row: _row(study, _model(study, row, name, base), name, base) for row in study.rows}


def _model(study: Study, row: str, name: str, base: str) -> Path:
    """The model of a row of the main table, calibrated if it is AdaptDel+."""
    method, _, kind = row.partition(" ")
    model = study.model(name, method, base=base)
    if kind == "mean":
        return for_the_mean(study, model, name, base, LEAST[name, base])
    if kind == "interpolated":
        return study.calibrated(model, name, kind, base=base, threshold=THRESHOLDS[name], interpolate=True)
    if method == "adaptdel+":
        return study.calibrated(model, name, "paper", base=base, threshold=THRESHOLDS[name])
    return model


def for_the_mean(study: Study, model: Path, name: str, base: str, least: float) -> Path:
    """AdaptDel+ calibrated for the largest mean radius at a least accuracy, interpolated and monotone."""
    options = {"objective": "mean", "min_accuracy": least, "interpolate": True, "monotone": True}
    return study.calibrated(model, name, f"mean{100 * least:g}", base=base, **options)


def _row(study: Study, model: Path, name: str, base: str) -> Result:
    row = summary(study.run(model, name, base=base))
    path = model / "calibration.json"
    if path.exists():
        bins = json.loads(path.read_text(encoding="utf-8"))["bins"]
        row["kept"] = [{"centre": bin["centre"], "keep": bin["keep"]} for bin in bins]
    return row


def ablation(study: Study, name: str) -> Result:
    """AdaptDel with k from the mean length, over the least rate."""
    rows: Result = {}
    for rate in RATES:
        model = study.model(name, "adaptdel", rate=rate)
        noise = json.loads((model / "adaptdel.json").read_text(encoding="utf-8"))["noise"]
        rows[f"{100 * rate:g}"] = {**_row(study, model, name, "linear"), "k": noise["rate"]["k"]}
    return rows


def same_votes(study: Study, name: str, base: str) -> Result:
    """The tight and the paper's bound on the same votes, for three attackers, and near bin edges."""
    rows: Result = {}
    for row in ("adaptdel", "adaptdel+", "adaptdel+ interpolated"):
        if row not in study.rows:
            continue
        label = "adaptdel+ binned" if row == "adaptdel+" else row
        model = _model(study, row, name, base)
        run = study.run(model, name, base=base)
        for ops in ("edit", "ins", "del"):
            tight = run if ops == "edit" else study.again(run, f"{ops}", ops=ops)
            paper = study.again(run, f"{ops}-paper", ops=ops, bound="paper")
            rows[f"{label}, {ops}"] = {"tight": measures(tight).mean_radius, "paper": measures(paper).mean_radius}
        if label != "adaptdel":
            rows[f"{label}, by distance to an edge"] = _near_edges(study, run, model)
    return rows


def _near_edges(study: Study, run: Path, model: Path) -> Result:
    """The mean edit radius by how far a length is from the nearest edge of a bin, in words."""
    calibration = json.loads((model / "calibration.json").read_text(encoding="utf-8"))
    edges = np.array([edge for edge in calibration["settings"]["bins"] if edge > 0])
    if not len(edges):
        return {}
    rows: Result = {}
    for bound, folder in (("tight", run), ("paper", study.again(run, "edit-paper", ops="edit", bound="paper"))):
        measured = table_outcomes(read_run(folder).table)
        distance = np.abs(measured.length[:, None] - edges[None]).min(axis=1)
        for low, high in ((0, 5), (5, 15), (15, 30), (30, 10**9)):
            part = (distance >= low) & (distance < high)
            if part.any():
                key = f"{low} to {high - 1}" if high < 10**9 else f"{low} or more"
                rows.setdefault(key, {"inputs": int(part.sum())})[bound] = measured.take(part).mean_radius
    return rows


def sampling(study: Study, name: str, base: str) -> Result:
    """Adaptive against fixed votes: the radius kept, the calls saved, and what enumeration does for short inputs."""
    model = study.model(name, "adaptdel", base=base)
    adaptive = study.run(model, name, base=base)
    fixed = study.run(model, name, base=base, tag="-fixed", sampling="fixed")
    ours, paper = measures(adaptive), measures(fixed)
    tables = [read_run(folder).table for folder in (adaptive, fixed)]
    exact = tables[0].filter(tables[0]["exact"].is_valid())["id"]
    short: Result = {"inputs": len(exact)}
    if len(exact):
        for kind, table in zip(("exact", "fixed"), tables, strict=True):
            part = table.filter(pc.is_in(table["id"], exact.combine_chunks()))
            short[kind] = {
                "mean_radius": table_outcomes(part).mean_radius,
                "settled": float((part["radius"].to_numpy() >= 0).mean()),
                "calls": float(part["calls"].to_numpy().mean()),
            }
    return {
        "adaptive": ours.to_dict(),
        "fixed": paper.to_dict(),
        "radius_kept": ours.mean_radius / paper.mean_radius if paper.mean_radius else None,
        "calls_saved": paper.calls / ours.calls,
        "short": short,
    }


@dataclass(frozen=True)
class Looked:
    """What a front is looked for over.

    Attributes:
        accuracies: the least ones of AdaptDel+ for the mean radius.
        few: the same for the MiniLM that was trained on few words.
        rates: those of AdaptDel.
        thresholds: those of AdaptDel+ for the certified accuracy.
    """

    accuracies: tuple[float, ...]
    few: tuple[float, ...] = ()
    rates: tuple[float, ...] = (0.9,)
    thresholds: tuple[float, ...] = ()


def _linear(*accuracies: float) -> Looked:
    return Looked(accuracies, rates=RATES, thresholds=(0.4, 0.5, 0.6, 0.75))


FRONTS = {
    ("spamassassin", "linear"): _linear(0.98, 0.97, 0.96, 0.95),
    ("imdb", "linear"): _linear(0.88, 0.86, 0.84, 0.82),
    ("lun", "linear"): _linear(0.95, 0.93, 0.9),
    ("yelp", "linear"): _linear(0.56, 0.54, 0.52),
    ("spamassassin", "minilm"): Looked((0.98,), few=(0.97, 0.96)),
    ("imdb", "minilm"): Looked((0.78,)),
}


def pareto(study: Study, name: str, base: str) -> Result:
    """Clean accuracy against mean radius: AdaptDel over rates, AdaptDel+ over calibration objectives."""
    points: list[Result] = []
    settings = FRONTS[name, base]
    for rate in settings.rates:
        model = study.model(name, "adaptdel", base=base, rate=rate)
        points.append({"kind": "AdaptDel", "setting": f"{100 * rate:g}%", **_row(study, model, name, base)})
    plus = study.model(name, "adaptdel+", base=base)
    for least in settings.accuracies:
        model = for_the_mean(study, plus, name, base, least)
        points.append({"kind": "AdaptDel+ mean", "setting": f"{100 * least:g}%", **_row(study, model, name, base)})
    for least in settings.few:
        model = for_the_mean(study, study.few_words(name), name, base, least)
        points.append({"kind": "AdaptDel+ few", "setting": f"{100 * least:g}%", **_row(study, model, name, base)})
    if "adaptdel+" in study.rows:
        setting, model = f"{100 * THRESHOLDS[name]:g}%", _model(study, "adaptdel+", name, base)
        points.append({"kind": "AdaptDel+ binned", "setting": setting, **_row(study, model, name, base)})
    for threshold in settings.thresholds:
        options = {"threshold": threshold, "interpolate": True, "monotone": True}
        model = study.calibrated(plus, name, f"certified{100 * threshold:g}", base=base, **options)
        row = _row(study, model, name, base)
        points.append({"kind": "AdaptDel+ certified", "setting": f"{100 * threshold:g}%", **row})
    return {"points": points}


def costs(study: Study, name: str, base: str) -> Result:
    """Training and certification time by method, by the runs' own clocks, and where the time of AdaptDel goes."""
    rows: Result = {}
    for method in METHODS:
        if method not in study.rows:
            continue
        model = _model(study, method, name, base)
        record = history(model)
        steps = [row["seconds"] for row in record["history"] if row.get("seconds") is not None]
        run = read_run(study.run(model, name, base=base))
        measured = measures(run.folder)
        rows[method] = {
            "train_seconds": record["seconds"],
            "seconds_an_epoch": float(np.mean(steps)) if steps else None,
            "milliseconds_an_input": 1000 * run.manifest["seconds"] / measured.inputs,
            "calls": measured.calls,
        }
    stored = study.out / "shares" / f"{name}-{base}.json"  # times differ from call to call: measured once
    if not stored.exists():
        texts, _ = load(study.data, f"{name}.test", 30 if base == "minilm" else 1000)
        shares = time_shares(study.model(name, "adaptdel", base=base), texts, VOTES if base == "minilm" else {})
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_json(stored, shares)
    rows["shares"] = json.loads(stored.read_text(encoding="utf-8"))
    return rows


def time_shares(folder: Path, texts: list[str], settings: dict[str, Any]) -> Result:
    """The shares of time that certifying in one process spends in the base model, on noise, and on the certificates.

    Reading words, gathering ids and adding up answers are "copies", which a linear model does in one with its own work;
    what remains, looks, bounds and radii with all tables still to be made, is "arithmetic".
    """
    model = SmoothedClassifier.load(folder).set_params(progress=False, **settings)
    base: Any = model.base_
    clocks = {"model": Clock(), "noise": Clock(), "asking": Clock()}
    inner = "scores" if hasattr(base, "scores") else "votes"
    with ExitStack() as stack:
        for method in ("prepare", "votes"):
            stack.enter_context(clocks["asking"].on(base, method))
        if inner != "votes":
            stack.enter_context(clocks["model"].on(base, inner))
        stack.enter_context(clocks["noise"].on(Deletion, "draw_rows"))
        start = time.perf_counter()
        model.certify(texts)
        whole = time.perf_counter() - start
    asking, noise = clocks["asking"].seconds, clocks["noise"].seconds
    inside = clocks["model"].seconds if inner != "votes" else asking
    shares = {"model": inside / whole, "noise": noise / whole, "arithmetic": (whole - asking - noise) / whole}
    if inner != "votes":
        shares["copies"] = (asking - inside) / whole
    return {"inputs": len(texts), "milliseconds_an_input": 1000 * whole / len(texts), **shares}


@dataclass
class Clock:
    """Adds up the time that is spent in a method."""

    seconds: float = 0.0

    @contextmanager
    def on(self, owner: Any, name: str) -> Iterator[None]:
        """While this is entered."""
        original, own = getattr(owner, name), name in vars(owner)

        def timed(*arguments: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*arguments, **more)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(owner, name, timed)
        try:
            yield
        finally:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
