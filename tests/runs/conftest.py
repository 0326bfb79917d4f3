"""A model, data and a finished run for the tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run_files import make_data, make_model, run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "test.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Path) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("run") / "run"
    assert run("certify", model, "--data", data, "--out", out) == 0
    return out
