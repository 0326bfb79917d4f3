"""One-sided protection of spam on SpamAssassin, beside the two-sided certificate: radii, and detection under attack.

    python -m experiments.protection --data FOLDER [--seeds 0,1,2] [--out experiments/results]

The whole recipe, with defaults: linear models are trained and calibrated, with and without ``--protect``, and certify
the test mails. For a rate of 0.1%, which needs 2,995 ham mails that the model has not seen, the corpus is divided in
another way: most ham mails of both files are kept for the threshold (``--threshold-data``), and few are left for
training and testing. Results are written after each recipe, and a recipe that is in the file is not repeated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.folders import calibrate_folder
from adaptdel.files import write_json
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.data import read_examples
from adaptdel.training import TrainingJob, TrainingSettings, train_job

RADII = (0, 1, 2, 5, 10, 20, 40)
SPAM = 1
VOTES = {"n_select": 500, "n_estimate": 2000}
THRESHOLD_HAM, TRAINING_HAM = 3000, 1000  # of the division for a rate of 0.1%
Mail = dict[str, Any]


def mails(path: Path, seed: int) -> list[Mail]:
    """The mails of a file, in an order drawn by the seed."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        listed = [json.loads(line) for line in lines]
    return [
        {"text": listed[n]["text"], "label": listed[n]["label"]}
        for n in np.random.default_rng(seed).permutation(len(listed))
    ]


def written(path: Path, rows: list[Mail]) -> str:
    """Write a labelled file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def summary(model: SmoothedClassifier, test: list[Mail]) -> dict[str, Any]:
    """Certified detection of spam by radius, the radii of spam mails, and false positives."""
    certificates = model.set_params(**VOTES, progress=False).certify([row["text"] for row in test])
    labels = [row["label"] for row in test]
    spam = np.array(labels) == SPAM
    answers = np.array([certificate.label for certificate in certificates]) == SPAM
    radius = np.array([certificate.radius for certificate in certificates])
    detected = np.where(answers, radius, -1)[spam]
    certified_radii = np.maximum(detected, 0)
    return {
        "spam": int(spam.sum()),
        "ham": int((~spam).sum()),
        "false_positives": int(answers[~spam].sum()),
        "detected": float(answers[spam].mean()),
        "certified_detection": {str(r): float((detected >= r).mean()) for r in RADII},
        "mean_radius": float(certified_radii.mean()),
        "mean_radius_se": float(certified_radii.std(ddof=1) / np.sqrt(len(certified_radii))),
        "median_radius": float(np.median(certified_radii)),
        "protection": getattr(model, "protection_", None),
    }


def recipe(
    work: Path,
    train: list[Mail],
    seed: int,
    *,
    method: str = "adaptdel+",
    rate: float | None = None,
    validation: float | None = None,
    threshold: list[Mail] | None = None,
) -> SmoothedClassifier:
    """Train, and calibrate AdaptDel+, with a protected class if a rate of false positives is given."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        file = written(folder / "train.jsonl", train)
        protect = {} if rate is None else {"protect": str(SPAM), "max_false_positives": rate}
        held = {} if validation is None else {"validation": validation}
        settings = TrainingSettings.from_dict({"method": method, "seed": seed, **held})
        train_job(TrainingJob(file, str(folder / "model"), settings), progress=False)
        if method != "adaptdel+":
            return SmoothedClassifier.load(folder / "model")
        others = None if threshold is None else read_examples(written(folder / "threshold.jsonl", threshold))
        done = calibrate_folder(
            folder / "model",
            read_examples(file),
            protect,
            out=folder / "out",
            threshold_examples=others,
            progress=False,
        )
        chosen = done.calibration.to_dict()
        model = SmoothedClassifier.load(done.folder)
        model.calibration_ = {name: chosen["candidates"][chosen["chosen"]][name] for name in ("name", "kept")}
        return model


def measure(data: Path, entry: dict[str, Any], work: Path, write: Callable[[], None]) -> None:
    """All recipes by the seed of the entry that are not in it."""
    seed = entry["seed"]
    train, test = (mails(data / f"spamassassin.{part}.jsonl.gz", seed) for part in ("train", "test"))

    def add(name: str, rows: list[Mail], **options: Any) -> None:
        if name in entry["recipes"]:
            return
        model = recipe(work, options.pop("train", train), seed, **options)
        entry["recipes"][name] = summary(model, rows) | {"chosen": getattr(model, "calibration_", None)}
        sys.stderr.write(f"seed {seed}, {name}: {json.dumps(entry['recipes'][name])}\n")
        write()

    add("two-sided, AdaptDel", test, method="adaptdel")
    add("two-sided, AdaptDel+", test)
    for rate in (0.05, 0.01, 0.001):
        add(f"one-sided, {100 * rate:g}%", test, rate=rate)
    add("two-sided, AdaptDel+, half held out", test, validation=0.5)
    add("one-sided, 1%, half held out", test, rate=0.01, validation=0.5)
    ham = [row for row in train + test if row["label"] != SPAM]
    kept, few, rest = ham[:THRESHOLD_HAM], ham[THRESHOLD_HAM:][:TRAINING_HAM], ham[THRESHOLD_HAM + TRAINING_HAM :]
    small = few + [row for row in train if row["label"] == SPAM]
    other_test = rest + [row for row in test if row["label"] == SPAM]
    add("two-sided, AdaptDel+, few ham", other_test, train=small)
    for rate in (0.01, 0.001):
        add(f"one-sided, {100 * rate:g}%, few ham", other_test, train=small, rate=rate, threshold=kept)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "protection-spamassassin-linear.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []

    def write() -> None:
        write_json(path, {"votes": VOTES, "radii": list(RADII), "runs": runs})

    with tempfile.TemporaryDirectory() as work:
        for seed in map(int, options.seeds.split(",")):
            if seed not in [entry["seed"] for entry in runs]:
                runs.append({"seed": seed, "recipes": {}})
            entry = next(entry for entry in runs if entry["seed"] == seed)
            measure(options.data, entry, Path(work), write)


if __name__ == "__main__":
    main()
