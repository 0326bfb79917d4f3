"""What clients cannot do: read the seed or other texts, call without the token, send too much, or be too slow."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from typing import Any

import pytest

from adaptdel.certification.votes import VotesPlan
from adaptdel.serve.app import PAGE_POLICY
from tests.serve.serving import SEED, Counter, call, calling, check_problem, model, service, text, until

TOKEN = "a-long-and-secret-token"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_the_token_is_needed_before_a_body_is_read() -> None:
    """The body would be refused as too large."""
    given = [{}, *map(bearer, ("", TOKEN[:-1], TOKEN + "x", "Ä" * 10)), {"authorization": f"Basic {TOKEN}"}]
    large = {"content-type": "application/json", "content-length": str(10**9)}
    running = service(token=TOKEN)
    refused = call(
        running,
        *(lambda c, p=p, h=h: c.get(p, h) for p in ("/v1/models", "/metrics", "/nothing") for h in given),
        *(lambda c, p=p: c.send("POST", p, [b"{}"], large) for p in ("/v1/certify", "/v1/predict")),
    )
    for answer in refused:
        check_problem(answer, 401, "a token is needed")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    paths = ("/", "/healthz", "/readyz", "/openapi.json", "/page/page.css")
    running = service(token=TOKEN)
    answers = call(running, *(lambda c, p=p: c.get(p) for p in paths), lambda c: c.get("/v1/models", bearer(TOKEN)))
    assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused_as_soon_as_it_is(declared: bool) -> None:
    """Without a length it is read no further than the limit."""
    parts = [b" " * 600] * 100
    headers = {"content-type": "application/json", **({"content-length": "60000"} if declared else {})}
    [answer] = call(service(body_bytes=1000), lambda c: c.send("POST", "/v1/certify", parts, headers))
    check_problem(answer, 413, "the body must have at most 1000 bytes")
    huge = {"content-type": "application/json", "content-length": "9" * 5000}
    [endless] = call(service(body_bytes=1000), lambda c: c.send("POST", "/v1/certify", [b"{}"], huge))
    check_problem(endless, 413, "the body must have at most 1000 bytes")
    assert answer.headers["connection"] == "close"
    [fits] = call(service(body_bytes=1000), lambda c: c.post("/v1/predict", b'{"text": "a"}'.ljust(1000)))
    assert fits.status == 200


def test_a_body_with_two_lengths_is_refused() -> None:
    """A proxy that believes the other length would take a part of the body for the next request."""
    both = {"content-length": "13", "transfer-encoding": "chunked"}
    [answer] = call(service(), lambda c: c.post("/v1/certify", b'{"text": "a"}', both))
    check_problem(answer, 400, "the body has two lengths")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("name", ["authorization", "host"])
def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    values = (b"Bearer x", f"Bearer {TOKEN}".encode()) if name == "authorization" else (b"evil", b"localhost")
    headers = [(name.encode(), value) for value in values]
    [answer] = call(service(token=TOKEN), lambda c: c.send("GET", "/v1/models", headers=headers))
    check_problem(answer, 400, f"the header {name} is there twice")


def test_large_bodies_that_wait_are_bounded() -> None:
    """Small ones are not refused for them."""
    counter = Counter(waits=True)
    running = service(model(counter), queue_bytes=200_000)
    large = {"content-type": "application/json"}

    async def run() -> None:
        async with calling(running) as caller:
            waiting = [asyncio.ensure_future(caller.certify("p" * 90_000)) for _ in range(2)]
            await until(lambda: running.in_flight == 2)
            for length in ({"content-length": "90013"}, {}):
                parts = [b'{"text": "', b"p" * 90_000, b'"}']
                refused = await caller.send("POST", "/v1/certify", parts, {**large, **length})
                check_problem(refused, 429, "too many large requests wait already")
                assert refused.headers["retry-after"].isdigit()
            waiting.append(asyncio.ensure_future(caller.certify("p")))
            await until(lambda: running.in_flight == 3)
            counter.allow()
            assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
            assert running.held_bytes == 0

    asyncio.run(run())


def test_limits_of_texts_and_tokens() -> None:
    many, long, batch, influence, fine = call(
        service(texts=3, tokens=50),
        lambda c: c.certify("a", "b", "c", "d"),
        lambda c: c.certify(text(51)),
        lambda c: c.certify(text(51), text(50)),
        lambda c: c.certify(text(30), text(30), influence=True),
        lambda c: c.certify(text(25), text(25), influence=True),
    )
    check_problem(many, 413, "a request may hold at most 3 texts, got 4")
    check_problem(long, 413, "the text has 51 tokens, more than the 50 that are allowed")
    first, second = batch.json()["results"]
    assert first["error"].startswith("the text has 51 tokens")
    assert "radius" in second
    assert "error" in influence.json()["results"][1]
    assert all("influence" in result for result in fine.json()["results"])


def test_headers_of_pages_and_of_all_other_responses() -> None:
    answers = call(
        service(), lambda c: c.get("/"), lambda c: c.get("/nothing"), lambda c: c.certify("a"),
        lambda c: c.certify("a", stream=True),
    )  # fmt: skip
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
    assert answers[0].headers["content-security-policy"] == PAGE_POLICY.decode()
    for answer in answers[1:]:
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("settings", "hosts", "others"),
    [
        (
            {},
            ["localhost:8750", "127.0.0.1", "[::1]:8750", "LOCALHOST"],
            ["evil.example", "localhost.evil.example", "", "localhost:80@evil.example", "[::1].evil.example"],
        ),
        ({"host": "0.0.0.0"}, ["evil.example"], []),
        ({"allowed_hosts": ("API.example",), "host": "0.0.0.0"}, ["api.Example:8750"], ["evil.example", "10.0.0.7"]),
    ],
)
def test_a_page_of_another_host_name_cannot_call_a_server(
    settings: dict[str, Any], hosts: list[str], others: list[str]
) -> None:
    """A page of evil.example that resolves to this machine (DNS rebinding). Probes call by an address."""
    running = service(**settings)
    asked = [lambda c, h=h: c.get("/v1/models", {"host": h}) for h in (*hosts, *others)]
    *answers, probe = call(running, *asked, lambda c: c.get("/readyz", {"host": "10.0.0.7:8750"}))
    assert [answer.status for answer in answers] == [200] * len(hosts) + [421] * len(others)
    assert probe.status == 200


def test_the_seed_is_in_no_response_header_log_or_measurement(caplog: pytest.LogCaptureFixture) -> None:
    """As a number, in hexadecimal, and as bytes; also if something fails."""
    caplog.set_level(logging.DEBUG)

    def slow(copies: list[str]) -> list[str]:
        time.sleep(2e-4 * len(copies))  # 4 seconds for a text
        return ["pos"] * len(copies)

    running = service(model(), model(slow, n_estimate=20000, sampling="fixed"), token=TOKEN)
    paths = ["/v1/models", "/metrics", "/openapi.json", "/readyz", "/nothing"]
    bodies: list[Any] = [
        {"text": text(60)}, {"text": text(60), "stream": True}, {"text": text(4), "influence": True},
        {"text": "poison"}, {"text": "a", "seed": 1},
        {"text": text(30), "model": "m1", "deadline_ms": 100}, {}, {"text": "a", "alpha": 2},
    ]  # fmt: skip
    answers = call(
        running,
        *(lambda c, p=p: c.get(p, bearer(TOKEN)) for p in paths),
        *(lambda c, b=b: c.post("/v1/certify", b, bearer(TOKEN)) for b in bodies),
        *(lambda c, b=b: c.post("/v1/predict", b, bearer(TOKEN)) for b in bodies[:1]),
    )
    assert {answer.status for answer in answers} == {200, 404, 422}
    assert any(b'"deadline_reached": true' in answer.body for answer in answers)
    assert sum(b'"seed": null' in answer.body for answer in answers) >= 3
    everything = "\n".join(f"{a.headers}{a.body.decode()}" for a in answers) + caplog.text + repr(running)
    served: Any = running.models["m0"]
    everything += repr(served.certifier.plan)
    assert re.search("POST /v1/certify 200", everything)
    for form in (str(SEED), f"{SEED:x}", repr(SEED.to_bytes(8, "little")), repr(SEED.to_bytes(8, "big"))):
        assert form not in everything
    assert TOKEN not in everything


def test_a_fault_is_logged_without_texts_and_only_for_its_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is not the classifier's way to say that a text is wrong."""
    caplog.set_level(logging.DEBUG)
    secret = "confidential words of a caller"
    running = service()
    served: Any = running.models["m0"]
    prepare = served.certifier.prepare_tokens

    def fail(tokens: Any, name: str) -> Any:
        if "confidential" in tokens:
            raise LookupError(" ".join(tokens))
        return prepare(tokens, name)

    monkeypatch.setattr(served.certifier, "prepare_tokens", fail)
    monkeypatch.setattr(running, "info", lambda: 1 / 0)
    failed, unknown, refused, mixed, info = call(
        running,
        lambda c: c.certify(secret),
        lambda c: c.get(f"/{secret.replace(' ', '-')}?{secret.replace(' ', '-')}"),
        lambda c: c.post("/v1/certify", {"text": secret, "alpha": secret}),
        lambda c: c.certify(secret, text(30)),
        lambda c: c.get("/v1/models"),
    )
    for answer in (failed, info):
        check_problem(answer, 500, "the server failed on this request: the error is in its log")
    assert (unknown.status, refused.status) == (404, 422)
    assert ["error" in result for result in mixed.json()["results"]] == [True, False]
    assert all(name in caplog.text for name in ("LookupError", "ZeroDivisionError", "test_security.py"))
    assert "confidential" not in caplog.text


def test_measurements_have_few_labels() -> None:
    """Addresses and methods that do not exist, and names of models, make no new rows."""
    requests: list[Any] = [lambda c, n=n: c.get(f"/nothing-{n}") for n in range(20)]
    requests += [lambda c, n=n: c.send(f"METHOD{n}", "/healthz") for n in range(20)]
    requests += [lambda c, n=n: c.certify("a", model=f"other-{n}") for n in range(20)]
    *_, page = call(service(), *requests, lambda c: c.certify(text(30)), lambda c: c.get("/metrics"))
    rows = [line for line in page.body.decode().splitlines() if line.startswith("adaptdel_requests_total")]
    assert len(rows) == 4, rows
    assert 'adaptdel_requests_total{code="404",route="other"} 20.0' in rows
    for name in (
        "votes_total",
        "texts_total",
        "batch_copies_count",
        "queue_texts",
        "pool_texts",
        "request_seconds_count",
    ):
        assert f"adaptdel_{name}" in page.body.decode()


def test_a_prefix_of_a_proxy_opens_nothing() -> None:
    """The application behind a prefix: the same addresses are open, and no others."""
    running = service(token=TOKEN)

    async def run() -> list[int]:
        async with calling(running) as caller:
            app = caller.app

            async def mounted(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "root_path": "/prefix", "path": f"/prefix{scope['path']}"}, receive, send)

            caller.app = mounted  # type: ignore[assignment]
            paths = ("/healthz", "/v1/models", "/metrics", "/healthz/../v1/models", "//v1/models", "/page/../v1/models")
            return [(await caller.get(path)).status for path in paths]

    assert asyncio.run(run()) == [200, 401, 401, 401, 401, 404]


def test_seeds_are_drawn_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every start; with the option, for every request."""
    seeds: list[int] = []
    requested = VotesPlan.requested

    def recorded(self: Any, *, seed: int, **asked: Any) -> Any:
        seeds.append(seed)
        return requested(self, seed=seed, **asked)

    monkeypatch.setattr(VotesPlan, "requested", recorded)
    requests = [lambda c: c.certify(text(60, 0.6))] * 3
    once = call(service(seed=None), *requests)
    assert len(set(seeds)) == 1
    assert len({json.dumps(answer.result["certificate"]) for answer in once}) == 1  # the same draw for the same text
    call(service(seed=None), *requests)
    assert len(set(seeds)) == 2
    each = call(service(seed=None, seed_per_request=True), *requests)
    assert len(set(seeds)) == 5
    assert len({json.dumps(answer.result["certificate"]) for answer in each}) == 3
    assert all(0 <= seed < 2**256 for seed in seeds)
    assert max(seeds) > 2**248  # not small numbers; fails once in 2 to the power of 40
