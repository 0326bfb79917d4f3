"""How many words of a short text the default rate should keep: recall of spam by words of a text and kept words.

    python -m experiments.short_texts --data FOLDER

SpamAssassin's first words, thinned to 11% spam; linear model, CERT-ED, default settings, one seed. Writes
results/short-texts.json and prints the table of docs/how-to/choose-a-rate.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from adaptdel.files import write_text
from adaptdel.tables import percent, text_table
from adaptdel.text.data import read_examples
from adaptdel.training import train

WORDS, KEPT, SPAM = (8, 15, 25), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0), 0.11
LEAST_RATE = 0.5


def thinned(path: Path, words: int) -> tuple[list[str], list[int]]:
    """The first words of each email, and of the spam as many emails as make the fraction `SPAM`."""
    examples = read_examples(path)
    labels = np.array(examples.labels)
    ham, spam = (np.flatnonzero(labels == label) for label in (0, 1))
    drawn = np.random.default_rng(0).permutation(spam)[: round(SPAM / (1 - SPAM) * len(ham))]
    rows = np.sort(np.concatenate([ham, drawn]))
    return [" ".join(examples.texts[row].split()[:words]) for row in rows], labels[rows].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with spamassassin.train.* and .test.*")
    data = parser.parse_args().data
    cells: dict[str, dict[str, dict[str, float]]] = {}
    for words in WORDS:
        train_texts, train_labels = thinned(data / "spamassassin.train.jsonl.gz", words)
        texts, labels = thinned(data / "spamassassin.test.jsonl.gz", words)
        for kept in (kept for kept in KEPT if 1 - kept / words >= LEAST_RATE):
            model = train(train_texts, train_labels, method="cert-ed", rate=1 - kept / words, progress=False)
            right = np.asarray(model.predict(texts)) == np.asarray(labels)
            spam = np.asarray(labels) == 1
            cell = {"recall": float(right[spam].mean()), "false_positives": float(1 - right[~spam].mean())}
            cells.setdefault(f"{words}", {})[f"{kept:g}"] = cell
    out = Path(__file__).parent / "results" / "short-texts.json"
    write_text(out, json.dumps({"emails": len(texts), "spam": int(spam.sum()), "cells": cells}, indent=1) + "\n")
    shown = {
        words: [f"{percent(row[key]['recall'], 0)} / {percent(row[key]['false_positives'])}" for key in row]
        for words, row in cells.items()
    }
    rows = [[words, *row, *[""] * (len(KEPT) - len(row))] for words, row in shown.items()]
    print(text_table(["words of a text", *(f"{kept:g} kept" for kept in KEPT)], rows).to_markdown())


if __name__ == "__main__":
    main()
