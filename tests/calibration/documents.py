"""Data, models and folders that the tests of calibration share."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from adaptdel.calibration import Calibration, CalibrationSettings, calibrate
from adaptdel.classifiers import LinearClassifier
from adaptdel.core.noise import Deletion, RandomDeletion
from adaptdel.core.rates import FixedRate
from adaptdel.models.smoothed import SmoothedClassifier

# A data set whose classes differ in how often two words occur.
FILL = [f"w{i}" for i in range(40)]
EDGES = [0, 40, 80]
QUICK: dict[str, Any] = {
    "objective": "paper", "per_bin": 24, "min_count": 10, "n_select": 16, "n_estimate": 64, "tol": 2.0, "bins": EDGES,
    "progress": False,
}  # fmt: skip


def documents(count: int, seed: int, classes: int = 2) -> tuple[list[str], list[int]]:
    rng = random.Random(seed)
    texts, labels = [], []
    for number in range(count):
        label = number % classes
        length = rng.randrange(8, 130)
        words = [f"sign{label}" if rng.random() < 0.12 else rng.choice(FILL) for _ in range(length)]
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


@cache
def fitted(classes: int = 2) -> SmoothedClassifier:
    texts, labels = documents(200, 1, classes)
    noise = RandomDeletion()
    base = LinearClassifier(bits=10).fit(
        [tuple(text.split()) for text in texts], labels, noise=noise, copies=4, loss="copies"
    )
    return SmoothedClassifier(base, noise, progress=False)


DATA = documents(240, 2)
# labels of the middle bin are turned around: nothing is certified there
TURNED = DATA[0], [1 - y if 40 <= len(t.split()) < 80 else y for t, y in zip(*DATA, strict=True)]


def quick(data: Any = DATA, /, model: SmoothedClassifier | None = None, **changed: Any) -> Calibration:
    return calibrate(model or fitted(), *data, **QUICK | changed)


def saved(folder: Path) -> Path:
    model = SmoothedClassifier(fitted().base, Deletion(FixedRate(0.9)), progress=False)
    model.save(folder)
    return folder


def data_file(folder: Path, rows: tuple[list[str], list[int]] = TURNED) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(*rows, strict=True)))
    return path


def folder_settings(**changed: Any) -> CalibrationSettings:
    quick = {name: value for name, value in QUICK.items() if name != "progress"}
    return CalibrationSettings(**{**quick, **changed})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Stop(Exception):
    pass


@cache
def whole() -> Calibration:
    return quick(TURNED)
