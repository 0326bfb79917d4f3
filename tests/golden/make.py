"""Write the golden certificates: ``python -m tests.golden.make`` on a version whose certificates are right.

The file pins votes and radii over all methods, units, rules and base classifiers, so that a change of structure can be
shown to change no certificate.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import adaptdel as ad
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.scores import Scores, ScoresPlan
from adaptdel.classifiers import LinearClassifier

FILE = Path(__file__).with_name("certificates.json")
POSITIVE, NEGATIVE, NEUTRAL = (
    ["good", "fine", "great", "superb"],
    ["bad", "dull", "poor", "awful"],
    ["film", "plot", "the", "a", "was"],
)
TOPICS = ("sport", "trade", "law", "art")
METHODS: dict[str, ad.Noise] = {
    "adaptdel": ad.Deletion(ad.LengthRate(p_min=0.8, k=6)),
    "adaptdel+": ad.Deletion(ad.BinnedRate(edges=[0, 20, 40], keep=[3, 6, 5])),
    "interpolated": ad.Deletion(ad.InterpolatedRate(lengths=[10, 30, 50], keep=[3, 6, 5])),
    "cert-ed": ad.Deletion(ad.FixedRate(0.9)),
    "ranmask": ad.Masking(0.8),
    "nosmooth": ad.NoNoise(),
}
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fixed": {"sampling": "fixed", "n_select": 100, "n_estimate": 400},
    "paper": {"bound": "paper"},
    "insertions": {"ops": ["ins"]},
    "threshold": {"threshold": 0.3},
    "seed": {"seed": 7, "alpha": 0.001},
}


def reviews(count: int, words: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts of two classes."""
    rng = random.Random(seed)
    texts, labels = [], []
    for place in range(count):
        label = ("neg", "pos")[place % 2]
        kinds = POSITIVE if label == "pos" else NEGATIVE
        length = rng.randrange(max(2, words // 2), 2 * words)
        texts.append(" ".join(rng.choice(kinds if rng.random() < 0.35 else NEUTRAL) for _ in range(length)))
        labels.append(label)
    return texts, labels


def news(count: int, words: int, seed: int) -> tuple[list[str], list[int]]:
    """Texts of four classes."""
    rng = random.Random(seed)
    texts, labels = [], []
    for place in range(count):
        label = place % 4
        own = [f"{TOPICS[label]}{number}" for number in range(4)]
        length = rng.randrange(max(2, words // 2), 2 * words)
        texts.append(" ".join(rng.choice(own if rng.random() < 0.5 else NEUTRAL) for _ in range(length)))
        labels.append(label)
    return texts, labels


def count_letters(copies: list[Any]) -> list[str]:
    """A function of texts or bytes."""
    totals = [sum(copy if isinstance(copy, bytes) else map(ord, copy)) for copy in copies]
    return ["even" if total % 3 else "odd" for total in totals]


def topics(copies: list[str]) -> list[list[float]]:
    """Scores of four classes."""
    return [[copy.count(topic) + 0.1 * place for place, topic in enumerate(TOPICS)] for copy in copies]


def digits(copies: list[str]) -> list[str]:
    """Labels of ten classes."""
    return [f"class {sum(map(len, copy.split())) % 10}" for copy in copies]


@ad.register_noise("golden_content")
@dataclass(frozen=True, kw_only=True)
class ShoutedDeletion(ad.ContentDeletion):
    """A higher rate for texts that praise."""

    def rate_of(self, tokens: tuple[Any, ...]) -> float:
        return 0.7 if "superb" in tokens else 0.8


def models() -> Iterator[tuple[str, ad.SmoothedClassifier, list[Any]]]:
    """Every model by name, with its inputs."""
    settings: dict[str, Any]
    texts, labels = reviews(80, 20, seed=0)
    inputs = [text for words in (3, 6, 25) for text in reviews(2, words, seed=words)[0]]
    base = LinearClassifier().fit(
        [tuple(text.split()) for text in texts], labels, noise=METHODS["adaptdel"], seed=0, loss="copies"
    )
    for method, noise in METHODS.items():
        for rule, settings in RULES.items():
            if method == "ranmask" and rule == "insertions":
                continue
            yield f"linear {method} {rule}", ad.SmoothedClassifier(base, noise, progress=False, **settings), inputs
    texts, topic_numbers = news(80, 20, seed=1)
    base = LinearClassifier().fit(
        [tuple(text.split()) for text in texts], topic_numbers, noise=METHODS["adaptdel"], seed=0, loss="copies"
    )
    four = ad.SmoothedClassifier(base, METHODS["adaptdel"], progress=False)
    stories = [text for words in (4, 25) for text in news(4, words, seed=words)[0]]
    yield "linear four classes", four, stories
    settings = {"classes": list(TOPICS), "progress": False, "n_estimate": 800}
    yield "function four classes", ad.SmoothedClassifier(topics, METHODS["cert-ed"], **settings), stories
    settings = {"classes": [f"class {number}" for number in range(10)], "progress": False}
    yield "function ten classes", ad.SmoothedClassifier(digits, METHODS["cert-ed"], **settings), stories
    for threshold in (0.05, 0.5, 0.8):
        settings = {"classes": ["even", "odd"], "threshold": threshold, "progress": False}
        model = ad.SmoothedClassifier(count_letters, METHODS["adaptdel"], **settings)
        yield f"function threshold {threshold}", model, inputs
    files = [bytes(random.Random(place).randrange(256) for _ in range(60)) for place in range(3)]
    for unit, given in (("char", inputs[:3]), ("byte", files), ("chunk:4", files)):
        settings = {"unit": unit, "classes": ["even", "odd"], "progress": False, "n_estimate": 500}
        yield f"function {unit}", ad.SmoothedClassifier(count_letters, METHODS["adaptdel"], **settings), given
    settings = {"classes": ["even", "odd"], "progress": False, "n_estimate": 500}
    model = ad.SmoothedClassifier(count_letters, METHODS["ranmask"], unit="char", **settings)
    yield "function char masked", model, inputs[:3]
    model = ad.SmoothedClassifier(count_letters, METHODS["cert-ed"], unit="byte", sampling="fixed", **settings)
    yield "function byte fixed", model, files
    labelled = [(data, [place // 5 for place in range(60)]) for data in files]
    settings = {"unit": "labelled", "classes": ["even", "odd"], "progress": False}  # enumerated
    yield "function labelled", ad.SmoothedClassifier(count_letters, METHODS["cert-ed"], **settings), labelled
    pair = (lambda text: text.split(","), lambda tokens: ",".join(tokens))
    commas = [text.replace(" ", ",") for text in inputs]
    settings = {"unit": pair, "classes": ["even", "odd"], "progress": False, "n_estimate": 500}
    yield "function custom", ad.SmoothedClassifier(count_letters, METHODS["cert-ed"], **settings), commas
    content = ShoutedDeletion(vocabulary=("superb", "dull"))
    settings = {"classes": ["even", "odd"], "progress": False, "n_estimate": 500}
    yield "function content", ad.SmoothedClassifier(count_letters, content, **settings), inputs[:4]
    weights = [[number - 4.5 for number in range(9)]]
    pipe = word_pipeline([*POSITIVE, *NEGATIVE, "film"], weights, ["neg", "pos"])
    yield "pipeline adaptdel", ad.SmoothedClassifier(pipe, METHODS["adaptdel"], progress=False), inputs
    yield from networks(inputs)


def word_pipeline(words: list[str], weights: list[list[float]], classes: list[Any]) -> Any:
    """A pipeline of scikit-learn with given weights."""
    text, linear, pipeline = (
        import_module(f"sklearn.{name}") for name in ("feature_extraction.text", "linear_model", "pipeline")
    )
    vectorizer = text.CountVectorizer(vocabulary={word: place for place, word in enumerate(words)})
    model = linear.LogisticRegression()
    model.coef_, model.classes_ = np.array(weights), np.array(classes)
    model.intercept_ = np.full(len(weights), -0.25)
    return pipeline.make_pipeline(vectorizer.fit([""]), model)


def exact_certificates() -> Iterator[tuple[str, list[ad.Certificate]]]:
    """Exact certificates by name: words, characters, two and many classes, restricted attackers, runs of tokens."""
    texts = [text for words in (3, 6, 25) for text in reviews(2, words, seed=words)[0]]
    binary = word_pipeline([*POSITIVE, *NEGATIVE], [[1.5, 1, 2, 1, -1, -2, -1, -0.5]], ["neg", "pos"])
    for name, settings in {"plain": {}, "insertions": {"ops": ["ins"]}}.items():
        yield f"exact {name}", ad.AdditiveClassifier.from_sklearn(binary, bound=0.25, **settings).certify(texts)
    model = ad.AdditiveClassifier.from_sklearn(binary, bound=0.25)
    yield "exact threshold", model.set_params(threshold=2 * model.reach_).certify(texts)
    model = ad.AdditiveClassifier.from_sklearn(binary, bound=0.5)
    synonyms = {"good": ["fine", "dull"], "bad": ["poor"], "film": ["plot"]}
    yield "exact immovable", model.certify(texts, immovable={"good", "bad"})
    yield "exact synonyms", model.certify(texts, synonyms=synonyms)
    words = [f"{topic}{number}" for topic in TOPICS for number in range(4)]
    weights = [[1.0 * (place // 4 == topic) for place in range(16)] for topic in range(4)]
    four = word_pipeline(words, weights, list(TOPICS))
    stories = [text for words in (4, 25) for text in news(4, words, seed=words)[0]]
    yield "exact four classes", ad.AdditiveClassifier.from_sklearn(four, bound=0.25).certify(stories)
    rng = np.random.default_rng(0)
    scores = [rng.integers(-9, 15, size=(length, 3)) + np.array([8, 0, 0]) for length in (0, 1, 9, 40)]
    for unit in ("char", "byte"):
        yield f"exact {unit}", [ad.exact_certificate(each, [0, 1, 0], 25, unit=unit) for each in scores]
    yield "exact floats", [ad.exact_certificate(each[:, 0] / 7, 0.1, 3.5, threshold=0.3) for each in scores]
    runs = [
        Certificate(
            int(np.argmax(each.sum(axis=0))),
            (0, 1, 2),
            ScoresPlan(ngram=3),
            Scores(each, np.zeros(3, dtype=np.int64), np.full(3, 30), ngram=3),
        )
        for each in scores[2:]
    ]
    yield "exact runs of tokens", runs


def networks(inputs: list[Any]) -> Iterator[tuple[str, ad.SmoothedClassifier, list[Any]]]:
    """A tiny BERT and a tiny ONNX graph over a vocabulary of whole words."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from adaptdel.classifiers.onnx import OnnxClassifier
    from adaptdel.classifiers.transformers import TransformersClassifier

    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=2, initializer_range=0.5, pad_token_id=2,
    )  # fmt: skip
    weights = transformers.BertForSequenceClassification(config).eval()
    base = TransformersClassifier(weights, tokenizer=tokenizer)
    settings: dict[str, Any] = {"n_select": 100, "n_estimate": 500, "progress": False}
    for method in ("adaptdel", "ranmask", "nosmooth"):
        yield f"transformer {method}", ad.SmoothedClassifier(base, METHODS[method], **settings), inputs
    settings = {"n_estimate": 1000, "progress": False}
    yield "transformer default", ad.SmoothedClassifier(base, METHODS["adaptdel"], **settings), inputs
    yield "transformer threshold", ad.SmoothedClassifier(base, METHODS["adaptdel"], threshold=0.3, **settings), inputs
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(onnx_graph(len(tokenizer)).SerializeToString())
        graph = OnnxClassifier(path, tokenizer, classes=["neg", "pos"], max_length=64)
        for method in ("adaptdel", "ranmask"):
            yield f"onnx {method}", ad.SmoothedClassifier(graph, METHODS[method], **settings), inputs


def word_tokenizer() -> Any:
    """A tokenizer of whole words."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    special = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]
    vocabulary = {word: place for place, word in enumerate([*special, *POSITIVE, *NEGATIVE, *NEUTRAL])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ends = [(token, vocabulary[token]) for token in special[:2]]
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **dict(zip(names, special, strict=True)))


def onnx_graph(size: int) -> Any:
    """A graph that adds integer scores of the ids, so that the votes are the same on every machine."""
    onnx = import_module("onnx")
    helper, numpy_helper, types = onnx.helper, onnx.numpy_helper, onnx.TensorProto
    scores = np.random.default_rng(0).integers(-9, 10, size=(size, 2)).astype(np.float32)
    scores[:5] = 0
    nodes = [
        helper.make_node("Gather", ["scores", "input_ids"], ["chosen"]),
        helper.make_node("ReduceSum", ["chosen", "axes"], ["sums"], keepdims=0),
        helper.make_node("Add", ["sums", "offset"], ["logits"]),
    ]
    weights = {"scores": scores, "axes": np.array([1]), "offset": np.array([0.5, 0.0], dtype=np.float32)}
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("input_ids", types.INT64, ["copies", "ids"])],
        [helper.make_tensor_value_info("logits", types.FLOAT, ["copies", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def certificates() -> dict[str, list[dict[str, Any]]]:
    """Votes, bounds, radii under every threat model, and hashes of inputs, of every model, by its name."""
    golden: dict[str, list[dict[str, Any]]] = {}
    for name, model, inputs in models():
        golden[name] = []
        for certificate, prediction in zip(model.certify(inputs), model.predict(inputs).tolist(), strict=True):
            values, evidence = certificate.to_dict(), certificate.to_dict()["evidence"]
            others = [certificate.rederive(alpha=0.001), certificate.rederive(bound="paper")]
            golden[name].append(
                {key: values[key] for key in ("label", "classes", "length")}
                | {"selection": evidence["selection"], "looks": looks(evidence)}
                | {"votes": evidence["votes"], "exact": evidence["copies"], "ops": list(certificate.ops)}
                | {"derived": {key: values["derived"][key] for key in ("radius", "p1", "p2", "alpha")}}
                | {"input_hash": certificate.input_hash}
                | {"rederived": [other.radius for other in others], "prediction": prediction}
                | radii(certificate)
            )
    for name, exact in exact_certificates():
        golden[name] = [
            {"label": each.to_dict()["label"], "classes": list(each.classes)}
            | {key: each.to_dict()["evidence"][key] for key in ("offsets", "reach")}
            | {"ops": list(each.ops), "input_hash": each.input_hash}
            | {"scores": hashed(each.to_dict()["evidence"]["scores"]), "counterexample": each.counterexample()}
            | radii(each)
            for each in exact
        ]
    return golden


def looks(evidence: dict[str, Any]) -> dict[str, Any] | None:
    """The planned looks; None if all copies were enumerated."""
    sizes, alphas = evidence["look_sizes"], evidence["look_alphas"]
    return {"sizes": sizes, "alphas": alphas} if sizes else None


def radii(certificate: Any) -> dict[str, Any]:
    """All radii of a certificate, and its frontier, which may hold many triples."""
    noise = getattr(certificate.plan, "noise", None)
    has_frontier = noise is None or not noise.has_own_ball()
    return {
        "radius": certificate.radius,
        "radii": [certificate.radius_for([operation]) for operation in certificate.ops],
        "character_radius": certificate.character_radius,
        "frontier": hashed(certificate.frontier()) if has_frontier else None,
        "log10_cardinality": round(certificate.log10_cardinality(vocab_size=1000), 9),
    }


def hashed(value: Any) -> str:
    """A hash of plain values."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


if __name__ == "__main__":
    golden = certificates()
    lines = [f"{json.dumps(name)}: {json.dumps(golden[name])}" for name in golden]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
