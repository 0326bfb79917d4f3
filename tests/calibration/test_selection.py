"""The objective "balanced": which candidates are measured, refits, the second measurement, resuming, the command."""

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
from adaptdel.calibration.candidates import Candidate, CandidateOutcomes, Sample, reference_of
from adaptdel.calibration.selection import Inputs, MeasuredCandidates, SelectionTask, confirmed, cross_validation
from adaptdel.classifiers import CallableClassifier
from adaptdel.cli.calibrate import calibrate_command
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CalibrationSettings, TrainingSettings
from adaptdel.text.data import ExampleSet
from adaptdel.training import TrainingJob, train, train_job
from tests.calibration.documents import contents, documents
from tests.calibration.test_candidates import outcomes, sample

QUICK: dict[str, Any] = {"examples": 80, "n_select": 16, "n_estimate": 64, "min_count": 20}


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
    record = loaded.calibration_
    assert loaded.noise_.to_dict()["rate"] == record["rate"]
    assert sum(row["inputs"] for row in record["classes"]) == sum(map(sum, record["confusion"])) == 60
    chosen = record["candidates"][record["chosen"]]
    assert np.mean([row["recall"] for row in record["classes"]]) == pytest.approx(chosen["balanced_accuracy"])
    assert "| class | inputs | recall |" in (out / "README.md").read_text(encoding="utf-8")
    earlier = SmoothedClassifier.load(model).training_  # its figures are those of another base classifier
    assert earlier["held_out"] is not None
    assert (loaded.training_["calibrated"], loaded.training_["held_out"]) == (True, None)
    assert {row["valid_accuracy"] for row in loaded.training_["history"]} == {None}
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


def measured(given: Sample, *all: CandidateOutcomes) -> MeasuredCandidates:
    """Candidates that were measured."""
    examples = ExampleSet([("a",)] * len(given.label), given.label.tolist())
    result = MeasuredCandidates(None, Inputs(examples, given, is_fresh=True), None)  # type: ignore[arg-type]
    result.all = list(all)
    return result


@pytest.mark.parametrize(("wrong", "radius", "is_confirmed"), [(10, 5, True), (60, 5, False), (10, 2, False)])
def test_a_candidate_that_a_second_measurement_does_not_confirm_is_not_chosen(
    wrong: int, radius: int, is_confirmed: bool
) -> None:
    """The first measurement is lucky; the second one shows fewer right answers, or radii below those of CERT-ED."""
    given = sample(1000)
    fixed = outcomes(given, 10, 3, name="fixed", is_calibrated=False)
    lucky = outcomes(given, 10, 4)
    again = measured(given, fixed, replace(outcomes(given, wrong, radius), candidate=lucky.candidate))
    chosen, confirmation, rejected = confirmed(measured(given, fixed, lucky), again, fixed, 1.0)
    assert (chosen is lucky) == is_confirmed
    assert [each is lucky for each in rejected] == ([] if is_confirmed else [True])
    assert (confirmation is not None) == is_confirmed
    if confirmation is not None:
        assert (confirmation["rows"], confirmation["is_fresh"]) == (1000, True)
        assert confirmation["comparison"]["accuracy_difference"] == 0
    assert confirmed(measured(given, fixed, lucky), None, fixed, 1.0)[0] is lucky


def test_a_candidate_is_not_compared_with_the_radii_of_a_constant_answer() -> None:
    """The rate that needs no calibration answers the frequent class always, with a large radius."""
    given = sample(1000, 0.05)
    constant = CandidateOutcomes(
        Candidate("fixed", Deletion(FixedRate(0.9)), False), np.zeros(1000, dtype=np.int64), np.full(1000, 20)
    )
    varied = outcomes(given, 10, 3)
    assert constant.is_constant(given)
    assert given.balanced_mean(constant.radii(given)) > given.balanced_mean(varied.radii(given))
    again = measured(given, constant, varied)
    reference = reference_of([constant, varied], given)
    chosen, _, rejected = confirmed(measured(given, constant, varied), again, reference, 1.0)
    assert chosen is reference is varied
    assert not rejected


def test_the_second_measurement_is_on_other_texts_where_there_are_enough() -> None:
    texts, labels = documents(300, 3)
    model = train(texts, labels, method="adaptdel+", rate=0.7, progress=False, bits=10, copies=4, validation=0.0)

    def task(settings: CalibrationSettings, **options: Any) -> SelectionTask:
        return SelectionTask(model, texts, labels, settings, **options)

    crossed: dict[str, Any] = {"training": (texts, labels), "cross_validate": True}
    few, everything = CalibrationSettings(**QUICK), CalibrationSettings(**QUICK | {"examples": 300})
    fresh = task(few, **crossed)
    assert fresh.second is not None
    assert fresh.second.is_fresh
    assert len(fresh.second.examples.tokens) == 80
    assert not set(fresh.second.examples.tokens) & set(fresh.first.examples.tokens)
    for rows, numbers in fresh.second.folds or ():
        assert not {fresh.second.examples.tokens[number] for number in numbers} & set(rows.tokens)
    repeated = task(everything, **crossed)
    assert repeated.second is not None
    assert not repeated.second.is_fresh
    assert repeated.second.examples == repeated.first.examples
    assert [numbers for _, numbers in repeated.second.folds or ()] != [
        numbers for _, numbers in repeated.first.folds or ()
    ]
    assert task(everything).second is None
    second = task(few).second
    assert second is not None
    assert second.folds is None
