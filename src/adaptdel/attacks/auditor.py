"""The audit of certificates: look for texts inside the certified balls that the smoothed classifier answers otherwise.

A certificate at error level alpha may be wrong with probability alpha. So the number of certificates that are proven
wrong is compared with a binomial distribution: more than alpha allows is a bug. A certificate from enumerated copies
must never be wrong.

For each certificate, three statements are checked: the bounds on the probabilities of the answer and of its strongest
rival; the answer to the certified text itself; and the answers to texts within the radius. Short texts are enumerated,
together with all their neighbours over a few words; otherwise fresh votes decide, and the adaptive attack looks for the
neighbours.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from adaptdel.attacks.adaptive import AdaptiveAttack
from adaptdel.attacks.edits import edit_distance, texts_within
from adaptdel.attacks.target import Target
from adaptdel.attacks.vocabulary import Vocabulary
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import content_key, stream
from adaptdel.classifiers.base import Request
from adaptdel.core.checks import IntArray
from adaptdel.core.confidence import clopper_pearson
from adaptdel.hyperparameters import ATTACK, AttackSettings
from adaptdel.text.units import Tokens

DELTA = 1e-6  # the probability with which a claim that holds may be counted as disproved by votes
CHECK = DELTA / 4  # of each check of a claim: the bounds on two probabilities, the text itself, the attack
LEVEL = 1e-3  # of the binomial test
ENUMERATED_TEXTS = 1500  # neighbours of a short text
ENUMERATED_COPIES = 2**20  # noisy copies of all of them
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
    """

    name: str
    tokens: Tokens
    label: int
    radius: int
    p1: float
    p2: float
    alpha: float


@dataclass(frozen=True)
class Violation:
    """A claim that was disproved.

    Attributes:
        name: of the input.
        sentence: what is wrong.
        exact: whether all copies were enumerated; otherwise it is wrong with probability `DELTA` at most.
        tokens: the text that the smoothed classifier answers otherwise, or None if a probability is wrong.
        distance: its edit distance from the certified text.
    """

    name: str
    sentence: str
    exact: bool
    tokens: Tokens | None = None
    distance: int | None = None


@dataclass(frozen=True)
class ClaimAudit:
    """The audit of a claim: its violation, if any, and how many neighbours were enumerated and evaluated in votes."""

    alpha: float
    radius: int
    violation: Violation | None
    enumerated: int
    queries: int


@dataclass
class AuditReport:
    """The audits of many claims, and the test of the number of violations.

    Attributes:
        certificates: the number of claims.
        abstained: of these, the number that claim nothing about answers.
        violations: of claims from votes, each of which alpha allows now and then.
        certain: violations of claims from enumerated copies.
        alpha: the largest level of a claim.
        sampled: the number of claims from votes.
        enumerated: neighbours whose probabilities are known exactly.
        queries: neighbours that were compared by votes.
    """

    certificates: int = 0
    abstained: int = 0
    violations: list[Violation] = field(default_factory=list)
    certain: list[Violation] = field(default_factory=list)
    alpha: float = 0.0
    sampled: int = 0
    enumerated: int = 0
    queries: int = 0

    def add(self, audit: ClaimAudit) -> None:
        """Count the audit of a claim."""
        self.certificates += 1
        self.abstained += audit.radius < 0
        self.enumerated += audit.enumerated
        self.queries += audit.queries
        self.alpha = max(self.alpha, audit.alpha)
        self.sampled += audit.alpha > 0
        if audit.violation is not None:
            (self.violations if audit.alpha > 0 else self.certain).append(audit.violation)

    @property
    def p_value(self) -> float:
        """The probability of so many violations, or more, if every certificate holds with probability 1 − alpha."""
        if not self.violations:
            return 1.0
        return float(stats.binom.sf(len(self.violations) - 1, self.sampled, min(1.0, self.alpha + DELTA)))

    @property
    def certain_p_value(self) -> float:
        """The same for claims that must never be wrong: 0 if one is disproved by enumeration."""
        if not self.certain:
            return 1.0
        if any(violation.exact for violation in self.certain):
            return 0.0
        return float(stats.binom.sf(len(self.certain) - 1, self.certificates - self.sampled, DELTA))

    @property
    def failed(self) -> bool:
        """Whether there are more violations than alpha allows."""
        return self.p_value < LEVEL or self.certain_p_value < LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the first counterexamples."""
        return {
            "certificates": self.certificates,
            "abstained": self.abstained,
            "sampled": self.sampled,
            "alpha": self.alpha,
            "violations": len(self.violations) + len(self.certain),
            "allowed": self.alpha * self.sampled,
            "p_value": min(self.p_value, self.certain_p_value),
            "holds": not self.failed,
            "enumerated_texts": self.enumerated,
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

    def __init__(self, certifier: Certifier, vocabulary: Vocabulary, settings: AttackSettings = ATTACK) -> None:
        self.target = Target(certifier, replace(settings, level=CHECK))
        self.attack = AdaptiveAttack(self.target, vocabulary)
        self.settings = settings

    def __call__(self, claims: Iterable[Claim]) -> AuditReport:
        """Audit many claims."""
        report = AuditReport()
        for claim in claims:
            report.add(self.check(claim))
        return report

    def check(self, claim: Claim) -> ClaimAudit:
        """Audit a claim; the first statement that is disproved is reported."""
        self.target.begin()
        violation = self._check_probabilities(claim)
        enumerated = queries = 0
        if violation is None and claim.radius >= 0:
            enumerated, violation = self._enumerate(claim)
            if violation is None and claim.radius > 0:
                result = self.attack(claim.tokens, claim.label, budget=self._budget(claim))
                queries = result.queries
                if result.tokens is not None and result.verification is not None:
                    violation = self._counterexample(claim, result.tokens, exact=result.verification.exact)
        return ClaimAudit(claim.alpha, claim.radius, violation, enumerated, queries)

    def _budget(self, claim: Claim) -> int:
        return min(claim.radius, max(MOST_EDITS, len(claim.tokens)))

    def _check_probabilities(self, claim: Claim) -> Violation | None:
        """Check the bounds, and that the answer to the certified text is the claimed one."""
        target, label = self.target, claim.label
        others = [number for number in range(target.classes) if number != label]
        if target.is_short(len(claim.tokens)):
            (shares,) = target.exact_counts([claim.tokens])
            rival = sorted((shares[number] for number in others), reverse=True)[target.rule.k - 1]
            if Fraction(claim.p1) > shares[label] or Fraction(claim.p2) < rival:
                return self._wrong_bound(claim, float(shares[label]), float(rival), exact=True)
            if claim.radius >= 0 and not target.stays(shares, label):
                return self._counterexample(claim, claim.tokens, exact=True)
            return None
        counts = self._fresh(claim.tokens)
        total = int(counts.sum())
        high = clopper_pearson(int(counts[label]), total, CHECK)[1]
        lows = [clopper_pearson(int(counts[number]), total, CHECK / len(others))[0] for number in others]
        low = sorted(lows, reverse=True)[target.rule.k - 1]
        if claim.p1 > high or claim.p2 < low:
            rival_share = np.sort(counts[others])[-target.rule.k] / total
            return self._wrong_bound(claim, counts[label] / total, rival_share, exact=False)
        if claim.radius >= 0 and target.verify(claim.tokens, label, level=CHECK, phase="audit").changed:
            return self._counterexample(claim, claim.tokens, exact=False)
        return None

    def _fresh(self, tokens: Tokens) -> IntArray:
        """Fresh votes by class, of a number that is fixed in advance."""
        target = self.target
        rng = stream(self.settings.seed, content_key(tokens), "audit votes")
        prepared = target.certifier.prepare_tokens(tokens, "an audited text")
        counts = np.zeros(target.classes, dtype=np.int64)
        for kept in target.rule.noise.chunks(len(tokens), self.settings.verify_votes, rng):
            (answers,) = target.certifier.base.votes([Request(prepared, kept)])
            counts = counts + target.counts(answers)
        return counts

    def _enumerate(self, claim: Claim) -> tuple[int, Violation | None]:
        """Check every neighbour over a few words, if the text is short: the number checked, and a counterexample."""
        target, radius = self.target, self._budget(claim)
        longest = len(claim.tokens) + (radius if target.rule.threat.inserts else 0)
        if not radius or not target.is_short(longest):
            return 0, None
        most = min(ENUMERATED_TEXTS, max(1, ENUMERATED_COPIES // target.rule.noise.choices(longest)))
        for words in self._few_words(claim):
            texts = texts_within(claim.tokens, words, radius, target.rule.threat, most)
            if texts is not None:
                for text, shares in zip(texts, target.exact_counts(texts), strict=True):
                    if not target.stays(shares, claim.label):
                        return len(texts), self._counterexample(claim, text, exact=True)
                return len(texts), None
        return 0, None

    def _few_words(self, claim: Claim) -> list[list[Hashable]]:
        """Vocabularies of the strongest words and of the text's own, from the largest to a single word."""
        rivals = [number for number in range(self.target.classes) if number != claim.label]
        strong = self.attack.vocabulary.against(claim.label, rivals, 4)
        own: Sequence[Hashable] = list(dict.fromkeys(claim.tokens))
        lists = [[*strong, *own[:2]], strong, strong[:2], strong[:1]]
        return [list(dict.fromkeys(words)) for words in lists]

    def _wrong_bound(self, claim: Claim, share: float, rival: float, *, exact: bool) -> Violation:
        how = "is" if exact else f"is about ({self.settings.verify_votes} fresh votes)"
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
