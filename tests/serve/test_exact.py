"""Exact models behind the server: the certificates of the library, at once, beside smoothed models."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.serve import Client, schemas
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.scheduler import ADMISSION_SECONDS
from adaptdel.serve.service import ModelToServe, Service
from tests.models.test_additive import SETTINGS, films
from tests.serve.serving import LONG, call, calling, check_problem, model, process, text, until

INPUTS = [*films(2, 12, seed=1)[0], "", "never seen words", "good " * 50]


@pytest.fixture(scope="module")
def exact() -> ad.AdditiveClassifier:
    return ad.AdditiveClassifier(settings=SETTINGS, progress=False).fit(*films(2))


def running(exact: ad.AdditiveClassifier, **settings: Any) -> Service:
    return Service([ModelToServe("exact", exact), ModelToServe("votes", model())], ServeSettings(**settings))


def test_certificates_equal_those_of_the_library(exact: ad.AdditiveClassifier) -> None:
    expected = exact.certify(INPUTS)
    many, stream, votes = call(
        running(exact),
        lambda c: c.certify(*INPUTS, influence=True),
        lambda c: c.certify(*INPUTS, stream=True),
        lambda c: c.certify(text(60), model="votes", influence=True),
    )
    results = many.json()["results"]
    assert "margin" not in votes.result
    for result, certificate in zip(results, expected, strict=True):
        schemas.CertifyResult.model_validate(result)
        assert result["certificate"] == certificate.to_dict()
        assert (result["label"], result["radius"], result["alpha"]) == (certificate.label, certificate.radius, 0)
        assert result["radii"] == {ops: certificate.radius_for(ops) for ops in ("del", "ins", "sub", "edit")}
        assert result["character_radius"] == certificate.character_radius
        assert (result["calls"], result["score"], result["deadline_reached"]) == (0, None, False)
        assert result["margin"]["counterexample"] == certificate.counterexample()
        assert result["margin"]["slack"] == certificate.closest[1].slack
        assert len(result["margin"]["deletion"]) == len(result["tokens"]) == certificate.length
    assert [name for name, _ in stream.events()] == ["result"] * len(INPUTS) + ["done"]
    streamed = {value["index"]: value["certificate"] for name, value in stream.events() if name == "result"}
    assert [streamed[number] for number in range(len(INPUTS))] == [result["certificate"] for result in results]


def test_operations_predictions_and_the_models(exact: ad.AdditiveClassifier) -> None:
    certificate = exact.certify(INPUTS[:1])[0]
    deletions, prediction, models = call(
        running(exact),
        lambda c: c.certify(INPUTS[0], ops=["del"], votes={"estimate": 10}, alpha=0.2),
        lambda c: c.post("/v1/predict", {"text": INPUTS[0]}),
        lambda c: c.get("/v1/models"),
    )
    assert (deletions.result["radius"], deletions.result["ops"]) == (certificate.radius_for("del"), ["del"])
    assert prediction.result["label"] == certificate.label
    assert list(prediction.result["scores"].values()) == certificate.totals.tolist()
    assert [entry["votes"] is None for entry in models.json()["models"]] == [True, False]


def test_limits_and_the_end(exact: ad.AdditiveClassifier) -> None:
    service = running(exact, tokens=20, queue=3)

    async def run() -> None:
        async with calling(service) as caller:
            check_problem(await caller.certify("good " * 21), 413, "the text has 21 tokens")
            assert "the text has 21" in (await caller.certify("good", "bad " * 21)).json()["results"][1]["error"]
            together = (await caller.certify("good " * 15, "bad " * 15, influence=True)).json()["results"]
            assert together[1]["error"].startswith("with influence, all texts together may have at most 20 tokens")
            check_problem(await caller.certify(*INPUTS[:4]), 429)
            await until(lambda: service.models["exact"].sizes() == (0, 0))
            service.close()
            check_problem(await caller.certify("good"), 503)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["certify", "predict"])
def test_deadlines_and_short_requests_hold_behind_long_ones(
    exact: ad.AdditiveClassifier, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come while the first text of a long request is answered."""
    answered: list[str] = []
    go_on, certify = threading.Event(), exact.certify

    def slowly(texts: list[str]) -> Any:
        answered.extend(texts)
        assert go_on.wait(LONG)
        time.sleep(ADMISSION_SECONDS)  # beyond the deadline, and one text in a round
        return certify(texts)

    service = running(exact)
    monkeypatch.setattr(exact, "certify", slowly)

    async def run() -> list[Any]:
        async with calling(service) as caller:
            many = asyncio.ensure_future(caller.certify(*(f"good {n}" for n in range(8)), influence=True))
            await until(lambda: len(answered) == 1)
            bodies: list[Any] = [{"text": "late", "deadline_ms": 1}, {"text": "short"}]
            tasks = [asyncio.ensure_future(caller.post(f"/v1/{path}", body)) for body in bodies]
            await until(lambda: service.models["exact"].sizes()[0] == 10)
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_answer_is_not_encoded_by_the_event_loop(
    exact: ad.AdditiveClassifier, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_by: list[tuple[int, str]] = []
    dumps = json.dumps

    def recorded(value: Any, **options: Any) -> str:
        encoded = dumps(value, **options)
        encoded_by.append((len(encoded), threading.current_thread().name))
        return encoded

    monkeypatch.setattr(json, "dumps", recorded)
    [answer] = call(running(exact), lambda c: c.certify("good " * 2000, "bad", stream=stream))
    assert len(answer.body) > 20_000
    assert {thread for size, thread in encoded_by if size > 15_000} == {"adaptdel-exact"}


def test_a_client(exact: ad.AdditiveClassifier, tmp_path: Path) -> None:
    exact.save(tmp_path / "filter")
    with process(tmp_path / "filter") as (address, _), Client(address) as client:
        answers = client.certify(INPUTS, influence=True)
        for answer, certificate in zip(answers, exact.certify(INPUTS), strict=True):
            assert isinstance(answer.certificate, ad.ExactCertificate)
            assert (answer.label, answer.radius) == (certificate.label, certificate.radius)
            assert answer.margin is not None
