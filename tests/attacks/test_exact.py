"""Attacks and audits of additive classifiers: the counterexample is the attack, so no gap is left above the radius."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import adaptdel as ad
from adaptdel.attacks.adaptive import edit_distance
from adaptdel.attacks.attack_run import AttackJob, attack_data
from adaptdel.attacks.auditor import AuditReport, Claim, ExactAuditor
from adaptdel.attacks.target import ExactTarget
from adaptdel.core.threat import EVERY_SET, Threat
from adaptdel.runs.inputs import Source
from adaptdel.settings import ATTACK, AdditiveTrainingSettings

from ..run_files import forge_rows, run
from .conftest import texts, texts_within


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    rows = texts(200, 20)
    model = ad.AdditiveClassifier(settings=AdditiveTrainingSettings(levels=4, iterations=20), progress=False)
    model.fit([text for text, _ in rows], [label for _, label in rows]).save(folder / "model")
    lines = [json.dumps({"text": text, "label": label}) for text, label in texts(30, 20, seed=1)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("ops", ["edit", "del,ins"])
def test_the_attacked_distance_is_one_more_than_the_radius(folder: Path, tmp_path: Path, ops: str) -> None:
    job = AttackJob(folder / "model", Source(str(folder / "data.jsonl")), tmp_path / "run", ops=ops)
    result = attack_data(job, progress=False)
    model = ad.AdditiveClassifier.load(folder / "model")
    original = [text for text, _ in texts(30, 20, seed=1)]
    attacked = [record for record in result.records if record["outcome"] == "success"]
    assert len(attacked) == result.measures["verified"] >= 25
    for record in attacked:
        tokens = original[record["row"] - 1].split()
        assert edit_distance(tokens, record["text"].split(), ops.split(",")) == record["distance"] > record["radius"]
        assert model.predict([record["text"]])[0] != record["answer"]
    assert result.measures["tight"] > 0
    budget = attacked[0]["distance"] - 1
    few = replace(job, out=tmp_path / "few", settings=replace(ATTACK, budget=budget))
    kept = [record["row"] for record in attack_data(few, progress=False).records if record["outcome"] == "success"]
    assert kept == [record["row"] for record in attacked if record["distance"] <= budget]


def toy(bound: float) -> ad.AdditiveClassifier:
    """Words of known weights, which are clipped at the bound: a large bound is reached by no known word."""
    words = np.array(["buy cheap", "lunch noon", "buy noon", "cheap lunch"] * 5)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(words, [1, 0, 1, 0] * 5)
    pipeline[-1].coef_ = np.array([[3.0, 1.0, -1.0, -2.0]])  # buy, cheap, lunch, noon
    pipeline[-1].intercept_ = np.array([0.5])
    return ad.AdditiveClassifier.from_sklearn(pipeline, bound=bound)


def audited(model: ad.AdditiveClassifier, given: Sequence[Any], more: int = 0) -> AuditReport:
    report, auditor = AuditReport(), ExactAuditor(model)
    for text, certificate in zip(given, model.certify(given), strict=True):
        tokens = auditor.target.unit.split(text)
        report.add(auditor.check(Claim("a text", tokens, certificate.answer, certificate.radius + more)))
    return report


GIVEN = ["buy buy", "buy cheap lunch", "noon lunch buy", "cheap noon noon", "noon", "buy buy cheap noon"]


@pytest.mark.parametrize("ops", EVERY_SET, ids=",".join)
@pytest.mark.parametrize("bound", [2.0, 5.0])
def test_the_closest_known_text_is_the_closest_of_all_texts_of_known_words(bound: float, ops: Any) -> None:
    """By enumeration of all texts within three edits."""
    model = toy(bound)
    model.ops = ops
    target = ExactTarget(model)
    for text in GIVEN:
        certificate = target.certificate(text)
        known = target.against_known(certificate)
        assert known.radius >= certificate.radius
        tokens = tuple(text.split())
        near = texts_within(tokens, ("buy", "cheap", "lunch", "noon"), 3, Threat(ops))
        answers = model.predict([" ".join(map(str, other)) for other in near])
        changed = [other for other, answer in zip(near, answers, strict=True) if answer != certificate.label]
        distances = [edit_distance(tokens, other, ops) for other in changed]
        if distances:
            assert min(distances) == known.radius + 1
            assert tuple(known.counterexample().split()) in changed
        else:
            assert known.radius >= min(3, Threat(ops).search_limit(len(tokens)))


def test_tight_wider_and_unknown_certificates_are_counted() -> None:
    tight = audited(toy(2.0), GIVEN)
    assert tight.tightness() == {
        "tight": 6, "covering": 0, "wider": 0, "median_wider_gap": None, "largest_gap": None, "unknown": 0
    }  # fmt: skip
    assert (tight.failed, tight.queries > 6 * 8) == (False, True)
    wider = audited(toy(9.0), [f"{text} {text}" for text in GIVEN])
    counts = wider.tightness()
    assert counts is not None
    assert counts["wider"] > 0
    assert counts["largest_gap"] >= counts["median_wider_gap"] >= 1
    assert not wider.failed
    deletions = toy(2.0)
    deletions.ops = ("del",)
    covering = audited(deletions, ["buy buy"]).tightness()  # what is left is always answered alike
    assert covering is not None
    assert (covering["covering"], covering["unknown"]) == (1, 0)


def test_a_chunk_that_is_shorter_moves_all_that_follow() -> None:
    """Texts of one or the other of two chunks, some with a last chunk of one byte, which is no edit of one chunk."""
    given = [(b"ab", b"ba")[n % 2] * (n % 13 + 8) + b"c" * (n % 3 == 0) for n in range(80)]
    model = ad.AdditiveClassifier(
        unit="chunk:2", settings=AdditiveTrainingSettings(levels=2, iterations=20), progress=False
    ).fit(given, [n % 2 for n in range(80)])
    report = audited(model, given)
    assert (report.failed, report.certificates) == (False, 80)


def test_a_radius_that_is_too_large_is_caught() -> None:
    report = audited(toy(2.0), GIVEN, more=1)
    assert report.failed
    assert len(report.certain) == len(GIVEN)
    assert report.certain[0].exact
    assert report.to_dict()["examples"][0]["distance"] > 0


def test_attack_audit_and_plan_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = folder / "model", folder / "data.jsonl"
    assert run("attack", model, "--data", data, "--out", tmp_path / "attack", "--inputs", "5") == 0
    assert "tight" in capsys.readouterr().out
    assert run("attack", model, "--data", data, "--out", tmp_path / "a", "--vocabulary", data) == 2
    out = tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out, "--sample", "20") == 0
    capsys.readouterr()
    assert run("audit", out) == 0
    assert "20 exact certificates audited" in capsys.readouterr().out
    assert run("audit", out, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["violations"] == 0
    assert sum(values["tightness"][name] for name in ("tight", "covering", "wider", "unknown")) == 20
    rows = pq.read_table(out / "certificates.parquet").to_pylist()
    forge_rows(out, [row | {"radius": row["radius"] + 9} for row in rows])
    capsys.readouterr()
    assert run("audit", out) == 1
    assert "gets another answer" in capsys.readouterr().out
    assert run("plan", "--model", model) == 0
    assert "mean radius" in capsys.readouterr().out
