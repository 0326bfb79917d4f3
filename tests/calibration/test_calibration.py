"""Calibrated folders: which rows are used, what is stored, the command and the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from adaptdel.calibration import CalibrationSettings
from adaptdel.calibration.bins import BinTask
from adaptdel.calibration.calibration import CHECKPOINT, calibrate_folder, folder_task
from adaptdel.calibration.candidates import SelectionTask
from adaptdel.cli.calibrate import calibrate_command
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.data import Examples, known_texts, read_examples, text_hashes
from adaptdel.training import train
from adaptdel.training.protection import protect
from tests.calibration.documents import (
    DATA,
    Stop,
    contents,
    data_file,
    documents,
    fitted,
    folder_settings,
    saved,
    whole,
)

SETTINGS = ["bins=0,40,80", "per_bin=24", "min_count=10", "n_select=16", "n_estimate=64", "tol=2"]
ARGUMENTS = [part for name in SETTINGS for part in ("--set", name)]
PAPER = [*ARGUMENTS, "--objective", "paper"]


def rows_used(known: list[str], *, seen: int, **settings: Any) -> tuple[list[Any], list[str]]:
    """The examples of a calibration in bins on 240 rows, and its notes, if the model was trained on ``known`` texts."""
    model = SmoothedClassifier(fitted().base, fitted().noise, progress=False)
    model.record(texts={"training": text_hashes(known)})
    examples = Examples(DATA[0], list(DATA[1]), list(range(1, 241)), "d")
    assert known_texts(DATA[0], model.records.texts["training"]).sum() == seen
    notes: list[str] = []
    task = folder_task(model, examples, folder_settings(**{"per_bin": 1000, **settings}), notes.append)
    assert isinstance(task, BinTask)
    return [tokens for sample in task.samples for tokens in sample.tokens], notes


def test_rows_that_the_model_was_trained_on_are_recognised_and_named() -> None:
    """In another file, in other rows and with other spacing."""
    known = [f"  {text}" for text in reversed(DATA[0][:60])]
    used, notes = rows_used(known, seen=60)
    assert sorted(used) == sorted(tuple(text.split()) for text in DATA[0][60:])
    assert "60 of 240 rows, the first is row 1:" in notes[0]
    used, notes = rows_used(DATA[0][5:235], seen=230)
    assert len(used) == 240
    assert "230 of 240 rows, the first is row 6:" in notes[0]
    used, notes = rows_used(known, seen=60, on="training", bins=[0])
    assert sorted(used) == sorted(tuple(text.split()) for text in DATA[0][:60])
    with pytest.raises(ValueError, match="on='training' needs"):
        rows_used(["another text"], seen=0, on="training")
    assert rows_used(["another text"], seen=0)[1] == []


def test_a_linear_model_is_trained_again_on_its_training_set(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = documents(150, 6)
    model = train(texts, labels, method="adaptdel+", rate=0.8, progress=False, bits=10, copies=4, validation=0.3)
    held = known_texts(texts, model.records.texts["held out"])

    def task(texts: list[str], labels: list[int], **settings: Any) -> SelectionTask:
        examples = Examples(texts, list(labels), list(range(len(texts))), "d")
        result = folder_task(model, examples, CalibrationSettings(min_count=20, **settings), lambda text: None)
        assert isinstance(result, SelectionTask)
        return result

    order = np.random.default_rng(0).permutation(150)
    crossed = task([texts[n] for n in order], [labels[n] for n in order])
    assert crossed.training is not None
    assert len(crossed.training.labels) == (~held).sum()
    assert len(crossed.examples.labels) == 150
    monkeypatch.setattr("adaptdel.calibration.calibration.ENOUGH_ROWS", 30)
    fresh = task(texts, labels)
    assert fresh.training is not None
    assert len(fresh.examples.labels) == held.sum()
    assert task(texts[10:], labels[10:]).training is None  # a part of the training set is missing


def test_a_folder_is_calibrated_in_place_or_copied_and_goes_on(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    earlier = contents(model)
    copied = calibrate_folder(model, examples, folder_settings(), out=tmp_path / "deep" / "copy", progress=False)
    assert contents(model) == earlier
    assert copied.record == whole().record
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["copy"]

    def progress(done: int, total: int) -> None:
        if done > 24 * 5:
            raise Stop

    with pytest.raises(Stop):
        calibrate_folder(model, examples, folder_settings(), progress=progress)
    assert {k: v for k, v in contents(model).items() if not k.startswith(CHECKPOINT)} == earlier  # nothing half-written
    done = calibrate_folder(model, examples, folder_settings(), progress=False)
    assert (done.record, done.already_done, done.folder) == (whole().record, False, model)
    for folder in (model, copied.folder):
        loaded = SmoothedClassifier.load(folder)
        assert loaded.noise_ == whole().noise
        assert loaded.records.calibration == whole().record
        assert known_texts(examples.texts, loaded.records.texts["calibration"]).all()
        assert (folder / "calibration.png").read_bytes()[:4] == b"\x89PNG"
        assert not list(folder.glob(f"{CHECKPOINT}*"))
    again = calibrate_folder(model, examples, folder_settings(), progress=lambda done, total: pytest.fail("recomputed"))
    assert (again.record, again.already_done) == (whole().record, True)


def test_a_calibration_removes_the_threshold_of_another_rate(tmp_path: Path) -> None:
    model = SmoothedClassifier.load(saved(tmp_path / "first"))
    model.set_params(n_select=50)
    protect(model, *documents(120, 30), label=1, max_false_positives=0.2, certify=0)
    model.save(tmp_path / "model")
    notes: list[str] = []
    examples = read_examples(str(data_file(tmp_path)))
    done = calibrate_folder(tmp_path / "model", examples, folder_settings(), progress=False, note=notes.append)
    assert done.record == whole().record  # the threshold has no effect on the rate either
    assert any("protect" in sentence for sentence in notes)
    loaded = SmoothedClassifier.load(tmp_path / "model")
    assert loaded.threshold is None
    assert loaded.records.protection is None


def test_a_copy_replaces_nothing_unasked(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="not a model"):
        calibrate_folder(model, examples, folder_settings(), out=tmp_path / "other", overwrite=True)
    out = saved(tmp_path / "out")
    with pytest.raises(ValueError, match="--overwrite"):
        calibrate_folder(model, examples, folder_settings(), out=out)
    calibrate_folder(model, examples, folder_settings(), out=out, overwrite=True, progress=False)
    assert SmoothedClassifier.load(out).noise_ == whole().noise


def test_the_command(tmp_path: Path) -> None:
    model, data = saved(tmp_path / "model"), data_file(tmp_path)
    arguments = [str(model), "--out", str(model), "--data", str(data), *PAPER]
    ran = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    for text in ("0 to 40", "40 to 80", "from 80", f"{model}: calibrated", f"noise: {whole().noise!r}"):
        assert text in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("next: adaptdel certify ")
    card = (model / "README.md").read_text(encoding="utf-8")
    warned = [line.removeprefix("warning: ") for line in ran.stderr.splitlines() if line.startswith("warning: ")]
    assert warned == whole().record["warnings"]
    assert all(sentence in card for sentence in warned)
    again = CliRunner().invoke(calibrate_command, [*arguments, "--json"], catch_exceptions=False)
    shown = json.loads(again.stdout)
    assert shown["finished_before"] is True
    assert whole().record.items() <= shown.items()
    with pytest.raises(ValueError, match="per_bins"):
        CliRunner().invoke(calibrate_command, [*arguments, "--set", "per_bins=3"], catch_exceptions=False)
