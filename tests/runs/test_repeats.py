"""Occurrences of keys: the same in memory and on the disk, as a plain dictionary counts them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adaptdel.runs import repeats
from adaptdel.runs.inputs import key_of
from adaptdel.runs.repeats import RepeatIndex


def expected(names: list[str]) -> list[tuple[int, int]]:
    seen: dict[str, int] = {}
    found = []
    for row, name in enumerate(names, start=1):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            found.append((row, seen[name]))
    return found


@pytest.mark.parametrize("in_memory", [10**6, 7, 100])
@pytest.mark.parametrize("kinds", [1, 3, 50, 10**9])
def test_occurrences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int, kinds: int) -> None:
    monkeypatch.setattr(repeats, "IN_MEMORY", in_memory)
    rng = random.Random(kinds)
    names = [str(rng.randrange(kinds)) for _ in range(500)]
    with RepeatIndex(tmp_path) as index:
        for row, name in enumerate(names, start=1):
            index.add(key_of(name), row)
        assert list(index.occurrences()) == expected(names)
        assert list(index.occurrences()) == expected(names)
        assert any(tmp_path.iterdir()) == (in_memory <= 500)
    assert not any(tmp_path.iterdir())


def test_no_rows() -> None:
    assert list(RepeatIndex().occurrences()) == []


def test_keys_come_first() -> None:
    index = RepeatIndex()
    list(index.occurrences())
    with pytest.raises(RuntimeError, match="all keys must be added"):
        index.add(key_of("a"), 1)
