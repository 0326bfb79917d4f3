"""The promise that an answer depends on the copy alone, for many architectures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers.base import Request
from adaptdel.classifiers.subwords import Probes, SelfTest, self_test
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.text.units import Words

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

torch.set_num_threads(1)
SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
WORDS = tuple("abcdefgh")
NOISE = ad.Deletion(ad.FixedRate(0.75))
LIMIT = 64
COMMON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": LIMIT, "initializer_range": 0.5,
}  # fmt: skip
SIZED: dict[str, Any] = {"initializer_range": 0.5}
NO_LIMIT = {name: value for name, value in COMMON.items() if name != "max_position_embeddings"}
DISENTANGLED = COMMON | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
GPT2 = SIZED | {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LIMIT}
# Funnel has one block: its pooling between blocks cannot read a copy without words.
# Name: architecture, settings, side of padding, and what the self-test has to allow.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "BERT": ("Bert", COMMON, "right", "padded"),
    "RoBERTa": ("Roberta", COMMON, "right", "padded"),
    "DeBERTa-v2": ("DebertaV2", DISENTANGLED, "right", "padded"),
    "DistilBERT": ("DistilBert", SIZED | {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}, "right", "padded"),
    "ALBERT": ("Albert", COMMON | {"embedding_size": 16}, "right", "padded"),
    "ModernBERT": ("ModernBert", COMMON | {"global_attn_every_n_layers": 2, "local_attention": 8}, "right", "padded"),
    "Longformer": ("Longformer", COMMON | {"attention_window": [8, 8], "sep_token_id": 1}, "right", "padded"),
    "Funnel": ("Funnel", SIZED | {"block_sizes": [2], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64},
               "right", "padded"),
    "XLNet": ("XLNet", SIZED | {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}, "left", "padded"),
    "Llama": ("Llama", COMMON | {"num_key_value_heads": 2, "head_dim": 16}, "right", "padded"),
    "Llama, left": ("Llama", COMMON | {"num_key_value_heads": 2, "head_dim": 16}, "left", "padded"),
    "GPT-2": ("GPT2", GPT2, "right", "padded"),
    "GPT-2, left": ("GPT2", GPT2, "left", "equal"),
    "Nyströmformer": ("Nystromformer", COMMON | {"num_landmarks": LIMIT, "segment_means_seq_length": LIMIT},
                      "right", "equal"),
    "FNet": ("FNet", COMMON | {"use_tpu_fourier_optimizations": False}, "right", "equal"),
    "YOSO": ("Yoso", COMMON | {"use_expectation": True}, "right", "equal"),
    "ConvBERT": ("ConvBert", COMMON | {"embedding_size": 32, "head_ratio": 2, "conv_kernel_size": 3}, "right", "equal"),
    "BART": ("Bart", SIZED | {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                              "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                              "max_position_embeddings": LIMIT, "eos_token_id": 1}, "right", "padded"),
    "BigBird, full": ("BigBird", COMMON | {"attention_type": "original_full"}, "right", "padded"),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "BigBird": (
        "BigBird", COMMON | {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
        "must give a copy the same scores whenever it reads it",
    ),
    "Reformer": (
        "Reformer", NO_LIMIT | {
            "attn_layers": ["lsh", "local"], "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16],
            "is_decoder": False, "attention_head_size": 16, "feed_forward_size": 64, "num_buckets": 4,
            "lsh_attn_chunk_length": 16, "local_attn_chunk_length": 16, "max_position_embeddings": LIMIT,
        },
        "must give a copy the same scores whenever it reads it",
    ),
    "Nyströmformer, approximate": (
        "Nystromformer", COMMON | {"num_landmarks": 4, "segment_means_seq_length": LIMIT, "conv_kernel_size": 5},
        "must read copies of any length",
    ),
}  # fmt: skip


@cache
def tokenizer(side: str = "right") -> Any:
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *WORDS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ends = [(token, vocabulary[token]) for token in SPECIAL[:2]]
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, padding_side=side, model_max_length=LIMIT, **dict(zip(names, SPECIAL, strict=True))
    )


def built(architecture: str, settings: dict[str, Any], seed: int = 0) -> Any:
    config = getattr(transformers, f"{architecture}Config")(
        **settings, vocab_size=len(SPECIAL) + len(WORDS), num_labels=2, pad_token_id=2
    )
    torch.manual_seed(seed)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def classifier(name: str, seed: int = 0, **options: Any) -> TransformersClassifier:
    architecture, settings, side, _ = ARCHITECTURES[name]
    return TransformersClassifier(built(architecture, settings, seed), tokenizer=tokenizer(side), **options)


def alone(model: TransformersClassifier, words: tuple[str, ...]) -> int:
    """The model's answer to a copy that it reads alone, without padding."""
    ids = torch.tensor([model.tokenizer(" ".join(words))["input_ids"]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        return int(model.model(**{key: inputs[key] for key in model._arrays}).logits.argmax())


def texts(count: int = 12) -> list[tuple[str, ...]]:
    rng = np.random.default_rng(5)
    return [tuple(rng.choice(WORDS, size)) for size in rng.integers(1, 50, count)]


def neighbours(words: tuple[str, ...], vocabulary: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every text at a distance of one edit."""
    for place in range(len(words) + 1):
        yield from ((*words[:place], word, *words[place:]) for word in vocabulary)
    for place in range(len(words)):
        yield words[:place] + words[place + 1 :]
        yield from ((*words[:place], word, *words[place + 1 :]) for word in vocabulary if word != words[place])


def exact_labels(model: Any, inputs: list[tuple[str, ...]]) -> list[int]:
    smoothed = ad.SmoothedClassifier(model, NOISE, progress=False)
    certificates = smoothed.certify([" ".join(words) for words in inputs])
    assert all(certificate.alpha == 0 for certificate in certificates)
    return [certificate.label for certificate in certificates]


def attack(model: Any, company: list[tuple[str, ...]], size: int = 3, vocabulary: tuple[str, ...] = WORDS[:3]) -> int:
    """Attack every exact certificate of radius 1 with every edit, asked about in different company; count them.

    The label of a neighbour is exact too, so that a certificate holds for all of them or is violated.
    """
    smoothed = ad.SmoothedClassifier(model, NOISE, progress=False)
    inputs = [words for length in (2, size) for words in product(vocabulary, repeat=length)]
    certificates = smoothed.certify([" ".join(words) for words in [*inputs, *company]])[: len(inputs)]
    held = [(words, made) for words, made in zip(inputs, certificates, strict=True) if made.radius >= 1]
    attacked = sorted({other for words, _ in held for other in neighbours(words, vocabulary)})
    labels = dict(zip(attacked, exact_labels(model, attacked), strict=True))
    for words, certificate in held:
        for other in neighbours(words, vocabulary):
            assert labels[other] == certificate.label, f"{words} is certified at {certificate.radius}, {other} differs"
    return len(held)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_are_certified_as_functions_of_the_copy(name: str) -> None:
    model = classifier(name)
    outcome = model.self_test_
    assert outcome is not None
    assert (model.batching, outcome.batching) == (ARCHITECTURES[name][3],) * 2
    assert outcome.longest == model.subwords.max_length
    assert 0.001 <= model.margin < 0.1
    unit = Words()
    inputs = texts()
    ready = [model.prepare(f"text {place}", words, unit) for place, words in enumerate(inputs)]
    rng = np.random.default_rng(0)
    asked = [Request(prepared, rng.random((6, len(prepared.tokens))) < 0.5) for prepared in ready]
    wanted = [
        [alone(model, tuple(np.array(words)[row])) for row in request.kept]
        for words, request in zip(inputs, asked, strict=True)
    ]
    assert [votes.tolist() for votes in model.votes(asked)] == wanted
    assert any(attack(classifier(name, seed), texts(4)) for seed in range(5))


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_no_function_of_the_copy_are_refused(name: str) -> None:
    architecture, settings, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        TransformersClassifier(built(architecture, settings), tokenizer=tokenizer())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("BERT", "bfloat16"), ("GPT-2, left", "bfloat16"), ("ModernBERT", "bfloat16"), ("BERT", "int8")],
)
def test_a_model_is_tested_in_the_precision_that_it_runs_in(name: str, dtype: str) -> None:
    model = classifier(name, dtype=dtype)
    assert model.batching in ("equal", "alone")
    assert model.self_test_ is not None
    assert model.self_test_.model_hash == model.fingerprint()


def test_the_outcome_is_stored(tmp_path: Path) -> None:
    model = ad.SmoothedClassifier(classifier("FNet"), NOISE)
    model.save(tmp_path / "model")
    stored = json.loads((tmp_path / "model" / "adaptdel.json").read_text())
    assert stored["self_test"]["batching"] == "equal"
    assert stored["self_test"]["model_hash"] == stored["fingerprint"]
    assert stored["self_test"]["padded"] is None  # never padded: it reads no attention mask
    loaded: Any = ad.SmoothedClassifier.load(tmp_path / "model").base_
    assert loaded.self_test_ == model.base.self_test_


def test_two_classes_of_an_architecture_with_three_by_default_are_stored(tmp_path: Path) -> None:
    """A configuration leaves out what it holds to be the default: BART was loaded again with three labels."""
    classifier("BART").with_head([0, 1]).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert TransformersClassifier(str(tmp_path)).classes_ == [0, 1]


def test_long_copies_share_batches_only_as_far_as_they_were_tried() -> None:
    """LongRoPE reads a batch otherwise once its longest row is beyond 400 ids."""
    heads = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [4.0] * 8, "short_factor": [1.0] * 8}
    lengths = {"max_position_embeddings": 2048, "original_max_position_embeddings": 400}
    scaled = {"rope_parameters": rope | {"original_max_position_embeddings": 400}, "eos_token_id": 1, "bos_token_id": 0}
    settings = heads | lengths | scaled | {"intermediate_size": 64, "initializer_range": 0.5}
    long = deepcopy(tokenizer())
    long.model_max_length = 2048
    model = TransformersClassifier(built("Phi3", settings), tokenizer=long)
    assert model.batching == "equal"
    assert model.self_test_ is not None
    assert model.self_test_.longest_shared == model.batch_tokens // 2
    assert model.self_test_.longest == 2048
    bounded = classifier("BERT")
    assert bounded.self_test_ is not None
    sizes: list[int] = []
    start = bounded.start

    def counted(inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return start(inputs)

    bounded.start = counted  # type: ignore[method-assign]
    bounded.self_test_ = replace(bounded.self_test_, longest_shared=10)
    ready = bounded.prepare("long", ("a",) * 30, Words())
    kept = np.tril(np.ones((30, 30), dtype=np.bool_))[20:]
    bounded.votes([Request(ready, kept)])
    assert set(sizes) == {1}


def test_a_tokenizer_may_have_more_ids_than_the_model() -> None:
    larger = deepcopy(tokenizer())
    larger.add_tokens([f"extra{number}" for number in range(200)])
    model = TransformersClassifier(built("Bert", COMMON), tokenizer=larger)
    assert model.batching == "padded"
    assert model.self_test_ is not None
    assert model.self_test_.longest == LIMIT


# The self-test itself, on score functions written down.


def scores_of(rows: list[Any]) -> Any:
    """A linear score of the ids and their order: a function of the copy."""
    return np.array([[np.sum(row * np.arange(1, len(row) + 1)) % 97, 48.0] for row in rows])


PROBES = Probes(ids=np.arange(5, 50), special=(0, 1, 2), prefix=(0,), suffix=(1,), limit=40)


def outcome_of(score: Callable[[Any], Any], *, pads: bool = True) -> SelfTest:
    return self_test(score, PROBES, budget=200, margin=0.001, pads=pads, name="M")


def depends_on_company(rows: list[Any]) -> Any:
    return scores_of(rows) + (0.5 * np.mean([row[1] for row in rows]) if len(rows) > 1 else 0)


def depends_on_padding(rows: list[Any]) -> Any:
    longest = max(map(len, rows))
    return scores_of(rows) + np.array([[longest - len(row)] for row in rows])


def depends_on_order(rows: list[Any]) -> Any:
    return scores_of(rows) + np.arange(len(rows))[:, None]


def rounds(rows: list[Any]) -> Any:
    return scores_of(rows) + 0.003 * (len(rows) > 1)


def fails_in_company(rows: list[Any]) -> Any:
    if len(rows) > 1 and len({len(row) for row in rows}) > 1:
        raise RuntimeError("not in one batch")
    return scores_of(rows)


@pytest.mark.parametrize(
    ("score", "batching"),
    [
        (scores_of, "padded"),
        (depends_on_company, "alone"),
        (depends_on_order, "alone"),
        (depends_on_padding, "equal"),
        (fails_in_company, "equal"),
        (rounds, "padded"),
    ],
)
def test_what_the_self_test_allows(score: Callable[[Any], Any], batching: str) -> None:
    assert outcome_of(score).batching == batching
    assert outcome_of(score, pads=False).batching == ("alone" if batching == "alone" else "equal")


def test_the_margin_is_several_times_the_largest_shift() -> None:
    assert outcome_of(scores_of).margin == 0.001
    assert outcome_of(rounds).margin == pytest.approx(8 * 0.003)
    assert outcome_of(fails_in_company).to_dict()["padded"] == "fails"


def depends_on_large_batches(rows: list[Any]) -> Any:
    return scores_of(rows) + 0.5 * (len(rows) > 50)


def test_the_largest_batches_that_will_be_used_are_tried() -> None:
    """Real batches of short copies have many more rows than those of long ones."""
    sizes: dict[int, int] = {}

    def counted(rows: list[Any]) -> Any:
        longest = max(map(len, rows))
        sizes[longest] = max(sizes.get(longest, 0), len(rows))
        return scores_of(rows)

    outcome_of(counted)
    assert all(rows == max(2, 200 // longest) or 2 * longest > 200 for longest, rows in sizes.items())
    assert min(sizes) <= 3
    assert outcome_of(depends_on_large_batches).batching == "alone"


def test_copies_are_drawn_from_the_hash_of_the_model() -> None:
    def drawn(model_hash: str) -> list[bytes]:
        seen: list[bytes] = []

        def score(rows: Any) -> Any:
            seen.extend(row.tobytes() for row in rows if len(row) > 6)
            return scores_of(rows)

        self_test(score, PROBES, budget=200, margin=0.001, pads=False, name="M", model_hash=model_hash)
        return seen

    assert drawn("a" * 64) == drawn("a" * 64)
    assert not set(drawn("a" * 64)) & set(drawn("b" * 64))


def test_history_and_chance_are_seen() -> None:
    seen: set[int] = set()

    def switches(rows: list[Any]) -> Any:
        """After a copy of at most 6 ids, long ones are read otherwise, as BigBird does."""
        seen.update(len(row) for row in rows)
        return scores_of(rows) + (min(seen) <= 6 and max(map(len, rows)) > 20)

    rng = np.random.default_rng(0)
    for score in (switches, lambda rows: scores_of(rows) + rng.normal(size=(len(rows), 1))):
        with pytest.raises(ValueError, match="once it has read other copies, so no certificate would hold"):
            outcome_of(score)
