"""Occurrences of keys: the same in memory and on the disk, as a plain dictionary counts them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adaptdel.runs import repeats
from adaptdel.runs.inputs import key_of
from adaptdel.runs.repeats import RepeatIndex
from tests.run_files import run, write_rows


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


def test_files_of_keys_do_not_stay_behind(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data are read before there is a manifest: after an error or a kill the same folder can be used."""
    monkeypatch.setattr(repeats, "IN_MEMORY", 4)
    out = tmp_path / "run"
    rows = [{"id": str(number % 20), "text": f"alpha w{number}", "label": 0} for number in range(21)]
    assert run("certify", model, "--data", write_rows(tmp_path / "twice.jsonl", rows), "--out", out) == 2
    assert "rows 1 and 21: both have the id '0'" in capsys.readouterr().err
    assert not out.exists()
    (out / f"{repeats.PREFIX}killed").mkdir(parents=True)
    assert run("certify", model, "--data", write_rows(tmp_path / "once.jsonl", rows[:20]), "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["certificates.parquet", "manifest.json", "times.parquet"]
