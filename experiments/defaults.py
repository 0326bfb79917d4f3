"""The default models by class: of an earlier version, of this one, and without class weights.

    python -m experiments.defaults --data FOLDER --out FILE --models smoothed,exact,exact-unweighted
    PYTHONPATH=EARLIER/src python -m experiments.defaults --data FOLDER --out FILE --models smoothed --name before

Each data set is measured on whole texts and on their first 15 words, with three seeds. A seed draws the rows that train
and the rows that are measured; both come from the training set. A model that the file already holds is left alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import adaptdel as ad

SETS = ("spamassassin", "lun", "sst2", "agnews", "yelp", "imdb")
TRAINED, MEASURED = 4000, 1000  # rows, at most; a third of small sets is measured


def drawn(folder: Path, name: str, words: int | None, seed: int) -> tuple[list[str], Any, list[str], Any]:
    """Texts and labels that train, and texts and labels that are measured."""
    with gzip.open(folder / f"{name}.train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    order = np.random.default_rng(seed).permutation(len(rows))[: TRAINED + MEASURED]
    texts = [" ".join(rows[row]["text"].split()[:words]) for row in order]
    labels = np.array([rows[row]["label"] for row in order])
    count = min(MEASURED, len(rows) // 3)
    return texts[count:], labels[count:], texts[:count], labels[:count]


def classifier(model: str, seed: int) -> Any:
    """A classifier with default settings, but for the votes."""
    if model == "smoothed":
        return ad.SmoothedClassifier(n_select=200, n_estimate=1000, seed=seed, progress=False)
    exact = ad.AdditiveClassifier(seed=seed, progress=False)
    return exact.set_params(class_weight=None) if model == "exact-unweighted" else exact


def measure(model: Any, texts: list[str], labels: Any) -> dict[str, Any]:
    """Accuracy and mean radius, of all rows and of each class; wrong predictions have radius 0."""
    certificates = model.certify(texts)
    correct = np.array([certificate.label for certificate in certificates]) == labels
    radii = np.where(correct, [max(0, certificate.radius) for certificate in certificates], 0)
    classes = np.unique(labels).tolist()
    return {
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float(np.mean([correct[labels == label].mean() for label in classes])),
        "mean_radius": float(radii.mean()),
        "recalls": [float(correct[labels == label].mean()) for label in classes],
        "radii": [float(radii[labels == label].mean()) for label in classes],
        "counts": [int((labels == label).sum()) for label in classes],
    }


def table(results: list[dict[str, Any]], models: list[str]) -> str:
    """A row for each data set, with the mean over the seeds of each model."""
    lines = [f"| data | measure | {' | '.join(models)} |", "|---|---|" + "---|" * len(models)]
    for name, words in product(SETS, (None, 15)):
        rows = {m: [r for r in results if (r["set"], r["words"], r["model"]) == (name, words, m)] for m in models}
        if not all(rows.values()):
            continue
        title = name if words is None else f"{name}, {words} words"
        for measured, percent in (("accuracy", True), ("balanced_accuracy", True), ("mean_radius", False)):
            values = [[row[measured] for row in rows[m]] for m in models]
            shown = [f"{100 * np.mean(v):.1f}%" if percent else f"{np.mean(v):.2f} ± {np.std(v):.2f}" for v in values]
            lines.append(f"| {title} | {measured.replace('_', ' ')} | {' | '.join(shown)} |")
        for measured, percent in (("recalls", True), ("radii", False)):
            means = [np.mean([row[measured] for row in rows[m]], axis=0) for m in models]
            shown = [" / ".join(f"{100 * v:.1f}" if percent else f"{v:.2f}" for v in mean) for mean in means]
            lines.append(f"| {title} | {'recall' if percent else 'radius'} by class | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what the file does not hold yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.train.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--models", default="smoothed,exact,exact-unweighted")
    parser.add_argument("--name", default="", help="of the model in the file, for another version of the library")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # rates that keep few words
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    done = {(row["set"], row["words"], row["seed"], row["model"]) for row in results}
    for name, words, seed in product(SETS, (None, 15), range(3)):
        for model in arguments.models.split(","):
            key = (name, words, seed, arguments.name or model)
            if key in done:
                continue
            texts, labels, others, truth = drawn(arguments.data, name, words, seed)
            started = time.process_time()
            measured = measure(classifier(model, seed).fit(texts, labels.tolist()), others, truth)
            seconds = round(time.process_time() - started, 1)
            row = dict(zip(("set", "words", "seed", "model"), key, strict=True))
            results.append(row | measured | {"trained_on": len(texts), "seconds": seconds})
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
            print(row, measured["accuracy"], measured["mean_radius"], f"{seconds} s", flush=True)
    print(table(results, list(dict.fromkeys(row["model"] for row in results))))


if __name__ == "__main__":
    main()
