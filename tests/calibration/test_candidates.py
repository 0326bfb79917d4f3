"""The objective "balanced": candidate rates, paired comparisons, refits, resuming, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from adaptdel.calibration import Calibration, calibrate
from adaptdel.calibration.calibration import CHECKPOINT
from adaptdel.calibration.candidates import (
    Candidate,
    CandidateOutcomes,
    Sample,
    choose,
    compare,
    cross_validation,
    power_rate,
    reference_of,
)
from adaptdel.classifiers import CallableClassifier
from adaptdel.cli.calibrate import calibrate_command
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate, LengthRate, Rate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CalibrationSettings, TrainingSettings
from adaptdel.text.data import ExampleSet
from adaptdel.training import TrainingJob, train, train_job
from tests.calibration.documents import contents, documents

QUICK: dict[str, Any] = {"examples": 80, "n_select": 16, "n_estimate": 64, "min_count": 20}


def sample(size: int = 200, share: float = 0.5) -> Sample:
    label = (np.arange(size) < share * size).astype(np.int64)
    return Sample(np.full(size, 50), label)


def outcomes(
    given: Sample, wrong: int, radius: int, *, name: str = "power 0", is_calibrated: bool = True
) -> CandidateOutcomes:
    """Answers that are wrong on the first inputs, all with the same radius."""
    answer = given.label.copy()
    answer[:wrong] = 1 - answer[:wrong]
    candidate = Candidate(name, Deletion(FixedRate(0.5 + radius / 1000)), is_calibrated)
    return CandidateOutcomes(candidate, given, answer, np.full(len(answer), radius))


def test_a_class_counts_as_much_as_another() -> None:
    given = sample(100, 0.1)
    assert given.balanced_mean(given.label) == pytest.approx(0.5)
    radii = np.where(given.label == 1, 10, 0)
    assert given.balanced_mean(radii) == pytest.approx(5)
    noise = np.random.default_rng(0).normal(size=(2000, 100))
    spread = np.std([given.balanced_mean(row) for row in noise])
    assert np.mean([given.balanced_error(row) for row in noise]) == pytest.approx(spread, rel=0.1)


def test_radii_count_up_to_the_length_and_only_right_answers() -> None:
    given = sample(10)
    result = CandidateOutcomes(Candidate("x", Deletion(FixedRate(0.9)), True), given, given.label, np.full(10, 80))
    assert result.radii.tolist() == [50] * 10
    wrong = replace(result, answer=1 - given.label)
    assert wrong.radii.tolist() == [0] * 10


def test_the_largest_radius_within_the_points_is_chosen() -> None:
    given = sample()
    best = outcomes(given, 10, 3, name="fixed", is_calibrated=False)
    near, far = outcomes(given, 10, 5), outcomes(given, 30, 40)
    assert reference_of([outcomes(given, 20, 9, is_calibrated=False), best]) is best
    assert choose([best, near, far], best, 1.0) is near
    assert choose([best, near, far], best, 50.0) is far
    assert not compare(far, best, 1.0)["feasible"]
    assert compare(near, best, 1.0)["radius_difference"] == pytest.approx(2 * 0.95)


def test_a_calibrated_rate_has_to_be_clearly_as_accurate() -> None:
    """Two more errors of 200 are a point, which is not shown with a standard error to spare; a baseline is believed."""
    given = sample()
    best, close = outcomes(given, 10, 3, name="fixed", is_calibrated=False), outcomes(given, 12, 9)
    assert not compare(close, best, 1.0)["feasible"]
    assert compare(replace(close, candidate=replace(close.candidate, is_calibrated=False)), best, 1.0)["feasible"]
    assert compare(close, best, 2.5)["feasible"]


@pytest.mark.parametrize(("rare", "is_feasible"), [(26, False), (4, False), (100, True)])
def test_the_accuracy_of_a_rare_class_is_limited(rare: int, is_feasible: bool) -> None:
    """Two more errors on the only 26 or 4 inputs of a class: a point of accuracy, and much of balanced accuracy."""
    label = (np.arange(200) < rare).astype(np.int64)
    given = Sample(np.full(200, 50), label)
    best = outcomes(given, 0, 3, name="fixed", is_calibrated=False)
    other = outcomes(given, 2, 9)
    result = compare(other, best, 2.9)
    assert result["accuracy_difference"] == pytest.approx(-0.01)
    assert result["balanced_difference"] == pytest.approx(-1 / rare)
    assert result["feasible"] == is_feasible
    assert compare(other, replace(best, answer=np.zeros(200, dtype=np.int64)), 2.9)["feasible"]


def test_a_constant_answer_is_never_chosen() -> None:
    given = sample(200, 0.05)
    best = outcomes(given, 2, 1, name="fixed", is_calibrated=False)
    constant = CandidateOutcomes(
        Candidate("power 0", Deletion(FixedRate(0.99)), True), given, np.zeros(200, dtype=np.int64), np.full(200, 40)
    )
    assert constant.is_constant
    assert constant.right.mean() >= best.right.mean() - 0.05
    assert choose([best, constant], best, 10.0) is best
    alone = replace(constant, candidate=replace(constant.candidate, is_calibrated=False))
    assert reference_of([alone, best]) is best
    assert choose([alone], alone, 1.0) is alone  # there is nothing else


def test_a_calibrated_rate_must_be_better_beyond_noise() -> None:
    given = sample()
    rng = np.random.default_rng(1)
    simple = outcomes(given, 10, 5, name="fixed", is_calibrated=False)
    radius = simple.radius + rng.integers(-4, 5, size=200)
    radius += round(5 - radius.mean())
    noisy = CandidateOutcomes(Candidate("power 0", Deletion(FixedRate(0.8)), True), given, simple.answer, radius)
    assert abs(compare(noisy, simple, 1.0)["radius_difference"]) < 1
    better = replace(noisy, radius=radius + 2)
    assert choose([simple, better], simple, 1.0) is better
    worse = replace(noisy, radius=radius - 1)
    assert choose([simple, worse], simple, 1.0) is simple


def test_powers_of_the_length() -> None:
    constant, half = power_rate(8, 64, 0.0), power_rate(8, 64, 0.5)

    def kept(rate: Rate, n: int) -> float:
        return n * (1 - rate(n))

    assert [round(kept(constant, n), 2) for n in (20, 64, 5000)] == [8, 8, 8]
    assert [round(kept(half, n), 1) for n in (16, 64, 256)] == [4, 8, 16]
    assert kept(constant, 4) == pytest.approx(2)  # at most half of the tokens
    assert kept(power_rate(0.1, 64, 0.0), 64) == pytest.approx(1)  # at least one


def test_folds_are_disjoint_and_keep_equal_texts_together() -> None:
    texts = [f"text {number % 40}" for number in range(120)]
    examples = ExampleSet([tuple(text.split()) for text in texts], [0, 1] * 60)
    numbers = list(range(0, 120, 2))
    folds = cross_validation(texts, examples, numbers, 0)
    assert sorted(index for _, inside in folds for index in inside) == list(range(60))
    for outside, inside in folds:
        inner = {texts[numbers[index]] for index in inside}
        assert not inner & {" ".join(map(str, tokens)) for tokens in outside.tokens}
        assert 0 < len(inner) < 40


def test_a_class_that_a_fold_cannot_train_on_is_refused() -> None:
    """The answers of a model of two classes would be counted for other classes of three."""
    texts = [f"text {number}" for number in range(30)]
    examples = ExampleSet([tuple(text.split()) for text in texts], [0, *[1, 2] * 14, 2])
    with pytest.raises(ValueError, match="class 0 has 1 example"):
        cross_validation(texts, examples, range(30), 0)
    cross_validation(texts[1:], ExampleSet(examples.tokens[1:], examples.labels[1:]), range(29), 0)


def balanced(**changed: Any) -> Calibration:
    texts, labels = documents(160, 5)
    model = train(*documents(200, 6), method="adaptdel+", rate=0.8, progress=False, bits=10)
    return calibrate(model, texts, labels, **{"progress": False, **QUICK, **changed})


def test_the_default_objective_compares_the_baselines_first() -> None:
    result = balanced()
    record, candidates = result.record, result.record["candidates"]
    assert [candidate["name"] for candidate in candidates[:2]] == ["fixed", "adaptdel"]
    assert candidates[record["reference"]]["is_calibrated"] is False
    chosen, feasible = candidates[record["chosen"]], [each for each in candidates if each["feasible"]]
    assert chosen["feasible"] or record["chosen"] == record["reference"]
    assert chosen["balanced_radius"] >= max(
        each["balanced_radius"] for each in feasible if each["is_calibrated"] is False
    )
    assert result.rate.to_dict() == chosen["rate"] == record["rate"]
    assert result == balanced()
    assert json.loads(json.dumps(record)) == record


def test_refits_need_the_training_set() -> None:
    texts, labels = documents(80, 5)
    training = documents(120, 6)
    model = train(*training, method="adaptdel+", rate=0.8, progress=False, bits=10)
    result = calibrate(model, texts, labels, training=training, progress=False, **QUICK)
    assert result.base is not None
    assert result.base.fingerprint() != model.base_.fingerprint()
    assert result.base.classes_ == model.base_.classes_


@pytest.mark.parametrize(
    "fields",
    [
        {"threshold": 0.5},
        {"objective": "paper", "points": 2.0},
        {"points": -1},
        {"on": "train"},
        {"bins": "many"},
        {"objective": "median"},
        {"objective": "paper", "tol": 0},
        {"n_estimate": 0},
    ],
)
def test_wrong_settings(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{list(fields)[-1]} "):
        CalibrationSettings(**fields)


@pytest.mark.parametrize("settings", [QUICK, {"objective": "paper", "threshold": 0.3, "bins": [0, 60], "tol": 8.0}])
def test_no_rate_is_chosen_where_all_give_a_constant_answer(settings: dict[str, Any]) -> None:
    texts, labels = documents(80, 5)
    constant = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1], progress=False)
    constant.noise = Deletion(FixedRate(0.9))
    with pytest.raises(ValueError, match="no rate works here"):
        calibrate(constant, texts, labels, progress=False, **settings | {"n_select": 8, "n_estimate": 16})


def test_a_varied_candidate_is_chosen_where_both_baselines_give_a_constant_answer() -> None:
    """A model that needs eight words to tell the classes apart, at a rate that leaves two."""
    rng = np.random.default_rng(0)
    texts = [" ".join(["sign" if n % 10 == 0 else "fill"] * int(rng.integers(30, 60))) for n in range(100)]
    base = CallableClassifier(lambda batch: [int(text.split().count("sign") >= 8) for text in batch], [0, 1])
    model = SmoothedClassifier(base, Deletion(FixedRate(0.96)), progress=False)
    record = calibrate(model, texts, [int("sign" in text) for text in texts], progress=False, **QUICK).record
    assert [candidate["constant"] for candidate in record["candidates"][:2]] == [True, True]
    assert not record["candidates"][record["chosen"]]["constant"]


def test_the_command_writes_a_new_folder(tmp_path: Path) -> None:
    data, model = tmp_path / "train.jsonl", tmp_path / "model"
    rows = [json.dumps({"text": t, "label": y}) for t, y in zip(*documents(150, 6), strict=True)]
    data.write_text("\n".join(rows), encoding="utf-8")
    settings = TrainingSettings.from_dict({"method": "adaptdel+", "rate": 0.8, "bits": 10, "copies": 4})
    train_job(TrainingJob(str(data), str(model), settings), progress=False)
    stored = contents(model)
    arguments = [str(model), "--data", str(data)]
    for name in ("examples=60", "n_select=16", "n_estimate=64", "min_count=20"):
        arguments += ["--set", name]
    ran = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    assert contents(model) == stored
    out = tmp_path / "model-calibrated"
    for text in (f"{out}: calibrated", "candidate", "Measured on 60 inputs", "By class, under the chosen rate:"):
        assert text in ran.stdout
    assert "by cross-validation; each candidate trains the model again" in ran.stderr
    loaded = SmoothedClassifier.load(out)
    record = loaded.records.calibration or {}
    assert loaded.noise_.to_dict()["rate"] == record["rate"]
    assert sum(row["inputs"] for row in record["classes"]) == sum(map(sum, record["confusion"])) == 60
    chosen = record["candidates"][record["chosen"]]
    assert np.mean([row["recall"] for row in record["classes"]]) == pytest.approx(chosen["balanced_accuracy"])
    assert "| class | inputs | recall |" in (out / "README.md").read_text(encoding="utf-8")
    earlier = SmoothedClassifier.load(model).records.training or {}  # its figures are those of another base classifier
    assert earlier["held_out"] is not None
    assert ((loaded.records.training or {})["calibrated"], (loaded.records.training or {})["held_out"]) == (True, None)
    assert {row["valid_accuracy"] for row in (loaded.records.training or {})["history"]} == {None}
    assert (out / "calibration.png").exists()
    assert not list(tmp_path.glob(f"*{CHECKPOINT}*"))
    again = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert "was calibrated before, nothing to do" in again.stdout
    for said in (f"{model}: calibrated", f"{model}: was calibrated before"):
        inside = CliRunner().invoke(calibrate_command, [*arguments, "--out", str(model)], catch_exceptions=False)
        assert said in inside.stdout
    assert SmoothedClassifier.load(model).base_.fingerprint() == loaded.base_.fingerprint()


def test_baselines_are_those_of_the_model() -> None:
    texts, labels = documents(60, 8)
    model = train(texts, labels, method="adaptdel", rate=0.7, progress=False, bits=8)
    result = calibrate(model, texts, labels, progress=False, **QUICK)
    rates = [candidate["rate"] for candidate in result.record["candidates"][:2]]
    assert isinstance(model.noise_, Deletion)
    assert isinstance(model.noise_.rate, LengthRate)
    assert rates == [FixedRate(0.7).to_dict(), model.noise_.rate.to_dict()]
