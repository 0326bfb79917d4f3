"""Word vectors in training: words that training did not see get scores from words that it did."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import sparse

import adaptdel as ad
from adaptdel.classifiers.bounded import WordVectors


def write(path: Path, words: list[str], vectors: Any) -> Path:
    listed = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
    save_file({"words": listed, "vectors": np.asarray(vectors, dtype=np.float32)}, path)
    return path


def test_scores_of_words_that_training_did_not_see(tmp_path: Path) -> None:
    words = ["good", "great", "superb", "bad", "poor", "awful", "u.s.", "u"]
    vectors = np.vstack([np.tile([1.0, 0.1], (3, 1)), np.tile([-1.0, 0.1], (3, 1)), [[0.0, 1.0]], [[0.0, -1.0]]])
    path = write(tmp_path / "vectors.safetensors", words, vectors)
    texts = ["good film", "great film u.s.", "bad film", "poor film"] * 10
    labels = [1, 1, 0, 0] * 10
    model = ad.AdditiveClassifier(levels=3, vectors=str(path), progress=False).fit(texts, labels)
    superb, bracketed, awful = model.base_.token_scores(["superb", "(superb)", "awful"])[:, 1]
    assert superb == bracketed > awful
    assert model.predict(texts).tolist() == labels
    unseen = ad.AdditiveClassifier(levels=3, progress=False).fit(texts, labels)
    assert not unseen.base_.token_scores(["superb", "awful"]).any()
    model.save(tmp_path / "model")
    path.unlink()
    assert ad.AdditiveClassifier.load(tmp_path / "model").base_.token_scores(["superb"])[0, 1] == superb


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    with pytest.raises(ValueError, match="cannot be read"):
        WordVectors(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="safetensors file"):
        WordVectors(path)
    for words, vectors, word in [
        (["a", "b"], [[1.0]], "2 different words"),
        (["a", "a"], [[1.0], [2.0]], "different words"),
        (["a"], [[np.nan]], "finite"),
    ]:
        with pytest.raises(ValueError, match=word):
            WordVectors(write(path, words, vectors))


def test_training_with_word_vectors_does_not_depend_on_threads(tmp_path: Path) -> None:
    """BLAS sums in another order with more threads."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(20_000)]
    path = write(tmp_path / "vectors.safetensors", words, rng.normal(size=(20_000, 50)))
    counts = sparse.csr_array(rng.integers(1, 9, (1, 20_001)))
    numbers: dict[Hashable, int] = {word: number for number, word in enumerate(words)}
    columns = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            columns.append(WordVectors(path).columns(numbers, counts).toarray())
    assert np.array_equal(columns[0], columns[1])
