"""One-sided protection of spam on SpamAssassin, beside the two-sided certificate: radii, and detection under attack.

    python -m experiments.protection --data FOLDER [--seeds 0,1,2] [--out experiments/results]

The whole recipe, with defaults: linear models are trained, calibrated and protected, and certify the test mails. The
threshold is chosen on 1,000 ham mails of the training file, on which no model is trained. For a rate of 0.1%, which
needs 2,995 ham mails that the model has not seen, the corpus is divided in another way: most ham mails of both files
choose the threshold, and few are left for training and testing. Results are written after each recipe, and a recipe
that is in the file is not repeated.
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

from adaptdel.calibration.calibration import calibrate_folder
from adaptdel.files import write_json
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CALIBRATION
from adaptdel.text.data import read_examples
from adaptdel.training import TrainingJob, TrainingSettings, train_job
from adaptdel.training.protection import protect

RADII = (0, 1, 2, 5, 10, 20, 40)
SPAM = 1
VOTES = {"n_select": 500, "n_estimate": 2000}
HELD_HAM = 1000  # of the training file
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
    work: Path, train: list[Mail], held: list[Mail], seed: int, *, method: str = "adaptdel+", rate: float | None = None
) -> SmoothedClassifier:
    """Train, calibrate AdaptDel+, and protect spam on the held-out mails if a rate of false positives is given."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        file = written(folder / "train.jsonl", train)
        settings = TrainingSettings.from_dict({"method": method, "seed": seed})
        model = train_job(TrainingJob(file, str(folder / "model"), settings), progress=False).model
        if method == "adaptdel+":
            done = calibrate_folder(
                folder / "model", read_examples(file), CALIBRATION, out=folder / "calibrated", progress=False
            )
            chosen = done.record["candidates"][done.record["chosen"]]
            model = SmoothedClassifier.load(done.folder)
            model.calibration_ = {name: chosen[name] for name in ("name", "kept")}
        if rate is not None:
            texts, labels = ([row[column] for row in held] for column in ("text", "label"))
            model.set_params(**VOTES, progress=False)
            protect(model, texts, labels, label=SPAM, max_false_positives=rate, certify=0)
        return model


def measure(data: Path, entry: dict[str, Any], work: Path, write: Callable[[], None]) -> None:
    """All recipes by the seed of the entry that are not in it."""
    seed = entry["seed"]
    train, test = (mails(data / f"spamassassin.{part}.jsonl.gz", seed) for part in ("train", "test"))

    def add(name: str, train: list[Mail], held: list[Mail], test: list[Mail], **options: Any) -> None:
        if name in entry["recipes"]:
            return
        model = recipe(work, train, held, seed, **options)
        entry["recipes"][name] = summary(model, test) | {"chosen": getattr(model, "calibration_", None)}
        sys.stderr.write(f"seed {seed}, {name}: {json.dumps(entry['recipes'][name])}\n")
        write()

    held = [row for row in train if row["label"] != SPAM][:HELD_HAM]
    rest = [row for row in train if row not in held]
    add("two-sided, AdaptDel", rest, held, test, method="adaptdel")
    add("two-sided, AdaptDel+", rest, held, test)
    for rate in (0.05, 0.01):
        add(f"one-sided, AdaptDel, {100 * rate:g}%", rest, held, test, method="adaptdel", rate=rate)
        add(f"one-sided, AdaptDel+, {100 * rate:g}%", rest, held, test, rate=rate)
    ham = [row for row in train + test if row["label"] != SPAM]
    kept, few, others = ham[:THRESHOLD_HAM], ham[THRESHOLD_HAM:][:TRAINING_HAM], ham[THRESHOLD_HAM + TRAINING_HAM :]
    small = few + [row for row in train if row["label"] == SPAM]
    other_test = others + [row for row in test if row["label"] == SPAM]
    add("two-sided, AdaptDel+, few ham", small, kept, other_test)
    for rate in (0.01, 0.001):
        add(f"one-sided, AdaptDel+, {100 * rate:g}%, few ham", small, kept, other_test, rate=rate)


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
