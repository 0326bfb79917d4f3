"""ONNX Runtime as a backend of transformers, on tiny models made in memory."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.base import Request
from adaptdel.classifiers.transformers import TransformersClassifier
from tests.classifiers.test_transformers import CORPUS, fixed, requests, tiny

pytest.importorskip("onnxruntime")
DTYPES = ["float32", "int8"]


@cache
def classifier(backend: str, dtype: str, kind: str = "bert", budget: int = 500) -> TransformersClassifier:
    tokenizer = fixed(kind)
    model = tiny(kind, tokenizer, spread=0.2)
    return TransformersClassifier(model, tokenizer=tokenizer, backend=backend, dtype=dtype, batch_tokens=budget)


@pytest.mark.parametrize("dtype", DTYPES)
def test_votes_do_not_depend_on_batches_order_or_duplicates(dtype: str) -> None:
    votes = []
    for budget in (1, 500):
        model = classifier("onnxruntime", dtype, budget=budget)
        votes.append(np.concatenate(model.votes(requests(model))))
    assert np.array_equal(votes[0], votes[1])
    asked = requests(model)
    doubled = [Request(request.prepared, np.tile(request.kept, (2, 1))[::-1]) for request in reversed(asked)]
    again = [row[::-1][:30] for row in reversed(model.votes(doubled))]
    assert np.array_equal(np.concatenate(again), votes[0])
    assert model.self_test_ is not None
    assert model.self_test_.batching != "alone"
    assert len(set(votes[0].tolist())) > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_votes_are_close_to_those_of_torch(dtype: str, kind: str) -> None:
    model, full = classifier("onnxruntime", dtype, kind), classifier("torch", "float32", kind)
    pair = [np.concatenate(base.votes(requests(base))) for base in (full, model)]
    assert np.mean(pair[0] == pair[1]) > (0.99 if dtype == "float32" else 0.9)
    assert model.fingerprint() != full.fingerprint()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_model_keeps_its_backend(tmp_path: Path, dtype: str) -> None:
    base = classifier("onnxruntime", dtype)
    smoothed = ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5)), n_estimate=50)
    smoothed.save(tmp_path / "m")
    loaded = ad.SmoothedClassifier.load(tmp_path / "m")
    assert loaded.base_.options()["backend"] == "onnxruntime"
    assert loaded.base_.fingerprint() == base.fingerprint()
    assert loaded.certify(CORPUS[:1])[0].to_dict() == smoothed.certify(CORPUS[:1])[0].to_dict()


def test_int8_is_run_by_onnxruntime_unless_told() -> None:
    tokenizer = fixed("bert")
    model: Any = tiny("bert", tokenizer, spread=0.1)
    assert TransformersClassifier(model, tokenizer=tokenizer, dtype="int8").backend == "onnxruntime"
    assert TransformersClassifier(model, tokenizer=tokenizer).with_backend("onnxruntime").backend == "onnxruntime"


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_a_missing_library_names_the_extra_before_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    tokenizer = fixed("bert")
    tiny("bert", tokenizer).base_model.save_pretrained(tmp_path)  # an encoder without a head
    tokenizer.save_pretrained(tmp_path)
    assert TransformersClassifier(str(tmp_path), backend="onnxruntime").untrained_
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"adaptdel\[onnx\]"):
        TransformersClassifier(str(tmp_path), backend="onnxruntime")


def test_a_graph_with_other_scores_than_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptdel.classifiers import backends

    tokenizer = fixed("bert")
    monkeypatch.setattr(backends, "_logits", lambda model, batch: np.array([[1.0, float(batch["input_ids"].sum()), 2]]))
    with pytest.raises(ValueError, match=r"^backend must be 'torch' for .* its scores differ by up to"):
        TransformersClassifier(tiny("bert", tokenizer), tokenizer=tokenizer, backend="onnxruntime")
