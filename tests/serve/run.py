"""``adaptdel serve`` in a process, with a base classifier of the tests: ``python -m tests.serve.run ...``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from adaptdel.cli import main
from adaptdel.serve.service import ModelToServe
from tests.serve.serving import LONG, Counter, model


def slow(copies: list[str]) -> list[str]:
    """Answers when the file GATE is there, if it is named, and takes at least COPY_SECONDS for every copy."""
    end = time.monotonic() + LONG
    while (gate := os.environ.get("GATE")) and not Path(gate).exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    time.sleep(len(copies) * float(os.environ.get("COPY_SECONDS", "0")))
    return Counter()(copies)


class SlowSource(ModelToServe):
    """Models called "slow" are slow; all others are read from their folders."""

    @classmethod
    def load(cls, folder: Path, name: str = "") -> ModelToServe:
        if folder.name == "slow":
            return ModelToServe("slow", model(slow))
        return super().load(folder, name)


def run() -> Any:
    from adaptdel.serve import service

    service.ModelToServe = SlowSource  # type: ignore[misc]
    return main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    run()
