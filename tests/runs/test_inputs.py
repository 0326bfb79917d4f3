"""The rows of a file as inputs of a run: ids, and labels among the classes of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptdel.runs.storage import read_run
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
    assert ids[4:] == [f"{ids[2]}#2", f"{ids[2]}#3"]
    assert len(set(ids)) == 6
    capsys.readouterr()
    named = write_rows(tmp_path / "named.jsonl", [{"body": text, "key": f"n{n}"} for n, text in enumerate(texts)])
    options = ["--text-column", "body", "--id-column", "key", "--json"]
    assert run("certify", model, "--data", named, "--out", tmp_path / "named", *options) == 0
    captured = capsys.readouterr()
    assert captured.err == f"note: {named}: no row has a label in the column 'label': no accuracy is known\n"
    assert json.loads(captured.out)["accuracy"] is None
    table = read_run(tmp_path / "named").table
    assert table["id"].to_pylist() == ["n0", "n1", "n2", "n3"]
    assert table["correct"].to_pylist() == [None] * 4
