"""Runs in parts: the rows of one file, whatever is killed or resumed; all commands read them; memory is bounded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adaptdel.runs import certify as certify_module
from adaptdel.runs.records import problem_record
from adaptdel.runs.storage import STORE, ResultStore, open_store, read_run
from adaptdel.store import Store
from tests.run_files import call, make_data, run, write_rows

PART = 16


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs of more than 16 rows are written in parts."""
    monkeypatch.setattr(certify_module, "ROWS_PER_PART", PART)
    return PART


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of the certificates by file."""
    return {path.name: path.read_bytes() for path in sorted((folder / "certificates").iterdir())}


@pytest.mark.usefixtures("parts")
def test_parts_hold_the_rows_of_one_file(tmp_path: Path, model: Path, data: Path, whole: Path) -> None:
    out = tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out) == 0
    names = [f"part-{number:05}.parquet" for number in range(4)]
    assert sorted(path.name for path in out.iterdir()) == ["certificates", "manifest.json", "times"]
    assert list(files(out)) == names == sorted(path.name for path in (out / "times").iterdir())
    sizes = [pq.read_metadata(out / "certificates" / name).num_rows for name in names]
    assert sizes == [16, 16, 16, 12]
    found = read_run(out)
    assert found.table.equals(read_run(whole).table)
    assert pq.read_table(out / "certificates").equals(pq.read_table(whole / "certificates.parquet"))
    assert found.manifest["totals"] == read_run(whole).manifest["totals"]
    assert found.manifest["part_rows"] == PART
    assert len(found.times) == 60
    for workers in (2, 3):
        other = tmp_path / f"workers{workers}"
        assert run("certify", model, "--data", data, "--out", other, "--workers", workers) == 0
        assert files(other) == files(out)


@pytest.mark.usefixtures("parts")
def test_every_command_reads_parts(
    tmp_path: Path, model: Path, data: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out) == 0
    capsys.readouterr()
    assert run("verify", out) == 0
    assert "60 of 60 certificates hold" in capsys.readouterr().out
    for source, target in ((out, "a"), (whole, "b")):
        assert run("recertify", source, "--out", tmp_path / target, "--ops", "ins") == 0
    assert read_run(tmp_path / "a").table.equals(read_run(tmp_path / "b").table)
    assert (tmp_path / "a" / "certificates").is_dir()
    assert run("report", out, whole, "--out", tmp_path / "report") == 0
    assert run("certify", model, "--data", data, "--out", out) == 0  # is finished
    capsys.readouterr()
    assert run("status", out, "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["rows"], status["done"], status["failures"]) == ("finished", 60, 60, 0)


@pytest.mark.usefixtures("parts")
def test_the_limit_of_a_run_in_parts_can_be_raised(tmp_path: Path, model: Path, data: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", whole) == 0
    for limit in (10, 20, 33, 48, 60):  # one file first, then parts of which the last is opened again
        assert run("certify", model, "--data", data, "--out", out, "--limit", limit) == 0
        assert read_run(out).table["row"].to_pylist() == list(range(1, limit + 1))
        assert (out / "certificates.parquet").exists() == (limit <= PART)
    assert files(out) == files(whole)


@pytest.mark.usefixtures("parts")
def test_a_part_is_final_once_its_rows_are_done(
    tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a run stops: what is in a part is not certified again, and the end is the same."""
    whole = tmp_path / "whole"
    assert run("certify", model, "--data", data, "--out", whole) == 0
    for stop in (3, 16, 17, 40, 59):
        out = tmp_path / f"run{stop}"
        put = ResultStore.put
        count = 0

        def counted(self: ResultStore, record: Any, put: Any = put, stop: int = stop, **options: Any) -> None:
            nonlocal count
            if count == stop:
                raise ValueError("stopped")
            count += 1
            put(self, record, **options)

        monkeypatch.setattr(ResultStore, "put", counted)
        assert run("certify", model, "--data", data, "--out", out) == 2
        unfinished = read_run(out)
        assert len(unfinished.table) == stop == len(unfinished.times)
        assert not unfinished.finished
        count = -1000
        monkeypatch.setattr(ResultStore, "put", counted)
        assert run("certify", model, "--data", data, "--out", out) == 0
        assert count == -1000 + 60 - stop
        monkeypatch.setattr(ResultStore, "put", put)
        assert files(out) == files(whole)
        assert not (out / STORE).exists()


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", ["certificates", "times"])
def test_killed_between_the_files_of_a_part(
    tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", whole) == 0
    write = ResultStore._write

    def fails(self: ResultStore, number: int) -> None:
        if number == 1:  # the records are in the store, and one of both files is there as well
            shutil.copy(whole / name / "part-00001.parquet", out / name / "part-00001.parquet")
            raise ValueError("stopped")
        write(self, number)

    monkeypatch.setattr(ResultStore, "_write", fails)
    assert run("certify", model, "--data", data, "--out", out) == 2
    monkeypatch.undo()
    monkeypatch.setattr(certify_module, "ROWS_PER_PART", PART)
    assert {*range(17, 33)} <= {*read_run(out).table["row"].to_pylist()}  # rows are finished in any order
    assert run("certify", model, "--data", data, "--out", out) == 0
    assert files(out) == files(whole)


@pytest.mark.usefixtures("parts")
def test_failures_are_tried_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid rows stay as they are; an input that failed is certified when the run is resumed."""
    rows: list[Any] = [{"text": f"w{number} w{number + 1} w7", "label": number % 2} for number in range(40)]
    rows[4] = {"label": 1}
    data = write_rows(tmp_path / "data.jsonl", rows)
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", whole) == 1
    put = ResultStore.put
    failed: list[int] = []

    def some_fail(self: ResultStore, record: Any, **options: Any) -> None:
        if record["row"] == 35:
            raise ValueError("stopped")
        if record["row"] == 7 and not failed:
            failed.append(7)
            record = dict.fromkeys(record) | {"id": record["id"], "row": 7, "problem": "out of memory"}
            options["failed"] = True
        put(self, record, **options)

    monkeypatch.setattr(ResultStore, "put", some_fail)
    assert run("certify", model, "--data", data, "--out", out) == 2
    assert failed == [7]
    assert read_run(out).tables.final_parts() == [1]
    monkeypatch.setattr(ResultStore, "put", put)
    assert run("certify", model, "--data", data, "--out", out) == 1
    assert files(out) == files(whole)
    assert read_run(out).table["problem"].null_count == 39


@pytest.mark.usefixtures("parts")
def test_missing_and_damaged_parts(tmp_path: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole"
    assert run("certify", model, "--data", data, "--out", whole) == 0
    for name in ("certificates/part-00001.parquet", "certificates/part-00003.parquet", "times/part-00003.parquet"):
        for damage in ("missing", "not the file"):
            out = Path(shutil.copytree(whole, tmp_path / f"{damage} {name.replace('/', ' ')}"))
            (out / name).unlink()
            if damage != "missing":
                (out / name).write_bytes(b"nonsense")
            for arguments in (["verify", out], ["report", out, "--out", tmp_path / "report"]):
                capsys.readouterr()
                assert run(*arguments) == 2
                error = capsys.readouterr().err
                assert f"{out / name}: {damage}" in error
                assert error.count("\n") == 1


def test_status_of_a_run_that_was_stopped(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = make_data(tmp_path / "test.jsonl", 30), tmp_path / "run"
    put, stored, printed = ResultStore.put, list[int](), list[str]()

    def stops(self: ResultStore, record: Any, **options: Any) -> None:
        if len(stored) == 20:
            raise ValueError("stopped")
        put(self, record, **options)
        stored.append(record["row"])
        self._store.flush()
        if len(stored) == 20:
            printed.append(call("status", out, "--json").stdout)  # while the run holds the lock

    monkeypatch.setattr(ResultStore, "put", stops)
    assert run("certify", model, "--data", data, "--out", out) == 2
    capsys.readouterr()
    running = json.loads(printed[0])
    assert (running["state"], running["rows"]) == ("running", 30)
    assert running["seconds_left"] is not None
    assert run("status", out) == 0
    shown = capsys.readouterr().out
    assert "not finished, and no process works on it" in shown
    assert "of 30 (" in shown
    assert "mean certified radius" in shown
    assert run("status", tmp_path) == 2


def test_rows_without_a_certificate_are_removed_in_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with many empty texts resumes at once: a commit waits for the disk."""
    with open_store(tmp_path) as store:
        for row in range(1, 201):
            store.put(row, problem_record("the text is empty", id=str(row), row=row) | {"seconds": None})
    commits, commit = 0, Store._commit

    def counted(self: Store) -> None:
        nonlocal commits
        commits += 1
        commit(self)

    monkeypatch.setattr(Store, "_commit", counted)
    with ResultStore(tmp_path, 300) as results:
        assert commits < 10
        assert list(results.records()) == []
