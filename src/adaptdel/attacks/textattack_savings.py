"""Parts of TextAttack (version 0.3.11) that give the same results with less work.

* An attack that stops checking constraints when it has as many candidates as queries are left. TextAttack checks all
  candidates, sorts them, and then leaves out those beyond the limit of queries.
* Candidates that are kept for the next model, where several are attacked together.
* Candidates that are made from the text that they change. TextAttack looks for every word of the text again.
* DeepWordBug's limit on the edit distance, which is computed only as far as the limit.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

CHECKED = 512  # candidates whose constraints are checked together, if fewer queries are left
ENCODED = 2**15  # sentences whose vectors are kept
KEPT_CANDIDATES = 50_000
SPLIT = 2**16  # words whose parts are kept
CHINESE = re.compile("[\u4e00-\u9fff]")  # TextAttack finds the words of texts with such characters by a dictionary


class Candidates:
    """Candidates that were found for an input and its changed texts, as long as it is the input that is attacked.

    What can be done with a text does not depend on the model that is attacked, if no transformation draws at random.
    """

    def __init__(self) -> None:
        self._input: Any = None
        self._kept: dict[Any, tuple[list[Any], bool]] = {}
        self._count = 0

    def begin(self, attacked: Any) -> None:
        """Forget the candidates of another input."""
        if attacked != self._input:
            self._input, self._kept, self._count = attacked, {}, 0

    def get(self, key: Any, least: float) -> list[Any] | None:
        """The candidates of a key, if all are known or at least ``least``."""
        candidates, complete = self._kept.get(key, ([], False))
        return copies(candidates) if complete or (candidates and len(candidates) >= least) else None

    def put(self, key: Any, candidates: list[Any], *, complete: bool) -> None:
        """Keep candidates in place of the oldest ones."""
        self._count -= len(self._kept.pop(key, ([], True))[0])
        self._kept[key] = (copies(candidates), complete)
        self._count += len(candidates)
        while self._count > KEPT_CANDIDATES and len(self._kept) > 1:
            self._count -= len(self._kept.pop(next(iter(self._kept)))[0])


def copies(candidates: Sequence[Any]) -> list[Any]:
    """The same texts with attributes of their own, which TextAttack changes when an attack ends."""
    copied = [copy(candidate) for candidate in candidates]
    for candidate in copied:
        candidate.attack_attrs = dict(candidate.attack_attrs)
    return copied


def attack_within_limits(
    goal: Any, constraints: list[Any], transformation: Any, search: Any, known: Candidates | None = None
) -> Any:
    """TextAttack's attack; candidates that are beyond the limit of queries are not checked.

    Args:
        goal: of the attack, with the limit of queries.
        constraints: of the candidates.
        transformation: makes candidates.
        search: among the candidates.
        known: keeps candidates; None if the transformation draws at random.
    """
    from textattack import Attack

    class LimitedAttack(Attack):  # type: ignore[misc]
        """Checks candidates in the order in which they are queried, until there are enough."""

        def get_transformations(self, current_text: Any, original_text: Any = None, **settings: Any) -> list[Any]:
            """The candidates that satisfy the constraints, at least as many as queries are left."""
            if known is None:
                return list(super().get_transformations(current_text, original_text, **settings))
            changed = frozenset(current_text.attack_attrs["modified_indices"])
            known.begin(None if original_text is None else original_text.text)
            key = (current_text.text, changed, *sorted((name, str(value)) for name, value in settings.items()))
            candidates = known.get(key, self.goal_function.query_budget - self.goal_function.num_queries)
            if candidates is None:
                candidates = list(super().get_transformations(current_text, original_text, **settings))
                known.put(key, candidates, complete=self.complete)
            return candidates

        def filter_transformations(
            self, transformed_texts: Sequence[Any], current_text: Any, original_text: Any = None
        ) -> list[Any]:
            """The first candidates that satisfy the constraints, at least as many as queries are left."""
            left = self.goal_function.query_budget - self.goal_function.num_queries
            ordered = sorted(transformed_texts, key=lambda candidate: candidate.text)
            passed: list[Any] = []
            at = 0
            while at < len(ordered) and len(passed) < left:
                following = at + int(max(CHECKED, left - len(passed)))
                passed += super().filter_transformations(ordered[at:following], current_text, original_text)
                at = following
            self.complete = at >= len(ordered)
            return passed

    # TextAttack's own memory does not know which words were changed: what it gives depends on the texts visited before.
    attack = LimitedAttack(goal, constraints, transformation, search)
    attack.use_transformation_cache = attack.use_transformation_cache and known is None
    return attack


@contextmanager
def quick_texts() -> Iterator[None]:
    """Within it, TextAttack replaces, inserts and deletes words at their places in a text, which it looks for once.

    It otherwise looks for every word of the text and splits it again, for every candidate. A text is split at white
    space and each piece by itself, so that pieces can be looked up; only Chinese is split as a whole.
    """
    from textattack.shared import attacked_text
    from textattack.shared.attacked_text import AttackedText

    split, replace_word = attacked_text.words_from_text, AttackedText.replace_word_at_index
    find_word = AttackedText._text_index_of_word_index
    parts = lru_cache(SPLIT)(lambda piece: tuple(split(piece)))

    def remembered(text: str, words_to_ignore: Sequence[str] = ()) -> list[str]:
        if CHINESE.search(text):
            return list(split(text, list(words_to_ignore)))
        return [word for piece in text.split() for word in parts(piece) if word not in words_to_ignore]

    def replaced(self: Any, index: int, new_word: str) -> Any:
        if not hasattr(self, "places"):
            self.places = word_places(self.text, self.words) if len(self._text_input) == 1 else None
        usual = isinstance(new_word, str) and not CHINESE.search(new_word)
        new = remembered(new_word) if usual else []
        if self.places is None or not 0 <= index < len(self.places) or bool(new) != bool(new_word):
            return replace_word(self, index, new_word)
        word, start, attributes = self.words[index], self.places[index], dict(self.attack_attrs)
        inserts = len(new) == 2 and new[0] != word and new_word.endswith(" " + word) and remembered(word) == [word]
        if len(new) > 1 and not inserts:
            return replace_word(self, index, new_word)
        text, end = self.text, start + len(word)
        numbers = attributes["original_index_map"].copy()
        modified, changed = attributes["modified_indices"], {index} if word != new_word and new_word else set()
        if not new_word:  # the space at the deleted word is deleted, too
            if index == 0:
                end += text.startswith(" ", end)
            elif end < len(text):
                start -= text.endswith(" ", 0, start)
            modified = {number - (number > index) for number in modified if number != index}
            numbers[numbers == index] = -1
            numbers[numbers > index] -= 1
        if inserts:  # before the word, which counts as changed, too
            modified = {number + (number > index) for number in modified if number != index}
            changed = {index, index + 1}
            numbers[numbers >= index] += 1
        kept = {name: attributes[name] for name in ("label_names",) if name in attributes}
        changed_text = AttackedText.__new__(AttackedText)  # whose words are known: they are not looked for
        changed_text._text_input = OrderedDict(
            (name, text[:start] + new_word + text[end:]) for name in self._text_input
        )
        changed_text._words_per_input = changed_text._pos_tags = changed_text._ner_tags = None
        changed_text._words, places = changed_words(text, self.words, self.places, (start, end), new_word, remembered)
        if places:
            changed_text.places = places
        changed_text.attack_attrs = {
            **kept,
            "newly_modified_indices": changed,
            "previous_attacked_text": self,
            "modified_indices": modified | changed,
            "original_index_map": numbers,
        }
        return changed_text

    def place_of_word(self: Any, index: int) -> int:
        places = getattr(self, "places", None)
        if places is not None and 0 <= index < len(places) and self.text.isascii():
            return int(places[index])
        return int(find_word(self, index))

    attacked_text.words_from_text = remembered
    AttackedText.replace_word_at_index, AttackedText._text_index_of_word_index = replaced, place_of_word
    try:
        yield
    finally:
        attacked_text.words_from_text = split
        AttackedText.replace_word_at_index, AttackedText._text_index_of_word_index = replace_word, find_word


def changed_words(
    text: str,
    words: Sequence[str],
    places: Sequence[int],
    span: tuple[int, int],
    new: str,
    split: Callable[[str], list[str]],
) -> tuple[list[str] | None, list[int] | None]:
    """The words and their places after a span of a text was replaced; None where they must be looked for.

    A text is split at white space, so only what is next to the span is split again.

    >>> changed_words("To be, or not", ["To", "be", "or", "not"], [0, 3, 7, 10], (3, 5), "have", str.split)
    (None, None)
    >>> changed_words("To be , or not", ["To", "be", ",", "or", "not"], [0, 3, 6, 8, 11], (3, 5), "have", str.split)
    (['To', 'have', ',', 'or', 'not'], [0, 3, 8, 10, 13])
    """
    first, last = span
    while first and not text[first - 1].isspace():
        first -= 1
    while last < len(text) and not text[last].isspace():
        last += 1
    begin, end = bisect_left(places, first), bisect_left(places, last)
    if split(text[first:last]) != words[begin:end]:
        return None, None
    piece = text[first : span[0]] + new + text[span[1] : last]
    inner = split(piece)
    inner_places = word_places(piece, inner)
    if inner_places is None:
        return None, None
    longer = len(new) - (span[1] - span[0])
    return (
        [*words[:begin], *inner, *words[end:]],
        [*places[:begin], *(first + place for place in inner_places), *(place + longer for place in places[end:])],
    )


def word_places(text: str, words: Sequence[str]) -> list[int] | None:
    """Where each word begins, as TextAttack looks for them: after the word before; None for texts it treats otherwise.

    >>> word_places("To be, or not to be", ["To", "be", "or", "not", "to", "be"])
    [0, 3, 7, 10, 14, 17]
    """
    if CHINESE.search(text) or "<SPLIT>" in text:
        return None
    places, at = [], 0
    for word in words:
        places.append(text.index(word, at))
        at = places[-1] + len(word)
    return places


def limited_distance(constraint: Any) -> Any:
    """TextAttack's limit on the edit distance in letters, which stops counting beyond the limit; others as they are."""
    from Levenshtein import distance
    from textattack.constraints.overlap import LevenshteinEditDistance

    class LimitedDistance(LevenshteinEditDistance):  # type: ignore[misc]
        """The same constraint with a distance that is quicker to compute for long texts."""

        def _check_constraint(self, transformed_text: Any, reference_text: Any) -> bool:
            most = self.max_edit_distance
            return bool(distance(reference_text.text, transformed_text.text, score_cutoff=most) <= most)

    if type(constraint) is not LevenshteinEditDistance:
        return constraint
    return LimitedDistance(constraint.max_edit_distance, constraint.compare_against_original)


class DistinctSentences:
    """A sentence encoder that encodes each distinct sentence once and keeps recent vectors.

    TextAttack gives it the window of the original text once for every candidate.
    """

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray[Any, Any]]) -> None:
        self._encode = encode
        self._known: dict[str, np.ndarray[Any, Any]] = {}

    def __call__(self, sentences: Sequence[str]) -> np.ndarray[Any, Any]:
        """The vectors, shape (sentences, dimensions)."""
        distinct = dict.fromkeys(sentences)
        if len(self._known) > ENCODED:
            self._known = {sentence: self._known[sentence] for sentence in distinct if sentence in self._known}
        new = [sentence for sentence in distinct if sentence not in self._known]
        if new:
            new.sort(key=len)  # texts of about the same length in a batch: less padding
            self._known.update(zip(new, self._encode(new), strict=True))
        return np.stack([self._known[sentence] for sentence in sentences])
