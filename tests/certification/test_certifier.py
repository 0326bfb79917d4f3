"""The engine: every entry point uses it, splits each text once, and lets one input fail without the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel import Certificate, Certifier, Deletion, FixedRate, SmoothedClassifier
from adaptdel.calibration import calibrate
from adaptdel.certification.certificate import Rule
from adaptdel.certification.certifier import Input, Ticket, VotePool
from adaptdel.certification.sampling import SamplingPlan, Tally
from adaptdel.certification.verify import verify
from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, InconsistentAnswerError, Request
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.text.units import Tokens, Words
from tests.run_files import examples, make_model, run, write_rows

COUNT = 40
BINS: dict[str, Any] = {
    "objective": "paper",
    "bins": [0, 40],
    "min_count": 1,
    "per_bin": 5,
    "n_select": 8,
    "n_estimate": 16,
    "tol": 20.0,
}


class Refusing(BaseClassifier):
    """Fails on inputs that contain "poison", whether its copies do or not."""

    def __init__(self) -> None:
        self.classes_ = [0, 1]

    def votes(self, requests: Iterable[Request]) -> list[IntArray]:
        for request in requests:
            if "poison" in request.prepared.tokens:
                raise BaseClassifierError(f"cannot read {request.prepared.name}")
        return [np.zeros(len(request.kept), dtype=np.int64) for request in requests]


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text has been split into words."""
    counts: Counter[str] = Counter()
    split = Words.split

    def counting(self: Words, text: Any) -> Any:
        counts[text] += 1
        return split(self, text)

    monkeypatch.setattr(Words, "split", counting)
    return counts


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> set[VotePool]:
    """The pools that took votes."""
    used: set[VotePool] = set()
    step = VotePool.step

    def recording(self: VotePool, work: int | None = None) -> Any:
        used.add(self)
        return step(self, work)

    monkeypatch.setattr(VotePool, "step", recording)
    return used


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("certifier") / "model")


def distinct_texts() -> tuple[list[str], list[int]]:
    """Texts that differ from one another, so that a second split of one of them shows; long enough for smoothing."""
    pairs = examples(COUNT, seed=7)
    return [f"number{n} {'word ' * 20}{text}" for n, (text, _) in enumerate(pairs)], [label for _, label in pairs]


def data_file(folder: Path) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(*distinct_texts(), strict=True)]
    return write_rows(folder / "data.jsonl", rows)


def run_in_memory(model: SmoothedClassifier, folder: Path) -> None:
    texts, labels = distinct_texts()
    ad.evaluate(model, texts, labels=labels, out=folder / "run", progress=False)


def run_of_a_folder(model: SmoothedClassifier, folder: Path) -> None:
    model.save(folder / "model")
    assert run("certify", folder / "model", "--data", data_file(folder), "--out", folder / "run") == 0


def training_of_a_folder(model: SmoothedClassifier, folder: Path) -> None:
    assert run("train", "--data", data_file(folder), "--set", "bits=8", "--out", folder / "model") == 0


PATHS: dict[str, Callable[[SmoothedClassifier, Path], object]] = {
    "certify": lambda model, folder: model.certify(distinct_texts()[0]),
    "predict": lambda model, folder: model.predict(distinct_texts()[0]),
    "evaluate": run_in_memory,
    "adaptdel certify": run_of_a_folder,
    "calibrate in bins": lambda model, folder: calibrate(model, *distinct_texts(), progress=False, **BINS),
    "calibrate by the default objective": lambda model, folder: calibrate(
        model, *distinct_texts(), progress=False, n_select=8, n_estimate=16, points=3, examples=20
    ),
    "adaptdel train": training_of_a_folder,
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_every_path_uses_the_engine_and_splits_each_text_once(
    path: Callable[[SmoothedClassifier, Path], object],
    folder: Path,
    tmp_path: Path,
    splits: Counter[str],
    engines: set[VotePool],
) -> None:
    model = SmoothedClassifier.load(folder)
    path(model, tmp_path)
    assert splits == dict.fromkeys(distinct_texts()[0], 1)
    assert engines


def named(texts: Iterable[str]) -> Iterator[Input]:
    return (Input(text, f"input {n}", n) for n, text in enumerate(texts))


def test_one_input_fails_and_the_others_are_certified(splits: Counter[str]) -> None:
    """Also without a second split, although the inputs in flight are certified again one by one."""
    texts = [f"{n} " + "poison " * (n % 7 == 3) + "word " * 20 for n in range(100)]
    certifier = SmoothedClassifier(Refusing(), Deletion(FixedRate(0.9))).certifier()
    results = {result.input.tag: result for result in certifier(named(texts))}
    assert sorted(results) == list(range(100))
    for number, result in results.items():
        assert result.failure == (f"cannot read input {number}" if number % 7 == 3 else None)
        assert (result.certificate is None) == (number % 7 == 3)
    assert splits == dict.fromkeys(texts, 1)


def test_an_invalid_input_is_a_failure() -> None:
    certifier = SmoothedClassifier(Refusing(), Deletion(FixedRate(0.9))).certifier()
    results = {result.input.tag: result for result in certifier(named(["a b", 3, "c d"]))}  # type: ignore[list-item]
    assert results[1].failure == "an input must be a text (str) for the unit 'word', got int"
    assert [results[number].failure for number in (0, 2)] == [None, None]


def test_another_noise_for_prepared_inputs(folder: Path) -> None:
    """`under` gives the votes of a certifier that was made with the noise, without preparing the input again."""
    model = SmoothedClassifier.load(folder)
    certifier = model.certifier()
    prepared = certifier.prepare("w1 w2 w3 " * 20, "input 0")
    noise = Deletion(FixedRate(0.8))
    other = certifier.under(noise)
    assert certifier.rule.noise != noise
    [(_, tally)] = other.votes([prepared])
    fresh = Certifier(certifier.base, replace(certifier.plan, rule=replace(certifier.rule, noise=noise)), model.unit)
    [(_, expected)] = fresh.votes([fresh.prepare("w1 w2 w3 " * 20, "input 0")])
    assert other.certificate(prepared, tally) == fresh.certificate(prepared, expected)


# The pool: plans of their own, shared steps, observers, cancelled and stopped inputs, isolated failures.


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
