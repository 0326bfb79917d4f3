"""The pool of votes: plans of their own, shared steps, observers, cancelled and stopped inputs, isolated failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Certificate, Certifier, Deletion, FixedRate, LengthRate, SmoothedClassifier
from adaptdel.certification.certificate import Rule
from adaptdel.certification.pool import Ticket, VotePool
from adaptdel.certification.sampling import SamplingPlan, Tally
from adaptdel.certification.verify import verify
from adaptdel.classifiers.base import BaseClassifier, InconsistentAnswerError, Prepared, Request
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Noise
from adaptdel.text.units import Tokens, Words

NOISE = Deletion(FixedRate(0.9))
EDIT = ("del", "ins", "sub")
PLAN = SamplingPlan(Rule(NOISE, EDIT), n_select=64, n_estimate=4000, seed=3)


class Halves(BaseClassifier):
    """Votes for the class of most kept tokens; records the number of copies of every request."""

    classes_: list[Any] | None = ["a", "b"]  # noqa: RUF012

    def __init__(self) -> None:
        self.copies: list[list[int]] = []

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        self.copies.append([len(request.kept) for request in requests])
        return [self._votes(request) for request in requests]

    def _votes(self, request: Request) -> IntArray:
        if "poison" in request.prepared.tokens:
            raise ValueError(f"poison in {request.prepared.name}")
        is_b = np.array([str(token).startswith("b") for token in request.prepared.tokens], dtype=np.bool_)
        return (2 * (request.kept & is_b).sum(axis=1) > request.kept.sum(axis=1)).astype(np.int64)


def text(length: int, share: float, name: str = "") -> tuple[str, ...]:
    """So many tokens, a share of which is for the class "b"."""
    return tuple(f"{'b' if (n * share) % 1 + share >= 1 else 'a'}{name}{n}" for n in range(length))


INPUTS = [text(30, 0.2, "x"), text(200, 0.35, "y"), text(5, 0.4, "z"), text(900, 0.4, "u"), text(0, 0), text(70, 0.9)]


def certifier(base: BaseClassifier | None = None, **changes: Any) -> Certifier:
    return Certifier(base or Halves(), replace(PLAN, **changes))


def alone(tokens: Tokens, engine: Certifier) -> Certificate:
    prepared = engine.prepare_tokens(tokens, "alone")
    [(_, tally)] = engine.votes([prepared])
    return engine.certificate(prepared, tally)


def finish(pool: VotePool, work: int | None) -> list[Ticket]:
    finished = []
    while len(pool):
        finished += pool.step(work)
    return finished


@pytest.mark.parametrize("work", [None, 1, 700, 50_000])
def test_votes_do_not_depend_on_the_other_inputs_or_on_how_copies_are_split(work: int | None) -> None:
    """Each input has its own plan: another seed, alpha and number of votes."""
    base = Halves()
    engines = [certifier(base, seed=n, alpha=0.01 * (n + 1), n_estimate=100 * (n + 1)) for n in range(len(INPUTS))]
    pool = VotePool(base)
    for engine, tokens in zip(engines, INPUTS, strict=True):
        pool.add(Ticket(engine.prepare_tokens(tokens, ""), engine.plan, tag=engine))
    tickets = finish(pool, work)
    assert len(tickets) == len(INPUTS)
    for ticket in tickets:
        certificate = ticket.tag.certificate(ticket.prepared, ticket.tally)
        assert certificate == alone(ticket.prepared.tokens, ticket.tag)
    assert pool.tokens == 0


def test_a_step_is_bounded_and_shared_fairly() -> None:
    """A short input gets all its copies; what it leaves goes to the long ones, which get equal shares of the work."""
    base = Halves()
    pool, engine = VotePool(base), certifier(base, sampling="fixed", exact=False, n_select=1000)
    for length in (10, 500, 1000):
        pool.add(Ticket(engine.prepare_tokens(text(length, 0.3), ""), engine.plan))
    pool.step(100_000)
    assert base.copies[-1] == [1000, 90, 45]
    assert pool.copies == 1135
    pool.step(10)  # everybody makes progress, however little work is allowed
    assert base.copies[-1][1:] == [1, 1]


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[str, BoolArray, IntArray]] = []
        self.looks: list[list[int]] = []

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        self.seen.append((stage, kept.copy(), answers.copy()))

    def saw_look(self, tally: Tally) -> None:
        self.looks.append(tally.votes[-1].tolist())


@pytest.mark.parametrize("work", [None, 3000])
def test_an_observer_is_told_of_all_votes_and_looks(work: int | None) -> None:
    base = Halves()
    pool, engine, recorder = VotePool(base), certifier(base), Recorder()
    ticket = Ticket(engine.prepare_tokens(INPUTS[3], ""), engine.plan, observer=recorder)
    pool.add(ticket)
    finish(pool, work)
    for stage, counts in (("selection", ticket.tally.selection), ("estimation", ticket.tally.votes[-1])):
        answers = np.concatenate([a for name, _, a in recorder.seen if name == stage])
        assert np.bincount(answers, minlength=2).tolist() == counts.tolist()
    assert all(len(kept) == len(answers) and kept.shape[1] == 900 for _, kept, answers in recorder.seen)
    assert recorder.looks == [row.tolist() for row in ticket.tally.votes]
    assert len(recorder.looks) > 1


def test_a_cancelled_input_is_not_classified_any_more() -> None:
    base = Halves()
    pool, engine = VotePool(base), certifier(base)
    tickets = [Ticket(engine.prepare_tokens(tokens, ""), engine.plan) for tokens in (INPUTS[1], INPUTS[3])]
    for ticket in tickets:
        pool.add(ticket)
    pool.step(1000)
    pool.cancel(tickets[1])
    pool.cancel(tickets[1])  # nothing is left to do
    assert (len(pool), pool.tokens) == (1, 200)
    assert finish(pool, 1000) == tickets[:1]
    assert [len(row) for row in base.copies][1:] == [1] * (len(base.copies) - 1)


def test_only_the_input_that_fails_gets_a_failure() -> None:
    base = Halves()
    pool, engine = VotePool(base), certifier(base)
    inputs = [INPUTS[0], (*INPUTS[1], "poison"), INPUTS[5]]
    for number, tokens in enumerate(inputs):
        pool.add(Ticket(engine.prepare_tokens(tokens, f"input {number}"), engine.plan, tag=number))
    tickets = {ticket.tag: ticket for ticket in finish(pool, 5000)}
    assert str(tickets[1].failure) == "poison in input 1"
    for number in (0, 2):
        certificate = engine.certificate(tickets[number].prepared, tickets[number].tally)
        assert tickets[number].failure is None
        assert certificate == alone(inputs[number], certifier())


def test_an_inconsistent_classifier_ends_everything() -> None:
    answers = iter(range(10**6))
    base = CallableClassifier(lambda copies: ["ab"[next(answers) % 2] for _ in copies], classes=["a", "b"])
    pool, engine = VotePool(base), certifier(base)
    pool.add(Ticket(engine.prepare_tokens(INPUTS[1], ""), engine.plan))
    with pytest.raises(InconsistentAnswerError):
        finish(pool, None)


@pytest.mark.parametrize("copies", [29, 100])
def test_a_stopped_input_has_a_valid_certificate_or_none(copies: int) -> None:
    """Stopped after any number of steps: the looks that were taken are a beginning of those of the whole run."""
    base = CallableClassifier(lambda copies: ["b" if c.count("b") > c.count("a") else "a" for c in copies], ["a", "b"])
    engine, tokens = certifier(base, n_estimate=2000), text(200, 0.4, "y")
    whole = alone(tokens, engine)
    looks_seen = set()
    for steps in range(1, 200):
        pool = VotePool(base)
        ticket = Ticket(engine.prepare_tokens(tokens, ""), engine.plan)
        pool.add(ticket)
        if any(pool.step(copies * 200) for _ in range(steps)):
            break
        pool.stop(ticket)
        assert not len(pool)
        assert ticket.tally.label >= 0 or not ticket.tally.selection.any()
        looks_seen.add(len(ticket.tally.votes))
        if not ticket.tally.proves:
            continue
        certificate = engine.certificate(ticket.prepared, ticket.tally)
        assert certificate.looks == whole.looks
        assert certificate.votes == whole.votes[: len(certificate.votes)]
        assert certificate.label == whole.label
        assert certificate.radius <= whole.radius
        assert verify(certificate.to_dict()) == []
        assert Certificate.from_json(certificate.to_json()).radius == certificate.radius
    assert looks_seen >= {0, 1, 2}
    assert len(whole.votes) > 2


class Coin(BaseClassifier):
    """Votes at random, with known probabilities."""

    classes_: list[Any] | None = [0, 1]  # noqa: RUF012

    def __init__(self, p: float) -> None:
        self.p, self.rng = p, np.random.default_rng(1)

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        return [(self.rng.random(len(request.kept)) < self.p).astype(np.int64) for request in requests]


ALPHA, RUNS = 0.2, 1000


def failures_when_stopped(p: float, *, spends: bool = True, noise: Noise | None = None, length: int = 100) -> int:
    """How often the radius is too large if the sampling is stopped when it suits the attacker.

    The adversary sees every vote. The sampling ends as soon as a look claims too much; in a deadline's place. If that
    never happens the input is not counted.
    """
    base, rule = Coin(p), Rule(noise or Deletion(FixedRate(0.9)), EDIT)
    plan = SamplingPlan(rule, alpha=ALPHA, n_select=32, n_estimate=4000, exact=False, interrupted=noise is not None)
    engine = Certifier(base, plan)
    true_bound = max(p, 1 - p)
    failures = 0
    for run in range(RUNS):
        pool = VotePool(base)
        ticket = Ticket(Prepared("", text(length, 0.5, str(run)), Words()), engine.plan)
        pool.add(ticket)
        while len(pool):
            pool.step(200 * length)
            tally = ticket.tally
            if not tally.votes:
                continue
            certificate = engine.certificate(ticket.prepared, tally)
            if not spends and certificate.looks is not None:  # as if every look were the only one
                levels = (ALPHA,) * len(certificate.looks.sizes)
                object.__setattr__(certificate.looks, "alphas", levels)
            if certificate.bounds[0] > (p if tally.label == 1 else 1 - p):
                failures += 1
                if len(pool):
                    pool.stop(ticket)
                    stopped = engine.certificate(ticket.prepared, ticket.tally)
                    assert stopped.votes == certificate.votes
                break
    assert true_bound >= 0.5
    return failures


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_coverage_if_an_adversary_stops_the_sampling(p: float) -> None:
    failures = failures_when_stopped(p)
    assert stats.binomtest(failures, RUNS, ALPHA, alternative="greater").pvalue > 1e-6


def test_coverage_of_the_plan_of_a_deadline() -> None:
    """A length at which the usual plan has a single look."""
    noise = Deletion(LengthRate(0.9, 27))
    failures = failures_when_stopped(0.5, noise=noise, length=600)
    assert failures > 0
    assert stats.binomtest(failures, RUNS, ALPHA, alternative="greater").pvalue > 1e-6


def test_the_simulation_sees_looks_that_spend_alpha_again_and_again() -> None:
    failures = failures_when_stopped(0.5, spends=False)
    assert stats.binomtest(failures, RUNS, ALPHA, alternative="greater").pvalue < 1e-6


def test_a_secret_seed_is_nowhere() -> None:
    seed = 1234567890123456789
    plan = replace(PLAN, seed=seed, secret=True)
    engine = Certifier(Halves(), plan)
    certificate = alone(INPUTS[1], engine)
    assert certificate.seed is None
    assert str(seed) not in f"{engine!r}{plan!r}{certificate!r}{certificate.to_json()}"
    assert verify(certificate.to_dict()) == []
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert replace(certificate, seed=seed) == alone(INPUTS[1], certifier(seed=seed))
    assert str(seed) in repr(replace(plan, secret=False))


def test_a_stopped_prediction_has_the_votes_so_far() -> None:
    model = SmoothedClassifier(Halves(), NOISE, n_select=1000, sampling="fixed")
    engine = model.certifier(n_estimate=0)
    pool, ticket = VotePool(engine.base), Ticket(engine.prepare_tokens(INPUTS[1], ""), engine.plan)
    pool.add(ticket)
    pool.step(2000)
    pool.stop(ticket)
    assert ticket.tally.label == -1  # the answers to the first copies are not complete yet
    assert not ticket.tally.proves
