"""A certificate: the raw votes on an input, and the radius that follows from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from adaptdel.bounds import BOUNDS
from adaptdel.cardinality import ROBERTA_VOCABULARY, log10_cardinality
from adaptdel.checks import LARGEST_LENGTH, check_alpha, check_choice, check_int, check_list, check_probability
from adaptdel.confidence import Looks
from adaptdel.derivation import Rule, exact_bounds, vote_bounds
from adaptdel.frontier import certified_frontier
from adaptdel.noise import Noise, noise_from_dict
from adaptdel.radius import check_noise
from adaptdel.threat import Threat

FORMAT = 1
MOST_VOTES = 2**40
_RAW = (
    "label", "classes", "known", "answer", "length", "selection", "votes", "exact", "threshold", "k", "seed", "bound",
    "unit", "model_hash", "input_hash",
)  # fmt: skip


@dataclass(frozen=True)
class Certificate:
    """The raw votes on one input, and what they prove.

    The radius is derived from the votes and is never stored apart from them; so it can be derived again without the
    model, at another error level, with another bound or for another attacker.

    Attributes:
        label: the answer.
        classes: the labels that counts are in the order of.
        known: whether these are all the classes there are.
        answer: the place of the label in the classes.
        length: the number of tokens of the input.
        noise: the noise of the votes.
        selection: votes that chose the answer, which bound nothing.
        looks: the planned looks at the estimation votes; None if every copy was enumerated.
        votes: votes at each look that was taken.
        exact: if enumerated, choices of kept tokens by class and number kept.
        ops: what the attacker may do.
        bound: "tight" or "paper".
        threshold: a decision threshold for two classes, or None.
        k: the answer has to stay among the k most probable classes.
        seed: the seed of the noise.
        unit: what a token is, or None if that cannot be written down.
        model_hash: a hash of the base classifier, or "".
        input_hash: a hash of the tokens.
    """

    label: Any
    classes: tuple[Any, ...]
    known: bool
    answer: int
    length: int
    noise: Noise
    selection: tuple[int, ...]
    looks: Looks | None
    votes: tuple[tuple[int, ...], ...]
    exact: tuple[tuple[int, ...], ...] | None
    ops: tuple[str, ...] = ("del", "ins", "sub")
    bound: str = "tight"
    threshold: float | None = None
    k: int = 1
    seed: int = 0
    unit: Mapping[str, Any] | None = None
    model_hash: str = ""
    input_hash: str = ""

    @property
    def alpha(self) -> float:
        """The probability that the certificate is wrong; 0 if every copy was enumerated."""
        return 0.0 if self.looks is None else self.looks.alpha

    @property
    def two(self) -> bool:
        """Whether there are just two classes, so that one bound is enough."""
        return self.known and len(self.classes) == 2

    @property
    def rule(self) -> Rule:
        """How bounds become a radius."""
        return Rule(self.noise, self.ops, self.bound, self.threshold, self.k)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """A lower bound on the probability of the answer and an upper bound on that of its strongest rival."""
        if self.exact is not None:
            return exact_bounds(self.exact, self.answer, self.noise, self.length, k=self.k)
        assert self.looks is not None
        return vote_bounds(self.looks, self.votes, self.answer, known=self.known, k=self.k)

    @cached_property
    def radius(self) -> int:
        """How many edits cannot change the answer; −1 if not even the unedited input is settled."""
        return self.radius_for(self.ops)

    @property
    def abstained(self) -> bool:
        """Whether not even the unedited input is settled."""
        return self.radius < 0

    @property
    def score(self) -> float:
        """The share of votes for the answer, or its exact probability."""
        if self.exact is not None:
            return self.bounds[0]
        counts = self.votes[-1]
        return counts[self.answer] / max(sum(counts), 1)

    @property
    def calls(self) -> int:
        """How many votes were taken, enumerated copies included."""
        if self.exact is not None:
            return sum(map(sum, self.exact))
        return sum(self.selection) + (sum(self.votes[-1]) if self.votes else 0)

    def radius_for(self, ops: str | Iterable[str]) -> int:
        """The radius against another attacker, from the same votes.

        Certificates for several attackers at once hold together: the bounds do not depend on the attacker.
        """
        rule = replace(self.rule, ops=Threat(ops).ops)
        return rule.radius(*self.bounds, label=self.answer, length=self.length, two=self.two and self.exact is None)

    def frontier(self) -> list[tuple[int, int, int]]:
        """The maximal triples (deletions, insertions, substitutions) that are certified together."""
        if self.threshold is not None:
            raise ValueError("threshold must be None for a frontier, which compares classes")
        p1, p2 = self.bounds
        rival = None if self.two and self.exact is None else p2
        return certified_frontier(p1, rival, length=self.length, noise=self.noise, ops=self.ops, bound=self.bound)

    def log10_cardinality(self, vocab_size: int = ROBERTA_VOCABULARY) -> float:
        """log10 of the number of inputs that the certificate covers."""
        return log10_cardinality(self.radius, length=self.length, ops=self.ops, vocab_size=vocab_size)

    def rederive(
        self, *, alpha: float | None = None, ops: str | Iterable[str] | None = None, bound: str | None = None
    ) -> Certificate:
        """The certificate from the same votes at another error level, for another attacker or with another bound.

        The error level is spread over the planned looks in the proportions of the plan.
        """
        looks = self.looks
        if alpha is not None and looks is not None:
            scale = check_alpha(alpha) / looks.alpha
            looks = Looks(looks.sizes, tuple(level * scale * (1 - 2.0**-50) for level in looks.alphas))
        return replace(
            self,
            looks=looks,
            ops=self.ops if ops is None else Threat(ops).ops,
            bound=self.bound if bound is None else check_choice("bound", bound, ("tight", "paper")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the raw votes, what follows from them, and a digest of it all."""
        values: dict[str, Any] = {"format": FORMAT} | {name: _plain(getattr(self, name)) for name in _RAW}
        values["noise"] = self.noise.to_dict()
        values["ops"] = list(self.ops)
        values["looks"] = (
            None if self.looks is None else {"sizes": list(self.looks.sizes), "alphas": list(self.looks.alphas)}
        )
        values["derived"] = {"radius": self.radius, "p1": self.bounds[0], "p2": self.bounds[1], "alpha": self.alpha}
        values["digest"] = digest(values)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`; what was derived is derived again, not believed."""
        try:
            if values["format"] != FORMAT:
                raise ValueError(f"a certificate must be of format {FORMAT}, got {values['format']!r}")
            looks = values["looks"]
            raw = {name: _tuples(values[name]) for name in _RAW if name != "unit"}
            made = cls(
                **raw,
                unit=values["unit"],
                noise=noise_from_dict(values["noise"]),
                ops=Threat(values["ops"]).ops,
                looks=None if looks is None else Looks(tuple(looks["sizes"]), tuple(looks["alphas"])),
            )
            _check_fields(made)
            return made
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a certificate must have the fields of Certificate.to_dict, got {error}") from None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Rebuild a certificate from `to_json`."""
        return cls.from_dict(json.loads(text))


def _check_fields(made: Certificate) -> None:
    """Raise unless every field is of its kind and in its range; what `SmoothedClassifier` makes always is."""
    classes = check_list("classes", made.classes, "labels")
    check_int("length", made.length, most=LARGEST_LENGTH)
    check_int("answer", made.answer, most=len(classes) - 1)
    check_int("seed", made.seed)
    if not isinstance(made.known, bool):
        raise ValueError(f"known must be True or False, got {made.known!r}")
    check_int("k", made.k, least=1, most=len(classes) - 1 if made.known else None)
    check_choice("bound", made.bound, BOUNDS)
    check_noise(made.noise, Threat(made.ops))
    if made.threshold is not None:
        check_probability("threshold", made.threshold)
        if not made.two:
            raise ValueError("threshold must be None unless there are two known classes")
    for name, table in (("votes", made.votes), ("selection", (made.selection,)), ("exact", made.exact or ())):
        for row in check_list(name, table, "counts"):
            for count in check_list(name, row, "counts"):
                check_int(name, count, most=MOST_VOTES)
    for row in (*made.votes, made.selection):
        if len(row) != len(classes):
            raise ValueError(f"votes must be one count for each of the {len(classes)} classes, got {len(row)}")
    if made.exact is not None and [len(row) for row in made.exact] != [made.length + 1] * len(classes):
        raise ValueError("exact must hold a count for each class and each number of kept tokens")


def digest(values: Mapping[str, Any]) -> str:
    """A hash of everything in a certificate's dictionary but the digest itself."""
    rest = {name: value for name, value in values.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
