"""Padding-proof detection: the best segment of a text, and how many edits it withstands no matter what else is added.

Every token has an integer gain: its score for the protected class over the other one, less a drift. The value of a
text is that of its best run of neighbouring tokens, or 0 (the maximal scoring segment of Karlin and Altschul, 1990).
A text is flagged if its value exceeds a threshold T >= 0.

**Padding.** Whatever text stands before and behind a flagged text, its runs are runs of the longer text: it stays
flagged. Where tokens are words at white space, text that is added without white space changes the first or the last
word. So the claim about raw text is that about the text without these two words (`gains[1:-1]`).

**Edits.** `withstands` counts the edits after which a text is still flagged, with any padding. Let V_e(j) be the
smallest value that the running sum can have behind token j, if e edits were made so far and no run has exceeded T. The
running sum is floored at 0 before each token, since a run may begin there. Of two running values, the smaller one is
never worse for the attacker, because every move is monotone: the one number V_e(j) is enough. A token that the attacker
writes has a gain of at least −L. So

    keep token j        V_e(j−1)      -> max(V, 0) + gain of j, unless that exceeds T
    a `Move`            V_{e−1}(j−k)  -> V after k tokens are dropped, and w tokens of gain −L are written

and the text is still flagged after e edits if and only if V_e is not attained at the end. Padding needs no move: before
the first token the running sum is 0, as behind any padding, and what follows the last token can only add runs.
Complete where a token of gain −L is known; sound in any case.

**Insertions of any length.** An insertion of arbitrarily much text sets the running sum to 0. In raw text it may stand
in the middle of a word, which is then lost: `ANY_TEXT` drops one token and sets the running sum to 0.

**A text that is not flagged.** `keeps_off` counts the edits that cannot get it flagged, by the mirrored recursion: the
largest running value W_e(j), with tokens of gain at most G. With padding it is known only where nothing can be gained
(G <= 0): otherwise the padding itself may be flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.threat import Threat

NEVER = 2**62  # a running value that is not attained
WINDOW = 512  # tokens of a text that `least_values` looks at together
MOST_STEPS = 2**24  # of tokens times edits: a larger radius is not looked for


@dataclass(frozen=True)
class Move:
    """An edit: ``dropped`` neighbouring tokens are replaced by ``written`` others.

    With ``resets``, by any number of others, which set the running sum to 0.
    """

    name: str
    dropped: int
    written: int
    resets: bool = False


DELETION, INSERTION, SUBSTITUTION = Move("del", 1, 0), Move("ins", 0, 1), Move("sub", 1, 1)
ANY_TEXT = Move("text", 1, 0, resets=True)  # any text that stands in the middle of a word
# An edited character changes a word, splits one or merges two; a word of one character it can also write or delete.
CHARACTER_MOVES = (DELETION, INSERTION, SUBSTITUTION, Move("split", 1, 2), Move("merge", 2, 1))


def moves_of(threat: Threat, *, any_text: bool = False) -> tuple[Move, ...]:
    """The moves of an attacker; with ``any_text``, an insertion of any length is one edit."""
    operations = {"del": DELETION, "ins": ANY_TEXT if any_text else INSERTION, "sub": SUBSTITUTION}
    return tuple(operations[op] for op in threat.ops)


def best_segment(gains: IntArray) -> tuple[int, int, int]:
    """The value of the best run of neighbouring tokens, and where it begins and ends (exclusive); 0 for the empty run.

    >>> best_segment(np.array([1, -5, 3, 2, -1, 4, -9]))
    (8, 2, 6)
    """
    sums = np.concatenate([[0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    return int(sums[end] - lowest[end]), int(np.argmax(sums[: end + 1] == lowest[end])), end


def withstands(gains: IntArray, threshold: int, loss: int, moves: Sequence[Move], limit: int | None = None) -> int:
    """The largest number of edits after which a text is still flagged, no matter what stands before and after it.

    Args:
        gains: of the tokens, shape (tokens,).
        threshold: the value that a flagged text exceeds, at least 0.
        loss: L: a token that the attacker writes has a gain of at least −L.
        moves: what counts as one edit.
        limit: the largest number to look for; None for as many as `MOST_STEPS` allows.

    Returns:
        −1 if the text is not flagged at all.

    >>> gains = np.array([3, 3, -1, 3, 3])
    >>> [withstands(gains, 4, 5, [move]) for move in (SUBSTITUTION, DELETION, ANY_TEXT)]
    [1, 2, 1]
    """
    if best_segment(gains)[0] <= threshold:
        return -1
    most = max(1, MOST_STEPS // max(1, len(gains)))
    most, rounds = most if limit is None else min(limit, most), 0
    values = _kept(gains.tolist(), [NEVER] * len(gains), 0, threshold)
    while rounds < most:
        arrivals, first = _arrivals(values, loss, moves)
        following = _kept(gains.tolist(), arrivals[1:].tolist(), first, threshold)
        if following[-1] < NEVER:
            return rounds
        if (following == values).all():  # no further edit gains anything
            return most
        values, rounds = following, rounds + 1
    return rounds


def _kept(gains: list[int], arrivals: list[int], first: int, threshold: int) -> IntArray:
    """V_e behind each token and before the first, shape (tokens + 1,); ``arrivals`` are the values behind an edit."""
    value, values = first, [first]
    for gain, arrival in zip(gains, arrivals, strict=True):
        value = gain if value <= 0 else value + gain
        if value > threshold:
            value = NEVER
        if arrival < value:
            value = arrival
        values.append(value)
    return np.array(values, dtype=np.int64)


def _arrivals(values: IntArray, loss: int, moves: Sequence[Move]) -> tuple[IntArray, int]:
    """The smallest values behind one more edit, by the token that it ends at; and before the first token."""
    arrivals = np.full(len(values), NEVER, dtype=np.int64)
    for move in moves:
        before = values[: len(values) - move.dropped] if move.dropped else values
        is_attained = before < NEVER
        after = np.zeros_like(before) if move.resets else before
        for _ in range(move.written):
            after = np.maximum(after, 0) - loss
        after = np.where(is_attained, np.minimum(after, before) if move.resets else after, NEVER)
        np.minimum(arrivals[move.dropped :], after, out=arrivals[move.dropped :])
    return arrivals, int(min(arrivals[0], 0))


def keeps_off(gains: IntArray, threshold: int, gain: int, moves: Sequence[Move], limit: int | None = None) -> int:
    """The largest number of edits that cannot get a text flagged that is not flagged; −1 if it is flagged.

    ``gain`` is the largest gain of a token that the attacker writes. Moves of any length are refused: text that is
    flagged by itself is inserted by one of them, unless nothing can be gained.

    >>> gains = np.array([2, -9, 2])
    >>> keeps_off(gains, 4, 3, [SUBSTITUTION]), keeps_off(gains, 4, 3, [DELETION], limit=3)
    (0, 3)
    """
    if best_segment(gains)[0] > threshold:
        return -1
    if any(move.resets for move in moves):
        if gain > 0:
            return 0
        moves = [Move(move.name, move.dropped, 0) if move.resets else move for move in moves]
    most = max(1, MOST_STEPS // max(1, len(gains)))
    most, rounds = most if limit is None else min(limit, most), 0
    values, plain = _highest(gains, np.zeros(len(gains) + 1, dtype=np.int64)), max(gain, 0)
    while rounds < most:
        arrivals = np.zeros(len(values), dtype=np.int64)
        for move in moves:
            before = np.maximum(values[: len(values) - move.dropped], 0) + plain * move.written
            np.maximum(arrivals[move.dropped :], before, out=arrivals[move.dropped :])
        if arrivals.max() > threshold:
            return rounds
        following = _highest(gains, arrivals)
        if following.max() > threshold:
            return rounds
        if (following == values).all():  # no further edit gains anything
            return most
        values, rounds = following, rounds + 1
    return rounds


def _highest(gains: IntArray, arrivals: IntArray) -> IntArray:
    """W_e behind each token, shape (tokens + 1,): the largest value of a run that ends there, or arrives by an edit."""
    sums = np.concatenate([[0], np.cumsum(gains)])
    # a run from an arrival at i has the value arrivals[i] + sums[j] − sums[i]: the best start is a running maximum
    return np.asarray(sums + np.maximum.accumulate(np.maximum(arrivals, 0) - sums))


def positions(gains: IntArray, threshold: int, *, glued: bool = True) -> int:
    """The number of positions that withstand insertions of any length, with any padding; −1 if the text is not flagged.

    Without ``glued``, insertions stand between words: one less than the largest number of disjoint runs above the
    threshold.

    >>> gains = np.array([3, 3, -1, 3, 3, -1, 3, 3])
    >>> positions(gains, 5), positions(gains, 5, glued=False)
    (2, 2)
    """
    move = ANY_TEXT if glued else Move("text", 0, 0, resets=True)
    return withstands(gains, threshold, 0, [move])


def witness(gains: IntArray, threshold: int, loss: int, moves: Sequence[Move], edits: int) -> list[tuple[str, int]]:
    """The fewest edits that get a text unflagged, as (name of the move, token where it begins); [] above ``edits``.

    An insertion stands before the token. The edits are in the order of the tokens.
    """
    levels = [_kept(gains.tolist(), [NEVER] * len(gains), 0, threshold)]
    while levels[-1][-1] == NEVER:
        if len(levels) > edits:
            return []
        arrivals, first = _arrivals(levels[-1], loss, moves)
        levels.append(_kept(gains.tolist(), arrivals[1:].tolist(), first, threshold))
    found: list[tuple[str, int]] = []
    level, token = len(levels) - 1, len(gains)
    while level:
        value = int(levels[level][token])
        earlier = int(levels[level][token - 1]) if token else NEVER
        if earlier < NEVER and max(earlier, 0) + gains[token - 1] == value <= threshold:  # the token was kept
            token -= 1
            continue
        for move in moves:
            if token < move.dropped:
                continue
            before = int(levels[level - 1][token - move.dropped])
            after = min(before, 0) if move.resets else before
            for _ in range(move.written):
                after = max(after, 0) - loss
            if before < NEVER and (after == value or (token == 0 and after <= value)):
                found.append((move.name, token - move.dropped))
                level, token = level - 1, token - move.dropped
                break
        else:  # before the first token, where one edit fewer is as good
            level -= 1
    return found[::-1]


def best_values(gains: IntArray, lengths: IntArray) -> IntArray:
    """The value of the best segment of many texts, whose gains stand one behind the other, shape (texts,).

    >>> best_values(np.array([1, -5, 3, 2, -1, 4, -9, -1, 7]), np.array([7, 0, 2]))
    array([8, 0, 7])
    """
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])  # of each text, behind a token without a gain
    padded = np.zeros(len(gains) + len(lengths), dtype=np.int64)
    padded[np.arange(len(gains)) + np.repeat(np.arange(len(lengths)), lengths) + 1] = gains
    # each text is moved below all earlier ones, so that the running minimum begins again
    drops = 2 * np.add.reduceat(np.abs(padded), starts) + 1
    sums = np.cumsum(padded) - np.repeat(np.cumsum(drops) - drops, lengths + 1)
    return np.asarray(np.maximum.reduceat(sums - np.minimum.accumulate(sums), starts))


def least_values(gains: IntArray, lengths: IntArray, losses: IntArray, edits: int, steps: int) -> IntArray:
    """What the value of the best segment is at least after edits of any kind, shape (rows, texts); many texts at once.

    A text is flagged after these edits, with any padding, if that value exceeds the threshold. Found by bisection, up
    to the 2**``steps``-th part of the value. Of a text of more than `WINDOW` tokens the best of its windows counts: a
    lower bound.

    Deletions and insertions need no moves of their own. No running value is below −L, so max(V, 0) − L <= V: to write
    a token in place of another is at least as good as to delete it. And an insertion behind token j can wait until the
    next token with a gain above 0, and replace that.

    Args:
        gains: of all texts, one behind the other, shape (rows, tokens): as for several drifts.
        lengths: of the texts.
        losses: as for `withstands`, by row.
        edits: how many.
        steps: of the bisection.
    """
    order, counts, owners = _windows(lengths)
    high = np.stack([best_values(row[order], counts) for row in gains])
    if not edits:
        return np.maximum.reduceat(high, np.flatnonzero(np.diff(owners, prepend=-1)), axis=1)
    falling = np.argsort(-counts, kind="stable")
    first, sizes = (np.cumsum(counts) - counts)[falling], counts[falling]
    active = np.searchsorted(-sizes, -np.arange(1, sizes.max(initial=0) + 1), side="right")
    columns = [np.ascontiguousarray(gains[:, order[first[:number] + token]]) for token, number in enumerate(active)]
    high = high[:, falling]
    low = np.full_like(high, -1)  # flagged for certain at this threshold, and not at the high one
    for _ in range(steps):
        middle = (low + high) // 2
        stays = _stays_flagged(columns, middle, losses[:, None], edits)
        low, high = np.where(stays, middle, low), np.where(stays, high, middle)
    values = np.empty_like(low)
    values[:, falling] = low + 1
    return np.asarray(np.maximum.reduceat(values, np.flatnonzero(np.diff(owners, prepend=-1)), axis=1))


def _windows(lengths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The tokens of the windows one behind the other, how many each has, and whose they are."""
    starts, parts, owners = np.cumsum(lengths) - lengths, list[IntArray](), list[int]()
    for text, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        for begin in range(0, max(1, length - WINDOW // 2), WINDOW // 2):
            parts.append(np.arange(start + begin, start + min(begin + WINDOW, length)))
            owners.append(text)
    return np.concatenate(parts), np.array([len(part) for part in parts]), np.array(owners)


def _stays_flagged(columns: Sequence[IntArray], thresholds: IntArray, losses: IntArray, edits: int) -> BoolArray:
    """Which texts are still flagged after this many edits, at a threshold each, shape (rows, texts)."""
    values = np.zeros((edits + 1, *thresholds.shape), dtype=np.int64)
    for gains in columns:
        number = gains.shape[1]  # the texts that have this token: the longer ones stand in front
        now = values[:, :, :number]
        floored = np.maximum(now, 0)
        np.add(floored, gains, out=now)
        np.copyto(now, NEVER, where=now > thresholds[:, :number])
        np.minimum(now[1:], floored[:-1] - losses, out=now[1:])
    return np.asarray((values >= NEVER // 2).all(axis=0))
