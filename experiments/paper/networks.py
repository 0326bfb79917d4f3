"""The embedding network in the study: how it is trained, and the kept length that held-out inputs choose for it.

A model is trained on all rows but the held-out ones, for all steps, without early stopping. AdaptDel+ keeps the same
number of words of inputs of every length. On the held-out rows every kept length of a grid is certified; accuracy is
fitted by a curve that does not fall with the kept length; of the kept lengths whose fitted accuracy reaches the wanted
one, that with the largest mean radius is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from adaptdel import Deletion, SmoothedClassifier, __version__
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.integer_network import core_word
from adaptdel.classifiers.word_encoders import TransformerEncoder, Vectors, WordEncoder
from adaptdel.core.rates import InterpolatedRate
from adaptdel.files import read_json, write_json
from adaptdel.hyperparameters import EmbeddingSettings
from adaptdel.measures.summary import AnswerCounts
from adaptdel.models.model_files import save_model
from adaptdel.text.data import Examples, held_out_rows, read_examples
from adaptdel.text.units import Words
from adaptdel.training.training import method_noises
from benchmarks.real import minilm

KEPT = {"spamassassin": (3.0, 12.0), "imdb": (5.0, 30.0), "lun": (4.0, 30.0), "yelp": (4.0, 40.0)}  # in training
GRID = {  # of kept lengths that held-out rows choose from
    "spamassassin": (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0),
    "imdb": (6.0, 8.0, 10.0, 12.0, 15.0, 20.0),
    "lun": (4.0, 5.0, 6.0, 7.0, 9.0, 12.0, 15.0, 19.0, 24.0, 30.0),
    "yelp": (4.0, 5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 38.0),
}
HELD_OUT = {"spamassassin": 0.2, "imdb": 0.05, "lun": 0.2, "yelp": 0.1}  # small training sets hold out a larger share
CHOOSING: dict[str, Any] = {"n_select": 64, "n_estimate": 192, "sampling": "fixed"}  # votes of a held-out row
MOST_ROWS = 1000  # held-out rows that are certified, at most

FRONT = {  # kept lengths of the front, set before any test input was certified with these networks; all are reported
    "spamassassin": (4.0, 6.0, 9.0), "imdb": (8.0, 12.0, 20.0), "lun": (9.0, 15.0, 24.0), "yelp": (10.0, 16.0, 28.0),
}  # fmt: skip
EVERY_WORD = ("spamassassin",)  # mails have many words that training did not see; elsewhere these have n-grams alone
NETWORKS = 3  # in a model of AdaptDel+; others have one
STEPS = {"spamassassin": 800, "imdb": 300, "lun": 300, "yelp": 200}  # of each network of AdaptDel+
NETWORK = EmbeddingSettings(validation=0.0)
# The copies of RanMASK, CERT-ED and AdaptDel at 90% have 28 words on average, and NoSmooth reads whole texts.
LONGER = {"steps": 500, "batch_size": 1024}
WHOLE = {"steps": 600, "batch_size": 128, "copies_per_text": 1}


class EveryWord(TransformerEncoder):
    """Encodes every word of the training and the test set, each on its own: what encoding on demand comes to."""

    def __init__(self, model: str, cache: Path, files: Sequence[Path]) -> None:
        super().__init__(model, cache=cache)
        self.files = list(files)

    def encode(self, words: Sequence[str]) -> Vectors:
        """All words of the files besides those asked for."""
        every_word = set(words)
        for path in self.files:
            for text in read_examples(str(path)).texts:
                every_word.update(str(core_word(token, lowercase=True)) for token in Words().split(text))
        return super().encode(sorted(every_word))


@dataclass(frozen=True)
class NetworkJob:
    """A network to be trained.

    Attributes:
        data: the name of the data set.
        train: its training file.
        test: its test file, whose words are encoded.
        method: as in `adaptdel.settings.METHODS`.
        rate: of the method.
        seed: of the split, the noise and the network.
        cache: the folder of encoded words.
    """

    data: str
    train: Path
    test: Path
    method: str
    rate: float | None
    seed: int
    cache: Path

    def settings(self) -> EmbeddingSettings:
        """Shape and training of the network."""
        plus = {"steps": STEPS[self.data]}
        changes = WHOLE if self.method == "nosmooth" else plus if self.method == "adaptdel+" else LONGER
        return EmbeddingSettings(**{**asdict(NETWORK), **changes})

    def encoder(self) -> WordEncoder:
        """Gives words vectors: all words, or those that occur twice in training; the rest is read by n-grams."""
        if self.data in EVERY_WORD:
            return EveryWord(minilm(), self.cache, [self.train, self.test])
        return TransformerEncoder(minilm(), cache=self.cache)

    def train_into(self, out: Path) -> None:
        """Train the model and save it; nothing is done if it is there."""
        if out.exists():
            return
        started = time.monotonic()
        examples = read_examples(str(self.train))
        share = HELD_OUT[self.data]
        kept = [not held for held in held_out_rows(examples.texts, examples.labels, share, self.seed)]
        tokens = [Words().split(text) for text, keep in zip(examples.texts, kept, strict=True) if keep]
        labels = [label for label, keep in zip(examples.labels, kept, strict=True) if keep]
        lengths = [len(part) for part in tokens]
        noises = method_noises(self.method, self.rate or 0.9, lengths, kept=KEPT[self.data])
        encoder = self.encoder()
        networks = NETWORKS if self.method == "adaptdel+" else 1
        base = EmbeddingClassifier(encoder=encoder, networks=networks, settings=self.settings())
        clock = time.monotonic()
        base.fit(tokens, labels, noise=noises.training if self.rate is not None else None, seed=self.seed)
        model = SmoothedClassifier(base, noises.smoothing, progress=False)
        model.base_, model.noise_, model.classes_ = base, noises.smoothing, np.array(base.classes_)
        model.training_ = {
            "method": self.method,
            "rate": self.rate,
            "seed": self.seed,
            "validation": share,
            "stratified": True,
            "settings": {**asdict(self.settings()), "networks": networks, "encoder": True},
            "noise": noises.training.to_dict(),
            "data": {
                "digest": examples.digest,
                "rows": len(labels),
                "held_out": len(kept) - len(labels),
                "mean_length": float(np.mean(lengths)),
                "length_quartiles": np.percentile(lengths, [0, 25, 50, 75, 100]).tolist(),
                "classes": {str(label): labels.count(label) for label in sorted(set(labels))},
            },
            "history": [
                {"step": row["step"], "train_loss": row["loss"]} for row in base.training_["networks"][0]["history"]
            ],
            "versions": {"adaptdel": __version__},
            "fit_seconds": round(time.monotonic() - clock, 1),
            "seconds": round(time.monotonic() - started, 1),
        }
        save_model(model, out)


@dataclass(frozen=True)
class Choice:
    """A kept length, measured on held-out rows."""

    keep: float
    clean: float
    fitted: float
    mean_radius: float


def measured(folder: Path, name: str, train: Path) -> list[Choice]:
    """Every kept length of the grid on the held-out rows of a model; kept in a file beside the model."""
    stored = folder.with_name(f"{folder.name}-kept.json")
    known: dict[float, list[float]] = {}
    if stored.exists():
        known = {row[0]: row for row in read_json(stored, "kept lengths on held-out rows")["values"]}
    missing = [keep for keep in GRID[name] if keep not in known]
    if missing:
        model = SmoothedClassifier.load(folder)
        texts, labels = rows_to_choose_on(read_examples(str(train)), model.training_)
        for keep in missing:
            known[keep] = _measure(model, keep, texts, labels)
            write_json(stored, {"rows": len(texts), "values": [known[keep] for keep in sorted(known)]})
    values = [known[keep] for keep in GRID[name]]
    fitted = isotonic_regression([clean for _, clean, _ in values]).x
    return [
        Choice(keep, clean, fit, radius) for (keep, clean, radius), fit in zip(values, fitted.tolist(), strict=True)
    ]


def rows_to_choose_on(examples: Examples, training: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Texts and labels of the first held-out rows, in an order drawn by a seed."""
    share, seed = training["validation"], training["seed"]
    places = np.flatnonzero(held_out_rows(examples.texts, examples.labels, share, seed))
    chosen: npt.NDArray[Any] = np.random.default_rng(seed).permutation(places)[:MOST_ROWS]
    return [examples.texts[place] for place in chosen], [examples.labels[place] for place in chosen]


def _measure(model: SmoothedClassifier, keep: float, texts: list[str], labels: list[Any]) -> list[float]:
    """The kept length with its clean accuracy and mean radius."""
    noise = Deletion(InterpolatedRate((1,), (keep,)))
    certificates = SmoothedClassifier(model.base_, noise, seed=1, progress=False, **CHOOSING).certify(texts)
    right = [certificate.label == label for certificate, label in zip(certificates, labels, strict=True)]
    counts = AnswerCounts.of(right, [certificate.radius for certificate in certificates])
    return [keep, counts.clean_accuracy, counts.mean_radius]


def choose(measured: Sequence[Choice], least: float) -> Choice:
    """The largest mean radius at a fitted accuracy of at least ``least``; the most accurate if none has it.

    >>> choose([Choice(4, 0.95, 0.95, 9.0), Choice(8, 0.97, 0.97, 6.0), Choice(16, 0.97, 0.97, 3.0)], 0.96).keep
    8
    """
    able = [choice for choice in measured if choice.fitted >= least]
    if able:
        return max(able, key=lambda choice: choice.mean_radius)
    return max(measured, key=lambda choice: (choice.fitted, choice.mean_radius))


def kept_folder(folder: Path, keep: float) -> Path:
    """Where the copy of a model is that keeps so many words."""
    return folder.with_name(f"{folder.name}-keep{keep:g}")


def with_kept_length(folder: Path, keep: float) -> Path:
    """A copy of a model that keeps so many words of every input, on average."""
    out = kept_folder(folder, keep)
    if not out.exists():
        model = SmoothedClassifier.load(folder)
        model.noise_ = Deletion(InterpolatedRate((1,), (keep,)))
        model.noise = model.noise_
        save_model(model, out)
    return out
