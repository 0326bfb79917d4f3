"""What a request is told: votes as they come, looks and results, and the influence of tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.sampling import content_key, stream
from adaptdel.serve.answers import Job
from tests.serve.serving import NOISE, SEED, call, model, service, text


def test_a_stream_tells_votes_looks_and_results() -> None:
    texts = [text(60, 0.6), text(3)]
    [answer] = call(service(), lambda c: c.certify(*texts, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen = answer.events()
    assert seen[-1] == ("done", {})
    results = {value["index"]: value for name, value in seen if name == "result"}
    certificate = Certificate.from_dict(results[0]["certificate"])
    assert certificate == replace(model(seed=SEED).certify(texts[:1])[0], seed=None)
    looks = [value for name, value in seen if name == "look" and value["index"] == 0]
    assert certificate.looks is not None
    assert [look["votes"] for look in looks] == [dict(zip(("neg", "pos"), v, strict=True)) for v in certificate.votes]
    assert [look["look"] for look in looks] == list(range(1, len(certificate.votes) + 1))
    assert all(look["looks"] == list(certificate.looks.sizes) for look in looks)
    assert (looks[-1]["lower"], looks[-1]["radius"]) == (certificate.bounds[0], certificate.radius)
    votes = [value for name, value in seen if name == "votes" and value["index"] == 0]
    assert {vote["phase"] for vote in votes} == {"selection", "estimation"}
    for phase in ("selection", "estimation"):
        totals = [vote["total"] for vote in votes if vote["phase"] == phase]
        assert totals == sorted(totals)
    assert list(votes[-1]["votes"].values()) == list(certificate.votes[-1])
    assert [v["phase"] for name, v in seen if name == "votes" and v["index"] == 1] == ["enumeration"]


def test_influence_counts_the_estimation_votes() -> None:
    """Against the copies, drawn again with the seed."""
    sample = text(60, 0.55)
    [answer] = call(service(), lambda c: c.certify(sample, influence=True))
    result = answer.result
    certificate = Certificate.from_dict(result["certificate"])
    total = sum(certificate.votes[-1])
    tokens = sample.split()
    kept = NOISE.sample(60, total, stream(SEED, content_key(tuple(tokens)), "estimate"))
    agrees = np.array([result["label"] == v for v in _votes(tokens, kept)])
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


def test_without_influence_no_tokens_are_sent() -> None:
    [answer] = call(service(), lambda c: c.certify(text(20)))
    assert not {"tokens", "influence"} & set(answer.result)


def test_the_messages_of_a_client_that_does_not_read_stay_few() -> None:
    async def run() -> None:
        job = Job("m0", ["a", "b"], None, lambda job: None, deadline=0)
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
