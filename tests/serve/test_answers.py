"""What a request is told: votes as they come, looks, results of every kind of evidence, the influence of tokens."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest

from adaptdel.certification.sampling import stream
from adaptdel.serve import schemas
from adaptdel.serve.answers import Job
from adaptdel.text.units import content_key
from tests.serve.serving import NOISE, SEED, call, exact, model, service, text, without_seed


def test_a_stream_tells_votes_looks_and_results() -> None:
    texts = [text(60, 0.6), text(3)]
    [answer] = call(service(), lambda c: c.certify(*texts, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen = answer.events()
    assert seen[-1] == ("done", {})
    results = {value["index"]: value for name, value in seen if name == "result"}
    [certificate] = model(seed=SEED).certify(texts[:1])
    assert results[0]["certificate"] == without_seed(certificate)
    evidence: Any = certificate.evidence
    looks = [value for name, value in seen if name == "look" and value["index"] == 0]
    assert [look["votes"] for look in looks] == [dict(zip(("neg", "pos"), v, strict=True)) for v in evidence.votes]
    assert [look["look"] for look in looks] == list(range(1, len(evidence.votes) + 1))
    assert all(look["looks"] == list(evidence.looks.sizes) for look in looks)
    assert (looks[-1]["lower"], looks[-1]["radius"]) == (evidence.bounds(certificate.plan)[0], certificate.radius)
    votes = [value for name, value in seen if name == "votes" and value["index"] == 0]
    assert {vote["phase"] for vote in votes} == {"selection", "estimation"}
    for phase in ("selection", "estimation"):
        totals = [vote["total"] for vote in votes if vote["phase"] == phase]
        assert totals == sorted(totals)
    assert list(votes[-1]["votes"].values()) == list(evidence.votes[-1])
    assert [v["phase"] for name, v in seen if name == "votes" and v["index"] == 1] == ["enumeration"]


def test_influence_counts_the_estimation_votes() -> None:
    """Against the copies, drawn again with the seed."""
    sample = text(60, 0.55)
    [answer] = call(service(), lambda c: c.certify(sample, influence=True))
    result = answer.result
    total = sum(result["certificate"]["evidence"]["votes"][-1])
    tokens = sample.split()
    kept = NOISE.sample(60, total, stream(SEED, content_key(tuple(tokens)), "estimate"))
    agrees = np.array([result["label"] == vote for vote in _votes(tokens, kept)])
    assert "margin" not in result
    assert result["tokens"] == tokens
    assert 0 < agrees.sum() < total
    for place, row in enumerate(result["influence"]):
        column = kept[:, place]
        counts = (column.sum(), (column & agrees).sum(), (~column).sum(), (~column & agrees).sum())
        assert (row["kept"], row["for"], row["deleted"], row["for_when_deleted"]) == counts


def _votes(tokens: list[str], kept: Any) -> list[str]:
    copies = [" ".join(token for token, keep in zip(tokens, row, strict=True) if keep) for row in kept]
    return ["pos" if 2 * copy.count("p") > len(copy.split()) else "neg" for copy in copies]


def test_influence_of_an_enumerated_text_is_exact() -> None:
    sample = "p1 n2 p3"
    [answer] = call(service(), lambda c: c.certify(sample, influence=True))
    rows, noise = answer.result["influence"], NOISE
    chances = noise.choice_weights(3)
    kept = noise.all_choices(3)
    weights = np.array([float(chances[row.sum()]) for row in kept]) * len(kept)
    agrees = np.array([answer.result["label"] == vote for vote in _votes(sample.split(), kept)])
    for place, row in enumerate(rows):
        assert row["kept"] == pytest.approx(weights[kept[:, place]].sum())
        assert row["for"] == pytest.approx(weights[kept[:, place] & agrees].sum())
        assert row["for_when_deleted"] == pytest.approx(weights[~kept[:, place] & agrees].sum())


def test_results_of_an_exact_model_are_those_of_the_library() -> None:
    samples = ["good film", "bad plot and a great cast", "", "never seen words", "good " * 50]
    many, stream, deletions, prediction = call(
        service(exact()),
        lambda c: c.certify(*samples, influence=True),
        lambda c: c.certify(*samples, stream=True),
        lambda c: c.certify(samples[0], ops=["del"], votes={"estimate": 10}, alpha=0.2),
        lambda c: c.post("/v1/predict", {"text": samples[0]}),
    )
    results, expected = many.json()["results"], exact().certify(samples)
    for result, certificate in zip(results, expected, strict=True):
        schemas.CertifyResult.model_validate(result)
        assert result["certificate"] == certificate.to_dict()
        assert (result["label"], result["radius"], result["alpha"]) == (certificate.label, certificate.radius, 0)
        assert result["radii"] == {ops: certificate.radius_for(ops) for ops in ("del", "ins", "sub", "edit")}
        assert result["character_radius"] == certificate.character_radius
        assert (result["calls"], result["score"], result["deadline_reached"]) == (0, None, False)
        assert result["margin"] == certificate.explain().details["margin"]
        assert result["margin"]["counterexample"] == certificate.counterexample()
        assert len(result["margin"]["deletion"]) == len(result["tokens"]) == certificate.length
    assert [name for name, _ in stream.events()] == ["result"] * len(samples) + ["done"]
    streamed = {value["index"]: value for name, value in stream.events() if name == "result"}
    assert [streamed[number]["certificate"] for number in range(len(samples))] == [c.to_dict() for c in expected]
    assert not {"tokens", "influence", "margin"} & set(streamed[0])
    assert (deletions.result["radius"], deletions.result["ops"]) == (expected[0].radius_for("del"), ["del"])
    assert prediction.result["label"] == expected[0].label
    assert list(prediction.result["scores"].values()) == expected[0].evidence.class_scores(expected[0].plan)


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_answer_is_not_encoded_by_the_event_loop(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded_by: list[tuple[int, str]] = []
    dumps = json.dumps

    def recorded(value: Any, **options: Any) -> str:
        encoded = dumps(value, **options)
        encoded_by.append((len(encoded), threading.current_thread().name))
        return encoded

    monkeypatch.setattr(json, "dumps", recorded)
    [answer] = call(service(exact()), lambda c: c.certify("good " * 2000, "bad", stream=stream))
    assert len(answer.body) > 20_000
    threads = {thread for size, thread in encoded_by if size > 15_000}
    assert threads == {"adaptdel-m0"}


def test_the_messages_of_a_client_that_does_not_read_stay_few() -> None:
    async def run() -> None:
        job = Job("m0", [b"a", b"b"], model().certifier(), lambda job: None, deadline=0)
        for number in range(10_000):
            job.put("votes", number % 2, {"phase": "estimation", "total": number})
            if number % 1000 == 0:
                job.put("look", 0, number)
        for index in (0, 1):
            job.put("result", index, index)
        messages = [message async for message in job.messages()]
        assert [value for name, value in messages if name == "look"] == list(range(0, 10_000, 1000))
        assert [value["total"] for name, value in messages if name == "votes"] == [9998, 9999]
        assert messages[-2:] == [("result", 0), ("result", 1)]

    asyncio.run(run())
