"""The client against a real server in a process, and its retries against one that refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adaptdel.serve import Client, ServeError
from tests.run_files import examples, make_model
from tests.serve.serving import process, text

TOKEN = "a-long-and-secret-token"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("client") / "model", labels=("neg", "pos"))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    settings = {"ADAPTDEL_TOKEN": TOKEN, "COPY_SECONDS": "0.005"}
    with process(folder, f"other={folder}", "slow", **settings) as (url, _):
        yield url


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, token=TOKEN) as opened:
        yield opened


TEXTS = [text for text, _ in examples(40, seed=9)]


def test_the_client_reads_what_the_server_writes(client: Client, address: str) -> None:
    def post(path: str, **body: Any) -> Any:
        response = httpx2.post(f"{address}v1/{path}", json=body, headers={"Authorization": f"Bearer {TOKEN}"})
        return response.json()["results"]

    for answer, result in zip(client.certify(TEXTS), post("certify", texts=TEXTS), strict=True):
        assert answer.certificate is not None
        assert answer.certificate.to_dict() == result["certificate"]
        assert (answer.label, answer.radius, answer.abstained) == tuple(
            result[name] for name in ("label", "radius", "abstained")
        )
    predicted = post("predict", texts=TEXTS)
    assert [answer.label for answer in client.predict(TEXTS)] == [result["label"] for result in predicted]
    assert client.predict(TEXTS[3]).scores == predicted[3]["scores"]
    assert [model["name"] for model in client.models()["models"]] == ["model", "other", "slow"]
    options = {"alpha": 0.01, "ops": ["sub"], "votes": {"select": 32, "estimate": 100}, "influence": True}
    single, [result] = client.certify(TEXTS[0], **options), post("certify", text=TEXTS[0], **options)
    assert single.certificate is not None
    assert single.certificate.to_dict() == result["certificate"]
    assert (single.radii, single.tokens, single.influence) == (result["radii"], result["tokens"], result["influence"])


def test_a_stream_and_leaving_it(client: Client, address: str) -> None:
    names = [event.name for event in client.stream(TEXTS[3:5])]
    assert names[-1] == "done"
    assert names.count("result") == 2
    events = client.stream(text(60), model="slow", votes={"estimate": 20000}, alpha=1e-30)
    assert next(events).name == "votes"
    events.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 60  # all votes take 100 seconds
    while pool_texts(address):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_errors_have_the_sentence_of_the_server(client: Client, address: str) -> None:
    with pytest.raises(ServeError, match=r"^there is no model 'none', only 'model', 'other', 'slow' \(status 404\)$"):
        client.predict("a", model="none")
    with pytest.raises(ServeError, match="alpha: input should be less than 1, got 2"):
        client.certify("a", alpha=2)
    with Client(address) as other, pytest.raises(ServeError, match="a token is needed") as refused:
        other.models()
    assert refused.value.status == 401
    with pytest.raises(ServeError, match="the body must have at most 1048576 bytes"):
        client.certify("a " * 2**22)
    with pytest.raises(ServeError, match="text 1: the text has 20001 tokens"):
        client.certify(["a", "a " * 20001])
    with pytest.raises(ServeError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Client("http://127.0.0.1:9").models()
    with pytest.raises(ValueError, match="url must be an address"):
        Client("localhost:8750")


def test_threads_share_a_client(client: Client) -> None:
    expected = [answer.certificate for answer in client.certify(TEXTS)]
    with ThreadPoolExecutor(len(TEXTS)) as threads:
        assert [answer.certificate for answer in threads.map(client.certify, TEXTS)] == expected


def pool_texts(address: str) -> float:
    """The number of texts that are voted on, of all models."""
    page = httpx2.get(f"{address}metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    return sum(float(row.split()[-1]) for row in page.splitlines() if row.startswith("adaptdel_pool_texts{"))


def refused(monkeypatch: pytest.MonkeyPatch, retries: int, *answers: httpx2.Response) -> tuple[Client, list[float]]:
    """A client of a server that gives these answers one after the other; the times that it waits."""
    waits: list[float] = []
    waiting = iter(answers)
    monkeypatch.setattr("adaptdel.serve.client.time.sleep", waits.append)
    opened = Client(retries=retries)
    opened._http = httpx2.Client(base_url=opened.url, transport=httpx2.MockTransport(lambda _: next(waiting)))
    return opened, waits


def busy(status: int, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, headers=headers, json={"detail": "busy"})


def test_refused_requests_are_sent_again_after_the_time_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [busy(429, **{"Retry-After": "3"}), busy(503), busy(429, **{"Retry-After": "9999"})]
    opened, waits = refused(monkeypatch, 4, *later, httpx2.Response(200, json={"models": []}))
    assert opened.models() == {"models": []}
    assert waits == [3, 1, 30]


def test_retries_are_bounded_and_other_errors_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, waits = refused(monkeypatch, 2, busy(429), busy(429), busy(429), httpx2.Response(500, text="not JSON"))
    with pytest.raises(ServeError, match=r"^busy \(status 429\)$"):
        opened.models()
    assert len(waits) == 2
    with pytest.raises(ServeError, match="500 Internal Server Error"):
        opened.models()
    assert len(waits) == 2
