"""Additive classifiers from a labelled file: training, the trade-off of clips, resuming, another clip, protection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptdel import AdditiveClassifier
from adaptdel.models.model_files import load_model
from adaptdel.text.data import known_texts
from adaptdel.training import TrainingJob, train_job
from adaptdel.training.protection import allowed_false_positives, protect
from tests.calibration.documents import documents
from tests.training.test_training import mails, run, write

FIELDS: dict[str, Any] = {"method": "exact", "levels": 4, "iterations": 20}


def test_a_file_becomes_a_model_with_its_trade_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write(tmp_path / "data.jsonl", 200), tmp_path / "model"
    command = ["train", "--method", "exact", "--data", data, "--out", out, "--set", "levels=4", "--seed", "3"]
    assert run(*command) == 0
    shown = capsys.readouterr().out
    assert "(chosen)" in shown
    assert "noise" not in shown
    assert not (out / "detection.png").exists()
    assert {"trade-off.png", "README.md", "training.json", "texts.safetensors"} <= {path.name for path in out.iterdir()}
    model = load_model(out)
    assert isinstance(model, AdditiveClassifier)
    assert len(model.trade_off_) == 4
    assert all(f"| {share}%" in (out / "README.md").read_text() for share in ("100.0", "80.0", "64.0", "51.2"))
    assert model.predict(mails(40, seed=9)[0]).tolist() == mails(40, seed=9)[1]
    texts = mails(200)[0]
    assert known_texts(texts, model.records.texts["training"]).all()
    record = model.records.training or {}
    assert (record["method"], record["settings"]["seed"], record["settings"]["validation"]) == ("exact", 3, 0.2)
    assert record["data"]["columns"] == {"text": "text", "label": "label"}
    assert run(*command) == 0
    assert "trained already" in capsys.readouterr().out
    assert run(*command, "--max-accuracy-loss", "5") == 2
    assert "max_accuracy_loss" in capsys.readouterr().err


def test_calibrate_chooses_another_clip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, labels = documents(160, 1)
    model = AdditiveClassifier(levels=4, iterations=20, progress=False).fit(texts, labels)
    model.save(tmp_path / "m")
    assert run("calibrate", tmp_path / "m", "--max-accuracy-loss", "100") == 0
    largest = max(model.trade_off_, key=lambda point: point.mean_radius)
    loose = load_model(tmp_path / "m-calibrated")
    assert loose.level == largest.level
    assert loose.trade_off_ == model.trade_off_
    assert run("calibrate", tmp_path / "m", "--max-accuracy-loss", "100") == 0
    changed = tmp_path / "m-calibrated"
    assert run("calibrate", changed, "--max-accuracy-loss", "0", "--out", changed) == 0
    strict = load_model(tmp_path / "m-calibrated")
    assert strict.base_.fingerprint() == model.choose(0).base_.fingerprint()
    for options in ((), ("--max-accuracy-loss", "1", "--points", "2"), ("--max-accuracy-loss", "1", "--set", "seed=3")):
        assert run("calibrate", tmp_path / "m", *options) == 2
        assert "--max-accuracy-loss alone" in capsys.readouterr().err
    assert run("plan", "--model", changed) == 0
    assert run("plan", "--model", changed, "--length", 9) == 2
    assert "--model alone" in capsys.readouterr().err


@pytest.mark.parametrize("label", [0, 1])
def test_protect_proves_the_rate_of_the_answers(label: int) -> None:
    texts, labels = documents(160, 1)
    model = AdditiveClassifier(levels=4, iterations=20, progress=False).fit(texts, labels)
    texts, labels = documents(400, 2)
    chosen = protect(model, texts, labels, label=label, max_false_positives=0.05)
    answers = model.predict(texts)
    wrong = sum(answer == label != truth for answer, truth in zip(answers, labels, strict=True))
    assert chosen.false_positives == wrong <= allowed_false_positives(200, 0.05)
    assert wrong == allowed_false_positives(200, 0.05)  # scores are rarely equal: the allowance is used
    right = sum(answer == label == truth for answer, truth in zip(answers, labels, strict=True))
    assert chosen.detected == right
    certificates = [c for c, y in zip(model.certify(texts), labels, strict=True) if y == label]
    withstood = sum(c.label == label and c.radius >= 2 for c in certificates)
    assert chosen.certified["2"] == withstood / 200
    assert chosen.same == 0 or withstood <= sum(
        c.label == label and (c.character_radius or 0) >= chosen.same for c in certificates
    )


def test_a_class_that_is_a_number_in_a_configuration_is_protected(tmp_path: Path) -> None:
    """YAML reads "protect: 1" as a number."""
    data, config = tmp_path / "data.jsonl", tmp_path / "c.yaml"
    data.write_text(
        "".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(*documents(200, 1), strict=True))
    )
    config.write_text(f"{{data: {data}, method: exact, levels: 2, protect: 1, max_false_positives: 0.2}}")
    for number in range(2):
        assert run("train", "--config", config, "--out", tmp_path / "model", *(["--protect", "1"] * number)) == 0
    assert (load_model(tmp_path / "model").records.protection or {})["label"] == 1


def test_one_command_trains_a_filter_with_a_proved_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write(tmp_path / "data.jsonl", 500), tmp_path / "filter"
    command = ["train", "--method", "exact", "--protect", "spam", "--max-false-positives", "0.05", "--data", data]
    command += ["--out", out, "--set", "levels=4"]
    assert run(*command) == 0
    shown = capsys.readouterr().out
    model = load_model(out)
    known = model.records.protection
    assert known["sentence"] in shown
    assert known["sentence"] in (out / "README.md").read_text()
    assert (out / "detection.png").exists()
    assert run("plan", "--model", out) == 0
    assert known["sentence"] in capsys.readouterr().out
    curve = [known["detected"] / known["positives"], *known["certified"].values()]
    assert curve == sorted(curve, reverse=True)
    assert 0.0 in curve
    assert 0 < known["padded"] <= curve[0]
    assert (known["positives"], known["negatives"]) == (250, 500 - model.records.training["data"]["rows"])
    assert "% without a certificate)" in known["sentence"]
    assert f"{known['negatives']} rows of the other class proved the rate, all others trained the model" in shown
    assert shown.count("\n  row ") >= allowed_false_positives(known["negatives"], 0.05)
    assert "(chosen)" in shown
    assert "without a certificate |" in (out / "README.md").read_text()
    texts = mails(500)[0]
    trained, proof = (known_texts(texts, model.records.texts[use]) for use in ("training", "threshold"))
    assert (trained ^ proof).all()
    assert run(*command) == 0
    assert "trained already" in capsys.readouterr().out
    assert run("certify", out, "--data", data, "--out", tmp_path / "run") == 0
    assert "protects spam" in capsys.readouterr().out
    assert run("verify", tmp_path / "run") == 0
    assert run("train", "--method", "exact", "--protect", "eggs", *command[5:]) == 2


def test_a_rate_that_the_data_cannot_prove_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptdel.training.jobs.train_exact", lambda *_, **__: pytest.fail("trained"))
    fields = {"data": str(write(tmp_path / "data.jsonl", 200)), "out": str(tmp_path / "filter"), **FIELDS}
    job = TrainingJob.from_dict({**fields, "protect": "spam", "max_false_positives": 0.01})
    with pytest.raises(ValueError, match="at least 598"):
        train_job(job, progress=False)
