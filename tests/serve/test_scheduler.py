"""Requests of many callers in one pool: the same certificates, fairness, deadlines, cancelled and failed requests."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Input
from adaptdel.certification.verify import verify
from adaptdel.classifiers.base import BaseClassifierError
from adaptdel.classifiers.foreign import ForeignModelError
from adaptdel.serve import schemas
from adaptdel.serve.scheduler import ADMISSION_SECONDS
from tests.serve.serving import (
    LONG,
    SEED,
    Caller,
    Clock,
    Counter,
    call,
    calling,
    check_problem,
    exact,
    model,
    service,
    text,
    until,
    without_seed,
)


def waiting_texts(running: Any) -> int:
    return sum(running.models["m0"].sizes())


def test_64_callers_of_texts_of_all_lengths_get_the_certificates_of_single_requests() -> None:
    lengths = [0, 1, 3, 8, 20, 60, 300, 1500]
    texts = [text(lengths[n % 8], 0.3 + 0.01 * n, f"x{n}") for n in range(64)]
    counter = Counter(waits=True)
    running = service(model(counter), batch_tokens=10**6)

    async def run() -> list[Any]:
        async with calling(running) as caller:
            tasks = [asyncio.ensure_future(caller.certify(sample)) for sample in texts]
            await until(lambda: waiting_texts(running) == 64)
            counter.allow()
            return list(await asyncio.gather(*tasks))

    answers = asyncio.run(run())
    shared_calls = counter.calls
    library = model(counter, seed=SEED)
    for sample, answer in zip(texts, answers, strict=True):
        [certificate] = library.certify([sample])
        assert answer.result["certificate"] == without_seed(certificate)
    assert shared_calls < (counter.calls - shared_calls) / 2  # copies of many callers were classified together


def test_a_request_does_not_fill_the_pool() -> None:
    """A request of ten texts and four of one text; the lengths in the pool are read at every batch."""
    in_pool: list[list[int]] = []

    def seen() -> None:
        in_pool.append([len(ticket.prepared.tokens) for ticket in scheduler.pool._active])

    counter = Counter(waits=True, seen=seen)
    running = service(model(counter, n_estimate=3000, sampling="fixed"), pool_inputs=8, request_inputs=3)
    scheduler: Any = running.models["m0"]

    async def run() -> None:
        async with calling(running) as caller:
            batch = asyncio.ensure_future(caller.certify(*(text(20, 0.5, f"b{n}") for n in range(10))))
            single = [asyncio.ensure_future(caller.certify(text(100, 0.5, f"l{n}"))) for n in range(4)]
            await until(lambda: waiting_texts(running) == 14)
            counter.allow()
            answers = await asyncio.gather(*single, batch)
            assert all(answer.status == 200 for answer in answers)
            assert scheduler.sizes() == (0, 0)

    asyncio.run(run())
    assert max(map(len, in_pool)) == 7
    assert max(lengths.count(20) for lengths in in_pool) == 3


def test_a_client_that_leaves_stops_its_votes() -> None:
    """Three callers share the batches; two leave while the fourth is classified and are in no later one."""
    counter, gone = Counter(waits=True), asyncio.Event()
    running = service(model(counter, n_estimate=20000, sampling="fixed"))
    leaver = {"text": text(50, name="leaver")}

    def with_leavers() -> list[bool]:
        return [any("leaver" in copy for copy in copies) for copies in counter.batches]

    async def run() -> None:
        async with calling(running) as caller:
            kept = asyncio.ensure_future(caller.certify(text(30)))
            left = asyncio.ensure_future(caller.post("/v1/certify", leaver, leave=gone))
            stream = asyncio.ensure_future(caller.post("/v1/certify", {**leaver, "stream": True}, leave=gone))
            await until(lambda: waiting_texts(running) == 3)
            counter.allow(3)
            await until(lambda: counter.calls == 4)
            assert with_leavers()[1:] == [True, True, True]
            gone.set()
            await left
            assert "result" not in dict((await stream).events())
            assert not kept.done()
            counter.allow()
            assert (await kept).status == 200
            assert counter.calls > 4
            assert not any(with_leavers()[4:])
            assert 'requests_total{code="499",route="/v1/certify"} 2.0' in running.meters.page().decode()
            assert running.models["m0"].sizes() == (0, 0)
            assert running.in_flight == 0

    asyncio.run(run())


def test_a_result_that_comes_as_the_client_leaves_ends_the_request() -> None:
    """It must not wait for a message that never comes."""
    counter = Counter(waits=True)
    running = service(model(counter))

    async def run() -> None:
        async with calling(running):
            answers = running.submit(schemas.CertifyBody.model_validate({"text": text(30)}))
            results = asyncio.ensure_future(answers.results())
            await until(lambda: counter.calls == 1)
            answers.put("result", 0, (0, b"{}"))
            answers.cancel()
            await asyncio.wait_for(results, LONG)
            counter.allow()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_returns_the_looks_so_far(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks are a beginning of those without a deadline; the certificate is valid. A copy takes 0.1 ms."""
    sample, counter = text(60, 0.66), Counter()
    library = model(seed=SEED, n_estimate=20000)
    unhurried = library.certifier(replace(library.plan, interrupted=True))
    [result] = unhurried([Input(sample, "")])
    whole: Any = result.certificate
    assert len(whole.evidence.votes) > 5
    Clock(counter, copy=1e-4).replace(monkeypatch)
    running = service(model(counter, n_estimate=20000))
    [answer] = call(running, lambda c: c.certify(sample, deadline_ms=200, stream=stream))
    result = dict(answer.events())["result"] if stream else answer.result
    certificate: Any = Certificate.from_dict(result["certificate"])
    votes = certificate.evidence.votes
    assert result["deadline_reached"]
    assert 3 <= len(votes) < len(whole.evidence.votes)
    assert votes == whole.evidence.votes[: len(votes)]
    assert certificate.evidence.looks == whole.evidence.looks
    assert verify(result["certificate"]) == []
    assert result["radius"] == certificate.radius <= whole.radius
    assert result["calls"] >= certificate.calls
    assert 2000 <= counter.copies < 3000  # no batch begins after the deadline
    assert counter.copies <= result["calls"]
    assert 'adaptdel_deadlines_reached_total{model="m0"} 1.0' in running.meters.page().decode()


def test_a_deadline_before_the_first_look_abstains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes 0.2 s. The first text gets one, the second none."""
    counter = Counter(waits=True)
    Clock(counter, call=0.2).replace(monkeypatch)
    running = service(model(counter, n_select=32), request_inputs=1, pool_inputs=1)

    async def run() -> list[Any]:
        async with calling(running) as caller:
            first = asyncio.ensure_future(caller.certify(text(60), deadline_ms=150))
            await until(lambda: waiting_texts(running) == 1)
            second = asyncio.ensure_future(caller.certify(text(70), deadline_ms=50))
            await until(lambda: waiting_texts(running) == 2)
            counter.allow()
            return [await first, await second]

    early, never = asyncio.run(run())
    for answer in (early, never):
        result = answer.result
        assert (result["radius"], result["abstained"], result["certificate"]) == (-1, True, None)
        assert set(result["radii"].values()) == {-1}
        assert result["deadline_reached"]
    assert (early.result["label"], early.result["calls"]) == ("pos", 32)
    assert (never.result["label"], never.result["calls"]) == (None, 0)


class PanicException(BaseException):
    """What PyO3 raises for a panic in Rust: no `Exception`."""


def panic(*_: Any, **__: Any) -> Any:
    raise PanicException("secret")


def tokenizer_panics(*_: Any, **__: Any) -> Any:
    raise BaseClassifierError("failed on this text") from ForeignModelError("panicked")


def tokenizer_panics_at_once(*_: Any, **__: Any) -> Any:
    raise ForeignModelError("panicked")


def unstable() -> ad.SmoothedClassifier:
    flips = iter(range(10**9))
    flipping = model(lambda copies: ["neg" if next(flips) % 2 else "pos" for _ in copies])
    flipping.base.recheck = 64
    return flipping


@pytest.mark.parametrize(
    ("place", "change", "reason"),
    [
        ("", None, "gave the same copy of a text two answers"),
        ("prepare", panic, "broke down (PanicException)"),
        ("votes", panic, "broke down (PanicException)"),
        ("votes", tokenizer_panics, "broke down (its tokenizer panicked)"),
        ("prepare", tokenizer_panics_at_once, "broke down (its tokenizer panicked)"),
    ],
)
def test_a_faulty_model_is_not_served_any_more(
    place: str, change: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone gets an answer, which holds nobody's text; later requests are refused; the other model goes on."""
    faulty = model() if place else unstable()
    if place:
        monkeypatch.setattr(faulty.base, place, change)
    running = service(faulty, model())

    async def run() -> list[Any]:
        async with calling(running) as caller:
            tasks = [caller.certify(text(60, 0.5, f"secret{n}")) for n in range(3)]
            first = await asyncio.wait_for(asyncio.gather(*tasks), LONG)
            assert {answer.status for answer in first} <= {422, 503}
            assert not any(b"secret" in answer.body for answer in first)
            assert (await caller.certify(text(30), model="m1")).status == 200
            return [await caller.certify("later"), await caller.get("/readyz")]

    for answer in asyncio.run(run()):
        check_problem(answer, 503, f"the model 'm0' {reason}")


@pytest.mark.parametrize("path", ["certify", "predict"])
def test_deadlines_and_short_requests_hold_behind_long_ones_also_without_votes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come while the first text of a long request is answered."""
    answered: list[str] = []
    go_on, running = threading.Event(), service(exact())
    served = running.models["m0"]
    prepare = served.certifier.prepare_tokens

    def slowly(tokens: Any, name: str) -> Any:
        answered.append(" ".join(tokens))
        assert go_on.wait(LONG)
        time.sleep(ADMISSION_SECONDS)  # beyond the deadline, and one text in a round
        return prepare(tokens, name)

    monkeypatch.setattr(served.certifier, "prepare_tokens", slowly)

    async def run() -> list[Any]:
        async with calling(running) as caller:
            many = asyncio.ensure_future(caller.certify(*(f"good {n}" for n in range(8)), influence=True))
            await until(lambda: len(answered) == 1)
            bodies: list[Any] = [{"text": "late", "deadline_ms": 1}, {"text": "short"}]
            tasks = [asyncio.ensure_future(caller.post(f"/v1/{path}", body)) for body in bodies]
            await until(lambda: served.sizes()[0] == 10)
            go_on.set()
            return [await each for each in (*tasks, many)]

    late, short, many = asyncio.run(run())
    assert answered == ["good 0", "short", *(f"good {n}" for n in range(1, 8))]
    assert late.result["deadline_reached"]
    assert late.result["label"] is None
    if path == "certify":
        schemas.CertifyResult.model_validate(late.result)
        assert late.result["radii"] == dict.fromkeys(("del", "ins", "sub", "edit"), -1)
    assert not short.result["deadline_reached"]
    assert all("certificate" in result for result in many.json()["results"])


def test_a_full_queue_refuses_and_says_when_to_try_again() -> None:
    counter = Counter(waits=True)
    running = service(model(counter), queue=10, pool_inputs=1, request_inputs=1)

    async def run() -> None:
        async with calling(running) as caller:
            samples = [[text(30, 0.5, f"{n}x{m}") for m in range(4)] for n in range(4)]
            tasks = [asyncio.ensure_future(caller.certify(*texts)) for texts in samples]
            await until(lambda: sum(task.done() for task in tasks) == 2)
            for task in filter(asyncio.Task.done, tasks):
                check_problem(task.result(), 429)
                assert int(task.result().headers["retry-after"]) >= 1
            counter.allow()
            assert sorted(answer.status for answer in await asyncio.gather(*tasks)) == [200, 200, 429, 429]

    asyncio.run(run())


@pytest.mark.parametrize("unit", ["char", "byte", "chunk:2"])
def test_a_text_whose_length_cannot_fit_is_refused_before_its_turn(unit: str) -> None:
    counter = Counter(waits=True)
    running = service(model(lambda copies: counter([str(copy) for copy in copies]), unit=unit), tokens=50, queue=2)

    async def run() -> None:
        async with calling(running) as caller:
            first = asyncio.ensure_future(caller.certify("p" * 40))
            await until(lambda: counter.calls == 1)
            refused = await asyncio.wait_for(caller.certify("x" * 101), LONG)
            check_problem(refused, 413, f"the text has {51 if unit == 'chunk:2' else 101} tokens")
            batch = asyncio.ensure_future(caller.certify("x" * 101, "n" * 40))
            await until(lambda: waiting_texts(running) == 2)
            counter.allow()
            assert (await first).status == 200
            failed, answered = (await batch).json()["results"]
            assert failed["error"].startswith("the text has")
            assert answered["length"] == (20 if unit == "chunk:2" else 40)

    asyncio.run(run())


def test_a_service_that_stops_refuses_what_is_in_flight() -> None:
    counter = Counter(waits=True)
    running = service(model(counter), pool_inputs=2)

    async def run() -> list[Any]:
        running.start()
        caller = Caller(running)
        tasks = [asyncio.ensure_future(caller.certify(text(30, 0.5, str(n)))) for n in range(5)]
        tasks.append(asyncio.ensure_future(caller.certify(text(30), text(31), stream=True)))
        await until(lambda: running.in_flight == 6 and counter.calls == 1)
        stopping = asyncio.ensure_future(asyncio.to_thread(running.stop))
        await until(lambda: running.models["m0"]._stopped)
        counter.allow()
        await stopping
        return list(await asyncio.gather(*tasks))

    *answers, stream = asyncio.run(run())
    for answer in answers:
        check_problem(answer, 503, "the server is shutting down")
    failed = [value for name, value in stream.events() if name == "failed"]
    assert {value["index"] for value in failed} == {0, 1}
    assert {value["status"] for value in failed} == {503}
