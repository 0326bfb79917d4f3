"""Exact certificates of additive classifiers: the true radius, from one sort of the token scores.

An additive classifier has the scores ``offsets[c] + Σ scores[i, c]``, a sum over the tokens i of the input, and answers
the class c with the largest, the lowest class number on a tie. All scores are integers, so nothing is rounded.

Let y be the answer and z a rival, and let m_i be the score of token i for y minus that for z. The margin of y over z is
an offset plus Σ m_i. Let D >= 0 be the largest loss of margin by a token that the attacker writes. Then a deletion of
token i costs y the margin m_i, an insertion D and a substitution m_i + D. The costs add up, so the worst edits are
known: the most expensive ones. y wins against z as long as the sum of the costs is at most the `Margin.slack`.

The order of the tokens does not matter: every certificate also covers all permutations of all texts that it covers.

Runs of k neighbouring tokens (k-mers) may have the scores instead of single tokens. A text of n tokens, padded at both
ends, has n + k − 1 runs. Each token is in k of them, and k − 1 of them span each of the n + 1 gaps between tokens. Let
m_j be the score of run j for y minus that for z, and D >= −m_j the largest loss by a run that the attacker writes. Let
U be the runs that are gone after d deletions, i insertions and s substitutions: runs with an edited token, and runs
that span a gap with an insertion. There are n + i − d + k − 1 runs now, so |U| + i − d are new, and the loss is at most

    Σ_U m_j + (|U| + i − d) D = Σ_U (m_j + D) + (i − d) D.

No term m_j + D is negative, so the sum over U is at most the sum over all edits of that over the runs that each of them
concerns. Hence the costs again add up: a substitution of token p costs at most Σ (m_j + D) over the k runs with p, its
deletion D less, and an insertion at most D and the largest Σ (m_j + D) over the k − 1 runs that span a gap. For k = 1
these are the costs above. For larger k they are upper bounds, since neighbouring edits share runs, and since the runs
of a text overlap, so that few texts have the worst ones. The radius is sound, not complete; permutations are not
covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.threat import Threat

LARGEST_SUM = 2**62  # of the costs of all edits that are looked at
MOST_CELLS = 2**24  # of a frontier
ANY_EDIT = Threat("edit")


@dataclass(frozen=True)
class TokenEdit:
    """One edit of a worst case: "del" or "sub" of the token at a position, or "ins", at no position in particular."""

    operation: str
    position: int | None = None


@dataclass(frozen=True, eq=False)
class Margin:
    """The margin of the answer over one rival class: what it can lose, and what each edit costs it.

    Attributes:
        slack: the largest loss of margin after which the answer still wins.
        insertion: the largest loss by an inserted token, D >= 0.
        deletion: the loss by the deletion of each token that the attacker can touch, shape (touchable,).
        substitution: the loss by the worst substitution of each of these tokens, shape (touchable,).
    """

    slack: int
    insertion: int
    deletion: IntArray
    substitution: IntArray

    def costs(self, threat: Threat) -> IntArray:
        """The loss by the worst edit of each token that can be touched, at least 0, shape (touchable,)."""
        costs = np.zeros_like(self.deletion)
        if threat.deletes:
            np.maximum(costs, self.deletion, out=costs)
        if threat.substitutes:
            np.maximum(costs, self.substitution, out=costs)
        return costs

    def radius(self, threat: Threat, limit: int) -> int:
        """The largest number of edits, at most ``limit``, that cannot cost more than the slack.

        Sound and complete: if it is below ``limit``, some text that many edits and one more away has another answer,
        provided that tokens with the costs ``insertion`` and ``substitution`` exist. For runs of tokens sound only.
        """
        if self.slack < 0:
            return -1
        costs, repeated = self.costs(threat), self.insertion if threat.inserts else 0
        sums = _cumulative(np.sort(costs[costs > repeated])[::-1])
        edits = int(np.searchsorted(sums, self.slack, side="right")) - 1
        if edits == len(sums) - 1:  # all tokens that cost more than an insertion
            edits = edits + (self.slack - int(sums[-1])) // repeated if repeated else limit
        return min(edits, limit)

    def character_radius(self, limit: int) -> int:
        """The largest number of character edits, at most ``limit``, that cannot cost more than the slack.

        For words that are split at white space. One character edit takes out of the multiset of words and puts into it

        - a word and a word: a character changes within a word, or white space beside it becomes part of it;
        - a word and 2 words: white space enters a word; or 2 words and a word: the only white space between them goes;
        - no word and a word: a character between white space; or a word and no word: the only character of a word goes.

        Each of these is contained in (1 out, 2 in) or (2 out, 1 in). So after r edits, of which a are of the first
        kind, at most 2r − a words are out and at most r + a are in: r of either, and r more of any mix. The loss is
        at most the r largest deletions and r insertions, and for each of the next r deletions the larger one of it and
        an insertion. Sound, not complete: few words are a character apart, and few pairs of words are neighbours.

        Table of synonyms or not, the attacker is assumed to write any word.
        """
        falling = np.sort(np.maximum(self.deletion, 0))[::-1]
        removed, raised = _cumulative(falling), _cumulative(np.maximum(falling, self.insertion))
        r, last = np.arange(len(removed)), len(falling)
        beyond = np.maximum(2 * r - last, 0)  # edits behind the last token, each of which costs an insertion
        losses = removed + r * self.insertion + raised[np.minimum(2 * r, last)] + beyond * self.insertion - raised
        edits = int(np.searchsorted(losses, self.slack, side="right")) - 1
        if edits == last:  # from here on, an edit costs two insertions
            edits = edits + (self.slack - int(losses[-1])) // (2 * self.insertion) if self.insertion else limit
        return min(edits, limit)

    def joint_loss(self, deletions: int, substitutions: int) -> IntArray:
        """The largest loss by d deletions and s substitutions, for all d and s up to these, shape (d + 1, s + 1).

        Exact where any token may replace any other: the s largest are substituted, the d next ones deleted. With a
        table of synonyms it is an upper bound, which counts a token as deleted and as substituted.
        """
        d, s = np.arange(deletions + 1)[:, None], np.arange(substitutions + 1)
        removed = _cumulative(np.sort(np.maximum(self.deletion, 0))[::-1])
        replaced = _cumulative(np.sort(np.maximum(self.substitution, 0))[::-1])
        last = len(removed) - 1
        if (self.substitution - self.deletion == self.insertion).all():  # the worst token may replace every token
            return replaced[np.minimum(s, last)] + removed[np.minimum(d + s, last)] - removed[np.minimum(s, last)]
        return np.asarray(replaced[np.minimum(s, last)] + removed[np.minimum(d, last)])

    def worst_edits(self, threat: Threat, edits: int) -> list[TokenEdit]:
        """The edits with the largest loss, at most ``edits`` of them; edits that cost nothing are left out."""
        costs = self.costs(threat)
        order = np.argsort(-costs, kind="stable")[:edits]
        least = self.insertion if threat.inserts else 0
        is_substituted = threat.substitutes & (self.substitution >= costs)
        chosen = [TokenEdit("sub" if is_substituted[i] else "del", int(i)) for i in order if costs[i] > least]
        return chosen + [TokenEdit("ins")] * (edits - len(chosen) if least > 0 else 0)


def answer(totals: IntArray) -> int:
    """The class with the largest total score; the lowest class number on a tie."""
    return int(np.argmax(totals))


def margins(
    scores: IntArray,
    offsets: IntArray,
    answer: int,
    reach: IntArray,
    *,
    touchable: BoolArray | None = None,
    replacements: IntArray | None = None,
    rounding: int = 0,
    ngram: int = 1,
) -> list[Margin]:
    """The margins of the answer over every other class, in the order of the classes.

    Args:
        scores: the scores of the tokens, shape (tokens, classes); of runs, shape (tokens + ngram − 1, classes).
        offsets: what is added to them, shape (classes,).
        answer: the class number of the answer.
        reach: the largest score for each class minus the score for the answer that a token of the attacker can have,
            shape (classes,).
        touchable: which tokens the attacker can edit, shape (tokens,); None for all.
        replacements: the same as ``reach`` for the tokens that may replace each token, shape (tokens, classes); None
            if all tokens may. A token is replaced once: a synonym of a synonym is no synonym.
        rounding: how far the difference of two scores may be from the true one; the certificate holds for all of them.
        ngram: the number k of neighbouring tokens that have a score together.
    """
    tokens, classes = scores.shape
    totals = offsets + scores.sum(axis=0)

    def margin(rival: int) -> Margin:
        lost, worst = scores[:, answer] - scores[:, rival] + rounding, max(int(reach[rival]), 0)
        inserted = worst + int(of_tokens(lost + worst, ngram - 1).max(initial=0)) if ngram > 1 else worst
        lost = of_tokens(lost + worst, ngram) - worst if ngram > 1 else lost
        replaced = lost + (int(reach[rival]) if replacements is None else replacements[:, rival] + rounding)
        if touchable is not None:
            lost, replaced = lost[touchable], replaced[touchable]
        # The lower class number wins a tie: a rival below the answer may not even reach it.
        slack = int(totals[answer] - totals[rival]) - (rival < answer) - rounding * (tokens + 1)
        return Margin(slack, inserted, lost, replaced)

    return [margin(rival) for rival in range(classes) if rival != answer]


def check_sums(tokens: int, *scores: IntArray | None, ngram: int = 1) -> None:
    """Raise ValueError if the cost of edits could exceed 64 bits.

    Args:
        tokens: the number of tokens of a text.
        scores: all scores, offsets and reaches, as `margins` takes them.
        ngram: as `margins` takes it.
    """
    largest = max(max(int(a.max(initial=0)), -int(a.min(initial=0))) for a in scores if a is not None)
    if 8 * ngram * largest * (tokens + 2 + ANY_EDIT.search_limit(tokens)) > LARGEST_SUM:
        raise ValueError(
            f"scores must be small enough for sums of 64 bits, got {largest} with {tokens} tokens: divide all scores, "
            "offsets and bounds by the same number"
        )


def radius(rivals: Sequence[Margin], threat: Threat, length: int) -> int:
    """The largest number of edits of the threat model that cannot change the answer; −1 if the answer is not certain.

    Without insertions, at most the length of the input, beyond which there are no more texts; with them, at most
    `Threat.search_limit`.
    """
    return min(rival.radius(threat, threat.search_limit(length)) for rival in rivals)


def character_radius(rivals: Sequence[Margin], length: int) -> int:
    """The number of character edits that cannot change the answer of a classifier of words at white space."""
    return min(rival.character_radius(ANY_EDIT.search_limit(length)) for rival in rivals)


def frontier(rivals: Sequence[Margin], threat: Threat, length: int) -> list[tuple[int, int, int]]:
    """The maximal triples (deletions, insertions, substitutions) that cannot change the answer together.

    Complete where any token may replace any other, see `Margin.joint_loss`. Triples that take more tokens than the
    attacker can touch are left out.

    Returns:
        The triples in increasing order; an empty list if the answer is not certain.
    """
    alone = {op: radius(rivals, Threat([op]), length) if op in threat.ops else 0 for op in ("del", "ins", "sub")}
    if min(alone.values()) < 0 or min(rival.slack for rival in rivals) < 0:
        return []
    touchable = len(rivals[0].deletion)
    deletions, substitutions = min(alone["del"], touchable), min(alone["sub"], touchable)
    if (deletions + 1) * (substitutions + 1) > MOST_CELLS:
        raise ValueError(
            f"the frontier of {deletions} deletions by {substitutions} substitutions has over {MOST_CELLS} cells, "
            "which is too many: leave out one of the two operations"
        )
    most = np.full((deletions + 1, substitutions + 1), alone["ins"])  # insertions beside d deletions, s substitutions
    for rival in rivals:
        left = rival.slack - rival.joint_loss(deletions, substitutions)
        beside = left // rival.insertion if rival.insertion and threat.inserts else np.where(left < 0, -1, alone["ins"])
        np.minimum(most, np.maximum(beside, -1), out=most)
    most[np.add.outer(np.arange(deletions + 1), np.arange(substitutions + 1)) > touchable] = -1
    beyond = np.pad(most, ((0, 1), (0, 1)), constant_values=-1)
    maximal = (most >= 0) & (most > beyond[1:, :-1]) & (most > beyond[:-1, 1:])
    return [(int(d), int(most[d, s]), int(s)) for d, s in zip(*np.nonzero(maximal), strict=True)]


def _cumulative(values: IntArray) -> IntArray:
    """0 and the sums of the first values, shape (values + 1,)."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def of_tokens(values: IntArray, ngram: int) -> IntArray:
    """The sum of the values of the runs that each token is in, shape (runs − ngram + 1,)."""
    sums = _cumulative(values)
    return np.asarray(sums[ngram:] - sums[: len(sums) - ngram])
