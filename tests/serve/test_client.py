"""The client against a real server in a process, and its retries against one that refuses."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.serve import Client, RemoteClassifier, ServeError
from tests.run_files import examples, make_model
from tests.serve.serving import LONG, SEED, process, text

TOKEN = "a-long-and-secret-token"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("client") / "model", labels=("neg", "pos"))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with process(folder, f"other={folder}", "slow", "--seed", SEED, ADAPTDEL_TOKEN=TOKEN, COPY_SECONDS="0.005") as (
        url,
        _,
    ):
        yield url


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, token=TOKEN) as opened:
        yield opened


TEXTS = [text for text, _ in examples(40, seed=9)]


def test_certificates_are_those_of_the_library(client: Client, folder: Path) -> None:
    library = ad.SmoothedClassifier.load(folder).set_params(seed=SEED, progress=False)
    expected = library.certify(TEXTS)
    answers = client.certify(TEXTS)
    assert [answer.certificate for answer in answers] == [replace(c, seed=None) for c in expected]
    assert [answer.radius for answer in answers] == [c.radius for c in expected]
    single = client.certify(TEXTS[0], alpha=0.01, ops=["sub"], votes={"select": 32, "estimate": 100}, influence=True)
    [changed] = library.set_params(alpha=0.01, ops=("sub",), n_select=32, n_estimate=100).certify(TEXTS[:1])
    assert single.certificate == replace(changed, seed=None)
    assert single.radii["sub"] == changed.radius
    assert single.tokens is not None
    assert len(single.tokens) == changed.length
    assert single.abstained == changed.abstained


def test_predictions_models_and_verification(client: Client, folder: Path) -> None:
    library = ad.SmoothedClassifier.load(folder).set_params(seed=SEED, progress=False)
    assert [answer.label for answer in client.predict(TEXTS)] == library.predict(TEXTS).tolist()
    assert client.predict(TEXTS[3]).label == library.predict([TEXTS[3]])[0]
    assert [model["name"] for model in client.models()["models"]] == ["model", "other", "slow"]
    certificate = client.certify(TEXTS[5], model="other").certificate
    assert certificate is not None
    assert client.verify(certificate).valid
    values = certificate.to_dict()
    values["derived"]["radius"] += 1
    assert not client.verify(values).valid


def test_a_stream_and_leaving_it(client: Client) -> None:
    names = [event.name for event in client.stream(TEXTS[3:5])]
    assert names[-1] == "done"
    assert names.count("result") == 2
    events = client.stream(text(60), model="slow", votes={"estimate": 20000}, alpha=1e-30)
    assert next(events).name == "votes"
    events.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 60  # all votes take 100 seconds
    while client_pool(client):
        assert time.monotonic() < end
        time.sleep(0.05)


def client_pool(client: Client) -> float:
    """The number of texts that are voted on, of all models."""
    connection, response = client._send("GET", "/metrics", None)
    rows = response.read().decode().splitlines()
    connection.close()
    return sum(float(row.split()[-1]) for row in rows if row.startswith("adaptdel_pool_texts{"))


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
    with pytest.raises(ServeError, match="text 1: text 1 has 20001 tokens"):
        client.certify(["a", "a " * 20001])
    with pytest.raises(ServeError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Client("http://127.0.0.1:9").models()
    with pytest.raises(ValueError, match="url must be an address"):
        Client("localhost:8750")
    assert TOKEN not in repr(client)


def test_threads_share_a_client(client: Client) -> None:
    expected = [answer.certificate for answer in client.certify(TEXTS)]
    answers: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: client.certify(TEXTS[n]).certificate}))
        for n in range(len(TEXTS))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[n] for n in range(len(TEXTS))] == expected


def test_a_remote_classifier_has_the_shape_of_scikit_learn_and_textattack(client: Client, folder: Path) -> None:
    remote = RemoteClassifier(client, model="other")
    library = ad.SmoothedClassifier.load(folder).set_params(seed=SEED, progress=False)
    texts = TEXTS * 2  # more than fit into a request
    assert remote.classes_.tolist() == ["neg", "pos"]
    assert remote.predict(texts).tolist() == library.predict(texts).tolist()
    scores = remote.predict_proba(texts)
    assert scores.shape == (80, 2)
    assert np.allclose(scores.sum(axis=1), 1)
    assert np.array_equal(remote(texts), scores)
    assert remote([]).shape == (0, 2)
    with pytest.raises(ServeError, match="there is no model 'none'"):
        RemoteClassifier(client, model="none")


@contextmanager
def refusing(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[float]]]:
    """A server that gives these answers one after the other; the times of the requests."""
    waiting, times = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            times.append(time.monotonic())
            status, headers, body = waiting.pop(0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = "Close" in headers

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", times
        finally:
            server.shutdown()
            thread.join()


BUSY = json.dumps({"detail": "busy"}).encode()


def test_refused_requests_are_sent_again_after_the_time_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("adaptdel.serve.client.time.sleep", waits.append)
    refusals = [(429, {"Retry-After": "3"}, BUSY), (503, {}, BUSY), (429, {"Retry-After": "9999"}, BUSY)]
    with refusing(*refusals, (200, {}, b'{"models": []}')) as (url, times), Client(url) as client:
        assert client.models() == {"models": []}
        assert waits == [3, 1, 30]
        assert len(times) == 4


def test_retries_are_bounded_and_other_errors_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.serve.client.time.sleep", lambda seconds: None)
    with refusing(*[(429, {}, BUSY)] * 3, (500, {}, b"not JSON")) as (url, times), Client(url, retries=2) as client:
        with pytest.raises(ServeError, match=r"^busy \(status 429\)$"):
            client.models()
        assert len(times) == 3
        with pytest.raises(ServeError, match="the server answered 500 Internal Server Error"):
            client.models()
        assert len(times) == 4


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    with refusing((200, {"Close": "1"}, b"{}"), (200, {}, b"{}")) as (url, times), Client(url) as client:
        client.models()
        [idle] = client._idle
        assert select.select([idle.sock], [], [], LONG)[0]  # the end of the connection has arrived
        client.models()
        assert len(times) == 2
