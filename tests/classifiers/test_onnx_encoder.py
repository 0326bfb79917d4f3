"""New words are encoded by the encoder that is saved with a model: each alone, in bounded memory, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import adaptdel as ad
from adaptdel.classifiers import onnx_encoder, word_encoders
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.onnx_encoder import OnnxEncoder
from adaptdel.classifiers.word_encoders import StaticVectors, TransformerEncoder, read_vectors, word_encoder
from adaptdel.text.units import Words
from tests.classifiers.test_embedding import NOISE, TINY, scores, texts

INVENTED = ["qux", "filmic", "goood", "é", "x" * 10**6, "\ud800lone", "!!", "xyz-abc", "12:30"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.classifiers.test_transformers import fixed, tiny

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = fixed("bert")
    tokenizer.save_pretrained(folder)
    tiny("bert", tokenizer).base_model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(transformer: Path) -> OnnxEncoder:
    return TransformerEncoder(transformer).exported()


@pytest.fixture(scope="module")
def model(encoder: OnnxEncoder) -> EmbeddingClassifier:
    tokens, labels = texts(80)
    base = EmbeddingClassifier(encoder=encoder, on_unknown="encode", bits=8, networks=2, settings=TINY)
    return base.fit(tokens, labels, noise=NOISE)


def copied(encoder: OnnxEncoder) -> OnnxEncoder:
    """The same encoder with nothing in memory."""
    return OnnxEncoder(encoder.graph, encoder.tokenizer)


class TestVectors:
    def test_a_word_has_the_same_vector_alone_and_in_any_company(self, encoder: OnnxEncoder) -> None:
        words = [*INVENTED, *(f"word{number}" for number in range(40))]
        together = encoder.vectors(words)
        rng = np.random.default_rng(0)
        for _ in range(3):
            order = rng.permutation(len(words))
            shuffled = copied(encoder).vectors([words[place] for place in order])
            assert shuffled.tolist() == together[order].tolist()
        for word, vector in zip(words, together, strict=True):
            assert copied(encoder).vectors([word])[0].tolist() == vector.tolist()
        listed, stored = copied(encoder).encode(words)
        assert listed == words
        assert stored.tolist() == together.tolist()

    def test_vectors_are_near_those_of_the_transformer(self, encoder: OnnxEncoder, transformer: Path) -> None:
        exact = TransformerEncoder(transformer).encode(["film", "goood", "xyz"])[1]
        near = encoder.vectors(["film", "goood", "xyz"])
        cosines = (exact * near).sum(axis=1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
        assert cosines.min() > 0.95

    def test_memory_is_bounded(self, encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_encoder, "CACHED_WORDS", 20)
        small = copied(encoder)
        first = small.vectors([f"word{number}" for number in range(100)])
        small.vectors(["y" * 65])
        assert len(small) == 20
        assert small.vectors(["word0"])[0].tolist() == first[0].tolist()

    def test_a_long_word_costs_no_more_than_its_beginning(self, encoder: OnnxEncoder) -> None:
        assert encoder.vectors(["ab" * 10**6])[0].tolist() == encoder.vectors(["ab" * 48])[0].tolist()


class TestCache:
    def test_an_interrupted_encoding_goes_on(self, transformer: Path, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(word_encoders, "BLOCK_WORDS", 10)
        monkeypatch.setattr(word_encoders, "WRITTEN_EVERY", 0.0)
        words = [f"word{number}" for number in range(35)]
        whole = TransformerEncoder(transformer).exported().encode(words)
        seen = []

        def interrupt(done: int, total: int) -> None:
            seen.append((done, total))
            if (done, total) == (20, 35):
                raise KeyboardInterrupt

        encoder = TransformerEncoder(transformer, cache=tmp_path / "cache", progress=interrupt).exported()
        with pytest.raises(KeyboardInterrupt):
            encoder.encode(words)
        vectors = tmp_path / "cache" / f"{encoder.sha256[:32]}.safetensors"
        assert read_vectors(vectors)[0] == words[:20]
        monkeypatch.setattr(onnx_encoder, "export", lambda *parts: pytest.fail("exported again"))
        again = TransformerEncoder(transformer, cache=tmp_path / "cache", progress=interrupt).exported()
        resumed = again.encode(words)
        assert seen == [(10, 35), (20, 35), (10, 15), (15, 15)]
        assert resumed[0] == whole[0]
        assert resumed[1].tolist() == whole[1].tolist()
        vectors.write_bytes(b"x" * 50)
        with pytest.raises(ValueError, match=r"must be a safetensors file: .*: delete it$"):
            again.encode(words)

    def test_names(self, transformer: Path, tmp_path: Path) -> None:
        assert isinstance(word_encoder("vectors.safetensors"), StaticVectors)
        message = r"^encoder must be a transformer that can be read, got '.*none': "
        with pytest.raises(ValueError, match=message) as caught:
            word_encoder(str(tmp_path / "none")).encode(["a"])
        assert "\n" not in str(caught.value)


class TestModel:
    def test_the_answer_depends_on_the_copy_alone(self, model: EmbeddingClassifier, tmp_path: Path) -> None:
        model.save(tmp_path)
        tokens = (*INVENTED, "film", "good", "Story,", *INVENTED[:3], 7)
        kept = np.random.default_rng(0).random((30, len(tokens))) < 0.3
        together = scores(model, tokens, kept)
        for mask, row in zip(kept, together.tolist(), strict=True):
            copy = tuple(token for token, keep in zip(tokens, mask, strict=True) if keep)
            assert scores(EmbeddingClassifier.load(tmp_path), copy, np.ones((1, len(copy)))).tolist() == [row]
        order = np.random.default_rng(1).permutation(len(tokens))
        shuffled = scores(model, tuple(tokens[place] for place in order), kept[:, order])
        assert shuffled.tolist() == together.tolist()

    def test_new_words_are_read_in_two_ways(self, model: EmbeddingClassifier, encoder: OnnxEncoder) -> None:
        tokens, labels = texts(80)
        plain = EmbeddingClassifier(encoder=encoder, bits=8, networks=2, settings=TINY).fit(tokens, labels, noise=NOISE)
        assert plain.fingerprint() != model.fingerprint()
        vectors = model._fitted()
        new, known = vectors(["goood"])[0], vectors(["good"])[0]
        vectors.encoder, kept = None, vectors.encoder
        vectors._places.clear()
        try:
            assert vectors(["goood"])[0].tolist() != new.tolist()
            assert vectors(["good"])[0].tolist() == known.tolist()
        finally:
            vectors.encoder = kept
            vectors._places.clear()

    def test_files(self, model: EmbeddingClassifier, tmp_path: Path) -> None:
        model.save(tmp_path)
        names = ["embedding.json", "embedding.safetensors", "encoder.json", "encoder.onnx"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        loaded = EmbeddingClassifier.load(tmp_path)
        assert loaded.fingerprint() == model.fingerprint()
        tokens = (*INVENTED, "film")
        kept = np.random.default_rng(0).random((20, len(tokens))) < 0.5
        assert scores(loaded, tokens, kept).tolist() == scores(model, tokens, kept).tolist()
        assert loaded.on_unknown == "encode"

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("encoder.onnx", b"", r"encoder\.onnx does not belong to the model beside it: its hash differs"),
            ("encoder.json", b"{}", r"encoder\.onnx does not belong to the model beside it: its hash differs"),
            ("encoder.onnx", None, r"encoder\.onnx cannot be read: No such file"),
        ],
    )
    def test_damaged_files(
        self, model: EmbeddingClassifier, name: str, content: bytes | None, message: str, tmp_path: Path
    ) -> None:
        model.save(tmp_path)
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            EmbeddingClassifier.load(tmp_path)

    @pytest.mark.parametrize(
        ("graph", "tokenizer", "message"),
        [
            (b"x" * 50, None, "encoder.onnx must be a graph that ONNX Runtime reads"),
            (None, b"x" * 50, "encoder.json must be a tokenizer"),
            (None, b"\xff\xfe", "encoder.json must be a tokenizer"),
            (b"\x0a\x08location\x12\x05a.bin", None, "encoder.onnx must hold its weights itself"),
        ],
    )
    def test_hostile_encoders(
        self, encoder: OnnxEncoder, graph: bytes | None, tokenizer: bytes | None, message: str, tmp_path: Path
    ) -> None:
        """A hash that fits does not make a file harmless."""
        (tmp_path / "encoder.onnx").write_bytes(encoder.graph if graph is None else graph)
        (tmp_path / "encoder.json").write_bytes(encoder.tokenizer if tokenizer is None else tokenizer)
        with pytest.raises(ValueError, match=message) as caught:
            OnnxEncoder.load(tmp_path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("0.encoded_unit", np.zeros(16), r"must hold 0\.encoded_unit"),
            ("0.projection.weights", np.zeros((3, 8), np.int16), r"must hold 0\.projection\.weights as int16 of shape"),
            ("1.projection.scale", np.full(8, np.nan), r"must hold 1\.projection\.scale between"),
        ],
    )
    def test_damaged_tensors(
        self, model: EmbeddingClassifier, name: str, value: Any, message: str, tmp_path: Path
    ) -> None:
        model.save(tmp_path)
        path = tmp_path / "embedding.safetensors"
        tensors = load_file(path)
        value = np.zeros_like(tensors[name]) if name == "0.encoded_unit" else value
        save_file({**tensors, name: value}, path)
        with pytest.raises(ValueError, match=message):
            EmbeddingClassifier.load(tmp_path)

    @pytest.mark.parametrize("change", [{"on_unknown": "ngrams"}, {"encoder": None}, {"encoder": 3}])
    def test_what_reads_new_words_cannot_be_changed(
        self, model: EmbeddingClassifier, change: dict[str, Any], tmp_path: Path
    ) -> None:
        model.save(tmp_path)
        path = tmp_path / "embedding.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
        with pytest.raises(ValueError, match=r"embedding\.json"):
            EmbeddingClassifier.load(tmp_path)

    def test_bad_arguments(self, tmp_path: Path) -> None:
        message = "on_unknown must be 'ngrams' unless the encoder is a transformer, got encoder"
        for given in (None, StaticVectors(tmp_path / "v.safetensors")):
            with pytest.raises(ValueError, match=message):
                EmbeddingClassifier(encoder=given, on_unknown="encode")

    def test_certificates_need_no_torch_but_onnx_runtime(self, model: EmbeddingClassifier, tmp_path: Path) -> None:
        ad.SmoothedClassifier(model, NOISE, n_select=20, n_estimate=100).save(tmp_path / "model")
        code = (
            "import sys\n"
            "blocked = {'torch', 'transformers'}\n"
            "class Blocked:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] in blocked: raise ImportError(name)\n"
            "sys.meta_path.insert(0, Blocked())\n"
            "import adaptdel as ad\n"
            f"path = {str(tmp_path / 'model')!r}\n"
            "print(ad.SmoothedClassifier.load(path).certify(['a goood filmic qux'])[0].label)\n"
            "blocked.add('onnxruntime')\n"
            "for name in [name for name in sys.modules if name.startswith('onnxruntime')]: del sys.modules[name]\n"
            "try: ad.SmoothedClassifier.load(path)\n"
            "except ImportError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        label, error = done.stdout.splitlines()
        expected = ad.SmoothedClassifier.load(tmp_path / "model").certify(["a goood filmic qux"])[0].label
        assert label == expected
        assert error == onnx_encoder.NEEDS

    def test_masking(self, encoder: OnnxEncoder) -> None:
        tokens, labels = texts(40)
        base = EmbeddingClassifier(encoder=encoder, on_unknown="encode", bits=8, settings=TINY)
        base.fit(tokens, labels, noise=ad.Masking(0.6))
        kept = np.zeros((1, 6), dtype=np.bool_)
        kept[0, :2] = True
        one = scores(base, ("goood", "qux", "a", "b", "c", "d"), kept, masking=True)
        other = scores(base, ("goood", "qux", *INVENTED[:4]), kept, masking=True)
        assert one.tolist() == other.tolist()
        assert Words().mask is not None
