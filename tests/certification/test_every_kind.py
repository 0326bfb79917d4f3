"""One suite for every kind of model and evidence, by its registration: a new kind has these properties or fails here.

Each registered model is trained with its defaults on a few texts. What its certificates say must follow from what they
store, and no field of them can be changed unnoticed.
"""

from __future__ import annotations

import json
from copy import copy, deepcopy
from dataclasses import FrozenInstanceError, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import adaptdel as ad
from adaptdel.certification.certificate import digest_of
from adaptdel.certification.certifier import Input, Ticket
from adaptdel.certification.evidence import EVIDENCE, plan_from_dict
from adaptdel.certification.verify import verify
from adaptdel.core.threat import EVERY_SET, OPERATIONS
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import MODELS, load_model
from adaptdel.text.units import content_key
from tests.fuzzing import lookup, places

Values = dict[str, Any]
REVIEWS = ["good fine film", "a fine film", "good good plot", "bad film", "a bad dull film", "dull dull plot"] * 4
LABELS = ["pos", "pos", "pos", "neg", "neg", "neg"] * 4
TEXTS = ["", "film", "good fine film " * 9, "bad " * 12 + "good film", "a plot " * 30]
KINDS = [name for name in MODELS if MODELS.is_own(name)]
REMOVED = object()
every_model = pytest.mark.parametrize("kind", KINDS)


@cache
def model(kind: str) -> TextEstimator:
    fitted: TextEstimator = MODELS.get(kind)(progress=False).fit(REVIEWS, LABELS)  # type: ignore[call-arg, attr-defined]
    return fitted


@cache
def certificates(kind: str) -> list[ad.Certificate]:
    return model(kind).certify(TEXTS)


def changed(values: Values, path: tuple[Any, ...], value: Any, *, forged: bool = True) -> Values:
    """The values with another one at the end of a path, or without it; a forger makes the digest again."""
    values = deepcopy(values)
    inner = lookup(values, path[:-1])
    if value is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    if forged and "digest" in values:
        values["digest"] = digest_of(values)
    return values


def test_every_kind_of_evidence_has_a_model() -> None:
    assert {certificates(kind)[0].kind for kind in KINDS} == {name for name in EVIDENCE if EVIDENCE.is_own(name)}


@every_model
def test_a_certificate_says_what_follows_from_its_evidence(kind: str) -> None:
    estimator = model(kind)
    for text, certificate, label in zip(TEXTS, certificates(kind), estimator.predict(TEXTS), strict=True):
        evidence, plan = certificate.evidence, certificate.plan
        assert (certificate.label, certificate.length) == (label, len(text.split()))
        assert certificate.tokens == (*text.split(),)
        assert label == certificate.classes[certificate.answer] == certificate.classes[evidence.predicted(plan)]
        assert evidence.proves
        assert len(evidence.class_scores(plan)) == len(certificate.classes)
        assert certificate.abstained == (certificate.radius < 0)
        assert 0 <= certificate.alpha <= plan.alpha
        assert certificate.input_hash == content_key(tuple(text.split())).hex()
        assert certificate.model_hash == estimator.base_classifier().fingerprint()
        assert isinstance(hash(certificate), int)
        for each in (evidence, plan, certificate):
            with pytest.raises(FrozenInstanceError):
                setattr(each, fields(each)[0].name, 3)  # type: ignore[arg-type]


@every_model
def test_more_operations_never_raise_the_radius(kind: str) -> None:
    for certificate in certificates(kind):
        radii = {ops: certificate.radius_for(ops) for ops in EVERY_SET}
        assert certificate.radius == radii[certificate.ops] == certificate.radius_for("edit")
        for some, others in product(EVERY_SET, repeat=2):
            most = ad.Threat(some).search_limit(certificate.length)  # all texts that these operations reach
            assert not set(some) <= set(others) or radii[some] >= min(radii[others], most)
        frontier = certificate.frontier()
        assert bool(frontier) == (not certificate.abstained)
        for number, operation in enumerate(OPERATIONS) if frontier else ():
            assert max(triple[number] for triple in frontier) == radii[(operation,)]
        characters = certificate.character_radius
        assert characters is not None
        assert characters <= max(certificate.radius, 0)
        for ops in EVERY_SET:
            other = certificate.rederive(ops=ops)
            assert (other.ops, other.radius, other.label) == (ops, radii[ops], certificate.label)
            assert verify(other.to_dict()) == []
        assert certificate.log10_cardinality() >= 0 or certificate.abstained


@every_model
def test_plans_and_certificates_are_read_as_they_were_written(kind: str) -> None:
    plan = model(kind).plan
    for each in (plan, plan.changed(ops=["del"]), *(plan.changed(alpha=0.01) for _ in "a" if plan.alpha)):
        assert plan_from_dict(json.loads(json.dumps(each.to_dict()))) == each
    assert plan.changed() == plan
    assert plan.predictions().items() <= plan.to_dict().items()
    with pytest.raises(ValueError, match="swap has no meaning"):
        plan.changed(swap=1)
    for certificate in certificates(kind):
        for whole in (certificate, certificate.rederive(ops="del", alpha=0.01 if plan.alpha else None)):
            values = json.loads(whole.to_json())
            again = ad.Certificate.from_json(whole.to_json())
            assert again == whole
            assert again.to_dict() == values
            assert (again.radius, again.frontier(), again.digest) == (whole.radius, whole.frontier(), whole.digest)
            assert verify(values) == []


@every_model
def test_rows_of_a_run_hold_the_evidence(kind: str) -> None:
    """Also in the columns of Arrow, which have the types that the kind states."""
    from adaptdel.runs.columns import batch_of, record_of, records_of, schema_of

    rows = [record_of(certificate, id=f"{n}", row=n) for n, certificate in enumerate(certificates(kind))]
    name = certificates(kind)[0].kind
    batch = batch_of(name, rows)
    assert batch.schema == schema_of(name)
    assert isinstance(batch, pa.RecordBatch)
    for certificate, record in zip(certificates(kind), records_of(batch), strict=True):
        evidence = type(certificate.evidence).from_row({**record, "answer": certificate.answer}, certificate.plan)
        evidence.check_shape(len(certificate.classes))
        assert evidence.to_dict() == certificate.evidence.to_dict()
        assert evidence.radius(certificate.plan, certificate.plan.threat) == certificate.radius
        assert evidence.alike(certificate) == certificate.evidence.alike(certificate)


@every_model
def test_evidence_is_explained(kind: str) -> None:
    for text, certificate in zip(TEXTS, certificates(kind), strict=True):
        stored = ad.Certificate.from_dict(certificate.to_dict())
        for explanation in (certificate.explain(), stored.explain(), stored.explain(text)):
            json.dumps(explanation.details)
            assert all(sentence.endswith((".", "?")) for sentence in explanation.sentences)
            assert explanation.weights is None or len(explanation.weights) == certificate.length
        assert "<th>radius</th>" in certificate._repr_html_()
        assert repr(certificate.label) in repr(stored)


@every_model
def test_a_change_of_any_value_is_caught(kind: str) -> None:
    """Any changed value; what a forger who makes the digest again cannot change: see the tests of a kind."""
    values = certificates(kind)[2].to_dict()
    odd: list[Any] = [None, True, "text", -1, 0.5, float("nan"), 1e300, 10**400, [], [[]], {}, "\ud800"]
    few = [path for path in places(values) if all(type(name) is str or name < 2 for name in path)]
    for path, value in product(few, odd):
        old = lookup(values, path)
        if path == ("digest",) or (type(value) is type(old) and value == old):
            continue
        assert verify(changed(values, path, value, forged=False)), path
        found = verify(changed(values, path, value))
        assert all(isinstance(sentence, str) and "\n" not in sentence for sentence in found)
        if path[0] not in ("evidence", "plan", "model_hash", "input_hash", "unit", "classes"):
            assert found, (path, value)


@every_model
def test_unknown_missing_and_derived_fields(kind: str) -> None:
    values = certificates(kind)[2].to_dict()
    derived = certificates(kind)[2].derived()
    assert {"radius", "character_radius", "alpha", *certificates(kind)[2].evidence.claimed} == set(derived)
    for path in [(), *(path for path in places(values) if isinstance(lookup(values, path), dict))]:
        added = changed(values, (*path, "note"), 1)
        assert any("note" in sentence for sentence in verify(added)), path
        for name in lookup(values, path):
            if name != "digest" and path[:1] != ("unit",):
                removed = changed(values, (*path, name), REMOVED)
                assert verify(removed) or path[:1] == ("plan",), (path, name)  # whose defaults may be left out
    for name, value in derived.items():
        for other in (None, -1, (value or 0) + 1, (value or 0) - 1, (value or 0) * 0.5 + 0.1, str(value), True):
            if other != value or type(other) is not type(value):
                assert verify(changed(values, ("derived", name), other))


@every_model
def test_the_engine_gives_the_same_evidence_in_any_order(kind: str) -> None:
    """Through a pool, in groups and alone; a text that cannot be read fails alone."""
    certifier, expected = model(kind).certifier(), certificates(kind)
    texts: list[Any] = [*TEXTS[::-1], 3, *TEXTS]
    results = {each.input.tag: each for each in certifier(Input(t, f"input {n}", n) for n, t in enumerate(texts))}
    assert [results[n].certificate for n in range(len(texts))] == [*expected[::-1], None, *expected]
    assert "must be a string" in str(results[len(TEXTS)].failure)
    pool = certifier.pool()
    prepared = certifier.prepare(TEXTS[3], "input")
    tickets = [Ticket(prepared, plan) for plan in (certifier.plan, model(kind).prediction_plan())]
    for ticket in tickets:
        pool.add(ticket)
    cancelled = Ticket(prepared, certifier.plan)
    pool.add(cancelled)
    pool.cancel(cancelled)
    finished: list[Ticket] = []
    while len(pool):
        finished += pool.step(work=1000)
    assert set(finished) == set(tickets)
    assert [ticket.failure for ticket in tickets] == [None, None]
    assert certifier.certificate(prepared, tickets[0].evidence) == expected[3]
    assert tickets[1].evidence.predicted(tickets[1].plan) == expected[3].answer


@every_model
def test_folders_and_copies(kind: str, tmp_path: Path) -> None:
    """The same certificates from the folder; what holds something else is not changed."""
    for _ in "ab":  # also over itself
        model(kind).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ValueError, match="path must be a folder that save wrote"):
        load_model(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("text")
    with pytest.raises(ValueError, match="path must be a new folder"):
        model(kind).save(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    for again in (load_model(tmp_path / "model"), copy(model(kind)), deepcopy(model(kind))):
        assert again.certify(TEXTS) == certificates(kind)
        assert (again.plan, again.parameters()) == (model(kind).plan, model(kind).parameters())
        assert again.predictions() == model(kind).predictions()


@every_model
@pytest.mark.parametrize(
    "labels", [[0, 1], [False, True], [0.5, 1.5], np.array([3, 4]), np.array(["a", "b"])], ids=repr
)
def test_labels_of_any_type(kind: str, labels: Any) -> None:
    """In certificates they are plain values, which keep their types: 1, true and 1.0 differ."""
    fitted = MODELS.get(kind)(progress=False).fit(REVIEWS, np.array(labels)[[0, 0, 0, 1, 1, 1] * 4])  # type: ignore[call-arg, attr-defined]
    certificate = fitted.certify(["good good"])[0]
    values = json.loads(certificate.to_json())
    assert values["classes"] == np.array(labels).tolist()
    assert list(map(type, values["classes"])) == list(map(type, np.array(labels).tolist()))
    assert verify(values) == []
    for other in ("neg", 1.0, True, 1, None, [1]):
        if type(other) is not type(values["label"]) or other != values["label"]:
            assert verify(changed(values, ("label",), other))
