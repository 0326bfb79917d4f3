"""CertifyGeneral: deletion rates that depend on the content, certified by enumeration of all neighbours."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from adaptdel.core.checks import BoolArray, IntArray, check_int, check_list, spend, token_key
from adaptdel.core.noise import Deletion, ExactOverlap, Neighbours, Noise, Overlap, deletion_overlap
from adaptdel.core.radius import certified_radius
from adaptdel.core.rates import DENOMINATOR, FixedRate, dyadic
from adaptdel.core.threat import Threat

Tokens = tuple[Hashable, ...]
Token = TypeVar("Token", bound=Hashable)
COMPARISONS = 200  # of tokens that are allowed for each neighbour, on average
UNLIMITED = 2**16  # radius


@dataclass(frozen=True, kw_only=True)
class ContentDeletion(Noise):
    """Delete each token independently, at a rate that depends on all tokens of the input.

    A subclass defines `rate_of`; `register_noise` makes it loadable. The certificate visits every neighbour that can be
    made from the input with the tokens of a vocabulary (Algorithm CertifyGeneral of the paper) and holds only for them.
    The cost is exponential in the radius, so this is for short texts, small vocabularies and small radii.

    Attributes:
        vocabulary: the tokens that the attacker may insert.
        max_radius: the radius at which the search stops.
        limit: the largest number of neighbours to visit; a larger ball raises ValueError.
        tokens: of the input, once it is `given`.
    """

    has_paper_bound: ClassVar[bool] = True
    vocabulary: tuple[Hashable, ...]
    max_radius: int = 2
    limit: int = 100_000
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(check_list("vocabulary", self.vocabulary, "tokens")))
        object.__setattr__(self, "max_radius", check_int("max_radius", self.max_radius))
        object.__setattr__(self, "limit", check_int("limit", self.limit, least=1))
        if self.tokens is not None:
            object.__setattr__(self, "tokens", tuple(check_list("tokens", self.tokens, "tokens")))

    @abstractmethod
    def rate_of(self, tokens: Tokens) -> float:
        """The deletion rate of a text; it is rounded to a multiple of 2**-32."""

    def given(self, tokens: Sequence[Hashable]) -> Self:
        """The noise of an input."""
        return replace(self, tokens=tuple(tokens))

    def _tokens(self, length: int) -> Tokens:
        if self.tokens is None or len(self.tokens) != length:
            raise ValueError(f"{type(self).__name__} depends on the tokens of the input, which are not known here")
        return self.tokens

    def _deletion(self, length: int) -> Deletion:
        """The deletion at the rate of the input."""
        return Deletion(FixedRate(dyadic(self.rate_of(self._tokens(length)))))

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        """Keep a token iff its 32-bit draw is at or above the threshold of the rate."""
        return self._deletion(length).draw_rows(length, size, rng)

    def share_removed(self, length: int) -> float:
        """The rate of the input."""
        return self._deletion(length).share_removed(length)

    def choices(self, length: int) -> int:
        """2**length, or 1 where the rate is 0 or 1."""
        return self._deletion(length).choices(length)

    def all_choices(self, length: int) -> BoolArray:
        """Every subset."""
        return self._deletion(length).all_choices(length)

    def choice_weights(self, length: int) -> list[Fraction]:
        """ψ^(n−i) · (1−ψ)^i for i kept tokens."""
        return self._deletion(length).choice_weights(length)

    def radius_limit(self, length: int, threat: Threat) -> int:
        """The largest radius that is searched for."""
        return min(self.max_radius, threat.search_limit(length))

    def ball(self, length: int, radius: int, threat: Threat, *, shortest_only: bool = False) -> Iterator[Neighbours]:
        """The columns n', N and t' of all neighbours, where ψ' = t' / 2**32 and N is the longest common subsequence."""
        self._tokens(length)
        if radius == 0:
            yield np.array([length]), np.array([length]), np.array([self._threshold(self._numbered[0])])
            return
        spheres = self._spheres.setdefault(threat, _Spheres(self, threat))
        rows = spheres.within(radius)
        if len(rows):
            yield tuple(rows.T)

    def overlap(self, length: int, other_length: IntArray, common: IntArray, threshold: IntArray) -> Overlap:  # type: ignore[override]
        """The masses c = ψ^(n−N) and c' = ψ'^(n'−N) of the common subsequence."""
        psi = dyadic(self.rate_of(self._tokens(length)))
        return deletion_overlap(length, psi, other_length, threshold / DENOMINATOR, common)

    def exact_overlap(  # type: ignore[override]
        self, number: Callable[[int], Any], length: int, other_length: int, common: int, threshold: int
    ) -> ExactOverlap:
        """The same masses from the integers of the rates."""
        psi, other_psi = (number(t) / DENOMINATOR for t in (self._threshold(self._numbered[0]), threshold))
        return ExactOverlap(psi ** (length - common), other_psi ** (other_length - common), psi, other_psi)

    @cached_property
    def _spheres(self) -> dict[Threat, _Spheres]:
        return {}

    @cached_property
    def _numbered(self) -> tuple[tuple[int, ...], tuple[int, ...], list[Hashable]]:
        """The input and the vocabulary in numbers, and the token of each: 1 and True are equal in Python."""
        numbers: dict[Hashable, int] = {}
        tokens: list[Hashable] = []
        for token in (*(self.tokens or ()), *self.vocabulary):
            if numbers.setdefault(token_key(token), len(tokens)) == len(tokens):
                tokens.append(token)
        centre = tuple(numbers[token_key(token)] for token in self.tokens or ())
        return centre, tuple(dict.fromkeys(numbers[token_key(token)] for token in self.vocabulary)), tokens

    def _threshold(self, row: tuple[int, ...]) -> int:
        """The integer of the rate of numbered tokens."""
        tokens = self._numbered[2]
        return round(dyadic(self.rate_of(tuple(tokens[number] for number in row))) * DENOMINATOR)


class _Spheres:
    """The texts around an input, sphere by sphere as far as they are asked for."""

    def __init__(self, noise: ContentDeletion, threat: Threat) -> None:
        self.noise, self.threat = noise, threat
        self.centre, self.words, _ = noise._numbered
        self.visited: set[tuple[int, ...]] = {self.centre}
        self.layer = [self.centre]
        self.rows: list[IntArray] = [np.zeros((0, 3), dtype=np.int64)]  # of every ball
        self.work = 0

    def within(self, radius: int) -> IntArray:
        """The distinct rows (n', N, t') of all texts within a radius."""
        while len(self.rows) <= radius and self.layer:
            self.layer = list(self._next())
            columns = [
                (len(other), longest_common_subsequence(self.centre, other), self.noise._threshold(other))
                for other in self.layer
            ]
            new = np.array(columns, dtype=np.int64).reshape(-1, 3)
            self.rows.append(np.unique(np.concatenate([self.rows[-1], new]), axis=0))
        return self.rows[min(radius, len(self.rows) - 1)]

    def _next(self) -> Iterator[tuple[int, ...]]:
        limit, radius = self.noise.limit, len(self.rows) - 1
        for tokens in self.layer:
            for neighbour in single_edits(tokens, self.words, self.threat):
                if neighbour in self.visited:
                    continue
                self.visited.add(neighbour)
                comparisons = (len(self.centre) + 1) * (len(neighbour) + 1)
                spend(1 + comparisons // 4)
                self.work += comparisons
                if len(self.visited) > limit or self.work > COMPARISONS * limit:
                    raise ValueError(
                        f"limit must be raised to continue: the ball of radius {radius + 1} around {len(self.centre)} "
                        f"tokens over {len(self.words)} words holds more than {limit} sequences, or very long ones: "
                        f"max_radius={radius} ends the search before it"
                    )
                yield neighbour


@dataclass(frozen=True, kw_only=True, eq=False)
class _Called(ContentDeletion):
    """The rate of a function."""

    rate: Callable[[Tokens], float]

    def rate_of(self, tokens: Tokens) -> float:
        return self.rate(tokens)


def certify_general(
    p1: float,
    p2: float | None = None,
    *,
    sequence: Sequence[Hashable],
    rate: Callable[[Tokens], float],
    vocabulary: Iterable[Hashable],
    ops: str | Iterable[str] = "edit",
    bound: str = "tight",
    max_radius: int | None = None,
    limit: int = 100_000,
) -> int:
    """The certified radius under a rate that depends on the content (Algorithm CertifyGeneral of the paper).

    See `ContentDeletion`, which is the same as a noise for `SmoothedClassifier`, for ``vocabulary``, ``max_radius`` and
    ``limit``, and `certified_radius` for the other arguments and the result. ``sequence`` are the tokens of the input:
    two tokens are the same if they have the same type and are equal (strings, bytes, numbers and tuples of these), or
    if they are the same object. ``rate`` gives the deletion rate of a tuple of tokens. It is rounded to a multiple of
    2**-32 by `adaptdel.core.rates.dyadic`; the sampler has to use the same rounding.

    >>> rate = lambda tokens: 0.9 if "!" in tokens else 0.8
    >>> certify_general(0.9, sequence="ab!", rate=rate, vocabulary="ab!", ops=["ins"])
    5
    """
    if not callable(rate):
        raise ValueError(f"rate must be a function of a tuple of tokens, got {rate!r}")
    tokens = tuple(sequence) if isinstance(sequence, str) else tuple(check_list("sequence", sequence, "tokens"))
    words = tuple(vocabulary) if isinstance(vocabulary, str) else vocabulary
    most = UNLIMITED if max_radius is None else max_radius
    noise = _Called(vocabulary=words, max_radius=most, limit=limit, tokens=tokens, rate=rate)  # type: ignore[arg-type]
    return certified_radius(p1, p2, length=len(tokens), noise=noise, ops=ops, bound=bound)


def single_edits(tokens: tuple[Token, ...], words: Sequence[Token], threat: Threat) -> Iterator[tuple[Token, ...]]:
    """Every sequence that is one allowed edit away."""
    for position in range(len(tokens) + 1):
        head, tail = tokens[:position], tokens[position:]
        if threat.inserts:
            for word in words:
                yield (*head, word, *tail)
        if tail:
            if threat.deletes:
                yield head + tail[1:]
            if threat.substitutes:
                for word in words:
                    if word != tail[0]:
                        yield (*head, word, *tail[1:])


def longest_common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of a longest common subsequence.

    >>> longest_common_subsequence("abcbdab", "bdcaba")
    4
    """
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]
