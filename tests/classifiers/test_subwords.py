"""The ids of noisy copies are those of the joined text, whatever the tokenizer does across spaces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import adaptdel as ad  # noqa: E402
from adaptdel.classifiers.base import Prepared, Request  # noqa: E402
from adaptdel.classifiers.features import best  # noqa: E402
from adaptdel.classifiers.subwords import PROBES, SubwordClassifier, Subwords  # noqa: E402
from adaptdel.text.units import Words  # noqa: E402

AddedToken, Regex = tokenizers.AddedToken, tokenizers.Regex
normalizers, pre_tokenizers = tokenizers.normalizers, tokenizers.pre_tokenizers
VOCABULARY = ("[PAD]", "[UNK]", "[MASK]", "a", "not", "very", "good", "film", "notgood", "not good")
MERGED = (VOCABULARY.index("notgood"), VOCABULARY.index("not good"))


def word_level(
    normalizer: Any = None, pre_tokenizer: Any = None, added: Any = (), kind: Any = transformers.PreTrainedTokenizerFast
) -> Any:
    """A tokenizer of whole words, where "not good" can have an id of its own."""
    vocab = {token: number for number, token in enumerate(VOCABULARY)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizer or pre_tokenizers.WhitespaceSplit()
    found = kind(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")
    found.add_tokens(list(added))
    return found


class Rewriting(transformers.PreTrainedTokenizerFast):  # type: ignore[misc, name-defined]
    """A tokenizer with Python code in front of its backend."""

    def _encode_plus(self, text: Any, *args: Any, **options: Any) -> Any:
        plain = [one.replace("not good", "notgood") for one in text] if isinstance(text, list) else text
        return super()._encode_plus(plain, *args, **options)


ACROSS: dict[str, Callable[[], Any]] = {
    "added": lambda: word_level(added=["not good"]),
    "added-stripping": lambda: word_level(added=[AddedToken("not good", lstrip=True, rstrip=True)]),
    "added-single-word": lambda: word_level(added=[AddedToken("not good", single_word=True, normalized=False)]),
    "added-special": lambda: word_level(added=[AddedToken("not good", special=True)]),
    "added-normalised": lambda: word_level(normalizers.Replace("notgood", "not good"), added=["notgood"]),
    "replace": lambda: word_level(normalizers.Replace("not good", "notgood")),
    "replace-regex": lambda: word_level(normalizers.Replace(Regex(r"not\s+good"), "notgood")),
    "replace-lookahead": lambda: word_level(
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"not(?= good)"), "notgood")])
    ),
    "split": lambda: word_level(
        pre_tokenizer=pre_tokenizers.Split(Regex(r"not good|\S+"), behavior="removed", invert=True)
    ),
    "python": lambda: word_level(kind=Rewriting),
}


class Merged(SubwordClassifier):
    """A tiny model: class 1 if a copy has the subword for "not good", else class 0."""

    def __init__(self, tokenizer: Any, tokenise: str = "auto") -> None:
        self.subwords = Subwords(tokenizer, max_length=None, tokenise=tokenise, name="M")
        self.batch_tokens, self.margin, self.classes_ = 2**14, 0.0, [0, 1]
        self.batching = "padded"

    def scores(self, inputs: dict[str, Any]) -> npt.NDArray[Any]:
        has = np.isin(inputs["input_ids"], MERGED).any(axis=1)
        return np.stack([~has, has], axis=1).astype(np.float32)


def smoothed(tokenizer: Any, tokenise: str = "auto") -> ad.SmoothedClassifier:
    return ad.SmoothedClassifier(Merged(tokenizer, tokenise), ad.Deletion(ad.FixedRate(0.6)))


def one_edit(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    letters = ("not", "very", "good", "film")
    for place in range(len(words) + 1):
        for letter in letters:
            yield (*words[:place], letter, *words[place:])
            if place < len(words):
                yield (*words[:place], letter, *words[place + 1 :])
        if place < len(words):
            yield words[:place] + words[place + 1 :]


@pytest.mark.parametrize("name", ACROSS)
def test_exact_certificates_hold_for_tokenizers_that_reach_over_spaces(name: str) -> None:
    """On ids of single words, the first text is certified with radius 1, and the deletion of "very" changes the answer.

    Deleting it makes "not good" likely: 1 - 0.6**3 is the probability that one of three equal words is kept.
    """
    model = smoothed(ACROSS[name]())
    texts = ["not not not very good good good", "film film very good", "not good", "very very not film"]
    radii = []
    for text, certificate in zip(texts, model.certify(texts), strict=True):
        assert certificate.exact is not None
        radii.append(certificate.radius)
        if certificate.radius > 0:
            edited = [" ".join(words) for words in set(one_edit(tuple(text.split())))]
            assert {other.label for other in model.certify(edited)} == {certificate.label}, text
    assert max(radii) > 0
    assert radii[0] == 0


@pytest.mark.parametrize("name", ACROSS)
def test_tokenizers_that_reach_over_spaces_read_the_joined_text(name: str) -> None:
    reader = Subwords(ACROSS[name](), max_length=None, tokenise="auto", name="M")
    assert not reader.gathers
    with pytest.raises(ValueError) as error:
        Subwords(ACROSS[name](), max_length=None, tokenise="gather", name="M")
    assert str(error.value) == "tokenise must be 'auto' or 'join' for M: its tokenizer does not work word by word"


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(" ", "▁"),
        normalizers.Replace(Regex(r"\bgood"), "x"),
        normalizers.Replace(Regex(" +"), "  "),
        normalizers.Prepend("▁"),
        normalizers.ByteLevel(),
        normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([normalizers.Replace("t g", "tg")])]),
    ],
    ids=repr,
)
def test_unknown_normalisers_are_not_trusted(normalizer: Any) -> None:
    assert not Subwords(word_level(normalizer), max_length=None, tokenise="auto", name="M").gathers


def test_parts_in_python_are_not_trusted() -> None:
    class Shouting:
        def normalize(self, text: Any) -> None:
            text.replace("not good", "notgood")

    tokenizer = word_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Normalizer.custom(Shouting())
    assert not Subwords(tokenizer, max_length=None, tokenise="auto", name="M").gathers


LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<cls>", "<sep>"]
UNIGRAM = [
    *((token, 0.0) for token in SPECIAL),
    *(
        (token, -5 - place / 10)
        for place, token in enumerate(["▁", *LETTERS, *"0123456789.,!'\"", "▁the", "ing", "▁a"])
    ),
]
WORD_PIECE = {token: place for place, token in enumerate([*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), *".,!'"])}
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
BYTES = {
    token: place for place, token in enumerate([*SPECIAL, "<|endoftext|>", *ALPHABET, *(f"Ġ{c}" for c in LETTERS)])
}
MERGES = [("Ġ", letter) for letter in LETTERS]
USUAL: list[tuple[str, dict[str, Any]]] = [
    *((name, {"vocab": WORD_PIECE}) for name in ("Bert", "Funnel", "MPNet")),
    *((name, {"vocab": BYTES, "merges": MERGES}) for name in ("Roberta", "GPT2", "Deberta", "GPTNeoX", "Qwen2")),
    *((name, {"vocab": UNIGRAM}) for name in ("Albert", "BigBird", "Camembert", "DebertaV2", "MBart50")),
    *((name, {"vocab": UNIGRAM}) for name in ("RemBert", "T5", "XLMRoberta", "XLNet")),
]
ODD_WORDS = [
    "``quoted''", "l´amour", "´a", "\u0600x", "x\u0600", "\u0301abc", "\u0e33a", "the", "a\u200b", "\u200b", "…", "ﷺ",
    "▁▁", "<mask>", "[MASK]", "x\u20dd", "ﾞa", "🏽", "中文", *(word for probe in PROBES for word in probe.split()),
]  # fmt: skip


def both_ways(reader: Subwords, words: tuple[str, ...], seed: int) -> bool:
    """Compare ids with those of the tokenizer itself, copy by copy; True if they were gathered."""
    rng = np.random.default_rng(seed)
    mask = reader.tokenizer.mask_token
    used = False
    for masking in (False, True) if mask is not None else (False,):
        pieces = reader.prepare(words, Words(), masking)
        used |= pieces is not None
        kept = rng.random((6, len(words))) < 0.6
        copies = reader.copies(Request(Prepared("x", words, Words(), masking, pieces), kept))
        for row, copy in zip(kept, copies, strict=True):
            some = [word if keep else mask for word, keep in zip(words, row, strict=True) if keep or masking]
            assert np.frombuffer(copy, np.int32).tolist() == reader.tokenizer(" ".join(some))["input_ids"], some
    return used


@pytest.mark.parametrize(("name", "options"), USUAL, ids=[name for name, _ in USUAL])
@pytest.mark.filterwarnings("error")
def test_the_usual_tokenizers_are_gathered_with_the_right_ids(name: str, options: dict[str, Any]) -> None:
    tokenizer = getattr(transformers, f"{name}Tokenizer")(**options)
    if name == "GPTNeoX":  # as ModernBERT has them: no copy holds two spaces
        tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(2, 5)])
    reader = Subwords(tokenizer, max_length=None, tokenise="auto", name=name)
    assert reader.gathers
    rng = np.random.default_rng(0)
    usual = ["the", "film", "wasn't", "good,", "a", "plot.", "naïve", "2024", "CAPS!", "(so)"]
    assert all(both_ways(reader, tuple(rng.choice(usual, size=7).tolist()), seed) for seed in range(5))
    for seed in range(40):
        both_ways(reader, tuple(rng.choice(ODD_WORDS, size=rng.integers(0, 8)).tolist()), seed)
    assert reader.gathers


@pytest.mark.parametrize(("name", "options"), [("LlamaTokenizer", {}), ("GemmaTokenizer", {})])
def test_models_whose_subwords_may_hold_spaces_are_joined(name: str, options: dict[str, Any]) -> None:
    vocab = {token: place for place, (token, _) in enumerate(UNIGRAM)} | {"<bos>": 98, "<eos>": 99}
    tokenizer = getattr(transformers, name)(vocab=vocab, merges=[], **options)
    assert not Subwords(tokenizer, max_length=None, tokenise="auto", name=name).gathers


def charsmap(rules: dict[str, str]) -> bytes:
    """A map as SentencePiece compiles it: the size of a double-array trie of the keys, the trie, the replacements."""
    replacements, places = b"", {}
    for key, value in rules.items():
        places[key.encode()] = len(replacements)
        replacements += value.encode() + b"\0"
    units: dict[int, int] = {}
    free = 1

    def add(prefix: bytes, label: int, position: int) -> None:
        nonlocal free
        children = sorted({key[len(prefix)] for key in places if key.startswith(prefix) and len(key) > len(prefix)})
        base, free = free * 256, free + 1  # a block of its own for each node: simple, and large
        offset = base ^ position
        units[position] = (offset << 10) | label | (256 if prefix in places else 0)
        if prefix in places:
            units[base] = places[prefix] | 1 << 31
        for child in children:
            add(prefix + bytes([child]), child, base ^ child)

    add(b"", 0, 0)
    size = 256 * free
    trie = b"".join(units.get(position, 0).to_bytes(4, "little") for position in range(size))
    return len(trie).to_bytes(4, "little") + trie + replacements


def test_a_compiled_map_is_local_but_for_graphemes_that_take_a_space_in() -> None:
    rules = {"ﬁ": "fi", "´": " \u0301", "\u0600": "q", "\u200b": " ", "Ａ": "a"}
    stages = [normalizers.Precompiled(charsmap(rules)), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer = transformers.XLMRobertaTokenizer(vocab=UNIGRAM)
    inner = tokenizer.backend_tokenizer
    inner.normalizer = normalizers.Sequence(stages)
    assert inner.normalizer.normalize_str("ﬁlm´x") == "film \u0301x"
    assert inner.normalizer.normalize_str("b\u0600 c") == "bqc"  # it reaches over the space
    reader = Subwords(tokenizer, max_length=None, tokenise="auto", name="M")
    assert reader.gathers
    assert both_ways(reader, ("the", "ﬁlm", "Ａ", "plot"), 0)
    for odd in ("b\u0600", "\u0301x", "´", "\u200b", "ﬁ´", "\u200bx"):
        assert not both_ways(reader, ("the", odd, "Ａ", odd), 0)
    assert reader.gathers


def test_words_that_hold_an_added_token_once_normalised_are_joined() -> None:
    tokenizer = transformers.BertTokenizer(vocab=WORD_PIECE)
    tokenizer.add_tokens([AddedToken("good", lstrip=True, rstrip=True, normalized=True)])
    reader = Subwords(tokenizer, max_length=None, tokenise="auto", name="M")
    assert reader.gathers
    assert both_ways(reader, ("a", "film"), 0)
    assert not both_ways(reader, ("a", "gööd", "film"), 0)


def test_a_check_on_the_first_texts_switches_gathering_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer that reaches over spaces in a way that nobody knows."""
    from adaptdel.classifiers import subwords
    from adaptdel.classifiers.locality import locality

    trusted = locality(word_level())
    monkeypatch.setattr(subwords, "locality", lambda tokenizer: trusted)
    texts = ["film very film", "not not not very good good good"]
    wanted = smoothed(ACROSS["replace"](), "join").certify(texts)
    model = smoothed(ACROSS["replace"]())
    base: Any = model.base
    assert base.subwords.gathers
    with pytest.warns(
        UserWarning, match="M is read more slowly, each copy as a joined text: its tokenizer does not re"
    ):
        certificates = model.certify(texts)
    assert not base.subwords.gathers
    assert [one.to_dict() for one in certificates] == [one.to_dict() for one in wanted]

    model = smoothed(ACROSS["replace"]())
    model.certify(texts[:1])  # votes were taken on gathered ids
    with pytest.raises(
        ValueError, match=r"tokenise must be 'join' for M: its tokenizer does not read 'not .*' word by"
    ):
        model.certify(texts[1:])
    with pytest.raises(ValueError, match="tokenise must be 'join' for M: its tokenizer does not read"):
        smoothed(ACROSS["replace"](), "gather").certify(texts)


def test_later_texts_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptdel.classifiers import subwords
    from adaptdel.classifiers.locality import locality

    trusted = locality(word_level())
    monkeypatch.setattr(subwords, "locality", lambda tokenizer: trusted)
    reader = Subwords(ACROSS["replace"](), max_length=None, tokenise="auto", name="M")
    for _ in range(100):
        assert reader.prepare(("film", "very"), Words(), False) is not None
    words = ("not", "not", "not", "very", "good", "good", "good")
    with pytest.warns(UserWarning, match="M is read more slowly"):
        assert any(reader.prepare(words, Words(), False) is None for _ in range(16))


@pytest.mark.parametrize("tokenise", ["auto", "join"])
def test_a_tokenizer_that_is_changed_later_is_refused(tokenise: str) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda tokenizer: tokenizer.add_tokens(["not good"]),
        lambda tokenizer: setattr(
            tokenizer.backend_tokenizer, "normalizer", normalizers.Replace("not good", "notgood")
        ),
    ]
    for change in changes:
        tokenizer = word_level()
        model = smoothed(tokenizer, tokenise)
        assert model.predict(["film"]) == [0]
        change(tokenizer)
        with pytest.raises(ValueError) as error:
            model.predict(["not not not very good good good"])
        assert str(error.value) == "the tokenizer of M must stay as it was when it was loaded: load it anew"


def test_a_slow_tokenizer_reads_the_joined_text() -> None:
    slow = pytest.importorskip("transformers.tokenization_python")

    class Lowering(slow.PreTrainedTokenizer):  # type: ignore[misc, name-defined]
        """As tokenizers with do_lower_case: the whole text is changed before it is cut."""

        vocab_size = property(lambda self: len(VOCABULARY))

        def get_vocab(self) -> dict[str, int]:
            return {token: number for number, token in enumerate(VOCABULARY)}

        def _tokenize(self, text: str, **options: Any) -> list[str]:
            return text.lower().replace("not good", "notgood").split()

        def _convert_token_to_id(self, token: str) -> int:
            return self.get_vocab().get(token, 1)

        def _convert_id_to_token(self, index: int) -> str:
            return VOCABULARY[index]

    tokenizer = Lowering(pad_token="[PAD]", unk_token="[UNK]")
    reader = Subwords(tokenizer, max_length=None, tokenise="auto", name="M")
    assert not reader.gathers
    both_ways(reader, ("NOT", "very", "good"), 0)
    assert json.dumps(reader.encode(["NOT good"])) == json.dumps([[MERGED[0]]])


class BatchDependent(Merged):
    """Scores of nearly balanced copies, with an error that depends on the batch."""

    def __init__(self) -> None:
        super().__init__(ACROSS["replace"]())
        self.margin = 1e-3
        self.self_test_ = cast(Any, SimpleNamespace(longest_shared=10**6))
        self.sizes: list[int] = []

    def scores(self, inputs: dict[str, Any]) -> npt.NDArray[Any]:
        ids, used = inputs["input_ids"], inputs["attention_mask"]
        self.sizes.append(len(ids))
        first = ((ids * used).sum(axis=1) % 3 - 1) * 1e-5  # ties, and what is closer than the error
        error = 1e-4 * np.sin(np.arange(len(ids)) + len(ids)) if len(ids) > 1 else 0.0
        return np.stack([first + error, np.zeros(len(ids))], axis=1)


def test_scores_of_copies_have_the_votes_as_best_classes() -> None:
    base = BatchDependent()
    certifier = ad.SmoothedClassifier(base, ad.Deletion(ad.FixedRate(0.5))).certifier()
    rng = np.random.default_rng(0)
    requests = [
        Request(certifier.prepare(" ".join(rng.choice(["not", "very", "good", "film"], 9)), "a text"), kept)
        for kept in rng.random((3, 40, 9)) < 0.5
    ]
    votes = base.votes(requests)
    base.sizes.clear()
    tables = base.copy_scores(requests)
    assert max(base.sizes) > 1
    assert base.sizes.count(1) > 10  # near ties are read alone
    assert all(np.array_equal(best(table), answers) for table, answers in zip(tables, votes, strict=True))
    assert len({int(answer) for answers in votes for answer in answers}) == 2
    assert base.copy_scores([]) == []
