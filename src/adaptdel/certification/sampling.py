"""Votes of a base classifier on noisy copies: selection, adaptive looks, exact enumeration.

Every input has its own random streams, keyed by the seed, its content and the phase. Its votes do not depend on the
other inputs, on their order or on how copies are batched. Certification, calibration and the examples of a report are
different phases, so their samples are independent.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Generator, Sequence
from functools import lru_cache
from math import inf, isclose, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certifier import Oracle, Steps
from adaptdel.certification.votes import AT_ONCE, EXACT_COPIES, Votes, VotesPlan
from adaptdel.classifiers.base import BaseClassifier, Prepared, Request
from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.confidence import Looks, class_bounds, clopper_pearson, exact_shares, vote_bounds
from adaptdel.core.noise import Noise
from adaptdel.core.radius import largest_radius_probability
from adaptdel.text.units import Tokens, Unit, content_key

LEAD = 3.5  # the selection ends when the first class leads by this many standard deviations of an even vote
FIRST_SHARE, LAST_SHARE = 0.15, 0.65  # of alpha, for the first and the last look
LEAST_VOTES = 16  # at the first look
EARLY_PART = 8  # if sampling may be interrupted, the first look is at this part of the votes at the latest
CALIBRATE = ("calibration select", "calibration estimate")  # phases


class VoteSteps(Steps):
    """The votes on one input in the making. `take_votes` fills it as votes come, so that it may be stopped at any time.

    Attributes:
        stage: what votes are taken for: "selection", "estimation" or "enumeration".
        label: the class number that was selected on the selection votes; −1 until it is.
        selection: the selection votes, shape (classes,); they bound nothing.
        looks: the planned looks of the estimation.
        votes: the votes at each look that was taken, each of shape (classes,).
        copies: as in `Votes`; then nothing was sampled.
        tokens: of the input, if the noise sees them.
        influence: as in `Votes`.
    """

    def __init__(self, prepared: Prepared, plan: VotesPlan, classes: int) -> None:
        self.plan, self.length = plan, len(prepared.tokens)
        self.stage, self.label = "selection", -1
        self.selection: IntArray = np.zeros(classes, dtype=np.int64)
        self.looks: Looks | None = None
        self.votes: list[IntArray] = []
        self.copies: IntArray | None = None
        self.tokens: Tokens | None = None
        self.influence: FloatArray | None = None
        self._task = take_votes(prepared, plan, self)
        self.kept = next(self._task)

    def send(self, answers: IntArray) -> bool:
        """Count the votes on the copies that waited."""
        kept, stage, finished = self.kept, self.stage, False
        try:
            self.kept = self._task.send(answers)
        except StopIteration:
            finished = True
        if self.plan.influence and stage != "selection":  # which chose the answer
            self._add_influence(kept, answers == self.label, exact=stage == "enumeration")
        return finished

    def _add_influence(self, kept: BoolArray, agrees: BoolArray, *, exact: bool) -> None:
        """Add votes to `Votes.influence`; an enumeration replaces those before it."""
        weights, before = np.ones(len(kept)), self.influence
        if exact:
            chances = self.plan.given(self.tokens).noise.choice_weights(kept.shape[1])
            weights = np.array([float(chance) for chance in chances])[kept.sum(axis=1)] * len(kept)
        pairs = np.stack([weights, weights * agrees])
        with_token = pairs @ kept
        rows = np.concatenate([with_token, pairs.sum(axis=1)[:, None] - with_token]).T
        self.influence = rows if before is None or exact else before + rows

    def evidence(self) -> Votes:
        """The votes so far; without a label that was selected, the most frequent one is the answer."""
        answer, total = self.label, int(self.selection.sum())
        if answer < 0 and total:
            answer = self.plan.predicted(self.selection.tolist(), total)
        return Votes(
            answer=answer,
            length=self.length,
            selection=tuple(self.selection.tolist()),
            looks=self.looks,
            votes=tuple(tuple(row.tolist()) for row in self.votes),
            copies=None if self.copies is None else tuple(map(tuple, self.copies.tolist())),
            tokens=self.tokens,
            influence=self.influence,
        )


def stream(seed: int, key: bytes, phase: str) -> np.random.Generator:
    """The random generator (Philox) for one phase of one input."""
    digest = hashlib.blake2b(f"{seed}/{phase}/".encode() + key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


Draws = Generator[BoolArray, IntArray, Any]


def take_votes(prepared: Prepared, plan: VotesPlan, steps: VoteSteps) -> Generator[BoolArray, IntArray, None]:
    """The votes on one input: a coroutine that yields arrays of kept tokens and is sent class numbers.

    The looks are planned before the first estimation vote. All their bounds hold together, so the looks in ``steps``
    prove what they say whenever the coroutine is stopped, even if the time of the stop depends on the votes.
    """
    length, classes = steps.length, len(steps.selection)
    plan = plan.given(prepared.tokens)
    noise, seed = plan.noise, plan.seed
    if noise.sees_tokens():
        steps.tokens = prepared.tokens
    assert seed is not None  # as it is only in files, of a secret one
    key = content_key(prepared.tokens)
    copies = noise.choices(length) if plan.enumerates else inf
    if copies <= min(plan.at_once, plan.n_select + plan.n_estimate):
        yield from _enumerate(noise, length, plan, steps)
        return
    yield from _select(noise, length, plan, stream(seed, key, plan.phases[0]), steps)
    if not plan.n_estimate:  # a prediction without a certificate
        return
    unused = plan.n_select - int(steps.selection.sum())  # selection votes are independent: the looks stay valid
    looks = plan_looks(plan, length, classes, plan.n_estimate + unused)
    steps.looks, steps.stage = looks, "estimation"
    rng = stream(seed, key, plan.phases[1])
    counts = np.zeros(classes, dtype=np.int64)
    for size in looks.sizes:
        if copies <= copies_instead(looks, len(steps.votes)):
            yield from _enumerate(noise, length, plan, steps)
            return
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        steps.votes.append(counts)
        if len(steps.votes) < len(looks.sizes) and radius_is_final(steps.votes, steps.label, looks, plan, length):
            break


def copies_instead(looks: Looks, taken: int) -> int:
    """Up to how many copies are enumerated instead of the looks that are left; 0 before the first of several."""
    done = looks.sizes[taken - 1] if taken else 0
    return min(EXACT_COPIES, looks.total - done) if taken or len(looks.sizes) == 1 else 0


def _draw(noise: Noise, length: int, size: int, rng: np.random.Generator, counts: IntArray) -> Draws:
    """Add the votes on ``size`` fresh copies to the counts."""
    for kept in noise.chunks(length, size, rng):
        answers = yield kept
        counts = counts + np.bincount(answers, minlength=len(counts))
    return counts


def _select(noise: Noise, length: int, plan: VotesPlan, rng: np.random.Generator, steps: VoteSteps) -> Draws:
    """Select the class. Sampling stops when its lead is clear; these votes bound nothing, so any rule is valid."""
    counts = steps.selection
    size = plan.n_select if plan.sampling == "fixed" else min(32, plan.n_select)
    while True:
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        steps.selection = counts
        if size >= plan.n_select or _has_clear_lead(counts.tolist(), plan.threshold):
            steps.label = plan.predicted(counts.tolist(), size)
            return
        size = min(2 * size, plan.n_select)


def _has_clear_lead(counts: Sequence[int], threshold: float | None) -> bool:
    """Whether the first class, or the side of the threshold, leads by `LEAD` standard deviations of an even vote."""
    size = sum(counts)
    if threshold is None:
        first, second = sorted(counts, reverse=True)[:2]
        lead = float(first - second)
    else:
        lead = 2 * abs(counts[1] - threshold * size)
    return lead >= LEAD * sqrt(size)


def plan_looks(plan: VotesPlan, length: int, classes: int, most: int) -> Looks:
    """The looks at up to ``most`` votes on an input of a given length, planned before the first vote.

    The first look is at the number of unanimous votes that would certify the largest possible radius; each further one
    is at twice as many votes. For long inputs the first look may be the only one, which is of no use to a plan that may
    be interrupted: there it is at an eighth of the votes at the latest.
    """
    if plan.sampling == "fixed":
        return Looks.fixed(most, plan.alpha)
    return (_cached_looks if plan.noise.cacheable else _adaptive_looks)(plan, length, classes, most)


def _adaptive_looks(plan: VotesPlan, length: int, classes: int, most: int) -> Looks:
    needed = largest_radius_probability(length, plan.noise, plan.threat, plan.threshold)
    level = plan.alpha * FIRST_SHARE
    level = level if classes == 2 else level / 2
    sizes = range(LEAST_VOTES, max(most, LEAST_VOTES))
    # The least number of unanimous votes that prove it, or all of them.
    first = LEAST_VOTES + bisect_left(sizes, needed, key=lambda size: clopper_pearson(size, size, level)[0])
    if plan.interrupted:
        first = min(first, max(LEAST_VOTES, most // EARLY_PART))
    return doubling_looks(first, most, plan.alpha)


def doubling_looks(first: int, most: int, alpha: float) -> Looks:
    """Looks at ``first`` votes, at twice as many each time and at ``most``, with the planned shares of alpha.

    >>> looks = doubling_looks(100, 1000, 0.1)
    >>> looks.sizes, [round(level, 4) for level in looks.alphas]
    ((100, 200, 400, 1000), [0.015, 0.01, 0.01, 0.065])
    """
    sizes = []
    while first * 4 <= most * 3:  # a look shortly before the last one is not worth its share of alpha
        sizes.append(first)
        first *= 2
    if not sizes:
        return Looks.fixed(most, alpha)
    middle = len(sizes) - 1
    early = [alpha * FIRST_SHARE, *([alpha * (1 - FIRST_SHARE - LAST_SHARE) / middle] * middle if middle else [])]
    last = float(np.nextafter(alpha - sum(early), 0))
    return Looks((*sizes, most), (*early, last))


_cached_looks = lru_cache(maxsize=2**13)(_adaptive_looks)


def radius_is_final(taken: Sequence[IntArray], label: int, looks: Looks, plan: VotesPlan, length: int) -> bool:
    """Whether further votes are unlikely to raise the radius: not even with a share that is a standard error better."""
    counts = taken[-1].tolist()
    size = sum(counts)
    share = (counts[label] + 1) / (size + 2)
    share = min(share + sqrt(share * (1 - share) / size), 1.0)
    remaining = looks.total - size
    scale = remaining * (1 - share) / max(size - counts[label], 1)
    last = [count + int(count * scale) for count in counts]
    last[label] = looks.total - (sum(last) - last[label])
    now = vote_bounds(looks, [row.tolist() for row in taken], label)
    final = class_bounds(last, label, looks.alphas[-1])
    hoped = max(now[0], final[0]), min(now[1], final[1])
    if hoped == now:
        return True
    radii = [
        plan.radius(p1, None if len(counts) == 2 else p2, label=label, length=length, threat=plan.threat)
        for p1, p2 in (hoped, now)
    ]
    return radii[0] <= radii[1]


def _enumerate(noise: Noise, length: int, plan: VotesPlan, steps: VoteSteps) -> Draws:
    """Evaluate every choice of kept tokens once, which gives exact probabilities; they replace the votes."""
    steps.stage = "enumeration"
    kept, classes = noise.all_choices(length), len(steps.selection)
    answers = yield kept
    counts = np.zeros((classes, length + 1), dtype=np.int64)  # by class and number of kept tokens
    np.add.at(counts, (answers, kept.sum(axis=1)), 1)
    steps.label, steps.copies = plan.predicted(exact_shares(counts.tolist(), noise, length)), counts
    steps.selection, steps.looks, steps.votes = np.zeros(classes, dtype=np.int64), None, []


def wrong_schedule(votes: Votes, plan: VotesPlan) -> list[str]:
    """What is wrong with votes that should have been taken by a plan: `take_votes` would have taken others."""
    plan = plan.taken.given(votes.tokens)
    choices = plan.noise.choices(votes.length)
    if votes.copies is not None:
        return _wrong_enumeration(votes, plan, choices)
    wrong, selection = [], votes.selection
    if not any(selection) or votes.answer != plan.predicted(selection, sum(selection)):
        wrong.append("the selection votes did not choose the label")
    rows = (selection, *votes.votes)
    voted = {number for row in rows for number, count in enumerate(row) if count}  # at a threshold of 1 not the label
    if choices == 1 and len(voted) > 1:
        wrong.append("the votes must be unanimous: the noise leaves nothing to chance, so that all copies are the same")
    assert votes.looks is not None
    most = max(
        min(AT_ONCE, plan.n_select + plan.n_estimate),
        *(copies_instead(votes.looks, taken) for taken in range(len(votes.votes))),
    )
    if plan.enumerates and choices <= most:
        wrong.append(f"an input of {votes.length} tokens is enumerated under adaptive sampling, not sampled")
    return wrong or _wrong_selection(votes, plan) or _wrong_looks(votes, votes.looks, plan)


def _wrong_enumeration(votes: Votes, plan: VotesPlan, choices: int) -> list[str]:
    """Whether every choice of kept tokens was evaluated, and the label is the most probable class."""
    if not plan.enumerates:
        return ["inputs are not enumerated under fixed sampling"]
    if choices > EXACT_COPIES:
        return [f"an input of {votes.length} tokens has too many copies to be enumerated under its noise"]
    sizes = plan.noise.all_choices(votes.length).sum(axis=1)
    if np.sum(votes.copies or (), axis=0).tolist() != np.bincount(sizes, minlength=votes.length + 1).tolist():
        return ["the enumerated copies are not all there are"]
    if votes.answer != plan.predicted(votes.exact_shares(plan)):
        return ["the label is not the likeliest class of the enumerated copies"]
    return []


def _wrong_selection(votes: Votes, plan: VotesPlan) -> list[str]:
    """Whether the selection ended when the plan allows it."""
    counts, most = votes.selection, plan.n_select
    size = sum(counts)
    sizes = {most} if plan.sampling == "fixed" else {min(32 << step, most) for step in range(most.bit_length())}
    if size not in sizes:
        return [f"the selection took {size} votes, which is not planned for {most}"]
    if size < most and not _has_clear_lead(counts, plan.threshold):
        return [f"the selection ended after {size} of {most} votes without a clear lead"]
    return []


def _wrong_looks(votes: Votes, looks: Looks, plan: VotesPlan) -> list[str]:
    """Whether the looks are the planned ones, and sampling ended as planned; a deadline may end it earlier."""
    most = plan.n_estimate + plan.n_select - sum(votes.selection)
    expected = plan_looks(plan, votes.length, votes.classes, most)
    if looks.sizes != expected.sizes:
        planned, stated = (", ".join(map(str, each.sizes)) for each in (expected, looks))
        return [f"looks were planned after {planned:.100} votes, not after {stated:.100}"]
    scale = looks.alpha / expected.alpha
    levels = zip(looks.alphas, expected.alphas, strict=True)
    if not all(isclose(level, share * scale, rel_tol=1e-12) for level, share in levels):
        return ["the levels of the looks are not in the proportions that were planned"]
    rows = [np.asarray(row, dtype=np.int64) for row in votes.votes]
    for taken in range(1, len(expected.sizes)):
        final = radius_is_final(rows[:taken], votes.answer, expected, plan, votes.length)
        if final and taken < len(rows):
            return [f"sampling went on after look {taken}, at which the plan ends it"]
        if taken == len(rows):
            return (
                [] if final or plan.interrupted else [f"sampling ended after look {taken}, at which the plan goes on"]
            )
    return []


class VoteOracle(Oracle):
    """A base classifier that votes on noisy copies."""

    def __init__(self, base: BaseClassifier) -> None:
        self.base = base
        self.classes = base.classes_ or []

    def __repr__(self) -> str:
        return repr(self.base)

    def fingerprint(self) -> str:
        """That of the base classifier."""
        return self.base.fingerprint()

    def prepare(self, inputs: Sequence[tuple[str, Tokens]], unit: Unit, plan: VotesPlan) -> list[Prepared]:
        """Prepare inputs for all their copies."""
        masking = plan.noise.masks_tokens
        return [self.base.prepare(name, tokens, unit, masking=masking) for name, tokens in inputs]

    def observe(self, prepared: Prepared, plan: VotesPlan) -> VoteSteps:
        """The votes on an input, in steps."""
        return VoteSteps(prepared, plan, len(self.classes))

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The votes of the base classifier."""
        return self.base.votes(requests)

    def copy_scores(self, requests: Sequence[Request]) -> Sequence[npt.NDArray[Any]] | None:
        """Its scores, if it has any."""
        return self.base.copy_scores(requests)
