"""ONNX models: their fingerprint covers all files of weights in their folder; transformers in 8 bits."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import adaptdel as ad  # noqa: E402
from adaptdel.classifiers.onnx import OnnxClassifier  # noqa: E402
from adaptdel.classifiers.transformers import TransformersClassifier  # noqa: E402
from tests.classifiers.test_transformers import CORPUS, fixed, requests, tiny  # noqa: E402
from tests.golden.make import onnx_graph, word_tokenizer  # noqa: E402


def write_model(folder: Path, location: str) -> Path:
    """A model whose weights are in another file."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    (folder / location).parent.mkdir(exist_ok=True)
    graph = onnx_graph(len(word_tokenizer()))
    onnx.save_model(graph, path, save_as_external_data=True, location=location, size_threshold=100)
    return path


def load(path: Path) -> Any:
    return OnnxClassifier(path, word_tokenizer(), classes=["neg", "pos"], max_length=64)


def test_weights_in_any_file_count(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "weights.bin")
    first = load(path)
    first.save(tmp_path / "copy")
    assert load(tmp_path / "copy" / "model.onnx").fingerprint() == first.fingerprint()
    weights = path.parent / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[40] ^= 1
    weights.write_bytes(data)
    assert load(path).fingerprint() != first.fingerprint()


def test_weights_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", "weights.bin")
    model = onnx.load(str(path), load_external_data=False)
    outside = tmp_path / "outside.bin"
    (path.parent / "weights.bin").rename(outside)
    for location in ("../outside.bin", str(outside), "missing.bin", "link.bin"):
        for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
            if entry.key == "location":
                entry.value = location
        path.write_bytes(model.SerializeToString())
        (path.parent / "link.bin").unlink(missing_ok=True)
        (path.parent / "link.bin").symlink_to(outside)
        with pytest.raises(ValueError, match="same folder"):
            load(path)


# Transformers in 8 bits


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
    def other(model: Any, batch: Any) -> Any:
        return np.array([[1.0, float(batch["input_ids"].sum()), 2]])

    monkeypatch.setattr("adaptdel.classifiers.onnx._logits", other)
    with pytest.raises(ValueError, match=r"'int8' for .*: its scores differ by up to"):
        TransformersClassifier(tiny("bert", fixed("bert")), tokenizer=fixed("bert"), dtype="int8")
