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

from adaptdel import Certifier, Deletion, LengthRate
from adaptdel.certification.certificate import Certificate
from adaptdel.classifiers import LinearClassifier
from adaptdel.cli import main
from adaptdel.core.noise import Noise
from adaptdel.files import write_json
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.engine import EngineSettings
from adaptdel.runs.manifest import FORMAT, session, timestamp
from adaptdel.runs.records import Totals
from adaptdel.runs.storage import MANIFEST, open_store, write_table


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

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
    """A linear model in a folder."""
    texts, answers = zip(*examples(200, seed=1, labels=labels), strict=True)
    noise = noise or Deletion(LengthRate(0.7, 6))
    model = SmoothedClassifier(LinearClassifier(bits=12), noise, n_select=100, n_estimate=400, **settings)
    model.fit(list(texts), list(answers))
    tokens = [tuple(text.split()) for text in texts]
    assert isinstance(model.base_, LinearClassifier)
    model.base_.fit(tokens, answers, noise=noise, loss="copies")  # votes are more divided than with the default
    model.save(folder)
    return folder


def write_rows(path: Path, rows: Iterable[Mapping[str, Any] | bytes]) -> Path:
    """A file of JSON lines; bytes are written as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def make_data(path: Path, count: int = 60, seed: int = 2) -> Path:
    """A file of labelled texts without ids."""
    return write_rows(path, [{"text": text, "label": label} for text, label in examples(count, seed)])


def run(*arguments: object) -> int:
    """Call the command line in this process; its exit status."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("main always exits")


def command(*arguments: object) -> list[str]:
    """The command line as a process of its own."""
    return [str(Path(sys.executable).with_name("adaptdel")), *map(str, arguments)]


def call(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **options)


_MODEL: dict[str, Any] = {
    "path": "model", "base": "linear", "method": None, "training": None, "calibrated": False, "self_test": None,
    "dtype": None, "protects": None,
}  # fmt: skip
_DATA: dict[str, Any] = {
    "path": "data.jsonl", "text": "text", "label": "label", "encoding": "utf-8", "files": 1, "bytes": None,
    "sha256": None, "remote": None,
}  # fmt: skip


def write_run(folder: Path, manifest: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
    """Write a finished run with these rows; fields that the manifest lacks get usual values."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [dict(record) for record in records]
    now = timestamp()
    usual = {
        "format": FORMAT, "sampling": "adaptive", "votes": [100, 400], "limit": None,
        "model": None, "data": None, "seconds": 0.0, "started": now, "finished": now,
        "sessions": [session(EngineSettings(), len(rows))],
    }  # fmt: skip
    manifest = {**usual, **manifest}
    for name, fields in (("model", _MODEL), ("data", _DATA)):
        if manifest[name] is not None:
            manifest[name] = fields | manifest[name]
    totals = Totals.of(manifest)
    for row in rows:
        totals.add(row)
    stated = {"totals": totals.to_dict(), "rows": len(rows), "table_sha256": write_table(folder, rows)}
    write_json(folder / MANIFEST, manifest | stated)


def setting_of(certificate: Certificate) -> dict[str, Any]:
    """The fields of a manifest that all certificates of a run share."""
    names = ("model_hash", "unit", "threshold", "bound", "alpha", "seed")
    lists = {"classes": list(certificate.classes), "ops": list(certificate.ops)}
    return {name: getattr(certificate, name) for name in names} | lists | {"noise": certificate.noise.to_dict()}


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest of a run."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def forge_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the rows of a finished run, with the digest of the new table and their number, as a forger would."""
    forged = [dict(row) for row in rows]
    digest = write_table(folder, forged)

    def sign(manifest: dict[str, Any]) -> None:
        manifest.update(table_sha256=digest, rows=len(forged))
        manifest["sessions"][-1]["rows"] = len(forged)

    rewrite(folder, sign)


def store_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Put records into the working store of an unfinished run, which is created."""
    with open_store(folder) as store:
        for record in records:
            store.put(record["row"], record)


def picky(certifier: Certifier) -> Certifier:
    """Fails on inputs with a certain word."""
    votes = certifier.base.votes

    def some_votes(requests: Any) -> Any:
        for request in requests:
            if "poison" in request.prepared.tokens:
                raise ValueError(f"cannot read {request.prepared.name}")
        return votes(requests)

    certifier.base.votes = some_votes  # type: ignore[method-assign]
    return certifier
