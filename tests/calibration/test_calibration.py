"""Calibration in bins: votes, results, warnings, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from adaptdel.calibration import Calibration, CalibrationSettings, calibrate, prepare
from adaptdel.calibration.calibration import certify_sample, constant_keep, sample_certifier
from adaptdel.calibration.search import (
    Bin,
    CalibrationExamples,
    Evaluation,
    equal_width_edges,
    evaluations,
    make_bins,
    make_rate,
    max_certified_radius,
    monotone_fit,
    search_interval,
)
from adaptdel.certification.sampling import CALIBRATION, CERTIFICATION, content_key, stream
from adaptdel.classifiers import CallableClassifier
from adaptdel.classifiers.callables import noisy_texts
from adaptdel.core.noise import Deletion, Masking, NoNoise
from adaptdel.core.rates import BinnedRate, FixedRate, InterpolatedRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.units import Words
from tests.calibration.documents import (
    DATA,
    EDGES,
    MONOTONE,
    QUICK,
    TURNED,
    documents,
    fitted,
    folder_settings,
    quick,
    whole,
)

# Votes


@pytest.mark.parametrize("length", [1, 30, 300, 2000])
def test_copies_that_keep_more_keep_all_that_others_keep(length: int) -> None:
    earlier = np.zeros((64, length), dtype=bool)
    for keep in (1.0, 2.5, 2.6, 7.0, 8.0, 40.0, 300.0):
        kept = constant_keep(keep).sample(length, 64, stream(5, content_key(("a",) * length), CALIBRATION[1]))
        assert kept.sum() >= earlier.sum()
        assert (kept >= earlier).all()
        assert kept.mean() == pytest.approx(min(1, keep / length), abs=0.15)
        earlier = kept
    assert earlier[:, :1].any()


def by_signs(batch: list[str]) -> list[int]:
    return [int(text.count("sign1") > text.count("sign0")) for text in batch]


@pytest.mark.parametrize("keep", [9.0, 30.0])
@pytest.mark.parametrize("classes", [2, 3, None, "one is never answered"])
def test_radii_are_those_of_certificates(classes: int | str | None, keep: float) -> None:
    texts, labels = documents(40, 3, classes if isinstance(classes, int) else 2)
    options: dict[str, Any] = {"ops": ["ins", "sub"], "alpha": 0.1}
    base: Any = fitted(classes).base if isinstance(classes, int) else by_signs
    if isinstance(classes, str):
        options["classes"] = [0, 1, 2]
    certifier = sample_certifier(SmoothedClassifier(base, **options), n_select=32, n_estimate=128, seed=4)
    certifier.plan = replace(certifier.plan, phases=CERTIFICATION)  # the same draws
    result = certify_sample(certifier, [certifier.prepare(text, "x") for text in texts], labels, keep)
    options |= {"n_select": 32, "n_estimate": 128, "sampling": "fixed", "seed": 4, "progress": False}
    direct = SmoothedClassifier(base, constant_keep(keep), **options).certify(texts)
    assert [outcome.radius for outcome in result] == [c.radius for c in direct]
    assert [outcome.right for outcome in result] == [c.label == y for c, y in zip(direct, labels, strict=True)]
    assert len({outcome.radius for outcome in result}) >= 2
    assert 0.5 < np.mean([outcome.right for outcome in result]) <= 1


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
    certifier = sample_certifier(model, n_select=40, n_estimate=60, seed=9)
    certify_sample(certifier, [certifier.prepare(text, "x") for text in texts], [0], 12)


def test_certifying_the_calibration_data_meets_new_noise() -> None:
    certified = drawn_copies(lambda model, texts: model.certify(texts))
    calibrated = drawn_copies(calibrated_at_12)
    assert not set(certified) & set(calibrated)
    assert calibrated == drawn_copies(calibrated_at_12)


def test_the_streams_of_certification_are_as_they_were() -> None:
    key = content_key(("a", "b"))
    words = [int(stream(3, key, phase).integers(2**32)) for phase in CERTIFICATION]
    assert CERTIFICATION == ("select", "estimate")
    assert words == [120625930, 1661854437]
    assert len({int(stream(3, key, phase).integers(2**32)) for phase in (*CERTIFICATION, *CALIBRATION, "report")}) == 5


def test_training_meets_other_noise_than_certification() -> None:
    """The copies that a model is fitted on are not those that it is certified or calibrated on."""
    text = tuple(f"w{place}" for place in range(200))
    trained, _ = noisy_texts([text] * 3, [0] * 3, constant_keep(12), Words(), copies=40, seed=9)
    certified = drawn_copies(lambda model, texts: model.certify(texts))
    assert len(set(trained)) == 120
    assert not set(trained) & {*certified, *drawn_copies(calibrated_at_12)}


def test_the_examples_of_a_bin_are_drawn_by_the_seed() -> None:
    examples = CalibrationExamples([(str(i),) * (i % 7) for i in range(70)], list(range(70)))
    bin = Bin(3, 5, 5)
    inside = [i for i in range(70) if i % 7 in (3, 4)]
    drawn = {seed: examples.drawn(bin, 1, most=8, seed=seed).labels for seed in range(3)}
    for labels in drawn.values():
        assert len(labels) == 8
        assert labels == sorted(labels)
        assert set(labels) < set(inside)
    assert drawn[0] != drawn[1] != drawn[2]
    assert drawn[0] == examples.drawn(bin, 1, most=8, seed=0).labels != examples.drawn(bin, 2, most=8, seed=0).labels
    assert examples.drawn(bin, 1, most=20, seed=0).labels == inside
    rest = {k: v for k, v in folder_settings().items() if k != "seed"}
    samples = [prepare(fitted(), *DATA, CalibrationSettings(seed=seed, **rest)).samples[0].tokens for seed in (0, 1, 1)]
    assert samples[0] != samples[1] == samples[2]


# All together


def score_of(evaluation: Evaluation, calibration: Calibration) -> tuple[float, float]:
    return evaluation.score(calibration.settings["objective"], calibration.settings["min_accuracy"])


@pytest.mark.parametrize("objective", [{}, {"objective": "mean", "min_accuracy": 0.8}])
def test_calibrate(objective: dict[str, Any]) -> None:
    result = quick(DATA, **objective)
    assert [bin.lower for bin in result.bins] == EDGES
    assert [bin.upper for bin in result.bins] == [40, 80, None]
    assert result.noise == Deletion(BinnedRate(EDGES, [bin.keep for bin in result.bins]))
    for number, bin in enumerate(result.bins):
        tried = [e for e in result.trace if e.bin == number]
        low, high = search_interval(make_bins(EDGES, 1)[number])
        assert len(tried) == len({e.keep for e in tried}) == evaluations(low, high, 2.0)
        best = max(tried, key=lambda e: score_of(e, result))
        assert score_of(best, result) == score_of(next(e for e in tried if e.keep == bin.keep), result)
        assert bin.count == 24 < bin.available
        assert (bin.radius, bin.certified, bin.clean) == (best.radius, best.certified, best.clean)
        assert bin.searched == bin.keep
    assert sum(bin.available for bin in result.bins) == 240
    assert result == quick(DATA, **objective)
    assert result != quick(DATA, **objective, seed=1)
    assert Calibration.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_an_evaluation_is_what_the_model_does_under_that_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of a bin against certificates of its examples, from end to end, on the same draws."""
    monkeypatch.setattr("adaptdel.calibration.calibration.CALIBRATION", CERTIFICATION)
    result = quick(per_bin=1000)
    for bin in result.bins:
        inside = [(t, y) for t, y in zip(*DATA, strict=True) if bin.lower <= len(t.split()) < (bin.upper or inf)]
        model = SmoothedClassifier(
            fitted().base, constant_keep(bin.keep), n_select=16, n_estimate=64, sampling="fixed", progress=False
        )
        certificates = model.certify([text for text, _ in inside])
        right = [c.label == y for c, (_, y) in zip(certificates, inside, strict=True)]
        radii = [c.radius if ok else -1 for c, ok in zip(certificates, right, strict=True)]
        assert (bin.radius, bin.certified) == max_certified_radius(radii, 0.75)
        assert bin.clean == pytest.approx(np.mean(right))
        assert bin.mean_radius == pytest.approx(np.mean(np.maximum(radii, 0)))
        assert bin.count == bin.available == len(inside)


def test_the_objective_matters() -> None:
    """In the bin of the longer inputs, on all of them, so that it does not depend on the draws."""
    more: dict[str, Any] = {"n_estimate": 512, "bins": [0, 60], "per_bin": 1000, "tol": 1.0}
    certified = quick(**more)
    strict = quick(**more, threshold=0.9)
    mean = quick(**more, objective="mean", min_accuracy=0.5)
    loose, tight = certified.bins[1], strict.bins[1]
    assert loose.keep < tight.keep
    assert loose.radius > tight.radius
    assert loose.certified < 0.9 <= tight.certified
    assert mean.bins[1].mean_radius > certified.bins[1].mean_radius
    assert mean.bins[1].clean < certified.bins[1].clean


def test_automatic_bins_in_full() -> None:
    result = quick(bins="auto", min_count=40, tol=8.0)
    assert result.settings["bins"] == equal_width_edges([len(t.split()) for t in DATA[0]], min_count=40)
    assert len(result.bins) > 2


def test_interpolated() -> None:
    binned, result = (quick(DATA, interpolate=flag) for flag in (False, True))
    assert result.rate == InterpolatedRate([20, 60, 120], [bin.keep for bin in binned.bins])
    assert result.bins == binned.bins
    assert make_rate(make_bins([0, 137, 230, 324], 1), [4, 9, 6, 14], interpolate=True) == InterpolatedRate(
        [68.5, 183.5, 277, 418], [4, 9, 6, 14]
    )


def test_monotone() -> None:
    assert monotone_fit([4, 9, 6, 14], [1, 1, 2, 1]) == [4, 7, 7, 14]
    free = quick(TURNED, **MONOTONE | {"monotone": False})
    result = whole()
    assert free.bins[2].keep < free.bins[1].keep
    assert [bin.keep for bin in result.bins] == monotone_fit([b.keep for b in free.bins], [b.count for b in free.bins])
    assert [bin.searched for bin in result.bins] == [bin.keep for bin in free.bins]
    # bins weigh as many as were looked at
    uneven = {"per_bin": 1000, **MONOTONE}
    alone, fit = (quick(TURNED, **uneven | {"monotone": flag}) for flag in (False, True))
    counts = [bin.count for bin in alone.bins]
    assert [bin.keep for bin in fit.bins] == monotone_fit([bin.keep for bin in alone.bins], counts)
    assert [bin.keep for bin in fit.bins] != monotone_fit([bin.keep for bin in alone.bins], [1, 1, 1])
    # the measures are those of the fitted kept length
    moved = [bin for bin in result.bins if bin.keep != bin.searched]
    assert len(moved) == 2
    for bin in moved:
        number = result.bins.index(bin)
        evaluation = next(e for e in result.trace if (e.bin, e.keep) == (number, bin.keep))
        assert (bin.radius, bin.clean) == (evaluation.radius, evaluation.clean)


def test_warnings() -> None:
    texts, labels = DATA
    noisy = [1 - y if len(t.split()) >= 80 and i % 4 < 2 else y for i, (t, y) in enumerate(zip(texts, labels))]  # noqa: B905
    result = quick((texts, noisy))
    assert [bin.reached for bin in result.bins] == [True, True, False]
    best = max(e.certified for e in result.trace if e.bin == 2)
    keep = result.bins[2].keep
    assert result.warnings == (
        f"the bin of 80 tokens and more: {keep:g} kept tokens do not reach a certified accuracy of 0.75 even at radius "
        f"0 (it is {best:.3g}), nor does any other candidate",
    )
    assert (result.bins[2].radius, result.bins[2].certified) == (-1, best)
    few = quick((texts, labels), min_count=30)
    assert few.warnings[0].endswith("kept tokens were chosen on 24 examples only")


def test_a_constant_answer_is_warned_of() -> None:
    model = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1], progress=False)
    result = quick(DATA, model, threshold=0.3)
    assert len([sentence for sentence in result.warnings if "the same prediction" in sentence]) == 3


# Bad input


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"threshold": 0.0}, "threshold must be in (0, 1], got 0.0"),
        ({"objective": "median"}, "objective must be one of 'balanced', 'paper', 'mean', got 'median'"),
        ({"objective": "mean"}, "min_accuracy must be given with the objective 'mean', got None"),
        ({"min_accuracy": 0.9}, "min_accuracy must be None unless the objective is 'mean', got 0.9"),
        ({"tol": 0}, "tol must be a finite number of at least 0.001, got 0"),
        ({"bins": "many"}, "bins must be one of 'auto', got 'many'"),
        ({"per_bin": 0}, "per_bin must be a whole number of at least 1, got 0"),
        ({"n_estimate": 0}, "n_estimate must be a whole number of at least 1, got 0"),
        ({"monotone": 1}, "monotone must be True or False, got 1"),
        ({"bins": "auto", "min_count": 999}, "min_count must be at most the number of inputs 240, got 999"),
    ],
)
def test_wrong_settings(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        quick(DATA, **changed)
    assert str(error.value) == sentence


def test_wrong_examples_and_models() -> None:
    texts, labels = DATA
    for given_texts, given_labels, sentence in [
        (texts, labels[1:], "labels must hold one label for each of the 240 texts, got 239"),
        ([], [], "texts must hold at least one input, got none"),
        ("text", [0], "texts must be a list of inputs, got a single str: put it in a list"),
        (texts, [*labels[:-1], "spam"], "labels must be classes of the model, 0, 1, got 'spam' at 239"),
        ([3, *texts[1:]], labels, "input 0: an input must be a text (str) for the unit 'word', got int"),
    ]:
        with pytest.raises(ValueError) as error:
            calibrate(fitted(), given_texts, given_labels, **QUICK)  # type: ignore[arg-type]
        assert str(error.value) == sentence
    for noise in (Masking(0.9), NoNoise()):
        with pytest.raises(ValueError) as error:
            calibrate(SmoothedClassifier(fitted().base, noise), texts, labels, **QUICK)
        assert str(error.value) == f"model must have a deletion noise to be calibrated, got {noise!r}"
    with pytest.raises(ValueError, match="model must be fitted, or have a base classifier"):
        calibrate(SmoothedClassifier(), texts, labels, **QUICK)
    for values in ({}, {"format": 2}, whole().to_dict() | {"bins": [{}]}, whole().to_dict() | {"trace": [{}]}):
        with pytest.raises(ValueError, match=r"a calibration must|an evaluation must"):
            Calibration.from_dict(values)
    with pytest.raises(ValueError, match="must be binned or interpolated"):
        Calibration.from_dict(whole().to_dict() | {"rate": FixedRate(0.9).to_dict()})
