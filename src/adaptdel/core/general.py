"""CertifyGeneral: the certificate for rates that depend on the content, by enumeration of all neighbours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from adaptdel.core.bounds import BOUNDS, capped_rival, lower, upper
from adaptdel.core.checks import check_choice, check_int, check_list, check_probability, token_key
from adaptdel.core.noise import deletion_overlap
from adaptdel.core.rates import dyadic
from adaptdel.core.threat import Threat

Tokens = tuple[Hashable, ...]
COMPARISONS = 200  # of tokens that are allowed for each neighbour, on average


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

    Every sequence over the vocabulary within the radius is visited, with its true longest common subsequence. The cost
    is exponential in the radius, so this is for short sequences and small vocabularies only.

    Args:
        p1: (a lower bound on) the probability of the predicted class.
        p2: (an upper bound on) the probability of every other class; 1 − p1 by default.
        sequence: the tokens of the input. Two tokens are the same if they have the same type and are equal (texts,
            bytes, numbers and tuples of these), or if they are the same object.
        rate: the deletion rate of a tuple of tokens. It is rounded to a multiple of 2**-32 by
            `adaptdel.core.rates.dyadic`; the sampler has to use the same rounding.
        vocabulary: the tokens that the attacker may insert. The guarantee holds for these only.
        ops: the operations of the attacker.
        bound: "tight" or "paper".
        max_radius: the radius at which the search stops.
        limit: the largest number of neighbours to visit; a larger ball raises ValueError.

    Returns:
        The radius; −1 if not even the prediction for the unedited input is certain.

    >>> rate = lambda tokens: 0.9 if "!" in tokens else 0.8
    >>> certify_general(0.9, sequence="ab!", rate=rate, vocabulary="ab!", ops=["ins"])
    5
    """
    threat = Threat(ops)
    check_choice("bound", bound, BOUNDS)
    p1 = check_probability("p1", p1)
    p2 = capped_rival(p1, None if p2 is None else check_probability("p2", p2))
    limit = check_int("limit", limit, least=1)
    if not callable(rate):
        raise ValueError(f"rate must be a function of a tuple of tokens, got {rate!r}")
    centre = tuple(sequence) if isinstance(sequence, str) else tuple(check_list("sequence", sequence, "tokens"))
    cap = threat.largest(len(centre))
    if max_radius is not None:
        cap = min(check_int("max_radius", max_radius), max_radius if cap is None else cap)
    insertable = tuple(vocabulary if isinstance(vocabulary, str) else check_list("vocabulary", vocabulary, "tokens"))
    # Tokens are numbered: 1 and True are equal in Python, but the rate may treat them differently.
    numbers: dict[Hashable, int] = {}
    tokens_by_number: dict[Hashable, Hashable] = {}
    for token in (*centre, *insertable):
        tokens_by_number.setdefault(numbers.setdefault(token_key(token), len(numbers)), token)
    centre = tuple(numbers[token_key(token)] for token in centre)
    words = tuple(dict.fromkeys(numbers[token_key(token)] for token in insertable))

    def rate_of(row: Tokens) -> float:
        return rate(tuple(tokens_by_number[number] for number in row))

    psi = dyadic(rate_of(centre))
    if p1 <= p2 or not _all_hold(p1, p2, centre, psi, [centre], rate_of, bound):
        return -1
    visited: set[Tokens] = {centre}
    work = 0
    layer: list[Tokens] = [centre]
    radius = 0
    while cap is None or radius < cap:
        following: list[Tokens] = []
        for tokens in layer:
            for neighbour in single_edits(tokens, words, threat):
                if neighbour in visited:
                    continue
                visited.add(neighbour)
                following.append(neighbour)
                work += (len(centre) + 1) * (len(neighbour) + 1)
                if len(visited) > limit or work > COMPARISONS * limit:
                    raise ValueError(
                        f"limit must be raised to continue: radius {radius} is certified, and the ball of radius "
                        f"{radius + 1} around {len(centre)} tokens over {len(words)} words holds more than {limit} "
                        f"sequences, or very long ones (max_radius={radius} gives the radius so far)"
                    )
        if not following:
            return radius  # no further neighbour exists
        if not _all_hold(p1, p2, centre, psi, following, rate_of, bound):
            return radius
        layer, radius = following, radius + 1
    return radius


def _all_hold(
    p1: float, p2: float, centre: Tokens, psi: float, others: list[Tokens], rate: Callable[[Tokens], float], bound: str
) -> bool:
    """Whether the class of probability p1 provably stays ahead at each of the other sequences."""
    common = np.array([longest_common_subsequence(centre, other) for other in others], dtype=np.int64)
    lengths = np.array([len(other) for other in others], dtype=np.int64)
    other_psi = np.array([dyadic(rate(other)) for other in others])
    overlap = deletion_overlap(len(centre), psi, lengths, other_psi, common)
    p, q = np.full(common.shape, p1), np.full(common.shape, p2)
    identical = np.array([other == centre for other in others])
    holds = lower(p, overlap, bound) > upper(q, overlap, bound)
    return bool((holds | (identical & (bound == "tight"))).all())


def single_edits(tokens: Tokens, words: Tokens, threat: Threat) -> Iterator[Tokens]:
    """Every sequence that is one allowed edit away."""
    for place in range(len(tokens) + 1):
        head, tail = tokens[:place], tokens[place:]
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
