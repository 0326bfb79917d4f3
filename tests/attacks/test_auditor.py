from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

import adaptdel as ad
from adaptdel.attacks.auditor import DELTA, Auditor, AuditReport, Claim, ClaimAudit, Violation
from adaptdel.attacks.target import FreshVotes, Target
from adaptdel.attacks.vocabulary import learn_vocabulary
from adaptdel.certification.certificate import Certificate
from adaptdel.hyperparameters import AttackSettings

from .conftest import fitted, texts, vocabulary_of

QUICK = AttackSettings(search_votes=200, verify_votes=4000, queries=300, positions=3, words=3, shortlist=16, seed=7)


def claim_of(certificate: Certificate, text: str, *, more: int = 0) -> Claim:
    bounds = certificate.bounds
    return Claim(
        text[:20], tuple(text.split()), certificate.answer, certificate.radius + more, *bounds, certificate.alpha
    )


def audited(
    model: ad.SmoothedClassifier,
    inputs: list[str],
    broken: Callable[[Certificate], Certificate] = lambda c: c,
    **more: int,
) -> AuditReport:
    """The audit of the certificates of a model, after something was done to them."""
    claims = [claim_of(broken(c), text, **more) for c, text in zip(model.certify(inputs), inputs, strict=True)]
    return Auditor(model.certifier(), vocabulary_of(model), QUICK)(claims)


LONG = [text for text, _ in texts(24, 40, seed=3)]


@pytest.mark.parametrize("noise", [ad.Deletion(ad.FixedRate(0.7)), ad.Masking(0.7), ad.NoNoise()], ids=repr)
def test_valid_certificates_pass(noise: ad.Noise) -> None:
    report = audited(fitted(noise), LONG)
    assert not report.failed
    assert report.certificates == len(LONG)
    assert report.to_dict()["holds"] is True
    assert report.queries > 0 or not noise.changes_inputs


def decided_by_a_word(batch: list[str]) -> list[str]:
    return ["spam" if "buy" in text.split() else "ham" for text in batch]


def decisive() -> ad.SmoothedClassifier:
    """A model for which the certificates are tight: a single word decides."""
    return ad.SmoothedClassifier(
        decided_by_a_word, ad.Deletion(ad.FixedRate(0.7)), classes=["ham", "spam"], progress=False
    )


HAM_TEXTS = [text for text, label in texts(24, 40, seed=3) if label == "ham"]


def test_tight_certificates_pass() -> None:
    report = audited(decisive(), HAM_TEXTS)
    assert not report.violations
    assert report.queries > 100


def test_a_radius_that_is_too_large_is_caught() -> None:
    report = audited(decisive(), HAM_TEXTS, more=3)
    assert report.failed
    assert report.p_value < 1e-6
    violation = report.violations[0]
    assert violation.tokens is not None
    assert "gets another answer" in violation.sentence
    assert report.to_dict()["examples"][0]["distance"] == violation.distance


def test_a_certificate_for_another_rate_is_caught() -> None:
    """Votes at the rate 0.7, certified as if the rate were 0.9."""
    wrong = ad.Deletion(ad.FixedRate(0.9))
    report = audited(decisive(), HAM_TEXTS, lambda certificate: replace(certificate, noise=wrong))
    assert report.failed


def hashed(batch: list[str]) -> list[int]:
    """Ten classes that are about as probable as each other."""
    return [zlib.crc32(text.encode()) % 10 for text in batch]


def test_a_class_that_is_chosen_on_the_votes_that_bound_it_is_caught() -> None:
    """The winner of ten equal classes got too many votes; its probability is known exactly."""
    model = ad.SmoothedClassifier(
        hashed,
        ad.Deletion(ad.FixedRate(0.5)),
        classes=list(range(10)),
        sampling="fixed",
        n_select=50,
        n_estimate=100,
        progress=False,
    )
    inputs = [" ".join(f"w{10 * number + place}" for place in range(10)) for number in range(150)]

    def on_the_same_votes(certificate: Certificate) -> Certificate:
        answer = max(range(10), key=lambda number: certificate.votes[-1][number])
        return replace(certificate, answer=answer, label=answer)

    words = learn_vocabulary(model.certifier(), [(("x", "y"), 0)])
    certificates = model.certify(inputs)
    for broken in (False, True):
        if broken:
            certificates = [on_the_same_votes(certificate) for certificate in certificates]
        claims = [claim_of(certificate, text) for certificate, text in zip(certificates, inputs, strict=True)]
        report = Auditor(model.certifier(), words, QUICK)(claims)
        assert report.sampled == len(inputs)
        assert all(violation.exact for violation in report.violations)
        assert report.failed == broken, report.to_dict()
        if broken:
            assert "bounds the probability of the answer" in report.violations[0].sentence


def test_short_texts_are_enumerated_and_must_never_be_wrong() -> None:
    inputs = [" ".join(text.split()[:4]) for text in HAM_TEXTS]
    report = audited(decisive(), inputs)
    assert not report.failed
    assert report.sampled == 0
    assert report.enumerated > 40 * len(inputs)
    broken = audited(decisive(), inputs, more=1)
    assert broken.failed
    assert broken.certain_p_value == 0
    assert broken.certain[0].exact
    assert broken.certain[0].distance == 2


def test_the_number_of_violations_is_tested() -> None:
    """5% of 1,000 certificates may be wrong at alpha 0.05; 9% may not."""
    wrong = Violation("x", "wrong", exact=False)
    for violations, failed in ((50, False), (60, False), (90, True)):
        report = AuditReport()
        for number in range(1000):
            report.add(ClaimAudit(0.05, 3, wrong if number < violations else None, 0, 1))
        assert report.failed == failed
    certain = AuditReport()
    certain.add(ClaimAudit(0.0, 3, wrong, 0, 1))
    assert certain.failed


def test_all_checks_of_a_claim_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search verifies many texts; together they may disprove a claim that holds with probability `DELTA` only."""
    levels: list[float] = []

    def undecided(self: Target, tokens: object, label: int, *, level: float = 0.0, phase: str = "") -> FreshVotes:
        levels.append(level or self.settings.level)
        return FreshVotes(None, (0.5, 0.5), 1)

    monkeypatch.setattr(Target, "verify", undecided)
    text = HAM_TEXTS[0]
    (certificate,) = decisive().certify([text])
    claim = claim_of(certificate, text, more=20)
    assert Auditor(decisive().certifier(), vocabulary_of(decisive()), QUICK).check(claim).violation is None
    assert len(levels) > 10
    assert sum(levels) <= DELTA


def test_a_large_radius_is_attacked_with_a_bounded_number_of_edits() -> None:
    model = fitted(ad.Deletion(ad.FixedRate(1.0)))
    (certificate,) = model.certify([LONG[0]])
    assert certificate.radius > 1000
    report = Auditor(model.certifier(), vocabulary_of(model), QUICK)([claim_of(certificate, LONG[0])])
    assert not report.failed
