"""ONNX models: their fingerprint covers all files of weights in their folder; transformers in 8 bits."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.onnx import OnnxClassifier
from adaptdel.classifiers.transformers import TransformersClassifier
from tests.classifiers.test_self_test import SPECIAL, WORDS, attack, texts, tokenizer
from tests.classifiers.test_transformers import classifier as transformer
from tests.classifiers.test_transformers import fixed, requests, tiny
from tests.golden.make import onnx_graph, word_tokenizer
from tests.run_files import run, write_rows

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
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


def masked_graph() -> Any:
    """Scores of the mean of embeddings, over the attention mask."""
    helper, proto = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(len(SPECIAL) + len(WORDS), 8)).astype(np.float32),
        "head": 9 * rng.normal(size=(8, 2)).astype(np.float32),
        "axis": np.array([1]),
        "last": np.array([2]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["real"], to=proto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["some"]),
        helper.make_node("ReduceSum", ["some", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "head"], ["logits"]),
    ]
    names = ("input_ids", "attention_mask")
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info(name, proto.INT64, ["rows", "ids"]) for name in names],
        [helper.make_tensor_value_info("logits", proto.FLOAT, ["rows", 2])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("graph", "batching"), [(masked_graph, "padded"), (lambda: onnx_graph(len(SPECIAL) + len(WORDS)), "equal")]
)
def test_graphs_without_an_attention_mask_are_never_padded(tmp_path: Path, graph: Any, batching: str) -> None:
    onnx.save(graph(), str(tmp_path / "tiny.onnx"))
    model = OnnxClassifier(tmp_path / "tiny.onnx", tokenizer())
    assert model.batching == batching
    assert attack(model, texts(4)) > 5


def test_a_model_is_saved_loaded_and_certified_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(masked_graph(), str(tmp_path / "tiny.onnx"))
    base = OnnxClassifier(tmp_path / "tiny.onnx", tokenizer(), classes=["ham", "spam"])
    model = ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5)), n_select=20, n_estimate=60)
    inputs = [" ".join(map(str, tokens)) for tokens in texts(4)]
    model.save(tmp_path / "model")
    (tmp_path / "tiny.onnx").unlink()
    loaded = ad.SmoothedClassifier.load(tmp_path / "model")
    assert loaded.certify(inputs) == model.certify(inputs)
    data = write_rows(tmp_path / "data.jsonl", [{"text": text, "label": "ham"} for text in inputs])
    assert run("certify", tmp_path / "model", "--data", data, "--out", tmp_path / "run") == 0
    config = tmp_path / "model" / "adaptdel.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"tiny.onnx"', '"../tiny.onnx"'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"base: the model cannot be read \(file must"):
        ad.SmoothedClassifier.load(tmp_path / "model")


def test_dynamically_quantised_models_read_copies_one_by_one(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(masked_graph(), str(tmp_path / "tiny.onnx"))
    quantize_dynamic(tmp_path / "tiny.onnx", tmp_path / "int8.onnx")
    with pytest.warns(UserWarning, match="one by one"):
        model = OnnxClassifier(tmp_path / "int8.onnx", tokenizer())
    assert model.batching == "alone"
    assert attack(model, texts(4), size=2) > 0


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_gives_the_labels_of_torch(tmp_path: Path) -> None:
    plain = transformer()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 5, dtype=torch.long) for _ in names)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        plain.model, example, str(path), input_names=names, output_names=["logits"],
        dynamic_axes={name: {0: "rows", 1: "ids"} for name in names}, dynamo=False, opset_version=17,
    )  # fmt: skip
    model = OnnxClassifier(path, plain.tokenizer, batch_tokens=200, max_length=40, classes=["a", "b", "c"])
    for votes, others in zip(plain.votes(requests(plain)), model.votes(requests(model)), strict=True):
        assert np.array_equal(votes, others)
    with pytest.raises(ValueError, match="classes must be"):
        OnnxClassifier(path, plain.tokenizer, classes=["a"])
    with pytest.raises(ValueError, match="path must be"):
        OnnxClassifier(tmp_path / "none.onnx", plain.tokenizer)


# Transformers in 8 bits


@cache
def classifier(dtype: str, kind: str = "bert") -> TransformersClassifier:
    tokenizer = fixed(kind)
    model = tiny(kind, tokenizer, spread=0.3)  # 0.2 gives RoBERTa one answer only
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


def test_a_saved_model_is_loaded_in_another_precision(tmp_path: Path) -> None:
    ad.SmoothedClassifier(classifier("int8"), ad.Deletion(ad.FixedRate(0.5))).save(tmp_path / "m")
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
    monkeypatch.setattr("adaptdel.classifiers.onnx.SAME_SCORES", 0.0)
    with pytest.raises(ValueError, match="dtype cannot be 'int8'"):
        TransformersClassifier(tiny("bert", fixed("bert")), tokenizer=fixed("bert"), dtype="int8")
