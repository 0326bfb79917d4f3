"""What commands cost beside the certificates: processor time, in one run.

    python -m benchmarks.commands [--data FOLDER] [--out out]

``adaptdel certify`` and ``adaptdel verify``, as processes of their own, from gzipped JSON lines to the finished table
and back, against the same certificates and radii in Python, which reads no file and writes none; both with an exact
model, the quickest that there is. And how long commands take until they work: ``--help``, ``status`` of a finished
run, and ``certify`` of a single text. The data are IMDB's reviews in FOLDER, or texts of made-up words.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import adaptdel as ad
from adaptdel.files import write_json
from benchmarks.real import load

AIMS = {"certify": 2.5, "verify": 2.5, "help_seconds": 0.3, "status_seconds": 0.5, "ready_seconds": 0.7}


def texts_of(data: Path | None, name: str, count: int, seed: int) -> tuple[list[str], list[int]]:
    """Reviews, or about as many words of two kinds, with the labels."""
    if data is not None:
        return load(data, f"imdb.{name}", count)
    rng = random.Random(seed)
    words = [f"w{int(20_000 * rng.random() ** 3)}" for _ in range(10**6)]
    texts = []
    for number in range(count):
        start, length = rng.randrange(900_000), rng.randrange(20, 450)
        texts.append(" ".join([*words[start : start + length], f"sign{number % 2}"]))
    return texts, [number % 2 for number in range(count)]


def command_seconds(*arguments: object, repeat: int = 1) -> float:
    """The least processor time of a command, as a process of its own."""
    seconds = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "adaptdel", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def measure(data: Path | None, inputs: int, folder: Path) -> dict[str, Any]:
    """All figures; the ratios are by the processor time in Python."""
    ad.AdditiveClassifier(progress=False).fit(*texts_of(data, "train", 6000, 1)).save(folder / "model")
    texts, labels = texts_of(data, "test", inputs, 2)
    rows = [json.dumps({"text": text, "label": label}) + "\n" for text, label in zip(texts, labels, strict=True)]
    for name, count in (("data", inputs), ("one", 1)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(rows[:count])
    model = ad.load(folder / "model")
    model.progress = False
    start = time.process_time()
    radii = [certificate.radius for certificate in model.certify(texts)]
    python = time.process_time() - start
    run, one = folder / "run", ("certify", folder / "model", "--data", folder / "one.jsonl.gz", "--out")
    certify = command_seconds("certify", folder / "model", "--data", folder / "data.jsonl.gz", "--out", run)
    verify = command_seconds("verify", run)
    assert ad.read_run(run).table["radius"].to_pylist() == radii
    return {
        "inputs": inputs,
        "python_seconds": python,
        "certify_seconds": certify,
        "verify_seconds": verify,
        "certify": certify / python,
        "verify": verify / python,
        "help_seconds": command_seconds("--help", repeat=3),
        "status_seconds": command_seconds("status", run, repeat=3),
        "ready_seconds": min(command_seconds(*one, folder / f"one{number}") for number in range(3)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with imdb .jsonl.gz files")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--inputs", type=int, default=25_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.data, arguments.inputs, Path(folder))
    for name, value in result.items():
        print(f"{name:16} {value:.4g}" + (f"  (aim: at most {AIMS[name]})" if name in AIMS else ""))
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "commands.json", result)


if __name__ == "__main__":
    main()
