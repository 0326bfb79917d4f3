"""One-sided protection: the choice of the threshold, its confidence, detection under attack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

import adaptdel as ad
from adaptdel.certification.certificate import Certificate
from adaptdel.classifiers import CallableClassifier
from adaptdel.protection import (
    CONFIDENCE,
    allowed_false_positives,
    choose_threshold,
    detection_curve,
    model_threshold,
    protect,
    protected_class,
)
from adaptdel.training import train
from tests.calibration.test_calibration import documents


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
    assert "more than was asked for: hold out more texts" in few.sentence()
    mirrored = choose_threshold(shares, own, protect="ham", number=0, max_false_positives=0.01)
    assert mirrored.threshold == model_threshold(chosen.threshold, 0)
    for share in shares:  # class 0 is answered iff the probability of class 1 does not exceed the threshold
        assert (not (1 - share) > mirrored.threshold) == (share > chosen.threshold)


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
    with pytest.raises(ValueError, match="held-out texts of both classes, got none of the other class"):
        choose_threshold([0.5], [True], protect="spam", number=1, max_false_positives=0.1)
    with pytest.raises(ValueError, match="max_false_positives must be a rate between 0 and 1"):
        choose_threshold([0.5, 0.1], [True, False], protect="spam", number=1, max_false_positives=1.0)


def test_train_protects_and_the_model_remembers(tmp_path: Path) -> None:
    texts, labels = documents(240, 3)
    names = ["spam" if label else "ham" for label in labels]
    model = train(texts, names, rate=0.7, protect="spam", max_false_positives=0.05, progress=False, bits=10, copies=4)
    record = model.protection_
    assert record["negatives"] == 120  # held out, and by cross-validation
    assert model.threshold == record["threshold"]
    model.save(tmp_path / "model")
    loaded = ad.SmoothedClassifier.load(tmp_path / "model")
    assert (loaded.threshold, loaded.protection_) == (model.threshold, record)
    assert "Protects **spam**" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    loaded.set_params(n_select=64, n_estimate=256, progress=False)
    certificates = loaded.certify(documents(20, 4)[0])
    assert {certificate.threshold for certificate in certificates} == {model.threshold}
    for certificate in certificates:
        again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
        assert again.radius == certificate.radius == certificate.rederive(alpha=0.05).radius


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
