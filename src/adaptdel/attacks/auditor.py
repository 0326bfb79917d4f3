"""The audit of a certification run: look for certificates that do not hold.

A certificate at error level alpha may be wrong with probability alpha, so a single wrong one is no bug. Two numbers are
tested over all audited certificates, each of independent noise:

* how many are disproved. Each is compared with fresh votes: the bounds on the probabilities, the answer to the
  certified text, and the answers to texts within the radius, which the adaptive attack looks for. A certificate that
  holds is disproved with probability alpha / 5 at most, so that the number has at most the binomial distribution of
  rate 1.2 alpha.
* whether the certificates have too many votes for their answers. The votes of a certificate minus their expectation
  are a martingale, whatever the rule by which the sampling stops, as the answer was selected on other votes. So the
  differences from the fresh votes have a sum of mean 0, and Freedman's inequality bounds it.

Texts whose copies can all be enumerated are decided exactly. A certificate from enumerated copies must never be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import exp
from typing import Any

import numpy as np
from scipy import stats

from adaptdel.attacks.adaptive import AdaptiveAttack
from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.target import SmoothedTarget
from adaptdel.attacks.vocabulary import Vocabulary
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import content_key, stream
from adaptdel.classifiers.base import Request
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import clopper_pearson
from adaptdel.settings import AUDIT, AttackSettings
from adaptdel.text.units import Tokens

LEVEL = 1e-3  # the probability with which the audit of a correct run fails, at most
MISTAKE = 0.2  # of its alpha: the probability with which a certificate that holds is disproved, at most
CERTAIN_MISTAKE = 1e-6  # the same for certificates from enumerated copies
CHECKS = 4  # of a certificate: the bounds on two probabilities, the certified text, the attack
FRESH = 4  # fresh votes for each vote of a certificate; at least `verify_votes`
MOST_EDITS = 64  # or as many as the text has tokens: larger radii are attacked with so many edits


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
        alpha: the probability with which the claim may be wrong; 0 if all copies were enumerated.
        votes: the number of votes that bound the probabilities.
        agreeing: of these, the votes for the answer.
    """

    name: str
    tokens: Tokens
    label: int
    radius: int
    p1: float
    p2: float
    alpha: float
    votes: int = 0
    agreeing: int = 0

    @classmethod
    def of(cls, name: str, tokens: Tokens, certificate: Certificate, **stated: Any) -> Claim:
        """The claim of a certificate; ``stated`` replaces what follows from its votes."""
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


@dataclass(frozen=True)
class Violation:
    """A claim that was disproved.

    Attributes:
        name: of the input.
        sentence: what is wrong.
        exact: whether all copies were enumerated, so that there is no doubt.
        tokens: the text that the smoothed classifier answers otherwise, or None if a probability is wrong.
        distance: its edit distance from the certified text.
    """

    name: str
    sentence: str
    exact: bool
    tokens: Tokens | None = None
    distance: int | None = None


@dataclass(frozen=True)
class VoteCheck:
    """The votes of a certificate compared with fresh ones.

    Attributes:
        disproved: whether the fresh votes disprove the bounds.
        excess: the votes for the answer beyond those that the fresh votes lead one to expect.
        variance: of the excess, estimated from all votes.
    """

    disproved: bool = False
    excess: float = 0.0
    variance: float = 0.0


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
    """The audit of a claim: its violation, if any, and how many neighbours were evaluated in votes."""

    alpha: float
    radius: int
    violation: Violation | None = None
    queries: int = 0
    votes: VoteCheck = VoteCheck()


@dataclass
class AuditReport:
    """The audits of many claims, and the tests of the violations and of the votes.

    Attributes:
        certificates: the number of claims.
        abstained: of these, the number that claim nothing about answers.
        violations: of claims from votes, each of which alpha allows now and then.
        certain: violations of claims from enumerated copies.
        alpha: the largest level of a claim.
        sampled: the number of claims from votes.
        queries: neighbours that were compared by votes.
        excess: of votes for the answers, in all certificates.
        variance: of the excess.
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

    def add(self, audit: ClaimAudit) -> None:
        """Count the audit of a claim."""
        self.certificates += 1
        self.abstained += audit.radius < 0
        self.queries += audit.queries
        self.excess += audit.votes.excess
        self.variance += audit.votes.variance
        self.alpha = max(self.alpha, audit.alpha)
        self.sampled += audit.alpha > 0
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
    def certain_p_value(self) -> float:
        """The same for claims that must never be wrong: 0 if one is disproved by enumeration."""
        if not self.certain:
            return 1.0
        if any(violation.exact for violation in self.certain):
            return 0.0
        return float(stats.binom.sf(len(self.certain) - 1, self.certificates - self.sampled, CERTAIN_MISTAKE))

    @property
    def p_value(self) -> float:
        """Of the three tests together."""
        return min(1.0, 3 * min(self.count_p_value, self.votes_p_value, self.certain_p_value))

    @property
    def failed(self) -> bool:
        """Whether the certificates do not hold."""
        return self.p_value < LEVEL

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
            "examples": [
                {"name": v.name, "wrong": v.sentence, "exact": v.exact, "distance": v.distance}
                for v in (*self.certain, *self.violations)[:20]
            ],
        }


class Auditor:
    """Check claims against the smoothed classifier that they are about.

    Args:
        certifier: the engine of the model: its base classifier, noise and rule are those that answer.
        vocabulary: words for the attack.
        settings: of the attack; its noise is independent of that of the certificates.
    """

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
        target, label = self.target, claim.label
        if target.is_short(len(claim.tokens)):
            (shares,) = target.exact_counts([claim.tokens])
            rival = max(share for number, share in enumerate(shares) if number != label)
            p = float(shares[label])
            votes = VoteCheck(False, claim.agreeing - p * claim.votes, p * (1 - p) * claim.votes)
            if Fraction(claim.p1) > shares[label] or Fraction(claim.p2) < rival:
                return votes, self._wrong_bound(claim, p, float(rival), exact=True)
            if claim.radius >= 0 and target.rule.predicted_class(shares) != label:
                return votes, self._counterexample(claim, claim.tokens, exact=True)
            return votes, None
        counts = self._fresh(claim)
        votes = check_votes(claim, counts)
        if votes.disproved:
            fractions = counts / counts.sum()
            rival_fraction = float(np.delete(fractions, label).max())
            return votes, self._wrong_bound(claim, float(fractions[label]), rival_fraction, exact=False)
        if claim.radius >= 0 and target.settled(counts, label, claim.level):
            return votes, self._counterexample(claim, claim.tokens, exact=False)
        return votes, None

    def _fresh(self, claim: Claim) -> IntArray:
        """Fresh votes by class, of a number that is fixed in advance."""
        target = self.target
        rng = stream(self.settings.seed, content_key(claim.tokens), "audit votes")
        prepared = target.certifier.prepare_tokens(claim.tokens, "an audited text")
        counts = np.zeros(target.classes, dtype=np.int64)
        for kept in target.rule.noise.chunks(len(claim.tokens), self._fresh_votes(claim), rng):
            (answers,) = target.certifier.base.votes([Request(prepared, kept)])
            counts = counts + target.counts(answers)
        return counts

    def _attack(self, claim: Claim) -> tuple[int, Violation | None]:
        """Attack with the radius as the budget: the number of texts that were compared, and a counterexample."""
        settings = replace(self.settings, level=claim.level, verify_votes=self._fresh_votes(claim))
        attack = AdaptiveAttack(SmoothedTarget(self.target.certifier, settings), self.vocabulary)
        result = attack(claim.tokens, claim.label, budget=min(claim.radius, max(MOST_EDITS, len(claim.tokens))))
        if result.tokens is None or result.verification is None:
            return result.queries, None
        return result.queries, self._counterexample(claim, result.tokens, exact=result.verification.exact)

    def _wrong_bound(self, claim: Claim, share: float, rival: float, *, exact: bool) -> Violation:
        how = "is" if exact else f"is about ({self._fresh_votes(claim)} fresh votes)"
        return Violation(
            claim.name,
            f"the certificate bounds the probability of the answer by {claim.p1:.6f} from below and that of its rival "
            f"by {claim.p2:.6f} from above; their probability {how} {share:.6f} and {rival:.6f}",
            exact,
        )

    def _counterexample(self, claim: Claim, tokens: Tokens, *, exact: bool) -> Violation:
        distance = int(edit_distance(claim.tokens, tokens, self.target.rule.threat.ops))
        where = "the certified text itself" if not distance else f"a text at edit distance {distance}"
        return Violation(
            claim.name,
            f"radius {claim.radius} is claimed, and {where} gets another answer",
            exact,
            tokens,
            distance,
        )
