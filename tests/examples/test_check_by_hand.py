"""The example that checks exact runs without adaptdel: real runs of every threat hold, forged ones do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.runs.storage import read_run
from tests.run_files import forge_rows, make_data, make_exact, make_filter, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "check_by_hand.py"


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """The example on a run, in an interpreter that finds no adaptdel beside it."""
    return subprocess.run([sys.executable, "-I", EXAMPLE, folder], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a filter, of a model without one, and of three classes, on the same texts."""
    folder = tmp_path_factory.mktemp("hand")
    data = make_data(folder / "data.jsonl", 40)
    make_filter(folder / "filter")
    make_filter(folder / "reverse", label=0)
    make_exact(folder / "plain")
    make_exact(folder / "three", labels=(0, 1, 2))
    for name in ("filter", "reverse", "plain", "three"):
        assert run("certify", folder / name, "--data", data, "--out", folder / f"{name}-run") == 0
    return folder


def test_it_imports_nothing_of_ours_and_is_short() -> None:
    source = EXAMPLE.read_text()
    assert "import adaptdel" not in source
    assert "from adaptdel" not in source
    assert len(source.splitlines()) <= 100


@pytest.mark.parametrize("threat", ["", "padding", "ins,sub,long", "del", "del,ins,padding,long"])
@pytest.mark.parametrize("name", ["filter", "reverse", "plain", "three"])
def test_real_runs_hold(folder: Path, tmp_path: Path, name: str, threat: str) -> None:
    whole = folder / f"{name}-run"
    if threat:
        assert run("recertify", whole, "--threat", threat, "--out", tmp_path / "run") == 0
        whole = tmp_path / "run"
        assert read_run(whole).manifest.plan.threat == ad.Threat.parse(threat)
        assert run("verify", whole) == 0
    if name in ("filter", "reverse") and not threat:
        records = list(read_run(whole).records())
        assert any(record["padded_radius"] > 0 for record in records)
        assert any(record["positions"] > 0 for record in records)
    result = checked(whole)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("column", "value"),
    [("radius", 99), ("padded_radius", 99), ("positions", 5), ("answer", "0"), ("scores", None), ("reach", [0, 0])],
)
def test_forged_runs_do_not_hold(folder: Path, tmp_path: Path, column: str, value: Any) -> None:
    rows = list(read_run(folder / "filter-run").records())
    chosen = next(record for record in rows if record["padded_radius"] >= 0)
    forged = chosen | {column: chosen["scores"][:-1] if column == "scores" else value}
    copy = tmp_path / "run"
    assert run("recertify", folder / "filter-run", "--out", copy) == 0
    forge_rows(copy, [forged if record is chosen else record for record in rows])
    result = checked(copy)
    assert result.returncode == 1, result.stderr
    assert f"row {forged['row']} does not hold" in result.stdout
    assert run("verify", copy) == 1
