"""Detection under attack: ROC curves from the votes of certificates; certificates of the threshold rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.calibration.detection import detection_curve
from adaptdel.calibration.protection import LEAST_SHARE, protect
from adaptdel.certification.certificate import Certificate
from adaptdel.classifiers import CallableClassifier
from adaptdel.core.confidence import Looks
from adaptdel.report.write import write_report
from adaptdel.runs.rederive import verify_run
from adaptdel.runs.storage import read_run
from adaptdel.training import train
from tests.calibration.documents import documents


def test_a_report_shows_detection_under_attack(tmp_path: Path) -> None:
    texts, labels = documents(160, 3)
    model = train(texts, labels, rate=0.8, progress=False, bits=10, copies=4, validation=0.0)
    model.set_params(n_select=100, n_estimate=400, progress=False)
    protect(model, *documents(200, 10), label=0, certify=0, max_false_positives=0.3)
    held, truth = documents(40, 9)
    ad.evaluate(model, held, labels=truth, out=tmp_path / "run", progress=False)
    values = write_report([tmp_path / "run"], tmp_path / "report", sample=0)
    expected = detection_curve(model.certify(held), truth, 0)
    assert values["runs"][0]["detection"] == expected.to_dict()
    assert (tmp_path / "report" / "figures" / "detection.png").exists()
    assert [problems for _, problems in verify_run(read_run(tmp_path / "run")) if problems] == []


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
        return Certificate(("ham", "spam")[answer], ("ham", "spam"), answer, 50, noise, selection, looks,
                           (votes,), None)  # fmt: skip

    rows = [certificate((32, 0), (980, 20))] * 10 + [certificate((2, 30), (50, 950))] * 10
    labels = ["ham"] * 10 + ["spam"] * 10
    curve = detection_curve(rows, labels, "spam", thresholds=[0.01, 0.5])
    assert curve.false_positives.tolist() == [0.0, 1.0]
    free = detection_curve(rows, labels, "spam")
    assert free.thresholds.min() >= LEAST_SHARE
    assert free.thresholds[free.at(0.05)] >= 20 / 1032


def test_a_curve_tells_few_false_positives_apart() -> None:
    """Every number of false positives up to 2% of many inputs is a point of the curve."""
    noise, looks = ad.Deletion(ad.FixedRate(0.9)), Looks.fixed(4000, 0.05)
    rng = np.random.default_rng(2)

    def certificate(votes: int) -> Certificate:
        label = int(votes > 2000)
        counts = 4000 - votes, votes
        return Certificate(("ham", "spam")[label], ("ham", "spam"), label, 50, noise, counts, looks, (counts,), None)

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
