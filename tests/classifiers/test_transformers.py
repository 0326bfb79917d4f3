"""Transformers and ONNX base classifiers, on tiny tokenizers and models made in memory."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.base import BaseClassifierError, Request
from adaptdel.classifiers.subwords import PROBES
from adaptdel.classifiers.transformers import TransformersClassifier, matmul_precision
from adaptdel.text.units import Words

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

torch.set_num_threads(1)  # tiny models are faster so
CORPUS = [
    "the film was good and the plot was not bad at all",
    "it's a dull movie, isn't it? I'd say 2 of 10",
    "free money! click http://spam.example now (50% off)",
    "naïve café über 日本 😀 don't stop believing",
    *PROBES[:4],
]
SPECIAL = {
    "bert": ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
    "roberta": ("<s>", "</s>", "<pad>", "<unk>", "<mask>"),
}


def wrapped(inner: Any, names: tuple[str, ...], *, max_length: int = 10**30, **options: Any) -> Any:
    """A Hugging Face tokenizer with special tokens around every text and a mask."""
    cls, sep, pad, unk, mask = names
    ids = [(token, inner.token_to_id(token)) for token in (cls, sep)]
    inner.post_processor = tokenizers.processors.TemplateProcessing(single=f"{cls} $A {sep}", special_tokens=ids)
    kinds = {"cls_token": cls, "sep_token": sep, "pad_token": pad, "unk_token": unk}
    if options.pop("mask", True):
        kinds["mask_token"] = tokenizers.AddedToken(mask, lstrip=names is SPECIAL["roberta"], special=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=max_length, **kinds, **options)


def fixed(kind: str, **options: Any) -> Any:
    """A tokenizer of written-down words and letters."""
    names = SPECIAL[kind]
    if kind == "bert":
        words = sorted({word for text in CORPUS for word in text.lower().split() if word.isalpha()})
        chars = sorted({char for text in CORPUS for char in text.lower()} - {" "})
        vocab = dict.fromkeys([*names, *words, *chars, *(f"##{char}" for char in chars)])
        model = tokenizers.models.WordPiece({token: place for place, token in enumerate(vocab)}, unk_token="[UNK]")
        inner = tokenizers.Tokenizer(model)
        inner.normalizer = tokenizers.normalizers.BertNormalizer()
        inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    else:
        letters = "abcdefghijklmnopqrstuvwxyz"
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        vocab = dict.fromkeys([*names, *alphabet, *(f"Ġ{letter}" for letter in letters)])
        merges = [("Ġ", letter) for letter in letters]
        inner = tokenizers.Tokenizer(tokenizers.models.BPE({token: place for place, token in enumerate(vocab)}, merges))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrapped(inner, names, **options)


def tiny(kind: str, tokenizer: Any, labels: int = 3, spread: float = 0.5) -> Any:
    torch.manual_seed(0)
    options = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 40, "num_labels": labels, "initializer_range": spread,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    config = transformers.BertConfig(**options) if kind == "bert" else transformers.RobertaConfig(**options)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


@cache
def classifier(kind: str = "bert", **options: Any) -> TransformersClassifier:
    tokenizer = fixed(kind)
    return TransformersClassifier(tiny(kind, tokenizer), tokenizer=tokenizer, **options)


def requests(model: Any, copies: int = 30, masking: bool = False) -> list[Request]:
    rng = np.random.default_rng(1)
    unit = Words()
    ready = [model.prepare(f"text {i}", unit.split(text), unit, masking=masking) for i, text in enumerate(CORPUS)]
    return [Request(one, rng.random((copies, len(one.tokens))) < 0.5) for one in ready]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_votes_do_not_depend_on_batches_order_or_duplicates(kind: str, dtype: str) -> None:
    tokenizer = fixed(kind)
    model = tiny(kind, tokenizer)
    votes = []
    for budget in (1, 300, 4000):
        one = TransformersClassifier(model, tokenizer=tokenizer, dtype=dtype, batch_tokens=budget)
        votes.append(np.concatenate(one.votes(requests(one))))
    assert all(np.array_equal(votes[0], other) for other in votes)
    one = TransformersClassifier(model, tokenizer=tokenizer, dtype=dtype, batch_tokens=500)
    asked = requests(one)
    order = np.random.default_rng(2).permutation(len(asked))
    again = one.votes([Request(asked[i].prepared, np.tile(asked[i].kept, (2, 1))[::-1]) for i in order])
    back = np.concatenate([again[int(np.flatnonzero(order == i)[0])][::-1][:30] for i in range(len(asked))])
    assert np.array_equal(back, votes[0])
    assert len(set(votes[0].tolist())) > 1


def test_near_ties_are_decided_alone() -> None:
    plain = classifier()
    model = TransformersClassifier(plain.model, tokenizer=plain.tokenizer)
    model.margin = np.inf
    rows: list[int] = []
    true_start = model.start

    def start(inputs: Any) -> Any:
        rows.append(len(inputs["input_ids"]))
        found = true_start(inputs)()
        return lambda: found if len(found) == 1 else found[:, ::-1]  # what a batch says is wrong, and must not count

    model.start = start  # type: ignore[method-assign]
    votes = model.votes(requests(model, copies=5))
    assert all(np.array_equal(*pair) for pair in zip(votes, plain.votes(requests(plain, copies=5)), strict=True))
    assert max(rows) > 1


def test_long_inputs_are_truncated_to_the_positions() -> None:
    for kind, most in (("bert", 40), ("roberta", 40 - 3)):  # padding has number 2 in the second
        model = classifier(kind)
        assert model.subwords.max_length == most
        ready = model.prepare("long", ("film",) * 100, Words())
        assert model.votes([Request(ready, np.ones((2, 100), dtype=np.bool_))])[0].shape == (2,)


def test_nan_names_the_input() -> None:
    tokenizer = fixed("bert")
    broken = tiny("bert", tokenizer)
    with torch.no_grad():
        broken.classifier.bias[1] = float("nan")
    model = TransformersClassifier(broken, tokenizer=tokenizer)
    with pytest.raises(BaseClassifierError, match="NaN on text 3"):
        model.votes(requests(model, copies=1)[3:4])


def test_arguments_are_checked() -> None:
    tokenizer = fixed("bert")
    model = tiny("bert", tokenizer)
    with pytest.raises(ValueError, match="tokenizer must be"):
        TransformersClassifier(model)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "int4"}, "dtype"),
        ({"dtype": "tf32", "device": "cpu"}, "dtype"),
        ({"dtype": "int8", "compile": True}, "compile"),
        ({"dtype": "int8", "device": "meta"}, "device"),
        ({"device": "abacus"}, "device"),
    ]
    for options, name in wrong:
        with pytest.raises(ValueError, match=f"^{name} must be"):
            TransformersClassifier(model, tokenizer=tokenizer, **options)
    with pytest.raises(ValueError, match="at least 2 labels"):
        TransformersClassifier(tiny("bert", tokenizer, labels=1), tokenizer=tokenizer)
    for labels, word in (([], "labels"), ([0, 1], "3 classes")):
        with pytest.raises(ValueError, match=word):
            TransformersClassifier(model, tokenizer=tokenizer).fit([("a",), ("b",)], labels, noise=ad.NoNoise())


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"adaptdel\[transformers\]"):
        TransformersClassifier("x")


def test_a_new_head_has_to_be_trained(encoder: str) -> None:
    fresh = TransformersClassifier(encoder)
    with pytest.raises(BaseClassifierError, match="call fit first"):
        fresh.votes(requests(fresh))


def test_fingerprint_and_files(tmp_path: Path) -> None:
    tokenizer = fixed("roberta")
    weights = tiny("roberta", tokenizer)
    weights.config.id2label = {0: "bad", 1: "so-so", 2: "good"}
    model = TransformersClassifier(weights, tokenizer=tokenizer)
    assert model.classes_ == ["bad", "so-so", "good"]
    before = model.fingerprint()
    model.save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").exists()
    again = TransformersClassifier.load(tmp_path / "m", batch_tokens=99)
    assert again.classes_ == model.classes_
    assert again.fingerprint() == before
    for one, other in zip(model.votes(requests(model)), again.votes(requests(again)), strict=True):
        assert np.array_equal(one, other)
    with torch.no_grad():
        weights.classifier.out_proj.bias[0] += 1e-3
    assert TransformersClassifier(weights, tokenizer=tokenizer).fingerprint() != before


@pytest.mark.parametrize(
    ("dtype", "loaded_as"), [("int8", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_any_precision_survives_saving(tmp_path: Path, dtype: str, loaded_as: str) -> None:
    tokenizer = fixed("bert")
    model = tiny("bert", tokenizer).to(getattr(torch, loaded_as))
    base = TransformersClassifier(model, tokenizer=tokenizer, dtype=dtype)
    smoothed = ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5)), n_estimate=50)
    smoothed.save(tmp_path / "m")
    loaded = ad.SmoothedClassifier.load(tmp_path / "m")
    assert loaded.base_.options()["dtype"] == dtype
    text = "the cat sat on the mat with another cat and some more words to see"
    assert loaded.certify([text])[0].to_dict() == smoothed.certify([text])[0].to_dict()


@pytest.mark.parametrize(("dtype", "wanted"), [("tf32", "high"), ("float32", "highest"), ("bfloat16", "highest")])
def test_products_have_the_stated_precision_whatever_was_set_elsewhere(dtype: str, wanted: str) -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with matmul_precision(dtype):
            assert torch.get_float32_matmul_precision() == wanted
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
