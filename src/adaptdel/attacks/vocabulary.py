"""The words that the adaptive attack writes: the vocabulary of the training texts, ranked by the base model.

A model that gives scores ranks a word by the scores of a copy that consists of this word alone: for the linear model
these are its weight and the bias. For a model that only votes, words are ranked by how much more often they occur in
texts of one class than of the others. In both cases this only makes a short list, whose words the attack then compares
by the votes on noisy copies of the attacked text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import Request
from adaptdel.core.checks import FloatArray
from adaptdel.runs.inputs import LabelMap, Source
from adaptdel.text.data import Row
from adaptdel.text.units import Tokens

CHUNK = 256  # words that are scored together
MOST_WORDS = 50_000  # of a vocabulary, the most frequent ones
LEAST_COUNT = 2  # occurrences of a word of the vocabulary


class Vocabulary:
    """Words with their scores for every class.

    Attributes:
        words: the words, most frequent first.
        scores: shape (words, classes); a word with a higher score speaks more for the class.
    """

    def __init__(self, words: Sequence[Hashable], scores: FloatArray) -> None:
        if not len(words):
            raise ValueError("the vocabulary of an attack must hold at least one word, got none")
        self.words, self.scores = list(words), scores

    def __len__(self) -> int:
        return len(self.words)

    def against(self, label: int, rivals: Sequence[int], count: int) -> list[Hashable]:
        """The ``count`` words that speak most for a rival and against the label, best first."""
        lead = np.max([self.scores[:, rival] - self.scores[:, label] for rival in rivals], axis=0)
        order = np.argsort(-lead, kind="stable")[:count]
        return [self.words[place] for place in order]


def support(certifier: Certifier, tokens: Tokens, label: int, rivals: Sequence[int]) -> FloatArray | None:
    """How much each token speaks for the label against the rivals, shape (tokens,); None if the model only votes."""
    distinct = list(dict.fromkeys(tokens))
    scores = model_scores(certifier, distinct) if distinct else np.zeros((0, len(certifier.base.classes_ or [])))
    if scores is None:
        return None
    lead = scores[:, label] - np.max([scores[:, rival] for rival in rivals], axis=0)
    places = {token: place for place, token in enumerate(distinct)}
    return np.array([lead[places[token]] for token in tokens])


def learn_vocabulary(certifier: Certifier, texts: Iterable[tuple[Tokens, Any]]) -> Vocabulary:
    """The vocabulary of labelled texts, ranked by the base model or, if it only votes, by frequencies in the classes.

    Args:
        certifier: the engine of the model.
        texts: the tokens and the label of every text; a label that is None or unknown counts for no class.
    """
    classes = list(certifier.base.classes_ or [])
    counted: Counter[Hashable] = Counter()
    by_class: list[Counter[Hashable]] = [Counter() for _ in classes]
    for tokens, label in texts:
        occurring = set(tokens)
        counted.update(occurring)
        if label in classes:
            by_class[classes.index(label)].update(occurring)
    words = sorted(counted, key=lambda word: (-counted[word], repr(word)))
    frequent = [word for word in words if counted[word] >= LEAST_COUNT] or words
    frequent = frequent[:MOST_WORDS]
    scores = model_scores(certifier, frequent) if frequent else None
    if scores is not None:
        return Vocabulary(frequent, scores)
    table = np.array([[counts[word] for counts in by_class] for word in frequent], dtype=np.float64) + 0.5
    return Vocabulary(frequent, np.log(table / table.sum(axis=0, keepdims=True)))


def vocabulary_of(certifier: Certifier, source: Source) -> Vocabulary:
    """The vocabulary of a data file; a label that the model does not know counts for no class."""
    label_map = LabelMap(certifier.base.classes_ or [])

    def texts() -> Iterator[tuple[Tokens, Any]]:
        for row in source.rows():
            if isinstance(row, Row):
                label = None
                with suppress(ValueError):
                    label = None if row.label is None else label_map(row.label)
                yield certifier.unit.split(row.text), label

    return learn_vocabulary(certifier, texts())


def model_scores(certifier: Certifier, words: Sequence[Hashable]) -> FloatArray | None:
    """What a single word adds to the scores of an empty copy, shape (words, classes); None if the model only votes."""
    tables = []
    for start in range(0, len(words), CHUNK):
        chunk = tuple(words[start : start + CHUNK])
        kept = np.eye(len(chunk) + 1, len(chunk), dtype=np.bool_)  # the last copy is empty
        scored = certifier.base.copy_scores([Request(certifier.prepare_tokens(chunk, "the vocabulary"), kept)])
        if scored is None:
            return None
        table = np.asarray(scored[0], dtype=np.float64)
        tables.append(table[:-1] - table[-1])
    return np.concatenate(tables)
