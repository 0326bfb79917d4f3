"""Requests that schemathesis makes from the OpenAPI document: valid ones, and ones that break a rule of the schema.

Each response must have a status, a media type, headers and a body that the document describes, and never be a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import CHECKS

from tests.serve.test_fuzz import Running, running

# A schema cannot say that one of two fields is needed, or which models and limits a server has.
LEFT_OUT = {"positive_data_acceptance"}
NEGATIVE, POSITIVE = schemathesis.GenerationMode.NEGATIVE, schemathesis.GenerationMode.POSITIVE
WITH_BODY = ("/v1/certify", "/v1/predict")
WITHOUT_BODY = ("/v1/models", "/", "/page/{file}", "/openapi.json", "/healthz", "/readyz", "/metrics")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as opened:
        yield opened


@pytest.fixture(scope="module")
def schema(server: Running) -> Any:
    """The document, read from the application as a client does."""

    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await server.caller.app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):  # the service is started already
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    return schemathesis.openapi.from_asgi("/openapi.json", without_lifespan)


def send_cases(server: Running, operation: Any, mode: Any, cases: int) -> int:
    """Send so many requests to an operation, and return how many were different."""
    checks = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]
    sent = 0

    @seed(0)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        case.call_and_validate(checks=checks)
        assert server.errors.lines == []

    send()
    return sent


def test_every_operation_is_tested(schema: Any) -> None:
    paths = {operation.ok().path for operation in schema.get_all_operations()}
    assert paths | {"/openapi.json"} == {*WITH_BODY, *WITHOUT_BODY}  # schemathesis leaves the document itself out


@pytest.mark.parametrize("path", WITHOUT_BODY)
def test_pages(server: Running, schema: Any, path: str) -> None:
    send_cases(server, schema[path]["GET"], POSITIVE, 20)


@pytest.mark.parametrize("path", WITH_BODY)
@pytest.mark.parametrize("mode", [POSITIVE, NEGATIVE], ids=lambda mode: mode.value)
def test_a_few_bodies(server: Running, schema: Any, path: str, mode: Any) -> None:
    assert send_cases(server, schema[path]["POST"], mode, 25) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_BODY)
@pytest.mark.parametrize("mode", [POSITIVE, NEGATIVE], ids=lambda mode: mode.value)
def test_many_bodies(server: Running, schema: Any, path: str, mode: Any) -> None:
    assert send_cases(server, schema[path]["POST"], mode, 2_000) >= 1_900
