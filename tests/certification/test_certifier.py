"""The engine: every entry point uses it, splits each text once, and lets one input fail without the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel import Certifier, Deletion, FixedRate, SmoothedClassifier
from adaptdel.calibration import CalibrationSettings, calibrate
from adaptdel.calibration.calibration import calibrate_folder
from adaptdel.certification.certifier import Input
from adaptdel.certification.pool import VotePool
from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, Request
from adaptdel.core.checks import IntArray
from adaptdel.text.data import read_examples
from adaptdel.text.units import Words
from adaptdel.training.training import train
from tests.run_files import examples, make_model, run, write_rows

COUNT = 40
BINS: dict[str, Any] = {
    "objective": "paper",
    "bins": [0, 40],
    "min_count": 1,
    "per_bin": 5,
    "n_select": 8,
    "n_estimate": 16,
    "tol": 20.0,
}


class Refusing(BaseClassifier):
    """Fails on inputs that contain "poison", whether its copies do or not."""

    def __init__(self) -> None:
        self.classes_ = [0, 1]

    def votes(self, requests: Iterable[Request]) -> list[IntArray]:
        for request in requests:
            if "poison" in request.prepared.tokens:
                raise BaseClassifierError(f"cannot read {request.prepared.name}")
        return [np.zeros(len(request.kept), dtype=np.int64) for request in requests]


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text has been split into words."""
    counts: Counter[str] = Counter()
    split = Words.split

    def counting(self: Words, text: Any) -> Any:
        counts[text] += 1
        return split(self, text)

    monkeypatch.setattr(Words, "split", counting)
    return counts


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> set[VotePool]:
    """The pools that took votes."""
    used: set[VotePool] = set()
    step = VotePool.step

    def recording(self: VotePool, work: int | None = None) -> Any:
        used.add(self)
        return step(self, work)

    monkeypatch.setattr(VotePool, "step", recording)
    return used


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("certifier") / "model")


def distinct_texts() -> tuple[list[str], list[int]]:
    """Texts that differ from one another, so that a second split of one of them shows; long enough for smoothing."""
    pairs = examples(COUNT, seed=7)
    return [f"number{n} {'word ' * 20}{text}" for n, (text, _) in enumerate(pairs)], [label for _, label in pairs]


def data_file(folder: Path) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(*distinct_texts(), strict=True)]
    return write_rows(folder / "data.jsonl", rows)


def run_in_memory(model: SmoothedClassifier, folder: Path) -> None:
    texts, labels = distinct_texts()
    ad.evaluate(model, texts, labels=labels, out=folder / "run", progress=False)


def run_of_a_folder(model: SmoothedClassifier, folder: Path) -> None:
    model.save(folder / "model")
    assert run("certify", folder / "model", "--data", data_file(folder), "--out", folder / "run") == 0


def calibration_of_a_folder(model: SmoothedClassifier, folder: Path) -> None:
    model.save(folder / "model")
    calibrate_folder(folder / "model", read_examples(data_file(folder)), CalibrationSettings(**BINS), progress=False)


def training_of_a_folder(model: SmoothedClassifier, folder: Path) -> None:
    assert run("train", "--data", data_file(folder), "--set", "bits=8", "--out", folder / "model") == 0


PATHS: dict[str, Callable[[SmoothedClassifier, Path], object]] = {
    "certify": lambda model, folder: model.certify(distinct_texts()[0]),
    "predict": lambda model, folder: model.predict(distinct_texts()[0]),
    "predict_proba": lambda model, folder: model.predict_proba(distinct_texts()[0]),
    "pipeline": lambda model, folder: ad.pipeline(model)(distinct_texts()[0]),
    "evaluate": run_in_memory,
    "adaptdel certify": run_of_a_folder,
    "calibrate": lambda model, folder: calibrate(model, *distinct_texts(), progress=False, **BINS),
    "adaptdel calibrate": calibration_of_a_folder,
    "calibrate by the default objective": lambda model, folder: calibrate(
        model, *distinct_texts(), progress=False, n_select=8, n_estimate=16, points=3, examples=20
    ),
    "adaptdel train": training_of_a_folder,
    "train, which measures held-out examples": lambda model, folder: train(
        *distinct_texts(), method="cert-ed", rate=0.5, validation=0.3, progress=False
    ),
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_every_path_uses_the_engine_and_splits_each_text_once(
    path: Callable[[SmoothedClassifier, Path], object],
    folder: Path,
    tmp_path: Path,
    splits: Counter[str],
    engines: set[VotePool],
) -> None:
    model = SmoothedClassifier.load(folder)
    path(model, tmp_path)
    assert splits == dict.fromkeys(distinct_texts()[0], 1)
    assert engines


def named(texts: Iterable[str]) -> Iterator[Input]:
    return (Input(text, f"input {n}", n) for n, text in enumerate(texts))


def test_one_input_fails_and_the_others_are_certified(splits: Counter[str]) -> None:
    """Also without a second split, although the inputs in flight are certified again one by one."""
    texts = [f"{n} " + "poison " * (n % 7 == 3) + "word " * 20 for n in range(100)]
    certifier = SmoothedClassifier(Refusing(), Deletion(FixedRate(0.9))).certifier()
    results = {result.input.tag: result for result in certifier(named(texts))}
    assert sorted(results) == list(range(100))
    for number, result in results.items():
        assert result.failure == (f"cannot read input {number}" if number % 7 == 3 else None)
        assert (result.certificate is None) == (number % 7 == 3)
    assert splits == dict.fromkeys(texts, 1)


def test_an_invalid_input_is_a_failure() -> None:
    certifier = SmoothedClassifier(Refusing(), Deletion(FixedRate(0.9))).certifier()
    results = {result.input.tag: result for result in certifier(named(["a b", 3, "c d"]))}  # type: ignore[list-item]
    assert results[1].failure == "an input must be a text (str) for the unit 'word', got int"
    assert [results[number].failure for number in (0, 2)] == [None, None]


def test_another_noise_for_prepared_inputs(folder: Path) -> None:
    """`under` gives the votes of a certifier that was made with the noise, without preparing the input again."""
    model = SmoothedClassifier.load(folder)
    certifier = model.certifier()
    prepared = certifier.prepare("w1 w2 w3 " * 20, "input 0")
    noise = Deletion(FixedRate(0.8))
    other = certifier.under(noise)
    assert certifier.rule.noise != noise
    [(_, tally)] = other.votes([prepared])
    fresh = Certifier(certifier.base, replace(certifier.plan, rule=replace(certifier.rule, noise=noise)), model.unit)
    [(_, expected)] = fresh.votes([fresh.prepare("w1 w2 w3 " * 20, "input 0")])
    assert other.certificate(prepared, tally) == fresh.certificate(prepared, expected)
