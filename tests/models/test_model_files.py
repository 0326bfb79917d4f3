"""Saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adaptdel import Masking, SmoothedClassifier
from tests.models.test_smoothed import TEXT


def test_masking_models_survive_saving(tmp_path: Path) -> None:
    votes: Any = np.int64(100)
    model = SmoothedClassifier(noise=Masking(0.8), n_select=votes).fit([TEXT, "a b c " * 9] * 5, [0, 1] * 5)
    model.save(tmp_path / "m")
    loaded = SmoothedClassifier.load(tmp_path / "m")
    assert loaded.certify([TEXT])[0].to_dict() == model.certify([TEXT])[0].to_dict()
