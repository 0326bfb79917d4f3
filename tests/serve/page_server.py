"""A server for the tests of the page, in a process of its own: models whose votes are easy to foresee."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from typing import Any

import adaptdel as ad
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.serve.app import bind, serve
from adaptdel.serve.configuration import SERVE
from adaptdel.serve.service import ModelToServe, Service
from adaptdel.settings import AdditiveTrainingSettings
from tests.serve.serving import process

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
    """The same, slowly."""
    time.sleep(SLOW_SECONDS)
    return votes(copies)


def letter_votes(copies: list[Any]) -> list[str]:
    """Positive unless there are more letters "b" than "g"; for texts and bytes."""
    texts = [copy if isinstance(copy, str) else copy.decode("latin-1") for copy in copies]
    return [CLASSES[text.count("g") >= text.count("b")] for text in texts]


def topic_votes(copies: list[str]) -> list[int]:
    """3 if there is a good word, 7 otherwise."""
    return [3 if GOOD & set(copy.split()) else 7 for copy in copies]


def exact() -> ad.AdditiveClassifier:
    """A model whose word scores have the sign of the words."""
    texts = [f"{word} {other}" for word in sorted(GOOD | BAD) for other in ("film", "plot", "end", "cast")] * 5
    labels = [CLASSES[_is_positive(text.split())] for text in texts]
    settings = AdditiveTrainingSettings(iterations=20, levels=3)
    return ad.AdditiveClassifier(settings=settings, progress=False).fit(texts, labels)


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
    ]


def page_server(token: str = "") -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """The address of a server and its process."""
    return process(program="from tests.serve.page_server import main; main()", TOKEN=token)


def main() -> None:
    """Serve until the process is ended."""
    with bind("127.0.0.1", 0) as opened:
        opened.listen()
        sys.stdout.write(f"http://127.0.0.1:{opened.getsockname()[1]}/\n")
        sys.stdout.flush()
        serve(Service(models(), SERVE, seed=5, token=os.environ["TOKEN"] or None), opened)
