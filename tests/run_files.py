"""A small model, data and command line for the tests of runs."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from adaptdel import Deletion, LengthRate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.scores import Filter
from adaptdel.classifiers import LinearClassifier
from adaptdel.cli import main
from adaptdel.core.noise import Noise
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.columns import batch_of
from adaptdel.runs.storage import MANIFEST, read_manifest, write_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


WORDS = [f"w{number}" for number in range(300)]
LENGTHS = [0, 1, 5, 11, 30, 60, 120]


def examples(count: int, seed: int = 0, labels: tuple[Any, ...] = (0, 1)) -> list[tuple[str, Any]]:
    """Texts of two kinds of words, half of them shared."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        kind = rng.randrange(len(labels))
        words = rng.choices(WORDS[100 * kind : 100 * kind + 200], k=rng.choice(LENGTHS))
        found.append((" ".join(words), labels[kind]))
    return found


def make_model(folder: Path, noise: Noise | None = None, labels: tuple[Any, ...] = (0, 1), **settings: Any) -> Path:
    texts, answers = zip(*examples(200, seed=1, labels=labels), strict=True)
    noise = noise or Deletion(LengthRate(0.7, 6))
    model = SmoothedClassifier(LinearClassifier(bits=12), noise, n_select=100, n_estimate=400, **settings)
    model.fit(list(texts), list(answers))
    tokens = [tuple(text.split()) for text in texts]
    assert isinstance(model.base_, LinearClassifier)
    model.base_.fit(tokens, answers, noise=noise, loss="copies")  # votes are more divided than with the default
    model.save(folder)
    return folder


def make_exact(folder: Path, labels: tuple[Any, ...] = (0, 1), **settings: Any) -> Path:
    texts, answers = zip(*examples(200, seed=1, labels=labels), strict=True)
    quick: dict[str, Any] = {"levels": 2, "iterations": 9, "progress": False, **settings}
    AdditiveClassifier(**quick).fit(texts, answers).save(folder)
    return folder


def make_filter(folder: Path, rows: Iterable[tuple[str, Any]] = (), label: int = 1) -> Path:
    """An additive model in a folder that protects a class, by the sum or by a segment."""
    texts, answers = zip(*(rows or examples(200, seed=1)), strict=True)
    model = AdditiveClassifier(levels=2, iterations=9, progress=False).fit(texts, answers)
    clip = model.trade_off_[model.level].clip
    model.filter = Filter(label=label, drift=clip // 10, segment=3 * clip, segment_drift=clip // 10)
    model.save(folder)
    return folder


def write_rows(path: Path, rows: Iterable[Mapping[str, Any] | bytes]) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def make_data(path: Path, count: int = 60, seed: int = 2) -> Path:
    return write_rows(path, [{"text": text, "label": label} for text, label in examples(count, seed)])


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("main always exits")


def command(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).with_name("adaptdel")), *map(str, arguments)]


def call(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **options)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def forge_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the rows of a finished run, with the digest of the new table and their number, as a forger would."""
    forged, kind = [dict(row) for row in rows], read_manifest(folder).kind
    digest = write_table(folder, kind, [batch_of(kind, forged)])

    def sign(manifest: dict[str, Any]) -> None:
        manifest.update(table_sha256=digest, rows=len(forged))
        manifest["sessions"][-1]["rows"] = len(forged)

    rewrite(folder, sign)


def picky(certifier: Certifier) -> Certifier:
    prepare = certifier.oracle.prepare

    def some(inputs: Any, *arguments: Any) -> Any:
        for name, tokens in inputs:
            if "poison" in tokens:
                raise ValueError(f"cannot read {name}")
        return prepare(inputs, *arguments)

    certifier.oracle.prepare = some  # type: ignore[method-assign, assignment]
    return certifier
