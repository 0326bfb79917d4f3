"""The entries of a report: a run, several seeds of a method, or another system's table; with names and measures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from adaptdel.core.threat import Threat
from adaptdel.measures.class_measures import ClassTable, measure_classes
from adaptdel.measures.summary import Measures, Outcomes, measure
from adaptdel.report.measured import CHARACTERS, RunInputs, read_rows, read_runs
from adaptdel.runs.records import CERTIFICATES, Record, protected_label
from adaptdel.runs.storage import Run
from adaptdel.settings import CERTIFICATION

# Okabe and Ito's colours, darkened where they are too pale for lines on white: (on a light, on a dark background).
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
    "exact": "Exact",
}
_METHODS_WITH_RATE = {"AdaptDel", "CERT-ED", "RanMASK"}


@dataclass(frozen=True)
class Entry:
    """A row of the report's tables: a run, or several that differ in their seeds only.

    Attributes:
        name: a name that no other entry has.
        number: its position, from 0, which determines its colour.
        parts: the measured inputs of its runs; the inputs of all are measured together.
        characters: whether the radii count edited characters.
    """

    name: str
    number: int
    parts: tuple[RunInputs, ...]
    characters: bool = False

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the first run."""
        return self.parts[0].run.manifest

    @property
    def finished(self) -> bool:
        """Whether every run is finished."""
        return all(part.run.finished for part in self.parts)

    @cached_property
    def outcomes(self) -> Outcomes:
        """All measured inputs."""
        return Outcomes.pooled([part.outcomes for part in self.parts])

    @property
    def rows(self) -> dict[int, Record]:
        """The rows of the first run, by row number."""
        return self.parts[0].rows

    @property
    def colour_number(self) -> int:
        """The number of its colour."""
        return self.number % len(COLOURS)

    @property
    def colour(self) -> str:
        """The colour on a light background."""
        return COLOURS[self.colour_number][0]

    @cached_property
    def measures(self) -> Measures:
        """The measures over all inputs."""
        return measure(self.outcomes, Threat(self.ops))

    @property
    def seconds(self) -> float | None:
        """A worker's mean time for an input with a certificate; None if it is not known."""
        manifests = [part.run.manifest for part in self.parts]
        if not self.finished or any(manifest.get("seconds") is None for manifest in manifests):
            return None
        certified = sum(part.run.manifest["rows"] - part.problems for part in self.parts)
        return sum(manifest["seconds"] for manifest in manifests) / certified if certified else None

    @cached_property
    def by_seed(self) -> list[Measures]:
        """The measures of each run."""
        return [measure(part.outcomes, Threat(self.ops)) for part in self.parts]

    @cached_property
    def quartiles(self) -> list[Outcomes]:
        """The inputs by quartile of length."""
        return self.outcomes.by_quartile()

    @cached_property
    def classes(self) -> ClassTable:
        """The measures by class, and the warnings."""
        return measure_classes(self.outcomes, self.manifest["classes"], protected=self.protects)

    @cached_property
    def by_class(self) -> dict[Any, Outcomes]:
        """The inputs of each label, in the order of the classes; empty without labels."""
        parts = self.outcomes.by_label()
        return {each.label: parts[each.label] for each in self.classes.classes if each.inputs}

    @property
    def is_constant(self) -> bool:
        """Whether (almost) all inputs get one answer, although their labels differ, or are unknown."""
        return self.classes.constant is not None

    @property
    def title(self) -> str:
        """The name, and what a reader of a figure must know: a constant answer, or certificates of another system."""
        if self.is_constant:
            return f"{self.name} (one answer: {clip(str(self.classes.constant), 20)})"
        return f"{self.name} (not verifiable here)" if self.is_foreign else self.name

    @property
    def is_foreign(self) -> bool:
        """Whether the certificates are those of another system, of which nothing can be derived again."""
        return "foreign" in self.manifest

    @property
    def is_exact(self) -> bool:
        """Whether the certificates hold with certainty, without votes."""
        return self.manifest.get("method") == "exact"

    @property
    def certifies(self) -> bool:
        """Whether a radius can be above 0: without noise it cannot, unless the certificates are exact."""
        return self.is_exact or self.is_foreign or (self.manifest.get("noise") or {}).get("kind", "none") != "none"

    @property
    def confidence(self) -> str:
        """With what confidence a certificate holds, in words."""
        if self.is_foreign:
            return "not verifiable here"
        alpha = self.manifest.get("alpha") or 0.0
        return f"{100 * (1 - alpha):g}%" if alpha else "certain"

    @property
    def unit(self) -> Any:
        """What an edit changes, as in a manifest."""
        return CHARACTERS if self.characters else self.manifest.get("unit")

    @property
    def attacker(self) -> tuple[str, ...]:
        """What two runs must share for their radii to be comparable on the same inputs."""
        return repr(self.ops), repr(self.unit), repr(self.manifest.get("threshold"))

    @property
    def data(self) -> tuple[str, ...]:
        """The measured data: equal if two runs hold the same inputs."""
        described = self.manifest.get("data") or {}
        known = described.get("sha256") or described.get("remote") or described.get("path")
        return str(known), str(len(self.parts[0].outcomes)), str(self.outcomes.labelled)

    @cached_property
    def group(self) -> tuple[str, ...] | None:
        """The same for entries among which a table emphasises the best; None for a constant run.

        Exact certificates hold at every error level: they are compared with runs at the default one.
        """
        own = (self.manifest.get("alpha"), self.manifest.get("bound"))
        confidence = map(str, (CERTIFICATION.alpha, CERTIFICATION.bound) if self.is_exact else own)
        return None if self.is_constant else (*self.data, *self.attacker, *confidence)

    @property
    def protects(self) -> str | None:
        """The class that the decision threshold of the run protects, as text; None without a threshold."""
        return protected_label(self.manifest)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations of the attacker; of one who edits characters, all."""
        return Threat().ops if self.characters else tuple(self.manifest["ops"])

    def certificates(self, rows: Sequence[int]) -> dict[int, Any]:
        """Certificates of the first run by row number; rows that it does not hold are left out."""
        if self.is_foreign:
            return {}
        run = self.parts[0].run
        records = read_rows(run, CERTIFICATES.names, sorted(rows)).to_pylist()
        return {record["row"]: certificate for record, certificate in run.certified(records)}


def read_entries(paths: Sequence[Path], names: Sequence[str] = (), *, characters: bool = False) -> list[Entry]:
    """Read runs as entries: those with the same given name, or that differ in their seeds only, are one entry.

    A file is a table of another system on the inputs of the first run. With ``characters``, radii count edited
    characters.
    """
    if names and len(names) != len(paths):
        raise ValueError(f"names must be one for each of the {len(paths)} runs, got {len(names)}")
    parts = read_runs(paths)
    groups: dict[Any, list[RunInputs]] = {}
    for place, part in enumerate(parts):
        key = names[place] if names else _method(part)
        others = [_seeds(other) for other in groups.get(key, ())]
        groups.setdefault(key if names or _seeds(part) not in others else place, []).append(part)
    shown = [*groups] if names else _names([group[0].run for group in groups.values()])
    converted = [[part.in_characters() for part in group] if characters else group for group in groups.values()]
    return [Entry(shown[place], place, tuple(group), characters) for place, group in enumerate(converted)]


def _method(part: RunInputs) -> tuple[str, ...]:
    """What the runs of a method share, whatever their seeds: a default rate depends on the texts of a seed."""
    manifest = part.run.manifest
    data, model = manifest.get("data") or {}, manifest.get("model") or {}
    training = model.get("training") or {}
    settings = {name: value for name, value in (training.get("settings") or {}).items() if name != "seed"}
    trained = json.dumps(settings, sort_keys=True), (training.get("data") or {}).get("digest")
    how = trained if settings else (*short_name(manifest), manifest.get("noise"), model.get("base"))
    names = ("ops", "alpha", "bound", "unit", "votes", "limit", "method")
    shared = [manifest.get(name) for name in names] + [manifest.get("threshold") is None, bool(model.get("calibrated"))]
    return tuple(map(repr, (*how, data.get("sha256"), *shared)))


def _seeds(part: RunInputs) -> tuple[Any, ...]:
    manifest = part.run.manifest
    training = (manifest.get("model") or {}).get("training") or {}
    return manifest.get("seed"), training.get("seed")


def _names(runs: Sequence[Run]) -> list[str]:
    """Names by method and rate, longer where they would be the same."""
    short = [short_name(run.manifest) for run in runs]
    names = [f"{name} {rate}".strip() if name in _METHODS_WITH_RATE else name for name, rate in short]
    for number, run in enumerate(runs):
        protects = (run.manifest.get("model") or {}).get("protects")
        names[number] += "" if protects is None else f", protects {protects}"
    attackers = ["" if len(run.manifest["ops"]) == 3 else ", ".join(run.manifest["ops"]) for run in runs]
    for details in (attackers, [run.folder.name for run in runs], [f"#{number + 1}" for number in range(len(runs))]):
        told_apart = Counter(name for name, _ in set(zip(names, details, strict=True)))
        is_used = [bool(detail) and told_apart[name] > 1 for name, detail in zip(names, details, strict=True)]
        names = [f"{n} ({detail})" if used else n for n, detail, used in zip(names, details, is_used, strict=True)]
    return names


def short_name(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The method of a run, and its rate.

    >>> short_name({"noise": {"kind": "deletion", "rate": {"kind": "length", "p_min": 0.9, "k": 23}}})
    ('AdaptDel', '90%')
    """
    model, noise = manifest.get("model") or {}, manifest.get("noise") or {}
    rate = noise.get("rate") or {}
    fraction = noise.get("fraction", rate.get("p", rate.get("p_min")))
    kinds = {"length": "adaptdel", "fixed": "cert-ed", "binned": "adaptdel+", "interpolated": "adaptdel+"}
    guess = {"masking": "ranmask", "none": "nosmooth"}.get(noise.get("kind", ""), kinds.get(rate.get("kind", "")))
    method = str(manifest.get("method") or model.get("method") or guess or "run")
    rate_words = f"{100 * fraction:g}%" if isinstance(fraction, (int, float)) else ""
    return METHODS.get(method.lower(), method), rate_words


def file_name(data: Mapping[str, Any]) -> str:
    """The name of a data file without its folders; of several, that of the first and how many there are."""
    paths = data.get("path") or ""
    first, *more = paths if isinstance(paths, (list, tuple)) else [paths]
    name = str(first).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return f"{name} and {len(more)} more" if more else name


def clip(text: str, most: int) -> str:
    """The beginning of a long text, and how much was cut.

    >>> clip("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
