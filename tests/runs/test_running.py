"""Where and how a transformer runs: its precision binds a run, in every session and worker; other models have none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import adaptdel as ad
from adaptdel.attacks.audit import audit_run
from adaptdel.runs.storage import read_run
from adaptdel.settings import AUDIT
from tests.run_files import run, write_rows

pytest.importorskip("transformers")

TEXTS = ["the film was good and the plot was not bad at all", "free money now", "a dull movie", "good good plot"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from adaptdel.classifiers.transformers import TransformersClassifier
    from tests.classifiers.test_transformers import fixed, tiny

    tokenizer = fixed("bert")
    base = TransformersClassifier(tiny("bert", tokenizer, labels=2, spread=0.1), tokenizer=tokenizer)
    folder = tmp_path_factory.mktemp("model") / "model"
    noise = ad.Deletion(ad.FixedRate(0.5))
    ad.SmoothedClassifier(base, noise, n_select=20, n_estimate=50, sampling="fixed").save(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": f"{text} {number}", "label": number % 2} for number in range(3) for text in TEXTS]
    return write_rows(tmp_path_factory.mktemp("data") / "data.jsonl", rows)


def test_a_run_in_another_precision_is_of_another_model_in_every_worker(
    transformer: Path, texts: Path, tmp_path: Path
) -> None:
    plain = ad.evaluate(transformer, texts, out=tmp_path / "plain")
    options = ("--dtype", "bfloat16", "--device", "cpu", "--batch-tokens", 200)
    assert run("certify", transformer, "--data", texts, "--out", tmp_path / "alone", *options) == 0
    alone = read_run(tmp_path / "alone")
    assert (plain.manifest.model.dtype, alone.manifest.model.dtype) == ("float32", "bfloat16")
    assert alone.manifest.model_hash != plain.manifest.model_hash
    self_test = alone.manifest.model.self_test or {}
    assert alone.manifest.model_hash == self_test["model_hash"]
    assert self_test["padded"] is None  # low precision: never in padded batches
    running = {"dtype": "bfloat16"}
    shared = ad.evaluate(transformer, texts, out=tmp_path / "workers", running=running, workers=2)
    assert shared.table.equals(alone.table)
    in_memory = ad.SmoothedClassifier.load(transformer)
    other = ad.evaluate(in_memory, texts, out=tmp_path / "memory", running=running)
    assert other.manifest.model_hash == alone.manifest.model_hash
    assert other.table.equals(alone.table)
    assert in_memory.base_classifier().dtype == "float32"  # a run leaves the user's model as it is
    assert run("verify", tmp_path / "alone") == 0
    audit = audit_run(tmp_path / "alone", settings=replace(AUDIT, inputs=2, queries=4), progress=False)
    assert audit.certificates > 0  # by the model in the precision of the run, or its fingerprint would differ


def test_another_precision_does_not_resume_a_run(
    transformer: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, arguments = tmp_path / "run", ("certify", transformer, "--data", texts, "--out", tmp_path / "run")
    assert run(*arguments, "--limit", 4, "--dtype", "bfloat16") == 0
    capsys.readouterr()
    assert run(*arguments) == 2
    assert "precision (dtype) was bfloat16, now float32" in capsys.readouterr().err
    assert read_run(out).table.num_rows == 4
    assert run(*arguments, "--dtype", "bfloat16", "--batch-tokens", 64) == 0  # batches do not change votes
    assert read_run(out).table.num_rows == 12


def test_what_a_machine_or_a_model_lacks_is_named(
    model: Path, transformer: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, options, word in (
        (transformer, ("--dtype", "tf32", "--device", "cpu"), "dtype must"),
        (transformer, ("--device", "abacus"), "device must"),
        (transformer, ("--batch-tokens", 0), "batch_tokens must"),
        (model, ("--device", "cpu"), "device has no meaning for a model of the kind "),
    ):
        assert run("certify", folder, "--data", texts, "--out", tmp_path / "run", *options) == 2
        assert capsys.readouterr().err.strip().startswith(f"adaptdel: {word}")
    assert not (tmp_path / "run").exists()
    assert ad.evaluate(model, texts, out=tmp_path / "run").manifest.model.dtype is None
