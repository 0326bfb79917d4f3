"""Attacks on additive classifiers: the counterexample is the attack, so no gap is left above the certified radius."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import adaptdel as ad
from adaptdel.attacks.attack_run import AttackJob, attack_data
from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.target import ExactTarget
from adaptdel.runs.inputs import Source
from adaptdel.runs.storage import read_run
from adaptdel.settings import AdditiveTrainingSettings, AttackSettings
from tests.attacks.conftest import texts
from tests.training.test_training import run as command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    rows = texts(200, 20)
    model = ad.AdditiveClassifier(settings=AdditiveTrainingSettings(levels=4, iterations=20), progress=False)
    model.fit([text for text, _ in rows], [label for _, label in rows]).save(folder / "model")
    lines = [json.dumps({"text": text, "label": label}) for text, label in texts(30, 20, seed=1)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("ops", ["edit", "del,ins"])
def test_the_attacked_distance_is_one_more_than_the_radius(folder: Path, tmp_path: Path, ops: str) -> None:
    job = AttackJob(folder / "model", Source(str(folder / "data.jsonl")), tmp_path / "run", ops=ops)
    run = attack_data(job, progress=False)
    model = ad.AdditiveClassifier.load(folder / "model")
    attacked = [record for record in run.records if record["outcome"] == "success"]
    assert len(attacked) >= 10  # none is known where no word has the largest effect that the bound allows
    original = [text for text, _ in texts(30, 20, seed=1)]
    for record in attacked:
        assert record["verified"] is True
        assert record["distance"] == record["radius"] + 1
        before_attack = original[record["row"] - 1].split()
        assert edit_distance(before_attack, record["text"].split(), ops.split(",")) == record["distance"]
        assert model.predict([record["text"]])[0] != record["answer"]


def test_a_target_answers_with_its_scores(folder: Path) -> None:
    target = ExactTarget(ad.AdditiveClassifier.load(folder / "model"), AttackSettings())
    given = [text for text, _ in texts(10, 20, seed=2)]
    scores = target.query(given)
    assert scores.argmax(axis=1).tolist() == [target.certify(text, "a text")[0] for text in given]
    assert scores.sum(axis=1) == pytest.approx(1)
    assert target.spent.queries == 10


def test_attack_audit_and_plan_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = folder / "model", folder / "data.jsonl"
    assert command("attack", model, "--data", data, "--out", tmp_path / "attack", "--inputs", "5") == 0
    assert command("attack", model, "--data", data, "--out", tmp_path / "a", "--vocabulary", data) == 2
    assert command("certify", model, "--data", data, "--out", tmp_path / "run") == 0
    assert read_run(tmp_path / "run").finished
    capsys.readouterr()
    assert command("audit", tmp_path / "run") == 2
    assert "verify --model" in capsys.readouterr().err
    assert command("plan", "--model", model) == 0
    assert "mean radius" in capsys.readouterr().out
