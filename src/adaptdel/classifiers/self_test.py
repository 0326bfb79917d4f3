"""Self-test of a model of subword ids: do the scores of a copy depend on the copy alone?

A certificate rests on the promise that the answer to a copy is a function of the copy. Padding, the other copies in a
batch, their order and what the model has read earlier must not change it. Some architectures break this promise:
without an attention mask padding is content, quantisation by batch lets copies influence each other, and some models
switch their attention after a short text. The test scores random copies of many lengths alone, again after all others,
in batches of equal length, and in padded batches. Its outcome decides which copies may share a batch, and how close two
scores have to be for a copy to be scored again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray

BATCHING = ("padded", "equal", "alone")  # from the fastest to the strictest
# Rounding moves a score by less than this share of the range of scores: 1e-6 in float32, on all models tried. What a
# score depends on moves it by 1e-2 and more.
ROUNDING = 1e-4
# Two scores that each move by a shift change their difference by twice as much. The rest is for copies not tried.
SHIFTS_IN_MARGIN = 8
UNKNOWN_LIMIT = 512  # ids up to which a model without a stated limit is tried
KNOWN_COPIES = 3  # of each length that are scored alone, and one of long ones, which take time
LONG = 100
BATCH_ROWS = 16
BATCH_IDS = 1024

Scores = npt.NDArray[Any]
Score = Callable[[Sequence[IntArray]], Scores]


@dataclass(frozen=True)
class SelfTest:
    """The outcome of a self-test.

    Attributes:
        batching: which copies may share a batch: "padded" (any), "equal" (those of equal length) or "alone" (none).
        margin: copies whose two best scores are closer than this are scored again alone.
        scale: the difference between the largest and the smallest score.
        repeated: the largest change of a score when a copy is scored again, alone, after others.
        equal: the same in batches of copies of equal length; None if not tried, infinity if such batches fail.
        padded: the same in padded batches.
        longest: the number of ids of the longest copy that was tried.
        longest_shared: that of the longest copy that was tried in a batch with others; longer ones are scored alone.
        copies: the number of copies that were compared.
        model_hash: the fingerprint of the model that was tested.
    """

    batching: str
    margin: float
    scale: float
    repeated: float
    equal: float | None
    padded: float | None
    longest: int
    longest_shared: int
    copies: int
    model_hash: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a batch that fails has the shift "fails"."""
        shifts = {name: "fails" for name in ("equal", "padded") if getattr(self, name) == np.inf}
        return asdict(self) | shifts


@dataclass(frozen=True)
class Probes:
    """The ids that random copies consist of.

    Attributes:
        ids: ids that occur in texts.
        special: ids of special tokens, which a text may contain too.
        prefix: ids before the text.
        suffix: ids after it.
        limit: the largest number of ids of an input of the model, or None if no limit is stated.
    """

    ids: Sequence[int]
    special: Sequence[int]
    prefix: Sequence[int]
    suffix: Sequence[int]
    limit: int | None

    def text(self, copy: IntArray) -> IntArray:
        """The ids between prefix and suffix."""
        return copy[len(self.prefix) : len(copy) - len(self.suffix)]

    def copy(self, length: int, rng: np.random.Generator, special: int | None = None) -> IntArray:
        """A random copy with ``length`` ids of text; ``special`` takes the place of one of them."""
        inner = rng.choice(np.asarray(self.ids, dtype=np.int64), length)
        if special is not None:
            inner[rng.integers(length)] = special
        return np.array([*self.prefix, *inner, *self.suffix], dtype=np.int64)

    def lengths(self, budget: int) -> list[int]:
        """Numbers of ids of text up to the limit: Fibonacci's, odd and even, as long as two copies share a batch.

        Of longer copies, which are scored alone, there are two lengths: about the middle, and the limit.
        """
        ends = len(self.prefix) + len(self.suffix)
        most = (UNKNOWN_LIMIT if self.limit is None else self.limit) - ends
        shared = min(max(budget // 2 - ends, 1), most)
        lengths, following = {1, shared, most}, 2
        last = 1
        while following < shared:
            lengths.add(following)
            last, following = following, last + following
        if most > 2 * shared:
            lengths.add(round((shared * most) ** 0.5))
        return sorted(lengths)


def self_test(
    score: Score, probes: Probes, *, budget: int, margin: float, allowed: Sequence[str], name: str, model_hash: str = ""
) -> SelfTest:
    """Test a model; ValueError if its answer to a copy depends on more than the copy even when it is read alone.

    Args:
        score: scores of a batch of copies, a row each; it pads them if their lengths differ.
        probes: the ids that copies consist of.
        budget: the largest number of ids in a batch of several copies.
        margin: the least margin.
        allowed: what may be tried, out of `BATCHING`, besides "alone".
        name: the name of the model in messages.
        model_hash: its fingerprint.
    """
    rng = np.random.Generator(np.random.Philox(0))
    lengths = probes.lengths(budget)
    copies = [probes.copy(0, rng)] if probes.prefix or probes.suffix else []
    for length in lengths:
        shares = 2 * (length + len(probes.prefix) + len(probes.suffix)) <= budget
        copies += [probes.copy(length, rng) for _ in range(KNOWN_COPIES if shares and length <= LONG else 1)]
    copies += [probes.copy(min(length, lengths[-1]), rng, special) for special in probes.special for length in (1, 4)]
    copies, alone = _alone(score, copies, name)
    finite = np.concatenate([scores[np.isfinite(scores)] for scores in alone])
    scale = float(np.ptp(finite)) if finite.size else 0.0
    tolerance = ROUNDING * scale
    ascending = sorted(range(len(copies)), key=lambda place: len(copies[place]))
    again = {place: score([copies[place]])[0] for place in ascending}
    repeated = max(_shift(again[place], alone[place]) for place in ascending)
    if repeated > tolerance:
        raise ValueError(
            f"model {name} must give a copy the same scores whenever it reads it: they differ by up to {repeated:.2g} "
            "once it has read other copies, so no certificate would hold: use another architecture, or settings that "
            "make it a function of its input (for BigBird, attention_type='original_full')"
        )
    sharing = [place for place in ascending if 2 * len(copies[place]) <= budget]
    special = {place for place in sharing if np.isin(probes.text(copies[place]), probes.special).any()}
    plain = [place for place in sharing if place not in special]
    short = [place for place in sharing if len(copies[place]) <= LONG]
    shifts: dict[str, float | None] = {"equal": None, "padded": None}
    if plain and "equal" in allowed:
        shifts["equal"] = max(
            _largest_shift(score, alone, _equal_batches(copies, plain, probes, budget, rng)),
            _largest_shift(score, alone, _equal_batches(copies, sorted(special), probes, budget, rng), may_fail=True),
        )
    if plain and "padded" in allowed and (shifts["equal"] is None or shifts["equal"] <= tolerance):
        shifts["padded"] = max(
            _largest_shift(score, alone, _padded_batches(copies, plain, budget, rng)),
            _largest_shift(score, alone, _padded_batches(copies, short, budget, rng), may_fail=True),
        )
    batching = next((level for level in ("padded", "equal") if _within(shifts[level], tolerance)), "alone")
    largest = max([repeated, *(shift for shift in shifts.values() if shift is not None and _within(shift, tolerance))])
    return SelfTest(
        batching=batching,
        margin=max(margin, SHIFTS_IN_MARGIN * largest),
        scale=scale,
        repeated=repeated,
        **shifts,
        longest=max(map(len, copies)),
        longest_shared=max((len(copies[place]) for place in plain), default=0),
        copies=len(copies),
        model_hash=model_hash,
    )


def _within(shift: float | None, tolerance: float) -> bool:
    return shift is not None and shift <= tolerance


def _shift(scores: Scores, reference: Scores) -> float:
    """The largest change of a score; infinity if a number became NaN or the other way round."""
    if scores.shape != reference.shape:
        return np.inf
    difference = np.where(scores == reference, 0.0, np.abs(scores.astype(np.float64) - reference))
    difference = np.where(np.isnan(scores) & np.isnan(reference), 0.0, difference)
    return float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0))


def _alone(score: Score, copies: list[IntArray], name: str) -> tuple[list[IntArray], list[Scores]]:
    """The scores of each copy alone, long copies first; copies that the model fails on are left out."""
    kept: list[IntArray] = []
    scores: list[Scores] = []
    failure: Exception | None = None
    for row in sorted(copies, key=len, reverse=True):
        try:
            scores.append(score([row])[0])
            kept.append(row)
        except Exception as error:
            failure = failure or error
    if failure is not None and 2 * len(kept) < len(copies):
        first = (str(failure).splitlines() or [""])[0]
        raise ValueError(
            f"model {name} must read copies of any length, each alone: it failed on {len(copies) - len(kept)} of "
            f"{len(copies)}, first with {type(failure).__name__}: {first}"
        ) from failure
    return kept, scores


def _largest_shift(
    score: Score,
    alone: list[Scores],
    batches: list[tuple[list[IntArray], Mapping[int, int]]],
    *,
    may_fail: bool = False,
) -> float:
    """The largest change of a score in batches, each with the places of known copies by row.

    A batch that fails counts as an infinite change, unless batches may fail: those with special tokens in the text, as
    some models want equally many of them in every row. Copies of a batch that fails are read alone.
    """
    largest = 0.0
    for rows, known in batches:
        try:
            scores = score(rows)
        except Exception:
            if may_fail:
                continue
            return np.inf
        largest = max([largest, *(_shift(scores[row], alone[place]) for row, place in known.items())])
    return largest


def _equal_batches(
    copies: list[IntArray], sharing: list[int], probes: Probes, budget: int, rng: np.random.Generator
) -> list[tuple[list[IntArray], Mapping[int, int]]]:
    """Batches of equal length: the known copies among random ones, in two orders and of different sizes."""
    by_length: dict[int, list[int]] = {}
    budget = min(budget, BATCH_IDS)
    for place in sharing:
        by_length.setdefault(len(copies[place]), []).append(place)
    batches: list[tuple[list[IntArray], Mapping[int, int]]] = []
    for length, places in by_length.items():
        rows = max(2, min(BATCH_ROWS, budget // length))
        inner = length - len(probes.prefix) - len(probes.suffix)
        for size, chosen in ((rows, places[:rows]), (2, places[-1:]))[: 2 if length <= LONG else 1]:
            fill = [probes.copy(inner, rng) for _ in range(size - len(chosen))]
            order = rng.permutation(size)
            batch = [(fill + [copies[place] for place in chosen])[number] for number in order]
            first = len(fill)
            known = {row: chosen[number - first] for row, number in enumerate(order.tolist()) if number >= first}
            batches.append((batch, known))
    return batches


def _padded_batches(
    copies: list[IntArray], sharing: list[int], budget: int, rng: np.random.Generator
) -> list[tuple[list[IntArray], Mapping[int, int]]]:
    """Batches of different lengths: each beside the next longer one, the shortest beside the longest, and together."""
    if not sharing:
        return []
    by_length = {len(copies[place]): place for place in sharing}
    steps = [by_length[length] for length in sorted(by_length)]
    groups = [list(pair) for pair in pairwise(steps)]
    groups.append([steps[0], steps[-1]])
    short = [place for place in sharing if len(copies[place]) <= LONG]
    for order in (short, rng.permutation(short).tolist()):
        group: list[int] = []
        for place in order:
            longest = max(len(copies[other]) for other in [*group, place])
            if group and (len(group) + 1) * longest > min(budget, BATCH_IDS):
                groups.append(group)
                group = []
            group.append(place)
        groups.append(group)
    return [([copies[place] for place in group], dict(enumerate(group))) for group in groups if group]
