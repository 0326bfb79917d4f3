"""What a masked language model predicts in TextAttack's recipes (version 0.3.11), with less work.

* The head, which scores some 30,000 subwords, is applied to the tokens whose predictions are read, and to no others.
* A prediction is computed once for each sequence of tokens. The search asks for the same places of the same text again,
  and several models that are attacked together ask for the same predictions.
* On request the model reads only some tokens around a place, in place of the whole text. Then a change of the text far
  away leaves a prediction as it is, and a prediction takes much less time.
* BERT-Attack's swaps of words of several subwords are the first combinations of predicted subwords. TextAttack ranks
  all combinations, 8 to the power of their number, and then takes the first ones in the order in which they were made.
  Of words of more than four subwords, not all combinations are looked at.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product, takewhile
from typing import Any

LONGEST = 512  # tokens of a text that TextAttack gives to a masked language model, if it can read as many
BATCH = 16
COMBINATIONS = 8**4  # of subwords that are looked at for a word
KEPT_PREDICTIONS = 2**14
KEPT_STATES = 2  # texts whose outputs of the encoder are kept
MOST_WORDS = 50  # words that are kept for each place; the recipes use at most as many
FIRST_RANKS = 256  # predictions that are looked at first


def tokens_around(ids: Sequence[int], start: int, count: int, context: int | None) -> tuple[tuple[int, ...], int]:
    """The tokens around ``count`` tokens from ``start``, at most ``context``, and where the first of them is now.

    The first and the last token mark the beginning and the end of a text; they are kept and not counted.

    >>> tokens_around([101, 1, 2, 3, 4, 5, 6, 102], 4, 1, 3)
    ((101, 3, 4, 5, 102), 2)
    >>> tokens_around([101, 1, 2, 3, 4, 5, 6, 102], 1, 1, 3)
    ((101, 1, 2, 3, 102), 1)
    >>> tokens_around([101, 1, 2, 102], 2, 1, None)
    ((101, 1, 2, 102), 2)
    """
    last = len(ids) - 1
    if context is None or last - 1 <= max(context, count):
        return tuple(ids), start
    context = max(context, count)
    begin = max(1, min(start - (context - count) // 2, last - context))
    return (ids[0], *ids[begin : begin + context], ids[last]), start - begin + 1


class MaskedPredictions:
    """A masked language model, as TextAttack's transformations need it.

    Args:
        model: of transformers, with a masked-language head.
        tokenizer: of the model.
        context: how many tokens around a place the model reads; None for the whole text, as in TextAttack.
    """

    def __init__(self, model: Any, tokenizer: Any, context: int | None = None) -> None:
        self.model, self.config, self.tokenizer, self.context = model.eval(), model.config, tokenizer, context
        self.encoder = model.base_model
        self.head: Any = getattr(model, "cls", None) or getattr(model, "lm_head", None)
        if not self._agrees():
            self.encoder, self.head = model, lambda scores: scores
        from lru import LRU

        self._words: Any = LRU(KEPT_PREDICTIONS)
        self._subwords: Any = LRU(KEPT_PREDICTIONS)
        self._states: Any = LRU(KEPT_STATES)
        self._word = lru_cache(None)(self._spelled)
        self._word(0, is_first=False)  # a kind of model that TextAttack does not know is refused here
        positions = getattr(self.config, "max_position_embeddings", LONGEST)
        self.longest = min(LONGEST, positions, tokenizer.model_max_length)

    def _agrees(self) -> bool:
        """Whether the encoder and the head give what the model gives."""
        import torch

        if self.head is None or self.encoder is self.model:
            return False
        ids = torch.arange(min(8, self.config.vocab_size))[None]
        text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            try:
                scores, states = self.model(**text)[0], self.encoder(**text)[0]
                return bool(torch.allclose(self.head(states), scores, atol=1e-4))
            except (RuntimeError, TypeError, IndexError):
                return False

    def to(self, device: Any) -> MaskedPredictions:
        """Move the model to a device."""
        self.model.to(device)
        return self

    def eval(self) -> MaskedPredictions:
        """The model is always in evaluation mode."""
        return self

    def _encode(self, sequences: Sequence[tuple[int, ...]]) -> Any:
        """The outputs of the encoder for sequences of the same length."""
        import torch

        ids = torch.tensor(sequences, device=self.model.device)
        with torch.no_grad():
            return self.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))[0]

    def words(self, texts: Sequence[str], *, most: int, least: float) -> list[list[str]]:
        """The words predicted at the mask of each text, the most likely first; none where the mask is too far on.

        Args:
            texts: each with one mask.
            most: words for each text.
            least: the least probability of a word.
        """
        import torch

        mask = self.tokenizer.mask_token_id
        wanted: list[Any] = []
        encoded = self.tokenizer(list(texts), truncation=True, max_length=self.longest)["input_ids"] if texts else []
        new: dict[int, dict[Any, tuple[int, ...]]] = defaultdict(dict)  # by length: no text is padded
        for ids in encoded:
            if mask not in ids:
                wanted.append(None)
                continue
            sequence, place = tokens_around(ids, ids.index(mask), 1, self.context)
            key = (array("i", sequence).tobytes(), place, ids[1] == mask)
            wanted.append(key)
            if key not in self._words:
                new[len(sequence)][key] = sequence
        predicted = {key: self._words[key] for key in wanted if key is not None and key in self._words}
        for sequences in new.values():
            keys = list(sequences)
            for start in range(0, len(keys), BATCH):
                batch = keys[start : start + BATCH]
                states = self._encode([sequences[key] for key in batch])
                with torch.no_grad():
                    scores = self.head(states[range(len(batch)), [place for _, place, _ in batch]])
                for key, row in zip(batch, torch.softmax(scores, dim=1), strict=True):
                    predicted[key] = self._words[key] = self._ranked(row, is_first=key[2])
        return [
            [] if key is None else [word for word, _ in takewhile(lambda pair: pair[1] >= least, predicted[key][:most])]
            for key in wanted
        ]

    def _ranked(self, probabilities: Any, *, is_first: bool) -> list[tuple[str, float]]:
        """The most likely words and their probabilities, rounded so that they do not depend on the batch."""
        import torch

        words: list[tuple[str, float]] = []
        for count in dict.fromkeys((min(FIRST_RANKS, len(probabilities)), len(probabilities))):
            values, ids = torch.topk(probabilities, count)
            pairs = [
                (float(f"{value:.5g}"), number) for value, number in zip(values.tolist(), ids.tolist(), strict=True)
            ]
            ordered = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
            words = [
                (word, value)
                for value, number in ordered
                if (word := self._word(number, is_first=is_first)) is not None
            ]
            if len(words) >= MOST_WORDS:
                break
        return words[:MOST_WORDS]

    def _spelled(self, number: int, is_first: bool) -> str | None:
        """The word that a subword stands for, as TextAttack spells it; None for punctuation."""
        from textattack.shared import utils

        kind, word = self.config.model_type, self.tokenizer.convert_ids_to_tokens(number)
        if utils.check_if_subword(word, kind, is_first):
            word = utils.strip_BPE_artifacts(word, kind)
        return word if utils.is_one_word(word) and not utils.check_if_punctuations(word) else None

    def subwords(self, text: str, masked: str, count: int, most: int) -> list[list[int]]:
        """The most likely subwords at each place of a word, which is not masked; none if it is too far on.

        Args:
            text: with the word.
            masked: with a mask in place of the word.
            count: subwords of the word.
            most: subwords for each place.
        """
        import torch

        ids, with_mask = self.tokenizer([text, masked], truncation=True, max_length=self.longest)["input_ids"]
        if self.tokenizer.mask_token_id not in with_mask:
            return []
        start = with_mask.index(self.tokenizer.mask_token_id)
        count = min(count, len(ids) - start)
        if count < 1:
            return []
        sequence, place = tokens_around(ids, start, count, self.context)
        key = (array("i", sequence).tobytes(), place, count, most)
        if key not in self._subwords:
            if sequence not in self._states:
                self._states[sequence] = self._encode([sequence])[0]
            with torch.no_grad():
                scores = self.head(self._states[sequence][place : place + count])
            self._subwords[key] = torch.topk(scores, most)[1].tolist()
        return self._subwords[key]


@dataclass(frozen=True)
class Moves:
    """TextAttack's transformations by a masked language model, with the words of `MaskedPredictions`.

    Attributes:
        swaps: replace a word.
        insertions: insert a word.
        merges: replace two words by one.
        subword_swaps: replace a word by predictions at its unmasked subwords, as BERT-Attack does.
    """

    swaps: type
    insertions: type
    merges: type
    subword_swaps: type


@lru_cache(1)
def moves() -> Moves:
    """The transformations; the model that they are given must be `MaskedPredictions`."""
    from textattack.shared import utils
    from textattack.transformations import WordInsertionMaskedLM, WordMergeMaskedLM, WordSwapMaskedLM

    class Predicted:
        """The words predicted at masks."""

        _language_model: MaskedPredictions
        max_candidates: int
        min_confidence: float
        window_size: float

        @property
        def mask(self) -> str:
            """The token that stands for a word to predict."""
            return str(self._language_model.tokenizer.mask_token)

        def words(self, texts: Sequence[str]) -> list[list[str]]:
            """The words for the mask of each text."""
            return self._language_model.words(texts, most=self.max_candidates, least=self.min_confidence)

    class Swaps(Predicted, WordSwapMaskedLM):  # type: ignore[misc]
        """Replaces words."""

        def _bae_replacement_words(self, current_text: Any, indices_to_modify: Sequence[int]) -> list[list[str]]:
            return self.words([current_text.replace_word_at_index(n, self.mask).text for n in indices_to_modify])

    class Insertions(Predicted, WordInsertionMaskedLM):  # type: ignore[misc]
        """Inserts words."""

        def _get_new_words(self, current_text: Any, indices_to_modify: Sequence[int]) -> list[list[str]]:
            masked = [(n, current_text.insert_text_before_word_index(n, self.mask)) for n in indices_to_modify]
            return self.words([text.text_window_around_index(n, self.window_size) for n, text in masked])

    class Merges(Predicted, WordMergeMaskedLM):  # type: ignore[misc]
        """Replaces two words by one."""

        def _get_merged_words(self, current_text: Any, indices_to_modify: Sequence[int]) -> list[list[str]]:
            masked = [
                (n, current_text.replace_word_at_index(n, self.mask).delete_word_at_index(n + 1))
                for n in indices_to_modify
            ]
            return self.words([text.text_window_around_index(n, self.window_size) for n, text in masked])

    class SubwordSwaps(Predicted, WordSwapMaskedLM):  # type: ignore[misc]
        """Replaces a word by predicted subwords; of several subwords, by their first combinations."""

        def _get_transformations(self, current_text: Any, indices_to_modify: Iterable[int]) -> list[Any]:
            return [
                current_text.replace_word_at_index(n, word)
                for n in indices_to_modify
                for word in (spelled.strip("\u0120") for spelled in self._replacements(current_text, n))
                if word != current_text.words[n]
            ]

        def _replacements(self, current_text: Any, index: int) -> list[str]:
            model = self._language_model
            count = len(model.tokenizer.encode(current_text.words[index], add_special_tokens=False))
            masked = current_text.replace_word_at_index(index, self.mask)
            predicted = model.subwords(current_text.text, masked.text, count, self.max_candidates)
            spell = model.tokenizer.convert_ids_to_tokens
            if len(predicted) == 1:
                kind = model.config.model_type
                return [
                    token
                    for token in spell(predicted[0])
                    if utils.is_one_word(token) and not utils.check_if_subword(token, kind, index == 0)
                ]
            if not predicted:
                return []
            return first_combinations(
                predicted,
                lambda numbers: "".join(spell(list(numbers))).replace("##", ""),
                utils.is_one_word,
                self.max_candidates,
            )

    return Moves(Swaps, Insertions, Merges, SubwordSwaps)


def first_combinations(
    predicted: Sequence[Sequence[int]], spell: Callable[[Sequence[int]], str], accepts: Callable[[str], bool], most: int
) -> list[str]:
    """The first ``most`` words that subwords predicted for each place spell, in the order of `itertools.product`.

    Of very many combinations, only the first ones are looked at: a word of twenty subwords, such as an address, has
    more than TextAttack could ever rank, and perhaps none that is a word.

    >>> first_combinations([[1, 2], [3, 4]], lambda ids: "-".join(map(str, ids)), lambda word: word != "1-4", 2)
    ['1-3', '2-3']
    """
    words: list[str] = []
    for ids in islice(product(*predicted), COMBINATIONS):
        word = spell(ids)
        if accepts(word):
            words.append(word)
            if len(words) == most:
                break
    return words
