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

from adaptdel.text.data import (
    Row,
    content_digest,
    fold_of,
    label_text,
    label_value,
    read_each_row,
    read_examples,
    read_rows,
)

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


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_json_gives_the_same_rows(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "data.json"
    path.write_text("\n " + json.dumps(RECORDS, indent=indent), encoding="utf-8-sig")
    assert list(read_rows(path)) == [Row(i, r["text"], r["label"]) for i, r in enumerate(RECORDS, start=1)]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_the_separator_of_a_csv_file_is_detected(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f'text{mark}label\n"a{mark} b, c"{mark}1\nd{mark}0\n', encoding="utf-8")
    assert [(row.text, row.label) for row in read_rows(path)] == [(f"a{mark} b, c", 1), ("d", 0)]
    path.write_text("text\na;b\n", encoding="utf-8")  # one column
    assert [row.text for row in read_rows(path)] == ["a;b"]


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    texts = [("x", "ham"), ("x", "ham"), ("y", "Ham "), ("y", "ham"), ("y", "ham"), ("z", 1), ("z", 2), ("  ", "ham")]
    path = write(tmp_path, "jsonl", [{"text": text, "label": label} for text, label in texts])
    examples = read_examples(path)
    assert len(examples.texts) == 7
    assert examples.notes == [
        "1 empty texts were skipped",
        "4 texts are repeated",
        "texts with different labels: 2, most copies of 'y': 1 as 'Ham ', 2 as 'ham'",
        "labels differ in case or spaces only: 'Ham ' and 'ham': are they the same class?",
    ]


@pytest.mark.parametrize(
    ("name", "data", "where", "word"),
    [
        ("x.jsonl", b'{"text": "a", "label": 0}\n{"text"', ", row 2", "not JSON"),
        ("x.jsonl", b"7", ", row 1", "must be a JSON object"),
        ("x.jsonl", b"{" * 100_000, ", row 1", "not JSON"),
        ("x.jsonl", b'{"text": "\xff", "label": 0}', ", row 1", "not UTF-8"),
        ("x.jsonl", b'{"text": "a", "label": "\\ud800"}', ", row 1", "'label' holds"),
        ("x.jsonl", b'{"txt": "a", "label": 0}', ", row 1", "did you mean 'txt'"),
        ("x.jsonl", b'{"text": 3, "label": 0}', ", row 1", "must hold text, got 3"),
        ("x.jsonl", b'{"text": "a", "label": 0.5}', ", row 1", "'label' must hold"),
        ("x.jsonl", b'{"text": "a", "label": null}', "", "no row has a label in the column 'label'"),
        ("x.jsonl", b"", "", "holds no rows"),
        ("x.jsonl", b'{"text": " ", "label": 0}', "", "holds no text that is not empty"),
        ("x.json", b'[{"text": "a", "label": 0}, {"text": "b"', "", "array of objects"),
        ("x.json", b'[{"text": "a", "label": 0}, 7]', ", row 2", "must be a JSON object, got 7"),
        ("x.csv", b"", "", "holds no rows"),
        ("x.csv", b"text,text\n", "", "twice: 'text', 'text'"),
        ("x.csv", b"text,label\na,1\nb\n", ", row 2", "must have 2 fields"),
        ("x.csv", b"text,label\na\xe9,1\n", ", row 1", "not UTF-8"),
        ("x.csv", b'text,label\n"a,1\n', "", "double quotes"),
        ("x.parquet", b"PAR1" + bytes(8) + b"PAR1", "", "cannot be read"),
        ("x.jsonl.gz", gzip.compress(b'{"text": "a", "label": 0}\n' * 99, mtime=0)[:-20], "", "cannot be read"),
        ("x.jsonl.gz", b"nonsense", "", "cannot be read"),
        ("x.docx", b"nonsense", "", "must be a .jsonl"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, name: str, data: bytes, where: str, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        read_examples(path)
    assert str(error.value).startswith(f"{path}{where}")
    assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_an_encoding_can_be_named(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"x.{kind}"
    text = "text,label\ncafé,1\nb,0\n" if kind == "csv" else '{"text": "café", "label": 1}\n{"text": "b", "label": 0}\n'
    path.write_bytes(text.encode(encoding))
    assert read_examples(path, encoding=encoding).texts == ["café", "b"]
    with pytest.raises(ValueError, match="'rot13'"):
        read_examples(path, encoding="rot13")


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n{"text": "a"}\nnonsense\n{"text": "\xff"}\n{"text": "b"}\n')
    assert [(row.number, isinstance(row, Row)) for row in read_each_row(path)] == [
        (1, True), (2, False), (3, False), (4, True),
    ]  # fmt: skip


def test_columns_of_parquet_that_are_not_wanted_do_not_matter(tmp_path: Path) -> None:
    times = pa.array([2**62 + 1], pa.timestamp("ns"))  # no date of Python's
    table = pa.table({"other": times, "text": pa.array(["a"]).dictionary_encode(), "label": [True]})
    pq.write_table(table, tmp_path / "X.PARQUET")
    assert list(read_rows(tmp_path / "X.PARQUET")) == [Row(1, "a", 1)]
    with pytest.raises(ValueError, match="there are 'other', 'text', 'label'"):
        list(read_rows(tmp_path / "X.PARQUET", text="body"))


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
    with pytest.raises(ValueError, match=r"^gone: .*neither a file nor a data set"):
        list(read_rows("gone"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'adaptdel\[datasets\]'$"):
        list(read_rows("reviews"))


def test_a_fold_depends_on_words_and_seed() -> None:
    texts = [f"text {number}" for number in range(4000)]
    folds = [fold_of(text, 4, 1) for text in texts]
    assert folds == [fold_of(f" {text.replace(' ', '  ')}", 4, 1) for text in texts]
    assert all(900 < folds.count(number) < 1100 for number in range(4))
    assert 900 < sum(fold_of(text, 4, 2) == fold for text, fold in zip(texts, folds, strict=True)) < 1100


def test_empty_columns_without_a_name_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "spam.csv").write_text("v1,v2,,,\nham,see you,,,\n1,at noon,,,\n")
    examples = read_examples(tmp_path / "spam.csv", text="v2", label="v1")
    assert (examples.texts, examples.labels) == (["see you", "at noon"], ["ham", "1"])  # not all integers: all names
    with pytest.raises(ValueError, match="there are 'v1', 'v2': name it with --text-column"):
        read_examples(tmp_path / "spam.csv")


def test_labels_are_written_alike_whichever_string_object_they_are() -> None:
    first, second = "".join(["ha", "m"]), "".join(["h", "am"])
    assert label_value(first) == first
    assert label_text(second) == "ham"
