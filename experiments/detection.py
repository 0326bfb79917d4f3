"""Detection against edits: an exact filter with a proved rate of false positives, on emails that it has not seen.

    python -m experiments.detection --data FOLDER [--seeds 0,1,2] [--out experiments/results]

`adaptdel train --method exact --protect spam --max-false-positives RATE` on the training file of SpamAssassin, a
different seed for each run; the test file is certified at the threshold that was chosen.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.files import write_json
from adaptdel.training import TrainingJob, train_job

RATES = (0.01, 0.02, 0.05)
WORDS = (1, 2, 3, 5, 10, 20, 50)
CHARACTERS = (1, 3, 5, 10, 20, 50, 100)


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a labelled file, with labels that are names."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [{"text": row["text"], "label": ("ham", "spam")[row["label"]]} for row in map(json.loads, lines)]


def measured(data: Path, rate: float, seed: int) -> dict[str, Any]:
    """Train and protect a filter, and certify the test rows."""
    test = rows(data / "spamassassin.test.jsonl.gz")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.jsonl")
        lines = [json.dumps(row) for row in rows(data / "spamassassin.train.jsonl.gz")]
        file.write_text("\n".join(lines), encoding="utf-8")
        fields = {"method": "exact", "seed": seed, "protect": "spam", "max_false_positives": rate}
        model = train_job(TrainingJob.from_dict({"data": str(file), "out": f"{folder}/filter", **fields})).model
    certificates = model.set_params(progress=False).certify([row["text"] for row in test])
    is_spam = np.array([row["label"] == "spam" for row in test])
    caught = np.array([certificate.label == "spam" for certificate in certificates])
    radius = np.array([certificate.radius for certificate in certificates])
    characters = np.array([certificate.character_radius for certificate in certificates])
    return {
        "rate": rate,
        "seed": seed,
        "sentence": model.protection_["sentence"],
        "proved": model.protection_["upper"],
        "ham": int((~is_spam).sum()),
        "spam": int(is_spam.sum()),
        "false_positives": float(caught[~is_spam].mean()),
        "detected": float(caught[is_spam].mean()),
        "words": {str(edits): float((caught & (radius >= edits))[is_spam].mean()) for edits in WORDS},
        "characters": {str(edits): float((caught & (characters >= edits))[is_spam].mean()) for edits in CHARACTERS},
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    options = parser.parse_args()
    runs = [measured(options.data, rate, seed) for rate in RATES for seed in map(int, options.seeds.split(","))]
    write_json(options.out / "detection-spamassassin.json", {"runs": runs})


if __name__ == "__main__":
    main()
