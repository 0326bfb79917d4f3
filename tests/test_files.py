"""Files and folders are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adaptdel.files import NotJSON, parse, parse_object, replacing, replacing_folder, write_json


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


def test_what_a_killed_process_left_is_removed_and_what_another_is_writing_is_not(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "model") as other:
        if not (child := os.fork()):
            with replacing_folder(tmp_path / "model"):
                os._exit(0)
        os.waitpid(child, 0)
        assert len(names(tmp_path)) == 2
        with replacing_folder(tmp_path / "model"):
            pass
        assert names(tmp_path) == sorted([other.name, "model"])


def test_a_folder_that_is_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing_folder(old_model(tmp_path)) as partial:
            (partial / "new").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON: Expecting value (line 1, column 1)"),
        ('{"a": 1, "b": 2, "a": 3}', "the field 'a' is repeated"),
        ('{"a": ' + "9" * 65 + "}", "an integer must have at most 64 digits, got 65"),
        ('{"a": ' + "[" * 32 + "]" * 32 + "}", "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_one_parser_reads_all_json(content: str, message: str) -> None:
    """`parse` and `parse_object` reject the same texts with the same messages, as text and as bytes."""
    for read in (parse, parse_object):
        for given in (content, content.encode()):
            with pytest.raises(ValueError) as error:
                read(given)
            assert str(error.value) == message
            assert isinstance(error.value, NotJSON) == message.startswith("not JSON")


def test_json_in_bytes_objects_and_numbers() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": [1, 2.5]}') == parse('{"a": [1, 2.5]}') == {"a": [1, 2.5]}
    assert parse_object('{"a": Infinity}') == {"a": float("inf")}
    for content in ('{"a": Infinity}', '{"a": 1e999}', '{"a": NaN}'):
        with pytest.raises(ValueError, match=r"a number must be finite, got (Infinity|1e999|NaN)$"):
            parse_object(content, finite=True)
    with pytest.raises(ValueError, match=r"^it must hold an object$"):
        parse_object("[1]")
    with pytest.raises(ValueError, match=r"^not UTF-8 \(invalid start byte\)$"):
        parse(b"\xff")
