"""Additive classifiers from a labelled file: training, the front, resuming, moving along the front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptdel import AdditiveClassifier
from adaptdel.models.model_files import load_model
from adaptdel.text.data import known_texts
from adaptdel.training import TrainingJob, TrainingSettings, train_job
from tests.training.test_training import mails, run, write

FIELDS: dict[str, Any] = {"method": "exact", "levels": 4, "iterations": 20}


def test_a_file_becomes_a_model_with_its_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write(tmp_path / "data.jsonl", 200), tmp_path / "model"
    command = ["train", "--method", "exact", "--data", data, "--out", out, "--set", "levels=4", "--seed", "3"]
    assert run(*command) == 0
    shown = capsys.readouterr().out
    assert "(chosen)" in shown
    assert "noise" not in shown
    assert {"front.csv", "front.png", "README.md", "training.json", "texts.safetensors"} <= {
        path.name for path in out.iterdir()
    }
    model = load_model(out)
    assert isinstance(model, AdditiveClassifier)
    assert len(model.front_) == len((out / "front.csv").read_text().splitlines()) - 1 == 4
    assert model.predict(mails(40, seed=9)[0]).tolist() == mails(40, seed=9)[1]
    texts = mails(200)[0]
    assert known_texts(texts, model.texts_["training"]).all()
    record = model.training_
    assert (record["method"], record["settings"]["seed"], record["settings"]["validation"]) == ("exact", 3, 0.2)
    assert record["data"]["columns"] == {"text": "text", "label": "label"}
    assert run(*command) == 0
    assert "trained already" in capsys.readouterr().out
    assert run(*command, "--max-accuracy-loss", "5") == 2
    assert "max_accuracy_loss" in capsys.readouterr().err


def test_the_settings_reach_the_estimator() -> None:
    fields = {**FIELDS, "unit": "char", "class_weight": "balanced", "seed": 5, "validation": 0.3, "kept": 4}
    settings = TrainingSettings.from_dict(fields)
    assert (settings.additive.validation, settings.additive.kept, settings.kept) == (0.3, 4, None)
    assert settings.effective()["class_weight"] == "balanced"
    for wrong in ({"rate": 0.9}, {"max_minutes": 1}, {"model": "bert"}, {"validation": "held.csv"}, {"bits": 12}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TrainingSettings.from_dict(FIELDS | wrong)


def test_a_training_gives_what_the_estimator_gives(tmp_path: Path) -> None:
    texts, labels = mails(120)
    job = TrainingJob(str(write(tmp_path / "data.jsonl", 120)), str(tmp_path / "m"), TrainingSettings.from_dict(FIELDS))
    trained = train_job(job, progress=False).model
    settings = TrainingSettings.from_dict(FIELDS).additive
    assert isinstance(trained, AdditiveClassifier)
    expected = AdditiveClassifier(settings=settings, progress=False).fit(texts, labels)
    assert trained.base_.fingerprint() == expected.base_.fingerprint()
    assert json.loads(json.dumps(trained.front_)) == expected.front_
