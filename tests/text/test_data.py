"""Labelled files: every format gives the same rows, and what is wrong is said with file and row."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel.text.data import Row, content_digest, held_out, read_examples, read_rows

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "good, really\ngood", "label": 1},
    {"id": "b", "text": 'bad "film"', "label": 0},
    {"id": "c", "text": "ünïcode \u2028 line", "label": 1},
]


def write(folder: Path, kind: str, records: list[dict[str, Any]] = RECORDS) -> Path:
    path = folder / f"data.{kind}"
    bare = kind.removesuffix(".gz")
    if bare == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
        data = path.read_bytes()
    elif bare == "jsonl":
        data = "\n".join(json.dumps(record, ensure_ascii=False) for record in records).encode()
    else:
        mark = "\t" if bare == "tsv" else ","
        lines = [mark.join(records[0])]
        lines += [mark.join('"' + str(v).replace('"', '""') + '"' for v in record.values()) for record in records]
        data = "\r\n".join(lines).encode("utf-8-sig")
    path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "parquet", "parquet.gz"])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = list(read_rows(write(tmp_path, kind)))
    assert rows == [Row(i, r["text"], r["label"]) for i, r in enumerate(RECORDS, start=1)]
    assert read_examples(write(tmp_path, kind)).digest == content_digest(
        [r["text"] for r in RECORDS], [r["label"] for r in RECORDS]
    )


def test_names_of_classes_are_kept_and_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", [{"body": "one", "kind": "spam"}, {"body": "two", "kind": "1"}])
    examples = read_examples(path, text="body", label="kind")
    assert examples.labels == ["spam", "1"]  # not all whole numbers: all names


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_json_gives_the_same_rows(
    tmp_path: Path, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.json"
    path.write_text("\n " + json.dumps(RECORDS, indent=indent), encoding="utf-8-sig")
    expected = [Row(i, r["text"], r["label"]) for i, r in enumerate(RECORDS, start=1)]
    for size in (7, 64, 2**20):  # elements may be cut anywhere
        monkeypatch.setattr("adaptdel.text.file_formats.CHUNK", size)
        assert list(read_rows(path)) == expected


@pytest.mark.parametrize("mark", [";", "\t"])
def test_the_separator_of_a_csv_file_is_detected(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f'text{mark}label\n"a{mark} b, c"{mark}1\nd{mark}0\n', encoding="utf-8")
    assert [(row.text, row.label) for row in read_rows(path)] == [(f"a{mark} b, c", 1), ("d", 0)]
    path.write_text("text\na;b\n", encoding="utf-8")  # one column
    assert [row.text for row in read_rows(path)] == ["a;b"]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "csv.gz", "parquet"])
def test_standard_input_gives_the_same_rows_as_often_as_it_is_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with write(tmp_path, kind).open("rb") as file:
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=file))
        rows = [Row(i, r["text"], r["label"]) for i, r in enumerate(RECORDS, start=1)]
        assert list(read_rows("-")) == list(read_rows("-")) == rows
    with pytest.raises(ValueError, match=r"^standard input(, row 1)?: no column 'body'"):
        list(read_rows("-", text="body"))


def test_rows_without_a_label_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = [
        {"text": "one", "label": 1},
        {"text": "two", "label": None},
        {"text": "three"},
        {"text": "four", "label": 0},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    examples = read_examples(path)
    assert (examples.texts, examples.labels) == (["one", "four"], [1, 0])
    assert examples.notes == ["skipped 2 rows without a label in the column 'label', the first is row 2"]


def test_labels_are_optional_for_rows_only(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", [{"text": "one"}])
    assert list(read_rows(path)) == [Row(1, "one", None)]
    with pytest.raises(
        ValueError, match=r"data.jsonl, row 1: no column 'label': there are 'text'; name one with --label-column$"
    ):
        read_examples(path)


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    texts = [("x", 0), ("x", 0), ("y", 1), ("y", 0), ("  ", 0)]
    path = write(tmp_path, "jsonl", [{"text": text, "label": label} for text, label in texts])
    examples = read_examples(path)
    assert len(examples.texts) == 4
    assert examples.notes == [
        "1 empty texts were skipped",
        "2 texts are repeated",
        "1 texts occur with different labels",
    ]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.jsonl", b'{"text": "a", "label": 0}\n{"text"', "x.jsonl, row 2: not JSON (Expecting ':' delimiter): every"),
        ("x.jsonl", b"[1, 2]", "x.jsonl, row 1: must be a JSON object, got '[1, 2]'"),
        (
            "x.jsonl",
            b'{"text": "\xff", "label": 0}',
            "x.jsonl, row 1: not UTF-8 (invalid start byte): save the file as",
        ),
        ("x.jsonl", b'{"txt": "a", "label": 0}', "x.jsonl, row 1: no column 'text': did you mean 'txt'?"),
        ("x.jsonl", b'{"text": 3, "label": 0}', "x.jsonl, row 1: the column 'text' must hold text, got 3"),
        ("x.jsonl", b'{"text": "a", "label": 0.5}', "x.jsonl, row 1: the column 'label' must hold whole numbers or"),
        ("x.jsonl", b'{"text": "a", "label": null}', "x.jsonl, row 1: no label in the column 'label': give every row"),
        ("x.jsonl", b"", "x.jsonl: holds no rows"),
        ("x.jsonl", b'{"text": " ", "label": 0}', "x.jsonl: holds no text that is not empty"),
        ("x.json", b'[{"text": "a", "label": 0}, {"text": "b"', "x.json, row 2: not JSON: the file must hold an array"),
        ("x.json", b'[{"text": "a", "label": 0}] {', "x.json, row 2: not JSON: there is text after the end of the"),
        ("x.json", b'[{"text": "a", "label": 0}, 7]', "x.json, row 2: must be a JSON object, got 7"),
        ("x.json", b"[]", "x.json: holds no rows"),
        ("x.csv", b"", "x.csv: the file is empty"),
        ("x.csv", b"text,text\n", "x.csv: the header names a column twice: 'text', 'text': give every column"),
        ("x.csv", b"text,label\na,1\nb\n", "x.csv, row 2: must have 2 fields as the header has, got 1"),
        ("x.csv", b"text,label\na\xe9,1\n", "x.csv, row 1: not UTF-8: save the file as UTF-8, or name its encoding"),
        ("x.csv", b'text,label\n"a,1\n', "x.csv, row 1: not CSV: unexpected end of data"),
        ("x.parquet", b"nonsense", "x.parquet: not a Parquet file:"),
        (
            "x.jsonl.gz",
            gzip.compress(b'{"text": "a", "label": 0}\n' * 99, mtime=0)[:-20],
            "x.jsonl.gz: the gzip file is damaged",
        ),
        ("x.jsonl.gz", b"nonsense", "x.jsonl.gz: the gzip file is damaged after row 0: create or copy it again"),
        ("x.docx", b"nonsense", "x.docx: must be a .jsonl, .json, .csv, .tsv or .parquet file, also with .gz, - for"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        read_examples(path)
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith(sentence)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing.csv: there is no such file$"):
        read_examples(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match=r"must be a .jsonl, .json, .csv"):
        read_examples(tmp_path)


def test_an_encoding_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    assert read_examples(path, encoding="latin-1").texts == ["café"]


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\nnonsense\n{"text": "\xff"}\n{"text": "b"}\n')
    found: list[tuple[int, str]] = []
    rows = list(read_rows(path, on_problem=lambda number, sentence: found.append((number, sentence))))
    assert [(row.number, row.text) for row in rows] == [(1, "a"), (4, "b")]
    assert [number for number, _ in found] == [2, 3]


def test_data_sets_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, *, split: str, streaming: bool) -> list[dict[str, Any]]:
        asked.append((path, split, streaming))
        if path == "gone":
            raise FileNotFoundError("Dataset 'gone' doesn't exist on the Hub")
        return [{"text": "a b", "label": 3}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert list(read_rows("some/reviews:test")) == [Row(1, "a b", 3)]
    assert list(read_rows("reviews")) == [Row(1, "a b", 3)]
    assert asked == [("some/reviews", "test", True), ("reviews", "train", True)]
    with pytest.raises(ValueError, match=r"^gone: neither a file nor a data set that can be read: Dataset 'gone'"):
        list(read_rows("gone"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'adaptdel\[datasets\]'$"):
        list(read_rows("reviews"))


def test_duplicates_are_held_out_together_and_shares_hold() -> None:
    texts = [f"text {number}" for number in range(4000)]
    assert [held_out(text, 0.25, 1) for text in texts] == [held_out(text, 0.25, 1) for text in texts]
    assert 900 < sum(held_out(text, 0.25, 1) for text in texts) < 1100
    assert sum(held_out(text, 0.25, 1) and held_out(text, 0.25, 2) for text in texts) < 350  # seeds are independent
    assert not any(held_out(text, 0.0, 0) for text in texts)


def test_empty_columns_without_a_name_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "spam.csv").write_text("v1,v2,,,\nham,see you,,,\n")
    examples = read_examples(tmp_path / "spam.csv", text="v2", label="v1")
    assert (examples.texts, examples.labels) == (["see you"], ["ham"])
