"""The padding attack breaks ordinary models and no certificate; the audit finds padding that is claimed wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptdel import load
from adaptdel.runs.storage import read_run
from tests.run_files import forge_rows, make_filter, run, write_rows

from .conftest import texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filter, the same model without it, and data."""
    folder = tmp_path_factory.mktemp("padding")
    make_filter(folder / "filter", texts(200, 20))
    plain = load(folder / "filter")
    plain.filter = None
    plain.save(folder / "plain")
    write_rows(folder / "data.jsonl", [{"text": text, "label": label} for text, label in texts(60, 20, seed=5)])
    return folder


def attacked(folder: Path, out: Path, model: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    arguments = (
        "--recipe",
        "padding",
        "--data",
        folder / "data.jsonl",
        "--inputs",
        30,
        "--set",
        "padding=300",
        "--json",
    )
    capsys.readouterr()
    assert run("attack", folder / model, *arguments, "--out", out) == 0
    values: dict[str, object] = json.loads(capsys.readouterr().out)
    return values


def test_ordinary_models_fall_and_no_certificate_is_broken(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = attacked(folder, tmp_path / "filter", "filter", capsys)
    plain = attacked(folder, tmp_path / "plain", "plain", capsys)
    assert (own["violations"], plain["violations"]) == (0, 0)
    assert plain["verified_robust_accuracy"] == 0.0
    assert isinstance(own["verified_robust_accuracy"], float)
    assert own["verified_robust_accuracy"] > 0.5
    assert run("report", tmp_path / "filter", "--out", tmp_path / "report") == 0


def test_the_audit_tries_padding(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("certify", folder / "plain", "--data", folder / "data.jsonl", "--out", out) == 0
    assert run("audit", out, "--certificates", 10) == 0
    forge_rows(out, [record | {"padded_radius": 0} for record in read_run(out).records()])
    assert run("audit", out, "--certificates", 10) == 1
