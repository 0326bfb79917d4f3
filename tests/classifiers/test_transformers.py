"""Transformers and ONNX base classifiers, on tiny tokenizers and models made in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import adaptdel as ad  # noqa: E402
from adaptdel.classifiers.base import BaseClassifierError, Prepared, Request  # noqa: E402
from adaptdel.classifiers.subwords import PROBES, Subwords, batches  # noqa: E402
from adaptdel.classifiers.transformers import TransformersClassifier  # noqa: E402
from adaptdel.text.units import Bytes, Characters, Words  # noqa: E402

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


def byte_level(prefix: bool) -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        CORPUS * 3,
        tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=[*SPECIAL["roberta"]], initial_alphabet=alphabet),
    )
    return inner


def word_piece() -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=50))
    inner.normalizer = tokenizers.normalizers.BertNormalizer()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(
        CORPUS * 3, tokenizers.trainers.WordPieceTrainer(vocab_size=400, special_tokens=[*SPECIAL["bert"]])
    )
    return inner


def unigram() -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    inner.train_from_iterator(
        CORPUS * 3,
        tokenizers.trainers.UnigramTrainer(vocab_size=300, special_tokens=[*SPECIAL["roberta"]], unk_token="<unk>"),
    )
    return inner


def across_spaces() -> Any:
    """Merges reach over spaces: gathering would be wrong."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    inner.train_from_iterator(
        CORPUS * 3, tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL["roberta"]])
    )
    return inner


MAKERS: dict[str, Callable[..., Any]] = {
    "bytes": lambda **options: wrapped(byte_level(False), SPECIAL["roberta"], **options),
    "bytes-prefix": lambda **options: wrapped(byte_level(True), SPECIAL["roberta"], **options),
    "wordpiece": lambda **options: wrapped(word_piece(), SPECIAL["bert"], **options),
    "unigram": lambda **options: wrapped(unigram(), SPECIAL["roberta"], **options),
    "across": lambda **options: wrapped(across_spaces(), SPECIAL["roberta"], **options),
}
GATHERING = [name for name in MAKERS if name != "across"]


@cache
def subwords(name: str, max_length: int | None = None, side: str = "right") -> Subwords:
    return Subwords(MAKERS[name](truncation_side=side), max_length=max_length, tokenise="auto", name=name)


def ids_of(reader: Subwords, words: tuple[str, ...], kept: Any, masking: bool) -> list[list[int]]:
    pieces = reader.prepare(words, Words(), masking)
    copies = reader.copies(Request(Prepared("x", words, Words(), masking, pieces), kept))
    return [np.frombuffer(copy, dtype=np.int32).tolist() for copy in copies]


def ids_wanted(reader: Subwords, words: tuple[str, ...], kept: Any, masking: bool) -> list[list[int]]:
    """By the tokenizer, text by text."""
    mask = reader.tokenizer.mask_token
    limit = {"truncation": True, "max_length": reader.max_length} if reader.max_length else {}
    wanted = []
    for row in kept:
        some = [word if keep else mask for word, keep in zip(words, row, strict=True) if keep or masking]
        wanted.append(reader.tokenizer(" ".join(some), **limit)["input_ids"])
    return wanted


words_of_all_kinds = st.one_of(
    st.sampled_from([word for probe in PROBES for word in probe.split()]),
    st.sampled_from([word for text in CORPUS for word in text.split()]),
    st.text(min_size=1, max_size=8).filter(lambda text: text.split() == [text]),
    st.text("aeést'.,!1\u0301\u200b´", min_size=1, max_size=6).filter(lambda text: text.split() == [text]),
)


@pytest.mark.parametrize("name", MAKERS)
@given(words=st.lists(words_of_all_kinds, max_size=9).map(tuple), seed=st.integers(0, 99), data=st.data())
def test_ids_are_those_of_the_joined_text(name: str, words: tuple[str, ...], seed: int, data: st.DataObject) -> None:
    limit, side = data.draw(st.sampled_from([(None, "right"), (7, "right"), (7, "left")]))
    reader = subwords(name, limit, side)
    kept = np.random.default_rng(seed).random((6, len(words))) < np.linspace(0, 1, 6)[:, None]
    for masking in (False, True):
        assert ids_of(reader, words, kept, masking) == ids_wanted(reader, words, kept, masking)


@pytest.mark.parametrize("name", MAKERS)
def test_gathering_is_used_where_it_is_right(name: str) -> None:
    reader = subwords(name)
    assert reader.gathers == (name != "across")
    words = Words().split("it's a dull plot , 2 of 10 !")
    for masking in (False, True):
        assert (reader.prepare(words, Words(), masking) is not None) == (name != "across")
    assert reader.prepare((), Words(), False) is not None or name == "across"
    assert reader.prepare(words, Characters(), False) is None
    joined = Subwords(reader.tokenizer, max_length=None, tokenise="join", name=name)
    assert joined.prepare(words, Words(), False) is None


def test_first_words_of_byte_level_bpe_have_forms_of_their_own() -> None:
    words = ("good", "film")
    pieces = subwords("bytes").prepare(words, Words(), False)
    assert pieces is not None
    first, rest = (pieces.ids[pieces.starts[place] :][: pieces.lengths[place]].tolist() for place in (pieces.shift, 0))
    assert first != rest


def test_a_tokenizer_across_spaces_is_refused_for_gathering() -> None:
    with pytest.raises(ValueError) as error:
        Subwords(MAKERS["across"](), max_length=None, tokenise="gather", name="M")
    assert str(error.value) == "tokenise must be 'auto' or 'join' for M: its tokenizer does not work word by word"


def test_units_and_masks_that_do_not_fit() -> None:
    bare = Subwords(MAKERS["wordpiece"](mask=False), max_length=None, tokenise="auto", name="M")
    with pytest.raises(ValueError) as error:
        bare.prepare(("a",), Words(), True)
    assert str(error.value) == "noise must be a deletion for M, whose tokenizer has no mask token"
    with pytest.raises(ValueError) as error:
        bare.prepare((1, 2), Bytes(), False)
    assert str(error.value) == "unit must join to a text, as 'word' and 'char' do, for M, got 'byte'"
    with pytest.raises(ValueError) as error:
        Subwords(MAKERS["wordpiece"](), max_length=2, tokenise="auto", name="M")
    assert str(error.value) == "the maximum length of M must leave space for a token, got 2"


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=60), budget=st.integers(1, 400))
def test_batches_hold_every_copy_once_within_the_budget(sizes: list[int], budget: int) -> None:
    array = np.array(sizes)
    for batch in batches(array, budget, equal=True):
        assert len(set(array[batch].tolist())) == 1
    found = list(batches(array, budget))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(sizes)))
    assert all(len(batch) == 1 or len(batch) * array[batch].max() <= budget for batch in found)


def fixed(kind: str, **options: Any) -> Any:
    """A tokenizer written down: those above are trained, with ties broken at random, so models on them would vary."""
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
    for budget in (1, 300, 10**6):
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


def test_votes_are_those_of_the_model_read_alone() -> None:
    model = classifier()
    asked = requests(model, copies=10)
    wanted = []
    for request in asked:
        for row in request.kept:
            text = " ".join(np.array(request.prepared.tokens, dtype=object)[row])
            inputs = model.tokenizer(text, return_tensors="pt", truncation=True, max_length=40)
            with torch.inference_mode():
                wanted.append(int(model.model(**inputs).logits.argmax()))
    assert np.concatenate(model.votes(asked)).tolist() == wanted


def test_near_ties_are_decided_alone() -> None:
    plain = classifier()
    model = TransformersClassifier(plain.model, tokenizer=plain.tokenizer, margin=np.inf)
    rows: list[int] = []
    true_scores = model.scores

    def scores(inputs: Any) -> Any:
        rows.append(len(inputs["input_ids"]))
        found = true_scores(inputs)
        return found if len(found) == 1 else found[:, ::-1]  # what a batch says is all wrong, and must not count

    model.scores = scores  # type: ignore[method-assign]
    votes = model.votes(requests(model, copies=5))
    assert all(np.array_equal(*pair) for pair in zip(votes, plain.votes(requests(plain, copies=5)), strict=True))
    assert max(rows) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_low_precision_mostly_agrees(dtype: str) -> None:
    full = classifier()
    low = TransformersClassifier(full.model, tokenizer=full.tokenizer, dtype=dtype)
    pair = [np.concatenate(one.votes(requests(one))) for one in (full, low)]
    assert np.mean(pair[0] == pair[1]) > 0.9
    assert full.fingerprint() != low.fingerprint()


def test_masked_copies_keep_their_length() -> None:
    model = classifier("roberta")
    asked = requests(model, copies=4, masking=True)[0]
    mask = model.tokenizer.mask_token_id
    for row, key in zip(asked.kept, model.keys(asked), strict=True):
        assert isinstance(key, bytes)
        assert np.count_nonzero(np.frombuffer(key, np.int32) == mask) == np.count_nonzero(~row)
    assert all(len(votes) == 4 for votes in model.votes(requests(model, copies=4, masking=True)))


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
    with pytest.raises(BaseClassifierError) as error:
        model.votes(requests(model, copies=1)[3:4])
    assert str(error.value) == "the base classifier returned NaN on text 3"


def test_arguments_are_checked() -> None:
    tokenizer = fixed("bert")
    model = tiny("bert", tokenizer)
    with pytest.raises(ValueError) as error:
        TransformersClassifier(model)
    assert str(error.value) == "tokenizer must be given with a loaded model, got None"
    with pytest.raises(ValueError) as error:
        TransformersClassifier(model, tokenizer=tokenizer, dtype="int4")
    assert str(error.value) == "dtype must be one of 'float32', 'bfloat16', 'int8', got 'int4'"
    with pytest.raises(ValueError) as error:
        TransformersClassifier(model, tokenizer=tokenizer, dtype="int8", device="cuda")
    assert str(error.value) == "device must be 'cpu' for dtype 'int8', got 'cuda'"
    with pytest.raises(ValueError) as error:
        TransformersClassifier(tiny("bert", tokenizer, labels=1), tokenizer=tokenizer)
    assert str(error.value) == "model must have at least 2 labels, got 1 in BertForSequenceClassification"


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


def trained(folder: Path, labels: list[Any], **options: Any) -> TransformersClassifier:
    model = TransformersClassifier(folder)
    assert model.untrained_
    examples = [("good", "film", "was") if i % 2 else ("dull", "plot", "was") for i in range(len(labels))]
    noise = ad.Deletion(ad.FixedRate(0.2))
    validation = (examples, labels)
    return model.fit(
        examples, labels, noise=noise, validation=validation, epochs=4, batch_size=8, learning_rate=2e-3, **options
    )


def test_fit_learns_and_is_reproducible(tmp_path: Path) -> None:
    tokenizer = fixed("bert")
    tiny("bert", tokenizer, spread=0.1).bert.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    fresh = TransformersClassifier(tmp_path / "encoder")
    with pytest.raises(BaseClassifierError, match="has no trained classification head: call fit first"):
        fresh.votes(requests(fresh))
    steps: list[tuple[int, int]] = []
    labels = ["pos" if i % 2 else "neg" for i in range(80)]
    one = trained(tmp_path / "encoder", labels, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(step, 40) for step in range(1, 41)]
    assert one.classes_ == ["neg", "pos"]
    ready = [one.prepare("x", words, Words()) for words in (("good", "film", "was"), ("dull", "plot", "was"))]
    votes = one.votes([Request(item, np.ones((1, 3), dtype=np.bool_)) for item in ready])
    assert [int(row[0]) for row in votes] == [1, 0]
    assert trained(tmp_path / "encoder", labels).fingerprint() == one.fingerprint()
    assert trained(tmp_path / "encoder", labels, seed=1).fingerprint() != one.fingerprint()
    stars = trained(tmp_path / "encoder", [1 + i % 2 for i in range(8)])
    stars.save(tmp_path / "stars")
    assert TransformersClassifier.load(tmp_path / "stars").classes_ == [1, 2]


def test_fit_checks_labels() -> None:
    model = classifier()
    noise = ad.NoNoise()
    with pytest.raises(ValueError) as error:
        model.fit([("a",)], [], noise=noise)
    assert str(error.value) == "labels must be one for each of at least 1 example, got 0 for 1"
    with pytest.raises(ValueError) as error:
        model.fit([("a",), ("b",)], [0, 1], noise=noise)
    with pytest.raises(ValueError) as single:
        model.fit([("a",), ("b",)], [1, 1], noise=noise)
    assert str(single.value) == "labels must be texts or whole numbers of at least 2 classes, got [1]"
    assert str(error.value) == "labels must be of 3 classes for BertForSequenceClassification, got 2"


@pytest.mark.filterwarnings("ignore")
def test_onnx_gives_the_labels_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from adaptdel.classifiers.onnx import OnnxClassifier

    plain = classifier()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = {name: torch.ones(2, 5, dtype=torch.long) for name in names}
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        plain.model, tuple(example[name] for name in names), str(path), input_names=names, output_names=["logits"],
        dynamic_axes={name: {0: "rows", 1: "ids"} for name in names}, dynamo=False, opset_version=17,
    )  # fmt: skip
    model = OnnxClassifier(path, plain.tokenizer, batch_tokens=200, max_length=40, classes=["a", "b", "c"])
    assert model.classes_ == ["a", "b", "c"]
    for one, other in zip(plain.votes(requests(plain)), model.votes(requests(model)), strict=True):
        assert np.array_equal(one, other)
    assert len(model.fingerprint()) == 64
    with pytest.raises(ValueError) as error:
        OnnxClassifier(path, plain.tokenizer, classes=["a"])
    assert str(error.value) == "classes must be one for each of the (at least 2) scores, got 3 scores"
    with pytest.raises(ValueError, match="path must be an ONNX file, got"):
        OnnxClassifier(tmp_path / "none.onnx", plain.tokenizer)


@pytest.mark.parametrize(
    ("library", "module", "sentence"),
    [
        (
            "torch",
            "transformers",
            "TransformersClassifier needs torch and transformers: pip install 'adaptdel[transformers]'",
        ),
        ("onnxruntime", "onnx", "OnnxClassifier needs onnxruntime and transformers: pip install 'adaptdel[onnx]'"),
    ],
)
def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, sentence: str
) -> None:
    import importlib
    import sys

    room = importlib.import_module(f"adaptdel.classifiers.{module}")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as error:
        (room.TransformersClassifier("x") if module == "transformers" else room.OnnxClassifier("x", "y"))
    assert str(error.value) == sentence
