"""No change of structure changes a certificate: votes and radii are those of the golden file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adaptdel.cli import main
from tests.golden.make import FILE, certificates

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))


def main_status(arguments: Sequence[str]) -> Any:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.fixture(scope="module")
def present() -> dict[str, list[dict[str, Any]]]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    values: dict[str, list[dict[str, Any]]] = json.loads(json.dumps(certificates()))
    return values


def test_the_same_models_are_certified(present: dict[str, Any]) -> None:
    assert list(present) == list(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_votes_and_radii_are_those_of_the_golden_file(name: str, present: dict[str, Any]) -> None:
    assert present[name] == GOLDEN[name]


# What version 0.1 wrote: a model, and a run of it.

OLD = FILE.parent / "version-0.1"


def test_a_model_of_version_0_1_loads_and_certifies_as_it_did(tmp_path: Path) -> None:
    assert main_status(["verify", str(OLD / "run")]) == 0
    data, run = str(OLD / "test.csv"), str(tmp_path / "run")
    assert main_status(["certify", str(OLD / "model"), "--data", data, "--out", run, "--votes", "100,400"]) == 0
    tables = [pq.read_table(folder / "certificates.parquet").to_pylist() for folder in (OLD / "run", tmp_path / "run")]
    columns = ("id", "row", "length", "selection", "votes", "exact", "p1", "p2", "radius", "input_hash")
    assert [[row[name] for name in columns] for row in tables[0]] == [
        [row[name] for name in columns] for row in tables[1]
    ]
    answers = [[row["answer"] for row in table] for table in tables]
    assert answers[0] == [json.dumps(answer) for answer in answers[1]]  # version 0.1 quoted labels


def test_a_run_of_version_0_1_is_reported_and_re_derived(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main_status(["recertify", str(OLD / "run"), "--alpha", "0.01", "--out", str(tmp_path / "again")]) == 0
    assert main_status(["verify", str(tmp_path / "again")]) == 0
    runs = [str(OLD / "run"), str(tmp_path / "again")]
    assert main_status(["report", *runs, "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "index.html").exists()
