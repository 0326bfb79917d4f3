"""One suite for every registered kind of base classifier: votes, scores, files and fingerprints."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.certification.verify import verify
from adaptdel.classifiers.base import CLASSIFIERS, BaseClassifier, Request
from adaptdel.classifiers.callables import SklearnClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.checks import BoolArray
from adaptdel.text.units import Words
from tests.models.test_smoothed import by_words, sklearn_pipeline, texts

INPUTS = [*texts(8, seed=3), ""]
NOISE = ad.Deletion(ad.LengthRate(0.7, 6))
_FOLDER = TemporaryDirectory()


def linear() -> BaseClassifier:
    inputs = texts(60, seed=1)
    return LinearClassifier(bits=10).fit([(*each.split(),) for each in inputs], by_words(inputs), noise=NOISE, copies=2)


def additive() -> BaseClassifier:
    inputs = texts(60, seed=1)
    return ad.AdditiveClassifier(progress=False, iterations=5, levels=2).fit(inputs, by_words(inputs)).base_


def pipeline() -> BaseClassifier:
    return ad.AdditiveClassifier.from_sklearn(sklearn_pipeline(Words(), texts(60), r"(?u)\b\w\w+\b"), bound=0.5).base_


def onnx() -> BaseClassifier:
    pytest.importorskip("onnxruntime")
    from adaptdel.classifiers.onnx import OnnxClassifier
    from tests.golden.make import onnx_graph, word_tokenizer

    path = Path(_FOLDER.name) / "model.onnx"
    path.write_bytes(onnx_graph(len(word_tokenizer())).SerializeToString())
    return OnnxClassifier(path, word_tokenizer(), classes=["neg", "pos"], max_length=64)


def transformer() -> BaseClassifier:
    pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import classifier

    base: BaseClassifier = classifier("bert")
    return base


MAKERS: dict[str, Callable[[], BaseClassifier]] = {
    "additive": additive,
    "additive_pipeline": pipeline,
    "linear": linear,
    "onnx": onnx,
    "sklearn": lambda: SklearnClassifier(sklearn_pipeline(Words(), texts(60))),
    "transformers": transformer,
}
made = cache(lambda kind: MAKERS[kind]())
every_kind = pytest.mark.parametrize("kind", MAKERS)


def test_every_kind_is_here() -> None:
    assert {name for name in CLASSIFIERS if CLASSIFIERS.is_own(name)} == {*MAKERS}


def kept_of(length: int, copies: int) -> BoolArray:
    return np.random.default_rng(length).random((copies, length)) < 0.4


def votes(base: BaseClassifier, inputs: list[str], copies: int, *, masking: bool) -> list[list[int]]:
    prepared = [base.prepare(f"input {n}", (*each.split(),), Words(), masking=masking) for n, each in enumerate(inputs)]
    return [row.tolist() for row in base.votes([Request(each, kept_of(len(each.tokens), copies)) for each in prepared])]


@every_kind
@pytest.mark.parametrize("masking", [False, True])
def test_votes_depend_on_the_copy_alone(kind: str, masking: bool) -> None:
    """Neither on the other inputs, nor on the order of the copies, nor on how they are batched; scores agree."""
    base = made(kind)
    together = votes(base, INPUTS, 12, masking=masking)
    assert together[::-1] == votes(base, INPUTS[::-1], 12, masking=masking)
    for text, row in zip(INPUTS, together, strict=True):
        tokens = tuple(text.split())
        kept = kept_of(len(tokens), 12)
        assert votes(base, [text], 12, masking=masking) == [row]
        prepared = base.prepare("input", tokens, Words(), masking=masking)
        assert base.votes([Request(prepared, kept[::-1])])[0].tolist() == row[::-1]
        assert [base.votes([Request(prepared, one[None])])[0].tolist()[0] for one in kept] == row
        assert base.votes([Request(prepared, kept)])[0].dtype == np.int64
        scores = base.copy_scores([Request(prepared, kept)])
        assert scores is None or np.argmax(scores[0], axis=1).tolist() == row
        assert max(row) < len(base.classes_ or [])


@every_kind
def test_files_hold_the_classifier(kind: str, tmp_path: Path) -> None:
    if kind in ("sklearn", "additive_pipeline"):
        pytest.importorskip("skops")
    base, cls = made(kind), CLASSIFIERS.get(kind)
    assert (cls.kind, type(base)) == (kind, cls)
    options = json.loads(json.dumps(base.options()))
    assert (*options,) == cls.stored_options
    base.save(tmp_path / "base")
    again = cls.load(tmp_path / "base", **options)
    assert again.fingerprint() == base.fingerprint() == base.fingerprint_with(options)
    assert len(base.fingerprint()) == 64
    assert (again.classes_, again.options()) == (base.classes_, base.options())
    assert votes(again, INPUTS, 12, masking=False) == votes(base, INPUTS, 12, masking=False)
    with pytest.raises(ValueError, match="strange"):
        cls.check_running({"strange": 1})
    assert type(base.unfitted()) is cls


@every_kind
def test_certificates_hold(kind: str, tmp_path: Path) -> None:
    model = ad.SmoothedClassifier(made(kind), NOISE, n_select=32, n_estimate=100, progress=False)
    certificates = model.certify(INPUTS)
    assert all(verify(each.to_dict()) == [] for each in certificates)
    assert model.predict(INPUTS).tolist() == [each.label for each in certificates]
    assert [model.certify([text])[0] for text in INPUTS] == certificates
