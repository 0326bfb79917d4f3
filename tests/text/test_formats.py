"""Several files, globs, folders and addresses: the same rows as one file, and a sentence for what cannot be read."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel.runs.inputs import DataFacts, Source
from adaptdel.text.data import Row, read_examples, read_rows
from adaptdel.text.formats import data_files

fsspec = pytest.importorskip("fsspec")
ROWS = [{"text": f"text {number}", "label": number % 2} for number in range(9)]


def lines(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of three rows, and files that other tools leave."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(lines(ROWS[:3]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[3:6])))
    (folder / "more" / "c.jsonl").write_bytes(lines(ROWS[6:]))
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / ".hidden.csv").write_bytes(b"x")
    (folder / "notes.txt").write_bytes(b"x")
    return folder


def whole(rows: list[Row]) -> bool:
    return [(row.number, row.text, row.label) for row in rows] == [
        (number, row["text"], row["label"]) for number, row in enumerate(ROWS, start=1)
    ]


def test_several_files_are_one_data_set(folder: Path) -> None:
    files = [folder / "a.jsonl", folder / "b.jsonl.gz", folder / "more" / "c.jsonl"]
    assert whole(list(read_rows(files)))
    assert whole(list(read_rows(folder)))
    assert whole(list(read_rows(str(folder / "**" / "*.jsonl*"))))
    assert read_examples(files).digest == read_examples(folder).digest
    assert [row.text for row in read_rows(files[::-1])][:3] == ["text 6", "text 7", "text 8"]


def test_parquet_in_row_groups(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.Table.from_pylist(ROWS[3 * number : 3 * number + 3])
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=2)
    assert whole(list(read_rows(tmp_path)))


def test_the_place_of_a_bad_row_is_that_in_its_file(folder: Path) -> None:
    (folder / "more" / "c.jsonl").write_bytes(lines(ROWS[6:8]) + b"{}\n")
    with pytest.raises(ValueError, match=r"c.jsonl, row 3: no column 'text'"):
        list(read_rows(folder))


def facts(*paths: Path | str) -> DataFacts:
    return Source(tuple(map(str, paths))).facts()


def test_identity(folder: Path, tmp_path: Path) -> None:
    single = tmp_path / "one.jsonl"
    single.write_bytes(lines(ROWS[:3]))
    assert facts(single).identity() == facts(folder / "a.jsonl").identity()
    several = facts(folder)
    assert several.files == 3
    assert several.bytes == sum(Path(file.path).stat().st_size for file in data_files(folder))
    paths = (folder / "a.jsonl", folder / "b.jsonl.gz", folder / "more" / "c.jsonl")
    assert facts(*paths).identity() == several.identity() != facts(*paths[::-1]).identity()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("long.jsonl", json.dumps({"text": "x" * 600})),
        ("long.csv", f"text,label\nshort,1\n{'x' * 600},1\n"),
        ("long.json", json.dumps([ROWS] * 3)),
        ("lines.json", json.dumps([ROWS] * 3, indent=0)),
    ],
)
def test_a_line_without_end_is_refused(
    name: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptdel.text.formats.LONGEST_LINE", 500, raising=False)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(ValueError, match=r"is longer than 500 characters: "):
        list(read_rows(tmp_path / f"{name}.gz"))


def test_a_batch_of_parquet_is_small(tmp_path: Path) -> None:
    """The file is small, since its texts are all the same."""
    pq.write_table(pa.Table.from_pylist([{"text": "x" * 100_000, "label": 0}] * 1024), tmp_path / "all.parquet")
    rows = read_rows(tmp_path / "all.parquet")
    next(rows)
    assert pa.total_allocated_bytes() < 10_000_000


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for data in (tmp_path / "pipe.jsonl", tmp_path / "*.jsonl"):
        with pytest.raises(ValueError, match=r"pipe.jsonl: must be a regular file"):
            data_files(data)


@pytest.fixture
def memory(folder: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for file in data_files(folder):
        with system.open(f"/bucket/{Path(file.path).relative_to(folder)}", "wb") as target:
            target.write(Path(file.path).read_bytes())
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


def test_addresses(memory: str) -> None:
    assert whole(list(read_rows(memory)))
    assert len(list(read_rows(f"{memory}/*.jsonl"))) == 3
    assert len(list(read_rows([f"{memory}/a.jsonl", f"{memory}/more/c.jsonl"]))) == 6
    first = facts(memory)
    assert first.sha256 is None
    assert first == facts(memory)
    fsspec.filesystem("memory").pipe("/bucket/a.jsonl", lines(ROWS[:2]))
    assert first.remote != facts(memory).remote


def test_parquet_at_an_address(memory: str, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "all.parquet", row_group_size=2)
    fsspec.filesystem("memory").pipe("/bucket/parquet/all.parquet", (tmp_path / "all.parquet").read_bytes())
    assert whole(list(read_rows(f"{memory}/parquet")))


def test_what_cannot_be_read(folder: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "table.csv").write_bytes(b"text\nx\n")
    (folder / "empty").mkdir()
    for data, words in (
        (folder, "holds files of several formats"),
        (folder / "empty", "the folder is empty"),
        (folder / "notes.txt", "must be a .jsonl"),
        (str(folder / "*.parquet"), "there is no such file"),
        (f"{memory}/none.jsonl", "none.jsonl: there is no such file"),
        (f"{memory}/*.csv", "there is no such file"),
        ("nonsense://x/y.jsonl", "nonsense://x/y.jsonl: "),
    ):
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            data_files(data)
        assert "\n" not in str(caught.value)

    def refused(*arguments: object, **options: object) -> None:
        raise RuntimeError("Access\nDenied")  # not an OSError, as of some libraries for buckets

    monkeypatch.setattr(fsspec.filesystem("memory"), "open", refused)
    with pytest.raises(ValueError, match=r"a.jsonl: cannot be read: Access Denied"):
        list(read_rows(f"{memory}/a.jsonl"))
