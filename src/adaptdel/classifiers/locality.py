r"""Which tokenizers work word by word.

A copy is words joined by single spaces. Its ids are those of its words one after another if no part of the tokenizer
looks across a space. The parts are read from the tokenizer's own JSON, and only what is known to be local passes:

- added tokens: matched inside a word, or with white space that copies cannot hold (two spaces, a line feed);
- normalisers with N("s t") = N("s") + " " + N("t") for all s and t: those that work character by character, the Unicode
  normal forms (a space composes with nothing), a replacement of a text without white space. Where white space is
  stripped or replaced, or stays in the pieces, every stage must leave a word in one piece without white space, so that
  the text is single-spaced at every stage: then a pattern of two spaces matches nothing. `Precompiled` (SentencePiece)
  works by grapheme: no word may begin with what joins a grapheme before it, or end with what joins one after it;
- pre-tokenizers: one that cuts at every space, and before it only those that look at a character and its neighbour;
- models: without randomness, as they read one piece at a time;
- post-processors: special tokens around the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unicodedata import category

NORMALIZERS = frozenset({"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents"})
"""Normalisers that need no further look."""

NOTHING_TO_MATCH = frozenset({" {2,}", r"\s{2,}", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"\n"})
"""Patterns of replacements that match nothing in a single-spaced text."""

SINGLE_SPACE = frozenset({" +", r"\s+"})
"""Patterns of replacements that match every space of a single-spaced text, and nothing else."""

WORDS_WITH_SPACE = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    }
)
"""Patterns of GPT-2, Qwen and Llama 3: in a single-spaced text a match has at most one space, in front."""

PIECEWISE = frozenset(
    {"BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation"}
    | {"Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"}
)
"""Pre-tokenizers that read each piece of the one before them by itself."""

MODELS = {
    "BPE": "dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback ignore_merges merges",
    "Unigram": "unk_id byte_fallback",
    "WordPiece": "unk_token continuing_subword_prefix max_input_chars_per_word",
    "WordLevel": "unk_token",
}
"""Models and their settings; any other setting is unknown."""

ENCODERS = ("__call__", "_encode_plus", "_batch_encode_plus")
PLAIN_ENCODERS = re.compile(
    r"transformers\.(tokenization_utils_(base|fast|tokenizers)"
    r"|models\.(bart|blenderbot|bloom|codegen|deberta|gpt2|led|longformer|mvp|roberta)\.tokenization_\w+_fast)"
)
"""Modules whose methods hand a text to the backend as it is."""

MARKS = "\u0300"  # the first character that joins another
# A character of these categories does not join the grapheme before it, nor the one after it; see `_edges_are_firm`.
FIRM = re.compile("L[ulto]|N.|P.|S[mco]|Zs")
JOINS_BEFORE = frozenset("\u0e33\u0eb3")  # vowel signs of Thai and Lao that are letters
JOINS_AFTER = re.compile("[\u0d4e\U00011000-\U00011fff]")  # letters that are written on the next one


@dataclass(frozen=True)
class Stage:
    """One normaliser: its kind in the JSON, and the object."""

    kind: str
    normalizer: Any


@dataclass(frozen=True)
class Locality:
    """A tokenizer that works word by word, for the words that it `admits`.

    Attributes:
        stages: its normalisers, in order.
        strict: whether every stage must leave a word in one piece.
        added: matches a text that holds an added token, in any case of letters.
        masks: whether a mask between the words leaves them as they are.
    """

    stages: tuple[Stage, ...]
    strict: bool
    added: re.Pattern[str]
    masks: bool

    def admits(self, word: str) -> bool:
        """Whether the ids of a word, here without white space, are independent of the other words of the text."""
        if self.added.search(word):
            return False
        text = word
        for stage in self.stages:
            if stage.kind == "Precompiled" and not _edges_are_firm(text):
                return False
            text = stage.normalizer.normalize_str(text)
            if self.strict and text.split() != [text]:
                return False
        return text == word or not self.added.search(text)


def _edges_are_firm(text: str) -> bool:
    """Whether no grapheme reaches from the text to a space beside it.

    A grapheme continues at marks, joiners and modifiers, which are of other categories but for `JOINS_BEFORE`; a few
    signs and letters take the next character in: other categories again, and `JOINS_AFTER`.
    """
    if not text:
        return True
    first, last = text[0], text[-1]
    begins = first < MARKS or (FIRM.match(category(first)) and first not in JOINS_BEFORE)
    ends = re.match("M[nc]|Lm|Sk", category(last)) or FIRM.match(category(last))
    return bool(begins and (last < MARKS or (ends and not JOINS_AFTER.match(last))))


def locality(tokenizer: Any) -> Locality | None:
    """What is known of a Hugging Face tokenizer; None if some part of it may look across a space."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not _encodes_plainly(tokenizer):
        return None
    try:
        parts = json.loads(backend.to_str())
    except Exception:  # parts written in Python cannot be read
        return None
    cutters = list(_flat(parts["pre_tokenizer"]))
    keeps_space = _keeps_space(cutters)
    stages = list(_flat(parts["normalizer"]))
    if keeps_space is None or not _model_is_fixed(parts["model"]) or not _frames(list(_flat(parts["post_processor"]))):
        return None
    if not all(_is_local(stage) for stage in stages):
        return None
    strict = keeps_space or any(_touches_space(stage) for stage in stages)
    contents: set[str] = set()
    for token in parts["added_tokens"]:
        forms = {token["content"]}
        if token["normalized"] and backend.normalizer is not None:
            forms.add(backend.normalizer.normalize_str(token["content"]))
        spaced = {form for form in forms if form.split() != [form]}
        if not all(re.search(r"\s\s|[^\S ]", form) for form in spaced):
            return None  # it can match a space of a copy
        strict = strict or bool(spaced and token["normalized"])  # a copy must not contain such white space
        contents |= forms - spaced
    mask = next((token for token in parts["added_tokens"] if token["content"] == tokenizer.mask_token), None)
    # whether a word after a mask loses the space in front of it
    bare = any(stage["type"] == "Strip" and stage["strip_left"] for stage in stages) or bool(mask and mask["rstrip"])
    bare = bare and keeps_space and not _puts_space_back(cutters[0])
    return Locality(
        stages=tuple(Stage(stage["type"], _normalizer(type(backend), stage)) for stage in stages),
        strict=strict,
        added=re.compile("|".join(map(re.escape, sorted(contents))) or r"(?!)", re.IGNORECASE),
        masks=not bare and not getattr(tokenizer, "split_special_tokens", False),
    )


def _encodes_plainly(tokenizer: Any) -> bool:
    """Whether a text is passed to the backend unchanged."""
    attributes = vars(tokenizer)
    methods = (getattr(type(tokenizer), name, None) for name in ENCODERS if name not in attributes)
    known = (method is None or PLAIN_ENCODERS.fullmatch(method.__module__) for method in methods)
    return not any(name in attributes for name in ENCODERS) and all(known)


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """The parts of a sequence, in order; sequences in sequences too."""
    if part is None:
        return
    inner = [part[name] for name in ("normalizers", "pretokenizers", "processors") if name in part]
    if part["type"] == "Sequence" and len(inner) == 1:
        for element in inner[0]:
            yield from _flat(element)
    else:
        yield part


def _is_local(stage: dict[str, Any]) -> bool:
    """Whether a normaliser changes each word independently, in a text that is single-spaced where it has to be."""
    if stage["type"] != "Replace":
        return stage["type"] in NORMALIZERS or stage["type"] in ("Precompiled", "Strip")
    pattern = stage["pattern"]
    if "String" in pattern:
        text = pattern["String"]
        return text != "" and (text.split() == [text] or bool(re.search(r"\s\s|[^\S ]", text)))
    regex = pattern.get("Regex")
    return regex in NOTHING_TO_MATCH or (regex in SINGLE_SPACE and stage["content"] == " ")


def _touches_space(stage: dict[str, Any]) -> bool:
    """Whether a normaliser is local in single-spaced texts only."""
    if stage["type"] == "Replace":
        text = stage["pattern"].get("String", " ")
        return bool(text.split() != [text])
    return bool(stage["type"] == "Strip")


def _normalizer(tokenizer: Any, stage: dict[str, Any]) -> Any:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    absent = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    whole: dict[str, Any] = {"version": "1.0", "added_tokens": [], "normalizer": stage, "model": model, **absent}
    return tokenizer.from_str(json.dumps(whole)).normalizer


def _keeps_space(stages: list[dict[str, Any]]) -> bool | None:
    """Whether spaces stay in the pieces of a pre-tokenizer that cuts at each of them; None if it does not cut."""
    for place, stage in enumerate(stages):
        kind = stage["type"]
        piecewise = all(later["type"] in PIECEWISE for later in stages[place:])
        if kind in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer"):
            return False if piecewise else None
        if _cuts(stage):
            return True if piecewise else None
        if kind != "Digits" and (kind != "Punctuation" or stage["behavior"] not in ("Isolated", "Contiguous")):
            return None
    return None


def _puts_space_back(stage: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer puts a space in front of every text that has none."""
    if stage["type"] == "ByteLevel":
        return bool(stage["add_prefix_space"])
    return bool(stage["type"] == "Metaspace" and stage.get("prepend_scheme") == "always")


def _cuts(stage: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer cuts in front of every space of a single-spaced text, or right behind it as well."""
    kind = stage["type"]
    if kind == "Metaspace":
        return stage.get("replacement") == "▁" and stage.get("split", True) is True
    if kind == "ByteLevel":
        return stage.get("use_regex", True) is True
    if kind == "CharDelimiterSplit":
        return bool(stage["delimiter"] == " ")
    if kind != "Split" or stage["invert"]:
        return False
    if "String" in stage["pattern"]:
        return stage["pattern"]["String"] == " " and stage["behavior"] in ("Removed", "Isolated", "MergedWithNext")
    return stage["pattern"].get("Regex") in WORDS_WITH_SPACE and stage["behavior"] == "Isolated"


def _model_is_fixed(model: dict[str, Any]) -> bool:
    """Whether a model is known, and the ids of a piece are always the same."""
    settings = MODELS.get(model["type"])
    if settings is None or model.get("dropout"):
        return False
    return set(model) <= {"type", "vocab", *settings.split()}


def _frames(stages: list[dict[str, Any]]) -> bool:
    """Whether post-processors do nothing but put special tokens around the text, which is there once."""
    for stage in stages:
        if stage["type"] == "TemplateProcessing":
            if [list(piece) for piece in stage["single"]].count(["Sequence"]) != 1:
                return False
        elif stage["type"] not in ("BertProcessing", "RobertaProcessing", "ByteLevel"):
            return False
    return True
