from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import adaptdel as ad
from adaptdel.attacks.audit import (
    MISTAKE,
    Auditor,
    AuditReport,
    Claim,
    ClaimAudit,
    Violation,
    audit_run,
    check_votes,
)
from adaptdel.attacks.target import FreshVotes, Target
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import doubling_looks
from adaptdel.core.confidence import Looks, vote_bounds
from adaptdel.models.estimator import TextEstimator
from adaptdel.settings import AttackSettings

from ..run_files import forge_rows, run, write_rows
from .conftest import additive, fitted, texts, toy, vocabulary_of

QUICK = AttackSettings(search_votes=200, verify_votes=4000, queries=300, positions=3, words=3, shortlist=16, seed=7)


def audited(
    model: TextEstimator,
    inputs: Sequence[Any],
    broken: Callable[[Certificate], Certificate] = lambda c: c,
    more: int = 0,
) -> AuditReport:
    """The audit of the certificates of a model, after something was done to them."""
    certifier = model.certifier()
    claims = [
        Claim.of(str(text[:20]), certifier.unit.split(text), c, radius=c.radius + more)
        for c, text in zip(map(broken, model.certify(inputs)), inputs, strict=True)
    ]
    return Auditor(certifier, vocabulary_of(model) if certifier.plan.copy_noise else None, QUICK)(claims)


LONG = [text for text, _ in texts(24, 40, seed=3)]


@pytest.mark.parametrize("noise", [ad.Deletion(ad.FixedRate(0.7)), ad.Masking(0.7), ad.NoNoise()], ids=repr)
def test_valid_certificates_pass(noise: ad.Noise) -> None:
    report = audited(fitted(noise), LONG)
    assert (report.certificates, report.to_dict()["holds"]) == (len(LONG), True)
    assert report.queries > 0 or not noise.changes_inputs


def decisive() -> ad.SmoothedClassifier:
    """A model for which the certificates are tight: a single word decides."""

    def votes(batch: list[str]) -> list[str]:
        return ["spam" if "buy" in text.split() else "ham" for text in batch]

    return ad.SmoothedClassifier(votes, ad.Deletion(ad.FixedRate(0.7)), classes=["ham", "spam"], progress=False)


HAM_TEXTS = [text for text, label in texts(24, 40, seed=3) if label == "ham"]


def test_a_radius_that_is_too_large_is_caught() -> None:
    right, report = audited(decisive(), HAM_TEXTS), audited(decisive(), HAM_TEXTS, more=3)
    assert (right.violations, right.queries > 100) == ([], True)
    assert (report.failed, report.p_value < 1e-6) == (True, True)
    violation = report.violations[0]
    assert violation.tokens is not None
    assert "gets another answer" in violation.sentence
    assert report.to_dict()["examples"][0]["distance"] == violation.distance


def test_a_certificate_for_another_rate_is_caught() -> None:
    """Votes at the rate 0.7, certified as if the rate were 0.9."""
    wrong = ad.Deletion(ad.FixedRate(0.9))
    assert audited(decisive(), HAM_TEXTS, lambda c: replace(c, plan=replace(c.plan, noise=wrong))).failed  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("length", "votes", "inputs"),
    [(10, 100, 150), (60, 1000, 25), pytest.param(60, 20_000, 25, marks=pytest.mark.slow)],
)
def test_a_class_that_is_chosen_on_the_votes_that_bound_it_is_caught(length: int, votes: int, inputs: int) -> None:
    """The winner of ten equal classes got too many votes; the probability of a short text is known exactly.

    On long texts, fresh votes can disprove no single bound; the excess of votes for the winners is plain.
    """
    plan: dict[str, Any] = {"sampling": "fixed", "n_select": 50, "n_estimate": votes, "classes": list(range(10))}
    model = ad.SmoothedClassifier(
        lambda batch: [zlib.crc32(text.encode()) % 10 for text in batch],
        ad.Deletion(ad.FixedRate(0.5)),
        progress=False,
        **plan,
    )
    batch = [" ".join(f"w{100 * number + place}" for place in range(length)) for number in range(inputs)]

    def winner(certificate: Certificate) -> Certificate:
        evidence: Any = certificate.evidence
        answer = int(np.argmax(evidence.votes[-1]))
        return replace(certificate, evidence=replace(evidence, answer=answer), label=answer)

    right, wrong = audited(model, batch), audited(model, batch, winner)
    assert (right.sampled, right.failed, wrong.failed) == (inputs, False, True), (right.to_dict(), wrong.to_dict())
    if length == 10:
        assert wrong.count_p_value < 1e-3
        assert all(violation.exact for violation in wrong.violations)
        assert "bounds the probability of the answer" in wrong.violations[0].sentence
    else:
        assert wrong.votes_p_value < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("looks", [Looks.fixed(4000, 0.05), doubling_looks(125, 4000, 0.05)], ids=["fixed", "looks"])
def test_audits_of_right_certificates_are_hardly_ever_rejected(looks: Looks) -> None:
    """The sampling stops where the answer is proven, near a tie: the rate is that of the level, also then."""
    rng = np.random.default_rng(0)
    rejected, disproved, excess = 0, 0, []
    for _ in range(150):
        audits = []
        for p in rng.choice([0.5, 0.52, 0.6, 0.9, 0.999, 1.0], size=100):
            counts, taken = np.zeros(2, dtype=np.int64), []
            for size in looks.sizes:
                counts = counts + rng.multinomial(size - counts.sum(), [p, 1 - p])
                taken.append(counts.tolist())
                if vote_bounds(looks, taken, 0)[0] > 0.5:
                    break
            bounds = vote_bounds(looks, taken, 0)
            claim = Claim("", (), 0, -1, *bounds, 0.05, int(counts.sum()), int(counts[0]))
            check = check_votes(claim, rng.multinomial(4 * claim.votes, [p, 1 - p]))
            disproved += check.disproved
            audits.append(ClaimAudit(0.05, -1, Violation("", "", False) if check.disproved else None, votes=check))
        report = AuditReport(audits)
        rejected += report.failed
        excess.append(report.excess / report.variance**0.5)
    assert rejected <= 1
    assert disproved <= 0.05 * (1 + MISTAKE) * 150 * 100
    assert abs(np.mean(excess)) < 4 / 150**0.5
    assert np.std(excess) < 1.15


def test_short_texts_are_exact_and_must_never_be_wrong() -> None:
    inputs = [" ".join(text.split()[:4]) for text in HAM_TEXTS]
    report, broken = audited(decisive(), inputs), audited(decisive(), inputs, more=1)
    assert (report.failed, report.sampled) == (False, 0)
    assert (broken.failed, broken.p_value) == (True, 0)
    assert (broken.certain[0].exact, broken.certain[0].distance) == (True, 2)


def test_the_number_of_violations_is_tested() -> None:
    """6% of 1,000 certificates may be disproved at alpha 0.05; 10% may not."""
    wrong = Violation("x", "wrong", exact=False)
    for violations, failed in ((60, False), (75, False), (100, True)):
        audits = [ClaimAudit(0.05, 3, wrong if number < violations else None) for number in range(1000)]
        assert AuditReport(audits).failed == failed
    assert AuditReport([ClaimAudit(0.0, 3, wrong)]).failed


def test_all_checks_of_a_claim_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search verifies many texts; together they may disprove a claim that holds with a fifth of alpha only."""
    levels: list[float] = []

    def undecided(self: Target, tokens: object, label: int, *, level: float = 0.0, phase: str = "") -> FreshVotes:
        levels.append(level or self.settings.level)
        return FreshVotes(None, label, False)

    monkeypatch.setattr(Target, "verify", undecided)
    text = HAM_TEXTS[0]
    (certificate,) = decisive().certify([text])
    claim = Claim.of("a text", tuple(text.split()), certificate, radius=certificate.radius + 20)
    assert Auditor(decisive().certifier(), vocabulary_of(decisive()), QUICK).check(claim).violation is None
    assert len(levels) > 10
    assert sum(levels) <= MISTAKE * claim.alpha


GIVEN = ["buy buy", "buy cheap lunch", "noon lunch buy", "cheap noon noon", "noon", "buy buy cheap noon"]


def test_tight_wider_and_unknown_certificates_are_counted() -> None:
    tight = audited(toy(2.0), GIVEN)
    assert tight.tightness() == {
        "tight": 6, "covering": 0, "wider": 0, "median_wider_gap": None, "largest_gap": None, "unknown": 0
    }  # fmt: skip
    assert (tight.failed, tight.queries > 6 * 8) == (False, True)
    wider = audited(toy(9.0), [f"{text} {text}" for text in GIVEN])
    counts = wider.tightness()
    assert counts is not None
    assert counts["wider"] > 0
    assert counts["largest_gap"] >= counts["median_wider_gap"] >= 1
    assert not wider.failed
    covering = audited(toy(2.0, ops="del"), ["buy buy"]).tightness()  # what is left is always answered alike
    assert covering is not None
    assert (covering["covering"], covering["unknown"]) == (1, 0)
    forged = audited(toy(2.0), GIVEN, more=1)
    assert (forged.failed, len(forged.certain), forged.certain[0].exact) == (True, len(GIVEN), True)


def test_a_chunk_that_is_shorter_moves_all_that_follow() -> None:
    """Texts of one or the other of two chunks, some with a last chunk of one byte, which is no edit of one chunk."""
    given = [(b"ab", b"ba")[n % 2] * (n % 13 + 8) + b"c" * (n % 3 == 0) for n in range(80)]
    model = ad.AdditiveClassifier(unit="chunk:2", levels=2, iterations=20, progress=False)
    report = audited(model.fit(given, [n % 2 for n in range(80)]), given)
    assert (report.failed, report.certificates) == (False, 80)


# Runs


@pytest.fixture(scope="module", params=["votes", "scores"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data and a run, of 30 texts and the first one 20 times more."""
    place = tmp_path_factory.mktemp("audit")
    model = fitted(ad.Deletion(ad.FixedRate(0.7))) if request.param == "votes" else additive()
    model.save(place / "model")
    rows = [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)]
    data = write_rows(place / "test.jsonl", [*rows, *[rows[0]] * 20])
    ad.evaluate(place / "model", data, out=place / "run", progress=False)
    return place


def audit(out: Path, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit status and the values of ``adaptdel audit --json``."""
    capsys.readouterr()
    status = run("audit", out, "--json", *arguments)
    return status, json.loads(capsys.readouterr().out)


def test_the_audit_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the same text have the same evidence, and are one certificate."""
    status, values = audit(folder / "run", capsys)
    assert (status, values["certificates"], values["violations"], values["holds"]) == (0, 30, 0, True)
    assert values["attacked_texts"] > 0
    if tightness := values["tightness"]:
        assert sum(tightness[name] for name in ("tight", "covering", "wider", "unknown")) == 30
    assert run("audit", folder / "run", "--certificates", "5") == 0
    assert " certificates audited" in capsys.readouterr().out


def test_forged_radii_fail_the_audit(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The radii that the table states are audited, not those that follow from the evidence."""
    shutil.copytree(folder / "run", out := tmp_path / "run")
    rows = pq.read_table(out / "certificates.parquet").to_pylist()
    first = rows[0]["input_hash"]
    forge_rows(out, [row | {"radius": row["radius"] + 12 * (row["input_hash"] == first)} for row in rows])
    status, values = audit(out, capsys)  # one that alpha allows is wrong in all of its rows
    assert (values["certificates"], values["violations"]) == (30, 1)
    assert status == (values["alpha"] == 0)
    forge_rows(out, [row | {"radius": row["radius"] + 12} for row in rows])
    capsys.readouterr()
    assert run("audit", out) == 1
    said = capsys.readouterr().out
    assert "gets another answer" in said
    assert "its text: " in said
    assert "the audit failed" in said


def test_an_audit_of_other_data_or_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    out = folder / "run"
    other = write_rows(tmp_path / "other.jsonl", [{"text": text, "label": label} for text, label in texts(31, 40, 1)])
    fitted(ad.Deletion(ad.FixedRate(0.8))).save(tmp_path / "other")
    for changes, sentence in (
        ({"data": str(other)}, "not the text that the run"),
        ({"model": tmp_path / "other"}, "not the model of the run"),
        ({"model": tmp_path / "nothing"}, "holds no model"),
    ):
        with pytest.raises(ValueError, match=sentence):
            audit_run(out, progress=False, **changes)
    assert run("audit", out, "--certificates", "0") == run("audit", tmp_path) == 2
