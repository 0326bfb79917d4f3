"""Exact models behind the server: the certificates of the library, at once, beside smoothed models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.serve import Client, schemas
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.service import ModelToServe, Service
from tests.models.test_additive import SETTINGS, films
from tests.serve.serving import call, calling, check_problem, model, process, text, until

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
        lambda c: c.certify(*INPUTS, stream=True, deadline_ms=1),
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
            check_problem(await caller.certify(*INPUTS[:4]), 429)
            await until(lambda: service.models["exact"].sizes() == (0, 0))
            service.close()
            check_problem(await caller.certify("good"), 503)

    asyncio.run(run())


def test_a_client(exact: ad.AdditiveClassifier, tmp_path: Path) -> None:
    exact.save(tmp_path / "filter")
    with process(tmp_path / "filter") as (address, _), Client(address) as client:
        answers = client.certify(INPUTS, influence=True)
        for answer, certificate in zip(answers, exact.certify(INPUTS), strict=True):
            assert isinstance(answer.certificate, ad.ExactCertificate)
            assert (answer.label, answer.radius) == (certificate.label, certificate.radius)
            assert answer.margin is not None
