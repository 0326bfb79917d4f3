"""Damaged and hostile files: one sentence that names the file and what to do, and nothing half-written."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import Source
from adaptdel.text.data import read_examples, read_rows
from adaptdel.text.file_formats import LONGEST, records
from tests.cli.test_fuzz import Workspace
from tests.run_files import make_data, make_model, run

ROWS = [{"text": f"w{number} words", "label": number % 2} for number in range(9)]
NAMED = [{"text": "a"}, {"text": "b"}]


def sentence(action: Callable[[], object]) -> str:
    """What a ValueError says, in one line."""
    with pytest.raises(ValueError) as error:
        action()
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)
    return str(error.value)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "encoding",
    ["idna", "punycode", "undefined", "unicode_escape", "rot13", "hex", "zip", "no such", "", "a\0b", "é"],
)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_is_no_encoding_of_text_is_refused_with_the_file(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        parquet(path, text=["a"], label=[0])
    else:
        path.write_text("text,label\na,0\n" if kind == "csv" else '{"text": "a", "label": 0}')
    expected = f"{path}: the encoding must be one of text, such as utf-8, utf-16 or latin-1, got {encoding!r}"
    assert sentence(lambda: read_examples(path, encoding=encoding)) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "cp037", "utf-7", "utf-8-sig"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_wide_encodings_are_read(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"x.{kind}"
    text = "text,label\ncafé,1\nb,0\n" if kind == "csv" else '{"text": "café", "label": 1}\n{"text": "b", "label": 0}\n'
    path.write_bytes(text.encode(encoding))
    assert read_examples(path, encoding=encoding).texts == ["café", "b"]


@pytest.mark.parametrize(
    ("name", "data", "encoding", "words"),
    [
        ("x.csv", b"text,label\na,1\n", "utf-16", ", row 1: not UTF-16 (UTF-16 stream does not start with BOM): save"),
        ("x.csv", b"text,label\na,1\n", "utf-32", ", row 1: not UTF-32 ("),
        ("x.jsonl", b'{"text": "a", "label": 1}', "utf-16", ", row 1: not UTF-16 ("),
        ("x.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}", "utf-8", ", row 1: not JSON that can be read ("),
        ("x.jsonl", b"[" * 100_000, "utf-8", ", row 1: not JSON that can be read (nested too deeply)"),
        (
            "x.jsonl",
            b'{"text": "a", "label": 1e300}',
            "utf-8",
            ", row 1: the column 'label' must hold names or numbers",
        ),
        (
            "x.jsonl",
            b'{"text": "a", "label": "\\ud800"}',
            "utf-8",
            ", row 1: the column 'label' holds half of a surrog",
        ),
        ("x.csv", b"text,label\na,\xe9\n", "utf-8", ", row 1: not UTF-8: save the file as UTF-8"),
        ("x.csv", b'text,label\n"a"b,1\n', "utf-8", ", row 1: not CSV: ',' expected after '\"': put fields that hold"),
        ("x.csv", b"\xe9,\xe9\n", "utf-8", ": the header names a column twice: '\\udce9', '\\udce9': give every col"),
        (
            "x.parquet.gz",
            gzip.compress(b"nonsense", mtime=0),
            "utf-8",
            ": not a Parquet file: write or copy it again (",
        ),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, encoding: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert sentence(lambda: read_examples(path, encoding=encoding)).startswith(f"{path}{words}")


def test_a_mark_at_the_beginning_and_large_letters_in_the_ending(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a", "label": 1}')
    assert read_examples(path).texts == ["a"]
    path = tmp_path / "X.CSV"
    path.write_text("text,label\na,1\nb,0\n")
    assert read_examples(path).labels == [1, 0]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", text=[f"text {number}" for number in range(5000)], label=[0, 1] * 2500)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    damaged = {
        "": b"PAR1" + b"\0" * 8 + b"PAR1",
        "footer": data[: -8 - size] + bytes(size) + data[-8:],
        "pages": data[:4] + b"\xff" * 3000 + data[3004:],
        "half": data[: len(data) // 2],
    }
    for content in damaged.values():
        path.write_bytes(content)
        assert sentence(lambda: read_examples(path)).startswith(
            (f"{path}: not a Parq", f"{path}: the Parquet file is d")
        )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": [["a"]], "label": [0]}, "the column 'text' must hold text, got the type list<"),
        ({"text": [b"\xff"], "label": [0]}, "the column 'text' must hold text, got the type binary"),
        ({"text": [None], "label": [0]}, "the column 'text' must hold text, got the type null"),
        (
            {"text": ["a"], "label": [{"a": 1}]},
            "the column 'label' must hold whole numbers or names, got the type struct",
        ),
        ({"text": ["a"], "label": pa.array([1], pa.timestamp("ns"))}, "the column 'label' must hold whole numbers or"),
        ({"body": ["a"], "label": [0]}, "no column 'text': there are 'body', 'label'"),
    ],
)
def test_odd_types_of_parquet(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    path = parquet(tmp_path / "x.parquet", **columns)
    assert sentence(lambda: list(read_rows(path))).startswith(f"{path}: {words}")


def test_columns_that_are_not_wanted_do_not_matter(tmp_path: Path) -> None:
    times = pa.array([2**62 + 1], pa.timestamp("ns"))  # no date of Python's
    path = parquet(
        tmp_path / "x.parquet", id=times, other=times, text=pa.array(["a"]).dictionary_encode(), label=[True]
    )
    [row] = read_rows(path)
    assert (row.text, row.label) == ("a", 1)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.text.file_formats.LONGEST", 100)
    for name in ("x.jsonl", "x.csv"):
        path = tmp_path / name
        path.write_text("text,label\n" if name == "x.csv" else '{"text": "a", "label": 0}\n')
        with path.open("a") as file:
            file.write("x" * 200)
        found = sentence(lambda path=path: read_examples(path))  # type: ignore[misc]
        assert found.startswith((f"{path}, row 2: longer than 100 characters", f"{path}, row 1: not CSV: field larger"))
    csv.field_size_limit(LONGEST)  # all programs in a process share it
    assert LONGEST >= 10**8


def test_files_that_may_not_be_read_and_paths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv"
    path.mkdir()
    assert sentence(lambda: read_examples(path)).endswith("or a folder of such files; got a folder without any")
    assert "no such file" in sentence(lambda: list(records("a\0b.csv", "utf-8")))
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


def test_a_data_set_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    def stream(*_: object, **__: object) -> Iterator[dict[str, Any]]:
        yield {"text": "a", "label": 0}
        raise RuntimeError("connection lost")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=stream))
    assert sentence(lambda: list(read_rows("reviews"))) == "reviews: cannot be read after row 1: connection lost"


def test_certify_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "x.jsonl")
    assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--encoding", "idna") == 2
    assert capsys.readouterr().err.startswith(f"adaptdel: {data}: the encoding must be")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("hostile"))


DELETED = object()


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("adaptdel.json", {"alpha": "x"}, "damaged: alpha must be a number, got 'x'"),
        ("adaptdel.json", {"alpha": 7}, "damaged: alpha must be in (0, 1), got 7"),
        ("adaptdel.json", {"n_select": None}, "damaged: n_select must be a whole number, got None"),
        ("adaptdel.json", {"n_estimate": 2**60}, "damaged: n_estimate must be a whole number"),
        ("adaptdel.json", {"ops": "edit"}, "damaged: ops must be a list, got 'edit'"),
        ("adaptdel.json", {"ops": [["del"]]}, "damaged: "),
        ("adaptdel.json", {"bound": "loose"}, "damaged: bound must be one of"),
        ("adaptdel.json", {"seed": -1}, "damaged: seed must be"),
        ("adaptdel.json", {"threshold": DELETED}, "damaged: threshold is missing"),
        ("adaptdel.json", {"fingerprint": DELETED}, "damaged: fingerprint is missing"),
        ("adaptdel.json", {"classes": ["a", "b"]}, "damaged: its classes are not those of the base classifier"),
        (
            "adaptdel.json",
            {"base": "pickle"},
            "a base classifier of the kind 'pickle' is not registered, only ",
        ),
        ("adaptdel.json", {"base": []}, "damaged: base must be a text, got []"),
        ("adaptdel.json", {"options": 3}, "damaged: options must be an object, got 3"),
        ("adaptdel.json", {"noise": {"kind": "deletion", "rate": 7}}, "damaged: "),
        ("training.json", {"seed": "x"}, "damaged: seed must be a whole number, got 'x'"),
        ("training.json", {"data": []}, "damaged: data must be an object, got []"),
        ("training.json", {"history": []}, "damaged: history must hold an object for every epoch"),
        ("training.json", {"validation": 7.5}, "damaged: validation must be a probability in [0, 1], got 7.5"),
        ("training.json", {"noise": {}}, "damaged: the kind of a noise must be one of"),
        ("calibration.json", {"warnings": 5}, "damaged: warnings must be a list, got 5"),
    ],
)
def test_damaged_models(space: Workspace, file: str, changes: dict[str, Any], words: str) -> None:
    folder = space.copy(space.model, "model")
    path = folder / file
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not DELETED}))
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{path}: {words}")
    assert "damaged" not in words or found.endswith(": save or copy the model anew")


@pytest.mark.parametrize("file", ["adaptdel.json", "training.json", "calibration.json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON: Expecting value (line 1, column 1)"),
        (b"\xff", "not UTF-8 (invalid start byte)"),
        (b"[1]", "it must hold an object"),
        (b'{"a": 1, "a": 2}', "the field 'a' is repeated"),
        (b'{"a":' * 5000, "nested too deeply"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a whole number must have at most 64 digits, got 5000"),
    ],
)
def test_json_that_is_none(space: Workspace, file: str, content: bytes, words: str) -> None:
    folder = space.copy(space.model, "model")
    (folder / file).write_bytes(content)
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{folder / file}: not a file of a saved model: {words}")
    assert found.endswith(": write or copy it again")


def test_models_with_missing_parts(space: Workspace) -> None:
    folder = space.copy(space.model, "model")
    shutil.rmtree(folder / "base")
    expected = f"{folder / 'base'}: missing from a saved model: save or copy the model anew"
    assert sentence(lambda: SmoothedClassifier.load(folder)) == expected
    folder = space.copy(space.model, "model")
    (folder / "base" / "linear.json").write_bytes(b"[" * 100_000)
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found == f"{folder / 'base' / 'linear.json'} must be a JSON file: nested too deeply"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))


def test_a_model_of_any_unit_and_noise_is_loaded(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{"unit": "char"}, {"unit": "chunk:3"}, {"ops": ("del",)}, {"threshold": 0.3}]
    for number, settings in enumerate(kinds):
        folder = make_model(tmp_path / str(number), Deletion(FixedRate(0.5)), **settings)
        assert SmoothedClassifier.load(folder).certify(["w1 w2"])[0].length in (2, 5)
