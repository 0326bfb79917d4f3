"""The models of a service, and its secret seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptdel.serve.configuration import ServeSettings
from adaptdel.serve.scheduler import ServedSmoothed
from adaptdel.serve.service import ModelToServe, Service
from tests.serve.serving import SEED, call, model, service, text

TOKEN = "a-long-and-secret-token"


def test_models_that_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="its unit 'labelled' cannot be served"):
        ModelToServe("m", model().set_params(unit="labelled"))


def test_names_and_seeds_of_a_service() -> None:
    source = ModelToServe("m", model())
    with pytest.raises(ValueError, match="models must have different names, got 'm' twice"):
        Service([source, source])
    with pytest.raises(ValueError, match="queue must"):
        ServeSettings(queue=0)


def test_seeds_are_drawn_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every start; with the option, for every request."""
    seeds: list[int] = []
    plan = ServedSmoothed.plan

    def recorded(self: Any, body: Any, seed: int) -> Any:
        seeds.append(seed)
        return plan(self, body, seed)

    monkeypatch.setattr(ServedSmoothed, "plan", recorded)
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


def test_a_service_shows_neither_token_nor_seed() -> None:
    running = Service([ModelToServe("m", model())], seed=SEED, token=TOKEN)
    assert str(SEED) not in repr(running)
    assert TOKEN not in repr(running)
