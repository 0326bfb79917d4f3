"""The runs of a report, with their names, colours and measures; and a random sample of their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.detection import DetectionCurve, detection_curve
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import content_key, stream
from adaptdel.core.checks import BoolArray
from adaptdel.core.noise import Noise
from adaptdel.measures.class_measures import ClassTable
from adaptdel.measures.summary import Measures, Outcomes, by_quartile, measure
from adaptdel.report.measured import ReportInputs, read_inputs
from adaptdel.runs.inputs import content_id
from adaptdel.runs.manifest import protected_label
from adaptdel.runs.records import label_value
from adaptdel.runs.storage import Run, read_run
from adaptdel.text.data import read_rows
from adaptdel.text.data_files import HUB, DataPath, data_files
from adaptdel.text.units import Tokens, Unit, unit_from_dict

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
}
DETECTION_INPUTS = 2000  # on which detection under attack is measured
_METHODS_WITH_RATE = {"AdaptDel", "CERT-ED", "RanMASK"}


@dataclass(frozen=True)
class Entry:
    """A run in a report.

    Attributes:
        name: a name that no other run of the report has.
        number: its position among the runs, from 0, which determines its colour.
        inputs: its measured inputs.
    """

    name: str
    number: int
    inputs: ReportInputs

    @property
    def run(self) -> Run:
        """The run."""
        return self.inputs.run

    @property
    def outcomes(self) -> Outcomes:
        """The measured inputs; in a large run, a row stands for several."""
        return self.inputs.outcomes

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of the table by id, of a large run a random sample; rows without a certificate are left out."""
        return self.inputs.rows

    @property
    def colour(self) -> str:
        """The colour on a light background."""
        return COLOURS[self.number % len(COLOURS)][0]

    @cached_property
    def measures(self) -> Measures:
        """The measures over all inputs."""
        return measure(self.outcomes)

    @cached_property
    def quartiles(self) -> list[Measures]:
        """The measures by quartile of length."""
        return [measure(part) for part in by_quartile(self.outcomes)]

    @cached_property
    def classes(self) -> ClassTable:
        """The measures by class; constant answers and missed classes."""
        table = self.outcomes.by_class(self.run.manifest["classes"])
        return table if self.protects is None else table.one_sided(self.protects)

    @cached_property
    def by_class(self) -> dict[Any, Outcomes]:
        """The measured inputs of each label, in the order of the classes; empty without labels."""
        labels = [each.label for each in self.classes.classes if each.inputs]
        return {label: self.outcomes.take(np.array([own == label for own in self.outcomes.label])) for label in labels}

    @cached_property
    def constants(self) -> list[str | None]:
        """By quartile of length: the answer that (almost) all inputs get, or None."""
        constants = [part.by_class().constant for part in by_quartile(self.outcomes)]
        return [None if constant is None else str(constant.label) for constant in constants]

    @property
    def is_constant(self) -> bool:
        """Whether (almost) all inputs get one answer, although their labels differ, or are unknown."""
        return self.classes.constant is not None

    @property
    def title(self) -> str:
        """The name, and what a reader of a figure must know: that the run gives one answer to (almost) all inputs."""
        constant = self.classes.constant
        return self.name if constant is None else f"{self.name} (one answer: {clip(str(constant.label), 20)})"

    @property
    def is_smoothed(self) -> bool:
        """Whether the run has noise, without which no radius is above 0."""
        return bool(self.run.manifest["noise"]["kind"] != "none")

    @property
    def rule(self) -> tuple[str, ...]:
        """What two runs must have in common for their radii to be comparable on the same inputs."""
        return tuple(repr(self.run.manifest.get(name)) for name in ("ops", "alpha", "bound", "threshold", "k", "unit"))

    @cached_property
    def group(self) -> tuple[str, ...] | None:
        """The same for runs that tables compare: those with the same inputs and rule. None for a constant run."""
        if self.is_constant:
            return None
        return self.inputs.digest, str(self.outcomes.labelled), *self.rule

    @property
    def protects(self) -> str | None:
        """The class that the decision threshold of the run protects, as text; None without a threshold."""
        return protected_label(self.run.manifest)

    @cached_property
    def detection(self) -> DetectionCurve | None:
        """Detection under attack, on the first `DETECTION_INPUTS` labelled inputs; None without a threshold."""
        rows = [row for row in self.rows.values() if row["truth"] is not None][:DETECTION_INPUTS]
        labels = [str(label_value(row["truth"])) for row in rows]
        if self.protects is None or len({label == self.protects for label in labels}) < 2:
            return None
        certificates = self.certificates([row["id"] for row in rows])
        return detection_curve([certificates[row["id"]] for row in rows], labels, self.protects)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations of the attacker."""
        return tuple(self.run.manifest["ops"])

    def certificates(self, ids: Sequence[str]) -> dict[str, Certificate]:
        """Certificates by id; ids that the run does not hold are left out."""
        certified = self.run.certified(self.run.with_ids(ids))
        return {record["id"]: certificate for record, certificate in certified}


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """Read runs, and give each a name of its own."""
    inputs = [read_inputs(read_run(folder)) for folder in folders]
    runs = [each.run for each in inputs]
    short = [short_name(run.manifest) for run in runs]
    long = [f"{name} {detail}".strip() for name, detail in short]
    names = [(short[n][0] if short[n][0] not in _METHODS_WITH_RATE else long[n]) for n in range(len(runs))]
    protected = [(run.manifest.get("model") or {}).get("protects") for run in runs]
    names, long = (
        [name if own is None else f"{name}, protects {own}" for name, own in zip(column, protected, strict=True)]
        for column in (names, long)
    )
    for longer in (long, [f"{long[n]} ({runs[n].folder.name})" for n in range(len(runs))]):
        counts = Counter(names)
        names = [name if counts[name] == 1 else longer[place] for place, name in enumerate(names)]
    counts = Counter(names)
    names = [name if counts[name] == 1 else f"{name} #{place + 1}" for place, name in enumerate(names)]
    return [Entry(names[place], place, each) for place, each in enumerate(inputs)]


def short_name(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The method of a run, and its rate.

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


def file_name(data: Mapping[str, Any]) -> str:
    """The name of a data file without its folders; of several, that of the first and how many there are."""
    path = data.get("path") or ""
    if isinstance(path, list):
        return (
            f"{file_name({'path': path[0]})} and {len(path) - 1} more"
            if len(path) > 1
            else file_name({"path": path[0]})
        )
    return str(path).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


COPIES = 3  # noisy copies that are shown for each certificate
MOST_TEXT, MOST_COPY = 4000, 360  # characters that are shown


@dataclass(frozen=True)
class RunAnswer:
    """The certificate of an input in a run.

    Attributes:
        entry: the run.
        certificate: the certificate.
        correct: whether the answer is the label; None if the label is unknown.
        copies: noisy copies, each with the number of kept tokens.
    """

    entry: Entry
    certificate: Certificate
    correct: bool | None
    copies: tuple[tuple[int, str], ...]

    @property
    def colour(self) -> int:
        """The number of the run's colour."""
        return self.entry.number % len(COLOURS)


@dataclass(frozen=True)
class SampledInput:
    """An input with its certificates in all runs; ``text`` is None if it is not available."""

    id: str
    row: int
    label: Any
    text: str | None
    length: int
    answers: tuple[RunAnswer, ...]

    @property
    def kinds(self) -> list[str]:
        """The filters of the page that show the input."""
        kinds = ["all"]
        if any(answer.correct is False for answer in self.answers):
            kinds.append("wrong")
        if any(answer.certificate.abstained for answer in self.answers):
            kinds.append("abstained")
        if any(answer.certificate.radius == 0 for answer in self.answers):
            kinds.append("zero")
        return kinds


def sample_inputs(
    entries: Sequence[Entry], count: int, *, data: str | None, seed: int
) -> tuple[list[SampledInput], str | None]:
    """A random sample of the inputs, in the order of the data; and a sentence if texts are missing."""
    first = entries[0]
    shared = [name for name in first.rows if all(name in entry.rows for entry in entries)] or list(first.rows)
    drawn = np.random.default_rng(seed).permutation(len(shared))[:count]
    chosen = [shared[place] for place in sorted(drawn)]
    texts, missing = find_texts(first, chosen, data)
    certificates = [entry.certificates(chosen) for entry in entries]
    sampled = []
    for name in chosen:
        row, text = first.rows[name], texts.get(name)
        answers = tuple(
            RunAnswer(entry, by_id[name], entry.rows[name]["correct"], noisy_copies(by_id[name], text, seed))
            for entry, by_id in zip(entries, certificates, strict=True)
            if name in by_id
        )
        shortened = None if text is None else clip(text, MOST_TEXT)
        label = None if row["truth"] is None else label_value(row["truth"])
        sampled.append(SampledInput(name, row["row"], label, shortened, row["length"], answers))
    return sampled, missing


def find_texts(entry: Entry, ids: Sequence[str], data: str | None) -> tuple[dict[str, str], str | None]:
    """The texts of inputs by id, read from the data file; and a sentence if texts are missing.

    A text is used only if the hash of its tokens is the hash in the run.
    """
    described = entry.run.manifest.get("data") or {}
    path = data if data is not None else described.get("path")
    if not ids:
        return {}, None
    if entry.run.manifest["unit"] is None:
        return {}, "The texts are not shown: the run does not state how it splits texts into tokens."
    if path is None or (data is None and not _is_there(path)):
        name = file_name(described) or "the data file"
        return {}, f"The texts are not shown: {name} is not where the run read it. Give it with --data."
    wanted = {name: entry.rows[name]["input_hash"] for name in ids}
    try:
        texts = _matching(entry, wanted, path)
    except (OSError, ValueError) as error:
        if data is not None:
            raise
        return {}, f"The texts are not shown: {file_name(described)} cannot be read any more ({type(error).__name__})."
    lost = len(ids) - len(texts)
    name = file_name({"path": path})
    return texts, f"{lost} of {len(ids)} texts are not shown: {name} does not hold them (any more)." if lost else None


def _is_there(path: DataPath) -> bool:
    """Whether local files are where a run read them."""
    try:
        return all(file.kind != HUB and not file.is_remote for file in data_files(path))
    except (ValueError, ImportError):
        return False


def _matching(entry: Entry, wanted: dict[str, str], path: DataPath) -> dict[str, str]:
    """The texts in a file with the wanted tokens: first those with the same id, then any others."""
    unit = unit_from_dict(entry.run.manifest["unit"])
    texts: dict[str, str] = {}
    for name, text in _rows(entry, path):
        if name in wanted and name not in texts and _hash(unit, text) == wanted[name]:
            texts[name] = text
            if len(texts) == len(wanted):
                return texts
    names: dict[str, list[str]] = {}
    for name, key in wanted.items():
        if name not in texts:
            names.setdefault(key, []).append(name)
    for _, text in _rows(entry, path):
        for name in names.pop(_hash(unit, text), ()):
            texts[name] = text
        if not names:
            break
    return texts


def _rows(entry: Entry, path: DataPath) -> Iterator[tuple[str, str]]:
    """The id, as the run has it, and the text of every readable row."""
    described = entry.run.manifest.get("data") or {}
    names = {key: described[key] for key in ("text", "label", "ids", "encoding") if isinstance(described.get(key), str)}
    for row in read_rows(path, **names, on_problem=lambda number, sentence: None):
        yield row.id if row.id is not None else content_id(row.text), row.text


def _hash(unit: Unit, text: Any) -> str:
    return content_key(unit.split(text)).hex()


def noisy_copies(certificate: Certificate, text: str | None, seed: int) -> tuple[tuple[int, str], ...]:
    """A few noisy copies as the base classifier reads them; ⟨5⟩ stands for 5 masks."""
    if text is None or certificate.unit is None or not certificate.noise.changes_inputs:
        return ()
    unit = unit_from_dict(certificate.unit)
    tokens = unit.split(text)
    rng = stream(seed, content_key(tokens), "report")
    kept = certificate.noise.sample(len(tokens), COPIES, rng)
    return tuple((int(row.sum()), _copy_text(certificate.noise, unit, tokens, row)) for row in kept)


def _copy_text(noise: Noise, unit: Unit, tokens: Tokens, kept: BoolArray) -> str:
    if not noise.masks_tokens:
        return clip(readable(unit.join([tokens[place] for place in np.flatnonzero(kept)])), MOST_COPY)
    parts, hidden = [], 0
    for token, keep in zip(tokens, kept, strict=True):
        if keep:
            parts += ([f"⟨{hidden}⟩"] if hidden else []) + [readable(token)]
        hidden = 0 if keep else hidden + 1
    return clip(" ".join(parts + ([f"⟨{hidden}⟩"] if hidden else [])), MOST_COPY)


def readable(value: Any) -> str:
    """A text, bytes or a token as text."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("ascii", "backslashreplace")
    return str(value)


def clip(text: str, most: int) -> str:
    """The beginning of a long text, and how much was cut.

    >>> clip("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
