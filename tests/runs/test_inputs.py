"""The rows of a file as inputs of a run: ids, labels among the classes of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptdel.runs.storage import read_run
from adaptdel.text.data import text_hash
from tests.run_files import examples, make_model, run, write_rows


def test_labels_and_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "model", labels=("no", "7"))
    texts = [text for text, _ in examples(4, seed=5)]
    rows = [{"text": text, "label": 7} for text in (*texts, texts[2], texts[2])]
    data = write_rows(tmp_path / "test.jsonl", rows)
    assert run("certify", model, "--data", data, "--out", tmp_path / "run") == 0
    table = read_run(tmp_path / "run").table
    assert set(table["truth"].to_pylist()) == {'"7"'}
    ids = table["id"].to_pylist()
    assert ids == [f"{n}-{text_hash(str(row['text']))}" for n, row in enumerate(rows, 1)]
    capsys.readouterr()
    named = write_rows(tmp_path / "named.jsonl", [{"body": text} for text in texts])
    options = ["--text-column", "body", "--json"]
    assert run("certify", model, "--data", named, "--out", tmp_path / "named", *options) == 0
    captured = capsys.readouterr()
    assert captured.err == f"note: {named}: no row has a label in the column 'label': no accuracy is known\n"
    assert json.loads(captured.out)["clean_accuracy"] is None
    table = read_run(tmp_path / "named").table
    assert table["correct"].to_pylist() == [None] * 4


def test_data_that_changed_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one sentence with the file and the row, whether the run is finished, stopped or extended."""
    model = make_model(tmp_path / "model")
    rows = [{"text": f"w{n} w{n + 1} w7", "label": n % 2} for n in range(20)]
    data = write_rows(tmp_path / "test.jsonl", rows)
    options = ["certify", model, "--data", data, "--out", tmp_path / "run", "--limit"]
    assert run(*options, 10) == 0
    changes = {
        "row 3: not what was certified": [*rows[:2], {"text": "other", "label": 0}, *rows[3:]],
        "row 5: not what was certified": [*rows[:4], rows[4] | {"label": 1}, *rows[5:]],
        "row 8, which was certified, is gone": rows[:7],
        "row 1: not what was certified": rows[1:],
        "not the data of the run": [*rows[:15], *rows[16:]],
    }
    for limit in (10, 15):
        for words, changed in changes.items():
            write_rows(data, changed)
            capsys.readouterr()
            assert run(*options, limit) == 2
            error = capsys.readouterr().err
            assert str(data) in error
            assert words in error
            assert error.count("\n") == 1
    write_rows(data, rows)
    assert run(*options, 15) == 0
