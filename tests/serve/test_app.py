"""The routes: certificates equal to those of the library, predictions, errors, documentation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import adaptdel as ad
from adaptdel.certification.verify import verify
from adaptdel.core.checks import SMALLEST_ALPHA
from adaptdel.runs.storage import read_run
from adaptdel.serve import schemas
from adaptdel.serve.service import ModelToServe, Service
from adaptdel.settings import ServeSettings
from tests.run_files import LENGTHS, examples, make_model, run, write_rows
from tests.serve.serving import SEED, Caller, call, calling, check_problem, model, service, text, without_seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serve") / "model", labels=("neg", "pos"))


def served(folder: Path, seed: int = SEED) -> Service:
    return Service([ModelToServe.load(folder)], ServeSettings(), seed=seed)


def test_certificates_equal_those_of_adaptdel_certify(folder: Path, tmp_path: Path) -> None:
    """In one batch, and each alone; only the seed is left out."""
    texts = [text for text, _ in examples(30, seed=5)]
    data = write_rows(tmp_path / "data.jsonl", [{"text": t, "label": "neg", "id": n} for n, t in enumerate(texts)])
    assert run("certify", folder, "--data", data, "--out", tmp_path / "run", "--seed", SEED) == 0
    expected = list(read_run(tmp_path / "run").certificates())
    answers = call(served(folder), lambda c: c.certify(*texts), *(lambda c, t=t: c.certify(t) for t in texts[:10]))
    results = [*answers[0].json()["results"], *(answer.result for answer in answers[1:])]
    assert len(expected) == 30
    assert len({len(text.split()) for text in texts}) == len(LENGTHS)
    for result, certificate in zip(results, [*expected, *expected[:10]], strict=True):
        assert result["certificate"] == without_seed(certificate)
        assert result["certificate"]["plan"]["seed"] is None
        assert (result["label"], result["radius"]) == (certificate.label, certificate.radius)
        assert verify(result["certificate"]) == []


def test_every_option_of_a_request_is_used() -> None:
    sample = text(60)
    library = model(seed=SEED)
    changed = library.set_params(alpha=0.01, ops=("ins", "sub"), n_select=64, n_estimate=1000)
    [certificate] = changed.certify([sample])
    options = {"alpha": 0.01, "ops": ["ins", "sub"], "votes": {"select": 64, "estimate": 1000}, "model": "m1"}
    [answer] = call(service(model(noise=ad.NoNoise()), model()), lambda c: c.certify(sample, **options))
    assert answer.json()["model"] == "m1"
    assert answer.result["certificate"] == without_seed(certificate)
    assert answer.result["ops"] == ["ins", "sub"]
    assert answer.result["alpha"] == pytest.approx(0.01)
    assert answer.result["radii"] == {name: certificate.radius_for(name) for name in ("del", "ins", "sub", "edit")}


def test_predictions_are_those_of_the_library() -> None:
    texts = [text(n, share) for n in (0, 4, 30, 60) for share in (0.3, 0.5, 0.7)]
    [answer] = call(service(), lambda c: c.post("/v1/predict", {"texts": texts}))
    results = answer.json()["results"]
    assert [result["label"] for result in results] == model(seed=SEED).predict(texts).tolist()
    for result in results:
        assert sum(result["scores"].values()) == pytest.approx(1)
        assert set(result) == {"label", "scores", "deadline_reached", "calls", "seconds"}


def test_models_that_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="its unit 'labelled' cannot be served"):
        ModelToServe("m", model().set_params(unit="labelled"))
    source = ModelToServe("m", model())
    with pytest.raises(ValueError, match="models must have different names"):
        Service([source, source])


BAD = [
    (b"", 422, "the body: field required"),
    (b"\xff\xfe", 400, "the body must be JSON: not UTF-8"),
    (b'{"text": "a", "text": "b"}', 400, "the body must be JSON: the field 'text' is repeated"),
    (b'{"text": "a", "alpha": NaN}', 400, "the body must be JSON: a number must be finite"),
    (b'{"text": "a", "texts": ["b"]}', 422, "the body: give either text or texts"),
    (b'{"texts": ["a", null]}', 422, "texts.1: "),
    (b'{"text": "a", "alpha": 0}', 422, "alpha: "),
    (b'{"text": "a", "ops": "all"}', 422, "ops"),
    (b'{"text": "a", "votes": {"select": 20001}}', 422, "votes.select must be"),
    (b'{"text": "a", "deadline_ms": 60001}', 422, "deadline_ms must be"),
    (b'{"text": "a", "deadline_ms": true}', 422, "deadline_ms: "),
    (b'{"txt": "a"}', 422, "text: missing; 'txt' is not a field"),
    (b'{"text": "a", "unknown": 1}', 422, "unknown: "),
    (b'{"text": "a", "model": "other"}', 404, "there is no model 'other', only 'm0'"),
]


def test_a_bad_body_gets_one_sentence() -> None:
    answers = call(service(), *(lambda c, b=body: c.post("/v1/certify", b) for body, *_ in BAD))
    for answer, (_, status, sentence) in zip(answers, BAD, strict=True):
        check_problem(answer, status, sentence)


@pytest.mark.parametrize(
    "body",
    [
        {"texts": [1] * 10_000},
        {"text": "a", "ops": ["all"] * 10_000},
        {f"f{number}": 1 for number in range(10_000)},
        {"text": "a", "votes": {f"f{number}": 1 for number in range(10_000)}},
    ],
)
def test_a_body_of_many_errors_is_refused_by_the_first(body: dict[str, Any]) -> None:
    """The event loop would be blocked for seconds if each of them were described."""
    with pytest.raises(ValidationError) as refused:
        schemas.CertifyBody.model_validate(body)
    assert refused.value.error_count() <= 2
    [answer] = call(service(), lambda c: c.post("/v1/certify", body))
    check_problem(answer, 422)


def test_errors_of_addresses_methods_and_content_types() -> None:
    wrong_type = {"content-type": "text/plain"}
    answers = call(
        service(),
        lambda c: c.get("/nothing"),
        lambda c: c.get("/v1/certify"),
        lambda c: c.send("DELETE", "/"),
        lambda c: c.post("/v1/certify", {"text": "a"}, wrong_type),
        lambda c: c.get("/page/../app.py"),
        lambda c: c.get("/page/no.js"),
    )
    check_problem(answers[0], 404, "there is nothing at '/nothing'")
    check_problem(answers[1], 405, "'/v1/certify' does not accept GET: use POST")
    assert answers[1].headers["allow"] == "POST"
    check_problem(answers[2], 405)
    check_problem(answers[3], 415, "the body must be JSON with the header Content-Type: application/json")
    for answer in answers[4:]:
        check_problem(answer, 404)


def test_a_text_that_fails_leaves_the_others_alone() -> None:
    good = [text(40), text(50)]
    batch, single = call(service(), lambda c: c.certify(good[0], "poison", good[1]), lambda c: c.certify("poison"))
    first, failed, last = batch.json()["results"]
    assert failed == {"error": "the base classifier failed on this text: RuntimeError: poison"}
    library = model(seed=SEED)
    assert [first["radius"], last["radius"]] == [c.radius for c in library.certify(good)]
    check_problem(single, 422, "the base classifier failed on this text: RuntimeError: poison")
    [answer] = call(service(), lambda c: c.certify(good[0], "poison", stream=True))
    assert ("failed", {"index": 1, "error": failed["error"], "status": 422}) in answer.events()


def test_health_and_readiness() -> None:
    running = service()

    async def check() -> list[Any]:
        caller = Caller(running)
        early = await caller.get("/readyz")
        async with calling(running):
            ready = await caller.get("/readyz"), await caller.get("/healthz")
            running.close()
            closing = await caller.get("/readyz"), await caller.get("/healthz"), await caller.certify("a")
        return [early, *ready, *closing]

    early, ready, healthy, closing, still_healthy, refused = asyncio.run(check())
    check_problem(early, 503, "the model 'm0' is not ready yet")
    assert (ready.status, healthy.status, still_healthy.status) == (200, 200, 200)
    check_problem(closing, 503, "the server is shutting down")
    check_problem(refused, 503, "the server is shutting down")
    assert refused.headers["retry-after"].isdigit()


def test_the_document_describes_every_route() -> None:
    [document] = call(service(), lambda c: c.get("/openapi.json"))
    fields = document.json()["components"]["schemas"]
    assert fields["CertifyBody"]["properties"]["alpha"]["anyOf"][0]["minimum"] == SMALLEST_ALPHA
    paths = document.json()["paths"]
    routes = {"/", "/v1/certify", "/v1/predict", "/v1/models", "/openapi.json", "/healthz", "/readyz", "/metrics"}
    routes.add("/v1/beta/litellm_basic_guardrail_api")
    assert set(paths) == routes
    for path in ("/v1/certify", "/v1/predict"):
        responses = paths[path]["post"]["responses"]
        assert {"422", "429", "default"} <= set(responses)
        assert list(responses["422"]["content"]) == ["application/problem+json"]


@pytest.mark.slow
def test_a_transformer_gives_the_certificates_of_the_library() -> None:
    """Every text is a request of its own, half of them streams."""
    pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import classifier

    library = ad.SmoothedClassifier(classifier("bert"), ad.Deletion(ad.LengthRate(0.7, 6)), n_select=60, n_estimate=200)
    library.set_params(seed=SEED, progress=False)
    texts = [*(text for text, _ in examples(12, seed=5)), "", "good"]
    expected = [without_seed(certificate) for certificate in library.certify(texts)]

    async def run() -> list[Any]:
        async with calling(service(library)) as caller:
            asked = (caller.certify(sample, stream=bool(number % 2)) for number, sample in enumerate(texts))
            return list(await asyncio.gather(*asked))

    for number, answer in enumerate(asyncio.run(run())):
        result = dict(answer.events())["result"] if number % 2 else answer.result
        assert result["certificate"] == expected[number]
