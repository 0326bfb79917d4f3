"""Static word vectors as further features in training, which are part of the weights of words afterwards."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adaptdel.classifiers.features import VocabularyFeatures
from adaptdel.classifiers.linear_training import Counts, Fitted, composition
from adaptdel.core.checks import FloatArray
from adaptdel.files import read_tensors

LENGTH = 0.2  # of all vectors; 0.1 and 0.3 are as good on held-out rows, 1 and 3 are worse: experiments/exact.md


class WordVectors:
    """Vectors of words, of equal length.

    A token has the vectors of all its features that are words of the file. Their scores are products of vectors with
    weights that are the same for all words, so words that did not occur in training have scores too.

    Args:
        path: a safetensors file with ``words`` (UTF-8 bytes, one word a line) and ``vectors`` (a row a word).
    """

    def __init__(self, path: str | Path) -> None:
        words, vectors = read_vectors(Path(path))
        self.features = VocabularyFeatures(words)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors: FloatArray = LENGTH * vectors / np.where(lengths > 0, lengths, 1.0)

    @property
    def size(self) -> int:
        """The number of columns that the vectors add."""
        return int(self.vectors.shape[1])

    def columns(self, numbers: dict[Hashable, int], counts: Counts) -> Counts:
        """The columns of each distinct token, less their mean over the words of the examples, (types + 1, size).

        Args:
            numbers: the number of each distinct token.
            counts: tokens of each example, shape (examples, types + 1).
        """
        present = composition(self.features, numbers)[:, :-1]  # the words in each token
        occurrences = np.asarray(counts.sum(axis=0)) @ present
        self.vectors = self.vectors - occurrences @ self.vectors / max(1.0, float(occurrences.sum()))
        return sparse.csr_array(present @ self.vectors)

    def folded(
        self, features: VocabularyFeatures, trained: Sequence[Fitted]
    ) -> tuple[VocabularyFeatures, list[Fitted]]:
        """Features with all words of the file, and models in which the weight of a word holds its part of the vectors.

        Args:
            features: those of the training.
            trained: models of their columns, the mask and the columns of the vectors.
        """
        known, words = set(features.vocabulary), self.features.vocabulary
        union = VocabularyFeatures([*features.vocabulary, *(word for word in words if word not in known)])
        positions = {word: position for position, word in enumerate(union.vocabulary)}
        rows = [positions[word] for word in words]

        def fold(fitted: Fitted) -> Fitted:
            weights = np.zeros((union.size + 1, fitted.weights.shape[1]))
            weights[: features.size] = fitted.weights[: features.size]
            weights[rows] += self.vectors @ fitted.weights[features.size + 1 :]
            return replace(fitted, weights=weights)

        return union, [fold(fitted) for fitted in trained]


def read_vectors(path: Path) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Read words and vectors; ValueError that names the file and what is wrong in it."""
    tensors = read_tensors(path)
    listed, vectors = tensors.get("words"), tensors.get("vectors")
    if listed is None or listed.dtype != np.uint8 or vectors is None or vectors.dtype.kind != "f":
        raise ValueError(f"{path} must hold words as uint8 (UTF-8, one word a line) and vectors as floats")
    words = listed.tobytes().decode("utf-8", "replace").split("\n")
    if vectors.ndim != 2 or len(vectors) != len(words) or len(set(words)) != len(words):
        raise ValueError(f"{path} must hold a vector for each of its {len(words)} different words")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{path} must hold finite vectors")
    return words, vectors.astype(np.float64)
