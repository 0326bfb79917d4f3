"""Fingerprints of functions and objects: what differs has another one, and what cannot be seen has none."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adaptdel.classifiers.fingerprint import fingerprint

WORDS = ["good"]


def by_closure(word: str) -> Callable[[list[str]], list[bool]]:
    return lambda copies: [word in copy for copy in copies]


def by_default(word: str) -> Callable[[list[str]], list[bool]]:
    def function(copies: list[str], word: str = word) -> list[bool]:
        return [word in copy for copy in copies]

    return function


def by_constant(word: str) -> Any:
    space: dict[str, Any] = {"__name__": __name__}
    exec(f"def function(copies): return [{word!r} in copy for copy in copies]", space)
    return space["function"]


def by_inner_function(word: str) -> Callable[[list[str]], list[bool]]:
    inner = by_constant(word)
    return lambda copies: list(inner(copies))


def by_class(word: str) -> Any:
    return type("Model", (), {"__call__": by_constant(word), "__module__": __name__})()


@dataclass
class Model:
    word: Any
    itself: Any = None

    def __call__(self, copies: list[str]) -> list[bool]:
        return [self.word in copy for copy in copies]


def with_itself(word: str) -> Model:
    model = Model(word)
    model.itself = {"me": model}
    return model


class Wrapper:
    """An object that takes the name of the function that it wraps."""

    def __init__(self, word: str) -> None:
        functools.update_wrapper(self, by_constant("x"))
        self.word = word

    def __call__(self, copies: list[str]) -> list[bool]:
        return [self.word in copy for copy in copies]


class Reticent(Model):
    """What a pickle would hold does not tell its answers."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Nameless(Model):
    def __reduce__(self) -> str:
        return "nameless"


def by_metaclass(word: str) -> Any:
    return type("Meta", (type,), {"word": word})("Made", (Model,), {})(1)


def by_order(word: str) -> Callable[[list[str]], list[Any]]:
    rules = {"good": 1, "awful": 2} if word == "good" else {"awful": 2, "good": 1}
    return lambda copies: [next((label for rule, label in rules.items() if rule in copy), 0) for copy in copies]


def by_module(word: str) -> Callable[[list[str]], list[bool]]:
    """A variable of a module, which another module uses."""
    helper, inner = ModuleType("helper"), ModuleType("inner")
    inner.__file__ = helper.__file__ = __file__
    inner.word, helper.inner = word, inner  # type: ignore[attr-defined]
    return lambda copies: [helper.inner.word in copy for copy in copies]


def by_cycle(word: str) -> Any:
    """Two lists of the same shape: one holds the way back to itself, the other the way to the first."""
    first, second = Model("x"), Model("y")
    first.itself = {"back": first}
    second.itself = first.itself if word == "good" else {"back": second}
    return [first, second]


def by_decorator(word: str) -> Any:
    function = by_constant("x")

    @functools.lru_cache
    @functools.wraps(function)
    def decorated(copies: Any) -> Any:
        return [word, function(copies)]

    return decorated


MAKERS: list[Callable[[str], Any]] = [
    by_closure,
    by_default,
    by_constant,
    by_inner_function,
    by_class,
    Model,
    with_itself,
    lambda word: functools.partial(by_constant("x"), [word]),
    lambda word: functools.lru_cache(by_constant(word)),
    lambda word: Model(word).__call__,
    lambda word: Model(np.array([word], dtype=object)),
    lambda word: Model(np.array([len(word)])),
    lambda word: Model({word: 1, "a": 2}),
    lambda word: Model({1, word}),
    lambda word: word.join,
    lambda word: word.__contains__,
    lambda word: re.compile(word).search,
    lambda word: Model(np.ma.array([1.0], mask=[word == "good"])),
    Wrapper,
    Reticent,
    Nameless,
    by_metaclass,
    by_order,
    by_module,
    by_cycle,
    by_decorator,
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_answers_differently_has_another_fingerprint(make: Callable[[str], Any]) -> None:
    first, again, other = (fingerprint(make(word)) for word in ("good", "good", "awful"))
    assert first == again != other
    assert first


def test_global_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(copies: list[str]) -> list[bool]:
        return [WORDS[0] in copy for copy in copies]

    first = fingerprint(function)
    monkeypatch.setitem(globals(), "WORDS", ["bad"])
    assert fingerprint(function) != first


@pytest.mark.parametrize("state", [threading.Lock(), (number for number in range(3)), np.frompyfunc(str, 1, 1)])
def test_what_cannot_be_seen_has_none(state: Any) -> None:
    assert fingerprint(Model(state)) == ""
    assert fingerprint(lambda copies: [state for _ in copies]) == ""


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from adaptdel.classifiers.fingerprint import fingerprint\n"
        "import re, numpy as np\nSEEN = {'b', 'a', 'c'}\n"
        "def f(copies):\n    return [re.search('x', c) and c in SEEN and np.pi for c in copies]\n"
        "class A:\n    def predict(self, copies):\n        self.x = 1\n        return f(copies)\n"
        "print(fingerprint(A()), fingerprint(f))"
    )
    runs = [subprocess.run([sys.executable, program], capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.split()) == 2
