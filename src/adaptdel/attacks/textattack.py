"""The recipes of TextAttack (version 0.3.11), composed of its own classes, against any target.

The settings are those of the code that the paper's authors released: CLARE with bert-base and 70 candidates, BAE-I with
a similarity of 0.9, BERT-Attack with 24 candidates. The others are those of TextAttack. TextAttack names its models in
its code; here each part may come from a folder or a file. A part that cannot be loaded is named in the error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from adaptdel.attacks.outcomes import FAILURE, SKIPPED, SUCCESS, TIMEOUT, AttackRecord, attempt
from adaptdel.attacks.target import Target, TimeLimitReached
from adaptdel.core.checks import FloatArray
from adaptdel.text.units import Tokens, content_key

USED_PARTS = {
    "clare": ("masked_lm", "sentence_encoder", "tagger", "nltk_data"),
    "bae-i": ("masked_lm", "sentence_encoder", "nltk_data"),
    "bae-r": ("masked_lm", "sentence_encoder", "tagger", "nltk_data"),
    "bert-attack": ("masked_lm", "sentence_encoder", "nltk_data"),
    "deepwordbug": ("nltk_data",),
    "textfooler": ("word_vectors", "sentence_encoder", "tagger", "nltk_data"),
}
TEXTATTACK = tuple(USED_PARTS)
PAPER_RECIPES = tuple(name for name in TEXTATTACK if name != "bae-r")
NONE = "none"  # leaves a constraint out
MASKED_LM = "bert-base-uncased"
MOST_SUBWORDS = 3  # of a word that BERT-Attack replaces: TextAttack compares 24 to the power of their number
WHOLE_STEP = 10**6  # texts of a batch: all of a search step
_INSTALL = "the recipes of TextAttack need the extra attack, in an environment of its own: make attack-env"


class TextAttackAttacker:
    """A recipe of TextAttack, one of `TEXTATTACK`, against a target; its parts are folders, files or names."""

    def __init__(self, target: Target, recipe: str, parts: Mapping[str, str]) -> None:
        self.target = target
        import_textattack(parts.get("nltk_data"))
        self.attack = composed(recipe, _goal(target), Parts(recipe, parts))

    def __call__(self, text: str, tokens: Tokens, label: int) -> AttackRecord:
        """Attack a text whose right answer is the class ``label``; all randomness depends on the text and the seed."""
        import torch

        seed = int.from_bytes(content_key(tokens)[:4], "little") ^ (self.target.settings.seed & 0xFFFFFFFF)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  TextAttack draws from NumPy's legacy generator
        torch.manual_seed(seed)
        self.attack.clear_cache()
        target = self.target
        try:
            result = self.attack.attack(text, label)
        except TimeLimitReached:
            return attempt(TIMEOUT, queries=target.queries, votes=target.votes)
        outcomes = {"SkippedAttackResult": SKIPPED, "SuccessfulAttackResult": SUCCESS}
        outcome = outcomes.get(type(result).__name__, FAILURE)
        spent = {"queries": int(self.attack.goal_function.num_queries), "votes": target.votes}
        if outcome != SUCCESS:
            return attempt(outcome, **spent)
        attacked = result.perturbed_result.attacked_text
        changed = len(attacked.attack_attrs.get("modified_indices", ()))
        return attempt(outcome, **spent, text=attacked.text, words_changed=changed)


def _goal(target: Target) -> Any:
    """TextAttack's goal of any other answer; it keeps the answer to a text."""
    from textattack.goal_functions import UntargetedClassification
    from textattack.models.wrappers import ModelWrapper

    class Wrapper(ModelWrapper):  # type: ignore[misc]
        def __init__(self) -> None:
            self.model = target

        def __call__(self, texts: Sequence[str]) -> FloatArray:
            return target.query(texts)  # which sum to 1: TextAttack applies no softmax

    limits = {"query_budget": target.settings.queries, "model_batch_size": WHOLE_STEP}
    return UntargetedClassification(Wrapper(), **limits, use_cache=True)


def composed(recipe: str, goal: Any, parts: Parts) -> Any:
    """TextAttack's attack: what may be changed, how, and the search."""
    from textattack import Attack, transformations
    from textattack.attack_recipes import DeepWordBugGao2018
    from textattack.constraints.overlap import MaxWordsPerturbed
    from textattack.constraints.pre_transformation import RepeatModification, StopwordModification
    from textattack.constraints.semantics import WordEmbeddingDistance
    from textattack.search_methods import GreedySearch, GreedyWordSwapWIR

    constraints: list[Any] = [RepeatModification(), StopwordModification()]
    search: Any = GreedySearch()
    change: Any
    match recipe:
        case "deepwordbug":  # letters of important words are swapped, replaced, deleted or inserted
            own = DeepWordBugGao2018.build(goal.model)
            change, search = own.transformation, own.search_method
            constraints += own.constraints
        case "textfooler":  # important words are replaced by words with similar vectors
            vectors = parts.word_vectors()
            change = transformations.WordSwapEmbedding(max_candidates=50, embedding=vectors)
            search = GreedyWordSwapWIR(wir_method="delete")
            constraints += [WordEmbeddingDistance(embedding=vectors, min_cos_sim=0.5), *parts.part_of_speech()]
            constraints += parts.sentence_encoder(
                threshold=0.840845057, metric="angular", compare_against_original=False
            )
        case "bae-i":  # words are inserted that a masked language model predicts
            change = transformations.WordInsertionMaskedLM(max_candidates=50, min_confidence=0.0, **parts.masked_lm)
            constraints += parts.sentence_encoder(threshold=0.9)
        case "bae-r":  # important words are replaced by predictions of a masked language model: the BAE of TextAttack
            change = transformations.WordSwapMaskedLM(
                method="bae", max_candidates=50, min_confidence=0.0, **parts.masked_lm
            )
            search = GreedyWordSwapWIR(wir_method="delete")
            constraints += [*parts.part_of_speech(), *parts.sentence_encoder(threshold=0.936338023)]
        case "bert-attack":  # subwords of important words are replaced by predictions, up to 40% of the words
            change = transformations.WordSwapMaskedLM(method="bert-attack", max_candidates=24, **parts.masked_lm)
            search = GreedyWordSwapWIR(wir_method="unk")
            constraints += [parts.few_subwords(), MaxWordsPerturbed(max_percent=0.4)]
            constraints += parts.sentence_encoder(threshold=0.2, window_size=None, skip_text_shorter_than_window=False)
        case _:  # clare: words are replaced, inserted and, with a tagger, merged by a masked language model
            shared = {"max_candidates": 70, **parts.masked_lm}
            moves = [
                transformations.WordSwapMaskedLM(method="bae", min_confidence=5e-4, **shared),
                transformations.WordInsertionMaskedLM(min_confidence=0.0, **shared),
            ]
            if parts.tags_for_merges():
                moves.append(transformations.WordMergeMaskedLM(min_confidence=5e-3, **shared))
            change = transformations.CompositeTransformation(moves)
            constraints += parts.sentence_encoder(threshold=0.7)
    return Attack(goal, constraints, change, search)


class Parts:
    """Loads the parts of a recipe: what the user gave for each, a folder, a file, a name on a hub or "none"."""

    def __init__(self, recipe: str, names: Mapping[str, str]) -> None:
        self.recipe, self.names = recipe, names
        tagger = names.get("tagger")
        if tagger not in (None, NONE):
            raise ValueError(f"tagger must be none, or left out for that of TextAttack, got {tagger!r}")
        self.has_tagger = tagger is None

    @contextmanager
    def _loading(self, part: str, name: str, how: str) -> Iterator[None]:
        """Raise an error that names the part and how to get it."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise ValueError(
                f"the recipe {self.recipe!r} needs a {part.replace('_', ' ')}, and {name!r} cannot be loaded "
                f"({type(error).__name__}: {reason}): {how} with --part {part}=..."
            ) from None

    @cached_property
    def masked_lm(self) -> dict[str, Any]:
        """The masked language model and its tokenizer, as arguments of TextAttack's transformations."""
        name = self.names.get("masked_lm", MASKED_LM)
        with self._loading("masked_lm", name, "give the folder of one"):
            from transformers import AutoModelForMaskedLM, AutoTokenizer

            model = AutoModelForMaskedLM.from_pretrained(name, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
            longest = min(512, getattr(model.config, "max_position_embeddings", 512), tokenizer.model_max_length)
            return {"masked_language_model": model, "tokenizer": tokenizer, "max_length": longest}

    def few_subwords(self) -> Any:
        """Words of more than `MOST_SUBWORDS` subwords are not changed."""
        from textattack.constraints import PreTransformationConstraint

        tokenizer = self.masked_lm["tokenizer"]

        class FewSubwords(PreTransformationConstraint):  # type: ignore[misc]
            """A word of six subwords would have 191 million replacements to compare."""

            def _get_modifiable_indices(self, current_text: Any) -> set[int]:
                counts = (len(tokenizer.tokenize(word)) for word in current_text.words)
                return {number for number, count in enumerate(counts) if count <= MOST_SUBWORDS}

        return FewSubwords()

    def sentence_encoder(self, **settings: Any) -> list[Any]:
        """The constraint on the similarity of sentences: a list of one, or of none if the part is "none"."""
        settings = {
            "metric": "cosine",
            "compare_against_original": True,
            "window_size": 15,
            "skip_text_shorter_than_window": True,
        } | settings
        name = self.names.get("sentence_encoder")
        if name == NONE:
            return []
        if name is None:
            how = "install it (pip install 'adaptdel[attack-use]') or give the folder of an encoder"
            with self._loading("sentence_encoder", "the Universal Sentence Encoder", how):
                import tensorflow_hub  # noqa: F401
                from textattack.constraints.semantics.sentence_encoders import UniversalSentenceEncoder

                return [UniversalSentenceEncoder(**settings)]
        with self._loading("sentence_encoder", name, "give the folder of a transformer that encodes sentences"):
            from textattack.constraints.semantics.sentence_encoders import SBERT

            return [SBERT(model_name=name, **settings)]

    def part_of_speech(self) -> list[Any]:
        """The constraint on parts of speech: a list of one, or of none if the tagger is "none"."""
        if not self.has_tagger:
            return []
        import nltk
        from textattack.constraints.grammaticality import PartOfSpeech

        needed = "averaged_perceptron_tagger_eng universal_tagset"
        how = f"install its data (python -m nltk.downloader {needed}), give their folder by --part nltk_data, or none"
        with self._loading("tagger", "NLTK's tagger", how):
            nltk.pos_tag(["word"], tagset="universal")
        return [PartOfSpeech(allow_verb_noun_swap=True)]

    def tags_for_merges(self) -> bool:
        """Whether CLARE merges words: it needs flair's tagger, which TextAttack loads from a hub."""
        if not self.has_tagger:
            return False
        with self._loading("tagger", "flair's upos-fast", "leave merges out"):
            from flair.data import Sentence
            from textattack.shared.utils import flair_tag

            flair_tag(Sentence("word"))
        return True

    def word_vectors(self) -> Any:
        """The word vectors of TextFooler: counter-fitted vectors, or those of a file in GloVe's text format."""
        from textattack.shared import WordEmbedding

        name = self.names.get("word_vectors")
        if name is not None:
            with self._loading("word_vectors", name, "give a file in GloVe's text format"):
                return given_vectors(name)
        with self._loading("word_vectors", "TextAttack's counter-fitted vectors", "give a file of vectors"):
            return WordEmbedding.counterfitted_GLOVE_embedding()


def import_textattack(nltk_data: str | None = None) -> None:
    """Import TextAttack, which reads NLTK's stop words as it is imported, from a folder of NLTK's data if given."""
    try:
        import nltk

        if nltk_data is not None:
            nltk.data.path.insert(0, nltk_data)
        import textattack.attack_recipes  # noqa: F401
    except LookupError:
        raise ValueError(
            "TextAttack needs the stop words of NLTK, which are not installed: python -m nltk.downloader stopwords, or "
            "give a folder with NLTK's data by --part nltk_data=FOLDER"
        ) from None
    except ImportError as error:
        raise ImportError(f"{_INSTALL}, or pip install 'adaptdel[attack]' ({error})") from None


def given_vectors(path: str) -> Any:
    """The vectors of a file in GloVe's text format, as TextAttack's word embedding.

    Those of punctuation are left out: where "..." replaces a word, TextAttack cannot tell where the text was changed.
    """
    from gensim.models import KeyedVectors
    from textattack.shared import GensimWordEmbedding
    from textattack.shared.utils import words_from_text

    read = KeyedVectors.load_word2vec_format(path, no_header=True)
    words = [word for word in read.index_to_key if words_from_text(word) == [word]]
    kept = KeyedVectors(read.vector_size)
    kept.add_vectors(words, read[words])
    return GensimWordEmbedding(kept)
