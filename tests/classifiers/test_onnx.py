"""ONNX models: their fingerprint covers every file of weights, and no file outside of their folder is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import onnx_graph, word_tokenizer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")


def write_model(folder: Path, location: str) -> Path:
    """A model whose weights are in another file."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    (folder / location).parent.mkdir(exist_ok=True)
    graph = onnx_graph(len(word_tokenizer()))
    onnx.save_model(graph, path, save_as_external_data=True, location=location, size_threshold=100)
    return path


def load(path: Path) -> Any:
    from adaptdel.classifiers.onnx import OnnxClassifier

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
