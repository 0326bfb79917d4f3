"""A model of each kind of evidence, data and a finished run for the tests of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.run_files import make_data, make_exact, make_model, run

KINDS: dict[str, Any] = {"votes": make_model, "scores": make_exact}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(KINDS[request.param](tmp_path_factory.mktemp("model") / request.param))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "test.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Path) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("run") / "run"
    assert run("certify", model, "--data", data, "--out", out) == 0
    return out
