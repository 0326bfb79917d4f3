"""Measurements of a calibration: random streams, radii, stores that are resumed, damaged or of another job."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel.calibration import CalibrationSettings
from adaptdel.calibration.candidates import (
    CertifiedAnswers,
    constant_keep,
    examples_of,
    measuring,
)
from adaptdel.certification.evidence import Plan
from adaptdel.certification.sampling import CALIBRATE, stream
from adaptdel.certification.votes import CERTIFY
from adaptdel.classifiers import CallableClassifier, base
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.store import read_records
from adaptdel.text.units import Words, content_key
from tests.calibration.documents import DATA, TURNED, documents, fitted, quick, whole


def measured(model: SmoothedClassifier, plan: Plan, texts: list[str], keep: float) -> CertifiedAnswers:
    examples = examples_of(model, texts, [0] * len(texts))
    certifier = model.certifier(replace(plan, noise=constant_keep(keep)))  # type: ignore[call-arg]
    with measuring({"model": ""}, 1, progress=False) as measure:
        return measure("x", examples, lambda: [(certifier, range(len(texts)))])


@pytest.mark.parametrize("length", [1, 30, 300, 2000])
def test_copies_that_keep_more_keep_all_that_others_keep(length: int) -> None:
    earlier = np.zeros((64, length), dtype=bool)
    for keep in (1.0, 2.5, 2.6, 7.0, 8.0, 40.0, 300.0):
        kept = constant_keep(keep).sample(length, 64, stream(5, content_key(("a",) * length), CALIBRATE[1]))
        assert kept.sum() >= earlier.sum()
        assert (kept >= earlier).all()
        assert kept.mean() == pytest.approx(min(1, keep / length), abs=0.15)
        earlier = kept
    assert earlier[:, :1].any()


@pytest.mark.parametrize("keep", [9.0, 30.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_radii_are_those_of_certificates(classes: int, keep: float) -> None:
    texts, labels = documents(40, 3, classes)
    options: dict[str, Any] = {"ops": ["ins", "sub"], "alpha": 0.1}
    model = SmoothedClassifier(fitted(classes).base, **options)
    votes: dict[str, Any] = {"n_select": 32, "n_estimate": 128, "seed": 4}
    plan = replace(model.calibration_plan(CalibrationSettings(objective="paper", **votes)), phases=CERTIFY)
    result = measured(model, plan, texts, keep)
    options |= {**votes, "sampling": "fixed", "progress": False}
    direct = SmoothedClassifier(model.base, constant_keep(keep), **options).certify(texts)
    assert result.radius.tolist() == [c.radius for c in direct]
    assert [direct[0].classes[number] for number in result.answer] == [c.label for c in direct]
    assert len(set(result.radius.tolist())) >= 2
    assert 0.5 < np.mean([c.label == y for c, y in zip(direct, labels, strict=True)]) <= 1


def drawn_copies(act: Callable[[SmoothedClassifier, list[str]], object]) -> list[str]:
    """The copies of one long input that a model is asked about, in order, under a noise that keeps 12 tokens."""
    asked: list[str] = []

    def answer(batch: list[str]) -> list[int]:
        asked.extend(batch)
        return [len(copy) % 2 for copy in batch]

    text = " ".join(f"w{place}" for place in range(200))
    base = CallableClassifier(answer, [0, 1], recheck=0)
    model = SmoothedClassifier(
        base, constant_keep(12), sampling="fixed", n_select=40, n_estimate=60, seed=9, progress=False
    )
    act(model, [text])
    assert len(asked) == 100
    return asked


def calibrated_at_12(model: SmoothedClassifier, texts: list[str]) -> None:
    settings = CalibrationSettings(objective="paper", n_select=40, n_estimate=60, seed=9)
    measured(model, model.calibration_plan(settings), texts, 12)


def test_certifying_the_calibration_data_meets_new_noise() -> None:
    certified = drawn_copies(lambda model, texts: model.certify(texts))
    calibrated = drawn_copies(calibrated_at_12)
    assert not set(certified) & set(calibrated)
    assert calibrated == drawn_copies(calibrated_at_12)


def test_training_meets_other_noise_than_certification() -> None:
    """The copies that a model is fitted on are not those that it is certified or calibrated on."""
    text = tuple(f"w{place}" for place in range(200))
    copies = base.drawn_copies([text] * 3, constant_keep(12), Words(), copies=40, seed=9)
    trained = [" ".join(copy) for copy in copies]
    certified = drawn_copies(lambda model, texts: model.certify(texts))
    assert len(set(trained)) == 120
    assert not set(trained) & {*certified, *drawn_copies(calibrated_at_12)}


# Resuming


def kept(path: Path) -> list[Any]:
    return [values for _, values in read_records(path)] if path.exists() else []


def stored_job(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        job: dict[str, Any] = json.loads(connection.execute("SELECT value FROM job").fetchone()[0])
    return job


def killed_at(checkpoint: Path, done: int) -> None:
    """Calibrate in a process that is killed after so many certificates."""

    def progress(number: int, total: int) -> None:
        if number >= done:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        quick(TURNED, checkpoint=checkpoint, progress=progress)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_killed_and_resumed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    total, rng = 24 * len(whole().record["trace"]), random.Random(3)
    for number in range(4):
        done = rng.randrange(total * number // 4, total * (number + 1) // 4) + 1
        killed_at(checkpoint, done)
        assert len(kept(checkpoint)) == (done - (done % 24 == 0)) // 24  # all that were finished before
    assert quick(TURNED, checkpoint=checkpoint) == whole()


def test_a_store_knows_its_settings_data_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "checkpoint"
    quick(DATA, checkpoint=checkpoint)
    earlier = checkpoint.read_bytes()
    other = SmoothedClassifier(fitted(3).base, fitted().noise)
    for changed, word in (
        ((DATA, None, {"n_estimate": 65}), "n_estimate was 64, now 65"),
        ((DATA, None, {"bins": [0, 60]}), "bins was"),
        (((DATA[0], [1 - DATA[1][0], *DATA[1][1:]]), None, {}), "data was"),
        ((DATA, other, {}), "model was"),
    ):
        data, model, settings = changed
        with pytest.raises(ValueError, match=f"another job: .*{word}"):
            quick(data, model, **settings, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == earlier
    monkeypatch.setattr(CallableClassifier, "fingerprint", lambda self: "")
    nameless = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1])
    with pytest.raises(ValueError, match="checkpoint must be None"):
        quick(DATA, nameless, checkpoint=tmp_path / "new")
