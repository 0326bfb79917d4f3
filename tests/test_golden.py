"""No change of structure changes a certificate: votes, bounds, radii and hashes are those of the golden file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.make import FILE, certificates

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def present() -> dict[str, list[dict[str, Any]]]:
    pytest.importorskip("torch")
    for library in ("transformers", "onnx", "onnxruntime"):
        pytest.importorskip(library)
    values: dict[str, list[dict[str, Any]]] = json.loads(json.dumps(certificates()))
    return values


def test_the_same_models_are_certified(present: dict[str, Any]) -> None:
    assert list(present) == list(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_votes_and_radii_are_those_of_the_golden_file(name: str, present: dict[str, Any]) -> None:
    assert present[name] == GOLDEN[name]
