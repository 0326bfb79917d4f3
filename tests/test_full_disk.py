"""A full disk: every command that writes ends in one sentence with the file and what to do, and leaves nothing torn."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.run_files import make_data, make_model, run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_model(folder / "model")
    make_data(folder / "data.jsonl", 40)
    assert run("certify", folder / "model", "--data", folder / "data.jsonl", "--out", folder / "run", "--limit", 9) == 0
    return folder


COMMANDS = (
    "train --data data.jsonl --set bits=10",
    "train --data data.jsonl --method exact",
    "calibrate model --data data.jsonl --set examples=20",
    "certify model --data data.jsonl",
    "recertify run --alpha 0.2",
    "report run",
    "attack model --data data.jsonl --inputs 2 --set queries=20",
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda text: text.split()[0])
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, place: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(place)
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert run(*command.split(), "--out", tmp_path / "out") == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"adaptdel: {tmp_path}")
    assert "the disk is full" in sentence
    assert "again" in sentence
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".sqlite"] == []
    assert run(*command.split(), "--out", tmp_path / "out") == 0
