"""AdaptDel+ calibration: the paper's three algorithms against literal ones, resuming, storing, and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from adaptdel.calibration import Calibration, CalibrationSettings, calibrate, plot_calibration, prepare
from adaptdel.calibration.calibration import certify_sample, constant_keep, sample_certifier
from adaptdel.calibration.folders import CHECKPOINT, JOURNAL, calibrate_folder, choose_rows
from adaptdel.calibration.search import (
    Bin,
    CalibrationExamples,
    Evaluation,
    Outcome,
    check_edges,
    equal_width_edges,
    evaluate_outcomes,
    evaluations,
    golden_section,
    make_bins,
    make_rate,
    max_certified_radius,
    monotone_fit,
    search_interval,
)
from adaptdel.certification.sampling import CALIBRATION, CERTIFICATION, content_key, stream
from adaptdel.classifiers import CallableClassifier, LinearClassifier
from adaptdel.classifiers.callables import noisy_texts
from adaptdel.cli.calibrate import calibrate_command, read_bins
from adaptdel.core.noise import Deletion, Masking, NoNoise, RandomDeletion
from adaptdel.core.rates import BinnedRate, FixedRate, InterpolatedRate
from adaptdel.data import Examples as FileExamples
from adaptdel.data import held_out, read_examples
from adaptdel.model_files import CALIBRATION as CALIBRATION_FILE
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import Words
from adaptdel.working_store import WorkingStore, read_records

# A data set whose classes differ in how often two words occur.
FILL = [f"w{i}" for i in range(40)]
EDGES = [0, 40, 80]
QUICK: dict[str, Any] = {
    "objective": "paper", "per_bin": 24, "min_count": 10, "n_select": 16, "n_estimate": 64, "tol": 2.0, "bins": EDGES,
    "progress": False,
}  # fmt: skip


def documents(count: int, seed: int, classes: int = 2) -> tuple[list[str], list[int]]:
    rng = random.Random(seed)
    texts, labels = [], []
    for number in range(count):
        label = number % classes
        length = rng.randrange(8, 130)
        words = [f"sign{label}" if rng.random() < 0.12 else rng.choice(FILL) for _ in range(length)]
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


@cache
def fitted(classes: int = 2) -> SmoothedClassifier:
    texts, labels = documents(200, 1, classes)
    noise = RandomDeletion()
    base = LinearClassifier(bits=10).fit([tuple(text.split()) for text in texts], labels, noise=noise, copies=4)
    return SmoothedClassifier(base, noise, progress=False)


DATA = documents(240, 2)
# labels of the middle bin are turned around: nothing is good there, the most is kept, and K falls to the next bin
TURNED = DATA[0], [1 - y if 40 <= len(t.split()) < 80 else y for t, y in zip(*DATA, strict=True)]
MONOTONE: dict[str, Any] = {"objective": "mean", "min_accuracy": 0.9, "monotone": True}


def quick(data: Any = DATA, /, model: SmoothedClassifier | None = None, **changed: Any) -> Calibration:
    found = calibrate(model or fitted(), *data, **QUICK | changed)
    assert isinstance(found, Calibration)
    return found


# Bins


@pytest.mark.parametrize(
    ("lengths", "min_count", "edges"),
    [
        # 100 lengths from 0 to 99: percentiles 0.99 and 98.01 leave 1..98; Sturges' 8 bins of 12.1275 tokens
        (list(range(100)), 10, [0, 13, 25, 37, 50, 62, 74, 86]),
        # at least 30 of 98 in each: three bins, of 32.34 tokens
        (list(range(100)), 30, [0, 33, 66]),
        (list(range(100)), 60, [0]),
        ([7] * 100, 10, [0]),
        # two heaps with a gap in which no bin has enough: Sturges' 9 bins of 54.44 tokens, cut at the first empty one
        ([10] * 50 + [11] * 50 + [500] * 50, 10, [0, 64]),
        # a long tail, without a boundary deleted only [0, 451]: 2 to 900 in 10 bins of 89.8 tokens with 360, 36 and 20
        ([*range(1, 101)] * 4 + [900] * 20, 20, [0, 92, 182]),
    ],
)
def test_automatic_bins(lengths: list[int], min_count: int, edges: list[float]) -> None:
    assert equal_width_edges(lengths, min_count=min_count) == edges
    assert equal_width_edges(random.Random(0).sample(lengths, len(lengths)), min_count=min_count) == edges


@given(st.lists(st.integers(0, 400), min_size=5, max_size=300), st.integers(1, 20))
def test_automatic_bins_hold_enough(lengths: list[int], min_count: int) -> None:
    if len(lengths) < min_count:
        with pytest.raises(ValueError, match="min_count must be at most the number of inputs"):
            equal_width_edges(lengths, min_count=min_count)
        return
    edges = equal_width_edges(lengths, min_count=min_count)
    widths = np.diff(edges)[1:]
    assert edges[0] == 0
    assert widths.max(initial=1) - widths.min(initial=widths.max(initial=1)) <= 1  # equal, but for rounding
    assert all(sum(n in bin for n in lengths) >= min_count for bin in make_bins(edges, 1))


def test_centres_of_bins() -> None:
    bins = make_bins([0, 137, 230, 324], 9999)
    assert [bin.centre for bin in bins] == [68.5, 183.5, 277, 418]
    assert [str(bin) for bin in bins[2:]] == ["230 to 324 tokens", "324 tokens and more"]
    assert [[n in bin for bin in bins] for n in (0, 136, 137, 323, 324, 10**9)] == [
        [True, False, False, False], [True, False, False, False], [False, True, False, False],
        [False, False, True, False], [False, False, False, True], [False, False, False, True],
    ]  # fmt: skip
    assert [bin.centre for bin in make_bins([0], 300)] == [150]


def test_given_bins_are_checked() -> None:
    assert check_edges([0, 137.0, inf], [5, 200]) == [0, 137]
    for edges, sentence in [
        ([5, 10], "bins must begin with 0, so that every length has a bin, got [5, 10]"),
        ([0, 10, 10], "bins must increase strictly, got [0, 10, 10]"),
        ([0, 50, 100], "bins must hold at least one input each, got none of 100 tokens and more"),
        ([0, float("nan")], "bins must be numbers of at least 0, got nan"),
    ]:
        with pytest.raises(ValueError) as error:
            check_edges(edges, [5, 60])
        assert str(error.value) == sentence


# Search


def paper_search(score: Callable[[float], Any], low: float, high: float, tol: float) -> float:
    """The inner loop of OptimizeExpectedLength as printed."""
    while high - low > tol:
        m1 = low + (3 - sqrt(5)) / 2 * (high - low)
        m2 = high - (3 - sqrt(5)) / 2 * (high - low)
        if score(m1) > score(m2):
            high = m2
        else:
            low = m1
    return (high + low) / 2


@given(
    st.floats(1, 50), st.floats(2, 300), st.floats(0, 1), st.floats(0.1, 10), st.floats(0.1, 10),
    st.floats(0.01, 5), st.sampled_from([0.5, 1.0, 2.0]),
)  # fmt: skip
def test_golden_section_finds_the_top(
    low: float, width: float, where: float, left: float, right: float, tol: float, power: float
) -> None:
    high, top = low + width, low + where * width
    asked: list[float] = []

    def score(x: float) -> tuple[float]:
        asked.append(x)
        return (-left * (top - x) ** power if x < top else -right * (x - top) ** power,)

    found = golden_section(score, low, high, tol)
    if width > tol:
        assert len(asked) == len(set(asked)) == evaluations(low, high, tol)
        assert score(found) == max(map(score, list(asked)))
        # brute force: nothing beats it beyond the width that the search may leave
        assert abs(found - top) <= tol * 1.000001 or score(found) >= score(paper_search(score, low, high, tol))
        assert abs(found - paper_search(score, low, high, tol)) <= tol * 1.000001
    assert low <= found <= high


def test_one_new_evaluation_a_step() -> None:
    asked: list[float] = []
    golden_section(lambda x: (asked.append(x) or -abs(x - 20),), 1, 101, 1.0)  # type: ignore[func-returns-value]
    # 100 tokens, cut to at most 1: ten cuts by 0.618; the paper's loop would ask twenty times
    assert len(asked) == evaluations(1, 101, 1.0) == 11
    assert asked[:2] == pytest.approx([39.1966, 62.8034])
    twice: list[float] = []
    paper_search(lambda x: twice.append(x) or -abs(x - 20), 1, 101, 1.0)  # type: ignore[func-returns-value]
    assert len(twice) == 20
    assert [round(x, 6) for x in twice if round(x, 6) not in {round(y, 6) for y in asked}] == []


def test_ties_keep_more() -> None:
    assert golden_section(lambda x: (0,), 0, 10, 0.1) > 9.8


@given(st.lists(st.floats(0.5, 5000), min_size=1, max_size=8, unique=True), st.floats(0, 9999))
def test_ends_are_in_order_in_every_bin(inner: list[float], longest: float) -> None:
    for bin in make_bins([0, *sorted(inner)], longest):
        low, high = search_interval(bin)
        assert 1 <= low < high < inf
        if bin.lower * 0.3 > 3 * max(1, 0.01 * bin.reach):  # where the paper's ends do, they are taken
            assert (low, high) == (max(1, 0.01 * bin.reach), 0.3 * bin.lower)


def test_ends_of_the_first_and_the_last_bin() -> None:
    bins = make_bins([0, 137, 230, 324], 9999)
    assert [search_interval(bin) for bin in bins] == [
        pytest.approx((1.37, 0.3 * 68.5)),
        pytest.approx((2.3, 0.3 * 137)),
        pytest.approx((3.24, 0.3 * 230)),
        pytest.approx((0.01 * (324 + 2 * 94), 0.3 * 324)),
    ]


# Objective


def paper_max_radius(examples: Sequence[tuple[bool, int]], tau: float) -> tuple[int, float]:
    """MaxCertRadius as printed: (right, radius) of every example."""
    accuracies: list[float] = []
    r = 0
    while True:
        accuracies.append(sum(right and radius >= r for right, radius in examples) / len(examples))
        if accuracies[r] < tau:
            return r - 1, accuracies[max(r - 1, 0)]
        r += 1


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-1, 12)), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.2, 0.4, 0.5, 0.75, 0.9, 1.0]),
)
def test_max_certified_radius_is_the_papers(examples: list[tuple[bool, int]], tau: float) -> None:
    radii = [radius if right else -1 for right, radius in examples]
    assert max_certified_radius(radii, tau) == paper_max_radius(examples, tau)


def test_what_an_evaluation_sums_up() -> None:
    outcomes = [Outcome(0, True, 4), Outcome(0, True, 2), Outcome(0, False, 9), Outcome(0, True, -1)]
    found = evaluate_outcomes(3, 7.5, outcomes, 0.5)
    assert found == Evaluation(3, 7.5, 2, 0.5, clean=0.75, mean_radius=1.5, constant=True, count=4)
    assert evaluate_outcomes(3, 7.5, [*outcomes, Outcome(1, True, 4)], 0.5).constant is False
    assert evaluate_outcomes(0, 1.0, outcomes, 0.75).score("certified", None) == (-1, 0.5)
    assert Evaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_feasible_beats_infeasible() -> None:
    def made(clean: float, mean_radius: float) -> tuple[float, float]:
        return Evaluation(0, 1.0, 3, 0.8, clean, mean_radius, False, 10).score("mean", 0.9)

    assert made(0.9, 0.0) > made(0.89, 50.0) > made(0.88, 60.0)
    assert made(0.9, 2.0) > made(1.0, 1.9)


# Votes


@pytest.mark.parametrize("length", [1, 30, 300, 2000])
def test_copies_that_keep_more_keep_all_that_others_keep(length: int) -> None:
    before = np.zeros((64, length), dtype=bool)
    for keep in (1.0, 2.5, 2.6, 7.0, 8.0, 40.0, 300.0):
        kept = constant_keep(keep).sample(length, 64, stream(5, content_key(("a",) * length), CALIBRATION[1]))
        assert kept.sum() >= before.sum()
        assert (kept >= before).all()
        assert kept.mean() == pytest.approx(min(1, keep / length), abs=0.15)
        before = kept
    assert before[:, :1].any()


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
    found = certify_sample(certifier, [certifier.prepare(text, "x") for text in texts], labels, keep)
    options |= {"n_select": 32, "n_estimate": 128, "sampling": "fixed", "seed": 4, "progress": False}
    direct = SmoothedClassifier(base, constant_keep(keep), **options).certify(texts)
    assert [outcome.radius for outcome in found] == [c.radius for c in direct]
    assert [outcome.right for outcome in found] == [c.label == y for c, y in zip(direct, labels, strict=True)]
    assert len({outcome.radius for outcome in found}) >= 2
    assert 0.5 < np.mean([outcome.right for outcome in found]) <= 1


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
    found = quick(DATA, **objective)
    assert [bin.lower for bin in found.bins] == EDGES
    assert [bin.upper for bin in found.bins] == [40, 80, None]
    assert found.noise == Deletion(BinnedRate(EDGES, [bin.keep for bin in found.bins]))
    for number, bin in enumerate(found.bins):
        tried = [e for e in found.trace if e.bin == number]
        low, high = search_interval(make_bins(EDGES, 1)[number])
        assert len(tried) == len({e.keep for e in tried}) == evaluations(low, high, 2.0)
        best = max(tried, key=lambda e: score_of(e, found))
        assert score_of(best, found) == score_of(next(e for e in tried if e.keep == bin.keep), found)
        assert bin.count == 24 < bin.available
        assert (bin.radius, bin.certified, bin.clean) == (best.radius, best.certified, best.clean)
        assert bin.searched == bin.keep
    assert sum(bin.available for bin in found.bins) == 240
    assert found == quick(DATA, **objective)
    assert found != quick(DATA, **objective, seed=1)
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_an_evaluation_is_what_the_model_does_under_that_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of a bin against certificates of its examples, from end to end, on the same draws."""
    monkeypatch.setattr("adaptdel.calibration.calibration.CALIBRATION", CERTIFICATION)
    found = quick(per_bin=1000)
    for bin in found.bins:
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
    found = quick(bins="auto", min_count=40, tol=8.0)
    assert found.settings["bins"] == equal_width_edges([len(t.split()) for t in DATA[0]], min_count=40)
    assert len(found.bins) > 2


def test_interpolated() -> None:
    binned, found = (quick(DATA, interpolate=flag) for flag in (False, True))
    assert found.rate == InterpolatedRate([20, 60, 120], [bin.keep for bin in binned.bins])
    assert found.bins == binned.bins
    assert make_rate(make_bins([0, 137, 230, 324], 1), [4, 9, 6, 14], interpolate=True) == InterpolatedRate(
        [68.5, 183.5, 277, 418], [4, 9, 6, 14]
    )


def test_monotone() -> None:
    assert monotone_fit([4, 9, 6, 14], [1, 1, 2, 1]) == [4, 7, 7, 14]
    free = quick(TURNED, **MONOTONE | {"monotone": False})
    found = whole()
    assert free.bins[2].keep < free.bins[1].keep
    assert [bin.keep for bin in found.bins] == monotone_fit([b.keep for b in free.bins], [b.count for b in free.bins])
    assert [bin.searched for bin in found.bins] == [bin.keep for bin in free.bins]
    # bins weigh as many as were looked at
    uneven = {"per_bin": 1000, **MONOTONE}
    alone, fit = (quick(TURNED, **uneven | {"monotone": flag}) for flag in (False, True))
    counts = [bin.count for bin in alone.bins]
    assert [bin.keep for bin in fit.bins] == monotone_fit([bin.keep for bin in alone.bins], counts)
    assert [bin.keep for bin in fit.bins] != monotone_fit([bin.keep for bin in alone.bins], [1, 1, 1])
    # the measures are those of the fitted kept length
    moved = [bin for bin in found.bins if bin.keep != bin.searched]
    assert len(moved) == 2
    for bin in moved:
        number = found.bins.index(bin)
        evaluation = next(e for e in found.trace if (e.bin, e.keep) == (number, bin.keep))
        assert (bin.radius, bin.clean) == (evaluation.radius, evaluation.clean)


def test_warnings() -> None:
    texts, labels = DATA
    noisy = [1 - y if len(t.split()) >= 80 and i % 4 < 2 else y for i, (t, y) in enumerate(zip(texts, labels))]  # noqa: B905
    found = quick((texts, noisy))
    assert [bin.reached for bin in found.bins] == [True, True, False]
    best = max(e.certified for e in found.trace if e.bin == 2)
    keep = found.bins[2].keep
    assert found.warnings == (
        f"the bin of 80 tokens and more: {keep:g} kept tokens do not reach a certified accuracy of 0.75 even at radius "
        f"0 (it is {best:.3g}), nor does any other candidate",
    )
    assert (found.bins[2].radius, found.bins[2].certified) == (-1, best)
    few = quick((texts, labels), min_count=30)
    assert few.warnings[0].endswith("kept tokens were chosen on 24 examples only")


def test_a_constant_answer_is_warned_of() -> None:
    model = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1], progress=False)
    found = quick(DATA, model, threshold=0.3)
    assert len([sentence for sentence in found.warnings if "the same prediction" in sentence]) == 3


# Resuming


class Stop(Exception):
    pass


@cache
def whole() -> Calibration:
    return quick(TURNED, **MONOTONE)


def kept(path: Path) -> list[dict[str, Any]]:
    """The evaluations in a checkpoint."""
    return [values for _, values in read_records(path, "calibration")] if path.exists() else []


def write_journal(path: Path, calibration: Calibration, count: int | None = None) -> bytes:
    """The journal that version 0.1 left after so many evaluations."""
    lines = [{"journal": 1, "settings": calibration.settings}, *(one.to_dict() for one in calibration.trace[:count])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_stopped_within_an_evaluation(tmp_path: Path, share: float) -> None:
    stop, checkpoint = int(len(whole().trace) * share), tmp_path / "checkpoint"

    def progress(done: int, total: int) -> None:
        assert done <= total
        if done >= 24 * stop + 7:
            raise Stop

    with pytest.raises(Stop):
        quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
    assert len(kept(checkpoint)) == stop
    asked: list[int] = []
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=lambda done, total: asked.append(done)) == whole()
    assert len(kept(checkpoint)) == len(whole().trace)
    assert asked[: stop + 1] == [*range(24, 24 * stop + 1, 24), 24 * stop + 1]  # replayed, then one by one


def test_stopped_again_and_again(tmp_path: Path) -> None:
    """Every call gets one evaluation further, and the last one ends as if nothing had happened."""
    checkpoint = tmp_path / "checkpoint"
    for count in range(len(whole().trace) - 1):
        assert len(kept(checkpoint)) == count

        def progress(done: int, total: int, limit: int = 24 * (count + 1) + 1) -> None:
            if done >= limit:
                raise Stop

        with pytest.raises(Stop):
            quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
        assert len(kept(checkpoint)) == count + 1
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint) == whole()


def killed_at(checkpoint: Path, done: int) -> None:
    """Calibrate in a process that is killed after so many certificates."""

    def progress(number: int, total: int) -> None:
        if number >= done:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        quick(TURNED, **MONOTONE, checkpoint=checkpoint, progress=progress)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_killed_and_resumed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    total, rng = 24 * len(whole().trace), random.Random(3)
    for number in range(8):
        done = rng.randrange(total * number // 8, total * (number + 1) // 8) + 1
        killed_at(checkpoint, done)
        assert len(kept(checkpoint)) == (done - (done % 24 == 0)) // 24  # all that were finished before
    assert quick(TURNED, **MONOTONE, checkpoint=checkpoint) == whole()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    errors: list[str] = []

    def progress(done: int, total: int) -> None:
        if not errors:
            again = [sys.executable, "-c", "from adaptdel.cli import main; main()", "calibrate", str(model)]
            again += [
                "--in-place",
                "--data",
                str(tmp_path / "data.jsonl"),
                *ARGUMENTS,
                "--monotone",
                "--objective",
                "mean",
                "--min-accuracy",
                "0.9",
            ]
            ran = subprocess.run(again, capture_output=True, text=True, check=False)
            assert ran.returncode == 2
            errors.append(ran.stderr)

    done = calibrate_folder(model, examples, folder_settings(), progress=progress)
    assert done.calibration == whole()
    assert errors == [f"adaptdel: {model / CHECKPOINT}: another process is using it: wait until that has ended\n"]


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_damaged_checkpoint(tmp_path: Path, suffix: str) -> None:
    """It resumes with what is intact, or says in one sentence which file to delete."""
    source = tmp_path / "source" / "checkpoint"
    source.parent.mkdir()
    killed_at(source, 24 * 5)
    WorkingStore(source, "calibration").close()  # moves the log into the database
    killed_at(source, 24 * 9)
    data = source.with_name(source.name + suffix).read_bytes()
    assert len(data) > 4096
    damages = [data[: len(data) // 2], data[:-1], b"", data[:100], bytes(len(data)), data[:5000] + bytes(3000)]
    for number, damaged in enumerate([*damages, data[:4200] + b"?" * 900 + data[5100:]]):
        checkpoint = Path(shutil.copytree(source.parent, tmp_path / str(number))) / "checkpoint"
        checkpoint.with_name(checkpoint.name + suffix).write_bytes(damaged)
        sentence = f"{checkpoint}: resumed: delete it and run the same command again"
        try:
            found = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
        except ValueError as error:
            sentence = str(error)
            checkpoint.unlink()
            found = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
        assert sentence.startswith(f"{checkpoint}: ")
        assert sentence.endswith(": delete it and run the same command again")
        assert found == whole()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    real, left = WorkingStore.flush, [5]

    def flush(store: WorkingStore) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(store)

    monkeypatch.setattr(WorkingStore, "flush", flush)
    with pytest.raises(ValueError) as error:
        calibrate_folder(model, examples, folder_settings(), progress=False)
    expected = "the disk is full: the evaluations so far are kept: run the same command again once there is space"
    assert str(error.value) == f"{model}: {expected}"
    monkeypatch.undo()
    assert kept(model / CHECKPOINT)
    assert calibrate_folder(model, examples, folder_settings(), progress=False).calibration == whole()


@pytest.mark.parametrize("count", [0, 1, 7, None])
def test_a_calibration_of_version_0_1_is_resumed(tmp_path: Path, count: int | None) -> None:
    """Its journal is converted; a torn last line is dropped."""
    journal = tmp_path / "journal"
    text = write_journal(journal, whole(), count)
    lines = text.splitlines(keepends=True)
    for cut in (0, 1, len(lines[-1]) // 2, len(lines[-1]) - 1) if len(lines) > 1 else (0,):
        journal.write_bytes(text[: len(text) - cut])
        asked: list[int] = []
        again = quick(TURNED, **MONOTONE, checkpoint=journal, progress=lambda done, total: asked.append(done))  # noqa: B023
        assert again == whole()
        replayed = len(lines) - 1 - (cut > 0)
        assert asked[:replayed] == [24 * (number + 1) for number in range(replayed)]
        assert len(kept(journal)) == len(whole().trace)
        assert list(tmp_path.iterdir()) == [journal]
        journal.unlink()
    journal.write_bytes(b"".join(lines[:3]) + b'{"bin": 0}\n')
    with pytest.raises(ValueError, match=rf"journal, line {len(lines[:3]) + 1}: not an evaluation: .*keep is missing"):
        quick(TURNED, **MONOTONE, checkpoint=journal)


def test_a_folder_of_version_0_1_is_resumed(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    for out in (tmp_path / "copy", None):
        write_journal(model / JOURNAL if out is None else tmp_path / f".copy{JOURNAL}", whole(), 5)
        asked: list[int] = []
        done = calibrate_folder(
            model,
            examples,
            folder_settings(),
            out=out,
            progress=lambda done, total: asked.append(done),  # noqa: B023
        )
        assert done.calibration == whole()
        assert asked[:6] == [24, 48, 72, 96, 120, 121]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data.jsonl", "model"]
    assert not [path for path in (*model.iterdir(), *(tmp_path / "copy").iterdir()) if path.name.startswith(".")]


def test_what_is_replayed_is_believed(tmp_path: Path) -> None:
    """A checkpoint is read, not only written: another score in it leads elsewhere."""
    checkpoint = tmp_path / "checkpoint"
    quick(TURNED, **MONOTONE, checkpoint=checkpoint)
    first = kept(checkpoint)[0]
    with WorkingStore(checkpoint, "calibration") as store:
        store.put(1, first | {"clean": 1.0, "mean_radius": 99.0})
    found = quick(TURNED, **MONOTONE, checkpoint=checkpoint)
    assert found.bins[0].searched == first["keep"]
    with WorkingStore(checkpoint, "calibration") as store:
        store.put(2, {"bin": 0})
    with pytest.raises(ValueError, match=r"checkpoint, record 2: not an evaluation: .*keep is missing: delete it to"):
        quick(TURNED, **MONOTONE, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"threshold": 0.8}, "(threshold was 0.75 and is now 0.8)"),
        ({"n_estimate": 65, "seed": 3}, "(n_estimate was 64 and is now 65; seed was 0 and is now 3)"),
        ({"bins": [0, 60]}, "(bins was [0, 40, 80] and is now [0, 60])"),
    ],
)
def test_a_checkpoint_of_another_calibration_is_refused(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    quick(DATA, checkpoint=checkpoint)
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError) as error:
        quick(DATA, **changed, checkpoint=checkpoint)
    assert (
        str(error.value) == f"{checkpoint}: the checkpoint of another calibration {sentence}: delete it to start again"
    )
    assert checkpoint.read_bytes() == before


def test_a_checkpoint_knows_its_data_and_model(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    quick(DATA, checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"\(data was '\w+' and is now '\w+'\)"):
        quick((DATA[0], [1 - DATA[1][0], *DATA[1][1:]]), checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"\(data was '\w+' and is now '\w+'\)"):
        quick(([DATA[0][0].replace("w", "v"), *DATA[0][1:]], DATA[1]), checkpoint=checkpoint)
    other = SmoothedClassifier(fitted(3).base, fitted().noise)
    with pytest.raises(ValueError, match=r"\(model was '\w+' and is now '\w+'\)"):
        quick(DATA, other, checkpoint=checkpoint)
    checkpoint.write_text("something else\n")
    with pytest.raises(ValueError, match="not a working store of adaptdel"):
        quick(DATA, checkpoint=checkpoint)
    assert checkpoint.read_text() == "something else\n"
    nameless = SmoothedClassifier(lambda batch: [0 for _ in batch], classes=[0, 1])
    with pytest.raises(ValueError, match="checkpoint must be None for a base classifier without a fingerprint"):
        quick(DATA, nameless, checkpoint=tmp_path / "new")


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


# Rows, folders and the command


def rows(on: str, *, share: float | None = 0.4, digest: str = "d", bins: Any = (0, 40, 80), count: int = 20) -> Any:
    examples = FileExamples(DATA[0], list(DATA[1]), [str(i) for i in range(240)], "d")
    training = {"validation": share, "seed": 7, "data": {"digest": digest}}
    return choose_rows(examples, training, on, split=Words().split, bins=bins, min_count=count)


def test_rows_that_were_held_out() -> None:
    out = [text for text in DATA[0] if held_out(text, 0.4, 7)]
    assert 60 < len(out) < 130
    assert rows("held-out").texts == out == rows("auto").texts
    assert set(rows("train").texts) == set(DATA[0]) - set(out)
    assert rows("all").texts == DATA[0]
    assert dict(zip(DATA[0], DATA[1], strict=True)) | dict(zip(rows("auto").texts, rows("auto").labels)) == dict(  # noqa: B905
        zip(*DATA, strict=True)
    )
    assert rows("auto").note == f"calibrating on {len(out)} rows: those held out in training"


def test_rows_where_too_few_were_held_out() -> None:
    few = "rows were held out, too few for the bins: all rows are used"
    for made in (rows("auto", count=60), rows("auto", bins="auto", count=60), rows("auto", share=0.02, count=60)):
        assert made.texts == DATA[0]
        assert made.note.endswith(few)
    assert rows("auto", bins="auto", count=10).note.endswith("held out in training")
    other = rows("auto", digest="e")
    assert (other.texts, other.note) == (DATA[0], "not the file that the model was trained on: all rows are used")
    assert (
        rows("auto", share=None).note
        == "no rows of the file were held out: rows that the model was trained on are used"
    )
    with pytest.raises(ValueError, match="on must be 'all' or 'auto' for a model whose training held out no rows"):
        rows("held-out", share=None)


def saved(folder: Path) -> Path:
    model = SmoothedClassifier(fitted().base, Deletion(FixedRate(0.9)), progress=False)
    model.save(folder)
    return folder


def data_file(folder: Path) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(*TURNED, strict=True)))
    return path


def folder_settings() -> dict[str, Any]:
    defaults = {"threshold": 0.75, "interpolate": False, "seed": 0}
    return {k: v for k, v in QUICK.items() if k != "progress"} | defaults | MONOTONE


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_is_calibrated_in_place_or_copied_and_goes_on(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    before = contents(model)
    copied = calibrate_folder(model, examples, folder_settings(), out=tmp_path / "deep" / "copy", progress=False)
    assert contents(model) == before
    assert copied.calibration == whole()
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["copy"]

    def progress(done: int, total: int) -> None:
        if done > 24 * 5:
            raise Stop

    with pytest.raises(Stop):
        calibrate_folder(model, examples, folder_settings(), progress=progress)
    assert {k: v for k, v in contents(model).items() if not k.startswith(CHECKPOINT)} == before  # nothing half-written
    done = calibrate_folder(model, examples, folder_settings(), progress=False)
    assert (done.calibration, done.already_done, done.folder) == (whole(), False, model)
    for folder in (model, copied.folder):
        loaded = SmoothedClassifier.load(folder)
        assert loaded.noise_ == whole().noise
        assert Calibration.from_dict(loaded.calibration_) == whole()
        assert (folder / "calibration.png").read_bytes()[:4] == b"\x89PNG"
        assert not list(folder.glob(f"{CHECKPOINT}*"))
    again = calibrate_folder(model, examples, folder_settings(), progress=lambda done, total: pytest.fail("recomputed"))
    assert (again.calibration, again.already_done) == (whole(), True)


def test_what_a_model_was_calibrated_by_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    changed = folder_settings() | {"interpolate": True, "monotone": False}
    fresh = calibrate_folder(model, examples, changed, out=tmp_path / "fresh", progress=False)
    calibrate_folder(model, examples, folder_settings(), progress=False)
    asked: list[float] = []

    def counted(certifier: Any, prepared: Any, labels: Any, keep: float, **others: Any) -> Any:
        asked.append(keep)
        return certify_sample(certifier, prepared, labels, keep, **others)

    monkeypatch.setattr("adaptdel.calibration.calibration.certify_sample", counted)
    again = calibrate_folder(model, examples, changed, out=tmp_path / "again", progress=False)
    assert (again.calibration, asked) == (fresh.calibration, [])
    other = changed | {"n_estimate": 65}
    calibrate_folder(model, examples, other, out=tmp_path / "other", progress=False)  # measured in another way
    assert asked


def without_phases(values: dict[str, Any]) -> dict[str, Any]:
    """What was written while calibrations drew from the streams of certification."""
    return values | {"settings": {k: v for k, v in values["settings"].items() if k != "phases"}}


def test_measurements_on_the_streams_of_certification_are_not_taken_over(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    calibrate_folder(model, examples, folder_settings(), progress=False)
    stored = model / CALIBRATION_FILE
    stored.write_text(json.dumps(without_phases(json.loads(stored.read_text(encoding="utf-8")))), encoding="utf-8")
    reports: list[int] = []
    again = calibrate_folder(model, examples, folder_settings(), progress=lambda done, total: reports.append(done))
    assert not again.already_done
    assert again.calibration == whole()
    assert len(reports) > 24  # certificate by certificate: nothing was remembered

    journal = tmp_path / "journal"
    first, *rest = write_journal(journal, quick(DATA)).decode().splitlines()
    journal.write_text("\n".join([json.dumps(without_phases(json.loads(first))), *rest]) + "\n")
    with pytest.raises(ValueError, match=r"the checkpoint of another calibration \(phases was None and is now \['cal"):
        quick(DATA, checkpoint=journal)


def test_a_copy_replaces_nothing_unasked(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="holds something that is not a model"):
        calibrate_folder(model, examples, folder_settings(), out=tmp_path / "other", overwrite=True)
    out = saved(tmp_path / "out")
    with pytest.raises(ValueError, match=r"holds another model: choose another folder for --out, or --overwrite"):
        calibrate_folder(model, examples, folder_settings(), out=out)
    calibrate_folder(model, examples, folder_settings(), out=out, overwrite=True, progress=False)
    assert SmoothedClassifier.load(out).noise_ == whole().noise


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    model = saved(tmp_path / "model")
    calibrate_folder(model, read_examples(str(data_file(tmp_path))), folder_settings(), progress=False)
    assert SmoothedClassifier.load(model).noise_ == whole().noise
    assert not (model / "calibration.png").exists()


ARGUMENTS = ["--per-bin", "24", "--min-count", "10", "--votes", "16,64", "--tol", "2", "--bins", "0,40,80"]


def test_the_command(tmp_path: Path) -> None:
    model, data = saved(tmp_path / "model"), data_file(tmp_path)
    arguments = [str(model), "--in-place", "--data", str(data), *ARGUMENTS, "--monotone"]
    arguments += ["--objective", "mean", "--min-accuracy", "0.9"]
    ran = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    *heading, first, second, third, _, where, noise, following = ran.stdout.splitlines()
    words = {word for line in heading for word in line.split()}
    assert words == {"tokens", "kept", "radius", "certified", "accuracy", "at", "this", "clean", "mean", "examples"}
    assert [line.split("  ")[0].strip() for line in (first, second, third)] == ["0 to 40", "40 to 80", "from 80"]
    assert len({len(line) for line in (heading[-1], first, second, third)}) == 1
    assert where == f"{model}: calibrated"
    assert following.startswith("next: adaptdel certify ")
    assert noise == f"noise: {whole().noise!r}"
    assert "## Calibration" in (model / "README.md").read_text(encoding="utf-8")
    again = CliRunner().invoke(calibrate_command, [*arguments, "--json"], catch_exceptions=False)
    stored = json.loads(again.stdout)
    assert stored["finished_before"] is True
    assert Calibration.from_dict(stored) == whole()


def test_the_command_shows_warnings(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    arguments = [str(model), "--in-place", "--data", str(data_file(tmp_path)), *ARGUMENTS, "--objective", "paper"]
    ran = CliRunner().invoke(calibrate_command, [*arguments, "--threshold", "1"], catch_exceptions=False)
    warned = [line for line in ran.stderr.splitlines() if line.startswith("warning: the bin of ")]
    assert [line[:38] for line in warned[:2]] == [
        "warning: the bin of 0 to 40 tokens: 4.",
        "warning: the bin of 40 to 80 tokens: 1",
    ]
    card = (model / "README.md").read_text(encoding="utf-8")
    assert all(line.removeprefix("warning: ") in card for line in warned)


def test_bins_on_the_command_line() -> None:
    assert read_bins("auto") == "auto"
    assert read_bins("0, 137,230") == [0, 137, 230]
    with pytest.raises(ValueError) as error:
        read_bins("0,b")
    assert str(error.value) == "bins must be auto, or numbers such as 0,137,230,324, got '0,b'"


def test_the_figure_shows_every_bin(tmp_path: Path) -> None:
    plots = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    for name, one in [("a", whole()), ("b", replace(whole(), rate=InterpolatedRate([20, 60, 120], [5, 9, 12])))]:
        with pytest.MonkeyPatch.context() as patch:
            kept = plots.Figure.savefig

            def savefig(self: Any, *args: Any, kept: Any = kept, **options: Any) -> None:
                drawn.append(self)
                kept(self, *args, **options)

            patch.setattr(plots.Figure, "savefig", savefig)
            plot_calibration(one, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 5000
    for figure, parts in zip(drawn, (3, 1), strict=True):
        left, right = figure.axes
        lines = [line for line in right.lines if len(line.get_xdata()) > 3]
        assert len(lines) == parts  # a binned rate jumps at its edges, an interpolated one nowhere
        assert "length" in left.get_xlabel()
    (dots,) = [line for line in drawn[0].axes[1].lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == [20, 60, 120]
    assert list(dots.get_ydata()) == [bin.keep for bin in whole().bins]


def test_a_bin_is_a_bin() -> None:
    assert (7 in Bin(5, 10, 10), 10 in Bin(5, 10, 10), 10**6 in Bin(5, None, 20)) == (True, False, True)
