"""The objective "balanced": candidates, paired comparisons, refits, resuming, folders and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from adaptdel.calibration import RateSelection, calibrate, plot_calibration, selection
from adaptdel.calibration.calibration import selection_task
from adaptdel.calibration.candidates import (
    Candidate,
    CandidateOutcomes,
    Sample,
    choose,
    compare,
    grouped_rate,
    power_rate,
    reference_of,
)
from adaptdel.calibration.folders import CHECKPOINT
from adaptdel.calibration.rate_selection import Confirmation
from adaptdel.calibration.search import CalibrationExamples
from adaptdel.calibration.selection import MeasuredInputs, SelectionTask, cross_validation
from adaptdel.cli.calibrate import calibrate_command
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate, LengthRate, Rate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.settings import CalibrationSettings, TrainingSettings
from adaptdel.store import read_records
from adaptdel.training import TrainingJob, train, train_job
from tests.calibration.documents import documents

QUICK: dict[str, Any] = {"examples": 80, "n_select": 16, "n_estimate": 64, "min_count": 20}


def sample(size: int = 200, share: float = 0.5) -> Sample:
    label = (np.arange(size) < share * size).astype(np.int64)
    return Sample(np.full(size, 50), label, 2)


def outcomes(
    given: Sample, wrong: int, radius: int, *, name: str = "power 0", complexity: int = 1
) -> CandidateOutcomes:
    """Answers that are wrong on the first inputs, all with the same radius."""
    answer = given.label.copy()
    answer[:wrong] = 1 - answer[:wrong]
    candidate = Candidate(name, FixedRate(0.5 + radius / 1000), complexity)
    return CandidateOutcomes(candidate, answer, np.full(len(answer), radius))


def test_a_class_counts_as_much_as_another() -> None:
    given = sample(100, 0.1)
    assert given.balanced_mean(given.label) == pytest.approx(0.5)
    assert given.class_weights.sum() == pytest.approx(1)
    radii = np.where(given.label == 1, 10, 0)
    assert given.balanced_mean(radii) == pytest.approx(5)
    noise = np.random.default_rng(0).normal(size=(2000, 100))
    spread = np.std([given.balanced_mean(row) for row in noise])
    assert np.mean([given.balanced_error(row) for row in noise]) == pytest.approx(spread, rel=0.1)


def test_radii_count_up_to_the_length_and_only_right_answers() -> None:
    given = sample(10)
    result = CandidateOutcomes(Candidate("x", FixedRate(0.9), 1), given.label, np.full(10, 80))
    assert result.radii(given).tolist() == [50] * 10
    wrong = replace(result, answer=1 - given.label)
    assert wrong.radii(given).tolist() == [0] * 10


def test_the_largest_radius_within_the_points_is_chosen() -> None:
    given = sample()
    best = outcomes(given, 10, 3, name="fixed", complexity=0)
    near, far = outcomes(given, 10, 5), outcomes(given, 30, 40)
    assert reference_of([outcomes(given, 20, 9, complexity=0), best], given) is best
    assert choose([best, near, far], best, given, 1.0) is near
    assert choose([best, near, far], best, given, 50.0) is far
    assert not compare(far, best, given, 1.0).feasible
    assert compare(near, best, given, 1.0).radius_difference == pytest.approx(2 * 0.95)


def test_a_calibrated_rate_has_to_be_clearly_as_accurate() -> None:
    """Two more errors of 200 are a point, which is not shown with a standard error to spare; a baseline is believed."""
    given = sample()
    best, close = outcomes(given, 10, 3, name="fixed", complexity=0), outcomes(given, 12, 9)
    assert not compare(close, best, given, 1.0).feasible
    assert compare(replace(close, candidate=replace(close.candidate, complexity=0)), best, given, 1.0).feasible
    assert compare(close, best, given, 2.5).feasible


def test_a_constant_answer_is_never_chosen() -> None:
    given = sample(200, 0.05)
    best = outcomes(given, 2, 1, name="fixed", complexity=0)
    constant = CandidateOutcomes(
        Candidate("power 0", FixedRate(0.99), 1), np.zeros(200, dtype=np.int64), np.full(200, 40)
    )
    assert constant.is_constant(given)
    assert constant.right(given).mean() >= best.right(given).mean() - 0.05
    assert choose([best, constant], best, given, 10.0) is best
    alone = replace(constant, candidate=replace(constant.candidate, complexity=0))
    assert reference_of([alone, best], given) is best
    assert choose([alone], alone, given, 1.0) is alone  # there is nothing else


def test_a_more_complex_rate_must_be_better_beyond_noise() -> None:
    given = sample()
    rng = np.random.default_rng(1)
    simple = outcomes(given, 10, 5, name="fixed", complexity=0)
    radius = simple.radius + rng.integers(-4, 5, size=200)
    radius += round(5 - radius.mean())
    noisy = CandidateOutcomes(Candidate("groups", FixedRate(0.8), 2), simple.answer, radius)
    assert abs(compare(noisy, simple, given, 1.0).radius_difference) < 1
    better = replace(noisy, radius=radius + 2)
    assert choose([simple, better], simple, given, 1.0) is better
    worse = replace(noisy, radius=radius - 1)
    assert choose([simple, worse], simple, given, 1.0) is simple


def test_a_tie_goes_to_the_larger_mean_radius() -> None:
    given = Sample(np.full(8, 50), np.array([0, 0, 0, 0, 0, 0, 1, 1]), 2)
    small = CandidateOutcomes(Candidate("power 0", FixedRate(0.8), 1), given.label, np.array([2] * 6 + [4] * 2))
    large = CandidateOutcomes(Candidate("power 1/3", FixedRate(0.9), 1), given.label, np.array([4] * 6 + [2] * 2))
    for order in ([small, large], [large, small]):
        assert choose(order, small, given, 100.0) is large


def test_powers_of_the_length() -> None:
    constant, half = power_rate(8, 64, 0.0), power_rate(8, 64, 0.5)

    def kept(rate: Rate, n: int) -> float:
        return n * (1 - rate(n))

    assert [round(kept(constant, n), 2) for n in (20, 64, 5000)] == [8, 8, 8]
    assert [round(kept(half, n), 1) for n in (16, 64, 256)] == [4, 8, 16]
    assert kept(constant, 4) == pytest.approx(2)  # at most half of the tokens
    assert kept(power_rate(0.1, 64, 0.0), 64) == pytest.approx(1)  # at least one


def test_groups_take_what_is_best_at_their_length() -> None:
    """Short texts gain from one candidate and long ones from another, at the same accuracy."""
    length = np.repeat([20, 60, 200, 600], 100)
    given = Sample(length, np.tile([0, 1], 200), 2)
    low, high = power_rate(4, 100, 0.0), power_rate(30, 100, 0.0)
    few = CandidateOutcomes(Candidate("power 0", low, 1), given.label, np.where(length < 100, 9, 1))
    many = CandidateOutcomes(Candidate("power 0", high, 1), given.label, np.where(length < 100, 1, 9))
    reference = replace(few, candidate=Candidate("fixed", FixedRate(0.9), 0), radius=np.full(400, 3))
    rate = grouped_rate([reference, few, many], reference, given, 1.0, 50)
    assert rate is not None
    kept = [n * (1 - rate(n)) for n in (20, 600)]
    assert kept[0] == pytest.approx(4, abs=0.1)
    assert kept[1] == pytest.approx(30, abs=0.1)
    assert grouped_rate([reference, few, many], reference, given, 1.0, 300) is None


def test_folds_are_disjoint_and_keep_equal_texts_together() -> None:
    texts = [f"text {number % 40}" for number in range(120)]
    examples = CalibrationExamples([tuple(text.split()) for text in texts], [0, 1] * 60)
    places = list(range(0, 120, 2))
    folds = cross_validation(texts, examples, places, 3, 0)
    assert sorted(index for _, inside in folds for index in inside) == list(range(60))
    for outside, inside in folds:
        inner = {texts[places[index]] for index in inside}
        assert not inner & {" ".join(map(str, tokens)) for tokens in outside.tokens}
        assert 0 < len(inner) < 40


def balanced(**changed: Any) -> RateSelection:
    texts, labels = documents(160, 5)
    model = train(*documents(200, 6), method="adaptdel+", rate=0.8, progress=False, bits=10)
    result = calibrate(model, texts, labels, **{"progress": False, **QUICK, **changed})
    assert isinstance(result, RateSelection)
    return result


def test_a_class_that_a_fold_cannot_train_on_is_refused() -> None:
    """The answers of a model of two classes would be counted for other classes of three."""
    texts = [f"text {number}" for number in range(30)]
    examples = CalibrationExamples([tuple(text.split()) for text in texts], [0, *[1, 2] * 14, 2])
    with pytest.raises(ValueError, match=r"the class 0 has 1 example, too few for a cross-validation"):
        cross_validation(texts, examples, range(30), 3, 0)
    cross_validation(texts[1:], CalibrationExamples(examples.tokens[1:], examples.labels[1:]), range(29), 3, 0)


def test_a_record_of_classes_is_checked() -> None:
    texts, labels = documents(80, 5)
    model = train(texts, labels, method="adaptdel+", progress=False, bits=8)
    values = json.loads(json.dumps(calibrate(model, texts, labels, **QUICK, progress=False).to_dict()))
    assert RateSelection.from_dict(values).to_dict() == values
    for wrong in ([3], [{"inputs": 1}], [values["classes"][0] | {"certified_recall": {"0": "all"}}]):
        with pytest.raises(ValueError, match="must have its fields"):
            RateSelection.from_dict(values | {"classes": wrong})
    assert RateSelection.from_dict({k: v for k, v in values.items() if k != "classes"}).classes == ()


def test_the_default_objective_compares_the_baselines_first() -> None:
    result = balanced()
    assert [candidate.name for candidate in result.candidates[:2]] == ["fixed", "adaptdel"]
    assert result.candidates[result.reference].complexity == 0
    assert result.candidates[result.chosen].feasible or result.chosen == result.reference
    chosen, feasible = result.candidates[result.chosen], [each for each in result.candidates if each.feasible]
    assert chosen.balanced_radius >= max(each.balanced_radius for each in feasible if each.complexity == 0)
    assert result.rate.to_dict() == chosen.rate
    assert result == balanced()
    assert RateSelection.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    damages: tuple[dict[str, Any], ...] = ({"chosen": 99}, {"candidates": [{}]}, {"warnings": None})
    for damaged in damages:
        with pytest.raises(ValueError, match="a selection of a rate must have its fields"):
            RateSelection.from_dict(result.to_dict() | damaged)


def test_an_interrupted_selection_resumes(tmp_path: Path) -> None:
    whole, checkpoint = balanced(), tmp_path / "checkpoint"

    class Stop(Exception):
        pass

    def progress(done: int, total: int) -> None:
        assert done <= total
        if done >= 80 * 3 + 7:
            raise Stop

    with pytest.raises(Stop):
        balanced(checkpoint=checkpoint, progress=progress)
    assert len(list(read_records(checkpoint))) == 3
    counts: list[int] = []
    assert balanced(checkpoint=checkpoint, progress=lambda done, total: counts.append(done)) == whole
    assert counts[:4] == [80, 160, 240, 241]
    with pytest.raises(ValueError, match=r"another job: points was 1.0, now 2.0"):
        balanced(checkpoint=checkpoint, points=2.0)


def test_refits_need_the_training_set() -> None:
    texts, labels = documents(80, 5)
    training = documents(120, 6)
    model = train(*training, method="adaptdel+", rate=0.8, progress=False, bits=10)
    result = calibrate(model, texts, labels, training=training, progress=False, **QUICK)
    assert isinstance(result, RateSelection)
    assert result.base is not None
    assert result.base.fingerprint() != model.base_.fingerprint()
    again = train(*training, method="cert-ed", rate=0.8, validation=0.0, progress=False, bits=10)
    assert again.base_.classes_ == result.base.classes_
    with pytest.raises(ValueError, match="refit must be False: the training set has to be given"):
        calibrate(model, texts, labels, refit=True, progress=False, **QUICK)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"threshold": 0.5}, "threshold has no meaning for the objective 'balanced': leave it out"),
        ({"objective": "paper", "points": 2.0}, "points has no meaning for the objective 'paper': leave it out"),
        ({"points": -1}, "points must be a number of percentage points from 0 to 100, got -1"),
        ({"refit": "yes"}, "refit must be True, False or None, got 'yes'"),
    ],
)
def test_wrong_settings(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        CalibrationSettings(**fields)
    assert str(error.value) == sentence
    assert CalibrationSettings(objective="certified").objective == "paper"


def trained(folder: Path, **fields: Any) -> tuple[Path, Path]:
    texts, labels = documents(150, 6)
    data = folder / "train.jsonl"
    rows = [json.dumps({"text": t, "label": y}) for t, y in zip(texts, labels, strict=True)]
    data.write_text("\n".join(rows), encoding="utf-8")
    settings = TrainingSettings.from_dict({"method": "adaptdel+", "rate": 0.8, "bits": 10, "copies": 4, **fields})
    train_job(TrainingJob(str(data), str(folder / "model"), settings), progress=False)
    return folder / "model", data


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_command_writes_a_new_folder(tmp_path: Path) -> None:
    model, data = trained(tmp_path)
    stored = contents(model)
    arguments = [str(model), "--data", str(data), "--examples", "60", "--votes", "16,64", "--min-count", "20"]
    ran = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    assert contents(model) == stored
    out = tmp_path / "model-calibrated"
    assert f"{out}: calibrated" in ran.stdout
    assert "candidate" in ran.stdout
    assert "Measured on 60 inputs" in ran.stdout
    assert "By class, under the chosen rate:" in ran.stdout
    assert "by cross-validation; each candidate trains the model again" in ran.stderr
    loaded = SmoothedClassifier.load(out)
    selection = RateSelection.from_dict(loaded.calibration_)
    assert loaded.noise_ == selection.noise
    assert sum(row["inputs"] for row in selection.classes) == sum(map(sum, selection.confusion)) == 60
    chosen = selection.candidates[selection.chosen]
    assert np.mean([row["recall"] for row in selection.classes]) == pytest.approx(chosen.balanced_accuracy)
    assert "| class | inputs | recall |" in (out / "README.md").read_text(encoding="utf-8")
    assert loaded.training_["calibrated"] is True
    earlier = SmoothedClassifier.load(model).training_  # its figures are those of another base classifier
    assert earlier["held_out"] is not None
    assert loaded.training_["held_out"] is None
    assert {row["valid_accuracy"] for row in loaded.training_["history"]} == {None}
    assert loaded.training_["history"] != [row | {"valid_accuracy": None} for row in earlier["history"]]
    assert (out / "calibration.png").exists()
    assert not list(tmp_path.glob(f"*{CHECKPOINT}*"))
    again = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert "was calibrated before, nothing to do" in again.stdout
    inside = CliRunner().invoke(calibrate_command, [*arguments, "--in-place"], catch_exceptions=False)
    assert f"{model}: calibrated" in inside.stdout
    twice = CliRunner().invoke(calibrate_command, [*arguments, "--in-place"], catch_exceptions=False)
    assert f"{model}: was calibrated before" in twice.stdout
    assert SmoothedClassifier.load(model).base_.fingerprint() == loaded.base_.fingerprint()


def test_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_calibration(balanced(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_baselines_are_those_of_the_model() -> None:
    texts, labels = documents(60, 8)
    model = train(texts, labels, method="adaptdel", rate=0.7, progress=False, bits=8)
    result = calibrate(model, texts, labels, progress=False, **QUICK)
    assert isinstance(result, RateSelection)
    rates = [candidate.rate for candidate in result.candidates[:2]]
    assert isinstance(model.noise_, Deletion)
    assert isinstance(model.noise_.rate, LengthRate)
    assert rates == [FixedRate(0.7).to_dict(), model.noise_.rate.to_dict()]


def test_inputs_that_were_measured_twice_tell_no_more_about_others() -> None:
    given = sample(200, 0.3)
    noise = np.random.default_rng(1).integers(0, 9, 200)
    twice = given.joined(given, same_inputs=True)
    assert twice.balanced_error(np.tile(noise, 2)) == pytest.approx(given.balanced_error(noise), rel=0.02)
    fresh = given.joined(given, same_inputs=False)
    assert fresh.balanced_error(np.tile(noise, 2)) == pytest.approx(given.balanced_error(noise) / np.sqrt(2), rel=0.02)
    best, other = outcomes(given, 10, 3), outcomes(given, 20, 5)
    single = compare(other, best, given, 1.0)
    again = compare(other.joined(other), best.joined(best), twice, 1.0)
    assert again.accuracy_difference == pytest.approx(single.accuracy_difference)
    assert again.accuracy_error == pytest.approx(single.accuracy_error, rel=0.01)


@pytest.mark.parametrize(("wrong", "radius", "confirmed"), [(10, 5, True), (60, 5, False), (10, 2, False)])
def test_a_candidate_that_a_second_measurement_does_not_confirm_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, wrong: int, radius: int, confirmed: bool
) -> None:
    """The first measurement is lucky; the second one shows fewer right answers, or radii below those of CERT-ED."""
    given = sample(1000)
    fixed = outcomes(given, 10, 3, name="fixed", complexity=0)
    lucky = outcomes(given, 10, 4)
    second = {"fixed": outcomes(given, 10, 3, name="fixed", complexity=0), "power 0": outcomes(given, wrong, radius)}
    examples = CalibrationExamples([("a",)] * 1000, given.label.tolist())
    inputs = MeasuredInputs(examples, given, None, is_fresh=True)

    class Stub:
        all = (fixed, lucky)
        store, report, certify = None, None, None

        def __init__(self, *_: Any, prefix: str = "") -> None: ...

        def __call__(self, candidate: Candidate) -> CandidateOutcomes:
            return second[candidate.name]

    monkeypatch.setattr(selection, "_Measure", Stub)
    task = SelectionTask(None, examples, given, [], {"points": 1.0}, second=inputs)  # type: ignore[arg-type]
    chosen, confirmation, rejected = task._confirmed(Stub(), fixed)  # type: ignore[arg-type]
    assert (chosen is lucky) == confirmed
    assert [each is lucky for each in rejected] == ([] if confirmed else [True])
    assert (confirmation is not None) == confirmed
    if confirmation is not None:
        assert (confirmation.rows, confirmation.is_fresh) == (1000, True)
        assert confirmation.comparison.accuracy_difference == 0
        assert Confirmation.from_dict(json.loads(json.dumps(confirmation.to_dict()))) == confirmation
    without = replace(task, second=None)._confirmed(Stub(), fixed)  # type: ignore[arg-type]
    assert without[0] is lucky


def test_a_candidate_is_not_compared_with_the_radii_of_a_constant_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate that needs no calibration answers the frequent class always, with a large radius."""
    given = sample(1000, 0.05)
    candidate = Candidate("fixed", FixedRate(0.9), 0)
    constant = CandidateOutcomes(candidate, np.zeros(1000, dtype=np.int64), np.full(1000, 20))
    varied = outcomes(given, 10, 3)
    assert constant.is_constant(given)
    assert not varied.is_constant(given)
    assert given.balanced_mean(constant.radii(given)) > given.balanced_mean(varied.radii(given))
    examples = CalibrationExamples([("a",)] * 1000, given.label.tolist())
    inputs = MeasuredInputs(examples, given, None, is_fresh=True)

    class Stub:
        all = (constant, varied)
        store, report, certify = None, None, None

        def __init__(self, *_: Any, prefix: str = "") -> None: ...

        def __call__(self, candidate: Candidate) -> CandidateOutcomes:
            return {"fixed": constant, "power 0": varied}[candidate.name]

    monkeypatch.setattr(selection, "_Measure", Stub)
    task = SelectionTask(None, examples, given, [], {"points": 1.0}, second=inputs)  # type: ignore[arg-type]
    chosen, _, rejected = task._confirmed(Stub(), constant)  # type: ignore[arg-type]
    assert chosen is varied
    assert not rejected


def test_the_second_measurement_is_on_other_texts_where_there_are_enough(tmp_path: Path) -> None:
    texts, labels = documents(300, 3)
    model = train(texts, labels, method="adaptdel+", rate=0.7, progress=False, bits=10, copies=4, validation=0.0)
    few = CalibrationSettings(**QUICK)
    task = selection_task(model, texts, labels, few, training=(texts, labels), folds=3)
    assert task.second is not None
    assert task.second.is_fresh
    assert len(task.second.examples.tokens) == 80
    assert not set(task.second.examples.tokens) & set(task.examples.tokens)
    for rows, places in task.second.folds or ():
        assert not {task.second.examples.tokens[place] for place in places} & set(rows.tokens)
    everything = CalibrationSettings(**QUICK | {"examples": 300})
    repeated = selection_task(model, texts, labels, everything, training=(texts, labels), folds=3)
    assert repeated.second is not None
    assert repeated.refit is not None
    assert not repeated.second.is_fresh
    assert repeated.second.examples == repeated.examples
    assert [places for _, places in repeated.second.folds or ()] != [places for _, places in repeated.refit.folds]
    assert selection_task(model, texts, labels, replace(everything, refit=False)).second is None
    fresh = selection_task(model, texts, labels, replace(few, refit=False)).second
    assert fresh is not None
    assert fresh.folds is None
