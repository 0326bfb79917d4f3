"""The folder of a run: reading what is no run, and writing one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Masking
from adaptdel.certification.certificate import Certificate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.records import label_text, label_value, record_of
from adaptdel.runs.storage import TABLE, Run, read_run, table_hash
from adaptdel.store import Store
from tests.run_files import call, examples, make_data, rewrite, run, setting_of, write_run


def test_reading_what_is_no_run(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run: there is no manifest.json"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not the manifest of a run"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match="the format must be 3, got 9: a newer version"):
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


def test_runs_written_by_hand(tmp_path: Path) -> None:
    model = SmoothedClassifier(lambda batch: ["w1" in t for t in batch], Masking(0.5), classes=[False, True])
    certificates = model.certify([text for text, _ in examples(5)])
    records = [record_of(c, id=f"a{n}", row=n, label=True) for n, c in enumerate(certificates, 1)]
    write_run(tmp_path / "run", setting_of(certificates[0]), records)
    found: Run = read_run(tmp_path / "run")
    assert [c.to_dict() for c in found.certificates()] == [c.to_dict() for c in certificates]
    assert all(isinstance(c, Certificate) for c in found.certificates())


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
    put, stored, printed = Store.put, list[int](), list[str]()

    def stops(self: Store, key: int, record: Any) -> None:
        if len(stored) == 20:
            raise ValueError("stopped")
        put(self, key, record)
        stored.append(key)
        self.flush()
        if len(stored) == 20:
            printed.append(call("status", out, "--json").stdout)  # while the run holds the lock

    monkeypatch.setattr(Store, "put", stops)
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
