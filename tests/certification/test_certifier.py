"""The engine: every entry point uses it, splits each text once, and lets one input fail without the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel import Certificate, Certifier, Deletion, FixedRate, LengthRate, SmoothedClassifier
from adaptdel.certification.certifier import Input, Pool, Steps, Ticket
from adaptdel.certification.sampling import VoteOracle
from adaptdel.certification.verify import verify
from adaptdel.certification.votes import Votes, VotesPlan
from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.text.units import Tokens, Words
from tests.models.test_smoothed import by_words
from tests.models.test_smoothed import texts as random_texts

COUNT = 40
BINS: dict[str, Any] = {"objective": "paper", "bins": [0, 40], "min_count": 1, "per_bin": 5, "tol": 20.0}


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    split = Words.split

    def counting(self: Words, text: Any) -> Any:
        counts[text] += 1
        return split(self, text)

    monkeypatch.setattr(Words, "split", counting)
    return counts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certifier") / "model"
    settings: Any = {"n_select": 64, "n_estimate": 200, "copies": 2, "progress": False}
    inputs = random_texts(60, seed=1)
    SmoothedClassifier(noise=Deletion(LengthRate(0.7, 6)), **settings).fit(inputs, by_words(inputs)).save(folder)
    return folder


def distinct_texts() -> tuple[list[str], list[str]]:
    """Texts that differ from one another, so that a second split of one of them shows; long enough for smoothing."""
    texts = random_texts(COUNT, seed=7)
    return [f"number{n} {'word ' * 20}{text}" for n, text in enumerate(texts)], by_words(texts)


def commands(model: SmoothedClassifier, folder: Path, *command: object) -> None:
    from tests.run_files import run

    path = folder / "data.jsonl"
    rows = [{"text": text, "label": label} for text, label in zip(*distinct_texts(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model.save(folder / "model")
    name = [folder / "model"] if command[0] == "certify" else []
    assert run(command[0], *name, "--data", path, *command[1:], "--out", folder / "out") == 0


def calibrate(model: SmoothedClassifier, **settings: Any) -> None:
    from adaptdel.calibration import calibrate as search

    search(model, *distinct_texts(), n_select=8, n_estimate=16, progress=False, **settings)


PATHS: dict[str, Callable[[SmoothedClassifier, Path], object]] = {
    "certify": lambda model, folder: model.certify(distinct_texts()[0]),
    "predict": lambda model, folder: model.predict(distinct_texts()[0]),
    "adaptdel certify": lambda model, folder: commands(model, folder, "certify"),
    "calibrate in bins": lambda model, folder: calibrate(model, **BINS),
    "calibrate by the default objective": lambda model, folder: calibrate(model, points=3, examples=20),
    "adaptdel train": lambda model, folder: commands(model, folder, "train", "--set", "bits=8"),
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_every_path_splits_each_text_once(
    path: Callable[[SmoothedClassifier, Path], object], folder: Path, tmp_path: Path, splits: Counter[str]
) -> None:
    path(SmoothedClassifier.load(folder), tmp_path)
    assert splits == dict.fromkeys(distinct_texts()[0], 1)


def test_inputs_that_are_prepared_together_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token scores are looked up for many texts at a time."""
    model = ad.AdditiveClassifier(progress=False, iterations=5, levels=2).fit(
        ["a", "a a", "b", "b b"] * 3, [0, 0, 1, 1] * 3
    )
    oracle = model.oracle()
    prepare = oracle.prepare

    def refusing(inputs: Any, *others: Any) -> Any:
        if any("poison" in tokens for _, tokens in inputs):
            raise ValueError("poison")
        return prepare(inputs, *others)

    monkeypatch.setattr(oracle, "prepare", refusing)
    results = Certifier(oracle, model.plan)(Input(text, "", n) for n, text in enumerate(["a b", "poison", "b"]))
    assert {result.input.tag: result.failure for result in results} == {0: None, 1: "poison", 2: None}


# The pool: plans of their own, shared steps, observers, cancelled and stopped inputs, isolated failures.


NOISE = Deletion(FixedRate(0.9))
PLAN = VotesPlan(noise=NOISE, n_select=64, n_estimate=4000, seed=3)


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
    return Certifier(VoteOracle(base or Halves()), replace(PLAN, **changes))


def alone(tokens: Tokens, engine: Certifier) -> Certificate:
    prepared = engine.prepare_tokens(tokens, "alone")
    [(_, evidence)] = engine.observed([prepared])
    return engine.certificate(prepared, evidence)


def finish(pool: Pool, work: int | None) -> list[Ticket]:
    finished = []
    while len(pool):
        finished += pool.step(work)
    return finished


def test_one_input_fails_and_the_others_are_certified(splits: Counter[str]) -> None:
    """As each is alone, without a second split, although the inputs in flight are certified again one by one."""
    texts = [f"a{n} " + "poison " * (n % 7 == 3) + "b " * (n % 9) + "word " * 10 for n in range(30)]
    engine = certifier(n_estimate=200)
    results = {each.input.tag: each for each in engine(Input(text, f"input {n}", n) for n, text in enumerate(texts))}
    assert splits == dict.fromkeys(texts, 1)
    for number, text in enumerate(texts):
        result = results.pop(number)
        if number % 7 == 3:
            assert (str(result.failure), result.certificate) == (f"poison in input {number}", None)
        else:
            assert (result.failure, result.certificate) == (None, alone((*text.split(),), engine))
    assert not results


@pytest.mark.parametrize("work", [None, 1, 700, 50_000])
def test_votes_do_not_depend_on_the_other_inputs_or_on_how_copies_are_split(work: int | None) -> None:
    """Each input has its own plan: another seed, alpha and number of votes."""
    base = Halves()
    engines = [certifier(base, seed=n, alpha=0.01 * (n + 1), n_estimate=100 * (n + 1)) for n in range(len(INPUTS))]
    pool = Pool(VoteOracle(base))
    for engine, tokens in zip(engines, INPUTS, strict=True):
        pool.add(Ticket(engine.prepare_tokens(tokens, ""), engine.plan, tag=engine))
    tickets = finish(pool, work)
    assert len(tickets) == len(INPUTS)
    for ticket in tickets:
        certificate = ticket.tag.certificate(ticket.prepared, ticket.evidence)
        assert certificate == alone(ticket.prepared.tokens, ticket.tag)
    assert pool.tokens == 0


def test_a_step_is_bounded_and_shared_fairly() -> None:
    """A short input gets all its copies; what it leaves goes to the long ones, which get equal shares of the work."""
    base = Halves()
    engine = certifier(base, sampling="fixed", enumerates=False, n_select=1000)
    pool = engine.pool()
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
        self.looks: list[tuple[int, ...]] = []

    def saw_votes(self, stage: str, kept: BoolArray, answers: IntArray) -> None:
        self.seen.append((stage, kept.copy(), answers.copy()))

    def saw_step(self, steps: Steps) -> None:
        evidence = steps.evidence()
        assert isinstance(evidence, Votes)
        if evidence.votes[-1:] != tuple(self.looks[-1:]):
            self.looks.append(evidence.votes[-1])


@pytest.mark.parametrize("work", [None, 3000])
def test_an_observer_is_told_of_all_votes_and_looks(work: int | None) -> None:
    base = Halves()
    engine, recorder = certifier(base), Recorder()
    pool = engine.pool()
    ticket = Ticket(engine.prepare_tokens(INPUTS[3], ""), engine.plan, watcher=recorder)
    pool.add(ticket)
    finish(pool, work)
    for stage, counts in (("selection", ticket.evidence.selection), ("estimation", ticket.evidence.votes[-1])):
        answers = np.concatenate([a for name, _, a in recorder.seen if name == stage])
        assert np.bincount(answers, minlength=2).tolist() == list(counts)
    assert all(len(kept) == len(answers) and kept.shape[1] == 900 for _, kept, answers in recorder.seen)
    assert recorder.looks == list(ticket.evidence.votes)
    assert len(recorder.looks) > 1


def test_a_cancelled_input_is_not_classified_any_more() -> None:
    base = Halves()
    engine = certifier(base)
    pool = engine.pool()
    tickets = [Ticket(engine.prepare_tokens(tokens, ""), engine.plan) for tokens in (INPUTS[1], INPUTS[3])]
    for ticket in tickets:
        pool.add(ticket)
    pool.step(1000)
    pool.cancel(tickets[1])
    pool.cancel(tickets[1])  # nothing is left to do
    assert (len(pool), pool.tokens) == (1, 200)
    assert finish(pool, 1000) == tickets[:1]
    assert [len(row) for row in base.copies][1:] == [1] * (len(base.copies) - 1)


@pytest.mark.parametrize("copies", [29, 100])
def test_a_stopped_input_has_a_valid_certificate_or_none(copies: int) -> None:
    """Stopped after any number of steps: the looks that were taken are a beginning of those of the whole run."""
    base = CallableClassifier(lambda copies: ["b" if c.count("b") > c.count("a") else "a" for c in copies], ["a", "b"])
    engine, tokens = certifier(base, n_estimate=2000, interrupted=True), text(200, 0.4, "y")
    whole = alone(tokens, engine)
    entire: Any = whole.evidence
    looks_seen = set()
    for steps in range(1, 200):
        pool = engine.pool()
        ticket = Ticket(engine.prepare_tokens(tokens, ""), engine.plan)
        pool.add(ticket)
        if any(pool.step(copies * 200) for _ in range(steps)):
            break
        pool.stop(ticket)
        assert not len(pool)
        evidence: Votes = ticket.evidence
        assert evidence.answer >= 0 or not any(evidence.selection)
        looks_seen.add(len(evidence.votes))
        if not evidence.proves:
            continue
        certificate = engine.certificate(ticket.prepared, evidence)
        assert evidence.looks == entire.looks
        assert evidence.votes == entire.votes[: len(evidence.votes)]
        assert certificate.label == whole.label
        assert certificate.radius <= whole.radius
        assert verify(certificate.to_dict()) == []
        assert Certificate.from_json(certificate.to_json()).radius == certificate.radius
    assert looks_seen >= {0, 1, 2}
    assert len(entire.votes) > 2


def test_a_secret_seed_is_nowhere() -> None:
    seed = 1234567890123456789
    plan = replace(PLAN, seed=seed, secret=True)
    engine = Certifier(VoteOracle(Halves()), plan)
    certificate = alone(INPUTS[1], engine)
    assert certificate.to_dict()["plan"]["seed"] is None
    assert str(seed) not in f"{engine!r}{plan!r}{certificate!r}{certificate.to_json()}"
    assert verify(certificate.to_dict()) == []
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert certificate.evidence == alone(INPUTS[1], certifier(seed=seed)).evidence
    assert str(seed) in repr(replace(plan, secret=False))
