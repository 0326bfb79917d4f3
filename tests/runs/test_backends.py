"""The backend of a transformer in a run: recorded, the same in every session and worker; other models have none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import adaptdel as ad
from adaptdel.attacks.audit_run import AuditJob, audit_run
from adaptdel.classifiers import transformers as module
from adaptdel.runs.storage import read_run
from adaptdel.settings import AUDIT
from tests.run_files import run, write_rows

pytest.importorskip("onnxruntime")

TEXTS = ["the film was good and the plot was not bad at all", "free money now", "a dull movie", "good good plot"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.classifiers.test_transformers import fixed, tiny

    tokenizer = fixed("bert")
    base = module.TransformersClassifier(tiny("bert", tokenizer, labels=2, spread=0.1), tokenizer=tokenizer)
    folder = tmp_path_factory.mktemp("model") / "model"
    noise = ad.Deletion(ad.FixedRate(0.5))
    ad.SmoothedClassifier(base, noise, n_select=20, n_estimate=50, sampling="fixed").save(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": f"{text} {number}", "label": number % 2} for number in range(3) for text in TEXTS]
    return write_rows(tmp_path_factory.mktemp("data") / "data.jsonl", rows)


def test_a_run_records_its_backend_and_workers_use_it(transformer: Path, texts: Path, tmp_path: Path) -> None:
    plain = ad.evaluate(transformer, texts, out=tmp_path / "torch")
    assert plain.manifest["model"]["backend"] == "torch"
    assert run("certify", transformer, "--data", texts, "--out", tmp_path / "alone", "--backend", "onnxruntime") == 0
    alone = read_run(tmp_path / "alone")
    assert alone.manifest["model"]["backend"] == "onnxruntime"
    assert alone.manifest["model_hash"] != plain.manifest["model_hash"]
    assert alone.manifest["model_hash"] == alone.manifest["model"]["self_test"]["model_hash"]
    shared = ad.evaluate(transformer, texts, out=tmp_path / "workers", backend="onnxruntime", workers=2)
    assert shared.table.equals(alone.table)
    in_memory = ad.SmoothedClassifier.load(transformer)
    other = ad.evaluate(in_memory, texts, out=tmp_path / "memory", backend="onnxruntime")
    assert other.manifest["model_hash"] == alone.manifest["model_hash"]
    assert other.table.equals(alone.table)
    assert in_memory.base_classifier().backend == "torch"  # a run leaves the user's model as it is
    assert run("verify", tmp_path / "alone") == 0
    audit = audit_run(AuditJob(tmp_path / "alone", settings=replace(AUDIT, inputs=2, queries=4)), progress=False)
    assert audit.certificates > 0  # by the model under the backend of the run, or its fingerprint would differ


def test_another_backend_does_not_resume_a_run(
    transformer: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, arguments = tmp_path / "run", ("certify", transformer, "--data", texts, "--out", tmp_path / "run")
    assert run(*arguments, "--limit", 4, "--backend", "onnxruntime") == 0
    capsys.readouterr()
    assert run(*arguments) == 2
    sentence = "the backend was onnxruntime, now torch: resume it with --backend onnxruntime"
    assert sentence in capsys.readouterr().err
    assert read_run(out).table.num_rows == 4
    assert run(*arguments, "--backend", "onnxruntime") == 0
    assert read_run(out).table.num_rows == 12


def test_a_precision_that_a_backend_lacks_is_named(
    transformer: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ad.SmoothedClassifier.load(transformer)
    base = module.TransformersClassifier.load(transformer / "base", dtype="bfloat16")
    ad.SmoothedClassifier(base, model.noise_).save(tmp_path / "model")
    arguments = ("certify", tmp_path / "model", "--data", texts, "--out", tmp_path / "run", "--backend", "onnxruntime")
    assert run(*arguments) == 2
    assert capsys.readouterr().err.startswith("adaptdel: dtype must be 'float32' or 'int8'")


def test_other_models_have_no_backend(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for backend in ("torch", "onnxruntime"):
        assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--backend", backend) == 2
        sentence = f"backend is for transformers: leave it out for a model of the kind linear, got '{backend}'"
        assert capsys.readouterr().err.strip().endswith(sentence)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="backend must be one of 'torch', 'onnxruntime', got 'jax"):
        ad.evaluate(model, data, out=tmp_path / "run", backend="jax")
    assert ad.evaluate(model, data, out=tmp_path / "run").manifest["model"]["backend"] is None
