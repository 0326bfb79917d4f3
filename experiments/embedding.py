"""The embedding network beside the linear model: accuracy, mean radius, speed of training and of votes, in one run.

    python -m experiments.embedding --data ../shared/data --sets spamassassin [--encoder minilm] [--cache out/vectors]

Both models are trained on the training set, and certify the first test inputs with a fixed number of votes, without
calibration. The radius of a wrong answer counts as 0. ``k`` is the number of kept words on average; the linear model is
trained for each k, the network once for all of them. Speeds are by the processor time of this process, which a busy
machine disturbs less, with the time on the clock beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel import Deletion, LengthRate, SmoothedClassifier
from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.classifiers.word_encoders import TransformerEncoder
from adaptdel.core.noise import RandomLength
from adaptdel.hyperparameters import EmbeddingSettings
from adaptdel.measures.summary import AnswerCounts
from adaptdel.text.data import read_examples
from adaptdel.text.units import Tokens, Words
from benchmarks.real import minilm

KEPT = {"spamassassin": (5, 6, 7, 9), "imdb": (8, 12, 16, 23)}  # kept words on average
TRAINED = {"spamassassin": (3.0, 12.0), "imdb": (5.0, 30.0)}  # kept words in training, from and to
SPEED_COPIES = 2000


@dataclass
class Data:
    """Training and test examples."""

    tokens: list[Tokens]
    labels: list[Any]
    texts: list[str]
    answers: list[Any]


def read(folder: Path, name: str, count: int) -> Data:
    train, test = (read_examples(folder / f"{name}.{part}.jsonl.gz") for part in ("train", "test"))
    return Data([Words().split(text) for text in train.texts], train.labels, test.texts[:count], test.labels[:count])


def certified(base: BaseClassifier, data: Data, kept: float, votes: int) -> dict[str, float]:
    """Accuracies and mean certified radius at a number of kept words on average."""
    noise = Deletion(LengthRate(0.0, kept))
    model = SmoothedClassifier(base, noise, n_select=64, n_estimate=votes, sampling="fixed", progress=False)
    start, cpu = time.perf_counter(), time.process_time()
    certificates = model.certify(data.texts)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    correct = [c.label == answer for c, answer in zip(certificates, data.answers, strict=True)]
    counts = AnswerCounts.of(correct, [c.radius for c in certificates])
    return {
        "kept": kept,
        **{name: getattr(counts, name) for name in ("clean_accuracy", "certified_accuracy", "mean_radius")},
        "ms_an_input": 1000 * seconds / len(correct),
        "cpu_ms_an_input": 1000 * cpu / len(correct),
    }


def votes_a_second(base: BaseClassifier, data: Data, kept: float = 10) -> float:
    """Copies of ten kept words on average that are answered in a second of processor time."""
    rng = np.random.default_rng(0)
    noise = Deletion(LengthRate(0.0, kept))
    inputs = [Words().split(text) for text in data.texts[:50]]
    requests = [
        Request(base.prepare("input", tokens, Words()), noise.sample(len(tokens), SPEED_COPIES, rng))
        for tokens in inputs
        if len(tokens) > 5 * kept
    ]
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        base.votes(requests)
        best = min(best, time.process_time() - start)
    return SPEED_COPIES * len(requests) / best


def network(name: str, data: Data, args: argparse.Namespace) -> tuple[EmbeddingClassifier, dict[str, Any]]:
    encoder = TransformerEncoder(minilm(), cache=args.cache) if args.encoder == "minilm" else None
    settings = EmbeddingSettings(steps=args.steps)
    base = EmbeddingClassifier(encoder=encoder, on_unknown=args.on_unknown, networks=args.networks, settings=settings)
    started: list[tuple[float, float]] = []

    def progress(done: int, total: int) -> None:
        if done == 1:
            started.append((time.perf_counter(), time.process_time()))

    start = time.perf_counter()
    base.fit(data.tokens, data.labels, noise=RandomLength(*TRAINED[name]), seed=args.seed, progress=progress)
    wall, cpu = time.perf_counter() - started[0][0], time.process_time() - started[0][1]
    copies = sum(record["steps"] for record in base.training_["networks"]) * settings.batch_size
    speeds = {"copies_a_second": copies / wall, "copies_a_cpu_second": copies / cpu}
    encoding = {"seconds_until_the_first_step": started[0][0] - start, "encoded_words": base.training_["words"]}
    return base, {"seconds": time.perf_counter() - start, **encoding, **speeds}


def new_words(base: EmbeddingClassifier, data: Data) -> dict[str, float]:
    """The share of the words of test inputs that have no pretrained vector in the model."""
    words = [token for text in data.texts for token in Words().split(text)]
    known = [base.has_vector(token) for token in words]
    return {"share": 1 - sum(known) / len(known), "words_an_input": len(words) / len(data.texts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with .jsonl.gz files")
    parser.add_argument("--sets", default="spamassassin", help="spamassassin, imdb or both, with a comma between")
    parser.add_argument("--encoder", choices=["none", "minilm"], default="none", help="pretrained vectors of words")
    parser.add_argument("--on-unknown", choices=["ngrams", "encode"], default="ngrams", help="how new words are read")
    parser.add_argument("--cache", type=Path, default=Path("out/vectors"), help="folder for pretrained vectors")
    parser.add_argument("--inputs", type=int, default=1000, help="test inputs")
    parser.add_argument("--votes", type=int, default=256, help="votes that bound the probability, besides 64 to choose")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--networks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", choices=["linear"], help="linear, to do the network only")
    args = parser.parse_args()
    for name in args.sets.split(","):
        data = read(args.data, name, args.inputs)
        base, training = network(name, data, args)
        results: dict[str, Any] = {
            "data": name,
            "training": training,
            "new_words": new_words(base, data),
            "votes_a_cpu_second": votes_a_second(base, data),
            "network": [certified(base, data, kept, args.votes) for kept in KEPT[name]],
        }
        if args.skip != "linear":
            results["linear"] = []
            for kept in KEPT[name]:
                plain = LinearClassifier().fit(data.tokens, data.labels, noise=Deletion(LengthRate(0.0, kept)))
                results["linear"].append(certified(plain, data, kept, args.votes))
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
