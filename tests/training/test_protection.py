"""One-sided protection: the proved rate of false positives is about the answers that `predict` gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

import adaptdel as ad
from adaptdel.classifiers import CallableClassifier
from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.cli import main
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.models.smoothed import LEAST_SHARE
from adaptdel.runs.manifest import protected_class
from adaptdel.training import TrainingJob, train, train_job
from adaptdel.training.protection import (
    CONFIDENCE,
    allowed_false_positives,
    class_number,
    lowest_threshold,
    needed_negatives,
    protect,
    seen_texts,
)
from tests.calibration.documents import documents

HALF = ad.Deletion(ad.FixedRate(0.5))


class SpamInFewCopies(BaseClassifier):
    """Answers "spam" to exactly a quarter of the copies of one text in ``every``, and to none of the others."""

    def __init__(self, every: int = 8) -> None:
        self.classes_, self.every = ["ham", "spam"], every

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        answers = []
        for request in requests:
            is_odd = int(str(request.prepared.tokens[0])) % self.every == 0
            answers.append((is_odd & request.kept[:, 0] & ~request.kept[:, 1]).astype(np.int64))
        return answers


def random_texts(rng: np.random.Generator, count: int, words: int) -> list[str]:
    return [" ".join(map(str, row)) for row in rng.integers(0, 10**9, (count, words))]


def fails(every: int, words: int, sampling: str, votes: int, *, certify: bool) -> int:
    """In how many of 12 trials more new texts than was proved get the protected answer."""
    rng, broken = np.random.default_rng(1), 0
    fresh = random_texts(rng, 1000, words)
    for seed in range(12):
        model = ad.SmoothedClassifier(
            SpamInFewCopies(every), HALF, sampling=sampling, n_select=votes, n_estimate=64, seed=seed, progress=False
        )
        held = random_texts(rng, 600, words)
        chosen = protect(model, held, ["ham"] * len(held), label="spam", max_false_positives=0.1, certify=0)
        assert chosen.false_positives >= (model.predict(held) == "spam").sum()
        assert chosen.upper <= 0.1
        answers = [each.label for each in model.certify(fresh)] if certify else model.predict(fresh)
        broken += np.mean([answer == "spam" for answer in answers]) > chosen.upper
    return broken


@pytest.mark.parametrize(
    ("every", "words", "sampling", "votes", "certify"),
    [
        (4, 7, "fixed", 50, False),
        pytest.param(8, 11, "adaptive", 100, True, marks=pytest.mark.slow),
        pytest.param(8, 24, "adaptive", 400, False, marks=pytest.mark.slow),
        pytest.param(8, 24, "fixed", 4000, False, marks=pytest.mark.slow),
    ],
)
def test_the_rate_holds_for_the_answers_that_the_model_gives(
    every: int, words: int, sampling: str, votes: int, certify: bool
) -> None:
    assert fails(every, words, sampling, votes, certify=certify) <= 3  # more have a probability of 0.002


def mixed(rng: np.random.Generator, count: int, *, repeats: bool) -> tuple[list[str], list[str]]:
    """Independent rows; if texts repeat, one text is that of 8% of ham and of 30% of spam."""
    labels = ["spam" if value else "ham" for value in rng.random(count) < 0.4]
    texts = []
    for label in labels:
        words = rng.integers(0, 60, 4) + (6 if label == "spam" else 0)
        is_repeated = repeats and rng.random() < (0.3 if label == "spam" else 0.08)
        texts.append("free money now" if is_repeated else " ".join(f"w{word}" for word in words))
    return texts, labels


@pytest.mark.parametrize("trials", [12, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("repeats", [False, True])
def test_the_rate_holds_where_texts_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int, repeats: bool
) -> None:
    """By `adaptdel train --protect`, and on a file of its own: the rate on fresh texts is at most the proved one."""
    monkeypatch.setattr("adaptdel.training.jobs.write_figures", lambda folder, model: None)
    monkeypatch.setattr("adaptdel.training.jobs.save_model", lambda model, out, extras: None)
    rng = np.random.default_rng(5)
    fresh = [t for t, y in zip(*mixed(rng, 2000, repeats=repeats), strict=True) if y == "ham"]
    fields = {"data": str(tmp_path / "data.jsonl"), "method": "exact", "levels": 2, "iterations": 5, "validation": 0.1}
    fields |= {"protect": "spam", "max_false_positives": 0.05}
    broken = np.zeros(2, dtype=np.int64)
    for seed in range(trials):
        texts, labels = mixed(rng, 600, repeats=repeats)
        write(tmp_path / "data.jsonl", texts, [label == "spam" for label in labels])
        job = TrainingJob.from_dict({**fields, "out": str(tmp_path / "model"), "seed": seed})
        model = train_job(job, progress=False).model
        for way in range(2):
            if way:
                protect(model, *mixed(rng, 400, repeats=repeats), label="spam", max_false_positives=0.05, certify=0)
            broken[way] += (model.predict(fresh) == "spam").mean() > (model.records.protection or {})["upper"]
    assert (broken <= binom.ppf(0.999, trials, 1 - CONFIDENCE)).all()


class Known:
    """Scores that are known, in steps of 1/1000; a text is the number of its score."""

    grid = (0.01, 1.0, 1e-4)
    certified: int | None = None

    def __init__(self, scores: npt.ArrayLike) -> None:
        self.scores, self.asked = np.asarray(scores, dtype=np.float64), 0

    def values(self, texts: Sequence[Any]) -> None:
        """Not told."""

    def exceed(self, texts: Sequence[Any], limit: float) -> BoolArray:
        self.asked += len(texts)
        return np.asarray(self.scores[list(texts)] > limit, dtype=np.bool_)

    def set_threshold(self, limit: float) -> None:
        raise NotImplementedError


def test_the_lowest_threshold_that_few_texts_exceed() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 1000, 500) / 1000
    for allowed in (0, 1, 12, 499, 500):
        known = Known(scores)
        limit, above = lowest_threshold(known, range(500), allowed)
        assert above == (scores > limit).sum() <= allowed
        assert known.asked <= 500 * 5
        assert limit == 0.01 or (scores > limit - 1e-4).sum() > allowed
    assert lowest_threshold(Known([0.0] * 9), range(9), 0) == (0.01, 0)
    with pytest.raises(ValueError, match="no threshold is high enough"):
        lowest_threshold(Known([2.0] * 9), range(9), 3)


def test_a_text_above_a_threshold_is_above_all_lower_ones() -> None:
    """Also where adaptive sampling ends after fewer votes, and for both classes."""
    texts = [tuple(text.split()) for text in random_texts(np.random.default_rng(3), 60, 24)]
    model = ad.SmoothedClassifier(SpamInFewCopies(), HALF, n_select=500, progress=False)
    for number in (0, 1):
        scores = model.class_scores(number)
        answers = np.array([scores.exceed(texts, limit) for limit in np.linspace(0.05, 0.95, 31)])
        assert (answers[1:] <= answers[:-1]).all()
        assert (answers[0] != answers[-1]).any()


def test_the_number_of_false_positives_that_proves_a_rate() -> None:
    for rate in (0.01, 0.05):
        for negatives in (needed_negatives(rate), 300, 1000, 5000):
            number = allowed_false_positives(negatives, rate)
            # Clopper-Pearson: with so many false positives, a rate above the limit has at most 5% probability
            assert binom.cdf(number, negatives, rate) <= 1 - CONFIDENCE < binom.cdf(number + 1, negatives, rate)
        with pytest.raises(ValueError, match=f"at least {needed_negatives(rate)}"):
            allowed_false_positives(needed_negatives(rate) - 1, rate)


def test_the_bound_holds_where_many_texts_have_the_same_share() -> None:
    """The exact probability that the true rate exceeds the bound, for shares of 0.9, 0.6 and 0.3 only."""
    negatives, asked = 300, 0.05
    allowed = allowed_false_positives(negatives, asked)
    high, middle = 3.05 / negatives, 0.05  # P(share > 0.6) and P(share > 0.3)
    broken = 0.0
    for above in range(negatives + 1):  # texts above 0.3
        mass = binom.pmf(above, negatives, middle)
        for top in range(above + 1):
            chance = mass * binom.pmf(top, above, high / middle)
            if chance < 1e-7:
                continue
            shares = np.repeat([0.9, 0.6, 0.3], [top, above - top, negatives - above])
            limit, _ = lowest_threshold(Known(shares), range(negatives), allowed)
            true = 0.0 if limit > 0.8 else high if limit > 0.5 else middle
            broken += chance * (true > asked)
    assert allowed > 3
    assert broken <= 1 - CONFIDENCE


def linear(**options: Any) -> ad.SmoothedClassifier:
    texts, labels = documents(240, 3)
    names = ["spam" if label else "ham" for label in labels]
    model = train(texts, names, rate=0.7, progress=False, bits=10, copies=4, **options)
    return model.set_params(n_select=100, n_estimate=400)


def test_a_protected_model_is_saved_with_what_is_proved(tmp_path: Path) -> None:
    model = linear()
    held, labels = documents(200, 10)
    chosen = protect(
        model, held, ["spam" if y else "ham" for y in labels], label="spam", max_false_positives=0.1, certify=20
    )
    assert (chosen.negatives, chosen.positives) == (100, 100)
    assert chosen.false_positives <= allowed_false_positives(100, 0.1)
    assert 0 < chosen.certified["1"] <= chosen.detected / 100 + 0.3
    assert model.threshold == chosen.threshold == chosen.limit >= LEAST_SHARE
    model.save(tmp_path / "model")
    loaded = ad.SmoothedClassifier.load(tmp_path / "model")
    assert (loaded.threshold, loaded.records.protection) == (model.threshold, json.loads(json.dumps(chosen.to_dict())))
    assert chosen.sentence() in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    for use in ("training", "held out", "threshold"):
        assert np.array_equal(loaded.records.texts[use], model.records.texts[use])
    mirrored = protect(
        model.set_params(ops="del"), held, ["ham" if y else "spam" for y in labels], label="ham",
        max_false_positives=0.5, certify=9,
    )  # fmt: skip
    assert mirrored.threshold == 1 - mirrored.limit
    assert mirrored.sentence().endswith("% no matter which 2 words an attacker deletes")


def test_the_certified_texts_are_drawn_from_the_whole_file() -> None:
    """The first texts of a file that is in some order are not like the others."""
    model = ad.SmoothedClassifier(
        lambda batch: ["spam" if "buy" in text else "ham" for text in batch], HALF, classes=["ham", "spam"],
        n_select=50, n_estimate=100, progress=False,
    )  # fmt: skip
    easy, missed, other = (
        [" ".join([word] * 12 + [str(n)]) for n in range(count)]
        for word, count in (("buy", 120), ("win", 240), ("see", 60))
    )
    texts, labels = easy + missed + other, ["spam"] * 360 + ["ham"] * 60
    chosen = protect(model, texts, labels, label="spam", max_false_positives=0.1)
    assert chosen.detected == 120
    assert 0.2 < chosen.certified["1"] < 0.5


def test_no_rate_is_stated_for_other_answers(tmp_path: Path) -> None:
    model = linear()
    held, labels = documents(200, 10)
    protect(model, held, ["spam" if y else "ham" for y in labels], label="spam", max_false_positives=0.2, certify=0)
    assert model.changed_plan() is None
    model.save(tmp_path / "model")
    for name, value in (("n_select", 50), ("sampling", "fixed"), ("threshold", 0.9)):
        changed = ad.SmoothedClassifier.load(tmp_path / "model").set_params(**{name: value})
        assert name in str(changed.changed_plan())
        changed.save(tmp_path / name)
        assert ad.SmoothedClassifier.load(tmp_path / name).records.protection is None
        assert protected_class(changed) is None


def test_texts_that_the_model_knows_prove_nothing() -> None:
    """In other rows, order and spacing; held-out texts of a linear model are free, those of other models are not."""
    model = linear()
    texts, _ = documents(240, 3)
    seen = seen_texts(model, [f" {text.replace(' ', '  ')}\n" for text in reversed(texts)])
    assert 0 < (~seen).sum() == len(model.records.texts["held out"]) < 40
    assert not seen_texts(model, documents(50, 10)[0]).any()
    model.record(texts={"training": model.records.texts["training"], "validation": model.records.texts["held out"]})
    assert seen_texts(model, texts).all()
    for held in (texts[:99], [*texts, *random_texts(np.random.default_rng(1), 99, 9)]):
        with pytest.raises(ValueError, match="texts must not be those that the model was trained or calibrated on"):
            protect(model, held, ["ham"] * len(held), label="spam", max_false_positives=0.1)


def write(path: Path, texts: Sequence[str], labels: Sequence[int]) -> Path:
    rows = [{"text": text, "label": ("ham", "spam")[label]} for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linear(validation=0.0).save(tmp_path / "model")
    texts, labels = documents(200, 10)
    known, truth = documents(240, 3)
    data = write(tmp_path / "held.jsonl", texts + known[:7], labels + truth[:7])

    def run(*options: object, data: Path = data) -> int | str | None:
        arguments = ["protect", tmp_path / "model", "--class", "spam", "--max-false-positives", 0.1]
        with pytest.raises(SystemExit) as status:
            main([str(argument) for argument in [*arguments, "--data", data, *options]])
        return status.value.code

    assert run("--out", tmp_path / "out") == 0
    output = capsys.readouterr()
    assert "7 of 207 rows" in output.err
    assert "row 201" in output.err
    assert "% false positives (95% confidence: at most " in output.out
    loaded = ad.SmoothedClassifier.load(tmp_path / "out")
    assert (loaded.records.protection or {})["negatives"] == 100 + truth[:7].count(0)
    assert ad.SmoothedClassifier.load(tmp_path / "model").threshold is None
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["threshold"] == loaded.threshold
    assert ad.SmoothedClassifier.load(tmp_path / "model").threshold == loaded.threshold
    for options, word in (
        (("--out", tmp_path / "out"), "--overwrite"),
        (("--max-false-positives", 0.001), "2,995"),
        (("--class", "eggs"), "eggs"),
    ):
        assert run(*options) == 2
        assert word in capsys.readouterr().err
    assert run(data=write(tmp_path / "known.jsonl", known, truth)) == 2
    assert "known.jsonl" in capsys.readouterr().err


def test_wrong_classes_and_damaged_records(tmp_path: Path) -> None:
    assert class_number([0, 1], "1") == 1
    for classes, label in (([0, 1, 2], 1), (["ham", "spam"], "eggs")):
        with pytest.raises(ValueError, match="class"):
            class_number(classes, label)
    model = linear()
    with pytest.raises(ValueError, match="'Spam'"):
        protect(model, ["a", "b"], ["ham", "Spam"], label="spam", max_false_positives=0.5)
    protect(model, documents(40, 10)[0], ["ham", "spam"] * 20, label="spam", max_false_positives=0.5, certify=0)
    model.save(tmp_path / "model")
    config = tmp_path / "model" / "adaptdel.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    for changes in ({"label": None}, {"sentence": 7}, {"plan": 3}):
        config.write_text(json.dumps(values | {"protection": values["protection"] | changes}), encoding="utf-8")
        with pytest.raises(ValueError, match=next(iter(changes))):
            ad.SmoothedClassifier.load(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.7])
def test_coverage_of_the_threshold_rule(threshold: float) -> None:
    """Near the threshold, an answer of class 1 is certified wrongly in at most alpha of the runs.

    The base answers 1 iff the marked token is kept, so that p1 is the keep rate: just below the threshold, no
    certificate for class 1 may be given; just above it, the radius may not exceed that of the true probability.
    """
    tokens = "mark " + " ".join(f"w{number}" for number in range(30))
    base = CallableClassifier(lambda batch: [int("mark" in text.split()) for text in batch], [0, 1], recheck=0)
    for offset in (-0.01, 0.02):
        keep = threshold + offset
        noise = ad.Deletion(ad.FixedRate(1 - keep))
        true = 1 - noise.rate(31)
        largest = ad.certified_radius(true, length=31, noise=noise, threshold=threshold)
        wrong = 0
        for seed in range(300):
            model = ad.SmoothedClassifier(
                base, noise, threshold=threshold, n_select=64, n_estimate=400, seed=seed, alpha=0.05, progress=False
            )
            certificate = model.certify([tokens])[0]
            if certificate.label == 1 and certificate.radius >= 0:
                wrong += true <= threshold or certificate.radius > largest
            if certificate.label == 0 and certificate.radius >= 0:
                wrong += true > threshold or certificate.radius > largest
        assert wrong <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)
