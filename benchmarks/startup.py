"""Processor time until a command or a model is ready: ``python -m benchmarks.startup``."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import adaptdel as ad

RUNS = 7


def seconds(*command: object) -> float:
    """The least processor time of some runs of a Python program."""
    times = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *map(str, command)], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def main() -> None:
    """Print the seconds of each start."""
    print(f"adaptdel --help: {seconds('-m', 'adaptdel', '--help'):.2f} s")
    with TemporaryDirectory() as folder:
        for kind in (ad.AdditiveClassifier, ad.SmoothedClassifier):
            path = Path(folder) / kind.kind
            kind(progress=False).fit(["good fine film", "bad dull film"] * 8, ["pos", "neg"] * 8).save(path)
            program = "import sys, adaptdel; adaptdel.load(sys.argv[1]).certifier()"
            print(f"a {kind.kind} model, ready to certify: {seconds('-c', program, path):.2f} s")


if __name__ == "__main__":
    main()
