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
from tests.run_files import make_data, make_model, run


def sentence(action: Callable[[], object]) -> str:
    """What a ValueError says, in one line."""
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
    assert sentence(lambda: Source(str(locked)).identity()) == f"{locked}: cannot be read: Permission denied"
    (tmp_path / "adaptdel.json").touch()
    expected = f"{tmp_path / 'adaptdel.json'}: cannot be read: Permission denied"
    assert sentence(lambda: SmoothedClassifier.load(tmp_path)) == expected


def test_certify_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "x.jsonl")
    assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--encoding", "rot13") == 2
    assert capsys.readouterr().err.startswith(f"adaptdel: {data}: ")
    assert not (tmp_path / "run").exists()


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def parse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("adaptdel.cli.status.is_attack_run", parse)
    assert run("status", "x") == 2
    assert capsys.readouterr().err.startswith("adaptdel: out of memory")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("hostile"))


DELETED = object()


@pytest.mark.parametrize(
    ("file", "changes", "word"),
    [
        ("adaptdel.json", {"alpha": "x"}, "alpha"),
        ("adaptdel.json", {"n_estimate": 2**60}, "n_estimate"),
        ("adaptdel.json", {"ops": [["del"]]}, "ops"),
        ("adaptdel.json", {"threshold": DELETED}, "threshold"),
        ("adaptdel.json", {"classes": ["a", "b"]}, "classes"),
        ("adaptdel.json", {"options": 3}, "options"),
        ("adaptdel.json", {"noise": {"kind": "deletion", "rate": 7}}, "rate"),
        ("training.json", {"data": DELETED}, "data"),
        ("training.json", {"held_out": 7}, ""),
        (
            "training.json",
            {"data": {"rows": 1, "mean_length": 1, "held_out": 0, "digest": "", "columns": [None]}},
            "columns",
        ),
        ("calibration.json", {"classes": [3]}, ""),
    ],
)
def test_damaged_models(space: Workspace, file: str, changes: dict[str, Any], word: str) -> None:
    folder = space.copy(space.model, "model")
    path = folder / file
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not DELETED}))
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{path}: damaged")
    assert word in found


@pytest.mark.parametrize("file", ["adaptdel.json", "training.json", "base/linear.safetensors"])
def test_files_that_do_not_fit_into_memory(space: Workspace, file: str) -> None:
    path = space.copy(space.model, "model") / file
    os.truncate(path, 2**34)
    found = sentence(lambda: SmoothedClassifier.load(space.root / "work" / "model"))
    assert str(path) in found
    assert "larger than 256 MiB" in found or "not a safetensors file" in found


@pytest.mark.parametrize("file", ["adaptdel.json", "training.json", "base/linear.safetensors"])
def test_files_of_a_model_must_be_regular(space: Workspace, file: str) -> None:
    folder = space.copy(space.model, "model")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert sentence(lambda: SmoothedClassifier.load(folder)).startswith(f"{folder / file}: not a regular file")
