"""One-sided protection: the choice of the threshold, its confidence, detection under attack."""

from __future__ import annotations

import csv
import json
import zlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import adaptdel as ad
from adaptdel.certification.certificate import Certificate, Rule
from adaptdel.classifiers import CallableClassifier, LinearClassifier
from adaptdel.core.confidence import Looks
from adaptdel.report.write import write_report
from adaptdel.runs.audit import audit
from adaptdel.runs.certify import CertificationJob, certify_data
from adaptdel.runs.inputs import MemorySource
from adaptdel.runs.storage import read_run
from adaptdel.training import train
from adaptdel.training.protection import (
    CONFIDENCE,
    LEAST_THRESHOLD,
    Protection,
    allowed_false_positives,
    choose_threshold,
    detection_curve,
    few_votes,
    model_threshold,
    protect,
    protected_class,
)
from tests.calibration.documents import documents


def test_the_number_of_false_positives_that_proves_a_rate() -> None:
    for negatives in (50, 298, 299, 300, 1000, 5000):
        for rate in (0.01, 0.05):
            number = allowed_false_positives(negatives, rate)
            # Clopper-Pearson: with so many false positives, a rate above the limit has at most 5% probability
            proved = binom.cdf(number, negatives, rate) <= 1 - CONFIDENCE
            assert proved or number == 0
            assert binom.cdf(number + 1, negatives, rate) > 1 - CONFIDENCE
            if number == 0:
                assert proved == (negatives >= np.log(0.05) / np.log(1 - rate))


def test_the_threshold_of_a_class() -> None:
    rng = np.random.default_rng(0)
    shares = np.concatenate([rng.beta(1, 20, 1000), rng.beta(8, 2, 300)])
    own = np.arange(1300) >= 1000
    chosen = choose_threshold(shares, own, protect="spam", number=1, max_false_positives=0.01)
    assert chosen.false_positives == (shares[~own] > chosen.threshold).sum() == allowed_false_positives(1000, 0.01)
    assert chosen.is_shown
    assert chosen.detected == (shares[own] > chosen.threshold).sum() > 290
    few = choose_threshold(shares[900:], own[900:], protect="spam", number=1, max_false_positives=0.01)
    assert (few.negatives, few.false_positives, few.is_shown) == (100, 0, False)
    assert "at most 3% with a confidence of 95%" in few.sentence()
    (warning,) = few.warnings()
    assert warning.startswith(
        "100 texts of the other class cannot show a rate of false positives of 1%: 299 are needed"
    )
    assert chosen.warnings() == []
    estimate = replace(chosen, cross_validated=True)
    assert "an estimate, not a proof" in estimate.sentence()
    assert "to prove 1%, hold out 299 texts of the other class at least, better 1,000" in estimate.warnings()[0]
    mirrored = choose_threshold(shares, own, protect="ham", number=0, max_false_positives=0.01)
    assert mirrored.threshold == pytest.approx(1 - chosen.threshold, abs=1e-14)
    for share in shares:  # class 0 is answered iff the probability of class 1 does not exceed the threshold
        assert (not (1 - share) > mirrored.threshold) == (share > chosen.threshold)


@pytest.mark.parametrize("number", [0, 1])
def test_a_text_at_the_limit_does_not_get_the_protected_answer(number: int) -> None:
    """The held-out text whose share is the limit is not counted as a false positive: nor is it in use."""
    for total in (100, 1000, 4096):
        for count in range(1, total):
            threshold = model_threshold(count / total, number)
            rule = Rule(ad.Deletion(ad.FixedRate(0.9)), ("del", "ins", "sub"), threshold=threshold)
            for own, is_answered in ((count, False), (count + 1, True)):
                shares = [total - own, own] if number else [own, total - own]
                assert (rule.predicted_class(shares, total) == number) == is_answered, (count, total)
    for denominator in range(3, 200):  # probabilities of enumerated texts
        exact = Fraction(1, denominator)
        rule = Rule(ad.Deletion(ad.FixedRate(0.9)), ("del",), threshold=model_threshold(float(exact), number))
        assert rule.predicted_class([1 - exact, exact] if number else [exact, 1 - exact]) != number
    assert 0 <= model_threshold(float(np.nextafter(1.0, 0.0)), number) < 1


def test_the_bound_on_false_positives_holds_where_many_texts_have_the_same_share() -> None:
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
            counts = [top, above - top, negatives - above, 1]
            shares, own = np.repeat([0.9, 0.6, 0.3, 1.0], counts), np.arange(negatives + 1) == negatives
            chosen = choose_threshold(shares, own, protect="spam", number=1, max_false_positives=asked)
            true = 0.0 if chosen.threshold > 0.8 else high if chosen.threshold > 0.5 else middle
            broken += chance * (true > chosen.upper)
    assert allowed > 3
    assert broken <= 1 - CONFIDENCE


def test_the_bound_on_false_positives_where_no_text_has_votes() -> None:
    shares, own = np.append(np.zeros(2000), 1.0), np.arange(2001) == 2000
    chosen = choose_threshold(shares, own, protect="spam", number=1, max_false_positives=0.01)
    assert chosen.threshold == pytest.approx(LEAST_THRESHOLD)
    (warning,) = chosen.warnings()
    assert warning.startswith(
        "1% of the votes decide for spam, the least that is used: few edits can remove so few votes"
    )
    assert "--class-weight balanced" in warning
    assert chosen.upper == pytest.approx(1 - 0.05 ** (1 / 2000))


def test_a_report_shows_detection_under_attack(tmp_path: Path) -> None:
    texts, labels = documents(160, 3)
    model = train(texts, labels, rate=0.8, progress=False, bits=10, copies=4, validation=0.0)
    model.set_params(n_select=100, n_estimate=400, progress=False)
    protect(model, *documents(200, 10), protect=0, max_false_positives=0.3)
    held, truth = documents(40, 9)
    ad.evaluate(model, held, labels=truth, out=tmp_path / "run", progress=False)
    values = write_report([tmp_path / "run"], tmp_path / "report", sample=0)
    expected = detection_curve(model.certify(held), truth, 0)
    assert values["runs"][0]["detection"] == expected.to_dict()
    assert (tmp_path / "report" / "figures" / "detection.png").exists()
    with (tmp_path / "report" / "tables" / "detection.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["class"], float(row["limit"])) for row in rows] == [("0", 0.001), ("0", 0.01), ("0", 0.05)]
    for row in rows:
        assert float(row["measured"]) <= float(row["limit"])
        allowed = expected.false_positives <= float(row["limit"])
        assert float(row["detection_0"]) == expected.detection[allowed, 0].max()
    assert [problems for _, problems in audit(read_run(tmp_path / "run")) if problems] == []


@pytest.mark.slow
def test_the_rate_of_false_positives_is_covered() -> None:
    """In at most 5% of the trials, the true rate at the chosen threshold exceeds what was asked for."""
    rng = np.random.default_rng(7)
    broken = 0
    for _ in range(2000):
        negatives = rng.random(600)  # the true rate at a threshold η is 1 − η
        shares, own = np.append(negatives, 1.0), np.append(np.zeros(600, dtype=bool), True)
        chosen = choose_threshold(shares, own, protect="spam", number=1, max_false_positives=0.02)
        assert chosen.is_shown
        broken += 1 - chosen.threshold > 0.02
    assert broken <= 2000 * 0.05 + 3 * np.sqrt(2000 * 0.05 * 0.95)


def test_wrong_protections() -> None:
    for classes, wanted, sentence in (
        ([0, 1, 2], 1, "protect needs a model of two classes, got 3"),
        (["ham", "spam"], "eggs", "protect must be one of the classes 'ham' and 'spam', got 'eggs'"),
    ):
        with pytest.raises(ValueError) as error:
            protected_class(classes, wanted)
        assert str(error.value) == sentence
    assert protected_class([0, 1], "1") == 1
    with pytest.raises(ValueError, match="protect needs held-out texts of the other class, got none"):
        choose_threshold([0.5], [True], protect="spam", number=1, max_false_positives=0.1)
    with pytest.raises(ValueError, match="max_false_positives must be a rate between 0 and 1"):
        choose_threshold([0.5, 0.1], [True, False], protect="spam", number=1, max_false_positives=1.0)


def test_train_protects_and_the_model_remembers(tmp_path: Path) -> None:
    texts, labels = documents(240, 3)
    names = ["spam" if label else "ham" for label in labels]
    model = train(texts, names, rate=0.7, protect="spam", max_false_positives=0.05, progress=False, bits=10, copies=4)
    record = model.protection_
    assert record["negatives"] == 120  # held out, and by cross-validation
    assert record["cross_validated"]
    assert Protection.from_dict(json.loads(json.dumps(record))).to_dict() == record
    assert 0 < record["certifiable"] <= record["detected"]
    assert model.threshold == record["threshold"]
    model.save(tmp_path / "model")
    loaded = ad.SmoothedClassifier.load(tmp_path / "model")
    assert (loaded.threshold, loaded.protection_) == (model.threshold, record)
    assert "**spam** iff" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    loaded.set_params(n_select=64, n_estimate=256, progress=False)
    certificates = loaded.certify(documents(20, 4)[0])
    assert {certificate.threshold for certificate in certificates} == {model.threshold}
    for certificate in certificates:
        again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
        assert again.radius == certificate.radius == certificate.rederive(alpha=0.05).radius


def test_enough_held_out_texts_prove_the_rate() -> None:
    texts, labels = documents(500, 3)
    options: dict[str, Any] = {"rate": 0.7, "protect": "1", "max_false_positives": 0.1, "bits": 10, "copies": 4}
    proved = train(texts, labels, validation=0.5, progress=False, **options)
    assert not proved.protection_["cross_validated"]
    assert 100 <= proved.protection_["negatives"] < 150  # held out of 250
    assert not any("estimated" in sentence for sentence in proved.protection_["warnings"])


def test_texts_that_the_model_was_trained_on_prove_nothing() -> None:
    """A file of held-out texts may repeat texts of the training file; they are not used for the threshold."""
    texts, labels = documents(300, 3)
    others, truth = documents(300, 21)
    options: dict[str, Any] = {"rate": 0.7, "protect": "1", "max_false_positives": 0.1, "bits": 10, "copies": 4}
    alone = train(texts, labels, validation=(others, truth), progress=False, **options).protection_
    both = train(texts, labels, validation=(others + texts, truth + labels), progress=False, **options).protection_
    assert alone["negatives"] == truth.count(0) == 150
    assert both == alone


def test_a_class_that_cannot_be_protected_is_named_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearClassifier, "fit", lambda *arguments, **options: pytest.fail("it was trained"))
    texts, labels = documents(60, 3)
    with pytest.raises(ValueError, match="protect must be one of the classes 0 and 1, got '2'"):
        train(texts, labels, protect="2", max_false_positives=0.1, progress=False)
    with pytest.raises(ValueError, match="protect needs held-out examples of the other class than 1, got none"):
        train(texts, labels, model="embedding", validation=0.0, protect="1", max_false_positives=0.1, progress=False)


def test_a_threshold_that_certifies_almost_nothing_is_warned_of() -> None:
    """A class of 5% whose texts are like the others: few of them can be certified against one edit."""
    texts = [text for text, label in zip(*documents(800, 3), strict=True) if label == 0]
    labels = [int(number % 20 == 0) for number in range(len(texts))]
    options: dict[str, Any] = {"rate": 0.9, "protect": "1", "max_false_positives": 0.02, "bits": 10, "copies": 4}
    model = train(texts, labels, progress=False, **options)
    record = model.protection_
    assert record["certifiable"] <= 0.1 * record["positives"]
    assert any("to be certified against one edit: allow more false positives" in text for text in record["warnings"])


def test_the_folds_are_trained_under_the_noise_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    noises = []
    fit = LinearClassifier.fit

    def watched(self: LinearClassifier, *arguments: Any, noise: Any, **options: Any) -> LinearClassifier:
        noises.append(noise)
        return fit(self, *arguments, noise=noise, **options)

    monkeypatch.setattr(LinearClassifier, "fit", watched)
    texts, labels = documents(120, 3)
    options: dict[str, Any] = {"rate": 0.7, "protect": "1", "max_false_positives": 0.1, "bits": 10, "copies": 4}
    train(texts, labels, method="adaptdel+", progress=False, **options)
    assert len(noises) == 4
    assert len(set(map(repr, noises))) == 1


def in_three_of_ten_copies(batch: list[str]) -> list[str]:
    return ["spam" if zlib.crc32(text.encode()) % 10 < 3 else "ham" for text in batch]


def test_fewer_votes_than_the_threshold_was_chosen_for_are_named(tmp_path: Path) -> None:
    """All texts have the same probability of spam: by 1,000 votes few exceed the threshold, by 50 votes many."""
    noise = ad.Deletion(ad.FixedRate(0.5))
    model = ad.SmoothedClassifier(in_three_of_ten_copies, noise, classes=["ham", "spam"], progress=False)
    rng = np.random.default_rng(0)
    held, others = ([" ".join(map(str, rng.integers(0, 10**6, 24))) for _ in range(120)] for _ in range(2))
    protect(model, held, ["ham"] * len(held), protect="spam", max_false_positives=0.05)
    shares = {}
    for votes in (1000, 50):
        model.set_params(n_select=votes)
        shares[votes] = float(np.mean(model.predict(others) == "spam"))
        assert (few_votes(model) is None) == (votes == 1000)
    assert shares[1000] < 0.1 < shares[50]
    texts, labels = documents(160, 3)
    train(texts, labels, rate=0.7, protect="1", max_false_positives=0.2, progress=False, bits=10, copies=4).save(
        tmp_path / "model"
    )
    notes: list[str] = []
    source = MemorySource(texts=texts[:4], labels=labels[:4])
    job = CertificationJob(tmp_path / "model", source, tmp_path / "run", {"n_select": 50, "n_estimate": 100})
    certify_data(job, note=notes.append, progress=False)
    assert "was chosen for answers by 1,000 votes: with 50 selection votes the rate of false" in notes[0]


def test_another_training_ends_the_protection() -> None:
    """What was proved about a model does not hold for the one that is trained in its place."""
    texts, labels = documents(160, 3)
    model = ad.SmoothedClassifier(noise=ad.Deletion(ad.FixedRate(0.7)), copies=4, progress=False).fit(texts, labels)
    protect(model, *documents(200, 10), protect=1, max_false_positives=0.3)
    assert model.protection_["protect"] == 1
    assert not hasattr(model.fit(texts, labels), "protection_")


def test_what_is_known_holds_for_the_threshold_that_was_chosen(tmp_path: Path) -> None:
    texts, labels = documents(160, 3)
    model = train(texts, labels, rate=0.7, protect="1", max_false_positives=0.2, progress=False, bits=10, copies=4)
    model.set_params(threshold=0.4).save(tmp_path / "other")
    assert not hasattr(ad.SmoothedClassifier.load(tmp_path / "other"), "protection_")


def test_a_lower_threshold_protects_against_more_edits() -> None:
    texts, labels = documents(160, 3)
    model = train(texts, labels, rate=0.8, progress=False, bits=10, copies=4, validation=0.0)
    model.set_params(n_select=100, n_estimate=400, progress=False)
    held, truth = documents(40, 9)
    both = model.certify(held)
    chosen = protect(model, *documents(200, 10), protect=1, max_false_positives=0.3)
    assert chosen.threshold < 0.5
    one_sided = model.certify(held)
    pairs = [(a, b) for a, b, y in zip(both, one_sided, truth, strict=True) if y == 1 and a.label == b.label == 1]
    assert len(pairs) > 10
    assert sum(b.radius for _, b in pairs) > sum(a.radius for a, _ in pairs)


def test_detection_under_attack() -> None:
    texts, labels = documents(160, 3)
    model = train(texts, labels, rate=0.8, progress=False, bits=10, copies=4, validation=0.0)
    model.set_params(n_select=100, n_estimate=400, progress=False)
    held, truth = documents(40, 9)
    certificates = model.certify(held)
    curve = detection_curve(certificates, truth, 1, radii=(0, 1, 3), thresholds=[0.2, 0.5, 0.8])
    assert curve.thresholds.tolist() == [0.8, 0.5, 0.2]
    assert (np.diff(curve.false_positives) >= 0).all()
    assert (np.diff(curve.detection, axis=0) >= 0).all()
    assert (np.diff(curve.detection, axis=1) <= 0).all()
    own = [c for c, y in zip(certificates, truth, strict=True) if y == 1]
    expected = [np.mean([c.label == 1 and c.radius >= r for c in own]) for r in (0, 1, 3)]
    assert curve.detection[1].tolist() == pytest.approx(expected)
    other = detection_curve(certificates, [1 - y for y in truth], 1, radii=(0,), thresholds=[0.5])
    assert other.false_positives[0] == pytest.approx(np.mean([c.label == 1 for c in own]))
    assert len(detection_curve(certificates, truth, 1).thresholds) > 3
    with pytest.raises(ValueError, match="labels must be one for each certificate, of both classes"):
        detection_curve(certificates, [1] * 40, 1)


def test_false_positives_of_a_curve_are_judged_by_all_votes() -> None:
    """A selection that ended after 32 votes cannot tell a share of 2% from none."""
    noise, looks = ad.Deletion(ad.FixedRate(0.9)), Looks.fixed(1000, 0.05)

    def certificate(selection: tuple[int, int], votes: tuple[int, int]) -> Certificate:
        answer = int(selection[1] > selection[0])
        return Certificate(("ham", "spam")[answer], ("ham", "spam"), True, answer, 50, noise, selection, looks,
                           (votes,), None)  # fmt: skip

    rows = [certificate((32, 0), (980, 20))] * 10 + [certificate((2, 30), (50, 950))] * 10
    labels = ["ham"] * 10 + ["spam"] * 10
    curve = detection_curve(rows, labels, "spam", thresholds=[0.01, 0.5])
    assert curve.false_positives.tolist() == [0.0, 1.0]
    free = detection_curve(rows, labels, "spam")
    assert free.thresholds.min() >= LEAST_THRESHOLD
    assert free.thresholds[free.at(0.05)] >= 20 / 1032


def test_a_curve_tells_few_false_positives_apart() -> None:
    """Every number of false positives up to 2% of many inputs is a point of the curve."""
    noise, looks = ad.Deletion(ad.FixedRate(0.9)), Looks.fixed(4000, 0.05)
    rng = np.random.default_rng(2)

    def certificate(votes: int) -> Certificate:
        label = int(votes > 2000)
        counts = 4000 - votes, votes
        return Certificate(
            ("ham", "spam")[label], ("ham", "spam"), True, label, 50, noise, counts, looks, (counts,), None
        )

    rows = [certificate(int(votes)) for votes in rng.permutation(3000)[:1000]] + [certificate(3900)] * 20
    curve = detection_curve(rows, ["ham"] * 1000 + ["spam"] * 20, "spam")
    points = set(np.round(curve.false_positives * 1000).astype(int).tolist())
    assert set(range(21)) <= points
    assert len(curve.thresholds) <= 120
    assert curve.false_positives[curve.at(0.01)] == pytest.approx(0.01)
    assert curve.false_positives.max() > 0.9


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
