"""The embedding network on reviews of films that it was not trained on: ``python -m experiments.films --data FOLDER``.

IMDB's test set has other films than its training set, but random held-out rows of the training file have the same. Here
blocks of neighbouring rows are held out, and all rows that seem to be of the same films are left out of training. The
reviews of a film follow each other in the file, the positive and the negative ones apart: neighbours that share rare
words, mostly names, form segments, and segments that share many names are taken for the same film.

Only the training file is read. The results, one row for each setting and split, are written to a JSON file.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adaptdel import Deletion, SmoothedClassifier
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.word_encoders import TransformerEncoder
from adaptdel.core.rates import InterpolatedRate
from adaptdel.files import write_json
from adaptdel.hyperparameters import EmbeddingSettings
from adaptdel.measures.summary import AnswerCounts
from adaptdel.text.data import Examples, read_examples
from adaptdel.text.units import Words
from adaptdel.training.training import method_noises
from benchmarks.real import minilm

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9'\-]+")
MOST_NAMED, MOST_RARE = 250, 40  # reviews with a name, and with another word, that may tell films apart
NEIGHBOURS = 20  # rows that segments are looked for in
ALIKE = 0.3  # the cosine between segments from which on they are taken for the same film
BLOCK, SHARE, MARGIN = 250, 0.2, 12  # held-out rows in a block, share of blocks, rows beside a block that are left out
KEPT = (5.0, 30.0)  # words of a copy in training
KEEPS = (8.0, 12.0, 16.0)
VOTES: dict[str, Any] = {"n_select": 64, "n_estimate": 192, "sampling": "fixed"}
SETTINGS: dict[str, dict[str, Any]] = {
    "row, 400 steps": {"steps": 400, "embedding_scale": "row"},
    "table, 400 steps": {"steps": 400},
    "table, 200 steps": {"steps": 200},
    "table, 1000 steps": {"steps": 1000},
}


@dataclass(frozen=True)
class Films:
    """Segments of reviews that seem to be of one film.

    Attributes:
        segments: the segment of each row.
        alike: cosines between the rare words of segments, of shape (segments, segments).
    """

    segments: npt.NDArray[np.int64]
    alike: sparse.csr_array

    @classmethod
    def of(cls, texts: Sequence[str], labels: npt.NDArray[Any]) -> Films:
        """Look for segments among neighbours of the same label."""
        rare, weight = _rare_words(texts)
        scaled = rare @ sparse.diags_array(weight)
        reach = np.arange(len(texts))
        for distance in range(1, NEIGHBOURS + 1):
            shared = np.asarray(scaled[:-distance].multiply(scaled[distance:]).sum(axis=1)).ravel()
            linked = np.flatnonzero((shared > 30 + 2 * distance) & (labels[:-distance] == labels[distance:]))
            reach[linked] = np.maximum(reach[linked], linked + distance)
        covered = np.maximum.accumulate(reach)
        begins = np.concatenate([[True], (np.arange(1, len(texts)) > covered[:-1]) | (labels[1:] != labels[:-1])])
        segments = np.cumsum(begins) - 1
        return cls(segments, _cosines(rare, weight, segments))

    def split(self, labels: npt.NDArray[Any], seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Numbers of training rows, as many of each label, and of held-out rows of other films."""
        rng = np.random.default_rng(seed)
        held = np.zeros(len(labels), dtype=np.bool_)
        blocks = np.arange(len(labels) // BLOCK)
        for label in np.unique(labels):
            own = blocks[labels[blocks * BLOCK] == label]
            for block in rng.choice(own, int(len(own) * SHARE), replace=False):
                held[block * BLOCK : (block + 1) * BLOCK] = True
        touched = np.zeros(self.alike.shape[0], dtype=np.bool_)
        touched[self.segments[held]] = True
        same = np.asarray((self.alike[touched] > ALIKE).sum(axis=0)).ravel() > 0
        left_out = (same | touched)[self.segments]
        for edge in np.flatnonzero(np.diff(held.astype(np.int8))):
            left_out[max(0, edge - MARGIN) : edge + 1 + MARGIN] = True
        rest = np.flatnonzero(~held & ~left_out)
        least = min(np.count_nonzero(labels[rest] == label) for label in np.unique(labels))
        balanced = [rng.permutation(rest[labels[rest] == label])[:least] for label in np.unique(labels)]
        return np.sort(np.concatenate(balanced)), np.flatnonzero(held)


def _rare_words(texts: Sequence[str]) -> tuple[sparse.csr_array, npt.NDArray[np.float64]]:
    """Which rare words each text has, and what each word says about the film: names say more."""
    capitals: Counter[str] = Counter()
    others: Counter[str] = Counter()
    words_of = []
    for text in texts:
        tokens = [token.removesuffix("'s") for token in WORD.findall(text)]
        for token in tokens:
            (others if token[0].islower() else capitals)[token.lower()] += 1
        words_of.append({token.lower() for token in tokens})
    texts_with = Counter(word for words in words_of for word in words)
    named = {word: capitals[word] >= 2 * others[word] for word in texts_with}
    limits = {True: MOST_NAMED, False: MOST_RARE}
    rare = sorted(word for word, count in texts_with.items() if 2 <= count <= limits[named[word]])
    columns = {word: place for place, word in enumerate(rare)}
    pairs = [(row, columns[word]) for row, words in enumerate(words_of) for word in sorted(words) if word in columns]
    rows, places = np.array(pairs).T
    table = sparse.csr_array((np.ones(len(pairs)), (rows, places)), shape=(len(texts), len(rare)))
    weight = np.array([np.log(len(texts) / texts_with[word]) * (1.0 if named[word] else 0.6) for word in rare])
    return table, weight


def _cosines(
    rare: sparse.csr_array, weight: npt.NDArray[np.float64], segments: npt.NDArray[np.int64]
) -> sparse.csr_array:
    """Between segments; a word that only one review of a longer segment has counts little."""
    sizes = np.bincount(segments)
    members = sparse.csr_array((np.ones(len(segments)), (segments, np.arange(len(segments)))))
    counts = (members @ rare).tocoo()
    single = np.where(sizes[counts.row] <= 2, 1.0, 0.3)
    values = np.where(counts.data >= 2, np.sqrt(counts.data), single) * weight[counts.col]
    table = sparse.csr_array((values, (counts.row, counts.col)), shape=counts.shape)
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
    directions = sparse.csr_array(sparse.diags_array(1 / np.maximum(lengths, 1e-9)) @ table)
    return sparse.csr_array(directions @ directions.T)


def measured(examples: Examples, films: Films, split: int, settings: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Accuracy and mean radius of a network on held-out films, by kept words."""
    labels = np.array(examples.labels)
    training, held = films.split(labels, split)
    tokens = [Words().split(examples.texts[place]) for place in training]
    noise = method_noises("adaptdel+", 0.9, [len(part) for part in tokens], kept=KEPT).training
    own = {"networks": 1, **settings}
    networks = own.pop("networks")
    base = EmbeddingClassifier(
        encoder=TransformerEncoder(minilm(), cache=cache),
        networks=networks,
        settings=EmbeddingSettings(**{"validation": 0.0, **own}),
    )
    base.fit(tokens, labels[training], noise=noise, seed=split)
    texts, answers = [examples.texts[place] for place in held], labels[held]
    rows: dict[str, Any] = {"split": split, "training": len(training), "held_out": len(held)}
    for keep in KEEPS:
        smoothed = SmoothedClassifier(base, Deletion(InterpolatedRate((1,), (keep,))), seed=1, progress=False, **VOTES)
        certificates = smoothed.certify(texts)
        right = [certificate.label == answer for certificate, answer in zip(certificates, answers, strict=True)]
        counts = AnswerCounts.of(right, [certificate.radius for certificate in certificates])
        rows[f"{keep:g}"] = {"clean_accuracy": counts.clean_accuracy, "mean_radius": counts.mean_radius}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with imdb.train.jsonl.gz")
    parser.add_argument("--out", type=Path, default=Path("out/films.json"))
    parser.add_argument("--cache", type=Path, default=Path("out/paper/vectors"), help="folder of encoded words")
    parser.add_argument("--splits", default="0,1")
    parser.add_argument("--settings", default=",".join(f"{number}" for number in range(len(SETTINGS))),
                        help=f"numbers, separated by commas, of {'; '.join(SETTINGS)}")  # fmt: skip
    arguments = parser.parse_args()
    examples = read_examples(str(arguments.data / "imdb.train.jsonl.gz"))
    films = Films.of(examples.texts, np.array(examples.labels))
    names = list(SETTINGS)
    results: dict[str, list[dict[str, Any]]] = {}
    for number in arguments.settings.split(","):
        name = names[int(number)]
        for split in arguments.splits.split(","):
            row = measured(examples, films, int(split), SETTINGS[name], arguments.cache)
            results.setdefault(name, []).append(row)
            print(name, row, flush=True)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(arguments.out, {"kept_in_training": KEPT, "votes": VOTES, "results": results})


if __name__ == "__main__":
    main()
