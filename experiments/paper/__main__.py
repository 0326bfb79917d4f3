"""Run the paper's protocol: ``python -m experiments.paper [--data FOLDER] [--model roberta-base] [--out out/paper]``.

It prints the commands of adaptdel that it runs, and what they took in the paper. Stop it at any time: the same command
goes on. The tables are in tables.md of --out, with the paper's figures beside them, and grow while it works.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from adaptdel.cli import main as adaptdel
from experiments.paper.protocol import METHODS, PARTS, TITLES, Protocol, Step
from experiments.paper.sources import ADVBENCH_ZIP, fetch, missing
from experiments.paper.tables import write_page

ATTACKER = Path(".venv-attack/bin/adaptdel")  # of make attack-env
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with NAME.train.* and NAME.test.*; without it, from the hub")
    parser.add_argument("--model", default="roberta-base", help="name on the hub, folder, or linear")
    parser.add_argument("--out", type=Path, default=Path("out/paper"), help="models, runs, reports and tables")
    parser.add_argument("--sets", default=",".join(TITLES), help="data sets, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="rows of the main table")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is run")
    parser.add_argument("--limit", type=int, help="test inputs, drawn at random, to try it out")
    parser.add_argument("--list", action="store_true", help="print the commands, and end")
    parser.add_argument("--advbench", default=ADVBENCH_ZIP, help="ZIP file of Advbench, or its address")
    options = parser.parse_args(arguments)
    known = {"sets": TITLES, "methods": METHODS, "parts": PARTS}
    chosen = {name: _names(parser, name, getattr(options, name), known[name]) for name in known}
    data = options.data or options.out / "data"
    attacker = str(ATTACKER.resolve()) if ATTACKER.exists() else None
    protocol = Protocol(data, options.out, options.model, chosen["sets"], chosen["methods"], options.limit, attacker)
    try:
        steps = protocol.steps(chosen["parts"])
        if options.list:
            print("\n".join(step.command for step in steps))
            return 0
        announce(protocol, steps, unfinished(protocol, steps))
        if options.data is None:
            fetch(data, protocol.sets, say, options.advbench)
        elif files := missing(data, protocol.sets):
            raise ValueError(f"{data}: there is no {files[0].name}")
        if "attacks" in chosen["parts"] and attacker is None:
            say(f"no attacks: {ATTACKER} is missing, which make attack-env installs")
        return run_all(protocol, steps)
    except (ValueError, OSError, ImportError) as error:
        say(str(error))
        return 2


def _names(parser: argparse.ArgumentParser, option: str, given: str, known: Iterable[str]) -> list[str]:
    names = given.split(",")
    for name in names:
        if name not in known:
            parser.error(f"--{option} must be among {', '.join(known)}, separated by commas, got {name!r}")
    return names


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def run_all(protocol: Protocol, steps: Sequence[Step]) -> int:
    """Run what is not finished; 1 if a command failed, and what does not need it was run."""
    finished = protocol.out / "finished.txt"
    left = unfinished(protocol, steps)
    failed: dict[Path, str] = {}  # why, by the folder that is missing
    for number, whole in enumerate(left, start=1 + len(steps) - len(left)):
        step = whole.without(failed)
        if step is None:
            failed[whole.out] = f"{whole.command}: not run, for what it reads is missing"
            continue
        say(f"{number} of {len(steps)}: {step.command}")
        status, reason = run(step)
        if status == INTERRUPTED:
            return status
        if status > 1:  # 1: some inputs could not be certified
            failed[step.out] = f"{step.command}: {reason}"
        elif step == whole:
            with finished.open("a", encoding="utf-8") as file:
                file.write(step.command + "\n")
        write_page(protocol, [*failed.values()])
    for failure in failed.values():
        say(f"failed: {failure}")
    say(f"wrote {write_page(protocol, [*failed.values()])}")
    return 1 if failed else 0


def unfinished(protocol: Protocol, steps: Sequence[Step]) -> list[Step]:
    """The commands that are left."""
    protocol.out.mkdir(parents=True, exist_ok=True)
    finished = protocol.out / "finished.txt"
    done = set(finished.read_text(encoding="utf-8").splitlines()) if finished.exists() else set()
    return [step for step in steps if step.command not in done or not step.out.exists()]


def announce(protocol: Protocol, steps: Sequence[Step], left: Sequence[Step]) -> None:
    """Say what is left, and what it took in the paper."""
    hours = sum(step.hours or 0 for step in left)
    say(f"{len(steps)} commands, {len(steps) - len(left)} finished; --list prints them")
    if protocol.model != "linear":
        unknown = sum(step.hours is None for step in left)
        models = sum(step.arguments[0] in ("train", "calibrate") for step in left)
        say(
            f"the authors' code took {hours:.0f} hours for the rest on an A100 with roberta-base (the other rates: as "
            f"at 90%); {unknown} commands, FreeLB and attacks, are not in its tables. {models} models of 0.5 GB each"
        )


class Heard:
    """Standard error, whose last words are the reason of a failure."""

    def __init__(self) -> None:
        self.stream, self.last = sys.stderr, ""

    def write(self, text: str) -> int:  # noqa: D102
        written = self.stream.write(text)
        self.last = text.strip() or self.last
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def run(step: Step) -> tuple[int, str]:
    """Run a command; its exit status, and the last that it said."""
    if step.program != "adaptdel":
        status = subprocess.run([step.program, *step.arguments], check=False).returncode
        return status, f"exit status {status}"
    heard = Heard()
    try:
        with redirect_stderr(heard):
            adaptdel(step.arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0, heard.last
    except Exception as error:  # of a library, after which the other methods still run
        return 2, f"{type(error).__name__}: {error}"
    return 0, ""


if __name__ == "__main__":
    sys.exit(main())
