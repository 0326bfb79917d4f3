"""Transformers in 8 bits under ONNX Runtime, on tiny models made in memory."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers import int8
from adaptdel.classifiers.transformers import TransformersClassifier
from tests.classifiers.test_transformers import CORPUS, fixed, requests, tiny

pytest.importorskip("onnxruntime")


@cache
def classifier(dtype: str, kind: str = "bert") -> TransformersClassifier:
    tokenizer = fixed(kind)
    model = tiny(kind, tokenizer, spread=0.2)
    return TransformersClassifier(model, tokenizer=tokenizer, dtype=dtype, batch_tokens=500)


@pytest.mark.parametrize("kind", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_votes_are_close_to_those_in_full_precision(kind: str) -> None:
    model, full = classifier("int8", kind), classifier("float32", kind)
    pair = [np.concatenate(base.votes(requests(base))) for base in (full, model)]
    assert np.mean(pair[0] == pair[1]) > 0.9
    assert len(set(pair[1].tolist())) > 1
    assert model.fingerprint() != full.fingerprint()
    assert model.self_test_ is not None
    assert model.self_test_.batching != "alone"


def test_a_saved_model_keeps_its_precision(tmp_path: Path) -> None:
    smoothed = ad.SmoothedClassifier(classifier("int8"), ad.Deletion(ad.FixedRate(0.5)), n_estimate=50)
    smoothed.save(tmp_path / "m")
    loaded = ad.SmoothedClassifier.load(tmp_path / "m")
    assert loaded.base_.dtype == "int8"
    assert loaded.certify(CORPUS[:1])[0].to_dict() == smoothed.certify(CORPUS[:1])[0].to_dict()
    full = ad.SmoothedClassifier.load(tmp_path / "m", dtype="float32")
    assert full.base_.fingerprint() == classifier("float32").fingerprint()


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_a_missing_library_names_the_extra_before_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    tokenizer = fixed("bert")
    tiny("bert", tokenizer).base_model.save_pretrained(tmp_path)  # an encoder without a head
    tokenizer.save_pretrained(tmp_path)
    assert TransformersClassifier(str(tmp_path), dtype="int8").untrained_
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"adaptdel\[onnx\]"):
        TransformersClassifier(str(tmp_path), dtype="int8")


def test_a_graph_with_other_scores_than_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "_logits", lambda model, batch: np.array([[1.0, float(batch["input_ids"].sum()), 2]]))
    with pytest.raises(ValueError, match=r"'int8' for .*: its scores differ by up to"):
        TransformersClassifier(tiny("bert", fixed("bert")), tokenizer=fixed("bert"), dtype="int8")
