"""Votes: the evidence of smoothing, on noisy copies of one input, and the plan by which they are taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import nextafter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adaptdel.certification.evidence import EVIDENCE, SECRET_BITS, Evidence, Explanation, Plan, plan_from_dict
from adaptdel.core.bounds import OWN_BOUNDS, check_bound, complement, describe_bound, round_up, within_rival_cap
from adaptdel.core.checks import (
    STEPS,
    FloatArray,
    check_alpha,
    check_choice,
    check_int,
    check_list,
    check_probability,
    check_text,
)
from adaptdel.core.confidence import Looks, exact_bounds, exact_shares, vote_bounds
from adaptdel.core.noise import MANY_CHOICES, NOISES, Noise
from adaptdel.core.plain import NOT_STORED, READERS
from adaptdel.core.radius import certified_frontier, certified_radius, check_noise, table, uses_table
from adaptdel.core.rates import RATES
from adaptdel.core.rigorous import rigorous_lower_confidence, rigorous_radius
from adaptdel.core.threat import CHARACTERS, OPERATIONS, ROBERTA_VOCABULARY, Threat, as_threat
from adaptdel.settings import CERTIFICATION as SETTINGS
from adaptdel.tables import percent
from adaptdel.text.units import Tokens, content_key, noun, units_per_character

if TYPE_CHECKING:
    from adaptdel.certification.certificate import Certificate

# Up to this many choices of kept tokens are enumerated: immediately, or instead of further votes after the first look;
# only where they are no more than the votes that are left of those that were asked for.
AT_ONCE, EXACT_COPIES = 512, MANY_CHOICES
MOST_VOTES = 2**40
CERTIFY = ("select", "estimate")  # phases of the selection and of the estimation
ATTACK = ("attack query", "attack estimate")
LONGEST_NOISE = 200  # characters of a noise that is shown as code
INFLUENCE = ("kept", "for", "deleted", "for_when_deleted")  # columns of `Votes.influence`
_NAMED_CLASSES = 4  # in a sentence
_METHODS = {
    "fixed": "cert-ed", "length": "adaptdel", "binned": "adaptdel+", "interpolated": "adaptdel+",
    "masking": "ranmask", "none": "nosmooth",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VotesPlan(Plan):
    """How votes are taken, and how a prediction and a radius follow; `SmoothedClassifier` documents most fields.

    Attributes:
        noise: the noise of the copies.
        sampled: the plan by which the votes were taken, where radii follow by another one; None if they are the same.
        enumerates: whether the copies of short inputs are enumerated instead of sampled.
        at_once: inputs of up to this many copies are enumerated before any vote, unless that takes more than all votes.
        phases: the names of the random streams that select the class and that bound its probability.
        secret: the seed has up to `SECRET_BITS` bits, and appears neither in files nor in the representation.
        interrupted: sampling may be ended at any time, as by a deadline: adaptive looks begin early, so that there is
            something to certify.
        influence: votes are also counted for each token, for an explanation.
    """

    kind: ClassVar[str] = "votes"
    changeable: ClassVar[tuple[str, ...]] = ("alpha", "ops", "bound")
    verified: ClassVar[str] = "proven in ball arithmetic"
    sampled_at_random: ClassVar[bool] = True

    noise: Noise
    bound: str = SETTINGS.bound
    threshold: float | None = SETTINGS.threshold
    alpha: float = SETTINGS.alpha  # a field, where other plans have a property
    n_select: int = SETTINGS.n_select
    n_estimate: int = SETTINGS.n_estimate
    sampling: str = SETTINGS.sampling
    seed: int | None = SETTINGS.seed
    sampled: Plan | None = None
    enumerates: bool = True
    interrupted: bool = False
    at_once: int = field(default=AT_ONCE, metadata=NOT_STORED)
    phases: tuple[str, str] = field(default=CERTIFY, metadata=NOT_STORED)
    secret: bool = field(default=False, metadata=NOT_STORED)
    influence: bool = field(default=False, metadata=NOT_STORED)

    def __post_init__(self) -> None:
        check_noise(self.noise, self.threat)
        check_bound(self.bound)
        check_alpha(self.alpha)
        check_int("n_select", self.n_select, least=1, most=MOST_VOTES)
        check_int("n_estimate", self.n_estimate, most=MOST_VOTES)
        if self.seed is not None:
            check_int("seed", self.seed, most=2 ** (SECRET_BITS if self.secret else 63) - 1)
        check_choice("sampling", self.sampling, ("adaptive", "fixed"))
        if self.threshold is not None:
            check_probability("threshold", self.threshold)
        if self.sampled is not None:
            same = {name: getattr(self, name) for name in ("threat", "alpha", "bound")}
            if not isinstance(self.sampled, VotesPlan) or replace(self.sampled, **same) != replace(self, sampled=None):
                raise ValueError(
                    "sampled must be the plan with another threat, alpha or bound, and nothing else changed"
                )

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if not (self.secret and name == "seed")}
        return f"VotesPlan({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def to_dict(self) -> dict[str, Any]:
        """The kind and the fields; a secret seed is left out."""
        return super().to_dict() | ({"seed": None} if self.secret else {})

    @property
    def decision_threshold(self) -> float | None:
        """What the share of the second of two classes must exceed; None if the largest share decides."""
        return self.threshold

    @property
    def certified_ops(self) -> tuple[str, ...]:
        """The operations that the noise certifies."""
        return self.noise.certified_ops

    @property
    def copy_noise(self) -> Noise:
        """The noise."""
        return self.noise

    def queried(self, votes: int, seed: int) -> VotesPlan:
        """A fixed number of selection votes, from random streams of their own."""
        fixed = {"n_select": votes, "n_estimate": 0, "sampling": "fixed", "enumerates": False}
        return replace(self, **fixed, seed=seed, phases=ATTACK)  # type: ignore[arg-type]

    @property
    def taken(self) -> VotesPlan:
        """The plan by which the votes were taken."""
        return self.sampled if isinstance(self.sampled, VotesPlan) else self

    def predictions(self) -> dict[str, Any]:
        """What predictions depend on, besides the seed."""
        names = ("noise", "threshold", "sampling", "n_select", "enumerates")
        values = self.to_dict()
        return {name: values[name] for name in names}

    def changed(self, **settings: Any) -> VotesPlan:
        """The plan with another error level, threat model or bound, for votes that were taken by this one."""
        given = {name: value for name, value in settings.items() if name != "ops"}
        plan = replace(super().changed(**settings), **given, sampled=None)
        return self.taken if plan == self.taken else replace(plan, sampled=self.taken)

    def requested(
        self,
        *,
        seed: int,
        ops: Any = None,
        alpha: float | None = None,
        select: int | None = None,
        estimate: int | None = None,
        **others: Any,
    ) -> VotesPlan:
        """The plan of one request to a server; what is None stays that of the model."""
        given = {"alpha": alpha, "n_select": select, "n_estimate": estimate}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | others
        if ops is not None:
            changes["threat"] = as_threat(ops, self.certified_ops)
        return replace(self, seed=seed, secret=True, **changes)

    def facts(self) -> dict[str, Any]:
        """What a server tells its clients of the plan."""
        votes = {"select": self.n_select, "estimate": self.n_estimate}
        return super().facts() | {"noise": repr(self.noise), "votes": votes}

    def notes(self) -> list[str]:
        """What a reader has to know: a restricted attacker, and what was registered and cannot be proved here."""
        registered = [] if self.bound in OWN_BOUNDS else [f"{describe_bound(self.bound)}: its proof is its author's"]
        rate = getattr(self.noise, "rate", None)
        for noun_, kinds, each in (("noise", NOISES, self.noise), ("rate", RATES, rate)):
            if each is not None and not kinds.is_own(each.kind):
                registered.append(f"the registered {noun_} {each.kind!r}: that it is sampled as stated is its author's")
        return super().notes() + registered

    def describe(self) -> list[str]:
        """The noise and the votes, for the card of a model."""
        return [f"Noise: {noise_text(self.noise)}"]

    def method(self) -> tuple[str, str]:
        """The method that has this noise, and its rate."""
        source: Any = self.noise if self.noise.kind in _METHODS else getattr(self.noise, "rate", self.noise)
        rates = [getattr(source, name) for name in ("fraction", "p", "p_min") if hasattr(source, name)]
        return _METHODS.get(source.kind, self.noise.kind), f"{100 * rates[0]:g}%" if rates else ""

    def settings(self) -> dict[str, str | None]:
        """What a comparison of runs shows of the plan."""
        return super().settings() | {
            "noise": noise_text(self.noise).strip("`"),
            "bound": describe_bound(self.bound),
            "votes": f"{self.n_select} + {self.n_estimate}",
            "sampling": self.sampling,
            "seed": None if self.secret or self.seed is None else str(self.seed),
        }

    def log10_region(self, radius: int, length: int, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs within the radius, which the noise may limit to a vocabulary."""
        if self.noise.vocabulary is not None:
            vocab_size = max(1, len(set(self.noise.vocabulary)))
        return super().log10_region(radius, length, vocab_size)

    def given(self, tokens: Tokens | None) -> VotesPlan:
        """The plan for an input of these tokens, which some noises see."""
        noise = self.noise if tokens is None else self.noise.given(tokens)
        return self if noise is self.noise else replace(self, noise=noise, sampled=None)

    def predicted(self, shares: Sequence[Any], total: Any = 1) -> int:
        """The class that votes or exact probabilities predict: by the decision threshold, or the most probable one.

        Args:
            shares: votes or probabilities by class; without a threshold, a tie goes to the lowest class number.
            total: their sum.
        """
        if self.threshold is not None:
            return int(shares[1] > self.threshold * total)
        return max(range(len(shares)), key=lambda number: (shares[number], -number))

    def threshold_probability(self, p1: float, label: int) -> float | None:
        """With a threshold: the bound on the probability of class 1; None if it is not on the side of the label."""
        p = p1 if label == 1 else complement(p1)
        return p if self.threshold is not None and (p > self.threshold) == (label == 1) else None

    def radius(self, p1: float, p2: float | None, *, label: int, length: int, threat: Threat) -> int:
        """The radius for bounds on the probabilities of the label and of its strongest rival.

        ``p2`` is None where 1 − p1 bounds the only rival. Of a threat without bounds, it is that of the bounded one.
        """
        threat = threat.bounded
        if self.threshold is not None:
            p = self.threshold_probability(p1, label)
            if p is None:
                return -1
            return certified_radius(
                p, length=length, noise=self.noise, ops=threat, bound=self.bound, threshold=self.threshold
            )
        if p2 is None and uses_table(self.noise, self.bound):  # the look-up without argument checks, for speed
            return table(length, self.noise, threat).radius(1 - p1) if p1 > 0.5 else -1
        return certified_radius(p1, p2, length=length, noise=self.noise, ops=threat, bound=self.bound)


@EVIDENCE.add("votes")
@dataclass(frozen=True)
class Votes(Evidence):
    """The votes on one input.

    The radius is derived from the votes and never stored without them. So it can be derived again without the model, at
    another error level, with another bound or for another threat model.

    Attributes:
        answer: the class number of the label; −1 if sampling ended before any vote.
        length: the number of tokens of the input.
        selection: the votes that selected the label, shape (classes,); they bound nothing.
        looks: the planned looks at the estimation votes; None if every copy was enumerated, or for a prediction alone.
        votes: the votes at each look that was taken, shape (looks taken, classes).
        copies: if enumerated, choices of kept tokens by class and number kept, shape (classes, length + 1).
        tokens: of the input, if the noise sees them.
        influence: if the plan asks for it, estimation votes by token, shape (length, 4): with the token kept, those of
            them for the answer, and the same with the token deleted. Enumerated copies count with their probability,
            scaled to a mean weight of 1. In no file.
    """

    plan: ClassVar[type[Plan]] = VotesPlan
    columns: ClassVar[Mapping[str, str]] = {
        "selection": "int64[]",  # votes by class that selected the answer
        "look_sizes": "int64[]",  # the planned looks; empty if every copy was enumerated
        "look_alphas": "double[]",
        "votes": "int64[][]",  # votes by class at each look that was taken
        "copies": "int64[][]",  # copies by class and number kept, if all were enumerated
        "tokens": "string",  # as JSON, if the noise sees them
    }
    claimed: ClassVar[tuple[str, ...]] = ("p1", "p2")

    answer: int
    length: int
    selection: tuple[int, ...]
    looks: Looks | None = None
    votes: tuple[tuple[int, ...], ...] = ()
    copies: tuple[tuple[int, ...], ...] | None = None
    tokens: Tokens | None = None
    influence: FloatArray | None = field(default=None, compare=False, repr=False)

    @property
    def alpha(self) -> float:
        """The probability that a bound is wrong; 0 if every copy was enumerated."""
        return 0.0 if self.looks is None else self.looks.alpha

    @property
    def calls(self) -> int:
        """The number of votes, including enumerated copies."""
        if self.copies is not None:
            return sum(map(sum, self.copies))
        return sum(self.selection) + (sum(self.votes[-1]) if self.votes else 0)

    @property
    def proves(self) -> bool:
        """Whether there is a look or an enumeration, so that a radius can be derived."""
        return bool(self.votes) or self.copies is not None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.selection)

    def predicted(self, plan: VotesPlan) -> int:
        """The selected class."""
        return self.answer

    def class_scores(self, plan: VotesPlan) -> list[float]:
        """The share of every class in the selection votes; exact for enumerated copies."""
        if self.copies is not None:
            return [float(share) for share in self.exact_shares(plan)]
        total = max(sum(self.selection), 1)
        return [count / total for count in self.selection]

    def exact_shares(self, plan: VotesPlan) -> list[Fraction]:
        """The exact probability of each class, if all copies were enumerated."""
        assert self.copies is not None
        return exact_shares(self.copies, plan.given(self.tokens).noise, self.length)

    def bounds(self, plan: VotesPlan) -> tuple[float, float]:
        """A lower bound on the probability of the label and an upper bound on that of its strongest rival."""
        if self.copies is not None:
            return exact_bounds(self.copies, self.answer, plan.given(self.tokens).noise, self.length)
        return self._sampled_bounds

    @cached_property
    def _sampled_bounds(self) -> tuple[float, float]:
        assert self.looks is not None
        return vote_bounds(self.looks, self.votes, self.answer)

    @property
    def rests_on_p1(self) -> bool:
        """Whether 1 minus the bound on the label is the bound on its only rival."""
        return self.classes == 2 and self.copies is None

    def radius(self, plan: VotesPlan, threat: Threat) -> int:
        """The number of edits that cannot change the prediction; −1 if not even the prediction itself is certain.

        Enough added text outvotes every copy.
        """
        if not threat.is_bounded:
            return -1 if threat.padding else min(0, self.radius(plan, threat.bounded))
        p1, p2 = self.bounds(plan)
        rival = None if self.rests_on_p1 else p2
        return plan.given(self.tokens).radius(p1, rival, label=self.answer, length=self.length, threat=threat)

    def frontier(self, plan: VotesPlan) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""
        if not plan.threat.is_bounded:
            return self.radius_triples(plan)
        arguments = self._arguments(plan)
        return [] if arguments is None else certified_frontier(**arguments)

    def _arguments(self, plan: VotesPlan) -> dict[str, Any] | None:
        """What frontier and radius are derived from; None if the bound is not on the side of the label."""
        p1, p2 = self.bounds(plan)
        noise = plan.given(self.tokens).noise
        shape = {"length": self.length, "noise": noise, "ops": plan.ops, "bound": plan.bound}
        if plan.threshold is None:
            return {"p1": p1, "p2": None if self.rests_on_p1 else p2, **shape}
        p = plan.threshold_probability(p1, self.answer)
        return None if p is None else {"p1": p, "threshold": plan.threshold, **shape}

    def character_radius(self, plan: VotesPlan, unit: Mapping[str, Any] | None) -> int | None:
        """The number of character edits that cannot change the prediction; None for units without characters.

        A character is a Unicode code point. For words see `adaptdel.core.threat.CharacterThreat`. Under a noise that
        does not certify insertions and deletions, as masking, it is 0: a character can split a word. Under a noise with
        a ball of its own it is not known.
        """
        units = units_per_character(unit)
        if plan.noise.has_own_ball() or units is None:
            return None
        if plan.threat.padding:
            return -1
        if len(plan.certified_ops) < len(OPERATIONS):
            return min(self.radius(plan, plan.threat), 0)
        if (unit or {}).get("kind") == "word":
            return self.radius(plan, CHARACTERS)
        return max(-1, self.radius(plan, Threat()) // units)

    def share(self, plan: VotesPlan) -> float:
        """The share of votes for the label, or its exact probability; before the first look, of the selection."""
        if self.copies is not None:
            return self.bounds(plan)[0]
        counts = self.votes[-1] if self.votes else self.selection
        return counts[self.answer] / max(sum(counts), 1)

    def estimated(self, plan: VotesPlan) -> tuple[float, float, Sequence[int]]:
        """The bounds, and the votes at the last look."""
        return *self.bounds(plan), self.votes[-1] if self.copies is None else ()

    def look(self, plan: VotesPlan) -> Mapping[str, Any] | None:
        """The number of the last look, all planned ones, its votes, and the lower bound; None before the first look."""
        if self.looks is None or not self.votes:
            return None
        sizes, votes = list(self.looks.sizes), list(self.votes[-1])
        return {"look": len(self.votes), "looks": sizes, "votes": votes, "lower": self.bounds(plan)[0]}

    def restricted(self, plan: VotesPlan) -> bool:
        """Whether the noise certifies texts of a vocabulary only."""
        return plan.noise.vocabulary is not None

    def log10_region(self, plan: VotesPlan, radius: int, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs within the radius, which the plan limits to the vocabulary of the noise."""
        return plan.log10_region(radius, self.length, vocab_size)

    def claims(self, plan: VotesPlan) -> dict[str, Any]:
        """The bounds on the probabilities of the label and of its strongest rival."""
        return dict(zip(("p1", "p2"), self.bounds(plan), strict=True))

    def under(self, plan: VotesPlan, old: VotesPlan) -> Votes:
        """The same votes; another error level is distributed over the planned looks in the proportions of the plan."""
        if self.looks is None or plan.alpha == old.alpha:
            return self
        scale = plan.alpha / self.looks.alpha
        return replace(
            self, looks=Looks(self.looks.sizes, tuple(level * scale * (1 - 2.0**-50) for level in self.looks.alphas))
        )

    def row(self) -> dict[str, Any]:
        """The values of the columns."""
        looks = self.looks
        return {
            "selection": self.selection,
            "look_sizes": () if looks is None else looks.sizes,
            "look_alphas": () if looks is None else looks.alphas,
            "votes": self.votes,
            "copies": self.copies,
            "tokens": None if self.tokens is None else json.dumps(self.tokens),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], plan: VotesPlan) -> Votes:
        """The votes of a row."""
        sizes, alphas = (check_list(name, row[name]) for name in ("look_sizes", "look_alphas"))
        copies, tokens = row["copies"], row["tokens"]
        if plan.noise.sees_tokens() != (tokens is not None):
            raise ValueError("tokens must be stated under a noise that sees them, and under no other")
        return cls(
            answer=row["answer"],
            length=row["length"],
            selection=tuple(check_list("selection", row["selection"], "counts")),
            looks=Looks(tuple(sizes), tuple(alphas)) if copies is None or sizes or alphas else None,
            votes=_rows("votes", row["votes"]),
            copies=None if copies is None else _rows("copies", copies),
            tokens=None if tokens is None else tuple(check_list("tokens", json.loads(check_text("tokens", tokens)))),
        )

    def check_shape(self, classes: int) -> None:
        """Raise unless every count is there and fits the others."""
        for name, rows in (("selection", (self.selection,)), ("votes", self.votes)):
            _check_counts(name, rows, classes)
        if self.copies is None:
            self._check_sampled()
            return
        if len(self.copies) != classes or any(len(row) != self.length + 1 for row in self.copies):
            raise ValueError("copies must hold a count for each class and each number of kept tokens")
        _check_counts("copies", tuple(zip(*self.copies, strict=True)), classes)
        if self.looks is not None or self.votes or any(self.selection):
            raise ValueError("there must be no looks and no votes where every copy was enumerated")

    def _check_sampled(self) -> None:
        looks, taken = self.looks, len(self.votes)
        if looks is None:
            raise ValueError("there are neither looks nor enumerated copies: one of them must be given")
        if looks.total > MOST_VOTES:
            raise ValueError(f"look_sizes must be at most {MOST_VOTES}, got {looks.total}")
        if not 1 <= taken <= len(looks.sizes):
            raise ValueError(
                f"votes must hold a row for each look from the first on, 1 to {len(looks.sizes)}, got {taken}"
            )
        if [sum(row) for row in self.votes] != list(looks.sizes[:taken]):
            raise ValueError("the votes do not add up to the planned looks")
        if any(b < a for earlier, later in pairwise(self.votes) for a, b in zip(earlier, later, strict=True)):
            raise ValueError("the votes fall from one look to the next")

    def check(self, plan: VotesPlan, certificate: Certificate, *, work: int | None = STEPS) -> list[str]:
        """What is wrong with the votes, and with bounds and radius, derived again in ball arithmetic."""
        from adaptdel.certification.sampling import wrong_schedule

        wrong = []
        if self.tokens is not None and content_key(self.tokens).hex() != certificate.input_hash:
            wrong.append("the tokens are not those of the input hash")
        wrong += wrong_schedule(self, plan)
        if self.alpha > plan.alpha * (1 + 1e-12):
            wrong.append(f"its alpha is {self.alpha:g}, above that of the plan, {plan.alpha:g}")
        if not wrong and self.copies is None:
            p1, p2 = self.bounds(plan)
            low = [] if self._low_holds(p1) else [f"the lower bound {p1} does not follow from the votes"]
            wrong = low + ([] if self._high_holds(p1, p2) else [f"the upper bound {p2} does not follow from the votes"])
        if not wrong and certificate.radius >= 0 and plan.bound in OWN_BOUNDS:  # of others, the proof is their authors'
            arguments = self._arguments(plan)
            proven = -1 if arguments is None else rigorous_radius(**arguments)
            if proven < certificate.radius:
                wrong.append(f"the radius {certificate.radius} does not follow from the votes: {proven} does")
        return wrong

    def _low_holds(self, p1: float) -> bool:
        """Whether p1 is a lower confidence bound on the probability of the label at one of the looks."""
        return any(
            rigorous_lower_confidence(p1, counts[self.answer], sum(counts), level) for counts, level in self._levels()
        )

    def _high_holds(self, p1: float, p2: float) -> bool:
        """Whether p2 is an upper bound on the strongest rival: by the cap, or by the votes of that rival."""
        if within_rival_cap(p1, p2):
            return True
        other_classes = round_up(1 - Fraction(p2))  # a stronger claim than 1 − p2
        for counts, level in self._levels():
            total = sum(counts)
            rival = max(count for number, count in enumerate(counts) if number != self.answer)
            if rigorous_lower_confidence(other_classes, total - rival, total, level):
                return True
        best = nextafter(nextafter(p1, 1.0), 1.0)  # the cap may have been rounded down: a bound next to p1 may prove it
        return within_rival_cap(best, p2) and self._low_holds(best)

    def _levels(self) -> list[tuple[Sequence[int], float]]:
        """The counts of each look that was taken, and the level of each of its bounds."""
        assert self.looks is not None
        width = 1 if self.classes == 2 else 2
        return [(counts, alpha / width) for counts, alpha in zip(self.votes, self.looks.alphas, strict=False)]

    def alike(self, certificate: Certificate) -> Mapping[Any, Any]:
        """The noise depends on the seed and the input alone: equal inputs have equal votes."""
        looks = None if self.looks is None else (self.looks.sizes, self.looks.alphas)
        return {
            ("votes", certificate.input_hash): hash((self.answer, self.selection, looks, self.votes, self.copies)),
        }

    def explain(self, certificate: Certificate, text: Any = None) -> Explanation:
        """The noise and the votes behind a certificate."""
        plan: Any = certificate.plan
        noise, classes = plan.given(self.tokens).noise, certificate.classes
        last = self.votes[-1] if self.votes else self.selection
        counts = tuple(map(sum, self.copies)) if self.copies is not None else last
        order = sorted(range(len(counts)), key=lambda number: (number != self.answer, -counts[number]))
        shown = [f"{counts[number]:,} for {classes[number]}" for number in order[:_NAMED_CLASSES]]
        more = f" and {len(counts) - _NAMED_CLASSES} more classes" if len(counts) > _NAMED_CLASSES else ""
        figures = {"votes for the label": percent(self.share(plan))} if self.proves else {}
        rows = [] if self.influence is None else np.round(self.influence, 6).tolist()
        by_token = [dict(zip(INFLUENCE, row, strict=True)) for row in rows]
        details = {} if self.influence is None else {"influence": by_token}
        if not noise.changes_inputs:
            return Explanation([f"Votes without noise: {', '.join(shown)}{more}."], figures, details=details)
        removed = f"{100 * noise.share_removed(self.length):.3g}% of its {noun(certificate.unit)}s"
        change = f"{removed} masked" if noise.masks_tokens else f"a random {removed} deleted"
        copies = f"all {sum(counts):,} possible copies" if self.copies is not None else f"{sum(counts):,} noisy copies"
        sentence = (
            f"The model classified {copies} of the input, each with {change}: {', '.join(shown)}{more}; so the "
            f"probability of the answer is at least {self.bounds(plan)[0]:.4f}."
        )
        return Explanation([sentence], figures, details=details)


def noise_text(noise: Noise) -> str:
    """A noise as code; a long one by what it keeps at a few lengths."""
    if len(repr(noise)) <= LONGEST_NOISE:
        return f"`{noise!r}`"
    kept = ", ".join(f"{n * (1 - noise.share_removed(n)):.3g} of {n}" for n in (10, 30, 100, 300, 1000))
    return f"{type(noise).__name__} that keeps {kept} tokens (the whole curve is in the JSON files)"


def _rows(name: str, rows: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(check_list(name, row, "counts")) for row in check_list(name, rows, "rows of counts"))


def _check_counts(name: str, rows: Sequence[Sequence[Any]], width: int) -> None:
    """Raise unless every row of a table has a count for each class."""
    for row in rows:
        if len(row) != width:
            raise ValueError(f"{name} must hold one count for each of the {width} classes, got {len(row)}")
        for count in row:
            check_int(name, count, most=MOST_VOTES)


READERS[VotesPlan] = plan_from_dict  # of `VotesPlan.sampled`
