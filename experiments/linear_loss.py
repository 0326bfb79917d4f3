"""The two losses of the linear model on whole test sets.

    python -m experiments.linear_loss --data FOLDER --out FILE

For each data set and number of kept words, a model is trained under that noise with each loss, and certified with the
default votes. A point that
the file already holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import adaptdel as ad
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.rates import InterpolatedRate
from adaptdel.files import write_json
from adaptdel.measures.summary import Outcomes, measure
from adaptdel.report.entries import read_inputs
from adaptdel.text.data import read_examples
from adaptdel.text.units import Words

FRONT = {
    "spamassassin": (4.0, 6.0, 9.0), "imdb": (8.0, 12.0, 20.0), "lun": (9.0, 15.0, 24.0), "yelp": (10.0, 16.0, 28.0),
}  # fmt: skip
PART = {"spamassassin": 1000}  # the test inputs that MiniLM was measured on, besides all of them
MEASURES = (
    "clean_accuracy", "certified_accuracy", "mean_radius", "mean_radius_se", "balanced_accuracy",
    "balanced_mean_radius", "inputs",
)  # fmt: skip


def measured(inputs: Outcomes) -> dict[str, Any]:
    values = measure(inputs).to_dict()
    return {name: values[name] for name in MEASURES if name in values}


def point(data: Path, name: str, keep: float, loss: str, seed: int) -> dict[str, Any]:
    examples = read_examples(str(data / f"{name}.train.jsonl.gz"))
    noise = ad.Deletion(InterpolatedRate([1, 2**20], [keep, keep]))
    tokens = [Words().split(text) for text in examples.texts]
    started = time.process_time()
    base = LinearClassifier().fit(tokens, examples.labels, noise=noise, loss=loss, seed=seed)
    trained = time.process_time() - started
    test = data / f"{name}.test.jsonl.gz"
    with tempfile.TemporaryDirectory() as folder:
        model = ad.SmoothedClassifier(base, noise, seed=seed, progress=False)
        inputs = read_inputs(ad.evaluate(model, str(test), out=Path(folder) / "run")).outcomes
    values: dict[str, Any] = {"set": name, "keep": keep, "loss": loss, "seed": seed, "training_cpu_seconds": trained}
    values["all"] = measured(inputs)
    if name in PART:  # the inputs that MiniLM was measured on
        chosen = random.Random(0).sample(range(len(inputs)), PART[name])
        values[f"{PART[name]} inputs"] = measured(inputs.take(chosen))
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", default=",".join(FRONT))
    parser.add_argument("--losses", default="votes,copies")
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    points = json.loads(arguments.out.read_text(encoding="utf-8"))["points"] if arguments.out.exists() else []
    for name in arguments.sets.split(","):
        for keep in FRONT[name]:
            for seed in map(int, arguments.seeds.split(",")):
                for loss in arguments.losses.split(","):
                    key = {"set": name, "keep": keep, "loss": loss, "seed": seed}
                    if any(key.items() <= known.items() for known in points):
                        continue
                    points.append(point(arguments.data, name, keep, loss, seed))
                    write_json(arguments.out, {"points": points})
                    shown = points[-1]["all"]
                    print(f"{key}: {shown['clean_accuracy']:.4f} {shown['mean_radius']:.3f}", flush=True)


if __name__ == "__main__":
    main()
