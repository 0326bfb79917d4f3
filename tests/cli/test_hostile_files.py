"""Damaged and hostile files: one sentence that names the file and what to do, and nothing half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import Source
from adaptdel.text.data import read_examples
from tests.cli.test_fuzz import Workspace
from tests.run_files import make_data, run


def sentence(action: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        action()
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_that_may_not_be_read_and_paths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sentence(lambda: read_examples("a\0b.csv"))
    locked = make_data(tmp_path / "y.jsonl")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(locked))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert sentence(lambda: read_examples(locked)) == f"{locked}: cannot be read: Permission denied"
    assert sentence(lambda: Source((str(locked),)).facts()) == f"{locked}: cannot be read: Permission denied"
    (tmp_path / "adaptdel.json").touch()
    expected = f"{tmp_path / 'adaptdel.json'}: cannot be read: Permission denied"
    assert sentence(lambda: SmoothedClassifier.load(tmp_path)) == expected


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def parse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("adaptdel.cli.status.is_run", parse)
    assert run("status", "x") == 2
    assert capsys.readouterr().err.startswith("adaptdel: out of memory")


@pytest.mark.parametrize("file", ["adaptdel.json", "training.json", "base/linear.safetensors"])
def test_files_that_are_too_large_or_not_regular(space: Workspace, file: str) -> None:
    folder = space.copy(space.model, "model")
    os.truncate(folder / file, 2**34)
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert str(folder / file) in found
    assert "larger than 256 MiB" in found or "not a safetensors file" in found
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert sentence(lambda: SmoothedClassifier.load(folder)).startswith(f"{folder / file}: not a regular file")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("hostile"))


DELETED = object()


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("plan.alpha", "x", "alpha"),
        ("plan.n_estimate", 2**60, "n_estimate"),
        ("plan.threat", {"ops": [["del"]]}, "ops"),
        ("plan.noise", DELETED, "noise"),
        ("classes", ["a", "b"], "classes"),
        ("options", 3, "options"),
        ("plan.noise", {"kind": "deletion", "rate": 7}, "rate"),
    ],
)
def test_damaged_models(space: Workspace, name: str, value: Any, word: str) -> None:
    folder = space.copy(space.model, "model")
    path = folder / "adaptdel.json"
    values = json.loads(path.read_text())
    *outer, inner = name.split(".")
    place = values[outer[0]] if outer else values
    place[inner] = value
    if value is DELETED:
        del place[inner]
    path.write_text(json.dumps(values))
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{path}: damaged")
    assert word in found


@pytest.mark.parametrize("data", [7, {"columns": [None]}])
def test_a_damaged_training(space: Workspace, data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = space.copy(space.model, "model")
    (folder / "training.json").write_text(json.dumps({"data": data}))
    assert run("certify", folder, "--data", space.data, "--out", space.new("run")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"adaptdel: {folder / 'training.json'}: damaged: ")
