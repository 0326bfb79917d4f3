"""Single characters against 5-mers, smoothed and exact, on sequences that a program makes.

    python -m experiments.kmers --out experiments/results/kmers.json

"splice": 60 random letters with a donor site, an acceptor site, or the letters of a donor site in another order in the
middle. "codons": 300 letters, either codons drawn with uneven frequencies or the same letters in random order. In both,
single letters hardly tell the classes apart. Every model is measured on 500 fresh sequences, for three seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import adaptdel as ad
from adaptdel.classifiers import LinearClassifier
from adaptdel.files import write_json

TRAINED, MEASURED = {"splice": 3000, "codons": 1000}, 500
DONOR, ACCEPTOR = ["AC", "A", "G", "G", "T", "AG", "A", "G", "T"], ["CT"] * 11 + ["ACGT", "C", "A", "G", "G"]
RATES = (0.6, 0.9)  # no rate of at most one half certifies an edit


def splice(rows: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Sequences and their classes; each letter of a site is right with a probability of 0.9."""
    texts, labels = [], []
    for _ in range(rows):
        letters, label = rng.choice(list("ACGT"), 60), str(rng.choice(["donor", "acceptor", "neither"]))
        site = {"donor": DONOR, "acceptor": ACCEPTOR, "neither": list(rng.permutation(list("CAGGTAAGT")))}[label]
        start = 16 if label == "acceptor" else 27
        for place, choices in enumerate(site, start):
            if rng.random() < 0.9:
                letters[place] = rng.choice(list(choices))
        texts.append("".join(letters))
        labels.append(label)
    return texts, labels


def codons(rows: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Sequences and their classes; the frequencies of codons are the same for all seeds."""
    words = ["".join(letters) for letters in product("ACGT", repeat=3)]
    frequencies = np.random.default_rng(7).dirichlet(np.full(64, 0.5))
    texts, labels = [], []
    for _ in range(rows):
        text, label = "".join(rng.choice(words, 100, p=frequencies)), str(rng.choice(["coding", "shuffled"]))
        texts.append(text if label == "coding" else "".join(rng.permutation(list(text))))
        labels.append(label)
    return texts, labels


def models(ngram: int, seed: int) -> dict[str, Any]:
    """Classifiers that are not fitted."""
    exact = ad.AdditiveClassifier(unit="char", ngram=ngram, seed=seed, progress=False)
    by_name: dict[str, Any] = {"exact": exact}
    for rate in RATES:
        base, noise = LinearClassifier(ngram=ngram), ad.Deletion(ad.FixedRate(rate))
        by_name[f"smoothed, rate {rate:g}"] = ad.SmoothedClassifier(
            base, noise, unit="char", n_select=200, n_estimate=1000, seed=seed, progress=False
        )
    return by_name


def measure(make: Callable[..., tuple[list[str], list[str]]], rows: int, ngram: int, seed: int) -> list[dict[str, Any]]:
    """Accuracy and radius of each model."""
    texts, labels = make(rows, np.random.default_rng(seed))
    others, truth = make(MEASURED, np.random.default_rng(100 + seed))
    results = []
    for name, model in models(ngram, seed).items():
        certificates = model.fit(texts, labels).certify(others)
        correct = np.array([certificate.label for certificate in certificates]) == truth
        radii = np.where(correct, [max(0, certificate.radius) for certificate in certificates], 0)
        measured = {"accuracy": correct.mean(), "mean_radius": radii.mean(), "certified_at_1": (radii >= 1).mean()}
        results.append({"model": name} | {key: float(value) for key, value in measured.items()})
    return results


def main() -> None:
    """Measure, write the file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for make, ngram, seed in product((splice, codons), (1, 5), range(3)):
        name = make.__name__
        for row in measure(make, TRAINED[name], ngram, seed):
            results.append({"data": name, "ngram": ngram, "seed": seed} | row)
            print(results[-1], flush=True)
        write_json(arguments.out, {"results": results})
    print("| data | model | ngram | accuracy | mean radius | certified at 1 |\n|---|---|---:|---:|---:|---:|")
    for key in dict.fromkeys((row["data"], row["model"], row["ngram"]) for row in results):
        rows = [row for row in results if (row["data"], row["model"], row["ngram"]) == key]
        accuracy, radius, certified = (
            np.mean([row[name] for row in rows]) for name in ("accuracy", "mean_radius", "certified_at_1")
        )
        print(f"| {' | '.join(map(str, key))} | {100 * accuracy:.1f}% | {radius:.2f} | {100 * certified:.1f}% |")


if __name__ == "__main__":
    main()
