"""Models and runs of a study: each is made once, and what was stopped goes on."""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptdel.calibration.calibration import calibrate_folder
from adaptdel.files import write_text
from adaptdel.measures.summary import Measures, measure
from adaptdel.report.entries import read_inputs
from adaptdel.runs.certify import CertificationJob, certify_data
from adaptdel.runs.engine import EngineSettings
from adaptdel.runs.inputs import Source
from adaptdel.runs.rederive import recertify
from adaptdel.runs.storage import read_run
from adaptdel.settings import CalibrationSettings
from adaptdel.text.data import read_examples
from adaptdel.training import TrainingJob, TrainingSettings, train_job
from benchmarks.real import FINE_TUNING, minilm, shorter

TITLES = {"yelp": "Yelp", "imdb": "IMDB", "spamassassin": "SpamAssassin", "lun": "LUN"}
NAMES = {
    "nosmooth": "NoSmooth",
    "ranmask": "RanMASK 90%",
    "cert-ed": "CERT-ED 90%",
    "adaptdel": "AdaptDel 90%",
    "adaptdel+": "AdaptDel+ (binned)",
    "adaptdel+ interpolated": "AdaptDel+ (interpolated)",
    "adaptdel+ mean": "AdaptDel+ (for the mean radius)",
}
THRESHOLDS = {"yelp": 0.40, "imdb": 0.75, "spamassassin": 0.75, "lun": 0.75}
METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+")
ROWS = (*METHODS, "adaptdel+ interpolated", "adaptdel+ mean")
# MiniLM on a CPU. The paper's votes are 1000 and 4000. Copies under masks, and texts without noise, are ten times as
# long as those under deletion: they get one epoch, fewer votes, fewer of IMDB's reviews, and a model that reads 256
# tokens, as its makers use it. For AdaptDel+ few words are enough.
VOTES = {"n_select": 64, "n_estimate": 256}
WHOLE_VOTES = {"n_select": 32, "n_estimate": 128}
WHOLE_TEXTS, WHOLE_LENGTH = ("nosmooth", "ranmask"), 256
IMDB_PART, IMDB_WHOLE = 12_000, 1500
TUNING: dict[tuple[str, str], dict[str, Any]] = {
    ("spamassassin", "nosmooth"): {"epochs": 1},
    ("spamassassin", "ranmask"): {"epochs": 1},
    ("spamassassin", "cert-ed"): {"epochs": 6},
    ("spamassassin", "adaptdel+"): {"rates": (0.9, 0.99)},
    **{("imdb", method): {"epochs": 1} for method in METHODS[:-1]},
    ("imdb", "adaptdel+"): {"epochs": 1, "rates": (0.8, 0.97)},
}
CALIBRATION: dict[str, dict[str, Any]] = {  # held-out mails are 292, and their votes are dear
    "bins": {"spamassassin": [0, 137, 230, 324], "imdb": [0, 150, 250, 400]},
    "per_bin": {"spamassassin": 80, "imdb": 40},
    "votes": {"n_select": 16, "n_estimate": 64, "min_count": 20, "tol": 1.0},
}
FEW_WORDS: dict[str, Any] = {"kept": (4, 12)}  # words of a mail that the best model learns from


@dataclass
class Study:
    """Where the data is, where results go, and how much is done.

    Attributes:
        data: the folder of the four data sets.
        out: the folder of models, runs and results.
        limits: how many test inputs are certified, by base model; None for all.
        rows: which ones the main table has.
        workers: processes that certify.
    """

    data: Path
    out: Path
    limits: dict[str, int | None]
    rows: tuple[str, ...] = ROWS
    workers: int = 2

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    def model(self, name: str, method: str, *, base: str = "linear", rate: float = 0.9) -> Path:
        """A trained model."""
        fields: dict[str, Any] = {"method": method, "rate": None if method == "nosmooth" else rate}
        if base == "linear":
            fields["loss"] = "copies"  # as the other models are trained; experiments/linear-model.md has both
        if base == "minilm":
            whole = method in WHOLE_TEXTS
            pretrained = shorter(minilm(), self.out / "pretrained", WHOLE_LENGTH) if whole else minilm()
            tuning = {**FINE_TUNING, **TUNING.get((name, method), {}), "dtype": "int8"}
            fields = {**fields, "model": pretrained, **tuning}
        out = self.model_folder(name, method, base, fields["rate"])
        self.say(f"{out.name}: train")
        train_job(TrainingJob(str(self.train_file(name, base, method)), str(out), TrainingSettings.from_dict(fields)))
        return out

    def model_folder(self, name: str, method: str, base: str, rate: float | None) -> Path:
        """Where a trained model is."""
        return self.out / "models" / f"{name}-{base}-{method}-{rate or 0:g}"

    def few_words(self, name: str) -> Path:
        """AdaptDel+'s MiniLM, trained on copies of few words, whatever the length of the input."""
        out = self.out / "models" / f"{name}-minilm-adaptdel+-few"
        fields: dict[str, Any] = {**FINE_TUNING, **FEW_WORDS, "model": minilm(), "dtype": "int8"}
        self.say(f"{out.name}: train")
        train_job(
            TrainingJob(
                str(self.train_file(name, "minilm")),
                str(out),
                TrainingSettings.from_dict({"method": "adaptdel+", **fields}),
            )
        )
        return out

    def calibrated(self, model: Path, name: str, tag: str, *, base: str = "linear", **settings: Any) -> Path:
        """A calibrated copy of a model."""
        out = model.with_name(f"{model.name}-{tag}")
        settings = {"objective": "paper", **settings}
        if base == "minilm":
            own = {key: CALIBRATION[key][name] for key in ("bins", "per_bin")}
            settings = {**own, **CALIBRATION["votes"], **settings}
        settings = {"objective": "paper", **settings}
        self.say(f"{out.name}: calibrate")
        calibrate_folder(
            model, read_examples(self.train_file(name, base)), CalibrationSettings(**settings), out=out, note=self.say
        )
        return out

    def run(self, model: Path, name: str, *, base: str = "linear", tag: str = "", **settings: Any) -> Path:
        """The certificates of a model on the test set."""
        out = self.folder(model, base, tag)
        self.say(f"{out.name}: certify")
        limit = self.limits[base]
        workers = self.workers if base != "minilm" else 1
        minilm_votes = WHOLE_VOTES if "-ranmask-" in model.name else VOTES
        votes = minilm_votes if base == "minilm" else {}
        settings = {**votes, **settings}
        certify_data(
            CertificationJob(
                model,
                Source(str(self.part(name, "test", limit))),
                out,
                settings,
                engine=EngineSettings(workers=workers),
            )
        )
        return out

    def train_file(self, name: str, base: str, method: str = "adaptdel+") -> Path:
        """What a model is trained on: all, but for MiniLM on IMDB a part."""
        if name != "imdb" or base != "minilm":
            return self.part(name, "train", None)
        return self.part(name, "train", IMDB_WHOLE if method in WHOLE_TEXTS else IMDB_PART)

    def folder(self, model: Path, base: str, tag: str = "") -> Path:
        """Where the run of a model is, on as many test inputs as the study takes."""
        limit = self.limits[base]
        return self.out / "runs" / (model.name + tag + ("" if limit is None else f"-{limit}"))

    def part(self, name: str, which: str, limit: int | None) -> Path:
        """A file, or a part of it that is drawn by a seed: it is in the order of its source."""
        whole = self.data / f"{name}.{which}.jsonl.gz"
        if limit is None:
            return whole
        part = self.out / "data" / f"{name}.{which}-{limit}.jsonl"
        if not part.exists():
            with gzip.open(whole, "rt", encoding="utf-8") as lines:
                rows = [line for line in lines if line.strip()]
            part.parent.mkdir(parents=True, exist_ok=True)
            chosen = random.Random(0).sample(range(len(rows)), min(limit, len(rows)))
            write_text(part, "".join(rows[place] for place in sorted(chosen)))
        return part

    def again(self, run: Path, tag: str, **changes: Any) -> Path:
        """The radii from the same votes under another bound or for another attacker."""
        out = run.with_name(f"{run.name}-{tag}")
        if not (out / "manifest.json").exists():
            recertify(run, out, **changes)
        return out


def finished(run: Path) -> bool:
    """Whether a run has come to its end."""
    manifest = run / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text(encoding="utf-8"))["finished"] is not None


def measures(folder: Path) -> Measures:
    """The measures of a run."""
    run = read_run(folder)
    return measure(read_inputs(run).outcomes)


def summary(folder: Path) -> dict[str, Any]:
    """The measures of a run, in all and by quartile of length; its settings; the share of its most frequent answer."""
    run = read_run(folder)
    measured = read_inputs(run).outcomes
    answers = Counter(run.table["answer"].to_pylist())
    settings = {name: run.manifest[name] for name in ("bound", "alpha", "ops", "sampling", "votes", "seed")}
    return {
        **measure(measured).to_dict(),
        "most_frequent_answer": max(answers.values()) / len(run.table),
        "quarters": [_quarter(measure(part)) for part in measured.by_quartile()],
        "settings": settings,
        "run": folder.name,
    }


def _quarter(measures: Measures) -> dict[str, float]:
    names = ("shortest", "longest", "clean_accuracy", "certified_accuracy", "mean_radius")
    return {name: measures.to_dict()[name] for name in names}


def history(model: Path) -> dict[str, Any]:
    """How a model was trained."""
    record: dict[str, Any] = json.loads((model / "training.json").read_text(encoding="utf-8"))
    return record
