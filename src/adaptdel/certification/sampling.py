"""Votes of a base classifier on noisy copies: selection, adaptive looks, exact enumeration.

Every input has its own random streams, keyed by the seed, its content and the phase. Its votes do not depend on the
other inputs, on their order or on how copies are batched. Certification, calibration and the examples of a report are
different phases, so their samples are independent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf, sqrt
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Rule
from adaptdel.classifiers.base import Prepared
from adaptdel.core.checks import BoolArray, IntArray, check_alpha, check_choice, check_int
from adaptdel.core.confidence import Looks, clopper_pearson, exact_shares, vote_bounds
from adaptdel.core.noise import MANY_CHOICES, Noise
from adaptdel.core.radius import largest_radius_probability
from adaptdel.settings import CERTIFICATION as SETTINGS
from adaptdel.text.units import Tokens

# Up to so many choices of kept tokens are enumerated: immediately, or instead of further votes after the first look;
# only where they are no more than the votes that are left of those that were asked for.
AT_ONCE, EXACT_COPIES = 512, MANY_CHOICES
LEAD = 3.5  # the selection ends when the first class leads by so many standard deviations of an even vote
FIRST_SHARE, LAST_SHARE = 0.15, 0.65  # of alpha, for the first and the last look
LEAST_VOTES = 16  # at the first look
EARLY_PART = 8  # if sampling may be interrupted, the first look is at this part of the votes at the latest
SECRET_BITS = 256  # of a seed that is kept secret: too many to try them all
# Phases of the selection and of the estimation.
CERTIFICATION = ("select", "estimate")
CALIBRATION = ("calibration select", "calibration estimate")


@dataclass(frozen=True)
class SamplingPlan:
    """How votes are sampled; `adaptdel.SmoothedClassifier` documents the fields.

    If ``exact``, inputs of up to ``at_once`` copies are enumerated instead of sampled, unless that takes more than the
    ``n_select + n_estimate`` votes. ``phases`` name the random streams that select the class and that bound its
    probability. With ``secret``, the seed has up to `SECRET_BITS` bits, and appears neither in certificates nor in the
    representation of the plan. If sampling may be ``interrupted``, as by a deadline, adaptive looks begin early, so
    that there is something to certify.
    """

    rule: Rule
    alpha: float = SETTINGS.alpha
    n_select: int = SETTINGS.n_select
    n_estimate: int = SETTINGS.n_estimate
    sampling: str = SETTINGS.sampling
    seed: int = SETTINGS.seed
    exact: bool = True
    at_once: int = AT_ONCE
    phases: tuple[str, str] = CERTIFICATION
    secret: bool = False
    interrupted: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_int("n_select", self.n_select, least=1)
        check_int("n_estimate", self.n_estimate)
        check_int("seed", self.seed, most=2 ** (SECRET_BITS if self.secret else 63) - 1)
        check_choice("sampling", self.sampling, ("adaptive", "fixed"))

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if not (self.secret and field.name == "seed")]
        return f"SamplingPlan({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass
class Tally:
    """The votes on one input. `take_votes` fills it as votes come, so that sampling may be stopped at any time.

    Attributes:
        label: the class number that was selected on the selection votes; −1 until it is.
        selection: the selection votes, shape (classes,); they bound nothing.
        looks: the planned looks of the estimation.
        votes: the votes at each look that was taken, each of shape (classes,).
        exact: choices of kept tokens by class and number kept, shape (classes, length + 1), if all were enumerated;
            then nothing was sampled.
        key: the `content_key` of the input.
        stage: what votes are taken for: "selection", "estimation" or "enumeration".
    """

    label: int = -1
    selection: IntArray = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    looks: Looks | None = None
    votes: list[IntArray] = field(default_factory=list)
    exact: IntArray | None = None
    key: bytes = b""
    stage: str = "selection"

    @property
    def proves(self) -> bool:
        """Whether there is a look or an enumeration, so that a certificate can be derived."""
        return bool(self.votes) or self.exact is not None


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
    prepared: Prepared, plan: SamplingPlan, classes: int, tally: Tally | None = None
) -> Generator[BoolArray, IntArray, Tally]:
    """The votes on one input: a coroutine that yields arrays of kept tokens and is sent class numbers.

    The looks are planned before the first estimation vote. All their bounds hold together, so the looks in ``tally``
    prove what they say whenever the coroutine is stopped, even if the time of the stop depends on the votes.
    """
    tally = Tally() if tally is None else tally
    tally.selection = np.zeros(classes, dtype=np.int64)
    length = len(prepared.tokens)
    noise = plan.rule.noise.given(prepared.tokens)
    if noise is not plan.rule.noise:
        plan = replace(plan, rule=replace(plan.rule, noise=noise))
    tally.key = content_key(prepared.tokens)
    copies = noise.choices(length) if plan.exact else inf
    if copies <= min(plan.at_once, plan.n_select + plan.n_estimate):
        return (yield from _enumerate(noise, length, plan, classes, tally))
    yield from _select(noise, length, plan, stream(plan.seed, tally.key, plan.phases[0]), tally)
    if not plan.n_estimate:  # a prediction without a certificate
        return tally
    unused = plan.n_select - int(tally.selection.sum())  # selection votes are independent: the looks stay valid
    looks = plan_looks(plan, length, classes, plan.n_estimate + unused)
    tally.looks, tally.stage = looks, "estimation"
    rng = stream(plan.seed, tally.key, plan.phases[1])
    counts = np.zeros(classes, dtype=np.int64)
    for size in looks.sizes:
        if copies <= copies_instead(looks, len(tally.votes)):
            return (yield from _enumerate(noise, length, plan, classes, tally))
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        tally.votes.append(counts)
        if len(tally.votes) < len(looks.sizes) and radius_is_final(
            tally.votes, tally.label, looks, plan.rule, length, classes
        ):
            break
    return tally


def copies_instead(looks: Looks, taken: int) -> int:
    """Up to how many copies are enumerated instead of the looks that are left; 0 before the first of several."""
    done = looks.sizes[taken - 1] if taken else 0
    return min(EXACT_COPIES, looks.total - done) if taken or len(looks.sizes) == 1 else 0


def _draw(noise: Noise, length: int, size: int, rng: np.random.Generator, counts: IntArray) -> Votes:
    """Add the votes on ``size`` fresh copies to the counts."""
    for kept in noise.chunks(length, size, rng):
        answers = yield kept
        counts = counts + np.bincount(answers, minlength=len(counts))
    return counts


def _select(noise: Noise, length: int, plan: SamplingPlan, rng: np.random.Generator, tally: Tally) -> Votes:
    """Select the class. Sampling stops when its lead is clear; these votes bound nothing, so any rule is valid."""
    counts = tally.selection
    size = plan.n_select if plan.sampling == "fixed" else min(32, plan.n_select)
    threshold = plan.rule.threshold
    while True:
        counts = yield from _draw(noise, length, size - int(counts.sum()), rng, counts)
        tally.selection = counts
        if threshold is None:
            first, second = np.sort(counts)[::-1][:2]
            lead = float(first - second)
        else:
            lead = 2 * abs(float(counts[1]) - threshold * size)
        if size >= plan.n_select or lead >= LEAD * sqrt(size):
            tally.label = plan.rule.predicted_class(counts.tolist(), size)
            return
        size = min(2 * size, plan.n_select)


def plan_looks(plan: SamplingPlan, length: int, classes: int, most: int) -> Looks:
    """The looks at up to ``most`` votes on an input of a given length, planned before the first vote.

    The first look is at the number of unanimous votes that would certify the largest possible radius; each further one
    is at twice as many votes. For long inputs the first look may be the only one, which is of no use to a plan that may
    be interrupted: there it is at an eighth of the votes at the latest.
    """
    if plan.sampling == "fixed":
        return Looks.fixed(most, plan.alpha)
    return (_cached_looks if plan.rule.noise.cacheable else _adaptive_looks)(plan, length, classes, most)


def _adaptive_looks(plan: SamplingPlan, length: int, classes: int, most: int) -> Looks:
    rule = plan.rule
    needed = largest_radius_probability(length, rule.noise, rule.threat, rule.threshold)
    level = plan.alpha * FIRST_SHARE
    first = _unanimous(needed, level if classes == 2 else level / 2, most)
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


def radius_is_final(taken: Sequence[IntArray], label: int, looks: Looks, rule: Rule, length: int, classes: int) -> bool:
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
    final = vote_bounds(_last_look(looks), [last], label)
    hoped = max(now[0], final[0]), min(now[1], final[1])
    if hoped == now:
        return True
    radii = [rule.radius(*bounds, label=label, length=length, is_binary=classes == 2) for bounds in (hoped, now)]
    return radii[0] <= radii[1]


def _enumerate(
    noise: Noise, length: int, plan: SamplingPlan, classes: int, tally: Tally
) -> Generator[BoolArray, IntArray, Tally]:
    """Evaluate every choice of kept tokens once, which gives exact probabilities; they replace the votes."""
    tally.stage = "enumeration"
    kept = noise.all_choices(length)
    answers = yield kept
    counts = np.zeros((classes, length + 1), dtype=np.int64)
    np.add.at(counts, (answers, kept.sum(axis=1)), 1)
    shares = exact_shares(counts.tolist(), noise, length)
    tally.label, tally.exact = plan.rule.predicted_class(shares), counts
    tally.selection, tally.looks, tally.votes = np.zeros(classes, dtype=np.int64), None, []
    return tally
