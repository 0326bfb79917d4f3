"""Votes of a base classifier on noisy copies: selection, adaptive looks, exact enumeration.

Every input has its own random streams, keyed by the seed, its content and the phase. Its votes do not depend on the
other inputs, on their order or on how copies are batched. Certification, calibration and the examples of a report are
different phases, so their samples are independent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Rule
from adaptdel.classifiers.base import BaseClassifier, Prepared, Request
from adaptdel.core.checks import BoolArray, IntArray, check_alpha, check_choice, check_int
from adaptdel.core.confidence import Looks, clopper_pearson, exact_shares, vote_bounds
from adaptdel.core.noise import MANY_CHOICES, Noise
from adaptdel.core.radius import largest_radius_probability
from adaptdel.settings import CERTIFICATION as SETTINGS
from adaptdel.units import Tokens

# Up to so many choices of kept tokens are enumerated: immediately, or instead of further votes after the first look.
AT_ONCE, EXACT_COPIES = 512, MANY_CHOICES
WINDOW_INPUTS = 64
WINDOW_TOKENS = 200_000  # the largest number of tokens of inputs that are processed together, unless it is one input
LEAD = 3.5  # the selection ends when the first class leads by so many standard deviations of an even vote
FIRST_SHARE, LAST_SHARE = 0.15, 0.65  # of alpha, for the first and the last look
LEAST_VOTES = 16  # at the first look
# Phases of the selection and of the estimation.
CERTIFICATION = ("select", "estimate")
CALIBRATION = ("calibration select", "calibration estimate")


@dataclass(frozen=True)
class SamplingPlan:
    """How votes are sampled; `adaptdel.SmoothedClassifier` documents the fields.

    ``phases`` name the random streams that select the class and that bound its probability.
    """

    rule: Rule
    alpha: float = SETTINGS.alpha
    n_select: int = SETTINGS.n_select
    n_estimate: int = SETTINGS.n_estimate
    sampling: str = SETTINGS.sampling
    seed: int = SETTINGS.seed
    exact: bool = True
    phases: tuple[str, str] = CERTIFICATION

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_int("n_select", self.n_select, least=1)
        check_int("n_estimate", self.n_estimate)
        check_int("seed", self.seed, most=2**63 - 1)
        check_choice("sampling", self.sampling, ("adaptive", "fixed"))


@dataclass
class Tally:
    """The votes on one input.

    Attributes:
        label: the class number that was selected on the selection votes.
        selection: the selection votes, shape (classes,); they bound nothing.
        looks: the planned looks of the estimation.
        votes: the votes at each look that was taken, each of shape (classes,).
        exact: choices of kept tokens by class and number kept, shape (classes, length + 1), if all were enumerated;
            then nothing was sampled.
        key: the `content_key` of the input.
    """

    label: int
    selection: IntArray
    looks: Looks | None
    votes: list[IntArray]
    exact: IntArray | None = None
    key: bytes = b""


def content_key(tokens: Tokens) -> bytes:
    """A hash of a token sequence, the same on every machine; 1, True, 1.0 and ``np.int64(1)`` are different tokens."""
    digest = hashlib.blake2b(digest_size=32)
    kinds = set(map(type, tokens))
    if kinds <= {str} and not _has_surrogates(tokens):
        digest.update(json.dumps(tokens).encode())  # quoted: different sequences have different JSON
    elif kinds == {int} and min(tokens) >= 0 and max(tokens) < 256:  # type: ignore[type-var, operator]
        digest.update(b"bytes:" + bytes(tokens))  # type: ignore[arg-type]
    else:
        digest.update(b"tokens:")
        for token in tokens:
            kind = type(token).__name__
            if isinstance(token, np.generic):  # whose names and repr differ between versions
                kind, token = f"numpy.{token.dtype.name}", token.item()
            data = repr(token).encode("utf-8", "surrogatepass")
            digest.update(f"{kind}:{len(data)}:".encode() + data)
    return digest.digest()


def _has_surrogates(texts: Iterable[Any]) -> bool:
    """Whether a text contains half a surrogate pair; in JSON, two halves would look like one character."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return True
    return False


def stream(seed: int, key: bytes, phase: str) -> np.random.Generator:
    """The random generator (Philox) for one phase of one input."""
    digest = hashlib.blake2b(f"{seed}/{phase}/".encode() + key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


Votes = Generator[BoolArray, IntArray, Any]


def take_votes(
    prepared: Prepared, plan: SamplingPlan, known_classes: int | None
) -> Generator[BoolArray, IntArray, Tally]:
    """The votes on one input: a coroutine that yields arrays of kept tokens and is sent class numbers."""
    length = len(prepared.tokens)
    noise = plan.rule.noise
    key = content_key(prepared.tokens)
    if plan.exact and noise.choices(length) <= AT_ONCE:
        return (yield from _enumerate(noise, length, plan, known_classes, key))
    label, selection = yield from _select(noise, length, plan, stream(plan.seed, key, plan.phases[0]))
    if not plan.n_estimate:  # a prediction without a certificate
        return Tally(label, selection, None, [], key=key)
    unused = plan.n_select - int(selection.sum())  # selection votes are independent: the looks stay valid
    looks = plan_looks(plan, length, known_classes, plan.n_estimate + unused)
    rng = stream(plan.seed, key, plan.phases[1])
    counts = np.zeros(len(selection), dtype=np.int64)
    taken: list[IntArray] = []
    for size in looks.sizes:
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        taken.append(counts)
        if len(taken) < len(looks.sizes) and radius_is_final(taken, label, looks, plan.rule, length, known_classes):
            break
        if plan.exact and noise.choices(length) <= EXACT_COPIES:  # fewer than the votes to come
            return (yield from _enumerate(noise, length, plan, known_classes, key))
    width = max(len(row) for row in (*taken, selection))
    return Tally(label, _widen(selection, width), looks, [_widen(row, width) for row in taken], key=key)


def _number_by_input(task: Generator[BoolArray, IntArray, Tally]) -> Generator[BoolArray, IntArray, Tally]:
    """Number unknown classes in the order in which they occur in the votes on this input.

    The classifier numbers them in the order in which they occur in any input. A tie goes to the lowest number, which
    must not depend on other inputs.
    """
    numbers: dict[int, int] = {}
    kept = next(task)
    while True:
        answers = (yield kept).tolist()
        try:
            kept = task.send(np.array([numbers.setdefault(answer, len(numbers)) for answer in answers], dtype=np.int64))
        except StopIteration as stop:
            tally: Tally = stop.value
            break
    originals = list(numbers)
    width = max(2, *(number + 1 for number in originals)) if originals else 2

    def renumber(counts: IntArray) -> IntArray:
        renumbered = np.zeros((width, *counts.shape[1:]), dtype=np.int64)
        renumbered[originals] = counts[: len(originals)]
        return renumbered

    exact = None if tally.exact is None else renumber(tally.exact)
    label = originals[tally.label] if originals else tally.label
    votes = [renumber(row) for row in tally.votes]
    return Tally(label, renumber(tally.selection), tally.looks, votes, exact, tally.key)


def _widen(counts: IntArray, width: int) -> IntArray:
    return counts if len(counts) >= width else np.concatenate([counts, np.zeros(width - len(counts), dtype=np.int64)])


def _draw(noise: Noise, length: int, size: int, rng: np.random.Generator, counts: IntArray) -> Votes:
    """Add the votes on ``size`` fresh copies to the counts."""
    for kept in noise.chunks(length, size, rng):
        answers = yield kept
        more = np.bincount(answers, minlength=len(counts))
        counts = _widen(counts, len(more)) + more
    return counts


def _select(noise: Noise, length: int, plan: SamplingPlan, rng: np.random.Generator) -> Votes:
    """Select the class. Sampling stops when its lead is clear; these votes bound nothing, so any rule is valid."""
    counts = np.zeros(2, dtype=np.int64)
    size = plan.n_select if plan.sampling == "fixed" else min(32, plan.n_select)
    threshold = plan.rule.threshold
    while True:
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        if threshold is None:
            first, second = np.sort(counts)[::-1][:2]
            lead = float(first - second)
        else:
            lead = 2 * abs(float(counts[1]) - threshold * size)
        if size >= plan.n_select or lead >= LEAD * sqrt(size):
            return plan.rule.predicted_class(counts.tolist(), size), counts
        size = min(2 * size, plan.n_select)


def plan_looks(plan: SamplingPlan, length: int, classes: int | None, most: int) -> Looks:
    """The looks at up to ``most`` votes on an input of a given length, planned before the first vote.

    The first look is at the number of unanimous votes that would certify the largest possible radius; each further one
    is at twice as many votes.
    """
    if plan.sampling == "fixed":
        return Looks.fixed(most, plan.alpha)
    return (_cached_looks if plan.rule.noise.cacheable else _adaptive_looks)(plan, length, classes, most)


def _adaptive_looks(plan: SamplingPlan, length: int, classes: int | None, most: int) -> Looks:
    rule = plan.rule
    needed = largest_radius_probability(length, rule.noise, rule.threat, rule.threshold)
    level = plan.alpha * FIRST_SHARE
    return doubling_looks(_unanimous(needed, level if classes == 2 else level / 2, most), most, plan.alpha)


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


def _unanimous(probability: float, alpha: float, most: int) -> int:
    """The least number of unanimous votes that prove a probability; at least `LEAST_VOTES`, at most ``most``."""
    low, high = LEAST_VOTES - 1, max(most, LEAST_VOTES)
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson(middle, middle, alpha)[0] >= probability:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=2**13)
def _last_look(looks: Looks) -> Looks:
    return Looks.fixed(looks.total, looks.alphas[-1])


def radius_is_final(
    taken: Sequence[IntArray], label: int, looks: Looks, rule: Rule, length: int, classes: int | None
) -> bool:
    """Whether further votes are unlikely to raise the radius: not even with a share that is a standard error better."""
    counts = taken[-1].tolist()
    size = sum(counts)
    if label >= len(counts):
        return True
    share = (counts[label] + 1) / (size + 2)
    share = min(share + sqrt(share * (1 - share) / size), 1.0)
    remaining = looks.total - size
    scale = remaining * (1 - share) / max(size - counts[label], 1)
    last = [count + int(count * scale) for count in counts]
    last[label] = looks.total - (sum(last) - last[label])
    known = classes is not None
    now = vote_bounds(looks, [row.tolist() for row in taken], label, known=known, k=rule.k)
    final = vote_bounds(_last_look(looks), [last], label, known=known, k=rule.k)
    hoped = max(now[0], final[0]), min(now[1], final[1])
    if hoped == now:
        return True
    radii = [rule.radius(*bounds, label=label, length=length, is_binary=classes == 2) for bounds in (hoped, now)]
    return radii[0] <= radii[1]


def _enumerate(
    noise: Noise, length: int, plan: SamplingPlan, classes: int | None, key: bytes
) -> Generator[BoolArray, IntArray, Tally]:
    """Evaluate every choice of kept tokens once, which gives exact probabilities."""
    kept = noise.all_choices(length)
    answers = yield kept
    width = max(classes or 2, int(answers.max()) + 1)
    counts = np.zeros((width, length + 1), dtype=np.int64)
    np.add.at(counts, (answers, kept.sum(axis=1)), 1)
    shares = exact_shares(counts.tolist(), noise, length)
    return Tally(plan.rule.predicted_class(shares), np.zeros(width, dtype=np.int64), None, [], counts, key)


def vote_on_inputs(
    inputs: Iterable[Prepared],
    plan: SamplingPlan,
    classifier: BaseClassifier,
    *,
    done: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Tally]]:
    """Yield the votes on many inputs in order of completion; copies of several inputs are classified together."""

    def start(prepared: Prepared) -> Generator[BoolArray, IntArray, Tally]:
        known = classifier.classes_
        task = take_votes(prepared, plan, None if known is None else len(known))
        return task if known is not None else _number_by_input(task)

    waiting = iter(enumerate(inputs))
    active: list[tuple[int, Prepared, Generator[BoolArray, IntArray, Tally], BoolArray]] = []
    tokens = finished = 0
    held: tuple[int, Prepared] | None = None
    while True:
        while len(active) < WINDOW_INPUTS:
            number, prepared = held or next(waiting, (-1, None))
            held = None
            if prepared is None:
                break
            if active and tokens + len(prepared.tokens) > WINDOW_TOKENS:
                held = (number, prepared)
                break
            task = start(prepared)
            active.append((number, prepared, task, next(task)))
            tokens += len(prepared.tokens)
        if not active:
            return
        answers = classifier.votes([Request(prepared, kept) for _, prepared, _, kept in active])
        still = []
        for (number, prepared, task, _), answer in zip(active, answers, strict=True):
            try:
                still.append((number, prepared, task, task.send(answer)))
            except StopIteration as stop:
                tokens -= len(prepared.tokens)
                finished += 1
                if done is not None:
                    done(finished)
                yield number, stop.value
        active = still
