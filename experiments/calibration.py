"""Calibration that cannot lose: CERT-ED, AdaptDel and calibrated AdaptDel+ by default settings, long and short texts.

    python -m experiments.calibration --data FOLDER [--sets lun,yelp] [--seeds 10,11,12] [--out experiments/results]

For each data set, for its full texts and for the first 15 words of each, and for each seed: `adaptdel train` with its
defaults for the three methods, `adaptdel calibrate` with its defaults, and certificates for the test set; all rows, or
at most ``--train`` and ``--test`` of them. Results are written after each step, as JSON, and a step that
is in the file is not repeated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.calibration import calibrate_folder
from adaptdel.calibration.candidates import ACCURACY_ERRORS
from adaptdel.files import write_json
from adaptdel.measures.class_measures import measure_classes
from adaptdel.measures.summary import Outcomes
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CALIBRATION
from adaptdel.text.data import read_examples
from adaptdel.training import TrainingJob, TrainingSettings, train_job

SETS = ("lun", "spamassassin", "yelp", "imdb")
SHORT = 15  # words
METHODS = ("cert-ed", "adaptdel", "adaptdel+")
POINTS = 1.0  # of accuracy that AdaptDel+ may lose
VOTES = {"n_select": 100, "n_estimate": 1000}


def rows(path: Path, limit: int | None, seed: int, words: int | None) -> list[dict[str, Any]]:
    """A part of a labelled file, drawn by the seed; the first words of each text if asked."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        listed = [json.loads(line) for line in lines]
    order = np.random.default_rng(seed).permutation(len(listed))[:limit]
    drawn = [{"text": " ".join(listed[n]["text"].split()[:words]), "label": listed[n]["label"]} for n in order]
    return [row for row in drawn if row["text"]]


def certified(folder: Path, test: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of the certificates of a model on the test rows."""
    model = SmoothedClassifier.load(folder).set_params(**VOTES, progress=False)
    started = time.monotonic()
    certificates = model.certify([row["text"] for row in test])
    labels = np.array([row["label"] for row in test])
    answers = np.array([certificate.label for certificate in certificates])
    radius = np.array([certificate.radius for certificate in certificates])
    right = answers == labels
    lengths = np.array([certificate.length for certificate in certificates])
    inputs = Outcomes.of(answers, radius, labels, length=lengths)
    counted = inputs.counted_radius
    columns = {"labels": labels, "answers": answers, "right": right, "radius": counted}
    columns["capped"] = np.minimum(counted, lengths)
    columns["warnings"] = list(measure_classes(inputs).warnings)
    return columns | {"seconds": time.monotonic() - started}


def balanced(labels: Any, values: Any) -> tuple[float, float]:
    """The mean over classes of the mean of each, and its standard error."""
    groups = [values[labels == label].astype(float) for label in np.unique(labels)]
    error = np.sqrt(sum(group.var(ddof=1) / len(group) for group in groups if len(group) > 1)) / len(groups)
    return float(np.mean([group.mean() for group in groups])), float(error)


def summary(columns: dict[str, Any]) -> dict[str, Any]:
    """The measures of a method."""
    labels = columns["labels"]
    radius, error = balanced(labels, columns["radius"])
    return {
        "accuracy": float(columns["right"].mean()),
        "balanced_accuracy": balanced(labels, columns["right"])[0],
        "class_balanced_mean_radius": radius,
        "class_balanced_mean_radius_se": error,
        "class_balanced_mean_radius_capped": balanced(labels, columns["capped"])[0],
        "mean_radius": float(columns["radius"].mean()),
        "most_frequent_answer": float(np.unique(columns["answers"], return_counts=True)[1].max() / len(labels)),
        "warnings": columns["warnings"],
    }


def compared(plus: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """AdaptDel+ minus another method, on the same inputs, with standard errors of the paired differences."""
    accuracy = plus["right"].astype(float) - other["right"]
    radius, radius_error = balanced(plus["labels"], plus["radius"] - other["radius"])
    return {
        "accuracy_points": 100 * float(accuracy.mean()),
        "accuracy_points_se": 100 * float(accuracy.std(ddof=1) / np.sqrt(len(accuracy))),
        "radius": radius,
        "radius_se": radius_error,
    }


def measured(
    data: Path, name: str, words: int | None, seed: int, train: int | None, test: int | None
) -> dict[str, Any]:
    """Train, calibrate and certify on one data set by one seed."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        file = folder / "train.jsonl"
        listed = rows(data / f"{name}.train.jsonl.gz", train, seed, words)
        file.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
        seconds, columns, rates = {}, {}, {}
        for method in METHODS:
            started = time.monotonic()
            job = TrainingJob(str(file), str(folder / method), TrainingSettings(method=method, seed=seed))
            rates[method] = train_job(job, progress=False).model.records.training["rate"]
            seconds[f"train {method}"] = round(time.monotonic() - started, 1)
        started = time.monotonic()
        examples = read_examples(str(file))
        done = calibrate_folder(folder / "adaptdel+", examples, CALIBRATION, out=folder / "calibrated", progress=False)
        seconds["calibrate"] = round(time.monotonic() - started, 1)
        held = rows(data / f"{name}.test.jsonl.gz", test, seed, words)
        for method, model in (("cert-ed", "cert-ed"), ("adaptdel", "adaptdel"), ("adaptdel+", "calibrated")):
            columns[method] = certified(folder / model, held)
        record = done.record
        return {
            "set": name,
            "words": words,
            "seed": seed,
            "accuracy_errors": ACCURACY_ERRORS,
            "train": len(listed),
            "test": len(held),
            "rate": rates["adaptdel"],
            "chosen": record["candidates"][record["chosen"]],
            "candidates": len(record["candidates"]),
            "warnings": record["warnings"],
            "seconds": seconds,
            "methods": {method: summary(columns[method]) for method in METHODS},
            "differences": {method: compared(columns["adaptdel+"], columns[method]) for method in METHODS[:2]},
        }


def verdict(entry: dict[str, Any]) -> dict[str, bool]:
    """Whether AdaptDel+ is at least as good as both; against methods as accurate as the best, and beyond noise."""
    methods = entry["methods"]
    best = max(methods[name]["accuracy"] for name in METHODS[:2])
    plus = methods["adaptdel+"]
    rivals = [name for name in METHODS[:2] if methods[name]["accuracy"] >= best - POINTS / 100]
    differences = entry["differences"]
    return {
        "radius_at_least_both": all(differences[name]["radius"] >= 0 for name in METHODS[:2]),
        "radius_at_least_rivals": all(differences[name]["radius"] >= 0 for name in rivals),
        "radius_not_worse_beyond_noise": all(
            differences[name]["radius"] >= -1.645 * differences[name]["radius_se"] for name in rivals
        ),
        "accuracy_within": plus["accuracy"] >= best - POINTS / 100,
        "accuracy_not_worse_beyond_noise": all(
            differences[name]["accuracy_points"] >= -POINTS - 1.645 * differences[name]["accuracy_points_se"]
            for name in METHODS[:2]
        ),
    }


def known(path: Path) -> list[dict[str, Any]]:
    """The runs that are in the file."""
    return list(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.exists() else []


def main() -> None:
    """Run what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--lengths", default="full,short", help="full texts, their first 15 words, or both")
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--train", type=int, default=None)
    parser.add_argument("--test", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    options = parser.parse_args()
    path = options.out / "calibration-linear.json"
    for seed in map(int, options.seeds.split(",")):
        for name in options.sets.split(","):
            for words in [None if length == "full" else SHORT for length in options.lengths.split(",")]:
                if any((run["set"], run["words"], run["seed"]) == (name, words, seed) for run in known(path)):
                    continue
                entry = measured(options.data, name, words, seed, options.train, options.test)
                runs = [*known(path), entry | {"verdict": verdict(entry)}]
                write_json(path, {"votes": VOTES, "points": POINTS, "runs": runs})
                sys.stderr.write(f"{name} {words} seed {seed}: {json.dumps(entry['differences'])} {verdict(entry)}\n")


if __name__ == "__main__":
    main()
