"""Self-test of a model of subword ids: do the scores of a copy depend on the copy alone?

A certificate rests on the promise that the answer to a copy is a function of the copy. Padding, the other copies in a
batch, their order and what the model has read earlier must not change it. Some architectures break this promise:
without an attention mask padding is content, quantisation by batch lets copies influence each other, and some models
switch their attention after a short text. The test scores random copies of many lengths alone, again after all others,
in batches of equal length, and in padded batches, up to the largest that will be used. Its outcome decides which copies
may share a batch, and how close two scores have to be for a copy to be scored again alone. The copies are drawn from
the hash of the model. They are samples, not a proof: a model that reacts to rare ids, or fails rarely, passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import IntArray

# Rounding moves a score by less than this share of the range of scores: 1e-6 in float32, on all models tried. What a
# score depends on moves it by 1e-2 and more.
ROUNDING = 1e-4
# Two scores that each move by a shift change their difference by twice as much. The rest is for copies not tried.
SHIFTS_IN_MARGIN = 8
UNKNOWN_LIMIT = 512  # ids up to which a model without a stated limit is tried
KNOWN_COPIES = 3  # of each length that are scored alone, and one of long ones, which take time
LONG = 100
GROWTH = 2.62  # of the lengths that are tried

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

    ids: IntArray
    special: Sequence[int]
    prefix: Sequence[int]
    suffix: Sequence[int]
    limit: int | None

    def text(self, copy: IntArray) -> IntArray:
        """The ids between prefix and suffix."""
        return copy[len(self.prefix) : len(copy) - len(self.suffix)]

    def copy(self, length: int, rng: np.random.Generator, special: int | None = None) -> IntArray:
        """A random copy with ``length`` ids of text; ``special`` takes the place of one of them."""
        inner = rng.choice(self.ids, length)
        if special is not None:
            inner[rng.integers(length)] = special
        return np.array([*self.prefix, *inner, *self.suffix], dtype=np.int64)

    def lengths(self, budget: int) -> list[int]:
        """Numbers of ids of text up to the limit, odd and even, as long as two copies share a batch.

        Of longer copies, which are scored alone, there are two lengths: about the middle, and the limit.
        """
        ends = len(self.prefix) + len(self.suffix)
        most = (UNKNOWN_LIMIT if self.limit is None else self.limit) - ends
        shared = min(max(budget // 2 - ends, 1), most)
        lengths, length = {shared, most}, 1
        while length < shared:
            lengths.add(length)
            length = round(GROWTH * length)
        if most > 2 * shared:
            lengths.add(round((shared * most) ** 0.5))
        return sorted(lengths)


def self_test(
    score: Score, probes: Probes, *, budget: int, margin: float, pads: bool, name: str, model_hash: str = ""
) -> SelfTest:
    """Test a model; ValueError if its answer to a copy depends on more than the copy even when it is read alone.

    Args:
        score: scores of a batch of copies, a row each; it pads them if their lengths differ.
        probes: the ids that copies consist of.
        budget: the largest number of ids in a batch of several copies.
        margin: the least margin.
        pads: whether copies may be padded.
        name: the name of the model in messages.
        model_hash: its fingerprint, which seeds the copies.
    """
    seed = hashlib.blake2b(model_hash.encode(), digest_size=8).digest()
    rng = np.random.Generator(np.random.Philox(int.from_bytes(seed, "little")))
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
    ascending = sorted(range(len(copies)), key=lambda number: len(copies[number]))
    again = {number: score([copies[number]])[0] for number in ascending}
    repeated = max(_shift(again[number], alone[number]) for number in ascending)
    if repeated > tolerance:
        raise ValueError(
            f"model {name} must give a copy the same scores whenever it reads it: they differ by up to {repeated:.2g} "
            "once it has read other copies, so no certificate would hold: use another architecture or other settings "
            "(for BigBird, attention_type='original_full')"
        )
    sharing = [number for number in ascending if 2 * len(copies[number]) <= budget]
    special = [number for number in sharing if np.isin(probes.text(copies[number]), probes.special).any()]
    plain = [number for number in sharing if number not in special]
    shifts: dict[str, float | None] = {"equal": None, "padded": None}
    for level in ("equal", "padded") if pads else ("equal",):
        if plain and (level == "equal" or _within(shifts["equal"], tolerance)):
            shifts[level] = max(
                _largest_shift(score, alone, _batches(copies, plain, probes, budget, rng, level)),
                _largest_shift(score, alone, _batches(copies, special, probes, budget, rng, level), may_fail=True),
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
        longest_shared=max((len(copies[number]) for number in plain), default=0),
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
    batches: Iterable[tuple[list[IntArray], Mapping[int, int]]],
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


def _batches(
    copies: list[IntArray], known: list[int], probes: Probes, budget: int, rng: np.random.Generator, level: str
) -> Iterator[tuple[list[IntArray], Mapping[int, int]]]:
    """For each length a batch of two and the largest that will be used: known copies among random ones, in any order.

    In equal batches all copies have this length, in padded ones it is that of the longest copy.
    """
    ends = len(probes.prefix) + len(probes.suffix)
    for longest in sorted({len(copies[number]) for number in known}):
        exact = [number for number in known if len(copies[number]) == longest]
        shorter = [number for number in known if level == "padded" and len(copies[number]) < longest]
        shorter = rng.permutation(np.array(shorter, dtype=np.int64)).tolist()
        for size in {2, max(2, budget // longest)}:
            chosen = [*exact[:1], *shorter, *exact[1:]][:size]
            most = max(longest - ends, 0)
            least = most if level == "equal" else min(most, 0 if ends else 1)
            lengths = rng.integers(least, most, size - len(chosen), endpoint=True)
            rows = [copies[number] for number in chosen] + [probes.copy(int(length), rng) for length in lengths]
            order = rng.permutation(size).tolist()
            places = {row: chosen[number] for row, number in enumerate(order) if number < len(chosen)}
            yield [rows[number] for number in order], places
