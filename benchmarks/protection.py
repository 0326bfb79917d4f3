"""One-sided protection of spam on SpamAssassin, beside the two-sided certificate: radii, and detection under attack.

    python -m benchmarks.protection --data FOLDER [--test 1000] [--out docs/results]

Linear models are trained with the defaults at a few rates. The threshold for each rate of false positives is chosen on
texts that the model was not trained on. Both certificates of a test mail use the same numbers of votes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.data import ExampleSet
from adaptdel.files import write_json
from adaptdel.protection import detection_curve
from adaptdel.training import train
from adaptdel.training.training import set_protection

RADII = (0, 1, 2, 5, 10, 20, 40)
RATES = (0.9, 0.95, 0.98)
FALSE_POSITIVES = (0.01, 0.001)
SPAM = 1
VOTES = {"n_select": 500, "n_estimate": 2000}


def rows(path: Path, limit: int | None, seed: int) -> tuple[list[str], list[int]]:
    """Texts and labels, drawn by the seed."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        listed = [json.loads(line) for line in lines]
    order = np.random.default_rng(seed).permutation(len(listed))[:limit]
    return [listed[n]["text"] for n in order], [listed[n]["label"] for n in order]


def summary(certificates: list[Any], labels: list[int]) -> dict[str, Any]:
    """Certified detection of spam by radius, the radii of spam mails, and false positives."""
    spam = np.array(labels) == SPAM
    answers = np.array([certificate.label for certificate in certificates]) == SPAM
    radius = np.array([certificate.radius for certificate in certificates])
    detected = np.where(answers, radius, -1)[spam]
    certified_radii = np.maximum(detected, 0)
    return {
        "spam": int(spam.sum()),
        "ham": int((~spam).sum()),
        "false_positives": int(answers[~spam].sum()),
        "detection": {str(r): float((detected >= r).mean()) for r in RADII},
        "mean_radius": float(certified_radii.mean()),
        "mean_radius_se": float(certified_radii.std(ddof=1) / np.sqrt(len(certified_radii))),
        "median_radius": float(np.median(certified_radii)),
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts, labels = rows(options.data / "spamassassin.train.jsonl.gz", None, options.seed)
    held, truth = rows(options.data / "spamassassin.test.jsonl.gz", options.test, options.seed)
    results = []
    for rate in RATES:
        model = train(texts, labels, method="adaptdel", rate=rate, validation=0.0, progress=False)
        model.set_params(**VOTES, progress=False)
        everything = ExampleSet([tuple(text.split()) for text in texts], labels)
        certificates = model.certify(held)
        entry: dict[str, Any] = {"rate": rate, "two_sided": summary(certificates, truth), "one_sided": []}
        entry["roc"] = detection_curve(certificates, truth, SPAM, radii=RADII).to_dict()
        for wanted in FALSE_POSITIVES:
            chosen = set_protection(model, SPAM, wanted, everything, ExampleSet([], []))
            entry["one_sided"].append({"choice": chosen.to_dict(), **summary(model.certify(held), truth)})
            model.threshold = None
        results.append(entry)
        sys.stderr.write(f"{rate}: {json.dumps({k: v for k, v in entry.items() if k != 'roc'})}\n")
        write_json(
            options.out / "protection-spamassassin-linear.json",
            {"votes": VOTES, "radii": list(RADII), "test": len(held), "seed": options.seed, "models": results},
        )


if __name__ == "__main__":
    main()
