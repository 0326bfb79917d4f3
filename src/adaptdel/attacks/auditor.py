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

Texts whose copies can all be enumerated are decided exactly. A certificate from enumerated copies, and the exact
certificate of an additive model, must never be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import exp, inf
from statistics import median
from typing import Any

import numpy as np
from scipy import stats

from adaptdel.attacks.adaptive import AdaptiveAttack, Vocabulary, edit_distance
from adaptdel.attacks.target import ExactTarget, SmoothedTarget
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.exact import ExactCertificate
from adaptdel.certification.sampling import content_key, stream
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import clopper_pearson
from adaptdel.core.threat import Threat
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.settings import AUDIT, AttackSettings
from adaptdel.text.units import Tokens

LEVEL = 1e-3  # the probability with which the audit of a correct run fails, at most
MISTAKE = 0.2  # of its alpha: the probability with which a certificate that holds is disproved, at most
CERTAIN_MISTAKE = 1e-8  # the same for certificates from enumerated copies, of which none may be disproved
CHECKS = 4  # of a certificate: the bounds on two probabilities, the certified text, the attack
FRESH = 4  # fresh votes for each vote of a certificate; at least `verify_votes`
MOST_EDITS = 64  # or as many as the text has tokens: larger radii are attacked with so many edits
RANDOM_TEXTS = 8  # within the radius of an exact certificate


@dataclass(frozen=True)
class Claim:
    """What a certificate claims for an input.

    Attributes:
        name: of the input, in messages.
        tokens: of the certified text.
        label: the number of the answered class.
        radius: the certified radius; −1 claims nothing about answers.
        p1: the lower bound on the probability of the answer.
        p2: the upper bound on that of its strongest rival.
        alpha: the probability with which the claim may be wrong; 0 if it is certain.
        votes: the number of votes that bound the probabilities.
        agreeing: of these, the votes for the answer.
    """

    name: str
    tokens: Tokens
    label: int
    radius: int
    p1: float = 1.0
    p2: float = 0.0
    alpha: float = 0.0
    votes: int = 0
    agreeing: int = 0

    @classmethod
    def of(cls, name: str, tokens: Tokens, certificate: Certificate, **stated: Any) -> Claim:
        """The claim of a certificate from votes; ``stated`` replaces what follows from its votes."""
        votes, agreeing = 0, 0
        if certificate.exact is None:
            votes, agreeing = sum(certificate.votes[-1]), certificate.votes[-1][certificate.answer]
        p1, p2 = certificate.bounds
        claim = cls(name, tokens, certificate.answer, certificate.radius, p1, p2, certificate.alpha, votes, agreeing)
        return replace(claim, **stated)

    @property
    def level(self) -> float:
        """The probability with which each check may disprove the claim although it holds."""
        return (self.alpha * MISTAKE if self.alpha > 0 else CERTAIN_MISTAKE) / CHECKS

    @property
    def budget(self) -> int:
        """The number of edits with which its radius is attacked."""
        return min(self.radius, max(MOST_EDITS, len(self.tokens)))

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

    The gap of an exact certificate is the number of edits beyond radius + 1 of the closest known text with another
    answer; None if none is known, and −1 if the radius covers every text that the operations reach.
    """

    alpha: float
    radius: int
    violation: Violation | None = None
    queries: int = 0  # neighbours that were evaluated
    votes: VoteCheck | None = VoteCheck()  # what fresh votes say; None of exact certificates
    gap: int | None = None


@dataclass
class AuditReport:
    """The audits of many claims, and the tests of the violations and of the votes.

    Attributes:
        certificates: the number of claims.
        abstained: of these, the number that claim nothing about answers.
        violations: of claims from votes, each of which alpha allows now and then.
        certain: violations of claims that must never be wrong.
        alpha: the largest level of a claim.
        sampled: the number of claims from votes.
        queries: neighbours that were evaluated.
        excess: of votes for the answers, in all certificates.
        variance: of the excess.
        gaps: of exact certificates, see `ClaimAudit`.
    """

    certificates: int = 0
    abstained: int = 0
    violations: list[Violation] = field(default_factory=list)
    certain: list[Violation] = field(default_factory=list)
    alpha: float = 0.0
    sampled: int = 0
    queries: int = 0
    excess: float = 0.0
    variance: float = 0.0
    gaps: list[int | None] = field(default_factory=list)

    def add(self, audit: ClaimAudit) -> None:
        """Count the audit of a claim."""
        self.certificates += 1
        self.abstained += audit.radius < 0
        self.alpha = max(self.alpha, audit.alpha)
        self.sampled += audit.alpha > 0
        self.queries += audit.queries
        if audit.votes is None:
            self.gaps.append(audit.gap)
        else:
            self.excess += audit.votes.excess
            self.variance += audit.votes.variance
        if audit.violation is not None:
            (self.violations if audit.alpha > 0 else self.certain).append(audit.violation)

    @property
    def count_p_value(self) -> float:
        """The probability of so many violations, or more, if every certificate holds with probability 1 − alpha."""
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
        """Of exact certificates, how many leave no gap to the closest known text with another answer; None without."""
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
            "certificates": self.certificates,
            "abstained": self.abstained,
            "sampled": self.sampled,
            "alpha": self.alpha,
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
    """Check claims against the smoothed classifier that they are about, on noise of the audit's own."""

    def __init__(self, certifier: Certifier, vocabulary: Vocabulary, settings: AttackSettings = AUDIT) -> None:
        self.target, self.vocabulary, self.settings = SmoothedTarget(certifier, settings), vocabulary, settings

    def __call__(self, claims: Iterable[Claim]) -> AuditReport:
        """Audit many claims."""
        report = AuditReport()
        for claim in claims:
            report.add(self.check(claim))
        return report

    def check(self, claim: Claim) -> ClaimAudit:
        """Audit a claim; the first statement that is disproved is reported."""
        votes, violation = self._check_text(claim)
        queries = 0
        if violation is None and claim.radius > 0:
            queries, violation = self._attack(claim)
        return ClaimAudit(claim.alpha, claim.radius, violation, queries, votes)

    def _fresh_votes(self, claim: Claim) -> int:
        return max(self.settings.verify_votes, FRESH * claim.votes)

    def _check_text(self, claim: Claim) -> tuple[VoteCheck, Violation | None]:
        """Check the bounds, the votes, and that the answer to the certified text is the claimed one."""
        target, label, tokens = self.target, claim.label, claim.tokens
        is_exact = target.is_short(len(tokens))
        shares: Sequence[Any]
        if is_exact:
            shares = target.exact_shares(tokens)
            p, rival = shares[label], max(share for number, share in enumerate(shares) if number != label)
            expected, variance = float(p) * claim.votes, float(p * (1 - p)) * claim.votes
            wrong = Fraction(claim.p1) > p or Fraction(claim.p2) < rival
            votes = VoteCheck(wrong, claim.agreeing - expected, variance)
            changed = target.rule.predicted_class(shares) != label
        else:
            rng = stream(self.settings.seed, content_key(tokens), "audit votes")
            counts = target.fresh_votes(tokens, self._fresh_votes(claim), rng)
            votes = check_votes(claim, counts)
            shares = (counts / counts.sum()).tolist()
            changed = bool(target.settled(counts, label, claim.level))
        if votes.disproved:
            others = max(float(share) for number, share in enumerate(shares) if number != label)
            sentence = (
                f"the certificate bounds the probability of the answer by {claim.p1:.6f} from below and that of its "
                f"rival by {claim.p2:.6f} from above; {'all copies' if is_exact else 'fresh votes'} give the answer "
                f"{float(shares[label]):.6f} and others at most {others:.6f}"
            )
            return votes, Violation(claim.name, sentence, is_exact)
        if claim.radius >= 0 and changed:
            return votes, claim.disproved_by(tokens, 0, exact=is_exact)
        return votes, None

    def _attack(self, claim: Claim) -> tuple[int, Violation | None]:
        """Attack with the radius as the budget: the number of texts that were compared, and a counterexample."""
        settings = replace(self.settings, level=claim.level, verify_votes=self._fresh_votes(claim))
        attack = AdaptiveAttack(SmoothedTarget(self.target.certifier, settings), self.vocabulary)
        result = attack(claim.tokens, claim.label, budget=claim.budget)
        if result.tokens is None or result.verification is None or result.distance is None:
            return result.queries, None
        return result.queries, claim.disproved_by(result.tokens, result.distance, exact=result.verification.exact)


class ExactAuditor:
    """Check claims of exact certificates against the additive model that they are about, which answers every text.

    Within the radius, the worst edits for every rival and random ones must not change the answer. The closest text with
    another answer that tokens known to the model make shows how much of the radius is missing: nothing, if its distance
    is radius + 1.
    """

    def __init__(self, model: AdditiveClassifier, settings: AttackSettings = AUDIT) -> None:
        self.target, self.model, self.settings = ExactTarget(model, settings), model, settings
        base = model.base_classifier()
        self.words = list(base.vocabulary()) if base.ngram == 1 else []

    def check(self, claim: Claim) -> ClaimAudit:
        """Audit a claim."""
        target, tokens, split = self.target, claim.tokens, self.target.unit.split
        text = target.unit.join(tokens)
        known = target.against_known(target.certificate(text, claim.name))
        closest = known.counterexample()
        texts = [text, *self._texts_within(claim, known), *([] if closest is None else [closest])]
        answers = self.model.predict(texts)
        reached = Threat(target.ops).largest(len(tokens))
        violation, gap = None, None if reached is None or claim.radius < reached else -1
        for attacked, answer in zip(map(split, texts), answers, strict=True):
            if answer != target.labels[claim.label]:
                distance = edit_distance(tokens, attacked, target.ops)  # of the tokens that the text is divided into
                if distance <= claim.radius:
                    violation = violation or claim.disproved_by(attacked, distance, exact=True)
                elif distance != inf:
                    gap = int(distance) - 1 - claim.radius
        return ClaimAudit(0.0, claim.radius, violation, len(texts) - 1, None, gap)

    def _texts_within(self, claim: Claim, known: ExactCertificate) -> Iterator[Any]:
        """The texts that the worst edits within the radius give another answer, and texts of random edits.

        Of random tokens joined, a unit such as chunk:3 may make other tokens: such a text can be further away.
        """
        tokens, threat, budget = claim.tokens, Threat(self.target.ops), claim.budget
        rivals = [number for number in range(self.target.classes) if number != known.answer]
        for margin, rival in zip(known.margins, rivals, strict=True):
            text = None if known.rewrite is None else known.rewrite(margin.worst_edits(threat, budget), rival)
            if text is not None:
                yield text
        rng = stream(self.settings.seed, content_key(tokens), "audit texts")
        words = self.words or list(tokens)
        for _ in range(RANDOM_TEXTS if words else 0):
            edited = list(tokens)
            for word in rng.integers(len(words), size=budget).tolist():
                operation, place = rng.choice(threat.ops), int(rng.integers(len(edited) + 1))
                if operation == "ins":
                    edited.insert(place, words[word])
                elif place < len(edited):
                    edited[place : place + 1] = [words[word]] if operation == "sub" else []
            yield self.target.unit.join(tuple(edited))
