"""Evidence: what was observed on one input, and what follows from it; the plan that it follows from.

A kind of evidence is a class that derives from `Evidence`, its plan, and a registration. Everything outside this
package, the models and their training knows evidence by these interfaces alone: a table stores ``kind``, plan and rows,
and a report shows an `Explanation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from adaptdel.core.checks import STEPS
from adaptdel.core.plain import NOT_STORED, READERS, from_plain, to_plain
from adaptdel.core.registry import Registry
from adaptdel.core.threat import OPERATIONS, ROBERTA_VOCABULARY, Threat, as_threat, log10_cardinality

if TYPE_CHECKING:
    from adaptdel.certification.certificate import Certificate
    from adaptdel.core.noise import Noise

ANY_EDIT = Threat("edit")
SECRET_BITS = 256  # of a seed that is kept secret: too many to try them all


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """All that evidence and radii depend on besides the input and the classifier.

    The same object stands in the folder of a model, in the manifest of a run, beside a proved rate of false positives
    and in the server. Two plans are the same job if they are equal.

    Attributes:
        threat: the attacker.
    """

    kind: ClassVar[str]
    changeable: ClassVar[tuple[str, ...]] = ("ops",)  # settings of `changed`
    verified: ClassVar[str] = "derived again"  # how `verify` checks what follows from evidence
    sampled_at_random: ClassVar[bool] = False  # whether evidence depends on more than weights and text

    threat: Threat = ANY_EDIT

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations of the attacker."""
        return self.threat.ops

    @property
    def alpha(self) -> float:
        """The largest probability that a certificate is wrong."""
        return 0.0

    @property
    def decision_threshold(self) -> float | None:
        """What the score of the second of two classes must exceed; None if the largest score decides."""
        return None

    @property
    def protected(self) -> int | None:
        """The number of the class that is predicted only beyond a threshold; None if the largest score decides."""
        return None if self.decision_threshold is None else 1

    @property
    def certified_ops(self) -> tuple[str, ...]:
        """The operations with a radius."""
        return OPERATIONS

    @property
    def copy_noise(self) -> Noise | None:
        """The noise of the copies that vote, as an attacker may know it; None if no copies vote."""
        return None

    def queried(self, votes: int, seed: int) -> Self:
        """The plan by which an attacker asks for answers: without a radius, and by this many votes if copies vote."""
        return self

    @abstractmethod
    def predictions(self) -> dict[str, Any]:
        """What predictions depend on, in plain values: figures about them hold while it is the same."""

    def changed(self, **settings: Any) -> Self:
        """The plan with other settings, by which radii follow from the evidence that is there."""
        for name in settings:
            if name not in self.changeable:
                raise ValueError(f"{name} has no meaning for certificates of the kind {self.kind}: leave it out")
        return replace(self, threat=as_threat(settings["ops"], self.certified_ops)) if "ops" in settings else self

    def requested(self, *, seed: int, ops: Any = None, **others: Any) -> Self:
        """The plan of one request to a server.

        Args:
            seed: of all that is random; it is kept secret.
            ops: the operations of the attacker; None for those of the plan.
            others: what has a meaning for votes alone, and changes nothing where an answer is certain and takes none:
                ``alpha``, the numbers of votes ``select`` and ``estimate``, ``interrupted`` (a deadline may end the
                votes) and ``influence`` (votes are also counted for each token).
        """
        return self if ops is None else self.changed(ops=ops)

    def facts(self) -> dict[str, Any]:
        """What a server tells its clients of the plan, in plain values."""
        return {
            "noise": None,
            "votes": None,
            "alpha": self.alpha,
            "ops": list(self.ops),
            "certified_ops": list(self.certified_ops),
            "threshold": self.decision_threshold,
        }

    def describe(self) -> list[str]:
        """What the card of a model says of the plan, in lines."""
        return []

    def notes(self) -> list[str]:
        """What a reader has to know: a restricted attacker, and what was registered and cannot be proved here."""
        ops = ", ".join(self.ops)
        notes = [] if self.ops == OPERATIONS else [f"the attacker is restricted to the operations {ops}"]
        return notes if self.threat.is_bounded else [*notes, f"an attacker who {self.threat.verbs} tokens"]

    def method(self) -> tuple[str, str]:
        """The method in a comparison, where no training states it, and its rate in words or ""."""
        return self.kind, ""

    def settings(self) -> dict[str, str | None]:
        """What a comparison of runs shows of the plan, by name, in words."""
        threshold = self.decision_threshold
        return {
            "attacker": str(self.threat).replace(",", ", "),
            "threshold": None if threshold is None else f"{threshold:g}",
            "confidence": f"{100 * (1 - self.alpha):g}%" if self.alpha else "certain",
        }

    def log10_region(self, radius: int, length: int, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs within the radius of an input of a length."""
        return log10_cardinality(radius, length=length, ops=self.ops, vocab_size=vocab_size)

    def to_dict(self) -> dict[str, Any]:
        """The kind and the fields, in plain values."""
        names = [f.name for f in fields(self) if f.metadata.get("stored", True)]
        return {"kind": self.kind} | {name: to_plain(getattr(self, name)) for name in names}


def plan_from_dict(values: Any) -> Plan:
    """The plan that `Plan.to_dict` wrote, checked."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a plan must be an object, got {values!r:.60}")
    cls = EVIDENCE.get(values.get("kind")).plan
    return from_plain(cls, {name: value for name, value in values.items() if name != "kind"})


READERS[Plan] = plan_from_dict


@dataclass(frozen=True)
class Explanation:
    """What evidence says in words and figures, in plain values.

    Attributes:
        sentences: where the radius comes from.
        figures: by their names, for a notebook.
        weights: how much each token speaks for the label (positive) or against it; None if that is not known.
        details: what a server adds if it is asked for the influence of tokens.
    """

    sentences: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    weights: Sequence[float] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Evidence(ABC):
    """What was observed on one input. Frozen; all values are raw, and radii follow from them by a `Plan`.

    A subclass is a frozen dataclass. ``columns`` name what a row of a run holds, ``restrictions`` what single
    certificates hold besides, since no run has such an attacker.
    """

    kind: ClassVar[str]
    plan: ClassVar[type[Plan]]
    columns: ClassVar[Mapping[str, str]]  # names and types: see `adaptdel.runs.columns`
    restrictions: ClassVar[tuple[str, ...]] = ()
    claimed: ClassVar[tuple[str, ...]] = ()  # what `claims` derives

    length: int  # tokens of the input

    @property
    def segment(self) -> tuple[int, int] | None:
        """Start and end (exclusive) of tokens that decide alone, no matter what surrounds them; None if none do."""
        return None

    @property
    def alpha(self) -> float:
        """The probability that what follows is wrong; 0 where nothing was sampled."""
        return 0.0

    @property
    def calls(self) -> int:
        """Calls of the base classifier."""
        return 0

    @property
    def proves(self) -> bool:
        """Whether a radius follows; False for votes that ended too early, or predict only."""
        return True

    @abstractmethod
    def predicted(self, plan: Any) -> int:
        """The class number of the answer; −1 if nothing was observed."""

    @abstractmethod
    def class_scores(self, plan: Any) -> list[float]:
        """The score of each class in the prediction: shares of votes, or sums."""

    @abstractmethod
    def radius(self, plan: Any, threat: Threat) -> int:
        """The number of edits that cannot change the answer; −1 if not even the answer is certain."""

    def radius_within(self, plan: Any, threat: Threat, most: int) -> int:
        """The radius, or ``most`` if it is larger: what takes long is not computed."""
        return min(most, self.radius(plan, threat))

    @abstractmethod
    def frontier(self, plan: Any) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""

    def radius_triples(self, plan: Any) -> list[tuple[int, int, int]]:
        """All triples of as many edits as the radius: a frontier that holds whatever the threat."""
        radius, threat = self.radius(plan, plan.threat), plan.threat
        lost = min(radius, self.length)  # tokens, by deletions and substitutions together
        triples = (
            (d, radius - d - s, s)
            for d in range(lost + 1 if threat.deletes else 1)
            for s in range(lost - d + 1 if threat.substitutes else 1)
        )
        return [triple for triple in triples if triple[1] == 0 or (threat.inserts and triple[1] > 0)]

    @abstractmethod
    def character_radius(self, plan: Any, unit: Mapping[str, Any] | None) -> int | None:
        """The number of edited characters that cannot change the answer; None for units without characters."""

    def positions(self, plan: Any) -> int:
        """The number of positions that withstand inserted text, besides padding; −1 if padding alone is too much."""
        return -1

    def share(self, plan: Any) -> float | None:
        """The share of votes for the answer; None without votes."""
        return None

    def estimated(self, plan: Any) -> tuple[float, float, Sequence[int]] | None:
        """What an audit compares with fresh votes; None without votes.

        Bounds on the probabilities of the answer and of its strongest rival, and the votes by class that they rest on:
        none if every copy was enumerated.
        """
        return None

    def worst_texts(self, plan: Any, rewrite: Any, edits: int) -> list[Any]:
        """For each rival, the text that this many of the worst edits make, if it is known and gets another label."""
        return []

    def look(self, plan: Any) -> Mapping[str, Any] | None:
        """What the last planned look proves, for a server that tells of votes as they come: see `Votes.look`."""
        return None

    def restricted(self, plan: Any) -> bool:
        """Whether there are edits of the operations that the attacker may not make."""
        return False

    def log10_region(self, plan: Any, radius: int, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs within the radius; of restricted edits, the input alone is counted."""
        radius = min(0, radius) if self.restricted(plan) else radius
        return plan.log10_region(radius, self.length, vocab_size)

    def notes(self) -> list[str]:
        """What a reader of a single certificate has to know, such as tokens that the attacker may not touch."""
        return []

    def claims(self, plan: Any) -> dict[str, Any]:
        """What else a certificate states that follows from the evidence."""
        return {}

    def under(self, plan: Any, old: Any) -> Self:
        """The same evidence for a plan that `Plan.changed` made of ``old``."""
        return self

    def row(self) -> dict[str, Any]:
        """The values of the columns; tables of numbers may be arrays."""
        return {name: getattr(self, name) for name in self.columns}

    @classmethod
    @abstractmethod
    def from_row(cls, row: Mapping[str, Any], plan: Any) -> Self:
        """The evidence of a row, which also holds ``answer``, a class number, and ``length``."""

    def to_dict(self) -> dict[str, Any]:
        """All values in plain form, as a single certificate holds them."""
        return {**to_plain(self.row()), **{name: to_plain(getattr(self, name)) for name in self.restrictions}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], plan: Any, *, answer: int, length: int) -> Self:
        """Rebuild evidence from `to_dict`."""
        return cls.from_row({**values, "answer": answer, "length": length}, plan)

    def check_shape(self, classes: int) -> None:  # noqa: B027 # nothing to check is an answer
        """Raise ValueError unless the values fit each other and the number of classes."""

    @abstractmethod
    def check(self, plan: Any, certificate: Certificate, *, work: int | None = STEPS) -> list[str]:
        """What `verify` asks: what is wrong with the evidence, derived again; an empty list if nothing is."""

    def alike(self, certificate: Certificate) -> Mapping[Any, Any]:
        """What must be equal in all rows of a run with the same key, such as the votes on equal inputs."""
        return {}

    @abstractmethod
    def explain(self, certificate: Certificate, text: Any = None) -> Explanation:
        """Where the radius comes from; with the text, which tokens carry it."""


def _check(cls: Any) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Evidence) and issubclass(getattr(cls, "plan", object), Plan)):
        raise ValueError(f"evidence must be a class that derives from Evidence and names its plan, got {cls!r}")


EVIDENCE: Registry[type[Evidence]] = Registry(
    "evidence",
    _check,
    {"votes": "adaptdel.certification.votes", "scores": "adaptdel.certification.scores"},
)
__all__ = ["EVIDENCE", "NOT_STORED", "Evidence", "Explanation", "Plan", "plan_from_dict"]
