from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import adaptdel as ad
from adaptdel.attacks.adaptive import learn_vocabulary
from adaptdel.attacks.auditor import MISTAKE, Auditor, AuditReport, Claim, ClaimAudit, Violation, check_votes
from adaptdel.attacks.target import FreshVotes, SmoothedTarget
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import doubling_looks
from adaptdel.core.confidence import Looks, vote_bounds
from adaptdel.settings import AttackSettings
from tests.run_files import forge_rows

from ..run_files import run, write_rows
from .conftest import fitted, texts, vocabulary_of

QUICK = AttackSettings(search_votes=200, verify_votes=4000, queries=300, positions=3, words=3, shortlist=16, seed=7)


def claim_of(certificate: Certificate, text: str, *, more: int = 0) -> Claim:
    return Claim.of(text[:20], tuple(text.split()), certificate, radius=certificate.radius + more)


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


def audits_of_the_winner(length: int, votes: int, inputs: int) -> tuple[AuditReport, AuditReport]:
    """The audits of ten equal classes: selected on votes of their own, and on the votes that bound them."""
    model = ad.SmoothedClassifier(
        hashed,
        ad.Deletion(ad.FixedRate(0.5)),
        classes=list(range(10)),
        sampling="fixed",
        n_select=50,
        n_estimate=votes,
        progress=False,
    )
    batch = [" ".join(f"w{100 * number + place}" for place in range(length)) for number in range(inputs)]
    words = learn_vocabulary(model.certifier(), [(("x", "y"), 0)])
    certificates = model.certify(batch)
    broken = [
        replace(certificate, answer=answer, label=answer)
        for certificate in certificates
        for answer in [max(range(10), key=lambda number: certificate.votes[-1][number])]
    ]
    reports = []
    for claimed in (certificates, broken):
        claims = [claim_of(certificate, text) for certificate, text in zip(claimed, batch, strict=True)]
        reports.append(Auditor(model.certifier(), words, QUICK)(claims))
    return reports[0], reports[1]


def test_a_class_that_is_chosen_on_the_votes_that_bound_it_is_caught() -> None:
    """The winner of ten equal classes got too many votes; its probability is known exactly."""
    right, wrong = audits_of_the_winner(length=10, votes=100, inputs=150)
    assert right.sampled == 150
    assert not right.failed
    assert wrong.failed
    assert wrong.count_p_value < 1e-3
    assert all(violation.exact for violation in wrong.violations)
    assert "bounds the probability of the answer" in wrong.violations[0].sentence


@pytest.mark.parametrize(
    ("votes", "inputs"), [(1000, 25), pytest.param(20_000, 25, marks=pytest.mark.slow)], ids=["1000", "20000"]
)
def test_it_is_caught_after_many_votes(votes: int, inputs: int) -> None:
    """Fresh votes can disprove no single bound here; the excess of votes for the winners is plain."""
    right, wrong = audits_of_the_winner(length=60, votes=votes, inputs=inputs)
    assert not right.failed, right.to_dict()
    assert wrong.failed, wrong.to_dict()
    assert wrong.votes_p_value < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("looks", [Looks.fixed(4000, 0.05), doubling_looks(125, 4000, 0.05)], ids=["fixed", "looks"])
def test_audits_of_right_certificates_are_hardly_ever_rejected(looks: Looks) -> None:
    """The sampling stops where the answer is proven, near a tie: the rate is that of the level, also then."""
    rng = np.random.default_rng(0)
    rejected, disproved, excess = 0, 0, []
    for _ in range(150):
        report = AuditReport()
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
            report.add(ClaimAudit(0.05, -1, Violation("", "", False) if check.disproved else None, votes=check))
        rejected += report.failed
        excess.append(report.excess / report.variance**0.5)
    assert rejected <= 1
    assert disproved <= 0.05 * (1 + MISTAKE) * 150 * 100
    assert abs(np.mean(excess)) < 4 / 150**0.5
    assert np.std(excess) < 1.15


def test_short_texts_are_exact_and_must_never_be_wrong() -> None:
    inputs = [" ".join(text.split()[:4]) for text in HAM_TEXTS]
    report = audited(decisive(), inputs)
    assert not report.failed
    assert report.sampled == 0
    broken = audited(decisive(), inputs, more=1)
    assert broken.failed
    assert broken.p_value == 0
    assert broken.certain[0].exact
    assert broken.certain[0].distance == 2


def test_the_number_of_violations_is_tested() -> None:
    """6% of 1,000 certificates may be disproved at alpha 0.05; 10% may not."""
    wrong = Violation("x", "wrong", exact=False)
    for violations, failed in ((60, False), (75, False), (100, True)):
        report = AuditReport()
        for number in range(1000):
            report.add(ClaimAudit(0.05, 3, wrong if number < violations else None))
        assert report.failed == failed
    certain = AuditReport()
    certain.add(ClaimAudit(0.0, 3, wrong))
    assert certain.failed


def test_all_checks_of_a_claim_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search verifies many texts; together they may disprove a claim that holds with a fifth of alpha only."""
    levels: list[float] = []

    def undecided(
        self: SmoothedTarget, tokens: object, label: int, *, level: float = 0.0, phase: str = ""
    ) -> FreshVotes:
        levels.append(level or self.settings.level)
        return FreshVotes(None, label, False)

    monkeypatch.setattr(SmoothedTarget, "verify", undecided)
    text = HAM_TEXTS[0]
    (certificate,) = decisive().certify([text])
    claim = claim_of(certificate, text, more=20)
    assert Auditor(decisive().certifier(), vocabulary_of(decisive()), QUICK).check(claim).violation is None
    assert len(levels) > 10
    assert sum(levels) <= MISTAKE * claim.alpha


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    place = tmp_path_factory.mktemp("audit")
    fitted(ad.Deletion(ad.FixedRate(0.7))).save(place / "model")
    write_rows(place / "test.jsonl", [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)])
    return place


def certified(folder: Path, out: Path) -> Path:
    assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out) == 0
    return out


def test_the_audit_of_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = certified(folder, tmp_path / "run")
    capsys.readouterr()
    assert run("audit", out, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["certificates"] == 30
    assert values["holds"] is True
    assert values["attacked_texts"] > 0
    assert run("audit", out, "--certificates", "5") == 0
    assert "5 certificates audited" in capsys.readouterr().out


def test_forged_radii_fail_the_audit(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The radii that the table states are audited, not those that follow from the votes."""
    out = certified(folder, tmp_path / "run")
    rows = pq.read_table(out / "certificates.parquet").to_pylist()
    forge_rows(out, [row | {"radius": row["radius"] + 12} for row in rows])
    capsys.readouterr()
    assert run("audit", out) == 1
    said = capsys.readouterr().out
    assert "gets another answer" in said
    assert "its text: " in said
    assert "the audit failed" in said


def test_an_audit_counts_repeated_texts_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the same text have the same votes: one wrong certificate, which alpha allows, is wrong in all of them."""
    rows = [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)]
    data = write_rows(tmp_path / "repeated.jsonl", [*rows, *[rows[0]] * 20])
    out = tmp_path / "run"
    assert run("certify", folder / "model", "--data", data, "--out", out) == 0
    certified_rows = pq.read_table(out / "certificates.parquet").to_pylist()
    first = certified_rows[0]["input_hash"]
    forge_rows(out, [row | {"radius": row["radius"] + 12 * (row["input_hash"] == first)} for row in certified_rows])
    capsys.readouterr()
    assert run("audit", out, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["certificates"], values["violations"], values["holds"]) == (30, 1, True)


def test_an_audit_of_other_data_or_another_model_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = certified(folder, tmp_path / "run")
    other = write_rows(
        tmp_path / "other.jsonl", [{"text": text, "label": label} for text, label in texts(31, 40, seed=1)]
    )
    fitted(ad.Deletion(ad.FixedRate(0.8))).save(tmp_path / "other")
    capsys.readouterr()
    for arguments, sentence in (
        (["--data", other], "not the text that the run"),
        (["--model", tmp_path / "other"], "not the model of the run"),
        (["--model", tmp_path / "nothing"], "holds no model"),
        (["--certificates", "0"], "inputs must be"),
    ):
        assert run("audit", out, *arguments) == 2
        assert sentence in capsys.readouterr().err
    shutil.rmtree(out)
    assert run("audit", out) == 2
    assert "not a run" in capsys.readouterr().err
