"""Fuzzing without surprises: numbers decide how a file is changed, so that a list of numbers repeats a case.

Hypothesis draws the numbers, the same in every run, and leaves out those that a failure does not need.
"""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adaptdel.cli import main

SECONDS = 60.0  # more than any case takes on a busy machine, and less than anyone waits for a file that was refused
MEGABYTES = 2000  # that a suite may add to the memory of its process
NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 1000, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 5 * 10**12, 10**30, 10**400, 0.5, 0.05, 1.0,
    1.5, -0.5, 1e-300, 5e-324, 1e308, -0.0, math.nan, math.inf, -math.inf,
]  # fmt: skip
TEXTS = ["", "x", "0", "1", "NaN", "null", "del", "edit", "\0", "\ud800", "é", "a\nb", "../..", "x" * 1000, "％"]


def nested(depth: int, inner: Any = None) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


ODD: list[Any] = [None, True, False, [], [[]], [None], {}, {"kind": "x"}, nested(30), nested(200), [0] * 500]
Path = tuple[Any, ...]


def places(values: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(values, dict):
        for key, inner in values.items():
            yield from places(inner, (*path, key))
    elif isinstance(values, list) and len(values) < 60:
        for number, inner in enumerate(values):
            yield from places(inner, (*path, number))


def descend(values: Any, rng: random.Random) -> Path:
    """A path by steps down, so that a field is as likely as its neighbour that holds a thousand numbers."""
    path: Path = ()
    while isinstance(values, (dict, list)) and values and (not path or rng.random() < 0.8):
        key = rng.choice(list(values)) if isinstance(values, dict) else rng.randrange(len(values))
        path, values = (*path, key), values[key]
    return path


def lookup(values: Any, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values


def changed(values: Any, edits: Sequence[int]) -> Any:
    values = copy.deepcopy(values)
    for edit in edits:
        rng = random.Random(edit)
        paths = list(places(values))
        if not paths:
            return rng.choice(ODD)
        path = descend(values, rng)
        parent, key = lookup(values, path[:-1]), path[-1]
        _edit(values, parent, key, paths, rng)
    return values


def _edit(values: Any, parent: Any, key: Any, paths: list[Path], rng: random.Random) -> None:
    old = parent[key]
    kind = rng.randrange(10)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(old))
    elif kind == 1:
        parent[rng.choice(TEXTS)] = copy.deepcopy(old)
    elif kind == 2:
        parent[key] = copy.deepcopy(lookup(values, rng.choice(paths)))
    elif kind == 3:
        parent[key] = rng.choice([[old], {"value": old}, str(old), [old, old]])
    elif kind in (4, 5) and isinstance(old, (int, float)):
        parent[key] = near(old, rng)
    elif kind == 4 and isinstance(old, str):
        parent[key] = rng.choice([old[:-1], old + "\0", old.upper(), old * 2, f" {old}", old + rng.choice(TEXTS)])
    elif kind == 5 and isinstance(old, list):
        rng.shuffle(old)
    else:
        parent[key] = copy.deepcopy(rng.choice(NUMBERS if kind < 8 else [*TEXTS, *ODD]))


def near(number: float, rng: random.Random) -> float:
    choices: list[Callable[[], float]] = [
        lambda: number + 1,
        lambda: number - 1,
        lambda: -number,
        lambda: number * 2,
        lambda: float(number),
        lambda: number / 2,
        lambda: math.nextafter(float(number), math.inf),
        lambda: int(number),
        lambda: number * 10**9,
    ]
    try:
        return rng.choice(choices)()
    except (OverflowError, ValueError):
        return 0


PIECES = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b'"', b"\n", b",", b"{", b"}", b"[", b"]", b"\xed\xa0\x80", b"9" * 30]


def changed_bytes(data: bytes, edits: Sequence[int]) -> bytes:
    for edit in edits:
        rng = random.Random(edit)
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 2, 8, 100]))
        kind = rng.randrange(7)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:at] + rng.choice(PIECES) + data[at:]
        elif kind == 3 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif kind == 4:
            data = data[:end] + data[at:]
        elif kind == 5:
            data = data[:at] + rng.randbytes(rng.choice([1, 4, 20])) + data[end:]
        else:
            data = data[:at] + rng.choice(PIECES) + data[end:]
    return data


def json_bytes(values: Any, edits: Sequence[int]) -> bytes:
    """JSON, sometimes with a name that stands there twice, or damaged as bytes."""
    text = json.dumps(values)
    rng = random.Random(sum(edits))
    kind = rng.randrange(8)
    if kind == 0 and isinstance(values, dict) and values:
        name = rng.choice(list(values))
        text = text.replace("{", f"{{{json.dumps(name)}: {json.dumps(rng.choice(NUMBERS))}, ", 1)
    data = text.encode()
    return changed_bytes(data, edits[:1]) if kind == 1 else data


class Failure(AssertionError):
    """A case that did not end in an answer or in one sentence."""


def one_sentence(error: BaseException, *names: object) -> None:
    """Raise unless an error is a ValueError of one line that has the name of the file."""
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError):
        raise Failure(f"{type(error).__name__}: {error}") from error
    check_sentence(str(error), *names)


def check_sentence(text: str, *names: object) -> None:
    if "\n" in text.strip() or len(text) > 5000 or not all(str(name) in text for name in names):
        raise Failure(f"not one sentence with {names}: {text!r}")


def command_line(*arguments: object) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = stop.code
    if status not in (0, 1, 2):
        raise Failure(f"exit status {status}: {err.getvalue()}")
    out.getvalue().encode()  # what cannot be written to a terminal in UTF-8 is an error as well
    return int(status or 0), out.getvalue(), err.getvalue()


def refused(arguments: Sequence[object], *names: object) -> bool:
    """Run a command; whether it ended in exit status 2, which has to be with one sentence that names the file."""
    status, _, err = command_line(*arguments)
    if status == 2:
        last = [line for line in err.splitlines() if line.startswith("adaptdel")]
        if len(last) != 1:
            raise Failure(f"not one sentence: {err!r}")
        check_sentence(last[0], *names)
    return status == 2


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Failure(f"took more than {seconds} s")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def fuzz(name: str, case: Callable[[list[int]], None], cases: int, seed: int) -> None:
    """Run so many cases, each within its time; a failure says by which numbers it is repeated."""
    done = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4))
    def run(edits: list[int]) -> None:
        nonlocal done
        done += 1
        try:
            with limited():
                case(edits)
        except Exception as error:
            raise Failure(f"{type(error).__name__}: {error}\nagain: {name}({edits})") from error

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert done >= cases
    assert grown < MEGABYTES, f"the cases of {name} took {grown} MB"
