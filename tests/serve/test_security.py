"""What clients cannot do: read the seed or other texts, call without the token, send too much, or be too slow."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from adaptdel.serve import service as service_module
from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.security import MOST_HEADER_BYTES, PAGE_POLICY
from adaptdel.serve.service import ModelToServe, Service
from tests.serve.serving import LONG, SEED, Answer, Caller, Counter, call, calling, model, service, text, until
from tests.serve.test_app import check_problem

TOKEN = "a-long-and-secret-token"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/reports", "/reports/x/index.html", "/nothing"])
@pytest.mark.parametrize(
    "headers",
    [
        {}, bearer(""), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), bearer("Ä" * 10), {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
    ],
)  # fmt: skip
def test_protected_addresses_need_the_token(path: str, headers: dict[str, str]) -> None:
    refused, allowed = call(service(token=TOKEN), lambda c: c.get(path, headers), lambda c: c.get(path, bearer(TOKEN)))
    check_problem(refused, 401, "a token is needed")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert allowed.status in (200, 404)


def test_links_open_one_report_for_an_hour_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers with the same token accept each other's links."""
    for name in ("a run", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name)
        (tmp_path / name / "table.csv").write_text("a,b")
    now = 1_000_000_000.0
    monkeypatch.setattr("adaptdel.serve.reports.time", SimpleNamespace(time=lambda: now))

    def serving(token: str | None = TOKEN) -> Service:
        running = service(token=token)
        running.reports = {name: (tmp_path / name).resolve() for name in ("a run", "b")}
        return running

    [listed] = call(serving(), lambda c: c.get("/reports", bearer(TOKEN)))
    first, second = listed.json()["reports"]
    assert (first["name"], first["url"]) == ("a run", "/reports/a%20run/")
    link = unquote(first["link"])
    _, _, key, *_ = link.split("/")
    code = key.partition("-")[2]

    def get(path: str, token: str | None = TOKEN) -> Answer:
        answer: Answer = call(serving(token), lambda c: c.get(path))[0]
        return answer

    assert get(link).body == b"a run"
    assert get(f"{link}table.csv").body == b"a,b"
    later = f"/linked-reports/{int(now) + 7200}-{code}/a run/"
    damaged = link[:-9] + ("0" if link[-9] != "0" else "1") + link[-8:]
    other = link.replace("/a run/", "/b/")
    for path in (later, damaged, other, link.replace(key, ""), link.removesuffix("/"), "/linked-reports/", f"/{link}"):
        assert get(path).status in (401, 404), path
        assert b"a run" not in get(path).body.replace(path.encode(), b"")
    for path in (later, damaged, other):
        check_problem(get(path), 404, "this link is wrong or has expired: open the report from the page")
    for token in ("another-long-token", None):
        check_problem(get(link, token), 404, "this link is wrong or has expired")
    check_problem(get(f"{link}../b/index.html"), 404, "the report 'a run' has no file")
    now += 3599
    assert get(link).status == 200
    now += 2
    check_problem(get(link), 404, "this link is wrong or has expired")
    assert second["link"] != first["link"]
    assert TOKEN not in listed.body.decode()


def test_requests_for_work_need_the_token_before_their_body_is_read() -> None:
    """The body would be refused as too large."""
    large = {"content-type": "application/json", "content-length": str(10**9)}
    for path in ("/v1/certify", "/v1/predict", "/v1/verify"):
        refused, allowed = call(
            service(token=TOKEN),
            lambda c, p=path: c.send("POST", p, [b"{}"], large),
            lambda c, p=path: c.post(p, {"text": "a"}, bearer(TOKEN)),
        )
        check_problem(refused, 401)
        assert allowed.status in (200, 422)


def test_open_addresses_need_no_token() -> None:
    paths = ("/healthz", "/readyz", "/openapi.json", "/docs", "/page/docs.css")
    assert [a.status for a in call(service(token=TOKEN), *(lambda c, p=p: c.get(p) for p in paths))] == [200] * 5


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return given == expected

    monkeypatch.setattr("adaptdel.serve.service.hmac.compare_digest", compare)
    assert service(token=TOKEN).authorized(f"Bearer {TOKEN}")
    assert not service(token=TOKEN).authorized("")
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"", TOKEN.encode())]


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused_as_soon_as_it_is(declared: bool) -> None:
    """Without a length it is read no further than the limit."""
    parts: list[bytes | float] = [b" " * 600] * 100
    headers = {"content-type": "application/json", **({"content-length": "60000"} if declared else {})}
    [answer] = call(service(body_bytes=1000), lambda c: c.send("POST", "/v1/certify", parts, headers))
    check_problem(answer, 413, "the body must have at most 1000 bytes")
    huge = {"content-type": "application/json", "content-length": "9" * 5000}
    [endless] = call(service(body_bytes=1000), lambda c: c.send("POST", "/v1/certify", [b"{}"], huge))
    check_problem(endless, 413, "the body must have at most 1000 bytes")
    assert answer.headers["connection"] == "close"
    [fits] = call(service(body_bytes=1000), lambda c: c.post("/v1/certify", b'{"text": "a"}'.ljust(1000)))
    assert fits.status == 200


def test_a_request_that_needs_no_body_may_hold_little() -> None:
    """It needs no token, and is not counted."""
    large, small = call(service(), *(lambda c, n=n: c.send("GET", "/", [b" " * n]) for n in (10_000, 100)))
    check_problem(large, 413, "the body must have at most 4096 bytes")
    assert small.status == 200


def test_a_body_that_arrives_too_slowly_is_refused() -> None:
    [answer] = call(service(body_seconds=0.1), lambda c: c.send("POST", "/v1/certify", [b"{", 5.0, b"}"]))
    check_problem(answer, 408, "the body did not arrive within 0.1 seconds")


def test_slow_bodies_do_not_take_the_places_of_others() -> None:
    """Each of them would otherwise be in flight until its time is up, and everyone else would get 429."""
    running = service(in_flight=2, body_seconds=LONG)

    async def run() -> list[int]:
        async with calling(running) as caller:
            slow = [asyncio.ensure_future(caller.send("POST", "/v1/certify", [b"{", LONG, b"}"])) for _ in range(20)]
            await until(lambda: running.receiving == 20)
            answers = [await caller.certify(text(20)) for _ in range(3)]
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            return [answer.status for answer in answers]

    assert asyncio.run(run()) == [200] * 3
    assert (running.receiving, running.received_bytes, running.in_flight) == (0, 0, 0)


def test_bodies_that_arrive_take_a_bounded_memory() -> None:
    """Of four bodies of 900 bytes that do not end, the last does not fit into four times 1000 / 4 = 1000 bytes."""
    running = service(in_flight=4, body_bytes=1000, body_seconds=LONG)
    assert running.settings.receiving_bytes == 1000

    async def run() -> tuple[Any, Any]:
        async with calling(running) as caller:
            kept = asyncio.ensure_future(caller.send("POST", "/v1/certify", [b" " * 900, LONG, b"}"]))
            await until(lambda: running.received_bytes == 900)
            refused = await caller.send("POST", "/v1/certify", [b" " * 200, LONG, b"}"])
            complete = await caller.post("/v1/certify", b'{"text": "a"}'.ljust(200))  # it is not kept waiting
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)
            return refused, complete

    refused, complete = asyncio.run(run())
    check_problem(refused, 429, "too many large bodies arrive at a time")
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    assert complete.status == 200
    assert running.received_bytes == 0


@pytest.mark.parametrize("begun", [True, False])
def test_a_body_that_arrives_after_the_server_was_told_to_stop_is_refused(begun: bool) -> None:
    """When it is complete: a client that still sends would find its connection reset, and not read the response."""
    running = service()

    async def run() -> Any:
        async with calling(running) as caller:
            if not begun:
                running.close()
            task = asyncio.ensure_future(caller.send("POST", "/v1/certify", [b'{"text": ', 0.2, b'"a"}']))
            await until(lambda: running.received_bytes > 0)
            assert running.receiving == begun  # what the server waits for before it ends
            running.close()
            return await task

    check_problem(asyncio.run(run()), 503, "the server is shutting down")


def test_a_body_with_two_lengths_is_refused() -> None:
    """A proxy that believes the other length would take a part of the body for the next request."""
    both = {"content-length": "13", "transfer-encoding": "chunked"}
    [answer] = call(service(), lambda c: c.post("/v1/certify", b'{"text": "a"}', both))
    check_problem(answer, 400, "the body has two lengths")
    assert answer.headers["connection"] == "close"


def test_long_headers_are_refused() -> None:
    long, fine = call(service(), *(lambda c, n=n: c.get("/healthz", {"x": "y" * n}) for n in (MOST_HEADER_BYTES, 9000)))
    check_problem(long, 431, "the headers must have at most 32768 bytes")
    assert fine.status == 200


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
    assert first["error"].startswith("text 0 has 51 tokens")
    assert "radius" in second
    assert "error" in influence.json()["results"][1]
    assert all("influence" in result for result in fine.json()["results"])


def test_headers_of_pages_and_of_all_other_responses() -> None:
    answers = call(
        service(), lambda c: c.get("/docs"), lambda c: c.get("/nothing"), lambda c: c.certify("a"),
        lambda c: c.certify("a", stream=True),
    )  # fmt: skip
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
    assert answers[0].headers["content-security-policy"] == PAGE_POLICY
    for answer in answers[1:]:
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["cache-control"] == "no-store"


def test_other_origins_are_allowed_only_if_asked() -> None:
    origin = {"origin": "https://app.example", "access-control-request-method": "POST"}
    preflight = {**origin, "access-control-request-headers": "authorization, content-type"}
    requests: Any = (
        lambda c: c.send("OPTIONS", "/v1/certify", headers=preflight),
        lambda c: c.post("/v1/certify", {"text": "a"}, {**origin, **bearer(TOKEN)}),
        lambda c: c.post("/v1/certify", {"text": "a"}, origin),
        lambda c: c.post("/v1/certify", {"text": "a"}, {"origin": "https://other.example", **bearer(TOKEN)}),
    )
    closed = call(service(token=TOKEN), *requests)
    assert not any("access-control-allow-origin" in answer.headers for answer in closed)
    opened = call(service(token=TOKEN, cors_origins=("https://app.example",)), *requests)
    assert [answer.status for answer in opened] == [200, 200, 401, 200]
    allowed = [answer.headers.get("access-control-allow-origin") for answer in opened]
    assert allowed == ["https://app.example"] * 3 + [None]


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8750", 200), ({}, "127.0.0.1", 200), ({}, "[::1]:8750", 200), ({}, "LOCALHOST", 200),
        ({}, "evil.example", 421), ({}, "localhost.evil.example", 421), ({}, "", 421),
        ({"host": "0.0.0.0"}, "evil.example", 200),
        ({"allowed_hosts": ("api.example",)}, "api.example", 200),
        ({"allowed_hosts": ("API.example",)}, "api.Example", 200),
        ({"allowed_hosts": ("api.example",), "host": "0.0.0.0"}, "evil.example", 421),
    ],
)  # fmt: skip
def test_a_page_of_another_host_name_cannot_call_a_local_server(
    settings: dict[str, Any], host: str, status: int
) -> None:
    """A page of evil.example that resolves to this machine (DNS rebinding)."""
    [answer] = call(service(**settings), lambda c: c.get("/v1/models", {"host": host}))
    assert answer.status == status
    if status != 200:
        check_problem(answer, 421, "this server does not answer for the host")


def test_probes_call_a_server_by_its_address() -> None:
    """A container asks 127.0.0.1, a cluster the address of a machine."""
    running = service(allowed_hosts=("api.example",), host="0.0.0.0")
    answers = call(running, *(lambda c, p=p: c.get(p, {"host": "10.0.0.7:8750"}) for p in ("/healthz", "/readyz", "/")))
    assert [answer.status for answer in answers] == [200, 200, 421]


def test_the_seed_is_in_no_response_header_log_or_measurement(caplog: pytest.LogCaptureFixture) -> None:
    """As a number, in hexadecimal, and as bytes; also if something fails."""
    caplog.set_level(logging.DEBUG)

    def slow(copies: list[str]) -> list[str]:
        time.sleep(2e-4 * len(copies))  # 4 seconds for a text
        return ["pos"] * len(copies)

    running = service(model(), model(slow, n_estimate=20000, sampling="fixed"), token=TOKEN)
    paths = ["/v1/models", "/metrics", "/openapi.json", "/docs", "/readyz", "/reports", "/nothing"]
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
    assert [answer.result["deadline_reached"] for answer in answers if b'"deadline_reached": true' in answer.body]
    certified = [answer for answer in answers if b'"certificate"' in answer.body and answer.status == 200]
    assert len(certified) >= 4
    assert all(b'"seed": null' in a.body for a in certified if b'"certificate": {' in a.body and b'"digest"' in a.body)
    everything = "\n".join(f"{a.headers}{a.body.decode()}" for a in answers) + caplog.text + repr(running)
    everything += repr(running.models["m0"].certifier.plan.rule)
    assert re.search("POST /v1/certify 200", everything)
    for form in (str(SEED), f"{SEED:x}", repr(SEED.to_bytes(8, "little")), repr(SEED.to_bytes(8, "big"))):
        assert form not in everything
    assert TOKEN not in everything


def test_seeds_are_drawn_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every start; with the option, for every request."""
    seeds: list[int] = []
    plan = service_module.ServedModel.plan

    def recorded(self: Any, body: Any, seed: int) -> Any:
        seeds.append(seed)
        return plan(self, body, seed)

    monkeypatch.setattr(service_module.ServedModel, "plan", recorded)
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


def test_no_text_is_logged_unless_asked(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "confidential words of a caller"

    def run(**settings: Any) -> list[Answer]:
        running = service(**settings)
        monkeypatch.setattr(running.models["m0"].certifier, "prepare_tokens", fail)
        return call(
            running,
            lambda c: c.certify(secret),
            lambda c: c.get(f"/{secret.replace(' ', '-')}?{secret.replace(' ', '-')}"),
            lambda c: c.post("/v1/certify", {"text": secret, "alpha": secret}),
        )

    def fail(tokens: Any, name: str) -> Any:
        raise LookupError(" ".join(tokens))

    answers = run()
    assert [answer.status for answer in answers] == [500, 404, 422]
    assert "LookupError" in caplog.text
    assert "confidential" not in caplog.text
    run(log_texts=True)
    assert secret in caplog.text


def test_an_error_in_the_application_is_a_problem_without_details(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = service()
    monkeypatch.setattr(running, "info", lambda: 1 / 0)
    [answer] = call(running, lambda c: c.get("/v1/models"))
    check_problem(answer, 500, "the server failed on this request: the error is in its log")
    assert "ZeroDivisionError at " in caplog.text


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


def test_a_client_that_does_not_read_is_given_up() -> None:
    """The application waits for it no longer than the limit; other requests go on."""
    running = service(send_seconds=0.2)

    async def run() -> tuple[float, int]:
        async with calling(running) as caller, asyncio.timeout(LONG):
            app = caller.app

            async def stuck(scope: Any, receive: Any, send: Any) -> None:
                async def never(message: Any) -> None:
                    if message["type"] == "http.response.body":
                        await asyncio.sleep(3600)

                await app(scope, receive, never)

            caller.app = stuck  # type: ignore[assignment]
            started = asyncio.get_running_loop().time()
            await caller.certify(text(30), stream=True)
            seconds = asyncio.get_running_loop().time() - started
            caller.app = app
            return seconds, (await caller.certify(text(30))).status

    seconds, status = asyncio.run(run())
    assert seconds > 0.15
    assert status == 200
    assert running.in_flight == 0


def test_a_stream_that_is_never_begun_is_cancelled() -> None:
    """The client is stuck before the first event."""
    counter = Counter(waits=True)
    running = service(model(counter, n_estimate=20000, sampling="fixed"), send_seconds=0.1)

    async def run() -> None:
        async with calling(running) as caller:
            app = caller.app

            async def stuck(scope: Any, receive: Any, send: Any) -> None:
                await app(scope, receive, lambda message: asyncio.sleep(3600))

            caller.app = stuck  # type: ignore[assignment]
            await caller.certify(text(30), stream=True)
            counter.allow()
            await until(lambda: running.models["m0"].scheduler.sizes() == (0, 0))
            assert counter.calls <= 1

    asyncio.run(run())


def test_too_many_certificates_to_verify_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def slow(values: Any, work: int) -> list[str]:
        assert released.wait(LONG)
        return []

    monkeypatch.setattr("adaptdel.serve.app.verify", slow)
    running = service(verify_queue=2)

    async def run() -> list[int]:
        async with calling(running) as caller:
            body = {"certificate": {"derived": {"radius": 0}}}
            tasks = [asyncio.ensure_future(caller.post("/v1/verify", body)) for _ in range(6)]
            await until(lambda: sum(task.done() for task in tasks) == 3)
            assert all(task.result().status == 429 for task in tasks if task.done())
            released.set()
            return sorted(answer.status for answer in await asyncio.gather(*tasks))

    assert asyncio.run(run()) == [200] * 3 + [429] * 3


def test_a_public_address_without_a_token_is_warned_about() -> None:
    assert ServeSettings().is_local
    assert ServeSettings(host="127.0.0.2").is_local
    assert ServeSettings(host="::1").is_local
    assert not ServeSettings(host="0.0.0.0").is_local
    assert not ServeSettings(host="192.0.2.1").is_local


def test_a_service_shows_neither_token_nor_seed() -> None:
    running = Service([ModelToServe("m", model())], seed=SEED, token=TOKEN)
    assert str(SEED) not in repr(running)
    assert TOKEN not in repr(running)
    assert isinstance(Caller(running), Caller)


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
