"""Parts of TextAttack (version 0.3.11) that give the same results with less work.

* An attack that stops checking constraints when it has as many candidates as queries are left. TextAttack checks all
  candidates, sorts them, and then leaves out those beyond the limit of queries.
* The swaps of BERT-Attack for words of several subwords. TextAttack ranks all combinations of subwords, 8 to the power
  of their number, and then takes the first ones in the order in which they were made.
* A masked language model that scores the vocabulary only for the tokens that are asked for, on inputs that are padded
  to the longest text and not to 512 tokens.
* Candidates that are made from the text that they change. TextAttack looks for every word of the text again.
* DeepWordBug's limit on the edit distance, which is computed only as far as the limit.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

CHECKED = 512  # candidates whose constraints are checked together, if fewer queries are left
ENCODED = 2**14  # sentences whose vectors are kept
SPLIT = 2**16  # words whose parts are kept
CHINESE = re.compile("[\u4e00-\u9fff]")  # TextAttack finds the words of texts with such characters by a dictionary


def attack_within_limits(goal: Any, constraints: list[Any], transformation: Any, search: Any) -> Any:
    """TextAttack's attack; candidates that are beyond the limit of queries are not checked."""
    from textattack import Attack

    class LimitedAttack(Attack):  # type: ignore[misc]
        """Checks candidates in the order in which they are queried, until there are enough."""

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
            return passed

    return LimitedAttack(goal, constraints, transformation, search)


@contextmanager
def quick_texts() -> Iterator[None]:
    """Within it, TextAttack replaces and deletes words at their places in a text, which it looks for once.

    It otherwise looks for every word of the text and splits it again, for every candidate. A text is split at white
    space and each piece by itself, so that pieces can be looked up; only Chinese is split as a whole.
    """
    from textattack.shared import attacked_text
    from textattack.shared.attacked_text import AttackedText

    split, replace_word = attacked_text.words_from_text, AttackedText.replace_word_at_index
    parts = lru_cache(SPLIT)(lambda piece: tuple(split(piece)))

    def remembered(text: str, words_to_ignore: Sequence[str] = ()) -> list[str]:
        if CHINESE.search(text):
            return list(split(text, list(words_to_ignore)))
        return [word for piece in text.split() for word in parts(piece) if word not in words_to_ignore]

    def replaced(self: Any, index: int, new_word: str) -> Any:
        if not hasattr(self, "places"):
            self.places = word_places(self.text, self.words) if len(self._text_input) == 1 else None
        usual = isinstance(new_word, str) and not CHINESE.search(new_word)
        count = len(remembered(new_word)) if usual else 2
        if self.places is None or not 0 <= index < len(self.places) or count > 1 or bool(count) != bool(new_word):
            return replace_word(self, index, new_word)
        word, start, attributes = self.words[index], self.places[index], dict(self.attack_attrs)
        text, rest = self.text[:start], self.text[start + len(word) :]
        numbers = attributes["original_index_map"].copy()
        modified, changed = attributes["modified_indices"], {index} if word != new_word and new_word else set()
        if not new_word:  # the space at the deleted word is deleted, too
            if rest:
                text, rest = (text, rest.removeprefix(" ")) if index == 0 else (text.removesuffix(" "), rest)
            modified = {number - (number > index) for number in modified if number != index}
            numbers[numbers == index] = -1
            numbers[numbers > index] -= 1
        kept = {name: attributes[name] for name in ("label_names",) if name in attributes}
        return AttackedText(
            OrderedDict((name, text + new_word + rest) for name in self._text_input),
            {
                **kept,
                "newly_modified_indices": changed,
                "previous_attacked_text": self,
                "modified_indices": modified | changed,
                "original_index_map": numbers,
            },
        )

    attacked_text.words_from_text, AttackedText.replace_word_at_index = remembered, replaced
    try:
        yield
    finally:
        attacked_text.words_from_text, AttackedText.replace_word_at_index = split, replace_word


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


def first_combinations(
    predicted: Sequence[Sequence[int]], spell: Callable[[Sequence[int]], str], accepts: Callable[[str], bool], most: int
) -> list[str]:
    """The first ``most`` words that subwords predicted for each place spell, in the order of `itertools.product`.

    >>> first_combinations([[1, 2], [3, 4]], lambda ids: "-".join(map(str, ids)), lambda word: word != "1-4", 2)
    ['1-3', '2-3']
    """
    words: list[str] = []
    for ids in product(*predicted):
        word = spell(ids)
        if accepts(word):
            words.append(word)
            if len(words) == most:
                break
    return words


def bert_attack_swap(model: Any, tokenizer: Any, *, max_candidates: int) -> Any:
    """TextAttack's swaps of BERT-Attack, without combinations that it throws away."""
    from textattack.shared import utils
    from textattack.transformations import WordSwapMaskedLM

    class FirstCombinationsSwap(WordSwapMaskedLM):  # type: ignore[misc]
        """A word of several subwords is replaced by the first combinations of predicted subwords."""

        def _bert_attack_replacement_words(
            self, current_text: Any, index: int, id_preds: Any, masked_lm_logits: Any
        ) -> list[str]:
            known = self._lm_tokenizer
            masked = current_text.replace_word_at_index(index, known.mask_token)
            ids = self._encode_text(masked.text)["input_ids"].tolist()[0]
            if known.mask_token_id not in ids:  # beyond the longest input of the model
                return []
            start = ids.index(known.mask_token_id)
            subwords = known.encode(current_text.words[index], add_special_tokens=False)
            predicted = id_preds[start : start + len(subwords)].tolist()
            if not predicted:
                return []
            kind = self._language_model.config.model_type
            if len(predicted) == 1:
                tokens = [known.convert_ids_to_tokens(number) for number in predicted[0]]
                return [
                    token
                    for token in tokens
                    if utils.is_one_word(token) and not utils.check_if_subword(token, kind, index == 0)
                ]

            def spell(numbers: Sequence[int]) -> str:
                return "".join(known.convert_ids_to_tokens(list(numbers))).replace("##", "")

            return first_combinations(predicted, spell, utils.is_one_word, self.max_candidates)

    return FirstCombinationsSwap(
        method="bert-attack", masked_language_model=model, tokenizer=tokenizer, max_candidates=max_candidates
    )


class ScoredPlaces:
    """The scores of the vocabulary at the places of a batch, each computed when it is asked for."""

    def __init__(self, head: Callable[[Any], Any], states: Any) -> None:
        self._head, self._states = head, states

    def __getitem__(self, place: Any) -> Any:
        import torch

        with torch.no_grad():
            return self._head(self._states[place])


class QuickMaskedLM:
    """A masked language model as TextAttack calls it, whose head is applied only where its scores are read.

    The head is most of the work: it scores some 30,000 subwords for every token, and the recipes read one token.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.config = model.eval(), model.config
        self.head = getattr(model, "cls", None) or getattr(model, "lm_head", None)
        self.encoder = model.base_model
        if not self._agrees():
            self.head = None

    def _agrees(self) -> bool:
        """Whether the encoder and the head give what the model gives."""
        import torch

        if self.head is None or self.encoder is self.model:
            return False
        ids = torch.arange(min(8, self.config.vocab_size))[None]
        with torch.no_grad():
            try:
                scores, states = self.model(input_ids=ids)[0], self.encoder(input_ids=ids)[0]
                return bool(torch.allclose(self.head(states), scores, atol=1e-4))
            except (RuntimeError, TypeError, IndexError):
                return False

    def to(self, device: Any) -> QuickMaskedLM:
        """Move the model to a device."""
        self.model.to(device)
        return self

    def eval(self) -> QuickMaskedLM:
        """The model is always in evaluation mode."""
        return self

    def __call__(self, **inputs: Any) -> tuple[Any]:
        """The scores: those of `ScoredPlaces`, or a tensor if the model has no head of a known name."""
        if self.head is None:
            return (self.model(**inputs)[0],)
        return (ScoredPlaces(self.head, self.encoder(**inputs)[0]),)


class UnpaddedTokenizer:
    """A tokenizer that pads the texts of a batch to the longest of them, whatever it is asked for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __call__(self, texts: Any, **settings: Any) -> Any:
        """Token ids; the attention mask hides what is padded."""
        return self._tokenizer(texts, **settings | {"padding": True})


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
