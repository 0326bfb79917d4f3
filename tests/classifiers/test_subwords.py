"""The ids of noisy copies are those of the joined text, whatever the tokenizer does across spaces."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adaptdel as ad
from adaptdel.classifiers.base import BaseClassifierError, Prepared, Request, stated
from adaptdel.classifiers.subwords import PROBES, SubwordClassifier, Subwords, batches
from adaptdel.classifiers.transformers import TransformersClassifier
from adaptdel.text.units import Bytes, Words
from tests.classifiers.test_transformers import fixed, tiny

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

Regex = tokenizers.Regex
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
    "replace": lambda: word_level(normalizers.Replace("not good", "notgood")),
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

    def __init__(self, tokenizer: Any) -> None:
        self.subwords = Subwords(tokenizer, max_length=None, name="M")
        self.batch_tokens, self.margin, self.classes_ = 2**14, 0.0, [0, 1]
        self.batching = "padded"

    def start(self, inputs: dict[str, Any]) -> Any:
        has = np.isin(inputs["input_ids"], MERGED).any(axis=1)
        return np.stack([~has, has], axis=1).astype(np.float32).copy


def smoothed(tokenizer: Any) -> ad.SmoothedClassifier:
    return ad.SmoothedClassifier(Merged(tokenizer), ad.Deletion(ad.FixedRate(0.6)))


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
        assert certificate.alpha == 0
        radii.append(certificate.radius)
        if certificate.radius > 0:
            edited = [" ".join(words) for words in set(one_edit(tuple(text.split())))]
            assert {other.label for other in model.certify(edited)} == {certificate.label}, text
    assert max(radii) > 0
    assert radii[0] == 0


def ids_of(reader: Subwords, words: tuple[Any, ...], kept: Any, masking: bool) -> list[list[int]]:
    texts = reader.texts(Request(Prepared("x", words, Words(), masking), kept))
    return [row.tolist() for row in reader.encode(texts)]


@pytest.mark.parametrize("name", ["bert", "roberta", *ACROSS])
@pytest.mark.parametrize(("limit", "side"), [(None, "right"), (7, "right"), (7, "left")])
def test_ids_are_those_of_the_joined_text(name: str, limit: int | None, side: str) -> None:
    tokenizer = ACROSS[name]() if name in ACROSS else fixed(name)
    tokenizer.truncation_side = side
    reader = Subwords(tokenizer, max_length=limit, name=name)
    rng, words = np.random.default_rng(0), tuple(word for probe in PROBES for word in probe.split())
    for masking in (False, True):
        for length in (0, 1, 3, 9):
            row = tuple(rng.choice(words, length).tolist())
            kept = rng.random((6, length)) < np.linspace(0, 1, 6)[:, None]
            found = ids_of(reader, row, kept, masking)
            mask = tokenizer.mask_token
            for copy, flags in zip(found, kept, strict=True):
                some = [word if keep else mask for word, keep in zip(row, flags, strict=True) if keep or masking]
                options = {"truncation": True, "max_length": limit} if limit else {}
                assert copy == tokenizer(" ".join(some), **options)["input_ids"]


def test_the_code_of_a_tokenizer_and_of_a_model_counts() -> None:
    """A saved model would be loaded without it: there is a fingerprint for what the user states only."""
    own = word_level(kind=Rewriting)
    assert (stated([word_level()]), stated([own])) == ("", None)
    own.fingerprint = "v3"
    assert stated([own]) == "v3"

    class Turned(type(tiny("bert", fixed("bert")))):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, attention_mask: Any = None) -> Any:
            found = super().forward(input_ids, attention_mask)
            found.logits = -found.logits
            return found

    tokenizer = fixed("bert")
    usual, turned = tiny("bert", tokenizer), tiny("bert", tokenizer)
    turned.__class__ = Turned
    hashes = [TransformersClassifier(model, tokenizer=tokenizer).fingerprint() for model in (usual, turned)]
    turned.fingerprint = "v3"
    hashes.append(TransformersClassifier(turned, tokenizer=tokenizer).fingerprint())
    assert hashes[1] == ""
    assert len({*hashes}) == 3


def test_units_masks_and_lengths_that_do_not_fit() -> None:
    bare = Subwords(fixed("bert", mask=False), max_length=None, name="M")
    with pytest.raises(ValueError, match="noise must be a deletion for M"):
        bare.check(("a",), Words(), True)
    with pytest.raises(ValueError, match="unit must join to a text"):
        bare.check((1, 2), Bytes(), False)
    with pytest.raises(ValueError, match="maximum length of M must leave space"):
        Subwords(fixed("bert"), max_length=2, name="M")


def test_a_tokenizer_with_dropout_is_refused() -> None:
    """The same text would get other ids every time, and other votes."""
    vocabulary = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "a", "b", "ab"])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")], dropout=0.5, unk_token="[UNK]"))
    with pytest.raises(ValueError, match=r"the same ids every time \(its BPE dropout is 0.5"):
        Subwords(transformers.PreTrainedTokenizerFast(tokenizer_object=inner), max_length=None, name="M")


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=60), budget=st.integers(1, 400))
def test_batches_hold_every_copy_once_within_the_budget(sizes: list[int], budget: int) -> None:
    array = np.array(sizes)
    for batch in batches(array, budget, equal=True):
        assert len(set(array[batch].tolist())) == 1
    cut = list(batches(array, budget))
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(sizes)))
    assert all(len(batch) == 1 or len(batch) * array[batch].max() <= budget for batch in cut)


class BatchDependent(Merged):
    """Scores of nearly balanced copies, with an error that depends on the batch."""

    def __init__(self) -> None:
        super().__init__(ACROSS["replace"]())
        self.margin = 1e-3
        self.self_test_ = cast(Any, SimpleNamespace(longest_shared=10**6))
        self.sizes: list[int] = []

    def start(self, inputs: dict[str, Any]) -> Any:
        ids, used = inputs["input_ids"], inputs["attention_mask"]
        self.sizes.append(len(ids))
        first = ((ids * used).sum(axis=1) % 3 - 1) * 1e-5  # ties, and what is closer than the error
        error = 1e-4 * np.sin(np.arange(len(ids)) + len(ids)) if len(ids) > 1 else 0.0
        return np.stack([first + error, np.zeros(len(ids))], axis=1).copy


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
    assert all(np.array_equal(np.argmax(table, axis=1), answers) for table, answers in zip(tables, votes, strict=True))
    assert len({int(answer) for answers in votes for answer in answers}) == 2
    assert base.copy_scores([]) == []


class SmallMemory(BatchDependent):
    """Fails as torch does on a GPU for a batch of more than 64 ids."""

    def start(self, inputs: dict[str, Any]) -> Any:
        if inputs["input_ids"].size > self.fits:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().start(inputs)

    fits = 64


def test_batches_that_do_not_fit_in_memory_are_halved_with_a_single_warning() -> None:
    rng, votes = np.random.default_rng(0), []
    words = tuple(rng.choice(["not", "very", "good", "film"], 9).tolist())
    kept = rng.random((60, 9)) < 0.5
    for base in (BatchDependent(), SmallMemory()):
        request = Request(base.prepare("x", words, Words()), kept)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            votes.append(base.votes([request])[0].tolist())
            base.votes([Request(base.prepare("y", words[:8], Words()), kept[:, :8])])
    assert votes[0] == votes[1]
    assert [str(warning.message)[:12] for warning in said] == ["a batch of 1"]
    assert base.batch_tokens <= 64
    assert max(base.sizes) > 4  # still batches
    base = SmallMemory()
    base.fits = 3
    with pytest.raises(BaseClassifierError, match="failed on x: RuntimeError: CUDA out of memory"), pytest.warns():
        base.votes([Request(base.prepare("x", words, Words()), kept)])


def test_a_batch_that_fails_for_another_reason_is_read_alone() -> None:
    class Picky(BatchDependent):
        def start(self, inputs: dict[str, Any]) -> Any:
            if len(inputs["input_ids"]) > 1:
                raise ValueError("all rows must have the same number of <eos> tokens")
            return super().start(inputs)

    picky, plain = Picky(), BatchDependent()
    kept = np.random.default_rng(0).random((20, 5)) < 0.5
    votes = [
        base.votes([Request(base.prepare("x", ("not", "very", "good", "film", "a"), Words()), kept)])
        for base in (picky, plain)
    ]
    assert votes[0][0].tolist() == votes[1][0].tolist()


def test_a_panic_of_a_tokenizer_fails_the_input() -> None:
    """A panic of Rust code is no `Exception`: it would end the thread that serves a model."""

    class PanicException(BaseException):
        pass

    base = BatchDependent()

    def panicking(*arguments: Any, **options: Any) -> Any:
        raise PanicException("index out of bounds")

    ready = base.prepare("x", ("not", "good"), Words())
    base.subwords.tokenizer = type("Panicking", (), {"__call__": panicking, "mask_token": None})()
    with pytest.raises(BaseClassifierError, match=r"failed on x: .*panicked: index out of bounds"):
        base.votes([Request(ready, np.ones((2, 2), dtype=np.bool_))])


def test_the_next_batch_is_begun_before_the_last_one_is_fetched() -> None:
    """On a GPU the preparation of a batch then overlaps with the work on the one before."""
    events: list[str] = []

    class Deferred(BatchDependent):
        def start(self, inputs: dict[str, Any]) -> Any:
            number, scores = sum(event.startswith("start") for event in events), super().start(inputs)()
            events.append(f"start {number}")
            return lambda: (events.append(f"fetch {number}"), scores)[1]  # type: ignore[func-returns-value]

    base, plain = Deferred(), BatchDependent()
    base.batch_tokens, base.recheck = 40, 0
    kept = np.random.default_rng(0).random((30, 9)) < 0.5
    words = ("not", "very", "good", "film", "good", "not", "film", "very", "not")
    found = base.votes([Request(base.prepare("x", words, Words()), kept)])[0]
    assert events[:5] == ["start 0", "start 1", "fetch 0", "start 2", "fetch 1"]
    assert found.tolist() == plain.votes([Request(plain.prepare("x", words, Words()), kept)])[0].tolist()
