"""Runs that are shown side by side: their names, their colours, their measures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.report.measures import Measures, Outcomes, by_quartile, measure, outcomes
from adaptdel.runs.storage import Run, read_run

# Okabe and Ito's colours, darkened where they are too pale for lines on white; first on light, then on dark ground.
COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#c84e00", "#ff9a57"),
    ("#00835f", "#35cfa0"),
    ("#a8437f", "#eba3cd"),
    ("#8f6a00", "#f0c75e"),
    ("#5a53c4", "#aaa4ff"),
    ("#4d5660", "#b8c0c9"),
)
METHODS = {
    "adaptdel": "AdaptDel",
    "adaptdel+": "AdaptDel+",
    "cert-ed": "CERT-ED",
    "ranmask": "RanMASK",
    "nosmooth": "NoSmooth",
    "freelb": "FreeLB",
}


@dataclass(frozen=True)
class Entry:
    """A run as the report shows it.

    Attributes:
        name: what it is called.
        number: its place among the runs, from 0, which is its colour.
        run: the run.
        outcomes: the inputs that measures are taken of.
    """

    name: str
    number: int
    run: Run
    outcomes: Outcomes

    @property
    def colour(self) -> str:
        """Its colour on light ground."""
        return COLOURS[self.number % len(COLOURS)][0]

    @cached_property
    def measures(self) -> Measures:
        """Its measures over all inputs."""
        return measure(self.outcomes)

    @cached_property
    def quartiles(self) -> list[Measures]:
        """Its measures by quartile of length."""
        return [measure(part) for part in by_quartile(self.outcomes)]

    @property
    def ops(self) -> tuple[str, ...]:
        """What the attacker may do."""
        return tuple(self.run.manifest["ops"])

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """What the table says of each input, by id, but for the votes; bad rows are left out."""
        few = self.run.table.select(
            ["id", "row", "truth", "answer", "correct", "length", "rate", "input_hash", "problem"]
        )
        return {row["id"]: row for row in few.to_pylist() if row["problem"] is None}

    def certificates(self, ids: Sequence[str]) -> dict[str, Certificate]:
        """The certificates of some inputs, by id; those that the run does not hold are left out."""
        wanted = set(ids)
        names = self.run.table["id"].to_pylist()
        good = [text is None for text in self.run.table["problem"].to_pylist()]
        chosen = [place for place, name in enumerate(names) if name in wanted and good[place]]
        few = replace(self.run, table=self.run.table.take(np.array(chosen, dtype=np.int64)))
        return {names[place]: made for place, made in zip(chosen, few.certificates(), strict=True)}


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """Read runs, and give each a name that no other has."""
    runs = [read_run(folder) for folder in folders]
    for run in runs:
        _check_rows(run)
    short = [short_name(run.manifest) for run in runs]
    long = [f"{name} {detail}".strip() for name, detail in short]
    names = [(short[n][0] if short[n][0] not in _METHODS_WITH_RATE else long[n]) for n in range(len(runs))]
    for again in (long, [f"{long[n]} ({runs[n].folder.name})" for n in range(len(runs))]):
        counts = Counter(names)
        names = [name if counts[name] == 1 else again[place] for place, name in enumerate(names)]
    counts = Counter(names)
    names = [name if counts[name] == 1 else f"{name} #{place + 1}" for place, name in enumerate(names)]
    return [Entry(names[place], place, run, outcomes(run.table, times_of(run))) for place, run in enumerate(runs)]


def _check_rows(run: Run) -> None:
    """Raise for a row without what is measured."""
    for name in ("id", "row", "answer", "length", "rate", "radius", "log10_cardinality", "calls", "input_hash"):
        for place in np.flatnonzero(run.table[name].is_null().to_numpy()).tolist():
            if run.table["problem"][place].as_py() is None:
                where = f"{run.file}, row {place + 1} of the table"
                raise ValueError(f"{where}: {name} is null: take the run from where it was made, or make it again")


_METHODS_WITH_RATE = {"AdaptDel", "CERT-ED", "RanMASK"}


def short_name(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The method of a run, and its rate in a few signs.

    >>> short_name({"noise": {"kind": "deletion", "rate": {"kind": "length", "p_min": 0.9, "k": 23}}})
    ('AdaptDel', '90%')
    """
    model = manifest.get("model") or {}
    noise = manifest.get("noise") or {}
    rate = noise.get("rate") or {}
    share = noise.get("fraction", rate.get("p", rate.get("p_min")))
    kinds = {"length": "adaptdel", "fixed": "cert-ed", "binned": "adaptdel+", "interpolated": "adaptdel+"}
    guess = {"masking": "ranmask", "none": "nosmooth"}.get(noise.get("kind", ""), kinds.get(rate.get("kind", "")))
    method = str(model.get("method") or guess or "run")
    return METHODS.get(method.lower(), method), f"{100 * share:g}%" if isinstance(share, (int, float)) else ""


def times_of(run: Run) -> dict[str, float]:
    """Seconds by id, where the run has kept them."""
    pairs = zip(run.times["id"].to_pylist(), run.times["seconds"].to_pylist(), strict=True)
    return {name: seconds for name, seconds in pairs if seconds is not None}


def from_json(value: str | None) -> Any:
    """A label as the run keeps it."""
    return None if value is None else json.loads(value)
