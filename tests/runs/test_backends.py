"""The backend of a transformer in a run: recorded, the same in every session and worker; other models have none."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.attacks.audit_run import AuditJob, audit_run
from adaptdel.classifiers import transformers as module
from adaptdel.engines.engine import ModelSource
from adaptdel.engines.local import LocalEngine
from adaptdel.hyperparameters import AUDIT
from adaptdel.runs.storage import read_run
from tests.run_files import run, write_rows

pytest.importorskip("openvino")

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
    assert run("certify", transformer, "--data", texts, "--out", tmp_path / "alone", "--backend", "openvino") == 0
    alone = read_run(tmp_path / "alone")
    assert alone.manifest["model"]["backend"] == "openvino"
    assert alone.manifest["model_hash"] != plain.manifest["model_hash"]
    assert alone.manifest["model_hash"] == alone.manifest["model"]["self_test"]["model_hash"]
    shared = ad.evaluate(transformer, texts, out=tmp_path / "workers", backend="openvino", workers=2)
    assert shared.table.equals(alone.table)
    in_memory = ad.SmoothedClassifier.load(transformer)
    other = ad.evaluate(in_memory, texts, out=tmp_path / "memory", backend="openvino")
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
    for given, name in (((), "torch"), (("--backend", "openvino"), "openvino")):
        assert run(*arguments, *given) == 2
        sentence = f"holds another run: the backend was onnxruntime, now {name} (--backend onnxruntime resumes it): "
        assert capsys.readouterr().err.strip().splitlines()[-1].endswith(sentence + "choose another folder for --out")
    assert read_run(out).table.num_rows == 4
    assert run(*arguments, "--backend", "onnxruntime") == 0
    assert read_run(out).table.num_rows == 12


def test_auto_is_measured_once_and_kept(
    transformer: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, arguments = tmp_path / "run", ("certify", transformer, "--data", texts, "--out", tmp_path / "run")
    times = {"torch": 0.003, "onnxruntime": 0.001, "openvino": 0.002}
    monkeypatch.setattr(module, "fastest", lambda running, inputs, probes: ("onnxruntime", times))
    sources: list[ModelSource] = []

    def in_this_process(self: LocalEngine, task: Any, items: Any, total: int | None = None) -> Any:
        if task.source is not None:
            sources.append(task.source)
        yield from (result for _, result in task.load()(enumerate(items)))

    monkeypatch.setattr(LocalEngine, "map", in_this_process)
    assert run(*arguments, "--limit", 4, "--backend", "auto", "--workers", 2) == 0
    assert [source.backend for source in sources] == ["onnxruntime"]  # what workers load is not measured again
    assert read_run(out).manifest["model"]["backend"] == "onnxruntime"
    wanted = "backend onnxruntime, chosen here: a copy of 32 subwords takes torch 3 ms, onnxruntime 1 ms, openvino 2 ms"
    assert wanted in capsys.readouterr().err
    monkeypatch.setattr(module, "fastest", lambda running, inputs, probes: ("openvino", times))  # on another day
    assert run(*arguments, "--backend", "auto") == 0
    assert read_run(out).manifest["model"]["backend"] == "onnxruntime"
    assert read_run(out).table.num_rows == 12


def test_runs_of_before_there_were_backends_are_resumed(transformer: Path, texts: Path, tmp_path: Path) -> None:
    ad.evaluate(transformer, texts, out=tmp_path / "run", limit=4)
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest["model"].pop("backend") == "torch"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ValueError, match="holds another run: the base classifier was"):
        ad.evaluate(transformer, texts, out=tmp_path / "run", backend="openvino")
    assert ad.evaluate(transformer, texts, out=tmp_path / "run", backend="torch").table.num_rows == 12


def test_a_model_of_a_missing_library_is_run_by_torch(
    transformer: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ad.SmoothedClassifier.load(transformer, backend="openvino").save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "openvino", None)
    arguments = ("certify", tmp_path / "model", "--data", texts, "--out", tmp_path / "run")
    assert run(*arguments) == 2
    sentence = (
        "backend 'openvino' needs openvino and onnx: pip install 'adaptdel[openvino]'; or let torch run the model, "
    )
    assert capsys.readouterr().err.strip().endswith(sentence + "with --backend torch")
    assert run(*arguments, "--backend", "torch") == 0
    manifest = read_run(tmp_path / "run").manifest
    assert manifest["model_hash"] == ad.SmoothedClassifier.load(transformer).base_classifier().fingerprint()


def test_a_precision_that_a_backend_lacks_is_named(
    transformer: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ad.SmoothedClassifier.load(transformer)
    base = module.TransformersClassifier.load(transformer / "base", dtype="bfloat16")
    ad.SmoothedClassifier(base, model.noise_).save(tmp_path / "model")
    arguments = ("certify", tmp_path / "model", "--data", texts, "--out", tmp_path / "run", "--backend", "onnxruntime")
    assert run(*arguments) == 2
    sentence = "adaptdel: dtype must be 'float32' or 'int8' for backend 'onnxruntime', got 'bfloat16'"
    assert capsys.readouterr().err.strip() == sentence


def test_other_models_have_no_backend(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for backend in ("torch", "auto"):
        assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--backend", backend) == 2
        sentence = f"backend is for transformers: leave it out for a model of the kind linear, got '{backend}'"
        assert capsys.readouterr().err.strip().endswith(sentence)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="backend must be one of 'torch', 'onnxruntime', 'openvino', 'auto', got 'jax"):
        ad.evaluate(model, data, out=tmp_path / "run", backend="jax")
    assert "backend" not in ad.evaluate(model, data, out=tmp_path / "run").manifest["model"]


def test_calibration_keeps_the_backend_that_it_was_given(transformer: Path, texts: Path, tmp_path: Path) -> None:
    options = ("--objective", "mean", "--min-accuracy", "0.1", "--bins", "0", "--votes", "8,16", "--tol", "2")
    arguments = ("calibrate", transformer, "--data", texts, "--out", tmp_path / "new", *options)
    for backend in (("--backend", "openvino"), ()):
        again = (*arguments, "--overwrite", *backend)
        assert run(*again) == 0
        assert ad.SmoothedClassifier.load(tmp_path / "new").base_classifier().backend == (backend or (0, "torch"))[1]
        assert run(*again) == 0  # finished: nothing to do
