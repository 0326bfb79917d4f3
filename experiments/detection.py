"""Filters with a proved rate of false positives against edits and padding, beside a linear SVM; eight splits.

    python -m experiments.detection --data FOLDER [--only prompts:0.02,spamassassin:0.02] [--splits 0,1,2]

The training file trains, chooses and proves a filter as `adaptdel train --method exact --protect` does, with another
seed for each split; the test file is certified. The SVM of words and pairs of words is trained on the same rows, with
the threshold at which it flags as many texts of the test file. Resumable: splits that the result holds are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.svm import LinearSVC

from adaptdel import AdditiveClassifier
from adaptdel.files import write_json
from adaptdel.settings import TRAINING, FilterSettings
from adaptdel.text.data import Examples
from adaptdel.text.units import check_unit
from adaptdel.training import TrainingJob
from adaptdel.training.choice import FOLDS, OutOfFold, choose
from adaptdel.training.jobs import without_proof
from adaptdel.training.protection import protect

TASKS = ("prompts:0.02", "spamassassin:0.02", "spamassassin:0.01", "prompts:0.02:15", "spamassassin:0.02:15")
EDITS, POSITIONS = (1, 2, 5, 10), (1, 2, 5)
PADDING = 10_000  # words before, and as many after
ATTACKED, TRIED, WORDS = 100, 20, 5  # texts of the greedy attack; its candidates
Rows = tuple[list[str], list[int | str]]


def read(data: Path, name: str, cut: int) -> Rows:
    """The texts, or the first words of each, and the labels, 1 for the class to protect."""
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [" ".join(row["text"].split()[:cut]) if cut else row["text"] for row in rows]
    return texts, [row["label"] for row in rows]


def measured(train: Rows, test: Rows, rate: float, split: int) -> dict[str, Any]:
    """The filters of both parts, of sums and of segments, and the SVM."""
    fields = {"data": "-", "out": "-", "method": "exact", "protect": "1", "max_false_positives": rate, "seed": split}
    job = TrainingJob.from_dict(fields)
    rest, held = without_proof(job, Examples(*train, list(range(len(train[0]))), ""))
    texts, is_own = test[0], np.array(test[1]) == 1
    result: dict[str, Any] = {"negatives": len(held.texts), "allowed": job.proof(len(held.texts)).allowed}
    model = AdditiveClassifier(class_weight=TRAINING.class_weight, seed=split, progress=False)
    tokens = list(model.split(rest.texts))
    trained = model.trainer(tokens, rest.labels, FOLDS + 1)
    folds = OutOfFold(tokens, rest.labels, 1, trained, ngram=1, unit=check_unit("word"), seed=split)
    base = trained(range(len(tokens)))
    for parts in ("both", "sum", "segment"):
        choice = choose(folds, job.proof(len(held.texts)), FilterSettings(parts=parts), model.levels)
        choice.apply(model, base)
        goal: dict[str, Any] = {"label": 1, "max_false_positives": rate, "held_out": True}
        known = protect(model, held.texts, held.labels, **goal, positives=partial(choice.certificates, model))
        chosen, certificates = choice.chosen, model.certify(texts)
        caught = np.array([each.label == 1 for each in certificates])
        figures = {
            "radius": np.array([each.radius for each in certificates]),
            "padded": np.array([each.padded_radius for each in certificates]),
            "positions": np.array([each.positions for each in certificates]),
        }
        result[parts] = {
            "chosen": [chosen.level, *map(str, (chosen.drift, chosen.segment_drift, chosen.weight))],
            "mean": [chosen.clean, chosen.padded, chosen.edited[2], chosen.padded_edited, choice.plain.clean],
            "promise": {
                "clean": known.detected / known.positives,
                "padded": known.padded or 0.0,
                "2": known.certified["2"],
            },
            "false_positives": float(caught[~is_own].mean()),
            "clean": float(caught[is_own].mean()),
            "padded": float((caught & (figures["padded"] >= 0))[is_own].mean()),
            "edits": {n: float((caught & (figures["radius"] >= n))[is_own].mean()) for n in EDITS},
            "padded_edits": {n: float((caught & (figures["padded"] >= n))[is_own].mean()) for n in EDITS},
            "positions": {n: float((caught & (figures["positions"] >= n))[is_own].mean()) for n in POSITIONS},
        }
        if parts == "both":
            paddings = padding(rest, split)
            withstood = [c for c, own in zip(certificates, is_own, strict=True) if own and c.label == 1 and c.padding]
            some = [" ".join(map(str, each.tokens or ())) for each in withstood[:ATTACKED]]
            broken = {name: sum(model.predict([f"{p}{t}{p}" for t in some]) != 1) for name, p in paddings.items()}
            result["broken"] = {name: int(count) for name, count in broken.items()}
    rate = result["both"]["false_positives"]
    return result | {"svm": svm(rest, texts, is_own, rate, paddings, split)}


def padding(rest: Examples, split: int) -> dict[str, str]:
    """Words of the other class: whole texts, their words in another order, and the most typical ones."""
    rng = np.random.default_rng(split)
    others = [text.split() for text, label in zip(rest.texts, rest.labels, strict=True) if label != 1]
    own = [text.split() for text, label in zip(rest.texts, rest.labels, strict=True) if label == 1]
    order = rng.permutation(len(others))
    words = list(chain.from_iterable(others[place] for place in order))[:PADDING]
    here, there = Counter[str](), Counter[str]()  # in how many texts each word is
    for counts, texts in ((here, others), (there, own)):
        counts.update(chain.from_iterable(map(set, texts)))
    typical = sorted(here, key=lambda word: (there[word] + 1) / (here[word] + 1))[:WORDS]
    return {
        "texts": " ".join(words),
        "words": " ".join(rng.permutation(words)),
        "typical words": " ".join(typical * (PADDING // WORDS)),
    }


def svm(
    rest: Examples, texts: list[str], is_own: Any, rate: float, paddings: dict[str, str], split: int
) -> dict[str, Any]:
    """A linear SVM at a rate of false positives on the test texts: clean, padded and after two edits."""
    counter = CountVectorizer(ngram_range=(1, 2), lowercase=True, token_pattern=r"\S+")
    weighing = TfidfTransformer(sublinear_tf=True)
    model = LinearSVC(class_weight="balanced").fit(
        weighing.fit_transform(counter.fit_transform(rest.texts)), rest.labels
    )

    def scores(counts: Any) -> Any:
        return model.decision_function(weighing.transform(counts))

    counts = csr_matrix(counter.transform(texts))
    values = scores(counts)
    limit = np.sort(values[~is_own])[::-1][round(rate * (~is_own).sum())]
    caught = values > limit
    padded = {}
    for name, text in paddings.items():
        added = 2 * csr_matrix(counter.transform([text]))
        both = counts[is_own] + csr_matrix(np.ones((int(is_own.sum()), 1))) @ added
        padded[name] = float((scores(both) > limit).mean())
    words = np.array(counter.get_feature_names_out())
    worst = [word for word in words[np.argsort(model.coef_[0])] if " " not in word][:WORDS]
    weights = dict(zip(words.tolist(), model.coef_[0].tolist(), strict=True))
    drawn = np.random.default_rng(split).permutation(np.flatnonzero(is_own))[:ATTACKED]
    return {
        "clean": float(caught[is_own].mean()),
        "padded": padded,
        "attacked": len(drawn),
        "two_edits": float(
            np.mean([caught[n] and not evades(texts[n].split(), worst, weights, counter, scores, limit) for n in drawn])
        ),
    }


def evades(
    tokens: list[str], worst: list[str], weights: dict[str, float], counter: Any, scores: Any, limit: float
) -> bool:
    """Whether two words, each replaced where the score falls most, get a text below the threshold."""
    for _ in range(2):
        order = sorted(range(len(tokens)), key=lambda place: -weights.get(tokens[place].lower(), 0.0))[:TRIED]
        tried = [[*tokens[:place], word, *tokens[place + 1 :]] for place in order for word in worst]
        values = scores(counter.transform(map(" ".join, tried)))
        tokens = tried[int(np.argmin(values))]
        if values.min() <= limit:
            return True
    return False


def main() -> None:
    """Measure what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(TASKS))
    parser.add_argument("--splits", default="0,1,2,3,4,5,6,7")
    parser.add_argument("--out", type=Path, default=Path("experiments/results/detection.json"))
    options = parser.parse_args()
    runs = json.loads(options.out.read_text(encoding="utf-8"))["runs"] if options.out.exists() else []
    for task in options.only.split(","):
        name, rate, cut = [*task.split(":"), "0"][:3]
        train, test = (read(options.data, f"{name}.{part}", int(cut)) for part in ("train", "test"))
        for split in map(int, options.splits.split(",")):
            identity = {"data": name, "words": int(cut), "rate": float(rate), "split": split}
            if not any(identity.items() <= run.items() for run in runs):
                runs.append(identity | measured(train, test, float(rate), split))
                write_json(options.out, {"runs": runs})


if __name__ == "__main__":
    main()
