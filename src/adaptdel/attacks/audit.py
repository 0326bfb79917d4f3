"""The audit of certificates: look for some that do not hold.

A certificate at error level alpha may be wrong with probability alpha, so a single wrong one is no bug. Two numbers are
tested over all audited certificates, each of independent noise:

* how many are disproved. Each is compared with fresh votes: the bounds on the probabilities, the answer to the
  certified text, and the answers to texts within the radius, which the adaptive attack looks for. A certificate that
  holds is disproved with probability alpha / 5 at most, so that the number has at most the binomial distribution of
  rate 1.2 alpha.
* whether the certificates have too many votes for their answers. The votes of a certificate minus their expectation
  are a martingale, whatever the rule by which the sampling stops, as the answer was selected on other votes. So the
  differences from the fresh votes have a sum of mean 0, and Freedman's inequality bounds it.

Texts whose copies can all be enumerated are decided exactly. Where no copies vote, the certificates of texts within the
radius decide, the worst ones among them if the model knows them. A certificate without an error level must never be
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import exp, inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import stats

from adaptdel.attacks.adaptive import AdaptiveAttack, Vocabulary, edit_distance, padded, vocabulary_of
from adaptdel.attacks.target import Target
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import stream
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import clopper_pearson
from adaptdel.models.model_files import CONFIG
from adaptdel.progress import reporter
from adaptdel.runs.engine import ModelSource
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs
from adaptdel.runs.storage import Run, read_run
from adaptdel.settings import AUDIT, AttackSettings
from adaptdel.text.data import label_text
from adaptdel.text.units import Tokens, content_key

LEVEL = 1e-3  # the probability with which the audit of a correct run fails, at most
MISTAKE = 0.2  # of its alpha: the probability with which a certificate that holds is disproved, at most
CERTAIN_MISTAKE = 1e-8  # the same for certificates from enumerated copies, of which none may be disproved
CHECKS = 4  # of a certificate: the bounds on two probabilities, the certified text, the attack
FRESH = 4  # fresh votes for each vote of a certificate; at least `verify_votes`
MOST_EDITS = 64  # or as many as the text has tokens: larger radii are attacked with this many edits
RANDOM_TEXTS = 8  # within the radius, where no copies vote


@dataclass(frozen=True)
class Claim:
    """What a certificate claims for an input."""

    name: str  # of the input, in messages
    tokens: Tokens  # of the certified text
    label: int  # the number of the answered class
    radius: int  # the certified radius; −1 claims nothing about answers
    p1: float = 1.0  # the lower bound on the probability of the answer
    p2: float = 0.0  # the upper bound on that of its strongest rival
    alpha: float = 0.0  # the probability with which the claim may be wrong; 0 if it is certain
    votes: int = 0  # the number of votes that bound the probabilities
    agreeing: int = 0  # of these, the votes for the answer
    padded_radius: int = -1  # the certified radius with any text before and after

    @classmethod
    def of(cls, name: str, tokens: Tokens, certificate: Certificate, **stated: Any) -> Claim:
        """The claim of a certificate; ``stated`` replaces what follows from its evidence."""
        answer, radius = certificate.answer, certificate.radius
        p1, p2, counts = certificate.evidence.estimated(certificate.plan) or (cls.p1, cls.p2, ())
        agreeing = counts[answer] if counts else 0
        votes = sum(counts), agreeing
        claim = cls(name, tokens, answer, radius, p1, p2, certificate.alpha, *votes, certificate.padded_radius)
        return replace(claim, **stated)

    @property
    def level(self) -> float:
        """The probability with which each check may disprove the claim although it holds."""
        return (self.alpha * MISTAKE if self.alpha > 0 else CERTAIN_MISTAKE) / CHECKS

    @property
    def budget(self) -> int:
        """The number of edits with which its radius is attacked."""
        return max(0, min(self.radius, max(MOST_EDITS, len(self.tokens))))

    def disproved_by(self, tokens: Tokens, distance: float, *, exact: bool) -> Violation:
        """The violation by a text at an edit distance within the radius that gets another answer."""
        where = "the certified text itself" if not distance else f"a text at edit distance {distance:.0f}"
        sentence = f"radius {self.radius} is claimed, and {where} gets another answer"
        return Violation(self.name, sentence, exact, tokens, int(distance))


@dataclass(frozen=True)
class Violation:
    """A claim that was disproved."""

    name: str  # of the input
    sentence: str  # what is wrong
    exact: bool  # whether there is no doubt, because all copies were enumerated or the model has no noise
    tokens: Tokens | None = None  # the text that the classifier answers otherwise, or None if a probability is wrong
    distance: int | None = None  # its edit distance from the certified text


@dataclass(frozen=True)
class VoteCheck:
    """The votes of a certificate compared with fresh ones."""

    disproved: bool = False  # whether the fresh votes disprove the bounds
    excess: float = 0.0  # the votes for the answer beyond those that the fresh votes lead one to expect
    variance: float = 0.0  # of the excess, estimated from all votes


def check_votes(claim: Claim, counts: IntArray) -> VoteCheck:
    """Compare the bounds and the votes of a claim with fresh votes by class, shape (classes,)."""
    others = np.delete(counts, claim.label)
    total, label = int(counts.sum()), int(counts[claim.label])
    high = clopper_pearson(label, total, claim.level)[1]
    # The largest of several probabilities: each bound gets a share of the level.
    low = clopper_pearson(int(others.max()), total, claim.level / len(others))[0]
    disproved = claim.p1 > high or claim.p2 < low
    share = (claim.agreeing + label + 1) / (claim.votes + total + 2)
    expected = claim.votes * label / total
    variance = share * (1 - share) * (claim.votes + claim.votes**2 / total)
    return VoteCheck(disproved, claim.agreeing - expected, variance)


@dataclass(frozen=True)
class ClaimAudit:
    """The audit of a claim.

    Where no copies vote, the gap is the number of edits beyond radius + 1 of the closest known text with another
    answer; None if none is known, and −1 if the radius covers every text that the operations reach.
    """

    alpha: float
    radius: int
    violation: Violation | None = None
    queries: int = 0  # neighbours that were evaluated
    votes: VoteCheck | None = VoteCheck()  # what fresh votes say; None where no copies vote
    gap: int | None = None


class AuditReport:
    """The audits of many claims, and the tests of the violations and of the votes."""

    def __init__(self, audits: Sequence[ClaimAudit]) -> None:
        votes = [audit.votes for audit in audits if audit.votes is not None]
        broken = [(audit.alpha, audit.violation) for audit in audits if audit.violation is not None]
        self.certificates = len(audits)
        self.abstained = sum(audit.radius < 0 for audit in audits)  # which claim nothing about answers
        self.violations = [violation for alpha, violation in broken if alpha > 0]  # which alpha allows now and then
        self.certain = [violation for alpha, violation in broken if alpha == 0]  # of claims that must never be wrong
        self.alpha = max((audit.alpha for audit in audits), default=0.0)
        self.sampled = sum(audit.alpha > 0 for audit in audits)
        self.queries = sum(audit.queries for audit in audits)
        self.excess = sum(each.excess for each in votes)  # of votes for the answers, in all certificates
        self.variance = sum(each.variance for each in votes)
        self.gaps = [audit.gap for audit in audits if audit.votes is None]

    @property
    def count_p_value(self) -> float:
        """The probability of this many violations, or more, if every certificate holds with probability 1 − alpha."""
        if not self.violations:
            return 1.0
        rate = min(1.0, self.alpha * (1 + MISTAKE))
        return float(stats.binom.sf(len(self.violations) - 1, self.sampled, rate))

    @property
    def votes_p_value(self) -> float:
        """The probability of such an excess of votes, or more, if the answers were selected on other votes."""
        if self.excess <= 0:
            return 1.0
        return exp(-(self.excess**2) / (2 * (self.variance + self.excess / 3)))

    @property
    def p_value(self) -> float:
        """Of both tests together; 0 if a claim that must never be wrong is disproved."""
        return 0.0 if self.certain else min(1.0, 2 * min(self.count_p_value, self.votes_p_value))

    @property
    def failed(self) -> bool:
        """Whether the certificates do not hold."""
        return self.p_value < LEVEL

    def tightness(self) -> dict[str, Any] | None:
        """How many certificates leave no gap to the closest known text with another answer; None where copies vote."""
        if not self.gaps:
            return None
        wider = [gap for gap in self.gaps if gap is not None and gap > 0]
        return {
            "tight": self.gaps.count(0),
            "covering": self.gaps.count(-1),
            "wider": len(wider),
            "median_wider_gap": float(median(wider)) if wider else None,
            "largest_gap": max(wider, default=None),
            "unknown": self.gaps.count(None),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the first counterexamples."""
        return {
            **{name: getattr(self, name) for name in ("certificates", "abstained", "sampled", "alpha")},
            "violations": len(self.violations) + len(self.certain),
            "allowed": self.alpha * (1 + MISTAKE) * self.sampled,
            "excess_votes": self.excess,
            "excess_votes_deviation": self.variance**0.5,
            "p_value": self.p_value,
            "holds": not self.failed,
            "attacked_texts": self.queries,
            "tightness": self.tightness(),
            "examples": [
                {"name": v.name, "wrong": v.sentence, "exact": v.exact, "distance": v.distance}
                for v in (*self.certain, *self.violations)[:20]
            ],
        }


class Auditor:
    """Check claims against the classifier that they are about, on noise of the audit's own.

    ``vocabulary`` is what the adaptive attack writes; None where no copies vote.
    """

    def __init__(
        self, certifier: Certifier, vocabulary: Vocabulary | None = None, settings: AttackSettings = AUDIT
    ) -> None:
        self.target, self.vocabulary, self.settings = Target(certifier, settings), vocabulary, settings
        self.known = certifier.oracle.known_tokens()

    def __call__(self, claims: Sequence[Claim], report: Callable[[int, int], None] | None = None) -> AuditReport:
        """Audit many claims."""
        audits = []
        for claim in claims:
            audits.append(self.check(claim))
            if report is not None:
                report(len(audits), len(claims))
        return AuditReport(audits)

    def check(self, claim: Claim) -> ClaimAudit:
        """Audit a claim; the first statement that is disproved is reported."""
        if self.target.noise is None:
            return self._check_texts(claim)
        assert self.vocabulary is not None
        fresh = max(self.settings.verify_votes, FRESH * claim.votes)
        votes, violation = self._check_votes(claim, fresh)
        if violation is not None or claim.radius <= 0:
            return ClaimAudit(claim.alpha, claim.radius, violation, votes=votes)
        settings = replace(self.settings, level=claim.level, verify_votes=fresh)
        attack = AdaptiveAttack(Target(self.target.certifier, settings), self.vocabulary)
        result = attack(claim.tokens, claim.label, budget=claim.budget)
        if result.tokens is not None and result.verification is not None and result.distance is not None:
            violation = claim.disproved_by(result.tokens, result.distance, exact=result.verification.exact)
        return ClaimAudit(claim.alpha, claim.radius, violation, result.queries, votes)

    def _check_votes(self, claim: Claim, fresh: int) -> tuple[VoteCheck, Violation | None]:
        """Check the bounds, the votes, and that the answer to the certified text is the claimed one."""
        target, label, tokens = self.target, claim.label, claim.tokens
        exact = target.exact_shares(tokens)
        shares: Sequence[Any]
        if exact is not None:
            shares, p = exact, exact[label]
            rival = max(share for number, share in enumerate(exact) if number != label)
            expected, variance = float(p) * claim.votes, float(p * (1 - p)) * claim.votes
            wrong = Fraction(claim.p1) > p or Fraction(claim.p2) < rival
            votes = VoteCheck(wrong, claim.agreeing - expected, variance)
            changed = target.plan.predicted(exact) != label
        else:
            counts = target.fresh_votes(tokens, fresh, stream(self.settings.seed, content_key(tokens), "audit votes"))
            votes = check_votes(claim, counts)
            shares = (counts / counts.sum()).tolist()
            changed = bool(target.settled(counts, label, claim.level))
        if votes.disproved:
            others = max(float(share) for number, share in enumerate(shares) if number != label)
            sentence = (
                f"the certificate bounds the probability of the answer by {claim.p1:.6f} from below and that of its "
                f"rival by {claim.p2:.6f} from above; {'fresh votes' if exact is None else 'all copies'} give the "
                f"answer {float(shares[label]):.6f} and others at most {others:.6f}"
            )
            return votes, Violation(claim.name, sentence, exact is not None)
        if claim.radius >= 0 and changed:
            return votes, claim.disproved_by(tokens, 0, exact=exact is not None)
        return votes, None

    def _check_texts(self, claim: Claim) -> ClaimAudit:
        """Compare the certificates of texts within the radius, and that of the closest known one beyond it.

        Each may be wrong at its own error level, so the levels add up.
        """
        target, tokens, threat = self.target, claim.tokens, self.target.plan.threat
        text = target.unit.join(tokens)
        (own,) = target.certificates([text], claim.name)
        known = target.oracle.against_known(own)
        closest = known.counterexample()
        texts = [*known.worst_texts(claim.budget), *self._random_texts(claim, claim.budget)]
        texts += [] if closest is None else [closest]
        reached, violation, alpha = threat.largest(len(tokens)), None, claim.alpha
        gap = None if reached is None or claim.radius < reached else -1
        for attacked, certificate in zip([text, *texts], [own, *target.certificates(texts, claim.name)], strict=True):
            alpha = min(1.0, alpha + certificate.alpha)
            if certificate.answer != claim.label and not certificate.abstained:
                edited = target.unit.split(attacked)
                distance = edit_distance(tokens, edited, threat.ops)  # of the tokens that the text is divided into
                if distance <= claim.radius:
                    violation = violation or claim.disproved_by(edited, distance, exact=not certificate.alpha)
                elif distance != inf:
                    gap = int(distance) - 1 - claim.radius
        surrounded = list(self._padded_texts(claim))
        for attacked, certificate in zip(surrounded, target.certificates(surrounded, claim.name), strict=True):
            if certificate.answer != claim.label and not certificate.abstained:
                sentence = (
                    f"radius {claim.padded_radius} with any text before and after is claimed, and fewer change it"
                )
                violation = violation or Violation(
                    claim.name, sentence, not certificate.alpha, target.unit.split(attacked), claim.padded_radius
                )
        return ClaimAudit(alpha, claim.radius, violation, len(texts) + len(surrounded), None, gap)

    def _padded_texts(self, claim: Claim) -> Iterator[Any]:
        """Where padding is claimed to change nothing: edited texts between the worst words, and between random ones."""
        unit, known, size = self.target.unit, self.known, self.settings.padding
        if claim.padded_radius < 0 or not known or unit.kind not in ("word", "char"):
            return
        rng = stream(self.settings.seed, content_key(claim.tokens), "audit padding")
        rivals = (number for number in range(self.target.classes) if number != claim.label)
        worst = [self.target.oracle.worst_token(claim.label, rival, unit) for rival in rivals]
        paddings = [(word,) * size for word in worst if word is not None]
        paddings.append(tuple(known[place] for place in rng.integers(len(known), size=size).tolist()))
        texts = [unit.join(claim.tokens), *self._random_texts(claim, min(claim.padded_radius, claim.budget))]
        for text, padding, glued in product(texts, paddings, (False, True)):
            yield padded(text, padding, unit, glued=glued)

    def _random_texts(self, claim: Claim, edits: int) -> Iterator[Any]:
        """Texts of random edits; a unit such as chunk:3 may make other tokens of them, so that one is further away."""
        rng = stream(self.settings.seed, content_key(claim.tokens), "audit texts")
        words = self.known or claim.tokens
        for _ in range(RANDOM_TEXTS if words else 0):
            edited = list(claim.tokens)
            for word in rng.integers(len(words), size=edits).tolist():
                operation, place = rng.choice(self.target.plan.ops), int(rng.integers(len(edited) + 1))
                if operation == "ins":
                    edited.insert(place, words[word])
                elif place < len(edited):
                    edited[place : place + 1] = [words[word]] if operation == "sub" else []
            yield self.target.unit.join(tuple(edited))


def audit_run(
    folder: Path,
    *,
    model: Path | None = None,
    data: str | None = None,
    settings: AttackSettings = AUDIT,
    progress: Any = "auto",
) -> AuditReport:
    """Audit the certificates of a run, or a random sample of them.

    Args:
        folder: the run.
        model: the folder of the model; None for the one that the run names.
        data: the data file; None for the one that the run names.
        settings: ``inputs`` is the number of certificates that are drawn; ``seed`` that of the draw and of the votes.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
    """
    run = read_run(folder)
    manifest = run.manifest
    place = Path(manifest.model.path) if model is None else model
    if not (place / CONFIG).exists():
        raise ValueError(f"{place}: holds no model: name the model of the run with --model")
    dtype = manifest.model.dtype
    certifier = ModelSource(place, running={} if dtype is None else {"dtype": dtype}).load().certifier(manifest.plan)
    for name, value in (("fingerprint", certifier.fingerprint), ("unit", certifier.unit.description())):
        if value != (manifest.model_hash if name == "fingerprint" else manifest.unit):
            raise ValueError(f"{place}: not the model of the run {folder}: its {name} differs")
    source = Source.of(manifest.data, None if data is None else (data,))
    claims = _claims(run, certifier, source, settings)
    vocabulary = None if manifest.plan.copy_noise is None else vocabulary_of(certifier, source)
    return Auditor(certifier, vocabulary, settings)(claims, reporter(progress, "certificates"))


def _claims(run: Run, certifier: Certifier, data: Source, settings: AttackSettings) -> list[Claim]:
    """The claims of a random sample of the certificates, each with the tokens of its text.

    Rows of the same text have the same evidence, and are wrong together. They count as one certificate, because the
    test of the audit takes certificates to be wrong independently of each other.
    """
    distinct: dict[tuple[Any, ...], int] = {}
    for record in run.records(("row", "problem", "input_hash", "answer", "radius", "padded_radius")):
        if record["problem"] is None:
            claimed = tuple(record[name] for name in ("input_hash", "answer", "radius", "padded_radius"))
            distinct.setdefault(claimed, record["row"])
    rows = list(distinct.values())
    order = np.random.Generator(np.random.Philox(settings.seed)).permutation(len(rows))[: settings.inputs]
    chosen = {rows[place] for place in order.tolist()}
    if not chosen:
        raise ValueError(f"{run.folder}: holds no certificate to audit")
    pairs = run.certified(record for record in run.records() if record["row"] in chosen)
    certified = {record["row"]: (record, certificate) for record, certificate in pairs}
    classes, claims = [label_text(label) for label in run.manifest.classes], []
    for run_input in inputs(data, LabelMap(run.manifest.classes), max(chosen)):
        if isinstance(run_input, RunInput) and run_input.row in chosen:
            record, certificate = certified[run_input.row]
            tokens = certifier.unit.split(run_input.text)
            if content_key(tokens).hex() != certificate.input_hash:
                raise ValueError(
                    f"{data.name}, row {run_input.row}: not the text that the run {run.folder} certified: give its "
                    "data file with --data"
                )
            # The stated answer and radius are audited, not what follows from the evidence: `adaptdel verify` compares.
            stated = {name: record[name] for name in ("radius", "padded_radius")}
            stated["label"] = classes.index(record["answer"])
            claims.append(Claim.of(f"row {run_input.row}", tokens, certificate, **stated))
    if len(claims) < len(chosen):
        raise ValueError(f"{data.name}: lacks {len(chosen) - len(claims)} of the rows that {run.folder} certified")
    return claims
