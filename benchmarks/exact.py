"""How fast exact certificates are, beside the smoothed linear model, in one process of one run.

    python -m benchmarks.exact --data FOLDER [--out out]

Both models are trained on IMDB and certify the same test reviews; seconds of processor time. The exact model is timed
on reviews whose words it has not seen yet, with the radius of each certificate. The least that any such model needs
is measured too: to split the reviews and look their words up in a dictionary.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from adaptdel import AdditiveClassifier, SmoothedClassifier
from adaptdel.files import write_json
from benchmarks.real import load


def seconds(model: Any, texts: list[str]) -> float:
    """Processor time of certifying texts and reading their radii."""
    start = time.process_time()
    for certificate in model.certify(texts):
        assert certificate.radius >= -1
    return time.process_time() - start


def least_seconds(texts: list[str]) -> float:
    """Processor time of splitting texts and looking up their words."""
    known = {word: 0 for text in texts for word in text.split()}
    start = time.process_time()
    for text in texts:
        list(map(known.get, text.split()))
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with imdb .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--reviews", type=int, default=5000, help="for the exact model; a tenth for the smoothed one")
    arguments = parser.parse_args()
    texts, labels = load(arguments.data, "imdb.train", 25_000)
    inputs, _ = load(arguments.data, "imdb.test", arguments.reviews)
    exact = AdditiveClassifier(progress=False).fit(texts, labels)
    smoothed = SmoothedClassifier(progress=False).fit(texts, labels)
    few = inputs[: len(inputs) // 10]
    result: dict[str, Any] = {
        "reviews": len(inputs),
        "exact_seconds_a_review": seconds(exact, inputs) / len(inputs),
        "exact_again_seconds_a_review": seconds(exact, inputs) / len(inputs),
        "least_seconds_a_review": least_seconds(inputs) / len(inputs),
        "smoothed_seconds_a_review": seconds(smoothed, few) / len(few),
    }
    for name in ("exact", "exact_again", "least"):
        result[f"{name}_times_less"] = result["smoothed_seconds_a_review"] / result[f"{name}_seconds_a_review"]
    million = " ".join(inputs * (1 + 1_000_000 // sum(len(text.split()) for text in inputs)))
    certificate = exact.certify([million])[0]
    start = time.process_time()
    assert certificate.radius >= 0
    result["million_tokens_radius_seconds"] = time.process_time() - start
    result["million_tokens"] = certificate.length
    print(result)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "exact.json", result)


if __name__ == "__main__":
    main()
