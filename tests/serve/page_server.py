"""Servers in processes of their own: models whose votes are easy to foresee, and `adaptdel serve` with a slow model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import adaptdel as ad
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.cli import main
from adaptdel.serve import service
from adaptdel.serve.app import bind, serve
from adaptdel.serve.service import ModelToServe, Service
from adaptdel.settings import SERVE
from tests.serve.serving import LONG, Counter, exact, filtering, model, process

CLASSES = ["negative", "positive"]
GOOD, BAD = {"good", "great"}, {"bad", "awful"}
SLOW_SECONDS = 0.05  # for 50 copies of the slow model, which needs 20 seconds at least to choose an answer

PRAISE = " ".join(["good", "film"] * 30)  # every vote is positive
MIXED = " ".join(["good"] * 12 + ["film"] * 40 + ["awful"] * 4)  # some votes are negative
UNDECIDED = " ".join(f"coin{n}" for n in range(60))  # half of the votes are positive
NARROW = " ".join(["dice"] * 44)  # somewhat more than half of the votes are positive
EXAMPLES = [
    {"title": "Praise", "text": PRAISE, "label": "positive"},
    {"title": "Mixed", "text": MIXED, "label": "negative"},
]


def votes(copies: list[str]) -> list[str]:
    """Positive unless there are more bad words than good ones; "coin0" and "dice" depend on the number of words."""
    return [CLASSES[_is_positive(copy.split())] for copy in copies]


def _is_positive(words: list[str]) -> bool:
    if words and words[0].startswith("coin"):
        return len(words) % 2 == 0
    if "dice" in words:
        return len(words) <= 4
    return sum(word in GOOD for word in words) >= sum(word in BAD for word in words)


def slow_votes(copies: list[str]) -> list[str]:
    time.sleep(SLOW_SECONDS)
    return votes(copies)


def letter_votes(copies: list[Any]) -> list[str]:
    """Positive unless there are more letters "b" than "g"; for texts and bytes."""
    texts = [copy if isinstance(copy, str) else copy.decode("latin-1") for copy in copies]
    return [CLASSES[text.count("g") >= text.count("b")] for text in texts]


def topic_votes(copies: list[str]) -> list[int]:
    return [3 if GOOD & set(copy.split()) else 7 for copy in copies]


def models() -> list[ModelToServe]:
    """Models of every kind that the page treats differently."""
    noise = ad.Deletion(ad.FixedRate(0.9))
    slow = CallableClassifier(slow_votes, classes=CLASSES, batch_size=50, recheck=0)
    return [
        ModelToServe("reviews", ad.SmoothedClassifier(votes, noise, classes=CLASSES), EXAMPLES),
        ModelToServe("slow", ad.SmoothedClassifier(slow, noise, n_select=20_000)),
        ModelToServe("letters", ad.SmoothedClassifier(letter_votes, noise, classes=CLASSES, unit="char")),
        ModelToServe("bytes", ad.SmoothedClassifier(letter_votes, noise, classes=CLASSES, unit="byte")),
        ModelToServe("topics", ad.SmoothedClassifier(topic_votes, noise, classes=list(range(9)))),
        ModelToServe("masked", ad.SmoothedClassifier(votes, ad.Masking(0.9), classes=CLASSES)),
        ModelToServe("exact", exact(), EXAMPLES),
        ModelToServe("filter", filtering()),
    ]


def page_server(token: str = "") -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    return process(program="serve_page", TOKEN=token)


def serve_page() -> None:
    with bind("127.0.0.1", 0) as opened:
        opened.listen()
        sys.stdout.write(f"http://127.0.0.1:{opened.getsockname()[1]}/\n")
        sys.stdout.flush()
        serve(Service(models(), SERVE, seed=5, token=os.environ["TOKEN"] or None), opened)


def gated_votes(copies: list[str]) -> list[str]:
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
        return ModelToServe("slow", model(gated_votes)) if folder.name == "slow" else super().load(folder, name)


def serve_slowly() -> None:
    service.ModelToServe = SlowSource  # type: ignore[misc]
    main(["serve", *sys.argv[1:]])
