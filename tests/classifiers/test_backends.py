"""Exported graphs of transformers, run by ONNX Runtime and OpenVINO, on tiny models made in memory."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers import backends
from adaptdel.classifiers.base import Request
from adaptdel.classifiers.transformers import VOLATILE, TransformersClassifier
from tests.classifiers.test_transformers import CORPUS, fixed, requests, tiny

PAIRS = [
    ("onnxruntime", "float32"),
    ("onnxruntime", "int8"),
    ("openvino", "float32"),
    ("openvino", "int8"),
]


@cache
def classifier(backend: str, dtype: str, kind: str = "bert", budget: int = 500) -> TransformersClassifier:
    tokenizer = fixed(kind)
    model = tiny(kind, tokenizer, spread=0.1)
    return TransformersClassifier(model, tokenizer=tokenizer, backend=backend, dtype=dtype, batch_tokens=budget)


@pytest.mark.parametrize(("backend", "dtype"), PAIRS)
def test_votes_do_not_depend_on_batches_order_or_duplicates(backend: str, dtype: str) -> None:
    votes = []
    for budget in (1, 500):
        model = classifier(backend, dtype, budget=budget)
        votes.append(np.concatenate(model.votes(requests(model))))
    assert np.array_equal(votes[0], votes[1])
    asked = requests(model)
    doubled = [Request(request.prepared, np.tile(request.kept, (2, 1))[::-1]) for request in reversed(asked)]
    again = [row[::-1][:30] for row in reversed(model.votes(doubled))]
    assert np.array_equal(np.concatenate(again), votes[0])
    assert model.self_test_ is not None
    assert model.self_test_.batching != "alone"
    assert len(set(votes[0].tolist())) > 1


@pytest.mark.parametrize(("backend", "dtype"), PAIRS)
@pytest.mark.parametrize("kind", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_votes_are_close_to_those_of_torch(backend: str, dtype: str, kind: str) -> None:
    model, full = classifier(backend, dtype, kind), classifier("torch", "float32", kind)
    pair = [np.concatenate(one.votes(requests(one))) for one in (full, model)]
    assert np.mean(pair[0] == pair[1]) > (0.99 if dtype == "float32" else 0.9)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_fingerprints_in_torch_are_those_of_models_saved_before_there_were_backends(dtype: str) -> None:
    model = classifier("torch", dtype)
    config = {key: value for key, value in model.model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps([config, dtype], sort_keys=True, default=str).encode())
    digest.update(model.subwords.state().encode())
    for name, tensor in sorted(model.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    assert model.fingerprint() == digest.hexdigest()


def test_a_model_saved_before_there_were_backends_runs_in_torch(tmp_path: Path) -> None:
    base = classifier("torch", "int8")
    ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5))).save(tmp_path / "m")
    saved = json.loads((tmp_path / "m" / "adaptdel.json").read_text(encoding="utf-8"))
    assert saved["options"].pop("backend") == "torch"
    (tmp_path / "m" / "adaptdel.json").write_text(json.dumps(saved), encoding="utf-8")
    loaded = ad.SmoothedClassifier.load(tmp_path / "m").base_
    assert loaded.options()["backend"] == "torch"
    assert loaded.fingerprint() == base.fingerprint()


def test_every_backend_and_precision_has_its_own_fingerprint() -> None:
    found = {classifier(*pair).fingerprint() for pair in [*PAIRS, ("torch", "float32"), ("torch", "int8")]}
    assert len(found) == 6


@pytest.mark.parametrize(("backend", "dtype"), [("openvino", "int8"), ("onnxruntime", "float32")])
def test_a_saved_model_keeps_its_backend(tmp_path: Path, backend: str, dtype: str) -> None:
    base = classifier(backend, dtype)
    smoothed = ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5)), n_estimate=50)
    smoothed.save(tmp_path / "m")
    loaded = ad.SmoothedClassifier.load(tmp_path / "m")
    assert loaded.base_.options()["backend"] == backend
    assert loaded.base_.fingerprint() == base.fingerprint()
    assert loaded.certify(CORPUS[:1])[0].to_dict() == smoothed.certify(CORPUS[:1])[0].to_dict()


def test_auto_takes_the_fastest_and_keeps_it() -> None:
    tokenizer = fixed("bert")
    model = TransformersClassifier(tiny("bert", tokenizer, spread=0.1), tokenizer=tokenizer, backend="auto")
    assert set(model.backend_seconds_) == {"torch", "onnxruntime", "openvino"}
    fastest_time = min(model.backend_seconds_.values())
    chosen_time = model.backend_seconds_[str(model.backend)]
    assert chosen_time == fastest_time or (model.backend == "torch" and fastest_time > 0.9 * chosen_time)
    assert model.options()["backend"] == model.backend
    assert model.fingerprint() == classifier(model.backend, "float32").fingerprint()


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [((1.0, 0.95, 0.91), "torch"), ((1.0, 0.85, 0.89), "onnxruntime"), ((1.0, 2.0, 0.5), "openvino")],
)
def test_auto_leaves_torch_for_a_clear_gain_only(
    seconds: tuple[float, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def running(taken: float) -> Any:
        def score(batch: Any) -> None:
            nonlocal now
            now += taken

        return score

    monkeypatch.setattr("adaptdel.classifiers.backends.time.process_time", lambda: now)
    names = ("torch", "onnxruntime", "openvino")
    probes = classifier("torch", "float32").subwords.probes(None)
    best, measured = backends.fastest(dict(zip(names, map(running, seconds), strict=True)), ["input_ids"], probes)
    assert best == chosen
    assert measured == pytest.approx({name: taken / 32 for name, taken in zip(names, seconds, strict=True)})


@pytest.mark.parametrize("missing", ["library", "onnx"])
@pytest.mark.parametrize(("backend", "extra"), [("openvino", "openvino"), ("onnxruntime", "onnx")])
def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str, backend: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, backend if missing == "library" else missing, None)
    tokenizer = fixed("bert")
    with pytest.raises(ImportError) as error:
        TransformersClassifier(tiny("bert", tokenizer), tokenizer=tokenizer, backend=backend)
    assert str(error.value) == f"backend '{backend}' needs {backend} and onnx: pip install 'adaptdel[{extra}]'"


def test_a_missing_library_is_noticed_before_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fixed("bert")
    tiny("bert", tokenizer).base_model.save_pretrained(tmp_path)  # an encoder without a head
    tokenizer.save_pretrained(tmp_path)
    assert TransformersClassifier(str(tmp_path), backend="openvino").untrained_
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match="backend 'openvino' needs openvino"):
        TransformersClassifier(str(tmp_path), backend="openvino")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "jax"}, "backend must be one of 'torch', 'onnxruntime', 'openvino', 'auto', got 'jax'"),
        (
            {"backend": "onnxruntime", "dtype": "bfloat16"},
            "dtype must be 'float32' or 'int8' for backend 'onnxruntime', got 'bfloat16'",
        ),
        ({"backend": "openvino", "device": "cuda"}, "device must be 'cpu' for backend 'openvino', got 'cuda'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    tokenizer = fixed("bert")
    with pytest.raises(ValueError) as error:
        TransformersClassifier(tiny("bert", tokenizer), tokenizer=tokenizer, **options)
    assert str(error.value) == message
