"""Files and folders are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adaptdel.files import replacing, replacing_folder, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def old_model(folder: Path) -> Path:
    (folder / "model").mkdir()
    (folder / "model" / "old").write_text("precious")
    return folder / "model"


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    with replacing_folder(old_model(tmp_path)) as partial:
        (partial / "new").write_text("x")
        assert (tmp_path / "model" / "old").exists()  # until the end
    assert names(tmp_path) == ["model", "model/new"]


def test_a_folder_that_is_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing_folder(old_model(tmp_path)) as partial:
            (partial / "new").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["model", "model/old"]


def test_a_check_before_the_end_may_refuse(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ValueError("something came in")

    with pytest.raises(ValueError, match="came in"), replacing_folder(old_model(tmp_path), refuse):
        pass
    assert names(tmp_path) == ["model", "model/old"]


def test_a_folder_that_cannot_be_put_in_place_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, moves = old_model(tmp_path), os.replace, []

    def failing(source: Any, target: Any) -> None:
        moves.append(source)
        if len(moves) == 2:
            raise OSError("no")
        real(source, target)

    monkeypatch.setattr("adaptdel.files.os.replace", failing)
    with pytest.raises(OSError, match="no"), replacing_folder(path) as partial:
        (partial / "new").write_text("x")
    assert names(tmp_path) == ["model", "model/old"]


def test_a_file_that_is_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert names(tmp_path) == ["a.json"]
    assert path.read_text() == '{\n  "a": 1\n}\n'
