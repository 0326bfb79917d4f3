"""Saved models: the same certificates from the folder, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel import Masking, SmoothedClassifier
from adaptdel.models import load
from tests.models.test_smoothed import TEXT


@pytest.fixture(scope="module")
def model() -> SmoothedClassifier:
    votes: Any = np.int64(100)
    return SmoothedClassifier(noise=Masking(0.8), n_select=votes).fit([TEXT, "a b c " * 9] * 5, [0, 1] * 5)


def test_save_and_load(model: SmoothedClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")  # over itself
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(tmp_path / "model").certify([TEXT]) == model.certify([TEXT])
    assert "models import load" in (tmp_path / "model" / "README.md").read_text()


def test_labels_in_the_card_are_text(tmp_path: Path) -> None:
    model = SmoothedClassifier(noise=Masking(0.8)).fit([TEXT, "a b c " * 9] * 5, ["<img src=x>", "*b*"] * 5)
    model.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "<img" not in card
    assert r"\*b\*" in card


def test_folders_that_hold_no_model(model: SmoothedClassifier, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must be a folder that save wrote"):
        load(tmp_path / "nothing")
    (tmp_path / "thesis.txt").write_text("text")
    with pytest.raises(ValueError, match="path must be a new folder"):
        model.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
