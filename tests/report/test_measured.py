"""Tables of other systems: what they may hold, what is taken from the run, and what is refused with its row."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel.core.threat import log10_cardinality
from adaptdel.report.comparison import differences
from adaptdel.report.entries import read_entries
from adaptdel.report.measured import read_foreign, read_inputs
from adaptdel.report.write import write_report
from adaptdel.runs.storage import Run, read_run
from tests.run_files import make_data, make_model, run


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("foreign")
    model, data = make_model(folder / "model"), make_data(folder / "data.jsonl", 40, 3)
    assert run("certify", model, "--data", data, "--out", folder / "ours") == 0
    return read_run(folder / "ours")


def stated(ours: Run, **changes: Any) -> list[dict[str, Any]]:
    """The rows of the run as another system would state them, with radii that are larger by 1."""
    rows = ours.table.to_pylist()
    return [
        {"id": row["id"], "label": row["truth"], "answer": row["answer"], "radius": row["radius"] + 1.5} | changes
        for row in rows
    ]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["theirs.csv", "theirs.jsonl", "theirs.parquet"])
def test_a_table_is_compared_on_the_same_inputs(ours: Run, tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, stated(ours))
    run_entry, table = read_entries([ours.folder, path])
    assert table.title == "theirs (not verifiable here)"
    assert (table.is_foreign, table.certifies, run_entry.is_foreign) == (True, True, False)
    assert table.attacker == run_entry.attacker
    assert len(table.outcomes) == len(run_entry.outcomes) == 40
    [(common, gaps)] = differences([run_entry, table], run_entry, seed=0).values()
    right = ours.table["correct"].to_pylist()
    gained = [r - max(q, 0) for r, q in zip(table.outcomes.radius, run_entry.outcomes.radius, strict=True)]
    expected = sum(gain for gain, is_right in zip(gained, right, strict=True) if is_right) / 40
    assert (common, gaps["mean_radius"].clear) == (40, True)
    assert gaps["mean_radius"].value == pytest.approx(expected)
    record = next(iter(table.rows.values()))
    size = log10_cardinality(record["radius"], length=record["length"])
    assert record["log10_cardinality"] == size


def test_texts_or_row_numbers_name_inputs_and_nothing_certified_is_an_abstention(ours: Run, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in Path(ours.manifest["data"]["path"]).read_text().splitlines()]
    like = read_inputs(ours)
    by_text = [{"text": text, "answer": 1, "radius": ""} for text in texts[:3]] + [
        {"text": "of another file", "answer": 1, "radius": ""}
    ]
    inputs = read_foreign(written(tmp_path / "a.csv", by_text), like)
    assert (list(inputs.rows), inputs.problems, inputs.outcomes.radius.tolist()) == ([1, 2, 3], 1, [-1, -1, -1])
    by_number = [{"id": 2, "answer": 0, "radius": 0.5, "length": 7, "ops": "ins", "unit": "char"}]
    inputs = read_foreign(written(tmp_path / "b.jsonl", by_number), like)
    assert (list(inputs.rows), inputs.outcomes.length.tolist(), inputs.outcomes.radius.tolist()) == ([2], [7], [0])
    assert inputs.run.manifest["unit"] == {"kind": "char"}
    entries = read_entries([ours.folder, tmp_path / "b.jsonl"])
    assert set(differences(entries, entries[0], seed=0)["b"][1]) == {
        "clean_accuracy", "certified_accuracy", "balanced_accuracy",
    }  # fmt: skip
    entries = read_entries([ours.folder, tmp_path / "b.jsonl"], characters=True)
    assert entries[1].outcomes.radius.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"answer": "other"}, "answer"),
        ({"radius": "much"}, "radius"),
        ({"id": ""}, "id"),
        ({"ops": "edit,ins"}, "ops"),
        ({"unit": "pixel"}, "unit"),
        ({"unit": "char"}, "unit must be the same"),
        ({"length": "long"}, "length"),
    ],
)
def test_a_bad_row_is_named(ours: Run, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    rows = stated(ours, ops="edit", unit="word", length="")
    rows[4] |= change
    path = written(tmp_path / "theirs.csv", rows)
    with pytest.raises(ValueError, match=rf"theirs\.csv, row 5: .*{word}"):
        read_foreign(path, read_inputs(ours))


def test_a_table_that_does_not_fit_is_refused(ours: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    like, rows = read_inputs(ours), stated(ours)
    for number, changed in (
        (3, [*rows[:2], rows[2] | {"label": 1 - int(rows[2]["label"])}]),  # ids from 0
        (2, [rows[0], rows[0]]),
    ):
        with pytest.raises(ValueError, match=rf"row {number}: .*input"):
            read_foreign(written(tmp_path / "a.csv", changed), like)
    for columns, name in ((("id", "answer"), "radius"), (("id", "radius"), "answer")):
        short = [{column: row[column] for column in columns} for row in rows]
        for ending in ("csv", "parquet"):
            with pytest.raises(ValueError, match=name):
                read_foreign(written(tmp_path / f"short.{ending}", short), like)
    with pytest.raises(ValueError, match="no row is on an input"):
        read_foreign(written(tmp_path / "b.csv", [rows[0] | {"id": "elsewhere"}]), like)
    path = written(tmp_path / "theirs.csv", rows)
    assert run("report", path, "--out", tmp_path / "out") == 2
    assert "give a run" in capsys.readouterr().err
    path.write_text("id,answer,radius\n1,0\n")
    assert run("report", ours.folder, path, "--out", tmp_path / "out") == 2
    assert "theirs.csv, row 1" in capsys.readouterr().err


def test_the_page_says_what_cannot_be_verified(ours: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "theirs.csv", stated(ours))
    values = write_report([path, ours.folder], tmp_path / "out", sample=2, names=["Theirs", "Ours"])
    assert "cannot be verified here" in values["summary"][0]
    assert (values["baseline"], values["example"]["run"]) == ("Ours", "Ours")
    assert "Theirs (not verifiable here)" in (tmp_path / "out" / "index.html").read_text()
