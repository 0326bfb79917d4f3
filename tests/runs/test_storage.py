"""The folder of a run: reading what is no run, and writing one."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel.runs import certify
from adaptdel.runs.storage import TABLE, in_order, read_run, stored_key, stored_value, table_hash
from adaptdel.store import Store
from adaptdel.text.data import label_text, label_value
from tests.run_files import call, make_data, rewrite, run


def test_reading_what_is_no_run(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run: there is no manifest.json"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not the manifest of a run"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match="the format must be 4, got 9: a newer version"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    with pytest.raises(ValueError, match="missing from a run that is finished according to its manifest"):
        read_run(tmp_path)


def test_tables_with_a_fitting_digest_that_are_none(tmp_path: Path, whole: Path) -> None:
    def refused(words: str) -> None:
        digest = table_hash(out)
        rewrite(out, lambda manifest: manifest.update(table_sha256=digest))
        with pytest.raises(ValueError, match=words) as error:
            read_run(out)
        assert "\n" not in str(error.value)

    out = Path(shutil.copytree(whole, tmp_path / "run"))
    (out / TABLE).write_bytes(b"nonsense")
    refused("not a Parquet file")
    rows = pq.read_table(whole / TABLE)
    radius = rows["radius"].cast(pa.string())
    pq.write_table(rows.set_column(rows.column_names.index("radius"), "radius", radius), out / TABLE)
    refused("with their types")
    pq.write_table(pa.table({"id": ["a"]}), out / TABLE)
    refused("must have the columns id, row")


# Reads tables, and prints how many threads that has started.
READ = """
import os, sys, psutil, pyarrow.parquet
from adaptdel.runs.storage import read_run
from adaptdel.text.data import read_rows
threads = psutil.Process().num_threads()
list(read_run(sys.argv[1]).records())
list(read_rows(os.path.join(sys.argv[1], "certificates.parquet"), text="id"))
print(psutil.Process().num_threads() - threads)
"""


def test_arrow_starts_no_threads(whole: Path) -> None:
    """One that frees Python's bytes while the process exits aborts it."""
    pytest.importorskip("psutil")
    done = subprocess.run([sys.executable, "-c", READ, whole], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_batches_come_in_the_order_of_the_rows(tmp_path: Path) -> None:
    """However they overlap; a row that was written again counts once."""
    rng = random.Random(0)
    for _ in range(50):
        latest: dict[int, int] = {}
        stored = []
        for sequence in range(rng.randrange(9)):
            first = rng.randrange(40)
            rows = sorted({first, *(first + rng.randrange(20) for _ in range(rng.randrange(6)))})
            latest |= dict.fromkeys(rows, sequence)
            batch = pa.record_batch({"row": rows, "value": [sequence] * len(rows)})
            stored.append((stored_key(first, sequence), stored_value(batch)))
        found = [row for batch in in_order(tmp_path, sorted(stored)) for row in batch.to_pylist()]
        assert found == [{"row": row, "value": latest[row]} for row in sorted(latest)]
    with pytest.raises(ValueError, match=f"^{tmp_path}: a damaged store: delete it"):
        list(in_order(tmp_path, [(stored_key(1, 1), b"nonsense")]))


@pytest.mark.parametrize(
    "label", ["spam", "1", 1, 0, -3, "", "true", True, None, 0.5, '"spam"', " 1", "{", "[1]", "NaN", "é"]
)
def test_labels_are_plain_texts_from_which_the_type_is_recovered(label: object) -> None:
    text = label_text(label)
    assert label_value(text) == label
    assert type(label_value(text)) is type(label)
    if label in ("spam", "", "{", "é"):
        assert text == label


def test_status_of_a_run_that_was_stopped(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = make_data(tmp_path / "test.jsonl", 30), tmp_path / "run"
    put, stored, printed = Store.put, list[Any](), list[str]()

    def stops(self: Store, key: Any, record: Any) -> None:
        if len(stored) == 20:
            raise ValueError("stopped")
        put(self, key, record)
        stored.append(key)
        self.flush()
        if len(stored) == 20:
            printed.append(call("status", out, "--json").stdout)  # while the run holds the lock

    monkeypatch.setattr(Store, "put", stops)
    monkeypatch.setattr(certify, "BATCH_ROWS", 1)
    assert run("certify", model, "--data", data, "--out", out) == 2
    capsys.readouterr()
    running = json.loads(printed[0])
    assert (running["state"], running["rows"], running["done"]) == ("running", 30, 20)
    assert running["seconds_left"] is not None
    assert run("status", out) == 0
    shown = capsys.readouterr().out
    assert "not finished, and no process works on it" in shown
    assert "20 of 30 (" in shown
    assert "mean radius" in shown
    assert run("status", tmp_path) == 2
